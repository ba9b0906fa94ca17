/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_JSON_ORACLE_H
#define TIERCE_TESTS_JSON_ORACLE_H

#include "base/json/json.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * The pulling reader beside json-c: both walk the same text, and where the reader accepts it json-c
 * must too, with the same values. (Not the other way round: json-c takes control characters in
 * texts, half surrogates, and keeps the last of members of one name.)
 */

static inline bool oracle_value(struct tierce__json *json, struct json_object *object);

static inline bool oracle_number(struct tierce__json *json, struct json_object *object)
{
    struct tierce__json copy = *json;
    uint64_t id;
    if (tierce__json_id(&copy, &id)) {
        *json = copy;
        if (json_object_is_type(object, json_type_double))
            return json_object_get_double(object) == 0; /* -0 */
        return id == (uint64_t)json_object_get_int64(object) ||
               id == json_object_get_uint64(object);
    }
    int64_t micros;
    copy = *json;
    if (tierce__json_scaled(&copy, &micros, 6)) {
        *json = copy;
        double want = json_object_get_double(object) * 1e6;
        return fabs((double)micros - want) <= 1 + fabs(want) * 1e-15;
    }
    return tierce__json_skip(json);
}

static inline bool oracle_object(struct tierce__json *json, struct json_object *object)
{
    struct tierce__text name;
    if (!tierce__json_object(json))
        return false;
    while (tierce__json_member(json, &name)) {
        char key[TIERCE__JSON_NAME_MAX + 1];
        struct json_object *value;
        bool known = name.length < sizeof(key) && memchr(name.at, '\0', name.length) == NULL &&
                     memchr(name.at, '\\', name.length) == NULL;
        if (!known) {
            if (!tierce__json_skip(json))
                return false;
            continue;
        }
        memcpy(key, name.at, name.length);
        key[name.length] = '\0';
        if (!json_object_object_get_ex(object, key, &value))
            return false;
        /* There, a repeated key has the last value. */
        struct tierce__json first = *json;
        if (!oracle_value(json, value)) {
            *json = first;
            if (!tierce__json_skip(json))
                return false;
        }
    }
    return json->why == NULL;
}

static inline bool oracle_value(struct tierce__json *json, struct json_object *object)
{
    size_t index = 0, length;
    char text[4096];
    bool truth;
    switch (tierce__json_kind(json)) {
    case '{':
        return json_object_is_type(object, json_type_object) && oracle_object(json, object);
    case '[':
        if (!json_object_is_type(object, json_type_array) || !tierce__json_array(json))
            return false;
        while (tierce__json_element(json)) {
            if (index >= json_object_array_length(object) ||
                !oracle_value(json, json_object_array_get_idx(object, index++)))
                return false;
        }
        return json->why == NULL && index == json_object_array_length(object);
    case '"':
        return tierce__json_text(json, text, sizeof(text), &length) &&
               json_object_is_type(object, json_type_string) &&
               (size_t)json_object_get_string_len(object) == length &&
               memcmp(json_object_get_string(object), text, length) == 0;
    case '0':
        return oracle_number(json, object);
    case 't':
    case 'f':
        return tierce__json_bool(json, &truth) && truth == (json_object_get_boolean(object) != 0);
    default:
        return tierce__json_skip(json) && object == NULL;
    }
}

/* Whether the reader takes the whole text. */
static inline bool oracle_accepts(const char *text, size_t size)
{
    struct tierce__json json;
    tierce__json_start(&json, text, size);
    return tierce__json_skip(&json) && tierce__json_end(&json);
}

/* Whether json-c says the same; `text` is taken by the reader. *reason describes the difference. */
static inline bool oracle_agrees(const char *text, size_t size)
{
    struct json_tokener *tokener = json_tokener_new_ex(TIERCE__JSON_DEPTH_MAX + 2);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    struct json_object *object = json_tokener_parse_ex(tokener, text, (int)size);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    if (error == json_tokener_continue) {
        object = json_tokener_parse_ex(tokener, "\0", 1);
        error = json_tokener_get_error(tokener);
    }
    bool same = error == json_tokener_success;
    struct tierce__json json;
    tierce__json_start(&json, text, size);
    /* Numbers that leave 64 bits, and texts that are too long or hold a NUL, are rejected later. */
    if (same && !oracle_value(&json, object))
        same = json.why != NULL;
    json_object_put(object);
    json_tokener_free(tokener);
    return same;
}

#endif
