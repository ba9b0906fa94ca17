/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_connection.h"
#include "net/server/grpc/grpc_socket_private.h"
#include "net/listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define OPENING_MS     10000u /* for TLS and HTTP/2's preface */
#define CLOSING_MS     1000u  /* time limit for the last output to a client that does not read */
#define STALLED_MS     60000u /* time limit for a client that accepts no bytes */
#define WRITES_AT_ONCE 16
#define READS_AT_ONCE  16

struct socket {
    struct tierce__poll_source source;
    struct tierce__poll_loop *loop;
    struct tierce__grpc_origin *origin;
    struct tierce__list member; /* of the loop */
    struct tierce__task end;
    struct tierce__grpc_connection *connection; /* of TLS: once the certificate is known */
    struct tierce__tls_session *tls;
    struct tierce__deadline patience; /* with the opening, the client's silence, and the end */
    struct tierce__deadline taking;   /* of the output that the socket did not accept at once */
    struct tierce__address address;
    uint8_t *unsent; /* output that the socket did not accept at once, or NULL */
    size_t sent_bytes, unsent_bytes;
    bool has_opened;  /* HTTP/2's preface has come */
    bool is_readable; /* input may wait in the socket */
    bool has_hung_up; /* the end of the input is to be read */
    bool has_failed;  /* no more reads; closed when all output is written */
    char peer[TIERCE__PEER_BYTES];
};

static bool is_closing(const struct socket *socket)
{
    return socket->source.fd < 0;
}

/* Has the output sent after the other sockets' input of this round was read. */
static void mark_dirty(void *arg)
{
    struct socket *socket = arg;
    TIERCE_ASSERT(tierce__loop_is_here(&socket->loop->base));
    if (!is_closing(socket))
        tierce__poll_again(socket->loop, &socket->source);
}

/* The last use of the listener and the loop by a socket. */
static void leave(struct tierce__poll_loop *loop, struct tierce__grpc_origin *origin,
                  const struct tierce__address *address)
{
    TIERCE_ASSERT(atomic_load_explicit(&loop->member_count, memory_order_relaxed) > 0);
    TIERCE_ASSERT(atomic_load_explicit(&origin->sockets, memory_order_relaxed) > 0);
    if (origin->addresses != NULL)
        tierce__addresses_leave(origin->addresses, address);
    atomic_fetch_sub_explicit(&origin->sockets, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&loop->member_count, 1, memory_order_release);
}

static void free_socket(struct tierce__task *task)
{
    struct socket *socket = TIERCE__CONTAINER_OF(task, struct socket, end);
    TIERCE_ASSERT(is_closing(socket));
    TIERCE_ASSERT(tierce__loop_is_here(&socket->loop->base));
    TIERCE_ASSERT(socket->patience.place == 0 && socket->taking.place == 0);
    tierce__list_remove(&socket->member);
    leave(socket->loop, socket->origin, &socket->address);
    tierce__free(socket);
}

static void close_socket(struct socket *socket)
{
    TIERCE_ASSERT(tierce__loop_is_here(&socket->loop->base));
    if (is_closing(socket))
        return;
    tierce__poll_close(&socket->source);
    tierce__deadline_unset(&socket->loop->base.deadlines, &socket->patience);
    tierce__deadline_unset(&socket->loop->base.deadlines, &socket->taking);
    tierce__grpc_connection_destroy(socket->connection);
    tierce__tls_session_destroy(socket->tls);
    tierce__free(socket->unsent);
    socket->connection = NULL;
    socket->tls = NULL;
    socket->unsent = NULL;
    socket->end.run = free_socket; /* later: an event of this round may name the socket */
    tierce__loop_post(&socket->loop->base, &socket->end);
}

static void took_too_long(struct tierce__deadline *deadline)
{
    close_socket(TIERCE__CONTAINER_OF(deadline, struct socket, taking));
}

static void be_patient(struct socket *socket, uint32_t ms)
{
    TIERCE_ASSERT(!is_closing(socket));
    if (tierce__deadline_set(&socket->loop->base.deadlines, &socket->patience,
                             tierce__deadline_in_ms(ms)) != 0)
        close_socket(socket);
}

/* Most of the listener's connections are used: those without calls would keep others out. */
static bool is_crowded(const struct tierce__grpc_origin *origin)
{
    uint32_t sockets = atomic_load_explicit(&origin->sockets, memory_order_relaxed);
    return sockets >= origin->connections_max - origin->connections_max / 4;
}

static void out_of_patience(struct tierce__deadline *deadline)
{
    struct socket *socket = TIERCE__CONTAINER_OF(deadline, struct socket, patience);
    uint32_t ms = socket->origin->shared->transfer_ms;
    if (!socket->has_opened || socket->has_failed) {
        close_socket(socket);
        return;
    }
    if (is_crowded(socket->origin) &&
        tierce__grpc_connection_quiet_ns(socket->connection) >= ms * TIERCE__MS_NS)
        tierce__grpc_connection_drain(socket->connection);
    be_patient(socket, ms);
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Ciphertext: the handshake, then records of plaintext. */
static size_t take_encrypted(struct socket *socket, uint8_t *out, size_t capacity)
{
    size_t n = tierce__tls_take(socket->tls, out, capacity);
    if (n > 0 || socket->connection == NULL)
        return n;
    uint8_t *plain = socket->loop->plain;
    size_t count =
        tierce__grpc_connection_take(socket->connection, plain, sizeof(socket->loop->plain));
    if (count > 0 && tierce__tls_write(socket->tls, plain, count) != 0) {
        socket->has_failed = true;
        return 0;
    }
    return tierce__tls_take(socket->tls, out, capacity);
}

static size_t take(struct socket *socket, uint8_t *out, size_t capacity)
{
    if (socket->tls != NULL)
        return take_encrypted(socket, out, capacity);
    return tierce__grpc_connection_take(socket->connection, out, capacity);
}

/* The number of bytes that the socket accepted; 0 if it was closed, too. */
static size_t send_some(struct socket *socket, const uint8_t *bytes, size_t count)
{
    TIERCE_ASSERT(count > 0 && !is_closing(socket));
    ssize_t n;
    do
        n = send(socket->source.fd, bytes, count, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN)
        close_socket(socket);
    return n > 0 ? (size_t)n : 0;
}

static void keep_unsent(struct socket *socket, const uint8_t *bytes, size_t count)
{
    TIERCE_ASSERT(count > 0);
    TIERCE_ASSERT(socket->unsent == NULL);
    socket->unsent = tierce__alloc(count);
    /* A client that reads very slowly would otherwise hold its answers forever. */
    if (socket->unsent == NULL ||
        tierce__deadline_set(&socket->loop->base.deadlines, &socket->taking,
                             tierce__deadline_in_ms(socket->origin->shared->transfer_ms)) != 0) {
        close_socket(socket);
        return;
    }
    memcpy(socket->unsent, bytes, count);
    socket->unsent_bytes = count;
    socket->sent_bytes = 0;
}

static void send_unsent(struct socket *socket)
{
    TIERCE_DASSERT(socket->sent_bytes < socket->unsent_bytes);
    socket->sent_bytes += send_some(socket, socket->unsent + socket->sent_bytes,
                                    socket->unsent_bytes - socket->sent_bytes);
    if (is_closing(socket) || socket->sent_bytes < socket->unsent_bytes)
        return;
    tierce__free(socket->unsent);
    socket->unsent = NULL;
    tierce__deadline_unset(&socket->loop->base.deadlines, &socket->taking);
}

static void end_if_done(struct socket *socket)
{
    if (socket->has_failed ||
        (socket->connection != NULL && tierce__grpc_connection_is_done(socket->connection)))
        close_socket(socket);
}

/* Writes until there is no more output or the socket is full. A fast socket does not monopolize the
 * loop: after some rounds it waits for its next turn. */
static void flush(struct socket *socket)
{
    uint8_t *out = socket->loop->scratch;
    for (int i = 0; !is_closing(socket) && socket->unsent == NULL; i++) {
        if (i == WRITES_AT_ONCE) {
            mark_dirty(socket);
            return;
        }
        size_t count = take(socket, out, sizeof(socket->loop->scratch));
        if (count == 0) {
            end_if_done(socket);
            return;
        }
        size_t sent = send_some(socket, out, count);
        if (sent < count && !is_closing(socket))
            keep_unsent(socket, out + sent, count - sent);
    }
}

/* ---- in -------------------------------------------------------------------------------------- */

static int make_connection(struct socket *socket)
{
    return tierce__grpc_connection_create(
        &socket->connection,
        &(struct tierce__grpc_connection_opts){
            .shared = socket->origin->shared,
            .loop = &socket->loop->base,
            .routes = socket->origin->routes,
            .peer = socket->peer,
            .certificate = socket->tls != NULL ? tierce__tls_peer_name(socket->tls) : NULL,
            .changed = mark_dirty,
            .arg = socket});
}

static int feed_plain(struct socket *socket, const void *bytes, size_t count)
{
    int rc = tierce__grpc_connection_feed(socket->connection, bytes, count);
    if (rc == 0 && !socket->has_opened && tierce__grpc_connection_is_open(socket->connection)) {
        socket->has_opened = true;
        be_patient(socket, socket->origin->shared->transfer_ms);
    }
    return rc;
}

static int feed_encrypted(struct socket *socket, const void *bytes, size_t count)
{
    int rc = tierce__tls_feed(socket->tls, bytes, count);
    while (rc == 0) {
        uint8_t *plain = socket->loop->plain;
        ssize_t n = tierce__tls_read(socket->tls, plain, sizeof(socket->loop->plain));
        if (socket->connection == NULL && n >= 0 && tierce__tls_is_ready(socket->tls))
            rc = make_connection(socket);
        if (n < 0)
            rc = (int)n;
        if (n <= 0)
            break;
        if (rc == 0)
            rc = feed_plain(socket, plain, (size_t)n);
    }
    return rc;
}

/* Sends the remaining output for a limited time; input is ignored. */
static void fail(struct socket *socket)
{
    socket->has_failed = true;
    be_patient(socket, CLOSING_MS);
}

static void read_some(struct socket *socket)
{
    TIERCE_ASSERT(!is_closing(socket) && !socket->has_failed);
    uint8_t *in = socket->loop->scratch;
    size_t room = sizeof(socket->loop->scratch);
    ssize_t n = recv(socket->source.fd, in, room, 0);
    if (n < 0 && errno == EINTR)
        return;
    if (n < 0 && errno == EAGAIN) {
        socket->is_readable = false;
        return;
    }
    if (n <= 0) {
        close_socket(socket);
        return;
    }
    socket->is_readable = (size_t)n == room || socket->has_hung_up;
    int rc = socket->tls != NULL ? feed_encrypted(socket, in, (size_t)n)
                                 : feed_plain(socket, in, (size_t)n);
    mark_dirty(socket);
    if (rc != 0)
        fail(socket);
}

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    struct socket *socket = TIERCE__CONTAINER_OF(source, struct socket, source);
    TIERCE_ASSERT(tierce__loop_is_here(&socket->loop->base));
    bool hangs_up = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    socket->has_hung_up = socket->has_hung_up || hangs_up;
    socket->is_readable = socket->is_readable || hangs_up || (events & EPOLLIN) != 0;
    if (socket->unsent != NULL)
        send_unsent(socket);
    for (int i = 0; i < READS_AT_ONCE && socket->is_readable && !socket->has_failed; i++) {
        if (is_closing(socket))
            return;
        read_some(socket);
    }
    if (events == 0)
        flush(socket);
    else
        mark_dirty(socket);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int prepare(struct socket *socket)
{
    if (socket->origin->tls != NULL)
        return tierce__tls_session_create(&socket->tls, socket->origin->tls, NULL);
    return make_connection(socket);
}

/* NULL: no memory; the arrival is undone. */
static struct socket *make_socket(const struct tierce__grpc_arrival *arrival)
{
    TIERCE_ASSERT(tierce__loop_is_here(&arrival->loop->base));
    struct socket *socket = tierce__calloc(1, sizeof(*socket));
    if (socket == NULL) {
        close(arrival->fd);
        leave(arrival->loop, arrival->origin, &arrival->address);
        return NULL;
    }
    socket->source = (struct tierce__poll_source){.fd = arrival->fd, .ready = on_ready};
    socket->loop = arrival->loop;
    socket->origin = arrival->origin;
    socket->address = arrival->address;
    socket->patience.expired = out_of_patience;
    socket->taking.expired = took_too_long;
    memcpy(socket->peer, arrival->peer, sizeof(socket->peer));
    tierce__list_push_back(&socket->loop->members, &socket->member);
    return socket;
}

void tierce__grpc_socket_open(struct tierce__grpc_arrival *arrival)
{
    struct socket *socket = make_socket(arrival);
    tierce__free(arrival);
    if (socket == NULL)
        return;
    (void)setsockopt(socket->source.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(unsigned){STALLED_MS},
                     sizeof(unsigned));
    tierce__listen_tune(socket->source.fd);
    if (tierce__poll_watch(socket->loop, &socket->source) != 0 || prepare(socket) != 0) {
        close_socket(socket);
        return;
    }
    mark_dirty(socket);
    be_patient(socket, OPENING_MS);
}

static void drain(void *arg)
{
    struct tierce__poll_loop *loop = arg;
    TIERCE_ASSERT(tierce__loop_is_here(&loop->base));
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &loop->members) {
        struct socket *socket = TIERCE__CONTAINER_OF(node, struct socket, member);
        if (socket->connection == NULL)
            close_socket(socket);
        else
            tierce__grpc_connection_drain(socket->connection);
    }
}

static void give_up(void *arg)
{
    struct tierce__poll_loop *loop = arg;
    TIERCE_ASSERT(tierce__loop_is_here(&loop->base));
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &loop->members) {
        struct socket *socket = TIERCE__CONTAINER_OF(node, struct socket, member);
        if (socket->connection != NULL)
            tierce__grpc_connection_give_up(socket->connection);
        mark_dirty(socket);
        if (!is_closing(socket))
            fail(socket);
    }
}

void tierce__grpc_sockets_drain(struct tierce__poll_loop *loop)
{
    tierce__loop_call(&loop->base, drain, loop);
}

void tierce__grpc_sockets_give_up(struct tierce__poll_loop *loop)
{
    tierce__loop_call(&loop->base, give_up, loop);
}
