/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease in Redis or Valkey: KVCM's key with the holder as its value and a time to live, so that
 * both kinds of manager exclude each other; and a key with the last token, which stays. Each step
 * is one script. In a cluster both keys lie in one slot.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "manager/lease/lease.h"
#include "net/redis/resp_pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK_KEY  "kvcm_lock:" TIERCE__LEASE_NAME
#define TOKEN_KEY "{" LOCK_KEY "}:tierce_token"

/* Each: KEYS lock, token; ARGV holder, milliseconds, now in microseconds or our token. */
static const struct tierce__resp_script take_script = {
    .text = "local holder = redis.call('GET', KEYS[1]) "
            "if holder and holder ~= ARGV[1] then return {0, holder} end "
            "local token = tonumber(redis.call('GET', KEYS[2]) or '0') + 1 "
            "if token < tonumber(ARGV[3]) then token = tonumber(ARGV[3]) end "
            "token = string.format('%.0f', token) "
            "redis.call('SET', KEYS[2], token) "
            "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) "
            "return {1, token}"};

#define IF_OURS                                                                                    \
    "if redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('GET', KEYS[2]) == ARGV[3] then "

static const struct tierce__resp_script renew_script = {
    .text = IF_OURS "return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"};

static const struct tierce__resp_script give_script = {
    .text = IF_OURS "return redis.call('DEL', KEYS[1]) end return 0"};

struct redis_lease {
    struct tierce__lease base;
    struct tierce__resp_pool *pool;
    const char *holder;
    uint32_t timeout_ms;
    uint64_t token;
};

static int redis_open(struct tierce__lease **out, const char *uri, const char *holder,
                      uint32_t timeout_ms, char why[256])
{
    struct tierce__resp_uri parsed = {0};
    struct redis_lease *lease = tierce__calloc(1, sizeof(*lease));
    if (lease == NULL)
        return -ENOMEM;
    lease->base.ops = &tierce__lease_redis;
    lease->holder = holder;
    lease->timeout_ms = timeout_ms;
    int rc = tierce__resp_uri_parse(&parsed, uri, why);
    if (rc == 0) {
        parsed.opts.connect_timeout_ms = timeout_ms;
        parsed.opts.call_timeout_ms = timeout_ms;
        parsed.pool_max = 1;
        rc = tierce__resp_pool_create(&lease->pool, &parsed, why);
    }
    tierce__resp_uri_clear(&parsed);
    if (rc == 0)
        *out = &lease->base;
    else
        tierce__free(lease);
    return rc;
}

static void redis_close(struct tierce__lease *base)
{
    tierce__resp_pool_destroy(((struct redis_lease *)base)->pool);
    tierce__free(base);
}

/* Runs a script. */
static int run(struct redis_lease *lease, struct tierce__resp_pipeline *batch,
               const struct tierce__resp_script *script, uint32_t lease_ms, uint64_t number)
{
    TIERCE_DASSERT(lease->timeout_ms > 0 && lease->holder[0] != '\0');
    static const char *const keys[] = {LOCK_KEY, TOKEN_KEY};
    tierce__resp_pipeline_begin(batch, lease->pool);
    batch->deadline_ns = tierce__deadline_in_ms(lease->timeout_ms);
    tierce__resp_pipeline_script(batch, script, keys, 2);
    tierce__resp_pipeline_add_text(batch, lease->holder);
    tierce__resp_pipeline_addf(batch, "%" PRIu32, lease_ms);
    tierce__resp_pipeline_addf(batch, "%" PRIu64, number);
    return tierce__resp_pipeline_run(batch);
}

/* A taken lease: 0 and *token, or -EBUSY and the holder. */
static int read_taken(const struct tierce__resp_value *value, uint64_t *token,
                      char other[TIERCE__LEASE_HOLDER_BYTES])
{
    const struct tierce__resp_value *items = value->items;
    if (value->type != TIERCE__RESP_ARRAY || value->count != 2 ||
        items[0].type != TIERCE__RESP_INTEGER || items[1].type != TIERCE__RESP_STRING)
        return -EPROTO;
    if (items[0].integer == 0) {
        snprintf(other, TIERCE__LEASE_HOLDER_BYTES, "%s", items[1].text);
        return -EBUSY;
    }
    *token = strtoull(items[1].text, NULL, 10);
    return 0;
}

static int redis_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                      char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_pipeline batch;
    int rc = run(lease, &batch, &take_script, lease_ms, tierce__lease_wall_us());
    if (rc == 0)
        rc = read_taken(batch.values, token, other);
    if (rc == 0)
        lease->token = *token;
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int redis_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_pipeline batch;
    int rc = run(lease, &batch, &renew_script, lease_ms, lease->token);
    if (rc == 0 && batch.values[0].type != TIERCE__RESP_INTEGER)
        rc = -EPROTO;
    else if (rc == 0 && batch.values[0].integer != 1)
        rc = TIERCE_E_REFUSED;
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static void redis_give(struct tierce__lease *base)
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_pipeline batch;
    (void)!run(lease, &batch, &give_script, 0, lease->token);
    tierce__resp_pipeline_end(&batch);
}

static int redis_look(struct tierce__lease *base, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, lease->pool);
    batch.deadline_ns = tierce__deadline_in_ms(lease->timeout_ms);
    TIERCE__RESP_COMMAND(&batch, "GET", LOCK_KEY);
    int rc = tierce__resp_pipeline_run(&batch);
    if (rc == 0)
        snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s",
                 batch.values[0].type == TIERCE__RESP_STRING ? batch.values[0].text : "");
    tierce__resp_pipeline_end(&batch);
    return rc;
}

const struct tierce__lease_ops tierce__lease_redis = {
    .name = "redis",
    .open = redis_open,
    .close = redis_close,
    .take = redis_take,
    .renew = redis_renew,
    .give = redis_give,
    .look = redis_look,
};
