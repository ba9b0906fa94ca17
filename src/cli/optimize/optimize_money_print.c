/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { LABEL = 10, CELL = 10, NAME = 24 };

static const double shares[] = {0.5, 0.9, 0.99};
enum { SHARES = sizeof(shares) / sizeof(shares[0]) };

/* ---- cells ----------------------------------------------------------------------------------- */

/* Four digits, or "-" if unknown. */
static void print_number(FILE *file, double value)
{
    if (isnan(value))
        fprintf(file, "%*s", CELL, "-");
    else if (isinf(value))
        fprintf(file, "%*s", CELL, "free"); /* savings without cost */
    else
        fprintf(file, "%*.*f", CELL, fabs(value) < 10 ? 3 : fabs(value) < 1000 ? 2 : 0, value);
}

static void print_bytes(FILE *file, double bytes)
{
    char text[32];
    tierce__human_bytes(text, sizeof(text), bytes < 1e18 ? (uint64_t)bytes : 1000000000000000000u);
    fprintf(file, "%*s", CELL, text);
}

static void format_seconds(char text[32], double seconds)
{
    if (isnan(seconds))
        snprintf(text, 32, "-");
    else if (isinf(seconds))
        snprintf(text, 32, "any time");
    else if (seconds < 1)
        snprintf(text, 32, "%.3g ms", seconds * 1e3);
    else if (seconds < 3600)
        snprintf(text, 32, "%.3g s", seconds);
    else if (seconds < 86400)
        snprintf(text, 32, "%.3g h", seconds / 3600);
    else
        snprintf(text, 32, "%.3g days", seconds / 86400);
}

static void print_seconds(FILE *file, double seconds)
{
    char text[32];
    format_seconds(text, seconds);
    fprintf(file, "%*s", CELL, text);
}

/* ---- the CSV --------------------------------------------------------------------------------- */

void tierce__optimize_print_columns(FILE *file, const struct tierce__optimize_findings *findings)
{
    if (findings->has_economy)
        fputs(",bytes,hit_tokens,saved_flops,saved_share,saved_gpu_seconds,gpus_saved,"
              "saved_per_hour,cost_per_hour,net_per_hour,next_gib,hull_next,ttft_p50,ttft_p90,"
              "ttft_p99,break_even_bandwidth,break_even_residency",
              file);
    if (findings->trust.rounds > 0)
        fputs(",low,high,warm_up,compulsory,findings", file);
}

/* A cell that is empty if the value is unknown. */
static void print_cell(FILE *file, bool is_known, double value)
{
    if (is_known && !isnan(value))
        fprintf(file, ",%.6g", value);
    else
        fputc(',', file);
}

static void print_money_cells(FILE *file, const struct tierce__optimize_findings *f, size_t row)
{
    const struct tierce__economy_row *r = &f->economy.rows[row];
    const double cells[] = {r->bytes,         r->hit_tokens, r->saved_flops,    r->saved_share,
                            r->saved_seconds, r->gpus_saved, r->saved_per_hour, r->cost_per_hour,
                            r->net_per_hour,  r->next_gib,   r->hull_next};
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
        print_cell(file, r->is_valued, cells[i]);
    for (size_t i = 0; i < SHARES; i++)
        print_cell(file, true, tierce__latencies_at(f->latencies, row, shares[i]));
    print_cell(file, r->is_valued, r->break_even_bandwidth);
    print_cell(file, r->is_valued, r->break_even_residency);
}

void tierce__optimize_print_cells(FILE *file, const struct tierce__optimize_findings *findings,
                                  size_t row)
{
    const struct tierce__trust_row *t = &findings->trust.rows[row];
    if (findings->has_economy)
        print_money_cells(file, findings, row);
    if (findings->trust.rounds == 0)
        return;
    print_cell(file, t->has_interval, t->low);
    print_cell(file, t->has_interval, t->high);
    fprintf(file, ",%.4f,%.4f,", t->warm_up_share, t->compulsory);
    for (int i = 0, told = 0; i < TIERCE__FINDINGS; i++) {
        if ((t->findings & 1u << i) != 0)
            fprintf(file, "%s%s", told++ > 0 ? ";" : "",
                    tierce__finding_name((enum tierce__finding)i));
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void print_first_line(FILE *file, const struct tierce__optimize_findings *f,
                             const struct tierce__sweep *sweep, size_t first)
{
    static const char *const heads[] = {"size",     "hits",    "GPUs",     "saved $/h",
                                        "cost $/h", "net $/h", "next GiB", "hull",
                                        "TTFT p50", "p90",     "p99"};
    const struct tierce__gpu *gpu = &f->economy.setup.gpu;
    const struct tierce__storage_profile *storage = &f->economy.setup.storage;
    char label[TIERCE__OPTIMIZE_LABEL_BYTES];
    tierce__optimize_label(label, sweep, &sweep->rows[first]);
    fprintf(file,
            "\nwhat %s saves, by capacity, at $%g a GPU-hour (%s) and $%g a GB for %g years (%s);\n"
            "next GiB and hull: dollars saved per additional dollar spent, for the next GiB and "
            "overall:\n%*s",
            label, gpu->price.value, tierce__mark_text(gpu->price.mark), storage->price.value,
            storage->years.value, tierce__mark_text(storage->price.mark), LABEL, "blocks");
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        fprintf(file, "%*s", CELL, heads[i]);
    fputc('\n', file);
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        const struct tierce__economy_row *r = &f->economy.rows[i];
        if (!r->is_valued || !tierce__sweep_same_line(row, &sweep->rows[first]))
            continue;
        fprintf(file, "%*" PRIu64, LABEL, row->capacity);
        print_bytes(file, r->bytes);
        fprintf(file, "%*.2f%%", CELL - 1, 100 * tierce__sweep_rate(row));
        print_number(file, r->gpus_saved);
        print_number(file, r->saved_per_hour);
        print_number(file, r->cost_per_hour);
        print_number(file, r->net_per_hour);
        print_number(file, r->next_gib);
        print_number(file, r->hull_next);
        for (size_t s = 0; s < SHARES; s++)
            print_seconds(file, tierce__latencies_at(f->latencies, i, shares[s]));
        fputc('\n', file);
    }
}

static void print_without(FILE *file, const struct tierce__optimize_findings *f)
{
    const struct tierce__economy *e = &f->economy;
    fprintf(file, "without a cache, prefill takes %.3g GPUs ($%.2f an hour); TTFT", e->prefill_gpus,
            e->prefill_gpus * e->setup.gpu.price.value);
    for (size_t s = 0; s < SHARES; s++) {
        char text[32];
        format_seconds(text, tierce__latencies_at(f->latencies, TIERCE__NO_CACHE, shares[s]));
        fprintf(file, "%s p%g %s", s > 0 ? "," : "", 100 * shares[s], text);
    }
    fputs("\nTTFT is for a single request: without queueing, batching or interference between "
          "loads.\n",
          file);
}

/* Where the tier wears out before its years are over. */
static void print_wear(FILE *file, const struct tierce__economy *e, size_t row)
{
    const struct tierce__economy_row *r = &e->rows[row];
    const struct tierce__storage_profile *s = &e->setup.storage;
    double hours = r->written > 0 ? s->writes.value * r->bytes / r->written : 0;
    char bytes[32], life[32];
    if (hours <= 0 || hours >= s->years.value * TIERCE__HOURS_PER_YEAR)
        return;
    tierce__human_bytes(bytes, sizeof(bytes), (uint64_t)r->bytes);
    format_seconds(life, hours * 3600);
    fprintf(file,
            "%s wears out early: at up to %.2f GB/s of writes, %s last %s (%g times all of it, "
            "%s)\n",
            s->name, r->written / 3600 / 1e9, bytes, life, s->writes.value,
            tierce__mark_text(s->writes.mark));
}

static void print_lines(FILE *file, const struct tierce__economy *e,
                        const struct tierce__sweep *sweep)
{
    fprintf(file,
            "\nwhere it stops paying (of the capacities examined, the one with the largest "
            "net):\n%-*s%*s%*s%*s%*s%*s\n",
            NAME, "", CELL, "blocks", CELL, "size", CELL, "saved $/h", CELL, "cost $/h", CELL,
            "net $/h");
    for (size_t i = 0; i < e->line_count; i++) {
        const struct tierce__economy_line *l = &e->lines[i];
        char label[TIERCE__OPTIMIZE_LABEL_BYTES];
        if (!l->is_valued)
            continue;
        tierce__optimize_label(label, sweep, &sweep->rows[l->first_row]);
        fprintf(file, "%-*s%*" PRIu64, NAME, label, CELL, l->capacity);
        print_bytes(file, l->bytes);
        print_number(file, l->saved_per_hour);
        print_number(file, l->cost_per_hour);
        print_number(file, l->net_per_hour);
        fprintf(file, "  %s%s\n", l->is_exact ? "exact" : "of those above",
                l->is_last && l->is_exact ? ", everything is kept"
                : l->is_last              ? ", the largest"
                : l->capacity == 0        ? ": no capacity pays"
                                          : "");
    }
}

/* ---- assumptions ----------------------------------------------------------------------------- */

static const struct tierce__figure *figure_of(const void *profile,
                                              const struct tierce__profile_key *key)
{
    return (const struct tierce__figure *)(const void *)((const char *)profile + key->offset);
}

/* The figures of a profile that have one mark. */
static void print_marked(FILE *file, const void *profile, const struct tierce__profile_key *keys,
                         enum tierce__mark mark, const char *source)
{
    bool told = false;
    for (const struct tierce__profile_key *k = keys; k->name != NULL; k++) {
        const struct tierce__figure *figure = figure_of(profile, k);
        if (figure->mark != mark)
            continue;
        if (!told)
            fprintf(file, "    %s%s%s%s:", tierce__mark_text(mark), source != NULL ? " (" : "",
                    source != NULL ? source : "", source != NULL ? ")" : "");
        fprintf(file, "%s %s %.6g%s%s", told ? "," : "", k->name, figure->value,
                k->unit[0] != '\0' ? " " : "", k->unit);
        told = true;
    }
    if (told)
        fputc('\n', file);
}

static void print_profile(FILE *file, const char *what, const void *profile,
                          const struct tierce__profile_key *keys, const char *source)
{
    fprintf(file, "  %s %s\n", what, (const char *)profile);
    for (int mark = 0; mark < TIERCE__MARKS; mark++)
        print_marked(file, profile, keys, (enum tierce__mark)mark,
                     mark == TIERCE__MARK_CONFIG ? source : NULL);
}

static void print_basis(FILE *file, const struct tierce__setup *setup)
{
    const struct tierce__gpu *gpu = &setup->gpu;
    double weights = setup->model.params.value * setup->model.weight_bytes.value;
    fprintf(file, "\nassumptions: blocks of %" PRIu32 " tokens and %.0f bytes, and on\n",
            setup->block_tokens, tierce__block_bytes(setup));
    print_profile(file, "model", &setup->model, tierce__model_keys, setup->model.source);
    print_profile(file, "GPU", gpu, tierce__gpu_keys, NULL);
    print_profile(file, "tier", &setup->storage, tierce__storage_keys, NULL);
    if (gpu->memory.value > 0 && weights > gpu->memory.value * gpu->count.value)
        fprintf(file,
                "  the weights alone take %.0f GB, more than %g %s hold: set count=N to the "
                "number\n  of GPUs that compute a request together; TTFT is then shorter\n",
                weights / 1e9, gpu->count.value, gpu->name);
}

static void print_break_even(FILE *file, const struct tierce__economy *e,
                             const struct tierce__sweep *sweep, size_t row)
{
    const struct tierce__economy_row *r = &e->rows[row];
    const struct tierce__storage_profile *s = &e->setup.storage;
    char text[32];
    if (r->hit_tokens <= 0 && sweep->rows[row].hits > 0)
        fputs("according to the trace, the engine itself held all blocks that hit: nothing more is "
              "saved\n",
              file);
    if (r->hit_tokens <= 0)
        return;
    format_seconds(text, r->break_even_residency);
    fprintf(file,
            "a load is faster than computing from %.2f GB/s on for one GPU (%s: %.2f, %s%s);\n"
            "a token that is used again within %s is cheaper to keep than to compute\n",
            r->break_even_bandwidth / 1e9, s->name, s->bandwidth.value / 1e9,
            tierce__mark_text(s->bandwidth.mark),
            s->bandwidth.value < r->break_even_bandwidth ? ": too slow" : "", text);
}

void tierce__optimize_print_money(FILE *file, const struct tierce__optimize_findings *findings,
                                  const struct tierce__sweep *sweep)
{
    const struct tierce__economy *e = &findings->economy;
    size_t first = 0, last = SIZE_MAX;
    if (!findings->has_economy)
        return;
    while (first < e->row_count && !e->rows[first].is_valued)
        first++;
    if (first == e->row_count) {
        fputs("\nno savings computed: they require --match prefix or window:N, and caches with a "
              "limit\n",
              file);
        return;
    }
    for (size_t i = 0; i < e->row_count; i++) {
        if (e->rows[i].is_valued && tierce__sweep_same_line(&sweep->rows[i], &sweep->rows[first]))
            last = i;
    }
    print_first_line(file, findings, sweep, first);
    print_without(file, findings);
    print_break_even(file, e, sweep, last);
    print_wear(file, e, last);
    print_lines(file, e, sweep);
    print_basis(file, &e->setup);
}
