/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CHUNK_ORDERS_H
#define TIERCE_ENGINE_CHUNK_ORDERS_H

#include "core/key/chunk_number.h"
#include "core/key/key_text.h"
#include "engine/view.h"

/*
 * An operator's commands to an engine that name chunks by their numbers in a directory
 * (core/key/chunk_number.h) and tiers by their places, the fastest first.
 *
 *     struct tierce__chunk_orders orders;
 *     tierce__chunk_orders_init(&orders, engine, &stops);
 *     tierce__chunk_orders_pin(&orders, &chunks, pin_ms, &outcome);
 *     tierce__chunk_orders_fini(&orders);
 *
 * Moves are for KV. Named values (objects.h) are left out: another value of the name may take their
 * place while they are copied, and the copy would bring the old one back.
 *
 * A command that names chunks first walks over all chunks of a tier, because no index has the
 * numbers. None of them delays a request for longer than that request's own work on the same tier.
 *
 * Thread: one at a time. Blocks: a move or a fetch for each chunk's read and write; a clear as
 * tierce_engine_clear. A command ends early, as failed, when *stops is set.
 */

struct tierce__chunk_orders {
    struct tierce_engine *engine;
    struct tierce_view pins;   /* of no namespace: the owner of these pins among the sessions */
    const _Atomic bool *stops; /* relaxed: a flag alone */
    /* Called between two chunks of a recode, and while it waits; no lock is held. It may carry out
     * orders that end soon: health, pin, unpin. NULL: nothing. */
    void (*between)(void *arg);
    void *arg;
};

struct tierce__chunk_order_outcome {
    bool is_done;
    uint64_t chunks,
        left_out;      /* that were pinned, moved, ...; those that were named and were not */
    char message[512]; /* why not all of it was done */
};

/* [borrow] the engine has tiers of its own, and stops last until fini. */
void tierce__chunk_orders_init(struct tierce__chunk_orders *orders, struct tierce_engine *engine,
                               const _Atomic bool *stops);
/* Ends all pins. */
void tierce__chunk_orders_fini(struct tierce__chunk_orders *orders);

struct tierce__chunk_numbers {
    const struct tierce__chunk_number *numbers;
    size_t count;
};

/* The mode, and the state of each tier, as the outcome's message. */
void tierce__chunk_orders_health(struct tierce__chunk_orders *orders,
                                 struct tierce__chunk_order_outcome *out);

/* Chunks in memory are pinned for pin_ms (0: timeout.pin), within memory.pins. The time of a
 * chunk that is already pinned restarts. */
void tierce__chunk_orders_pin(struct tierce__chunk_orders *orders,
                              const struct tierce__chunk_numbers *chunks, uint64_t pin_ms,
                              struct tierce__chunk_order_outcome *out);
/* Ends such pins; all of them if no chunk is named. */
void tierce__chunk_orders_unpin(struct tierce__chunk_orders *orders,
                                const struct tierce__chunk_numbers *chunks,
                                struct tierce__chunk_order_outcome *out);

struct tierce__chunk_move {
    size_t from, to; /* numbers of tiers (own_tiers.h): one is memory, the other one a slower tier
                        of this engine */
    bool keeps;      /* a copy */
    uint64_t deadline_ns;
};

/* Copies the chunks that `from` holds, in their order, and then removes from it, the last one
 * first, those that `to` holds. */
void tierce__chunk_orders_move(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               const struct tierce__chunk_move *move,
                               struct tierce__chunk_order_outcome *out);

/* The steps of a move to another engine, each a command of its own. A number cannot be turned into
 * the chunk's key, so the engine that holds the chunks names them. */
struct tierce__chunk_named {
    uint32_t index; /* among the chunks of the move */
    bool has_parent;
    uint64_t bytes;
    char name[TIERCE__KEY_TEXT_BYTES]; /* as in core/key/key_text.h */
};

/* Sets named[0 .. *named_count) for the chunks that the engine's own tiers hold, in their order.
 * named: room for all of them. */
void tierce__chunk_orders_name(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               struct tierce__chunk_named *named, size_t *named_count,
                               struct tierce__chunk_order_outcome *out);

struct tierce__chunk_fetch {
    const struct tierce__chunk_named *named; /* [count] */
    size_t count;
    uint64_t deadline_ns; /* the last read may take timeout.load longer */
};

/* Reads the chunks that the engine's own tiers lack from its peers (store/remote/peers) to memory,
 * the first one first, and verifies each. landed[0 .. *landed_count): the indexes of those that its
 * own tiers hold in the end. landed: room for all of them. */
void tierce__chunk_orders_fetch(struct tierce__chunk_orders *orders,
                                const struct tierce__chunk_fetch *fetch, int32_t *landed,
                                size_t *landed_count, struct tierce__chunk_order_outcome *out);

/* Removes the chunks from the engine's own tiers, the last one first. */
void tierce__chunk_orders_drop(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               struct tierce__chunk_order_outcome *out);

/* Encodes raw chunks on the engine's disk, or decodes coded ones, whatever disk.codec is: the named
 * ones, or all if none is named. At most 256 MiB of raw chunks a second. A chunk that is read
 * meanwhile, by a load or a peer, is served throughout. The message has the bytes before and after,
 * and how many chunks stayed as they were, and why. */
void tierce__chunk_orders_recode(struct tierce__chunk_orders *orders,
                                 const struct tierce__chunk_numbers *chunks, bool codes,
                                 uint64_t deadline_ns, struct tierce__chunk_order_outcome *out);

/* `tiers`: a bit for each; 0: all but remote stores. */
void tierce__chunk_orders_clear(struct tierce__chunk_orders *orders, uint32_t tiers,
                                struct tierce__chunk_order_outcome *out);

#endif
