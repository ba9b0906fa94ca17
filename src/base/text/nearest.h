/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_NEAREST_H
#define TIERCE_BASE_NEAREST_H

#include <stddef.h>

/*
 * How many single edits (insert, delete, replace, swap two neighbours) turn `a` into `b`, case
 * ignored. Only the first 64 bytes of each count, so that the cost is bounded. Thread: any.
 */
size_t tierce__edit_distance(const char *a, const char *b);

/* The nearest name in `known`, which has at least one name and ends with NULL; among equally near
 * names the first. */
const char *tierce__nearest(const char *name, const char *const known[]);

#endif
