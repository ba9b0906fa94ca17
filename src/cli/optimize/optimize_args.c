/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/options.h"
#include "cli/optimize/optimize.h"

#include <stdlib.h>
#include <string.h>

#define COMMAND "optimize"

static int too_many(const char *option)
{
    return tierce__cli_usage(COMMAND, "%s accepts at most %d parts", option,
                             TIERCE__OPTIMIZE_LIST_MAX);
}

static int no_such_policy(const char *name)
{
    char list[1024] = "";
    struct tierce__cache cache, nearest;
    size_t least = SIZE_MAX;
    for (size_t i = 0; tierce__cache_at(&cache, i); i++) {
        size_t used = strlen(list), distance = tierce__edit_distance(cache.name, name);
        snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", cache.name);
        if (distance < least) {
            least = distance;
            nearest = cache;
        }
    }
    return tierce__cli_usage(COMMAND, "there is no policy \"%s\" (\"%s\"?); there are: %s", name,
                             nearest.name, list);
}

static int add_policy(void *request, const char *option, const char *name)
{
    struct tierce__optimize *out = request;
    if (out->cache_count == TIERCE__OPTIMIZE_LIST_MAX)
        return too_many(option);
    char why[TIERCE__POLICY_WHY_BYTES];
    struct tierce__cache *cache = &out->caches[out->cache_count];
    bool is_plugin = strncmp(name, TIERCE__POLICY_PLUGIN, strlen(TIERCE__POLICY_PLUGIN)) == 0;
    if (is_plugin && tierce__cache_load(cache, name, why) != 0)
        return tierce__cli_usage(COMMAND, "%s: %s", option, why);
    if (!is_plugin && tierce__cache_find(cache, name) != 0)
        return no_such_policy(name);
    out->cache_count++;
    return TIERCE__CLI_OK;
}

static int add_order(void *request, const char *option, const char *name)
{
    struct tierce__optimize *out = request;
    bool rev = strcmp(name, "rev") == 0;
    if (!rev && strcmp(name, "fwd") != 0)
        return tierce__cli_usage(COMMAND, "%s accepts rev, fwd or rev,fwd; not \"%s\"", option,
                                 name);
    enum tierce__touch_order order = rev ? TIERCE__TOUCH_REV : TIERCE__TOUCH_FWD;
    if (out->order_count > 0 && out->orders[0] == order)
        return TIERCE__CLI_OK;
    if (out->order_count < 2)
        out->orders[out->order_count++] = order;
    return TIERCE__CLI_OK;
}

static int add_match(void *request, const char *option, const char *name)
{
    struct tierce__optimize *out = request;
    if (out->match_count == 8)
        return tierce__cli_usage(COMMAND, "%s accepts at most 8 parts", option);
    if (tierce__match_parse(&out->matches[out->match_count], name) != 0)
        return tierce__cli_usage(
            COMMAND, "%s accepts prefix, any, stream or window:N with N blocks; not \"%s\"", option,
            name);
    out->match_count++;
    return TIERCE__CLI_OK;
}

static int add_capacity(void *request, const char *option, const char *text)
{
    struct tierce__optimize *out = request;
    if (out->capacity_count == TIERCE__OPTIMIZE_LIST_MAX)
        return too_many(option);
    if (!tierce__optimize_read_size(&out->capacity_sizes[out->capacity_count], text))
        return tierce__cli_usage(COMMAND,
                                 "%s accepts blocks (10000), bytes with a unit (64GiB, at most "
                                 "4096PiB) or unlimited, and not less than one block; not \"%s\"",
                                 option, text);
    out->capacity_count++;
    return TIERCE__CLI_OK;
}

static int add_ttl(void *request, const char *option, const char *text)
{
    struct tierce__optimize *out = request;
    uint64_t ms;
    if (out->ttl_count == TIERCE__OPTIMIZE_LIST_MAX)
        return too_many(option);
    if (!tierce__parse_duration(&ms, text) || ms == 0 || ms > UINT64_MAX / 1000)
        return tierce__cli_usage(COMMAND, "%s accepts times like 300s or 1h; not \"%.60s\"", option,
                                 text);
    out->ttls[out->ttl_count++] = ms * 1000;
    return TIERCE__CLI_OK;
}

static int add_source(void *request, const char *option, const char *text)
{
    struct tierce__optimize *out = request;
    if (out->live_count == TIERCE__OPTIMIZE_SOURCES_MAX)
        return tierce__cli_usage(COMMAND, "%s may be given at most %d times", option,
                                 TIERCE__OPTIMIZE_SOURCES_MAX);
    out->live[out->live_count++] = text;
    return TIERCE__CLI_OK;
}

#define FADE_MS_MAX 9e15 /* in microseconds it is below INT64_MAX */

/* In the order of the enums. */
static const char *const writes[] = {"all", "waterfall", NULL};
static const char *const promotions[] = {"first", "all", "none", NULL};

#define FIELD(member) TIERCE__OPTION_FIELD(struct tierce__optimize, member)
static const struct tierce__option options[] = {
    {"--policy", TIERCE__OPTION_LIST, .read = add_policy},
    {"--order", TIERCE__OPTION_LIST, .read = add_order},
    {"--match", TIERCE__OPTION_LIST, .read = add_match},
    {"--capacity", TIERCE__OPTION_LIST, .read = add_capacity},
    {"--block-bytes", TIERCE__OPTION_SIZE, FIELD(block_bytes), .min = 1,
     .wants = "a size like 40MiB"},
    {"--csv", TIERCE__OPTION_TEXT, FIELD(csv)},
    {"--html", TIERCE__OPTION_TEXT, FIELD(html)},
    {"--svg", TIERCE__OPTION_TEXT, FIELD(svg)},
    {"--png", TIERCE__OPTION_TEXT, FIELD(png)},
    {"--format", TIERCE__OPTION_TEXT, FIELD(format), .names = tierce__trace_format_name},
    {"--seed", TIERCE__OPTION_COUNT, FIELD(seed)},
    {"--ttl", TIERCE__OPTION_LIST, .read = add_ttl},
    {"--threads", TIERCE__OPTION_COUNT, FIELD(threads), .min = 1, .max = 64},
    {"--bad-share", TIERCE__OPTION_SHARE, FIELD(bad_share_max)},
    {"--kvcm-mode", TIERCE__OPTION_COUNT, FIELD(kvcm.mode), .min = 1, .max = 3},
    {"--kvcm-batch", TIERCE__OPTION_COUNT, FIELD(kvcm.batch), .min = 1, .max = INT32_MAX},
    {"--kvcm-used", TIERCE__OPTION_SHARE, FIELD(kvcm.used_share)},
    {"--kvcm-sample-rate", TIERCE__OPTION_SHARE, FIELD(kvcm.sample_rate)},
    {"--kvcm-csv", TIERCE__OPTION_TEXT, FIELD(kvcm_csv)},
    {"--kvcm-config", TIERCE__OPTION_TEXT, FIELD(kvcm_config_path)},
    {"--live", TIERCE__OPTION_CALL, .read = add_source},
    {"--every", TIERCE__OPTION_DURATION, FIELD(every_ms), .min = 1, .max = UINT32_MAX - 1,
     .wants = "a time like 5s"},
    {"--fade", TIERCE__OPTION_DURATION, FIELD(fade_ms), .min = 1, .max = FADE_MS_MAX,
     .wants = "a time like 10min"},
    {"--model", TIERCE__OPTION_TEXT, FIELD(money.model)},
    {"--gpu", TIERCE__OPTION_TEXT, FIELD(money.gpu)},
    {"--cost-tier", TIERCE__OPTION_TEXT, FIELD(money.tier)},
    {"--profile", TIERCE__OPTION_TEXT, FIELD(money.profile_path)},
    {"--tier-speeds", TIERCE__OPTION_TEXT, FIELD(money.speeds_path)},
    {"--block-tokens", TIERCE__OPTION_COUNT, FIELD(money.block_tokens), .min = 1,
     .max = TIERCE__BLOCK_TOKENS_MAX},
    {"--bootstrap", TIERCE__OPTION_COUNT, FIELD(money.rounds), .min = 1,
     .max = TIERCE__BOOTSTRAP_MAX},
    {"--life", TIERCE__OPTION_FLAG, FIELD(sim.life)},
    {"--timeline", TIERCE__OPTION_TEXT, FIELD(sim.timeline)},
    {"--tier", TIERCE__OPTION_CALL, FIELD(sim), .read = tierce__optimize_read_tier},
    {"--tier-writes", TIERCE__OPTION_CHOICE, FIELD(sim.writes), .choices = writes},
    {"--tier-promote", TIERCE__OPTION_CHOICE, FIELD(sim.promote), .choices = promotions},
    {"--group", TIERCE__OPTION_CALL, FIELD(sim), .read = tierce__optimize_read_group},
    {"--quota", TIERCE__OPTION_CALL, FIELD(sim), .read = tierce__optimize_read_quota},
    {"--autopilot", TIERCE__OPTION_CALL, FIELD(sim.autopilot),
     .read = tierce__optimize_read_amount},
    {"--split", TIERCE__OPTION_CALL, FIELD(sim.split), .read = tierce__optimize_read_amount},
    {"--budget", TIERCE__OPTION_CALL, FIELD(sim.budget), .read = tierce__optimize_read_amount},
    {"--engine-cache", TIERCE__OPTION_CALL, FIELD(sim.engine),
     .read = tierce__optimize_read_amount},
    {"--tier-csv", TIERCE__OPTION_TEXT, FIELD(sim.tier_csv)},
    {"--group-csv", TIERCE__OPTION_TEXT, FIELD(sim.group_csv)},
    {"--states", TIERCE__OPTION_SIZE, FIELD(sim.state_bytes), .min = 1,
     .max = (double)TIERCE__CAPACITY_BYTES_MAX, .wants = "a size like 48MiB"},
    {"--state-rules", TIERCE__OPTION_LIST, FIELD(sim), .read = tierce__optimize_read_rule},
    {"--state-csv", TIERCE__OPTION_TEXT, FIELD(sim.state_csv)},
    {"--scale", TIERCE__OPTION_SHARE, FIELD(sim.scale)},
    {NULL, .may_shorten = true},
};
#undef FIELD

/* Rejects options that none of the chosen caches reads. */
static int check_kvcm(const struct tierce__optimize *out)
{
    const struct tierce__kvcm_tuning *k = &out->kvcm;
    const char *option = k->mode != 0         ? "--kvcm-mode"
                         : k->batch != 0      ? "--kvcm-batch"
                         : k->used_share > 0  ? "--kvcm-used"
                         : k->sample_rate > 0 ? "--kvcm-sample-rate"
                                              : NULL;
    bool any = false, random = false;
    for (size_t i = 0; i < out->cache_count; i++) {
        bool is_kvcm = out->caches[i].kind == TIERCE__CACHE_KVCM;
        any = any || is_kvcm;
        random = random || (is_kvcm && out->caches[i].kvcm == TIERCE__KVCM_RANDOM_LRU);
    }
    if (option != NULL && !any)
        return tierce__cli_usage(COMMAND, "%s requires one of the policies kvcm-*", option);
    if (k->sample_rate > 0 && !random)
        return tierce__cli_usage(COMMAND, "--kvcm-sample-rate requires the policy kvcm-random-lru");
    return TIERCE__CLI_OK;
}

/* Adds defaults for all options that were not given. */
static int add_defaults(struct tierce__optimize *out)
{
    static const char *const usual[] = {"lru",    "leaf-lru", "lfu",   "sieve",
                                        "s3fifo", "arc",      "belady"};
    int status = TIERCE__CLI_OK;
    out->usual_caches = out->cache_count == 0;
    for (size_t i = 0; out->usual_caches && i < sizeof(usual) / sizeof(usual[0]); i++) {
        int added = add_policy(out, "--policy", usual[i]);
        TIERCE_ASSERT(added == TIERCE__CLI_OK);
    }
    if (status == TIERCE__CLI_OK && out->order_count == 0)
        status = add_order(out, "--order", "rev");
    if (status == TIERCE__CLI_OK && out->match_count == 0)
        status = add_match(out, "--match", "prefix");
    bool expires = false;
    for (size_t i = 0; status == TIERCE__CLI_OK && i < out->cache_count; i++) {
        bool this_expires = tierce__cache_expires(&out->caches[i]);
        expires = expires || this_expires;
        if (this_expires && out->ttl_count == 0)
            status =
                tierce__cli_usage(COMMAND, "--policy %s requires --ttl TIME", out->caches[i].name);
    }
    if (status == TIERCE__CLI_OK && out->ttl_count > 0 && !expires)
        status = tierce__cli_usage(COMMAND, "--ttl requires --policy ttl");
    if (status == TIERCE__CLI_OK)
        status = check_kvcm(out);
    if (status == TIERCE__CLI_OK && out->kvcm_csv != NULL &&
        (out->cache_count != 1 || out->caches[0].kind != TIERCE__CACHE_KVCM ||
         out->capacity_count != 1))
        status =
            tierce__cli_usage(COMMAND, "--kvcm-csv requires one of the policies kvcm-*, and one "
                                       "capacity");
    if (status == TIERCE__CLI_OK)
        status = tierce__optimize_check_money(&out->money);
    if (status == TIERCE__CLI_OK)
        status = tierce__optimize_check_sim(out);
    if (status == TIERCE__CLI_OK && tierce__optimize_piped(out) > 1)
        status = tierce__cli_usage(COMMAND, "only one file can be standard output (-)");
    return status;
}

/* KVCM's configuration says all that is simulated. */
static int read_config(struct tierce__optimize *out)
{
    char why[TIERCE__KVCM_CONFIG_WHY_BYTES];
    const struct tierce__kvcm_tuning *k = &out->kvcm;
    if (out->cache_count > 0 || out->capacity_count > 0 || out->match_count > 0 ||
        out->order_count > 0 || k->mode != 0 || k->batch != 0 || k->used_share > 0 ||
        k->sample_rate > 0)
        return tierce__cli_usage(COMMAND,
                                 "--kvcm-config defines the caches; --policy, --capacity, "
                                 "--match, --order and --kvcm-mode, -batch, -used and -sample-rate "
                                 "cannot be used with it");
    if (out->html != NULL || out->svg != NULL || out->png != NULL)
        return tierce__cli_usage(COMMAND, "--kvcm-config has one capacity and no curve: --html, "
                                          "--svg and --png cannot be used with it");
    if (out->money.model != NULL || out->money.rounds > 0)
        return tierce__cli_usage(COMMAND,
                                 "--model and --bootstrap cannot be used with --kvcm-config");
    if (tierce__optimize_asks_sim(&out->sim))
        return tierce__cli_usage(
            COMMAND, "--kvcm-config cannot be used with --life, --timeline, --tier, "
                     "--quota, --split, --budget, --engine-cache, --states and --scale");
    int rc = tierce__kvcm_config_read(&out->kvcm_config, out->kvcm_config_path, why);
    if (rc < 0)
        return tierce__cli_usage(COMMAND, "%.300s: %s", out->kvcm_config_path, why);
    if (out->path == NULL)
        out->path = out->kvcm_config.trace_path;
    if (out->format == NULL)
        out->format = out->kvcm_config.format;
    return TIERCE__CLI_OK;
}

/* Anything but the hit rates of caches. */
static bool asks_for_more(const struct tierce__optimize *out)
{
    return out->csv != NULL || out->html != NULL || out->svg != NULL || out->png != NULL ||
           out->kvcm_csv != NULL || out->kvcm_config_path != NULL || out->money.model != NULL ||
           out->money.rounds > 0 || tierce__optimize_asks_sim(&out->sim);
}

/* A followed source has no end: only the hit rates of caches can be shown at any time. */
static int read_live(struct tierce__optimize *out, int paths)
{
    if (paths > 0)
        return tierce__cli_usage(COMMAND, "--live names the sources: omit TRACE");
    if (asks_for_more(out))
        return tierce__cli_usage(
            COMMAND, "--live shows hit rates and can be used with --policy, --order, --ttl, "
                     "--capacity, --match, --block-bytes, --format, --bad-share, "
                     "--every, --fade, --seed, --threads and --kvcm-mode, -batch, -used "
                     "and -sample-rate");
    for (size_t m = 0; m < out->match_count; m++) {
        if (out->matches[m].kind == TIERCE__MATCH_STREAM && out->fade_ms > 0)
            return tierce__cli_usage(COMMAND,
                                     "--fade cannot be used with --match stream: its hits are "
                                     "not counted by request");
    }
    if (out->cache_count == 0 && tierce__cache_find(&out->caches[0], "lru") == 0)
        out->cache_count = 1;
    return add_defaults(out);
}

int tierce__optimize_read_args(struct tierce__optimize *out, int argc, char **argv)
{
    *out = (struct tierce__optimize){0};
    int status = tierce__options_read(COMMAND, options, out, 0, &argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    if (out->live_count > 0)
        return read_live(out, argc - 1);
    if (out->every_ms > 0 || out->fade_ms > 0)
        return tierce__cli_usage(COMMAND, "%s requires --live",
                                 out->every_ms > 0 ? "--every" : "--fade");
    bool is_named = argc > 1 && argv[1][0] != '\0';
    if (!is_named && (argc > 1 || out->kvcm_config_path == NULL))
        return tierce__cli_usage(COMMAND, "requires a trace: a file, or - for standard input");
    if (argc > 2)
        return tierce__cli_usage(COMMAND, "accepts one trace; \"%.100s\" is a second", argv[2]);
    out->path = argv[1]; /* or NULL */
    return out->kvcm_config_path != NULL ? read_config(out) : add_defaults(out);
}
