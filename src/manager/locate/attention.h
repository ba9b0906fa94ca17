/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_ATTENTION_H
#define TIERCE_MANAGER_ATTENTION_H

#include "base/arena.h"
#include "manager/registry/model.h"

#include <tierce/key.h>
#include <tierce/status.h>

/*
 * The blocks of a prompt that the layers of an instance need, so that an engine can go on after one
 * (core/key/group.h). Threads: any.
 */

struct tierce__needs {
    enum tierce_group kind;
    bool is_sparse; /* a block can be used without the blocks before it */
    uint32_t run;   /* the last blocks that are needed, of a sparse kind: at least 1 */
};

/* An instance whose kind is not known is taken for one of all layers. */
struct tierce__needs tierce__attention_needs(const struct tierce__instance *instance);

/* The layers of an instance, for the event log. */
struct tierce__layers_note {
    struct tierce__attention attention;
    const char *group; /* of the instance */
};

/* *out = a copy in the arena, or NULL if the instance has no kind of attention. -ENOMEM, *out
 * untouched. */
TIERCE_MUSTUSE int tierce__attention_note(const struct tierce__layers_note **out,
                                          const struct tierce__instance *instance,
                                          struct tierce__arena *arena);

#endif
