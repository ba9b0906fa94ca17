/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "manager/pilot/rehearsal.h"
#include "optimizer/analysis/groups.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define COMMAND    "optimize"
#define NAME_SHOWN 128 /* bytes of a name in a table */

/* The groups of the command line, once the names of instances are known. */
struct members {
    struct tierce__group_spec *specs;
    char **names;
    size_t count, room;
    uint32_t *group_of; /* [instances] */
};

static double rate(uint64_t hits, uint64_t blocks)
{
    return blocks > 0 ? (double)hits / (double)blocks : 0;
}

static void clear_members(struct members *m)
{
    for (size_t i = 0; m->names != NULL && i < m->count; i++)
        tierce__free(m->names[i]);
    tierce__free(m->names);
    tierce__free(m->specs);
    tierce__free(m->group_of);
}

static int add_group(struct members *m, const char *name, size_t length, uint64_t capacity)
{
    char *copy = tierce__calloc(length + 1, 1);
    if (copy == NULL)
        return tierce__cli_fail(COMMAND, "%s", tierce_strerror(-ENOMEM));
    memcpy(copy, name, length);
    TIERCE_ASSERT(m->count < m->room);
    m->names[m->count] = copy;
    m->specs[m->count++] = (struct tierce__group_spec){.name = copy, .capacity = capacity};
    return TIERCE__CLI_OK;
}

/* Puts the instance of a name into a group. */
static int join(struct members *m, const struct tierce__optimize_trace *trace, const char *name,
                size_t length, size_t group)
{
    char wanted[128], shown[64];
    uint32_t nearest = 0;
    snprintf(wanted, sizeof(wanted), "%.*s", (int)length, name);
    for (uint32_t i = 0; i < trace->instance_count; i++) {
        const char *instance = trace->instances[i];
        if (strlen(instance) == length && memcmp(instance, name, length) == 0) {
            if (m->group_of[i] != TIERCE__GROUP_NONE)
                return tierce__cli_usage(COMMAND, "the instance \"%s\" is in two groups", wanted);
            m->group_of[i] = (uint32_t)group;
            return TIERCE__CLI_OK;
        }
        if (tierce__edit_distance(instance, wanted) <
            tierce__edit_distance(trace->instances[nearest], wanted))
            nearest = i;
    }
    if (trace->instance_count == 0 ||
        (trace->instance_count == 1 && trace->instances[0][0] == '\0'))
        return tierce__cli_usage(COMMAND, "the trace names no instances, so \"%s\" cannot be one",
                                 wanted);
    tierce__text_for_message(shown, sizeof(shown),
                             trace->instance_count > 0 ? trace->instances[nearest] : "");
    return tierce__cli_usage(COMMAND, "the trace has no instance \"%s\" (\"%s\"?)", wanted, shown);
}

static int join_list(struct members *m, const struct tierce__optimize_trace *trace,
                     const char *list, size_t group)
{
    int status = TIERCE__CLI_OK;
    for (bool more = true; more && status == TIERCE__CLI_OK;) {
        size_t length = strcspn(list, ",");
        status = join(m, trace, list, length, group);
        more = list[length] != '\0';
        list += length + more;
    }
    return status;
}

static const struct tierce__optimize_named *find_named(const struct tierce__optimize_named *list,
                                                       size_t count,
                                                       const struct tierce__optimize_named *like)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i].name_length == like->name_length &&
            memcmp(list[i].text, like->text, like->name_length) == 0)
            return &list[i];
    }
    return NULL;
}

static int begin_members(struct members *m, const struct tierce__optimize_trace *trace)
{
    uint32_t instances = trace->instance_count;
    *m = (struct members){.room = instances + TIERCE__OPTIMIZE_GROUPS_MAX};
    m->names = tierce__calloc(m->room, sizeof(*m->names));
    m->specs = tierce__calloc(m->room, sizeof(*m->specs));
    m->group_of = tierce__alloc((instances + 1) * sizeof(*m->group_of));
    if (m->names == NULL || m->specs == NULL || m->group_of == NULL)
        return tierce__cli_fail(COMMAND, "%s", tierce_strerror(-ENOMEM));
    memset(m->group_of, 0xff, (instances + 1) * sizeof(*m->group_of));
    return TIERCE__CLI_OK;
}

/* A group for each quota: the members in --group, else the instance of that name. */
static int list_quotas(struct members *m, const struct tierce__optimize *request,
                       const struct tierce__optimize_trace *trace)
{
    const struct tierce__optimize_sim *sim = &request->sim;
    int status = begin_members(m, trace);
    for (size_t i = 0; status == TIERCE__CLI_OK && i < sim->group_count; i++) {
        if (find_named(sim->quotas, sim->quota_count, &sim->groups[i]) == NULL)
            status =
                tierce__cli_usage(COMMAND, "--group %.60s has no --quota", sim->groups[i].text);
    }
    for (size_t i = 0; status == TIERCE__CLI_OK && i < sim->quota_count; i++) {
        const struct tierce__optimize_named *quota = &sim->quotas[i];
        const struct tierce__optimize_named *group =
            find_named(sim->groups, sim->group_count, quota);
        status = add_group(m, quota->text, quota->name_length, quota->size.amount);
        if (status == TIERCE__CLI_OK)
            status = group != NULL ? join_list(m, trace, group->value, i)
                                   : join(m, trace, quota->text, quota->name_length, i);
    }
    return status;
}

/* The groups of --group; without any, each instance is a group. */
static int list_groups(struct members *m, const struct tierce__optimize *request,
                       const struct tierce__optimize_trace *trace)
{
    const struct tierce__optimize_sim *sim = &request->sim;
    int status = begin_members(m, trace);
    for (size_t i = 0; status == TIERCE__CLI_OK && i < sim->group_count; i++) {
        status = add_group(m, sim->groups[i].text, sim->groups[i].name_length, 0);
        if (status == TIERCE__CLI_OK)
            status = join_list(m, trace, sim->groups[i].value, i);
    }
    for (uint32_t i = 0;
         status == TIERCE__CLI_OK && sim->group_count == 0 && i < trace->instance_count; i++) {
        const char *name = trace->instances[i][0] != '\0' ? trace->instances[i] : "-";
        status = add_group(m, name, strlen(name), 0);
        m->group_of[i] = i;
    }
    return status;
}

/* ---- quotas ---------------------------------------------------------------------------------- */

static void print_quotas(FILE *file, const struct tierce__optimize *request,
                         const struct tierce__groups *groups, const struct members *m)
{
    fprintf(file, "\ngroups with caches of their own:\n%-20s%-20s%-10s%12s%12s%12s%11s%11s\n",
            "group", "policy", "match", "capacity", "requests", "blocks", "hits", "external");
    for (size_t i = 0; i < groups->row_count; i++) {
        const struct tierce__sweep_row *row = &groups->rows[i].row;
        size_t group = groups->rows[i].group;
        char name[TIERCE__SWEEP_NAME_BYTES], match[TIERCE__MATCH_TEXT_BYTES], capacity[32];
        char shown[NAME_SHOWN];
        tierce__text_for_message(shown, sizeof(shown), group < m->count ? m->names[group] : "all");
        tierce__sweep_name(name, row);
        tierce__match_print(&row->match, match);
        tierce__optimize_capacity(capacity, request, row->capacity);
        fprintf(file, "%-20s%s%s%*s%-10s%12s%12" PRIu64 "%12" PRIu64 "%10.2f%%%10.2f%%\n", shown,
                name,
                request->order_count < 2 || !row->has_order ? ""
                : row->order == TIERCE__TOUCH_REV           ? "/rev"
                                                            : "/fwd",
                (int)(strlen(name) < 20 ? 20 - strlen(name) : 1), "", match, capacity,
                row->requests, row->blocks, 100 * rate(row->hits, row->blocks),
                100 * rate(row->hits - row->internal_hits, row->blocks - row->internal_blocks));
    }
    if (groups->left_out > 0)
        fprintf(file, "%" PRIu64 " requests of instances in no group were omitted\n",
                groups->left_out);
}

/* Columns of both tables; a cell that one lacks is empty. */
static const char csv_header[] =
    "trace,kind,group,policy,order,match,capacity,requests,blocks,hits,hit_rate,"
    "internal_blocks,internal_hits,hits_max,hits_bound\n";

static void print_csv_quotas(FILE *file, const char *trace, const struct tierce__groups *groups,
                             const struct members *m)
{
    for (size_t i = 0; i < groups->row_count; i++) {
        const struct tierce__sweep_row *row = &groups->rows[i].row;
        size_t group = groups->rows[i].group;
        char name[TIERCE__SWEEP_NAME_BYTES], match[TIERCE__MATCH_TEXT_BYTES];
        tierce__sweep_name(name, row);
        tierce__match_print(&row->match, match);
        fprintf(file, "%s,quota,", trace);
        tierce__optimize_print_text(file, group < m->count ? m->names[group] : "all");
        fprintf(file, ",%s,%s,%s,", name, tierce__optimize_order(row), match);
        tierce__optimize_print_capacity(file, row->capacity);
        fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,%" PRIu64 ",%" PRIu64 ",,\n",
                row->requests, row->blocks, row->hits, rate(row->hits, row->blocks),
                row->internal_blocks, row->internal_hits);
    }
}

static struct tierce__groups_opts groups_opts(const struct tierce__optimize *request,
                                              const struct members *m)
{
    return (struct tierce__groups_opts){
        .size = sizeof(struct tierce__groups_opts),
        .groups = m->specs,
        .group_count = m->count,
        .group_of = m->group_of,
        .sweep = tierce__optimize_sweep_opts(request),
    };
}

static int run_quotas(const struct tierce__optimize *request,
                      const struct tierce__optimize_trace *trace, FILE *csv, const char *name)
{
    struct tierce__groups groups = {0};
    struct members m;
    int status = list_quotas(&m, request, trace);
    if (status == TIERCE__CLI_OK) {
        struct tierce__groups_opts opts = groups_opts(request, &m);
        int rc = tierce__groups_run(&groups, trace->recording, &opts);
        if (rc < 0)
            status = tierce__optimize_fail_replay("the replay of groups", rc);
        else if (tierce__optimize_piped(request) == 0)
            print_quotas(stdout, request, &groups, &m);
        if (rc == 0 && csv != NULL)
            print_csv_quotas(csv, name, &groups, &m);
    }
    tierce__groups_clear(&groups);
    clear_members(&m);
    return status;
}

/* ---- the best split -------------------------------------------------------------------------- */

static void print_split(FILE *file, const struct tierce__optimize *request,
                        const struct tierce__split *split, const struct members *m)
{
    char match[TIERCE__MATCH_TEXT_BYTES], budget[32];
    tierce__match_print(&request->matches[0], match);
    tierce__optimize_capacity(budget, request, split->budget);
    fprintf(file, "\n%s blocks over groups of LRU caches, for the most hits by %s:\n", budget,
            match);
    fprintf(file, "%-20s%12s%12s%12s%11s%14s\n", "group", "capacity", "requests", "blocks", "hits",
            "at any size");
    for (size_t g = 0; g < split->part_count; g++) {
        const struct tierce__split_part *part = &split->parts[g];
        char shown[NAME_SHOWN];
        tierce__text_for_message(shown, sizeof(shown), m->names[g]);
        fprintf(file, "%-20s%12" PRIu64 "%12" PRIu64 "%12" PRIu64 "%10.2f%%%13.2f%%\n", shown,
                part->capacity, part->requests, part->blocks, 100 * rate(part->hits, part->blocks),
                100 * rate(part->hits_max, part->blocks));
    }
    fprintf(file, "%-32s%12" PRIu64 "%12" PRIu64 "%10.2f%%%13.2f%%\n", "all", split->requests,
            split->blocks, 100 * rate(split->hits, split->blocks),
            100 * rate(split->hits_max, split->blocks));
    fprintf(file,
            "found along the concave hulls of the groups' curves: no split has more than "
            "%.2f%%\n",
            split->blocks > 0 ? 100 * split->hull_hits / (double)split->blocks : 0);
    if (!split->is_exact)
        fputs("some requests only look up: the curves count as if they also stored the blocks\n",
              file);
}

static void print_csv_part(FILE *file, const char *group, const struct tierce__optimize *request,
                           uint64_t capacity, const struct tierce__split_part *part)
{
    char match[TIERCE__MATCH_TEXT_BYTES];
    tierce__match_print(&request->matches[0], match);
    fputs("split,", file);
    tierce__optimize_print_text(file, group);
    fprintf(file,
            ",lru,%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,,,%" PRIu64 ",%.6g\n",
            request->orders[0] == TIERCE__TOUCH_REV ? "rev" : "fwd", match, capacity,
            part->requests, part->blocks, part->hits, rate(part->hits, part->blocks),
            part->hits_max, part->hull_hits);
}

static void print_csv_split(FILE *file, const char *trace, const struct tierce__optimize *request,
                            const struct tierce__split *split, const struct members *m)
{
    struct tierce__split_part all = {.requests = split->requests,
                                     .blocks = split->blocks,
                                     .hits = split->hits,
                                     .hits_max = split->hits_max,
                                     .hull_hits = split->hull_hits};
    for (size_t g = 0; g < split->part_count; g++) {
        fprintf(file, "%s,", trace);
        print_csv_part(file, m->names[g], request, split->parts[g].capacity, &split->parts[g]);
    }
    fprintf(file, "%s,", trace);
    print_csv_part(file, "all", request, split->budget, &all);
}

static int run_split(const struct tierce__optimize *request,
                     const struct tierce__optimize_trace *trace, FILE *csv, const char *name)
{
    struct tierce__split split = {0};
    struct members m;
    int status = list_groups(&m, request, trace);
    if (status == TIERCE__CLI_OK) {
        struct tierce__groups_opts opts = groups_opts(request, &m);
        int rc = tierce__split_run(&split, trace->recording, &opts, request->sim.split.amount);
        if (rc < 0)
            status = tierce__optimize_fail_replay("the split", rc);
        else if (tierce__optimize_piped(request) == 0)
            print_split(stdout, request, &split, &m);
        if (rc == 0 && csv != NULL)
            print_csv_split(csv, name, request, &split, &m);
    }
    tierce__split_clear(&split);
    clear_members(&m);
    return status;
}

/* ---- the autopilot --------------------------------------------------------------------------- */

static void print_rehearsed(FILE *file, const struct tierce__optimize *request,
                            const struct tierce__rehearsal *r, const struct members *m)
{
    char budget[32], time[32];
    const struct {
        const char *name;
        uint64_t hits;
    } sums[] = {{"best split", r->best_hits},
                {"equal parts", r->equal_hits},
                {"autopilot", r->act_hits},
                {"moving split", r->moving_hits}};
    tierce__optimize_capacity(budget, request, request->sim.autopilot.amount);
    tierce__optimize_time(time, r->seconds);
    fprintf(file, "\n%s blocks over groups of LRU caches, for %s, with the manager's autopilot:\n",
            budget, time);
    fprintf(file, "%-20s%12s%12s%12s%12s%11s%11s%11s\n", "group", "blocks", "best", "least", "most",
            "best", "equal", "autopilot");
    for (size_t g = 0; g < r->group_count; g++) {
        const struct tierce__rehearsal_group *of = &r->groups[g];
        char shown[NAME_SHOWN];
        tierce__text_for_message(shown, sizeof(shown), m->names[g]);
        fprintf(file,
                "%-20s%12" PRIu64 "%12" PRIu64 "%12" PRIu64 "%12" PRIu64
                "%10.2f%%%10.2f%%%10.2f%%\n",
                shown, of->blocks, of->best, of->act_least, of->act_most,
                100 * rate(of->best_hits, of->blocks), 100 * rate(of->equal_hits, of->blocks),
                100 * rate(of->act_hits, of->blocks));
    }
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        fprintf(file, "%-20s%12" PRIu64 " hits%10.2f%%%9.1f%% of the best split\n", sums[i].name,
                sums[i].hits, 100 * rate(sums[i].hits, r->blocks),
                100 * rate(sums[i].hits, r->best_hits));
    fprintf(file,
            "steps: %" PRIu64 " made, %" PRIu64 " kept, %" PRIu64 " undone\n"
            "best split: known in hindsight, stays; moving split: a bound, known in advance\n",
            r->steps, r->kept, r->undone);
}

static int run_autopilot(const struct tierce__optimize *request,
                         const struct tierce__optimize_trace *trace)
{
    struct tierce__rehearsal rehearsal = {0};
    struct members m;
    int status = list_groups(&m, request, trace);
    if (status == TIERCE__CLI_OK) {
        int rc = tierce__rehearse(&rehearsal, trace->recording,
                                  &(struct tierce__rehearsal_opts){
                                      .size = sizeof(struct tierce__rehearsal_opts),
                                      .groups = m.specs,
                                      .group_count = m.count,
                                      .group_of = m.group_of,
                                      .budget = request->sim.autopilot.amount,
                                  });
        if (rc < 0)
            status = tierce__optimize_fail_replay("the replay of the autopilot", rc);
        else if (tierce__optimize_piped(request) == 0)
            print_rehearsed(stdout, request, &rehearsal, &m);
    }
    tierce__rehearsal_clear(&rehearsal);
    clear_members(&m);
    return status;
}

/* A trace whose times are all the same has no load that shifts. */
static int check_autopilot(const struct tierce__optimize *request,
                           const struct tierce__optimize_trace *trace)
{
    struct tierce__recording_totals totals = tierce__recording_totals(trace->recording);
    uint64_t budget = request->sim.autopilot.amount;
    struct members m;
    if (budget == 0)
        return TIERCE__CLI_OK;
    if (request->in_bytes)
        return tierce__cli_usage(COMMAND, "--autopilot counts blocks, but the sizes are in bytes");
    if (totals.last_us <= totals.first_us)
        return tierce__cli_usage(COMMAND, "--autopilot needs a trace with times");
    int status = list_groups(&m, request, trace);
    if (status == TIERCE__CLI_OK && (m.count < 2 || m.count > TIERCE__PILOT_GROUPS_MAX))
        status = tierce__cli_usage(COMMAND,
                                   "--autopilot divides a size among 2 to %d groups, and there "
                                   "%s %zu; name them with --group",
                                   TIERCE__PILOT_GROUPS_MAX, m.count == 1 ? "is" : "are", m.count);
    else if (status == TIERCE__CLI_OK && budget < m.count)
        status = tierce__cli_usage(COMMAND, "--autopilot needs at least a block for each group");
    clear_members(&m);
    return status;
}

int tierce__optimize_check_groups(const struct tierce__optimize *request,
                                  const struct tierce__optimize_trace *trace)
{
    struct members m = {0};
    int status = request->sim.quota_count > 0 ? list_quotas(&m, request, trace) : TIERCE__CLI_OK;
    clear_members(&m);
    if (status == TIERCE__CLI_OK)
        status = check_autopilot(request, trace);
    if (status != TIERCE__CLI_OK || request->sim.split.amount == 0)
        return status;
    if (request->in_bytes)
        return tierce__cli_usage(COMMAND, "--split counts blocks, but the sizes are in bytes");
    status = list_groups(&m, request, trace);
    clear_members(&m);
    return status;
}

int tierce__optimize_run_groups(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace, const char *name)
{
    const struct tierce__optimize_sim *sim = &request->sim;
    struct tierce__new_file file = {0};
    int status = TIERCE__CLI_OK;
    if (sim->group_csv != NULL)
        status = tierce__optimize_open(&file, sim->group_csv);
    if (status != TIERCE__CLI_OK)
        return status;
    if (file.file != NULL)
        fputs(csv_header, file.file);
    if (sim->quota_count > 0)
        status = run_quotas(request, trace, file.file, name);
    if (status == TIERCE__CLI_OK && sim->split.amount > 0)
        status = run_split(request, trace, file.file, name);
    if (status == TIERCE__CLI_OK && sim->autopilot.amount > 0)
        status = run_autopilot(request, trace);
    if (status == TIERCE__CLI_OK && file.file != NULL)
        return tierce__optimize_close(&file, sim->group_csv);
    if (file.file != stdout)
        (void)!tierce__new_file_close(&file, false);
    return status;
}
