/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_private.h"
#include "net/grpc/grpc_text.h"
#include "net/server/grpc/grpc_health.h"
#include "net/server/grpc/reflection/reflection.h"

#include <errno.h>
#include <string.h>

static void destroy(struct tierce__call *base)
{
    struct tierce__grpc_call *call = TIERCE__CONTAINER_OF(base, struct tierce__grpc_call, base);
    TIERCE_ASSERT(call->connection == NULL && call->deadline.place == 0);
    tierce__grpc_reader_fini(&call->reader);
    tierce__grpc_message_fini(&call->request);
    tierce__grpc_call_free_reply(call);
    tierce__free(call);
}

static const struct tierce__call_ops ops = {.reply = tierce__grpc_call_reply, .destroy = destroy};

/* The deadline has passed: the client gets an error regardless of the handler. */
static void expired(struct tierce__deadline *deadline)
{
    TIERCE_ASSERT(tierce__loop_is_here(
        TIERCE__CONTAINER_OF(deadline, struct tierce__grpc_call, deadline)->loop));
    struct tierce__grpc_call *call =
        TIERCE__CONTAINER_OF(deadline, struct tierce__grpc_call, deadline);
    struct tierce__grpc_connection *connection = call->connection;
    if (call->phase == TIERCE__GRPC_ANSWERED)
        (void)nghttp2_submit_rst_stream(connection->session, NGHTTP2_FLAG_NONE, call->stream,
                                        NGHTTP2_CANCEL);
    else
        tierce__grpc_call_refuse(call, TIERCE__GRPC_DEADLINE_EXCEEDED, "deadline exceeded");
    tierce__grpc_connection_changed(connection);
}

struct tierce__grpc_call *tierce__grpc_call_begin(struct tierce__grpc_connection *connection,
                                                  int32_t stream)
{
    struct tierce__grpc_call *call = tierce__calloc(1, sizeof(*call));
    if (call == NULL)
        return NULL;
    TIERCE_ASSERT(tierce__loop_is_here(connection->opts.loop));
    struct tierce__shared *shared = connection->opts.shared;
    tierce__call_init(&call->base, &ops, shared);
    call->base.info.protocol = TIERCE__SERVE_GRPC;
    call->base.info.method = "POST";
    call->connection = connection;
    call->loop = connection->opts.loop;
    call->stream = stream;
    call->deadline.expired = expired;
    tierce__grpc_reader_init(&call->reader, &shared->held, shared->message_bytes_max);
    tierce__list_push_back(&connection->calls, &call->node);
    if (tierce__grpc_call_hurry(call) == 0) /* its headers may trickle in too */
        return call;
    tierce__grpc_call_closed(call);
    return NULL;
}

void tierce__grpc_call_header(struct tierce__grpc_call *call, const char *name, size_t name_bytes,
                              const char *value, size_t value_bytes)
{
    if (!call->is_too_long &&
        tierce__texts_add(&call->base.headers, name, name_bytes, value, value_bytes) != 0)
        call->is_too_long = true;
}

int tierce__grpc_call_hurry(struct tierce__grpc_call *call)
{
    uint64_t at_ns = tierce__deadline_in_ms(call->base.shared->transfer_ms);
    TIERCE_ASSERT(tierce__loop_is_here(call->loop));
    if (call->base.info.deadline_ns < at_ns)
        at_ns = call->base.info.deadline_ns;
    return tierce__deadline_set(&call->loop->deadlines, &call->deadline, at_ns);
}

/* The handler has the time that the client gave. */
static void stop_hurrying(struct tierce__grpc_call *call)
{
    uint64_t at_ns = call->base.info.deadline_ns;
    int rc = 0;
    TIERCE_ASSERT(tierce__loop_is_here(call->loop));
    if (at_ns == TIERCE__DEADLINE_NEVER)
        tierce__deadline_unset(&call->loop->deadlines, &call->deadline);
    else if (at_ns != call->deadline.at)
        rc = tierce__deadline_set(&call->loop->deadlines, &call->deadline, at_ns);
    TIERCE_ASSERT(rc == 0); /* it is in the heap already */
}

/* False: it is rejected. */
static bool set_deadline(struct tierce__grpc_call *call)
{
    const char *text = tierce__call_header(&call->base, "grpc-timeout");
    uint64_t timeout_ns, at_ns;
    if (text != NULL && !tierce__grpc_timeout_parse(&timeout_ns, text)) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_INTERNAL, "grpc-timeout is malformed");
        return false;
    }
    if (text != NULL && !__builtin_add_overflow(tierce__now_ns(), timeout_ns, &at_ns))
        call->base.info.deadline_ns = at_ns;
    if (tierce__grpc_call_hurry(call) == 0)
        return true;
    tierce__grpc_call_refuse(call, TIERCE__GRPC_RESOURCE_EXHAUSTED, "out of memory");
    return false;
}

static bool set_encoding(struct tierce__grpc_call *call)
{
    const char *encoding = tierce__call_header(&call->base, "grpc-encoding");
    if (encoding == NULL || strcmp(encoding, "identity") == 0)
        return true;
    call->inflates = strcmp(encoding, "gzip") == 0 || strcmp(encoding, "deflate") == 0;
    if (!call->inflates)
        tierce__grpc_call_refuse(call, TIERCE__GRPC_UNIMPLEMENTED,
                                 "grpc-encoding is neither identity nor gzip nor deflate");
    return call->inflates;
}

static const struct tierce__grpc_talk *find_talk(const struct tierce__grpc_call *call)
{
    if (call->base.shared->reflection == NULL)
        return NULL;
    for (size_t i = 0; i < TIERCE__REFLECTION_TALKS; i++)
        if (strcmp(call->base.info.path, tierce__reflection_talks[i].path) == 0)
            return &tierce__reflection_talks[i];
    return NULL;
}

/* The error for an unknown method contains its name, truncated. */
static void refuse_method(struct tierce__grpc_call *call)
{
    char text[256];
    snprintf(text, sizeof(text), "no method %s", call->base.info.path);
    tierce__grpc_call_refuse(call, TIERCE__GRPC_UNIMPLEMENTED, text);
}

static void find_route(struct tierce__grpc_call *call)
{
    const char *other_method;
    call->base.route = tierce__routes_find(call->connection->opts.routes, &other_method,
                                           call->base.info.path, NULL);
    if (call->base.route == NULL && strcmp(call->base.info.path, tierce__health_route.path) == 0)
        call->base.route = &tierce__health_route;
    if (call->base.route != NULL)
        return;
    call->talk = find_talk(call);
    if (call->talk == NULL)
        refuse_method(call);
    else
        stop_hurrying(call); /* open until both sides end it */
}

void tierce__grpc_call_headers_end(struct tierce__grpc_call *call)
{
    const struct tierce__grpc_connection_opts *opts = &call->connection->opts;
    struct tierce__call_info *info = &call->base.info;
    if (call->phase != TIERCE__GRPC_RECEIVING) /* trailers after the end are ignored */
        return;
    TIERCE_ASSERT(call->base.route == NULL && call->talk == NULL && !call->has_request);
    if (call->is_too_long ||
        tierce__call_set_peer(&call->base, opts->peer, opts->certificate) != 0) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_RESOURCE_EXHAUSTED, "the headers are too long");
        return;
    }
    const char *method = tierce__call_header(&call->base, ":method");
    const char *type = tierce__call_header(&call->base, "content-type");
    info->path = tierce__call_header(&call->base, ":path");
    if (method == NULL || info->path == NULL || strcmp(method, "POST") != 0) {
        tierce__grpc_call_refuse_http(call, "405");
        return;
    }
    if (type == NULL || !tierce__grpc_is_content_type(type)) {
        tierce__grpc_call_refuse_http(call, "415");
        return;
    }
    if (set_deadline(call) && set_encoding(call))
        find_route(call);
}

static void refuse_by(struct tierce__grpc_call *call, int rc)
{
    if (rc == TIERCE_E_LIMIT)
        tierce__grpc_call_refuse(call, TIERCE__GRPC_RESOURCE_EXHAUSTED,
                                 "the message exceeds this server's limit");
    else if (rc == TIERCE_E_FORMAT)
        tierce__grpc_call_refuse(call, TIERCE__GRPC_INTERNAL, "the message is malformed");
    else
        tierce__grpc_call_refuse(call, TIERCE__GRPC_RESOURCE_EXHAUSTED, "out of memory");
}

/* Messages of a talk are answered as they arrive. If the client does not read the answers, no more
 * are made. */
static void answer_talk(struct tierce__grpc_call *call, struct tierce__grpc_message *message)
{
    uint8_t *out = call->body;
    size_t bytes = call->body_bytes, capacity = call->body_capacity;
    TIERCE_ASSERT(call->phase == TIERCE__GRPC_RECEIVING || call->phase == TIERCE__GRPC_TALKING);
    int rc = call->talk->answer(call->base.shared, message, &out, &bytes, &capacity);
    TIERCE_ASSERT(rc < 0 || (bytes >= call->sent && bytes <= capacity));
    call->body = out;
    call->body_bytes = bytes;
    call->body_capacity = capacity;
    if (rc < 0 || bytes - call->sent > call->base.shared->stream_buffer_max)
        refuse_by(call, rc < 0 ? rc : TIERCE_E_LIMIT);
    else
        tierce__grpc_call_say(call);
}

static void take_message(struct tierce__grpc_call *call, struct tierce__grpc_message *message)
{
    int rc = 0;
    TIERCE_ASSERT(!call->request_ended);
    if (message->is_compressed)
        rc = call->inflates ? tierce__grpc_message_inflate(message, call->reader.bytes_max)
                            : TIERCE_E_FORMAT;
    if (rc != 0) {
        refuse_by(call, rc);
    } else if (call->talk != NULL) {
        answer_talk(call, message);
    } else if (call->has_request) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_UNIMPLEMENTED,
                                 "exactly one message is required");
    } else {
        call->request = *message;
        call->has_request = true;
        return;
    }
    tierce__grpc_message_fini(message);
}

void tierce__grpc_call_data(struct tierce__grpc_call *call, const uint8_t *data, size_t count)
{
    while (call->phase == TIERCE__GRPC_RECEIVING || call->phase == TIERCE__GRPC_TALKING) {
        struct tierce__grpc_message message;
        int rc = tierce__grpc_reader_feed(&call->reader, &message, &data, &count);
        if (rc < 0)
            refuse_by(call, rc);
        if (rc <= 0)
            break;
        take_message(call, &message);
    }
}

void tierce__grpc_call_request_end(struct tierce__grpc_call *call)
{
    TIERCE_ASSERT(!call->request_ended);
    call->request_ended = true;
    if (call->phase != TIERCE__GRPC_RECEIVING && call->phase != TIERCE__GRPC_TALKING)
        return;
    if (tierce__grpc_reader_is_inside(&call->reader)) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_INTERNAL, "the message is truncated");
        return;
    }
    if (call->talk != NULL) {
        tierce__grpc_call_say(call);
        return;
    }
    if (!call->has_request) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_UNIMPLEMENTED,
                                 "exactly one message is required");
        return;
    }
    if (call->deadline.place != 0 && tierce__now_ns() >= call->deadline.at) {
        tierce__grpc_call_refuse(call, TIERCE__GRPC_DEADLINE_EXCEEDED, "deadline exceeded");
        return;
    }
    TIERCE_ASSERT(call->phase == TIERCE__GRPC_RECEIVING);
    stop_hurrying(call);
    call->phase = TIERCE__GRPC_SERVING;
    call->base.info.body = call->request.body;
    call->base.info.body_bytes = call->request.bytes;
    tierce__call_dispatch(&call->base);
}

void tierce__grpc_call_closed(struct tierce__grpc_call *call)
{
    TIERCE_ASSERT(tierce__loop_is_here(call->loop));
    tierce__deadline_unset(&call->loop->deadlines, &call->deadline);
    tierce__list_remove(&call->node);
    call->connection->quiet_since_ns = tierce__now_ns();
    call->connection = NULL;
    atomic_store_explicit(&call->base.is_over, true, memory_order_relaxed);
    tierce__call_drop(&call->base);
}
