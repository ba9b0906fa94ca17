/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers: the hits of each kind, compared with a model, and the loads of these hits.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "test_random.h"

#define BLOCKS     32u
#define CHUNKS_MAX BLOCKS

static struct fixture fx;
static struct tierce_view *view;
static const uint32_t layer_numbers[FX_LAYERS] = {0, 3, 4, 7};
static int32_t ids[FX_BLOCKS];

static struct tierce_engine *engine(void)
{
#ifdef TIERCE_TEST_NODE
    return fx.client;
#else
    return fx.engine;
#endif
}

static struct tierce_view *open_group(enum tierce_group group, uint32_t window)
{
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *opened;
    ns.group = group;
    ns.window = window;
    ns.layers = layer_numbers;
    if (group == TIERCE_GROUP_STATE)
        ns.chunk_blocks = 1;
    ck_assert_int_eq(tierce_view_open(&opened, engine(), &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    return opened;
}

static void begin(bool disk)
{
    fx_open(&fx, disk, NULL);
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
}

static void end(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* For the session of look_up. */
static int64_t store(const struct tierce_chain *chain, uint64_t from, uint64_t to)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, from, to, ids);
    what.session = 7;
    fx_fill(&fx, chain, from, to, ids);
    return tierce_store(view, &what);
}

static struct tierce_found look_up(const struct tierce_chain *chain, uint64_t from, uint64_t to,
                                   unsigned flags)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = flags, .session = 7, .from_block = from};
    ck_assert_int_eq(tierce_lookup(view, chain, to, &opts, &found), 0);
    ck_assert(!found.pending);
    return found;
}

/* Loads the blocks that the group needs after `blocks` blocks, and checks every byte. */
static void check_load(const struct tierce_chain *chain, uint64_t blocks)
{
    uint64_t from = tierce_view_needs(view, blocks);
    struct tierce_transfer_opts what = fx_what(&fx, chain, from, blocks, ids);
    what.session = 7;
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(view, &what, NULL), (int64_t)(blocks - from));
    for (uint64_t b = 0; b < blocks; b++) {
        if (b >= from)
            ck_assert(fx_right(&fx, chain, b, ids[b]));
        else
            ck_assert_uint_eq(*((uint8_t *)fx.layers[0].base + b * 1024), 0x5a);
    }
}

/* The first block that the token after `blocks` blocks attends to, found token by token. */
static uint64_t first_needed(enum tierce_group group, uint64_t window, uint64_t blocks)
{
    uint64_t next = blocks * FX_BLOCK_TOKENS, first = next;
    if (group == TIERCE_GROUP_FULL)
        return 0;
    if (group == TIERCE_GROUP_STATE)
        return blocks - 1;
    for (uint64_t token = 0; token < next; token++) {
        bool sees =
            group == TIERCE_GROUP_WINDOW ? next - token < window : token / window == next / window;
        if (sees && token < first)
            first = token;
    }
    return first / FX_BLOCK_TOKENS;
}

static bool can_continue(const bool *held, uint64_t step, uint64_t from, uint64_t blocks)
{
    for (uint64_t b = from; b < blocks; b++) {
        if (!held[b / step])
            return false;
    }
    return true;
}

/* Random chunks are stored, in random order; every lookup is compared with the model. */
START_TEST(a_lookup_finds_where_the_group_can_be_restored)
{
    static const enum tierce_group kinds[] = {TIERCE_GROUP_WINDOW, TIERCE_GROUP_CHUNKED,
                                              TIERCE_GROUP_STATE};
    struct test_random random = test_random_start("groups");
    begin(_i == 1);
    for (unsigned round = 0; round < 12; round++) {
        enum tierce_group kind = kinds[round % 3];
        uint32_t window = kind == TIERCE_GROUP_STATE ? 0 : 1 + test_random_below(&random, 50);
        uint64_t step = kind == TIERCE_GROUP_STATE ? 1 : FX_CHUNK_BLOCKS;
        bool held[CHUNKS_MAX] = {false};
        view = open_group(kind, window);
        struct tierce_chain *chain = fx_chain(&fx, 1000 + round, BLOCKS, 0);
        for (unsigned n = 0; n < BLOCKS / step / 2 + 1; n++) {
            uint64_t chunk = test_random_below(&random, BLOCKS / (uint32_t)step);
            int64_t stored = store(chain, chunk * step, (chunk + 1) * step);
            ck_assert_int_eq(stored, held[chunk] ? 0 : (int64_t)step);
            held[chunk] = true;
        }
        if (_i == 1) {
            ck_assert_int_eq(tierce_engine_flush(engine(), 60000), 0);
            ck_assert_int_ge(tierce_engine_clear(engine(), 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        }
        for (uint64_t to = 0; to <= BLOCKS; to++) {
            uint64_t from = test_random_below(&random, (uint32_t)to + 1), want = to;
            while (want > from && !can_continue(held, step, first_needed(kind, window, want), want))
                want--;
            struct tierce_found found = look_up(chain, from, to, 0);
            ck_assert_uint_eq(found.blocks, want);
            bool is_empty = first_needed(kind, window, want) == want;
            ck_assert_uint_eq(found.memory_blocks, _i == 1 && !is_empty ? from : want);
            ck_assert_uint_eq(tierce_view_needs(view, to),
                              to > 0 ? first_needed(kind, window, to) : 0);
            if (want > from && to % 5 == 0)
                check_load(chain, want);
            if (want > from && to % 5 == 0 && _i == 1)
                ck_assert_int_ge(tierce_engine_clear(engine(), 1u << TIERCE_ORIGIN_MEMORY, NULL),
                                 0);
        }
        tierce_chain_destroy(chain);
        tierce_view_close(view);
    }
    end();
}
END_TEST

/* Equal blocks of different groups are different chunks. */
START_TEST(no_group_loads_the_chunks_of_another)
{
    begin(false);
    struct tierce_view *views[] = {
        fx.view, open_group(TIERCE_GROUP_FULL, 0), open_group(TIERCE_GROUP_WINDOW, 16),
        open_group(TIERCE_GROUP_WINDOW, 17), open_group(TIERCE_GROUP_CHUNKED, 16)};
    size_t count = sizeof(views) / sizeof(views[0]);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    for (size_t i = 0; i < count; i++) {
        view = views[i];
        ck_assert_uint_eq(look_up(chain, 0, 7, 0).blocks, i == count - 1 ? 4 : 0);
        ck_assert_int_eq(store(chain, 0, 8), 8);
        ck_assert_uint_eq(look_up(chain, 0, 7, 0).blocks, 7);
    }
    for (size_t i = 1; i < count; i++)
        tierce_view_close(views[i]);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* Only a group that is used in parts may be stored in parts. */
START_TEST(a_store_from_the_middle_needs_a_group)
{
    begin(false);
    struct tierce_chain *chain = fx_chain(&fx, 1, 12, 0);
    view = fx.view;
    ck_assert_int_eq(store(chain, 4, 8), TIERCE_E_ARGUMENT);
    struct tierce_view *full = view = open_group(TIERCE_GROUP_FULL, 0);
    ck_assert_int_eq(store(chain, 4, 8), TIERCE_E_ARGUMENT);
    tierce_view_close(full);
    struct tierce_view *window = view = open_group(TIERCE_GROUP_WINDOW, 8);
    ck_assert_int_eq(store(chain, 5, 12), 4); /* the chunk of block 5 began before it */
    ck_assert_uint_eq(look_up(chain, 0, 12, 0).blocks, 12);
    ck_assert_uint_eq(look_up(chain, 0, 8, 0).blocks, 0);
    tierce_view_close(window);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* A store uses the chunks from its first block on: an earlier chunk of the prompt keeps its place
 * in the order of eviction. */
START_TEST(a_store_from_the_middle_does_not_use_what_is_before)
{
    begin(false);
    struct tierce_view *window = view = open_group(TIERCE_GROUP_WINDOW, 8);
    struct tierce_chain *chain = fx_chain(&fx, 1, 2 * FX_CHUNK_BLOCKS, 0);
    struct tierce_chain *next = fx_chain(&fx, 2, FX_CHUNK_BLOCKS, 0);
    ck_assert_int_eq(store(chain, 0, FX_CHUNK_BLOCKS), FX_CHUNK_BLOCKS); /* the oldest */
    ck_assert_int_eq(store(next, 0, FX_CHUNK_BLOCKS), FX_CHUNK_BLOCKS);
    ck_assert_int_eq(store(chain, FX_CHUNK_BLOCKS, 2 * FX_CHUNK_BLOCKS), FX_CHUNK_BLOCKS);
    for (uint32_t i = 3; fx_stats(&fx).memory_evictions == 0; i++) {
        struct tierce_chain *filler = fx_chain(&fx, i, FX_CHUNK_BLOCKS, 0);
        ck_assert_int_eq(store(filler, 0, FX_CHUNK_BLOCKS), FX_CHUNK_BLOCKS);
        tierce_chain_destroy(filler);
    }
    ck_assert_uint_eq(look_up(next, 0, FX_CHUNK_BLOCKS, 0).blocks, FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(look_up(chain, 0, FX_CHUNK_BLOCKS, 0).blocks, 0);
    ck_assert_uint_eq(look_up(chain, 0, 2 * FX_CHUNK_BLOCKS, 0).blocks, 2 * FX_CHUNK_BLOCKS);
    tierce_view_close(window);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(next);
    end();
}
END_TEST

/* A lookup pins only the chunks that a load will read. */
START_TEST(pins_are_of_the_window_alone)
{
    begin(false);
    struct tierce_view *window = view = open_group(TIERCE_GROUP_WINDOW, 16);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store(chain, 0, BLOCKS), BLOCKS);
    int64_t before = fx_stats(&fx).pinned_bytes_now;
    ck_assert_uint_eq(look_up(chain, 0, BLOCKS, TIERCE_LOOKUP_PIN).memory_blocks, BLOCKS);
    int64_t pinned = fx_stats(&fx).pinned_bytes_now - before;
    ck_assert_int_gt(pinned, 0);
    view = fx.view;
    ck_assert_int_eq(store(chain, 0, FX_CHUNK_BLOCKS), FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(look_up(chain, 0, FX_CHUNK_BLOCKS, TIERCE_LOOKUP_PIN).memory_blocks,
                      FX_CHUNK_BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now - before, 2 * pinned); /* one chunk each */
    tierce_unpin(fx.view, 7);
    tierce_unpin(window, 7);
    tierce_view_close(window);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* A caller that loads from memory alone is promised only chunks that could be pinned. */
START_TEST(memory_alone_promises_what_is_pinned)
{
    const char *sets[] = {"memory.pins", "0", NULL};
    fx_open(&fx, false, sets);
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
    view = open_group(TIERCE_GROUP_WINDOW, 16);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store(chain, 0, BLOCKS), BLOCKS);
    ck_assert_uint_eq(look_up(chain, 0, BLOCKS, TIERCE_LOOKUP_MEMORY_ONLY).blocks, BLOCKS);
    struct tierce_found found =
        look_up(chain, 4, BLOCKS, TIERCE_LOOKUP_MEMORY_ONLY | TIERCE_LOOKUP_PIN);
    ck_assert_uint_eq(found.blocks, 4);
    ck_assert_uint_eq(found.memory_blocks, 4);
    found = look_up(chain, 4, BLOCKS, TIERCE_LOOKUP_PIN);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    ck_assert_uint_eq(found.memory_blocks, 4);
    tierce_view_close(view);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* A caller that loads from memory alone computes what only the disk holds. Its store then brings it
 * to memory, so that the next request finds it. */
START_TEST(what_memory_lacked_is_stored_there_again)
{
    begin(true);
    view = open_group(TIERCE_GROUP_WINDOW, 16);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store(chain, 16, BLOCKS), 16);
    ck_assert_int_eq(tierce_engine_flush(engine(), 60000), 0);
    ck_assert_int_ge(tierce_engine_clear(engine(), 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    ck_assert_int_eq(store(chain, 16, BLOCKS), 0); /* no lookup has left anything */
    ck_assert_uint_eq(
        look_up(chain, 0, BLOCKS, TIERCE_LOOKUP_MEMORY_ONLY | TIERCE_LOOKUP_PIN).blocks, 0);
    ck_assert_int_eq(store(chain, 16, BLOCKS), 16);
    ck_assert_uint_eq(
        look_up(chain, 0, BLOCKS, TIERCE_LOOKUP_MEMORY_ONLY | TIERCE_LOOKUP_PIN).blocks, BLOCKS);
    tierce_unpin(view, 7);
    tierce_view_close(view);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(nothing_of_a_window_counts_as_durable)
{
    uint64_t blocks;
    begin(true);
    view = open_group(TIERCE_GROUP_WINDOW, 16);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store(chain, 0, BLOCKS), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(engine(), 60000), 0);
    ck_assert_int_eq(tierce_durable(view, chain, BLOCKS, &blocks), 0);
    ck_assert_uint_eq(blocks, 0);
    tierce_view_close(view);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* A prefetch brings the window from disk to memory. */
START_TEST(a_window_is_prefetched)
{
    begin(true);
    view = open_group(TIERCE_GROUP_WINDOW, 24);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store(chain, 16, BLOCKS), 16);
    ck_assert_int_eq(tierce_engine_flush(engine(), 60000), 0);
    ck_assert_int_ge(tierce_engine_clear(engine(), 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    ck_assert_uint_eq(look_up(chain, 0, BLOCKS, 0).memory_blocks, 0);
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .flags = TIERCE_PREFETCH_PIN,
                                        .session = 7,
                                        .from_block = tierce_view_needs(view, BLOCKS)};
    struct tierce_prefetch *prefetch;
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, view, chain, BLOCKS, &opts), 0);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, 60000), 0);
    tierce_prefetch_end(prefetch);
    ck_assert_uint_eq(look_up(chain, 0, BLOCKS, 0).memory_blocks, BLOCKS);
    check_load(chain, BLOCKS);
    tierce_view_close(view);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

CHECK_MAIN("groups", .seconds = 120,
           .tests = {no_group_loads_the_chunks_of_another, a_store_from_the_middle_needs_a_group,
                     a_store_from_the_middle_does_not_use_what_is_before,
                     pins_are_of_the_window_alone, memory_alone_promises_what_is_pinned,
                     what_memory_lacked_is_stored_there_again,
                     nothing_of_a_window_counts_as_durable, a_window_is_prefetched},
           .loops = {{a_lookup_finds_where_the_group_can_be_restored, 0, 2}})
