/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_CONFIG_PRIVATE_H
#define TIERCE_BASE_CONFIG_PRIVATE_H

#include "base/config/config.h"

/*
 * Shared by config.c and config_print.c. Numbers are kept as uint64_t in one unit per type: bytes,
 * milliseconds, billionths for shares, 0 or 1 for bools.
 */

/* Canonical text of a number of the type; 32 bytes always suffice. */
void tierce__config_format_number(char *out, size_t size, enum tierce__param_type type,
                                  uint64_t number);

/* A bound of the table (min or max) in the unit that numbers of the row are kept in. */
uint64_t tierce__config_bound(const struct tierce__param *param, double bound);

bool tierce__config_is_bounded(const struct tierce__param *param);

#endif
