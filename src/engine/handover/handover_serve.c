/* SPDX-License-Identifier: Apache-2.0 */
/* Offers of chunks, and the transfer server over the engine's chunks and its inbox. */
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
#include "engine/peer/peer_keeper.h"
#include "engine/peer/peer_tls.h"
#include "engine/view.h"
#include "engine/waterfall.h"
#include "store/transfer/transfer.h"

#define STOP_MS  1000u
#define IDLE_MS  60000u
#define SHORTEST 16u /* token */

struct offer {
    struct tierce__list node;
    char token[TIERCE__HANDOVER_TOKEN_MAX + 1];
    struct tierce__key view; /* its namespace and shard */
    uint64_t session;        /* whose pins its chunks are */
    uint64_t deadline_ns;
};

struct tierce__handover {
    struct tierce__keeper keeper;
    struct tierce_engine *engine;
    struct tierce__peer_keeper *chunks; /* reads what it serves */
    struct tierce__transfer_server *server;
    _Atomic(struct tierce__inbox *) inbox; /* NULL: none; release, acquire */
    struct tierce__lock lock;              /* HANDOVER: the offers */
    struct tierce__list offers;
    size_t count;
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

/* Compares all characters, so that the time does not depend on how many are right. */
static bool is_token(const struct offer *offer, const char *token, size_t bytes)
{
    unsigned differ = 0;
    if (strlen(offer->token) != bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        differ |= (unsigned char)(offer->token[i] ^ token[i]);
    return differ == 0;
}

/* Under the lock. */
static struct offer *find_offer(struct tierce__handover *h, const char *token, size_t bytes)
{
    TIERCE__LIST_FOR_EACH (it, &h->offers) {
        struct offer *offer = TIERCE__CONTAINER_OF(it, struct offer, node);
        if (is_token(offer, token, bytes))
            return offer;
    }
    return NULL;
}

/* Of an offer that is in no list. The view may have been closed, and with it the pins. */
static void end_offer(struct tierce__handover *h, struct offer *offer)
{
    struct tierce_view *view = tierce__view_borrow(h->engine, &offer->view);
    if (view != NULL) {
        tierce_unpin(view, offer->session);
        tierce__view_give_back(view);
    }
    tierce__free(offer);
}

/* Ends offers whose time is over, or all. Their pins have the same deadline. */
static void expire(struct tierce__handover *h, bool all)
{
    uint64_t now_ns = tierce__now_ns();
    for (;;) {
        struct offer *over = NULL;
        tierce__lock_take(&h->lock);
        TIERCE__LIST_FOR_EACH (it, &h->offers) {
            struct offer *offer = TIERCE__CONTAINER_OF(it, struct offer, node);
            if (all || offer->deadline_ns <= now_ns) {
                over = offer;
                break;
            }
        }
        if (over != NULL) {
            tierce__list_remove(&over->node);
            h->count--;
        }
        tierce__lock_drop(&h->lock);
        if (over == NULL)
            return;
        end_offer(h, over);
    }
}

static int make_offer(struct offer **out, const struct tierce_view *view, const char *token,
                      uint32_t ms)
{
    size_t bytes = strlen(token);
    if (bytes < SHORTEST || bytes > TIERCE__HANDOVER_TOKEN_MAX || ms == 0 || ms > TIERCE_PIN_MS_MAX)
        return TIERCE_E_ARGUMENT;
    struct offer *offer = tierce__calloc(1, sizeof(*offer));
    if (offer == NULL)
        return -ENOMEM;
    memcpy(offer->token, token, bytes + 1);
    offer->view = view->key;
    offer->deadline_ns = tierce__deadline_in_ms(ms);
    if (getrandom(&offer->session, sizeof(offer->session), 0) != (ssize_t)sizeof(offer->session)) {
        tierce__free(offer);
        return -EIO;
    }
    offer->session |= 1; /* 0 is no session */
    *out = offer;
    return 0;
}

int64_t tierce__handover_offer(struct tierce__handover *h, struct tierce_view *view,
                               const struct tierce_chain *chain, uint64_t to_block,
                               const char *token, uint32_t ms)
{
    struct offer *offer;
    TIERCE_ASSERT(view->engine == h->engine);
    expire(h, false);
    int rc = make_offer(&offer, view, token, ms);
    if (rc < 0)
        return rc;
    struct tierce_found found;
    rc = tierce_lookup(
        view, chain, to_block,
        &(struct tierce_lookup_opts){.size = sizeof(struct tierce_lookup_opts),
                                     .flags = TIERCE_LOOKUP_PIN | TIERCE_LOOKUP_MEMORY_ONLY,
                                     .session = offer->session,
                                     .pin_ms = ms},
        &found);
    if (rc < 0) {
        tierce__free(offer);
        return rc;
    }
    tierce__lock_take(&h->lock);
    bool is_full = h->count == TIERCE__HANDOVER_OFFERS_MAX;
    bool is_double = find_offer(h, token, strlen(token)) != NULL;
    if (!is_full && !is_double) {
        tierce__list_push_back(&h->offers, &offer->node);
        h->count++;
    }
    tierce__lock_drop(&h->lock);
    if (is_full || is_double) {
        tierce_unpin(view, offer->session);
        tierce__free(offer);
        return is_full ? TIERCE_E_LIMIT : TIERCE_E_ARGUMENT;
    }
    return (int64_t)found.memory_blocks;
}

size_t tierce__handover_offers(struct tierce__handover *h)
{
    expire(h, false);
    tierce__lock_take(&h->lock);
    size_t count = h->count;
    tierce__lock_drop(&h->lock);
    return count;
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
    struct tierce__keeper *chunks = tierce__peer_keeper_get(handover_of(keeper)->chunks);
    chunks->ops->find(chunks, call);
}

static void release(struct tierce__keeper *keeper, struct tierce__keeper_lease *lease)
{
    struct tierce__keeper *chunks = tierce__peer_keeper_get(handover_of(keeper)->chunks);
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
    tierce__lock_take(&h->lock);
    struct offer *offer = find_offer(h, call->name.text, call->name.bytes);
    if (offer != NULL) {
        tierce__list_remove(&offer->node);
        h->count--;
    }
    tierce__lock_drop(&h->lock);
    if (offer != NULL)
        end_offer(h, offer);
    else if (inbox_of(h) != NULL)
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

static const struct tierce__keeper_ops keeper_ops = {.has = has_space,
                                                     .find = find,
                                                     .release = release,
                                                     .measure = measure,
                                                     .make_range = make_range,
                                                     .gone = gone,
                                                     .keep = keep,
                                                     .abandon = abandon,
                                                     .drop = drop,
                                                     .list = list};

/* ---- the server ------------------------------------------------------------------------------ */

static uint32_t rights_of(void *arg, const char *token, size_t token_bytes)
{
    struct tierce__handover *h = arg;
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&h->lock);
    const struct offer *offer = find_offer(h, token, token_bytes);
    bool is_open = offer != NULL && offer->deadline_ns > now_ns;
    tierce__lock_drop(&h->lock);
    if (is_open)
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

int tierce__handover_start(struct tierce__handover **out, struct tierce_engine *engine,
                           const char *host, uint16_t port, char why[TIERCE__HANDOVER_WHY_BYTES])
{
    why[0] = '\0';
    if (engine->level_count == 0) {
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES,
                 "an engine whose memory is a node's (node.socket) cannot hand over its chunks");
        return TIERCE_E_UNSUPPORTED;
    }
    struct tierce__handover *h = tierce__calloc(1, sizeof(*h));
    if (h == NULL)
        return -ENOMEM;
    h->keeper.ops = &keeper_ops;
    h->engine = engine;
    tierce__lock_init(&h->lock, TIERCE__LOCK_HANDOVER);
    tierce__list_init(&h->offers);
    int rc = tierce__peer_keeper_create(
        &h->chunks, engine,
        &(struct tierce__peer_keeper_opts){.size = sizeof(struct tierce__peer_keeper_opts)});
    if (rc == 0)
        rc = start_server(h, host, port, why);
    if (rc < 0) {
        tierce__peer_keeper_destroy(h->chunks);
        tierce__lock_fini(&h->lock);
        tierce__free(h);
        return rc;
    }
    *out = h;
    return 0;
}

int tierce__handover_accept(struct tierce__handover *h, const char *hosts, uint64_t bytes_max,
                            uint32_t hold_ms)
{
    struct tierce__inbox *inbox;
    TIERCE_ASSERT(inbox_of(h) == NULL);
    int rc =
        tierce__inbox_create(&inbox, h->engine,
                             &(struct tierce__inbox_opts){.size = sizeof(struct tierce__inbox_opts),
                                                          .hosts = hosts,
                                                          .bytes_max = bytes_max,
                                                          .hold_ms = hold_ms});
    if (rc == 0)
        atomic_store_explicit(&h->inbox, inbox, memory_order_release);
    return rc;
}

struct tierce__inbox *tierce__handover_inbox(struct tierce__handover *h)
{
    return inbox_of(h);
}

uint16_t tierce__handover_port(const struct tierce__handover *h)
{
    return tierce__transfer_server_port(h->server);
}

void tierce__handover_stop(struct tierce__handover *h)
{
    if (h == NULL)
        return;
    tierce__transfer_server_stop(h->server, tierce__deadline_in_ms(STOP_MS));
    tierce__inbox_destroy(inbox_of(h));
    tierce__peer_keeper_destroy(h->chunks);
    expire(h, true);
    TIERCE_ASSERT(h->count == 0);
    tierce__lock_fini(&h->lock);
    tierce__free(h);
}
