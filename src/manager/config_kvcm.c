/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/config_kvcm.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "base/text/nearest.h"
#include "manager/manager_config_private.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX   (1u << 20)
#define SETTINGS_MAX     4096u
#define OUR_PREFIX       "tierce."
#define SOURCE_BYTES_MAX 160u

/* The sources of settings; a later one overrides an earlier one. */
enum rank { RANK_FILE, RANK_ARGUMENT, RANK_ENVIRONMENT };

struct setting {
    char *key, *value, *source;
    enum rank rank;
};

struct tierce__kvcm_settings {
    struct setting *items;
    size_t count, size;
};

/* ---- the set --------------------------------------------------------------------------------- */

struct tierce__kvcm_settings *tierce__kvcm_settings_create(void)
{
    return tierce__calloc(1, sizeof(struct tierce__kvcm_settings));
}

static void free_setting(struct setting *setting)
{
    tierce__free(setting->key);
    tierce__free(setting->value);
    tierce__free(setting->source);
}

void tierce__kvcm_settings_destroy(struct tierce__kvcm_settings *settings)
{
    if (settings == NULL)
        return;
    TIERCE_ASSERT(settings->count <= settings->size);
    for (size_t i = 0; i < settings->count; i++)
        free_setting(&settings->items[i]);
    tierce__free(settings->items);
    tierce__free(settings);
}

static struct setting *find(const struct tierce__kvcm_settings *settings, const char *key)
{
    TIERCE_DASSERT(settings->count <= settings->size);
    for (size_t i = 0; i < settings->count; i++) {
        if (strcmp(settings->items[i].key, key) == 0)
            return &settings->items[i];
    }
    return NULL;
}

/* A text without the spaces around it, on the heap. */
static char *trimmed(const char *text, size_t length)
{
    while (length > 0 && isspace((unsigned char)text[0]))
        text++, length--;
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    char *copy = tierce__alloc(length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

static int make_room(struct tierce__kvcm_settings *settings)
{
    TIERCE_ASSERT(settings->count <= settings->size);
    if (settings->count == SETTINGS_MAX)
        return TIERCE_E_LIMIT;
    return TIERCE__GROW(settings->items, settings->size, settings->count + 1, 16);
}

/* Adds one "key=value" of `length` bytes. If a key is repeated, the last value counts in a file,
 * and the first value elsewhere. */
static int put(struct tierce__kvcm_settings *settings, enum rank rank, const char *pair,
               size_t length, const char *where, struct tierce__config_error *error)
{
    const char *equals = memchr(pair, '=', length);
    if (equals == NULL)
        return tierce__config_fail(error, TIERCE_E_CONFIG, "%s: \"%.*s\" is not KEY=VALUE", where,
                                   (int)(length < 64 ? length : 64), pair);
    char source[SOURCE_BYTES_MAX];
    struct setting made = {.key = trimmed(pair, (size_t)(equals - pair)), .rank = rank};
    made.value = trimmed(equals + 1, (size_t)(pair + length - equals) - 1);
    snprintf(source, sizeof(source), "%.90s %.60s", where, made.key != NULL ? made.key : "");
    made.source = tierce__strdup(source);
    int rc = made.key != NULL && made.value != NULL && made.source != NULL ? 0 : -ENOMEM;
    struct setting *old = rc == 0 ? find(settings, made.key) : NULL;
    if (rc == 0 && old == NULL)
        rc = make_room(settings);
    bool keeps_old = old != NULL && (old->rank > rank || (old->rank == rank && rank != RANK_FILE));
    if (rc != 0 || keeps_old) {
        free_setting(&made);
        return rc == 0 ? 0 : tierce__config_fail(error, rc, "%s: %s", where, tierce_strerror(rc));
    }
    if (old != NULL)
        free_setting(old);
    else
        old = &settings->items[settings->count++];
    *old = made;
    TIERCE_ASSERT(settings->count <= settings->size && settings->count <= SETTINGS_MAX);
    return 0;
}

/* ---- sources --------------------------------------------------------------------------------- */

/* The length of a line without its comment, which begins with '#' at the line's start or after a
 * space. (A URI may contain '#'.) */
static size_t without_comment(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (line[i] == '#' && (i == 0 || isspace((unsigned char)line[i - 1])))
            return i;
    }
    return length;
}

static bool is_blank(const char *text, size_t length)
{
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    return length == 0;
}

int tierce__kvcm_settings_load_text(struct tierce__kvcm_settings *settings, const char *name,
                                    const char *text, struct tierce__config_error *error)
{
    unsigned number = 1;
    for (const char *line = text; *line != '\0'; number++) {
        size_t whole = strcspn(line, "\n");
        size_t length = without_comment(line, whole);
        TIERCE_DASSERT(length <= whole);
        char where[SOURCE_BYTES_MAX];
        snprintf(where, sizeof(where), "%.80s:%u", name, number);
        int rc = is_blank(line, length) ? 0 : put(settings, RANK_FILE, line, length, where, error);
        if (rc != 0)
            return rc;
        line += whole + (line[whole] == '\n');
    }
    return 0;
}

int tierce__kvcm_settings_load_file(struct tierce__kvcm_settings *settings, const char *path,
                                    struct tierce__config_error *error)
{
    char *text = NULL;
    size_t length = 0;
    int rc = tierce__read_file(&text, &length, path, FILE_BYTES_MAX);
    if (rc != 0)
        return tierce__config_fail(error, rc, "%.200s: %s", path, tierce_strerror(rc));
    rc = strlen(text) == length
             ? tierce__kvcm_settings_load_text(settings, path, text, error)
             : tierce__config_fail(error, TIERCE_E_CONFIG, "%.200s: it holds a NUL byte", path);
    tierce__free(text);
    return rc;
}

int tierce__kvcm_settings_set(struct tierce__kvcm_settings *settings, const char *pair,
                              struct tierce__config_error *error)
{
    return put(settings, RANK_ARGUMENT, pair, strlen(pair), "-e", error);
}

int tierce__kvcm_settings_load_env(struct tierce__kvcm_settings *settings, char *const *env,
                                   struct tierce__config_error *error)
{
    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, "kvcm.", 5) != 0 && strncmp(*env, "KVCM_LOG_LEVEL=", 15) != 0 &&
            strncmp(*env, "KVCM_LOG_TO_CONSOLE=", 20) != 0)
            continue;
        if (strchr(*env, '=') == NULL)
            continue;
        int rc = put(settings, RANK_ENVIRONMENT, *env, strlen(*env), "environment", error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- meaning --------------------------------------------------------------------------------- */

/* How a value is converted to one of our parameters. */
enum meaning {
    AS_IT_IS,
    PORT,
    NOTHING,      /* known, but without effect here */
    IF_TRUE,      /* "true" or anything else */
    ONE_AT_LEAST, /* 0 is 1 */
    LOG_LEVEL,    /* 0 .. 5, or a name */
    REPORTER,     /* "logging" or another */
};

static const struct {
    const char *key;
    const char *name; /* of manager_params.def */
    enum meaning meaning;
} keys[] = {
    {"kvcm.registry_storage.uri", "registry.uri", AS_IT_IS},
    {"kvcm.distributed_lock.uri", "elector.uri", AS_IT_IS},
    {"kvcm.leader_elector.node_id", "elector.node_id", AS_IT_IS},
    {"kvcm.leader_elector.lease_ms", "elector.lease", AS_IT_IS},
    {"kvcm.leader_elector.loop_interval_ms", "elector.interval", AS_IT_IS},
    {"kvcm.service.rpc_port", "listen.grpc_port", PORT},
    {"kvcm.service.http_port", "listen.http_port", PORT},
    {"kvcm.service.admin_rpc_port", "listen.admin_grpc_port", PORT},
    {"kvcm.service.admin_http_port", "listen.admin_http_port", PORT},
    {"kvcm.service.io_thread_num", NULL, NOTHING},
    {"kvcm.service.enable_debug_service", "listen.debug", IF_TRUE},
    {"kvcm.logger.log_level", "log.level", LOG_LEVEL},
    {"kvcm.startup_config", "startup.file", AS_IT_IS},
    {"kvcm.schedule_plan_executor_thread_count", "delete.threads", ONE_AT_LEAST},
    {"kvcm.metrics.reporter_type", "metrics.log", REPORTER},
    {"kvcm.metrics.reporter_config", NULL, NOTHING},
    {"kvcm.metrics.report_interval_ms", "metrics.interval", AS_IT_IS},
    {"kvcm.event.event_publishers_configs", NULL, NOTHING},
    {"KVCM_LOG_LEVEL", "log.level", LOG_LEVEL},
    {"KVCM_LOG_TO_CONSOLE", "log.console", AS_IT_IS},
};
#define KEYS (sizeof(keys) / sizeof(*keys))

/* NULL: no name is similar enough. */
static const char *nearest_key(const char *key)
{
    enum { EDITS_MAX = 4 };
    const char *known[KEYS + 1] = {NULL};
    for (size_t i = 0; i < KEYS; i++)
        known[i] = keys[i].key;
    const char *nearest = tierce__nearest(key, known);
    return tierce__edit_distance(key, nearest) <= EDITS_MAX ? nearest : NULL;
}

static int warn_unknown(const struct setting *setting, char **warnings)
{
    char shown[64];
    const char *nearest = nearest_key(setting->key);
    tierce__text_for_message(shown, sizeof(shown), setting->key);
    if (nearest != NULL)
        return tierce__manager_warn(warnings,
                                    "%s: there is no key \"%s\"; the nearest one is \"%s\"",
                                    setting->source, shown, nearest);
    return tierce__manager_warn(warnings,
                                "%s: there is no key \"%s\"; docs/using/manager.md lists the keys",
                                setting->source, shown);
}

/* 1 is fatal, 5 debug, 0 the default. */
static const char *to_log_level(const char *value)
{
    static const char *const levels[] = {"info", "error", "error", "warn", "info", "debug"};
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"fatal", "error"}, {"warning", "warn"}, {"error", "error"},
                 {"warn", "warn"},   {"info", "info"},    {"debug", "debug"}};
    if (value[0] >= '0' && value[0] <= '5' && value[1] == '\0')
        return levels[value[0] - '0'];
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcasecmp(value, names[i].theirs) == 0)
            return names[i].ours;
    }
    return value;
}

static const char *to_ours(enum meaning meaning, const char *value)
{
    switch (meaning) {
    case IF_TRUE:
        return strcmp(value, "true") == 0 ? "true" : "false";
    case ONE_AT_LEAST:
        return strcmp(value, "0") == 0 ? "1" : value;
    case LOG_LEVEL:
        return to_log_level(value);
    case REPORTER:
        return strcmp(value, "logging") == 0 ? "true" : "false";
    case AS_IT_IS:
    case PORT:
    case NOTHING:
        break;
    }
    return value;
}

static int apply_one(const struct setting *setting, struct tierce__config *values, char **warnings,
                     struct tierce__config_error *error)
{
    size_t i = 0;
    if (strncmp(setting->key, OUR_PREFIX, sizeof(OUR_PREFIX) - 1) == 0)
        return tierce__config_set(values, setting->key + sizeof(OUR_PREFIX) - 1, setting->value,
                                  setting->source, error);
    while (i < KEYS && strcmp(keys[i].key, setting->key) != 0)
        i++;
    if (i == KEYS)
        return warn_unknown(setting, warnings);
    if (keys[i].meaning == REPORTER && strcmp(setting->value, "kmonitor") == 0) {
        int rc = tierce__manager_warn(
            warnings, "%s: kmonitor is not supported; metrics are at /metrics of the HTTP ports",
            setting->source);
        if (rc != 0)
            return rc;
    }
    if (keys[i].meaning == NOTHING)
        return 0;
    TIERCE_ASSERT((keys[i].name != NULL) == (keys[i].meaning != NOTHING));
    return tierce__config_set(values, keys[i].name, to_ours(keys[i].meaning, setting->value),
                              setting->source, error);
}

/* If any port is set, ports that are not set become 0. */
static int apply_ports(const struct tierce__kvcm_settings *settings, struct tierce__config *values,
                       struct tierce__config_error *error)
{
    bool is_any_set = false;
    int rc = 0;
    for (size_t i = 0; i < KEYS; i++)
        is_any_set |= keys[i].meaning == PORT && find(settings, keys[i].key) != NULL;
    for (size_t i = 0; i < KEYS && is_any_set && rc == 0; i++)
        if (keys[i].meaning == PORT)
            rc = tierce__config_set(values, keys[i].name, "0",
                                    "a key of kvcm.service is listed without the prefix", error);
    return rc;
}

int tierce__kvcm_settings_apply(const struct tierce__kvcm_settings *settings,
                                struct tierce__config *values, char **warnings,
                                struct tierce__config_error *error)
{
    int rc = apply_ports(settings, values, error);
    for (size_t i = 0; i < settings->count && rc == 0; i++)
        rc = apply_one(&settings->items[i], values, warnings, error);
    return rc == -ENOMEM ? tierce__config_fail(error, rc, "no memory") : rc;
}
