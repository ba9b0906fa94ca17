/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that one engine writes into another one's memory while it computes them: visible when
 * whole and right; no ticket, no byte; a failure leaves the rest to be read or computed. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "core/key/key_text.h"
#include "engine/observe/engine_metrics.h"
#include "engine/observe/operate.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_push.h"
#include "engine/handover/handover_ranges.h"
#include "engine_fixture.h"
#include "log_record.h"
#ifdef TIERCE_TEST_NODE
#include "node/native/native_private.h"
#endif
#include "silent_log.h"
#include "store/remote/transfer/transfer_link.h"
#include "test_random.h"
#include "wait_for.h"

#define BLOCKS  42u /* ten chunks and a tail of two blocks */
#define CHUNKS  11u
#define SESSION 7u
#define LONG_MS 20000u
#define HALF    20u /* blocks: five chunks */

static const char token[] = "0123456789abcdef0123456789abcdef";
static struct fixture prefiller, decoder;
static struct tierce_chain *chain, *same;
static struct tierce__handover *serving, *taking; /* offers; an inbox */
static char ticket[TIERCE__TICKET_BYTES];
static uint32_t hold_ms = LONG_MS;
static struct tierce__pushed pushed;
static struct tierce__handover_pulled pulled;

#ifdef TIERCE_TEST_NODE
static struct tierce_engine *engine_of(const struct fixture *of)
{
    return of->client;
}

/* That of the node's only client. */
static struct tierce__inbox *inbox(void)
{
    struct tierce__list *first = decoder.node.node->native->clients.next;
    const struct tierce__native_client *client =
        TIERCE__CONTAINER_OF(first, struct tierce__native_client, node);
    return tierce__handover_inbox(atomic_load(&client->handover));
}

/* A node sends a chunk when the store of it has ended. */
#define RANGES_AFTER(layers) (0 * (layers))
#else
static struct tierce_engine *engine_of(const struct fixture *of)
{
    return of->engine;
}

static struct tierce__inbox *inbox(void)
{
    return tierce__handover_inbox(taking);
}

#define RANGES_AFTER(layers) ((layers)*CHUNKS)
#endif

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

static void open_with(const char *hosts, uint64_t bytes_max, const char *memory)
{
    const char *const other[] = {"memory.size", memory, NULL}; /* or it would be shared */
    char why[TIERCE__HANDOVER_WHY_BYTES];
    silence_log();
    fx_open(&prefiller, false, NULL);
    fx_open(&decoder, false, other);
    chain = fx_chain(&prefiller, 1, BLOCKS, 0);
    same = fx_chain(&decoder, 1, BLOCKS, 0);
    fx_fill(&prefiller, chain, 0, BLOCKS, fx_ids);
    fx_wipe(&decoder);
    ck_assert_int_eq(tierce__handover_start(&serving, engine_of(&prefiller), "127.0.0.1", 0, why),
                     0);
    ck_assert_int_eq(tierce__handover_start(&taking, engine_of(&decoder), "127.0.0.1", 0, why), 0);
    const struct tierce__inbox_opts opts = {
        .size = sizeof(opts), .hosts = hosts, .bytes_max = bytes_max, .hold_ms = hold_ms};
    ck_assert_int_eq(tierce__handover_accept(taking, &opts, why), 0);
    issue();
}

static void open_default(void)
{
    open_with("127.0.0.1", 0, "5MiB");
}

static void close_all(void)
{
    tierce_unpin(decoder.view, SESSION);
    if (taking != NULL)
        tierce__inbox_end(inbox(), ticket);
    ck_assert_uint_eq(fx_stats(&decoder).sessions_now, 0);
    tierce__handover_stop(taking);
    tierce__handover_stop(serving);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(same);
    fx_close(&prefiller);
    fx_close(&decoder);
    fx_remove(&prefiller);
    fx_remove(&decoder);
    prefiller = decoder = (struct fixture){0};
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void open_anew(const char *hosts, uint64_t bytes_max, const char *memory)
{
    close_all();
    open_with(hosts, bytes_max, memory);
}

static struct tierce__push *push_begin(uint32_t wait_ms)
{
    struct tierce__push *push;
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__handover_port(taking),
                                       .ticket = ticket,
                                       .wait_ms = wait_ms,
                                       .timeout_ms = LONG_MS};
    ck_assert_int_eq(tierce__push_begin(&push, prefiller.view, &to), 0);
    return push;
}

static void push_end(struct tierce__push *push)
{
    tierce__push_end(push);
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    tierce__push_destroy(push);
}

static struct tierce_store *store_begin(size_t to, bool tail)
{
    struct tierce_store *store;
    struct tierce_transfer_opts what = fx_what(&prefiller, chain, 0, to, fx_ids);
    what.tail = tail;
    ck_assert_int_eq(tierce_store_begin(&store, prefiller.view, &what), 0);
    ck_assert_ptr_nonnull(store);
    return store;
}

static void store_watched(struct tierce__push *push, size_t to, bool tail)
{
    struct tierce_store *store = store_begin(to, tail);
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    ck_assert_int_gt(tierce_store_end(store), 0);
}

static void offer(void)
{
    ck_assert_int_eq(tierce__handover_offer(serving, prefiller.view, chain, BLOCKS, token, LONG_MS),
                     BLOCKS);
}

static void pull(void)
{
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = tierce__handover_port(serving),
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = LONG_MS,
                                               .inbox = inbox(),
                                               .ticket = ticket};
    ck_assert_int_eq(tierce__handover_pull(decoder.view, same, 0, BLOCKS, &from, &pulled), 0);
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
    return memory;
}

/* ---- the network ----------------------------------------------------------------------------- */

void __real_tierce__stream_watch(int fd, uint32_t silence_ms);
void __wrap_tierce__stream_watch(int fd, uint32_t silence_ms);
static _Atomic unsigned watched; /* connections that end when the network lets nothing pass */

void __wrap_tierce__stream_watch(int fd, uint32_t silence_ms)
{
    atomic_fetch_add(&watched, 1);
    __real_tierce__stream_watch(fd, silence_ms);
}

/* So a decoder whose network fails does not hold the prefiller's chunks for `timeout_ms`. */
START_TEST(the_connection_of_a_push_is_watched)
{
    atomic_store(&watched, 0);
    struct tierce__push *push = push_begin(LONG_MS);
    store_watched(push, BLOCKS, true);
    push_end(push);
    ck_assert_int_eq(pushed.status, 0);
    ck_assert_uint_eq(atomic_load(&watched), 1);
}
END_TEST

__typeof__(tierce__inbox_make) __real_tierce__inbox_make, __wrap_tierce__inbox_make;
static _Atomic int begun, most_begun; /* chunks whose payload has come, without their header */
static _Atomic uint32_t payload_ranges;

int __wrap_tierce__inbox_make(struct tierce__inbox *to, struct tierce__keeper_room *room,
                              const struct tierce_plugin_name *name,
                              const struct tierce__keeper_range *range)
{
    begun += (range->offset > 8) - (range->offset == 8);
    most_begun = begun > most_begun ? begun : most_begun;
    payload_ranges += range->offset > 8;
    return __real_tierce__inbox_make(to, room, name, range);
}

/* The decoder verifies one chunk while the next one arrives; not all of them at the end. */
START_TEST(chunks_are_complete_one_after_the_other)
{
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    most_begun = 0;
    struct tierce__push *push = push_begin(LONG_MS);
    ck_assert_int_eq(tierce__push_held(push, prefiller.view, chain, BLOCKS), CHUNKS);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, CHUNKS);
    ck_assert_int_eq(most_begun, 1);
}
END_TEST

/* ---- two engines ----------------------------------------------------------------------------- */

START_TEST(each_layer_travels_before_the_next_one)
{
    struct tierce__push *push = push_begin(LONG_MS);
    struct tierce_store *store = store_begin(BLOCKS, true);
    payload_ranges = 0;
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS); /* their room, before any byte is computed */
    ck_assert_uint_gt(stats().incoming_bytes_now, 0);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++) {
        ck_assert_uint_eq(payload_ranges, RANGES_AFTER(layer));
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
        WAIT_FOR(payload_ranges == RANGES_AFTER(layer + 1)); /* while the next layer is computed */
        ck_assert_uint_eq(load(), 0);
    }
    ck_assert_int_eq(tierce_store_end(store), BLOCKS);
    push_end(push);
    ck_assert_msg(pushed.status == 0, "%s", pushed.why);
    ck_assert_uint_eq(pushed.chunks, CHUNKS);
    ck_assert_uint_eq(pushed.left_out, 0);
    ck_assert_uint_gt(pushed.over_ns, 0);
    ck_assert_uint_eq(stats().chunks, CHUNKS);
    ck_assert_uint_eq(stats().incoming_bytes_now, 0);
    ck_assert_uint_eq(stats().bytes, pushed.bytes);
    offer();
    pull();
    ck_assert_int_eq(pulled.push_status, 0);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_eq(pulled.bytes, 0); /* nothing was read */
    ck_assert_uint_eq(pulled.pushed_bytes, pushed.bytes);
    ck_assert_uint_eq(stats().tickets_now, 0);
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

START_TEST(a_prompt_in_steps_and_chunks_that_exist)
{
    /* The prefiller has the first chunks, and the decoder two of them. */
    ck_assert_int_eq(fx_store(&prefiller, chain, HALF, fx_ids, false), HALF);
    ck_assert_int_eq(fx_store(&decoder, same, 8, fx_ids, false), 8);
    fx_wipe(&decoder);
    fx_fill(&prefiller, chain, 0, BLOCKS, fx_ids);
    struct tierce__push *push = push_begin(LONG_MS);
    ck_assert_int_eq(tierce__push_held(push, prefiller.view, chain, BLOCKS),
                     HALF / FX_CHUNK_BLOCKS);
    store_watched(push, 32, false);
    store_watched(push, BLOCKS, true);
    push_end(push);
    ck_assert_msg(pushed.status == 0, "%s", pushed.why);
    ck_assert_uint_eq(pushed.present, 2);
    ck_assert_uint_eq(pushed.chunks, CHUNKS - 2);
    offer();
    pull();
    ck_assert_uint_eq(pulled.bytes, 0);
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

START_TEST(a_store_that_is_given_up_is_never_visible)
{
    struct tierce__push *push = push_begin(LONG_MS);
    struct tierce_store *store = store_begin(BLOCKS, true);
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    tierce_store_abort(store);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_uint_eq(pushed.left_out, CHUNKS);
    ck_assert_int_eq(pushed.status, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(stats().incoming_bytes_now, 0);
    ck_assert_uint_eq(stats().lost, CHUNKS);
    ck_assert_uint_eq(load(), 0);
}
END_TEST

/* Each chunk asks for room again while the others hold it. */
START_TEST(a_full_decoder_is_asked_again)
{
    uint64_t chunk = prefiller.view->full.extent.object_bytes;
    open_anew("127.0.0.1", 2 * chunk, "5MiB");
    struct tierce__push *push = push_begin(LONG_MS);
    store_watched(push, BLOCKS, true);
    push_end(push);
    ck_assert_msg(pushed.status == 0, "%s", pushed.why);
    ck_assert_uint_eq(pushed.chunks, CHUNKS);
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

START_TEST(chunks_without_room_are_left_out_and_read)
{
    uint64_t chunk = prefiller.view->full.extent.object_bytes;
    open_anew("127.0.0.1", 2 * chunk, "5MiB");
    struct tierce__push *push = push_begin(1); /* waits for no room */
    struct tierce_store *store = store_begin(BLOCKS, true);
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    WAIT_FOR(tierce__push_is_over(push, &pushed) || pushed.left_out == CHUNKS - 2);
    ck_assert_uint_gt(stats().busy, 0);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    ck_assert_int_eq(tierce_store_end(store), BLOCKS);
    push_end(push);
    ck_assert_int_eq(pushed.status, TIERCE_E_LIMIT);
    ck_assert_str_eq(pushed.why, "the decoder had no room for the chunk");
    ck_assert_uint_eq(pushed.chunks, 2);
    offer();
    pull();
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_gt(pulled.bytes, 0);
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

START_TEST(a_decoder_that_is_gone_ends_the_push)
{
    struct tierce__push *push = push_begin(LONG_MS);
    struct tierce_store *store = store_begin(BLOCKS, true);
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    tierce__handover_stop(taking);
    taking = NULL;
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    ck_assert_int_eq(tierce_store_end(store), BLOCKS);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_int_eq(pushed.status, TIERCE_E_DOWN);
    ck_assert_str_ne(pushed.why, "");
}
END_TEST

/* Later steps of a prompt whose push is over keep no chunk in memory for it. */
START_TEST(a_push_that_is_over_keeps_nothing)
{
    struct tierce__pool_stats pool;
    struct tierce__push *push = push_begin(LONG_MS);
    tierce__handover_stop(taking);
    taking = NULL;
    store_watched(push, HALF, false);
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    store_watched(push, BLOCKS, true);
    ck_assert_int_eq(tierce__push_held(push, prefiller.view, chain, BLOCKS), CHUNKS);
    ck_assert_int_ge(
        tierce__engine_clear_silently(prefiller.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    tierce__pool_stats(prefiller.engine->pool, &pool);
    ck_assert_uint_eq(pool.used_bytes, 0);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
}
END_TEST

START_TEST(a_prefiller_that_is_gone_leaves_nothing)
{
    struct tierce__push *push = push_begin(LONG_MS);
    struct tierce_store *store = store_begin(BLOCKS, true);
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    ck_assert_int_eq(tierce_store_layer(store, 0), 0);
    WAIT_FOR(stats().incoming_now == CHUNKS);
    tierce_store_abort(store);
    tierce__push_destroy(push); /* without a word to the decoder, perhaps */
    WAIT_FOR(stats().incoming_now == 0);
    ck_assert_uint_eq(stats().incoming_bytes_now, 0);
    ck_assert_int_ne(tierce__inbox_await(inbox(), ticket, LONG_MS, tierce__deadline_in_ms(LONG_MS)),
                     TIERCE_E_DEADLINE);
    ck_assert_uint_eq(load(), 0);
}
END_TEST

/* ---- ranges by hand -------------------------------------------------------------------------- */

static struct tierce__transfer_link *links[2];

static void open_link(size_t at, const char *text)
{
    ck_assert_int_eq(tierce__transfer_link_create(&links[at], "127.0.0.1",
                                                  tierce__handover_port(taking), "chunks", NULL),
                     0);
    ck_assert_int_eq(tierce__transfer_link_reach(links[at], text, tierce__deadline_in_ms(LONG_MS)),
                     0);
}

static void close_links(void)
{
    for (size_t i = 0; i < 2; i++) {
        tierce__transfer_link_destroy(links[i]);
        links[i] = NULL;
    }
}

/* A chunk of the prefiller: its object and its name. */
struct sample {
    struct tierce__buf *buf;
    char text[TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name name;
};

static void take_sample(struct sample *sample, size_t index)
{
    struct tierce__keys keys;
    const struct tierce_view *view = prefiller.inner;
    ck_assert_int_eq(tierce__keys_init(&keys, view, chain, BLOCKS, BLOCKS, true), 0);
    const struct tierce__key *key = &keys.keys[index];
    sample->buf = tierce__storage_lease(prefiller.engine, key);
    ck_assert_ptr_nonnull(sample->buf);
    int bytes = tierce__key_text_format(sample->text, view->ns_digest, &key->shard, key->hash);
    ck_assert_int_gt(bytes, 0);
    sample->name = (struct tierce_plugin_name){sample->text, (size_t)bytes};
    tierce__keys_fini(&keys);
}

static int write_range(size_t link, const struct sample *sample, uint64_t from, uint64_t to)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS);
    const struct tierce__link_range range = {from, to - from, sample->buf->bytes};
    int rc = tierce__transfer_link_write(links[link], &sample->name, &range,
                                         sample->buf->data + from, deadline_ns);
    return rc == 0 ? tierce__transfer_link_written(links[link], deadline_ns) : rc;
}

/* Cuts the object in up to 20 ranges, and mixes them. Returns how many. */
static size_t cut(struct test_random *random, struct tierce__range ranges[20], uint64_t bytes)
{
    size_t count = 0, parts = 1 + test_random_below(random, 20);
    for (uint64_t at = 0; at < bytes; count++) {
        uint64_t left = bytes - at;
        uint64_t length = count + 1 == parts
                              ? left
                              : 1 + test_random_below(random, (uint32_t)(2 * bytes / parts));
        ranges[count] = (struct tierce__range){at, at + (length < left ? length : left)};
        at = ranges[count].to;
    }
    for (size_t i = count; i > 1; i--) {
        size_t other = test_random_below(random, (uint32_t)i);
        struct tierce__range swapped = ranges[i - 1];
        ranges[i - 1] = ranges[other];
        ranges[other] = swapped;
    }
    return count;
}

START_TEST(ranges_in_every_order_on_two_connections)
{
    struct test_random random = test_random_start("ranges_in_every_order");
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    open_link(0, ticket);
    open_link(1, ticket);
    for (size_t chunk = 0; chunk < CHUNKS; chunk++) {
        struct tierce__range ranges[20];
        struct sample sample;
        take_sample(&sample, chunk);
        size_t count = cut(&random, ranges, sample.buf->bytes);
        for (size_t i = 0; i < count; i++) {
            ck_assert_uint_eq(stats().chunks, chunk);
            ck_assert_int_eq(
                write_range(test_random_below(&random, 2), &sample, ranges[i].from, ranges[i].to),
                0);
        }
        ck_assert_uint_eq(stats().chunks, chunk + 1);
        ck_assert_int_eq(write_range(0, &sample, 0, 1), -EEXIST);
        tierce__buf_release(sample.buf);
    }
    ck_assert_uint_eq(load(), BLOCKS);
    close_links();
}
END_TEST

/* The connection ends, and with it the ticket. */
static void is_rejected(uint64_t from, uint64_t to, uint64_t total)
{
    struct sample sample;
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS), wrong = stats().wrong;
    take_sample(&sample, 0);
    open_link(0, ticket);
    ck_assert_int_eq(write_range(0, &sample, 100, 200), 0);
    const struct tierce__link_range range = {from, to - from, total};
    int rc =
        tierce__transfer_link_write(links[0], &sample.name, &range, sample.buf->data, deadline_ns);
    if (rc == 0)
        rc = tierce__transfer_link_written(links[0], deadline_ns);
    ck_assert_int_eq(rc, TIERCE_E_DOWN);
    WAIT_FOR(stats().incoming_now == 0);
    ck_assert_uint_ge(stats().wrong, wrong);
    ck_assert(!tierce__inbox_admits(inbox(), ticket, strlen(ticket)));
    ck_assert_int_eq(tierce__inbox_await(inbox(), ticket, 1, tierce__deadline_in_ms(LONG_MS)),
                     TIERCE_E_DOWN);
    tierce__buf_release(sample.buf);
    close_links();
    tierce__inbox_end(inbox(), ticket);
    issue();
}

START_TEST(ranges_that_contradict_end_the_connection)
{
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    uint64_t bytes = prefiller.view->full.extent.object_bytes;
    is_rejected(100, 200, bytes);         /* the same again */
    is_rejected(199, 300, bytes);         /* one byte of it */
    is_rejected(0, 101, bytes);           /* one byte of it */
    is_rejected(0, bytes, bytes);         /* all of it */
    is_rejected(0, 10, bytes + 4096);     /* another length */
    is_rejected(0, bytes + 1, bytes);     /* beyond the object */
    is_rejected(0, 1, UINT64_MAX - 4096); /* no length of a chunk */
    ck_assert_uint_eq(load(), 0);
}
END_TEST

START_TEST(only_a_ticket_admits_a_write)
{
    struct sample sample;
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS);
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 0);
    ck_assert_int_eq(tierce__transfer_link_create(&links[0], "127.0.0.1",
                                                  tierce__handover_port(taking), "chunks", NULL),
                     0);
    ck_assert_int_eq(tierce__transfer_link_reach(links[0], token, deadline_ns), TIERCE_E_REFUSED);
    ck_assert_int_eq(tierce__transfer_link_reach(links[0], "", deadline_ns), TIERCE_E_REFUSED);
    close_links();
    /* The token of an offer reads, and does not write. */
    ck_assert_int_eq(tierce__handover_offer(taking, decoder.view, same, BLOCKS, token, LONG_MS), 0);
    open_link(0, token);
    ck_assert_int_eq(write_range(0, &sample, 0, 100), TIERCE_E_REFUSED);
    close_links();
    /* A ticket writes, and does not read. */
    uint8_t bytes[16];
    open_link(0, ticket);
    ck_assert_int_eq(tierce__transfer_link_get(links[0], ticket, &sample.name, bytes, 0,
                                               sizeof(bytes), deadline_ns),
                     TIERCE_E_REFUSED);
    close_links();
    tierce__inbox_end(inbox(), ticket);
    issue();
    /* It is for one prompt: after its end, it is none. */
    open_link(0, ticket);
    const struct tierce_plugin_name name = {ticket, strlen(ticket)};
    ck_assert_int_eq(write_range(0, &sample, 0, 100), 0);
    ck_assert_int_eq(tierce__transfer_link_remove(links[0], &name, deadline_ns), 0);
    ck_assert_int_eq(write_range(0, &sample, 100, 200), TIERCE_E_REFUSED);
    ck_assert_int_eq(tierce__inbox_await(inbox(), ticket, 1, deadline_ns), 0);
    close_links();
    /* Its time is over before it is used. */
    tierce__inbox_end(inbox(), ticket);
    ck_assert_int_eq(tierce__inbox_issue(inbox(), &ticket, 1, 1, ""), 1);
    WAIT_FOR(stats().tickets_now == 0);
    ck_assert_int_eq(tierce__inbox_await(inbox(), ticket, 1, deadline_ns), TIERCE_E_MISS);
    ck_assert_uint_eq(load(), 0);
    tierce__buf_release(sample.buf);
}
END_TEST

static void has_kept(struct tierce__keeper_room *room)
{
    (void)room;
}

static int make_range(struct tierce__keeper_room *room, const char *text,
                      const struct sample *sample, uint64_t from, uint64_t to)
{
    const struct tierce__keeper_range range = {from, to - from, sample->buf->bytes};
    *room = (struct tierce__keeper_room){
        .token = {text, strlen(text)}, .peer = "127.0.0.1:1", .done = has_kept};
    return tierce__inbox_make(inbox(), room, &sample->name, &range);
}

/* It accepts nothing more, and its room is there for others, although nobody asks for tickets. */
START_TEST(a_ticket_that_stalls_gives_its_room_back)
{
    uint64_t chunk = prefiller.view->full.extent.object_bytes;
    struct tierce__keeper_room room;
    struct sample samples[2];
    char other[1][TIERCE__TICKET_BYTES];
    hold_ms = 1000;
    open_anew("127.0.0.1", chunk, "5MiB");
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&samples[0], 0);
    take_sample(&samples[1], 1);
    ck_assert_int_eq(tierce__inbox_issue(inbox(), other, 1, LONG_MS, ""), 1);
    ck_assert_int_eq(make_range(&room, ticket, &samples[0], 0, 100), 0);
    memcpy(room.data, samples[0].buf->data, 100);
    tierce__inbox_keep(inbox(), &room);
    WAIT_FOR(!tierce__inbox_admits(inbox(), ticket, strlen(ticket)));
    ck_assert_int_eq(make_range(&room, ticket, &samples[0], 100, 200), TIERCE_E_REFUSED);
    ck_assert_int_eq(make_range(&room, other[0], &samples[1], 0, 100), 0);
    tierce__inbox_abandon(inbox(), &room);
    ck_assert_uint_eq(stats().tickets_expired, 1);
    tierce__buf_release(samples[0].buf);
    tierce__buf_release(samples[1].buf);
    ck_assert_uint_eq(load(), 0);
}
END_TEST

static char refusal[256];

static void note_refusal(void *arg, enum tierce_log_level level, const char *event,
                         const char *fields)
{
    (void)arg, (void)level;
    if (strcmp(event, "inbox_refused") == 0)
        snprintf(refusal, sizeof(refusal), "%s", fields);
}

START_TEST(only_named_hosts_write)
{
    open_anew("127.0.0.2 ::1", 0, "5MiB");
    tierce_set_log_fn(note_refusal, NULL, TIERCE_LOG_WARN);
    struct tierce__push *push = push_begin(LONG_MS);
    store_watched(push, BLOCKS, true);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_int_eq(pushed.status, TIERCE_E_REFUSED);
    ck_assert_uint_gt(stats().refused_host, 0);
    silence_log();
    ck_assert_str_eq(refusal, "peer=127.0.0.1 why=\"its host is not named in handover.allow\"");
    ck_assert_uint_eq(load(), 0);
}
END_TEST

/* Any client can ask for tickets. Those of a holder that has used one are kept. */
START_TEST(clients_that_only_ask_keep_nobody_out)
{
    static char taken[TIERCE__TICKETS_MAX][TIERCE__TICKET_BYTES], mine[2][TIERCE__TICKET_BYTES];
    struct sample sample;
    tierce__inbox_end(inbox(), ticket);
    ck_assert_int_eq(
        tierce__inbox_issue(inbox(), mine, 1, LONG_MS, "a name that is longer than the bound is"),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__inbox_issue(inbox(), taken, TIERCE__TICKETS_MAX, LONG_MS, ""),
                     TIERCE__TICKETS_MAX);
    /* The proxy's first tickets displace the oldest ones. */
    ck_assert_int_eq(tierce__inbox_issue(inbox(), mine, 2, LONG_MS, "proxy"), 2);
    ck_assert_uint_eq(stats().tickets_displaced, 2);
    ck_assert(!tierce__inbox_admits(inbox(), taken[0], TIERCE__TICKET_BYTES - 1));
    ck_assert(tierce__inbox_admits(inbox(), taken[2], TIERCE__TICKET_BYTES - 1));
    /* It uses one. */
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 0);
    open_link(0, mine[0]);
    ck_assert_int_eq(write_range(0, &sample, 0, sample.buf->bytes), 0);
    close_links();
    tierce__buf_release(sample.buf);
    tierce__inbox_end(inbox(), mine[0]);
    /* Its other one outlives whatever others ask for. */
    ck_assert_int_eq(tierce__inbox_issue(inbox(), taken, TIERCE__TICKETS_MAX, LONG_MS, "others"),
                     TIERCE__TICKETS_MAX);
    ck_assert(tierce__inbox_admits(inbox(), mine[1], TIERCE__TICKET_BYTES - 1));
    ck_assert_uint_eq(stats().tickets_now, TIERCE__TICKETS_MAX);
    ck_assert_uint_eq(stats().tickets_denied, 0);
}
END_TEST

/* The page of metrics and the state of the decoder. */
static void has_line(const char *line)
{
    size_t bytes;
    char *page = tierce__engine_metrics(decoder.engine, &bytes);
    ck_assert_ptr_nonnull(page);
    ck_assert_msg(strstr(page, line) != NULL, "%s is not in %s", line, page);
    tierce__free(page);
}

START_TEST(metrics_of_the_inbox)
{
    struct tierce__push *push = push_begin(LONG_MS);
    struct tierce__line status = {0};
    has_line("\ntierce_inbox_tickets_total{event=\"given\"} 1\n");
    has_line("\ntierce_inbox_tickets_held 1\n");
    store_watched(push, BLOCKS, true);
    push_end(push);
    has_line("\ntierce_inbox_tickets_total{event=\"used\"} 1\n");
    has_line("\ntierce_inbox_chunks_total{result=\"arrived\"} 11\n");
    has_line("\ntierce_inbox_incoming_chunks 0\n");
    has_line("\ntierce_inbox_waits 0\n");
    /* A used ticket opens no second connection. */
    ck_assert_int_eq(tierce__transfer_link_create(&links[0], "127.0.0.1",
                                                  tierce__handover_port(taking), "chunks", NULL),
                     0);
    ck_assert_int_eq(tierce__transfer_link_reach(links[0], ticket, tierce__deadline_in_ms(LONG_MS)),
                     TIERCE_E_REFUSED);
    close_links();
    has_line("\ntierce_inbox_refused_total{reason=\"ticket\"} 1\n");
    tierce__engine_status(decoder.engine, &status);
    ck_assert_ptr_nonnull(strstr(status.text, "\"inbox\":{\"tickets_given\":1,"));
    tierce__line_clear(&status);
    size_t bytes;
    char *page = tierce__engine_metrics(prefiller.engine, &bytes);
    ck_assert_ptr_null(strstr(page, "tierce_inbox"));
    tierce__free(page);
}
END_TEST

START_TEST(wrong_bytes_are_dropped)
{
    struct sample sample, other;
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 3);
    take_sample(&other, 4);
    uint64_t bytes = sample.buf->bytes, header = prefiller.view->full.extent.header_bytes;
    const uint64_t places[] = {header + 5, 40, 70, bytes - 4097};
    open_link(0, ticket);
    record_log(TIERCE_LOG_WARN);
    for (size_t i = 0; i < 4; i++) { /* a cell, the header */
        sample.buf->data[places[i]] ^= 1;
        ck_assert_int_eq(write_range(0, &sample, 0, bytes), -EBADMSG);
        sample.buf->data[places[i]] ^= 1;
    }
    /* A right chunk under the name of another one. */
    struct sample renamed = {.buf = other.buf, .name = sample.name};
    ck_assert_int_eq(write_range(0, &renamed, 0, bytes), -EBADMSG);
    ck_assert_uint_eq(stats().wrong, 5);
    ck_assert_uint_eq(stats().chunks, 0);
    ck_assert_msg(recorded_with("inbox_chunk_dropped", "peer=127.0.0.1 chunk=") > 0, "%s",
                  recorded_text());
    struct tierce_engine_stats counted = fx_stats(&decoder);
    ck_assert_uint_eq(counted.checksum_failures + counted.identity_failures, 5);
    ck_assert_int_eq(write_range(0, &sample, 0, bytes), 0);
    ck_assert_uint_eq(stats().chunks, 1);
    /* No chunk, and none of this engine. */
    sample.name.bytes--;
    ck_assert_int_eq(write_range(0, &sample, 0, bytes), TIERCE_E_ARGUMENT);
    sample.name.bytes++;
    ck_assert_msg(recorded_with("inbox_refused", "its chunk's name is invalid") == 1, "%s",
                  recorded_text());
    silence_log();
    sample.text[0] = sample.text[0] == '0' ? '1' : '0';
    ck_assert_int_lt(write_range(0, &sample, 0, bytes), 0);
    close_links();
    tierce__buf_release(sample.buf);
    tierce__buf_release(other.buf);
}
END_TEST

/* ---- memory that fails ----------------------------------------------------------------------- */

/* One prompt, with the nth allocation failing. Returns how many there were. */
static uint64_t push_with_failure(uint64_t nth)
{
    struct tierce__push *push = NULL;
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__handover_port(taking),
                                       .ticket = ticket,
                                       .wait_ms = 1,
                                       .timeout_ms = LONG_MS};
    struct tierce_store *store = store_begin(HALF, false);
    tierce__alloc_fail_nth(nth);
    int rc = tierce__push_begin(&push, prefiller.view, &to);
    if (rc == 0)
        rc = tierce__push_watch(push, store);
    ck_assert(rc == 0 || rc == -ENOMEM);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    (void)tierce_store_end(store);
    if (push != NULL) {
        tierce__push_end(push);
        WAIT_FOR(tierce__push_is_over(push, &pushed));
    }
    uint64_t count = tierce__alloc_fail_nth(0);
    tierce__push_destroy(push);
    return count;
}

START_TEST(memory_that_fails_leaves_the_rest_right)
{
    uint64_t count = 1;
    for (uint64_t nth = 1; nth <= count; nth++) {
        count = push_with_failure(nth);
        WAIT_FOR(stats().incoming_now == 0);
        (void)load();
        tierce_unpin(decoder.view, SESSION);
        tierce__inbox_end(inbox(), ticket);
        ck_assert_int_ge(tierce_engine_clear(prefiller.engine, 0, NULL), 0);
        ck_assert_int_ge(tierce_engine_clear(decoder.engine, 0, NULL), 0);
        fx_wipe(&decoder);
        issue();
    }
}
END_TEST

CHECK_MAIN("handover_push", .seconds = 60, .setup = open_default, .teardown = close_all,
           .tests = {
               the_connection_of_a_push_is_watched, chunks_are_complete_one_after_the_other,
               each_layer_travels_before_the_next_one, a_prompt_in_steps_and_chunks_that_exist,
               a_store_that_is_given_up_is_never_visible, a_full_decoder_is_asked_again,
               chunks_without_room_are_left_out_and_read,
               FX_EMBEDDED(a_decoder_that_is_gone_ends_the_push),
               FX_EMBEDDED(a_push_that_is_over_keeps_nothing),
               a_prefiller_that_is_gone_leaves_nothing,

               FX_EMBEDDED(ranges_in_every_order_on_two_connections),
               FX_EMBEDDED(ranges_that_contradict_end_the_connection), only_a_ticket_admits_a_write,
               FX_EMBEDDED(a_ticket_that_stalls_gives_its_room_back), only_named_hosts_write,
               FX_EMBEDDED(clients_that_only_ask_keep_nobody_out), metrics_of_the_inbox,
               FX_EMBEDDED(wrong_bytes_are_dropped),
               FX_EMBEDDED(memory_that_fails_leaves_the_rest_right)})
