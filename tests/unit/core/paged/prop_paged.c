/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/paged/paged.h"
#include "paged_random.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/*
 * Random descriptions, ids and damage against a model that moves bytes with memcpy and sums them
 * with libxxhash. The whole memory of the engine is compared after each step, gaps included.
 */

enum { LAYERS = 3, BLOCKS = 12, CELLS_MAX = 16, ROUNDS = 150, BLOCK_BYTES_MAX = 20000 };

struct world {
    struct tierce_paged_layer layers[LAYERS];
    struct tierce_paged paged;
    uint8_t *memory[LAYERS], *model[LAYERS];
    size_t span[LAYERS];
};

/* Short cells, whole cache lines, anything, and cells so large that a scatter of most is
 * streamed. */
static size_t random_length(uint64_t *state)
{
    size_t n = 1 + random_below(state, BLOCK_BYTES_MAX);
    switch (random_below(state, 8)) {
    case 0:
        return 100000 + n;
    case 1:
    case 2:
        return 1 + n % 600;
    case 3:
    case 4:
        return (n + 255) & ~(size_t)255;
    default:
        return n;
    }
}

static void build_world(struct world *w, uint64_t *state)
{
    for (int l = 0; l < LAYERS; l++) {
        size_t bytes = random_length(state), gap = random_below(state, 3) * random_below(state, 70);
        size_t head = random_below(state, 2) * random_below(state, 64);
        /* The last block has no gap behind it: one byte too many is outside the allocation. */
        w->span[l] = head + (BLOCKS - 1) * (bytes + gap) + bytes;
        w->memory[l] = malloc(w->span[l]);
        w->model[l] = malloc(w->span[l]);
        ck_assert(w->memory[l] != NULL && w->model[l] != NULL);
        random_fill(state, w->memory[l], w->span[l]);
        memcpy(w->model[l], w->memory[l], w->span[l]);
        w->layers[l] = (struct tierce_paged_layer){.base = w->memory[l] + head,
                                                   .block_stride = bytes + gap,
                                                   .block_bytes = (uint32_t)bytes};
    }
    w->paged = (struct tierce_paged){.size = sizeof(w->paged),
                                     .layers = w->layers,
                                     .layer_count = LAYERS,
                                     .block_count = BLOCKS};
    ck_assert_int_eq(tierce__paged_check(&w->paged), 0);
}

static void drop_world(struct world *w)
{
    for (int l = 0; l < LAYERS; l++) {
        free(w->memory[l]);
        free(w->model[l]);
    }
}

static uint8_t *model_block(struct world *w, int l, int32_t id)
{
    size_t head = (size_t)((uint8_t *)w->layers[l].base - w->memory[l]);
    return w->model[l] + head + (size_t)id * w->layers[l].block_stride;
}

static void expect_world(const struct world *w)
{
    for (int l = 0; l < LAYERS; l++)
        ck_assert_mem_eq(w->memory[l], w->model[l], w->span[l]);
}

/* Distinct ids in random order. */
static size_t random_ids(int32_t *ids, uint64_t *state)
{
    for (int32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    for (size_t i = BLOCKS - 1; i > 0; i--) {
        size_t j = random_below(state, i + 1);
        int32_t kept = ids[i];
        ids[i] = ids[j];
        ids[j] = kept;
    }
    return random_below(state, BLOCKS + 1);
}

static void gather_round(struct world *w, uint64_t *state, int l, uint8_t *cells, uint64_t *sums,
                         const int32_t *ids, size_t n)
{
    size_t bytes = w->layers[l].block_bytes;
    random_fill(state, cells, n * bytes);
    ck_assert_int_eq(tierce__paged_gather(&w->paged, (uint32_t)l, ids,
                                          &(struct tierce__cells){cells, sums, n}, NULL),
                     0);
    for (size_t i = 0; i < n; i++) {
        ck_assert_mem_eq(cells + i * bytes, model_block(w, l, ids[i]), bytes);
        ck_assert_uint_eq(sums[i], XXH3_64bits(model_block(w, l, ids[i]), bytes));
    }
    expect_world(w);
}

static void scatter_round(struct world *w, uint64_t *state, int l, uint8_t *cells, uint64_t *sums,
                          const int32_t *ids, size_t n)
{
    size_t bytes = w->layers[l].block_bytes;
    uint8_t good[CELLS_MAX], expected[CELLS_MAX];
    int bad = 0;
    random_fill(state, cells, n * bytes);
    for (size_t i = 0; i < n; i++) {
        sums[i] = XXH3_64bits(cells + i * bytes, bytes);
        good[i] = expected[i] = (uint8_t)random_below(state, 2);
        if (random_below(state, 4) == 0) {
            cells[i * bytes + random_below(state, bytes)] ^=
                (uint8_t)(1U << random_below(state, 8));
            expected[i] = 0;
            bad++;
        }
        memcpy(model_block(w, l, ids[i]), cells + i * bytes, bytes);
    }
    ck_assert_int_eq(tierce__paged_scatter(&w->paged, (uint32_t)l, ids,
                                           &(struct tierce__cells){cells, sums, n}, good, NULL),
                     bad);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(good[i], expected[i]);
    expect_world(w);
}

static void run_round(uint64_t *state)
{
    struct world w;
    build_world(&w, state);
    for (int step = 0; step < 4; step++) {
        int32_t ids[BLOCKS];
        uint64_t sums[CELLS_MAX];
        size_t n = random_ids(ids, state), shift = random_below(state, 65);
        int l = (int)random_below(state, LAYERS);
        uint8_t *buffer = malloc(shift + n * w.layers[l].block_bytes + 1);
        ck_assert_ptr_nonnull(buffer);
        if (random_below(state, 2) == 0)
            gather_round(&w, state, l, buffer + shift, sums, ids, n);
        else
            scatter_round(&w, state, l, buffer + shift, sums, ids, n);
        free(buffer);
    }
    drop_world(&w);
}

START_TEST(gather_and_scatter_do_what_the_model_does)
{
    uint64_t state = random_seed("gather and scatter");
    for (int round = 0; round < ROUNDS; round++) {
        unsigned kernels = 0;
        while (tierce__kernel_name(&tierce__copy_kernels, kernels) != NULL)
            kernels++;
        if (!tierce__kernel_force(&tierce__copy_kernels, (unsigned)round % kernels))
            tierce__kernel_force(&tierce__copy_kernels, UINT_MAX);
        run_round(&state);
    }
    tierce__kernel_force(&tierce__copy_kernels, UINT_MAX);
}
END_TEST

CHECK_MAIN("paged properties", .seconds = 30, .tests = {gather_and_scatter_do_what_the_model_does})
