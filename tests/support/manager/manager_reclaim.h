/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MANAGER_RECLAIM_H
#define TIERCE_TESTS_MANAGER_RECLAIM_H

#include "manager/reclaim/reclaimer.h"
#include "manager_harness.h"

/* A harness with a reclaimer that works in tierce__reclaimer_step only. */

static struct tierce__reclaimer *reclaimer;

static inline void start_reclaimer(struct harness *h, uint32_t sample_keys)
{
    int rc = tierce__reclaimer_start(&reclaimer, &(struct tierce__reclaimer_opts){
                                                     .size = sizeof(struct tierce__reclaimer_opts),
                                                     .locator = h->locator,
                                                     .registry = h->registry,
                                                     .sample_keys = sample_keys,
                                                     .seed = 1,
                                                 });
    ck_assert_int_eq(rc, 0);
}

static inline void open_all(struct harness *h, const struct harness_opts *opts)
{
    harness_open(h, opts);
    start_reclaimer(h, 0);
}

static inline void close_all(struct harness *h)
{
    tierce__reclaimer_stop(reclaimer);
    harness_close(h);
}

/* Each a second after the one before. */
static inline void store_each(struct harness *h, int64_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t key = first + (int64_t)i;
        h->now_us += 1000000;
        harness_store(h, &key, 1);
    }
}

static inline bool is_there(struct harness *h, int64_t key)
{
    struct tierce__record record;
    struct tierce__live *live;
    bool found = false;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    ck_assert_int_eq(tierce__meta_index_get(live->index, &key, 1, &h->arena, &record, &found), 0);
    tierce__live_release(live);
    return found;
}

static inline void read_key(struct harness *h, int64_t key)
{
    h->now_us += 1000000;
    ck_assert_uint_eq(harness_get(h, TIERCE__QUERY_BATCH, &key, 1, 0).hits, 1);
}

/* ---- a use between the drawing of a sample and the removal ----------------------------------- */

static const struct tierce__meta_store_ops *real_ops;
static struct tierce__meta_store_ops touching_ops;
static int64_t touched_us, touched_key;
static int gets;

static inline int get_and_touch(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                                struct tierce__arena *arena, struct tierce__record *records,
                                bool *found)
{
    if (++gets == 2)
        real_ops->touch(space, &touched_key, 1, &(struct tierce__record_use){touched_us, 1, 0});
    return real_ops->get(space, keys, count, arena, records, found);
}

static inline void set_ops(struct harness *h, const struct tierce__meta_store_ops *ops)
{
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    real_ops = ops == NULL ? live->space->ops : real_ops;
    touching_ops = *real_ops;
    touching_ops.get = get_and_touch;
    live->space->ops = ops == NULL ? &touching_ops : ops;
    tierce__live_release(live);
}

/* From now on the key is used after the first time that records are read. */
static inline void touch_between(struct harness *h, int64_t key)
{
    touched_key = key;
    touched_us = h->now_us + 1000000;
    gets = 0;
    set_ops(h, NULL);
}

static inline void touch_no_more(struct harness *h)
{
    set_ops(h, real_ops);
}

#endif
