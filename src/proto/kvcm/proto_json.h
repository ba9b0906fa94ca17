/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_PROTO_JSON_H
#define TIERCE_WIRE_PROTO_JSON_H

#include "base/json/json_value.h"
#include "proto/kvcm/proto.h"

/*
 * proto3 JSON over protobuf-c descriptors, in the dialect of KVCM's HTTP ports: out without white
 * space, names in snake_case, enums as names (a number without a name as a number), 64-bit
 * integers as strings, scalar, enum and empty repeated fields always printed, sub-messages and
 * members of a oneof only when set. In: snake_case or lowerCamel, integers as numbers or strings,
 * enums as names or numbers, unknown fields and unknown enum names ignored, null as absent.
 *
 * A field that is given twice, two members of a oneof, and a null in an array are rejected.
 *
 * For the types that our messages have: int32, int64, double, bool, enum, string, message.
 *
 * Thread: any.
 */

/* *out = heap text (tierce__free), NUL-terminated; *bytes without the NUL. Errors, *out untouched:
 * -ENOMEM, TIERCE_E_FORMAT (a string that is not UTF-8). */
TIERCE_MUSTUSE int tierce__proto_json_print(char **out, size_t *bytes,
                                            const ProtobufCMessage *message);

/* The same for a text of `max` bytes, below SIZE_MAX, or less; TIERCE_E_LIMIT as soon as it is
 * more. */
TIERCE_MUSTUSE int tierce__proto_json_print_max(char **out, size_t *bytes, size_t max,
                                                const ProtobufCMessage *message);

/*
 * A message of the descriptor's type from JSON text, [borrow] for the call; free it by
 * tierce__proto_free. On success `why` is "", or reports a name that its enum lacks, and the names
 * that it has. Errors, *out untouched and `why` filled: TIERCE_E_FORMAT (no JSON object, wrong
 * type, number out of range, nested deeper than 64, not UTF-8), TIERCE_E_LIMIT (as
 * tierce__proto_unpack), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__proto_json_parse(ProtobufCMessage **out,
                                            const ProtobufCMessageDescriptor *descriptor,
                                            const char *text, size_t bytes,
                                            char why[TIERCE__PROTO_WHY_BYTES]);

/*
 * Checks the names in an object for a person who wrote it: each must be a field of the message, and
 * each text for an enum one of its names. A number is accepted for an enum. `why` names the object,
 * the invalid name and the nearest valid one. Errors: TIERCE_E_FORMAT.
 */
TIERCE_MUSTUSE int tierce__proto_json_check_names(const ProtobufCMessageDescriptor *descriptor,
                                                  struct tierce__text object,
                                                  char why[TIERCE__PROTO_WHY_BYTES]);

#endif
