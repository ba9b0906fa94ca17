/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_INPUT_H
#define TIERCE_OPTIMIZER_TRACE_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The bytes of a trace as lines or records: from a file, standard input or memory; plain, gzip or
 * zstd (detected by the first bytes; concatenated streams are one). Lines lie in one buffer and are
 * not copied; at least 64 bytes after them are readable, and the first of these is '
 * ' if the trace ends without one.
 *
 * Threads: one at a time. Blocks on the file.
 */

#define TIERCE__INPUT_WHY_BYTES 256u

struct tierce__input;

/* A line without its end. */
struct tierce__trace_line {
    const char *at; /* [borrow] until the next call */
    size_t length;
    uint64_t number; /* from 1 */
    bool too_long;   /* it is longer than the limit; `at` and `length` are invalid */
    bool cut;        /* the trace ends in it, without a line end */
};

/*
 * Opens a file ("-": standard input), or `size` bytes of memory, or a source (trace.h), which are
 * [borrow]ed until close.
 * Errors, *out untouched, `why` a sentence: negative errno, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__input_open(struct tierce__input **out, const char *path,
                                      size_t line_bytes_max, char why[TIERCE__INPUT_WHY_BYTES]);
TIERCE_MUSTUSE int tierce__input_open_memory(struct tierce__input **out, const void *data,
                                             size_t size, size_t line_bytes_max,
                                             char why[TIERCE__INPUT_WHY_BYTES]);

struct tierce__trace_source;
TIERCE_MUSTUSE int tierce__input_open_source(struct tierce__input **out,
                                             const struct tierce__trace_source *source,
                                             size_t line_bytes_max,
                                             char why[TIERCE__INPUT_WHY_BYTES]);

/* NULL is accepted. */
void tierce__input_close(struct tierce__input *input);

/* Reads the next line: returns 1; 0 at the end; or an error as below. "\r
 * " ends a line as "
 * " does. */
TIERCE_MUSTUSE int tierce__input_line(struct tierce__input *input, struct tierce__trace_line *line);

/*
 * Peeks at the next bytes: at least `wanted`, or all that are left. [borrow]ed until the next call.
 * Errors, which later calls repeat: negative errno of the file, TIERCE_E_FORMAT (a damaged
 * compressed stream), TIERCE_E_LIMIT (`wanted` exceeds the length limit of a line), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__input_peek(struct tierce__input *input, const char **at, size_t *length,
                                      size_t wanted);

/* Consumes peeked bytes. */
void tierce__input_take(struct tierce__input *input, size_t length);

/* The reason of an error, as a sentence; "" if there was none. */
const char *tierce__input_error(const struct tierce__input *input);

/* Bytes read from the file, and its length, 0 if unknown. */
uint64_t tierce__input_position(const struct tierce__input *input, uint64_t *length);

#endif
