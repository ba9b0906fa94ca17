/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "test_random.h"

#include <string.h>

/* Compares the siblings that a tier reports with the chunks that can be found in it. */

enum { KEYS = 40, FAMILIES = 4, STEPS = TEST_ROUNDS(600), BYTES = 64 << 10 };

/* Chunk n begins with the block of family n % FAMILIES; every other one lies in the second
 * namespace, or belongs to another shard. */
static struct tierce__key key_of(uint64_t n)
{
    struct tierce__key key = tier_test_key(n);
    if (n % 3 == 1)
        key.ns = tier_test.ns_other;
    if (n % 3 == 2)
        key.shard = (struct tierce_shard){1, 2, 0, 1};
    return key;
}

static void first_of(uint8_t first[TIERCE_HASH_BYTES], uint64_t n)
{
    memset(first, (int)(0x40 + n % FAMILIES), TIERCE_HASH_BYTES);
}

static int put_key(uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_PUT, n);
    call.key = key_of(n);
    first_of(call.first_block, n);
    call.req.parent = NULL;
    call.req.block_count = (uint32_t)n + 1;
    call.req.buf = tier_test_object(n, 1, BYTES);
    call.req.object_bytes = BYTES;
    if (call.req.buf == NULL)
        return TIERCE_E_FULL;
    int rc = tier_call_run(&call);
    tierce__buf_release(call.req.buf);
    return rc;
}

static int run_on(enum tierce__store_op op, uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, op, n);
    call.key = key_of(n);
    return tier_call_run(&call);
}

static bool is_found(uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_LOOKUP, n);
    call.key = key_of(n);
    ck_assert_int_eq(tier_call_run(&call), 0);
    return call.req.found == 1;
}

/* order[0 .. count): the chunks that were put and can be found, the newest first. */
static void check_family(const uint64_t *order, size_t count, uint64_t n)
{
    struct tierce__sibling got[TIERCE__SIBLINGS_MAX];
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_SIBLINGS, n);
    call.key = key_of(n);
    first_of(call.key.hash, n);
    call.req.siblings = got;
    ck_assert_int_eq(tier_call_run(&call), 0);
    size_t at = 0;
    for (size_t i = 0; i < count && at < TIERCE__SIBLINGS_MAX; i++) {
        if (order[i] % FAMILIES != n % FAMILIES || order[i] % 3 != n % 3)
            continue;
        struct tierce__key key = key_of(order[i]);
        ck_assert_msg(at < call.req.found, "chunk %u is not named", (unsigned)order[i]);
        ck_assert_mem_eq(&got[at].key, &key, sizeof(key));
        ck_assert_uint_eq(got[at].object_bytes, BYTES);
        ck_assert_uint_eq(got[at].block_count, order[i] + 1);
        at++;
    }
    ck_assert_uint_eq(call.req.found, at);
}

static void check_all(uint64_t *order, size_t *count)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (is_found(order[i]))
            order[kept++] = order[i];
    }
    *count = kept;
    for (uint64_t n = 0; n < 3 * FAMILIES; n++)
        check_family(order, kept, n);
}

START_TEST(siblings_are_what_is_there)
{
    struct test_random random = test_random_start("tier siblings");
    uint64_t order[KEYS + 1];
    size_t count = 0;
    tier_test_start(_i);
    if (tier_test.shared) {
        tier_test_end();
        return;
    }
    for (unsigned i = 0; i < STEPS; i++) {
        uint64_t n = test_random_below(&random, KEYS);
        uint32_t dice = test_random_below(&random, 1000);
        if (dice < 700) {
            bool there = is_found(n);
            if (put_key(n) == 0 && !there && is_found(n)) {
                memmove(order + 1, order, count * sizeof(order[0]));
                order[0] = n;
                count++;
            }
        } else if (dice < 960) {
            run_on(TIERCE__STORE_DELETE, n);
        } else if (dice < 970) {
            run_on(TIERCE__STORE_HIDE, n);
        } else if (dice < 972) {
            struct tier_call call;
            tier_call_init(&call, TIERCE__STORE_CLEAR, 0);
            ck_assert_int_eq(tier_call_run(&call), 0);
        } else if (tier_test.tier->ops->evict != NULL) {
            tier_test.tier->ops->evict(tier_test.tier, BYTES);
        }
        check_all(order, &count);
    }
    ck_assert_uint_gt(count, 0);
    tier_test_end();
}
END_TEST

void tier_conformance_add_siblings(TCase *tcase, int index)
{
    tcase_add_loop_test(tcase, siblings_are_what_is_there, index, index + 1);
}
