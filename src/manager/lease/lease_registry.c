/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease of a manager without elector.uri whose registry is in Redis: "registry+" and the URI of
 * the registry. It does not expire. The token is the fence of the registry itself, so the registry
 * and the indexes in Redis reject the writes of managers that began earlier.
 *
 * The manager that began last has the lease: one that was restarted need not wait for anything.
 * Another one that still runs notices it at its next renewal, if it reaches Redis, and never takes
 * the lease again. Otherwise each would take it from the other at every renewal.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "manager/lease/lease.h"
#include "manager/registry/registry_store.h"
#include "net/redis/resp_pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_OF_REGISTRY                                                                          \
    "local last = tonumber(redis.call('HGET', KEYS[1], '" TIERCE__REGISTRY_REDIS_FENCE "') or "    \
    "'0') "

/* Both: KEYS the registry's own hash; ARGV now in microseconds, or our token. */
static const struct tierce__resp_script take_script = {
    .text =
        TOKEN_OF_REGISTRY "local token = last + 1 "
                          "if token < tonumber(ARGV[1]) then token = tonumber(ARGV[1]) end "
                          "token = string.format('%.0f', token) "
                          "redis.call('HSET', KEYS[1], '" TIERCE__REGISTRY_REDIS_FENCE "', token) "
                          "return token"};

/* A registry that was emptied has no fence: this manager is still alone. */
static const struct tierce__resp_script renew_script = {
    .text = TOKEN_OF_REGISTRY "if last > tonumber(ARGV[1]) then return 0 end return 1"};

struct registry_lease {
    struct tierce__lease base;
    struct tierce__resp_pool *pool;
    char *key;
    const char *holder;
    uint32_t timeout_ms;
    uint64_t token;
    bool is_held, is_taken; /* taken: by another manager, for good */
};

static void registry_close(struct tierce__lease *base)
{
    struct registry_lease *lease = (struct registry_lease *)base;
    tierce__resp_pool_destroy(lease->pool);
    tierce__free(lease->key);
    tierce__free(lease);
}

static int set_up(struct registry_lease *lease, struct tierce__resp_uri *uri, char why[256])
{
    static const char before[] = TIERCE__REGISTRY_REDIS_OWN;
    const char *cluster = tierce__url_param(&uri->url, "cluster_name");
    if (cluster == NULL || cluster[0] == '\0') {
        snprintf(why, 256, "registry.uri must have ?cluster_name=NAME for a registry in Redis");
        return TIERCE_E_CONFIG;
    }
    size_t size = sizeof(before) + strlen(cluster);
    lease->key = tierce__alloc(size);
    if (lease->key == NULL)
        return -ENOMEM;
    snprintf(lease->key, size, "%s%s", before, cluster);
    uri->opts.connect_timeout_ms = lease->timeout_ms;
    uri->opts.call_timeout_ms = lease->timeout_ms;
    uri->pool_max = 1;
    return tierce__resp_pool_create(&lease->pool, uri, why);
}

static int registry_open(struct tierce__lease **out, const char *uri, const char *holder,
                         uint32_t timeout_ms, char why[256])
{
    struct tierce__resp_uri parsed = {0};
    TIERCE_ASSERT(strncmp(uri, TIERCE__LEASE_REGISTRY, strlen(TIERCE__LEASE_REGISTRY)) == 0);
    struct registry_lease *lease = tierce__calloc(1, sizeof(*lease));
    if (lease == NULL)
        return -ENOMEM;
    lease->base.ops = &tierce__lease_registry;
    lease->holder = holder;
    lease->timeout_ms = timeout_ms;
    int rc = tierce__resp_uri_parse(&parsed, uri + strlen(TIERCE__LEASE_REGISTRY), why);
    if (rc == 0)
        rc = set_up(lease, &parsed, why);
    tierce__resp_uri_clear(&parsed);
    if (rc == 0)
        *out = &lease->base;
    else
        registry_close(&lease->base);
    return rc;
}

static int run(struct registry_lease *lease, struct tierce__resp_pipeline *batch,
               const struct tierce__resp_script *script, uint64_t number)
{
    const char *keys[] = {lease->key};
    TIERCE_DASSERT(lease->timeout_ms > 0);
    tierce__resp_pipeline_begin(batch, lease->pool);
    batch->deadline_ns = tierce__deadline_in_ms(lease->timeout_ms);
    tierce__resp_pipeline_script(batch, script, keys, 1);
    tierce__resp_pipeline_addf(batch, "%" PRIu64, number);
    return tierce__resp_pipeline_run(batch);
}

/* False, *token 0: Redis cannot be reached, or does not accept writes now. */
static bool take_token(struct registry_lease *lease, uint64_t *token)
{
    struct tierce__resp_pipeline batch;
    int rc = run(lease, &batch, &take_script, tierce__lease_wall_us());
    bool is_good = rc == 0 && batch.values[0].type == TIERCE__RESP_STRING;
    *token = is_good ? strtoull(batch.values[0].text, NULL, 10) : 0;
    tierce__resp_pipeline_end(&batch);
    return *token != 0;
}

/* Without a token the manager reads the registry, and says why it cannot. If it can, it leads until
 * Redis accepts writes: then it is elected again, with a token. Until then the registry rejects its
 * writes (registry_redis.c). */
static int registry_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                         char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct registry_lease *lease = (struct registry_lease *)base;
    (void)lease_ms;
    other[0] = '\0';
    if (lease->is_taken)
        return TIERCE_E_REFUSED;
    (void)take_token(lease, &lease->token);
    lease->is_held = true;
    *token = lease->token;
    return 0;
}

/* A registry that cannot be reached has no other manager either. */
static int registry_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct registry_lease *lease = (struct registry_lease *)base;
    struct tierce__resp_pipeline batch;
    uint64_t token;
    (void)lease_ms;
    if (lease->token == 0)
        return take_token(lease, &token) ? TIERCE_E_REFUSED : 0;
    int rc = run(lease, &batch, &renew_script, lease->token);
    bool is_other =
        rc == 0 && batch.values[0].type == TIERCE__RESP_INTEGER && batch.values[0].integer == 0;
    tierce__resp_pipeline_end(&batch);
    lease->is_taken = lease->is_taken || is_other;
    return is_other ? TIERCE_E_REFUSED : 0;
}

static void registry_give(struct tierce__lease *lease)
{
    ((struct registry_lease *)lease)->is_held = false;
}

static int registry_look(struct tierce__lease *base, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    const struct registry_lease *lease = (struct registry_lease *)base;
    snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s", lease->is_held ? lease->holder : "");
    return 0;
}

const struct tierce__lease_ops tierce__lease_registry = {
    .name = "registry",
    .open = registry_open,
    .close = registry_close,
    .take = registry_take,
    .renew = registry_renew,
    .give = registry_give,
    .look = registry_look,
};
