/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_ENGINE_H
#define TIERCE_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include <tierce/engine.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "engine/asks.h"
#include "engine/device/direct.h"
#include "engine/device/pinnings.h"
#include "engine/device/transit.h"
#include "engine/handover/inbox_stats.h"
#include "engine/load/fetch.h"
#include "engine/objects/object_names.h"
#include "engine/prefetch/ahead.h"
#include "engine/prefetch/prefetches.h"
#include "engine/sessions.h"
#include "engine/waterfall.h"
#include "engine/store/backfill.h"
#include "engine/store/shared_write.h"
#include "engine/store/storing.h"
#include "store/disk/disk.h"

/*
 * The engine: its settings and its state. The parts of the state are described by the headers of
 * their owners. Lock order: base/threads/locks.def.
 */

/* Of each kind of handle. */
#define TIERCE__ENGINE_MAGIC       0x7e1e0001u
#define TIERCE__VIEW_MAGIC         0x7e1e0002u
#define TIERCE__STORE_MAGIC        0x7e1e0003u
#define TIERCE__LOAD_MAGIC         0x7e1e0004u
#define TIERCE__PREFETCH_MAGIC     0x7e1e0005u
#define TIERCE__OBJECTS_MAGIC      0x7e1e0006u
#define TIERCE__OBJECT_MAGIC       0x7e1e0007u
#define TIERCE__SUBSCRIPTION_MAGIC 0x7e1e0008u

enum tierce__stat {
#define TIERCE_STAT(name, text) TIERCE__STAT_##name,
#include <tierce/stats.def>
#undef TIERCE_STAT
    TIERCE__STAT_COUNT
};

/* The engine's parameters as plain values. */
struct tierce__settings {
    uint64_t memory_bytes;
    uint64_t pin_bytes_max;
    uint64_t prefetch_bytes_max;
    uint32_t lookup_ms;
    uint32_t load_ms;
    uint32_t prefetch_ms;
    uint32_t pin_ms;
    uint32_t store_ms;
    uint32_t close_ms;
    struct tierce__health_limits health;
    bool cost_check;
    uint64_t cost_read_bytes_per_s; /* of slow tiers; 0: as measured */
    uint64_t cost_prefill;          /* tokens a second; 0: as measured */
    uint64_t cost_wait_percent;     /* of the time to compute; 0: no limit */
    bool siblings;
    bool has_disk;                  /* disk.path is set */
    uint32_t peer_disk_reads;       /* ranges that are read from disk for other engines at a time */
    uint64_t peer_disk_bytes_per_s; /* 0: a share of the disk's speed */
    bool recompute_all; /* while a tier is out of service, the others are not queried either */
};

/* An engine is in the registry from before it opens its folder until after it has closed it. */
enum tierce__engine_state { TIERCE__ENGINE_OPENING, TIERCE__ENGINE_OPEN, TIERCE__ENGINE_CLOSING };

struct tierce_engine {
    uint32_t magic;
    uint32_t generation; /* of the process that opened it; see tierce__engine_inherited */

    /* Under REGISTRY. */
    uint32_t refs;
    enum tierce__engine_state state;
    uint64_t close_deadline_ns; /* once it is closing */
    struct tierce__list registry_node;
    char *disk_path; /* canonical path of the store folder; "" without one */

    char disk_error[TIERCE__DISK_WHY_BYTES]; /* why it could not be opened, or "" */

    char *identity; /* canonical configuration: equal ones share an engine */
    uint64_t opened_ns;
    struct tierce__control *control; /* or NULL */
    struct tierce__settings settings;
    _Atomic int mode; /* enum tierce_mode; relaxed: applies to operations that begin later */

    struct tierce__line_log *access_log;   /* or NULL */
    struct tierce__departures *departures; /* or NULL */
    struct tierce__requests *requests;     /* or NULL */
    struct tierce__events *events;
    struct tierce__peer_tls *peer_tls; /* or NULL: other engines are without TLS */
    struct tierce__peers *peers;       /* or NULL */
    struct tierce__reporter *reporter; /* or NULL */
    struct {                           /* of the reporter; relaxed: figures alone */
        _Atomic bool is_there, is_complete;
        _Atomic uint64_t resyncs;
    } reports;
    struct tierce__inbox_counts inbox_counts;
    struct tierce__kv_publisher *kv_publisher; /* or NULL */
    struct tierce__kv_tokens *kv_tokens;       /* or NULL: no event has tokens */
    _Atomic uint32_t
        keepers; /* that serve its chunks to other engines (peer/peer_keeper.h); relaxed */
    _Atomic bool asks_tokens; /* the node that a client met last publishes tokens; relaxed */
    struct tierce__namespaces *namespaces;
    struct tierce__coded_keys *keys; /* of encrypted chunks, or NULL */
    const struct tierce__lender *lender;
    struct tierce__pool *pool;
    _Atomic bool is_pool_lent; /* a call of a connector beside the tiers has not returned, so the
                                  pool must never be freed */
    struct tierce__pinnings pinnings; /* of the pool */
    struct tierce__direct direct;     /* of the disk */
    struct tierce__transits transits; /* copies that have not ended in time */
    struct tierce__workers *copiers;  /* NULL unless copy.threads is more than 1 */
    struct tierce__smalls *smalls;    /* small named values in memory; NULL without tiers */
    struct tierce__node_client
        *client; /* instead of tiers and a pool: asks a node (client.h); or NULL */
    struct tierce__level levels[TIERCE__TIERS_MAX];
    size_t level_count;

    struct tierce__fetches fetches;
    struct tierce__asks asks;
    struct tierce__storing storing;
    struct tierce__shared_writes shared_writes;
    struct tierce__object_names object_names;
    struct tierce__tombstones *_Atomic tombstones; /* NULL until the first space is opened */
    _Atomic uint32_t purges;       /* values with a tombstone that are being deleted */
    atomic_bool purges_more;       /* since one was: there may be others */
    _Atomic uint64_t object_walks; /* walks over names begun so far (objects_scan.c) */
    struct tierce__backfill backfill;
    struct tierce__prefetches prefetches;
    struct tierce__ahead *ahead; /* or NULL: no return is predicted */
    /* Threads of tiers that call a tier from an answer: closing waits for them, because the waiter
     * for that call's own answer may already be closing the engine. */
    _Atomic uint32_t calling;
    /* The number of leases that are larger than memory and use it chunk by chunk. They never wait
     * for memory, and release each chunk before the next. Leases that begin are counted too,
     * because they take memory before it is known whether they fit. */
    _Atomic uint32_t passing;

    struct tierce__lock lock; /* ENGINE: everything below */
    char role[32];            /* role of the process (tierce_engine_set_role) */
    struct tierce__cond changed;
    struct tierce__list views;
    struct tierce__list sessions[TIERCE__SESSION_BINS];
    uint64_t pinned_bytes;
    uint64_t session_count;
    struct tierce__use uses[TIERCE__USE_SETS][TIERCE__USE_WAYS]; /* the last first */
    struct tierce__list unattended; /* background requests in progress: queued PUTs and DELETEs, the
                                       oldest first */
    uint64_t unattended_made;       /* numbers them */
    int put_error;                  /* the first failure of a PUT that no flush has reported yet */
    struct tierce__list invalidations;       /* invalidations.h */
    struct tierce__generations *generations; /* of the disk, when the engine started; or NULL */
    bool closing;
    uint64_t era; /* operate.h */
    size_t publishing[2];
    size_t clears;    /* in progress */
    pthread_t keeper; /* ends pins at their deadline */
    bool keeper_runs;
    pthread_t invalidator; /* invalidations.h */
    bool invalidator_runs;

    _Atomic int64_t counters[TIERCE__STAT_COUNT]; /* relaxed: summed by readers */
};

static inline void tierce__count(struct tierce_engine *engine, enum tierce__stat stat, int64_t n)
{
    atomic_fetch_add_explicit(&engine->counters[stat], n, memory_order_relaxed);
}

/* One more reference, ended by tierce_engine_close. */
void tierce__engine_ref(struct tierce_engine *engine);

/*
 * Whether this process inherited the engine by fork. The engine's threads run only in the parent,
 * its locks may be held forever, and its files are the parent's. So the engine must not be used,
 * and not even freed.
 */
bool tierce__engine_inherited(const struct tierce_engine *engine);

#endif
