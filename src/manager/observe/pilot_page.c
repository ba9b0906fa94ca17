/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/pilot_page.h"

#include "base/assert.h"
#include "base/json/json_write.h"
#include "manager/pilot/autopilot.h"
#include "manager/reclaim/expiry.h"

/*
 *   {"header": {"status": {"code": "OK"}},
 *    "groups": [{"name", "autopilot" (off, advise or act), "is_followed" (it has a curve),
 *                "capacity", "policy", "policies" (that may be chosen), "ttl_seconds" (0: none),
 *                "ttl_min_seconds", "ttl_max_seconds", "min_bytes", "max_bytes"}],
 *    "steps":  [{"step", "at_us", "kind", "from", "to", "quota" (a type of storage; "group": the
 *                groups' own), "bytes", "policy_from", "policy_to", "ttl_seconds_from",
 *                "ttl_seconds_to", "state" (open, kept, undone, not undone, not judged, advised),
 *                "changed_us", "expected_tokens_per_second",
 *                "measured_tokens_per_second" (null: not yet)}]}
 *
 * A step of a policy or time to live has "kind": "setting", no bytes, and policy_from, policy_to,
 * ttl_seconds_from and ttl_seconds_to (0: none) of the group `to`. In others, with "kind": "quota",
 * these are "" and 0.
 *
 * Steps are sorted by the receiving group; in each group the oldest is the first. A step's giver is
 * "" for a caller whose scope does not hold it.
 */

static void put_number(struct tierce__json_write *json, const char *name, double value)
{
    tierce__json_write_name(json, name);
    tierce__line_put_double(json->line, value);
}

static void put_group(struct tierce__json_write *json, const struct tierce__manager *manager,
                      const struct tierce__group *group)
{
    enum tierce__autopilot_mode mode = tierce__autopilot_mode(manager->autopilot, group);
    struct tierce__ghost_shape shape;
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "name", group->name);
    tierce__json_write_text(json, "autopilot", tierce__autopilot_mode_name(mode));
    tierce__json_write_bool(json, "is_followed",
                            tierce__ghosts_group(manager->ghost, group->name, &shape));
    tierce__json_write_signed(json, "capacity", group->capacity_bytes);
    tierce__json_write_text(json, "policy", tierce__reclaim_policy_name(group->reclaim_policy));
    tierce__json_write_text(json, "policies", group->autopilot_policies);
    tierce__json_write_signed(json, "ttl_seconds", tierce__group_ttl_us(group) / 1000000);
    tierce__json_write_signed(json, "ttl_min_seconds", group->ttl_min_s);
    tierce__json_write_signed(json, "ttl_max_seconds", group->ttl_max_s);
    tierce__json_write_signed(json, "min_bytes", group->min_bytes);
    tierce__json_write_signed(json, "max_bytes", group->max_bytes);
    tierce__json_write_close(json, '}');
}

static void put_setting(struct tierce__json_write *json, const struct tierce__group_step *step)
{
    bool is_setting = step->policy_to != 0;
    tierce__json_write_text(json, "policy_from",
                            is_setting ? tierce__reclaim_policy_name(step->policy_from) : "");
    tierce__json_write_text(json, "policy_to",
                            is_setting ? tierce__reclaim_policy_name(step->policy_to) : "");
    tierce__json_write_signed(json, "ttl_seconds_from", step->ttl_from_s);
    tierce__json_write_signed(json, "ttl_seconds_to", step->ttl_to_s);
}

static void put_step(struct tierce__json_write *json, const struct tierce__group *to,
                     const struct tierce__group_step *step, bool shows_from)
{
    enum tierce__storage_type type = (enum tierce__storage_type)step->quota;
    bool is_measured = step->state == TIERCE__STEP_KEPT || step->state == TIERCE__STEP_UNDONE ||
                       step->state == TIERCE__STEP_STAYS;
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_signed(json, "step", step->id);
    tierce__json_write_signed(json, "at_us", step->at_us);
    tierce__json_write_text(json, "kind", step->policy_to != 0 ? "setting" : "quota");
    tierce__json_write_text(json, "from", shows_from ? step->from : "");
    tierce__json_write_text(json, "to", to->name);
    tierce__json_write_text(
        json, "quota", type == TIERCE__STORAGE_NONE ? "group" : tierce__storage_type_name(type));
    tierce__json_write_signed(json, "bytes", step->bytes);
    put_setting(json, step);
    tierce__json_write_text(json, "state", tierce__step_state_name(step->state));
    tierce__json_write_signed(json, "changed_us", step->changed_us);
    put_number(json, "expected_tokens_per_second", step->expected);
    if (is_measured)
        put_number(json, "measured_tokens_per_second", step->measured);
    else
        tierce__json_write_text(json, "measured_tokens_per_second", NULL);
    tierce__json_write_close(json, '}');
}

static void put_steps(struct tierce__json_write *json, const struct tierce__group *group,
                      const struct tierce__grant *grant)
{
    for (size_t i = 0; i < group->step_count; i++)
        put_step(json, group, &group->steps[i],
                 tierce__grant_has_group(grant, group->steps[i].from));
}

void tierce__pilot_page_put(struct tierce__json_write *json, const struct tierce__manager *manager,
                            const struct tierce__catalog *catalog,
                            const struct tierce__grant *grant)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    tierce__json_write_open(json, "groups", '[');
    for (size_t i = 0; i < count; i++) {
        if (tierce__grant_has_group(grant, groups[i].name))
            put_group(json, manager, &groups[i]);
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_open(json, "steps", '[');
    for (size_t i = 0; i < count; i++) {
        if (tierce__grant_has_group(grant, groups[i].name))
            put_steps(json, &groups[i], grant);
    }
    tierce__json_write_close(json, ']');
}

void tierce__pilot_page_serve(struct tierce__manager *manager, struct tierce__call *call,
                              const struct tierce__caller *caller)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_open(&json, "header", '{');
    tierce__json_write_open(&json, "status", '{');
    tierce__json_write_text(&json, "code", "OK");
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
    tierce__pilot_page_put(&json, manager, catalog, caller->grant);
    tierce__json_write_close(&json, '}');
    tierce__registry_release(manager->registry, catalog);
    TIERCE_DASSERT(line.failed || json.depth == 0);
    if (line.failed)
        tierce__line_clear(&line);
    tierce__call_reply_heap(call, NULL, line.text, line.bytes);
}
