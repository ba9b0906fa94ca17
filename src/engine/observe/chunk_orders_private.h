/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CHUNK_ORDERS_PRIVATE_H
#define TIERCE_ENGINE_CHUNK_ORDERS_PRIVATE_H

#include "engine/observe/chunk_orders.h"

/* Shared by the files that carry out orders about chunks. */

bool tierce__chunk_orders_stopped(const struct tierce__chunk_orders *orders);

/* Adds to the message of an outcome. */
__attribute__((format(printf, 2, 3))) void
tierce__chunk_say(struct tierce__chunk_order_outcome *out, const char *format, ...);

/* Whether the engine is in mode normal. False: the outcome says that it must be. */
bool tierce__chunk_orders_normal(const struct tierce_engine *engine,
                                 struct tierce__chunk_order_outcome *out);

/* The least time between the writes of two chunks, or of one that was refused, in a recode. */
uint64_t tierce__chunk_recode_ns(uint64_t object_bytes);

/* Calls fn for each chunk of a tier, without a lock of it, until fn returns an error. Returns that
 * error, -ENOMEM or TIERCE_E_CANCELLED. */
typedef int tierce__chunk_walk_fn(void *arg, const struct tierce__storage_chunk *chunk);
TIERCE_MUSTUSE int tierce__chunk_walk(const struct tierce__chunk_orders *orders, size_t level,
                                      tierce__chunk_walk_fn *fn, void *arg);

struct tierce__chunk_wanted {
    struct tierce__chunk_number number;
    size_t index;
};

/* The records of the named chunks that a tier holds, in the order of the names. */
struct tierce__chunk_find {
    struct tierce__chunk_wanted *wanted; /* [count], sorted */
    struct tierce__storage_chunk *found; /* [count]; object_bytes 0: not held */
    size_t count;
};

static inline bool tierce__chunk_is_found(const struct tierce__chunk_find *find, size_t i)
{
    return find->found[i].object_bytes > 0;
}

/* The fini must follow, also after an error: -ENOMEM, TIERCE_E_CANCELLED. */
TIERCE_MUSTUSE int tierce__chunk_find_init(struct tierce__chunk_find *find,
                                           const struct tierce__chunk_orders *orders, size_t level,
                                           const struct tierce__chunk_numbers *chunks);
void tierce__chunk_find_fini(struct tierce__chunk_find *find);

#endif
