/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "store/coded/coded_private.h"

#include <errno.h>
#include <string.h>

/* Heads of coded objects: kept for the ranges that follow. The number of a stored object is never
 * used again, so a head cannot be that of a later object of the same key. */

static void free_head(struct tierce__coded_head *head)
{
    tierce__list_remove(&head->node);
    tierce__free(head->bytes);
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

int tierce__coded_head_fill(struct tierce__coded_head *head, const uint8_t *object,
                            uint64_t available, uint64_t *bytes)
{
    struct tierce__coded_info info;
    int rc = tierce__coded_parse(&info, object, available);
    if (rc == TIERCE_E_LIMIT && available >= TIERCE__CHUNK_FIXED) {
        uint64_t header = tierce__chunk_header_bytes(object);
        struct tierce__chunk_info chunk;
        uint32_t codec;
        *bytes = header;
        if (header <= available &&
            tierce__chunk_parse_coded(&chunk, &codec, object, available) == 0)
            *bytes = tierce__coded_head_bytes(&chunk);
        if (*bytes <= available)
            return TIERCE_E_FORMAT;
    }
    if (rc < 0)
        return rc;
    uint64_t header_bytes = info.chunk.extent.header_bytes;
    uint8_t *copy = tierce__alloc_aligned(64, info.head_bytes + header_bytes);
    if (copy == NULL)
        return TIERCE_E_FULL;
    memcpy(copy, object, info.head_bytes);
    tierce__free(head->bytes); /* of an object that another's header claimed to be */
    head->bytes = copy;
    head->raw_header = copy + info.head_bytes;
    tierce__coded_restore_header(head->raw_header, &info, copy);
    head->info = info;
    return 0;
}

void tierce__coded_heads_free(struct tierce__coded_tier *t)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->heads)
        free_head(TIERCE__CONTAINER_OF(it, struct tierce__coded_head, node));
}
