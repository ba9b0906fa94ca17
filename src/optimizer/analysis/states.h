/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_STATES_H
#define TIERCE_OPTIMIZER_STATES_H

#include "optimizer/replay/sweep.h"
#include "optimizer/trace/recording.h"

/*
 * Which checkpoints of recurrent states are worth keeping, for models that have both full attention
 * and recurrent layers (Mamba, gated delta networks).
 *
 *     rc = tierce__state_rule_parse(&rule, "every:8+last");
 *     rc = tierce__states_run(&states, recording, &(struct tierce__states_opts){
 *              .rules = &rule, .rule_count = 1, .state_bytes = 48 << 20, ...});
 *     row = &states.rows[capacity * rule_count + rule];
 *
 * A request continues after its first t blocks if the cache holds the KV of each of them and the
 * state at the end of block t. The hit is the largest such t, or 0. The request then computes its
 * other blocks and passes the boundaries after t. The rule selects the states to keep among these
 * boundaries; missing states before t are not computed again.
 *
 * Only full blocks count, because a partial block has no boundary. If the tokens of a request are
 * known and all its blocks are looked up, the full blocks are the first input_tokens / block_tokens
 * blocks.
 *
 * The cache is LRU over KV (block_bytes for each block) and states (state_bytes each), by bytes. A
 * lookup changes nothing. Afterwards the blocks are used from the last to the first, and each
 * block's state before its KV, so that a prefix is newer than its suffix: KV of all blocks, the
 * state that the request continued from, and the states to keep. An object that is used is touched
 * if it is cached, and otherwise stored; a request that only reads stores nothing. A write
 * continues from the state that a lookup would find, which is not counted as a hit.
 *
 * Costs, for each thread: 8 bytes per distinct block and 28 per cached KV block and state; for all:
 * 4 bytes per request and 1 per distinct block. Threads: one call at a time for each result.
 */

/* The boundaries whose states are kept: the union of those below, by number of blocks before. */
struct tierce__state_rule {
    uint32_t every; /* the multiples of this number (vLLM: the retention interval); 0: none */
    bool last;      /* the end of the last of the request's blocks that are stored */
    bool branch;    /* the end of the leading blocks that earlier requests have stored, also if they
                       were evicted: the junction of a shared prefix */
};

/* Parses parts that are joined by "+": "every" (every:1), "every:K", "last", "branch".
 * TIERCE_E_ARGUMENT, *out untouched: anything else, or a part that occurs twice. */
TIERCE_MUSTUSE int tierce__state_rule_parse(struct tierce__state_rule *out, const char *text);

/* Writes the text form that parse reads. */
#define TIERCE__STATE_RULE_BYTES 32u
void tierce__state_rule_print(const struct tierce__state_rule *rule,
                              char out[TIERCE__STATE_RULE_BYTES]);

struct tierce__states_opts {
    size_t size;                            /* sizeof(struct tierce__states_opts) */
    const struct tierce__state_rule *rules; /* [borrow for the call] */
    size_t rule_count;                      /* >= 1 */
    const uint64_t *capacities;             /* bytes >= 1, or TIERCE__CAPACITY_UNLIMITED */
    size_t capacity_count;                  /* >= 1 */
    uint64_t block_bytes, state_bytes;      /* >= 1 */
    uint32_t block_tokens;                  /* >= 1 */
    uint32_t threads;                       /* 0: one for each processor */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* requests; or NULL */
    void *progress_arg;
};

struct tierce__states_row {
    struct tierce__state_rule rule;
    uint64_t capacity;
    uint64_t hit_tokens;
    uint64_t states_stored;       /* over the whole trace */
    uint64_t states, state_bytes; /* held at the end */
    uint64_t kv_bytes;            /* held at the end */
};

struct tierce__states {
    struct tierce__states_row *rows; /* by capacity, then by rule, in the order of the options */
    size_t rule_count, capacity_count;
    uint64_t lookups;    /* requests with a lookup */
    uint64_t tokens;     /* of these */
    uint64_t hit_tokens; /* with a state at every boundary and no limit: no row has more */
};

/*
 * Errors, *out untouched: -ENOMEM, negative errno (no thread), TIERCE_E_ARGUMENT (an option out of
 * its range), TIERCE_E_LIMIT (over 2^31 - 5 distinct blocks, or more than
 * TIERCE__CAPACITY_BYTES_MAX bytes if every state is kept).
 */
TIERCE_MUSTUSE int tierce__states_run(struct tierce__states *out,
                                      const struct tierce__recording *recording,
                                      const struct tierce__states_opts *opts);

/* The row of a capacity with the most hits; among equals the one that stored the fewest states,
 * then the first rule. [borrow until clear] */
const struct tierce__states_row *tierce__states_best(const struct tierce__states *states,
                                                     size_t capacity);

/* A zeroed struct is accepted. */
void tierce__states_clear(struct tierce__states *states);

#endif
