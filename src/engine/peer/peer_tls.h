/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PEER_TLS_H
#define TIERCE_ENGINE_PEER_TLS_H

#include <tierce/config.h>

#include "net/tls.h"

/*
 * The certificates with which an engine serves its chunks to other engines and reads theirs: the
 * parameters peers.certificate, peers.key and peers.ca. Peers (peers.h) and hand-overs
 * (handover/handover.h) have the same ones.
 *
 * An engine with them neither reads nor serves without TLS, so a secret is never sent in plain
 * text, and never to a server whose certificate is not signed by this CA and for its address. An
 * engine without them neither reads nor serves with TLS. The files are read again when they change
 * (tls.h, follows).
 *
 * Thread: any.
 */

struct tierce__peer_tls;

/* *out NULL: no such parameter is set. Errors: TIERCE_E_CONFIG (a parameter is missing, a file
 * cannot be used), -ENOMEM; `why` set. */
TIERCE_MUSTUSE int tierce__peer_tls_create(struct tierce__peer_tls **out,
                                           const struct tierce_config *config,
                                           char why[TIERCE_CONFIG_ERROR_BYTES]);
/* NULL is accepted. */
void tierce__peer_tls_destroy(struct tierce__peer_tls *tls);

/* For links to other engines. Returns NULL if `tls` is NULL: the links do not use TLS. [borrow
 * until destroy] */
struct tierce__tls_context *tierce__peer_tls_client(struct tierce__peer_tls *tls);

/* For a server at this address. *out is NULL if `tls` is NULL: the server does not use TLS. [borrow
 * until destroy]
 * Errors: TIERCE_E_CONFIG (there is no certificate, or it is not for the address); `why` set. */
TIERCE_MUSTUSE int tierce__peer_tls_server(struct tierce__tls_context **out,
                                           struct tierce__peer_tls *tls, const char *host,
                                           char why[256]);

/* Why this engine does not connect to one that uses TLS, or to one that does not; NULL if it does.
 */
const char *tierce__peer_tls_mismatch(const struct tierce__peer_tls *tls, bool other_uses_tls);

#endif
