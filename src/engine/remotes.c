/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/remotes.h"
#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/text/nearest.h"
#include "base/config/config_parse.h"
#include "store/coded/coded_connector.h"
#include "store/remote/connector.h"
#include "base/text/url.h"
#include "engine/engine_config.h"
#include "engine/engine.h"
#include "engine/invalidations.h"
#include "engine/own_tiers.h"
#include "engine/peer/peers.h"
#include "engine/waterfall.h"
#include "store/remote/remote.h"

#define CLOSE_MS    1000u
#define QUEUE_SHARE 8u /* default for each remote store: this fraction of memory */

_Static_assert(TIERCE__REMOTES_MAX + 2 <= TIERCE__TIERS_MAX,
               "memory, disk and all remote stores fit");

/* Removes the first "NAME=..." from a URL's parameters. It removes the tier's parameters; the
 * others are the connector's. */
static void drop_param(char *url, const char *name)
{
    size_t name_bytes = strlen(name);
    for (char *at = strchr(url, '?'); at != NULL; at = strchr(at + 1, '&')) {
        if (strncmp(at + 1, name, name_bytes) != 0 || at[1 + name_bytes] != '=')
            continue;
        char *end = at + 1 + strcspn(at + 1, "&");
        /* The following parameters move up to the '?' or '&' before the removed one. */
        if (*end == '&')
            memmove(at + 1, end + 1, strlen(end + 1) + 1);
        else
            *at = '\0';
        return;
    }
}

void tierce__remotes_drop_params(char *url)
{
    drop_param(url, "read_only");
    drop_param(url, "codec");
}

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", what);
    return TIERCE_E_CONFIG;
}

/* The tier's parameters in a URL. */
struct remote_params {
    bool read_only;
    bool has_codec;                    /* the URL states one */
    const struct tierce__codec *codec; /* NULL: none */
};

/* Whether a parameter is absent or one of two words. If it is not, `why` says so. */
static bool is_either(const char *value, const char *name, const char *one, const char *other,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    if (value == NULL || strcmp(value, one) == 0 || strcmp(value, other) == 0)
        return true;
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s is '%.60s'; accepted are %s and %s", name, value,
             one, other);
    return false;
}

/* Takes them out of the URL. */
static int take_params(struct remote_params *params, char *text,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__url url = {0};
    *params = (struct remote_params){0};
    int rc = strstr(text, "://") != NULL ? tierce__url_parse(&url, text, why) : 0;
    if (rc < 0)
        return rc;
    const char *read_only = tierce__url_param(&url, "read_only");
    const char *codec = tierce__url_param(&url, "codec");
    if (!is_either(read_only, "read_only", "true", "false", why) ||
        !is_either(codec, "codec", "none", "lossless", why))
        rc = TIERCE_E_CONFIG;
    params->read_only = read_only != NULL && strcmp(read_only, "true") == 0;
    params->has_codec = codec != NULL;
    params->codec = codec != NULL ? tierce__codec_find(codec) : NULL;
    tierce__remotes_drop_params(text);
    tierce__url_clear(&url);
    return rc;
}

/* A connector has rejected a parameter of its URL. It does not know those that every URL accepts,
 * so it does not name them if one is misspelt. */
static void name_tier_param(const char *text, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const names[] = {"read_only", "codec", NULL};
    char unused[TIERCE__URL_WHY_BYTES], shown[48], quoted[64];
    struct tierce__url url;
    if (tierce__url_parse(&url, text, unused) < 0)
        return;
    for (size_t i = 0; i < url.param_count; i++) {
        const char *name = url.params[i].name, *nearest = tierce__nearest(name, names);
        tierce__text_for_message(shown, sizeof(shown), name);
        snprintf(quoted, sizeof(quoted), "parameter \"%s\"", shown);
        if (strstr(why, quoted) == NULL)
            continue;
        if (strcmp(name, "encryption") == 0)
            (void)refuse(why,
                         "URL: encryption is set by remote.encryption, for all stores together");
        else if (strcmp(name, nearest) == 0) /* the first one was removed before */
            snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: parameter \"%s\" is given twice",
                     shown);
        else if (tierce__edit_distance(name, nearest) <= 1)
            snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: unknown parameter \"%s\" (\"%s\"?)",
                     shown, nearest);
        break; /* one is named */
    }
    tierce__url_clear(&url);
}

/* Returns the reason why a connector cannot hold coded objects, or NULL if it can. */
static const char *no_codec(const struct tierce__connector *connector)
{
    if ((connector->caps & (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_TELLS_LENGTH)) == 0)
        return "a codec is not possible here: objects are read whole, with a length that must be "
               "known";
    return NULL;
}

/* A connector that cannot store coded objects, for this reason: an error if the URL requires a
 * codec, or if objects are to be encrypted. */
static int go_without(const struct tierce__connector *connector, const char *reason,
                      const struct tierce__codec *codec, const struct remote_params *params,
                      bool encrypts, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    bool is_written = (connector->caps & TIERCE__CONNECTOR_NO_PUT) == 0 && !params->read_only;
    TIERCE_DASSERT(reason != NULL);
    if (encrypts && is_written)
        return refuse(why, "this store cannot hold encrypted chunks; remove its URL, add "
                           "read_only=true to it, or set remote.encryption=none");
    if (params->codec != NULL) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s; remove codec from this URL", reason);
        return TIERCE_E_CONFIG;
    }
    if (codec != NULL)
        tierce__log(TIERCE_LOG_WARN, "codec_not_used",
                    "tier=%s codec=%s effect=\"chunks are stored uncompressed\" reason=\"%s\"",
                    connector->ops->scheme, codec->name, reason);
    return 0;
}

/* The codec for new chunks. A connector that only reads has none: it is an error if the URL
 * requires one. */
static int choose_codec(const struct tierce__codec **codec, const struct tierce__connector *below,
                        const struct tierce_config *config, const struct remote_params *params,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    bool is_written = (below->caps & TIERCE__CONNECTOR_NO_PUT) == 0;
    *codec = NULL;
    if (!is_written && params->codec != NULL)
        return refuse(why, "a codec is not possible here, because peers:// stores nothing; remove "
                           "codec from this URL");
    if (is_written)
        *codec = params->has_codec ? params->codec
                                   : tierce__engine_codec(config, TIERCE__ENGINE_REMOTE_CODEC);
    return 0;
}

/*
 * Puts the connector that encodes and decodes above another one, which is closed where that fails;
 * also without a codec, because the store may hold coded objects.
 */
static int open_coded(struct tierce_engine *engine, struct tierce__connector **connector,
                      const struct tierce_config *config, const struct remote_params *params,
                      const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__connector *below = *connector;
    const char *reason = no_codec(below), *name = below->ops->scheme;
    const struct tierce__codec *codec;
    bool encrypts = (below->caps & TIERCE__CONNECTOR_NO_PUT) == 0 &&
                    tierce__engine_encrypts(config, TIERCE__ENGINE_REMOTE_ENCRYPTION);
    int rc = choose_codec(&codec, below, config, params, why);
    if (rc == 0 && reason != NULL)
        rc = go_without(below, reason, codec, params, encrypts, why);
    if (rc == 0 && reason == NULL)
        rc = tierce__coded_connector_open(
            connector,
            &(struct tierce__coded_connector_opts){
                .size = sizeof(struct tierce__coded_connector_opts),
                .connector = below,
                .name = name,
                .codec = codec,
                .namespaces = engine->namespaces,
                .keys = engine->keys,
                .encrypts = encrypts,
                .alloc = tierce__engine_alloc_coded,
                .alloc_arg = engine,
                .staging_bytes_max = tierce__engine_coded_staging(engine),
                .no_pool = tierce__connector_needs_shared_pool(url),
                .load_time_max = tierce__engine_share(config, TIERCE__ENGINE_CODEC_LOAD_TIME)});
    if (rc < 0)
        (void)below->ops->close(below, tierce__deadline_in_ms(CLOSE_MS)); /* nothing is under way */
    return rc;
}

/* "redis", and "redis2" for the second of them: names are labels of metrics. */
static void name_tier(char *name, size_t room, const struct tierce_engine *engine,
                      const char *scheme)
{
    unsigned same = 1;
    for (size_t i = 0; i < engine->level_count; i++)
        same += strncmp(engine->levels[i].tier->ops->name, scheme, strlen(scheme)) == 0;
    if (same == 1)
        snprintf(name, room, "%s", scheme);
    else
        snprintf(name, room, "%s%u", scheme, same);
    TIERCE_DASSERT(strlen(name) >= strlen(scheme) && strlen(name) + 1 < room);
}

/* The number of a store in tombstones (docs/inside/format/tombstones.md); 0: the URL is invalid. */
static uint64_t number_store(const char *text)
{
    static const char *const places[] = {"prefix", "db", "endpoint"};
    char name[TIERCE__URL_BYTES_MAX], why[TIERCE__URL_WHY_BYTES];
    struct tierce__url url;
    if (tierce__url_parse(&url, text, why) < 0)
        return 0;
    tierce__url_store_name(name, sizeof(name), text);
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        const char *value = tierce__url_param(&url, places[i]);
        size_t used = strlen(name);
        if (value != NULL)
            snprintf(name + used, sizeof(name) - used, "?%s=%s", places[i], value);
    }
    tierce__url_clear(&url);
    return XXH3_64bits(name, strlen(name));
}

static int open_remote(struct tierce_engine *engine, const struct tierce_config *config, char *url,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    TIERCE_DASSERT(engine->level_count < TIERCE__TIERS_MAX);
    struct remote_params params;
    struct tierce__connector *connector;
    int rc = take_params(&params, url, why);
    if (rc < 0)
        return rc;
    rc = tierce__connector_open(
        &connector, url,
        &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts),
                                         .pool = engine->pool,
                                         .namespaces = engine->namespaces,
                                         .peers_self = tierce__peers_self_of(engine->peers),
                                         .invalidated = tierce__invalidations_note,
                                         .invalidated_arg = &engine->levels[engine->level_count]},
        why);
    if (rc == TIERCE_E_CONFIG)
        name_tier_param(url, why);
    struct tierce__connector *plain = rc == 0 ? connector : NULL;
    if (rc == 0)
        rc = open_coded(engine, &connector, config, &params, url, why);
    bool decodes = rc == 0 && connector != plain;
    if (rc < 0)
        return rc;
    uint64_t queue = tierce__engine_number(config, TIERCE__ENGINE_REMOTE_QUEUE);
    if (queue == 0)
        queue = engine->settings.memory_bytes / QUEUE_SHARE;
    char name[32];
    name_tier(name, sizeof(name), engine, connector->ops->scheme);
    struct tierce__tier *tier;
    bool read_only = params.read_only || (connector->caps & TIERCE__CONNECTOR_NO_PUT) != 0;
    rc = tierce__remote_open(
        &tier, &(struct tierce__remote_opts){
                   .size = sizeof(struct tierce__remote_opts),
                   .connector = connector,
                   .namespaces = engine->namespaces,
                   .queue_bytes = queue,
                   .writes = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_REMOTE_WRITES),
                   .write_timeout_ms =
                       (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_WRITE),
                   .read_only = read_only,
                   .name = name});
    if (rc < 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", tierce_strerror(rc));
        (void)connector->ops->close(connector,
                                    tierce__deadline_in_ms(CLOSE_MS)); /* nothing is under way */
        return rc;
    }
    tierce__engine_add_level(engine, tier, TIERCE_ORIGIN_REMOTE, "",
                             tierce__engine_number(config, TIERCE__ENGINE_PREFETCH_REMOTE_WINDOW));
    struct tierce__level *level = &engine->levels[engine->level_count - 1];
    TIERCE_DASSERT(level->health.shared);
    level->store = number_store(url);
    level->queue_bytes = queue;
    level->connector = connector;
    level->decodes = decodes;
    level->is_read_only = read_only;
    return read_only ? 0 : tierce__unsent_init(level);
}

/* The operator may rely on them, encryption above all. */
static void log_settings_without_remotes(const struct tierce_config *config)
{
    static const enum tierce__engine_param rows[] = {TIERCE__ENGINE_REMOTE_CODEC,
                                                     TIERCE__ENGINE_REMOTE_ENCRYPTION};
    const char *urls = tierce__engine_text(config, TIERCE__ENGINE_REMOTE_URLS);
    if (urls[strspn(urls, " \t\r\n")] != '\0')
        return;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *value = tierce__engine_text(config, rows[i]);
        if (strcmp(value, "none") != 0)
            tierce__log(TIERCE_LOG_WARN, "setting_without_effect",
                        "setting=%s value=%s reason=\"remote.urls is empty, so there is no remote "
                        "store\"",
                        tierce__engine_params()[rows[i]].name, value);
    }
}

int tierce__remotes_open(struct tierce_engine *engine, const struct tierce_config *config,
                         char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_DASSERT(engine->level_count > 0 && engine->levels[0].origin == TIERCE_ORIGIN_MEMORY);
    char *urls = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_REMOTE_URLS));
    if (urls == NULL)
        return -ENOMEM;
    log_settings_without_remotes(config);
    int rc = 0;
    char *rest = urls;
    for (size_t count = 0; rc == 0; count++) {
        char reason[TIERCE__CONNECTOR_WHY_BYTES] = "";
        char *url = strtok_r(rest, " \t\r\n", &rest);
        if (url == NULL)
            break;
        if (count == TIERCE__REMOTES_MAX) {
            rc = TIERCE_E_CONFIG;
            snprintf(reason, sizeof(reason), "there are more than %u", TIERCE__REMOTES_MAX);
        } else {
            rc = open_remote(engine, config, url, reason);
        }
        if (rc < 0)
            snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "remote.urls, number %zu: %s", count + 1,
                     reason);
    }
    tierce__free(urls);
    return rc;
}

bool tierce__remotes_share_memory(const struct tierce_config *config)
{
    static const char blanks[] = " \t\r\n";
    const char *url = tierce__engine_text(config, TIERCE__ENGINE_REMOTE_URLS);
    for (; *url != '\0'; url += strcspn(url, blanks)) {
        url += strspn(url, blanks);
        if (tierce__connector_needs_shared_pool(url))
            return true;
    }
    return false;
}
