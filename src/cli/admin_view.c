/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "cli/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The tables of lists whose objects have more fields than a terminal has room for. --json prints
 * all fields.
 */

enum { TEXT_BYTES = 512 };

/* ---- cells ----------------------------------------------------------------------------------- */

static void put_text(struct tierce__line *line, struct tierce__text row, const char *path)
{
    char text[TEXT_BYTES];
    if (tierce__json_get_text(text, sizeof(text), row, path))
        tierce__line_put(line, text);
}

/* Integers of 64 bits are texts in answers. */
static int64_t number_at(struct tierce__text row, const char *path)
{
    char text[32];
    if (tierce__json_get_text(text, sizeof(text), row, path))
        return strtoll(text, NULL, 10);
    return tierce__json_get_int(row, path, 0);
}

static void put_number(struct tierce__line *line, struct tierce__text row, const char *path)
{
    int64_t number = number_at(row, path);
    if (number != 0)
        tierce__line_put_int(line, number);
}

static void put_count(struct tierce__line *line, struct tierce__text row, const char *path)
{
    tierce__line_put_int(line, number_at(row, path));
}

static void put_bytes(struct tierce__line *line, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char text[32];
    double value = (double)bytes;
    size_t unit = 0;
    tierce__format_size(text, sizeof(text), (uint64_t)bytes);
    if (strlen(text) <= 7) { /* a round number of some unit */
        tierce__line_put(line, text);
        return;
    }
    for (; value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        value /= 1024;
    tierce__line_put_format(line, "%.1f%s", value, units[unit]);
}

static void put_size(struct tierce__line *line, struct tierce__text row, const char *path)
{
    int64_t bytes = number_at(row, path);
    if (bytes > 0)
        put_bytes(line, bytes);
}

static void put_list(struct tierce__line *line, struct tierce__text row, const char *path)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(tierce__json_get(row, path));
    for (bool is_first = true; tierce__json_next(&each, &name, &value); is_first = false) {
        if (!is_first)
            tierce__line_put(line, ",");
        put_text(line, value, "");
    }
}

/* The texts of several fields, of which most are empty. */
static void put_texts(struct tierce__line *line, struct tierce__text row, const char *const paths[])
{
    char text[TEXT_BYTES];
    bool is_first = true;
    for (; *paths != NULL; paths++) {
        if (!tierce__json_get_text(text, sizeof(text), row, *paths) || text[0] == '\0')
            continue;
        tierce__line_put_format(line, "%s%s", is_first ? "" : "; ", text);
        is_first = false;
    }
}

/* ---- storages -------------------------------------------------------------------------------- */

/* The places of storages: two fields, the second behind the first. */
static const struct place {
    const char *type, *first, *between, *second;
} places[] = {
    {"nfs", "nfs.root_path", "", ""},
    {"threefs", "threefs.mountpoint", "/", "threefs.root_dir"},
    {"vcnsthreefs", "vcnsthreefs.mountpoint", "/", "vcnsthreefs.root_dir"},
    {"redis", "redis.uri", " ", "redis.key_prefix"},
    {"s3", "s3.bucket", "/", "s3.prefix"},
    {"mooncake", "mooncake.master_service_entry", "", ""},
    {"tair_mem_pool", "tair_mem_pool.domain", "", ""},
    {"tierce", "tierce.nodes.0", " ", "tierce.medium"},
};

static const struct place *place_of(struct tierce__text row)
{
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (tierce__json_value_kind(tierce__json_get(row, places[i].type)) == '{')
            return &places[i];
    }
    return NULL;
}

static void put_type(struct tierce__line *line, struct tierce__text row, const char *path)
{
    const struct place *place = place_of(row);
    (void)path;
    if (place != NULL)
        tierce__line_put(line, place->type);
}

/* A URI without the user and the password before its last '@'. */
static const char *without_login(char text[TEXT_BYTES])
{
    char *scheme_end = strstr(text, "://"), *login_end = strrchr(text, '@');
    if (scheme_end == NULL || login_end == NULL || login_end < scheme_end + 3)
        return text;
    memmove(scheme_end + 3, login_end + 1, strlen(login_end + 1) + 1);
    return text;
}

static void put_place(struct tierce__line *line, struct tierce__text row, const char *path)
{
    char text[TEXT_BYTES];
    const struct place *place = place_of(row);
    (void)path;
    if (place == NULL)
        return;
    if (tierce__json_get_text(text, sizeof(text), row, place->first))
        tierce__line_put(line, without_login(text));
    if (place->second[0] != '\0' && tierce__json_get_text(text, sizeof(text), row, place->second) &&
        text[0] != '\0')
        tierce__line_put_format(line, "%s%s", place->between,
                                place->between[0] == '/' && text[0] == '/' ? text + 1 : text);
}

/* The bytes that a node counts, also 0; of other storages nobody counts them here. */
static void put_used(struct tierce__line *line, struct tierce__text row, const char *path)
{
    if (tierce__json_get(row, path).length > 0)
        put_bytes(line, number_at(row, path));
}

/* The time since a node's last sign of life. A node that was never heard of has no version. */
static void put_heard(struct tierce__line *line, struct tierce__text row, const char *path)
{
    char version[64];
    (void)path;
    if (tierce__json_get_text(version, sizeof(version), row, "tierce.version") &&
        version[0] != '\0')
        tierce__line_put_format(line, "%.1f s ago",
                                (double)number_at(row, "tierce.heard_ms") / 1000);
    else if (tierce__json_value_kind(tierce__json_get(row, "tierce")) == '{')
        tierce__line_put(line, "never");
}

/* The state of the last scrub, and the counts that need a person. */
static void put_scrub(struct tierce__line *line, struct tierce__text row, const char *path)
{
    char state[32];
    (void)path;
    if (!tierce__json_get_text(state, sizeof(state), row, "scrub.state") ||
        strcmp(state, "none") == 0)
        return;
    int64_t missing = number_at(row, "scrub.missing_files");
    int64_t orphans = number_at(row, "scrub.orphans");
    tierce__line_put(line, state);
    if (missing > 0)
        tierce__line_put_format(line, ", %lld missing", (long long)missing);
    if (orphans > 0)
        tierce__line_put_format(line, ", %lld orphans", (long long)orphans);
}

static void put_note(struct tierce__line *line, struct tierce__text row, const char *path)
{
    static const char *const paths[] = {"reason", "drain_reason", "warning", "scrub.reason", NULL};
    (void)path;
    put_texts(line, row, paths);
}

static const struct tierce__admin_column storage_columns[] = {
    {"name", put_text, "global_unique_name"},
    {"type", put_type, NULL},
    {"place", put_place, NULL},
    {"status", put_text, "status"},
    {"capacity", put_size, "capacity_bytes"},
    {"used", put_used, "tierce.used_bytes"},
    {"heard", put_heard, NULL},
    {"drain", put_text, "drain"},
    {"scrub", put_scrub, NULL},
    {"note", put_note, NULL},
    {NULL, NULL, NULL},
};

/* ---- groups ---------------------------------------------------------------------------------- */

/* "ST_NFS 10GB, ST_S3 1TB" */
static void put_quotas(struct tierce__line *line, struct tierce__text row, const char *path)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(tierce__json_get(row, path));
    for (bool is_first = true; tierce__json_next(&each, &name, &value); is_first = false) {
        if (!is_first)
            tierce__line_put(line, ", ");
        put_text(line, value, "storage_type");
        tierce__line_put(line, " ");
        put_bytes(line, number_at(value, "capacity"));
    }
}

/* The kind of store of the group's index. */
static void put_index(struct tierce__line *line, struct tierce__text row, const char *path)
{
    char type[32] = "", uri[TEXT_BYTES] = "";
    struct tierce__text store = tierce__json_get(row, path);
    (void)tierce__json_get_text(type, sizeof(type), store, "storage_type");
    (void)tierce__json_get_text(uri, sizeof(uri), store, "storage_uri");
    bool is_local = strcmp(type, "local") == 0;
    tierce__line_put(line, is_local ? (uri[0] == '\0' ? "memory" : "rocksdb") : type);
}

static const struct tierce__admin_column group_columns[] = {
    {"name", put_text, "name"},
    {"storages", put_list, "storage_candidates"},
    {"quota", put_size, "quota.capacity"},
    {"quota by type", put_quotas, "quota.quota_config"},
    {"policy", put_text, "cache_config.reclaim_strategy.reclaim_policy"},
    {"ttl s", put_number, "cache_config.reclaim_strategy.ttl_seconds"},
    {"index", put_index, "cache_config.meta_indexer_config.meta_storage_backend_config"},
    {"autopilot", put_text, "autopilot"},
    {"version", put_number, "version"},
    {"note", put_text, "warning"},
    {NULL, NULL, NULL},
};

/* ---- workers of the directory ---------------------------------------------------------------- */

static void put_contents(struct tierce__line *line, struct tierce__text row, const char *path)
{
    tierce__line_put(line, tierce__json_get_bool(row, path) ? "complete" : "incomplete");
}

static void put_served_at(struct tierce__line *line, struct tierce__text row, const char *path)
{
    put_text(line, row, path);
    if (tierce__json_get_bool(row, "transfer_tls"))
        tierce__line_put(line, " (TLS)");
}

static const struct tierce__admin_column worker_columns[] = {
    {"worker", put_text, "worker"},
    {"group", put_text, "instance_group"},
    {"address", put_served_at, "transfer_address"},
    {"chunks", put_count, "keys"},
    {"memory", put_count, "tier_keys.0"},
    {"disk", put_count, "tier_keys.1"},
    {"load", put_count, "load"},
    {"zone", put_text, "zone"},
    {"models", put_text, "models"},
    {"heard ms ago", put_count, "heard_ms"},
    {"gaps", put_count, "gaps"},
    {"left out", put_count, "left_out"},
    {"contents", put_contents, "is_complete"},
    {NULL, NULL, NULL},
};

const struct tierce__admin_column *tierce__admin_view(const char *rpc)
{
    TIERCE_ASSERT(rpc != NULL);
    return strcmp(rpc, "listStorage") == 0         ? storage_columns
           : strcmp(rpc, "listInstanceGroup") == 0 ? group_columns
           : strcmp(rpc, "listWorkers") == 0       ? worker_columns
                                                   : NULL;
}
