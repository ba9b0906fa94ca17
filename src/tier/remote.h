/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_REMOTE_H
#define TIERCE_TIER_REMOTE_H

#include "connector/connector.h"
#include "key/namespaces.h"
#include "tier/tier.h"

/*
 * A remote store as a tier: names for keys, a queue for what is written, one reading where the
 * store gives objects only whole.
 *
 * The store is shared: others write, delete and evict there. So this tier counts no chunks and no
 * cap, tells its watcher nothing, and has no order of eviction (TIERCE__TIER_SHARED). What is there
 * is asked for each time.
 *
 * A PUT waits in a queue that is bounded in bytes and never blocks who stores. Where it overflows
 * the oldest chunks are dropped with what follows them in their prompts, but not those that the
 * newcomer follows itself. A chunk that the store has is not sent again. Chunks of a prompt are
 * sent side by side; one whose parent could not be stored is taken back, and not answered before
 * that is known. Who crashes in between may leave a suffix behind, which nobody finds.
 *
 * What a store without deletions (TIERCE__CONNECTOR_NO_DELETE) has of a chunk that was forgotten,
 * or that proved wrong, is hidden: this process asks for it no more until a put of it has replaced
 * it there.
 *
 * An object is stored as it lies in memory under the text of its key (docs/format/key.md).
 */

struct tierce__remote_opts {
    size_t size;                           /* sizeof(struct tierce__remote_opts) */
    struct tierce__connector *connector;   /* [transfer, on success only] */
    struct tierce__namespaces *namespaces; /* [borrow until close] has those of all keys */
    uint64_t queue_bytes;                  /* puts waiting; 0: 64 MiB */
    uint32_t writes;                       /* puts under way; 0: 4 */
    uint32_t write_timeout_ms;             /* each step of a put; 0: 10000 */
    bool read_only;                        /* puts are refused; what is bad is hidden here only */
    const char *name;                      /* in logs and metrics; [borrow for the call] */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__remote_open(struct tierce__tier **out,
                                       const struct tierce__remote_opts *opts);

#endif
