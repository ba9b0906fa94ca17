/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/assert.h"
#include "manager/registry/model.h"
#include "proto/kvcm/proto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES_MAX = 64 };

/*
 * Follows a path from *message to the field at its end, and sets *message to the message that has
 * it. NULL: the type has no such field. A message that is missing on the way is created if `root`
 * is set; else, or without memory, *message becomes NULL.
 */
static const ProtobufCFieldDescriptor *follow(ProtobufCMessage **message, const char *path,
                                              ProtobufCMessage *root)
{
    for (;;) {
        char name[NAME_BYTES_MAX];
        size_t bytes = strcspn(path, ".");
        snprintf(name, sizeof(name), "%.*s", (int)bytes, path);
        TIERCE_ASSERT(bytes < sizeof(name));
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name((*message)->descriptor, name);
        if (field == NULL || path[bytes] == '\0')
            return field;
        TIERCE_ASSERT(field->type == PROTOBUF_C_TYPE_MESSAGE);
        ProtobufCMessage **below = tierce__proto_member(*message, field->offset);
        if (*below == NULL && root != NULL)
            *below = tierce__proto_add(root, field->descriptor);
        *message = *below;
        if (*message == NULL)
            return field;
        path += bytes + 1;
    }
}

/* The path of a field in a message that has the fields below `prefix`; "": none. */
static const char *path_below(const struct tierce__model_field *field, const char *prefix)
{
    const char *path = field->message != NULL ? field->message : field->path;
    size_t bytes = strlen(prefix);
    return strncmp(path, prefix, bytes) == 0 ? path + bytes : "";
}

static bool is_64_bits(const ProtobufCFieldDescriptor *from)
{
    TIERCE_DASSERT(from->type != PROTOBUF_C_TYPE_UINT64 && from->type != PROTOBUF_C_TYPE_STRING);
    TIERCE_DASSERT(from->type != PROTOBUF_C_TYPE_MESSAGE &&
                   from->label != PROTOBUF_C_LABEL_REPEATED);
    return from->type == PROTOBUF_C_TYPE_INT64;
}

/* ---- from messages --------------------------------------------------------------------------- */

static int read_list(void *object, const struct tierce__model_field *field,
                     const ProtobufCMessage *message, const ProtobufCFieldDescriptor *from,
                     struct tierce__arena *arena)
{
    size_t count = *(const size_t *)tierce__proto_member(message, from->quantifier_offset);
    void **list = tierce__field_at(object, field);
    TIERCE_ASSERT(from->label == PROTOBUF_C_LABEL_REPEATED);
    *tierce__field_count(object, field) = count;
    if (field->kind == TIERCE__FIELD_NAMES) {
        *list = *(void **)tierce__proto_member(message, from->offset);
        return 0;
    }
    *list = tierce__arena_calloc(arena, count + 1, field->items->size);
    if (*list == NULL)
        return -ENOMEM;
    ProtobufCMessage *const *messages =
        *(ProtobufCMessage ***)tierce__proto_member(message, from->offset);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        void *item = tierce__field_item(object, field, i);
        tierce__model_start(item, field->items);
        rc = tierce__model_from_message(item, field->items, "", messages[i], arena);
    }
    return rc;
}

int tierce__model_from_message(void *object, const struct tierce__fields *fields,
                               const char *prefix, const ProtobufCMessage *message,
                               struct tierce__arena *arena)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        ProtobufCMessage *holder = (ProtobufCMessage *)(uintptr_t)message;
        const ProtobufCFieldDescriptor *from = follow(&holder, path_below(field, prefix), NULL);
        if (from == NULL || holder == NULL)
            continue;
        const void *value = tierce__proto_member(holder, from->offset);
        TIERCE_DASSERT(field->kind != TIERCE__FIELD_TEXT || from->type == PROTOBUF_C_TYPE_STRING);
        TIERCE_DASSERT((field->kind == TIERCE__FIELD_DOUBLE) ==
                       (from->type == PROTOBUF_C_TYPE_DOUBLE));
        if (tierce__field_is_list(field))
            rc = read_list(object, field, holder, from, arena);
        else if (field->kind == TIERCE__FIELD_TEXT)
            *tierce__field_text(object, field) = *(char *const *)value;
        else if (field->kind == TIERCE__FIELD_DOUBLE)
            memcpy(tierce__field_at(object, field), value, sizeof(double));
        else
            tierce__field_set_integer(object, field,
                                      is_64_bits(from) ? *(const int64_t *)value
                                                       : *(const int32_t *)value);
    }
    return rc;
}

/* ---- to messages ----------------------------------------------------------------------------- */

static int write_list(ProtobufCMessage *message, const ProtobufCFieldDescriptor *to,
                      ProtobufCMessage *root, const void *object,
                      const struct tierce__model_field *field)
{
    size_t count = *tierce__field_count(object, field);
    void **list = tierce__proto_member(message, to->offset);
    TIERCE_ASSERT(to->label == PROTOBUF_C_LABEL_REPEATED);
    if (field->kind == TIERCE__FIELD_NAMES) {
        *list = *(void **)tierce__field_at(object, field);
    } else {
        ProtobufCMessage **messages = tierce__proto_alloc(root, (count + 1) * sizeof(*messages));
        if (messages == NULL)
            return -ENOMEM;
        *list = messages;
        for (size_t i = 0; i < count; i++) {
            messages[i] = tierce__proto_add(root, to->descriptor);
            if (messages[i] == NULL ||
                tierce__model_to_message(messages[i], root, field->items, "",
                                         tierce__field_item(object, field, i)) != 0)
                return -ENOMEM;
        }
    }
    *(size_t *)tierce__proto_member(message, to->quantifier_offset) = count;
    return 0;
}

int tierce__model_to_message(ProtobufCMessage *message, ProtobufCMessage *root,
                             const struct tierce__fields *fields, const char *prefix,
                             const void *object)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        ProtobufCMessage *holder = message;
        const ProtobufCFieldDescriptor *to = follow(&holder, path_below(field, prefix), root);
        if (to == NULL)
            continue;
        if (holder == NULL)
            return -ENOMEM;
        void *value = tierce__proto_member(holder, to->offset);
        TIERCE_DASSERT(field->kind != TIERCE__FIELD_TEXT || to->type == PROTOBUF_C_TYPE_STRING);
        TIERCE_DASSERT((field->kind == TIERCE__FIELD_DOUBLE) ==
                       (to->type == PROTOBUF_C_TYPE_DOUBLE));
        if (tierce__field_is_list(field))
            rc = write_list(holder, to, root, object, field);
        else if (field->kind == TIERCE__FIELD_TEXT)
            *(char **)value = *tierce__field_text(object, field);
        else if (field->kind == TIERCE__FIELD_DOUBLE)
            memcpy(value, tierce__field_at(object, field), sizeof(double));
        else if (is_64_bits(to))
            *(int64_t *)value = tierce__field_integer(object, field);
        else
            *(int32_t *)value = (int32_t)tierce__field_integer(object, field);
    }
    return rc;
}

/* ---- fields that requests must set ----------------------------------------------------------- */

/* Whether a field is missing or has its type's default, or an entry of its list lacks a field. */
static bool is_lacking(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *from,
                       const struct tierce__model_field *field, char inner[256])
{
    if (tierce__field_is_list(field)) {
        size_t count = *(const size_t *)tierce__proto_member(message, from->quantifier_offset);
        bool is_lacking = count == 0;
        for (size_t i = 0; field->kind == TIERCE__FIELD_LIST && !is_lacking && i < count; i++)
            is_lacking = tierce__model_lacks(
                (*(ProtobufCMessage ***)tierce__proto_member(message, from->offset))[i],
                field->items, inner);
        return is_lacking;
    }
    if (field->kind == TIERCE__FIELD_TEXT)
        return **(char **)tierce__proto_member(message, from->offset) == '\0';
    TIERCE_ASSERT(!is_64_bits(from) && from->type != PROTOBUF_C_TYPE_DOUBLE);
    return *(const int32_t *)tierce__proto_member(message, from->offset) == 0;
}

/* Writes the path "a.b" and a path in an entry of its list as "a: {b: {inner}}". */
static void show_path(char missing[256], const char *path, const char *inner)
{
    size_t bytes = strcspn(path, ".");
    char below[256];
    if (path[bytes] == '.')
        show_path(below, path + bytes + 1, inner);
    else
        snprintf(below, sizeof(below), "%s", inner);
    snprintf(missing, 256, below[0] != '\0' ? "%.*s: {%.180s}" : "%.*s", (int)bytes, path, below);
}

bool tierce__model_lacks(const ProtobufCMessage *message, const struct tierce__fields *fields,
                         char missing[256])
{
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        char inner[256] = "", top[NAME_BYTES_MAX];
        ProtobufCMessage *holder = (ProtobufCMessage *)(uintptr_t)message;
        const char *path = path_below(field, "");
        if ((field->flags & TIERCE__FIELD_IS_NEEDED) == 0)
            continue;
        const ProtobufCFieldDescriptor *from = follow(&holder, path, NULL);
        if (from == NULL || (holder != NULL && !is_lacking(holder, from, field, inner)))
            continue;
        /* A path that ends at once is shown alone. */
        snprintf(top, sizeof(top), "%.*s", (int)strcspn(path, "."), path);
        holder = (ProtobufCMessage *)(uintptr_t)message;
        from = follow(&holder, top, NULL);
        bool is_top = from != NULL && from->type == PROTOBUF_C_TYPE_MESSAGE &&
                      from->label != PROTOBUF_C_LABEL_REPEATED &&
                      *(ProtobufCMessage **)tierce__proto_member(message, from->offset) == NULL;
        show_path(missing, is_top ? top : path, inner);
        return true;
    }
    return false;
}
