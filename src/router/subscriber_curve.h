/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_SUBSCRIBER_CURVE_H
#define TIERCE_ROUTER_SUBSCRIBER_CURVE_H

#include <tierce/status.h>

#include "net/tenant_words.h"

/*
 * The encryption of a publisher's stream (net/zmq_curve.h), for the sockets of its subscriber. The
 * index has a key for each tenant, so that nobody who registers publishers for one tenant reads a
 * stream that admits the key of another one.
 *
 * Thread: any, but each socket on one at a time.
 */

/* As tierce__tenant_words_read, for curve.key_file, whose keys are checked too. */
TIERCE_MUSTUSE int tierce__subscriber_keys_read(char **out, const char *path, char why[256]);

/* Makes a socket a client of the publisher with that public key; "": the stream is not encrypted.
 * Errors, `why` in words: TIERCE_E_CONFIG (curve.key_file has no valid key of the tenant), -ENOMEM,
 * negative errno. */
TIERCE_MUSTUSE int tierce__subscriber_curve(void *socket, struct tierce__tenant_words *keys,
                                            const char *tenant, const char *server_key,
                                            char why[256]);

#endif
