/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_FAULT_H
#define TIERCE_TIER_FAULT_H

#include "store/tier.h"

/*
 * A tier around a tier that fails on command: for tests, and for trying a running system.
 *
 *     tierce__fault_create(&wrapped, disk);
 *     tierce__fault_set(wrapped, TIERCE__STORE_GET, &(struct tierce__fault_rule){
 *             .kind = TIERCE__FAULT_ERROR, .status = -EIO, .skip = 2, .times = 1});
 *
 * One rule per operation. With a seed it hits at random: which of the requests, which bit, and how
 * late, follow from the seed and from the order in which the requests come. Thread: any.
 */

enum tierce__fault_kind {
    TIERCE__FAULT_NONE = 0,
    TIERCE__FAULT_ERROR, /* answers `status`, delay_ms late, without asking the tier */
    TIERCE__FAULT_DELAY, /* answers delay_ms late */
    TIERCE__FAULT_HANG,  /* does not pass the request on, and answers it at its deadline, as a tier
                            must */
    TIERCE__FAULT_FLIP,  /* GET: flips bit `bit` of the bytes that were read; PUT: of those that
                            are kept, in a copy unless the tier keeps the buffer itself */
    TIERCE__FAULT_SHORT, /* GET that does not lend: half of the range's pages are read, the rest of
                            the destination stays as it was; answers `status`, which may be 0 */
};

struct tierce__fault_rule {
    enum tierce__fault_kind kind;
    int status;
    uint32_t delay_ms;
    uint64_t bit;   /* counted from the start of the object; outside the range: no effect */
    uint32_t skip;  /* matching requests that pass first */
    uint32_t times; /* then this many are hit; 0: all */
    uint64_t seed;  /* not 0: of these, per_mille of 1000 are hit; the bit is any of the range,
                       the delay any up to delay_ms */
    uint32_t per_mille;
};

/* Wraps `next`, which it owns from now on. Errors: -ENOMEM, errno of thread creation; `next` is the
 * caller's still. */
TIERCE_MUSTUSE int tierce__fault_create(struct tierce__tier **out, struct tierce__tier *next);

/* Sets the rule of an operation; NULL ends it. */
void tierce__fault_set(struct tierce__tier *tier, enum tierce__store_op op,
                       const struct tierce__fault_rule *rule);

#endif
