/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tierce optimize --live`: the table and the curve, drawn again each second on a terminal, a line
 * an interval otherwise. SIGINT and SIGTERM end it with the last table.
 */
#include "cli/optimize/optimize_live.h"
#include "base/clock.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <time.h>
#include <unistd.h>

#define COMMAND     "optimize"
#define TERMINAL_MS 1000u
#define LINES_MS    10000u
#define STOP_MS     50u /* after which a signal is seen at the latest */
#define REST        4u  /* so many times as long as a replay took, nothing is replayed */
#define LINE_POINTS 6u  /* capacities on a line */

static atomic_bool stop;

static void ask_to_stop(int number)
{
    (void)number;
    atomic_store(&stop, true);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* The present window, and the caches' hits on it. */
struct view {
    struct tierce__live_picture picture;
    struct tierce__live_result result;
    struct tierce__live_counts counts; /* of all sources */
    uint64_t bad_lines;
    const struct tierce__followed *faulty; /* the first source with bad lines; NULL: none */
};

static void add_counts(struct tierce__live_counts *sum, const struct tierce__live_counts *one)
{
    sum->messages += one->messages;
    sum->lost += one->lost;
    sum->restarts += one->restarts;
    sum->refused += one->refused;
}

static int look(struct tierce__follow *f, struct view *view)
{
    tierce__lock_take(&f->lock);
    int rc = tierce__live_window_take(f->window, &view->picture, tierce__now_ns());
    for (size_t i = 0; i < f->source_count; i++) {
        const struct tierce__followed *one = &f->sources[i];
        add_counts(&view->counts, &one->counts);
        view->bad_lines += one->bad_lines;
        if (view->faulty == NULL && one->bad_lines > 0)
            view->faulty = one;
    }
    tierce__lock_drop(&f->lock);
    return rc;
}

static int replay(struct tierce__follow *f, struct view *view)
{
    struct tierce__optimize *request = f->request;
    uint32_t distinct = view->picture.totals.distinct;
    if (f->chooses) {
        request->capacity_count = 0;
        tierce__optimize_choose_capacities(request, distinct > 0 ? distinct : 1);
    }
    struct tierce__sweep_opts opts = tierce__optimize_sweep_opts(request);
    return tierce__live_sweep(&view->result, &view->picture, &opts, 0);
}

static void clear_view(struct view *view)
{
    tierce__live_result_clear(&view->result);
    tierce__live_picture_clear(&view->picture);
}

static int make_view(struct tierce__follow *f, struct view *view)
{
    *view = (struct view){0};
    int rc = look(f, view);
    if (rc == 0)
        rc = replay(f, view);
    if (rc == 0)
        return 0;
    clear_view(view);
    return tierce__optimize_fail_replay("the replay of the received requests", rc);
}

static void print_window(const struct view *view)
{
    const struct tierce__live_picture *p = &view->picture;
    struct tierce__recording_totals held = tierce__recording_totals(p->recording);
    if (p->left > 0)
        printf("\nthe last %" PRIu64 " requests with %" PRIu64
               " blocks are replayed; earlier ones are dropped\n",
               held.requests, held.blocks);
    if (p->fade_us > 0) {
        char fade[32];
        tierce__optimize_time(fade, (double)p->fade_us / 1e6);
        printf("%sa lookup of %s ago counts half\n", p->left > 0 ? "" : "\n", fade);
    }
    if (view->result.share < 1)
        printf("caches other than lru are replayed over %.1f%% of the different blocks, whole "
               "conversations; lru over them is off by %.2f%% on average, %.2f%% at most\n",
               100 * view->result.share, 100 * view->result.error_mean,
               100 * view->result.error_max);
}

static void print_notes(const struct view *view)
{
    const struct tierce__live_counts *c = &view->counts;
    if (view->picture.totals.has_reads)
        printf("\nlookups are assumed to store their blocks afterwards\n");
    if (c->messages > 0)
        printf("%s%" PRIu64 " messages, %" PRIu64 " lost\n",
               view->picture.totals.has_reads ? "" : "\n", c->messages, c->lost);
    if (c->refused > 0)
        printf("%" PRIu64 " messages are not events and were ignored\n", c->refused);
    if (c->restarts > 0)
        printf("the source restarted %" PRIu64 " times\n", c->restarts);
    if (view->faulty != NULL)
        printf("%" PRIu64 " bad lines were ignored; the first, line %" PRIu64 ": %s\n",
               view->bad_lines, view->faulty->fault.line, view->faulty->fault.reason);
}

static int print_page(struct tierce__follow *f)
{
    struct view view;
    int status = make_view(f, &view);
    if (status != TIERCE__CLI_OK)
        return status;
    tierce__optimize_print_table(stdout, f->request, &view.picture.totals, &view.result.sweep);
    tierce__optimize_print_curve(stdout, f->request, &view.result.sweep);
    print_window(&view);
    print_notes(&view);
    clear_view(&view);
    fflush(stdout);
    return TIERCE__CLI_OK;
}

/* Time, totals, and the hit rates at some capacities. */
static int print_line(struct tierce__follow *f)
{
    struct view view;
    struct tm now;
    char clock[16];
    time_t seconds = time(NULL);
    int status = make_view(f, &view);
    if (status != TIERCE__CLI_OK)
        return status;
    const struct tierce__recording_totals *totals = &view.picture.totals;
    size_t points = f->request->capacity_count;
    size_t step = f->chooses ? (points + LINE_POINTS - 1) / LINE_POINTS : 1;
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&seconds, &now));
    printf("%s requests=%" PRIu64 " blocks=%" PRIu64 " different=%" PRIu32 " lost=%" PRIu64, clock,
           totals->requests, totals->blocks, totals->distinct, view.counts.lost);
    for (size_t i = 0; i < view.result.sweep.row_count; i++) {
        const struct tierce__sweep_row *row = &view.result.sweep.rows[i];
        char label[TIERCE__OPTIMIZE_LABEL_BYTES];
        if ((points - 1 - row->capacity_index) % step != 0)
            continue;
        tierce__optimize_label(label, &view.result.sweep, row);
        printf(" %s[", label);
        tierce__optimize_print_capacity(stdout, row->capacity);
        printf("]=%.2f%%", 100 * tierce__sweep_rate(row));
    }
    printf("\n");
    fflush(stdout);
    clear_view(&view);
    return TIERCE__CLI_OK;
}

static int show(struct tierce__follow *f)
{
    if (!f->terminal)
        return print_line(f);
    printf("\x1b[H\x1b[J%s", f->request->live[0]);
    if (f->source_count > 1)
        printf(" and %zu more", f->source_count - 1);
    printf(", Ctrl-C ends\n\n");
    return print_page(f);
}

/* Shows new results when the interval has passed. */
static int tick(struct tierce__follow *f, uint64_t seen)
{
    uint64_t began_ns = tierce__now_ns();
    if (began_ns < f->next_ns)
        return TIERCE__CLI_OK;
    int status = f->terminal || seen != f->shown_requests ? show(f) : TIERCE__CLI_OK;
    uint64_t now_ns = tierce__now_ns(), rest_ns = REST * (now_ns - began_ns);
    f->shown_requests = seen;
    f->next_ns = tierce__deadline_in_ms(f->every_ms);
    if (f->next_ns < now_ns + rest_ns)
        f->next_ns = now_ns + rest_ns;
    return status;
}

/* ---- following ------------------------------------------------------------------------------- */

/* Until all sources have ended, or a signal ends it. */
static int follow(struct tierce__follow *f)
{
    int status = tierce__follow_start(f);
    bool goes_on = status == TIERCE__CLI_OK;
    while (goes_on && status == TIERCE__CLI_OK && !atomic_load(&stop)) {
        uint64_t until_ns = tierce__deadline_in_ms(STOP_MS);
        tierce__lock_take(&f->lock);
        if (f->open_count > 0)
            (void)tierce__cond_wait(&f->changed, &f->lock,
                                    f->next_ns < until_ns ? f->next_ns : until_ns);
        tierce__follow_tell(f);
        uint64_t seen = tierce__live_window_seen(f->window);
        goes_on = f->open_count > 0;
        tierce__lock_drop(&f->lock);
        status = tick(f, seen);
    }
    return status;
}

static int run(struct tierce__follow *f)
{
    int status = follow(f);
    bool was_stopped = atomic_load(&stop);
    tierce__follow_end(f);
    if (was_stopped)
        clearerr(stdout); /* the signal may have cut a page short; the last one is whole */
    bool any = tierce__live_window_seen(f->window) > 0;
    if (f->terminal)
        printf("\x1b[H\x1b[J");
    if (any && status == TIERCE__CLI_OK)
        status = print_page(f);
    int failed = tierce__follow_status(f, was_stopped);
    if (status != TIERCE__CLI_OK || failed != TIERCE__CLI_OK)
        return TIERCE__CLI_FAILED;
    return any ? TIERCE__CLI_OK
               : tierce__cli_fail(COMMAND, "%.300s: no request was received", f->request->live[0]);
}

static void catch_signals(struct sigaction before[2])
{
    struct sigaction action = {.sa_handler = ask_to_stop}; /* no SA_RESTART: waits end */
    sigemptyset(&action.sa_mask);
    atomic_store(&stop, false);
    sigaction(SIGINT, &action, &before[0]);
    sigaction(SIGTERM, &action, &before[1]);
}

int tierce__optimize_follow(struct tierce__optimize *request)
{
    struct sigaction before[2];
    struct tierce__follow f = {.request = request,
                               .stop = &stop,
                               .terminal = isatty(STDOUT_FILENO) == 1,
                               .chooses = request->capacity_count == 0};
    f.every_ms = request->every_ms > 0 ? request->every_ms : f.terminal ? TERMINAL_MS : LINES_MS;
    f.next_ns = tierce__deadline_in_ms(f.every_ms);
    int status = tierce__optimize_fit_sizes(request, &(struct tierce__recording_totals){0});
    if (status != TIERCE__CLI_OK)
        return status;
    int rc = tierce__live_window_create(
        &f.window,
        &(struct tierce__live_window_opts){.size = sizeof(struct tierce__live_window_opts),
                                           .fade_us = request->fade_ms * 1000});
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%s", tierce_strerror(rc));
    tierce__lock_init(&f.lock, TIERCE__LOCK_LIVE);
    tierce__cond_init(&f.changed);
    catch_signals(before);
    status = tierce__follow_open(&f);
    if (status == TIERCE__CLI_OK)
        status = run(&f);
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    tierce__follow_close(&f);
    tierce__live_window_destroy(f.window);
    tierce__cond_fini(&f.changed);
    tierce__lock_fini(&f.lock);
    return status;
}
