/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_AUTH_H
#define TIERCE_MANAGER_AUTH_H

#include "manager/registry/registry.h"
#include "manager/api/grants.h"
#include "manager/api/needs.h"
#include "net/server/serve.h"

/*
 * Authentication and authorization of calls. When it is off, every call is allowed. When it is on,
 * a call needs one of:
 *
 *   - authorization: Bearer TOKEN, one of the token file (grants.h)
 *   - authorization: Basic BASE64(name:pw), an account of the registry
 *   - a client certificate whose common name is an account's
 *
 * The account must have the right that the call needs, in a scope that holds the call's target
 * (needs.h). An account of the registry has the grant of its line in the token file. Without such a
 * line, its role decides: "user" may make the calls of engines, and read the web page and metrics;
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

bool tierce__auth_is_on(const struct tierce__auth *auth);

/* Reads the token file again, for tierce__auth_exchange or to be destroyed. Errors as create. */
TIERCE_MUSTUSE int tierce__auth_grants_read(struct tierce__grants **out,
                                            const struct tierce__auth *auth, char why[256]);
/* Installs fresh grants and returns the previous ones. [transfer] both */
TIERCE_MUSTUSE struct tierce__grants *tierce__auth_exchange(struct tierce__auth *auth,
                                                            struct tierce__grants *fresh);

/* The caller. A zeroed one is nobody. */
struct tierce__caller {
    char name[64];               /* "": authentication is off, or no name was presented */
    struct tierce__grant *grant; /* held; NULL: not authenticated */
    struct tierce__meter *meter; /* held; NULL: the account has no line in the token file */
    enum { TIERCE__BY_NOTHING, TIERCE__BY_TOKEN, TIERCE__BY_ACCOUNT } by;
    uint8_t proof[32]; /* a digest of the token, or of the account's password hash */
};

/* Drops grant and meter. */
void tierce__caller_clear(struct tierce__caller *caller);

enum tierce__auth_result {
    TIERCE__AUTH_OK,
    TIERCE__AUTH_UNKNOWN, /* no credentials, or invalid ones */
    TIERCE__AUTH_DENIED,  /* authenticated, but not authorized */
    TIERCE__AUTH_WAITS,   /* call again with may_wait: a slow hash must be computed */
};

/* Returns whether authentication is on while neither a token nor an account exists, so that nobody
 * can log in. */
bool tierce__auth_lets_nobody_in(struct tierce__auth *auth);

/* Checks a call, before its request is read. The caller clears *caller, of which only the name is
 * set unless the call is allowed; `why` is filled if it is denied. */
enum tierce__auth_result tierce__auth_check(struct tierce__auth *auth,
                                            const struct tierce__call *call,
                                            const struct tierce__need *need, bool may_wait,
                                            struct tierce__caller *caller, char why[256]);

/* The reason for TIERCE__AUTH_UNKNOWN, in words: missing credentials, or invalid ones of a kind. */
const char *tierce__auth_why_unknown(const struct tierce__call *call);

/* The meters of the accounts in the token file of which all lines lie within a scope, each held, in
 * an array on the heap; the caller drops and frees them. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__auth_meters(struct tierce__auth *auth, const struct tierce__grant *scope,
                                       struct tierce__meter ***out, size_t *count);

/* Whether the credentials of a caller that was allowed are still valid, with the same grant. */
bool tierce__auth_is_current(struct tierce__auth *auth, const struct tierce__caller *caller);

#endif
