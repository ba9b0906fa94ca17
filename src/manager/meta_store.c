/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta_store.h"

#include "manager/model.h"

uint32_t tierce__meta_type_slot(uint8_t storage_type)
{
    enum { OWN_FIRST = 100, OWN_SLOT_FIRST = 8, OTHERS = 15 };
    if (storage_type < OWN_SLOT_FIRST)
        return storage_type;
    if (storage_type >= OWN_FIRST && storage_type < OWN_FIRST + OTHERS - OWN_SLOT_FIRST)
        return OWN_SLOT_FIRST + storage_type - OWN_FIRST;
    return OTHERS;
}
