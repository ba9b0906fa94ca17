/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_BRANCHES_H
#define TIERCE_ENGINE_WHY_BRANCHES_H

#include "base/json/json_write.h"
#include "base/text/line.h"
#include "store/tier.h"

/*
 * The branches of a prompt at a chunk that was never stored: stored chunks that follow the same
 * prefix with other tokens. If such chunks exist, the prompt diverges from stored prompts there. If
 * not, no stored prompt is longer. A store has hashes of token blocks and no tokens, so only the
 * block of the difference is known. Memory and disk are searched. Thread: any.
 */

struct tierce__answer;
struct tierce_chain;
struct tierce_view;

#define TIERCE__BRANCHES_MAX 64u

/* Of an answer whose reason is NEVER_STORED. */
struct tierce__branches {
    bool known;                    /* they were searched */
    uint64_t from_block, to_block; /* the prompt diverges in one of these blocks */
    uint32_t count;      /* branches with different first blocks; at most TIERCE__BRANCHES_MAX */
    uint32_t other_root; /* the number of these branches at the beginning of prompts with another
                            chain root */
};

/* Searches the branches at out->miss.block, in a view that is open. */
void tierce__branches_find(struct tierce__answer *out, struct tierce_view *view,
                           const struct tierce_chain *chain);

/* The result as lines of text, and as members of a JSON object; nothing if the branches were not
 * searched. */
void tierce__branches_text(struct tierce__line *out, const struct tierce__answer *answer);
void tierce__branches_json(struct tierce__json_write *out, const struct tierce__answer *answer);

#endif
