/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_MODEL_FIELDS_H
#define TIERCE_MANAGER_MODEL_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/assert.h"
#include "base/json/json_value.h"

/*
 * The fields of the structs of model.h: a table for each struct, with a row for each member. The
 * functions below work on any of these structs; model.h has typed forms of the common ones. A new
 * member needs a row in model_fields.c and nothing else, unless it has a rule of its own
 * (registry_rules.c). tests/unit/manager/test_model_fields.c checks that no member lacks a row.
 *
 * Threads: any; an object one at a time.
 */

enum tierce__field_kind {
    TIERCE__FIELD_TEXT, /* char * */
    TIERCE__FIELD_BOOL,
    TIERCE__FIELD_INT,
    TIERCE__FIELD_UINT, /* at most INT64_MAX; enums too */
    TIERCE__FIELD_DOUBLE,
    TIERCE__FIELD_TYPE,  /* enum tierce__storage_type: in JSON its name, and required */
    TIERCE__FIELD_NAMES, /* char ** and a count */
    TIERCE__FIELD_LIST,  /* an array of structs and a count */
};

enum {
    TIERCE__FIELD_IS_OWN = 1,            /* not in KVCM's JSON: written only if it is not 0 or "" */
    TIERCE__FIELD_IS_STORED = 2,         /* as IS_OWN, and not shown to clients */
    TIERCE__FIELD_IS_CLOSED = 4,         /* JSON with a value outside the limits is rejected */
    TIERCE__FIELD_IS_NEEDED = 8,         /* requests must set it */
    TIERCE__FIELD_IS_SAME = 16,          /* equal in all registrations of an instance */
    TIERCE__FIELD_IS_SAME_IF_KNOWN = 32, /* in those that know the kind of attention */
};

struct tierce__model_field {
    const char *path;                   /* in KVCM's JSON: keys joined by dots */
    const char *message;                /* in messages; NULL: the same path; "": in none */
    const struct tierce__fields *items; /* of NAMES and LIST */
    int64_t low, high;                /* accepted integers; 0, 0: any. Entries of a list: `high` */
    int64_t initial;                  /* of an integer that is missing in JSON */
    const char *label;                /* in messages about limits; NULL: the path from `head` */
    uint8_t kind, flags, head, bytes; /* bytes: of the member */
    uint16_t offset, count_offset;
    uint32_t types; /* bits (1 << slot) of the types of storages that have the field; 0: all */
};

struct tierce__fields {
    const struct tierce__model_field *rows;
    size_t count;
    size_t size;       /* of the struct */
    size_t name;       /* offset of its name */
    const char *noun;  /* in error messages; NULL: that of the struct that contains it */
    bool is_of_a_type; /* row 0 is the type, and selects the other rows by `types` */
    /* Completes an object after its rows were read from JSON. NULL: nothing to do. Errors: as
     * tierce__model_take_json. */
    int (*finish)(void *object, struct tierce__text json, char why[256]);
};

extern const struct tierce__fields tierce__storage_fields;
extern const struct tierce__fields tierce__group_fields;
extern const struct tierce__fields tierce__instance_fields;
extern const struct tierce__fields tierce__account_fields;

/* Whether an object of these types has the field. */
static inline bool tierce__field_is_of(const struct tierce__model_field *field, uint32_t types)
{
    return field->types == 0 || (field->types & types) != 0;
}

static inline bool tierce__field_is_list(const struct tierce__model_field *field)
{
    return field->kind == TIERCE__FIELD_NAMES || field->kind == TIERCE__FIELD_LIST;
}

static inline void *tierce__field_at(const void *object, const struct tierce__model_field *field)
{
    return (char *)(uintptr_t)object + field->offset;
}

static inline char **tierce__field_text(const void *object, const struct tierce__model_field *field)
{
    TIERCE_DASSERT(field->kind == TIERCE__FIELD_TEXT);
    return tierce__field_at(object, field);
}

static inline size_t *tierce__field_count(const void *object,
                                          const struct tierce__model_field *field)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    return (size_t *)(void *)((char *)(uintptr_t)object + field->count_offset);
}

/* The most entries that a list may have: `high`; 0: 65535. */
size_t tierce__field_list_max(const struct tierce__model_field *field);

/* Entry i of a list. */
static inline void *tierce__field_item(const void *object, const struct tierce__model_field *field,
                                       size_t i)
{
    TIERCE_DASSERT(i < *tierce__field_count(object, field));
    return *(char **)tierce__field_at(object, field) + i * field->items->size;
}

/* The bits by which rows select an object; all of them for structs without a type. */
uint32_t tierce__model_types(const void *object, const struct tierce__fields *fields);

/* The value of an integer, bool or type. */
int64_t tierce__field_integer(const void *object, const struct tierce__model_field *field);
void tierce__field_set_integer(void *object, const struct tierce__model_field *field,
                               int64_t value);

/* Sets every member of an uninitialised object: the defaults, "" and empty lists. The texts are
 * borrowed: the object is overwritten or copied, not cleared. */
void tierce__model_start(void *object, const struct tierce__fields *fields);

/* A deep copy; NULL texts become "". Errors: -ENOMEM, *out untouched. */
TIERCE_MUSTUSE int tierce__model_copy(void *out, const void *in,
                                      const struct tierce__fields *fields);
/* Frees and zeroes; accepts a zeroed object. */
void tierce__model_clear(void *object, const struct tierce__fields *fields);
/* Frees and empties one list. */
void tierce__model_clear_list(void *object, const struct tierce__model_field *field);

/* The first row with all of these flags whose values differ; NULL: none. */
const struct tierce__model_field *tierce__model_difference(const void *a, const void *b,
                                                           const struct tierce__fields *fields,
                                                           unsigned flags);

/* Whether all values can be stored and read back (UTF-8, finite) and lie within their limits.
 * Errors: TIERCE_E_ARGUMENT, `why` in words. */
TIERCE_MUSTUSE int tierce__model_check(const void *object, const struct tierce__fields *fields,
                                       char why[256]);

/* ---- JSON (model_json.c) --------------------------------------------------------------------- */

struct tierce__json_write;

enum tierce__json_form {
    TIERCE__JSON_SHOWN,  /* for clients */
    TIERCE__JSON_STORED, /* with the numbers that only the registry uses */
};

/* Checks a text that is a JSON object in UTF-8. Errors: TIERCE_E_FORMAT, `why` in words; -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__model_parse_json(struct tierce__json_doc *out, const char *text,
                                            size_t bytes, char why[256]);

/* Reads an object from a value of such a text. Missing keys keep their defaults; unknown keys are
 * ignored. Errors, *out untouched: TIERCE_E_FORMAT, `why` names the field; -ENOMEM. */
TIERCE_MUSTUSE int tierce__model_take_json(void *out, const struct tierce__fields *fields,
                                           struct tierce__text value, char why[256]);

/* Calls `each` for every name of such a value that take_json ignores, with its path, as in
 * "quota.quota_config[0].size"; long ones are cut. The value need not be complete. */
typedef void tierce__model_unknown_fn(void *arg, const char *path);
void tierce__model_each_unknown(const struct tierce__fields *fields, struct tierce__text value,
                                tierce__model_unknown_fn *each, void *arg);

/* The same as take_json for a whole text. */
TIERCE_MUSTUSE int tierce__model_from_json(void *out, const struct tierce__fields *fields,
                                           const char *text, size_t bytes, char why[256]);

/* Writes an object: KVCM's keys in its order. */
void tierce__model_put_json(struct tierce__json_write *json, const void *object,
                            const struct tierce__fields *fields, enum tierce__json_form form);

/* The same without the braces, so that the caller can add members. */
void tierce__model_put_members(struct tierce__json_write *json, const void *object,
                               const struct tierce__fields *fields, enum tierce__json_form form);

/* An object to a text (heap, tierce__free). Errors: -ENOMEM, *out untouched. */
TIERCE_MUSTUSE int tierce__model_to_json(char **out, const void *object,
                                         const struct tierce__fields *fields,
                                         enum tierce__json_form form);

/* ---- messages (model_message.c) -------------------------------------------------------------- */

struct tierce__arena;

/*
 * The fields below `prefix` ("", or "storage_spec.") from a message, and to one. Fields that the
 * message's type does not have keep their values. An object that was read borrows texts from the
 * message and lists from the arena. A message that was written borrows the object's texts, and
 * takes memory from `root`, a message of tierce__proto_create. Errors: -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__model_from_message(void *object, const struct tierce__fields *fields,
                                              const char *prefix, const ProtobufCMessage *message,
                                              struct tierce__arena *arena);
TIERCE_MUSTUSE int tierce__model_to_message(ProtobufCMessage *message, ProtobufCMessage *root,
                                            const struct tierce__fields *fields, const char *prefix,
                                            const void *object);

/* Finds a field that requests must set and that a message lacks: `missing` becomes its path as
 * KVCM's replies show it, "a: {b}", and the result true. */
bool tierce__model_lacks(const ProtobufCMessage *message, const struct tierce__fields *fields,
                         char missing[256]);

#endif
