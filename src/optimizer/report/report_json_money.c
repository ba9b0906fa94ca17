/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/report_private.h"

#include <math.h>

/* ---- the profiles ---------------------------------------------------------------------------- */

static void write_figure(struct tierce__json_write *json, const char *name,
                         const struct tierce__figure *figure, const char *unit)
{
    tierce__json_write_open(json, name, '{');
    tierce__json_write_number(json, "value", figure->value);
    tierce__json_write_text(json, "unit", unit);
    tierce__json_write_text(json, "mark", tierce__mark_text(figure->mark));
    tierce__json_write_close(json, '}');
}

static void write_profile(struct tierce__json_write *json, const char *member, const char *name,
                          const void *profile, const struct tierce__profile_key *keys)
{
    tierce__json_write_open(json, member, '{');
    tierce__json_write_text(json, "name", name);
    for (; keys->name != NULL; keys++)
        write_figure(json, keys->name, (const void *)((const char *)profile + keys->offset),
                     keys->unit);
    tierce__json_write_close(json, '}');
}

static const struct {
    const char *name;
    double share;
} percentiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};

#define PERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

void tierce__report_json_economy(struct tierce__json_write *json,
                                 const struct tierce__report *report)
{
    const struct tierce__economy *e = report->economy;
    if (e == NULL)
        return;
    const struct tierce__setup *s = &e->setup;
    tierce__json_write_open(json, "economy", '{');
    write_profile(json, "model", s->model.name, &s->model, tierce__model_keys);
    write_profile(json, "gpu", s->gpu.name, &s->gpu, tierce__gpu_keys);
    write_profile(json, "storage", s->storage.name, &s->storage, tierce__storage_keys);
    tierce__json_write_number(json, "peak_flops",
                              tierce__gpu_speed(&s->model, &s->gpu) / s->gpu.mfu.value);
    tierce__json_write_count(json, "block_tokens", s->block_tokens);
    tierce__json_write_number(json, "block_bytes", tierce__block_bytes(s));
    tierce__json_write_number(json, "span_hours", e->span_hours);
    tierce__json_write_number(json, "prompts", e->prompts);
    tierce__json_write_number(json, "prompt_tokens", e->prompt_tokens);
    tierce__json_write_number(json, "prefill_flops", e->prefill_flops);
    tierce__json_write_number(json, "prefill_gpus", e->prefill_gpus);
    if (report->latencies != NULL) {
        tierce__json_write_open(json, "ttft", '{');
        for (size_t p = 0; p < PERCENTILES; p++)
            tierce__json_write_number(
                json, percentiles[p].name,
                tierce__latencies_at(report->latencies, TIERCE__NO_CACHE, percentiles[p].share));
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, '}');
}

void tierce__report_json_trust(struct tierce__json_write *json, const struct tierce__report *report)
{
    const struct tierce__trust *trust = report->trust;
    if (trust == NULL)
        return;
    tierce__json_write_open(json, "trust", '{');
    tierce__json_write_text(json, "sessions_text", tierce__session_kind_text(trust->kind));
    tierce__json_write_count(json, "sessions", trust->sessions);
    tierce__json_write_count(json, "clusters", trust->clusters);
    tierce__json_write_count(json, "rounds", trust->rounds);
    tierce__json_write_open(json, "findings", '[');
    for (int f = 0; f < TIERCE__FINDINGS; f++)
        tierce__json_write_text(json, NULL, tierce__finding_text((enum tierce__finding)f));
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

/* ---- of a curve ------------------------------------------------------------------------------ */

static size_t index_of(const struct tierce__report *report, const struct tierce__sweep_row *row)
{
    return (size_t)(row - report->sweep->rows);
}

/* One number a row; those of rows without a value are null. */
static void write_worths(struct tierce__json_write *json, const char *name, size_t offset,
                         const struct tierce__report *report,
                         const struct tierce__report_curve *curve)
{
    tierce__json_write_open(json, name, '[');
    for (size_t i = 0; i < curve->count; i++) {
        const struct tierce__economy_row *row =
            &report->economy->rows[index_of(report, curve->rows[i])];
        const double *value = (const void *)((const char *)row + offset);
        tierce__json_write_number(json, NULL, row->is_valued ? *value : NAN);
    }
    tierce__json_write_close(json, ']');
}

static void write_economy(struct tierce__json_write *json, const struct tierce__report *report,
                          const struct tierce__report_curve *curve)
{
    static const struct {
        const char *name;
        size_t offset;
    } members[] = {
        {"hit_tokens", offsetof(struct tierce__economy_row, hit_tokens)},
        {"saved_flops", offsetof(struct tierce__economy_row, saved_flops)},
        {"bytes", offsetof(struct tierce__economy_row, bytes)},
        {"written", offsetof(struct tierce__economy_row, written)},
        {"bandwidth", offsetof(struct tierce__economy_row, break_even_bandwidth)},
        {"residency", offsetof(struct tierce__economy_row, break_even_residency)},
    };
    bool valued = false;
    for (size_t i = 0; i < curve->count; i++)
        valued = valued || report->economy->rows[index_of(report, curve->rows[i])].is_valued;
    if (!valued)
        return;
    tierce__json_write_open(json, "economy", '{');
    for (size_t m = 0; m < sizeof(members) / sizeof(members[0]); m++)
        write_worths(json, members[m].name, members[m].offset, report, curve);
    tierce__json_write_close(json, '}');
}

static void write_latencies(struct tierce__json_write *json, const struct tierce__report *report,
                            const struct tierce__report_curve *curve)
{
    if (isnan(tierce__latencies_at(report->latencies, index_of(report, curve->rows[0]), 0.5)))
        return;
    tierce__json_write_open(json, "ttft", '{');
    for (size_t p = 0; p < PERCENTILES; p++) {
        tierce__json_write_open(json, percentiles[p].name, '[');
        for (size_t i = 0; i < curve->count; i++)
            tierce__json_write_number(json, NULL,
                                      tierce__latencies_at(report->latencies,
                                                           index_of(report, curve->rows[i]),
                                                           percentiles[p].share));
        tierce__json_write_close(json, ']');
    }
    tierce__json_write_close(json, '}');
}

static void write_bounds(struct tierce__json_write *json, const char *name, size_t offset,
                         const struct tierce__report *report,
                         const struct tierce__report_curve *curve)
{
    tierce__json_write_open(json, name, '[');
    for (size_t i = 0; i < curve->count; i++) {
        const struct tierce__trust_row *row =
            &report->trust->rows[index_of(report, curve->rows[i])];
        tierce__json_write_number(json, NULL,
                                  *(const double *)(const void *)((const char *)row + offset));
    }
    tierce__json_write_close(json, ']');
}

static void write_trust(struct tierce__json_write *json, const struct tierce__report *report,
                        const struct tierce__report_curve *curve)
{
    bool has_interval = false;
    tierce__json_write_open(json, "findings", '[');
    for (size_t i = 0; i < curve->count; i++) {
        const struct tierce__trust_row *row =
            &report->trust->rows[index_of(report, curve->rows[i])];
        tierce__json_write_count(json, NULL, row->findings);
        has_interval = has_interval || row->has_interval;
    }
    tierce__json_write_close(json, ']');
    if (!has_interval)
        return;
    write_bounds(json, "low", offsetof(struct tierce__trust_row, low), report, curve);
    write_bounds(json, "high", offsetof(struct tierce__trust_row, high), report, curve);
}

void tierce__report_json_curve_money(struct tierce__json_write *json,
                                     const struct tierce__report *report,
                                     const struct tierce__report_curve *curve)
{
    if (report->economy != NULL)
        write_economy(json, report, curve);
    if (report->latencies != NULL)
        write_latencies(json, report, curve);
    if (report->trust != NULL)
        write_trust(json, report, curve);
}
