/* SPDX-License-Identifier: Apache-2.0 */
/* Subscribers: the events that they receive, in batches, with gaps and snapshots. */
#include "base/clock.h"
#include "base/threads/lock.h"
#include "check_main.h"
#include "engine/observe/engine_events.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <tierce/events.h>

static struct fixture fx;

/* ---- a subscriber that writes everything down ---- */

enum { KEPT = 512 };

struct diary {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    size_t count, batches, gaps, largest;
    struct tierce_event events[KEPT];
};

static struct diary diary;

static void write_down(void *arg, const struct tierce_event_batch *batch)
{
    struct diary *d = arg;
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; i < batch->count && d->count < KEPT; i++)
        d->events[d->count++] = batch->events[i];
    d->batches++;
    d->gaps += batch->gap;
    if (batch->count > d->largest)
        d->largest = batch->count;
    pthread_cond_broadcast(&d->more);
    pthread_mutex_unlock(&d->mutex);
}

/* Waits until so many events were told. */
static void wait_for(struct diary *d, size_t count)
{
    pthread_mutex_lock(&d->mutex);
    while (d->count < count)
        pthread_cond_wait(&d->more, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
}

static struct tierce_subscription *subscribe(uint32_t batch_max, uint32_t interval_ms)
{
    struct tierce_subscription *s;
    struct tierce_events_opts opts = {.size = sizeof(opts),
                                      .fn = write_down,
                                      .arg = &diary,
                                      .batch_max = batch_max,
                                      .interval_ms = interval_ms};
    diary = (struct diary){.mutex = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
    ck_assert_int_eq(tierce_events_subscribe(&s, fx.engine, &opts), 0);
    return s;
}

START_TEST(what_comes_and_what_leaves_is_told)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_subscription *s = subscribe(0, 1);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    wait_for(&diary, 6);
    unsigned told[2][2][2] = {{{0}}}; /* kind, tier, chunk */
    for (size_t i = 0; i < 6; i++) {
        const struct tierce_event *e = &diary.events[i];
        ck_assert_uint_eq(e->sequence, i + 1);
        size_t chunk = e->token_start / (FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS);
        ck_assert_uint_lt(chunk, 2);
        told[e->kind == TIERCE_EVENT_EVICT][strcmp(e->tier, "disk") == 0][chunk]++;
        ck_assert_int_eq(e->reason,
                         e->kind == TIERCE_EVENT_EVICT ? TIERCE_MISS_EVICTED : TIERCE_MISS_NONE);
        size_t first = chunk * FX_CHUNK_BLOCKS;
        ck_assert_mem_eq(e->hash, tierce_chain_hash(chain, first + 3), TIERCE_HASH_BYTES);
        ck_assert_mem_eq(e->first_block, tierce_chain_hash(chain, first), TIERCE_HASH_BYTES);
        ck_assert_int_eq(e->has_parent, chunk == 1);
        if (chunk == 1)
            ck_assert_mem_eq(e->parent, tierce_chain_hash(chain, 3), TIERCE_HASH_BYTES);
        ck_assert_str_eq(e->ns_text, tierce_view_namespace(fx.view));
        ck_assert_mem_eq(e->ns_digest, fx.view->ns_digest, TIERCE_HASH_BYTES);
        ck_assert_uint_eq(e->block_count, FX_CHUNK_BLOCKS);
        ck_assert_uint_eq(e->object_bytes, fx.view->full.extent.object_bytes);
        ck_assert_uint_eq(e->shard.tp_size, 1);
    }
    for (unsigned chunk = 0; chunk < 2; chunk++) {
        ck_assert_uint_eq(told[0][0][chunk], 1);
        ck_assert_uint_eq(told[0][1][chunk], 1);
        ck_assert_uint_eq(told[1][0][chunk], 1);
    }
    ck_assert_uint_eq(diary.gaps, 0);
    tierce_events_unsubscribe(s);
    tierce_events_unsubscribe(NULL);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A full batch does not wait for the interval, and nothing is told twice or after the end. */
START_TEST(a_full_batch_goes_at_once)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    struct tierce_subscription *s = subscribe(5, 3600000);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    wait_for(&diary, 10);
    ck_assert_uint_eq(diary.batches, 2);
    ck_assert_uint_eq(diary.largest, 5);
    tierce_events_unsubscribe(s);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    ck_assert_uint_eq(diary.count, 10);
    /* There was no subscriber meanwhile, so no event was numbered. */
    s = subscribe(10, 3600000);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    wait_for(&diary, 10);
    ck_assert_uint_eq(diary.events[0].sequence, 11);
    tierce_events_unsubscribe(s);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Each kind of handle has a magic of its own. */
START_TEST(another_handle_is_no_subscription)
{
    static const uint32_t others[] = {TIERCE__ENGINE_MAGIC, TIERCE__VIEW_MAGIC, TIERCE__STORE_MAGIC,
                                      TIERCE__LOAD_MAGIC, TIERCE__PREFETCH_MAGIC};
    uint64_t handle[64] = {others[_i]};
    tierce_events_unsubscribe((void *)handle);
}
END_TEST

START_TEST(a_subscription_holds_the_engine_open)
{
    fx_open(&fx, false, NULL);
    struct tierce_subscription *s = subscribe(0, 1);
    struct tierce_events_opts bad = {.size = 1, .fn = write_down};
    struct tierce_subscription *none;
    ck_assert_int_eq(tierce_events_subscribe(&none, fx.engine, &bad), TIERCE_E_ARGUMENT);
    bad = (struct tierce_events_opts){.size = sizeof(bad)};
    ck_assert_int_eq(tierce_events_subscribe(&none, fx.engine, &bad), TIERCE_E_ARGUMENT);
    fx_close(&fx);
    uint64_t sequence = 7;
    ck_assert_int_eq(tierce_events_snapshot(s, &sequence, write_down, &diary), 0);
    ck_assert_uint_eq(sequence, 0);
    tierce_events_unsubscribe(s);
    fx_remove(&fx);
}
END_TEST

/* ---- a callback that takes its time ---- */

struct stop {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool inside, may_go, is_over;
};

static void linger(void *arg, const struct tierce_event_batch *batch)
{
    struct stop *stop = arg;
    (void)batch;
    pthread_mutex_lock(&stop->mutex);
    stop->inside = true;
    pthread_cond_broadcast(&stop->changed);
    while (!stop->may_go)
        pthread_cond_wait(&stop->changed, &stop->mutex);
    stop->is_over = true;
    pthread_mutex_unlock(&stop->mutex);
}

static void *let_go(void *arg)
{
    struct stop *stop = arg;
    for (int i = 0; i < 1000; i++)
        sched_yield(); /* the other thread is in unsubscribe by now, probably */
    pthread_mutex_lock(&stop->mutex);
    stop->may_go = true;
    pthread_cond_broadcast(&stop->changed);
    pthread_mutex_unlock(&stop->mutex);
    return NULL;
}

START_TEST(unsubscribing_waits_for_a_call_that_runs)
{
    struct stop stop = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct tierce_events_opts opts = {
        .size = sizeof(opts), .fn = linger, .arg = &stop, .interval_ms = 1};
    struct tierce_subscription *s;
    pthread_t thread;
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(tierce_events_subscribe(&s, fx.engine, &opts), 0);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    pthread_mutex_lock(&stop.mutex);
    while (!stop.inside)
        pthread_cond_wait(&stop.changed, &stop.mutex);
    pthread_mutex_unlock(&stop.mutex);
    ck_assert_int_eq(pthread_create(&thread, NULL, let_go, &stop), 0);
    tierce_events_unsubscribe(s);
    ck_assert(stop.is_over);
    pthread_join(thread, NULL);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* ---- a slow subscriber that keeps a set ---- */

enum { CHAINS = 10, CHUNKS = 12, STEPS = 150, TIERS = 2 };

static struct tierce_chain *chains[CHAINS];

struct set {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct tierce_subscription *subscription; /* NULL until subscribe has returned */
    struct test_random random;
    bool held[TIERS][CHAINS][CHUNKS];
    uint64_t covered; /* by the last snapshot */
    uint64_t seen;    /* number of the last event */
    uint32_t snapshots, gaps, wrong;
};

static bool *place_of(struct set *set, const struct tierce_event *e)
{
    size_t chunk = e->token_start / (FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS);
    for (size_t c = 0; c < CHAINS && chunk < CHUNKS; c++) {
        const uint8_t *hash = tierce_chain_hash(chains[c], (chunk + 1) * FX_CHUNK_BLOCKS - 1);
        if (memcmp(hash, e->hash, TIERCE_HASH_BYTES) == 0)
            return &set->held[strcmp(e->tier, "disk") == 0][c][chunk];
    }
    return NULL;
}

static void apply(struct set *set, const struct tierce_event *e)
{
    bool *place = place_of(set, e);
    if (place == NULL)
        set->wrong++;
    else
        *place = e->kind == TIERCE_EVENT_ADMIT;
}

static void take_snapshot(void *arg, const struct tierce_event_batch *batch)
{
    struct set *set = arg;
    for (size_t i = 0; i < batch->count; i++) {
        set->wrong += batch->events[i].sequence != 0 || batch->events[i].kind != TIERCE_EVENT_ADMIT;
        apply(set, &batch->events[i]);
    }
}

static void keep_set(void *arg, const struct tierce_event_batch *batch)
{
    struct set *set = arg;
    pthread_mutex_lock(&set->mutex);
    while (set->subscription == NULL)
        pthread_cond_wait(&set->changed, &set->mutex);
    set->wrong += !batch->gap && set->seen != 0 && batch->events[0].sequence != set->seen + 1;
    set->wrong += batch->gap && batch->events[0].sequence <= set->seen + 1;
    set->gaps += batch->gap;
    if (batch->gap || set->snapshots == 0) {
        memset(set->held, 0, sizeof(set->held));
        set->snapshots++;
        set->wrong +=
            tierce_events_snapshot(set->subscription, &set->covered, take_snapshot, set) != 0;
    }
    for (size_t i = 0; i < batch->count; i++) {
        set->wrong += i > 0 && batch->events[i].sequence != batch->events[i - 1].sequence + 1;
        if (batch->events[i].sequence > set->covered)
            apply(set, &batch->events[i]);
    }
    set->seen = batch->events[batch->count - 1].sequence;
    pthread_cond_broadcast(&set->changed);
    pthread_mutex_unlock(&set->mutex);
    for (uint32_t n = test_random_below(&set->random, 4) * 500; n > 0; n--)
        sched_yield();
}

static void done_nothing(struct tierce__store_req *req)
{
    (void)req;
}

/* Stores, loads, evicts, clears and quarantines at random. */
static void *work(void *arg)
{
    struct test_random random = {(uint64_t)(uintptr_t)arg};
    for (unsigned i = 0; i < STEPS; i++) {
        struct tierce_chain *chain = chains[test_random_below(&random, CHAINS)];
        uint32_t dice = test_random_below(&random, 100);
        struct tierce__tier *memory = fx.engine->levels[0].tier;
        if (dice < 60) {
            size_t to = (1 + test_random_below(&random, CHUNKS)) * FX_CHUNK_BLOCKS;
            struct tierce_transfer_opts what = fx_what(&fx, chain, 0, to, fx_ids);
            int64_t ignored = tierce_store(fx.view, &what);
            (void)ignored;
        } else if (dice < 90) {
            memory->ops->evict(memory, 1 + test_random_below(&random, 200000));
        } else if (dice < 98) {
            struct tierce__key key = fx.view->key;
            size_t chunk = test_random_below(&random, CHUNKS);
            memcpy(key.hash, tierce_chain_hash(chain, (chunk + 1) * FX_CHUNK_BLOCKS - 1),
                   TIERCE_HASH_BYTES);
            tierce__storage_quarantine(fx.engine, test_random_below(&random, TIERS), &key,
                                       TIERCE_E_CHECKSUM);
        } else {
            struct tierce__store_req req = {.op = TIERCE__STORE_CLEAR, .done = done_nothing};
            struct tierce__tier *tier = fx.engine->levels[test_random_below(&random, TIERS)].tier;
            tier->ops->submit(tier, &req);
        }
    }
    return NULL;
}

static uint64_t tier_chunks(size_t level)
{
    struct tierce__tier_stats stats;
    struct tierce__tier *tier = fx.engine->levels[level].tier;
    tier->ops->stats(tier, &stats);
    return stats.chunks;
}

static void compare(struct set *set, struct set *now)
{
    uint32_t held = 0;
    uint64_t sequence;
    ck_assert_int_eq(tierce_events_snapshot(set->subscription, &sequence, take_snapshot, now), 0);
    ck_assert_uint_eq(sequence, set->seen);
    ck_assert_uint_eq(set->wrong, 0);
    ck_assert_uint_eq(now->wrong, 0);
    for (size_t t = 0; t < TIERS; t++) {
        for (size_t c = 0; c < CHAINS; c++) {
            for (size_t k = 0; k < CHUNKS; k++) {
                ck_assert_msg(set->held[t][c][k] == now->held[t][c][k], "tier %u chain %u chunk %u",
                              (unsigned)t, (unsigned)c, (unsigned)k);
                held += now->held[t][c][k];
            }
        }
    }
    ck_assert_uint_eq(held, tier_chunks(0) + tier_chunks(1));
}

START_TEST(a_slow_subscriber_ends_up_with_what_is_there)
{
    const char *sets[] = {"events.ring", _i == 0 ? "16" : "65536", "memory.size", "1MiB", NULL};
    enum { THREADS = 3 };
    static struct set set, now;
    struct test_random random = test_random_start("events");
    pthread_t threads[THREADS];
    silence_log();
    fx_open(&fx, true, sets);
    for (uint32_t c = 0; c < CHAINS; c++)
        chains[c] = fx_chain(&fx, c + 1, CHUNKS * FX_CHUNK_BLOCKS, 0);
    set = (struct set){.mutex = PTHREAD_MUTEX_INITIALIZER,
                       .changed = PTHREAD_COND_INITIALIZER,
                       .random = {test_random_u64(&random)}};
    now = (struct set){0};
    struct tierce_events_opts opts = {
        .size = sizeof(opts), .fn = keep_set, .arg = &set, .batch_max = 8, .interval_ms = 1};
    struct tierce_subscription *s;
    ck_assert_int_eq(tierce_events_subscribe(&s, fx.engine, &opts), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *seed = (void *)(uintptr_t)test_random_u64(&random);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, seed), 0);
    }
    pthread_mutex_lock(&set.mutex);
    set.subscription = s;
    pthread_cond_broadcast(&set.changed);
    pthread_mutex_unlock(&set.mutex);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    int rc = tierce_engine_flush(fx.engine, 60000);
    ck_assert(rc == 0 || rc == TIERCE_E_FULL); /* the disk is small */
    uint64_t last = tierce__events_last(fx.engine->events);
    pthread_mutex_lock(&set.mutex);
    while (set.seen < last)
        pthread_cond_wait(&set.changed, &set.mutex);
    pthread_mutex_unlock(&set.mutex);
    ck_assert_uint_gt(last, STEPS);
    ck_assert(_i == 0 ? set.gaps > 0 : set.gaps == 0);
    compare(&set, &now);
    tierce_events_unsubscribe(s);
    for (uint32_t c = 0; c < CHAINS; c++)
        tierce_chain_destroy(chains[c]);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("events");
    TCase *t = tcase_create("events");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, what_comes_and_what_leaves_is_told);
    tcase_add_test(t, a_full_batch_goes_at_once);
    tcase_add_test(t, a_subscription_holds_the_engine_open);
    tcase_add_loop_test_raise_signal(t, another_handle_is_no_subscription, SIGABRT, 0, 5);
    tcase_add_test(t, unsubscribing_waits_for_a_call_that_runs);
    tcase_add_loop_test(t, a_slow_subscriber_ends_up_with_what_is_there, 0, 2);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
