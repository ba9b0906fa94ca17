/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels are functions with equal results for different instruction sets. The best one that the
 * machine can run is in use, unless a test or a benchmark forces another one. */
#ifndef TIERCE_BASE_KERNEL_CHOICE_H
#define TIERCE_BASE_KERNEL_CHOICE_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* The first member of every kernel. */
struct tierce__kernel_head {
    const char *name;
    bool (*usable)(void); /* the machine has the instructions. Cheap, any thread */
};

struct tierce__kernel_choice {
    const struct tierce__kernel_head *const *kernels; /* best first; the last one runs everywhere */
    unsigned count;
    _Atomic(const struct tierce__kernel_head *) in_use; /* NULL: not chosen yet */
};

#define TIERCE__KERNEL_CHOICE(array)                                                               \
    {                                                                                              \
        .kernels = (array), .count = sizeof(array) / sizeof((array)[0])                            \
    }

/* The name of kernel `index`, best first, ending with "portable"; NULL past the end. */
const char *tierce__kernel_name(const struct tierce__kernel_choice *choice, unsigned index);

/* The machine can run kernel `index`. */
bool tierce__kernel_usable(const struct tierce__kernel_choice *choice, unsigned index);

/* Uses kernel `index` from now on (UINT_MAX: the best one). False, and no change, if the machine
 * cannot run it. Must not be called while other threads use the kernels. */
bool tierce__kernel_force(struct tierce__kernel_choice *choice, unsigned index);

/* Chooses the best kernel. Use tierce__kernel_in_use. */
const struct tierce__kernel_head *tierce__kernel_choose(struct tierce__kernel_choice *choice);

/* The kernel in use, chosen at the first call. Thread: any. The choice only points at constants,
 * and threads that choose at the same time choose the same one, so relaxed order is enough. */
static inline const struct tierce__kernel_head *
tierce__kernel_in_use(struct tierce__kernel_choice *choice)
{
    const struct tierce__kernel_head *kernel =
        atomic_load_explicit(&choice->in_use, memory_order_relaxed);
    return __builtin_expect(kernel != NULL, 1) ? kernel : tierce__kernel_choose(choice);
}

#endif
