/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/nearest.h"
#include "base/assert.h"

#include <string.h>

#define NAME_BYTES_MAX 64

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t tierce__edit_distance(const char *a, const char *b)
{
    size_t a_len = strnlen(a, NAME_BYTES_MAX);
    size_t b_len = strnlen(b, NAME_BYTES_MAX);
    size_t rows[3][NAME_BYTES_MAX + 1];
    size_t *before = rows[0];
    size_t *above = rows[1];
    size_t *row = rows[2];

    for (size_t j = 0; j <= b_len; j++)
        above[j] = j;
    memset(before, 0, sizeof(rows[0]));
    for (size_t i = 1; i <= a_len; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t differs = lower(a[i - 1]) != lower(b[j - 1]);
            size_t best = least(least(above[j], row[j - 1]) + 1, above[j - 1] + differs);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                best = least(best, before[j - 2] + 1);
            row[j] = best;
        }
        size_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    TIERCE_DASSERT(above[b_len] <= (a_len > b_len ? a_len : b_len));
    return above[b_len];
}

const char *tierce__nearest(const char *name, const char *const known[])
{
    const char *best = known[0];
    size_t best_distance = tierce__edit_distance(name, best);
    for (size_t i = 1; known[i] != NULL; i++) {
        size_t distance = tierce__edit_distance(name, known[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = known[i];
        }
    }
    return best;
}
