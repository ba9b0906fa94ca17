/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_MEMCACHED_CLIENT_H
#define TIERCE_CONNECTOR_MEMCACHED_CLIENT_H

#include "store/remote/node/peer.h"
#include "proto/memcached/memcached.h"

/*
 * One connection that speaks memcached's text protocol. Commands are gathered and sent together.
 * Their answers are read one by one, values directly into the caller's memory. If a caller does not
 * read an answer to its end, the connection is out of step and is closed before the next request.
 *
 * Statuses are those of connector.h. Thread: one at a time for each.
 */

#define TIERCE__MEMCACHED_AT_ONCE                                                                  \
    256u /* maximum of commands in one batch, and of pending answers */

struct tierce__memcached {
    struct tierce__peer peer;
    uint64_t item_bytes; /* the largest item of the server that is connected */
    uint32_t awaited;    /* answers */
    size_t in_at, in_end, out_used;
    char in[8192];
    char out[TIERCE__MEMCACHED_AT_ONCE * (TIERCE__MEMCACHED_KEY_BYTES + 80)];
};

void tierce__memcached_init(struct tierce__memcached *client,
                            const struct tierce__peer_place *place);

/* Before the first command of a request: connected, and nothing is awaited. */
TIERCE_MUSTUSE int tierce__memcached_begin(struct tierce__memcached *client, uint64_t deadline_ns);

/* Gathers a command: its line as printf has it, without the end. */
void tierce__memcached_add(struct tierce__memcached *client, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sends the gathered bytes, then `bytes` without copying them and a line end; NULL: none. */
TIERCE_MUSTUSE int tierce__memcached_send(struct tierce__memcached *client, const uint8_t *bytes,
                                          size_t count, uint64_t deadline_ns);

/* The next line of an answer, whose texts are good until the next call. */
TIERCE_MUSTUSE int tierce__memcached_read(struct tierce__memcached *client,
                                          struct tierce__memcached_line *line,
                                          uint64_t deadline_ns);

/* Receives the bytes of a value and its line end: discards `skipped` bytes, stores `count` in
 * memory, and discards the rest. */
TIERCE_MUSTUSE int tierce__memcached_read_value(struct tierce__memcached *client,
                                                const struct tierce__memcached_line *line,
                                                uint8_t *memory, uint64_t skipped, uint64_t count,
                                                uint64_t deadline_ns);

/* The last line of an answer has been read. */
void tierce__memcached_answered(struct tierce__memcached *client);

/* The line is not a valid answer to the command: closes the connection. TIERCE_E_DOWN,
 * TIERCE_E_FORMAT. */
int tierce__memcached_refused(struct tierce__memcached *client,
                              const struct tierce__memcached_line *line);

#endif
