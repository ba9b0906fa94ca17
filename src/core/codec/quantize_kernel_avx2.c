/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
/* The instructions of lossless_kernel_avx2.c, whose table says whether a machine has them. */
#define KERNEL_ATTRIBUTE __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define QUANTIZE_KERNEL  tierce__quantize_avx2
#include "core/codec/quantize_loops.h"
#endif
