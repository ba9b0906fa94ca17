/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_H
#define TIERCE_PROXY_H

#include "proxy/proxy_config.h"

/*
 * A proxy of OpenAI's API before several engines.
 *
 *     rc = tierce__proxy_start(&proxy, &config, why);
 *     ...
 *     tierce__proxy_stop(proxy);
 *
 * It serves /v1/completions, /v1/chat/completions, /v1/models, /health, /readyz and /metrics. Each
 * request goes to the engine of decode.urls with the most of its prompt or the least load; with
 * prefill.urls, an engine of that list computes the prompt first. Thread: one at a time.
 */

struct tierce__proxy;

/* [borrow until stop] config. Errors, *out untouched and `why` in words: negative errno,
 * TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__proxy_start(struct tierce__proxy **out,
                                       const struct tierce__proxy_config *config, char why[256]);

uint16_t tierce__proxy_port(const struct tierce__proxy *proxy);

/* Reads tokens and certificates again: all or none. Errors: as start. */
TIERCE_MUSTUSE int tierce__proxy_reload(struct tierce__proxy *proxy, char why[256]);

/* From now on new requests are answered 503; answers in progress continue. Returns when none is
 * left or serve.drain has passed, or `hurry` (NULL: never) returns true; it is called often. */
void tierce__proxy_drain(struct tierce__proxy *proxy, bool (*hurry)(void *arg), void *arg);

/* Ends all answers, streamed ones with an error event, and frees. */
void tierce__proxy_stop(struct tierce__proxy *proxy);

#endif
