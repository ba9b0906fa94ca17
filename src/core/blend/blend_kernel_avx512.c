/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#define KERNEL_ATTRIBUTE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define BLEND_KERNEL     tierce__blend_avx512
#define KERNEL_NAME      "avx512"
#define KERNEL_USABLE                                                                              \
    __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                     \
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
#include "core/blend/blend_loops.h"
#endif
