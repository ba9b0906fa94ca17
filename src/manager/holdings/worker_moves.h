/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_WORKER_MOVES_H
#define TIERCE_MANAGER_WORKER_MOVES_H

#include "manager/holdings/worker_commands.h"

/*
 * Results of the steps of a move to another worker (worker_commands.h): both workers are programs
 * of their own, so nothing of their results is used unchecked. Thread: any; nothing here allocates.
 */

/* Keeps those names, in place, that are of the chunk with their index, whose indexes ascend, and
 * whose chunks have bytes. Returns how many. */
size_t tierce__worker_move_check(struct tierce__worker_named *named, size_t count,
                                 const struct tierce__directory_key *keys, size_t key_count);

/* The keys of the chunks that were named in a WORKER_FETCH and have landed; indexes that do not
 * ascend, or were not named, are ignored. keys: room for order->count. Returns how many. */
size_t tierce__worker_move_landed(struct tierce__directory_key *keys,
                                  const struct tierce__worker_order *order, const int32_t *landed,
                                  size_t count);

#endif
