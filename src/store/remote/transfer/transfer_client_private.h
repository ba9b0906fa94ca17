/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TRANSFER_CLIENT_PRIVATE_H
#define TIERCE_TRANSFER_CLIENT_PRIVATE_H

#include "proto/transfer/transfer_wire.h"
#include "store/remote/links.h"
#include "store/remote/node/peer.h"

/* The requests of one connection (transfer_client.c), for the connectors of one server and for
 * transfer_link.c. Thread: one at a time for each link. */

/* Shared by the links. */
struct transfer_store {
    struct tierce__peer_place place;
    struct tierce__tls_context *own_tls; /* or NULL */
    char space[TIERCE__TRANSFER_SPACE_MAX + 1];
    char *token_file;  /* or NULL */
    const char *token; /* in place of a file: kept_token, or during a call of transfer_link.h */
    char *kept_token;  /* or NULL */
    uint32_t silence_ms, patience_ms; /* tierce__connector_opts */
    bool is_once;                     /* a connection that failed is not made again */
};

struct transfer_link {
    struct tierce__peer peer;
    const struct transfer_store *store;
    bool has_begun;         /* a request */
    uint64_t greeted;       /* which of the peer's connections was greeted */
    bool lacks_space;       /* the server's answer to the last greeting */
    uint32_t names_max;     /* that the server takes in one request */
    uint16_t sent, awaited; /* sequence numbers of the next request and the next reply */
    uint8_t head[TIERCE__TRANSFER_HEAD_BYTES]; /* of the next reply */
    size_t head_bytes;                         /* that have arrived */
    struct iovec pieces[1 + 2 * TIERCE__TRANSFER_NAMES_MAX];
    uint8_t name_heads[TIERCE__TRANSFER_NAMES_MAX][2];
    uint8_t lengths[8 * TIERCE__TRANSFER_NAMES_MAX];
};

/* All return statuses of <tierce/plugin.h>, and those of the server. */

/* Before a request: a connection that was greeted and on which nothing is awaited. */
TIERCE_MUSTUSE int tierce__transfer_begin(struct transfer_link *link, uint64_t deadline_ns);
/* Sends READs, whose replies are read by read_read, in their order. The link has begun. */
TIERCE_MUSTUSE int tierce__transfer_send_reads(struct transfer_link *link,
                                               const struct tierce__link_get *gets, size_t count,
                                               uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__transfer_read_read(void *link, const struct tierce__link_get *get,
                                              uint64_t deadline_ns);
/* One READ: begins, sends it, and reads its reply. */
TIERCE_MUSTUSE int tierce__transfer_read(struct transfer_link *link,
                                         const struct tierce__link_get *get, uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__transfer_get(void *link, const struct tierce_plugin_name *name,
                                        void *memory, uint64_t offset, uint64_t length,
                                        uint64_t deadline_ns);
/* A WRITE, whose reply is read by read_reply. The link has begun. */
TIERCE_MUSTUSE int tierce__transfer_send_write(struct transfer_link *link,
                                               const struct tierce_plugin_name *name,
                                               struct tierce__transfer_request request,
                                               const void *bytes, uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__transfer_read_reply(struct transfer_link *link,
                                               struct tierce__transfer_reply *reply,
                                               enum tierce__transfer_op op, uint64_t deadline_ns);
/* Begins, sends a request without bytes behind it, and reads the head of its reply. */
TIERCE_MUSTUSE int tierce__transfer_ask(struct transfer_link *link,
                                        struct tierce__transfer_reply *reply,
                                        struct tierce__transfer_request request,
                                        const struct tierce_plugin_name *name,
                                        uint64_t deadline_ns);

#endif
