/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"

#include <stdlib.h>
#include <string.h>

#define COMMAND "optimize"

static const char sizes_are[] = "blocks (10000), bytes with a unit (64GiB) or unlimited";

int tierce__optimize_read_amount(void *out, const char *option, const char *text)
{
    if (tierce__optimize_read_size(out, text))
        return TIERCE__CLI_OK;
    return tierce__cli_usage(COMMAND, "%s accepts %s; not \"%.60s\"", option, sizes_are, text);
}

/* ---- --tier ---------------------------------------------------------------------------------- */

/* Bytes, with or without "/s". */
static bool read_bytes(double *out, const char *text, bool per_second)
{
    char plain[32];
    uint64_t bytes;
    size_t length = strlen(text);
    if (per_second && length > 2 && strcmp(text + length - 2, "/s") == 0)
        length -= 2;
    if (length >= sizeof(plain))
        return false;
    memcpy(plain, text, length);
    plain[length] = '\0';
    if (!tierce__parse_size(&bytes, plain))
        return false;
    *out = (double)bytes;
    return true;
}

/* "100us", "250ns", or what durations are otherwise. */
static bool read_latency(uint64_t *out_ns, const char *text)
{
    char number[32];
    uint64_t count, length = strlen(text);
    bool us = length > 2 && strcmp(text + length - 2, "us") == 0;
    bool ns = length > 2 && strcmp(text + length - 2, "ns") == 0;
    if (!us && !ns) {
        if (!tierce__parse_duration(&count, text) || count > UINT64_MAX / 1000000)
            return false;
        *out_ns = count * 1000000;
        return true;
    }
    if (length - 2 >= sizeof(number))
        return false;
    memcpy(number, text, length - 2);
    number[length - 2] = '\0';
    if (!tierce__parse_count(&count, number) || count > UINT64_MAX / 1000)
        return false;
    *out_ns = us ? count * 1000 : count;
    return true;
}

static int read_tier_policy(struct tierce__tier_spec *spec, const char *name)
{
    struct tierce__cache cache;
    if (tierce__cache_find(&cache, name) != 0 || cache.kind != TIERCE__CACHE_POLICY)
        return tierce__cli_usage(COMMAND, "--tier: there is no policy \"%.60s\" for a tier", name);
    spec->policy = cache.policy;
    return TIERCE__CLI_OK;
}

static int read_tier_key(struct tierce__optimize_sim *out, const char *key, const char *value)
{
    static const char *const keys[] = {"policy", "read",      "write", "latency",
                                       "ttl",    "endurance", "cost"};
    struct tierce__tier_spec *spec = &out->tiers[out->tier_count];
    char *cost = out->tier_costs[out->tier_count];
    size_t at = 0, nearest = 0;
    uint64_t ms = 0;
    bool good = false;
    for (; at < 7 && strcmp(keys[at], key) != 0; at++) {
        if (tierce__edit_distance(keys[at], key) < tierce__edit_distance(keys[nearest], key))
            nearest = at;
    }
    switch (at) {
    case 0:
        return read_tier_policy(spec, value);
    case 1:
        good = read_bytes(&spec->read_bytes_per_s, value, true);
        break;
    case 2:
        good = read_bytes(&spec->write_bytes_per_s, value, true);
        break;
    case 3:
        good = read_latency(&spec->latency_ns, value);
        break;
    case 4:
        good = tierce__parse_duration(&ms, value) && ms > 0 && ms <= UINT64_MAX / 1000;
        spec->ttl_us = ms * 1000;
        break;
    case 5:
        good = read_bytes(&spec->endurance_bytes, value, false);
        break;
    case 6:
        good = value[0] != '\0' && strlen(value) < TIERCE__TIER_NAME_BYTES;
        if (good)
            memcpy(cost, value, strlen(value) + 1);
        break;
    default:
        return tierce__cli_usage(COMMAND,
                                 "--tier: \"%.60s\" is unknown here; the nearest is \"%s\"", key,
                                 keys[nearest]);
    }
    return good ? TIERCE__CLI_OK
                : tierce__cli_usage(COMMAND, "--tier: %s=%.60s is not %s", key, value,
                                    at <= 2   ? "a rate like 3GB/s"
                                    : at <= 4 ? "a time like 100us or 1h"
                                    : at == 5 ? "a size like 1PB"
                                              : "the name of a profile like nvme");
}

/* NAME[:SIZE][,KEY=VALUE...] */
int tierce__optimize_read_tier(void *sim, const char *option, const char *text)
{
    struct tierce__optimize_sim *out = sim;
    char part[96];
    if (out->tier_count == TIERCE__TIERS_MAX)
        return tierce__cli_usage(COMMAND, "--tier may be given at most %u times",
                                 TIERCE__TIERS_MAX);
    struct tierce__tier_spec *spec = &out->tiers[out->tier_count];
    struct tierce__optimize_size *size = &out->tier_sizes[out->tier_count];
    spec->policy = tierce__policy_find("lru");
    size->amount = TIERCE__CAPACITY_UNLIMITED;
    for (bool first = true;; first = false) {
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof(part))
            return tierce__cli_usage(
                COMMAND, "--tier requires NAME:SIZE,key=value,...; not \"%.60s\"", text);
        memcpy(part, text, length);
        part[length] = '\0';
        char *value = strchr(part, first ? ':' : '=');
        if (value != NULL)
            *value++ = '\0';
        if (first &&
            (part[0] == '\0' || strchr(part, '=') != NULL || strlen(part) >= sizeof(spec->name)))
            return tierce__cli_usage(COMMAND,
                                     "--tier: \"%.60s\" is not a name for a tier; --tier requires "
                                     "NAME:SIZE,key=value,...",
                                     part);
        if (!first && value == NULL)
            return tierce__cli_usage(COMMAND, "--tier: \"%.60s\" lacks a value (%s=...)", part,
                                     part);
        int status = TIERCE__CLI_OK;
        if (first)
            memcpy(spec->name, part, strlen(part) + 1);
        if (first && value != NULL)
            status = tierce__optimize_read_amount(size, option, value);
        else if (!first)
            status = read_tier_key(out, part, value);
        if (status != TIERCE__CLI_OK)
            return status;
        if (text[length] == '\0')
            break;
        text += length + 1;
    }
    out->tier_count++;
    return TIERCE__CLI_OK;
}

/* ---- the options ----------------------------------------------------------------------------- */

static int read_named(struct tierce__optimize_named *list, size_t *count, const char *option,
                      const char *text)
{
    const char *equal = strchr(text, '=');
    if (equal == NULL || equal == text || equal[1] == '\0')
        return tierce__cli_usage(COMMAND, "%s requires NAME=...; not \"%.60s\"", option, text);
    if (*count == TIERCE__OPTIMIZE_GROUPS_MAX)
        return tierce__cli_usage(COMMAND, "%s may be given at most %d times", option,
                                 TIERCE__OPTIMIZE_GROUPS_MAX);
    struct tierce__optimize_named named = {
        .text = text, .name_length = (size_t)(equal - text), .value = equal + 1};
    for (size_t i = 0; i < *count; i++) {
        if (list[i].name_length == named.name_length &&
            memcmp(list[i].text, text, named.name_length) == 0)
            return tierce__cli_usage(COMMAND, "%s names \"%.*s\" twice", option,
                                     (int)named.name_length, text);
    }
    list[(*count)++] = named;
    return TIERCE__CLI_OK;
}

int tierce__optimize_read_group(void *sim, const char *option, const char *text)
{
    struct tierce__optimize_sim *out = sim;
    return read_named(out->groups, &out->group_count, option, text);
}

int tierce__optimize_read_quota(void *sim, const char *option, const char *text)
{
    struct tierce__optimize_sim *out = sim;
    int status = read_named(out->quotas, &out->quota_count, option, text);
    if (status != TIERCE__CLI_OK)
        return status;
    struct tierce__optimize_named *quota = &out->quotas[out->quota_count - 1];
    return tierce__optimize_read_amount(&quota->size, option, quota->value);
}

int tierce__optimize_read_rule(void *sim, const char *option, const char *text)
{
    struct tierce__optimize_sim *out = sim;
    if (out->rule_count == TIERCE__OPTIMIZE_RULES_MAX)
        return tierce__cli_usage(COMMAND, "%s accepts at most %d parts", option,
                                 TIERCE__OPTIMIZE_RULES_MAX);
    if (tierce__state_rule_parse(&out->rules[out->rule_count], text) != 0)
        return tierce__cli_usage(COMMAND,
                                 "%s accepts every, every:K with K blocks, last and branch, or "
                                 "several joined by + (every:8+last); not \"%.60s\"",
                                 option, text);
    out->rule_count++;
    return TIERCE__CLI_OK;
}

bool tierce__optimize_asks_sim(const struct tierce__optimize_sim *sim)
{
    return sim->life || sim->timeline != NULL || sim->tier_count > 0 || sim->group_count > 0 ||
           sim->quota_count > 0 || sim->split.amount > 0 || sim->autopilot.amount > 0 ||
           sim->budget.amount > 0 || sim->engine.amount > 0 || sim->scale > 0 ||
           sim->state_bytes > 0 || sim->rule_count > 0 || sim->tier_csv != NULL ||
           sim->group_csv != NULL || sim->state_csv != NULL;
}

/* The cost of each tier, if all have one. */
static int find_costs(struct tierce__optimize_sim *sim, const struct tierce__optimize_money *money)
{
    char why[TIERCE__PROFILE_WHY_BYTES];
    size_t count = 0;
    for (size_t i = 0; i < sim->tier_count; i++)
        count += sim->tier_costs[i][0] != '\0';
    if (count == 0)
        return TIERCE__CLI_OK;
    if (count < sim->tier_count || !money->has_gpu)
        return tierce__cli_usage(COMMAND, "cost=NAME must be given in every --tier, and requires "
                                          "--model and --gpu");
    for (size_t i = 0; i < sim->tier_count; i++) {
        if (tierce__storage_read(&sim->tier_storages[i], &money->profiles, sim->tier_costs[i],
                                 why) < 0)
            return tierce__cli_usage(COMMAND, "--tier %s: %s", sim->tiers[i].name, why);
    }
    sim->has_tier_costs = true;
    return TIERCE__CLI_OK;
}

int tierce__optimize_check_sim(struct tierce__optimize *request)
{
    struct tierce__optimize_sim *sim = &request->sim;
    if (sim->group_count > 0 && sim->quota_count == 0 && sim->split.amount == 0 &&
        sim->autopilot.amount == 0)
        return tierce__cli_usage(COMMAND, "--group requires --quota, --split or --autopilot");
    if (sim->tier_csv != NULL && sim->tier_count == 0)
        return tierce__cli_usage(COMMAND, "--tier-csv requires --tier");
    if (sim->group_csv != NULL && sim->quota_count == 0 && sim->split.amount == 0)
        return tierce__cli_usage(COMMAND, "--group-csv requires --quota or --split");
    if (sim->state_bytes == 0 && (sim->rule_count > 0 || sim->state_csv != NULL))
        return tierce__cli_usage(COMMAND, "%s requires --states SIZE",
                                 sim->rule_count > 0 ? "--state-rules" : "--state-csv");
    if (sim->timeline != NULL && request->capacity_count == 0)
        return tierce__cli_usage(COMMAND, "--timeline requires --capacity");
    if (sim->scale > 0 && (request->html != NULL || request->svg != NULL || request->png != NULL ||
                           request->money.model != NULL || request->money.rounds > 0))
        return tierce__cli_usage(COMMAND, "--scale prints only rates: --html, --svg, --png, "
                                          "--model and --bootstrap cannot be used with it");
    if (sim->tier_count == 0 &&
        (sim->writes != TIERCE__TIERS_WRITE_ALL || sim->promote != TIERCE__TIERS_PROMOTE_FIRST))
        return tierce__cli_usage(COMMAND, "--tier-writes and --tier-promote require --tier");
    return find_costs(sim, &request->money);
}
