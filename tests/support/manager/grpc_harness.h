/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_GRPC_HARNESS_H
#define TIERCE_TESTS_GRPC_HARNESS_H

#include "base/alloc.h"
#include "net/server/grpc/grpc_connection.h"
#include "net/grpc/grpc_frame.h"

#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * A server's gRPC connection without a socket, the loop that it lives on, and a client's session of
 * nghttp2 that it talks to: `pump` carries bytes to and fro until nothing is left.
 */

#define HARNESS_CALLS 64

struct harness_answer {
    int http, status; /* -1: none */
    char message[256];
    uint8_t body[4096];
    size_t bytes;
    bool is_closed;
    uint32_t error;
};

struct harness {
    struct tierce__shared shared;
    struct tierce__loop loop;
    struct tierce__routes routes;
    struct tierce__grpc_connection *connection;
    nghttp2_session *client;
    struct harness_answer answers[2 * HARNESS_CALLS]; /* by stream */
    bool was_changed, goaway;
    int feed_rc;
};

static void harness_wake(struct tierce__loop *loop)
{
    (void)loop;
}

static void harness_changed(void *arg)
{
    ((struct harness *)arg)->was_changed = true;
}

static inline struct harness_answer *harness_answer(struct harness *h, int32_t stream)
{
    return &h->answers[stream % (2 * HARNESS_CALLS)];
}

static int harness_on_header(nghttp2_session *session, const nghttp2_frame *frame,
                             const uint8_t *name, size_t name_bytes, const uint8_t *value,
                             size_t value_bytes, uint8_t flags, void *arg)
{
    (void)session;
    (void)flags;
    struct harness_answer *answer = harness_answer(arg, frame->hd.stream_id);
    (void)name_bytes;
    if (strcmp((const char *)name, ":status") == 0)
        answer->http = atoi((const char *)value);
    else if (strcmp((const char *)name, "grpc-status") == 0)
        answer->status = atoi((const char *)value);
    else if (strcmp((const char *)name, "grpc-message") == 0)
        snprintf(answer->message, sizeof(answer->message), "%.*s", (int)value_bytes,
                 (const char *)value);
    return 0;
}

static int harness_on_data(nghttp2_session *session, uint8_t flags, int32_t stream,
                           const uint8_t *data, size_t count, void *arg)
{
    (void)session;
    (void)flags;
    struct harness_answer *answer = harness_answer(arg, stream);
    size_t room = sizeof(answer->body) - answer->bytes;
    memcpy(answer->body + answer->bytes, data, count < room ? count : room);
    answer->bytes += count < room ? count : room;
    return 0;
}

static int harness_on_close(nghttp2_session *session, int32_t stream, uint32_t error, void *arg)
{
    (void)session;
    struct harness_answer *answer = harness_answer(arg, stream);
    answer->is_closed = true;
    answer->error = error;
    return 0;
}

static int harness_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    (void)session;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        ((struct harness *)arg)->goaway = true;
    return 0;
}

/* False: no memory for the connection (the loop is there). */
static inline bool harness_open(struct harness *h, const struct tierce__route *routes, size_t count)
{
    memset(h, 0, sizeof(*h));
    h->shared.message_bytes_max = 1 << 20;
    h->shared.held.max = 4 << 20;
    h->shared.transfer_ms = 60000;
    h->shared.stream_buffer_max = 1 << 20;
    h->shared.streams_max = 100;
    for (size_t i = 0; i < 2 * HARNESS_CALLS; i++)
        h->answers[i].status = -1;
    tierce__loop_init(&h->loop, harness_wake);
    tierce__loop_enter(&h->loop);
    struct tierce__grpc_connection_opts opts = {.shared = &h->shared,
                                                .loop = &h->loop,
                                                .routes = &h->routes,
                                                .peer = "peer",
                                                .changed = harness_changed,
                                                .arg = h};
    if (tierce__routes_init(&h->routes, routes, count) != 0 ||
        tierce__grpc_connection_create(&h->connection, &opts) != 0)
        return false;
    nghttp2_session_callbacks *callbacks;
    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        abort();
    nghttp2_session_callbacks_set_on_header_callback(callbacks, harness_on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, harness_on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, harness_on_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, harness_on_frame);
    if (nghttp2_session_client_new(&h->client, callbacks, h) != 0 ||
        nghttp2_submit_settings(h->client, 0, NULL, 0) != 0)
        abort();
    nghttp2_session_callbacks_del(callbacks);
    return true;
}

static inline void harness_close(struct harness *h)
{
    tierce__grpc_connection_destroy(h->connection);
    tierce__loop_run_inbox(&h->loop);
    tierce__routes_fini(&h->routes);
    tierce__loop_fini(&h->loop);
    tierce__loop_enter(NULL);
    nghttp2_session_del(h->client);
}

/* Until neither side has anything to say; the server gets `piece` bytes at a time. */
static inline void harness_pump(struct harness *h, size_t piece)
{
    for (bool goes_on = true; goes_on;) {
        const uint8_t *bytes;
        uint8_t out[1000];
        goes_on = false;
        ssize_t n = nghttp2_session_mem_send(h->client, &bytes);
        for (ssize_t at = 0; at < n && h->feed_rc == 0; at += (ssize_t)piece) {
            size_t count = (size_t)(n - at) < piece ? (size_t)(n - at) : piece;
            h->feed_rc = tierce__grpc_connection_feed(h->connection, bytes + at, count);
        }
        goes_on = n > 0;
        tierce__loop_run_inbox(&h->loop);
        size_t taken = tierce__grpc_connection_take(h->connection, out, sizeof(out));
        if (taken > 0 && nghttp2_session_mem_recv(h->client, out, taken) < 0)
            abort();
        goes_on |= taken > 0;
    }
}

/* A body for a request: its prefix goes before it. */
struct harness_body {
    uint8_t bytes[1024];
    size_t count, sent;
    bool is_endless;
};

static ssize_t harness_read(nghttp2_session *session, int32_t stream, uint8_t *out, size_t capacity,
                            uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)stream;
    (void)arg;
    struct harness_body *body = source->ptr;
    size_t n = body->count - body->sent < capacity ? body->count - body->sent : capacity;
    memcpy(out, body->bytes + body->sent, n);
    body->sent += n;
    if (n == 0 && body->is_endless)
        return NGHTTP2_ERR_DEFERRED;
    if (body->sent == body->count && !body->is_endless)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)n;
}

static inline nghttp2_nv harness_nv(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), 0};
}

/* Begins a call with one more header, if there is a name; returns its stream. */
static inline int32_t harness_call(struct harness *h, const char *path, struct harness_body *body,
                                   const char *text, const char *name, const char *value)
{
    nghttp2_nv nv[] = {harness_nv(":method", "POST"),
                       harness_nv(":scheme", "http"),
                       harness_nv(":path", path),
                       harness_nv(":authority", "test"),
                       harness_nv("content-type", "application/grpc"),
                       harness_nv(name != NULL ? name : "te", name != NULL ? value : "trailers")};
    size_t n = strlen(text);
    tierce__grpc_prefix_write(body->bytes, n);
    memcpy(body->bytes + 5, text, n);
    body->count = 5 + n;
    body->sent = 0;
    nghttp2_data_provider provider = {.source = {.ptr = body}, .read_callback = harness_read};
    return nghttp2_submit_request(h->client, NULL, nv, sizeof(nv) / sizeof(*nv), &provider, NULL);
}

#endif
