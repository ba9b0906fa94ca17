/* SPDX-License-Identifier: Apache-2.0 */
/* The transfer server over the engine's chunks, its offers and its inbox. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_lent.h"
#include "engine/handover/handover_offers.h"
#include "engine/peer/peer_keeper.h"
#include "engine/peer/peer_tls.h"
#include "engine/view.h"
#include "engine/waterfall.h"
#include "store/transfer/transfer.h"

#define STOP_MS  1000u
#define IDLE_MS  60000u
#define STALL_MS 1000u

struct tierce__handover {
    struct tierce__keeper keeper;
    struct tierce_engine *engine;
    struct tierce__peer_keeper *chunks; /* reads what it serves */
    struct tierce__transfer_server *server;
    _Atomic(struct tierce__inbox *) inbox; /* NULL: none; release, acquire */
    struct tierce__offers offers;          /* with `lent`: not used */
    struct tierce__lent *lent;             /* the node does it all; NULL: this process does */
};

static struct tierce__handover *handover_of(struct tierce__keeper *keeper)
{
    return TIERCE__CONTAINER_OF(keeper, struct tierce__handover, keeper);
}

static struct tierce__inbox *inbox_of(struct tierce__handover *h)
{
    return atomic_load_explicit(&h->inbox, memory_order_acquire);
}

/* ---- offers ---------------------------------------------------------------------------------- */

int tierce__handover_expect(struct tierce__handover *h, const char *token, uint32_t ms)
{
    return h->lent != NULL ? tierce__lent_expect(h->lent, token, ms)
                           : tierce__offers_expect(&h->offers, token, ms);
}

int64_t tierce__handover_pin(struct tierce__handover *h, struct tierce_view *view,
                             const struct tierce_chain *chain, uint64_t to_block, const char *token)
{
    return h->lent != NULL ? tierce__lent_pin(h->lent, view, chain, to_block, token)
                           : tierce__offers_pin(&h->offers, view, chain, to_block, token);
}

int tierce__handover_open(struct tierce__handover *h, const char *token, uint64_t tokens)
{
    return h->lent != NULL ? tierce__lent_open(h->lent, token, tokens)
                           : tierce__offers_open(&h->offers, token, tokens);
}

void tierce__handover_withdraw(struct tierce__handover *h, const char *token)
{
    if (h->lent != NULL)
        tierce__lent_withdraw(h->lent, token);
    else
        (void)tierce__offers_end(&h->offers, token, strlen(token));
}

int64_t tierce__handover_offer(struct tierce__handover *h, struct tierce_view *view,
                               const struct tierce_chain *chain, uint64_t to_block,
                               const char *token, uint32_t ms)
{
    int rc = tierce__handover_expect(h, token, ms);
    if (rc < 0)
        return rc;
    int64_t pinned = tierce__handover_pin(h, view, chain, to_block, token);
    if (pinned >= 0)
        rc = tierce__handover_open(h, token, (uint64_t)pinned * view->full.geometry.block_tokens);
    if (pinned < 0)
        tierce__handover_withdraw(h, token);
    return rc < 0 ? rc : pinned;
}

size_t tierce__handover_offers(struct tierce__handover *h)
{
    return h->lent == NULL ? tierce__offers_count(&h->offers) : 0;
}

/* ---- the keeper ------------------------------------------------------------------------------ */

/* The keeper of the peer tier serves the chunks. */

static bool has_space(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    struct tierce__keeper *chunks = tierce__peer_keeper_get(handover_of(keeper)->chunks);
    return chunks->ops->has(chunks, space);
}

static void find(struct tierce__keeper *keeper, struct tierce__keeper_call *call)
{
    struct tierce__handover *h = handover_of(keeper);
    struct tierce__keeper *chunks = tierce__peer_keeper_get(h->chunks);
    if (!tierce__offers_find(&h->offers, call))
        chunks->ops->find(chunks, call);
}

static void release(struct tierce__keeper *keeper, struct tierce__keeper_lease *lease)
{
    struct tierce__keeper *chunks = tierce__peer_keeper_get(handover_of(keeper)->chunks);
    if (!tierce__offers_release(lease))
        chunks->ops->release(chunks, lease);
}

static int measure(struct tierce__keeper *keeper, const struct tierce_plugin_name *space,
                   const struct tierce_plugin_name *name, uint64_t *bytes)
{
    struct tierce__keeper *chunks = tierce__peer_keeper_get(handover_of(keeper)->chunks);
    return chunks->ops->measure(chunks, space, name, bytes);
}

/* Writes are those of the inbox, which knows its tickets; the token of an offer is none. */
static int make_range(struct tierce__keeper *keeper, struct tierce__keeper_room *room,
                      const struct tierce_plugin_name *space, const struct tierce_plugin_name *name,
                      const struct tierce__keeper_range *range)
{
    struct tierce__inbox *inbox = inbox_of(handover_of(keeper));
    (void)space;
    return inbox != NULL ? tierce__inbox_make(inbox, room, name, range) : TIERCE_E_REFUSED;
}

static void keep(struct tierce__keeper *keeper, struct tierce__keeper_room *room)
{
    tierce__inbox_keep(inbox_of(handover_of(keeper)), room);
}

static void abandon(struct tierce__keeper *keeper, struct tierce__keeper_room *room)
{
    tierce__inbox_abandon(inbox_of(handover_of(keeper)), room);
}

static void gone(struct tierce__keeper *keeper, const struct tierce_plugin_name *token)
{
    struct tierce__inbox *inbox = inbox_of(handover_of(keeper));
    if (inbox != NULL)
        tierce__inbox_gone(inbox, token);
}

static void drop(struct tierce__keeper *keeper, struct tierce__keeper_call *call)
{
    struct tierce__handover *h = handover_of(keeper);
    if (!tierce__offers_end(&h->offers, call->name.text, call->name.bytes) && inbox_of(h) != NULL)
        (void)tierce__inbox_finish(inbox_of(h), &call->name);
    call->status = 0;
    call->done(call);
}

static int list(struct tierce__keeper *keeper, const struct tierce_plugin_name *space,
                const struct tierce_plugin_name *prefix, uint64_t *cursor,
                tierce_plugin_each_fn *each, void *arg)
{
    (void)keeper;
    (void)space;
    (void)prefix;
    (void)cursor;
    (void)each;
    (void)arg;
    return TIERCE_E_REFUSED;
}

static bool is_short(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    struct tierce__keeper *chunks = tierce__peer_keeper_get(handover_of(keeper)->chunks);
    return chunks->ops->is_short(chunks, space);
}

static void end(struct tierce__keeper *keeper, uint64_t deadline_ns)
{
    struct tierce__handover *h = handover_of(keeper);
    struct tierce__keeper *chunks = tierce__peer_keeper_get(h->chunks);
    tierce__offers_expire(&h->offers, true);
    chunks->ops->end(chunks, deadline_ns);
}

static const struct tierce__keeper_ops keeper_ops = {.has = has_space,
                                                     .find = find,
                                                     .release = release,
                                                     .measure = measure,
                                                     .make_range = make_range,
                                                     .gone = gone,
                                                     .keep = keep,
                                                     .abandon = abandon,
                                                     .drop = drop,
                                                     .list = list,
                                                     .is_short = is_short,
                                                     .end = end};

/* ---- the server ------------------------------------------------------------------------------ */

static uint32_t rights_of(void *arg, const char *token, size_t token_bytes)
{
    struct tierce__handover *h = arg;
    if (tierce__offers_admit(&h->offers, token, token_bytes))
        return TIERCE__TRANSFER_READ | TIERCE__TRANSFER_WRITE;
    struct tierce__inbox *inbox = inbox_of(h);
    return inbox != NULL && tierce__inbox_admits(inbox, token, token_bytes) ? TIERCE__TRANSFER_WRITE
                                                                            : 0;
}

static int start_server(struct tierce__handover *h, const char *host, uint16_t port,
                        char why[TIERCE__HANDOVER_WHY_BYTES])
{
    struct tierce__transfer_server_opts opts = {.size = sizeof(opts),
                                                .host = host,
                                                .port = port,
                                                .keeper = &h->keeper,
                                                .stall_ms = STALL_MS,
                                                .idle_ms = IDLE_MS,
                                                .rights = rights_of,
                                                .rights_arg = h};
    if (getrandom(opts.incarnation, sizeof(opts.incarnation), 0) !=
        (ssize_t)sizeof(opts.incarnation)) {
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES, "the kernel gives no random bytes");
        return -EIO;
    }
    int rc = tierce__peer_tls_server(&opts.tls, h->engine->peer_tls, host, why);
    return rc == 0 ? tierce__transfer_server_start(&h->server, &opts, why) : rc;
}

/* In this process. */
static int start_here(struct tierce__handover *h, const char *host, uint16_t port,
                      char why[TIERCE__HANDOVER_WHY_BYTES])
{
    int rc = tierce__offers_init(&h->offers, h->engine);
    if (rc < 0)
        return rc;
    const struct tierce__peer_keeper_opts bounds = tierce__peer_keeper_bounds(h->engine);
    rc = tierce__peer_keeper_create(&h->chunks, h->engine, &bounds);
    if (rc == 0)
        rc = start_server(h, host, port, why);
    if (rc < 0) {
        tierce__peer_keeper_destroy(h->chunks);
        tierce__offers_fini(&h->offers);
    }
    return rc;
}

int tierce__handover_start(struct tierce__handover **out, struct tierce_engine *engine,
                           const char *host, uint16_t port, char why[TIERCE__HANDOVER_WHY_BYTES])
{
    why[0] = '\0';
    struct tierce__handover *h = tierce__calloc(1, sizeof(*h));
    if (h == NULL)
        return -ENOMEM;
    h->keeper.ops = &keeper_ops;
    h->engine = engine;
    int rc = engine->level_count == 0 ? tierce__lent_start(&h->lent, engine, host, port, why)
                                      : start_here(h, host, port, why);
    if (rc < 0) {
        tierce__free(h);
        return rc;
    }
    *out = h;
    return 0;
}

int tierce__handover_accept(struct tierce__handover *h, const struct tierce__inbox_opts *opts,
                            char why[TIERCE__HANDOVER_WHY_BYTES])
{
    struct tierce__inbox *inbox, *none = NULL;
    why[0] = '\0';
    if (h->lent != NULL)
        return tierce__lent_accept(h->lent, opts, why);
    int rc = tierce__inbox_create(&inbox, h->engine, opts);
    if (rc == TIERCE_E_ARGUMENT)
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES, "none of the hosts has an address: %.180s",
                 opts->hosts);
    if (rc < 0 || atomic_compare_exchange_strong(&h->inbox, &none, inbox))
        return rc;
    tierce__inbox_destroy(inbox);
    snprintf(why, TIERCE__HANDOVER_WHY_BYTES, "the engine has an inbox already");
    return TIERCE_E_ARGUMENT;
}

int tierce__handover_issue(struct tierce__handover *h, char (*tickets)[TIERCE__TICKET_BYTES],
                           size_t count, uint32_t ms, const char *holder)
{
    struct tierce__inbox *inbox = inbox_of(h);
    if (h->lent != NULL)
        return tierce__lent_issue(h->lent, tickets, count, ms, holder);
    return inbox != NULL ? tierce__inbox_issue(inbox, tickets, count, ms, holder) : TIERCE_E_CLOSED;
}

struct tierce__inbox *tierce__handover_inbox(struct tierce__handover *h)
{
    return inbox_of(h);
}

uint16_t tierce__handover_port(const struct tierce__handover *h)
{
    return h->lent != NULL ? tierce__lent_port(h->lent) : tierce__transfer_server_port(h->server);
}

bool tierce__handover_uses_tls(const struct tierce__handover *h)
{
    return h->lent != NULL ? tierce__lent_uses_tls(h->lent) : h->engine->peer_tls != NULL;
}

struct tierce__keeper *tierce__handover_keeper(struct tierce__handover *h)
{
    return h->lent == NULL ? &h->keeper : NULL;
}

void tierce__handover_stop(struct tierce__handover *h)
{
    if (h == NULL)
        return;
    if (h->lent == NULL) {
        tierce__offers_expire(&h->offers, true); /* no read waits for one any longer */
        tierce__transfer_server_stop(h->server, tierce__deadline_in_ms(STOP_MS));
        tierce__inbox_destroy(inbox_of(h));
        tierce__peer_keeper_destroy(h->chunks);
        tierce__offers_fini(&h->offers);
    }
    tierce__lent_stop(h->lent);
    tierce__free(h);
}
