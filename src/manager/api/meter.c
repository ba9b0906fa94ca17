/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/meter.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const use_names[TIERCE__USES] = {[TIERCE__USE_REQUESTS] = "requests",
                                                    [TIERCE__USE_KEYS] = "keys",
                                                    [TIERCE__USE_BYTES] = "bytes"};

const char *tierce__use_name(enum tierce__use use)
{
    TIERCE_ASSERT(use < TIERCE__USES);
    return use_names[use];
}

/* ---- limits ---------------------------------------------------------------------------------- */

static bool parse_limit(uint64_t *out, int use, const char *text, const char **fault)
{
    bool is_bytes = use == TIERCE__USE_BYTES;
    if ((is_bytes ? tierce__parse_size(out, text) : tierce__parse_count(out, text)) && *out > 0)
        return true;
    *fault = is_bytes ? "the limit bytes is not a size above 0, as 1GiB"
                      : "a limit of requests or keys is not a number above 0";
    return false;
}

bool tierce__limits_parse(struct tierce__limits *out, const char *word, const char **fault)
{
    size_t bytes = strcspn(word, "=");
    for (int use = 0; use < TIERCE__USES && word[bytes] == '='; use++) {
        if (strlen(use_names[use]) != bytes || memcmp(use_names[use], word, bytes) != 0)
            continue;
        if (out->of[use] == 0)
            return parse_limit(&out->of[use], use, word + bytes + 1, fault);
        *fault = "a limit is repeated";
        return false;
    }
    *fault = "a word after the scope is not requests=N, keys=N or bytes=SIZE";
    return false;
}

bool tierce__limits_are_same(const struct tierce__limits *a, const struct tierce__limits *b)
{
    return memcmp(a->of, b->of, sizeof(a->of)) == 0;
}

/* ---- meters ---------------------------------------------------------------------------------- */

int tierce__meter_create(struct tierce__meter **out, const char *name,
                         const struct tierce__limits *limits, uint64_t now_ns)
{
    struct tierce__meter *meter = tierce__calloc(1, sizeof(*meter));
    if (meter == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(strlen(name) < sizeof(meter->name));
    atomic_init(&meter->references, 1);
    snprintf(meter->name, sizeof(meter->name), "%s", name);
    meter->limits = *limits;
    meter->at_ns = now_ns;
    for (int use = 0; use < TIERCE__USES; use++)
        meter->balance[use] = (double)limits->of[use];
    tierce__lock_init(&meter->lock, TIERCE__LOCK_METER);
    *out = meter;
    return 0;
}

struct tierce__meter *tierce__meter_hold(struct tierce__meter *meter)
{
    if (meter != NULL)
        atomic_fetch_add_explicit(&meter->references, 1, memory_order_relaxed);
    return meter;
}

void tierce__meter_drop(struct tierce__meter *meter)
{
    /* Pairs with the drops of other threads: their uses of the meter are over. */
    if (meter == NULL ||
        atomic_fetch_sub_explicit(&meter->references, 1, memory_order_acq_rel) != 1)
        return;
    tierce__lock_fini(&meter->lock);
    tierce__free(meter);
}

/* Adds what the time since the last call allows, up to one second's worth. Under the lock. */
static void refill(struct tierce__meter *meter, uint64_t now_ns)
{
    tierce__lock_assert_held(&meter->lock);
    if (now_ns <= meter->at_ns) /* another thread has read the clock later */
        return;
    double seconds = (double)(now_ns - meter->at_ns) / 1e9;
    meter->at_ns = now_ns;
    for (int use = 0; use < TIERCE__USES; use++) {
        double limit = (double)meter->limits.of[use];
        meter->balance[use] = fmin(limit, meter->balance[use] + seconds * limit);
    }
}

void tierce__meter_adopt(struct tierce__meter *meter, struct tierce__meter *earlier)
{
    double debt[TIERCE__USES];
    TIERCE_ASSERT(meter != earlier);
    tierce__lock_take(&earlier->lock);
    refill(earlier, meter->at_ns);
    memcpy(debt, earlier->balance, sizeof(debt));
    tierce__lock_drop(&earlier->lock);
    for (int use = 0; use < TIERCE__USES; use++) {
        meter->balance[use] = fmin(meter->balance[use], debt[use]);
        if (earlier->limits.of[use] == 0)
            meter->balance[use] = (double)meter->limits.of[use];
        atomic_store_explicit(&meter->used[use],
                              atomic_load_explicit(&earlier->used[use], memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&meter->refused[use],
                              atomic_load_explicit(&earlier->refused[use], memory_order_relaxed),
                              memory_order_relaxed);
    }
}

static void count(struct tierce__meter *meter, enum tierce__use use, uint64_t amount)
{
    atomic_fetch_add_explicit(&meter->used[use], amount, memory_order_relaxed);
}

/* The limit that a call meets, or TIERCE__USES; *wait_s: how long its debt lasts. Under the lock.
 */
static int find_exceeded(struct tierce__meter *meter, bool has_keys, double *wait_s)
{
    int uses = has_keys ? TIERCE__USES : TIERCE__USE_REQUESTS + 1;
    tierce__lock_assert_held(&meter->lock);
    for (int use = 0; use < uses; use++) {
        double limit = (double)meter->limits.of[use];
        /* A request is whole; of keys and bytes any balance admits a call. */
        double needed = use == TIERCE__USE_REQUESTS ? 1 : 0;
        bool has = needed > 0 ? meter->balance[use] >= needed : meter->balance[use] > 0;
        if (limit == 0 || has)
            continue;
        *wait_s = (needed - meter->balance[use]) / limit;
        return use;
    }
    return TIERCE__USES;
}

bool tierce__meter_admit(struct tierce__meter *meter, bool has_keys, uint64_t now_ns, char why[256])
{
    double wait_s = 0;
    if (meter == NULL)
        return true;
    count(meter, TIERCE__USE_REQUESTS, 1);
    if (tierce__limits_are_same(&meter->limits, &(struct tierce__limits){{0}}))
        return true;
    tierce__lock_take(&meter->lock);
    refill(meter, now_ns);
    int use = find_exceeded(meter, has_keys, &wait_s);
    if (use == TIERCE__USES)
        meter->balance[TIERCE__USE_REQUESTS] -= 1;
    tierce__lock_drop(&meter->lock);
    if (use == TIERCE__USES)
        return true;
    TIERCE_DASSERT(wait_s >= 0);
    atomic_fetch_add_explicit(&meter->refused[use], 1, memory_order_relaxed);
    snprintf(why, 256, "account %s exceeds its limit of %llu %s a second; retry in %.0f ms",
             meter->name, (unsigned long long)meter->limits.of[use], use_names[use],
             ceil(wait_s * 1000));
    return false;
}

void tierce__meter_charge(struct tierce__meter *meter, uint64_t keys, uint64_t bytes,
                          uint64_t now_ns)
{
    if (meter == NULL || (keys == 0 && bytes == 0))
        return;
    count(meter, TIERCE__USE_KEYS, keys);
    count(meter, TIERCE__USE_BYTES, bytes);
    tierce__lock_take(&meter->lock);
    refill(meter, now_ns);
    meter->balance[TIERCE__USE_KEYS] -= (double)keys;
    meter->balance[TIERCE__USE_BYTES] -= (double)bytes;
    tierce__lock_drop(&meter->lock);
}
