/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "store/transfer/transfer_private.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define READ_AT_ONCE (1u << 20) /* then other connections have their turn */
#define RIGHTS_MS    1000u      /* how long the rights of a token count unasked */

static const uint8_t *input(const struct tierce__transfer_connection *c)
{
    return c->in + c->in_at;
}

static size_t input_bytes(const struct tierce__transfer_connection *c)
{
    TIERCE_DASSERT(c->in_at <= c->in_bytes && c->in_bytes <= sizeof(c->in));
    return c->in_bytes - c->in_at;
}

static void use_input(struct tierce__transfer_connection *c, size_t bytes)
{
    TIERCE_ASSERT(bytes <= input_bytes(c));
    c->in_at += bytes;
    if (c->in_at == c->in_bytes)
        c->in_at = c->in_bytes = 0;
}

/* The client does not keep to the protocol. */
static void refuse_input(struct tierce__transfer_connection *c, const char *why)
{
    tierce__transfer_count(&c->server->counters.errors, 1);
    tierce__log_repeated(TIERCE_LOG_WARN, "transfer_protocol_error", "peer=%s why=\"%s\"", c->peer,
                         why);
    c->is_ending = true;
}

/* ---- the greeting ---------------------------------------------------------------------------- */

static const char *why_refused(int status)
{
    switch (status) {
    case TIERCE_E_VERSION:
        return "it has another version of the protocol";
    case TIERCE_E_REFUSED:
        return "its token is wrong or missing";
    case TIERCE_E_ARGUMENT:
        return "there is no space of that name";
    default:
        return "a NUL in the space or the token";
    }
}

static void welcome(struct tierce__transfer_connection *c, int status)
{
    struct tierce__transfer_welcome frame = {.version = TIERCE__TRANSFER_VERSION,
                                             .status = status,
                                             .rights = c->rights,
                                             .pipeline = TIERCE__TRANSFER_PIPELINE,
                                             .names_max = TIERCE__TRANSFER_NAMES_MAX};
    memcpy(frame.incarnation, c->server->opts.incarnation, sizeof(frame.incarnation));
    tierce__transfer_welcome_encode(c->welcome, &frame);
    c->welcome_at = 0;
    c->welcome_bytes = sizeof(c->welcome);
    c->is_greeted = true;
    tierce__list_remove(&c->greeting);
    c->has_moved = true;
    if (status == 0)
        return;
    c->is_ending = true;
    tierce__transfer_count(&c->server->counters.refused, 1);
    tierce__log_repeated(TIERCE_LOG_WARN, "transfer_client_refused", "peer=%s why=\"%s\"", c->peer,
                         why_refused(status));
}

static void ask_rights(struct tierce__transfer_connection *c)
{
    const struct tierce__transfer_server_opts *opts = &c->server->opts;
    TIERCE_ASSERT(c->token_bytes < sizeof(c->token));
    c->rights = TIERCE__TRANSFER_READ | TIERCE__TRANSFER_WRITE;
    if (opts->rights != NULL)
        c->rights = opts->rights(opts->rights_arg, c->token, c->token_bytes);
    c->rights_ns = tierce__now_ns();
}

/* Space and token of a client. */
static int admit(struct tierce__transfer_connection *c, const uint8_t *space, size_t space_bytes,
                 const uint8_t *token, size_t token_bytes)
{
    const struct tierce__transfer_server_opts *opts = &c->server->opts;
    if (tierce__transfer_check_text(space, space_bytes) != 0 ||
        tierce__transfer_check_text(token, token_bytes) != 0)
        return TIERCE_E_FORMAT;
    memcpy(c->token, token, token_bytes);
    c->token[token_bytes] = '\0';
    c->token_bytes = token_bytes;
    memcpy(c->space, space, space_bytes);
    c->space_bytes = space_bytes;
    ask_rights(c);
    if (c->rights == 0)
        return TIERCE_E_REFUSED;
    const struct tierce__keeper_ops *keeper = opts->keeper->ops;
    struct tierce_plugin_name name = {c->space, c->space_bytes};
    return keeper->has == NULL || keeper->has(opts->keeper, &name) ? 0 : TIERCE_E_ARGUMENT;
}

static bool greet(struct tierce__transfer_connection *c)
{
    struct tierce__transfer_hello hello;
    if (input_bytes(c) < TIERCE__TRANSFER_HELLO_BYTES)
        return false;
    if (tierce__transfer_hello_decode(&hello, input(c)) != 0) {
        refuse_input(c, "the greeting is not of this protocol");
        return true;
    }
    if (hello.version != TIERCE__TRANSFER_VERSION) {
        welcome(c, TIERCE_E_VERSION);
        return true;
    }
    size_t bytes = TIERCE__TRANSFER_HELLO_BYTES + hello.space_bytes + hello.token_bytes;
    if (input_bytes(c) < bytes)
        return false;
    const uint8_t *space = input(c) + TIERCE__TRANSFER_HELLO_BYTES;
    welcome(c, admit(c, space, hello.space_bytes, space + hello.space_bytes, hello.token_bytes));
    explicit_bzero((void *)(uintptr_t)input(c), bytes);
    use_input(c, bytes);
    return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool take_request(struct tierce__transfer_connection *c)
{
    struct tierce__transfer_request request;
    if (tierce__transfer_slots_are_full(c) || c->is_draining ||
        input_bytes(c) < TIERCE__TRANSFER_HEAD_BYTES)
        return false;
    if (tierce__transfer_request_decode(&request, input(c)) != 0) {
        refuse_input(c, "the head of a request is invalid");
        return true;
    }
    size_t bytes = TIERCE__TRANSFER_HEAD_BYTES + request.name_bytes;
    if (input_bytes(c) < bytes)
        return false;
    const uint8_t *name = input(c) + TIERCE__TRANSFER_HEAD_BYTES;
    if (tierce__transfer_check_text(name, request.name_bytes) != 0) {
        refuse_input(c, "a name has a NUL");
        return true;
    }
    if (tierce__now_ns() - c->rights_ns >= RIGHTS_MS * TIERCE__MS_NS)
        ask_rights(c);
    struct tierce__transfer_slot *slot = tierce__transfer_slot_take(c, &request, name);
    use_input(c, bytes);
    c->has_moved = true;
    tierce__transfer_slot_begin(slot);
    if (request.op == TIERCE__TRANSFER_OP_WRITE && slot->refused == TIERCE_E_FORMAT)
        refuse_input(c, "a range of an object contradicts earlier ones");
    return true;
}

static void end_body(struct tierce__transfer_connection *c)
{
    struct tierce__transfer_slot *slot = c->receiving;
    TIERCE_ASSERT(slot != NULL && c->body_left == 0);
    c->receiving = NULL;
    c->body = NULL;
    c->has_moved = true;
    if (!tierce__transfer_slot_filled(slot))
        refuse_input(c, "a list of names is invalid");
}

static void advance_body(struct tierce__transfer_connection *c, size_t bytes)
{
    TIERCE_ASSERT(bytes <= c->body_left);
    c->body_left -= bytes;
    if (c->body != NULL)
        c->body += bytes;
}

static void copy_to_body(struct tierce__transfer_connection *c)
{
    size_t bytes = input_bytes(c);
    bytes = bytes < c->body_left ? bytes : (size_t)c->body_left;
    if (c->body != NULL && bytes > 0)
        memcpy(c->body, input(c), bytes);
    advance_body(c, bytes);
    use_input(c, bytes);
}

bool tierce__transfer_session_step(struct tierce__transfer_connection *c)
{
    if (c->is_ending || c->is_closing)
        return false;
    if (c->receiving != NULL) {
        bool has_input = input_bytes(c) > 0;
        copy_to_body(c);
        if (c->body_left > 0)
            return has_input;
        end_body(c);
        return true;
    }
    return c->is_greeted ? take_request(c) : greet(c);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Makes room behind the input. Returns how much. */
static size_t make_room(struct tierce__transfer_connection *c)
{
    size_t bytes = input_bytes(c);
    if (c->in_at > 0) {
        memmove(c->in, c->in + c->in_at, bytes);
        c->in_at = 0;
        c->in_bytes = bytes;
    }
    return sizeof(c->in) - bytes;
}

/* Where the next bytes go: the body first, then the input. Returns how many pieces. */
static int make_pieces(struct tierce__transfer_connection *c, struct iovec pieces[2])
{
    int count = 0;
    size_t most = c->body != NULL ? READ_AT_ONCE : sizeof(c->loop->scratch);
    bool has_body = c->receiving != NULL && c->body_left > 0, is_all = true;
    if (has_body) {
        TIERCE_DASSERT(input_bytes(c) == 0); /* the body has used it up */
        is_all = c->body_left <= most;
        pieces[count++] = (struct iovec){c->body != NULL ? c->body : c->loop->scratch,
                                         is_all ? (size_t)c->body_left : most};
    }
    size_t room = is_all ? make_room(c) : 0;
    if (room > 0)
        pieces[count++] = (struct iovec){c->in + c->in_bytes, room};
    TIERCE_ASSERT(count > 0);
    return count;
}

/* After the end of the output: until the client has closed, too. */
static bool drop_input(struct tierce__transfer_connection *c)
{
    size_t got;
    struct iovec piece = {c->loop->scratch, sizeof(c->loop->scratch)};
    int rc = tierce__transfer_receive(c, &piece, 1, &got);
    if (rc < 0 && rc != -EAGAIN)
        tierce__transfer_connection_close(c, NULL);
    return rc == 0;
}

bool tierce__transfer_session_read(struct tierce__transfer_connection *c)
{
    struct iovec pieces[2];
    size_t got;
    if (c->is_closing || !c->is_readable)
        return false;
    if (c->is_shut)
        return drop_input(c);
    bool may_take = c->receiving != NULL || !c->is_greeted ||
                    (!tierce__transfer_slots_are_full(c) && !c->is_draining);
    if (c->is_ending || !may_take)
        return false;
    int count = make_pieces(c, pieces);
    int rc = tierce__transfer_receive(c, pieces, count, &got);
    if (rc == -EAGAIN)
        return false;
    if (rc < 0) {
        tierce__transfer_connection_fail(c, rc);
        return false;
    }
    if (c->receiving != NULL && c->body_left > 0) {
        size_t body = got < pieces[0].iov_len ? got : pieces[0].iov_len;
        advance_body(c, body);
        got -= body;
    }
    c->in_bytes += got;
    TIERCE_ASSERT(c->in_bytes <= sizeof(c->in));
    return true;
}

bool tierce__transfer_session_is_within(const struct tierce__transfer_connection *c)
{
    return c->receiving != NULL || (input_bytes(c) > 0 && !tierce__transfer_slots_are_full(c));
}
