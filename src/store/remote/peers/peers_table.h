/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PEERS_TABLE_H
#define TIERCE_PEERS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/key/chunk_number.h"

/*
 * The peers that a directory has named, the health of each, and where chunks were found recently.
 *
 * Everything here is a hint: a stale place costs a round trip. The places are a table of fixed
 * size, in which a new place may take that of another. A peer that fails is not asked for a second,
 * and for twice as long after each further failure, up to 16 s; one success ends that. No
 * other peer is affected.
 *
 * A peer may have several addresses, over different network links. A read takes the link that would
 * deliver it first, by its reads in progress and by the bytes a second that it delivered recently;
 * a link that had no read for a while is tried again. A link that fails is paused as a peer is, and
 * the others are used. The peer fails when all of its links do.
 *
 * A chunk whose bytes have proved wrong is not read from the same peer again, and its other holders
 * are asked. The memory for such chunks is a table of fixed size too: an older one that was
 * replaced is read, found wrong and noted again.
 *
 * Thread: any. Nothing blocks.
 */

#define TIERCE__PEERS_MAX           1024u
#define TIERCE__PEERS_PLACES        16384u
#define TIERCE__PEERS_WRONGS        1024u
#define TIERCE__PEERS_LINKS_MAX     4u /* addresses of one peer */
#define TIERCE__PEERS_HOLDERS_MAX   3u /* of one chunk that are remembered */
#define TIERCE__PEERS_ADDRESS_BYTES 128u
#define TIERCE__PEERS_ABSENT_MS     1000u
#define TIERCE__PEERS_PLAIN_MS      600000u

struct tierce__peers_table;

/* A peer: its slot, and which of the peers in that slot. */
struct tierce__peer_ref {
    uint16_t slot;
    uint16_t generation; /* 0: none */
};

enum tierce__peer_result {
    TIERCE__PEER_SERVED,
    TIERCE__PEER_MISSED,   /* it does not have the chunk any more: no failure */
    TIERCE__PEER_BUSY,     /* no failure either */
    TIERCE__PEER_LENGTH,   /* its chunk ends before the range: the reader expects a longer one */
    TIERCE__PEER_DAMAGED,  /* the bytes are not the chunk */
    TIERCE__PEER_UNTRIED,  /* no memory here, or too little time was left: its state is unknown */
    TIERCE__PEER_LATE,     /* a failure, as all below */
    TIERCE__PEER_REJECTED, /* it does not accept the secret */
    TIERCE__PEER_FAILED,   /* unreachable, or its answers are invalid */
    TIERCE__PEER_RESULTS
};

/* A peer that had less time than this is not late. */
#define TIERCE__PEER_PATIENCE_MS 100u

/* The result of a read that ended with `status` and had `given_ns` until its deadline. is_open: the
 * connection was in step afterwards. */
enum tierce__peer_result tierce__peer_result_of(int status, bool is_open, uint64_t given_ns);
/* Whether a peer is paused for it. */
bool tierce__peer_result_is_failure(enum tierce__peer_result result);

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__peers_table_create(struct tierce__peers_table **out);
/* NULL is accepted. */
void tierce__peers_table_destroy(struct tierce__peers_table *table);

/* The peer with these addresses, "HOST:PORT" or "[HOST]:PORT" separated by commas; a new one may
 * take the slot of the peer that was named longest ago. Generation 0: an address is invalid, or
 * there are more than TIERCE__PEERS_LINKS_MAX. */
struct tierce__peer_ref tierce__peers_table_name(struct tierce__peers_table *table,
                                                 const char *address);

/* Host and port of a link. False: there is no such link, or the slot has another peer by now. */
bool tierce__peers_table_address(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                                 uint32_t link, char host[TIERCE__PEERS_ADDRESS_BYTES],
                                 uint16_t *port);

/* The peer is of a version that sends raw chunks only, or has chunks with a codec that this build
 * does not have. It is asked for stored ones again after TIERCE__PEERS_PLAIN_MS. */
void tierce__peers_table_set_plain(struct tierce__peers_table *table, struct tierce__peer_ref peer);
bool tierce__peers_table_is_plain(struct tierce__peers_table *table, struct tierce__peer_ref peer);

/* Begins a read over one of the peer's links that are not in `tried`, a bit for each. Links that
 * are paused come last. *left: others could be tried after it. Returns the link, or -1. */
int tierce__peers_table_begin(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                              uint32_t tried, bool *left);
/* Ends it: once after each begin that returned a link. bytes, ns: how much was read, in what time;
 * used if it was served. */
void tierce__peers_table_end(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                             uint32_t link, enum tierce__peer_result result, uint64_t bytes,
                             uint64_t ns);

/* Whether the peer may be asked now. After a failure and the pause, one caller may. */
bool tierce__peers_table_may_ask(struct tierce__peers_table *table, struct tierce__peer_ref peer);
/* Whether the peer is in its pause. */
bool tierce__peers_table_is_out(struct tierce__peers_table *table, struct tierce__peer_ref peer);
/* Notes the peer's answer: once after each may_ask that was true. Failures
 * within a pause are those of calls that were in progress, and count as one. */
void tierce__peers_table_note(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                              enum tierce__peer_result result);

/* Where a chunk is, the best holder first; takes the place of older ones. */
void tierce__peers_table_put(struct tierce__peers_table *table, struct tierce__chunk_number key,
                             const struct tierce__peer_ref *holders, size_t count);
/* Returns how many holders are known. */
size_t tierce__peers_table_get(struct tierce__peers_table *table, struct tierce__chunk_number key,
                               struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX]);
/* A read found the chunk nowhere. Unless a holder is known, the other reads of the same load need
 * not ask the directory again. */
void tierce__peers_table_missed(struct tierce__peers_table *table, struct tierce__chunk_number key);
/* Whether that happened within the last TIERCE__PEERS_ABSENT_MS, and no lookup found it since. */
bool tierce__peers_table_is_absent(struct tierce__peers_table *table,
                                   struct tierce__chunk_number key);
/* The peer has delivered bytes of the chunk. */
void tierce__peers_table_served(struct tierce__peers_table *table, struct tierce__chunk_number key,
                                struct tierce__peer_ref peer);
/* The bytes of this peer are not the chunk: it is not asked for it again. */
void tierce__peers_table_reject(struct tierce__peers_table *table, struct tierce__chunk_number key,
                                struct tierce__peer_ref peer);
/* Bytes of the chunk have proved wrong. All that delivered some of them are rejected, and named in
 * `peers`; returns how many. 0: that is not known any more, so all peers are rejected. Counts as
 * TIERCE__PEER_DAMAGED, once for each of them, beside the reads that were served. */
size_t tierce__peers_table_reject_served(struct tierce__peers_table *table,
                                         struct tierce__chunk_number key,
                                         struct tierce__peer_ref peers[TIERCE__PEERS_HOLDERS_MAX]);
bool tierce__peers_table_is_rejected(struct tierce__peers_table *table,
                                     struct tierce__chunk_number key, struct tierce__peer_ref peer);
/* The peer does not have the chunk. */
void tierce__peers_table_drop(struct tierce__peers_table *table, struct tierce__chunk_number key,
                              struct tierce__peer_ref peer);

struct tierce__peers_table_stats {
    uint64_t results[TIERCE__PEER_RESULTS]; /* answers of each kind, of all peers */
    uint64_t chunks, bytes;         /* that were served; a chunk counts with its beginning */
    uint64_t known_now, paused_now; /* peers */
    uint64_t links_paused_now;      /* of peers with several */
};
void tierce__peers_table_add_read(struct tierce__peers_table *table, bool is_beginning,
                                  uint64_t bytes);
void tierce__peers_table_stats(struct tierce__peers_table *table,
                               struct tierce__peers_table_stats *out);

#endif
