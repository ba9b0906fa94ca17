/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CUDA_CHECK_H
#define TIERCE_TESTS_CUDA_CHECK_H

#include "check_main.h"
#include "cuda_fake.h"

/* Several devices of the fake driver, each with an inference engine; gpu.h has one, on any driver.
 */

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

#endif
