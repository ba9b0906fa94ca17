/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BENCH_SPINNER_H
#define TIERCE_BENCH_SPINNER_H

#include "core/device/cuda/cuda_driver.h"

/*
 * Work of an inference engine for benchmarks and tests: a kernel that takes a given time on a
 * stream (core/device/kernels/spin.cu). All calls need a current context.
 */

struct tierce__spinner {
    const struct tierce__cuda_api *api;
    TIERCE__CU_MODULE module;
    TIERCE__CU_FUNCTION function;
};

/* Errors of the driver, *spinner is then empty. */
TIERCE__CU_RESULT tierce__spinner_init(struct tierce__spinner *spinner,
                                       const struct tierce__cuda_api *api);
/* No launch may be in progress. An empty spinner is accepted. */
TIERCE__CU_RESULT tierce__spinner_fini(struct tierce__spinner *spinner);

/* Enqueues work of `ns` nanoseconds on each of `blocks` multiprocessors, which ends earlier when
 * *release is not 0. release: NULL, or memory of cuMemHostAlloc. Does not block. */
TIERCE__CU_RESULT tierce__spinner_launch(const struct tierce__spinner *spinner,
                                         TIERCE__CU_STREAM stream, unsigned blocks, uint64_t ns,
                                         const uint32_t *release);

#endif
