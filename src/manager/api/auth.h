/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_AUTH_H
#define TIERCE_MANAGER_AUTH_H

#include "manager/registry/registry.h"
#include "net/server/serve.h"
#include "net/server/tokens.h"

/*
 * Authentication and authorization of calls. When it is off, every call is allowed. When it is on,
 * a call needs one of:
 *
 *   - authorization: Bearer TOKEN, one of the token file ("ROLE NAME SHA256-OF-TOKEN" a line)
 *   - authorization: Basic BASE64(name:pw), an account of the registry
 *   - a client certificate whose common name is an account's
 *
 * The role "user" may make the calls of engines, and read the web page and metrics. The role
 * "administrator" may make all calls.
 *
 * Threads: any. A password is checked by its slow hash once and by a fast keyed one from then on,
 * until its account changes.
 */

struct tierce__auth;

struct tierce__auth_opts {
    size_t size;
    struct tierce__registry *registry; /* [borrow until destroy] */
    bool is_on;
    const char *token_file; /* or NULL; 0600. [borrow until destroy] */
};

/* Errors, `why` in words: TIERCE_E_CONFIG (the file), negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__auth_create(struct tierce__auth **out,
                                       const struct tierce__auth_opts *opts, char why[256]);
void tierce__auth_destroy(struct tierce__auth *auth);

/* Reads the token file again, for tierce__auth_exchange or to be dropped. Errors as create. */
TIERCE_MUSTUSE int tierce__auth_tokens_read(struct tierce__tokens **out,
                                            const struct tierce__auth *auth, char why[256]);
/* Installs the fresh tokens and returns the previous ones. [transfer] both */
TIERCE_MUSTUSE struct tierce__tokens *tierce__auth_exchange(struct tierce__auth *auth,
                                                            struct tierce__tokens *fresh);

enum tierce__auth_result {
    TIERCE__AUTH_OK,
    TIERCE__AUTH_UNKNOWN, /* no credentials, or invalid ones */
    TIERCE__AUTH_DENIED,  /* authenticated, but not authorized */
    TIERCE__AUTH_WAITS,   /* call again with may_wait: a slow hash must be computed */
};

/* Returns whether authentication is on while neither a token nor an account exists, so that nobody
 * can log in. */
bool tierce__auth_lets_nobody_in(struct tierce__auth *auth);

/* Checks a call. `name` receives the caller's name, for the access log. */
enum tierce__auth_result tierce__auth_check(struct tierce__auth *auth,
                                            const struct tierce__call *call, bool needs_admin,
                                            bool may_wait, char name[64]);

#endif
