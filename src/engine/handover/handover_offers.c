/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_offers.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/threads/threads.h"
#include "engine/handover/handover_token.h"
#include "engine/view.h"
#include "engine/waterfall.h"

#define SHORTEST 16u /* token */
#define TOTAL_MS 3600000u

struct offer {
    struct tierce__list node;
    char token[TIERCE__HANDOVER_TOKEN_MAX + 1];
    /* Those with pins: namespace and shard. */
    struct tierce__key views[TIERCE__HANDOVER_VIEWS_MAX];
    size_t view_count;
    uint64_t session; /* whose pins its chunks are, in each view */
    uint32_t hold_ms;
    uint64_t deadline_ns; /* restarts while it is read, up to last_ns */
    uint64_t last_ns;
    bool is_open;
    uint64_t tokens;           /* if it is open */
    struct tierce__list calls; /* reads that wait until it is */
};

/* Under the lock. */
static struct offer *find_offer(struct tierce__offers *offers, const char *token, size_t bytes)
{
    TIERCE__LIST_FOR_EACH (it, &offers->offers) {
        struct offer *offer = TIERCE__CONTAINER_OF(it, struct offer, node);
        if (tierce__is_token(offer->token, token, bytes))
            return offer;
    }
    return NULL;
}

/* Moves the reads that wait for the offer to `into`, under the lock. */
static void take_calls(struct tierce__offers *offers, struct tierce__list *into,
                       struct offer *offer)
{
    tierce__lock_assert_held(&offers->lock);
    while (!tierce__list_empty(&offer->calls)) {
        struct tierce__keeper_call *call =
            TIERCE__CONTAINER_OF(offer->calls.next, struct tierce__keeper_call, node);
        tierce__list_remove(&call->node);
        tierce__deadline_unset(&offers->dues, &call->due);
        tierce__list_push_back(into, &call->node);
    }
}

/* Under the lock; `calls` gets the reads that wait for it. */
static void take_out(struct tierce__offers *offers, struct tierce__list *calls, struct offer *offer)
{
    TIERCE_DASSERT(offers->count > 0);
    tierce__list_remove(&offer->node);
    offers->count--;
    take_calls(offers, calls, offer);
}

/* ---- reads of an offer ----------------------------------------------------------------------- */

static void answer(struct tierce__keeper_call *call, int status, uint64_t tokens)
{
    uint8_t *bytes = status == 0 ? tierce__alloc(TIERCE__OFFER_BYTES) : NULL;
    call->status = status == 0 && bytes == NULL ? -ENOMEM : status;
    if (bytes != NULL) {
        tierce__store_le64(bytes, tokens);
        call->lease = (struct tierce__keeper_lease){
            .data = bytes, .bytes = TIERCE__OFFER_BYTES, .owner = bytes};
    }
    call->done(call);
}

/* Without the lock. */
static void answer_all(struct tierce__list *calls, int status, uint64_t tokens)
{
    while (!tierce__list_empty(calls)) {
        struct tierce__keeper_call *call =
            TIERCE__CONTAINER_OF(calls->next, struct tierce__keeper_call, node);
        tierce__list_remove(&call->node);
        answer(call, status, tokens);
    }
}

bool tierce__offers_find(struct tierce__offers *offers, struct tierce__keeper_call *call)
{
    if (call->name.bytes > TIERCE__HANDOVER_TOKEN_MAX)
        return false; /* the name of a chunk is longer */
    tierce__lock_take(&offers->lock);
    struct offer *offer = find_offer(offers, call->name.text, call->name.bytes);
    bool is_open = offer != NULL && offer->is_open;
    bool waits = offer != NULL && !is_open;
    uint64_t tokens = is_open ? offer->tokens : 0;
    /* It may have ended since its reader was admitted. */
    int rc = offer != NULL ? 0 : TIERCE_E_MISS;
    if (waits)
        rc = tierce__deadline_set(&offers->dues, &call->due, call->deadline_ns);
    waits = waits && rc == 0;
    if (waits) {
        tierce__list_push_back(&offer->calls, &call->node);
        tierce__cond_signal(&offers->changed);
    }
    tierce__lock_drop(&offers->lock);
    if (!waits)
        answer(call, rc, tokens);
    return true;
}

bool tierce__offers_release(struct tierce__keeper_lease *lease)
{
    if (lease->bytes != TIERCE__OFFER_BYTES)
        return false;
    tierce__free(lease->owner);
    lease->owner = NULL;
    return true;
}

/* Answers the reads whose deadline has come while they wait. */
static void *answer_late(void *arg)
{
    struct tierce__offers *offers = arg;
    bool is_ending = false;
    while (!is_ending) {
        struct tierce__list late;
        struct tierce__deadline *first;
        tierce__list_init(&late);
        tierce__lock_take(&offers->lock);
        uint64_t now_ns = tierce__now_ns();
        while ((first = tierce__deadlines_first(&offers->dues)) != NULL && first->at <= now_ns) {
            struct tierce__keeper_call *call =
                TIERCE__CONTAINER_OF(first, struct tierce__keeper_call, due);
            tierce__deadline_unset(&offers->dues, first);
            tierce__list_remove(&call->node);
            tierce__list_push_back(&late, &call->node);
        }
        is_ending = offers->is_ending;
        if (!is_ending && tierce__list_empty(&late))
            (void)tierce__cond_wait(&offers->changed, &offers->lock,
                                    tierce__deadlines_next(&offers->dues));
        tierce__lock_drop(&offers->lock);
        answer_all(&late, TIERCE_E_DEADLINE, 0);
    }
    return NULL;
}

/* ---- their end ------------------------------------------------------------------------------- */

/* Of an offer that was taken out. A view may have been closed, and with it its pins. */
static void destroy_offer(struct tierce__offers *offers, struct tierce__list *calls,
                          struct offer *offer)
{
    answer_all(calls, TIERCE_E_MISS, 0);
    for (size_t i = 0; i < offer->view_count; i++) {
        struct tierce_view *view = tierce__view_borrow(offers->engine, &offer->views[i]);
        if (view == NULL)
            continue;
        tierce_unpin(view, offer->session);
        tierce__view_give_back(view);
    }
    explicit_bzero(offer->token, sizeof(offer->token));
    tierce__free(offer);
}

void tierce__offers_expire(struct tierce__offers *offers, bool all)
{
    uint64_t now_ns = tierce__now_ns();
    for (;;) {
        struct offer *over = NULL;
        struct tierce__list calls;
        tierce__list_init(&calls);
        tierce__lock_take(&offers->lock);
        TIERCE__LIST_FOR_EACH (it, &offers->offers) {
            struct offer *offer = TIERCE__CONTAINER_OF(it, struct offer, node);
            if (all || offer->deadline_ns <= now_ns) {
                over = offer;
                break;
            }
        }
        if (over != NULL)
            take_out(offers, &calls, over);
        tierce__lock_drop(&offers->lock);
        if (over == NULL)
            return;
        destroy_offer(offers, &calls, over);
    }
}

int tierce__offers_init(struct tierce__offers *offers, struct tierce_engine *engine)
{
    *offers = (struct tierce__offers){.engine = engine};
    tierce__lock_init(&offers->lock, TIERCE__LOCK_HANDOVER);
    tierce__cond_init(&offers->changed);
    tierce__list_init(&offers->offers);
    int rc = tierce__thread_start(&offers->thread, answer_late, offers);
    if (rc < 0) {
        tierce__cond_fini(&offers->changed);
        tierce__lock_fini(&offers->lock);
    }
    return rc;
}

void tierce__offers_fini(struct tierce__offers *offers)
{
    tierce__offers_expire(offers, true);
    TIERCE_ASSERT(offers->count == 0);
    tierce__lock_take(&offers->lock);
    offers->is_ending = true;
    tierce__cond_signal(&offers->changed);
    tierce__lock_drop(&offers->lock);
    (void)pthread_join(offers->thread, NULL);
    tierce__deadlines_fini(&offers->dues);
    tierce__cond_fini(&offers->changed);
    tierce__lock_fini(&offers->lock);
}

bool tierce__offers_end(struct tierce__offers *offers, const char *token, size_t bytes)
{
    struct tierce__list calls;
    tierce__list_init(&calls);
    tierce__lock_take(&offers->lock);
    struct offer *offer = find_offer(offers, token, bytes);
    if (offer != NULL)
        take_out(offers, &calls, offer);
    tierce__lock_drop(&offers->lock);
    if (offer != NULL)
        destroy_offer(offers, &calls, offer);
    return offer != NULL;
}

size_t tierce__offers_count(struct tierce__offers *offers)
{
    tierce__offers_expire(offers, false);
    tierce__lock_take(&offers->lock);
    size_t count = offers->count;
    tierce__lock_drop(&offers->lock);
    return count;
}

/* The time of an offer that is being read starts again. False: there is none. [out] copy: its
 * views, for their pins. */
static bool hold_longer(struct tierce__offers *offers, struct offer *copy, const char *token,
                        size_t bytes)
{
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&offers->lock);
    struct offer *offer = find_offer(offers, token, bytes);
    bool is_there = offer != NULL && offer->deadline_ns > now_ns;
    if (is_there) {
        uint64_t until_ns = tierce__deadline_in_ms(offer->hold_ms);
        offer->deadline_ns = until_ns < offer->last_ns ? until_ns : offer->last_ns;
        copy->session = offer->session;
        copy->deadline_ns = offer->deadline_ns;
        copy->view_count = offer->view_count;
        memcpy(copy->views, offer->views, offer->view_count * sizeof(offer->views[0]));
    }
    tierce__lock_drop(&offers->lock);
    return is_there;
}

bool tierce__offers_admit(struct tierce__offers *offers, const char *token, size_t bytes)
{
    struct offer copy;
    if (!hold_longer(offers, &copy, token, bytes))
        return false;
    for (size_t i = 0; i < copy.view_count; i++) {
        struct tierce_view *view = tierce__view_borrow(offers->engine, &copy.views[i]);
        if (view == NULL)
            continue;
        tierce__session_extend(view, copy.session, copy.deadline_ns);
        tierce__view_give_back(view);
    }
    return true;
}

/* ---- their beginning ------------------------------------------------------------------------- */

static int make_offer(struct offer **out, const char *token, uint32_t ms)
{
    size_t bytes = strlen(token);
    if (bytes < SHORTEST || bytes > TIERCE__HANDOVER_TOKEN_MAX || ms == 0 || ms > TIERCE_PIN_MS_MAX)
        return TIERCE_E_ARGUMENT;
    struct offer *offer = tierce__calloc(1, sizeof(*offer));
    if (offer == NULL)
        return -ENOMEM;
    memcpy(offer->token, token, bytes + 1);
    offer->hold_ms = ms;
    offer->deadline_ns = tierce__deadline_in_ms(ms);
    offer->last_ns = tierce__deadline_in_ms(ms > TOTAL_MS ? ms : TOTAL_MS);
    tierce__list_init(&offer->calls);
    if (getrandom(&offer->session, sizeof(offer->session), 0) != (ssize_t)sizeof(offer->session)) {
        tierce__free(offer);
        return -EIO;
    }
    offer->session |= 1; /* 0 is no session */
    *out = offer;
    return 0;
}

int tierce__offers_expect(struct tierce__offers *offers, const char *token, uint32_t ms)
{
    struct offer *offer;
    tierce__offers_expire(offers, false);
    int rc = make_offer(&offer, token, ms);
    if (rc < 0)
        return rc;
    tierce__lock_take(&offers->lock);
    bool is_full = offers->count == TIERCE__HANDOVER_OFFERS_MAX;
    bool is_double = find_offer(offers, token, strlen(token)) != NULL;
    if (!is_full && !is_double) {
        tierce__list_push_back(&offers->offers, &offer->node);
        offers->count++;
    }
    tierce__lock_drop(&offers->lock);
    if (!is_full && !is_double)
        return 0;
    tierce__free(offer);
    return is_full ? TIERCE_E_LIMIT : TIERCE_E_ARGUMENT;
}

/* Adds the view to the offer, before anything of it is pinned. */
static int note_view(struct tierce__offers *offers, const struct tierce_view *view,
                     const char *token, uint64_t *session, uint32_t *ms)
{
    int rc = TIERCE_E_MISS;
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&offers->lock);
    struct offer *offer = find_offer(offers, token, strlen(token));
    if (offer != NULL && offer->deadline_ns > now_ns) {
        rc = offer->view_count < TIERCE__HANDOVER_VIEWS_MAX ? 0 : TIERCE_E_LIMIT;
        *session = offer->session;
        *ms = (uint32_t)((offer->deadline_ns - now_ns) / TIERCE__MS_NS + 1);
    }
    if (rc == 0)
        offer->views[offer->view_count++] = view->key;
    tierce__lock_drop(&offers->lock);
    return rc;
}

int64_t tierce__offers_pin(struct tierce__offers *offers, struct tierce_view *view,
                           const struct tierce_chain *chain, uint64_t to_block, const char *token)
{
    struct tierce_found found;
    uint64_t session = 0;
    uint32_t ms = 0;
    TIERCE_ASSERT(view->engine == offers->engine);
    int rc = note_view(offers, view, token, &session, &ms);
    if (rc < 0)
        return rc;
    rc = tierce_lookup(
        view, chain, to_block,
        &(struct tierce_lookup_opts){.size = sizeof(struct tierce_lookup_opts),
                                     .flags = TIERCE_LOOKUP_PIN | TIERCE_LOOKUP_MEMORY_ONLY,
                                     .session = session,
                                     .pin_ms = ms < TIERCE_PIN_MS_MAX ? ms : TIERCE_PIN_MS_MAX},
        &found);
    if (rc < 0)
        return rc;
    tierce__lock_take(&offers->lock);
    bool is_there = find_offer(offers, token, strlen(token)) != NULL;
    tierce__lock_drop(&offers->lock);
    if (!is_there)
        tierce_unpin(view, session); /* its reader has ended it meanwhile */
    return (int64_t)found.memory_blocks;
}

int tierce__offers_open(struct tierce__offers *offers, const char *token, uint64_t tokens)
{
    struct tierce__list calls;
    tierce__list_init(&calls);
    tierce__lock_take(&offers->lock);
    struct offer *offer = find_offer(offers, token, strlen(token));
    if (offer != NULL) {
        offer->is_open = true;
        offer->tokens = tokens;
        take_calls(offers, &calls, offer);
    }
    tierce__lock_drop(&offers->lock);
    answer_all(&calls, 0, tokens);
    return offer != NULL ? 0 : TIERCE_E_MISS;
}
