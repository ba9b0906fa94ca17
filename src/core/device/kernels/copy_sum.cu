/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that copies cells and computes their sums in the same pass. tools/build_kernels
 * compiles it to copy_sum.ptx; tests compile it as C (kernel_source.h).
 *
 * How a sum is parallel. XXH3 adds to its lanes within a block of 1,024 bytes, and scrambles them
 * between two blocks. The value that a block adds to a lane does not depend on the lane, so it is
 * computed for all blocks at the same time: 16 stripes of 8 words each. The last stripe of a cell
 * has a key of its own, but is added in the same way, after the stripes of the last block, which is
 * never scrambled. Only the scrambles are a chain: for each block and lane an addition, a shift,
 * two xors and a product, about 30 cycles for 1,024 bytes, at 1.5 GHz about 50 GB/s for one cell.
 *
 * The blocks of the cells of a thread block are one row, which it takes in tiles of 16 blocks, so
 * that all threads are busy with cells of 2 KiB and of 4 MiB. While a tile is being read, other
 * warps work on the tiles before it. In step k
 *
 *     all threads     read tile k, and at the end of the step write it to its destination
 *     64 threads      add up the stripes of tile k - 1: one thread for a block and two lanes
 *     8 threads       chain the blocks of tile k - 2: one thread for a lane
 *     16 threads      fold the lanes of the cells that have ended in tile k - 3
 *
 * Each word is read once, and is both written and summed. The cells of a launch are distributed to
 * the thread blocks round-robin. The number of thread blocks bounds the number of multiprocessors
 * that a launch uses.
 */
#include "core/device/kernels/launch.h"
#include "core/device/kernels/xxh3.h"

enum {
    UNIT_BYTES = 16, /* the bytes that a thread reads at once */
    TILE_BLOCKS = 16,
    BLOCK_UNITS = XXH3_BLOCK_BYTES / UNIT_BYTES,
    BLOCK_ROOM = BLOCK_UNITS + 4, /* blocks begin in different banks of shared memory */
    STRIPE_UNITS = XXH3_STRIPE_BYTES / UNIT_BYTES,
    THREADS = TIERCE__LAUNCH_THREADS,
    THREAD_UNITS = TILE_BLOCKS * BLOCK_UNITS / THREADS,
    /* The first thread of each kind of work: in warps of their own. */
    FIRST_ADDS = 0,
    FIRST_CHAINS = 64,
    FIRST_FOLDS = 96,
};

struct unit {
    uint64_t a, b;
} TIERCE__ALIGNED(UNIT_BYTES);

/* Memory that the threads of a block share. Tile k uses slot k modulo 2 or 4. */
struct shared {
    struct unit tile[2][TILE_BLOCKS][BLOCK_ROOM];
    struct unit last[4][TILE_BLOCKS][STRIPE_UNITS]; /* the last stripe of the cell that ends there */
    uint64_t added[2][TILE_BLOCKS][XXH3_LANES];     /* added by each block; of short cells the sum */
    uint64_t ended[2][TILE_BLOCKS][XXH3_LANES];     /* the lanes of cells that end there */
    uint64_t lanes[XXH3_LANES];                     /* of the cell that the chain is in */
};

/* The row of blocks of one thread block. */
struct row {
    uint32_t first, step; /* cells first, first + step, ... */
    uint32_t cell_blocks; /* of each cell */
    uint32_t blocks;      /* in all */
};

/* The source of a block of the row. */
struct place {
    uint32_t cell, block;
};

TIERCE__DEVICE struct row row_of(uint32_t count, uint32_t bytes, uint32_t index, uint32_t step)
{
    struct row row;
    row.first = index;
    row.step = step;
    row.cell_blocks = (bytes - 1) / XXH3_BLOCK_BYTES + 1;
    row.blocks = count > index ? ((count - index - 1) / step + 1) * row.cell_blocks : 0;
    return row;
}

TIERCE__DEVICE struct place place_of(const struct row *row, uint32_t i)
{
    struct place place;
    place.cell = row->first + i / row->cell_blocks * row->step;
    place.block = i % row->cell_blocks;
    return place;
}

/* ---- reading and writing ----------------------------------------------------------------------
 */

/* Some bytes of a cell, up to a unit. */
struct piece {
    struct unit unit;
    uint32_t cell, offset, bytes;
};

/* Bytes after the end are 0. */
TIERCE__DEVICE struct unit read_bytes(const uint8_t *from, uint32_t n)
{
    struct unit unit;
    unit.a = unit.b = 0;
    TIERCE__ROLLED
    for (uint32_t i = 0; i < n && i < 8; i++)
        unit.a |= (uint64_t)from[i] << (8 * i);
    TIERCE__ROLLED
    for (uint32_t i = 8; i < n; i++)
        unit.b |= (uint64_t)from[i] << (8 * (i - 8));
    return unit;
}

TIERCE__DEVICE uint8_t byte_of(const struct unit *unit, uint32_t i)
{
    return (uint8_t)((i < 8 ? unit->a : unit->b) >> (8 * (i % 8)));
}

TIERCE__DEVICE struct unit read_unit(uint64_t from, uint32_t n)
{
    if (n == UNIT_BYTES && from % UNIT_BYTES == 0)
        return *(const struct unit *)(uintptr_t)from;
    return read_bytes((const uint8_t *)(uintptr_t)from, n);
}

TIERCE__DEVICE void write_unit(uint64_t to, const struct unit *unit, uint32_t n)
{
    if (n == UNIT_BYTES && to % UNIT_BYTES == 0) {
        *(struct unit *)(uintptr_t)to = *unit;
        return;
    }
    TIERCE__ROLLED
    for (uint32_t i = 0; i < n; i++)
        ((uint8_t *)(uintptr_t)to)[i] = byte_of(unit, i);
}

/* Reads unit `u` of a tile, but no bytes after the end of the row or of a cell. */
TIERCE__DEVICE struct piece read_piece(const struct row *row, const uint64_t *from, uint32_t bytes,
                                       uint32_t tile, uint32_t u)
{
    struct piece piece = {{0, 0}, 0, 0, 0};
    uint32_t i = tile * TILE_BLOCKS + u / BLOCK_UNITS;
    if (i >= row->blocks)
        return piece;
    struct place place = place_of(row, i);
    piece.cell = place.cell;
    piece.offset = place.block * XXH3_BLOCK_BYTES + u % BLOCK_UNITS * UNIT_BYTES;
    if (piece.offset < bytes) {
        uint32_t left = bytes - piece.offset;
        piece.bytes = left < UNIT_BYTES ? left : UNIT_BYTES;
        piece.unit = read_unit(from[place.cell] + piece.offset, piece.bytes);
    }
    return piece;
}

/* The bytes of a piece that belong to the last stripe of its cell, up to the end of the cell. */
TIERCE__DEVICE void keep_last(struct shared *shared, const struct row *row,
                              const struct piece *piece, uint32_t bytes)
{
    if (bytes <= XXH3_SHORT_BYTES_MAX || piece->offset + piece->bytes + XXH3_STRIPE_BYTES <= bytes)
        return;
    uint32_t begin = bytes - XXH3_STRIPE_BYTES;
    uint32_t end = (piece->cell - row->first) / row->step * row->cell_blocks + row->cell_blocks - 1;
    uint8_t *last = (uint8_t *)shared->last[end / TILE_BLOCKS % 4][end % TILE_BLOCKS];
    TIERCE__ROLLED
    for (uint32_t i = 0; i < piece->bytes; i++) {
        if (piece->offset + i >= begin)
            last[piece->offset + i - begin] = byte_of(&piece->unit, i);
    }
}

/* ---- sums -------------------------------------------------------------------------------------
 */

/* Adds a stripe to the two lanes of a pair; the key is that of the stripe's first byte. */
TIERCE__DEVICE void add_pair(uint64_t added[2], const struct unit *unit, uint32_t pair,
                             uint32_t key)
{
    added[0] += unit->b + xxh3_product(unit->a, xxh3_key(key + 16 * pair));
    added[1] += unit->a + xxh3_product(unit->b, xxh3_key(key + 16 * pair + 8));
}

/* The values that one block adds to the lanes of a pair. */
TIERCE__DEVICE void add_block(struct shared *shared, const struct row *row, uint32_t bytes,
                              uint32_t tile, uint32_t slot, uint32_t pair)
{
    uint64_t added[2] = {0, 0};
    uint32_t i = tile * TILE_BLOCKS + slot;
    const struct unit *units = shared->tile[tile % 2][slot];
    uint64_t *out = shared->added[tile % 2][slot];
    if (i >= row->blocks)
        return;
    if (bytes <= XXH3_SHORT_BYTES_MAX) {
        if (pair == 0)
            out[0] = xxh3_short((const uint8_t *)units, bytes);
        return;
    }
    uint32_t block = i % row->cell_blocks;
    uint32_t stripes = (bytes - 1) / XXH3_STRIPE_BYTES - block * XXH3_BLOCK_STRIPES;
    for (uint32_t s = 0; s < stripes && s < XXH3_BLOCK_STRIPES; s++)
        add_pair(added, &units[s * STRIPE_UNITS + pair], pair, 8 * s);
    if (block == row->cell_blocks - 1)
        add_pair(added, &shared->last[tile % 4][slot][pair], pair, XXH3_LAST_KEY);
    out[2 * pair] = added[0];
    out[2 * pair + 1] = added[1];
}

/* Takes the blocks of a tile into one lane. */
TIERCE__DEVICE void chain_blocks(struct shared *shared, const struct row *row, uint32_t tile,
                                 uint32_t index)
{
    uint64_t lane = shared->lanes[index];
    for (uint32_t slot = 0; slot < TILE_BLOCKS; slot++) {
        uint32_t i = tile * TILE_BLOCKS + slot;
        if (i >= row->blocks)
            break;
        uint32_t block = i % row->cell_blocks;
        lane = (block == 0 ? xxh3_start[index] : lane) + shared->added[tile % 2][slot][index];
        if (block == row->cell_blocks - 1)
            shared->ended[tile % 2][slot][index] = lane;
        else
            lane = xxh3_scramble(lane, index);
    }
    shared->lanes[index] = lane;
}

/* Writes the sum of the cell that has ended at a slot, if one has. */
TIERCE__DEVICE void fold_cell(const struct shared *shared, const struct row *row, uint32_t bytes,
                              uint64_t sums, uint32_t tile, uint32_t slot)
{
    uint32_t i = tile * TILE_BLOCKS + slot;
    const uint64_t *lanes = shared->ended[tile % 2][slot];
    if (i >= row->blocks || i % row->cell_blocks != row->cell_blocks - 1)
        return;
    uint64_t sum = bytes <= XXH3_SHORT_BYTES_MAX ? lanes[0] - xxh3_start[0]
                                                 : xxh3_finish(lanes, bytes);
    ((uint64_t *)(uintptr_t)sums)[place_of(row, i).cell] = sum;
}

/* ---- the kernel -------------------------------------------------------------------------------
 */

TIERCE__KERNEL(tierce__copy_sum, struct tierce__launch, THREADS)
{
    TIERCE__SHARED struct shared shared;
    const struct row row = row_of(in.count, in.bytes, TIERCE__BLOCK, TIERCE__BLOCKS);
    uint32_t tiles = (row.blocks + TILE_BLOCKS - 1) / TILE_BLOCKS;
    for (uint32_t k = 0; k < tiles + 3; k++) {
        TIERCE__THREADS (t, THREADS) {
            struct piece pieces[THREAD_UNITS];
            for (uint32_t j = 0; j < THREAD_UNITS; j++)
                pieces[j] = read_piece(&row, in.from, in.bytes, k, t + j * THREADS);
            if (k >= 1 && t - FIRST_ADDS < TILE_BLOCKS * STRIPE_UNITS)
                add_block(&shared, &row, in.bytes, k - 1, t / STRIPE_UNITS, t % STRIPE_UNITS);
            if (k >= 2 && t - FIRST_CHAINS < XXH3_LANES)
                chain_blocks(&shared, &row, k - 2, t - FIRST_CHAINS);
            if (k >= 3 && t - FIRST_FOLDS < TILE_BLOCKS)
                fold_cell(&shared, &row, in.bytes, in.sums, k - 3, t - FIRST_FOLDS);
            for (uint32_t j = 0; j < THREAD_UNITS; j++) {
                uint32_t u = t + j * THREADS;
                if (pieces[j].bytes == 0)
                    continue;
                write_unit(in.to[pieces[j].cell] + pieces[j].offset, &pieces[j].unit,
                           pieces[j].bytes);
                shared.tile[k % 2][u / BLOCK_UNITS][u % BLOCK_UNITS] = pieces[j].unit;
                keep_last(&shared, &row, &pieces[j], in.bytes);
            }
        }
        TIERCE__BARRIER();
    }
}
