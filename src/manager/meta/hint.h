/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_HINT_H
#define TIERCE_MANAGER_HINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"
#include "core/policy/policy.h"

/*
 * A client's hint about the next use of a block, as its record keeps it: 12 bits. The lowest three
 * are an enum tierce__policy_hint, the others a time to live, which only TIERCE__HINT_TTL has. 0:
 * no hint.
 *
 * The time is a number of seconds with five significant bits, rounded up: c codes c below 16, and
 * (16 + c % 16) << (c / 16 - 1) from there on.
 */

enum { TIERCE__HINT_KIND_BITS = 3, TIERCE__HINT_BITS = 12 };

static inline enum tierce__policy_hint tierce__hint_kind(uint16_t hint)
{
    return (enum tierce__policy_hint)(hint & ((1 << TIERCE__HINT_KIND_BITS) - 1));
}

/* The time to live in seconds; 0: none. */
static inline int64_t tierce__hint_ttl_s(uint16_t hint)
{
    int64_t code = hint >> TIERCE__HINT_KIND_BITS;
    return code < 16 ? code : (16 + code % 16) << (code / 16 - 1);
}

/* The hint of a kind; ttl_s is used with TIERCE__HINT_TTL only, 1 .. TIERCE__TTL_S_MAX. */
static inline uint16_t tierce__hint_make(enum tierce__policy_hint kind, int64_t ttl_s)
{
    uint32_t code = 0;
    if (kind == TIERCE__HINT_TTL) {
        uint32_t shift = 0;
        TIERCE_ASSERT(ttl_s > 0 && ttl_s <= INT64_C(1) << 34);
        while (((ttl_s - 1) >> shift) + 1 > 31)
            shift++;
        code = (uint32_t)((ttl_s - 1) >> shift) + 1 + 16 * shift;
    }
    TIERCE_DASSERT(code < 1u << (TIERCE__HINT_BITS - TIERCE__HINT_KIND_BITS));
    return (uint16_t)(code << TIERCE__HINT_KIND_BITS | kind);
}

/* Whether untrusted bits are a hint, or none. */
static inline bool tierce__hint_is_valid(uint64_t hint)
{
    return hint < UINT64_C(1) << TIERCE__HINT_BITS &&
           (hint & ((1 << TIERCE__HINT_KIND_BITS) - 1)) < TIERCE__HINTS &&
           (tierce__hint_kind((uint16_t)hint) == TIERCE__HINT_TTL) ==
               (hint >> TIERCE__HINT_KIND_BITS != 0);
}

#endif
