/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_PRIVATE_H
#define TIERCE_WIRE_RESP_PRIVATE_H

#include <openssl/ssl.h>
#include <sys/uio.h>

#include "wire/resp_client.h"

/* A byte stream over TCP, a Unix socket or TLS, never blocking longer than a deadline. */
struct tierce__resp_stream {
    int fd; /* -1: closed */
    SSL_CTX *context;
    SSL *ssl;
    short wants; /* what poll is to wait for after -EAGAIN */
};

/* Loads the TLS files, if opts asks for TLS. Errors: TIERCE_E_CONFIG, -ENOMEM, with `why`. */
int tierce__resp_stream_init(struct tierce__resp_stream *stream,
                             const struct tierce__resp_opts *opts,
                             char why[TIERCE__RESP_WHY_BYTES]);
void tierce__resp_stream_fini(struct tierce__resp_stream *stream);

int tierce__resp_stream_connect(struct tierce__resp_stream *stream,
                                const struct tierce__resp_opts *opts, uint64_t deadline_ns,
                                char why[TIERCE__RESP_WHY_BYTES]);
void tierce__resp_stream_close(struct tierce__resp_stream *stream);

/* Whether a connection on which nothing is awaited is still one. */
bool tierce__resp_stream_is_quiet(struct tierce__resp_stream *stream);

/* Once, without waiting. *done > 0 on success. Errors: -EAGAIN (see `wants`), -ECONNRESET for the
 * end, other negative errno. */
int tierce__resp_stream_read(struct tierce__resp_stream *stream, const struct iovec *pieces,
                             int count, size_t *done);
int tierce__resp_stream_write(struct tierce__resp_stream *stream, struct iovec *pieces, int count,
                              size_t *done);

/* Waits for `events` of poll; *got may be NULL. TIERCE_E_DEADLINE, or negative errno. */
int tierce__resp_stream_wait(const struct tierce__resp_stream *stream, short events, short *got,
                             uint64_t deadline_ns);

#endif
