/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_REMOTE_H
#define TIERCE_TIER_REMOTE_H

#include "store/remote/connector.h"
#include "core/key/namespaces.h"
#include "store/tier.h"

/*
 * A remote store as a tier: names for keys, a write queue, and one shared read if the store returns
 * objects only whole.
 *
 * The store is shared: other processes write, delete and evict there. So this tier counts no
 * chunks, has no cap and no order of eviction, and reports nothing to its watcher
 * (TIERCE__TIER_SHARED). A lookup queries all its keys in one call. Answers of the store are
 * remembered: a stored chunk for 10 s, a missing one for 1 s, about 32,768 answers at most. Puts,
 * deletions, clears and reads that miss update the remembered answers at once.
 *
 * A PUT waits in a queue, which is bounded in bytes and never blocks the caller. On overflow, the
 * oldest chunks are dropped together with their successors in the prompt, except predecessors of
 * the new chunk. A chunk that the store has is not sent again. Chunks of a prompt are sent in
 * parallel. A chunk whose parent could not be stored is deleted again, and its PUT is not answered
 * before the parent's result is known. A crash in between may leave a suffix, which no lookup
 * finds.
 *
 * If the store cannot delete (TIERCE__CONNECTOR_NO_DELETE), forgotten and wrong chunks are hidden:
 * this process does not query them until a put has replaced them in the store.
 *
 * An object is stored as it lies in memory, under the text of its key (docs/inside/format/key.md).
 */

struct tierce__remote_opts {
    size_t size;                           /* sizeof(struct tierce__remote_opts) */
    struct tierce__connector *connector;   /* [transfer, on success only] */
    struct tierce__namespaces *namespaces; /* [borrow until close] has those of all keys */
    uint64_t queue_bytes;                  /* puts waiting; 0: 64 MiB */
    uint32_t writes;                       /* puts under way; 0: 4. At least 64 with
                                              TIERCE__CONNECTOR_ASKS */
    uint32_t write_timeout_ms;             /* each step of a put; 0: 10000 */
    bool read_only;                        /* puts are rejected; wrong chunks are hidden in this
                                              process only */
    const char *name;                      /* in logs and metrics; [borrow for the call] */
};

/* Errors: -ENOMEM, -EAGAIN (no thread). */
TIERCE_MUSTUSE int tierce__remote_open(struct tierce__tier **out,
                                       const struct tierce__remote_opts *opts);

#endif
