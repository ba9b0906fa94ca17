/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#define KERNEL_ATTRIBUTE __attribute__((target("avx2")))
#define BLEND_KERNEL     tierce__blend_avx2
#define KERNEL_NAME      "avx2"
#define KERNEL_USABLE    __builtin_cpu_supports("avx2")
#include "core/blend/blend_loops.h"
#endif
