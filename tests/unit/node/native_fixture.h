/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_NATIVE_FIXTURE_H
#define TIERCE_TESTS_NATIVE_FIXTURE_H

/* A node of a test's own, its engine, and clients that speak the native protocol to it. */
#include "check_main.h"
#include "native_harness.h"
#include "node/native/native_server.h"
#include "node_harness.h"
#include "wait_for.h"

#include <time.h>

#include <tierce/operate.h>

#define BLOCKS 14u /* three chunks and a tail */
#define CHUNKS 4u

static struct node_harness node;
static struct fixture fx; /* its engine is the node's */
static char folder[64], path[96];
static struct native_client a, b;
static struct tierce_chain *chain;

static inline void start(int argc, char *const *argv)
{
    char listen[128], disk[128];
    char *all[16] = {listen, (char *)"--listen.resp=false", (char *)"--listen.lm=false",
                     (char *)"--serve.drain=200ms", disk};
    if (folder[0] == '\0') {
        snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
        temp_folder_make(folder);
    }
    snprintf(path, sizeof(path), "%s/node.sock", folder);
    snprintf(listen, sizeof(listen), "--listen.native=%s", path);
    snprintf(disk, sizeof(disk), "--disk.path=%s/disk", folder);
    for (int i = 0; i < argc; i++)
        all[5 + i] = argv[i];
    harness_start(&node, 5 + argc, all);
    struct tierce_namespace ns = fx_namespace();
    fx.engine = node.node->engine;
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    for (uint32_t i = 0; i < FX_LAYERS; i++) {
        if (fx.layers[i].base == NULL)
            fx.layers[i].base = calloc(FX_BLOCKS, 1024);
        fx.layers[i].block_stride = 1024;
        fx.layers[i].block_bytes = fx_cells[i];
    }
    fx.paged = (struct tierce_paged){sizeof(fx.paged), fx.layers, FX_LAYERS, FX_BLOCKS,
                                     TIERCE_DEVICE_HOST};
    chain = fx_chain(&fx, 1, BLOCKS, 0);
}

static inline void stop(void)
{
    tierce_chain_destroy(chain);
    tierce_view_close(fx.view);
    harness_stop(&node);
}

static inline void end(void)
{
    stop();
    for (uint32_t i = 0; i < FX_LAYERS; i++) {
        free(fx.layers[i].base);
        fx.layers[i].base = NULL;
    }
    temp_folder_remove(folder);
    folder[0] = '\0';
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline struct tierce__native_stats stats(void)
{
    struct tierce__native_stats out;
    tierce__native_stats(node.node->native, &out);
    return out;
}

static inline void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static inline void wait_for_clients(uint64_t clients)
{
    WAIT_WITHIN(30000, stats().clients == clients);
    ck_assert(clients > 0 || stats().views == 0);
}

/* Chunks that the node's own engine finds are complete and right. Returns its blocks. */
static inline uint64_t check_found(const struct tierce_chain *of)
{
    uint64_t blocks = fx_found(&fx, of, tierce_chain_blocks(of), 0, 0, NULL);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, of, 0, blocks, fx_ids);
    if (blocks > 0)
        ck_assert_int_eq(tierce_load(fx.view, &what, NULL), (int64_t)blocks);
    for (size_t i = 0; i < blocks; i++)
        ck_assert(fx_right(&fx, of, i, fx_ids[i]));
    return blocks;
}

/* Nothing is held by anybody. */
static inline void check_free(void)
{
    ck_assert_uint_eq(stats().held_bytes, 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    WAIT_WITHIN(30000, fx_stats(&fx).memory_bytes_now == 0);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
}

#endif
