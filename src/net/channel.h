/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_CHANNEL_H
#define TIERCE_NET_CHANNEL_H

#include <stdbool.h>
#include <sys/uio.h>

#include "net/stream.h"
#include "net/tls.h"

/*
 * A client's byte stream over TCP, a Unix socket or TLS, never blocking longer than a deadline.
 *
 * Thread: one at a time.
 */
struct tierce__channel {
    int fd;                          /* -1: closed */
    struct tierce__tls_session *tls; /* while it is connected with TLS */
    short wants;                     /* the poll events to wait for after -EAGAIN */
    int low;                         /* bytes before poll wakes for input; 0: it may not be set */
    struct tierce__stopper *stopper; /* of TCP connections; or NULL. [borrow] */
    /* A TCP connection is not made, or ends, when the network lets nothing pass for so long
     * (tierce__stream_watch); 0: only at deadlines. */
    uint32_t silence_ms;
};

/* `host` may be the path of a Unix socket; `tls` NULL: without TLS. Errors: TIERCE_E_DEADLINE,
 * -EPROTO (TLS, its certificates), -ENOMEM, other negative errno; `why` in words. */
TIERCE_MUSTUSE int tierce__channel_connect(struct tierce__channel *channel, const char *host,
                                           uint16_t port, struct tierce__tls_context *tls,
                                           uint64_t deadline_ns, char why[256]);
void tierce__channel_close(struct tierce__channel *channel);

/* Whether a connection on which nothing is awaited is still one. */
bool tierce__channel_is_quiet(struct tierce__channel *channel);

/* Once, without waiting. *done > 0 on success. Errors: -EAGAIN (see `wants`), -ECONNRESET for the
 * end, other negative errno. */
TIERCE_MUSTUSE int tierce__channel_read(struct tierce__channel *channel, const struct iovec *pieces,
                                        int count, size_t *done);
TIERCE_MUSTUSE int tierce__channel_write(struct tierce__channel *channel, struct iovec *pieces,
                                         int count, size_t *done);

/* Waits, too, as the calls of net/stream.h: for all to be sent; for at least `least` bytes. The
 * pieces are changed. Errors: TIERCE_E_DEADLINE, -ECONNRESET for the end, other negative errno. */
TIERCE_MUSTUSE int tierce__channel_send(struct tierce__channel *channel, struct iovec *pieces,
                                        int count, uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__channel_receive(struct tierce__channel *channel, struct iovec *pieces,
                                           int count, size_t least, size_t *got,
                                           uint64_t deadline_ns);

/* At least this many bytes are expected, so a wait for input may last until most of them have
 * arrived. 0: it ends with the first byte. */
void tierce__channel_expect(struct tierce__channel *channel, size_t bytes);

/* Waits for `events` of poll; *got may be NULL. TIERCE_E_DEADLINE, or negative errno. */
TIERCE_MUSTUSE int tierce__channel_wait(const struct tierce__channel *channel, short events,
                                        short *got, uint64_t deadline_ns);

#endif
