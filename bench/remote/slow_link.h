/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_SLOW_LINK_H
#define TIERCE_CLI_SLOW_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A simulated slow network: a TCP proxy on loopback that forwards every byte after a delay.
 * Benchmarks and tests put it between a client and a real server on the same machine.
 *
 *     rc = tierce__slow_link_start(&link, &(struct tierce__slow_link_opts){
 *         .size = sizeof(struct tierce__slow_link_opts), .port = 6379, .round_trip_ns = 5000000});
 *     ... clients connect to 127.0.0.1, tierce__slow_link_port(link) ...
 *     tierce__slow_link_stop(link);
 *
 * A byte is delayed by half the round trip, plus jitter, in either direction. Bytes of a connection
 * keep their order. The first bytes of a connection are delayed by one more round trip, because the
 * kernel completes the handshake on loopback at once. Each direction has a rate, which all
 * connections share. The proxy stops reading from a sender while TIERCE__SLOW_LINK_WINDOW bytes of
 * that connection are in flight. The kernel holds more bytes, in the buffers of the proxy's
 * sockets.
 *
 * One thread copies each byte twice, which limits the rate to about that of a process on loopback.
 *
 * Thread: any.
 */

#define TIERCE__SLOW_LINK_WINDOW (32u << 20) /* of a connection in one direction */
#define TIERCE__SLOW_LINK_TURN   (1u << 20)  /* read at once: the window is exceeded by less */

struct tierce__slow_link;

struct tierce__slow_link_opts {
    size_t size;            /* sizeof(struct tierce__slow_link_opts) */
    uint16_t port;          /* of the server, on 127.0.0.1 */
    uint16_t listen_port;   /* 0: any that is free */
    uint64_t round_trip_ns; /* without jitter */
    uint64_t jitter_ns;     /* maximum extra delay in each direction, uniform from 0 */
    uint64_t seed;          /* of the jitter */
    uint64_t bytes_per_s;   /* in each direction; 0: no limit */
};

struct tierce__slow_link_stats {
    uint64_t connections; /* accepted so far */
    uint64_t open;        /* now */
    uint64_t bytes_up;    /* from clients, handed to the server */
    uint64_t bytes_down;  /* from the server, handed to clients */
    uint64_t held_max;    /* most bytes in flight in one direction of a connection */
    uint64_t turns; /* the most round trips of a connection: how often its client sent first, or
                       after the server */
};

/* [borrow] opts for the call. Errors: -ENOMEM, or a negative errno of a socket or thread. */
TIERCE_MUSTUSE int tierce__slow_link_start(struct tierce__slow_link **out,
                                           const struct tierce__slow_link_opts *opts);

/* The port for clients. */
uint16_t tierce__slow_link_port(const struct tierce__slow_link *link);

/* The three calls below take effect before they return. */

/* Applies to all bytes read from now on. They do not overtake earlier ones. */
void tierce__slow_link_set_round_trip(struct tierce__slow_link *link, uint64_t round_trip_ns);

/* Resets all connections at once; bytes in flight are lost. New connections are accepted. */
void tierce__slow_link_cut(struct tierce__slow_link *link);

/* While frozen, the proxy forwards no bytes and closes nothing, on old and new connections, like a
 * network whose switch restarts. Delays of bytes in flight keep running. */
void tierce__slow_link_freeze(struct tierce__slow_link *link, bool frozen);

void tierce__slow_link_stats(struct tierce__slow_link *link, struct tierce__slow_link_stats *out);

/* Resets all connections and frees `link`. NULL is accepted. */
void tierce__slow_link_stop(struct tierce__slow_link *link);

#endif
