/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/optimize_live.h"
#include "cli/optimize/plot_png.h"
#include "cli/optimize/progress.h"
#include "cli/trace/trace_commands.h"
#include "optimizer/replay/engine_cache.h"
#include "optimizer/trace/temporary.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMAND "optimize"

const char *const tierce__cli_optimize_help[] = {
    "Replays a recorded trace in simulated caches, and reports the hits that they would have had.\n"
    "Defaults are in parentheses.\n"
    "\n"
    "Caches. LIST is separated by commas; all combinations are simulated.\n"
    "  --policy LIST     eviction policies (lru,leaf-lru,lfu,sieve,s3fifo,arc,belady)\n"
    "  --capacity LIST   blocks (10000), bytes (64GiB, with --model or --block-bytes) or\n"
    "                    unlimited\n"
    "                    (16 sizes up to all different blocks of the trace)\n"
    "  --match LIST      prefix, any, stream, window:N (prefix)\n"
    "  --order LIST      rev: a request uses its last block first; fwd: its first block (rev)\n"
    "  --block-bytes N   size of a block, if --model does not give it\n"
    "  --ttl LIST        for --policy ttl: how long a block is kept after its last use\n"
    "  --seed N          for policies that use random numbers (0)\n"
    "  --threads N       (one per processor)\n"
    "\n",
    "Money and trust:\n" TIERCE__OPTIMIZE_MONEY_HELP "\n",
    "Beside the table:\n" TIERCE__OPTIMIZE_SIM_HELP "\n",
    "Output. A complete file replaces the previous one.\n"
    "  --csv FILE        one line per combination, to a file or to standard output (-)\n"
    "  --html FILE       all results as one self-contained page for a browser\n"
    "  --svg FILE, --png FILE  the plot of hits against capacity\n"
    "\n"
    "Input. TRACE may be - for standard input, and may be compressed by gzip or zstd.\n"
    "  --format NAME     the trace's format, if it cannot be detected\n"
    "  --bad-share SHARE fails if more than this share of lines, and more than ten, are bad "
    "(0.01)\n"
    "  --live URL        shows hit rates while a source is being written: vLLM's KV events\n"
    "                    (tcp://, ipc://), http://, or a file; may be repeated (--policy lru);\n"
    "                    updated every --every TIME (1s, or 10s without a terminal)\n"
    "  --fade TIME       with --live: requests of this age count half (never, while they fit\n"
    "                    into the window)\n"
    "\n",
    "KVCM's caches:\n"
    "  --kvcm-mode 1|2|3 for kvcm-*: evicts whole batches of all instances (1), whole batches\n"
    "                    of the instance written to (2), or only the excess (3); default 3\n"
    "  --kvcm-batch N    blocks evicted at a time (100)\n"
    "  --kvcm-used SHARE of the capacity, above which it evicts (1)\n"
    "  --kvcm-sample-rate R  for kvcm-random-lru: samples batch / R blocks (0.1)\n"
    "  --kvcm-csv DIR    writes KVCM's own files, for one kvcm-* policy and one capacity\n"
    "  --kvcm-config FILE  replays KVCM's own configuration file, with the trace and the output\n"
    "                    folder that it names, unless TRACE and --kvcm-csv are given\n"
    "\n",
    "Policies: lru, fifo, mru, lfu, sieve, s3fifo, s3fifo-lcs, arc, leaf-lru, ttl, sampled-lru,\n"
    "hazard, belady, hazard-oracle, infinite, kvcm-lru, kvcm-random-lru,\n"
    "kvcm-leaf-aware-lru.\n"
    "belady uses knowledge of the future: no policy has more hits, except with window:N.\n"
    "hazard-oracle is hazard with hints that are always true. infinite keeps everything.\n"
    "\n"
    "Exit status: 0 success, 1 the trace cannot be read or a result cannot be written, 2 invalid\n"
    "arguments, or invalid content of a file that they name.\n",
    NULL};

/* ---- reading the trace ----------------------------------------------------------------------- */

static int record_all(struct tierce__recording *recording, struct tierce__trace *trace)
{
    struct tierce__trace_request request;
    struct tierce__progress progress;
    uint64_t length, before = 0;
    int rc;
    (void)tierce__trace_position(trace, &length);
    tierce__progress_begin(&progress, "reading", length);
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        uint64_t position = tierce__trace_position(trace, &length);
        rc = tierce__recording_add(recording, &request);
        if (rc == 0)
            rc = tierce__recording_expect(recording, position, length);
        if (rc < 0)
            break;
        TIERCE_ASSERT(position >= before);
        tierce__progress_add(&progress, position - before);
        before = position;
    }
    tierce__progress_end(&progress);
    return rc == 0 ? tierce__recording_seal(recording) : rc;
}

static int keep_names(struct tierce__optimize_trace *out, const struct tierce__trace *trace)
{
    uint32_t count = tierce__recording_totals(out->recording).instances;
    TIERCE_ASSERT(out->instance_count == 0);
    out->instances = tierce__calloc(count, sizeof(*out->instances));
    while (out->instances != NULL && out->instance_count < count) {
        const char *name = tierce__trace_instance(trace, out->instance_count);
        char *copy = tierce__strdup(name != NULL ? name : "");
        if (copy == NULL)
            return -ENOMEM;
        out->instances[out->instance_count++] = copy;
    }
    return out->instances != NULL ? 0 : -ENOMEM;
}

/* Reports that the trace could not be recorded. */
static int not_kept(const char *path, int rc)
{
    if (rc != -ENOSPC && rc != -EDQUOT && rc != -EFBIG)
        return tierce__cli_fail(COMMAND, "%.300s: %s", path, tierce_strerror(rc));
    return tierce__cli_fail(COMMAND,
                            "the temporary file in %.300s cannot be written: %s; it requires 4 "
                            "bytes per block and 56 per request; set TMPDIR to use another folder",
                            tierce__temporary_folder(), tierce_strerror(rc));
}

static int read_trace(struct tierce__optimize_trace *out, const struct tierce__optimize *request)
{
    char why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace *trace;
    int rc = tierce__trace_open(&trace, request->path,
                                &(struct tierce__trace_opts){
                                    .size = sizeof(struct tierce__trace_opts),
                                    .format = request->format,
                                    .bad_share_max = request->bad_share_max,
                                },
                                why);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%.300s: %s", request->path, why);
    int status = TIERCE__CLI_OK;
    rc = tierce__recording_create(&out->recording, NULL);
    if (rc < 0) {
        status = tierce__cli_fail(
            COMMAND,
            "a temporary file cannot be created in %.300s: %s; set TMPDIR to use another folder",
            tierce__temporary_folder(), tierce_strerror(rc));
        goto out;
    }
    rc = record_all(out->recording, trace);
    out->bad_lines = tierce__trace_report(trace)->bad_lines;
    out->format = tierce__trace_report(trace)->format;
    out->block_bytes = tierce__trace_report(trace)->block_bytes;
    tierce__trace_tell_faults(COMMAND, request->path, tierce__trace_report(trace));
    if (rc == 0)
        rc = keep_names(out, trace);
    if (rc < 0) {
        const char *error = tierce__trace_error(trace);
        status = error != NULL && error[0] != '\0'
                     ? tierce__cli_fail(COMMAND, "%.300s: %s", request->path, error)
                     : not_kept(request->path, rc);
    } else if (tierce__recording_totals(out->recording).requests == 0) {
        status = tierce__cli_fail(COMMAND, "%.300s: contains no request", request->path);
    }
out:
    tierce__trace_close(trace);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

void tierce__optimize_choose_capacities(struct tierce__optimize *request, double most)
{
    double least = fmin(most, fmax(1, most / 1000));
    for (int i = 0; i < TIERCE__OPTIMIZE_POINTS; i++) {
        double share = (double)i / (TIERCE__OPTIMIZE_POINTS - 1);
        uint64_t capacity = (uint64_t)llround(least * pow(most / least, share));
        TIERCE_ASSERT(request->capacity_count < TIERCE__OPTIMIZE_LIST_MAX);
        if (request->capacity_count == 0 ||
            request->capacities[request->capacity_count - 1] != capacity)
            request->capacities[request->capacity_count++] = capacity;
    }
}

/* A budget is one of the capacities, before the first that is larger. */
static void add_budget(struct tierce__optimize *request)
{
    uint64_t budget = request->sim.budget.amount, *capacities = request->capacities;
    size_t at = 0, count = request->capacity_count;
    for (size_t i = 0; i < count; i++) {
        if (capacities[i] == budget)
            return;
    }
    if (request->sim.budget.amount == 0 || count == TIERCE__OPTIMIZE_LIST_MAX)
        return;
    while (at < count && capacities[at] < budget)
        at++;
    memmove(capacities + at + 1, capacities + at, (count - at) * sizeof(capacities[0]));
    capacities[at] = budget;
    request->capacity_count++;
    TIERCE_ASSERT(request->capacity_count <= TIERCE__OPTIMIZE_LIST_MAX);
}

static int fit_sizes(struct tierce__optimize *request, const struct tierce__recording *recording)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    uint64_t most = totals.distinct;
    request->has_capacities = request->capacity_count > 0;
    int status = tierce__optimize_fit_sizes(request, &totals);
    if (status == TIERCE__CLI_OK && !request->has_capacities && request->in_bytes) {
        int rc = tierce__recording_bytes(recording, &most);
        if (rc < 0)
            return tierce__cli_fail(COMMAND, "%s", tierce_strerror(rc));
    }
    if (status == TIERCE__CLI_OK && !request->has_capacities)
        tierce__optimize_choose_capacities(request, most > 0 ? (double)most : 1);
    if (status == TIERCE__CLI_OK)
        add_budget(request);
    return status;
}

/* Marks what each engine would have held itself. */
static int mark_engines(const struct tierce__optimize *request,
                        struct tierce__optimize_trace *trace)
{
    struct tierce__recording *marked;
    if (request->sim.engine.amount == 0)
        return TIERCE__CLI_OK;
    if (tierce__recording_totals(trace->recording).internal_blocks > 0)
        return tierce__cli_usage(
            COMMAND, "--engine-cache: %.300s already states what the engine held", request->path);
    int rc = tierce__engine_cache_mark(&marked, trace->recording, request->sim.engine.amount,
                                       request->in_bytes);
    if (rc < 0)
        return tierce__optimize_fail_replay("the engine's own cache", rc);
    TIERCE_ASSERT(tierce__recording_totals(marked).requests ==
                  tierce__recording_totals(trace->recording).requests);
    tierce__recording_destroy(trace->recording);
    trace->recording = marked;
    return TIERCE__CLI_OK;
}

int tierce__optimize_open(struct tierce__new_file *out, const char *path)
{
    *out = (struct tierce__new_file){.file = stdout};
    int rc = strcmp(path, "-") == 0 ? 0 : tierce__new_file_open(out, path);
    return rc == 0 ? TIERCE__CLI_OK
                   : tierce__cli_fail(COMMAND, "%.300s: cannot be written: %s", path,
                                      tierce_strerror(rc));
}

int tierce__optimize_close(struct tierce__new_file *file, const char *path)
{
    if (file->file == stdout)
        return TIERCE__CLI_OK;
    bool is_beside = file->beside != NULL;
    int rc = tierce__new_file_close(file, true);
    if (rc == 0)
        return TIERCE__CLI_OK;
    return tierce__cli_fail(COMMAND, "%.300s: cannot be written to its end: %s%s", path,
                            tierce_strerror(rc),
                            is_beside ? "; the previous file is unchanged" : "");
}

static int write_csv(const struct tierce__optimize *request, const char *name,
                     const struct tierce__sweep *sweep,
                     const struct tierce__optimize_findings *findings)
{
    struct tierce__new_file file;
    int status = tierce__optimize_open(&file, request->csv);
    if (status != TIERCE__CLI_OK)
        return status;
    tierce__optimize_print_csv(file.file, name, sweep, findings);
    return tierce__optimize_close(&file, request->csv);
}

enum { OUTPUTS = 8 };

/* The files that are written, NULL where none is. */
static void list_outputs(const char *out[OUTPUTS], const struct tierce__optimize *request)
{
    const char *const paths[OUTPUTS] = {request->csv,           request->html,
                                        request->svg,           request->png,
                                        request->sim.timeline,  request->sim.tier_csv,
                                        request->sim.group_csv, request->sim.state_csv};
    memcpy(out, paths, sizeof(paths));
}

int tierce__optimize_piped(const struct tierce__optimize *request)
{
    const char *paths[OUTPUTS];
    int count = 0;
    list_outputs(paths, request);
    for (size_t i = 0; i < OUTPUTS; i++)
        count += paths[i] != NULL && strcmp(paths[i], "-") == 0;
    return count;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat one, other;
    return strcmp(a, b) == 0 || (stat(a, &one) == 0 && stat(b, &other) == 0 &&
                                 one.st_dev == other.st_dev && one.st_ino == other.st_ino);
}

/* Tries to open an output file, but not a pipe: its reader would see this end close. */
static int try_output(const char *path)
{
    struct tierce__new_file file;
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return TIERCE__CLI_OK;
    int status = tierce__optimize_open(&file, path);
    if (status == TIERCE__CLI_OK)
        (void)!tierce__new_file_close(&file, false);
    return status;
}

static int check_output(const struct tierce__optimize *request, const char *path)
{
    struct stat st;
    if (path[0] == '\0')
        return tierce__cli_usage(COMMAND, "a file to be written has an empty name");
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && is_same_file(path, request->path))
        return tierce__cli_usage(COMMAND, "%.300s is the trace: it would be overwritten", path);
    return try_output(path);
}

/* Reports unwritable outputs before the trace is read, not after the replay. */
static int check_outputs(const struct tierce__optimize *request)
{
    const char *paths[OUTPUTS];
    int status = TIERCE__CLI_OK;
    list_outputs(paths, request);
    for (size_t i = 0; status == TIERCE__CLI_OK && i < OUTPUTS; i++) {
        if (paths[i] == NULL || strcmp(paths[i], "-") == 0)
            continue;
        for (size_t k = 0; k < i; k++) {
            if (paths[k] != NULL && strcmp(paths[k], paths[i]) == 0)
                return tierce__cli_usage(COMMAND, "%.300s is given for two outputs", paths[i]);
        }
        status = check_output(request, paths[i]);
    }
    if (status == TIERCE__CLI_OK && request->png != NULL && tierce__plot_png_load() != 0)
        status = tierce__cli_fail(COMMAND, "--png requires libcairo.so.2 and libfontconfig.so.1, "
                                           "which cannot be loaded; --svg requires neither");
    return status;
}

static void print_results(const struct tierce__optimize *request,
                          const struct tierce__recording_totals *totals,
                          const struct tierce__sweep *sweep,
                          const struct tierce__optimize_findings *findings)
{
    if (tierce__optimize_piped(request) > 0)
        return;
    tierce__optimize_print_table(stdout, request, totals, sweep);
    tierce__optimize_print_budget(stdout, request, sweep);
    tierce__optimize_print_curve(stdout, request, sweep);
    tierce__optimize_print_money(stdout, findings, sweep);
    tierce__optimize_print_trust(stdout, request, findings, sweep);
}

static int write_results(const struct tierce__optimize *request,
                         const struct tierce__optimize_trace *trace, const char *name,
                         const struct tierce__sweep *sweep,
                         const struct tierce__optimize_findings *findings)
{
    struct tierce__recording_totals totals = tierce__recording_totals(trace->recording);
    int status = request->csv != NULL ? write_csv(request, name, sweep, findings) : TIERCE__CLI_OK;
    if (status == TIERCE__CLI_OK)
        status = tierce__optimize_write_report(request, trace, name, sweep, findings);
    print_results(request, &totals, sweep, findings);
    return status;
}

/* An error of the system, which the replay itself meets in nothing but files; the others are
 * ours. */
static bool is_of_a_file(int rc)
{
    return rc > -4096 && rc != -ENOMEM && rc != -EAGAIN;
}

int tierce__optimize_fail_replay(const char *what, int rc)
{
    if (!is_of_a_file(rc))
        return tierce__cli_fail(COMMAND, "%s failed: %s", what, tierce_strerror(rc));
    return tierce__cli_fail(
        COMMAND,
        "%s failed: %s; its temporary files are in %.300s; set TMPDIR to use another folder", what,
        tierce_strerror(rc), tierce__temporary_folder());
}

/* The only file of a sweep holds belady's knowledge of the future. */
static int fail_sweep(const struct tierce__optimize *request,
                      const struct tierce__recording *recording, int rc)
{
    for (size_t i = 0; i < request->cache_count && is_of_a_file(rc); i++) {
        if (request->caches[i].kind == TIERCE__CACHE_BELADY)
            return tierce__cli_fail(COMMAND,
                                    "belady requires a temporary file of %" PRIu64
                                    " bytes in %.300s, which cannot be allocated: %s; set TMPDIR "
                                    "to use another folder, or omit belady from --policy",
                                    4 * tierce__recording_totals(recording).blocks,
                                    tierce__temporary_folder(), tierce_strerror(rc));
    }
    return tierce__optimize_fail_replay("the replay", rc);
}

struct tierce__sweep_opts tierce__optimize_sweep_opts(const struct tierce__optimize *request)
{
    return (struct tierce__sweep_opts){
        .size = sizeof(struct tierce__sweep_opts),
        .caches = request->caches,
        .cache_count = request->cache_count,
        .orders = request->orders,
        .order_count = request->order_count,
        .matches = request->matches,
        .match_count = request->match_count,
        .capacities = request->capacities,
        .capacity_count = request->capacity_count,
        .in_bytes = request->in_bytes,
        .seed = request->seed,
        .ttls = request->ttls,
        .ttl_count = request->ttl_count,
        .kvcm = request->kvcm,
        .threads = request->threads,
    };
}

static int run(const struct tierce__optimize *request, const struct tierce__optimize_trace *trace,
               const char *name)
{
    const struct tierce__recording *recording = trace->recording;
    struct tierce__sweep sweep;
    struct tierce__progress progress;
    struct tierce__optimize_findings findings;
    tierce__progress_begin(&progress, "replaying", 1);
    progress.unit = "requests";
    struct tierce__sweep_opts opts = tierce__optimize_sweep_opts(request);
    opts.keeps_curves = request->html != NULL || request->svg != NULL || request->png != NULL;
    opts.progress = tierce__progress_tell;
    opts.progress_arg = &progress;
    if (request->sim.scale > 0) {
        int scaled = tierce__optimize_run_scaled(request, recording, name, &opts);
        tierce__progress_end(&progress);
        return scaled;
    }
    int status = tierce__optimize_begin_findings(&findings, &opts, &request->money, recording);
    int rc = status == TIERCE__CLI_OK ? tierce__sweep_run(&sweep, recording, &opts) : 0;
    tierce__progress_end(&progress);
    if (rc < 0)
        status = fail_sweep(request, recording, rc);
    if (status != TIERCE__CLI_OK)
        goto out;
    status = tierce__optimize_end_findings(&findings, &sweep, recording, request->seed);
    if (status == TIERCE__CLI_OK)
        status = write_results(request, trace, name, &sweep, &findings);
    tierce__sweep_clear(&sweep);
out:
    tierce__optimize_clear_findings(&findings);
    return status;
}

/* Runs the other requested evaluations. */
static int run_beside(const struct tierce__optimize *request,
                      const struct tierce__optimize_trace *trace, const char *name)
{
    int status = tierce__optimize_piped(request) == 0 ? tierce__optimize_run_life(request, trace)
                                                      : TIERCE__CLI_OK;
    if (status == TIERCE__CLI_OK)
        status = tierce__optimize_write_timeline(request, trace->recording);
    if (status == TIERCE__CLI_OK)
        status = tierce__optimize_run_tiers(request, trace->recording, name);
    if (status == TIERCE__CLI_OK)
        status = tierce__optimize_run_groups(request, trace, name);
    return status == TIERCE__CLI_OK ? tierce__optimize_run_states(request, trace, name) : status;
}

int tierce__cli_optimize(int argc, char **argv)
{
    struct tierce__optimize request;
    struct tierce__optimize_trace trace = {0};
    char name[TIERCE__CLI_TRACE_NAME_BYTES];
    int status = tierce__optimize_read_args(&request, argc, argv);
    if (status == TIERCE__CLI_OK && request.live_count > 0)
        return tierce__optimize_follow(&request);
    if (status == TIERCE__CLI_OK)
        status = check_outputs(&request);
    if (status == TIERCE__CLI_OK)
        status = read_trace(&trace, &request);
    if (status == TIERCE__CLI_OK)
        tierce__cli_trace_name(name, request.path);
    if (status == TIERCE__CLI_OK && request.kvcm_config_path != NULL) {
        status = tierce__optimize_run_config(&request, &trace, name);
    } else if (status == TIERCE__CLI_OK) {
        if (request.block_bytes == 0)
            request.block_bytes = trace.block_bytes;
        status = tierce__optimize_fit_money(&request.money, &request.block_bytes, &trace);
        if (status == TIERCE__CLI_OK)
            status = fit_sizes(&request, trace.recording);
        if (status == TIERCE__CLI_OK)
            status = mark_engines(&request, &trace);
        if (status == TIERCE__CLI_OK)
            status = tierce__optimize_check_groups(&request, &trace);
        if (status == TIERCE__CLI_OK)
            status = tierce__optimize_check_states(&request, &trace);
        if (status == TIERCE__CLI_OK)
            status = run(&request, &trace, name);
        if (status == TIERCE__CLI_OK)
            status = run_beside(&request, &trace, name);
        if (status == TIERCE__CLI_OK && request.kvcm_csv != NULL)
            status = tierce__optimize_write_kvcm(&request, &trace);
    }
    for (uint32_t i = 0; i < trace.instance_count; i++)
        tierce__free(trace.instances[i]);
    tierce__free(trace.instances);
    tierce__recording_destroy(trace.recording);
    tierce__kvcm_config_clear(&request.kvcm_config);
    return status;
}
