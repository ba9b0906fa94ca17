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
 * What is known of single blocks: a table of fixed size from keys to answers. An unknown key joins
 * a queue of questions, which another thread asks the tiers.
 *
 * An answer is good for some time. A question that is not answered in time counts as a miss, so
 * that nobody repeats it for ever; its late answer is still used. A load that failed makes its
 * block a miss for longer, or the same load would be tried again at once.
 *
 * When the table is full, the oldest answer that was told once, or is out of date, makes room. If
 * there is none, a new key is a miss: an answer that is given up before its reader has come back
 * would be asked for again and again.
 *
 * Thread: one at a time.
 */

struct tierce__block_key {
    uint8_t hash[TIERCE_HASH_BYTES];
    uint32_t view; /* index: which of several views */
};

enum tierce__block_found { TIERCE__BLOCK_MISS, TIERCE__BLOCK_HIT, TIERCE__BLOCK_RETRY };

struct tierce__answers_limits {
    uint32_t count_max;
    uint64_t ask_ns;    /* a question without an answer is a miss after this time */
    uint64_t keep_ns;   /* how long an answer is good */
    uint64_t failed_ns; /* how long a block whose load failed is a miss */
};

struct tierce__answer;

struct tierce__answers {
    struct tierce__answers_limits limits;
    struct tierce__answer *entries; /* [limits.count_max] */
    uint32_t used;                  /* of them, the first ones */
    struct tierce__map map;
    struct tierce__list ages;   /* the used ones; the latest answer or question is the last */
    struct tierce__list to_ask; /* questions that no thread has taken */
    uint64_t crowded;           /* misses because there was no room */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__answers_init(struct tierce__answers *answers,
                                        const struct tierce__answers_limits *limits);

/* A zeroed struct is accepted. */
void tierce__answers_fini(struct tierce__answers *answers);

/* RETRY: the question is in the queue, or was taken and has no answer yet. */
enum tierce__block_found tierce__answers_find(struct tierce__answers *answers,
                                              const struct tierce__block_key *key, uint64_t now_ns);

/* Takes the next question from the queue; false: there is none. Questions that are overdue are
 * dropped. */
bool tierce__answers_next(struct tierce__answers *answers, struct tierce__block_key *key,
                          uint64_t now_ns);

/* The answer to a question that was taken. It is ignored if more is known since then. */
void tierce__answers_tell(struct tierce__answers *answers, const struct tierce__block_key *key,
                          bool held, uint64_t now_ns);

/* A transfer has shown that a block is held, or that it cannot be loaded. */
void tierce__answers_note(struct tierce__answers *answers, const struct tierce__block_key *key,
                          bool held, uint64_t now_ns);

#endif
