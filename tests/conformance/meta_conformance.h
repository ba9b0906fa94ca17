/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_META_CONFORMANCE_H
#define TIERCE_TESTS_META_CONFORMANCE_H

#include "check_main.h"
#include "manager/meta/meta_store.h"

/* The contract of every store of records. */
struct meta_factory {
    const char *name;
    const struct tierce__meta_store_ops *ops;
    bool is_durable;
    void (*begin)(void);      /* of each test: an empty place */
    const char *(*uri)(void); /* of that place */
    void (*end)(void);
};

Suite *meta_conformance(const struct meta_factory *factory);

#endif
