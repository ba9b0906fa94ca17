/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_keys.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

enum { TRIAL_MS = 60000 }; /* on a busy device */

/* ---- the trial ------------------------------------------------------------------------------- */

/* Runs the trial on the device, and on the host with the same input at `expected`. */
static int run_trial(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys,
                     const struct tierce__keys_trial *trial, uint8_t *expected)
{
    trial->fill(keys->memory);
    trial->fill(expected);
    int rc = tierce__cuda_module_check(cuda, &keys->module, "cuLaunchKernel",
                                       trial->launch(cuda, keys->stream, keys->memory));
    trial->expect(expected);
    /* If the launches do not end in time, the device has failed, and the memory stays allocated
     * until close. */
    TIERCE__CU_RESULT code =
        tierce__cuda_drain(cuda, keys->stream, tierce__deadline_in_ms(TRIAL_MS));
    if (code != TIERCE__CU_SUCCESS)
        return tierce__cuda_required(cuda, "cuStreamQuery", code);
    if (rc == 0 && memcmp(keys->memory, expected, trial->bytes) != 0)
        rc = tierce__cuda_module_refuse(cuda, &keys->module, "its results differ from the host's");
    return rc;
}

/* Frees what the trial has used. */
static int end_trial(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys)
{
    int rc = 0, destroyed = 0;
    if (keys->memory != NULL)
        rc = tierce__cuda_check(cuda, "cuMemFreeHost", cuda->api->host_free(keys->memory));
    if (keys->stream != NULL)
        destroyed =
            tierce__cuda_check(cuda, "cuStreamDestroy", cuda->api->stream_destroy(keys->stream));
    keys->memory = NULL;
    keys->stream = NULL;
    return rc < 0 ? rc : destroyed;
}

int tierce__cuda_keys_try(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys,
                          const struct tierce__keys_trial *trial)
{
    const struct tierce__cuda_api *api = cuda->api;
    void *memory = NULL;
    uint8_t *expected = tierce__alloc(trial->bytes);
    int rc = expected != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuStreamCreate",
                                api->stream_create(&keys->stream, TIERCE__CU_STREAM_NON_BLOCKING));
    if (rc == 0)
        rc = tierce__cuda_check(
            cuda, "cuMemHostAlloc",
            api->host_alloc(&memory, trial->bytes,
                            TIERCE__CU_HOST_PORTABLE | TIERCE__CU_HOST_DEVICEMAP));
    if (rc == 0) {
        keys->memory = memory;
        rc = run_trial(cuda, keys, trial, expected);
    }
    tierce__free(expected);
    if (rc == -EIO) /* close frees the rest, when the device has stopped */
        return rc;
    int ended = end_trial(cuda, keys);
    return rc < 0 ? rc : ended;
}

/* ---- a use ----------------------------------------------------------------------------------- */

/* The event is created before the launch: without memory for it, nothing is enqueued. */
static int enqueue(struct tierce__cuda *cuda, void *callers_stream,
                   tierce__keys_launch_fn *launch_all, const void *what)
{
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_STREAM stream = tierce__cuda_own_stream(cuda, TIERCE__DIRECTION_SCATTER);
    TIERCE__CU_EVENT after;
    int rc = tierce__cuda_check(cuda, "cuEventCreate",
                                api->event_create(&after, TIERCE__CU_EVENT_DISABLE_TIMING));
    if (rc < 0)
        return rc;
    rc = tierce__cuda_follow(cuda, stream, callers_stream);
    if (rc == 0) {
        int launched =
            tierce__cuda_enqueued(cuda, "cuLaunchKernel", launch_all(cuda, stream, what));
        rc = tierce__cuda_required(cuda, "cuEventRecord", api->event_record(after, stream));
        if (rc == 0)
            rc = tierce__cuda_required(cuda, "cuStreamWaitEvent",
                                       api->stream_wait(callers_stream, after, 0));
        rc = launched < 0 && rc == 0 ? launched : rc;
    }
    /* If the driver only lacks memory for this call, the kernel runs all the same. */
    int freed = tierce__cuda_check(cuda, "cuEventDestroy", api->event_destroy(after));
    return rc == 0 && freed == -EIO ? freed : rc;
}

int tierce__cuda_keys_run(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys,
                          void *callers_stream, tierce__keys_launch_fn *launch_all,
                          const void *what)
{
    int rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_module_prepare(cuda, &keys->module);
    if (rc == 0)
        rc = enqueue(cuda, callers_stream, launch_all, what);
    return tierce__cuda_leave(cuda, rc);
}

void tierce__cuda_keys_close(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys)
{
    (void)end_trial(cuda, keys); /* logged */
    tierce__cuda_module_unload(cuda, &keys->module);
}
