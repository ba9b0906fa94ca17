/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_HEALTH_H
#define TIERCE_ENGINE_HEALTH_H

#include "base/latency.h"
#include "base/threads/lock.h"
#include "engine/health/breaker.h"
#include "store/tier.h"

/*
 * The health of a tier: which of its answers were failures, how long they took, and how fast it
 * reads. The failures decide whether the tier is used at all (the breaker), the read speed what a
 * load would cost (cost.h).
 *
 *     if (tierce__health_pass(&health, req))  // submit it
 *     ... the tier answers ...
 *     change = tierce__health_note(&health, req);
 *
 * A breaker opens after so many failures in a row, or when so many of the last 64 answers were
 * failures: a tier that keeps failing intermittently is of no use. An answer that took longer than
 * slow_ms is a failure too. A tier that answered nothing for hang_ms while requests were pending
 * hangs: its breaker opens at once, so that one deadline is all that it costs.
 *
 * Only reads, writes and pings reach a device. Lookups, deletions and flushes of nothing come from
 * an index in memory: they must neither end a row of failures nor an outage. Lookups of a shared
 * tier ask outside, and end a row. A late lookup is a failure only if its time limit was at least
 * hang_ms: a shorter limit proves nothing about the store. A write that fails because the file
 * system is full or read-only, or because the store permits only reads, is not a failure of the
 * tier, whose chunks can still be read. A failure with which a tier answers several requests, such
 * as that of one connection, counts once.
 *
 * The speed of a tier is unknown again when it returns to service.
 *
 * Thread: any.
 */

struct tierce__health_limits {
    uint32_t errors_max;        /* in a row */
    uint32_t window_errors_max; /* of the last TIERCE__HEALTH_WINDOW; 0: not looked at */
    uint32_t slow_ms;           /* 0: no answer is too slow */
    uint32_t hang_ms;           /* of silence; not looked at without a window */
    uint32_t retry_ms;          /* how long the tier stays out of service */
};

#define TIERCE__HEALTH_WINDOW 64u

/* The recent read speed of a tier: older reads count less and less. */
struct tierce__speed {
    double bytes_per_s; /* while it was reading; 0: not known */
    double latency_s;   /* of an answer, however few bytes it had */
    uint64_t known_ns;  /* when it was last measured */
};

struct tierce__health {
    struct tierce__breaker breaker;
    struct tierce__health_limits limits;
    bool shared; /* TIERCE__TIER_SHARED */
    struct tierce__latency reads;
    struct tierce__latency writes;

    struct tierce__lock lock;  /* HEALTH: below */
    uint64_t failures;         /* a bit for each of the last answers, the newest lowest */
    uint64_t heard_ns;         /* when it last answered of itself */
    struct tierce__key proven; /* a chunk that was read or written, or should have been readable:
                                  probes read it */
    bool has_proven;
    uint32_t reading; /* reads under way */
    bool is_first;    /* none of them has been answered since there were none */
    uint64_t busy_since_ns;
    uint64_t left_out_ns;      /* when an answer last did not count for the speed */
    uint64_t stalled_ns;       /* when a stall last ended; 0: never */
    uint32_t connected;        /* the last answers for which a connection was made */
    double busy_s, busy_bytes; /* of the readings lately */
    double latency_s;
    uint64_t measured_ns;
};

void tierce__health_init(struct tierce__health *health, const struct tierce__health_limits *limits);
void tierce__health_fini(struct tierce__health *health);

/* Whether an answer is a failure of the tier itself, as opposed to an honest no. */
bool tierce__health_is_fault(int status);

/* Whether the request is a lookup that a remote store answered only in part, or did not answer
 * within a limit shorter than hang_ms. Such a lookup is not a failure. */
bool tierce__health_is_unanswered(const struct tierce__health *health,
                                  const struct tierce__store_req *req);

/* Whether the request may be made now. If so it must be made, and its answer be noted. */
TIERCE_MUSTUSE bool tierce__health_pass(struct tierce__health *health,
                                        struct tierce__store_req *req);

enum tierce__health_change { TIERCE__HEALTH_SAME, TIERCE__HEALTH_LOST, TIERCE__HEALTH_BACK };

/* The answer of a request that passed. */
enum tierce__health_change tierce__health_note(struct tierce__health *health,
                                               const struct tierce__store_req *req);

/* Closed: it is in service. Open: it is out of service. Half open: one request tries it. */
enum tierce__health_state {
    TIERCE__HEALTH_CLOSED,
    TIERCE__HEALTH_OPEN,
    TIERCE__HEALTH_HALF_OPEN,
};
enum tierce__health_state tierce__health_state(const struct tierce__health *health);

/* Whether it is asked without being tried. */
bool tierce__health_serves(const struct tierce__health *health);

/* Whether it is time to try it. */
bool tierce__health_is_due(const struct tierce__health *health);

/* A chunk that it held when it was last read or written: *key, unchanged if none is known. */
bool tierce__health_proven(struct tierce__health *health, struct tierce__key *key);

/* How it reads. */
void tierce__health_speed(struct tierce__health *health, struct tierce__speed *out);

#endif
