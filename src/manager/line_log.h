/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LINE_LOG_H
#define TIERCE_MANAGER_LINE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/line.h"

/*
 * A log of lines (events, accesses, metrics) that a thread writes to a file and sends to
 * subscribers. Adding a line never blocks; when the queue is full, lines are dropped and counted. A
 * file that reaches its size limit is rotated: "x.log" becomes "x.log.1", and so on.
 *
 * Threads: any.
 */

struct tierce__line_log;

struct tierce__line_log_opts {
    size_t size;
    const char *path;         /* NULL: subscribers only */
    uint64_t file_bytes_max;  /* 0: 256 MiB */
    uint32_t files;           /* rotated files that are kept; 0: 4 */
    uint64_t queue_bytes_max; /* 0: 8 MiB */
};

/* Errors, `why` in words: negative errno (the file, a thread), -ENOMEM. */
TIERCE_MUSTUSE int tierce__line_log_open(struct tierce__line_log **out,
                                         const struct tierce__line_log_opts *opts, char why[256]);
/* Writes the queued lines and closes the log. NULL is accepted. */
void tierce__line_log_close(struct tierce__line_log *log);

/* Queues `text`, which ends with a newline. False: dropped. A NULL log drops every line. */
bool tierce__line_log_add(struct tierce__line_log *log, const char *text, size_t bytes);

/* Returns whether a file or a subscriber receives lines; if not, callers need not format them. */
bool tierce__line_log_is_read(const struct tierce__line_log *log);

/* Subscribes `each`. It is called on the log's thread with whole lines, and about once a second
 * with 0 bytes, until it returns false; the last call, when the log closes, passes NULL. Errors:
 * -ENOMEM. */
typedef bool (*tierce__line_log_fn)(void *arg, const char *lines, size_t bytes);
TIERCE_MUSTUSE int tierce__line_log_subscribe(struct tierce__line_log *log,
                                              tierce__line_log_fn each, void *arg);

/* Ends all subscriptions; later subscriptions end at once. NULL is accepted. */
void tierce__line_log_end_subscribers(struct tierce__line_log *log);

void tierce__line_log_counts(struct tierce__line_log *log, uint64_t *lines, uint64_t *dropped);

/* Queues a formatted line that ends with a newline, and frees its memory. */
void tierce__line_end(struct tierce__line *line, struct tierce__line_log *log);

#endif
