/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_BREAKER_H
#define TIERCE_ENGINE_BREAKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Stops requests to a tier that keeps failing. Closed: every request passes. After `errors_max`
 * consecutive failures it opens: no request passes for retry_ms. Then one request at a time passes
 * as a probe (half open), and its result closes the breaker or opens it again. The caller chooses
 * which requests may be probes, and which answers are results (health.c).
 *
 * Thread: any. The fields are relaxed atomics: a request more or less at the edge does no harm.
 */
struct tierce__breaker {
    uint32_t errors_max;
    uint32_t retry_ms;
    _Atomic uint32_t errors;
    _Atomic uint64_t open_until_ns; /* 0: closed */
    _Atomic bool probing;
};

void tierce__breaker_init(struct tierce__breaker *breaker, uint32_t errors_max, uint32_t retry_ms);

/* Whether the next request would be a probe. */
bool tierce__breaker_due(const struct tierce__breaker *breaker, uint64_t now_ns);

/* Whether a request may be made now; if so, the caller must call note or let_go afterwards. */
bool tierce__breaker_pass(struct tierce__breaker *breaker, uint64_t now_ns);

/* The outcome of a request that passed. Returns true if this opened a closed breaker. */
bool tierce__breaker_note(struct tierce__breaker *breaker, bool ok, uint64_t now_ns);

/* The outcome of a request that passed shows nothing: if it was a probe, another may follow. */
void tierce__breaker_let_go(struct tierce__breaker *breaker);

/* Opens a closed breaker regardless of its count of errors. */
void tierce__breaker_trip(struct tierce__breaker *breaker, uint64_t now_ns);

/* Whether it is open and it is not time for a probe yet. */
bool tierce__breaker_waits(const struct tierce__breaker *breaker, uint64_t now_ns);

/* True while requests pass without being probes. */
bool tierce__breaker_closed(const struct tierce__breaker *breaker);

#endif
