/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/meta_touches.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/map.h"
#include "base/mix.h"
#include "manager/meta/meta_store_private.h"

enum {
    PARTS = 16,
    PART_ENTRIES_MAX = 3072, /* in all 1.6 MiB, and 1 MiB for finding them */
    FLUSHED_AT = 2048,
};

struct touch_part {
    struct tierce__lock lock;
    struct tierce__touch *entries; /* PART_ENTRIES_MAX */
    struct tierce__numbers table;  /* of the entries, by space and key */
};

struct tierce__touches {
    struct touch_part parts[PARTS];
    struct tierce__touch *taken; /* PART_ENTRIES_MAX: the entries that are flushed */
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

/* Adds to uses of the same key that wait: as tierce__record_touch. */
static void join(struct tierce__record_use *all, const struct tierce__record_use *use)
{
    all->uses += use->uses <= UINT32_MAX - all->uses ? use->uses : 0;
    if (use->uses == 0 || all->used_us <= use->used_us)
        all->hint = use->hint;
    if (use->uses > 0 && all->used_us < use->used_us)
        all->used_us = use->used_us;
}

/* false: no room. */
static bool add(struct touch_part *part, uint64_t hash, const struct tierce__touch *touch)
{
    uint32_t n = part->table.count;
    tierce__lock_assert_held(&part->lock);
    TIERCE_ASSERT(n <= PART_ENTRIES_MAX);
    TIERCE__NUMBERS_FOR_EACH (it, &part->table, (uint32_t)hash) {
        struct tierce__touch *entry = &part->entries[it.number];
        TIERCE_DASSERT(it.number < n);
        if (entry->space != touch->space || entry->key != touch->key)
            continue;
        join(&entry->use, &touch->use);
        return true;
    }
    if (n == PART_ENTRIES_MAX)
        return false;
    part->entries[n] = *touch;
    tierce__numbers_put(&part->table, (uint32_t)hash, n);
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
                         size_t count, const struct tierce__record_use *use)
{
    _Static_assert(PARTS == 1 << 4, "the first four bits of a hash choose the part");
    bool is_full = false;
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = hash_of(space, keys[i]);
        struct touch_part *part = &touches->parts[hash >> 60];
        struct tierce__touch touch = {space, keys[i], tierce__meta_use(use, i)};
        tierce__lock_take(&part->lock);
        size_t before = part->table.count;
        bool added = add(part, hash, &touch);
        is_full = is_full || !added || (part->table.count == FLUSHED_AT && before < FLUSHED_AT);
        tierce__lock_drop(&part->lock);
    }
    if (is_full)
        wake(touches);
}

static void hand_on(struct tierce__touches *touches)
{
    for (unsigned p = 0; p < PARTS; p++) {
        struct touch_part *part = &touches->parts[p];
        tierce__lock_take(&part->lock);
        struct tierce__touch *entries = part->entries;
        size_t count = part->table.count;
        TIERCE_ASSERT(count <= PART_ENTRIES_MAX);
        part->entries = touches->taken;
        touches->taken = entries;
        if (count > 0)
            tierce__numbers_clear(&part->table);
        tierce__lock_drop(&part->lock);
        TIERCE_DASSERT(!tierce__lock_holds_any());
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
        TIERCE_ASSERT(touches->parts[i].table.count == 0);
        tierce__lock_fini(&touches->parts[i].lock);
        tierce__numbers_fini(&touches->parts[i].table);
        tierce__free(touches->parts[i].entries);
    }
    tierce__cond_fini(&touches->wake);
    tierce__lock_fini(&touches->lock);
    tierce__free(touches->taken);
    tierce__free(touches);
}

int tierce__touches_start(struct tierce__touches **out, uint32_t interval_ms,
                          tierce__touches_flush_fn flush, void *arg)
{
    TIERCE_ASSERT(interval_ms > 0);
    struct tierce__touches *touches = tierce__calloc(1, sizeof(*touches));
    if (touches == NULL)
        return -ENOMEM;
    touches->flush = flush;
    touches->arg = arg;
    touches->interval_ms = interval_ms;
    tierce__lock_init(&touches->lock, TIERCE__LOCK_META_TOUCHES);
    tierce__cond_init(&touches->wake);
    touches->taken = tierce__calloc(PART_ENTRIES_MAX, sizeof(*touches->taken));
    int rc = touches->taken == NULL ? -ENOMEM : 0;
    for (unsigned i = 0; i < PARTS; i++) {
        struct touch_part *part = &touches->parts[i];
        tierce__lock_init(&part->lock, TIERCE__LOCK_META_TOUCHES);
        part->entries = tierce__calloc(PART_ENTRIES_MAX, sizeof(*part->entries));
        if (part->entries == NULL || tierce__numbers_init(&part->table, PART_ENTRIES_MAX) < 0)
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
    TIERCE_ASSERT(!touches->is_stopping);
    touches->is_stopping = true;
    tierce__cond_signal(&touches->wake);
    tierce__lock_drop(&touches->lock);
    pthread_join(touches->thread, NULL);
    free_all(touches);
}
