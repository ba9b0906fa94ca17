/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_PUSH_FIXTURE_H
#define TIERCE_TESTS_PUSH_FIXTURE_H

/* Two engines, a prompt that the first one computes, and the second one's inbox with a ticket. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_push.h"
#include "engine_fixture.h"
#ifdef TIERCE_TEST_NODE
#include "native_clients.h"
#endif
#include "silent_log.h"
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
static inline struct tierce_engine *engine_of(const struct fixture *of)
{
    return of->client;
}

/* That of the node's only client. */
static inline struct tierce__inbox *inbox(void)
{
    const struct tierce__native_client *client = native_first_client(decoder.node.node);
    return tierce__handover_inbox(atomic_load(&client->handover));
}
#else
static inline struct tierce_engine *engine_of(const struct fixture *of)
{
    return of->engine;
}

static inline struct tierce__inbox *inbox(void)
{
    return tierce__handover_inbox(taking);
}
#endif

static inline struct tierce__inbox_stats stats(void)
{
    struct tierce__inbox_stats out;
    tierce__inbox_stats(inbox(), &out);
    return out;
}

static inline void issue(void)
{
    ck_assert_int_eq(tierce__handover_issue(taking, &ticket, 1, LONG_MS, ""), 1);
}

static inline void open_with(const char *hosts, uint64_t bytes_max, const char *memory)
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

static inline void open_default(void)
{
    open_with("127.0.0.1", 0, "5MiB");
}

static inline void close_all(void)
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

static inline void open_anew(const char *hosts, uint64_t bytes_max, const char *memory)
{
    close_all();
    open_with(hosts, bytes_max, memory);
}

static inline struct tierce__push *push_begin(uint32_t wait_ms)
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

static inline void push_end(struct tierce__push *push)
{
    tierce__push_end(push);
    WAIT_FOR(tierce__push_is_over(push, &pushed));
    tierce__push_destroy(push);
}

static inline struct tierce_store *store_begin(size_t to, bool tail)
{
    struct tierce_store *store;
    struct tierce_transfer_opts what = fx_what(&prefiller, chain, 0, to, fx_ids);
    what.tail = tail;
    ck_assert_int_eq(tierce_store_begin(&store, prefiller.view, &what), 0);
    ck_assert_ptr_nonnull(store);
    return store;
}

static inline void store_watched(struct tierce__push *push, size_t to, bool tail)
{
    struct tierce_store *store = store_begin(to, tail);
    ck_assert_int_eq(tierce__push_watch(push, store), 0);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_store_layer(store, layer), 0);
    ck_assert_int_gt(tierce_store_end(store), 0);
}

static inline void offer(void)
{
    ck_assert_int_eq(tierce__handover_offer(serving, prefiller.view, chain, BLOCKS, token, LONG_MS),
                     BLOCKS);
}

static inline void pull(void)
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
static inline size_t load(void)
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

#endif
