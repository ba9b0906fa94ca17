/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_BACKFILL_H
#define TIERCE_ENGINE_BACKFILL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Sends the chunks on disk to the remote stores that lack them, for example to a store that was
 * configured later. A thread sends one chunk at a time at a bounded rate. It looks each chunk up in
 * the remote stores before it reads the chunk, so an interrupted backfill that is started again
 * sends no chunk twice. It verifies each chunk before it sends it.
 *
 * Thread: any.
 */

struct tierce_engine;

/* Of an engine. Under ENGINE, except the counters, which are relaxed atomics. */
struct tierce__backfill {
    pthread_t thread;
    bool has_thread; /* not yet joined */
    bool is_running, has_failed;
    bool stops, stops_for_good;
    const char *reason; /* constant storage; NULL before the first */
    uint64_t bytes_per_s, began_ns, ended_ns, chunks;
    _Atomic uint64_t seen, sent, sent_bytes, there, refused, unreadable;
};

struct tierce__backfill_report {
    const char *state;  /* "never", "running", "done", "stopped" or "failed"; constant storage */
    const char *reason; /* why it stopped or failed, or ""; constant storage */
    uint64_t chunks;    /* on disk when the backfill began */
    uint64_t seen;      /* of `chunks`, handled so far */
    uint64_t sent, sent_bytes;
    uint64_t there;      /* already in a store; counted per store, as are sent and rejected */
    uint64_t refused;    /* rejected by a store: read_only=true, or another layout */
    uint64_t unreadable; /* could not be read or verified */
    uint64_t ms;
};

/* Starts a backfill. bytes_per_s 0: 64 MiB. Errors: TIERCE_E_UNSUPPORTED (no disk, or no remote
 * store), -EBUSY (a backfill is running), TIERCE_E_REFUSED (the mode is not normal), -ENOMEM, errno
 * of thread creation. */
TIERCE_MUSTUSE int tierce__backfill_start(struct tierce_engine *engine, uint64_t bytes_per_s);

/* Stops the backfill after the current chunk. Does not block. */
void tierce__backfill_stop(struct tierce_engine *engine);

void tierce__backfill_report(struct tierce_engine *engine, struct tierce__backfill_report *out);

/* Stops the backfill and blocks until it has ended, for at most timeout.write. Call before the
 * tiers are closed. */
void tierce__backfill_fini(struct tierce_engine *engine);

#endif
