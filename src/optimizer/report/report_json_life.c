/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/report_private.h"

/* ---- over time ------------------------------------------------------------------------------- */

static void write_slices(struct tierce__json_write *json, const char *name, size_t offset,
                         const struct tierce__timeline *timeline,
                         const struct tierce__timeline_line *line)
{
    tierce__json_write_open(json, name, '[');
    for (uint32_t i = 0; i < timeline->slice_count; i++)
        tierce__json_write_count(
            json, NULL, *(const uint64_t *)(const void *)((const char *)&line->slices[i] + offset));
    tierce__json_write_close(json, ']');
}

static void write_line(struct tierce__json_write *json, const struct tierce__timeline *timeline,
                       const struct tierce__timeline_line *line)
{
    static const struct {
        const char *name;
        size_t offset;
    } members[] = {
        {"blocks", offsetof(struct tierce__timeline_slice, blocks)},
        {"hits", offsetof(struct tierce__timeline_slice, hits)},
        {"stored", offsetof(struct tierce__timeline_slice, stored)},
        {"evicted", offsetof(struct tierce__timeline_slice, evicted)},
        {"expired", offsetof(struct tierce__timeline_slice, expired)},
        {"used", offsetof(struct tierce__timeline_slice, used)},
    };
    const struct tierce__sim_point *point = &line->point;
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "policy", point->cache->name);
    if (point->capacity == TIERCE__CAPACITY_UNLIMITED)
        tierce__json_write_text(json, "capacity", NULL);
    else
        tierce__json_write_count(json, "capacity", point->capacity);
    for (size_t m = 0; m < sizeof(members) / sizeof(members[0]); m++)
        write_slices(json, members[m].name, members[m].offset, timeline, line);
    tierce__json_write_close(json, '}');
}

void tierce__report_json_timeline(struct tierce__json_write *json,
                                  const struct tierce__report *report)
{
    const struct tierce__timeline *timeline = report->timeline;
    if (timeline == NULL)
        return;
    char match[TIERCE__MATCH_TEXT_BYTES];
    tierce__match_print(&report->timeline_match, match);
    tierce__json_write_open(json, "timeline", '{');
    tierce__json_write_text(json, "match", match);
    tierce__json_write_signed(json, "start_us", timeline->start_us);
    tierce__json_write_count(json, "slice_us", timeline->slice_us);
    tierce__json_write_count(json, "slices", timeline->slice_count);
    tierce__json_write_open(json, "lines", '[');
    for (size_t i = 0; i < timeline->line_count; i++)
        write_line(json, timeline, &timeline->lines[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

/* ---- how blocks live ------------------------------------------------------------------------- */

static void write_histogram(struct tierce__json_write *json, const char *name,
                            const struct tierce__histogram *histogram)
{
    uint32_t length = tierce__histogram_length(histogram);
    tierce__json_write_open(json, name, '{');
    tierce__json_write_count(json, "count", histogram->count);
    tierce__json_write_count(json, "largest", histogram->largest);
    tierce__json_write_number(json, "sum", histogram->sum);
    tierce__json_write_open(json, "bins", '[');
    for (uint32_t i = 0; i < length; i++)
        tierce__json_write_count(json, NULL, histogram->bins[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

static void write_node(struct tierce__json_write *json, const struct tierce__life_node *node)
{
    tierce__json_write_open(json, NULL, '{');
    if (node->parent == TIERCE__LIFE_NO_PARENT)
        tierce__json_write_text(json, "parent", NULL);
    else
        tierce__json_write_count(json, "parent", node->parent);
    tierce__json_write_count(json, "instance", node->instance);
    tierce__json_write_count(json, "depth", node->depth);
    tierce__json_write_count(json, "blocks", node->blocks);
    tierce__json_write_count(json, "children", node->children);
    tierce__json_write_count(json, "requests", node->requests);
    tierce__json_write_signed(json, "first_us", node->first_us);
    tierce__json_write_signed(json, "last_us", node->last_us);
    tierce__json_write_count(json, "tokens", node->tokens);
    tierce__json_write_close(json, '}');
}

void tierce__report_json_life(struct tierce__json_write *json, const struct tierce__report *report)
{
    const struct tierce__life *life = report->life;
    if (life == NULL)
        return;
    tierce__json_write_open(json, "life", '{');
    tierce__json_write_count(json, "uses", life->uses);
    tierce__json_write_count(json, "reuses", life->reuses);
    tierce__json_write_count(json, "stored", life->stored);
    tierce__json_write_count(json, "dead", life->dead);
    write_histogram(json, "distance", &life->distance);
    write_histogram(json, "gap_us", &life->gap_us);
    write_histogram(json, "uses_of", &life->uses_of);
    write_histogram(json, "span_us", &life->span_us);
    tierce__json_write_open(json, "nodes", '[');
    for (size_t i = 0; i < life->node_count; i++)
        write_node(json, &life->nodes[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static void write_tier(struct tierce__json_write *json, const struct tierce__tiers_opts *opts,
                       const struct tierce__tier_spec *spec,
                       const struct tierce__tier_result *result)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "name", spec->name);
    tierce__json_write_text(json, "policy", spec->policy != NULL ? spec->policy->name : NULL);
    if (spec->policy == NULL)
        tierce__json_write_text(json, "capacity", NULL);
    else
        tierce__json_write_count(json, "capacity", spec->capacity);
    tierce__json_write_bool(json, "in_bytes", opts->in_bytes);
    tierce__json_write_count(json, "asked", result->asked);
    tierce__json_write_count(json, "hits", result->hits);
    tierce__json_write_count(json, "loads", result->loads);
    tierce__json_write_count(json, "read_blocks", result->read_blocks);
    tierce__json_write_count(json, "read_bytes", result->read_bytes);
    tierce__json_write_count(json, "written_blocks", result->written_blocks);
    tierce__json_write_count(json, "written_bytes", result->written_bytes);
    tierce__json_write_count(json, "refused", result->refused);
    tierce__json_write_count(json, "evicted", result->evicted);
    tierce__json_write_count(json, "expired", result->expired);
    tierce__json_write_count(json, "used_max", result->used_max);
    tierce__json_write_number(json, "read_s", result->read_s);
    tierce__json_write_number(json, "write_s", result->write_s);
    tierce__json_write_number(json, "worn", result->worn);
    tierce__json_write_count(json, "waits", result->waits);
    tierce__json_write_number(json, "wait_s", result->wait_s);
    tierce__json_write_number(json, "queue_max_s", result->queue_max_s);
    tierce__json_write_close(json, '}');
}

static void write_loads(struct tierce__json_write *json, const struct tierce__tiers_result *result,
                        const struct tierce__report_tiers *tiers)
{
    const struct tierce__histogram *times = &result->load_ns;
    double count = times->count > 0 ? (double)times->count : 1;
    tierce__json_write_open(json, "load", '{');
    tierce__json_write_count(json, "loads", result->loads);
    tierce__json_write_number(json, "mean_s", times->sum / count / 1e9);
    tierce__json_write_number(json, "p50_s", (double)tiers->load_ns[0] / 1e9);
    tierce__json_write_number(json, "p90_s", (double)tiers->load_ns[1] / 1e9);
    tierce__json_write_number(json, "p99_s", (double)tiers->load_ns[2] / 1e9);
    tierce__json_write_close(json, '}');
}

void tierce__report_json_tiers(struct tierce__json_write *json, const struct tierce__report *report)
{
    static const char *const writes[] = {"write-all", "waterfall"};
    static const char *const promotes[] = {"into the first", "into all faster", "none"};
    const struct tierce__report_tiers *tiers = report->tiers;
    if (tiers == NULL)
        return;
    const struct tierce__tiers_result *result = tiers->result;
    tierce__json_write_open(json, "tiers", '{');
    tierce__json_write_text(json, "writes", writes[tiers->opts->writes]);
    tierce__json_write_text(json, "promote", promotes[tiers->opts->promote]);
    tierce__json_write_count(json, "requests", result->requests);
    tierce__json_write_count(json, "blocks", result->blocks);
    tierce__json_write_count(json, "internal_blocks", result->internal_blocks);
    tierce__json_write_count(json, "hits", result->hits);
    tierce__json_write_count(json, "failed", result->failed);
    tierce__json_write_count(json, "not_stored", result->not_stored);
    write_loads(json, result, tiers);
    tierce__json_write_open(json, "tiers", '[');
    for (size_t i = 0; i < result->tier_count; i++)
        write_tier(json, tiers->opts, &tiers->opts->tiers[i], &result->tiers[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}
