/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/chunk/heads.h"
#include "test_random.h"

#include <string.h>

/* Chunks of engines with other numbers of ranks are compared with chunks that are written from the
 * definition, byte by byte: one head after the other, without the arithmetic of the code. */

enum { OBJECT_MAX = 1 << 20, CELLS_MAX = 512, ROUNDS = 400 };

/* A model and the two engines. */
struct world {
    struct tierce__heads heads;
    uint32_t blocks, part; /* part: the bytes of a head in a piece */
    uint64_t seed;
    uint32_t from_bytes[CELLS_MAX], to_bytes[CELLS_MAX];
    struct tierce__chunk_info from, to;
};

static uint8_t *p_chunk, *d_chunk, *model;

static void set_up(void)
{
    p_chunk = malloc(OBJECT_MAX);
    d_chunk = malloc(OBJECT_MAX);
    model = malloc(OBJECT_MAX);
    ck_assert(p_chunk != NULL && d_chunk != NULL && model != NULL);
}

static void tear_down(void)
{
    free(p_chunk);
    free(d_chunk);
    free(model);
}

static uint64_t value_of(const struct world *w, uint32_t cell, uint32_t block, uint32_t piece,
                         uint32_t head)
{
    uint64_t state =
        w->seed ^ ((uint64_t)cell << 40) ^ ((uint64_t)block << 28) ^ ((uint64_t)piece << 12) ^ head;
    return tierce__random_next(&state);
}

static uint8_t *put_head(uint8_t *at, const struct world *w, uint32_t cell, uint32_t block,
                         uint32_t piece, uint32_t head)
{
    uint64_t state = value_of(w, cell, block, piece, head);
    for (uint32_t i = 0; i < w->part; i++)
        *at++ = (uint8_t)tierce__random_next(&state);
    return at;
}

/* The heads [first, end) of a rank, dealt out one by one. */
static void heads_of(uint32_t *first, uint32_t *end, uint32_t heads, uint32_t ranks, uint32_t rank)
{
    if (heads < ranks) { /* each head has so many ranks */
        *first = rank / (ranks / heads);
        *end = *first + 1;
        return;
    }
    *first = heads;
    *end = 0;
    for (uint32_t head = 0; head < heads; head++) {
        if (head / (heads / ranks) != rank)
            continue;
        *first = head < *first ? head : *first;
        *end = head + 1;
    }
}

static uint8_t *put_cell(uint8_t *at, const struct world *w, const struct tierce__heads_side *side,
                         uint32_t rank, uint32_t cell)
{
    uint32_t first, end;
    heads_of(&first, &end, w->heads.heads, side->ranks, rank);
    for (uint32_t block = 0; block < w->blocks; block++)
        for (uint32_t piece = 0; piece < w->heads.pieces; piece++)
            for (uint32_t head = first; head < end; head++)
                at = put_head(at, w, cell, block, piece, head);
    return at;
}

static void put_header(uint8_t *object, const struct tierce__chunk_info *info)
{
    uint8_t hashes[64 * TIERCE_HASH_BYTES];
    ck_assert_uint_le(info->geometry.block_count, 64);
    memset(hashes, 9, sizeof(hashes));
    tierce__chunk_begin(object, info, hashes);
}

/* The chunk of one engine, as its ranks store it. */
static void put_chunk(uint8_t *object, const struct world *w, const struct tierce__heads_side *side,
                      const struct tierce__chunk_info *info)
{
    put_header(object, info);
    uint8_t *at = object + info->extent.header_bytes;
    for (uint32_t stage = 0, first = 0; stage < side->stage_count;
         first += side->stage_cells[stage++])
        for (uint32_t rank = 0; rank < side->ranks; rank++)
            for (uint32_t cell = 0; cell < side->stage_cells[stage]; cell++)
                at = put_cell(at, w, side, rank, first + cell);
    ck_assert_uint_eq((uint64_t)(at - object),
                      info->extent.header_bytes + info->extent.payload_bytes);
    tierce__chunk_sum_cells(object, &info->geometry);
    tierce__chunk_seal(object, info->extent.header_bytes);
}

static void make_info(struct tierce__chunk_info *info, const struct world *w,
                      const struct tierce__heads_side *side, uint32_t *cell_bytes)
{
    uint32_t cells = 0;
    uint32_t own = w->heads.heads > side->ranks ? w->heads.heads / side->ranks : 1;
    for (uint32_t stage = 0; stage < side->stage_count; stage++)
        cells += side->stage_cells[stage] * side->ranks;
    ck_assert_uint_le(cells, CELLS_MAX);
    for (uint32_t i = 0; i < cells; i++)
        cell_bytes[i] = w->heads.pieces * own * w->part;
    *info = (struct tierce__chunk_info){.shard = {0, 1, 0, 1},
                                        .algo = TIERCE_CHAIN_SHA256,
                                        .geometry = {.layer_count = cells,
                                                     .cell_bytes = cell_bytes,
                                                     .block_tokens = 16,
                                                     .block_count = w->blocks}};
    ck_assert_int_eq(tierce__chunk_extent(&info->extent, &info->geometry), 0);
    ck_assert_uint_le(info->extent.object_bytes, OBJECT_MAX);
}

static void make_infos(struct world *w)
{
    make_info(&w->from, w, &w->heads.from, w->from_bytes);
    make_info(&w->to, w, &w->heads.to, w->to_bytes);
}

/* From `from` to `to`: every byte, sum and padding is that of the engine `to`. */
static void check_converted(const struct world *w)
{
    ck_assert_int_eq(tierce__heads_check(&w->heads, &w->from.geometry, &w->to.geometry), 0);
    put_chunk(p_chunk, w, &w->heads.from, &w->from);
    put_chunk(model, w, &w->heads.to, &w->to);
    memset(d_chunk, 0xa5, OBJECT_MAX);
    put_header(d_chunk, &w->to);
    tierce__heads_convert(d_chunk, &w->to.geometry, p_chunk, &w->from.geometry, &w->heads);
    tierce__chunk_seal(d_chunk, w->to.extent.header_bytes);
    ck_assert_mem_eq(d_chunk, model, w->to.extent.object_bytes);
    ck_assert_uint_eq(d_chunk[w->to.extent.object_bytes], 0xa5);
}

static void turn(struct world *w)
{
    struct tierce__heads_side side = w->heads.from;
    w->heads.from = w->heads.to;
    w->heads.to = side;
    make_infos(w);
}

/* There and back again. */
static void check_both_ways(struct world *w)
{
    make_infos(w);
    check_converted(w);
    turn(w);
    check_converted(w);
}

/* All pairs of sizes, of models with one head (MLA) to 16, with copies of heads where there are
 * more ranks than heads; heads outside of tokens (one piece), K and V apart (two), tokens outside
 * (many); parts of fp8, bf16 and float32 elements. */
START_TEST(every_pair_of_sizes)
{
    static const uint32_t parts[] = {5, 16, 64}, pieces[] = {1, 2, 7};
    uint32_t seed = 1;
    for (uint32_t heads = 1; heads <= 16; heads *= 2)
        for (uint32_t p = 1; p <= 16; p *= 2)
            for (uint32_t d = 1; d <= p; d *= 2, seed++) {
                struct world w = {
                    .heads = {.heads = heads,
                              .pieces = pieces[seed % 3],
                              .from = {.ranks = p, .stage_count = 1, .stage_cells = {3}},
                              .to = {.ranks = d, .stage_count = 1, .stage_cells = {3}}},
                    .blocks = 1 + seed % 3,
                    .part = parts[seed / 3 % 3],
                    .seed = seed};
                check_both_ways(&w);
            }
}
END_TEST

static uint32_t random_divisor(struct test_random *random, uint32_t number)
{
    uint32_t divisor = 1 + test_random_below(random, number);
    while (number % divisor != 0)
        divisor--;
    return divisor;
}

/* Stages of one engine for `cells` cells. */
static void random_side(struct test_random *random, struct tierce__heads_side *side, uint32_t heads,
                        uint32_t cells)
{
    *side = (struct tierce__heads_side){0};
    side->ranks = test_random_below(random, 3) > 0 ? random_divisor(random, heads)
                                                   : heads * (1 + test_random_below(random, 3));
    while (cells > 0) {
        uint32_t some = 1 + test_random_below(random, cells);
        side->stage_cells[side->stage_count++] = some;
        cells -= some;
    }
}

START_TEST(random_models)
{
    struct test_random random = test_random_start("test_heads");
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t cells = 1 + test_random_below(&random, 6);
        struct world w = {.heads = {.heads = 1 + test_random_below(&random, 12),
                                    .pieces = 1 + test_random_below(&random, 5)},
                          .blocks = 1 + test_random_below(&random, 4),
                          .part = 1 + test_random_below(&random, 40),
                          .seed = test_random_u64(&random)};
        random_side(&random, &w.heads.from, w.heads.heads, cells);
        random_side(&random, &w.heads.to, w.heads.heads, cells);
        check_both_ways(&w);
    }
}
END_TEST

/* Of an engine with two stages of two ranks each, for one with one rank. */
static struct world two_stages(void)
{
    return (struct world){.heads = {.heads = 4,
                                    .pieces = 2,
                                    .from = {.ranks = 2, .stage_count = 2, .stage_cells = {2, 1}},
                                    .to = {.ranks = 1, .stage_count = 1, .stage_cells = {3}}},
                          .blocks = 2,
                          .part = 8,
                          .seed = 1};
}

static int verdict(const struct world *w)
{
    return tierce__heads_check(&w->heads, &w->from.geometry, &w->to.geometry);
}

START_TEST(chunks_that_do_not_fit)
{
    struct world w = two_stages();
    make_infos(&w);
    ck_assert_int_eq(verdict(&w), 0);
    const struct tierce__heads good = w.heads;
    const struct {
        uint32_t *number;
        uint32_t value;
    } wrong[] = {{&w.heads.heads, 0},
                 {&w.heads.heads, 3},
                 {&w.heads.heads, 1},
                 {&w.heads.heads, 64}, /* the cells are too short for them */
                 {&w.heads.pieces, 0},
                 {&w.heads.pieces, 3},
                 {&w.heads.from.ranks, 0},
                 {&w.heads.from.ranks, 3},
                 {&w.heads.from.ranks, 4},
                 {&w.heads.from.stage_count, 0},
                 {&w.heads.from.stage_count, 1},
                 {&w.heads.from.stage_count, TIERCE__HEADS_STAGES_MAX + 1},
                 {&w.heads.from.stage_cells[1], 2},
                 {&w.heads.to.ranks, 2},
                 {&w.heads.to.stage_cells[0], 2},
                 {&w.to.geometry.block_count, 1},
                 {&w.to.geometry.block_tokens, 32},
                 {&w.to.geometry.layer_count, 2},
                 {&w.from_bytes[4], 16},
                 {&w.to_bytes[2], 32}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint32_t before = *wrong[i].number;
        *wrong[i].number = wrong[i].value;
        ck_assert_msg(verdict(&w) == TIERCE_E_UNSUPPORTED, "row %zu", i);
        *wrong[i].number = before;
        w.heads = good;
        ck_assert_int_eq(verdict(&w), 0);
    }
    w.from_bytes[4] = 16; /* layers of several lengths on both sides */
    w.to_bytes[2] = 32;
    ck_assert_int_eq(verdict(&w), TIERCE_E_UNSUPPORTED);
}
END_TEST

START_TEST(texts)
{
    struct tierce__heads heads;
    ck_assert_int_eq(tierce__heads_parse(&heads, "heads=8 pieces=16 from=2x24+23 to=1x47"), 0);
    ck_assert(heads.heads == 8 && heads.pieces == 16 && heads.from.ranks == 2);
    ck_assert(heads.from.stage_count == 2 && heads.from.stage_cells[1] == 23);
    ck_assert(heads.to.ranks == 1 && heads.to.stage_count == 1 && heads.to.stage_cells[0] == 47);
    static const char *const wrong[] = {"",
                                        "heads=8",
                                        "heads=8 pieces=1 from=2x24",
                                        "heads=8 pieces=1 from=2x24 to=1x24 ",
                                        "heads=8 pieces=1 from=2x24 to=1x24+",
                                        "heads=8 pieces=1 from=2x24 to=1x",
                                        "heads=8  pieces=1 from=2x24 to=1x24",
                                        "heads=08 pieces=1 from=2x24 to=1x24",
                                        "heads=0 pieces=1 from=2x24 to=1x24",
                                        "heads=-8 pieces=1 from=2x24 to=1x24",
                                        "heads=8 pieces=99999999999 from=2x24 to=1x24",
                                        "pieces=1 heads=8 from=2x24 to=1x24"};
    const struct tierce__heads before = heads;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_msg(tierce__heads_parse(&heads, wrong[i]) == TIERCE_E_FORMAT, "%s", wrong[i]);
    char many[1024] = "heads=8 pieces=1 from=2x24 to=1x1";
    for (uint32_t i = 0; i < TIERCE__HEADS_STAGES_MAX; i++)
        strcat(many, "+1");
    ck_assert_int_eq(tierce__heads_parse(&heads, many), TIERCE_E_FORMAT);
    ck_assert_mem_eq(&heads, &before, sizeof(heads));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heads");
    TCase *cases = tcase_create("heads");
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, every_pair_of_sizes);
    tcase_add_test(cases, random_models);
    tcase_add_test(cases, chunks_that_do_not_fit);
    tcase_add_test(cases, texts);
    suite_add_tcase(suite, cases);
    return check_main(suite);
}
