/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote_private.h"

#include <errno.h>

#include "base/alloc.h"

/* Deletes one chunk, after puts of it that are on their way. */

struct deletion {
    struct tierce__connector_req call;
    struct tierce__remote *remote;
    struct tierce__tier_req *req;
    struct tierce__remote_name name;
    struct tierce__remote_waiter waiter; /* for puts of the key that are on their way */
};

static void hide(struct tierce__remote *remote, const struct tierce__key *key)
{
    tierce__lock_take(&remote->lock);
    tierce__remote_hide(remote, key, TIERCE__REMOTE_REPLACEABLE);
    tierce__lock_drop(&remote->lock);
}

static void has_deleted(struct tierce__connector_req *call)
{
    struct deletion *deletion = call->arg;
    struct tierce__remote *remote = deletion->remote;
    struct tierce__tier_req *req = deletion->req;
    int status = tierce__remote_status(call);
    /* A lookup that overtook the deletion may have found the chunk. */
    tierce__lock_take(&remote->lock);
    tierce__remote_learn(remote, &req->keys[0], false, TIERCE__REMOTE_NOW);
    tierce__lock_drop(&remote->lock);
    tierce__remote_end_deletion(remote, &deletion->waiter);
    tierce__free(deletion);
    tierce__remote_answer(remote, req, status);
}

static void delete_now(struct tierce__remote_event *event)
{
    struct tierce__remote_waiter *waiter =
        TIERCE__CONTAINER_OF(event, struct tierce__remote_waiter, over);
    struct deletion *deletion = TIERCE__CONTAINER_OF(waiter, struct deletion, waiter);
    struct tierce__remote *remote = deletion->remote;
    if (!tierce__remote_keeps(remote)) {
        tierce__remote_call(remote, &deletion->call);
        return;
    }
    hide(remote, waiter->key);
    has_deleted(&deletion->call); /* its status is still 0 */
}

void tierce__remote_delete(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    if (remote->read_only) {
        hide(remote, &req->keys[0]);
        tierce__remote_answer(remote, req, 0);
        return;
    }
    struct deletion *deletion = tierce__calloc(1, sizeof(*deletion));
    if (deletion == NULL || !tierce__remote_name(remote, &deletion->name, &req->keys[0])) {
        int error = deletion == NULL ? -ENOMEM : TIERCE_E_MISS;
        tierce__free(deletion);
        tierce__remote_answer(remote, req, error);
        return;
    }
    deletion->remote = remote;
    deletion->req = req;
    deletion->call = (struct tierce__connector_req){.op = TIERCE__CONNECTOR_DELETE,
                                                    .urgency = TIERCE__CONNECTOR_STORE,
                                                    .deadline_ns = req->deadline_ns,
                                                    .done = has_deleted,
                                                    .arg = deletion,
                                                    .names = &deletion->name.name,
                                                    .name_count = 1};
    deletion->waiter = (struct tierce__remote_waiter){
        .remote = remote, .key = &req->keys[0], .over = {.run = delete_now}};
    tierce__lock_take(&remote->lock);
    tierce__remote_learn(remote, &req->keys[0], false, TIERCE__REMOTE_NOW);
    tierce__lock_drop(&remote->lock);
    tierce__remote_take_back(remote, &deletion->waiter);
}
