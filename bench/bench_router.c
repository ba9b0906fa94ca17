/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The router's index: events of blocks with tokens, as vLLM sends them, decoded, hashed and put
 * into the table; and queries by tokens. The limits are the goal of
 * docs/inside/design/014-between-engines.md and that of the directory's lookups.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text/line.h"
#include "router/follower.h"
#include "router/standard_hash.h"

#define PUBLISHERS    16u
#define BLOCK_TOKENS  16u
#define CHAIN         64u  /* blocks of a prompt, and of an event */
#define EVENTS        8u   /* of a batch */
#define BYTES_A_BLOCK 256u /* of memory */
#define BLOCKS_MAX    4000000u
#define EVENT_BLOCKS  500000.0 /* each second */
#define QUERY_US      200
#define QUERY_BLOCKS  128u
#define MODEL         "bench"

struct bench_router {
    const struct tierce__bench *bench;
    struct tierce__directory *directory;
    struct tierce__follower *followers[PUBLISHERS];
    uint64_t next[PUBLISHERS];
    uint64_t prompts; /* sent so far */
    uint64_t asked;
    struct tierce__line batch;
    struct tierce__directory_key keys[QUERY_BLOCKS];
    uint32_t tokens[QUERY_BLOCKS * BLOCK_TOKENS];
};

static uint32_t token_of(uint64_t prompt, uint32_t at)
{
    return 65536u +
           (uint32_t)(tierce__bench_random(1, prompt * CHAIN * BLOCK_TOKENS + at) & 0xffff);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void put_be(struct tierce__line *out, uint8_t first, uint64_t value, unsigned width)
{
    char bytes[9] = {(char)first};
    for (unsigned i = 0; i < width; i++)
        bytes[1 + i] = (char)(value >> (8 * (width - 1 - i)));
    tierce__line_put_bytes(out, bytes, 1 + width);
}

static void put_text(struct tierce__line *out, const char *text)
{
    put_be(out, 0xd9, strlen(text), 1);
    tierce__line_put(out, text);
}

static void put_event(struct tierce__line *out, uint64_t prompt)
{
    put_be(out, 0xde, 6, 2);
    put_text(out, "type");
    put_text(out, "BlockStored");
    put_text(out, "block_hashes");
    put_be(out, 0xdc, CHAIN, 2);
    for (uint32_t i = 0; i < CHAIN; i++)
        put_be(out, 0xcf, tierce__bench_random(2, prompt * CHAIN + i), 8);
    put_text(out, "parent_block_hash");
    put_be(out, 0xc0, 0, 0);
    put_text(out, "token_ids");
    put_be(out, 0xdc, CHAIN * BLOCK_TOKENS, 2);
    for (uint32_t i = 0; i < CHAIN * BLOCK_TOKENS; i++)
        put_be(out, 0xce, token_of(prompt, i), 4);
    put_text(out, "block_size");
    put_be(out, BLOCK_TOKENS, 0, 0);
    put_text(out, "medium");
    put_text(out, "GPU");
}

/* A batch of new prompts for the next publisher. Only its application counts. */
static int64_t apply_batch(void *arg)
{
    struct bench_router *r = arg;
    uint32_t at = (uint32_t)(r->prompts / EVENTS % PUBLISHERS);
    r->batch.bytes = 0;
    put_be(&r->batch, 0x93, 0, 0);
    put_be(&r->batch, 0xcb, 0x3ff0000000000000, 8);
    put_be(&r->batch, 0xdc, EVENTS, 2);
    for (uint32_t i = 0; i < EVENTS; i++)
        put_event(&r->batch, r->prompts++);
    put_be(&r->batch, 0, 0, 0);
    if (r->batch.failed)
        return -ENOMEM;
    uint64_t start = tierce__now_ns();
    tierce__follower_batch(r->followers[at], r->next[at]++, r->batch.text, r->batch.bytes, start);
    return (int64_t)(tierce__now_ns() - start);
}

static int run_events(struct bench_router *r, uint64_t blocks)
{
    double ns = 0;
    uint64_t held = 0;
    while (r->prompts * CHAIN < blocks) {
        int64_t took = apply_batch(r);
        if (took < 0)
            return (int)took;
        ns += (double)took;
    }
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        struct tierce__follower_about about;
        tierce__follower_about(r->followers[i], &about);
        held += about.blocks;
    }
    if (held != r->prompts * CHAIN)
        return tierce__bench_fail(r->bench, "%llu blocks of %llu are there",
                                  (unsigned long long)held,
                                  (unsigned long long)(r->prompts * CHAIN));
    char name[64];
    snprintf(name, sizeof(name), "event blocks of 16 tokens; up to %llu", (unsigned long long)held);
    tierce__bench_emit(r->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "blocks/s",
                                                             .value = (double)held * 1e9 / ns,
                                                             .limit = EVENT_BLOCKS,
                                                             .goal = 1});
    return 0;
}

/* ---- queries --------------------------------------------------------------------------------- */

/* A prompt that is held, and as much again that is not. */
static int64_t query(void *arg)
{
    struct bench_router *r = arg;
    static struct tierce__directory_found found;
    uint64_t prompt = tierce__bench_random(3, r->asked++) % r->prompts;
    for (uint32_t i = 0; i < QUERY_BLOCKS * BLOCK_TOKENS; i++)
        r->tokens[i] = token_of(prompt, i);
    uint64_t start = tierce__now_ns();
    uint64_t scope = tierce__standard_scope(MODEL, (struct tierce__text){"", 0}, BLOCK_TOKENS);
    for (uint32_t i = 0; i < QUERY_BLOCKS; i++)
        r->keys[i] = (struct tierce__directory_key){
            scope, tierce__standard_hash(i > 0 ? &r->keys[i - 1].low : NULL,
                                         r->tokens + i * BLOCK_TOKENS, BLOCK_TOKENS)};
    int rc =
        tierce__directory_find(r->directory, r->keys, QUERY_BLOCKS,
                               &(struct tierce__directory_asker){.group = "", .host = ""}, &found);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc < 0)
        return rc;
    if (found.prefix_count == 0 || found.prefixes[0].keys < CHAIN)
        return tierce__bench_fail(r->bench, "a prompt was not found");
    return ns;
}

static int run_queries(struct bench_router *r)
{
    struct tierce__bench_side side = {.run = query, .arg = r};
    int rc = tierce__bench_alternate(&side, 1, r->bench->seconds);
    if (rc < 0)
        return rc;
    tierce__bench_emit(r->bench, &(struct tierce__bench_row){
                                     .case_name = "query of 2048 tokens; half of them held",
                                     .unit = "us",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = side.median_ns / 1e3,
                                     .limit = QUERY_US,
                                     .goal = 1,
                                     .value_min = side.min_ns / 1e3,
                                     .value_max = side.max_ns / 1e3});
    return 0;
}

static int open_followers(struct bench_router *r)
{
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        char name[16];
        uint64_t from;
        snprintf(name, sizeof(name), "%u", i);
        struct tierce__follower_opts opts = {.size = sizeof(opts),
                                             .directory = r->directory,
                                             .group = "",
                                             .name = name,
                                             .model = MODEL,
                                             .seed = tierce__bench_random(4, i),
                                             .blocks_max = BLOCKS_MAX};
        int rc = tierce__follower_create(&r->followers[i], &opts, tierce__now_ns());
        if (rc < 0)
            return rc;
        tierce__follower_connected(r->followers[i], true, tierce__now_ns());
        (void)tierce__follower_needs(r->followers[i], &from, tierce__now_ns());
    }
    return 0;
}

int tierce__bench_router(const struct tierce__bench *bench)
{
    struct bench_router *r = tierce__calloc(1, sizeof(*r));
    uint64_t blocks = bench->memory_bytes / BYTES_A_BLOCK;
    if (bench->blocks > 0 && bench->blocks < blocks)
        blocks = bench->blocks;
    if (r == NULL)
        return -ENOMEM;
    r->bench = bench;
    int rc = tierce__directory_create(
        &r->directory,
        &(struct tierce__directory_opts){.size = sizeof(struct tierce__directory_opts),
                                         .workers_max = PUBLISHERS + 1});
    if (rc == 0)
        rc = open_followers(r);
    if (rc == 0)
        rc = run_events(r, blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
    if (rc == 0)
        rc = run_queries(r);
    for (uint32_t i = 0; i < PUBLISHERS; i++)
        tierce__follower_destroy(r->followers[i]);
    tierce__directory_destroy(r->directory);
    tierce__line_clear(&r->batch);
    tierce__free(r);
    return rc;
}
