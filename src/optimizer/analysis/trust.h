/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRUST_H
#define TIERCE_OPTIMIZER_TRUST_H

#include "optimizer/replay/sweep.h"

/*
 * How far a result can be trusted: caveats of a row's number and, on request, confidence intervals
 * over sessions.
 *
 *     rc = tierce__sessions_create(&sessions, recording);                  // for intervals
 *     opts.watches = (struct tierce__watch[]){tierce__sessions_watch(sessions)};
 *     rc = tierce__sweep_run(...);
 *     rc = tierce__trust_run(&trust, &sweep, recording, sessions, rounds, seed);   // or NULL, 0, 0
 *     for (int f = 0; f < TIERCE__FINDINGS; f++)
 *         if ((trust.rows[i].findings & 1u << f) != 0)
 *             puts(tierce__finding_text(f));
 *     tierce__trust_clear(&trust);
 *
 * Threads: one at a time; the watch as struct tierce__watch says.
 */

enum tierce__finding {
    TIERCE__FINDING_UNEXERCISED, /* no block was evicted: all policies would have the same hits */
    TIERCE__FINDING_BARELY,      /* fewer blocks were evicted than the cache holds */
    TIERCE__FINDING_NO_WRAP,     /* the policy's hand never wrapped around (policy.h, wraps) */
    TIERCE__FINDING_WARM_UP,     /* for most requests the cache was not full yet */
    TIERCE__FINDING_COMPULSORY,  /* nine in ten misses are first uses, which no cache can avoid */
    TIERCE__FINDINGS,
};

struct tierce__trust_row {
    uint32_t findings;    /* bits: 1u << enum tierce__finding */
    double warm_up_share; /* share of the requests before the first eviction of a cache that stores
                             every miss; 1: there was none. 0 for capacities in bytes */
    double compulsory;    /* share of the misses that looked up blocks never stored before in this
                             trace; 0 without misses */
    bool has_interval;
    double low, high; /* of the hit rate, between them 95 % of the draws */
};

/* The definition of a session. */
enum tierce__session_kind {
    TIERCE__SESSIONS_NONE,    /* no intervals were requested */
    TIERCE__SESSIONS_TRACE,   /* the trace has session ids */
    TIERCE__SESSIONS_SUBTREE, /* the trace has none: a session is all requests with the same first
                                 block that at most one request in a hundred contains */
};

struct tierce__trust {
    struct tierce__trust_row *rows; /* [row_count] of the sweep */
    size_t row_count;
    enum tierce__session_kind kind;
    uint32_t sessions; /* different ones */
    uint32_t clusters; /* the drawn units: whole sessions, grouped if there are many */
    uint32_t rounds;   /* draws */
    uint64_t seed;     /* of the draws */
};

/* ---- sessions -------------------------------------------------------------------------------- */

struct tierce__sessions;

/* Assigns requests to sessions; [borrow] a sealed recording for the call. Errors, *out untouched:
 * -ENOMEM, TIERCE_E_LIMIT (2^32 requests). */
TIERCE_MUSTUSE int tierce__sessions_create(struct tierce__sessions **out,
                                           const struct tierce__recording *recording);

/* NULL is accepted. */
void tierce__sessions_destroy(struct tierce__sessions *sessions);

/* Counts hits by session for each row, 4 to 8 bytes a row and session (65,536 at most) [borrow
 * sessions until the sweep has run]. */
struct tierce__watch tierce__sessions_watch(struct tierce__sessions *sessions);

/* ---- findings and intervals ------------------------------------------------------------------ */

#define TIERCE__BOOTSTRAP_MAX 100000u

/*
 * Findings of every row; with sessions and rounds > 0 also the interval between the 2.5th and the
 * 97.5th percentile of the hit rate over `rounds` draws of as many sessions, with replacement: the
 * same draws for all rows. The draws resample sessions with their measured hits; they do not model
 * the effect of other sessions on the cache. Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT
 * (too many rounds).
 */
TIERCE_MUSTUSE int tierce__trust_run(struct tierce__trust *out, const struct tierce__sweep *sweep,
                                     const struct tierce__recording *recording,
                                     const struct tierce__sessions *sessions, uint32_t rounds,
                                     uint64_t seed);

/* Accepts a zeroed one. */
void tierce__trust_clear(struct tierce__trust *trust);

/* A finding as a sentence: "nothing was evicted: ...". */
const char *tierce__finding_text(enum tierce__finding finding);

/* The same as a word, for files: "unexercised". */
const char *tierce__finding_name(enum tierce__finding finding);

/* The definition of a session, as a sentence. */
const char *tierce__session_kind_text(enum tierce__session_kind kind);

#endif
