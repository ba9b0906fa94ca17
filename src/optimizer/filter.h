/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_FILTER_H
#define TIERCE_OPTIMIZER_FILTER_H

#include "optimizer/recording.h"

typedef bool tierce__filter_fn(void *arg, const struct tierce__recorded *request);

/*
 * A sealed recording of the requests for which `keep` says true, in their order, with all that they
 * hold; blocks have numbers of their own, and as ids the numbers that they had.
 * Errors, *out untouched: as tierce__recording_create, _add and _seal.
 */
TIERCE_MUSTUSE int tierce__recording_filter(struct tierce__recording **out,
                                            const struct tierce__recording *recording,
                                            tierce__filter_fn *keep, void *arg, const char *folder);

#endif
