/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GRANTS_H
#define TIERCE_MANAGER_GRANTS_H

#include "manager/api/grant.h"
#include "manager/api/meter.h"

/*
 * The manager's token file (net/tokens.h) as grants:
 *
 *     ROLES NAME SHA256-OF-TOKEN [SCOPE] [LIMITS]    the token's account
 *     ROLES NAME account [SCOPE] [LIMITS]            an account of the registry, with a password or
 *                                                    a certificate, instead of its role in the
 *                                                    registry
 *
 * ROLES are read, write, trim, node, admin and user (read, write and trim), separated by commas. A
 * token may stand on two lines only if they say the same. LIMITS are requests=N, keys=N and
 * bytes=SIZE, a second (meter.h); lines of one NAME share them, and have the same ones.
 *
 * Threads: any, once loaded.
 */

struct tierce__grants;

/* One line. */
struct tierce__grants_line {
    const char *name;
    struct tierce__grant *grant; /* [borrow until destroy] */
    struct tierce__meter *meter; /* [borrow until destroy] of all lines of this name */
};

/* Errors, `why` in words: TIERCE_E_CONFIG (a line; others may read the file), negative errno,
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__grants_load(struct tierce__grants **out, const char *path,
                                       char why[256]);
/* NULL is accepted here and below, and holds no lines. */
void tierce__grants_destroy(struct tierce__grants *grants);

/* Continues the meters of the same names. Before the new grants are used. */
void tierce__grants_adopt(struct tierce__grants *grants, const struct tierce__grants *earlier);

size_t tierce__grants_token_count(const struct tierce__grants *grants);

/* All lines. */
size_t tierce__grants_count(const struct tierce__grants *grants);
void tierce__grants_at(const struct tierce__grants *grants, size_t index,
                       struct tierce__grants_line *out);

/* The line of a presented token, in constant time; of the digest of such a token; of an account of
 * the registry. False: there is none. */
bool tierce__grants_find(const struct tierce__grants *grants, const char *shown,
                         struct tierce__grants_line *out, uint8_t digest[32]);
bool tierce__grants_find_digest(const struct tierce__grants *grants, const uint8_t digest[32],
                                struct tierce__grants_line *out);
bool tierce__grants_find_account(const struct tierce__grants *grants, const char *name,
                                 struct tierce__grants_line *out);

#endif
