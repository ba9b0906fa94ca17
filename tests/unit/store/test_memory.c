/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "log_record.h"
#include "test_random.h"
#include "store/memory/memory.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { MIB = 1 << 20, BYTES = 64 << 10 };

static struct tierce__pool *pool;
static struct tierce__tier *tier;

static struct tierce__pool *new_pool(void)
{
    struct tierce__pool *made;
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = MIB, .no_touch = true};
    ck_assert_int_eq(tierce__pool_create(&made, &opts), 0);
    return made;
}

static int open_on(struct tierce__tier **out, struct tierce__pool *on, uint32_t chunks)
{
    struct tierce__memory_opts opts = {.size = sizeof(opts),
                                       .pool = on,
                                       .policy = tierce__policy_find("lru"),
                                       .chunk_count_max = chunks,
                                       .slots = {"memory", "memory.chunks", MIB}};
    return tierce__memory_open(out, &opts);
}

static void start(uint32_t chunks)
{
    pool = new_pool();
    ck_assert_int_eq(open_on(&tier, pool, chunks), 0);
}

static void end(void)
{
    tier->ops->close(tier, TIERCE__DEADLINE_NEVER);
    tierce__pool_destroy(pool);
}

static struct tierce__key key_of(uint64_t n)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}};
    memcpy(key.hash, &n, sizeof(n));
    return key;
}

static void ignore(struct tierce__store_req *req)
{
    (void)req;
}

/* Everything completes inside submit. */
static int request(enum tierce__store_op op, uint64_t n, struct tierce__buf **buf)
{
    struct tierce__key key = key_of(n);
    struct tierce__store_req req = {.op = op,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .done = ignore,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf != NULL ? *buf : NULL,
                                    .object_bytes = BYTES,
                                    .status = 1};
    tier->ops->submit(tier, &req);
    if (buf != NULL)
        *buf = req.buf;
    return req.status;
}

static struct tierce__buf *alloc(void)
{
    struct tierce__buf *buf = NULL;
    ck_assert_int_eq(tierce__pool_alloc(pool, &buf, BYTES), 0);
    return buf;
}

static int put(uint64_t n)
{
    struct tierce__buf *buf = alloc();
    int rc = request(TIERCE__STORE_PUT, n, &buf);
    tierce__buf_release(buf);
    return rc;
}

static struct tierce__buf *get(uint64_t n)
{
    struct tierce__buf *buf = NULL;
    ck_assert_int_eq(request(TIERCE__STORE_GET, n, &buf), 0);
    return buf;
}

static bool has(uint64_t n)
{
    struct tierce__buf *buf = NULL;
    int rc = request(TIERCE__STORE_GET, n, &buf);
    tierce__buf_release(buf);
    return rc == 0;
}

/* As the pins of a lookup. NULL: it is not there. */
static struct tierce__buf *borrow(uint64_t n)
{
    struct tierce__key key = key_of(n);
    struct tierce__buf *buf = NULL;
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .done = ignore,
                                    .keys = &key,
                                    .key_count = 1,
                                    .bufs = &buf,
                                    .length = BYTES};
    tier->ops->submit(tier, &req);
    ck_assert(req.status == 0 && req.lent == req.found);
    return req.lent == 1 ? buf : NULL;
}

START_TEST(a_full_index_evicts_one_or_refuses)
{
    start(2);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(put(2), 0);
    ck_assert_int_eq(put(3), 0);
    ck_assert(!has(1) && has(2) && has(3));
    struct tierce__buf *two = get(2), *three = get(3);
    ck_assert_int_eq(put(4), TIERCE_E_FULL);
    tierce__buf_release(three);
    ck_assert_int_eq(put(4), 0);
    ck_assert(has(2) && !has(3) && has(4));
    tierce__buf_release(two);
    end();
}
END_TEST

static struct tierce__tier_stats stats(void)
{
    struct tierce__tier_stats s;
    tier->ops->stats(tier, &s);
    return s;
}

static void note_left(void *arg, const struct tierce__tier_event *event)
{
    if (!event->admitted)
        *(enum tierce__tier_left *)arg = event->left;
}

/* 64 KiB of 1 MiB are used at each slot: the log names the setting and the number that fits. */
START_TEST(a_lack_of_slots_is_told)
{
    enum tierce__tier_left left = TIERCE__LEFT_DELETED;
    record_log(TIERCE_LOG_WARN);
    start(2);
    tier->ops->watch(tier, note_left, &left);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(put(2), 0);
    ck_assert_uint_eq(stats().slots, 2);
    ck_assert_uint_eq(stats().used_slots, 2);
    ck_assert_uint_eq(stats().out_of_slots, 0);
    ck_assert_int_eq(put(3), 0);
    ck_assert_int_eq(left, TIERCE__LEFT_NO_SLOT);
    ck_assert_uint_eq(stats().out_of_slots, 1);
    struct tierce__buf *two = get(2), *three = get(3);
    ck_assert_int_eq(put(4), TIERCE_E_FULL);
    ck_assert_uint_eq(stats().out_of_slots, 2);
    ck_assert_uint_eq(recorded("tier_out_of_slots"), 1); /* in this minute */
    ck_assert_uint_eq(
        recorded_with("tier_out_of_slots", "tier=memory setting=memory.chunks slots=2"), 1);
    tierce__buf_release(two);
    tierce__buf_release(three);
    end();
}
END_TEST

/* An eviction for bytes is none for slots. */
START_TEST(a_lack_of_bytes_is_no_lack_of_slots)
{
    enum tierce__tier_left left = TIERCE__LEFT_DELETED;
    record_log(TIERCE_LOG_WARN);
    start(0);
    tier->ops->watch(tier, note_left, &left);
    for (uint64_t n = 0; n < MIB / BYTES; n++)
        ck_assert_int_eq(put(n), 0);
    ck_assert_uint_eq(tier->ops->evict(tier, BYTES), BYTES);
    ck_assert_int_eq(left, TIERCE__LEFT_EVICTED);
    ck_assert_uint_eq(stats().out_of_slots, 0);
    ck_assert_uint_eq(recorded("tier_out_of_slots"), 0);
    end();
}
END_TEST

START_TEST(leases_and_pins_are_not_evicted)
{
    start(0);
    struct tierce__buf *held[16];
    for (unsigned i = 0; i < 15; i++)
        ck_assert_int_eq(put(i), 0);
    for (unsigned i = 0; i < 15; i++)
        held[i] = get(i);
    struct tierce__buf *fresh = alloc(); /* still its writer's after the put */
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 15, &fresh), 0);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), 0);
    tierce__buf_release(fresh);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), BYTES);
    held[15] = get(3); /* a second reference on the same chunk */
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), 0);
    tierce__buf_release(held[15]);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), 0);
    tierce__buf_release(held[7]);
    tierce__buf_release(held[3]);
    ck_assert_uint_eq(tier->ops->evict(tier, 1), BYTES);
    ck_assert(!has(3) && has(7)); /* 3 was put before 7 */
    for (unsigned i = 0; i < 15; i++) {
        if (i != 3 && i != 7)
            tierce__buf_release(held[i]);
    }
    ck_assert_uint_eq(tier->ops->evict(tier, UINT64_MAX), 14 * BYTES);
    end();
}
END_TEST

/* The loop index is the policy. */
/* The policy hears of it late, and must hear that it is over. */
START_TEST(what_a_lookup_lent_is_evicted_when_it_is_back)
{
    start(0);
    for (uint64_t n = 0; n < 3; n++)
        ck_assert_int_eq(put(n), 0);
    struct tierce__buf *zero = borrow(0), *again = borrow(0), *two = borrow(2);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), BYTES); /* the one between them */
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), 0);
    tierce__buf_release(zero);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), 0);
    tierce__buf_release(again);
    again = borrow(0); /* which is not awaited */
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), 0);
    tierce__buf_release(again);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), BYTES);
    /* Deleted while it is lent, and put anew. */
    ck_assert_int_eq(request(TIERCE__STORE_DELETE, 2, NULL), 0);
    ck_assert_int_eq(put(2), 0);
    tierce__buf_release(two);
    ck_assert_uint_eq(tier->ops->evict(tier, MIB), BYTES);
    end();
}
END_TEST

START_TEST(every_policy_evicts)
{
    struct tierce__memory_opts opts = {
        .size = sizeof(opts), .policy = tierce__policy_at((size_t)_i), .seed = 1};
    pool = opts.pool = new_pool();
    ck_assert_int_eq(tierce__memory_open(&tier, &opts), 0);
    for (unsigned i = 0; i < 16; i++)
        ck_assert_int_eq(put(i), 0);
    struct tierce__buf *held = get(5);
    for (unsigned i = 16; i < 200; i++) {
        ck_assert_uint_eq(tier->ops->evict(tier, 1), BYTES);
        ck_assert_int_eq(put(i), 0);
        if (i % 3 == 0)
            tier->ops->touch(
                tier, &(struct tierce__tier_uses){
                          .keys = (struct tierce__key[]){key_of(i - 1), key_of(i)}, .count = 2});
    }
    ck_assert(has(5));
    tierce__buf_release(held);
    ck_assert_uint_eq(tier->ops->evict(tier, UINT64_MAX), 16 * BYTES);
    end();
}
END_TEST

START_TEST(what_has_expired_is_a_miss)
{
    struct tierce__memory_opts opts = {
        .size = sizeof(opts), .policy = tierce__policy_find("ttl"), .ttl_ms = 20};
    pool = opts.pool = new_pool();
    ck_assert_int_eq(tierce__memory_open(&tier, &opts), 0);
    ck_assert_int_eq(put(1), 0);
    struct tierce__buf *two = alloc(); /* held, so that it does not expire */
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 2, &two), 0);
    struct tierce__tier_stats stats;
    do {
        ck_assert(has(2));
        tier->ops->stats(tier, &stats);
    } while (stats.chunks == 2);
    ck_assert(!has(1));
    tierce__buf_release(two);
    while (has(2)) /* a GET does not count as a use that renews */
        continue;
    tier->ops->stats(tier, &stats);
    ck_assert_uint_eq(stats.evicted_chunks, 2);
    end();
}
END_TEST

START_TEST(leases_outlive_the_tier)
{
    start(0);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(put(2), 0);
    struct tierce__buf *buf = get(1);
    memset(buf->data, 7, BYTES);
    tier->ops->close(tier, TIERCE__DEADLINE_NEVER);
    ck_assert_uint_eq(buf->data[BYTES - 1], 7);
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 1);
    tierce__buf_release(buf);
    tierce__pool_destroy(pool);
}
END_TEST

static int replace(uint64_t n, struct tierce__buf *buf)
{
    struct tierce__key key = key_of(n);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .done = ignore,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .object_bytes = BYTES,
                                    .replaces = true};
    tier->ops->submit(tier, &req);
    ck_assert_uint_eq(req.found, 0);
    return req.status;
}

START_TEST(a_put_may_take_the_place_of_what_is_there)
{
    struct tierce__buf *bufs[2], *lease = NULL;
    start(1); /* there is no slot for both */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(tierce__pool_alloc(pool, &bufs[i], BYTES), 0);
        ck_assert_int_eq(replace(1, bufs[i]), 0);
        lease = NULL;
        ck_assert_int_eq(request(TIERCE__STORE_GET, 1, &lease), 0);
        ck_assert_ptr_eq(lease, bufs[i]);
        tierce__buf_release(lease);
    }
    ck_assert_int_eq(replace(1, bufs[1]), TIERCE_E_ARGUMENT); /* it is there already */
    ck_assert_int_eq(atomic_load(&bufs[0]->refs), 1);
    tierce__buf_release(bufs[0]);
    tierce__buf_release(bufs[1]);
    end();
}
END_TEST

START_TEST(requests_are_checked)
{
    struct tierce__pool *other = new_pool();
    struct tierce__buf *foreign = NULL, *buf = NULL;
    struct tierce__tier *second = NULL;
    start(0);
    ck_assert_int_eq(tierce__pool_alloc(other, &foreign, BYTES), 0);
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 1, &foreign), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 1, NULL), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__pool_alloc(pool, &buf, BYTES - 4096), 0);
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 1, &buf), TIERCE_E_ARGUMENT);
    tierce__buf_release(buf);
    buf = alloc();
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 1, &buf), 0);
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 1, &buf), 0);
    ck_assert_int_eq(request(TIERCE__STORE_PUT, 2, &buf), TIERCE_E_ARGUMENT);
    tierce__buf_release(buf);
    struct tierce__store_req req = {.op = TIERCE__STORE_GET, .done = ignore};
    tier->ops->submit(tier, &req);
    ck_assert_int_eq(req.status, TIERCE_E_ARGUMENT);
    ck_assert_int_eq(open_on(&second, pool, 0), -EBUSY);
    ck_assert_int_eq(open_on(&second, NULL, 0), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(second);
    end();
    tierce__buf_release(foreign);
    tierce__pool_destroy(other);
}
END_TEST

START_TEST(each_allocation_of_open_may_fail)
{
    pool = new_pool();
    uint64_t live = tierce__alloc_live(), made;
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(open_on(&tier, pool, 0), 0);
    made = tierce__alloc_fail_nth(0);
    tier->ops->close(tier, TIERCE__DEADLINE_NEVER);
    ck_assert_uint_gt(made, 5);
    for (uint64_t n = 1; n <= made; n++) {
        struct tierce__tier *none = NULL;
        tierce__alloc_fail_nth(n);
        ck_assert_int_eq(open_on(&none, pool, 0), -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_ptr_null(none);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_int_eq(open_on(&tier, pool, 0), 0);
    tierce__alloc_fail_nth(1); /* from here on nothing is allocated */
    for (unsigned i = 0; i < 100; i++) {
        ck_assert_int_eq(put(i), 0);
        tier->ops->evict(tier, i % 3 * BYTES);
        if (i % 16 == 15)
            tier->ops->evict(tier, MIB);
    }
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 0);
    end();
}
END_TEST

/* ---- races ----------------------------------------------------------------------------------- */

static _Atomic(struct tierce__buf *) passed;
static _Atomic bool stop;

/* Releases the buffers passed to it, at any moment. */
static void *release_passed(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        struct tierce__buf *buf = atomic_exchange(&passed, NULL);
        if (buf != NULL)
            tierce__buf_release(buf);
        else
            sched_yield();
    }
    return NULL;
}

static void pass(struct tierce__buf *buf)
{
    struct tierce__buf *none = NULL;
    while (!atomic_compare_exchange_weak(&passed, &none, buf)) {
        none = NULL;
        sched_yield();
    }
}

static void wait_until_passed(void)
{
    while (atomic_load(&passed) != NULL)
        sched_yield();
}

/* A device may hold a buffer that is put into the tier: after the last release, by either, it is
 * evictable. */
START_TEST(a_put_races_with_releases_by_others)
{
    pthread_t thread;
    start(0);
    ck_assert_int_eq(pthread_create(&thread, NULL, release_passed, NULL), 0);
    for (unsigned i = 0; i < 5000 * test_scale(); i++) {
        struct tierce__buf *buf = alloc();
        tierce__buf_acquire(buf);
        pass(buf);
        ck_assert_int_eq(request(TIERCE__STORE_PUT, i, &buf), 0);
        tierce__buf_release(buf);
        wait_until_passed();
        uint64_t freed = 0;
        /* The other thread may still be between its release and the hook. */
        for (unsigned spin = 0; freed == 0 && spin < 1000000; spin++) {
            freed = tier->ops->evict(tier, 1);
            if (freed == 0)
                sched_yield();
        }
        ck_assert_uint_eq(freed, BYTES);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    end();
}
END_TEST

static void *get_and_release(void *arg)
{
    bool by_lookup = *(const bool *)arg;
    while (!atomic_load(&stop)) {
        struct tierce__buf *buf = NULL;
        if (by_lookup)
            buf = borrow(1);
        else
            (void)request(TIERCE__STORE_GET, 1, &buf);
        sched_yield(); /* somebody else's hook and eviction come now */
        tierce__buf_release(buf);
    }
    return NULL;
}

/* Between a release that leaves only the tier's reference and its hook, another thread gets the
 * chunk: it must not be evicted then. The tier itself asserts that a chunk has no other reference
 * when it evicts it. */
START_TEST(a_get_races_with_the_hook_of_a_release)
{
    pthread_t threads[3];
    bool by_lookup[3] = {_i > 0, _i > 0, _i > 1};
    start(0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, get_and_release, &by_lookup[i]), 0);
    for (unsigned i = 0; i < 40000; i++) {
        if (!has(1))
            ck_assert_int_eq(put(1), 0);
        tier->ops->evict(tier, 1);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    end();
}
END_TEST

/* LRU that lets a lease change hands inside touch, that is, under the lock of the tier. */
static struct tierce__policy_ops slow_ops;
static struct tierce__buf *changing;

static void touch_slowly(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    tierce__policy_find("lru")->touch(policy, slot, now);
    pass(changing);
    while (atomic_load(&changing->refs) > 1)
        sched_yield();
    tierce__buf_acquire(changing); /* as a GET does that came before the hook */
}

static int create_slow(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    int rc = tierce__policy_find("lru")->create(out, opts);
    if (rc == 0)
        (*out)->ops = &slow_ops;
    return rc;
}

/* ---- calls of the policy --------------------------------------------------------------------- */

static struct tierce__policy_ops spying_ops;
static struct tierce__policy_request last_request;
static struct tierce__policy_entry last_insert;
static uint32_t requests, touches, skips;
static bool is_unworthy;

static void note_request(struct tierce__policy *policy,
                         const struct tierce__policy_request *request)
{
    (void)policy;
    last_request = *request;
    requests++;
}

static void note_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    tierce__policy_find("lfu")->touch(policy, slot, now);
    touches++;
}

static void note_insert(struct tierce__policy *policy, uint32_t slot,
                        const struct tierce__policy_entry *entry)
{
    tierce__policy_find("lfu")->insert(policy, slot, entry);
    last_insert = *entry;
}

static bool is_worthy(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    (void)policy;
    (void)entry;
    return !is_unworthy;
}

static void note_skip(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    (void)policy;
    (void)entry;
    skips++;
}

static int create_spying(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    int rc = tierce__policy_find("lfu")->create(out, opts);
    if (rc == 0)
        (*out)->ops = &spying_ops;
    return rc;
}

static void start_spying(void)
{
    spying_ops = *tierce__policy_find("lfu");
    spying_ops.create = create_spying;
    spying_ops.request = note_request;
    spying_ops.touch = note_touch;
    spying_ops.insert = note_insert;
    spying_ops.admits = is_worthy;
    spying_ops.skip = note_skip;
    requests = touches = skips = 0;
    is_unworthy = false;
    pool = new_pool();
    struct tierce__memory_opts opts = {.size = sizeof(opts), .pool = pool, .policy = &spying_ops};
    ck_assert_int_eq(tierce__memory_open(&tier, &opts), 0);
}

START_TEST(uses_of_one_call_are_one_request)
{
    enum { KEYS = 4 };
    struct tierce__key keys[KEYS];
    start_spying();
    for (uint64_t n = 0; n < KEYS; n++) {
        keys[n] = key_of(n);
        if (n != 1)
            ck_assert_int_eq(put(n), 0);
    }
    struct tierce__tier_uses uses = {
        .keys = keys, .count = KEYS, .used = 1, .origin = {.ends = true}};
    tier->ops->touch(tier, &uses);
    ck_assert_uint_eq(requests, 0); /* they belong to the puts */
    tier->ops->touch(tier, &uses);
    ck_assert_uint_eq(requests, 1);
    ck_assert_uint_eq(touches, 2);
    ck_assert_uint_eq(last_request.count, 2);
    ck_assert_uint_eq(last_request.last_key, tierce__key_spread(&keys[KEYS - 1]));
    ck_assert(last_request.origin.ends);
    uses.origin.ends = false;
    tier->ops->touch(tier, &uses);
    ck_assert(!last_request.origin.ends);
    end();
}
END_TEST

START_TEST(a_chunk_that_memory_need_not_have_may_be_refused)
{
    bool refused = false;
    struct tierce__buf *bufs[MIB / BYTES];
    struct tierce__key key = key_of(100), present = key_of(0);
    start_spying();
    for (uint64_t n = 0; n < MIB / BYTES; n++) {
        ck_assert_int_eq(put(n), 0);
        bufs[n] = NULL;
    }
    struct tierce__reserve what = {
        .key = &key, .bytes = BYTES, .origin = {.ends = true}, .refused = &refused};
    is_unworthy = true;
    ck_assert_ptr_null(tier->ops->reserve(tier, &what));
    ck_assert(refused);
    ck_assert_uint_eq(skips, 1);
    what.follows_refused = true;
    is_unworthy = false; /* not asked */
    ck_assert_ptr_null(tier->ops->reserve(tier, &what));
    what.key = &present;
    ck_assert_ptr_null(tier->ops->reserve(tier, &what));
    ck_assert_uint_eq(skips, 2); /* the present chunk is not skipped */
    what.key = &key;
    what.follows_refused = false;
    bufs[0] = tier->ops->reserve(tier, &what);
    ck_assert(bufs[0] != NULL && !refused && last_insert.origin.ends);
    what = (struct tierce__reserve){.key = &key, .bytes = BYTES};
    is_unworthy = true; /* memory needs it */
    bufs[1] = tier->ops->reserve(tier, &what);
    ck_assert(bufs[1] != NULL && !last_insert.origin.ends);
    tierce__buf_release(bufs[0]);
    tierce__buf_release(bufs[1]);
    end();
}
END_TEST

static void put_after(uint64_t n, const struct tierce__key *parent)
{
    struct tierce__key key = key_of(n);
    struct tierce__reserve what = {.key = &key, .parent = parent, .bytes = BYTES};
    struct tierce__buf *buf = tier->ops->reserve(tier, &what);
    ck_assert_ptr_nonnull(buf);
    ck_assert_int_eq(request(TIERCE__STORE_PUT, n, &buf), 0);
    tierce__buf_release(buf);
}

/* A prompt fills memory, and its last chunk is held: the one before that is evicted if a slower
 * tier may have it, and then the ones before it, not the first. */
START_TEST(a_prompt_as_long_as_memory_ends_or_loses_its_middle)
{
    static const char *const policies[] = {"leaf_lru", "hazard"};
    struct tierce__key key = key_of(100), parent;
    pool = new_pool();
    struct tierce__memory_opts opts = {.size = sizeof(opts),
                                       .pool = pool,
                                       .policy = tierce__policy_find(policies[_i]),
                                       .chunk_count_max = 4};
    ck_assert_int_eq(tierce__memory_open(&tier, &opts), 0);
    for (uint64_t n = 0; n < 4; n++) {
        put_after(n, n > 0 ? &parent : NULL);
        parent = key_of(n);
    }
    struct tierce__buf *last = get(3), *bufs[3] = {NULL};
    struct tierce__reserve what = {
        .key = &key, .parent = &parent, .bytes = BYTES, .keeps_prefixes = true};
    ck_assert_ptr_null(tier->ops->reserve(tier, &what));
    what.keeps_prefixes = false;
    for (uint64_t n = 3; n-- > 0;) {
        ck_assert(has(0) && has(n));
        bufs[n] = tier->ops->reserve(tier, &what);
        ck_assert_ptr_nonnull(bufs[n]);
        ck_assert(!has(n) && has(3));
        key = key_of(100 + n);
    }
    ck_assert_ptr_null(tier->ops->reserve(tier, &what));
    for (size_t i = 0; i < 3; i++)
        tierce__buf_release(bufs[i]);
    tierce__buf_release(last);
    end();
}
END_TEST

/* The same, step by step: the other thread has released and waits for the lock in its hook. */
START_TEST(a_hook_that_comes_too_late_does_nothing)
{
    pthread_t thread;
    slow_ops = *tierce__policy_find("lru");
    slow_ops.create = create_slow;
    slow_ops.touch = touch_slowly;
    pool = new_pool();
    struct tierce__memory_opts opts = {.size = sizeof(opts), .pool = pool, .policy = &slow_ops};
    ck_assert_int_eq(tierce__memory_open(&tier, &opts), 0);
    ck_assert_int_eq(put(1), 0);
    changing = get(1);
    ck_assert_int_eq(pthread_create(&thread, NULL, release_passed, NULL), 0);
    struct tierce__key key = key_of(1);
    tier->ops->touch(tier, &(struct tierce__tier_uses){.keys = &key, .count = 1});
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(tier->ops->evict(tier, 1), 0);
    tierce__buf_release(changing);
    ck_assert_uint_eq(tier->ops->evict(tier, 1), BYTES);
    end();
}
END_TEST

/* The last lease goes while the tier, and then the pool, is taken down. */
START_TEST(closing_races_with_the_last_release)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, release_passed, NULL), 0);
    for (unsigned i = 0; i < 100 * test_scale(); i++) {
        start(4);
        ck_assert_int_eq(put(1), 0);
        ck_assert_int_eq(put(2), 0);
        pass(get(1));
        pass(get(2));
        tier->ops->close(tier, TIERCE__DEADLINE_NEVER);
        wait_until_passed();
        struct tierce__pool_stats stats;
        do {
            tierce__pool_stats(pool, &stats);
        } while (stats.bufs > 0 && sched_yield() == 0);
        tierce__pool_destroy(pool);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}
END_TEST

int main(void)
{
    int policies = 0;
    while (tierce__policy_at((size_t)policies) != NULL)
        policies++;
    return CHECK_RUN(
        "memory", .seconds = 30,
        .tests = {a_full_index_evicts_one_or_refuses, a_lack_of_slots_is_told,
                  a_lack_of_bytes_is_no_lack_of_slots, leases_and_pins_are_not_evicted,
                  what_a_lookup_lent_is_evicted_when_it_is_back, what_has_expired_is_a_miss,
                  leases_outlive_the_tier, a_put_may_take_the_place_of_what_is_there,
                  requests_are_checked, each_allocation_of_open_may_fail,
                  a_put_races_with_releases_by_others, a_hook_that_comes_too_late_does_nothing,
                  closing_races_with_the_last_release, uses_of_one_call_are_one_request,
                  a_chunk_that_memory_need_not_have_may_be_refused},
        .loops = {{every_policy_evicts, 0, policies},
                  {a_prompt_as_long_as_memory_ends_or_loses_its_middle, 0, 2},
                  {a_get_races_with_the_hook_of_a_release, 0, 3}});
}
