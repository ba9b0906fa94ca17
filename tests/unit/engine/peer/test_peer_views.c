/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of peers in every kind of view: whole prompts, groups of layers, and the parts of ranks.
 * test_peer_views_native has the same between nodes, for their clients. */
#include "peers_fixture.h"

enum {
    BLOCKS = 32,
    MIDDLE = BLOCKS - FX_CHUNK_BLOCKS, /* the chunks before it are with one holder, the last ones
                                          with another */
    PARTS = 2,
    READER = 1,
    OTHER = 2, /* a holder beside engine 0 */
    SESSION = 7,
};

/* The engine whose views the caller opens. */
static struct tierce_engine *engine_of(unsigned i)
{
#ifdef TIERCE_TEST_NODE
    return fx[i].client;
#else
    return fx[i].engine;
#endif
}

static struct tierce_view *open_view(struct tierce_engine *engine,
                                     const struct tierce_namespace *ns,
                                     const struct tierce_part *part)
{
    struct tierce_view *opened;
    const struct tierce_shard shard = {0, 1, 0, 1};
    ck_assert_int_eq(tierce_view_open_part(&opened, engine, ns, &shard, part), 0);
    return opened;
}

static void store_in(unsigned engine, struct tierce_view *view, const struct tierce_chain *chain,
                     uint64_t from, uint64_t to)
{
    struct tierce_transfer_opts what = fx_what(&fx[engine], chain, from, to, fx_ids);
    what.session = SESSION;
    fx_fill(&fx[engine], chain, from, to, fx_ids);
    ck_assert_int_eq(tierce_store(view, &what), (int64_t)(to - from));
}

/* Blocks [from, to) come, and are right. */
static void check_load(struct tierce_view *view, const struct tierce_chain *chain, uint64_t from,
                       uint64_t to)
{
    struct fixture *f = &fx[READER];
    struct tierce_transfer_opts what = fx_what(f, chain, from, to, fx_ids);
    what.session = SESSION;
    fx_wipe(f);
    ck_assert_int_eq(tierce_load(view, &what, NULL), (int64_t)(to - from));
    for (uint64_t b = from; b < to; b++)
        ck_assert(fx_right(f, chain, b, fx_ids[b]));
}

static uint64_t look_up(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to)
{
    struct tierce_found found;
    const struct tierce_lookup_opts opts = {.size = sizeof(opts), .session = SESSION};
    ck_assert_int_eq(tierce_lookup(view, chain, to, &opts, &found), 0);
    return found.blocks;
}

static void begin(unsigned engines)
{
    start_manager(0);
    for (unsigned i = 0; i < engines; i++)
        open_engine(i);
}

static void end(unsigned engines)
{
    for (unsigned i = 0; i < engines; i++)
        has_no_lease(i);
    for (unsigned i = 0; i < engines; i++)
        close_engine(i);
    running_manager_stop(&manager);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- whole prompts --------------------------------------------------------------------------- */

START_TEST(prompts_come_from_memory_and_disk)
{
    begin(2);
    struct tierce_chain *chain = fx_chain(&fx[READER], 1, CHAIN_BLOCKS, 0);
    store(0, 1);
    WAIT_FOR(finds(READER, 1, CHAIN_BLOCKS));
    ck_assert_uint_eq(look_up(fx[READER].view, chain, CHAIN_BLOCKS), CHAIN_BLOCKS);
    check_load(fx[READER].view, chain, 0, CHAIN_BLOCKS);
    ck_assert_uint_eq(read_by(READER).chunks, CHAIN_BLOCKS / FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(kept(0).disk_hits, 0);
    forget_all(READER);
    forget(0, 1u << TIERCE_ORIGIN_MEMORY);
    WAIT_FOR(finds(READER, 1, CHAIN_BLOCKS));
    check_load(fx[READER].view, chain, 0, CHAIN_BLOCKS);
    ck_assert_uint_ge(kept(0).disk_hits, CHAIN_BLOCKS / FX_CHUNK_BLOCKS);
    tierce_chain_destroy(chain);
    end(2);
}
END_TEST

/* ---- groups ---------------------------------------------------------------------------------- */

static const struct {
    enum tierce_group group;
    uint32_t window;
    uint64_t needs;   /* the first block, to continue after BLOCKS */
    uint64_t earlier; /* and after MIDDLE */
    bool needs_both;  /* holders */
} groups[] = {
    {TIERCE_GROUP_WINDOW, 24, 26, 22, true},
    {TIERCE_GROUP_CHUNKED, 48, 24, 24, true},
    {TIERCE_GROUP_STATE, 0, 31, 27, false},
};

static struct tierce_namespace group_namespace(int i)
{
    static const uint32_t layers[FX_LAYERS] = {0, 3, 4, 7};
    struct tierce_namespace ns = fx_namespace();
    ns.group = groups[i].group;
    ns.window = groups[i].window;
    ns.layers = layers;
    if (ns.group == TIERCE_GROUP_STATE)
        ns.chunk_blocks = 1;
    return ns;
}

/* The directory names a holder for each chunk. */
static bool knows_all(const struct tierce_view *view, const struct tierce_chain *chain)
{
    struct tierce__key key = view->key;
    bool knows = has_joined(READER);
    for (size_t end = view->chunk_blocks; knows && end <= BLOCKS; end += view->chunk_blocks) {
        memcpy(key.hash, tierce_chain_hash(chain, end - 1), sizeof(key.hash));
        knows = peers_find(READER, &key, 1) == 1;
    }
    return knows;
}

START_TEST(a_group_is_restored_from_two_holders)
{
    struct tierce_namespace ns = group_namespace(_i);
    struct tierce_view *views[ENGINES];
    begin(ENGINES);
    for (unsigned i = 0; i < ENGINES; i++)
        views[i] = open_view(engine_of(i), &ns, NULL);
    struct tierce_view *inner = open_view(fx[READER].engine, &ns, NULL);
    struct tierce_chain *chain = fx_chain(&fx[READER], 1, BLOCKS, 0);
    store_in(0, views[0], chain, 0, MIDDLE);
    store_in(OTHER, views[OTHER], chain, MIDDLE, BLOCKS);
    WAIT_FOR(knows_all(inner, chain));
    ck_assert_uint_eq(look_up(views[READER], chain, BLOCKS), BLOCKS);
    ck_assert_uint_eq(tierce_view_needs(views[READER], BLOCKS), groups[_i].needs);
    check_load(views[READER], chain, groups[_i].needs, BLOCKS);
    uint64_t chunks = read_by(READER).chunks;
    ck_assert_uint_eq(chunks, groups[_i].needs_both ? 2 : 1);
    ck_assert_uint_gt(kept(OTHER).memory_hits, 0);
    ck_assert_int_eq(kept(0).memory_hits > 0, groups[_i].needs_both);
    forget_all(READER);
    ck_assert_uint_eq(look_up(views[READER], chain, MIDDLE), MIDDLE);
    check_load(views[READER], chain, groups[_i].earlier, MIDDLE);
    ck_assert_uint_gt(kept(0).memory_hits, 0);
    tierce_chain_destroy(chain);
    tierce_view_close(inner);
    for (unsigned i = 0; i < ENGINES; i++)
        tierce_view_close(views[i]);
    end(ENGINES);
}
END_TEST

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The ranks of a model: layer 0, and the other ones. */
struct ranks {
    struct tierce_view *views[PARTS];
    struct tierce_paged paged[PARTS];
};

static void open_ranks(struct ranks *ranks, unsigned engine)
{
    struct tierce_namespace ns = fx_namespace();
    for (uint32_t i = 0; i < PARTS; i++) {
        const struct tierce_part part = {i, i == 0 ? 1 : FX_LAYERS - 1, i, PARTS};
        ranks->views[i] = open_view(engine_of(engine), &ns, &part);
        ranks->paged[i] =
            (struct tierce_paged){sizeof(ranks->paged[i]), fx[engine].layers + part.first_layer,
                                  part.layer_count, FX_BLOCKS, TIERCE_DEVICE_HOST};
    }
}

static void close_ranks(struct ranks *ranks)
{
    for (uint32_t i = 0; i < PARTS; i++)
        tierce_view_close(ranks->views[i]);
}

START_TEST(each_rank_loads_its_layers_of_a_peer_s_chunk)
{
    struct ranks holder, reader;
    begin(2);
    open_ranks(&holder, 0);
    open_ranks(&reader, READER);
    struct tierce_chain *chain = fx_chain(&fx[READER], 1, CHAIN_BLOCKS, 0);
    fx_fill(&fx[0], chain, 0, CHAIN_BLOCKS, fx_ids);
    for (uint32_t i = 0; i < PARTS; i++) {
        struct tierce_transfer_opts what = fx_what(&fx[0], chain, 0, CHAIN_BLOCKS, fx_ids);
        what.paged = &holder.paged[i];
        what.write = SESSION;
        ck_assert_int_eq(tierce_store(holder.views[i], &what), i + 1 == PARTS ? CHAIN_BLOCKS : 0);
    }
    WAIT_FOR(finds(READER, 1, CHAIN_BLOCKS));
    ck_assert_uint_eq(look_up(reader.views[0], chain, CHAIN_BLOCKS), CHAIN_BLOCKS);
    fx_wipe(&fx[READER]);
    for (uint32_t i = 0; i < PARTS; i++) {
        struct tierce_transfer_opts what = fx_what(&fx[READER], chain, 0, CHAIN_BLOCKS, fx_ids);
        what.paged = &reader.paged[i];
        ck_assert_int_eq(tierce_load(reader.views[i], &what, NULL), CHAIN_BLOCKS);
    }
    for (uint64_t b = 0; b < CHAIN_BLOCKS; b++)
        ck_assert(fx_right(&fx[READER], chain, b, fx_ids[b]));
    ck_assert_uint_gt(kept(0).memory_hits, 0);
    tierce_chain_destroy(chain);
    close_ranks(&holder);
    close_ranks(&reader);
    end(2);
}
END_TEST

CHECK_MAIN("peer_views", .seconds = 120,
           .tests = {prompts_come_from_memory_and_disk,
                     each_rank_loads_its_layers_of_a_peer_s_chunk},
           .loops = {{a_group_is_restored_from_two_holders, 0, sizeof(groups) / sizeof(*groups)}})
