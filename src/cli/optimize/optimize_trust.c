/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "cli/optimize/optimize.h"

#include <inttypes.h>
#include <stdlib.h>
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
        fprintf(file, "sessions are sampled in fixed groups of %" PRIu32 "\n",
                trust->sessions / trust->clusters);
    bool has_internal = sweep->row_count > 0 && sweep->rows[0].internal_blocks > 0;
    fprintf(file, "%s;\nsamples reuse their recorded hits%s\n%-24s%12s%10s%20s\n",
            tierce__session_kind_text(trust->kind),
            has_internal ? ", with those on blocks that the engine held itself" : "", "",
            "capacity", "hits", "interval");
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
struct trust_line {
    size_t first; /* of its rows */
    char where[1024];
};

static size_t list_lines(struct trust_line *out, const struct tierce__sweep *sweep)
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

/* A capacity of a line, and whether it has the finding. */
struct mark {
    uint64_t capacity;
    bool has;
};

static int compare_marks(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    return (x->capacity > y->capacity) - (x->capacity < y->capacity);
}

/* By capacity. */
static size_t list_marks(struct mark out[TIERCE__OPTIMIZE_LIST_MAX], const struct trust_line *line,
                         const struct tierce__trust *trust, const struct tierce__sweep *sweep,
                         int finding)
{
    size_t count = 0;
    for (size_t i = 0; i < sweep->row_count && count < TIERCE__OPTIMIZE_LIST_MAX; i++) {
        if (tierce__sweep_same_line(&sweep->rows[i], &sweep->rows[line->first]))
            out[count++] = (struct mark){.capacity = sweep->rows[i].capacity,
                                         .has = (trust->rows[i].findings & 1u << finding) != 0};
    }
    qsort(out, count, sizeof(out[0]), compare_marks);
    return count;
}

/* Appends the capacities of marks [from .. to], a longest run with the finding, to the line. */
static void add_run(struct trust_line *line, const struct tierce__optimize *request,
                    const struct mark *marks, size_t count, size_t from, size_t to)
{
    size_t used = strlen(line->where), size = sizeof(line->where) - used;
    const char *comma = used > 0 ? ", " : "";
    char *at = line->where + used, least[32], most[32];
    tierce__optimize_capacity(least, request, marks[from].capacity);
    tierce__optimize_capacity(most, request, marks[to].capacity);
    if (from == 0 && to + 1 == count)
        snprintf(at, size, "everywhere");
    else if (to + 1 == count)
        snprintf(at, size, "%sfrom %s on", comma, least);
    else if (from == 0)
        snprintf(at, size, "up to %s", most);
    else if (from == to)
        snprintf(at, size, "%sat %s", comma, least);
    else
        snprintf(at, size, "%sfrom %s to %s", comma, least, most);
}

static void find_where(struct trust_line *line, const struct tierce__optimize *request,
                       const struct tierce__trust *trust, const struct tierce__sweep *sweep,
                       int finding)
{
    struct mark marks[TIERCE__OPTIMIZE_LIST_MAX];
    size_t count = list_marks(marks, line, trust, sweep, finding);
    line->where[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        size_t from = i;
        while (i < count && marks[i].has)
            i++;
        if (i > from)
            add_run(line, request, marks, count, from, i - 1);
    }
}

/* Lines that have it in the same places share one. */
static void print_finding(FILE *file, const struct tierce__sweep *sweep,
                          const struct trust_line *lines, size_t count, int finding)
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
    struct trust_line *lines = all != 0 ? tierce__calloc(sweep->row_count, sizeof(*lines)) : NULL;
    if (lines == NULL)
        return;
    size_t count = list_lines(lines, sweep);
    fputs("\nlimits of these rates, by capacity:\n", file);
    for (int f = 0; f < TIERCE__FINDINGS; f++) {
        for (size_t i = 0; i < count; i++)
            find_where(&lines[i], request, trust, sweep, f);
        print_finding(file, sweep, lines, count, f);
    }
    tierce__free(lines);
}
