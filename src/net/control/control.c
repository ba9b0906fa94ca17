/* SPDX-License-Identifier: Apache-2.0 */
#include "net/control/control.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "net/control/socket.h"
#include "net/listen.h"
#include "net/tokens.h"
#include "net/tls.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CONNECTIONS_MAX 32u
#define HEADER_MEMORY   (16u << 10) /* of a connection */
#define BODY_BYTES_MAX  (16u << 20)
#define SILENCE_S       30u
#define PIECE_BYTES     (32u << 10) /* of libmicrohttpd's buffer */
#define PEM_BYTES_MAX   (1u << 20)

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
    char *pem[2]; /* the port's certificate and key, or NULL: libmicrohttpd borrows them */
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

/* A body in pieces. */
struct control_pieces {
    struct tierce__control_answer answer; /* its body: the piece in progress */
    size_t sent;                          /* of it */
};

static ssize_t read_pieces(void *arg, uint64_t position, char *out, size_t bytes_max)
{
    struct control_pieces *p = arg;
    struct tierce__line *body = &p->answer.body;
    (void)position;
    while (p->sent == body->bytes) {
        p->sent = body->bytes = 0;
        if (!p->answer.next(p->answer.state, body))
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (body->failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t bytes = body->bytes - p->sent < bytes_max ? body->bytes - p->sent : bytes_max;
    memcpy(out, body->text + p->sent, bytes);
    p->sent += bytes;
    return (ssize_t)bytes;
}

static void end_pieces(void *arg)
{
    struct control_pieces *p = arg;
    if (p->answer.end != NULL)
        p->answer.end(p->answer.state);
    tierce__line_clear(&p->answer.body);
    tierce__free(p);
}

/* Takes the body; NULL: no memory. */
static struct MHD_Response *make_response(struct tierce__control_answer *answer)
{
    struct MHD_Response *response = NULL;
    if (answer->next == NULL) {
        response = MHD_create_response_from_buffer_with_free_callback(
            answer->body.bytes, answer->body.text, tierce__free);
        if (response == NULL)
            tierce__line_clear(&answer->body);
        return response;
    }
    struct control_pieces *pieces = tierce__alloc(sizeof(*pieces));
    if (pieces != NULL) {
        *pieces = (struct control_pieces){.answer = *answer};
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE_BYTES, read_pieces,
                                                     pieces, end_pieces);
        if (response == NULL)
            end_pieces(pieces);
    } else {
        if (answer->end != NULL)
            answer->end(answer->state);
        tierce__line_clear(&answer->body);
    }
    return response;
}

static enum MHD_Result send_answer(struct MHD_Connection *connection,
                                   struct tierce__control_answer *answer)
{
    if (answer->body.failed) {
        tierce__line_clear(&answer->body);
        answer->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
        if (answer->next != NULL && answer->end != NULL)
            answer->end(answer->state);
        answer->next = NULL; /* no parts without the first one */
    }
    struct MHD_Response *response = make_response(answer);
    if (response == NULL)
        return MHD_NO;
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->type);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (answer->status == MHD_HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
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

static bool shows_token(const struct door *door, struct MHD_Connection *connection)
{
    const struct tierce__tokens *tokens = door->control->opts.tokens;
    if (!door->is_public || tokens == NULL)
        return true;
    const char *shown =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    return shown != NULL && strncasecmp(shown, "Bearer ", 7) == 0 &&
           tierce__tokens_find(tokens, shown + 7, strlen(shown + 7)) != NULL;
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
    if (!shows_token(door, connection)) {
        refuse(answer, MHD_HTTP_UNAUTHORIZED,
               "authentication required: send a token in the Authorization header\n");
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

/* libmicrohttpd owns `fd` afterwards; on failure it is closed. pem: certificate and key, or NULL
 * and NULL. */
static int open_door(struct door *door, int fd, char *const pem[2])
{
    TIERCE_ASSERT(fd >= 0);
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, pem[0]},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, pem[1]},
        {MHD_OPTION_HTTPS_PRIORITIES, 0,
         (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
        {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    bool has_tls = pem[0] != NULL;
    /* clang-format off */
    door->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | (has_tls ? MHD_USE_TLS : 0u), 0, NULL, NULL, on_call, door,
        MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, SILENCE_S,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_ARRAY, has_tls ? tls : none,
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
    return open_door(&control->socket, fd, (char *const[]){NULL, NULL});
}

/* Reads both files, and checks that they belong together. */
static int read_pems(char *pem[2], const struct tierce__control_opts *opts, char why[256])
{
    const char *const paths[] = {opts->certificate, opts->key};
    if (opts->certificate == NULL || opts->certificate[0] == '\0')
        return 0;
    TIERCE_ASSERT(opts->key != NULL && opts->key[0] != '\0');
    struct tierce__tls_context *checked;
    int rc = tierce__tls_server_context(
        &checked, &(struct tierce__tls){.certificate = paths[0], .key = paths[1]}, why);
    if (rc < 0)
        return rc;
    tierce__tls_context_destroy(checked);
    for (int i = 0; i < 2; i++) {
        size_t bytes;
        rc = tierce__read_file(&pem[i], &bytes, paths[i], PEM_BYTES_MAX);
        if (rc < 0) {
            snprintf(why, 256, "TLS file %.150s: %s", paths[i], tierce_strerror(rc));
            return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
        }
    }
    return 0;
}

static int open_port(struct tierce__control *control, const struct tierce__control_opts *opts,
                     char why[256])
{
    int fd = -1;
    uint16_t port = opts->port;
    int rc = read_pems(control->pem, opts, why);
    if (rc == 0)
        rc = tierce__listen_tcp(&fd, &port, opts->host != NULL ? opts->host : "127.0.0.1", why);
    if (rc == 0) {
        control->port.is_loopback = tierce__listens_on_loopback(fd);
        rc = open_door(&control->port, fd, control->pem);
    }
    return rc;
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
        rc = open_port(control, opts, why);
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
    tierce__free(control->pem[0]);
    tierce__free(control->pem[1]);
    tierce__free(control);
}

const char *tierce__control_socket(const struct tierce__control *control)
{
    return control->path;
}
