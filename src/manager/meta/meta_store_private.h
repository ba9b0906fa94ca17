/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_STORE_PRIVATE_H
#define TIERCE_MANAGER_META_STORE_PRIVATE_H

#include "manager/meta/meta_store.h"

/* Functions that the stores share. */

/* Draws one key near a random number. 0: there is none, draw again. Negative: an error. */
typedef int (*tierce__meta_draw_fn)(void *arg, uint64_t random, int64_t *key);

struct tierce__meta_draws {
    tierce__meta_draw_fn draw;
    void *arg;
    uint64_t keys; /* approximate number of keys in the space */
};

/* Neighbouring keys of a sample that are drawn together. */
enum { TIERCE__META_DRAWN_AT_ONCE = 64 };

/* Implements ops->sample by draws; a space with few keys is scanned instead. */
TIERCE_MUSTUSE int tierce__meta_sample(struct tierce__meta_space *space,
                                       const struct tierce__meta_draws *draws, uint64_t *random,
                                       size_t count, int64_t *out, size_t *found);

/* Returns whether every note of a batch has a valid kind. */
bool tierce__meta_batch_is_valid(const struct tierce__meta_batch *batch);

/* The use of the i-th key in one touch. */
static inline struct tierce__record_use tierce__meta_use(const struct tierce__record_use *use,
                                                         size_t i)
{
    return (struct tierce__record_use){use->used_us - (int64_t)i, use->uses, use->hint};
}

#endif
