/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TRANSFER_WIRE_H
#define TIERCE_TRANSFER_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The frames between a client and a server of named objects (store/transfer/transfer.h), in both
 * directions, without I/O. Specified in docs/inside/format/transfer.md. A decoder accepts what its
 * encoder makes and nothing else; every length in a decoded frame is within the bounds below.
 * Thread: any.
 *
 * Errors of all decoders, *out untouched: TIERCE_E_FORMAT.
 */

#define TIERCE__TRANSFER_VERSION  1u
#define TIERCE__TRANSFER_PIPELINE 8u /* requests of a connection that a server works on */

#define TIERCE__TRANSFER_NAME_MAX  512u /* bytes of a name, without NUL */
#define TIERCE__TRANSFER_SPACE_MAX 64u
#define TIERCE__TRANSFER_TOKEN_MAX 1024u
#define TIERCE__TRANSFER_NAMES_MAX 128u /* of one ASK */
#define TIERCE__TRANSFER_NAMES_BYTES_MAX                                                           \
    (TIERCE__TRANSFER_NAMES_MAX * (2u + TIERCE__TRANSFER_NAME_MAX))
#define TIERCE__TRANSFER_PAGE_MAX (1u << 20) /* bytes of the names of one LIST */

/* ---- the greeting ---------------------------------------------------------------------------- */

#define TIERCE__TRANSFER_HELLO_BYTES   16u
#define TIERCE__TRANSFER_WELCOME_BYTES 64u

/* Followed by the space and the token, without terminators. */
struct tierce__transfer_hello {
    uint32_t version;
    uint16_t space_bytes; /* 1 .. TIERCE__TRANSFER_SPACE_MAX */
    uint16_t token_bytes; /* 0 .. TIERCE__TRANSFER_TOKEN_MAX */
};

void tierce__transfer_hello_encode(uint8_t out[TIERCE__TRANSFER_HELLO_BYTES],
                                   const struct tierce__transfer_hello *hello);
/* Of another version, only `version` is set: the rest of its frame is unknown. */
TIERCE_MUSTUSE int tierce__transfer_hello_decode(struct tierce__transfer_hello *out,
                                                 const uint8_t in[TIERCE__TRANSFER_HELLO_BYTES]);

struct tierce__transfer_welcome {
    uint32_t version; /* of the server */
    int32_t status;   /* 0, or a negative reason; the connection ends then */
    uint32_t rights;
    uint32_t pipeline, names_max; /* 1 .. */
    uint8_t incarnation[16];
};

void tierce__transfer_welcome_encode(uint8_t out[TIERCE__TRANSFER_WELCOME_BYTES],
                                     const struct tierce__transfer_welcome *welcome);
/* Of another version, only version and status are set. */
TIERCE_MUSTUSE int
tierce__transfer_welcome_decode(struct tierce__transfer_welcome *out,
                                const uint8_t in[TIERCE__TRANSFER_WELCOME_BYTES]);

/* ---- requests -------------------------------------------------------------------------------- */

#define TIERCE__TRANSFER_HEAD_BYTES 32u /* of a request and of a reply */

enum tierce__transfer_op {
    TIERCE__TRANSFER_OP_READ = 1,
    TIERCE__TRANSFER_OP_WRITE = 2, /* followed by `length` bytes behind the name */
    TIERCE__TRANSFER_OP_ASK = 3,   /* no name; followed by `length` bytes: `offset` names */
    TIERCE__TRANSFER_OP_DROP = 4,
    TIERCE__TRANSFER_OP_LIST = 5, /* the name is a prefix, `offset` is the cursor */
};

/* Followed by the name. */
struct tierce__transfer_request {
    enum tierce__transfer_op op;
    uint16_t name_bytes;
    uint32_t wait_ms; /* how long the client waits for the reply; 0: the server decides */
    uint64_t offset, length;
    uint64_t total; /* WRITE: of the whole object. READ: the same if the client knows it, or 0 */
};

void tierce__transfer_request_encode(uint8_t out[TIERCE__TRANSFER_HEAD_BYTES],
                                     const struct tierce__transfer_request *request);
TIERCE_MUSTUSE int tierce__transfer_request_decode(struct tierce__transfer_request *out,
                                                   const uint8_t in[TIERCE__TRANSFER_HEAD_BYTES]);

/* Followed by `bytes` bytes: READ: those asked for; ASK: a length for each name; LIST: names. */
struct tierce__transfer_reply {
    enum tierce__transfer_op op;
    uint16_t sequence; /* of the request, modulo 2^16; the first one of a connection has 0 */
    int32_t status;    /* 0 or negative; then `bytes` is 0 */
    uint64_t bytes;
    uint64_t total;  /* READ: the length of the object, also if the range lies outside */
    uint64_t cursor; /* LIST: of the next page; 0 after the last one */
};

void tierce__transfer_reply_encode(uint8_t out[TIERCE__TRANSFER_HEAD_BYTES],
                                   const struct tierce__transfer_reply *reply);
TIERCE_MUSTUSE int tierce__transfer_reply_decode(struct tierce__transfer_reply *out,
                                                 const uint8_t in[TIERCE__TRANSFER_HEAD_BYTES]);

/* ---- lists ----------------------------------------------------------------------------------- */

/* In ASK's lengths: there is no such object. */
#define TIERCE__TRANSFER_ABSENT UINT64_MAX

/* A name in a list: its length in two bytes, then its bytes. Returns how many bytes were written.
 */
size_t tierce__transfer_name_encode(uint8_t *out, const char *text, size_t bytes);

/* The next name of a list of `count` bytes, at *at, which moves behind it. [borrow from `in`] */
TIERCE_MUSTUSE int tierce__transfer_name_decode(const char **text, size_t *bytes, const uint8_t *in,
                                                size_t count, size_t *at);

/* Whether these bytes are a name, a space or a token: no NUL. */
TIERCE_MUSTUSE int tierce__transfer_check_text(const void *text, size_t bytes);

#endif
