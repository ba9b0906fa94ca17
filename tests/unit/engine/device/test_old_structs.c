/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that were built before the structs of a transfer had fields for devices: their structs
 * end earlier, and their memory is that of the host. The structs are in memory of exactly their
 * length, so that a sanitizer detects a read past it.
 */
#include "engine_fixture.h"

#include "core/paged/paged.h"

static struct fixture fx;

static void *cut(const void *whole, size_t bytes)
{
    void *part = malloc(bytes);
    ck_assert_ptr_nonnull(part);
    memcpy(part, whole, bytes);
    memcpy(part, &bytes, sizeof(bytes)); /* `size`, the first field of both */
    return part;
}

START_TEST(short_structs_are_memory_of_the_host)
{
    enum { BLOCKS = 8 };
    uint8_t origins[BLOCKS];
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    fx.paged.device = TIERCE_DEVICE_CUDA; /* cut off */
    what.stream = (void *)1;
    struct tierce_paged *paged = cut(&fx.paged, TIERCE__PAGED_BYTES_V1);
    what.paged = paged;
    struct tierce_transfer_opts *opts = cut(&what, TIERCE__TRANSFER_BYTES_V1);
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_store(fx.view, opts), BLOCKS);
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, opts, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(fx_right(&fx, chain, b, fx_ids[b]));
    free(opts);
    free(paged);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(other_sizes_and_devices_are_rejected)
{
    struct tierce_store *store;
    struct tierce_load *load;
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 4, fx_ids);
    for (size_t size = 0; size < sizeof(what); size += 8) {
        what.size = size;
        int rc = tierce_store_begin(&store, fx.view, &what);
        ck_assert_int_eq(rc, size == TIERCE__TRANSFER_BYTES_V1 ? 0 : TIERCE_E_ARGUMENT);
        tierce_store_abort(store);
    }
    what.size = sizeof(what);
    fx.paged.device = (enum tierce_device)2;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), TIERCE_E_ARGUMENT);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("old_structs", .seconds = 60,
           .tests = {short_structs_are_memory_of_the_host, other_sizes_and_devices_are_rejected})
