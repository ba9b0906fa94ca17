/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/prometheus.h"
#include "base/assert.h"

#include <stdio.h>
#include <string.h>

static void put_name(struct tierce__line *line, const struct tierce__metric *metric)
{
    tierce__line_put(line, "tierce_");
    for (const char *p = metric->name; *p != '\0'; p++)
        tierce__line_put_bytes(line, *p == '.' ? "_" : p, 1);
    if (metric->is_counter)
        tierce__line_put(line, "_total");
}

static void put_value(struct tierce__line *line, const char *value)
{
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\')
            tierce__line_put(line, "\\");
        tierce__line_put_bytes(line, *value == '\n' ? " " : value, 1);
    }
}

static void put_help(struct tierce__prometheus *text, const struct tierce__metric *metric,
                     const char *type)
{
    struct tierce__line *line = &text->line;
    if (text->name != NULL && strcmp(text->name, metric->name) == 0)
        return;
    tierce__line_put(line, "# HELP ");
    put_name(line, metric);
    tierce__line_put(line, " ");
    tierce__line_put(line, metric->help);
    tierce__line_put(line, "\n# TYPE ");
    put_name(line, metric);
    tierce__line_put(line, " ");
    tierce__line_put(line, type);
    tierce__line_put(line, "\n");
    text->name = metric->name;
}

/* `le` is the bound of a histogram's bucket, or NULL. */
static void put_tags(struct tierce__line *line, const struct tierce__metric *metric, const char *le)
{
    const char *between = "{";
    for (size_t i = 0; i < metric->tag_count; i++) {
        tierce__line_put(line, between);
        tierce__line_put(line, metric->tags[i].key);
        tierce__line_put(line, "=\"");
        put_value(line, metric->tags[i].value);
        tierce__line_put(line, "\"");
        between = ",";
    }
    if (le != NULL) {
        tierce__line_put(line, between);
        tierce__line_put(line, "le=\"");
        tierce__line_put(line, le);
        tierce__line_put(line, "\"");
        between = ",";
    }
    tierce__line_put(line, *between == ',' ? "} " : " ");
}

/* Whole numbers, so that no locale can write them otherwise and no digit is lost. */
static void seconds_text(char text[32], uint64_t ns)
{
    snprintf(text, 32, "%llu.%09llu", (unsigned long long)(ns / 1000000000u),
             (unsigned long long)(ns % 1000000000u));
}

/* A rate of a counter that is cut to whole seconds would be 0 for minutes. */
static void put_counter(struct tierce__line *line, double value)
{
    char text[32];
    int64_t whole = (int64_t)value;
    tierce__line_put_int(line, whole);
    double rest = value - (double)whole;
    if (rest <= 0)
        return;
    seconds_text(text, (uint64_t)(rest * 1e9));
    tierce__line_put(line, text + 1); /* behind the 0 */
}

void tierce__prometheus_put(struct tierce__prometheus *text, const struct tierce__metric *metric)
{
    struct tierce__line *line = &text->line;
    TIERCE_DASSERT(!metric->is_counter || metric->value >= 0);
    put_help(text, metric, metric->is_counter ? "counter" : "gauge");
    put_name(line, metric);
    put_tags(line, metric, NULL);
    if (metric->is_counter)
        put_counter(line, metric->value);
    else
        tierce__line_put_double(line, metric->value);
    tierce__line_put(line, "\n");
}

static void put_sample(struct tierce__line *line, const struct tierce__metric *metric,
                       const char *suffix, const char *le)
{
    put_name(line, metric);
    tierce__line_put(line, suffix);
    put_tags(line, metric, le);
}

static void put_bucket(struct tierce__line *line, const struct tierce__metric *metric,
                       uint64_t bound_ns, uint64_t count)
{
    char le[32];
    seconds_text(le, bound_ns);
    put_sample(line, metric, "_bucket", le);
    tierce__line_put_int(line, (int64_t)count);
    tierce__line_put(line, "\n");
}

void tierce__prometheus_put_latency(struct tierce__prometheus *text,
                                    const struct tierce__metric *metric,
                                    const struct tierce__latency *latency)
{
    struct tierce__line *line = &text->line;
    struct tierce__metric plain = *metric;
    plain.is_counter = false; /* no "_total" behind the name */
    put_help(text, &plain, "histogram");
    uint64_t below = 0;
    for (size_t i = 0; i < TIERCE__LATENCY_BUCKETS; i++) {
        below += atomic_load_explicit(&latency->counts[i], memory_order_relaxed);
        if (i + 1 < TIERCE__LATENCY_BUCKETS)
            put_bucket(line, &plain, tierce__latency_bound_ns(i), below);
    }
    put_sample(line, &plain, "_bucket", "+Inf");
    tierce__line_put_int(line, (int64_t)below);
    tierce__line_put(line, "\n");
    put_sample(line, &plain, "_sum", NULL);
    char sum[32];
    seconds_text(sum, atomic_load_explicit(&latency->sum_ns, memory_order_relaxed));
    tierce__line_put(line, sum);
    tierce__line_put(line, "\n");
    put_sample(line, &plain, "_count", NULL);
    tierce__line_put_int(line, (int64_t)below);
    tierce__line_put(line, "\n");
}

char *tierce__prometheus_end(struct tierce__prometheus *text, size_t *bytes)
{
    if (text->line.failed)
        tierce__line_clear(&text->line);
    char *page = text->line.text;
    *bytes = text->line.bytes;
    *text = (struct tierce__prometheus){0};
    return page;
}
