/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/kvcm/proto.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/text/utf8.h"
#include "proto/kvcm/proto_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

ProtobufCMessage *tierce__proto_message_in(struct tierce__arena *arena,
                                           const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = tierce__arena_alloc(arena, descriptor->sizeof_message);
    if (message != NULL)
        descriptor->message_init(message);
    return message;
}

size_t tierce__proto_limit(size_t bytes)
{
    uint64_t limit;
    return tierce__mul_ok(&limit, bytes, TIERCE__PROTO_MEMORY_TIMES) &&
                   tierce__add_ok(&limit, limit, TIERCE__PROTO_MEMORY_MIN)
               ? (size_t)limit
               : SIZE_MAX;
}

ProtobufCMessage *tierce__proto_create(const ProtobufCMessageDescriptor *descriptor)
{
    struct tierce__arena *arena = tierce__arena_create(descriptor->sizeof_message, 0);
    ProtobufCMessage *message = arena != NULL ? tierce__proto_message_in(arena, descriptor) : NULL;
    if (message == NULL)
        tierce__arena_destroy(arena);
    return message;
}

void *tierce__proto_alloc(ProtobufCMessage *message, size_t bytes)
{
    void *out = tierce__arena_alloc(tierce__arena_of(message), bytes);
    if (out != NULL)
        memset(out, 0, bytes);
    return out;
}

size_t tierce__proto_bytes(ProtobufCMessage *message)
{
    return message != NULL ? tierce__arena_of(message)->taken : 0;
}

ProtobufCMessage *tierce__proto_add(ProtobufCMessage *root,
                                    const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = tierce__proto_alloc(root, descriptor->sizeof_message);
    if (message != NULL)
        descriptor->message_init(message);
    return message;
}

void tierce__proto_free(ProtobufCMessage *message)
{
    if (message != NULL)
        tierce__arena_destroy(tierce__arena_of(message));
}

/* ---- unpack ---------------------------------------------------------------------------------- */

struct wire {
    const uint8_t *at, *end;
};

static bool take_varint(struct wire *wire, unsigned bytes_max, uint64_t *out)
{
    TIERCE_DASSERT(bytes_max <= 10 && wire->at <= wire->end);
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes_max && wire->at < wire->end; i++) {
        uint8_t byte = *wire->at++;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool take_bytes(struct wire *wire, uint64_t bytes)
{
    TIERCE_DASSERT(wire->at <= wire->end);
    if (bytes > (uint64_t)(wire->end - wire->at))
        return false;
    wire->at += bytes;
    return true;
}

/* Skips a value that is not a run of bytes. */
static bool skip_fixed(struct wire *wire, unsigned type)
{
    uint64_t ignored;
    switch (type) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        return take_varint(wire, 10, &ignored);
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        return take_bytes(wire, 8);
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        return take_bytes(wire, 4);
    default: /* groups, and unknown wire types */
        return false;
    }
}

static int wire_error(char why[TIERCE__PROTO_WHY_BYTES], const char *where, const char *what)
{
    snprintf(why, TIERCE__PROTO_WHY_BYTES, "%s: %s", where, what);
    return TIERCE_E_FORMAT;
}

/*
 * Checks that protobuf-c omits: texts must be UTF-8 without NUL, because C would ignore the bytes
 * after a NUL. Messages nest only as deep as their types do.
 */
static int check_wire(const ProtobufCMessageDescriptor *descriptor, struct wire wire,
                      char why[TIERCE__PROTO_WHY_BYTES])
{
    while (wire.at < wire.end) {
        uint64_t tag, bytes;
        if (!take_varint(&wire, 5, &tag) || tag > UINT32_MAX || tag < 8)
            return wire_error(why, descriptor->short_name, "a tag is malformed");
        if ((tag & 7) != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
            if (!skip_fixed(&wire, tag & 7))
                return wire_error(why, descriptor->short_name, "a number is malformed");
            continue;
        }
        if (!take_varint(&wire, 5, &bytes) || !take_bytes(&wire, bytes))
            return wire_error(why, descriptor->short_name, "a field is truncated");
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(tag >> 3));
        const uint8_t *value = wire.at - bytes;
        int rc = 0;
        if (field != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE)
            rc = check_wire(field->descriptor, (struct wire){value, wire.at}, why);
        else if (field != NULL && field->type == PROTOBUF_C_TYPE_STRING &&
                 (!tierce__is_utf8((const char *)value, bytes) || memchr(value, 0, bytes) != NULL))
            rc = wire_error(why, field->name, "is not UTF-8, or holds a NUL");
        if (rc != 0)
            return rc;
    }
    return 0;
}

static void *unpack_alloc(void *data, size_t bytes)
{
    return tierce__arena_alloc(data, bytes);
}

static void unpack_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer; /* it goes with the message */
}

int tierce__proto_unpack(ProtobufCMessage **out, const ProtobufCMessageDescriptor *descriptor,
                         const void *wire, size_t bytes, char why[TIERCE__PROTO_WHY_BYTES])
{
    const uint8_t *start = bytes > 0 ? wire : (const uint8_t *)"";
    int rc = check_wire(descriptor, (struct wire){start, start + bytes}, why);
    if (rc != 0)
        return rc;
    struct tierce__arena *arena =
        tierce__arena_create(descriptor->sizeof_message + bytes, tierce__proto_limit(bytes));
    if (arena == NULL) {
        wire_error(why, descriptor->short_name, "no memory");
        return -ENOMEM;
    }
    ProtobufCAllocator allocator = {unpack_alloc, unpack_free, arena};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &allocator, bytes, start);
    rc = arena->status;
    if (message == NULL || rc != 0) {
        wire_error(why, descriptor->short_name,
                   rc == 0         ? "a field is not of its type"
                   : rc == -ENOMEM ? "no memory"
                                   : "requires too much memory for its size");
        tierce__arena_destroy(arena);
        return rc == 0 ? TIERCE_E_FORMAT : rc;
    }
    /* protobuf-c takes the message first, which is how it is found again. */
    TIERCE_ASSERT(tierce__arena_of(message) == arena);
    *out = message;
    return 0;
}

/* ---- pack ------------------------------------------------------------------------------------ */

static bool texts_are_utf8(const ProtobufCMessage *message);

static bool value_is_utf8(const ProtobufCFieldDescriptor *field, const void *value)
{
    TIERCE_DASSERT(field->type == PROTOBUF_C_TYPE_MESSAGE || field->type == PROTOBUF_C_TYPE_STRING);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessage *inner = *(const ProtobufCMessage *const *)value;
        return inner == NULL || texts_are_utf8(inner);
    }
    const char *text = *(const char *const *)value;
    return text == NULL || tierce__is_utf8(text, strlen(text));
}

static bool texts_are_utf8(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        const char *at = tierce__proto_member(message, field->offset);
        size_t count = 1;
        if (field->type != PROTOBUF_C_TYPE_MESSAGE && field->type != PROTOBUF_C_TYPE_STRING)
            continue;
        if (tierce__proto_is_oneof(field) && tierce__proto_case(message, field) != field->id)
            continue;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            count = tierce__proto_count(message, field);
            at = *(const char *const *)(const void *)at;
        }
        for (size_t j = 0; j < count; j++) {
            if (!value_is_utf8(field, at + j * sizeof(void *)))
                return false;
        }
    }
    return true;
}

int tierce__proto_pack(void **out, size_t *bytes, const ProtobufCMessage *message)
{
    if (!texts_are_utf8(message))
        return TIERCE_E_FORMAT;
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *wire = tierce__alloc(size);
    if (wire == NULL)
        return -ENOMEM;
    size_t used = protobuf_c_message_pack(message, wire);
    TIERCE_ASSERT(used == size);
    *out = wire;
    *bytes = size;
    return 0;
}
