/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_SNAPSHOT_H
#define TIERCE_ROUTER_SNAPSHOT_H

#include "router/contents.h"

/*
 * Reads a publisher's snapshot, in parts of any length, into contents of its own: a map with
 * version and sequence, batches, a map with the number of blocks
 * (docs/inside/format/router-index.md).
 *
 * Thread: one at a time.
 */

struct tierce__snapshot {
    struct tierce__contents contents;     /* without `give` */
    uint8_t *part;                        /* bytes of an incomplete value */
    size_t part_bytes, part_room, try_at; /* so many bytes may hold a value */
    bool has_head, has_end;
    uint64_t covered; /* number of the last batch whose effect it has */
    uint64_t promised, got;
};

/* Forgets all that was read, and frees its memory; `contents.model`, seed and blocks_max are set.
 */
void tierce__snapshot_clear(struct tierce__snapshot *snapshot);
/* A part of the body. False: it is invalid, and needs no more parts. */
bool tierce__snapshot_add(struct tierce__snapshot *snapshot, const void *bytes, size_t count);
/* The body has ended. Whether it is complete, and no block was left out. */
bool tierce__snapshot_end(struct tierce__snapshot *snapshot);
void tierce__snapshot_fini(struct tierce__snapshot *snapshot);

#endif
