/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_PUSH_LENT_H
#define TIERCE_HANDOVER_PUSH_LENT_H

#include "engine/handover/handover_push.h"

/*
 * The functions of handover_push.h for a client of a node, which pushes. The push ends with the
 * client, or ten minutes after its last call, and with the node: a node that was restarted does not
 * know it.
 *
 * Thread: any. All block until the node has answered.
 */

struct tierce__lent_push;

/* Also TIERCE_E_UNSUPPORTED: the node is of an older version. */
TIERCE_MUSTUSE int tierce__lent_push_begin(struct tierce__lent_push **out, struct tierce_view *view,
                                           const struct tierce__push_to *to);
TIERCE_MUSTUSE int64_t tierce__lent_push_held(struct tierce__lent_push *push,
                                              struct tierce_view *view,
                                              const struct tierce_chain *chain, uint64_t to_block);
TIERCE_MUSTUSE int tierce__lent_push_watch(struct tierce__lent_push *push,
                                           struct tierce_store *store);
void tierce__lent_push_end(struct tierce__lent_push *push);
bool tierce__lent_push_is_over(struct tierce__lent_push *push, struct tierce__pushed *out);
void tierce__lent_push_destroy(struct tierce__lent_push *push);

#endif
