/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_manager.h"

#include "base/text/host_port.h"
#include "manager/lmcache/controller.h"
#include "manager/lmcache/controller_commands.h"
#include "manager/lmcache/controller_sockets.h"

#include <stdio.h>
#include <string.h>

static bool has_sockets(const struct tierce__manager_config *config)
{
    return config->lmcache_pull_port != 0 || config->lmcache_reply_port != 0 ||
           config->lmcache_heartbeat_port != 0;
}

/* Where workers send their heartbeats. */
static void name_heartbeats(struct tierce__lmcache *lmcache,
                            const struct tierce__manager_config *config)
{
    const char *host =
        config->lmcache_address[0] != '\0' ? config->lmcache_address : config->lmcache_host;
    if (config->lmcache_heartbeat_port != 0)
        (void)tierce__host_port_format(lmcache->heartbeat_url, sizeof(lmcache->heartbeat_url), host,
                                       config->lmcache_heartbeat_port);
}

int tierce__lmcache_open(struct tierce__manager *manager,
                         const struct tierce__manager_config *config, char why[256])
{
    struct tierce__lmcache *lmcache = &manager->lmcache;
    if (!has_sockets(config) && config->lmcache_http_port == 0)
        return 0;
    lmcache->group = config->lmcache_group;
    lmcache->has_hash = config->has_lmcache_hash;
    lmcache->hash = config->lmcache_hash;
    name_heartbeats(lmcache, config);
    why[0] = '\0';
    int rc = tierce__controller_create(
        &lmcache->controller,
        &(struct tierce__controller_opts){.size = sizeof(struct tierce__controller_opts),
                                          .holdings = manager->holdings,
                                          .group = lmcache->group,
                                          .heartbeat_url = lmcache->heartbeat_url,
                                          .workers_max = config->lmcache_workers,
                                          .silence_ns = config->lmcache_silence_ms * 1000000ULL});
    if (rc == 0)
        rc = tierce__controller_commands_start(&lmcache->commands, config->lmcache_command_ms,
                                               TIERCE__CONTROLLER_FRAMES_MAX);
    return rc;
}

static bool leads(void *arg)
{
    return tierce__manager_leads(arg);
}

int tierce__lmcache_start(struct tierce__manager *manager,
                          const struct tierce__manager_config *config, char why[256])
{
    if (!has_sockets(config))
        return 0;
    return tierce__controller_sockets_start(
        &manager->lmcache.sockets,
        &(struct tierce__controller_sockets_opts){
            .size = sizeof(struct tierce__controller_sockets_opts),
            .controller = manager->lmcache.controller,
            .host = config->lmcache_host,
            .pull_port = config->lmcache_pull_port,
            .reply_port = config->lmcache_reply_port,
            .heartbeat_port = config->lmcache_heartbeat_port,
            .silence_ms = config->directory_silence_ms,
            .leads = leads,
            .arg = manager},
        why);
}

void tierce__lmcache_stop(struct tierce__manager *manager)
{
    tierce__controller_sockets_stop(manager->lmcache.sockets);
    manager->lmcache.sockets = NULL;
    tierce__controller_commands_stop(manager->lmcache.commands);
}

void tierce__lmcache_close(struct tierce__manager *manager)
{
    tierce__controller_commands_destroy(manager->lmcache.commands);
    tierce__controller_destroy(manager->lmcache.controller);
    manager->lmcache.commands = NULL;
    manager->lmcache.controller = NULL;
}
