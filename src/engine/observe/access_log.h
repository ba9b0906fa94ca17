/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_ACCESS_LOG_H
#define TIERCE_ENGINE_ACCESS_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/line.h"

/*
 * The access log (docs/inside/format/trace.md): a line for each lookup and store, so that `tierce
 * optimize` can compute the hits of other caches.
 *
 *     rc = tierce__access_open(&log, path, bytes_max);
 *     tierce__access_begin(log, &line, "lookup", &what);      // log NULL: nothing
 *     tierce__access_end(log, &line, tiers, tier_count);      // or tierce__access_drop
 *     tierce__access_close(log);
 *
 * Lines go through a bounded buffer to a thread that writes them. Only open and close wait for a
 * device. Lines that do not fit or cannot be written are dropped and counted. When the file has
 * grown to half of bytes_max, it is renamed to PATH.1, whose old lines are lost, and a new file
 * begins; so both together never exceed bytes_max.
 *
 * Threads: any; a line belongs to one at a time.
 */

struct tierce__access_log;

/* Creates or appends to a regular file, mode 0600. Errors, *out untouched: negative errno; -EINVAL:
 * no regular file; -EBUSY: another engine writes it. */
TIERCE_MUSTUSE int tierce__access_open(struct tierce__access_log **out, const char *path,
                                       uint64_t bytes_max);

/* Writes the buffered lines; blocks meanwhile. NULL is accepted. */
void tierce__access_close(struct tierce__access_log *log);

struct tierce__access_what {
    const uint8_t *ns_digest; /* [TIERCE_HASH_BYTES] */
    const uint8_t *hashes;    /* [count][TIERCE_HASH_BYTES] of blocks */
    uint64_t count;
    uint64_t request; /* the caller's name for the request (its session); 0: none */
    uint64_t held;    /* leading blocks that the inference engine holds itself; 0 for a store */
    uint32_t block_tokens;
};

/* A line that is not finished; zeroed: none. */
struct tierce__access_line {
    struct tierce__line text; /* with room for the whole line */
};

/* Begins a line with the present time. [borrow for the call] what. If log is NULL, or without
 * memory, the line is empty, and later calls for it do nothing. */
void tierce__access_begin(struct tierce__access_log *log, struct tierce__access_line *line,
                          const char *op, const struct tierce__access_what *what);

struct tierce__access_tier {
    const char *name; /* plain ASCII letters */
    uint64_t blocks;
};

/* Adds a tag, once; NULL adds none. See TIERCE_TAG_BYTES_MAX. */
void tierce__access_tag(struct tierce__access_line *line, const char *tag);

/* Hands the line over. At most 8 tiers. */
void tierce__access_end(struct tierce__access_log *log, struct tierce__access_line *line,
                        const struct tierce__access_tier *tiers, size_t tier_count);

/* Forgets it. */
void tierce__access_drop(struct tierce__access_line *line);

/* Lines handed over so far, and those of them that were dropped. NULL has none. */
void tierce__access_counts(struct tierce__access_log *log, uint64_t *lines, uint64_t *dropped);

#endif
