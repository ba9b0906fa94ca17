/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KERNEL_SPIN_H
#define TIERCE_KERNEL_SPIN_H

#include <stddef.h>
#include <stdint.h>

/*
 * The kernel in spin.cu: takes a given time, and computes nothing. It stands for the work of an
 * inference engine in benchmarks and tests. Tierce itself does not contain it.
 */

enum { TIERCE__SPIN_THREADS = 256 };

#define TIERCE__SPIN_KERNEL "tierce__spin"

struct tierce__spin {
    uint64_t ns;      /* the longest time */
    uint64_t release; /* address of a uint32_t: the kernel ends when it is not 0; 0: no address */
};

/* spin.ptx, NUL-terminated: the driver compiles it for its device. */
extern const unsigned char tierce__spin_ptx[];
extern const size_t tierce__spin_ptx_size;

#endif
