/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/report_private.h"

#include <tierce/version.h>

/* The shape is described in docs/inside/format/report.md. */
enum { REPORT_VERSION = 1 };

static void write_trace(struct tierce__json_write *json, const struct tierce__report *report)
{
    const struct tierce__recording_totals *t = report->totals;
    tierce__json_write_open(json, "trace", '{');
    tierce__json_write_text(json, "name", report->name);
    tierce__json_write_count(json, "requests", t->requests);
    tierce__json_write_count(json, "blocks", t->blocks);
    tierce__json_write_count(json, "read_blocks", t->read_blocks);
    tierce__json_write_count(json, "internal_blocks", t->internal_blocks);
    tierce__json_write_count(json, "distinct", t->distinct);
    tierce__json_write_count(json, "longest", t->longest);
    tierce__json_write_signed(json, "first_us", t->first_us);
    tierce__json_write_signed(json, "last_us", t->last_us);
    tierce__json_write_count(json, "bad_lines", report->bad_lines);
    if (report->block_bytes > 0)
        tierce__json_write_count(json, "block_bytes", report->block_bytes);
    tierce__json_write_open(json, "instances", '[');
    for (uint32_t i = 0; i < report->instance_count; i++)
        tierce__json_write_text(json, NULL, report->instances[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

static const char *kind_name(enum tierce__cache_kind kind)
{
    static const char *const names[] = {
        [TIERCE__CACHE_POLICY] = "policy", [TIERCE__CACHE_INFINITE] = "infinite",
        [TIERCE__CACHE_BELADY] = "belady", [TIERCE__CACHE_ORACLE] = "oracle",
        [TIERCE__CACHE_KVCM] = "kvcm",
    };
    return names[kind];
}

static void write_points(struct tierce__json_write *json, const struct tierce__report_curve *curve)
{
    tierce__json_write_open(json, "capacity", '[');
    for (size_t i = 0; i < curve->count; i++) {
        if (curve->rows[i]->capacity == TIERCE__CAPACITY_UNLIMITED)
            tierce__json_write_text(json, NULL, NULL);
        else
            tierce__json_write_count(json, NULL, curve->rows[i]->capacity);
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_open(json, "hits", '[');
    for (size_t i = 0; i < curve->count; i++)
        tierce__json_write_count(json, NULL, curve->rows[i]->hits);
    tierce__json_write_close(json, ']');
    if (curve->rows[0]->internal_blocks > 0) {
        tierce__json_write_open(json, "internal_hits", '[');
        for (size_t i = 0; i < curve->count; i++)
            tierce__json_write_count(json, NULL, curve->rows[i]->internal_hits);
        tierce__json_write_close(json, ']');
    }
    if (!curve->rows[0]->is_replayed)
        return;
    tierce__json_write_open(json, "evicted", '[');
    for (size_t i = 0; i < curve->count; i++)
        tierce__json_write_count(json, NULL, curve->rows[i]->evicted);
    tierce__json_write_close(json, ']');
}

static void write_exact(struct tierce__json_write *json, const struct tierce__report_curve *curve)
{
    uint64_t capacities[TIERCE__REPORT_EXACT_MAX];
    size_t count = tierce__report_exact(capacities, curve);
    if (count == 0)
        return;
    tierce__json_write_open(json, "exact", '{');
    tierce__json_write_open(json, "capacity", '[');
    for (size_t i = 0; i < count; i++)
        tierce__json_write_count(json, NULL, capacities[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_open(json, "hits", '[');
    for (size_t i = 0; i < count; i++)
        tierce__json_write_count(json, NULL, tierce__report_exact_hits(curve, capacities[i]));
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

static void write_curves(struct tierce__json_write *json, const struct tierce__report *report,
                         const struct tierce__report_curves *curves)
{
    tierce__json_write_open(json, "curves", '[');
    for (size_t i = 0; i < curves->count; i++) {
        const struct tierce__sweep_row *row = curves->curves[i].rows[0];
        char label[TIERCE__REPORT_LABEL_BYTES], match[TIERCE__MATCH_TEXT_BYTES];
        tierce__report_label(label, curves, i);
        tierce__match_print(&row->match, match);
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "label", label);
        tierce__json_write_text(json, "policy", row->cache->name);
        tierce__json_write_text(json, "kind", kind_name(row->cache->kind));
        tierce__json_write_text(json, "order",
                                !row->has_order                   ? NULL
                                : row->order == TIERCE__TOUCH_REV ? "rev"
                                                                  : "fwd");
        tierce__json_write_text(json, "match", match);
        tierce__json_write_count(json, "requests", row->requests);
        tierce__json_write_count(json, "blocks", row->blocks);
        if (row->internal_blocks > 0)
            tierce__json_write_count(json, "internal_blocks", row->internal_blocks);
        write_points(json, &curves->curves[i]);
        write_exact(json, &curves->curves[i]);
        tierce__report_json_curve_money(json, report, &curves->curves[i]);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}

int tierce__report_json(FILE *file, const struct tierce__report *report)
{
    struct tierce__json_write json = {.file = file, .is_html = true};
    struct tierce__report_curves curves;
    int rc = tierce__report_curves(&curves, report->sweep);
    if (rc < 0)
        return rc;
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_count(&json, "report", REPORT_VERSION);
    tierce__json_write_text(&json, "tierce", TIERCE_VERSION);
    tierce__json_write_text(&json, "unit", report->sweep->in_bytes ? "bytes" : "blocks");
    write_trace(&json, report);
    write_curves(&json, report, &curves);
    tierce__report_json_economy(&json, report);
    tierce__report_json_trust(&json, report);
    tierce__report_json_timeline(&json, report);
    tierce__report_json_life(&json, report);
    tierce__report_json_tiers(&json, report);
    tierce__json_write_close(&json, '}');
    tierce__report_curves_clear(&curves);
    return 0;
}
