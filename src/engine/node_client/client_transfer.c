/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/node_client/client.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/load/scatter.h"
#include "engine/observe/operate.h"
#include "engine/store/gather.h"
#include "engine/store/store_watch.h"

/* A node that keeps its deadlines may be so late, because it is busy. */
#define GRACE_MS 1000u

static uint64_t deadline_in(const struct tierce_view *view, uint64_t more_ms)
{
    uint64_t ms = view->engine->settings.lookup_ms + more_ms;
    return tierce__deadline_in_ms(ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX);
}

/* ---- stores ---- */

/* How long a store may wait for memory: as the node says, but not for longer than this engine's
 * caller does. */
static uint32_t store_ms(const struct tierce_view *view, const struct tierce__node_session *peer)
{
    uint32_t own = view->engine->settings.store_ms, its = tierce__node_session_store_ms(peer);
    return own < its ? own : its;
}

struct tierce__client_store {
    struct tierce__node_session *peer;
    struct tierce__owed *owed; /* its end */
    uint64_t number;
    struct tierce_engine *engine;
    uint64_t block_bytes; /* of KV */
    struct tierce__room rooms[];
};

/* Takes what the node has reserved. False: it is not all memory of its pool. */
static bool take_rooms(struct tierce__client_store *store, const struct tierce_view *view,
                       const struct tierce__native_reservation *given)
{
    TIERCE_DASSERT(store->number != 0);
    const struct tierce__shape *full = &view->full;
    for (uint32_t i = 0; i < given->chunks.count; i++) {
        struct tierce__native_reserved row;
        if (tierce__native_get_reserved(&row, &given->chunks, i) < 0)
            return false;
        struct tierce__geometry geometry = full->geometry;
        struct tierce__extent extent;
        geometry.block_count = row.block_count;
        uint8_t *object = tierce__node_session_memory(store->peer, row.offset, row.bytes);
        if (object == NULL || tierce__chunk_extent(&extent, &geometry) < 0 ||
            extent.object_bytes != row.bytes || row.offset % TIERCE__CHUNK_ALIGN != 0)
            return false;
        store->rooms[i] = (struct tierce__room){.index = row.index,
                                                .block_count = row.block_count,
                                                .bytes = row.bytes,
                                                .object = object};
    }
    return true;
}

/* The space that the node has reserved. After a failure, the client has asked the node to end the
 * store. Errors: -ENOMEM, TIERCE_E_FORMAT: it is not chunks of the sequence. */
static int take_space(struct tierce__lender_space *space, struct tierce_view *view,
                      struct tierce__node_session *peer,
                      const struct tierce__native_reservation *given,
                      const struct tierce_transfer_opts *opts)
{
    size_t count = given->chunks.count;
    TIERCE_DASSERT(given->store != 0);
    struct tierce__client_store *store =
        tierce__calloc(1, sizeof(*store) + count * sizeof(struct tierce__room));
    struct tierce__owed *owed = tierce__calloc(1, sizeof(*owed));
    if (store == NULL || owed == NULL) {
        /* Without memory for a note, the end is sent only once; if it is lost, the node's deadline
         * ends the store. */
        union tierce__native_request end = {.store_end = {.store = given->store}};
        (void)tierce__node_session_tell(peer, TIERCE__NATIVE_STORE_END, &end,
                                        tierce__deadline_in_ms(GRACE_MS));
        tierce__free(store);
        tierce__free(owed);
        return -ENOMEM;
    }
    tierce__list_init(&owed->node);
    owed->op = TIERCE__NATIVE_STORE_END;
    owed->question.store_end = (struct tierce__native_store_end){.store = given->store};
    *store = (struct tierce__client_store){.peer = tierce__node_session_acquire(peer),
                                           .owed = owed,
                                           .number = given->store,
                                           .engine = view->engine,
                                           .block_bytes = view->full.extent.payload_bytes /
                                                          view->chunk_blocks};
    *space = (struct tierce__lender_space){.rooms = store->rooms,
                                           .count = count,
                                           .memory = tierce__node_session_pinnings(peer),
                                           .remote = store};
    if (!take_rooms(store, view, given) || !tierce__gather_fits(view, space->rooms, count, opts)) {
        (void)tierce__client_store_end(space, false);
        return TIERCE_E_FORMAT;
    }
    return 0;
}

/* The blocks of whole chunks, and of the last, shorter one if that is stored. */
static uint64_t whole_chunks(const struct tierce_view *view, uint64_t to_block, bool tail)
{
    return tail ? to_block : to_block - to_block % view->chunk_blocks;
}

int tierce__client_store_begin(struct tierce__lender_space *space, struct tierce_view *view,
                               const struct tierce_transfer_opts *opts)
{
    uint64_t number, deadline_ns = deadline_in(view, 0);
    TIERCE_DASSERT(space->rooms == NULL);
    TIERCE_DASSERT(space->count == 0);
    if (tierce__engine_mode(view->engine) != TIERCE_MODE_NORMAL)
        return 0;
    struct tierce__node_session *peer = tierce__client_view_peer(view, &number, deadline_ns);
    if (peer == NULL)
        return 0;
    union tierce__native_request question = {
        .store_begin = {.view = number,
                        .session = opts->session,
                        .to_block = opts->to_block,
                        .write = opts->write,
                        .tail = opts->tail,
                        .tiers = opts->tiers,
                        .tag = opts->tag != NULL ? opts->tag : ""}};
    struct tierce__asking asking;
    tierce__client_tell_tokens(view, peer, number, opts->chain,
                               whole_chunks(view, opts->to_block, opts->tail), deadline_ns);
    deadline_ns += store_ms(view, peer) * TIERCE__MS_NS;
    enum tierce__native_op op = TIERCE__NATIVE_STORE_BEGIN;
    if (opts->from_block > 0) {
        op = TIERCE__NATIVE_GROUP_STORE_BEGIN;
        question.group_store_begin.from_block = opts->from_block;
    }
    int rc = tierce__client_ask_chain(&asking, peer, op, &question, &question.store_begin.chain,
                                      opts->chain, deadline_ns);
    if (rc == 0 && asking.answer.store_begin.store != 0)
        rc = take_space(space, view, peer, &asking.answer.store_begin, opts);
    tierce__node_session_done(&asking);
    tierce__node_session_release(peer);
    return tierce__client_miss(view, rc);
}

void tierce__client_store_number(const struct tierce__lender_space *space, uint64_t *node,
                                 uint64_t *number)
{
    *node = tierce__node_session_number(space->remote->peer);
    *number = space->remote->number;
}

/* Reports the layers of a store to the node. */
struct teller {
    struct tierce__store_watch base;
    struct tierce__node_session *peer;
    uint64_t number; /* of the store, there */
};

/* If the message cannot be sent now, the next one, or the end of the store, covers its layers. */
static void tell_filled(struct tierce__store_watch *base, uint32_t from, uint32_t to)
{
    const struct teller *teller = TIERCE__CONTAINER_OF(base, struct teller, base);
    const union tierce__native_request question = {
        .store_layers = {.store = teller->number, .layers = to - from}};
    TIERCE_DASSERT(from < to);
    (void)tierce__node_session_post(teller->peer, TIERCE__NATIVE_STORE_LAYERS, &question);
}

static void end_teller(struct tierce__store_watch *base, bool complete)
{
    struct teller *teller = TIERCE__CONTAINER_OF(base, struct teller, base);
    (void)complete; /* the node knows it by the end of the store */
    tierce__node_session_release(teller->peer);
    tierce__free(teller);
}

int tierce__client_store_tell(struct tierce__store_watch **out,
                              const struct tierce__lender_space *space)
{
    struct tierce__node_session *peer = space->remote->peer;
    *out = NULL;
    if (!tierce__node_session_announces(peer, TIERCE__NATIVE_TAKES_LAYERS))
        return 0;
    struct teller *teller = tierce__calloc(1, sizeof(*teller));
    if (teller == NULL)
        return -ENOMEM;
    *teller = (struct teller){.base = {tell_filled, end_teller},
                              .peer = tierce__node_session_acquire(peer),
                              .number = space->remote->number};
    *out = &teller->base;
    return 0;
}

void tierce__client_store_give_up(struct tierce__lender_space *space)
{
    TIERCE_DASSERT(space->remote != NULL && space->rooms == space->remote->rooms);
}

/* The node publishes chunks in their order. */
static void count_stored(const struct tierce__client_store *store,
                         const struct tierce__lender_space *space, uint64_t blocks)
{
    size_t chunks = 0;
    uint64_t before = 0;
    for (; chunks < space->count && before + space->rooms[chunks].block_count <= blocks; chunks++)
        before += space->rooms[chunks].block_count;
    tierce__count(store->engine, TIERCE__STAT_chunks_stored, (int64_t)chunks);
    tierce__count(store->engine, TIERCE__STAT_bytes_stored, (int64_t)(before * store->block_bytes));
}

int64_t tierce__client_store_end(struct tierce__lender_space *space, bool complete)
{
    struct tierce__client_store *store = space->remote;
    uint64_t most = 0; /* a node may send any number */
    for (size_t i = 0; i < space->count; i++)
        most += space->rooms[i].block_count;
    TIERCE_DASSERT(space->rooms == store->rooms);
    TIERCE_DASSERT(store->owed->op == TIERCE__NATIVE_STORE_END);
    union tierce__native_request question = {
        .store_end = {.store = store->number, .complete = complete}};
    uint64_t blocks = tierce__node_session_end(store->peer, store->owed, &question);
    if (complete)
        count_stored(store, space, blocks);
    tierce__node_session_release(store->peer);
    tierce__free(store);
    *space = (struct tierce__lender_space){0};
    return !complete ? 0 : (int64_t)(blocks < most ? blocks : most);
}

/* ---- loads ---- */

struct client_load {
    struct tierce__load_lease base;    /* over_ns: 0 until something is leased */
    size_t block_count;                /* that are wanted */
    struct tierce__node_session *peer; /* NULL: there was no node; nothing is leased */
    struct tierce__owed *owed;         /* its pending end, if it has a peer; NULL: it was sent */
    uint64_t number;
    uint64_t deadline_ns;
    uint32_t ready;    /* layers below have come */
    size_t taken;      /* behind the chunk that was taken last; 0: none */
    uint8_t *verdicts; /* enum tierce__native_verdict */
    uint8_t *results;  /* rows of the end */
    uint8_t *hashes;   /* base.hashes */
};

static const struct tierce__load_lease_ops ops;

static struct client_load *own(struct tierce__load_lease *lease)
{
    TIERCE_DASSERT(lease->ops == &ops);
    return TIERCE__CONTAINER_OF(lease, struct client_load, base);
}

static void free_load(struct client_load *load)
{
    TIERCE_DASSERT(load->peer == NULL || load->owed == NULL);
    tierce__node_session_release(load->peer);
    tierce__free(load->base.leased);
    tierce__free(load->verdicts);
    tierce__free(load->results);
    tierce__free(load->hashes);
    tierce__free(load->owed);
    tierce__free(load);
}

static enum tierce__leased_kind kind_of(uint8_t kind)
{
    return kind == TIERCE__NATIVE_SIBLING ? TIERCE__LEASED_SIBLING
           : kind == TIERCE__NATIVE_TAIL  ? TIERCE__LEASED_TAIL
                                          : TIERCE__LEASED_FULL;
}

/* Sets the address and the origin of a chunk; a chunk outside the pool has failed. */
static void place(const struct client_load *load, struct tierce__leased *leased, uint64_t offset,
                  uint32_t origin)
{
    bool is_known = origin >= TIERCE_ORIGIN_MEMORY && origin <= TIERCE_ORIGIN_REMOTE;
    leased->object =
        is_known ? tierce__node_session_memory(load->peer, offset, leased->bytes) : NULL;
    leased->origin = (enum tierce_origin)origin;
    leased->failed = leased->object == NULL;
    leased->here &= !leased->failed;
}

/* One chunk that was leased. */
static int take_leased(struct client_load *load, const struct tierce__native_rows *rows, uint32_t i)
{
    TIERCE_DASSERT(i == load->base.count && i < rows->count);
    struct tierce__native_lent row;
    int rc = tierce__native_get_lent(&row, rows, i);
    if (rc < 0)
        return rc;
    struct tierce__leased *leased = &load->base.leased[i];
    *leased = (struct tierce__leased){.index = row.index,
                                      .kind = kind_of(row.kind),
                                      .block_count = row.block_count,
                                      .from = row.from,
                                      .to = row.to,
                                      .bytes = row.bytes,
                                      .here = row.state == TIERCE__NATIVE_HERE,
                                      .failed = row.state == TIERCE__NATIVE_FAILED};
    memcpy(leased->hash, row.hash, TIERCE_HASH_BYTES);
    if (row.state == TIERCE__NATIVE_WAITS)
        load->base.is_too_large = true;
    else if (!leased->failed)
        place(load, leased, row.offset, row.origin);
    return 0;
}

/* Memory for what is leased. From here on the load has a peer, which must receive its end. */
static int take_lease(struct client_load *load, struct tierce__node_session *peer,
                      const struct tierce__native_loan *lease)
{
    uint32_t count = lease->chunks.count;
    TIERCE_DASSERT(load->base.count == 0);
    load->owed->question.load_end = (struct tierce__native_load_end){.load = lease->load};
    load->peer = tierce__node_session_acquire(peer);
    load->number = lease->load;
    load->base.memory = tierce__node_session_pinnings(peer);
    load->base.leased = tierce__calloc(count, sizeof(*load->base.leased));
    load->verdicts = tierce__calloc(count, 1);
    load->results = tierce__calloc(count, TIERCE__NATIVE_RESULT_BYTES);
    if (load->base.leased == NULL || load->verdicts == NULL || load->results == NULL)
        return -ENOMEM;
    int rc = 0;
    for (; load->base.count < count && rc == 0; load->base.count++)
        rc = take_leased(load, &lease->chunks, (uint32_t)load->base.count);
    TIERCE_DASSERT(rc < 0 || load->base.count == count);
    return rc;
}

static int copy_hashes(struct client_load *load, const struct tierce_chain *chain)
{
    load->base.hash_count = tierce_chain_blocks(chain);
    load->hashes = tierce__alloc(load->base.hash_count * TIERCE_HASH_BYTES);
    if (load->hashes == NULL)
        return -ENOMEM;
    if (load->base.hash_count > 0)
        memcpy(load->hashes, tierce_chain_hash(chain, 0),
               load->base.hash_count * TIERCE_HASH_BYTES);
    load->base.hashes = load->hashes;
    memcpy(load->base.root, tierce_chain_root_hash(chain), TIERCE_HASH_BYTES);
    return 0;
}

/* Ends a lease that cannot be used: nothing is leased any more. */
static void send_back(struct client_load *load)
{
    TIERCE_DASSERT(load->owed->op == TIERCE__NATIVE_LOAD_END);
    (void)tierce__node_session_end(load->peer, load->owed, &load->owed->question);
    load->owed = NULL;
    load->base.count = 0;
}

/* Requests chunks from the node; if it lends none, the load has no peer. */
static int ask_lease(struct client_load *load, struct tierce_view *view,
                     const struct tierce_transfer_opts *opts)
{
    TIERCE_DASSERT(load->base.count == 0 && load->number == 0);
    uint64_t number, deadline_ns = deadline_in(view, 0);
    struct tierce__node_session *peer = tierce__client_view_peer(view, &number, deadline_ns);
    if (peer == NULL)
        return 0;
    load->owed = tierce__calloc(1, sizeof(*load->owed)); /* the end cannot fail for memory then */
    if (load->owed == NULL) {
        tierce__node_session_release(peer);
        return -ENOMEM;
    }
    tierce__list_init(&load->owed->node);
    load->owed->op = TIERCE__NATIVE_LOAD_END;
    uint32_t timeout_ms = opts->timeout_ms > 0 ? opts->timeout_ms : view->engine->settings.load_ms;
    uint32_t wait_ms = view->engine->settings.lookup_ms;
    union tierce__native_request question = {.load_begin = {.view = number,
                                                            .session = opts->session,
                                                            .from_block = opts->from_block,
                                                            .to_block = opts->to_block,
                                                            .timeout_ms = timeout_ms,
                                                            .tiers = opts->tiers,
                                                            .wait_ms = wait_ms}};
    struct tierce__asking asking;
    tierce__client_tell_tokens(view, peer, number, opts->chain,
                               whole_chunks(view, opts->to_block, false), deadline_ns);
    uint64_t asked_ns = tierce__now_ns();
    deadline_ns += wait_ms * TIERCE__MS_NS; /* the node may wait as long for remote stores */
    int rc = tierce__client_ask_chain(&asking, peer, TIERCE__NATIVE_LOAD_BEGIN, &question,
                                      &question.load_begin.chain, opts->chain, deadline_ns);
    load->deadline_ns = deadline_in(view, (uint64_t)timeout_ms + GRACE_MS);
    if (rc == 0) {
        load->base.over_ns = asked_ns + asking.answer.load_begin.left_ms * TIERCE__MS_NS;
        rc = take_lease(load, peer, &asking.answer.load_begin);
        tierce__node_session_done(&asking);
        bool fits = rc == 0 && tierce__scatter_fits(&load->base, opts->from_block, opts->to_block);
        if (rc == TIERCE_E_FORMAT || (rc == 0 && !fits)) {
            send_back(load);
            rc = 0;
        }
    }
    tierce__node_session_release(peer);
    return tierce__client_miss(view, rc);
}

static bool any_coming(const struct client_load *load)
{
    for (size_t i = 0; i < load->base.count; i++) {
        if (!load->base.leased[i].failed && !load->base.leased[i].here)
            return true;
    }
    return false;
}

/* Marks chunks that were not read as failed; states: of each chunk, or NULL. */
static void take_states(struct client_load *load, const uint8_t *states)
{
    for (size_t i = 0; i < load->base.count; i++) {
        struct tierce__leased *leased = &load->base.leased[i];
        if (!leased->here && (states == NULL || states[i] != TIERCE__NATIVE_HERE))
            leased->failed = true;
    }
}

static void ahead(struct tierce__load_lease *base, uint32_t layer)
{
    struct client_load *load = own(base);
    TIERCE_DASSERT(layer >= base->view->part.first_layer);
    TIERCE_DASSERT(layer - base->view->part.first_layer < base->view->part.layer_count);
    layer -= base->view->part.first_layer; /* the node counts those of the part */
    if (layer < load->ready || !any_coming(load))
        return;
    union tierce__native_request question = {.load_wait = {.load = load->number, .layer = layer}};
    struct tierce__asking asking;
    int rc = tierce__node_session_ask(&asking, load->peer, TIERCE__NATIVE_LOAD_WAIT, &question,
                                      load->deadline_ns);
    const struct tierce__native_ready *ready = &asking.answer.load_wait;
    bool whole = rc == 0 && ready->states.count == load->base.count;
    take_states(load, whole ? ready->states.bytes : NULL);
    load->ready = whole && ready->ready > layer ? ready->ready : layer + 1;
    TIERCE_DASSERT(load->ready > layer);
    tierce__node_session_done(&asking);
}

static bool take(struct tierce__load_lease *base, size_t i)
{
    struct client_load *load = own(base);
    TIERCE_DASSERT(i < base->count);
    TIERCE_DASSERT(base->is_too_large && i >= load->taken);
    struct tierce__leased *leased = &load->base.leased[i];
    size_t last = load->taken;
    union tierce__native_request question = {
        .load_next = {.load = load->number,
                      .chunk = (uint32_t)i,
                      .verdict = last > 0 ? load->verdicts[last - 1] : TIERCE__NATIVE_UNUSED}};
    struct tierce__asking asking;
    if (leased->failed)
        return false;
    leased->failed = true;
    load->taken = i + 1;
    if (tierce__node_session_ask(&asking, load->peer, TIERCE__NATIVE_LOAD_NEXT, &question,
                                 load->deadline_ns) != 0)
        return false;
    const struct tierce__native_passed *passed = &asking.answer.load_next;
    leased->here = passed->state == TIERCE__NATIVE_HERE;
    if (leased->here)
        place(load, leased, passed->offset, passed->origin);
    tierce__node_session_done(&asking);
    return leased->here;
}

/* The request for the next chunk, or the end, returns it. */
static void give_back(struct tierce__load_lease *base, size_t i)
{
    TIERCE_DASSERT(own(base)->taken == i + 1);
}

static bool wait_for(struct tierce__load_lease *base, size_t i, uint32_t layer)
{
    TIERCE_DASSERT(layer >= base->view->part.first_layer && i < base->count);
    return !base->leased[i].failed; /* ahead has waited */
}

static void refuse(struct tierce__load_lease *base, size_t i, int why)
{
    TIERCE_DASSERT(i < base->count);
    TIERCE_DASSERT(why < 0);
    own(base)->verdicts[i] = TIERCE__NATIVE_WRONG_HEADER;
}

static void spoil(struct tierce__load_lease *base, size_t i)
{
    TIERCE_DASSERT(i < base->count);
    own(base)->verdicts[i] = TIERCE__NATIVE_BAD_CELLS;
}

static void count(const struct client_load *load, const uint32_t *blocks)
{
    size_t loaded = 0;
    for (size_t i = 0; i < load->base.count; i++) {
        if (!load->base.leased[i].failed)
            tierce__load_lease_count(load->base.view, &load->base.leased[i], blocks[i]);
        loaded += blocks[i];
    }
    TIERCE_DASSERT(loaded <= load->block_count);
    tierce__count(load->base.view->engine, TIERCE__STAT_blocks_failed,
                  (int64_t)(load->block_count - loaded));
}

static void end_load(struct tierce__load_lease *base, const uint32_t *blocks)
{
    struct client_load *load = own(base);
    TIERCE_DASSERT(load->taken <= base->count);
    if (blocks != NULL)
        count(load, blocks);
    union tierce__native_request question = {.load_end = {.load = load->number}};
    for (uint32_t i = 0; blocks != NULL && i < load->base.count; i++) {
        struct tierce__native_result row = {.verdict = load->verdicts[i], .blocks = blocks[i]};
        if (load->base.leased[i].failed && row.verdict == TIERCE__NATIVE_GOOD)
            row.verdict = TIERCE__NATIVE_UNUSED;
        tierce__native_put_result(load->results + (size_t)i * TIERCE__NATIVE_RESULT_BYTES, &row);
    }
    if (blocks != NULL)
        question.load_end.verdicts =
            (struct tierce__native_rows){load->results, (uint32_t)load->base.count};
    if (load->peer != NULL && load->owed != NULL) {
        (void)tierce__node_session_end(load->peer, load->owed, &question);
        load->owed = NULL;
    }
    free_load(load);
}

static const struct tierce__load_lease_ops ops = {
    .ahead = ahead,
    .wait = wait_for,
    .refuse = refuse,
    .spoil = spoil,
    .take = take,
    .give_back = give_back,
    .end = end_load,
};

int tierce__client_load_begin(struct tierce__load_lease **out, struct tierce_view *view,
                              const struct tierce_transfer_opts *opts)
{
    struct client_load *load = tierce__calloc(1, sizeof(*load));
    if (load == NULL)
        return -ENOMEM;
    load->base.ops = &ops;
    load->base.view = view;
    TIERCE_DASSERT(opts->from_block <= opts->to_block);
    load->block_count = (size_t)(opts->to_block - opts->from_block);
    int rc = copy_hashes(load, opts->chain);
    if (rc == 0 && tierce__engine_mode(view->engine) != TIERCE_MODE_BYPASS)
        rc = ask_lease(load, view, opts);
    if (rc < 0) {
        end_load(&load->base, NULL);
        return rc;
    }
    *out = &load->base;
    return 0;
}
