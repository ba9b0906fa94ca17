/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CLIENT_TRANSFER_H
#define TIERCE_ENGINE_CLIENT_TRANSFER_H

#include "engine/lender.h"

/*
 * Stores and loads of the table in client_lender.c, in the memory of a node's pool. If no node
 * answers, there is nothing to store, and nothing is lent. Begin of a store waits timeout.lookup
 * and timeout.store at most, begin of a load timeout.lookup.
 *
 * Errors: TIERCE_E_ARGUMENT, -ENOMEM. Thread: a store and a load belong to one at a time.
 */

int tierce__client_store_begin(struct tierce__lender_space *space, struct tierce_view *view,
                               const struct tierce_transfer_opts *opts);
int64_t tierce__client_store_end(struct tierce__lender_space *space, bool complete);

int tierce__client_load_begin(struct tierce__loan **out, struct tierce_view *view,
                              const struct tierce_transfer_opts *opts);

#endif
