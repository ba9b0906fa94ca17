/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PEER_KEEPER_H
#define TIERCE_ENGINE_PEER_KEEPER_H

#include "store/remote/peers/peers_self.h"
#include "store/transfer/transfer.h"

/*
 * The chunks of an engine's memory and disk as objects of a transfer server: the spaces "chunks"
 * and "stored", whose names are the texts of whole keys (core/key/key_text.h). They are read-only.
 *
 *     rc = tierce__peer_keeper_create(&keeper, engine, &(struct tierce__peer_keeper_opts){
 *         .size = sizeof(struct tierce__peer_keeper_opts)});
 *     opts.keeper = tierce__peer_keeper_get(keeper);   // of tierce__transfer_server_start
 *     tierce__transfer_server_stop(server, deadline_ns);
 *     tierce__peer_keeper_destroy(keeper);             // before the engine's tiers end
 *
 * A chunk in memory is lent: its lease is a reference on the memory tier's buffer, so a chunk that
 * is evicted or replaced while it is sent keeps its bytes. It is not marked as used.
 *
 * A chunk on disk is read into a pool of the keeper, and never evicts a chunk of the engine. These
 * reads are bounded by their number, by bytes a second and by that pool. Beyond a bound the answer
 * is TIERCE_E_LIMIT at once ("busy"), so that serving others slows the engine by a bounded amount
 * only. A reader asks for a large chunk in several ranges. Each one reads its own pages; the rate
 * may reject the first range only, and the others delay later reads. Remote stores are not asked:
 * another process reads from them itself.
 *
 * An object of "chunks" is raw: what a tier has coded is decoded. In "stored", a chunk that only a
 * coded tier has is the coded object, which is not decoded: `total` of a call chooses between the
 * two forms by their lengths, and 0 is the form that costs this host least. A range of a coded
 * object that begins behind its first page must name the length.
 *
 * An engine with keys sends raw objects only, because its reader need not have the keys. One
 * without keys that finds encrypted chunks answers their beginning with a miss, so that it does not
 * show their length. It looks at no other range: a reader that guesses the length is sent encrypted
 * bytes.
 *
 * The keeper serves bytes as the tiers have them; their reader verifies header, key and cells. A
 * namespace that the engine does not know is a miss, and is not remembered. An engine in bypass
 * finds nothing.
 *
 * find: TIERCE_E_MISS; TIERCE_E_ARGUMENT (no text of a key, or another space); TIERCE_E_LIMIT
 * (busy); TIERCE_E_FORMAT (the range lies outside of the object, or no tier has one of the length
 * `total`, but one has another); TIERCE_E_CLOSED. A chunk that the disk cannot deliver is a miss,
 * or TIERCE_E_FORMAT if memory has another form, and counts as an error. A read that does not end
 * by the reader's deadline does not count against the disk. measure knows memory and disk alike.
 * make and drop are TIERCE_E_REFUSED, list TIERCE_E_UNSUPPORTED.
 *
 * Thread: any. Nothing waits for a device.
 */

struct tierce_engine;
struct tierce__peer_keeper;

struct tierce__peer_keeper_opts {
    size_t size;               /* sizeof(struct tierce__peer_keeper_opts) */
    uint32_t disk_reads;       /* in progress at most; 0: 16 */
    uint64_t disk_bytes_per_s; /* 0: disk_percent */
    /* Limit as a percentage of the tier's read speed (engine/health/health.h); never below
     * disk_least, which also applies while the speed is unknown. 0: unlimited. */
    uint32_t disk_percent;
    uint64_t disk_least; /* bytes a second; 0: 16 MiB */
    /* Memory for chunks that are read from disk and sent, used as far as they need it. A larger
     * chunk on disk is always "busy". 0: a sixteenth of the engine's memory, at least 64 MiB. */
    uint64_t buffer_bytes;
};

/* Those of the engine's parameters: peers.disk_reads and peers.disk_rate, which is 8 % of the
 * disk's speed by default. */
struct tierce__peer_keeper_opts tierce__peer_keeper_bounds(const struct tierce_engine *engine);

struct tierce__peer_keeper_stats {
    uint64_t memory_hits, disk_hits, misses, busy, errors;
    uint64_t lengths; /* no form of the chunk has the length, or the range, that was asked for */
    uint64_t coded_hits,
        coded_bytes;               /* of disk_hits: coded objects, and the bytes of their ranges */
    uint64_t reads_now, reads_max; /* from disk */
    uint64_t leases_now;           /* of both kinds */
};

/* [borrow until destroy] engine, which has tiers of its own. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__peer_keeper_create(struct tierce__peer_keeper **out,
                                              struct tierce_engine *engine,
                                              const struct tierce__peer_keeper_opts *opts);
/* No call is in progress, and no lease is left (asserted). NULL is accepted. */
void tierce__peer_keeper_destroy(struct tierce__peer_keeper *keeper);

/* [borrow until destroy] */
struct tierce__keeper *tierce__peer_keeper_get(struct tierce__peer_keeper *keeper);
void tierce__peer_keeper_stats(struct tierce__peer_keeper *keeper,
                               struct tierce__peer_keeper_stats *out);

#endif
