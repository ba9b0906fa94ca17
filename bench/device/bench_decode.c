/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Losslessly coded KV that the first GPU decodes into its memory, many chunks in one call: from
 * coded bytes in memory of the host to raw bytes on the GPU. A load decodes less in a call: one
 * segment of a chunk. The limit is one plain copy of the raw
 * bytes from pinned memory. The peer is a thread of the host that decodes to pinned memory, and
 * then copies.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench_values.h"
#include "bench/device/bench_gpu.h"
#include "core/device/device.h"

#define PART_BYTES (2u * TIERCE__BENCH_PART_ELEMENTS)
#define RUN_BYTES  (160u * PART_BYTES) /* a layer of a chunk */
#define RUNS_MAX   64u
#define CALL_MS    60000u
#define GOAL       1.0 /* the speed of the link for raw bytes */

struct decode_bench {
    struct tierce__bench_gpu *gpu; /* its memory: the decoded bytes */
    const struct tierce__device_ops *ops;
    const struct tierce__codec *codec;
    struct tierce__device *device;
    size_t count;
    uint64_t bytes;  /* of all runs */
    uint8_t *pinned; /* [bytes] */
    uint8_t *values; /* [bytes] */
    uint8_t *coded;  /* [count * room] */
    uint64_t room;
    struct tierce__device_run runs[RUNS_MAX];
};

/* ---- sides ---------------------------------------------------------------------------------- */

static int copy_pinned(const struct decode_bench *b)
{
    const struct tierce__bench_gpu *gpu = b->gpu;
    int rc = tierce__bench_gpu_check(
        gpu, "cuMemcpyHtoDAsync",
        gpu->api->copy_to_device(gpu->memory, b->pinned, b->bytes, gpu->stream));
    return rc < 0 ? rc : tierce__bench_gpu_finish(gpu, gpu->stream);
}

static int64_t run_plain(void *arg)
{
    uint64_t start_ns = tierce__now_ns();
    int rc = copy_pinned(arg);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

static int64_t run_device(void *arg)
{
    const struct decode_bench *b = arg;
    uint64_t start_ns = tierce__now_ns();
    int rc = b->ops->decode(b->device, b->runs, b->count, tierce__deadline_in_ms(CALL_MS));
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

static int64_t run_host(void *arg)
{
    const struct decode_bench *b = arg;
    uint64_t start_ns = tierce__now_ns();
    int rc = 0;
    for (size_t i = 0; i < b->count && rc == 0; i++)
        rc = b->codec->decode(b->pinned + i * RUN_BYTES, RUN_BYTES, b->runs[i].from,
                              b->runs[i].coded);
    if (rc == 0)
        rc = copy_pinned(b);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

/* ---- preparation ---------------------------------------------------------------------------- */

static int fail(const struct decode_bench *b, const char *what, int rc)
{
    return tierce__bench_fail(b->gpu->bench, "%s: %s", what, tierce_strerror(rc));
}

static int encode_runs(struct decode_bench *b)
{
    const struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16,
                                              .part_bytes = PART_BYTES};
    for (size_t i = 0; i < b->count; i++) {
        uint8_t *coded = b->coded + i * b->room;
        int64_t length =
            b->codec->encode(coded, b->room, b->values + i * RUN_BYTES, RUN_BYTES, &shape);
        if (length < 0)
            return (int)length;
        b->runs[i] =
            (struct tierce__device_run){.to = (uint8_t *)(uintptr_t)b->gpu->memory + i * RUN_BYTES,
                                        .bytes = RUN_BYTES,
                                        .from = coded,
                                        .coded = (size_t)length};
    }
    return 0;
}

/* Decodes once, and reads the bytes back. */
static int check(struct decode_bench *b)
{
    const struct tierce__bench_gpu *gpu = b->gpu;
    int64_t ns = run_device(b);
    if (ns < 0)
        return fail(b, "the GPU does not decode (the line cuda_no_decoder says why)", (int)ns);
    memset(b->pinned, 0, b->bytes);
    int rc = tierce__bench_gpu_check(
        gpu, "cuMemcpyDtoHAsync",
        gpu->api->copy_to_host(b->pinned, gpu->memory, b->bytes, gpu->stream));
    if (rc == 0)
        rc = tierce__bench_gpu_finish(gpu, gpu->stream);
    if (rc == 0 && memcmp(b->pinned, b->values, b->bytes) != 0)
        rc = tierce__bench_fail(gpu->bench, "the GPU has decoded other bytes");
    return rc;
}

static int prepare(struct decode_bench *b)
{
    struct tierce__bench_gpu *gpu = b->gpu;
    void *pinned = NULL;
    b->room = tierce__codec_bound(RUN_BYTES);
    b->values = tierce__bench_map(b->bytes);
    b->coded = tierce__bench_map(b->count * b->room);
    if (b->values == NULL || b->coded == NULL)
        return -ENOMEM;
    int rc =
        tierce__bench_gpu_check(gpu, "cuMemAlloc", gpu->api->memory_alloc(&gpu->memory, b->bytes));
    if (rc == 0)
        rc = tierce__bench_gpu_check(
            gpu, "cuMemHostAlloc",
            gpu->api->host_alloc(&pinned, b->bytes, TIERCE__CU_HOST_PORTABLE));
    if (rc < 0)
        return rc;
    b->pinned = pinned;
    tierce__bench_values_make_up(b->values, b->bytes, TIERCE__ELEMENT_BF16);
    rc = encode_runs(b);
    if (rc == 0) {
        rc = b->ops->open(&b->device, (void *)(uintptr_t)gpu->memory);
        rc = rc < 0 ? fail(b, "the GPU cannot be opened", rc) : 0;
    }
    return rc == 0 ? check(b) : rc;
}

static void release(struct decode_bench *b)
{
    const struct tierce__bench_gpu *gpu = b->gpu;
    if (b->device != NULL && !b->ops->close(b->device, tierce__deadline_in_ms(CALL_MS)))
        (void)tierce__bench_fail(gpu->bench, "the GPU cannot be closed");
    if (b->pinned != NULL)
        (void)tierce__bench_gpu_check(gpu, "cuMemFreeHost", gpu->api->host_free(b->pinned));
    if (b->values != NULL)
        tierce__bench_unmap(b->values, b->bytes);
    if (b->coded != NULL)
        tierce__bench_unmap(b->coded, b->count * b->room);
}

static int measure(struct decode_bench *b)
{
    struct tierce__bench_side sides[] = {
        {.run = run_plain, .arg = b}, {.run = run_device, .arg = b}, {.run = run_host, .arg = b}};
    double bytes = (double)b->bytes;
    int rc = tierce__bench_alternate(sides, 3, b->gpu->bench->seconds);
    if (rc == 0)
        tierce__bench_emit(b->gpu->bench,
                           &(struct tierce__bench_row){.case_name = "lossless bf16; made up; "
                                                                    "decoded on the GPU",
                                                       .unit = "GB/s",
                                                       .value = bytes / sides[1].median_ns,
                                                       .value_min = bytes / sides[1].max_ns,
                                                       .value_max = bytes / sides[1].min_ns,
                                                       .limit = bytes / sides[0].median_ns,
                                                       .limit_min = bytes / sides[0].max_ns,
                                                       .limit_max = bytes / sides[0].min_ns,
                                                       .goal = GOAL,
                                                       .peer = "decoded by a thread of the host",
                                                       .peer_value = bytes / sides[2].median_ns});
    return rc;
}

int tierce__bench_decode(struct tierce__bench_gpu *gpu)
{
    struct decode_bench b = {.gpu = gpu,
                             .ops = tierce__device_find("cuda"),
                             .codec = tierce__codec_find("lossless"),
                             .count = RUNS_MAX};
    while (b.count > 1 && b.count * RUN_BYTES > gpu->bench->memory_bytes / 32)
        b.count /= 2;
    b.bytes = b.count * (uint64_t)RUN_BYTES;
    int rc = prepare(&b);
    if (rc == 0)
        rc = measure(&b);
    release(&b);
    return rc;
}
