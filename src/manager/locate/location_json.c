/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "manager/registry/model_json.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tierce__uri_storage(const char *uri, size_t *bytes)
{
    const char *name = strstr(uri, "://");
    if (name == NULL)
        return NULL;
    name += 3;
    *bytes = strcspn(name, "/?");
    return *bytes > 0 ? name : NULL;
}

uint64_t tierce__uri_size(const char *uri)
{
    const char *at = strchr(uri, '?');
    while (at != NULL) {
        at++;
        if (strncmp(at, "size=", 5) == 0) {
            char *end;
            errno = 0;
            uint64_t size = strtoull(at + 5, &end, 10);
            bool is_number = at[5] >= '0' && at[5] <= '9' && (*end == '\0' || *end == '&');
            return is_number && errno == 0 ? size : 0;
        }
        at = strchr(at, '&');
    }
    return 0;
}

static int complain(char why[256], const char *what)
{
    snprintf(why, 256, "%s", what);
    return TIERCE_E_FORMAT;
}

static bool take_int(int64_t *out, struct json_object *json, const char *key, int64_t max)
{
    struct json_object *value;
    if (!json_object_object_get_ex(json, key, &value) || !json_object_is_type(value, json_type_int))
        return false;
    *out = json_object_get_int64(value);
    return *out >= 0 && *out <= max;
}

/* NULL: missing, not a text, or contains a NUL. */
static const char *take_text(struct json_object *json, const char *key)
{
    struct json_object *value;
    if (!json_object_object_get_ex(json, key, &value) ||
        !json_object_is_type(value, json_type_string))
        return NULL;
    const char *text = json_object_get_string(value);
    return strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

/* The index of a spec; spec_count: unknown name. */
static size_t find_spec(const struct tierce__instance *instance, const char *name)
{
    size_t i = 0;
    while (i < instance->spec_count && strcmp(instance->specs[i].name, name) != 0)
        i++;
    return i;
}

static int take_places(struct tierce__location *out, struct json_object *list,
                       const struct tierce__instance *instance, struct tierce__arena *arena,
                       char why[256])
{
    size_t count = json_object_array_length(list);
    if (count > UINT16_MAX)
        return complain(why, "location_specs: more than 65535");
    struct tierce__spec_place *places = tierce__arena_calloc(arena, count, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        struct json_object *entry = json_object_array_get_idx(list, i);
        const char *name = take_text(entry, "name"), *uri = take_text(entry, "uri");
        if (name == NULL || uri == NULL)
            return complain(why, "location_specs: an entry without name or uri");
        size_t spec = find_spec(instance, name);
        if (spec == instance->spec_count)
            continue;
        places[out->place_count] = (struct tierce__spec_place){
            .spec = (uint16_t)spec,
            .bytes = tierce__uri_size(uri),
            .uri = tierce__arena_copy(arena, uri, strlen(uri)),
        };
        if (places[out->place_count++].uri == NULL)
            return -ENOMEM;
    }
    out->places = places;
    return 0;
}

int tierce__location_from_json(struct tierce__location *out, enum tierce__location_status *status,
                               struct json_object *json, const struct tierce__instance *instance,
                               struct tierce__arena *arena, char why[256])
{
    struct tierce__location location = {0};
    struct json_object *list;
    int64_t state, type;
    if (!json_object_is_type(json, json_type_object))
        return complain(why, "a location: not an object");
    const char *id = take_text(json, "id");
    if (id == NULL || strlen(id) != TIERCE__LOCATION_ID_BYTES)
        return complain(why, "id: not a text of 8 bytes");
    memcpy(location.id, id, TIERCE__LOCATION_ID_BYTES);
    if (!take_int(&state, json, "status", TIERCE__LOCATION_DELETING))
        return complain(why, "status: not a status");
    if (!take_int(&type, json, "type", UINT8_MAX))
        return complain(why, "type: not a type of storage");
    location.type = (uint8_t)type;
    if (!json_object_object_get_ex(json, "location_specs", &list) ||
        !json_object_is_type(list, json_type_array))
        return complain(why, "location_specs: not a list");
    int rc = take_places(&location, list, instance, arena, why);
    if (rc == 0) {
        *out = location;
        *status = (enum tierce__location_status)state;
    }
    return rc;
}

static int put(struct json_object *json, const char *key, struct json_object *value)
{
    if (value != NULL && json_object_object_add(json, key, value) == 0)
        return 0;
    json_object_put(value);
    return -ENOMEM;
}

static int put_place(struct json_object *list, const struct tierce__spec_place *place,
                     const struct tierce__instance *instance, const struct tierce__storage *storage,
                     struct tierce__arena *arena)
{
    const char *uri = tierce__place_uri(storage, instance, place, arena);
    struct json_object *entry = json_object_new_object();
    if (entry == NULL || json_object_array_add(list, entry) != 0) {
        json_object_put(entry);
        return -ENOMEM;
    }
    int rc = put(entry, "name", json_object_new_string(instance->specs[place->spec].name));
    if (rc == 0)
        rc = put(entry, "uri", uri != NULL ? json_object_new_string(uri) : NULL);
    return rc;
}

int tierce__location_to_json(struct json_object **out, const struct tierce__location *location,
                             enum tierce__location_status status,
                             const struct tierce__instance *instance,
                             const struct tierce__storage *storage, struct tierce__arena *arena)
{
    struct json_object *json = json_object_new_object(), *list = json_object_new_array();
    char id[TIERCE__LOCATION_ID_BYTES + 1] = {0};
    memcpy(id, location->id, TIERCE__LOCATION_ID_BYTES);
    int rc = json != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        rc = put(json, "id", json_object_new_string(id));
    if (rc == 0)
        rc = put(json, "status", json_object_new_int((int)status));
    if (rc == 0)
        rc = put(json, "type", json_object_new_int(location->type));
    if (rc == 0)
        rc = put(json, "spec_size", json_object_new_int(location->place_count));
    for (size_t i = 0; rc == 0 && list != NULL && i < location->place_count; i++)
        rc = put_place(list, &location->places[i], instance, storage, arena);
    if (rc != 0) {
        json_object_put(list);
        json_object_put(json);
        return rc;
    }
    rc = put(json, "location_specs", list);
    if (rc == 0)
        *out = json;
    else
        json_object_put(json);
    return rc;
}
