/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_MODEL_JSON_H
#define TIERCE_MANAGER_MODEL_JSON_H

#include "base/json_value.h"
#include "manager/registry/model.h"
#include "manager/meta/record.h"

/*
 * Conversion of the model from and to KVCM's JSON, as used in registries, startup files and the
 * reply of RegisterInstance.
 *
 * Reading: missing keys keep their defaults; unknown keys are ignored; a value of a wrong type is
 * TIERCE_E_FORMAT, and `why` names its field. Writing: KVCM's keys in its order; our own keys only
 * if they are not 0.
 *
 * Errors of all: TIERCE_E_FORMAT, -ENOMEM; *out untouched. Threads: any.
 */

struct json_object;
struct tierce__arena;
struct tierce__json_write;

enum tierce__json_form {
    TIERCE__JSON_SHOWN,  /* for clients */
    TIERCE__JSON_STORED, /* with the numbers that only the registry uses */
};

/* Parse a JSON object from text, and print one (heap, tierce__free; NULL: no memory). */
TIERCE_MUSTUSE int tierce__model_parse(struct json_object **out, const char *text, size_t bytes,
                                       char why[256]);
char *tierce__model_print(struct json_object *json);

TIERCE_MUSTUSE int tierce__storage_from_json(struct tierce__storage *out, struct json_object *json,
                                             char why[256]);
TIERCE_MUSTUSE int tierce__storage_to_json(struct json_object **out,
                                           const struct tierce__storage *storage,
                                           enum tierce__json_form form);
TIERCE_MUSTUSE int tierce__group_from_json(struct tierce__group *out, struct json_object *json,
                                           char why[256]);
TIERCE_MUSTUSE int tierce__group_to_json(struct json_object **out,
                                         const struct tierce__group *group,
                                         enum tierce__json_form form);
TIERCE_MUSTUSE int tierce__instance_from_json(struct tierce__instance *out,
                                              struct json_object *json, char why[256]);
TIERCE_MUSTUSE int tierce__instance_to_json(struct json_object **out,
                                            const struct tierce__instance *instance,
                                            enum tierce__json_form form);
/* KVCM's plain "password" of an account is converted to a hash. */
TIERCE_MUSTUSE int tierce__account_from_json(struct tierce__account *out, struct json_object *json,
                                             char why[256]);
TIERCE_MUSTUSE int tierce__account_to_json(struct json_object **out,
                                           const struct tierce__account *account);

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
 * -ENOMEM of the arena; those of the line stay in the line. */
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

#endif
