/* SPDX-License-Identifier: Apache-2.0 */
/* Several loads wait for one read of a chunk: if it fails, all of them fail, and a wrong chunk does
 * not get into memory. */
#include "fetch_fixture.h"

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
    WAIT_FOR(fx_stats(&fx).breaker_trips ==
             1);                              /* a waiter may learn of a failure before the tier */
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

/* ---- a chunk leaves its tier before anybody learns that it is wrong ---- */

/* Called by a fetch that takes a chunk out of its tier, before the deletion. */
static void (*before_deletion)(void);
static uint32_t deletions;

void __real_tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                       const struct tierce__key *key, int why);
void __wrap_tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                       const struct tierce__key *key, int why);
bool __real_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns);
bool __wrap_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns);

void __wrap_tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                       const struct tierce__key *key, int why)
{
    deletions++;
    if (before_deletion != NULL)
        before_deletion();
    __real_tierce__storage_quarantine(engine, level, key, why);
}

/* A thread that uses a fetch while its chunk is being taken out. */
static struct user {
    pthread_t thread;
    struct tierce__fetch_waiter waiter;
    bool (*use)(struct tierce__fetch_waiter *waiter);
    _Atomic bool blocks, has_returned;
    bool result;
} user;
static _Thread_local bool is_user;

bool __wrap_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns)
{
    if (is_user)
        atomic_store(&user.blocks, true);
    return __real_tierce__cond_wait(cond, lock, deadline_ns);
}

static void *run_user(void *arg)
{
    (void)arg;
    is_user = true;
    user.result = user.use(&user.waiter);
    atomic_store(&user.has_returned, true);
    return NULL;
}

static void start_user(void)
{
    before_deletion = NULL;
    ck_assert_int_eq(pthread_create(&user.thread, NULL, run_user, NULL), 0);
    WAIT_WITHIN(LONG_MS, atomic_load(&user.blocks) || atomic_load(&user.has_returned));
    ck_assert(!atomic_load(&user.has_returned));
}

static bool refuse(struct tierce__fetch_waiter *waiter)
{
    tierce__fetch_refuse(waiter, TIERCE_E_IDENTITY);
    return true;
}

static bool spoil(struct tierce__fetch_waiter *waiter)
{
    tierce__fetch_spoil(waiter);
    return true;
}

/* Two loads find the same fault. Each may store the chunk again as soon as it knows. */
START_TEST(the_second_who_finds_a_fault_waits_for_the_deletion)
{
    static bool (*const uses[])(struct tierce__fetch_waiter *) = {refuse, spoil};
    struct tierce__fetch_waiter a;
    put(1);
    ck_assert(add_waiter(&a, 1, LONG_MS));
    ck_assert(add_waiter(&user.waiter, 1, LONG_MS));
    for (uint32_t s = 0; s < SEGMENTS; s++)
        ck_assert(tierce__fetch_wait(&a, s));
    user.use = uses[_i];
    before_deletion = start_user;
    ck_assert(uses[_i](&a));
    pthread_join(user.thread, NULL);
    ck_assert_uint_eq(deletions, 1);
    put(1);
    ck_assert(on_disk(1));
    tierce__fetch_leave(&a);
    tierce__fetch_leave(&user.waiter);
}
END_TEST

/* Reads that the test answers itself. */
static struct tierce__store_req *held[SEGMENTS];
static uint32_t held_count;
static const struct tierce__tier_ops *passing_ops;

static void hold_gets(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op == TIERCE__STORE_GET)
        held[held_count++] = req;
    else
        passing_ops->submit(tier, req);
}

static void answer_held(uint32_t segment, int status)
{
    held[segment]->status = status;
    held[segment]->done(held[segment]);
}

static struct tierce__fetch_waiter prefetching;
static int settled;

static bool wait_for_second(struct tierce__fetch_waiter *waiter)
{
    return tierce__fetch_wait(waiter, 1);
}

/* Other answers come meanwhile, and a tier that goes out of service; all wait for the deletion. */
static void answer_others(void)
{
    start_user();
    answer_held(1, TIERCE_E_CHECKSUM);
    answer_held(2, 0);
    tierce__fetches_abandon(fx.engine, 1);
    ck_assert(tierce__fetch_lives(&prefetching));
    ck_assert_int_eq(settled, 1);
    ck_assert(!atomic_load(&user.has_returned));
    struct tierce__fetch_waiter late;
    ck_assert(add_waiter(&late, 1, LONG_MS));
    ck_assert_ptr_eq(late.fetch, prefetching.fetch);
    tierce__fetch_leave(&late);
}

START_TEST(an_invalid_answer_is_told_after_the_deletion)
{
    struct tierce__tier_ops ops = *disk->ops;
    put(1);
    settled = 1;
    passing_ops = disk->ops;
    ops.submit = hold_gets;
    disk->ops = &ops;
    fx.engine->levels[1].decodes = true;
    ck_assert(add_waiter(&prefetching, 1, LONG_MS));
    ck_assert(add_waiter(&user.waiter, 1, LONG_MS));
    tierce__fetch_read_all(&prefetching, note_settled, &settled);
    ck_assert_uint_eq(held_count, SEGMENTS);
    user.use = wait_for_second;
    before_deletion = answer_others;
    answer_held(0, TIERCE_E_FORMAT);
    ck_assert_int_eq(settled, TIERCE_E_FORMAT);
    pthread_join(user.thread, NULL);
    ck_assert(!user.result && !tierce__fetch_lives(&prefetching));
    ck_assert_uint_eq(deletions, 1);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 1);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    put(1);
    answer_held(3, TIERCE_E_CHECKSUM); /* of the object that has been removed */
    ck_assert(on_disk(1));
    (void)tierce__fetch_leave(&prefetching);
    tierce__fetch_leave(&user.waiter);
    disk->ops = passing_ops;
    fx.engine->levels[1].decodes = false;
}
END_TEST

CHECK_MAIN("fetch_wrong", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .loops = {{the_second_who_finds_a_fault_waits_for_the_deletion, 0, 2}},
           .tests = {a_lost_segment_fails_all_who_joined_and_no_later_one,
                     reads_that_hang_end_when_the_tier_is_lost,
                     a_wrong_header_is_refused_for_all_and_counted_once,
                     a_wrong_cell_keeps_the_chunk_out_of_memory,
                     a_wrong_cell_takes_the_promoted_chunk_out_of_memory_too,
                     what_is_being_taken_out_is_not_promoted,
                     a_chunk_that_proves_wrong_while_it_is_read_is_not_promoted,
                     loads_that_share_a_flipped_header_all_fail_the_chunk,
                     a_bad_cell_found_in_memory_leaves_the_tier_it_came_from_too,
                     an_invalid_answer_is_told_after_the_deletion})
