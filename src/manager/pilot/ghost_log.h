/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GHOST_LOG_H
#define TIERCE_MANAGER_GHOST_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The last requests of the sample of a curve, for a replay (trial.h). A ring of words: the oldest
 * requests make room for new ones.
 *
 *     tierce__ghost_log_add(log, &entry);
 *     rc = tierce__ghost_log_copy(&copy, log);
 *     for (size_t at = 0; tierce__ghost_log_next(copy, &at, &entry);)
 *         ...
 *
 * Threads: one at a time.
 */

struct tierce__ghost_log;

struct tierce__ghost_entry {
    int64_t time_us;
    double unit_bytes;        /* that a key of the sample stood for */
    double key_bytes, tokens; /* of each key; as float */
    uint32_t member;          /* of the curve; below 2^16 */
    uint8_t kind;             /* enum tierce__ghost_kind */
    uint32_t count;
    const uint64_t *keys; /* tierce__ghost_key. Next: [borrow until the log changes] */
};

/* The longest request that is logged; the rest of a longer one is left out. */
enum { TIERCE__GHOST_LOG_KEYS_MAX = 4096 };

/* `words`: of 8 bytes, at least 8,192. Memory is taken as the log fills. Errors, *out untouched:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__ghost_log_create(struct tierce__ghost_log **out, size_t words);
/* NULL is accepted. */
void tierce__ghost_log_destroy(struct tierce__ghost_log *log);

/* A request for which there is no memory is left out. */
void tierce__ghost_log_add(struct tierce__ghost_log *log, const struct tierce__ghost_entry *entry);
void tierce__ghost_log_clear(struct tierce__ghost_log *log);

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__ghost_log_copy(struct tierce__ghost_log **out,
                                          const struct tierce__ghost_log *log);

/* The next entry, the oldest first; *at is 0 at first. False: there is none. */
bool tierce__ghost_log_next(const struct tierce__ghost_log *log, size_t *at,
                            struct tierce__ghost_entry *out);

#endif
