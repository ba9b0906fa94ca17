/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/log_repeat.h"
#include "net/server/grpc/grpc_socket_private.h"
#include "net/listen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * The first loop accepts; each socket goes to the loop that has the fewest. With one listening
 * socket for each loop instead, a few connections often land on the same one.
 */

struct tierce__grpc_listener {
    struct tierce__grpc_origin origin;
    struct tierce__poll_loop *const *loops;
    size_t loop_count;
    uint32_t connections_max;
    struct tierce__routes routes;
    uint16_t port;
    struct tierce__poll_source source; /* -1: it does not accept any more */
    int spare_fd, start_rc;
};

static void arrive(struct tierce__task *task)
{
    tierce__grpc_socket_open(TIERCE__CONTAINER_OF(task, struct tierce__grpc_arrival, task));
}

static struct tierce__poll_loop *emptiest(const struct tierce__grpc_listener *listener)
{
    struct tierce__poll_loop *best = listener->loops[0];
    for (size_t i = 1; i < listener->loop_count; i++)
        if (atomic_load_explicit(&listener->loops[i]->member_count, memory_order_relaxed) <
            atomic_load_explicit(&best->member_count, memory_order_relaxed))
            best = listener->loops[i];
    return best;
}

/* Counts a connection unless a limit is reached. */
static bool may_enter(struct tierce__grpc_listener *listener, struct tierce__address *out,
                      const struct sockaddr *address)
{
    struct tierce__grpc_origin *origin = &listener->origin;
    uint32_t before = atomic_fetch_add_explicit(&origin->sockets, 1, memory_order_relaxed);
    if (before < listener->connections_max &&
        (origin->addresses == NULL || tierce__addresses_enter(origin->addresses, out, address)))
        return true;
    atomic_fetch_sub_explicit(&origin->sockets, 1, memory_order_relaxed);
    return false;
}

static void hand_on(struct tierce__grpc_listener *listener, int fd, const struct sockaddr *address)
{
    struct tierce__grpc_arrival *arrival = tierce__alloc(sizeof(*arrival));
    char peer[TIERCE__PEER_BYTES];
    struct tierce__address counted = {{0}};
    tierce__peer_print(peer, address);
    if (arrival == NULL || !may_enter(listener, &counted, address)) {
        tierce__free(arrival);
        close(fd);
        tierce__log_repeated(TIERCE_LOG_WARN, "serve_connection_refused", "port=%u peer=%s",
                             listener->port, peer);
        return;
    }
    *arrival = (struct tierce__grpc_arrival){.task = {.run = arrive},
                                             .origin = &listener->origin,
                                             .loop = emptiest(listener),
                                             .fd = fd,
                                             .address = counted};
    memcpy(arrival->peer, peer, sizeof(peer));
    atomic_fetch_add_explicit(&arrival->loop->member_count, 1, memory_order_relaxed);
    if (tierce__loop_is_here(&arrival->loop->base))
        arrive(&arrival->task);
    else
        tierce__loop_post(&arrival->loop->base, &arrival->task);
}

#define ACCEPTED_AT_ONCE 64

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    (void)events;
    struct tierce__grpc_listener *listener =
        TIERCE__CONTAINER_OF(source, struct tierce__grpc_listener, source);
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct sockaddr_storage address;
        int fd = tierce__listen_accept(source->fd, &listener->spare_fd, &address);
        if (fd >= 0)
            hand_on(listener, fd, (const struct sockaddr *)&address);
        else if (fd == -EMFILE)
            tierce__log_repeated(TIERCE_LOG_WARN, "serve_no_descriptor", "port=%u", listener->port);
        else
            return; /* edge triggered: epoll reports the next connection */
    }
    tierce__poll_again(listener->loops[0], source);
}

static void start_accepting(void *arg)
{
    struct tierce__grpc_listener *listener = arg;
    listener->start_rc = tierce__poll_watch(listener->loops[0], &listener->source);
}

static void stop_accepting(void *arg)
{
    tierce__poll_close(&((struct tierce__grpc_listener *)arg)->source);
}

int tierce__grpc_listener_start(struct tierce__grpc_listener **out,
                                const struct tierce__grpc_listener_opts *opts, char why[256])
{
    const struct tierce__listener *config = opts->listener;
    struct tierce__grpc_listener *listener = tierce__calloc(1, sizeof(*listener));
    int rc = -ENOMEM;
    snprintf(why, 256, "no memory");
    if (listener == NULL)
        return rc;
    listener->source = (struct tierce__poll_source){.fd = -1, .ready = on_ready};
    listener->spare_fd = tierce__listen_spare();
    listener->loops = opts->loops;
    listener->loop_count = opts->loop_count;
    listener->connections_max = opts->connections_max;
    listener->port = config->port;
    listener->origin =
        (struct tierce__grpc_origin){.shared = opts->shared, .addresses = opts->addresses};
    rc = tierce__routes_init(&listener->routes, config->routes, config->route_count);
    listener->origin.routes = &listener->routes;
    if (rc == 0 && config->tls.certificate != NULL)
        rc = tierce__tls_server_context(&listener->origin.tls, &config->tls, why);
    if (rc == 0)
        rc = tierce__listen_tcp(&listener->source.fd, &listener->port, config->host, why);
    if (rc == 0) {
        tierce__loop_call(&listener->loops[0]->base, start_accepting, listener);
        rc = listener->start_rc;
        if (rc != 0)
            snprintf(why, 256, "port %u cannot be watched: %s", listener->port,
                     tierce_strerror(rc));
    }
    if (rc != 0)
        tierce__grpc_listener_destroy(listener);
    else
        *out = listener;
    return rc;
}

uint16_t tierce__grpc_listener_port(const struct tierce__grpc_listener *listener)
{
    return listener->port;
}

void tierce__grpc_listener_exchange(struct tierce__grpc_listener *listener,
                                    struct tierce__tls_context *fresh)
{
    tierce__tls_context_exchange(listener->origin.tls, fresh);
}

void tierce__grpc_listener_close(struct tierce__grpc_listener *listener)
{
    if (listener != NULL)
        tierce__loop_call(&listener->loops[0]->base, stop_accepting, listener);
}

void tierce__grpc_listener_destroy(struct tierce__grpc_listener *listener)
{
    if (listener == NULL)
        return;
    if (listener->source.fd >= 0)
        close(listener->source.fd);
    if (listener->spare_fd >= 0)
        close(listener->spare_fd);
    tierce__tls_context_destroy(listener->origin.tls);
    tierce__routes_fini(&listener->routes);
    tierce__free(listener);
}
