/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_STORE_PRIVATE_H
#define TIERCE_MANAGER_META_STORE_PRIVATE_H

#include "manager/meta_store.h"

/* What the stores share. */

/* One key near a random number; false: none there, draw again. Negative: an error. */
typedef int (*tierce__meta_draw_fn)(void *arg, uint64_t random, int64_t *key);

struct tierce__meta_draws {
    tierce__meta_draw_fn draw;
    void *arg;
    uint64_t keys; /* about as many are in the space */
};

/* ops->sample by draws; a space that has few keys is scanned instead. */
TIERCE_MUSTUSE int tierce__meta_sample(struct tierce__meta_space *space,
                                       const struct tierce__meta_draws *draws, uint64_t *random,
                                       size_t count, int64_t *out, size_t *found);

/* Whether every note of a batch is of a kind that there may be. */
bool tierce__meta_batch_is_valid(const struct tierce__meta_batch *batch);

/* The i-th of keys that are touched at a time. */
static inline int64_t tierce__meta_touch_us(int64_t now_us, size_t i)
{
    return now_us - (int64_t)i;
}

#endif
