/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_PROTOBUF_H
#define TIERCE_NET_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/* A reader of protobuf messages field by field, for the few messages that the server itself parses
 * and for descriptors. */

struct tierce__protobuf {
    const uint8_t *data;
    size_t bytes;
};

struct tierce__protobuf_field {
    uint32_t number;
    const uint8_t *data; /* for strings, bytes and messages; else of length 0 */
    size_t bytes;
    uint64_t value; /* of varints */
};

/* Reads the next field: 1; 0 at the end; TIERCE_E_FORMAT. Groups are rejected. */
TIERCE_MUSTUSE int tierce__protobuf_next(struct tierce__protobuf *in,
                                         struct tierce__protobuf_field *out);

#endif
