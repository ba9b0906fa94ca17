/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TIERS_H
#define TIERCE_OPTIMIZER_TIERS_H

#include "optimizer/replay/histogram.h"
#include "optimizer/trace/recording.h"
#include "core/policy/policy.h"

/*
 * A hierarchy of tiers (memory, disk, remote; the first is the fastest), as src/engine and
 * src/store use it.
 *
 *     rc = tierce__tiers_create(&tiers, &(struct tierce__tiers_opts){...});
 *     for each request: rc = tierce__tiers_request(tiers, request, NULL);
 *     print(tierce__tiers_result(tiers));
 *     tierce__tiers_destroy(tiers);
 *
 * A request of the trace is one lookup, one load and one store:
 *
 *   lookup   The first tier is queried for the prefix, and the next for the blocks after it; and so
 *            on, again from the first tier as long as blocks are found. The leading blocks that
 *            some tier has are hits, each counted for the first tier if that has it, else for the
 *            tier that answered. Blocks after a gap are not served.
 *   load     Hits on blocks that the engine does not hold itself (external ones) are read, from all
 *            tiers at once. With promotion, blocks from a slower tier are put into the first tier
 *            (or into all faster tiers), which must have room for them beside the request's blocks
 *            that it holds. Of the blocks without room, only the leading ones are loaded: from the
 *            first that is not, all hits are `failed` and not read.
 *   store    Blocks that no tier has are put into the first tier, from the first missing block on.
 *            The store ends at the first block without room, because the rest would be a suffix
 *            without its prefix. With only one tier, the request's own blocks are not evicted for
 *            it. Blocks that a tier already holds after a gap stay there.
 *     write-all  each block stored in the first tier is put into every other tier too; a tier that
 *                lacks the preceding block by then rejects it
 *     waterfall  each block that a tier evicts is put into the next tier, unless that tier holds
 * it; blocks that the last tier evicts are lost. (Today's engine supports only write-all.) use In
 * every tier each block of the request is used once, from the last to the first, so that the prefix
 * is the most recently used; a policy that uses parents gets them.
 *
 * A read does not store; a write does not look up or load. Stored blocks are available to the next
 * request regardless of the tier's queue, and no queue overflows. Blocks that a tier's policy has
 * expired are removed at the start of a request and are not passed to the next tier.
 *
 * Times. A load from tier t of b_t bytes takes w_t + latency_t + b_t / read_t; that of a request,
 * the tiers working at the same time, the largest of those with b_t > 0. A tier that has a write
 * speed does one thing at a time, in the order in which it comes: the loads of a request, then its
 * writes (stores, promotions, demotions), written_t / write_t. w_t is the time until its earlier
 * operations are done; it continues to work between requests. A tier without a write speed never
 * waits (w_t is 0), and its loads do not delay each other.
 *
 * If a request repeats a block, it is looked up and read each time, but occupies room, is stored
 * and is used only once, at its first position.
 *
 * A single tier with leaf_lru has the same results as tierce__replay of whole requests; a single
 * tier with lru has those of tierce__replay with the order rev. With a tier that keeps everything,
 * the sum of all hits equals the infinite cache's hits.
 *
 * Costs 4 bytes per distinct block, 8 more per tier, and the policy's node for each cached block.
 *
 * Threads: one at a time.
 */

#define TIERCE__TIERS_MAX       8u
#define TIERCE__TIER_NAME_BYTES 32u

struct tierce__tier_spec {
    char name[TIERCE__TIER_NAME_BYTES];
    const struct tierce__policy_ops *policy; /* NULL: keeps everything, and capacity is not read */
    uint64_t capacity;                       /* blocks, or bytes if in_bytes; >= 1 */
    double read_bytes_per_s;                 /* 0: takes no time */
    double write_bytes_per_s;                /* 0: the same, and the tier has no queue */
    uint64_t latency_ns;                     /* before the first byte of a load */
    uint64_t ttl_us;                         /* for a policy that expires; 0: never */
    double endurance_bytes; /* that may be written in the device's life; 0: no bound */
};

enum tierce__tiers_writes {
    TIERCE__TIERS_WRITE_ALL,
    TIERCE__TIERS_WATERFALL,
};

enum tierce__tiers_promote {
    TIERCE__TIERS_PROMOTE_FIRST, /* into the first tier, as the engine does */
    TIERCE__TIERS_PROMOTE_ALL,   /* into every tier that is faster than its source */
    TIERCE__TIERS_PROMOTE_NONE,  /* loaded in parallel to the tiers */
};

struct tierce__tiers_opts {
    size_t size;
    const struct tierce__tier_spec *tiers; /* [borrow for create] */
    size_t tier_count;                     /* 1 .. TIERCE__TIERS_MAX */
    enum tierce__tiers_writes writes;
    enum tierce__tiers_promote promote;
    bool in_bytes;         /* capacities, by the sizes that the trace gives */
    uint64_t block_bytes;  /* for every block without a size in the trace; 0: unknown, counts as no
                              bytes (as 1 for a capacity in bytes) */
    uint32_t block_tokens; /* 0: tokens are not counted */
    uint32_t distinct;     /* different blocks of the recording */
    uint64_t seed;
};

struct tierce__tier_result {
    uint64_t
        asked; /* looked-up blocks that no faster tier hit. The tier's hit rate is hits / asked */
    uint64_t hits;          /* blocks that were found here, internal ones too */
    uint64_t internal_hits; /* of those, on blocks that the engine held itself: not loaded */
    uint64_t failed; /* of the external ones, not loaded because the first tier had no room */
    uint64_t loads;  /* requests that read something here */
    uint64_t read_blocks, read_bytes;       /* hits - internal_hits - failed */
    uint64_t written_blocks, written_bytes; /* stored + promoted + demoted */
    uint64_t stored;                        /* blocks put by stores */
    uint64_t promoted;                      /* by promotion from a slower tier */
    uint64_t demoted;                       /* by evictions of the faster tier */
    uint64_t refused; /* puts that were rejected: the preceding block is missing, or the block is
                         too large */
    uint64_t evicted, expired;
    uint64_t used, used_max; /* at the end and at most, in the unit of the capacity */
    double read_s;           /* busy: loads * latency + read_bytes / read_bytes_per_s */
    double write_s;          /* busy: written_bytes / write_bytes_per_s; 0: takes no time */
    double worn;             /* written_bytes / endurance_bytes; 0: no bound */
    uint64_t waits;          /* loads that had to wait for the tier */
    double wait_s;           /* their total waiting time */
    double queue_s;          /* the tier's backlog after the last request */
    double queue_max_s;      /* and the maximum after any request */
};

struct tierce__tiers_result {
    uint64_t requests;
    uint64_t blocks;          /* looked up */
    uint64_t internal_blocks; /* of those, held by the engine itself */
    uint64_t hits;            /* of all tiers; served are hits - failed */
    uint64_t internal_hits;
    uint64_t failed;
    uint64_t not_stored; /* blocks that no tier had, and for which the first tier had no room */
    double hit_tokens, hit_squares; /* as in struct tierce__sweep_row, for loaded blocks */
    size_t tier_count;
    struct tierce__tier_result tiers[TIERCE__TIERS_MAX];
    uint64_t loads;                   /* requests that read something */
    struct tierce__histogram load_ns; /* of those; the mean of load times is sum / count */
    int64_t first_us, last_us;        /* of the requests */
};

/* The result of one request. */
struct tierce__tiers_answer {
    uint32_t hits;                           /* leading blocks that some tier had */
    uint32_t internal_hits;                  /* of those */
    uint32_t failed;                         /* of those, external and not loaded */
    uint32_t tier_blocks[TIERCE__TIERS_MAX]; /* read from each tier */
    uint64_t tier_bytes[TIERCE__TIERS_MAX];
    uint64_t load_ns; /* with the waiting; 0 if nothing was read */
};

struct tierce__tiers;

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (no tier or too many, capacity 0, a bandwidth
 * below 0, more blocks than a policy has slots). */
TIERCE_MUSTUSE int tierce__tiers_create(struct tierce__tiers **out,
                                        const struct tierce__tiers_opts *opts);

/* NULL is accepted. */
void tierce__tiers_destroy(struct tierce__tiers *tiers);

/* Replays one request; `answer` may be NULL. Errors: -ENOMEM; afterwards the tiers can only be
 * destroyed. */
TIERCE_MUSTUSE int tierce__tiers_request(struct tierce__tiers *tiers,
                                         const struct tierce__recorded *request,
                                         struct tierce__tiers_answer *answer);

/* [borrow until the next request] */
const struct tierce__tiers_result *tierce__tiers_result(struct tierce__tiers *tiers);

/* Returns whether a tier holds a block now. */
bool tierce__tiers_has(const struct tierce__tiers *tiers, size_t tier, uint32_t block);

/* The exact quantile of load times over the requests that load, for a share 0 .. 1
 * (tierce__histogram_quantile of load_ns is only as precise as a bin). 0 if no request loads. */
uint64_t tierce__tiers_load_ns(struct tierce__tiers *tiers, double share);

#endif
