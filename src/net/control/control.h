/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONTROL_CONTROL_H
#define TIERCE_CONTROL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text/line.h"
#include <tierce/status.h>

/*
 * The control interface of a running process: HTTP over a Unix socket that only its own user can
 * use and, if enabled, over a port, on loopback unless `host` says otherwise, that serves the
 * public pages to everybody who reaches it, or to clients with a token. By libmicrohttpd.
 *
 *     struct tierce__control_opts opts = {.size = sizeof(opts), .socket = "auto", .routes = routes,
 *                                         .route_count = 3, .arg = engine};
 *     rc = tierce__control_start(&control, &opts, why);
 *     $ curl --unix-socket /run/user/1000/tierce/4711.sock http://tierce/metrics
 */

struct tierce__control;
struct tierce__tokens; /* net/tokens.h */

enum tierce__control_method { TIERCE__CONTROL_GET, TIERCE__CONTROL_POST };

struct tierce__control_query {
    const char *body; /* POST; [body_bytes], never NULL */
    size_t body_bytes;
    void *connection; /* for tierce__control_arg */
};

/* The value of "?name=", [borrow for the call], or NULL. */
const char *tierce__control_arg(const struct tierce__control_query *query, const char *name);

/* Returns whether the query has only arguments from `names` (NULL at the end), each at most once
 * and with a value: for pages where an unknown argument must not mean "all". */
bool tierce__control_only(const struct tierce__control_query *query, const char *const *names);

struct tierce__control_answer {
    unsigned status;          /* initially 200 */
    const char *type;         /* initially "text/plain; charset=utf-8"; constant storage */
    struct tierce__line body; /* initially empty; a failed body becomes 500 */

    /* A body in pieces, at the client's pace; NULL: `body` is all of it. Appends the next piece to
     * `body`, perhaps nothing; false: there was none left. A failed piece ends the connection, so
     * that the client sees an incomplete body. Called on a thread of the control interface. */
    bool (*next)(void *state, struct tierce__line *body);
    void (*end)(void *state); /* once, after the last call of `next` */
    void *state;
};

/* Called on a thread of the control interface, one call at a time per listener. May block for
 * seconds. */
typedef void tierce__control_fn(void *arg, const struct tierce__control_query *query,
                                struct tierce__control_answer *answer);

struct tierce__control_route {
    enum tierce__control_method method;
    const char *path; /* "/metrics" */
    bool is_public;   /* on the loopback port too; GET only */
    tierce__control_fn *answer;
};

struct tierce__control_opts {
    size_t size; /* sizeof(struct tierce__control_opts) */
    /* A path; "auto": PID-N.sock in tierce__control_folder; "": none. */
    const char *socket;
    const char *host; /* of the port; NULL: 127.0.0.1; [borrow for the call] */
    uint16_t port;    /* 0: none */
    const struct tierce__control_route *routes; /* [route_count], [borrow until stop] */
    size_t route_count;
    void *arg; /* the routes' */
    /* Of the port: */
    const struct tierce__tokens *tokens; /* a client must present one; NULL: none; [borrow until
                                            stop] */
    const char *certificate, *key; /* PEM files, both or none: HTTPS; NULL or "": HTTP; [borrow for
                                      the call] */
};

/*
 * Errors, *out untouched, `why` in words: -EADDRINUSE (another process listens there), another
 * negative errno, TIERCE_E_ARGUMENT (a path too long for a socket), TIERCE_E_CONFIG (a file that
 * cannot be read, or has no certificate or no key of it), -ENOMEM. A stale socket is
 * replaced; other files are never changed. Thread: any. Does not block.
 */
TIERCE_MUSTUSE int tierce__control_start(struct tierce__control **out,
                                         const struct tierce__control_opts *opts, char why[256]);

/* Answers the calls in progress, cuts bodies in pieces, and removes the socket. NULL is accepted.
 */
void tierce__control_stop(struct tierce__control *control);

/* The path of the socket; "" if there is none. [borrow until stop] */
const char *tierce__control_socket(const struct tierce__control *control);

/*
 * The folder of the sockets of this user's processes: $XDG_RUNTIME_DIR/tierce, or /tmp/tierce-UID.
 * It may not exist. Thread: any.
 */
#define TIERCE__CONTROL_PATH_BYTES 108u /* of a sockaddr_un */
TIERCE_MUSTUSE int tierce__control_folder(char path[TIERCE__CONTROL_PATH_BYTES]);

/* The folder of this user's processes that were started with XDG_RUNTIME_DIR where this process has
 * none, or without where it has one. It may not exist. Thread: any. */
void tierce__control_folder_other(char path[TIERCE__CONTROL_PATH_BYTES]);

/*
 * Checks that the folder exists and belongs to this user alone: any user can create a folder of
 * that name in /tmp, and a process that listens there would receive prompts. Errors, `why` in
 * words: -ENOENT, -EACCES, another negative errno. Thread: any.
 */
TIERCE_MUSTUSE int tierce__control_folder_is_ours(const char *path, char why[256]);

#endif
