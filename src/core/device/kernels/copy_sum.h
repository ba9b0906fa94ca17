/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_COPY_SUM_H
#define TIERCE_COPY_SUM_H

#include <stddef.h>

/* copy_sum.ptx, NUL-terminated: the driver compiles it for its device. */
extern const unsigned char tierce__copy_sum_ptx[];
extern const size_t tierce__copy_sum_ptx_size;

#endif
