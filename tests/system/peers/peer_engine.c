/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with peers, and with pushes of chunks, as a process, for test_peers_network.py.
 *
 *     peer_engine CELL_BYTES[,BLOCKS] PARAMETER=VALUE...
 *
 * CELL_BYTES: KV of a block in a layer; a chunk has 16 cells. BLOCKS: of a prompt, 16 without it.
 * The engine reads lines from its standard input until they end, and answers each one with a line:
 *
 *     store SEED             stored BLOCKS
 *     find SEED              found BLOCKS MS STATE
 *                                                 by lookups as vLLM's connector asks for them
 *     load SEED TIMEOUT_MS   loaded BLOCKS US     of the BLOCKS of a prompt; each byte is compared.
 *                                                 A timeout of 0 is timeout.load
 *     forget                 forgotten            memory
 *     accept HOST HOSTS      accepts PORT TICKET  pushes of chunks from HOSTS at HOST
 *     push SEED HOST PORT TICKET TIMEOUT_MS
 *                            pushed CHUNKS US WHY of the CHUNKS of a prompt, while it is stored
 *     status                 the engine's state, as JSON
 *
 * A wrong byte ends the process with exit code 3, and pins that are left at the end with 4.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mix.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_push.h"
#include "engine/observe/engine_metrics.h"

#include <tierce/operate.h>
#include <tierce/tierce.h>

enum {
    LAYERS = 4,
    CELL_BYTES_MAX = 1 << 21,
    BLOCK_TOKENS = 4,
    CHUNK_BLOCKS = 4,
    BLOCKS_MAX = 1024,
    FLUSH_MS = 60000,
    POLL_NS = 1000000,
    PATIENCE_MS = 300, /* of a request that repeats its lookup: as the connector's, with the default
                          of timeout.lookup */
};

static struct tierce_engine *engine;
static struct tierce__handover *handover;
static struct tierce_view *view;
static uint32_t cell_bytes, blocks = 16;
static uint8_t *memory[LAYERS]; /* [blocks * cell_bytes] */
static struct tierce_paged_layer layers[LAYERS];
static struct tierce_paged paged = {
    .size = sizeof(paged), .layers = layers, .layer_count = LAYERS, .device = TIERCE_DEVICE_HOST};

static void must(int64_t rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "peer_engine: %s: %s\n", what, tierce_strerror((int)rc));
    exit(2);
}

static void make_memory(const char *bytes)
{
    char *more;
    cell_bytes = (uint32_t)strtoul(bytes, &more, 10);
    if (*more == ',')
        blocks = (uint32_t)strtoul(more + 1, NULL, 10);
    if (cell_bytes == 0 || cell_bytes > CELL_BYTES_MAX || cell_bytes % sizeof(uint64_t) != 0 ||
        blocks == 0 || blocks > BLOCKS_MAX)
        must(TIERCE_E_ARGUMENT, "CELL_BYTES[,BLOCKS]");
    paged.block_count = blocks;
    for (size_t i = 0; i < LAYERS; i++) {
        memory[i] = calloc(blocks, cell_bytes);
        must(memory[i] != NULL ? 0 : -ENOMEM, "memory");
        layers[i] = (struct tierce_paged_layer){
            .base = memory[i], .block_stride = cell_bytes, .block_bytes = cell_bytes};
    }
}

static void open_engine(int count, char **settings)
{
    const uint32_t cells[LAYERS] = {cell_bytes, cell_bytes, cell_bytes, cell_bytes};
    const struct tierce_namespace ns = {.size = sizeof(ns),
                                        .weights = "00112233",
                                        .model = "{\"model_type\":\"test\"}",
                                        .kv_dtype = "float32",
                                        .layout = "test/1",
                                        .layer_count = LAYERS,
                                        .cell_bytes = cells,
                                        .block_tokens = BLOCK_TOKENS,
                                        .chunk_blocks = CHUNK_BLOCKS,
                                        .algo = TIERCE_CHAIN_SHA256};
    struct tierce_config *config;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    must(tierce_config_create(&config), "config");
    for (int i = 0; i < count; i++) {
        char *value = strchr(settings[i], '=');
        if (value == NULL)
            must(TIERCE_E_ARGUMENT, settings[i]);
        *value++ = '\0';
        must(tierce_config_set(config, settings[i], value, why), settings[i]);
    }
    must(tierce_engine_open(&engine, config, why), why);
    tierce_config_destroy(config);
    must(tierce_view_open(&view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), "view");
}

static struct tierce_chain *chain_of(uint32_t seed)
{
    struct tierce_chain *chain;
    must(tierce_view_chain(&chain, view, NULL), "chain");
    for (uint32_t i = 0; i < blocks * BLOCK_TOKENS; i++) {
        int32_t token = (int32_t)((seed * 2654435761u + i * 40503u) & 0xffff);
        must(tierce_chain_append(chain, &token, 1, NULL), "tokens");
    }
    return chain;
}

/* The bytes of each place differ, so one that is somewhere else is seen too. */
static void fill(uint8_t *cell, uint32_t seed, size_t layer, size_t block)
{
    for (size_t i = 0; i < cell_bytes / sizeof(uint64_t); i++) {
        uint64_t word =
            tierce__mix((((uint64_t)seed * LAYERS + layer) * blocks + block) * CELL_BYTES_MAX + i);
        memcpy(cell + i * sizeof(word), &word, sizeof(word));
    }
}

static struct tierce_transfer_opts whole(const struct tierce_chain *chain, int32_t ids[BLOCKS_MAX])
{
    for (uint32_t i = 0; i < blocks; i++)
        ids[i] = (int32_t)i;
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .paged = &paged,
                                         .chain = chain,
                                         .to_block = blocks,
                                         .block_ids = ids};
}

static void fill_layer(uint32_t seed, size_t layer)
{
    for (size_t b = 0; b < blocks; b++)
        fill(memory[layer] + b * cell_bytes, seed, layer, b);
}

static void store(uint32_t seed)
{
    int32_t ids[BLOCKS_MAX];
    struct tierce_chain *chain = chain_of(seed);
    for (size_t l = 0; l < LAYERS; l++)
        fill_layer(seed, l);
    struct tierce_transfer_opts what = whole(chain, ids);
    int64_t stored = tierce_store(view, &what);
    must(stored, "store");
    must(tierce_engine_flush(engine, FLUSH_MS), "flush");
    tierce_chain_destroy(chain);
    printf("stored %" PRId64 "\n", stored);
}

/* Without waiting, repeated while an answer is on its way, as often as the connector does. */
static void find(uint32_t seed)
{
    struct tierce_found found = {.pending = true};
    struct tierce_chain *chain = chain_of(seed);
    uint64_t began_ns = tierce__now_ns(), ns = 0;
    while (found.pending && ns < PATIENCE_MS * TIERCE__MS_NS) {
        const struct tierce_lookup_opts opts = {
            .size = sizeof(opts), .flags = TIERCE_LOOKUP_NO_WAIT | TIERCE_LOOKUP_AGAIN};
        must(tierce_lookup(view, chain, blocks, &opts, &found), "lookup");
        if (found.pending)
            (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        ns = tierce__now_ns() - began_ns;
    }
    tierce_chain_destroy(chain);
    printf("found %" PRIu64 " %" PRIu64 " %s\n", found.blocks, (uint64_t)(ns / TIERCE__MS_NS),
           found.pending ? "pending" : "answered");
}

static void load(uint32_t seed, uint32_t timeout_ms)
{
    static uint8_t right[CELL_BYTES_MAX];
    uint8_t origins[BLOCKS_MAX] = {0};
    int32_t ids[BLOCKS_MAX];
    struct tierce_chain *chain = chain_of(seed);
    for (size_t l = 0; l < LAYERS; l++)
        memset(memory[l], 0, blocks * (size_t)cell_bytes);
    struct tierce_transfer_opts what = whole(chain, ids);
    what.timeout_ms = timeout_ms;
    uint64_t began_ns = tierce__now_ns();
    int64_t loaded = tierce_load(view, &what, origins);
    uint64_t us = (tierce__now_ns() - began_ns) / 1000;
    must(loaded, "load");
    for (size_t b = 0; b < blocks; b++) {
        for (size_t l = 0; origins[b] != TIERCE_ORIGIN_FAILED && l < LAYERS; l++) {
            fill(right, seed, l, b);
            if (memcmp(right, memory[l] + b * cell_bytes, cell_bytes) == 0)
                continue;
            fprintf(stderr, "peer_engine: block %zu of prompt %u is wrong in layer %zu\n", b, seed,
                    l);
            exit(3);
        }
    }
    tierce_chain_destroy(chain);
    printf("loaded %" PRId64 " %" PRIu64 "\n", loaded, us);
}

/* Listens for pushes, and gives a ticket for one. */
static void accept_push(const char *host, const char *hosts)
{
    char why[TIERCE__HANDOVER_WHY_BYTES] = "", ticket[1][TIERCE__TICKET_BYTES];
    if (handover == NULL) {
        must(tierce__handover_start(&handover, engine, host, 0, why), why);
        const struct tierce__inbox_opts opts = {.size = sizeof(opts), .hosts = hosts};
        must(tierce__handover_accept(handover, &opts, why), why);
    }
    int made = tierce__handover_issue(handover, ticket, 1, FLUSH_MS, "");
    must(made == 1 ? 0 : TIERCE_E_LIMIT, "ticket");
    printf("accepts %u %s\n", tierce__handover_port(handover), ticket[0]);
}

static void store_layers(struct tierce__push *push, uint32_t seed, const struct tierce_chain *chain)
{
    int32_t ids[BLOCKS_MAX];
    struct tierce_store *begun;
    struct tierce_transfer_opts what = whole(chain, ids);
    must(tierce_store_begin(&begun, view, &what), "store");
    must(begun != NULL ? 0 : TIERCE_E_ARGUMENT, "a prompt that is stored already");
    must(tierce__push_watch(push, begun), "watch");
    for (uint32_t l = 0; l < LAYERS; l++) {
        fill_layer(seed, l);
        must(tierce_store_layer(begun, l), "layer");
    }
    must(tierce_store_end(begun), "end");
}

static void push_prompt(uint32_t seed, const struct tierce__push_to *to)
{
    struct tierce__push *push;
    struct tierce__pushed pushed;
    struct tierce_chain *chain = chain_of(seed);
    uint64_t began_ns = tierce__now_ns();
    must(tierce__push_begin(&push, view, to), "push");
    store_layers(push, seed, chain);
    tierce__push_end(push);
    while (!tierce__push_is_over(push, &pushed))
        (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    tierce__push_destroy(push);
    tierce_chain_destroy(chain);
    uint64_t us = (tierce__now_ns() - began_ns) / 1000;
    printf("pushed %" PRIu64 " %" PRIu64 " %s\n", pushed.chunks, us, pushed.why);
}

static void forget(void)
{
    must(tierce_engine_clear(engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), "clear");
    printf("forgotten\n");
}

static void show_status(void)
{
    struct tierce__line line = {0};
    tierce__engine_status(engine, &line);
    fwrite(line.text, 1, line.bytes, stdout);
    tierce__line_clear(&line);
}

static void answer(const char *line)
{
    uint32_t seed, timeout_ms;
    char host[64], other[64];
    uint16_t port;
    if (sscanf(line, "store %" SCNu32, &seed) == 1)
        store(seed);
    else if (sscanf(line, "find %" SCNu32, &seed) == 1)
        find(seed);
    else if (sscanf(line, "load %" SCNu32 " %" SCNu32, &seed, &timeout_ms) == 2)
        load(seed, timeout_ms);
    else if (sscanf(line, "accept %63s %63s", host, other) == 2)
        accept_push(host, other);
    else if (sscanf(line, "push %" SCNu32 " %63s %" SCNu16 " %63s %" SCNu32, &seed, host, &port,
                    other, &timeout_ms) == 5)
        push_prompt(seed, &(struct tierce__push_to){.host = host,
                                                    .port = port,
                                                    .ticket = other,
                                                    .wait_ms = timeout_ms,
                                                    .timeout_ms = timeout_ms});
    else if (strcmp(line, "forget\n") == 0)
        forget();
    else if (strcmp(line, "status\n") == 0)
        show_status();
    else
        must(TIERCE_E_ARGUMENT, line);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[256];
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    must(argc > 1 ? 0 : TIERCE_E_ARGUMENT, "CELL_BYTES[,BLOCKS]");
    make_memory(argv[1]);
    open_engine(argc - 2, argv + 2);
    while (fgets(line, sizeof(line), stdin) != NULL)
        answer(line);
    tierce__handover_stop(handover);
    tierce_engine_stats(engine, &stats);
    tierce_view_close(view);
    tierce_engine_close(engine);
    for (size_t i = 0; i < LAYERS; i++)
        free(memory[i]);
    return stats.leases_now == 0 ? 0 : 4;
}
