/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/remote_private.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

/*
 * Deletes one chunk, after puts of it that are on their way. A deletion that has to wait for puts
 * may outlive its request, which the clock answers at its deadline. In a store that keeps what it
 * has, the chunk is hidden, and the store is asked whether it has it.
 */

struct remote_deletion {
    struct tierce__store_req call;
    struct tierce__remote *remote;
    struct tierce__key key;
    struct tierce__remote_name name;
    struct tierce__remote_waiter waiter; /* for puts of the key that are on their way */
};

/* The store is to read a wrong chunk from elsewhere. */
static bool rejects(const struct remote_deletion *deletion)
{
    bool is_wrong = deletion->call.left == TIERCE__LEFT_CHECKSUM ||
                    deletion->call.left == TIERCE__LEFT_IDENTITY;
    return is_wrong && (deletion->remote->connector->caps & TIERCE__CONNECTOR_REJECTS) != 0;
}

static bool keeps(const struct remote_deletion *deletion)
{
    const struct tierce__remote *remote = deletion->remote;
    return !rejects(deletion) && (remote->read_only || tierce__remote_keeps(remote));
}

/* The store does not have the chunk any more; or knows now from where not to read it, and is to be
 * asked again. Under the lock. */
static void learn(const struct remote_deletion *deletion, int status)
{
    struct tierce__remote *remote = deletion->remote;
    if (!rejects(deletion)) {
        tierce__remote_learn(remote, &deletion->key, false, TIERCE__REMOTE_NOW);
    } else if (status == 0) { /* else it stays hidden */
        tierce__remote_show(remote, &deletion->key);
        tierce__remote_unlearn(remote, &deletion->key);
    }
}

static void hide(struct tierce__remote *remote, const struct tierce__key *key)
{
    tierce__lock_take(&remote->lock);
    tierce__remote_hide(remote, key, TIERCE__REMOTE_REPLACEABLE);
    tierce__lock_drop(&remote->lock);
}

static void has_deleted(struct tierce__store_req *call)
{
    struct remote_deletion *deletion = call->arg;
    TIERCE_DASSERT(call == &deletion->call);
    struct tierce__remote *remote = deletion->remote;
    int status = tierce__remote_status(call);
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(!tierce__list_empty(&deletion->waiter.active));
    TIERCE_DASSERT(tierce__list_empty(&deletion->waiter.node) && deletion->waiter.left == 0);
    /* A lookup that overtook the deletion may have found the chunk. */
    learn(deletion, status);
    struct tierce__store_req *req = deletion->waiter.req;
    deletion->waiter.req = NULL;
    tierce__list_remove(&deletion->waiter.timed);
    tierce__lock_drop(&remote->lock);
    tierce__remote_end_deletion(remote, &deletion->waiter);
    if (req != NULL)
        req->found = keeps(deletion) && status == 0 ? call->found : 0;
    if (keeps(deletion) && status == 0 && call->found == 0)
        status = TIERCE_E_MISS;
    tierce__free(deletion);
    if (req != NULL)
        tierce__remote_answer(remote, req, status);
    else
        tierce__remote_leave(remote);
}

static void delete_now(struct tierce__remote_event *event)
{
    struct tierce__remote_waiter *waiter =
        TIERCE__CONTAINER_OF(event, struct tierce__remote_waiter, over);
    struct remote_deletion *deletion = TIERCE__CONTAINER_OF(waiter, struct remote_deletion, waiter);
    TIERCE_DASSERT(waiter->key == &deletion->key);
    struct tierce__remote *remote = deletion->remote;
    TIERCE_DASSERT(waiter->left == 0);
    if (keeps(deletion)) {
        hide(remote, &deletion->key);
        deletion->call.op = TIERCE__STORE_LOOKUP;
    }
    uint64_t deadline_ns = tierce__deadline_in_ms(remote->write_timeout_ms);
    if (waiter->has_waited && deletion->call.deadline_ns < deadline_ns)
        deletion->call.deadline_ns = deadline_ns;
    tierce__remote_call(remote, &deletion->call);
}

void tierce__remote_delete(struct tierce__remote *remote, struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->op == TIERCE__STORE_DELETE);
    req->found = 0;
    struct remote_deletion *deletion = tierce__calloc(1, sizeof(*deletion));
    if (deletion == NULL || !tierce__remote_name(remote, &deletion->name, &req->keys[0])) {
        int error = deletion == NULL ? -ENOMEM : TIERCE_E_MISS;
        tierce__free(deletion);
        tierce__remote_answer(remote, req, error);
        return;
    }
    deletion->remote = remote;
    deletion->key = req->keys[0];
    deletion->call = (struct tierce__store_req){.op = TIERCE__STORE_DELETE,
                                                .urgency = TIERCE__CONNECTOR_STORE,
                                                .deadline_ns = req->deadline_ns,
                                                .done = has_deleted,
                                                .arg = deletion,
                                                .left = req->left,
                                                .names = &deletion->name.name,
                                                .name_count = 1};
    tierce__remote_waiter_init(&deletion->waiter, remote, req->deadline_ns);
    deletion->waiter.key = &deletion->key;
    deletion->waiter.req = req;
    deletion->waiter.over.run = delete_now;
    tierce__lock_take(&remote->lock);
    tierce__remote_learn(remote, &deletion->key, false, TIERCE__REMOTE_NOW);
    if (rejects(deletion)) /* until the store has answered */
        tierce__remote_hide(remote, &deletion->key, TIERCE__REMOTE_REPLACEABLE);
    tierce__lock_drop(&remote->lock);
    tierce__remote_take_back(remote, &deletion->waiter);
}

/* ---- the clock ------------------------------------------------------------------------------- */

/* A waiter whose deadline is not after `now`, or NULL and when the next one is due. Under the
 * lock. */
static struct tierce__remote_waiter *find_late(struct tierce__remote *remote, uint64_t now_ns,
                                               uint64_t *next_ns)
{
    tierce__lock_assert_held(&remote->lock);
    *next_ns = TIERCE__DEADLINE_NEVER;
    TIERCE__LIST_FOR_EACH (it, &remote->timed) {
        struct tierce__remote_waiter *waiter =
            TIERCE__CONTAINER_OF(it, struct tierce__remote_waiter, timed);
        if (waiter->deadline_ns <= now_ns)
            return waiter;
        if (waiter->deadline_ns < *next_ns)
            *next_ns = waiter->deadline_ns;
    }
    return NULL;
}

/* Under the lock, which is dropped. */
static void end_late(struct tierce__remote *remote, struct tierce__remote_waiter *waiter)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(waiter->has_waited && (waiter->key != NULL || waiter->left > 0));
    struct tierce__store_req *req = waiter->req;
    tierce__list_remove(&waiter->timed);
    waiter->req = NULL;
    if (waiter->key == NULL) {
        tierce__list_remove(&waiter->node);
        tierce__remote_push(remote, &waiter->over);
        tierce__remote_run(remote);
        return;
    }
    tierce__lock_drop(&remote->lock);
    req->status = TIERCE_E_DEADLINE;
    req->done(req);
}

static void *watch_deadlines(void *arg)
{
    struct tierce__remote *remote = arg;
    tierce__lock_take(&remote->lock);
    while (!remote->clock_ends) {
        uint64_t next_ns;
        struct tierce__remote_waiter *late = find_late(remote, tierce__now_ns(), &next_ns);
        if (late == NULL) {
            tierce__cond_wait(&remote->clock_wake, &remote->lock, next_ns);
            continue;
        }
        end_late(remote, late);
        tierce__lock_take(&remote->lock);
    }
    tierce__lock_drop(&remote->lock);
    return NULL;
}

int tierce__remote_clock_start(struct tierce__remote *remote)
{
    return -pthread_create(&remote->clock, NULL, watch_deadlines, remote);
}

void tierce__remote_clock_end(struct tierce__remote *remote)
{
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(remote->closing);
    TIERCE_DASSERT(!remote->clock_ends);
    remote->clock_ends = true;
    tierce__cond_signal(&remote->clock_wake);
    tierce__lock_drop(&remote->lock);
    pthread_join(remote->clock, NULL);
}
