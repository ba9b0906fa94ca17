/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_PARSE_H
#define TIERCE_WIRE_RESP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Parses RESP2 replies from bytes that arrive in pieces of any size. Replies are bounded: a bulk
 * string by bulk_bytes_max, the memory of all values since the last reset by answer_bytes_max,
 * arrays by eight levels, lines by 64 KiB.
 *
 * Thread: one at a time.
 */

enum tierce__resp_type {
    TIERCE__RESP_NIL,
    TIERCE__RESP_STRING, /* simple or bulk */
    TIERCE__RESP_ERROR,
    TIERCE__RESP_INTEGER,
    TIERCE__RESP_ARRAY,
};

struct tierce__resp_value {
    enum tierce__resp_type type;
    int64_t integer;
    const char *text; /* of STRING and ERROR, with a terminating NUL; may hold further NULs */
    size_t bytes;
    const struct tierce__resp_value *items;
    size_t count;
    bool repeats_password; /* set by resp_client.h for an ERROR that is not in an array */
};

#define TIERCE__RESP_DEPTH_MAX      8u
#define TIERCE__RESP_LINE_BYTES_MAX 65536u

struct tierce__resp_parser;

/* NULL for no memory. */
struct tierce__resp_parser *tierce__resp_parser_create(uint64_t bulk_bytes_max,
                                                       uint64_t answer_bytes_max);
void tierce__resp_parser_destroy(struct tierce__resp_parser *parser);

/* Forgets all values, and half a reply. */
void tierce__resp_parser_reset(struct tierce__resp_parser *parser);

/* If the next reply is a bulk string, its first `capacity` bytes go to `memory` [borrow until it is
 * complete], the rest nowhere; its value then has the length and no text. Between replies only. */
void tierce__resp_parser_into(struct tierce__resp_parser *parser, void *memory, size_t capacity);

/*
 * Takes *used of `count` bytes. Returns 1 when a reply is complete, which is *out, [borrow until
 * reset]; 0 if more bytes are needed: the caller passes the unused bytes again, followed by more.
 * Errors, after which the parser must be reset: TIERCE_E_FORMAT, TIERCE_E_LIMIT, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__resp_parser_feed(struct tierce__resp_parser *parser, const char *bytes,
                                            size_t count, size_t *used,
                                            struct tierce__resp_value *out);

/* If the next bytes belong to a bulk string, returns their destination, so that they can be read
 * in place: up to *bytes at the pointer; otherwise NULL. Report the bytes written there with
 * filled. */
char *tierce__resp_parser_room(struct tierce__resp_parser *parser, size_t *bytes);
void tierce__resp_parser_filled(struct tierce__resp_parser *parser, size_t bytes);

#endif
