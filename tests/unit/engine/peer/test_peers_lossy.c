/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of a namespace with a lossy codec: a peer's copy on disk is sent as it is stored, and
 * gives the same KV as a load from that disk. */
#define FX_CHUNK_BLOCKS 11u
#define FX_KV_DTYPE     "bfloat16"
#define FX_QUANTIZATION "tierce-int8"
#include "peers_fixture.h"

enum { BYTES = FX_LAYERS * CHAIN_BLOCKS * 1024 };

static uint8_t here[BYTES], there[BYTES];

static bool memory_is_empty(void)
{
    struct tierce__tier *memory = fx[0].engine->levels[0].tier;
    struct tierce__tier_stats stats;
    (void)memory->ops->evict(memory, UINT64_MAX);
    memory->ops->stats(memory, &stats);
    return stats.chunks == 0;
}

/* Loads the chain, and copies its cells. */
static void take(unsigned engine, uint8_t *to)
{
    struct fixture *f = &fx[engine];
    struct tierce_chain *chain = fx_chain(f, 1, CHAIN_BLOCKS, 0);
    uint8_t origins[CHAIN_BLOCKS];
    fx_wipe(f);
    struct tierce_transfer_opts what = fx_what(f, chain, 0, CHAIN_BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_load(f->view, &what, origins), CHAIN_BLOCKS);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        for (size_t b = 0; b < CHAIN_BLOCKS; b++, to += 1024)
            memcpy(to, (const uint8_t *)f->layers[l].base + (size_t)fx_ids[b] * 1024, fx_cells[l]);
    }
    tierce_chain_destroy(chain);
}

START_TEST(lossy_chunks_are_sent_as_they_are_stored)
{
    start_manager(0);
    open_engine(0);
    open_engine(1);
    store(0, 1);
    WAIT_FOR(memory_is_empty());
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    take(1, there);
    ck_assert_uint_ge(kept(0).coded_hits, CHAIN_BLOCKS / FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(kept(0).coded_bytes, read_by(1).bytes);
    take(0, here);
    ck_assert_mem_eq(here, there, BYTES);
    struct tierce_chain *chain = fx_chain(&fx[1], 1, CHAIN_BLOCKS, 0);
    size_t exact = 0;
    for (size_t b = 0; b < CHAIN_BLOCKS; b++)
        exact += fx_right(&fx[1], chain, b, fx_ids[b]);
    ck_assert_uint_lt(exact, CHAIN_BLOCKS); /* it is approximate */
    tierce_chain_destroy(chain);
    has_no_lease(0);
    has_no_lease(1);
    close_engine(1);
    close_engine(0);
    running_manager_stop(&manager);
}
END_TEST

CHECK_MAIN("peers_lossy", .seconds = 120, .tests = {lossy_chunks_are_sent_as_they_are_stored})
