/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/faults.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "proto/kvcm/rpcs.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* At most one fault per name; services with the same RPC name share it. */
struct tierce__faults {
    _Atomic uint32_t count; /* usually 0, and then the lock is not taken */
    struct tierce__lock lock;
    struct tierce__fault faults[TIERCE__RPC_COUNT]; /* by the index of the first RPC of that name */
};

int tierce__faults_create(struct tierce__faults **out)
{
    struct tierce__faults *faults = tierce__calloc(1, sizeof(*faults));
    if (faults == NULL)
        return -ENOMEM;
    tierce__lock_init(&faults->lock, TIERCE__LOCK_FAULTS);
    for (int i = 0; i < TIERCE__RPC_COUNT; i++)
        faults->faults[i].kind = TIERCE__FAULT_NONE;
    *out = faults;
    return 0;
}

void tierce__faults_destroy(struct tierce__faults *faults)
{
    if (faults == NULL)
        return;
    tierce__lock_fini(&faults->lock);
    tierce__free(faults);
}

static int find_rpc(const char *api_name)
{
    for (int i = 0; i < TIERCE__RPC_COUNT; i++) {
        if (strcmp(tierce__rpcs[i].method, api_name) == 0)
            return i;
    }
    return -ENOENT;
}

/* Replaces a fault; returns whether there was one. */
static bool put(struct tierce__faults *faults, int rpc, const struct tierce__fault *fault)
{
    TIERCE_ASSERT(rpc >= 0 && rpc < TIERCE__RPC_COUNT);
    TIERCE_DASSERT(fault->kind != TIERCE__FAULT_DELAY || fault->delay_ms >= 0);
    tierce__lock_take(&faults->lock);
    struct tierce__fault *at = &faults->faults[rpc];
    bool was = at->kind != TIERCE__FAULT_NONE, is = fault->kind != TIERCE__FAULT_NONE;
    TIERCE_ASSERT(!was || atomic_load_explicit(&faults->count, memory_order_relaxed) > 0);
    *at = *fault;
    if (is && !was)
        atomic_fetch_add_explicit(&faults->count, 1, memory_order_relaxed);
    if (was && !is)
        atomic_fetch_sub_explicit(&faults->count, 1, memory_order_relaxed);
    tierce__lock_drop(&faults->lock);
    return was;
}

int tierce__faults_set(struct tierce__faults *faults, const char *api_name,
                       const struct tierce__fault *fault)
{
    int rpc = find_rpc(api_name);
    if (rpc < 0)
        return TIERCE_E_ARGUMENT;
    put(faults, rpc, fault);
    return 0;
}

int tierce__faults_remove(struct tierce__faults *faults, const char *api_name)
{
    static const struct tierce__fault none = {.kind = TIERCE__FAULT_NONE};
    int rpc = find_rpc(api_name);
    return rpc >= 0 && put(faults, rpc, &none) ? 0 : -ENOENT;
}

void tierce__faults_clear(struct tierce__faults *faults)
{
    static const struct tierce__fault none = {.kind = TIERCE__FAULT_NONE};
    for (int i = 0; i < TIERCE__RPC_COUNT; i++)
        put(faults, i, &none);
}

/* Returns whether the number after the last '_' equals `at_call`. */
static bool is_call(const char *trace_id, int32_t at_call)
{
    const char *underscore = strrchr(trace_id, '_');
    char *end;
    if (underscore == NULL || underscore[1] == '\0')
        return false;
    long number = strtol(underscore + 1, &end, 10);
    return *end == '\0' && number == at_call;
}

struct tierce__fault tierce__faults_meet(struct tierce__faults *faults, const char *api_name,
                                         const char *trace_id)
{
    struct tierce__fault none = {.kind = TIERCE__FAULT_NONE}, met;
    if (atomic_load_explicit(&faults->count, memory_order_relaxed) == 0)
        return none;
    int rpc = find_rpc(api_name);
    if (rpc < 0)
        return none;
    tierce__lock_take(&faults->lock);
    TIERCE_ASSERT(rpc < TIERCE__RPC_COUNT);
    met = faults->faults[rpc];
    tierce__lock_drop(&faults->lock);
    return met.once && !is_call(trace_id, met.at_call) ? none : met;
}
