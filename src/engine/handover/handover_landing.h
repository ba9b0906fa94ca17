/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_LANDING_H
#define TIERCE_HANDOVER_LANDING_H

#include "engine/view.h"

/*
 * A chunk that another engine has written to this engine's memory: checks against its name alone,
 * because the prompt is not known here. Each later load compares the header with its prompt.
 *
 * Thread: any.
 */

/* Whether an object of `bytes` can be a chunk of the view, whole or partial. */
bool tierce__landing_fits(const struct tierce_view *view, uint64_t bytes);

/* Room for it; NULL: memory has none. */
struct tierce__buf *tierce__landing_reserve(struct tierce_view *view, const struct tierce__key *key,
                                            uint64_t bytes);

/* All bytes are there: verifies header and cells, and publishes the chunk in memory. Errors:
 * TIERCE_E_FORMAT, TIERCE_E_VERSION, TIERCE_E_LIMIT, TIERCE_E_IDENTITY, TIERCE_E_CHECKSUM (the
 * bytes are not that chunk; counted), those of the memory tier. */
TIERCE_MUSTUSE int tierce__landing_publish(struct tierce_view *view, const struct tierce__key *key,
                                           struct tierce__buf *buf);

#endif
