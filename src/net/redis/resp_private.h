/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_PRIVATE_H
#define TIERCE_NET_RESP_PRIVATE_H

#include "base/arena.h"
#include "net/redis/resp_client.h"

/* A copy whose texts are in the arena. Errors: -ENOMEM; the caller clears the arena even then. */
int tierce__resp_opts_copy(struct tierce__resp_opts *out, struct tierce__arena *arena,
                           const struct tierce__resp_opts *opts);
void tierce__resp_opts_clear(struct tierce__resp_opts *opts, struct tierce__arena *arena);

#endif
