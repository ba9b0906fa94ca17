/* SPDX-License-Identifier: Apache-2.0 */
#include "device_harness.h"

/* The device "cuda" on a GPU, or on the driver of tests/support/cuda: cells of all lengths and
 * alignments, and large copies. Each test runs for each copy method. */

static const char *const kinds[] = {"cuda", "cuda direct", "cuda staged"};
enum { KINDS = 3 };

static void start(int kind)
{
    dh_start_engine(kinds[kind], 0);
    dh_open();
    dh_check_way();
}

/* ---- lengths ----------------------------------------------------------------------------------
 */

enum { ROWS_MAX = 1200, PAIR = 2 };

/* Rows of two cells, one row for each length. */
struct lengths {
    struct tierce_paged_layer layers[ROWS_MAX];
    struct tierce__device_row rows[ROWS_MAX];
    uint64_t sums[ROWS_MAX][PAIR];
    uint8_t good[ROWS_MAX][PAIR];
    struct tierce_paged paged;
    struct tierce__device_copy copy;
    uint8_t *cell; /* where the next row begins in the pool */
    size_t block;  /* and in the memory of the GPU */
};

static struct lengths all;

static void begin_lengths(void)
{
    all = (struct lengths){.cell = dh.pool};
    all.paged =
        (struct tierce_paged){.size = sizeof(all.paged), .layers = all.layers, .block_count = PAIR};
    all.copy =
        (struct tierce__device_copy){.paged = &all.paged, .rows = all.rows, .stream = dh.stream};
    memset(all.good, 1, sizeof(all.good));
}

/* Blocks begin `shift` bytes after a multiple of 16, and cells as many before one. */
static void add_length(uint32_t bytes, size_t shift)
{
    static const int32_t ids[PAIR] = {1, 0};
    size_t r = all.copy.count++, stride = (bytes + 31) / 16 * 16;
    all.layers[r] = (struct tierce_paged_layer){.base = (void *)(dh.memory + all.block + shift),
                                                .block_stride = stride,
                                                .block_bytes = bytes};
    all.rows[r] =
        (struct tierce__device_row){.layer = (uint32_t)r,
                                    .ids = ids,
                                    .cells = {all.cell + (16 - shift) % 16, all.sums[r], PAIR},
                                    .good = all.good[r]};
    all.cell += (16 + PAIR * bytes + 15) / 16 * 16;
    all.block += 16 + PAIR * stride;
    all.paged.layer_count = (uint32_t)all.copy.count;
    ck_assert(r < ROWS_MAX && all.cell <= dh.pool + DH_POOL && all.block <= DH_BYTES);
}

/* The block of a cell, as the mirror has it. */
static uint8_t *mirror_of(size_t r, size_t c)
{
    const struct tierce_paged_layer *layer = &all.layers[r];
    size_t at = (uintptr_t)layer->base - dh.memory;
    return dh.mirror + at + (size_t)all.rows[r].ids[c] * layer->block_stride;
}

static int64_t end_lengths(struct tierce__device_event *event)
{
    ck_assert_int_eq(dh.ops->wait(dh.device, event, DH_DEADLINE), 0);
    int64_t bad = dh.ops->settle(dh.device, event, 0, all.copy.count);
    dh.ops->forget(dh.device, event);
    return bad;
}

/* Cells and sums are those of the blocks. */
static void check_cells(void)
{
    for (size_t r = 0; r < all.copy.count; r++) {
        uint32_t bytes = all.layers[r].block_bytes;
        for (size_t c = 0; c < PAIR; c++) {
            const uint8_t *want = mirror_of(r, c);
            const uint8_t *cell = all.rows[r].cells.bytes + c * bytes;
            ck_assert_msg(memcmp(cell, want, bytes) == 0 &&
                              all.sums[r][c] == XXH3_64bits(want, bytes),
                          "%s: cell %zu of %u bytes", dh.kind, c, bytes);
        }
    }
}

/* Gathers all rows; then scatters them with other bytes, and one wrong sum. */
static void check_lengths(void)
{
    struct tierce__device_event *event;
    size_t last = all.copy.count - 1;
    memset(dh.pool, 0x5A, DH_POOL);
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &all.copy), 0);
    ck_assert_int_eq(end_lengths(event), 0);
    check_cells();
    for (size_t r = 0; r <= last; r++) {
        uint32_t bytes = all.layers[r].block_bytes;
        for (size_t c = 0; c < PAIR; c++) {
            uint8_t *cell = all.rows[r].cells.bytes + c * bytes;
            cell[bytes / 2] ^= 0x55;
            all.sums[r][c] = XXH3_64bits(cell, bytes);
            memcpy(mirror_of(r, c), cell, bytes);
        }
    }
    all.sums[last][1] ^= 1;
    ck_assert_int_eq(dh.ops->scatter(dh.device, &event, &all.copy), 0);
    ck_assert_int_eq(end_lengths(event), 1);
    ck_assert_uint_eq(all.good[last][1], 0);
    dh_check_memory(); /* no byte outside the blocks either */
}

START_TEST(every_short_length)
{
    start(_i);
    begin_lengths();
    for (uint32_t bytes = 1; bytes < ROWS_MAX; bytes++)
        add_length(bytes, 0);
    check_lengths();
    dh_close();
}
END_TEST

/* In other places: each length at one of the offsets from a multiple of 16. */
START_TEST(every_short_length_unaligned)
{
    start(_i);
    begin_lengths();
    for (uint32_t bytes = 1; bytes < ROWS_MAX; bytes += 3)
        add_length(bytes, 1 + bytes % 15);
    check_lengths();
    dh_close();
}
END_TEST

/* Around the ends of stripes, blocks and tiles of XXH3 and of the kernel. */
START_TEST(long_lengths)
{
    static const uint32_t around[] = {2048, 4096, 16384, 17408, 32768, 65536, 100000};
    static const int more[] = {-65, -64, -63, -16, -1, 0, 1, 15, 16, 64, 65};
    start(_i);
    for (size_t shift = 0; shift <= 8; shift += 8) {
        begin_lengths();
        for (size_t i = 0; i < CHECK_COUNT(around); i++) {
            if (all.cell - dh.pool > DH_POOL - (1 << 20)) { /* not enough room for the next ones */
                check_lengths();
                begin_lengths();
            }
            for (size_t j = 0; j < CHECK_COUNT(more) && around[i] < 65536; j++)
                add_length((uint32_t)((int)around[i] + more[j]), shift);
            if (around[i] >= 65536)
                add_length(around[i], shift);
        }
        check_lengths();
    }
    dh_close();
}
END_TEST

/* ---- numbers ----------------------------------------------------------------------------------
 */

/* More than a buffer holds: copies and launches alternate, and cells cross slices. */
START_TEST(a_copy_larger_than_the_buffer)
{
    enum { CELLS = 500, LAYER = 2, BYTES = CELLS * DH_STRIDE, SLICE = 5 << 20, POOL = 8 * SLICE };
    static int32_t ids[CELLS];
    static uint64_t sums[CELLS];
    static uint8_t good[CELLS];
    uint8_t *pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(pool != MAP_FAILED && BYTES + 32 <= POOL && BYTES > 2 * (16 << 20));
    start(_i);
    for (size_t i = 0; i < POOL; i += SLICE)
        ck_assert_int_eq(dh.ops->pin(dh.device, pool + i, SLICE), 0);
    for (int32_t i = 0; i < CELLS; i++)
        ids[i] = i * 7 % DH_BLOCKS;
    memset(good, 1, sizeof(good));
    struct tierce__device_row row = {
        .layer = LAYER, .ids = ids, .cells = {pool + 32, sums, CELLS}, .good = good};
    struct tierce__device_copy copy = {
        .paged = &dh.paged, .rows = &row, .count = 1, .stream = dh.stream};
    struct dh_transfer t = {.copy = copy};
    ck_assert_int_eq(dh_gather(&t), 0);
    for (size_t i = 0; i < CELLS; i++) {
        const uint8_t *want = dh.mirror + dh_at(LAYER, ids[i]);
        ck_assert_mem_eq(row.cells.bytes + i * DH_STRIDE, want, DH_STRIDE);
        ck_assert_uint_eq(sums[i], XXH3_64bits(want, DH_STRIDE));
    }
    for (int32_t id = 0; id < DH_BLOCKS; id++)
        dh_compute(LAYER, id);
    for (size_t i = 0; i < CELLS; i++)
        memcpy(dh.mirror + dh_at(LAYER, ids[i]), row.cells.bytes + i * DH_STRIDE, DH_STRIDE);
    sums[CELLS - 1] ^= 1;
    ck_assert_int_eq(dh_scatter(&t), 1);
    ck_assert_uint_eq(good[CELLS - 1], 0);
    dh_check_memory();
    dh_close();
    munmap(pool, POOL);
}
END_TEST

GPU_MAIN("device_cells", .seconds = 240,
         .loops = {{every_short_length, 0, KINDS},
                   {every_short_length_unaligned, 0, KINDS},
                   {long_lengths, 0, KINDS},
                   {a_copy_larger_than_the_buffer, 0, KINDS}})
