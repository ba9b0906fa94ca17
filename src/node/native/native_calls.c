/* SPDX-License-Identifier: Apache-2.0 */
#include "node/native/native_calls.h"

#include <errno.h>
#include <string.h>

#include <tierce/operate.h>
#include <tierce/why.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "engine/observe/kv_tokens.h"

/* The requests of clients, except those of loads (native_load.c). */

#define LOOKUP_FLAGS                                                                               \
    (TIERCE_LOOKUP_PIN | TIERCE_LOOKUP_MEMORY_ONLY | TIERCE_LOOKUP_NO_WAIT | TIERCE_LOOKUP_AGAIN)
#define POLL_MS_MAX    1000u
#define FLUSH_MS_MAX   600000u
#define FLUSH_MS_PIECE 1000u

_Static_assert(TIERCE__NATIVE_HASH == TIERCE_HASH_BYTES, "hashes of chains are sent as stored");

uint8_t *tierce__native_make_rows(struct tierce__native_call *call,
                                  struct tierce__native_rows *rows, size_t count, size_t row_bytes)
{
    struct tierce__native_connection *c = call->connection;
    size_t bytes = count * row_bytes;
    if (TIERCE__GROW(c->rows, c->rows_room, bytes + 1, 4096) < 0)
        return NULL;
    TIERCE_ASSERT(bytes <= c->rows_room);
    *rows = (struct tierce__native_rows){.bytes = c->rows, .count = (uint32_t)count};
    return c->rows;
}

int tierce__native_begin_about(struct tierce__native_call *call, struct tierce__native_about *about,
                               uint64_t view, const struct tierce__native_chain *chain,
                               uint64_t from_block, uint64_t to_block)
{
    *about = (struct tierce__native_about){0};
    about->view = tierce__native_view_get(call->client, view);
    if (about->view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = tierce__native_chain_get(call->client, &about->chain, about->view, chain);
    if (rc == 0 && (from_block > to_block || to_block > tierce_chain_blocks(about->chain->chain)))
        rc = TIERCE_E_ARGUMENT;
    return rc;
}

void tierce__native_end_about(struct tierce__native_call *call, struct tierce__native_about *about)
{
    if (about->chain != NULL)
        tierce__native_chain_put(call->client, about->chain);
    if (about->view != NULL)
        tierce__native_view_put(call->client, about->view);
}

struct tierce__native_held_view *tierce__native_keep_view(struct tierce__native_about *about)
{
    struct tierce__native_held_view *view = about->view;
    about->view = NULL;
    return view;
}

bool tierce__native_is_draining(const struct tierce__native_call *call)
{
    return atomic_load_explicit(&call->native->is_draining, memory_order_relaxed);
}

/* ---- views ----------------------------------------------------------------------------------- */

static int answer_hello(struct tierce__native_call *call)
{
    const struct tierce__native *native = call->native;
    const struct tierce__node_config *config = native->node->config;
    const struct tierce__native_hello *ask = &call->ask.hello;
    if (ask->magic != TIERCE__NATIVE_MAGIC)
        return TIERCE_E_FORMAT;
    if (ask->version != TIERCE__NATIVE_VERSION && ask->version != TIERCE__NATIVE_VERSION_OLD)
        return TIERCE_E_VERSION;
    int rc = tierce__native_join(call->connection, ask);
    if (rc < 0)
        return rc;
    uint32_t asks = native->engine->kv_tokens != NULL ? TIERCE__NATIVE_ASKS_TOKENS : 0;
    call->say.hello = (struct tierce__native_welcome){
        .boot = native->boot,
        .pool_bytes = native->memory.bytes,
        .tiers = tierce__engine_tiers(native->engine) | asks | TIERCE__NATIVE_TAKES_LAYERS |
                 TIERCE__NATIVE_TAKES_HINTS,
        .lookup_ms = config->lookup_ms,
        .load_ms = config->load_ms,
        .store_ms = config->store_ms,
        .pin_ms = config->pin_ms,
        .prefetch_ms = config->prefetch_ms};
    memcpy(call->say.hello.client, call->connection->client->id, TIERCE__NATIVE_ID_BYTES);
    return 0;
}

static int answer_ping(struct tierce__native_call *call)
{
    (void)call;
    return 0;
}

/* Numbers of four bytes; `out` has room for TIERCE_LAYERS_MAX. */
static void get_numbers(uint32_t *out, const struct tierce__native_rows *rows)
{
    TIERCE_ASSERT(rows->count <= TIERCE_LAYERS_MAX);
    for (uint32_t i = 0; i < rows->count; i++)
        out[i] = tierce__load_le32(rows->bytes + (size_t)i * 4);
}

/* `of`: NULL for the view of a whole model. */
static int open_view(struct tierce__native_call *call, const struct tierce__native_view *ask,
                     const struct tierce__native_group_view *of)
{
    uint32_t cell_bytes[TIERCE_LAYERS_MAX], layers[TIERCE_LAYERS_MAX];
    if (ask->cell_bytes.count > TIERCE_LAYERS_MAX || ask->tp_rank > UINT16_MAX ||
        ask->tp_size > UINT16_MAX || ask->pp_rank > UINT16_MAX || ask->pp_size > UINT16_MAX ||
        (of != NULL && of->layers.count != ask->cell_bytes.count))
        return TIERCE_E_ARGUMENT;
    get_numbers(cell_bytes, &ask->cell_bytes);
    if (of != NULL)
        get_numbers(layers, &of->layers);
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .weights = ask->weights,
                                  .model = ask->model,
                                  .kv_dtype = ask->kv_dtype,
                                  .quantization = ask->quantization,
                                  .layout = ask->layout,
                                  .layer_count = ask->cell_bytes.count,
                                  .cell_bytes = cell_bytes,
                                  .block_tokens = ask->block_tokens,
                                  .chunk_blocks = ask->chunk_blocks,
                                  .algo = (enum tierce_chain_algo)ask->algo,
                                  .group =
                                      of != NULL ? (enum tierce_group)of->group : TIERCE_GROUP_ALL,
                                  .window = of != NULL ? of->window : 0,
                                  .layers = of != NULL ? layers : NULL};
    struct tierce_shard shard = {(uint16_t)ask->tp_rank, (uint16_t)ask->tp_size,
                                 (uint16_t)ask->pp_rank, (uint16_t)ask->pp_size};
    struct tierce_part part = {.first_layer = ask->first_layer,
                               .layer_count = ask->layer_count,
                               .index = ask->part_index,
                               .count = ask->part_count};
    return tierce__native_view_open(call->client, &call->say.view.number, &ns, &shard, &part,
                                    ask->engine);
}

static int answer_view(struct tierce__native_call *call)
{
    return open_view(call, &call->ask.view, NULL);
}

/* A namespace of all layers has no layers of its own, so that it is rejected here. */
static int answer_group_view(struct tierce__native_call *call)
{
    const struct tierce__native_group_view *ask = &call->ask.group_view;
    return open_view(call, &ask->view, ask);
}

static int answer_view_close(struct tierce__native_call *call)
{
    uint64_t number = call->ask.view_close.number;
    return tierce__native_view_close(call->client, number) ? 0 : TIERCE__NATIVE_UNKNOWN;
}

static int answer_computed(struct tierce__native_call *call)
{
    const struct tierce__native_computed *ask = &call->ask.computed;
    struct tierce__native_held_view *view = tierce__native_view_get(call->client, ask->view);
    if (view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    tierce_view_computed(view->shared->view, ask->tokens, ask->ns);
    tierce__native_view_put(call->client, view);
    return 0;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static int look_up(struct tierce__native_call *call, const struct tierce__native_about *about)
{
    const struct tierce__native_lookup *ask = &call->ask.lookup;
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .flags = ask->flags,
                                      .session = ask->session,
                                      .from_block = ask->from_block,
                                      .tiers = ask->tiers,
                                      .pin_ms = ask->pin_ms,
                                      .wait_ms = ask->wait_ms,
                                      .tag = ask->tag};
    struct tierce_found found;
    if ((ask->flags & ~LOOKUP_FLAGS) != 0)
        return TIERCE_E_ARGUMENT;
    if ((ask->flags & TIERCE_LOOKUP_PIN) != 0 &&
        (ask->session == 0 || ask->pin_ms > TIERCE_PIN_MS_MAX))
        return TIERCE_E_ARGUMENT;
    if ((ask->flags & TIERCE_LOOKUP_PIN) != 0 &&
        !tierce__native_pin(call->client, about->view, ask->session, ask->pin_ms))
        return TIERCE_E_LIMIT;
    struct tierce_view *view = about->view->shared->view;
    int rc = tierce_lookup(view, about->chain->chain, ask->to_block, &opts, &found);
    if ((ask->flags & TIERCE_LOOKUP_PIN) != 0 && !tierce__view_has_pins(view, ask->session))
        (void)tierce__native_unpin(call->client, about->view, ask->session);
    call->say.lookup = (struct tierce__native_found){
        .blocks = found.blocks, .memory_blocks = found.memory_blocks, .pending = found.pending};
    return rc;
}

static int answer_lookup(struct tierce__native_call *call)
{
    const struct tierce__native_lookup *ask = &call->ask.lookup;
    struct tierce__native_about about;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, 0, ask->to_block);
    if (rc == 0)
        rc = look_up(call, &about);
    tierce__native_end_about(call, &about);
    return rc;
}

static int answer_durable(struct tierce__native_call *call)
{
    const struct tierce__native_lookup *ask = &call->ask.lookup;
    struct tierce__native_about about;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, 0, ask->to_block);
    if (rc == 0)
        rc = tierce_durable(about.view->shared->view, about.chain->chain, ask->to_block,
                            &call->say.lookup.blocks);
    tierce__native_end_about(call, &about);
    return rc;
}

static int answer_unpin(struct tierce__native_call *call)
{
    const struct tierce__native_session *ask = &call->ask.unpin;
    struct tierce__native_held_view *view = tierce__native_view_get(call->client, ask->view);
    if (view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    (void)tierce__native_unpin(call->client, view, ask->session);
    tierce_unpin(view->shared->view, ask->session);
    tierce__native_view_put(call->client, view);
    return 0;
}

/* Numbers that this version does not know are answered with TIERCE_E_ARGUMENT. */
static int answer_session_hint(struct tierce__native_call *call)
{
    const struct tierce__native_hint *ask = &call->ask.session_hint;
    bool is_timed = ask->returns_ms > 0;
    if (ask->hint > TIERCE_HINT_TTL ||
        (is_timed && ask->hint != TIERCE_HINT_SOON && ask->hint != TIERCE_HINT_LATER))
        return TIERCE_E_ARGUMENT;
    struct tierce__native_held_view *view = tierce__native_view_get(call->client, ask->view);
    if (view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    struct tierce_view *of = view->shared->view;
    int rc = is_timed ? tierce_session_returns(of, ask->session, ask->returns_ms)
                      : tierce_session_hint(of, ask->session, (enum tierce_hint)ask->hint);
    tierce__native_view_put(call->client, view);
    return rc;
}

static int answer_note_request(struct tierce__native_call *call)
{
    const struct tierce__native_note *ask = &call->ask.note_request;
    struct tierce_request request = {.size = sizeof(request),
                                     .name = ask->name,
                                     .session = ask->session,
                                     .tokens = ask->tokens,
                                     .unit_tokens = ask->unit_tokens,
                                     .local_tokens = ask->local_tokens,
                                     .looked_tokens = ask->looked_tokens,
                                     .found_tokens = ask->found_tokens,
                                     .loaded_tokens = ask->loaded_tokens,
                                     .failed_tokens = ask->failed_tokens,
                                     .limit = (enum tierce_request_limit)ask->limit};
    return tierce_request_note(call->native->engine, &request);
}

/* Tokens that are not the chain's are rejected: no event has them. */
static int answer_note_tokens(struct tierce__native_call *call)
{
    const struct tierce__native_tokens *ask = &call->ask.note_tokens;
    struct tierce__native_about about;
    int32_t *claimed = NULL;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, 0, 0);
    if (rc == 0) {
        const struct tierce_view *view = about.view->shared->view;
        uint32_t block_tokens = view->full.geometry.block_tokens;
        claimed = tierce__alloc((size_t)ask->tokens.count * sizeof(*claimed) + 1);
        for (uint32_t i = 0; claimed != NULL && i < ask->tokens.count; i++)
            claimed[i] = (int32_t)tierce__load_le32(ask->tokens.bytes + (size_t)i * 4);
        rc = claimed == NULL ? -ENOMEM
             : ask->tokens.count % block_tokens != 0
                 ? TIERCE_E_ARGUMENT
                 : tierce__kv_tokens_claim(call->native->engine->kv_tokens, view,
                                           about.chain->chain, ask->from_block,
                                           ask->tokens.count / block_tokens, claimed);
    }
    tierce__free(claimed);
    tierce__native_end_about(call, &about);
    return rc;
}

/* ---- store ----------------------------------------------------------------------------------- */

static int tell_rooms(struct tierce__native_call *call, struct tierce__native_held_store *store)
{
    struct tierce__native_reservation *say = &call->say.store_begin;
    size_t count;
    const struct tierce__room *rooms = tierce__reserve_rooms(store->share.reservation, &count);
    uint8_t *row =
        tierce__native_make_rows(call, &say->chunks, count, TIERCE__NATIVE_RESERVED_BYTES);
    if (row == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++, row += TIERCE__NATIVE_RESERVED_BYTES) {
        TIERCE_ASSERT((uint64_t)(rooms[i].object - call->native->memory.base) + rooms[i].bytes <=
                      call->native->memory.bytes);
        store->bytes += rooms[i].bytes;
        tierce__native_put_reserved(
            row, &(struct tierce__native_reserved){
                     .offset = (uint64_t)(rooms[i].object - call->native->memory.base),
                     .bytes = rooms[i].bytes,
                     .index = (uint32_t)rooms[i].index,
                     .block_count = rooms[i].block_count});
    }
    return 0;
}

static int reserve(struct tierce__native_call *call, const struct tierce__native_about *about,
                   uint64_t from_block)
{
    const struct tierce__native_store *ask = &call->ask.store_begin;
    uint32_t pin_ms = call->native->node->config->pin_ms;
    struct tierce__reserve_what what = {.chain = about->chain->chain,
                                        .from_block = from_block,
                                        .to_block = ask->to_block,
                                        .session = ask->session,
                                        .tail = ask->tail != 0,
                                        .tiers = ask->tiers,
                                        .tag = ask->tag};
    struct tierce__native_held_store *store = tierce__calloc(1, sizeof(*store));
    if (store == NULL)
        return -ENOMEM;
    int rc = tierce__share_begin(&store->share, about->view->shared->view, &about->view->part,
                                 ask->write, &what);
    if (rc < 0 || store->share.reservation == NULL) {
        tierce__free(store);
        return rc;
    }
    store->part = about->view->part;
    store->open.deadline_ns = tierce__deadline_in_ms(pin_ms);
    call->say.store_begin.left_ms = pin_ms;
    rc = tell_rooms(call, store);
    bool is_held = rc == 0 && tierce__native_hold(call->client, store->bytes);
    if (is_held) {
        call->say.store_begin.store =
            tierce__native_add(call->client, TIERCE__NATIVE_STORES, &store->open);
        if (call->say.store_begin.store > 0)
            return 0;
    }
    (void)tierce__share_end(&store->share, false);
    if (is_held)
        tierce__native_unhold(call->client, store->bytes);
    tierce__free(store);
    return rc < 0 ? rc : is_held ? TIERCE_E_LIMIT : TIERCE_E_FULL;
}

static int begin_store(struct tierce__native_call *call, uint64_t from_block)
{
    const struct tierce__native_store *ask = &call->ask.store_begin;
    struct tierce__native_about about;
    if (tierce__native_is_draining(call))
        return TIERCE_E_CLOSED;
    int rc =
        tierce__native_begin_about(call, &about, ask->view, &ask->chain, from_block, ask->to_block);
    if (rc == 0)
        rc = reserve(call, &about, from_block);
    if (rc == TIERCE_E_FULL || rc == TIERCE_E_LIMIT)
        tierce__node_count(call->native->node, TIERCE__NODE_native_refused, 1);
    tierce__native_end_about(call, &about);
    return rc;
}

static int answer_store_begin(struct tierce__native_call *call)
{
    return begin_store(call, 0);
}

/* The fields of STORE_BEGIN come first in both messages. */
static int answer_group_store_begin(struct tierce__native_call *call)
{
    return begin_store(call, call->ask.group_store_begin.from_block);
}

static int answer_store_end(struct tierce__native_call *call)
{
    const struct tierce__native_store_end *ask = &call->ask.store_end;
    bool later; /* a push is being added to it, or it expires: either ends it */
    struct tierce__native_open *open =
        tierce__native_take(call->client, TIERCE__NATIVE_STORES, ask->store, &later);
    if (open == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    struct tierce__native_held_store *store =
        TIERCE__CONTAINER_OF(open, struct tierce__native_held_store, open);
    bool was_late = store->late;
    int64_t blocks = tierce__native_end_store(call->client, store, ask->complete == 1);
    call->say.store_end.count = (uint64_t)blocks;
    return was_late ? TIERCE__NATIVE_UNKNOWN : 0;
}

static int answer_store_layers(struct tierce__native_call *call)
{
    const struct tierce__native_store_layers *ask = &call->ask.store_layers;
    tierce__native_note_layers(call->client, ask->store, ask->layers);
    return 0;
}

/* ---- prefetch -------------------------------------------------------------------------------- */

static int begin_prefetch(struct tierce__native_call *call, struct tierce__native_about *about)
{
    const struct tierce__native_prefetch *ask = &call->ask.prefetch_begin;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .flags = ask->flags,
                                        .session = ask->session,
                                        .from_block = ask->from_block,
                                        .tiers = ask->tiers,
                                        .timeout_ms = ask->timeout_ms};
    bool pins = (ask->flags & TIERCE_PREFETCH_PIN) != 0;
    if ((ask->flags & ~(TIERCE_PREFETCH_PIN | TIERCE_PREFETCH_VERIFY)) != 0 ||
        (pins && ask->session == 0))
        return TIERCE_E_ARGUMENT;
    /* The pins are made when it is through. */
    uint64_t pin_ms = (uint64_t)call->native->node->config->pin_ms + TIERCE_PIN_MS_MAX;
    if (pins && !tierce__native_pin(call->client, about->view, ask->session, (uint32_t)pin_ms))
        return TIERCE_E_LIMIT;
    struct tierce__native_held_prefetch *made = tierce__calloc(1, sizeof(*made));
    if (made == NULL)
        return -ENOMEM;
    int rc = tierce_prefetch_begin(&made->prefetch, about->view->shared->view, about->chain->chain,
                                   ask->to_block, &opts);
    if (rc < 0) {
        tierce__free(made);
        return rc;
    }
    made->view = tierce__native_keep_view(about);
    call->say.view.number =
        tierce__native_add(call->client, TIERCE__NATIVE_PREFETCHES, &made->open);
    if (call->say.view.number > 0)
        return 0;
    tierce__native_end_prefetch(call->client, made);
    return TIERCE_E_LIMIT;
}

static int answer_prefetch_begin(struct tierce__native_call *call)
{
    const struct tierce__native_prefetch *ask = &call->ask.prefetch_begin;
    struct tierce__native_about about;
    if (tierce__native_is_draining(call))
        return TIERCE_E_CLOSED;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, ask->from_block,
                                        ask->to_block);
    if (rc == 0)
        rc = begin_prefetch(call, &about);
    tierce__native_end_about(call, &about);
    return rc;
}

static struct tierce__native_held_prefetch *prefetch_of(struct tierce__native_open *open)
{
    return open != NULL ? TIERCE__CONTAINER_OF(open, struct tierce__native_held_prefetch, open)
                        : NULL;
}

static int tell_come(struct tierce__native_call *call, const struct tierce_prefetch_result *result)
{
    struct tierce__native_come *say = &call->say.prefetch_poll;
    *say =
        (struct tierce__native_come){.blocks = result->blocks,
                                     .memory_blocks = result->memory_blocks,
                                     .flags = (result->final ? TIERCE__NATIVE_FINAL : 0) |
                                              (result->cancelled ? TIERCE__NATIVE_CANCELLED : 0) |
                                              (result->late ? TIERCE__NATIVE_LATE : 0) |
                                              (result->short_of_memory ? TIERCE__NATIVE_SHORT : 0)};
    uint8_t *row =
        tierce__native_make_rows(call, &say->tiers, result->tier_count, TIERCE__NATIVE_TIER_BYTES);
    if (row == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < result->tier_count; i++, row += TIERCE__NATIVE_TIER_BYTES) {
        struct tierce__native_come_tier tier = {.promised = result->tiers[i].promised,
                                                .loaded = result->tiers[i].loaded};
        size_t n = strnlen(result->tiers[i].name, sizeof(tier.name) - 1);
        memcpy(tier.name, result->tiers[i].name, n);
        tierce__native_put_tier(row, &tier);
    }
    return 0;
}

static int answer_prefetch_poll(struct tierce__native_call *call)
{
    const struct tierce__native_poll *ask = &call->ask.prefetch_poll;
    struct tierce__native_held_prefetch *held =
        prefetch_of(tierce__native_get(call->client, TIERCE__NATIVE_PREFETCHES, ask->prefetch));
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    if (held == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    uint32_t wait_ms = ask->wait_ms < POLL_MS_MAX ? ask->wait_ms : POLL_MS_MAX;
    int late = wait_ms > 0 ? tierce_prefetch_wait(held->prefetch, wait_ms) : 0;
    (void)late; /* reports the progress so far */
    (void)tierce_prefetch_poll(held->prefetch, &result);
    if (!tierce__native_put(call->client, &held->open))
        tierce__native_end_prefetch(call->client, held);
    return tell_come(call, &result);
}

static int answer_prefetch_end(struct tierce__native_call *call)
{
    bool later;
    struct tierce__native_held_prefetch *held = prefetch_of(tierce__native_take(
        call->client, TIERCE__NATIVE_PREFETCHES, call->ask.prefetch_end.number, &later));
    if (held == NULL)
        return later ? 0 : TIERCE__NATIVE_UNKNOWN;
    tierce__native_end_prefetch(call->client, held);
    return 0;
}

/* ---- the whole engine ------------------------------------------------------------------------ */

/* In pieces, so that a node that ends need not wait for a long one. */
static int answer_flush(struct tierce__native_call *call)
{
    uint32_t asked = call->ask.flush.timeout_ms, left = asked < FLUSH_MS_MAX ? asked : FLUSH_MS_MAX;
    int rc = TIERCE_E_DEADLINE;
    while (rc == TIERCE_E_DEADLINE && left > 0 &&
           !atomic_load_explicit(&call->native->is_ending, memory_order_relaxed)) {
        uint32_t piece = left < FLUSH_MS_PIECE ? left : FLUSH_MS_PIECE;
        rc = tierce_engine_flush(call->native->engine, piece);
        left -= piece;
    }
    return rc;
}

static int answer_clear(struct tierce__native_call *call)
{
    const struct tierce__native_clear *ask = &call->ask.clear;
    struct tierce__native_held_view *view = NULL;
    if (ask->view != 0) {
        view = tierce__native_view_get(call->client, ask->view);
        if (view == NULL)
            return TIERCE__NATIVE_UNKNOWN;
    }
    int64_t chunks = tierce_engine_clear(call->native->engine, ask->tiers,
                                         view != NULL ? view->shared->view : NULL);
    if (view != NULL)
        tierce__native_view_put(call->client, view);
    call->say.store_end.count = chunks > 0 ? (uint64_t)chunks : 0;
    return chunks < 0 ? (int)chunks : 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int (*const answers[TIERCE__NATIVE_OPS])(struct tierce__native_call *call) = {
    [TIERCE__NATIVE_HELLO] = answer_hello,
    [TIERCE__NATIVE_PING] = answer_ping,
    [TIERCE__NATIVE_VIEW] = answer_view,
    [TIERCE__NATIVE_VIEW_CLOSE] = answer_view_close,
    [TIERCE__NATIVE_COMPUTED] = answer_computed,
    [TIERCE__NATIVE_LOOKUP] = answer_lookup,
    [TIERCE__NATIVE_DURABLE] = answer_durable,
    [TIERCE__NATIVE_UNPIN] = answer_unpin,
    [TIERCE__NATIVE_LOAD_BEGIN] = tierce__native_answer_load_begin,
    [TIERCE__NATIVE_LOAD_WAIT] = tierce__native_answer_load_wait,
    [TIERCE__NATIVE_LOAD_END] = tierce__native_answer_load_end,
    [TIERCE__NATIVE_STORE_BEGIN] = answer_store_begin,
    [TIERCE__NATIVE_STORE_END] = answer_store_end,
    [TIERCE__NATIVE_PREFETCH_BEGIN] = answer_prefetch_begin,
    [TIERCE__NATIVE_PREFETCH_POLL] = answer_prefetch_poll,
    [TIERCE__NATIVE_PREFETCH_END] = answer_prefetch_end,
    [TIERCE__NATIVE_FLUSH] = answer_flush,
    [TIERCE__NATIVE_CLEAR] = answer_clear,
    [TIERCE__NATIVE_LOAD_NEXT] = tierce__native_answer_load_next,
    [TIERCE__NATIVE_GROUP_VIEW] = answer_group_view,
    [TIERCE__NATIVE_GROUP_STORE_BEGIN] = answer_group_store_begin,
    [TIERCE__NATIVE_NOTE_REQUEST] = answer_note_request,
    [TIERCE__NATIVE_HAND_OVER] = tierce__native_answer_hand_over,
    [TIERCE__NATIVE_NOTE_TOKENS] = answer_note_tokens,
    [TIERCE__NATIVE_PUSH_POLL] = tierce__native_answer_push_poll,
    [TIERCE__NATIVE_STORE_LAYERS] = answer_store_layers,
    [TIERCE__NATIVE_SESSION_HINT] = answer_session_hint,
};

static void note_begun(const struct tierce__native_call *call, enum tierce__native_op op)
{
    op = tierce__native_plain(op);
    uint64_t begun =
        op == TIERCE__NATIVE_LOAD_BEGIN    ? call->say.load_begin.load
        : op == TIERCE__NATIVE_STORE_BEGIN ? call->say.store_begin.store
        : op == TIERCE__NATIVE_PREFETCH_BEGIN || op == TIERCE__NATIVE_VIEW ? call->say.view.number
        : op == TIERCE__NATIVE_HAND_OVER && call->ask.hand_over.kind == TIERCE__NATIVE_HAND_PUSH
            ? call->say.hand_over.number
            : 0;
    call->connection->begun_by = begun != 0 ? op : 0;
    call->connection->begun = begun;
}

void tierce__native_end_unheard(struct tierce__native_connection *connection)
{
    struct tierce__native_call call = {
        .connection = connection, .client = connection->client, .native = connection->native};
    if (connection->begun_by == TIERCE__NATIVE_LOAD_BEGIN) {
        call.ask.load_end = (struct tierce__native_load_end){.load = connection->begun};
        (void)tierce__native_answer_load_end(&call);
    } else if (connection->begun_by == TIERCE__NATIVE_STORE_BEGIN) {
        call.ask.store_end = (struct tierce__native_store_end){.store = connection->begun};
        (void)answer_store_end(&call);
    } else if (connection->begun_by == TIERCE__NATIVE_VIEW) {
        call.ask.view_close.number = connection->begun;
        (void)answer_view_close(&call);
    } else if (connection->begun_by == TIERCE__NATIVE_HAND_OVER) {
        call.ask.hand_over = (struct tierce__native_hand){.kind = TIERCE__NATIVE_HAND_PUSH_CLOSE,
                                                          .number = connection->begun};
        (void)tierce__native_push_call(&call, call.why);
    } else {
        call.ask.prefetch_end.number = connection->begun;
        (void)answer_prefetch_end(&call);
    }
    connection->begun_by = 0;
}

int tierce__native_answer(struct tierce__native_connection *connection, uint32_t op,
                          const uint8_t *body, size_t body_bytes)
{
    struct tierce__native_call call = {
        .connection = connection, .client = connection->client, .native = connection->native};
    int rc = tierce__native_unpack_request(&call.ask, op, body, body_bytes);
    if (rc < 0)
        return rc;
    if ((connection->client == NULL) != (op == TIERCE__NATIVE_HELLO))
        return TIERCE_E_FORMAT;
    tierce__node_count(connection->native->node, TIERCE__NODE_native_questions, 1);
    int status = answers[op](&call);
    if (op == TIERCE__NATIVE_HELLO && status == TIERCE_E_FORMAT)
        return status;
    if (!tierce__native_is_answered((enum tierce__native_op)op)) {
        connection->out.used = 0;
        return 0;
    }
    if (status == 0)
        note_begun(&call, (enum tierce__native_op)op);
    return tierce__native_pack_answer(&connection->out, (enum tierce__native_op)op, status,
                                      &call.say);
}
