/* SPDX-License-Identifier: Apache-2.0 */
/* The engine over the memory tier alone. */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/engine_config.h"
#include "engine/load/load_keys.h"
#include "engine_fixture.h"
#include "core/policy/policy.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static struct fixture fx;

static void expect_loaded(const struct tierce_chain *chain, size_t from, size_t to, uint8_t origin)
{
    uint8_t origins[64];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, from, to, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), (int64_t)(to - from));
    for (size_t b = from; b < to; b++) {
        ck_assert_uint_eq(origins[b - from], origin);
        ck_assert(fx_right(&fx, chain, b, fx_ids[b]));
    }
}

static bool untouched(int32_t id)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        const uint8_t *p = (const uint8_t *)fx.layers[l].base + (size_t)id * 1024;
        for (uint32_t i = 0; i < 1024; i++) {
            if (p[i] != 0x5a)
                return false;
        }
    }
    return true;
}

START_TEST(what_was_stored_is_loaded)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 18, 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 18, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 18, fx_ids, false), 16);
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, chain, 18, 0, 0, &memory), 16);
    ck_assert_uint_eq(memory, 16);
    expect_loaded(chain, 0, 16, TIERCE_ORIGIN_MEMORY);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.chunks_stored, 4);
    ck_assert_int_eq(s.blocks_loaded_memory, 16);
    ck_assert_int_eq(s.memory_chunks_now, 4);
    /* Stored already: nothing is begun. */
    struct tierce_store *store;
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 18, fx_ids);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    ck_assert_ptr_null(store);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(another_prompt_shares_only_its_prefix)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = fx_chain(&fx, 1001, 16, 8), *b = fx_chain(&fx, 2001, 16, 8);
    ck_assert_int_eq(fx_store(&fx, a, 16, fx_ids, false), 16);
    ck_assert_uint_eq(fx_found(&fx, b, 16, 0, 0, NULL), 8);
    expect_loaded(b, 0, 8, TIERCE_ORIGIN_MEMORY);
    /* Missing blocks are reported individually, and their memory is not written. */
    uint8_t origins[16];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, b, 0, 16, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 8);
    for (size_t i = 8; i < 16; i++) {
        ck_assert_uint_eq(origins[i], TIERCE_ORIGIN_FAILED);
        ck_assert(untouched(fx_ids[i]));
    }
    tierce_chain_destroy(a);
    tierce_chain_destroy(b);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_load_may_begin_inside_a_chunk)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 5, 12, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 12, fx_ids, false), 12);
    expect_loaded(chain, 6, 11, TIERCE_ORIGIN_MEMORY);
    for (size_t b = 0; b < 6; b++)
        ck_assert(untouched(fx_ids[b]));
    ck_assert(untouched(fx_ids[11]));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(blocks_the_engine_holds_need_not_be_held)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 5, 12, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 12, fx_ids, false), 12);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 12, 12, false), 0);
    tierce__storage_quarantine(fx.engine, 0, &keys.keys[0], TIERCE_E_CHECKSUM);
    tierce__keys_fini(&keys);
    ck_assert_uint_eq(fx_found(&fx, chain, 12, 0, 0, NULL), 0);
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .from_block = 5};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, 12, &opts, &found), 0);
    ck_assert_uint_eq(found.blocks, 12);
    /* And are not hits of ours. */
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.lookup_blocks, 12 + 7);
    ck_assert_int_eq(s.lookup_hit_blocks, 7);
    ck_assert_int_eq(s.lookup_tokens, (12 + 7) * FX_BLOCK_TOKENS);
    ck_assert_int_eq(s.lookup_hit_tokens, 7 * FX_BLOCK_TOKENS);
    ck_assert_int_eq(s.tokens_loaded_memory, s.blocks_loaded_memory * FX_BLOCK_TOKENS);
    ck_assert_int_eq(s.lookup_memory_blocks, 7);
    opts.from_block = 12;
    ck_assert_int_eq(tierce_lookup(fx.view, chain, 11, &opts, &found), 0);
    ck_assert_int_eq(fx_stats(&fx).lookup_hit_blocks, 7);
    expect_loaded(chain, 5, 12, TIERCE_ORIGIN_MEMORY);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(layers_come_in_order_and_all_of_them)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 9, 8, 0);
    fx_fill(&fx, chain, 0, 8, fx_ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    ck_assert_int_eq(tierce_store_layer(store, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_store_layer(store, 0), 0);
    ck_assert_int_eq(tierce_store_layer(store, 0), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    ck_assert_int_eq(tierce_store_end(store), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);

    ck_assert_int_eq(tierce_store(fx.view, &what), 8);
    struct tierce_load *load;
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    ck_assert_int_eq(tierce_load_layer(load, 0), 0);
    ck_assert_int_eq(tierce_load_layer(load, 2), TIERCE_E_ARGUMENT);
    uint8_t origins[8];
    ck_assert_int_eq(tierce_load_end(load, origins), 0);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_FAILED);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    tierce_load_abort(load);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(invalid_keys_are_not_rotated)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 9, 8, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    struct tierce_load *load;
    uint8_t bytes[16] = {1, 0x40, 3, 0x41}, before[16];
    float distance = 0;
    struct tierce__rotation rotation = {
        .layout = {TIERCE__ROPE_NEOX, 8, 0, 8}, .pairs = 4, .delta = 5};
    struct tierce__key_rows rows = {bytes, 16, 16}, none = {NULL, 16, 16};
    memcpy(before, bytes, sizeof(bytes));
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_DTYPES, &rows, 1, 1),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &none, 1, 1),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &rows, 1, 0),
                     TIERCE_E_ARGUMENT);
    rotation.pairs = TIERCE__ROPE_PAIRS_MAX + 1;
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &rows, 1, 1),
                     TIERCE_E_ARGUMENT);
    ck_assert_mem_eq(bytes, before, sizeof(bytes));
    rotation.pairs = 4;
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &rows, 1, 1), 0);
    ck_assert_mem_ne(bytes, before, sizeof(bytes));
    struct tierce__device_distances keys = {
        TIERCE__BLEND_BF16, rows, {before, 16, 16}, &distance, 1, 1, 8, NULL};
    ck_assert_int_eq(tierce__load_distances(load, &keys), 0);
    ck_assert(distance > 0);
    keys.b.at = NULL;
    ck_assert_int_eq(tierce__load_distances(load, &keys), TIERCE_E_ARGUMENT);
    tierce_load_abort(load);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(an_unfull_tail_is_kept_if_asked)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 21, 11, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 11, fx_ids, true), 11);
    ck_assert_uint_eq(fx_found(&fx, chain, 11, 0, 0, NULL), 11);
    ck_assert_uint_eq(fx_found(&fx, chain, 10, 0, 0, NULL), 10);
    expect_loaded(chain, 0, 10, TIERCE_ORIGIN_MEMORY);
    struct tierce_chain *shorter = fx_chain(&fx, 21, 10, 0);
    /* Its own tail was never stored; that of the longer one begins with it. */
    ck_assert_uint_eq(fx_found(&fx, shorter, 10, 0, 0, NULL), 10);
    expect_loaded(shorter, 0, 10, TIERCE_ORIGIN_MEMORY);
    tierce_chain_destroy(shorter);
    expect_loaded(chain, 0, 11, TIERCE_ORIGIN_MEMORY);
    expect_loaded(chain, 9, 11, TIERCE_ORIGIN_MEMORY);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(contracts_are_checked)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 8, 0);
    struct tierce_load *load;
    struct tierce_store *store;
    int32_t ids[8];
    memcpy(ids, fx_ids, sizeof(ids));
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 9, ids);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), TIERCE_E_ARGUMENT);
    what = fx_what(&fx, chain, 0, 8, ids);
    ids[3] = -1;
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), TIERCE_E_ARGUMENT);
    ids[3] = FX_BLOCKS;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), TIERCE_E_ARGUMENT);
    ids[3] = 3;
    what.from_block = 4;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), TIERCE_E_ARGUMENT);
    what.from_block = 0;
    fx.layers[1].block_bytes--;
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), TIERCE_E_ARGUMENT);
    fx.layers[1].block_bytes++;
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, 9, &opts, &found), TIERCE_E_ARGUMENT);
    struct tierce_view *view;
    struct tierce_namespace ns = fx_namespace();
    ck_assert_int_eq(tierce_view_open(&view, fx.engine, &ns, &(struct tierce_shard){1, 1, 0, 1}),
                     TIERCE_E_ARGUMENT);
    uint32_t huge[FX_LAYERS] = {1 << 24, 1, 1, 1};
    ns.cell_bytes = huge;
    ck_assert_int_eq(tierce_view_open(&view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     TIERCE_E_LIMIT);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Two chunks written to one block would each be verified, and one of them would be wrong. */
START_TEST(no_block_is_named_twice)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 8, 0);
    struct tierce_load *load = NULL;
    struct tierce_store *store = NULL;
    int32_t ids[8];
    memcpy(ids, fx_ids, sizeof(ids));
    ck_assert_int_eq(fx_store(&fx, chain, 8, ids, false), 8);
    for (size_t first = 0; first < 8; first++) {
        for (size_t second = first + 1; second < 8; second++) {
            ids[second] = ids[first];
            struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, ids);
            ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), TIERCE_E_ARGUMENT);
            ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), TIERCE_E_ARGUMENT);
            /* Memory before from_block is not written, and may hold anything. */
            what.from_block = first + 1;
            ck_assert_int_eq(tierce_load(fx.view, &what, NULL), (int64_t)(7 - first));
            ids[second] = fx_ids[second];
        }
    }
    ids[3] = FX_BLOCKS - 1;
    ck_assert_int_eq(fx_store(&fx, chain, 8, ids, false), 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(namespaces_and_shards_never_share)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce_view *mine = fx.view;
    struct tierce_namespace ns = fx_namespace();
    ns.weights = "00112234";
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    tierce_view_close(fx.view);
    ns = fx_namespace();
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 2, 0, 1}),
                     0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    tierce_view_close(fx.view);
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 8);
    tierce_view_close(fx.view);
    fx.view = mine;
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_flipped_bit_in_memory_fails_its_block_only)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 8, 8, false), 0);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys.keys[1]);
    /* Layer 2, block 3 of chunk 1. */
    buf->data[tierce__shape_offset(&fx.view->full, 2) + 3 * fx_cells[2] + 5] ^= 4;
    tierce__buf_release(buf);
    tierce__keys_fini(&keys);
    uint8_t origins[8];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 7);
    for (size_t i = 0; i < 8; i++)
        ck_assert_uint_eq(origins[i], i == 7 ? TIERCE_ORIGIN_FAILED : TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    /* The chunk is out of service, and can be stored anew. */
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 4);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 4);
    expect_loaded(chain, 0, 8, TIERCE_ORIGIN_MEMORY);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Two loads lease the chunk before one of them finds the damage: in a cell, or in the header. */
START_TEST(damage_that_two_loads_find_counts_once)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 4, 4, false), 0);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys.keys[0]);
    tierce__keys_fini(&keys);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 4, fx_ids);
    struct tierce_load *loads[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(tierce_load_begin(&loads[i], fx.view, &what), 0);
    buf->data[_i == 0 ? tierce__shape_offset(&fx.view->full, 0) + 5 : 40] ^= 4;
    tierce__buf_release(buf);
    for (int i = 0; i < 2; i++) {
        uint8_t origins[4];
        for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
            ck_assert_int_eq(tierce_load_layer(loads[i], layer), 0);
        ck_assert_int_eq(tierce_load_end(loads[i], origins), _i == 0 ? 3 : 0);
        if (i == 0) /* the second load does not remove the chunk that replaces the wrong one */
            ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    }
    ck_assert_int_eq(fx_stats(&fx).checksum_failures + fx_stats(&fx).identity_failures, 1);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 4);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(every_flipped_header_byte_in_memory_is_a_miss)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 4, 0);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 4, 4, false), 0);
    const struct tierce__geometry *g = &fx.view->full.geometry;
    for (size_t byte = 0, tables = SIZE_MAX; byte < tables;
         byte += 3) { /* behind them is nothing */
        ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
        struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys.keys[0]);
        const uint64_t *sums = tierce__chunk_sums(buf->data, g, g->layer_count - 1);
        tables = (size_t)((const uint8_t *)(sums + g->block_count) - buf->data);
        buf->data[byte] ^= 0x40;
        tierce__buf_release(buf);
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 4, fx_ids);
        fx_wipe(&fx);
        ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 0);
        ck_assert(untouched(fx_ids[0]));
        ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
    }
    tierce__keys_fini(&keys);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(pinned_chunks_stay_others_leave)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *kept = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, kept, 40, fx_ids, false), 40);
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, kept, 40, TIERCE_LOOKUP_PIN, 77, &memory), 40);
    ck_assert_uint_eq(memory, 40);
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 1);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 10);
    ck_assert_int_ge(fx_stats(&fx).pinned_bytes_now, fx_stats(&fx).bytes_stored);
    for (uint32_t seed = 2; seed < 60; seed++) {
        struct tierce_chain *other = fx_chain(&fx, seed, 40, 0);
        ck_assert_int_gt(fx_store(&fx, other, 40, fx_ids, false), 0);
        tierce_chain_destroy(other);
    }
    ck_assert_int_gt(fx_stats(&fx).memory_evictions, 0);
    ck_assert_uint_eq(fx_found(&fx, kept, 40, 0, 0, NULL), 40);
    /* After the deadline the keeper lets them go, and they can be pushed out. */
    fx.engine->settings.pin_ms = 1;
    ck_assert_uint_eq(fx_found(&fx, kept, 40, TIERCE_LOOKUP_PIN, 77, NULL), 40);
    uint64_t give_up = tierce__deadline_in_ms(60000);
    while (fx_stats(&fx).pins_expired == 0 && tierce__now_ns() < give_up)
        usleep(10000);
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 0);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 0);
    for (uint32_t seed = 100; seed < 160; seed++) {
        struct tierce_chain *other = fx_chain(&fx, seed, 40, 0);
        ck_assert_int_gt(fx_store(&fx, other, 40, fx_ids, false), 0);
        tierce_chain_destroy(other);
    }
    ck_assert_uint_eq(fx_found(&fx, kept, 40, 0, 0, NULL), 0);
    tierce_chain_destroy(kept);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(pins_end_with_the_load_and_are_bounded)
{
    const char *sets[] = {"memory.pins", "1%", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, chain, 40, TIERCE_LOOKUP_PIN, 5, &memory), 40);
    ck_assert_uint_lt(memory, 40);
    ck_assert_uint_gt(memory, 0);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_gt(s.pins_refused, 0);
    ck_assert_int_le(s.pinned_bytes_now, s.memory_cap_bytes / 100);
    uint64_t chunk_bytes = fx.view->full.extent.object_bytes;
    ck_assert_uint_eq((uint64_t)s.pinned_bytes_now, memory / FX_CHUNK_BLOCKS * chunk_bytes);
    /* The bound is of all sessions together. */
    ck_assert_uint_eq(fx_found(&fx, chain, 40, TIERCE_LOOKUP_PIN, 6, &memory), 40);
    ck_assert_uint_eq(memory, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 40, fx_ids);
    what.session = 5;
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 40);
    s = fx_stats(&fx);
    ck_assert_int_eq(s.sessions_now, 0);
    ck_assert_int_eq(s.pinned_bytes_now, 0);
    /* Renewed, replaced by nothing, ended by name. */
    fx_found(&fx, chain, 40, TIERCE_LOOKUP_PIN, 6, NULL);
    fx_found(&fx, chain, 40, TIERCE_LOOKUP_PIN, 6, NULL);
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 1);
    tierce_unpin(fx.view, 6);
    tierce_unpin(fx.view, 6);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_clear_reaches_pinned_chunks)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    what.session = 5;
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, TIERCE_LOOKUP_PIN, 5, NULL), 8);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, NULL), 2);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 8);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_prompt_larger_than_memory_keeps_its_prefix)
{
    const char *sets[] = {"memory.size", "1MiB", NULL};
    fx_open(&fx, false, sets);
    /* 40 blocks a chain are 10 objects of 16 KiB; grow one prompt far beyond 1 MiB. */
    struct tierce_chain *chain = fx_chain(&fx, 1, 400, 0);
    int32_t ids[400];
    for (int i = 0; i < 400; i++)
        ids[i] = i;
    for (size_t to = 40; to <= 400; to += 40) {
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, to, ids);
        ck_assert_int_ge(tierce_store(fx.view, &what), 0);
    }
    uint64_t found = fx_found(&fx, chain, 400, 0, 0, NULL);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_uint_ge(found, 100);
    ck_assert_uint_eq(found / FX_CHUNK_BLOCKS, (uint64_t)s.memory_chunks_now);
    ck_assert_int_gt(s.stores_skipped, 0);
    ck_assert_int_le(s.memory_bytes_now, s.memory_cap_bytes);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(equal_configurations_share_one_engine)
{
    struct tierce_config *a = fx_config("", NULL), *b = fx_config("", NULL);
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_engine *x, *y, *z;
    ck_assert_int_eq(tierce_engine_open(&x, a, why), 0);
    ck_assert_int_eq(tierce_engine_open(&y, b, why), 0);
    ck_assert_ptr_eq(x, y);
    ck_assert_int_eq(tierce_config_set(b, "memory.size", "8MiB", why), 0);
    ck_assert_int_eq(tierce_engine_open(&z, b, why), 0);
    ck_assert_ptr_ne(x, z);
    tierce_engine_close(x);
    tierce_engine_close(y);
    tierce_engine_close(z);
    tierce_config_destroy(a);
    tierce_config_destroy(b);
}
END_TEST

START_TEST(every_policy_has_a_name_for_each_tier)
{
    static const char *const parameters[] = {"memory.policy", "disk.policy"};
    char why[TIERCE_CONFIG_ERROR_BYTES];
    for (size_t p = 0; p < 2; p++) {
        struct tierce_config *config = fx_config("", NULL);
        ck_assert_int_eq(tierce_config_set(config, parameters[p], "no-such", why), TIERCE_E_CONFIG);
        ck_assert_ptr_nonnull(strstr(why, "no-such"));
        for (size_t i = 0; tierce__policy_at(i) != NULL; i++) {
            const char *name = tierce__policy_at(i)->name;
            ck_assert_msg(strstr(why, name) != NULL, "%s is not in: %s", name, why);
            ck_assert_int_eq(tierce_config_set(config, parameters[p], name, why), 0);
        }
        tierce_config_destroy(config);
    }
    size_t count = 0, choices = 1;
    while (tierce__policy_at(count) != NULL)
        count++;
    for (const char *c = tierce__engine_params()[TIERCE__ENGINE_MEMORY_POLICY].choices; *c != '\0';
         c++)
        choices += *c == '|';
    ck_assert_uint_eq(choices, count + 1); /* a plug-in */
    ck_assert_str_eq(tierce__engine_params()[TIERCE__ENGINE_MEMORY_POLICY].choices,
                     tierce__engine_params()[TIERCE__ENGINE_DISK_POLICY].choices);
}
END_TEST

/* ---- many threads on one engine: every block that is reported loaded is right ---- */

static void *hammer(void *arg)
{
    unsigned seed = *(unsigned *)arg;
    struct fixture own = {.engine = fx.engine, .view = fx.view};
    for (uint32_t i = 0; i < FX_LAYERS; i++)
        own.layers[i] = (struct tierce_paged_layer){calloc(FX_BLOCKS, 1024), 1024, fx_cells[i]};
    own.paged = (struct tierce_paged){sizeof(own.paged), own.layers, FX_LAYERS, FX_BLOCKS,
                                      TIERCE_DEVICE_HOST};
    for (int round = 0; round < 150; round++) {
        uint32_t who = 1000u * (1 + (uint32_t)rand_r(&seed) % 30) + 7;
        size_t blocks = 4 + (size_t)rand_r(&seed) % 36;
        struct tierce_chain *chain = fx_chain(&own, who, blocks, 8);
        uint64_t session = (uint64_t)(1 + rand_r(&seed) % 50);
        if (rand_r(&seed) % 3 == 0) {
            fx_store(&own, chain, blocks, fx_ids, rand_r(&seed) % 2);
        } else {
            uint8_t origins[64];
            fx_found(&own, chain, blocks, (unsigned)rand_r(&seed) % 2, session, NULL);
            struct tierce_transfer_opts what = fx_what(&own, chain, 0, blocks, fx_ids);
            what.session = session;
            fx_wipe(&own);
            ck_assert_int_ge(tierce_load(fx.view, &what, origins), 0);
            for (size_t b = 0; b < blocks; b++)
                ck_assert(origins[b] == TIERCE_ORIGIN_FAILED ||
                          fx_right(&own, chain, b, fx_ids[b]));
        }
        tierce_chain_destroy(chain);
    }
    for (uint32_t i = 0; i < FX_LAYERS; i++)
        free(own.layers[i].base);
    return NULL;
}

START_TEST(threads_share_an_engine)
{
    const char *sets[] = {"memory.size", "1MiB", NULL};
    fx_open(&fx, false, sets);
    pthread_t threads[4];
    unsigned seeds[4];
    unsigned base = getenv("TIERCE_TEST_SEED") ? (unsigned)atoi(getenv("TIERCE_TEST_SEED"))
                                               : (unsigned)time(NULL);
    printf("seed %u\n", base);
    for (unsigned i = 0; i < 4; i++) {
        seeds[i] = base + i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, &seeds[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (uint64_t session = 1; session <= 50; session++)
        tierce_unpin(fx.view, session);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.pinned_bytes_now, 0);
    ck_assert_int_eq(s.checksum_failures, 0);
    ck_assert_int_eq(s.identity_failures, 0);
    ck_assert_int_gt(s.blocks_loaded_memory, 0);
    ck_assert_int_le(s.memory_bytes_now, s.memory_cap_bytes);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* ---- every allocation fails once ---- */

/* One round of everything; every result may be a miss or -ENOMEM, never a wrong byte. */
static void exercise(const struct tierce_chain *chain)
{
    uint8_t origins[12];
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = 1};
    fx_store(&fx, chain, 11, fx_ids, true);
    int rc = tierce_lookup(fx.view, chain, 11, &opts, &found);
    ck_assert(rc == 0 || rc == -ENOMEM);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 11, fx_ids);
    what.session = 1;
    int64_t loaded = tierce_load(fx.view, &what, origins);
    ck_assert(loaded >= 0 || loaded == -ENOMEM);
    for (size_t b = 0; loaded >= 0 && b < 11; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
}

START_TEST(every_failed_allocation_is_survived)
{
    fx_open(&fx, false, NULL);
    uint64_t made = 1;
    for (uint64_t nth = 1; nth <= made; nth++) {
        struct tierce_chain *chain = fx_chain(&fx, 5000 + (uint32_t)nth, 11, 0);
        tierce__alloc_fail_nth(nth);
        exercise(chain);
        uint64_t count = tierce__alloc_fail_nth(0);
        if (count > made)
            made = count;
        tierce_chain_destroy(chain);
    }
    ck_assert_uint_gt(made, 10);
    tierce__sessions_expire(fx.engine, NULL, true);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

START_TEST(opening_survives_every_failed_allocation)
{
    bool opened = false;
    for (uint64_t nth = 1; !opened; nth++) {
        struct tierce_config *config = fx_config("", NULL);
        char why[TIERCE_CONFIG_ERROR_BYTES];
        tierce__alloc_fail_nth(nth);
        struct tierce_engine *engine = NULL;
        int rc = tierce_engine_open(&engine, config, why);
        opened = tierce__alloc_fail_nth(0) < nth;
        ck_assert(rc == 0 || rc == -ENOMEM);
        ck_assert(opened ? rc == 0 : true);
        tierce_engine_close(engine);
        tierce_config_destroy(config);
        ck_assert_uint_lt(nth, 10000);
    }
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("engine", .seconds = 60,
           .tests = {what_was_stored_is_loaded,
                     another_prompt_shares_only_its_prefix,
                     a_load_may_begin_inside_a_chunk,
                     blocks_the_engine_holds_need_not_be_held,
                     layers_come_in_order_and_all_of_them,
                     invalid_keys_are_not_rotated,
                     an_unfull_tail_is_kept_if_asked,
                     contracts_are_checked,
                     no_block_is_named_twice,
                     namespaces_and_shards_never_share,
                     a_flipped_bit_in_memory_fails_its_block_only,
                     every_flipped_header_byte_in_memory_is_a_miss,
                     pinned_chunks_stay_others_leave,
                     pins_end_with_the_load_and_are_bounded,
                     a_clear_reaches_pinned_chunks,
                     a_prompt_larger_than_memory_keeps_its_prefix,
                     equal_configurations_share_one_engine,
                     every_policy_has_a_name_for_each_tier,
                     threads_share_an_engine,
                     every_failed_allocation_is_survived,
                     opening_survives_every_failed_allocation},
           .loops = {{damage_that_two_loads_find_counts_once, 0, 2}})
