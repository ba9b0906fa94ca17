/* SPDX-License-Identifier: Apache-2.0 */
#include "node/grace.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"

#include <errno.h>

struct grace_kept {
    struct tierce__list node;
    struct tierce__object *object;
    uint64_t until_ns;
    uint64_t bytes;
};

struct tierce__grace {
    uint64_t ns, bytes_max;
    struct tierce__lock lock; /* NODE_GRACE */
    struct tierce__list kept; /* in the order of until_ns */
    uint64_t bytes;
};

int tierce__grace_create(struct tierce__grace **out, uint32_t ms, uint64_t bytes_max)
{
    struct tierce__grace *grace = tierce__calloc(1, sizeof(*grace));
    if (grace == NULL)
        return -ENOMEM;
    grace->ns = ms * TIERCE__MS_NS;
    grace->bytes_max = bytes_max;
    tierce__lock_init(&grace->lock, TIERCE__LOCK_NODE_GRACE);
    tierce__list_init(&grace->kept);
    *out = grace;
    return 0;
}

/* Takes the oldest out until `bytes` fit and none is over, for the caller to release. */
static void take_out(struct tierce__grace *grace, struct tierce__list *out, uint64_t bytes,
                     uint64_t now_ns)
{
    tierce__lock_assert_held(&grace->lock);
    while (!tierce__list_empty(&grace->kept)) {
        struct grace_kept *oldest = TIERCE__CONTAINER_OF(grace->kept.next, struct grace_kept, node);
        if (oldest->until_ns > now_ns && grace->bytes + bytes <= grace->bytes_max)
            break;
        TIERCE_ASSERT(grace->bytes >= oldest->bytes);
        grace->bytes -= oldest->bytes;
        tierce__list_remove(&oldest->node);
        tierce__list_push_back(out, &oldest->node);
    }
    TIERCE_ASSERT(!tierce__list_empty(&grace->kept) || grace->bytes == 0);
}

static void release_all(struct tierce__list *list)
{
    while (!tierce__list_empty(list)) {
        struct grace_kept *kept = TIERCE__CONTAINER_OF(list->next, struct grace_kept, node);
        tierce__list_remove(&kept->node);
        tierce__object_release(kept->object);
        tierce__free(kept);
    }
}

void tierce__grace_destroy(struct tierce__grace *grace)
{
    if (grace == NULL)
        return;
    release_all(&grace->kept);
    tierce__lock_fini(&grace->lock);
    tierce__free(grace);
}

void tierce__grace_keep(struct tierce__grace *grace, struct tierce__object *object)
{
    uint64_t bytes = tierce__object_bytes(object), now_ns = tierce__now_ns();
    struct grace_kept *kept =
        grace->ns > 0 && bytes <= grace->bytes_max ? tierce__alloc(sizeof(*kept)) : NULL;
    struct tierce__list gone;
    if (kept == NULL) {
        tierce__object_release(object);
        return;
    }
    *kept = (struct grace_kept){.object = object, .until_ns = now_ns + grace->ns, .bytes = bytes};
    tierce__list_init(&gone);
    tierce__lock_take(&grace->lock);
    take_out(grace, &gone, bytes, now_ns);
    grace->bytes += bytes;
    tierce__list_push_back(&grace->kept, &kept->node);
    TIERCE_ASSERT(grace->bytes <= grace->bytes_max);
    tierce__lock_drop(&grace->lock);
    release_all(&gone);
}

void tierce__grace_expire(struct tierce__grace *grace, uint64_t now_ns)
{
    struct tierce__list gone;
    tierce__list_init(&gone);
    tierce__lock_take(&grace->lock);
    take_out(grace, &gone, 0, now_ns);
    tierce__lock_drop(&grace->lock);
    release_all(&gone);
}

uint64_t tierce__grace_bytes(struct tierce__grace *grace)
{
    tierce__lock_take(&grace->lock);
    uint64_t bytes = grace->bytes;
    TIERCE_ASSERT(bytes <= grace->bytes_max);
    tierce__lock_drop(&grace->lock);
    return bytes;
}
