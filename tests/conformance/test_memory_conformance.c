/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "tier_fault.h"
#include "store/memory/memory.h"

static int open_memory(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    uint32_t *chunk_count_max = (uint32_t *)ctx;
    return tierce__memory_open(out, &(struct tierce__memory_opts){
                                        .size = sizeof(struct tierce__memory_opts),
                                        .pool = pool,
                                        .policy = tierce__policy_find("lru"),
                                        .chunk_count_max = chunk_count_max ? *chunk_count_max : 0});
}

static int open_wrapped(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct tierce__tier *inner;
    int rc = open_memory(&inner, pool, ctx);
    return rc == 0 ? tierce__fault_create(out, inner) : rc;
}

/* Few slots: puts into a full index evict. 301 is what the suite's longest prefix needs. */
static uint32_t few = 310;

static const struct tier_factory factories[] = {
    {.name = "memory", .open = open_memory},
    {.name = "memory with few slots", .open = open_memory, .ctx = &few},
    {.name = "memory behind a wrapper", .open = open_wrapped},
};

int main(void)
{
    return tier_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
