/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_FRAME_H
#define TIERCE_NET_GRPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/held.h"

#include <tierce/status.h>

/*
 * Parses gRPC messages from a stream of bytes: a byte for compression, four bytes of length
 * (big-endian), the message. Input may be split anywhere.
 *
 * Memory grows with the received bytes, not with the announced length.
 */

#define TIERCE__GRPC_PREFIX_BYTES 5u

struct tierce__grpc_reader {
    struct tierce__held *held; /* counts the bytes; NULL: not counted */
    size_t bytes_max;
    uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES];
    uint8_t prefix_bytes;
    uint8_t *body; /* of capacity bytes; `bytes` are received */
    size_t bytes, capacity;
};

/* A message owned by the caller; release it with tierce__grpc_message_fini. */
struct tierce__grpc_message {
    struct tierce__held *held;
    uint8_t *body;
    size_t bytes, capacity;
    bool is_compressed;
};

void tierce__grpc_message_fini(struct tierce__grpc_message *message);

void tierce__grpc_reader_init(struct tierce__grpc_reader *reader, struct tierce__held *held,
                              size_t bytes_max);
void tierce__grpc_reader_fini(struct tierce__grpc_reader *reader);

/*
 * Consumes *data and advances it. 1: *out holds a message, and *data may contain more; 0: all was
 * consumed, no message is complete. Errors: TIERCE_E_FORMAT (an invalid flag), TIERCE_E_LIMIT (too
 * long), -ENOMEM (no memory, or too much is held); no further call is allowed then.
 */
TIERCE_MUSTUSE int tierce__grpc_reader_feed(struct tierce__grpc_reader *reader,
                                            struct tierce__grpc_message *out, const uint8_t **data,
                                            size_t *count);

/* Returns whether a message is incomplete. */
bool tierce__grpc_reader_is_inside(const struct tierce__grpc_reader *reader);

void tierce__grpc_prefix_write(uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES], size_t bytes);

#endif
