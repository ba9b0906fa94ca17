/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_DEVICE_HARNESS_H
#define TIERCE_TESTS_DEVICE_HARNESS_H

#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "core/device/cuda/cuda_ways.h"
#include "core/device/device.h"
#include "gpu.h"
#include "test_random.h"

#include <sys/mman.h>
#include <xxhash.h>

/*
 * An inference engine with paged KV on a device, and a pool of pinned memory: for tests of one kind
 * of device or of all. The layers have blocks of different sizes, and lie in one allocation. A
 * mirror holds the expected value of every byte.
 */

/* A test with many processes may define a smaller number. */
#ifndef DH_BLOCK_COUNT
#define DH_BLOCK_COUNT 24
#endif

enum {
    DH_LAYERS = 4,
    DH_BLOCKS = DH_BLOCK_COUNT,
    DH_STRIDE = 72 << 10,
    DH_LAYER_BYTES = DH_BLOCKS * DH_STRIDE,
    DH_BYTES = DH_LAYERS * DH_LAYER_BYTES,
    DH_SLICE = 1 << 20, /* two slices; some cells cross their boundary */
    DH_POOL = 2 * DH_SLICE,
};

struct dh {
    const char *kind;
    const struct tierce__device_ops *ops;
    struct tierce__device *device;
    bool is_cuda;
    TIERCE__CU_STREAM stream;
    uintptr_t memory; /* the layers, where the device has them */
    uint8_t *mirror;
    uint8_t
        *now; /* for dh_check_memory: fresh memory of this size takes longer than a comparison */
    uint8_t *pool;
    struct tierce_paged_layer layers[DH_LAYERS];
    struct tierce_paged paged;
    struct test_random random;
};

static struct dh dh;

static const uint32_t dh_block_bytes[DH_LAYERS] = {1000, 64 << 10, DH_STRIDE, 240};

#define DH_DEADLINE tierce__deadline_in_ms(120000)

/* ---- the engine -------------------------------------------------------------------------------
 */

static inline void dh_start_cuda(int ordinal)
{
    gpu_start(test_random_u64(&dh.random), ordinal);
    dh.stream = gpu.stream;
    dh.memory = gpu_alloc(DH_BYTES);
    gpu_write(dh.memory, dh.mirror, DH_BYTES);
}

/* The engine writes to its memory, on its stream. */
static inline void dh_write(size_t at, const void *bytes, size_t n)
{
    ck_assert_uint_le(at + n, DH_BYTES);
    memcpy(dh.mirror + at, bytes, n);
    if (dh.is_cuda)
        gpu_write(dh.memory + at, bytes, n);
    else
        memcpy((void *)(dh.memory + at), bytes, n);
}

/* All of the engine's memory equals the mirror. */
static inline void dh_check_memory(void)
{
    uint8_t *now = dh.now;
    if (dh.is_cuda)
        gpu_read(now, dh.memory, DH_BYTES);
    else
        memcpy(now, (void *)dh.memory, DH_BYTES);
    for (size_t i = 0; memcmp(now, dh.mirror, DH_BYTES) != 0 && i < DH_BYTES; i++)
        ck_assert_msg(now[i] == dh.mirror[i], "%s: byte %zu is %u, not %u", dh.kind, i, now[i],
                      dh.mirror[i]);
}

static inline size_t dh_at(uint32_t layer, int32_t id)
{
    return (size_t)layer * DH_LAYER_BYTES + (size_t)id * DH_STRIDE;
}

/* The engine computes a block of a layer. Whole words: a sanitizer makes a loop over bytes slow. */
static inline void dh_compute(uint32_t layer, int32_t id)
{
    static uint64_t words[DH_STRIDE / sizeof(uint64_t)];
    uint64_t word = test_random_u64(&dh.random);
    for (size_t i = 0; i * sizeof(*words) < dh_block_bytes[layer]; i++)
        words[i] = word + i * 0x0101010101010101U;
    dh_write(dh_at(layer, id), words, dh_block_bytes[layer]);
}

static inline void dh_describe(void)
{
    for (uint32_t l = 0; l < DH_LAYERS; l++)
        dh.layers[l] = (struct tierce_paged_layer){.base = (void *)(dh.memory + dh_at(l, 0)),
                                                   .block_stride = DH_STRIDE,
                                                   .block_bytes = dh_block_bytes[l]};
    dh.paged = (struct tierce_paged){.size = sizeof(dh.paged),
                                     .layers = dh.layers,
                                     .layer_count = DH_LAYERS,
                                     .block_count = DH_BLOCKS};
}

/* The copy method of "cuda direct" or "cuda staged". */
static inline enum tierce__cuda_way dh_way(const char *kind)
{
    enum tierce__cuda_way way = TIERCE__CUDA_COPIES;
    for (int i = 0; strchr(kind, ' ') != NULL && i <= TIERCE__CUDA_WAYS; i++) {
        if (strcmp(strchr(kind, ' ') + 1, tierce__cuda_way_name((enum tierce__cuda_way)i)) == 0)
            way = (enum tierce__cuda_way)i;
    }
    return way;
}

/* The engine and the pool, without a device. The kind "cuda" uses the copy engine; the kinds with a
 * method's name use this copy method. */
static inline void dh_start_engine(const char *kind, int ordinal)
{
    dh = (struct dh){.kind = kind, .is_cuda = strncmp(kind, "cuda", 4) == 0};
    dh.random = test_random_start(kind);
    dh.ops = tierce__device_find(dh.is_cuda ? "cuda" : kind);
    tierce__cuda_force(dh_way(kind));
    ck_assert_ptr_nonnull(dh.ops);
    dh.mirror = calloc(1, DH_BYTES);
    dh.now = malloc(DH_BYTES);
    dh.pool = mmap(NULL, DH_POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(dh.mirror != NULL && dh.now != NULL && dh.pool != MAP_FAILED);
    if (dh.is_cuda)
        dh_start_cuda(ordinal);
    else
        dh.memory = (uintptr_t)calloc(1, DH_BYTES);
    dh_describe();
    for (uint32_t l = 0; l < DH_LAYERS; l++)
        for (int32_t id = 0; id < DH_BLOCKS; id++)
            dh_compute(l, id);
    if (dh.is_cuda)
        gpu_sync();
}

static inline void dh_open(void)
{
    ck_assert_int_eq(dh.ops->open(&dh.device, (void *)dh.memory), 0);
    dh.ops->tune(dh.device);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE), 0);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool + DH_SLICE, DH_SLICE), 0);
}

/* The device uses the copy method of its kind: it has not rejected the kernel. */
static inline void dh_check_way(void)
{
    for (unsigned i = 0; dh.is_cuda && i < 2 * TIERCE__CUDA_CLASSES; i++) {
        enum tierce__cuda_way way = tierce__cuda_used(dh.device, i % 2 != 0, i / 2);
        ck_assert_msg(way == dh_way(dh.kind), "%s copies by \"%s\": see cuda_no_kernel in the log",
                      dh.kind, tierce__cuda_way_name(way));
    }
}

static inline void dh_stop_engine(void)
{
    if (dh.is_cuda) {
        gpu_check_left(1);
        gpu_sync();
        gpu_free(dh.memory);
        gpu_stop();
    } else {
        free((void *)dh.memory);
    }
    munmap(dh.pool, DH_POOL);
    free(dh.mirror);
    free(dh.now);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline void dh_close(void)
{
    ck_assert(dh.ops->close(dh.device, DH_DEADLINE));
    dh_stop_engine();
}

/* ---- transfers --------------------------------------------------------------------------------
 */

enum { DH_CELLS_MAX = 12, DH_ROWS_MAX = 6 };

/* Rows whose cells follow each other in the pool, from `at` on. */
struct dh_transfer {
    struct tierce__device_row rows[DH_ROWS_MAX];
    int32_t ids[DH_ROWS_MAX][DH_CELLS_MAX];
    uint64_t sums[DH_ROWS_MAX][DH_CELLS_MAX];
    uint8_t good[DH_ROWS_MAX][DH_CELLS_MAX];
    struct tierce__device_copy copy;
    struct tierce__device_event *event;
};

static inline void dh_begin(struct dh_transfer *t)
{
    *t = (struct dh_transfer){.copy = {.paged = &dh.paged, .rows = t->rows, .stream = dh.stream}};
    memset(t->good, 1, sizeof(t->good));
}

/* A row of `count` blocks from `id` on, `step` apart. Returns the next free position of the
 * pool. */
static inline uint8_t *dh_add(struct dh_transfer *t, uint8_t *at, uint32_t layer, int32_t id,
                              int32_t step, size_t count)
{
    size_t r = t->copy.count++;
    ck_assert(r < DH_ROWS_MAX && count <= DH_CELLS_MAX);
    for (size_t c = 0; c < count; c++)
        t->ids[r][c] = id + (int32_t)c * step;
    t->rows[r] = (struct tierce__device_row){
        .layer = layer, .ids = t->ids[r], .cells = {at, t->sums[r], count}, .good = t->good[r]};
    at += count * dh_block_bytes[layer];
    ck_assert(at <= dh.pool + DH_POOL);
    return at;
}

/* Waits, settles, and forgets. Returns the number of bad cells. */
static inline int64_t dh_end(struct dh_transfer *t)
{
    ck_assert_int_eq(dh.ops->wait(dh.device, t->event, DH_DEADLINE), 0);
    int64_t bad = dh.ops->settle(dh.device, t->event, 0, t->copy.count);
    dh.ops->forget(dh.device, t->event);
    t->event = NULL;
    return bad;
}

static inline int64_t dh_gather(struct dh_transfer *t)
{
    ck_assert_int_eq(dh.ops->gather(dh.device, &t->event, &t->copy), 0);
    return dh_end(t);
}

static inline int64_t dh_scatter(struct dh_transfer *t)
{
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t->event, &t->copy), 0);
    return dh_end(t);
}

/* Gathered cells and sums are those of the mirror as it is now. */
static inline void dh_check_gathered(const struct dh_transfer *t)
{
    for (size_t r = 0; r < t->copy.count; r++) {
        const struct tierce__device_row *row = &t->rows[r];
        size_t bytes = dh_block_bytes[row->layer];
        for (size_t c = 0; c < row->cells.count; c++) {
            const uint8_t *want = dh.mirror + dh_at(row->layer, t->ids[r][c]);
            ck_assert_mem_eq(row->cells.bytes + c * bytes, want, bytes);
            ck_assert_uint_eq(row->cells.sums[c], XXH3_64bits(want, bytes));
        }
    }
}

/* The mirror after a scatter. */
static inline void dh_expect_scattered(const struct dh_transfer *t)
{
    for (size_t r = 0; r < t->copy.count; r++) {
        const struct tierce__device_row *row = &t->rows[r];
        size_t bytes = dh_block_bytes[row->layer];
        for (size_t c = 0; c < row->cells.count; c++)
            memcpy(dh.mirror + dh_at(row->layer, t->ids[r][c]), row->cells.bytes + c * bytes,
                   bytes);
    }
}

#endif
