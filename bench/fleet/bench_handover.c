/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prompt that one engine hands over to another one, over TCP on loopback, beside as many bytes
 * through bare sockets:
 *
 *     by pull: from the prefiller's answer to the last byte verified in the decoder's memory
 *     by push: the same, from the decoder's ticket, for a prompt that the prefiller holds; and from
 *              the last layer computed to the last byte verified. Layers are computed as fast as
 *              bare sockets carry them; a slower computation leaves less to send
 *     by push over nodes: the latter, if each engine is the client of a node, which pushes or
 *              accepts
 *
 * Both engines and both nodes are in this process. To measure over a slower network, run it in a
 * network namespace whose loopback device has a rate (docs/inside/benchmarks.md).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/fleet/bench_sockets.h"
#include "bench/remote/bench_local_node.h"
#include "engine/engine.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_lent.h"
#include "engine/handover/handover_push.h"
#include "engine/view.h"

enum { CHUNKS = 16, CALL_MS = 60000, CELL_KIB = 32, SESSION = 1, PUSH_GOAL = 5 };

/* One engine, and the prompt as it knows it. */
struct side {
    struct tierce__bench_local_node node; /* that has its memory, if it runs */
    struct tierce__kv kv;
    struct tierce_chain *chain;
};

struct handover_bench {
    const struct tierce__bench *bench;
    struct side prefiller, decoder;
    struct tierce__handover *handover; /* the prefiller's offers */
    struct tierce__handover *receiver; /* the decoder's inbox */
    uint8_t *into[CHUNKS];             /* where the bare sockets receive */
    uint64_t object_bytes;
    struct tierce__bench_sockets sockets;
    int64_t bare_ns;  /* time of the last copy by bare sockets */
    uint64_t push_ns; /* when the last push began */
    uint64_t poll_ns; /* between questions whether it is over */
};

typedef int64_t send_fn(struct handover_bench *b, struct tierce__push *push);

static const char token[] = "0123456789abcdef0123456789abcdef";

static int new_prompt(struct handover_bench *b)
{
    int rc = tierce__kv_renew(&b->prefiller.kv, b->prefiller.chain);
    return rc == 0 ? tierce__kv_renew(&b->decoder.kv, b->decoder.chain) : rc;
}

/* The same, which the prefiller stores. */
static int store_prompt(struct handover_bench *b)
{
    struct tierce__kv *kv = &b->prefiller.kv;
    int rc = new_prompt(b);
    if (rc != 0)
        return rc;
    int64_t ns = tierce__kv_store(kv, b->prefiller.chain, tierce__kv_ids(kv, 0), kv->window_blocks,
                                  kv->window_blocks);
    return ns < 0 ? (int)ns : 0;
}

/* ---- pull ------------------------------------------------------------------------------------ */

/* A new prompt, which the prefiller offers. */
static int offer(struct handover_bench *b)
{
    struct tierce__kv *kv = &b->prefiller.kv;
    int rc = store_prompt(b);
    if (rc != 0)
        return rc;
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
    rc = tierce__handover_pull(kv->view, b->decoder.chain, 0, kv->window_blocks, &from, &pulled);
    int64_t ns = (int64_t)(tierce__now_ns() - start_ns);
    tierce_unpin(kv->view, SESSION);
    if (rc != 0)
        return rc;
    if (pulled.blocks != kv->window_blocks || pulled.bytes != CHUNKS * b->object_bytes)
        return tierce__bench_fail(b->bench, "a hand-over brought %llu of %u blocks: %s",
                                  (unsigned long long)pulled.blocks, kv->window_blocks, pulled.why);
    return ns;
}

/* ---- push ------------------------------------------------------------------------------------ */

static void sleep_until(uint64_t then_ns)
{
    uint64_t now_ns = tierce__now_ns();
    if (now_ns < then_ns)
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)((then_ns - now_ns) / 1000000000),
                                           .tv_nsec = (long)((then_ns - now_ns) % 1000000000)},
                        NULL);
}

/* Each layer when it is computed. Returns when the last one was, or an error. */
static int64_t store_by_layers(struct handover_bench *b, struct tierce__push *push)
{
    struct tierce__kv *kv = &b->prefiller.kv;
    struct tierce_store *store;
    uint64_t layer_ns = (uint64_t)b->bare_ns / TIERCE__KV_LAYERS, last_ns = 0;
    const struct tierce_transfer_opts what = {.size = sizeof(what),
                                              .paged = &kv->paged,
                                              .chain = b->prefiller.chain,
                                              .to_block = kv->window_blocks,
                                              .block_ids = tierce__kv_ids(kv, 0)};
    int rc = tierce_store_begin(&store, kv->view, &what);
    if (rc < 0 || store == NULL)
        return rc < 0 ? rc : tierce__bench_fail(b->bench, "a store of a new prompt was empty");
    rc = tierce__push_watch(push, store);
    for (uint32_t layer = 0; rc == 0 && layer < TIERCE__KV_LAYERS; layer++) {
        if (layer == 0)
            last_ns = tierce__now_ns();
        last_ns += layer_ns;
        sleep_until(last_ns);
        if (layer + 1 == TIERCE__KV_LAYERS)
            last_ns = tierce__now_ns();
        rc = tierce_store_layer(store, layer);
    }
    int64_t stored = tierce_store_end(store);
    if (rc < 0 || stored < 0)
        return rc < 0 ? rc : stored;
    return (int64_t)last_ns;
}

/* All chunks, which memory holds. Returns the beginning, or an error. */
static int64_t push_held(struct handover_bench *b, struct tierce__push *push)
{
    const struct side *side = &b->prefiller;
    int64_t count = tierce__push_held(push, side->kv.view, side->chain, side->kv.window_blocks);
    if (count >= 0 && count != CHUNKS)
        return tierce__bench_fail(b->bench, "memory holds %lld of %d chunks", (long long)count,
                                  CHUNKS);
    return count < 0 ? count : (int64_t)b->push_ns;
}

/* `send` gives the chunks to the push, and returns when the time that counts begins. */
static int64_t push_with(struct handover_bench *b, const char *ticket, send_fn *send)
{
    struct tierce__push *push;
    struct tierce__pushed pushed;
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__handover_port(b->receiver),
                                       .ticket = ticket,
                                       .wait_ms = CALL_MS,
                                       .timeout_ms = CALL_MS};
    b->push_ns = tierce__now_ns();
    int rc = tierce__push_begin(&push, b->prefiller.kv.view, &to);
    if (rc < 0)
        return rc;
    int64_t begin_ns = send(b, push);
    tierce__push_end(push);
    while (!tierce__push_is_over(push, &pushed))
        sleep_until(tierce__now_ns() + b->poll_ns);
    tierce__push_destroy(push);
    if (begin_ns < 0)
        return begin_ns;
    if (pushed.chunks != CHUNKS)
        return tierce__bench_fail(b->bench, "a push brought %llu of %d chunks: %s",
                                  (unsigned long long)pushed.chunks, CHUNKS, pushed.why);
    return (int64_t)pushed.over_ns - begin_ns;
}

static int64_t push_prompt(struct handover_bench *b, send_fn *send)
{
    struct tierce__inbox *inbox = tierce__handover_inbox(b->receiver); /* NULL: the node's */
    char ticket[1][TIERCE__TICKET_BYTES];
    int rc = tierce__handover_issue(b->receiver, ticket, 1, CALL_MS, "");
    if (rc != 1)
        return rc < 0 ? rc : tierce__bench_fail(b->bench, "the decoder gave no ticket");
    int64_t ns = push_with(b, ticket[0], send);
    if (inbox != NULL)
        (void)tierce__inbox_end(inbox, ticket[0]);
    else
        (void)tierce__lent_end_ticket(b->decoder.kv.engine, ticket[0]);
    return ns;
}

/* The whole prompt once, while it is computed; the time after the last layer counts. */
static int64_t push_computed(void *arg)
{
    int rc = new_prompt(arg);
    return rc == 0 ? push_prompt(arg, store_by_layers) : rc;
}

/* The whole prompt once, which is computed already. */
static int64_t push_stored(void *arg)
{
    int rc = store_prompt(arg);
    return rc == 0 ? push_prompt(arg, push_held) : rc;
}

static int64_t copy_bare(void *arg)
{
    struct handover_bench *b = arg;
    int64_t ns = tierce__bench_sockets_copy(&b->sockets);
    b->bare_ns = ns > 0 ? ns : 0;
    return ns;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* The decoder loads the bytes that the prefiller stored. */
static int check(struct handover_bench *b, tierce__bench_run_fn *run)
{
    struct tierce__kv *from = &b->prefiller.kv, *to = &b->decoder.kv;
    int64_t ns = run(b);
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

/* With tiers of its own, or (name) of a node. The sizes differ, or both would be one engine. */
static int open_side(struct side *side, const struct tierce__bench *bench, uint64_t memory_bytes,
                     const char *name)
{
    char size[24];
    struct tierce__bench_param params[] = {{"memory.size", size}, {"timeout.lookup", "20s"}};
    snprintf(size, sizeof(size), "%llu", (unsigned long long)memory_bytes);
    side->kv = (struct tierce__kv){.bench = bench,
                                   .cell_bytes = CELL_KIB << 10,
                                   .windows = 1,
                                   .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    int rc = 0;
    if (name != NULL) {
        rc = tierce__bench_local_node_start(&side->node, bench, memory_bytes, name);
        params[0] = (struct tierce__bench_param){"node.socket", side->node.socket};
    }
    if (rc == 0)
        rc = tierce__kv_open(&side->kv, params, 2);
    return rc == 0 ? tierce_view_chain(&side->chain, side->kv.view, NULL) : rc;
}

static void close_side(struct side *side)
{
    tierce_chain_destroy(side->chain);
    tierce__kv_close(&side->kv);
    tierce__bench_local_node_stop(&side->node);
}

static int open_all(struct handover_bench *b, bool over_nodes)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    int rc = open_side(&b->prefiller, b->bench, 144u << 20, over_nodes ? "prefiller" : NULL);
    if (rc == 0)
        rc = open_side(&b->decoder, b->bench, 128u << 20, over_nodes ? "decoder" : NULL);
    if (rc != 0)
        return rc;
    rc = tierce__handover_start(&b->handover, b->prefiller.kv.engine, "127.0.0.1", 0, why);
    if (rc == 0)
        rc = tierce__handover_start(&b->receiver, b->decoder.kv.engine, "127.0.0.1", 0, why);
    if (rc < 0)
        return tierce__bench_fail(b->bench, "%s: %s", tierce_strerror(rc), why);
    b->object_bytes = b->prefiller.kv.view->full.extent.object_bytes;
    const struct tierce__inbox_opts opts = {
        .size = sizeof(opts), .hosts = "127.0.0.1", .bytes_max = 2 * CHUNKS * b->object_bytes};
    rc = tierce__handover_accept(b->receiver, &opts, why);
    if (rc < 0)
        return rc;
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
    tierce__handover_stop(b->receiver);
    tierce__handover_stop(b->handover);
    close_side(&b->decoder);
    close_side(&b->prefiller);
}

static void emit_rate(const struct handover_bench *b, const char *what,
                      const struct tierce__bench_side *side,
                      const struct tierce__bench_side *sockets)
{
    double ours = (double)b->object_bytes * CHUNKS,
           bare = (double)b->sockets.bytes * (double)b->sockets.count;
    char name[64];
    snprintf(name, sizeof(name), "%s of %d chunks of %llu KiB", what, CHUNKS,
             (unsigned long long)(b->object_bytes >> 10));
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = ours / side->median_ns,
                                                             .limit = bare / sockets->median_ns,
                                                             .goal = 0.95,
                                                             .value_min = ours / side->max_ns,
                                                             .value_max = ours / side->min_ns,
                                                             .limit_min = bare / sockets->max_ns,
                                                             .limit_max = bare / sockets->min_ns});
}

static void emit_end(const struct handover_bench *b, const char *name,
                     const struct tierce__bench_side *side,
                     const struct tierce__bench_side *sockets)
{
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "ms",
                                                             .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                             .value = side->median_ns / 1e6,
                                                             .limit = sockets->median_ns / 1e6,
                                                             .goal = PUSH_GOAL,
                                                             .value_min = side->min_ns / 1e6,
                                                             .value_max = side->max_ns / 1e6,
                                                             .limit_min = sockets->min_ns / 1e6,
                                                             .limit_max = sockets->max_ns / 1e6});
}

static int run_engines(const struct tierce__bench *bench)
{
    struct handover_bench b = {.bench = bench, .poll_ns = 50000};
    struct tierce__bench_side sides[] = {{.run = hand_over, .arg = &b},
                                         {.run = copy_bare, .arg = &b},
                                         {.run = push_stored, .arg = &b},
                                         {.run = push_computed, .arg = &b}};
    int rc = open_all(&b, false);
    if (rc == 0)
        rc = check(&b, hand_over);
    if (rc == 0)
        rc = check(&b, push_stored);
    if (rc == 0)
        rc = check(&b, push_computed);
    if (rc == 0)
        rc = tierce__bench_alternate(sides, 4, bench->seconds);
    if (rc == 0) {
        emit_rate(&b, "a prompt", &sides[0], &sides[1]);
        emit_rate(&b, "a push", &sides[2], &sides[1]);
        char name[64];
        snprintf(name, sizeof(name), "the end of a push of %d chunks of %llu KiB", CHUNKS,
                 (unsigned long long)(b.object_bytes >> 10));
        emit_end(&b, name, &sides[3], &sides[1]);
    }
    close_all(&b);
    return rc;
}

static int run_nodes(const struct tierce__bench *bench)
{
    struct handover_bench b = {.bench = bench, .poll_ns = 1000000}; /* a message each time */
    struct tierce__bench_side sides[] = {{.run = push_computed, .arg = &b},
                                         {.run = copy_bare, .arg = &b}};
    int rc = open_all(&b, true);
    if (rc == 0)
        rc = check(&b, push_computed);
    if (rc == 0)
        rc = tierce__bench_alternate(sides, 2, bench->seconds);
    if (rc == 0)
        emit_end(&b, "the end of a push over nodes", &sides[0], &sides[1]);
    close_all(&b);
    return rc;
}

int tierce__bench_handover(const struct tierce__bench *bench)
{
    int rc = run_engines(bench);
    return rc == 0 ? run_nodes(bench) : rc;
}
