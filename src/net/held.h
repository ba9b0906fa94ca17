/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HELD_H
#define TIERCE_NET_HELD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/assert.h"

/* The bytes of messages in memory, which several connections share. Thread: any. */
struct tierce__held {
    size_t max;
    _Atomic size_t bytes; /* relaxed: a sum that is only compared with a limit */
};

static inline void tierce__held_give_back(struct tierce__held *held, size_t bytes)
{
    TIERCE_ASSERT(atomic_load_explicit(&held->bytes, memory_order_relaxed) >= bytes);
    atomic_fetch_sub_explicit(&held->bytes, bytes, memory_order_relaxed);
}

/* Reserves bytes until they are given back; false if the limit is reached. */
static inline bool tierce__held_take(struct tierce__held *held, size_t bytes)
{
    size_t before = atomic_fetch_add_explicit(&held->bytes, bytes, memory_order_relaxed);
    if (bytes <= held->max && before <= held->max - bytes)
        return true;
    tierce__held_give_back(held, bytes);
    return false;
}

#endif
