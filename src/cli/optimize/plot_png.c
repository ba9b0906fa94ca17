/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/plot_png.h"
#include "optimizer/report/report_plot.h"

#include <cairo.h>
#include <dlfcn.h>
#include <errno.h>
#include <fontconfig/fontconfig.h>
#include <stdbool.h>
#include <string.h>

enum { SCALE = 2 };

/* The calls of both libraries. They are loaded when a picture is drawn: linked, they would require
 * X11's libraries on every host on which `tierce` starts. */
#define CALLS(CAIRO, FONTCONFIG)                                                                   \
    CAIRO(cairo_set_source_rgb)                                                                    \
    CAIRO(cairo_new_path)                                                                          \
    CAIRO(cairo_line_to)                                                                           \
    CAIRO(cairo_set_line_width)                                                                    \
    CAIRO(cairo_set_line_join)                                                                     \
    CAIRO(cairo_set_dash)                                                                          \
    CAIRO(cairo_stroke)                                                                            \
    CAIRO(cairo_fill)                                                                              \
    CAIRO(cairo_arc)                                                                               \
    CAIRO(cairo_set_font_size)                                                                     \
    CAIRO(cairo_text_extents)                                                                      \
    CAIRO(cairo_move_to)                                                                           \
    CAIRO(cairo_show_text)                                                                         \
    CAIRO(cairo_create)                                                                            \
    CAIRO(cairo_scale)                                                                             \
    CAIRO(cairo_paint)                                                                             \
    CAIRO(cairo_select_font_face)                                                                  \
    CAIRO(cairo_status)                                                                            \
    CAIRO(cairo_destroy)                                                                           \
    CAIRO(cairo_image_surface_create)                                                              \
    CAIRO(cairo_surface_write_to_png_stream)                                                       \
    CAIRO(cairo_surface_destroy)                                                                   \
    CAIRO(cairo_debug_reset_static_data)                                                           \
    FONTCONFIG(FcFini)

static struct {
#define MEMBER(name) __typeof__(&(name)) name;
    CALLS(MEMBER, MEMBER)
#undef MEMBER
} calls;

/* POSIX allows a function pointer in a pointer to data; C does not. */
static bool set_call(void *call, void *library, const char *name)
{
    void *address = library != NULL ? dlsym(library, name) : NULL;
    memcpy(call, &address, sizeof(address));
    return address != NULL;
}

int tierce__plot_png_load(void)
{
    static bool is_loaded; /* one thread at a time */
    if (is_loaded)
        return 0;
    void *cairo = dlopen("libcairo.so.2", RTLD_NOW | RTLD_LOCAL);
    void *fontconfig = dlopen("libfontconfig.so.1", RTLD_NOW | RTLD_LOCAL);
    bool is_complete = true;
#define FROM_CAIRO(name)      is_complete &= set_call(&calls.name, cairo, #name);
#define FROM_FONTCONFIG(name) is_complete &= set_call(&calls.name, fontconfig, #name);
    CALLS(FROM_CAIRO, FROM_FONTCONFIG)
#undef FROM_CAIRO
#undef FROM_FONTCONFIG
    is_loaded = is_complete;
    return is_complete ? 0 : -ELIBACC;
}

struct png {
    struct tierce__plot_canvas canvas; /* first: a canvas is the png that it lies in */
    cairo_t *cairo;
};

static cairo_t *begin(struct tierce__plot_canvas *canvas, uint32_t color)
{
    cairo_t *cairo = ((struct png *)canvas)->cairo;
    calls.cairo_set_source_rgb(cairo, (color >> 16 & 255) / 255.0, (color >> 8 & 255) / 255.0,
                               (color & 255) / 255.0);
    return cairo;
}

static void trace_points(cairo_t *cairo, const struct tierce__plot_point *points, size_t count)
{
    calls.cairo_new_path(cairo); /* text leaves a point behind */
    for (size_t i = 0; i < count; i++)
        calls.cairo_line_to(cairo, points[i].x, points[i].y);
}

static void draw_line(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                      size_t count, uint32_t color, double width, double dash)
{
    cairo_t *cairo = begin(canvas, color);
    calls.cairo_set_line_width(cairo, width);
    calls.cairo_set_line_join(cairo, CAIRO_LINE_JOIN_ROUND);
    calls.cairo_set_dash(cairo, &dash, dash > 0, 0);
    trace_points(cairo, points, count);
    calls.cairo_stroke(cairo);
}

static void draw_area(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                      size_t count, uint32_t color)
{
    cairo_t *cairo = begin(canvas, color);
    trace_points(cairo, points, count);
    calls.cairo_fill(cairo);
}

static void draw_dot(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                     double radius, uint32_t color)
{
    cairo_t *cairo = begin(canvas, color);
    calls.cairo_new_path(cairo);
    calls.cairo_arc(cairo, at.x, at.y, radius, 0, 6.283185307179586);
    calls.cairo_fill(cairo);
}

static void draw_text(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                      enum tierce__plot_anchor anchor, double size, uint32_t color,
                      const char *text)
{
    cairo_t *cairo = begin(canvas, color);
    cairo_text_extents_t extents;
    calls.cairo_set_font_size(cairo, size);
    calls.cairo_text_extents(cairo, text, &extents);
    calls.cairo_move_to(cairo, at.x - extents.x_advance * anchor / 2.0, at.y);
    calls.cairo_show_text(cairo, text);
}

static cairo_status_t put_bytes(void *arg, const unsigned char *data, unsigned length)
{
    return fwrite(data, 1, length, arg) == length ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static int draw(cairo_surface_t *surface, const struct tierce__report *report,
                const struct tierce__report_curves *curves)
{
    struct png png = {{draw_line, draw_area, draw_dot, draw_text}, calls.cairo_create(surface)};
    calls.cairo_scale(png.cairo, SCALE, SCALE);
    calls.cairo_set_source_rgb(png.cairo, 1, 1, 1);
    calls.cairo_paint(png.cairo);
    calls.cairo_select_font_face(png.cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                                 CAIRO_FONT_WEIGHT_NORMAL);
    int rc = tierce__plot_draw(&png.canvas, report, curves);
    if (rc == 0 && calls.cairo_status(png.cairo) != CAIRO_STATUS_SUCCESS)
        rc = -ENOMEM; /* all that can be wrong with calls like these */
    calls.cairo_destroy(png.cairo);
    return rc;
}

int tierce__plot_png(FILE *file, const struct tierce__report *report)
{
    struct tierce__report_curves curves;
    int rc = tierce__plot_png_load();
    if (rc == 0)
        rc = tierce__report_curves(&curves, report->sweep);
    if (rc < 0)
        return rc;
    struct tierce__plot_size size = tierce__plot_size(report, &curves);
    cairo_surface_t *surface = calls.cairo_image_surface_create(
        CAIRO_FORMAT_RGB24, (int)size.width * SCALE, (int)size.height * SCALE);
    rc = draw(surface, report, &curves);
    if (rc == 0) {
        cairo_status_t status = calls.cairo_surface_write_to_png_stream(surface, put_bytes, file);
        if (status != CAIRO_STATUS_SUCCESS && status != CAIRO_STATUS_WRITE_ERROR)
            rc = -ENOMEM;
    }
    calls.cairo_surface_destroy(surface);
    calls.cairo_debug_reset_static_data(); /* the fonts that it keeps, */
    calls.FcFini();                        /* and all that it chose from: nothing is left behind */
    tierce__report_curves_clear(&curves);
    return rc;
}
