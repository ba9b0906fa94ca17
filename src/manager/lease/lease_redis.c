/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease in Redis or Valkey: KVCM's key with the holder as its value and a time to live, so that
 * both kinds of manager exclude each other; and a key with the last token, which stays. Each step
 * is one script. In a cluster both keys lie in one slot.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "manager/lease/lease.h"
#include "net/redis/resp_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK_KEY  "kvcm_lock:" TIERCE__LEASE_NAME
#define TOKEN_KEY "{" LOCK_KEY "}:tierce_token"

enum { NUMBER_BYTES = 24, FIRST_KEY = 3 /* of EVAL */ };

/* Each: KEYS lock, token; ARGV holder, milliseconds, now in microseconds or our token. */
static const char take_script[] = "local holder = redis.call('GET', KEYS[1]) "
                                  "if holder and holder ~= ARGV[1] then return {0, holder} end "
                                  "local token = tonumber(redis.call('GET', KEYS[2]) or '0') + 1 "
                                  "if token < tonumber(ARGV[3]) then token = tonumber(ARGV[3]) end "
                                  "token = string.format('%.0f', token) "
                                  "redis.call('SET', KEYS[2], token) "
                                  "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) "
                                  "return {1, token}";

#define IF_OURS                                                                                    \
    "if redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('GET', KEYS[2]) == ARGV[3] then "

static const char renew_script[] =
    IF_OURS "return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

static const char give_script[] = IF_OURS "return redis.call('DEL', KEYS[1]) end return 0";

struct redis_lease {
    struct tierce__lease base;
    struct tierce__resp_link *link;
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
        rc = tierce__resp_link_create(&lease->link, &parsed, why);
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
    tierce__resp_link_close(((struct redis_lease *)base)->link);
    tierce__free(base);
}

/* Runs a script; an error reply is -EPROTO. */
static int run(struct redis_lease *lease, const char *script, uint32_t lease_ms, uint64_t number,
               struct tierce__resp_value *out)
{
    char ms[NUMBER_BYTES], last[NUMBER_BYTES];
    snprintf(ms, sizeof(ms), "%" PRIu32, lease_ms);
    snprintf(last, sizeof(last), "%" PRIu64, number);
    const char *arguments[] = {"EVAL", script, "2", LOCK_KEY, TOKEN_KEY, lease->holder, ms, last};
    size_t bytes[8];
    for (size_t i = 0; i < 8; i++)
        bytes[i] = strlen(arguments[i]);
    int rc = tierce__resp_link_call(lease->link, FIRST_KEY, arguments, bytes, 8, out,
                                    tierce__deadline_in_ms(lease->timeout_ms));
    return rc == 0 && out->type == TIERCE__RESP_ERROR ? -EPROTO : rc;
}

static int redis_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                      char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_value value;
    int rc = run(lease, take_script, lease_ms, tierce__lease_wall_us(), &value);
    if (rc != 0)
        return rc;
    if (value.type != TIERCE__RESP_ARRAY || value.count != 2 ||
        value.items[0].type != TIERCE__RESP_INTEGER || value.items[1].type != TIERCE__RESP_STRING)
        return -EPROTO;
    if (value.items[0].integer == 0) {
        snprintf(other, TIERCE__LEASE_HOLDER_BYTES, "%s", value.items[1].text);
        return -EBUSY;
    }
    *token = lease->token = strtoull(value.items[1].text, NULL, 10);
    return 0;
}

static int redis_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_value value;
    int rc = run(lease, renew_script, lease_ms, lease->token, &value);
    if (rc != 0)
        return rc;
    if (value.type != TIERCE__RESP_INTEGER)
        return -EPROTO;
    return value.integer == 1 ? 0 : TIERCE_E_REFUSED;
}

static void redis_give(struct tierce__lease *base)
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_value value;
    (void)!run(lease, give_script, 0, lease->token, &value);
}

static int redis_look(struct tierce__lease *base, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    struct redis_lease *lease = (struct redis_lease *)base;
    struct tierce__resp_value value;
    const char *arguments[] = {"GET", LOCK_KEY};
    int rc = tierce__resp_link_call(lease->link, 1, arguments, (size_t[]){3, strlen(LOCK_KEY)}, 2,
                                    &value, tierce__deadline_in_ms(lease->timeout_ms));
    if (rc == 0 && value.type == TIERCE__RESP_ERROR)
        rc = -EPROTO;
    if (rc == 0)
        snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s",
                 value.type == TIERCE__RESP_STRING ? value.text : "");
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
