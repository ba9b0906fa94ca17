/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that a load reads from disk, or from coded memory, into a buffer in the memory of its
 * device, which decodes those that are coded. The reads of a chunk are requested at once, and its
 * first copy follows its last read: copies within the device are much faster than the disk.
 */
#include "engine/load/load_lease_private.h"

static bool may_be_direct(const struct tierce__own_lease *lease, size_t i)
{
    const struct tierce__lease_chunk *chunk = &lease->chunks[i];
    return lease->direct != NULL && !chunk->avoids_device &&
           lease->engine->levels[chunk->level].coded != NULL; /* the disk, or coded memory */
}

/* From now on the chunk is read into memory. */
static void avoid_device(struct tierce__own_lease *lease, size_t i)
{
    lease->chunks[i].avoids_device = true;
    tierce__lease_let_go(lease, i);
}

bool tierce__lease_join_direct(struct tierce__own_lease *lease, size_t i)
{
    if (!may_be_direct(lease, i))
        return false;
    tierce__lease_join(lease, i, lease->direct);
    if (lease->bufs[i] == NULL || !lease->bufs[i]->on_device)
        return lease->bufs[i] != NULL;
    struct tierce__fetch_waiter *waiter = tierce__lease_waiter(lease, i);
    for (uint32_t s = 0; s < tierce__lease_shape(lease, i)->segment_count; s++)
        tierce__fetch_ask(waiter, s);
    /* The tier answers at once for a chunk that it cannot read there, if it knows that. */
    bool lives = tierce__fetch_lives(waiter);
    if (!lives)
        avoid_device(lease, i);
    return lives;
}

bool tierce__lease_wait_direct(struct tierce__own_lease *lease, size_t i, uint32_t layer)
{
    struct tierce__fetch_waiter *waiter = tierce__lease_waiter(lease, i);
    bool is_here = true;
    TIERCE_DASSERT(lease->bufs[i]->on_device);
    for (uint32_t s = 0; is_here && s < tierce__lease_shape(lease, i)->segment_count; s++)
        is_here = tierce__fetch_wait(waiter, s);
    lease->chunks[i].was_direct = is_here;
    /* Copies of earlier layers may still use the buffer. */
    if (is_here || layer > lease->part.first_layer || tierce__fetch_lives(waiter))
        return is_here;
    avoid_device(lease, i);
    tierce__lease_join(lease, i, NULL);
    return lease->bufs[i] != NULL &&
           (tierce__lease_waiter(lease, i) == NULL || tierce__lease_wait(lease, i, layer));
}
