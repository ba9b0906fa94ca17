/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND "optimize"

/* Calls `add` with each part of a list with commas between; ends with the first that is not
 * TIERCE__CLI_OK. */
static int for_each_part(const char *text, int (*add)(struct tierce__optimize *, const char *),
                         struct tierce__optimize *out)
{
    char part[64];
    for (;;) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof(part))
            return tierce__cli_usage(COMMAND, "\"%.60s...\" is too long for an element of a list",
                                     text);
        memcpy(part, text, length);
        part[length] = '\0';
        int status = add(out, part);
        if (status != TIERCE__CLI_OK || text[length] == '\0')
            return status;
        text += length + 1;
    }
}

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

static int add_policy(struct tierce__optimize *out, const char *name)
{
    if (out->cache_count == TIERCE__OPTIMIZE_LIST_MAX)
        return too_many("--policy");
    if (tierce__cache_find(&out->caches[out->cache_count], name) != 0)
        return no_such_policy(name);
    out->cache_count++;
    return TIERCE__CLI_OK;
}

static int add_order(struct tierce__optimize *out, const char *name)
{
    bool rev = strcmp(name, "rev") == 0;
    if (!rev && strcmp(name, "fwd") != 0)
        return tierce__cli_usage(COMMAND, "--order accepts rev, fwd or rev,fwd; not \"%s\"", name);
    enum tierce__touch_order order = rev ? TIERCE__TOUCH_REV : TIERCE__TOUCH_FWD;
    if (out->order_count > 0 && out->orders[0] == order)
        return TIERCE__CLI_OK;
    if (out->order_count < 2)
        out->orders[out->order_count++] = order;
    return TIERCE__CLI_OK;
}

static int add_match(struct tierce__optimize *out, const char *name)
{
    if (out->match_count == 8)
        return tierce__cli_usage(COMMAND, "--match accepts at most 8 parts");
    if (tierce__match_parse(&out->matches[out->match_count], name) != 0)
        return tierce__cli_usage(
            COMMAND,
            "--match accepts prefix, any, stream or window:N with N blocks; not "
            "\"%s\"",
            name);
    out->match_count++;
    return TIERCE__CLI_OK;
}

static int add_capacity(struct tierce__optimize *out, const char *text)
{
    if (out->capacity_count == TIERCE__OPTIMIZE_LIST_MAX)
        return too_many("--capacity");
    if (!tierce__optimize_read_size(&out->capacity_sizes[out->capacity_count], text))
        return tierce__cli_usage(
            COMMAND,
            "--capacity accepts blocks (10000), bytes with a unit (64GiB, at most "
            "4096PiB) or unlimited, and not less than one block; not \"%s\"",
            text);
    out->capacity_count++;
    return TIERCE__CLI_OK;
}

static int add_ttl(struct tierce__optimize *out, const char *text)
{
    uint64_t ms;
    if (out->ttl_count == TIERCE__OPTIMIZE_LIST_MAX)
        return too_many("--ttl");
    if (!tierce__parse_duration(&ms, text) || ms == 0 || ms > UINT64_MAX / 1000)
        return tierce__cli_usage(COMMAND, "--ttl accepts times like 300s or 1h; not \"%.60s\"",
                                 text);
    out->ttls[out->ttl_count++] = ms * 1000;
    return TIERCE__CLI_OK;
}

static int read_number(uint64_t *out, const char *option, const char *text, uint64_t least,
                       uint64_t most)
{
    if (tierce__parse_count(out, text) && *out >= least && *out <= most)
        return TIERCE__CLI_OK;
    return tierce__cli_usage(COMMAND, "%s requires a number from %llu to %llu; not \"%.60s\"",
                             option, (unsigned long long)least, (unsigned long long)most, text);
}

enum {
    OPTION_POLICY = 1,
    OPTION_ORDER,
    OPTION_MATCH,
    OPTION_CAPACITY,
    OPTION_BLOCK_BYTES,
    OPTION_CSV,
    OPTION_HTML,
    OPTION_SVG,
    OPTION_PNG,
    OPTION_FORMAT,
    OPTION_SEED,
    OPTION_TTL,
    OPTION_THREADS,
    OPTION_BAD_SHARE,
    OPTION_KVCM_MODE,
    OPTION_KVCM_BATCH,
    OPTION_KVCM_USED,
    OPTION_KVCM_SAMPLE_RATE,
    OPTION_KVCM_CSV,
    OPTION_KVCM_CONFIG,
    OPTION_LIVE,
    OPTION_EVERY,
    OPTION_FADE,
};

static int read_kvcm_option(struct tierce__kvcm_tuning *out, int option)
{
    uint64_t number = 0;
    int status;
    switch (option) {
    case OPTION_KVCM_MODE:
        status = read_number(&number, "--kvcm-mode", optarg, 1, 3);
        out->mode = (enum tierce__kvcm_mode)number;
        return status;
    case OPTION_KVCM_BATCH:
        status = read_number(&number, "--kvcm-batch", optarg, 1, INT32_MAX);
        out->batch = (uint32_t)number;
        return status;
    case OPTION_KVCM_USED:
        return tierce__cli_read_share(&out->used_share, COMMAND, "--kvcm-used", optarg);
    default:
        return tierce__cli_read_share(&out->sample_rate, COMMAND, "--kvcm-sample-rate", optarg);
    }
}

static int read_every(struct tierce__optimize *out, const char *text)
{
    uint64_t ms;
    if (!tierce__parse_duration(&ms, text) || ms == 0 || ms >= UINT32_MAX)
        return tierce__cli_usage(COMMAND, "--every requires a time like 5s; not \"%.60s\"", text);
    out->every_ms = (uint32_t)ms;
    return TIERCE__CLI_OK;
}

static int read_fade(struct tierce__optimize *out, const char *text)
{
    uint64_t ms;
    if (!tierce__parse_duration(&ms, text) || ms == 0 || ms > INT64_MAX / 1000)
        return tierce__cli_usage(COMMAND, "--fade requires a time like 10min; not \"%.60s\"", text);
    out->fade_us = ms * 1000;
    return TIERCE__CLI_OK;
}

static int read_option(struct tierce__optimize *out, int option)
{
    uint64_t threads = 0;
    int status;
    switch (option) {
    case OPTION_POLICY:
        return for_each_part(optarg, add_policy, out);
    case OPTION_ORDER:
        return for_each_part(optarg, add_order, out);
    case OPTION_MATCH:
        return for_each_part(optarg, add_match, out);
    case OPTION_CAPACITY:
        return for_each_part(optarg, add_capacity, out);
    case OPTION_BLOCK_BYTES:
        if (tierce__parse_size(&out->block_bytes, optarg) && out->block_bytes > 0)
            return TIERCE__CLI_OK;
        return tierce__cli_usage(COMMAND, "--block-bytes requires a size like 40MiB; not \"%.60s\"",
                                 optarg);
    case OPTION_LIVE:
        if (out->live_count == TIERCE__OPTIMIZE_SOURCES_MAX)
            return tierce__cli_usage(COMMAND, "--live may be given at most %d times",
                                     TIERCE__OPTIMIZE_SOURCES_MAX);
        out->live[out->live_count++] = optarg;
        return TIERCE__CLI_OK;
    case OPTION_FADE:
        return read_fade(out, optarg);
    case OPTION_EVERY:
        return read_every(out, optarg);
    case OPTION_CSV:
        out->csv = optarg;
        return TIERCE__CLI_OK;
    case OPTION_HTML:
        out->html = optarg;
        return TIERCE__CLI_OK;
    case OPTION_SVG:
        out->svg = optarg;
        return TIERCE__CLI_OK;
    case OPTION_PNG:
        out->png = optarg;
        return TIERCE__CLI_OK;
    case OPTION_FORMAT:
        out->format = optarg;
        return tierce__cli_check_name(COMMAND, "--format", tierce__trace_format_name, optarg);
    case OPTION_SEED:
        return read_number(&out->seed, "--seed", optarg, 0, UINT64_MAX);
    case OPTION_TTL:
        return for_each_part(optarg, add_ttl, out);
    case OPTION_THREADS:
        status = read_number(&threads, "--threads", optarg, 1, 64);
        out->threads = (uint32_t)threads;
        return status;
    case OPTION_BAD_SHARE:
        return tierce__cli_read_share(&out->bad_share_max, COMMAND, "--bad-share", optarg);
    case OPTION_KVCM_MODE:
    case OPTION_KVCM_BATCH:
    case OPTION_KVCM_USED:
    case OPTION_KVCM_SAMPLE_RATE:
        return read_kvcm_option(&out->kvcm, option);
    case OPTION_KVCM_CSV:
        out->kvcm_csv = optarg;
        return TIERCE__CLI_OK;
    case OPTION_KVCM_CONFIG:
        out->kvcm_config_path = optarg;
        return TIERCE__CLI_OK;
    default:
        return option < TIERCE__OPTIMIZE_MONEY_END
                   ? tierce__optimize_read_money(&out->money, option, optarg)
                   : tierce__optimize_read_sim(&out->sim, option, optarg);
    }
}

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
    static const char policies[] = "lru,leaf-lru,lfu,sieve,s3fifo,arc,belady";
    int status = TIERCE__CLI_OK;
    out->usual_caches = out->cache_count == 0;
    if (out->usual_caches)
        status = for_each_part(policies, add_policy, out);
    if (status == TIERCE__CLI_OK && out->order_count == 0)
        status = add_order(out, "rev");
    if (status == TIERCE__CLI_OK && out->match_count == 0)
        status = add_match(out, "prefix");
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
        return tierce__cli_usage(COMMAND,
                                 "--kvcm-config cannot be used with --life, --timeline, --tier, "
                                 "--quota, --split, --budget, --engine-cache and --scale");
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
        if (out->matches[m].kind == TIERCE__MATCH_STREAM && out->fade_us > 0)
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
    static const struct option options[] = {
        {"policy", required_argument, NULL, OPTION_POLICY},
        {"order", required_argument, NULL, OPTION_ORDER},
        {"match", required_argument, NULL, OPTION_MATCH},
        {"capacity", required_argument, NULL, OPTION_CAPACITY},
        {"block-bytes", required_argument, NULL, OPTION_BLOCK_BYTES},
        {"csv", required_argument, NULL, OPTION_CSV},
        {"html", required_argument, NULL, OPTION_HTML},
        {"svg", required_argument, NULL, OPTION_SVG},
        {"png", required_argument, NULL, OPTION_PNG},
        {"format", required_argument, NULL, OPTION_FORMAT},
        {"seed", required_argument, NULL, OPTION_SEED},
        {"ttl", required_argument, NULL, OPTION_TTL},
        {"threads", required_argument, NULL, OPTION_THREADS},
        {"bad-share", required_argument, NULL, OPTION_BAD_SHARE},
        {"kvcm-mode", required_argument, NULL, OPTION_KVCM_MODE},
        {"kvcm-batch", required_argument, NULL, OPTION_KVCM_BATCH},
        {"kvcm-used", required_argument, NULL, OPTION_KVCM_USED},
        {"kvcm-sample-rate", required_argument, NULL, OPTION_KVCM_SAMPLE_RATE},
        {"kvcm-csv", required_argument, NULL, OPTION_KVCM_CSV},
        {"kvcm-config", required_argument, NULL, OPTION_KVCM_CONFIG},
        {"live", required_argument, NULL, OPTION_LIVE},
        {"every", required_argument, NULL, OPTION_EVERY},
        {"fade", required_argument, NULL, OPTION_FADE},
        TIERCE__OPTIMIZE_MONEY_OPTIONS,
        TIERCE__OPTIMIZE_SIM_OPTIONS,
        {NULL, 0, NULL, 0},
    };
    *out = (struct tierce__optimize){0};
    int option, status = TIERCE__CLI_OK;
    optind = 1;
    while (status == TIERCE__CLI_OK && (option = getopt_long(argc, argv, ":", options, NULL)) != -1)
        status = option == '?' || option == ':'
                     ? tierce__cli_wrong_option(COMMAND, option, argv[optind - 1], options)
                     : read_option(out, option);
    if (status != TIERCE__CLI_OK)
        return status;
    if (out->live_count > 0)
        return read_live(out, argc - optind);
    if (out->every_ms > 0 || out->fade_us > 0)
        return tierce__cli_usage(COMMAND, "%s requires --live",
                                 out->every_ms > 0 ? "--every" : "--fade");
    bool is_named = optind < argc && argv[optind][0] != '\0';
    if (!is_named && (optind < argc || out->kvcm_config_path == NULL))
        return tierce__cli_usage(COMMAND, "requires a trace: a file, or - for standard input");
    if (optind + 1 < argc)
        return tierce__cli_usage(COMMAND, "accepts one trace; \"%.100s\" is a second",
                                 argv[optind + 1]);
    out->path = argv[optind]; /* or NULL */
    return out->kvcm_config_path != NULL ? read_config(out) : add_defaults(out);
}
