/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIMIZE_SIM_H
#define TIERCE_CLI_OPTIMIZE_SIM_H

#include "optimizer/analysis/profiles.h"
#include "optimizer/analysis/states.h"
#include "optimizer/replay/sweep.h"
#include "optimizer/replay/tiers.h"

#include <stdio.h>

/*
 * Part of `tierce optimize`: simulations in addition to the sweep, each only on request.
 *
 *     optimize_sim.c       the options
 *     optimize_sizes.c     capacities, once the trace is read
 *     optimize_life.c      --life, --timeline
 *     optimize_tiers.c     --tier
 *     optimize_groups.c    --group, --quota, --split, --autopilot
 *     optimize_states.c    --states
 *     optimize_scale.c     --scale, --budget
 */

struct tierce__optimize;
struct tierce__optimize_trace;

enum { TIERCE__OPTIMIZE_GROUPS_MAX = 64, TIERCE__OPTIMIZE_RULES_MAX = 32 };

/* A capacity as it was written. */
struct tierce__optimize_size {
    uint64_t amount; /* blocks, bytes, or TIERCE__CAPACITY_UNLIMITED */
    bool is_bytes;
};

/* NAME=VALUE, [borrow]ed from the command line. */
struct tierce__optimize_named {
    const char *text;
    size_t name_length;
    const char *value;
    struct tierce__optimize_size size; /* of a quota */
};

struct tierce__optimize_sim {
    bool life;
    const char *timeline; /* NULL, a file, or "-" */
    struct tierce__tier_spec tiers[TIERCE__TIERS_MAX];
    struct tierce__optimize_size tier_sizes[TIERCE__TIERS_MAX];
    char tier_costs[TIERCE__TIERS_MAX][TIERCE__TIER_NAME_BYTES];     /* names of profiles, or "" */
    struct tierce__storage_profile tier_storages[TIERCE__TIERS_MAX]; /* these profiles */
    bool has_tier_costs;                                             /* each of them has one */
    size_t tier_count;
    enum tierce__tiers_writes writes;
    enum tierce__tiers_promote promote;
    struct tierce__optimize_named groups[TIERCE__OPTIMIZE_GROUPS_MAX];
    struct tierce__optimize_named quotas[TIERCE__OPTIMIZE_GROUPS_MAX];
    size_t group_count, quota_count;
    struct tierce__optimize_size split, budget; /* here and below, amount 0: not given */
    struct tierce__optimize_size autopilot;
    struct tierce__optimize_size engine; /* of each engine's own cache */
    double scale;                        /* 0: the whole trace */
    uint64_t state_bytes;                /* 0: no states */
    struct tierce__state_rule rules[TIERCE__OPTIMIZE_RULES_MAX];
    size_t rule_count;                            /* 0: the usual ones */
    const char *tier_csv, *group_csv, *state_csv; /* NULL, a file, or "-" */
};

#define TIERCE__OPTIMIZE_SIM_HELP                                                                  \
    "  --engine-cache SIZE  size of each engine's own cache in GPU memory; its hits are "          \
    "excluded,\n"                                                                                  \
    "                    and the remaining hits are those that a store adds\n"                     \
    "  --budget SIZE     shows the best policy and capacity up to this size\n"                     \
    "  --life            lifetime of blocks: reuse, time to next use, the hottest prefixes; "      \
    "with\n"                                                                                       \
    "                    --capacity also in each cache\n"                                          \
    "  --timeline FILE   CSV of the caches of --policy and --capacity over time\n"                 \
    "  --tier SPEC       simulates tiers, the fastest first; one --tier for each:\n"               \
    "                    memory:64GiB,read=20GB/s\n"                                               \
    "                    disk:1TiB,policy=lru,read=3GB/s,latency=100us,write=2GB/s,\n"             \
    "                    ttl=1h,endurance=1PB (policy lru; an omitted time counts as 0)\n"         \
    "                    cost=NAME of a --cost-tier, in every --tier: with --gpu, total savings\n" \
    "  --tier-writes all|waterfall  stores go to all tiers; or to the first, and each tier's\n"    \
    "                    evicted blocks to the next (all)\n"                                       \
    "  --tier-promote first|all|none  copies hits of slower tiers to the first tier, to all\n"     \
    "                    faster tiers, or nowhere (first)\n"                                       \
    "  --tier-csv FILE   one line per tier, and one for all\n"                                     \
    "  --quota NAME=SIZE  gives a group of instances its own cache; may be repeated\n"             \
    "  --group NAME=INSTANCE,...  instances of a group, if not just the instance of that name\n"   \
    "  --split SIZE      the best division of SIZE among groups (or all instances), by LRU "       \
    "curves\n"                                                                                     \
    "  --autopilot SIZE  the hits if the manager's autopilot divides SIZE among groups (or all\n"  \
    "                    instances), beside the best split that stays and one that moves\n"        \
    "  --group-csv FILE  one line per group of --quota and --split, and one for all\n"             \
    "  --states SIZE     for models with recurrent layers: hits for each rule of --state-rules,\n" \
    "                    with states of this size; KV and states share each --capacity\n"          \
    "  --state-rules LIST  which states are kept: every or every:K (block boundaries), last\n"     \
    "                    (boundary of a prompt), branch (end of a shared prefix), or several\n"    \
    "                    joined by +\n"                                                            \
    "                    (every,every:4,every:16,last,branch,last+branch)\n"                       \
    "  --state-csv FILE  one line per rule and capacity\n"                                         \
    "  --scale SHARE     replays only this share of the conversations, in caches scaled down "     \
    "alike\n"

/* Functions for rows of the options' table (cli/options.h): one for sizes; one each for --tier,
 * --group, --quota and a part of --state-rules, whose field is the whole struct
 * tierce__optimize_sim. These and all functions below return an exit status unless stated
 * otherwise. */
int tierce__optimize_read_amount(void *size, const char *option, const char *text);
int tierce__optimize_read_tier(void *sim, const char *option, const char *text);
int tierce__optimize_read_group(void *sim, const char *option, const char *text);
int tierce__optimize_read_quota(void *sim, const char *option, const char *text);
int tierce__optimize_read_rule(void *sim, const char *option, const char *text);

/* Blocks (10000), bytes with a unit (64GiB) or unlimited. False: `text` is not a size, or is 0. */
bool tierce__optimize_read_size(struct tierce__optimize_size *out, const char *text);

/* Whether any of them was given. */
bool tierce__optimize_asks_sim(const struct tierce__optimize_sim *sim);

/* Called when all options are read: rejects options that cannot be combined, and looks up the costs
 * of tiers. */
int tierce__optimize_check_sim(struct tierce__optimize *request);

/*
 * Called after the trace is read. Converts sizes in bytes to blocks. If only the trace has block
 * sizes, everything is in bytes instead (request->in_bytes); that is also the default for such a
 * trace. Afterwards all sizes have the unit of capacities.
 */
int tierce__optimize_fit_sizes(struct tierce__optimize *request,
                               const struct tierce__recording_totals *totals);

/* Refuses groups that do not fit the instances of the trace. */
int tierce__optimize_check_groups(const struct tierce__optimize *request,
                                  const struct tierce__optimize_trace *trace);

/* Refuses --states if the size or the tokens of a block are unknown. */
int tierce__optimize_check_states(const struct tierce__optimize *request,
                                  const struct tierce__optimize_trace *trace);

/* ---- running and printing, each if it was asked for ------------------------------------------ */

int tierce__optimize_run_life(const struct tierce__optimize *request,
                              const struct tierce__optimize_trace *trace);
int tierce__optimize_write_timeline(const struct tierce__optimize *request,
                                    const struct tierce__recording *recording);
/* `name` is the trace's, as below. */
int tierce__optimize_run_tiers(const struct tierce__optimize *request,
                               const struct tierce__recording *recording, const char *name);

int tierce__optimize_run_states(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace, const char *name);

/* The requested tiers [borrow the request], and a replay in them; *out is the caller's to
 * destroy. */
struct tierce__tiers_opts tierce__optimize_tiers(const struct tierce__optimize *request,
                                                 const struct tierce__recording *recording);
int tierce__optimize_replay_tiers(struct tierce__tiers **out, const struct tierce__tiers_opts *opts,
                                  const struct tierce__recording *recording);

int tierce__optimize_run_groups(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace, const char *name);
void tierce__optimize_print_budget(FILE *file, const struct tierce__optimize *request,
                                   const struct tierce__sweep *sweep);

/* Runs the sweep over a part of the trace (scale.h), and reports its accuracy. */
int tierce__optimize_run_scaled(const struct tierce__optimize *request,
                                const struct tierce__recording *recording, const char *name,
                                const struct tierce__sweep_opts *opts);

/* "1.2 ms"; 32 bytes suffice. */
void tierce__optimize_time(char text[32], double seconds);

/* "10000", or "64 GiB" where capacities are bytes. */
void tierce__optimize_capacity(char text[32], const struct tierce__optimize *request,
                               uint64_t capacity);

#endif
