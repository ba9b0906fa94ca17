/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_ZONE_H
#define TIERCE_BASE_ZONE_H

#include <stdint.h>

#include <tierce/status.h>

/*
 * A place in the network, as an operator states it: parts from the largest to the smallest,
 * separated by '/', for example "eu-1/row-2/rack-7". Two places are the nearer the more leading
 * parts they share. "": unknown. Thread: any.
 */
#define TIERCE__ZONE_BYTES     128u
#define TIERCE__ZONE_PARTS_MAX 8u
#define TIERCE__ZONE_ACCEPTED                                                                      \
    "up to 8 parts of letters, digits, '-', '_' and '.', separated by '/', of fewer than 128 "     \
    "bytes together, for example eu-1/row-2/rack-7"

/* [out] prefixes: for each part the hash of the zone up to its end, continued from `seed`, never 0;
 * 0 after the last part. So zones that share their first n parts have the same first n hashes.
 * Returns how many parts there are. Errors: TIERCE_E_ARGUMENT (it is not a zone; all are 0). */
TIERCE_MUSTUSE int tierce__zone_parse(uint32_t prefixes[TIERCE__ZONE_PARTS_MAX], const char *zone,
                                      uint64_t seed);

#endif
