/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_UPLOAD_H
#define TIERCE_NODE_UPLOAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "engine/objects/objects.h"

/*
 * Values that a node is receiving into the pool, and a limit on their total size. An upload
 * reserves memory when its length is announced. So that unfilled reservations do not block other
 * clients, an upload that has stalled loses its memory to the next upload that finds none.
 *
 *     rc = tierce__upload_begin(&uploads, &upload, space, &what);   // held
 *     tierce__upload_let_go(upload, filled);                       // until more bytes arrive
 *     if (tierce__upload_hold(upload))                             // false: drop its bytes
 *         ... write to upload->object->value; tierce__object_filled() ...; let_go again
 *     object = tierce__upload_end(upload);                         // the whole value, or NULL
 *
 * Values above TIERCE__UPLOAD_SMALL share `bytes_max`. Smaller values have a limit of their own, a
 * quarter of `bytes_max`, so that large values never block them.
 *
 * Thread: any; an upload belongs to one thread at a time. Only that thread, while it holds the
 * upload, touches its memory.
 */

#define TIERCE__UPLOAD_SMALL (1u << 20)

struct tierce__uploads {
    struct tierce__lock lock;    /* NODE_UPLOADS: all below, and the uploads */
    struct tierce__list running; /* least recently moved first */
    uint64_t bytes_max;
    uint64_t stalled_ns[2]; /* an upload without progress for this long is stalled: [0] before its
                             first byte, [1] after */
    uint64_t small_bytes, large_bytes;
    _Atomic uint64_t dropped; /* relaxed: a counter */
};

struct tierce__upload {
    struct tierce__list node;
    struct tierce__uploads *uploads;
    struct tierce__object *object; /* NULL: dropped */
    uint64_t bytes, filled, moved_ns;
    bool is_held;
};

void tierce__uploads_init(struct tierce__uploads *uploads, uint64_t bytes_max);
/* No upload may be running. */
void tierce__uploads_fini(struct tierce__uploads *uploads);

/* The number of announced bytes with reserved memory. */
uint64_t tierce__uploads_bytes(struct tierce__uploads *uploads);

/* Reserves memory for a value; the upload is held. Errors: as tierce__object_create's;
 * TIERCE_E_FULL also if uploads in progress have reached the limit. */
TIERCE_MUSTUSE int tierce__upload_begin(struct tierce__uploads *uploads,
                                        struct tierce__upload **out, struct tierce__objects *space,
                                        const struct tierce__object_what *what);

/* tierce__object_create for a value that has been received in full. If there is no memory, stalled
 * uploads lose theirs. */
TIERCE_MUSTUSE int tierce__upload_create(struct tierce__uploads *uploads,
                                         struct tierce__object **out, struct tierce__objects *space,
                                         const struct tierce__object_what *what);

/* Whether the upload still has its memory. If so, it keeps the memory until let_go. */
TIERCE_MUSTUSE bool tierce__upload_hold(struct tierce__upload *upload);
/* `filled`: bytes of the value received so far. */
void tierce__upload_let_go(struct tierce__upload *upload, uint64_t filled);

/* Ends the upload and returns its value, or NULL if it was dropped. */
struct tierce__object *tierce__upload_end(struct tierce__upload *upload);

#endif
