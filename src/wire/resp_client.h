/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_CLIENT_H
#define TIERCE_WIRE_RESP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A client of Redis and Valkey, protocol RESP2: one connection, pipelined, every wait bounded.
 *
 *     rc = tierce__resp_open(&client, &(struct tierce__resp_opts){.host = "127.0.0.1", ...}, why);
 *     tierce__resp_begin(client);
 *     tierce__resp_append(client, (const char *[]){"GET", "key"}, (size_t[]){3, 3}, 2);
 *     rc = tierce__resp_flush(client, deadline_ns);
 *     rc = tierce__resp_read(client, &value, deadline_ns);
 *
 * A connection that failed is closed; the next begin connects again (and authenticates and selects
 * again), no more often than opts says. What was sent and not answered before a failure may have
 * happened: that is the caller's to know.
 *
 * Large bulk strings can be read straight into the caller's memory (tierce__resp_read_into) and
 * written from it without a copy (tierce__resp_append_borrowed).
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
    uint32_t connect_timeout_ms; /* 0: 1000 */
    uint32_t call_timeout_ms;    /* 0: 1000; where a call says no deadline */
    uint64_t bulk_bytes_max;     /* 0: 512 MiB */
};

enum tierce__resp_type {
    TIERCE__RESP_NIL,
    TIERCE__RESP_STRING, /* simple or bulk */
    TIERCE__RESP_ERROR,
    TIERCE__RESP_INTEGER,
    TIERCE__RESP_ARRAY,
};

/* [borrow until the next begin] */
struct tierce__resp_value {
    enum tierce__resp_type type;
    int64_t integer;
    const char *text; /* NUL behind it */
    size_t bytes;
    const struct tierce__resp_value *items;
    size_t count;
};

struct tierce__resp;

/* "redis://user:password@host:port/db?timeout_ms=..", "rediss://": parsed by
 * tierce__resp_parse_uri. Errors of open: negative errno, TIERCE_E_CONFIG (TLS files),
 * TIERCE_E_REFUSED (authentication), TIERCE_E_DEADLINE; `why` in words, never with the password. */
TIERCE_MUSTUSE int tierce__resp_open(struct tierce__resp **out,
                                     const struct tierce__resp_opts *opts, char why[256]);
void tierce__resp_close(struct tierce__resp *resp);

/* Forgets the values of the pipeline before, and connects again where needed. */
TIERCE_MUSTUSE int tierce__resp_begin(struct tierce__resp *resp);

/* One more command; copied, except in _borrowed, whose last argument stays the caller's until
 * flush has returned. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_append(struct tierce__resp *resp, const char *const *arguments,
                                       const size_t *bytes, size_t count);
TIERCE_MUSTUSE int tierce__resp_append_borrowed(struct tierce__resp *resp,
                                                const char *const *arguments, const size_t *bytes,
                                                size_t count);

/* Sends what was appended. Errors: negative errno, TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__resp_flush(struct tierce__resp *resp, uint64_t deadline_ns);

/* The next answer, in order. An error reply is a value. Errors: negative errno, TIERCE_E_DEADLINE,
 * TIERCE_E_FORMAT, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__resp_read(struct tierce__resp *resp, struct tierce__resp_value *out,
                                     uint64_t deadline_ns);

/* The same for an answer that is expected to be a bulk string, into the caller's memory; *bytes =
 * its length, of which at most `capacity` are written. Anything else comes as `out`. */
TIERCE_MUSTUSE int tierce__resp_read_into(struct tierce__resp *resp, void *memory, size_t capacity,
                                          size_t *bytes, struct tierce__resp_value *out,
                                          uint64_t deadline_ns);

#endif
