/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/links.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "store/remote/links_private.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LINKS_MAGIC      0x3b1f70c4u
#define LINKS_MIN        2u
#define STORE_NAME_BYTES 128u
#define ABORT_MS         2000u
#define WAITING_MAX      4096u
#define GETS_BYTES       (4u << 20) /* of a link at a time, where there are several */

/* A request that a worker has taken. */
struct link_slot {
    struct tierce__links_call call; /* the thread's alone */
    struct tierce__store_req *req;  /* belongs to the call until it is answered; under the lock */
};

struct worker {
    struct links *owner;
    void *link;
    pthread_t thread;
    struct tierce__cond wake;
    struct link_slot slots[TIERCE__LINKS_GETS];
    /* Under the lock. */
    bool takes_stores, is_idle, in_call, is_connected;
    bool is_told; /* a request was answered with the link's last failure */
    uint64_t connects;
};

struct links {
    struct tierce__connector base;
    uint32_t magic;
    struct tierce__connector_ops ops;
    struct tierce__client client;
    void *store;
    uint32_t worker_count, waiting_max;
    struct worker *workers;
    pthread_t clock_thread;
    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__cond clock, ended;
    struct tierce__list waiting[TIERCE__CONNECTOR_URGENCIES];
    uint32_t waiting_count;
    uint32_t running;   /* threads of workers */
    uint32_t answering; /* workers that are calling done */
    uint32_t holders;   /* references: the workers' threads, and the owner until it closes */
    bool closing, clock_ends;
    uint64_t clock_ns; /* when the clock looks again */
    uint64_t connects;
    char store_name[STORE_NAME_BYTES];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

static struct links *links_of(struct tierce__connector *connector)
{
    struct links *links = (struct links *)connector;
    TIERCE_CHECK_MAGIC(links, LINKS_MAGIC);
    return links;
}

static struct tierce__store_req *req_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__store_req, node);
}

/* Whether this is the worker's thread. `thread` is set under the lock that it takes first. */
static inline bool is_own(const struct worker *worker)
{
    return pthread_equal(pthread_self(), worker->thread) != 0;
}

/* Under the lock. */
static bool has_request(const struct worker *worker)
{
    bool has = false;
    for (size_t i = 0; i < TIERCE__LINKS_GETS; i++)
        has |= worker->slots[i].req != NULL;
    return has;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer(struct tierce__store_req *req, int status)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    req->status = status;
    req->done(req);
}

/* Under no lock. */
static void answer_all(struct tierce__list *reqs, int status)
{
    while (!tierce__list_empty(reqs)) {
        struct tierce__list *node = reqs->next;
        tierce__list_remove(node);
        answer(req_of(node), status);
    }
}

/* Under the lock. */
static void set_why(struct links *links, const char *why)
{
    tierce__lock_assert_held(&links->lock);
    snprintf(links->why, sizeof(links->why), "%s: %s", links->store_name, why);
}

/* ---- workers --------------------------------------------------------------------------------- */

/* The most urgent request that this worker takes. Under the lock. */
static struct tierce__store_req *next_req(struct links *links, const struct worker *worker)
{
    TIERCE_DASSERT(is_own(worker));
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(!worker->is_idle && !worker->in_call);
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        struct tierce__list *list = &links->waiting[i];
        if (tierce__list_empty(list) || (i == TIERCE__CONNECTOR_STORE && !worker->takes_stores))
            continue;
        struct tierce__list *node = list->next;
        tierce__list_remove(node);
        TIERCE_DASSERT(links->waiting_count > 0);
        links->waiting_count--;
        TIERCE_DASSERT((size_t)req_of(node)->urgency == i);
        return req_of(node);
    }
    TIERCE_DASSERT(!worker->takes_stores || links->waiting_count == 0);
    return NULL;
}

static struct tierce__link_state state_after(const struct worker *worker, int rc)
{
    TIERCE_DASSERT(is_own(worker) && worker->in_call);
    const struct tierce__client *client = &worker->owner->client;
    if (client->state != NULL)
        return client->state(worker->link);
    bool answered = rc != TIERCE_E_DOWN && rc != TIERCE_E_DEADLINE;
    return (struct tierce__link_state){.connects =
                                           worker->connects + (answered && !worker->is_connected),
                                       .is_connected = answered};
}

/* The link's last failure, or what is wrong with its answer. Under no lock. */
static const char *why_of(const struct worker *worker, const struct link_slot *slot, int rc)
{
    const struct tierce_plugin *table = &worker->owner->client.table;
    if (slot->call.why[0] != '\0')
        return slot->call.why;
    const char *why = table->why != NULL ? table->why(worker->link) : NULL;
    return why != NULL && why[0] != '\0' ? why : tierce_strerror(rc);
}

/* Returns whether a call made a connection. Under the lock. */
static bool note_state(struct links *links, struct worker *worker,
                       const struct tierce__link_state *state)
{
    TIERCE_DASSERT(!state->is_connected || state->connects > 0);
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(state->connects >= worker->connects);
    bool connected = state->connects != worker->connects;
    links->connects += state->connects - worker->connects;
    worker->connects = state->connects;
    worker->is_connected = state->is_connected;
    return connected;
}

/* Whether a request was answered before with the failure that a call ended with. The request whose
 * call failed may have been answered at its deadline: then the next one is the first. Under the
 * lock. */
static bool repeats_failure(struct worker *worker, const struct tierce__store_req *req,
                            bool repeats)
{
    tierce__lock_assert_held(&worker->owner->lock);
    bool was_told = repeats && worker->is_told;
    worker->is_told = was_told || req != NULL;
    return was_told;
}

/* `answering` was one more for as long as done was called. */
static void end_answer(struct links *links)
{
    tierce__lock_take(&links->lock);
    TIERCE_DASSERT(links->answering > 0);
    links->answering--;
    if (links->closing)
        tierce__cond_signal(&links->ended);
    tierce__lock_drop(&links->lock);
}

/* A call has been made, the worker's last one for now or not. Returns whether the link is
 * connected. */
static bool end_call(struct links *links, struct worker *worker, struct link_slot *slot, int rc,
                     bool is_last)
{
    TIERCE_DASSERT(is_own(worker));
    const struct tierce__link_state state = state_after(worker, rc);
    bool has_why = rc != 0 && (rc != TIERCE_E_MISS || links->client.explains_misses);
    const char *why = has_why ? why_of(worker, slot, rc) : NULL;
    tierce__lock_take(&links->lock);
    TIERCE_DASSERT(worker->in_call);
    bool connected = note_state(links, worker, &state);
    if (why != NULL)
        set_why(links, why);
    worker->in_call = !is_last;
    struct tierce__store_req *req = slot->req; /* NULL: it was answered at its deadline */
    bool repeats = repeats_failure(worker, req, rc != 0 && state.repeats);
    slot->req = NULL;
    links->answering++;
    TIERCE_DASSERT(links->answering <= links->worker_count);
    tierce__lock_drop(&links->lock);
    if (req != NULL) {
        tierce__links_hand_over(&slot->call, req, rc);
        req->repeats = repeats;
        req->connected = connected;
    }
    tierce__links_call_end(&slot->call);
    if (req != NULL)
        answer(req, rc);
    end_answer(links);
    return state.is_connected;
}

/* GETs that were taken and not asked for wait again, in front. */
static void put_back(struct links *links, struct worker *worker, size_t first, size_t count)
{
    TIERCE_DASSERT(is_own(worker));
    struct tierce__list cancelled;
    tierce__list_init(&cancelled);
    tierce__lock_take(&links->lock);
    TIERCE_DASSERT(worker->in_call && first > 0 && first < count && count <= TIERCE__LINKS_GETS);
    for (size_t i = count; i-- > first;) {
        struct link_slot *slot = &worker->slots[i];
        TIERCE_DASSERT(slot->req == NULL || slot->req->op == TIERCE__STORE_GET);
        TIERCE_DASSERT(slot->req == NULL || tierce__list_empty(&slot->req->node));
        tierce__links_call_end(&slot->call);
        if (slot->req != NULL && links->closing) {
            tierce__list_push_front(&cancelled, &slot->req->node);
        } else if (slot->req != NULL) {
            tierce__list_push_front(&links->waiting[slot->req->urgency], &slot->req->node);
            links->waiting_count++;
        }
        slot->req = NULL;
    }
    worker->in_call = false;
    links->answering++;
    TIERCE_DASSERT(links->answering <= links->worker_count);
    tierce__lock_drop(&links->lock);
    answer_all(&cancelled, TIERCE_E_CANCELLED);
    end_answer(links);
}

/* Several GETs; each answer is delivered when it arrives. If the connection fails, only the GET
 * whose answer is being awaited has failed. */
static void make_gets(struct links *links, struct worker *worker, size_t count)
{
    TIERCE_DASSERT(is_own(worker));
    const struct tierce__client *client = &links->client;
    struct tierce__link_get gets[TIERCE__LINKS_GETS];
    TIERCE_DASSERT(count > 1 && count <= TIERCE__LINKS_GETS && client->state != NULL);
    for (size_t i = 0; i < count; i++)
        gets[i] = tierce__links_get_of(client, &worker->slots[i].call);
    int rc = client->send_gets(worker->link, gets, count, worker->slots[0].call.deadline_ns);
    bool was_sent = rc == 0, goes_on = was_sent;
    size_t done = 0;
    do {
        struct link_slot *slot = &worker->slots[done];
        if (was_sent)
            rc = client->read_get(worker->link, &gets[done], slot->call.deadline_ns);
        done++;
        goes_on = end_call(links, worker, slot, rc, done == count) && was_sent;
    } while (goes_on && done < count);
    if (done < count)
        put_back(links, worker, done, count);
}

/* Under the lock. */
static bool take_request(struct worker *worker, size_t i, struct tierce__store_req *req)
{
    const struct links *links = worker->owner;
    struct link_slot *slot = &worker->slots[i];
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(i < TIERCE__LINKS_GETS && slot->req == NULL);
    if (tierce__links_prepare(&slot->call, req, links->client.prefix) != 0)
        return false;
    slot->req = req;
    return true;
}

/*
 * Takes the GETs that wait behind the first one, as many as this link's share of the queue. Their
 * bytes are bounded, because urgent requests wait behind them. The link without stores takes only
 * one, so that a lookup soon finds it free. Under the lock. Returns how many there are.
 */
static size_t take_gets(struct links *links, struct worker *worker,
                        const struct tierce__store_req *first)
{
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(worker->slots[0].req == first);
    struct tierce__list *list = &links->waiting[first->urgency];
    uint64_t bytes = first->length;
    size_t count = 1, share = 1 + links->waiting_count / links->worker_count;
    if (links->client.send_gets == NULL || first->op != TIERCE__STORE_GET || !worker->takes_stores)
        return 1;
    while (count < TIERCE__LINKS_GETS && count < share && !tierce__list_empty(list)) {
        struct tierce__store_req *next = req_of(list->next);
        if (next->op != TIERCE__STORE_GET || bytes + next->length > GETS_BYTES ||
            !take_request(worker, count, next))
            break;
        tierce__list_remove(&next->node);
        TIERCE_DASSERT(links->waiting_count > 0);
        links->waiting_count--;
        bytes += next->length;
        count++;
    }
    TIERCE_DASSERT(count == 1 || bytes <= GETS_BYTES);
    return count;
}

/* One request, or several, taken with the lock held, which is held again at the end. */
static void serve(struct links *links, struct worker *worker, struct tierce__store_req *req)
{
    TIERCE_DASSERT(is_own(worker) && !worker->is_idle);
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(!worker->in_call && worker->slots[0].req == NULL);
    struct link_slot *slot = &worker->slots[0];
    if (!take_request(worker, 0, req)) {
        links->answering++;
        TIERCE_DASSERT(links->answering <= links->worker_count);
        tierce__lock_drop(&links->lock);
        tierce__links_call_end(&slot->call);
        answer(req, -ENOMEM);
        end_answer(links);
        tierce__lock_take(&links->lock);
        return;
    }
    size_t count = take_gets(links, worker, req);
    worker->in_call = true;
    tierce__lock_drop(&links->lock);
    if (count > 1) {
        make_gets(links, worker, count);
    } else {
        int rc = tierce__links_make_call(&links->client, worker->link, &slot->call);
        end_call(links, worker, slot, rc, true);
    }
    tierce__lock_take(&links->lock);
}

static void end_store(const struct tierce__client *client, void *store)
{
    client->table.close(store);
    if (client->object != NULL)
        dlclose(client->object);
}

static void destroy(struct links *links)
{
    TIERCE_DASSERT(links->holders == 0 && links->running == 0);
    TIERCE_DASSERT(links->waiting_count == 0 && links->answering == 0);
    for (uint32_t i = 0; i < links->worker_count; i++) {
        struct worker *worker = &links->workers[i];
        TIERCE_DASSERT(!worker->in_call && !has_request(worker));
        if (worker->link != NULL)
            links->client.table.link_close(worker->link);
        for (size_t j = 0; j < TIERCE__LINKS_GETS; j++)
            tierce__links_call_fini(&worker->slots[j].call);
        tierce__cond_fini(&worker->wake);
    }
    end_store(&links->client, links->store);
    tierce__cond_fini(&links->clock);
    tierce__cond_fini(&links->ended);
    tierce__lock_fini(&links->lock);
    links->magic = 0;
    tierce__free(links->workers);
    tierce__free(links);
}

/* With the lock held, which is gone with the last holder. */
static void let_go(struct links *links)
{
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(links->holders > 0);
    bool is_last = --links->holders == 0;
    TIERCE_DASSERT(links->holders >= links->running);
    tierce__lock_drop(&links->lock);
    if (is_last)
        destroy(links);
}

/* Wakes one that is idle and may take it. Under the lock. */
static void wake_one(struct links *links, enum tierce__connector_urgency urgency)
{
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(urgency < TIERCE__CONNECTOR_URGENCIES);
    for (uint32_t i = 0; i < links->worker_count; i++) {
        struct worker *worker = &links->workers[i];
        if (worker->is_idle && (worker->takes_stores || urgency != TIERCE__CONNECTOR_STORE)) {
            worker->is_idle = false;
            tierce__cond_signal(&worker->wake);
            return;
        }
    }
}

/* The thread that takes a request may not be the one that was woken for it, so the next request
 * needs a wake-up too. Under the lock. */
static void wake_more(struct links *links)
{
    tierce__lock_assert_held(&links->lock);
    for (unsigned i = 0; links->waiting_count > 0 && i < TIERCE__CONNECTOR_URGENCIES; i++) {
        if (!tierce__list_empty(&links->waiting[i]))
            wake_one(links, (enum tierce__connector_urgency)i);
    }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct links *links = worker->owner;
    tierce__lock_take(&links->lock);
    for (;;) {
        struct tierce__store_req *req = next_req(links, worker);
        if (req != NULL) {
            wake_more(links);
            serve(links, worker, req);
            continue;
        }
        if (links->closing)
            break;
        worker->is_idle = true;
        tierce__cond_wait(&worker->wake, &links->lock, TIERCE__DEADLINE_NEVER);
        worker->is_idle = false;
    }
    TIERCE_DASSERT(links->running > 0);
    TIERCE_DASSERT(!worker->in_call && worker->slots[0].req == NULL);
    links->running--;
    tierce__cond_signal(&links->ended);
    let_go(links);
    return NULL;
}

/* ---- the clock ------------------------------------------------------------------------------- */

/* Moves the requests of a worker whose deadline is not after `now` to `out`. Under the lock.
 * Returns whether there are any. *next: the first deadline of the others, or before. */
static bool take_running(struct worker *worker, uint64_t now, struct tierce__list *out,
                         uint64_t *next)
{
    tierce__lock_assert_held(&worker->owner->lock);
    bool any = false;
    for (size_t i = 0; i < TIERCE__LINKS_GETS; i++) {
        struct link_slot *slot = &worker->slots[i];
        if (slot->req == NULL)
            continue;
        if (slot->req->deadline_ns > now) {
            *next = least(*next, slot->req->deadline_ns);
            continue;
        }
        if (slot->req->op == TIERCE__STORE_LOOKUP)
            slot->req->found = tierce__links_found(&slot->call);
        TIERCE_DASSERT(tierce__list_empty(&slot->req->node));
        tierce__list_push_back(out, &slot->req->node);
        slot->req = NULL;
        any = true;
    }
    return any;
}

/* Moves requests past their deadline to `expired`, and determines the next deadline. Under the
 * lock. */
static void expire(struct links *links, uint64_t now, struct tierce__list *expired)
{
    tierce__lock_assert_held(&links->lock);
    uint64_t next = TIERCE__DEADLINE_NEVER;
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        TIERCE__LIST_FOR_EACH_SAFE (node, after, &links->waiting[i]) {
            if (req_of(node)->deadline_ns > now) {
                next = least(next, req_of(node)->deadline_ns);
                continue;
            }
            TIERCE_DASSERT(links->waiting_count > 0);
            tierce__list_remove(node);
            tierce__list_push_back(expired, node);
            links->waiting_count--;
            set_why(links, "all connections were busy until the deadline");
        }
    }
    for (uint32_t i = 0; i < links->worker_count; i++) {
        if (take_running(&links->workers[i], now, expired, &next))
            set_why(links, "no answer by the deadline");
    }
    TIERCE_DASSERT(next > now);
    links->clock_ns = next;
}

static void *watch_deadlines(void *arg)
{
    struct links *links = arg;
    tierce__lock_take(&links->lock);
    while (!links->clock_ends) {
        struct tierce__list expired;
        tierce__list_init(&expired);
        expire(links, tierce__now_ns(), &expired);
        if (tierce__list_empty(&expired)) {
            tierce__cond_wait(&links->clock, &links->lock, links->clock_ns);
            continue;
        }
        tierce__lock_drop(&links->lock);
        answer_all(&expired, TIERCE_E_DEADLINE);
        tierce__lock_take(&links->lock);
    }
    tierce__lock_drop(&links->lock);
    return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Under the lock. */
static int enqueue(struct links *links, struct tierce__store_req *req)
{
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(req->urgency < TIERCE__CONNECTOR_URGENCIES);
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    if (links->closing)
        return TIERCE_E_CLOSED;
    TIERCE_DASSERT(links->running == links->worker_count && !links->clock_ends);
    if (links->waiting_count >= links->waiting_max) {
        set_why(links, "the request queue is full");
        return TIERCE_E_LIMIT;
    }
    tierce__list_push_back(&links->waiting[req->urgency], &req->node);
    links->waiting_count++;
    TIERCE_DASSERT(links->waiting_count <= links->waiting_max);
    wake_one(links, req->urgency);
    if (req->deadline_ns < links->clock_ns)
        tierce__cond_signal(&links->clock);
    return 0;
}

static void submit(struct tierce__connector *connector, struct tierce__store_req *req)
{
    struct links *links = links_of(connector);
    int rc = tierce__connector_accept(req, links->base.caps);
    if (rc == 0) {
        tierce__lock_take(&links->lock);
        rc = enqueue(links, req);
        tierce__lock_drop(&links->lock);
    }
    if (rc != 0)
        answer(req, rc);
}

static void get_why(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct links *links = links_of(connector);
    tierce__lock_take(&links->lock);
    memcpy(why, links->why, sizeof(links->why));
    tierce__lock_drop(&links->lock);
}

static void get_stats(struct tierce__connector *connector, struct tierce__tier_stats *out)
{
    struct links *links = links_of(connector);
    tierce__lock_take(&links->lock);
    out->connects = links->connects;
    out->waiting = links->waiting_count;
    out->connections = out->calls_hanging = 0;
    for (uint32_t i = 0; i < links->worker_count; i++) {
        const struct worker *worker = &links->workers[i];
        out->connections += worker->is_connected;
        out->calls_hanging += worker->in_call && !has_request(worker);
    }
    TIERCE_DASSERT(out->connections <= links->worker_count);
    tierce__lock_drop(&links->lock);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Everything that waits. Under the lock. */
static void take_waiting(struct links *links, struct tierce__list *out)
{
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(links->closing);
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        TIERCE__LIST_FOR_EACH_SAFE (node, after, &links->waiting[i]) {
            tierce__list_remove(node);
            tierce__list_push_back(out, node);
            TIERCE_DASSERT(links->waiting_count > 0);
            links->waiting_count--;
        }
    }
    TIERCE_DASSERT(links->waiting_count == 0);
}

/* Waits until all workers have ended; false: the deadline has passed, and workers that are not
 * calling done have not returned. Under the lock. */
static bool await_workers(struct links *links, uint64_t deadline_ns)
{
    TIERCE_DASSERT(links->running <= links->holders);
    tierce__lock_assert_held(&links->lock);
    TIERCE_DASSERT(links->closing);
    bool in_time = true;
    while (links->running > 0 && in_time)
        in_time = tierce__cond_wait(&links->ended, &links->lock, deadline_ns);
    while (links->answering > 0) /* not for long: done does not block */
        tierce__cond_wait(&links->ended, &links->lock, TIERCE__DEADLINE_NEVER);
    return links->running == 0;
}

static bool close_links(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct links *links = links_of(connector);
    struct tierce__list cancelled;
    tierce__list_init(&cancelled);
    tierce__lock_take(&links->lock);
    TIERCE_DASSERT(!links->closing);
    links->closing = true;
    take_waiting(links, &cancelled);
    for (uint32_t i = 0; i < links->worker_count; i++)
        tierce__cond_signal(&links->workers[i].wake);
    tierce__lock_drop(&links->lock);
    answer_all(&cancelled, TIERCE_E_CANCELLED);

    tierce__lock_take(&links->lock);
    bool all = await_workers(links, deadline_ns);
    for (uint32_t i = 0; i < links->worker_count; i++) {
        uint64_t next = TIERCE__DEADLINE_NEVER;
        (void)take_running(&links->workers[i], TIERCE__DEADLINE_NEVER, &cancelled, &next);
    }
    TIERCE_DASSERT(links->waiting_count == 0 && !links->clock_ends);
    links->clock_ends = true;
    tierce__cond_signal(&links->clock);
    tierce__lock_drop(&links->lock);
    answer_all(&cancelled, TIERCE_E_CANCELLED);
    pthread_join(links->clock_thread, NULL);
    if (!all && links->client.abort != NULL) {
        links->client.abort(links->store);
        tierce__lock_take(&links->lock);
        all = await_workers(links, tierce__deadline_in_ms(ABORT_MS));
        tierce__lock_drop(&links->lock);
    }
    for (uint32_t i = 0; i < links->worker_count; i++) {
        if (all)
            pthread_join(links->workers[i].thread, NULL);
        else
            pthread_detach(links->workers[i].thread);
    }
    tierce__lock_take(&links->lock);
    let_go(links);
    return all;
}

static int open_link(const struct links *links, void **out)
{
    const struct tierce__client *client = &links->client;
    void *link = client->link_bytes > 0 ? tierce__calloc(1, client->link_bytes) : NULL;
    if (client->link_bytes > 0 && link == NULL)
        return -ENOMEM;
    int rc = client->table.link_open(&link, links->store);
    if (rc == 0)
        *out = link;
    else if (client->link_bytes > 0)
        client->table.link_close(link);
    return rc > 0 || !tierce__links_is_status(client, rc) ? TIERCE_E_FORMAT : rc;
}

/* Creates links and threads. On failure, close_links ends those that were created. */
static int start(struct links *links, uint32_t count)
{
    TIERCE_DASSERT(links->holders == 1 && links->worker_count == 0);
    int rc = pthread_create(&links->clock_thread, NULL, watch_deadlines, links);
    if (rc != 0) {
        tierce__lock_take(&links->lock);
        let_go(links);
        return -rc;
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct worker *worker = &links->workers[i];
        TIERCE_DASSERT(links->worker_count == i);
        worker->owner = links;
        worker->takes_stores = i > 0;
        rc = open_link(links, &worker->link);
        if (rc != 0)
            break;
        tierce__cond_init(&worker->wake);
        tierce__lock_take(&links->lock);
        rc = -pthread_create(&worker->thread, NULL, work, worker);
        links->worker_count += rc == 0;
        links->running += rc == 0;
        links->holders += rc == 0;
        tierce__lock_drop(&links->lock);
        if (rc != 0) {
            tierce__cond_fini(&worker->wake);
            links->client.table.link_close(worker->link);
        }
    }
    if (rc != 0)
        close_links(&links->base, TIERCE__DEADLINE_NEVER);
    return rc;
}

int tierce__links_create(struct tierce__connector **out, const struct tierce__links_opts *opts)
{
    TIERCE_ASSERT(opts->links >= LINKS_MIN && opts->links <= TIERCE__LINKS_MAX);
    struct links *links = tierce__calloc(1, sizeof(*links));
    struct worker *workers = tierce__calloc(opts->links, sizeof(*workers));
    if (links == NULL || workers == NULL) {
        tierce__free(links);
        tierce__free(workers);
        end_store(opts->client, opts->store);
        return -ENOMEM;
    }
    links->magic = LINKS_MAGIC;
    links->ops = (struct tierce__connector_ops){.scheme = opts->client->scheme,
                                                .submit = submit,
                                                .why = get_why,
                                                .stats = get_stats,
                                                .close = close_links};
    links->base = (struct tierce__connector){.ops = &links->ops, .caps = opts->client->table.caps};
    links->client = *opts->client;
    links->store = opts->store;
    links->workers = workers;
    links->waiting_max = opts->waiting_max > 0 ? opts->waiting_max : WAITING_MAX;
    links->holders = 1;
    links->clock_ns = TIERCE__DEADLINE_NEVER;
    snprintf(links->store_name, sizeof(links->store_name), "%s", opts->store_name);
    tierce__lock_init(&links->lock, TIERCE__LOCK_CONNECTOR);
    tierce__cond_init(&links->clock);
    tierce__cond_init(&links->ended);
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        tierce__list_init(&links->waiting[i]);
    int rc = start(links, opts->links);
    if (rc == 0)
        *out = &links->base;
    return rc;
}

int tierce__links_open(struct tierce__connector **out, const struct tierce__client *client,
                       const struct tierce__connector_source *source,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const struct tierce__url_number connections = {"connections", TIERCE__URL_COUNT,
                                                          LINKS_MIN, TIERCE__LINKS_MAX};
    struct tierce__client own = *client;
    uint64_t links = client->links;
    int rc = tierce__url_param_number(source->url, &links, &connections, why);
    if (rc != 0)
        return rc;
    void *store = client->store_bytes > 0 ? tierce__calloc(1, client->store_bytes) : NULL;
    if (client->store_bytes > 0 && store == NULL)
        return -ENOMEM;
    own.links = (uint32_t)links;
    rc = client->open(&store, &own, source, why);
    if (rc != 0) {
        if (client->store_bytes > 0)
            client->table.close(store);
        return rc;
    }
    return tierce__links_create(
        out,
        &(struct tierce__links_opts){
            .client = &own, .store = store, .links = own.links, .store_name = source->store_name});
}
