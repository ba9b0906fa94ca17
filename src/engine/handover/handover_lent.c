/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_lent.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "engine/handover/handover_inbox.h"
#include "engine/node_client/client.h"
#include "engine/view.h"

#define HOST_MAX 255u
#define SHORT_MS 1000u
#define NAMES_MS 10000u /* for the addresses of hosts */
#define ISSUE_MS 500u   /* vLLM's scheduler waits meanwhile */
/* A read of a large prompt is several calls: the client waits for the answer to each with a bound,
 * and a node that ends answers soon. */
#define PIECE_MS 5000u

_Static_assert(TIERCE__HANDOVER_WHY_BYTES == TIERCE__CLIENT_WHY_BYTES, "why is passed on");

struct tierce__lent {
    struct tierce_engine *engine;
    char host[HOST_MAX + 1];
    /* As the first node answered: offers name them, so they do not change. */
    uint16_t port;
    bool uses_tls;
    _Atomic bool has_changed; /* the node of now answered otherwise; release, acquire */
    /* The inbox; without one, hosts is NULL. Set once, and before any ticket is asked for. */
    char *hosts;
    uint64_t inbox_bytes;
    uint32_t inbox_share, inbox_hold_ms;
};

/* ---- offers ---------------------------------------------------------------------------------- */

static int serve(struct tierce__lent *lent, uint64_t until_ns, struct tierce__native_handed *said,
                 char why[TIERCE__HANDOVER_WHY_BYTES])
{
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_SERVE,
                                            .port = lent->port,
                                            .timeout_ms = SHORT_MS,
                                            .host = lent->host,
                                            .token = "",
                                            .why = ""};
    int rc = tierce__client_hand_over(
        lent->engine, &(struct tierce__client_about){.until_ns = until_ns}, &ask, said, why);
    return rc == 0 && (said->number == 0 || said->number > UINT16_MAX) ? TIERCE_E_FORMAT : rc;
}

/* until_ns: see tierce__client_about. */
static int accept_pushes(struct tierce__lent *lent, const char *hosts, uint64_t until_ns,
                         char why[TIERCE__HANDOVER_WHY_BYTES])
{
    struct tierce__native_handed said;
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_ACCEPT,
                                            .wait_ms = lent->inbox_hold_ms,
                                            .timeout_ms = NAMES_MS,
                                            .number = lent->inbox_share,
                                            .bytes = lent->inbox_bytes,
                                            .host = hosts,
                                            .token = "",
                                            .why = ""};
    return tierce__client_hand_over(
        lent->engine, &(struct tierce__client_about){.until_ns = until_ns}, &ask, &said, why);
}

/* Another node, which has no server of this client. */
static int serve_again(struct tierce__lent *lent, uint64_t until_ns)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said;
    int rc = serve(lent, until_ns, &said, why);
    if (rc == TIERCE_E_ARGUMENT && why[0] == '\0')
        return 0; /* it has one: another call was faster */
    if (rc == 0)
        atomic_store_explicit(&lent->has_changed,
                              said.number != lent->port || (said.uses_tls == 1) != lent->uses_tls,
                              memory_order_release);
    return rc;
}

/* A node that was restarted with other certificates. */
static int check_tls(const struct tierce__lent *lent)
{
    if (!atomic_load_explicit(&lent->has_changed, memory_order_acquire))
        return 0;
    tierce__log_repeated(TIERCE_LOG_WARN, "handover_node_changed",
                         "err=\"the node was restarted %s TLS between engines (peers.ca)\" "
                         "consequence=\"prompts are not handed over: restart this engine\"",
                         lent->uses_tls ? "without" : "with");
    return TIERCE_E_CONFIG;
}

int tierce__lent_start(struct tierce__lent **out, struct tierce_engine *engine, const char *host,
                       uint16_t port, char why[TIERCE__HANDOVER_WHY_BYTES])
{
    if (strlen(host) > HOST_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__lent *lent = tierce__calloc(1, sizeof(*lent));
    if (lent == NULL)
        return -ENOMEM;
    lent->engine = engine;
    lent->port = port;
    snprintf(lent->host, sizeof(lent->host), "%s", host);
    struct tierce__native_handed said;
    int rc = serve(lent, 0, &said, why);
    if (rc < 0) {
        tierce__free(lent);
        return rc;
    }
    lent->port = (uint16_t)said.number;
    lent->uses_tls = said.uses_tls == 1;
    *out = lent;
    return 0;
}

void tierce__lent_stop(struct tierce__lent *lent)
{
    if (lent != NULL)
        tierce__free(lent->hosts);
    tierce__free(lent);
}

uint16_t tierce__lent_port(const struct tierce__lent *lent)
{
    return lent->port;
}

bool tierce__lent_uses_tls(const struct tierce__lent *lent)
{
    return lent->uses_tls;
}

/* A call about an offer of this client. */
static int ask_node(struct tierce__lent *lent, const struct tierce_view *view,
                    const struct tierce_chain *chain, const struct tierce__native_hand *ask,
                    uint64_t *number)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said = {0};
    const struct tierce__client_about what = {.view = view, .chain = chain};
    int rc = tierce__client_hand_over(lent->engine, &what, ask, &said, why);
    if (rc == 0 && number != NULL)
        *number = said.number;
    return rc;
}

int tierce__lent_expect(struct tierce__lent *lent, const char *token, uint32_t ms)
{
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_EXPECT,
                                            .timeout_ms = ms,
                                            .host = "",
                                            .token = token,
                                            .why = ""};
    int rc = ask_node(lent, NULL, NULL, &ask, NULL);
    if (rc == TIERCE_E_CLOSED) {
        rc = serve_again(lent, 0);
        if (rc == 0)
            rc = ask_node(lent, NULL, NULL, &ask, NULL);
    }
    if (rc != 0)
        return rc;
    rc = check_tls(lent);
    if (rc < 0)
        tierce__lent_withdraw(lent, token);
    return rc;
}

int64_t tierce__lent_pin(struct tierce__lent *lent, struct tierce_view *view,
                         const struct tierce_chain *chain, uint64_t to_block, const char *token)
{
    uint64_t blocks = 0;
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_PIN,
                                            .to_block = to_block,
                                            .timeout_ms = SHORT_MS,
                                            .host = "",
                                            .token = token,
                                            .why = ""};
    int rc = ask_node(lent, view, chain, &ask, &blocks);
    return rc < 0 ? rc : (int64_t)(blocks < to_block ? blocks : to_block);
}

int tierce__lent_open(struct tierce__lent *lent, const char *token, uint64_t tokens)
{
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_OPEN,
                                            .number = tokens,
                                            .timeout_ms = SHORT_MS,
                                            .host = "",
                                            .token = token,
                                            .why = ""};
    return ask_node(lent, NULL, NULL, &ask, NULL);
}

void tierce__lent_withdraw(struct tierce__lent *lent, const char *token)
{
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_WITHDRAW,
                                            .timeout_ms = SHORT_MS,
                                            .host = "",
                                            .token = token,
                                            .why = ""};
    (void)ask_node(lent, NULL, NULL, &ask, NULL); /* or it ends with its time */
}

/* ---- the inbox ------------------------------------------------------------------------------- */

int tierce__lent_accept(struct tierce__lent *lent, const struct tierce__inbox_opts *opts,
                        char why[TIERCE__HANDOVER_WHY_BYTES])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    if (lent->hosts != NULL) {
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES, "the engine has an inbox already");
        return TIERCE_E_ARGUMENT;
    }
    char *hosts = tierce__strdup(opts->hosts);
    if (hosts == NULL)
        return -ENOMEM;
    lent->inbox_bytes = opts->bytes_max;
    lent->inbox_share = opts->share;
    lent->inbox_hold_ms = opts->hold_ms;
    int rc = accept_pushes(lent, hosts, 0, why);
    if (rc == TIERCE_E_ARGUMENT && why[0] == '\0') {
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES,
                 "the node is of an older version, which accepts no pushes; upgrade the node");
        rc = TIERCE_E_UNSUPPORTED;
    }
    if (rc < 0)
        tierce__free(hosts);
    else
        lent->hosts = hosts;
    return rc;
}

/* Copies the tickets of a node's answer. Returns how many. */
static int take_tickets(char (*tickets)[TIERCE__TICKET_BYTES], size_t count, const char *text)
{
    int made = 0;
    for (; (size_t)made < count && strlen(text) >= TIERCE__TICKET_BYTES - 1; made++) {
        memcpy(tickets[made], text, TIERCE__TICKET_BYTES - 1);
        tickets[made][TIERCE__TICKET_BYTES - 1] = '\0';
        text += TIERCE__TICKET_BYTES - 1;
        text += *text == ' ';
    }
    return made;
}

/* As many tickets as fit in an answer. */
static int issue_some(struct tierce__lent *lent, char (*tickets)[TIERCE__TICKET_BYTES],
                      size_t count, uint32_t ms, const char *holder, uint64_t until_ns)
{
    char text[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said;
    const struct tierce__native_hand ask = {
        .kind = TIERCE__NATIVE_HAND_TICKETS,
        .wait_ms = ms,
        .timeout_ms = SHORT_MS,
        .number = count < TIERCE__NATIVE_TICKETS_MAX ? count : TIERCE__NATIVE_TICKETS_MAX,
        .host = "",
        .token = holder,
        .why = ""};
    int rc = tierce__client_hand_over(
        lent->engine, &(struct tierce__client_about){.until_ns = until_ns}, &ask, &said, text);
    return rc < 0 ? rc : take_tickets(tickets, count, text);
}

/* Chunks of a view that the node does not know yet would be rejected. */
static void open_views(struct tierce_engine *engine, uint64_t deadline_ns)
{
    struct tierce_view *view;
    uint64_t number;
    for (size_t i = 0; (view = tierce__view_borrow_nth(engine, i)) != NULL; i++) {
        tierce__node_session_release(tierce__client_view_peer(view, &number, deadline_ns));
        tierce__view_give_back(view);
    }
}

/* Another node, or one that could not open the inbox before. It may be open also after a failure:
 * another call was faster, or the node is about to finish. */
static void open_again(struct tierce__lent *lent, uint64_t until_ns,
                       char why[TIERCE__HANDOVER_WHY_BYTES])
{
    why[0] = '\0';
    if (serve_again(lent, until_ns) == 0)
        (void)!accept_pushes(lent, lent->hosts, until_ns, why);
}

static void log_lost(const char *why)
{
    tierce__log_repeated(TIERCE_LOG_WARN, "handover_inbox_lost",
                         "err=\"the node was restarted: %s\" consequence=\"no chunks are pushed to "
                         "this engine until "
                         "a request for tickets opens its inbox\"",
                         why);
}

int tierce__lent_issue(struct tierce__lent *lent, char (*tickets)[TIERCE__TICKET_BYTES],
                       size_t count, uint32_t ms, const char *holder)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    uint64_t until_ns = tierce__deadline_in_ms(ISSUE_MS);
    size_t made = 0;
    int rc = lent->hosts == NULL ? TIERCE_E_CLOSED : 1;
    bool is_again = false;
    open_views(lent->engine, until_ns);
    while (rc > 0 && made < count) {
        rc = issue_some(lent, tickets + made, count - made, ms, holder, until_ns);
        if (rc == TIERCE_E_CLOSED && !is_again) {
            open_again(lent, until_ns, why);
            is_again = true;
            rc = 1;
        } else if (rc > 0) {
            made += (size_t)rc;
        }
    }
    if (rc == TIERCE_E_CLOSED && is_again)
        log_lost(why);
    int changed = check_tls(lent);
    return changed < 0 ? changed : made > 0 ? (int)made : rc;
}

int tierce__lent_await(struct tierce_engine *engine, const struct tierce__handover_from *from,
                       uint32_t start_ms, uint64_t deadline_ns)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said;
    uint64_t start_ns = tierce__deadline_in_ms(start_ms), now_ns;
    int rc;
    do {
        now_ns = tierce__now_ns();
        uint64_t left_ns = start_ns > now_ns ? start_ns - now_ns : 0;
        const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_AWAIT,
                                                .wait_ms = (uint32_t)(left_ns / TIERCE__MS_NS),
                                                .timeout_ms = from->timeout_ms / 2,
                                                .bytes = 1, /* it may be asked again */
                                                .host = "",
                                                .token = from->ticket,
                                                .why = ""};
        rc = tierce__client_hand_over(engine, &(struct tierce__client_about){0}, &ask, &said, why);
    } while (rc == -EAGAIN && now_ns < deadline_ns);
    return rc;
}

uint64_t tierce__lent_end_ticket(struct tierce_engine *engine, const char *ticket)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said = {0};
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_TICKET_END,
                                            .timeout_ms = SHORT_MS,
                                            .host = "",
                                            .token = ticket,
                                            .why = ""};
    int rc = tierce__client_hand_over(engine, &(struct tierce__client_about){0}, &ask, &said, why);
    return rc == 0 ? said.bytes : 0;
}

/* ---- offers of other engines ----------------------------------------------------------------- */

static struct tierce__native_hand about(enum tierce__native_hand_kind kind,
                                        const struct tierce__handover_from *from)
{
    return (struct tierce__native_hand){.kind = kind,
                                        .host = from->host,
                                        .port = from->port,
                                        .uses_tls = from->uses_tls,
                                        .token = from->token != NULL ? from->token : "",
                                        .session = from->session,
                                        .wait_ms = from->wait_ms,
                                        .timeout_ms = from->timeout_ms,
                                        .why = ""};
}

static int end_call(struct tierce__handover_pulled *out, int status, const char *why)
{
    out->status = status;
    if (status < 0)
        snprintf(out->why, sizeof(out->why), "%s", why[0] != '\0' ? why : tierce_strerror(status));
    return status;
}

int tierce__lent_meet(struct tierce_engine *engine, const struct tierce__handover_from *from,
                      uint64_t *tokens, struct tierce__handover_pulled *out)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said = {0};
    const struct tierce__native_hand ask = about(TIERCE__NATIVE_HAND_MEET, from);
    int rc = tierce__client_hand_over(engine, &(struct tierce__client_about){0}, &ask, &said, why);
    if (rc == 0)
        *tokens = said.number;
    return end_call(out, rc, why);
}

int tierce__lent_read(struct tierce_view *view, const struct tierce__lent_blocks *blocks,
                      const struct tierce__handover_from *from,
                      const struct tierce__handover_other *other,
                      struct tierce__handover_pulled *out)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_hand ask =
        about(other != NULL ? TIERCE__NATIVE_HAND_READ_OTHER : TIERCE__NATIVE_HAND_READ, from);
    const struct tierce__client_about what = {
        .view = view, .other = other != NULL ? other->view : NULL, .chain = blocks->chain};
    int rc = -EAGAIN;
    ask.timeout_ms = blocks->patience_ms;
    ask.from_block = blocks->from;
    ask.to_block = blocks->to;
    ask.bytes = PIECE_MS;
    if (other != NULL)
        ask.why = other->heads;
    while (rc == -EAGAIN && tierce__now_ns() < blocks->deadline_ns) {
        struct tierce__native_handed said = {0};
        rc = tierce__client_hand_over(view->engine, &what, &ask, &said, why);
        uint64_t here = said.number < blocks->to ? said.number : blocks->to;
        if (rc == -EAGAIN && (said.bytes == 0 || here <= ask.from_block))
            rc = TIERCE_E_DEADLINE; /* no chunk came */
        out->bytes += said.bytes;
        if (here > out->blocks)
            ask.from_block = out->blocks = here;
        if (rc == -EAGAIN && atomic_load_explicit(blocks->is_given_up, memory_order_relaxed))
            rc = TIERCE_E_CANCELLED;
    }
    if (rc == TIERCE_E_ARGUMENT && other != NULL && why[0] == '\0')
        snprintf(why, sizeof(why),
                 "the node does not support prefillers with a different tensor-parallel size; "
                 "upgrade the node");
    return end_call(out, rc, why);
}

void tierce__lent_end(struct tierce_engine *engine, const struct tierce__handover_from *from)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said;
    struct tierce__native_hand ask = about(TIERCE__NATIVE_HAND_END, from);
    ask.timeout_ms = SHORT_MS;
    (void)!tierce__client_hand_over(engine, &(struct tierce__client_about){0}, &ask, &said, why);
}

void tierce__lent_note(struct tierce_view *view, const struct tierce__handover_from *from,
                       const struct tierce__handover_pulled *pulled)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said;
    struct tierce__native_hand ask = about(TIERCE__NATIVE_HAND_NOTE, from);
    ask.timeout_ms = SHORT_MS;
    ask.number = pulled->blocks;
    ask.bytes = pulled->bytes;
    ask.to_block = pulled->pushed_bytes;
    ask.why = pulled->why;
    const struct tierce__client_about what = {.view = view};
    (void)!tierce__client_hand_over(view->engine, &what, &ask, &said, why);
}
