/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_WHY_TEXT_H
#define TIERCE_CLI_WHY_TEXT_H

#include "base/text/line.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tierce/status.h>

/*
 * A prompt as text, and where its tokens lie in it. A model's own tokenizer makes the tokens, in a
 * process of python3 (or TIERCE_PYTHON) with the package tokenizers.
 */

struct tierce__why_text_source {
    char *text;      /* heap, NUL-terminated */
    char *ids;       /* heap: the token ids as numbers between spaces */
    int32_t *starts; /* heap: [count] bytes of the text before each token */
    size_t count;
};

/*
 * Makes the tokens of out->text. [in] tokenizer: a model's folder, or a file tokenizer.json;
 * specials: the tokenizer adds its special tokens, as vLLM does with plain prompts and not with
 * rendered chats. Returns an exit status; errors have been printed. Blocks until the process has
 * ended.
 */
TIERCE_MUSTUSE int tierce__why_tokenize(struct tierce__why_text_source *out, const char *tokenizer,
                                        bool specials);
void tierce__why_text_clear(struct tierce__why_text_source *source);

/*
 * Adds lines about the tokens [from, to) of the prompt, of which the first that differs from what
 * is stored is one: the text there, and a part of it that looks as if it differed in each request.
 */
void tierce__why_text_show(struct tierce__line *out, const struct tierce__why_text_source *source,
                           uint64_t from, uint64_t to);

#endif
