/* SPDX-License-Identifier: Apache-2.0 */
/* HAND_OVER: prefill and decode on two engines of which this one is a client (engine/handover). */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/handover/handover_inbox.h"
#include "node/native/native_calls.h"

#define WAIT_MS_MAX    60000u
#define AWAIT_MS_PIECE 1000u
#define PIECE_MS_MAX   10000u
#define SHARE_MAX      1000u /* thousandths */

_Static_assert(sizeof(((struct tierce__native_call *)0)->why) == TIERCE__HANDOVER_WHY_BYTES,
               "why is passed on");

/* The client's server of offers, or NULL. It lives as long as the client. */
static struct tierce__handover *server_of(const struct tierce__native_call *call)
{
    return atomic_load_explicit(&call->client->handover, memory_order_acquire);
}

static int serve(struct tierce__native_call *call, char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__handover *made, *none = NULL;
    if (ask->port > UINT16_MAX || server_of(call) != NULL)
        return TIERCE_E_ARGUMENT;
    int rc =
        tierce__handover_start(&made, call->native->engine, ask->host, (uint16_t)ask->port, why);
    if (rc < 0)
        return rc;
    if (!atomic_compare_exchange_strong(&call->client->handover, &none, made)) {
        tierce__handover_stop(made); /* another connection of the client was faster */
        return TIERCE_E_ARGUMENT;
    }
    call->say.hand_over.number = tierce__handover_port(made);
    call->say.hand_over.uses_tls = tierce__handover_uses_tls(made);
    return 0;
}

static int pin(struct tierce__native_call *call, struct tierce__handover *handover)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__native_about about;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, 0, ask->to_block);
    if (rc == 0) {
        int64_t pinned = tierce__handover_pin(handover, about.view->shared->view,
                                              about.chain->chain, ask->to_block, ask->token);
        call->say.hand_over.number = pinned > 0 ? (uint64_t)pinned : 0;
        rc = pinned < 0 ? (int)pinned : 0;
    }
    tierce__native_end_about(call, &about);
    return rc;
}

/* A call about an offer of this client. */
static int offer(struct tierce__native_call *call)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__handover *handover = server_of(call);
    if (handover == NULL)
        return TIERCE_E_CLOSED;
    switch (ask->kind) {
    case TIERCE__NATIVE_HAND_EXPECT:
        return tierce__handover_expect(handover, ask->token, ask->timeout_ms);
    case TIERCE__NATIVE_HAND_PIN:
        return pin(call, handover);
    case TIERCE__NATIVE_HAND_OPEN:
        return tierce__handover_open(handover, ask->token, ask->number);
    default:
        tierce__handover_withdraw(handover, ask->token);
        return 0;
    }
}

static uint32_t bounded(uint32_t ms)
{
    return ms < WAIT_MS_MAX ? ms : WAIT_MS_MAX;
}

/* A client that reads in pieces says how long one takes in `bytes`; another one waits for the whole
 * read as long as timeout_ms. */
static struct tierce__handover_from from_of(const struct tierce__native_hand *ask)
{
    uint32_t patience_ms = bounded(ask->timeout_ms);
    uint32_t piece_ms = ask->bytes < PIECE_MS_MAX ? (uint32_t)ask->bytes : PIECE_MS_MAX;
    return (struct tierce__handover_from){.host = ask->host,
                                          .port = (uint16_t)ask->port,
                                          .uses_tls = ask->uses_tls == 1,
                                          .token = ask->token,
                                          .session = ask->session,
                                          .wait_ms = bounded(ask->wait_ms),
                                          .timeout_ms = patience_ms,
                                          .total_ms = patience_ms + piece_ms,
                                          .piece_ms = piece_ms};
}

/* Reads an offer of an engine with a different tensor-parallel size, as chunks of another view. */
static int read_as(struct tierce__native_call *call, struct tierce__source *source,
                   const struct tierce__native_about *about, struct tierce__handover_pulled *out)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__native_held_view *theirs = NULL;
    struct tierce__handover_other other = {.heads = ask->why};
    if (ask->kind == TIERCE__NATIVE_HAND_READ_OTHER) {
        theirs = tierce__native_view_get(call->client, ask->number);
        if (theirs == NULL)
            return TIERCE__NATIVE_UNKNOWN;
        other.view = theirs->shared->view;
        tierce__source_other(source, &other);
    }
    int rc = tierce__source_read(source, about->view->shared->view, about->chain->chain,
                                 ask->from_block, ask->to_block, out);
    tierce__source_other(source, NULL);
    if (theirs != NULL)
        tierce__native_view_put(call->client, theirs);
    return rc;
}

static int read_view(struct tierce__native_call *call, struct tierce__source *source,
                     struct tierce__handover_pulled *out)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    uint32_t pin_ms = call->native->node->config->pin_ms;
    struct tierce__native_about about;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, ask->from_block,
                                        ask->to_block);
    if (rc == 0 && !tierce__native_pin(call->client, about.view, ask->session, pin_ms))
        rc = TIERCE_E_LIMIT;
    if (rc == 0)
        rc = read_as(call, source, &about, out);
    tierce__native_end_about(call, &about);
    return rc;
}

/* Of an offer of another engine: each call has a source of its own, as clients may end at any time.
 */
static int use_source(struct tierce__native_call *call, char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    const struct tierce__handover_from from = from_of(ask);
    struct tierce__native_handed *say = &call->say.hand_over;
    struct tierce__handover_pulled out = {0}, ended;
    struct tierce__source *source;
    bool reads =
        ask->kind == TIERCE__NATIVE_HAND_READ || ask->kind == TIERCE__NATIVE_HAND_READ_OTHER;
    if (ask->port > UINT16_MAX)
        return TIERCE_E_ARGUMENT;
    int rc = tierce__source_begin(&source, call->native->engine, &from);
    if (rc < 0)
        return rc;
    if (ask->kind == TIERCE__NATIVE_HAND_MEET)
        rc = tierce__source_meet(source, &say->number, &out);
    else if (reads)
        rc = read_view(call, source, &out);
    if (ask->kind != TIERCE__NATIVE_HAND_END)
        tierce__source_keep(source);
    tierce__source_end(source, &ended);
    if (reads) {
        say->number = out.blocks;
        say->bytes = out.bytes;
    }
    snprintf(why, TIERCE__HANDOVER_WHY_BYTES, "%s", out.why);
    return rc == 0 ? out.status : rc;
}

/* Never TIERCE_E_ARGUMENT without a reason: from a call that reads as an engine with other ranks, a
 * client concludes from that that the node does not know the call. */
static int use_offer(struct tierce__native_call *call, char *why)
{
    int rc = use_source(call, why);
    if (rc == TIERCE_E_ARGUMENT && why[0] == '\0')
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES,
                 "the node rejects the call: its host, port, token or blocks are invalid");
    return rc;
}

static int note(struct tierce__native_call *call)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    const struct tierce__handover_from from = from_of(ask);
    struct tierce__handover_pulled pulled = {
        .blocks = ask->number, .bytes = ask->bytes, .pushed_bytes = ask->to_block};
    struct tierce__native_held_view *view = tierce__native_view_get(call->client, ask->view);
    if (view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    snprintf(pulled.why, sizeof(pulled.why), "%s", ask->why);
    tierce__handover_note(view->shared->view, &from, &pulled);
    tierce__native_view_put(call->client, view);
    return 0;
}

/* ---- the client's inbox ---------------------------------------------------------------------- */

/* Chunks of other clients' views are not for this inbox. */
static bool is_own(void *arg, const struct tierce__key *key)
{
    struct tierce__native_client *client = arg;
    bool found = false;
    tierce__lock_take(&client->lock);
    TIERCE__LIST_FOR_EACH (it, &client->lists[TIERCE__NATIVE_VIEWS]) {
        struct tierce__native_open *open =
            TIERCE__CONTAINER_OF(it, struct tierce__native_open, node);
        const struct tierce_view *view =
            TIERCE__CONTAINER_OF(open, struct tierce__native_held_view, open)->shared->view;
        found = found || tierce__view_has(view, key);
    }
    tierce__lock_drop(&client->lock);
    return found;
}

static int accept_pushes(struct tierce__native_call *call, struct tierce__handover *handover,
                         char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    const struct tierce__inbox_opts opts = {
        .size = sizeof(opts),
        .hosts = ask->host,
        .bytes_max = ask->bytes,
        .share = ask->number < SHARE_MAX ? (uint32_t)ask->number : SHARE_MAX,
        .hold_ms = ask->wait_ms < TIERCE_PIN_MS_MAX ? ask->wait_ms : TIERCE_PIN_MS_MAX,
        .is_own = is_own,
        .is_own_arg = call->client};
    return tierce__handover_accept(handover, &opts, why);
}

static int issue(struct tierce__native_call *call, struct tierce__handover *handover, char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    char tickets[TIERCE__NATIVE_TICKETS_MAX][TIERCE__TICKET_BYTES];
    size_t count =
        ask->number < TIERCE__NATIVE_TICKETS_MAX ? ask->number : TIERCE__NATIVE_TICKETS_MAX;
    int made = tierce__handover_issue(
        handover, tickets, count,
        ask->wait_ms < TIERCE_PIN_MS_MAX ? ask->wait_ms : TIERCE_PIN_MS_MAX, ask->token);
    for (int i = 0; i < made; i++, why += TIERCE__TICKET_BYTES) {
        memcpy(why, tickets[i], TIERCE__TICKET_BYTES - 1);
        why[TIERCE__TICKET_BYTES - 1] = i + 1 < made ? ' ' : '\0';
    }
    explicit_bzero(tickets, sizeof(tickets));
    call->say.hand_over.number = made > 0 ? (uint64_t)made : 0;
    return made < 0 ? made : 0;
}

/* In pieces, so that a node that ends need not wait for a long one. -EAGAIN: the push goes on. */
static int await(struct tierce__native_call *call, struct tierce__inbox *inbox)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    uint32_t quiet_ms = bounded(ask->timeout_ms);
    uint64_t start_ns = tierce__deadline_in_ms(ask->wait_ms);
    uint64_t deadline_ns = tierce__deadline_in_ms(quiet_ms), now_ns;
    int rc;
    do {
        now_ns = tierce__now_ns();
        uint64_t piece_ns = now_ns + AWAIT_MS_PIECE * TIERCE__MS_NS;
        uint64_t left_ms = start_ns > now_ns ? (start_ns - now_ns) / TIERCE__MS_NS + 1 : 0;
        rc = tierce__inbox_await(inbox, ask->token, (uint32_t)left_ms, quiet_ms,
                                 piece_ns < deadline_ns ? piece_ns : deadline_ns);
    } while (rc == -EAGAIN && tierce__now_ns() < deadline_ns &&
             !atomic_load_explicit(&call->native->is_ending, memory_order_relaxed));
    bool may_ask_again = ask->bytes > 0; /* clients of older versions do not */
    return rc == -EAGAIN && !may_ask_again ? TIERCE_E_DEADLINE : rc;
}

static int use_inbox(struct tierce__native_call *call, char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__handover *handover = server_of(call);
    struct tierce__inbox *inbox = handover != NULL ? tierce__handover_inbox(handover) : NULL;
    if (handover == NULL || (inbox == NULL && ask->kind != TIERCE__NATIVE_HAND_ACCEPT))
        return TIERCE_E_CLOSED;
    switch (ask->kind) {
    case TIERCE__NATIVE_HAND_ACCEPT:
        return accept_pushes(call, handover, why);
    case TIERCE__NATIVE_HAND_TICKETS:
        return issue(call, handover, why);
    case TIERCE__NATIVE_HAND_AWAIT:
        return await(call, inbox);
    default:
        call->say.hand_over.bytes = tierce__inbox_end(inbox, ask->token);
        return 0;
    }
}

static int hand_over(struct tierce__native_call *call, char *why)
{
    switch (call->ask.hand_over.kind) {
    case TIERCE__NATIVE_HAND_SERVE:
        return serve(call, why);
    case TIERCE__NATIVE_HAND_EXPECT:
    case TIERCE__NATIVE_HAND_PIN:
    case TIERCE__NATIVE_HAND_OPEN:
    case TIERCE__NATIVE_HAND_WITHDRAW:
        return offer(call);
    case TIERCE__NATIVE_HAND_MEET:
    case TIERCE__NATIVE_HAND_READ:
    case TIERCE__NATIVE_HAND_READ_OTHER:
    case TIERCE__NATIVE_HAND_END:
        return use_offer(call, why);
    case TIERCE__NATIVE_HAND_NOTE:
        return note(call);
    case TIERCE__NATIVE_HAND_ACCEPT:
    case TIERCE__NATIVE_HAND_TICKETS:
    case TIERCE__NATIVE_HAND_AWAIT:
    case TIERCE__NATIVE_HAND_TICKET_END:
        return use_inbox(call, why);
    case TIERCE__NATIVE_HAND_PUSH:
    case TIERCE__NATIVE_HAND_PUSH_HELD:
    case TIERCE__NATIVE_HAND_PUSH_STORE:
    case TIERCE__NATIVE_HAND_PUSH_END:
    case TIERCE__NATIVE_HAND_PUSH_CLOSE:
        return tierce__native_push_call(call, why);
    default:
        return TIERCE_E_ARGUMENT;
    }
}

int tierce__native_answer_hand_over(struct tierce__native_call *call)
{
    char *why = call->why;
    why[0] = '\0';
    call->say.hand_over = (struct tierce__native_handed){.why = why};
    int rc = tierce__native_is_draining(call) ? TIERCE_E_CLOSED : hand_over(call, why);
    if (rc > 0) /* the client asks again */
        return rc;
    call->say.hand_over.status = (uint32_t)rc;
    return 0;
}

void tierce__native_end_handover(struct tierce__native_client *client)
{
    tierce__handover_stop(atomic_exchange(&client->handover, NULL));
}
