/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_PEERS_FIXTURE_H
#define TIERCE_TESTS_PEERS_FIXTURE_H

/* Engines and a manager, with a chain of chunks that one of them stores and another one loads. */

#include "base/alloc.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "running_manager.h"
#include "silent_log.h"

#include "engine/observe/engine_metrics.h"
#include "engine/peer/peers.h"
#include "store/remote/peers/peers_self.h"
#include "store/remote/peers/peers_table.h"

#include <signal.h>
#include <sys/wait.h>
#include <tierce/operate.h>

enum { ENGINES = 3, CHAIN_BLOCKS = 4 * FX_CHUNK_BLOCKS, LIMIT_MS = 60000, PEERS_LEVEL = 2 };

static struct running_manager manager;
static struct fixture fx[ENGINES];
static char url[128];

static inline void start_manager(uint16_t port)
{
    char grpc[32];
    snprintf(grpc, sizeof(grpc), "--listen.grpc_port=%u", port);
    running_manager_start(&manager, (const char *[]){"--directory.silence=2s", grpc, NULL});
    snprintf(url, sizeof(url), "peers://127.0.0.1:%u?connections=3", manager.ports.meta_grpc);
}

static inline void open_engine(unsigned i)
{
    fx_open(&fx[i], true, (const char *[]){"remote.urls", url, NULL});
}

static inline void close_engine(unsigned i)
{
    fx_close(&fx[i]);
    fx_remove(&fx[i]);
}

static inline void store(unsigned engine, uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx[engine], seed, CHAIN_BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx[engine], chain, CHAIN_BLOCKS, fx_ids, false), CHAIN_BLOCKS);
    tierce_chain_destroy(chain);
    ck_assert_int_eq(tierce_engine_flush(fx[engine].engine, LIMIT_MS), 0);
}

static inline void on_lookup(struct tierce__store_req *req)
{
    atomic_store((_Atomic bool *)req->arg, true);
}

/* How many leading chunks the peers of an engine have. Asks the directory, without remembered
 * answers. */
static inline size_t peers_find(unsigned engine, const struct tierce__key *keys, size_t count)
{
    struct tierce__tier *tier = fx[engine].engine->levels[PEERS_LEVEL].tier;
    _Atomic bool is_done = false;
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP,
                                    .deadline_ns = tierce__deadline_in_ms(LIMIT_MS),
                                    .keys = keys,
                                    .key_count = count,
                                    .recall = TIERCE__RECALL_NOTHING,
                                    .done = on_lookup,
                                    .arg = &is_done};
    tier->ops->submit(tier, &req);
    WAIT_FOR(atomic_load(&is_done));
    return req.found;
}

static inline uint64_t peers_have(unsigned engine, uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx[engine], seed, CHAIN_BLOCKS, 0);
    struct tierce__key keys[CHAIN_BLOCKS / FX_CHUNK_BLOCKS];
    for (size_t i = 0; i < CHAIN_BLOCKS / FX_CHUNK_BLOCKS; i++) {
        keys[i] = fx[engine].inner->key;
        memcpy(keys[i].hash, tierce_chain_hash(chain, (i + 1) * FX_CHUNK_BLOCKS - 1),
               sizeof(keys[i].hash));
    }
    size_t found = peers_find(engine, keys, CHAIN_BLOCKS / FX_CHUNK_BLOCKS);
    tierce_chain_destroy(chain);
    return found * FX_CHUNK_BLOCKS;
}

static inline bool has_joined(unsigned engine)
{
    char secret[TIERCE__PEERS_SECRET_BYTES];
    int64_t session;
    int32_t slot;
    struct tierce__peers_self *self = tierce__peers_self_of(fx[engine].engine->peers);
    return tierce__peers_self_get(self, &session, &slot, secret);
}

/* And has joined, so it has the secret with which it can read them. */
static inline bool finds(unsigned engine, uint32_t seed, uint64_t blocks)
{
    return has_joined(engine) && peers_have(engine, seed) == blocks;
}

/* Returns the blocks loaded; each of them is right. */
static inline int64_t load(unsigned engine, uint32_t seed, uint32_t timeout_ms)
{
    struct fixture *f = &fx[engine];
    struct tierce_chain *chain = fx_chain(f, seed, CHAIN_BLOCKS, 0);
    uint8_t origins[CHAIN_BLOCKS] = {0};
    int64_t loaded = 0;
    fx_wipe(f);
    struct tierce_transfer_opts what = fx_what(f, chain, 0, CHAIN_BLOCKS, fx_ids);
    what.timeout_ms = timeout_ms;
    int64_t rc = tierce_load(f->view, &what, origins);
    ck_assert_int_ge(rc, 0);
    for (size_t b = 0; b < CHAIN_BLOCKS; b++) {
        if (origins[b] == TIERCE_ORIGIN_FAILED)
            continue;
        ck_assert(fx_right(f, chain, b, fx_ids[b]));
        loaded++;
    }
    ck_assert_int_eq(loaded, rc);
    tierce_chain_destroy(chain);
    return loaded;
}

static inline struct tierce__peer_keeper_stats kept(unsigned engine)
{
    struct tierce__transfer_stats sent;
    struct tierce__peer_keeper_stats stats;
    tierce__peer_server_stats(tierce__peers_server(fx[engine].engine->peers), &sent, &stats);
    return stats;
}

static inline struct tierce__peers_table_stats read_by(unsigned engine)
{
    struct tierce__peers_stats stats;
    ck_assert(tierce__peers_stats(fx[engine].engine->peers, &stats));
    return stats.read;
}

/* The page of metrics has the line `name value`. */
static inline bool shows(unsigned engine, const char *name, uint64_t value)
{
    char line[128];
    size_t bytes;
    snprintf(line, sizeof(line), "\n%s %llu\n", name, (unsigned long long)value);
    char *page = tierce__engine_metrics(fx[engine].engine, &bytes);
    bool has_it = strstr(page, line) != NULL;
    tierce__free(page);
    return has_it;
}

static inline void forget(unsigned engine, uint32_t tiers)
{
    ck_assert_int_ge(tierce_engine_clear(fx[engine].engine, tiers, NULL), 0);
}

/* The reader has nothing of its own. */
static inline void forget_all(unsigned engine)
{
    forget(engine, 1u << TIERCE_ORIGIN_MEMORY | 1u << TIERCE_ORIGIN_DISK);
}

/* No pin is left on either side. */
static inline void has_no_lease(unsigned engine)
{
    WAIT_FOR(kept(engine).leases_now == 0 && kept(engine).reads_now == 0);
    WAIT_FOR(fx_stats(&fx[engine]).leases_now == 0);
}

#endif
