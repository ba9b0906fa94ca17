/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_REQUEST_H
#define TIERCE_ENGINE_WHY_REQUEST_H

#include "base/text/line.h"
#include "engine/why/why_prompt.h"

#include <tierce/why.h>

/*
 * The answer to an operator's question why the hit of a served request was not longer. Thread: any.
 */

/* Adds one JSON object; its member "text" holds lines of text. Errors: TIERCE_E_MISS (no such
 * request is remembered), with `why` filled. */
TIERCE_MUSTUSE int tierce__why_request(struct tierce__line *json, struct tierce_engine *engine,
                                       const char *name, char why[TIERCE__PROMPT_WHY_BYTES]);

#endif
