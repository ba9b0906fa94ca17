/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine without tiers: its opening, and the table of what its node lends.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine_config.h"
#include "engine/lender.h"
#include "engine/node_client/client.h"
#include "engine/node_client/client_transfer.h"
#include "engine/prefetch/prefetch_private.h"

/* Parameters of a node that its clients may not set. */
static bool is_of_node(const char *name)
{
    static const char *const prefixes[] = {"memory.",  "disk.", "remote.",    "prefetch.",
                                           "metrics.", "cost.", "access_log."};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    }
    return false;
}

static int check_client(const struct tierce_config *config, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    for (enum tierce__engine_param i = 0; i < TIERCE__ENGINE_PARAMS; i++) {
        const char *name = tierce__engine_params()[i].name;
        const char *source = tierce__engine_source(config, i);
        if (!is_of_node(name) || strcmp(source, "default") == 0)
            continue;
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "%s: with node.socket the node has memory and tiers; set it in the node's "
                 "configuration, not here (%.128s)",
                 name, source);
        return TIERCE_E_CONFIG;
    }
    return 0;
}

/* Connects. An engine that is not strict connects later if no node answers now. */
static int meet_node(struct tierce_engine *engine, const struct tierce_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__node_session *peer =
        tierce__client_peer(engine->client, tierce__deadline_in_ms(engine->settings.lookup_ms));
    bool is_there = peer != NULL;
    tierce__peer_release(peer);
    if (is_there || !tierce__engine_bool(config, TIERCE__ENGINE_STRICT))
        return 0;
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
             "node.socket: no node answers on %.150s within timeout.lookup",
             tierce__engine_text(config, TIERCE__ENGINE_NODE_SOCKET));
    return TIERCE_E_DOWN;
}

/* The first request connects to the node. */
static int open_node(struct tierce_engine *engine, const struct tierce_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    int rc = check_client(config, why);
    if (rc == 0)
        rc = tierce__client_open(&engine->client, engine, config);
    return rc == 0 ? meet_node(engine, config, why) : rc;
}

/* The operator asks the node. */
static void serve_nothing(struct tierce_engine *engine, const struct tierce_config *config)
{
    (void)config;
    TIERCE_DASSERT(engine->control == NULL && engine->level_count == 0);
}

static bool leave_node(struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->level_count == 0 && tierce__list_empty(&engine->unattended));
    tierce__client_close(engine->client);
    engine->client = NULL;
    return true;
}

static void add_stats(struct tierce_engine *engine, struct tierce_engine_stats *out)
{
    out->node_connected_now = tierce__client_is_connected(engine->client);
}

const struct tierce__lender tierce__node_client = {
    .open = open_node,
    .serve = serve_nothing,
    .close = leave_node,
    .stats = add_stats,
    .flush = tierce__client_flush,
    .clear = tierce__client_clear,
    .view_open = tierce__client_view_open,
    .view_close = tierce__client_view_close,
    .computed = tierce__client_computed,
    .unpin = tierce__client_unpin,
    .lookup = tierce__client_lookup,
    .durable = tierce__client_durable,
    .store_begin = tierce__client_store_begin,
    .store_end = tierce__client_store_end,
    .load_begin = tierce__client_load_begin,
    .prefetch_begin = tierce__client_prefetch_begin,
    .prefetch_wait = tierce__client_prefetch_wait,
    .prefetch_end = tierce__client_prefetch_end,
};
