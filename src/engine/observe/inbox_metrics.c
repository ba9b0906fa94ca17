/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/inbox_metrics.h"

#include <stddef.h>
#include <string.h>

#include "engine/engine.h"

static const struct inbox_row {
    const char *field, *metric, *label, *value, *help;
    size_t offset; /* of a uint64_t in struct tierce__inbox_stats */
    bool is_counter;
} rows[] = {
#define TIERCE_INBOX_STAT(field, metric, label, value, is_counter, text)                           \
    {#field, metric, label, value, text, offsetof(struct tierce__inbox_stats, field), is_counter},
#include "engine/handover/inbox_stats.def"
#undef TIERCE_INBOX_STAT
};

static uint64_t value_of(const struct tierce__inbox_stats *stats, const struct inbox_row *row)
{
    uint64_t value;
    memcpy(&value, (const char *)stats + row->offset, sizeof(value));
    return value;
}

bool tierce__inbox_read(struct tierce__inbox_stats *out, const struct tierce__inbox_counts *counts)
{
    if (!atomic_load_explicit(&counts->is_there, memory_order_relaxed))
        return false;
#define TIERCE_INBOX_STAT(field, metric, label, value, is_counter, text)                           \
    out->field = atomic_load_explicit(&counts->field, memory_order_relaxed);
#include "engine/handover/inbox_stats.def"
#undef TIERCE_INBOX_STAT
    return true;
}

void tierce__inbox_metrics(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    struct tierce__inbox_stats stats;
    if (!tierce__inbox_read(&stats, &engine->inbox_counts))
        return;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tierce__metric_tag tag = {rows[i].label, rows[i].value};
        tierce__prometheus_put(text,
                               &(struct tierce__metric){.name = rows[i].metric,
                                                        .help = rows[i].help,
                                                        .is_counter = rows[i].is_counter,
                                                        .value = (double)value_of(&stats, &rows[i]),
                                                        .tags = rows[i].label != NULL ? &tag : NULL,
                                                        .tag_count = rows[i].label != NULL});
    }
}

void tierce__inbox_status(struct tierce_engine *engine, struct tierce__json_write *json)
{
    struct tierce__inbox_stats stats;
    if (!tierce__inbox_read(&stats, &engine->inbox_counts))
        return;
    tierce__json_write_open(json, "inbox", '{');
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tierce__json_write_signed(json, rows[i].field, (int64_t)value_of(&stats, &rows[i]));
    tierce__json_write_close(json, '}');
}
