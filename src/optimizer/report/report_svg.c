/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/text/utf8.h"
#include "optimizer/report/report_plot.h"

#include <errno.h>
#include <inttypes.h>

/* The drawing as SVG. It is not written by cairo, which converts text to outlines: here text stays
 * searchable, and its font can be changed. */

struct svg {
    struct tierce__plot_canvas canvas; /* first: a canvas is the svg that it lies in */
    FILE *file;
};

static FILE *file_of(struct tierce__plot_canvas *canvas)
{
    return ((struct svg *)canvas)->file;
}

/* Writes XML text; characters that XML does not allow become U+FFFD. */
static void put_xml(FILE *file, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        uint32_t letter;
        at += tierce__utf8_letter(&letter, at);
        if (letter == '<' || letter == '>' || letter == '&' || letter == '"' || letter > 0x7e)
            fprintf(file, "&#%" PRIu32 ";", letter);
        else
            fputc(letter < ' ' ? ' ' : (int)letter, file);
    }
}

static void put_points(FILE *file, const struct tierce__plot_point *points, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s%.1f,%.1f", i > 0 ? " " : "", points[i].x, points[i].y);
}

static void draw_line(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                      size_t count, uint32_t color, double width, double dash)
{
    FILE *file = file_of(canvas);
    fputs("<polyline points=\"", file);
    put_points(file, points, count);
    fprintf(file, "\" fill=\"none\" stroke=\"#%06" PRIx32 "\" stroke-width=\"%g\"", color, width);
    if (dash > 0)
        fprintf(file, " stroke-dasharray=\"%g %g\"", dash, dash);
    fputs("/>\n", file);
}

static void draw_area(struct tierce__plot_canvas *canvas, const struct tierce__plot_point *points,
                      size_t count, uint32_t color)
{
    FILE *file = file_of(canvas);
    fputs("<polygon points=\"", file);
    put_points(file, points, count);
    fprintf(file, "\" fill=\"#%06" PRIx32 "\"/>\n", color);
}

static void draw_dot(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                     double radius, uint32_t color)
{
    fprintf(file_of(canvas), "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"#%06" PRIx32 "\"/>\n",
            at.x, at.y, radius, color);
}

static void draw_text(struct tierce__plot_canvas *canvas, struct tierce__plot_point at,
                      enum tierce__plot_anchor anchor, double size, uint32_t color,
                      const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    FILE *file = file_of(canvas);
    fprintf(file,
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%g\" "
            "fill=\"#%06" PRIx32 "\">",
            at.x, at.y, anchors[anchor], size, color);
    put_xml(file, text);
    fputs("</text>\n", file);
}

int tierce__report_svg(FILE *file, const struct tierce__report *report)
{
    struct tierce__report_curves curves;
    int rc = tierce__report_curves(&curves, report->sweep);
    if (rc < 0)
        return rc;
    struct tierce__plot_size size = tierce__plot_size(report, &curves);
    struct svg svg = {{draw_line, draw_area, draw_dot, draw_text}, file};
    fprintf(file,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
            "viewBox=\"0 0 %g %g\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
            "<title>",
            size.width, size.height, size.width, size.height);
    put_xml(file, report->name);
    fprintf(file,
            ": hits against capacity</title>\n<rect width=\"%g\" height=\"%g\" "
            "fill=\"#ffffff\"/>\n",
            size.width, size.height);
    rc = tierce__plot_draw(&svg.canvas, report, &curves);
    fputs("</svg>\n", file);
    tierce__report_curves_clear(&curves);
    return rc;
}
