/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_HEALTH_H
#define TIERCE_ENGINE_HEALTH_H

#include "base/latency.h"
#include "base/threads/lock.h"
#include "engine/health/breaker.h"
#include "store/tier.h"

/*
 * The health of a tier: which of its answers were failures, how long they took, and how fast it
 * reads. The breaker uses the failures to decide whether the tier is used; cost.h uses the read
 * speed to estimate the cost of a load.
 *
 *     if (tierce__health_pass(&health, req))  // submit it
 *     ... the tier answers ...
 *     change = tierce__health_note(&health, req);
 *
 * A breaker opens after errors_max failures in a row, or when window_errors_max of the last 64
 * answers were failures: a tier that fails intermittently is not usable. An answer that took longer
 * than slow_ms is a failure too. A tier that answered nothing for hang_ms while requests were
 * pending hangs: its breaker opens at once, so that one deadline is all that it costs.
 *
 * Only reads, writes and pings reach a device. Lookups, deletions and flushes of nothing come from
 * an index in memory: they must neither end a row of failures nor an outage. Lookups of a shared
 * tier query the remote store, and end a row of failures. A late lookup is a failure only if its
 * time limit was at least hang_ms: a shorter limit proves nothing about the store. A write that
 * fails because the file system is full or read-only, or because the store permits only reads, is
 * not a failure of the tier, whose chunks can still be read. If one failure ends several requests,
 * such as the failure of a connection, it counts once.
 *
 * The speed of a tier is unknown again when it returns to service.
 *
 * Thread: any.
 */

struct tierce__health_limits {
    uint32_t errors_max;        /* in a row */
    uint32_t window_errors_max; /* of the last TIERCE__HEALTH_WINDOW; 0: unlimited */
    uint32_t slow_ms;           /* 0: no answer is too slow */
    uint32_t hang_ms;           /* without an answer; ignored if window_errors_max is 0 */
    uint32_t retry_ms;          /* how long the tier stays out of service */
};

#define TIERCE__HEALTH_WINDOW 64u

/* The recent read speed of a tier: older reads count less and less. */
struct tierce__speed {
    double bytes_per_s; /* while it was reading; 0: not known */
    double latency_s;   /* of an answer, regardless of its bytes */
    uint64_t known_ns;  /* when it was last measured */
};

struct tierce__health {
    struct tierce__breaker breaker;
    struct tierce__health_limits limits;
    bool shared; /* TIERCE__TIER_SHARED */
    bool pings;  /* TIERCE__TIER_PINGS: only a PING returns it to service */
    struct tierce__latency reads;
    struct tierce__latency writes;

    struct tierce__lock lock;  /* HEALTH: below */
    uint64_t failures;         /* a bit for each of the last answers, the newest lowest */
    uint64_t heard_ns;         /* when it last answered of itself */
    struct tierce__key proven; /* a chunk that was read or written, or should have been readable:
                                  probes read it */
    bool has_proven;
    uint32_t reading; /* reads under way */
    bool is_first;    /* no read was answered since `reading` was 0 */
    uint64_t busy_since_ns;
    uint64_t left_out_ns;      /* when an answer last did not count for the speed */
    uint64_t stalled_ns;       /* when a stall last ended; 0: never */
    uint32_t connected;        /* the last answers for which a connection was made */
    double busy_s, busy_bytes; /* of recent readings */
    double latency_s;
    uint64_t measured_ns;
};

void tierce__health_init(struct tierce__health *health, const struct tierce__health_limits *limits);
void tierce__health_fini(struct tierce__health *health);

/* Whether an answer is a failure of the tier itself, as opposed to a valid negative answer. */
bool tierce__health_is_fault(int status);

/* Whether a store that can be read has no room for a write. */
bool tierce__health_is_full(int status);

/* Whether a store that can be read permits no writes. */
bool tierce__health_is_rejection(int status);

/* Whether the request is a lookup that a remote store answered only in part, or did not answer
 * within a limit shorter than hang_ms. Such a lookup is not a failure. */
bool tierce__health_is_unanswered(const struct tierce__health *health,
                                  const struct tierce__store_req *req);

/* Whether the request may be made now. If so, the caller must submit it and note its answer. */
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

/* Whether it gets requests that are not probes. */
bool tierce__health_serves(const struct tierce__health *health);

/* Whether the next probe is due. */
bool tierce__health_is_due(const struct tierce__health *health);

/* A chunk that it held when it was last read or written: *key, unchanged if none is known. */
bool tierce__health_proven(struct tierce__health *health, struct tierce__key *key);

/* How it reads. */
void tierce__health_speed(struct tierce__health *health, struct tierce__speed *out);

#endif
