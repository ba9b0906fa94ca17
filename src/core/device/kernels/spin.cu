/* SPDX-License-Identifier: Apache-2.0 */
/* The first thread of each thread block waits for the time or the release; the other threads wait
 * for it. tools/build_kernels compiles this to spin.ptx; tests compile it as C (kernel_source.h).
 */
#include "core/device/kernels/kernel_source.h"
#include "core/device/kernels/spin.h"

TIERCE__DEVICE bool is_released(uint64_t address)
{
    return address != 0 && tierce__fresh_word((const uint32_t *)(uintptr_t)address) != 0;
}

TIERCE__KERNEL(tierce__spin, struct tierce__spin, TIERCE__SPIN_THREADS)
{
    TIERCE__THREADS(t, TIERCE__SPIN_THREADS)
    {
        uint64_t begin_ns = tierce__kernel_ns();
        while (t == 0 && tierce__kernel_ns() - begin_ns < in.ns && !is_released(in.release))
            continue;
    }
    TIERCE__BARRIER();
}
