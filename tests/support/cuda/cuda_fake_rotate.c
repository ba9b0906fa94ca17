/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that rotates keys, compiled as C: in a file of its own, which is compiled without
 * fused operations (CMakeLists.txt). */
#include "cuda_fake_private.h"

#include "core/device/kernels/rotate.cu"

void fake_rotate(const struct tierce__rotate_launch *what, uint32_t block, uint32_t blocks)
{
    tierce__rotate_keys(*what, block, blocks);
}
