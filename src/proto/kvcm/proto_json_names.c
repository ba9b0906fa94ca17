/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/proto_private.h"

#include <stdio.h>
#include <string.h>

enum { NAMES_MAX = 64, NAME_BYTES = 64, PATH_BYTES = 128 };

static void show(char out[NAME_BYTES], struct tierce__text name)
{
    char text[NAME_BYTES];
    snprintf(text, sizeof(text), "%.*s", (int)name.length, name.at);
    tierce__text_for_message(out, NAME_BYTES, text);
}

static int refuse_field(const ProtobufCMessageDescriptor *descriptor, struct tierce__text name,
                        const char *path, char why[TIERCE__PROTO_WHY_BYTES])
{
    const char *known[NAMES_MAX + 1] = {NULL};
    char shown[NAME_BYTES];
    TIERCE_ASSERT(descriptor->n_fields <= NAMES_MAX);
    for (unsigned i = 0; i < descriptor->n_fields; i++)
        known[i] = descriptor->fields[i].name;
    show(shown, name);
    int bytes = snprintf(why, TIERCE__PROTO_WHY_BYTES, "%s%s%s has no field \"%s\"",
                         descriptor->short_name, path[0] != '\0' ? " at " : "", path, shown);
    if (known[0] != NULL && bytes < (int)TIERCE__PROTO_WHY_BYTES)
        snprintf(why + bytes, TIERCE__PROTO_WHY_BYTES - (size_t)bytes, "; the nearest is \"%s\"",
                 tierce__nearest(shown, known));
    return TIERCE_E_FORMAT;
}

static int check_enum(const ProtobufCEnumDescriptor *descriptor, struct tierce__text value,
                      const char *path, char why[TIERCE__PROTO_WHY_BYTES])
{
    const char *known[NAMES_MAX + 1] = {NULL};
    char text[NAME_BYTES], shown[NAME_BYTES];
    if (tierce__json_value_kind(value) != '"')
        return 0;
    bool fits = tierce__json_get_text(text, sizeof(text), value, "");
    if (fits && (protobuf_c_enum_descriptor_get_value_by_name(descriptor, text) != NULL ||
                 (text[0] != '\0' && strspn(text, "-0123456789") == strlen(text))))
        return 0;
    for (unsigned i = 0; i < descriptor->n_values && i < NAMES_MAX; i++)
        known[i] = descriptor->values[i].name;
    show(shown, value);
    snprintf(why, TIERCE__PROTO_WHY_BYTES, "%s: there is no %s \"%s\"; the nearest is \"%s\"", path,
             descriptor->short_name, fits ? text : shown,
             tierce__nearest(fits ? text : shown, known));
    return TIERCE_E_FORMAT;
}

static int check_object(const ProtobufCMessageDescriptor *descriptor, struct tierce__text object,
                        const char *path, char why[TIERCE__PROTO_WHY_BYTES]);

static int check_value(const ProtobufCFieldDescriptor *field, struct tierce__text value,
                       const char *path, char why[TIERCE__PROTO_WHY_BYTES])
{
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return check_object(field->descriptor, value, path, why);
    return field->type == PROTOBUF_C_TYPE_ENUM ? check_enum(field->descriptor, value, path, why)
                                               : 0;
}

/* Nests only as deep as the types do. Values of another kind than the field's are judged by the
 * parser. */
static int check_object(const ProtobufCMessageDescriptor *descriptor, struct tierce__text object,
                        const char *path, char why[TIERCE__PROTO_WHY_BYTES])
{
    struct tierce__text name, value, index, element;
    struct tierce__json each = tierce__json_each(object);
    int rc = 0;
    if (object.length == 0 || tierce__json_value_kind(object) != '{')
        return 0;
    while (rc == 0 && tierce__json_next(&each, &name, &value)) {
        char below[PATH_BYTES];
        const ProtobufCFieldDescriptor *field = tierce__proto_find_field(descriptor, name);
        if (field == NULL)
            return refuse_field(descriptor, name, path, why);
        snprintf(below, sizeof(below), "%.60s%s%s", path, path[0] != '\0' ? "." : "", field->name);
        bool is_list =
            field->label == PROTOBUF_C_LABEL_REPEATED && tierce__json_value_kind(value) == '[';
        if (!is_list)
            rc = check_value(field, value, below, why);
        struct tierce__json elements = tierce__json_each(value);
        while (is_list && rc == 0 && tierce__json_next(&elements, &index, &element))
            rc = check_value(field, element, below, why);
    }
    return rc;
}

int tierce__proto_json_check_names(const ProtobufCMessageDescriptor *descriptor,
                                   struct tierce__text object, char why[TIERCE__PROTO_WHY_BYTES])
{
    TIERCE_ASSERT(tierce__json_value_kind(object) == '{');
    return check_object(descriptor, object, "", why);
}
