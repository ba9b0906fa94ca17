/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BLEND_KERNELS_H
#define TIERCE_BLEND_KERNELS_H

#include "base/kernel_choice.h"

/* For tests and benchmarks. */
extern struct tierce__kernel_choice tierce__blend_kernels;

#endif
