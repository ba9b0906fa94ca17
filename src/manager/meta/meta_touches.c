/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/meta_touches.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/mix.h"
#include "manager/meta/meta_store_private.h"

enum {
    PARTS = 16,
    PART_SLOTS = 4096, /* a power of two; 1.5 MiB in all */
    PART_ENTRIES_MAX = PART_SLOTS / 4 * 3,
    FLUSHED_AT = PART_SLOTS / 2,
};

/* Open addressing; a slot without uses is empty. */
struct part {
    struct tierce__lock lock;
    struct tierce__touch *slots; /* PART_SLOTS */
    size_t count;
};

struct tierce__touches {
    struct part parts[PARTS];
    struct tierce__touch *taken; /* PART_SLOTS: the flushed entries */
    tierce__touches_flush_fn flush;
    void *arg;
    uint32_t interval_ms;
    pthread_t thread;
    struct tierce__lock lock; /* guards the fields below */
    struct tierce__cond wake;
    bool is_full, is_stopping;
};

static uint64_t hash_of(uint32_t space, int64_t key)
{
    return tierce__meta_mix(key) + tierce__spread(space);
}

/* false: no room. */
static bool add(struct part *part, uint64_t hash, const struct tierce__touch *touch)
{
    struct tierce__touch *slot;
    for (size_t i = (size_t)hash; (slot = &part->slots[i % PART_SLOTS])->uses > 0; i++) {
        if (slot->space != touch->space || slot->key != touch->key)
            continue;
        slot->uses += slot->uses < UINT32_MAX;
        if (slot->used_us < touch->used_us)
            slot->used_us = touch->used_us;
        return true;
    }
    if (part->count == PART_ENTRIES_MAX)
        return false;
    *slot = *touch;
    part->count++;
    return true;
}

static void wake(struct tierce__touches *touches)
{
    tierce__lock_take(&touches->lock);
    touches->is_full = true;
    tierce__cond_signal(&touches->wake);
    tierce__lock_drop(&touches->lock);
}

void tierce__touches_add(struct tierce__touches *touches, uint32_t space, const int64_t *keys,
                         size_t count, int64_t now_us)
{
    bool is_full = false;
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = hash_of(space, keys[i]);
        struct part *part = &touches->parts[hash >> 60];
        struct tierce__touch touch = {space, 1, keys[i], tierce__meta_touch_us(now_us, i)};
        tierce__lock_take(&part->lock);
        size_t before = part->count;
        bool added = add(part, hash, &touch);
        is_full = is_full || !added || (part->count == FLUSHED_AT && before < FLUSHED_AT);
        tierce__lock_drop(&part->lock);
    }
    if (is_full)
        wake(touches);
}

static void hand_on(struct tierce__touches *touches)
{
    for (unsigned p = 0; p < PARTS; p++) {
        struct part *part = &touches->parts[p];
        size_t count = 0;
        tierce__lock_take(&part->lock);
        for (size_t i = 0; part->count > 0 && i < PART_SLOTS; i++)
            if (part->slots[i].uses > 0) {
                touches->taken[count++] = part->slots[i];
                part->slots[i].uses = 0;
                part->count--;
            }
        tierce__lock_drop(&part->lock);
        if (count > 0)
            touches->flush(touches->arg, touches->taken, count);
    }
}

static void *run(void *arg)
{
    struct tierce__touches *touches = (struct tierce__touches *)arg;
    bool is_stopping = false;
    while (!is_stopping) {
        uint64_t deadline_ns = tierce__deadline_in_ms(touches->interval_ms);
        tierce__lock_take(&touches->lock);
        while (!touches->is_stopping && !touches->is_full &&
               tierce__cond_wait(&touches->wake, &touches->lock, deadline_ns))
            ;
        touches->is_full = false;
        is_stopping = touches->is_stopping;
        tierce__lock_drop(&touches->lock);
        hand_on(touches);
    }
    return NULL;
}

static void free_all(struct tierce__touches *touches)
{
    for (unsigned i = 0; i < PARTS; i++) {
        tierce__lock_fini(&touches->parts[i].lock);
        tierce__free(touches->parts[i].slots);
    }
    tierce__cond_fini(&touches->wake);
    tierce__lock_fini(&touches->lock);
    tierce__free(touches->taken);
    tierce__free(touches);
}

int tierce__touches_start(struct tierce__touches **out, uint32_t interval_ms,
                          tierce__touches_flush_fn flush, void *arg)
{
    struct tierce__touches *touches = tierce__calloc(1, sizeof(*touches));
    if (touches == NULL)
        return -ENOMEM;
    touches->flush = flush;
    touches->arg = arg;
    touches->interval_ms = interval_ms;
    tierce__lock_init(&touches->lock, TIERCE__LOCK_META_TOUCHES);
    tierce__cond_init(&touches->wake);
    touches->taken = tierce__calloc(PART_SLOTS, sizeof(*touches->taken));
    int rc = touches->taken == NULL ? -ENOMEM : 0;
    for (unsigned i = 0; i < PARTS; i++) {
        struct part *part = &touches->parts[i];
        tierce__lock_init(&part->lock, TIERCE__LOCK_META_TOUCHES);
        part->slots = tierce__calloc(PART_SLOTS, sizeof(*part->slots));
        if (part->slots == NULL)
            rc = -ENOMEM;
    }
    if (rc == 0)
        rc = -pthread_create(&touches->thread, NULL, run, touches);
    if (rc < 0)
        free_all(touches);
    else
        *out = touches;
    return rc;
}

void tierce__touches_stop(struct tierce__touches *touches)
{
    if (touches == NULL)
        return;
    tierce__lock_take(&touches->lock);
    touches->is_stopping = true;
    tierce__cond_signal(&touches->wake);
    tierce__lock_drop(&touches->lock);
    pthread_join(touches->thread, NULL);
    free_all(touches);
}
