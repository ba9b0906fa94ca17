/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_PRIVATE_H
#define TIERCE_NET_RESP_PRIVATE_H

#include <sys/uio.h>

#include "base/arena.h"
#include "net/redis/resp_client.h"
#include "net/tls.h"

/* A copy whose texts are in the arena. Errors: -ENOMEM; the caller clears the arena even then. */
int tierce__resp_opts_copy(struct tierce__resp_opts *out, struct tierce__arena *arena,
                           const struct tierce__resp_opts *opts);
void tierce__resp_opts_clear(struct tierce__resp_opts *opts, struct tierce__arena *arena);

/* A byte stream over TCP, a Unix socket or TLS, never blocking longer than a deadline. */
struct tierce__resp_stream {
    int fd;                              /* -1: closed */
    struct tierce__tls_context *context; /* NULL: no TLS */
    struct tierce__tls_session *tls;     /* while it is connected with TLS */
    short wants;                         /* the poll events to wait for after -EAGAIN */
    int low; /* bytes before poll wakes for input; 0: it may not be set */
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

/* At least this many bytes are expected, so a wait for input may last until most of them have
 * arrived. 0: it ends with the first byte. */
void tierce__resp_stream_expect(struct tierce__resp_stream *stream, size_t bytes);

/* Waits for `events` of poll; *got may be NULL. TIERCE_E_DEADLINE, or negative errno. */
int tierce__resp_stream_wait(const struct tierce__resp_stream *stream, short events, short *got,
                             uint64_t deadline_ns);

#endif
