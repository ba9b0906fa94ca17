/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_ranges.h"

#include <string.h>

#include "base/assert.h"

/* The first range that ends at `offset` or later. */
static size_t place_of(const struct tierce__ranges *ranges, uint64_t offset)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->items[middle].to < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_at(struct tierce__ranges *ranges, size_t at)
{
    ranges->count--;
    memmove(&ranges->items[at], &ranges->items[at + 1],
            (ranges->count - at) * sizeof(ranges->items[0]));
}

static int insert_at(struct tierce__ranges *ranges, size_t at, struct tierce__range range)
{
    if (ranges->count == TIERCE__RANGES_MAX)
        return TIERCE_E_LIMIT;
    memmove(&ranges->items[at + 1], &ranges->items[at],
            (ranges->count - at) * sizeof(ranges->items[0]));
    ranges->items[at] = range;
    ranges->count++;
    return 0;
}

int tierce__ranges_claim(struct tierce__ranges *ranges, uint64_t offset, uint64_t length)
{
    if (length == 0 || offset > ranges->total || length > ranges->total - offset)
        return TIERCE_E_FORMAT;
    struct tierce__range range = {offset, offset + length};
    size_t at = place_of(ranges, offset);
    bool joins_before = at < ranges->count && ranges->items[at].to == range.from;
    size_t after = at + joins_before;
    if (after < ranges->count && ranges->items[after].from < range.to)
        return TIERCE_E_FORMAT;
    bool joins_after = after < ranges->count && ranges->items[after].from == range.to;
    if (joins_before && joins_after) {
        ranges->items[at].to = ranges->items[after].to;
        remove_at(ranges, after);
    } else if (joins_before) {
        ranges->items[at].to = range.to;
    } else if (joins_after) {
        ranges->items[after].from = range.from;
    } else {
        return insert_at(ranges, at, range);
    }
    TIERCE_DASSERT(ranges->count > 0 && ranges->count <= TIERCE__RANGES_MAX);
    return 0;
}
