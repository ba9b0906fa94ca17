/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "optimizer/report/report_kvcm.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define COMMAND "optimize"

static const char *const policies[] = {"kvcm-lru", "kvcm-random-lru", "kvcm-leaf-aware-lru"};

static double rate(uint64_t hits, uint64_t blocks)
{
    return blocks > 0 ? (double)hits / (double)blocks : 0;
}

static int no_memory(void)
{
    return tierce__cli_fail(COMMAND, "%s", tierce_strerror(-ENOMEM));
}

/* ---- the rows of a config -------------------------------------------------------------------- */

struct outcome {
    const struct tierce__kvcm_config *config;
    const struct tierce__kvcm_layout *layout;
    const struct tierce__kvcm_total *totals;
    const char *const *names;
};

static void print_csv(FILE *file, const struct outcome *o, const char *trace)
{
    fprintf(file, "%s\n", tierce__optimize_csv_header);
    for (uint32_t i = 0; i < o->layout->instance_count; i++) {
        uint32_t at = o->layout->members[i];
        const struct tierce__kvcm_instance *instance = &o->layout->instances[at];
        const struct tierce__kvcm_total *t = &o->totals[at];
        uint64_t blocks = t->internal_blocks + t->external_blocks;
        uint64_t hits = t->internal_hits + t->external_hits;
        fprintf(file, "%s", trace);
        if (o->layout->instance_count > 1) {
            fputc('/', file);
            for (const char *p = o->names[at]; *p != '\0'; p++)
                fputc(*p == ',' || *p == '"' || (unsigned char)*p < ' ' ? '_' : *p, file);
        }
        fprintf(file, ",%s,-,prefix,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f\n",
                policies[instance->kind], o->config->groups[instance->group].capacity, t->requests,
                blocks, hits, rate(hits, blocks));
    }
}

static void print_table(FILE *file, const struct outcome *o)
{
    fprintf(file, "%-24s%-20s%-20s%12s%12s%12s%11s%11s%11s\n", "instance", "group", "policy",
            "capacity", "requests", "blocks", "internal", "external", "hits");
    for (uint32_t i = 0; i < o->layout->instance_count; i++) {
        uint32_t at = o->layout->members[i];
        const struct tierce__kvcm_instance *instance = &o->layout->instances[at];
        const struct tierce__kvcm_config_group *group = &o->config->groups[instance->group];
        const struct tierce__kvcm_total *t = &o->totals[at];
        uint64_t blocks = t->internal_blocks + t->external_blocks;
        char shown[128], group_shown[128];
        tierce__text_for_message(shown, sizeof(shown), o->names[at]);
        tierce__text_for_message(group_shown, sizeof(group_shown), group->name);
        fprintf(file,
                "%-24s%-20s%-20s%12" PRIu64 "%12" PRIu64 "%12" PRIu64 "%10.2f%%%10.2f%%%10.2f%%\n",
                shown, group_shown, policies[instance->kind], group->capacity, t->requests, blocks,
                100 * rate(t->internal_hits, blocks), 100 * rate(t->external_hits, blocks),
                100 * rate(t->internal_hits + t->external_hits, blocks));
    }
}

static int print_outcome(const struct tierce__optimize *request, const struct outcome *outcome,
                         const char *trace)
{
    int status = TIERCE__CLI_OK;
    if (request->csv != NULL) {
        struct tierce__new_file file;
        status = tierce__optimize_open(&file, request->csv);
        if (status != TIERCE__CLI_OK)
            return status;
        print_csv(file.file, outcome, trace);
        status = tierce__optimize_close(&file, request->csv);
    }
    if (request->csv == NULL || strcmp(request->csv, "-") != 0)
        print_table(stdout, outcome);
    return status;
}

int tierce__optimize_run_config(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace, const char *name)
{
    char why[TIERCE__KVCM_CONFIG_WHY_BYTES];
    struct tierce__kvcm_layout layout = {0};
    const char **names = NULL;
    const struct tierce__kvcm_config *config = &request->kvcm_config;
    int status = TIERCE__CLI_OK;
    int rc = tierce__kvcm_config_layout(
        &layout, &names, config, (const char *const *)trace->instances, trace->instance_count, why);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%s", why);
    struct tierce__kvcm_total *totals = tierce__calloc(layout.instance_count, sizeof(*totals));
    if (totals == NULL) {
        status = no_memory();
        goto out;
    }
    rc = tierce__kvcm_report(totals, trace->recording, &layout, names,
                             request->kvcm_csv != NULL ? request->kvcm_csv : config->output_path,
                             why);
    struct outcome outcome = {config, &layout, totals, names};
    status = rc < 0 ? tierce__cli_fail(COMMAND, "%s", why) : print_outcome(request, &outcome, name);
out:
    tierce__free(totals);
    tierce__free(names);
    tierce__kvcm_layout_clear(&layout);
    return status;
}

int tierce__optimize_write_kvcm(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace)
{
    char why[TIERCE__KVCM_WHY_BYTES];
    struct tierce__kvcm_layout layout;
    struct tierce__kvcm_total *totals = tierce__calloc(trace->instance_count, sizeof(*totals));
    if (totals == NULL)
        return no_memory();
    int rc = tierce__kvcm_layout_single(&layout, trace->instance_count, request->caches[0].kvcm,
                                        request->capacities[0], &request->kvcm);
    if (rc < 0) {
        tierce__free(totals);
        return tierce__cli_fail(COMMAND, "%s", tierce_strerror(rc));
    }
    rc = tierce__kvcm_report(totals, trace->recording, &layout,
                             (const char *const *)trace->instances, request->kvcm_csv, why);
    tierce__kvcm_layout_clear(&layout);
    tierce__free(totals);
    return rc < 0 ? tierce__cli_fail(COMMAND, "%s", why) : TIERCE__CLI_OK;
}
