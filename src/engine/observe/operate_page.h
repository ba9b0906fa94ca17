/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OPERATE_PAGE_H
#define TIERCE_ENGINE_OPERATE_PAGE_H

#include "base/text/line.h"
#include "net/control/control.h"

#include <tierce/engine.h>

/* The pages of the control socket that change an engine, which is `arg`. */

/* POST /mode?set=NAME, or without set; answers the mode. */
void tierce__mode_page(void *arg, const struct tierce__control_query *query,
                       struct tierce__control_answer *answer);

/* POST /clear?tier=NAME&namespace=HEX (the beginning of a digest), both or neither; answers the
 * number of chunks that left. */
void tierce__clear_page(void *arg, const struct tierce__control_query *query,
                        struct tierce__control_answer *answer);

/* POST /backfill, /backfill?do=start[&rate=SIZE] (bytes per second) or /backfill?do=stop. Answers
 * the progress as a JSON object. */
void tierce__backfill_page(void *arg, const struct tierce__control_query *query,
                           struct tierce__control_answer *answer);

/* A JSON array of the namespaces that the engine knows, with their digests and texts. */
void tierce__put_namespaces(struct tierce_engine *engine, struct tierce__line *out);

#endif
