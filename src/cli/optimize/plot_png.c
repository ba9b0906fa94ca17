/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/plot_png.h"
#include "optimizer/report/report_plot.h"

#include <cairo.h>
#include <errno.h>
#include <fontconfig/fontconfig.h>

enum { SCALE = 2 };

struct png {
    struct tierce__plot_canvas canvas; /* first: a canvas is the png that it lies in */
    cairo_t *cairo;
};

static cairo_t *begin(struct tierce__plot_canvas *canvas, uint32_t color)
{
    cairo_t *cairo = ((struct png *)canvas)->cairo;
    cairo_set_source_rgb(cairo, (color >> 16 & 255) / 255.0, (color >> 8 & 255) / 255.0,
                         (color & 255) / 255.0);
    return cairo;
}

static void trace_points(cairo_t *cairo, const struct tierce__plot_point *points, size_t count)
{
    cairo_new_path(cairo); /* text leaves a point behind */
    for (size_t i = 0; i < count; i++)
        cairo_line_to(cairo, points[i].x, points[i].y);
}

static void draw_line(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                      size_t count, uint32_t color, double width, double dash)
{
    cairo_t *cairo = begin(canvas, color);
    cairo_set_line_width(cairo, width);
    cairo_set_line_join(cairo, CAIRO_LINE_JOIN_ROUND);
    cairo_set_dash(cairo, &dash, dash > 0, 0);
    trace_points(cairo, points, count);
    cairo_stroke(cairo);
}

static void draw_area(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                      size_t count, uint32_t color)
{
    cairo_t *cairo = begin(canvas, color);
    trace_points(cairo, points, count);
    cairo_fill(cairo);
}

static void draw_dot(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                     double radius, uint32_t color)
{
    cairo_t *cairo = begin(canvas, color);
    cairo_new_path(cairo);
    cairo_arc(cairo, at.x, at.y, radius, 0, 6.283185307179586);
    cairo_fill(cairo);
}

static void draw_text(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                      enum tierce__plot_anchor anchor, double size, uint32_t color,
                      const char *text)
{
    cairo_t *cairo = begin(canvas, color);
    cairo_text_extents_t extents;
    cairo_set_font_size(cairo, size);
    cairo_text_extents(cairo, text, &extents);
    cairo_move_to(cairo, at.x - extents.x_advance * anchor / 2.0, at.y);
    cairo_show_text(cairo, text);
}

static cairo_status_t put_bytes(void *arg, const unsigned char *data, unsigned length)
{
    return fwrite(data, 1, length, arg) == length ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static int draw(cairo_surface_t *surface, const struct tierce__report *report,
                const struct tierce__report_curves *curves)
{
    struct png png = {{draw_line, draw_area, draw_dot, draw_text}, cairo_create(surface)};
    cairo_scale(png.cairo, SCALE, SCALE);
    cairo_set_source_rgb(png.cairo, 1, 1, 1);
    cairo_paint(png.cairo);
    cairo_select_font_face(png.cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           CAIRO_FONT_WEIGHT_NORMAL);
    int rc = tierce__plot_draw(&png.canvas, report, curves);
    if (rc == 0 && cairo_status(png.cairo) != CAIRO_STATUS_SUCCESS)
        rc = -ENOMEM; /* all that can be wrong with calls like these */
    cairo_destroy(png.cairo);
    return rc;
}

int tierce__plot_png(FILE *file, const struct tierce__report *report)
{
    struct tierce__report_curves curves;
    int rc = tierce__report_curves(&curves, report->sweep);
    if (rc < 0)
        return rc;
    struct tierce__plot_size size = tierce__plot_size(report, &curves);
    cairo_surface_t *surface = cairo_image_surface_create(
        CAIRO_FORMAT_RGB24, (int)size.width * SCALE, (int)size.height * SCALE);
    rc = draw(surface, report, &curves);
    if (rc == 0) {
        cairo_status_t status = cairo_surface_write_to_png_stream(surface, put_bytes, file);
        if (status != CAIRO_STATUS_SUCCESS && status != CAIRO_STATUS_WRITE_ERROR)
            rc = -ENOMEM;
    }
    cairo_surface_destroy(surface);
    cairo_debug_reset_static_data(); /* the fonts that it keeps, */
    FcFini();                        /* and all that it chose from: nothing is left behind */
    tierce__report_curves_clear(&curves);
    return rc;
}
