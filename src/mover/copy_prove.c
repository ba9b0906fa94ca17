/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/copier.h"
#include "store/remote/fleet/fleet_prove.h"

#include <stdio.h>

enum tierce__copy_result tierce__copy_prove(char why[TIERCE__FLEET_WHY_BYTES],
                                            const uint8_t *object, uint64_t bytes,
                                            int64_t block_key, const char *spec)
{
    const char *text = "";
    enum tierce__fleet_proof proof = tierce__fleet_prove(object, bytes, block_key, spec, &text);
    snprintf(why, TIERCE__FLEET_WHY_BYTES, "%s", text);
    return proof == TIERCE__FLEET_PROVEN    ? TIERCE__COPY_COPIED
           : proof == TIERCE__FLEET_DAMAGED ? TIERCE__COPY_SOURCE_DAMAGED
                                            : TIERCE__COPY_UNVERIFIABLE;
}
