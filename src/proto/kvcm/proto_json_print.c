/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "base/text/utf8.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/proto_private.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that is written. Nothing changes after a failure of the line, or an invalid string. */
struct print_text {
    struct tierce__json_write json;
    struct tierce__line line;
    bool is_invalid;
};

static bool has_failed(const struct print_text *text)
{
    return text->line.failed || text->is_invalid;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void put_int64(struct print_text *text, const char *name, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRId64, value);
    tierce__json_write_text(&text->json, name, digits);
}

/* The shorter of two precisions that reads back as the same number. */
static void put_double(struct print_text *text, const char *name, double value)
{
    char number[32];
    if (!isfinite(value)) {
        tierce__json_write_text(&text->json, name,
                                isnan(value) ? "NaN"
                                : value < 0  ? "-Infinity"
                                             : "Infinity");
        return;
    }
    snprintf(number, sizeof(number), "%.15g", value);
    if (strtod(number, NULL) != value)
        snprintf(number, sizeof(number), "%.17g", value);
    tierce__json_write_name(&text->json, name);
    tierce__line_put(&text->line, number);
}

static void put_string(struct print_text *text, const char *name, const char *value)
{
    value = value != NULL ? value : "";
    if (tierce__is_utf8(value, strlen(value)))
        tierce__json_write_text(&text->json, name, value);
    else
        text->is_invalid = true;
}

static void put_enum(struct print_text *text, const char *name,
                     const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);
    if (known != NULL)
        tierce__json_write_text(&text->json, name, known->name);
    else
        tierce__json_write_signed(&text->json, name, value);
}

static void put_message(struct print_text *text, const char *name, const ProtobufCMessage *message);

/* One value of a field's type at `at`. */
static void put_value(struct print_text *text, const char *name,
                      const ProtobufCFieldDescriptor *field, const void *at)
{
    if (field->type == PROTOBUF_C_TYPE_INT32)
        tierce__json_write_signed(&text->json, name, *(const int32_t *)at);
    else if (field->type == PROTOBUF_C_TYPE_INT64)
        put_int64(text, name, *(const int64_t *)at);
    else if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        put_double(text, name, *(const double *)at);
    else if (field->type == PROTOBUF_C_TYPE_BOOL)
        tierce__json_write_bool(&text->json, name, *(const protobuf_c_boolean *)at != 0);
    else if (field->type == PROTOBUF_C_TYPE_ENUM)
        put_enum(text, name, field->descriptor, *(const int *)at);
    else if (field->type == PROTOBUF_C_TYPE_STRING)
        put_string(text, name, *(const char *const *)at);
    else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        put_message(text, name, *(const ProtobufCMessage *const *)at);
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

static void put_repeated(struct print_text *text, const ProtobufCMessage *message,
                         const ProtobufCFieldDescriptor *field)
{
    TIERCE_DASSERT(field->label == PROTOBUF_C_LABEL_REPEATED);
    const char *at = *(const char *const *)tierce__proto_member(message, field->offset);
    size_t count = tierce__proto_count(message, field);
    size_t step = value_bytes(field->type);
    tierce__json_write_open(&text->json, field->name, '[');
    for (size_t i = 0; i < count && !has_failed(text); i++)
        put_value(text, NULL, field, at + i * step);
    tierce__json_write_close(&text->json, ']');
}

/* Sub-messages and members of a oneof only where they are set; everything else always. */
static bool is_printed(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return true;
    if (tierce__proto_is_oneof(field) && tierce__proto_case(message, field) != field->id)
        return false;
    return field->type != PROTOBUF_C_TYPE_MESSAGE ||
           *(void *const *)tierce__proto_member(message, field->offset) != NULL;
}

static void put_message(struct print_text *text, const char *name, const ProtobufCMessage *message)
{
    tierce__json_write_open(&text->json, name, '{');
    for (unsigned i = 0; i < message->descriptor->n_fields && !has_failed(text); i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (!is_printed(message, field))
            continue;
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            put_repeated(text, message, field);
        else
            put_value(text, field->name, field, tierce__proto_member(message, field->offset));
    }
    tierce__json_write_close(&text->json, '}');
}

int tierce__proto_json_print(char **out, size_t *bytes, const ProtobufCMessage *message)
{
    return tierce__proto_json_print_max(out, bytes, SIZE_MAX - 1, message);
}

int tierce__proto_json_print_max(char **out, size_t *bytes, size_t max,
                                 const ProtobufCMessage *message)
{
    struct print_text text = {.json = {.line = &text.line, .is_short = true},
                              .line = {.bytes_max = max + 1}}; /* and the NUL */
    TIERCE_ASSERT(max < SIZE_MAX);
    put_message(&text, NULL, message);
    TIERCE_ASSERT(text.json.depth == 0);
    tierce__line_put_bytes(&text.line, "", 1);
    if (has_failed(&text)) {
        int rc = text.is_invalid ? TIERCE_E_FORMAT : text.line.is_full ? TIERCE_E_LIMIT : -ENOMEM;
        tierce__line_clear(&text.line);
        return rc;
    }
    TIERCE_DASSERT(text.line.bytes > 0 && text.line.bytes <= max + 1);
    *out = text.line.text;
    *bytes = text.line.bytes - 1;
    return 0;
}
