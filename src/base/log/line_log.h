/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LINE_LOG_H
#define TIERCE_BASE_LINE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/text/line.h"

/*
 * A log of lines (events, accesses, metrics) that a thread writes to a file and sends to
 * subscribers.
 *
 *     rc = tierce__line_log_open(&log, &(struct tierce__line_log_opts){...}, why);
 *     tierce__line_put(&line, "text");
 *     tierce__line_end(&line, log);
 *     tierce__line_log_close(log);
 *
 * Lines go through a queue of fixed size; adding one never waits for a device and allocates
 * nothing. Lines that do not fit or cannot be written are dropped and counted; the first failure is
 * logged. Before the file grows beyond its limit it is rotated: "x.log" becomes "x.log.1",
 * "x.log.1" becomes "x.log.2", and the oldest file is lost.
 *
 * Threads: any.
 */

struct tierce__line_log;

struct tierce__line_log_opts {
    size_t size;
    const char *path;         /* NULL: subscribers only */
    uint64_t file_bytes_max;  /* 0: 256 MiB */
    uint32_t files;           /* rotated files that are kept; 0: 4 */
    uint64_t queue_bytes_max; /* twice in memory; 0: 8 MiB */
    uint32_t wait_ms;         /* how long lines may wait to be written together; 0: they are written
                                 immediately */
    bool is_alone;            /* requires a regular file that no other process writes; sets its mode
                               * to 0600 and terminates the last line if a killed writer cut it */
    const char *failure;      /* [borrow until close] the event that logs a failure to write */
};

/* Creates the file, mode 0600, or appends to it. Errors, `why` in words: -ENOMEM, other negative
 * errno; -EINVAL, -EBUSY: not alone. */
TIERCE_MUSTUSE int tierce__line_log_open(struct tierce__line_log **out,
                                         const struct tierce__line_log_opts *opts, char why[256]);
/* Writes the queued lines and closes the log. NULL is accepted. */
void tierce__line_log_close(struct tierce__line_log *log);

/* Queues `text`, which ends with a newline. False: dropped. A NULL log drops every line. */
bool tierce__line_log_add(struct tierce__line_log *log, const char *text, size_t bytes);

/* Ends a formatted line with a newline, queues it and frees its memory. A line that could not be
 * formatted for lack of memory is dropped. */
void tierce__line_end(struct tierce__line *line, struct tierce__line_log *log);

/* Returns whether a file or a subscriber receives lines; if not, callers need not format them. */
bool tierce__line_log_is_read(const struct tierce__line_log *log);

/* Subscribes `each`. It is called on the log's thread with whole lines, and, while there are none,
 * with 0 bytes about every `wait_ms` (0: once a second), until it returns false. The last call,
 * when subscriptions end or the log closes, passes NULL. Errors: -ENOMEM. */
typedef bool (*tierce__line_log_fn)(void *arg, const char *lines, size_t bytes);
TIERCE_MUSTUSE int tierce__line_log_subscribe(struct tierce__line_log *log,
                                              tierce__line_log_fn each, void *arg);

/* Ends all subscriptions; a later one ends within `wait_ms` (0: a second). NULL is accepted. */
void tierce__line_log_end_subscribers(struct tierce__line_log *log);

/* The number of lines handed over so far, and how many of them were dropped. NULL has none. */
void tierce__line_log_counts(struct tierce__line_log *log, uint64_t *lines, uint64_t *dropped);

#endif
