/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_filling.h"

#include <string.h>

#include "base/assert.h"

void tierce__filling_init(struct tierce__filling *filling, uint64_t from, uint64_t end)
{
    TIERCE_ASSERT(from < end);
    filling->end = end;
    filling->count = 1;
    filling->runs[0] = (struct tierce__filling_run){from, from, from};
}

/* Where a run ends at the latest. */
static uint64_t end_of(const struct tierce__filling *filling, uint32_t i)
{
    return i + 1 < filling->count ? filling->runs[i + 1].from : filling->end;
}

/* Of bytes that no run has reached. */
static void add_run(struct tierce__filling *filling, uint64_t from, uint64_t to)
{
    uint32_t at = filling->count;
    if (at == TIERCE__FILLING_MAX)
        return;
    while (filling->runs[at - 1].from > from)
        at--;
    struct tierce__filling_run *run = &filling->runs[at];
    memmove(run + 1, run, (filling->count - at) * sizeof(*run));
    filling->count++;
    uint64_t end = end_of(filling, at);
    *run = (struct tierce__filling_run){from, to < end ? to : end, from};
    TIERCE_DASSERT(run[-1].ready < from && from < run->ready);
}

void tierce__filling_note(struct tierce__filling *filling, uint64_t from, uint64_t to)
{
    bool is_in_run = false;
    TIERCE_ASSERT(filling->runs[0].from <= from && from < to && to <= filling->end);
    for (uint32_t i = 0; i < filling->count; i++) {
        struct tierce__filling_run *run = &filling->runs[i];
        uint64_t end = end_of(filling, i), until = to < end ? to : end;
        if (run->ready < from || to < run->from)
            continue;
        is_in_run |= run->from <= from;
        run->ready = run->ready > until ? run->ready : until;
    }
    if (!is_in_run)
        add_run(filling, from, to);
}

bool tierce__filling_has(const struct tierce__filling *filling)
{
    for (uint32_t i = 0; i < filling->count; i++)
        if (filling->runs[i].sent < filling->runs[i].ready)
            return true;
    return false;
}

uint64_t tierce__filling_take(struct tierce__filling *filling, uint64_t *offset, uint64_t max)
{
    TIERCE_DASSERT(max > 0);
    for (uint32_t i = 0; i < filling->count; i++) {
        struct tierce__filling_run *run = &filling->runs[i];
        uint64_t left = run->ready - run->sent, length = left < max ? left : max;
        if (left == 0)
            continue;
        *offset = run->sent;
        run->sent += length;
        return length;
    }
    return 0;
}
