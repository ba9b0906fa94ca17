/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_rotate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "core/codec/element.h"
#include "core/device/kernels/rotate.h"

_Static_assert(sizeof(struct tierce__rotate_launch) <= 4096, "more than a driver accepts");
_Static_assert(TIERCE__ROTATE_PAIRS == TIERCE__ROPE_PAIRS_MAX, "a row may have more pairs");
_Static_assert(TIERCE__DEVICE_HEADS_MAX *TIERCE__ROTATE_PAIRS <= TIERCE__ROTATE_ITEMS_MAX,
               "a token may need several launches");

/* Thread blocks for each multiprocessor: enough threads to hide the time of a read. */
#define BLOCKS_PER_PROCESSOR 4u

void tierce__cuda_rotations_init(struct tierce__cuda_rotations *rotations)
{
    tierce__lock_init(&rotations->lock, TIERCE__LOCK_ROTATIONS);
}

void tierce__cuda_rotations_fini(struct tierce__cuda_rotations *rotations)
{
    tierce__lock_fini(&rotations->lock);
}

/* ---- launches ---------------------------------------------------------------------------------
 */

/* Everything but the rows. */
static void describe(struct tierce__rotate_launch *what, const struct tierce__rotation *rotation,
                     enum tierce__blend_dtype dtype)
{
    size_t bytes = rotation->pairs * sizeof(rotation->cosine[0]);
    what->pairs = rotation->pairs;
    what->is_neox = rotation->layout.style == TIERCE__ROPE_NEOX;
    what->is_fp32 = dtype == TIERCE__BLEND_FP32;
    what->element = dtype == TIERCE__BLEND_BF16   ? TIERCE__ELEMENT_BF16
                    : dtype == TIERCE__BLEND_FP16 ? TIERCE__ELEMENT_FP16
                                                  : TIERCE__ELEMENT_RAW;
    memcpy(what->cosine, rotation->cosine, bytes);
    memcpy(what->sine, rotation->sine, bytes);
}

static TIERCE__CU_RESULT launch(const struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                struct tierce__rotate_launch *what)
{
    void *parameters[] = {what};
    unsigned needed = (what->items - 1) / TIERCE__ROTATE_THREADS + 1;
    unsigned most = cuda->rotations.blocks_max;
    TIERCE_DASSERT(what->items > 0 && what->items <= TIERCE__ROTATE_ITEMS_MAX);
    return cuda->api->launch(cuda->rotations.function, needed < most ? needed : most, 1, 1,
                             TIERCE__ROTATE_THREADS, 1, 1, 0, stream, parameters, NULL);
}

/* Returns the driver's first answer that is not success. */
static TIERCE__CU_RESULT launch_all(const struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                    const struct tierce__device_keys *keys)
{
    const struct tierce__key_rows *rows = &keys->rows;
    size_t first = keys->rotation->layout.first * (size_t)tierce__blend_dtype_bytes(keys->dtype);
    size_t token_items = (size_t)keys->heads * keys->rotation->pairs;
    size_t most = TIERCE__ROTATE_ITEMS_MAX / token_items;
    struct tierce__rotate_launch what = {
        .token_bytes = rows->token_bytes, .head_bytes = rows->head_bytes, .heads = keys->heads};
    TIERCE__CU_RESULT code = TIERCE__CU_SUCCESS;
    TIERCE_ASSERT(most > 0);
    describe(&what, keys->rotation, keys->dtype);
    for (size_t done = 0, some; done < keys->tokens && code == TIERCE__CU_SUCCESS; done += some) {
        some = keys->tokens - done < most ? keys->tokens - done : most;
        what.at = (uintptr_t)rows->at + done * rows->token_bytes + first;
        what.items = (uint32_t)(some * token_items);
        code = launch(cuda, stream, &what);
    }
    return code;
}

/* ---- the first rotation -----------------------------------------------------------------------
 */

/* A failure here does not make the device fail. */
static int refuse(struct tierce__cuda *cuda, const char *why)
{
    cuda->rotations.state = TIERCE__ROTATIONS_REFUSED;
    tierce__log(TIERCE_LOG_WARN, "cuda_no_rotation",
                "device=%d why=\"%s\" consequence=\"no prompt is blended on this device\"",
                cuda->device, why);
    return TIERCE_E_UNSUPPORTED;
}

/* Without memory, nothing is refused: there may be some later. */
static int refuse_call(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code)
{
    char text[TIERCE__CUDA_TEXT_BYTES];
    if (code == TIERCE__CU_SUCCESS)
        return 0;
    if (code == TIERCE__CU_OUT_OF_MEMORY)
        return tierce__cuda_check(cuda, call, code);
    return refuse(cuda, tierce__cuda_text(cuda->api, call, code, text));
}

static int load_module(struct tierce__cuda *cuda)
{
    TIERCE__CU_MODULE module = NULL;
    int rc =
        refuse_call(cuda, "cuModuleLoadData", cuda->api->module_load(&module, tierce__rotate_ptx));
    if (rc == 0)
        cuda->rotations.module = module;
    return rc;
}

/* The function comes last: it shows that nothing is missing. */
static int load_kernel(struct tierce__cuda *cuda)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_FUNCTION function = NULL;
    int processors = 0;
    int rc = r->module != NULL ? 0 : load_module(cuda);
    if (rc == 0)
        rc = refuse_call(
            cuda, "cuDeviceGetAttribute",
            api->device_attribute(&processors, TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS, cuda->device));
    r->blocks_max = (processors > 0 ? (unsigned)processors : 1) * BLOCKS_PER_PROCESSOR;
    if (rc == 0)
        rc = refuse_call(cuda, "cuModuleGetFunction",
                         api->module_function(&function, r->module, TIERCE__ROTATE_KERNEL));
    if (rc == 0)
        r->function = function;
    return rc;
}

/* The rows of a trial: every type with both kinds of pairs, and any bits as elements. */
enum {
    TRIAL_TOKENS = 5,
    TRIAL_HEADS = 2,
    TRIAL_ELEMENTS = 132, /* of a row, the first and the last two are not rotated */
    TRIAL_ROW = TRIAL_ELEMENTS * 4,
    TRIAL_KINDS = TIERCE__BLEND_DTYPES * 2,
    TRIAL_ROWS = TRIAL_KINDS * TRIAL_TOKENS * TRIAL_HEADS,
    TRIAL_BYTES = TRIAL_ROWS * TRIAL_ROW,
    TRIAL_MS = 60000, /* on a busy device */
};

/* The rows of a kind. */
static struct tierce__device_keys trial_keys(struct tierce__rotation *rotation, uint8_t *memory,
                                             unsigned kind)
{
    const struct tierce__rope rope = {
        .layout = {kind % 2 == 0 ? TIERCE__ROPE_NEOX : TIERCE__ROPE_GPTJ, TRIAL_ELEMENTS, 2,
                   TRIAL_ELEMENTS - 2},
        .pairs = TRIAL_ELEMENTS / 2 - 2};
    *rotation = (struct tierce__rotation){.layout = rope.layout, .pairs = rope.pairs, .delta = 1};
    for (unsigned i = 0; i < rope.pairs; i++) { /* any numbers of this size */
        rotation->cosine[i] = (float)(int32_t)(uint32_t)tierce__mix(i + kind) * 0x1p-31f;
        rotation->sine[i] = (float)(int32_t)(uint32_t)tierce__mix(~(i + kind)) * 0x1p-31f;
    }
    return (struct tierce__device_keys){
        .rotation = rotation,
        .dtype = (enum tierce__blend_dtype)(kind / 2),
        .rows = {memory + (size_t)kind * TRIAL_TOKENS * TRIAL_HEADS * TRIAL_ROW,
                 (size_t)TRIAL_HEADS * TRIAL_ROW, TRIAL_ROW},
        .tokens = TRIAL_TOKENS,
        .heads = TRIAL_HEADS};
}

/* Rotates the memory of the trial on the device, and `expected` on the host. */
static int run_trial(struct tierce__cuda *cuda, uint8_t *expected)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    int rc = 0;
    for (unsigned kind = 0; kind < TRIAL_KINDS && rc == 0; kind++) {
        struct tierce__rotation rotation;
        struct tierce__device_keys keys = trial_keys(&rotation, r->memory, kind);
        rc = refuse_call(cuda, "cuLaunchKernel", launch_all(cuda, r->stream, &keys));
        keys = trial_keys(&rotation, expected, kind);
        tierce__rotate(keys.rotation, keys.dtype, &keys.rows, &keys.rows, keys.tokens, keys.heads);
    }
    /* If the launches do not end in time, the device has failed, and the memory stays allocated
     * until close. */
    TIERCE__CU_RESULT code = tierce__cuda_drain(cuda, r->stream, tierce__deadline_in_ms(TRIAL_MS));
    if (code != TIERCE__CU_SUCCESS)
        return tierce__cuda_required(cuda, "cuStreamQuery", code);
    if (rc == 0 && memcmp(r->memory, expected, TRIAL_BYTES) != 0)
        rc = refuse(cuda, "its results differ from the host's");
    return rc;
}

/* Frees what the trial has used. */
static int end_trial(struct tierce__cuda *cuda)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    int rc = 0, destroyed = 0;
    if (r->memory != NULL)
        rc = tierce__cuda_check(cuda, "cuMemFreeHost", cuda->api->host_free(r->memory));
    if (r->stream != NULL)
        destroyed =
            tierce__cuda_check(cuda, "cuStreamDestroy", cuda->api->stream_destroy(r->stream));
    r->memory = NULL;
    r->stream = NULL;
    return rc < 0 ? rc : destroyed;
}

static int try_kernel(struct tierce__cuda *cuda)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    const struct tierce__cuda_api *api = cuda->api;
    void *memory = NULL;
    uint8_t *expected = tierce__alloc(TRIAL_BYTES);
    int rc = expected != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuStreamCreate",
                                api->stream_create(&r->stream, TIERCE__CU_STREAM_NON_BLOCKING));
    if (rc == 0)
        rc = tierce__cuda_check(
            cuda, "cuMemHostAlloc",
            api->host_alloc(&memory, TRIAL_BYTES,
                            TIERCE__CU_HOST_PORTABLE | TIERCE__CU_HOST_DEVICEMAP));
    if (rc == 0) {
        r->memory = memory;
        for (size_t i = 0; i < TRIAL_BYTES; i++)
            r->memory[i] = expected[i] = (uint8_t)tierce__mix(i);
        rc = run_trial(cuda, expected);
    }
    tierce__free(expected);
    if (rc == -EIO) /* close frees the rest, when the device has stopped */
        return rc;
    int ended = end_trial(cuda);
    return rc < 0 ? rc : ended;
}

/* A driver that lacks memory may have it later, so the next rotation tries again. */
static int open_kernel(struct tierce__cuda *cuda)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    int rc = r->function != NULL ? 0 : load_kernel(cuda);
    if (rc == 0)
        rc = try_kernel(cuda);
    if (rc < 0)
        return rc;
    r->state = TIERCE__ROTATIONS_USABLE;
    tierce__log(TIERCE_LOG_INFO, "cuda_rotation",
                "device=%d thread_blocks=%u note=\"keys are rotated on the GPU; the kernel equals "
                "the host's in a trial, and had never run on a GPU when this version was made\"",
                cuda->device, r->blocks_max);
    return 0;
}

/* The device may have failed in the trial of another thread, for which this one has waited. What
 * that trial has left is in use until close. */
static int prepare(struct tierce__cuda *cuda)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    int rc = 0;
    tierce__lock_take(&r->lock);
    if (atomic_load_explicit(&cuda->failed, memory_order_relaxed))
        rc = -EIO;
    else if (r->state == TIERCE__ROTATIONS_REFUSED)
        rc = TIERCE_E_UNSUPPORTED;
    else if (r->state == TIERCE__ROTATIONS_NEW)
        rc = open_kernel(cuda);
    tierce__lock_drop(&r->lock);
    return rc;
}

/* ---- a rotation -------------------------------------------------------------------------------
 */

/* The event is created before the launch: without memory for it, nothing is enqueued. */
static int enqueue(struct tierce__cuda *cuda, const struct tierce__device_keys *keys)
{
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_STREAM stream = tierce__cuda_own_stream(cuda, TIERCE__DIRECTION_SCATTER);
    TIERCE__CU_EVENT after;
    int rc = tierce__cuda_check(cuda, "cuEventCreate",
                                api->event_create(&after, TIERCE__CU_EVENT_DISABLE_TIMING));
    if (rc < 0)
        return rc;
    rc = tierce__cuda_follow(cuda, stream, keys->stream);
    if (rc == 0) {
        int launched =
            tierce__cuda_enqueued(cuda, "cuLaunchKernel", launch_all(cuda, stream, keys));
        rc = tierce__cuda_required(cuda, "cuEventRecord", api->event_record(after, stream));
        if (rc == 0)
            rc = tierce__cuda_required(cuda, "cuStreamWaitEvent",
                                       api->stream_wait(keys->stream, after, 0));
        rc = launched < 0 && rc == 0 ? launched : rc;
    }
    /* If the driver only lacks memory for this call, the keys are rotated all the same. */
    int freed = tierce__cuda_check(cuda, "cuEventDestroy", api->event_destroy(after));
    return rc == 0 && freed == -EIO ? freed : rc;
}

int tierce__cuda_rotate(struct tierce__device *device, const struct tierce__device_keys *keys)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__device_check_keys(keys);
    if (rc < 0 || keys->tokens == 0 || keys->rotation->delta == 0)
        return rc;
    rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    rc = prepare(cuda);
    if (rc == 0)
        rc = enqueue(cuda, keys);
    return tierce__cuda_leave(cuda, rc);
}

void tierce__cuda_rotations_close(struct tierce__cuda *cuda)
{
    struct tierce__cuda_rotations *r = &cuda->rotations;
    (void)end_trial(cuda); /* logged */
    if (r->module != NULL)
        (void)tierce__cuda_check(cuda, "cuModuleUnload", cuda->api->module_unload(r->module));
    r->module = NULL;
}
