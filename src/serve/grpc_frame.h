/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_GRPC_FRAME_H
#define TIERCE_SERVE_GRPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * gRPC's messages in a stream of bytes: a byte that tells whether it is compressed, four of length
 * (big-endian), the message. Bytes come cut anywhere.
 *
 * Memory grows with what has arrived, not with what a length promises.
 */

#define TIERCE__GRPC_PREFIX_BYTES 5u

struct tierce__shared;

struct tierce__grpc_reader {
    struct tierce__shared *shared; /* whose held bytes are counted; NULL: not */
    size_t bytes_max;
    uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES];
    uint8_t prefix_bytes;
    uint8_t *body; /* of capacity bytes, of which `bytes` have come */
    size_t bytes, capacity;
};

/* A message that is the taker's; given back with tierce__grpc_message_fini. */
struct tierce__grpc_message {
    struct tierce__shared *shared;
    uint8_t *body;
    size_t bytes, capacity;
    bool is_compressed;
};

void tierce__grpc_message_fini(struct tierce__grpc_message *message);

void tierce__grpc_reader_init(struct tierce__grpc_reader *reader, struct tierce__shared *shared,
                              size_t bytes_max);
void tierce__grpc_reader_fini(struct tierce__grpc_reader *reader);

/*
 * Reads on in *data, which moves on. 1: *out holds a message, and there may be more in *data; 0:
 * all was read, no message ended. Errors: TIERCE_E_FORMAT (a flag that is none), TIERCE_E_LIMIT
 * (too long), -ENOMEM (no memory, or too much is held); nothing may follow then.
 */
TIERCE_MUSTUSE int tierce__grpc_reader_feed(struct tierce__grpc_reader *reader,
                                            struct tierce__grpc_message *out, const uint8_t **data,
                                            size_t *count);

/* Whether it stands inside of a message. */
bool tierce__grpc_reader_is_inside(const struct tierce__grpc_reader *reader);

void tierce__grpc_prefix_write(uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES], size_t bytes);

/*
 * The message uncompressed (gzip or zlib) in its place. Errors: TIERCE_E_FORMAT, TIERCE_E_LIMIT
 * (more than bytes_max come out of it), -ENOMEM; the message is as it was then.
 */
TIERCE_MUSTUSE int tierce__grpc_message_inflate(struct tierce__grpc_message *message,
                                                size_t bytes_max);

#endif
