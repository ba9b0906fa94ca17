/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/match.h"
#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
    [TIERCE__MATCH_PREFIX] = "prefix",
    [TIERCE__MATCH_ANY] = "any",
    [TIERCE__MATCH_STREAM] = "stream",
};

static bool parse_window(uint32_t *out, const char *digits)
{
    uint64_t value = 0;
    if (digits[0] == '\0')
        return false;
    for (const char *p = digits; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            return false;
        value = 10 * value + (uint64_t)(*p - '0');
        if (value > UINT32_MAX)
            return false;
    }
    *out = (uint32_t)value;
    return value > 0;
}

int tierce__match_parse(struct tierce__match *out, const char *text)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (struct tierce__match){.kind = (enum tierce__match_kind)i};
            return 0;
        }
    }
    uint32_t window;
    if (strncmp(text, "window:", 7) != 0 || !parse_window(&window, text + 7))
        return TIERCE_E_ARGUMENT;
    *out = (struct tierce__match){.kind = TIERCE__MATCH_WINDOW, .window = window};
    return 0;
}

void tierce__match_print(const struct tierce__match *match, char out[TIERCE__MATCH_TEXT_BYTES])
{
    TIERCE_DASSERT(match->kind == TIERCE__MATCH_WINDOW ||
                   match->kind < sizeof(names) / sizeof(names[0]));
    if (match->kind == TIERCE__MATCH_WINDOW)
        snprintf(out, TIERCE__MATCH_TEXT_BYTES, "window:%" PRIu32, match->window);
    else
        snprintf(out, TIERCE__MATCH_TEXT_BYTES, "%s", names[match->kind]);
}

bool tierce__match_is_leading(const struct tierce__match *match)
{
    return match->kind == TIERCE__MATCH_PREFIX || match->kind == TIERCE__MATCH_WINDOW;
}

/* cost[k] = the largest depth of the last `window` of k + 1 blocks: `since` is where the largest
 * one stands, and only when it leaves the window the others are looked at again. */
static void window_costs(const uint32_t *depth, uint32_t count, uint32_t window, uint32_t *cost)
{
    TIERCE_DASSERT(window > 0);
    uint32_t largest = 0, at = 0;
    for (uint32_t k = count; k-- > 0;) {
        /* Computed from the end, so that cost may be depth: reads are before writes. */
        uint32_t first = k + 1 > window ? k + 1 - window : 0;
        if (k + 1 == count || at > k) {
            at = k;
            for (uint32_t i = k; i-- > first;)
                at = depth[i] > depth[at] ? i : at;
        } else if (depth[first] > depth[at]) {
            at = first;
        }
        largest = depth[at];
        cost[k] = k + 1 < count && cost[k + 1] < largest ? cost[k + 1] : largest;
    }
}

void tierce__match_costs(const struct tierce__match *match, const uint32_t *depth, uint32_t count,
                         uint32_t *cost)
{
    TIERCE_ASSERT(match->kind != TIERCE__MATCH_STREAM);
    uint32_t largest = 0;
    if (match->kind == TIERCE__MATCH_WINDOW) {
        window_costs(depth, count, match->window, cost);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        largest = depth[i] > largest || match->kind == TIERCE__MATCH_ANY ? depth[i] : largest;
        cost[i] = largest;
    }
}

uint32_t tierce__match_count(const struct tierce__match *match, const bool *there, uint32_t count)
{
    TIERCE_ASSERT(match->kind != TIERCE__MATCH_STREAM);
    TIERCE_DASSERT(match->kind != TIERCE__MATCH_WINDOW || match->window > 0);
    uint32_t hits = 0, row = 0;
    for (uint32_t i = 0; i < count; i++) {
        row = there[i] ? row + 1 : 0;
        switch (match->kind) {
        case TIERCE__MATCH_PREFIX:
            if (row == 0)
                return hits;
            hits = row;
            break;
        case TIERCE__MATCH_ANY:
            hits += there[i];
            break;
        case TIERCE__MATCH_WINDOW:
            hits = row >= match->window || row == i + 1 ? i + 1 : hits;
            break;
        case TIERCE__MATCH_STREAM:
            break;
        }
    }
    TIERCE_DASSERT(hits <= count);
    return hits;
}

uint32_t tierce__match_internal(const struct tierce__match *match, const bool *there,
                                const uint8_t *internal, uint32_t count, uint32_t hits)
{
    bool is_any = match->kind == TIERCE__MATCH_ANY;
    TIERCE_DASSERT(hits <= count);
    uint32_t end = is_any ? count : hits, found = 0;
    for (uint32_t i = 0; internal != NULL && i < end; i++)
        found += internal[i] != 0 && (!is_any || there[i]);
    TIERCE_DASSERT(found <= hits);
    return found;
}
