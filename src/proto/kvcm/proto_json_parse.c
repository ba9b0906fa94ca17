/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/json/json.h"
#include "base/text/utf8.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/proto_private.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The text is copied into the message's memory, where the reader may look beyond its end, and
 * where strings lose their escapes in place and get their NUL over the closing quote.
 */
struct parser {
    struct tierce__json json;
    char *text; /* the text that json reads */
    struct tierce__arena *arena;
    const char *field; /* the last one that was begun, for messages */
    char *unknown;     /* of TIERCE__PROTO_WHY_BYTES: the first name that its enum has not */
};

#define FIELDS_MAX       64u                /* bits of the set of those that came */
#define EXACT_DOUBLE_MAX 9007199254740992.0 /* 2^53: up to it every integer is exact */

static bool no_memory(struct parser *parser)
{
    return tierce__json_fail(&parser->json, parser->arena->status == -ENOMEM
                                                ? "no memory"
                                                : "requires too much memory for its size");
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Whether `text` is the lowerCamel form of a name in snake_case. */
static bool is_camel_of(const char *name, struct tierce__text text)
{
    size_t at = 0;
    bool upper = false;
    for (; *name != '\0'; name++) {
        if (*name == '_') {
            upper = true;
            continue;
        }
        char c = *name;
        if (upper && c >= 'a' && c <= 'z')
            c = (char)(c - 'a' + 'A');
        upper = false;
        if (at == text.length || text.at[at++] != c)
            return false;
    }
    TIERCE_DASSERT(at <= text.length);
    return at == text.length;
}

const ProtobufCFieldDescriptor *
tierce__proto_find_field(const ProtobufCMessageDescriptor *descriptor, struct tierce__text name)
{
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        if ((strlen(field->name) == name.length &&
             memcmp(field->name, name.at, name.length) == 0) ||
            is_camel_of(field->name, name))
            return field;
    }
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A string without its escapes, in place. */
static bool take_string(struct parser *parser, char **out, size_t *length)
{
    struct tierce__text raw = {0};
    bool escaped = false;
    if (!tierce__json_quoted(&parser->json, &raw, &escaped))
        return false;
    char *text = parser->text + (raw.at - parser->json.start);
    TIERCE_ASSERT(raw.at >= parser->json.start && raw.at + raw.length < parser->json.end);
    *length = raw.length;
    if (escaped && !tierce__json_unescape(&parser->json, text, length, raw))
        return false;
    if (escaped && memchr(text, '\0', *length) != NULL)
        return tierce__json_fail(&parser->json, "a string holds a NUL byte");
    TIERCE_DASSERT(*length <= raw.length);
    text[*length] = '\0';
    *out = text;
    return true;
}

/* Whether the whole of a string is a number as JSON has them. */
static bool is_number(const char *text, size_t length)
{
    struct tierce__json json;
    struct tierce__text number;
    tierce__json_start(&json, text, length);
    return tierce__json_number(&json, &number) && number.at == text && number.length == length;
}

/* An integer of a number; one with a point or an exponent is taken if it is a small whole one. */
static bool to_integer(struct tierce__text number, int64_t *out)
{
    TIERCE_DASSERT(number.length > 0);
    bool negative = *number.at == '-';
    const char *at = number.at + negative, *end = number.at + number.length;
    uint64_t value;
    if (tierce__digits(&at, &value) && at == end) {
        if (value > (uint64_t)INT64_MAX + (negative ? 1 : 0))
            return false;
        *out = (int64_t)(negative ? -value : value);
        return true;
    }
    double real = strtod(number.at, NULL);
    if (!(fabs(real) <= EXACT_DOUBLE_MAX) || real != trunc(real))
        return false;
    *out = (int64_t)real;
    return true;
}

/* A number, or a string that is one. */
static bool take_number(struct parser *parser, struct tierce__text *number)
{
    char *text = parser->text;
    if (tierce__json_kind(&parser->json) != '"')
        return tierce__json_number(&parser->json, number);
    if (!take_string(parser, &text, &number->length))
        return false;
    number->at = text;
    return is_number(text, number->length) || tierce__json_fail(&parser->json, "is not a number");
}

static bool take_integer(struct parser *parser, int64_t *out, int64_t min, int64_t max)
{
    struct tierce__text number = {"", 0};
    if (!take_number(parser, &number))
        return false;
    if (!to_integer(number, out) || *out < min || *out > max)
        return tierce__json_fail(&parser->json, "is not an integer in range");
    return true;
}

static bool take_double(struct parser *parser, double *out)
{
    char *text = parser->text;
    size_t length = 0;
    if (tierce__json_kind(&parser->json) == '"') {
        if (!take_string(parser, &text, &length))
            return false;
        if (strcmp(text, "NaN") == 0)
            *out = NAN;
        else if (strcmp(text, "Infinity") == 0)
            *out = INFINITY;
        else if (strcmp(text, "-Infinity") == 0)
            *out = -INFINITY;
        else if (!is_number(text, length))
            return tierce__json_fail(&parser->json, "is not a number");
        else
            *out = strtod(text, NULL);
        return true;
    }
    struct tierce__text number = {"", 0};
    if (!tierce__json_number(&parser->json, &number))
        return false;
    *out = strtod(number.at, NULL);
    return isfinite(*out) || tierce__json_fail(&parser->json, "is too large a number");
}

/* Says which names there are, as many as there is room for. */
static void note_unknown(struct parser *parser, const ProtobufCEnumDescriptor *descriptor,
                         const char *text, size_t length)
{
    enum { ROOM = TIERCE__PROTO_WHY_BYTES, SHOWN_MAX = 40 };
    size_t shown = 0, next = 1;
    if (parser->unknown[0] != '\0')
        return;
    for (; shown < length && shown < SHOWN_MAX && next > 0; shown += next)
        next = tierce__utf8_length((const uint8_t *)text + shown, length - shown);
    TIERCE_DASSERT(shown <= length);
    int bytes =
        snprintf(parser->unknown, ROOM, "%s: \"%.*s\" is none of", parser->field, (int)shown, text);
    for (unsigned i = 0; i < descriptor->n_values && bytes < ROOM; i++)
        bytes += snprintf(parser->unknown + bytes, (size_t)(ROOM - bytes), "%s %s",
                          i > 0 ? "," : "", descriptor->values[i].name);
}

/* *known is false for a name that the enum has not. */
static bool take_enum(struct parser *parser, const ProtobufCEnumDescriptor *descriptor, int *out,
                      bool *known)
{
    int64_t number = 0;
    char *text = parser->text;
    size_t length = 0;
    if (tierce__json_kind(&parser->json) != '"') {
        if (!take_integer(parser, &number, INT32_MIN, INT32_MAX))
            return false;
        *out = (int)number;
        return true;
    }
    if (!take_string(parser, &text, &length))
        return false;
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value_by_name(descriptor, text);
    if (value != NULL)
        *out = value->value;
    else if (is_number(text, length) && to_integer((struct tierce__text){text, length}, &number) &&
             number >= INT32_MIN && number <= INT32_MAX)
        *out = (int)number;
    else
        *known = false;
    if (!*known)
        note_unknown(parser, descriptor, text, length);
    return true;
}

static bool take_message(struct parser *parser, ProtobufCMessage *message);

static bool take_inner(struct parser *parser, const ProtobufCMessageDescriptor *descriptor,
                       ProtobufCMessage **out)
{
    ProtobufCMessage *inner = tierce__proto_message_in(parser->arena, descriptor);
    if (inner == NULL)
        return no_memory(parser);
    *out = inner;
    return take_message(parser, inner);
}

/* A parsed value; `known` is false if it is to be ignored. */
union value {
    int32_t int32;
    int64_t int64;
    double real;
    protobuf_c_boolean flag;
    int enumeration;
    char *text;
    ProtobufCMessage *message;
};

static bool take_value(struct parser *parser, const ProtobufCFieldDescriptor *field,
                       union value *out, size_t *bytes, bool *known)
{
    int64_t number;
    size_t length;
    bool flag, ok;
    *bytes = 4;
    *known = true;
    if (field->type == PROTOBUF_C_TYPE_INT32) {
        ok = take_integer(parser, &number, INT32_MIN, INT32_MAX);
        out->int32 = ok ? (int32_t)number : 0;
        return ok;
    }
    if (field->type == PROTOBUF_C_TYPE_BOOL) {
        ok = tierce__json_bool(&parser->json, &flag);
        out->flag = flag;
        return ok;
    }
    if (field->type == PROTOBUF_C_TYPE_ENUM)
        return take_enum(parser, field->descriptor, &out->enumeration, known);
    *bytes = 8;
    if (field->type == PROTOBUF_C_TYPE_INT64)
        return take_integer(parser, &out->int64, INT64_MIN, INT64_MAX);
    if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        return take_double(parser, &out->real);
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return take_string(parser, &out->text, &length);
    TIERCE_ASSERT(field->type == PROTOBUF_C_TYPE_MESSAGE);
    return take_inner(parser, field->descriptor, &out->message);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Doubles the capacity of an array. */
static bool grow(struct parser *parser, char **items, size_t *size, size_t bytes)
{
    TIERCE_DASSERT(bytes == 4 || bytes == 8);
    size_t wanted = *size > 0 ? 2 * *size : 16;
    char *grown = tierce__arena_alloc(parser->arena, wanted * bytes);
    if (grown == NULL)
        return no_memory(parser);
    if (*size > 0)
        memcpy(grown, *items, *size * bytes);
    *items = grown;
    *size = wanted;
    return true;
}

static bool take_repeated(struct parser *parser, const ProtobufCFieldDescriptor *field,
                          ProtobufCMessage *message)
{
    TIERCE_DASSERT(field->label == PROTOBUF_C_LABEL_REPEATED);
    char *items = NULL;
    size_t count = 0, size = 0;
    if (!tierce__json_array(&parser->json))
        return false;
    while (tierce__json_element(&parser->json)) {
        union value value = {0};
        size_t bytes = 0;
        bool known = false;
        if (!take_value(parser, field, &value, &bytes, &known))
            return false;
        if (!known)
            continue;
        if (count == size && !grow(parser, &items, &size, bytes))
            return false;
        TIERCE_ASSERT(count < size);
        memcpy(items + count++ * bytes, &value, bytes);
    }
    TIERCE_DASSERT(count <= size);
    memcpy((char *)message + field->offset, &items, sizeof(items));
    memcpy((char *)message + field->quantifier_offset, &count, sizeof(count));
    return parser->json.why == NULL;
}

static bool take_single(struct parser *parser, const ProtobufCFieldDescriptor *field,
                        ProtobufCMessage *message)
{
    TIERCE_DASSERT(field->label != PROTOBUF_C_LABEL_REPEATED);
    union value value = {0};
    size_t bytes = 0;
    bool known = false;
    if (tierce__proto_is_oneof(field) && tierce__proto_case(message, field) != 0)
        return tierce__json_fail(&parser->json, "is not the only member of its oneof");
    if (!take_value(parser, field, &value, &bytes, &known))
        return false;
    if (!known)
        return true;
    memcpy((char *)message + field->offset, &value, bytes);
    if (tierce__proto_is_oneof(field))
        memcpy((char *)message + field->quantifier_offset, &field->id, sizeof(field->id));
    return true;
}

static bool take_field(struct parser *parser, const ProtobufCFieldDescriptor *field,
                       ProtobufCMessage *message)
{
    parser->field = field->name;
    if (tierce__json_kind(&parser->json) == 'n')
        return tierce__json_skip(&parser->json);
    return field->label == PROTOBUF_C_LABEL_REPEATED ? take_repeated(parser, field, message)
                                                     : take_single(parser, field, message);
}

/* Nests only as deep as the types do. */
static bool take_message(struct parser *parser, ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    uint64_t came = 0;
    struct tierce__text name;
    TIERCE_ASSERT(descriptor->n_fields <= FIELDS_MAX);
    if (!tierce__json_object(&parser->json))
        return false;
    while (tierce__json_member(&parser->json, &name)) {
        const ProtobufCFieldDescriptor *field = tierce__proto_find_field(descriptor, name);
        if (field == NULL) {
            if (!tierce__json_skip(&parser->json))
                return false;
            continue;
        }
        uint64_t bit = 1ULL << (field - descriptor->fields);
        if ((came & bit) != 0)
            return tierce__json_fail(&parser->json, "is given twice");
        came |= bit;
        if (!take_field(parser, field, message))
            return false;
    }
    return parser->json.why == NULL;
}

/* The message of the text, or NULL with the reader's reason. */
static ProtobufCMessage *parse(struct parser *parser, const ProtobufCMessageDescriptor *descriptor,
                               const char *text, size_t bytes)
{
    tierce__json_start(&parser->json, text, bytes);
    ProtobufCMessage *message = tierce__proto_message_in(parser->arena, descriptor);
    parser->text = message == NULL || bytes > SIZE_MAX - TIERCE__JSON_SLACK
                       ? NULL
                       : tierce__arena_alloc(parser->arena, bytes + TIERCE__JSON_SLACK);
    if (parser->text == NULL) {
        no_memory(parser);
        return NULL;
    }
    if (!tierce__is_utf8(text, bytes)) {
        tierce__json_fail(&parser->json, "is not UTF-8");
        return NULL;
    }
    memcpy(parser->text, text, bytes);
    memset(parser->text + bytes, '\n', TIERCE__JSON_SLACK);
    tierce__json_start(&parser->json, parser->text, bytes);
    bool ok = take_message(parser, message) && tierce__json_end(&parser->json);
    return ok ? message : NULL;
}

int tierce__proto_json_parse(ProtobufCMessage **out, const ProtobufCMessageDescriptor *descriptor,
                             const char *text, size_t bytes, char why[TIERCE__PROTO_WHY_BYTES])
{
    struct parser parser = {
        .arena = tierce__arena_create(bytes + 2 * descriptor->sizeof_message,
                                      tierce__proto_limit(bytes)),
        .field = descriptor->short_name,
        .unknown = why,
    };
    why[0] = '\0';
    if (parser.arena == NULL) {
        snprintf(why, TIERCE__PROTO_WHY_BYTES, "%s: no memory", descriptor->short_name);
        return -ENOMEM;
    }
    ProtobufCMessage *message = parse(&parser, descriptor, bytes > 0 ? text : "", bytes);
    if (message != NULL) {
        TIERCE_DASSERT(tierce__arena_of(message) == parser.arena && parser.arena->status == 0);
        *out = message;
        return 0;
    }
    TIERCE_DASSERT(parser.json.why != NULL);
    snprintf(why, TIERCE__PROTO_WHY_BYTES, "%s: %s (byte %zu)", parser.field, parser.json.why,
             parser.json.column);
    int rc = parser.arena->status;
    tierce__arena_destroy(parser.arena);
    return rc != 0 ? rc : TIERCE_E_FORMAT;
}
