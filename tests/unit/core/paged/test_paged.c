/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/paged/paged.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { BLOCKS = 4, BLOCK_BYTES = 300, STRIDE = 320 };

static uint8_t memory[BLOCKS * STRIDE], other[BLOCKS * STRIDE];
/* One more than is described, and valid: a layer out of range must not lead there. */
static struct tierce_paged_layer layers[3];
static struct tierce_paged paged;

static void describe(void)
{
    for (size_t i = 0; i < sizeof(memory); i++)
        memory[i] = (uint8_t)(i * 7 + i / 256);
    memset(other, 0x11, sizeof(other));
    layers[0] = (struct tierce_paged_layer){
        .base = memory, .block_stride = STRIDE, .block_bytes = BLOCK_BYTES};
    layers[1] = (struct tierce_paged_layer){
        .base = other, .block_stride = STRIDE, .block_bytes = BLOCK_BYTES};
    layers[2] = layers[1];
    paged = (struct tierce_paged){
        .size = sizeof(paged), .layers = layers, .layer_count = 2, .block_count = BLOCKS};
}

#define EXPECT_REFUSED(change)                                                                     \
    do {                                                                                           \
        describe();                                                                                \
        ck_assert_int_eq(tierce__paged_check(&paged), 0);                                          \
        change;                                                                                    \
        ck_assert_int_eq(tierce__paged_check(&paged), TIERCE_E_ARGUMENT);                          \
    } while (0)

START_TEST(each_field_of_a_description_is_checked)
{
    ck_assert_int_eq(tierce__paged_check(NULL), TIERCE_E_ARGUMENT);
    EXPECT_REFUSED(paged.size = sizeof(paged) - 1);
    EXPECT_REFUSED(paged.size = 0);
    EXPECT_REFUSED(paged.layers = NULL);
    EXPECT_REFUSED(paged.layer_count = 0);
    EXPECT_REFUSED(paged.block_count = 0);
    EXPECT_REFUSED(layers[1].base = NULL);
    EXPECT_REFUSED(layers[1].block_bytes = 0);
    EXPECT_REFUSED(layers[1].block_stride = BLOCK_BYTES - 1);
    EXPECT_REFUSED(layers[1].block_stride = 0);
    /* Block 3 would start at 2^64 and more, at 2^64 - 1 with its end behind, and behind memory. */
    EXPECT_REFUSED(layers[1].block_stride = UINT64_MAX / 2);
    EXPECT_REFUSED(layers[1].block_stride = UINT64_MAX / 3);
    EXPECT_REFUSED(layers[1].block_stride = (UINT64_MAX - BLOCK_BYTES) / 3);
    describe();
    paged.size = sizeof(paged) + 8; /* a newer caller */
    layers[1].block_stride = BLOCK_BYTES;
    ck_assert_int_eq(tierce__paged_check(&paged), 0);
}
END_TEST

static uint8_t cells[2 * BLOCK_BYTES], untouched_cells[2 * BLOCK_BYTES];
static uint8_t untouched_memory[sizeof(memory)];
static uint64_t sums[2];
static uint8_t good[2];

/* Both directions reject the call and move nothing. */
static void expect_no_move(uint32_t layer, const int32_t *ids, size_t n)
{
    memset(cells, 0xC3, sizeof(cells));
    memset(untouched_cells, 0xC3, sizeof(cells));
    memcpy(untouched_memory, memory, sizeof(memory));
    sums[0] = sums[1] = 42;
    good[0] = good[1] = 1;
    ck_assert_int_eq(
        tierce__paged_gather(&paged, layer, ids, &(struct tierce__cells){cells, sums, n}, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__paged_scatter(&paged, layer, ids,
                                           &(struct tierce__cells){cells, sums, n}, good, NULL),
                     TIERCE_E_ARGUMENT);
    ck_assert_mem_eq(cells, untouched_cells, sizeof(cells));
    ck_assert_mem_eq(memory, untouched_memory, sizeof(memory));
    ck_assert(sums[0] == 42 && sums[1] == 42 && good[0] == 1 && good[1] == 1);
}

START_TEST(hostile_ids_and_layers_move_nothing)
{
    static const int32_t bad_ids[] = {-1, BLOCKS, BLOCKS + 1, INT32_MAX, INT32_MIN, -BLOCKS};
    describe();
    for (size_t i = 0; i < sizeof(bad_ids) / sizeof(bad_ids[0]); i++) {
        expect_no_move(0, (int32_t[]){0, bad_ids[i]}, 2);
        expect_no_move(0, (int32_t[]){bad_ids[i], 0}, 2);
    }
    expect_no_move(2, (int32_t[]){0, 1}, 2);
    expect_no_move(UINT32_MAX, (int32_t[]){0, 1}, 2);
    expect_no_move(0, NULL, 2);
    expect_no_move(0, (int32_t[]){0, 1}, (size_t)INT_MAX + 1);
    layers[0].block_stride = BLOCK_BYTES - 1;
    expect_no_move(0, (int32_t[]){0, 1}, 2);
    describe();
    layers[0].base = NULL;
    expect_no_move(0, (int32_t[]){0, 1}, 2);
}
END_TEST

START_TEST(missing_buffers_are_refused)
{
    describe();
    int32_t ids[2] = {0, 1};
    ck_assert_int_eq(
        tierce__paged_gather(&paged, 0, ids, &(struct tierce__cells){NULL, sums, 2}, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(
        tierce__paged_gather(&paged, 0, ids, &(struct tierce__cells){cells, NULL, 2}, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(
        tierce__paged_gather(NULL, 0, ids, &(struct tierce__cells){cells, sums, 2}, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(
        tierce__paged_scatter(&paged, 0, ids, &(struct tierce__cells){NULL, sums, 2}, good, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(
        tierce__paged_scatter(&paged, 0, ids, &(struct tierce__cells){cells, NULL, 2}, good, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(
        tierce__paged_scatter(&paged, 0, ids, &(struct tierce__cells){cells, sums, 2}, NULL, NULL),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(
        tierce__paged_gather(&paged, 0, NULL, &(struct tierce__cells){NULL, NULL, 0}, NULL), 0);
    ck_assert_int_eq(
        tierce__paged_scatter(&paged, 0, NULL, &(struct tierce__cells){NULL, NULL, 0}, NULL, NULL),
        0);
}
END_TEST

START_TEST(blocks_make_the_way_there_and_back)
{
    describe();
    int32_t ids[2] = {3, 1};
    ck_assert_int_eq(
        tierce__paged_gather(&paged, 0, ids, &(struct tierce__cells){cells, sums, 2}, NULL), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_mem_eq(cells + i * BLOCK_BYTES, memory + ids[i] * STRIDE, BLOCK_BYTES);
        ck_assert_uint_eq(sums[i], XXH3_64bits(cells + i * BLOCK_BYTES, BLOCK_BYTES));
    }
    good[0] = good[1] = 1;
    cells[BLOCK_BYTES + 17] ^= 1;
    ck_assert_int_eq(
        tierce__paged_scatter(&paged, 1, ids, &(struct tierce__cells){cells, sums, 2}, good, NULL),
        1);
    ck_assert_uint_eq(good[0], 1);
    ck_assert_uint_eq(good[1], 0);
    ck_assert_mem_eq(other + 3 * STRIDE, cells, BLOCK_BYTES);
    for (int i = 0; i < BLOCKS; i++)
        for (int j = i == 3 || i == 1 ? BLOCK_BYTES : 0; j < STRIDE; j++)
            ck_assert_uint_eq(other[i * STRIDE + j], 0x11);
}
END_TEST

/* A flag that was 0 before stays 0 when the cell is good: layers of one block share the flag. */
START_TEST(a_good_cell_leaves_its_flag_alone)
{
    describe();
    int32_t ids[2] = {0, 1};
    ck_assert_int_eq(
        tierce__paged_gather(&paged, 0, ids, &(struct tierce__cells){cells, sums, 2}, NULL), 0);
    good[0] = 0;
    good[1] = 1;
    ck_assert_int_eq(
        tierce__paged_scatter(&paged, 1, ids, &(struct tierce__cells){cells, sums, 2}, good, NULL),
        0);
    ck_assert_uint_eq(good[0], 0);
    ck_assert_uint_eq(good[1], 1);
}
END_TEST

/* id * stride above 2^32: the far block exists only as an address inside one sparse mapping. */
START_TEST(far_blocks_are_addressed_in_64_bits)
{
    enum { FAR = 5 };
    uint64_t stride = (uint64_t)1 << 30;
    size_t span = FAR * stride + 4096;
    uint8_t *base = mmap(NULL, span, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    struct tierce_paged_layer layer = {.base = base, .block_stride = stride, .block_bytes = 4096};
    struct tierce_paged far = {
        .size = sizeof(far), .layers = &layer, .layer_count = 1, .block_count = FAR + 1};
    int32_t id = FAR;
    uint64_t sum;
    uint8_t cell[4096];
    memset(base + FAR * stride, 0x5A, 4096);
    ck_assert_int_eq(
        tierce__paged_gather(&far, 0, &id, &(struct tierce__cells){cell, &sum, 1}, NULL), 0);
    ck_assert_mem_eq(cell, base + FAR * stride, 4096);
    munmap(base, span);
}
END_TEST

CHECK_MAIN("paged",
           .tests = {each_field_of_a_description_is_checked, hostile_ids_and_layers_move_nothing,
                     missing_buffers_are_refused, blocks_make_the_way_there_and_back,
                     a_good_cell_leaves_its_flag_alone, far_blocks_are_addressed_in_64_bits})
