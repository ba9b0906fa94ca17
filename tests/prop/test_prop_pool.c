/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/chunk/pool.h"
#include "test_random.h"

#include <string.h>

/* Random allocations, references and releases: no two live buffers share a byte, each is free
 * exactly when its last reference goes, and the figures are those of the live buffers. */

enum { BUFS_MAX = 40, STEPS = 20000, CAP = 1 << 20 };

struct live {
    struct tierce__buf *buf;
    uint64_t bytes;
    uint32_t refs;
    uint8_t mark;
};

static struct live lives[BUFS_MAX];
static uint32_t live_count;

static bool is_whole(const struct live *live)
{
    const uint8_t *data = live->buf->data;
    return data[0] == live->mark && memcmp(data, data + 1, live->bytes - 1) == 0;
}

static void release_one(uint32_t which)
{
    struct live *live = &lives[which];
    ck_assert_uint_eq(atomic_load(&live->buf->refs), live->refs);
    ck_assert(is_whole(live));
    tierce__buf_release(live->buf);
    if (--live->refs == 0)
        *live = lives[--live_count];
}

static void alloc_one(struct tierce__pool *pool, struct test_random *random, uint64_t used)
{
    struct tierce__buf *buf = NULL;
    uint64_t bytes = 1 + test_random_below(random, CAP / 8);
    int rc = tierce__pool_alloc(pool, &buf, bytes);
    if (rc < 0) {
        ck_assert_int_eq(rc, TIERCE_E_FULL);
        ck_assert_ptr_null(buf);
        /* Rejected for buffers, for bytes, or for the lack of one hole of that size. */
        ck_assert(live_count == BUFS_MAX || used > 0);
        return;
    }
    ck_assert_uint_lt(live_count, BUFS_MAX);
    lives[live_count] = (struct live){buf, bytes, 1, (uint8_t)test_random_u64(random)};
    memset(buf->data, lives[live_count].mark, bytes);
    live_count++;
}

static void check_stats(struct tierce__pool *pool, uint64_t *used)
{
    uint64_t asked = 0;
    *used = 0;
    for (uint32_t i = 0; i < live_count; i++) {
        *used += (lives[i].bytes + 4095) / 4096 * 4096;
        asked += lives[i].bytes;
    }
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.used_bytes, *used);
    ck_assert_uint_eq(stats.asked_bytes, asked);
    ck_assert_uint_eq(stats.bufs, live_count);
    ck_assert_uint_le(stats.used_bytes, stats.cap_bytes);
}

START_TEST(live_buffers_are_apart)
{
    struct test_random random = test_random_start("pool");
    struct tierce__pool *pool;
    struct tierce__pool_opts opts = {
        .size = sizeof(opts), .cap_bytes = CAP, .buf_count_max = BUFS_MAX, .no_touch = true};
    uint64_t used = 0;
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
    for (unsigned i = 0; i < STEPS * test_scale(); i++) {
        uint32_t dice = test_random_below(&random, 100);
        uint32_t which = live_count > 0 ? test_random_below(&random, live_count) : 0;
        if (dice < 40) {
            alloc_one(pool, &random, used);
        } else if (live_count > 0 && dice < 55) {
            tierce__buf_acquire(lives[which].buf);
            lives[which].refs++;
        } else if (live_count > 0) {
            release_one(which);
        }
        check_stats(pool, &used);
    }
    while (live_count > 0)
        release_one(0);
    check_stats(pool, &used);
    tierce__pool_destroy(pool);
}
END_TEST

CHECK_MAIN("prop_pool", .seconds = 50, .tests = {live_buffers_are_apart})
