/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/plot_png.h"

#define COMMAND "optimize"

enum { SLICES = 60 }; /* slices of time: as many as remain distinguishable where lines cross */

/* The parts of the page besides the sweep and its findings. */
struct extras {
    struct tierce__life life;
    struct tierce__timeline timeline;
    struct tierce__match match; /* of the timeline */
    struct tierce__tiers *tiers;
    struct tierce__tiers_opts tiers_opts;
    struct tierce__report_tiers tiers_report;
};

/* Chooses among the requested capacities one in the upper middle, where policies differ most. */
static uint64_t choose_capacity(const struct tierce__optimize *request)
{
    size_t count = request->capacity_count;
    uint64_t capacity = request->capacities[count * 6 / 10];
    for (size_t i = 0; i < count && capacity == TIERCE__CAPACITY_UNLIMITED; i++)
        capacity = request->capacities[i];
    return capacity;
}

/* The matching that every cache can count: touches do not apply to a request that is stored as a
 * whole. */
static struct tierce__match choose_match(const struct tierce__optimize *request)
{
    for (size_t i = 0; i < request->match_count; i++) {
        if (request->matches[i].kind != TIERCE__MATCH_STREAM)
            return request->matches[i];
    }
    return (struct tierce__match){TIERCE__MATCH_PREFIX, 0};
}

static int run_timeline(struct extras *out, const struct tierce__optimize *request,
                        const struct tierce__sweep *sweep,
                        const struct tierce__recording *recording)
{
    struct tierce__sim_point points[TIERCE__OPTIMIZE_LIST_MAX];
    size_t count = 0;
    for (size_t i = 0; i < request->cache_count; i++) {
        const struct tierce__cache *cache = &request->caches[i];
        if (tierce__cache_foresees(cache)) /* it has no state at a moment */
            continue;
        bool infinite = cache->kind == TIERCE__CACHE_INFINITE;
        points[count++] = (struct tierce__sim_point){
            .cache = cache,
            .order = request->orders[0],
            .capacity = infinite ? TIERCE__CAPACITY_UNLIMITED : choose_capacity(request),
            .in_bytes = sweep->in_bytes,
            .ttl_us = tierce__cache_expires(cache) && request->ttl_count > 0 ? request->ttls[0] : 0,
            .seed = request->seed,
        };
    }
    out->match = choose_match(request);
    if (count == 0)
        return 0;
    return tierce__timeline_run(&out->timeline, recording,
                                &(struct tierce__timeline_opts){
                                    .size = sizeof(struct tierce__timeline_opts),
                                    .points = points,
                                    .point_count = count,
                                    .match = out->match,
                                    .slices_max = SLICES,
                                    .kvcm = request->kvcm,
                                    .threads = request->threads,
                                });
}

static int run_tiers(struct extras *out, const struct tierce__optimize *request,
                     const struct tierce__recording *recording)
{
    static const double shares[] = {0.5, 0.9, 0.99};
    if (request->sim.tier_count == 0)
        return TIERCE__CLI_OK;
    out->tiers_opts = tierce__optimize_tiers(request, recording);
    int status = tierce__optimize_replay_tiers(&out->tiers, &out->tiers_opts, recording);
    if (status != TIERCE__CLI_OK)
        return status;
    out->tiers_report.opts = &out->tiers_opts;
    out->tiers_report.result = tierce__tiers_result(out->tiers);
    for (size_t i = 0; i < 3; i++)
        out->tiers_report.load_ns[i] = tierce__tiers_load_ns(out->tiers, shares[i]);
    return TIERCE__CLI_OK;
}

static int run_extras(struct extras *out, const struct tierce__optimize *request,
                      const struct tierce__sweep *sweep, const struct tierce__recording *recording)
{
    int rc = tierce__life_scan(&out->life, recording,
                               &(struct tierce__life_opts){
                                   .size = sizeof(struct tierce__life_opts),
                               });
    if (rc == 0)
        rc = run_timeline(out, request, sweep, recording);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "the page cannot be created: %s", tierce_strerror(rc));
    return run_tiers(out, request, recording);
}

static int write_one(const char *path, const struct tierce__report *report,
                     int (*write)(FILE *file, const struct tierce__report *report))
{
    if (path == NULL)
        return TIERCE__CLI_OK;
    struct tierce__new_file file;
    int status = tierce__optimize_open(&file, path);
    if (status != TIERCE__CLI_OK)
        return status;
    int rc = write(file.file, report);
    if (rc == 0)
        return tierce__optimize_close(&file, path);
    if (file.file != stdout)
        (void)!tierce__new_file_close(&file, false);
    return tierce__cli_fail(COMMAND, "%.300s: %s", path, tierce_strerror(rc));
}

static int write_page(const struct tierce__optimize *request,
                      const struct tierce__recording *recording, struct tierce__report report)
{
    struct extras extras = {0};
    if (request->html == NULL)
        return TIERCE__CLI_OK;
    int status = run_extras(&extras, request, report.sweep, recording);
    report.life = &extras.life;
    report.timeline = extras.timeline.line_count > 0 ? &extras.timeline : NULL;
    report.timeline_match = extras.match;
    report.tiers = extras.tiers != NULL ? &extras.tiers_report : NULL;
    if (status == TIERCE__CLI_OK)
        status = write_one(request->html, &report, tierce__report_html);
    tierce__life_clear(&extras.life);
    tierce__timeline_clear(&extras.timeline);
    tierce__tiers_destroy(extras.tiers);
    return status;
}

int tierce__optimize_write_report(const struct tierce__optimize *request,
                                  const struct tierce__optimize_trace *trace, const char *name,
                                  const struct tierce__sweep *sweep,
                                  const struct tierce__optimize_findings *findings)
{
    struct tierce__recording_totals totals = tierce__recording_totals(trace->recording);
    struct tierce__report report = {
        .name = name,
        .totals = &totals,
        .sweep = sweep,
        .instances = (const char *const *)trace->instances,
        .instance_count = trace->instance_count,
        .bad_lines = trace->bad_lines,
        .block_bytes = request->block_bytes,
        .economy = findings->has_economy ? &findings->economy : NULL,
        .latencies = findings->latencies,
        .trust = &findings->trust,
    };
    int status = write_page(request, trace->recording, report);
    if (status == TIERCE__CLI_OK)
        status = write_one(request->svg, &report, tierce__report_svg);
    if (status == TIERCE__CLI_OK)
        status = write_one(request->png, &report, tierce__plot_png);
    return status;
}
