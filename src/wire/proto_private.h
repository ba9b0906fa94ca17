/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_PROTO_PRIVATE_H
#define TIERCE_WIRE_PROTO_PRIVATE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/proto.h"

/* The memory of a message: blocks that are filled from their beginning and freed together. The
 * root message lies behind it in the first one. */
struct tierce__proto_memory;

/* With a first block for `bytes`, and room for the root message. NULL for no memory. `limit` is
 * what it may ever give. */
struct tierce__proto_memory *tierce__proto_memory_create(size_t bytes, size_t limit);
void tierce__proto_memory_destroy(struct tierce__proto_memory *memory);

/* Uninitialised bytes, aligned for any type; NULL, and remembered, if there are none. */
void *tierce__proto_memory_take(struct tierce__proto_memory *memory, size_t bytes);

/* -ENOMEM or TIERCE_E_LIMIT if a take has failed, else 0. */
int tierce__proto_memory_status(const struct tierce__proto_memory *memory);

/* A message with its defaults; the first one that is taken is the root. */
ProtobufCMessage *tierce__proto_memory_message(struct tierce__proto_memory *memory,
                                               const ProtobufCMessageDescriptor *descriptor);

/* What a message of so many bytes may take. */
size_t tierce__proto_limit(size_t bytes);

/* A member of a oneof, which has no default to print or pack. */
static inline bool tierce__proto_is_oneof(const ProtobufCFieldDescriptor *field)
{
    return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

static inline const void *tierce__proto_at(const ProtobufCMessage *message, unsigned offset)
{
    return (const char *)message + offset;
}

/* The number of the member of the oneof that is set; 0: none. */
static inline uint32_t tierce__proto_case(const ProtobufCMessage *message,
                                          const ProtobufCFieldDescriptor *field)
{
    return *(const uint32_t *)tierce__proto_at(message, field->quantifier_offset);
}

/* How many elements a repeated field has. */
static inline size_t tierce__proto_count(const ProtobufCMessage *message,
                                         const ProtobufCFieldDescriptor *field)
{
    return *(const size_t *)tierce__proto_at(message, field->quantifier_offset);
}

#endif
