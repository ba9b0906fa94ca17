/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of a prefiller with another number of tensor ranks: the decoder loads the bytes that its
 * own ranks would have computed, or nothing. With TIERCE_TEST_NODE the decoder is a client of a
 * node. */
#include "base/alloc.h"
#include "check_main.h"
#include "engine/handover/handover_other.h"
#include "engine/waterfall.h"
#include "engine_fixture.h"
#include "silent_log.h"

enum {
    HEADS = 4,
    PIECES = 2,
    PART = 64,
    LAYERS = 2,  /* of the model */
    BLOCKS = 10, /* two chunks and a tail of two blocks */
    CELLS_MAX = LAYERS * HEADS,
    CELL_MAX = PIECES * HEADS * PART,
    SESSION = 7,
    LONG_MS = 20000
};

static const char token[] = "0123456789abcdef0123456789abcdef";

/* One engine with the paged memory of all of its ranks. */
struct side {
    uint32_t ranks;
    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce_chain *chain;
    uint32_t cells[CELLS_MAX];
    uint8_t memory[CELLS_MAX][BLOCKS][CELL_MAX];
    struct tierce_paged_layer layers[CELLS_MAX];
    struct tierce_paged paged;
};

static struct side prefiller, decoder;
static struct fixture decoders;    /* its engine */
static struct tierce_view *theirs; /* the prefiller's, of the decoder's engine */
static struct tierce__handover *handover;
static struct tierce__handover_pulled pulled;
static char heads[80];

static uint32_t cell_bytes(const struct side *side)
{
    return PIECES * (HEADS / side->ranks) * PART;
}

static struct tierce_view *open_view(struct side *side, struct tierce_engine *engine)
{
    struct tierce_view *view;
    struct tierce_namespace ns = fx_namespace();
    const struct tierce_shard shard = {0, 1, 0, 1};
    char layout[40];
    snprintf(layout, sizeof(layout), "test of %u ranks", side->ranks);
    for (uint32_t i = 0; i < LAYERS * side->ranks; i++)
        side->cells[i] = cell_bytes(side);
    ns.layout = layout;
    ns.layer_count = LAYERS * side->ranks;
    ns.cell_bytes = side->cells;
    ck_assert_int_eq(tierce_view_open(&view, engine, &ns, &shard), 0);
    return view;
}

static void open_side(struct side *side, uint32_t ranks, struct tierce_engine *engine)
{
    *side = (struct side){.ranks = ranks, .engine = engine};
    side->view = open_view(side, side->engine);
    ck_assert_int_eq(tierce_view_chain(&side->chain, side->view, NULL), 0);
    int32_t tokens[BLOCKS * FX_BLOCK_TOKENS];
    for (int i = 0; i < BLOCKS * (int)FX_BLOCK_TOKENS; i++)
        tokens[i] = i;
    ck_assert_int_ge(tierce_chain_append(side->chain, tokens, BLOCKS * FX_BLOCK_TOKENS, NULL), 0);
    for (uint32_t i = 0; i < LAYERS * ranks; i++)
        side->layers[i] = (struct tierce_paged_layer){
            .base = side->memory[i], .block_stride = CELL_MAX, .block_bytes = cell_bytes(side)};
    side->paged = (struct tierce_paged){.size = sizeof(side->paged),
                                        .layers = side->layers,
                                        .layer_count = LAYERS * ranks,
                                        .block_count = BLOCKS};
}

/* The byte that each engine computes, whatever its ranks. */
static uint8_t byte_of(uint32_t layer, uint32_t block, uint32_t piece, uint32_t head, uint32_t i)
{
    return (uint8_t)((layer * 131 + block * 31 + piece * 17 + head * 7 + i * 3) ^ (head << 6));
}

/* How many bytes of the memory are not those; `fill`: makes them so. */
static size_t compare(struct side *side, uint32_t blocks, bool fill)
{
    size_t wrong = 0;
    uint32_t own = HEADS / side->ranks;
    for (uint32_t cell = 0; cell < LAYERS * side->ranks; cell++)
        for (uint32_t at = 0; at < blocks * cell_bytes(side); at++) {
            uint32_t block = at / cell_bytes(side), in = at % cell_bytes(side);
            uint32_t piece = in / (own * PART), head = in / PART % own;
            uint8_t *byte = &side->memory[cell][block][in];
            uint8_t right =
                byte_of(cell % LAYERS, block, piece, cell / LAYERS * own + head, in % PART);
            if (fill)
                *byte = right;
            wrong += *byte != right;
        }
    return wrong;
}

static struct tierce_transfer_opts what_of(const struct side *side, uint64_t to)
{
    static const int32_t ids[BLOCKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = side->chain,
                                         .to_block = to,
                                         .paged = &side->paged,
                                         .block_ids = ids,
                                         .tail = true};
}

static void open_pair(uint32_t from, uint32_t to)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    static const char *const other[] = {"memory.size", "5MiB", NULL}; /* or it would be shared */
    struct tierce_config *config = fx_config("", NULL);
    silence_log();
    open_side(&prefiller, from, fx_engine(config));
    open_side(&decoder, to, fx_open_engine(&decoders, "", other));
    tierce_config_destroy(config);
    theirs = open_view(&prefiller, decoder.engine);
    ck_assert_uint_eq(compare(&prefiller, BLOCKS, true), 0);
    struct tierce_transfer_opts what = what_of(&prefiller, BLOCKS);
    ck_assert_int_eq(tierce_store(prefiller.view, &what), BLOCKS);
    ck_assert_int_eq(tierce__handover_start(&handover, prefiller.engine, "127.0.0.1", 0, why), 0);
    snprintf(heads, sizeof(heads), "heads=%d pieces=%d from=%ux%d to=%ux%d", HEADS, PIECES, from,
             LAYERS, to, LAYERS);
}

static void close_side(struct side *side)
{
    tierce_chain_destroy(side->chain);
    tierce_view_close(side->view);
}

static void close_pair(void)
{
    tierce_unpin(decoder.view, SESSION);
    ck_assert_uint_eq(fx_stats(&decoders).sessions_now, 0);
    tierce__handover_stop(handover);
    tierce_view_close(theirs);
    close_side(&prefiller);
    close_side(&decoder);
    tierce_engine_close(prefiller.engine);
    fx_close_engine(&decoders);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void offer(void)
{
    ck_assert_int_eq(
        tierce__handover_offer(handover, prefiller.view, prefiller.chain, BLOCKS, token, LONG_MS),
        BLOCKS);
}

static int pull(const char *text)
{
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = tierce__handover_port(handover),
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = LONG_MS};
    const struct tierce__handover_other other = {.view = theirs, .heads = text};
    struct tierce__source *source;
    ck_assert_int_eq(tierce__source_begin(&source, decoder.engine, &from), 0);
    tierce__source_other(source, &other);
    int rc = tierce__source_read(source, decoder.view, decoder.chain, 0, BLOCKS, &pulled);
    struct tierce__handover_pulled ended;
    tierce__source_end(source, &ended);
    return rc;
}

/* Loads `blocks` blocks, which memory holds, and compares each byte. */
static void check_loaded(uint64_t blocks)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .session = SESSION};
    uint8_t origins[BLOCKS];
    ck_assert_int_eq(tierce_lookup(decoder.view, decoder.chain, BLOCKS, &opts, &found), 0);
    ck_assert_uint_eq(found.memory_blocks, blocks);
    if (blocks == 0)
        return;
    struct tierce_transfer_opts what = what_of(&decoder, blocks);
    what.tail = false;
    ck_assert_int_ge(tierce_load(decoder.view, &what, origins), 0);
    ck_assert_uint_eq(compare(&decoder, (uint32_t)blocks, false), 0);
}

START_TEST(other_numbers_of_ranks)
{
    static const uint32_t pairs[][2] = {{2, 1}, {1, 2}, {4, 2}, {1, 4}};
    open_pair(pairs[_i][0], pairs[_i][1]);
    offer();
    ck_assert_int_eq(pull(heads), 0);
    ck_assert_str_eq(pulled.why, "");
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_gt(pulled.bytes, 0);
    check_loaded(BLOCKS);
    offer();
    ck_assert_int_eq(pull(heads), 0); /* all of it is here */
    ck_assert(pulled.blocks == BLOCKS && pulled.bytes == 0);
    close_pair();
}
END_TEST

/* The decoder's memory has them, because they were pushed: the offer is not even open. */
START_TEST(chunks_that_were_pushed_are_not_read)
{
    open_pair(2, 1);
    struct tierce_transfer_opts what = what_of(&prefiller, BLOCKS);
    ck_assert_int_eq(tierce_store(theirs, &what), BLOCKS);
    ck_assert_int_eq(pull(heads), 0);
    ck_assert_str_eq(pulled.why, "");
    ck_assert(pulled.blocks == BLOCKS && pulled.bytes == 0);
    check_loaded(BLOCKS);
    close_pair();
}
END_TEST

/* The prefiller's second chunk. */
static struct tierce__buf *second_chunk(struct tierce__key *key)
{
    struct tierce__keys keys;
    ck_assert_int_eq(
        tierce__keys_init(&keys, prefiller.view, prefiller.chain, BLOCKS, BLOCKS, true), 0);
    *key = keys.keys[1];
    tierce__keys_fini(&keys);
    struct tierce__buf *buf = tierce__storage_lease(prefiller.engine, key);
    ck_assert_ptr_nonnull(buf);
    return buf;
}

/* A cell of one rank is damaged: the chunk does not become one of this engine. */
START_TEST(a_damaged_rank)
{
    struct tierce__key key;
    open_pair(4, 2);
    offer();
    struct tierce__buf *buf = second_chunk(&key);
    buf->data[prefiller.view->full.extent.header_bytes + 3 * cell_bytes(&prefiller)] ^= 1;
    tierce__buf_release(buf);
    ck_assert_int_eq(pull(heads), 0);
    ck_assert_int_eq(pulled.status, TIERCE_E_CHECKSUM);
    ck_assert_uint_eq(pulled.blocks, FX_CHUNK_BLOCKS);
    check_loaded(FX_CHUNK_BLOCKS);
    close_pair();
}
END_TEST

/* Room for three chunks: the prefiller's chunks that are requested ahead leave room for those of
 * this engine. */
START_TEST(a_memory_that_is_nearly_full)
{
    enum { ROOM = 3, HELD_MAX = 4096 };
    static struct tierce__buf *held[HELD_MAX];
    size_t count = 0;
    open_pair(2, 1);
    offer();
    uint64_t bytes = prefiller.view->full.extent.object_bytes,
             own = decoder.view->full.extent.object_bytes;
    bytes = bytes > own ? bytes : own;
    while (count < HELD_MAX && (held[count] = tierce__storage_alloc(decoder.engine, bytes)) != NULL)
        count++;
    ck_assert(count > ROOM && count < HELD_MAX);
    size_t large = count;
    while (count < HELD_MAX && (held[count] = tierce__storage_alloc(decoder.engine, 8)) != NULL)
        count++;
    ck_assert_uint_lt(count, HELD_MAX);
    for (size_t i = large / 2; i < large / 2 + ROOM; i++) {
        tierce__buf_release(held[i]);
        held[i] = NULL;
    }
    ck_assert_int_eq(pull(heads), 0);
    ck_assert_uint_ge(pulled.blocks, 2 * FX_CHUNK_BLOCKS);
    while (count > 0)
        tierce__buf_release(held[--count]);
    check_loaded(2 * FX_CHUNK_BLOCKS);
    close_pair();
}
END_TEST

START_TEST(a_prefiller_that_has_nothing)
{
    open_pair(2, 1);
    offer();
    tierce__handover_withdraw(handover, token);
    ck_assert_int_eq(pull(heads), 0);
    ck_assert_int_eq(pulled.status, TIERCE_E_REFUSED);
    check_loaded(0);
    close_pair();
}
END_TEST

START_TEST(a_layout_that_does_not_fit)
{
    open_pair(2, 1);
    offer();
    int rc = pull("heads=4"); /* a node answers it as the outcome */
    ck_assert_int_eq(rc < 0 ? rc : pulled.status, TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(pulled.why, "not \"heads=4\""));
    ck_assert_int_eq(pull("heads=3 pieces=2 from=2x2 to=1x2"), 0);
    ck_assert_int_eq(pulled.status, TIERCE_E_UNSUPPORTED);
    ck_assert_str_eq(pulled.why, "the prefiller's chunks cannot be converted for this engine "
                                 "(heads=3 pieces=2 from=2x2 to=1x2); use the same "
                                 "--tensor-parallel-size on both engines");
    check_loaded(0);
    close_pair();
}
END_TEST

/* Clients of a node can write to its memory, also to a chunk that was verified. */
START_TEST(a_header_that_was_overwritten)
{
    struct tierce__key key;
    struct tierce__other other;
    struct tierce__chunk_info info;
    char why[TIERCE__HANDOVER_WHY_BYTES];
    open_pair(2, 1);
    const struct tierce__handover_other of = {.view = theirs, .heads = heads};
    ck_assert_int_eq(tierce__other_init(&other, decoder.view, &of, why), 0);
    struct tierce__buf *buf = second_chunk(&key);
    const struct tierce__extent *extent = &decoder.view->full.extent;
    const struct tierce__other_chunk from = {buf->data, FX_CHUNK_BLOCKS, 77};
    uint8_t *made = aligned_alloc(4096, (extent->object_bytes + 4095) / 4096 * 4096);
    memset(buf->data, 0xff, prefiller.view->full.extent.header_bytes);
    tierce__other_convert(&other, decoder.view, decoder.chain, 1, made, &from);
    ck_assert_int_eq(tierce__chunk_parse(&info, made, extent->object_bytes), 0);
    ck_assert_int_eq(tierce__chunk_verify_cells(made, &info), 0);
    ck_assert_uint_eq(info.created_s, 77);
    free(made);
    tierce__buf_release(buf);
    close_pair();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handover_other");
    TCase *cases = tcase_create("handover_other");
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, other_numbers_of_ranks, 0, 4);
    tcase_add_test(cases, chunks_that_were_pushed_are_not_read);
    tcase_add_test(cases, a_damaged_rank);
    /* it fills the memory of the decoder's own engine */
    if (FX_EMBEDDED(a_memory_that_is_nearly_full) != NULL)
        tcase_add_test(cases, a_memory_that_is_nearly_full);
    tcase_add_test(cases, a_prefiller_that_has_nothing);
    tcase_add_test(cases, a_layout_that_does_not_fit);
    tcase_add_test(cases, a_header_that_was_overwritten);
    suite_add_tcase(suite, cases);
    return check_main(suite);
}
