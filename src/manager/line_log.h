/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LINE_LOG_H
#define TIERCE_MANAGER_LINE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/line.h"

/*
 * Lines that are written to a file by a thread, and told to subscribers: events, accesses, metrics.
 * Whoever adds a line never waits; what does not fit into the queue is dropped and counted. When a
 * file has its size, a new one is begun: "x.log" becomes "x.log.1", and so on.
 *
 * Threads: any.
 */

struct tierce__line_log;

struct tierce__line_log_opts {
    size_t size;
    const char *path;         /* NULL: subscribers only */
    uint64_t file_bytes_max;  /* 0: 256 MiB */
    uint32_t files;           /* old ones that are kept; 0: 4 */
    uint64_t queue_bytes_max; /* 0: 8 MiB */
};

/* Errors, `why` in words: negative errno (the file, a thread), -ENOMEM. */
TIERCE_MUSTUSE int tierce__line_log_open(struct tierce__line_log **out,
                                         const struct tierce__line_log_opts *opts, char why[256]);
/* Writes what is left. NULL is accepted. */
void tierce__line_log_close(struct tierce__line_log *log);

/* `text` with its newline. false: dropped. NULL for the log drops. */
bool tierce__line_log_add(struct tierce__line_log *log, const char *text, size_t bytes);

/* Whether anybody would see a line; else it need not be made. */
bool tierce__line_log_is_read(const struct tierce__line_log *log);

/* Called on the log's thread with whole lines, and once in a while with 0 bytes, until it returns
 * false; at the log's end with NULL. Errors: -ENOMEM. */
typedef bool (*tierce__line_log_fn)(void *arg, const char *lines, size_t bytes);
TIERCE_MUSTUSE int tierce__line_log_subscribe(struct tierce__line_log *log,
                                              tierce__line_log_fn each, void *arg);

/* Ends all subscriptions, and those that come later at once. NULL is accepted. */
void tierce__line_log_end_subscribers(struct tierce__line_log *log);

void tierce__line_log_counts(struct tierce__line_log *log, uint64_t *lines, uint64_t *dropped);

/* Adds a line that was made with its newline, and gives its memory back. */
void tierce__line_end(struct tierce__line *line, struct tierce__line_log *log);

#endif
