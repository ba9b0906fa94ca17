/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_fake_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

static struct {
    bool initialised, held, broken;
    int version;
    uint64_t random;
    unsigned delay_us;
    uint64_t made, fail_at;
    TIERCE__CU_RESULT fail_code;
    struct cuda_fake_calls calls;
    char report[16384];
    size_t report_bytes;
} fake = {.version = 13000, .delay_us = 50};

/* A child of fork reads the number of calls, so no stream's thread may hold the lock at the fork.
 */
static void before_fork(void)
{
    pthread_mutex_lock(&fake_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&fake_lock);
}

/* A program that does not know the fake has its delays from the environment. */
__attribute__((constructor)) static void start(void)
{
    const char *delay_us = getenv("CUDA_FAKE_DELAY_US");
    if (delay_us != NULL)
        fake.delay_us = (unsigned)strtoul(delay_us, NULL, 10);
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* ---- calls ------------------------------------------------------------------------------------
 */

void fake_violation(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof(fake.report) - fake.report_bytes;
    int n = vsnprintf(fake.report + fake.report_bytes, room, format, args);
    va_end(args);
    if (n > 0 && (size_t)n + 2 < room) {
        fake.report_bytes += (size_t)n;
        fake.report[fake.report_bytes++] = '\n';
        fake.report[fake.report_bytes] = '\0';
    }
}

static _Thread_local uint64_t made_here;

TIERCE__CU_RESULT fake_begin(const char *call, bool needs_context)
{
    pthread_mutex_lock(&fake_lock);
    fake.calls.all++;
    made_here++;
    if (++fake.made == fake.fail_at)
        return fake.fail_code;
    if (!fake.initialised) {
        fake_violation("%s before cuInit", call);
        return TIERCE__CU_NOT_INITIALIZED;
    }
    if (needs_context && fake_current() == NULL) {
        fake_violation("%s without a current context", call);
        return TIERCE__CU_INVALID_CONTEXT;
    }
    return fake.broken && needs_context ? TIERCE__CU_LAUNCH_FAILED : TIERCE__CU_SUCCESS;
}

static _Thread_local TIERCE__CU_CAPTURE_MODE capture_mode;

TIERCE__CU_RESULT fake_begin_unsafe(const char *call)
{
    TIERCE__CU_RESULT code = fake_begin(call, true);
    if (code == TIERCE__CU_SUCCESS && fake_captures() && capture_mode != TIERCE__CU_CAPTURE_RELAXED)
        fake_violation("%s while a graph is being captured", call);
    return code;
}

TIERCE__CU_RESULT cuThreadExchangeStreamCaptureMode(TIERCE__CU_CAPTURE_MODE *mode)
{
    TIERCE__CU_RESULT code = fake_begin("cuThreadExchangeStreamCaptureMode", false);
    if (code == TIERCE__CU_SUCCESS) {
        TIERCE__CU_CAPTURE_MODE before = capture_mode;
        capture_mode = *mode;
        *mode = before;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT fake_end(TIERCE__CU_RESULT code)
{
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return code;
}

bool fake_is_held(void)
{
    return fake.held;
}

bool fake_is_broken(void)
{
    return fake.broken;
}

uint64_t fake_random(void)
{
    return tierce__random_next(&fake.random);
}

unsigned fake_delay_us(void)
{
    return fake.delay_us > 0 ? (unsigned)(fake_random() % (fake.delay_us + 1)) : 0;
}

void fake_count_copy(bool batch)
{
    if (batch)
        fake.calls.batches++;
    else
        fake.calls.copies++;
}

void fake_count_launch(void)
{
    fake.calls.launches++;
}

void fake_count_host(void)
{
    fake.calls.host_functions++;
}

/* ---- control ----------------------------------------------------------------------------------
 */

void cuda_fake_seed(uint64_t seed, unsigned delay_us)
{
    pthread_mutex_lock(&fake_lock);
    fake.random = seed;
    fake.delay_us = delay_us;
    pthread_mutex_unlock(&fake_lock);
}

void cuda_fake_hold(bool held)
{
    pthread_mutex_lock(&fake_lock);
    fake.held = held;
    (void)fake_end(0);
}

void cuda_fake_break(void)
{
    pthread_mutex_lock(&fake_lock);
    fake.broken = true;
    (void)fake_end(0);
}

void cuda_fake_set_version(int version)
{
    fake.version = version;
}

uint64_t cuda_fake_fail_nth(uint64_t nth, TIERCE__CU_RESULT code)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t made = fake.made;
    fake.made = 0;
    fake.fail_at = nth;
    fake.fail_code = code;
    pthread_mutex_unlock(&fake_lock);
    return made;
}

void cuda_fake_capture(TIERCE__CU_STREAM stream, bool captured)
{
    pthread_mutex_lock(&fake_lock);
    fake_set_capture(stream, captured);
    pthread_mutex_unlock(&fake_lock);
}

uint64_t cuda_fake_calls_here(void)
{
    return made_here;
}

struct cuda_fake_calls cuda_fake_calls(void)
{
    pthread_mutex_lock(&fake_lock);
    struct cuda_fake_calls calls = fake.calls;
    pthread_mutex_unlock(&fake_lock);
    return calls;
}

struct cuda_fake_live cuda_fake_live(void)
{
    pthread_mutex_lock(&fake_lock);
    struct cuda_fake_live live = {.streams = fake_streams(),
                                  .events = fake_events(),
                                  .slices = fake_slices(),
                                  .contexts = fake_retained(),
                                  .stack = fake_stack_depth(),
                                  .memories = fake_memories(),
                                  .host_memories = fake_host_memories(),
                                  .modules = fake_modules()};
    pthread_mutex_unlock(&fake_lock);
    return live;
}

/* The text grows until the test clears it. */
const char *cuda_fake_report(void)
{
    return fake.report;
}

void cuda_fake_forgive(void)
{
    pthread_mutex_lock(&fake_lock);
    fake.report_bytes = 0;
    fake.report[0] = '\0';
    pthread_mutex_unlock(&fake_lock);
}

/* ---- the driver -------------------------------------------------------------------------------
 */

TIERCE__CU_RESULT cuInit(unsigned int flags)
{
    pthread_mutex_lock(&fake_lock);
    fake.calls.all++;
    if (++fake.made == fake.fail_at)
        return fake_end(fake.fail_code);
    fake.initialised = true;
    return fake_end(flags == 0 ? TIERCE__CU_SUCCESS : TIERCE__CU_INVALID_VALUE);
}

TIERCE__CU_RESULT cuDriverGetVersion(int *version)
{
    TIERCE__CU_RESULT code = fake_begin("cuDriverGetVersion", false);
    if (code == TIERCE__CU_SUCCESS)
        *version = fake.version;
    return fake_end(code);
}

TIERCE__CU_RESULT cuGetErrorName(TIERCE__CU_RESULT code, const char **name)
{
    *name =
        code == TIERCE__CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FAKE";
    return TIERCE__CU_SUCCESS;
}
