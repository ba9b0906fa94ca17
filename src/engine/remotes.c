/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/remotes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "connector/connector.h"
#include "engine/config.h"
#include "tier/remote.h"

#define REMOTES_MAX 6u
#define QUEUE_SHARE 8u /* of memory, for each remote store, where nothing is said */

_Static_assert(REMOTES_MAX + 2 <= TIERCE__TIERS_MAX, "memory, disk and all remote stores fit");

/*
 * Takes "read_only=VALUE" out of a URL's parameters: it is the tier's, all others are the
 * connector's. Returns false for a value that is neither true nor false.
 */
static bool take_read_only(char *url, bool *read_only)
{
    static const char name[] = "read_only=";
    *read_only = false;
    char *query = strchr(url, '?');
    for (char *at = query; at != NULL; at = strchr(at + 1, '&')) {
        if (strncmp(at + 1, name, sizeof(name) - 1) != 0)
            continue;
        char *value = at + sizeof(name), *end = value + strcspn(value, "&");
        size_t bytes = (size_t)(end - value);
        *read_only = bytes == 4 && strncmp(value, "true", 4) == 0;
        if (!*read_only && !(bytes == 5 && strncmp(value, "false", 5) == 0))
            return false;
        /* What comes after it moves up, behind the '?' or '&' before it. */
        if (*end == '&')
            memmove(at + 1, end + 1, strlen(end + 1) + 1);
        else
            *at = '\0';
        return true;
    }
    return true;
}

/* "redis", and "redis2" for the second of them: names are labels of metrics. */
static void name_tier(char *name, size_t room, const struct tierce_engine *engine,
                      const char *scheme)
{
    unsigned same = 1;
    for (size_t i = 0; i < engine->rung_count; i++)
        same += strncmp(engine->rungs[i].tier->ops->name, scheme, strlen(scheme)) == 0;
    if (same == 1)
        snprintf(name, room, "%s", scheme);
    else
        snprintf(name, room, "%s%u", scheme, same);
}

static int open_remote(struct tierce_engine *engine, const struct tierce_config *config, char *url,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    bool read_only;
    if (!take_read_only(url, &read_only)) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "read_only is true or false");
        return TIERCE_E_CONFIG;
    }
    struct tierce__connector *connector;
    int rc = tierce__connector_open(
        &connector, url,
        &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts),
                                         .pool = engine->pool},
        why);
    if (rc < 0)
        return rc;
    uint64_t queue = tierce__engine_number(config, TIERCE__ENGINE_REMOTE_QUEUE);
    char name[32];
    name_tier(name, sizeof(name), engine, connector->ops->scheme);
    struct tierce__tier *tier;
    rc = tierce__remote_open(
        &tier, &(struct tierce__remote_opts){
                   .size = sizeof(struct tierce__remote_opts),
                   .connector = connector,
                   .namespaces = engine->namespaces,
                   .queue_bytes = queue > 0 ? queue : engine->settings.memory_bytes / QUEUE_SHARE,
                   .writes = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_REMOTE_WRITES),
                   .write_timeout_ms =
                       (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_WRITE),
                   .read_only = read_only,
                   .name = name});
    if (rc < 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", tierce_strerror(rc));
        (void)connector->ops->close(connector, tierce__now_ns()); /* nothing is under way */
        return rc;
    }
    tierce__engine_add_rung(engine, tier, TIERCE_ORIGIN_REMOTE, "",
                            tierce__engine_number(config, TIERCE__ENGINE_PREFETCH_REMOTE_WINDOW));
    return 0;
}

int tierce__remotes_open(struct tierce_engine *engine, const struct tierce_config *config,
                         char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char *urls = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_REMOTE_URLS));
    if (urls == NULL)
        return -ENOMEM;
    int rc = 0;
    char *rest = urls;
    for (size_t count = 0; rc == 0; count++) {
        char reason[TIERCE__CONNECTOR_WHY_BYTES] = "";
        char *url = strtok_r(rest, " \t\r\n", &rest);
        if (url == NULL)
            break;
        if (count == REMOTES_MAX) {
            rc = TIERCE_E_CONFIG;
            snprintf(reason, sizeof(reason), "there are more than %u", REMOTES_MAX);
        } else {
            rc = open_remote(engine, config, url, reason);
        }
        if (rc < 0)
            snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "remote.urls: %s", reason);
    }
    tierce__free(urls);
    return rc;
}
