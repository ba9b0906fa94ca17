/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_WRITE_H
#define TIERCE_OPTIMIZER_TRACE_WRITE_H

#include "optimizer/trace/trace.h"

#include <stdio.h>

/*
 * Writes requests in one of the writable formats: access, csv, kvcm-schema, mooncake. Data that a
 * format cannot express is omitted and counted; tierce__trace_writer_lost lists it.
 *
 * Threads: one at a time.
 */

struct tierce__trace_writer;

/*
 * [borrow] file until destroy. `renumber`: blocks get numbers from 0 in the order of their first
 * use, which keeps blocks of several instances distinct in a format without instances. Errors, *out
 * untouched: TIERCE_E_ARGUMENT (no format of that name can be written), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__trace_writer_create(struct tierce__trace_writer **out, FILE *file,
                                               const char *format, bool renumber);

/* NULL is accepted. */
void tierce__trace_writer_destroy(struct tierce__trace_writer *writer);

/*
 * Writes a request of `instance`. Write errors are reported by ferror. Errors: TIERCE_E_UNSUPPORTED
 * (a second instance, in a format without them and without `renumber`), TIERCE_E_LIMIT (more
 * different blocks than 2^32), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__trace_writer_put(struct tierce__trace_writer *writer,
                                            const struct tierce__trace_request *request,
                                            const char *instance);

/* The number of lines written. */
uint64_t tierce__trace_writer_lines(const struct tierce__trace_writer *writer);

/* Describes the next kind of omitted data from *index on, as a sentence of at most `size` - 1
 * bytes, and advances *index; false if there are no more. */
bool tierce__trace_writer_loss(const struct tierce__trace_writer *writer, size_t *index, char *out,
                               size_t size);

/* The names of the writable formats by index; NULL past the end. */
const char *tierce__trace_writer_format(size_t index);

#endif
