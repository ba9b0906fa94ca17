/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kernel_choice.h"
#include "base/assert.h"

#include <stddef.h>

const char *tierce__kernel_name(const struct tierce__kernel_choice *choice, unsigned index)
{
    return index < choice->count ? choice->kernels[index]->name : NULL;
}

bool tierce__kernel_usable(const struct tierce__kernel_choice *choice, unsigned index)
{
    return index < choice->count && choice->kernels[index]->usable();
}

static const struct tierce__kernel_head *use(struct tierce__kernel_choice *choice, unsigned index)
{
    atomic_store_explicit(&choice->in_use, choice->kernels[index], memory_order_relaxed);
    return choice->kernels[index];
}

const struct tierce__kernel_head *tierce__kernel_choose(struct tierce__kernel_choice *choice)
{
    unsigned best = 0;
    while (best < choice->count - 1 && !choice->kernels[best]->usable())
        best++;
    TIERCE_DASSERT(choice->kernels[best]->usable());
    return use(choice, best);
}

bool tierce__kernel_force(struct tierce__kernel_choice *choice, unsigned index)
{
    if (index == UINT_MAX)
        tierce__kernel_choose(choice);
    else if (tierce__kernel_usable(choice, index))
        use(choice, index);
    else
        return false;
    return true;
}
