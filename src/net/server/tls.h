/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_TLS_H
#define TIERCE_SERVE_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "net/server/serve.h"

/*
 * TLS by OpenSSL, without a socket: ciphertext and plaintext in and out. TLS 1.2 and above; ALPN
 * "h2", unless it is bare.
 */

struct tierce__tls_context; /* certificates, for many sessions; Thread: any */
struct tierce__tls_session; /* one connection; Thread: one at a time */

/* Errors: TIERCE_E_CONFIG (a file cannot be read, key and certificate do not fit), -ENOMEM; `why`
 * in words. */
TIERCE_MUSTUSE int tierce__tls_server_context(struct tierce__tls_context **out,
                                              const struct tierce__tls *files, char why[256]);

/* ca_file NULL: the system's authorities. certificate, key: the client's own, or NULL. */
TIERCE_MUSTUSE int tierce__tls_client_context(struct tierce__tls_context **out, const char *ca_file,
                                              const char *certificate, const char *key,
                                              char why[256]);
void tierce__tls_context_destroy(struct tierce__tls_context *context);

/* New sessions use the certificates of `by`, which receives the previous ones. */
void tierce__tls_context_exchange(struct tierce__tls_context *context,
                                  struct tierce__tls_context *by);

/* server_name: the name that a client expects in the certificate; NULL: a server's session. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__tls_session_create(struct tierce__tls_session **out,
                                              struct tierce__tls_context *context,
                                              const char *server_name);
void tierce__tls_session_destroy(struct tierce__tls_session *session);

/* Feeds received ciphertext. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__tls_feed(struct tierce__tls_session *session, const void *bytes,
                                    size_t count);

/* Reads plaintext, and advances the handshake. 0: no more now. Errors: TIERCE_E_FORMAT (the peer
 * violates the protocol, or its certificate is invalid). */
TIERCE_MUSTUSE ssize_t tierce__tls_read(struct tierce__tls_session *session, void *bytes,
                                        size_t capacity);

/* Encrypts all of the plaintext; the session must be ready. Errors: -ENOMEM, TIERCE_E_FORMAT. */
TIERCE_MUSTUSE int tierce__tls_write(struct tierce__tls_session *session, const void *bytes,
                                     size_t count);

/* Sends close_notify. */
void tierce__tls_end(struct tierce__tls_session *session);

/* Takes ciphertext to send. 0: none now. */
size_t tierce__tls_take(struct tierce__tls_session *session, void *bytes, size_t capacity);

/* Returns whether the handshake is complete, the certificates are verified and h2 was
 * negotiated. */
bool tierce__tls_is_ready(const struct tierce__tls_session *session);

/* The common name of the peer's certificate, or NULL. [borrow until destroy] */
const char *tierce__tls_peer_name(struct tierce__tls_session *session);

#endif
