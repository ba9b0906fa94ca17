/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/http/http_private.h"
#include "net/listen.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Bytes of a too long body that are read and discarded, so that the client can read the reason;
 * then it is disconnected. */
#define DISCARDED_MAX ((size_t)16 << 20)

static void reply(struct tierce__call *base, const struct tierce__reply *reply);

bool tierce__http_has_left(int fd)
{
    struct pollfd side = {.fd = fd, .events = POLLRDHUP};
    return poll(&side, 1, 0) > 0 && (side.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static bool is_gone(const struct tierce__call *base)
{
    const struct tierce__http_call *call = (const void *)base; /* its first member */
    return tierce__http_has_left(call->fd);
}

static void destroy(struct tierce__call *base)
{
    struct tierce__http_call *call = TIERCE__CONTAINER_OF(base, struct tierce__http_call, base);
    TIERCE_ASSERT(call->bytes <= call->capacity);
    tierce__held_give_back(&base->shared->held, call->capacity + call->held);
    if (call->response != NULL)
        MHD_destroy_response(call->response);
    tierce__free(call->body);
    tierce__free(call->uri);
    tierce__free(call);
}

static const struct tierce__call_ops ops = {.reply = reply, .is_gone = is_gone, .destroy = destroy};

/* ---- answers --------------------------------------------------------------------------------- */

struct MHD_Response *tierce__http_error(const char *why)
{
    char text[160];
    int n = snprintf(text, sizeof(text), "{\"error\":\"%s\"}", why);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    struct MHD_Response *response =
        MHD_create_response_from_buffer((size_t)n, text, MHD_RESPMEM_MUST_COPY);
    if (response != NULL)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
    return response;
}

void tierce__http_settle(struct tierce__http_call *call, unsigned status,
                         struct MHD_Response *response)
{
    if (atomic_exchange_explicit(&call->is_claimed, true, memory_order_acq_rel)) {
        if (response != NULL)
            MHD_destroy_response(response);
        return;
    }
    call->status = status;
    call->response = response;
    /* We own suspended connections; any other may be gone after the exchange. */
    if (atomic_exchange_explicit(&call->state, TIERCE__HTTP_ANSWERED, memory_order_acq_rel) ==
        TIERCE__HTTP_SUSPENDED)
        MHD_resume_connection(call->connection);
}

static struct MHD_Response *make_response(const struct tierce__reply *reply)
{
    void *body = (void *)(uintptr_t)reply->body;
    struct MHD_Response *response =
        reply->release != NULL
            ? MHD_create_response_from_buffer_with_free_callback(reply->bytes, body, reply->release)
            : MHD_create_response_from_buffer(reply->bytes, body, MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        if (reply->release != NULL)
            reply->release(body);
        return NULL;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                                  reply->type != NULL ? reply->type : "application/json");
    if (reply->header_name != NULL)
        (void)MHD_add_response_header(response, reply->header_name, reply->header_value);
    for (size_t i = 0; i < reply->header_count; i++)
        (void)MHD_add_response_header(response, reply->headers[i].name, reply->headers[i].value);
    return response;
}

static void reply(struct tierce__call *base, const struct tierce__reply *reply)
{
    struct tierce__http_call *call = TIERCE__CONTAINER_OF(base, struct tierce__http_call, base);
    TIERCE_ASSERT(call->was_dispatched);
    struct MHD_Response *response = make_response(reply);
    unsigned status = reply->status;
    const char *refused = NULL;
    if (tierce__now_ns() >= base->info.deadline_ns) {
        /* The handler may notice the deadline before the deadline's thread does; its answer is
         * replaced. */
        status = 504;
        refused = "deadline exceeded";
    } else if (!tierce__held_take(&base->shared->held, reply->bytes)) {
        /* Answers to clients that do not read count against the limit too. */
        status = 503;
        refused = "no memory for the answer";
    } else {
        call->held = reply->bytes;
    }
    if (refused != NULL && response != NULL)
        MHD_destroy_response(response);
    tierce__http_settle(call, status, refused != NULL ? tierce__http_error(refused) : response);
}

/* ---- a request ------------------------------------------------------------------------------- */

/* Called with the request line, before its headers are read. */
void *tierce__http_call_begin(void *arg, const char *uri, struct MHD_Connection *connection)
{
    struct tierce__http *http = arg;
    struct tierce__http_call *call = tierce__calloc(1, sizeof(*call));
    if (call == NULL)
        return NULL;
    tierce__call_init(&call->base, &ops, http->shared);
    call->uri = tierce__strdup(uri);
    if (call->uri == NULL) {
        tierce__call_drop(&call->base);
        return NULL;
    }
    call->base.info.protocol = TIERCE__SERVE_HTTP;
    call->base.info.path = call->uri;
    char *query = strchr(call->uri, '?');
    if (query != NULL) {
        *query = '\0';
        call->base.info.query = query + 1;
    }
    call->http = http;
    call->connection = connection;
    call->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    tierce__list_init(&call->node);
    tierce__lock_take(&http->lock);
    tierce__http_connection_has_request(connection);
    call->came_too_late = http->is_draining;
    if (!call->came_too_late) {
        call->base.info.deadline_ns = tierce__deadline_in_ms(http->shared->transfer_ms);
        if (tierce__list_empty(&http->calls))
            tierce__cond_signal(&http->changed);
        tierce__list_push_back(&http->calls, &call->node);
        http->call_count++;
    }
    tierce__lock_drop(&http->lock);
    return call;
}

void tierce__http_call_completed(void *arg, struct MHD_Connection *connection, void **context,
                                 enum MHD_RequestTerminationCode code)
{
    (void)code;
    struct tierce__http *http = arg;
    struct tierce__http_call *call = *context;
    *context = NULL;
    if (call == NULL)
        return;
    atomic_store_explicit(&call->base.is_over, true, memory_order_relaxed);
    TIERCE_ASSERT(call->http == http);
    tierce__lock_take(&http->lock);
    tierce__http_connection_had_request(http, connection);
    if (!call->came_too_late) {
        TIERCE_ASSERT(http->call_count > 0);
        tierce__list_remove(&call->node);
        http->call_count--;
    }
    tierce__lock_drop(&http->lock);
    tierce__call_drop(&call->base);
}

static enum MHD_Result add_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    (void)kind;
    struct tierce__http_call *call = arg;
    char lower[256];
    size_t n = 0;
    for (; name[n] != '\0' && n < sizeof(lower); n++)
        lower[n] = name[n] >= 'A' && name[n] <= 'Z' ? (char)(name[n] | 0x20) : name[n];
    if (n == sizeof(lower) ||
        tierce__texts_add(&call->base.headers, lower, n, value != NULL ? value : "",
                          value != NULL ? strlen(value) : 0) != 0) {
        tierce__http_settle(call, 431, tierce__http_error("the headers are too long"));
        return MHD_NO;
    }
    return MHD_YES;
}

static void refuse_method(struct tierce__http_call *call, const char *allowed)
{
    struct MHD_Response *response = tierce__http_error("the method is not allowed here");
    if (response != NULL)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allowed);
    tierce__http_settle(call, 405, response);
}

/* HEAD is GET with only the headers sent. */
static void find_route(struct tierce__http_call *call)
{
    const char *other_method;
    const struct tierce__call_info *info = &call->base.info;
    const struct tierce__routes *routes = &call->http->routes;
    const char *method = info->method;
    call->base.route = tierce__routes_find(routes, &other_method, info->path, method);
    if (call->base.route == NULL && strcmp(method, "HEAD") == 0)
        call->base.route = tierce__routes_find(routes, &other_method, info->path, "GET");
    if (call->base.route != NULL)
        return;
    if (other_method != NULL)
        refuse_method(call, other_method);
    else
        tierce__http_settle(call, 404, tierce__http_error("not found"));
}

static bool announces_too_much(const struct tierce__http_call *call)
{
    const char *text = tierce__call_header(&call->base, "content-length");
    if (text == NULL)
        return false;
    char *end;
    errno = 0;
    unsigned long long length = strtoull(text, &end, 10);
    return errno != 0 || length > call->base.shared->message_bytes_max;
}

/* Called when the headers are complete. A rejected request is still read to its end, so that a
 * client that is writing can read the reason. */
static void take_headers(struct tierce__http_call *call, const char *method)
{
    struct MHD_Connection *connection = call->connection;
    const char *name = NULL, *refused;
    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, call);
    char peer[TIERCE__PEER_BYTES];
    tierce__peer_print(
        peer, MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
    bool accepted = tierce__http_tls_accepts(call->http, connection, &name);
    size_t method_bytes = strlen(method);
    if (tierce__texts_add(&call->base.headers, " method", 7, method, method_bytes) != 0 ||
        tierce__call_set_peer(&call->base, peer, name) != 0) {
        tierce__http_settle(call, 431, tierce__http_error("the headers are too long"));
        return;
    }
    call->base.info.method = tierce__texts_find(&call->base.headers, " method");
    if (!accepted)
        tierce__http_settle(call, 403, tierce__http_error("a client certificate is required"));
    else if (call->came_too_late)
        tierce__http_settle(call, 503, tierce__http_error("the server is shutting down"));
    else if ((refused = tierce__http_refuses(call)) != NULL)
        tierce__http_settle(call, 403, tierce__http_error(refused));
    else if (announces_too_much(call))
        call->is_too_large = true;
    else
        find_route(call);
}

/* Makes room for `more` bytes after the received ones. */
static int reserve(struct tierce__http_call *call, size_t more)
{
    TIERCE_ASSERT(call->bytes <= call->capacity);
    size_t wanted = call->bytes + more;
    if (wanted > call->base.shared->message_bytes_max)
        return TIERCE_E_LIMIT;
    if (wanted <= call->capacity)
        return 0;
    size_t capacity = 2 * call->capacity < wanted ? wanted : 2 * call->capacity;
    if (!tierce__held_take(&call->base.shared->held, capacity - call->capacity))
        return -ENOMEM;
    char *body = tierce__realloc(call->body, capacity);
    if (body == NULL) {
        tierce__held_give_back(&call->base.shared->held, capacity - call->capacity);
        return -ENOMEM;
    }
    call->body = body;
    call->capacity = capacity;
    TIERCE_ASSERT(more <= call->capacity - call->bytes);
    return 0;
}

static bool is_answered(const struct tierce__http_call *call)
{
    return atomic_load_explicit(&call->state, memory_order_acquire) == TIERCE__HTTP_ANSWERED;
}

static enum MHD_Result take_body(struct tierce__http_call *call, const char *data, size_t count)
{
    if (!is_answered(call)) {
        int rc = reserve(call, count);
        if (rc == 0) {
            TIERCE_ASSERT(count <= call->capacity - call->bytes);
            memcpy(call->body + call->bytes, data, count);
            call->bytes += count;
            return MHD_YES;
        }
        if (rc == TIERCE_E_LIMIT)
            tierce__http_settle(call, 413, tierce__http_error("the body is too long"));
        else
            tierce__http_settle(call, 503, tierce__http_error("out of memory"));
    }
    call->discarded += count;
    return call->discarded <= DISCARDED_MAX ? MHD_YES : MHD_NO;
}

static enum MHD_Result queue_answer(struct tierce__http_call *call)
{
    if (call->response == NULL)
        return MHD_NO;
    return MHD_queue_response(call->connection, call->status, call->response);
}

/* False: it was answered before the request was complete. */
static bool may_dispatch(struct tierce__http_call *call)
{
    tierce__lock_take(&call->http->lock); /* read when the call is retired */
    TIERCE_ASSERT(!call->was_dispatched);
    bool may = !is_answered(call);
    call->was_dispatched = may;
    tierce__lock_drop(&call->http->lock);
    return may;
}

static enum MHD_Result dispatch(struct tierce__http_call *call)
{
    if (!may_dispatch(call))
        return queue_answer(call);
    call->base.info.body = call->body;
    call->base.info.body_bytes = call->bytes;
    tierce__call_dispatch(&call->base);
    if (is_answered(call))
        return queue_answer(call);
    enum tierce__http_state running = TIERCE__HTTP_RUNNING;
    MHD_suspend_connection(call->connection);
    if (!atomic_compare_exchange_strong_explicit(&call->state, &running, TIERCE__HTTP_SUSPENDED,
                                                 memory_order_acq_rel, memory_order_acquire))
        MHD_resume_connection(call->connection);
    return MHD_YES;
}

/* libmicrohttpd calls this first with the headers, then with each piece of the body, then without
 * data, and again without data after a suspension. */
/* NOLINTNEXTLINE(readability-function-size): the arguments are libmicrohttpd's. */
enum MHD_Result tierce__http_call_access(void *http, struct MHD_Connection *connection,
                                         const char *url, const char *method, const char *version,
                                         const char *data, size_t *count, void **context)
{
    (void)http;
    (void)connection;
    (void)url;
    (void)version;
    struct tierce__http_call *call = *context;
    if (call == NULL)
        return MHD_NO;
    if (!call->has_begun) {
        call->has_begun = true;
        take_headers(call, method);
        if (!call->is_too_large)
            return MHD_YES;
        tierce__http_settle(call, 413, tierce__http_error("the body is too long"));
        return queue_answer(call);
    }
    if (*count > 0) {
        enum MHD_Result result = take_body(call, data, *count);
        *count = 0;
        return result;
    }
    return call->was_dispatched ? queue_answer(call) : dispatch(call);
}
