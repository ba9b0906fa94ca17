/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_LMCACHE_STORE_H
#define TIERCE_TIER_LMCACHE_STORE_H

#include "store/remote/connector.h"
#include "store/remote/lmcache_names.h"

/*
 * A connector that keeps chunks as LMCache 0.5.6 keeps them in Redis, over a connector of Redis. A
 * chunk is three objects, by LMCache's key (docs/inside/format/key.md):
 *
 *     KEYkv_bytes    the KV of all layers: K layer by layer, then V
 *     KEYtierce      the header of our chunk, which LMCache does not know
 *     KEYmetadata    28 bytes: length and shape; written last: if it exists, the chunk exists
 *
 * Chunks that LMCache wrote have no KEYtierce: their shape is compared with the wanted one, and a
 * header is made for them. A KEYmetadata whose KEYkv_bytes is gone is a miss and is deleted, so
 * that the next PUT repairs it.
 *
 * EXISTS, GET of whole objects, PUT, DELETE and PING; the names are keys as text. A chunk that the
 * table does not know is a miss, and a PUT of it returns TIERCE_E_UNSUPPORTED.
 */

struct tierce__lmcache_store_opts {
    struct tierce__connector *connector; /* [transfer, on success only] */
    struct tierce__lmcache_names *names; /* [borrow until close] */
    const char *model;                   /* in keys; [borrow for the call] */
};

#define TIERCE__LMCACHE_MODEL_MAX 256u

/* Errors: -ENOMEM; TIERCE_E_CONFIG (the model's name is not valid in LMCache's keys). */
TIERCE_MUSTUSE int tierce__lmcache_store_open(struct tierce__connector **out,
                                              const struct tierce__lmcache_store_opts *opts);

#endif
