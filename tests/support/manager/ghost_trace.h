/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_GHOST_TRACE_H
#define TIERCE_TESTS_GHOST_TRACE_H

#include "bench/manager/ghost_load.h"

#include <stdbool.h>

/* Adds the requests of a file of $TIERCE_TEST_DATA/traces; false: the variable is not set. In a
 * file of its own, because the headers of the manager and of the optimizer have equal names of
 * queries. */
bool ghost_load_read(struct ghost_load *load, const char *name);

#endif
