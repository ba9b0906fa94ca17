/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "store/transfer/transfer_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ROUNDS_AT_ONCE 8u
#define PROGRESS_BYTES (1u << 20)
#define SILENT_PART    4u    /* of stall_ms, without any byte */
#define END_MS         2000u /* for a client to take the last reply and close */

/* ---- the end --------------------------------------------------------------------------------- */

static void free_connection(struct tierce__task *task)
{
    struct tierce__transfer_connection *c =
        TIERCE__CONTAINER_OF(task, struct tierce__transfer_connection, end);
    struct tierce__transfer_server *server = c->server;
    struct tierce__poll_loop *loop = c->loop;
    TIERCE_ASSERT(c->is_closing && c->working == 0);
    struct tierce__keeper *keeper = server->opts.keeper;
    const struct tierce_plugin_name token = {c->token, c->token_bytes};
    if (keeper->ops->gone != NULL && c->rights != 0)
        keeper->ops->gone(keeper, &token);
    tierce__list_remove(&c->member);
    explicit_bzero(c->token, sizeof(c->token));
    const struct tierce__address address = c->address;
    tierce__free(c);
    tierce__transfer_connection_gone(server, loop, &address);
}

void tierce__transfer_connection_bury(struct tierce__transfer_connection *c)
{
    TIERCE_ASSERT(c->is_closing);
    if (c->working > 0)
        return;
    c->end.run = free_connection; /* later: an event of this round may name the connection */
    tierce__loop_post(&c->loop->base, &c->end);
}

void tierce__transfer_connection_close(struct tierce__transfer_connection *c, const char *why)
{
    TIERCE_ASSERT(tierce__loop_is_here(&c->loop->base));
    if (c->is_closing)
        return;
    c->is_closing = true;
    tierce__list_remove(&c->greeting);
    if (why != NULL)
        tierce__log(TIERCE_LOG_INFO, "transfer_connection_closed", "peer=%s why=\"%s\"", c->peer,
                    why);
    tierce__poll_close(&c->source);
    tierce__deadline_unset(&c->loop->base.deadlines, &c->deadline);
    tierce__tls_session_destroy(c->tls);
    c->tls = NULL;
    tierce__transfer_slots_clear(c);
    tierce__transfer_connection_bury(c);
}

void tierce__transfer_connection_fail(struct tierce__transfer_connection *c, int rc)
{
    char why[128];
    TIERCE_ASSERT(rc < 0);
    if (rc == -EPROTO && c->tls != NULL)
        snprintf(why, sizeof(why), "TLS: %.100s", tierce__tls_problem(c->tls));
    else
        snprintf(why, sizeof(why), "%s", tierce_strerror(rc));
    tierce__transfer_connection_close(c, rc != -ECONNRESET ? why : NULL);
}

/* ---- patience -------------------------------------------------------------------------------- */

static enum tierce__transfer_patience kind_of(const struct tierce__transfer_connection *c)
{
    if (c->is_shut)
        return TIERCE__TRANSFER_PATIENCE_END;
    if (!c->is_greeted)
        return TIERCE__TRANSFER_PATIENCE_GREETING;
    if (tierce__transfer_slots_have_output(c))
        return TIERCE__TRANSFER_PATIENCE_REPLY;
    if (tierce__transfer_session_is_within(c))
        return TIERCE__TRANSFER_PATIENCE_REQUEST;
    if (c->working > 0 || c->server->opts.idle_ms == 0)
        return TIERCE__TRANSFER_PATIENCE_NONE;
    return TIERCE__TRANSFER_PATIENCE_IDLE;
}

/* The next look at a connection that is too slow, or may be. */
static void look_later(struct tierce__transfer_connection *c)
{
    const struct tierce__transfer_server_opts *opts = &c->server->opts;
    bool may_stall = opts->stall_ms > 0 && opts->keeper->ops->is_short != NULL &&
                     (c->patience == TIERCE__TRANSFER_PATIENCE_REQUEST ||
                      c->patience == TIERCE__TRANSFER_PATIENCE_REPLY);
    uint64_t at_ns = c->patience_ends_ns;
    uint64_t look_ns = tierce__deadline_in_ms(1 + opts->stall_ms / SILENT_PART);
    if (may_stall && look_ns < at_ns)
        at_ns = look_ns;
    c->seen_bytes = c->received + c->sent;
    if (tierce__deadline_set(&c->loop->base.deadlines, &c->deadline, at_ns) != 0)
        tierce__transfer_connection_close(c, "no memory");
}

/* It holds memory for which others wait, and has moved nothing since the last look, or too little
 * since it began. */
static bool is_in_the_way(const struct tierce__transfer_connection *c)
{
    uint64_t stall_ns = c->server->opts.stall_ms * TIERCE__MS_NS;
    if (c->received + c->sent > c->seen_bytes && tierce__now_ns() - c->patience_begun_ns < stall_ns)
        return false;
    struct tierce__keeper *keeper = c->server->opts.keeper;
    const struct tierce_plugin_name space = {c->space, c->space_bytes};
    return keeper->ops->is_short != NULL && tierce__transfer_slots_hold(c) &&
           keeper->ops->is_short(keeper, &space);
}

static void out_of_patience(struct tierce__deadline *deadline)
{
    struct tierce__transfer_connection *c =
        TIERCE__CONTAINER_OF(deadline, struct tierce__transfer_connection, deadline);
    static const char *const whys[] = {
        [TIERCE__TRANSFER_PATIENCE_NONE] = NULL,
        [TIERCE__TRANSFER_PATIENCE_GREETING] = "its greeting did not arrive in time",
        [TIERCE__TRANSFER_PATIENCE_IDLE] = "idle",
        [TIERCE__TRANSFER_PATIENCE_REQUEST] = "its request did not arrive in time",
        [TIERCE__TRANSFER_PATIENCE_REPLY] = "it did not read its reply in time",
        [TIERCE__TRANSFER_PATIENCE_END] = NULL,
    };
    TIERCE_ASSERT(c->patience != TIERCE__TRANSFER_PATIENCE_NONE && !c->is_closing);
    if (tierce__now_ns() >= c->patience_ends_ns)
        tierce__transfer_connection_close(c, whys[c->patience]);
    else if (is_in_the_way(c))
        tierce__transfer_connection_close(c, "it was slow while others waited for memory");
    else
        look_later(c);
}

static bool has_moved(const struct tierce__transfer_connection *c,
                      enum tierce__transfer_patience kind)
{
    switch (kind) {
    case TIERCE__TRANSFER_PATIENCE_IDLE:
        return c->has_moved;
    case TIERCE__TRANSFER_PATIENCE_REQUEST:
        return c->has_moved || c->received >= PROGRESS_BYTES;
    case TIERCE__TRANSFER_PATIENCE_REPLY:
        return c->has_moved || c->sent >= PROGRESS_BYTES;
    case TIERCE__TRANSFER_PATIENCE_NONE:
    case TIERCE__TRANSFER_PATIENCE_GREETING:
    case TIERCE__TRANSFER_PATIENCE_END:
        break;
    }
    return false;
}

/* The deadline is set again when the awaited event changes, with each request and reply, and for
 * each MiB. */
static void be_patient(struct tierce__transfer_connection *c)
{
    enum tierce__transfer_patience kind = kind_of(c);
    if (kind == c->patience && !has_moved(c, kind))
        return;
    c->patience = kind;
    c->received = c->sent = 0;
    c->has_moved = false;
    if (kind == TIERCE__TRANSFER_PATIENCE_NONE) {
        tierce__deadline_unset(&c->loop->base.deadlines, &c->deadline);
        return;
    }
    const struct tierce__transfer_server_opts *opts = &c->server->opts;
    uint32_t ms = kind == TIERCE__TRANSFER_PATIENCE_IDLE  ? opts->idle_ms
                  : kind == TIERCE__TRANSFER_PATIENCE_END ? END_MS
                                                          : opts->request_ms;
    c->patience_begun_ns = tierce__now_ns();
    c->patience_ends_ns = tierce__deadline_in_ms(ms);
    look_later(c);
}

/* ---- turning --------------------------------------------------------------------------------- */

/* Nothing is left to do: the client is shown the end, and its last bytes are read, because closing
 * a socket with unread bytes would reset it, and the client could lose our last reply. */
static bool end_if_done(struct tierce__transfer_connection *c)
{
    bool ends = c->is_ending || (c->is_draining && c->receiving == NULL);
    if (!ends || c->is_closing || c->is_shut || c->working > 0 ||
        tierce__transfer_slots_have_output(c))
        return false;
    tierce__transfer_shut(c);
    return true;
}

static bool step(struct tierce__transfer_connection *c)
{
    bool did = tierce__transfer_slots_send(c);
    did = tierce__transfer_session_step(c) || did;
    did = (!did && tierce__transfer_session_read(c)) || did;
    return (!did && end_if_done(c)) || did;
}

void tierce__transfer_connection_run(struct tierce__transfer_connection *c)
{
    TIERCE_ASSERT(tierce__loop_is_here(&c->loop->base));
    unsigned round = 0;
    while (round < ROUNDS_AT_ONCE && !c->is_closing && step(c))
        round++;
    if (c->is_closing)
        return;
    if (round == ROUNDS_AT_ONCE)
        tierce__poll_again(c->loop, &c->source);
    else
        tierce__transfer_expect(c, c->receiving != NULL ? c->body_left : 0);
    be_patient(c);
}

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    struct tierce__transfer_connection *c =
        TIERCE__CONTAINER_OF(source, struct tierce__transfer_connection, source);
    bool ends = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    c->is_readable = c->is_readable || ends || (events & EPOLLIN) != 0;
    c->is_writable = c->is_writable || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    tierce__transfer_connection_run(c);
}

/* ---- the beginning --------------------------------------------------------------------------- */

int tierce__transfer_connection_open(const struct tierce__transfer_arrival *arrival)
{
    struct tierce__transfer_connection *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL) {
        close(arrival->fd);
        return -ENOMEM;
    }
    c->source = (struct tierce__poll_source){.fd = arrival->fd, .ready = on_ready};
    c->loop = arrival->loop;
    c->server = arrival->server;
    c->low_water = 1;
    c->deadline.expired = out_of_patience;
    memcpy(c->peer, arrival->peer, sizeof(c->peer));
    c->address = arrival->address;
    tierce__listen_tune(arrival->fd);
    struct tierce__tls_context *tls = c->server->opts.tls;
    int rc = tls != NULL ? tierce__tls_session_accept(&c->tls, tls, arrival->fd) : 0;
    if (rc == 0)
        rc = tierce__poll_watch(c->loop, &c->source);
    if (rc < 0) {
        tierce__tls_session_destroy(c->tls);
        close(arrival->fd);
        tierce__free(c);
        return rc;
    }
    tierce__list_push_back(&c->loop->members, &c->member);
    tierce__list_push_back(arrival->greetings, &c->greeting);
    be_patient(c);
    return 0;
}

bool tierce__transfer_connection_make_way(struct tierce__list *greetings)
{
    if (tierce__list_empty(greetings))
        return false;
    struct tierce__transfer_connection *c =
        TIERCE__CONTAINER_OF(greetings->next, struct tierce__transfer_connection, greeting);
    tierce__transfer_connection_close(c, "it had not greeted, and another one needed its place");
    return true;
}

void tierce__transfer_connections_end(struct tierce__poll_loop *loop, bool at_once)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &loop->members) {
        struct tierce__transfer_connection *c =
            TIERCE__CONTAINER_OF(it, struct tierce__transfer_connection, member);
        TIERCE_ASSERT(c->loop == loop);
        c->is_draining = true;
        if (c->is_closing)
            continue;
        if (at_once || (c->count == 0 && c->welcome_at == c->welcome_bytes))
            tierce__transfer_connection_close(c, NULL);
        else
            tierce__transfer_connection_run(c);
    }
}
