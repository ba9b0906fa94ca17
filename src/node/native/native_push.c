/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of HAND_OVER that push chunks of a client to another engine, and PUSH_POLL
 * (engine/handover/handover_push.h). */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "engine/handover/handover_push.h"
#include "node/native/native_calls.h"

#define WAIT_MS_MAX    60000u
#define TIMEOUT_MS_MAX 30000u
#define SILENT_MS      600000u /* without a call about it, the client has forgotten a push */
#define GIVE_UP_MS     2000u

/* A push. Unlike other objects, several requests may use it at a time; it is given up when the last
 * one has ended. */
struct native_push {
    struct tierce__native_open open; /* afterwards among native->pushes, under NATIVE */
    struct tierce__push *push;
    uint8_t client[TIERCE__NATIVE_ID_BYTES]; /* that has begun it, and may have ended */
    uint32_t refs; /* under NATIVE_CLIENT: of requests, and of the client until it is closed */
};

/* ---- their end ------------------------------------------------------------------------------- */

/* A store that it watches may belong to several clients, and may end after this one. */
static void give_up(struct tierce__native *native, struct native_push *push)
{
    tierce__push_give_up(push->push, GIVE_UP_MS);
    tierce__lock_take(&native->lock);
    tierce__list_push_back(&native->pushes, &push->open.node);
    tierce__lock_drop(&native->lock);
}

void tierce__native_end_push(struct tierce__native_client *client, struct tierce__native_open *open)
{
    give_up(client->native, TIERCE__CONTAINER_OF(open, struct native_push, open));
}

void tierce__native_reap_pushes(struct tierce__native *native, bool all)
{
    struct tierce__list over;
    tierce__list_init(&over);
    tierce__lock_take(&native->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &native->pushes) {
        const struct native_push *push = TIERCE__CONTAINER_OF(it, struct native_push, open.node);
        if (!all && !tierce__push_is_over(push->push, NULL))
            continue;
        tierce__list_remove(it);
        tierce__list_push_back(&over, it);
        TIERCE_ASSERT(native->push_count > 0);
        native->push_count--;
    }
    TIERCE_ASSERT(!all || native->push_count == 0);
    tierce__lock_drop(&native->lock);
    while (!tierce__list_empty(&over)) {
        struct native_push *push = TIERCE__CONTAINER_OF(over.next, struct native_push, open.node);
        tierce__list_remove(&push->open.node);
        tierce__push_destroy(push->push);
        tierce__free(push);
    }
}

/* Drops a reference. */
static void put(struct tierce__native_client *client, struct native_push *push)
{
    tierce__lock_take(&client->lock);
    TIERCE_ASSERT(push->refs > 0);
    bool is_last = --push->refs == 0;
    tierce__lock_drop(&client->lock);
    if (is_last)
        give_up(client->native, push);
}

void tierce__native_expire_pushes(struct tierce__native_client *client, uint64_t now_ns)
{
    struct native_push *late;
    do {
        late = NULL;
        tierce__lock_take(&client->lock);
        TIERCE__LIST_FOR_EACH (it, &client->lists[TIERCE__NATIVE_PUSHES]) {
            struct tierce__native_open *open =
                TIERCE__CONTAINER_OF(it, struct tierce__native_open, node);
            if (open->deadline_ns <= now_ns)
                late = TIERCE__CONTAINER_OF(open, struct native_push, open);
        }
        if (late != NULL) {
            tierce__list_remove(&late->open.node);
            client->counts[TIERCE__NATIVE_PUSHES]--;
        }
        tierce__lock_drop(&client->lock);
        if (late != NULL)
            put(client, late);
    } while (late != NULL);
}

/* ---- calls about a push ---------------------------------------------------------------------- */

/* With a reference; or NULL. */
static struct native_push *get(struct tierce__native_client *client, uint64_t number)
{
    struct native_push *found = NULL;
    tierce__lock_take(&client->lock);
    TIERCE__LIST_FOR_EACH (it, &client->lists[TIERCE__NATIVE_PUSHES]) {
        struct tierce__native_open *open =
            TIERCE__CONTAINER_OF(it, struct tierce__native_open, node);
        if (open->number == number)
            found = TIERCE__CONTAINER_OF(open, struct native_push, open);
    }
    if (found != NULL) {
        found->refs++;
        found->open.deadline_ns = tierce__deadline_in_ms(SILENT_MS);
    }
    tierce__lock_drop(&client->lock);
    return found;
}

static uint32_t bounded(uint32_t ms, uint32_t max)
{
    return ms < max ? ms : max;
}

/* Pushes of a client that were given up and are not over. */
static uint32_t count_given_up(struct tierce__native *native, const uint8_t *client)
{
    uint32_t count = 0;
    tierce__lock_assert_held(&native->lock);
    TIERCE__LIST_FOR_EACH (it, &native->pushes) {
        const struct native_push *push = TIERCE__CONTAINER_OF(it, struct native_push, open.node);
        count += memcmp(push->client, client, sizeof(push->client)) == 0;
    }
    return count;
}

static void note_full(struct tierce__native_client *client, uint32_t count, uint32_t all)
{
    tierce__node_count(client->native->node, TIERCE__NODE_native_refused, 1);
    tierce__log_repeated(TIERCE_LOG_WARN, "native_push_refused",
                         "pid=%llu pushes=%u pushes_of_all=%u "
                         "consequence=\"the decoder reads the prompt from its offer\"",
                         (unsigned long long)client->pid, count, all);
}

/* Each push has a thread from its beginning until it is freed, also if it was given up. A client
 * has at most as many as are free, so that some are left for others. */
static bool has_room(struct tierce__native_client *client)
{
    struct tierce__native *native = client->native;
    tierce__native_reap_pushes(native, false);
    tierce__lock_take(&client->lock);
    uint32_t count = client->counts[TIERCE__NATIVE_PUSHES];
    tierce__lock_drop(&client->lock);
    tierce__lock_take(&native->lock);
    uint32_t all = native->push_count;
    count += count_given_up(native, client->id);
    bool fits = count < TIERCE__NATIVE_PUSHES_MAX && count < TIERCE__NATIVE_ALL_PUSHES_MAX - all;
    native->push_count += fits;
    tierce__lock_drop(&native->lock);
    if (!fits)
        note_full(client, count, all);
    return fits;
}

static void free_room(struct tierce__native *native)
{
    tierce__lock_take(&native->lock);
    TIERCE_ASSERT(native->push_count > 0);
    native->push_count--;
    tierce__lock_drop(&native->lock);
}

static int begin(struct tierce__native_call *call, struct tierce__native_held_view *view)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    const struct tierce__push_to to = {.host = ask->host,
                                       .port = (uint16_t)ask->port,
                                       .uses_tls = ask->uses_tls == 1,
                                       .ticket = ask->token,
                                       .wait_ms = bounded(ask->wait_ms, WAIT_MS_MAX),
                                       .timeout_ms = bounded(ask->timeout_ms, TIMEOUT_MS_MAX)};
    if (!has_room(call->client))
        return TIERCE_E_LIMIT;
    struct native_push *made = tierce__calloc(1, sizeof(*made));
    int rc = made != NULL ? tierce__push_begin(&made->push, view->shared->view, &to) : -ENOMEM;
    if (rc < 0) {
        free_room(call->native);
        tierce__free(made);
        return rc;
    }
    made->refs = 1;
    memcpy(made->client, call->client->id, sizeof(made->client));
    made->open.deadline_ns = tierce__deadline_in_ms(SILENT_MS);
    call->say.hand_over.number =
        tierce__native_add(call->client, TIERCE__NATIVE_PUSHES, &made->open);
    if (call->say.hand_over.number > 0)
        return 0;
    give_up(call->native, made); /* another connection of the client was faster */
    return TIERCE_E_LIMIT;
}

/* Never TIERCE_E_ARGUMENT without a reason: from this, a client concludes that the node does not
 * know the call. */
static int begin_push(struct tierce__native_call *call, char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__native_held_view *view = tierce__native_view_get(call->client, ask->view);
    if (view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = ask->port > 0 && ask->port <= UINT16_MAX ? begin(call, view) : TIERCE_E_ARGUMENT;
    tierce__native_view_put(call->client, view);
    if (rc == TIERCE_E_ARGUMENT)
        snprintf(why, sizeof(call->why),
                 "the node rejects the push: its host, port or ticket is invalid");
    return rc;
}

static int add_held(struct tierce__native_call *call, struct tierce__push *push)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__native_about about;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, 0, ask->to_block);
    if (rc == 0) {
        int64_t count =
            tierce__push_held(push, about.view->shared->view, about.chain->chain, ask->to_block);
        call->say.hand_over.number = count > 0 ? (uint64_t)count : 0;
        rc = count < 0 ? (int)count : 0;
    }
    tierce__native_end_about(call, &about);
    return rc;
}

/* The chunks of a store of this client, which other clients fill as well if it stores a part. */
static int add_store(struct tierce__native_call *call, struct tierce__push *push)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    struct tierce__native_held_view *view = tierce__native_view_get(call->client, ask->view);
    struct tierce__native_open *open =
        view != NULL ? tierce__native_get(call->client, TIERCE__NATIVE_STORES, ask->session) : NULL;
    int rc = view != NULL ? TIERCE_E_MISS : TIERCE__NATIVE_UNKNOWN;
    if (open != NULL) {
        struct tierce__native_held_store *store =
            TIERCE__CONTAINER_OF(open, struct tierce__native_held_store, open);
        rc = store->late
                 ? TIERCE_E_MISS
                 : tierce__push_reserved(push, view->shared->view, store->share.reservation);
        if (!tierce__native_put(call->client, open))
            (void)tierce__native_end_store(call->client, store, false);
    }
    if (view != NULL)
        tierce__native_view_put(call->client, view);
    return rc;
}

static int close_push(struct tierce__native_call *call)
{
    bool later; /* no push is busy */
    struct tierce__native_open *open = tierce__native_take(call->client, TIERCE__NATIVE_PUSHES,
                                                           call->ask.hand_over.number, &later);
    TIERCE_ASSERT(!later);
    if (open == NULL)
        return TIERCE_E_MISS;
    put(call->client, TIERCE__CONTAINER_OF(open, struct native_push, open));
    return 0;
}

int tierce__native_push_call(struct tierce__native_call *call, char *why)
{
    const struct tierce__native_hand *ask = &call->ask.hand_over;
    if (ask->kind == TIERCE__NATIVE_HAND_PUSH)
        return begin_push(call, why);
    if (ask->kind == TIERCE__NATIVE_HAND_PUSH_CLOSE)
        return close_push(call);
    struct native_push *push = get(call->client, ask->number);
    int rc = TIERCE_E_MISS;
    if (push == NULL)
        return rc;
    if (ask->kind == TIERCE__NATIVE_HAND_PUSH_HELD)
        rc = add_held(call, push->push);
    else if (ask->kind == TIERCE__NATIVE_HAND_PUSH_STORE)
        rc = add_store(call, push->push);
    else
        rc = 0;
    if (ask->kind == TIERCE__NATIVE_HAND_PUSH_END)
        tierce__push_end(push->push);
    put(call->client, push);
    return rc;
}

int tierce__native_answer_push_poll(struct tierce__native_call *call)
{
    struct tierce__pushed pushed;
    struct native_push *push = get(call->client, call->ask.push_poll.number);
    if (push == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    bool is_over = tierce__push_is_over(push->push, &pushed);
    put(call->client, push);
    snprintf(call->why, sizeof(call->why), "%s", pushed.why);
    call->say.push_poll = (struct tierce__native_pushed){.chunks = pushed.chunks,
                                                         .bytes = pushed.bytes,
                                                         .present = pushed.present,
                                                         .left_out = pushed.left_out,
                                                         .over_ns = pushed.over_ns,
                                                         .is_over = is_over,
                                                         .status = (uint32_t)pushed.status,
                                                         .why = call->why};
    return 0;
}
