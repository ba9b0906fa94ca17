/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that one engine offers and another one reads: all of them, none after any failure, and no
 * pin is left. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/handover/handover.h"
#include "engine/why/requests.h"
#include "engine_fixture.h"
#include "silent_log.h"

#define BLOCKS  42u /* ten chunks and a tail of two blocks */
#define SESSION 7u
#define LONG_MS 20000u

static const char token[] = "0123456789abcdef0123456789abcdef";
static struct fixture giver, taker;
static struct tierce_chain *chain, *same;
static struct tierce__handover *handover;
static struct tierce__handover_pulled pulled;

static void open_with(const char *const *sets)
{
    static const char *const other[] = {"memory.size", "5MiB", NULL}; /* or it would be shared */
    char why[TIERCE__HANDOVER_WHY_BYTES];
    silence_log();
    fx_open(&giver, false, NULL);
    fx_open(&taker, false, sets != NULL ? sets : other);
    chain = fx_chain(&giver, 1, BLOCKS, 0);
    same = fx_chain(&taker, 1, BLOCKS, 0);
    fx_wipe(&taker);
    ck_assert_int_eq(fx_store(&giver, chain, BLOCKS, fx_ids, true), BLOCKS);
    ck_assert_msg(tierce__handover_start(&handover, giver.engine, "127.0.0.1", 0, why) == 0, "%s",
                  why);
}

static void open_default(void)
{
    open_with(NULL);
}

static void close_all(void)
{
    tierce_unpin(taker.view, SESSION);
    ck_assert_uint_eq(fx_stats(&taker).sessions_now, 0);
    tierce__handover_stop(handover);
    ck_assert_uint_eq(fx_stats(&giver).sessions_now, 0);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(same);
    fx_close(&giver);
    fx_close(&taker);
    fx_remove(&giver);
    fx_remove(&taker);
    giver = taker = (struct fixture){0};
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void offer(void)
{
    ck_assert_int_eq(tierce__handover_offer(handover, giver.view, chain, BLOCKS, token, LONG_MS),
                     BLOCKS);
    ck_assert_uint_eq(tierce__handover_offers(handover), 1);
    ck_assert_uint_eq(fx_stats(&giver).sessions_now, 1);
}

static struct tierce__handover_from from_giver(void)
{
    return (struct tierce__handover_from){.host = "127.0.0.1",
                                          .port = tierce__handover_port(handover),
                                          .token = token,
                                          .session = SESSION,
                                          .timeout_ms = LONG_MS};
}

static void pull(const struct tierce__handover_from *from)
{
    ck_assert_int_eq(tierce__handover_pull(taker.view, same, BLOCKS, from, &pulled), 0);
}

/* The blocks that the taker loads from memory, each compared byte by byte. */
static size_t load(void)
{
    uint64_t memory;
    uint64_t found = fx_found(&taker, same, BLOCKS, TIERCE_LOOKUP_PIN, SESSION, &memory);
    ck_assert_uint_ge(found, memory);
    found = memory; /* one chunk may be there without a pin */
    struct tierce_transfer_opts what = fx_what(&taker, same, 0, found, fx_ids);
    uint8_t origins[FX_BLOCKS];
    what.session = SESSION;
    if (found > 0)
        ck_assert_int_ge(tierce_load(taker.view, &what, origins), 0);
    for (size_t b = 0; b < found; b++) {
        ck_assert_int_eq(origins[b], TIERCE_ORIGIN_MEMORY);
        ck_assert(fx_right(&taker, same, b, fx_ids[b]));
    }
    return found;
}

START_TEST(a_whole_prompt_with_its_tail)
{
    struct tierce__handover_from from = from_giver();
    offer();
    pull(&from);
    ck_assert_str_eq(pulled.why, "");
    ck_assert_int_eq(pulled.status, 0);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_gt(pulled.bytes, 0);
    ck_assert_uint_eq(load(), BLOCKS);
    /* The reader has ended the offer, and with it the pins. */
    ck_assert_uint_eq(tierce__handover_offers(handover), 0);
    ck_assert_uint_eq(fx_stats(&giver).sessions_now, 0);
    /* Memory has all of it now: nothing is read again, although there is no such offer. */
    pull(&from);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_eq(pulled.bytes, 0);
}
END_TEST

START_TEST(only_what_is_missing)
{
    struct tierce__handover_from from = from_giver();
    offer();
    ck_assert_int_eq(fx_store(&taker, same, 2 * FX_CHUNK_BLOCKS, fx_ids, false),
                     2 * FX_CHUNK_BLOCKS);
    fx_wipe(&taker);
    pull(&from);
    ck_assert_uint_eq(pulled.blocks, BLOCKS);
    ck_assert_uint_eq(fx_stats(&taker).memory_chunks_now, fx_stats(&giver).memory_chunks_now);
    uint64_t bytes = pulled.bytes;
    ck_assert_uint_eq(load(), BLOCKS);
    tierce_unpin(taker.view, SESSION);
    ck_assert_int_ge(tierce_engine_clear(taker.engine, 0, NULL), 0);
    fx_wipe(&taker);
    offer();
    from.from_block = 2 * FX_CHUNK_BLOCKS + 1; /* the engine has those before it itself */
    pull(&from);
    ck_assert_uint_eq(pulled.bytes, bytes);
}
END_TEST

START_TEST(without_the_token_nothing_is_read)
{
    struct tierce__handover_from from = from_giver();
    pull(&from); /* there is no offer */
    ck_assert_int_eq(pulled.status, TIERCE_E_REFUSED);
    ck_assert_uint_eq(pulled.blocks, 0);
    offer();
    from.token = "0123456789abcdef0123456789abcdeF";
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_REFUSED);
    ck_assert_uint_eq(load(), 0);
    ck_assert_uint_eq(tierce__handover_offers(handover), 1);
}
END_TEST

START_TEST(a_missing_chunk_ends_it)
{
    struct tierce__handover_from from = from_giver();
    struct tierce__keys keys;
    offer();
    ck_assert_int_eq(tierce__keys_init(&keys, giver.inner, chain, BLOCKS, BLOCKS, true), 0);
    tierce__storage_quarantine(giver.engine, 0, &keys.keys[5], TIERCE_E_VERSION);
    tierce__keys_fini(&keys);
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_MISS);
    ck_assert_uint_eq(pulled.blocks, 5 * FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(load(), 5 * FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(tierce__handover_offers(handover), 0);
    /* The request remembers it. */
    struct tierce__request_record record;
    char address[64];
    tierce__requests_note(taker.engine->requests,
                          &(struct tierce_request){.name = "r", .session = SESSION});
    ck_assert_uint_eq(tierce__requests_find(taker.engine->requests, &record, "r"), 1);
    snprintf(address, sizeof(address), "127.0.0.1:%u", from.port);
    ck_assert_str_eq(record.handover.from, address);
    ck_assert_uint_eq(record.handover.tokens, 5 * FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS);
    ck_assert_uint_eq(record.handover.bytes, pulled.bytes);
    ck_assert_str_eq(record.handover.why, "the prefiller does not have the chunk");
}
END_TEST

/* The chunk's bytes are in the giver's memory, where a fault changes one of them. */
START_TEST(wrong_bytes_are_dropped)
{
    struct tierce__handover_from from = from_giver();
    struct tierce__keys keys;
    offer();
    ck_assert_int_eq(tierce__keys_init(&keys, giver.inner, chain, BLOCKS, BLOCKS, true), 0);
    for (size_t chunk = 2; chunk <= 3; chunk++) {
        struct tierce__buf *buf = tierce__storage_lease(giver.engine, &keys.keys[chunk]);
        ck_assert_ptr_nonnull(buf);
        /* A cell of the one, the header of the other. */
        buf->data[chunk == 3 ? giver.view->full.extent.header_bytes + 5 : 40] ^= 1;
        tierce__buf_release(buf);
        if (chunk == 3)
            continue;
        pull(&from);
        ck_assert_int_lt(pulled.status, 0);
        ck_assert_uint_eq(pulled.blocks, 2 * FX_CHUNK_BLOCKS);
        ck_assert_uint_eq(load(), 2 * FX_CHUNK_BLOCKS);
        buf = tierce__storage_lease(giver.engine, &keys.keys[chunk]);
        buf->data[40] ^= 1;
        tierce__buf_release(buf);
        offer();
    }
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_CHECKSUM);
    ck_assert_uint_eq(pulled.blocks, 3 * FX_CHUNK_BLOCKS);
    ck_assert_uint_eq(load(), 3 * FX_CHUNK_BLOCKS);
    struct tierce_engine_stats stats = fx_stats(&taker);
    ck_assert_uint_eq(stats.checksum_failures + stats.identity_failures, 2);
    tierce__keys_fini(&keys);
}
END_TEST

START_TEST(a_dead_prefiller_is_waited_for_with_a_bound)
{
    struct tierce__handover_from from = from_giver();
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
    struct tierce__handover_from from = from_giver();
    offer();
    pull(&from);
    ck_assert_int_eq(pulled.status, TIERCE_E_FULL);
    ck_assert_uint_lt(pulled.blocks, BLOCKS);
    ck_assert_uint_ge(load(), pulled.blocks > 0 ? FX_CHUNK_BLOCKS : 0);
    ck_assert_uint_eq(tierce__handover_offers(handover), 0);
}
END_TEST

START_TEST(offers_end)
{
    ck_assert_int_eq(tierce__handover_offer(handover, giver.view, chain, BLOCKS, "short", LONG_MS),
                     TIERCE_E_ARGUMENT);
    offer();
    ck_assert_int_eq(tierce__handover_offer(handover, giver.view, chain, BLOCKS, token, LONG_MS),
                     TIERCE_E_ARGUMENT); /* the token is taken */
    ck_assert_uint_eq(fx_stats(&giver).sessions_now, 1);
    ck_assert_int_eq(tierce__handover_offer(handover, giver.view, chain, BLOCKS,
                                            "ffffffffffffffffffffffffffffffff", 1),
                     BLOCKS);
    while (tierce__handover_offers(handover) > 1)
        ;
    ck_assert_uint_eq(fx_stats(&giver).sessions_now, 1);
}
END_TEST

CHECK_MAIN("handover", .seconds = 60, .setup = open_default, .teardown = close_all,
           .tests = {a_whole_prompt_with_its_tail, only_what_is_missing,
                     without_the_token_nothing_is_read, a_missing_chunk_ends_it,
                     wrong_bytes_are_dropped, a_dead_prefiller_is_waited_for_with_a_bound,
                     a_full_memory_ends_it, offers_end})
