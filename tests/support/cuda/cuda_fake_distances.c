/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that computes distances of keys, compiled as C: in a file of its own, which is
 * compiled without fused operations (CMakeLists.txt). */
#include "cuda_fake_private.h"

#include "core/device/kernels/distances.cu"

void fake_distances(const struct tierce__distances_launch *what, uint32_t block, uint32_t blocks)
{
    tierce__key_distances_of(*what, block, blocks);
}
