/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_ANSWER_H
#define TIERCE_ENGINE_WHY_ANSWER_H

#include "base/text/line.h"
#include "net/control/control.h"
#include "engine/why/why_prompt.h"

#include <tierce/why.h>

/*
 * The answer to an operator's question why a prompt is not found. An engine answers for itself;
 * `tierce why` answers for a store folder. Thread: any.
 */

struct tierce__answer {
    const char *ns_text;
    const uint8_t *ns_digest;
    struct tierce_shard shard;
    struct tierce__naming naming;
    uint64_t tokens;      /* of the prompt */
    uint64_t blocks;      /* whole blocks of it */
    uint64_t held_blocks; /* the leading blocks that are stored */
    bool is_folder;       /* of a store folder, which does not record removed chunks */
    bool later;           /* chunks after the first missing one are stored */
    struct tierce_miss miss;
    uint64_t now_s; /* wall clock */
};

/* The answer as lines of text, and as one JSON object, which holds these lines as "text". */
void tierce__why_text(struct tierce__line *out, const struct tierce__answer *answer);
void tierce__why_json(struct tierce__line *out, const struct tierce__answer *answer);

/*
 * Asks an engine. Errors: as of tierce__prompt_namespace and tierce_why, with `why` filled; the
 * answer borrows from the engine.
 */
TIERCE_MUSTUSE int tierce__why_ask(struct tierce__answer *out, struct tierce_engine *engine,
                                   const struct tierce__prompt *prompt,
                                   char why[TIERCE__PROMPT_WHY_BYTES]);

/*
 * The page /why of the control socket, for an engine as `arg`: POST with token ids as the body and
 * ?namespace= (the beginning of a digest), ?shard=, ?salt= and ?lora= (hex); or ?hash= (the
 * beginning of a chunk's). Answers JSON.
 */
void tierce__why_page(void *arg, const struct tierce__control_query *query,
                      struct tierce__control_answer *answer);

#endif
