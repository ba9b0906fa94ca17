/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes between nodes, for engines of several ranks: each layer is sent when its rank has filled
 * it, or a chunk when all ranks have stored their parts of it; clients and nodes that end leave
 * nothing. */
#define TIERCE_TEST_NODE
#include "base/alloc.h"
#include "check_main.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_push.h"
#include "engine/node_client/client.h"
#include "engine/store/store_watch.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "native_clients.h"
#include "node/native/native_calls.h"
#include "silent_log.h"
#include "wait_for.h"

#define BLOCKS  40u /* ten chunks */
#define HALF    20u
#define CHUNKS  10u
#define RANKS   2u
#define SESSION 7u
#define LONG_MS 20000u

static const char token[] = "0123456789abcdef0123456789abcdef";
static struct fixture prefiller, decoder;
static struct tierce_chain *chain, *same;
static struct tierce__handover *taking;
static char ticket[TIERCE__TICKET_BYTES], why[TIERCE_CONFIG_ERROR_BYTES];
static struct tierce__pushed pushed;

/* The ranks of the prefiller: clients of one node. Layer 0, and the other three. */
static struct rank {
    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce_paged paged;
} ranks[RANKS];

static struct tierce_engine *connect_to(const struct fixture *of)
{
    struct tierce_config *config;
    char path[96];
    ck_assert_int_eq(tierce_config_create(&config), 0);
    snprintf(path, sizeof(path), "%s/node", of->socket_folder);
    ck_assert_int_eq(tierce_config_set(config, "node.socket", path, why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.lookup", "5s", why), 0);
    struct tierce_engine *engine = fx_engine(config);
    tierce_config_destroy(config);
    return engine;
}

static void open_rank(uint32_t index)
{
    struct tierce_namespace ns = fx_namespace();
    uint32_t count = index == 0 ? 1 : FX_LAYERS - 1;
    ranks[index].engine = connect_to(&prefiller);
    ck_assert_int_eq(tierce_view_open_part(&ranks[index].view, ranks[index].engine, &ns,
                                           &(struct tierce_shard){0, 1, 0, 1},
                                           &(struct tierce_part){index, count, index, RANKS}),
                     0);
    ranks[index].paged =
        (struct tierce_paged){sizeof(struct tierce_paged), prefiller.layers + index, count,
                              FX_BLOCKS, TIERCE_DEVICE_HOST};
}

static void close_rank(uint32_t index)
{
    if (ranks[index].engine == NULL)
        return;
    tierce_view_close(ranks[index].view);
    tierce_engine_close(ranks[index].engine);
    ranks[index] = (struct rank){0};
}

static struct tierce__inbox *inbox(void)
{
    const struct tierce__native_client *client = native_first_client(decoder.node.node);
    return tierce__handover_inbox(atomic_load(&client->handover));
}

static struct tierce__inbox_stats stats(void)
{
    struct tierce__inbox_stats out;
    tierce__inbox_stats(inbox(), &out);
    return out;
}

static void issue(void)
{
    ck_assert_int_eq(tierce__handover_issue(taking, &ticket, 1, LONG_MS, ""), 1);
}

static int accept_pushes(void)
{
    const struct tierce__inbox_opts opts = {
        .size = sizeof(opts), .hosts = "127.0.0.1", .share = 500, .hold_ms = LONG_MS};
    return tierce__handover_accept(taking, &opts, why);
}

static void open_all(void)
{
    static const char *const other[] = {"memory.size", "5MiB", NULL}; /* or it would be shared */
    static const char *const sets[] = {"serve.drain", "50ms", NULL};
    silence_log();
    fx_open(&prefiller, false, sets);
    fx_open(&decoder, false, other);
    for (uint32_t i = 0; i < RANKS; i++)
        open_rank(i);
    chain = fx_chain(&prefiller, 1, BLOCKS, 0);
    same = fx_chain(&decoder, 1, BLOCKS, 0);
    fx_fill(&prefiller, chain, 0, BLOCKS, fx_ids);
    fx_wipe(&decoder);
    ck_assert_int_eq(tierce__handover_start(&taking, decoder.client, "127.0.0.1", 0, why), 0);
    ck_assert_msg(accept_pushes() == 0, "%s", why);
    issue();
}

static void close_all(void)
{
    tierce__handover_stop(taking);
    for (uint32_t i = 0; i < RANKS; i++)
        close_rank(i);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(same);
    fx_close(&prefiller);
    fx_close(&decoder);
    fx_remove(&prefiller);
    fx_remove(&decoder);
    prefiller = decoder = (struct fixture){0};
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int push_begin(struct tierce__push **out, struct tierce_view *view)
{
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__handover_port(taking),
                                       .ticket = ticket,
                                       .wait_ms = LONG_MS,
                                       .timeout_ms = LONG_MS};
    return tierce__push_begin(out, view, &to);
}

/* The first rank pushes the chunks of all. */
static struct tierce__push *begin(void)
{
    struct tierce__push *push;
    ck_assert_int_eq(push_begin(&push, ranks[0].view), 0);
    ck_assert_int_eq(tierce__push_held(push, ranks[0].view, chain, BLOCKS), 0);
    return push;
}

static void push_end(struct tierce__push *push)
{
    tierce__push_end(push);
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    tierce__push_destroy(push);
}

static struct tierce_store *store_begin(uint32_t rank, size_t to, uint64_t write)
{
    struct tierce_store *store;
    struct tierce_transfer_opts what = fx_what(&prefiller, chain, 0, to, fx_ids);
    what.paged = &ranks[rank].paged;
    what.write = write;
    ck_assert_int_eq(tierce_store_begin(&store, ranks[rank].view, &what), 0);
    ck_assert_ptr_nonnull(store);
    return store;
}

static int64_t store_end(uint32_t rank, struct tierce_store *store)
{
    for (uint32_t layer = 0; layer < ranks[rank].paged.layer_count; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    return tierce_store_end(store);
}

/* The blocks that the decoder loads from memory, each compared byte by byte. */
static size_t load(void)
{
    uint64_t memory;
    uint8_t origins[FX_BLOCKS];
    (void)fx_found(&decoder, same, BLOCKS, TIERCE_LOOKUP_PIN, SESSION, &memory);
    struct tierce_transfer_opts what = fx_what(&decoder, same, 0, memory, fx_ids);
    what.session = SESSION;
    if (memory > 0)
        ck_assert_int_ge(tierce_load(decoder.view, &what, origins), 0);
    for (size_t b = 0; b < memory; b++) {
        ck_assert_int_eq(origins[b], TIERCE_ORIGIN_MEMORY);
        ck_assert(fx_right(&decoder, same, b, fx_ids[b]));
    }
    tierce_unpin(decoder.view, SESSION);
    return memory;
}

/* ---- two ranks ------------------------------------------------------------------------------- */

START_TEST(chunks_travel_while_later_steps_are_computed)
{
    struct tierce__handover_pulled pulled;
    struct tierce__push *push = begin();
    for (uint32_t step = 0; step < 2; step++) {
        size_t to = step == 0 ? HALF : BLOCKS;
        struct tierce_store *first = store_begin(0, to, step + 1);
        ck_assert_int_eq(tierce__push_watch(push, first), 0);
        struct tierce_store *second = store_begin(1, to, step + 1);
        WAIT_FOR(stats().incoming_now == CHUNKS / 2); /* their room, before any byte is computed */
        ck_assert_int_eq(store_end(step, step == 0 ? first : second), 0);
        ck_assert_uint_eq(stats().chunks, step * CHUNKS / 2); /* a part is no chunk */
        ck_assert_int_eq(store_end(1 - step, step == 0 ? second : first), HALF);
        WAIT_FOR(stats().chunks == (step + 1) * CHUNKS / 2);
        ck_assert_uint_eq(load(), to);
    }
    push_end(push);
    ck_assert_msg(pushed.status == 0, "%s", pushed.why);
    ck_assert_uint_eq(pushed.chunks, CHUNKS);
    ck_assert_uint_eq(pushed.left_out, 0);
    ck_assert(pushed.bytes > 0 && pushed.bytes == stats().bytes && pushed.over_ns > 0);
    /* The decoder's request, which reads nothing from the prefiller. */
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = tierce__handover_port(taking),
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = LONG_MS,
                                               .ticket = ticket};
    ck_assert_int_eq(tierce__handover_pull(decoder.view, same, 0, BLOCKS, &from, &pulled), 0);
    ck_assert_int_eq(pulled.push_status, 0);
    ck_assert(pulled.blocks == BLOCKS && pulled.bytes == 0 && pulled.pushed_bytes == pushed.bytes);
    ck_assert_uint_eq(stats().tickets_now, 0);
}
END_TEST

__typeof__(tierce__inbox_make) __real_tierce__inbox_make, __wrap_tierce__inbox_make;
static _Atomic uint32_t payload_ranges;
static _Atomic uint64_t header_bytes;

int __wrap_tierce__inbox_make(struct tierce__inbox *to, struct tierce__keeper_room *room,
                              const struct tierce_plugin_name *name,
                              const struct tierce__keeper_range *range)
{
    payload_ranges += range->offset >= header_bytes;
    return __real_tierce__inbox_make(to, room, name, range);
}

__typeof__(tierce__node_session_announces) __real_tierce__node_session_announces,
    __wrap_tierce__node_session_announces;
static _Atomic bool takes_no_layers; /* as a node of an older version */

bool __wrap_tierce__node_session_announces(const struct tierce__node_session *peer, uint32_t bit)
{
    bool is_hidden = takes_no_layers && bit == TIERCE__NATIVE_TAKES_LAYERS;
    return !is_hidden && __real_tierce__node_session_announces(peer, bit);
}

/* Pushes a prompt of which the ranks fill layers in turn; the second has filled one before the push
 * knows the store. Returns the ranges of payload that came before the stores ended. */
static uint32_t push_layer_by_layer(bool second_tells)
{
    static const uint32_t turns[] = {1, 0, 1};
    uint32_t next[RANKS] = {0, 1}, came = second_tells;
    struct tierce__push *push = begin();
    struct tierce_store *stores[RANKS] = {store_begin(0, BLOCKS, 1), store_begin(1, BLOCKS, 1)};
    header_bytes = prefiller.inner->full.extent.header_bytes;
    payload_ranges = 0;
    if (second_tells)
        ck_assert_int_eq(tierce__store_tell(stores[1]), 0);
    ck_assert_int_eq(tierce_store_layer(stores[1], 0), 0);
    ck_assert_int_eq(tierce__push_watch(push, stores[0]), 0);
    WAIT_FOR(payload_ranges == came * CHUNKS);
    for (uint32_t i = 0; i < sizeof(turns) / sizeof(*turns); i++) {
        uint32_t rank = turns[i];
        came += !takes_no_layers && (rank == 0 || second_tells);
        ck_assert_int_eq(tierce_store_layer(stores[rank], next[rank]++), 0);
        WAIT_FOR(payload_ranges == came * CHUNKS);
        ck_assert_uint_eq(load(), 0);
    }
    ck_assert_int_eq(tierce_store_end(stores[0]), 0);
    ck_assert_uint_eq(stats().chunks, 0);
    uint32_t before = payload_ranges;
    ck_assert_int_eq(tierce_store_end(stores[1]), BLOCKS);
    push_end(push);
    ck_assert_msg(pushed.status == 0, "%s", pushed.why);
    ck_assert(pushed.chunks == CHUNKS && pushed.left_out == 0);
    ck_assert_uint_eq(load(), BLOCKS);
    return before;
}

START_TEST(each_rank_sends_its_layers)
{
    ck_assert_uint_eq(push_layer_by_layer(true), FX_LAYERS * CHUNKS);
    ck_assert_uint_eq(payload_ranges, FX_LAYERS * CHUNKS); /* nothing was sent twice */
}
END_TEST

/* A rank of an older version: its layers are sent when it has ended its store. */
START_TEST(a_rank_that_tells_no_layer)
{
    ck_assert_uint_eq(push_layer_by_layer(false), CHUNKS);
}
END_TEST

START_TEST(a_node_that_takes_no_layers)
{
    takes_no_layers = true;
    ck_assert_uint_eq(push_layer_by_layer(false), 0);
    takes_no_layers = false;
}
END_TEST

static void *fill_second(void *store)
{
    ck_assert_int_eq(tierce__store_tell(store), 0);
    for (uint32_t layer = 0; layer + 1 < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    return NULL;
}

/* The second one tells layers while the push adds the chunks of the store. */
START_TEST(ranks_that_fill_at_the_same_time)
{
    for (uint32_t round = 0; round < 8; round++) {
        pthread_t thread;
        tierce_chain_destroy(chain);
        tierce_chain_destroy(same);
        chain = fx_chain(&prefiller, 2 + round, BLOCKS, 0);
        same = fx_chain(&decoder, 2 + round, BLOCKS, 0);
        fx_fill(&prefiller, chain, 0, BLOCKS, fx_ids);
        struct tierce__push *push = begin();
        struct tierce_store *first = store_begin(0, BLOCKS, round + 1);
        struct tierce_store *second = store_begin(1, BLOCKS, round + 1);
        ck_assert_int_eq(pthread_create(&thread, NULL, fill_second, second), 0);
        ck_assert_int_eq(tierce__push_watch(push, first), 0);
        ck_assert_int_eq(store_end(0, first), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(tierce_store_end(second), BLOCKS);
        push_end(push);
        ck_assert_msg(pushed.status == 0, "%s", pushed.why);
        ck_assert_uint_eq(pushed.chunks, CHUNKS);
        ck_assert_uint_eq(load(), BLOCKS);
        (void)tierce__inbox_end(inbox(), ticket);
        issue();
    }
}
END_TEST

/* A store that the other rank never joins, or gives up. */
START_TEST(a_rank_that_gives_its_store_up)
{
    struct tierce__push *push = begin();
    struct tierce_store *first = store_begin(0, BLOCKS, 1), *second = store_begin(1, BLOCKS, 1);
    ck_assert_int_eq(tierce__push_watch(push, first), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    ck_assert_int_eq(store_end(0, first), 0);
    ck_assert_int_eq(tierce__store_tell(second), 0);
    ck_assert_int_eq(tierce_store_layer(second, 0), 0);
    tierce_store_abort(second);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_uint_eq(pushed.left_out, CHUNKS);
    ck_assert_int_eq(pushed.status, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(stats().incoming_bytes_now, 0);
    ck_assert_uint_eq(load(), 0);
}
END_TEST

/* ---- clients that end ------------------------------------------------------------------------ */

/* Whether the node has freed the pushes that were given up. */
static bool pushes_are_over(const struct fixture *of)
{
    struct tierce__native *native = of->node.node->native;
    tierce__lock_take(&native->lock);
    bool are_over = tierce__list_empty(&native->pushes);
    tierce__lock_drop(&native->lock);
    return are_over;
}

/* The store that it watches outlives the push, and tells more layers. */
START_TEST(a_rank_that_ends_while_it_pushes)
{
    struct tierce__push *push = begin();
    struct tierce_store *first = store_begin(0, BLOCKS, 1), *second = store_begin(1, BLOCKS, 1);
    ck_assert_int_eq(tierce__push_watch(push, first), 0);
    ck_assert_int_eq(tierce__store_tell(second), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    ck_assert_int_eq(store_end(0, first), 0);
    tierce__push_destroy(push);
    close_rank(0);
    WAIT_FOR(stats().incoming_now == 0); /* the decoder's memory is free */
    (void)store_end(1, second);
    WAIT_FOR(pushes_are_over(&prefiller));
    ck_assert_uint_eq(load(), 0);
}
END_TEST

/* A decoder's engine that ends: its tickets and half a chunk are gone, and the node goes on. */
START_TEST(a_decoder_that_ends)
{
    struct tierce_engine *other = connect_to(&decoder);
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *view;
    struct tierce__push *push = begin();
    struct tierce_store *first = store_begin(0, BLOCKS, 1), *second = store_begin(1, BLOCKS, 1);
    ck_assert_int_eq(tierce__push_watch(push, first), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    tierce__handover_stop(taking);
    taking = NULL;
    tierce_view_close(decoder.view);
    tierce_engine_close(decoder.client);
    const struct tierce__inbox_counts *counts = &decoder.engine->inbox_counts;
    WAIT_FOR(atomic_load(&counts->incoming_bytes_now) == 0 &&
             atomic_load(&counts->tickets_now) == 0);
    ck_assert_int_eq(store_end(0, first), 0);
    ck_assert_int_eq(store_end(1, second), BLOCKS);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_int_eq(pushed.status, TIERCE_E_DOWN);
    decoder.client = other;
    ck_assert_int_eq(
        tierce_view_open(&view, decoder.client, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    decoder.view = view;
    ck_assert_int_eq(tierce__handover_start(&taking, decoder.client, "127.0.0.1", 0, why), 0);
    ck_assert_msg(accept_pushes() == 0, "%s", why);
    issue();
    ck_assert_int_eq(push_begin(&push, ranks[0].view), 0);
    ck_assert_int_eq(tierce__push_held(push, ranks[0].view, chain, BLOCKS), CHUNKS);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, CHUNKS);
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

/* Another client of the decoder's node: a ticket of this one does not write its chunks. */
START_TEST(chunks_of_another_client_are_refused)
{
    struct tierce_engine *neighbour = connect_to(&decoder);
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *view, *mine;
    struct tierce__push *push;
    ns.weights = "44556677"; /* another model */
    const struct tierce_shard shard = {0, 1, 0, 1};
    ck_assert_int_eq(tierce_view_open(&view, neighbour, &ns, &shard), 0);
    ck_assert_uint_eq(tierce_view_open(&mine, prefiller.client, &ns, &shard), 0);
    struct tierce_found found;
    const struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    ck_assert_int_eq(tierce_lookup(view, same, BLOCKS, &opts, &found), 0); /* its node knows it */
    struct tierce_transfer_opts what = fx_what(&prefiller, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_store(mine, &what), BLOCKS);
    ck_assert_int_eq(push_begin(&push, mine), 0);
    ck_assert_int_eq(tierce__push_held(push, mine, chain, BLOCKS), CHUNKS);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_uint_eq(pushed.left_out, CHUNKS);
    ck_assert_int_eq(pushed.status, TIERCE_E_REFUSED);
    ck_assert_uint_eq(stats().refused_chunk, CHUNKS);
    ck_assert_int_eq(tierce_lookup(view, same, BLOCKS, &opts, &found), 0);
    ck_assert_uint_eq(found.blocks, 0);
    tierce_view_close(mine);
    tierce_view_close(view);
    tierce_engine_close(neighbour);
}
END_TEST

/* More than fit in an answer of a node; each is another one. */
START_TEST(many_tickets)
{
    char many[20][TIERCE__TICKET_BYTES];
    ck_assert_int_eq(tierce__handover_issue(taking, many, 20, LONG_MS, "proxy"), 20);
    ck_assert_uint_eq(stats().tickets_now, 21);
    for (size_t i = 0; i < 20; i++) {
        ck_assert(tierce__inbox_admits(inbox(), many[i], TIERCE__TICKET_BYTES - 1));
        (void)tierce__inbox_end(inbox(), many[i]);
    }
    ck_assert_uint_eq(stats().tickets_now, 1);
    ck_assert_int_eq(
        tierce__handover_issue(taking, many, 1, LONG_MS, "a name that is longer than the bound is"),
        TIERCE_E_ARGUMENT);
}
END_TEST

/* ---- other nodes ----------------------------------------------------------------------------- */

static void restart(struct fixture *fx, const char *memory)
{
    static char texts[2][160];
    char *arguments[] = {texts[0], texts[1]};
    snprintf(texts[0], sizeof(texts[0]), "--listen.native=%s/node", fx->socket_folder);
    snprintf(texts[1], sizeof(texts[1]), "--memory.size=%s", memory);
    tierce_view_close(fx->inner);
    fx->inner = fx->view;
    harness_stop(&fx->node);
    harness_start(&fx->node, 2, arguments);
    fx->engine = fx->node.node->engine;
}

/* The engine has its inbox in the next node, too; pushes of the last one have ended. */
START_TEST(nodes_that_are_restarted)
{
    struct tierce__push *push = begin();
    struct tierce_store *first = store_begin(0, BLOCKS, 1);
    ck_assert_int_eq(tierce__push_watch(push, first), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    uint16_t port = tierce__handover_port(taking);
    restart(&decoder, "5MiB");
    restart(&prefiller, "4MiB");
    (void)store_end(0, first);
    tierce__push_end(push);
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    ck_assert_str_eq(pushed.why, "the node does not answer, or was restarted");
    tierce__push_destroy(push);
    WAIT_WITHIN(30000, tierce__handover_issue(taking, &ticket, 1, LONG_MS, "") == 1);
    ck_assert_uint_eq(tierce__handover_port(taking), port);
    WAIT_WITHIN(30000, push_begin(&push, ranks[0].view) == 0);
    struct tierce_store *second;
    first = store_begin(0, BLOCKS, 2);
    ck_assert_int_eq(tierce__push_watch(push, first), 0);
    second = store_begin(1, BLOCKS, 2);
    (void)store_end(1, second);
    ck_assert_int_eq(store_end(0, first), BLOCKS);
    push_end(push);
    ck_assert_msg(pushed.chunks == CHUNKS, "%s", pushed.why);
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

static _Atomic bool is_old, fails_to_accept, loses_end, loses_poll;

int __wrap_tierce__native_answer_hand_over(struct tierce__native_call *call);
int __real_tierce__native_answer_hand_over(struct tierce__native_call *call);

int __wrap_tierce__node_session_ask(struct tierce__asking *asking,
                                    struct tierce__node_session *peer, enum tierce__native_op op,
                                    const union tierce__native_request *question,
                                    uint64_t deadline_ns);
int __real_tierce__node_session_ask(struct tierce__asking *asking,
                                    struct tierce__node_session *peer, enum tierce__native_op op,
                                    const union tierce__native_request *question,
                                    uint64_t deadline_ns);

/* Loses a request, as where a node accepts no connection. */
int __wrap_tierce__node_session_ask(struct tierce__asking *asking,
                                    struct tierce__node_session *peer, enum tierce__native_op op,
                                    const union tierce__native_request *question,
                                    uint64_t deadline_ns)
{
    bool is_end =
        op == TIERCE__NATIVE_HAND_OVER && question->hand_over.kind == TIERCE__NATIVE_HAND_PUSH_END;
    if ((is_end && atomic_exchange(&loses_end, false)) ||
        (op == TIERCE__NATIVE_PUSH_POLL && atomic_exchange(&loses_poll, false)))
        return TIERCE_E_DOWN;
    return __real_tierce__node_session_ask(asking, peer, op, question, deadline_ns);
}

START_TEST(requests_that_are_lost)
{
    struct tierce__push *push = begin();
    struct tierce_store *stores[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        stores[i] = store_begin(i, BLOCKS, 1);
        ck_assert_int_eq(tierce__push_watch(push, stores[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        (void)store_end(i, stores[i]);
    atomic_store(&loses_end, true);
    tierce__push_end(push);
    ck_assert(!atomic_load(&loses_end));
    atomic_store(&loses_poll, true);
    ck_assert(!tierce__push_is_over(push, NULL));
    ck_assert(!atomic_load(&loses_poll));
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    tierce__push_destroy(push);
    ck_assert_msg(pushed.chunks == CHUNKS && pushed.status == 0, "%s", pushed.why);
}
END_TEST

/* As a node answers that knows nothing of pushes. */
int __wrap_tierce__native_answer_hand_over(struct tierce__native_call *call)
{
    if (call->ask.hand_over.kind == TIERCE__NATIVE_HAND_ACCEPT && atomic_load(&fails_to_accept)) {
        call->say.hand_over =
            (struct tierce__native_handed){.status = (uint32_t)-ENOMEM, .why = ""};
        return 0;
    }
    if (!atomic_load(&is_old) || call->ask.hand_over.kind <= TIERCE__NATIVE_HAND_READ_OTHER)
        return __real_tierce__native_answer_hand_over(call);
    call->say.hand_over =
        (struct tierce__native_handed){.status = (uint32_t)TIERCE_E_ARGUMENT, .why = ""};
    return 0;
}

/* As when the names of hosts cannot be resolved yet: the next request for tickets opens it. */
START_TEST(an_inbox_that_cannot_be_opened_after_a_restart)
{
    atomic_store(&fails_to_accept, true);
    restart(&decoder, "5MiB");
    record_log(TIERCE_LOG_WARN);
    WAIT_WITHIN(30000, tierce__handover_issue(taking, &ticket, 1, LONG_MS, "") == TIERCE_E_CLOSED);
    ck_assert_uint_eq(recorded_with("handover_inbox_lost", "the node was restarted"), 1);
    silence_log();
    ck_assert_int_eq(tierce__handover_expect(taking, token, LONG_MS), 0); /* offers need none */
    atomic_store(&fails_to_accept, false);
    WAIT_WITHIN(30000, tierce__handover_issue(taking, &ticket, 1, LONG_MS, "") == 1);
}
END_TEST

static atomic_bool is_held, may_go_on;

/* The node's client that has a store is not served meanwhile. */
static void *hold_storing_client(void *arg)
{
    TIERCE__LIST_FOR_EACH (it, &prefiller.node.node->native->clients) {
        struct tierce__native_client *of =
            TIERCE__CONTAINER_OF(it, struct tierce__native_client, node);
        tierce__lock_take(&of->lock);
        if (of->counts[TIERCE__NATIVE_STORES] > 0) {
            atomic_store(&is_held, true);
            WAIT_FOR(atomic_load(&may_go_on));
        }
        tierce__lock_drop(&of->lock);
    }
    return arg;
}

/* A node that does not read costs the layers that do not fit into the socket. The connection is
 * used again when they do. */
START_TEST(a_full_socket_stays_open)
{
    const union tierce__native_request unknown = {.store_layers = {UINT64_MAX, 1}};
    uint64_t number;
    uint32_t sent = 0;
    pthread_t holder;
    struct tierce_store *store = store_begin(1, BLOCKS, 1);
    struct tierce__node_session *peer =
        tierce__client_view_peer(ranks[1].view, &number, tierce__deadline_in_ms(LONG_MS));
    ck_assert_ptr_nonnull(peer);
    ck_assert_int_eq(pthread_create(&holder, NULL, hold_storing_client, NULL), 0);
    WAIT_FOR(atomic_load(&is_held));
    while (tierce__node_session_post(peer, TIERCE__NATIVE_STORE_LAYERS, &unknown) == 0)
        ck_assert_uint_lt(sent++, 1u << 20);
    ck_assert_uint_gt(sent, 0);
    /* It is still the first one that is used. */
    ck_assert_int_eq(tierce__node_session_post(peer, TIERCE__NATIVE_STORE_LAYERS, &unknown),
                     TIERCE_E_DOWN);
    atomic_store(&may_go_on, true);
    WAIT_FOR(tierce__node_session_post(peer, TIERCE__NATIVE_STORE_LAYERS, &unknown) == 0);
    pthread_join(holder, NULL);
    tierce__node_session_release(peer);
    tierce_store_abort(store);
}
END_TEST

START_TEST(a_second_inbox_is_refused)
{
    ck_assert_int_eq(accept_pushes(), TIERCE_E_ARGUMENT);
    ck_assert_str_eq(why, "the engine has an inbox already");
    ck_assert_int_eq(tierce__handover_issue(taking, &ticket, 1, LONG_MS, ""), 1);
}
END_TEST

START_TEST(nodes_of_an_older_version_say_so)
{
    struct tierce__push *push;
    tierce__handover_stop(taking);
    tierce_view_close(decoder.view);
    tierce_engine_close(decoder.client);
    struct tierce_namespace ns = fx_namespace();
    decoder.client = connect_to(&decoder);
    ck_assert_int_eq(
        tierce_view_open(&decoder.view, decoder.client, &ns, &(struct tierce_shard){0, 1, 0, 1}),
        0);
    ck_assert_int_eq(tierce__handover_start(&taking, decoder.client, "127.0.0.1", 0, why), 0);
    atomic_store(&is_old, true);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(accept_pushes(), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why, "upgrade the node"));
    ck_assert_int_eq(tierce__handover_issue(taking, &ticket, 1, LONG_MS, ""), TIERCE_E_CLOSED);
    ck_assert_int_eq(push_begin(&push, ranks[0].view), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_eq(recorded_with("node_pushes_nothing", "upgrade the node"), 1);
    silence_log();
    atomic_store(&is_old, false);
}
END_TEST

CHECK_MAIN("handover_ranks", .seconds = 60, .setup = open_all, .teardown = close_all,
           .tests = {chunks_travel_while_later_steps_are_computed, each_rank_sends_its_layers,
                     a_rank_that_tells_no_layer, a_node_that_takes_no_layers,
                     ranks_that_fill_at_the_same_time, a_rank_that_gives_its_store_up,
                     a_rank_that_ends_while_it_pushes, a_decoder_that_ends,
                     chunks_of_another_client_are_refused, many_tickets, nodes_that_are_restarted,
                     an_inbox_that_cannot_be_opened_after_a_restart, a_second_inbox_is_refused,
                     a_full_socket_stays_open, requests_that_are_lost,
                     nodes_of_an_older_version_say_so})
