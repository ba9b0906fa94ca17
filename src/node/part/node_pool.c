/* SPDX-License-Identifier: Apache-2.0 */
#include "node/part/node_pool.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log/log.h"
#include "base/text/host_port.h"
#include "base/threads/threads.h"
#include "net/server/addresses.h"
#include "node/node_private.h"
#include "node/part/join.h"
#include "node/part/part.h"
#include "store/transfer/transfer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { NAME_ROOM = TIERCE__NODE_NAME_BYTES, ADDRESS_ROOM = 320 };

struct tierce__node_pool {
    struct tierce__node *node;
    struct tierce__parts *parts;
    struct tierce__addresses *addresses; /* NULL: no limit */
    struct tierce__transfer_server *server;
    struct tierce__join *join;
};

/* ---- rights ---------------------------------------------------------------------------------- */

/* Objects of the pool belong to no tenant, so a tenant's token gives no right. */
static uint32_t rights_of(void *arg, const char *token, size_t token_bytes)
{
    struct tierce__node_pool *pool = arg;
    struct tierce__access *access = pool->node->access;
    struct tierce__identity who = {0};
    bool is_known = token_bytes > 0 ? tierce__access_token(access, TIERCE__SPACE_RESP, NULL, 0,
                                                           token, token_bytes, &who)
                                    : tierce__access_nobody(access, TIERCE__SPACE_RESP, &who);
    if (!is_known || who.space != tierce__access_space(access, TIERCE__SPACE_RESP))
        return 0;
    return ((who.scopes & TIERCE__SCOPE_READ) != 0 ? TIERCE__TRANSFER_READ : 0) |
           ((who.scopes & TIERCE__SCOPE_WRITE) != 0 ? TIERCE__TRANSFER_WRITE : 0);
}

static uint64_t moved_bytes(void *arg)
{
    const struct tierce__node_pool *pool = arg;
    struct tierce__transfer_stats stats = {0};
    tierce__transfer_server_stats(pool->server, &stats);
    return stats.read_bytes + stats.written_bytes;
}

/* ---- start ----------------------------------------------------------------------------------- */

static int open_parts(struct tierce__node_pool *pool, const struct tierce__node_config *config,
                      char why[256])
{
    const struct tierce__parts_opts opts = {.size = sizeof(opts),
                                            .memory_bytes = config->pool_memory,
                                            .disk_path = config->pool_disk,
                                            .disk_must_exist = !config->pool_disk_new,
                                            .disk_bytes = config->pool_disk_size,
                                            .buffer_bytes = config->pool_disk_buffer,
                                            .waiting_max = config->pool_disk_waiting};
    char fault[256] = "";
    int rc = tierce__parts_open(&pool->parts, &opts, fault);
    bool is_of_disk = config->pool_disk[0] == '/' &&
                      strncmp(fault, config->pool_disk, strlen(config->pool_disk)) == 0;
    if (rc != 0)
        snprintf(why, 256, "%s%.240s", is_of_disk ? "pool.disk: " : "", fault);
    return rc;
}

static int start_server(struct tierce__node_pool *pool, const struct tierce__node_config *config,
                        char why[256])
{
    struct tierce__transfer_server_opts opts = {.size = sizeof(opts),
                                                .host = config->host,
                                                .port = config->pool_port,
                                                .keeper = tierce__parts_keeper(pool->parts),
                                                .tls = pool->node->tls,
                                                .loops = config->loops > 0 ? config->loops
                                                                           : tierce__processors(),
                                                .connections_max = config->connections_max,
                                                .addresses = pool->addresses,
                                                .request_ms = config->request_ms,
                                                .stall_ms = config->pool_stall_ms,
                                                .idle_ms = config->idle_ms,
                                                .rights = rights_of,
                                                .rights_arg = pool};
    if (getrandom(opts.incarnation, sizeof(opts.incarnation), 0) !=
        (ssize_t)sizeof(opts.incarnation)) {
        snprintf(why, 256, "the kernel gives no random bytes");
        return -EIO;
    }
    return tierce__transfer_server_start(&pool->server, &opts, why);
}

int tierce__node_pool_name(char name[TIERCE__NODE_NAME_BYTES],
                           const struct tierce__node_config *config, char why[256])
{
    if (config->pool_name[0] != '\0') {
        snprintf(name, NAME_ROOM, "%s", config->pool_name);
        return 0;
    }
    if (gethostname(name, NAME_ROOM - 1) != 0)
        name[0] = '\0';
    name[NAME_ROOM - 1] = '\0';
    name[strcspn(name, ".")] = '\0';
    if (name[0] != '\0')
        return 0;
    snprintf(why, 256, "the host has no name: set pool.name");
    return TIERCE_E_CONFIG;
}

/* pool.address with the server's port behind it, unless it has one; or the host that it listens on.
 */
static void address_node(char address[ADDRESS_ROOM], const struct tierce__node_config *config,
                         uint16_t port)
{
    const char *host = config->pool_address[0] != '\0' ? config->pool_address : config->host;
    struct tierce__host_port at;
    bool has_port = tierce__host_port_split(&at, host, strlen(host)) && at.has_port;
    if (has_port)
        snprintf(address, ADDRESS_ROOM, "%.*s", (int)ADDRESS_ROOM - 1, host);
    else
        (void)tierce__host_port_format(address, ADDRESS_ROOM, host, port);
}

static int start_join(struct tierce__node_pool *pool, const struct tierce__node_config *config,
                      char why[256])
{
    char name[NAME_ROOM], address[ADDRESS_ROOM], fault[256] = "";
    int rc = tierce__node_pool_name(name, config, why);
    if (rc != 0)
        return rc;
    address_node(address, config, tierce__transfer_server_port(pool->server));
    const struct tierce__join_opts opts = {.size = sizeof(opts),
                                           .url = config->pool_manager,
                                           .node = name,
                                           .address = address,
                                           .uses_tls = pool->node->tls != NULL,
                                           .parts = pool->parts,
                                           .moved_bytes = moved_bytes,
                                           .arg = pool};
    rc = tierce__join_start(&pool->join, &opts, fault);
    if (rc != 0 && fault[0] != '\0')
        snprintf(why, 256, "pool.manager: %.240s", fault);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "pool_part", "node=%s address=%s memory=%llu disk=\"%s\"",
                    name, address, (unsigned long long)config->pool_memory, config->pool_disk);
    return rc;
}

int tierce__node_pool_start(struct tierce__node_pool **out, struct tierce__node *node,
                            char why[256])
{
    const struct tierce__node_config *config = node->config;
    if (config->pool_manager[0] == '\0')
        return 0;
    struct tierce__node_pool *pool = tierce__calloc(1, sizeof(*pool));
    if (pool == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    pool->node = node;
    int rc = open_parts(pool, config, why);
    if (rc == 0 && config->connections_per_address > 0)
        rc = tierce__addresses_create(&pool->addresses, config->connections_per_address);
    if (rc == -ENOMEM)
        snprintf(why, 256, "no memory");
    if (rc == 0)
        rc = start_server(pool, config, why);
    if (rc == 0)
        rc = start_join(pool, config, why);
    if (rc == 0)
        *out = pool;
    else
        tierce__node_pool_stop(pool, 0);
    return rc;
}

void tierce__node_pool_leave(struct tierce__node_pool *pool)
{
    if (pool != NULL)
        tierce__join_leave(pool->join);
}

void tierce__node_pool_stop(struct tierce__node_pool *pool, uint64_t deadline_ns)
{
    if (pool == NULL)
        return;
    tierce__join_stop(pool->join);
    tierce__transfer_server_stop(pool->server, deadline_ns);
    tierce__parts_close(pool->parts, deadline_ns);
    tierce__addresses_destroy(pool->addresses);
    tierce__free(pool);
}

uint16_t tierce__node_pool_port(const struct tierce__node_pool *pool)
{
    return tierce__transfer_server_port(pool->server);
}

/* ---- what it shows --------------------------------------------------------------------------- */

bool tierce__node_pool_fails(struct tierce__node_pool *pool, char *why, size_t bytes)
{
    for (size_t i = 0; pool != NULL && i < tierce__parts_count(pool->parts); i++) {
        struct tierce__part_state state;
        tierce__parts_state(pool->parts, i, &state);
        if (state.is_ready || state.why[0] == '\0')
            continue;
        snprintf(why, bytes, "pool.%s is not served: %s", state.space, state.why);
        return true;
    }
    return false;
}

static void put_part(struct tierce__json_write *json, const struct tierce__part_state *state,
                     const struct tierce__join_state *joined, size_t index)
{
    char incarnation[2 * TIERCE__PART_INCARNATION_BYTES + 1];
    tierce__hex_encode(incarnation, state->incarnation, sizeof(state->incarnation));
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "space", state->space);
    tierce__json_write_text(json, "storage", joined->parts[index].storage);
    tierce__json_write_text(json, "state", joined->parts[index].state);
    tierce__json_write_text(json, "incarnation", incarnation);
    tierce__json_write_bool(json, "is_ready", state->is_ready);
    tierce__json_write_text(json, "why", state->why);
    tierce__json_write_count(json, "capacity_bytes", state->capacity_bytes);
    tierce__json_write_count(json, "used_bytes", state->used_bytes);
    tierce__json_write_count(json, "objects", state->objects);
    tierce__json_write_close(json, '}');
}

void tierce__node_pool_status(struct tierce__node_pool *pool, struct tierce__json_write *json)
{
    struct tierce__join_state joined;
    if (pool == NULL)
        return;
    tierce__join_state(pool->join, &joined);
    tierce__json_write_open(json, "pool", '{');
    tierce__json_write_bool(json, "is_joined", joined.is_joined);
    tierce__json_write_text(json, "why", joined.why);
    tierce__json_write_count(json, "calls", joined.calls);
    tierce__json_write_count(json, "failures", joined.failures);
    tierce__json_write_open(json, "parts", '[');
    for (size_t i = 0; i < tierce__parts_count(pool->parts); i++) {
        struct tierce__part_state state;
        tierce__parts_state(pool->parts, i, &state);
        put_part(json, &state, &joined, i);
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

static void put(struct tierce__prometheus *text, const char *name, const char *help,
                bool is_counter, double value)
{
    TIERCE_ASSERT(value >= 0);
    tierce__prometheus_put(
        text, &(struct tierce__metric){
                  .name = name, .help = help, .is_counter = is_counter, .value = value});
}

void tierce__node_pool_metrics(struct tierce__node_pool *pool, struct tierce__prometheus *text)
{
    struct tierce__part_state sum = {0};
    struct tierce__transfer_stats stats = {0};
    struct tierce__join_state joined;
    if (pool == NULL)
        return;
    for (size_t i = 0; i < tierce__parts_count(pool->parts); i++) {
        struct tierce__part_state state;
        tierce__parts_state(pool->parts, i, &state);
        sum.capacity_bytes += state.is_ready ? state.capacity_bytes : 0;
        sum.used_bytes += state.used_bytes;
        sum.objects += state.objects;
    }
    tierce__transfer_server_stats(pool->server, &stats);
    tierce__join_state(pool->join, &joined);
    put(text, "node.pool_joined", "Whether a manager of the pool has answered in time.", false,
        joined.is_joined);
    put(text, "node.pool_join_failures", "Registrations that failed.", true,
        (double)joined.failures);
    put(text, "node.pool_capacity_bytes", "Size of the parts that are ready.", false,
        (double)sum.capacity_bytes);
    put(text, "node.pool_used_bytes", "Bytes of objects in the parts.", false,
        (double)sum.used_bytes);
    put(text, "node.pool_objects", "Objects in the parts.", false, (double)sum.objects);
    put(text, "node.pool_connections_now", "Connections to the parts.", false,
        (double)stats.connections);
    put(text, "node.pool_refused", "Connections refused: too many, or a wrong token.", true,
        (double)stats.refused);
    put(text, "node.pool_reads", "Objects, or ranges of them, that were read.", true,
        (double)stats.reads);
    put(text, "node.pool_read_bytes", "Their bytes.", true, (double)stats.read_bytes);
    put(text, "node.pool_misses", "Reads of objects that the parts do not have.", true,
        (double)stats.misses);
    put(text, "node.pool_writes", "Objects that were written.", true, (double)stats.writes);
    put(text, "node.pool_written_bytes", "Their bytes.", true, (double)stats.written_bytes);
    put(text, "node.pool_full", "Writes for which a part had no room.", true, (double)stats.full);
    put(text, "node.pool_drops", "Objects that were deleted.", true, (double)stats.drops);
    put(text, "node.pool_errors", "Requests that failed in another way.", true,
        (double)stats.errors);
}
