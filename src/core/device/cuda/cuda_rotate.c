/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that are rotated on the device, by the kernel of kernels/rotate.cu. */
#include "core/device/cuda/cuda_keys.h"

#include <string.h>

#include "base/assert.h"
#include "base/mix.h"
#include "core/codec/element.h"
#include "core/device/kernels/rotate.h"

_Static_assert(sizeof(struct tierce__rotate_launch) <= 4096, "more than a driver accepts");
_Static_assert(TIERCE__ROTATE_PAIRS == TIERCE__ROPE_PAIRS_MAX, "a row may have more pairs");
_Static_assert(TIERCE__DEVICE_HEADS_MAX *TIERCE__ROTATE_PAIRS <= TIERCE__ROTATE_ITEMS_MAX,
               "a token may need several launches");

/* ---- launches -------------------------------------------------------------------------------- */

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

/* Returns the driver's first answer that is not success. */
static TIERCE__CU_RESULT launch_all(const struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                    const void *arg)
{
    const struct tierce__device_keys *keys = arg;
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
        code = tierce__cuda_module_launch(cuda, &cuda->rotations.module, stream,
                                          (what.items - 1) / TIERCE__ROTATE_THREADS + 1,
                                          TIERCE__ROTATE_THREADS, &what);
    }
    return code;
}

/* ---- the trial ------------------------------------------------------------------------------- */

/* The rows of a trial: every type with both kinds of pairs, and any bits as elements. */
enum {
    TRIAL_TOKENS = 5,
    TRIAL_HEADS = 2,
    TRIAL_ELEMENTS = 132, /* of a row, the first and the last two are not rotated */
    TRIAL_ROW = TRIAL_ELEMENTS * 4,
    TRIAL_KINDS = TIERCE__BLEND_DTYPES * 2,
    TRIAL_ROWS = TRIAL_KINDS * TRIAL_TOKENS * TRIAL_HEADS,
    TRIAL_BYTES = TRIAL_ROWS * TRIAL_ROW,
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

static void fill_trial(uint8_t *memory)
{
    for (size_t i = 0; i < TRIAL_BYTES; i++)
        memory[i] = (uint8_t)tierce__mix(i);
}

static TIERCE__CU_RESULT launch_trial(const struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                      uint8_t *memory)
{
    TIERCE__CU_RESULT code = TIERCE__CU_SUCCESS;
    for (unsigned kind = 0; kind < TRIAL_KINDS && code == TIERCE__CU_SUCCESS; kind++) {
        struct tierce__rotation rotation;
        struct tierce__device_keys keys = trial_keys(&rotation, memory, kind);
        code = launch_all(cuda, stream, &keys);
    }
    return code;
}

static void expect_trial(uint8_t *memory)
{
    for (unsigned kind = 0; kind < TRIAL_KINDS; kind++) {
        struct tierce__rotation rotation;
        struct tierce__device_keys keys = trial_keys(&rotation, memory, kind);
        tierce__rotate(keys.rotation, keys.dtype, &keys.rows, &keys.rows, keys.tokens, keys.heads);
    }
}

static const struct tierce__keys_trial trial = {
    .bytes = TRIAL_BYTES, .fill = fill_trial, .launch = launch_trial, .expect = expect_trial};

static int try_kernel(struct tierce__cuda *cuda)
{
    return tierce__cuda_keys_try(cuda, &cuda->rotations, &trial);
}

const struct tierce__cuda_module_what tierce__cuda_rotations = {
    .ptx = tierce__rotate_ptx,
    .kernel = TIERCE__ROTATE_KERNEL,
    .blocks_per_processor = 4,
    .lock = TIERCE__LOCK_ROTATIONS,
    .usable = "cuda_rotation",
    .refused = "cuda_no_rotation",
    .note = "keys are rotated on the GPU; the kernel equals the host's in a trial, and had never "
            "run on a GPU when this version was made",
    .consequence = "no prompt is blended on this device",
    .try = try_kernel};

/* ---- a rotation ------------------------------------------------------------------------------ */

int tierce__cuda_rotate(struct tierce__device *device, const struct tierce__device_keys *keys)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__device_check_keys(keys);
    if (rc < 0 || keys->tokens == 0 || keys->rotation->delta == 0)
        return rc;
    return tierce__cuda_keys_run(cuda, &cuda->rotations, keys->stream, launch_all, keys);
}
