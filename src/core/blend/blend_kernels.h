/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BLEND_KERNELS_H
#define TIERCE_BLEND_KERNELS_H

#include <stdbool.h>

/* The kernels of this build, best first, ending with "portable"; NULL past the end. */
const char *tierce__blend_kernel_name(unsigned index);
bool tierce__blend_kernel_usable(unsigned index);
/* Forces kernel `index` for tests and benchmarks (UINT_MAX: choose again). Returns false if the
 * machine cannot run it. Must not be called while other threads rotate or compare keys. */
bool tierce__blend_kernel_force(unsigned index);

#endif
