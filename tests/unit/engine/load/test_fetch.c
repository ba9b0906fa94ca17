/* SPDX-License-Identifier: Apache-2.0 */
/* One read of a chunk for all its waiters: each segment once, whoever joins, leaves or times out;
 * and all see a fault. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/load/load_lease.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>

#define SEGMENTS  4u
#define CELL      (128u << 10) /* of FX_CHUNK_BLOCKS a layer: one layer is one segment */
#define THREADS   6u
#define LONG_MS   20000u
#define WANTED_BY 40u /* blocks of the prompt that many load: 6 times, below FX_BLOCKS */

static struct fixture fx;
static struct tierce_view *wide; /* with cells so large that a chunk has several segments */
static struct tierce__tier *disk;

static const char *const sets[] = {
    "memory.size",    "64MiB",   "disk.size",      "256MiB", "disk.queue", "64MiB",
    "breaker.errors", "1000000", "breaker.window", "0",      NULL};

static void open_wide(uint32_t cell)
{
    const uint32_t cells[SEGMENTS] = {cell, cell, cell, cell};
    struct tierce_namespace ns = fx_namespace();
    ns.cell_bytes = cells;
    ns.layout = "test/wide";
    ck_assert_int_eq(tierce_view_open(&wide, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    ck_assert_uint_eq(wide->full.segment_count, SEGMENTS);
}

static void wrap_disk(void)
{
    ck_assert_uint_eq(fx.engine->level_count, 2);
    disk = fx_wrap(&fx, 1);
}

static void setup_with(const char *const *settings)
{
    silence_log();
    fx_open(&fx, true, settings);
    open_wide(CELL);
    wrap_disk();
}

static void setup(void)
{
    setup_with(sets);
}

static void close_all(void)
{
    tierce_view_close(wide);
    fx_close(&fx);
}

static void teardown(void)
{
    close_all();
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void restart(void)
{
    close_all();
    setup();
}

static void fault(enum tierce__fault_kind kind, uint32_t skip, uint32_t times)
{
    tierce__fault_set(
        disk, TIERCE__STORE_GET,
        &(struct tierce__fault_rule){
            .kind = kind, .status = -EIO, .delay_ms = 100, .skip = skip, .times = times});
}

static struct tierce__key key_of(uint32_t n)
{
    struct tierce__key key = wide->key;
    memcpy(key.hash, &n, sizeof(n));
    key.hash[31] = 1;
    return key;
}

static struct tierce__storage_chunk record_of(uint32_t n)
{
    return (struct tierce__storage_chunk){.key = key_of(n),
                                          .object_bytes = wide->full.extent.object_bytes,
                                          .block_count = FX_CHUNK_BLOCKS};
}

/* A fetch does not look into the bytes, so that any will do. */
static uint8_t byte_of(uint32_t n, uint32_t segment)
{
    return (uint8_t)(n * 7 + segment * 31 + 1);
}

static uint64_t start_of(uint32_t segment)
{
    return segment > 0 ? wide->full.segment_end[segment - 1] : 0;
}

/* Puts the bytes of chunk n on disk under a record, and not in memory. */
static void put_as(struct tierce__storage_chunk record, uint32_t n)
{
    struct tierce__buf *buf = tierce__storage_reserve(fx.engine, &record, NULL);
    ck_assert_ptr_nonnull(buf);
    for (uint32_t s = 0; s < SEGMENTS; s++)
        memset(buf->data + start_of(s), byte_of(n, s), wide->full.segment_end[s] - start_of(s));
    tierce__storage_write_one(fx.engine, UINT32_MAX, &record, buf);
    tierce__buf_release(buf);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

static void put(uint32_t n)
{
    put_as(record_of(n), n);
}

static bool segment_right(const struct tierce__fetch_waiter *waiter, uint32_t n, uint32_t segment)
{
    uint8_t want = byte_of(n, segment);
    for (uint64_t at = start_of(segment); at < wide->full.segment_end[segment]; at++) {
        if (waiter->buf->data[at] != want)
            return false;
    }
    return true;
}

static uint64_t gets(void)
{
    struct tierce__tier_stats stats;
    disk->ops->stats(disk, &stats);
    return stats.get_chunks;
}

static bool add_waiter(struct tierce__fetch_waiter *waiter, uint32_t n, uint32_t timeout_ms)
{
    struct tierce__storage_chunk record = record_of(n);
    struct tierce__buf *leased;
    *waiter = (struct tierce__fetch_waiter){.deadline_ns = tierce__deadline_in_ms(timeout_ms)};
    bool seated = tierce__fetch_join(fx.engine, waiter, 1, &record, &wide->full, &leased);
    tierce__buf_release(leased);
    return seated;
}

static void promote(struct tierce__fetch_waiter *waiter, uint32_t n)
{
    struct tierce__storage_chunk record = record_of(n);
    tierce__fetch_promote(waiter, &record);
}

static bool in_memory(uint32_t n)
{
    struct tierce__key key = key_of(n);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &key);
    tierce__buf_release(buf);
    return buf != NULL;
}

static bool on_disk(uint32_t n)
{
    struct tierce__key key = key_of(n);
    uint8_t place = 0;
    return tierce__storage_find(fx.engine, &key, 1, 2, &place) == 1 && place == 1;
}

static void await_no_memory_used(void)
{
    WAIT_WITHIN(LONG_MS, fx_stats(&fx).memory_bytes_now == 0);
}

static void await_late(int64_t count)
{
    WAIT_WITHIN(LONG_MS, fx_stats(&fx).deadline_failures >= count);
}

/* ---- what a part needs ---- */

/* A segment ends behind its layer, on a whole page: the next layer begins in it. */
START_TEST(a_part_waits_for_the_segment_in_which_it_begins)
{
    static const struct tierce_part part = {2, 2, 1, 2};
    static const int32_t tokens[FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS] = {1};
    struct tierce_chain *chain;
    struct tierce__keys keys;
    tierce_view_close(wide);
    open_wide(CELL + 64);
    ck_assert_int_eq(tierce_view_chain(&chain, wide, NULL), 0);
    ck_assert_int_ge(tierce_chain_append(chain, tokens, FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS, NULL),
                     0);
    ck_assert_int_eq(tierce__keys_init(&keys, wide, chain, FX_CHUNK_BLOCKS, FX_CHUNK_BLOCKS, false),
                     0);
    struct tierce__storage_chunk record = record_of(1);
    record.key = keys.keys[0];
    put_as(record, 1);
    tierce__keys_fini(&keys);
    struct tierce__load_lease_what what = {.chain = chain,
                                           .to_block = FX_CHUNK_BLOCKS,
                                           .part = &part,
                                           .timeout_ms = _i == 1 ? LONG_MS : 300};
    struct tierce__load_lease *lease;
    ck_assert_uint_lt(tierce__shape_offset(&wide->full, 2), start_of(2));
    if (_i == 0)
        fault(TIERCE__FAULT_HANG, 1, 1); /* the first is the header's */
    ck_assert_int_eq(tierce__load_lease_begin(&lease, wide, &what), 0);
    ck_assert(lease->ops->wait(lease, 0, 2) == (_i == 1));
    lease->ops->end(lease, NULL);
    tierce_chain_destroy(chain);
    await_no_memory_used();
}
END_TEST

/* ---- each segment once ---- */

static void *read_whole(void *arg)
{
    (void)arg;
    struct tierce__fetch_waiter waiter;
    if (!add_waiter(&waiter, 1, LONG_MS))
        return NULL; /* it came into memory meanwhile */
    for (uint32_t s = 0; s < SEGMENTS; s++)
        tierce__fetch_ask(&waiter, s);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        ck_assert(tierce__fetch_wait(&waiter, s));
        ck_assert(segment_right(&waiter, 1, s));
    }
    promote(&waiter, 1);
    tierce__fetch_leave(&waiter);
    return NULL;
}

START_TEST(each_segment_is_read_once_for_all)
{
    pthread_t threads[THREADS];
    put(1);
    fault(TIERCE__FAULT_DELAY, 0, 0);
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_whole, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(gets(), SEGMENTS);
    ck_assert_int_eq(fx_stats(&fx).promotions, 1);
    ck_assert(in_memory(1));
}
END_TEST

static struct tierce_chain *prompt;

/* Each thread has blocks of its own to load the same prompt to. */
static void *load_prompt(void *arg)
{
    int32_t ids[WANTED_BY];
    uint8_t origins[WANTED_BY];
    for (int32_t b = 0; b < (int32_t)WANTED_BY; b++)
        ids[b] = b + *(int32_t *)arg * (int32_t)WANTED_BY;
    struct tierce_transfer_opts what = fx_what(&fx, prompt, 0, WANTED_BY, ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; b < WANTED_BY; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, prompt, b, ids[b]));
    *(int32_t *)arg = (int32_t)loaded;
    return NULL;
}

/* Stores a prompt, lets only the disk remember it, and has many load it at once. */
static void load_by_many(enum tierce__fault_kind kind, uint64_t bit, int32_t loaded[THREADS])
{
    pthread_t threads[THREADS];
    prompt = fx_chain(&fx, 1, WANTED_BY, 0);
    ck_assert_int_eq(fx_store(&fx, prompt, WANTED_BY, fx_ids, false), WANTED_BY);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart();
    fx_wipe(&fx);
    struct tierce__fault_rule rule = {.kind = kind, .delay_ms = 100, .bit = bit};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    for (int32_t i = 0; i < (int32_t)THREADS; i++) {
        loaded[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_prompt, &loaded[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tierce_chain_destroy(prompt);
}

START_TEST(loads_of_one_prompt_share_its_reading)
{
    int32_t loaded[THREADS];
    load_by_many(TIERCE__FAULT_DELAY, 0, loaded);
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(loaded[i], WANTED_BY);
    ck_assert_uint_eq(gets(), WANTED_BY / FX_CHUNK_BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).promotions, WANTED_BY / FX_CHUNK_BLOCKS);
}
END_TEST

/* ---- what a tier reads in one request ---- */

/* With the first segment a fetch asks for all others that end within read_bytes. */
START_TEST(segments_that_a_tier_reads_together_are_asked_together)
{
    struct tierce__tier_ops ops = *disk->ops;
    const struct tierce__tier_ops *saved = disk->ops;
    put(1);
    fault(TIERCE__FAULT_HANG, 0, 0);
    for (uint32_t last = 0; last < SEGMENTS; last++) {
        for (uint32_t less = 0; less < 2; less++) {
            struct tierce__fetch_waiter waiter;
            uint32_t wanted = less == 1 && last > 0 ? last - 1 : last; /* the first one always */
            ops.read_bytes = wide->full.segment_end[last] - less;
            disk->ops = &ops;
            ck_assert(add_waiter(&waiter, 1, UINT32_MAX));
            tierce__fetch_ask(&waiter, 0);
            ck_assert_uint_eq(tierce__fetch_bytes_asked(&waiter), wide->full.segment_end[wanted]);
            tierce__fetch_leave(&waiter);
            disk->ops = saved;
            restart();
            fault(TIERCE__FAULT_HANG, 0, 0);
            ops = *disk->ops;
            saved = disk->ops;
        }
    }
}
END_TEST

/* ---- coming and leaving ---- */

START_TEST(who_leaves_in_the_middle_takes_nothing_away)
{
    struct tierce__fetch_waiter first, second;
    put(1);
    fault(TIERCE__FAULT_DELAY, 0, 0);
    ck_assert(add_waiter(&first, 1, LONG_MS));
    tierce__fetch_ask(&first, 0);
    tierce__fetch_ask(&first, 1);
    ck_assert(add_waiter(&second, 1, LONG_MS));
    ck_assert_ptr_eq(first.fetch, second.fetch);
    ck_assert_uint_gt(tierce__fetch_bytes_asked(&second), 0);
    tierce__fetch_leave(&first);
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&second, s) && segment_right(&second, 1, s));
    ck_assert_uint_eq(tierce__fetch_bytes_asked(&second), 0);
    tierce__fetch_leave(&second);
    tierce__fetch_leave(&second); /* nobody sits there: fine */
    ck_assert_uint_eq(gets(), SEGMENTS);
    ck_assert_int_eq(fx_stats(&fx).fetches_shared, 1);
    await_no_memory_used();
}
END_TEST

START_TEST(what_the_device_still_reads_outlives_all_and_can_be_joined)
{
    struct tierce__fetch_waiter waiter;
    put(1);
    fault(TIERCE__FAULT_DELAY, 0, 0);
    ck_assert(add_waiter(&waiter, 1, LONG_MS));
    const struct tierce__fetch *fetch = waiter.fetch;
    tierce__fetch_ask(&waiter, 0);
    tierce__fetch_leave(&waiter);
    ck_assert_int_gt(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert(add_waiter(&waiter, 1, LONG_MS));
    if (waiter.fetch == fetch) /* unless this thread slept for a tenth of a second */
        ck_assert_int_eq(fx_stats(&fx).fetches_shared, 1);
    ck_assert(tierce__fetch_wait(&waiter, 0) && segment_right(&waiter, 1, 0));
    tierce__fetch_leave(&waiter);
    await_no_memory_used();
}
END_TEST

START_TEST(closing_ends_what_hangs)
{
    struct tierce__fetch_waiter waiter;
    put(1);
    fault(TIERCE__FAULT_HANG, 0, 0);
    ck_assert(add_waiter(&waiter, 1, UINT32_MAX));
    tierce__fetch_ask(&waiter, 0);
    tierce__fetch_leave(&waiter);
}
END_TEST

/* ---- deadlines ---- */

START_TEST(who_has_more_time_is_served_after_the_others_deadline)
{
    struct tierce__fetch_waiter early, patient;
    put(1);
    fault(TIERCE__FAULT_HANG, 0, 1);
    ck_assert(add_waiter(&early, 1, 50));
    tierce__fetch_ask(&early, 0);
    fault(TIERCE__FAULT_DELAY, 0,
          1); /* what is read after the deadline comes a tenth of a second on */
    uint64_t not_before_ns = tierce__deadline_in_ms(100);
    ck_assert(add_waiter(&patient, 1, LONG_MS));
    bool came = tierce__fetch_wait(&early, 0);
    ck_assert(!came || tierce__now_ns() >= not_before_ns); /* unless this thread slept so long */
    ck_assert(tierce__fetch_wait(&patient, 0) && segment_right(&patient, 1, 0));
    /* It is there now, for whoever still sits there. */
    ck_assert(tierce__fetch_wait(&early, 0));
    tierce__fetch_leave(&early);
    tierce__fetch_leave(&patient);
}
END_TEST

START_TEST(who_comes_after_the_deadline_asks_again)
{
    struct tierce__fetch_waiter early, patient;
    put(1);
    fault(TIERCE__FAULT_HANG, 0, 1);
    ck_assert(add_waiter(&early, 1, 50));
    ck_assert(!tierce__fetch_wait(&early, 0));
    await_late(1);
    ck_assert(!tierce__fetch_wait(&early, 0)); /* does not ask twice with one deadline */
    ck_assert_uint_eq(gets(), 0);
    ck_assert(add_waiter(&patient, 1, LONG_MS));
    ck_assert_ptr_eq(patient.fetch, early.fetch);
    ck_assert(tierce__fetch_wait(&patient, 0) && segment_right(&patient, 1, 0));
    ck_assert_uint_eq(gets(), 1);
    tierce__fetch_leave(&early);
    tierce__fetch_leave(&patient);
}
END_TEST

/* The late call of a connector that decodes may still write coded bytes into the buffer. */
START_TEST(a_late_read_that_decodes_leaves_its_buffer_to_nobody)
{
    struct tierce__fetch_waiter early, patient;
    put(1);
    fx.engine->levels[1].decodes = true;
    fault(TIERCE__FAULT_HANG, 0, 1);
    ck_assert(add_waiter(&early, 1, 50));
    ck_assert(!tierce__fetch_wait(&early, 0));
    await_late(1);
    ck_assert(add_waiter(&patient, 1, LONG_MS));
    ck_assert_ptr_ne(patient.fetch, early.fetch);
    ck_assert_ptr_ne(patient.buf, early.buf);
    ck_assert(tierce__fetch_wait(&patient, 0) && segment_right(&patient, 1, 0));
    ck_assert(!tierce__fetch_wait(&early, 0));
    tierce__fetch_leave(&early);
    tierce__fetch_leave(&patient);
    fx.engine->levels[1].decodes = false;
}
END_TEST

START_TEST(a_tier_that_is_always_late_is_asked_once_for_each_deadline)
{
    struct tierce__fetch_waiter waiters[3];
    put(1);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_DEADLINE};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(add_waiter(&waiters[i], 1, 10000 + 1000 * i));
        ck_assert(!tierce__fetch_wait(&waiters[i], 0));
    }
    ck_assert_int_eq(fx_stats(&fx).deadline_failures, 3);
    for (uint32_t i = 0; i < 3; i++)
        tierce__fetch_leave(&waiters[i]);
}
END_TEST

/* ---- what is wrong is seen by all ---- */

START_TEST(a_lost_segment_fails_all_who_joined_and_no_later_one)
{
    struct tierce__fetch_waiter a, b, c;
    put(1);
    fault(TIERCE__FAULT_ERROR, 1, 1);
    ck_assert(add_waiter(&a, 1, LONG_MS));
    ck_assert(add_waiter(&b, 1, LONG_MS));
    ck_assert(tierce__fetch_wait(&a, 0));
    ck_assert(!tierce__fetch_wait(&a, 1));
    ck_assert(!tierce__fetch_wait(&b, 0));
    ck_assert(!tierce__fetch_wait(&b, 2));
    promote(&b, 1);
    ck_assert(!in_memory(1));
    ck_assert(add_waiter(&c, 1, LONG_MS));
    ck_assert_ptr_ne(c.fetch, a.fetch);
    ck_assert(tierce__fetch_wait(&c, 1) && segment_right(&c, 1, 1));
    tierce__fetch_leave(&a);
    tierce__fetch_leave(&b);
    tierce__fetch_leave(&c);
}
END_TEST

static void note_settled(void *arg, int status)
{
    *(int *)arg = status;
}

/* A read that hangs waits for its deadline, unless its tier goes out of service. */
START_TEST(reads_that_hang_end_when_the_tier_is_lost)
{
    static const char *const three_failures[] = {
        "memory.size", "64MiB", "breaker.errors", "3", "breaker.retry", "1h", NULL};
    struct tierce__fetch_waiter hung, prefetched, whole, lost;
    int settled = 1;
    close_all();
    setup_with(three_failures);
    for (uint32_t n = 1; n <= 4; n++)
        put(n);
    ck_assert(add_waiter(&whole, 1, UINT32_MAX));
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&whole, s));
    fault(TIERCE__FAULT_HANG, 0, 0);
    ck_assert(add_waiter(&hung, 2, UINT32_MAX));
    tierce__fetch_ask(&hung, 0);
    ck_assert(add_waiter(&prefetched, 3, UINT32_MAX));
    tierce__fetch_read_all(&prefetched, note_settled, &settled);
    ck_assert_int_eq(settled, 1);
    fault(TIERCE__FAULT_ERROR, 0, 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(add_waiter(&lost, 4, UINT32_MAX));
        ck_assert(!tierce__fetch_wait(&lost, 0));
        tierce__fetch_leave(&lost);
    }
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 1);
    ck_assert(!tierce__fetch_wait(&hung, 0)); /* does not wait */
    ck_assert_int_eq(settled, TIERCE_E_DOWN);
    promote(&whole, 1); /* what has been read is good */
    ck_assert(in_memory(1));
    tierce__fetch_leave(&hung);
    (void)tierce__fetch_leave(&prefetched);
    tierce__fetch_leave(&whole);
}
END_TEST

START_TEST(a_wrong_header_is_refused_for_all_and_counted_once)
{
    struct tierce__fetch_waiter a, b;
    put(1);
    ck_assert(add_waiter(&a, 1, LONG_MS));
    ck_assert(add_waiter(&b, 1, LONG_MS));
    ck_assert(tierce__fetch_wait(&a, 0));
    tierce__fetch_refuse(&a, TIERCE_E_IDENTITY);
    ck_assert(!tierce__fetch_wait(&b, 0));
    tierce__fetch_refuse(&b, TIERCE_E_IDENTITY);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 1);
    ck_assert(!on_disk(1));
    tierce__fetch_leave(&a);
    tierce__fetch_leave(&b);
}
END_TEST

START_TEST(a_wrong_cell_keeps_the_chunk_out_of_memory)
{
    struct tierce__fetch_waiter a, b;
    put(1);
    ck_assert(add_waiter(&a, 1, LONG_MS));
    ck_assert(add_waiter(&b, 1, LONG_MS));
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&a, s));
    tierce__fetch_spoil(&a);
    tierce__fetch_spoil(&b);
    ck_assert(tierce__fetch_wait(&b, 3)); /* the other cells are good */
    promote(&b, 1);
    ck_assert(!in_memory(1));
    ck_assert(!on_disk(1));
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    tierce__fetch_leave(&a);
    tierce__fetch_leave(&b);
}
END_TEST

START_TEST(a_wrong_cell_takes_the_promoted_chunk_out_of_memory_too)
{
    struct tierce__fetch_waiter a, b;
    put(1);
    ck_assert(add_waiter(&a, 1, LONG_MS));
    ck_assert(add_waiter(&b, 1, LONG_MS));
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&a, s));
    promote(&a, 1);
    ck_assert(in_memory(1));
    tierce__fetch_spoil(&b);
    ck_assert(!in_memory(1));
    ck_assert(!on_disk(1));
    tierce__fetch_leave(&a);
    tierce__fetch_leave(&b);
}
END_TEST

static void promote_whole(uint32_t n)
{
    struct tierce__fetch_waiter waiter;
    ck_assert(add_waiter(&waiter, n, LONG_MS));
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&waiter, s));
    promote(&waiter, n);
    tierce__fetch_leave(&waiter);
}

/* Concurrent readers of other cells do not see the fault. */
START_TEST(what_is_being_taken_out_is_not_promoted)
{
    struct tierce__fetch_ban first, second;
    struct tierce__key key = key_of(1);
    put(1);
    put(2);
    tierce__fetch_ban_begin(fx.engine, &first, 1, &key);
    tierce__fetch_ban_begin(fx.engine, &second, 1, &key);
    promote_whole(1);
    promote_whole(2);
    ck_assert(!in_memory(1) && in_memory(2));
    tierce__fetch_ban_end(fx.engine, &first);
    promote_whole(1);
    ck_assert(!in_memory(1));
    tierce__fetch_ban_end(fx.engine, &second);
    tierce__fetch_ban_begin(fx.engine, &first, 2, &key); /* in another tier */
    promote_whole(1);
    ck_assert(in_memory(1));
    tierce__fetch_ban_end(fx.engine, &first);
}
END_TEST

START_TEST(a_chunk_that_proves_wrong_while_it_is_read_is_not_promoted)
{
    struct tierce__fetch_waiter waiter;
    struct tierce__key key = key_of(1);
    put(1);
    ck_assert(add_waiter(&waiter, 1, LONG_MS));
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&waiter, s));
    tierce__storage_quarantine(fx.engine, 1, &key, TIERCE_E_CHECKSUM);
    promote(&waiter, 1);
    ck_assert(!in_memory(1));
    tierce__fetch_leave(&waiter);
    put(1); /* its ban has ended */
    promote_whole(1);
    ck_assert(in_memory(1));
}
END_TEST

START_TEST(loads_that_share_a_flipped_header_all_fail_the_chunk)
{
    int32_t loaded[THREADS];
    load_by_many(TIERCE__FAULT_FLIP, 64 * 8, loaded);
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(loaded[i], 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    await_no_memory_used();
}
END_TEST

START_TEST(a_bad_cell_found_in_memory_leaves_the_tier_it_came_from_too)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart();
    /* Block 0 is damaged; a load of the others does not see it and promotes the chunk. */
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_FLIP,
                                      .bit = (tierce__shape_offset(&fx.view->full, 1) + 5) * 8};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 1, 4, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 3);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL), 4);
    uint8_t origins[4];
    what = fx_what(&fx, chain, 0, 4, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 3);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_FAILED);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
    tierce_chain_destroy(chain);
}
END_TEST

/* ---- no memory ---- */

START_TEST(without_memory_there_is_no_seat)
{
    struct tierce__fetch_waiter waiter;
    put(1);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__alloc_fail_nth(nth);
        bool seated = add_waiter(&waiter, 1, LONG_MS);
        tierce__alloc_fail_nth(0);
        if (seated)
            tierce__fetch_leave(&waiter);
        else
            ck_assert_ptr_null(waiter.fetch);
    }
    struct tierce__buf *all[64];
    struct tierce__storage_chunk wide_one = record_of(2);
    wide_one.object_bytes = 2 << 20;
    size_t held = 0;
    while ((all[held] = tierce__storage_reserve(fx.engine, &wide_one, NULL)) != NULL)
        held++;
    ck_assert(!add_waiter(&waiter, 1, LONG_MS));
    while (held > 0)
        tierce__buf_release(all[--held]);
    await_no_memory_used();
}
END_TEST

/* ---- everything at once ---- */

enum { CHUNKS = 3, ROUNDS = 120 };

struct player {
    struct test_random random;
    uint64_t served;
};

/* One turn at a chunk: some segments, any deadline, perhaps to the end. */
static void play(struct player *player)
{
    struct test_random *random = &player->random;
    struct tierce__fetch_waiter waiter;
    uint32_t n = test_random_below(random, CHUNKS);
    if (!add_waiter(&waiter, n, test_random_below(random, 30)))
        return;
    uint32_t served = 0;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        uint32_t s = test_random_below(random, SEGMENTS);
        tierce__fetch_ask(&waiter, s);
        if (test_random_below(random, 4) == 0)
            break;
        if (tierce__fetch_wait(&waiter, s)) {
            ck_assert(segment_right(&waiter, n, s));
            served++;
        }
    }
    if (test_random_below(random, 8) == 0)
        promote(&waiter, n);
    tierce__fetch_leave(&waiter);
    player->served += served;
}

static void *play_on(void *arg)
{
    for (int i = 0; i < ROUNDS; i++)
        play(arg);
    return NULL;
}

static void disturb(struct test_random *random)
{
    static const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_NONE, TIERCE__FAULT_ERROR,
                                                    TIERCE__FAULT_DELAY, TIERCE__FAULT_HANG};
    struct tierce__fault_rule rule = {.kind = kinds[test_random_below(random, 4)],
                                      .status = -EIO,
                                      .delay_ms = test_random_below(random, 20),
                                      .times = test_random_below(random, 4)};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    struct tierce__key key = key_of(test_random_below(random, CHUNKS));
    tierce__storage_quarantine(fx.engine, 0, &key, TIERCE_E_VERSION);
    usleep(2000);
}

START_TEST(whoever_comes_and_goes_reads_right_bytes_and_memory_comes_back)
{
    struct test_random random = test_random_start("fetch");
    struct player players[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t n = 0; n < CHUNKS; n++)
        put(n);
    for (size_t i = 0; i < THREADS; i++) {
        players[i] = (struct player){.random = {test_random_u64(&random)}};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, play_on, &players[i]), 0);
    }
    for (int i = 0; i < 200; i++)
        disturb(&random);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t n = 0; n < CHUNKS; n++) {
        struct tierce__key key = key_of(n);
        tierce__storage_quarantine(fx.engine, 0, &key, TIERCE_E_VERSION);
    }
    await_no_memory_used();
}
END_TEST

CHECK_MAIN("fetch", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .loops = {{a_part_waits_for_the_segment_in_which_it_begins, 0, 2}},
           .tests = {each_segment_is_read_once_for_all,
                     loads_of_one_prompt_share_its_reading,
                     segments_that_a_tier_reads_together_are_asked_together,
                     who_leaves_in_the_middle_takes_nothing_away,
                     what_the_device_still_reads_outlives_all_and_can_be_joined,
                     closing_ends_what_hangs,
                     who_has_more_time_is_served_after_the_others_deadline,
                     who_comes_after_the_deadline_asks_again,
                     a_late_read_that_decodes_leaves_its_buffer_to_nobody,
                     a_tier_that_is_always_late_is_asked_once_for_each_deadline,
                     a_lost_segment_fails_all_who_joined_and_no_later_one,
                     a_wrong_header_is_refused_for_all_and_counted_once,
                     a_wrong_cell_keeps_the_chunk_out_of_memory,
                     a_wrong_cell_takes_the_promoted_chunk_out_of_memory_too,
                     what_is_being_taken_out_is_not_promoted,
                     a_chunk_that_proves_wrong_while_it_is_read_is_not_promoted,
                     loads_that_share_a_flipped_header_all_fail_the_chunk,
                     a_bad_cell_found_in_memory_leaves_the_tier_it_came_from_too,
                     without_memory_there_is_no_seat,
                     whoever_comes_and_goes_reads_right_bytes_and_memory_comes_back,
                     reads_that_hang_end_when_the_tier_is_lost})
