/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_LM_H
#define TIERCE_WIRE_LM_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * lm://, the protocol of LMCache's server: messages of fixed length, all numbers little-endian
 * int32. A PUT's value follows its message, a found value its reply. A client has one request under
 * way; a PUT is not answered.
 */

#define TIERCE__LM_REQUEST_BYTES 186u
#define TIERCE__LM_REPLY_BYTES   36u
#define TIERCE__LM_KEY_BYTES     150u

enum tierce__lm_command {
    TIERCE__LM_PUT = 1,
    TIERCE__LM_GET = 2,
    TIERCE__LM_EXIST = 3,
    TIERCE__LM_LIST = 4, /* which is not answered either */
    TIERCE__LM_HEALTH = 5,
};

enum tierce__lm_code {
    TIERCE__LM_SUCCESS = 200,
    TIERCE__LM_FAIL = 400,
};

/* A client's description of its bytes; a server returns it unchanged. */
struct tierce__lm_shape {
    int32_t format; /* LMCache's MemoryFormat */
    int32_t dtype;
    int32_t dims[4]; /* 0: there is none */
};

/* Of an answer without a value. */
extern const struct tierce__lm_shape tierce__lm_no_shape;

struct tierce__lm_request {
    enum tierce__lm_command command;
    uint32_t value_bytes; /* PUT: the length of the value that follows; else 0 */
    struct tierce__lm_shape shape;
    int32_t location;
    size_t key_bytes; /* without the spaces behind it */
    const char *key;  /* decoded: [borrow] the message */
};

struct tierce__lm_reply {
    enum tierce__lm_code code;
    uint32_t value_bytes; /* the length of the value that follows */
    struct tierce__lm_shape shape;
    int32_t location;
};

/* Errors: TIERCE_E_FORMAT: an unknown command or code, a negative length, a command about a key
 * without one. */
TIERCE_MUSTUSE int tierce__lm_request_decode(struct tierce__lm_request *out,
                                             const uint8_t bytes[TIERCE__LM_REQUEST_BYTES]);
TIERCE_MUSTUSE int tierce__lm_reply_decode(struct tierce__lm_reply *out,
                                           const uint8_t bytes[TIERCE__LM_REPLY_BYTES]);

/* Errors: TIERCE_E_LIMIT: a key that is too long or ends in a space, a length above INT32_MAX. */
TIERCE_MUSTUSE int tierce__lm_request_encode(uint8_t bytes[TIERCE__LM_REQUEST_BYTES],
                                             const struct tierce__lm_request *request);
TIERCE_MUSTUSE int tierce__lm_reply_encode(uint8_t bytes[TIERCE__LM_REPLY_BYTES],
                                           const struct tierce__lm_reply *reply);

#endif
