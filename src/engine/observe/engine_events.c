/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/engine_events.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "engine/engine.h"
#include "engine/own_tiers.h"
#include "engine/why/why.h"
#include "engine/objects/smalls.h"

#define BATCH_MAX   4096u
#define COPY_MAX    32u /* records under one hold of the lock: tiers wait for it */
#define SCAN_PLACES 256u

/* An event as the ring keeps it. */
struct event_record {
    struct tierce__key key;
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    uint8_t level;
    uint8_t left; /* enum tierce__tier_left */
    bool admitted;
    bool has_parent;
    uint8_t parent[TIERCE_HASH_BYTES];
    uint8_t first_block[TIERCE_HASH_BYTES];
};

struct tierce__events {
    _Atomic uint32_t subscriber_count; /* relaxed where it is read: see tell */
    struct tierce__lock lock;          /* EVENTS: below */
    uint32_t ring_count;
    struct event_record
        *ring;     /* [ring_count], event n at n % ring_count; NULL before it is needed */
    uint64_t next; /* number of the next event */
    struct tierce__list subscriptions;
};

struct tierce_subscription {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_events_opts opts;
    struct event_record *records; /* [batch_max] */
    struct tierce_event *batch;   /* [batch_max] */
    pthread_t thread;

    /* EVENTS: */
    struct tierce__list node;
    struct tierce__cond wake;
    uint64_t cursor; /* the next event to deliver */
    uint64_t due_ns; /* when the batch that is gathered is due */
    bool ending;
};

/* ---- the ring -------------------------------------------------------------------------------- */

int tierce__events_create(struct tierce__events **out, uint32_t ring_count)
{
    TIERCE_DASSERT(ring_count > 0);
    struct tierce__events *events = tierce__calloc(1, sizeof(*events));
    if (events == NULL)
        return -ENOMEM;
    tierce__lock_init(&events->lock, TIERCE__LOCK_EVENTS);
    tierce__list_init(&events->subscriptions);
    events->ring_count = ring_count;
    events->next = 1;
    *out = events;
    return 0;
}

void tierce__events_destroy(struct tierce__events *events)
{
    if (events == NULL)
        return;
    TIERCE_ASSERT(tierce__list_empty(&events->subscriptions));
    TIERCE_DASSERT(atomic_load(&events->subscriber_count) == 0);
    tierce__lock_fini(&events->lock);
    tierce__free(events->ring);
    tierce__free(events);
}

uint64_t tierce__events_last(struct tierce__events *events)
{
    tierce__lock_take(&events->lock);
    TIERCE_DASSERT(events->next > 0);
    uint64_t last = events->next - 1;
    tierce__lock_drop(&events->lock);
    return last;
}

static void write_record(struct event_record *out, size_t level,
                         const struct tierce__tier_event *event)
{
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX);
    *out = (struct event_record){.key = *event->key,
                                 .object_bytes = event->object_bytes,
                                 .token_start = event->token_start,
                                 .block_count = event->block_count,
                                 .level = (uint8_t)level,
                                 .left = (uint8_t)event->left,
                                 .admitted = event->admitted,
                                 .has_parent = event->parent != NULL};
    memcpy(out->first_block, event->first_block, sizeof(out->first_block));
    if (event->parent != NULL)
        memcpy(out->parent, event->parent, sizeof(out->parent));
}

/* Wakes subscribers with a full batch, or with their first event. */
static void wake_subscribers(struct tierce__events *events)
{
    tierce__lock_assert_held(&events->lock);
    TIERCE__LIST_FOR_EACH (it, &events->subscriptions) {
        struct tierce_subscription *s = TIERCE__CONTAINER_OF(it, struct tierce_subscription, node);
        uint64_t pending = events->next - s->cursor;
        TIERCE_DASSERT(s->cursor <= events->next);
        if (pending == 1)
            s->due_ns = tierce__deadline_in_ms(s->opts.interval_ms);
        if (pending == 1 || pending == s->opts.batch_max)
            tierce__cond_signal(&s->wake);
    }
}

/*
 * The tier's lock is held. A subscriber that takes a snapshot takes this lock after it has
 * subscribed. If it takes the lock later, its snapshot contains changes that were not reported for
 * lack of a subscriber. If it took the lock earlier, the count is visible here.
 */
void tierce__events_tell(struct tierce__events *events, size_t level,
                         const struct tierce__tier_event *event)
{
    if (atomic_load_explicit(&events->subscriber_count, memory_order_relaxed) == 0)
        return;
    tierce__lock_take(&events->lock);
    if (!tierce__list_empty(&events->subscriptions)) {
        TIERCE_DASSERT(events->next > 0 && atomic_load(&events->subscriber_count) > 0);
        write_record(&events->ring[events->next % events->ring_count], level, event);
        events->next++;
        wake_subscribers(events);
    }
    tierce__lock_drop(&events->lock);
}

/* ---- records become events ------------------------------------------------------------------- */

static struct tierce_event describe(struct tierce_engine *engine, const struct event_record *r,
                                    uint64_t sequence)
{
    TIERCE_DASSERT(r->level < engine->level_count);
    struct tierce_event e = {.sequence = sequence,
                             .kind = r->admitted ? TIERCE_EVENT_ADMIT : TIERCE_EVENT_EVICT,
                             .tier = engine->levels[r->level].tier->ops->name,
                             .ns_text = tierce__namespaces_text(engine->namespaces, r->key.ns),
                             .ns_digest = tierce__namespaces_digest(engine->namespaces, r->key.ns),
                             .shard = r->key.shard,
                             .has_parent = r->has_parent,
                             .token_start = r->token_start,
                             .block_count = r->block_count,
                             .object_bytes = r->object_bytes};
    if (!r->admitted)
        e.reason = tierce__why_left((enum tierce__tier_left)r->left);
    memcpy(e.hash, r->key.hash, sizeof(e.hash));
    memcpy(e.parent, r->parent, sizeof(e.parent));
    memcpy(e.first_block, r->first_block, sizeof(e.first_block));
    return e;
}

/* ---- a subscription's thread ----------------------------------------------------------------- */

static uint64_t oldest_of(const struct tierce__events *events)
{
    tierce__lock_assert_held(&events->lock);
    return events->next > events->ring_count ? events->next - events->ring_count : 1;
}

/* Copies the next events into s->records, a few at a time; *gap: earlier events were lost. Under
 * the lock, which is dropped on the way. */
static uint32_t collect(struct tierce__events *events, struct tierce_subscription *s, bool *gap)
{
    tierce__lock_assert_held(&events->lock);
    uint32_t count = 0;
    *gap = s->cursor < oldest_of(events);
    if (*gap)
        s->cursor = oldest_of(events);
    while (count < s->opts.batch_max && s->cursor < events->next &&
           s->cursor >= oldest_of(events)) {
        for (uint32_t i = 0; i < COPY_MAX && count < s->opts.batch_max && s->cursor < events->next;
             i++)
            s->records[count++] = events->ring[s->cursor++ % events->ring_count];
        tierce__lock_drop(&events->lock);
        tierce__lock_take(&events->lock);
    }
    TIERCE_DASSERT(count <= s->opts.batch_max && s->cursor <= events->next);
    TIERCE_DASSERT(s->cursor > 0);
    return count;
}

/* Under the lock, which is dropped on the way. */
static void deliver(struct tierce__events *events, struct tierce_subscription *s)
{
    tierce__lock_assert_held(&events->lock);
    struct tierce_event_batch batch = {.events = s->batch};
    uint32_t count = collect(events, s, &batch.gap);
    uint64_t first = s->cursor - count;
    TIERCE_DASSERT(count > 0 && first > 0);
    tierce__lock_drop(&events->lock);
    for (uint32_t i = 0; i < count; i++)
        s->batch[i] = describe(s->engine, &s->records[i], first + i);
    batch.count = count;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    s->opts.fn(s->opts.arg, &batch);
    tierce__lock_take(&events->lock);
    s->due_ns = tierce__deadline_in_ms(s->opts.interval_ms);
}

static void *run_subscription(void *arg)
{
    struct tierce_subscription *s = arg;
    struct tierce__events *events = s->engine->events;
    tierce__lock_take(&events->lock);
    while (!s->ending) {
        uint64_t pending = events->next - s->cursor;
        TIERCE_DASSERT(s->cursor > 0 && s->cursor <= events->next);
        if (pending >= s->opts.batch_max || (pending > 0 && tierce__now_ns() >= s->due_ns))
            deliver(events, s);
        else
            tierce__cond_wait(&s->wake, &events->lock,
                              pending > 0 ? s->due_ns : TIERCE__DEADLINE_NEVER);
    }
    tierce__lock_drop(&events->lock);
    return NULL;
}

/* ---- subscribing ----------------------------------------------------------------------------- */

static int enter(struct tierce__events *events, struct tierce_subscription *s)
{
    int rc = 0;
    tierce__lock_take(&events->lock);
    TIERCE_DASSERT(tierce__list_empty(&s->node));
    if (events->ring == NULL)
        events->ring = tierce__calloc(events->ring_count, sizeof(*events->ring));
    if (events->ring != NULL) {
        s->cursor = events->next;
        tierce__list_push_back(&events->subscriptions, &s->node);
        atomic_fetch_add(&events->subscriber_count, 1);
    } else {
        rc = -ENOMEM;
    }
    tierce__lock_drop(&events->lock);
    return rc;
}

static void leave(struct tierce__events *events, struct tierce_subscription *s)
{
    tierce__lock_take(&events->lock);
    TIERCE_DASSERT(atomic_load(&events->subscriber_count) > 0);
    TIERCE_DASSERT(!tierce__list_empty(&s->node));
    tierce__list_remove(&s->node);
    atomic_fetch_sub(&events->subscriber_count, 1);
    tierce__lock_drop(&events->lock);
}

static void free_subscription(struct tierce_subscription *s)
{
    TIERCE_DASSERT(tierce__list_empty(&s->node));
    tierce__cond_fini(&s->wake);
    tierce__free(s->records);
    tierce__free(s->batch);
    s->magic = 0;
    tierce__free(s);
}

int tierce__events_subscribe(struct tierce_subscription **out, struct tierce_engine *engine,
                             const struct tierce_events_opts *opts)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    if (engine->level_count == 0)
        return TIERCE_E_UNSUPPORTED;
    if (opts->size != sizeof(*opts) || opts->fn == NULL || opts->batch_max > BATCH_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce_subscription *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    s->magic = TIERCE__SUBSCRIPTION_MAGIC;
    s->engine = engine;
    s->opts = *opts;
    s->opts.batch_max = opts->batch_max > 0 ? opts->batch_max : 256;
    s->opts.interval_ms = opts->interval_ms > 0 ? opts->interval_ms : 100;
    tierce__cond_init(&s->wake);
    tierce__list_init(&s->node);
    s->records = tierce__calloc(s->opts.batch_max, sizeof(*s->records));
    s->batch = tierce__calloc(s->opts.batch_max, sizeof(*s->batch));
    int rc = s->records != NULL && s->batch != NULL ? enter(engine->events, s) : -ENOMEM;
    if (rc == 0) {
        rc = -pthread_create(&s->thread, NULL, run_subscription, s);
        if (rc < 0)
            leave(engine->events, s);
    }
    if (rc < 0) {
        free_subscription(s);
        return rc;
    }
    *out = s;
    return 0;
}

void tierce__events_unsubscribe(struct tierce_subscription *subscription)
{
    struct tierce__events *events = subscription->engine->events;
    TIERCE_ASSERT(!pthread_equal(pthread_self(), subscription->thread));
    tierce__lock_take(&events->lock);
    subscription->ending = true;
    tierce__cond_signal(&subscription->wake);
    tierce__lock_drop(&events->lock);
    pthread_join(subscription->thread, NULL);
    leave(events, subscription);
    free_subscription(subscription);
}

int tierce_events_subscribe(struct tierce_subscription **out, struct tierce_engine *engine,
                            const struct tierce_events_opts *opts)
{
    int rc = tierce__events_subscribe(out, engine, opts);
    if (rc == 0)
        tierce__engine_ref(engine);
    return rc;
}

void tierce_events_unsubscribe(struct tierce_subscription *subscription)
{
    if (subscription == NULL)
        return;
    TIERCE_CHECK_MAGIC(subscription, TIERCE__SUBSCRIPTION_MAGIC);
    struct tierce_engine *engine = subscription->engine;
    if (tierce__engine_inherited(engine))
        return;
    tierce__events_unsubscribe(subscription);
    tierce_engine_close(engine);
}

/* ---- snapshots ------------------------------------------------------------------------------- */

struct tierce__events_scan {
    struct tierce_engine *engine;
    size_t level;
    uint32_t cursor, count;
    struct event_record records[SCAN_PLACES];
    struct tierce_event events[SCAN_PLACES];
};

static void take_scanned(void *arg, const struct tierce__tier_event *event)
{
    struct tierce__events_scan *scan = arg;
    TIERCE_ASSERT(scan->count < SCAN_PLACES);
    TIERCE_DASSERT(event->admitted);
    if (tierce__smalls_is_page(event->key))
        return;
    write_record(&scan->records[scan->count++], scan->level, event);
}

/*
 * The number is taken first. Changes up to that number happened under a tier's lock that this
 * thread takes later, so the scan sees them. The caller applies later changes again.
 */
int tierce__events_scan_begin(struct tierce__events_scan **out,
                              struct tierce_subscription *subscription, uint64_t *sequence)
{
    TIERCE_CHECK_MAGIC(subscription, TIERCE__SUBSCRIPTION_MAGIC);
    struct tierce_engine *engine = subscription->engine;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    struct tierce__events_scan *scan = tierce__alloc(sizeof(*scan));
    if (scan == NULL)
        return -ENOMEM;
    scan->engine = engine;
    scan->level = 0;
    scan->cursor = 0;
    *sequence = tierce__events_last(engine->events);
    *out = scan;
    return 0;
}

bool tierce__events_scan_next(struct tierce__events_scan *scan, tierce_events_fn *fn, void *arg)
{
    if (scan->level == scan->engine->level_count)
        return false;
    struct tierce__tier *tier = scan->engine->levels[scan->level].tier;
    scan->count = 0;
    bool more = tierce__level_is_told(&scan->engine->levels[scan->level]) &&
                tier->ops->scan(tier, &scan->cursor, SCAN_PLACES, take_scanned, scan);
    for (uint32_t i = 0; i < scan->count; i++)
        scan->events[i] = describe(scan->engine, &scan->records[i], 0);
    if (!more) {
        scan->level++;
        scan->cursor = 0;
    }
    if (scan->count > 0)
        fn(arg, &(struct tierce_event_batch){.events = scan->events, .count = scan->count});
    return true;
}

void tierce__events_scan_end(struct tierce__events_scan *scan)
{
    tierce__free(scan);
}

int tierce__events_snapshot(struct tierce_subscription *subscription, uint64_t *sequence,
                            tierce_events_fn *fn, void *arg, const _Atomic bool *stop)
{
    struct tierce__events_scan *scan;
    int rc = tierce__events_scan_begin(&scan, subscription, sequence);
    if (rc < 0)
        return rc;
    while ((stop == NULL || !atomic_load_explicit(stop, memory_order_relaxed)) &&
           tierce__events_scan_next(scan, fn, arg))
        ;
    tierce__events_scan_end(scan);
    return 0;
}

int tierce_events_snapshot(struct tierce_subscription *subscription, uint64_t *sequence,
                           tierce_events_fn *fn, void *arg)
{
    return tierce__events_snapshot(subscription, sequence, fn, arg, NULL);
}
