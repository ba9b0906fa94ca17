/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KERNEL_SOURCE_H
#define TIERCE_KERNEL_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The macros with which a kernel is written, so that nvcc compiles the same source for a GPU, and a
 * test compiles it as C. In C, a thread block is one call, and its threads are a loop that ends at
 * each TIERCE__BARRIER:
 *
 *     TIERCE__KERNEL(name, struct arguments)
 *     {
 *         TIERCE__SHARED uint64_t words[8];
 *         for (...) {                    // the same in all threads of the block
 *             TIERCE__THREADS (thread, 512) {
 *                 ...
 *             }
 *             TIERCE__BARRIER();
 *         }
 *     }
 *
 * Threads share nothing but TIERCE__SHARED and global memory. A thread must not read data that
 * another thread writes between the same two barriers.
 */

#if defined(__CUDACC__)

#define TIERCE__KERNEL(name, arguments, threads)                                                   \
    extern "C" __global__ void __launch_bounds__(threads) name(const arguments in)
#define TIERCE__BLOCK               blockIdx.x
#define TIERCE__BLOCKS              gridDim.x
#define TIERCE__DEVICE              static __device__ __forceinline__
#define TIERCE__CONSTANT            static __constant__ const
#define TIERCE__SHARED              __shared__
#define TIERCE__THREADS(t, threads) for (uint32_t t = threadIdx.x, end_ = t + 1; t < end_; t++)
#define TIERCE__BARRIER()           __syncthreads()
#define TIERCE__ALIGNED(bytes)      __align__(bytes)
#define TIERCE__ROLLED              _Pragma("unroll 1") /* a loop that must not be unrolled */

TIERCE__DEVICE uint64_t tierce__high_product(uint64_t a, uint64_t b)
{
    return __umul64hi(a, b);
}

/* A clock in nanoseconds. */
TIERCE__DEVICE uint64_t tierce__kernel_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* A word that the host may change at any time. */
TIERCE__DEVICE uint32_t tierce__fresh_word(const uint32_t *word)
{
    return *(const volatile uint32_t *)word;
}

#else

#include <time.h>

#define TIERCE__KERNEL(name, arguments, threads)                                                   \
    void name(const arguments in, uint32_t TIERCE__BLOCK, uint32_t TIERCE__BLOCKS);                \
    void name(const arguments in, TIERCE__UNUSED uint32_t TIERCE__BLOCK,                           \
              TIERCE__UNUSED uint32_t TIERCE__BLOCKS)
#define TIERCE__UNUSED   __attribute__((unused)) /* a kernel need not ask where it runs */
#define TIERCE__BLOCK    block_index
#define TIERCE__BLOCKS   block_count
#define TIERCE__DEVICE   static inline
#define TIERCE__CONSTANT static const
#define TIERCE__SHARED
#define TIERCE__THREADS(t, threads) for (uint32_t t = 0; t < (threads); t++)
#define TIERCE__BARRIER()           ((void)0)
#define TIERCE__ALIGNED(bytes)      __attribute__((aligned(bytes)))
#define TIERCE__ROLLED

__extension__ typedef unsigned __int128 tierce__wide;

TIERCE__DEVICE uint64_t tierce__high_product(uint64_t a, uint64_t b)
{
    return (uint64_t)(((tierce__wide)a * b) >> 64);
}

TIERCE__DEVICE uint64_t tierce__kernel_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

TIERCE__DEVICE uint32_t tierce__fresh_word(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

#endif

#endif
