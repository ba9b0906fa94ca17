/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tierce optimize --live`: the table and the curve of LRU, drawn again each second on a terminal,
 * a line an interval otherwise. SIGINT and SIGTERM end it with the last table.
 */
#include "cli/optimize_live.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "optimizer/live.h"
#include "optimizer/live_source.h"

#include <inttypes.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define COMMAND       "optimize"
#define TERMINAL_MS   1000u
#define LINES_MS      10000u
#define SILENCE_MS    3000u /* after which somebody who waits is told so */
#define LINE_POINTS   6u    /* capacities on a line */
#define REQUESTS_LOOK 64u

struct follow {
    struct tierce__optimize *request;
    struct tierce__live_source *source;
    struct tierce__trace *trace; /* once its format is known */
    struct tierce__live_curve *curve;
    bool terminal;
    bool chooses; /* capacities are not given */
    uint32_t every_ms;
    uint64_t next_ns;
    uint64_t silence_ns; /* when silence is told; TIERCE__DEADLINE_NEVER: it was */
    uint64_t shown_requests;
};

static volatile sig_atomic_t stop;

static void ask_to_stop(int number)
{
    (void)number;
    stop = 1;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static int make_sweep(struct follow *f, struct tierce__sweep *sweep,
                      struct tierce__recording_totals *totals)
{
    *totals = tierce__live_curve_totals(f->curve);
    if (f->chooses) {
        f->request->capacity_count = 0;
        tierce__optimize_choose_capacities(f->request, totals->distinct > 0 ? totals->distinct : 1);
    }
    return tierce__live_curve_sweep(f->curve, sweep, f->request->capacities,
                                    f->request->capacity_count);
}

static void print_notes(const struct follow *f, const struct tierce__recording_totals *totals)
{
    const struct tierce__live_counts *c = tierce__live_counts(f->source);
    if (totals->has_reads)
        printf("\nlookups are taken to be stored afterwards\n");
    if (c->messages > 0)
        printf("%s%" PRIu64 " messages, %" PRIu64 " lost\n", totals->has_reads ? "" : "\n",
               c->messages, c->lost);
    if (c->refused > 0)
        printf("%" PRIu64 " messages are no events and are left out\n", c->refused);
    if (c->restarts > 0)
        printf("the source began anew %" PRIu64 " times\n", c->restarts);
    if (f->trace != NULL && tierce__trace_report(f->trace)->bad_lines > 0)
        printf("%" PRIu64 " bad lines are left out; the first, line %" PRIu64 ": %s\n",
               tierce__trace_report(f->trace)->bad_lines,
               tierce__trace_report(f->trace)->faults[0].line,
               tierce__trace_report(f->trace)->faults[0].reason);
}

static void print_page(struct follow *f)
{
    struct tierce__sweep sweep;
    struct tierce__recording_totals totals;
    if (make_sweep(f, &sweep, &totals) < 0)
        return;
    tierce__optimize_print_table(stdout, f->request, &totals, &sweep);
    tierce__optimize_print_curve(stdout, f->request, &sweep);
    print_notes(f, &totals);
    tierce__sweep_clear(&sweep);
    fflush(stdout);
}

/* Time, totals, and the hit rates of some capacities. */
static void print_line(struct follow *f)
{
    struct tierce__sweep sweep;
    struct tierce__recording_totals totals;
    struct tm now;
    char clock[16];
    time_t seconds = time(NULL);
    if (make_sweep(f, &sweep, &totals) < 0)
        return;
    size_t rows = sweep.row_count, step = f->chooses ? (rows + LINE_POINTS - 1) / LINE_POINTS : 1;
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&seconds, &now));
    printf("%s requests=%" PRIu64 " blocks=%" PRIu64 " different=%" PRIu32 " lost=%" PRIu64, clock,
           totals.requests, totals.blocks, totals.distinct, tierce__live_counts(f->source)->lost);
    for (size_t i = (rows - 1) % step; i < rows; i += step) {
        const struct tierce__sweep_row *row = &sweep.rows[i];
        double rate = row->blocks > 0 ? 100 * (double)row->hits / (double)row->blocks : 0;
        printf(" lru[%" PRIu64 "]=%.2f%%", row->capacity, rate);
    }
    printf("\n");
    fflush(stdout);
    tierce__sweep_clear(&sweep);
}

static void show(struct follow *f)
{
    if (f->terminal) {
        printf("\x1b[H\x1b[J%s, Ctrl-C ends\n\n", f->request->live);
        print_page(f);
    } else {
        print_line(f);
    }
    f->shown_requests = tierce__live_curve_totals(f->curve).requests;
}

/* Of an address that nobody answers at, ZMQ says nothing. */
static void tell_silence(struct follow *f)
{
    if (tierce__live_curve_totals(f->curve).requests > 0 || tierce__now_ns() < f->silence_ns)
        return;
    fprintf(stderr,
            "tierce " COMMAND ": %.300s: nothing has come for %u s, still waiting; is the address "
            "right, and does anything come from there?\n",
            f->request->live, SILENCE_MS / 1000);
    f->silence_ns = TIERCE__DEADLINE_NEVER;
}

/* Shows what is new when its time has come. */
static void tick(void *arg)
{
    struct follow *f = arg;
    tell_silence(f);
    if (tierce__now_ns() < f->next_ns)
        return;
    if (f->terminal || tierce__live_curve_totals(f->curve).requests != f->shown_requests)
        show(f);
    f->next_ns = tierce__deadline_in_ms(f->every_ms);
}

/* ---- following ------------------------------------------------------------------------------- */

/* Until the source ends; 0 or an error, of which `why` is a sentence. */
static int follow(struct follow *f, char why[TIERCE__TRACE_WHY_BYTES])
{
    const char *format = tierce__live_format(f->source);
    struct tierce__trace_opts opts = {
        .size = sizeof(opts),
        .format = f->request->format != NULL ? f->request->format : format,
        .bad_share_max = f->request->bad_share_max > 0 ? f->request->bad_share_max : 1,
        .as_they_come = true,
    };
    int rc = tierce__trace_open_source(&f->trace, tierce__live_trace_source(f->source), &opts, why);
    if (rc < 0)
        return rc;
    struct tierce__trace_request next;
    for (uint64_t n = 1; stop == 0 && (rc = tierce__trace_next(f->trace, &next)) > 0; n++) {
        rc = tierce__live_curve_add(f->curve, &next);
        if (rc < 0) {
            snprintf(why, TIERCE__TRACE_WHY_BYTES, "%s", tierce_strerror(rc));
            return rc;
        }
        if (n % REQUESTS_LOOK == 0)
            tick(f);
    }
    if (rc < 0)
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "%s", tierce__trace_error(f->trace));
    return rc < 0 ? rc : 0;
}

static int run(struct follow *f)
{
    char why[TIERCE__TRACE_WHY_BYTES] = "";
    int rc = follow(f, why);
    bool any = tierce__live_curve_totals(f->curve).requests > 0;
    if (stop != 0)
        clearerr(stdout); /* the signal may have cut a page short; the last one is whole */
    if (f->terminal)
        printf("\x1b[H\x1b[J");
    if (any)
        print_page(f);
    if (rc < 0 && stop == 0)
        return tierce__cli_fail(COMMAND, "%.300s: %s", f->request->live, why);
    return any ? TIERCE__CLI_OK
               : tierce__cli_fail(COMMAND, "%.300s: no request came", f->request->live);
}

static void catch_signals(struct sigaction before[2])
{
    struct sigaction action = {.sa_handler = ask_to_stop}; /* no SA_RESTART: waits end */
    sigemptyset(&action.sa_mask);
    stop = 0;
    sigaction(SIGINT, &action, &before[0]);
    sigaction(SIGTERM, &action, &before[1]);
}

int tierce__optimize_follow(struct tierce__optimize *request)
{
    char why[TIERCE__TRACE_WHY_BYTES] = "";
    struct sigaction before[2];
    struct follow f = {.request = request,
                       .terminal = isatty(STDOUT_FILENO) == 1,
                       .chooses = request->capacity_count == 0};
    f.every_ms = request->every_ms > 0 ? request->every_ms : f.terminal ? TERMINAL_MS : LINES_MS;
    f.next_ns = tierce__deadline_in_ms(f.every_ms);
    f.silence_ns = tierce__deadline_in_ms(SILENCE_MS);
    int status = tierce__optimize_fit_sizes(request, &(struct tierce__recording_totals){0});
    if (status != TIERCE__CLI_OK)
        return status;
    int rc = tierce__live_curve_create(&f.curve, request->matches, request->match_count);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%s", tierce_strerror(rc));
    catch_signals(before);
    rc = tierce__live_open(
        &f.source, request->live,
        &(struct tierce__live_opts){
            .size = sizeof(struct tierce__live_opts), .tick = tick, .tick_arg = &f, .stop = &stop},
        why);
    status = rc == 0 ? run(&f) : tierce__cli_fail(COMMAND, "%.300s: %s", request->live, why);
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    tierce__trace_close(f.trace);
    tierce__live_close(f.source);
    tierce__live_curve_destroy(f.curve);
    return status;
}
