/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_PROTO_JSON_H
#define TIERCE_WIRE_PROTO_JSON_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include <tierce/status.h>

/*
 * proto3 JSON over protobuf-c descriptors, in the dialect of KVCM's HTTP ports: out without white
 * space, names in snake_case, enums as names (a number without a name as a number), 64-bit
 * integers as strings, scalar, enum and empty repeated fields always printed, sub-messages and
 * members of a oneof only when set. In: snake_case or lowerCamel, integers as numbers or strings,
 * enums as names or numbers, unknown fields and unknown enum names ignored, null as absent.
 *
 * Strings are UTF-8 in both directions; what is not is refused.
 *
 * Thread: any.
 */

#define TIERCE__PROTO_WHY_BYTES 160u

/* *out = heap text (tierce__free), NUL-terminated. Errors, *out untouched: -ENOMEM,
 * TIERCE_E_FORMAT (a string that is not UTF-8). */
TIERCE_MUSTUSE int tierce__proto_json_print(char **out, size_t *bytes,
                                            const ProtobufCMessage *message);

/*
 * A message of the descriptor's type from JSON text; free it by tierce__proto_free.
 * Errors, *out untouched and `why` filled: TIERCE_E_FORMAT (no JSON object, wrong type, number out
 * of range, nested deeper than 64), TIERCE_E_LIMIT, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__proto_json_parse(ProtobufCMessage **out,
                                            const ProtobufCMessageDescriptor *descriptor,
                                            const char *text, size_t bytes,
                                            char why[TIERCE__PROTO_WHY_BYTES]);

/* The same from wire bytes: allocations bounded by a small multiple of `bytes`, all strings UTF-8.
 * Errors: TIERCE_E_FORMAT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__proto_unpack(ProtobufCMessage **out,
                                        const ProtobufCMessageDescriptor *descriptor,
                                        const void *wire, size_t bytes,
                                        char why[TIERCE__PROTO_WHY_BYTES]);

/* Wire bytes on the heap (tierce__free). Errors: -ENOMEM, TIERCE_E_FORMAT (not UTF-8). */
TIERCE_MUSTUSE int tierce__proto_pack(void **out, size_t *bytes, const ProtobufCMessage *message);

/* NULL is accepted. */
void tierce__proto_free(ProtobufCMessage *message);

#endif
