/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_REQUEST_H
#define TIERCE_WIRE_RESP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Parses RESP2 and RESP3 requests for a server, in any pieces: arrays of bulk strings, and inline
 * commands that are typed by hand. The first argument of at least large_bytes (a SET's value) is
 * not stored in the parser: the parser announces it as soon as its length is known, and writes its
 * bytes to the memory that the caller gives.
 *
 *     while ((rc = tierce__resp_request_feed(parser, bytes, count, &used, &request)) ...)
 *         LARGE:   tierce__resp_request_into(parser, memory of request.large_bytes, or NULL)
 *         REQUEST: request.args are all there
 *
 * The parser consumes all fed bytes. Requests are bounded: arguments by args_max, their bytes by
 * bytes_max, a line by 64 KiB; memory grows with the received bytes.
 *
 * Thread: one at a time.
 */

struct tierce__resp_arg {
    const char *text; /* NUL-terminated; may hold further NULs. NULL for the large argument */
    size_t bytes;
};

struct tierce__resp_request {
    const struct tierce__resp_arg *args; /* [borrow until the next feed] */
    size_t count;
    size_t large;         /* LARGE: that argument's index, == count */
    uint64_t large_bytes; /* and its length */
};

enum tierce__resp_request_event {
    TIERCE__RESP_REQUEST_MORE = 0,
    TIERCE__RESP_REQUEST_WHOLE = 1, /* at least one argument */
    TIERCE__RESP_REQUEST_LARGE = 2, /* the arguments before it are complete; call into next */
};

struct tierce__resp_request_limits {
    size_t args_max;
    size_t bytes_max;         /* of all arguments but the large one */
    uint64_t large_bytes;     /* the first argument of at least this length is the large one */
    uint64_t large_bytes_max; /* and its maximum */
};

struct tierce__resp_request_parser;

/* NULL for no memory. */
struct tierce__resp_request_parser *
tierce__resp_request_create(const struct tierce__resp_request_limits *limits);
void tierce__resp_request_destroy(struct tierce__resp_request_parser *parser);

/* Other limits, from the next length on. */
void tierce__resp_request_limit(struct tierce__resp_request_parser *parser,
                                const struct tierce__resp_request_limits *limits);

/* Takes *used of `count` bytes and returns an enum tierce__resp_request_event; MORE: all of them.
 * Errors, after which the parser cannot be used any more: TIERCE_E_FORMAT, TIERCE_E_LIMIT, -ENOMEM.
 * */
TIERCE_MUSTUSE int tierce__resp_request_feed(struct tierce__resp_request_parser *parser,
                                             const char *bytes, size_t count, size_t *used,
                                             struct tierce__resp_request *out);

/* The last request is no longer needed: frees memory beyond the usual need. May be called without a
 * request. */
void tierce__resp_request_done(struct tierce__resp_request_parser *parser);

/* The error in Redis' words; constant storage. */
const char *tierce__resp_request_error(const struct tierce__resp_request_parser *parser);

/* After LARGE: where the bytes go, [borrow until they have arrived]. NULL: nowhere. */
void tierce__resp_request_into(struct tierce__resp_request_parser *parser, void *memory);

/* Discards the rest of the large argument, even if into was given memory. */
void tierce__resp_request_drop(struct tierce__resp_request_parser *parser);

/* If the next bytes belong to the large argument and it has memory, returns their destination: up
 * to *bytes at the pointer; otherwise NULL. Report the bytes written there with filled. */
void *tierce__resp_request_room(struct tierce__resp_request_parser *parser, size_t *bytes);
void tierce__resp_request_filled(struct tierce__resp_request_parser *parser, size_t bytes);

/* Bytes of the large argument that have arrived. */
uint64_t tierce__resp_request_large_filled(const struct tierce__resp_request_parser *parser);

/* Whether a request has begun and is not complete. */
bool tierce__resp_request_is_within(const struct tierce__resp_request_parser *parser);

#endif
