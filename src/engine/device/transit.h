/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_TRANSIT_H
#define TIERCE_ENGINE_TRANSIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "core/device/device.h"

/*
 * The copies of one store or load between chunks and the memory of a device: a copy for each layer,
 * all enqueued after the work on the caller's stream, and one wait for the last copy.
 *
 *     rc = tierce__transit_create(&transit, device, &what);
 *     ... fill transit->rows ...
 *     rc = tierce__transit_gather(transit, count);       // or _scatter; returns at once
 *     ...
 *     while (tierce__transit_settle_next(transit, workers, deadline_ns)) // optional: copy by copy
 *         ...
 *     rc = tierce__transit_wait(transit, deadline_ns);
 *     if (rc == 0) {
 *         tierce__transit_settle(transit, workers);      // now bytes, sums and `bad` are valid
 *         tierce__transit_free(transit);
 *     } else {
 *         tierce__transits_keep(&engine->transits, transit, free_the_rest, arg);
 *     }
 *
 *     enqueued ──last event completes──> over ──settled──> freed
 *         └──the deadline, or the device fails──> kept ──over, much later──> freed, with the rest
 *
 * After a failed wait the device may still read or write. So the chunks' memory must not be used
 * for anything else: the transit is kept with all that belongs to it, until the device has
 * certainly stopped, or the process exits.
 *
 * Thread: a transit belongs to one at a time; a list of transits to any.
 */

struct tierce__open_device;
struct tierce__workers;

/* Frees the resources that belong to a kept transit. Called under no lock, on any thread. */
typedef void tierce__transit_over_fn(void *arg);

struct tierce__transit {
    struct tierce__open_device *device; /* [borrow] */
    const struct tierce_paged *paged;   /* [borrow until the last copy is enqueued] */
    void *stream;
    struct tierce__device_row *rows;      /* [row_count] of the next copy */
    size_t row_count;                     /* at most, in a copy */
    uint8_t *bad;                         /* [row_count] scatters: a cell of the row did not verify;
                                             written by settle */
    struct tierce__device_event **events; /* [event_max], [event_count] of copies */
    size_t *rows_of;                      /* [event_max] rows of each */
    size_t event_count, event_max;
    size_t settled; /* the first so many of `events` */
    int failed;     /* 0, or the first error; nothing more is enqueued then */
    bool lost;      /* copies without an event may be in progress */

    /* While it is kept. */
    struct tierce__list node;
    tierce__transit_over_fn *over;
    void *arg;
};

struct tierce__transit_what {
    const struct tierce_paged *paged;
    void *stream;
    size_t row_count;
    size_t event_max;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__transit_create(struct tierce__transit **out,
                                          struct tierce__open_device *device,
                                          const struct tierce__transit_what *what);

/* All copies must have ended (tierce__transit_wait returned 0). NULL is accepted. */
void tierce__transit_free(struct tierce__transit *transit);

/*
 * Enqueues a copy of the first `count` rows, after the work on the stream. After a scatter, later
 * work on the stream waits for the copy. Errors: as of gather and stream_wait in device.h; the
 * transit has failed then. Does not block.
 */
TIERCE_MUSTUSE int tierce__transit_gather(struct tierce__transit *transit, size_t count);
TIERCE_MUSTUSE int tierce__transit_scatter(struct tierce__transit *transit, size_t count);

/* Waits until the first copy that is not settled has ended, and computes its sums or verdicts.
 * False: all are settled, a copy was refused, or the wait failed, which tierce__transit_wait tells
 * again. `workers` share the rows; NULL: on this thread. */
bool tierce__transit_settle_next(struct tierce__transit *transit, struct tierce__workers *workers,
                                 uint64_t deadline_ns);

/*
 * Rotates keys in memory of the same device: after the copies and the work on the stream, and
 * before later work on the stream. keys->stream is ignored. The end of the rotation is that of
 * later work on the stream; the transit does not wait for it. Errors: TIERCE_E_ARGUMENT (also:
 * memory of another device); TIERCE_E_DOWN and TIERCE_E_CLOSED: the memory's device cannot be
 * determined, and no key was rotated; the failure of an earlier copy; those of rotate in
 * device.h.
 */
TIERCE_MUSTUSE int tierce__transit_rotate(struct tierce__transit *transit,
                                          const struct tierce__device_keys *keys);

/* Computes distances of keys, in the same order and with the same errors; after -ECANCELED the
 * transit goes on, because its memory is not written. */
TIERCE_MUSTUSE int tierce__transit_distances(struct tierce__transit *transit,
                                             const struct tierce__device_distances *keys);

/* Waits until all copies have ended; their results are valid only if `failed` is 0 then. Errors:
 * TIERCE_E_DEADLINE, -EIO, TIERCE_E_CLOSED: copies may be in progress. */
TIERCE_MUSTUSE int tierce__transit_wait(struct tierce__transit *transit, uint64_t deadline_ns);

/* Computes the sums or verdicts of the copies that are not settled; all have ended. Afterwards
 * other copies may be enqueued. `workers` NULL: on this thread. */
void tierce__transit_settle(struct tierce__transit *transit, struct tierce__workers *workers);

/* ---- kept transits ---- */

struct tierce__transits {
    struct tierce__lock lock; /* TRANSITS */
    struct tierce__list list;
};

void tierce__transits_init(struct tierce__transits *transits);
/* The list must be empty. */
void tierce__transits_fini(struct tierce__transits *transits);

/* [transfer] transit. reap or end calls `over` with `arg` when the copies have ended. */
void tierce__transits_keep(struct tierce__transits *transits, struct tierce__transit *transit,
                           tierce__transit_over_fn *over, void *arg);

/* Frees the transits that have ended. Does not wait. */
void tierce__transits_reap(struct tierce__transits *transits);

/* The same, but waits for the other transits. False: some have not ended, and stay. */
bool tierce__transits_end(struct tierce__transits *transits, uint64_t deadline_ns);

bool tierce__transits_empty(struct tierce__transits *transits);

#endif
