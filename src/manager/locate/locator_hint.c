/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/locator_private.h"

int tierce__locator_hint(struct tierce__locator *locator, const char *instance_id,
                         const int64_t *keys, size_t count, uint16_t hint,
                         char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(hint != 0 && tierce__hint_is_valid(hint));
    tierce__meta_index_touch(live->index, keys, count, &(struct tierce__record_use){.hint = hint});
    tierce__live_release(live);
    return 0;
}
