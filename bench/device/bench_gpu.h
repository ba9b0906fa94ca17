/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_GPU_H
#define TIERCE_CLI_BENCH_GPU_H

#include "bench/bench.h"
#include "core/device/cuda/cuda_driver.h"

/* The first GPU as an inference engine uses it: a context that is current, a stream, and memory. */
struct tierce__bench_gpu {
    const struct tierce__bench *bench;
    const struct tierce__cuda_api *api;
    TIERCE__CU_DEVICE device;
    TIERCE__CU_CONTEXT context;
    TIERCE__CU_STREAM stream;
    TIERCE__CU_ADDRESS memory; /* 0: none yet */
};

/* Reports an error of the driver. Returns 0 or the error of tierce__bench_fail. */
int tierce__bench_gpu_check(const struct tierce__bench_gpu *gpu, const char *call,
                            TIERCE__CU_RESULT code);

/* Errors are reported; stop it in any case. Without a GPU: tierce__bench_fail's. */
TIERCE_MUSTUSE int tierce__bench_gpu_start(struct tierce__bench_gpu *gpu,
                                           const struct tierce__bench *bench);
void tierce__bench_gpu_stop(struct tierce__bench_gpu *gpu);

/* Waits for all work on a stream. */
TIERCE_MUSTUSE int tierce__bench_gpu_finish(const struct tierce__bench_gpu *gpu,
                                            TIERCE__CU_STREAM stream);

/* The part of the benchmark `device` that loads layer by layer behind work. */
TIERCE_MUSTUSE int tierce__bench_overlap(struct tierce__bench_gpu *gpu);

/* The part that decodes on the GPU. */
TIERCE_MUSTUSE int tierce__bench_decode(struct tierce__bench_gpu *gpu);

#endif
