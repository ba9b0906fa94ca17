/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PEERS_SELF_H
#define TIERCE_PEERS_SELF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/threads/lock.h"
#include "base/text/zone.h"

/*
 * An engine's place in the directory of a manager, and the secret of its group: written by the
 * engine after each join, read by the connector peers://.
 *
 * Peers that have not joined a new leader yet know the secret before it alone, so that one is kept
 * for as long as they may need it.
 *
 * Thread: any. Only tierce__peers_self_await blocks.
 */

struct tierce__peers_table;
struct tierce__tls_context;

/* The spaces of an engine's transfer server (docs/inside/format/transfer.md). */
#define TIERCE__PEER_SPACE        "chunks" /* raw objects */
#define TIERCE__PEER_SPACE_STORED "stored" /* the same chunks, coded if they are stored so */

#define TIERCE__PEERS_SECRET_BYTES  129u
#define TIERCE__PEERS_OLD_SECRET_MS 60000u
#define TIERCE__PEERS_FIRST_MS      2000u /* after the start: two attempts to join a directory */

struct tierce__peers_self {
    struct tierce__peers_table *table;       /* of the connector; [borrow] for its figures */
    struct tierce__tls_context *tls;         /* for links to peers; NULL: without TLS; [borrow] */
    char zone[TIERCE__ZONE_BYTES];           /* of this engine; does not change */
    struct tierce__lock lock;                /* PEERS_SELF: all below */
    char secret[TIERCE__PEERS_SECRET_BYTES]; /* "": none yet */
    char before[TIERCE__PEERS_SECRET_BYTES]; /* the secret before; "": none */
    uint64_t before_until_ns;
    uint64_t first_until_ns;    /* reads wait for the first secret until then */
    struct tierce__cond joined; /* when a secret comes */
    int64_t session;            /* 0: none yet */
    int32_t slot;
};

/* Why an engine with TLS between engines, or without, does not connect to another one; NULL if it
 * does. */
static inline const char *tierce__peers_tls_mismatch(bool uses_tls, bool other_uses_tls)
{
    if (!uses_tls && other_uses_tls)
        return "it requires TLS: set peers.ca to the CA of its certificate";
    if (uses_tls && !other_uses_tls)
        return "it does not use TLS, which this engine requires (peers.ca): set "
               "peers.certificate, peers.key and peers.ca there";
    return NULL;
}

void tierce__peers_self_init(struct tierce__peers_self *self);
void tierce__peers_self_fini(struct tierce__peers_self *self);

/* A secret that is too long is ignored, as if there were none. */
void tierce__peers_self_set(struct tierce__peers_self *self, int64_t session, int32_t slot,
                            const char *secret);

/* Returns whether there is a secret. */
bool tierce__peers_self_get(struct tierce__peers_self *self, int64_t *session, int32_t *slot,
                            char secret[TIERCE__PEERS_SECRET_BYTES]);
/* Whether there is a secret. Just after the start of the engine, the first one is waited for until
 * the deadline: lookups find chunks before the engine has joined the directory. */
bool tierce__peers_self_await(struct tierce__peers_self *self, uint64_t deadline_ns);
/* The secret before. Returns whether there is one that peers may still have. */
bool tierce__peers_self_before(struct tierce__peers_self *self,
                               char secret[TIERCE__PEERS_SECRET_BYTES]);

#endif
