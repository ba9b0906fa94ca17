/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "optimizer/report/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static int compare_capacity(const void *a, const void *b)
{
    const struct tierce__sweep_row *x = *(const struct tierce__sweep_row *const *)a;
    const struct tierce__sweep_row *y = *(const struct tierce__sweep_row *const *)b;
    return (x->capacity > y->capacity) - (x->capacity < y->capacity);
}

/* The rows of the same curve as row `first`; a repeated capacity counts once. */
static void gather(struct tierce__report_curve *curve, const struct tierce__sweep *sweep,
                   size_t first)
{
    for (size_t i = first; i < sweep->row_count; i++) {
        if (tierce__sweep_same_line(&sweep->rows[first], &sweep->rows[i]))
            curve->rows[curve->count++] = &sweep->rows[i];
    }
    qsort(curve->rows, curve->count, sizeof(*curve->rows), compare_capacity);
    size_t kept = 1;
    for (size_t i = 1; i < curve->count; i++) {
        if (curve->rows[i]->capacity != curve->rows[kept - 1]->capacity)
            curve->rows[kept++] = curve->rows[i];
    }
    curve->count = kept;
}

static const struct tierce__sweep_curve *find_exact(const struct tierce__sweep *sweep,
                                                    const struct tierce__sweep_row *row)
{
    for (size_t i = 0; i < sweep->curve_count; i++) {
        const struct tierce__sweep_curve *curve = &sweep->curves[i];
        if (curve->cache == row->cache && curve->order == row->order && curve->length > 0 &&
            curve->match.kind == row->match.kind && curve->match.window == row->match.window)
            return curve;
    }
    return NULL;
}

size_t tierce__report_exact(uint64_t out[TIERCE__REPORT_EXACT_MAX],
                            const struct tierce__report_curve *curve)
{
    size_t count = 0, rows = curve->count;
    if (rows > 0 && curve->rows[rows - 1]->capacity == TIERCE__CAPACITY_UNLIMITED)
        rows--;
    if (curve->exact == NULL || rows < 2)
        return 0;
    double least = (double)curve->rows[0]->capacity, most = (double)curve->rows[rows - 1]->capacity;
    for (size_t i = 0; i < TIERCE__REPORT_EXACT_MAX; i++) {
        double share = (double)i / (TIERCE__REPORT_EXACT_MAX - 1);
        uint64_t capacity = (uint64_t)llround(least * pow(most / least, share));
        if (count == 0 || capacity > out[count - 1])
            out[count++] = capacity;
    }
    return count;
}

uint64_t tierce__report_exact_hits(const struct tierce__report_curve *curve, uint64_t capacity)
{
    uint64_t last = curve->exact->length - 1;
    return curve->exact->points[capacity < last ? capacity : last].hits;
}

int tierce__report_curves(struct tierce__report_curves *out, const struct tierce__sweep *sweep)
{
    struct tierce__report_curves made = {0};
    size_t room = sweep->row_count > 0 ? sweep->row_count : 1, used = 0;
    made.curves = tierce__calloc(room, sizeof(*made.curves));
    made.rows = tierce__calloc(room, sizeof(*made.rows));
    if (made.curves == NULL || made.rows == NULL) {
        tierce__report_curves_clear(&made);
        return -ENOMEM;
    }
    for (size_t i = 0; i < sweep->row_count; i++) {
        bool known = false;
        for (size_t c = 0; c < made.count && !known; c++)
            known = tierce__sweep_same_line(made.curves[c].rows[0], &sweep->rows[i]);
        if (known)
            continue;
        struct tierce__report_curve *curve = &made.curves[made.count++];
        curve->rows = made.rows + used;
        gather(curve, sweep, i);
        curve->exact = find_exact(sweep, curve->rows[0]);
        used += curve->count;
    }
    *out = made;
    return 0;
}

void tierce__report_curves_clear(struct tierce__report_curves *curves)
{
    tierce__free(curves->rows);
    tierce__free(curves->curves);
    *curves = (struct tierce__report_curves){0};
}

bool tierce__report_same_match(const struct tierce__report_curve *a,
                               const struct tierce__report_curve *b)
{
    const struct tierce__match *x = &a->rows[0]->match, *y = &b->rows[0]->match;
    return x->kind == y->kind && x->window == y->window;
}

void tierce__report_label(char out[TIERCE__REPORT_LABEL_BYTES],
                          const struct tierce__report_curves *curves, size_t index)
{
    const struct tierce__sweep_row *row = curves->curves[index].rows[0];
    char name[TIERCE__SWEEP_NAME_BYTES];
    bool both = false;
    tierce__sweep_name(name, row);
    for (size_t i = 0; i < curves->count && !both; i++)
        both = curves->curves[i].rows[0]->cache == row->cache &&
               curves->curves[i].rows[0]->order != row->order;
    snprintf(out, TIERCE__REPORT_LABEL_BYTES, "%s%s", name,
             !both                             ? ""
             : row->order == TIERCE__TOUCH_REV ? "/rev"
                                               : "/fwd");
}
