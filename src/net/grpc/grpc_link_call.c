/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/grpc/grpc_client_private.h"
#include "net/grpc/grpc_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The calls on a client's connection. */

#define STREAM_WINDOW     (8u << 20)
#define CONNECTION_WINDOW (64u << 20)

/* ---- the end of a call ----------------------------------------------------------------------- */

static void take_off(struct tierce__grpc_client_call *call)
{
    TIERCE_ASSERT(call->link->in_flight > 0 && call->link->client->in_flight > 0);
    tierce__list_remove(&call->node);
    tierce__deadline_unset(&call->link->client->deadlines, &call->deadline);
    call->link->in_flight--;
    call->link->client->in_flight--;
}

static void free_call(struct tierce__grpc_client_call *call)
{
    tierce__grpc_reader_fini(&call->reader);
    tierce__grpc_message_fini(&call->message);
    tierce__free(call);
}

/* The stream is not the call's any more. */
static void finish_as(struct tierce__grpc_client_call *call, uint32_t status, const char *text,
                      bool unsent)
{
    struct tierce__grpc_answer answer = {.status = status, .unsent = unsent};
    take_off(call);
    snprintf(answer.message, sizeof(answer.message), "%s", text);
    if (status == TIERCE__GRPC_OK) {
        TIERCE_ASSERT(call->has_message);
        answer.body = call->message.body;
        answer.bytes = call->message.bytes;
        call->message.body = NULL;
    }
    call->done(call->arg, &answer);
    tierce__free(answer.body);
    free_call(call);
}

static void finish(struct tierce__grpc_client_call *call, uint32_t status, const char *text)
{
    finish_as(call, status, text, false);
}

void tierce__grpc_link_end_calls(struct tierce__grpc_link *link, bool tell)
{
    while (!tierce__list_empty(&link->calls)) {
        struct tierce__grpc_client_call *call =
            TIERCE__CONTAINER_OF(link->calls.next, struct tierce__grpc_client_call, node);
        if (tell) {
            bool was_ready = link->state == TIERCE__GRPC_LINK_READY;
            TIERCE_DASSERT(link->why[0] != '\0');
            finish_as(call, TIERCE__GRPC_UNAVAILABLE, link->why, !was_ready);
        } else {
            take_off(call);
            free_call(call);
        }
    }
}

static void expired(struct tierce__deadline *deadline)
{
    struct tierce__grpc_client_call *call =
        TIERCE__CONTAINER_OF(deadline, struct tierce__grpc_client_call, deadline);
    struct tierce__grpc_link *link = call->link;
    nghttp2_session *session = link->session;
    bool is_ready = link->state == TIERCE__GRPC_LINK_READY;
    char text[160];
    TIERCE_ASSERT(call->stream > 0);
    (void)nghttp2_session_set_stream_user_data(session, call->stream, NULL);
    (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, call->stream, NGHTTP2_CANCEL);
    if (is_ready && call->received == link->received)
        tierce__grpc_link_doubt(link);
    snprintf(text, sizeof(text), "deadline exceeded: %s %.100s",
             is_ready ? "no answer from" : "not yet connected to", link->client->authority);
    finish_as(call, TIERCE__GRPC_DEADLINE_EXCEEDED, text, call->sent == 0);
}

static uint32_t status_of_reset(uint32_t error)
{
    switch (error) {
    case NGHTTP2_REFUSED_STREAM:
        return TIERCE__GRPC_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return TIERCE__GRPC_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return TIERCE__GRPC_RESOURCE_EXHAUSTED;
    default:
        return TIERCE__GRPC_INTERNAL;
    }
}

static uint32_t status_of_http(int http_status)
{
    switch (http_status) {
    case 401:
        return TIERCE__GRPC_UNAUTHENTICATED;
    case 403:
        return TIERCE__GRPC_PERMISSION_DENIED;
    case 404:
        return TIERCE__GRPC_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return TIERCE__GRPC_UNAVAILABLE;
    default:
        return TIERCE__GRPC_UNKNOWN;
    }
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t error, void *arg)
{
    (void)arg;
    struct tierce__grpc_client_call *call = nghttp2_session_get_stream_user_data(session, stream);
    char text[64];
    if (call == NULL)
        return 0;
    (void)nghttp2_session_set_stream_user_data(session, stream, NULL);
    if (call->is_broken) {
        finish(call, TIERCE__GRPC_INTERNAL, "the answer cannot be read");
    } else if (call->status == TIERCE__GRPC_OK && !call->has_message) {
        finish(call, TIERCE__GRPC_INTERNAL, "the answer contains no message");
    } else if (call->status >= 0) {
        finish(call, (uint32_t)call->status, call->text);
    } else if (error != NGHTTP2_NO_ERROR) {
        snprintf(text, sizeof(text), "the stream was reset: %s", nghttp2_http2_strerror(error));
        finish_as(call, status_of_reset(error), text, error == NGHTTP2_REFUSED_STREAM);
    } else {
        snprintf(text, sizeof(text), "HTTP status %d", call->http_status);
        finish(call, status_of_http(call->http_status), text);
    }
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static bool is_named(const uint8_t *name, size_t name_bytes, const char *wanted)
{
    return name_bytes == strlen(wanted) && memcmp(name, wanted, name_bytes) == 0;
}

/* NOLINTNEXTLINE(readability-function-size): the arguments are nghttp2's. */
static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                     void *arg)
{
    (void)flags;
    (void)arg;
    struct tierce__grpc_client_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (call == NULL)
        return 0;
    /* nghttp2 keeps a NUL behind each value. */
    if (is_named(name, name_bytes, "grpc-status"))
        call->status = (int64_t)(strtoul((const char *)value, NULL, 10) & UINT32_MAX);
    else if (is_named(name, name_bytes, "grpc-message"))
        tierce__grpc_message_decode(call->text, sizeof(call->text), (const char *)value,
                                    value_bytes);
    else if (is_named(name, name_bytes, ":status"))
        call->http_status = (int)strtol((const char *)value, NULL, 10);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
                   size_t count, void *arg)
{
    (void)flags;
    (void)arg;
    struct tierce__grpc_client_call *call = nghttp2_session_get_stream_user_data(session, stream);
    while (call != NULL && !call->is_broken) {
        struct tierce__grpc_message message;
        int rc = tierce__grpc_reader_feed(&call->reader, &message, &data, &count);
        if (rc == 0)
            break;
        if (rc < 0 || call->has_message || message.is_compressed) {
            if (rc > 0)
                tierce__grpc_message_fini(&message);
            call->is_broken = true;
            (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
            break;
        }
        call->message = message;
        call->has_message = true;
    }
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    (void)session;
    struct tierce__grpc_link *link = arg;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        link->is_leaving = true;
    return 0;
}

int tierce__grpc_link_session(struct tierce__grpc_link *link)
{
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int rc = -ENOMEM;
    if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0)
        goto out;
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_option_set_no_closed_streams(option, 1);
    if (nghttp2_session_client_new2(&link->session, callbacks, link, option) == 0 &&
        nghttp2_submit_settings(link->session, NGHTTP2_FLAG_NONE, settings,
                                sizeof(settings) / sizeof(*settings)) == 0 &&
        nghttp2_session_set_local_window_size(link->session, NGHTTP2_FLAG_NONE, 0,
                                              CONNECTION_WINDOW) == 0)
        rc = 0;
out:
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc;
}

/* ---- sending --------------------------------------------------------------------------------- */

static ssize_t read_request(nghttp2_session *session, int32_t stream, uint8_t *out, size_t capacity,
                            uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    (void)source;
    (void)arg;
    /* The call may be gone: its stream is reset then. */
    struct tierce__grpc_client_call *call = nghttp2_session_get_stream_user_data(session, stream);
    size_t count = 0;
    if (call == NULL)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    while (call->sent < sizeof(call->prefix) && count < capacity)
        out[count++] = call->prefix[call->sent++];
    if (call->sent >= sizeof(call->prefix)) {
        size_t done = call->sent - sizeof(call->prefix);
        TIERCE_ASSERT(done <= call->bytes);
        size_t n = call->bytes - done < capacity - count ? call->bytes - done : capacity - count;
        if (n > 0)
            memcpy(out + count, call->body + done, n);
        call->sent += n;
        count += n;
    }
    TIERCE_ASSERT(count <= capacity);
    if (call->sent == sizeof(call->prefix) + call->bytes)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)count;
}

static nghttp2_nv header(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), NGHTTP2_NV_FLAG_NONE};
}

static int submit(struct tierce__grpc_client_call *call, const struct tierce__grpc_request *request)
{
    const struct tierce__grpc_client *client = call->link->client;
    char timeout[TIERCE__GRPC_TIMEOUT_BYTES];
    nghttp2_nv nv[10] = {
        header(":method", "POST"),      header(":scheme", client->tls != NULL ? "https" : "http"),
        header(":path", request->path), header(":authority", client->authority),
        header("te", "trailers"),       header("content-type", "application/grpc"),
        header("user-agent", "tierce"),
    };
    size_t count = 7;
    if (request->timeout_ms > 0) {
        tierce__grpc_timeout_print(timeout, request->timeout_ms * TIERCE__MS_NS);
        nv[count++] = header("grpc-timeout", timeout);
    }
    if (request->header_name != NULL)
        nv[count++] = header(request->header_name, request->header_value);
    TIERCE_ASSERT(count <= sizeof(nv) / sizeof(*nv));
    nghttp2_data_provider provider = {.read_callback = read_request};
    call->stream = nghttp2_submit_request(call->link->session, NULL, nv, count, &provider, call);
    return call->stream >= 0 ? 0 : -ENOMEM;
}

int tierce__grpc_link_start(struct tierce__grpc_link *link,
                            const struct tierce__grpc_request *request, tierce__grpc_done_fn done,
                            void *arg)
{
    struct tierce__grpc_client *client = link->client;
    struct tierce__grpc_client_call *call = tierce__calloc(1, sizeof(*call));
    if (call == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(!link->is_leaving);
    call->link = link;
    call->done = done;
    call->arg = arg;
    call->body = request->body;
    call->bytes = request->bytes;
    call->status = -1;
    call->deadline.expired = expired;
    tierce__grpc_prefix_write(call->prefix, request->bytes);
    tierce__grpc_reader_init(&call->reader, NULL, client->message_bytes_max);
    int rc = 0;
    if (request->timeout_ms > 0)
        rc = tierce__deadline_set(&client->deadlines, &call->deadline,
                                  tierce__deadline_in_ms(request->timeout_ms));
    if (rc == 0)
        rc = submit(call, request);
    if (rc != 0) {
        tierce__deadline_unset(&client->deadlines, &call->deadline);
        free_call(call);
        return rc;
    }
    /* After the last number of a stream the connection takes no more. */
    if (nghttp2_session_get_next_stream_id(link->session) > INT32_MAX)
        link->is_leaving = true;
    call->received = link->received;
    tierce__list_push_back(&link->calls, &call->node);
    link->in_flight++;
    client->in_flight++;
    TIERCE_ASSERT(link->in_flight <= client->in_flight);
    return 0;
}
