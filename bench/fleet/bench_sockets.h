/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_SOCKETS_H
#define TIERCE_CLI_BENCH_SOCKETS_H

#include <pthread.h>

#include "bench/bench.h"

/* The limit of chunks that arrive over TCP: their bytes from plain memory of other threads of this
 * process, through bare sockets of loopback, with a reader for each socket. Thread: the main one.
 */

#define TIERCE__BENCH_SOCKETS 2u

struct tierce__bench_socket {
    struct tierce__bench_sockets *all;
    unsigned number;
    int client, server;
    pthread_t sender, reader;
    bool has_sender;
    int rc;
};

struct tierce__bench_sockets {
    uint8_t *const *into; /* [borrow] where each of the `count` objects goes */
    const uint8_t *from;  /* [borrow] the bytes of each */
    size_t count;
    uint64_t bytes; /* of each */
    bool is_spread; /* each socket has an address of its own: 127.0.0.1, 127.0.0.2 */
    struct tierce__bench_socket sockets[TIERCE__BENCH_SOCKETS];
};

/* The caller has set the first fields, and must call tierce__bench_sockets_close also after an
 * error. Errors: reported. */
TIERCE_MUSTUSE int tierce__bench_sockets_open(struct tierce__bench_sockets *s,
                                              const struct tierce__bench *bench);
void tierce__bench_sockets_close(struct tierce__bench_sockets *s);

/* As tierce__bench_run_fn: all objects once. */
int64_t tierce__bench_sockets_copy(void *sockets);

#endif
