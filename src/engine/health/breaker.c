/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/health/breaker.h"
#include "base/assert.h"

#include "base/clock.h"

void tierce__breaker_init(struct tierce__breaker *breaker, uint32_t errors_max, uint32_t retry_ms)
{
    TIERCE_DASSERT(errors_max > 0);
    *breaker = (struct tierce__breaker){.errors_max = errors_max, .retry_ms = retry_ms};
}

bool tierce__breaker_due(const struct tierce__breaker *breaker, uint64_t now_ns)
{
    uint64_t until = atomic_load_explicit(&breaker->open_until_ns, memory_order_relaxed);
    return until != 0 && now_ns >= until &&
           !atomic_load_explicit(&breaker->probing, memory_order_relaxed);
}

bool tierce__breaker_pass(struct tierce__breaker *breaker, uint64_t now_ns)
{
    uint64_t until = atomic_load_explicit(&breaker->open_until_ns, memory_order_relaxed);
    if (until == 0)
        return true;
    if (now_ns < until)
        return false;
    return !atomic_exchange_explicit(&breaker->probing, true, memory_order_relaxed);
}

bool tierce__breaker_note(struct tierce__breaker *breaker, bool ok, uint64_t now_ns)
{
    bool was_open = atomic_load_explicit(&breaker->open_until_ns, memory_order_relaxed) != 0;
    if (ok) {
        atomic_store_explicit(&breaker->errors, 0, memory_order_relaxed);
        atomic_store_explicit(&breaker->open_until_ns, 0, memory_order_relaxed);
        atomic_store_explicit(&breaker->probing, false, memory_order_relaxed);
        return false;
    }
    uint32_t errors = atomic_fetch_add_explicit(&breaker->errors, 1, memory_order_relaxed) + 1;
    if (!was_open && errors < breaker->errors_max)
        return false;
    uint64_t until = now_ns + breaker->retry_ms * TIERCE__MS_NS;
    TIERCE_DASSERT(until != 0);
    atomic_store_explicit(&breaker->open_until_ns, until, memory_order_relaxed);
    atomic_store_explicit(&breaker->probing, false, memory_order_relaxed);
    return !was_open;
}

void tierce__breaker_trip(struct tierce__breaker *breaker, uint64_t now_ns)
{
    uint64_t until = now_ns + breaker->retry_ms * TIERCE__MS_NS;
    atomic_store_explicit(&breaker->open_until_ns, until, memory_order_relaxed);
    TIERCE_DASSERT(until != 0);
    atomic_store_explicit(&breaker->probing, false, memory_order_relaxed);
}

bool tierce__breaker_waits(const struct tierce__breaker *breaker, uint64_t now_ns)
{
    uint64_t until = atomic_load_explicit(&breaker->open_until_ns, memory_order_relaxed);
    return until != 0 && now_ns < until;
}

void tierce__breaker_let_go(struct tierce__breaker *breaker)
{
    atomic_store_explicit(&breaker->probing, false, memory_order_relaxed);
}

bool tierce__breaker_closed(const struct tierce__breaker *breaker)
{
    return atomic_load_explicit(&breaker->open_until_ns, memory_order_relaxed) == 0;
}
