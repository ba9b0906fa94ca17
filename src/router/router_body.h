/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_BODY_H
#define TIERCE_ROUTER_BODY_H

#include "base/json/json_value.h"

/*
 * The body of a request: a JSON object, or a MessagePack map by its Content-Type. Both have the
 * same fields, so the rest of the index knows JSON values only.
 *
 *     rc = tierce__router_body_read(&body, bytes, count, is_msgpack, &why);
 *     if (rc == 0 && tierce__json_get_text(model, sizeof(model), body.rest.value, "model"))
 *         count = tierce__router_body_numbers(&numbers, &body, TIERCE__ROUTER_TOKENS, 1000);
 *     tierce__router_body_close(&body);
 *
 * Thread: any.
 */

#define TIERCE__ROUTER_MSGPACK "application/msgpack"

enum tierce__router_array {
    TIERCE__ROUTER_TOKENS,       /* "token_ids" */
    TIERCE__ROUTER_BLOCK_HASHES, /* "block_hashes" */
    TIERCE__ROUTER_SEQ_HASHES,   /* "seq_hashes" */
    TIERCE__ROUTER_ARRAYS,
};

/* The long arrays, and an object of all other fields, so that looking for a name is cheap. An empty
 * list stands for a value that is longer than any field accepts. */
struct tierce__router_body {
    struct tierce__json_doc whole; /* of JSON */
    struct tierce__json_doc rest;
    struct tierce__text arrays[TIERCE__ROUTER_ARRAYS]; /* as they came; empty: missing */
    bool is_msgpack;
};

/* Whether a Content-Type (may be NULL) names MessagePack. */
bool tierce__router_body_is_msgpack(const char *type);

/* `bytes` [borrow until close], not NULL. Errors, nothing to close: TIERCE_E_FORMAT, and
 * TIERCE_E_LIMIT for other fields of more than 1 MiB: *why is the reason; -ENOMEM. */
TIERCE_MUSTUSE int tierce__router_body_read(struct tierce__router_body *out, const void *bytes,
                                            size_t count, bool is_msgpack, const char **why);
/* Accepts a zeroed body. */
void tierce__router_body_close(struct tierce__router_body *body);

/* The numbers of an array, at least one: tokens below 2^32, hashes below 2^64. Tokens in
 * MessagePack may also be bytes, four for each, little-endian. Returns how many there are; *out,
 * heap. Errors: -EINVAL, TIERCE_E_LIMIT (more than count_max), -ENOMEM. */
int64_t tierce__router_body_numbers(uint64_t **out, const struct tierce__router_body *body,
                                    enum tierce__router_array which, uint64_t count_max);

#endif
