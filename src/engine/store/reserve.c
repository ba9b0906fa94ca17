/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reserve: find the missing chunks, reserve a buffer for each, and at the end seal it, publish it
 * in memory, and hand the same buffer to every slower tier.
 *
 * A chunk that another request is storing is left to that request (storing.h); its successors are
 * published after it.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/view.h"
#include "engine/own_tiers.h"
#include "engine/observe/operate.h"
#include "engine/node_client/shared.h"
#include "engine/store/reserve.h"
#include "engine/store/store_watch.h"
#include "engine/store/tails.h"
#include "engine/why/requests.h"
#include "engine/why/why.h"

#define FILLED_WORDS (TIERCE_LAYERS_MAX / 64u)

/* One chunk that is being stored. */
struct reserve_chunk {
    struct tierce__storage_chunk record;
    struct tierce__claim claim;
    struct tierce__buf *buf;
    size_t index; /* in the chain */
    uint64_t payload_bytes;
    uint64_t header_bytes;
    bool tail;
    bool held;                /* held by a local slower tier: stored in memory only */
    bool is_promised;         /* the slower tiers have promised room for it */
    bool has_other;           /* between the previous chunk of this list and this one is a chunk */
    struct tierce__key other; /* that another request is storing: the last of these */
};

struct tierce__reservation {
    struct tierce_engine *engine;
    struct tierce_view *view;            /* until begin has returned */
    struct tierce__room_wait *room_wait; /* or NULL; until begin has returned */
    uint64_t session;
    uint32_t counted_tokens; /* of a block, for the record of the request; 0 in groups that it does
                                not count */
    uint32_t levels;         /* that keep the chunks: a bit for each */
    uint32_t local;          /* levels except remote stores */
    uint64_t era;            /* operate.h */
    bool given_up;
    bool ends;       /* the last chunk is the last of the prompt so far */
    uint8_t hint;    /* of the session */
    bool is_refused; /* the memory's policy has refused the last chunk */
    size_t first;    /* chunk that may be stored; the earlier ones count as held */
    size_t count;
    struct reserve_chunk *chunks;
    struct tierce__room *rooms; /* [count] */
    size_t promised; /* from here on, chunks that are not in memory count as missing, even if slower
                        tiers have them */
    size_t shared;   /* chunks that others are storing */
    struct tierce__buf **leases;     /* [keys.count] of memory alone, while it is reserved */
    struct tierce__shape tail_shape; /* while memory is reserved */
    struct tierce__keys keys;        /* of the whole prefix, touched at the end */
    struct tierce__line line;        /* for the access log */

    struct tierce__writes *writes;               /* to slower tiers */
    _Atomic(struct tierce__store_watch *) watch; /* NULL: none. Sequentially consistent, as filled:
                                                    reserve_filled writes it and then reads watch,
                                                    and a watcher the other way round */
    _Atomic uint64_t filled[FILLED_WORDS];       /* a bit for each layer */

    /* From end on. */
    struct tierce__parked parked;
    size_t published; /* chunks */
    int64_t blocks;   /* of these */
};

static const struct tierce__shape *shape_of(const struct tierce__reservation *r,
                                            const struct reserve_chunk *chunk)
{
    TIERCE_DASSERT(!chunk->tail || r->tail_shape.geometry.block_count == r->keys.tail_blocks);
    return chunk->tail ? &r->tail_shape : &r->view->full;
}

static bool is_tail(const struct tierce__reservation *r, size_t index)
{
    TIERCE_DASSERT(index < r->keys.count);
    return index >= r->keys.full_count;
}

/* The number of leading keys that local tiers hold. A store must not wait for a network, so remote
 * stores are not queried; each write to one checks first (store/remote/remote_write.c). */
static size_t search(const struct tierce__reservation *r, uint32_t levels,
                     const struct tierce__key *keys, size_t count)
{
    TIERCE_DASSERT((levels & ~r->levels) == 0);
    struct tierce__unasked unasked;
    return tierce__storage_search(r->engine, levels & r->local, keys, count, NULL, &unasked);
}

/* The tiers in which chunk `index` counts as stored. */
static uint32_t sparing(const struct tierce__reservation *r, size_t index)
{
    TIERCE_DASSERT((r->levels & 1u) != 0 || r->promised == SIZE_MAX);
    return index < r->promised ? r->levels : r->levels & 1u;
}

/*
 * With memory alone, a chunk must not push out its own prefix, because then neither could be found;
 * nor chunks held after a gap that is being filled. The leases end when memory has been reserved.
 * With a slower tier below, the prefix stays reachable there.
 */
static void lease_held(const struct tierce__reservation *r)
{
    TIERCE_DASSERT(r->leases == NULL || r->levels == 1);
    for (size_t i = r->first; r->leases != NULL && i < r->keys.count; i++)
        r->leases[i] = tierce__storage_lease(r->engine, &r->keys.keys[i]);
}

static void end_promise(const struct tierce__reservation *r, struct reserve_chunk *chunk)
{
    if (chunk->is_promised)
        tierce__storage_end_promise(r->engine, r->levels, chunk->record.object_bytes);
    chunk->is_promised = false;
}

static struct tierce__policy_origin origin_of(const struct tierce__reservation *r, size_t index)
{
    return (struct tierce__policy_origin){.ends = r->ends && index + 1 == r->keys.count,
                                          .hint = r->hint};
}

/* Memory must have a chunk until the slower tiers have it. A store that waits for room is for
 * callers that need the chunk in memory. Reads by other engines are no uses, so the policy cannot
 * learn that a prefiller's prompts are read. */
static bool may_refuse(const struct tierce__reservation *r, const struct reserve_chunk *chunk)
{
    return r->room_wait == NULL && (r->levels == 1 || chunk->held) &&
           atomic_load_explicit(&r->engine->keepers, memory_order_relaxed) == 0;
}

/* Memory for a chunk. A patient store also requires room in the queues of the slower tiers: memory
 * would evict a chunk that they have dropped. */
static struct tierce__buf *take_room(struct tierce__reservation *r, struct reserve_chunk *chunk,
                                     const struct tierce__buf *before)
{
    chunk->is_promised = false;
    if (r->room_wait != NULL && !chunk->held) {
        if (!tierce__storage_promise(r->engine, r->levels, chunk->record.object_bytes))
            return NULL;
        chunk->is_promised = true;
    }
    bool *refused = may_refuse(r, chunk) ? &r->is_refused : NULL;
    if (refused == NULL)
        r->is_refused = false; /* a chunk before was */
    struct tierce__buf *buf =
        tierce__storage_reserve_worthy(r->engine, &chunk->record, before, refused);
    if (buf == NULL)
        end_promise(r, chunk);
    TIERCE_DASSERT(buf != NULL || !chunk->is_promised);
    return buf;
}

/* Gives chunk `index` a buffer with its header; false if no memory is available. */
static bool reserve(struct tierce__reservation *r, const struct tierce_chain *chain, size_t index)
{
    TIERCE_DASSERT(index < r->keys.count && r->count < r->keys.count);
    struct reserve_chunk *chunk = &r->chunks[r->count];
    chunk->tail = is_tail(r, index);
    chunk->index = index;
    const struct tierce__shape *shape = shape_of(r, chunk);
    const uint8_t *hashes = tierce_chain_hash(chain, 0);
    tierce__view_describe(&chunk->record, r->view, &r->keys, shape, index, hashes);
    chunk->record.origin = origin_of(r, index);
    chunk->payload_bytes = shape->extent.payload_bytes;
    chunk->header_bytes = shape->extent.header_bytes;
    const struct reserve_chunk *last = r->count > 0 ? chunk - 1 : NULL;
    TIERCE_DASSERT(last == NULL || last->index < index);
    bool follows = last != NULL && last->index + 1 == index;
    chunk->buf = take_room(r, chunk, follows ? last->buf : NULL);
    if (chunk->buf == NULL)
        return false;
    TIERCE_DASSERT(chunk->buf->bytes >= chunk->record.object_bytes);
    TIERCE_DASSERT(chunk->header_bytes + chunk->payload_bytes <= chunk->record.object_bytes);
    struct tierce__chunk_info info;
    tierce__view_chunk_info(&info, r->view, shape, index, hashes, tierce_chain_root_hash(chain));
    info.created_s = tierce__wall_s();
    tierce__chunk_begin(chunk->buf->data, &info,
                        hashes + index * r->view->chunk_blocks * TIERCE_HASH_BYTES);
    r->count++;
    return true;
}

/* Counts and notes the chunks from `index` on as not stored. */
static void skip(struct tierce__reservation *r, size_t index, int status)
{
    TIERCE_DASSERT(index <= r->keys.count && status < 0);
    tierce__count(r->engine, TIERCE__STAT_stores_skipped, (int64_t)(r->keys.count - index));
    for (size_t i = index; i < r->keys.count; i++)
        tierce__why_refused(r->engine, 0, &r->keys.keys[i], status);
}

static void end_claims(struct tierce__reservation *r, struct tierce__list *ready)
{
    TIERCE_DASSERT(r->count <= r->keys.count);
    for (size_t i = 0; i < r->count; i++)
        tierce__claim_end(&r->engine->storing, &r->chunks[i].claim, ready);
}

static void run_ready(struct tierce__list *ready);

/* The policy learns that the missing chunks from `index` on were used, which follow a refused one.
 */
static void refuse_rest(struct tierce__reservation *r, const struct tierce_chain *chain,
                        size_t index)
{
    struct tierce__storage_chunk record;
    for (; index < r->keys.count; index++) {
        bool tail = is_tail(r, index), refused = true;
        if (search(r, r->levels, &r->keys.keys[index], 1) == 1)
            continue;
        tierce__view_describe(&record, r->view, &r->keys, tail ? &r->tail_shape : &r->view->full,
                              index, tierce_chain_hash(chain, 0));
        record.origin = origin_of(r, index);
        struct tierce__buf *none =
            tierce__storage_reserve_worthy(r->engine, &record, NULL, &refused);
        TIERCE_ASSERT(none == NULL);
    }
}

/*
 * Claims and reserves every chunk from `held` on that no local tier holds and no other request is
 * storing, up to the first one without memory: its successors would be a suffix without its prefix.
 * Chunks that memory refuses and a slower tier has are passed over.
 * Returns the index of that chunk; keys.count if there is none.
 */
static size_t reserve_missing(struct tierce__reservation *r, const struct tierce_chain *chain,
                              size_t held)
{
    const struct tierce__key *other = NULL;
    size_t i = held, shared = 0;
    TIERCE_DASSERT(held <= r->keys.count);
    for (; i < r->keys.count; i++) {
        TIERCE_DASSERT(r->count + shared <= i - held);
        struct reserve_chunk *chunk = &r->chunks[r->count];
        const struct tierce__key *key = &r->keys.keys[i];
        struct tierce__list ready;
        tierce__list_init(&ready);
        if (!tierce__claim_take(&r->engine->storing, &chunk->claim, key)) {
            other = key;
            shared++;
            continue;
        }
        /* A chunk whose prefix was evicted and is stored again, or a chunk that has just been
         * stored. */
        bool island = search(r, sparing(r, i), key, 1) == 1 ||
                      (is_tail(r, i) && (r->levels & 1u) != 0 &&
                       tierce__tail_is_held(r->view, chain, &r->keys));
        chunk->held = !island && search(r, r->levels & ~sparing(r, i), key, 1) == 1;
        chunk->has_other = other != NULL;
        if (other != NULL)
            chunk->other = *other;
        if (!island && reserve(r, chain, i)) {
            other = NULL;
            continue;
        }
        tierce__claim_end(&r->engine->storing, &chunk->claim, &ready);
        run_ready(&ready);
        /* A refused chunk that a slower tier has is still a prefix of its successors. */
        if (!island && !(r->is_refused && chunk->held))
            break;
    }
    TIERCE_DASSERT(r->count + shared <= r->keys.count - held);
    if (r->is_refused)
        refuse_rest(r, chain, i + 1);
    r->shared = shared;
    return i;
}

/* Releases the reserved rooms. True: other stores could continue, and may have released memory. */
static bool release_reserved(struct tierce__reservation *r)
{
    TIERCE_DASSERT(r->published == 0);
    struct tierce__list ready;
    tierce__list_init(&ready);
    for (size_t i = 0; i < r->count; i++) {
        tierce__buf_release(r->chunks[i].buf);
        end_promise(r, &r->chunks[i]);
    }
    end_claims(r, &ready);
    r->count = 0;
    bool any = !tierce__list_empty(&ready);
    run_ready(&ready);
    return any;
}

/* Reserves the chunks missing after the first `held`. Returns the index of the first for which
 * there was no memory, or keys.count. */
static size_t try_reserve(struct tierce__reservation *r, const struct tierce_chain *chain,
                          size_t held)
{
    TIERCE_DASSERT(r->count == 0);
    TIERCE_DASSERT(r->published == 0);
    lease_held(r);
    r->is_refused = false;
    size_t index = reserve_missing(r, chain, held);
    for (size_t i = 0; r->leases != NULL && i < r->keys.count; i++) {
        tierce__buf_release(r->leases[i]);
        r->leases[i] = NULL;
    }
    TIERCE_DASSERT(index <= r->keys.count);
    return index;
}

/* The leading chunks that local tiers hold. A later clear invalidates this. */
static size_t find_held(struct tierce__reservation *r)
{
    const struct tierce__key *keys = r->keys.keys;
    size_t first = r->first, sure = r->promised > first ? r->promised : first;
    TIERCE_DASSERT(first <= r->keys.count);
    r->era = tierce__era_now(r->engine);
    size_t held = first + search(r, r->levels, keys + first, r->keys.count - first);
    TIERCE_DASSERT(held <= r->keys.count && sure >= first);
    return held > sure ? sure + search(r, sparing(r, sure), keys + sure, held - sure) : held;
}

/* Until when it waits for room; 0: it does not wait. */
static uint64_t deadline_of(const struct tierce__reservation *r)
{
    uint32_t store_ms = r->engine->settings.store_ms;
    if (r->room_wait != NULL)
        return r->room_wait->deadline_ns;
    return store_ms > 0 ? tierce__deadline_in_ms(store_ms) : 0;
}

/* The caller tries again what found no room: it is not counted as skipped yet. */
static bool is_deferred(const struct tierce__reservation *r)
{
    return r->room_wait != NULL && r->room_wait->is_full && r->room_wait->deadline_ns == 0;
}

/*
 * Waits for room without holding any: two waiters that each held a part would deadlock. At the end
 * it takes the chunks that fit.
 */
static size_t wait_for_room(struct tierce__reservation *r, const struct tierce_chain *chain,
                            uint64_t deadline_ns)
{
    TIERCE_DASSERT(deadline_ns > 0);
    struct tierce__pool_turn turn;
    size_t index = 0;
    tierce__count(r->engine, TIERCE__STAT_stores_waited, 1);
    (void)release_reserved(r);
    TIERCE_DASSERT(r->count == 0);
    if (r->room_wait != NULL)
        tierce__pool_turn_begin_last(r->engine->pool, &turn, r->room_wait->stops);
    else
        tierce__pool_turn_begin(r->engine->pool, &turn);
    bool again = false;
    while (index < r->keys.count && !r->is_refused &&
           (again || tierce__pool_turn_wait(&turn, deadline_ns))) {
        index = try_reserve(r, chain, find_held(r));
        again = index < r->keys.count && !r->is_refused && release_reserved(r);
    }
    tierce__pool_turn_end(&turn);
    return index < r->keys.count && !r->is_refused ? try_reserve(r, chain, find_held(r)) : index;
}

/* The status of chunks that were not reserved. */
static int why_not(const struct tierce__reservation *r)
{
    if (r->is_refused)
        return TIERCE_E_REFUSED;
    bool lacks_slot = tierce__storage_lacks_slot(r->engine, r->view->full.extent.object_bytes);
    return lacks_slot ? TIERCE_E_SLOTS : TIERCE_E_FULL;
}

static void reserve_all(struct tierce__reservation *r, const struct tierce_chain *chain,
                        size_t held)
{
    const struct tierce__settings *settings = &r->engine->settings;
    TIERCE_DASSERT(held <= r->keys.count);
    const struct tierce__shape *shape = &r->view->full;
    size_t missing = r->keys.count - held;
    uint64_t most = missing * shape->extent.object_bytes;
    bool fits = most <= settings->memory_bytes && missing <= tierce__storage_slots(r->engine);
    size_t index = try_reserve(r, chain, held);
    uint64_t deadline_ns = deadline_of(r);
    if (index < r->keys.count && !r->is_refused && deadline_ns > 0 && fits)
        index = wait_for_room(r, chain, deadline_ns);
    tierce__count(r->engine, TIERCE__STAT_stores_shared, (int64_t)r->shared);
    if (r->room_wait != NULL)
        r->room_wait->is_full = index < r->keys.count;
    if (index < r->keys.count && !is_deferred(r))
        skip(r, index, why_not(r));
}

/* A store that offers chunks already held counts as a use of them. This is done before memory is
 * reserved, so that they are not evicted. */
static void use_held(struct tierce__reservation *r)
{
    struct tierce_engine *engine = r->engine;
    const struct tierce__keys *keys = &r->keys;
    struct tierce__tier_uses uses = {.keys = keys->keys + r->first,
                                     .count = keys->count - r->first,
                                     .origin = {.ends = r->ends}};
    size_t used = tierce__session_use(r->view, r->session, keys, keys->count, &r->hint);
    uses.origin.hint = r->hint;
    uses.used = used > r->first ? used - r->first : 0;
    tierce__storage_touch(engine, 0, engine->level_count, &uses);
}

static int prepare(struct tierce__reservation *r, const struct tierce__reserve_what *what)
{
    int rc = tierce__keys_init(&r->keys, r->view, what->chain, what->to_block, what->to_block,
                               what->tail);
    if (rc < 0)
        return rc;
    r->first = tierce__keys_first(&r->keys, r->view, what->from_block);
    r->ends = tierce__keys_end(r->view, what->chain, what->to_block);
    tierce__ahead_store(r->view, what->chain, &r->keys, r->session);
    size_t held = find_held(r);
    TIERCE_DASSERT(held <= r->keys.count);
    tierce__view_access(
        r->view, &r->line, "store", what->chain,
        (struct tierce__access_what){.count = r->keys.block_count, .request = r->session});
    tierce__access_tag(&r->line, what->tag);
    size_t missing = r->keys.count - held;
    bool refused = tierce__engine_mode(r->engine) != TIERCE_MODE_NORMAL || r->levels == 0;
    if (refused)
        tierce__count(r->engine, TIERCE__STAT_stores_refused, (int64_t)missing);
    if (missing == 0 || refused) {
        use_held(r);
        return 0;
    }
    if (r->keys.tail_blocks > 0)
        r->tail_shape = tierce__shape_of(r->view, r->keys.tail_blocks);
    if (r->levels == 1)
        r->leases = tierce__calloc(r->keys.count, sizeof(struct tierce__buf *));
    r->chunks = tierce__calloc(r->keys.count, sizeof(*r->chunks));
    r->rooms = tierce__calloc(r->keys.count, sizeof(*r->rooms));
    if ((r->levels == 1 && r->leases == NULL) || r->chunks == NULL || r->rooms == NULL)
        return -ENOMEM;
    use_held(r);
    reserve_all(r, what->chain, held);
    if (r->count > 0) {
        rc =
            tierce__storage_begin_writes(&r->writes, r->engine, r->levels, r->count, r->keys.count);
        if (rc == -ENOMEM && r->levels >> 1 == 0) /* only the use of slower tiers is not noted */
            rc = 0;
    }
    TIERCE_DASSERT(r->count <= r->keys.count);
    for (size_t i = 0; i < r->count; i++)
        r->rooms[i] = (struct tierce__room){.index = r->chunks[i].index,
                                            .block_count = r->chunks[i].record.block_count,
                                            .bytes = r->chunks[i].record.object_bytes,
                                            .object = r->chunks[i].buf->data,
                                            .buf = r->chunks[i].buf};
    return rc;
}

static void free_reservation(struct tierce__reservation *r)
{
    tierce__storage_end_writes(r->writes, NULL, 0);
    for (size_t i = 0; i < r->count; i++) {
        TIERCE_DASSERT(tierce__list_empty(&r->chunks[i].claim.node)); /* it has ended */
        tierce__buf_release(r->chunks[i].buf);
        end_promise(r, &r->chunks[i]);
    }
    tierce__free(r->chunks);
    tierce__free(r->leases);
    tierce__free(r->rooms);
    tierce__line_clear(&r->line);
    tierce__keys_fini(&r->keys);
    tierce__free(r);
}

static void drop(struct tierce__reservation *r)
{
    TIERCE_DASSERT(r->published == 0);
    struct tierce__list ready;
    tierce__list_init(&ready);
    end_claims(r, &ready);
    free_reservation(r);
    run_ready(&ready);
}

static void end_line(struct tierce__reservation *r)
{
    struct tierce_engine *engine = r->engine;
    size_t first = r->levels != 0 ? (size_t)__builtin_ctz(r->levels) : 0;
    TIERCE_DASSERT(first < engine->level_count);
    struct tierce__access_tier tier = {.name = engine->levels[first].tier->ops->name,
                                       .blocks = (uint64_t)r->blocks};
    tierce__access_end(engine->access_log, &r->line, &tier, 1);
}

int tierce__reserve_begin(struct tierce__reservation **out, struct tierce_view *view,
                          const struct tierce__reserve_what *what)
{
    *out = NULL;
    struct tierce__reservation *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->engine = view->engine;
    r->view = view;
    r->session = what->session;
    r->room_wait = what->room_wait;
    r->counted_tokens = tierce__view_is_sparse(view) ? 0 : view->full.geometry.block_tokens;
    r->levels = tierce__levels_of(view->engine, what->tiers);
    r->local = tierce__levels_local(view->engine);
    r->promised = (r->levels & 1u) != 0 ? tierce__session_promised(view, what->session) : SIZE_MAX;
    int rc = prepare(r, what);
    if (rc < 0 || r->count == 0) {
        if (rc == 0 && !is_deferred(r))
            end_line(r); /* held already, or no memory: the access log has a line anyway */
        drop(r);
        return rc;
    }
    TIERCE_DASSERT(r->count > 0 && r->published == 0 && r->blocks == 0);
    r->view = NULL;
    r->room_wait = NULL;
    *out = r;
    return 0;
}

const struct tierce__room *tierce__reserve_rooms(const struct tierce__reservation *reservation,
                                                 size_t *count)
{
    TIERCE_DASSERT(reservation->count > 0);
    *count = reservation->count;
    return reservation->rooms;
}

/* ---- end: publish, and go on with those that waited for it ---- */

/* False: memory will not take it. */
static bool publish(struct tierce__reservation *r, struct reserve_chunk *chunk)
{
    struct tierce_engine *engine = r->engine;
    int rc = 0;
    TIERCE_DASSERT(r->published < r->count && chunk == &r->chunks[r->published]);
    TIERCE_DASSERT(!r->given_up);
    if ((r->levels & 1u) != 0)
        rc = tierce__storage_publish(engine, &chunk->record, chunk->buf);
    if (rc < 0) {
        for (size_t rest = r->published; rest < r->count; rest++)
            tierce__why_refused(engine, 0, &r->chunks[rest].record.key, rc);
        return false;
    }
    if (rc > 0) /* another request was faster, and its chunk is used */
        tierce__storage_touch(engine, 0, engine->level_count,
                              &(struct tierce__tier_uses){.keys = &chunk->record.key, .count = 1});
    if (!chunk->held)
        tierce__storage_write(r->writes, &chunk->record, chunk->buf);
    end_promise(r, chunk);
    r->blocks += chunk->record.block_count;
    tierce__count(engine, TIERCE__STAT_chunks_stored, 1);
    tierce__count(engine, TIERCE__STAT_bytes_stored, (int64_t)chunk->payload_bytes);
    return true;
}

/*
 * Publishes in order, up to the first chunk that memory rejects or whose prefix was not stored.
 * False: another request is still storing a prefix, and its thread continues the reservation, so
 * the caller must not touch it any more. *blocks grows by the number of published blocks.
 */
static bool publish_rest(struct tierce__reservation *r, int64_t *blocks, struct tierce__list *ready)
{
    struct tierce_engine *engine = r->engine;
    TIERCE_DASSERT(r->published <= r->count && !r->given_up);
    for (; r->published < r->count; r->published++) {
        struct reserve_chunk *chunk = &r->chunks[r->published];
        if (chunk->has_other) {
            if (tierce__claim_park(&engine->storing, &chunk->other, &r->parked))
                return false;
            if (search(r, r->levels, &chunk->other, 1) == 0)
                break;
        }
        if (!publish(r, chunk))
            break;
        *blocks += chunk->record.block_count;
        tierce__claim_end(&engine->storing, &chunk->claim, ready);
    }
    return true;
}

/* Orders all chunks of the request; in a slower tier only after it has the new chunks. */
static void settle(struct tierce__reservation *r, struct tierce__list *ready)
{
    struct tierce_engine *engine = r->engine;
    TIERCE_DASSERT(r->published <= r->count);
    TIERCE_DASSERT(r->blocks >= 0 && (r->published > 0 || r->blocks == 0));
    tierce__count(engine, TIERCE__STAT_stores_skipped, (int64_t)(r->count - r->published));
    const struct tierce__key *keys = r->keys.keys + r->first;
    size_t count = r->keys.count - r->first;
    tierce__storage_touch(engine, 0, 1,
                          &(struct tierce__tier_uses){.keys = keys, .count = count, .used = count});
    tierce__storage_end_writes(r->writes, keys, count);
    r->writes = NULL;
    tierce__requests_stored(r->engine->requests, r->session,
                            (uint64_t)r->blocks * r->counted_tokens);
    end_line(r);
    end_claims(r, ready);
    free_reservation(r);
}

/* Returns the blocks that were published now. */
static int64_t go_on(struct tierce__reservation *r, struct tierce__list *ready)
{
    TIERCE_DASSERT(r->published < r->count);
    struct tierce_engine *engine = r->engine;
    uint64_t era = r->era;
    int64_t blocks = 0;
    bool over = true;
    if (tierce__era_enter(engine, era)) {
        over = publish_rest(r, &blocks, ready);
        tierce__era_leave(engine, era);
    }
    if (over)
        settle(r, ready);
    return blocks;
}

static struct tierce__reservation *pop(struct tierce__list *reservations)
{
    TIERCE_DASSERT(!tierce__list_empty(reservations));
    struct tierce__list *node = reservations->next;
    tierce__list_remove(node);
    return TIERCE__CONTAINER_OF(node, struct tierce__reservation, parked.node);
}

/* In a loop, not by recursion, because there may be many. */
static void run_ready(struct tierce__list *ready)
{
    while (!tierce__list_empty(ready))
        (void)go_on(pop(ready), ready);
}

void tierce__stores_expire(struct tierce_engine *engine)
{
    struct tierce__list late, ready;
    tierce__list_init(&late);
    tierce__list_init(&ready);
    tierce__storing_expire(&engine->storing, tierce__now_ns(), &late);
    while (!tierce__list_empty(&late))
        settle(pop(&late), &ready);
    run_ready(&ready);
}

void tierce__reserve_give_up(struct tierce__reservation *r)
{
    TIERCE_DASSERT(r->published == 0);
    struct tierce__list ready;
    tierce__list_init(&ready);
    r->given_up = true;
    end_claims(r, &ready);
    run_ready(&ready);
}

/* Another process may have written to the headers, so their lengths are checked before the seal. */
static bool seal(struct tierce__reservation *r)
{
    for (size_t i = 0; i < r->count; i++) {
        uint8_t *object = r->chunks[i].buf->data;
        TIERCE_DASSERT(r->chunks[i].header_bytes <= r->chunks[i].buf->bytes);
        if (tierce__chunk_header_bytes(object) != r->chunks[i].header_bytes)
            return false;
        tierce__chunk_seal(object, r->chunks[i].header_bytes);
    }
    return true;
}

int tierce__reserve_watch(struct tierce__reservation *r, const struct tierce_view *view,
                          struct tierce__store_watch *watch, struct tierce__watched *out)
{
    struct tierce__store_watch *none = NULL;
    TIERCE_DASSERT(r->count > 0);
    if (!tierce__view_has(view, &r->chunks[0].record.key) ||
        !atomic_compare_exchange_strong(&r->watch, &none, watch))
        return TIERCE_E_ARGUMENT;
    *out = (struct tierce__watched){view, r->rooms, r->count};
    return 0;
}

static bool is_filled(struct tierce__reservation *r, uint32_t layer)
{
    return (atomic_load(&r->filled[layer / 64]) & UINT64_C(1) << (layer % 64)) != 0;
}

void tierce__reserve_filled(struct tierce__reservation *r, uint32_t from, uint32_t to)
{
    TIERCE_ASSERT(to <= TIERCE_LAYERS_MAX);
    if (from >= to)
        return;
    for (uint32_t i = from; i < to; i++) {
        if (!is_filled(r, i)) /* calls repeat layers */
            atomic_fetch_or(&r->filled[i / 64], UINT64_C(1) << (i % 64));
    }
    struct tierce__store_watch *watch = atomic_load(&r->watch);
    if (watch != NULL)
        watch->filled(watch, from, to);
}

void tierce__reserve_tell_watch(struct tierce__reservation *r)
{
    struct tierce__store_watch *watch = atomic_load(&r->watch);
    TIERCE_DASSERT(watch != NULL);
    for (uint32_t from = 0, to; from < TIERCE_LAYERS_MAX; from = to + 1) {
        for (to = from; to < TIERCE_LAYERS_MAX && is_filled(r, to);)
            to++;
        if (to > from)
            watch->filled(watch, from, to);
    }
}

static int64_t publish_all(struct tierce__reservation *r)
{
    struct tierce__list ready;
    tierce__list_init(&ready);
    r->parked.deadline_ns = tierce__deadline_in_ms(r->engine->settings.pin_ms);
    int64_t blocks = go_on(r, &ready);
    run_ready(&ready);
    return blocks;
}

int64_t tierce__reserve_end(struct tierce__reservation *r, bool complete)
{
    struct tierce__store_watch *watch = atomic_load(&r->watch);
    int64_t blocks = 0;
    TIERCE_DASSERT(r->published == 0 && r->blocks == 0);
    complete = complete && !r->given_up && seal(r);
    if (complete)
        blocks = publish_all(r);
    else
        drop(r);
    if (watch != NULL)
        watch->ended(watch, complete);
    return blocks;
}
