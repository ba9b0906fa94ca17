/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "store/coded/coded_private.h"

/* Heads of coded objects: kept for the ranges that follow. The number of a stored object is never
 * used again, so a head cannot be that of a later object of the same key. */

static void free_head(struct tierce__coded_head *head)
{
    tierce__list_remove(&head->node);
    tierce__coded_parsed_fini(&head->parsed);
    tierce__free(head);
}

struct tierce__coded_head *tierce__coded_head_take(struct tierce__coded_tier *t,
                                                   const struct tierce__key *key, uint64_t stored)
{
    struct tierce__coded_head *found = NULL;
    tierce__lock_assert_held(&t->lock);
    TIERCE__LIST_FOR_EACH (it, &t->heads) {
        struct tierce__coded_head *head = TIERCE__CONTAINER_OF(it, struct tierce__coded_head, node);
        if (head->stored == stored && tierce__key_equal(&head->key, key)) {
            found = head;
            break;
        }
    }
    if (found == NULL) {
        found = tierce__calloc(1, sizeof(*found));
        if (found == NULL)
            return NULL;
        found->key = *key;
        found->stored = stored;
        t->head_count++;
    } else {
        tierce__list_remove(&found->node);
    }
    TIERCE_DASSERT(found->reference_count > 0 || t->head_count > 0);
    t->head_count -= found->reference_count == 0;
    found->reference_count++;
    tierce__list_push_back(&t->heads, &found->node);
    return found;
}

void tierce__coded_head_leave(struct tierce__coded_tier *t, struct tierce__coded_head *head)
{
    tierce__lock_assert_held(&t->lock);
    TIERCE_ASSERT(head->reference_count > 0);
    head->reference_count--;
    if (head->reference_count > 0)
        return;
    if (!head->ready) {
        free_head(head);
        return;
    }
    t->head_count++;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->heads) {
        struct tierce__coded_head *oldest =
            TIERCE__CONTAINER_OF(it, struct tierce__coded_head, node);
        if (t->head_count <= TIERCE__CODED_HEADS_MAX)
            break;
        if (oldest->reference_count > 0)
            continue;
        t->head_count--;
        free_head(oldest);
    }
}

void tierce__coded_heads_free(struct tierce__coded_tier *t)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->heads)
        free_head(TIERCE__CONTAINER_OF(it, struct tierce__coded_head, node));
}
