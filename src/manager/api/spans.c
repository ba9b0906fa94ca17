/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/spans.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json_write.h"

static _Thread_local struct tierce__spans *current;

void tierce__spans_begin(struct tierce__spans *spans, uint64_t began_ns)
{
    TIERCE_ASSERT(current == NULL);
    spans->began_ns = began_ns;
    spans->open = -1;
    spans->count = spans->left_out = 0;
    TIERCE_DASSERT(spans->began_ns <= tierce__now_ns());
    current = spans;
}

int tierce__span_open(const char *name)
{
    struct tierce__spans *spans = current;
    if (spans == NULL)
        return -1;
    if (spans->count == TIERCE__SPANS_MAX) {
        spans->left_out++;
        return -1;
    }
    TIERCE_ASSERT(spans->open < spans->count && spans->count < TIERCE__SPANS_MAX);
    int span = spans->count++;
    spans->spans[span] =
        (struct tierce__span){.name = name, .parent = spans->open, .began_ns = tierce__now_ns()};
    spans->open = span;
    return span;
}

void tierce__span_close(int span)
{
    struct tierce__spans *spans = current;
    if (spans == NULL || span < 0)
        return;
    TIERCE_ASSERT(spans->open == span);
    TIERCE_ASSERT(span < spans->count);
    spans->spans[span].took_ns = tierce__now_ns() - spans->spans[span].began_ns;
    spans->open = spans->spans[span].parent;
}

/* Opens {"span_time_us":..,"NAME":[ */
static void open_span(struct tierce__json_write *json, uint64_t took_ns, const char *name)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_count(json, "span_time_us", took_ns / 1000);
    tierce__json_write_open(json, name, '[');
}

/* Closes the span and those around it, up to `above`, whose list remains open. */
static void close_spans(struct tierce__json_write *json, const struct tierce__spans *spans,
                        int span, int above)
{
    for (; span != above; span = spans->spans[span].parent) {
        TIERCE_DASSERT(span >= 0 && span < spans->count);
        tierce__json_write_close(json, ']');
        tierce__json_write_close(json, '}');
    }
}

/* Spans are in the order of opening: a tree, written without recursion. */
static void put_spans(const struct tierce__spans *spans, struct tierce__json_write *json)
{
    int above = -1; /* the span whose list is open */
    for (int i = 0; i < spans->count; i++) {
        const struct tierce__span *span = &spans->spans[i];
        TIERCE_DASSERT(span->parent < i);
        close_spans(json, spans, above, span->parent);
        open_span(json, span->took_ns, span->name);
        above = i;
    }
    close_spans(json, spans, above, -1);
}

void tierce__spans_end(struct tierce__spans *spans, const char *trace_id, struct tierce__line *line)
{
    struct tierce__json_write json = {.line = line};
    struct tierce__line name = {0};
    TIERCE_ASSERT(current == spans);
    while (spans->open >= 0)
        tierce__span_close(spans->open);
    current = NULL;
    tierce__line_put(&name, trace_id);
    tierce__line_put(&name, ":");
    tierce__line_put(&name, trace_id);
    tierce__line_put_bytes(&name, "", 1);
    open_span(&json, tierce__now_ns() - spans->began_ns, name.failed ? "" : name.text);
    tierce__line_clear(&name);
    put_spans(spans, &json);
    tierce__json_write_close(&json, ']');
    if (spans->left_out > 0)
        tierce__json_write_signed(&json, "left_out", spans->left_out);
    tierce__json_write_close(&json, '}');
}
