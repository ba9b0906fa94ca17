/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "cli/optimize.h"

#include <inttypes.h>
#include <string.h>

/* ---- intervals ------------------------------------------------------------------------------- */

static double rate(const struct tierce__sweep_row *row)
{
    return row->blocks > 0 ? (double)row->hits / (double)row->blocks : 0;
}

static void print_intervals(FILE *file, const struct tierce__optimize *request,
                            const struct tierce__trust *trust, const struct tierce__sweep *sweep)
{
    fprintf(file,
            "\nhit rates between which 95 %% of %" PRIu32 " draws of %" PRIu32
            " sessions lie (seed %" PRIu64 "):\n",
            trust->rounds, trust->sessions, trust->seed);
    if (trust->clusters < trust->sessions)
        fprintf(file, "sessions are drawn %" PRIu32 " at a time, always the same together\n",
                trust->sessions / trust->clusters);
    fprintf(file, "%s;\nwhat is drawn are their hits as they were\n%-24s%12s%10s%20s\n",
            tierce__session_kind_text(trust->kind), "", "capacity", "hits", "interval");
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        const struct tierce__trust_row *t = &trust->rows[i];
        char capacity[32], label[TIERCE__OPTIMIZE_LABEL_BYTES];
        if (!t->has_interval)
            continue;
        tierce__optimize_capacity(capacity, request, row->capacity);
        tierce__optimize_label(label, sweep, row);
        fprintf(file, "%-24s%12s%9.2f%%%9.2f%% -%7.2f%%\n", label, capacity, 100 * rate(row),
                100 * t->low, 100 * t->high);
    }
}

/* ---- findings -------------------------------------------------------------------------------- */

/* A cache, order and match, and where a finding holds of it; "" for nowhere. */
struct line {
    size_t first; /* of its rows */
    char where[96];
};

static size_t list_lines(struct line *out, const struct tierce__sweep *sweep)
{
    size_t count = 0;
    for (size_t i = 0; i < sweep->row_count; i++) {
        size_t l = 0;
        while (l < count && !tierce__sweep_same_line(&sweep->rows[out[l].first], &sweep->rows[i]))
            l++;
        if (l == count)
            out[count++].first = i;
    }
    return count;
}

/* Of a line, the capacities that have a finding, and those that have not. */
struct span {
    uint64_t least, most;
};

static void widen(struct span *span, uint64_t capacity)
{
    span->least = capacity < span->least ? capacity : span->least;
    span->most = capacity > span->most ? capacity : span->most;
}

static void find_where(struct line *line, const struct tierce__optimize *request,
                       const struct tierce__trust *trust, const struct tierce__sweep *sweep,
                       int finding)
{
    struct span with = {.least = UINT64_MAX}, without = {.least = UINT64_MAX};
    size_t size = sizeof(line->where);
    for (size_t i = 0; i < sweep->row_count; i++) {
        if (tierce__sweep_same_line(&sweep->rows[i], &sweep->rows[line->first]))
            widen((trust->rows[i].findings & 1u << finding) != 0 ? &with : &without,
                  sweep->rows[i].capacity);
    }
    char least[32], most[32];
    tierce__optimize_capacity(least, request, with.least);
    tierce__optimize_capacity(most, request, with.most);
    if (with.most == 0)
        snprintf(line->where, size, "%s", "");
    else if (without.most == 0)
        snprintf(line->where, size, "everywhere");
    else if (without.most < with.least)
        snprintf(line->where, size, "from %s on", least);
    else if (without.least > with.most)
        snprintf(line->where, size, "up to %s", most);
    else if (with.least == with.most)
        snprintf(line->where, size, "at %s", least);
    else
        snprintf(line->where, size, "from %s to %s", least, most);
}

/* Lines that have it in the same places share one. */
static void print_finding(FILE *file, const struct tierce__sweep *sweep, const struct line *lines,
                          size_t count, int finding)
{
    char label[TIERCE__OPTIMIZE_LABEL_BYTES];
    bool told = false;
    for (size_t i = 0; i < count; i++) {
        size_t before = 0;
        while (strcmp(lines[before].where, lines[i].where) != 0)
            before++;
        if (before < i || lines[i].where[0] == '\0')
            continue;
        if (!told)
            fprintf(file, "  %s\n", tierce__finding_text((enum tierce__finding)finding));
        told = true;
        fprintf(file, "    %s:", lines[i].where);
        for (size_t j = i; j < count; j++) {
            if (strcmp(lines[j].where, lines[i].where) != 0)
                continue;
            tierce__optimize_label(label, sweep, &sweep->rows[lines[j].first]);
            fprintf(file, "%s %s", j > i ? "," : "", label);
        }
        fputc('\n', file);
    }
}

void tierce__optimize_print_trust(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__optimize_findings *findings,
                                  const struct tierce__sweep *sweep)
{
    const struct tierce__trust *trust = &findings->trust;
    uint32_t all = 0;
    for (size_t i = 0; i < trust->row_count; i++)
        all |= trust->rows[i].findings;
    if (trust->rounds > 0)
        print_intervals(file, request, trust, sweep);
    struct line *lines = all != 0 ? tierce__calloc(sweep->row_count, sizeof(*lines)) : NULL;
    if (lines == NULL)
        return;
    size_t count = list_lines(lines, sweep);
    fputs("\nwhat these rates do not show, by capacity:\n", file);
    for (int f = 0; f < TIERCE__FINDINGS; f++) {
        for (size_t i = 0; i < count; i++)
            find_where(&lines[i], request, trust, sweep, f);
        print_finding(file, sweep, lines, count, f);
    }
    tierce__free(lines);
}
