/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/grpc/grpc_connection.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_private.h"

#include <errno.h>
#include <string.h>

#define STREAM_WINDOW     (1u << 20)
#define CONNECTION_WINDOW (16u << 20)

/* Streams that a client may reset at once, and per second after that. A client that cancels all its
 * calls is legitimate; it loses the connection only above this rate. */
#define RESET_BURST 8192u
#define RESET_RATE  1024u

#define DRAIN_PING_MS 100u

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct tierce__grpc_connection *connection = arg;
    TIERCE_ASSERT(connection->is_feeding);
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct tierce__grpc_call *call = tierce__grpc_call_begin(connection, frame->hd.stream_id);
    if (call == NULL)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, call);
    return 0;
}

/* NOLINTNEXTLINE(readability-function-size): the arguments are nghttp2's. */
static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                     void *arg)
{
    (void)flags;
    (void)arg;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct tierce__grpc_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (call != NULL)
        tierce__grpc_call_header(call, (const char *)name, name_bytes, (const char *)value,
                                 value_bytes);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
                   size_t count, void *arg)
{
    (void)flags;
    (void)arg;
    struct tierce__grpc_call *call = nghttp2_session_get_stream_user_data(session, stream);
    if (call != NULL)
        tierce__grpc_call_data(call, data, count);
    return 0;
}

/* Rejects new streams from now on; existing ones continue. */
static void send_last_goaway(struct tierce__grpc_connection *connection)
{
    TIERCE_ASSERT(tierce__loop_is_here(connection->opts.loop));
    TIERCE_ASSERT(connection->is_draining);
    tierce__deadline_unset(&connection->opts.loop->deadlines, &connection->drain);
    (void)nghttp2_submit_goaway(connection->session, NGHTTP2_FLAG_NONE,
                                nghttp2_session_get_last_proc_stream_id(connection->session),
                                NGHTTP2_NO_ERROR, NULL, 0);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct tierce__grpc_connection *connection = arg;
    TIERCE_ASSERT(connection->is_feeding);
    if (frame->hd.type == NGHTTP2_SETTINGS)
        connection->is_open = true;
    if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 &&
        connection->drain.place != 0)
        send_last_goaway(connection);
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    struct tierce__grpc_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (call == NULL)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
        tierce__grpc_call_headers_end(call);
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
        tierce__grpc_call_request_end(call);
    return 0;
}

/* A client that was answered before its request was complete need not send the rest (RFC 9113,
 * 8.1). */
static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    (void)arg;
    if (frame->hd.type != NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
        return 0;
    const struct tierce__grpc_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (call != NULL && !call->request_ended)
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                        NGHTTP2_NO_ERROR);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t error, void *arg)
{
    (void)error;
    (void)arg;
    struct tierce__grpc_call *call = nghttp2_session_get_stream_user_data(session, stream);
    if (call != NULL)
        tierce__grpc_call_closed(call);
    return 0;
}

static int make_session(struct tierce__grpc_connection *connection)
{
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int rc = -ENOMEM;
    if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0)
        goto out;
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_stream_reset_rate_limit(option, RESET_BURST, RESET_RATE);
    if (nghttp2_session_server_new2(&connection->session, callbacks, connection, option) == 0)
        rc = 0;
out:
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc;
}

static int introduce(struct tierce__grpc_connection *connection)
{
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, connection->opts.shared->streams_max},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, TIERCE__HEADER_BYTES_MAX},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    if (nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, settings,
                                sizeof(settings) / sizeof(*settings)) != 0 ||
        nghttp2_session_set_local_window_size(connection->session, NGHTTP2_FLAG_NONE, 0,
                                              CONNECTION_WINDOW) != 0)
        return -ENOMEM;
    return 0;
}

static void drain_expired(struct tierce__deadline *deadline)
{
    struct tierce__grpc_connection *connection =
        TIERCE__CONTAINER_OF(deadline, struct tierce__grpc_connection, drain);
    send_last_goaway(connection);
    tierce__grpc_connection_changed(connection);
}

int tierce__grpc_connection_create(struct tierce__grpc_connection **out,
                                   const struct tierce__grpc_connection_opts *opts)
{
    struct tierce__grpc_connection *connection = tierce__calloc(1, sizeof(*connection));
    if (connection == NULL)
        return -ENOMEM;
    connection->opts = *opts;
    connection->drain.expired = drain_expired;
    connection->quiet_since_ns = tierce__now_ns();
    tierce__list_init(&connection->calls);
    if (make_session(connection) != 0 || introduce(connection) != 0) {
        tierce__grpc_connection_destroy(connection);
        return -ENOMEM;
    }
    *out = connection;
    return 0;
}

void tierce__grpc_connection_destroy(struct tierce__grpc_connection *connection)
{
    if (connection == NULL)
        return;
    TIERCE_ASSERT(!connection->is_feeding);
    tierce__deadline_unset(&connection->opts.loop->deadlines, &connection->drain);
    /* Destroy the session before the calls: its frames may point into memory of the calls. */
    nghttp2_session_del(connection->session);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &connection->calls)
        tierce__grpc_call_closed(TIERCE__CONTAINER_OF(node, struct tierce__grpc_call, node));
    TIERCE_ASSERT(tierce__list_empty(&connection->calls));
    tierce__free(connection);
}

int tierce__grpc_connection_feed(struct tierce__grpc_connection *connection, const void *bytes,
                                 size_t count)
{
    TIERCE_ASSERT(!connection->is_feeding);
    TIERCE_ASSERT(tierce__loop_is_here(connection->opts.loop));
    connection->is_feeding = true;
    ssize_t n = nghttp2_session_mem_recv(connection->session, bytes, count);
    connection->is_feeding = false;
    if (n >= 0)
        return 0;
    return n == NGHTTP2_ERR_NOMEM     ? -ENOMEM
           : n == NGHTTP2_ERR_FLOODED ? TIERCE_E_LIMIT
                                      : TIERCE_E_FORMAT;
}

size_t tierce__grpc_connection_take(struct tierce__grpc_connection *connection, void *bytes,
                                    size_t capacity)
{
    uint8_t *out = bytes;
    size_t taken = 0;
    TIERCE_ASSERT(!connection->is_feeding);
    while (taken < capacity) {
        if (connection->rest_bytes == 0) {
            ssize_t n = nghttp2_session_mem_send(connection->session, &connection->rest);
            if (n <= 0)
                break;
            connection->rest_bytes = (size_t)n;
        }
        size_t n =
            capacity - taken < connection->rest_bytes ? capacity - taken : connection->rest_bytes;
        TIERCE_ASSERT(n <= capacity - taken);
        memcpy(out + taken, connection->rest, n);
        connection->rest += n;
        connection->rest_bytes -= n;
        taken += n;
    }
    return taken;
}

bool tierce__grpc_connection_is_done(const struct tierce__grpc_connection *connection)
{
    return connection->rest_bytes == 0 && nghttp2_session_want_write(connection->session) == 0 &&
           nghttp2_session_want_read(connection->session) == 0;
}

bool tierce__grpc_connection_is_open(const struct tierce__grpc_connection *connection)
{
    return connection->is_open;
}

uint64_t tierce__grpc_connection_quiet_ns(const struct tierce__grpc_connection *connection)
{
    TIERCE_ASSERT(tierce__loop_is_here(connection->opts.loop));
    return tierce__list_empty(&connection->calls) ? tierce__now_ns() - connection->quiet_since_ns
                                                  : 0;
}

/* First a GOAWAY that forbids nothing yet, and a PING: calls that were on their way when the client
 * learnt of it are before the answer, and the last GOAWAY takes them in. */
void tierce__grpc_connection_drain(struct tierce__grpc_connection *connection)
{
    TIERCE_ASSERT(tierce__loop_is_here(connection->opts.loop));
    if (connection->is_draining)
        return;
    connection->is_draining = true;
    (void)nghttp2_submit_shutdown_notice(connection->session);
    (void)nghttp2_submit_ping(connection->session, NGHTTP2_FLAG_NONE, NULL);
    if (tierce__deadline_set(&connection->opts.loop->deadlines, &connection->drain,
                             tierce__deadline_in_ms(DRAIN_PING_MS)) != 0)
        send_last_goaway(connection);
    tierce__grpc_connection_changed(connection);
}

void tierce__grpc_connection_give_up(struct tierce__grpc_connection *connection)
{
    TIERCE_ASSERT(tierce__loop_is_here(connection->opts.loop));
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &connection->calls) {
        struct tierce__grpc_call *call = TIERCE__CONTAINER_OF(node, struct tierce__grpc_call, node);
        if (call->phase != TIERCE__GRPC_ANSWERED)
            tierce__grpc_call_refuse(call, TIERCE__GRPC_UNAVAILABLE, "the server is shutting down");
    }
    tierce__grpc_connection_changed(connection);
}

void tierce__grpc_connection_changed(struct tierce__grpc_connection *connection)
{
    if (!connection->is_feeding)
        connection->opts.changed(connection->opts.arg);
}
