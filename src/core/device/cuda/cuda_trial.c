/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_trial.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mix.h"

#define CELLS_MAX (TIERCE__TRIAL_BYTES / TIERCE__TRIAL_CELL_MIN)

/* On a busy device, a copy of this size is slow, but it completes within this time. */
#define COPY_MS 60000u

/* ---- memory -----------------------------------------------------------------------------------
 */

static int alloc_device(struct tierce__cuda *cuda)
{
    int rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    TIERCE__CU_RESULT code = cuda->api->memory_alloc(&cuda->trial_blocks, TIERCE__TRIAL_BYTES);
    if (code != TIERCE__CU_SUCCESS)
        cuda->trial_blocks = 0;
    return tierce__cuda_leave(cuda, code != TIERCE__CU_SUCCESS ? TIERCE_E_UNSUPPORTED : 0);
}

static int alloc_pinned(struct tierce__cuda *cuda)
{
    cuda->trial_cells = tierce__alloc_aligned(TIERCE__PIN_ALIGN, TIERCE__TRIAL_BYTES);
    if (cuda->trial_cells == NULL)
        return -ENOMEM;
    return cuda->base.ops->pin(&cuda->base, cuda->trial_cells, TIERCE__TRIAL_BYTES);
}

int tierce__cuda_trial_init(struct tierce__cuda_trial *trial, struct tierce__cuda *cuda,
                            struct tierce__cuda_kernel *kernel)
{
    *trial = (struct tierce__cuda_trial){.cuda = cuda, .kernel = kernel};
    TIERCE_ASSERT(cuda->trial_blocks == 0 && cuda->trial_cells == NULL);
    trial->sums = tierce__calloc(CELLS_MAX, sizeof(*trial->sums));
    trial->good = tierce__calloc(CELLS_MAX, sizeof(*trial->good));
    trial->ids = tierce__calloc(CELLS_MAX, sizeof(*trial->ids));
    trial->bytes = tierce__alloc(TIERCE__TRIAL_BYTES);
    bool enough =
        trial->sums != NULL && trial->good != NULL && trial->ids != NULL && trial->bytes != NULL;
    int rc = enough ? alloc_device(cuda) : -ENOMEM;
    return rc < 0 ? rc : alloc_pinned(cuda);
}

void tierce__cuda_trial_fini(struct tierce__cuda_trial *trial)
{
    tierce__free(trial->sums);
    tierce__free(trial->good);
    tierce__free(trial->ids);
    tierce__free(trial->bytes);
    *trial = (struct tierce__cuda_trial){0};
}

static int free_device(struct tierce__cuda *cuda)
{
    int rc = tierce__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_check(cuda, "cuMemFree", cuda->api->memory_free(cuda->trial_blocks));
    if (rc == 0)
        cuda->trial_blocks = 0;
    return tierce__cuda_leave(cuda, rc);
}

int tierce__cuda_trial_free(struct tierce__cuda *cuda)
{
    int rc = 0;
    if (tierce__pinned_has(&cuda->pinned, cuda->trial_cells, TIERCE__TRIAL_BYTES))
        rc = cuda->base.ops->unpin(&cuda->base, cuda->trial_cells, TIERCE__TRIAL_BYTES);
    if (rc < 0)
        return rc;
    tierce__free(cuda->trial_cells);
    cuda->trial_cells = NULL;
    return cuda->trial_blocks != 0 ? free_device(cuda) : 0;
}

/* ---- one copy ---------------------------------------------------------------------------------
 */

/* Returns the number of bad cells. */
static int64_t copy(struct tierce__cuda_trial *trial, struct tierce__device_copy *what,
                    enum tierce__direction direction, enum tierce__cuda_way way)
{
    struct tierce__cuda *cuda = trial->cuda;
    struct tierce__device *device = &cuda->base;
    struct tierce__device_event *event = NULL;
    what->stream = tierce__cuda_own_stream(cuda, direction);
    int started = tierce__cuda_transfer(cuda, &event, what, direction, trial->kernel, way);
    if (event == NULL)
        return started;
    int rc = tierce__cuda_wait(device, event, tierce__deadline_in_ms(COPY_MS));
    if (rc == TIERCE_E_DEADLINE) /* a copy that is still in progress belongs to a failed device */
        rc = tierce__cuda_required(cuda, "a copy of the trial", TIERCE__CU_NOT_READY);
    int64_t bad = rc == 0 ? tierce__cuda_settle(device, event, 0, what->count) : rc;
    tierce__cuda_forget(device, event);
    return started < 0 ? started : bad;
}

/* ---- the comparison ---------------------------------------------------------------------------
 */

/* Lengths of the cells, two cells of each length: all algorithms for short inputs, then cells that
 * end inside a stripe, at the end of a block, and after one and two tiles. Most lengths are not
 * multiples of 16. */
static const uint32_t lengths[] = {3, 7, 13, 100, 200, 241, 1000, 4096, 16385, 33000};

enum {
    LENGTHS = sizeof(lengths) / sizeof(lengths[0]),
    CELLS_OF_LENGTH = 2,
};

/* The cells of all lengths, one row for each length. */
struct comparison {
    struct tierce_paged_layer layers[LENGTHS];
    struct tierce_paged paged;
    struct tierce__device_row rows[LENGTHS];
    size_t bytes; /* of all cells */
};

static size_t round_up(size_t bytes)
{
    return (size_t)tierce__round_up(bytes, 16);
}

/* Rows begin at multiples of 16, in both memories. */
static void describe(struct comparison *c, const struct tierce__cuda_trial *trial)
{
    static const int32_t ids[CELLS_OF_LENGTH] = {1, 0};
    uintptr_t block = (uintptr_t)trial->cuda->trial_blocks;
    uint8_t *cell = trial->cuda->trial_cells;
    for (size_t i = 0; i < LENGTHS; i++) {
        size_t first = i * CELLS_OF_LENGTH;
        c->layers[i] = (struct tierce_paged_layer){
            .base = (void *)block, .block_stride = round_up(lengths[i]), .block_bytes = lengths[i]};
        c->rows[i] =
            (struct tierce__device_row){.layer = (uint32_t)i,
                                        .ids = ids,
                                        .cells = {cell, trial->sums + first, CELLS_OF_LENGTH},
                                        .good = trial->good + first};
        block += CELLS_OF_LENGTH * round_up(lengths[i]);
        cell += CELLS_OF_LENGTH * round_up(lengths[i]);
    }
    c->bytes = (size_t)(cell - trial->cuda->trial_cells);
    c->paged = (struct tierce_paged){.size = sizeof(c->paged),
                                     .layers = c->layers,
                                     .layer_count = LENGTHS,
                                     .block_count = CELLS_OF_LENGTH,
                                     .device = TIERCE_DEVICE_CUDA};
    TIERCE_ASSERT(c->bytes <= TIERCE__TRIAL_BYTES && LENGTHS * CELLS_OF_LENGTH <= CELLS_MAX);
}

static void write_cells(struct tierce__cuda_trial *trial, const struct comparison *c)
{
    uint64_t random = 1;
    for (size_t at = 0; at < c->bytes; at += sizeof(random)) {
        uint64_t word = tierce__random_next(&random);
        memcpy(trial->bytes + at, &word, sizeof(word));
    }
    memcpy(trial->cuda->trial_cells, trial->bytes, c->bytes);
    for (size_t i = 0; i < LENGTHS; i++) {
        const struct tierce__cells *cells = &c->rows[i].cells;
        for (size_t k = 0; k < CELLS_OF_LENGTH; k++)
            cells->sums[k] = tierce__sum(cells->bytes + k * lengths[i], lengths[i]);
    }
}

/* Row `i` after a gather. */
static bool is_right(const struct tierce__cuda_trial *trial, const struct comparison *c, size_t i)
{
    const struct tierce__cells *cells = &c->rows[i].cells;
    const uint8_t *want = trial->bytes + (cells->bytes - trial->cuda->trial_cells);
    bool is_same = memcmp(cells->bytes, want, CELLS_OF_LENGTH * (size_t)lengths[i]) == 0;
    for (size_t k = 0; k < CELLS_OF_LENGTH; k++)
        is_same = is_same && cells->sums[k] == tierce__sum(want + k * lengths[i], lengths[i]);
    return is_same;
}

static int find_difference(const struct tierce__cuda_trial *trial, const struct comparison *c,
                           uint32_t *bytes)
{
    for (size_t i = 0; i < LENGTHS; i++) {
        bool is_good = trial->good[i * CELLS_OF_LENGTH] != 0;
        if (is_good && trial->good[i * CELLS_OF_LENGTH + 1] != 0 && is_right(trial, c, i))
            continue;
        *bytes = lengths[i];
        return TIERCE_E_CHECKSUM;
    }
    return 0;
}

int tierce__cuda_trial_compare(struct tierce__cuda_trial *trial, enum tierce__cuda_way way,
                               uint32_t *bytes)
{
    struct comparison c;
    describe(&c, trial);
    struct tierce__device_copy what = {.paged = &c.paged, .rows = c.rows, .count = LENGTHS};
    memset(trial->good, 1, CELLS_MAX);
    write_cells(trial, &c);
    int64_t bad = copy(trial, &what, TIERCE__DIRECTION_SCATTER, way);
    if (bad < 0)
        return (int)bad;
    memset(trial->cuda->trial_cells, 0, c.bytes);
    memset(trial->sums, 0, CELLS_MAX * sizeof(*trial->sums));
    bad = copy(trial, &what, TIERCE__DIRECTION_GATHER, way);
    return bad < 0 ? (int)bad : find_difference(trial, &c, bytes);
}

/* ---- a measured copy --------------------------------------------------------------------------
 */

int64_t tierce__cuda_trial_run(struct tierce__cuda_trial *trial, enum tierce__direction direction,
                               enum tierce__cuda_way way, uint32_t cell_bytes)
{
    enum { ENOUGH = 512 }; /* cells; more show the same speed, and take longer */
    uint32_t cells = (uint32_t)(TIERCE__TRIAL_BYTES / cell_bytes);
    cells = cells < ENOUGH ? cells : ENOUGH;
    struct tierce_paged_layer layer = {.base = (void *)(uintptr_t)trial->cuda->trial_blocks,
                                       .block_stride = cell_bytes,
                                       .block_bytes = cell_bytes};
    struct tierce_paged paged = {.size = sizeof(paged),
                                 .layers = &layer,
                                 .layer_count = 1,
                                 .block_count = cells,
                                 .device = TIERCE_DEVICE_CUDA};
    struct tierce__device_row row = {.ids = trial->ids,
                                     .cells = {trial->cuda->trial_cells, trial->sums, cells},
                                     .good = trial->good};
    struct tierce__device_copy what = {.paged = &paged, .rows = &row, .count = 1};
    TIERCE_ASSERT(cells > 0 && cells <= CELLS_MAX);
    /* The number of cells is a power of two, so that this is a permutation, and blocks are
     * scattered. */
    for (uint32_t i = 0; i < cells; i++)
        trial->ids[i] = (int32_t)((i * 7 + 3) % cells);
    uint64_t start_ns = tierce__now_ns();
    int64_t bad = copy(trial, &what, direction, way);
    return bad < 0 ? bad : (int64_t)(tierce__now_ns() - start_ns);
}
