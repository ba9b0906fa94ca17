/* SPDX-License-Identifier: Apache-2.0 */
/* The sources of `tierce optimize --live`: a thread reads each source. */
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/optimize/optimize_live.h"

#include <stdio.h>
#include <string.h>

#define COMMAND    "optimize"
#define SILENCE_MS 3000u /* silence after which a notice is printed */

/* ---- a reader -------------------------------------------------------------------------------- */

/* Publishes the present state of a source. */
static void note(struct tierce__follow *f, struct tierce__followed *one)
{
    tierce__lock_assert_held(&f->lock);
    one->counts = *tierce__live_counts(one->source);
    if (one->trace != NULL) {
        const struct tierce__trace_report *report = tierce__trace_report(one->trace);
        one->bad_lines = report->bad_lines;
        one->fault = report->faults[0];
    }
}

static int take(struct tierce__follow *f, struct tierce__followed *one,
                const struct tierce__trace_request *request)
{
    uint32_t index = (uint32_t)(one - f->sources);
    tierce__lock_take(&f->lock);
    int rc = tierce__live_window_add(f->window, index, request, tierce__now_ns());
    one->requests++;
    note(f, one);
    tierce__lock_drop(&f->lock);
    return rc;
}

/* Until the source ends; 0 or an error, of which `why` is a sentence. */
static int read_requests(struct tierce__follow *f, struct tierce__followed *one,
                         char why[TIERCE__TRACE_WHY_BYTES])
{
    const char *format = tierce__live_format(one->source);
    struct tierce__trace_opts opts = {
        .size = sizeof(opts),
        .format = f->request->format != NULL ? f->request->format : format,
        .bad_share_max = f->request->bad_share_max > 0 ? f->request->bad_share_max : 1,
        .as_they_come = true,
    };
    struct tierce__trace *trace;
    int rc = tierce__trace_open_source(&trace, tierce__live_trace_source(one->source), &opts, why);
    if (rc < 0)
        return rc;
    one->trace = trace;
    struct tierce__trace_request request;
    while (!atomic_load(f->stop) && (rc = tierce__trace_next(trace, &request)) > 0) {
        rc = take(f, one, &request);
        if (rc < 0) {
            snprintf(why, TIERCE__TRACE_WHY_BYTES, "%s", tierce_strerror(rc));
            return rc;
        }
    }
    if (rc < 0)
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "%s", tierce__trace_error(trace));
    return rc < 0 ? rc : 0;
}

static void *read_source(void *arg)
{
    struct tierce__followed *one = arg;
    struct tierce__follow *f = one->follow;
    char why[TIERCE__TRACE_WHY_BYTES] = "";
    int rc = read_requests(f, one, why);
    tierce__lock_take(&f->lock);
    note(f, one);
    one->rc = rc;
    memcpy(one->why, why, sizeof(one->why));
    one->ended = true;
    f->open_count--;
    tierce__cond_signal(&f->changed);
    tierce__lock_drop(&f->lock);
    return NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

int tierce__follow_open(struct tierce__follow *f)
{
    for (size_t i = 0; i < f->request->live_count; i++) {
        struct tierce__followed *one = &f->sources[i];
        char why[TIERCE__TRACE_WHY_BYTES] = "";
        *one = (struct tierce__followed){.url = f->request->live[i],
                                         .follow = f,
                                         .silence_ns = tierce__deadline_in_ms(SILENCE_MS)};
        int rc = tierce__live_open(
            &one->source, one->url,
            &(struct tierce__live_opts){.size = sizeof(struct tierce__live_opts), .stop = f->stop},
            why);
        if (rc < 0)
            return tierce__cli_fail(COMMAND, "%.300s: %s", one->url, why);
        f->source_count++;
    }
    return TIERCE__CLI_OK;
}

int tierce__follow_start(struct tierce__follow *f)
{
    for (size_t i = 0; i < f->source_count; i++) {
        struct tierce__followed *one = &f->sources[i];
        tierce__lock_take(&f->lock);
        f->open_count++;
        tierce__lock_drop(&f->lock);
        int rc = -pthread_create(&one->thread, NULL, read_source, one);
        one->started = rc == 0;
        if (rc == 0)
            continue;
        tierce__lock_take(&f->lock);
        f->open_count--;
        tierce__lock_drop(&f->lock);
        return tierce__cli_fail(COMMAND, "no thread can be started for %.300s: %s", one->url,
                                tierce_strerror(rc));
    }
    return TIERCE__CLI_OK;
}

/* A reader may block in a call that only a signal interrupts, and may have checked for the stop
 * just before the signal: so the signal is repeated until the reader has ended. */
void tierce__follow_end(struct tierce__follow *f)
{
    enum { AGAIN_MS = 20 };
    atomic_store(f->stop, true);
    tierce__lock_take(&f->lock);
    while (f->open_count > 0) {
        for (size_t i = 0; i < f->source_count; i++) {
            if (f->sources[i].started && !f->sources[i].ended)
                (void)pthread_kill(f->sources[i].thread, SIGTERM);
        }
        (void)tierce__cond_wait(&f->changed, &f->lock, tierce__deadline_in_ms(AGAIN_MS));
    }
    tierce__lock_drop(&f->lock);
    for (size_t i = 0; i < f->source_count; i++) {
        if (f->sources[i].started)
            (void)pthread_join(f->sources[i].thread, NULL);
    }
}

void tierce__follow_close(struct tierce__follow *f)
{
    for (size_t i = 0; i < f->request->live_count; i++) {
        tierce__trace_close(f->sources[i].trace);
        tierce__live_close(f->sources[i].source);
    }
}

/* ---- messages about sources ------------------------------------------------------------------ */

/* ZMQ reports no error if an address does not answer. */
static void tell_silence(struct tierce__followed *one)
{
    if (one->requests > 0 || one->ended || tierce__now_ns() < one->silence_ns)
        return;
    fprintf(stderr,
            "tierce " COMMAND ": %.300s: no data for %u s, still waiting; check the address, and "
            "that the source is sending\n",
            one->url, SILENCE_MS / 1000);
    one->silence_ns = TIERCE__DEADLINE_NEVER;
}

void tierce__follow_tell(struct tierce__follow *f)
{
    tierce__lock_assert_held(&f->lock);
    for (size_t i = 0; i < f->source_count; i++) {
        struct tierce__followed *one = &f->sources[i];
        tell_silence(one);
        if (!one->ended || one->rc == 0 || one->is_told || f->open_count == 0)
            continue;
        one->is_told = true;
        fprintf(stderr, "tierce " COMMAND ": %.300s: %s; the other sources are still followed\n",
                one->url, one->why);
    }
}

int tierce__follow_status(const struct tierce__follow *f, bool was_stopped)
{
    int status = TIERCE__CLI_OK;
    for (size_t i = 0; i < f->source_count; i++) {
        const struct tierce__followed *one = &f->sources[i];
        if (one->rc == 0 || (was_stopped && !one->is_told))
            continue;
        status = TIERCE__CLI_FAILED;
        if (!one->is_told)
            (void)tierce__cli_fail(COMMAND, "%.300s: %s", one->url, one->why);
    }
    return status;
}
