/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TIERS_H
#define TIERCE_OPTIMIZER_TIERS_H

#include "optimizer/histogram.h"
#include "optimizer/recording.h"
#include "policy/policy.h"

/*
 * Tiers behind each other (memory, disk, remote; the first is the fastest), as src/engine and
 * src/tier drive them.
 *
 *     rc = tierce__tiers_create(&tiers, &(struct tierce__tiers_opts){...});
 *     for each request: rc = tierce__tiers_request(tiers, request, NULL);
 *     print(tierce__tiers_result(tiers));
 *     tierce__tiers_destroy(tiers);
 *
 * A request of the trace is one lookup, one load and one store:
 *
 *   lookup   The first tier is asked for the prefix; the next for what follows what it has; and so
 *            on, from the top again for as long as that goes on. The leading blocks that some tier
 *            has are hits, each of the first tier if that has it, else of the tier that answered
 *            for it. What is behind a hole is not served.
 *   load     Hits on blocks that the engine does not hold itself (external ones) are read, from all
 *            tiers at once. With promotion, what comes from a slower tier is put into the first one
 *            (or into all faster ones), which must have room for it beside the request's blocks
 *            that it holds; of what finds none only the leading part is loaded, and from the first
 *            that is not on, hits are `failed` and nothing is read.
 *   store    What no tier has is put into the first tier from the first missing block on. At the
 *            first for which it has no room the rest is not stored, because it would be a suffix
 *            without its prefix. With one tier alone the request's own blocks are not evicted for
 *            it. What lies behind a hole in some tier already is left where it is.
 *     write-all  what the first tier took is put into every other tier too; one that lacks the
 *                block before it by then refuses it
 *     waterfall  what a tier evicts is put into the next, if that has not got it; what the last
 *                evicts is gone. (The engine of today knows write-all only.)
 *   use      In every tier what is there of a request is used once, from the last block to the
 *            first, so that the prefix is the newest; a policy that asks for parents gets them.
 *
 * A read does not store; a write does not look up or load. Writes take no time: a store is there
 * for the next request, and no queue overflows. What a tier's policy has expired is gone at the
 * start of a request, and is not handed to the next tier.
 *
 * Times. A load from tier t of b_t bytes takes latency_t + b_t / read_t; that of a request, the
 * tiers working at the same time, the largest of those with b_t > 0.
 *
 * A block that a request lists again is looked up, and read, each time; it takes its room, is
 * stored and is used once, where it is listed first.
 *
 * One tier of leaf_lru is tierce__replay of whole requests, one of lru that of the order rev; with
 * a tier that keeps everything all hits together are those of the infinite cache.
 *
 * Costs for each different block 4 bytes, and 8 in each tier, with the policy's node for what it
 * holds.
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
    double write_bytes_per_s;                /* 0: the same */
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
    TIERCE__TIERS_PROMOTE_ALL,   /* into every tier that is faster than where it lay */
    TIERCE__TIERS_PROMOTE_NONE,  /* loaded beside the tiers */
};

struct tierce__tiers_opts {
    size_t size;
    const struct tierce__tier_spec *tiers; /* [borrow for create] */
    size_t tier_count;                     /* 1 .. TIERCE__TIERS_MAX */
    enum tierce__tiers_writes writes;
    enum tierce__tiers_promote promote;
    bool in_bytes;         /* capacities, by the sizes that the trace gives */
    uint64_t block_bytes;  /* of every block for which the trace gives no size; 0: not known, and
                              counts as no bytes (as 1 for a capacity in bytes) */
    uint32_t block_tokens; /* 0: tokens are not counted */
    uint32_t distinct;     /* different blocks of the recording */
    uint64_t seed;
};

struct tierce__tier_result {
    uint64_t asked;         /* blocks looked up that no faster tier hit: blocks less the hits of the
                               faster tiers. Its hit rate is hits / asked */
    uint64_t hits;          /* blocks that were found here, internal ones too */
    uint64_t internal_hits; /* of those, on blocks that the engine held itself: not loaded */
    uint64_t failed; /* of the external ones, not loaded because the first tier had no room */
    uint64_t loads;  /* requests that read something here */
    uint64_t read_blocks, read_bytes;       /* hits - internal_hits - failed */
    uint64_t written_blocks, written_bytes; /* stored + promoted + demoted */
    uint64_t stored;                        /* blocks put by stores */
    uint64_t promoted;                      /* by promotion from a slower tier */
    uint64_t demoted;                       /* by what the faster tier evicted */
    uint64_t refused; /* puts that were not taken: no block before it, or too large */
    uint64_t evicted, expired;
    uint64_t used, used_max; /* at the end and at most, in the unit of the capacity */
    double read_s;           /* busy: loads * latency + read_bytes / read_bytes_per_s */
    double write_s;          /* busy: written_bytes / write_bytes_per_s; 0: takes no time */
    double worn;             /* written_bytes / endurance_bytes; 0: no bound */
};

struct tierce__tiers_result {
    uint64_t requests;
    uint64_t blocks;          /* looked up */
    uint64_t internal_blocks; /* of those, held by the engine itself */
    uint64_t hits;            /* of all tiers; served are hits - failed */
    uint64_t internal_hits;
    uint64_t failed;
    uint64_t not_stored; /* blocks that no tier has, and that the first had no room for */
    double hit_tokens, hit_squares; /* as of struct tierce__sweep_row, of what was loaded */
    size_t tier_count;
    struct tierce__tier_result tiers[TIERCE__TIERS_MAX];
    uint64_t loads;                   /* requests that read something */
    struct tierce__histogram load_ns; /* of those; the mean of load times is sum / count */
    int64_t first_us, last_us;        /* of the requests */
};

/* What became of one request. */
struct tierce__tiers_answer {
    uint32_t hits;                           /* leading blocks that some tier has */
    uint32_t internal_hits;                  /* of those */
    uint32_t failed;                         /* of those, external and not loaded */
    uint32_t tier_blocks[TIERCE__TIERS_MAX]; /* read from each tier */
    uint64_t tier_bytes[TIERCE__TIERS_MAX];
    uint64_t load_ns; /* 0 if nothing was read */
};

struct tierce__tiers;

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (no tier or too many, capacity 0, a bandwidth
 * below 0, more blocks than a policy has slots). */
TIERCE_MUSTUSE int tierce__tiers_create(struct tierce__tiers **out,
                                        const struct tierce__tiers_opts *opts);

/* NULL is accepted. */
void tierce__tiers_destroy(struct tierce__tiers *tiers);

/* One request; `answer` may be NULL. Errors: -ENOMEM; the tiers are then good for nothing but
 * destroy. */
TIERCE_MUSTUSE int tierce__tiers_request(struct tierce__tiers *tiers,
                                         const struct tierce__recorded *request,
                                         struct tierce__tiers_answer *answer);

/* [borrow until the next request] */
const struct tierce__tiers_result *tierce__tiers_result(struct tierce__tiers *tiers);

/* Whether a tier holds a block now. */
bool tierce__tiers_has(const struct tierce__tiers *tiers, size_t tier, uint32_t block);

/* The time that the given share (0 .. 1) of the requests that load anything does not exceed,
 * exactly (tierce__histogram_quantile of load_ns knows it to its bin). 0 if none loads. */
uint64_t tierce__tiers_load_ns(struct tierce__tiers *tiers, double share);

#endif
