/* SPDX-License-Identifier: Apache-2.0 */
#include "node/resp/glob.h"

/* A set behind its '[': whether `c` is in it; *at is moved behind its ']', or to the end. */
static bool in_set(const char **at, const char *end, char c)
{
    const char *p = *at;
    bool is_not = p < end && *p == '^', found = false;
    p += is_not;
    while (p < end && *p != ']') {
        if (*p == '\\' && end - p > 1)
            p++;
        char low = *p++, high = low;
        if (end - p > 1 && p[0] == '-' && p[1] != ']') {
            high = p[1];
            p += 2;
        }
        if (low > high) {
            char swapped = low;
            low = high;
            high = swapped;
        }
        found = found || (low <= c && c <= high);
    }
    *at = p < end ? p + 1 : end;
    return found != is_not;
}

/* One character that is not a star; *at is moved over its pattern. */
static bool match_one(const char **at, const char *end, char c)
{
    char first = *(*at)++;
    if (first == '?')
        return true;
    if (first == '[')
        return in_set(at, end, c);
    if (first == '\\' && *at < end)
        first = *(*at)++;
    return first == c;
}

bool tierce__glob_match(const char *pattern, size_t pattern_bytes, const char *text,
                        size_t text_bytes)
{
    const char *p = pattern, *p_end = pattern + pattern_bytes;
    const char *t = text, *t_end = text + text_bytes;
    const char *behind_star = NULL, *star_text = NULL; /* the last one, and what it leaves */
    while (t < t_end) {
        const char *next = p;
        if (p < p_end && *p == '*') {
            behind_star = ++p;
            star_text = t;
        } else if (p < p_end && match_one(&next, p_end, *t)) {
            p = next;
            t++;
        } else if (behind_star != NULL) {
            p = behind_star;
            t = ++star_text;
        } else {
            return false;
        }
    }
    while (p < p_end && *p == '*')
        p++;
    return p == p_end;
}
