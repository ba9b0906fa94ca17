/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/paged_private.h"
#include "base/assert.h"

#include <limits.h>
#include <stdatomic.h>

/* Best first. The last one runs everywhere, so a choice always exists. */
static const struct tierce__kernel *const kernels[] = {
#if defined(__x86_64__)
    &tierce__kernel_avx512,
    &tierce__kernel_avx2,
#endif
#if defined(__aarch64__)
    &tierce__kernel_neon,
#endif
    &tierce__kernel_portable,
};

enum { KERNEL_COUNT = sizeof(kernels) / sizeof(kernels[0]) };

/* NULL until the first use. It points only at constants, and two threads that choose at the same
 * time choose the same kernel, so relaxed order is enough. */
static _Atomic(const struct tierce__kernel *) current;

static const struct tierce__kernel *choose_kernel(void)
{
    unsigned i = 0;
    while (i < KERNEL_COUNT - 1 && !kernels[i]->usable())
        i++;
    TIERCE_DASSERT(kernels[i]->usable());
    return kernels[i];
}

const struct tierce__kernel *tierce__kernel(void)
{
    const struct tierce__kernel *kernel = atomic_load_explicit(&current, memory_order_relaxed);
    if (__builtin_expect(kernel == NULL, 0)) {
        kernel = choose_kernel();
        atomic_store_explicit(&current, kernel, memory_order_relaxed);
    }
    return kernel;
}

const char *tierce__kernel_name(unsigned index)
{
    return index < KERNEL_COUNT ? kernels[index]->name : NULL;
}

bool tierce__kernel_usable(unsigned index)
{
    return index < KERNEL_COUNT && kernels[index]->usable();
}

bool tierce__kernel_force(unsigned index)
{
    if (index != UINT_MAX && !tierce__kernel_usable(index))
        return false;
    const struct tierce__kernel *kernel = index == UINT_MAX ? choose_kernel() : kernels[index];
    atomic_store_explicit(&current, kernel, memory_order_relaxed);
    return true;
}

const char *tierce__kernel_current(void)
{
    return tierce__kernel()->name;
}
