/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/curves.h"

#include "base/assert.h"
#include "base/json/json_write.h"
#include "manager/pilot/gain.h"

/*
 *   {"header": {"status": {"code": "OK"}},
 *    "groups":    [{"name", "bytes" (that it may hold: pilot/gain.h), "hit_ratio" (at them),
 *                   "next_gib_hit_ratio" and "next_gib_tokens_per_second" (that another GiB would
 *                   add), CURVE}]
 *    "instances": [{"id", "group", CURVE}]}
 *
 * CURVE is "found_ratio" (of the tokens looked up, in fact), "tokens_per_second" (looked up),
 * "seconds" (of the window), "sampled_keys", "is_warm" (the sample is complete), "reach_bytes"
 * (hits at larger capacities were not seen; 0: no limit), and
 * "points": [[bytes, hit ratio], ...], from the first capacity with hits to the last that adds
 * some; above it, the ratio stays the same. Ratios are null if nothing was looked up in the window.
 * Groups and instances that are not followed (ghosts.h has limits) are missing.
 */

struct drawing {
    struct tierce__json_write *json;
    struct tierce__manager *manager;
    const struct tierce__catalog *catalog;
    const struct tierce__grant *grant;
};

/* Negative: unknown. */
static void put_known(struct tierce__json_write *json, const char *name, double value)
{
    if (value < 0) {
        tierce__json_write_text(json, name, NULL);
        return;
    }
    tierce__json_write_name(json, name);
    tierce__line_put_double(json->line, value);
}

static void put_point(struct tierce__json_write *json, double bytes, double ratio)
{
    TIERCE_DASSERT(bytes >= 0 && ratio >= 0);
    tierce__json_write_open(json, NULL, '[');
    tierce__json_write_count(json, NULL, (uint64_t)bytes);
    put_known(json, NULL, ratio);
    tierce__json_write_close(json, ']');
}

/* A bucket without more hits than the one before has no point, unless it begins a slope. */
static void put_points(struct tierce__json_write *json, const struct tierce__ghost_shape *shape)
{
    const double *hits = shape->hits;
    tierce__json_write_open(json, "points", '[');
    for (uint32_t i = 0; i <= TIERCE__GHOST_BUCKETS && shape->asked > 0; i++) {
        bool rose = i > 0 && hits[i] > hits[i - 1];
        bool rises = i < TIERCE__GHOST_BUCKETS && hits[i + 1] > hits[i];
        if (rose || rises)
            put_point(json, tierce__ghost_bucket_bytes(i), hits[i] / shape->asked);
    }
    tierce__json_write_close(json, ']');
}

static void put_curve(struct tierce__json_write *json, const struct tierce__ghost_shape *shape)
{
    bool is_asked = shape->asked > 0, is_long = shape->seconds > 0;
    put_known(json, "found_ratio", is_asked ? shape->found / shape->asked : -1);
    put_known(json, "tokens_per_second", is_long ? shape->asked / shape->seconds : -1);
    put_known(json, "seconds", shape->seconds);
    tierce__json_write_count(json, "sampled_keys", shape->sampled);
    tierce__json_write_bool(json, "is_warm", shape->is_warm);
    tierce__json_write_count(json, "reach_bytes", (uint64_t)shape->reach_bytes);
    put_points(json, shape);
}

static void put_group(const struct drawing *d, const struct tierce__group *group)
{
    struct tierce__ghost_shape shape;
    struct tierce__gain gain;
    if (!tierce__gain_of_group(&gain, &shape, d->manager->ghost, group, d->catalog))
        return;
    tierce__json_write_open(d->json, NULL, '{');
    tierce__json_write_text(d->json, "name", group->name);
    tierce__json_write_count(d->json, "bytes", (uint64_t)tierce__gain_bytes(group, d->catalog));
    put_known(d->json, "hit_ratio", gain.hit_ratio);
    put_known(d->json, "next_gib_hit_ratio", gain.more_hit_ratio);
    put_known(d->json, "next_gib_tokens_per_second", gain.more_tokens_per_second);
    put_curve(d->json, &shape);
    tierce__json_write_close(d->json, '}');
}

static void put_all_groups(const struct drawing *d)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(d->catalog, &count);
    tierce__json_write_open(d->json, "groups", '[');
    for (size_t i = 0; i < count; i++) {
        if (tierce__grant_has_group(d->grant, groups[i].name))
            put_group(d, &groups[i]);
    }
    tierce__json_write_close(d->json, ']');
}

static void put_all_instances(const struct drawing *d)
{
    struct tierce__ghost_shape shape;
    size_t count;
    const struct tierce__instance *all = tierce__catalog_instances(d->catalog, &count);
    tierce__json_write_open(d->json, "instances", '[');
    for (size_t i = 0; i < count; i++) {
        if (!tierce__grant_has_instance(d->grant, all[i].group_name, all[i].id) ||
            !tierce__ghosts_instance(d->manager->ghost, all[i].id, &shape))
            continue;
        tierce__json_write_open(d->json, NULL, '{');
        tierce__json_write_text(d->json, "id", all[i].id);
        tierce__json_write_text(d->json, "group", all[i].group_name);
        put_curve(d->json, &shape);
        tierce__json_write_close(d->json, '}');
    }
    tierce__json_write_close(d->json, ']');
}

/* As in the replies of calls, so that one client can read both. */
static void put_header(struct tierce__json_write *json)
{
    tierce__json_write_open(json, "header", '{');
    tierce__json_write_open(json, "status", '{');
    tierce__json_write_text(json, "code", "OK");
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

void tierce__curves_serve(struct tierce__manager *manager, struct tierce__call *call,
                          const struct tierce__caller *caller)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    struct drawing d = {.json = &json, .manager = manager, .grant = caller->grant};
    d.catalog = tierce__registry_acquire(manager->registry);
    tierce__json_write_open(&json, NULL, '{');
    put_header(&json);
    put_all_groups(&d);
    put_all_instances(&d);
    tierce__json_write_close(&json, '}');
    tierce__registry_release(manager->registry, d.catalog);
    TIERCE_DASSERT(line.failed || json.depth == 0);
    if (line.failed)
        tierce__line_clear(&line);
    tierce__call_reply_heap(call, NULL, line.text, line.bytes);
}
