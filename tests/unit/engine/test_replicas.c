/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that all have the same KV: each loads every layer and stores a share of them, so that one
 * that computed on wrong bytes keeps the others from publishing what they computed with it. */
#include "check_main.h"
#include "engine_fixture.h"
#include "test_random.h"

#define RANKS  2u
#define BLOCKS 12u
#define CHUNKS (BLOCKS / FX_CHUNK_BLOCKS)

static struct fixture fx;
static struct rank {
    struct fixture memory; /* only its layers and paged */
    struct tierce_view *all, *share;
    struct tierce_paged shared;
    bool failed; /* to load, in this step */
} ranks[RANKS];

static void open_rank(struct rank *rank, uint32_t index)
{
    static const uint32_t first[] = {0, 1, FX_LAYERS}; /* shares need not be equal */
    struct tierce_namespace ns = fx_namespace();
    struct tierce_shard shard = {0, 1, 0, 1};
    struct tierce_part all = {0, FX_LAYERS, index, RANKS};
    struct tierce_part share = {first[index], first[index + 1] - first[index], index, RANKS};
    struct tierce_engine *engine = fx.view->engine;
    ck_assert_int_eq(tierce_view_open_part(&rank->all, engine, &ns, &shard, &all), 0);
    ck_assert_int_eq(tierce_view_open_part(&rank->share, engine, &ns, &shard, &share), 0);
    for (uint32_t i = 0; i < FX_LAYERS; i++)
        rank->memory.layers[i] =
            (struct tierce_paged_layer){calloc(FX_BLOCKS, 1024), 1024, fx_cells[i]};
    rank->memory.paged = (struct tierce_paged){sizeof(rank->shared), rank->memory.layers, FX_LAYERS,
                                               FX_BLOCKS, TIERCE_DEVICE_HOST};
    rank->shared = rank->memory.paged;
    rank->shared.layers += share.first_layer;
    rank->shared.layer_count = share.layer_count;
}

static void open_ranks(bool disk)
{
    fx_open(&fx, disk, NULL);
    for (uint32_t i = 0; i < RANKS; i++)
        open_rank(&ranks[i], i);
}

static void close_ranks(void)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        tierce_view_close(ranks[i].all);
        tierce_view_close(ranks[i].share);
        for (uint32_t l = 0; l < FX_LAYERS; l++)
            free(ranks[i].memory.layers[l].base);
    }
    fx_close(&fx);
    fx_remove(&fx);
}

static struct tierce_store *begin(struct rank *rank, const struct tierce_chain *chain,
                                  uint64_t write)
{
    struct tierce_transfer_opts what = fx_what(&rank->memory, chain, 0, BLOCKS, fx_ids);
    struct tierce_store *store;
    what.paged = &rank->shared;
    what.write = write;
    ck_assert_int_eq(tierce_store_begin(&store, rank->share, &what), 0);
    return store;
}

static int64_t end(const struct rank *rank, struct tierce_store *store)
{
    if (store == NULL)
        return 0;
    for (uint32_t l = 0; l < rank->shared.layer_count && !rank->failed; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    if (!rank->failed)
        return tierce_store_end(store);
    tierce_store_abort(store);
    return 0;
}

static uint64_t found(const struct tierce_chain *chain)
{
    return fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
}

/* Every rank loads what is found, and all of it is right. */
static void check_loads(const struct tierce_chain *chain, uint64_t blocks)
{
    for (struct rank *rank = ranks; rank < ranks + RANKS && blocks > 0; rank++) {
        fx_wipe(&rank->memory);
        struct tierce_transfer_opts what = fx_what(&rank->memory, chain, 0, blocks, fx_ids);
        ck_assert_int_eq(tierce_load(rank->all, &what, NULL), (int64_t)blocks);
        for (size_t b = 0; b < blocks; b++)
            ck_assert(fx_right(&rank->memory, chain, b, fx_ids[b]));
    }
}

START_TEST(all_load_what_each_has_stored_a_share_of)
{
    open_ranks(_i == 1);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_store *stores[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        fx_fill(&ranks[i].memory, chain, 0, BLOCKS, fx_ids);
        stores[i] = begin(&ranks[i], chain, 5);
    }
    ck_assert_int_eq(end(&ranks[1], stores[1]), 0);
    ck_assert_uint_eq(found(chain), 0);
    ck_assert_int_eq(end(&ranks[0], stores[0]), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).chunks_stored, CHUNKS);
    check_loads(chain, BLOCKS);
    if (_i == 1) {
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        check_loads(chain, BLOCKS);
    }
    /* It equals the chunk of a single rank with all layers. */
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), BLOCKS);
    ck_assert_ptr_null(begin(&ranks[0], chain, 6));
    ck_assert_ptr_null(begin(&ranks[1], chain, 6));
    tierce_chain_destroy(chain);
    close_ranks();
}
END_TEST

/* A step of all ranks: each loads what is found; where one fails, all compute something wrong, for
 * each needs the others' heads, but only the one knows. */
static void compute(struct test_random *random, const struct tierce_chain *chain)
{
    uint64_t there = found(chain);
    bool wrong = false;
    check_loads(chain, there);
    for (struct rank *rank = ranks; rank < ranks + RANKS; rank++) {
        rank->failed = there > 0 && test_random_below(random, 3) == 0;
        wrong |= rank->failed;
    }
    for (struct rank *rank = ranks; rank < ranks + RANKS; rank++) {
        fx_fill(&rank->memory, chain, there, BLOCKS, fx_ids);
        for (uint64_t b = there; wrong && b < BLOCKS; b++)
            memset((uint8_t *)rank->memory.layers[FX_LAYERS - 1].base + (size_t)fx_ids[b] * 1024,
                   0xee, fx_cells[FX_LAYERS - 1]);
    }
}

START_TEST(what_was_computed_on_a_failed_load_is_not_published)
{
    open_ranks(_i == 1);
    struct test_random random = test_random_start("replicas");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    uint64_t published = 0, kept_back = 0;
    for (uint64_t write = 1; write < TEST_ROUNDS(200u) * test_scale(); write++) {
        struct tierce_transfer_opts prefix = fx_what(&fx, chain, 0, FX_CHUNK_BLOCKS, fx_ids);
        fx_fill(&fx, chain, 0, FX_CHUNK_BLOCKS, fx_ids);
        ck_assert_int_ge(tierce_store(fx.view, &prefix), 0);
        compute(&random, chain);
        struct tierce_store *stores[RANKS];
        uint32_t first = (uint32_t)test_random_below(&random, RANKS);
        bool overlap = test_random_below(&random, 2) == 0;
        int64_t blocks = 0;
        for (uint32_t n = 0; n < RANKS; n++) {
            struct rank *rank = &ranks[(first + n) % RANKS];
            stores[n] = begin(rank, chain, write);
            blocks += overlap ? 0 : end(rank, stores[n]);
        }
        for (uint32_t n = 0; n < RANKS && overlap; n++)
            blocks += end(&ranks[(first + n) % RANKS], stores[n]);
        bool good = !ranks[0].failed && !ranks[1].failed;
        ck_assert_int_eq(blocks, good ? BLOCKS - FX_CHUNK_BLOCKS : 0);
        ck_assert_uint_eq(found(chain), good ? BLOCKS : FX_CHUNK_BLOCKS);
        check_loads(chain, found(chain));
        *(good ? &published : &kept_back) += 1;
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    }
    ck_assert(published > 0 && kept_back > 0);
    tierce_chain_destroy(chain);
    close_ranks();
}
END_TEST

CHECK_MAIN("replicas", .seconds = 120,
           .loops = {{all_load_what_each_has_stored_a_share_of, 0, 2},
                     {what_was_computed_on_a_failed_load_is_not_published, 0, 2}})
