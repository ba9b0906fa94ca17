/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_MODEL_PRIVATE_H
#define TIERCE_MANAGER_MODEL_PRIVATE_H

#include "manager/registry/model.h"

/*
 * The plain fields of the model's structs and their paths in KVCM's JSON. Copies, JSON reading and
 * JSON writing use one table per struct. Lists are not in the tables.
 */

enum tierce__field_kind {
    TIERCE__FIELD_TEXT,
    TIERCE__FIELD_BOOL,
    TIERCE__FIELD_INT32,
    TIERCE__FIELD_INT64,
    TIERCE__FIELD_UINT64,
    TIERCE__FIELD_DOUBLE,
};

struct tierce__field {
    const char *path; /* keys joined by dots */
    uint8_t kind;
    bool is_own; /* our own field: written only if it is not 0 or "" */
    uint16_t offset;
    uint32_t types; /* for storages: bits (1 << slot) of the types that have the field; 0: all */
};

struct tierce__fields {
    const struct tierce__field *rows;
    size_t count;
};

extern const struct tierce__fields tierce__storage_fields;
extern const struct tierce__fields tierce__group_fields;
extern const struct tierce__fields tierce__instance_fields;
extern const struct tierce__fields tierce__model_fields; /* of struct tierce__model */
extern const struct tierce__fields tierce__account_fields;

/* Bit of a storage type in `types`. */
uint32_t tierce__storage_type_bit(enum tierce__storage_type type);

/* Sets every text of a zeroed struct to "". -ENOMEM: some are still NULL; clear the struct. */
TIERCE_MUSTUSE int tierce__fields_init(void *object, const struct tierce__fields *fields);

#endif
