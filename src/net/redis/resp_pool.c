/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_pool.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <string.h>

#define POOL_MAGIC 0x2b94e6f3u

/* All links are made at the beginning, unconnected: afterwards nothing of them can fail. */
struct tierce__resp_pool {
    uint32_t magic;
    uint32_t call_timeout_ms;
    struct tierce__lock lock;
    struct tierce__cond given;
    uint32_t count, idle; /* under `lock`, as is the order of links[0 .. idle) */
    struct tierce__resp_link **links;
};

int tierce__resp_pool_create(struct tierce__resp_pool **out, const struct tierce__resp_uri *uri,
                             char why[TIERCE__RESP_WHY_BYTES])
{
    uint32_t links_max = uri->pool_max, timeout_ms = uri->opts.call_timeout_ms;
    TIERCE_ASSERT(links_max > 0);
    struct tierce__resp_pool *pool = tierce__calloc(1, sizeof(*pool));
    if (pool == NULL)
        return -ENOMEM;
    pool->magic = POOL_MAGIC;
    pool->call_timeout_ms = timeout_ms != 0 ? timeout_ms : 1000;
    tierce__lock_init(&pool->lock, TIERCE__LOCK_RESP_POOL);
    tierce__cond_init(&pool->given);
    int rc = -ENOMEM;
    pool->links = tierce__calloc(links_max, sizeof(*pool->links));
    for (; pool->links != NULL && pool->count < links_max; pool->count++) {
        rc = tierce__resp_link_create(&pool->links[pool->count], uri, why);
        if (rc != 0)
            break;
    }
    pool->idle = pool->count;
    if (rc != 0) {
        tierce__resp_pool_destroy(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void tierce__resp_pool_destroy(struct tierce__resp_pool *pool)
{
    if (pool == NULL)
        return;
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    TIERCE_ASSERT(pool->idle == pool->count);
    for (uint32_t i = 0; pool->links != NULL && i < pool->count; i++)
        tierce__resp_link_close(pool->links[i]);
    tierce__free(pool->links);
    tierce__cond_fini(&pool->given);
    tierce__lock_fini(&pool->lock);
    pool->magic = 0;
    tierce__free(pool);
}

int tierce__resp_pool_take(struct tierce__resp_pool *pool, struct tierce__resp_link **out,
                           uint64_t deadline_ns)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    if (deadline_ns == 0)
        deadline_ns = tierce__deadline_in_ms(pool->call_timeout_ms);
    bool in_time = true;
    tierce__lock_take(&pool->lock);
    TIERCE_DASSERT(pool->idle <= pool->count);
    while (pool->idle == 0 && in_time)
        in_time = tierce__cond_wait(&pool->given, &pool->lock, deadline_ns);
    int rc = pool->idle > 0 ? 0 : TIERCE_E_DEADLINE;
    if (rc == 0)
        *out = pool->links[--pool->idle];
    tierce__lock_drop(&pool->lock);
    return rc;
}

void tierce__resp_pool_give(struct tierce__resp_pool *pool, struct tierce__resp_link *link)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    tierce__lock_take(&pool->lock);
    TIERCE_ASSERT(pool->idle < pool->count);
    pool->links[pool->idle++] = link;
    tierce__cond_signal(&pool->given);
    tierce__lock_drop(&pool->lock);
}
