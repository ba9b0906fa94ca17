/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hit rates of hybrid models in a cache of one size: eviction that judges the groups of layers
 * together (value), against LRU of each block by itself (limit). Conversations go on with all of
 * their blocks; eight system prompts are shared. Full attention, windows and states are stored for
 * each block, as an engine computes them.
 */
#include "bench/bench.h"

#include <stdio.h>

#include "base/assert.h"
#include "optimizer/analysis/hybrid.h"
#include "optimizer/replay/sweep.h"

enum {
    CONVERSATIONS = 128,
    SYSTEM_PROMPTS = 8,
    SYSTEM_BLOCKS = 8,
    BLOCKS_MAX = 96,
    TURN_BLOCKS = 6,
    BLOCK_TOKENS = 256,
    TURNS = 2000,
    TURNS_QUICK = 200,
    TURN_US = 5000000,
};

#define MIB (1ULL << 20)

struct families_model {
    const char *name;
    struct tierce__trace_layers sparse;
    uint64_t full_bytes, sparse_bytes;
    uint32_t cuts;    /* percent of the turns: go on from anywhere in the conversation */
    uint32_t longest; /* conversation, in blocks */
};

static const struct families_model models[] = {
    {"window-128",
     {"window", "g", "f", "1", BLOCK_TOKENS, 128, 0},
     12 * MIB,
     12 * MIB,
     0,
     BLOCKS_MAX},
    {"window-1024",
     {"window", "g", "f", "1", BLOCK_TOKENS, 1024, 0},
     4 * MIB,
     20 * MIB,
     0,
     BLOCKS_MAX},
    {"state",
     {"linear", "g", "f", "1", BLOCK_TOKENS, 0, BLOCK_TOKENS},
     6 * MIB,
     18 * MIB,
     0,
     BLOCKS_MAX},
    {"state; half of the prompts cut",
     {"linear", "g", "f", "1", BLOCK_TOKENS, 0, BLOCK_TOKENS},
     6 * MIB,
     18 * MIB,
     50,
     BLOCKS_MAX},
    {"state; all prompts cut",
     {"linear", "g", "f", "1", BLOCK_TOKENS, 0, BLOCK_TOKENS},
     6 * MIB,
     18 * MIB,
     100,
     BLOCKS_MAX},
    {"state; all prompts cut and short",
     {"linear", "g", "f", "1", BLOCK_TOKENS, 0, BLOCK_TOKENS},
     6 * MIB,
     18 * MIB,
     100,
     2 * SYSTEM_BLOCKS},
};

struct families_conversation {
    uint64_t blocks[BLOCKS_MAX], bytes[BLOCKS_MAX];
    uint32_t count;
};

struct families_case {
    const struct tierce__bench *bench;
    const struct families_model *model;
    struct families_conversation conversations[CONVERSATIONS];
    uint64_t next_block, random;
};

static uint32_t draw(struct families_case *c, uint32_t bound)
{
    TIERCE_DASSERT(bound > 0);
    return (uint32_t)(tierce__bench_random(7, c->random++) % bound);
}

/* Another turn; a conversation that is too long restarts. */
static void go_on(struct families_case *c, struct families_conversation *talk)
{
    uint32_t fresh = 1 + draw(c, TURN_BLOCKS);
    if (c->model->cuts > 0 && talk->count > SYSTEM_BLOCKS && draw(c, 100) < c->model->cuts)
        talk->count = SYSTEM_BLOCKS + draw(c, talk->count - SYSTEM_BLOCKS);
    if (talk->count + fresh > c->model->longest)
        talk->count = 0;
    if (talk->count == 0) {
        uint64_t system = draw(c, SYSTEM_PROMPTS);
        for (; talk->count < SYSTEM_BLOCKS; talk->count++)
            talk->blocks[talk->count] = 1 + system * SYSTEM_BLOCKS + talk->count;
    }
    for (uint32_t i = 0; i < fresh; i++)
        talk->blocks[talk->count++] = c->next_block++;
    TIERCE_ASSERT(talk->count <= BLOCKS_MAX);
}

static int add(struct tierce__hybrid *hybrid, const struct families_case *c, uint32_t instance,
               struct families_conversation *talk, uint64_t turn)
{
    static const struct tierce__trace_layers full = {"full", "g", "f", "0", BLOCK_TOKENS, 0, 0};
    uint64_t bytes = instance == 0 ? c->model->full_bytes : c->model->sparse_bytes;
    for (uint32_t i = 0; i < talk->count; i++)
        talk->bytes[i] = bytes;
    struct tierce__trace_request request = {
        .time_us = (int64_t)(turn * TURN_US),
        .instance = instance,
        .kind = instance == 0 ? TIERCE__TRACE_TURN : TIERCE__TRACE_WRITE,
        .count = talk->count,
        .read_count = instance == 0 ? talk->count : 0,
        .blocks = talk->blocks,
        .bytes = talk->bytes,
    };
    return tierce__hybrid_add(hybrid, &request, instance == 0 ? &full : &c->model->sparse);
}

/* Replays the turns in a cache of `capacity` bytes. Recent conversations go on more often. */
static int replay(struct families_case *c, uint64_t capacity, bool is_paired,
                  struct tierce__hybrid_result *out)
{
    struct tierce__hybrid_opts opts = {
        .size = sizeof(opts), .capacity = capacity, .block_bytes = MIB, .is_paired = is_paired};
    uint64_t turns = c->bench->seconds >= 1 ? TURNS : TURNS_QUICK;
    struct tierce__hybrid *hybrid;
    int rc = tierce__hybrid_create(&hybrid, &opts);
    if (rc < 0)
        return rc;
    c->next_block = 1 + SYSTEM_PROMPTS * SYSTEM_BLOCKS;
    c->random = 0;
    for (uint32_t i = 0; i < CONVERSATIONS; i++)
        c->conversations[i].count = 0;
    for (uint64_t turn = 0; turn < turns && rc == 0; turn++) {
        uint32_t recent = draw(c, CONVERSATIONS);
        recent = draw(c, recent + 1);
        uint32_t at = (uint32_t)(turn / 32 + recent) % CONVERSATIONS;
        go_on(c, &c->conversations[at]);
        rc = add(hybrid, c, 0, &c->conversations[at], turn);
        if (rc == 0)
            rc = add(hybrid, c, 1, &c->conversations[at], turn);
    }
    *out = tierce__hybrid_result(hybrid);
    tierce__hybrid_destroy(hybrid);
    return rc;
}

static double rate_of(const struct tierce__hybrid_result *result)
{
    return 100.0 * (double)result->hit_tokens / (double)result->tokens;
}

static int compare(struct families_case *c, uint64_t all_bytes, uint64_t part)
{
    struct tierce__hybrid_result paired, alone;
    char name[64];
    int rc = replay(c, all_bytes / part, true, &paired);
    if (rc == 0)
        rc = replay(c, all_bytes / part, false, &alone);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s; 1/%llu of the bytes", c->model->name,
             (unsigned long long)part);
    tierce__bench_emit(c->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "% hits",
                                                             .value = rate_of(&paired),
                                                             .limit = rate_of(&alone),
                                                             .goal = 1.0});
    return 0;
}

int tierce__bench_families(const struct tierce__bench *bench)
{
    static struct families_case c;
    int rc = 0;
    c.bench = bench;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]) && rc == 0; i++) {
        struct tierce__hybrid_result all;
        c.model = &models[i];
        rc = replay(&c, TIERCE__CAPACITY_UNLIMITED, true, &all);
        for (uint64_t part = 16; part >= 4 && rc == 0; part /= 2)
            rc = compare(&c, all.used_bytes, part);
    }
    return rc;
}
