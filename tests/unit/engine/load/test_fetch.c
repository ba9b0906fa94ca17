/* SPDX-License-Identifier: Apache-2.0 */
/* Several loads wait for one read of a chunk: each segment is read once, even if loads join, leave
 * or time out meanwhile. */
#include "fetch_fixture.h"
#include "test_random.h"

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
           .tests = {each_segment_is_read_once_for_all, loads_of_one_prompt_share_its_reading,
                     segments_that_a_tier_reads_together_are_asked_together,
                     who_leaves_in_the_middle_takes_nothing_away,
                     what_the_device_still_reads_outlives_all_and_can_be_joined,
                     closing_ends_what_hangs, who_has_more_time_is_served_after_the_others_deadline,
                     who_comes_after_the_deadline_asks_again,
                     a_late_read_that_decodes_leaves_its_buffer_to_nobody,
                     a_tier_that_is_always_late_is_asked_once_for_each_deadline,
                     without_memory_there_is_no_seat,
                     whoever_comes_and_goes_reads_right_bytes_and_memory_comes_back})
