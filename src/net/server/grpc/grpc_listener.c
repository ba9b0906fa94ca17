/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log_repeat.h"
#include "net/server/grpc/grpc_socket_private.h"
#include "net/listen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct tierce__grpc_listener {
    struct tierce__grpc_origin origin;
    struct tierce__poll_loop *const *loops;
    size_t loop_count;
    struct tierce__routes routes;
    struct tierce__poll_door door;
};

static void arrive(struct tierce__task *task)
{
    tierce__grpc_socket_open(TIERCE__CONTAINER_OF(task, struct tierce__grpc_arrival, task));
}

/* Counts a connection unless a limit is reached. */
static bool may_enter(struct tierce__grpc_listener *listener, struct tierce__address *out,
                      const struct sockaddr *address)
{
    struct tierce__grpc_origin *origin = &listener->origin;
    uint32_t before = atomic_fetch_add_explicit(&origin->sockets, 1, memory_order_relaxed);
    if (before < origin->connections_max &&
        (origin->addresses == NULL || tierce__addresses_enter(origin->addresses, out, address)))
        return true;
    atomic_fetch_sub_explicit(&origin->sockets, 1, memory_order_relaxed);
    return false;
}

static void hand_on(struct tierce__poll_door *door, int fd, const struct sockaddr_storage *from)
{
    struct tierce__grpc_listener *listener =
        TIERCE__CONTAINER_OF(door, struct tierce__grpc_listener, door);
    TIERCE_ASSERT(tierce__loop_is_here(&door->loop->base));
    const struct sockaddr *address = (const struct sockaddr *)from;
    struct tierce__grpc_arrival *arrival = tierce__alloc(sizeof(*arrival));
    char peer[TIERCE__PEER_BYTES];
    struct tierce__address counted = {{0}};
    tierce__peer_print(peer, address);
    if (arrival == NULL || !may_enter(listener, &counted, address)) {
        tierce__free(arrival);
        close(fd);
        tierce__log_repeated(TIERCE_LOG_WARN, "serve_connection_refused", "port=%u peer=%s",
                             door->port, peer);
        return;
    }
    *arrival = (struct tierce__grpc_arrival){
        .task = {.run = arrive},
        .origin = &listener->origin,
        .loop = tierce__poll_emptiest(listener->loops, listener->loop_count),
        .fd = fd,
        .address = counted};
    memcpy(arrival->peer, peer, sizeof(peer));
    atomic_fetch_add_explicit(&arrival->loop->member_count, 1, memory_order_relaxed);
    if (tierce__loop_is_here(&arrival->loop->base))
        arrive(&arrival->task);
    else
        tierce__loop_post(&arrival->loop->base, &arrival->task);
}

int tierce__grpc_listener_start(struct tierce__grpc_listener **out,
                                const struct tierce__grpc_listener_opts *opts, char why[256])
{
    const struct tierce__listener *config = opts->listener;
    struct tierce__grpc_listener *listener = tierce__calloc(1, sizeof(*listener));
    TIERCE_ASSERT(opts->loop_count > 0);
    int rc = -ENOMEM;
    snprintf(why, 256, "no memory");
    if (listener == NULL)
        return rc;
    listener->loops = opts->loops;
    listener->loop_count = opts->loop_count;
    listener->door = (struct tierce__poll_door){.loop = opts->loops[0],
                                                .accepted = hand_on,
                                                .shortage = "serve_no_descriptor",
                                                .port = config->port};
    listener->origin = (struct tierce__grpc_origin){.shared = opts->shared,
                                                    .addresses = opts->addresses,
                                                    .connections_max = opts->connections_max};
    rc = tierce__routes_init(&listener->routes, config->routes, config->route_count);
    listener->origin.routes = &listener->routes;
    if (rc == 0 && config->tls.certificate != NULL)
        rc = tierce__tls_server_context(&listener->origin.tls, &config->tls, why);
    if (rc == 0)
        rc = tierce__poll_door_open(&listener->door, config->host, why);
    if (rc != 0)
        tierce__grpc_listener_destroy(listener);
    else
        *out = listener;
    return rc;
}

uint16_t tierce__grpc_listener_port(const struct tierce__grpc_listener *listener)
{
    return listener->door.port;
}

void tierce__grpc_listener_exchange(struct tierce__grpc_listener *listener,
                                    struct tierce__tls_context *fresh)
{
    tierce__tls_context_exchange(listener->origin.tls, fresh);
}

void tierce__grpc_listener_close(struct tierce__grpc_listener *listener)
{
    if (listener != NULL)
        tierce__poll_door_close(&listener->door);
}

void tierce__grpc_listener_destroy(struct tierce__grpc_listener *listener)
{
    if (listener == NULL)
        return;
    TIERCE_ASSERT(atomic_load_explicit(&listener->origin.sockets, memory_order_relaxed) == 0);
    tierce__tls_context_destroy(listener->origin.tls);
    tierce__routes_fini(&listener->routes);
    tierce__free(listener);
}
