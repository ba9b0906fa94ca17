/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "base/text/utf8.h"
#include "manager/registry/model.h"

#include <inttypes.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES_MAX = 128 };

/* ---- in -------------------------------------------------------------------------------------- */

static int complain(char why[256], const char *path, const char *fault)
{
    snprintf(why, 256, "%s %s", path, fault);
    return TIERCE_E_FORMAT;
}

int tierce__model_parse_json(struct tierce__json_doc *out, const char *text, size_t bytes,
                             char why[256])
{
    struct tierce__json_doc doc = {0};
    const char *reason = "other type";
    bool is_utf8 = tierce__is_utf8(text, bytes);
    int rc = is_utf8 ? tierce__json_parse(&doc, text, bytes, &reason) : TIERCE_E_FORMAT;
    if (rc == 0 && tierce__json_value_kind(doc.value) != '{')
        rc = TIERCE_E_FORMAT;
    if (rc == 0) {
        *out = doc;
        return 0;
    }
    if (rc == -ENOMEM)
        snprintf(why, 256, "%s", tierce_strerror(rc));
    else
        snprintf(why, 256, "not a JSON object: %s", is_utf8 ? reason : "not UTF-8");
    tierce__json_doc_clear(&doc);
    return rc;
}

/* An object whose members are being read. */
struct model_json_reader {
    const struct tierce__fields *fields;
    void *object;
    uint32_t types;
    char *why;
    char path[PATH_BYTES_MAX]; /* of the member */
};

/* Replaces *out by a text without NUL bytes. */
static int take_text(char **out, struct tierce__text value, const char *path, char why[256])
{
    char *text = NULL;
    if (tierce__json_value_kind(value) != '"')
        return complain(why, path, "is not a string");
    int rc = tierce__json_copy_text(&text, value, "");
    if (rc != 0)
        return rc == TIERCE_E_FORMAT ? complain(why, path, "holds a NUL byte; strings must not")
                                     : rc;
    tierce__free(*out);
    *out = text;
    return 0;
}

/* Integers beyond 64 bits become the nearest one. */
static int take_number(struct model_json_reader *r, const struct tierce__model_field *field,
                       struct tierce__text value)
{
    TIERCE_DASSERT(field->kind == TIERCE__FIELD_INT || field->kind == TIERCE__FIELD_UINT ||
                   field->kind == TIERCE__FIELD_DOUBLE);
    bool is_double = field->kind == TIERCE__FIELD_DOUBLE;
    if (is_double) {
        double number = tierce__json_get_number(value, "");
        if (!isfinite(number))
            return complain(r->why, field->path, "is not a number");
        memcpy(tierce__field_at(r->object, field), &number, sizeof(number));
        return 0;
    }
    if (!tierce__json_is_integer(value))
        return complain(r->why, field->path, "is not an integer");
    bool is_signed = field->kind == TIERCE__FIELD_INT;
    bool is_closed = (field->flags & TIERCE__FIELD_IS_CLOSED) != 0;
    int64_t number = strtoll(value.at, NULL, 10); /* what follows the value ends it */
    int64_t max =
        field->bytes == sizeof(int64_t) ? INT64_MAX : INT64_C(1) << (8 * field->bytes - is_signed);
    int64_t min = is_closed ? field->low : is_signed ? -max - (max == INT64_MAX) : 0;
    max = is_closed ? field->high : max - (max < INT64_MAX);
    TIERCE_DASSERT(min <= max);
    if (number < min || number > max) {
        char fault[80];
        snprintf(fault, sizeof(fault), "is out of range; accepted are %" PRId64 " to %" PRId64, min,
                 max);
        return complain(r->why, field->path, fault);
    }
    tierce__field_set_integer(r->object, field, number);
    return 0;
}

/* A type as KVCM writes it: its name, or its number (its writer gives both under one key). */
static int take_type(struct model_json_reader *r, const struct tierce__model_field *field,
                     struct tierce__text value)
{
    TIERCE_DASSERT(field->kind == TIERCE__FIELD_TYPE);
    enum { NAME_BYTES_MAX = 32 };
    enum tierce__storage_type type = TIERCE__STORAGE_NONE;
    char name[NAME_BYTES_MAX];
    if (tierce__json_value_kind(value) != '"') {
        int64_t number = tierce__json_get_int(value, "", -1);
        if (number < 0 || number > UINT8_MAX)
            return complain(r->why, field->path, "is not a known storage type");
        type = (enum tierce__storage_type)number;
        snprintf(name, sizeof(name), "%s", tierce__storage_type_name(type));
    } else if (!tierce__json_get_text(name, sizeof(name), value, "")) {
        name[0] = '\0';
    }
    if (!tierce__storage_type_find(&type, name))
        return complain(r->why, field->path, "is not a known storage type");
    tierce__field_set_integer(r->object, field, type);
    return 0;
}

static int take_list(struct model_json_reader *r, const struct tierce__model_field *field,
                     struct tierce__text value)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    size_t count = tierce__json_count(value);
    char limit[64];
    if (tierce__json_value_kind(value) != '[')
        return complain(r->why, field->path, "is not a list");
    snprintf(limit, sizeof(limit), "has more than %zu entries", tierce__field_list_max(field));
    if (count > tierce__field_list_max(field))
        return complain(r->why, field->path, limit);
    tierce__model_clear_list(r->object, field); /* of a key that comes twice */
    char **list = tierce__field_at(r->object, field);
    *list = tierce__calloc(count, field->items->size);
    if (*list == NULL)
        return -ENOMEM;
    *tierce__field_count(r->object, field) = count;
    struct tierce__json each = tierce__json_each(value);
    struct tierce__text ignored, entry;
    int rc = 0;
    for (size_t i = 0; rc == 0 && tierce__json_next(&each, &ignored, &entry); i++) {
        char inner[256] = "";
        void *item = tierce__field_item(r->object, field, i);
        TIERCE_ASSERT(i < count);
        if (field->kind == TIERCE__FIELD_NAMES)
            rc = take_text(item, entry, field->path, r->why);
        else
            rc = tierce__model_take_json(item, field->items, entry, inner);
        if (inner[0] != '\0')
            snprintf(r->why, 256, "%s[%zu]: %.200s", field->path, i, inner);
    }
    return rc;
}

static int take_field(struct model_json_reader *r, const struct tierce__model_field *field,
                      struct tierce__text value)
{
    char kind = tierce__json_value_kind(value);
    switch ((enum tierce__field_kind)field->kind) {
    case TIERCE__FIELD_TEXT:
        return take_text(tierce__field_text(r->object, field), value, field->path, r->why);
    case TIERCE__FIELD_BOOL:
        if (kind != 't' && kind != 'f')
            return complain(r->why, field->path, "is not true or false");
        tierce__field_set_integer(r->object, field, kind == 't');
        return 0;
    case TIERCE__FIELD_TYPE:
        return take_type(r, field, value);
    case TIERCE__FIELD_NAMES:
    case TIERCE__FIELD_LIST:
        return take_list(r, field, value);
    case TIERCE__FIELD_INT:
    case TIERCE__FIELD_UINT:
    case TIERCE__FIELD_DOUBLE:
        break;
    }
    return take_number(r, field, value);
}

/* The row of r->path; NULL: none. `is_folder`: rows lie below it. */
static const struct tierce__model_field *find_field(const struct model_json_reader *r,
                                                    bool *is_folder)
{
    TIERCE_DASSERT(strlen(r->path) < sizeof(r->path));
    size_t bytes = strlen(r->path);
    *is_folder = false;
    for (size_t i = 0; i < r->fields->count; i++) {
        const struct tierce__model_field *field = &r->fields->rows[i];
        if (!tierce__field_is_of(field, r->types) || strncmp(field->path, r->path, bytes) != 0)
            continue;
        if (field->path[bytes] == '\0')
            return field;
        *is_folder = *is_folder || field->path[bytes] == '.';
    }
    return NULL;
}

/* The members of the object at r->path, "" for the whole entry. */
static int take_members(struct model_json_reader *r, struct tierce__text object)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(object);
    size_t before = strlen(r->path);
    TIERCE_DASSERT(before < sizeof(r->path));
    int rc = 0;
    if (tierce__json_value_kind(object) != '{')
        return complain(r->why, before > 0 ? r->path : "the entry", "is not an object");
    while (rc == 0 && tierce__json_next(&each, &name, &value)) {
        bool is_folder;
        if (before + name.length + 2 > sizeof(r->path) || memchr(name.at, '.', name.length) != NULL)
            continue;
        snprintf(r->path + before, sizeof(r->path) - before, "%s%.*s", before > 0 ? "." : "",
                 (int)name.length, name.at);
        const struct tierce__model_field *field = find_field(r, &is_folder);
        if (field != NULL)
            rc = take_field(r, field, value);
        else if (is_folder)
            rc = take_members(r, value);
        r->path[before] = '\0';
    }
    return rc;
}

/* Reads the type of an object, which selects its other fields. */
static int take_type_first(struct model_json_reader *r, struct tierce__text object)
{
    const struct tierce__model_field *row = &r->fields->rows[0];
    struct tierce__text value = tierce__json_get(object, row->path);
    TIERCE_DASSERT(row->kind == TIERCE__FIELD_TYPE && strchr(row->path, '.') == NULL);
    return value.length > 0 ? take_type(r, row, value) : complain(r->why, row->path, "is missing");
}

int tierce__model_take_json(void *out, const struct tierce__fields *fields,
                            struct tierce__text value, char why[256])
{
    union tierce__entry borrowed, entry;
    struct model_json_reader r = {
        .fields = fields, .object = &entry, .types = UINT32_MAX, .why = why};
    TIERCE_ASSERT(fields->size <= sizeof(entry));
    tierce__model_start(&borrowed, fields);
    int rc = tierce__model_copy(&entry, &borrowed, fields);
    if (rc != 0)
        return rc;
    if (fields->rows[0].kind == TIERCE__FIELD_TYPE)
        rc = take_type_first(&r, value);
    r.types = tierce__model_types(&entry, fields);
    if (rc == 0)
        rc = take_members(&r, value);
    if (rc == 0 && fields->finish != NULL)
        rc = fields->finish(&entry, value, why);
    if (rc == 0)
        memcpy(out, &entry, fields->size);
    else
        tierce__model_clear(&entry, fields);
    return rc;
}

/* ---- unknown names --------------------------------------------------------------------------- */

struct unknown_names {
    struct model_json_reader r;
    tierce__model_unknown_fn *each;
    void *arg;
};

static void walk_list(struct unknown_names *names, const struct tierce__model_field *field,
                      struct tierce__text list);

/* Mirrors take_members. */
static void walk_members(struct unknown_names *names, struct tierce__text object)
{
    struct model_json_reader *r = &names->r;
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(object);
    size_t before = strlen(r->path);
    while (tierce__json_next(&each, &name, &value)) {
        bool is_folder = false;
        snprintf(r->path + before, sizeof(r->path) - before, "%s%.*s", before > 0 ? "." : "",
                 (int)(name.length < PATH_BYTES_MAX ? name.length : PATH_BYTES_MAX), name.at);
        bool has_dot = memchr(name.at, '.', name.length) != NULL;
        const struct tierce__model_field *field = has_dot ? NULL : find_field(r, &is_folder);
        if (field != NULL && field->kind == TIERCE__FIELD_LIST)
            walk_list(names, field, value);
        else if (field == NULL && is_folder && !has_dot)
            walk_members(names, value);
        else if (field == NULL)
            names->each(names->arg, r->path);
        r->path[before] = '\0';
    }
}

void tierce__model_each_unknown(const struct tierce__fields *fields, struct tierce__text value,
                                tierce__model_unknown_fn *each, void *arg)
{
    union tierce__entry borrowed;
    char ignored[256];
    struct unknown_names names = {
        .r = {.fields = fields, .object = &borrowed, .types = UINT32_MAX, .why = ignored},
        .each = each,
        .arg = arg};
    if (tierce__json_value_kind(value) != '{')
        return;
    tierce__model_start(&borrowed, fields);
    if (fields->rows[0].kind == TIERCE__FIELD_TYPE && take_type_first(&names.r, value) == 0)
        names.r.types = tierce__model_types(&borrowed, fields);
    walk_members(&names, value);
}

struct unknown_item {
    const struct unknown_names *names;
    size_t index;
};

static void on_item(void *arg, const char *path)
{
    const struct unknown_item *item = arg;
    char text[2 * PATH_BYTES_MAX + 32];
    snprintf(text, sizeof(text), "%s[%zu].%s", item->names->r.path, item->index, path);
    item->names->each(item->names->arg, text);
}

static void walk_list(struct unknown_names *names, const struct tierce__model_field *field,
                      struct tierce__text list)
{
    struct unknown_item item = {.names = names};
    struct tierce__json each = tierce__json_each(list);
    struct tierce__text ignored, entry;
    if (tierce__json_value_kind(list) != '[')
        return;
    for (; tierce__json_next(&each, &ignored, &entry); item.index++)
        tierce__model_each_unknown(field->items, entry, on_item, &item);
}

/* ---- whole texts ----------------------------------------------------------------------------- */

int tierce__model_from_json(void *out, const struct tierce__fields *fields, const char *text,
                            size_t bytes, char why[256])
{
    struct tierce__json_doc doc = {0};
    int rc = tierce__model_parse_json(&doc, text, bytes, why);
    if (rc == 0)
        rc = tierce__model_take_json(out, fields, doc.value, why);
    tierce__json_doc_clear(&doc);
    return rc;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Closes the objects around the key at the path `from`, and opens those around the key at `to`,
 * whose name it returns. */
static const char *move(struct tierce__json_write *json, const char *from, const char *to)
{
    char name[PATH_BYTES_MAX];
    size_t common = 0;
    for (size_t i = 0; from[i] != '\0' && from[i] == to[i]; i++)
        if (from[i] == '.')
            common = i + 1;
    for (from = strchr(from + common, '.'); from != NULL; from = strchr(from + 1, '.'))
        tierce__json_write_close(json, '}');
    to += common;
    for (const char *end = strchr(to, '.'); end != NULL; end = strchr(to, '.')) {
        TIERCE_ASSERT((size_t)(end - to) < sizeof(name));
        snprintf(name, sizeof(name), "%.*s", (int)(end - to), to);
        tierce__json_write_open(json, name, '{');
        to = end + 1;
    }
    return to;
}

/* The shortest text that reads back as the same number. */
static void put_double(struct tierce__json_write *json, const char *key, const void *at)
{
    char text[40];
    double value;
    memcpy(&value, at, sizeof(value));
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    TIERCE_DASSERT(strlen(text) + 3 <= sizeof(text));
    if (strpbrk(text, ".eni") == NULL)
        snprintf(text + strlen(text), 3, ".0");
    tierce__json_write_name(json, key);
    tierce__line_put(json->line, text);
}

static void put_list(struct tierce__json_write *json, const char *key, const void *object,
                     const struct tierce__model_field *field, enum tierce__json_form form)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    tierce__json_write_open(json, key, '[');
    for (size_t i = 0; i < *tierce__field_count(object, field); i++) {
        const void *item = tierce__field_item(object, field, i);
        if (field->kind == TIERCE__FIELD_NAMES)
            tierce__json_write_text(json, NULL, *(char *const *)item);
        else
            tierce__model_put_json(json, item, field->items, form);
    }
    tierce__json_write_close(json, ']');
}

static void put_field(struct tierce__json_write *json, const char *key, const void *object,
                      const struct tierce__model_field *field, enum tierce__json_form form)
{
    switch ((enum tierce__field_kind)field->kind) {
    case TIERCE__FIELD_TEXT:
        tierce__json_write_text(json, key, *tierce__field_text(object, field));
        return;
    case TIERCE__FIELD_BOOL:
        tierce__json_write_bool(json, key, tierce__field_integer(object, field) != 0);
        return;
    case TIERCE__FIELD_DOUBLE:
        put_double(json, key, tierce__field_at(object, field));
        return;
    case TIERCE__FIELD_TYPE:
        tierce__json_write_text(
            json, key,
            tierce__storage_type_name(
                (enum tierce__storage_type)tierce__field_integer(object, field)));
        return;
    case TIERCE__FIELD_NAMES:
    case TIERCE__FIELD_LIST:
        put_list(json, key, object, field, form);
        return;
    case TIERCE__FIELD_INT:
    case TIERCE__FIELD_UINT:
        break;
    }
    tierce__json_write_signed(json, key, tierce__field_integer(object, field));
}

/* Returns whether the form omits a field. */
static bool is_omitted(const void *object, const struct tierce__model_field *field,
                       enum tierce__json_form form)
{
    if ((field->flags & TIERCE__FIELD_IS_STORED) != 0 && form == TIERCE__JSON_SHOWN)
        return true;
    if ((field->flags & (TIERCE__FIELD_IS_OWN | TIERCE__FIELD_IS_STORED)) == 0)
        return false;
    TIERCE_DASSERT(field->kind != TIERCE__FIELD_DOUBLE);
    if (tierce__field_is_list(field))
        return *tierce__field_count(object, field) == 0;
    return field->kind == TIERCE__FIELD_TEXT ? **tierce__field_text(object, field) == '\0'
                                             : tierce__field_integer(object, field) == 0;
}

void tierce__model_put_members(struct tierce__json_write *json, const void *object,
                               const struct tierce__fields *fields, enum tierce__json_form form)
{
    uint32_t types = tierce__model_types(object, fields);
    const char *at = "";
    unsigned depth = json->depth;
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        if (!tierce__field_is_of(field, types) || is_omitted(object, field, form))
            continue;
        put_field(json, move(json, at, field->path), object, field, form);
        at = field->path;
    }
    move(json, at, "");
    TIERCE_DASSERT(json->depth == depth);
}

void tierce__model_put_json(struct tierce__json_write *json, const void *object,
                            const struct tierce__fields *fields, enum tierce__json_form form)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__model_put_members(json, object, fields, form);
    tierce__json_write_close(json, '}');
}

int tierce__model_to_json(char **out, const void *object, const struct tierce__fields *fields,
                          enum tierce__json_form form)
{
    struct tierce__line line = {0};
    tierce__model_put_json(&(struct tierce__json_write){.line = &line, .is_short = true}, object,
                           fields, form);
    tierce__line_put_bytes(&line, "", 1);
    if (line.failed) {
        tierce__line_clear(&line);
        return -ENOMEM;
    }
    *out = line.text;
    return 0;
}
