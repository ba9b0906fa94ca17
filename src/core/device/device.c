/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/device_private.h"

#include <string.h>

#include "base/assert.h"

static const struct tierce__device_ops *const devices[] = {
#define TIERCE_DEVICE(name) &tierce__device_##name##_ops,
#include "core/device/devices.def"
#undef TIERCE_DEVICE
};

const struct tierce__device_ops *tierce__device_at(size_t index)
{
    return index < sizeof(devices) / sizeof(devices[0]) ? devices[index] : NULL;
}

const struct tierce__device_ops *tierce__device_find(const char *name)
{
    for (size_t i = 0; tierce__device_at(i) != NULL; i++) {
        if (strcmp(devices[i]->name, name) == 0)
            return devices[i];
    }
    return NULL;
}

int tierce__device_check(const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    TIERCE_DASSERT(direction == TIERCE__DIRECTION_GATHER || direction == TIERCE__DIRECTION_SCATTER);
    if (copy->count == 0 || copy->rows == NULL)
        return TIERCE_E_ARGUMENT;
    for (size_t i = 0; i < copy->count; i++) {
        const struct tierce__device_row *row = &copy->rows[i];
        int rc = tierce__paged_check_cells(copy->paged, row->layer, row->ids, &row->cells);
        if (rc < 0)
            return rc;
        bool has_verdicts = direction == TIERCE__DIRECTION_GATHER || row->good != NULL;
        if (row->cells.count > 0 && !has_verdicts)
            return TIERCE_E_ARGUMENT;
    }
    return 0;
}

int tierce__device_check_keys(const struct tierce__device_keys *keys)
{
    const struct tierce__rotation *rotation = keys->rotation;
    bool is_known = rotation != NULL && keys->dtype < TIERCE__BLEND_DTYPES;
    if (!is_known || rotation->pairs == 0 || rotation->pairs > TIERCE__ROPE_PAIRS_MAX)
        return TIERCE_E_ARGUMENT;
    if (keys->heads == 0 || keys->heads > TIERCE__DEVICE_HEADS_MAX)
        return TIERCE_E_ARGUMENT;
    return keys->rows.at != NULL || keys->tokens == 0 ? 0 : TIERCE_E_ARGUMENT;
}

int tierce__device_check_distances(const struct tierce__device_distances *keys)
{
    bool is_known = keys->dtype < TIERCE__BLEND_DTYPES;
    if (!is_known || keys->heads == 0 || keys->heads > TIERCE__DEVICE_HEADS_MAX)
        return TIERCE_E_ARGUMENT;
    if (keys->row_elements == 0 || keys->row_elements > TIERCE__DEVICE_ELEMENTS_MAX)
        return TIERCE_E_ARGUMENT;
    if (keys->tokens == 0)
        return 0;
    bool is_aligned = (uintptr_t)keys->to % sizeof(float) == 0;
    bool is_there = keys->a.at != NULL && keys->b.at != NULL && keys->to != NULL;
    return is_there && is_aligned ? 0 : TIERCE_E_ARGUMENT;
}

int tierce__device_check_runs(const struct tierce__device_run *runs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct tierce__device_run *run = &runs[i];
        bool has_memory =
            (run->to != NULL || run->bytes == 0) && (run->from != NULL || run->coded == 0);
        if (!has_memory || (run->is_plain && run->coded != run->bytes))
            return TIERCE_E_ARGUMENT;
    }
    return 0;
}
