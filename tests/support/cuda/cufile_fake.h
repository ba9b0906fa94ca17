/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CUFILE_FAKE_H
#define TIERCE_TESTS_CUFILE_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/device/cuda/cufile.h"

/*
 * A libcufile.so.0 over the driver of cuda_fake.h: it reads files into that driver's device memory.
 * A violation (cuda_fake_report) is a call without a current context, a read of a file or into a
 * buffer that is not registered, a read beyond the buffer or that is not aligned to 4096, and a
 * buffer or file that is deregistered while it is read.
 *
 * Thread: any.
 */

#pragma GCC visibility push(default)

/* The nth call from now on fails with this number of cufile.h; a read also with -1: EIO. 0 switches
 * it off. Returns how many calls were made since the last time. */
uint64_t cufile_fake_fail_nth(uint64_t nth, int code);

/* How each read is wrong. */
enum cufile_fake_fault {
    CUFILE_FAKE_RIGHT,
    CUFILE_FAKE_FLIP,  /* one bit in the middle of the read */
    CUFILE_FAKE_SKIP,  /* it reports success, and writes nothing */
    CUFILE_FAKE_SHORT, /* it reads 4096 bytes, and reports that */
};
void cufile_fake_set_fault(enum cufile_fake_fault fault);

/* While held, reads do not return. */
void cufile_fake_hold(bool held);

struct cufile_fake_counts {
    uint64_t calls, reads, bytes;
    unsigned buffers, files, reading; /* now */
};
struct cufile_fake_counts cufile_fake_counts(void);

#define TIERCE_CUFILE_CALL(name, symbol, result, arguments) result symbol arguments;
#include "core/device/cuda/cufile_calls.def"
#undef TIERCE_CUFILE_CALL

#pragma GCC visibility pop

#endif
