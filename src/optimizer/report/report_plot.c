/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/report_plot.h"
#include "base/alloc.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Lengths of a panel. 640 pixels at 12 are a column and a half of a paper. */
#define WIDTH        640.0
#define HEIGHT       400.0
#define LEFT         62.0
#define RIGHT        18.0
#define TOP          40.0
#define BOTTOM       58.0
#define BYTES_HEIGHT 18.0 /* of the second row of numbers below the axis */
#define FONT         12.0
/* Names stand beside the lines, or below the axis where there are too many of them. */
#define NAMED_MAX      10
#define LEGEND_COLUMNS 3
#define LEGEND_ROW     18.0
#define HEADROOM_WIDTH 60.0
#define HEADROOM_LEAST 45.0 /* minimum height for a label inside */
#define TICK_SPACE     44.0

#define INK   0x1b1b1bu
#define FAINT 0x5f5f5fu
#define GRID  0xe3e3e3u
#define SHADE 0xf0eee6u

/* Distinguishable with red-green color blindness, and legible on white. */
static const uint32_t palette[] = {0x0067a5, 0xc4510b, 0x00805c, 0xa6487f,
                                   0x9a7200, 0x2f8fce, 0x6b4a2a, 0x5b5b8c};
#define PALETTE (sizeof(palette) / sizeof(palette[0]))

struct panel {
    struct tierce__plot_canvas *canvas;
    struct tierce__plot_box frame;
    double x_least, x_most; /* blocks */
    bool is_log;
    double y_most; /* a share */
    struct tierce__plot_line *lines;
    size_t line_count;
    struct tierce__plot_point *area; /* room for two lines */
    struct tierce__plot_box *boxes;  /* of names: one a line, and the headroom's */
    size_t box_count;
};

/* ---- scales ---------------------------------------------------------------------------------- */

static double place_x(const struct panel *panel, double capacity)
{
    double least = panel->x_least, most = panel->x_most;
    double share = most <= least   ? 0.5
                   : panel->is_log ? log(capacity / least) / log(most / least)
                                   : (capacity - least) / (most - least);
    return panel->frame.left + share * (panel->frame.right - panel->frame.left);
}

static double place_y(const struct panel *panel, double rate)
{
    return panel->frame.bottom - rate / panel->y_most * (panel->frame.bottom - panel->frame.top);
}

/* 1, 2 or 5 times a power of ten, at least `least`. */
static double nice_step(double least)
{
    double power = pow(10, floor(log10(least)));
    double ratio = least / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

/* "950", "1.5k", "20k", "3M"; the numbers of an axis are few and round. */
static void print_blocks(char text[16], double value)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 16, "%.3g%s", value, units[unit]);
}

static void print_bytes(char text[16], double value)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 16, value < 99.5 ? "%.2g%s" : "%.0f%s", value, units[unit]);
}

/* ---- axes ------------------------------------------------------------------------------------ */

static void draw_text(const struct panel *panel, double x, double y,
                      enum tierce__plot_anchor anchor, uint32_t color, const char *text)
{
    panel->canvas->text(panel->canvas, (struct tierce__plot_point){x, y}, anchor, FONT, color,
                        text);
}

static void draw_rule(const struct panel *panel, double x1, double y1, double x2, double y2,
                      uint32_t color)
{
    const struct tierce__plot_point ends[] = {{x1, y1}, {x2, y2}};
    panel->canvas->line(panel->canvas, ends, 2, color, 1, 0);
}

static void draw_tick(const struct panel *panel, const struct tierce__report *report,
                      double capacity, double *last)
{
    double x = place_x(panel, capacity);
    bool named = x - *last >= TICK_SPACE;
    draw_rule(panel, x, panel->frame.bottom, x, panel->frame.bottom + (named ? 5 : 3), FAINT);
    if (!named)
        return;
    *last = x;
    char text[16];
    if (report->sweep->in_bytes)
        print_bytes(text, capacity);
    else
        print_blocks(text, capacity);
    draw_text(panel, x, panel->frame.bottom + 18, TIERCE__PLOT_MIDDLE, INK, text);
    if (report->block_bytes > 0) {
        print_bytes(text, capacity * (double)report->block_bytes);
        draw_text(panel, x, panel->frame.bottom + 18 + BYTES_HEIGHT, TIERCE__PLOT_MIDDLE, FAINT,
                  text);
    }
}

static void draw_x_axis(const struct panel *panel, const struct tierce__report *report)
{
    double last = -TICK_SPACE, middle = (panel->frame.left + panel->frame.right) / 2;
    double least = panel->x_least, most = panel->x_most;
    if (most <= least) {
        draw_tick(panel, report, least, &last);
    } else if (report->sweep->in_bytes) {
        double step = exp2(ceil(log2((most - least) / 8)));
        for (double at = panel->is_log ? exp2(ceil(log2(least))) : ceil(least / step) * step;
             at <= most; at = panel->is_log ? 2 * at : at + step)
            draw_tick(panel, report, at, &last);
    } else if (panel->is_log) {
        static const double parts[] = {1, 2, 5};
        for (double power = pow(10, floor(log10(least))); power <= most; power *= 10) {
            for (int i = 0; i < 3; i++) {
                if (power * parts[i] >= least && power * parts[i] <= most)
                    draw_tick(panel, report, power * parts[i], &last);
            }
        }
    } else {
        double step = nice_step((most - least) / 8);
        for (double at = ceil(least / step) * step; at <= most; at += step)
            draw_tick(panel, report, at, &last);
    }
    draw_text(
        panel, middle, panel->frame.bottom + 38 + (report->block_bytes > 0 ? BYTES_HEIGHT : 0),
        TIERCE__PLOT_MIDDLE, INK, report->sweep->in_bytes ? "capacity" : "capacity in blocks");
}

static void draw_y_axis(const struct panel *panel)
{
    double step = nice_step(panel->y_most / 8);
    for (int i = 0; i * step <= panel->y_most * 1.0001; i++) {
        double y = place_y(panel, i * step);
        char text[16];
        snprintf(text, sizeof(text), "%g %%", round(i * step * 1e6) / 1e4);
        draw_rule(panel, panel->frame.left, y, panel->frame.right, y, i == 0 ? FAINT : GRID);
        draw_text(panel, panel->frame.left - 8, y + 4, TIERCE__PLOT_END, INK, text);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool is_same_line(const struct tierce__report_curve *a, const struct tierce__report_curve *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        if (a->rows[i]->capacity != b->rows[i]->capacity || a->rows[i]->hits != b->rows[i]->hits)
            return false;
    }
    return true;
}

static bool is_bound(const struct tierce__plot_line *line)
{
    return line->curve->rows[0]->cache->kind == TIERCE__CACHE_BELADY;
}

static bool is_unlimited(const struct tierce__sweep_row *row)
{
    return row->capacity == TIERCE__CAPACITY_UNLIMITED;
}

static struct tierce__plot_point place(const struct panel *panel, uint64_t capacity, double rate)
{
    return (struct tierce__plot_point){place_x(panel, (double)capacity), place_y(panel, rate)};
}

/* The points of a line, from room for them: how many were taken. */
static size_t place_points(const struct panel *panel, struct tierce__plot_line *line,
                           struct tierce__plot_point *room)
{
    const struct tierce__report_curve *curve = line->curve;
    uint64_t capacities[TIERCE__REPORT_EXACT_MAX];
    size_t exact = tierce__report_exact(capacities, curve);
    double blocks = (double)curve->rows[0]->blocks; /* a curve has no internal ones */
    line->dots = line->points = room;
    if (is_unlimited(curve->rows[0])) { /* one number for every capacity */
        double y = place_y(panel, tierce__sweep_rate(curve->rows[0]));
        room[0] = (struct tierce__plot_point){panel->frame.left, y};
        room[1] = (struct tierce__plot_point){panel->frame.right, y};
        return line->count = 2;
    }
    for (size_t i = 0; i < curve->count && !is_unlimited(curve->rows[i]); i++)
        room[line->dot_count++] =
            place(panel, curve->rows[i]->capacity, tierce__sweep_rate(curve->rows[i]));
    line->count = line->dot_count;
    if (exact == 0)
        return line->count;
    line->points = room + line->dot_count;
    line->count = exact;
    for (size_t i = 0; i < exact; i++)
        line->points[i] = place(
            panel, capacities[i],
            blocks > 0 ? (double)tierce__report_exact_hits(curve, capacities[i]) / blocks : 0);
    return line->dot_count + exact;
}

static void name_line(struct panel *panel, size_t index, const char *name)
{
    for (size_t i = 0; i < index; i++) {
        struct tierce__plot_line *earlier = &panel->lines[i];
        if (earlier->same_as_earlier || !is_same_line(earlier->curve, panel->lines[index].curve))
            continue;
        size_t used = strlen(earlier->label);
        snprintf(earlier->label + used, sizeof(earlier->label) - used, ", %s", name);
        panel->lines[index].same_as_earlier = true;
        return;
    }
    snprintf(panel->lines[index].label, sizeof(panel->lines[index].label), "%s", name);
}

/* The area from the best other cache at each capacity up to Belady's bound; its label is at the
 * widest part. */
static void shade_headroom(struct panel *panel)
{
    const struct tierce__plot_line *bound = NULL;
    for (size_t i = 0; i < panel->line_count; i++)
        bound = is_bound(&panel->lines[i]) ? &panel->lines[i] : bound;
    if (bound == NULL || bound->dot_count < 2 || panel->line_count < 2)
        return;
    size_t used = 0;
    double most = 0;
    struct tierce__plot_point middle = {0};
    for (size_t p = 0; p < bound->dot_count; p++)
        panel->area[used++] = bound->dots[p];
    for (size_t p = bound->dot_count; p-- > 0;) {
        double best = panel->frame.bottom;
        for (size_t i = 0; i < panel->line_count; i++) {
            const struct tierce__plot_line *line = &panel->lines[i];
            if (line != bound && line->dot_count > p)
                best = fmin(best, line->dots[p].y);
        }
        panel->area[used++] = (struct tierce__plot_point){bound->dots[p].x, best};
        if (best - bound->dots[p].y > most) {
            most = best - bound->dots[p].y;
            middle = (struct tierce__plot_point){bound->dots[p].x, best - most / 2};
        }
    }
    panel->canvas->area(panel->canvas, panel->area, used, SHADE);
    if (most < HEADROOM_LEAST)
        return;
    panel->canvas->text(panel->canvas, (struct tierce__plot_point){middle.x, middle.y + 4},
                        TIERCE__PLOT_MIDDLE, FONT, FAINT, "headroom");
    panel->boxes[panel->box_count++] =
        (struct tierce__plot_box){middle.x - HEADROOM_WIDTH / 2, middle.y - FONT / 2,
                                  middle.x + HEADROOM_WIDTH / 2, middle.y + FONT / 2};
}

static void draw_line(const struct panel *panel, const struct tierce__plot_line *line)
{
    if (line->count > 1)
        panel->canvas->line(panel->canvas, line->points, line->count, line->color, line->width,
                            line->dash);
    for (size_t i = 0; i < line->dot_count; i++)
        panel->canvas->dot(panel->canvas, line->dots[i], 2, line->color);
}

static void draw_labels(struct panel *panel)
{
    for (size_t i = 0; i < panel->line_count; i++) {
        const struct tierce__plot_line *line = &panel->lines[i];
        if (line->same_as_earlier)
            continue;
        struct tierce__plot_box box = tierce__plot_place_label(
            panel->lines, panel->line_count, i, panel->boxes, panel->box_count, &panel->frame);
        draw_text(panel, (box.left + box.right) / 2, box.bottom - 3, TIERCE__PLOT_MIDDLE,
                  line->color, line->label);
        panel->boxes[panel->box_count++] = box;
    }
}

static void draw_legend(const struct panel *panel, const struct tierce__report *report)
{
    double column = (panel->frame.right - panel->frame.left) / LEGEND_COLUMNS;
    double top = panel->frame.bottom + BOTTOM + (report->block_bytes > 0 ? BYTES_HEIGHT : 0);
    size_t place = 0;
    for (size_t i = 0; i < panel->line_count; i++) {
        const struct tierce__plot_line *line = &panel->lines[i];
        if (line->same_as_earlier)
            continue;
        double x = panel->frame.left + (double)(place % LEGEND_COLUMNS) * column;
        double y = top + (double)(place / LEGEND_COLUMNS) * LEGEND_ROW;
        const struct tierce__plot_point ends[] = {{x, y - 4}, {x + 22, y - 4}};
        panel->canvas->line(panel->canvas, ends, 2, line->color, line->width, line->dash);
        draw_text(panel, x + 28, y, TIERCE__PLOT_START, line->color, line->label);
        place++;
    }
}

/* ---- panels ---------------------------------------------------------------------------------- */

static size_t curves_of_match(const struct tierce__report_curves *curves, size_t first)
{
    size_t count = 0;
    for (size_t i = first; i < curves->count; i++)
        count += tierce__report_same_match(&curves->curves[first], &curves->curves[i]);
    return count;
}

/* Of the panel of the match of curves[first]. */
static double panel_height(const struct tierce__report *report,
                           const struct tierce__report_curves *curves, size_t first)
{
    size_t count = curves_of_match(curves, first);
    size_t rows = count > NAMED_MAX ? (count + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS : 0;
    return HEIGHT + (report->block_bytes > 0 ? BYTES_HEIGHT : 0) + LEGEND_ROW * (double)rows;
}

static bool is_limit(const struct tierce__plot_line *line)
{
    return is_bound(line) || line->curve->rows[0]->cache->kind == TIERCE__CACHE_INFINITE;
}

/* Colors by index among the distinct lines; Belady's bound is black. */
static void color_lines(struct panel *panel)
{
    size_t place = 0;
    for (size_t i = 0; i < panel->line_count; i++) {
        struct tierce__plot_line *line = &panel->lines[i];
        line->color = is_limit(line) ? INK : palette[place % PALETTE];
        line->width = is_limit(line) ? 1.25 : 1.75;
        line->dash = is_bound(line) ? 5 : is_limit(line) ? 2 : (double)(place / PALETTE) * 4;
        place += !is_limit(line) && !line->same_as_earlier;
    }
}

static void find_ranges(struct panel *panel)
{
    double most_rate = 0;
    panel->x_least = INFINITY;
    panel->x_most = 0;
    for (size_t i = 0; i < panel->line_count; i++) {
        const struct tierce__report_curve *curve = panel->lines[i].curve;
        for (size_t r = 0; r < curve->count; r++) {
            most_rate = fmax(most_rate, tierce__sweep_rate(curve->rows[r]));
            if (is_unlimited(curve->rows[r]))
                continue;
            panel->x_least = fmin(panel->x_least, (double)curve->rows[r]->capacity);
            panel->x_most = fmax(panel->x_most, (double)curve->rows[r]->capacity);
        }
    }
    if (panel->x_most == 0) /* nothing but the unlimited */
        panel->x_least = panel->x_most = 1;
    panel->is_log = panel->x_most / panel->x_least > 20;
    double step = nice_step(fmax(most_rate, 0.001) / 8);
    panel->y_most = fmin(1, ceil(fmax(most_rate, 0.001) * 1.02 / step) * step);
}

static void draw_panel(struct panel *panel, const struct tierce__report *report,
                       const struct tierce__report_curves *curves, size_t first,
                       struct tierce__plot_point *points)
{
    char match[TIERCE__MATCH_TEXT_BYTES], title[96], name[TIERCE__REPORT_LABEL_BYTES];
    const struct tierce__report_curve *head = &curves->curves[first];
    panel->line_count = panel->box_count = 0;
    for (size_t i = first; i < curves->count; i++) {
        if (tierce__report_same_match(head, &curves->curves[i]))
            panel->lines[panel->line_count++] =
                (struct tierce__plot_line){.curve = &curves->curves[i]};
    }
    find_ranges(panel);
    for (size_t i = 0; i < panel->line_count; i++) {
        tierce__report_label(name, curves, (size_t)(panel->lines[i].curve - curves->curves));
        points += place_points(panel, &panel->lines[i], points);
        name_line(panel, i, name);
    }
    color_lines(panel);
    tierce__match_print(&head->rows[0]->match, match);
    snprintf(title, sizeof(title), "Hits (%s), of the blocks looked up%s", match,
             head->rows[0]->internal_blocks > 0 ? " that the engine did not hold" : "");
    draw_text(panel, panel->frame.left, panel->frame.top - 18, TIERCE__PLOT_START, INK, title);
    shade_headroom(panel);
    draw_y_axis(panel);
    draw_x_axis(panel, report);
    for (size_t i = 0; i < panel->line_count; i++) {
        if (!panel->lines[i].same_as_earlier)
            draw_line(panel, &panel->lines[i]);
    }
    if (panel->line_count > NAMED_MAX)
        draw_legend(panel, report);
    else
        draw_labels(panel);
}

static bool is_first_of_match(const struct tierce__report_curves *curves, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (tierce__report_same_match(&curves->curves[i], &curves->curves[index]))
            return false;
    }
    return true;
}

struct tierce__plot_size tierce__plot_size(const struct tierce__report *report,
                                           const struct tierce__report_curves *curves)
{
    struct tierce__plot_size size = {WIDTH, 0};
    for (size_t i = 0; i < curves->count; i++)
        size.height += is_first_of_match(curves, i) ? panel_height(report, curves, i) : 0;
    return size;
}

int tierce__plot_draw(struct tierce__plot_canvas *canvas, const struct tierce__report *report,
                      const struct tierce__report_curves *curves)
{
    size_t rows = 2 * report->sweep->row_count + 2; /* and a second point for the unlimited */
    size_t exact = report->sweep->curve_count * TIERCE__REPORT_EXACT_MAX;
    struct tierce__plot_point *points = tierce__calloc(rows + exact, sizeof(*points));
    struct panel panel = {
        .canvas = canvas,
        .lines = tierce__calloc(curves->count + 1, sizeof(*panel.lines)),
        .area = tierce__calloc(rows, sizeof(*panel.area)),
        .boxes = tierce__calloc(curves->count + 1, sizeof(*panel.boxes)),
    };
    bool whole = points != NULL && panel.lines != NULL && panel.area != NULL && panel.boxes != NULL;
    double top = 0;
    for (size_t i = 0; whole && i < curves->count; i++) {
        if (!is_first_of_match(curves, i))
            continue;
        panel.frame =
            (struct tierce__plot_box){LEFT, top + TOP, WIDTH - RIGHT, top + HEIGHT - BOTTOM};
        draw_panel(&panel, report, curves, i, points);
        top += panel_height(report, curves, i);
    }
    tierce__free(points);
    tierce__free(panel.lines);
    tierce__free(panel.area);
    tierce__free(panel.boxes);
    return whole ? 0 : -ENOMEM;
}
