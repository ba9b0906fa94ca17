/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/json/json_write.h"
#include "manager/locate/location_json.h"
#include "manager/storage/places.h"

#include <errno.h>
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

int tierce__uri_sum(uint8_t sum[TIERCE__PLACE_SUM_BYTES], const char *uri)
{
    struct tierce__spec_place place = {0};
    const char *at = strchr(uri, '?');
    while (at != NULL && strncmp(at + 1, "sum=", 4) != 0)
        at = strchr(at + 1, '&');
    if (at == NULL)
        return 0;
    const char *digits = at + 5;
    if (strcspn(digits, "&") != 2 * TIERCE__PLACE_SUM_BYTES ||
        !tierce__hex_decode(place.sum, sizeof(place.sum), digits) || !tierce__place_has_sum(&place))
        return TIERCE_E_FORMAT;
    memcpy(sum, place.sum, sizeof(place.sum));
    return 1;
}

static int complain(char why[256], const char *what)
{
    snprintf(why, 256, "%s", what);
    return TIERCE_E_FORMAT;
}

static bool take_int(int64_t *out, struct tierce__text json, const char *key, int64_t max)
{
    TIERCE_DASSERT(max >= 0);
    *out = tierce__json_get_int(json, key, -1);
    return *out >= 0 && *out <= max;
}

/* A text of any length, in the arena. */
static int take_text(char **out, struct tierce__text json, const char *key,
                     struct tierce__arena *arena, char why[256])
{
    struct tierce__text value = tierce__json_get(json, key);
    if (tierce__json_value_kind(value) != '"')
        return complain(why, "location_specs: an entry lacks a name or a uri");
    TIERCE_DASSERT(value.length >= 2); /* the quotes: room for the NUL */
    *out = tierce__arena_alloc(arena, value.length);
    if (*out == NULL)
        return -ENOMEM;
    return tierce__json_get_text(*out, value.length, value, "")
               ? 0
               : complain(why, "location_specs: a name or uri holds a NUL byte");
}

/* The index of a spec; spec_count: unknown name. */
static size_t find_spec(const struct tierce__instance *instance, const char *name)
{
    size_t i = 0;
    while (i < instance->spec_count && strcmp(instance->specs[i].name, name) != 0)
        i++;
    return i;
}

static int take_places(struct tierce__location *out, struct tierce__text list,
                       const struct tierce__instance *instance, struct tierce__arena *arena,
                       char why[256])
{
    size_t count = tierce__json_count(list);
    struct tierce__text ignored, entry;
    struct tierce__json each = tierce__json_each(list);
    if (count > UINT16_MAX)
        return complain(why, "location_specs: more than 65535 entries");
    struct tierce__spec_place *places = tierce__arena_calloc(arena, count, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    while (tierce__json_next(&each, &ignored, &entry)) {
        char *name = NULL, *uri = NULL;
        int rc = take_text(&name, entry, "name", arena, why);
        if (rc == 0)
            rc = take_text(&uri, entry, "uri", arena, why);
        if (rc < 0)
            return rc;
        size_t spec = find_spec(instance, name);
        TIERCE_DASSERT(spec <= instance->spec_count);
        if (spec == instance->spec_count)
            continue;
        TIERCE_DASSERT(out->place_count < count);
        places[out->place_count++] = (struct tierce__spec_place){
            .spec = (uint16_t)spec, .bytes = tierce__uri_size(uri), .uri = uri};
    }
    out->places = places;
    return 0;
}

int tierce__location_from_json(struct tierce__location *out, enum tierce__location_status *status,
                               struct tierce__text json, const struct tierce__instance *instance,
                               struct tierce__arena *arena, char why[256])
{
    struct tierce__location location = {0};
    char id[TIERCE__LOCATION_ID_BYTES + 1];
    int64_t state, type;
    if (tierce__json_value_kind(json) != '{')
        return complain(why, "a location is not an object");
    if (!tierce__json_get_text(id, sizeof(id), json, "id") || strlen(id) != sizeof(id) - 1)
        return complain(why, "id is not a string of 8 bytes");
    memcpy(location.id, id, TIERCE__LOCATION_ID_BYTES);
    if (!take_int(&state, json, "status", TIERCE__LOCATION_DELETING))
        return complain(why, "status is not a number from 0 to 4");
    if (!take_int(&type, json, "type", UINT8_MAX))
        return complain(why, "type is not a storage type from 0 to 255");
    location.type = (uint8_t)type;
    struct tierce__text list = tierce__json_get(json, "location_specs");
    if (tierce__json_value_kind(list) != '[')
        return complain(why, "location_specs is not a list");
    int rc = take_places(&location, list, instance, arena, why);
    if (rc == 0) {
        *out = location;
        *status = (enum tierce__location_status)state;
    }
    return rc;
}

int tierce__location_to_json(struct tierce__json_write *json, const char *name,
                             const struct tierce__location *location,
                             enum tierce__location_status status,
                             const struct tierce__instance *instance,
                             const struct tierce__storage *storage, struct tierce__arena *arena)
{
    TIERCE_DASSERT(status <= TIERCE__LOCATION_DELETING);
    char id[TIERCE__LOCATION_ID_BYTES + 1] = {0};
    memcpy(id, location->id, TIERCE__LOCATION_ID_BYTES);
    tierce__json_write_open(json, name, '{');
    tierce__json_write_text(json, "id", id);
    tierce__json_write_count(json, "status", status);
    tierce__json_write_count(json, "type", location->type);
    tierce__json_write_count(json, "spec_size", location->place_count);
    tierce__json_write_open(json, "location_specs", '[');
    for (size_t i = 0; i < location->place_count; i++) {
        const struct tierce__spec_place *place = &location->places[i];
        const char *uri = tierce__place_uri(storage, instance, place, arena);
        if (uri == NULL)
            return -ENOMEM;
        TIERCE_DASSERT(place->spec < instance->spec_count);
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "name", instance->specs[place->spec].name);
        tierce__json_write_text(json, "uri", uri);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
    return 0;
}
