/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_ZMQ_CURVE_H
#define TIERCE_NET_ZMQ_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Keys of CURVE, the encryption and authentication of ZeroMQ (RFC 26), and sockets that use them. A
 * key is a text of 40 characters (Z85). A file holds the secret key; the public one follows from
 * it.
 *
 *     rc = tierce__zmq_curve_read(&own, "kv_events.curve_key_file", path, why);
 *     rc = tierce__zmq_curve_serve(socket, &own);           // of a server, before it binds
 *     rc = tierce__zmq_curve_join(socket, &own, server);    // of a client, before it connects
 *     tierce__zmq_curve_wipe(&own);
 *
 * A server's socket asks the handler of its context (RFC 27, ZAP) about each client. Bind the
 * handler before the server, and close it after: libzmq admits every client while a context has
 * none.
 *
 * Thread: any, but each socket on one at a time.
 */

#define TIERCE__ZMQ_CURVE_KEY_BYTES  32u
#define TIERCE__ZMQ_CURVE_TEXT_BYTES 41u /* Z85 and the NUL */

struct tierce__zmq_curve_pair {
    char public_key[TIERCE__ZMQ_CURVE_TEXT_BYTES], secret_key[TIERCE__ZMQ_CURVE_TEXT_BYTES];
};

/* Whether the libzmq in use has CURVE. */
bool tierce__zmq_curve_exists(void);

/* The pair of a secret key. False if the text is not a key. */
bool tierce__zmq_curve_of(struct tierce__zmq_curve_pair *out, const char *secret_key);

/* Reads a secret key from a file that no other user can read. Errors, `why` in words, beginning
 * with `param`: TIERCE_E_CONFIG (no key; others can read the file; a libzmq without CURVE),
 * negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__zmq_curve_read(struct tierce__zmq_curve_pair *out, const char *param,
                                          const char *path, char why[256]);

/* Makes a pair, and a file of mode 0600 with its secret key. An existing file is never changed.
 * Errors, no file is left, `why` in words: TIERCE_E_UNSUPPORTED (a libzmq without CURVE), negative
 * errno (-EEXIST: there is such a file). */
TIERCE_MUSTUSE int tierce__zmq_curve_create(struct tierce__zmq_curve_pair *out, const char *path,
                                            char why[256]);

/* Removes the secret key from memory. Accepts a zeroed pair. */
void tierce__zmq_curve_wipe(struct tierce__zmq_curve_pair *pair);

/* The bytes of a key. False if the text is not a key. */
bool tierce__zmq_curve_decode(uint8_t out[TIERCE__ZMQ_CURVE_KEY_BYTES], const char *text);
void tierce__zmq_curve_encode(char out[TIERCE__ZMQ_CURVE_TEXT_BYTES],
                              const uint8_t key[TIERCE__ZMQ_CURVE_KEY_BYTES]);

/* Makes a socket of libzmq a server, or a client of the server with that public key, which is
 * rejected if it shows another one. Errors: negative errno. */
TIERCE_MUSTUSE int tierce__zmq_curve_serve(void *socket, const struct tierce__zmq_curve_pair *own);
TIERCE_MUSTUSE int tierce__zmq_curve_join(void *socket, const struct tierce__zmq_curve_pair *own,
                                          const char *server_key);

#endif
