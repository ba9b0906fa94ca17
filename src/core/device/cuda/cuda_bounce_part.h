/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_BOUNCE_PART_H
#define TIERCE_CUDA_BOUNCE_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The argument of the host function of cuda_bounce.c. The simulated driver of the tests reads it,
 * to know which memory the function accesses. */

struct tierce__bounce_piece {
    uint8_t *cells;
    size_t bytes;
};

/* The pieces follow each other in the buffer, from its start. */
struct tierce__bounce_part {
    uint8_t *buffer;
    bool to_cells;
    size_t count;
    const struct tierce__bounce_piece *pieces; /* [count] */
};

#endif
