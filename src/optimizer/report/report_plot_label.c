/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/report_plot.h"

#include <math.h>
#include <string.h>

enum {
    LETTER = 7,  /* pixels a letter, on average */
    HEIGHT = 13, /* of a line of text */
    STEP = 6,    /* distance between candidate positions */
    GAP = 4,     /* between a line and its own label */
    ENOUGH = 24, /* pixels of white that are enough */
};

/* The height of a line at x; false where it does not reach. */
static bool height_at(const struct tierce__plot_line *line, double x, double *y)
{
    for (size_t i = 1; i < line->count; i++) {
        const struct tierce__plot_point *a = &line->points[i - 1], *b = &line->points[i];
        if (x < a->x || x > b->x)
            continue;
        *y = b->x > a->x ? a->y + (b->y - a->y) * (x - a->x) / (b->x - a->x) : b->y;
        return true;
    }
    return false;
}

/* White between a box and a line, at most ENOUGH; negative where the line runs through it. */
static double clearance_of_line(const struct tierce__plot_line *line,
                                const struct tierce__plot_box *box)
{
    double least = ENOUGH;
    for (double x = box->left - GAP; x <= box->right + GAP; x += GAP) {
        double y;
        if (!height_at(line, x, &y))
            continue;
        double white = y < box->top ? box->top - y : y > box->bottom ? y - box->bottom : -ENOUGH;
        least = fmin(least, white);
    }
    return least;
}

static double clearance_of_box(const struct tierce__plot_box *a, const struct tierce__plot_box *b)
{
    double across = fmax(a->left - b->right, b->left - a->right);
    double down = fmax(a->top - b->bottom, b->top - a->bottom);
    return across < 0 && down < 0 ? -ENOUGH : fmin(ENOUGH, fmax(across, down));
}

static double clearance(const struct tierce__plot_line *lines, size_t line_count, size_t index,
                        const struct tierce__plot_box *boxes, size_t box_count,
                        const struct tierce__plot_box *box)
{
    double least = ENOUGH;
    for (size_t i = 0; i < line_count; i++) {
        double white = clearance_of_line(&lines[i], box);
        /* The label must be near its own line. */
        if (i != index && !lines[i].same_as_earlier)
            least = fmin(least, white);
        else if (white < 1)
            least = fmin(least, -ENOUGH / 2);
    }
    for (size_t i = 0; i < box_count; i++)
        least = fmin(least, clearance_of_box(&boxes[i], box));
    return least;
}

struct tierce__plot_box tierce__plot_place_label(const struct tierce__plot_line *lines,
                                                 size_t line_count, size_t index,
                                                 const struct tierce__plot_box *boxes,
                                                 size_t box_count,
                                                 const struct tierce__plot_box *frame)
{
    double width = LETTER * (double)strlen(lines[index].label), best_white = -1e9;
    struct tierce__plot_box best = {frame->left, frame->top, frame->left + width,
                                    frame->top + HEIGHT};
    for (double x = frame->left; x <= frame->right; x += STEP) {
        double y;
        if (!height_at(&lines[index], x, &y))
            continue;
        for (int below = 0; below < 2; below++) {
            double top = below ? y + GAP : y - GAP - HEIGHT;
            double left = below ? x + GAP : x - GAP - width;
            struct tierce__plot_box box = {left, top, left + width, top + HEIGHT};
            if (box.left < frame->left + 2 || box.right > frame->right - 2 ||
                box.top < frame->top || box.bottom > frame->bottom - 2)
                continue;
            double white = clearance(lines, line_count, index, boxes, box_count, &box);
            if (white > best_white) {
                best_white = white;
                best = box;
            }
        }
    }
    return best;
}
