/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "check_main.h"
#include "conformance/tier_conformance.h"
#include "core/key/namespaces.h"
#include "core/policy/policy.h"
#include "store/disk/disk.h"
#include "tier_fault.h"
#include "store/memory/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each kind of fault affects the requests that it hits, and no others. */

#define OBJECT_BYTES 65536u
#define PAGE         4096u

static char folder[64];
static struct tierce__namespaces *namespaces;

static int open_disk(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    (void)ctx;
    snprintf(folder, sizeof(folder), "test_fault.XXXXXX");
    temp_folder_make(folder);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    struct tierce__tier *disk;
    int rc = tierce__disk_open(&disk,
                               &(struct tierce__disk_opts){.size = sizeof(struct tierce__disk_opts),
                                                           .path = folder,
                                                           .cap_bytes = 16u << 20,
                                                           .policy = tierce__policy_find("lru"),
                                                           .namespaces = namespaces,
                                                           .pool = pool,
                                                           .queue_bytes = 4u << 20});
    return rc == 0 ? tierce__fault_create(out, disk) : rc;
}

static int open_memory(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    (void)ctx;
    struct tierce__tier *memory;
    int rc = tierce__memory_open(
        &memory, &(struct tierce__memory_opts){.size = sizeof(struct tierce__memory_opts),
                                               .pool = pool,
                                               .policy = tierce__policy_find("lru")});
    return rc == 0 ? tierce__fault_create(out, memory) : rc;
}

static uint32_t intern(void *ctx, unsigned which)
{
    (void)ctx;
    uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)(which + 1)};
    int64_t id = tierce__namespaces_intern(namespaces, digest, NULL);
    ck_assert_int_ge(id, 0);
    return (uint32_t)id;
}

static void remove_folder(void *ctx)
{
    (void)ctx;
    tierce__namespaces_destroy(namespaces);
    temp_folder_remove(folder);
}

enum { DISK, MEMORY };

static const struct tier_factory factories[] = {
    {"disk", open_disk, remove_folder, intern, NULL},
    {"memory", open_memory, NULL, NULL, NULL},
};

static void rule(enum tierce__store_op op, const struct tierce__fault_rule *what)
{
    tierce__fault_set(tier_test.tier, op, what);
}

/* Reads [from, to) of an object over bytes of 0xee. The buffer is the caller's. */
static struct tierce__buf *read_range(uint64_t n, uint64_t from, uint64_t to, int *status)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_GET, n);
    ck_assert_int_eq(tierce__pool_alloc(tier_test.pool, &call.req.buf, OBJECT_BYTES), 0);
    memset(call.req.buf->data, 0xee, OBJECT_BYTES);
    call.req.offset = from;
    call.req.length = to - from;
    *status = tier_call_run(&call);
    return call.req.buf;
}

static bool all_stale(const struct tierce__buf *buf, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        if (buf->data[i] != 0xee)
            return false;
    }
    return true;
}

/* The bits in which a buffer differs from its object. */
static unsigned wrong_bits(const struct tierce__buf *buf, uint64_t n, uint32_t version)
{
    struct tierce__buf *right = tier_test_object(n, version, buf->bytes);
    unsigned bits = 0;
    for (uint64_t i = 0; i < buf->bytes; i++)
        bits += (unsigned)__builtin_popcount(buf->data[i] ^ right->data[i]);
    tierce__buf_release(right);
    return bits;
}

START_TEST(a_short_read_leaves_the_rest_of_the_range_as_it_was)
{
    static const int answers[] = {0, -EIO};
    tier_test_start(DISK);
    ck_assert_int_eq(tier_test_put(1, 1, OBJECT_BYTES), 0);
    for (size_t i = 0; i < 2; i++) {
        struct tierce__fault_rule shortly = {.kind = TIERCE__FAULT_SHORT, .status = answers[i]};
        rule(TIERCE__STORE_GET, &shortly);
        int status;
        struct tierce__buf *buf = read_range(1, PAGE, 8 * PAGE, &status);
        ck_assert_int_eq(status, answers[i]);
        ck_assert(all_stale(buf, 0, PAGE));
        ck_assert(tier_test_is_object(buf, 1, 1, PAGE, 4 * PAGE));
        ck_assert(all_stale(buf, 4 * PAGE, OBJECT_BYTES));
        tierce__buf_release(buf);
        /* A single page cannot be written in half. */
        buf = read_range(1, 0, PAGE, &status);
        ck_assert_int_eq(status, answers[i]);
        ck_assert(all_stale(buf, 0, OBJECT_BYTES));
        tierce__buf_release(buf);
    }
    /* Reading a missing file must not succeed. */
    rule(TIERCE__STORE_GET, &(struct tierce__fault_rule){.kind = TIERCE__FAULT_SHORT});
    int status;
    tierce__buf_release(read_range(2, 0, OBJECT_BYTES, &status));
    ck_assert_int_eq(status, TIERCE_E_MISS);
    tier_test_end();
}
END_TEST

START_TEST(a_bit_flipped_in_a_put_is_wrong_on_the_device_alone)
{
    tier_test_start(DISK);
    rule(TIERCE__STORE_PUT,
         &(struct tierce__fault_rule){.kind = TIERCE__FAULT_FLIP, .bit = 8 * PAGE + 3});
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_PUT, 1);
    struct tierce__buf *mine = tier_test_object(1, 1, OBJECT_BYTES);
    call.req.buf = mine;
    call.req.object_bytes = OBJECT_BYTES;
    ck_assert_int_eq(tier_call_run(&call), 0);
    ck_assert_ptr_eq(call.req.buf, mine);
    ck_assert_uint_eq(wrong_bits(mine, 1, 1), 0);
    tierce__buf_release(mine);
    int status;
    struct tierce__buf *buf = read_range(1, 0, OBJECT_BYTES, &status);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(wrong_bits(buf, 1, 1), 1);
    ck_assert(!tier_test_is_object(buf, 1, 1, PAGE, PAGE + 8));
    tierce__buf_release(buf);
    tier_test_end();
}
END_TEST

START_TEST(a_bit_flipped_in_a_put_to_memory_is_in_the_buffer_that_is_kept)
{
    tier_test_start(MEMORY);
    rule(TIERCE__STORE_PUT, &(struct tierce__fault_rule){.kind = TIERCE__FAULT_FLIP, .bit = 77});
    ck_assert_int_eq(tier_test_put(1, 1, OBJECT_BYTES), 0);
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_GET, 1);
    ck_assert_int_eq(tier_call_run(&call), 0);
    ck_assert_uint_eq(wrong_bits(call.req.buf, 1, 1), 1);
    tierce__buf_release(call.req.buf);
    tier_test_end();
}
END_TEST

START_TEST(a_full_device_keeps_nothing_of_the_put)
{
    tier_test_start(DISK);
    rule(TIERCE__STORE_PUT,
         &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -ENOSPC, .times = 1});
    ck_assert_int_eq(tier_test_put(1, 1, OBJECT_BYTES), -ENOSPC);
    ck_assert_uint_eq(tier_test_lookup(1, 1), 0);
    ck_assert_int_eq(tier_test_put(1, 1, OBJECT_BYTES), 0);
    ck_assert_uint_eq(tier_test_lookup(1, 1), 1);
    tier_test_end();
}
END_TEST

/* Which of 64 lookups fail under a random rule, as bits. */
static uint64_t hits_of(uint64_t seed, uint32_t per_mille)
{
    struct tierce__fault_rule at_random = {
        .kind = TIERCE__FAULT_ERROR, .status = -EIO, .seed = seed, .per_mille = per_mille};
    rule(TIERCE__STORE_LOOKUP, &at_random);
    uint64_t hits = 0;
    for (unsigned i = 0; i < 64; i++) {
        struct tier_call call;
        tier_call_init(&call, TIERCE__STORE_LOOKUP, 1);
        hits |= (uint64_t)(tier_call_run(&call) == -EIO) << i;
    }
    return hits;
}

START_TEST(a_random_rule_hits_what_its_seed_says)
{
    tier_test_start(MEMORY);
    uint64_t hits = hits_of(7, 500);
    ck_assert_uint_eq(hits_of(7, 500), hits);
    ck_assert_uint_ne(hits_of(8, 500), hits);
    int count = __builtin_popcountll(hits);
    ck_assert_int_gt(count, 10);
    ck_assert_int_lt(count, 54);
    ck_assert_uint_eq(hits_of(7, 0), 0);
    ck_assert_uint_eq(hits_of(7, 1000), UINT64_MAX);
    tier_test_end();
}
END_TEST

START_TEST(a_random_flip_hits_one_bit_of_the_range)
{
    tier_test_start(DISK);
    ck_assert_int_eq(tier_test_put(1, 1, OBJECT_BYTES), 0);
    struct tierce__fault_rule at_random = {
        .kind = TIERCE__FAULT_FLIP, .seed = 1, .per_mille = 1000};
    rule(TIERCE__STORE_GET, &at_random);
    for (unsigned i = 0; i < 20; i++) {
        int status;
        struct tierce__buf *buf = read_range(1, PAGE, 2 * PAGE, &status);
        ck_assert_int_eq(status, 0);
        ck_assert(!tier_test_is_object(buf, 1, 1, PAGE, 2 * PAGE));
        ck_assert(all_stale(buf, 0, PAGE));
        ck_assert(all_stale(buf, 2 * PAGE, OBJECT_BYTES));
        tierce__buf_release(buf);
    }
    tier_test_end();
}
END_TEST

START_TEST(kinds_that_mean_nothing_to_an_operation_let_it_pass)
{
    static const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_FLIP, TIERCE__FAULT_SHORT};
    for (int index = DISK; index <= MEMORY; index++) {
        tier_test_start(index);
        for (size_t k = 0; k < 2; k++) {
            struct tierce__fault_rule what = {.kind = kinds[k], .status = -EIO};
            for (int op = TIERCE__STORE_LOOKUP; op <= TIERCE__STORE_SIBLINGS; op++)
                rule((enum tierce__store_op)op, &what);
            rule(TIERCE__STORE_PUT, NULL);
            ck_assert_int_eq(tier_test_put(1, 1, OBJECT_BYTES), 0);
            ck_assert_uint_eq(tier_test_lookup(1, 1), 1);
            struct tier_call call;
            tier_call_init(&call, TIERCE__STORE_FLUSH, 1);
            ck_assert_int_eq(tier_call_run(&call), 0);
            ck_assert_int_eq(tier_test_delete(1), 0);
            ck_assert_uint_eq(tier_test_lookup(1, 1), 0);
        }
        tier_test_end();
    }
}
END_TEST

static void touch_again(struct tierce__store_req *req)
{
    struct tier_call *call = (struct tier_call *)req->arg;
    tier_test_touch(&call->key, 1);
    atomic_fetch_add(&call->done_count, 1);
}

START_TEST(who_hears_a_late_answer_at_the_close_may_call_the_tier)
{
    tier_test_start(DISK);
    rule(TIERCE__STORE_LOOKUP,
         &(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY, .delay_ms = 60000});
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_LOOKUP, 1);
    call.req.done = touch_again;
    tier_call_submit(&call);
    tier_test_end();
    ck_assert_int_eq(atomic_load(&call.done_count), 1);
}
END_TEST

int main(void)
{
    tier_test_use(factories);
    return CHECK_RUN("fault", .seconds = 60,
                     .tests = {a_short_read_leaves_the_rest_of_the_range_as_it_was,
                               a_bit_flipped_in_a_put_is_wrong_on_the_device_alone,
                               a_bit_flipped_in_a_put_to_memory_is_in_the_buffer_that_is_kept,
                               a_full_device_keeps_nothing_of_the_put,
                               a_random_rule_hits_what_its_seed_says,
                               a_random_flip_hits_one_bit_of_the_range,
                               kinds_that_mean_nothing_to_an_operation_let_it_pass,
                               who_hears_a_late_answer_at_the_close_may_call_the_tier});
}
