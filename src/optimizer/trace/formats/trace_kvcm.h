/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_KVCM_H
#define TIERCE_OPTIMIZER_TRACE_KVCM_H

#include "optimizer/trace/trace.h"

/* Shared by both of KVCM's formats: the match of a lookup, by name. */

/*
 * Fills in `query` and `window` of a lookup; the empty name is prefix_match. Returns 0, or the
 * value of tierce__trace_bad for an unknown name or an invalid window.
 */
TIERCE_MUSTUSE int tierce__kvcm_read_query(struct tierce__trace *trace,
                                           struct tierce__trace_request *request, const char *name,
                                           int64_t window);

const char *tierce__kvcm_query_name(enum tierce__trace_query query);

#endif
