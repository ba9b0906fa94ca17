/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_WHY_TEXT_H
#define TIERCE_CLI_WHY_TEXT_H

#include "base/text/line.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tierce/status.h>

/*
 * A prompt as text, and the position of each token in it. The model's own tokenizer converts the
 * text, in a python3 process (or TIERCE_PYTHON) with the package tokenizers.
 */

struct tierce__why_text_source {
    char *text;      /* heap, NUL-terminated */
    char *ids;       /* heap: the token ids as numbers between spaces */
    int32_t *starts; /* heap: [count] offset of each token in the text, in bytes */
    size_t count;
};

/*
 * Converts out->text to tokens. [in] tokenizer: a model's folder, or a file tokenizer.json.
 * [in] path: of the text, for errors. [in] specials: the tokenizer adds its special tokens, as vLLM
 * does for plain prompts but not for rendered chats. Returns an exit status; errors have been
 * printed. Blocks until the process has ended.
 */
TIERCE_MUSTUSE int tierce__why_tokenize(struct tierce__why_text_source *out, const char *tokenizer,
                                        const char *path, bool specials);
void tierce__why_text_clear(struct tierce__why_text_source *source);

/*
 * Adds lines about tokens [from, to) of the prompt, which contain the first token that is not
 * stored: their text, and any value in it that may differ in each request.
 */
void tierce__why_text_show(struct tierce__line *out, const struct tierce__why_text_source *source,
                           uint64_t from, uint64_t to);

#endif
