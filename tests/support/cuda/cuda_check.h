/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CUDA_CHECK_H
#define TIERCE_TESTS_CUDA_CHECK_H

#include "check_main.h"
#include "cuda_fake.h"

/* The inference engine's own use of the fake driver, for the fixtures of the device and of Tierce's
 * engine. */

static inline void cuda_check(TIERCE__CU_RESULT code)
{
    ck_assert_int_eq(code, TIERCE__CU_SUCCESS);
}

/* Starts the driver. Returns the engine's stream; its context is current. */
static inline TIERCE__CU_STREAM cuda_check_start(TIERCE__CU_CONTEXT *context, uint64_t seed,
                                                 int ordinal)
{
    TIERCE__CU_STREAM stream;
    cuda_fake_seed(seed, 100);
    cuda_check(cuInit(0));
    cuda_check(cuDevicePrimaryCtxRetain(context, ordinal));
    cuda_check(cuCtxPushCurrent_v2(*context));
    cuda_check(cuStreamCreate(&stream, 1));
    return stream;
}

/* Checks that no object of Tierce is left on the device, only the engine's stream, context and
 * memory, and that no violation was reported. */
static inline void cuda_check_left(unsigned memories)
{
    struct cuda_fake_live live = cuda_fake_live();
    ck_assert_str_eq(cuda_fake_report(), "");
    ck_assert_uint_eq(live.streams, 1);
    ck_assert_uint_eq(live.events, 0);
    ck_assert_uint_eq(live.slices, 0);
    ck_assert_uint_eq(live.contexts, 1);
    ck_assert_uint_eq(live.stack, 1);
    ck_assert_uint_eq(live.memories, memories);
    ck_assert_uint_eq(live.host_memories, 0);
    ck_assert_uint_eq(live.modules, 0);
}

#endif
