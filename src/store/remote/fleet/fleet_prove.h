/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_FLEET_PROVE_H
#define TIERCE_FLEET_PROVE_H

#include <stdint.h>

/* Whether bytes in a storage are the block of an engine that a manager's index names. Thread: any.
 */

enum tierce__fleet_proof {
    TIERCE__FLEET_PROVEN,
    TIERCE__FLEET_DAMAGED,    /* no chunk, another chunk, or a damaged one: no engine can use it */
    TIERCE__FLEET_UNPROVABLE, /* a chunk of a newer version */
};

/*
 * Proven: a chunk whose header and cells, or coded layers, have their sums, whose hash begins with
 * the block's key, and whose rank is that of the spec ("tp3"), if the spec names one. *why: a text
 * of the others.
 */
enum tierce__fleet_proof tierce__fleet_prove(const uint8_t *object, uint64_t bytes,
                                             int64_t block_key, const char *spec, const char **why);

#endif
