/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
/* The instructions of lossless_kernel_avx512.c, whose table says whether a machine has them. */
#define KERNEL_ATTRIBUTE                                                                           \
    __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi2,popcnt")))
#define QUANTIZE_KERNEL tierce__quantize_avx512
#include "core/codec/quantize_loops.h"
#endif
