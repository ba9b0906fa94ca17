/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_NATIVE_CLIENTS_H
#define TIERCE_TESTS_NATIVE_CLIENTS_H

#include "node/native/native_private.h"
#include "node/node_private.h"

/* The client that has been connected to the node's native socket for the longest time. The caller
 * knows that there is one, and that it stays. */
static inline struct tierce__native_client *native_first_client(const struct tierce__node *node)
{
    struct tierce__native *native = node->native;
    tierce__lock_take(&native->lock);
    struct tierce__list *first = native->clients.next;
    TIERCE_ASSERT(first != &native->clients);
    tierce__lock_drop(&native->lock);
    return TIERCE__CONTAINER_OF(first, struct tierce__native_client, node);
}

#endif
