/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of the benchmark `device`: the KV of a prompt of 32,768 tokens of a model with 70 billion
 * parameters (80 layers, 8 heads of 128 numbers for keys and as many for values, in bfloat16) is
 * loaded from the engine's memory by the public API, layer by layer on a stream of its own. The
 * work of each layer waits for its layer on another stream: a kernel on all multiprocessors, as
 * long as the transfer of a layer takes alone. A row shows how much of the transfer's time the work
 * hides. The first layer has nothing to hide behind, so 98.75 % is the best possible value.
 */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/device/bench_gpu.h"
#include "bench/device/spinner.h"

enum {
    LAYERS = 80,
    BLOCK_TOKENS = 16,
    CELL_BYTES = BLOCK_TOKENS * 2 * 8 * 128 * 2,
    BLOCKS_MAX = 32768 / BLOCK_TOKENS,
    CHUNK_BLOCKS = 256 / BLOCK_TOKENS,
};

#define PREPARE_MS 120000u
#define PAUSE_NS   20000
#define GOAL       0.9

struct overlap {
    struct tierce__bench_gpu *gpu;
    uint32_t blocks;
    struct tierce_paged_layer layers[LAYERS];
    struct tierce_paged paged;
    int32_t ids[BLOCKS_MAX];
    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce_chain *chain;
    struct tierce__spinner spinner;
    TIERCE__CU_STREAM loads; /* the work is on the stream of `gpu` */
    TIERCE__CU_EVENT ready;  /* of one layer after the other */
    unsigned processors;
    uint64_t work_ns; /* of one layer; 0: none */
};

static int check(const struct overlap *o, const char *call, TIERCE__CU_RESULT code)
{
    return tierce__bench_gpu_check(o->gpu, call, code);
}

/* Waits for all work of the engine, and leaves the processor to the driver meanwhile. */
static int finish_work(const struct overlap *o)
{
    TIERCE__CU_RESULT code;
    while ((code = o->gpu->api->stream_query(o->gpu->stream)) == TIERCE__CU_NOT_READY)
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return check(o, "cuStreamQuery", code);
}

/* ---- sides ---------------------------------------------------------------------------------- */

static int enqueue_work(const struct overlap *o)
{
    return check(
        o, "cuLaunchKernel",
        tierce__spinner_launch(&o->spinner, o->gpu->stream, o->processors, o->work_ns, NULL));
}

/* The work of a layer begins when its layer is there. */
static int enqueue_behind_layer(const struct overlap *o)
{
    const struct tierce__cuda_api *api = o->gpu->api;
    int rc = check(o, "cuEventRecord", api->event_record(o->ready, o->loads));
    if (rc == 0)
        rc = check(o, "cuStreamWaitEvent", api->stream_wait(o->gpu->stream, o->ready, 0));
    return rc == 0 && o->work_ns > 0 ? enqueue_work(o) : rc;
}

static struct tierce_transfer_opts transfer_of(const struct overlap *o)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = o->chain,
                                         .to_block = o->blocks,
                                         .paged = &o->paged,
                                         .block_ids = o->ids,
                                         .stream = o->loads};
}

/* Until all KV is loaded and verified, and all work is done. */
static int load(const struct overlap *o)
{
    struct tierce_transfer_opts what = transfer_of(o);
    struct tierce_load *load;
    int rc = tierce_load_begin(&load, o->view, &what);
    if (rc < 0)
        return rc;
    for (uint32_t layer = 0; layer < LAYERS && rc == 0; layer++) {
        rc = tierce_load_layer(load, layer);
        if (rc == 0)
            rc = enqueue_behind_layer(o);
    }
    int64_t loaded = tierce_load_end(load, NULL);
    if (rc == 0)
        rc = finish_work(o);
    if (rc == 0 && loaded != o->blocks)
        return tierce__bench_fail(o->gpu->bench, "a load gave %lld of %u blocks", (long long)loaded,
                                  o->blocks);
    return rc;
}

static int64_t run_load(void *arg)
{
    uint64_t start_ns = tierce__now_ns();
    int rc = load(arg);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

static int64_t run_load_alone(void *arg)
{
    struct overlap alone = *(const struct overlap *)arg;
    alone.work_ns = 0;
    return run_load(&alone);
}

static int64_t run_work_alone(void *arg)
{
    const struct overlap *o = arg;
    uint64_t start_ns = tierce__now_ns();
    int rc = 0;
    for (uint32_t layer = 0; layer < LAYERS && rc == 0; layer++)
        rc = enqueue_work(o);
    if (rc == 0)
        rc = finish_work(o);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

/* ---- the case ------------------------------------------------------------------------------- */

static void emit(const struct overlap *o, double alone_ns, double work_ns, double both_ns)
{
    char name[80], shown[64];
    double hidden = 100 * (1 - (both_ns - work_ns) / alone_ns);
    snprintf(name, sizeof(name), "load of %u tokens in %d layers behind work; hidden",
             o->blocks * BLOCK_TOKENS, LAYERS);
    snprintf(shown, sizeof(shown), "ms: load alone %.1f; work alone %.1f; both", alone_ns / 1e6,
             work_ns / 1e6);
    tierce__bench_emit(o->gpu->bench, &(struct tierce__bench_row){.case_name = name,
                                                                  .unit = "%",
                                                                  .value = hidden,
                                                                  .limit = 100,
                                                                  .goal = GOAL,
                                                                  .peer = shown,
                                                                  .peer_value = both_ns / 1e6});
}

static int run_case(struct overlap *o)
{
    int64_t first_ns = run_load_alone(o); /* it may be slower than later loads */
    int64_t alone_ns = first_ns < 0 ? first_ns : run_load_alone(o);
    if (alone_ns < 0)
        return (int)alone_ns;
    o->work_ns = (uint64_t)alone_ns / LAYERS;
    struct tierce__bench_side sides[] = {{.run = run_load_alone, .arg = o},
                                         {.run = run_work_alone, .arg = o},
                                         {.run = run_load, .arg = o}};
    int rc = tierce__bench_alternate(sides, 3, o->gpu->bench->seconds);
    if (rc == 0)
        emit(o, sides[0].median_ns, sides[1].median_ns, sides[2].median_ns);
    return rc;
}

/* ---- preparation ---------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct overlap *o)
{
    return (uint64_t)LAYERS * o->blocks * CELL_BYTES;
}

/* As many blocks as fit, in the host's memory and in that of the GPU. */
static int alloc_blocks(struct overlap *o)
{
    struct tierce__bench_gpu *gpu = o->gpu;
    TIERCE__CU_RESULT code = TIERCE__CU_OUT_OF_MEMORY;
    for (o->blocks = BLOCKS_MAX; o->blocks > 1 && bytes_of(o) > gpu->bench->memory_bytes / 2;)
        o->blocks /= 2;
    for (;; o->blocks /= 2) {
        code = gpu->api->memory_alloc(&gpu->memory, bytes_of(o));
        if (code != TIERCE__CU_OUT_OF_MEMORY || o->blocks == 1)
            break;
    }
    if (code != TIERCE__CU_SUCCESS)
        gpu->memory = 0;
    for (uint32_t i = 0; i < LAYERS; i++)
        o->layers[i] = (struct tierce_paged_layer){
            .base = (void *)(uintptr_t)(gpu->memory + (uint64_t)i * o->blocks * CELL_BYTES),
            .block_stride = CELL_BYTES,
            .block_bytes = CELL_BYTES};
    for (uint32_t i = 0; i < o->blocks; i++) /* a permutation, because their number is even */
        o->ids[i] = (int32_t)((i * 7 + 3) % o->blocks);
    o->paged = (struct tierce_paged){.size = sizeof(o->paged),
                                     .layers = o->layers,
                                     .layer_count = LAYERS,
                                     .block_count = o->blocks,
                                     .device = TIERCE_DEVICE_CUDA};
    return check(o, "cuMemAlloc", code);
}

static int open_view(struct overlap *o)
{
    uint32_t cells[LAYERS];
    char size[32];
    for (uint32_t i = 0; i < LAYERS; i++)
        cells[i] = CELL_BYTES;
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .weights = "00",
                                  .kv_dtype = "bfloat16",
                                  .layout = "bench",
                                  .layer_count = LAYERS,
                                  .cell_bytes = cells,
                                  .block_tokens = BLOCK_TOKENS,
                                  .chunk_blocks =
                                      o->blocks < CHUNK_BLOCKS ? o->blocks : CHUNK_BLOCKS,
                                  .algo = TIERCE_CHAIN_XXH3_128};
    /* A header of some KiB for each chunk: a cell has room for it. */
    uint64_t chunks = (o->blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    snprintf(size, sizeof(size), "%llu",
             (unsigned long long)(bytes_of(o) + chunks * 2 * CELL_BYTES));
    const struct tierce__bench_param params[] = {{"memory.size", size}};
    int rc = tierce__bench_engine(&o->engine, o->gpu->bench, params, 1);
    if (rc == 0)
        rc = tierce_view_open(&o->view, o->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    if (rc == 0)
        rc = tierce_view_chain(&o->chain, o->view, NULL);
    return rc;
}

/* Until the engine's memory is pinned and the method of copying is chosen. */
static int prepare(const struct overlap *o)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(PREPARE_MS);
    int rc;
    while ((rc = tierce_view_prepare(o->view, &o->paged)) == -EAGAIN &&
           tierce__now_ns() < deadline_ns)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return rc < 0 ? tierce__bench_fail(o->gpu->bench, "memory cannot be pinned: %s",
                                       tierce_strerror(rc))
                  : 0;
}

static int store(struct overlap *o)
{
    struct tierce_transfer_opts what = transfer_of(o);
    uint8_t *hashes = tierce__calloc(o->blocks, TIERCE_HASH_BYTES);
    if (hashes == NULL)
        return -ENOMEM;
    tierce__bench_fill(hashes, (uint64_t)o->blocks * TIERCE_HASH_BYTES, 1);
    int64_t rc = tierce_chain_append_hashes(o->chain, hashes, o->blocks);
    tierce__free(hashes);
    if (rc < 0)
        return (int)rc;
    rc = tierce_store(o->view, &what);
    if (rc != o->blocks)
        return tierce__bench_fail(o->gpu->bench, "a store took %lld of %u blocks", (long long)rc,
                                  o->blocks);
    return 0;
}

static int start_work(struct overlap *o)
{
    const struct tierce__cuda_api *api = o->gpu->api;
    int processors = 0;
    int rc = check(
        o, "cuDeviceGetAttribute",
        api->device_attribute(&processors, TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS, o->gpu->device));
    o->processors = (unsigned)processors;
    if (rc == 0)
        rc = check(o, "cuModuleLoadData", tierce__spinner_init(&o->spinner, api));
    if (rc == 0)
        rc = check(o, "cuStreamCreate",
                   api->stream_create(&o->loads, TIERCE__CU_STREAM_NON_BLOCKING));
    if (rc == 0)
        rc = check(o, "cuEventCreate",
                   api->event_create(&o->ready, TIERCE__CU_EVENT_DISABLE_TIMING));
    return rc;
}

static void stop(struct overlap *o)
{
    const struct tierce__cuda_api *api = o->gpu->api;
    tierce_chain_destroy(o->chain);
    tierce_view_close(o->view);
    tierce_engine_close(o->engine);
    if (o->ready != NULL)
        (void)check(o, "cuEventDestroy", api->event_destroy(o->ready));
    if (o->loads != NULL)
        (void)check(o, "cuStreamDestroy", api->stream_destroy(o->loads));
    (void)check(o, "cuModuleUnload", tierce__spinner_fini(&o->spinner));
}

int tierce__bench_overlap(struct tierce__bench_gpu *gpu)
{
    static struct overlap o;
    o = (struct overlap){.gpu = gpu};
    int rc = start_work(&o);
    if (rc == 0)
        rc = alloc_blocks(&o);
    if (rc == 0)
        rc = open_view(&o);
    if (rc == 0)
        rc = prepare(&o);
    if (rc == 0)
        rc = store(&o);
    if (rc == 0)
        rc = run_case(&o);
    stop(&o);
    return rc;
}
