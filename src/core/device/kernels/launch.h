/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_LAUNCH_H
#define TIERCE_LAUNCH_H

#include <stdint.h>

/*
 * One launch of the kernel in copy_sum.cu: copies cells of equal size and writes the XXH3-64 of
 * each. Host, device and tests share this description; the driver copies it when the kernel is
 * launched. All addresses are valid on the device.
 */

enum {
    TIERCE__LAUNCH_CELLS = 250, /* the driver accepts 4,096 bytes of parameters */
    TIERCE__LAUNCH_THREADS = 512,
    TIERCE__LAUNCH_BYTES_MAX = 1 << 30, /* of a cell: positions in all cells are 32-bit numbers */
};

#define TIERCE__LAUNCH_KERNEL "tierce__copy_sum"

struct tierce__launch {
    uint64_t sums;  /* address of uint64_t[count] */
    uint32_t bytes; /* of each cell, 1 to TIERCE__LAUNCH_BYTES_MAX */
    uint32_t count;
    /* Multiples of 16 are copied 16 bytes at a time, others byte by byte. */
    uint64_t from[TIERCE__LAUNCH_CELLS], to[TIERCE__LAUNCH_CELLS];
};

#endif
