/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_BLOCK_ANSWERS_H
#define TIERCE_ENGINE_BLOCK_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/key.h>

#include "base/list.h"
#include "base/map.h"

/*
 * Lookup answers for single blocks: a table of fixed size from keys to answers. A lookup of an
 * unknown key adds a question to a queue; another thread queries the tiers for it.
 *
 * An answer is valid for keep_ns. A question without an answer after ask_ns is a miss, so that its
 * caller does not repeat it forever; a late answer is still used. A block whose load failed is a
 * miss for failed_ns, so that the same load is not repeated at once.
 *
 * When the table is full, a new key replaces the oldest entry if its answer was returned once or is
 * out of date. Otherwise the new key is a miss: an answer must not be dropped before its caller has
 * repeated the lookup, or the same question would be asked again and again.
 *
 * Thread: one at a time.
 */

struct tierce__block_key {
    uint8_t hash[TIERCE_HASH_BYTES];
    uint32_t view; /* index of the view */
};

enum tierce__block_found { TIERCE__BLOCK_MISS, TIERCE__BLOCK_HIT, TIERCE__BLOCK_RETRY };

struct tierce__answers_limits {
    uint32_t count_max;
    uint64_t ask_ns;    /* a question without an answer is a miss after this time */
    uint64_t keep_ns;   /* how long an answer is valid */
    uint64_t failed_ns; /* how long a block whose load failed is a miss */
};

struct tierce__block_answer;

struct tierce__block_answers {
    struct tierce__answers_limits limits;
    struct tierce__block_answer *entries; /* [limits.count_max] */
    uint32_t used;                        /* entries [0, used) are in use */
    struct tierce__map map;
    struct tierce__list ages;   /* entries in use, ordered by their latest question or answer */
    struct tierce__list to_ask; /* questions that no thread has taken */
    uint64_t crowded;           /* misses because the table was full */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__answers_init(struct tierce__block_answers *answers,
                                        const struct tierce__answers_limits *limits);

/* A zeroed struct is accepted. */
void tierce__answers_fini(struct tierce__block_answers *answers);

/* Returns RETRY if the question is in the queue, or was taken and has no answer yet. */
enum tierce__block_found tierce__answers_find(struct tierce__block_answers *answers,
                                              const struct tierce__block_key *key, uint64_t now_ns);

/* Takes the next question from the queue; false: there is none. Questions that are overdue are
 * dropped. */
bool tierce__answers_next(struct tierce__block_answers *answers, struct tierce__block_key *key,
                          uint64_t now_ns);

/* Sets the answer to a question that was taken. Ignored if a newer answer exists. */
void tierce__answers_tell(struct tierce__block_answers *answers,
                          const struct tierce__block_key *key, bool held, uint64_t now_ns);

/* Sets the answer for a block after a transfer: it is held, or it cannot be loaded. */
void tierce__answers_note(struct tierce__block_answers *answers,
                          const struct tierce__block_key *key, bool held, uint64_t now_ns);

#endif
