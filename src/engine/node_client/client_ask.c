/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lender of an engine without tiers: its opening, the table, and the requests to its node about
 * views, lookups and pins. An absent or late node, or a node that does not know the view, is a
 * miss.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/engine_config.h"
#include "engine/node_client/client.h"
#include "engine/observe/operate.h"
#include "engine/prefetch/prefetch_private.h"
#include "engine/view.h"
#include "core/key/key.h"

#define FLUSH_GRACE_NS UINT64_C(1000000000)

/* ---- views ---- */

struct tierce__client_view {
    char *weights, *model, *kv_dtype, *quantization, *layout;
    /* Under CLIENT: the peer that was asked for the view, and its number there; 0: rejected. */
    struct tierce__lock lock;
    uint64_t peer;
    uint64_t number;
};

static void free_names(struct tierce__client_view *v)
{
    tierce__free(v->weights);
    tierce__free(v->model);
    tierce__free(v->kv_dtype);
    tierce__free(v->quantization);
    tierce__free(v->layout);
    tierce__lock_fini(&v->lock);
    tierce__free(v);
}

/* Texts of a namespace may be left out. */
static char *copy_text(const char *text)
{
    return tierce__strdup(text != NULL ? text : "");
}

static int open_view(struct tierce_view *view, const struct tierce_namespace *ns)
{
    struct tierce__client_view *v = tierce__calloc(1, sizeof(*v));
    if (v == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(view->remote == NULL);
    tierce__lock_init(&v->lock, TIERCE__LOCK_CLIENT);
    v->weights = copy_text(ns->weights);
    v->model = copy_text(ns->model);
    v->kv_dtype = copy_text(ns->kv_dtype);
    v->quantization = copy_text(ns->quantization);
    v->layout = copy_text(ns->layout);
    if (v->weights == NULL || v->model == NULL || v->kv_dtype == NULL || v->quantization == NULL ||
        v->layout == NULL) {
        free_names(v);
        return -ENOMEM;
    }
    view->remote = v;
    return 0;
}

static uint64_t soon(const struct tierce_view *view)
{
    return tierce__deadline_in_ms(view->engine->settings.lookup_ms);
}

static void put_numbers(uint8_t *out, const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        tierce__store_le32(out + 4 * (size_t)i, numbers[i]);
}

/* Describes the view in a request, which it returns; numbers: room for two of four bytes for each
 * layer. */
static enum tierce__native_op describe(union tierce__native_request *out,
                                       const struct tierce_view *view, uint8_t *numbers)
{
    const struct tierce__client_view *v = view->remote;
    const struct tierce__geometry *g = &view->full.geometry;
    TIERCE_DASSERT(view->part.first_layer + view->part.layer_count <= g->layer_count);
    put_numbers(numbers, g->cell_bytes, g->layer_count);
    out->view =
        (struct tierce__native_view){.weights = v->weights,
                                     .model = v->model,
                                     .kv_dtype = v->kv_dtype,
                                     .quantization = v->quantization,
                                     .layout = v->layout,
                                     .cell_bytes = {numbers, g->layer_count},
                                     .block_tokens = g->block_tokens,
                                     .chunk_blocks = view->chunk_blocks,
                                     .algo = view->algo,
                                     .tp_rank = view->key.shard.tp_rank,
                                     .tp_size = view->key.shard.tp_size,
                                     .pp_rank = view->key.shard.pp_rank,
                                     .pp_size = view->key.shard.pp_size,
                                     .first_layer = view->part.first_layer,
                                     .layer_count = view->part.layer_count,
                                     .part_index = view->part.index,
                                     .part_count = view->part.count,
                                     .engine = tierce__client_engine_name(view->engine->client)};
    if (view->group == TIERCE_GROUP_ALL)
        return TIERCE__NATIVE_VIEW;
    uint8_t *layers = numbers + 4 * (size_t)g->layer_count;
    put_numbers(layers, view->layers, g->layer_count);
    out->group_view.group = (uint32_t)view->group;
    out->group_view.window = view->window;
    out->group_view.layers = (struct tierce__native_rows){layers, g->layer_count};
    return TIERCE__NATIVE_GROUP_VIEW;
}

static void end_view(struct tierce__node_session *peer, uint64_t number, uint64_t deadline_ns)
{
    TIERCE_DASSERT(number != 0);
    union tierce__native_request question = {.view_close = {number}};
    (void)tierce__node_session_tell(peer, TIERCE__NATIVE_VIEW_CLOSE, &question, deadline_ns);
}

/* Opens the view at a peer: its number, or 0 if that rejects it; or an error. */
static int64_t introduce(const struct tierce_view *view, struct tierce__node_session *peer,
                         uint64_t deadline_ns)
{
    uint8_t *numbers = tierce__alloc(8 * (size_t)view->full.geometry.layer_count);
    if (numbers == NULL)
        return -ENOMEM;
    union tierce__native_request question;
    struct tierce__asking asking;
    enum tierce__native_op op = describe(&question, view, numbers);
    int rc = tierce__node_session_ask(&asking, peer, op, &question, deadline_ns);
    tierce__free(numbers);
    if (rc == 0) {
        uint64_t number = asking.answer.view.number;
        tierce__node_session_done(&asking);
        return number <= INT64_MAX ? (int64_t)number : TIERCE_E_FORMAT;
    }
    if (rc != TIERCE_E_ARGUMENT && rc != TIERCE_E_LIMIT)
        return rc < 0 ? rc : TIERCE_E_FORMAT;
    tierce__log(TIERCE_LOG_ERROR, "node_refuses_view",
                "reason=\"%s\" consequence=\"nothing in this view is found or stored\"",
                tierce_strerror(rc));
    return 0;
}

struct tierce__node_session *tierce__client_view_peer(const struct tierce_view *view,
                                                      uint64_t *number, uint64_t deadline_ns)
{
    struct tierce__client_view *v = view->remote;
    struct tierce__node_session *peer = tierce__client_peer(view->engine->client, deadline_ns);
    if (peer == NULL)
        return NULL;
    uint64_t who = tierce__node_session_number(peer);
    TIERCE_DASSERT(who != 0);
    tierce__lock_take(&v->lock);
    bool known = v->peer == who;
    *number = v->number;
    tierce__lock_drop(&v->lock);
    if (!known) {
        int64_t made = introduce(view, peer, deadline_ns);
        *number = made > 0 ? (uint64_t)made : 0;
        tierce__lock_take(&v->lock);
        bool late = v->peer == who; /* another thread was faster: its number stays */
        uint64_t theirs = v->number;
        if (!late && made >= 0) {
            v->peer = who;
            v->number = (uint64_t)made;
        }
        tierce__lock_drop(&v->lock);
        if (late && made > 0)
            end_view(peer, (uint64_t)made, deadline_ns);
        *number = late ? theirs : *number;
    }
    if (*number != 0)
        return peer;
    tierce__node_session_release(peer);
    return NULL;
}

static void close_view(struct tierce_view *view)
{
    struct tierce__client_view *v = view->remote;
    if (v == NULL)
        return;
    if (v->number != 0 && tierce__client_is_connected(view->engine->client)) {
        uint64_t deadline_ns = soon(view);
        struct tierce__node_session *peer = tierce__client_peer(view->engine->client, deadline_ns);
        if (peer != NULL && tierce__node_session_number(peer) == v->peer)
            end_view(peer, v->number, deadline_ns);
        tierce__node_session_release(peer);
    }
    free_names(v);
    view->remote = NULL;
}

int tierce__client_miss(const struct tierce_view *view, int status)
{
    if (status == TIERCE__NATIVE_UNKNOWN) {
        tierce__lock_take(&view->remote->lock);
        view->remote->peer = 0;
        tierce__lock_drop(&view->remote->lock);
    }
    return status == TIERCE_E_ARGUMENT || status == -ENOMEM ? status : 0;
}

/* ---- chains ---- */

/* The part of a chain that the peer lacks. `again`: the peer has lost the blocks that it had. */
static void describe_chain(struct tierce__native_chain *out,
                           const struct tierce__node_session *peer,
                           const struct tierce_chain *chain, bool again)
{
    struct tierce__chain_told *told = tierce__chain_told(chain);
    size_t blocks = tierce_chain_blocks(chain), first = 0;
    if (!again && atomic_load(&told->peer) == tierce__node_session_number(peer))
        first = atomic_load(&told->blocks);
    first = first < blocks ? first : blocks;
    TIERCE_DASSERT(first <= blocks && told->number != 0);
    *out = (struct tierce__native_chain){
        .number = told->number,
        .first = (uint32_t)first,
        .hashes = {first < blocks ? tierce_chain_hash(chain, first) : NULL,
                   (uint32_t)(blocks - first)}};
    memcpy(out->parent,
           first > 0 ? tierce_chain_hash(chain, first - 1) : tierce_chain_root_hash(chain),
           TIERCE_HASH_BYTES);
}

static void note_told(const struct tierce__node_session *peer, const struct tierce_chain *chain)
{
    struct tierce__chain_told *told = tierce__chain_told(chain);
    atomic_store(&told->blocks, tierce_chain_blocks(chain));
    atomic_store(&told->peer, tierce__node_session_number(peer));
}

int tierce__client_ask_chain(struct tierce__asking *asking, struct tierce__node_session *peer,
                             enum tierce__native_op op, union tierce__native_request *question,
                             struct tierce__native_chain *slot, const struct tierce_chain *chain,
                             uint64_t deadline_ns)
{
    TIERCE_DASSERT((char *)slot >= (char *)question &&
                   (char *)(slot + 1) <= (char *)(question + 1));
    describe_chain(slot, peer, chain, false);
    int rc = tierce__node_session_ask(asking, peer, op, question, deadline_ns);
    if (rc == TIERCE__NATIVE_UNKNOWN_CHAIN) {
        describe_chain(slot, peer, chain, true);
        rc = tierce__node_session_ask(asking, peer, op, question, deadline_ns);
    }
    if (rc == 0)
        note_told(peer, chain);
    return rc;
}

/* ---- lookups ---- */

/* LOOKUP and DURABLE. */
static int find(struct tierce_view *view, enum tierce__native_op op,
                const struct tierce_chain *chain, const struct tierce__native_lookup *what,
                struct tierce_found *out)
{
    uint64_t number, deadline_ns = soon(view);
    TIERCE_DASSERT(op == TIERCE__NATIVE_LOOKUP || op == TIERCE__NATIVE_DURABLE);
    struct tierce__node_session *peer = tierce__client_view_peer(view, &number, deadline_ns);
    if (peer == NULL)
        return 0;
    union tierce__native_request question = {.lookup = *what};
    question.lookup.view = number;
    struct tierce__asking asking;
    /* The node answers at its deadline; the answer needs a little more time to arrive. */
    if ((what->flags & TIERCE_LOOKUP_NO_WAIT) == 0)
        deadline_ns += what->wait_ms * TIERCE__MS_NS;
    int rc = tierce__client_ask_chain(&asking, peer, op, &question, &question.lookup.chain, chain,
                                      deadline_ns);
    if (rc == 0) {
        const struct tierce__native_found *found = &asking.answer.lookup;
        uint64_t to = what->to_block;
        out->blocks = found->blocks < to ? found->blocks : to;
        out->memory_blocks =
            found->memory_blocks < out->blocks ? found->memory_blocks : out->blocks;
        out->pending = found->pending != 0;
        TIERCE_DASSERT(out->memory_blocks <= out->blocks && out->blocks <= to);
        tierce__node_session_done(&asking);
    }
    tierce__node_session_release(peer);
    return tierce__client_miss(view, rc);
}

static int check_chain(const struct tierce_view *view, const struct tierce_chain *chain,
                       uint64_t to_block)
{
    bool ok = to_block <= tierce_chain_blocks(chain) && to_block <= UINT32_MAX &&
              tierce__chain_fits(chain, view->algo, view->full.geometry.block_tokens);
    return ok ? 0 : TIERCE_E_ARGUMENT;
}

/* Whole chunks that the engine holds itself count as found, even without a node. */
static void add_own(const struct tierce_view *view, uint64_t from_block, uint64_t to_block,
                    struct tierce_found *out)
{
    uint64_t own = tierce__view_is_sparse(view)
                       ? from_block
                       : from_block / view->chunk_blocks * view->chunk_blocks;
    own = own < to_block ? own : to_block;
    TIERCE_DASSERT(own <= from_block && own <= to_block);
    if (out->memory_blocks < own)
        out->memory_blocks = own;
    if (out->blocks < own)
        out->blocks = own;
    TIERCE_DASSERT(out->memory_blocks <= out->blocks && out->blocks <= to_block);
}

static int lookup(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                  const struct tierce_lookup_opts *opts, struct tierce_found *out)
{
    int rc = check_chain(view, chain, to_block);
    if (rc < 0)
        return rc;
    if (tierce__engine_mode(view->engine) == TIERCE_MODE_BYPASS) {
        if ((opts->flags & TIERCE_LOOKUP_PIN) != 0)
            tierce__client_unpin(view, opts->session);
    } else {
        struct tierce__native_lookup what = {.session = opts->session,
                                             .from_block = opts->from_block,
                                             .to_block = to_block,
                                             .flags = opts->flags,
                                             .tiers = opts->tiers,
                                             .pin_ms = opts->pin_ms,
                                             .wait_ms = tierce__lookup_wait_ms(view, opts),
                                             .tag = opts->tag != NULL ? opts->tag : ""};
        rc = find(view, TIERCE__NATIVE_LOOKUP, chain, &what, out);
    }
    if (rc < 0)
        return rc;
    add_own(view, opts->from_block, to_block, out);
    return 0;
}

static int durable(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                   uint64_t *blocks)
{
    int rc = check_chain(view, chain, to_block);
    struct tierce_found found = {0};
    struct tierce__native_lookup what = {.to_block = to_block, .tag = ""};
    if (rc == 0)
        rc = find(view, TIERCE__NATIVE_DURABLE, chain, &what, &found);
    *blocks = rc == 0 ? found.blocks : 0;
    TIERCE_DASSERT(*blocks <= to_block);
    return rc;
}

/* Tells the node something about the view. If it does not receive this, pins expire. */
static void tell(struct tierce_view *view, enum tierce__native_op op,
                 union tierce__native_request *question, uint64_t *view_slot)
{
    TIERCE_DASSERT(op == TIERCE__NATIVE_UNPIN || op == TIERCE__NATIVE_COMPUTED);
    TIERCE_DASSERT((char *)view_slot >= (char *)question &&
                   (char *)(view_slot + 1) <= (char *)(question + 1));
    if (!tierce__client_is_connected(view->engine->client))
        return; /* another node knows nothing of it */
    uint64_t deadline_ns = soon(view);
    struct tierce__node_session *peer = tierce__client_view_peer(view, view_slot, deadline_ns);
    if (peer == NULL)
        return;
    int rc = tierce__node_session_tell(peer, op, question, deadline_ns);
    (void)tierce__client_miss(view, rc);
    tierce__node_session_release(peer);
}

void tierce__client_unpin(struct tierce_view *view, uint64_t session)
{
    union tierce__native_request question = {.unpin = {.session = session}};
    tell(view, TIERCE__NATIVE_UNPIN, &question, &question.unpin.view);
}

static void computed(struct tierce_view *view, uint64_t tokens, uint64_t ns)
{
    union tierce__native_request question = {.computed = {.tokens = tokens, .ns = ns}};
    tell(view, TIERCE__NATIVE_COMPUTED, &question, &question.computed.view);
}

/* A hint that does not reach the node is lost, as the chunks that its session would use there. */
static int hint(struct tierce_view *view, uint64_t session, enum tierce_hint kind,
                uint32_t returns_ms)
{
    TIERCE_DASSERT(session != 0);
    uint64_t deadline_ns = soon(view);
    union tierce__native_request question = {
        .session_hint = {.session = session, .hint = (uint32_t)kind, .returns_ms = returns_ms}};
    struct tierce__node_session *peer =
        tierce__client_view_peer(view, &question.session_hint.view, deadline_ns);
    if (peer == NULL)
        return 0;
    int rc = TIERCE_E_UNSUPPORTED;
    if (tierce__node_session_announces(peer, TIERCE__NATIVE_TAKES_HINTS)) {
        rc = tierce__node_session_tell(peer, TIERCE__NATIVE_SESSION_HINT, &question, deadline_ns);
        rc = tierce__client_miss(view, rc);
    }
    tierce__node_session_release(peer);
    return rc;
}

/* A node that is connected later knows nothing of the request. */
static void note_request(struct tierce_engine *engine, const struct tierce_request *request)
{
    TIERCE_DASSERT(request->name != NULL && engine->level_count == 0);
    if (!tierce__client_is_connected(engine->client))
        return;
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    struct tierce__node_session *peer = tierce__client_peer(engine->client, deadline_ns);
    union tierce__native_request question = {
        .note_request = {.session = request->session,
                         .tokens = request->tokens,
                         .unit_tokens = request->unit_tokens,
                         .local_tokens = request->local_tokens,
                         .looked_tokens = request->looked_tokens,
                         .found_tokens = request->found_tokens,
                         .loaded_tokens = request->loaded_tokens,
                         .failed_tokens = request->failed_tokens,
                         .limit = (uint32_t)request->limit,
                         .name = request->name}};
    /* If it is lost, `tierce why` does not know the request. */
    if (peer != NULL && tierce__node_session_version(peer) >= TIERCE__NATIVE_VERSION_NOTES)
        (void)tierce__node_session_tell(peer, TIERCE__NATIVE_NOTE_REQUEST, &question, deadline_ns);
    tierce__node_session_release(peer);
}

/* ---- all of the node ---- */

static int flush_node(struct tierce_engine *engine, uint32_t timeout_ms)
{
    TIERCE_DASSERT(engine->level_count == 0);
    /* A node that needs longer reports it itself: its answer needs time to arrive. */
    uint64_t deadline_ns = tierce__deadline_in_ms(timeout_ms);
    if (deadline_ns != TIERCE__DEADLINE_NEVER)
        deadline_ns += FLUSH_GRACE_NS;
    struct tierce__node_session *peer = tierce__client_peer(engine->client, deadline_ns);
    if (peer == NULL)
        return TIERCE_E_DOWN;
    union tierce__native_request question = {.flush = {timeout_ms}};
    int rc = tierce__node_session_tell(peer, TIERCE__NATIVE_FLUSH, &question, deadline_ns);
    tierce__node_session_release(peer);
    return rc <= 0 ? rc : TIERCE_E_DOWN;
}

static int64_t clear_node(struct tierce_engine *engine, uint32_t tiers,
                          const struct tierce_view *view)
{
    union tierce__native_request question = {.clear = {.tiers = tiers}};
    TIERCE_DASSERT(engine->level_count == 0 && (view == NULL || view->engine == engine));
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms);
    struct tierce__node_session *peer =
        view != NULL ? tierce__client_view_peer(view, &question.clear.view, deadline_ns)
                     : tierce__client_peer(engine->client, deadline_ns);
    if (peer == NULL)
        return TIERCE_E_DOWN;
    struct tierce__asking asking;
    int64_t rc =
        tierce__node_session_ask(&asking, peer, TIERCE__NATIVE_CLEAR, &question, deadline_ns);
    if (rc == 0) {
        uint64_t count = asking.answer.store_end.count;
        rc = count <= INT64_MAX ? (int64_t)count : TIERCE_E_FORMAT;
        tierce__node_session_done(&asking);
    } else if (rc > 0) {
        rc = TIERCE_E_DOWN;
    }
    tierce__node_session_release(peer);
    return rc;
}

/* ---- opening and closing ---- */

/* Parameters of a node that its clients may not set, unless it was started with their
 * configuration. */
static bool is_of_node(const char *name)
{
    static const char *const prefixes[] = {"memory.",     "disk.",      "remote.",
                                           "prefetch.",   "metrics.",   "cost.",
                                           "access_log.", "directory.", "encryption."};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    }
    return false;
}

static int check_client(const struct tierce_config *config, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    if (strcmp(tierce__engine_text(config, TIERCE__ENGINE_NODE_START), "auto") != 0)
        return 0;
    for (enum tierce__engine_param i = 0; i < TIERCE__ENGINE_PARAMS; i++) {
        const char *name = tierce__engine_params()[i].name;
        const char *source = tierce__engine_source(config, i);
        if (!is_of_node(name) || strcmp(source, "default") == 0)
            continue;
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 i == TIERCE__ENGINE_DISK_GPU_DIRECT
                     ? "%s: only engines without node.socket read from disk into a GPU; remove it "
                       "(%.128s)"
                     : "%s: with node.socket the node has memory and tiers; set it in the node's "
                       "configuration, not here (%.128s)",
                 name, source);
        return TIERCE_E_CONFIG;
    }
    return 0;
}

/* Connects. An engine that is not strict connects later if no node answers now. */
static int meet_node(struct tierce_engine *engine, const struct tierce_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__node_session *peer =
        tierce__client_peer(engine->client, tierce__deadline_in_ms(engine->settings.lookup_ms));
    bool is_there = peer != NULL;
    tierce__node_session_release(peer);
    if (is_there || !tierce__engine_bool(config, TIERCE__ENGINE_STRICT))
        return 0;
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
             "node.socket: no node answers on %.150s within timeout.lookup",
             tierce__engine_text(config, TIERCE__ENGINE_NODE_SOCKET));
    return TIERCE_E_DOWN;
}

/* The first request connects to the node. */
static int open_node(struct tierce_engine *engine, const struct tierce_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_DASSERT(engine->level_count == 0);
    int rc = check_client(config, why);
    if (rc == 0)
        rc = tierce__client_open(&engine->client, engine, config);
    return rc == 0 ? meet_node(engine, config, why) : rc;
}

/* The operator asks the node. */
static void serve_nothing(struct tierce_engine *engine, const struct tierce_config *config)
{
    (void)config;
    TIERCE_DASSERT(engine->control == NULL && engine->level_count == 0);
}

static bool leave_node(struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->level_count == 0 && tierce__list_empty(&engine->unattended));
    if (!tierce__transits_empty(&engine->transits)) /* they hold a peer */
        return false;
    tierce__client_close(engine->client);
    engine->client = NULL;
    return true;
}

static int prepare(struct tierce_view *view, const struct tierce_paged *paged)
{
    struct tierce_engine *engine = view->engine;
    struct tierce__open_device *device;
    struct tierce__node_session *peer =
        tierce__client_peer(engine->client, tierce__deadline_in_ms(engine->settings.lookup_ms));
    if (peer == NULL)
        return TIERCE_E_DOWN;
    int rc = tierce__pinnings_get(tierce__node_session_pinnings(peer), paged, &device);
    tierce__node_session_release(peer);
    return rc;
}

static void add_stats(struct tierce_engine *engine, struct tierce_engine_stats *out)
{
    TIERCE_DASSERT(engine->level_count == 0);
    out->node_connected_now = tierce__client_is_connected(engine->client);
}

const struct tierce__lender tierce__node_client = {
    .open = open_node,
    .serve = serve_nothing,
    .close = leave_node,
    .stats = add_stats,
    .flush = flush_node,
    .clear = clear_node,
    .prepare = prepare,
    .view_open = open_view,
    .view_close = close_view,
    .computed = computed,
    .unpin = tierce__client_unpin,
    .hint = hint,
    .note_request = note_request,
    .lookup = lookup,
    .durable = durable,
    .store_begin = tierce__client_store_begin,
    .store_end = tierce__client_store_end,
    .store_give_up = tierce__client_store_give_up,
    .load_begin = tierce__client_load_begin,
    .prefetch_begin = tierce__client_prefetch_begin,
    .prefetch_wait = tierce__client_prefetch_wait,
    .prefetch_end = tierce__client_prefetch_end,
};
