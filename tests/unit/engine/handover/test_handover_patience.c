/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-overs over a slow network: one that goes on is finished, however long it takes in sum; one
 * that stalls ends with its bound. */
#include "base/alloc.h"
#include "base/clock.h"
#include "bench/remote/slow_link.h"
#include "check_main.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_offers.h"
#include "engine/handover/handover_push.h"
#include "engine_fixture.h"
#include "native_clients.h"
#include "silent_log.h"
#include "wait_for.h"
#ifdef TIERCE_TEST_NODE
#include "engine/node_client/client.h"
#endif

#define BLOCKS  160u
#define SESSION 7u
#define LONG_MS 20000u
#define BOUND   700u  /* ms without progress */
#define LATE_MS 4000u /* of a busy machine; each chunk with the bound for itself takes longer */
#define TAKES   900u  /* ms, all bytes */
#define PIECE   100u  /* ms, of a read by a node */

static const char token[] = "0123456789abcdef0123456789abcdef";
static struct fixture prefiller, decoder;
static struct tierce_chain *chain, *same;
static struct tierce__handover *serving, *taking;
static struct tierce__slow_link *net;
static struct tierce__handover_pulled pulled;
static int32_t ids[BLOCKS];
static char ticket[TIERCE__TICKET_BYTES];

#ifdef TIERCE_TEST_NODE
static unsigned reads; /* calls to the node */

int __real_tierce__client_hand_over(struct tierce_engine *engine,
                                    const struct tierce__client_about *about,
                                    const struct tierce__native_hand *ask,
                                    struct tierce__native_handed *out,
                                    char why[TIERCE__CLIENT_WHY_BYTES]);
int __wrap_tierce__client_hand_over(struct tierce_engine *engine,
                                    const struct tierce__client_about *about,
                                    const struct tierce__native_hand *ask,
                                    struct tierce__native_handed *out,
                                    char why[TIERCE__CLIENT_WHY_BYTES]);

int __wrap_tierce__client_hand_over(struct tierce_engine *engine,
                                    const struct tierce__client_about *about,
                                    const struct tierce__native_hand *ask,
                                    struct tierce__native_handed *out,
                                    char why[TIERCE__CLIENT_WHY_BYTES])
{
    struct tierce__native_hand short_piece = *ask;
    if (ask->kind == TIERCE__NATIVE_HAND_READ) {
        short_piece.bytes = PIECE;
        reads++;
    }
    return __real_tierce__client_hand_over(engine, about, &short_piece, out, why);
}

static struct tierce_engine *engine_of(const struct fixture *of)
{
    return of->client;
}

static struct tierce__inbox *inbox(void)
{
    const struct tierce__native_client *client = native_first_client(decoder.node.node);
    return tierce__handover_inbox(atomic_load(&client->handover));
}
#else
static struct tierce_engine *engine_of(const struct fixture *of)
{
    return of->engine;
}

static struct tierce__inbox *inbox(void)
{
    return tierce__handover_inbox(taking);
}
#endif

static void open_all(void)
{
    static const char *const other[] = {"memory.size", "5MiB", NULL}; /* or it would be shared */
    char why[TIERCE__HANDOVER_WHY_BYTES];
    const struct tierce__inbox_opts opts = {
        .size = sizeof(opts), .hosts = "127.0.0.1", .bytes_max = 1u << 20, .hold_ms = LONG_MS};
    silence_log();
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = (int32_t)i;
    fx_open(&prefiller, false, NULL);
    fx_open(&decoder, false, other);
    chain = fx_chain(&prefiller, 1, BLOCKS, 0);
    same = fx_chain(&decoder, 1, BLOCKS, 0);
    fx_wipe(&decoder);
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, ids, true), BLOCKS);
    ck_assert_int_eq(tierce__handover_start(&serving, engine_of(&prefiller), "127.0.0.1", 0, why),
                     0);
    ck_assert_int_eq(tierce__handover_start(&taking, engine_of(&decoder), "127.0.0.1", 0, why), 0);
    ck_assert_int_eq(tierce__handover_accept(taking, &opts, why), 0);
    ck_assert_int_eq(tierce__handover_issue(taking, &ticket, 1, LONG_MS, ""), 1);
}

static void close_all(void)
{
    tierce__slow_link_stop(net);
    net = NULL;
    tierce_unpin(decoder.view, SESSION);
    tierce__handover_stop(taking);
    tierce__handover_stop(serving);
    ck_assert_uint_eq(fx_stats(&decoder).sessions_now, 0);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(same);
    fx_close(&prefiller);
    fx_close(&decoder);
    fx_remove(&prefiller);
    fx_remove(&decoder);
    prefiller = decoder = (struct fixture){0};
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* A network between the engines over which the prompt takes TAKES. */
static void slow_down(const struct tierce__handover *server)
{
    uint64_t bytes = BLOCKS / FX_CHUNK_BLOCKS * (uint64_t)prefiller.inner->full.extent.object_bytes;
    const struct tierce__slow_link_opts opts = {.size = sizeof(opts),
                                                .port = tierce__handover_port(server),
                                                .bytes_per_s = bytes * 1000 / TAKES};
    ck_assert_int_eq(tierce__slow_link_start(&net, &opts), 0);
}

static void offer(void)
{
    ck_assert_int_eq(tierce__handover_offer(serving, prefiller.view, chain, BLOCKS, token, LONG_MS),
                     BLOCKS);
}

/* Returns how long it took, in ms. */
static uint64_t pull(uint16_t port, uint32_t timeout_ms, bool is_pushed)
{
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = port,
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = timeout_ms,
                                               .inbox = inbox(),
                                               .ticket = is_pushed ? ticket : NULL};
    uint64_t began_ns = tierce__now_ns();
    ck_assert_int_eq(tierce__handover_pull(decoder.view, same, 0, BLOCKS, &from, &pulled), 0);
    return (tierce__now_ns() - began_ns) / TIERCE__MS_NS;
}

START_TEST(a_slow_read_that_goes_on_is_finished)
{
    offer();
    slow_down(serving);
    uint64_t ms = pull(tierce__slow_link_port(net), BOUND, false);
    ck_assert_str_eq(pulled.why, "");
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_gt(ms, BOUND);
    ck_assert_uint_ge(pulled.bytes,
                      BLOCKS / FX_CHUNK_BLOCKS * prefiller.inner->full.extent.object_bytes);
#ifdef TIERCE_TEST_NODE
    ck_assert_uint_gt(reads, 2);
#endif
}
END_TEST

static uint64_t arrived(void)
{
    struct tierce__slow_link_stats stats;
    tierce__slow_link_stats(net, &stats);
    return stats.bytes_down;
}

static void *freeze(void *arg)
{
    (void)arg;
    WAIT_FOR(arrived() >= 10 * prefiller.inner->full.extent.object_bytes);
    tierce__slow_link_freeze(net, true);
    return NULL;
}

static uint64_t pushed_chunks(void)
{
    struct tierce__inbox_stats stats;
    tierce__inbox_stats(inbox(), &stats);
    return stats.chunks;
}

START_TEST(a_read_that_stalls_ends_with_its_bound)
{
    pthread_t thread;
    offer();
    slow_down(serving);
    ck_assert_int_eq(pthread_create(&thread, NULL, freeze, NULL), 0);
    uint64_t ms = pull(tierce__slow_link_port(net), 300, false);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(pulled.status, TIERCE_E_DEADLINE);
    ck_assert_uint_gt(pulled.blocks, 0);
    ck_assert_uint_lt(pulled.blocks, BLOCKS);
    ck_assert_uint_ge(ms, 300);
    ck_assert_uint_lt(ms, 300 + LATE_MS);
}
END_TEST

/* The decoder waits for half of the bound without a range. */
START_TEST(a_slow_push_is_waited_for)
{
    struct tierce__push *push;
    struct tierce__pushed pushed;
    slow_down(taking);
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__slow_link_port(net),
                                       .ticket = ticket,
                                       .wait_ms = LONG_MS,
                                       .timeout_ms = LONG_MS};
    ck_assert_int_eq(tierce__push_begin(&push, prefiller.view, &to), 0);
    ck_assert_int_eq(tierce__push_held(push, prefiller.view, chain, BLOCKS),
                     BLOCKS / FX_CHUNK_BLOCKS);
    tierce__push_end(push);
    offer();
    uint64_t ms = pull(tierce__handover_port(serving), 2 * BOUND, true);
    ck_assert_uint_gt(ms, BOUND);
    ck_assert_int_eq(pulled.push_status, 0);
    ck_assert_uint_eq(pulled.bytes, 0);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    tierce__push_destroy(push);
}
END_TEST

/* Silence of a push and of the reads behind it: both together have the bound. */
START_TEST(a_push_and_a_read_that_stall_share_the_bound)
{
    struct tierce__push *push;
    slow_down(taking);
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__slow_link_port(net),
                                       .ticket = ticket,
                                       .wait_ms = LONG_MS,
                                       .timeout_ms = LONG_MS};
    ck_assert_int_eq(tierce__push_begin(&push, prefiller.view, &to), 0);
    ck_assert_int_gt(tierce__push_held(push, prefiller.view, chain, BLOCKS), 0);
    tierce__push_end(push);
    WAIT_FOR(pushed_chunks() >= 5);
    tierce__slow_link_freeze(net, true);
    offer();
    uint64_t ms = pull(tierce__slow_link_port(net), 400, true);
    ck_assert_int_eq(pulled.push_status, TIERCE_E_DEADLINE);
    ck_assert_int_eq(pulled.status, TIERCE_E_DEADLINE);
    ck_assert_uint_lt(ms, 400 + LATE_MS);
    tierce__slow_link_stop(net);
    net = NULL;
    tierce__push_destroy(push);
}
END_TEST

START_TEST(a_read_that_is_given_up_ends_early)
{
    struct tierce__source *source;
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = tierce__handover_port(serving),
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = LONG_MS};
    offer();
    ck_assert_int_eq(tierce__source_begin(&source, engine_of(&decoder), &from), 0);
    tierce__source_give_up(source);
    ck_assert_int_eq(tierce__source_read(source, decoder.view, same, 0, BLOCKS, &pulled), 0);
    tierce__source_end(source, &pulled);
    ck_assert_int_eq(pulled.status, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(pulled.blocks, 0);
    ck_assert_uint_eq(tierce__handover_offers(serving), 0);
}
END_TEST

/* The offer's pins last as long. */
START_TEST(an_offer_is_held_while_it_is_read)
{
    struct tierce__offers offers;
    uint64_t end_ns = tierce__deadline_in_ms(450);
    ck_assert_int_eq(tierce__offers_init(&offers, prefiller.engine), 0);
    ck_assert_int_eq(tierce__offers_expect(&offers, token, 300), 0);
    ck_assert_int_eq(tierce__offers_pin(&offers, prefiller.inner, chain, BLOCKS, token), BLOCKS);
    while (tierce__now_ns() < end_ns)
        ck_assert(tierce__offers_admit(&offers, token, strlen(token)));
    ck_assert_uint_eq(tierce__offers_count(&offers), 1);
    (void)tierce__sessions_expire(prefiller.engine, NULL, false);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 1);
    WAIT_FOR(tierce__offers_count(&offers) == 0);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 0);
    ck_assert(!tierce__offers_admit(&offers, token, strlen(token)));
    tierce__offers_fini(&offers);
}
END_TEST

CHECK_MAIN("handover_patience", .seconds = 60, .setup = open_all, .teardown = close_all,
           .tests = {a_slow_read_that_goes_on_is_finished,
                     FX_EMBEDDED(a_read_that_stalls_ends_with_its_bound),
                     FX_EMBEDDED(a_slow_push_is_waited_for),
                     FX_EMBEDDED(a_push_and_a_read_that_stall_share_the_bound),
                     FX_EMBEDDED(a_read_that_is_given_up_ends_early),
                     FX_EMBEDDED(an_offer_is_held_while_it_is_read)})
