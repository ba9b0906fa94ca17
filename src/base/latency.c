/* SPDX-License-Identifier: Apache-2.0 */
#include "base/latency.h"
#include "base/assert.h"

static const uint64_t bounds_ns[TIERCE__LATENCY_BUCKETS - 1] = {
    10000u,     20000u,      50000u,      100000u,     200000u,      500000u,      1000000u,
    2000000u,   5000000u,    10000000u,   20000000u,   50000000u,    100000000u,   200000000u,
    500000000u, 1000000000u, 2000000000u, 5000000000u, 10000000000u, 20000000000u, 50000000000u,
};

uint64_t tierce__latency_bound_ns(size_t index)
{
    TIERCE_DASSERT(index < TIERCE__LATENCY_BUCKETS - 1);
    return bounds_ns[index];
}

void tierce__latency_add(struct tierce__latency *latency, uint64_t ns)
{
    size_t i = 0;
    while (i < TIERCE__LATENCY_BUCKETS - 1 && ns > bounds_ns[i])
        i++;
    TIERCE_DASSERT(i < TIERCE__LATENCY_BUCKETS);
    atomic_fetch_add_explicit(&latency->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&latency->sum_ns, ns, memory_order_relaxed);
}
