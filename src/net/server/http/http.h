/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HTTP_H
#define TIERCE_NET_HTTP_H

#include "net/server/addresses.h"
#include "net/server/call_private.h"
#include "net/server/routes.h"

/* An HTTP/1.1 listener, by libmicrohttpd. */

struct tierce__http;

struct tierce__http_opts {
    struct tierce__shared *shared;
    const struct tierce__listener *listener;
    uint32_t threads, connections_max;
    struct tierce__addresses *addresses; /* [borrow until stop]; NULL: no limit */
};

/* Errors: negative errno, TIERCE_E_CONFIG (TLS files); `why` in words. */
TIERCE_MUSTUSE int tierce__http_start(struct tierce__http **out,
                                      const struct tierce__http_opts *opts, char why[256]);
uint16_t tierce__http_port(const struct tierce__http *http);

/* Reads the TLS files again, to be exchanged or dropped. Errors: TIERCE_E_CONFIG, -ENOMEM; `why` in
 * words. */
struct tierce__http_credentials;
TIERCE_MUSTUSE int tierce__http_credentials_read(struct tierce__http_credentials **out,
                                                 const struct tierce__tls *files, char why[256]);
void tierce__http_credentials_drop(struct tierce__http_credentials *credentials);
/* Uses them for new connections. [transfer] */
void tierce__http_exchange(struct tierce__http *http, struct tierce__http_credentials *fresh);

/* Stops accepting and ends streams; calls continue. */
void tierce__http_drain(struct tierce__http *http);

/* The number of running calls; 0 when all are answered. */
uint32_t tierce__http_calls(struct tierce__http *http);

/* Answers every call 503. */
void tierce__http_give_up(struct tierce__http *http);

/* Closes the connections of clients that have not read their answers yet. */
void tierce__http_cut(struct tierce__http *http);

/* Called when no handler runs any more. NULL is accepted. */
void tierce__http_stop(struct tierce__http *http);

#endif
