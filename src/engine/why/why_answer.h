/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_ANSWER_H
#define TIERCE_ENGINE_WHY_ANSWER_H

#include "base/json/json_write.h"
#include "base/text/line.h"
#include "net/control/control.h"
#include "engine/why/why_branches.h"
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
    struct tierce__branches branches;
    uint64_t now_s; /* wall clock */
};

/* The answers for a prompt: one for each group of layers of its model. */
struct tierce__answers {
    size_t count;
    struct tierce__answer items[TIERCE__GROUPS_MAX];
    uint64_t tokens;      /* of the prompt */
    uint64_t held_tokens; /* the inference engine can continue after them in every group */
};

/*
 * Fills the answer for the first `tokens` tokens of the prompt in namespace `id`.
 * tierce__why_groups returns its errors.
 */
typedef int tierce__why_ask_fn(void *arg, struct tierce__answer *out, uint32_t id, uint64_t tokens);

/* Calls `ask` for each of the `count` groups, and finds the number of tokens after which all groups
 * can continue. [in] out->tokens. Errors: those of `ask`. */
TIERCE_MUSTUSE int tierce__why_groups(struct tierce__answers *out, const uint32_t *ids,
                                      size_t count, tierce__why_ask_fn *ask, void *arg);

/* The reason of an answer that has one: as lines of text, and as members of a JSON object. */
void tierce__answer_put_reason(struct tierce__line *out, const struct tierce__answer *answer);
void tierce__answer_put_miss(struct tierce__json_write *out, const struct tierce__answer *answer);

/* The answers as lines of text, and as one JSON object whose member "text" holds these lines. */
void tierce__why_text(struct tierce__line *out, const struct tierce__answers *answers);
void tierce__why_json(struct tierce__line *out, const struct tierce__answers *answers);

/*
 * Answers for an engine. Errors: as of tierce__prompt_groups and tierce_why, with `why` filled; the
 * answers borrow from the engine.
 */
TIERCE_MUSTUSE int tierce__why_ask(struct tierce__answers *out, struct tierce_engine *engine,
                                   const struct tierce__prompt *prompt,
                                   char why[TIERCE__PROMPT_WHY_BYTES]);

/*
 * The page /why of the control socket, for an engine as `arg`: POST with token ids as the body and
 * ?namespace= (the beginning of a digest), ?shard=, ?salt= and ?lora= (hex); or ?hash= (the
 * beginning of a chunk's); or ?request= (the name of a served request, or a part of it). Answers
 * JSON.
 */
void tierce__why_page(void *arg, const struct tierce__control_query *query,
                      struct tierce__control_answer *answer);

#endif
