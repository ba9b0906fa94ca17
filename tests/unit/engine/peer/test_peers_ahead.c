/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that a link requests together from one peer: each gets its own bytes, and one that fails
 * changes nothing for the others. */
#include "peers_fixture.h"
#include "store/remote/transfer/transfer_link.h"

enum { CHUNKS = 40, LONG_BLOCKS = CHUNKS * FX_CHUNK_BLOCKS, MIDDLE = 20 };

static _Atomic unsigned together; /* ranges that were requested with others */

int __real_tierce__transfer_link_send_gets(struct tierce__transfer_link *link,
                                           const struct tierce__link_get *gets, size_t count,
                                           uint64_t deadline_ns);
int __wrap_tierce__transfer_link_send_gets(struct tierce__transfer_link *link,
                                           const struct tierce__link_get *gets, size_t count,
                                           uint64_t deadline_ns);

int __wrap_tierce__transfer_link_send_gets(struct tierce__transfer_link *link,
                                           const struct tierce__link_get *gets, size_t count,
                                           uint64_t deadline_ns)
{
    atomic_fetch_add(&together, (unsigned)count);
    return __real_tierce__transfer_link_send_gets(link, gets, count, deadline_ns);
}

static int32_t ids[LONG_BLOCKS];
static bool has_holder = true;

static void store_long(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx[0], seed, LONG_BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx[0], chain, LONG_BLOCKS, ids, false), LONG_BLOCKS);
    tierce_chain_destroy(chain);
}

/* Returns the blocks loaded by engine 1, each of them compared; [out] failed: the first one that is
 * not loaded. */
static uint64_t load_long(uint32_t seed, size_t *failed)
{
    struct tierce_chain *chain = fx_chain(&fx[1], seed, LONG_BLOCKS, 0);
    uint8_t origins[LONG_BLOCKS] = {0};
    uint64_t loaded = 0;
    fx_wipe(&fx[1]);
    struct tierce_transfer_opts what = fx_what(&fx[1], chain, 0, LONG_BLOCKS, ids);
    what.timeout_ms = LIMIT_MS;
    ck_assert_int_ge(tierce_load(fx[1].view, &what, origins), 0);
    *failed = LONG_BLOCKS;
    for (size_t b = LONG_BLOCKS; b-- > 0;) {
        bool is_loaded = origins[b] != TIERCE_ORIGIN_FAILED;
        ck_assert(!is_loaded || fx_right(&fx[1], chain, b, ids[b]));
        loaded += is_loaded;
        *failed = is_loaded ? *failed : b;
    }
    tierce_chain_destroy(chain);
    return loaded;
}

/* Until the directory has the last chunk. */
static bool knows(uint32_t seed)
{
    uint64_t memory;
    struct tierce_chain *chain = fx_chain(&fx[1], seed, LONG_BLOCKS, 0);
    uint64_t found = fx_found(&fx[1], chain, LONG_BLOCKS, 0, 0, &memory);
    tierce_chain_destroy(chain);
    return found == LONG_BLOCKS && finds(1, seed, CHAIN_BLOCKS);
}

static struct tierce__key key_of(uint32_t seed, size_t chunk)
{
    struct tierce_chain *chain = fx_chain(&fx[0], seed, LONG_BLOCKS, 0);
    struct tierce__key key = fx[0].inner->key;
    memcpy(key.hash, tierce_chain_hash(chain, (chunk + 1) * FX_CHUNK_BLOCKS - 1), sizeof(key.hash));
    tierce_chain_destroy(chain);
    return key;
}

static void open_all(void)
{
    for (int32_t i = 0; i < LONG_BLOCKS; i++)
        ids[i] = i;
    start_manager(0);
    open_engine(0);
    open_engine(1);
    for (uint32_t seed = 1; seed <= 3; seed++)
        store_long(seed);
    for (uint32_t seed = 1; seed <= 3; seed++)
        WAIT_FOR(knows(seed));
}

static void close_all(void)
{
    WAIT_FOR(fx_stats(&fx[1]).leases_now == 0);
    close_engine(1);
    if (has_holder)
        close_engine(0);
    running_manager_stop(&manager);
}

/* The first load makes the connections. Where links answer as fast as a load asks, each range is
 * requested alone. */
START_TEST(a_lost_chunk_is_missed_alone)
{
    enum { LOADS_MAX = 100 };
    size_t failed;
    uint32_t loads = 0;
    while (loads < 2 || (atomic_load(&together) == 0 && loads < LOADS_MAX)) {
        forget_all(1);
        ck_assert_uint_eq(load_long(1 + loads % 2, &failed), LONG_BLOCKS);
        loads++;
    }
    ck_assert_uint_gt(atomic_load(&together), 0);
    ck_assert_uint_eq(read_by(1).results[TIERCE__PEER_SERVED], loads * CHUNKS);
    const struct tierce__key key = key_of(3, MIDDLE);
    for (size_t level = 0; level < 2; level++)
        tierce__storage_quarantine(fx[0].engine, level, &key, TIERCE_E_VERSION);
    ck_assert_uint_eq(load_long(3, &failed), LONG_BLOCKS - FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(failed, MIDDLE * FX_CHUNK_BLOCKS);
    ck_assert_uint_ge(read_by(1).results[TIERCE__PEER_MISSED], 1);
    ck_assert_uint_eq(read_by(1).paused_now, 0);
}
END_TEST

/* Then the holder ends: its connections are closed when the next ranges are requested. */
START_TEST(a_wrong_chunk_is_rejected_alone)
{
    size_t failed;
    ck_assert_uint_eq(load_long(1, &failed), LONG_BLOCKS);
    const struct tierce__key key = key_of(2, MIDDLE);
    struct tierce__buf *buf = tierce__storage_lease(fx[0].engine, &key);
    ck_assert_ptr_nonnull(buf);
    buf->data[100] ^= 4;
    ck_assert_uint_eq(load_long(2, &failed), LONG_BLOCKS - FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(failed, MIDDLE * FX_CHUNK_BLOCKS);
    buf->data[100] ^= 4;
    tierce__buf_release(buf);
    ck_assert_uint_ge(read_by(1).results[TIERCE__PEER_DAMAGED], 1);
    close_engine(0);
    has_holder = false;
    uint64_t began_ns = tierce__now_ns();
    ck_assert_uint_eq(load_long(3, &failed), 0);
    ck_assert_uint_lt(tierce__now_ns() - began_ns, LIMIT_MS * TIERCE__MS_NS);
}
END_TEST

CHECK_MAIN("peers_ahead", .seconds = 120, .setup = open_all, .teardown = close_all,
           .tests = {a_lost_chunk_is_missed_alone, a_wrong_chunk_is_rejected_alone})
