/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_CONNECTOR_H
#define TIERCE_STORE_CODED_CONNECTOR_H

#include "store/coded/coded_tier.h"
#include "store/remote/connector.h"

/*
 * A connector around another one that stores chunks as coded objects (core/chunk/coded.h), under
 * the same names. Its callers see raw objects only: ranges and bytes are those of the raw object,
 * bit by bit. A LOOKUP and a LIST report the stored length.
 *
 * A reader needs no configuration: the header of an object names its codec, so a store can hold
 * raw and coded objects beside each other, and the codec can change at any time. The connector
 * below must have TIERCE__CONNECTOR_RANGES or TIERCE__CONNECTOR_TELLS_LENGTH.
 *
 * PUT: a thread encodes chunk after chunk, so that no caller waits for it. A chunk stays raw if its
 * namespace states no known element type, if it would not become shorter, if there is no memory for
 * it, or if loads would not be faster with the codec (coded_speed.h).
 *
 * GET: the beginning of an object is read first, and shows whether the object is coded; this is
 * remembered for 10 s, for the ranges that follow. As long as the store's last object was raw,
 * other ranges are read at the same time as the beginning, and answered after it. Ranges of a coded
 * object are read layer by layer, each once, into memory of this connector; a thread verifies and
 * decodes them. A store without ranges is asked once for the object, into the caller's buffer.
 *
 * Status of a GET beyond those of a connector: TIERCE_E_CHECKSUM: the object is damaged;
 * TIERCE_E_VERSION: this build has no such codec; TIERCE_E_NO_KEY: its key is missing or another
 * one; TIERCE_E_FULL: no memory.
 *
 * If another process replaces an object by one of the other kind between two ranges of a load, the
 * bytes of the second range are invalid. The reader's verification of cells finds that.
 * Those of a store with TIERCE__CONNECTOR_FORMS are not: a range names the kind of its object, and
 * a get whose kind the store does not have any more restarts once. If the raw object is longer than
 * the buffer of the request, a range with layers is TIERCE_E_FORMAT. Two raw objects of a lossy
 * codec, exact and decoded, have the same length, and verification of cells finds their mixture.
 */

struct tierce__coded_connector_opts {
    size_t size;                           /* sizeof(struct tierce__coded_connector_opts) */
    struct tierce__connector *connector;   /* [transfer, on success only] */
    const char *name;                      /* in logs; [borrow for the call] */
    const struct tierce__codec *codec;     /* for new chunks; NULL: none, but coded ones are read */
    struct tierce__namespaces *namespaces; /* [borrow until close] */
    struct tierce__coded_keys *keys;       /* and the following: as in tierce__coded_opts */
    bool encrypts;
    /* Memory for coded bytes that do not fit into the connector's own; NULL: there is none now.
     * Called without a lock, must not block. */
    struct tierce__buf *(*alloc)(void *arg, uint64_t bytes);
    void *alloc_arg;
    uint64_t staging_bytes_max; /* of coded bytes in memory, in each direction, for which the
                                   connector has its own pool; 0: 64 MiB */
    bool no_pool;               /* not its own pool: the store reads and writes only buffers of the
                                   pool that `alloc` has */
    uint32_t decode_threads;    /* and the following: as in tierce__coded_opts */
    uint64_t measured_bytes;
    double load_time_max;
};

/* Errors: -ENOMEM, TIERCE_E_ARGUMENT (also a connector with neither ability). */
TIERCE_MUSTUSE int tierce__coded_connector_open(struct tierce__connector **out,
                                                const struct tierce__coded_connector_opts *opts);

/* `connector` is from tierce__coded_connector_open. Thread: any. */
void tierce__coded_connector_stats(struct tierce__connector *connector,
                                   struct tierce__coded_stats *out);

#endif
