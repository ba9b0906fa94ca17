/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_INBOX_H
#define TIERCE_HANDOVER_INBOX_H

#include "engine/handover/handover.h"
#include "engine/handover/inbox_stats.h"
#include "store/transfer/transfer.h"

/*
 * The inbox of an engine: chunks that a prefiller writes into this engine's memory, range by range,
 * while it computes them. It is a part of the transfer server of handover.h.
 *
 *     the decoder                         a proxy            the prefiller
 *     tierce__inbox_issue  ── ticket ──▶  chooses  ──▶       tierce__push_begin
 *     make_range, keep     ◀═════════════ ranges ═══════════ tierce__push_watch, tierce__push_end
 *     tierce__inbox_await                                    "the ticket is over"
 *
 * A ticket is a token of 32 hexadecimal digits, for one prompt. It admits writes of chunks of a
 * view that is open, from hosts that the inbox knows, until one of these:
 *
 *     - the sender has removed the name that is the ticket: it has sent all
 *     - a connection with this ticket has ended
 *     - nothing has begun within the ticket's time, or nothing has come for `hold_ms`
 *     - a range overlaps another one, or names another length of its object: the connection ends
 *
 * Chunks that are not complete by then are dropped. The room of a chunk is made before its first
 * byte is accepted, in the memory tier's pool, within `bytes_max` for all of them: TIERCE_E_LIMIT
 * or TIERCE_E_FULL, and the sender tries again. A chunk becomes visible when all of its ranges have
 * arrived, its header is that of its name and view, and the sum of each cell holds. Chunks that
 * have arrived are pinned until the ticket is ended, or for hold_ms.
 *
 * A node has an inbox for each client that accepts pushes. Each accepts chunks of its client's
 * views only, and bytes_max applies to the chunks of all inboxes together.
 *
 * Thread: any. Lock: INBOX. Nothing but await blocks.
 */

struct tierce__inbox;
struct tierce__key;

#define TIERCE__HOLDER_BYTES  33u /* with NUL */
#define TIERCE__TICKETS_MAX   4096u
#define TIERCE__INBOX_HOLD_MS 60000u

/* Whether a chunk of this namespace and shard may come. */
typedef bool tierce__inbox_is_own_fn(void *arg, const struct tierce__key *key);

struct tierce__inbox_opts {
    size_t size;        /* sizeof(struct tierce__inbox_opts) */
    const char *hosts;  /* of senders, separated by blanks; [borrow for the call] */
    uint64_t bytes_max; /* of chunks that have not arrived whole; 0: see `share` */
    uint32_t share;     /* of memory.size, in thousandths; 0: a quarter */
    uint32_t hold_ms;   /* 0: TIERCE__INBOX_HOLD_MS */
    /* Called by the threads of the server, under no lock. NULL: every view of the engine is
     * served. */
    tierce__inbox_is_own_fn *is_own;
    void *is_own_arg; /* [borrow until destroy] */
};

/* Hosts that are ignored are logged (handover_hosts.h). Errors: TIERCE_E_ARGUMENT (no host has
 * an address), -ENOMEM. */
TIERCE_MUSTUSE int tierce__inbox_create(struct tierce__inbox **out, struct tierce_engine *engine,
                                        const struct tierce__inbox_opts *opts);
/* No connection is left. NULL is accepted. */
void tierce__inbox_destroy(struct tierce__inbox *inbox);

/*
 * Makes up to `count` tickets, which must begin within `ms`. Returns how many; fewer if there are
 * too many. Errors: TIERCE_E_ARGUMENT (`holder` is too long), negative errno.
 *
 * [in] holder: a name that the client chose, or "". Any client can ask for tickets, so of
 * TIERCE__TICKETS_MAX the oldest unused one makes way for a new one, except those of holders with a
 * ticket that has brought a chunk: only a host of `hosts` can do this.
 */
TIERCE_MUSTUSE int tierce__inbox_issue(struct tierce__inbox *inbox,
                                       char (*tickets)[TIERCE__TICKET_BYTES], size_t count,
                                       uint32_t ms, const char *holder);

/*
 * Waits until a ticket is over: start_ms if nothing has begun, and then while ranges arrive, at
 * most `quiet_ms` after the last one. Returns 0 (its sender has sent all that it could),
 * TIERCE_E_MISS (there is no such ticket), TIERCE_E_DEADLINE (nothing has come in that time),
 * TIERCE_E_DOWN (its connection has ended before), -EAGAIN (it was not over at deadline_ns).
 * Blocks.
 */
TIERCE_MUSTUSE int tierce__inbox_await(struct tierce__inbox *inbox, const char *ticket,
                                       uint32_t start_ms, uint32_t quiet_ms, uint64_t deadline_ns);
/* The ticket is used up: its pins end. Returns the bytes of its chunks that have arrived; 0 for an
 * unknown one. */
uint64_t tierce__inbox_end(struct tierce__inbox *inbox, const char *ticket);

/* After tickets whose time is over were ended. The metrics of the engine have the same numbers
 * (inbox_metrics.h). */
void tierce__inbox_stats(struct tierce__inbox *inbox, struct tierce__inbox_stats *out);

/* ---- for the server: as in struct tierce__keeper_ops ----------------------------------------- */

/* Whether a token is a ticket that may be used. */
bool tierce__inbox_admits(struct tierce__inbox *inbox, const char *token, size_t token_bytes);
TIERCE_MUSTUSE int tierce__inbox_make(struct tierce__inbox *inbox, struct tierce__keeper_room *room,
                                      const struct tierce_plugin_name *name,
                                      const struct tierce__keeper_range *range);
void tierce__inbox_keep(struct tierce__inbox *inbox, struct tierce__keeper_room *room);
void tierce__inbox_abandon(struct tierce__inbox *inbox, struct tierce__keeper_room *room);
/* The sender has sent all: true if the name is a ticket. */
bool tierce__inbox_finish(struct tierce__inbox *inbox, const struct tierce_plugin_name *name);
void tierce__inbox_gone(struct tierce__inbox *inbox, const struct tierce_plugin_name *token);

#endif
