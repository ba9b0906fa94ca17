/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/workers_page.h"

#include "base/clock.h"
#include "manager/api/grant.h"

enum { WORKERS_MAX = 1000 };

static void put_worker(struct tierce__json_write *json, const struct tierce__directory_about *about,
                       uint64_t now_ns)
{
    uint64_t silent_ns = now_ns > about->seen_ns ? now_ns - about->seen_ns : 0;
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "name", about->name);
    tierce__json_write_text(json, "group", about->group);
    tierce__json_write_text(json, "models", about->models);
    tierce__json_write_text(json, "transfer_address", about->address);
    tierce__json_write_bool(json, "transfer_tls", about->uses_tls);
    tierce__json_write_text(json, "zone", about->zone);
    tierce__json_write_count(json, "keys", about->keys);
    tierce__json_write_open(json, "tier_keys", '[');
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_TIERS_MAX; i++)
        tierce__json_write_count(json, NULL, about->tier_keys[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_count(json, "load", about->load);
    tierce__json_write_count(json, "heard_ms", silent_ns / TIERCE__MS_NS);
    tierce__json_write_count(json, "gaps", about->gaps);
    tierce__json_write_count(json, "left_out", about->left_out);
    tierce__json_write_bool(json, "is_synced", about->is_synced);
    tierce__json_write_bool(json, "is_complete", about->is_whole);
    tierce__json_write_close(json, '}');
}

void tierce__workers_page_put(struct tierce__json_write *json, struct tierce__manager *manager,
                              const struct tierce__grant *grant)
{
    struct tierce__directory *directory = tierce__holdings_directory(manager->holdings);
    struct tierce__directory_about about;
    uint64_t now_ns = tierce__now_ns();
    size_t count = 0;
    tierce__json_write_open(json, "workers", '[');
    for (uint32_t from = 0; tierce__directory_next(directory, &from, &about);) {
        if (!tierce__grant_has_group(grant, about.group))
            continue;
        if (count++ < WORKERS_MAX)
            put_worker(json, &about, now_ns);
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_count(json, "worker_count", count);
}
