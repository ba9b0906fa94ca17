/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_ACCESS_H
#define TIERCE_NODE_ACCESS_H

#include "engine/objects/objects.h"
#include "net/tokens.h"

/*
 * Permissions and tenants of clients. Without a token file every client has all permissions, as the
 * tenant "". A space belongs to a tenant and a protocol; the node creates it, and clients cannot
 * name one.
 *
 * Thread: any.
 */

enum tierce__scope { /* bits */
                     TIERCE__SCOPE_READ = 1,
                     TIERCE__SCOPE_WRITE = 2,
                     TIERCE__SCOPE_ADMIN = 4, /* deleting everything; calls that change the node */
};

enum tierce__space_kind {
    TIERCE__SPACE_RESP,
    TIERCE__SPACE_LM,
    TIERCE__SPACE_PROBE, /* of the node itself */
    TIERCE__SPACE_KINDS,
};

struct tierce__access;

/* token_file "": none. [borrow] it and the engine until destroy. Errors, `why` in words: as
 * tierce__tokens_load and tierce__objects_open. */
TIERCE_MUSTUSE int tierce__access_create(struct tierce__access **out, struct tierce_engine *engine,
                                         const char *token_file, char why[256]);
/* NULL is accepted. */
void tierce__access_destroy(struct tierce__access *access);

/* Reads the current token file, to be exchanged or dropped; creates the spaces of its tenants.
 * NULL: there is no file. Errors as create. Thread: one at a time. */
TIERCE_MUSTUSE int tierce__access_read(struct tierce__tokens **out, struct tierce__access *access,
                                       char why[256]);
/* Returns the tokens that were valid until now. [transfer] both. Thread: that of read. */
TIERCE_MUSTUSE struct tierce__tokens *tierce__access_exchange(struct tierce__access *access,
                                                              struct tierce__tokens *fresh);

/* The identity of a client. */
struct tierce__identity {
    uint32_t scopes;
    struct tierce__objects *space; /* the space of the requested kind. [borrow until destroy] */
    uint8_t digest[TIERCE__TOKEN_DIGEST_BYTES]; /* the token's digest, if tokens are configured */
    uint64_t generation; /* generation of the tokens that granted this identity */
};

/* The identity of a client that has not authenticated; false if a token is required. */
bool tierce__access_nobody(struct tierce__access *access, enum tierce__space_kind kind,
                           struct tierce__identity *out);

/* Identifies a client by its token; if `name` is not NULL, the token must have that name. False:
 * the token is invalid. */
bool tierce__access_token(struct tierce__access *access, enum tierce__space_kind kind,
                          const char *name, size_t name_bytes, const char *token,
                          size_t token_bytes, struct tierce__identity *out);

/* Checks *who against the current tokens, and updates it. False: its token is no longer valid, or
 * now belongs to another tenant. Costs nothing if the tokens have not changed. */
bool tierce__access_still(struct tierce__access *access, enum tierce__space_kind kind,
                          struct tierce__identity *who);

/* The space of the tenant "". */
struct tierce__objects *tierce__access_space(struct tierce__access *access,
                                             enum tierce__space_kind kind);

#endif
