/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CHOICE_H
#define TIERCE_ENGINE_CHOICE_H

#include "base/json/json_value.h"
#include "proxy/engines.h"

/*
 * Which engine gets a request: the one with the most of its prompt, less `load_tokens` for each
 * request that it has in progress; of equals the one with the least
 * load, and of those the one that was used least recently. Knowledge about prompts comes through
 * `struct tierce__choice`, whatever its source is. Thread: any.
 */

/* The tokens of a prompt that each engine holds, by the engine's index. Zeroed: nothing is known.
 */
struct tierce__choice {
    bool is_known;
    uint32_t tokens[TIERCE__ENGINES_MAX];
};

/* Reads a router index's answer to /query: {"instances": {"3": {"longest_matched": 512}}}. Returns
 * false if it is none. */
bool tierce__choice_read(struct tierce__choice *out, const struct tierce__engines *engines,
                         struct tierce__text answer);

/* An engine that is not down and not among `tried`, bits by index; or NULL. `choice` may be NULL.
 */
struct tierce__engine *tierce__choose(struct tierce__engines *engines,
                                      const struct tierce__choice *choice, uint32_t load_tokens,
                                      uint64_t tried);

#endif
