/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>
#include <string.h>

const char tierce__optimize_csv_header[] =
    "trace,policy,order,match,capacity,requests,blocks,hits,hit_rate";

enum { NAMES = 16, COLUMN = 11 }; /* their widths */

static double rate(uint64_t hits, uint64_t blocks)
{
    return blocks > 0 ? (double)hits / (double)blocks : 0;
}

static bool is_same_match(const struct tierce__match *a, const struct tierce__match *b)
{
    return a->kind == b->kind && a->window == b->window;
}

const char *tierce__optimize_order(const struct tierce__sweep_row *row)
{
    return !row->has_order ? "-" : row->order == TIERCE__TOUCH_REV ? "rev" : "fwd";
}

void tierce__optimize_print_capacity(FILE *file, uint64_t capacity)
{
    if (capacity == TIERCE__CAPACITY_UNLIMITED)
        fputs("unlimited", file);
    else
        fprintf(file, "%" PRIu64, capacity);
}

void tierce__optimize_print_text(FILE *file, const char *text)
{
    char shown[512];
    tierce__text_for_message(shown, sizeof(shown), text);
    if (strpbrk(shown, ",\"") == NULL) {
        fputs(shown, file);
        return;
    }
    fputc('"', file);
    for (const char *p = shown; *p != '\0'; p++) {
        if (*p == '"')
            fputc('"', file);
        fputc(*p, file);
    }
    fputc('"', file);
}

void tierce__optimize_label(char out[TIERCE__OPTIMIZE_LABEL_BYTES],
                            const struct tierce__sweep *sweep, const struct tierce__sweep_row *row)
{
    char name[TIERCE__SWEEP_NAME_BYTES], match[TIERCE__MATCH_TEXT_BYTES];
    bool orders = false, matches = false;
    tierce__sweep_name(name, row);
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *other = &sweep->rows[i];
        orders = orders || (other->cache == row->cache && other->order != row->order);
        matches = matches || !is_same_match(&other->match, &row->match);
    }
    tierce__match_print(&row->match, match);
    snprintf(out, TIERCE__OPTIMIZE_LABEL_BYTES, "%s%s%s%s%s", name, orders ? "/" : "",
             orders ? tierce__optimize_order(row) : "", matches ? " by " : "",
             matches ? match : "");
}

void tierce__optimize_print_csv(FILE *file, const char *trace, const struct tierce__sweep *sweep,
                                const struct tierce__optimize_findings *findings)
{
    /* Prints all rows of a trace or none. */
    bool has_internal = sweep->row_count > 0 && sweep->rows[0].internal_blocks > 0;
    fputs(tierce__optimize_csv_header, file);
    if (findings != NULL)
        tierce__optimize_print_columns(file, findings);
    if (has_internal)
        fputs(",internal_blocks,internal_hits,store_hit_rate", file);
    fputc('\n', file);
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        char cache[TIERCE__SWEEP_NAME_BYTES], match[TIERCE__MATCH_TEXT_BYTES];
        tierce__sweep_name(cache, row);
        tierce__match_print(&row->match, match);
        fprintf(file, "%s,%s,%s,%s,", trace, cache, tierce__optimize_order(row), match);
        tierce__optimize_print_capacity(file, row->capacity);
        fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f", row->requests, row->blocks,
                row->hits, rate(row->hits, row->blocks));
        if (findings != NULL)
            tierce__optimize_print_cells(file, findings, i);
        if (has_internal)
            fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%.6f", row->internal_blocks, row->internal_hits,
                    tierce__sweep_rate(row));
        fputc('\n', file);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct tierce__sweep_row *
find_row(const struct tierce__sweep *sweep, const struct tierce__sweep_row *like, uint64_t capacity)
{
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        bool everywhere = row->cache->kind == TIERCE__CACHE_INFINITE;
        if (tierce__sweep_same_line(row, like) && (everywhere || row->capacity == capacity))
            return row;
    }
    return NULL;
}

/* Capacities that stand beside each other, one beyond the last. */
struct print_span {
    size_t from, to;
};

static void print_line(FILE *file, const struct tierce__optimize *request,
                       const struct tierce__sweep *sweep, const struct tierce__sweep_row *like,
                       struct print_span span)
{
    char cache[TIERCE__SWEEP_NAME_BYTES], name[80];
    bool both = request->order_count > 1 && like->has_order;
    tierce__sweep_name(cache, like);
    snprintf(name, sizeof(name), "%s%s%s", cache, both ? "/" : "",
             both ? tierce__optimize_order(like) : "");
    fprintf(file, "%-*s", NAMES, name);
    for (size_t c = span.from; c < span.to; c++) {
        const struct tierce__sweep_row *row = find_row(sweep, like, request->capacities[c]);
        if (row == NULL)
            fprintf(file, "%*s", COLUMN, "-");
        else
            fprintf(file, "%*.2f%%", COLUMN - 1, 100 * tierce__sweep_rate(row));
    }
    fputc('\n', file);
}

/* The first row of each line of a match's table stands for the line. */
static bool is_first(const struct tierce__sweep *sweep, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (tierce__sweep_same_line(&sweep->rows[i], &sweep->rows[at]))
            return false;
    }
    return true;
}

static void print_head(FILE *file, const struct tierce__optimize *request, struct print_span span)
{
    fprintf(file, "%-*s", NAMES, "");
    for (size_t c = span.from; c < span.to; c++) {
        char capacity[32];
        tierce__optimize_capacity(capacity, request, request->capacities[c]);
        fprintf(file, "%*s", COLUMN, capacity);
    }
    fputc('\n', file);
    if (request->block_bytes == 0)
        return;
    fprintf(file, "%-*s", NAMES, "");
    for (size_t c = span.from; c < span.to; c++) {
        char bytes[32] = "";
        if (request->capacities[c] < UINT64_MAX / request->block_bytes)
            tierce__human_bytes(bytes, sizeof(bytes),
                                request->capacities[c] * request->block_bytes);
        fprintf(file, "%*s", COLUMN, bytes);
    }
    fputc('\n', file);
}

static void print_part(FILE *file, const struct tierce__optimize *request,
                       const struct tierce__sweep *sweep, const struct tierce__match *match,
                       struct print_span span)
{
    print_head(file, request, span);
    for (size_t i = 0; i < sweep->row_count; i++) {
        if (is_same_match(&sweep->rows[i].match, match) && is_first(sweep, i))
            print_line(file, request, sweep, &sweep->rows[i], span);
    }
}

/* How many capacities stand beside each other: as many as there is room for, and about as many in
 * each part. */
static size_t choose_beside(FILE *file, size_t capacities)
{
    int width = tierce__optimize_width(file);
    size_t room = width == 0               ? capacities
                  : width < NAMES + COLUMN ? 1
                                           : (size_t)(width - NAMES) / COLUMN;
    size_t parts = capacities > room ? (capacities + room - 1) / room : 1;
    return (capacities + parts - 1) / parts;
}

/* Names the base of the rates: an engine's own hits are not a gain of a store. */
static void print_title(FILE *file, const struct tierce__optimize *request,
                        const struct tierce__recording_totals *totals,
                        const struct tierce__match *match)
{
    char name[TIERCE__MATCH_TEXT_BYTES];
    tierce__match_print(match, name);
    fprintf(file, "\nhits by %s, ", name);
    if (totals->internal_blocks > 0 || request->sim.engine.amount > 0)
        fprintf(file,
                "excluding the engine's own hits: shares of the %" PRIu64 " of %" PRIu64
                " blocks looked up that the engine did not hold",
                totals->read_blocks - totals->internal_blocks, totals->read_blocks);
    else
        fprintf(file, "including the engine's own hits%s: shares of the blocks looked up",
                request->live_count == 0 ? " (--engine-cache SIZE excludes them)" : "");
    fprintf(file, ", by cache size in %s:\n", request->in_bytes ? "bytes" : "blocks");
}

void tierce__optimize_print_table(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__recording_totals *totals,
                                  const struct tierce__sweep *sweep)
{
    char time[32];
    size_t beside = choose_beside(file, request->capacity_count);
    uint64_t span_us = (uint64_t)(totals->last_us - totals->first_us);
    if (span_us < 1000000)
        snprintf(time, sizeof(time), "%.3g s", (double)span_us / 1e6);
    else
        tierce__human_seconds(time, sizeof(time), span_us / 1000000);
    fprintf(file,
            "%" PRIu64 " requests over %s, %" PRIu64 " blocks, %" PRIu32
            " of them different, the longest request %" PRIu32 "\n",
            totals->requests, time, totals->blocks, totals->distinct, totals->longest);
    for (size_t m = 0; m < request->match_count; m++) {
        print_title(file, request, totals, &request->matches[m]);
        for (size_t at = 0; at < request->capacity_count; at += beside) {
            size_t left = request->capacity_count - at;
            if (at > 0)
                fputc('\n', file);
            print_part(file, request, sweep, &request->matches[m],
                       (struct print_span){at, at + (left < beside ? left : beside)});
        }
    }
}
