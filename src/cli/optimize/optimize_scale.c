/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"
#include "optimizer/replay/scale.h"

#include <inttypes.h>
#include <string.h>

#define COMMAND "optimize"

enum { COLUMN = 11 };

void tierce__optimize_print_budget(FILE *file, const struct tierce__optimize *request,
                                   const struct tierce__sweep *sweep)
{
    if (request->sim.budget.amount == 0)
        return;
    for (size_t m = 0; m < request->match_count; m++) {
        const struct tierce__sweep_row *best =
            tierce__sweep_best(sweep, &request->matches[m], request->sim.budget.amount);
        char label[TIERCE__OPTIMIZE_LABEL_BYTES], budget[32], capacity[32];
        tierce__optimize_capacity(budget, request, request->sim.budget.amount);
        if (best == NULL) {
            fprintf(file, "\nno policy fits into %s\n", budget);
            continue;
        }
        tierce__optimize_label(label, sweep, best);
        tierce__optimize_capacity(capacity, request, best->capacity);
        fprintf(file, "\nthe best within %s: %s at %s, with %.2f%%\n", budget, label, capacity,
                100 * tierce__sweep_rate(best));
    }
}

/* One line below the table of a match. */
static void print_rates(FILE *file, const char *name, const struct tierce__scaled *s, size_t match,
                        const double *rates, const double *less)
{
    fprintf(file, "%-16s", name);
    for (size_t c = 0; c < s->capacity_count; c++) {
        size_t at = c * s->match_count + match;
        fprintf(file, less != NULL ? "%+*.2f%%" : "%*.2f%%", COLUMN - 1,
                100 * (rates[at] - (less != NULL ? less[at] : 0)));
    }
    fputc('\n', file);
}

static void print_part(FILE *file, const struct tierce__optimize *request,
                       const struct tierce__recording_totals *totals,
                       const struct tierce__scaled *s)
{
    tierce__optimize_print_table(file, request, totals, &s->sweep);
    fputs("\nthese rates are from a sample; the error of sampling, measured with lru:\n", file);
    for (size_t m = 0; m < s->match_count; m++) {
        char match[TIERCE__MATCH_TEXT_BYTES];
        tierce__match_print(&request->matches[m], match);
        if (s->match_count > 1)
            fprintf(file, "by %s:\n", match);
        print_rates(file, "lru, the whole", s, m, s->lru_exact, NULL);
        print_rates(file, "lru, the part", s, m, s->lru_part, NULL);
        print_rates(file, "difference", s, m, s->lru_part, s->lru_exact);
    }
}

static void print_summary(FILE *file, const struct tierce__scaled *s)
{
    fprintf(
        file,
        "%" PRIu64 " of %" PRIu64 " requests were replayed, with %.2f%% of the blocks, in caches "
        "scaled by the same share; the error of lru is %.2f points on average and %.2f at most\n",
        s->requests, s->requests_all, 100 * s->share, 100 * s->error_mean, 100 * s->error_max);
}

int tierce__optimize_run_scaled(const struct tierce__optimize *request,
                                const struct tierce__recording *recording, const char *name,
                                const struct tierce__sweep_opts *opts)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct tierce__scaled scaled;
    int rc = tierce__scale_run(&scaled, recording, request->sim.scale, opts);
    if (rc < 0)
        return tierce__optimize_fail_replay("the replay of a sample", rc);
    int status = TIERCE__CLI_OK;
    bool piped = request->csv != NULL && strcmp(request->csv, "-") == 0;
    if (scaled.requests == 0) {
        status =
            tierce__cli_fail(COMMAND, "--scale %g: nothing was sampled from %" PRIu64 " requests",
                             request->sim.scale, totals.requests);
        goto out;
    }
    if (request->csv != NULL) {
        struct tierce__new_file file;
        status = tierce__optimize_open(&file, request->csv);
        if (status != TIERCE__CLI_OK)
            goto out;
        tierce__optimize_print_csv(file.file, name, &scaled.sweep, NULL);
        status = tierce__optimize_close(&file, request->csv);
    }
    if (!piped) {
        print_part(stdout, request, &totals, &scaled);
        tierce__optimize_print_budget(stdout, request, &scaled.sweep);
    }
    print_summary(piped ? stderr : stdout, &scaled);
out:
    tierce__scaled_clear(&scaled);
    return status;
}
