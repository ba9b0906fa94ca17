/* SPDX-License-Identifier: Apache-2.0 */
#include "net/control/control.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "net/control/socket.h"
#include "net/listen.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS_MAX 32u
#define HEADER_MEMORY   (16u << 10) /* of a connection */
#define BODY_BYTES_MAX  (16u << 20)
#define SILENCE_S       30u

/* One listener. */
struct door {
    struct tierce__control *control;
    struct MHD_Daemon *daemon;
    bool is_public;   /* open to every user of the machine */
    bool is_loopback; /* only to them */
};

struct tierce__control {
    struct tierce__control_opts opts;
    char path[TIERCE__CONTROL_PATH_BYTES];
    struct door socket;
    struct door port;
};

const char *tierce__control_arg(const struct tierce__control_query *query, const char *name)
{
    return MHD_lookup_connection_value(query->connection, MHD_GET_ARGUMENT_KIND, name);
}

struct only {
    const char *const *names;
    uint32_t seen; /* a bit for each */
    bool good;
};

static enum MHD_Result look_at_arg(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct only *only = arg;
    size_t i = 0;
    (void)kind;
    while (only->names[i] != NULL && strcmp(only->names[i], name) != 0)
        i++;
    TIERCE_ASSERT(i < 32);
    only->good =
        only->names[i] != NULL && value != NULL && value[0] != '\0' && (only->seen & 1u << i) == 0;
    only->seen |= 1u << i;
    return only->good ? MHD_YES : MHD_NO;
}

bool tierce__control_only(const struct tierce__control_query *query, const char *const *names)
{
    struct only only = {.names = names, .good = true};
    (void)MHD_get_connection_values(query->connection, MHD_GET_ARGUMENT_KIND, look_at_arg, &only);
    return only.good;
}

/* ---- one call -------------------------------------------------------------------------------- */

/* The state between the parts of a request. */
struct control_call {
    struct tierce__line body;
    bool too_large;
};

static enum MHD_Result send_answer(struct MHD_Connection *connection,
                                   struct tierce__control_answer *answer)
{
    if (answer->body.failed) {
        tierce__line_clear(&answer->body);
        answer->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
        answer->body.bytes, answer->body.text, tierce__free);
    if (response == NULL) {
        tierce__line_clear(&answer->body);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->type);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    enum MHD_Result result = MHD_queue_response(connection, answer->status, response);
    MHD_destroy_response(response);
    return result;
}

static void refuse(struct tierce__control_answer *answer, unsigned status, const char *text)
{
    answer->status = status;
    tierce__line_put(&answer->body, text);
}

/* A page in a browser may use a name that resolves to this address (DNS rebinding); the Host header
 * then has that name. */
static bool host_is_local(struct MHD_Connection *connection)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    const char *host =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    for (size_t i = 0; host != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n = strlen(names[i]);
        if (strncmp(host, names[i], n) == 0 && (host[n] == '\0' || host[n] == ':'))
            return true;
    }
    return host == NULL; /* HTTP/1.0 without Host: not a browser */
}

static bool may_enter(const struct door *door, struct MHD_Connection *connection)
{
    if (door->is_public)
        return !door->is_loopback || host_is_local(connection);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info != NULL && tierce__control_peer_is_ours(info->connect_fd);
}

static void answer_call(const struct door *door, struct MHD_Connection *connection,
                        const char *path, const char *method, const struct control_call *call,
                        struct tierce__control_answer *answer)
{
    const struct tierce__control_opts *opts = &door->control->opts;
    if (!may_enter(door, connection)) {
        refuse(answer, MHD_HTTP_FORBIDDEN,
               door->is_public ? "ask for localhost\n" : "this process belongs to another user\n");
        return;
    }
    if (call->too_large) {
        refuse(answer, MHD_HTTP_CONTENT_TOO_LARGE,
               door->is_public ? "pages of this socket accept no request body\n"
                               : "at most 16 MiB\n");
        return;
    }
    bool is_there = false;
    for (size_t i = 0; i < opts->route_count; i++) {
        const struct tierce__control_route *route = &opts->routes[i];
        if (strcmp(route->path, path) != 0 || (door->is_public && !route->is_public))
            continue;
        is_there = true;
        const char *wanted = route->method == TIERCE__CONTROL_GET ? "GET" : "POST";
        if (strcmp(method, wanted) != 0)
            continue;
        struct tierce__control_query query = {.body = call->body.bytes > 0 ? call->body.text : "",
                                              .body_bytes = call->body.bytes,
                                              .connection = connection};
        route->answer(opts->arg, &query, answer);
        return;
    }
    if (is_there)
        refuse(answer, MHD_HTTP_METHOD_NOT_ALLOWED, "another HTTP method is required\n");
    else
        refuse(answer, MHD_HTTP_NOT_FOUND, "no such page\n");
}

static enum MHD_Result on_call(void *arg, struct MHD_Connection *connection, const char *path,
                               const char *method, const char *version, const char *data,
                               size_t *bytes, void **kept)
{
    (void)version;
    struct control_call *call = *kept;
    if (call == NULL) {
        call = tierce__calloc(1, sizeof(*call));
        *kept = call;
        return call != NULL ? MHD_YES : MHD_NO;
    }
    if (*bytes > 0) {
        /* No public page accepts a body, because every user of the machine could send one. */
        const struct door *door = arg;
        TIERCE_ASSERT(call->body.bytes <= BODY_BYTES_MAX);
        size_t most = door->is_public ? 0 : BODY_BYTES_MAX - call->body.bytes;
        call->too_large = call->too_large || *bytes > most;
        if (!call->too_large)
            tierce__line_put_bytes(&call->body, data, *bytes);
        *bytes = 0;
        return call->body.failed ? MHD_NO : MHD_YES;
    }
    struct tierce__control_answer answer = {.status = MHD_HTTP_OK,
                                            .type = "text/plain; charset=utf-8"};
    answer_call(arg, connection, path, method, call, &answer);
    return send_answer(connection, &answer);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **kept,
                         enum MHD_RequestTerminationCode code)
{
    (void)arg;
    (void)connection;
    (void)code;
    struct control_call *call = *kept;
    if (call == NULL)
        return;
    tierce__line_clear(&call->body);
    tierce__free(call);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* libmicrohttpd owns `fd` afterwards; on failure it is closed. */
static int open_door(struct door *door, int fd)
{
    TIERCE_ASSERT(fd >= 0);
    /* clang-format off */
    door->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_call, door,
        MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, SILENCE_S,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_END);
    /* clang-format on */
    if (door->daemon != NULL)
        return 0;
    close(fd);
    return -EIO;
}

static int open_socket(struct tierce__control *control, const char *socket, char why[256])
{
    int fd, rc = 0;
    if (strcmp(socket, "auto") == 0) {
        rc = tierce__control_auto_path(control->path, why);
        socket = control->path;
    }
    if (rc == 0)
        rc = tierce__control_listen(&fd, socket, why);
    if (rc < 0) {
        control->path[0] = '\0';
        return rc;
    }
    TIERCE_ASSERT(strlen(socket) < sizeof(control->path));
    memmove(control->path, socket, strlen(socket) + 1); /* listen took it, so it fits */
    return open_door(&control->socket, fd);
}

static int open_port(struct tierce__control *control, const char *host, uint16_t port,
                     char why[256])
{
    int fd = -1;
    int rc = tierce__listen_tcp(&fd, &port, host != NULL ? host : "127.0.0.1", why);
    if (rc < 0)
        return rc;
    control->port.is_loopback = tierce__listens_on_loopback(fd);
    return open_door(&control->port, fd);
}

int tierce__control_start(struct tierce__control **out, const struct tierce__control_opts *opts,
                          char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__control *control = tierce__calloc(1, sizeof(*control));
    snprintf(why, 256, "no memory");
    if (control == NULL)
        return -ENOMEM;
    control->opts = *opts;
    control->socket.control = control;
    control->port.control = control;
    control->port.is_public = true;
    int rc = 0;
    if (opts->socket[0] != '\0')
        rc = open_socket(control, opts->socket, why);
    if (rc == 0 && opts->port != 0)
        rc = open_port(control, opts->host, opts->port, why);
    if (rc == 0)
        *out = control;
    else
        tierce__control_stop(control);
    return rc;
}

void tierce__control_stop(struct tierce__control *control)
{
    if (control == NULL)
        return;
    if (control->path[0] != '\0')
        unlink(control->path);
    if (control->socket.daemon != NULL)
        MHD_stop_daemon(control->socket.daemon);
    if (control->port.daemon != NULL)
        MHD_stop_daemon(control->port.daemon);
    tierce__free(control);
}

const char *tierce__control_socket(const struct tierce__control *control)
{
    return control->path;
}
