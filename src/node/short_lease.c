/* SPDX-License-Identifier: Apache-2.0 */
#include "node/short_lease.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"

#include <errno.h>

struct short_lease {
    struct tierce__list node;
    struct tierce__object *object;
    uint64_t until_ns;
    uint64_t bytes;
};

struct tierce__short_leases {
    uint64_t ns, bytes_max;
    struct tierce__lock lock; /* NODE_LEASES */
    struct tierce__list kept; /* in the order of until_ns */
    uint64_t bytes;
};

int tierce__short_leases_create(struct tierce__short_leases **out, uint32_t ms, uint64_t bytes_max)
{
    struct tierce__short_leases *leases = tierce__calloc(1, sizeof(*leases));
    if (leases == NULL)
        return -ENOMEM;
    leases->ns = ms * TIERCE__MS_NS;
    leases->bytes_max = bytes_max;
    tierce__lock_init(&leases->lock, TIERCE__LOCK_NODE_LEASES);
    tierce__list_init(&leases->kept);
    *out = leases;
    return 0;
}

/* Moves the oldest leases to `out`, for the caller to release, until `bytes` fit and none has
 * expired. */
static void take_out(struct tierce__short_leases *leases, struct tierce__list *out, uint64_t bytes,
                     uint64_t now_ns)
{
    tierce__lock_assert_held(&leases->lock);
    while (!tierce__list_empty(&leases->kept)) {
        struct short_lease *oldest =
            TIERCE__CONTAINER_OF(leases->kept.next, struct short_lease, node);
        if (oldest->until_ns > now_ns && leases->bytes + bytes <= leases->bytes_max)
            break;
        TIERCE_ASSERT(leases->bytes >= oldest->bytes);
        leases->bytes -= oldest->bytes;
        tierce__list_remove(&oldest->node);
        tierce__list_push_back(out, &oldest->node);
    }
    TIERCE_ASSERT(!tierce__list_empty(&leases->kept) || leases->bytes == 0);
}

static void release_all(struct tierce__list *list)
{
    while (!tierce__list_empty(list)) {
        struct short_lease *kept = TIERCE__CONTAINER_OF(list->next, struct short_lease, node);
        tierce__list_remove(&kept->node);
        tierce__object_release(kept->object);
        tierce__free(kept);
    }
}

void tierce__short_leases_destroy(struct tierce__short_leases *leases)
{
    if (leases == NULL)
        return;
    release_all(&leases->kept);
    tierce__lock_fini(&leases->lock);
    tierce__free(leases);
}

void tierce__short_leases_keep(struct tierce__short_leases *leases, struct tierce__object *object)
{
    uint64_t bytes = tierce__object_bytes(object), now_ns = tierce__now_ns();
    struct short_lease *kept =
        leases->ns > 0 && bytes <= leases->bytes_max ? tierce__alloc(sizeof(*kept)) : NULL;
    struct tierce__list gone;
    if (kept == NULL) {
        tierce__object_release(object);
        return;
    }
    *kept = (struct short_lease){.object = object, .until_ns = now_ns + leases->ns, .bytes = bytes};
    tierce__list_init(&gone);
    tierce__lock_take(&leases->lock);
    take_out(leases, &gone, bytes, now_ns);
    leases->bytes += bytes;
    tierce__list_push_back(&leases->kept, &kept->node);
    TIERCE_ASSERT(leases->bytes <= leases->bytes_max);
    tierce__lock_drop(&leases->lock);
    release_all(&gone);
}

void tierce__short_leases_expire(struct tierce__short_leases *leases, uint64_t now_ns)
{
    struct tierce__list gone;
    tierce__list_init(&gone);
    tierce__lock_take(&leases->lock);
    take_out(leases, &gone, 0, now_ns);
    tierce__lock_drop(&leases->lock);
    release_all(&gone);
}

uint64_t tierce__short_leases_bytes(struct tierce__short_leases *leases)
{
    tierce__lock_take(&leases->lock);
    uint64_t bytes = leases->bytes;
    TIERCE_ASSERT(bytes <= leases->bytes_max);
    tierce__lock_drop(&leases->lock);
    return bytes;
}
