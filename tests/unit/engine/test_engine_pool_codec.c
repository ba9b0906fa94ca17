/* SPDX-License-Identifier: Apache-2.0 */
/* Engines with a codec or encryption for stores that give objects only whole: a node by lm:// (_i:
 * 0), and the pool of a manager (1). */
#define FX_CHUNK_BLOCKS 16u /* long enough to become shorter */
#define FX_KV_DTYPE     "bfloat16"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "store/coded/coded_connector.h"
#include "wait_for.h"
#include "whole_stores.h"

enum { BLOCKS = 64, CHUNKS = 4 };

static struct fixture fx;
static int32_t ids[FX_BLOCKS];
static struct whole_store pool;

static void start_stores(int which)
{
    silence_log();
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = (i * 45 + 7) % (int32_t)FX_BLOCKS;
    whole_store_start(&pool, which);
}

static void stop_stores(void)
{
    fx_remove(&fx);
    whole_store_stop(&pool);
}

/* `sets`: parameters besides the URL, ended by NULL. */
static void open_engine(const char *suffix, const char *const *sets)
{
    char url[200];
    const char *all[12] = {"remote.urls", url};
    snprintf(url, sizeof(url), "%s%s", pool.url, suffix);
    for (size_t i = 0; sets[i] != NULL; i++)
        all[2 + i] = sets[i];
    fx_open(&fx, false, all);
}

static struct tierce__coded_stats stats_now(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_connector_stats(fx.engine->levels[1].connector, &stats);
    return stats;
}

static void store(const struct tierce_chain *chain, size_t blocks, int64_t want)
{
    ck_assert_int_eq(fx_store(&fx, chain, blocks, ids, true), want);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

/* Loads what was found; each block that was loaded is the right one. */
static int64_t load(const struct tierce_chain *chain, size_t blocks)
{
    uint8_t origins[FX_BLOCKS];
    fx_wipe(&fx);
    (void)fx_found(&fx, chain, blocks, 0, 0, NULL);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; loaded >= 0 && b < blocks; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED ||
                  (origins[b] == TIERCE_ORIGIN_REMOTE && fx_right(&fx, chain, b, ids[b])));
    return loaded;
}

/* The bytes of the blocks in the folder of the pool. */
static uint64_t pool_bytes(void)
{
    char command[160];
    unsigned long long sum = 0, bytes = 0;
    snprintf(command, sizeof(command), "find '%s/nfs_01' -type f ! -name '~*' -printf '%%s\\n'",
             pool.manager.folder);
    FILE *pipe = popen(command, "r");
    while (fscanf(pipe, "%llu", &bytes) == 1)
        sum += bytes;
    pclose(pipe);
    return sum;
}

static const char *const lossless[] = {"remote.codec", "lossless", NULL};

START_TEST(a_store_has_coded_and_raw_chunks)
{
    start_stores(_i);
    open_engine("", lossless);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_chain *longer = fx_chain(&fx, 1, 2 * BLOCKS, 0);
    store(chain, BLOCKS, BLOCKS);
    struct tierce__coded_stats stats = stats_now();
    ck_assert_uint_eq(stats.encoded_chunks, CHUNKS);
    ck_assert_uint_lt(stats.encoded_bytes, stats.encoded_raw_bytes);
    ck_assert(_i == 0 || pool_bytes() == stats.encoded_bytes);
    fx_close(&fx);
    /* A reader without a codec, which adds raw chunks behind the coded ones. */
    open_engine("?codec=none", lossless);
    ck_assert_int_eq(load(chain, BLOCKS), BLOCKS);
    store(longer, 2 * BLOCKS, BLOCKS);
    stats = stats_now();
    ck_assert_uint_eq(stats.encoded_chunks, 0);
    ck_assert_uint_gt(stats.decoded_raw_bytes, stats.decoded_bytes);
    fx_close(&fx);
    open_engine("?codec=lossless", (const char *const[]){NULL});
    ck_assert_int_eq(load(longer, 2 * BLOCKS), 2 * BLOCKS);
    tierce_chain_destroy(longer);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop_stores();
}
END_TEST

#define KEY_1 "echo 1 0101010101010101010101010101010101010101010101010101010101010101"

/* Without a codec encrypted chunks are longer than raw ones. Without the key they are misses. */
START_TEST(a_store_has_encrypted_chunks)
{
    static const char *const encrypted[] = {"remote.encryption", "aes-256-gcm",
                                            "encryption.key_command", KEY_1, NULL};
    static const char *const both[] = {
        "remote.encryption", "aes-256-gcm", "encryption.key_command", KEY_1, "remote.codec",
        "lossless",          NULL};
    start_stores(_i);
    open_engine("", encrypted);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0), *other = fx_chain(&fx, 2, BLOCKS, 0);
    store(chain, BLOCKS, BLOCKS);
    ck_assert_uint_eq(stats_now().encrypted_chunks, CHUNKS);
    fx_close(&fx);
    open_engine("", both);
    ck_assert_int_eq(load(chain, BLOCKS), BLOCKS);
    store(other, BLOCKS, BLOCKS);
    ck_assert_uint_eq(stats_now().encoded_chunks, CHUNKS);
    fx_close(&fx);
    open_engine("", lossless);
    ck_assert_int_lt(load(chain, BLOCKS), 1);
    ck_assert_uint_gt(stats_now().locked_reads, 0);
    fx_close(&fx);
    open_engine("", encrypted);
    ck_assert_int_eq(load(chain, BLOCKS), BLOCKS);
    ck_assert_int_eq(load(other, BLOCKS), BLOCKS);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop_stores();
}
END_TEST

CHECK_MAIN("engine_pool_codec", .seconds = 60,
           .loops = {{a_store_has_coded_and_raw_chunks, 0, 2},
                     {a_store_has_encrypted_chunks, 0, 2}})
