/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "base/clock.h"
#include "check_main.h"
#include "wait_for.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- tools ----------------------------------------------------------------------------------- */

struct tier_test tier_test;

static const struct tier_factory *all_factories;
static pthread_mutex_t done_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done_cond = PTHREAD_COND_INITIALIZER;

void tier_test_use(const struct tier_factory *factories)
{
    all_factories = factories;
}

void tier_test_start(int index)
{
    const struct tier_factory *factory = &all_factories[index];
    struct tierce__pool_opts opts = {
        .size = sizeof(opts), .cap_bytes = TIER_TEST_POOL_BYTES, .no_touch = true};
    tier_test = (struct tier_test){.factory = factory, .ns = 1, .ns_other = 2};
    ck_assert_int_eq(tierce__pool_create(&tier_test.pool, &opts), 0);
    int rc = factory->open(&tier_test.tier, tier_test.pool, factory->ctx);
    ck_assert_msg(rc == 0, "%s: %s", factory->name, tierce_strerror(rc));
    tier_test.lends = (tier_test.tier->ops->caps & TIERCE__TIER_LENDS) != 0;
    tier_test.shared = (tier_test.tier->ops->caps & TIERCE__TIER_SHARED) != 0;
    tier_test.whole = (tier_test.tier->ops->caps & TIERCE__TIER_WHOLE) != 0;
    if (factory->namespace_id != NULL) {
        tier_test.ns = factory->namespace_id(factory->ctx, 0);
        tier_test.ns_other = factory->namespace_id(factory->ctx, 1);
    }
}

void tier_test_end(void)
{
    tier_test.tier->ops->close(tier_test.tier, tierce__deadline_in_ms(20000));
    struct tierce__pool_stats stats;
    tierce__pool_stats(tier_test.pool, &stats);
    ck_assert_msg(stats.bufs == 0, "%u buffers are still held", stats.bufs);
    tierce__pool_destroy(tier_test.pool);
    if (tier_test.factory->cleanup != NULL)
        tier_test.factory->cleanup(tier_test.factory->ctx);
}

struct tierce__key tier_test_key(uint64_t n)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = tier_test.ns};
    uint64_t x = n * 0x9e3779b97f4a7c15ULL + 1;
    for (int i = 0; i < 4; i++) {
        x ^= x >> 29;
        x *= 0xbf58476d1ce4e5b9ULL;
        memcpy(key.hash + 8 * i, &x, 8);
    }
    memcpy(key.hash + 24, &n, 8);
    return key;
}

static void count_done(struct tierce__store_req *req)
{
    struct tier_call *call = (struct tier_call *)req->arg;
    pthread_mutex_lock(&done_mutex);
    atomic_fetch_add(&call->done_count, 1);
    pthread_cond_broadcast(&done_cond);
    pthread_mutex_unlock(&done_mutex);
}

void tier_call_init(struct tier_call *call, enum tierce__store_op op, uint64_t n)
{
    memset(call, 0, sizeof(*call));
    call->key = tier_test_key(n);
    call->req = (struct tierce__store_req){.op = op,
                                           .deadline_ns = TIERCE__DEADLINE_NEVER,
                                           .done = count_done,
                                           .arg = call,
                                           .keys = &call->key,
                                           .key_count = 1,
                                           .status = 12345};
    if (op == TIERCE__STORE_PUT) {
        call->parent = tier_test_key(n - 1);
        memset(call->first_block, (int)(n & 0xff), sizeof(call->first_block));
        call->req.parent = n > 0 ? &call->parent : NULL;
        call->req.first_block = call->first_block;
        call->req.token_start = n * 256;
        call->req.block_count = 16;
    }
}

void tier_call_submit(struct tier_call *call)
{
    tier_test.tier->ops->submit(tier_test.tier, &call->req);
}

int tier_call_wait(struct tier_call *call)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    int rc = 0;
    pthread_mutex_lock(&done_mutex);
    while (atomic_load(&call->done_count) == 0 && rc == 0)
        rc = pthread_cond_timedwait(&done_cond, &done_mutex, &until);
    pthread_mutex_unlock(&done_mutex);
    ck_assert_msg(rc == 0, "a request was never done");
    ck_assert_int_eq(atomic_load(&call->done_count), 1);
    return call->req.status;
}

int tier_call_run(struct tier_call *call)
{
    tier_call_submit(call);
    return tier_call_wait(call);
}

/* Words of an object: key number, version and size in the first page, then a sequence. */
static uint64_t word_of(uint64_t n, uint32_t version, uint64_t bytes, uint64_t index)
{
    switch (index) {
    case 0:
        return n;
    case 1:
        return version;
    case 2:
        return bytes;
    default:
        return (n * 31 + version) * 0x9e3779b97f4a7c15ULL + index;
    }
}

void tier_test_fill(struct tierce__buf *buf, uint64_t n, uint32_t version)
{
    for (uint64_t i = 0; i < buf->bytes / 8; i++) {
        uint64_t word = word_of(n, version, buf->bytes, i);
        memcpy(buf->data + i * 8, &word, 8);
    }
}

bool tier_test_is_object(const struct tierce__buf *buf, uint64_t n, uint32_t version, uint64_t from,
                         uint64_t to)
{
    for (uint64_t i = from / 8; i < to / 8; i++) {
        uint64_t word = word_of(n, version, buf->bytes, i);
        if (memcmp(buf->data + i * 8, &word, 8) != 0)
            return false;
    }
    return true;
}

uint32_t tier_test_version(const struct tierce__buf *buf, uint64_t n)
{
    uint64_t version;
    memcpy(&version, buf->data + 8, 8);
    bool good = tier_test_is_object(buf, n, (uint32_t)version, 0, buf->bytes);
    return good ? (uint32_t)version : 0;
}

struct tierce__buf *tier_test_object(uint64_t n, uint32_t version, uint64_t bytes)
{
    struct tierce__buf *buf = NULL;
    const struct tierce__tier_ops *ops = tier_test.tier->ops;
    int rc;
    while ((rc = tierce__pool_alloc(tier_test.pool, &buf, bytes)) == TIERCE_E_FULL) {
        if (ops->evict == NULL || ops->evict(tier_test.tier, bytes) == 0)
            return NULL;
    }
    ck_assert_int_eq(rc, 0);
    tier_test_fill(buf, n, version);
    return buf;
}

int tier_test_put(uint64_t n, uint32_t version, uint64_t bytes)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_PUT, n);
    call.req.buf = tier_test_object(n, version, bytes);
    call.req.object_bytes = bytes;
    ck_assert_ptr_nonnull(call.req.buf);
    int rc = tier_call_run(&call);
    tierce__buf_release(call.req.buf);
    return rc;
}

int tier_test_get(uint64_t n, uint64_t bytes, uint32_t *version)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_GET, n);
    if (!tier_test.lends) {
        call.req.buf = tier_test_object(n + 1000000, 99, bytes);
        ck_assert_ptr_nonnull(call.req.buf);
        call.req.length = bytes;
    }
    int rc = tier_call_run(&call);
    if (rc == 0) {
        ck_assert_ptr_nonnull(call.req.buf);
        ck_assert_uint_eq(call.req.buf->bytes, bytes);
        *version = tier_test_version(call.req.buf, n);
        ck_assert_msg(*version != 0, "the bytes of key %llu are not its own",
                      (unsigned long long)n);
    } else if (tier_test.lends) {
        ck_assert_ptr_null(call.req.buf);
    }
    tierce__buf_release(call.req.buf);
    return rc;
}

int tier_test_delete(uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_DELETE, n);
    return tier_call_run(&call);
}

size_t tier_test_lookup(uint64_t first, size_t count)
{
    static struct tierce__key keys[1024];
    struct tier_call call;
    ck_assert_uint_le(count, 1024);
    for (size_t i = 0; i < count; i++)
        keys[i] = tier_test_key(first + i);
    tier_call_init(&call, TIERCE__STORE_LOOKUP, 0);
    call.req.keys = keys;
    call.req.key_count = count;
    ck_assert_int_eq(tier_call_run(&call), 0);
    return call.req.found;
}

void tier_test_touch(const struct tierce__key *keys, size_t count)
{
    tier_test.tier->ops->touch(tier_test.tier,
                               &(struct tierce__tier_uses){.keys = keys, .count = count});
}

struct tierce__tier_stats tier_test_stats(void)
{
    struct tierce__tier_stats stats;
    tier_test.tier->ops->stats(tier_test.tier, &stats);
    return stats;
}

/* ---- tests ----------------------------------------------------------------------------------- */

enum { SMALL = 64 << 10 };

#define TIER_TEST(name)                                                                            \
    static void name##_body(void);                                                                 \
    START_TEST(name)                                                                               \
    {                                                                                              \
        tier_test_start(_i);                                                                       \
        name##_body();                                                                             \
        tier_test_end();                                                                           \
    }                                                                                              \
    END_TEST                                                                                       \
    static void name##_body(void)

TIER_TEST(what_was_put_is_got)
{
    static const uint64_t sizes[] = {4096, 8192, SMALL, (1 << 20) + 4096, 3 << 20};
    uint32_t version = 0;
    for (unsigned i = 0; i < 5; i++)
        ck_assert_int_eq(tier_test_put(i, i + 1, sizes[i]), 0);
    for (unsigned i = 5; i-- > 0;) {
        ck_assert_int_eq(tier_test_get(i, sizes[i], &version), 0);
        ck_assert_uint_eq(version, i + 1);
    }
}

static void check_missing_delete(uint64_t n)
{
    int rc = tier_test_delete(n);
    ck_assert_msg(rc == TIERCE_E_MISS || (tier_test.shared && rc == 0), "%s", tierce_strerror(rc));
}

TIER_TEST(what_is_not_there_is_a_miss)
{
    uint32_t version = 77;
    ck_assert_int_eq(tier_test_get(1, SMALL, &version), TIERCE_E_MISS);
    check_missing_delete(1);
    ck_assert_int_eq(tier_test_put(1, 1, SMALL), 0);
    ck_assert_int_eq(tier_test_get(2, SMALL, &version), TIERCE_E_MISS);
    ck_assert_uint_eq(version, 77);
    struct tierce__key unknown = tier_test_key(9);
    tier_test_touch(&unknown, 1);
    tier_test_touch(NULL, 0);
}

TIER_TEST(every_part_of_a_key_counts)
{
    /* Both ends of the hash, then each number of the shard; last the namespace. */
    static const size_t bytes[] = {0, 31, 32, 34, 36, 38};
    ck_assert_int_eq(tier_test_put(5, 1, SMALL), 0);
    ck_assert_uint_eq(tier_test_lookup(5, 1), 1);
    for (unsigned i = 0; i < 7; i++) {
        struct tier_call call;
        tier_call_init(&call, TIERCE__STORE_LOOKUP, 5);
        if (i < 6)
            ((uint8_t *)&call.key)[bytes[i]] ^= 1;
        else
            call.key.ns = tier_test.ns_other;
        ck_assert_int_eq(tier_call_run(&call), 0);
        ck_assert_uint_eq(call.req.found, 0);
    }
}

TIER_TEST(a_lookup_counts_the_leading_keys)
{
    ck_assert_uint_eq(tier_test_lookup(0, 0), 0);
    ck_assert_uint_eq(tier_test_lookup(0, 300), 0);
    for (unsigned i = 0; i < 300; i++)
        ck_assert_int_eq(tier_test_put(i, 1, 4096), 0);
    ck_assert_uint_eq(tier_test_lookup(0, 300), 300);
    ck_assert_uint_eq(tier_test_lookup(0, 1024), 300);
    ck_assert_uint_eq(tier_test_lookup(299, 10), 1);
    ck_assert_int_eq(tier_test_delete(200), 0);
    ck_assert_uint_eq(tier_test_lookup(0, 300), 200);
    ck_assert_uint_eq(tier_test_lookup(200, 10), 0);
    ck_assert_uint_eq(tier_test_lookup(201, 500), 99);
    ck_assert_int_eq(tier_test_delete(0), 0);
    ck_assert_uint_eq(tier_test_lookup(0, 300), 0);
}

TIER_TEST(a_second_put_changes_nothing)
{
    uint32_t version = 0;
    ck_assert_int_eq(tier_test_put(3, 1, SMALL), 0);
    uint64_t chunks = tier_test_stats().chunks;
    ck_assert_int_eq(tier_test_put(3, 2, SMALL), 0);
    ck_assert_uint_eq(tier_test_stats().chunks, chunks);
    ck_assert_int_eq(tier_test_get(3, SMALL, &version), 0);
    ck_assert_uint_eq(version, 1);
}

TIER_TEST(what_was_deleted_is_gone_and_may_come_again)
{
    uint32_t version = 0;
    for (unsigned round = 1; round < 20; round++) {
        ck_assert_int_eq(tier_test_put(3, round, SMALL), 0);
        ck_assert_int_eq(tier_test_get(3, SMALL, &version), 0);
        ck_assert_uint_eq(version, round);
        ck_assert_int_eq(tier_test_delete(3), 0);
        ck_assert_int_eq(tier_test_get(3, SMALL, &version), TIERCE_E_MISS);
        check_missing_delete(3);
        ck_assert_uint_eq(tier_test_stats().chunks, 0);
    }
}

TIER_TEST(a_range_lands_where_it_belongs)
{
    static const uint64_t ranges[][2] = {
        {0, 4096}, {4096, 8192}, {SMALL - 4096, 4096}, {8192, SMALL - 8192}, {0, SMALL}};
    if (tier_test.lends || tier_test.whole)
        return;
    ck_assert_int_eq(tier_test_put(3, 1, SMALL), 0);
    for (unsigned i = 0; i < 5; i++) {
        uint64_t from = ranges[i][0], to = from + ranges[i][1];
        struct tier_call call;
        tier_call_init(&call, TIERCE__STORE_GET, 3);
        call.req.buf = tier_test_object(8, 8, SMALL);
        call.req.offset = from;
        call.req.length = to - from;
        ck_assert_int_eq(tier_call_run(&call), 0);
        ck_assert(tier_test_is_object(call.req.buf, 3, 1, from, to));
        ck_assert(tier_test_is_object(call.req.buf, 8, 8, 0, from));
        ck_assert(tier_test_is_object(call.req.buf, 8, 8, to, SMALL));
        tierce__buf_release(call.req.buf);
    }
}

/* A remote tier may also say that the object has another length, once its store has confirmed that
 * it has the object. */
static void check_is_beyond(int status)
{
    ck_assert_msg(status == TIERCE_E_MISS || (tier_test.shared && status == TIERCE_E_FORMAT), "%s",
                  tierce_strerror(status));
}

TIER_TEST(a_range_beyond_what_is_stored_is_a_miss)
{
    if (tier_test.lends)
        return;
    ck_assert_int_eq(tier_test_put(3, 1, SMALL), 0);
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_GET, 3);
    call.req.buf = tier_test_object(8, 8, 2 * SMALL);
    call.req.length = SMALL + 4096;
    check_is_beyond(tier_call_run(&call));
    tierce__buf_release(call.req.buf);
    tier_call_init(&call, TIERCE__STORE_GET, 3);
    call.req.buf = tier_test_object(8, 8, 2 * SMALL);
    call.req.offset = SMALL;
    call.req.length = 4096;
    check_is_beyond(tier_call_run(&call));
    tierce__buf_release(call.req.buf);
}

TIER_TEST(what_is_lent_outlives_its_entry)
{
    if (!tier_test.lends)
        return;
    struct tier_call call;
    ck_assert_int_eq(tier_test_put(3, 1, SMALL), 0);
    tier_call_init(&call, TIERCE__STORE_GET, 3);
    ck_assert_int_eq(tier_call_run(&call), 0);
    struct tierce__buf *lent = call.req.buf;
    ck_assert_uint_eq(tier_test.tier->ops->evict(tier_test.tier, 1), 0);
    ck_assert_uint_eq(tier_test_lookup(3, 1), 1);
    ck_assert_int_eq(tier_test_delete(3), 0);
    ck_assert_int_eq(tier_test_put(3, 2, SMALL), 0);
    ck_assert_uint_eq(tier_test_version(lent, 3), 1);
    ck_assert_uint_ge(tier_test.tier->ops->evict(tier_test.tier, 1), SMALL);
    ck_assert_uint_eq(tier_test_version(lent, 3), 1);
    tierce__buf_release(lent);
    ck_assert_uint_eq(tier_test.tier->ops->evict(tier_test.tier, UINT64_MAX), 0);
}

/* Lends what the first `count` keys are found to be, `length` bytes at most. */
static struct tierce__store_req lend(struct tierce__buf **bufs, size_t count, uint64_t length)
{
    static struct tierce__key keys[512];
    struct tier_call call;
    ck_assert_uint_le(count, 512);
    for (size_t i = 0; i < count; i++)
        keys[i] = tier_test_key(i);
    tier_call_init(&call, TIERCE__STORE_LOOKUP, 0);
    call.req.keys = keys;
    call.req.key_count = count;
    call.req.bufs = bufs;
    call.req.length = length;
    ck_assert_int_eq(tier_call_run(&call), 0);
    return call.req;
}

TIER_TEST(a_lookup_lends_what_it_finds)
{
    struct tierce__buf *bufs[512], *again[512];
    if (!tier_test.lends)
        return;
    for (unsigned i = 0; i < 300; i++)
        ck_assert_int_eq(tier_test_put(i, 1, 4096), 0);
    uint64_t got = tier_test_stats().get_chunks;
    ck_assert_uint_eq(lend(bufs, 512, 0).lent, 0);
    ck_assert_uint_eq(lend(bufs, 512, 4095).found, 300);
    struct tierce__store_req req = lend(bufs, 512, 4096 * 140 + 4095);
    ck_assert_uint_eq(req.found, 300);
    ck_assert_uint_eq(req.lent, 140);
    ck_assert_uint_eq(tier_test_stats().get_chunks, got + 140);
    for (unsigned i = 0; i < 140; i++)
        ck_assert_uint_eq(tier_test_version(bufs[i], i), 1);
    /* Leased chunks stay, and only those. */
    ck_assert_uint_eq(tier_test.tier->ops->evict(tier_test.tier, UINT64_MAX), 160 * 4096);
    req = lend(again, 300, UINT64_MAX);
    ck_assert_uint_eq(req.found, 140);
    ck_assert_uint_eq(req.lent, 140);
    ck_assert_mem_eq(bufs, again, 140 * sizeof(*bufs));
    tierce__bufs_release(bufs, 140);
    ck_assert_uint_eq(tier_test.tier->ops->evict(tier_test.tier, UINT64_MAX), 0);
    ck_assert_int_eq(tier_test_delete(100), 0);
    req = lend(bufs, 300, UINT64_MAX);
    ck_assert_uint_eq(req.found, 100);
    ck_assert_uint_eq(req.lent, 100);
    tierce__bufs_release(bufs, 100);
    ck_assert_uint_eq(tier_test_version(again[100], 100), 1);
    tierce__bufs_release(again, 140);
    ck_assert_uint_eq(tier_test.tier->ops->evict(tier_test.tier, UINT64_MAX), 139 * 4096);
    ck_assert_uint_eq(lend(bufs, 300, UINT64_MAX).lent, 0);
}

/* Puts keys from *next on until key `victim` is gone. */
static void put_until_gone(uint64_t *next, uint64_t victim)
{
    for (unsigned i = 0; tier_test_lookup(victim, 1) == 1; i++) {
        ck_assert_uint_lt(i, 2 * TIER_TEST_POOL_BYTES / SMALL);
        ck_assert_int_eq(tier_test_put((*next)++, 1, SMALL), 0);
    }
}

TIER_TEST(touched_chunks_stay_and_a_prefix_outlives_its_suffix)
{
    struct tierce__key keys[4];
    if (tier_test.shared)
        return;
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_int_eq(tier_test_put(i, 1, SMALL), 0);
        keys[i] = tier_test_key(i);
    }
    ck_assert_int_eq(tier_test_put(50, 1, SMALL), 0);
    tier_test_touch(keys, 4);
    uint64_t next = 100;
    put_until_gone(&next, 50);
    ck_assert_uint_eq(tier_test_lookup(0, 4), 4);
    for (unsigned i = 4; i-- > 0;) {
        put_until_gone(&next, i);
        ck_assert_uint_eq(tier_test_lookup(0, 4), i);
    }
}

TIER_TEST(the_cap_holds_however_much_is_put)
{
    uint64_t cap = tier_test_stats().cap_bytes, count = 2 * cap / SMALL + 8;
    uint32_t version;
    if (tier_test.shared)
        return;
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_int_eq(tier_test_put(i, (uint32_t)i + 1, SMALL - (i % 5) * 4096), 0);
        struct tierce__tier_stats stats = tier_test_stats();
        ck_assert_uint_le(stats.used_bytes, cap);
        ck_assert_uint_eq(stats.cap_bytes, cap);
        ck_assert_uint_eq(stats.chunks + stats.evicted_chunks, i + 1);
    }
    ck_assert_uint_gt(tier_test_stats().evicted_chunks, 0);
    ck_assert_int_eq(tier_test_get(0, SMALL, &version), TIERCE_E_MISS);
    ck_assert_int_eq(tier_test_get(count - 1, SMALL - ((count - 1) % 5) * 4096, &version), 0);
    ck_assert_uint_eq(version, count);
}

TIER_TEST(a_flush_makes_durable)
{
    struct tier_call call;
    for (unsigned i = 0; i < 10; i++)
        ck_assert_int_eq(tier_test_put(i, 1, SMALL), 0);
    ck_assert_int_eq(tier_test_delete(4), 0);
    for (int i = 0; i < 2; i++) {
        tier_call_init(&call, TIERCE__STORE_FLUSH, 0);
        call.req.keys = NULL;
        call.req.key_count = 0;
        ck_assert_int_eq(tier_call_run(&call), 0);
        bool durable = (tier_test.tier->ops->caps & TIERCE__TIER_DURABLE) != 0;
        ck_assert_uint_eq(tier_test_stats().durable_chunks, durable ? 9 : 0);
    }
}

TIER_TEST(the_figures_add_up)
{
    uint32_t version;
    struct tierce__tier_stats stats = tier_test_stats();
    ck_assert_uint_eq(stats.chunks, 0);
    for (unsigned i = 0; i < 12; i++)
        ck_assert_int_eq(tier_test_put(i, 1, SMALL), 0);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(tier_test_delete(i), 0);
    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(tier_test_get(i, SMALL, &version), i < 3 ? TIERCE_E_MISS : 0);
    /* A coded tier answers a put before it takes it off its own queue. */
    WAIT_FOR(tier_test_stats().queued_bytes == 0);
    stats = tier_test_stats();
    ck_assert_uint_eq(stats.chunks, tier_test.shared ? 0 : 9);
    ck_assert_uint_eq(stats.put_chunks, 12);
    ck_assert_uint_eq(stats.put_bytes, 12 * SMALL);
    ck_assert_uint_eq(stats.get_chunks, 5);
    ck_assert_uint_eq(stats.get_bytes, 5 * SMALL);
    ck_assert_uint_eq(stats.evicted_chunks, 0);
    ck_assert_uint_eq(stats.dropped_puts, 0);
    ck_assert_uint_eq(stats.errors, 0);
    if (!tier_test.shared)
        ck_assert_uint_ge(stats.used_bytes, 9 * SMALL);
    ck_assert_uint_le(stats.used_bytes, stats.cap_bytes);
}

/* A deadline that has passed is either met in spite of it or answered as such, once. */
TIER_TEST(a_deadline_in_the_past_is_answered)
{
    ck_assert_int_eq(tier_test_put(1, 1, SMALL), 0);
    for (unsigned i = 0; i < 2; i++) {
        struct tier_call call;
        tier_call_init(&call, TIERCE__STORE_GET, 1);
        if (!tier_test.lends) {
            call.req.buf = tier_test_object(8, 8, SMALL);
            call.req.length = SMALL;
        }
        call.req.deadline_ns = tierce__now_ns() - 1;
        int rc = tier_call_run(&call);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DEADLINE, "%s", tierce_strerror(rc));
        tierce__buf_release(call.req.buf);
    }
    uint32_t version;
    ck_assert_int_eq(tier_test_get(1, SMALL, &version), 0);
}

/* All tests over one factory. */
static int run_factory(size_t index)
{
    Suite *suite = suite_create(all_factories[index].name);
    TCase *t = tcase_create("tier");
    int i = (int)index;
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_was_put_is_got, i, i + 1);
    tcase_add_loop_test(t, what_is_not_there_is_a_miss, i, i + 1);
    tcase_add_loop_test(t, every_part_of_a_key_counts, i, i + 1);
    tcase_add_loop_test(t, a_lookup_counts_the_leading_keys, i, i + 1);
    tcase_add_loop_test(t, a_second_put_changes_nothing, i, i + 1);
    tcase_add_loop_test(t, what_was_deleted_is_gone_and_may_come_again, i, i + 1);
    tcase_add_loop_test(t, a_range_lands_where_it_belongs, i, i + 1);
    tcase_add_loop_test(t, a_range_beyond_what_is_stored_is_a_miss, i, i + 1);
    tcase_add_loop_test(t, what_is_lent_outlives_its_entry, i, i + 1);
    tcase_add_loop_test(t, a_lookup_lends_what_it_finds, i, i + 1);
    tcase_add_loop_test(t, touched_chunks_stay_and_a_prefix_outlives_its_suffix, i, i + 1);
    tcase_add_loop_test(t, the_cap_holds_however_much_is_put, i, i + 1);
    tcase_add_loop_test(t, a_flush_makes_durable, i, i + 1);
    tcase_add_loop_test(t, the_figures_add_up, i, i + 1);
    tcase_add_loop_test(t, a_deadline_in_the_past_is_answered, i, i + 1);
    suite_add_tcase(suite, t);
    TCase *threads = tcase_create("threads");
    tcase_set_timeout(threads, 90);
    tier_conformance_add_threads(threads, i);
    suite_add_tcase(suite, threads);
    TCase *watch = tcase_create("watch");
    tcase_set_timeout(watch, 90);
    tier_conformance_add_watch(watch, i);
    suite_add_tcase(suite, watch);
    TCase *siblings = tcase_create("siblings");
    tcase_set_timeout(siblings, 90);
    tier_conformance_add_siblings(siblings, i);
    suite_add_tcase(suite, siblings);
    return check_main(suite);
}

int tier_conformance_main(const struct tier_factory *factories, size_t count)
{
    tier_test_use(factories);
    return check_at_once(run_factory, count) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
