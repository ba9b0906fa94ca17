/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LOCATION_JSON_H
#define TIERCE_MANAGER_LOCATION_JSON_H

#include "base/json/json_value.h"
#include "manager/registry/model.h"
#include "manager/meta/record.h"

/*
 * Locations of KVCM's data sets as JSON.
 *
 * Errors of all: TIERCE_E_FORMAT, `why` in words; -ENOMEM; *out untouched. Threads: any.
 */

struct tierce__arena;
struct tierce__json_write;

/* Values of KVCM's data sets. */
enum tierce__location_status {
    TIERCE__LOCATION_NOT_FOUND = 0,
    TIERCE__LOCATION_NEW = 1,
    TIERCE__LOCATION_WRITING = 2,
    TIERCE__LOCATION_SERVING = 3,
    TIERCE__LOCATION_DELETING = 4,
};

/* Reads one location of a KVCM data set. Its places are URI texts in the arena, with the size from
 * the URI; places of specs that the instance does not have are dropped. Its storage number is 0:
 * the URIs name the storage, see tierce__uri_storage. */
TIERCE_MUSTUSE int tierce__location_from_json(struct tierce__location *out,
                                              enum tierce__location_status *status,
                                              struct tierce__text json,
                                              const struct tierce__instance *instance,
                                              struct tierce__arena *arena, char why[256]);
/* Writes a member of that name, or a value (NULL). `storage` NULL: every place has a text. Errors:
 * -ENOMEM of the arena; errors of the line stay in the line. */
TIERCE_MUSTUSE int tierce__location_to_json(struct tierce__json_write *json, const char *name,
                                            const struct tierce__location *location,
                                            enum tierce__location_status status,
                                            const struct tierce__instance *instance,
                                            const struct tierce__storage *storage,
                                            struct tierce__arena *arena);

/* The storage's name in a URI, of *bytes bytes, NULL if there is none; and the value of `size`, 0
 * if there is none. */
const char *tierce__uri_storage(const char *uri, size_t *bytes);
uint64_t tierce__uri_size(const char *uri);
/* Reads the value of `sum`, 32 hex digits that are not all 0. Returns 1, or 0 if there is none.
 * Errors: TIERCE_E_FORMAT. */
TIERCE_MUSTUSE int tierce__uri_sum(uint8_t sum[TIERCE__PLACE_SUM_BYTES], const char *uri);

#endif
