/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_PROTO_PRIVATE_H
#define TIERCE_WIRE_PROTO_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json/json.h"
#include "proto/kvcm/proto.h"

/* A message with its defaults, or NULL. The first message from an arena is a root, which
 * tierce__proto_free accepts. */
ProtobufCMessage *tierce__proto_message_in(struct tierce__arena *arena,
                                           const ProtobufCMessageDescriptor *descriptor);

/* The field of a name as it is in the .proto file or in lowerCamel, or NULL. */
const ProtobufCFieldDescriptor *
tierce__proto_find_field(const ProtobufCMessageDescriptor *descriptor, struct tierce__text name);

/* The memory limit of a message of `bytes` bytes. */
size_t tierce__proto_limit(size_t bytes);

/* A member of a oneof, which has no default to print or pack. */
static inline bool tierce__proto_is_oneof(const ProtobufCFieldDescriptor *field)
{
    return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

/* The number of the member of the oneof that is set; 0: none. */
static inline uint32_t tierce__proto_case(const ProtobufCMessage *message,
                                          const ProtobufCFieldDescriptor *field)
{
    return *(const uint32_t *)tierce__proto_member(message, field->quantifier_offset);
}

/* How many elements a repeated field has. */
static inline size_t tierce__proto_count(const ProtobufCMessage *message,
                                         const ProtobufCFieldDescriptor *field)
{
    return *(const size_t *)tierce__proto_member(message, field->quantifier_offset);
}

#endif
