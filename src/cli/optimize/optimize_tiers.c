/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define COMMAND "optimize"

static double share(uint64_t part, uint64_t all)
{
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

static bool knows_time(const struct tierce__optimize *request)
{
    for (size_t i = 0; i < request->sim.tier_count; i++) {
        if (request->sim.tiers[i].read_bytes_per_s > 0 || request->sim.tiers[i].latency_ns > 0)
            return true;
    }
    return false;
}

static void print_bytes(FILE *file, bool known, uint64_t bytes)
{
    char text[32] = "-";
    if (known)
        tierce__human_bytes(text, sizeof(text), bytes);
    fprintf(file, "%12s", text);
}

/* Of the time that the trace took. */
static void print_busy(FILE *file, double seconds, double span_s)
{
    if (span_s > 0 && seconds > 0)
        fprintf(file, "%9.2f%%", 100 * seconds / span_s);
    else
        fprintf(file, "%10s", "-");
}

static void print_tier(FILE *file, const struct tierce__optimize *request,
                       const struct tierce__tiers_result *result, size_t index, bool knows_bytes)
{
    const struct tierce__tier_spec *spec = &request->sim.tiers[index];
    const struct tierce__tier_result *t = &result->tiers[index];
    double span_s = (double)(result->last_us - result->first_us) / 1e6;
    char capacity[32], used[32];
    tierce__optimize_capacity(capacity, request, spec->capacity);
    tierce__optimize_capacity(used, request, t->used_max);
    fprintf(file, "%-12s%12s%12s%11.2f%%%11.2f%%", spec->name, capacity, used,
            share(t->hits, t->asked), share(t->hits, result->blocks));
    print_bytes(file, knows_bytes, t->read_bytes);
    print_bytes(file, knows_bytes, t->written_bytes);
    print_busy(file, t->read_s, span_s);
    print_busy(file, t->write_s, span_s);
    if (t->worn > 0 && span_s > 0) {
        char life[32];
        tierce__human_seconds(life, sizeof(life), (uint64_t)fmin(span_s / t->worn, 1e15));
        fprintf(file, "%14s", life);
    } else {
        fprintf(file, "%14s", "-");
    }
    fprintf(file, "  %s\n", spec->policy->name);
}

static const double load_shares[] = {0.5, 0.9, 0.99, 1};

static void print_loads(FILE *file, const struct tierce__optimize *request,
                        struct tierce__tiers *tiers)
{
    const struct tierce__tiers_result *result = tierce__tiers_result(tiers);
    char text[32];
    if (!knows_time(request) || result->loads == 0)
        return;
    tierce__optimize_time(text, result->load_ns.sum / (double)result->loads / 1e9);
    fprintf(file, "time of a load, over the %" PRIu64 " requests that load: mean %s", result->loads,
            text);
    for (size_t i = 0; i < 4; i++) {
        tierce__optimize_time(text, (double)tierce__tiers_load_ns(tiers, load_shares[i]) / 1e9);
        fprintf(file, ", %s %s",
                i == 0   ? "50 %"
                : i == 1 ? "90 %"
                : i == 2 ? "99 %"
                         : "longest",
                text);
    }
    fputc('\n', file);
}

/* The queueing time of tiers that serve one operation at a time. */
static void print_queues(FILE *file, const struct tierce__optimize *request,
                         const struct tierce__tiers_result *result)
{
    for (size_t i = 0; i < result->tier_count; i++) {
        const struct tierce__tier_result *t = &result->tiers[i];
        char wait[32], most[32], left[32];
        if (!(request->sim.tiers[i].write_bytes_per_s > 0))
            continue;
        tierce__optimize_time(wait, t->wait_s);
        tierce__optimize_time(most, t->queue_max_s);
        tierce__optimize_time(left, t->queue_s);
        fprintf(file,
                "%s serves one request at a time: %" PRIu64 " of %" PRIu64
                " loads waited, %s in all; its queue was %s at most, %s at the end\n",
                request->sim.tiers[i].name, t->waits, t->loads, wait, most, left);
    }
}

/* ---- money ----------------------------------------------------------------------------------- */

/* Dollars an hour. */
struct money {
    double saved, cost, costs[TIERCE__TIERS_MAX];
};

/* A tier without a limit is bought as large as it became. Its endurance, if that was given, counts
 * before its profile's writes. */
static double cost_of(const struct tierce__optimize *request,
                      const struct tierce__tiers_result *result, size_t tier, double hours)
{
    const struct tierce__tier_spec *spec = &request->sim.tiers[tier];
    const struct tierce__tier_result *t = &result->tiers[tier];
    struct tierce__storage_profile storage = request->sim.tier_storages[tier];
    bool has_limit = spec->capacity != TIERCE__CAPACITY_UNLIMITED;
    double bytes = (double)(has_limit ? spec->capacity : t->used_max);
    bytes *= request->in_bytes ? 1 : (double)request->block_bytes;
    if (spec->endurance_bytes > 0 && bytes > 0)
        storage.writes.value = spec->endurance_bytes / bytes;
    return tierce__storage_cost(&storage, bytes, (double)t->written_bytes / hours);
}

/* False: nothing is known of it. */
static bool count_money(struct money *out, const struct tierce__optimize *request,
                        const struct tierce__tiers_result *result)
{
    const struct tierce__setup *setup = &request->money.setup;
    double hours = (double)(result->last_us - result->first_us) / 3.6e9;
    if (!request->sim.has_tier_costs || !(hours > 0))
        return false;
    double flops = tierce__prefill_flops(&setup->model, result->hit_tokens, result->hit_squares);
    *out = (struct money){.saved = tierce__gpu_cost(setup, flops) / hours};
    for (size_t i = 0; i < result->tier_count; i++) {
        out->costs[i] = cost_of(request, result, i, hours);
        out->cost += out->costs[i];
    }
    return true;
}

static void print_money(FILE *file, const struct tierce__optimize *request,
                        const struct tierce__tiers_result *result)
{
    const struct tierce__optimize_sim *sim = &request->sim;
    struct money money;
    if (!count_money(&money, request, result))
        return;
    fprintf(file, "savings: $%.4g an hour; costs: $%.4g (", money.saved, money.cost);
    for (size_t i = 0; i < result->tier_count; i++)
        fprintf(file, "%s%s $%.4g at $%g a GB for %g years, %s", i > 0 ? "; " : "",
                sim->tiers[i].name, money.costs[i], sim->tier_storages[i].price.value,
                sim->tier_storages[i].years.value,
                tierce__mark_text(sim->tier_storages[i].price.mark));
    fprintf(file, "); net $%.4g\n", money.saved - money.cost);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_tiers(FILE *file, const struct tierce__optimize *request,
                        struct tierce__tiers *tiers, bool knows_bytes)
{
    static const char *const promote[] = {"into the first tier", "into all faster tiers",
                                          "nowhere"};
    const struct tierce__tiers_result *result = tierce__tiers_result(tiers);
    bool waterfall = request->sim.writes == TIERCE__TIERS_WATERFALL;
    fprintf(file, "\ntiers: stores go %s, hits of slower tiers go %s:\n",
            waterfall ? "into the first, evicted blocks into the next" : "into all",
            promote[request->sim.promote]);
    fprintf(file, "%-12s%12s%12s%12s%12s%12s%12s%10s%10s%14s  %s\n", "", "capacity", "used",
            "hit rate", "of all", "read", "written", "reading", "writing", "lifetime", "policy");
    for (size_t i = 0; i < result->tier_count; i++)
        print_tier(file, request, result, i, knows_bytes);
    fprintf(file, "%-48s%11.2f%%\n", "all hits, by prefix", share(result->hits, result->blocks));
    if (result->failed > 0)
        fprintf(file, "%-48s%11.2f%%\n", "hits not loaded: no room in the first tier",
                share(result->failed, result->blocks));
    if (result->not_stored > 0)
        fprintf(file, "%" PRIu64 " blocks were not stored: the first tier has no room for them\n",
                result->not_stored);
    print_loads(file, request, tiers);
    print_queues(file, request, result);
    print_money(file, request, result);
    if (!knows_bytes)
        fputs("--block-bytes SIZE or --model NAME gives bytes and times\n", file);
}

/* ---- the CSV --------------------------------------------------------------------------------- */

static void print_csv_tier(FILE *file, const struct tierce__tier_spec *spec,
                           const struct tierce__tier_result *t)
{
    tierce__optimize_print_text(file, spec->name);
    fprintf(file, ",%s,", spec->policy->name);
    tierce__optimize_print_capacity(file, spec->capacity);
    fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,%" PRIu64 ",%" PRIu64 ",%" PRIu64,
            t->used_max, t->asked, t->hits, t->asked > 0 ? (double)t->hits / (double)t->asked : 0,
            t->internal_hits, t->failed, t->loads);
    fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, t->read_blocks, t->read_bytes,
            t->written_blocks, t->written_bytes);
    fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
            t->stored, t->promoted, t->demoted, t->refused, t->evicted, t->expired);
    fprintf(file, ",%.6g,%.6g,%.6g,,,,,", t->read_s, t->write_s, t->worn);
}

static void print_csv_queue(FILE *file, const struct tierce__tier_result *t)
{
    fprintf(file, ",%" PRIu64 ",%.6g,%.6g,%.6g", t->waits, t->wait_s, t->queue_s, t->queue_max_s);
}

/* Columns of the total only; times if the trace or the options give any. */
static void print_csv_all(FILE *file, const struct tierce__optimize *request,
                          struct tierce__tiers *tiers)
{
    const struct tierce__tiers_result *r = tierce__tiers_result(tiers);
    fprintf(file, "all,,,,%" PRIu64 ",%" PRIu64 ",%.6f,%" PRIu64 ",%" PRIu64 ",%" PRIu64, r->blocks,
            r->hits, share(r->hits, r->blocks) / 100, r->internal_hits, r->failed, r->loads);
    fputs(",,,,,,,,,,,,,", file);
    if (knows_time(request) && r->loads > 0) {
        fprintf(file, ",%.6g", r->load_ns.sum / (double)r->loads / 1e9);
        for (size_t i = 0; i < 3; i++)
            fprintf(file, ",%.6g", (double)tierce__tiers_load_ns(tiers, load_shares[i]) / 1e9);
    } else {
        fputs(",,,,", file);
    }
    fprintf(file, ",%" PRIu64, r->not_stored);
}

static int write_csv(const struct tierce__optimize *request, struct tierce__tiers *tiers,
                     const char *name)
{
    struct tierce__new_file file;
    const struct tierce__tiers_result *result = tierce__tiers_result(tiers);
    struct money money;
    if (request->sim.tier_csv == NULL)
        return TIERCE__CLI_OK;
    int status = tierce__optimize_open(&file, request->sim.tier_csv);
    if (status != TIERCE__CLI_OK)
        return status;
    fputs("trace,tier,policy,capacity,used,asked,hits,hit_rate,internal_hits,failed,loads,"
          "read_blocks,read_bytes,written_blocks,written_bytes,stored,promoted,demoted,refused,"
          "evicted,expired,reading_s,writing_s,worn,load_mean,load_p50,load_p90,load_p99,"
          "not_stored,saved_per_hour,cost_per_hour,net_per_hour,waits,waiting_s,queue_s,"
          "queue_max_s\n",
          file.file);
    bool has_money = count_money(&money, request, result);
    for (size_t i = 0; i <= result->tier_count; i++) {
        fprintf(file.file, "%s,", name);
        if (i < result->tier_count)
            print_csv_tier(file.file, &request->sim.tiers[i], &result->tiers[i]);
        else
            print_csv_all(file.file, request, tiers);
        if (!has_money)
            fputs(",,,", file.file);
        else if (i < result->tier_count)
            fprintf(file.file, ",,%.6g,", money.costs[i]);
        else
            fprintf(file.file, ",%.6g,%.6g,%.6g", money.saved, money.cost,
                    money.saved - money.cost);
        if (i < result->tier_count)
            print_csv_queue(file.file, &result->tiers[i]);
        else
            fputs(",,,,", file.file);
        fputc('\n', file.file);
    }
    return tierce__optimize_close(&file, request->sim.tier_csv);
}

/* ---- running --------------------------------------------------------------------------------- */

struct tierce__tiers_opts tierce__optimize_tiers(const struct tierce__optimize *request,
                                                 const struct tierce__recording *recording)
{
    return (struct tierce__tiers_opts){
        .size = sizeof(struct tierce__tiers_opts),
        .tiers = request->sim.tiers,
        .tier_count = request->sim.tier_count,
        .writes = request->sim.writes,
        .promote = request->sim.promote,
        .in_bytes = request->in_bytes,
        .block_bytes = request->block_bytes,
        .block_tokens = request->sim.has_tier_costs ? request->money.setup.block_tokens : 0,
        .distinct = tierce__recording_totals(recording).distinct,
        .seed = request->seed,
    };
}

int tierce__optimize_replay_tiers(struct tierce__tiers **out, const struct tierce__tiers_opts *opts,
                                  const struct tierce__recording *recording)
{
    struct tierce__tiers *tiers = NULL;
    int rc = tierce__tiers_create(&tiers, opts);
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r))
        rc = tierce__tiers_request(tiers, r, NULL);
    if (rc < 0) {
        tierce__tiers_destroy(tiers);
        return tierce__cli_fail(COMMAND, "the replay in tiers failed: %s", tierce_strerror(rc));
    }
    *out = tiers;
    return TIERCE__CLI_OK;
}

int tierce__optimize_run_tiers(const struct tierce__optimize *request,
                               const struct tierce__recording *recording, const char *name)
{
    struct tierce__tiers_opts opts = tierce__optimize_tiers(request, recording);
    struct tierce__tiers *tiers = NULL;
    if (request->sim.tier_count == 0)
        return TIERCE__CLI_OK;
    int status = tierce__optimize_replay_tiers(&tiers, &opts, recording);
    if (status != TIERCE__CLI_OK)
        return status;
    if (tierce__optimize_piped(request) == 0)
        print_tiers(stdout, request, tiers,
                    request->block_bytes > 0 || tierce__recording_totals(recording).has_bytes);
    status = write_csv(request, tiers, name);
    tierce__tiers_destroy(tiers);
    return status;
}
