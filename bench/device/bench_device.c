/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores from and loads into the memory of the first GPU, with each copy method, with the sums of
 * all cells, against one plain copy of the same bytes between the same memories. Blocks are
 * scattered, cells are contiguous in pinned memory. A row shows which copy method a device chooses
 * for cells of this size when it is opened. Only the rows of this method have a goal.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/device/bench_gpu.h"
#include "core/device/cuda/cuda_ways.h"
#include "core/device/device.h"

#define BYTES_MAX (64ULL << 20)
#define BYTES_MIN (2ULL << 20)
#define COPY_MS   60000u

/* Sizes of cells. A device measures the copy methods for fewer sizes (cuda_ways.h). */
static const uint32_t cell_sizes[] = {2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
enum { SIZES = sizeof(cell_sizes) / sizeof(cell_sizes[0]) };

/* The aim of a device, as a share of the speed of a plain copy. */
static double goal_of(uint32_t cell_bytes)
{
    return cell_bytes >= 16 << 10 ? 0.9 : 0.6;
}

struct device_bench;

/* One copy method, with its own device, for which alone the memory is pinned. */
struct device_way {
    struct device_bench *b;
    enum tierce__cuda_way way;
    struct tierce__device *device; /* NULL: the GPU does not support this copy method */
    uint8_t *cells;                /* [b->bytes] */
    uint64_t *sums;                /* [cells of the smallest size] */
};

struct device_bench {
    const struct tierce__bench *bench;
    struct tierce__bench_gpu *gpu; /* its memory: the blocks */
    const struct tierce__device_ops *ops;
    uint64_t bytes;
    int32_t *ids;
    uint8_t *good;
    struct device_way ways[TIERCE__CUDA_WAYS];
    enum tierce__cuda_way chosen[2][TIERCE__CUDA_CLASSES];
    /* The case that is measured. */
    uint32_t cell_bytes;
    bool is_load;
};

static int fail(const struct device_bench *b, const char *what, int rc)
{
    return tierce__bench_fail(b->bench, "%s: %s", what, tierce_strerror(rc));
}

/* ---- sides ---------------------------------------------------------------------------------- */

/* Returns the number of bad cells. */
static int64_t copy_cells(struct device_way *w, bool is_load)
{
    const struct device_bench *b = w->b;
    size_t cells = (size_t)(b->bytes / b->cell_bytes);
    struct tierce_paged_layer layer = {.base = (void *)(uintptr_t)b->gpu->memory,
                                       .block_stride = b->cell_bytes,
                                       .block_bytes = b->cell_bytes};
    struct tierce_paged paged = {.size = sizeof(paged),
                                 .layers = &layer,
                                 .layer_count = 1,
                                 .block_count = (uint32_t)cells,
                                 .device = TIERCE_DEVICE_CUDA};
    struct tierce__device_row row = {
        .ids = b->ids, .cells = {w->cells, w->sums, cells}, .good = b->good};
    struct tierce__device_copy copy = {
        .paged = &paged, .rows = &row, .count = 1, .stream = b->gpu->stream};
    struct tierce__device_event *event;
    int rc = is_load ? b->ops->scatter(w->device, &event, &copy)
                     : b->ops->gather(w->device, &event, &copy);
    if (rc < 0)
        return rc;
    rc = b->ops->wait(w->device, event, tierce__deadline_in_ms(COPY_MS));
    if (rc == TIERCE_E_DEADLINE)
        return rc; /* the copy may continue, so nothing is freed */
    int64_t bad = rc < 0 ? rc : b->ops->settle(w->device, event, 0, 1);
    b->ops->forget(w->device, event);
    return bad;
}

static int64_t run_way(void *arg)
{
    struct device_way *w = arg;
    uint64_t start_ns = tierce__now_ns();
    int64_t bad = copy_cells(w, w->b->is_load);
    if (bad != 0)
        return bad < 0 ? bad : tierce__bench_fail(w->b->bench, "a load found bad cells");
    return (int64_t)(tierce__now_ns() - start_ns);
}

/* One copy of all bytes by the copy engine, without a sum. */
static int64_t run_plain(void *arg)
{
    const struct device_bench *b = arg;
    const struct tierce__bench_gpu *gpu = b->gpu;
    uint8_t *pinned = b->ways[TIERCE__CUDA_COPIES].cells;
    uint64_t start_ns = tierce__now_ns();
    int rc = b->is_load ? tierce__bench_gpu_check(
                              gpu, "cuMemcpyHtoDAsync",
                              gpu->api->copy_to_device(gpu->memory, pinned, b->bytes, gpu->stream))
                        : tierce__bench_gpu_check(
                              gpu, "cuMemcpyDtoHAsync",
                              gpu->api->copy_to_host(pinned, gpu->memory, b->bytes, gpu->stream));
    if (rc == 0)
        rc = tierce__bench_gpu_finish(gpu, gpu->stream);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* Cells and blocks have the same bytes afterwards, and the sums are those of the host. */
static int prepare_way(struct device_way *w)
{
    const struct device_bench *b = w->b;
    memset(w->cells, 0, (size_t)b->bytes);
    int64_t bad = copy_cells(w, false);
    if (bad < 0)
        return fail(b, "a store", (int)bad);
    for (size_t i = 0; i < b->bytes / b->cell_bytes; i++) {
        if (w->sums[i] != tierce__sum(w->cells + i * b->cell_bytes, b->cell_bytes))
            return tierce__bench_fail(b->bench, "%s: the sum of a cell is wrong",
                                      tierce__cuda_way_name(w->way));
    }
    return 0;
}

static void emit(const struct device_bench *b, const struct device_way *w,
                 const struct tierce__bench_side *plain, const struct tierce__bench_side *side)
{
    char name[64];
    double bytes = (double)b->bytes;
    snprintf(name, sizeof(name), "%s; cells of %u KiB; %s", b->is_load ? "load" : "store",
             b->cell_bytes >> 10, tierce__cuda_way_name(w->way));
    struct tierce__bench_row row = {.case_name = name,
                                    .unit = "GB/s",
                                    .value = bytes / side->median_ns,
                                    .limit = bytes / plain->median_ns,
                                    .value_min = bytes / side->max_ns,
                                    .value_max = bytes / side->min_ns,
                                    .limit_min = bytes / plain->max_ns,
                                    .limit_max = bytes / plain->min_ns};
    if (b->chosen[b->is_load][tierce__cuda_class(b->cell_bytes)] == w->way) {
        row.peer = "chosen";
        row.goal = goal_of(b->cell_bytes);
    }
    tierce__bench_emit(b->bench, &row);
}

static int run_case(struct device_bench *b)
{
    struct tierce__bench_side sides[1 + TIERCE__CUDA_WAYS] = {{.run = run_plain, .arg = b}};
    size_t count = 1;
    int rc = 0;
    for (size_t i = 0; i < TIERCE__CUDA_WAYS && rc == 0; i++) {
        if (b->ways[i].device == NULL)
            continue;
        rc = prepare_way(&b->ways[i]);
        sides[count++] = (struct tierce__bench_side){.run = run_way, .arg = &b->ways[i]};
    }
    if (rc == 0)
        rc = tierce__bench_alternate(sides, count, b->bench->seconds);
    for (size_t i = 1; i < count && rc == 0; i++)
        emit(b, sides[i].arg, &sides[0], &sides[i]);
    return rc;
}

static int run_cases(struct device_bench *b)
{
    int rc = 0;
    for (int load = 0; load < 2; load++) {
        for (size_t size = 0; size < SIZES && rc == 0; size++) {
            b->is_load = load != 0;
            b->cell_bytes = cell_sizes[size];
            /* The number of cells is a power of two, so that this is a permutation. */
            for (uint64_t i = 0; i < b->bytes / b->cell_bytes; i++)
                b->ids[i] = (int32_t)((i * 7 + 3) % (b->bytes / b->cell_bytes));
            rc = run_case(b);
        }
    }
    return rc;
}

/* ---- devices -------------------------------------------------------------------------------- */

static int open_tuned(const struct device_bench *b, struct tierce__device **out,
                      enum tierce__cuda_way way)
{
    tierce__cuda_force(way);
    int rc = b->ops->open(out, (void *)(uintptr_t)b->gpu->memory);
    if (rc < 0)
        return fail(b, "the GPU cannot be opened", rc);
    b->ops->tune(*out);
    return 0;
}

static void close_device(const struct device_bench *b, struct tierce__device *device)
{
    if (device != NULL && !b->ops->close(device, tierce__deadline_in_ms(COPY_MS)))
        (void)tierce__bench_fail(b->bench, "the GPU cannot be closed");
}

/* The method that a device chooses by itself. */
static int ask_chosen(struct device_bench *b)
{
    struct tierce__device *device;
    int rc = open_tuned(b, &device, TIERCE__CUDA_WAYS);
    for (unsigned i = 0; i < 2 * TIERCE__CUDA_CLASSES && rc == 0; i++)
        b->chosen[i % 2][i / 2] = tierce__cuda_used(device, i % 2 != 0, i / 2);
    if (rc == 0)
        close_device(b, device);
    return rc;
}

static int open_way(struct device_way *w)
{
    const struct device_bench *b = w->b;
    w->cells = tierce__bench_map(b->bytes);
    w->sums = tierce__calloc((size_t)(b->bytes / cell_sizes[0]), sizeof(*w->sums));
    if (w->cells == NULL || w->sums == NULL)
        return -ENOMEM;
    int rc = open_tuned(b, &w->device, w->way);
    if (rc == 0) {
        rc = b->ops->pin(w->device, w->cells, (size_t)b->bytes);
        if (rc < 0)
            return fail(b, "memory cannot be pinned", rc);
    }
    if (rc == 0 && tierce__cuda_used(w->device, false, 0) != w->way) {
        close_device(b, w->device);
        w->device = NULL;
        fprintf(stderr, "tierce bench: device: the GPU does not support the copy method \"%s\"\n",
                tierce__cuda_way_name(w->way));
    }
    return rc;
}

static int open_ways(struct device_bench *b)
{
    int rc = 0;
    for (int i = 0; i < TIERCE__CUDA_WAYS && rc == 0; i++) {
        b->ways[i].b = b;
        b->ways[i].way = (enum tierce__cuda_way)i;
        rc = open_way(&b->ways[i]);
    }
    return rc;
}

static void close_ways(struct device_bench *b)
{
    for (size_t i = 0; i < TIERCE__CUDA_WAYS; i++) {
        close_device(b, b->ways[i].device);
        if (b->ways[i].cells != NULL)
            tierce__bench_unmap(b->ways[i].cells, b->bytes);
        tierce__free(b->ways[i].sums);
    }
}

/* ---- the GPU -------------------------------------------------------------------------------- */

/* Blocks with numbers that look random. */
static int fill_blocks(struct device_bench *b)
{
    uint8_t *pinned = b->ways[TIERCE__CUDA_COPIES].cells;
    tierce__bench_fill(pinned, b->bytes, 1);
    b->is_load = true;
    int64_t ns = run_plain(b);
    return ns < 0 ? (int)ns : 0;
}

static int run(struct device_bench *b)
{
    size_t cells = (size_t)(b->bytes / cell_sizes[0]);
    b->ids = tierce__calloc(cells, sizeof(*b->ids));
    b->good = tierce__calloc(cells, sizeof(*b->good));
    if (b->ids == NULL || b->good == NULL)
        return -ENOMEM;
    int rc = tierce__bench_gpu_check(b->gpu, "cuMemAlloc",
                                     b->gpu->api->memory_alloc(&b->gpu->memory, b->bytes));
    if (rc == 0)
        rc = ask_chosen(b);
    if (rc == 0)
        rc = open_ways(b);
    if (rc == 0)
        rc = fill_blocks(b);
    return rc < 0 ? rc : run_cases(b);
}

/* The copies alone, without an engine. */
static int run_copies(struct tierce__bench_gpu *gpu)
{
    struct device_bench b = {
        .bench = gpu->bench, .gpu = gpu, .ops = tierce__device_find("cuda"), .bytes = BYTES_MAX};
    while (b.bytes > BYTES_MIN && b.bytes > gpu->bench->memory_bytes / 32)
        b.bytes /= 2;
    int rc = run(&b);
    close_ways(&b);
    tierce__cuda_force(TIERCE__CUDA_WAYS);
    tierce__free(b.ids);
    tierce__free(b.good);
    return rc;
}

int tierce__bench_device(const struct tierce__bench *bench)
{
    int (*const parts[])(struct tierce__bench_gpu *) = {run_copies, tierce__bench_overlap,
                                                        tierce__bench_decode};
    int rc = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && rc == 0; i++) {
        struct tierce__bench_gpu gpu;
        rc = tierce__bench_gpu_start(&gpu, bench);
        if (rc == 0)
            rc = parts[i](&gpu);
        tierce__bench_gpu_stop(&gpu);
    }
    return rc;
}
