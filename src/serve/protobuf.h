/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_PROTOBUF_H
#define TIERCE_SERVE_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/* A message of protobuf field by field, for the few that the server itself understands and for
 * descriptors, which are only looked at. */

struct tierce__protobuf {
    const uint8_t *data;
    size_t bytes;
};

struct tierce__protobuf_field {
    uint32_t number;
    const uint8_t *data; /* of strings, bytes and messages; else of length 0 */
    size_t bytes;
    uint64_t value; /* of varints */
};

/* 1: the next field; 0: the end; TIERCE_E_FORMAT. Groups are none. */
TIERCE_MUSTUSE int tierce__protobuf_next(struct tierce__protobuf *in,
                                         struct tierce__protobuf_field *out);

#endif
