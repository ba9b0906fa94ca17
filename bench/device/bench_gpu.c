/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/device/bench_gpu.h"

int tierce__bench_gpu_check(const struct tierce__bench_gpu *gpu, const char *call,
                            TIERCE__CU_RESULT code)
{
    char text[TIERCE__CUDA_TEXT_BYTES];
    if (code == TIERCE__CU_SUCCESS)
        return 0;
    return tierce__bench_fail(gpu->bench, "%s", tierce__cuda_text(gpu->api, call, code, text));
}

int tierce__bench_gpu_start(struct tierce__bench_gpu *gpu, const struct tierce__bench *bench)
{
    *gpu = (struct tierce__bench_gpu){.bench = bench};
    if (tierce__cuda_load(&gpu->api) < 0)
        return tierce__bench_fail(bench, "there is no Nvidia GPU with a driver of CUDA 11.0 or "
                                         "newer; the line cuda_unusable says what is missing");
    int rc = tierce__bench_gpu_check(gpu, "cuDeviceGet", gpu->api->device_get(&gpu->device, 0));
    if (rc == 0)
        rc = tierce__bench_gpu_check(gpu, "cuDevicePrimaryCtxRetain",
                                     gpu->api->primary_retain(&gpu->context, gpu->device));
    if (rc < 0)
        return rc;
    rc = tierce__bench_gpu_check(gpu, "cuCtxPushCurrent", gpu->api->context_push(gpu->context));
    if (rc == 0)
        rc = tierce__bench_gpu_check(
            gpu, "cuStreamCreate",
            gpu->api->stream_create(&gpu->stream, TIERCE__CU_STREAM_NON_BLOCKING));
    return rc;
}

void tierce__bench_gpu_stop(struct tierce__bench_gpu *gpu)
{
    TIERCE__CU_CONTEXT context;
    if (gpu->context == NULL)
        return;
    if (gpu->memory != 0)
        (void)tierce__bench_gpu_check(gpu, "cuMemFree", gpu->api->memory_free(gpu->memory));
    if (gpu->stream != NULL)
        (void)tierce__bench_gpu_check(gpu, "cuStreamDestroy",
                                      gpu->api->stream_destroy(gpu->stream));
    (void)tierce__bench_gpu_check(gpu, "cuCtxPopCurrent", gpu->api->context_pop(&context));
    (void)tierce__bench_gpu_check(gpu, "cuDevicePrimaryCtxRelease",
                                  gpu->api->primary_release(gpu->device));
}

int tierce__bench_gpu_finish(const struct tierce__bench_gpu *gpu, TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code;
    do
        code = gpu->api->stream_query(stream);
    while (code == TIERCE__CU_NOT_READY);
    return tierce__bench_gpu_check(gpu, "cuStreamQuery", code);
}
