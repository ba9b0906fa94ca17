/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_ENGINE_FIXTURE_H
#define TIERCE_TESTS_ENGINE_FIXTURE_H

/*
 * A small "inference engine" for tests: paged memory whose blocks can be filled with bytes that
 * follow from (token sequence, layer, block), so that a wrong byte anywhere is seen.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tierce/tierce.h>

#include "check_main.h"
#include "tier_fault.h"
#include "engine/engine.h"
#include "engine/view.h"

/*
 * With TIERCE_TEST_NODE the same tests run against a node: fx.view is that of a client of it, and
 * fx.engine the node's engine, whose counters and tiers the tests look at.
 */
#ifdef TIERCE_TEST_NODE
#include "node_harness.h"
#endif

/* A test of features that a client of a node does not have, or of the internals of the node's
 * engine. */
#ifdef TIERCE_TEST_NODE
#define FX_EMBEDDED(test) ((void)(test), NULL)
#else
#define FX_EMBEDDED(test) (test)
#endif

#define FX_LAYERS       4u
#define FX_BLOCKS       512u /* of the paged memory */
#define FX_BLOCK_TOKENS 4u
#ifndef FX_CHUNK_BLOCKS
#define FX_CHUNK_BLOCKS 4u
#endif
#ifndef FX_KV_DTYPE
#define FX_KV_DTYPE "float32"
#endif
#ifndef FX_QUANTIZATION
#define FX_QUANTIZATION ""
#endif

static const uint32_t fx_cells[FX_LAYERS] = {512, 768, 512, 1000};

struct fixture {
    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce_view *inner; /* of `engine` itself, for its keys */
    struct tierce_paged_layer layers[FX_LAYERS];
    struct tierce_paged paged;
    char folder[64]; /* of the disk tier, "" for none */
#ifdef TIERCE_TEST_NODE
    struct node_harness node;
    struct tierce_engine *client;
    char socket_folder[64];
#endif
};

static inline struct tierce_config *fx_config(const char *folder, const char *const *sets)
{
    struct tierce_config *config;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, "memory.size", "4MiB", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "disk.size", "16MiB", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "disk.path", folder, why), 0);
    ck_assert_int_eq(tierce_config_set(config, "disk.lock_wait", "0", why), 0);
    /* A busy machine is not a reason for a miss, nor a slow disk for a loss. */
    ck_assert_int_eq(tierce_config_set(config, "timeout.lookup", "5s", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.load", "60s", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.close", "120s", why), 0);
#ifdef TIERCE_TEST_COPY_THREADS
    ck_assert_int_eq(tierce_config_set(config, "copy.threads", TIERCE_TEST_COPY_THREADS, why), 0);
#endif
    for (; sets != NULL && sets[0] != NULL; sets += 2)
        ck_assert_msg(tierce_config_set(config, sets[0], sets[1], why) == 0, "%s", why);
    return config;
}

static inline struct tierce_namespace fx_namespace(void)
{
    return (struct tierce_namespace){.size = sizeof(struct tierce_namespace),
                                     .weights = "00112233",
                                     .model = "{\"model_type\":\"test\"}",
                                     .kv_dtype = FX_KV_DTYPE,
                                     .quantization = FX_QUANTIZATION,
                                     .layout = "test/1",
                                     .layer_count = FX_LAYERS,
                                     .cell_bytes = fx_cells,
                                     .block_tokens = FX_BLOCK_TOKENS,
                                     .chunk_blocks = FX_CHUNK_BLOCKS,
                                     .algo = TIERCE_CHAIN_SHA256};
}

static inline struct tierce_engine *fx_engine(const struct tierce_config *config)
{
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    int rc = tierce_engine_open(&engine, config, why);
    ck_assert_msg(rc == 0, "%s", why);
    return engine;
}

#ifdef TIERCE_TEST_NODE

/* A node of this process, and a client of it. Returns the client. */
static inline struct tierce_engine *fx_open_engine(struct fixture *fx, const char *folder,
                                                   const char *const *sets)
{
    static char texts[24][256];
    char *arguments[24];
    size_t count = 0;
    const char *own[] = {"memory.size",
                         "4MiB",
                         "disk.size",
                         "16MiB",
                         "disk.path",
                         folder,
                         "disk.lock_wait",
                         "0",
                         "timeout.lookup",
                         "5s",
                         "timeout.load",
                         "60s",
                         "timeout.close",
                         "120s",
                         NULL};
    snprintf(fx->socket_folder, sizeof(fx->socket_folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx->socket_folder);
    const char *const *const both[] = {own, sets};
    for (size_t i = 0; i < 2; i++) {
        for (const char *const *from = both[i]; from != NULL && from[0] != NULL; from += 2)
            snprintf(texts[count++], sizeof(texts[0]), "--%s=%s", from[0], from[1]);
    }
    snprintf(texts[count++], sizeof(texts[0]), "--listen.native=%s/node", fx->socket_folder);
    snprintf(texts[count++], sizeof(texts[0]), "--disk.optional=true"); /* as in an engine */
    for (size_t i = 0; i < count; i++)
        arguments[i] = texts[i];
    harness_start(&fx->node, (int)count, arguments);
    fx->engine = fx->node.node->engine;
    struct tierce_config *config;
    char why[TIERCE_CONFIG_ERROR_BYTES], path[80];
    ck_assert_int_eq(tierce_config_create(&config), 0);
    snprintf(path, sizeof(path), "%s/node", fx->socket_folder);
    ck_assert_int_eq(tierce_config_set(config, "node.socket", path, why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.lookup", "5s", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.load", "60s", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.close", "120s", why), 0);
    for (const char *const *set = sets; set != NULL && set[0] != NULL; set += 2) {
        if (strcmp(set[0], "timeout.store") == 0 || strcmp(set[0], "timeout.lookup") == 0 ||
            strcmp(set[0], "timeout.load") == 0) /* its caller waits as well */
            ck_assert_int_eq(tierce_config_set(config, set[0], set[1], why), 0);
    }
    fx->client = fx_engine(config);
    tierce_config_destroy(config);
    return fx->client;
}

static inline void fx_close_engine(struct fixture *fx)
{
    tierce_engine_close(fx->client);
    harness_stop(&fx->node);
    temp_folder_remove(fx->socket_folder);
}

#else

static inline struct tierce_engine *fx_open_engine(struct fixture *fx, const char *folder,
                                                   const char *const *sets)
{
    struct tierce_config *config = fx_config(folder, sets);
    fx->engine = fx_engine(config);
    tierce_config_destroy(config);
    return fx->engine;
}

static inline void fx_close_engine(struct fixture *fx)
{
    tierce_engine_close(fx->engine);
}

#endif

/* Opens engine and view; the folder is made anew unless it is named already. */
static inline void fx_open(struct fixture *fx, bool disk, const char *const *sets)
{
    if (disk && fx->folder[0] == '\0') {
        snprintf(fx->folder, sizeof(fx->folder), "/tmp/tierce-test-XXXXXX");
        temp_folder_make(fx->folder);
    }
    struct tierce_engine *engine = fx_open_engine(fx, disk ? fx->folder : "", sets);
    struct tierce_namespace ns = fx_namespace();
    ck_assert_int_eq(tierce_view_open(&fx->view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    fx->inner = fx->view;
    if (engine != fx->engine)
        ck_assert_int_eq(
            tierce_view_open(&fx->inner, fx->engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    for (uint32_t i = 0; i < FX_LAYERS; i++) {
        if (fx->layers[i].base == NULL)
            fx->layers[i].base = calloc(FX_BLOCKS, 1024);
        fx->layers[i].block_stride = 1024;
        fx->layers[i].block_bytes = fx_cells[i];
    }
    fx->paged = (struct tierce_paged){sizeof(fx->paged), fx->layers, FX_LAYERS, FX_BLOCKS,
                                      TIERCE_DEVICE_HOST};
}

static inline void fx_close(struct fixture *fx)
{
#ifdef TIERCE_TEST_NODE /* otherwise the view, or its replacement by a test */
    if (fx->inner != fx->view)
        tierce_view_close(fx->inner);
#endif
    tierce_view_close(fx->view);
    fx_close_engine(fx);
}

/* Puts a tier that injects faults over one of the engine's. Call it before other threads use the
 * tier: the keeper looks at remote ones while named values are open. */
static inline struct tierce__tier *fx_wrap(struct fixture *fx, size_t level)
{
    struct tierce__tier *fault;
    ck_assert_int_eq(tierce__fault_create(&fault, fx->engine->levels[level].tier), 0);
    fx->engine->levels[level].tier = fault;
    return fault;
}

static inline void fx_remove(struct fixture *fx)
{
    for (uint32_t i = 0; i < FX_LAYERS; i++)
        free(fx->layers[i].base);
    temp_folder_remove(fx->folder);
}

/* The tokens of sequence `seed`: equal seeds share all, seeds equal modulo 1000 share `shared`. */
static inline struct tierce_chain *fx_chain(struct fixture *fx, uint32_t seed, size_t blocks,
                                            size_t shared)
{
    struct tierce_chain *chain;
    ck_assert_int_eq(tierce_view_chain(&chain, fx->view, NULL), 0);
    for (size_t i = 0; i < blocks * FX_BLOCK_TOKENS; i++) {
        uint32_t s = i < shared * FX_BLOCK_TOKENS ? seed % 1000 : seed;
        int32_t token = (int32_t)((s * 2654435761u + i * 40503u) & 0xffff);
        ck_assert_int_ge(tierce_chain_append(chain, &token, 1, NULL), 0);
    }
    return chain;
}

/* The byte that stands everywhere in (chain block, layer): from the block's own hash. */
static inline uint8_t fx_byte(const struct tierce_chain *chain, size_t block, uint32_t layer)
{
    const uint8_t *h = tierce_chain_hash(chain, block);
    return (uint8_t)(h[layer] ^ h[layer + 8]);
}

static inline void fx_fill(struct fixture *fx, const struct tierce_chain *chain, size_t from,
                           size_t to, const int32_t *ids)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        for (size_t b = from; b < to; b++)
            memset((uint8_t *)fx->layers[l].base + (size_t)ids[b] * 1024, fx_byte(chain, b, l),
                   fx_cells[l]);
    }
}

static inline void fx_wipe(struct fixture *fx)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        memset(fx->layers[l].base, 0x5a, FX_BLOCKS * 1024);
}

/* Copies the cells of blocks, in the order of layers and blocks: FX_TAKEN bytes for each block. */
enum { FX_TAKEN = 512 + 768 + 512 + 1000 };
static inline void fx_take(struct fixture *fx, uint8_t *to, size_t blocks, const int32_t *ids)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        for (size_t b = 0; b < blocks; b++, to += fx_cells[l])
            memcpy(to, (const uint8_t *)fx->layers[l].base + (size_t)ids[b] * 1024, fx_cells[l]);
    }
}

/* Whether a block in paged memory holds just what it should, and nothing beyond its cell. */
static inline bool fx_right(struct fixture *fx, const struct tierce_chain *chain, size_t block,
                            int32_t id)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        const uint8_t *p = (const uint8_t *)fx->layers[l].base + (size_t)id * 1024;
        /* All are the first one, told without a loop, which a sanitizer makes slow. */
        if (p[0] != fx_byte(chain, block, l) || memcmp(p, p + 1, fx_cells[l] - 1) != 0)
            return false;
        if (p[fx_cells[l]] != 0x5a && p[fx_cells[l]] != 0)
            return false;
    }
    return true;
}

static inline struct tierce_transfer_opts fx_what(struct fixture *fx,
                                                  const struct tierce_chain *chain, size_t from,
                                                  size_t to, const int32_t *ids)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = chain,
                                         .from_block = from,
                                         .to_block = to,
                                         .paged = &fx->paged,
                                         .block_ids = ids};
}

/* Fills the blocks and stores them. Returns the blocks stored. */
static inline int64_t fx_store(struct fixture *fx, const struct tierce_chain *chain, size_t to,
                               const int32_t *ids, bool tail)
{
    fx_fill(fx, chain, 0, to, ids);
    struct tierce_transfer_opts what = fx_what(fx, chain, 0, to, ids);
    what.tail = tail;
    return tierce_store(fx->view, &what);
}

static inline uint64_t fx_found(struct fixture *fx, const struct tierce_chain *chain, size_t to,
                                unsigned flags, uint64_t session, uint64_t *memory)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .flags = flags, .session = session};
    ck_assert_int_eq(tierce_lookup(fx->view, chain, to, &opts, &found), 0);
    if (memory != NULL)
        *memory = found.memory_blocks;
    return found.blocks;
}

static inline struct tierce_engine_stats fx_stats(struct fixture *fx)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(fx->engine, &stats);
    return stats;
}

static const int32_t fx_ids[FX_BLOCKS] = {7,   3,   12,  0,  44, 45, 46, 9,   100, 101, 99,
                                          200, 255, 254, 1,  2,  60, 61, 62,  63,  64,  65,
                                          66,  67,  70,  72, 71, 73, 80, 81,  83,  82,  90,
                                          91,  92,  93,  94, 95, 96, 97, 110, 111, 112, 113};

#endif
