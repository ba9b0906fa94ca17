/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_private.h"
#include "net/grpc/grpc_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Clients take 8 KiB of headers in all. */
#define MESSAGE_BYTES_MAX 3072u

#define FIXED(name, value)                                                                         \
    {                                                                                              \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), sizeof(name) - 1,             \
            sizeof(value) - 1, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE        \
    }

static const nghttp2_nv answer_headers[] = {
    FIXED(":status", "200"),
    FIXED("content-type", "application/grpc"),
    FIXED("grpc-accept-encoding", "identity,deflate,gzip"),
};
#define ANSWER_HEADERS (sizeof(answer_headers) / sizeof(*answer_headers))

static nghttp2_nv copied(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), NGHTTP2_NV_FLAG_NONE};
}

void tierce__grpc_call_free_reply(struct tierce__grpc_call *call)
{
    if (call->release != NULL)
        call->release(call->body);
    else
        tierce__free(call->body);
    tierce__free(call->message);
    tierce__held_give_back(&call->base.shared->held, call->held);
    call->held = 0;
    call->body = NULL;
    call->release = NULL;
    call->message = NULL;
}

/* If memory runs out, the stream is reset instead. */
static void reset(struct tierce__grpc_call *call)
{
    (void)nghttp2_submit_rst_stream(call->connection->session, NGHTTP2_FLAG_NONE, call->stream,
                                    NGHTTP2_INTERNAL_ERROR);
}

/* grpc-status, and grpc-message if there is one, behind `count` headers of nv. */
static size_t add_status(nghttp2_nv *nv, size_t count, char digits[12], uint32_t status,
                         const char *message)
{
    snprintf(digits, 12, "%u", status);
    nv[count++] = copied("grpc-status", digits);
    if (message != NULL && *message != '\0')
        nv[count++] = copied("grpc-message", message);
    return count;
}

static void submit_trailers_only(struct tierce__grpc_call *call, uint32_t status,
                                 const char *message)
{
    nghttp2_nv nv[ANSWER_HEADERS + 2];
    char digits[12];
    memcpy(nv, answer_headers, sizeof(answer_headers));
    TIERCE_ASSERT(call->phase != TIERCE__GRPC_ANSWERED && !call->has_headers);
    size_t count = add_status(nv, ANSWER_HEADERS, digits, status, message);
    call->phase = TIERCE__GRPC_ANSWERED;
    if (nghttp2_submit_response(call->connection->session, call->stream, nv, count, NULL) != 0)
        reset(call);
}

static void submit_trailers(struct tierce__grpc_call *call, uint32_t status, const char *message)
{
    nghttp2_nv nv[2];
    char digits[12];
    TIERCE_ASSERT(call->phase == TIERCE__GRPC_ANSWERED || call->phase == TIERCE__GRPC_TALKING);
    size_t count = add_status(nv, 0, digits, status, message);
    call->phase = TIERCE__GRPC_ANSWERED;
    if (nghttp2_submit_trailer(call->connection->session, call->stream, nv, count) != 0)
        reset(call);
}

/* ---- unary ----------------------------------------------------------------------------------- */

static ssize_t read_body(nghttp2_session *session, int32_t stream, uint8_t *out, size_t capacity,
                         uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)stream;
    (void)arg;
    struct tierce__grpc_call *call = source->ptr;
    size_t count = 0;
    while (call->sent < sizeof(call->prefix) && count < capacity)
        out[count++] = call->prefix[call->sent++];
    if (call->sent >= sizeof(call->prefix)) {
        size_t done = call->sent - sizeof(call->prefix);
        TIERCE_ASSERT(done <= call->body_bytes);
        size_t n = call->body_bytes - done;
        if (n > capacity - count)
            n = capacity - count;
        if (n > 0)
            memcpy(out + count, (const uint8_t *)call->body + done, n);
        call->sent += n;
        count += n;
    }
    if (call->sent == sizeof(call->prefix) + call->body_bytes) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        submit_trailers(call, TIERCE__GRPC_OK, NULL);
        tierce__grpc_call_free_reply(call);
    }
    TIERCE_ASSERT(count <= capacity);
    return (ssize_t)count;
}

/* Owner only. */
static void deliver(struct tierce__grpc_call *call)
{
    struct tierce__grpc_connection *connection = call->connection;
    TIERCE_ASSERT(tierce__loop_is_here(call->loop));
    if (connection == NULL || call->phase != TIERCE__GRPC_SERVING)
        return;
    /* The timer is about to fire and would abort the reply that is submitted now. */
    bool is_late = call->deadline.place != 0 && tierce__now_ns() >= call->deadline.at;
    if (is_late) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_DEADLINE_EXCEEDED, "deadline exceeded");
    } else if (call->status != TIERCE__GRPC_OK) {
        submit_trailers_only(call, call->status, call->message);
    } else {
        nghttp2_data_provider provider = {.source = {.ptr = call}, .read_callback = read_body};
        call->phase = TIERCE__GRPC_ANSWERED;
        tierce__grpc_prefix_write(call->prefix, call->body_bytes);
        if (nghttp2_submit_response(connection->session, call->stream, answer_headers,
                                    ANSWER_HEADERS, &provider) != 0 ||
            tierce__grpc_call_hurry(call) != 0)
            reset(call);
    }
    tierce__grpc_connection_changed(connection);
}

static void deliver_posted(struct tierce__task *task)
{
    struct tierce__grpc_call *call = TIERCE__CONTAINER_OF(task, struct tierce__grpc_call, deliver);
    deliver(call);
    tierce__call_drop(&call->base);
}

/* Answers to clients that do not read count against the limit too. */
static bool hold_body(struct tierce__grpc_call *call, const struct tierce__reply *reply)
{
    TIERCE_ASSERT(call->held == 0);
    if (reply->bytes > UINT32_MAX || !tierce__held_take(&call->base.shared->held, reply->bytes))
        return false;
    call->held = call->body_bytes = reply->bytes;
    if (reply->release != NULL || reply->bytes == 0)
        return true;
    call->body = tierce__alloc(reply->bytes);
    if (call->body != NULL)
        memcpy(call->body, reply->body, reply->bytes);
    return call->body != NULL;
}

void tierce__grpc_call_reply(struct tierce__call *base, const struct tierce__reply *reply)
{
    struct tierce__grpc_call *call = TIERCE__CONTAINER_OF(base, struct tierce__grpc_call, base);
    char message[MESSAGE_BYTES_MAX];
    const char *why = reply->message;
    call->status = reply->status;
    if (reply->release != NULL) {
        call->release = reply->release;
        call->body = (void *)(uintptr_t)reply->body;
    }
    if (reply->status == TIERCE__GRPC_OK && !hold_body(call, reply)) {
        call->status = TIERCE__GRPC_RESOURCE_EXHAUSTED;
        why = "no memory for the answer";
    }
    if (call->status != TIERCE__GRPC_OK && why != NULL) {
        tierce__grpc_message_encode(message, sizeof(message), why);
        call->message = tierce__strdup(message); /* without it the status still tells */
    }
    if (tierce__loop_is_here(call->loop)) {
        deliver(call);
        return;
    }
    atomic_fetch_add_explicit(&base->holders, 1, memory_order_relaxed);
    call->deliver.run = deliver_posted;
    tierce__loop_post(call->loop, &call->deliver);
}

/* ---- the server's own answers ---------------------------------------------------------------- */

/* Does not touch fields that a reply fills in: another thread may be replying now. */
void tierce__grpc_call_refuse(struct tierce__grpc_call *call, uint32_t status, const char *message)
{
    char encoded[MESSAGE_BYTES_MAX];
    TIERCE_ASSERT(call->phase != TIERCE__GRPC_ANSWERED);
    TIERCE_ASSERT(tierce__loop_is_here(call->loop));
    tierce__deadline_unset(&call->loop->deadlines, &call->deadline);
    atomic_store_explicit(&call->base.is_over, true, memory_order_relaxed);
    tierce__grpc_message_encode(encoded, sizeof(encoded), message);
    if (call->has_headers) {
        call->phase = TIERCE__GRPC_ANSWERED;
        reset(call);
    } else {
        submit_trailers_only(call, status, encoded);
    }
}

void tierce__grpc_call_refuse_http(struct tierce__grpc_call *call, const char *status)
{
    nghttp2_nv nv = copied(":status", status);
    TIERCE_ASSERT(call->phase == TIERCE__GRPC_RECEIVING);
    call->phase = TIERCE__GRPC_ANSWERED;
    if (nghttp2_submit_response(call->connection->session, call->stream, &nv, 1, NULL) != 0)
        reset(call);
}

/* ---- a talk ---------------------------------------------------------------------------------- */

static ssize_t read_talk(nghttp2_session *session, int32_t stream, uint8_t *out, size_t capacity,
                         uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)stream;
    (void)arg;
    struct tierce__grpc_call *call = source->ptr;
    TIERCE_ASSERT(call->sent <= call->body_bytes);
    size_t n = call->body_bytes - call->sent;
    if (n > capacity)
        n = capacity;
    if (n > 0)
        memcpy(out, (const uint8_t *)call->body + call->sent, n);
    call->sent += n;
    if (call->sent == call->body_bytes) {
        call->sent = call->body_bytes = 0;
        if (call->request_ended) {
            *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
            submit_trailers(call, TIERCE__GRPC_OK, NULL);
        } else if (n == 0) {
            call->is_waiting = true;
            return NGHTTP2_ERR_DEFERRED;
        }
    }
    return (ssize_t)n;
}

void tierce__grpc_call_say(struct tierce__grpc_call *call)
{
    TIERCE_ASSERT(call->phase != TIERCE__GRPC_ANSWERED);
    TIERCE_ASSERT(tierce__loop_is_here(call->loop) && call->talk != NULL);
    nghttp2_data_provider provider = {.source = {.ptr = call}, .read_callback = read_talk};
    nghttp2_session *session = call->connection->session;
    call->phase = TIERCE__GRPC_TALKING;
    if (!call->has_headers) {
        call->has_headers = true;
        if (nghttp2_submit_response(session, call->stream, answer_headers, ANSWER_HEADERS,
                                    &provider) != 0)
            reset(call);
    } else if (call->is_waiting) {
        call->is_waiting = false;
        (void)nghttp2_session_resume_data(session, call->stream);
    }
}
