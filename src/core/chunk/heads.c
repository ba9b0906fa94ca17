/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/heads.h"

#include <string.h>

#include "base/assert.h"
#include "core/paged/paged.h"

/* ---- text ------------------------------------------------------------------------------------ */

#define NUMBER_MAX 1000000u /* above every bound of a geometry */

static bool take_word(const char **at, const char *word)
{
    size_t bytes = strlen(word);
    if (strncmp(*at, word, bytes) != 0)
        return false;
    *at += bytes;
    return true;
}

static bool take_number(const char **at, uint32_t *out)
{
    uint32_t number = 0;
    const char *first = *at;
    if (*first == '0')
        return false;
    for (; **at >= '0' && **at <= '9' && number <= NUMBER_MAX; (*at)++)
        number = number * 10 + (uint32_t)(**at - '0');
    *out = number;
    return *at > first && number <= NUMBER_MAX;
}

static bool take_side(const char **at, struct tierce__heads_side *side)
{
    if (!take_number(at, &side->ranks) || !take_word(at, "x"))
        return false;
    do {
        if (side->stage_count == TIERCE__HEADS_STAGES_MAX ||
            !take_number(at, &side->stage_cells[side->stage_count++]))
            return false;
    } while (take_word(at, "+"));
    return true;
}

int tierce__heads_parse(struct tierce__heads *out, const char *text)
{
    struct tierce__heads read = {0};
    const char *at = text;
    bool is_valid = take_word(&at, "heads=") && take_number(&at, &read.heads) &&
                    take_word(&at, " pieces=") && take_number(&at, &read.pieces) &&
                    take_word(&at, " from=") && take_side(&at, &read.from) &&
                    take_word(&at, " to=") && take_side(&at, &read.to) && *at == '\0';
    if (!is_valid)
        return TIERCE_E_FORMAT;
    *out = read;
    return 0;
}

/* ---- which rank has which heads -------------------------------------------------------------- */

static bool can_divide(const struct tierce__heads *heads, uint32_t ranks)
{
    if (ranks == 0 || heads->heads == 0)
        return false;
    return heads->heads % ranks == 0 || ranks % heads->heads == 0;
}

/* Heads of each rank. */
static uint32_t own_heads(const struct tierce__heads *heads, uint32_t ranks)
{
    return heads->heads > ranks ? heads->heads / ranks : 1;
}

static uint32_t first_head(const struct tierce__heads *heads, uint32_t ranks, uint32_t rank)
{
    return (uint32_t)((uint64_t)rank * heads->heads / ranks);
}

/* The first rank that has the head. */
static uint32_t rank_of(const struct tierce__heads *heads, uint32_t ranks, uint32_t head)
{
    return heads->heads >= ranks ? head / own_heads(heads, ranks) : head * (ranks / heads->heads);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static uint64_t cells_of(const struct tierce__heads_side *side)
{
    uint64_t cells = 0;
    for (uint32_t stage = 0; stage < side->stage_count; stage++)
        cells += side->stage_cells[stage];
    return cells;
}

/* The bytes of a head's part in a piece; 0: the cells do not consist of such parts. */
static uint32_t part_bytes(const struct tierce__heads *heads, const struct tierce__heads_side *side,
                           const struct tierce__geometry *geometry)
{
    uint64_t parts = (uint64_t)heads->pieces * own_heads(heads, side->ranks);
    for (uint32_t layer = 1; layer < geometry->layer_count; layer++)
        if (geometry->cell_bytes[layer] != geometry->cell_bytes[0])
            return 0;
    if (parts == 0 || geometry->cell_bytes[0] % parts != 0)
        return 0;
    return (uint32_t)(geometry->cell_bytes[0] / parts);
}

static bool check_side(const struct tierce__heads *heads, const struct tierce__heads_side *side,
                       const struct tierce__geometry *geometry)
{
    return side->stage_count > 0 && side->stage_count <= TIERCE__HEADS_STAGES_MAX &&
           can_divide(heads, side->ranks) && geometry->layer_count > 0 &&
           cells_of(side) * side->ranks == geometry->layer_count;
}

int tierce__heads_check(const struct tierce__heads *heads, const struct tierce__geometry *from,
                        const struct tierce__geometry *to)
{
    if (from->block_count != to->block_count || from->block_tokens != to->block_tokens ||
        !check_side(heads, &heads->from, from) || !check_side(heads, &heads->to, to) ||
        cells_of(&heads->from) != cells_of(&heads->to))
        return TIERCE_E_UNSUPPORTED;
    uint32_t bytes = part_bytes(heads, &heads->from, from);
    return bytes > 0 && bytes == part_bytes(heads, &heads->to, to) ? 0 : TIERCE_E_UNSUPPORTED;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The cells of one rank for one of the model's layers. */
struct place {
    uint32_t cell; /* in the chunk */
    uint32_t rank;
};

/* `cell`: of the model, counted in the layers of one rank. */
static struct place place_of(const struct tierce__heads_side *side, uint32_t rank, uint32_t cell)
{
    uint32_t before = 0; /* cells of earlier stages, of one rank */
    uint32_t stage = 0;
    while (cell - before >= side->stage_cells[stage]) {
        before += side->stage_cells[stage++];
        TIERCE_DASSERT(stage < side->stage_count);
    }
    return (struct place){before * side->ranks + rank * side->stage_cells[stage] + (cell - before),
                          rank};
}

/* Heads that lie one after the other on both sides, in all blocks of a cell. */
struct run {
    uint8_t *to;
    const uint8_t *from;
    size_t to_step, from_step; /* from piece to piece; pieces of consecutive blocks are alike */
    size_t bytes;
    uint64_t count;
};

static void copy_run(const struct run *run)
{
    uint8_t *to = run->to;
    const uint8_t *from = run->from;
    for (uint64_t i = 0; i < run->count; i++, to += run->to_step, from += run->from_step)
        memcpy(to, from, run->bytes);
}

struct chunk {
    uint8_t *to;                           /* the first cell */
    const uint8_t *from;                   /* the first cell */
    uint32_t blocks, to_bytes, from_bytes; /* of a cell */
};

/* All blocks of one cell of `to`. */
static void fill_cells(const struct tierce__heads *h, const struct chunk *chunk, struct place at,
                       uint32_t cell)
{
    uint32_t to_own = own_heads(h, h->to.ranks), from_own = own_heads(h, h->from.ranks);
    size_t part = chunk->to_bytes / ((size_t)h->pieces * to_own);
    uint32_t first = first_head(h, h->to.ranks, at.rank), done = 0;
    uint8_t *to = chunk->to + (size_t)at.cell * chunk->to_bytes * chunk->blocks;
    while (done < to_own) {
        uint32_t rank = rank_of(h, h->from.ranks, first + done);
        uint32_t skip = first + done - first_head(h, h->from.ranks, rank);
        uint32_t heads = from_own - skip < to_own - done ? from_own - skip : to_own - done;
        size_t source = place_of(&h->from, rank, cell).cell;
        TIERCE_DASSERT(skip < from_own && heads > 0);
        copy_run(&(struct run){.to = to + done * part,
                               .from = chunk->from + source * chunk->from_bytes * chunk->blocks +
                                       skip * part,
                               .to_step = to_own * part,
                               .from_step = from_own * part,
                               .bytes = heads * part,
                               .count = (uint64_t)h->pieces * chunk->blocks});
        done += heads;
    }
}

void tierce__heads_convert(uint8_t *to, const struct tierce__geometry *to_geometry,
                           const uint8_t *from, const struct tierce__geometry *from_geometry,
                           const struct tierce__heads *heads)
{
    TIERCE_ASSERT(tierce__heads_check(heads, from_geometry, to_geometry) == 0);
    const struct chunk chunk = {.to = to + tierce__chunk_layer_offset(to_geometry, 0),
                                .from = from + tierce__chunk_layer_offset(from_geometry, 0),
                                .blocks = to_geometry->block_count,
                                .to_bytes = to_geometry->cell_bytes[0],
                                .from_bytes = from_geometry->cell_bytes[0]};
    uint32_t cells = (uint32_t)cells_of(&heads->to);
    for (uint32_t rank = 0; rank < heads->to.ranks; rank++) {
        for (uint32_t cell = 0; cell < cells; cell++) {
            struct place at = place_of(&heads->to, rank, cell);
            const uint8_t *bytes = chunk.to + (size_t)at.cell * chunk.to_bytes * chunk.blocks;
            uint64_t *sums = tierce__chunk_sums(to, to_geometry, at.cell);
            fill_cells(heads, &chunk, at, cell);
            for (uint32_t block = 0; block < chunk.blocks; block++)
                sums[block] = tierce__sum(bytes + (size_t)block * chunk.to_bytes, chunk.to_bytes);
        }
    }
}
