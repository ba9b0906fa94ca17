/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CLIENT_TRANSFER_H
#define TIERCE_ENGINE_CLIENT_TRANSFER_H

#include "engine/load/loan.h"
#include "engine/store/reserve.h"

/*
 * The counterpart of reserve.h and loan.h for the tiers of a node, which lends memory of its pool
 * for a store or a load. If no node answers, there is nothing to store, and nothing is lent.
 *
 * Thread: a store and a load belong to one thread at a time.
 */

struct tierce__client_store;

/* *out is NULL where there is nothing to store. Errors: TIERCE_E_ARGUMENT, -ENOMEM. Waits
 * timeout.lookup and timeout.store at most. */
TIERCE_MUSTUSE int tierce__client_store_begin(struct tierce__client_store **out,
                                              struct tierce_view *view,
                                              const struct tierce_transfer_opts *opts);

/* [borrow until end] */
const struct tierce__room *tierce__client_store_rooms(const struct tierce__client_store *store,
                                                      size_t *count);

/* Returns the blocks published. */
int64_t tierce__client_store_end(struct tierce__client_store *store, bool complete);

struct tierce__client_load;

/* Errors, *out untouched: TIERCE_E_ARGUMENT, -ENOMEM. Waits timeout.lookup at most. */
TIERCE_MUSTUSE int tierce__client_load_begin(struct tierce__client_load **out,
                                             struct tierce_view *view,
                                             const struct tierce_transfer_opts *opts);

/* As tierce__loan_lent and _hashes. */
const struct tierce__lent *tierce__client_load_lent(const struct tierce__client_load *load,
                                                    size_t *count);
const uint8_t *tierce__client_load_hashes(const struct tierce__client_load *load, size_t *count,
                                          const uint8_t **root);

/* Ends it: nothing is lent any more. */
void tierce__client_load_give_back(struct tierce__client_load *load);

/* Waits until a layer of the view's part is in memory for all chunks that have not failed, or until
 * the deadline. */
void tierce__client_load_ahead(struct tierce__client_load *load, uint32_t layer);

/* Whether the node may have reused the lent memory meanwhile. False: all bytes read before this
 * call are those that were lent. */
bool tierce__client_load_is_over(const struct tierce__client_load *load);

/* Whether it has of chunk i. */
bool tierce__client_load_is_here(const struct tierce__client_load *load, size_t i);

/* As tierce__loan_is_too_large and _take. Chunks that were taken are returned by the next take, or
 * by the end. */
bool tierce__client_load_is_too_large(const struct tierce__client_load *load);
TIERCE_MUSTUSE bool tierce__client_load_take(struct tierce__client_load *load, size_t i);

/* Reports that the lent bytes are not the wanted chunk, or that a cell does not verify. */
void tierce__client_load_refuse(struct tierce__client_load *load, size_t i);
void tierce__client_load_spoil(struct tierce__client_load *load, size_t i);

/* blocks[i] were loaded of chunk i; NULL: it is aborted. Counts them. */
void tierce__client_load_end(struct tierce__client_load *load, const uint32_t *blocks);

#endif
