/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIMIZE_MONEY_H
#define TIERCE_CLI_OPTIMIZE_MONEY_H

#include "optimizer/analysis/ttft.h"
#include "optimizer/analysis/trust.h"

#include <stdio.h>

/*
 * Part of `tierce optimize`: the value of hits, and the confidence in them.
 *
 *     optimize_money.c          checking the options, their values from the trace, running it
 *     optimize_profile.c        --profile and --tier-speeds
 *     optimize_money_print.c    the tables and the columns of the CSV
 *     optimize_trust.c          the uncertainty of a row's number
 */

struct tierce__optimize;
struct tierce__optimize_trace;

#define TIERCE__BLOCK_TOKENS_MAX (1u << 24)

/* The requested evaluation. */
struct tierce__optimize_money {
    const char *model, *gpu, *tier;         /* as they were written; NULL */
    const char *profile_path, *speeds_path; /* NULL */
    uint32_t block_tokens;                  /* 0: those of the format */
    uint32_t rounds;                        /* of the bootstrap; 0: none */
    bool has_model, has_gpu;
    struct tierce__profiles profiles;
    struct tierce__setup setup; /* complete once the trace is read */
};

#define TIERCE__OPTIMIZE_MONEY_HELP                                                                \
    "  --model NAME|K=V  llama-3.1-8b, llama-3.1-70b, qwen3-32b, deepseek-v3, or\n"                \
    "                    bytes=131072,params=8e9,... : gives the size of a block in bytes\n"       \
    "  --gpu NAME|K=V    h100, h200, h20, a100, a800, or flops=...,price=...,mfu=0.45 : with\n"    \
    "                    --model, computes the time and money that hits save\n"                    \
    "  --cost-tier NAME  medium of the cache: dram, nvme, remote (dram)\n"                         \
    "  --profile FILE    YAML with models, gpus and tiers: your prices and speeds\n"               \
    "  --tier-speeds FILE  this machine's speeds: output of `tierce bench memory disk --csv`\n"    \
    "  --block-tokens N  tokens of a block (mooncake 512, qwen 16, else as the trace states)\n"    \
    "  --bootstrap N     95 % intervals of the hit rates over N samples of sessions\n"

/* Called when all options are read: reads the profiles, and rejects options that cannot be
 * combined. Returns an exit status, as all below. */
int tierce__optimize_check_money(struct tierce__optimize_money *money);

/* Tokens of a block: from --block-tokens, or stated or implied by the trace. 0: unknown. */
uint32_t tierce__optimize_block_tokens(const struct tierce__optimize_money *money,
                                       const struct tierce__optimize_trace *trace);

/* Called when the trace is read: computes the tokens of a block, and from them its bytes, unless
 * *block_bytes is set. */
int tierce__optimize_fit_money(struct tierce__optimize_money *money, uint64_t *block_bytes,
                               const struct tierce__optimize_trace *trace);

/* --profile and --tier-speeds. A chunk's size chooses the row of the benchmark: the one nearest
 * to block_bytes. */
int tierce__optimize_read_profile(struct tierce__profiles *profiles, const char *path);
int tierce__optimize_read_speeds(struct tierce__profiles *profiles, const char *path,
                                 double block_bytes);

/* ---- results --------------------------------------------------------------------------------- */

struct tierce__optimize_findings {
    const struct tierce__optimize_money *money;
    struct tierce__latencies *latencies; /* NULL without a GPU */
    struct tierce__sessions *sessions;   /* NULL without a bootstrap */
    struct tierce__watch watches[2];
    bool has_economy;
    struct tierce__economy economy;
    struct tierce__trust trust;
};

/* Called before the sweep: adds the required options to it. */
int tierce__optimize_begin_findings(struct tierce__optimize_findings *out,
                                    struct tierce__sweep_opts *opts,
                                    const struct tierce__optimize_money *money,
                                    const struct tierce__recording *recording);

/* After it. */
int tierce__optimize_end_findings(struct tierce__optimize_findings *findings,
                                  const struct tierce__sweep *sweep,
                                  const struct tierce__recording *recording, uint64_t seed);

/* Accepts a zeroed one. */
void tierce__optimize_clear_findings(struct tierce__optimize_findings *findings);

/* Columns of the CSV, each preceded by a comma: their names, and the values of a row. */
void tierce__optimize_print_columns(FILE *file, const struct tierce__optimize_findings *findings);
void tierce__optimize_print_cells(FILE *file, const struct tierce__optimize_findings *findings,
                                  size_t row);

/* Prints the tables of money, if known, and the assumptions of the numbers. */
void tierce__optimize_print_money(FILE *file, const struct tierce__optimize_findings *findings,
                                  const struct tierce__sweep *sweep);

/* Prints confidence intervals, if there are any, and the limits of the rates. */
void tierce__optimize_print_trust(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__optimize_findings *findings,
                                  const struct tierce__sweep *sweep);

#endif
