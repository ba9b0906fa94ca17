/* SPDX-License-Identifier: Apache-2.0 */
#include "node/door.h"
#include "base/alloc.h"
#include "base/log_repeat.h"
#include "node/node_private.h"
#include "net/listen.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ACCEPTED_AT_ONCE 64

struct tierce__door {
    struct tierce__poll_source source;
    struct tierce__node *node;
    const struct tierce__protocol *protocol;
    uint16_t port;
    int spare_fd;
    int start_rc;
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
    if (node->addresses != NULL)
        tierce__addresses_leave(node->addresses, address);
    atomic_fetch_sub_explicit(&node->connections_now, 1, memory_order_relaxed);
}

static void gone(struct tierce__connection *connection)
{
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

static struct tierce__poll_loop *emptiest(const struct tierce__node *node)
{
    struct tierce__poll_loop *best = node->loops[0];
    for (size_t i = 1; i < node->loop_count; i++)
        if (atomic_load_explicit(&node->loops[i]->member_count, memory_order_relaxed) <
            atomic_load_explicit(&best->member_count, memory_order_relaxed))
            best = node->loops[i];
    return best;
}

static void hand_on(struct tierce__door *door, int fd, const struct sockaddr_storage *peer)
{
    struct tierce__address address = {{0}};
    if (!count_in(door->node, &address, (const struct sockaddr *)peer)) {
        tierce__log_repeated(TIERCE_LOG_WARN, "node_connection_refused", "port=%u", door->port);
        close(fd);
        return;
    }
    struct arrival *arrival = tierce__alloc(sizeof(*arrival));
    if (arrival == NULL) {
        count_out(door->node, &address);
        close(fd);
        return;
    }
    struct tierce__poll_loop *loop = emptiest(door->node);
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

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    struct tierce__door *door = TIERCE__CONTAINER_OF(source, struct tierce__door, source);
    (void)events;
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct sockaddr_storage peer;
        int fd = tierce__listen_accept(source->fd, &door->spare_fd, &peer);
        if (fd >= 0)
            hand_on(door, fd, &peer);
        else if (fd == -EMFILE)
            tierce__log_repeated(TIERCE_LOG_WARN, "node_no_descriptor", "port=%u", door->port);
        else
            return; /* edge triggered: epoll reports the next connection */
    }
    tierce__poll_again(door->node->loops[0], source);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void start(void *arg)
{
    struct tierce__door *door = arg;
    door->start_rc = tierce__poll_watch(door->node->loops[0], &door->source);
}

static void end(void *arg)
{
    tierce__poll_close(&((struct tierce__door *)arg)->source);
}

static void destroy(struct tierce__door *door)
{
    if (door->source.fd >= 0)
        close(door->source.fd);
    if (door->spare_fd >= 0)
        close(door->spare_fd);
    tierce__free(door);
}

int tierce__door_open(struct tierce__door **out, struct tierce__node *node,
                      const struct tierce__protocol *protocol, const char *host, uint16_t *port,
                      char why[256])
{
    struct tierce__door *door = tierce__calloc(1, sizeof(*door));
    snprintf(why, 256, "no memory");
    if (door == NULL)
        return -ENOMEM;
    door->source = (struct tierce__poll_source){.fd = -1, .ready = on_ready};
    door->node = node;
    door->protocol = protocol;
    door->spare_fd = tierce__listen_spare();
    char reason[256];
    int rc = tierce__listen_tcp(&door->source.fd, port, host, reason);
    if (rc < 0) {
        snprintf(why, 256, "listen.%s_port: %.200s", protocol->name, reason);
    } else {
        door->port = *port;
        tierce__loop_call(&node->loops[0]->base, start, door);
        rc = door->start_rc;
        if (rc < 0)
            snprintf(why, 256, "port %u cannot be watched: %s", *port, tierce_strerror(rc));
    }
    if (rc < 0)
        destroy(door);
    else
        *out = door;
    return rc;
}

void tierce__door_close(struct tierce__door *door)
{
    if (door == NULL)
        return;
    tierce__loop_call(&door->node->loops[0]->base, end, door);
    destroy(door);
}
