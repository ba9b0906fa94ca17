/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_ACCESS_LOG_H
#define TIERCE_ENGINE_ACCESS_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/log/line_log.h"

/*
 * The access log (docs/inside/format/trace.md): a line for each lookup and store, so that `tierce
 * optimize` can compute the hits of other caches.
 *
 *     rc = tierce__access_open(&log, path, bytes_max);
 *     tierce__access_begin(log, &line, "lookup", &what);      // log NULL: nothing
 *     tierce__access_end(log, &line, tiers, tier_count);      // or tierce__line_clear
 *     tierce__line_log_close(log);
 *
 * The file and PATH.1 together never exceed bytes_max.
 *
 * Threads: any; a line belongs to one at a time.
 */

/* Creates or appends to a regular file, mode 0600. Errors, *out untouched: negative errno; -EINVAL:
 * no regular file; -EBUSY: another engine writes it. */
TIERCE_MUSTUSE int tierce__access_open(struct tierce__line_log **out, const char *path,
                                       uint64_t bytes_max);

struct tierce__access_what {
    const uint8_t *ns_digest; /* [TIERCE_HASH_BYTES] */
    const uint8_t *hashes;    /* [count][TIERCE_HASH_BYTES] of blocks */
    uint64_t count;
    uint64_t request; /* the caller's name for the request (its session); 0: none */
    uint64_t held;    /* leading blocks that the inference engine holds itself; 0 for a store */
    uint32_t block_tokens;
};

/* Begins a line with the present time. [borrow for the call] what. If log is NULL, or without
 * memory, the line is empty, and later calls for it do nothing. */
void tierce__access_begin(struct tierce__line_log *log, struct tierce__line *line, const char *op,
                          const struct tierce__access_what *what);

struct tierce__access_tier {
    const char *name; /* plain ASCII letters */
    uint64_t blocks;
};

/* Adds a tag, once; NULL adds none. See TIERCE_TAG_BYTES_MAX. */
void tierce__access_tag(struct tierce__line *line, const char *tag);

/* Hands the line over. At most 8 tiers. */
void tierce__access_end(struct tierce__line_log *log, struct tierce__line *line,
                        const struct tierce__access_tier *tiers, size_t tier_count);

#endif
