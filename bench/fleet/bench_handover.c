/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prompt that one engine hands over to another one, over TCP on loopback: from the prefiller's
 * answer to the last byte verified in the decoder's memory, against as many bytes through bare
 * sockets. Both engines are in this process. To measure over a slower network, run it in a network
 * namespace whose loopback device has a rate (docs/inside/benchmarks.md).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/fleet/bench_sockets.h"
#include "engine/engine.h"
#include "engine/handover/handover.h"
#include "engine/view.h"

enum { CHUNKS = 16, CALL_MS = 60000, CELL_KIB = 32, SESSION = 1 };

/* One engine, and the prompt as it knows it. */
struct side {
    struct tierce__kv kv;
    struct tierce_chain *chain;
};

struct handover_bench {
    const struct tierce__bench *bench;
    struct side prefiller, decoder;
    struct tierce__handover *handover;
    uint8_t *into[CHUNKS]; /* of the bare sockets */
    uint64_t object_bytes;
    struct tierce__bench_sockets sockets;
};

static const char token[] = "0123456789abcdef0123456789abcdef";

/* A new prompt, which the prefiller stores and offers. */
static int offer(struct handover_bench *b)
{
    struct tierce__kv *kv = &b->prefiller.kv;
    int rc = tierce__kv_renew(kv, b->prefiller.chain);
    if (rc == 0)
        rc = tierce__kv_renew(&b->decoder.kv, b->decoder.chain);
    if (rc != 0)
        return rc;
    int64_t ns = tierce__kv_store(kv, b->prefiller.chain, tierce__kv_ids(kv, 0), kv->window_blocks,
                                  kv->window_blocks);
    if (ns < 0)
        return (int)ns;
    int64_t blocks = tierce__handover_offer(b->handover, kv->view, b->prefiller.chain,
                                            kv->window_blocks, token, CALL_MS);
    if (blocks == (int64_t)kv->window_blocks)
        return 0;
    return tierce__bench_fail(b->bench, "an offer pinned %lld of %u blocks", (long long)blocks,
                              kv->window_blocks);
}

/* The whole prompt once; only the read is timed. */
static int64_t hand_over(void *arg)
{
    struct handover_bench *b = arg;
    struct tierce__kv *kv = &b->decoder.kv;
    struct tierce__handover_pulled pulled;
    int rc = offer(b);
    if (rc != 0)
        return rc;
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = tierce__handover_port(b->handover),
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = CALL_MS};
    uint64_t start_ns = tierce__now_ns();
    rc = tierce__handover_pull(kv->view, b->decoder.chain, kv->window_blocks, &from, &pulled);
    int64_t ns = (int64_t)(tierce__now_ns() - start_ns);
    tierce_unpin(kv->view, SESSION);
    if (rc != 0)
        return rc;
    if (pulled.blocks != kv->window_blocks || pulled.bytes != CHUNKS * b->object_bytes)
        return tierce__bench_fail(b->bench, "a hand-over brought %llu of %u blocks: %s",
                                  (unsigned long long)pulled.blocks, kv->window_blocks, pulled.why);
    return ns;
}

/* The decoder loads the bytes that the prefiller stored. */
static int check(struct handover_bench *b)
{
    struct tierce__kv *from = &b->prefiller.kv, *to = &b->decoder.kv;
    int64_t ns = hand_over(b);
    if (ns >= 0)
        ns = tierce__kv_load(to, b->decoder.chain, tierce__kv_ids(to, 0), TIERCE_ORIGIN_MEMORY);
    if (ns < 0)
        return (int)ns;
    for (uint32_t layer = 0; layer < TIERCE__KV_LAYERS; layer++)
        for (uint32_t i = 0; i < from->window_blocks; i++)
            if (memcmp(tierce__kv_block(from, layer, from->ids[i]),
                       tierce__kv_block(to, layer, to->ids[i]), from->cell_bytes) != 0)
                return tierce__bench_fail(b->bench, "the bytes loaded differ from those stored");
    return 0;
}

/* The sizes differ, or both would be one engine. */
static int open_side(struct side *side, const struct tierce__bench *bench, const char *memory)
{
    const struct tierce__bench_param params[] = {{"memory.size", memory}};
    side->kv = (struct tierce__kv){.bench = bench,
                                   .cell_bytes = CELL_KIB << 10,
                                   .windows = 1,
                                   .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    int rc = tierce__kv_open(&side->kv, params, 1);
    return rc == 0 ? tierce_view_chain(&side->chain, side->kv.view, NULL) : rc;
}

static void close_side(struct side *side)
{
    tierce_chain_destroy(side->chain);
    tierce__kv_close(&side->kv);
}

static int open_all(struct handover_bench *b)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    int rc = open_side(&b->prefiller, b->bench, "144MiB");
    if (rc == 0)
        rc = open_side(&b->decoder, b->bench, "128MiB");
    if (rc != 0)
        return rc;
    rc = tierce__handover_start(&b->handover, b->prefiller.kv.engine, "127.0.0.1", 0, why);
    if (rc < 0)
        return tierce__bench_fail(b->bench, "%s: %s", tierce_strerror(rc), why);
    b->object_bytes = b->prefiller.kv.view->full.extent.object_bytes;
    uint64_t bytes = b->prefiller.kv.window_bytes / CHUNKS;
    for (size_t i = 0; i < CHUNKS; i++) {
        b->into[i] = tierce__bench_map(bytes);
        if (b->into[i] == NULL)
            return -ENOMEM;
    }
    b->sockets = (struct tierce__bench_sockets){
        .into = b->into, .from = b->prefiller.kv.memory, .count = CHUNKS, .bytes = bytes};
    return tierce__bench_sockets_open(&b->sockets, b->bench);
}

static void close_all(struct handover_bench *b)
{
    if (b->sockets.into != NULL)
        tierce__bench_sockets_close(&b->sockets);
    for (size_t i = 0; i < CHUNKS && b->into[i] != NULL; i++)
        tierce__bench_unmap(b->into[i], b->prefiller.kv.window_bytes / CHUNKS);
    tierce__handover_stop(b->handover);
    close_side(&b->decoder);
    close_side(&b->prefiller);
}

static void emit(const struct handover_bench *b, const struct tierce__bench_side *sides)
{
    double ours = (double)b->object_bytes * CHUNKS,
           bare = (double)b->sockets.bytes * (double)b->sockets.count;
    char name[64];
    snprintf(name, sizeof(name), "a prompt of %d chunks of %llu KiB", CHUNKS,
             (unsigned long long)(b->object_bytes >> 10));
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = ours / sides[0].median_ns,
                                                             .limit = bare / sides[1].median_ns,
                                                             .goal = 0.95,
                                                             .value_min = ours / sides[0].max_ns,
                                                             .value_max = ours / sides[0].min_ns,
                                                             .limit_min = bare / sides[1].max_ns,
                                                             .limit_max = bare / sides[1].min_ns});
}

int tierce__bench_handover(const struct tierce__bench *bench)
{
    struct handover_bench b = {.bench = bench};
    struct tierce__bench_side sides[] = {{.run = hand_over, .arg = &b},
                                         {.run = tierce__bench_sockets_copy, .arg = &b.sockets}};
    int rc = open_all(&b);
    if (rc == 0)
        rc = check(&b);
    if (rc == 0)
        rc = tierce__bench_alternate(sides, 2, bench->seconds);
    if (rc == 0)
        emit(&b, sides);
    close_all(&b);
    return rc;
}
