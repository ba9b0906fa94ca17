/* SPDX-License-Identifier: Apache-2.0 */
#include "node/native/native_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"

/* Views of the engine that clients share. */

/* The others' sessions are not its own: two engines may give the same number to requests. */
static bool share_sessions(const struct tierce__native_shared *a,
                           const struct tierce__native_shared *b)
{
    return a->client == b->client && strcmp(a->engine, b->engine) == 0 &&
           tierce__view_is_same(a->view, b->view);
}

int tierce__native_share(struct tierce__native_client *client,
                         struct tierce__native_held_view *view, const struct tierce_namespace *ns,
                         const struct tierce_shard *shard, const char *engine)
{
    struct tierce__native *native = client->native;
    struct tierce__native_shared *made = tierce__calloc(1, sizeof(*made)), *found = NULL;
    if (made == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(strlen(engine) < sizeof(made->engine));
    memcpy(made->engine, engine, strlen(engine));
    made->client = engine[0] == '\0' && view->part.count == 1 ? client : NULL;
    tierce__list_init(&made->holders);
    int rc = tierce_view_open(&made->view, native->engine, ns, shard);
    if (rc < 0) {
        tierce__free(made);
        return rc;
    }
    tierce__lock_take(&native->lock);
    TIERCE__LIST_FOR_EACH (it, &native->views) {
        struct tierce__native_shared *shared =
            TIERCE__CONTAINER_OF(it, struct tierce__native_shared, node);
        if (share_sessions(shared, made))
            found = shared;
    }
    TIERCE_ASSERT(found == NULL || found->refs > 0);
    if (found == NULL)
        tierce__list_push_back(&native->views, &made->node);
    view->shared = found != NULL ? found : made;
    view->shared->refs++;
    tierce__list_push_back(&view->shared->holders, &view->beside);
    tierce__lock_drop(&native->lock);
    if (found != NULL) {
        tierce_view_close(made->view);
        tierce__free(made);
    }
    return 0;
}

/* Whether a client has a view of this part. Under the lock. */
static bool has_holder(const struct tierce__native_shared *shared, uint32_t part)
{
    TIERCE__LIST_FOR_EACH (it, &shared->holders) {
        const struct tierce__native_held_view *view =
            TIERCE__CONTAINER_OF(it, struct tierce__native_held_view, beside);
        if (view->part.index == part)
            return true;
    }
    return false;
}

/* If no client is left that could store this part, the engine's writes that lack it are aborted.
 * They would hold their chunks until timeout.pin. A client that opens a view of the part at this
 * moment may find a write aborted that it would have joined. */
static size_t leave_shared(struct tierce__native *native, struct tierce__native_held_view *view)
{
    tierce__lock_take(&native->lock);
    TIERCE_ASSERT(view->shared->refs > 0);
    tierce__list_remove(&view->beside);
    bool is_over = !has_holder(view->shared, view->part.index);
    tierce__lock_drop(&native->lock);
    return is_over ? tierce__shared_writes_leave(view->shared->view, view->part.index) : 0;
}

void tierce__native_unshare(struct tierce__native *native, struct tierce__native_held_view *view)
{
    struct tierce__native_shared *shared = view->shared;
    size_t aborted = leave_shared(native, view);
    tierce__lock_take(&native->lock);
    TIERCE_ASSERT(shared->refs > 0);
    bool is_last = --shared->refs == 0;
    if (is_last)
        tierce__list_remove(&shared->node);
    tierce__lock_drop(&native->lock);
    if (is_last) {
        TIERCE_ASSERT(tierce__list_empty(&shared->holders));
        aborted += tierce__shared_writes_leave_all(shared->view);
        tierce_view_close(shared->view);
        tierce__free(shared);
    }
    if (aborted == 0)
        return;
    tierce__node_count(native->node, TIERCE__NODE_native_stores_left, aborted);
    tierce__log(TIERCE_LOG_WARN, "native_part_left", "part=%u of=%u stores=%zu", view->part.index,
                view->part.count, aborted);
}
