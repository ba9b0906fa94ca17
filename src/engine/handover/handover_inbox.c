/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_inbox.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/map.h"
#include "base/mix.h"
#include "base/text/host_port.h"
#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "engine/handover/handover_hosts.h"
#include "engine/handover/handover_landing.h"
#include "engine/handover/handover_ranges.h"
#include "engine/handover/handover_token.h"
#include "engine/observe/inbox_metrics.h"
#include "engine/observe/operate.h"
#include "engine/view.h"
#include "engine/waterfall.h"

#define SHARE       250u /* thousandths */
#define HOLDERS_MAX 16u
#define HOST_BYTES  64u
#define HASH_SHOWN  8u  /* bytes, in the log */
#define VIEWS_MAX   16u /* of a prompt: one or two for each KV cache group */

enum ticket_state {
    TICKET_ISSUED, /* nothing has come */
    TICKET_OPEN,
    TICKET_OVER, /* nothing more comes: `status` */
};

struct ticket {
    struct tierce__list node;
    struct tierce__map_node by_token;
    struct tierce__list incoming;
    char token[TIERCE__TICKET_BYTES];
    char holder[TIERCE__HOLDER_BYTES]; /* "": unknown */
    enum ticket_state state;
    int status;
    uint64_t session;     /* whose pins its chunks are */
    uint64_t deadline_ns; /* for the next range, or for its end by the reader */
    uint64_t moved_ns;    /* a range began or arrived; 0: none has */
    uint64_t bytes;       /* of its chunks that have arrived, verified */
    uint32_t view_count;
    struct ticket_view { /* of its chunks, which the session has pinned there */
        struct tierce_shard shard;
        uint32_t ns;
    } views[VIEWS_MAX];
};

/* A chunk that is arriving. Freed when no room is in use and no ticket has it. */
struct incoming {
    struct tierce__list node; /* of the ticket, or alone */
    struct tierce__inbox *inbox;
    struct ticket *ticket; /* NULL: it has ended, and the bytes are dropped */
    struct tierce__key key;
    struct tierce__buf *buf;
    struct tierce__ranges claimed;
    uint64_t arrived;
    uint64_t era; /* operate.h */
    uint32_t rooms;
    char host[HOST_BYTES]; /* of the first range */
};

struct tierce__inbox {
    struct tierce_engine *engine;
    uint64_t bytes_max;
    uint32_t hold_ms;
    struct tierce__hosts hosts;
    tierce__inbox_is_own_fn *is_own; /* or NULL */
    void *is_own_arg;

    struct tierce__lock lock; /* INBOX: all below, and the tickets */
    struct tierce__cond changed;
    struct tierce__list tickets; /* the oldest one first */
    struct tierce__map by_token; /* the same */
    uint32_t ticket_count, incoming_count;
    char proven[HOLDERS_MAX]
               [TIERCE__HOLDER_BYTES]; /* holders, with a ticket that brought a chunk */
    uint32_t next_proven;              /* is replaced next */
};

/* A number of inbox_stats.def. */
#define COUNT(inbox, field, by)                                                                    \
    atomic_fetch_add_explicit(&(inbox)->engine->inbox_counts.field, (by), memory_order_relaxed)
#define COUNT_OFF(inbox, field, by)                                                                \
    atomic_fetch_sub_explicit(&(inbox)->engine->inbox_counts.field, (by), memory_order_relaxed)

/* ---- tickets --------------------------------------------------------------------------------- */

_Static_assert((TIERCE__TICKET_BYTES - 1) % 8 == 0, "whole words");

/* Without a seed, because clients do not choose the tokens that are in the map. */
static uint64_t hash_of(const char *token)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < TIERCE__TICKET_BYTES - 1; i += 8)
        hash = tierce__mix(hash ^ tierce__load_le64(token + i));
    return hash;
}

/* By a hash: three searches for each chunk, of all tickets, took 0.1 ms each with 4,096 of them. */
static struct ticket *find_ticket(struct tierce__inbox *inbox, const char *token, size_t bytes)
{
    tierce__lock_assert_held(&inbox->lock);
    if (bytes != TIERCE__TICKET_BYTES - 1)
        return NULL;
    struct tierce__map_node *node = tierce__map_find(&inbox->by_token, hash_of(token));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct ticket *ticket = TIERCE__CONTAINER_OF(node, struct ticket, by_token);
        if (tierce__is_token(ticket->token, token, bytes))
            return ticket;
    }
    return NULL;
}

static bool is_proven(const struct tierce__inbox *inbox, const char *holder)
{
    for (size_t i = 0; holder[0] != '\0' && i < HOLDERS_MAX; i++)
        if (strcmp(inbox->proven[i], holder) == 0)
            return true;
    return false;
}

/* A ticket has brought a chunk, which no client of the HTTP server alone can do. */
static void prove(struct tierce__inbox *inbox, const struct ticket *ticket)
{
    tierce__lock_assert_held(&inbox->lock);
    if (ticket->holder[0] == '\0' || is_proven(inbox, ticket->holder))
        return;
    memcpy(inbox->proven[inbox->next_proven], ticket->holder, sizeof(ticket->holder));
    inbox->next_proven = (inbox->next_proven + 1) % HOLDERS_MAX;
}

static void give_room_back(struct tierce__inbox *inbox, uint64_t bytes)
{
    tierce__lock_assert_held(&inbox->lock);
    TIERCE_DASSERT(inbox->incoming_count > 0);
    inbox->incoming_count--;
    COUNT_OFF(inbox, incoming_now, 1);
    COUNT_OFF(inbox, incoming_bytes_now, bytes);
}

/* Frees it if nothing uses it any more. */
static void drop_if_unused(struct incoming *incoming)
{
    struct tierce__inbox *inbox = incoming->inbox;
    tierce__lock_assert_held(&inbox->lock);
    if (incoming->ticket != NULL || incoming->rooms > 0)
        return;
    give_room_back(inbox, incoming->claimed.total);
    tierce__list_remove(&incoming->node);
    tierce__buf_release(incoming->buf);
    tierce__free(incoming);
}

/* Nothing more comes for the ticket; chunks that have not arrived whole are dropped. */
static void close_ticket(struct tierce__inbox *inbox, struct ticket *ticket, int status)
{
    tierce__lock_assert_held(&inbox->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &ticket->incoming) {
        struct incoming *incoming = TIERCE__CONTAINER_OF(it, struct incoming, node);
        tierce__list_remove(&incoming->node);
        incoming->ticket = NULL;
        COUNT(inbox, lost, 1);
        drop_if_unused(incoming);
    }
    if (ticket->state != TICKET_OVER)
        ticket->status = status;
    ticket->state = TICKET_OVER;
    ticket->deadline_ns = tierce__deadline_in_ms(inbox->hold_ms);
    tierce__cond_broadcast(&inbox->changed);
}

static void unpin(struct tierce__inbox *inbox, const struct tierce__key *key, uint64_t session)
{
    struct tierce_view *view = tierce__view_borrow(inbox->engine, key);
    if (view != NULL) {
        tierce_unpin(view, session);
        tierce__view_give_back(view);
    }
}

/* Takes a ticket off the list, under the lock; the caller frees it without the lock. */
static void unlist(struct tierce__inbox *inbox, struct ticket *ticket)
{
    close_ticket(inbox, ticket, TIERCE_E_DEADLINE);
    tierce__list_remove(&ticket->node);
    tierce__map_remove(&inbox->by_token, &ticket->by_token);
    inbox->ticket_count--;
    COUNT_OFF(inbox, tickets_now, 1);
}

static void free_ticket(struct tierce__inbox *inbox, struct ticket *ticket)
{
    for (uint32_t i = 0; i < ticket->view_count; i++)
        unpin(inbox,
              &(struct tierce__key){.shard = ticket->views[i].shard, .ns = ticket->views[i].ns},
              ticket->session);
    explicit_bzero(ticket->token, sizeof(ticket->token));
    tierce__free(ticket);
}

/* Ends tickets whose time is over, or all. */
static void expire(struct tierce__inbox *inbox, bool all)
{
    uint64_t now_ns = tierce__now_ns();
    for (;;) {
        struct ticket *over = NULL;
        tierce__lock_take(&inbox->lock);
        TIERCE__LIST_FOR_EACH (it, &inbox->tickets) {
            struct ticket *ticket = TIERCE__CONTAINER_OF(it, struct ticket, node);
            if (all || ticket->deadline_ns <= now_ns) {
                over = ticket;
                break;
            }
        }
        if (over != NULL) {
            unlist(inbox, over);
            COUNT(inbox, tickets_expired, 1);
        }
        tierce__lock_drop(&inbox->lock);
        if (over == NULL)
            return;
        free_ticket(inbox, over);
    }
}

static int make_ticket(struct ticket **out, uint32_t ms)
{
    uint8_t random[(TIERCE__TICKET_BYTES - 1) / 2];
    struct ticket *ticket = tierce__calloc(1, sizeof(*ticket));
    if (ticket == NULL)
        return -ENOMEM;
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random) ||
        getrandom(&ticket->session, sizeof(ticket->session), 0) !=
            (ssize_t)sizeof(ticket->session)) {
        tierce__free(ticket);
        return -EIO;
    }
    tierce__hex_encode(ticket->token, random, sizeof(random));
    ticket->session |= 1; /* 0 is no session */
    ticket->deadline_ns = tierce__deadline_in_ms(ms);
    tierce__list_init(&ticket->incoming);
    *out = ticket;
    return 0;
}

/* With TICKETS_MAX: the oldest ticket that is unused, and whose holder has brought no chunk, makes
 * way, so that nobody who only asks keeps the others out. Under the lock; NULL if there is none. */
static struct ticket *displace(struct tierce__inbox *inbox)
{
    tierce__lock_assert_held(&inbox->lock);
    TIERCE__LIST_FOR_EACH (it, &inbox->tickets) {
        struct ticket *ticket = TIERCE__CONTAINER_OF(it, struct ticket, node);
        if (ticket->state != TICKET_ISSUED || is_proven(inbox, ticket->holder))
            continue;
        unlist(inbox, ticket);
        COUNT(inbox, tickets_displaced, 1);
        return ticket;
    }
    return NULL;
}

/* False: all tickets are in use, or of proven holders. */
static bool add_ticket(struct tierce__inbox *inbox, struct ticket *ticket)
{
    struct ticket *displaced = NULL;
    tierce__lock_take(&inbox->lock);
    if (inbox->ticket_count == TIERCE__TICKETS_MAX)
        displaced = displace(inbox);
    bool has_room = inbox->ticket_count < TIERCE__TICKETS_MAX;
    if (has_room) {
        tierce__list_push_back(&inbox->tickets, &ticket->node);
        tierce__map_put(&inbox->by_token, &ticket->by_token, hash_of(ticket->token));
        inbox->ticket_count++;
        COUNT(inbox, tickets_now, 1);
        COUNT(inbox, tickets_given, 1);
    }
    tierce__lock_drop(&inbox->lock);
    if (displaced != NULL)
        free_ticket(inbox, displaced);
    return has_room;
}

int tierce__inbox_issue(struct tierce__inbox *inbox, char (*tickets)[TIERCE__TICKET_BYTES],
                        size_t count, uint32_t ms, const char *holder)
{
    size_t made = 0;
    bool has_room = true;
    if (strlen(holder) >= TIERCE__HOLDER_BYTES)
        return TIERCE_E_ARGUMENT;
    expire(inbox, false);
    while (made < count && has_room) {
        struct ticket *ticket;
        int rc = make_ticket(&ticket, ms);
        if (rc < 0)
            return made > 0 ? (int)made : rc;
        memcpy(ticket->holder, holder, strlen(holder) + 1);
        memcpy(tickets[made], ticket->token, sizeof(ticket->token));
        has_room = add_ticket(inbox, ticket);
        if (has_room)
            made++;
        else
            tierce__free(ticket);
    }
    COUNT(inbox, tickets_denied, count - made);
    return (int)made;
}

/* How long a wait goes on in this state. */
static uint64_t await_until(const struct ticket *ticket, uint64_t start_ns, uint32_t quiet_ms)
{
    uint64_t quiet_ns = (uint64_t)quiet_ms * TIERCE__MS_NS;
    return ticket->state == TICKET_ISSUED ? start_ns : ticket->moved_ns + quiet_ns;
}

int tierce__inbox_await(struct tierce__inbox *inbox, const char *ticket_text, uint32_t start_ms,
                        uint32_t quiet_ms, uint64_t deadline_ns)
{
    uint64_t start_ns = tierce__deadline_in_ms(start_ms);
    size_t bytes = strlen(ticket_text);
    int rc = -EAGAIN;
    COUNT(inbox, waits_now, 1);
    tierce__lock_take(&inbox->lock);
    while (rc == -EAGAIN) {
        const struct ticket *ticket = find_ticket(inbox, ticket_text, bytes);
        uint64_t now_ns = tierce__now_ns(), until_ns = deadline_ns;
        if (ticket == NULL)
            rc = TIERCE_E_MISS;
        else if (ticket->state == TICKET_OVER)
            rc = ticket->status;
        else
            until_ns = await_until(ticket, start_ns, quiet_ms);
        if (rc == -EAGAIN && until_ns <= now_ns)
            rc = TIERCE_E_DEADLINE;
        if (rc != -EAGAIN || deadline_ns <= now_ns)
            break;
        (void)tierce__cond_wait(&inbox->changed, &inbox->lock,
                                until_ns < deadline_ns ? until_ns : deadline_ns);
    }
    tierce__lock_drop(&inbox->lock);
    COUNT_OFF(inbox, waits_now, 1);
    return rc;
}

uint64_t tierce__inbox_end(struct tierce__inbox *inbox, const char *ticket_text)
{
    uint64_t bytes = 0;
    tierce__lock_take(&inbox->lock);
    struct ticket *ticket = find_ticket(inbox, ticket_text, strlen(ticket_text));
    if (ticket != NULL)
        unlist(inbox, ticket);
    tierce__lock_drop(&inbox->lock);
    if (ticket != NULL) {
        bytes = ticket->bytes;
        free_ticket(inbox, ticket);
    }
    return bytes;
}

bool tierce__inbox_admits(struct tierce__inbox *inbox, const char *token, size_t token_bytes)
{
    tierce__lock_take(&inbox->lock);
    const struct ticket *ticket = find_ticket(inbox, token, token_bytes);
    bool admits =
        ticket != NULL && ticket->state != TICKET_OVER && ticket->deadline_ns > tierce__now_ns();
    tierce__lock_drop(&inbox->lock);
    COUNT(inbox, refused_ticket, !admits);
    return admits;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static void note_moved(const struct tierce__inbox *inbox, struct ticket *ticket)
{
    ticket->moved_ns = tierce__now_ns();
    ticket->deadline_ns = tierce__deadline_in_ms(inbox->hold_ms);
}

/* Returns the ticket of a range and restarts its time, or NULL if the ticket is not accepted. */
static struct ticket *use_ticket(struct tierce__inbox *inbox,
                                 const struct tierce__keeper_room *room)
{
    tierce__lock_assert_held(&inbox->lock);
    struct ticket *ticket = find_ticket(inbox, room->token.text, room->token.bytes);
    if (ticket == NULL || ticket->state == TICKET_OVER || ticket->deadline_ns <= tierce__now_ns())
        return NULL;
    if (ticket->state == TICKET_ISSUED) {
        COUNT(inbox, tickets_used, 1);
        tierce__cond_broadcast(&inbox->changed);
    }
    ticket->state = TICKET_OPEN;
    note_moved(inbox, ticket);
    return ticket;
}

/* Notes the view of a chunk. False: there are too many. */
static bool note_view(struct ticket *ticket, const struct tierce__key *key)
{
    const struct ticket_view view = {key->shard, key->ns};
    for (uint32_t i = 0; i < ticket->view_count; i++)
        if (ticket->views[i].ns == view.ns &&
            memcmp(&ticket->views[i].shard, &view.shard, sizeof(view.shard)) == 0)
            return true;
    if (ticket->view_count == VIEWS_MAX)
        return false;
    ticket->views[ticket->view_count++] = view;
    return true;
}

static struct incoming *find_incoming(const struct ticket *ticket, const struct tierce__key *key)
{
    TIERCE__LIST_FOR_EACH (it, &ticket->incoming) {
        struct incoming *incoming = TIERCE__CONTAINER_OF(it, struct incoming, node);
        if (tierce__key_equal(&incoming->key, key))
            return incoming;
    }
    return NULL;
}

/* Under the lock. Errors: TIERCE_E_FORMAT, TIERCE_E_LIMIT. */
static int claim(struct incoming *incoming, struct tierce__keeper_room *room,
                 const struct tierce__keeper_range *range)
{
    int rc = incoming->claimed.total == range->total
                 ? tierce__ranges_claim(&incoming->claimed, range->offset, range->length)
                 : TIERCE_E_FORMAT;
    if (rc == TIERCE_E_FORMAT)
        COUNT(incoming->inbox, wrong, 1);
    if (rc < 0)
        return rc;
    incoming->rooms++;
    room->data = incoming->buf->data + range->offset;
    room->bytes = range->length;
    room->owner = incoming;
    return 0;
}

/* Errors: TIERCE_E_ARGUMENT (no name of a chunk), TIERCE_E_REFUSED (a namespace of no view). */
static int read_name(struct tierce__inbox *inbox, struct tierce__key *key,
                     const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    *key = (struct tierce__key){0};
    if (tierce__key_text_parse(digest, &key->shard, key->hash, name->text, name->bytes) != 0)
        return TIERCE_E_ARGUMENT;
    int64_t ns = tierce__namespaces_find(inbox->engine->namespaces, digest);
    if (ns < 0 || tierce__engine_mode(inbox->engine) != TIERCE_MODE_NORMAL)
        return TIERCE_E_REFUSED;
    key->ns = (uint32_t)ns;
    return 0;
}

/* Whether memory holds the chunk, which is pinned as far as memory.pins permits. */
static bool is_present(struct tierce__inbox *inbox, struct tierce_view *view,
                       const struct tierce__key *key, uint64_t session)
{
    struct tierce__buf *buf = tierce__storage_lease(inbox->engine, key);
    if (buf != NULL && !tierce__session_add(view, session, key, buf, inbox->hold_ms))
        tierce__log_repeated(TIERCE_LOG_WARN, "inbox_not_pinned",
                             "err=\"memory.pins has no room\" consequence=\"a chunk may be "
                             "evicted before it is used\"");
    return buf != NULL;
}

/* Within the bound, which is one for all inboxes of the engine; one chunk alone always fits. */
static bool take_room(struct tierce__inbox *inbox, uint64_t bytes)
{
    _Atomic uint64_t *level = &inbox->engine->inbox_counts.incoming_bytes_now;
    uint64_t held = atomic_load_explicit(level, memory_order_relaxed);
    bool fits;
    do
        fits = held == 0 || held + bytes <= inbox->bytes_max;
    while (fits && !atomic_compare_exchange_weak_explicit(
                       level, &held, held + bytes, memory_order_relaxed, memory_order_relaxed));
    if (!fits)
        return false;
    tierce__lock_take(&inbox->lock);
    inbox->incoming_count++;
    COUNT(inbox, incoming_now, 1);
    tierce__lock_drop(&inbox->lock);
    return true;
}

/* Room within the bound, and in memory. */
static int reserve(struct tierce__inbox *inbox, struct incoming **out, struct tierce_view *view,
                   const struct tierce__key *key, uint64_t bytes)
{
    bool fits = take_room(inbox, bytes);
    if (!fits) {
        expire(inbox, false); /* tickets whose time is over hold room */
        fits = take_room(inbox, bytes);
    }
    struct incoming *incoming = fits ? tierce__calloc(1, sizeof(*incoming)) : NULL;
    if (incoming != NULL)
        incoming->buf = tierce__landing_reserve(view, key, bytes);
    if (incoming != NULL && incoming->buf != NULL) {
        tierce__list_init(&incoming->node);
        incoming->inbox = inbox;
        incoming->key = *key;
        incoming->claimed.total = bytes;
        incoming->era = tierce__era_now(inbox->engine);
        *out = incoming;
        return 0;
    }
    bool is_full = incoming != NULL;
    tierce__free(incoming);
    tierce__lock_take(&inbox->lock);
    COUNT(inbox, busy, 1);
    if (fits)
        give_room_back(inbox, bytes);
    tierce__lock_drop(&inbox->lock);
    return !fits ? TIERCE_E_LIMIT : is_full ? TIERCE_E_FULL : -ENOMEM;
}

/* The host alone: each connection has another port, and would be another message. */
static void host_of(char host[HOST_BYTES], const struct tierce__keeper_room *room)
{
    struct tierce__host_port at;
    bool is_address = tierce__host_port_split(&at, room->peer, strlen(room->peer));
    snprintf(host, HOST_BYTES, "%.*s", is_address ? (int)at.host_bytes : (int)HOST_BYTES,
             is_address ? at.host : room->peer);
}

static void log_refusal(const struct tierce__keeper_room *room, const char *why)
{
    char host[HOST_BYTES];
    host_of(host, room);
    tierce__log_repeated(TIERCE_LOG_WARN, "inbox_refused", "peer=%s why=\"%s\"", host, why);
}

/* The first range of a chunk. */
static int make_first(struct tierce__inbox *inbox, struct tierce__keeper_room *room,
                      const struct tierce__key *key, uint64_t session,
                      const struct tierce__keeper_range *range)
{
    struct incoming *made = NULL;
    bool has_views = false;
    struct tierce_view *view = tierce__view_borrow(inbox->engine, key);
    bool is_own = inbox->is_own == NULL || inbox->is_own(inbox->is_own_arg, key);
    int rc = view == NULL || !is_own                     ? TIERCE_E_REFUSED
             : !tierce__landing_fits(view, range->total) ? TIERCE_E_FORMAT
             : is_present(inbox, view, key, session)     ? -EEXIST
                                                         : 0;
    if (rc == 0)
        rc = reserve(inbox, &made, view, key, range->total);
    if (view != NULL)
        tierce__view_give_back(view);
    if (rc == TIERCE_E_REFUSED || rc == TIERCE_E_FORMAT) {
        COUNT(inbox, refused_chunk, 1);
        log_refusal(room, rc == TIERCE_E_FORMAT
                              ? "its chunk has a length that no chunk of its view has"
                              : "its chunk is of no view of this engine");
    }
    if (rc < 0 && rc != -EEXIST)
        return rc;
    tierce__lock_take(&inbox->lock);
    struct ticket *ticket = use_ticket(inbox, room);
    if (ticket != NULL && !note_view(ticket, key)) {
        COUNT(inbox, refused_chunk, 1);
        rc = TIERCE_E_REFUSED;
        ticket = NULL;
        has_views = true;
    }
    if (rc == -EEXIST)
        COUNT(inbox, present, 1);
    if (rc == 0 && ticket == NULL)
        rc = TIERCE_E_REFUSED;
    struct incoming *other = rc == 0 ? find_incoming(ticket, key) : NULL;
    if (rc == 0 && other == NULL) {
        made->ticket = ticket;
        host_of(made->host, room);
        tierce__list_push_back(&ticket->incoming, &made->node);
        other = made;
    }
    if (rc == 0)
        rc = claim(other, room, range);
    if (made != NULL)
        drop_if_unused(made);
    tierce__lock_drop(&inbox->lock);
    if (has_views)
        log_refusal(room, "its ticket has chunks of too many views");
    if (ticket == NULL) /* it has ended since, perhaps before is_present pinned the chunk */
        unpin(inbox, key, session);
    return rc;
}

int tierce__inbox_make(struct tierce__inbox *inbox, struct tierce__keeper_room *room,
                       const struct tierce_plugin_name *name,
                       const struct tierce__keeper_range *range)
{
    struct tierce__key key;
    uint64_t session = 0;
    if (!tierce__hosts_allow(&inbox->hosts, room->peer)) {
        COUNT(inbox, refused_host, 1);
        log_refusal(room, "its host is not named in handover.allow");
        return TIERCE_E_REFUSED;
    }
    int rc = read_name(inbox, &key, name);
    if (rc < 0) {
        COUNT(inbox, refused_chunk, 1);
        log_refusal(room, rc == TIERCE_E_ARGUMENT
                              ? "its chunk's name is invalid"
                              : "its chunk is of a namespace that this engine does not have, or "
                                "the engine's mode is not normal");
        return rc;
    }
    tierce__lock_take(&inbox->lock);
    const struct ticket *ticket = use_ticket(inbox, room);
    struct incoming *incoming = ticket != NULL ? find_incoming(ticket, &key) : NULL;
    if (ticket != NULL)
        session = ticket->session;
    if (incoming != NULL)
        rc = claim(incoming, room, range);
    tierce__lock_drop(&inbox->lock);
    if (ticket == NULL) {
        COUNT(inbox, refused_ticket, 1);
        log_refusal(room, "its ticket is unknown, over or used");
        return TIERCE_E_REFUSED;
    }
    return incoming != NULL ? rc : make_first(inbox, room, &key, session, range);
}

/* ---- the last byte --------------------------------------------------------------------------- */

static int publish(struct incoming *incoming, uint64_t session)
{
    struct tierce__inbox *inbox = incoming->inbox;
    struct tierce_engine *engine = inbox->engine;
    struct tierce_view *view = tierce__view_borrow(engine, &incoming->key);
    int rc = view != NULL ? TIERCE_E_CANCELLED : TIERCE_E_REFUSED;
    if (view != NULL && tierce__era_enter(engine, incoming->era)) {
        rc = tierce__landing_publish(view, &incoming->key, incoming->buf);
        tierce__era_leave(engine, incoming->era);
    }
    if (rc == 0 && !is_present(inbox, view, &incoming->key, session))
        rc = TIERCE_E_FULL;
    if (view != NULL)
        tierce__view_give_back(view);
    return rc;
}

/* All ranges of a chunk have arrived; no ticket has it any more. */
static int finish(struct incoming *incoming, const char *token, uint64_t session)
{
    struct tierce__inbox *inbox = incoming->inbox;
    struct tierce__key key = incoming->key;
    char host[HOST_BYTES], hash[2 * HASH_SHOWN + 1];
    memcpy(host, incoming->host, sizeof(host));
    tierce__hex_encode(hash, key.hash, HASH_SHOWN);
    int rc = publish(incoming, session);
    bool is_wrong = rc == TIERCE_E_FORMAT || rc == TIERCE_E_VERSION || rc == TIERCE_E_LIMIT ||
                    rc == TIERCE_E_IDENTITY || rc == TIERCE_E_CHECKSUM;
    tierce__lock_take(&inbox->lock);
    struct ticket *ticket = find_ticket(inbox, token, TIERCE__TICKET_BYTES - 1);
    if (ticket != NULL && rc == 0) {
        ticket->bytes += incoming->claimed.total;
        prove(inbox, ticket);
    }
    COUNT(inbox, chunks, rc == 0);
    COUNT(inbox, bytes, rc == 0 ? incoming->claimed.total : 0);
    COUNT(inbox, wrong, is_wrong);
    incoming->rooms--;
    drop_if_unused(incoming);
    tierce__lock_drop(&inbox->lock);
    if (ticket == NULL) /* it has ended since */
        unpin(inbox, &key, session);
    if (rc < 0)
        tierce__log_repeated(TIERCE_LOG_WARN, "inbox_chunk_dropped", "peer=%s chunk=%s err=\"%s\"",
                             host, hash, tierce_strerror(rc));
    return is_wrong ? -EBADMSG : rc;
}

void tierce__inbox_keep(struct tierce__inbox *inbox, struct tierce__keeper_room *room)
{
    struct incoming *incoming = room->owner;
    char token[TIERCE__TICKET_BYTES] = "";
    uint64_t session = 0;
    tierce__lock_take(&inbox->lock);
    struct ticket *ticket = incoming->ticket;
    bool is_whole = false;
    incoming->arrived += room->bytes;
    if (ticket != NULL) {
        is_whole = incoming->arrived == incoming->claimed.total;
        note_moved(inbox, ticket);
        memcpy(token, ticket->token, sizeof(token));
        session = ticket->session;
    }
    if (is_whole) {
        tierce__list_remove(&incoming->node);
        incoming->ticket = NULL;
        TIERCE_ASSERT(incoming->rooms == 1);
    } else {
        incoming->rooms--;
        drop_if_unused(incoming);
    }
    tierce__lock_drop(&inbox->lock);
    room->status = ticket == NULL ? TIERCE_E_REFUSED : 0;
    if (is_whole)
        room->status = finish(incoming, token, session);
    room->done(room);
}

/* Bytes that do not come: the chunk cannot become whole. */
void tierce__inbox_abandon(struct tierce__inbox *inbox, struct tierce__keeper_room *room)
{
    struct incoming *incoming = room->owner;
    tierce__lock_take(&inbox->lock);
    if (incoming->ticket != NULL)
        COUNT(inbox, lost, 1);
    tierce__list_remove(&incoming->node);
    incoming->ticket = NULL;
    incoming->rooms--;
    drop_if_unused(incoming);
    tierce__lock_drop(&inbox->lock);
}

bool tierce__inbox_finish(struct tierce__inbox *inbox, const struct tierce_plugin_name *name)
{
    tierce__lock_take(&inbox->lock);
    struct ticket *ticket = find_ticket(inbox, name->text, name->bytes);
    if (ticket != NULL)
        close_ticket(inbox, ticket, 0);
    tierce__lock_drop(&inbox->lock);
    return ticket != NULL;
}

void tierce__inbox_gone(struct tierce__inbox *inbox, const struct tierce_plugin_name *token)
{
    tierce__lock_take(&inbox->lock);
    struct ticket *ticket = find_ticket(inbox, token->text, token->bytes);
    if (ticket != NULL && ticket->state != TICKET_OVER)
        close_ticket(inbox, ticket, TIERCE_E_DOWN);
    tierce__lock_drop(&inbox->lock);
}

/* ---- create and destroy ---------------------------------------------------------------------- */

int tierce__inbox_create(struct tierce__inbox **out, struct tierce_engine *engine,
                         const struct tierce__inbox_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && engine->level_count > 0);
    struct tierce__inbox *inbox = tierce__calloc(1, sizeof(*inbox));
    if (inbox == NULL)
        return -ENOMEM;
    inbox->engine = engine;
    inbox->bytes_max = opts->bytes_max > 0 ? opts->bytes_max
                                           : engine->settings.memory_bytes / 1000 *
                                                 (opts->share > 0 ? opts->share : SHARE);
    inbox->hold_ms = opts->hold_ms > 0 ? opts->hold_ms : TIERCE__INBOX_HOLD_MS;
    inbox->is_own = opts->is_own;
    inbox->is_own_arg = opts->is_own_arg;
    tierce__hosts_add(&inbox->hosts, opts->hosts);
    if (inbox->hosts.count == 0) {
        tierce__free(inbox);
        return TIERCE_E_ARGUMENT;
    }
    tierce__lock_init(&inbox->lock, TIERCE__LOCK_INBOX);
    tierce__cond_init(&inbox->changed);
    tierce__list_init(&inbox->tickets);
    atomic_store_explicit(&engine->inbox_counts.is_there, true, memory_order_relaxed);
    *out = inbox;
    return 0;
}

void tierce__inbox_destroy(struct tierce__inbox *inbox)
{
    if (inbox == NULL)
        return;
    expire(inbox, true);
    TIERCE_ASSERT(inbox->ticket_count == 0 && inbox->incoming_count == 0);
    tierce__map_fini(&inbox->by_token);
    tierce__cond_fini(&inbox->changed);
    tierce__lock_fini(&inbox->lock);
    tierce__free(inbox);
}

void tierce__inbox_stats(struct tierce__inbox *inbox, struct tierce__inbox_stats *out)
{
    expire(inbox, false);
    bool is_there = tierce__inbox_read(out, &inbox->engine->inbox_counts);
    TIERCE_ASSERT(is_there);
}
