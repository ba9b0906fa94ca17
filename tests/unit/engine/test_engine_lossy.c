/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's namespace that has chosen a lossy codec: KV is exact in memory, approximate after it
 * has left it, the same in every slower tier, and never that of a namespace with another choice. */
#define FX_CHUNK_BLOCKS 16u
#define FX_KV_DTYPE     "bfloat16"
#define FX_QUANTIZATION "tierce-int8"
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/observe/chunk_orders_private.h"
#include "engine/observe/engine_metrics.h"
#include "engine_fixture.h"
#include "store/coded/coded_connector.h"

enum { BLOCKS = 64, BYTES = FX_TAKEN * BLOCKS };

static struct fixture fx;
static int32_t ids[BLOCKS];
static uint8_t first[BYTES], second[BYTES];

static void name_blocks(void)
{
    for (int32_t i = 0; i < BLOCKS; i++)
        ids[i] = (i * 45 + 7) % BLOCKS;
}

static uint64_t load(const struct tierce_chain *chain, uint8_t origin, uint8_t *to)
{
    uint8_t origins[BLOCKS];
    uint64_t right = 0;
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++) {
        ck_assert_uint_eq(origins[b], origin);
        right += fx_right(&fx, chain, b, ids[b]);
    }
    fx_take(&fx, to, BLOCKS, ids);
    return right;
}

/* A bfloat16 of two equal bytes. */
static double value_of(uint8_t byte)
{
    uint32_t bits = (uint32_t)(byte << 8 | byte) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double value_at(const uint8_t *at)
{
    uint32_t bits = (uint32_t)(at[1] << 8 | at[0]) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double magnitude(double value)
{
    return value < 0 ? -value : value;
}

/* Groups of 64 elements begin in a block and may end in the next one of the chunk, or begin in the
 * one before. So the greatest magnitude of a group is at most that of the three. */
static void expect_bounds(const struct tierce_chain *chain, const uint8_t *cells)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        for (uint32_t b = 0; b < BLOCKS; b++, cells += fx_cells[l]) {
            double most = 0, is = value_of(fx_byte(chain, b, l));
            for (uint32_t i = b > 0 ? b - 1 : 0; i <= b + 1 && i < BLOCKS; i++) {
                double value = magnitude(value_of(fx_byte(chain, i, l)));
                most = value > most ? value : most;
            }
            if (is != is) /* a NaN: its layer is stored as it is */
                continue;
            double bound = most / 254 + most / 256 + 1e-30;
            for (uint32_t i = 0; i < fx_cells[l]; i += 2)
                ck_assert_msg(magnitude(value_at(cells + i) - is) <= bound,
                              "layer %u, block %u: %g is %g", l, b, is, value_at(cells + i));
        }
    }
}

static struct tierce_chain *store(void)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    return chain;
}

static void restart(const char *const *sets)
{
    fx_close(&fx);
    fx_open(&fx, true, sets);
}

static struct tierce__coded_stats disk_stats(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(fx.engine->levels[1].coded, &stats);
    return stats;
}

START_TEST(memory_is_exact_and_the_disk_is_not)
{
    size_t bytes;
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = store();
    ck_assert_uint_eq(disk_stats().lossy_chunks, BLOCKS / 16);
    ck_assert_uint_eq(load(chain, TIERCE_ORIGIN_MEMORY, first), BLOCKS);
    restart(NULL);
    ck_assert_uint_lt(load(chain, TIERCE_ORIGIN_DISK, first), BLOCKS);
    expect_bounds(chain, first);
    /* Now in memory, as it was read. */
    ck_assert_uint_lt(load(chain, TIERCE_ORIGIN_MEMORY, second), BLOCKS);
    ck_assert_mem_eq(second, first, BYTES);
    struct tierce__coded_stats stats = disk_stats();
    ck_assert_uint_gt(stats.lossy_decoded_raw_bytes, 0);
    char *page = tierce__engine_metrics(fx.engine, &bytes);
    ck_assert_ptr_nonnull(strstr(page, "tierce_codec_lossy_chunks_total{tier=\"disk\"} 0"));
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_codec_lossy_decoded_raw_bytes_total{tier=\"disk\"}"));
    tierce__free(page);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static struct tierce_view *view_of(const char *quantization)
{
    struct tierce_view *view;
    struct tierce_namespace ns = fx_namespace();
    ns.quantization = quantization;
    ck_assert_int_eq(tierce_view_open(&view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    return view;
}

static uint64_t found_by(const char *quantization, const struct tierce_chain *chain)
{
    struct tierce_view *view = view_of(quantization);
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    ck_assert_int_eq(tierce_lookup(view, chain, BLOCKS, &opts, &found), 0);
    tierce_view_close(view);
    return found.blocks;
}

/* Engines with different choices, on one store. */
START_TEST(exact_and_lossy_namespaces_share_nothing)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = store();
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(found_by("tierce-int8", chain), BLOCKS);
        ck_assert_uint_eq(found_by("", chain), 0);
        ck_assert_uint_eq(found_by("tierce-int4", chain), 0);
        restart(NULL);
    }
    /* The exact engine stores the same prompt beside it, and reads it exactly. */
    struct tierce_view *lossy = fx.view;
    fx.view = view_of("");
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce_view_close(fx.view);
    fx.view = lossy;
    restart(NULL);
    lossy = fx.view;
    fx.view = view_of("");
    ck_assert_uint_eq(load(chain, TIERCE_ORIGIN_DISK, first), BLOCKS);
    tierce_view_close(fx.view);
    fx.view = lossy;
    ck_assert_uint_lt(load(chain, TIERCE_ORIGIN_DISK, first), BLOCKS);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static uint64_t recode(bool codes)
{
    static const _Atomic bool stops = false;
    struct tierce__chunk_orders orders;
    struct tierce__chunk_order_outcome out = {0};
    tierce__chunk_orders_init(&orders, fx.engine, &stops);
    tierce__chunk_orders_recode(&orders, &(struct tierce__chunk_numbers){0}, codes,
                                tierce__deadline_in_ms(50000), &out);
    tierce__chunk_orders_fini(&orders);
    return out.chunks;
}

/* An order to decompress keeps the values; one to compress adds no loss. */
START_TEST(orders_keep_the_values)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = store();
    restart(NULL);
    (void)load(chain, TIERCE_ORIGIN_DISK, first);
    restart(NULL);
    ck_assert_uint_eq(recode(false), BLOCKS / 16);
    restart(NULL);
    (void)load(chain, TIERCE_ORIGIN_DISK, second);
    ck_assert_mem_eq(second, first, BYTES);
    restart(NULL);
    ck_assert_uint_eq(recode(true), BLOCKS / 16);
    restart(NULL);
    (void)load(chain, TIERCE_ORIGIN_DISK, second);
    ck_assert_mem_eq(second, first, BYTES);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The disk and a remote store have the same bytes of a chunk, whether these came from memory or
 * from the disk. */
START_TEST(every_tier_has_the_same_values)
{
    char folder[] = "/tmp/tierce-lossy-remote-XXXXXX", url[200];
    struct tierce__coded_stats stats;
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "file://%s", folder);
    const char *const with_remote[] = {"remote.urls", url, NULL};
    fx_open(&fx, true, with_remote);
    struct tierce_chain *chain = store();
    tierce__coded_connector_stats(fx.engine->levels[2].connector, &stats);
    ck_assert_uint_eq(stats.lossy_chunks, BLOCKS / 16);
    restart(NULL);
    (void)load(chain, TIERCE_ORIGIN_DISK, first);
    fx_close(&fx);
    fx_open(&fx, false, with_remote);
    ck_assert_uint_lt(load(chain, TIERCE_ORIGIN_REMOTE, second), BLOCKS);
    ck_assert_mem_eq(second, first, BYTES);
    expect_bounds(chain, second);
    tierce__coded_connector_stats(fx.engine->levels[1].connector, &stats);
    ck_assert_uint_gt(stats.lossy_decoded_raw_bytes, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

#define KEY "0101010101010101010101010101010101010101010101010101010101010101"

START_TEST(lossy_chunks_are_encrypted)
{
    static const char *const encrypted[] = {"disk.encryption", "aes-256-gcm",
                                            "encryption.key_command", "echo 1 " KEY, NULL};
    fx_open(&fx, true, encrypted);
    struct tierce_chain *chain = store();
    ck_assert_uint_eq(disk_stats().encrypted_chunks, BLOCKS / 16);
    ck_assert_uint_eq(disk_stats().lossy_chunks, BLOCKS / 16);
    restart(encrypted);
    ck_assert_uint_lt(load(chain, TIERCE_ORIGIN_DISK, first), BLOCKS);
    expect_bounds(chain, first);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("engine_lossy", .seconds = 60, .setup = name_blocks,
           .tests = {memory_is_exact_and_the_disk_is_not, exact_and_lossy_namespaces_share_nothing,
                     orders_keep_the_values, every_tier_has_the_same_values,
                     lossy_chunks_are_encrypted})
