/* SPDX-License-Identifier: Apache-2.0 */
/* Unfull chunks at the ends of prompts: their replacement when the prompt continues. */
#include "check_main.h"
#include "engine_fixture.h"
#include "tier_fault.h"

#include <errno.h>

static struct fixture fx;

/* The second prompt continues the first if `shared` is the first one's length. */
static struct tierce_chain *prompt(uint32_t n, size_t blocks, size_t shared)
{
    return fx_chain(&fx, n * 1000 + 7, blocks, shared);
}

static void end(struct tierce_chain *a, struct tierce_chain *b)
{
    tierce_chain_destroy(a);
    tierce_chain_destroy(b);
    fx_close(&fx);
    fx_remove(&fx);
}

/* Chunks in memory, and on disk once all is written. */
static void expect_chunks(int64_t count)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce_engine_stats stats = fx_stats(&fx);
    ck_assert_int_eq(stats.memory_chunks_now, count);
    ck_assert_int_eq(stats.disk_chunks_now, count);
}

static void expect_loaded(const struct tierce_chain *chain, size_t blocks)
{
    uint8_t origins[FX_BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, fx_ids);
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), (int64_t)blocks);
    for (size_t b = 0; b < blocks; b++)
        ck_assert_msg(fx_right(&fx, chain, b, fx_ids[b]), "block %zu", b);
}

START_TEST(the_chunk_that_completes_a_tail_takes_its_place)
{
    for (size_t tail = 1; tail <= 3; tail++) {
        fx = (struct fixture){0};
        fx_open(&fx, true, NULL);
        struct tierce_chain *a = prompt(1, 4 + tail, 4 + tail), *b = prompt(2, 10, 4 + tail);
        ck_assert_int_eq(fx_store(&fx, a, 4 + tail, fx_ids, true), 4 + (int64_t)tail);
        expect_chunks(2);
        ck_assert_int_eq(fx_store(&fx, b, 10, fx_ids, true), 6);
        expect_chunks(3); /* two whole ones and b's own tail */
        ck_assert_uint_eq(fx_found(&fx, a, 4 + tail, 0, 0, NULL), 4 + tail);
        expect_loaded(a, 4 + tail);
        expect_loaded(b, 10);
        end(a, b);
    }
}
END_TEST

START_TEST(a_longer_tail_takes_the_place_of_a_shorter_one)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *a = prompt(1, 5, 5), *b = prompt(2, 7, 5);
    ck_assert_int_eq(fx_store(&fx, a, 5, fx_ids, true), 5);
    ck_assert_int_eq(fx_store(&fx, b, 7, fx_ids, true), 3);
    expect_chunks(2);
    expect_loaded(a, 5);
    end(a, b);
}
END_TEST

START_TEST(a_tail_that_a_longer_chunk_begins_with_is_not_stored)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *a = prompt(1, 6, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, b, 8, fx_ids, true), 8);
    ck_assert_int_eq(fx_store(&fx, a, 6, fx_ids, true), 0);
    expect_chunks(2);
    ck_assert_uint_eq(fx_found(&fx, a, 6, 0, 0, NULL), 6);
    end(a, b);
}
END_TEST

START_TEST(the_tail_of_another_prompt_stays)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *a = prompt(1, 7, 5), *b = prompt(2, 8, 5);
    ck_assert_int_eq(fx_store(&fx, a, 7, fx_ids, true), 7);
    ck_assert_int_eq(fx_store(&fx, b, 8, fx_ids, true), 4);
    expect_chunks(3);
    expect_loaded(a, 7);
    expect_loaded(b, 8);
    end(a, b);
}
END_TEST

/* Many questions about one text, which ends inside a chunk: more than a tier names at once. */
START_TEST(many_tails_with_one_beginning)
{
    enum { PROMPTS = 20 };
    struct tierce_chain *chains[PROMPTS];
    fx_open(&fx, true, NULL);
    for (uint32_t n = 0; n < PROMPTS; n++) {
        struct tierce_chain *shorter;
        chains[n] = prompt(n + 1, 8, 5);
        ck_assert_int_eq(tierce_view_chain(&shorter, fx.view, NULL), 0);
        for (size_t i = 0; i < 7 * FX_BLOCK_TOKENS; i++) {
            uint32_t s = i < 5 * FX_BLOCK_TOKENS ? 7 : (n + 1) * 1000 + 7;
            int32_t token = (int32_t)((s * 2654435761u + i * 40503u) & 0xffff);
            ck_assert_int_ge(tierce_chain_append(shorter, &token, 1, NULL), 0);
        }
        ck_assert_int_eq(fx_store(&fx, shorter, 7, fx_ids, true), n == 0 ? 7 : 3);
        tierce_chain_destroy(shorter);
    }
    expect_chunks(1 + PROMPTS);
    for (uint32_t n = 0; n < PROMPTS; n++)
        ck_assert_int_eq(fx_store(&fx, chains[n], 8, fx_ids, true), 4);
    expect_chunks(1 + PROMPTS);
    for (uint32_t n = 0; n < PROMPTS; n++) {
        expect_loaded(chains[n], 8);
        tierce_chain_destroy(chains[n]);
    }
    end(NULL, NULL);
}
END_TEST

START_TEST(without_siblings_a_tail_is_found_only_as_itself)
{
    const char *sets[] = {"chunk.siblings", "false", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *a = prompt(1, 7, 7), *b = prompt(2, 8, 7);
    ck_assert_int_eq(fx_store(&fx, a, 7, fx_ids, true), 7);
    ck_assert_int_eq(fx_store(&fx, b, 8, fx_ids, true), 4);
    expect_chunks(3);
    ck_assert_uint_eq(fx_found(&fx, a, 7, 0, 0, NULL), 7);
    end(a, b);
}
END_TEST

/* It was replaced, not lost: no event reports a deletion. */
START_TEST(a_tail_that_was_replaced_is_no_miss)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 7, 7), *b = prompt(2, 8, 7);
    ck_assert_int_eq(fx_store(&fx, a, 7, fx_ids, true), 7);
    ck_assert_int_eq(fx_store(&fx, b, 8, fx_ids, true), 4);
    while (fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, 1) > 0)
        ;
    ck_assert_int_eq(fx_store(&fx, b, 4, fx_ids, true), 4);
    ck_assert_uint_eq(fx_found(&fx, a, 7, 0, 0, NULL), 4);
    ck_assert_int_eq(fx_stats(&fx).misses_deleted, 0);
    end(a, b);
}
END_TEST

START_TEST(a_chunk_that_memory_rejects_leaves_the_tail)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 7, 7), *b = prompt(2, 8, 7);
    ck_assert_int_eq(fx_store(&fx, a, 7, fx_ids, true), 7);
    struct tierce__tier *memory = fx_wrap(&fx, 0);
    tierce__fault_set(
        memory, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_FULL});
    ck_assert_int_eq(fx_store(&fx, b, 8, fx_ids, true), 0);
    tierce__fault_set(memory, TIERCE__STORE_PUT, NULL);
    expect_loaded(a, 7);
    end(a, b);
}
END_TEST

/* ---- in a remote store ---- */

static char shared[64];

static void open_beside(void)
{
    char url[96];
    if (shared[0] == '\0') {
        snprintf(shared, sizeof(shared), "/tmp/tierce-test-XXXXXX");
        temp_folder_make(shared);
    }
    snprintf(url, sizeof(url), "file://%s", shared);
    const char *sets[] = {"remote.urls", url, "cost.check", "false", NULL};
    fx_open(&fx, false, sets);
}

static void end_beside(struct tierce_chain *a, struct tierce_chain *b)
{
    end(a, b);
    temp_folder_remove(shared);
    shared[0] = '\0';
}

/* Objects in the store once all is written, and deleted, which a flush does not wait for. */
static void expect_shared(unsigned count)
{
    char command[128];
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    snprintf(command, sizeof(command), "test $(find %s -mindepth 3 -type f | wc -l) = %u", shared,
             count);
    while (system(command) != 0) /* else the time of the test is over */
        usleep(1000);
}

/* Each turn of a conversation replaces the tail of the previous turn. */
START_TEST(a_tail_that_this_process_has_sent_is_deleted_there)
{
    open_beside();
    struct tierce_chain *a = prompt(1, 6, 6), *b = prompt(2, 7, 6), *c = prompt(2, 10, 6);
    ck_assert_int_eq(fx_store(&fx, a, 6, fx_ids, true), 6);
    expect_shared(2);
    ck_assert_int_eq(fx_store(&fx, b, 7, fx_ids, true), 3);
    expect_shared(2); /* one whole chunk, and the longer tail */
    ck_assert_int_eq(fx_store(&fx, c, 10, fx_ids, true), 6);
    expect_shared(3);
    fx_close(&fx);
    open_beside();
    expect_loaded(c, 10);
    tierce_chain_destroy(a);
    end_beside(b, c);
}
END_TEST

/* It is not queried, so nothing is known about chunks that others have sent. */
START_TEST(a_tail_that_is_not_known_stays_there)
{
    open_beside();
    struct tierce_chain *a = prompt(1, 6, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 6, fx_ids, true), 6);
    expect_shared(2);
    fx_close(&fx);
    open_beside();
    ck_assert_int_eq(fx_store(&fx, b, 8, fx_ids, true), 8);
    expect_shared(3);
    end_beside(a, b);
}
END_TEST

CHECK_MAIN("tails", .seconds = 60,
           .tests = {the_chunk_that_completes_a_tail_takes_its_place,
                     a_longer_tail_takes_the_place_of_a_shorter_one,
                     a_tail_that_a_longer_chunk_begins_with_is_not_stored,
                     the_tail_of_another_prompt_stays, many_tails_with_one_beginning,
                     without_siblings_a_tail_is_found_only_as_itself,
                     FX_EMBEDDED(a_tail_that_was_replaced_is_no_miss),
                     FX_EMBEDDED(a_chunk_that_memory_rejects_leaves_the_tail),
                     a_tail_that_this_process_has_sent_is_deleted_there,
                     a_tail_that_is_not_known_stays_there})
