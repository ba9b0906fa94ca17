/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/mix.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BURST_PER_SECOND 20
#define EVENT_SLOTS      64

/* The burst counters of the events seen; a hash collision only makes two names share a burst. */
struct burst {
    uint64_t second;
    uint32_t emitted;
    uint32_t dropped;
};

/* A plain mutex, not a tierce__lock: lock.c itself reports through this file. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct burst bursts[EVENT_SLOTS];
static tierce_log_fn *receiver;
static void *receiver_arg;
static enum tierce_log_level lowest_level = TIERCE_LOG_WARN;
static _Atomic(tierce_panic_fn *) panic_receiver;

static void write_to_stderr(void *arg, enum tierce_log_level level, const char *event,
                            const char *detail)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    char stamp[TIERCE__LOG_STAMP_BYTES];
    (void)arg;
    TIERCE_DASSERT((size_t)level < sizeof(names) / sizeof(*names));
    fprintf(stderr, "%s tierce level=%s event=%s %s\n", tierce__log_stamp(stamp), names[level],
            event, detail);
}

const char *tierce__log_stamp(char stamp[TIERCE__LOG_STAMP_BYTES])
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t bytes = strftime(stamp, TIERCE__LOG_STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    TIERCE_DASSERT(bytes > 0 && bytes < TIERCE__LOG_STAMP_BYTES);
    snprintf(stamp + bytes, TIERCE__LOG_STAMP_BYTES - bytes, ".%03ldZ", now.tv_nsec / 1000000);
    return stamp;
}

void tierce__log_to_stderr(const char *who, const char *text)
{
    char stamp[TIERCE__LOG_STAMP_BYTES];
    fprintf(stderr, "%s %s: %s\n", tierce__log_stamp(stamp), who, text);
}

void tierce__log_lowest(enum tierce_log_level lowest)
{
    pthread_mutex_lock(&mutex);
    if (receiver == NULL)
        lowest_level = lowest;
    pthread_mutex_unlock(&mutex);
}

void tierce_set_log_fn(tierce_log_fn *fn, void *arg, enum tierce_log_level lowest)
{
    pthread_mutex_lock(&mutex);
    receiver = fn;
    receiver_arg = arg;
    lowest_level = lowest;
    memset(bursts, 0, sizeof(bursts));
    pthread_mutex_unlock(&mutex);
}

void tierce_set_panic_fn(tierce_panic_fn *fn)
{
    atomic_store_explicit(&panic_receiver, fn, memory_order_release); /* pairs with panic */
}

static size_t slot_of(const char *event)
{
    return tierce__hash_text(TIERCE__HASH_TEXT, event) % EVENT_SLOTS;
}

/* Whether the event may be logged; *dropped gets the number of events that an earlier second
 * suppressed. Under the mutex. */
static bool admit(const char *event, uint32_t *dropped)
{
    struct burst *b = &bursts[slot_of(event)];
    uint64_t second = tierce__now_ns() / 1000000000ULL;
    *dropped = 0;
    if (b->second != second) {
        *dropped = b->dropped;
        *b = (struct burst){.second = second};
    }
    TIERCE_DASSERT(b->emitted <= BURST_PER_SECOND);
    if (b->emitted >= BURST_PER_SECOND) {
        b->dropped++;
        return false;
    }
    b->emitted++;
    return true;
}

void tierce__log(enum tierce_log_level level, const char *event, const char *format, ...)
{
    TIERCE_DASSERT(level <= TIERCE_LOG_ERROR);
    pthread_mutex_lock(&mutex);
    tierce_log_fn *fn = receiver != NULL ? receiver : write_to_stderr;
    void *arg = receiver_arg;
    uint32_t dropped = 0;
    bool pass = level >= lowest_level && admit(event, &dropped);
    pthread_mutex_unlock(&mutex);
    if (!pass)
        return;

    char detail[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(detail, sizeof(detail), format, ap);
    va_end(ap);
    if (dropped > 0 && n >= 0 && (size_t)n < sizeof(detail))
        snprintf(detail + n, sizeof(detail) - (size_t)n, " dropped_before=%u", dropped);
    fn(arg, level, event, detail);
}

_Noreturn void tierce__panic(const char *file, int line, const char *text)
{
    char message[512];
    snprintf(message, sizeof(message), "%s:%d: broken invariant: %s", file, line, text);
    tierce_panic_fn *fn = atomic_load_explicit(&panic_receiver, memory_order_acquire);
    if (fn != NULL)
        fn(message);
    else
        fprintf(stderr, "tierce panic: %s\n", message);
    abort();
}
