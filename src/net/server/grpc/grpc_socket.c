/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_connection.h"
#include "net/server/grpc/grpc_socket_private.h"
#include "net/listen.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#define OPENING_MS     10000u /* for TLS and HTTP/2's preface */
#define CLOSING_MS     1000u  /* time limit for the last output to a client that does not read */
#define KEEPALIVE_S    60u
#define STALLED_MS     60000u /* time limit for a client that accepts no bytes */
#define WRITES_AT_ONCE 16

struct socket {
    uv_tcp_t tcp;
    struct tierce__uv_loop *loop;
    struct tierce__grpc_origin *origin;
    struct tierce__list node, dirty;
    struct tierce__grpc_connection *connection; /* of TLS: once the certificate is known */
    struct tierce__tls_session *tls;
    struct tierce__deadline patience; /* with the opening, then with the end */
    struct tierce__deadline taking;   /* of the output that the socket did not accept at once */
    struct tierce__address address;
    bool is_closing, is_writing;
    bool has_failed; /* no more reads; closed when all output is written */
    char peer[TIERCE__PEER_BYTES];
};

/* Output that the socket did not accept at once. */
struct write {
    uv_write_t request;
    struct socket *socket;
    uint8_t bytes[];
};

static void mark_dirty(void *arg)
{
    struct socket *socket = arg;
    if (tierce__list_empty(&socket->dirty) && !socket->is_closing)
        tierce__list_push_back(&socket->loop->dirty, &socket->dirty);
}

/* The last use of the listener and the loop by a socket. */
static void leave(struct tierce__uv_loop *loop, struct tierce__grpc_origin *origin,
                  const struct tierce__address *address)
{
    if (origin->addresses != NULL)
        tierce__addresses_leave(origin->addresses, address);
    atomic_fetch_sub_explicit(&origin->sockets, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&loop->socket_count, 1, memory_order_release);
}

static void on_closed(uv_handle_t *handle)
{
    struct socket *socket = handle->data;
    leave(socket->loop, socket->origin, &socket->address);
    tierce__free(socket);
}

static void close_socket(struct socket *socket)
{
    if (socket->is_closing)
        return;
    socket->is_closing = true;
    tierce__list_remove(&socket->node);
    tierce__list_remove(&socket->dirty);
    tierce__deadline_unset(&socket->loop->base.deadlines, &socket->patience);
    tierce__deadline_unset(&socket->loop->base.deadlines, &socket->taking);
    tierce__grpc_connection_destroy(socket->connection);
    tierce__tls_session_destroy(socket->tls);
    socket->connection = NULL;
    socket->tls = NULL;
    uv_close((uv_handle_t *)&socket->tcp, on_closed);
}

static void out_of_patience(struct tierce__deadline *deadline)
{
    close_socket(TIERCE__CONTAINER_OF(deadline, struct socket, patience));
}

static void took_too_long(struct tierce__deadline *deadline)
{
    close_socket(TIERCE__CONTAINER_OF(deadline, struct socket, taking));
}

static void be_patient(struct socket *socket, uint32_t ms)
{
    if (tierce__deadline_set(&socket->loop->base.deadlines, &socket->patience,
                             tierce__deadline_in_ms(ms)) != 0)
        close_socket(socket);
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

static void on_written(uv_write_t *request, int status)
{
    struct write *write = TIERCE__CONTAINER_OF(request, struct write, request);
    struct socket *socket = write->socket;
    tierce__free(write);
    socket->is_writing = false;
    tierce__deadline_unset(&socket->loop->base.deadlines, &socket->taking);
    if (status < 0)
        close_socket(socket);
    else
        mark_dirty(socket);
}

static void write_later(struct socket *socket, const uint8_t *bytes, size_t count)
{
    struct write *write = tierce__alloc(sizeof(*write) + count);
    if (write == NULL) {
        close_socket(socket);
        return;
    }
    write->socket = socket;
    memcpy(write->bytes, bytes, count);
    uv_buf_t buffer = uv_buf_init((char *)write->bytes, (unsigned)count);
    if (uv_write(&write->request, (uv_stream_t *)&socket->tcp, &buffer, 1, on_written) != 0) {
        tierce__free(write);
        close_socket(socket);
        return;
    }
    socket->is_writing = true;
    /* A client that reads very slowly would otherwise hold its answers forever. */
    if (tierce__deadline_set(&socket->loop->base.deadlines, &socket->taking,
                             tierce__deadline_in_ms(socket->origin->shared->transfer_ms)) != 0)
        close_socket(socket);
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
    uint8_t *out = socket->loop->out;
    for (int i = 0; !socket->is_closing && !socket->is_writing; i++) {
        size_t count = take(socket, out, sizeof(socket->loop->out));
        if (count == 0) {
            end_if_done(socket);
            return;
        }
        uv_buf_t buffer = uv_buf_init((char *)out, (unsigned)count);
        int n =
            i < WRITES_AT_ONCE ? uv_try_write((uv_stream_t *)&socket->tcp, &buffer, 1) : UV_EAGAIN;
        if (n == UV_EAGAIN)
            n = 0;
        if (n < 0)
            close_socket(socket);
        else if ((size_t)n < count)
            write_later(socket, out + n, count - (size_t)n);
    }
}

void tierce__grpc_sockets_flush(struct tierce__uv_loop *loop)
{
    while (!tierce__list_empty(&loop->dirty)) {
        struct socket *socket = TIERCE__CONTAINER_OF(loop->dirty.next, struct socket, dirty);
        tierce__list_remove(&socket->dirty);
        flush(socket);
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
    if (rc == 0 && socket->patience.place != 0 &&
        tierce__grpc_connection_is_open(socket->connection))
        tierce__deadline_unset(&socket->loop->base.deadlines, &socket->patience);
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
    uv_read_stop((uv_stream_t *)&socket->tcp);
    socket->has_failed = true;
    be_patient(socket, CLOSING_MS);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct socket *socket = stream->data;
    if (count < 0) {
        close_socket(socket);
        return;
    }
    int rc = socket->tls != NULL ? feed_encrypted(socket, buffer->base, (size_t)count)
                                 : feed_plain(socket, buffer->base, (size_t)count);
    mark_dirty(socket);
    if (rc != 0)
        fail(socket);
}

static void give_buffer(uv_handle_t *handle, size_t wanted, uv_buf_t *buffer)
{
    (void)wanted;
    struct socket *socket = handle->data;
    *buffer = uv_buf_init((char *)socket->loop->in, sizeof(socket->loop->in));
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
    struct socket *socket = tierce__calloc(1, sizeof(*socket));
    if (socket == NULL || uv_tcp_init(&arrival->loop->uv, &socket->tcp) != 0) {
        close(arrival->fd);
        leave(arrival->loop, arrival->origin, &arrival->address);
        tierce__free(socket);
        return NULL;
    }
    socket->tcp.data = socket;
    socket->loop = arrival->loop;
    socket->origin = arrival->origin;
    socket->address = arrival->address;
    socket->patience.expired = out_of_patience;
    socket->taking.expired = took_too_long;
    memcpy(socket->peer, arrival->peer, sizeof(socket->peer));
    tierce__list_push_back(&socket->loop->sockets, &socket->node);
    tierce__list_init(&socket->dirty);
    return socket;
}

void tierce__grpc_socket_open(struct tierce__grpc_arrival *arrival)
{
    struct socket *socket = make_socket(arrival);
    int fd = arrival->fd;
    tierce__free(arrival);
    if (socket == NULL)
        return;
    if (uv_tcp_open(&socket->tcp, fd) != 0) {
        close(fd);
        close_socket(socket);
        return;
    }
    uv_tcp_nodelay(&socket->tcp, 1);
    uv_tcp_keepalive(&socket->tcp, 1, KEEPALIVE_S);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(unsigned){STALLED_MS}, sizeof(unsigned));
    if (prepare(socket) != 0 ||
        uv_read_start((uv_stream_t *)&socket->tcp, give_buffer, on_read) != 0) {
        close_socket(socket);
        return;
    }
    mark_dirty(socket);
    be_patient(socket, OPENING_MS);
}

void tierce__grpc_sockets_close(struct tierce__uv_loop *loop)
{
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &loop->sockets)
        close_socket(TIERCE__CONTAINER_OF(node, struct socket, node));
}

static void drain(struct tierce__task *task)
{
    struct tierce__uv_loop *loop = TIERCE__CONTAINER_OF(task, struct tierce__uv_loop, drain);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &loop->sockets) {
        struct socket *socket = TIERCE__CONTAINER_OF(node, struct socket, node);
        if (socket->connection == NULL)
            close_socket(socket);
        else
            tierce__grpc_connection_drain(socket->connection);
    }
}

static void give_up(struct tierce__task *task)
{
    struct tierce__uv_loop *loop = TIERCE__CONTAINER_OF(task, struct tierce__uv_loop, give_up);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &loop->sockets) {
        struct socket *socket = TIERCE__CONTAINER_OF(node, struct socket, node);
        if (socket->connection != NULL)
            tierce__grpc_connection_give_up(socket->connection);
        mark_dirty(socket);
        fail(socket);
    }
}

void tierce__grpc_sockets_drain(struct tierce__uv_loop *loop)
{
    loop->drain.run = drain;
    tierce__loop_post(&loop->base, &loop->drain);
}

void tierce__grpc_sockets_give_up(struct tierce__uv_loop *loop)
{
    loop->give_up.run = give_up;
    tierce__loop_post(&loop->base, &loop->give_up);
}
