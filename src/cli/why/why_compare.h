/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_WHY_COMPARE_H
#define TIERCE_CLI_WHY_COMPARE_H

#include "base/text/line.h"
#include "cli/why/why_text.h"

/*
 * Two prompts, and the first token at which they differ. A store holds hashes of blocks and no
 * tokens, so it cannot name this token: the operator passes the prompt that was expected to share
 * its beginning (`tierce why --against`). With texts, the likely cause is derived from the bytes at
 * the first difference.
 */

#define TIERCE__WHY_SHOWN 96u /* bytes of a text or value */

struct tierce__why_side {
    const int32_t *tokens; /* [count] */
    size_t count;
    const struct tierce__why_text_source *source; /* NULL: the prompt was given as tokens */
};

struct tierce__why_comparison {
    uint64_t token;          /* the leading tokens that are equal */
    bool is_same, is_prefix; /* equal; equal up to the end of the shorter one */
    /* With texts, for display; "" otherwise. */
    char here[TIERCE__WHY_SHOWN + 1], there[TIERCE__WHY_SHOWN + 1];
    const char *cause; /* or NULL: not recognised */
    char here_value[TIERCE__WHY_SHOWN + 1], there_value[TIERCE__WHY_SHOWN + 1]; /* of the cause */
};

void tierce__why_compare(struct tierce__why_comparison *out, const struct tierce__why_side *here,
                         const struct tierce__why_side *there);

/* Where the hit of an answer ends, and the tokens of its blocks; missing -1: all was found. */
struct tierce__why_place {
    int64_t missing_token;
    uint64_t block_tokens;
};

/* Adds lines of text; or a member "against", with its comma, of a JSON object. */
void tierce__why_compare_text(struct tierce__line *out, const struct tierce__why_comparison *c,
                              const struct tierce__why_place *place);
void tierce__why_compare_json(struct tierce__line *out, const struct tierce__why_comparison *c);

#endif
