/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores from and loads into the memory of a GPU, or of the driver of tests/support/cuda: the
 * bytes, the order of copies and work, and slow devices. test_device_faults.c has devices that
 * fail.
 */
#include "device_fixture.h"
#include "core/blend/select.h"
#include "engine/load/load_private.h"
#include "engine/load/load_keys.h"
#include "engine/store/store_watch.h"

#include <pthread.h>

static uint8_t origins[FX_BLOCKS];

/* ---- bytes ----------------------------------------------------------------------------------- */

START_TEST(what_was_stored_is_loaded)
{
    dk_start(false, NULL);
    for (uint32_t seed = 1; seed <= 4; seed++) {
        struct tierce_chain *chain = fx_chain(&fx, seed, 11, 0);
        ck_assert_int_eq(dk_store(chain, 11, fx_ids, true), 11);
        ck_assert_int_eq(dk_load(chain, 0, 11, fx_ids + 20, origins), 11);
        for (size_t b = 0; b < 11; b++)
            ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_MEMORY);
        ck_assert_int_eq(dk_load(chain, 6, 9, fx_ids + 5, origins), 3);
        tierce_chain_destroy(chain);
    }
    dk_stop();
}
END_TEST

START_TEST(a_chunk_on_disk_is_loaded)
{
    dk_start(true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 11, 0);
    ck_assert_int_eq(dk_store(chain, 11, fx_ids, true), 11);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    gpu_check_left(FX_LAYERS);
    dk_open(true, NULL);
    ck_assert_int_eq(dk_load(chain, 0, 11, fx_ids, origins), 11);
    for (size_t b = 0; b < 11; b++)
        ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_DISK);
    ck_assert_int_eq(dk_load(chain, 0, 11, fx_ids, origins), 11);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_MEMORY);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* The same prompt stored from the host has the same bytes, and the reverse. */
START_TEST(host_and_device_share_chunks)
{
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_chain *other = fx_chain(&fx, 2, 8, 0);
    image.paged = fx.paged;
    image.paged.device = TIERCE_DEVICE_HOST;
    image.paged.layers = image.layers;
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        image.layers[l].block_stride = 1024;
        image.layers[l].block_bytes = fx_cells[l];
    }
    image.view = fx.view;
    ck_assert_int_eq(fx_store(&image, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    ck_assert_int_eq(dk_store(other, 8, fx_ids, false), 8);
    struct tierce_transfer_opts what = fx_what(&image, other, 0, 8, fx_ids);
    fx_wipe(&image);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 8);
    for (size_t b = 0; b < 8; b++)
        ck_assert(fx_right(&image, other, b, fx_ids[b]));
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

START_TEST(a_load_larger_than_memory_goes_through_it)
{
    enum { BLOCKS = 400 };
    static int32_t ids[BLOCKS];
    const char *const small[] = {"memory.size", "1MiB", NULL};
    dk_start(true, small);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (int32_t b = 0; b < BLOCKS; b++)
        ids[b] = (b * 7) % (int32_t)FX_BLOCKS;
    for (size_t to = 40; to <= BLOCKS; to += 40) {
        ck_assert_int_ge(dk_store(chain, to, ids, false), 0);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), BLOCKS);
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 0);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* All layers have the same base, and each is used before the next one: the first layer is rejected,
 * before the caller computes anything with it. A caller that continues has no loaded block. */
START_TEST(a_load_larger_than_memory_into_one_layer_fails)
{
    enum { BLOCKS = 400 };
    static int32_t ids[BLOCKS];
    const char *const small[] = {"memory.size", "1MiB", NULL};
    struct tierce_paged_layer layers[FX_LAYERS];
    struct tierce_load *load;
    dk_start(true, small);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (int32_t b = 0; b < BLOCKS; b++)
        ids[b] = (b * 7) % (int32_t)FX_BLOCKS;
    for (size_t to = 40; to <= BLOCKS; to += 40) {
        ck_assert_int_ge(dk_store(chain, to, ids, false), 0);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    for (unsigned is_host = 0; is_host < 2; is_host++) {
        struct tierce_paged paged = fx.paged;
        struct tierce_transfer_opts what = dk_what(chain, 0, BLOCKS, ids);
        for (uint32_t l = 0; l < FX_LAYERS; l++) {
            layers[l] = fx.layers[l];
            layers[l].base = is_host ? image.layers[0].base : fx.layers[0].base;
        }
        paged.layers = layers;
        paged.device = is_host ? TIERCE_DEVICE_HOST : fx.paged.device;
        what.paged = &paged;
        memset(origins, TIERCE_ORIGIN_DISK, sizeof(origins));
        ck_assert_int_eq(tierce_load(fx.view, &what, NULL), TIERCE_E_UNSUPPORTED);
        WAIT_FOR(fx_stats(&fx).leases_now == 0);
        ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
        ck_assert_int_eq(tierce_load_layer(load, 0), TIERCE_E_UNSUPPORTED);
        for (uint32_t l = 1; l < FX_LAYERS; l++)
            ck_assert_int_eq(tierce_load_layer(load, l), 0);
        ck_assert_int_eq(tierce_load_end(load, origins), 0);
        for (size_t b = 0; b < BLOCKS; b++)
            ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_FAILED);
        WAIT_FOR(fx_stats(&fx).leases_now == 0);
    }
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* Flips a bit of layer 2 in block 3 of chunk 1. */
static void flip(const struct tierce_chain *chain)
{
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 8, 8, false), 0);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys.keys[1]);
    ck_assert_ptr_nonnull(buf);
    buf->data[tierce__shape_offset(&fx.view->full, 2) + 3 * fx_cells[2] + 5] ^= 4;
    tierce__buf_release(buf);
    tierce__keys_fini(&keys);
}

START_TEST(a_flipped_bit_fails_its_block_only)
{
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 3, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    flip(chain);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 7);
    for (size_t i = 0; i < 8; i++)
        ck_assert_uint_eq(origins[i], i == 7 ? TIERCE_ORIGIN_FAILED : TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    /* The chunk is out of service, and can be stored again. */
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 4);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 4);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* ---- order ----------------------------------------------------------------------------------- */

static void *end_store(void *store)
{
    int64_t *blocks = malloc(sizeof(*blocks));
    ck_assert_ptr_nonnull(blocks);
    *blocks = tierce_store_end(store);
    return blocks;
}

/* The engine computes a layer while the one before is copied. Nothing is visible before the end,
 * which runs on another thread. */
START_TEST(layers_are_stored_behind_the_engines_work)
{
    struct tierce_store *store;
    pthread_t thread;
    void *blocks;
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    gpu_hold();
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        dk_fill_layer(chain, l, 0, 8, fx_ids);
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    }
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, end_store, store), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    gpu_release();
    ck_assert_int_eq(pthread_join(thread, &blocks), 0);
    ck_assert_int_eq(*(int64_t *)blocks, 8);
    free(blocks);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* The engine reads each layer as soon as it has been enqueued, and waits for nothing. */
START_TEST(the_engines_work_follows_each_layer)
{
    struct tierce_load *load;
    const uint8_t *read[FX_LAYERS];
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    dk_wipe();
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    gpu_hold();
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
        read[l] = gpu_read_later((uintptr_t)fx.layers[l].base, DK_LAYER_BYTES);
    }
    gpu_release();
    ck_assert_int_eq(tierce_load_end(load, origins), 8);
    gpu_sync();
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        memcpy(image.layers[l].base, read[l], DK_LAYER_BYTES);
    for (size_t b = 0; b < 8; b++)
        ck_assert(fx_right(&image, chain, b, fx_ids[b]));
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* The first block of the load, as rows of 16 bytes. */
static struct tierce__key_rows first_rows(const struct fixture *of, uint32_t layer)
{
    uint8_t *base = of->layers[layer].base;
    return (struct tierce__key_rows){base + (size_t)fx_ids[0] * 1024, 16, 16};
}

/* Rotates these rows of a layer, and enqueues a read of all of the layer. */
static const uint8_t *rotate_and_read(struct tierce_load *load,
                                      const struct tierce__rotation *rotation, uint32_t layer)
{
    struct tierce__key_rows rows = first_rows(&fx, layer);
    ck_assert_int_eq(
        tierce__load_rotate(load, rotation, TIERCE__BLEND_BF16, &rows, fx_cells[layer] / 16, 1), 0);
    return gpu_read_later((uintptr_t)fx.layers[layer].base, DK_LAYER_BYTES);
}

/* The rotation of a layer follows its copy, and precedes the engine's work. Keys elsewhere are
 * rejected. */
START_TEST(keys_are_rotated_behind_each_layer)
{
    struct tierce_load *load;
    const uint8_t *read[FX_LAYERS];
    struct tierce__rotation rotation = {
        .layout = {TIERCE__ROPE_NEOX, 8, 0, 8}, .pairs = 4, .delta = 5};
    for (uint32_t i = 0; i < rotation.pairs; i++)
        rotation.cosine[i] = 0.8f, rotation.sine[i] = 0.6f;
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    dk_wipe();
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
        read[l] = rotate_and_read(load, &rotation, l);
    }
    struct tierce__key_rows rows = first_rows(&image, 0);
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &rows, 1, 1),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_load_end(load, origins), 8);
    gpu_sync();
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        uint8_t expected[1024];
        memcpy(image.layers[l].base, read[l], DK_LAYER_BYTES);
        memset(expected, fx_byte(chain, 0, l), fx_cells[l]);
        rows = (struct tierce__key_rows){expected, 16, 16};
        tierce__rotate(&rotation, TIERCE__BLEND_BF16, &rows, &rows, fx_cells[l] / 16, 1);
        ck_assert_mem_eq(first_rows(&image, l).at, expected, fx_cells[l]);
    }
    for (size_t b = 1; b < 8; b++)
        ck_assert(fx_right(&image, chain, b, fx_ids[b]));
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

enum { COMPARED = 20 };

/* Rows of the first block are compared with those of the second one; the distances go to a block
 * that is not loaded. */
static struct tierce__device_distances some_distances(const struct fixture *of, uint32_t layer)
{
    uint8_t *base = of->layers[layer].base;
    return (struct tierce__device_distances){
        .dtype = TIERCE__BLEND_BF16,
        .a = {base + (size_t)fx_ids[0] * 1024, 16, 16},
        .b = {base + (size_t)fx_ids[1] * 1024, 16, 16},
        .to = (float *)(void *)(base + (size_t)fx_ids[30] * 1024),
        .tokens = COMPARED,
        .heads = 1,
        .row_elements = 8};
}

static void expect_distances(struct tierce_chain *chain, uint32_t layer, const uint8_t *read)
{
    float expected[COMPARED];
    memcpy(image.layers[layer].base, read, DK_LAYER_BYTES);
    struct tierce__device_distances keys = some_distances(&image, layer);
    ck_assert_uint_ne(*keys.a.at, *keys.b.at);
    ck_assert_uint_eq(*keys.a.at, fx_byte(chain, 0, layer));
    tierce__key_distances(expected, keys.dtype, &keys.a, &keys.b, COMPARED, 1, 8);
    ck_assert(expected[0] > 0 && expected[COMPARED - 1] > 0);
    ck_assert_mem_eq(keys.to, expected, sizeof(expected));
}

/* Memory elsewhere is rejected, wherever it is used. */
static void check_memory(struct tierce_load *load)
{
    struct tierce__device_distances host = some_distances(&image, 0), bad[3];
    bad[0] = bad[1] = bad[2] = some_distances(&fx, 0);
    bad[0].a = host.a;
    bad[1].b = host.b;
    bad[2].to = host.to;
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(tierce__load_distances(load, &bad[i]), TIERCE_E_ARGUMENT);
    bad[0].tokens = 0;
    ck_assert_int_eq(tierce__load_distances(load, &bad[0]), 0);
    bad[0].heads = 0;
    ck_assert_int_eq(tierce__load_distances(load, &bad[0]), TIERCE_E_ARGUMENT);
}

/* The distances of a layer follow its copy, and precede the engine's work. */
START_TEST(keys_are_compared_behind_each_layer)
{
    struct tierce_load *load;
    const uint8_t *read[FX_LAYERS];
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    dk_wipe();
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        struct tierce__device_distances keys = some_distances(&fx, l);
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
        ck_assert_int_eq(tierce__load_distances(load, &keys), 0);
        read[l] = gpu_read_later((uintptr_t)fx.layers[l].base, DK_LAYER_BYTES);
    }
    check_memory(load);
    ck_assert_int_eq(tierce_load_end(load, origins), 8);
    gpu_sync();
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        expect_distances(chain, l, read[l]);
    for (size_t b = 0; b < 8; b++)
        ck_assert(fx_right(&image, chain, b, fx_ids[b]));
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

START_TEST(a_load_of_nothing_rotates_nothing)
{
    struct tierce__device_distances keys;
    struct tierce_load *load;
    struct tierce__rotation rotation = {
        .layout = {TIERCE__ROPE_NEOX, 8, 0, 8}, .pairs = 4, .delta = 5};
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 0, fx_ids);
    struct tierce__key_rows rows = first_rows(&fx, 0);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    ck_assert_int_eq(tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &rows, 1, 1),
                     TIERCE_E_DOWN);
    keys = some_distances(&fx, 0);
    ck_assert_int_eq(tierce__load_distances(load, &keys), TIERCE_E_DOWN);
    tierce_load_abort(load);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

START_TEST(a_captured_stream_is_rejected)
{
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(dk_store(chain, 4, fx_ids, false), 4);
    gpu_begin_capture(gpu.stream);
    ck_assert_int_eq(tierce_store(fx.view, &what), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), TIERCE_E_UNSUPPORTED);
    gpu_end_capture(gpu.stream);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 4);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* ---- a slow device --------------------------------------------------------------------------- */

/* Whether all memory of late copies was returned. A client of a node has no thread for it: calls
 * find out. */
static bool is_returned(void)
{
    ck_assert_int_le(tierce_view_prepare(fx.view, &fx.paged), 0);
    return fx_stats(&fx).leases_now == 0;
}

/* Long enough for copies that are not held, also on a busy machine. */
static const char *const impatient[] = {"timeout.load", "1s", NULL};

/* Memory of late copies is not used again before they have ended. */
START_TEST(a_late_load_keeps_its_memory)
{
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    what.timeout_ms = 50;
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    gpu_hold();
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 0);
    for (size_t b = 0; b < 8; b++)
        ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_FAILED);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 2);
    dk_fill(chain, 0, 8, fx_ids); /* the engine computes after the late copies */
    gpu_release();
    ck_assert_int_eq(tierce_load_begin(&(struct tierce_load *){NULL}, fx.view,
                                       &(struct tierce_transfer_opts){.size = 1}),
                     TIERCE_E_ARGUMENT);
    gpu_sync();
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    WAIT_FOR(is_returned());
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

START_TEST(a_late_store_is_not_published)
{
    dk_start(false, impatient);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    gpu_hold();
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    gpu_release();
    WAIT_FOR(is_returned()); /* the copies have ended, and their memory is free */
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    WAIT_FOR(dk_store(chain, 8, fx_ids, false) == 8); /* on a busy machine, it can be late, too */
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

#ifndef TIERCE_TEST_NODE
struct layers_seen {
    struct tierce__store_watch base;
    _Atomic uint32_t filled;
    atomic_bool has_ended, is_complete;
};

static void see_layer(struct tierce__store_watch *base, uint32_t from, uint32_t to)
{
    struct layers_seen *seen = TIERCE__CONTAINER_OF(base, struct layers_seen, base);
    ck_assert(!atomic_load(&seen->has_ended));
    ck_assert_uint_eq(from, 0);
    ck_assert_uint_eq(atomic_fetch_add(&seen->filled, 1) + 1, to);
}

static void see_end(struct tierce__store_watch *base, bool complete)
{
    struct layers_seen *seen = TIERCE__CONTAINER_OF(base, struct layers_seen, base);
    atomic_store(&seen->is_complete, complete);
    atomic_store(&seen->has_ended, true);
}

/* A store of which the device computes only one layer before gpu_release; a thread ends it. */
static pthread_t begin_watched(struct layers_seen *seen, const struct tierce_chain *chain)
{
    struct tierce_store *store;
    struct tierce__watched watched;
    pthread_t thread;
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    *seen = (struct layers_seen){.base = {see_layer, see_end}};
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    tierce__store_watch(store, &seen->base, &watched);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        if (l == 1)
            gpu_hold();
        dk_fill_layer(chain, l, 0, 8, fx_ids);
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, end_store, store), 0);
    return thread;
}

static int64_t blocks_of(pthread_t thread)
{
    void *blocks;
    ck_assert_int_eq(pthread_join(thread, &blocks), 0);
    int64_t count = *(int64_t *)blocks;
    free(blocks);
    return count;
}

START_TEST(a_watch_is_told_a_layer_while_the_device_computes_the_next)
{
    struct layers_seen seen;
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    pthread_t thread = begin_watched(&seen, chain);
    WAIT_FOR(atomic_load(&seen.filled) == 1);
    ck_assert(!atomic_load(&seen.has_ended));
    gpu_release();
    ck_assert_int_eq(blocks_of(thread), 8);
    ck_assert_uint_eq(atomic_load(&seen.filled), FX_LAYERS);
    ck_assert(atomic_load(&seen.has_ended) && atomic_load(&seen.is_complete));
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

START_TEST(a_watch_of_a_late_store_is_told_its_end)
{
    struct layers_seen seen;
    dk_start(false, impatient);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(blocks_of(begin_watched(&seen, chain)), 0);
    ck_assert_uint_le(atomic_load(&seen.filled), 1);
    ck_assert(atomic_load(&seen.has_ended) && !atomic_load(&seen.is_complete));
    gpu_release();
    WAIT_FOR(is_returned());
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST
#endif

static void *release(void *arg)
{
    (void)arg;
    usleep(20000);
    gpu_release();
    return NULL;
}

START_TEST(closing_waits_for_late_copies)
{
    pthread_t thread;
    dk_start(false, impatient);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_store *store;
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    gpu_hold();
    ck_assert_int_eq(tierce_store_layer(store, 0), 0);
    tierce_store_abort(store);
    ck_assert_int_eq(pthread_create(&thread, NULL, release, NULL), 0);
    tierce_chain_destroy(chain);
    dk_stop();
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

#ifdef TIERCE_TEST_NODE
/* The node may have given the memory to another chunk. */
START_TEST(a_load_that_is_later_than_its_lease)
{
    dk_start(false, (const char *const[]){"timeout.pin", "200ms", NULL});
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    for (uint32_t late = 0; late <= FX_LAYERS; late++) {
        struct tierce_load *load;
        struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
        what.timeout_ms = 50;
        ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
        for (uint32_t l = 0; l < FX_LAYERS; l++) {
            if (l == late)
                WAIT_FOR(tierce__load_is_late(load));
            ck_assert_int_eq(tierce_load_layer(load, l), 0);
        }
        WAIT_FOR(tierce__load_is_late(load));
        ck_assert_int_eq(tierce_load_end(load, origins), 0);
        for (size_t b = 0; b < 8; b++)
            ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_FAILED);
    }
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST
#endif

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(every_failed_allocation_is_survived)
{
    dk_start(false, NULL);
    uint64_t made = 1;
    for (uint64_t nth = 1; nth <= made; nth++) {
        struct tierce_chain *chain = fx_chain(&fx, 5000 + (uint32_t)nth, 8, 0);
        struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
        dk_fill(chain, 0, 8, fx_ids);
        tierce__alloc_fail_nth(nth);
        int64_t stored = tierce_store(fx.view, &what);
        int64_t loaded = dk_load(chain, 0, 8, fx_ids, origins);
        uint64_t count = tierce__alloc_fail_nth(0);
        made = count > made ? count : made;
        ck_assert(stored == 8 || stored == 0 || stored == -ENOMEM);
        ck_assert(loaded >= 0 || loaded == -ENOMEM);
        tierce_chain_destroy(chain);
    }
    ck_assert_uint_gt(made, 10);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    WAIT_FOR(is_returned());
    dk_stop();
}
END_TEST

START_TEST(memory_of_the_host_is_no_device)
{
    dk_start(false, NULL);
    struct tierce_paged paged = fx.paged;
    struct tierce_paged_layer layers[FX_LAYERS];
    memcpy(layers, fx.layers, sizeof(layers));
    paged.layers = layers;
    for (size_t l = 0; l < FX_LAYERS; l++) {
        layers[l].base = image.layers[l].base;
        ck_assert_int_eq(tierce_view_prepare(fx.view, &paged), TIERCE_E_ARGUMENT);
        layers[l].base = fx.layers[l].base;
    }
    ck_assert_int_eq(tierce_view_prepare(fx.view, &paged), 0);
    for (size_t l = 0; l < FX_LAYERS; l++)
        layers[l].base = image.layers[l].base;
    ck_assert_int_eq(tierce_view_prepare(fx.view, &paged), TIERCE_E_ARGUMENT);
    paged.device = TIERCE_DEVICE_HOST;
    ck_assert_int_eq(tierce_view_prepare(fx.view, &paged), 0);
    dk_stop();
}
END_TEST

GPU_MAIN("device_kv", .seconds = 120,
         .tests = {what_was_stored_is_loaded, a_chunk_on_disk_is_loaded,
                   host_and_device_share_chunks, a_load_larger_than_memory_goes_through_it,
                   a_load_larger_than_memory_into_one_layer_fails,
                   a_flipped_bit_fails_its_block_only, layers_are_stored_behind_the_engines_work,
                   the_engines_work_follows_each_layer, keys_are_rotated_behind_each_layer,
                   keys_are_compared_behind_each_layer, a_load_of_nothing_rotates_nothing,
                   a_captured_stream_is_rejected, a_late_load_keeps_its_memory,
                   a_late_store_is_not_published,
#ifdef TIERCE_TEST_NODE
                   a_load_that_is_later_than_its_lease,
#else
                   a_watch_is_told_a_layer_while_the_device_computes_the_next,
                   a_watch_of_a_late_store_is_told_its_end,
#endif
                   closing_waits_for_late_copies, every_failed_allocation_is_survived,
                   memory_of_the_host_is_no_device})
