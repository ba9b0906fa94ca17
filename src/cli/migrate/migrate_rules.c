/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/migrate/migrate.h"
#include "engine/engine_config.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXTRA        "extra_config."
#define ADAPTER      TIERCE__MIGRATE_ADAPTER
#define FLAG         "--"
#define MULTIPROCESS "lmcache.mp."
#define KEYS_MAX     256u

/* Values beyond this are refused; a uint64_t holds the others, in milliseconds or bytes. */
#define NUMBER_MAX 1e18

bool tierce__migrate_is_off(const char *value)
{
    bool flag;
    return value == NULL || *value == '\0' || strcmp(value, "0.0") == 0 ||
           (tierce__parse_bool(&flag, value) && !flag);
}

const char *tierce__migrate_value(const struct tierce__migration *migration, const char *name)
{
    const struct tierce__migrate_entry *entry = tierce__migrate_find(migration, name);
    return entry == NULL || tierce__migrate_is_off(entry->value) ? NULL : entry->value;
}

void tierce__migrate_end(struct tierce__migrate_entry *entry, enum tierce__migrate_outcome outcome,
                         const char *note, ...)
{
    va_list ap;
    va_start(ap, note);
    entry->outcome = outcome;
    vsnprintf(entry->note, sizeof(entry->note), note, ap);
    va_end(ap);
}

static bool is_printed(const struct tierce__migration *migration, const char *param)
{
    for (size_t i = 0; i < migration->count; i++) {
        const struct tierce__migrate_entry *entry = &migration->entries[i];
        for (size_t j = 0; j < entry->param_count; j++) {
            if (strcmp(entry->params[j], param) == 0)
                return true;
        }
    }
    return false;
}

void tierce__migrate_set(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                         const char *param, const char *value)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    TIERCE_ASSERT(entry->param_count < TIERCE__MIGRATE_PARAMS_MAX);
    if (tierce__engine_config_set(migration->config, param, value, entry->name, why) != 0) {
        /* The message begins with the source, which the output of this command has already. */
        size_t length = strlen(entry->name);
        bool has_source = strncmp(why, entry->name, length) == 0 && why[length] == ':';
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED, "%s.",
                            has_source ? why + length + 1 + (why[length + 1] == ' ') : why);
        return;
    }
    entry->outcome = TIERCE__MIGRATE_MOVED;
    if (!is_printed(migration, param))
        entry->params[entry->param_count++] = param;
}

/* ---- rules of rows, for values that are not null */

static void refuse_value(struct tierce__migrate_entry *entry, const char *wanted)
{
    tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED, "The value is not %s.", wanted);
}

/* A number >= 0, as Python writes it. */
static bool read_number(double *out, const char *text)
{
    char *end;
    if (text == NULL || (!isdigit((unsigned char)*text) && *text != '.'))
        return false;
    double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value) || value > NUMBER_MAX)
        return false;
    *out = value;
    return true;
}

static void rule_none(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    (void)migration;
    tierce__migrate_end(entry, TIERCE__MIGRATE_NONE, "%s", "");
}

static void rule_refuse(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    (void)migration;
    tierce__migrate_end(
        entry, tierce__migrate_is_off(entry->value) ? TIERCE__MIGRATE_OFF : TIERCE__MIGRATE_REFUSED,
        "%s", "");
}

/* A number of which 0 is not off. */
static void rule_limit(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    (void)migration;
    tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED, "%s", "");
}

/* Refuses "yes" and "on" as a text: LMCache's choice of false is hardly meant. */
static bool read_flag(bool *out, const struct tierce__migrate_entry *entry)
{
    bool value;
    if (!tierce__parse_bool(&value, entry->value))
        return false;
    if (value && entry->is_text && strcasecmp(entry->value, "true") != 0 &&
        strcmp(entry->value, "1") != 0)
        return false;
    *out = value;
    return true;
}

static void set_flag(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                     bool is_inverted)
{
    bool value;
    if (!read_flag(&value, entry))
        refuse_value(entry, "true or false");
    else
        tierce__migrate_set(migration, entry, entry->key->target,
                            value != is_inverted ? "true" : "false");
}

static void rule_flag(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    set_flag(migration, entry, false);
}

static void rule_discard(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    set_flag(migration, entry, true);
}

static void rule_count(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    tierce__migrate_set(migration, entry, entry->key->target, entry->value);
}

static void rule_seconds(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    double seconds;
    char text[40];
    if (!read_number(&seconds, entry->value) || seconds > NUMBER_MAX / 1000) {
        refuse_value(entry, "a number of seconds");
        return;
    }
    snprintf(text, sizeof(text), "%llums", (unsigned long long)(seconds * 1000 + 0.5));
    tierce__migrate_set(migration, entry, entry->key->target, text);
}

void tierce__migrate_gib(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                         const char *param, uint64_t ranks)
{
    double gib;
    char text[40];
    if (!read_number(&gib, entry->value)) {
        refuse_value(entry, "a number of GiB");
        return;
    }
    double bytes = gib * (double)ranks * 1073741824.0;
    if (bytes > NUMBER_MAX) {
        refuse_value(entry, "a size that a machine has");
        return;
    }
    snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
    tierce__migrate_set(migration, entry, param, text);
}

static void set_memory(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                       uint64_t ranks)
{
    double gib;
    if (read_number(&gib, entry->value) && gib == 0)
        tierce__migrate_end(
            entry, TIERCE__MIGRATE_REFUSED,
            "Tierce requires memory, through which all loads pass: set memory.size, "
            "1 GiB by default.");
    else
        tierce__migrate_gib(migration, entry, "memory.size", ranks);
}

static void rule_memory_size(struct tierce__migration *migration,
                             struct tierce__migrate_entry *entry)
{
    set_memory(migration, entry, migration->ranks);
}

/* All ranks use LMCache's server together. */
static void rule_server_memory(struct tierce__migration *migration,
                               struct tierce__migrate_entry *entry)
{
    set_memory(migration, entry, 1);
}

/* The GiB of LMCache's disk tier; 0: it has none. */
static double disk_gib(const struct tierce__migration *migration)
{
    double gib;
    return read_number(&gib, tierce__migrate_value(migration, "max_local_disk_size")) ? gib : 0;
}

static void rule_disk(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    char path[1024];
    const char *text = entry->value;
    if (tierce__migrate_is_off(text) || !(disk_gib(migration) > 0)) {
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF,
                            "LMCache has no disk tier without a path and a max_local_disk_size "
                            "above 0, so none is configured.");
        return;
    }
    if (strchr(text, ',') != NULL) {
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED,
                            "Tierce has one store folder. Combine the disks (RAID 0, LVM) and set "
                            "disk.path to a folder there; disk.size is set.");
        return;
    }
    text += strncmp(text, "file://", 7) == 0 ? 7 : 0;
    size_t length = strlen(text);
    while (length > 1 && text[length - 1] == '/')
        length--;
    if (length == 0 || length >= sizeof(path) || strcmp(text, "true") == 0) {
        refuse_value(entry, "the path of a folder");
        return;
    }
    snprintf(path, sizeof(path), "%.*s", (int)length, text);
    tierce__migrate_set(migration, entry, "disk.path", path);
}

static void rule_disk_size(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    double gib;
    if (read_number(&gib, entry->value) &&
        (gib == 0 || tierce__migrate_value(migration, "local_disk") == NULL))
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF,
                            "LMCache has no disk tier with these values.");
    else
        tierce__migrate_gib(migration, entry, "disk.size", migration->ranks);
}

static void rule_policy(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    char name[32] = "";
    if (strlen(entry->value) >= sizeof(name)) {
        refuse_value(entry, "a policy of LMCache: LRU, LFU, FIFO or MRU");
        return;
    }
    for (size_t i = 0; entry->value[i] != '\0'; i++)
        name[i] = (char)tolower((unsigned char)entry->value[i]);
    tierce__migrate_set(migration, entry, "memory.policy", name);
    const char *path = tierce_config_get(migration->config, "disk.path");
    bool has_disk =
        (path != NULL && *path != '\0') ||
        (disk_gib(migration) > 0 && tierce__migrate_value(migration, "local_disk") != NULL);
    if (entry->outcome == TIERCE__MIGRATE_MOVED && has_disk)
        tierce__migrate_set(migration, entry, "disk.policy", name);
}

static void rule_serde(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    (void)migration;
    if (strcmp(entry->value, "naive") == 0 || strcmp(entry->value, "kivi") == 0)
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
    else if (strcmp(entry->value, "cachegen") == 0)
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED,
                            "KV that cachegen has coded is approximate. Measure your model with "
                            "tools/kv_quality.py, then set codec.lossy: cachegen and codec.quality "
                            "(docs/using/operation.md). remote.codec: lossless changes no byte.");
    else
        refuse_value(entry, "naive, kivi or cachegen");
}

static void rule_share(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    if (tierce__migrate_is_off(entry->value))
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
    else if (strchr(entry->value, ',') != NULL)
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED,
                            "Tierce has one share for all layers: set blend.share.");
    else
        tierce__migrate_set(migration, entry, "blend.share", entry->value);
}

static void rule_separator(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    if (*entry->value == '\0')
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
    else
        tierce__migrate_set(migration, entry, "blend.separator", entry->value);
}

static void rule_audit(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    const char *url = tierce__migrate_value(migration, "remote_url");
    if (url == NULL || strncmp(url, "audit://", 8) != 0)
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "LMCache reads it only with audit://.");
    else
        tierce__migrate_end(entry, TIERCE__MIGRATE_MOVED, "It is the store of remote_url.");
}

/* A flag that is set as a value of another parameter, if it is on. */
static void set_if_on(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                      const char *target, const char *value)
{
    bool is_on;
    if (!read_flag(&is_on, entry))
        refuse_value(entry, "true or false");
    else if (!is_on)
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
    else
        tierce__migrate_set(migration, entry, target, value);
}

static void rule_metrics(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    const char *port = tierce__migrate_value(migration, "internal_api_server_port_start");
    set_if_on(migration, entry, "metrics.port", port != NULL ? port : "6999");
}

static void rule_port(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    bool is_on = tierce__migrate_value(migration, "internal_api_server_enabled") != NULL;
    tierce__migrate_end(entry, is_on ? TIERCE__MIGRATE_MOVED : TIERCE__MIGRATE_OFF, "%s",
                        is_on ? "" : "LMCache has no servers without internal_api_server_enabled.");
}

static void rule_wait(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    set_if_on(migration, entry, "timeout.store", "10s");
}

static void rule_fallback(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    if (strcmp(entry->value, "recompute") == 0)
        tierce__migrate_set(migration, entry, "breaker.fallback", "recompute");
    else if (strcmp(entry->value, "local_cpu") == 0)
        tierce__migrate_set(migration, entry, "breaker.fallback", "skip");
    else
        refuse_value(entry, "recompute or local_cpu");
}

/* Names of a source, without its prefix; the last one has no prefix. */
static const struct source {
    const char *prefix;
    const char *why;
} sources[] = {
    {EXTRA,
     "LMCache 0.5.6 does not read this member of extra_config; a plug-in or another version may."},
    {FLAG, "LMCache 0.5.6's server has no such flag."},
    {MULTIPROCESS, "LMCache 0.5.6's connector ignores this key."},
    {"", "LMCache 0.5.6 ignores this key."},
};

static const struct source *source_of(const char *name)
{
    const struct source *source = sources;
    while (strncmp(name, source->prefix, strlen(source->prefix)) != 0)
        source++;
    return source;
}

/* LMCache runs with unknown keys, and only logs those outside extra_config. */
static void rule_unknown(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    const char *known[KEYS_MAX + 1];
    size_t count = 0;
    const struct source *source = source_of(entry->name);
    size_t skip = strlen(source->prefix);
    (void)migration;
    for (const struct tierce__lmcache_key *key = tierce__lmcache_keys; key->name != NULL; key++) {
        if (source_of(key->name) != source || strchr(key->name, '*') != NULL ||
            strncmp(key->name, ADAPTER, strlen(ADAPTER)) == 0)
            continue;
        TIERCE_ASSERT(count < KEYS_MAX);
        known[count++] = key->name + skip;
    }
    known[count] = NULL;
    tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED,
                        "%s The nearest key is \"%s\": correct this one, or delete it.",
                        source->why, tierce__nearest(entry->name + skip, known));
}

/* LMCache's server has the memory of all engines of a host. */
static void rule_shared_node(struct tierce__migration *migration,
                             struct tierce__migrate_entry *entry)
{
    tierce__migrate_set(migration, entry, "node.start", "shared");
}

static void rule_adapter(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    tierce__migrate_adapter(migration, entry);
}

/* The value that LMCache takes without this flag changes nothing. */
static void rule_default(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    (void)migration;
    bool is_default = strcmp(entry->value, "default") == 0;
    tierce__migrate_end(entry, is_default ? TIERCE__MIGRATE_OFF : TIERCE__MIGRATE_REFUSED, "%s",
                        "");
}

/* Folders of programs, and programs of other kinds, are for the person to name. */
static void rule_programs(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    char paths[2048];
    const char *text = entry->value != NULL ? entry->value : "";
    size_t bytes = strlen(text);
    bool is_program = bytes < sizeof(paths) && strchr(text, ' ') == NULL;
    for (const char *at = text; is_program && at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        size_t length = strcspn(at, ",");
        is_program =
            length > 4 && at[0] == '/' &&
            (memcmp(at + length - 3, ".py", 3) == 0 || memcmp(at + length - 3, ".sh", 3) == 0);
    }
    if (tierce__migrate_is_off(text)) {
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
    } else if (!is_program) {
        refuse_value(entry, "the absolute paths of files that end in .py or .sh; plugins.start "
                            "names each program");
    } else {
        for (size_t i = 0; i <= bytes; i++)
            paths[i] = text[i] == ',' ? ' ' : text[i];
        tierce__migrate_set(migration, entry, "plugins.start", paths);
    }
}

static void rule_plugins(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    tierce__migrate_plugins(migration, entry);
}

static void rule_remote(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    tierce__migrate_remote(migration, entry);
}

/* Runs after the rules of stores, which have ended the options that they have used. */
static void rule_option(struct tierce__migration *migration, struct tierce__migrate_entry *entry)
{
    (void)migration;
    tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "It has no effect on the remote store.");
}

const struct tierce__lmcache_key tierce__lmcache_keys[] = {
#define LMCACHE_KEY(name, rule, target, text) {name, rule_##rule, target, text},
#include "cli/migrate/lmcache_keys.def"
#include "cli/migrate/lmcache_server.def"
#undef LMCACHE_KEY
    {0},
};
const struct tierce__lmcache_key tierce__lmcache_unknown = {"", rule_unknown, NULL, ""};

void tierce__migrate_apply(struct tierce__migration *migration)
{
    /* These rules end entries of extra_config. */
    static const char *const first[] = {"remote_url", "remote_storage_plugins"};
    for (size_t i = 0; i < sizeof(first) / sizeof(*first); i++) {
        struct tierce__migrate_entry *entry = tierce__migrate_find(migration, first[i]);
        if (entry != NULL)
            entry->key->rule(migration, entry);
    }
    for (size_t i = 0; i < migration->count; i++) {
        struct tierce__migrate_entry *entry = &migration->entries[i];
        if (entry->key->rule == rule_adapter)
            entry->key->rule(migration, entry);
    }
    for (size_t i = 0; i < migration->count; i++) {
        struct tierce__migrate_entry *entry = &migration->entries[i];
        if (entry->outcome == TIERCE__MIGRATE_PENDING && entry->value == NULL)
            tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "The value is LMCache's default.");
        else if (entry->outcome == TIERCE__MIGRATE_PENDING)
            entry->key->rule(migration, entry);
        TIERCE_ASSERT(entry->outcome != TIERCE__MIGRATE_PENDING);
    }
}
