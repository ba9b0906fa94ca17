/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that one engine offers and another one reads: all of them, none after any failure, and no
 * pin is left. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <tierce/operate.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_offers.h"
#include "engine/why/requests.h"
#include "engine/waterfall.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "silent_log.h"

#define BLOCKS  42u /* ten chunks and a tail of two blocks */
#define SESSION 7u
#define LONG_MS 20000u

static const char token[] = "0123456789abcdef0123456789abcdef";
/* The engine of its callers: that of a node's client with TIERCE_TEST_NODE. */
static struct tierce_engine *engine_of(const struct fixture *of)
{
#ifdef TIERCE_TEST_NODE
    return of->client;
#else
    return of->engine;
#endif
}

static struct fixture prefiller, decoder;
static struct tierce_chain *chain, *same;
static struct tierce__handover *handover;
static struct tierce__handover_pulled pulled;

static void open_both(const char *const *sets_from, const char *const *sets, bool has_disks)
{
    static const char *const other[] = {"memory.size", "5MiB", NULL}; /* or it would be shared */
    char why[TIERCE__HANDOVER_WHY_BYTES];
    silence_log();
    fx_open(&prefiller, has_disks, sets_from);
    fx_open(&decoder, has_disks, sets != NULL ? sets : other);
    chain = fx_chain(&prefiller, 1, BLOCKS, 0);
    same = fx_chain(&decoder, 1, BLOCKS, 0);
    fx_wipe(&decoder);
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    ck_assert_msg(tierce__handover_start(&handover, engine_of(&prefiller), "127.0.0.1", 0, why) ==
                      0,
                  "%s", why);
}

static void open_with(const char *const *sets)
{
    open_both(NULL, sets, false);
}

static void open_default(void)
{
    open_with(NULL);
}

static void close_all(void)
{
    tierce_unpin(decoder.view, SESSION);
    ck_assert_uint_eq(fx_stats(&decoder).sessions_now, 0);
    tierce__handover_stop(handover);
#ifndef TIERCE_TEST_NODE /* the node's server ends with its client */
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 0);
#endif
    tierce_chain_destroy(chain);
    tierce_chain_destroy(same);
    fx_close(&prefiller);
    fx_close(&decoder);
    fx_remove(&prefiller);
    fx_remove(&decoder);
    prefiller = decoder = (struct fixture){0};
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* A node's client does not know them. */
static void check_offers(size_t count)
{
#ifdef TIERCE_TEST_NODE
    (void)count;
#else
    ck_assert_uint_eq(tierce__handover_offers(handover), count);
#endif
}

static void offer(void)
{
    ck_assert_int_eq(
        tierce__handover_offer(handover, prefiller.view, chain, BLOCKS, token, LONG_MS), BLOCKS);
    check_offers(1);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 1);
}

static struct tierce__handover_from from_prefiller(void)
{
    return (struct tierce__handover_from){.host = "127.0.0.1",
                                          .port = tierce__handover_port(handover),
                                          .token = token,
                                          .session = SESSION,
                                          .timeout_ms = LONG_MS};
}

static void pull_from(uint64_t from_block, const struct tierce__handover_from *from)
{
    ck_assert_int_eq(tierce__handover_pull(decoder.view, same, from_block, BLOCKS, from, &pulled),
                     0);
}

static void pull(const struct tierce__handover_from *from)
{
    pull_from(0, from);
}

/* The blocks that the decoder loads from memory, each compared byte by byte. */
static size_t load(void)
{
    uint64_t memory;
    uint64_t found = fx_found(&decoder, same, BLOCKS, TIERCE_LOOKUP_PIN, SESSION, &memory);
    ck_assert_uint_ge(found, memory);
    found = memory; /* one chunk may be there without a pin */
    struct tierce_transfer_opts what = fx_what(&decoder, same, 0, found, fx_ids);
    uint8_t origins[FX_BLOCKS];
    what.session = SESSION;
    if (found > 0)
        ck_assert_int_ge(tierce_load(decoder.view, &what, origins), 0);
    for (size_t b = 0; b < found; b++) {
        ck_assert_int_eq(origins[b], TIERCE_ORIGIN_MEMORY);
        ck_assert(fx_right(&decoder, same, b, fx_ids[b]));
    }
    return found;
}

START_TEST(a_whole_prompt_with_its_tail)
{
    struct tierce__handover_from from = from_prefiller();
    offer();
    pull(&from);
    ck_assert_str_eq(pulled.why, "");
    ck_assert_int_eq(pulled.status, 0);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_gt(pulled.bytes, 0);
    ck_assert_uint_eq(load(), BLOCKS);
    /* The reader has ended the offer, and with it the pins. */
    check_offers(0);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 0);
    /* Memory has all of it now: nothing is read again, although there is no such offer. */
    pull(&from);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_eq(pulled.bytes, 0);
}
END_TEST

__typeof__(tierce__storage_reserve) __real_tierce__storage_reserve, __wrap_tierce__storage_reserve;
static _Atomic int reserves_left; /* until one finds no room; 0: all do */

struct tierce__buf *__wrap_tierce__storage_reserve(struct tierce_engine *engine,
                                                   const struct tierce__storage_chunk *chunk_of,
                                                   const struct tierce__buf *before)
{
    if (reserves_left > 0 && --reserves_left == 0)
        return NULL;
    return __real_tierce__storage_reserve(engine, chunk_of, before);
}

/* A chunk that is requested ahead finds no room, and finds it when the chunks before it are done.
 */
START_TEST(room_that_comes_late_is_no_failure)
{
    struct tierce__handover_from from = from_prefiller();
    offer();
    reserves_left = 3;
    pull(&from);
    ck_assert_int_eq(reserves_left, 0);
    ck_assert_int_eq(pulled.status, 0);
    ck_assert_str_eq(pulled.why, "");
    ck_assert_uint_eq(load(), BLOCKS);
}
END_TEST

START_TEST(only_what_is_missing)
{
    struct tierce__handover_from from = from_prefiller();
    offer();
    ck_assert_int_eq(fx_store(&decoder, same, 2 * FX_CHUNK_BLOCKS, fx_ids, false),
                     2 * FX_CHUNK_BLOCKS);
    fx_wipe(&decoder);
    pull(&from);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_eq(fx_stats(&decoder).memory_chunks_now, fx_stats(&prefiller).memory_chunks_now);
    uint64_t bytes = pulled.bytes;
    ck_assert_uint_eq(load(), BLOCKS);
    tierce_unpin(decoder.view, SESSION);
    ck_assert_int_ge(tierce_engine_clear(decoder.engine, 0, NULL), 0);
    fx_wipe(&decoder);
    offer();
    pull_from(2 * FX_CHUNK_BLOCKS + 1, &from); /* the engine has those before it itself */
    ck_assert_uint_eq(pulled.bytes, bytes);
}
END_TEST

START_TEST(without_the_token_nothing_is_read)
{
    struct tierce__handover_from from = from_prefiller();
    pull(&from); /* there is no offer */
    ck_assert_int_eq(pulled.status, TIERCE_E_REFUSED);
    ck_assert_uint_eq(pulled.blocks, 0);
    offer();
    static const char *const hosts[] = {"", "127.0.0.1/x?token_file=/etc/passwd#", "a b", "[::1]"};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        struct tierce__handover_from other = from;
        struct tierce__handover_pulled out;
        other.host = hosts[i];
        int rc = tierce__handover_pull(decoder.view, same, 0, BLOCKS, &other, &out);
        ck_assert_int_eq(rc < 0 ? rc : out.status, TIERCE_E_ARGUMENT);
    }
    from.token = "0123456789abcdef0123456789abcdeF";
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_REFUSED);
    ck_assert_uint_eq(load(), 0);
    check_offers(1);
}
END_TEST

START_TEST(a_missing_chunk_ends_it)
{
    struct tierce__handover_from from = from_prefiller();
    struct tierce__keys keys;
    offer();
    ck_assert_int_eq(tierce__keys_init(&keys, prefiller.inner, chain, BLOCKS, BLOCKS, true), 0);
    tierce__storage_quarantine(prefiller.engine, 0, &keys.keys[5], TIERCE_E_VERSION);
    tierce__keys_fini(&keys);
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_MISS);
    ck_assert_uint_eq(pulled.blocks, 5 * FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(load(), 5 * FX_CHUNK_BLOCKS);
    check_offers(0);
    /* The request remembers it. */
    struct tierce__request_record record;
    char address[64];
    tierce__requests_note(decoder.engine->requests,
                          &(struct tierce_request){.name = "r", .session = SESSION});
    ck_assert_uint_eq(tierce__requests_find(decoder.engine->requests, &record, "r"), 1);
    snprintf(address, sizeof(address), "127.0.0.1:%u", from.port);
    ck_assert_str_eq(record.handover.from, address);
    ck_assert_uint_eq(record.handover.tokens, 5 * FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS);
    ck_assert_uint_eq(record.handover.bytes, pulled.bytes);
    ck_assert_str_eq(record.handover.why, "the prefiller does not have the chunk");
}
END_TEST

/* The chunk's bytes are in the prefiller's memory, where a fault changes one of them. */
START_TEST(wrong_bytes_are_dropped)
{
    struct tierce__handover_from from = from_prefiller();
    struct tierce__keys keys;
    offer();
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(tierce__keys_init(&keys, prefiller.inner, chain, BLOCKS, BLOCKS, true), 0);
    for (size_t chunk = 2; chunk <= 3; chunk++) {
        struct tierce__buf *buf = tierce__storage_lease(prefiller.engine, &keys.keys[chunk]);
        ck_assert_ptr_nonnull(buf);
        /* A cell of the one, the header of the other. */
        buf->data[chunk == 3 ? prefiller.view->full.extent.header_bytes + 5 : 40] ^= 1;
        tierce__buf_release(buf);
        if (chunk == 3)
            continue;
        pull(&from);
        ck_assert_int_lt(pulled.status, 0);
        ck_assert_uint_eq(pulled.blocks, 2 * FX_CHUNK_BLOCKS);
        ck_assert_uint_eq(load(), 2 * FX_CHUNK_BLOCKS);
        buf = tierce__storage_lease(prefiller.engine, &keys.keys[chunk]);
        buf->data[40] ^= 1;
        tierce__buf_release(buf);
        offer();
    }
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_CHECKSUM);
    ck_assert_uint_eq(pulled.blocks, 3 * FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(load(), 3 * FX_CHUNK_BLOCKS);
    struct tierce_engine_stats stats = fx_stats(&decoder);
    ck_assert_uint_eq(stats.checksum_failures + stats.identity_failures, 2);
    tierce__keys_fini(&keys);
    ck_assert_msg(recorded_with("pulled_chunk_dropped", "peer=127.0.0.1:") == 2, "%s",
                  recorded_text());
    silence_log();
}
END_TEST

/* The chunks are on the prefiller's disk alone, which serves others at a byte a second. */
START_TEST(reads_from_disk_have_the_rate_of_peers)
{
    static const char *const slow[] = {"peers.disk_rate", "1", NULL};
    close_all();
    open_both(slow, NULL, true);
    struct tierce__handover_from from = from_prefiller();
    offer();
    ck_assert_int_eq(tierce_engine_flush(prefiller.engine, LONG_MS), 0);
    ck_assert_int_gt(tierce_engine_clear(prefiller.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_LIMIT);
    ck_assert_uint_le(pulled.blocks, FX_CHUNK_BLOCKS);
}
END_TEST

/* Each query of the decoder's own disk would hold up the chunks that follow. */
START_TEST(the_decoders_disk_is_not_asked)
{
    struct tierce__keys keys;
    struct tierce__storage_form form;
    close_all();
    open_both(NULL, NULL, true);
    struct tierce__handover_from from = from_prefiller();
    offer();
    struct tierce__tier *fault = fx_wrap(&decoder, 1);
    tierce__fault_set(
        fault, TIERCE__STORE_LOOKUP,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    pull(&from);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_int_eq(tierce__keys_init(&keys, decoder.inner, same, BLOCKS, BLOCKS, true), 0);
    ck_assert_int_eq(tierce__storage_measure(decoder.engine, 1, &keys.keys[0],
                                             tierce__deadline_in_ms(LONG_MS), &form),
                     -EIO); /* this one is the first */
    tierce__keys_fini(&keys);
}
END_TEST

START_TEST(a_dead_prefiller_is_waited_for_with_a_bound)
{
    struct tierce__handover_from from = from_prefiller();
    offer();
    tierce__handover_stop(handover);
    handover = NULL;
    from.timeout_ms = 500;
    from.wait_ms = 200;
    uint64_t began_ns = tierce__now_ns();
    pull(&from);
    ck_assert_int_lt(pulled.status, 0);
    ck_assert_str_ne(pulled.why, "");
    ck_assert_uint_eq(load(), 0);
    ck_assert_uint_lt(tierce__now_ns() - began_ns, 20000 * TIERCE__MS_NS);
}
END_TEST

START_TEST(a_full_memory_ends_it)
{
    static const char *const small[] = {"memory.size", "5MiB", "memory.pins", "1%", NULL};
    close_all();
    open_with(small);
    struct tierce__handover_from from = from_prefiller();
    offer();
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_FULL);
    ck_assert_uint_lt(pulled.blocks, BLOCKS);
    ck_assert_uint_ge(load(), pulled.blocks > 0 ? FX_CHUNK_BLOCKS : 0);
    check_offers(0);
}
END_TEST

/* ---- offers that open later ---- */

struct reading {
    struct tierce__keeper_call call;
    _Atomic int answers; /* release, acquire: `call` */
};

static void answered(struct tierce__keeper_call *call)
{
    struct reading *reading = call->arg;
    atomic_fetch_add_explicit(&reading->answers, 1, memory_order_release);
}

static void await_answer(const struct reading *reading)
{
    uint64_t until_ns = tierce__deadline_in_ms(LONG_MS);
    while (atomic_load_explicit(&reading->answers, memory_order_acquire) == 0)
        ck_assert_msg(tierce__now_ns() < until_ns, "a read was not answered");
}

static bool read_offer(struct tierce__offers *offers, struct reading *reading, const char *name)
{
    *reading = (struct reading){.call = {.name = {name, strlen(name)},
                                         .deadline_ns = tierce__deadline_in_ms(LONG_MS),
                                         .done = answered,
                                         .arg = reading}};
    return tierce__offers_find(offers, &reading->call);
}

START_TEST(reads_of_an_offer_wait_until_it_is_open)
{
    static const char name[] = "fedcba9876543210fedcba9876543210";
    static const char first_name[] =
        "the name of a chunk is longer than the longest token: 65 of these";
    struct tierce__offers offers;
    struct reading first, second, late;
    ck_assert_int_eq(tierce__offers_init(&offers, prefiller.engine), 0);
    ck_assert(read_offer(&offers, &first, name)); /* there is none */
    ck_assert(first.answers == 1 && first.call.status == TIERCE_E_MISS);
    struct tierce__keeper_call chunk = {.name = {first_name, sizeof(first_name) - 1}};
    ck_assert(!tierce__offers_find(&offers, &chunk));
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__offers_expect(&offers, name, LONG_MS), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert(!tierce__offers_admit(&offers, name, strlen(name)));
    ck_assert_int_eq(tierce__offers_expect(&offers, name, LONG_MS), 0);
    ck_assert(tierce__offers_admit(&offers, name, strlen(name)));
    ck_assert(read_offer(&offers, &first, name) && read_offer(&offers, &second, name));
    ck_assert_int_eq(first.answers + second.answers, 0);
    ck_assert_int_eq(tierce__offers_pin(&offers, prefiller.view, chain, BLOCKS, name), BLOCKS);
    ck_assert_int_eq(first.answers + second.answers, 0);
    ck_assert_int_eq(tierce__offers_open(&offers, name, 0x0102030405u), 0);
    ck_assert(read_offer(&offers, &late, name));
    const struct reading *const all[] = {&first, &second, &late};
    for (size_t i = 0; i < 3; i++) {
        struct tierce__keeper_lease lease = all[i]->call.lease;
        ck_assert_int_eq(all[i]->answers, 1);
        ck_assert_int_eq(all[i]->call.status, 0);
        ck_assert_uint_eq(lease.bytes, TIERCE__OFFER_BYTES);
        ck_assert_mem_eq(lease.data, "\5\4\3\2\1\0\0\0", TIERCE__OFFER_BYTES);
        ck_assert(tierce__offers_release(&lease));
    }
    ck_assert(tierce__offers_end(&offers, name, strlen(name)));
    ck_assert(!tierce__offers_end(&offers, name, strlen(name)));
    ck_assert_int_eq(tierce__offers_open(&offers, name, 0), TIERCE_E_MISS);
    ck_assert_int_eq(tierce__offers_pin(&offers, prefiller.view, chain, BLOCKS, name),
                     TIERCE_E_MISS);
    /* Withdrawn, and left at the end. */
    ck_assert_int_eq(tierce__offers_expect(&offers, name, LONG_MS), 0);
    ck_assert(read_offer(&offers, &first, name));
    ck_assert(tierce__offers_end(&offers, name, strlen(name)));
    ck_assert_int_eq(tierce__offers_expect(&offers, name, LONG_MS), 0);
    ck_assert(read_offer(&offers, &second, name));
    tierce__offers_fini(&offers);
    ck_assert_int_eq(first.call.status, TIERCE_E_MISS);
    ck_assert_int_eq(second.call.status, TIERCE_E_MISS);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 0);
}
END_TEST

static struct reading begin_read(const char *name, uint32_t ms)
{
    return (struct reading){.call = {.space = {"chunks", 6},
                                     .name = {name, strlen(name)},
                                     .deadline_ns = tierce__deadline_in_ms(ms),
                                     .done = answered}};
}

/* A read of an offer that does not open is answered at its own deadline, not at the offer's. */
START_TEST(a_waiting_read_has_a_deadline)
{
    struct tierce__keeper *keeper = tierce__handover_keeper(handover);
    struct reading late = begin_read(token, 1), patient = begin_read(token, LONG_MS);
    late.call.arg = &late;
    patient.call.arg = &patient;
    ck_assert_int_eq(tierce__handover_expect(handover, token, LONG_MS), 0);
    keeper->ops->find(keeper, &patient.call);
    keeper->ops->find(keeper, &late.call);
    await_answer(&late);
    ck_assert_int_eq(late.call.status, TIERCE_E_DEADLINE);
    ck_assert_int_eq(patient.answers, 0);
    check_offers(1);
    ck_assert_int_eq(tierce__handover_open(handover, token, 5), 0);
    await_answer(&patient);
    ck_assert_int_eq(patient.call.status, 0);
    keeper->ops->release(keeper, &patient.call.lease);
    ck_assert_int_eq(late.answers + patient.answers, 2);
}
END_TEST

/* The end of the server answers the reads that wait. */
START_TEST(the_keeper_ends)
{
    struct tierce__keeper *keeper = tierce__handover_keeper(handover);
    struct reading waiting = begin_read(token, LONG_MS);
    waiting.call.arg = &waiting;
    ck_assert(!keeper->ops->is_short(keeper, &waiting.call.space));
    ck_assert_int_eq(tierce__handover_expect(handover, token, LONG_MS), 0);
    keeper->ops->find(keeper, &waiting.call);
    ck_assert_int_eq(waiting.answers, 0);
    keeper->ops->end(keeper, tierce__now_ns());
    await_answer(&waiting);
    ck_assert_int_eq(waiting.call.status, TIERCE_E_MISS);
    check_offers(0);
}
END_TEST

static void *pull_in_thread(void *arg)
{
    pull(arg);
    return NULL;
}

/* The reader is there before or after the offer is open. */
START_TEST(a_reader_is_woken_when_the_offer_opens)
{
    struct tierce__handover_from from = from_prefiller();
    pthread_t thread;
    ck_assert_int_eq(tierce__handover_expect(handover, token, LONG_MS), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, pull_in_thread, &from), 0);
    ck_assert_int_eq(tierce__handover_pin(handover, prefiller.view, chain, BLOCKS, token), BLOCKS);
    ck_assert_int_eq(tierce__handover_open(handover, token, BLOCKS * FX_BLOCK_TOKENS), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_str_eq(pulled.why, "");
    ck_assert_uint_eq(load(), BLOCKS);
    check_offers(0);
    tierce_unpin(decoder.view, SESSION);
    /* One that is withdrawn. */
    ck_assert_int_ge(tierce_engine_clear(decoder.engine, 0, NULL), 0);
    ck_assert_int_eq(tierce__handover_expect(handover, token, LONG_MS), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, pull_in_thread, &from), 0);
    tierce__handover_withdraw(handover, token);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(pulled.status == TIERCE_E_MISS || pulled.status == TIERCE_E_REFUSED);
    ck_assert_uint_eq(pulled.blocks, 0);
    /* One that never opens: the reader waits for so long. */
    ck_assert_int_eq(tierce__handover_expect(handover, token, LONG_MS), 0);
    from.wait_ms = 50;
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_DEADLINE);
}
END_TEST

/* ---- several groups of layers ---- */

static struct tierce_view *open_group(struct fixture *of, enum tierce_group group, uint32_t window)
{
    static const uint32_t layer_numbers[FX_LAYERS] = {0, 3, 4, 7};
    struct tierce_view *view;
    struct tierce_namespace ns = fx_namespace();
    ns.group = group;
    ns.window = window;
    ns.layers = layer_numbers;
    ns.chunk_blocks = group == TIERCE_GROUP_STATE ? 1 : ns.chunk_blocks;
    ck_assert_int_eq(
        tierce_view_open(&view, engine_of(of), &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    return view;
}

/* Loads what the group requires after `blocks` blocks, and compares each byte. */
static void load_group(struct tierce_view *view, uint64_t blocks)
{
    uint64_t from = tierce_view_needs(view, blocks);
    struct tierce_transfer_opts what = fx_what(&decoder, same, from, blocks, fx_ids);
    what.session = SESSION;
    fx_wipe(&decoder);
    ck_assert_int_eq(tierce_load(view, &what, NULL), (int64_t)(blocks - from));
    for (uint64_t b = from; b < blocks; b++)
        ck_assert(fx_right(&decoder, same, b, fx_ids[b]));
}

/* A window and a state: only the chunks that they require at the end are pinned and read. */
START_TEST(groups_of_layers)
{
    enum { WINDOW = 6 * FX_BLOCK_TOKENS, END = 40 };
    struct tierce_view *views[2][2];
    struct tierce__handover_from from = from_prefiller();
    struct tierce__source *source;
    uint64_t tokens = 0;
    ck_assert_int_eq(tierce__handover_expect(handover, token, LONG_MS), 0);
    for (int i = 0; i < 2; i++) {
        enum tierce_group kind = i == 0 ? TIERCE_GROUP_WINDOW : TIERCE_GROUP_STATE;
        views[0][i] = open_group(&prefiller, kind, i == 0 ? WINDOW : 0);
        views[1][i] = open_group(&decoder, kind, i == 0 ? WINDOW : 0);
        struct tierce_transfer_opts what =
            fx_what(&prefiller, chain, i == 0 ? 8 : END - 1, END, fx_ids);
        fx_fill(&prefiller, chain, 0, END, fx_ids);
        ck_assert_int_eq(tierce_store(views[0][i], &what), i == 0 ? END - 8 : 1);
        ck_assert_int_eq(tierce__handover_pin(handover, views[0][i], chain, END, token), END);
    }
    ck_assert_int_eq(tierce__handover_open(handover, token, END * FX_BLOCK_TOKENS), 0);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 2);
    ck_assert_int_eq(tierce__source_begin(&source, engine_of(&decoder), &from), 0);
    for (int i = 0; i < 2; i++) { /* the second time without a request */
        tokens = 0;
        ck_assert_int_eq(tierce__source_meet(source, &tokens, &pulled), 0);
        ck_assert_uint_eq(tokens, END * FX_BLOCK_TOKENS);
    }
    for (int i = 0; i < 2; i++) {
        uint64_t needs = tierce_view_needs(views[1][i], END);
        ck_assert_int_eq(tierce__source_read(source, views[1][i], same, needs, END, &pulled), 0);
        ck_assert_str_eq(pulled.why, "");
        ck_assert_uint_eq(pulled.blocks, END);
        struct tierce_found found;
        ck_assert_int_eq(
            tierce_lookup(views[1][i], same, END,
                          &(struct tierce_lookup_opts){.size = sizeof(struct tierce_lookup_opts),
                                                       .flags = TIERCE_LOOKUP_PIN,
                                                       .session = SESSION},
                          &found),
            0);
        ck_assert_uint_eq(found.memory_blocks, END);
        load_group(views[1][i], END);
    }
    ck_assert_uint_eq(fx_stats(&decoder).memory_chunks_now,
                      3); /* two of the window, and the state */
    tierce__source_end(source, &pulled);
    check_offers(0);
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 0);
    for (int i = 0; i < 2; i++) {
        tierce_unpin(views[1][i], SESSION);
        tierce_view_close(views[0][i]);
        tierce_view_close(views[1][i]);
    }
}
END_TEST

START_TEST(offers_end)
{
    ck_assert_int_eq(
        tierce__handover_offer(handover, prefiller.view, chain, BLOCKS, "short", LONG_MS),
        TIERCE_E_ARGUMENT);
    offer();
    ck_assert_int_eq(
        tierce__handover_offer(handover, prefiller.view, chain, BLOCKS, token, LONG_MS),
        TIERCE_E_ARGUMENT); /* the token is taken */
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 1);
    ck_assert_int_eq(tierce__handover_offer(handover, prefiller.view, chain, BLOCKS,
                                            "ffffffffffffffffffffffffffffffff", 1),
                     BLOCKS);
    while (tierce__handover_offers(handover) > 1)
        ;
    ck_assert_uint_eq(fx_stats(&prefiller).sessions_now, 1);
}
END_TEST

CHECK_MAIN("handover", .seconds = 60, .setup = open_default, .teardown = close_all,
           .tests = {
               a_whole_prompt_with_its_tail, room_that_comes_late_is_no_failure,
               only_what_is_missing, without_the_token_nothing_is_read, a_missing_chunk_ends_it,
               wrong_bytes_are_dropped, FX_EMBEDDED(reads_from_disk_have_the_rate_of_peers),
               FX_EMBEDDED(the_decoders_disk_is_not_asked),
               FX_EMBEDDED(a_dead_prefiller_is_waited_for_with_a_bound), a_full_memory_ends_it,
               FX_EMBEDDED(reads_of_an_offer_wait_until_it_is_open),
               FX_EMBEDDED(a_waiting_read_has_a_deadline), FX_EMBEDDED(the_keeper_ends),
               a_reader_is_woken_when_the_offer_opens, groups_of_layers, FX_EMBEDDED(offers_end)})
