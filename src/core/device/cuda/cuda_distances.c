/* SPDX-License-Identifier: Apache-2.0 */
/* Distances of keys that are computed on the device, by the kernel of kernels/distances.cu. */
#include "core/device/cuda/cuda_keys.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/mix.h"
#include "core/blend/select.h"
#include "core/codec/element.h"
#include "core/device/kernels/distances.h"

_Static_assert(TIERCE__DEVICE_ELEMENTS_MAX <= UINT32_MAX / 4, "offsets in a row have 32 bits");

/* ---- launches -------------------------------------------------------------------------------- */

/* Returns the driver's first answer that is not success. */
static TIERCE__CU_RESULT launch_all(const struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                    const void *arg)
{
    const struct tierce__device_distances *keys = arg;
    struct tierce__distances_launch what = {
        .a_token_bytes = keys->a.token_bytes,
        .a_head_bytes = keys->a.head_bytes,
        .b_token_bytes = keys->b.token_bytes,
        .b_head_bytes = keys->b.head_bytes,
        .heads = keys->heads,
        .elements = keys->row_elements,
        .is_fp32 = keys->dtype == TIERCE__BLEND_FP32,
        .element = keys->dtype == TIERCE__BLEND_BF16   ? TIERCE__ELEMENT_BF16
                   : keys->dtype == TIERCE__BLEND_FP16 ? TIERCE__ELEMENT_FP16
                                                       : TIERCE__ELEMENT_RAW};
    TIERCE__CU_RESULT code = TIERCE__CU_SUCCESS;
    for (size_t done = 0, some; done < keys->tokens && code == TIERCE__CU_SUCCESS; done += some) {
        size_t left = keys->tokens - done;
        some = left < TIERCE__DISTANCES_TOKENS_MAX ? left : TIERCE__DISTANCES_TOKENS_MAX;
        what.to = (uintptr_t)(keys->to + done);
        what.a = (uintptr_t)keys->a.at + done * keys->a.token_bytes;
        what.b = (uintptr_t)keys->b.at + done * keys->b.token_bytes;
        what.tokens = (uint32_t)some;
        code = tierce__cuda_module_launch(cuda, &cuda->distances.module, stream,
                                          (what.tokens - 1) / TIERCE__DISTANCES_TOKENS + 1,
                                          TIERCE__DISTANCES_THREADS, &what);
    }
    return code;
}

/* ---- the trial ------------------------------------------------------------------------------- */

/* Keys of every type. The last tokens have any bits, so that their distances may be infinite or a
 * NaN; the elements of the others are of about the same size, so that each rounding counts. */
enum {
    TRIAL_TOKENS = 37,
    TRIAL_ANY = 4,
    TRIAL_HEADS = 2,
    TRIAL_ELEMENTS = 39, /* two for each lane, and a part */
    TRIAL_ROW = TRIAL_ELEMENTS * 4,
    TRIAL_TOKEN = TRIAL_HEADS * TRIAL_ROW,
};

struct trial {
    float to[TIERCE__BLEND_DTYPES][TRIAL_TOKENS];
    uint8_t a[TIERCE__BLEND_DTYPES][TRIAL_TOKENS * TRIAL_TOKEN];
    uint8_t b[TIERCE__BLEND_DTYPES][TRIAL_TOKENS * TRIAL_TOKEN];
};

static struct trial *trial_in(uint8_t *memory)
{
    TIERCE_DASSERT((uintptr_t)memory % _Alignof(struct trial) == 0);
    return (struct trial *)(void *)memory;
}

static struct tierce__device_distances trial_keys(uint8_t *memory, unsigned dtype)
{
    struct trial *trial = trial_in(memory);
    return (struct tierce__device_distances){.dtype = (enum tierce__blend_dtype)dtype,
                                             .to = trial->to[dtype],
                                             .a = {trial->a[dtype], TRIAL_TOKEN, TRIAL_ROW},
                                             .b = {trial->b[dtype], TRIAL_TOKEN, TRIAL_ROW},
                                             .tokens = TRIAL_TOKENS,
                                             .heads = TRIAL_HEADS,
                                             .row_elements = TRIAL_ELEMENTS};
}

/* An element of any sign and fraction, with one of four exponents unless it has any bits. */
static uint32_t trial_element(enum tierce__blend_dtype dtype, uint64_t random, bool any)
{
    static const uint32_t fraction[] = {7, 10, 23}, bias[] = {127, 15, 127};
    uint32_t bits = (uint32_t)(random >> 32), shift = fraction[dtype];
    uint32_t sign = dtype == TIERCE__BLEND_FP32 ? 1u << 31 : 1u << 15;
    uint32_t exponent = (bias[dtype] + (uint32_t)(random & 3)) << shift;
    return any ? bits : (bits & (sign | ((1u << shift) - 1))) | exponent;
}

static void fill_rows(uint8_t *rows, enum tierce__blend_dtype dtype, uint64_t seed)
{
    size_t bytes = tierce__blend_dtype_bytes(dtype);
    for (size_t row = 0; row < TRIAL_TOKENS * TRIAL_HEADS; row++) {
        for (size_t i = 0; i < TRIAL_ELEMENTS; i++) {
            bool any = row >= (TRIAL_TOKENS - TRIAL_ANY) * TRIAL_HEADS;
            uint64_t random = tierce__mix(seed + row * TRIAL_ELEMENTS + i);
            uint32_t bits = trial_element(dtype, random, any);
            memcpy(rows + row * TRIAL_ROW + i * bytes, &bits, bytes); /* little-endian */
        }
    }
}

static void fill_trial(uint8_t *memory)
{
    struct trial *trial = trial_in(memory);
    memset(trial, 0, sizeof(*trial));
    for (unsigned dtype = 0; dtype < TIERCE__BLEND_DTYPES; dtype++) {
        fill_rows(trial->a[dtype], (enum tierce__blend_dtype)dtype, 1u << 20);
        fill_rows(trial->b[dtype], (enum tierce__blend_dtype)dtype, 2u << 20);
    }
}

static TIERCE__CU_RESULT launch_trial(const struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                      uint8_t *memory)
{
    TIERCE__CU_RESULT code = TIERCE__CU_SUCCESS;
    for (unsigned dtype = 0; dtype < TIERCE__BLEND_DTYPES && code == TIERCE__CU_SUCCESS; dtype++) {
        struct tierce__device_distances keys = trial_keys(memory, dtype);
        code = launch_all(cuda, stream, &keys);
    }
    return code;
}

/* The host's NaN has any payload, and the kernel's has one. */
static void expect_trial(uint8_t *memory)
{
    static const uint32_t nan_bits = 0x7fc00000u;
    for (unsigned dtype = 0; dtype < TIERCE__BLEND_DTYPES; dtype++) {
        struct tierce__device_distances keys = trial_keys(memory, dtype);
        tierce__key_distances(keys.to, keys.dtype, &keys.a, &keys.b, keys.tokens, keys.heads,
                              keys.row_elements);
        for (size_t t = 0; t < keys.tokens; t++) {
            if (isnan(keys.to[t]))
                memcpy(&keys.to[t], &nan_bits, sizeof(nan_bits));
        }
    }
}

static const struct tierce__keys_trial trial = {.bytes = sizeof(struct trial),
                                                .fill = fill_trial,
                                                .launch = launch_trial,
                                                .expect = expect_trial};

static int try_kernel(struct tierce__cuda *cuda)
{
    return tierce__cuda_keys_try(cuda, &cuda->distances, &trial);
}

const struct tierce__cuda_module_what tierce__cuda_distances_of = {
    .ptx = tierce__distances_ptx,
    .kernel = TIERCE__DISTANCES_KERNEL,
    .blocks_per_processor = 4,
    .lock = TIERCE__LOCK_DISTANCES,
    .usable = "cuda_distances",
    .refused = "cuda_no_distances",
    .note = "keys are compared on the GPU; the kernel equals the host's in a trial, and had never "
            "run on a GPU when this version was made",
    .consequence = "no prompt is blended on this device",
    .try = try_kernel};

/* ---- distances ------------------------------------------------------------------------------- */

int tierce__cuda_distances(struct tierce__device *device,
                           const struct tierce__device_distances *keys)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__device_check_distances(keys);
    if (rc < 0 || keys->tokens == 0)
        return rc;
    return tierce__cuda_keys_run(cuda, &cuda->distances, keys->stream, launch_all, keys);
}
