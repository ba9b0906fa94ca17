/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/model_json.h"
#include "base/alloc.h"
#include "manager/api/account.h"
#include "manager/registry/model_private.h"

#include <errno.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 16,       /* bytes of a parsed text */
    PATH_BYTES_MAX = 128, /* of a field */
    LIST_MAX = 65535,     /* entries of one list */
};

/* ---- texts ----------------------------------------------------------------------------------- */

int tierce__model_parse(struct json_object **out, const char *text, size_t bytes, char why[256])
{
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX);
    if (tokener == NULL)
        return -ENOMEM;
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *json = NULL;
    int rc = 0;
    if (bytes >= INT_MAX) {
        snprintf(why, 256, "longer than 2 GiB");
        rc = TIERCE_E_FORMAT;
    } else {
        json = json_tokener_parse_ex(tokener, text, (int)bytes + 1);
        enum json_tokener_error error = json_tokener_get_error(tokener);
        if (error != json_tokener_success || !json_object_is_type(json, json_type_object)) {
            snprintf(why, 256, "not a JSON object: %s at byte %zu",
                     error != json_tokener_success ? json_tokener_error_desc(error) : "other type",
                     json_tokener_get_parse_end(tokener));
            rc = TIERCE_E_FORMAT;
        }
    }
    if (rc == 0)
        *out = json;
    else
        json_object_put(json);
    json_tokener_free(tokener);
    return rc;
}

char *tierce__model_print(struct json_object *json)
{
    const char *text = json_object_to_json_string_ext(json, JSON_C_TO_STRING_PLAIN |
                                                                JSON_C_TO_STRING_NOSLASHESCAPE);
    return text != NULL ? tierce__strdup(text) : NULL;
}

static int complain(char why[256], const char *path, const char *expected)
{
    snprintf(why, 256, "%s: not %s", path, expected);
    return TIERCE_E_FORMAT;
}

/* ---- in -------------------------------------------------------------------------------------- */

/*
 * Follows a path of keys. 1 and *out: found; 0: not found; TIERCE_E_FORMAT: a value on the path is
 * not an object.
 */
static int find_at(struct json_object **out, struct json_object *json, const char *path,
                   char why[256])
{
    char key[PATH_BYTES_MAX];
    const char *rest = path;
    while (*rest != '\0') {
        size_t n = strcspn(rest, ".");
        snprintf(key, sizeof(key), "%.*s", (int)n, rest);
        if (!json_object_is_type(json, json_type_object)) {
            snprintf(why, 256, "%.*s: not an object", (int)(rest - path - 1), path);
            return TIERCE_E_FORMAT;
        }
        if (!json_object_object_get_ex(json, key, &json))
            return 0;
        rest += n + (rest[n] == '.');
    }
    *out = json;
    return 1;
}

/* Replaces *out by a text without NUL bytes. */
static int take_text(char **out, struct json_object *value, const char *path, char why[256])
{
    if (!json_object_is_type(value, json_type_string))
        return complain(why, path, "a text");
    const char *text = json_object_get_string(value);
    if (strlen(text) != (size_t)json_object_get_string_len(value))
        return complain(why, path, "a text without NUL");
    char *copy = tierce__strdup(text);
    if (copy == NULL)
        return -ENOMEM;
    tierce__free(*out);
    *out = copy;
    return 0;
}

static int take_integer(int64_t *out, struct json_object *value, int64_t min, int64_t max,
                        const char *path, char why[256])
{
    if (!json_object_is_type(value, json_type_int))
        return complain(why, path, "an integer");
    int64_t number = json_object_get_int64(value);
    if (number < min || number > max)
        return complain(why, path, "in its range");
    *out = number;
    return 0;
}

static int take_double(double *out, struct json_object *value, const char *path, char why[256])
{
    if (!json_object_is_type(value, json_type_double) && !json_object_is_type(value, json_type_int))
        return complain(why, path, "a number");
    *out = json_object_get_double(value);
    return 0;
}

static int take_bool(bool *out, struct json_object *value, const char *path, char why[256])
{
    if (!json_object_is_type(value, json_type_boolean))
        return complain(why, path, "true or false");
    *out = json_object_get_boolean(value) != 0;
    return 0;
}

static int take_field(void *object, const struct tierce__field *field, struct json_object *value,
                      char why[256])
{
    void *at = (char *)object + field->offset;
    int64_t number = 0;
    int rc;
    switch ((enum tierce__field_kind)field->kind) {
    case TIERCE__FIELD_TEXT:
        return take_text(at, value, field->path, why);
    case TIERCE__FIELD_BOOL:
        return take_bool(at, value, field->path, why);
    case TIERCE__FIELD_DOUBLE:
        return take_double(at, value, field->path, why);
    case TIERCE__FIELD_INT32:
        rc = take_integer(&number, value, INT32_MIN, INT32_MAX, field->path, why);
        if (rc == 0)
            *(int32_t *)at = (int32_t)number;
        return rc;
    case TIERCE__FIELD_UINT64:
        rc = take_integer(&number, value, 0, INT64_MAX, field->path, why);
        if (rc == 0)
            *(uint64_t *)at = (uint64_t)number;
        return rc;
    case TIERCE__FIELD_INT64:
        break;
    }
    return take_integer(at, value, INT64_MIN, INT64_MAX, field->path, why);
}

/* Returns whether a storage of this type has the field. */
static bool is_of(const struct tierce__field *field, uint32_t types)
{
    return field->types == 0 || (field->types & types) != 0;
}

static int take_fields(void *object, const struct tierce__fields *fields, uint32_t types,
                       struct json_object *json, char why[256])
{
    if (!json_object_is_type(json, json_type_object))
        return complain(why, "the entry", "an object");
    for (size_t i = 0; i < fields->count; i++) {
        struct json_object *value;
        if (!is_of(&fields->rows[i], types))
            continue;
        int rc = find_at(&value, json, fields->rows[i].path, why);
        if (rc > 0)
            rc = take_field(object, &fields->rows[i], value, why);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The number that the registry assigned; 0 if there is none. */
static int take_number(uint32_t *out, uint32_t max, struct json_object *json, char why[256])
{
    struct json_object *value;
    int64_t number = 0;
    int rc = find_at(&value, json, "number", why);
    if (rc > 0)
        rc = take_integer(&number, value, 1, max, "number", why);
    if (rc == 0)
        *out = (uint32_t)number;
    return rc;
}

/* Sets *count to the number of entries of the list at a path, 0 if it is missing. */
static int find_list(struct json_object **out, size_t *count, struct json_object *json,
                     const char *path, char why[256])
{
    int rc = find_at(out, json, path, why);
    *count = 0;
    if (rc <= 0)
        return rc;
    if (!json_object_is_type(*out, json_type_array))
        return complain(why, path, "a list");
    *count = json_object_array_length(*out);
    return *count <= LIST_MAX ? 0 : complain(why, path, "of at most 65535 entries");
}

static int take_names(char ***names, size_t *count, struct json_object *json, const char *path,
                      char why[256])
{
    struct json_object *list = NULL;
    size_t n;
    int rc = find_list(&list, &n, json, path, why);
    if (rc != 0)
        return rc;
    *names = tierce__calloc(n, sizeof(**names));
    if (*names == NULL)
        return -ENOMEM;
    *count = n;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = take_text(&(*names)[i], json_object_array_get_idx(list, i), path, why);
    return rc;
}

/* A type as KVCM writes it: its name, or its number (its writer gives both under one key). */
static int take_type(enum tierce__storage_type *out, struct json_object *json, const char *path,
                     char why[256])
{
    struct json_object *value = NULL;
    int64_t number;
    int rc = find_at(&value, json, path, why);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return complain(why, path, "there");
    if (json_object_is_type(value, json_type_string)) {
        if (tierce__storage_type_find(out, json_object_get_string(value)))
            return 0;
        return complain(why, path, "a known type of storage");
    }
    rc = take_integer(&number, value, 0, UINT8_MAX, path, why);
    if (rc == 0 && *tierce__storage_type_name((enum tierce__storage_type)number) == '\0')
        return complain(why, path, "a known type of storage");
    if (rc == 0)
        *out = (enum tierce__storage_type)number;
    return rc;
}

int tierce__storage_from_json(struct tierce__storage *out, struct json_object *json, char why[256])
{
    struct tierce__storage storage = {.is_enabled = true, .key_count_per_file = 1};
    uint32_t number = 0;
    int rc = tierce__fields_init(&storage, &tierce__storage_fields);
    if (rc == 0)
        rc = take_type(&storage.type, json, "type", why);
    if (rc == 0)
        rc = take_fields(&storage, &tierce__storage_fields, tierce__storage_type_bit(storage.type),
                         json, why);
    if (rc == 0)
        rc = take_number(&number, UINT16_MAX, json, why);
    storage.number = (uint16_t)number;
    if (rc == 0)
        *out = storage;
    else
        tierce__storage_clear(&storage);
    return rc;
}

static int take_quotas(struct tierce__group *group, struct json_object *json, char why[256])
{
    struct json_object *list = NULL;
    size_t count;
    int rc = find_list(&list, &count, json, "quota.quota_config", why);
    if (rc != 0)
        return rc;
    group->type_quotas = tierce__calloc(count, sizeof(*group->type_quotas));
    if (group->type_quotas == NULL)
        return -ENOMEM;
    group->type_quota_count = count;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct tierce__type_quota *quota = &group->type_quotas[i];
        struct json_object *entry = json_object_array_get_idx(list, i), *value = NULL;
        rc = take_type(&quota->type, entry, "storage_type", why);
        if (rc == 0)
            rc = find_at(&value, entry, "capacity", why);
        if (rc > 0)
            rc = take_integer(&quota->capacity_bytes, value, INT64_MIN, INT64_MAX,
                              "quota.quota_config.capacity", why);
    }
    return rc;
}

int tierce__group_from_json(struct tierce__group *out, struct json_object *json, char why[256])
{
    struct tierce__group group = {
        .max_key_count = INT64_MAX,
        .mutex_shard_count = 16,
        .batch_key_count = 16,
        .persist_interval_ms = 1000,
        .search_cache_mib = 1024,
        .search_cache_shard_bits = 6,
    };
    uint32_t number = 0;
    int rc = tierce__fields_init(&group, &tierce__group_fields);
    if (rc == 0)
        rc = take_fields(&group, &tierce__group_fields, 0, json, why);
    if (rc == 0)
        rc = take_names(&group.storage_candidates, &group.storage_candidate_count, json,
                        "storage_candidates", why);
    if (rc == 0)
        rc = take_quotas(&group, json, why);
    if (rc == 0)
        rc = take_number(&number, UINT16_MAX, json, why);
    group.number = (uint16_t)number;
    if (rc == 0)
        *out = group;
    else
        tierce__group_clear(&group);
    return rc;
}

static int take_specs(struct tierce__instance *instance, struct json_object *json, char why[256])
{
    struct json_object *list = NULL;
    size_t count;
    int rc = find_list(&list, &count, json, "location_spec_infos", why);
    if (rc != 0)
        return rc;
    instance->specs = tierce__calloc(count, sizeof(*instance->specs));
    if (instance->specs == NULL)
        return -ENOMEM;
    instance->spec_count = count;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        static const struct tierce__field rows[] = {
            {"name", TIERCE__FIELD_TEXT, false, offsetof(struct tierce__spec_info, name), 0},
            {"size", TIERCE__FIELD_INT64, false, offsetof(struct tierce__spec_info, size), 0},
        };
        static const struct tierce__fields fields = {rows, 2};
        rc = tierce__fields_init(&instance->specs[i], &fields);
        if (rc == 0)
            rc = take_fields(&instance->specs[i], &fields, 0, json_object_array_get_idx(list, i),
                             why);
    }
    return rc;
}

static int take_spec_groups(struct tierce__instance *instance, struct json_object *json,
                            char why[256])
{
    struct json_object *list = NULL;
    size_t count;
    int rc = find_list(&list, &count, json, "location_spec_groups", why);
    if (rc != 0)
        return rc;
    instance->spec_groups = tierce__calloc(count, sizeof(*instance->spec_groups));
    if (instance->spec_groups == NULL)
        return -ENOMEM;
    instance->spec_group_count = count;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        static const struct tierce__field rows[] = {
            {"name", TIERCE__FIELD_TEXT, false, offsetof(struct tierce__spec_group, name), 0},
        };
        static const struct tierce__fields fields = {rows, 1};
        struct tierce__spec_group *group = &instance->spec_groups[i];
        struct json_object *entry = json_object_array_get_idx(list, i);
        rc = tierce__fields_init(group, &fields);
        if (rc == 0)
            rc = take_fields(group, &fields, 0, entry, why);
        if (rc == 0)
            rc = take_names(&group->spec_names, &group->spec_name_count, entry, "spec_names", why);
    }
    return rc;
}

int tierce__instance_from_json(struct tierce__instance *out, struct json_object *json,
                               char why[256])
{
    struct tierce__instance instance = {0};
    struct json_object *model = NULL;
    int rc = tierce__fields_init(&instance, &tierce__instance_fields);
    if (rc == 0)
        rc = tierce__fields_init(&instance.model, &tierce__model_fields);
    if (rc == 0)
        rc = take_fields(&instance, &tierce__instance_fields, 0, json, why);
    if (rc == 0)
        rc = take_specs(&instance, json, why);
    if (rc == 0)
        rc = take_spec_groups(&instance, json, why);
    if (rc == 0)
        rc = find_at(&model, json, "model_deployment", why);
    if (rc > 0)
        rc = take_fields(&instance.model, &tierce__model_fields, 0, model, why);
    if (rc == 0)
        rc = take_number(&instance.number, UINT32_MAX, json, why);
    if (rc == 0)
        *out = instance;
    else
        tierce__instance_clear(&instance);
    return rc;
}

/* KVCM stores plain passwords; here only their hashes are kept. */
static int take_password(struct tierce__account *account, struct json_object *json, char why[256])
{
    struct json_object *value = NULL;
    char *password = NULL, *hash = NULL;
    int rc = account->password_hash[0] != '\0' ? 0 : find_at(&value, json, "password", why);
    if (rc <= 0)
        return rc;
    rc = take_text(&password, value, "password", why);
    if (rc == 0)
        rc = tierce__password_hash(&hash, password);
    if (rc == 0) {
        tierce__free(account->password_hash);
        account->password_hash = hash;
    }
    tierce__password_free(password);
    return rc;
}

int tierce__account_from_json(struct tierce__account *out, struct json_object *json, char why[256])
{
    struct tierce__account account = {0};
    struct json_object *value = NULL;
    int64_t role = TIERCE__ROLE_USER;
    int rc = tierce__fields_init(&account, &tierce__account_fields);
    if (rc == 0)
        rc = take_fields(&account, &tierce__account_fields, 0, json, why);
    if (rc == 0)
        rc = find_at(&value, json, "role", why);
    if (rc > 0)
        rc = take_integer(&role, value, TIERCE__ROLE_USER, TIERCE__ROLE_ADMIN, "role", why);
    if (rc == 0)
        rc = take_password(&account, json, why);
    account.role = (enum tierce__role)role;
    if (rc == 0)
        *out = account;
    else
        tierce__account_clear(&account);
    return rc;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Adds a value [transfer] under a key; -ENOMEM if the value is NULL or memory runs out. */
static int put(struct json_object *json, const char *key, struct json_object *value)
{
    if (value != NULL && json_object_object_add(json, key, value) == 0)
        return 0;
    json_object_put(value);
    return -ENOMEM;
}

static int push(struct json_object *list, struct json_object *value)
{
    if (value != NULL && json_object_array_add(list, value) == 0)
        return 0;
    json_object_put(value);
    return -ENOMEM;
}

/* Returns the object at a key, created if missing. NULL: no memory. */
static struct json_object *object_at(struct json_object *json, const char *key)
{
    struct json_object *object;
    if (json_object_object_get_ex(json, key, &object))
        return object;
    object = json_object_new_object();
    return put(json, key, object) == 0 ? object : NULL;
}

/* Adds a value [transfer] at the end of a path. */
static int put_at(struct json_object *json, const char *path, struct json_object *value)
{
    char key[PATH_BYTES_MAX];
    for (size_t n; json != NULL && path[n = strcspn(path, ".")] == '.'; path += n + 1) {
        snprintf(key, sizeof(key), "%.*s", (int)n, path);
        json = object_at(json, key);
    }
    if (json != NULL)
        return put(json, path, value);
    json_object_put(value);
    return -ENOMEM;
}

/* The shortest text that reads back as the same number. */
static struct json_object *new_double(double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (strpbrk(text, ".eni") == NULL)
        snprintf(text + strlen(text), 3, ".0");
    return json_object_new_double_s(value, text);
}

static struct json_object *new_field(const void *object, const struct tierce__field *field,
                                     bool *is_nothing)
{
    const void *at = (const char *)object + field->offset;
    switch ((enum tierce__field_kind)field->kind) {
    case TIERCE__FIELD_TEXT:
        *is_nothing = **(char *const *)at == '\0';
        return json_object_new_string(*(char *const *)at);
    case TIERCE__FIELD_BOOL:
        *is_nothing = !*(const bool *)at;
        return json_object_new_boolean(*(const bool *)at);
    case TIERCE__FIELD_DOUBLE:
        return new_double(*(const double *)at);
    case TIERCE__FIELD_INT32:
        *is_nothing = *(const int32_t *)at == 0;
        return json_object_new_int(*(const int32_t *)at);
    case TIERCE__FIELD_INT64:
    case TIERCE__FIELD_UINT64:
        break;
    }
    *is_nothing = *(const int64_t *)at == 0;
    return json_object_new_int64(*(const int64_t *)at);
}

static int put_fields(struct json_object *json, const void *object,
                      const struct tierce__fields *fields, uint32_t types)
{
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__field *field = &fields->rows[i];
        bool is_nothing = false;
        if (!is_of(field, types))
            continue;
        struct json_object *value = new_field(object, field, &is_nothing);
        if (field->is_own && is_nothing) {
            json_object_put(value);
            continue;
        }
        int rc = put_at(json, field->path, value);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int put_names(struct json_object *json, const char *key, char *const *names, size_t count)
{
    struct json_object *list = json_object_new_array();
    int rc = put(json, key, list);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = push(list, json_object_new_string(names[i]));
    return rc;
}

static int put_number(struct json_object *json, uint32_t number, enum tierce__json_form form)
{
    if (form == TIERCE__JSON_SHOWN || number == 0)
        return 0;
    return put(json, "number", json_object_new_int64(number));
}

/* Ends every writer: returns the object, or frees it on an error. */
static int hand_out(struct json_object **out, struct json_object *json, int rc)
{
    if (rc == 0)
        *out = json;
    else
        json_object_put(json);
    return rc;
}

int tierce__storage_to_json(struct json_object **out, const struct tierce__storage *storage,
                            enum tierce__json_form form)
{
    struct json_object *json = json_object_new_object();
    if (json == NULL)
        return -ENOMEM;
    int rc = put(json, "type", json_object_new_string(tierce__storage_type_name(storage->type)));
    if (rc == 0)
        rc = put_fields(json, storage, &tierce__storage_fields,
                        tierce__storage_type_bit(storage->type));
    if (rc == 0)
        rc = put_number(json, storage->number, form);
    return hand_out(out, json, rc);
}

static int put_quotas(struct json_object *json, const struct tierce__group *group)
{
    struct json_object *list = json_object_new_array();
    int rc = put_at(json, "quota.quota_config", list);
    for (size_t i = 0; rc == 0 && i < group->type_quota_count; i++) {
        const struct tierce__type_quota *quota = &group->type_quotas[i];
        struct json_object *entry = json_object_new_object();
        rc = push(list, entry);
        if (rc == 0)
            rc = put(entry, "storage_type",
                     json_object_new_string(tierce__storage_type_name(quota->type)));
        if (rc == 0)
            rc = put(entry, "capacity", json_object_new_int64(quota->capacity_bytes));
    }
    return rc;
}

int tierce__group_to_json(struct json_object **out, const struct tierce__group *group,
                          enum tierce__json_form form)
{
    struct json_object *json = json_object_new_object();
    if (json == NULL)
        return -ENOMEM;
    int rc = put_fields(json, group, &tierce__group_fields, 0);
    if (rc == 0)
        rc = put_names(json, "storage_candidates", group->storage_candidates,
                       group->storage_candidate_count);
    if (rc == 0)
        rc = put_quotas(json, group);
    if (rc == 0)
        rc = put_number(json, group->number, form);
    return hand_out(out, json, rc);
}

static int put_specs(struct json_object *json, const struct tierce__instance *instance)
{
    struct json_object *list = json_object_new_array();
    int rc = put(json, "location_spec_infos", list);
    for (size_t i = 0; rc == 0 && i < instance->spec_count; i++) {
        struct json_object *entry = json_object_new_object();
        rc = push(list, entry);
        if (rc == 0)
            rc = put(entry, "name", json_object_new_string(instance->specs[i].name));
        if (rc == 0)
            rc = put(entry, "size", json_object_new_int64(instance->specs[i].size));
    }
    return rc;
}

static int put_spec_groups(struct json_object *json, const struct tierce__instance *instance)
{
    struct json_object *list = json_object_new_array();
    int rc = put(json, "location_spec_groups", list);
    for (size_t i = 0; rc == 0 && i < instance->spec_group_count; i++) {
        const struct tierce__spec_group *group = &instance->spec_groups[i];
        struct json_object *entry = json_object_new_object();
        rc = push(list, entry);
        if (rc == 0)
            rc = put(entry, "name", json_object_new_string(group->name));
        if (rc == 0)
            rc = put_names(entry, "spec_names", group->spec_names, group->spec_name_count);
    }
    return rc;
}

int tierce__instance_to_json(struct json_object **out, const struct tierce__instance *instance,
                             enum tierce__json_form form)
{
    struct json_object *json = json_object_new_object();
    if (json == NULL)
        return -ENOMEM;
    int rc = put_fields(json, instance, &tierce__instance_fields, 0);
    if (rc == 0)
        rc = put_specs(json, instance);
    struct json_object *model = rc == 0 ? object_at(json, "model_deployment") : NULL;
    if (rc == 0)
        rc =
            model != NULL ? put_fields(model, &instance->model, &tierce__model_fields, 0) : -ENOMEM;
    if (rc == 0)
        rc = put_spec_groups(json, instance);
    if (rc == 0)
        rc = put_number(json, instance->number, form);
    return hand_out(out, json, rc);
}

int tierce__account_to_json(struct json_object **out, const struct tierce__account *account)
{
    struct json_object *json = json_object_new_object();
    if (json == NULL)
        return -ENOMEM;
    int rc = put_fields(json, account, &tierce__account_fields, 0);
    if (rc == 0)
        rc = put(json, "role", json_object_new_int((int)account->role));
    return hand_out(out, json, rc);
}
