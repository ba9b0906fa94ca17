/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>
#include <string.h>

#define COMMAND "optimize"

/* A fraction without a unit is neither blocks nor bytes. */
static bool ends_with_digit(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && text[length - 1] >= '0' && text[length - 1] <= '9';
}

bool tierce__optimize_read_size(struct tierce__optimize_size *out, const char *text)
{
    struct tierce__optimize_size size = {0};
    if (strcmp(text, "unlimited") == 0)
        size.amount = TIERCE__CAPACITY_UNLIMITED;
    else if (!tierce__parse_count(&size.amount, text))
        size.is_bytes = !ends_with_digit(text) && tierce__parse_size(&size.amount, text);
    if (size.amount == 0 || (size.is_bytes && size.amount > TIERCE__CAPACITY_BYTES_MAX))
        return false;
    *out = size;
    return true;
}

static int fit(const struct tierce__optimize *request, const char *option,
               struct tierce__optimize_size *size)
{
    if (!size->is_bytes && request->in_bytes && size->amount != TIERCE__CAPACITY_UNLIMITED)
        return tierce__cli_usage(COMMAND,
                                 "%s %" PRIu64
                                 " is in blocks, but another size is in bytes; a trace "
                                 "with block sizes requires all sizes in the same unit",
                                 option, size->amount);
    if (!size->is_bytes || request->in_bytes)
        return TIERCE__CLI_OK;
    if (request->block_bytes == 0)
        return tierce__cli_usage(COMMAND,
                                 "%s in bytes requires the size of a block: --block-bytes SIZE or "
                                 "--model NAME",
                                 option);
    if (size->amount < request->block_bytes)
        return tierce__cli_usage(COMMAND,
                                 "%s: %" PRIu64 " bytes is less than one block of %" PRIu64, option,
                                 size->amount, request->block_bytes);
    size->amount /= request->block_bytes;
    size->is_bytes = false;
    return TIERCE__CLI_OK;
}

struct sized {
    const char *option;
    struct tierce__optimize_size *size;
};

enum {
    SIZES_MAX = TIERCE__OPTIMIZE_LIST_MAX + TIERCE__TIERS_MAX + TIERCE__OPTIMIZE_GROUPS_MAX + 3
};

static size_t list_sizes(struct sized out[SIZES_MAX], struct tierce__optimize *request)
{
    struct tierce__optimize_sim *sim = &request->sim;
    size_t count = 0;
    for (size_t i = 0; i < request->capacity_count; i++)
        out[count++] = (struct sized){"--capacity", &request->capacity_sizes[i]};
    for (size_t i = 0; i < sim->tier_count; i++)
        out[count++] = (struct sized){"--tier", &sim->tier_sizes[i]};
    for (size_t i = 0; i < sim->quota_count; i++)
        out[count++] = (struct sized){"--quota", &sim->quotas[i].size};
    if (sim->autopilot.amount > 0)
        out[count++] = (struct sized){"--autopilot", &sim->autopilot};
    if (sim->split.amount > 0)
        out[count++] = (struct sized){"--split", &sim->split};
    if (sim->budget.amount > 0)
        out[count++] = (struct sized){"--budget", &sim->budget};
    if (sim->engine.amount > 0)
        out[count++] = (struct sized){"--engine-cache", &sim->engine};
    return count;
}

/* Belady's bound and KVCM's caches know blocks only. */
static bool knows_bytes(const struct tierce__cache *cache)
{
    return cache->kind == TIERCE__CACHE_POLICY || cache->kind == TIERCE__CACHE_INFINITE;
}

static int drop_block_caches(struct tierce__optimize *request)
{
    size_t kept = 0;
    for (size_t i = 0; i < request->cache_count; i++) {
        if (knows_bytes(&request->caches[i]))
            request->caches[kept++] = request->caches[i];
        else if (!request->usual_caches)
            return tierce__cli_usage(COMMAND,
                                     "--policy %s counts blocks, but the sizes are in bytes",
                                     request->caches[i].name);
    }
    request->cache_count = kept;
    return TIERCE__CLI_OK;
}

static bool all_know_bytes(const struct tierce__optimize *request)
{
    for (size_t i = 0; i < request->cache_count; i++) {
        if (!knows_bytes(&request->caches[i]) && !request->usual_caches)
            return false;
    }
    return true;
}

int tierce__optimize_fit_sizes(struct tierce__optimize *request,
                               const struct tierce__recording_totals *totals)
{
    struct sized sizes[SIZES_MAX];
    size_t count = list_sizes(sizes, request);
    bool any_bytes = false;
    for (size_t i = 0; i < count; i++)
        any_bytes = any_bytes || sizes[i].size->is_bytes;
    if (request->block_bytes == 0 && totals->has_bytes)
        request->in_bytes = count > 0 ? any_bytes : all_know_bytes(request);
    int status = request->in_bytes ? drop_block_caches(request) : TIERCE__CLI_OK;
    for (size_t i = 0; i < count && status == TIERCE__CLI_OK; i++)
        status = fit(request, sizes[i].option, sizes[i].size);
    for (size_t i = 0; i < request->sim.tier_count; i++)
        request->sim.tiers[i].capacity = request->sim.tier_sizes[i].amount;
    for (size_t i = 0; i < request->capacity_count; i++)
        request->capacities[i] = request->capacity_sizes[i].amount;
    return status;
}

void tierce__optimize_capacity(char text[32], const struct tierce__optimize *request,
                               uint64_t capacity)
{
    if (capacity == TIERCE__CAPACITY_UNLIMITED)
        snprintf(text, 32, "unlimited");
    else if (request->in_bytes)
        tierce__human_bytes(text, 32, capacity);
    else
        snprintf(text, 32, "%" PRIu64, capacity);
}
