/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/remote_private.h"

#include <errno.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"

/*
 * A put:
 *
 *     WAITING -> CHECK -> PARENT -> SEND -> AWAIT -> over
 *        |         |        |         \------|-> UNDO -> over
 *        \---------\--------\-----------------------------> over
 *
 * CHECK asks whether the store has the chunk (not if it is to be replaced, or if the connector's
 * PUT asks by itself), PARENT whether it has the preceding chunk. SEND sends the chunk, AWAIT waits
 * for a parent that is being sent. UNDO deletes a chunk that must not be stored; a store that
 * cannot delete keeps it, hidden. An event takes it further: from BEGUN, from RESUMED after AWAIT,
 * or as the answer of a call. Each is pushed once. Everything of a put but its calls is under the
 * lock.
 *
 * A put lies in the scratch of its request, and that request itself makes the calls, one after the
 * other, so a put allocates nothing. The calls change fields of the request. Before the request is
 * answered, these are restored, except `urgency` and `connected`, which only reads use.
 */

enum phase { WAITING, BEGUN, CHECK, PARENT, SEND, AWAIT, RESUMED, UNDO };

struct tierce__remote_put {
    struct tierce__remote_event event; /* it may go on */
    struct tierce__list node;          /* among those that wait, or have been begun */
    struct tierce__remote *remote;
    struct tierce__store_req *req;
    tierce__store_done_fn *done; /* the caller's, as the deadline */
    uint64_t deadline_ns;
    uint64_t number;
    struct tierce__remote_put *parent; /* that is not over, or NULL */
    bool has_parent;                   /* it had one when it came */
    bool checks_parent;                /* it must not be there without it */
    bool doomed; /* must not be there: its parent is not, or it is forgotten */
    bool spared; /* of a newcomer's prompt, for make_room */
    int verdict; /* the answer of a put that is doomed */
    enum phase phase;
    bool called;                     /* it is one of remote->writes */
    bool is_sent;                    /* the store has accepted it; else it had it already */
    struct tierce__remote_name name; /* of the call: the chunk's or its parent's */
};
_Static_assert(sizeof(struct tierce__remote_put) <=
                   sizeof(((struct tierce__store_req *)0)->scratch),
               "it fits the scratch of a request");

static struct tierce__remote_put *put_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__remote_put, node);
}

static struct tierce__remote_put *put_in(struct tierce__store_req *req)
{
    return (struct tierce__remote_put *)(void *)req->scratch;
}

/* ---- the end of a put ------------------------------------------------------------------------ */

/* Answers puts that have been taken out of the lists. No lock held. */
static void answer_all(struct tierce__list *over)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while (!tierce__list_empty(over)) {
        struct tierce__remote_put *put = put_of(over->next);
        struct tierce__remote *remote = put->remote;
        struct tierce__store_req *req = put->req;
        int verdict = put->verdict;
        TIERCE_DASSERT(verdict <= 0 && !put->called && tierce__list_empty(&put->event.node));
        tierce__list_remove(&put->node);
        tierce__buf_release(req->buf);
        req->op = TIERCE__STORE_PUT;
        req->done = put->done;
        req->deadline_ns = put->deadline_ns;
        req->found = 0;
        req->coded_bytes = 0;
        req->names = NULL;
        req->name_count = 0;
        req->length = 0;
        tierce__remote_answer(remote, req, verdict);
    }
}

static bool concerns(const struct tierce__remote_waiter *waiter,
                     const struct tierce__remote_put *put)
{
    const struct tierce__key *key = &put->req->keys[0];
    return put->number < waiter->number &&
           (waiter->key != NULL ? tierce__key_equal(waiter->key, key)
                                : waiter->ns_of == NULL || waiter->ns_of->ns == key->ns);
}

static void doom(struct tierce__remote_put *put, int verdict)
{
    TIERCE_DASSERT(verdict < 0);
    if (put->doomed)
        return;
    put->doomed = true;
    put->verdict = verdict;
}

/* Under the lock. */
static void resume(struct tierce__remote_put *put)
{
    tierce__lock_assert_held(&put->remote->lock);
    if (put->phase != AWAIT)
        return;
    TIERCE_DASSERT(!put->called);
    put->phase = RESUMED;
    tierce__remote_push(put->remote, &put->event);
}

/* Whether a chunk was not stored for a reason that its children have too. */
static bool is_for_all(int verdict)
{
    return verdict == TIERCE_E_FULL || verdict == -ENOSPC || verdict == TIERCE_E_NO_KEY;
}

/* Resumes the children of a finished put. If it was not stored, children that still wait are moved
 * to `ends`. */
static void tell_children(struct tierce__remote *remote, const struct tierce__remote_put *put,
                          struct tierce__list *ends)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(put->verdict <= 0);
    struct tierce__list *lists[] = {&remote->waiting, &remote->writing};
    for (size_t i = 0; i < 2; i++) {
        TIERCE__LIST_FOR_EACH_SAFE (it, after, lists[i]) {
            struct tierce__remote_put *child = put_of(it);
            if (child->parent != put)
                continue;
            TIERCE_DASSERT(child->number > put->number);
            child->parent = NULL;
            if (put->verdict < 0)
                doom(child, is_for_all(put->verdict) ? put->verdict : TIERCE_E_REFUSED);
            resume(child);
            if (child->phase == WAITING && child->doomed) {
                tierce__list_remove(&child->node);
                tierce__list_push_back(ends, &child->node);
                remote->stats.dropped_puts += child->verdict == TIERCE_E_FULL;
            }
        }
    }
}

static void tell_waiters(struct tierce__remote *remote, const struct tierce__remote_put *put)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &remote->clears) {
        struct tierce__remote_waiter *waiter =
            TIERCE__CONTAINER_OF(it, struct tierce__remote_waiter, node);
        TIERCE_DASSERT(waiter->left > 0);
        if (concerns(waiter, put) && --waiter->left == 0) {
            tierce__list_remove(it);
            if (waiter->key == NULL)
                tierce__list_remove(&waiter->timed);
            tierce__remote_push(remote, &waiter->over);
        }
    }
}

/*
 * Moves a put from its list to `over`, with those successors that have not been started: a chunk
 * must not be stored without its prefix. Under the lock.
 */
static void end_put(struct tierce__remote *remote, struct tierce__remote_put *first, int verdict,
                    struct tierce__list *over)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(verdict <= 0);
    struct tierce__list ends;
    tierce__list_init(&ends);
    first->verdict = verdict;
    tierce__list_remove(&first->node);
    tierce__list_push_back(&ends, &first->node);
    while (!tierce__list_empty(&ends)) {
        struct tierce__remote_put *put = put_of(ends.next);
        bool waited = put->phase == WAITING;
        TIERCE_DASSERT(put->phase != AWAIT && put->req->object_bytes > 0);
        tierce__list_remove(&put->node);
        tierce__list_push_back(over, &put->node);
        TIERCE_DASSERT((waited ? remote->waiting_bytes : remote->writing_bytes) >=
                       put->req->object_bytes);
        *(waited ? &remote->waiting_bytes : &remote->writing_bytes) -= put->req->object_bytes;
        if (put->verdict == 0) {
            tierce__remote_show(remote, &put->req->keys[0]);
            tierce__remote_learn(remote, &put->req->keys[0], true, TIERCE__REMOTE_NOW);
        }
        tell_children(remote, put, &ends);
        if (!waited)
            tell_waiters(remote, put);
    }
}

/* Whether the key has an earlier put or deletion in progress: the store would not order the two.
 * Under the lock. */
static bool comes_after_another(const struct tierce__remote *remote,
                                const struct tierce__remote_put *put)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(put->phase == WAITING);
    const struct tierce__key *key = &put->req->keys[0];
    TIERCE__LIST_FOR_EACH (it, &remote->writing) {
        if (tierce__key_equal(&put_of(it)->req->keys[0], key))
            return true;
    }
    TIERCE__LIST_FOR_EACH (it, &remote->deletions) {
        const struct tierce__remote_waiter *waiter =
            TIERCE__CONTAINER_OF(it, struct tierce__remote_waiter, active);
        if (waiter->number < put->number && tierce__key_equal(waiter->key, key))
            return true;
    }
    return false;
}

static void begin_put(struct tierce__remote *remote, struct tierce__remote_put *put)
{
    TIERCE_DASSERT(!put->called && !put->doomed);
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(put->phase == WAITING && remote->writes < remote->writes_max);
    TIERCE_DASSERT(remote->waiting_bytes >= put->req->object_bytes);
    tierce__list_remove(&put->node);
    tierce__list_push_back(&remote->writing, &put->node);
    remote->waiting_bytes -= put->req->object_bytes;
    remote->writing_bytes += put->req->object_bytes;
    remote->writes++;
    put->called = true;
    put->phase = BEGUN;
    tierce__remote_push(remote, &put->event);
}

/* Begins all puts that may begin, the oldest first. Under the lock. */
static void begin_puts(struct tierce__remote *remote)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &remote->waiting) {
        if (remote->writes >= remote->writes_max)
            break;
        if (!comes_after_another(remote, put_of(it)))
            begin_put(remote, put_of(it));
    }
}

void tierce__remote_end_deletion(struct tierce__remote *remote,
                                 struct tierce__remote_waiter *waiter)
{
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(!tierce__list_empty(&waiter->active));
    tierce__list_remove(&waiter->active);
    begin_puts(remote);
    tierce__remote_run(remote);
}

/* Its calls are over, so another may begin. Under the lock. */
static void leave_calls(struct tierce__remote_put *put)
{
    tierce__lock_assert_held(&put->remote->lock);
    TIERCE_DASSERT(!put->called || put->remote->writes > 0);
    put->remote->writes -= put->called;
    put->called = false;
    begin_puts(put->remote);
}

/* Under the lock, which is dropped. */
static void finish_locked(struct tierce__remote_put *put, int verdict)
{
    TIERCE_DASSERT(verdict < 0 || !put->doomed);
    tierce__lock_assert_held(&put->remote->lock);
    TIERCE_DASSERT(put->phase != WAITING && put->phase != AWAIT);
    struct tierce__remote *remote = put->remote;
    struct tierce__list over;
    tierce__list_init(&over);
    if (verdict == 0 && !put->is_sent) {
        remote->stats.had_chunks++;
    } else if (verdict == 0) {
        remote->stats.put_chunks++;
        remote->stats.put_bytes += tierce__store_put_bytes(put->req);
    } else if (verdict != TIERCE_E_REFUSED && verdict != TIERCE_E_CANCELLED &&
               verdict != TIERCE_E_FULL && verdict != TIERCE_E_NO_KEY) {
        remote->stats.errors++;
    }
    end_put(remote, put, verdict, &over);
    leave_calls(put);
    tierce__lock_drop(&remote->lock);
    answer_all(&over); /* this thread runs events, so `remote` stays */
}

static void finish(struct tierce__remote_put *put, int verdict)
{
    tierce__lock_take(&put->remote->lock);
    finish_locked(put, put->doomed ? put->verdict : verdict);
}

/* ---- the steps ------------------------------------------------------------------------------- */

static void called_back(struct tierce__store_req *req)
{
    struct tierce__remote_put *put = put_in(req);
    TIERCE_DASSERT(put->req == req && put->phase >= CHECK && put->phase != AWAIT);
    req->object_bytes = req->length; /* a lookup has told the length of a stored object */
    tierce__remote_note(put->remote, &put->event);
}

static void call(struct tierce__remote_put *put, enum phase phase, enum tierce__store_op op)
{
    struct tierce__remote *remote = put->remote;
    struct tierce__store_req *req = put->req;
    TIERCE_DASSERT(phase == CHECK || phase == PARENT || phase == SEND || phase == UNDO);
    tierce__lock_take(&remote->lock);
    put->phase = phase;
    TIERCE_DASSERT(put->called || phase == UNDO);
    tierce__lock_drop(&remote->lock);
    req->op = op;
    req->urgency = TIERCE__CONNECTOR_STORE;
    req->deadline_ns = tierce__deadline_in_ms(remote->write_timeout_ms);
    if (phase != UNDO && req->deadline_ns > put->deadline_ns)
        req->deadline_ns = put->deadline_ns;
    req->length = req->object_bytes;
    req->found = 0;
    req->repeats = false;
    bool named =
        tierce__remote_name(remote, &put->name, phase == PARENT ? req->parent : &req->keys[0]);
    TIERCE_ASSERT(named); /* as when it came */
    tierce__remote_call(remote, req);
}

static bool must_ask_for_parent(struct tierce__remote_put *put)
{
    struct tierce__remote *remote = put->remote;
    tierce__lock_take(&remote->lock);
    bool asks = put->checks_parent && !put->has_parent &&
                tierce__remote_recall(remote, put->req->parent, false) != TIERCE__REMOTE_THERE;
    tierce__lock_drop(&remote->lock);
    return asks;
}

static bool is_doomed(struct tierce__remote_put *put)
{
    tierce__lock_take(&put->remote->lock);
    bool doomed = put->doomed;
    tierce__lock_drop(&put->remote->lock);
    return doomed;
}

/* The store has the chunk. Its parent may still fail, and a clear or deletion may have removed it
 * meanwhile. */
static void settle(struct tierce__remote_put *put)
{
    struct tierce__remote *remote = put->remote;
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(put->phase == SEND || put->phase == RESUMED);
    if (put->doomed && tierce__remote_keeps(remote)) {
        tierce__remote_hide(remote, &put->req->keys[0], TIERCE__REMOTE_REPLACEABLE);
        finish_locked(put, put->verdict);
    } else if (put->doomed) {
        tierce__lock_drop(&remote->lock);
        call(put, UNDO, TIERCE__STORE_DELETE);
    } else if (put->parent != NULL) {
        put->phase = AWAIT;
        leave_calls(put);
        tierce__lock_drop(&remote->lock);
    } else {
        finish_locked(put, 0);
    }
}

static void ask_for_parent_or_send(struct tierce__remote_put *put)
{
    if (must_ask_for_parent(put))
        call(put, PARENT, TIERCE__STORE_LOOKUP);
    else
        call(put, SEND, TIERCE__STORE_PUT);
}

static bool asks_itself(const struct tierce__remote *remote)
{
    return (remote->connector->caps & TIERCE__CONNECTOR_ASKS) != 0;
}

/* Whether the store has a chunk that must be replaced and has kept it: its put replaces nothing.
 * Rejected, because lookups still do not find the chunk. */
static bool keeps_locked(struct tierce__remote_put *put)
{
    struct tierce__remote *remote = put->remote;
    tierce__lock_take(&remote->lock);
    bool locked = tierce__remote_hiding(remote, &put->req->keys[0]) == TIERCE__REMOTE_LOCKED;
    tierce__lock_drop(&remote->lock);
    return locked;
}

/* A hidden chunk exists in the store and must be replaced, so it is not looked up first. */
static void begin(struct tierce__remote_put *put)
{
    struct tierce__remote *remote = put->remote;
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(put->phase == BEGUN);
    enum tierce__remote_hiding how = tierce__remote_hiding(remote, &put->req->keys[0]);
    bool can_replace = (remote->connector->caps & TIERCE__CONNECTOR_NO_REPLACE) == 0;
    bool replaces =
        how == TIERCE__REMOTE_REPLACEABLE || (how == TIERCE__REMOTE_LOCKED && can_replace);
    tierce__lock_drop(&remote->lock);
    if (replaces || asks_itself(remote))
        ask_for_parent_or_send(put);
    else
        call(put, CHECK, TIERCE__STORE_LOOKUP);
}

/* Logs that the store permits only reads, and that it permits writes again. */
static void note_permission(struct tierce__remote *remote, int status)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    bool rejects = status == TIERCE_E_REFUSED;
    if (status != 0 && !rejects)
        return;
    tierce__lock_take(&remote->lock);
    bool changed = remote->rejects != rejects;
    remote->rejects = rejects;
    tierce__lock_drop(&remote->lock);
    if (!changed)
        return;
    remote->connector->ops->why(remote->connector, why);
    if (rejects)
        tierce__log(TIERCE_LOG_ERROR, "remote_rejects_writes",
                    "tier=%s why=\"%s\" hint=\"its chunks are still read; permit writes, or add "
                    "read_only=true to its URL\"",
                    remote->name, why);
    else
        tierce__log(TIERCE_LOG_WARN, "remote_accepts_writes", "tier=%s", remote->name);
}

static void run_put(struct tierce__remote_event *event)
{
    struct tierce__remote_put *put = TIERCE__CONTAINER_OF(event, struct tierce__remote_put, event);
    int status = tierce__remote_status(put->req);
    switch (put->phase) {
    case BEGUN:
        begin(put);
        break;
    case CHECK:
        if (status < 0 || put->req->found == 1 || is_doomed(put))
            finish(put, status == 0 && keeps_locked(put) ? TIERCE_E_REFUSED : status);
        else
            ask_for_parent_or_send(put);
        break;
    case PARENT:
        if (status < 0 || put->req->found == 0 || is_doomed(put))
            finish(put, status < 0 ? status : TIERCE_E_REFUSED);
        else
            call(put, SEND, TIERCE__STORE_PUT);
        break;
    case SEND: /* it may have come also where sending it seems to have failed */
        note_permission(put->remote, put->req->status);
        put->is_sent = !asks_itself(put->remote) || put->req->found == 0;
        if (status == 0 && !put->is_sent)
            finish(put,
                   keeps_locked(put) ? TIERCE_E_REFUSED : 0); /* as after CHECK: it is not undone */
        else if (status == 0 || is_doomed(put))
            settle(put);
        else
            finish(put, status);
        break;
    case RESUMED:
        settle(put);
        break;
    case UNDO:
        finish(put, put->verdict);
        break;
    case WAITING:
    case AWAIT:
        TIERCE_ASSERT(false);
    }
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* The put of a chunk that is not over. Under the lock. */
static struct tierce__remote_put *pending(struct tierce__remote *remote,
                                          const struct tierce__key *key)
{
    tierce__lock_assert_held(&remote->lock);
    struct tierce__list *lists[] = {&remote->waiting, &remote->writing};
    for (size_t i = 0; i < 2; i++) {
        TIERCE__LIST_FOR_EACH (it, lists[i]) {
            struct tierce__remote_put *put = put_of(it);
            if (tierce__key_equal(&put->req->keys[0], key) && !put->doomed)
                return put;
        }
    }
    return NULL;
}

/* One put alone always does. */
static bool fits(const struct tierce__remote *remote, uint64_t bytes)
{
    tierce__lock_assert_held(&remote->lock);
    return remote->waiting_bytes == 0 || remote->waiting_bytes + bytes <= remote->queue_bytes_max;
}

/*
 * Drops the oldest waiting puts, with their successors, until `newcomer` fits; but not its
 * predecessors, without which it would be useless. False: it does not fit. Under the lock.
 */
static bool make_room(struct tierce__remote *remote, struct tierce__remote_put *newcomer,
                      struct tierce__list *over)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(newcomer->phase == WAITING);
    uint64_t bytes = newcomer->req->object_bytes;
    if (fits(remote, bytes))
        return true;
    TIERCE__LIST_FOR_EACH (it, &remote->waiting)
        put_of(it)->spared = false;
    for (struct tierce__remote_put *put = newcomer->parent; put != NULL; put = put->parent)
        put->spared = true;
    struct tierce__list *it = remote->waiting.next;
    while (it != &remote->waiting && !fits(remote, bytes)) {
        struct tierce__remote_put *put = put_of(it);
        TIERCE_DASSERT(put != newcomer && put->phase == WAITING);
        it = it->next;
        if (put->spared)
            continue;
        remote->stats.dropped_puts++;
        end_put(remote, put, TIERCE_E_FULL, over);
        it = remote->waiting.next; /* its successors were removed too */
    }
    return fits(remote, bytes);
}

static bool put_is_sane(const struct tierce__remote *remote, const struct tierce__store_req *req)
{
    struct tierce__remote_name name;
    return req->buf != NULL && req->object_bytes > 0 && req->object_bytes <= req->buf->bytes &&
           req->object_bytes % 4096 == 0 && tierce__remote_name(remote, &name, &req->keys[0]) &&
           (req->parent == NULL || tierce__remote_name(remote, &name, req->parent));
}

/* Errors: TIERCE_E_ARGUMENT, TIERCE_E_REFUSED. */
static int make_put(struct tierce__remote *remote, struct tierce__store_req *req)
{
    struct tierce__remote_put *put = put_in(req);
    if (!put_is_sane(remote, req))
        return TIERCE_E_ARGUMENT;
    if (remote->read_only)
        return TIERCE_E_REFUSED;
    *put = (struct tierce__remote_put){.remote = remote,
                                       .req = req,
                                       .done = req->done,
                                       .deadline_ns = req->deadline_ns,
                                       .event.run = run_put,
                                       .checks_parent = req->needs_parent && req->parent != NULL};
    tierce__list_init(&put->node);
    tierce__list_init(&put->event.node);
    req->done = called_back;
    req->names = &put->name.name;
    req->name_count = 1;
    return 0;
}

void tierce__remote_put(struct tierce__remote *remote, struct tierce__store_req *req)
{
    struct tierce__remote_put *put = put_in(req);
    int error = make_put(remote, req);
    if (error < 0) {
        tierce__remote_answer(remote, req, error);
        return;
    }
    struct tierce__list over;
    tierce__list_init(&over);
    tierce__buf_acquire(req->buf);
    tierce__lock_take(&remote->lock);
    put->number = ++remote->puts_made;
    put->parent = put->checks_parent ? pending(remote, req->parent) : NULL;
    put->has_parent = put->parent != NULL;
    TIERCE_DASSERT(put->parent == NULL || put->parent->number < put->number);
    put->verdict = TIERCE_E_REFUSED;
    if (tierce__remote_hiding(remote, &req->keys[0]) == TIERCE__REMOTE_LEFT_ALONE) {
        tierce__list_push_back(&over, &put->node);
    } else if (!make_room(remote, put, &over)) {
        remote->stats.dropped_puts++;
        put->verdict = TIERCE_E_FULL;
        tierce__list_push_back(&over, &put->node);
    } else {
        tierce__list_push_back(&remote->waiting, &put->node);
        remote->waiting_bytes += req->object_bytes;
        begin_puts(remote);
    }
    tierce__remote_run(remote);
    answer_all(&over);
}

void tierce__remote_waiter_init(struct tierce__remote_waiter *waiter, struct tierce__remote *remote,
                                uint64_t deadline_ns)
{
    *waiter = (struct tierce__remote_waiter){.remote = remote, .deadline_ns = deadline_ns};
    tierce__list_init(&waiter->node);
    tierce__list_init(&waiter->active);
    tierce__list_init(&waiter->timed);
    tierce__list_init(&waiter->over.node);
}

void tierce__remote_take_back(struct tierce__remote *remote, struct tierce__remote_waiter *waiter)
{
    struct tierce__list over;
    tierce__list_init(&over);
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(waiter->left == 0 && tierce__list_empty(&waiter->node));
    waiter->number = ++remote->puts_made;
    waiter->left = 0;
    if (waiter->key != NULL)
        tierce__list_push_back(&remote->deletions, &waiter->active);
    TIERCE__LIST_FOR_EACH (it, &remote->writing) {
        struct tierce__remote_put *put = put_of(it);
        if (!concerns(waiter, put))
            continue;
        doom(put, TIERCE_E_CANCELLED);
        resume(put);
        waiter->left++;
    }
    for (struct tierce__list *it = remote->waiting.next; it != &remote->waiting;) {
        struct tierce__remote_put *put = put_of(it);
        it = it->next;
        if (!concerns(waiter, put))
            continue;
        end_put(remote, put, TIERCE_E_CANCELLED, &over);
        it = remote->waiting.next; /* its successors were removed too */
    }
    waiter->has_waited = waiter->left > 0;
    if (waiter->has_waited) {
        tierce__list_push_back(&remote->clears, &waiter->node);
        tierce__list_push_back(&remote->timed, &waiter->timed);
        tierce__cond_signal(&remote->clock_wake);
    } else {
        tierce__remote_push(remote, &waiter->over);
    }
    tierce__remote_run(remote);
    answer_all(&over);
}

void tierce__remote_cancel_waiting(struct tierce__remote *remote)
{
    struct tierce__list over;
    tierce__list_init(&over);
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(remote->cut);
    while (!tierce__list_empty(&remote->waiting))
        end_put(remote, put_of(remote->waiting.next), TIERCE_E_CANCELLED, &over);
    TIERCE_DASSERT(remote->waiting_bytes == 0);
    tierce__remote_run(remote);
    answer_all(&over);
}
