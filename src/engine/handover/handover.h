/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_H
#define TIERCE_HANDOVER_H

#include <tierce/engine.h>

/*
 * Prefill and decode by two engines: one engine offers the chunks of a prompt to another one, which
 * reads them from its memory.
 *
 *     the prefiller:                                  the decoder:
 *     tierce__handover_start(&handover, engine, ...)
 *     tierce__handover_offer(handover, view, ...)     tierce__handover_pull(view, chain, ...)
 *                                                     tierce_lookup, tierce_load_begin
 *
 * An engine whose layers are several groups has several views for one prompt:
 *
 *     tierce__handover_expect(handover, token, ...)   tierce__source_begin(&source, engine, ...)
 *     tierce__handover_pin(handover, view, ...)       tierce__source_meet(source, &tokens, ...)
 *     tierce__handover_pin(handover, other, ...)      tierce__source_read(source, view, ...)
 *     tierce__handover_open(handover, token, tokens)  tierce__source_read(source, other, ...)
 *                                                     tierce__source_end(source, &pulled)
 *
 * The transfer server (store/transfer) has the space of the peer tier (engine/peer/peer_keeper.h),
 * with the same bounds for reads from disk. A client must greet with the token of an offer that is
 * open: it then reads any chunk of the engine whose name it knows. It cannot write. Removing the
 * name that is the token ends the offer.
 *
 * An offer pins its chunks until it ends: its reader has ended it, or its time is over. The time
 * restarts while chunks are requested with its token, up to an hour after it began. memory.pins
 * bounds the pins. A chunk that is not pinned may leave memory; the reader then computes it, or
 * the disk has it.
 *
 * The reader verifies each chunk in full (header and cells) before it is published in memory.
 *
 * With an inbox (handover_inbox.h), the decoder's engine also accepts chunks that the prefiller
 * writes to it while it computes them (handover_push.h).
 *
 * A client of a node (node.socket) has the node do all of this, with the node's certificates: its
 * server and its inbox end with the client.
 *
 * Thread: any, except that stop must be the last call.
 */

struct tierce__handover;
struct tierce__inbox;
struct tierce__inbox_opts;
struct tierce__keeper;

#define TIERCE__HANDOVER_TOKEN_MAX  64u
#define TIERCE__HANDOVER_OFFERS_MAX 4096u
#define TIERCE__HANDOVER_VIEWS_MAX  32u /* of an offer */
#define TIERCE__HANDOVER_WHY_BYTES  256u
#define TIERCE__TICKET_BYTES        33u /* with NUL */

/* Listens on `host`, `port` (0: a free one); with TLS if the engine has certificates
 * (engine/peer/peer_tls.h). Errors: negative errno (the port), TIERCE_E_CONFIG (the certificate),
 * TIERCE_E_UNSUPPORTED, TIERCE_E_ARGUMENT, -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__handover_start(struct tierce__handover **out,
                                          struct tierce_engine *engine, const char *host,
                                          uint16_t port, char why[TIERCE__HANDOVER_WHY_BYTES]);
uint16_t tierce__handover_port(const struct tierce__handover *handover);
bool tierce__handover_uses_tls(const struct tierce__handover *handover);
/* The keeper of its server; NULL if a node serves. [borrow until stop] */
struct tierce__keeper *tierce__handover_keeper(struct tierce__handover *handover);
/* Ends the server and all offers; before the engine is closed. NULL is accepted. Blocks for up to a
 * second for replies in transit. */
void tierce__handover_stop(struct tierce__handover *handover);

/*
 * From now on, the engine has an inbox. Once. Blocks while names of hosts are resolved. Errors, in
 * words in `why`: TIERCE_E_ARGUMENT (no host has an address, or there is an inbox),
 * TIERCE_E_UNSUPPORTED (the node is of an older version), TIERCE_E_DOWN, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__handover_accept(struct tierce__handover *handover,
                                           const struct tierce__inbox_opts *opts,
                                           char why[TIERCE__HANDOVER_WHY_BYTES]);
/* Tickets of the inbox, as tierce__inbox_issue. Also: TIERCE_E_CLOSED (there is no inbox),
 * TIERCE_E_DOWN, TIERCE_E_CONFIG (as of tierce__handover_expect). */
TIERCE_MUSTUSE int tierce__handover_issue(struct tierce__handover *handover,
                                          char (*tickets)[TIERCE__TICKET_BYTES], size_t count,
                                          uint32_t ms, const char *holder);
/* NULL: there is none, or a node has it. [borrow until stop] */
struct tierce__inbox *tierce__handover_inbox(struct tierce__handover *handover);

/* Begins an offer of `ms` (at most TIERCE_PIN_MS_MAX) that is not open yet: a read of it waits
 * until it is opened or withdrawn, or until the read's deadline. [in] token: 16 to 64 characters
 * that cannot be guessed. Errors: TIERCE_E_ARGUMENT (the token), TIERCE_E_CONFIG (the node was
 * restarted with, or without, TLS: logged), TIERCE_E_LIMIT (there are too many offers), -ENOMEM. */
TIERCE_MUSTUSE int tierce__handover_expect(struct tierce__handover *handover, const char *token,
                                           uint32_t ms);
/* Pins what chain[0, to_block) requires of a view until the offer ends, once for each view. Returns
 * how many blocks can be restored from memory. Errors: TIERCE_E_MISS (there is no such offer),
 * TIERCE_E_LIMIT (too many views), those of tierce_lookup. */
TIERCE_MUSTUSE int64_t tierce__handover_pin(struct tierce__handover *handover,
                                            struct tierce_view *view,
                                            const struct tierce_chain *chain, uint64_t to_block,
                                            const char *token);
/* Opens it. tokens: how many tokens of the prompt it restores. Errors: TIERCE_E_MISS (it has
 * ended). */
TIERCE_MUSTUSE int tierce__handover_open(struct tierce__handover *handover, const char *token,
                                         uint64_t tokens);
/* Ends it. Has no effect if there is none. */
void tierce__handover_withdraw(struct tierce__handover *handover, const char *token);
/* The three of them for one view. Returns the leading blocks that are pinned. */
TIERCE_MUSTUSE int64_t tierce__handover_offer(struct tierce__handover *handover,
                                              struct tierce_view *view,
                                              const struct tierce_chain *chain, uint64_t to_block,
                                              const char *token, uint32_t ms);
/* Offers that have not ended. */
size_t tierce__handover_offers(struct tierce__handover *handover);

struct tierce__handover_from {
    const char *host; /* of the prefiller */
    uint16_t port;
    bool uses_tls; /* as its offer says; this engine must, too */
    const char *token;
    uint64_t session;    /* whose pins the chunks become */
    uint32_t wait_ms;    /* how long to wait for an offer that is not open yet; 0: timeout_ms */
    uint32_t timeout_ms; /* how long to wait while nothing arrives; see below */
    uint32_t total_ms;   /* of all calls together; 0: an hour */
    /* A read that takes longer requests nothing more, and ends with -EAGAIN after the chunks that
     * are on their way: the caller reads the rest from `blocks` on. 0: a read goes on. */
    uint32_t piece_ms;
    /* Before anything is read: what the prefiller pushes with this ticket is waited for. NULL: it
     * pushes nothing. The ticket is used up afterwards. A node has the inbox of its client. */
    struct tierce__inbox *inbox;
    const char *ticket;
};

struct tierce__handover_pulled {
    uint64_t blocks;       /* leading blocks that memory holds, pinned for the session */
    uint64_t bytes;        /* that were read from the prefiller */
    uint64_t pushed_bytes; /* that it has pushed */
    int status;            /* why it ended before the last block; 0: it did not */
    int push_status;       /* with a ticket: tierce__inbox_await; else 0 */
    char why[TIERCE__HANDOVER_WHY_BYTES];
};

/* ---- reading an offer ------------------------------------------------------------------------ */

struct tierce__source;

/*
 * Reads the offer for views of this engine. Waits for what is pushed with the ticket, and connects
 * when it must.
 *
 * `timeout_ms` bounds the silence of the prefiller, not the time of a large prompt: the half of it
 * for what is pushed, during which a range of at most a MiB must arrive; then all of it for a MiB
 * on each connection. A push that was silent for its half leaves the other half for the reads, so a
 * prefiller that is gone costs timeout_ms. [borrow until end] from, with its texts. Errors:
 * TIERCE_E_UNSUPPORTED, TIERCE_E_ARGUMENT, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__source_begin(struct tierce__source **out, struct tierce_engine *engine,
                                        const struct tierce__handover_from *from);

/* Waits until the offer is open. *tokens = how many tokens it restores. Errors, with out->status
 * and `why`: TIERCE_E_REFUSED (there is no such offer), TIERCE_E_MISS (it was withdrawn),
 * TIERCE_E_DEADLINE, TIERCE_E_DOWN. */
TIERCE_MUSTUSE int tierce__source_meet(struct tierce__source *source, uint64_t *tokens,
                                       struct tierce__handover_pulled *out);

/*
 * Brings the chunks of chain[from_block, to_block) to memory, in the order of the prompt: those
 * that memory lacks are read from the prefiller, when the offer is open. Ends at the first one that
 * cannot be had: TIERCE_E_MISS (the prefiller does not have it), TIERCE_E_DEADLINE, TIERCE_E_DOWN,
 * TIERCE_E_REFUSED (there is no such offer, or one side alone uses TLS), TIERCE_E_FULL (no memory
 * here), or why it is wrong. Blocks. Errors: TIERCE_E_ARGUMENT, -ENOMEM; *out is set all the same.
 */
TIERCE_MUSTUSE int tierce__source_read(struct tierce__source *source, struct tierce_view *view,
                                       const struct tierce_chain *chain, uint64_t from_block,
                                       uint64_t to_block, struct tierce__handover_pulled *out);

/* A prefiller with a different tensor-parallel size (TP). */
struct tierce__handover_other {
    struct tierce_view *view; /* of this engine: all layers of the prefiller's namespace */
    const char *heads;        /* how its chunks become those of this engine: core/chunk/heads.h */
};

/*
 * Makes the source read chunks of a prefiller with a different TP; NULL: with the same TP. Each
 * chunk is verified under the prefiller's namespace, and converted in this engine's memory. A read
 * then also ends with TIERCE_E_UNSUPPORTED (the chunks do not fit, or this engine's node is of an
 * older version); its error is also TIERCE_E_ARGUMENT if `heads` is invalid. [borrow until the
 * source's end, or the next call]
 */
void tierce__source_other(struct tierce__source *source,
                          const struct tierce__handover_other *other);

/* A read in progress ends after the chunks that are on their way, with TIERCE_E_CANCELLED, and so
 * do later ones. Thread: any, until the end begins. */
void tierce__source_give_up(struct tierce__source *source);
/* The source's end does not end the offer: another one reads it. */
void tierce__source_keep(struct tierce__source *source);
/* Ends the offer, unless the prefiller cannot be reached, and its ticket, and frees the source.
 * Sets pushed_bytes and push_status of *out. NULL is accepted. Blocks for up to two seconds. */
void tierce__source_end(struct tierce__source *source, struct tierce__handover_pulled *out);

/* All of it for one view, and notes the outcome (below). */
TIERCE_MUSTUSE int tierce__handover_pull(struct tierce_view *view, const struct tierce_chain *chain,
                                         uint64_t from_block, uint64_t to_block,
                                         const struct tierce__handover_from *from,
                                         struct tierce__handover_pulled *out);

/* Records the outcome of a hand-over for `tierce why --request`; also of one that was not begun:
 * host, port and session of `from`, and `why` of `pulled`. */
void tierce__handover_note(struct tierce_view *view, const struct tierce__handover_from *from,
                           const struct tierce__handover_pulled *pulled);

#endif
