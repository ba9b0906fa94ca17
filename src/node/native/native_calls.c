/* SPDX-License-Identifier: Apache-2.0 */
#include "node/native/native_private.h"

#include <errno.h>
#include <string.h>

#include <tierce/operate.h>
#include <tierce/why.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

/* The requests of clients, one function each: [in] the request, [out] the answer; returns its
 * status. */

#define LAYERS_MAX 4096u
#define LOOKUP_FLAGS                                                                               \
    (TIERCE_LOOKUP_PIN | TIERCE_LOOKUP_MEMORY_ONLY | TIERCE_LOOKUP_NO_WAIT | TIERCE_LOOKUP_AGAIN)
#define POLL_MS_MAX    1000u
#define FLUSH_MS_MAX   600000u
#define FLUSH_MS_PIECE 1000u

_Static_assert(TIERCE__NATIVE_HASH == TIERCE_HASH_BYTES, "hashes of chains are sent as stored");

struct native_call {
    struct tierce__native_connection *connection;
    struct tierce__native_client *client;
    struct tierce__native *native;
    union tierce__native_request ask;
    union tierce__native_answer say;
};

/* Room for rows of the answer, or NULL. */
static uint8_t *make_rows(struct native_call *call, struct tierce__native_rows *rows, size_t count,
                          size_t row_bytes)
{
    struct tierce__native_connection *c = call->connection;
    size_t bytes = count * row_bytes;
    if (bytes > c->rows_room || c->rows == NULL) {
        size_t room = bytes + 4096;
        uint8_t *grown = tierce__realloc(c->rows, room);
        if (grown == NULL)
            return NULL;
        c->rows = grown;
        c->rows_room = room;
    }
    TIERCE_ASSERT(bytes <= c->rows_room);
    *rows = (struct tierce__native_rows){.bytes = c->rows, .count = (uint32_t)count};
    return c->rows;
}

/* A request about a chain in a view: holds both until done. */
struct about {
    struct tierce__native_held_view *view;
    struct tierce__native_held_chain *chain;
};

static int begin_about(struct native_call *call, struct about *about, uint64_t view,
                       const struct tierce__native_chain *chain, uint64_t from_block,
                       uint64_t to_block)
{
    *about = (struct about){0};
    about->view = tierce__native_view_get(call->client, view);
    if (about->view == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = tierce__native_chain_get(call->client, &about->chain, about->view, chain);
    if (rc == 0 && (from_block > to_block || to_block > tierce_chain_blocks(about->chain->chain)))
        rc = TIERCE_E_ARGUMENT;
    return rc;
}

static void end_about(struct native_call *call, struct about *about)
{
    if (about->chain != NULL)
        tierce__native_chain_put(call->client, about->chain);
    if (about->view != NULL)
        tierce__native_view_put(call->client, about->view);
}

/* Passes the reference to the object that is open on it. */
static struct tierce__native_held_view *keep_view(struct about *about)
{
    struct tierce__native_held_view *view = about->view;
    about->view = NULL;
    return view;
}

static bool is_draining(const struct native_call *call)
{
    return atomic_load_explicit(&call->native->is_draining, memory_order_relaxed);
}

/* ---- views ----------------------------------------------------------------------------------- */

static int answer_hello(struct native_call *call)
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
    call->say.hello = (struct tierce__native_welcome){.boot = native->boot,
                                                      .pool_bytes = native->memory.bytes,
                                                      .tiers = tierce__engine_tiers(native->engine),
                                                      .lookup_ms = config->lookup_ms,
                                                      .load_ms = config->load_ms,
                                                      .store_ms = config->store_ms,
                                                      .pin_ms = config->pin_ms,
                                                      .prefetch_ms = config->prefetch_ms};
    memcpy(call->say.hello.client, call->connection->client->id, TIERCE__NATIVE_ID_BYTES);
    return 0;
}

static int answer_ping(struct native_call *call)
{
    (void)call;
    return 0;
}

/* Numbers of four bytes; `out` has room for LAYERS_MAX. */
static void get_numbers(uint32_t *out, const struct tierce__native_rows *rows)
{
    TIERCE_ASSERT(rows->count <= LAYERS_MAX);
    for (uint32_t i = 0; i < rows->count; i++)
        out[i] = tierce__load_le32(rows->bytes + (size_t)i * 4);
}

/* `of`: NULL for the view of a whole model. */
static int open_view(struct native_call *call, const struct tierce__native_view *ask,
                     const struct tierce__native_group_view *of)
{
    uint32_t cell_bytes[LAYERS_MAX], layers[LAYERS_MAX];
    if (ask->cell_bytes.count > LAYERS_MAX || ask->tp_rank > UINT16_MAX ||
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

static int answer_view(struct native_call *call)
{
    return open_view(call, &call->ask.view, NULL);
}

/* A namespace of all layers has no layers of its own, so that it is rejected here. */
static int answer_group_view(struct native_call *call)
{
    const struct tierce__native_group_view *ask = &call->ask.group_view;
    return open_view(call, &ask->view, ask);
}

static int answer_view_close(struct native_call *call)
{
    uint64_t number = call->ask.view_close.number;
    return tierce__native_view_close(call->client, number) ? 0 : TIERCE__NATIVE_UNKNOWN;
}

static int answer_computed(struct native_call *call)
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

static int look_up(struct native_call *call, const struct about *about)
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

static int answer_lookup(struct native_call *call)
{
    const struct tierce__native_lookup *ask = &call->ask.lookup;
    struct about about;
    int rc = begin_about(call, &about, ask->view, &ask->chain, 0, ask->to_block);
    if (rc == 0)
        rc = look_up(call, &about);
    end_about(call, &about);
    return rc;
}

static int answer_durable(struct native_call *call)
{
    const struct tierce__native_lookup *ask = &call->ask.lookup;
    struct about about;
    int rc = begin_about(call, &about, ask->view, &ask->chain, 0, ask->to_block);
    if (rc == 0)
        rc = tierce_durable(about.view->shared->view, about.chain->chain, ask->to_block,
                            &call->say.lookup.blocks);
    end_about(call, &about);
    return rc;
}

static int answer_unpin(struct native_call *call)
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

static int answer_note_request(struct native_call *call)
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

/* ---- load ------------------------------------------------------------------------------------ */

static uint32_t load_ms(const struct native_call *call)
{
    const struct tierce__node_config *config = call->native->node->config;
    uint32_t asked = call->ask.load_begin.timeout_ms;
    return asked > 0 && asked < TIERCE_PIN_MS_MAX ? asked : config->load_ms;
}

static uint64_t leased_bytes(const struct tierce__load_lease *lease)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < lease->count; i++)
        bytes += lease->leased[i].object != NULL ? lease->leased[i].bytes : 0;
    return bytes;
}

/* The answer about a lease. */
static int answer_lease(struct native_call *call, const struct tierce__native_held_load *load)
{
    size_t count = load->lease->count;
    const struct tierce__leased *leased = load->lease->leased;
    struct tierce__native_loan *say = &call->say.load_begin;
    uint8_t *row = make_rows(call, &say->chunks, count, TIERCE__NATIVE_LENT_BYTES);
    if (row == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++, row += TIERCE__NATIVE_LENT_BYTES) {
        bool is_there = leased[i].object != NULL && !leased[i].failed;
        bool waits = leased[i].object == NULL && !leased[i].failed;
        TIERCE_ASSERT(!is_there ||
                      (uint64_t)(leased[i].object - call->native->memory.base) + leased[i].bytes <=
                          call->native->memory.bytes);
        struct tierce__native_lent out = {
            .offset = is_there ? (uint64_t)(leased[i].object - call->native->memory.base) : 0,
            .bytes = leased[i].bytes,
            .index = (uint32_t)leased[i].index,
            .block_count = leased[i].block_count,
            .from = leased[i].from,
            .to = leased[i].to,
            .kind = (uint8_t)leased[i].kind,
            .state = waits            ? TIERCE__NATIVE_WAITS
                     : !is_there      ? TIERCE__NATIVE_FAILED
                     : leased[i].here ? TIERCE__NATIVE_HERE
                                      : TIERCE__NATIVE_COMING,
            .origin = (uint8_t)leased[i].origin};
        memcpy(out.hash, leased[i].hash, TIERCE_HASH_BYTES);
        tierce__native_put_lent(row, &out);
    }
    return 0;
}

/* Pins that another client made stay, because others may load from them too. */
static int lend(struct native_call *call, struct about *about)
{
    const struct tierce__native_load *ask = &call->ask.load_begin;
    uint32_t timeout_ms = load_ms(call);
    uint64_t late_ms = (uint64_t)timeout_ms + call->native->node->config->pin_ms;
    struct tierce__native_held_load *load = tierce__calloc(1, sizeof(*load));
    if (load == NULL)
        return -ENOMEM;
    bool takes_pins = about->view->part.count == 1 &&
                      tierce__native_unpin(call->client, about->view, ask->session);
    struct tierce__load_lease_what what = {.chain = about->chain->chain,
                                           .from_block = ask->from_block,
                                           .to_block = ask->to_block,
                                           .session = ask->session,
                                           .part = &about->view->part,
                                           .timeout_ms = timeout_ms,
                                           .wait_ms = ask->wait_ms,
                                           .tiers = ask->tiers,
                                           .chain_stays = true,
                                           .keeps_pins = !takes_pins};
    int rc = tierce__load_lease_begin(&load->lease, about->view->shared->view, &what);
    if (rc < 0) {
        tierce__free(load);
        return rc;
    }
    load->bytes = leased_bytes(load->lease);
    load->open.deadline_ns = tierce__now_ns() + late_ms * TIERCE__MS_NS;
    call->say.load_begin.left_ms = (uint32_t)(late_ms < UINT32_MAX ? late_ms : UINT32_MAX);
    bool is_held = tierce__native_hold(call->client, load->bytes);
    rc = is_held ? answer_lease(call, load) : TIERCE_E_FULL;
    if (rc == 0) {
        load->view = keep_view(about);
        load->chain = about->chain;
        about->chain = NULL;
        uint64_t number = tierce__native_add(call->client, TIERCE__NATIVE_LOADS, &load->open);
        call->say.load_begin.load = number;
        if (number > 0)
            return 0;
        tierce__native_end_load(call->client, load, NULL);
        return TIERCE_E_LIMIT;
    }
    load->lease->ops->end(load->lease, NULL);
    if (is_held)
        tierce__native_unhold(call->client, load->bytes);
    tierce__free(load);
    return rc;
}

static int answer_load_begin(struct native_call *call)
{
    const struct tierce__native_load *ask = &call->ask.load_begin;
    struct about about;
    if (is_draining(call))
        return TIERCE_E_CLOSED;
    int rc = begin_about(call, &about, ask->view, &ask->chain, ask->from_block, ask->to_block);
    if (rc == 0)
        rc = lend(call, &about);
    if (rc == TIERCE_E_FULL || rc == TIERCE_E_LIMIT)
        tierce__node_count(call->native->node, TIERCE__NODE_native_refused, 1);
    end_about(call, &about);
    return rc;
}

static struct tierce__native_held_load *load_of(struct tierce__native_open *open)
{
    return open != NULL ? TIERCE__CONTAINER_OF(open, struct tierce__native_held_load, open) : NULL;
}

/* A load that a question was about, which may have been ended meanwhile. */
static void put_load(struct native_call *call, struct tierce__native_held_load *load)
{
    if (!tierce__native_put(call->client, &load->open))
        tierce__native_end_load(call->client, load, NULL);
}

static int wait_for_layer(struct native_call *call, struct tierce__native_held_load *load)
{
    struct tierce__native_ready *say = &call->say.load_wait;
    const struct tierce_part *part = &load->view->part;
    uint32_t layer = call->ask.load_wait.layer;
    if (layer >= part->layer_count)
        return TIERCE_E_ARGUMENT;
    layer += part->first_layer;
    size_t count = load->lease->count;
    uint8_t *states = make_rows(call, &say->states, count, 1);
    if (states == NULL)
        return -ENOMEM;
    load->lease->ops->ahead(load->lease, layer);
    for (size_t i = 0; i < count; i++)
        states[i] = load->lease->ops->wait(load->lease, i, layer) ? TIERCE__NATIVE_HERE
                                                                  : TIERCE__NATIVE_FAILED;
    say->ready = tierce__load_lease_ready(load->lease, layer) - part->first_layer;
    return 0;
}

static int answer_load_wait(struct native_call *call)
{
    struct tierce__native_held_load *load =
        load_of(tierce__native_get(call->client, TIERCE__NATIVE_LOADS, call->ask.load_wait.load));
    if (load == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = wait_for_layer(call, load);
    put_load(call, load);
    return rc;
}

/* Handles the client's verdict on a chunk. The node verifies a bad verdict itself, so that a client
 * cannot remove chunks of others. */
static void judge_chunk(struct tierce__load_lease *lease, size_t i, uint32_t verdict)
{
    TIERCE_DASSERT(i < lease->count);
    if (verdict == TIERCE__NATIVE_UNUSED)
        tierce__load_lease_skip(lease, i);
    else if (verdict != TIERCE__NATIVE_GOOD || !lease->leased[i].here)
        tierce__load_lease_look(lease, i, verdict == TIERCE__NATIVE_BAD_CELLS);
}

/* Takes the chunk with all its layers. */
static bool take_chunk(struct tierce__native_client *client, struct tierce__native_held_load *load,
                       size_t i)
{
    const struct tierce_part *part = &load->view->part;
    bool there = load->lease->ops->take(load->lease, i);
    there = tierce__native_rehold(client, &load->bytes, leased_bytes(load->lease)) && there;
    for (uint32_t l = 0; l < part->layer_count && there; l++)
        there = load->lease->ops->wait(load->lease, i, part->first_layer + l);
    if (!there) {
        tierce__load_lease_skip(load->lease, i);
        load->lease->ops->give_back(load->lease, i);
    }
    return there;
}

static int lend_next(struct native_call *call, struct tierce__native_held_load *load)
{
    const struct tierce__native_next *ask = &call->ask.load_next;
    size_t count = load->lease->count;
    const struct tierce__leased *leased = load->lease->leased;
    if (ask->chunk >= count || ask->chunk < load->next || ask->verdict > TIERCE__NATIVE_UNUSED ||
        !load->lease->is_too_large)
        return TIERCE_E_ARGUMENT;
    if (load->next > 0) {
        judge_chunk(load->lease, load->next - 1, ask->verdict);
        load->lease->ops->give_back(load->lease, load->next - 1);
    }
    load->next = (size_t)ask->chunk + 1;
    call->say.load_next = (struct tierce__native_passed){.state = TIERCE__NATIVE_FAILED};
    if (!take_chunk(call->client, load, ask->chunk))
        return 0;
    leased += ask->chunk;
    TIERCE_ASSERT((uint64_t)(leased->object - call->native->memory.base) + leased->bytes <=
                  call->native->memory.bytes);
    call->say.load_next = (struct tierce__native_passed){
        .offset = (uint64_t)(leased->object - call->native->memory.base),
        .state = TIERCE__NATIVE_HERE,
        .origin = (uint32_t)leased->origin};
    return 0;
}

static int answer_load_next(struct native_call *call)
{
    struct tierce__native_held_load *load =
        load_of(tierce__native_get(call->client, TIERCE__NATIVE_LOADS, call->ask.load_next.load));
    if (load == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = lend_next(call, load);
    put_load(call, load);
    return rc;
}

/* Handles the client's verdict on each chunk. blocks[i]: loaded. */
static int judge(const struct native_call *call, const struct tierce__native_held_load *load,
                 uint32_t *blocks)
{
    const struct tierce__native_rows *rows = &call->ask.load_end.verdicts;
    struct tierce__native_result result;
    size_t count = load->lease->count;
    const struct tierce__leased *leased = load->lease->leased;
    if (rows->count != count)
        return TIERCE_E_ARGUMENT;
    for (uint32_t i = 0; i < count; i++) {
        if (tierce__native_get_result(&result, rows, i) < 0 ||
            result.blocks > leased[i].to - leased[i].from)
            return TIERCE_E_ARGUMENT;
        judge_chunk(load->lease, i, result.verdict);
        blocks[i] = leased[i].failed ? 0 : result.blocks;
    }
    return 0;
}

static int answer_load_end(struct native_call *call)
{
    const struct tierce__native_load_end *ask = &call->ask.load_end;
    bool later;
    struct tierce__native_held_load *load =
        load_of(tierce__native_take(call->client, TIERCE__NATIVE_LOADS, ask->load, &later));
    if (load == NULL)
        return later ? 0 : TIERCE__NATIVE_UNKNOWN;
    size_t count = load->lease->count;
    uint32_t *blocks = ask->verdicts.count > 0 ? tierce__calloc(count, sizeof(*blocks)) : NULL;
    int rc = blocks != NULL ? judge(call, load, blocks) : 0;
    tierce__native_end_load(call->client, load, rc == 0 ? blocks : NULL);
    tierce__free(blocks);
    return rc;
}

/* ---- store ----------------------------------------------------------------------------------- */

static int tell_rooms(struct native_call *call, struct tierce__native_held_store *store)
{
    struct tierce__native_reservation *say = &call->say.store_begin;
    size_t count;
    const struct tierce__room *rooms = tierce__reserve_rooms(store->share.reservation, &count);
    uint8_t *row = make_rows(call, &say->chunks, count, TIERCE__NATIVE_RESERVED_BYTES);
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

static int reserve(struct native_call *call, const struct about *about, uint64_t from_block)
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

static int begin_store(struct native_call *call, uint64_t from_block)
{
    const struct tierce__native_store *ask = &call->ask.store_begin;
    struct about about;
    if (is_draining(call))
        return TIERCE_E_CLOSED;
    int rc = begin_about(call, &about, ask->view, &ask->chain, from_block, ask->to_block);
    if (rc == 0)
        rc = reserve(call, &about, from_block);
    if (rc == TIERCE_E_FULL || rc == TIERCE_E_LIMIT)
        tierce__node_count(call->native->node, TIERCE__NODE_native_refused, 1);
    end_about(call, &about);
    return rc;
}

static int answer_store_begin(struct native_call *call)
{
    return begin_store(call, 0);
}

/* The fields of STORE_BEGIN come first in both messages. */
static int answer_group_store_begin(struct native_call *call)
{
    return begin_store(call, call->ask.group_store_begin.from_block);
}

static int answer_store_end(struct native_call *call)
{
    const struct tierce__native_store_end *ask = &call->ask.store_end;
    bool later; /* no store is busy */
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

/* ---- prefetch -------------------------------------------------------------------------------- */

static int begin_prefetch(struct native_call *call, struct about *about)
{
    const struct tierce__native_prefetch *ask = &call->ask.prefetch_begin;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .flags = ask->flags,
                                        .session = ask->session,
                                        .from_block = ask->from_block,
                                        .tiers = ask->tiers,
                                        .timeout_ms = ask->timeout_ms};
    bool pins = (ask->flags & TIERCE_PREFETCH_PIN) != 0;
    if ((ask->flags & ~TIERCE_PREFETCH_PIN) != 0 || (pins && ask->session == 0))
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
    made->view = keep_view(about);
    call->say.view.number =
        tierce__native_add(call->client, TIERCE__NATIVE_PREFETCHES, &made->open);
    if (call->say.view.number > 0)
        return 0;
    tierce__native_end_prefetch(call->client, made);
    return TIERCE_E_LIMIT;
}

static int answer_prefetch_begin(struct native_call *call)
{
    const struct tierce__native_prefetch *ask = &call->ask.prefetch_begin;
    struct about about;
    if (is_draining(call))
        return TIERCE_E_CLOSED;
    int rc = begin_about(call, &about, ask->view, &ask->chain, ask->from_block, ask->to_block);
    if (rc == 0)
        rc = begin_prefetch(call, &about);
    end_about(call, &about);
    return rc;
}

static struct tierce__native_held_prefetch *prefetch_of(struct tierce__native_open *open)
{
    return open != NULL ? TIERCE__CONTAINER_OF(open, struct tierce__native_held_prefetch, open)
                        : NULL;
}

static int tell_come(struct native_call *call, const struct tierce_prefetch_result *result)
{
    struct tierce__native_come *say = &call->say.prefetch_poll;
    *say =
        (struct tierce__native_come){.blocks = result->blocks,
                                     .memory_blocks = result->memory_blocks,
                                     .flags = (result->final ? TIERCE__NATIVE_FINAL : 0) |
                                              (result->cancelled ? TIERCE__NATIVE_CANCELLED : 0) |
                                              (result->late ? TIERCE__NATIVE_LATE : 0) |
                                              (result->short_of_memory ? TIERCE__NATIVE_SHORT : 0)};
    uint8_t *row = make_rows(call, &say->tiers, result->tier_count, TIERCE__NATIVE_TIER_BYTES);
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

static int answer_prefetch_poll(struct native_call *call)
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

static int answer_prefetch_end(struct native_call *call)
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
static int answer_flush(struct native_call *call)
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

static int answer_clear(struct native_call *call)
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

static int (*const answers[TIERCE__NATIVE_OPS])(struct native_call *call) = {
    [TIERCE__NATIVE_HELLO] = answer_hello,
    [TIERCE__NATIVE_PING] = answer_ping,
    [TIERCE__NATIVE_VIEW] = answer_view,
    [TIERCE__NATIVE_VIEW_CLOSE] = answer_view_close,
    [TIERCE__NATIVE_COMPUTED] = answer_computed,
    [TIERCE__NATIVE_LOOKUP] = answer_lookup,
    [TIERCE__NATIVE_DURABLE] = answer_durable,
    [TIERCE__NATIVE_UNPIN] = answer_unpin,
    [TIERCE__NATIVE_LOAD_BEGIN] = answer_load_begin,
    [TIERCE__NATIVE_LOAD_WAIT] = answer_load_wait,
    [TIERCE__NATIVE_LOAD_END] = answer_load_end,
    [TIERCE__NATIVE_STORE_BEGIN] = answer_store_begin,
    [TIERCE__NATIVE_STORE_END] = answer_store_end,
    [TIERCE__NATIVE_PREFETCH_BEGIN] = answer_prefetch_begin,
    [TIERCE__NATIVE_PREFETCH_POLL] = answer_prefetch_poll,
    [TIERCE__NATIVE_PREFETCH_END] = answer_prefetch_end,
    [TIERCE__NATIVE_FLUSH] = answer_flush,
    [TIERCE__NATIVE_CLEAR] = answer_clear,
    [TIERCE__NATIVE_LOAD_NEXT] = answer_load_next,
    [TIERCE__NATIVE_GROUP_VIEW] = answer_group_view,
    [TIERCE__NATIVE_GROUP_STORE_BEGIN] = answer_group_store_begin,
    [TIERCE__NATIVE_NOTE_REQUEST] = answer_note_request,
};

static void note_begun(const struct native_call *call, enum tierce__native_op op)
{
    op = tierce__native_plain(op);
    uint64_t begun = op == TIERCE__NATIVE_LOAD_BEGIN    ? call->say.load_begin.load
                     : op == TIERCE__NATIVE_STORE_BEGIN ? call->say.store_begin.store
                     : op == TIERCE__NATIVE_PREFETCH_BEGIN || op == TIERCE__NATIVE_VIEW
                         ? call->say.view.number
                         : 0;
    call->connection->begun_by = begun != 0 ? op : 0;
    call->connection->begun = begun;
}

void tierce__native_end_unheard(struct tierce__native_connection *connection)
{
    struct native_call call = {
        .connection = connection, .client = connection->client, .native = connection->native};
    if (connection->begun_by == TIERCE__NATIVE_LOAD_BEGIN) {
        call.ask.load_end = (struct tierce__native_load_end){.load = connection->begun};
        (void)answer_load_end(&call);
    } else if (connection->begun_by == TIERCE__NATIVE_STORE_BEGIN) {
        call.ask.store_end = (struct tierce__native_store_end){.store = connection->begun};
        (void)answer_store_end(&call);
    } else if (connection->begun_by == TIERCE__NATIVE_VIEW) {
        call.ask.view_close.number = connection->begun;
        (void)answer_view_close(&call);
    } else {
        call.ask.prefetch_end.number = connection->begun;
        (void)answer_prefetch_end(&call);
    }
    connection->begun_by = 0;
}

int tierce__native_answer(struct tierce__native_connection *connection, uint32_t op,
                          const uint8_t *body, size_t body_bytes)
{
    struct native_call call = {
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
    if (status == 0)
        note_begun(&call, (enum tierce__native_op)op);
    return tierce__native_pack_answer(&connection->out, (enum tierce__native_op)op, status,
                                      &call.say);
}
