/* SPDX-License-Identifier: Apache-2.0 */
#include "store/await.h"

#include "base/assert.h"
#include "base/clock.h"

void tierce__await_begin(struct tierce__await *await)
{
    atomic_init(&await->left, 1);
}

void tierce__await_expect(struct tierce__await *await)
{
    uint32_t before = atomic_fetch_add_explicit(&await->left, 1, memory_order_relaxed);
    TIERCE_ASSERT(before > 0);
}

/* Whether this was the last share. */
static bool leave(struct tierce__await *await)
{
    uint32_t before = atomic_fetch_sub_explicit(&await->left, 1, memory_order_acq_rel);
    TIERCE_ASSERT(before > 0);
    return before == 1;
}

static void fini_sleep(struct tierce__await *await)
{
    tierce__cond_fini(&await->answered);
    tierce__lock_fini(&await->lock);
}

bool tierce__await_answer(struct tierce__await *await)
{
    if (!leave(await))
        return false;
    tierce__lock_take(&await->lock);
    TIERCE_DASSERT(!await->is_answered);
    await->is_answered = true;
    bool is_abandoned = await->is_abandoned;
    tierce__cond_signal(&await->answered);
    tierce__lock_drop(&await->lock);
    if (is_abandoned)
        fini_sleep(await);
    return is_abandoned;
}

bool tierce__await_end(struct tierce__await *await, uint64_t deadline_ns)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (atomic_load_explicit(&await->left, memory_order_acquire) == 1) /* pairs with leave */
        return true;
    tierce__lock_init(&await->lock, TIERCE__LOCK_TRANSFER);
    tierce__cond_init(&await->answered);
    await->is_answered = await->is_abandoned = false;
    if (!leave(await)) {
        tierce__lock_take(&await->lock);
        bool in_time = true;
        while (!await->is_answered && in_time)
            in_time = tierce__cond_wait(&await->answered, &await->lock, deadline_ns);
        bool is_abandoned = await->is_abandoned = !await->is_answered;
        TIERCE_DASSERT(is_abandoned ||
                       atomic_load_explicit(&await->left, memory_order_relaxed) == 0);
        TIERCE_DASSERT(!is_abandoned || deadline_ns != TIERCE__DEADLINE_NEVER);
        tierce__lock_drop(&await->lock);
        if (is_abandoned)
            return false;
    }
    fini_sleep(await);
    return true;
}
