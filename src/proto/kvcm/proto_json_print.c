/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/utf8.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/proto_private.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text that grows. The first failure stays in rc, and nothing is written behind it. */
struct text {
    char *bytes;
    size_t used, size, max;
    int rc;
};

#define TEXT_BYTES_FIRST 1024u
#define NUMBER_BYTES_MAX 32u

/* Room for so many bytes, to be written at the pointer, or NULL. */
static char *reserve(struct text *text, size_t bytes)
{
    if (text->rc != 0)
        return NULL;
    if (bytes > text->max - text->used) {
        text->rc = TIERCE_E_LIMIT;
        return NULL;
    }
    if (bytes > text->size - text->used) {
        size_t size = text->size < TEXT_BYTES_FIRST ? TEXT_BYTES_FIRST : text->size;
        while (size - text->used < bytes && size <= SIZE_MAX / 4)
            size *= 2;
        char *grown = size - text->used >= bytes ? tierce__realloc(text->bytes, size) : NULL;
        if (grown == NULL) {
            text->rc = -ENOMEM;
            return NULL;
        }
        text->bytes = grown;
        text->size = size;
    }
    return text->bytes + text->used;
}

static void put(struct text *text, const char *bytes, size_t count)
{
    char *at = reserve(text, count);
    if (at == NULL)
        return;
    memcpy(at, bytes, count);
    text->used += count;
}

static void put_char(struct text *text, char c)
{
    put(text, &c, 1);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void put_integer(struct text *text, int64_t value)
{
    char digits[NUMBER_BYTES_MAX], *at = digits + sizeof(digits);
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0)
        *--at = '-';
    put(text, at, (size_t)(digits + sizeof(digits) - at));
}

static void put_int64(struct text *text, int64_t value)
{
    put_char(text, '"');
    put_integer(text, value);
    put_char(text, '"');
}

/* The shorter of two precisions that reads back as the same number. */
static void put_double(struct text *text, double value)
{
    char number[NUMBER_BYTES_MAX];
    if (isnan(value)) {
        put(text, "\"NaN\"", 5);
    } else if (isinf(value)) {
        put(text, value < 0 ? "\"-Infinity\"" : "\"Infinity\"", value < 0 ? 11 : 10);
    } else {
        int length = snprintf(number, sizeof(number), "%.15g", value);
        if (strtod(number, NULL) != value)
            length = snprintf(number, sizeof(number), "%.17g", value);
        put(text, number, (size_t)length);
    }
}

/* The escape of a character, its length in *count; NULL if it needs none. */
static const char *escape_of(unsigned char c, char room[8], size_t *count)
{
    static const char characters[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    if (c >= 0x20 && c != '"' && c != '\\')
        return NULL;
    const char *found = c != 0 ? strchr(characters, c) : NULL;
    *count = found != NULL ? 2 : 6;
    if (found != NULL)
        snprintf(room, 8, "\\%c", letters[found - characters]);
    else
        snprintf(room, 8, "\\u%04x", c);
    return room;
}

static void put_string(struct text *text, const char *value)
{
    value = value != NULL ? value : "";
    size_t length = strlen(value);
    if (!tierce__is_utf8(value, length)) {
        text->rc = text->rc != 0 ? text->rc : TIERCE_E_FORMAT;
        return;
    }
    put_char(text, '"');
    size_t start = 0;
    for (size_t i = 0; i < length; i++) {
        char room[8];
        size_t count;
        const char *escape = escape_of((unsigned char)value[i], room, &count);
        if (escape == NULL)
            continue;
        put(text, value + start, i - start);
        put(text, escape, count);
        start = i + 1;
    }
    put(text, value + start, length - start);
    put_char(text, '"');
}

static void put_enum(struct text *text, const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);
    if (known == NULL) {
        put_integer(text, value);
        return;
    }
    put_char(text, '"');
    put(text, known->name, strlen(known->name));
    put_char(text, '"');
}

static void put_message(struct text *text, const ProtobufCMessage *message);

/* One value of a field's type at `at`. */
static void put_value(struct text *text, const ProtobufCFieldDescriptor *field, const void *at)
{
    if (field->type == PROTOBUF_C_TYPE_INT32)
        put_integer(text, *(const int32_t *)at);
    else if (field->type == PROTOBUF_C_TYPE_INT64)
        put_int64(text, *(const int64_t *)at);
    else if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        put_double(text, *(const double *)at);
    else if (field->type == PROTOBUF_C_TYPE_BOOL)
        *(const protobuf_c_boolean *)at ? put(text, "true", 4) : put(text, "false", 5);
    else if (field->type == PROTOBUF_C_TYPE_ENUM)
        put_enum(text, field->descriptor, *(const int *)at);
    else if (field->type == PROTOBUF_C_TYPE_STRING)
        put_string(text, *(const char *const *)at);
    else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        put_message(text, *(const ProtobufCMessage *const *)at);
    else
        tierce__panic(__FILE__, __LINE__, "a field of an unsupported type");
}

static size_t value_bytes(ProtobufCType type)
{
    switch ((int)type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    default:
        return 8;
    }
}

_Static_assert(sizeof(protobuf_c_boolean) == 4 && sizeof(int) == 4 && sizeof(void *) == 8,
               "value_bytes");

/* ---- messages -------------------------------------------------------------------------------- */

static void put_repeated(struct text *text, const ProtobufCMessage *message,
                         const ProtobufCFieldDescriptor *field)
{
    const char *at = *(const char *const *)tierce__proto_at(message, field->offset);
    size_t count = tierce__proto_count(message, field);
    size_t step = value_bytes(field->type);
    put_char(text, '[');
    for (size_t i = 0; i < count && text->rc == 0; i++) {
        if (i > 0)
            put_char(text, ',');
        put_value(text, field, at + i * step);
    }
    put_char(text, ']');
}

/* Sub-messages and members of a oneof only where they are set; everything else always. */
static bool is_printed(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return true;
    if (tierce__proto_is_oneof(field) && tierce__proto_case(message, field) != field->id)
        return false;
    return field->type != PROTOBUF_C_TYPE_MESSAGE ||
           *(void *const *)tierce__proto_at(message, field->offset) != NULL;
}

static void put_message(struct text *text, const ProtobufCMessage *message)
{
    char separator = '{';
    for (unsigned i = 0; i < message->descriptor->n_fields && text->rc == 0; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (!is_printed(message, field))
            continue;
        put_char(text, separator);
        separator = ',';
        put_char(text, '"');
        put(text, field->name, strlen(field->name));
        put(text, "\":", 2);
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            put_repeated(text, message, field);
        else
            put_value(text, field, tierce__proto_at(message, field->offset));
    }
    if (separator == '{')
        put_char(text, '{');
    put_char(text, '}');
}

int tierce__proto_json_print(char **out, size_t *bytes, const ProtobufCMessage *message)
{
    return tierce__proto_json_print_max(out, bytes, SIZE_MAX - 1, message);
}

int tierce__proto_json_print_max(char **out, size_t *bytes, size_t max,
                                 const ProtobufCMessage *message)
{
    struct text text = {.max = max + 1}; /* and the NUL */
    put_message(&text, message);
    put_char(&text, '\0');
    if (text.rc != 0) {
        tierce__free(text.bytes);
        return text.rc;
    }
    *out = text.bytes;
    *bytes = text.used - 1;
    return 0;
}
