/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPORT_PLOT_H
#define TIERCE_OPTIMIZER_REPORT_PLOT_H

#include "optimizer/report/report.h"

/*
 * The plot of hits against capacity, one panel a match, drawn by calls that a back end turns into
 * SVG or pixels. Lengths are in pixels of a drawing of tierce__plot_size, y grows downwards, colors
 * are 0xrrggbb. Threads: one at a time.
 */

struct tierce__plot_point {
    double x, y;
};

enum tierce__plot_anchor {
    TIERCE__PLOT_START, /* the text begins at the point */
    TIERCE__PLOT_MIDDLE,
    TIERCE__PLOT_END,
};

struct tierce__plot_canvas {
    /* `dash` pixels on and off, or 0 for an unbroken line. */
    void (*line)(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                 size_t count, uint32_t color, double width, double dash);
    void (*area)(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                 size_t count, uint32_t color);
    void (*dot)(struct tierce__plot_canvas *canvas, struct tierce__plot_point at, double radius,
                uint32_t color);
    void (*text)(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                 enum tierce__plot_anchor anchor, double size, uint32_t color, const char *text);
};

struct tierce__plot_size {
    double width, height;
};

/* Of the drawing of these curves. */
struct tierce__plot_size tierce__plot_size(const struct tierce__report *report,
                                           const struct tierce__report_curves *curves);

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__plot_draw(struct tierce__plot_canvas *canvas,
                                     const struct tierce__report *report,
                                     const struct tierce__report_curves *curves);

/* ---- report_plot_label.c --------------------------------------------------------------------- */

struct tierce__plot_box {
    double left, top, right, bottom;
};

struct tierce__plot_line {
    const struct tierce__report_curve *curve;
    struct tierce__plot_point *dots; /* one for each row that has a limit */
    size_t dot_count;
    struct tierce__plot_point *points; /* the line: the dots, or from an exact curve */
    size_t count;
    uint32_t color;
    double width, dash;
    bool same_as_earlier; /* drawn and named together with that one */
    char label[160];      /* of all equal lines */
};

/* Finds a position for the label of lines[index] within `frame`, clear of the other lines and of
 * boxes[0..box_count). Its characters are `letter` wide on average and `height` high. */
struct tierce__plot_box tierce__plot_place_label(const struct tierce__plot_line *lines,
                                                 size_t line_count, size_t index,
                                                 const struct tierce__plot_box *boxes,
                                                 size_t box_count,
                                                 const struct tierce__plot_box *frame);

#endif
