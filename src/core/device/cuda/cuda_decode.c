/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_decode.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mix.h"
#include "core/codec/codec.h"
#include "core/codec/lossless_blocks.h"
#include "core/device/cuda/cuda_module.h"
#include "core/device/kernels/decode.h"

_Static_assert(sizeof(struct tierce__decode_launch) <= 4096, "more than a driver accepts");

/* Of a lane. A launch decodes up to 10 MiB, so 4 MiB are enough at a ratio of 2.5. */
#define STAGING_BYTES ((size_t)4 << 20)
#define VERDICT_BYTES (TIERCE__DECODE_BLOCKS * sizeof(uint32_t))
#define WAIT_MS       60000u /* on a busy device */

size_t tierce__cuda_lanes(const struct tierce__cuda *cuda)
{
    bool has_lanes = atomic_load_explicit(&cuda->decoder.has_lanes, memory_order_acquire);
    return has_lanes ? TIERCE__CUDA_LANES : 0;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A call: the runs, and the block that comes next. */
struct job {
    struct tierce__cuda *cuda;
    struct tierce__cuda_lane *lane;
    const struct tierce__device_run *runs;
    size_t count, run;
    size_t raw, coded; /* of this run: what has been taken */
    bool is_trial;
    size_t used; /* of the staging */
    struct tierce__decode_launch launch;
};

static uint32_t *verdicts(const struct job *job)
{
    return (uint32_t *)(void *)(job->lane->memory + STAGING_BYTES);
}

/* The next block, and where its body begins in the run. Plain bytes are cut into stored blocks. */
static int look_at_block(const struct job *job, struct tierce__lossless_block *block, size_t *body)
{
    const struct tierce__device_run *run = &job->runs[job->run];
    size_t left = run->bytes - job->raw;
    if (!run->is_plain) {
        *body = job->coded + TIERCE__BLOCK_HEADER_BYTES;
        return tierce__lossless_block(block, run->from + job->coded, run->coded - job->coded, left);
    }
    uint32_t bytes = left < TIERCE__BLOCK_BYTES_MAX ? (uint32_t)left : TIERCE__BLOCK_BYTES_MAX;
    *block = (struct tierce__lossless_block){.raw_bytes = bytes, .body_bytes = bytes};
    *body = job->coded;
    return 0;
}

static void add_block(struct job *job, const struct tierce__lossless_block *block, size_t body)
{
    const struct tierce__device_run *run = &job->runs[job->run];
    TIERCE_ASSERT(job->used + block->body_bytes <= STAGING_BYTES);
    TIERCE_ASSERT(body + block->body_bytes <= run->coded);
    TIERCE_ASSERT(job->raw + block->raw_bytes <= run->bytes);
    job->launch.blocks[job->launch.count++] =
        (struct tierce__decode_block){.to = (uintptr_t)run->to + job->raw,
                                      .from = (uint32_t)job->used,
                                      .body_bytes = block->body_bytes,
                                      .raw_bytes = block->raw_bytes,
                                      .period = (uint16_t)block->period,
                                      .element = (uint8_t)block->element,
                                      .is_coded = block->is_coded};
    memcpy(job->lane->memory + job->used, run->from + body, block->body_bytes);
    job->used += (size_t)tierce__round_up(block->body_bytes, TIERCE__DECODE_ALIGN);
    job->raw += block->raw_bytes;
    job->coded = body + block->body_bytes;
}

/* Fills the staging with the next blocks. Errors: TIERCE_E_FORMAT. */
static int take_blocks(struct job *job)
{
    job->used = 0;
    job->launch.count = 0;
    while (job->run < job->count) {
        const struct tierce__device_run *run = &job->runs[job->run];
        struct tierce__lossless_block block;
        size_t body;
        if (job->raw == run->bytes) {
            if (job->coded != run->coded)
                return TIERCE_E_FORMAT;
            job->run++;
            job->raw = job->coded = 0;
            continue;
        }
        int rc = look_at_block(job, &block, &body);
        if (rc < 0)
            return rc;
        if (job->launch.count == TIERCE__DECODE_BLOCKS ||
            job->used + block.body_bytes > STAGING_BYTES)
            return 0;
        add_block(job, &block, body);
    }
    return 0;
}

static int enqueued(struct job *job, const char *call, TIERCE__CU_RESULT code)
{
    return job->is_trial
               ? tierce__cuda_module_check(job->cuda, &job->cuda->decoder.module, call, code)
               : tierce__cuda_enqueued(job->cuda, call, code);
}

/* Waits for all that was enqueued, also after a failure: the staging is used again. */
static int wait_lane(struct job *job)
{
    TIERCE__CU_RESULT code =
        tierce__cuda_drain(job->cuda, job->lane->stream, tierce__deadline_in_ms(WAIT_MS));
    return tierce__cuda_required(job->cuda, "cuStreamQuery", code);
}

static int run_piece(struct job *job)
{
    struct tierce__cuda *cuda = job->cuda;
    struct tierce__cuda_lane *lane = job->lane;
    job->launch.coded = lane->staging;
    job->launch.good = (uintptr_t)verdicts(job);
    memset(verdicts(job), 0, VERDICT_BYTES);
    int rc =
        enqueued(job, "cuMemcpyHtoDAsync",
                 cuda->api->copy_to_device(lane->staging, lane->memory, job->used, lane->stream));
    if (rc == 0)
        rc = enqueued(job, "cuLaunchKernel",
                      tierce__cuda_module_launch(cuda, &cuda->decoder.module, lane->stream,
                                                 job->launch.count, TIERCE__DECODE_THREADS,
                                                 &job->launch));
    int waited = wait_lane(job);
    if (rc < 0 || waited < 0)
        return waited < 0 ? waited : rc;
    for (uint32_t i = 0; i < job->launch.count; i++) {
        if (verdicts(job)[i] != 1)
            return TIERCE_E_FORMAT;
    }
    return 0;
}

/* Under the lane's lock, between enter and leave. */
static int run_job(struct job *job, uint64_t deadline_ns)
{
    int rc = 0;
    tierce__lock_assert_held(&job->lane->lock);
    memcpy(job->launch.splits, tierce__splits, sizeof(job->launch.splits));
    while (rc == 0) {
        rc = take_blocks(job);
        if (rc == 0 && job->launch.count == 0)
            return 0;
        if (rc == 0)
            rc = tierce__now_ns() < deadline_ns ? run_piece(job) : TIERCE_E_DEADLINE;
    }
    return rc;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static int create_lane(struct tierce__cuda *cuda, struct tierce__cuda_lane *lane)
{
    const struct tierce__cuda_api *api = cuda->api;
    void *memory = lane->memory;
    int rc = 0;
    if (lane->stream == NULL)
        rc = tierce__cuda_check(cuda, "cuStreamCreate",
                                api->stream_create(&lane->stream, TIERCE__CU_STREAM_NON_BLOCKING));
    if (rc == 0 && lane->staging == 0)
        rc = tierce__cuda_check(cuda, "cuMemAlloc",
                                api->memory_alloc(&lane->staging, STAGING_BYTES));
    if (rc == 0 && memory == NULL)
        rc = tierce__cuda_check(
            cuda, "cuMemHostAlloc",
            api->host_alloc(&memory, STAGING_BYTES + VERDICT_BYTES,
                            TIERCE__CU_HOST_PORTABLE | TIERCE__CU_HOST_DEVICEMAP));
    if (rc == 0)
        lane->memory = memory;
    return rc;
}

static int create_lanes(struct tierce__cuda *cuda)
{
    int rc = 0;
    for (size_t i = 0; i < TIERCE__CUDA_LANES && rc == 0; i++)
        rc = create_lane(cuda, &cuda->decoder.lanes[i]);
    return rc;
}

static void destroy_lane(struct tierce__cuda *cuda, struct tierce__cuda_lane *lane)
{
    const struct tierce__cuda_api *api = cuda->api;
    if (lane->memory != NULL)
        (void)tierce__cuda_check(cuda, "cuMemFreeHost", api->host_free(lane->memory));
    if (lane->staging != 0)
        (void)tierce__cuda_check(cuda, "cuMemFree", api->memory_free(lane->staging));
    if (lane->stream != NULL)
        (void)tierce__cuda_check(cuda, "cuStreamDestroy", api->stream_destroy(lane->stream));
    lane->memory = NULL;
    lane->staging = 0;
    lane->stream = NULL;
}

static void destroy_lanes(struct tierce__cuda *cuda)
{
    for (size_t i = 0; i < TIERCE__CUDA_LANES; i++)
        destroy_lane(cuda, &cuda->decoder.lanes[i]);
}

/* ---- the first call -------------------------------------------------------------------------- */

/* A trial: a run of each element, with two sets of symbols, escapes, and an odd byte at the end. */
enum {
    TRIAL_RUN = 9001,
    TRIAL_PART = 1024,
    TRIAL_KINDS = TIERCE__ELEMENTS,
    TRIAL_BYTES = TRIAL_KINDS * TRIAL_RUN,
};

/* Number i of a run: its exponents are like those of KV, most of them near that of its part. */
static uint16_t trial_number(enum tierce__element element, size_t i)
{
    uint64_t random = tierce__mix(i + ((uint64_t)element << 32));
    unsigned bytes = tierce__element_bytes(element), word = (uint16_t)random;
    bool is_odd_part = i * bytes / TRIAL_PART % 2 != 0, is_rare = random >> 58 == 0;
    unsigned exponent = (is_odd_part ? 4u : 9u) + (unsigned)__builtin_ctzll(random | 1U << 20) / 4;
    if (is_rare)
        exponent = (unsigned)(random >> 48) & 0xff;
    switch (element) {
    case TIERCE__ELEMENT_BF16:
        return (uint16_t)((word & 0x807f) | (exponent & 0xff) << 7);
    case TIERCE__ELEMENT_FP16:
        return (uint16_t)((word & 0x83ff) | (exponent & 31) << 10);
    case TIERCE__ELEMENT_E4M3:
        return (uint16_t)((word & 0x87) | (exponent & 15) << 3);
    case TIERCE__ELEMENT_E5M2:
        return (uint16_t)((word & 0x83) | (exponent & 31) << 2);
    case TIERCE__ELEMENT_RAW:
    case TIERCE__SYMBOLS4:
    case TIERCE__SYMBOLS5:
    case TIERCE__ELEMENTS:
        break;
    }
    return (uint16_t)(word & 0xff);
}

static void fill_trial(uint8_t *run, enum tierce__element element)
{
    unsigned bytes = tierce__element_bytes(element);
    for (size_t i = 0; i < TRIAL_RUN; i++)
        run[i] = (uint8_t)(trial_number(element, i / bytes) >> (8 * (i % bytes)));
}

/* Decodes on the device what the host has encoded. */
static int run_trial(struct tierce__cuda *cuda, uint8_t *raw, uint8_t *coded, uint64_t room)
{
    const struct tierce__codec *codec = tierce__codec_find("lossless");
    struct tierce__cuda_decoder *d = &cuda->decoder;
    struct tierce__device_run runs[TRIAL_KINDS];
    for (unsigned kind = 0; kind < TRIAL_KINDS; kind++) {
        struct tierce__codec_shape shape = {.element = (enum tierce__element)kind,
                                            .part_bytes = TRIAL_PART};
        uint8_t *run = raw + (size_t)kind * TRIAL_RUN;
        fill_trial(run, shape.element);
        int64_t bytes = codec->encode(coded + kind * room, room, run, TRIAL_RUN, &shape);
        TIERCE_ASSERT(bytes > 0);
        runs[kind] = (struct tierce__device_run){.to = d->trial + (size_t)kind * TRIAL_RUN,
                                                 .bytes = TRIAL_RUN,
                                                 .from = coded + kind * room,
                                                 .coded = (size_t)bytes};
    }
    struct job job = {
        .cuda = cuda, .lane = &d->lanes[0], .runs = runs, .count = TRIAL_KINDS, .is_trial = true};
    tierce__lock_take(&d->lanes[0].lock);
    int rc = run_job(&job, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&d->lanes[0].lock);
    bool differs = rc == TIERCE_E_FORMAT || (rc == 0 && memcmp(d->trial, raw, TRIAL_BYTES) != 0);
    return differs
               ? tierce__cuda_module_refuse(cuda, &d->module, "its results differ from the host's")
               : rc;
}

static int end_trial(struct tierce__cuda *cuda)
{
    struct tierce__cuda_decoder *d = &cuda->decoder;
    int rc = 0;
    if (d->trial != NULL)
        rc = tierce__cuda_check(cuda, "cuMemFreeHost", cuda->api->host_free(d->trial));
    d->trial = NULL;
    return rc;
}

static int try_kernel(struct tierce__cuda *cuda)
{
    struct tierce__cuda_decoder *d = &cuda->decoder;
    uint64_t room = tierce__codec_bound(TRIAL_RUN);
    uint8_t *raw = tierce__alloc(TRIAL_BYTES), *coded = tierce__alloc(TRIAL_KINDS * room);
    void *memory = NULL;
    int rc = raw != NULL && coded != NULL ? create_lanes(cuda) : -ENOMEM;
    if (rc == 0)
        rc = tierce__cuda_check(
            cuda, "cuMemHostAlloc",
            cuda->api->host_alloc(&memory, TRIAL_BYTES,
                                  TIERCE__CU_HOST_PORTABLE | TIERCE__CU_HOST_DEVICEMAP));
    if (rc == 0) {
        d->trial = memory;
        memset(d->trial, 0, TRIAL_BYTES);
        rc = run_trial(cuda, raw, coded, room);
        if (rc == TIERCE_E_UNSUPPORTED)
            destroy_lanes(cuda);
        else
            atomic_store_explicit(&d->has_lanes, true, memory_order_release);
    }
    tierce__free(raw);
    tierce__free(coded);
    if (rc == -EIO) /* close frees the rest, when the device has stopped */
        return rc;
    int ended = end_trial(cuda);
    return rc < 0 ? rc : ended;
}

static const struct tierce__cuda_module_what decode_module = {
    .ptx = tierce__decode_ptx,
    .kernel = TIERCE__DECODE_KERNEL,
    .blocks_per_processor = 4,
    .lock = TIERCE__LOCK_DECODER,
    .usable = "cuda_decoder",
    .refused = "cuda_no_decoder",
    .note =
        "the GPU decodes chunks; the kernel equals the host's decoder in a trial, and had never "
        "run on a GPU when this version was made",
    .consequence = "the host decodes the chunks that are loaded into this device",
    .try = try_kernel};

/* ---- a call ---------------------------------------------------------------------------------- */

/* One that is free, or else the next one in turn. */
static struct tierce__cuda_lane *take_lane(struct tierce__cuda_decoder *d)
{
    unsigned turn = atomic_fetch_add_explicit(&d->calls, 1, memory_order_relaxed);
    for (unsigned i = 0; i < TIERCE__CUDA_LANES; i++) {
        struct tierce__cuda_lane *lane = &d->lanes[(turn + i) % TIERCE__CUDA_LANES];
        if (tierce__lock_try(&lane->lock))
            return lane;
    }
    struct tierce__cuda_lane *lane = &d->lanes[turn % TIERCE__CUDA_LANES];
    tierce__lock_take(&lane->lock);
    return lane;
}

/* If the device has failed while this call waited for the lane, its staging may be in use. */
static int decode_runs(struct tierce__cuda *cuda, const struct tierce__device_run *runs,
                       size_t count, uint64_t deadline_ns)
{
    struct tierce__cuda_lane *lane = take_lane(&cuda->decoder);
    struct job job = {.cuda = cuda, .lane = lane, .runs = runs, .count = count};
    bool failed = atomic_load_explicit(&cuda->failed, memory_order_relaxed);
    int rc = failed ? -EIO : run_job(&job, deadline_ns);
    tierce__lock_drop(&lane->lock);
    return rc;
}

int tierce__cuda_decode(struct tierce__device *device, const struct tierce__device_run *runs,
                        size_t count, uint64_t deadline_ns)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__device_check_runs(runs, count);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_module_prepare(cuda, &cuda->decoder.module);
    if (rc == 0)
        rc = decode_runs(cuda, runs, count, deadline_ns);
    return tierce__cuda_leave(cuda, rc);
}

void tierce__cuda_decoder_init(struct tierce__cuda_decoder *decoder)
{
    tierce__cuda_module_init(&decoder->module, &decode_module);
    for (size_t i = 0; i < TIERCE__CUDA_LANES; i++)
        tierce__lock_init(&decoder->lanes[i].lock, TIERCE__LOCK_DECODE_LANE);
}

void tierce__cuda_decoder_fini(struct tierce__cuda_decoder *decoder)
{
    tierce__cuda_module_fini(&decoder->module);
    for (size_t i = 0; i < TIERCE__CUDA_LANES; i++)
        tierce__lock_fini(&decoder->lanes[i].lock);
}

void tierce__cuda_decoder_close(struct tierce__cuda *cuda)
{
    (void)end_trial(cuda); /* logged */
    destroy_lanes(cuda);
    tierce__cuda_module_unload(cuda, &cuda->decoder.module);
}
