/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_METER_H
#define TIERCE_MANAGER_METER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/threads/lock.h"

/*
 * The use of an account and its limits: one token bucket for requests a second, one for keys, one
 * for bytes. A bucket holds as much as its limit allows in one second. A call is admitted while the
 * balance of its buckets is above 0, and charged with what it has used, even if that is more than
 * the balance: the account then waits until the debt is paid. So a call that is larger than the
 * limit passes too, and calls of several threads exceed it only for a moment.
 *
 * Calls hold a meter by a counted reference. Threads: any.
 */

enum tierce__use { TIERCE__USE_REQUESTS, TIERCE__USE_KEYS, TIERCE__USE_BYTES, TIERCE__USES };

/* "requests", "keys", "bytes" */
const char *tierce__use_name(enum tierce__use use);

/* A second; 0: no limit. */
struct tierce__limits {
    uint64_t of[TIERCE__USES];
};

/* Reads "requests=100", "keys=10000" or "bytes=1GiB". False, and *fault is the reason. */
bool tierce__limits_parse(struct tierce__limits *out, const char *word, const char **fault);
bool tierce__limits_are_same(const struct tierce__limits *a, const struct tierce__limits *b);

struct tierce__meter {
    atomic_uint references;
    char name[64]; /* of the account */
    struct tierce__limits limits;
    _Atomic uint64_t used[TIERCE__USES];
    _Atomic uint64_t refused[TIERCE__USES]; /* calls that met this limit */
    struct tierce__lock lock;               /* METER: guards the fields below */
    double balance[TIERCE__USES];
    uint64_t at_ns; /* of the balance */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__meter_create(struct tierce__meter **out, const char *name,
                                        const struct tierce__limits *limits, uint64_t now_ns);
/* NULL is accepted here and below, and has no limits. */
struct tierce__meter *tierce__meter_hold(struct tierce__meter *meter);
void tierce__meter_drop(struct tierce__meter *meter);

/* Takes over what an earlier meter of the account has counted, and its debts. */
void tierce__meter_adopt(struct tierce__meter *meter, struct tierce__meter *earlier);

/* Counts a request, and returns whether it is admitted; `has_keys`: the limits of keys and bytes
 * hold for it too. If not, `why` names the limit and when to retry. */
bool tierce__meter_admit(struct tierce__meter *meter, bool has_keys, uint64_t now_ns,
                         char why[256]);

/* Charges what an admitted call has used. */
void tierce__meter_charge(struct tierce__meter *meter, uint64_t keys, uint64_t bytes,
                          uint64_t now_ns);

#endif
