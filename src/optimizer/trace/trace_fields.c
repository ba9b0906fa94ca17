/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_fields.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/trace/trace_private.h"

#include <errno.h>
#include <string.h>

#define ROOM_MIN 256u

int tierce__ids_reserve(struct tierce__ids *ids)
{
    return TIERCE__GROW(ids->at, ids->capacity, ids->count + 1, ROOM_MIN);
}

static int reserve_flags(struct tierce__trace_mask *mask, size_t count)
{
    return TIERCE__GROW(mask->flags, mask->capacity, count, ROOM_MIN);
}

int tierce__mask_apply(struct tierce__trace_mask *mask, const uint8_t **internal, size_t count)
{
    uint8_t any = 0;
    *internal = NULL;
    if (!mask->is_offset && mask->count == 0)
        return 0;
    if (reserve_flags(mask, count) < 0)
        return -ENOMEM;
    TIERCE_ASSERT(count <= mask->capacity);
    for (size_t i = 0; i < count; i++) {
        if (mask->is_offset)
            mask->flags[i] = mask->offset < 0 || i < (uint64_t)mask->offset;
        else if (i >= mask->count)
            mask->flags[i] = 0;
        any |= mask->flags[i];
    }
    if (any != 0)
        *internal = mask->flags;
    return 0;
}

/* ---- values --------------------------------------------------------------------------------- */

static int read_ids(struct tierce__json *json, struct tierce__ids *ids)
{
    ids->count = 0;
    if (!tierce__json_array(json))
        return TIERCE_E_FORMAT;
    while (tierce__json_element(json)) {
        if (tierce__ids_reserve(ids) < 0)
            return -ENOMEM;
        ids->count += tierce__json_ids(json, ids->at + ids->count, ids->capacity - ids->count);
        TIERCE_DASSERT(ids->count <= ids->capacity);
    }
    return json->why == NULL ? 0 : TIERCE_E_FORMAT;
}

static int read_sizes(struct tierce__json *json, struct tierce__ids *sizes)
{
    sizes->count = 0;
    if (tierce__json_kind(json) == '0') {
        if (tierce__ids_reserve(sizes) < 0)
            return -ENOMEM;
        if (!tierce__json_u64(json, &sizes->at[0]))
            return TIERCE_E_FORMAT;
        sizes->count = 1;
    } else if (read_ids(json, sizes) < 0) {
        return json->why == NULL ? -ENOMEM : TIERCE_E_FORMAT;
    }
    for (size_t i = 0; i < sizes->count; i++) {
        if (sizes->at[i] > INT64_MAX)
            return tierce__json_fail(json, "is not a size"), TIERCE_E_FORMAT;
    }
    return 0;
}

/* 0 .. 15, or above for what is not a hex digit. */
static inline unsigned hex_digit(char c)
{
    unsigned digit = (unsigned char)c - '0', letter = ((unsigned char)c | 0x20u) - 'a';
    return digit < 10 ? digit : letter < 6 ? letter + 10 : 255;
}

static int read_hex_ids(struct tierce__json *json, struct tierce__ids *ids)
{
    struct tierce__text text;
    ids->count = 0;
    if (!tierce__json_plain(json, &text))
        return TIERCE_E_FORMAT;
    if (text.length % 16 != 0)
        (void)tierce__json_fail(json, "is not 16 hex digits for each block");
    for (size_t i = 0; json->why == NULL && i < text.length; i += 16) {
        uint64_t id = 0;
        unsigned wrong = 0;
        if (tierce__ids_reserve(ids) < 0)
            return -ENOMEM;
        for (size_t d = i; d < i + 16; d++) {
            unsigned digit = hex_digit(text.at[d]);
            wrong |= digit;
            id = id << 4 | (digit & 15);
        }
        if (wrong > 15)
            (void)tierce__json_fail(json, "holds a character that is not a hex digit");
        ids->at[ids->count++] = id;
    }
    return json->why == NULL ? 0 : TIERCE_E_FORMAT;
}

static int read_mask(struct tierce__json *json, struct tierce__trace_mask *mask)
{
    mask->count = 0;
    mask->is_offset = tierce__json_kind(json) == '0';
    if (mask->is_offset)
        return tierce__json_i64(json, &mask->offset) ? 0 : TIERCE_E_FORMAT;
    if (!tierce__json_array(json))
        return TIERCE_E_FORMAT;
    while (tierce__json_element(json)) {
        bool flag;
        if (reserve_flags(mask, mask->count + 1) < 0)
            return -ENOMEM;
        if (!tierce__json_bool(json, &flag))
            return TIERCE_E_FORMAT;
        mask->flags[mask->count++] = flag;
    }
    return json->why == NULL ? 0 : TIERCE_E_FORMAT;
}

static bool read_length(struct tierce__json *json, uint64_t *out)
{
    *out = 0;
    if (!tierce__json_array(json))
        return false;
    while (tierce__json_element(json) && tierce__json_skip(json))
        ++*out;
    return json->why == NULL;
}

/* A text, or a number as it is written. */
static bool read_name(struct tierce__json *json, struct tierce__name *name)
{
    if (tierce__json_kind(json) != '0')
        return tierce__json_text(json, name->text, sizeof(name->text), &name->length);
    const char *at = json->at;
    uint64_t ignored;
    if (!tierce__json_id(json, &ignored))
        return false;
    name->length = (size_t)(json->at - at);
    TIERCE_ASSERT(name->length < sizeof(name->text));
    memcpy(name->text, at, name->length);
    name->text[name->length] = '\0';
    return true;
}

static bool read_session(struct tierce__json *json, uint64_t *out)
{
    struct tierce__name name;
    if (tierce__json_kind(json) == '0') {
        uint64_t number;
        if (!tierce__json_id(json, &number))
            return false;
        *out = number + 1 != 0 ? number + 1 : 1;
        return true;
    }
    if (!tierce__json_text(json, name.text, sizeof(name.text), &name.length))
        return false;
    *out = tierce__trace_session_of(name.text, name.length);
    return true;
}

static bool read_time(struct tierce__json *json, int64_t *out, int scale)
{
    return tierce__json_scaled(json, out, scale) &&
           (*out >= 0 || tierce__json_fail(json, "is negative"));
}

static int read_value(struct tierce__json *json, const struct tierce__trace_field *field, void *out)
{
    void *value = (char *)out + field->offset;
    bool good = false;
    switch (field->type) {
    case TIERCE__FIELD_IDS:
        return read_ids(json, value);
    case TIERCE__FIELD_SIZES:
        return read_sizes(json, value);
    case TIERCE__FIELD_HEX_IDS:
        return read_hex_ids(json, value);
    case TIERCE__FIELD_MASK:
        return read_mask(json, value);
    case TIERCE__FIELD_TIME_S:
        good = read_time(json, value, 6);
        break;
    case TIERCE__FIELD_TIME_MS:
        good = read_time(json, value, 3);
        break;
    case TIERCE__FIELD_TIME_US:
        good = read_time(json, value, 0);
        break;
    case TIERCE__FIELD_COUNT:
        good = tierce__json_u64(json, value);
        break;
    case TIERCE__FIELD_INTEGER:
        good = tierce__json_i64(json, value);
        break;
    case TIERCE__FIELD_SESSION:
        good = read_session(json, value);
        break;
    case TIERCE__FIELD_NAME:
        good = read_name(json, value);
        break;
    case TIERCE__FIELD_LENGTH:
        good = read_length(json, value);
        break;
    case TIERCE__FIELD_OBJECT:
        good = tierce__json_kind(json) == '{' ? tierce__json_skip(json)
                                              : tierce__json_fail(json, "is not an object");
        break;
    }
    return good ? 0 : TIERCE_E_FORMAT;
}

/* The value of a missing field. */
static void clear_value(const struct tierce__trace_field *field, void *out)
{
    void *value = (char *)out + field->offset;
    switch (field->type) {
    case TIERCE__FIELD_IDS:
    case TIERCE__FIELD_SIZES:
    case TIERCE__FIELD_HEX_IDS:
        ((struct tierce__ids *)value)->count = 0;
        break;
    case TIERCE__FIELD_MASK:
        ((struct tierce__trace_mask *)value)->count = 0;
        ((struct tierce__trace_mask *)value)->is_offset = false;
        break;
    case TIERCE__FIELD_NAME:
        ((struct tierce__name *)value)->length = 0;
        ((struct tierce__name *)value)->text[0] = '\0';
        break;
    case TIERCE__FIELD_TIME_S:
    case TIERCE__FIELD_TIME_MS:
    case TIERCE__FIELD_TIME_US:
    case TIERCE__FIELD_COUNT:
    case TIERCE__FIELD_INTEGER:
    case TIERCE__FIELD_SESSION:
    case TIERCE__FIELD_LENGTH:
        *(uint64_t *)value = 0;
        break;
    case TIERCE__FIELD_OBJECT:
        break;
    }
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* The row of a name, or `count`. Fields mostly come in the order of the table: `hint` is tried
 * first. */
static inline bool is_field(const struct tierce__trace_field *field, struct tierce__text name)
{
    return field->name_length == name.length && memcmp(field->name, name.at, name.length) == 0;
}

static inline size_t find_field(const struct tierce__trace_field *fields, size_t count, size_t hint,
                                struct tierce__text name)
{
    if (hint < count && is_field(&fields[hint], name))
        return hint;
    for (size_t i = 0; i < count; i++) {
        if (is_field(&fields[i], name))
            return i;
    }
    return count;
}

/* The parser's position: the row of the current field, NULL between fields and for unknown
 * fields. */
struct trace_field_reading {
    struct tierce__json json;
    const struct tierce__trace_field *fields;
    size_t count;
    const struct tierce__trace_field *field;
    uint32_t had, seen;
};

static int read_line(struct trace_field_reading *r, void *out)
{
    struct tierce__text name;
    size_t hint = 0;
    if (!tierce__json_object(&r->json))
        return TIERCE_E_FORMAT;
    while (tierce__json_member(&r->json, &name)) {
        size_t i = find_field(r->fields, r->count, hint, name);
        if (i == r->count) {
            (void)tierce__json_skip(&r->json);
            continue;
        }
        TIERCE_DASSERT(i < TIERCE__FIELDS_MAX);
        r->field = &r->fields[i];
        hint = i + 1;
        if ((r->had >> i & 1) != 0) {
            (void)tierce__json_fail(&r->json, "occurs twice");
            return TIERCE_E_FORMAT;
        }
        r->had |= 1u << i;
        if (tierce__json_kind(&r->json) != 'n') {
            int rc = read_value(&r->json, r->field, out);
            if (rc < 0)
                return rc;
            r->seen |= 1u << i;
        } else if (!tierce__json_skip(&r->json)) {
            return TIERCE_E_FORMAT;
        }
        r->field = NULL;
    }
    return tierce__json_end(&r->json) ? 0 : TIERCE_E_FORMAT;
}

int tierce__fields_read(struct tierce__trace *trace, const char *line, size_t length,
                        const struct tierce__trace_field *fields, size_t count, uint32_t wanted,
                        void *out, uint32_t *seen)
{
    struct trace_field_reading r = {.fields = fields, .count = count};
    TIERCE_DASSERT(count <= TIERCE__FIELDS_MAX);
    tierce__json_start(&r.json, line, length);
    int rc = read_line(&r, out);
    if (rc == TIERCE_E_FORMAT && r.field != NULL)
        return tierce__trace_bad(trace, "\"%s\": %s (column %zu)", r.field->name, r.json.why,
                                 r.json.column);
    if (rc == TIERCE_E_FORMAT)
        return tierce__trace_bad(trace, "%s (column %zu)", r.json.why, r.json.column);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < count; i++) {
        if ((r.seen >> i & 1) != 0)
            continue;
        if ((wanted >> i & 1) != 0)
            return tierce__trace_bad(trace, "\"%s\" is missing", fields[i].name);
        clear_value(&fields[i], out);
    }
    *seen = r.seen;
    return 0;
}

uint32_t tierce__fields_probe(const char *head, size_t length,
                              const struct tierce__trace_field *fields, size_t count)
{
    struct tierce__json json;
    struct tierce__text name;
    uint32_t seen = 0;
    tierce__json_start(&json, head, length);
    if (!tierce__json_object(&json))
        return 0;
    while (tierce__json_member(&json, &name)) {
        size_t i = find_field(fields, count, 0, name);
        if (i < count)
            seen |= 1u << i;
        if (!tierce__json_skip(&json))
            break;
    }
    return seen;
}
