/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/tails.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "core/chunk/header.h"
#include "engine/load/sibling.h"

bool tierce__tail_is_held(struct tierce_view *view, const struct tierce_chain *chain,
                          const struct tierce__keys *keys)
{
    struct tierce__sibling_want want;
    struct tierce__sibling_hit hit;
    TIERCE_DASSERT(keys->tail_blocks > 0 && keys->full_count < keys->count);
    tierce__sibling_aim(&want, view, chain, keys->full_count, 0, keys->block_count);
    want.levels =
        1u; /* memory only: other tiers' headers must be read, and a store does not block */
    tierce__sibling_find(view, &hit, &want);
    tierce__buf_release(hit.buf);
    return hit.blocks >= keys->tail_blocks;
}

bool tierce__tails_may_end(const struct tierce_engine *engine, size_t level,
                           const struct tierce__storage_chunk *chunk)
{
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX);
    return engine->settings.siblings && chunk->block_count > 1 &&
           (engine->levels[level].tier->ops->caps & TIERCE__TIER_KEEPS) == 0;
}

/* Makes `tail` the key of the tail with so many of the chunk's blocks. */
static void set_tail(struct tierce__key *tail, const uint8_t *hashes, uint32_t blocks)
{
    TIERCE_DASSERT(blocks > 0);
    memcpy(tail->hash, hashes + (size_t)(blocks - 1) * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
}

static void go_on(struct tierce__tail_search *s);

static void answered(struct tierce__store_req *req)
{
    struct tierce__tail_search *s = req->arg;
    TIERCE_DASSERT(req == s->req && req->op == TIERCE__STORE_LOOKUP);
    /* acq_rel: the later of the two continues, and sees the writes of the other. */
    if (atomic_exchange_explicit(&s->is_answered, true, memory_order_acq_rel))
        go_on(s);
}

/* Searches for the next tail. Returns false if there is none or the level is out of service. */
static bool ask(struct tierce__tail_search *s)
{
    if (++s->blocks >= s->block_count)
        return false;
    TIERCE_DASSERT(s->level > 0 && s->level < TIERCE__TIERS_MAX);
    set_tail(&s->tail, s->hashes, s->blocks);
    *s->req = (struct tierce__store_req){.op = TIERCE__STORE_LOOKUP,
                                         .deadline_ns =
                                             tierce__deadline_in_ms(s->engine->settings.load_ms),
                                         .done = answered,
                                         .arg = s,
                                         .keys = &s->tail,
                                         .key_count = 1,
                                         .recall = TIERCE__RECALL_OLD};
    atomic_store_explicit(&s->is_answered, false, memory_order_relaxed);
    return tierce__storage_submit(s->engine, s->level, s->req);
}

static void end(struct tierce__tail_search *s)
{
    tierce__buf_release(s->held);
    s->over(s);
}

/* Continues with the next tail until an answer is not immediate. */
static void go_on(struct tierce__tail_search *s)
{
    do {
        TIERCE_DASSERT(atomic_load_explicit(&s->is_answered, memory_order_relaxed));
        tierce__storage_note(s->engine, s->level, s->req);
        TIERCE_DASSERT(s->req->found <= 1);
        if (s->req->found == 1)
            tierce__storage_drop(s->engine, s->level, &s->tail, TIERCE__LEFT_SUPERSEDED);
        if (!ask(s)) {
            end(s);
            return;
        }
    } while (atomic_exchange_explicit(&s->is_answered, true, memory_order_acq_rel));
}

/* Returns the hashes of a sealed chunk's blocks, and how many there are; or NULL. */
static const uint8_t *read_hashes(uint32_t *count, const struct tierce__buf *buf,
                                  const struct tierce__storage_chunk *chunk)
{
    struct tierce__chunk_info got;
    TIERCE_DASSERT(chunk->object_bytes <= buf->bytes);
    if (tierce__chunk_parse(&got, buf->data, chunk->object_bytes) < 0)
        return NULL;
    *count = got.geometry.block_count;
    return tierce__chunk_block_hashes(buf->data, got.geometry.layer_count);
}

void tierce__tails_search(struct tierce__tail_search *s, const struct tierce__storage_chunk *chunk)
{
    TIERCE_DASSERT(tierce__tails_may_end(s->engine, s->level, chunk));
    TIERCE_DASSERT(s->level > 0 && chunk->object_bytes <= s->held->bytes);
    s->hashes = read_hashes(&s->block_count, s->held, chunk);
    s->blocks = 0;
    s->tail = chunk->key;
    if (s->hashes == NULL || !ask(s))
        end(s);
    else if (atomic_exchange_explicit(&s->is_answered, true, memory_order_acq_rel))
        go_on(s);
}

void tierce__tails_end(struct tierce_engine *engine, const struct tierce__storage_chunk *chunk,
                       const struct tierce__buf *buf)
{
    uint32_t block_count;
    if (!tierce__tails_may_end(engine, 0, chunk))
        return;
    const uint8_t *hashes = read_hashes(&block_count, buf, chunk);
    struct tierce__key tail = chunk->key;
    for (uint32_t blocks = 1; hashes != NULL && blocks < block_count; blocks++) {
        set_tail(&tail, hashes, blocks);
        if (tierce__storage_find(engine, &tail, 1, 1, NULL) == 1)
            tierce__storage_drop(engine, 0, &tail, TIERCE__LEFT_SUPERSEDED);
    }
}
