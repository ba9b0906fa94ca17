/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/paged_private.h"

static const struct tierce__kernel_head *const kernels[] = {
#if defined(__x86_64__)
    &tierce__copy_avx512.head,
    &tierce__copy_avx2.head,
#endif
#if defined(__aarch64__)
    &tierce__copy_neon.head,
#endif
    &tierce__copy_portable.head,
};

struct tierce__kernel_choice tierce__copy_kernels = TIERCE__KERNEL_CHOICE(kernels);
