/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_LMCACHE_STORE_H
#define TIERCE_TIER_LMCACHE_STORE_H

#include "connector/connector.h"
#include "tier/lmcache_names.h"

/*
 * A connector that keeps chunks as LMCache 0.5.6 keeps them in Redis, over a connector of Redis.
 * A chunk is three objects, by LMCache's key (docs/format/key.md):
 *
 *     KEYkv_bytes    the KV of all layers: K layer by layer, then V
 *     KEYtierce      the header of our chunk, which LMCache does not know
 *     KEYmetadata    28 bytes: how long and of what shape; written last, and what is there is there
 *
 * What LMCache has written has no KEYtierce: it is compared with the shape that is wanted, and a
 * header is made for it. A KEYmetadata whose KEYkv_bytes is gone is a miss and is deleted, so that
 * the next PUT repairs it.
 *
 * EXISTS, GET of whole objects, PUT, DELETE and PING; the names are keys as text. Chunks that the
 * table does not know are not there, and a PUT of one is TIERCE_E_UNSUPPORTED.
 */

struct tierce__lmcache_store_opts {
    struct tierce__connector *connector; /* [transfer, on success only] */
    struct tierce__lmcache_names *names; /* [borrow until close] */
    const char *model;                   /* in keys; [borrow for the call] */
};

#define TIERCE__LMCACHE_MODEL_MAX 256u

/* Errors: -ENOMEM; TIERCE_E_CONFIG, the model's name is none in LMCache's keys. */
TIERCE_MUSTUSE int tierce__lmcache_store_open(struct tierce__connector **out,
                                              const struct tierce__lmcache_store_opts *opts);

#endif
