/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONTROL_CONTROL_H
#define TIERCE_CONTROL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/line.h"
#include <tierce/status.h>

/*
 * How a running process is asked: HTTP over a Unix socket that only its own user can use, and, if
 * it is switched on, over a loopback port that shows some of the same pages to everybody on the
 * machine. By libmicrohttpd.
 *
 *     struct tierce__control_opts opts = {.size = sizeof(opts), .socket = "auto", .routes = routes,
 *                                         .route_count = 3, .arg = engine};
 *     rc = tierce__control_start(&control, &opts, why);
 *     $ curl --unix-socket /run/user/1000/tierce/4711.sock http://tierce/metrics
 */

struct tierce__control;

enum tierce__control_method { TIERCE__CONTROL_GET, TIERCE__CONTROL_POST };

struct tierce__control_query {
    const char *body; /* POST; [body_bytes], never NULL */
    size_t body_bytes;
    void *connection; /* for tierce__control_arg */
};

/* The value of "?name=", [borrow for the call], or NULL. */
const char *tierce__control_arg(const struct tierce__control_query *query, const char *name);

/* Whether the query names nothing but some of `names` (NULL at the end), each once and with a
 * value: for pages where a word that is not understood must not mean "all". */
bool tierce__control_only(const struct tierce__control_query *query, const char *const *names);

struct tierce__control_answer {
    unsigned status;          /* 200 to begin with */
    const char *type;         /* "text/plain; charset=utf-8" to begin with; constant storage */
    struct tierce__line body; /* empty to begin with; a failed one becomes 500 */
};

/* On a thread of the control, one at a time of each listener. May block for as long as a person
 * waits. */
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
    uint16_t port;                              /* on 127.0.0.1; 0: none */
    const struct tierce__control_route *routes; /* [route_count], [borrow until stop] */
    size_t route_count;
    void *arg; /* the routes' */
};

/*
 * Errors, *out untouched, `why` in words: -EADDRINUSE (somebody answers there), another negative
 * errno, TIERCE_E_ARGUMENT (a path too long for a socket), -ENOMEM. A socket that nobody answers on
 * is taken over; what is not a socket is left alone. Thread: any. Does not block.
 */
TIERCE_MUSTUSE int tierce__control_start(struct tierce__control **out,
                                         const struct tierce__control_opts *opts, char why[256]);

/* Answers what is under way, and removes the socket. NULL is accepted. */
void tierce__control_stop(struct tierce__control *control);

/* What it listens on: "" without a socket, [borrow until stop]. */
const char *tierce__control_socket(const struct tierce__control *control);

/*
 * Where the sockets of this user's processes are: $XDG_RUNTIME_DIR/tierce, or /tmp/tierce-UID. It
 * need not be there. Thread: any.
 */
#define TIERCE__CONTROL_PATH_BYTES 108u /* of a sockaddr_un */
TIERCE_MUSTUSE int tierce__control_folder(char path[TIERCE__CONTROL_PATH_BYTES]);

/*
 * Whether it is there and this user's alone: anybody can make a folder of that name in /tmp, and
 * what listens there would be told prompts. Errors, `why` in words: -ENOENT, -EACCES, another
 * negative errno. Thread: any.
 */
TIERCE_MUSTUSE int tierce__control_folder_is_ours(const char *path, char why[256]);

#endif
