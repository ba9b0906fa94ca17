/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_TLS_H
#define TIERCE_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <tierce/status.h>

/*
 * TLS by OpenSSL, 1.2 and above: for servers and clients that own their sockets (ciphertext and
 * plaintext in and out), and for clients that leave the socket to the session. ALPN "h2", unless it
 * is bare.
 */

struct tierce__tls {
    const char *certificate, *key; /* PEM files; NULL: no TLS, or a client without a certificate */
    const char *client_ca;         /* PEM: clients must show a certificate of it; or NULL */
    bool is_bare;                  /* not for HTTP/2: no ALPN inside TLS */
    /* New sessions use the files as they are then. While one cannot be used, for instance because
     * it is being replaced, the previous ones are used; the log has tls_files_kept. */
    bool follows;
};

struct tierce__tls_context; /* certificates, for many sessions; Thread: any */
struct tierce__tls_session; /* one connection; Thread: one at a time */

/* Errors: TIERCE_E_CONFIG (a file cannot be read, key or certificate is missing, they do not fit),
 * -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__tls_server_context(struct tierce__tls_context **out,
                                              const struct tierce__tls *files, char why[256]);

/* ca_file NULL: the system's CAs. files->client_ca is ignored. */
TIERCE_MUSTUSE int tierce__tls_client_context(struct tierce__tls_context **out, const char *ca_file,
                                              const struct tierce__tls *files, char why[256]);
void tierce__tls_context_destroy(struct tierce__tls_context *context);

/* Whether its own certificate is one for this host, a name or an address. */
bool tierce__tls_context_is_for(struct tierce__tls_context *context, const char *host);

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

/* The reason why the last call for the session failed, in words. Call it at once. [borrow for ever]
 */
const char *tierce__tls_problem(const struct tierce__tls_session *session);

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

/* ---- sessions on a socket -------------------------------------------------------------------- */

/* Makes the handshake on a connected socket that does not block, [borrow until destroy]. Errors:
 * TIERCE_E_DEADLINE, -EPROTO (the certificate is invalid or not of `server_name`, the peer violates
 * the protocol), -ENOMEM, other negative errno; `why` in words. */
TIERCE_MUSTUSE int tierce__tls_session_connect(struct tierce__tls_session **out,
                                               struct tierce__tls_context *context, int fd,
                                               const char *server_name, uint64_t deadline_ns,
                                               char why[256]);

/* A server's session. The handshake is made by the first calls of tierce__tls_socket_read. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__tls_session_accept(struct tierce__tls_session **out,
                                              struct tierce__tls_context *context, int fd);

/* Without waiting: as much as there is, or fits, but at most about 1 MiB; *done > 0 on success.
 * After -EAGAIN the next write begins with the same bytes. Errors: -EAGAIN (*wants: the events of
 * poll to wait for), -ECONNRESET for the end, -EPROTO, other negative errno. */
TIERCE_MUSTUSE int tierce__tls_socket_read(struct tierce__tls_session *session,
                                           const struct iovec *pieces, int count, size_t *done,
                                           short *wants);
TIERCE_MUSTUSE int tierce__tls_socket_write(struct tierce__tls_session *session,
                                            const struct iovec *pieces, int count, size_t *done,
                                            short *wants);

/* Whether it is open and no plaintext can be read. */
bool tierce__tls_socket_is_quiet(struct tierce__tls_session *session);

#endif
