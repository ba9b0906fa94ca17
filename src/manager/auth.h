/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_AUTH_H
#define TIERCE_MANAGER_AUTH_H

#include "manager/registry.h"
#include "serve/serve.h"
#include "serve/tokens.h"

/*
 * Who may call. Switched off, everybody; switched on, a call shows one of
 *
 *   - authorization: Bearer TOKEN, one of the token file ("ROLE NAME SHA256-OF-TOKEN" a line)
 *   - authorization: Basic BASE64(name:pw), an account of the registry
 *   - a client certificate whose common name is an account's
 *
 * Users may make the calls of engines and read what is shown to administrators' browsers and
 * collectors of metrics; administrators may do all.
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

/* The token file as it is now, to be exchanged or dropped. Errors as create. */
TIERCE_MUSTUSE int tierce__auth_tokens_read(struct tierce__tokens **out,
                                            const struct tierce__auth *auth, char why[256]);
/* Gives those that counted until now. [transfer] both */
TIERCE_MUSTUSE struct tierce__tokens *tierce__auth_exchange(struct tierce__auth *auth,
                                                            struct tierce__tokens *fresh);

enum tierce__auth_result {
    TIERCE__AUTH_OK,
    TIERCE__AUTH_UNKNOWN, /* nothing shown, or what is shown is wrong */
    TIERCE__AUTH_DENIED,  /* known, but not allowed to */
    TIERCE__AUTH_WAITS,   /* ask again where waiting is allowed: a slow hash is to be made */
};

/* Whether it is switched on, and there is neither a token nor, as the registry stands, an
 * account. */
bool tierce__auth_lets_nobody_in(struct tierce__auth *auth);

/* `name`: who it is, for the access log. */
enum tierce__auth_result tierce__auth_check(struct tierce__auth *auth,
                                            const struct tierce__call *call, bool needs_admin,
                                            bool may_wait, char name[64]);

#endif
