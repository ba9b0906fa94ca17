/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of finding how much of a prompt of 32k tokens is held: keys for its blocks, then the
 * lookup of its 128 chunks in a full index. Every prompt is different, so the index is as cold as
 * in practice; tokens or hashes were just written, as an engine's would be.
 *
 * The limit of a case is the target time; its peer is the floor: the same number of probes into a
 * bare table. The cost of pins and of reasons is shown beside a lookup without them: separately for
 * the part that begins with the hashes, and together for the whole from the tokens.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

#define PROMPT_TOKENS 32768u
#define CHUNK_TOKENS  256u
#define PROMPT_CHUNKS (PROMPT_TOKENS / CHUNK_TOKENS)
#define PROMPTS_MAX   4096u /* 512k chunks */
#define CELL_BYTES    64u
#define OBJECT_BYTES  8192u /* of a chunk with such cells */
#define VOCABULARY    128256u
#define BLOCKS_MAX    (PROMPT_TOKENS / 16)

static const struct bench_lookup_kind {
    enum tierce_chain_algo algo;
    uint32_t block_tokens;
    double chain_goal_us; /* keys from tokens, and the lookup */
} kinds[] = {{TIERCE_CHAIN_XXH3_128, 16, 25},
             {TIERCE_CHAIN_XXH3_128, 32, 25},
             {TIERCE_CHAIN_SHA256, 16, 130},
             {TIERCE_CHAIN_SHA256, 32, 130}};

#define GIVEN_GOAL_US 15
#define BESIDE_GOAL   (1 / 1.2) /* a fifth more */
#define SESSION       1u

/* A table of hashes that does nothing but be probed. */
struct bare_table {
    uint8_t (*slots)[TIERCE_HASH_BYTES]; /* all zero: empty */
    uint64_t bytes;
    uint64_t mask;
};

struct bench_lookup {
    const struct tierce__bench *bench;
    struct tierce_engine *engine;
    const struct bench_lookup_kind *kind;
    struct tierce_view *view;
    uint32_t prompts; /* in the index */
    bool hashes_given;
    bool pins; /* lookups hold what they find, until the next one does */
    int32_t tokens[PROMPT_TOKENS];
    int32_t ids[BLOCKS_MAX];
    uint8_t hashes[BLOCKS_MAX * TIERCE_HASH_BYTES];
    uint8_t cells[BLOCKS_MAX * CELL_BYTES];
    struct bare_table bare;
    uint64_t drawn; /* prompts that were asked for */
};

static void write_tokens(struct bench_lookup *l, uint32_t prompt)
{
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++)
        l->tokens[i] = (int32_t)(tierce__bench_random(prompt, i) % VOCABULARY);
}

/* ---- the bare table ------------------------------------------------------------------------- */

static uint64_t place_of(const struct bare_table *t, const uint8_t *hash)
{
    uint64_t word;
    memcpy(&word, hash, sizeof(word));
    return word & t->mask;
}

static bool is_empty(const uint8_t *slot)
{
    static const uint8_t zero[TIERCE_HASH_BYTES];
    return memcmp(slot, zero, TIERCE_HASH_BYTES) == 0;
}

static void bare_insert(struct bare_table *t, const uint8_t *hash)
{
    uint64_t place = place_of(t, hash);
    while (!is_empty(t->slots[place]))
        place = (place + 1) & t->mask;
    memcpy(t->slots[place], hash, TIERCE_HASH_BYTES);
}

static bool bare_has(const struct bare_table *t, const uint8_t *hash)
{
    for (uint64_t place = place_of(t, hash);; place = (place + 1) & t->mask) {
        if (memcmp(t->slots[place], hash, TIERCE_HASH_BYTES) == 0)
            return true;
        if (is_empty(t->slots[place]))
            return false;
    }
}

static void bare_hashes(uint8_t *hashes, uint64_t prompt)
{
    tierce__bench_fill(hashes, PROMPT_CHUNKS * TIERCE_HASH_BYTES, prompt);
}

static int bare_create(struct bench_lookup *l)
{
    struct bare_table *t = &l->bare;
    uint64_t keys = (uint64_t)l->prompts * PROMPT_CHUNKS, slots = 2;
    while (slots < 2 * keys)
        slots *= 2;
    t->mask = slots - 1;
    t->bytes = slots * TIERCE_HASH_BYTES;
    t->slots = (void *)tierce__bench_map(t->bytes);
    if (t->slots == NULL)
        return -ENOMEM;
    for (uint32_t p = 0; p < l->prompts; p++) {
        bare_hashes(l->hashes, p);
        for (uint32_t i = 0; i < PROMPT_CHUNKS; i++)
            bare_insert(t, l->hashes + i * TIERCE_HASH_BYTES);
    }
    return 0;
}

static int64_t run_bare(void *arg)
{
    struct bench_lookup *l = arg;
    const struct bare_table *t = &l->bare;
    bare_hashes(l->hashes, tierce__bench_random(2, l->drawn++) % (l->prompts));
    uint32_t found = 0;
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 0; i < PROMPT_CHUNKS; i++)
        __builtin_prefetch(t->slots[place_of(t, l->hashes + i * TIERCE_HASH_BYTES)]);
    for (uint32_t i = 0; i < PROMPT_CHUNKS; i++)
        found += bare_has(t, l->hashes + i * TIERCE_HASH_BYTES);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return found == PROMPT_CHUNKS ? ns : tierce__bench_fail(l->bench, "the bare table lost a key");
}

/* ---- the engine ----------------------------------------------------------------------------- */

static int store_prompt(struct bench_lookup *l, uint32_t prompt)
{
    struct tierce_chain *chain = NULL;
    struct tierce_paged_layer layer = {
        .base = l->cells, .block_stride = CELL_BYTES, .block_bytes = CELL_BYTES};
    struct tierce_paged paged = {
        .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = BLOCKS_MAX};
    uint32_t blocks = PROMPT_TOKENS / l->kind->block_tokens;
    write_tokens(l, prompt);
    int64_t rc = tierce_view_chain(&chain, l->view, NULL);
    if (rc == 0)
        rc = tierce_chain_append(chain, l->tokens, PROMPT_TOKENS, NULL);
    if (rc >= 0)
        rc = tierce_store(
            l->view, &(struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                                    .chain = chain,
                                                    .to_block = blocks,
                                                    .paged = &paged,
                                                    .block_ids = l->ids});
    tierce_chain_destroy(chain);
    if (rc >= 0 && rc != blocks)
        return tierce__bench_fail(l->bench, "a store took %lld of %u blocks", (long long)rc,
                                  blocks);
    return rc < 0 ? (int)rc : 0;
}

/* A view of its own for each kind; its chunks push out those of the one before, all of them. */
static int fill_index(struct bench_lookup *l)
{
    static const uint32_t cell_bytes = CELL_BYTES;
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .weights = "00",
                                  .layout = "bench",
                                  .layer_count = 1,
                                  .cell_bytes = &cell_bytes,
                                  .block_tokens = l->kind->block_tokens,
                                  .chunk_blocks = CHUNK_TOKENS / l->kind->block_tokens,
                                  .algo = l->kind->algo};
    int rc = tierce_view_open(&l->view, l->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    for (uint32_t p = 0; rc == 0 && p < l->prompts; p++)
        rc = store_prompt(l, p);
    return rc;
}

static int open_engine(struct bench_lookup *l)
{
    uint64_t per_prompt = (uint64_t)PROMPT_CHUNKS * OBJECT_BYTES;
    uint64_t prompts = l->bench->memory_bytes / (per_prompt + per_prompt / 16);
    l->prompts = prompts < PROMPTS_MAX ? (uint32_t)prompts : PROMPTS_MAX;
    if (l->prompts == 0)
        return tierce__bench_fail(l->bench, "--memory is too small");
    char size[32], chunks[32];
    unsigned long long bytes = l->prompts * per_prompt;
    snprintf(size, sizeof(size), "%llu", bytes);
    snprintf(chunks, sizeof(chunks), "%u", l->prompts * PROMPT_CHUNKS);
    const struct tierce__bench_param params[] = {{"memory.size", size}, {"memory.chunks", chunks}};
    for (int32_t i = 0; i < (int32_t)BLOCKS_MAX; i++)
        l->ids[i] = i;
    return tierce__bench_engine(&l->engine, l->bench, params, 2);
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* The block hashes of the tokens, as an engine would hand them over. */
static int write_hashes(struct bench_lookup *l)
{
    struct tierce_chain *chain = NULL;
    int64_t rc = tierce_view_chain(&chain, l->view, NULL);
    if (rc == 0)
        rc = tierce_chain_append(chain, l->tokens, PROMPT_TOKENS, NULL);
    if (rc > 0)
        memcpy(l->hashes, tierce_chain_hash(chain, 0), (size_t)rc * TIERCE_HASH_BYTES);
    tierce_chain_destroy(chain);
    return rc < 0 ? (int)rc : 0;
}

static int look_up(struct bench_lookup *l, struct tierce_found *found)
{
    struct tierce_chain *chain = NULL;
    uint32_t blocks = PROMPT_TOKENS / l->kind->block_tokens;
    int64_t rc = tierce_view_chain(&chain, l->view, NULL);
    if (rc == 0)
        rc = l->hashes_given ? tierce_chain_append_hashes(chain, l->hashes, blocks)
                             : tierce_chain_append(chain, l->tokens, PROMPT_TOKENS, NULL);
    if (rc >= 0)
        rc = tierce_lookup(l->view, chain, blocks,
                           &(struct tierce_lookup_opts){.size = sizeof(struct tierce_lookup_opts),
                                                        .flags = l->pins ? TIERCE_LOOKUP_PIN : 0,
                                                        .session = l->pins ? SESSION : 0},
                           found);
    tierce_chain_destroy(chain);
    return rc < 0 ? (int)rc : 0;
}

/* Looks up a prompt that is held, but for `missing` chunks at its end. */
static int64_t time_lookup(struct bench_lookup *l, uint32_t missing)
{
    struct tierce_found found = {0};
    uint32_t held = PROMPT_TOKENS - missing * CHUNK_TOKENS;
    write_tokens(l, (uint32_t)(tierce__bench_random(3, l->drawn++) % l->prompts));
    if (missing > 0)
        l->tokens[held] ^= 1;
    int rc = l->hashes_given ? write_hashes(l) : 0;
    if (rc < 0)
        return rc;
    uint64_t start = tierce__now_ns();
    rc = look_up(l, &found);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc == 0 && found.blocks != held / l->kind->block_tokens)
        rc = tierce__bench_fail(l->bench, "a lookup found only %llu blocks",
                                (unsigned long long)found.blocks);
    return rc < 0 ? rc : ns;
}

static int64_t run_lookup(void *arg)
{
    return time_lookup(arg, 0);
}

static int64_t run_miss(void *arg)
{
    return time_lookup(arg, 1);
}

static int64_t time_pins(struct bench_lookup *l, uint32_t missing)
{
    l->pins = true;
    int64_t ns = time_lookup(l, missing);
    l->pins = false;
    return ns;
}

static int64_t run_pins(void *arg)
{
    return time_pins(arg, 0);
}

static int64_t run_both(void *arg)
{
    return time_pins(arg, 1);
}

/* Compares a lookup that counts a reason, or pins the found chunks, with one that does neither. */
static int run_beside(struct bench_lookup *l, bool hashes_given, int64_t (*run)(void *arg),
                      const char *what)
{
    l->hashes_given = hashes_given;
    struct tierce__bench_side sides[] = {{.run = run, .arg = l}, {.run = run_lookup, .arg = l}};
    int rc = tierce__bench_alternate(sides, 2, l->bench->seconds);
    if (rc < 0)
        return rc;
    char name[64];
    snprintf(name, sizeof(name), "%s; blocks of %u; %s",
             hashes_given ? "hashes given" : tierce_chain_algo_name(l->kind->algo),
             l->kind->block_tokens, what);
    tierce__bench_emit(l->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "us",
                                                             .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                             .value = sides[0].median_ns / 1e3,
                                                             .limit = sides[1].median_ns / 1e3,
                                                             .goal = BESIDE_GOAL});
    return 0;
}

static int run_case(struct bench_lookup *l, bool hashes_given, double goal_us)
{
    l->hashes_given = hashes_given;
    struct tierce__bench_side sides[] = {{.run = run_lookup, .arg = l},
                                         {.run = run_bare, .arg = l}};
    int rc = tierce__bench_alternate(sides, 2, l->bench->seconds);
    if (rc < 0)
        return rc;
    char name[64];
    snprintf(name, sizeof(name), "%s; blocks of %u; %uk chunks",
             hashes_given ? "hashes given" : tierce_chain_algo_name(l->kind->algo),
             l->kind->block_tokens, l->prompts * PROMPT_CHUNKS / 1024);
    tierce__bench_emit(l->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "us",
                                                   .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                   .value = sides[0].median_ns / 1e3,
                                                   .limit = goal_us,
                                                   .goal = 1,
                                                   .peer = "128 bare probes",
                                                   .peer_value = sides[1].median_ns / 1e3});
    return 0;
}

static int run_kind(struct bench_lookup *l, const struct bench_lookup_kind *kind)
{
    l->kind = kind;
    int rc = fill_index(l);
    /* The origin of given hashes makes no difference. */
    if (rc == 0 && kind->algo == TIERCE_CHAIN_XXH3_128)
        rc = run_case(l, true, GIVEN_GOAL_US);
    if (rc == 0 && kind->algo == TIERCE_CHAIN_XXH3_128)
        rc = run_beside(l, true, run_miss, "with a reason");
    if (rc == 0 && kind->algo == TIERCE_CHAIN_XXH3_128)
        rc = run_beside(l, true, run_pins, "with its pins");
    if (rc == 0)
        rc = run_case(l, false, kind->chain_goal_us);
    if (rc == 0)
        rc = run_beside(l, false, run_both, "with pins and a reason");
    tierce_view_close(l->view);
    l->view = NULL;
    return rc;
}

int tierce__bench_lookup(const struct tierce__bench *bench)
{
    struct bench_lookup *l = tierce__calloc(1, sizeof(*l));
    if (l == NULL)
        return -ENOMEM;
    l->bench = bench;
    int rc = open_engine(l);
    if (rc == 0)
        rc = bare_create(l);
    for (size_t i = 0; rc == 0 && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        rc = run_kind(l, &kinds[i]);
    tierce_engine_close(l->engine);
    tierce__bench_unmap((void *)l->bare.slots, l->bare.bytes);
    tierce__free(l);
    return rc;
}
