/* SPDX-License-Identifier: Apache-2.0 */
/* Coded memory: copies of chunks behind the tier that encodes. */
#include "coded_store.h"
#include "store/memory/copies.h"

#include <signal.h>
#include <sys/mman.h>

#define MIB (1ULL << 20)

static struct store s;
static const struct tierce__codec *lossless;

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int open_plain(uint64_t cap, const char *policy)
{
    return tierce__copies_open(
        &s.tier, &(struct tierce__copies_opts){.size = sizeof(struct tierce__copies_opts),
                                               .cap_bytes = cap,
                                               .policy = tierce__policy_find(policy),
                                               .no_touch = true});
}

static void open_coded(uint64_t cap, uint64_t staging)
{
    ck_assert_int_eq(open_plain(cap, "lru"), 0);
    coded_wrap(&s, &(struct tierce__coded_opts){.codec = lossless,
                                                .measured_bytes = UINT64_MAX,
                                                .staging_bytes_max = staging});
}

/* Chunks of values are held coded, others as they are; every range has the raw chunk's bytes. */
START_TEST(chunks_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_coded(8 * MIB, 0);
    for (uint64_t n = 0; n < 6; n++)
        ck_assert_int_eq(coded_put(&s, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    struct tierce__coded_stats stats = coded_stats(&s);
    ck_assert_uint_eq(stats.encoded_chunks, 4);
    ck_assert_uint_lt(stats.encoded_bytes, 3 * bytes);
    ck_assert_uint_eq(stats.raw_chunks[TIERCE__CODED_RAW_LONGER], 2);
    ck_assert_uint_lt(store_stats(&s).used_bytes, 5 * bytes + 6 * HARNESS_PAGE);
    for (uint64_t n = 0; n < 6; n++) {
        enum coded_kind kind = (enum coded_kind)(n % CODED_KINDS);
        for (uint64_t from = 0; from <= bytes; from += 4 * HARNESS_PAGE) {
            for (uint64_t length = 0; from + length <= bytes; length += 4096)
                ck_assert_int_eq(coded_get(&s, n, kind, from, length), 0);
        }
        ck_assert_int_eq(coded_get_all(&s, n, kind), 0);
    }
    ck_assert_int_eq(coded_get_all(&s, 9, CODED_VALUES), TIERCE_E_MISS);
}
END_TEST

/* The same memory holds more chunks of values, and not more of noise. */
START_TEST(it_holds_more)
{
    uint64_t held[CODED_KINDS];
    for (unsigned kind = CODED_VALUES; kind <= CODED_NOISE; kind++) {
        open_coded(3 * MIB, 0);
        for (uint64_t n = 0; n < 100; n++)
            ck_assert_int_eq(coded_put(&s, n, (enum coded_kind)kind), 0);
        held[kind] = store_stats(&s).chunks;
        ck_assert_uint_le(store_stats(&s).used_bytes, 3 * MIB);
        ck_assert_int_eq(coded_get_all(&s, 99, (enum coded_kind)kind), 0);
        ck_assert_int_eq(coded_get_all(&s, 0, (enum coded_kind)kind), TIERCE_E_MISS);
        store_close(&s);
    }
    ck_assert_uint_gt(held[CODED_VALUES] * 10, held[CODED_NOISE] * 11);
}
END_TEST

/* A random mix of operations and kinds of chunks equals a model. */
START_TEST(a_mix_equals_a_model)
{
    enum { CHUNKS = 12 };
    int have[CHUNKS]; /* kind, or -1 */
    struct test_random rng = test_random_start("a_mix_equals_a_model");
    memset(have, -1, sizeof(have));
    open_coded(8 * MIB, test_random_below(&rng, 2));
    for (unsigned i = 0; i < 400; i++) {
        uint32_t what = test_random_below(&rng, 100), n = test_random_below(&rng, CHUNKS);
        enum coded_kind kind = (enum coded_kind)test_random_below(&rng, CODED_KINDS);
        uint64_t pages = coded_bytes(&s) / 4096, from = test_random_below(&rng, (uint32_t)pages);
        uint64_t count = test_random_below(&rng, (uint32_t)(pages - from)) + 1;
        if (what < 40) {
            ck_assert_int_eq(coded_put(&s, n, kind), 0);
            have[n] = have[n] < 0 ? (int)kind : have[n];
        } else if (what < 55) {
            ck_assert_int_eq(store_delete(&s, n), have[n] < 0 ? TIERCE_E_MISS : 0);
            have[n] = -1;
        } else if (what < 99) {
            int rc = coded_get(&s, n, (enum coded_kind)(have[n] < 0 ? 0 : have[n]), from * 4096,
                               count * 4096);
            ck_assert_int_eq(rc, have[n] < 0 ? TIERCE_E_MISS : 0);
            ck_assert(store_has(&s, n) == (have[n] >= 0));
        } else {
            ck_assert_int_eq(store_clear(&s), 0);
            memset(have, -1, sizeof(have));
        }
    }
    uint64_t count = 0;
    for (unsigned n = 0; n < CHUNKS; n++)
        count += have[n] >= 0;
    ck_assert_uint_eq(store_stats(&s).chunks, count);
}
END_TEST

static int put_bytes(uint64_t n, uint64_t bytes)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__buf *buf;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, bytes), 0);
    store_fill(buf->data, n, bytes);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .object_bytes = bytes,
                                    .block_count = 1};
    int rc = store_run(&s, &req);
    tierce__buf_release(buf);
    return rc;
}

static bool has_bytes(uint64_t n, uint64_t bytes)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__buf *buf;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, bytes), 0);
    struct tierce__store_req req = {
        .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .buf = buf, .length = bytes};
    int rc = store_run(&s, &req);
    ck_assert(rc == 0 || rc == TIERCE_E_MISS);
    bool right = rc != 0 || store_is_right(buf->data, n, 0, bytes);
    tierce__buf_release(buf);
    ck_assert_msg(right, "chunk %llu has other bytes", (unsigned long long)n);
    return rc == 0;
}

/* Any sequence of lengths: every put finds room by evicting, the cap holds, and the chunks that are
 * left have their bytes. */
START_TEST(room_is_found_for_every_length)
{
    enum { COUNT = 600 };
    static const char *const policies[] = {"lru", "s3fifo", "sieve"};
    uint64_t lengths[COUNT], held = 0;
    struct test_random rng = test_random_start("room_is_found_for_every_length");
    ck_assert_int_eq(open_plain(4 * MIB, policies[_i]), 0);
    for (uint64_t n = 0; n < COUNT; n++) {
        uint32_t most = test_random_below(&rng, 8) == 0 ? 500 : 20;
        lengths[n] = 4096 * (1 + test_random_below(&rng, most));
        ck_assert_int_eq(put_bytes(n, lengths[n]), 0);
        ck_assert_uint_le(store_stats(&s).used_bytes, 4 * MIB);
        if (test_random_below(&rng, 4) == 0)
            (void)store_delete(&s, test_random_below(&rng, (uint32_t)n + 1));
    }
    for (uint64_t n = 0; n < COUNT; n++)
        held += has_bytes(n, lengths[n]);
    ck_assert_uint_eq(held, store_stats(&s).chunks);
    ck_assert_uint_gt(held, 0);
    ck_assert_int_eq(put_bytes(COUNT, 5 * MIB), TIERCE_E_FULL); /* larger than all of it */
}
END_TEST

/* Whatever fails for lack of memory while it is opened: nothing is left behind. */
START_TEST(each_allocation_of_open_fails_once)
{
    uint64_t nth = 0;
    int rc;
    do {
        tierce__alloc_fail_nth(++nth);
        rc = open_plain(8 * MIB, "lru");
        tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
    } while (rc != 0);
    ck_assert_uint_gt(nth, 4);
    ck_assert_int_eq(put_bytes(1, 65536), 0);
    ck_assert(has_bytes(1, 65536));
}
END_TEST

static uint8_t *guarded;
static bool clears;
static int removed;

/* The copy of the chunk has begun, because its memory is read; no lock is held then. */
static void remove_during_the_copy(int number)
{
    (void)number;
    if (mprotect(guarded, HARNESS_PAGE, PROT_READ | PROT_WRITE) != 0)
        _exit(3);
    removed = clears ? store_clear(&s) : store_delete(&s, 3);
}

/* A chunk that is deleted while it is being copied does not appear afterwards. */
START_TEST(a_deletion_ends_a_copy)
{
    struct tierce__key key = store_key(&s, 3);
    struct sigaction catches = {.sa_handler = remove_during_the_copy}, before;
    struct tierce__buf *buf;
    clears = _i == 1;
    ck_assert_int_eq(open_plain(4 * MIB, "lru"), 0);
    ck_assert_int_eq(put_bytes(2, 65536), 0);
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, 65536), 0);
    store_fill(buf->data, 3, 65536);
    guarded = buf->data;
    ck_assert_int_eq(sigaction(SIGSEGV, &catches, &before), 0);
    ck_assert_int_eq(mprotect(guarded, HARNESS_PAGE, PROT_NONE), 0);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .object_bytes = 65536,
                                    .block_count = 1};
    ck_assert_int_eq(store_run(&s, &req), TIERCE_E_CANCELLED);
    ck_assert_int_eq(sigaction(SIGSEGV, &before, NULL), 0);
    ck_assert_int_eq(removed, clears ? 0 : TIERCE_E_MISS);
    ck_assert(!store_has(&s, 3));
    ck_assert(store_has(&s, 2) == !clears);
    ck_assert_int_eq(put_bytes(3, 65536), 0);
    ck_assert(has_bytes(3, 65536));
    tierce__buf_release(buf);
}
END_TEST

START_TEST(recoding_in_place_is_not_supported)
{
    struct tierce__key key = store_key(&s, 3);
    ck_assert_int_eq(open_plain(4 * MIB, "lru"), 0);
    ck_assert_int_eq(put_bytes(3, 65536), 0);
    struct tierce__store_req req = {
        .op = TIERCE__STORE_PUT, .keys = &key, .key_count = 1, .recodes = true};
    ck_assert_int_eq(store_run(&s, &req), TIERCE_E_UNSUPPORTED);
    ck_assert(has_bytes(3, 65536));
}
END_TEST

CHECK_MAIN("copies", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {chunks_come_back, it_holds_more, a_mix_equals_a_model,
                     each_allocation_of_open_fails_once, recoding_in_place_is_not_supported},
           .loops = {{room_is_found_for_every_length, 0, 3}, {a_deletion_ends_a_copy, 0, 2}})
