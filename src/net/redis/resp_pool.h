/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_POOL_H
#define TIERCE_NET_RESP_POOL_H

#include "net/redis/resp_link.h"

/*
 * Links for several threads: each takes one, uses it alone, and gives it back. They connect when
 * they are first used, and again when they have to.
 *
 *     rc = tierce__resp_pool_take(pool, &link, deadline_ns);
 *     rc = tierce__resp_link_begin(link);
 *     ...
 *     tierce__resp_pool_give(pool, link);
 *
 * Thread: any.
 */

struct tierce__resp_pool;

/* As many as uri.pool_max; [borrow] the URI for the call. Errors: as tierce__resp_create. */
TIERCE_MUSTUSE int tierce__resp_pool_create(struct tierce__resp_pool **out,
                                            const struct tierce__resp_uri *uri,
                                            char why[TIERCE__RESP_WHY_BYTES]);

/* All links must have been given back. NULL is accepted. */
void tierce__resp_pool_destroy(struct tierce__resp_pool *pool);

/* The link that was given back last, or a new one; waits while all are taken. Deadlines are of
 * clock.h; 0 is opts.call_timeout_ms from now. Errors: TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__resp_pool_take(struct tierce__resp_pool *pool,
                                          struct tierce__resp_link **out, uint64_t deadline_ns);
void tierce__resp_pool_give(struct tierce__resp_pool *pool, struct tierce__resp_link *link);

#endif
