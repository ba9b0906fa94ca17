/* SPDX-License-Identifier: Apache-2.0 */
#include "node/resp/resp_session.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LARGE_BYTES   (16u << 10) /* from here on a value goes straight to and from the pool */
#define UNKNOWN_BYTES (16u << 10) /* of a request before authentication */
#define UNKNOWN_ARGS  16u
#define BYTES_PER_ARG 32u
#define LINE_BYTES_AHEAD                                                                           \
    4096u /* beyond a value: more would have to be copied if it is another's head */

/* ---- replies --------------------------------------------------------------------------------- */

static void put(struct tierce__resp_session *s, const void *bytes, size_t count)
{
    tierce__connection_put(s->connection, bytes, count);
}

static void put_head(struct tierce__resp_session *s, char kind, int64_t number)
{
    char text[32], digits[24];
    size_t n = 0, at = 0;
    uint64_t value = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    text[at++] = kind;
    if (number < 0)
        text[at++] = '-';
    while (n > 0)
        text[at++] = digits[--n];
    text[at++] = '\r';
    text[at++] = '\n';
    TIERCE_ASSERT(at <= sizeof(text));
    put(s, text, at);
}

void tierce__resp_ok(struct tierce__resp_session *s)
{
    put(s, "+OK\r\n", 5);
}

void tierce__resp_simple(struct tierce__resp_session *s, const char *text)
{
    put(s, "+", 1);
    put(s, text, strlen(text));
    put(s, "\r\n", 2);
}

void tierce__resp_error(struct tierce__resp_session *s, const char *format, ...)
{
    char text[512];
    va_list args;
    text[0] = '-';
    va_start(args, format);
    vsnprintf(text + 1, sizeof(text) - 3, format, args);
    va_end(args);
    for (char *p = text; *p != '\0'; p++) /* it may contain bytes from the client */
        *p = *p == '\r' || *p == '\n' ? ' ' : *p;
    put(s, text, strlen(text));
    put(s, "\r\n", 2);
}

void tierce__resp_error_arity(struct tierce__resp_session *s, const char *name, const char *word)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "%s%s%s", name, word != NULL ? "|" : "",
                     word != NULL ? word : "");
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    for (int i = 0; i < n; i++)
        text[i] = (char)tolower((unsigned char)text[i]);
    tierce__resp_error(s, "ERR wrong number of arguments for '%s' command", text);
}

/* Redis' message, with the first arguments. */
static void error_unknown(struct tierce__resp_session *s)
{
    const struct tierce__resp_request *request = &s->request;
    char args[160] = "";
    size_t n = 0;
    for (size_t i = 1; i < request->count && n < 128; i++) {
        const char *text = request->args[i].text != NULL ? request->args[i].text : "";
        n += (size_t)snprintf(args + n, sizeof(args) - n, "'%.*s' ", (int)(128 - n), text);
        TIERCE_ASSERT(n < sizeof(args));
    }
    tierce__resp_error(s, "ERR unknown command '%.128s', with args beginning with: %s",
                       request->args[0].text != NULL ? request->args[0].text : "", args);
}

void tierce__resp_error_rc(struct tierce__resp_session *s, int rc)
{
    if (rc == TIERCE_E_FULL)
        tierce__resp_error(s, "OOM command not allowed: there is no room for the value");
    else if (rc == TIERCE_E_CLOSED)
        tierce__resp_error(s, "READONLY the node does not accept writes now");
    else if (rc == TIERCE_E_LIMIT)
        tierce__resp_error(s, "ERR the value is larger than the node allows");
    else {
        char text[TIERCE__NODE_ERROR_BYTES];
        tierce__node_error(text, s->node, rc);
        tierce__resp_error(s, "ERR %s", text);
    }
}

void tierce__resp_int(struct tierce__resp_session *s, int64_t value)
{
    put_head(s, ':', value);
}

void tierce__resp_nil(struct tierce__resp_session *s)
{
    if (s->protocol == 3)
        put(s, "_\r\n", 3);
    else
        put(s, "$-1\r\n", 5);
}

void tierce__resp_verbatim(struct tierce__resp_session *s, const char *text, size_t bytes)
{
    if (s->protocol != 3) {
        tierce__resp_bulk(s, text, bytes);
        return;
    }
    put_head(s, '=', (int64_t)bytes + 4);
    put(s, "txt:", 4);
    put(s, text, bytes);
    put(s, "\r\n", 2);
}

void tierce__resp_bulk(struct tierce__resp_session *s, const void *bytes, size_t count)
{
    put_head(s, '$', (int64_t)count);
    put(s, bytes, count);
    put(s, "\r\n", 2);
}

void tierce__resp_text(struct tierce__resp_session *s, const char *text)
{
    tierce__resp_bulk(s, text, strlen(text));
}

void tierce__resp_array(struct tierce__resp_session *s, size_t count)
{
    put_head(s, '*', (int64_t)count);
}

void tierce__resp_map(struct tierce__resp_session *s, size_t pairs)
{
    if (s->protocol == 3)
        put_head(s, '%', (int64_t)pairs);
    else
        put_head(s, '*', (int64_t)(2 * pairs));
}

void tierce__resp_value(struct tierce__resp_session *s, struct tierce__object *object,
                        uint64_t from, uint64_t to)
{
    TIERCE_ASSERT(from <= to && to <= object->what.value_bytes);
    uint64_t piece = (from / TIERCE__OBJECT_PIECE + 1) * TIERCE__OBJECT_PIECE;
    bool is_small = to - from <= LARGE_BYTES;
    if (!tierce__object_verified(object, is_small || to < piece ? to : piece)) {
        tierce__object_release(object);
        tierce__resp_nil(s);
    } else if (is_small) {
        tierce__resp_bulk(s, object->value + from, (size_t)(to - from));
        tierce__object_release(object);
    } else {
        put_head(s, '$', (int64_t)(to - from));
        tierce__connection_put_value(s->connection, object, from, to, "\r\n");
    }
}

/* ---- arguments ------------------------------------------------------------------------------- */

bool tierce__resp_is_name(const struct tierce__resp_arg *arg)
{
    return arg->text != NULL && arg->bytes > 0 && arg->bytes <= TIERCE__OBJECT_NAME_MAX;
}

bool tierce__resp_arg_is(const struct tierce__resp_arg *arg, const char *word)
{
    return arg->text != NULL && strlen(word) == arg->bytes &&
           strncasecmp(arg->text, word, arg->bytes) == 0;
}

bool tierce__resp_arg_int(const struct tierce__resp_arg *arg, int64_t *out)
{
    int64_t value = 0;
    bool is_negative = arg->text != NULL && arg->bytes > 0 && arg->text[0] == '-';
    if (arg->text == NULL || arg->bytes == (is_negative ? 1 : 0))
        return false;
    if (arg->text[is_negative] == '0' && arg->bytes > 1) /* as Redis: 01 and -0 are none */
        return false;
    for (size_t i = is_negative; i < arg->bytes; i++) {
        int digit = arg->text[i] - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, digit, &value)) /* downwards: INT64_MIN fits */
            return false;
    }
    if (!is_negative && value == INT64_MIN)
        return false;
    *out = is_negative ? value : -value;
    return true;
}

/* ---- who ------------------------------------------------------------------------------------- */

static void set_limits(struct tierce__resp_session *s)
{
    const struct tierce__node_config *config = s->node->config;
    struct tierce__resp_request_limits limits = {.args_max = UNKNOWN_ARGS,
                                                 .bytes_max = UNKNOWN_BYTES,
                                                 .large_bytes = LARGE_BYTES,
                                                 .large_bytes_max = 0};
    if (s->is_known) {
        limits.args_max = (size_t)(config->request_max / BYTES_PER_ARG);
        limits.bytes_max = (size_t)config->request_max;
        limits.large_bytes_max = TIERCE__OBJECT_VALUE_MAX;
    }
    tierce__resp_request_limit(s->parser, &limits);
}

void tierce__resp_become(struct tierce__resp_session *s, const struct tierce__identity *who)
{
    s->is_known = who != NULL;
    s->connection->is_open = s->is_known;
    s->who = who != NULL ? *who : (struct tierce__identity){0};
    tierce__resp_client_became(s);
    set_limits(s);
}

/* ---- executing ------------------------------------------------------------------------------- */

void tierce__resp_find(struct tierce__resp_session *s, const struct tierce__resp_arg *name,
                       tierce__resp_after_fn *after)
{
    if (!tierce__resp_is_name(name)) {
        after(s, TIERCE_E_MISS, NULL);
        return;
    }
    s->after_find = after;
    s->is_working = false;
    s->connection->find.hint = s->hint;
    int rc = tierce__connection_find(s->connection, s->who.space, name->text, name->bytes);
    if (rc != -EINPROGRESS)
        after(s, rc, rc == 0 ? s->connection->find.object : NULL);
}

int tierce__resp_name_begin(struct tierce__resp_session *s, struct tierce__object_name **out,
                            const void *name, size_t name_bytes)
{
    return tierce__node_name_begin(s->node, out, name, name_bytes, s->deadline_ns);
}

void tierce__resp_renew_deadline(struct tierce__resp_session *s)
{
    s->deadline_ns = tierce__node_deadline(s->node);
}

bool tierce__resp_is_late(const struct tierce__resp_session *s)
{
    return tierce__now_ns() >= s->deadline_ns;
}

static void work_in_time(void *session)
{
    struct tierce__resp_session *s = session;
    if (tierce__resp_is_late(s))
        s->rc = TIERCE__NODE_NO_WORKER;
    else
        s->work(s);
}

void tierce__resp_work(struct tierce__resp_session *s, void (*work)(void *session),
                       void (*after)(struct tierce__resp_session *s))
{
    s->work = work;
    s->after_work = after;
    s->is_working = true;
    tierce__resp_renew_deadline(s);
    int rc = tierce__connection_work(s->connection, work_in_time);
    if (rc == TIERCE__NODE_NO_WORKER)
        s->rc = rc;
    if (rc != -EINPROGRESS)
        after(s);
}

static void run_steps(struct tierce__resp_session *s)
{
    s->rests = false;
    while (s->step != NULL && !s->rests && !tierce__connection_is_waiting(s->connection))
        s->step(s);
}

static void answered(void *session)
{
    struct tierce__resp_session *s = session;
    struct tierce__object_find *find = &s->connection->find;
    struct tierce__object *object = find->object;
    find->object = NULL;
    if (s->is_working)
        s->after_work(s);
    else
        s->after_find(s, find->status, find->status == 0 ? object : NULL);
    tierce__connection_go_on(s->connection);
}

/* A client whose token is no longer valid loses its identity, and has timeout.request to
 * authenticate again. */
static void look_at_token(struct tierce__resp_session *s)
{
    if (!s->is_known || tierce__access_still(s->node->access, TIERCE__SPACE_RESP, &s->who))
        return;
    tierce__log_repeated(TIERCE_LOG_INFO, "node_token_revoked", "protocol=resp peer=%s",
                         s->connection->peer);
    tierce__resp_become(s, NULL);
}

static bool is_allowed(struct tierce__resp_session *s, const struct tierce__resp_command *command)
{
    if (!s->is_known && !command->is_open) {
        tierce__resp_error(s, "NOAUTH Authentication required.");
    } else if ((command->scopes & ~s->who.scopes) != 0) {
        tierce__node_count(s->node, TIERCE__NODE_denied, 1);
        tierce__resp_error(s, "NOPERM the token has no permission to run the '%s' command",
                           command->name);
    } else {
        return true;
    }
    return false;
}

static void forget_incoming(struct tierce__resp_session *s)
{
    tierce__object_release(tierce__upload_end(s->incoming));
    s->incoming = NULL;
}

/* A web page can make a browser POST commands to a local port; the HTTP request line before them
 * reveals it. Redis does the same. */
static bool is_http(const struct tierce__resp_request *request)
{
    return tierce__resp_arg_is(&request->args[0], "POST") ||
           tierce__resp_arg_is(&request->args[0], "HOST:");
}

static void refuse_http(struct tierce__resp_session *s)
{
    tierce__node_count(s->node, TIERCE__NODE_protocol_errors, 1);
    tierce__log_repeated(TIERCE_LOG_WARN, "node_http_refused",
                         "protocol=resp peer=%s hint=\"an HTTP request on the port for Redis' "
                         "protocol; a web page may have sent it\"",
                         s->connection->peer);
    tierce__connection_end(s->connection);
}

/* Whether the dropped large argument is only a key: the command itself then reports that no such
 * key can exist. */
static bool is_long_key(const struct tierce__resp_session *s)
{
    size_t i = 1;
    while (i < s->request.count && s->request.args[i].text != NULL)
        i++;
    return tierce__resp_is_key(s->command, i);
}

static void run(struct tierce__resp_session *s)
{
    if (s->incoming_rc == TIERCE_E_ARGUMENT)
        tierce__resp_error(s, "%s", TIERCE__RESP_KEY_ERROR);
    else if (s->incoming_rc != 0 && s->incoming_is_value)
        tierce__resp_error_rc(s, s->incoming_rc);
    else if (s->incoming_rc != 0 && !is_long_key(s))
        tierce__resp_error(s, "ERR an argument that is not a value has at most %u bytes",
                           LARGE_BYTES - 1);
    else
        s->command->run(s);
}

static void execute(struct tierce__resp_session *s)
{
    const struct tierce__resp_request *request = &s->request;
    const struct tierce__resp_command *command = tierce__resp_command_find(&request->args[0]);
    size_t arity =
        command != NULL ? (size_t)(command->arity < 0 ? -command->arity : command->arity) : 0;
    TIERCE_ASSERT(s->incoming == NULL || s->incoming_rc == 0);
    tierce__node_count(s->node, TIERCE__NODE_resp_commands, 1);
    look_at_token(s);
    s->rc = 0;
    s->at = 1;
    s->command = command;
    atomic_store_explicit(&s->client.command, command, memory_order_relaxed);
    if (s->incoming == NULL)
        s->incoming_bytes = 0;
    if (command == NULL && is_http(request))
        refuse_http(s);
    else if (command == NULL && !s->is_known)
        tierce__resp_error(s, "NOAUTH Authentication required.");
    else if (command == NULL)
        error_unknown(s);
    else if (request->count < arity || (command->arity > 0 && request->count != arity))
        tierce__resp_error_arity(s, command->name, NULL);
    else if (is_allowed(s, command))
        run(s);
    if (s->incoming != NULL)
        forget_incoming(s);
    s->incoming_rc = 0;
}

/* A large argument: a value that is to be stored gets its place in the pool, every other is
 * dropped. */
static void begin_large(struct tierce__resp_session *s, const struct tierce__resp_request *request)
{
    const struct tierce__resp_arg *args = request->args;
    const struct tierce__resp_command *command =
        request->large > 0 ? tierce__resp_command_find(&args[0]) : NULL;
    TIERCE_ASSERT(s->incoming == NULL);
    look_at_token(s);
    const struct tierce__resp_arg *name =
        &args[command != NULL ? tierce__resp_key_of(command, request->large) : 0];
    s->incoming_rc = TIERCE_E_LIMIT;
    s->incoming_is_value = name != args;
    if (name != args && !tierce__resp_is_name(name)) {
        s->incoming_rc = TIERCE_E_ARGUMENT;
    } else if (name != args && s->is_known &&
               (s->who.scopes & command->scopes) == command->scopes) {
        s->incoming_bytes = request->large_bytes;
        s->incoming_rc =
            tierce__node_receive(s->node, &s->incoming, s->who.space,
                                 &(struct tierce__object_what){.name = name->text,
                                                               .name_bytes = name->bytes,
                                                               .value_bytes = request->large_bytes,
                                                               .hint = s->hint});
    }
    tierce__resp_request_into(s->parser, s->incoming != NULL ? s->incoming->object->value : NULL);
}

/* Whether the large argument still has its memory; otherwise its bytes are dropped. */
static bool hold_incoming(struct tierce__resp_session *s)
{
    bool is_there = s->incoming != NULL && tierce__upload_hold(s->incoming);
    if (s->incoming == NULL || is_there)
        return is_there;
    tierce__resp_request_drop(s->parser);
    forget_incoming(s);
    s->incoming_rc = TIERCE_E_FULL;
    return false;
}

static void let_incoming_go(struct tierce__resp_session *s)
{
    if (s->incoming != NULL)
        tierce__upload_let_go(s->incoming, tierce__resp_request_large_filled(s->parser));
}

/* ---- the protocol ---------------------------------------------------------------------------- */

static int open_session(void *session, struct tierce__connection *connection)
{
    struct tierce__resp_session *s = session;
    struct tierce__identity nobody;
    s->connection = connection;
    s->node = connection->node;
    s->parser = tierce__resp_request_create(&(struct tierce__resp_request_limits){0});
    if (s->parser == NULL)
        return -ENOMEM;
    tierce__resp_client_enter(s);
    bool is_known = tierce__access_nobody(s->node->access, TIERCE__SPACE_RESP, &nobody);
    tierce__resp_become(s, is_known ? &nobody : NULL);
    return 0;
}

static void close_session(void *session)
{
    struct tierce__resp_session *s = session;
    tierce__resp_client_leave(s);
    forget_incoming(s);
    tierce__object_release(s->set.object);
    tierce__object_release(s->set.old);
    tierce__resp_mset_drop(s);
    tierce__resp_batch_drop(s);
    tierce__line_clear(&s->line);
    tierce__resp_request_destroy(s->parser);
}

static int break_off(struct tierce__resp_session *s, int rc)
{
    tierce__node_count(s->node, TIERCE__NODE_protocol_errors, 1);
    tierce__log_repeated(TIERCE_LOG_INFO, "node_protocol_error", "protocol=resp peer=%s why=\"%s\"",
                         s->connection->peer, tierce__resp_request_error(s->parser));
    tierce__resp_error(s, "ERR %s", tierce__resp_request_error(s->parser));
    return rc;
}

static void step_execute(struct tierce__resp_session *s)
{
    s->step = NULL;
    execute(s);
}

static bool has_batch(const struct tierce__resp_session *s)
{
    return s->batch != NULL && s->batch->count > 0;
}

/* A plain SET is kept for the batch; any other command is executed when the batch is answered. */
static void take_request(struct tierce__resp_session *s)
{
    bool has_room = !has_batch(s) || s->batch->count < TIERCE__RESP_BATCH;
    TIERCE_ASSERT(!has_batch(s) || s->batch->count <= TIERCE__RESP_BATCH);
    look_at_token(s);
    if (s->incoming == NULL && has_room && s->is_known &&
        (s->who.scopes & TIERCE__SCOPE_WRITE) != 0 && tierce__resp_batch_take(s)) {
        tierce__node_count(s->node, TIERCE__NODE_resp_commands, 1);
        atomic_store_explicit(&s->client.command, tierce__resp_command_find(&s->request.args[0]),
                              memory_order_relaxed);
        s->incoming_bytes = 0;
        return;
    }
    if (!has_batch(s)) {
        execute(s);
        return;
    }
    s->step = step_execute;
    tierce__resp_batch_run(s);
}

static void feed_some(struct tierce__resp_session *s, const uint8_t *bytes, size_t count,
                      size_t *used)
{
    while (*used < count && s->step == NULL && !tierce__connection_is_waiting(s->connection)) {
        size_t n;
        struct tierce__resp_request request;
        int rc = tierce__resp_request_feed(s->parser, (const char *)bytes + *used, count - *used,
                                           &n, &request);
        *used += n;
        TIERCE_ASSERT(*used <= count);
        if (rc < 0) {
            s->broken = rc;
            return;
        }
        if (rc == TIERCE__RESP_REQUEST_LARGE) {
            begin_large(s, &request);
        } else if (rc == TIERCE__RESP_REQUEST_WHOLE) {
            s->request = request;
            take_request(s);
            run_steps(s);
        }
    }
}

static int feed(void *session, const uint8_t *bytes, size_t count, size_t *used)
{
    struct tierce__resp_session *s = session;
    *used = 0;
    if (count > 0)
        atomic_store_explicit(&s->client.active_ns, tierce__now_ns(), memory_order_relaxed);
    run_steps(s);
    (void)hold_incoming(s);
    if (s->broken == 0)
        feed_some(s, bytes, count, used);
    let_incoming_go(s);
    if (!s->connection->is_busy && s->step == NULL)
        tierce__resp_batch_run(s);
    if (s->connection->is_busy)
        return 0;
    if (s->broken < 0) /* earlier commands have been answered */
        return break_off(s, s->broken);
    if (s->step != NULL)
        tierce__connection_go_on(s->connection);
    else
        tierce__resp_request_done(s->parser);
    return 0;
}

static void *room(void *session, size_t *bytes)
{
    struct tierce__resp_session *s = session;
    void *memory = hold_incoming(s) ? tierce__resp_request_room(s->parser, bytes) : NULL;
    if (memory == NULL)
        let_incoming_go(s);
    return memory;
}

static void filled(void *session, size_t bytes)
{
    struct tierce__resp_session *s = session;
    if (bytes > 0) {
        tierce__resp_request_filled(s->parser, bytes);
        tierce__object_filled(s->incoming->object, tierce__resp_request_large_filled(s->parser));
    }
    let_incoming_go(s);
}

static size_t wanted(const void *session)
{
    const struct tierce__resp_session *s = session;
    /* A client that stores a large value probably stores another: read only the command line ahead,
     * so that the value bypasses the loop's memory. */
    return s->incoming_bytes > 0 ? LINE_BYTES_AHEAD : SIZE_MAX;
}

static bool is_within(const void *session)
{
    const struct tierce__resp_session *s = session;
    return tierce__resp_request_is_within(s->parser);
}

const struct tierce__protocol tierce__resp_protocol = {
    .name = "resp",
    .session_bytes = sizeof(struct tierce__resp_session),
    .open = open_session,
    .close = close_session,
    .feed = feed,
    .room = room,
    .filled = filled,
    .wanted = wanted,
    .is_within = is_within,
    .answered = answered,
};
