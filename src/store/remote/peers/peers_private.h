/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PEERS_PRIVATE_H
#define TIERCE_PEERS_PRIVATE_H

#include "core/key/chunk_number.h"
#include "net/host_id.h"
#include "store/remote/fleet/fleet_manager.h"
#include "store/remote/links.h"
#include "store/remote/peers/peers_self.h"
#include "store/remote/peers/peers_table.h"
#include "store/remote/peers/peers_url.h"
#include "store/remote/transfer/transfer_link.h"

/*
 * The connector peers:// from inside.
 *
 *   peers_connector.c   its links: reads, their results, open and close
 *   peers_find.c        names, and the directory's answers
 */

enum {
    PEERS_NAMES = 1024,     /* of one question to the directory */
    PEERS_CONNECTIONS = 16, /* to different addresses of peers, of one link */
};

/* Shared by the links. */
struct peers_store {
    struct tierce__peers_self *self;   /* [borrow until close] */
    struct tierce__peers_table *table; /* [borrow until close] of self */
    struct tierce__url managers;       /* as fleet:// */
    char group[TIERCE__PEERS_GROUP_BYTES], host_id[TIERCE__HOST_ID_BYTES];
};

struct peer_connection {
    struct tierce__peer_ref peer; /* generation 0: unused */
    uint32_t at;                  /* which of its addresses */
    bool is_plain;                /* to the space of raw chunks */
    struct tierce__transfer_link *link;
    uint64_t used; /* number of its last use */
};

/* Ranges of one peer that were requested together, over one connection. */
struct peers_asked {
    struct tierce__link_get gets[TIERCE__LINKS_GETS]; /* all that the link has taken */
    size_t count, next;
    size_t due;    /* answers, to gets[next] and those behind it; 0: nothing is requested ahead */
    bool is_taken; /* the answer to the get in progress was read */
    struct tierce__peer_ref peer;
    uint32_t at;
    bool has_more; /* the peer has other addresses */
    struct tierce__transfer_link *connection;
};

struct peers_link {
    struct peers_store *store;
    struct tierce__fleet_manager *manager;
    struct peer_connection connections[PEERS_CONNECTIONS];
    uint64_t uses;
    struct peers_asked asked;
    struct tierce__link_state state;
    struct tierce__chunk_number numbers[PEERS_NAMES];
    int64_t keys[2 * PEERS_NAMES];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* A decoded name. */
struct peers_key {
    uint8_t ns_digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    struct tierce__chunk_number number;
};

/* False: the name is not the text of a key. */
bool tierce__peers_parse(struct peers_key *key, const struct tierce_plugin_name *name);

/* Remembers where the first `count` numbers of the link are. Returns how many leading ones somebody
 * has, or an error. */
int64_t tierce__peers_find(struct peers_link *link, size_t count, uint64_t deadline_ns);

#endif
