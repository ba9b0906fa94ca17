/* SPDX-License-Identifier: Apache-2.0 */
#include "core/blend/segments.h"

#include "base/assert.h"

#include <stdbool.h>
#include <string.h>

int64_t tierce__segments_split(struct tierce__segment *out, size_t room, const int32_t *tokens,
                               size_t count, const int32_t *separator, size_t separator_count)
{
    if (separator_count == 0 || count > UINT32_MAX)
        return TIERCE_E_ARGUMENT;
    size_t bytes = separator_count * sizeof(*tokens), segments = 0, start = 0;
    bool is_open = false; /* a separator precedes */
    for (size_t i = 0; separator_count <= count && i <= count - separator_count;) {
        if (tokens[i] != separator[0] || memcmp(tokens + i, separator, bytes) != 0) {
            i++;
            continue;
        }
        if (is_open && i > start) {
            if (segments == room)
                return TIERCE_E_LIMIT;
            out[segments++] = (struct tierce__segment){(uint32_t)start, (uint32_t)i};
        }
        i += separator_count;
        start = i;
        is_open = true;
    }
    return (int64_t)segments;
}

size_t tierce__segments_check(const struct tierce__segment *segments, size_t count, size_t tokens)
{
    size_t i = 0, end = 0;
    for (; i < count; i++) {
        if (segments[i].start < end || segments[i].end <= segments[i].start ||
            segments[i].end > tokens)
            break;
        end = segments[i].end;
    }
    return i;
}

struct plan {
    struct tierce__blend_span *spans;
    size_t count;
    uint32_t end; /* of the last span */
};

/* A span up to `end`; NULL if the plan is there already. */
static struct tierce__blend_span *extend(struct plan *plan, size_t end,
                                         enum tierce__blend_source source)
{
    if (end <= plan->end)
        return NULL;
    struct tierce__blend_span *span = &plan->spans[plan->count++];
    *span = (struct tierce__blend_span){.start = plan->end, .end = (uint32_t)end, .source = source};
    plan->end = span->end;
    return span;
}

size_t tierce__blend_plan(struct tierce__blend_span *out, size_t tokens, size_t prefix,
                          uint32_t lead, const struct tierce__segment *segments,
                          const uint32_t *found, size_t count)
{
    TIERCE_ASSERT(tokens <= UINT32_MAX);
    TIERCE_DASSERT(tierce__segments_check(segments, count, tokens) == count);
    size_t last = tokens > 0 ? tokens - 1 : 0;
    struct plan plan = {.spans = out};
    (void)extend(&plan, prefix < last ? prefix : last, TIERCE__BLEND_PREFIX);
    for (size_t i = 0; i < count; i++) {
        TIERCE_DASSERT(found[i] <= segments[i].end - segments[i].start);
        size_t end = segments[i].start + (size_t)found[i];
        end = end < last ? end : last;
        if (end <= segments[i].start || end <= plan.end)
            continue;
        (void)extend(&plan, segments[i].start, TIERCE__BLEND_FRESH);
        struct tierce__blend_span *span = extend(&plan, end, TIERCE__BLEND_REUSED);
        span->segment = (uint32_t)i;
        span->at = lead + (span->start - segments[i].start);
        span->delta = (int64_t)span->start - span->at;
    }
    (void)extend(&plan, tokens, TIERCE__BLEND_FRESH);
    TIERCE_DASSERT(plan.count <= TIERCE__BLEND_SPANS(count) && plan.end == tokens);
    return plan.count;
}
