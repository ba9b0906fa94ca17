/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/optimize_money.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "optimizer/analysis/life.h"

#include <inttypes.h>
#include <string.h>

#define COMMAND "optimize"
#define CURVE_BLOCKS_MAX                                                                           \
    (1u << 26)           /* maximum for a trace whose curve is kept: 1.5 GiB per curve             \
                          */
#define MISFITS_MOST 0.1 /* share of requests whose blocks may not be their tokens */

/* ---- options --------------------------------------------------------------------------------- */

int tierce__optimize_check_money(struct tierce__optimize_money *money)
{
    char why[TIERCE__PROFILE_WHY_BYTES];
    tierce__profiles_init(&money->profiles);
    if (money->gpu != NULL && money->model == NULL)
        return tierce__cli_usage(COMMAND, "--gpu requires --model");
    if ((money->tier != NULL || money->speeds_path != NULL) && money->gpu == NULL)
        return tierce__cli_usage(COMMAND,
                                 "--cost-tier and --tier-speeds require --model and --gpu");
    int status = money->profile_path != NULL
                     ? tierce__optimize_read_profile(&money->profiles, money->profile_path)
                     : TIERCE__CLI_OK;
    if (status != TIERCE__CLI_OK)
        return status;
    if (money->model != NULL &&
        tierce__model_read(&money->setup.model, &money->profiles, money->model, why) < 0)
        return tierce__cli_usage(COMMAND, "--model: %s", why);
    if (money->gpu != NULL &&
        tierce__gpu_read(&money->setup.gpu, &money->profiles, money->gpu, why) < 0)
        return tierce__cli_usage(COMMAND, "--gpu: %s", why);
    const char *tier = money->tier != NULL ? money->tier : "dram";
    if (money->gpu != NULL &&
        tierce__storage_read(&money->setup.storage, &money->profiles, tier, why) < 0)
        return tierce__cli_usage(COMMAND, "--cost-tier: %s", why);
    money->has_model = money->model != NULL;
    money->has_gpu = money->gpu != NULL;
    return TIERCE__CLI_OK;
}

/* ---- facts from the trace -------------------------------------------------------------------- */

/* Tokens of a block where each request's tokens are so many whole blocks; else 0. */
static uint32_t tokens_of_whole_blocks(const struct tierce__recording *recording)
{
    uint64_t tokens = 0;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->count == 0)
            continue;
        if (r->input_tokens % r->count != 0 ||
            (tokens != 0 && r->input_tokens / r->count != tokens))
            return 0;
        tokens = r->input_tokens / r->count;
    }
    return tokens <= TIERCE__BLOCK_TOKENS_MAX ? (uint32_t)tokens : 0;
}

/* Fixed by the format, stated by each request, or inferred from all requests. */
uint32_t tierce__optimize_block_tokens(const struct tierce__optimize_money *money,
                                       const struct tierce__optimize_trace *trace)
{
    if (money->block_tokens != 0)
        return money->block_tokens;
    uint64_t tokens = tokens_of_whole_blocks(trace->recording);
    static const struct {
        const char *format;
        uint32_t tokens;
    } known[] = {{"mooncake", 512}, {"qwen", 16}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(trace->format, known[i].format) == 0)
            return known[i].tokens;
    }
    if (tokens == 0)
        tokens = tierce__block_tokens(trace->recording);
    return tokens <= TIERCE__BLOCK_TOKENS_MAX ? (uint32_t)tokens : 0;
}

/* Warns if the tokens of the requests do not match their blocks; the last block may be partial or
 * missing. */
static void tell_misfits(const struct tierce__recording *recording, uint32_t block_tokens)
{
    uint64_t known = 0, misfits = 0;
    const struct tierce__recorded *first = NULL;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->input_tokens == 0)
            continue;
        uint64_t whole = r->input_tokens / block_tokens;
        bool fits = r->count == whole || r->count == whole + 1;
        known++;
        misfits += !fits;
        first = fits || first != NULL ? first : r;
    }
    if (first != NULL && (double)misfits > MISFITS_MOST * (double)known)
        fprintf(stderr,
                "tierce optimize: blocks of %" PRIu32 " tokens do not fit the trace: %" PRIu64
                " of %" PRIu64 " requests have another number of blocks; the first has %" PRIu32
                " for %" PRIu64 " tokens; set it with --block-tokens\n",
                block_tokens, misfits, known, first->count, first->input_tokens);
}

int tierce__optimize_fit_money(struct tierce__optimize_money *money, uint64_t *block_bytes,
                               const struct tierce__optimize_trace *trace)
{
    char why[TIERCE__PROFILE_WHY_BYTES];
    struct tierce__setup *setup = &money->setup;
    if (!money->has_model)
        return TIERCE__CLI_OK;
    setup->block_tokens = tierce__optimize_block_tokens(money, trace);
    if (setup->block_tokens == 0)
        return tierce__cli_usage(COMMAND,
                                 "a trace of the format %s does not state the tokens of a block: "
                                 "--model requires --block-tokens N",
                                 trace->format);
    tell_misfits(trace->recording, setup->block_tokens);
    setup->block_bytes = *block_bytes;
    double bytes = tierce__block_bytes(setup);
    if (!(bytes >= 1 && bytes < 1e18))
        return tierce__cli_usage(COMMAND, "a block cannot have %g bytes", bytes);
    *block_bytes = (uint64_t)bytes;
    if (money->speeds_path == NULL)
        return TIERCE__CLI_OK;
    int status = tierce__optimize_read_speeds(&money->profiles, money->speeds_path, bytes);
    if (status == TIERCE__CLI_OK &&
        tierce__storage_read(&setup->storage, &money->profiles,
                             money->tier != NULL ? money->tier : "dram", why) < 0)
        return tierce__cli_usage(COMMAND, "--cost-tier: %s", why);
    return status;
}

/* ---- around the sweep ------------------------------------------------------------------------ */

static int no_memory(int rc)
{
    return tierce__cli_fail(COMMAND, "%s", tierce_strerror(rc));
}

int tierce__optimize_begin_findings(struct tierce__optimize_findings *out,
                                    struct tierce__sweep_opts *opts,
                                    const struct tierce__optimize_money *money,
                                    const struct tierce__recording *recording)
{
    int rc = 0;
    *out = (struct tierce__optimize_findings){.money = money};
    opts->watches = out->watches;
    if (money->has_gpu) {
        opts->block_tokens = money->setup.block_tokens;
        opts->keeps_curves =
            opts->keeps_curves || tierce__recording_totals(recording).distinct <= CURVE_BLOCKS_MAX;
        rc = tierce__latencies_create(&out->latencies, &money->setup, recording);
    }
    if (rc == 0 && money->has_gpu)
        out->watches[opts->watch_count++] = tierce__latencies_watch(out->latencies);
    if (rc == 0 && money->rounds > 0)
        rc = tierce__sessions_create(&out->sessions, recording);
    if (rc == 0 && money->rounds > 0)
        out->watches[opts->watch_count++] = tierce__sessions_watch(out->sessions);
    return rc < 0 ? no_memory(rc) : TIERCE__CLI_OK;
}

int tierce__optimize_end_findings(struct tierce__optimize_findings *findings,
                                  const struct tierce__sweep *sweep,
                                  const struct tierce__recording *recording, uint64_t seed)
{
    const struct tierce__optimize_money *money = findings->money;
    int rc = tierce__trust_run(&findings->trust, sweep, recording, findings->sessions,
                               money->rounds, seed);
    if (rc < 0 || !money->has_gpu)
        return rc < 0 ? no_memory(rc) : TIERCE__CLI_OK;
    rc = tierce__economy_run(&findings->economy, sweep, recording, &money->setup);
    findings->has_economy = rc == 0;
    if (rc == TIERCE_E_ARGUMENT) {
        fprintf(stderr, "tierce optimize: all requests have the same time: rates per hour, and so "
                        "savings, are unknown\n");
        rc = 0;
    }
    return rc < 0 ? no_memory(rc) : TIERCE__CLI_OK;
}

void tierce__optimize_clear_findings(struct tierce__optimize_findings *findings)
{
    tierce__latencies_destroy(findings->latencies);
    tierce__sessions_destroy(findings->sessions);
    tierce__economy_clear(&findings->economy);
    tierce__trust_clear(&findings->trust);
    *findings = (struct tierce__optimize_findings){0};
}
