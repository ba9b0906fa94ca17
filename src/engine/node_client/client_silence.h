/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CLIENT_SILENCE_H
#define TIERCE_ENGINE_CLIENT_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Whether a connected node answers at all. A node that hangs keeps its connections open, so each
 * request would run into its deadline.
 *
 *     answers ──LATE_MAX requests late in a row──> probed ──no answer for SILENCE_MS──> silent
 *        ^                                           │                                   │
 *        └──────────── the probe, or any request, is answered or closed <────────────────┘
 *
 * A probe is a connection with a HELLO on it. Nobody waits for its answer: calls look at it, at
 * most once each, without blocking. A node that answers slowly answers the probe, so it is never
 * silent; as long as its answers are late, requests that begin an operation are sent only after a
 * pause of QUIET_MS.
 *
 * Thread: one at a time; the owner locks. Nothing here blocks.
 */

#define TIERCE__SILENCE_LATE_MAX 3u
#define TIERCE__SILENCE_QUIET_MS 1000u
/* Longer than a node needs to accept a connection on a machine with many times more work than
 * processors. Meanwhile, requests that do not begin an operation are still sent. */
#define TIERCE__SILENCE_MS 2000u

struct tierce__silence {
    uint32_t late; /* requests in a row */
    uint64_t quiet_until_ns;
    bool is_probed, is_silent;
    int probe;             /* the connection, if is_probed; -1: it has to be sent */
    uint64_t probe_at_ns;  /* when it may be sent */
    uint64_t silent_at_ns; /* unless the probe is answered before */
};

enum tierce__silence_change {
    TIERCE__SILENCE_SAME,
    TIERCE__SILENCE_BEGUN,
    TIERCE__SILENCE_ENDED, /* the node answers, or has closed its connections */
};

void tierce__silence_init(struct tierce__silence *s);
/* Disconnects the probe. */
void tierce__silence_fini(struct tierce__silence *s);

/* A request was not answered in time. */
void tierce__silence_note_late(struct tierce__silence *s, uint64_t now_ns);

/* A request was answered. */
enum tierce__silence_change tierce__silence_note_answer(struct tierce__silence *s);

/* Looks for the answer of the probe. */
enum tierce__silence_change tierce__silence_look(struct tierce__silence *s, uint64_t now_ns);

/* Whether the caller has to send a probe now. If so, it calls tierce__silence_sent afterwards. */
bool tierce__silence_takes_probe(struct tierce__silence *s, uint64_t now_ns);

/* [transfer] fd: a connection of client_socket.h, or the error of sending the probe. After -EAGAIN,
 * which a node causes that accepts no connections, the probe is sent again later. */
enum tierce__silence_change tierce__silence_sent(struct tierce__silence *s, int fd);

/* Whether requests that begin an operation are not sent now. */
bool tierce__silence_is_quiet(const struct tierce__silence *s, uint64_t now_ns);

#endif
