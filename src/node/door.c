/* SPDX-License-Identifier: Apache-2.0 */
#include "node/door.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log_repeat.h"
#include "node/node_private.h"
#include "net/listen.h"
#include "net/server/poll_door.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct tierce__door {
    struct tierce__poll_door base;
    struct tierce__node *node;
    const struct tierce__protocol *protocol;
};

/* A socket on its way to its loop. */
struct arrival {
    struct tierce__task task;
    struct tierce__connection_opts opts;
    char peer[TIERCE__PEER_BYTES];
};

/* ---- limits ---------------------------------------------------------------------------------- */

static void count_out(struct tierce__node *node, const struct tierce__address *address)
{
    TIERCE_ASSERT(atomic_load_explicit(&node->connections_now, memory_order_relaxed) > 0);
    if (node->addresses != NULL)
        tierce__addresses_leave(node->addresses, address);
    atomic_fetch_sub_explicit(&node->connections_now, 1, memory_order_relaxed);
}

static void gone(struct tierce__connection *connection)
{
    TIERCE_ASSERT(connection->is_closing && !connection->is_busy);
    count_out(connection->node, &connection->address);
}

/* Counts it in; false: it is one too many. */
static bool count_in(struct tierce__node *node, struct tierce__address *address,
                     const struct sockaddr *peer)
{
    uint32_t before = atomic_fetch_add_explicit(&node->connections_now, 1, memory_order_relaxed);
    if (before < node->config->connections_max &&
        (node->addresses == NULL || tierce__addresses_enter(node->addresses, address, peer)))
        return true;
    atomic_fetch_sub_explicit(&node->connections_now, 1, memory_order_relaxed);
    tierce__node_count(node, TIERCE__NODE_connections_refused, 1);
    return false;
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void arrive(struct tierce__task *task)
{
    struct arrival *arrival = TIERCE__CONTAINER_OF(task, struct arrival, task);
    struct tierce__poll_loop *loop = arrival->opts.loop;
    struct tierce__node *node = arrival->opts.node;
    TIERCE_ASSERT(atomic_load_explicit(&loop->member_count, memory_order_relaxed) > 0);
    arrival->opts.peer = arrival->peer;
    int rc = tierce__connection_open(&arrival->opts);
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "node_connection_failed", "err=\"%s\"",
                             tierce_strerror(rc));
        count_out(node, &arrival->opts.address);
        atomic_fetch_sub_explicit(&loop->member_count, 1, memory_order_release);
    }
    tierce__free(arrival);
}

static void hand_on(struct tierce__poll_door *base, int fd, const struct sockaddr_storage *peer)
{
    struct tierce__door *door = TIERCE__CONTAINER_OF(base, struct tierce__door, base);
    struct tierce__address address = {{0}};
    if (!count_in(door->node, &address, (const struct sockaddr *)peer)) {
        tierce__log_repeated(TIERCE_LOG_WARN, "node_connection_refused", "port=%u", base->port);
        close(fd);
        return;
    }
    struct arrival *arrival = tierce__alloc(sizeof(*arrival));
    if (arrival == NULL) {
        count_out(door->node, &address);
        close(fd);
        return;
    }
    struct tierce__poll_loop *loop =
        tierce__poll_emptiest(door->node->loops, door->node->loop_count);
    uint64_t id = 1 + atomic_fetch_add_explicit(&door->node->ids, 1, memory_order_relaxed);
    *arrival = (struct arrival){.task = {.run = arrive},
                                .opts = {.loop = loop,
                                         .node = door->node,
                                         .protocol = door->protocol,
                                         .fd = fd,
                                         .tls = door->node->tls,
                                         .address = address,
                                         .id = id,
                                         .gone = gone}};
    tierce__peer_print(arrival->peer, (const struct sockaddr *)peer);
    tierce__node_count(door->node, TIERCE__NODE_connections, 1);
    atomic_fetch_add_explicit(&loop->member_count, 1, memory_order_relaxed);
    tierce__loop_post(&loop->base, &arrival->task);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int tierce__door_open(struct tierce__door **out, struct tierce__node *node,
                      const struct tierce__protocol *protocol, const char *host, uint16_t *port,
                      char why[256])
{
    TIERCE_ASSERT(node->loop_count > 0);
    struct tierce__door *door = tierce__calloc(1, sizeof(*door));
    snprintf(why, 256, "no memory");
    if (door == NULL)
        return -ENOMEM;
    *door = (struct tierce__door){.base = {.loop = node->loops[0],
                                           .accepted = hand_on,
                                           .shortage = "node_no_descriptor",
                                           .port = *port},
                                  .node = node,
                                  .protocol = protocol};
    char reason[256];
    int rc = tierce__poll_door_open(&door->base, host, reason);
    if (rc < 0) {
        snprintf(why, 256, "listen.%s_port: %.200s", protocol->name, reason);
        tierce__free(door);
        return rc;
    }
    *port = door->base.port;
    *out = door;
    return 0;
}

void tierce__door_close(struct tierce__door *door)
{
    if (door == NULL)
        return;
    tierce__poll_door_close(&door->base);
    tierce__free(door);
}
