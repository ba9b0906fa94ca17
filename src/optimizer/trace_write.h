/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_WRITE_H
#define TIERCE_OPTIMIZER_TRACE_WRITE_H

#include "optimizer/trace.h"

#include <stdio.h>

/*
 * Writes requests in one of the formats that can be written: mooncake, csv, access. What a format
 * has no place for is left out and counted, and can be told afterwards.
 *
 * Threads: one at a time.
 */

struct tierce__trace_writer;

/*
 * [borrow] file until destroy. `renumber`: blocks get numbers from 0 in the order in which they
 * come, so that those of several instances stay apart in a format without instances.
 * Errors, *out untouched: TIERCE_E_ARGUMENT (no format of that name can be written), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__trace_writer_create(struct tierce__trace_writer **out, FILE *file,
                                               const char *format, bool renumber);

/* NULL is accepted. */
void tierce__trace_writer_destroy(struct tierce__trace_writer *writer);

/*
 * Writes a request of `instance`. Whether the file took it is seen by ferror. Errors:
 * TIERCE_E_UNSUPPORTED (a second instance, in a format without them and without `renumber`),
 * TIERCE_E_LIMIT (more different blocks than 2^32), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__trace_writer_put(struct tierce__trace_writer *writer,
                                            const struct tierce__trace_request *request,
                                            const char *instance);

/* How many lines were written. */
uint64_t tierce__trace_writer_lines(const struct tierce__trace_writer *writer);

/* The next thing that was lost from *index on, which is moved behind it, as a sentence of at most
 * `size` - 1 bytes; false if there is no more. */
bool tierce__trace_writer_loss(const struct tierce__trace_writer *writer, size_t *index, char *out,
                               size_t size);

/* The formats that can be written: name; NULL past the end. */
const char *tierce__trace_writer_format(size_t index);

#endif
