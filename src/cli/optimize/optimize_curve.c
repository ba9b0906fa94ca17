/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

/*
 * Hit rates against capacity in characters: a letter for each cache, capacities in equal factors.
 * Where several caches fall into one place their letters take turns along the curve.
 */

enum {
    ROWS = 13,  /* of the drawing */
    EVERY = 3,  /* rows between two numbers beside it */
    MARGIN = 8, /* columns before it */
    COLUMNS_LEAST = 40,
    COLUMNS_USUAL = 80,
    COLUMNS_MOST = 160,
    LINES_MAX = 52, /* there are no more letters */
};

struct curve_plot_line {
    size_t first; /* of its rows */
    char letter;
};

struct drawing {
    const struct tierce__sweep *sweep;
    bool in_bytes;
    uint64_t block_bytes; /* size of the unit of capacities; 0: unknown */
    struct curve_plot_line lines[LINES_MAX];
    size_t line_count;
    double least, most; /* logarithms of capacities */
    double rate_most;
    int width;
    bool is_colour, is_utf8;
};

/* ---- where it is drawn ----------------------------------------------------------------------- */

int tierce__optimize_width(FILE *file)
{
    struct winsize size;
    const char *text = getenv("COLUMNS");
    long columns = text != NULL ? strtol(text, NULL, 10) : 0;
    if (columns <= 0 && isatty(fileno(file)) && ioctl(fileno(file), TIOCGWINSZ, &size) == 0)
        columns = size.ws_col;
    return columns <= 0 ? 0 : columns > INT_MAX ? INT_MAX : (int)columns;
}

static int choose_width(FILE *file)
{
    int columns = tierce__optimize_width(file);
    if (columns == 0)
        columns = COLUMNS_USUAL;
    return columns < COLUMNS_LEAST  ? COLUMNS_LEAST
           : columns > COLUMNS_MOST ? COLUMNS_MOST
                                    : columns;
}

static bool wants_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && text[0] != '\0')
            return strcasestr(text, "utf-8") != NULL || strcasestr(text, "utf8") != NULL;
    }
    return false;
}

static bool wants_colour(FILE *file)
{
    const char *none = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return (none == NULL || none[0] == '\0') && isatty(fileno(file)) &&
           (terminal == NULL || strcmp(terminal, "dumb") != 0);
}

/* ---- drawing --------------------------------------------------------------------------------- */

static bool is_of(const struct tierce__sweep_row *row, const struct tierce__match *match)
{
    return row->match.kind == match->kind && row->match.window == match->window;
}

static bool is_taken(const struct drawing *d, char letter)
{
    for (size_t i = 0; i < d->line_count; i++) {
        if (d->lines[i].letter == letter)
            return true;
    }
    return false;
}

/* The first letter of its name that no other has, or any. */
static char letter_for(const struct drawing *d, const char *name)
{
    for (const char *p = name; *p != '\0'; p++) {
        bool is_letter = (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9');
        if (is_letter && !is_taken(d, *p))
            return *p;
    }
    for (const char *p = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"; *p != '\0'; p++) {
        if (!is_taken(d, *p))
            return *p;
    }
    return '?';
}

static void add_line(struct drawing *d, size_t row)
{
    for (size_t i = 0; i < d->line_count; i++) {
        if (tierce__sweep_same_line(&d->sweep->rows[d->lines[i].first], &d->sweep->rows[row]))
            return;
    }
    if (d->line_count == LINES_MAX)
        return;
    d->lines[d->line_count] = (struct curve_plot_line){
        .first = row, .letter = letter_for(d, d->sweep->rows[row].cache->name)};
    d->line_count++;
}

/* The lines and the ranges of a match. False: there is nothing to draw. */
static bool find_lines(struct drawing *d, const struct tierce__match *match)
{
    d->line_count = 0;
    d->least = INFINITY;
    d->most = -INFINITY;
    double best = 0;
    for (size_t i = 0; i < d->sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &d->sweep->rows[i];
        if (!is_of(row, match))
            continue;
        add_line(d, i);
        best = fmax(best, tierce__sweep_rate(row));
        if (row->capacity != TIERCE__CAPACITY_UNLIMITED) {
            d->least = fmin(d->least, log((double)row->capacity));
            d->most = fmax(d->most, log((double)row->capacity));
        }
    }
    static const double ends[] = {0.01, 0.02, 0.04, 0.08, 0.12, 0.2, 0.28, 0.4, 0.6, 0.8, 1};
    size_t end = 0;
    while (ends[end] < best && end + 1 < sizeof(ends) / sizeof(ends[0]))
        end++;
    d->rate_most = ends[end];
    return d->most > d->least;
}

/* The hit rate of a line at the logarithm of a capacity, between its two nearest rows; negative
 * outside of them. */
static double rate_at(const struct drawing *d, const struct curve_plot_line *line, double at)
{
    double below = -INFINITY, above = INFINITY, low = -1, high = -1;
    for (size_t i = 0; i < d->sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &d->sweep->rows[i];
        if (!tierce__sweep_same_line(row, &d->sweep->rows[line->first]))
            continue;
        if (row->cache->kind == TIERCE__CACHE_INFINITE)
            return tierce__sweep_rate(row);
        double x = log((double)row->capacity);
        if (row->capacity == TIERCE__CAPACITY_UNLIMITED)
            continue;
        if (x <= at + 1e-9 && x > below) {
            below = x;
            low = tierce__sweep_rate(row);
        }
        if (x >= at - 1e-9 && x < above) {
            above = x;
            high = tierce__sweep_rate(row);
        }
    }
    if (low < 0 || high < 0)
        return -1;
    return above > below ? low + (high - low) * (at - below) / (above - below) : low;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Columns of the drawing itself, by row and column: an index of a line, or -1. */
static void draw_lines(const struct drawing *d, signed char *cells)
{
    memset(cells, -1, (size_t)ROWS * (size_t)d->width);
    for (int x = 0; x < d->width; x++) {
        signed char found[LINES_MAX], counts[ROWS] = {0};
        double at = d->least + (d->most - d->least) * x / (d->width - 1);
        for (size_t l = 0; l < d->line_count; l++) {
            /* KVCM's caches may hit more than they are asked for. */
            double r = fmin(rate_at(d, &d->lines[l], at), d->rate_most);
            found[l] =
                r < 0 ? (signed char)-1 : (signed char)lround((1 - r / d->rate_most) * (ROWS - 1));
            if (r >= 0)
                counts[found[l]]++;
        }
        for (int y = 0; y < ROWS; y++) {
            int turn = counts[y] > 0 ? x % counts[y] : 0;
            for (size_t l = 0; l < d->line_count; l++) {
                if (found[l] == y && turn-- == 0)
                    cells[y * d->width + x] = (signed char)l;
            }
        }
    }
}

static void put_letter(FILE *file, const struct drawing *d, size_t line)
{
    static const int colours[] = {32, 36, 34, 35, 33, 31, 92, 96, 94, 95, 93, 91};
    char letter = d->lines[line].letter;
    if (d->is_colour)
        fprintf(file, "\033[%dm%c\033[0m", colours[line % (sizeof(colours) / sizeof(colours[0]))],
                letter);
    else
        fputc(letter, file);
}

static void print_rows(FILE *file, const struct drawing *d, const signed char *cells)
{
    for (int y = 0; y < ROWS; y++) {
        double percent = 100 * d->rate_most * (ROWS - 1 - y) / (ROWS - 1);
        bool is_told = y % EVERY == 0;
        if (is_told)
            fprintf(file, "%*.3g%%", MARGIN - 2, percent);
        else
            fprintf(file, "%*s", MARGIN - 1, "");
        fputs(d->is_utf8 ? is_told ? "┤" : "│" : is_told ? "+" : "|", file);
        int end = d->width;
        while (end > 0 && cells[y * d->width + end - 1] < 0)
            end--;
        for (int x = 0; x < end; x++) {
            signed char line = cells[y * d->width + x];
            if (line < 0)
                fputc(' ', file);
            else
                put_letter(file, d, (size_t)line);
        }
        fputc('\n', file);
    }
}

/* ---- below it -------------------------------------------------------------------------------- */

struct ticks {
    double at[64]; /* capacities */
    int count;
};

/* Powers of ten, or, where there are not two of them, also 2 and 5 times these; of bytes, of 4 and
 * of 2; or both ends. */
static void find_ticks(const struct drawing *d, struct ticks *out)
{
    static const double decimal[2][4] = {{1, 0}, {1, 2, 5, 0}}, binary[2][4] = {{1, 0}, {1, 2, 0}};
    const double(*steps)[4] = d->in_bytes ? binary : decimal;
    double least = exp(d->least) * (1 - 1e-9), most = exp(d->most) * (1 + 1e-9);
    for (int pass = 0; pass < 2; pass++) {
        out->count = 0;
        for (double power = 1; power <= most && out->count < 60; power *= d->in_bytes ? 4 : 10) {
            for (int i = 0; steps[pass][i] > 0; i++) {
                double at = power * steps[pass][i];
                if (at >= least && at <= most)
                    out->at[out->count++] = at;
            }
        }
        if (out->count >= 2)
            return;
    }
    *out = (struct ticks){.at = {least, most}, .count = 2};
}

static int column_of(const struct drawing *d, double capacity)
{
    return (int)lround((log(capacity) - d->least) / (d->most - d->least) * (d->width - 1));
}

static void format_count(char text[32], double count)
{
    static const char units[] = " kMGTP";
    int unit = 0;
    while (count >= 999.5 && units[unit + 1] != '\0') {
        count /= 1000;
        unit++;
    }
    snprintf(text, 32, unit == 0 ? "%.3g" : "%.3g%c", count, units[unit]);
}

/* One line of numbers under the ticks, those left out that have no room. */
static void print_numbers(FILE *file, const struct drawing *d, const struct ticks *ticks,
                          bool in_bytes)
{
    int at = 0, width = MARGIN + d->width;
    for (int i = 0; i < ticks->count; i++) {
        char text[32];
        if (in_bytes)
            tierce__human_bytes(text, sizeof(text),
                                (uint64_t)(ticks->at[i] * (double)d->block_bytes));
        else
            format_count(text, ticks->at[i]);
        int length = (int)strlen(text);
        int from = MARGIN + column_of(d, ticks->at[i]) - length / 2;
        from = from + length > width ? width - length : from;
        if (from <= at && at > 0)
            continue;
        fprintf(file, "%*s%s", from - at, "", text);
        at = from + length;
    }
    fputc('\n', file);
}

static void print_axis(FILE *file, const struct drawing *d)
{
    struct ticks ticks;
    find_ticks(d, &ticks);
    fprintf(file, "%*s%s", MARGIN - 1, "", d->is_utf8 ? "└" : "+");
    for (int x = 0, next = 0; x < d->width; x++) {
        bool is_tick = next < ticks.count && column_of(d, ticks.at[next]) == x;
        while (next < ticks.count && column_of(d, ticks.at[next]) <= x)
            next++;
        fputs(d->is_utf8 ? is_tick ? "┬" : "─" : is_tick ? "+" : "-", file);
    }
    fputc('\n', file);
    if (!d->in_bytes)
        print_numbers(file, d, &ticks, false);
    if (d->block_bytes > 0)
        print_numbers(file, d, &ticks, true);
}

static void print_legend(FILE *file, const struct drawing *d)
{
    int at = 0;
    for (size_t l = 0; l < d->line_count; l++) {
        char label[TIERCE__OPTIMIZE_LABEL_BYTES];
        tierce__optimize_label(label, d->sweep, &d->sweep->rows[d->lines[l].first]);
        int length = (int)strlen(label) + 4;
        if (at > 0 && at + length > MARGIN + d->width) {
            fputc('\n', file);
            at = 0;
        }
        fprintf(file, "%*s", at == 0 ? MARGIN : 2, "");
        at += length + (at == 0 ? MARGIN - 2 : 0);
        put_letter(file, d, l);
        fprintf(file, " %s", label);
    }
    fputc('\n', file);
}

void tierce__optimize_print_curve(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__sweep *sweep)
{
    struct drawing d = {.sweep = sweep,
                        .in_bytes = sweep->in_bytes,
                        .block_bytes = sweep->in_bytes ? 1 : request->block_bytes,
                        .width = choose_width(file) - MARGIN - 1,
                        .is_colour = wants_colour(file),
                        .is_utf8 = wants_utf8()};
    signed char cells[ROWS * COLUMNS_MOST];
    for (size_t m = 0; m < request->match_count; m++) {
        char match[TIERCE__MATCH_TEXT_BYTES];
        if (!find_lines(&d, &request->matches[m]))
            continue;
        tierce__match_print(&request->matches[m], match);
        fprintf(file, "\nhits by %s against capacity:\n", match);
        draw_lines(&d, cells);
        print_rows(file, &d, cells);
        print_axis(file, &d);
        print_legend(file, &d);
    }
}
