/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_PROTO_H
#define TIERCE_WIRE_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include <tierce/status.h>

/*
 * Messages with their own memory: a message that was unpacked here, or created by
 * tierce__proto_create, owns everything below it and is freed at once. Messages that the caller
 * built otherwise can be packed and printed too.
 *
 *     reply = tierce__proto_create(&meta__get_cache_location_response__descriptor);
 *     locations = tierce__proto_alloc(reply, count * sizeof(*locations));
 *     ...
 *     rc = tierce__proto_pack(&wire, &bytes, reply);
 *     tierce__proto_free(reply);
 *
 * Strings are UTF-8 without NUL in both directions; others are rejected.
 *
 * Thread: any; a message one at a time until it is only read.
 */

#define TIERCE__PROTO_WHY_BYTES 512u

/* Limit of the memory of an unpacked message: the larger of a constant and a multiple of its
 * bytes. */
#define TIERCE__PROTO_MEMORY_MIN   (1u << 20)
#define TIERCE__PROTO_MEMORY_TIMES 32u

/* A message with its defaults, or NULL for no memory. */
ProtobufCMessage *tierce__proto_create(const ProtobufCMessageDescriptor *descriptor);

/* Zeroed memory that is freed with the message, which must come from tierce__proto_create or a
 * reader below. NULL for no memory; all later calls then return NULL too. */
void *tierce__proto_alloc(ProtobufCMessage *message, size_t bytes);

/* A message with its defaults in such memory, or NULL. */
ProtobufCMessage *tierce__proto_add(ProtobufCMessage *root,
                                    const ProtobufCMessageDescriptor *descriptor);

/* The member of a message at an offset of its descriptor. */
static inline void *tierce__proto_member(const ProtobufCMessage *message, unsigned offset)
{
    return (char *)(uintptr_t)message + offset;
}

/* NULL is accepted. Not for messages inside other messages. */
void tierce__proto_free(ProtobufCMessage *message);

/* The approximate memory of such a message and everything below it. NULL: 0. */
size_t tierce__proto_bytes(ProtobufCMessage *message);

/* A message from wire bytes, [borrow] for the call. Fields that are not known stay with it, as
 * protobuf-c does it. Errors, *out untouched and `why` filled: TIERCE_E_FORMAT, TIERCE_E_LIMIT
 * (more memory than the limit above), -ENOMEM. */
TIERCE_MUSTUSE int tierce__proto_unpack(ProtobufCMessage **out,
                                        const ProtobufCMessageDescriptor *descriptor,
                                        const void *wire, size_t bytes,
                                        char why[TIERCE__PROTO_WHY_BYTES]);

/* Wire bytes on the heap (tierce__free). Errors: -ENOMEM, TIERCE_E_FORMAT (not UTF-8). */
TIERCE_MUSTUSE int tierce__proto_pack(void **out, size_t *bytes, const ProtobufCMessage *message);

#endif
