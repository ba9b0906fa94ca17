/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_DEVICE_FIXTURE_H
#define TIERCE_TESTS_DEVICE_FIXTURE_H

#include "engine_fixture.h"
#include "gpu.h"
#include "test_random.h"
#include "wait_for.h"

#include <stdatomic.h>
#include <stdio.h>
#include <tierce/log.h>

#include "base/alloc.h"
#include "core/device/cuda/cuda_ways.h"

/* How the device copies: TIERCE__CUDA_COPIES, or another way in a variant of the test. */
#ifndef TIERCE_TEST_DEVICE_WAY
#define TIERCE_TEST_DEVICE_WAY TIERCE__CUDA_COPIES
#endif

/*
 * The engine of engine_fixture.h whose paged memory is that of a GPU, or of the driver of
 * tests/support/cuda. The processor cannot touch it: the engine's stream writes it from an image of
 * the host, and reads it back.
 */

#define DK_LAYER_BYTES ((size_t)FX_BLOCKS * 1024)

static struct fixture fx;    /* layers: addresses of the device */
static struct fixture image; /* layers: memory of the host */

static atomic_uint dk_pinned; /* mappings that have been pinned completely */

/* The pinning thread makes no call of the driver after this line. */
static inline void dk_count_pinned(void *arg, enum tierce_log_level level, const char *event,
                                   const char *fields)
{
    (void)arg;
    if (strcmp(event, "memory_pinned") == 0)
        atomic_fetch_add(&dk_pinned, 1);
    if (level >= TIERCE_LOG_WARN)
        fprintf(stderr, "%s %s\n", event, fields);
}

static inline void dk_start_device(const char *name)
{
    struct test_random random = test_random_start(name);
    tierce__cuda_force(TIERCE_TEST_DEVICE_WAY);
    tierce_set_log_fn(dk_count_pinned, NULL, TIERCE_LOG_INFO);
#ifdef TIERCE_TEST_UNPINNED
    cuda_fake_limit_registration(1);
#endif
    gpu_start(test_random_u64(&random), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        fx.layers[l].base = (void *)gpu_alloc(DK_LAYER_BYTES);
        image.layers[l].base = calloc(FX_BLOCKS, 1024);
        ck_assert_ptr_nonnull(image.layers[l].base);
        gpu_write((uintptr_t)fx.layers[l].base, image.layers[l].base, DK_LAYER_BYTES);
    }
    gpu_sync();
}

/* The engine; `sets` as of fx_open. Transfers are possible, and its memory may be unpinned. */
static inline void dk_open_early(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    fx.paged.device = TIERCE_DEVICE_CUDA;
    WAIT_FOR(tierce_view_prepare(fx.view, &fx.paged) == 0);
}

/* The same; its memory is pinned, unless that is impossible. */
static inline void dk_open(bool disk, const char *const *sets)
{
    unsigned before = atomic_load(&dk_pinned);
    dk_open_early(disk, sets);
#ifdef TIERCE_TEST_UNPINNED
    (void)before;
#else
    WAIT_FOR(atomic_load(&dk_pinned) > before);
#endif
}

static inline void dk_start(bool disk, const char *const *sets)
{
    dk_start_device("device");
    dk_open(disk, sets);
}

static inline void dk_stop_device(void)
{
    gpu_check_left(FX_LAYERS);
    gpu_sync();
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        gpu_free((uintptr_t)fx.layers[l].base);
        free(image.layers[l].base);
    }
    gpu_stop();
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline void dk_stop(void)
{
    fx_close(&fx);
    dk_stop_device();
    temp_folder_remove(fx.folder);
}

/* ---- the engine's work ---- */

static inline void dk_write(size_t at, uint32_t layer, size_t bytes)
{
    ck_assert_uint_le(at + bytes, DK_LAYER_BYTES);
    gpu_write((uintptr_t)fx.layers[layer].base + at, (const uint8_t *)image.layers[layer].base + at,
              bytes);
}

/* Computes blocks of one layer. */
static inline void dk_fill_layer(const struct tierce_chain *chain, uint32_t layer, size_t from,
                                 size_t to, const int32_t *ids)
{
    for (size_t b = from; b < to; b++) {
        size_t at = (size_t)ids[b] * 1024;
        memset((uint8_t *)image.layers[layer].base + at, fx_byte(chain, b, layer), fx_cells[layer]);
        dk_write(at, layer, fx_cells[layer]);
    }
}

static inline void dk_fill(const struct tierce_chain *chain, size_t from, size_t to,
                           const int32_t *ids)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        dk_fill_layer(chain, l, from, to, ids);
}

static inline void dk_wipe(void)
{
    fx_wipe(&image);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        dk_write(0, l, DK_LAYER_BYTES);
}

/* The device's memory after all work of the stream. */
static inline void dk_read(void)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        gpu_read(image.layers[l].base, (uintptr_t)fx.layers[l].base, DK_LAYER_BYTES);
}

/* The engine of fx.view, which is fx.engine unless that belongs to a node. */
static inline struct tierce_engine *dk_client(void)
{
#ifdef TIERCE_TEST_NODE
    return fx.client;
#else
    return fx.engine;
#endif
}

/* ---- transfers ---- */

static inline struct tierce_transfer_opts dk_what(const struct tierce_chain *chain, size_t from,
                                                  size_t to, const int32_t *ids)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, from, to, ids);
    what.stream = gpu.stream;
    return what;
}

static inline int64_t dk_store(const struct tierce_chain *chain, size_t to, const int32_t *ids,
                               bool tail)
{
    struct tierce_transfer_opts what = dk_what(chain, 0, to, ids);
    what.tail = tail;
    dk_fill(chain, 0, to, ids);
    return tierce_store(fx.view, &what);
}

/* Loads after a wipe; every block that is reported as loaded is right. */
static inline int64_t dk_load(const struct tierce_chain *chain, size_t from, size_t to,
                              const int32_t *ids, uint8_t *origins)
{
    struct tierce_transfer_opts what = dk_what(chain, from, to, ids);
    dk_wipe();
    int64_t loaded = tierce_load(fx.view, &what, origins);
    if (loaded < 0)
        return loaded;
    dk_read();
    int64_t good = 0;
    for (size_t b = from; b < to; b++) {
        if (origins[b - from] == TIERCE_ORIGIN_FAILED)
            continue;
        ck_assert(fx_right(&image, chain, b, ids[b]));
        good++;
    }
    ck_assert_int_eq(loaded, good);
    return loaded;
}

#endif
