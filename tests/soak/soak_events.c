/* SPDX-License-Identifier: Apache-2.0 */
#include "soak.h"

#include <pthread.h>

#include "engine/observe/engine_events.h"

/*
 * A directory of the chunks in the tiers, built from the events as tierce/events.h describes.
 * Checked: numbers have only the gaps that are reported; each event that a snapshot cannot include
 * changes the set; and while nothing happens, the set equals the tiers' own listing.
 */

enum { BINS = 1024, ENTRIES = 16384, END = -1 };

struct entry {
    uint8_t ns[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    bool on_disk;
    int next;
};

struct directory {
    int bins[BINS], free;
    int64_t count;
    struct entry entries[ENTRIES];
};

static struct {
    struct tierce_subscription *subscription;
    uint64_t last;    /* told; 0: nothing yet */
    uint64_t covered; /* by the snapshot that was taken last */
    uint64_t certain; /* what is told after it happened after the snapshot */
    uint32_t nap_us;  /* of each call: who is slow is told of gaps */
    uint64_t gaps, told;
    struct directory directory;
} events;

/* The directory belongs to the subscription's thread until its last event has been told. */
static struct directory fresh;
static _Atomic uint64_t through; /* events up to it were applied */
static _Atomic bool subscribed;
static _Atomic bool
    settling; /* no naps: with small batches they would take longer than anybody waits */

/* ---- a set of chunks ------------------------------------------------------------------------- */

static void empty(struct directory *d)
{
    for (int i = 0; i < BINS; i++)
        d->bins[i] = END;
    for (int i = 0; i < ENTRIES; i++)
        d->entries[i].next = i + 1 < ENTRIES ? i + 1 : END;
    d->free = 0;
    d->count = 0;
}

static struct entry entry_of(const struct tierce_event *e)
{
    struct entry entry = {.shard = e->shard, .on_disk = strcmp(e->tier, "memory") != 0};
    MUST(e->ns_digest != NULL);
    memcpy(entry.ns, e->ns_digest, sizeof(entry.ns));
    memcpy(entry.hash, e->hash, sizeof(entry.hash));
    return entry;
}

static bool is_same(const struct entry *a, const struct entry *b)
{
    return memcmp(a->ns, b->ns, sizeof(a->ns)) == 0 &&
           memcmp(a->hash, b->hash, sizeof(a->hash)) == 0 &&
           memcmp(&a->shard, &b->shard, sizeof(a->shard)) == 0 && a->on_disk == b->on_disk;
}

/* The link that leads to an entry, or to END. */
static int *link_of(struct directory *d, const struct entry *entry)
{
    uint32_t bin;
    memcpy(&bin, entry->hash, sizeof(bin));
    int *link = &d->bins[bin % BINS];
    while (*link != END && !is_same(&d->entries[*link], entry))
        link = &d->entries[*link].next;
    return link;
}

/* Whether it changed anything. */
static bool apply(struct directory *d, const struct tierce_event *e)
{
    struct entry entry = entry_of(e);
    int *link = link_of(d, &entry), at = *link;
    bool admit = e->kind == TIERCE_EVENT_ADMIT;
    if (admit == (at != END))
        return false;
    if (admit) {
        MUST(d->free != END);
        at = d->free;
        d->free = d->entries[at].next;
        d->entries[at] = entry;
        d->entries[at].next = END;
        *link = at;
        d->count++;
    } else {
        *link = d->entries[at].next;
        d->entries[at].next = d->free;
        d->free = at;
        d->count--;
    }
    return true;
}

/* ---- the subscriber -------------------------------------------------------------------------- */

static void take_snapshot_batch(void *arg, const struct tierce_event_batch *batch)
{
    struct directory *d = arg;
    for (size_t i = 0; i < batch->count; i++) {
        MUST(batch->events[i].sequence == 0 && batch->events[i].kind == TIERCE_EVENT_ADMIT);
        (void)apply(d, &batch->events[i]);
    }
}

static void resync(void)
{
    empty(&events.directory);
    MUST(tierce_events_snapshot(events.subscription, &events.covered, take_snapshot_batch,
                                &events.directory) == 0);
    events.certain = tierce__events_last(soak.engine->events);
}

static void on_events(void *arg, const struct tierce_event_batch *batch)
{
    (void)arg;
    uint64_t first = batch->events[0].sequence, next = events.last + 1;
    MUST(batch->count > 0);
    MUST(events.last == 0 || (batch->gap ? first > next : first == next));
    if (!atomic_load(&settling))
        usleep(events.nap_us);
    while (!atomic_load(&subscribed)) /* this may come before subscribe has returned */
        usleep(1000);
    if (batch->gap || events.last == 0) {
        events.gaps += batch->gap;
        resync();
    }
    for (size_t i = 0; i < batch->count; i++) {
        const struct tierce_event *e = &batch->events[i];
        MUST(e->sequence == first + i);
        bool changed = e->sequence > events.covered && apply(&events.directory, e);
        MUST(changed || e->sequence <= events.certain);
    }
    events.told += batch->count;
    events.last = first + batch->count - 1;
    atomic_store_explicit(&through, events.last, memory_order_release);
}

void events_start(struct test_random *random)
{
    memset(&events, 0, sizeof(events));
    atomic_store(&through, 0);
    atomic_store(&subscribed, false);
    atomic_store(&settling, false);
    empty(&events.directory);
    events.nap_us = test_random_below(random, 3) == 0 ? 1000 * test_random_below(random, 30) : 0;
    struct tierce_events_opts opts = {.size = sizeof(opts),
                                      .fn = on_events,
                                      .batch_max = 1 + test_random_below(random, 300),
                                      .interval_ms = 1 + test_random_below(random, 50)};
    MUST(tierce_events_subscribe(&events.subscription, soak.engine, &opts) == 0);
    atomic_store(&subscribed, true);
}

/* ---- quiet ----------------------------------------------------------------------------------- */

void events_settle(uint32_t timeout_ms)
{
    uint64_t last = tierce__events_last(soak.engine->events), sequence;
    uint64_t give_up = tierce__deadline_in_ms(timeout_ms);
    atomic_store(&settling, true);
    while (atomic_load_explicit(&through, memory_order_acquire) < last) {
        MUST(tierce__now_ns() < give_up);
        usleep(2000);
    }
    empty(&fresh);
    MUST(tierce_events_snapshot(events.subscription, &sequence, take_snapshot_batch, &fresh) == 0);
    MUST(sequence == last);
    struct tierce_engine_stats s = soak_stats();
    int64_t counted = s.memory_chunks_now + s.disk_chunks_now;
    /* A bit flipped in a version hides a chunk: the disk keeps and counts it, and serves it not. */
    MUST(fresh.count == counted || (soak.spoils && fresh.count < counted));
    if (last == 0)
        return; /* nothing has come or left, and nothing was told */
    MUST(fresh.count == events.directory.count);
    for (int bin = 0; bin < BINS; bin++) {
        for (int at = fresh.bins[bin]; at != END; at = fresh.entries[at].next)
            MUST(*link_of(&events.directory, &fresh.entries[at]) != END);
    }
}

void events_stop(uint64_t *told, uint64_t *gaps)
{
    tierce_events_unsubscribe(events.subscription);
    *told += events.told;
    *gaps += events.gaps;
}
