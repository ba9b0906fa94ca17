/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_socket.h"
#include "net/server/http/http.h"
#include "net/server/grpc/reflection/reflection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SERVER_MAGIC    0x74727372u
#define LAST_WORDS_MS   1000u
#define ASIDE_QUEUE_MAX 64u

/* One listener of either protocol; the other is NULL. */
struct entrance {
    struct tierce__grpc_listener *grpc;
    struct tierce__http *http;
    struct tierce__addresses *addresses; /* or NULL */
    struct tierce__tls tls;
};

/* The reloaded files of a listener, by protocol. */
struct fresh {
    struct tierce__tls_context *grpc;
    struct tierce__http_credentials *http;
};

struct tierce__server {
    uint32_t magic;
    struct tierce__shared shared;
    struct tierce__reflection *reflection;
    struct tierce__poll_loop **loops;
    uint32_t loop_count;
    struct entrance *entrances;
    size_t entrance_count;
};

static size_t or_else(size_t value, size_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static void share(struct tierce__shared *shared, const struct tierce__server_opts *opts)
{
    shared->message_bytes_max = or_else(opts->message_bytes_max, (size_t)64 << 20);
    shared->held.max = or_else(opts->held_bytes_max, (size_t)1 << 30);
    shared->stream_buffer_max = or_else(opts->stream_buffer_max, (size_t)4 << 20);
    shared->streams_max = (uint32_t)or_else(opts->streams_max, 4096);
    shared->transfer_ms = (uint32_t)or_else(opts->transfer_ms, 60000);
    shared->is_serving = opts->is_serving;
    shared->is_serving_arg = opts->is_serving_arg;
}

static int start_loops(struct tierce__server *server, uint32_t count)
{
    TIERCE_ASSERT(server->loop_count == 0 && count > 0);
    server->loops = tierce__calloc(count, sizeof(*server->loops));
    if (server->loops == NULL)
        return -ENOMEM;
    while (server->loop_count < count) {
        int rc = tierce__poll_loop_start(&server->loops[server->loop_count]);
        if (rc != 0)
            return rc;
        server->loop_count++;
    }
    TIERCE_ASSERT(server->loop_count == count);
    return 0;
}

static int open_entrance(struct tierce__server *server, const struct tierce__listener *listener,
                         const struct tierce__server_opts *opts, char why[256])
{
    TIERCE_ASSERT(server->entrance_count < opts->listener_count);
    struct entrance *entrance = &server->entrances[server->entrance_count++];
    entrance->tls = listener->tls;
    if (opts->connections_per_address > 0 &&
        tierce__addresses_create(&entrance->addresses, opts->connections_per_address) != 0)
        return -ENOMEM;
    uint32_t threads = (uint32_t)or_else(opts->loops, tierce__processors());
    uint32_t connections_max = (uint32_t)or_else(opts->connections_max, 4096);
    if (listener->protocol == TIERCE__SERVE_HTTP)
        return tierce__http_start(
            &entrance->http,
            &(struct tierce__http_opts){.shared = &server->shared,
                                        .listener = listener,
                                        .threads = (uint32_t)or_else(listener->threads, threads),
                                        .connections_max = connections_max,
                                        .addresses = entrance->addresses},
            why);
    int rc = server->loop_count == 0 ? start_loops(server, threads) : 0;
    if (rc != 0) {
        snprintf(why, 256, "cannot start a loop: %s", tierce_strerror(rc));
        return rc;
    }
    return tierce__grpc_listener_start(
        &entrance->grpc,
        &(struct tierce__grpc_listener_opts){.shared = &server->shared,
                                             .loops = server->loops,
                                             .loop_count = server->loop_count,
                                             .listener = listener,
                                             .connections_max = connections_max,
                                             .addresses = entrance->addresses},
        why);
}

/* Files that cannot be loaded are reported by their own names, before a port is opened: the first
 * port is not the reason. */
static int check_files(const struct tierce__server_opts *opts, char why[256])
{
    const struct tierce__tls *last = NULL;
    for (size_t i = 0; i < opts->listener_count; i++) {
        const struct tierce__tls *tls = &opts->listeners[i].tls;
        struct tierce__tls_context *context = NULL;
        if (tls->certificate == NULL || (last != NULL && memcmp(last, tls, sizeof(*tls)) == 0))
            continue;
        int rc = tierce__tls_server_context(&context, tls, why);
        tierce__tls_context_destroy(context);
        if (rc != 0)
            return rc;
        last = tls;
    }
    return 0;
}

static int start(struct tierce__server *server, const struct tierce__server_opts *opts,
                 char why[256])
{
    snprintf(why, 256, "no memory");
    share(&server->shared, opts);
    server->entrances = tierce__calloc(opts->listener_count, sizeof(*server->entrances));
    if (server->entrances == NULL)
        return -ENOMEM;
    int rc = tierce__workers_create(&server->shared.workers, (uint32_t)or_else(opts->workers, 4),
                                    (uint32_t)or_else(opts->queue_max, 4096));
    if (rc == 0)
        rc = tierce__workers_create(&server->shared.aside, 1, ASIDE_QUEUE_MAX);
    if (rc != 0) {
        snprintf(why, 256, "cannot start the workers: %s", tierce_strerror(rc));
        return rc;
    }
    if (opts->descriptors != NULL) {
        rc = tierce__reflection_create(&server->reflection, opts->descriptors,
                                       opts->descriptor_bytes);
        if (rc != 0) {
            snprintf(why, 256, "the descriptors are not a FileDescriptorSet");
            return rc;
        }
        server->shared.reflection = server->reflection;
    }
    rc = check_files(opts, why);
    if (rc != 0)
        return rc;
    size_t i = 0;
    while (rc == 0 && i < opts->listener_count)
        rc = open_entrance(server, &opts->listeners[i++], opts, why);
    if (rc != 0 && opts->listeners[i - 1].name != NULL) {
        char text[256];
        snprintf(text, sizeof(text), "%.40s: %.210s", opts->listeners[i - 1].name, why);
        memcpy(why, text, sizeof(text));
    }
    return rc;
}

int tierce__server_start(struct tierce__server **out, const struct tierce__server_opts *opts,
                         char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__server *server = tierce__calloc(1, sizeof(*server));
    if (server == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    server->magic = SERVER_MAGIC;
    int rc = start(server, opts, why);
    if (rc != 0) {
        tierce__server_stop(server, 0);
        return rc;
    }
    why[0] = '\0';
    *out = server;
    return 0;
}

uint16_t tierce__server_port(const struct tierce__server *server, size_t listener)
{
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    TIERCE_ASSERT(listener < server->entrance_count);
    const struct entrance *entrance = &server->entrances[listener];
    return entrance->http != NULL ? tierce__http_port(entrance->http)
                                  : tierce__grpc_listener_port(entrance->grpc);
}

void tierce__server_waiting(const struct tierce__server *server, uint32_t *workers, uint32_t *aside)
{
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    *workers = tierce__workers_waiting(server->shared.workers);
    *aside = tierce__workers_waiting(server->shared.aside);
}

/* ---- reloaded certificates ------------------------------------------------------------------- */

static int read_fresh(struct fresh *out, const struct entrance *entrance, char why[256])
{
    if (entrance->tls.certificate == NULL)
        return 0;
    return entrance->http != NULL ? tierce__http_credentials_read(&out->http, &entrance->tls, why)
                                  : tierce__tls_server_context(&out->grpc, &entrance->tls, why);
}

static void exchange(const struct entrance *entrance, struct fresh *fresh)
{
    if (fresh->http != NULL)
        tierce__http_exchange(entrance->http, fresh->http);
    if (fresh->grpc != NULL)
        tierce__grpc_listener_exchange(entrance->grpc, fresh->grpc);
    fresh->http = NULL;
}

int tierce__server_reload(struct tierce__server *server, char why[256])
{
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    struct fresh *fresh = tierce__calloc(server->entrance_count + 1, sizeof(*fresh));
    int rc = fresh != NULL ? 0 : -ENOMEM;
    snprintf(why, 256, "no memory");
    for (size_t i = 0; rc == 0 && i < server->entrance_count; i++)
        rc = read_fresh(&fresh[i], &server->entrances[i], why);
    for (size_t i = 0; rc == 0 && i < server->entrance_count; i++)
        exchange(&server->entrances[i], &fresh[i]);
    for (size_t i = 0; fresh != NULL && i < server->entrance_count; i++) {
        tierce__http_credentials_drop(fresh[i].http);
        tierce__tls_context_destroy(fresh[i].grpc);
    }
    tierce__free(fresh);
    if (rc == 0)
        why[0] = '\0';
    return rc;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The number of remaining connections, calls and handlers. */
static uint64_t left(const struct tierce__server *server)
{
    uint64_t count = atomic_load_explicit(&server->shared.handlers, memory_order_acquire);
    for (uint32_t i = 0; i < server->loop_count; i++)
        count += atomic_load_explicit(&server->loops[i]->member_count, memory_order_acquire);
    for (size_t i = 0; i < server->entrance_count; i++)
        if (server->entrances[i].http != NULL)
            count += tierce__http_calls(server->entrances[i].http);
    return count;
}

/* The last holder must not touch the server afterwards, so it cannot wake this thread. */
static void wait_until_empty(const struct tierce__server *server, uint64_t deadline_ns)
{
    while (left(server) > 0 && tierce__now_ns() < deadline_ns)
        usleep(1000);
}

static void begin_drain(struct tierce__server *server)
{
    atomic_store(&server->shared.stopping, true);
    for (size_t i = 0; i < server->entrance_count; i++) {
        tierce__grpc_listener_close(server->entrances[i].grpc);
        if (server->entrances[i].http != NULL)
            tierce__http_drain(server->entrances[i].http);
    }
    for (uint32_t i = 0; i < server->loop_count; i++)
        tierce__grpc_sockets_drain(server->loops[i]);
}

static void give_up(struct tierce__server *server)
{
    for (size_t i = 0; i < server->entrance_count; i++)
        if (server->entrances[i].http != NULL)
            tierce__http_give_up(server->entrances[i].http);
    for (uint32_t i = 0; i < server->loop_count; i++)
        tierce__grpc_sockets_give_up(server->loops[i]);
}

void tierce__server_stop(struct tierce__server *server, uint32_t drain_ms)
{
    if (server == NULL)
        return;
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    begin_drain(server);
    wait_until_empty(server, tierce__deadline_in_ms(drain_ms));
    give_up(server);
    wait_until_empty(server, tierce__deadline_in_ms(LAST_WORDS_MS));
    for (size_t i = 0; i < server->entrance_count; i++)
        if (server->entrances[i].http != NULL)
            tierce__http_cut(server->entrances[i].http);
    wait_until_empty(server, TIERCE__DEADLINE_NEVER);
    TIERCE_ASSERT(left(server) == 0);
    tierce__workers_destroy(server->shared.aside);
    tierce__workers_destroy(server->shared.workers);
    for (uint32_t i = 0; i < server->loop_count; i++)
        tierce__poll_loop_stop(server->loops[i]);
    for (size_t i = 0; i < server->entrance_count; i++) {
        tierce__http_stop(server->entrances[i].http);
        tierce__grpc_listener_destroy(server->entrances[i].grpc);
        tierce__addresses_destroy(server->entrances[i].addresses);
    }
    tierce__reflection_destroy(server->reflection);
    tierce__free(server->entrances);
    tierce__free(server->loops);
    server->magic = 0;
    tierce__free(server);
}
