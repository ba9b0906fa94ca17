/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "net/server/http/http_private.h"
#include "net/listen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MEMORY (32u << 10) /* of a connection, for one request's headers */
#define SILENCE_S     30u         /* of a client between or inside of requests */
#define LOOK_MS       1000u       /* interval of checks for closed connections */
#define SPARE         4u /* connections per thread beyond the limit, while they are being closed */

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Handles calls past their deadline. A client with an incomplete request is disconnected; a waiting
 * client gets an answer, and the same time again to take it. */
static void retire(struct tierce__http *http, struct tierce__http_call *call, unsigned status,
                   const char *why)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE_ASSERT(!tierce__list_empty(&call->node));
    tierce__list_remove(&call->node);
    tierce__list_push_back(&http->late, &call->node);
    call->taken_by_ns = tierce__deadline_in_ms(http->shared->transfer_ms);
    atomic_store_explicit(&call->base.is_over, true, memory_order_relaxed);
    if (!call->was_dispatched)
        (void)shutdown(call->fd, SHUT_RDWR);
    atomic_fetch_add_explicit(&call->base.holders, 1, memory_order_relaxed);
    tierce__lock_drop(&http->lock);
    tierce__http_settle(call, status, tierce__http_error(why));
    tierce__call_drop(&call->base);
    tierce__lock_take(&http->lock);
}

static void retire_first(struct tierce__http *http, unsigned status, const char *why)
{
    TIERCE_ASSERT(!tierce__list_empty(&http->calls));
    retire(http, TIERCE__CONTAINER_OF(http->calls.next, struct tierce__http_call, node), status,
           why);
}

static void cut_first_late(struct tierce__http *http)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE_ASSERT(!tierce__list_empty(&http->late));
    struct tierce__http_call *call =
        TIERCE__CONTAINER_OF(http->late.next, struct tierce__http_call, node);
    tierce__list_remove(&call->node);
    tierce__list_push_back(&http->past, &call->node);
    if (!call->is_stream)
        (void)shutdown(call->fd, SHUT_RDWR);
}

static void cut_first_idle(struct tierce__http *http)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE_ASSERT(!tierce__list_empty(&http->idle));
    struct tierce__http_connection *c =
        TIERCE__CONTAINER_OF(http->idle.next, struct tierce__http_connection, node);
    tierce__list_remove(&c->node);
    (void)shutdown(c->fd, SHUT_RDWR);
}

/* Returns the first call with an incomplete request, or NULL. */
static struct tierce__http_call *first_unheard(const struct tierce__http *http)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE__LIST_FOR_EACH (node, &http->calls) {
        struct tierce__http_call *call = TIERCE__CONTAINER_OF(node, struct tierce__http_call, node);
        if (!call->was_dispatched)
            return call;
    }
    return NULL;
}

/* If the limit is exceeded, the connection that has been without a complete request for the longest
 * time is closed, so idle connections do not lock out other clients. If all are being served, none
 * is closed. */
static void make_room(struct tierce__http *http)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE_ASSERT(http->excess > 0);
    http->excess--;
    struct tierce__http_call *call = first_unheard(http);
    const struct tierce__http_connection *idle =
        tierce__list_empty(&http->idle)
            ? NULL
            : TIERCE__CONTAINER_OF(http->idle.next, struct tierce__http_connection, node);
    if (idle == NULL && call == NULL)
        return;
    tierce__log_repeated(TIERCE_LOG_WARN, "serve_connection_gave_way", "port=%u limit=%u",
                         http->port, http->connections_max);
    if (call == NULL || (idle != NULL && idle->deadline_ns <= call->base.info.deadline_ns))
        cut_first_idle(http);
    else
        retire(http, call, 503, "too many connections");
}

/* libmicrohttpd misses a close that arrives together with the beginning of a request: it reads once
 * and then waits SILENCE_S for the rest of the request, while the dead connection occupies a slot.
 * Shutting down our reading side notifies it again; a request that is complete can still be
 * answered. */
static void tell_of_those_that_left(struct tierce__http *http)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE__LIST_FOR_EACH (node, &http->calls) {
        const struct tierce__http_call *call =
            TIERCE__CONTAINER_OF(node, struct tierce__http_call, node);
        if (!call->was_dispatched && tierce__http_has_left(call->fd))
            (void)shutdown(call->fd, SHUT_RD);
    }
    TIERCE__LIST_FOR_EACH (node, &http->idle) {
        int fd = TIERCE__CONTAINER_OF(node, struct tierce__http_connection, node)->fd;
        if (tierce__http_has_left(fd))
            (void)shutdown(fd, SHUT_RD);
    }
    if (atomic_exchange(&http->is_short, false) && !tierce__list_empty(&http->idle))
        cut_first_idle(http);
    http->look_ns = tierce__deadline_in_ms(LOOK_MS);
}

/* The first of each list, or never. */
struct due {
    uint64_t call_ns, late_ns, idle_ns, look_ns;
};

static struct due find_due(const struct tierce__http *http)
{
    tierce__lock_assert_held(&http->lock);
    struct due due = {TIERCE__DEADLINE_NEVER, TIERCE__DEADLINE_NEVER, TIERCE__DEADLINE_NEVER,
                      TIERCE__DEADLINE_NEVER};
    if (!tierce__list_empty(&http->calls))
        due.call_ns = TIERCE__CONTAINER_OF(http->calls.next, struct tierce__http_call, node)
                          ->base.info.deadline_ns;
    if (!tierce__list_empty(&http->late))
        due.late_ns =
            TIERCE__CONTAINER_OF(http->late.next, struct tierce__http_call, node)->taken_by_ns;
    if (!tierce__list_empty(&http->idle))
        due.idle_ns = TIERCE__CONTAINER_OF(http->idle.next, struct tierce__http_connection, node)
                          ->deadline_ns;
    if (!tierce__list_empty(&http->calls) || !tierce__list_empty(&http->idle))
        due.look_ns = http->look_ns;
    return due;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void *keep_time(void *arg)
{
    struct tierce__http *http = arg;
    tierce__lock_take(&http->lock);
    while (!http->is_ending) {
        struct due due = find_due(http);
        uint64_t now_ns = tierce__now_ns();
        if (http->excess > 0)
            make_room(http);
        else if (due.call_ns <= now_ns)
            retire_first(http, 504, "deadline exceeded");
        else if (due.late_ns <= now_ns)
            cut_first_late(http);
        else if (due.idle_ns <= now_ns)
            cut_first_idle(http);
        else if (due.look_ns <= now_ns)
            tell_of_those_that_left(http);
        else
            (void)tierce__cond_wait(
                &http->changed, &http->lock,
                earlier(earlier(due.call_ns, due.late_ns), earlier(due.idle_ns, due.look_ns)));
    }
    tierce__lock_drop(&http->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t tls_options(struct tierce__http *http, struct MHD_OptionItem *options)
{
    size_t n = 0;
    if (http->certificate != NULL) {
        options[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, http->certificate};
        options[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, http->key};
        options[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, http->priorities};
    }
    if (http->client_ca != NULL)
        options[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, http->client_ca};
    TIERCE_ASSERT(n <= 4);
    options[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    return n;
}

static int start_daemon(struct tierce__http *http, uint32_t threads, uint32_t connections_max)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[5];
    if (tls_options(http, tls) > 0)
        flags |= MHD_USE_TLS;
    if (threads > connections_max)
        threads = connections_max;
    /* clang-format off */
    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, tierce__http_call_access, http,
        MHD_OPTION_EXTERNAL_LOGGER, tierce__http_connection_log, http,
        MHD_OPTION_LISTEN_SOCKET, http->fd,
        MHD_OPTION_THREAD_POOL_SIZE, threads,
        MHD_OPTION_CONNECTION_LIMIT, connections_max + threads * SPARE,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, SILENCE_S,
        MHD_OPTION_URI_LOG_CALLBACK, tierce__http_call_begin, http,
        MHD_OPTION_NOTIFY_COMPLETED, tierce__http_call_completed, http,
        MHD_OPTION_NOTIFY_CONNECTION, tierce__http_connection_notify, http,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_ARRAY, tls,
        MHD_OPTION_END);
    /* clang-format on */
    return http->daemon != NULL ? 0 : -EIO;
}

int tierce__http_start(struct tierce__http **out, const struct tierce__http_opts *opts,
                       char why[256])
{
    const struct tierce__listener *config = opts->listener;
    struct tierce__http *http = tierce__calloc(1, sizeof(*http));
    snprintf(why, 256, "no memory");
    if (http == NULL)
        return -ENOMEM;
    http->shared = opts->shared;
    http->fd = -1;
    atomic_init(&http->spare_fd, tierce__listen_spare());
    http->port = config->port;
    http->addresses = opts->addresses;
    http->connections_max = opts->connections_max;
    tierce__lock_init(&http->lock, TIERCE__LOCK_SERVE_HTTP);
    tierce__cond_init(&http->changed);
    tierce__list_init(&http->calls);
    tierce__list_init(&http->late);
    tierce__list_init(&http->past);
    tierce__list_init(&http->idle);
    tierce__list_init(&http->streams);
    int rc = tierce__routes_init(&http->routes, config->routes, config->route_count);
    if (rc == 0 && config->tls.certificate != NULL)
        rc = tierce__http_tls_read(http, &config->tls, why);
    if (rc == 0)
        rc = tierce__listen_tcp(&http->fd, &http->port, config->host, why);
    if (rc != 0)
        goto out;
    http->is_loopback = tierce__listens_on_loopback(http->fd);
    rc = -pthread_create(&http->keeper, NULL, keep_time, http);
    http->has_keeper = rc == 0;
    if (rc == 0)
        rc = start_daemon(http, opts->threads, opts->connections_max);
    if (rc != 0)
        snprintf(why, 256, "cannot start the HTTP server on port %u: %s", http->port,
                 tierce_strerror(rc));
out:
    if (rc != 0)
        tierce__http_stop(http);
    else
        *out = http;
    return rc;
}

void tierce__http_exchange(struct tierce__http *http, struct tierce__http_credentials *fresh)
{
    tierce__lock_take(&http->lock);
    struct tierce__http_credentials *before = http->credentials;
    http->credentials = fresh;
    tierce__lock_drop(&http->lock);
    tierce__http_credentials_drop(before);
}

uint16_t tierce__http_port(const struct tierce__http *http)
{
    return http->port;
}

void tierce__http_drain(struct tierce__http *http)
{
    tierce__lock_take(&http->lock);
    http->is_draining = true;
    tell_of_those_that_left(http);
    tierce__lock_drop(&http->lock);
    /* The socket may be closed only when the daemon has ended; new clients are rejected at once. */
    if (http->daemon != NULL && MHD_quiesce_daemon(http->daemon) != MHD_INVALID_SOCKET)
        (void)shutdown(http->fd, SHUT_RDWR);
    tierce__http_streams_end(http);
}

uint32_t tierce__http_calls(struct tierce__http *http)
{
    tierce__lock_take(&http->lock);
    uint32_t count = http->call_count;
    tierce__lock_drop(&http->lock);
    return count;
}

void tierce__http_give_up(struct tierce__http *http)
{
    tierce__lock_take(&http->lock);
    while (!tierce__list_empty(&http->calls))
        retire_first(http, 503, "the server is shutting down");
    tierce__lock_drop(&http->lock);
    /* A call may have become a stream meanwhile. */
    tierce__http_streams_end(http);
}

void tierce__http_cut(struct tierce__http *http)
{
    tierce__lock_take(&http->lock);
    struct tierce__list *const lists[] = {&http->late, &http->past};
    for (int i = 0; i < 2; i++)
        TIERCE__LIST_FOR_EACH (node, lists[i])
            (void)shutdown(TIERCE__CONTAINER_OF(node, struct tierce__http_call, node)->fd,
                           SHUT_RDWR);
    tierce__lock_drop(&http->lock);
}

void tierce__http_stop(struct tierce__http *http)
{
    if (http == NULL)
        return;
    if (http->daemon != NULL) {
        (void)MHD_quiesce_daemon(http->daemon); /* or it would close the socket, as we do below */
        MHD_stop_daemon(http->daemon);
    }
    if (http->has_keeper) {
        tierce__lock_take(&http->lock);
        http->is_ending = true;
        tierce__cond_signal(&http->changed);
        tierce__lock_drop(&http->lock);
        pthread_join(http->keeper, NULL);
    }
    if (http->fd >= 0)
        close(http->fd);
    if (http->spare_fd >= 0)
        close(http->spare_fd);
    TIERCE_ASSERT(tierce__list_empty(&http->calls) && tierce__list_empty(&http->late));
    TIERCE_ASSERT(tierce__list_empty(&http->past) && tierce__list_empty(&http->idle));
    TIERCE_ASSERT(tierce__list_empty(&http->streams));
    TIERCE_ASSERT(http->call_count == 0 && http->connection_count == 0);
    tierce__http_tls_fini(http);
    tierce__routes_fini(&http->routes);
    tierce__cond_fini(&http->changed);
    tierce__lock_fini(&http->lock);
    tierce__free(http);
}
