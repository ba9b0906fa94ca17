/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_CLIENT_H
#define TIERCE_NET_RESP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "proto/resp/resp_parse.h"

/*
 * A client of Redis and Valkey, protocol RESP2: one connection, pipelined, every wait bounded.
 *
 *     rc = tierce__resp_open(&client, &(struct tierce__resp_opts){.host = "127.0.0.1", ...}, why);
 *     rc = tierce__resp_begin(client);
 *     rc = tierce__resp_append(client, (const char *[]){"GET", "key"}, (size_t[]){3, 3}, 2);
 *     rc = tierce__resp_flush(client, deadline_ns);
 *     rc = tierce__resp_read(client, &value, deadline_ns);
 *
 * A connection that failed is closed; the next begin connects again (and authenticates and selects
 * again), no more often than opts says. A command that was sent but not answered before a failure
 * may have been executed; the caller must allow for that.
 *
 * Large bulk strings can be read straight into the caller's memory (tierce__resp_read_into) and
 * written from it without a copy (tierce__resp_append_borrowed).
 *
 * Deadlines are of clock.h; 0 is opts.call_timeout_ms from now. (The system's resolver, which looks
 * a name up, has limits of its own.)
 *
 * Errors of all calls: -ENOMEM; other negative errno, TIERCE_E_DEADLINE, TIERCE_E_FORMAT and
 * TIERCE_E_LIMIT for a connection that has failed, after which -ENOTCONN until begin. In words:
 * tierce__resp_why.
 *
 * Thread: one at a time; resp_pool.h for several.
 */

struct tierce__resp_opts {
    size_t size;
    const char *host;            /* or the path of a Unix socket, beginning with '/' */
    uint16_t port;               /* 0: 6379 */
    const char *user, *password; /* or NULL */
    uint32_t database;
    bool tls;
    const char *ca_file; /* PEM, or NULL for the system's */
    const char *client_certificate, *client_key;
    uint32_t connect_timeout_ms; /* with authentication; 0: 1000 */
    uint32_t call_timeout_ms;    /* 0: 1000; for calls without a deadline */
    uint32_t retry_interval_ms;  /* between two attempts to connect; 0: 100 */
    uint64_t bulk_bytes_max;     /* 0: 512 MiB; see resp_parse.h */
    uint64_t answer_bytes_max; /* of a pipeline, in memory of the client; 0: twice bulk_bytes_max */
};

struct tierce__resp;

#define TIERCE__RESP_WHY_BYTES 256u

/* Creates a client; its first begin connects it. [borrow] opts for the call. Errors:
 * -ENOMEM, TIERCE_E_CONFIG (TLS files) with `why` in words. */
TIERCE_MUSTUSE int tierce__resp_create(struct tierce__resp **out,
                                       const struct tierce__resp_opts *opts,
                                       char why[TIERCE__RESP_WHY_BYTES]);

/* A client that is connected. Errors: as create; those of a connection; -EACCES (authentication);
 * `why` in words, never with the password. */
TIERCE_MUSTUSE int tierce__resp_open(struct tierce__resp **out,
                                     const struct tierce__resp_opts *opts,
                                     char why[TIERCE__RESP_WHY_BYTES]);
void tierce__resp_close(struct tierce__resp *resp);

/* Forgets the values and commands of the pipeline before, and connects again where needed; if
 * answers were not read, the connection is closed. Errors: as open; while it is too early for
 * another attempt, the error of the last one. */
TIERCE_MUSTUSE int tierce__resp_begin(struct tierce__resp *resp);

/* One more command; copied, except in _borrowed, whose last argument stays the caller's until
 * flush has returned. Errors: -ENOMEM, -ENOTCONN. */
TIERCE_MUSTUSE int tierce__resp_append(struct tierce__resp *resp, const char *const *arguments,
                                       const size_t *bytes, size_t count);
TIERCE_MUSTUSE int tierce__resp_append_borrowed(struct tierce__resp *resp,
                                                const char *const *arguments, const size_t *bytes,
                                                size_t count);

/* WAIT until this many replicas have the earlier writes, up to the deadline. */
TIERCE_MUSTUSE int tierce__resp_append_wait(struct tierce__resp *resp, uint32_t replicas,
                                            uint64_t deadline_ns);

/* Sends the appended commands. */
TIERCE_MUSTUSE int tierce__resp_flush(struct tierce__resp *resp, uint64_t deadline_ns);

/* The next answer, in order; [borrow until begin]. An error reply is a value. TIERCE_E_ARGUMENT if
 * none is awaited. */
TIERCE_MUSTUSE int tierce__resp_read(struct tierce__resp *resp, struct tierce__resp_value *out,
                                     uint64_t deadline_ns);

/* The same for an expected bulk string. Its first bytes, up to `capacity`, are written to `memory`,
 * and *out is a STRING with its length and without text. Any other answer is returned unchanged. */
TIERCE_MUSTUSE int tierce__resp_read_into(struct tierce__resp *resp, void *memory, size_t capacity,
                                          struct tierce__resp_value *out, uint64_t deadline_ns);

/* A pipeline of one command: begin, append, flush, read. */
TIERCE_MUSTUSE int tierce__resp_call(struct tierce__resp *resp, const char *const *arguments,
                                     const size_t *bytes, size_t count,
                                     struct tierce__resp_value *out, uint64_t deadline_ns);

/* The server cannot serve now (`why` in words): closes the connection. The next attempt to connect
 * waits as long as after a failed one. */
void tierce__resp_leave(struct tierce__resp *resp, const char *why);

bool tierce__resp_is_connected(const struct tierce__resp *resp);

/* Whether begin would reuse the current connection. */
bool tierce__resp_is_ready(struct tierce__resp *resp);

/* Whether the last begin returned the error of an earlier attempt, because it was too early for
 * another one. */
bool tierce__resp_repeats(const struct tierce__resp *resp);

/* The number of connections made so far. */
uint64_t tierce__resp_connects(const struct tierce__resp *resp);

/* A sentence about the last failure, never with the password; "" without a failure. [borrow until
 * the next call] */
const char *tierce__resp_why(const struct tierce__resp *resp);

/* A pattern of SCAN for keys that begin with a text, without a NUL; returns its length. `out` has
 * room for 2 * bytes + 1. */
size_t tierce__resp_pattern(char *out, const char *begins, size_t bytes);

/* The text of an error for logs. It omits our password, which the server may repeat. [borrow as the
 * value] */
const char *tierce__resp_words(const struct tierce__resp_value *error);

/* Whether a value is an error with that first word: "MOVED", "NOSCRIPT". */
bool tierce__resp_is_error(const struct tierce__resp_value *value, const char *code);

#endif
