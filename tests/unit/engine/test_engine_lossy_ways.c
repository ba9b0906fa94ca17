/* SPDX-License-Identifier: Apache-2.0 */
/* Every way out of memory of a namespace that has chosen a lossy codec: a load finds the same
 * values whether the chunks were on disk, in coded memory, in a node or in a pool, also encrypted.
 * The engine has no codec of its own. */
#define FX_CHUNK_BLOCKS 16u
#define FX_KV_DTYPE     "bfloat16"
#define FX_QUANTIZATION "tierce-int8"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "store/coded/coded_connector.h"
#include "store/coded/coded_tier.h"
#include "wait_for.h"
#include "whole_stores.h"

enum { BLOCKS = 32, CHUNKS = 2, BYTES = FX_TAKEN * BLOCKS };

static struct fixture fx;
static struct whole_store pool;
static int32_t ids[BLOCKS];
static uint8_t want[BYTES], got[BYTES];

static struct tierce_chain *store(void)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, true), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    return chain;
}

static void load(uint8_t *to, const struct tierce_chain *chain, uint8_t origin)
{
    uint8_t origins[BLOCKS];
    fx_wipe(&fx);
    (void)fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert_uint_eq(origins[b], origin);
    fx_take(&fx, to, BLOCKS, ids);
}

/* The bytes that a disk restores for the chain; they differ from those that were stored. */
static void setup(void)
{
    static uint8_t stored[BYTES];
    silence_log();
    for (int32_t i = 0; i < BLOCKS; i++)
        ids[i] = (i * 13 + 7) % BLOCKS;
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = store();
    load(stored, chain, TIERCE_ORIGIN_MEMORY);
    fx_close(&fx);
    fx_open(&fx, true, NULL);
    load(want, chain, TIERCE_ORIGIN_DISK);
    ck_assert_mem_ne(want, stored, BYTES);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    memset(&fx, 0, sizeof(fx));
}

static bool memory_is_empty(void)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    struct tierce__tier_stats stats;
    (void)memory->ops->evict(memory, UINT64_MAX);
    memory->ops->stats(memory, &stats);
    return stats.chunks == 0;
}

START_TEST(coded_memory)
{
    static const char *const sets[] = {"memory.coded_size", "4MiB", NULL};
    struct tierce__coded_stats stats;
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = store();
    WAIT_FOR(memory_is_empty());
    load(got, chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_mem_eq(got, want, BYTES);
    tierce__coded_tier_stats(fx.engine->levels[1].coded, &stats);
    ck_assert_uint_eq(stats.lossy_chunks, CHUNKS);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

#define KEY "0101010101010101010101010101010101010101010101010101010101010101"

/* Copies in memory are in front of the store, and of the disk, which both encrypt. */
static const char *const ways[][9] = {
    {NULL},
    {"remote.encryption", "aes-256-gcm", "encryption.key_command", "echo 1 " KEY, NULL},
    {"remote.encryption", "aes-256-gcm", "encryption.key_command", "echo 1 " KEY,
     "memory.coded_size", "4MiB", "disk.encryption", "aes-256-gcm", NULL}};
#define WAYS ((int)(sizeof(ways) / sizeof(ways[0])))

/* The engine's level that has the store. */
static struct tierce__connector *connector(void)
{
    return fx.engine->levels[fx.engine->level_count - 1].connector;
}

static void open_engine(bool has_disk, const char *const *way)
{
    const char *all[12] = {"remote.urls", pool.url};
    for (size_t i = 0; way[i] != NULL; i++)
        all[2 + i] = way[i];
    fx_open(&fx, has_disk, all);
}

/* _i: the way, and the store. */
START_TEST(stores_that_give_objects_whole)
{
    struct tierce__coded_stats stats;
    const char *const *way = ways[_i / 2];
    bool has_all = _i / 2 == WAYS - 1;
    whole_store_start(&pool, _i % 2);
    open_engine(has_all, way);
    struct tierce_chain *chain = store();
    tierce__coded_connector_stats(connector(), &stats);
    ck_assert_uint_eq(stats.lossy_chunks, CHUNKS);
    ck_assert_uint_eq(stats.encrypted_chunks, _i / 2 > 0 ? CHUNKS : 0);
    if (has_all) {
        WAIT_FOR(memory_is_empty());
        load(got, chain, TIERCE_ORIGIN_MEMORY);
        ck_assert_mem_eq(got, want, BYTES);
        fx_close(&fx);
        open_engine(true, way);
        load(got, chain, TIERCE_ORIGIN_DISK);
        ck_assert_mem_eq(got, want, BYTES);
    }
    fx_close(&fx);
    open_engine(false, ways[has_all ? 1 : _i / 2]);
    load(got, chain, TIERCE_ORIGIN_REMOTE);
    ck_assert_mem_eq(got, want, BYTES);
    tierce__coded_connector_stats(connector(), &stats);
    ck_assert_uint_gt(stats.lossy_decoded_raw_bytes, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    whole_store_stop(&pool);
}
END_TEST

CHECK_MAIN("engine_lossy_ways", .seconds = 60, .setup = setup, .tests = {coded_memory},
           .loops = {{stores_that_give_objects_whole, 0, 2 * WAYS}})
