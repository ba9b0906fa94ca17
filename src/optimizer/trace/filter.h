/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_FILTER_H
#define TIERCE_OPTIMIZER_FILTER_H

#include "optimizer/trace/recording.h"

typedef bool tierce__filter_fn(void *arg, const struct tierce__recorded *request);

/*
 * Makes a sealed recording of the requests for which `keep` returns true, in order and complete.
 * Blocks get new numbers; their ids are the previous numbers. Errors, *out untouched: as
 * tierce__recording_create, _add and _seal.
 */
TIERCE_MUSTUSE int tierce__recording_filter(struct tierce__recording **out,
                                            const struct tierce__recording *recording,
                                            tierce__filter_fn *keep, void *arg, const char *folder);

/*
 * Copies the whole recording and marks exactly the first held[i] blocks of the i-th request as held
 * by the engine. Blocks keep their numbers. Errors: the same.
 */
TIERCE_MUSTUSE int tierce__recording_mark(struct tierce__recording **out,
                                          const struct tierce__recording *recording,
                                          const uint32_t *held, const char *folder);

#endif
