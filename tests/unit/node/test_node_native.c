/* SPDX-License-Identifier: Apache-2.0 */
/* The native protocol as a node speaks it, from bare sockets. */
#include "native_fixture.h"
#include "node/native/native_private.h"
#include "test_random.h"
#include "temp_folder.h"
#include "wait_for.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- life ------------------------------------------------------------------------------------ */

START_TEST(what_one_stores_another_loads)
{
    union tierce__native_answer say;
    struct tierce__native_lent lent;
    start(0, NULL);
    native_open(&a, path);
    native_open(&b, path);
    ck_assert_uint_eq(native_found(&b, chain, 1, 0, 0), 0);
    ck_assert_uint_eq(native_store(&a, chain, 9), BLOCKS);
    ck_assert_uint_eq(native_store(&a, chain, 9), 0);
    ck_assert_uint_eq(native_found(&b, chain, 1, 0, 0), BLOCKS);
    ck_assert_int_eq(native_load_begin(&b, &say, chain, 1, 0), 0);
    ck_assert_uint_eq(say.load_begin.chunks.count, CHUNKS);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        ck_assert_int_eq(tierce__native_get_lent(&lent, &say.load_begin.chunks, i), 0);
        ck_assert_uint_eq(lent.state, TIERCE__NATIVE_HERE);
        ck_assert_uint_eq(lent.origin, TIERCE_ORIGIN_MEMORY);
        ck_assert(native_right(&b, &lent, chain));
    }
    ck_assert_uint_gt(stats().held_bytes, 0);
    ck_assert_int_eq(native_load_end(&b, say.load_begin.load, CHUNKS, TIERCE__NATIVE_GOOD, 2), 0);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    native_close(&a, true);
    native_close(&b, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

START_TEST(what_lies_on_disk_comes)
{
    union tierce__native_answer say;
    union tierce__native_request ask = {.flush = {.timeout_ms = 60000}};
    struct tierce__native_lent lent[CHUNKS];
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_FLUSH, &ask, NULL, NULL), 0);
    ask.clear = (struct tierce__native_clear){.tiers = 1u << TIERCE_ORIGIN_MEMORY, .view = a.view};
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_CLEAR, &ask, &say, NULL), 0);
    ck_assert_uint_eq(say.store_end.count, CHUNKS);
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    uint64_t load = say.load_begin.load;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        ck_assert_int_eq(tierce__native_get_lent(&lent[i], &say.load_begin.chunks, i), 0);
        ck_assert_uint_eq(lent[i].state, TIERCE__NATIVE_COMING);
    }
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        ask.load_wait = (struct tierce__native_wait){.load = load, .layer = l};
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOAD_WAIT, &ask, &say, NULL), 0);
        ck_assert_uint_gt(say.load_wait.ready, l);
        for (uint32_t i = 0; i < CHUNKS; i++)
            ck_assert_uint_eq(say.load_wait.states.bytes[i], TIERCE__NATIVE_HERE);
    }
    for (uint32_t i = 0; i < CHUNKS; i++)
        ck_assert(native_right(&a, &lent[i], chain));
    ask.load_wait.layer = FX_LAYERS;
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOAD_WAIT, &ask, NULL, NULL), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(native_load_end(&a, load, CHUNKS, TIERCE__NATIVE_GOOD, 2), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, CHUNKS); /* promoted */
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

START_TEST(versions_of_the_protocol)
{
    static const struct {
        uint32_t version;
        int32_t status;
    } cases[] = {{TIERCE__NATIVE_VERSION, 0},
                 {TIERCE__NATIVE_VERSION_OLD, 0},
                 {TIERCE__NATIVE_VERSION_OLD - 1, TIERCE_E_VERSION},
                 {TIERCE__NATIVE_VERSION + 1, TIERCE_E_VERSION}};
    start(0, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(native_hello_as(&a, path, NULL, cases[i].version), cases[i].status);
        native_close(&a, cases[i].status == 0);
        wait_for_clients(0);
    }
    end();
}
END_TEST

START_TEST(connections_of_a_client_share_what_it_has)
{
    union tierce__native_answer say;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_int_eq(native_hello(&b, path, &a), 0);
    ck_assert_int_eq(native_store_begin(&a, &say, chain, 1, 0), 0);
    native_close(&a, false);
    ck_assert_int_eq(native_store_end(&b, say.store_begin.store, false, NULL), 0);
    wait_for_clients(1);
    ck_assert_int_eq(native_store_begin(&b, &say, chain, 1, 0), 0);
    ck_assert_uint_eq(stats().stores, 1);
    native_close(&b, false);
    wait_for_clients(0);
    ck_assert_int_eq(native_hello(&b, path, &a), TIERCE_E_CLOSED);
    native_close(&b, false);
    munmap(a.pool, a.pool_bytes);
    check_free();
    end();
}
END_TEST

START_TEST(chains_are_sent_once)
{
    union tierce__native_answer say;
    start(1, (char *const[]){(char *)"--limit.native_chains=64KiB"});
    struct tierce_chain *longer = fx_chain(&fx, 1, BLOCKS + 6, 0);
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, longer, 5), BLOCKS + 6);
    union tierce__native_request ask = {.lookup = {.view = a.view, .to_block = BLOCKS}};
    /* Known; grown; cut; of a number that is none; with blocks before it that are others. */
    ask.lookup.chain = native_chain(5, chain, BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, &say, NULL), 0);
    ck_assert_uint_eq(say.lookup.blocks, BLOCKS); /* two of them a sibling's */
    ask.lookup.to_block = BLOCKS + 6;
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL), TIERCE_E_ARGUMENT);
    ask.lookup.chain = native_chain(5, longer, BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, &say, NULL), 0);
    ck_assert_uint_eq(say.lookup.blocks, BLOCKS + 6);
    ask.lookup.chain = native_chain(6, longer, BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL),
                     TIERCE__NATIVE_UNKNOWN_CHAIN);
    ask.lookup.chain = native_chain(5, other, BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL),
                     TIERCE__NATIVE_UNKNOWN_CHAIN);
    /* The least recently requested chain is dropped. */
    for (uint64_t number = 100; number < 200; number++)
        ck_assert_uint_eq(native_found(&a, other, number, 0, 0), 0);
    ck_assert_uint_le(stats().chain_bytes, 65536);
    ask.lookup.chain = native_chain(5, longer, BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL),
                     TIERCE__NATIVE_UNKNOWN_CHAIN);
    tierce_chain_destroy(longer);
    tierce_chain_destroy(other);
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

/* Two clients store a part each. */
START_TEST(parts_of_two_clients_are_one_chunk)
{
    union tierce__native_answer say;
    struct tierce__native_reserved rooms[2][CHUNKS];
    uint64_t stores[2], blocks;
    struct native_client *ranks[] = {&a, &b};
    start(0, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(native_hello(ranks[i], path, NULL), 0);
        ck_assert_int_eq(native_view(ranks[i], i, i == 0 ? 1 : 3, i, 2), 0);
        ck_assert_int_eq(native_store_begin(ranks[i], &say, chain, 1, 77), 0);
        stores[i] = say.store_begin.store;
        ck_assert_uint_eq(native_rooms(rooms[i], CHUNKS, &say), CHUNKS);
    }
    for (uint32_t i = 0; i < CHUNKS; i++) {
        ck_assert_uint_eq(rooms[0][i].offset, rooms[1][i].offset);
        native_fill(&a, &rooms[0][i], chain, 0, 1);
        native_fill(&b, &rooms[1][i], chain, 1, FX_LAYERS);
    }
    ck_assert_int_eq(native_store_end(&b, stores[1], true, &blocks), 0);
    ck_assert_uint_eq(blocks, 0);
    ck_assert_uint_eq(native_found(&a, chain, 1, 0, 0), 0);
    ck_assert_int_eq(native_store_end(&a, stores[0], true, &blocks), 0);
    ck_assert_uint_eq(blocks, BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    /* One of them dies: nothing. */
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    ck_assert_int_eq(native_store_begin(&a, &say, other, 2, 78), 0);
    stores[0] = say.store_begin.store;
    ck_assert_int_eq(native_store_begin(&b, &say, other, 2, 78), 0);
    ck_assert_uint_ne(say.store_begin.store, 0);
    native_close(&b, true);
    wait_for_clients(1);
    ck_assert_int_eq(native_store_end(&a, stores[0], true, &blocks), 0);
    ck_assert_uint_eq(blocks, 0);
    ck_assert_uint_eq(check_found(other), 0);
    tierce_chain_destroy(other);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

START_TEST(pins_end_with_their_client)
{
    union tierce__native_answer say;
    char *limit = (char *)"--limit.native_open=4";
    start(1, &limit);
    native_open(&a, path);
    native_open(&b, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    ck_assert_uint_eq(native_found(&a, chain, 1, TIERCE_LOOKUP_PIN, 5), BLOCKS);
    int64_t pinned = fx_stats(&fx).pinned_bytes_now;
    ck_assert_int_gt(pinned, 0);
    /* Another client's load leaves them; the client's own takes them over. */
    ck_assert_int_eq(native_load_begin(&b, &say, chain, 1, 5), 0);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, pinned);
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 5), 0);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    /* More of them than may be open, one after the other. */
    for (uint64_t session = 6; session < 12; session++) {
        ck_assert_uint_eq(native_found(&a, chain, 1, TIERCE_LOOKUP_PIN, session), BLOCKS);
        ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, pinned);
        union tierce__native_request ask = {.unpin = {.view = a.view, .session = session}};
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_UNPIN, &ask, NULL, NULL), 0);
        ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    }
    ck_assert_uint_eq(native_found(&a, chain, 1, TIERCE_LOOKUP_PIN, 12), BLOCKS);
    native_close(&a, true);
    wait_for_clients(1); /* the client no longer exists, and its resources are released now */
    WAIT_WITHIN(30000, fx_stats(&fx).pinned_bytes_now == 0);
    native_close(&b, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

START_TEST(prefetches)
{
    union tierce__native_answer say;
    union tierce__native_request ask = {.flush = {.timeout_ms = 60000}};
    struct tierce__native_come_tier tier;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_FLUSH, &ask, NULL, NULL), 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    ask.prefetch_begin = (struct tierce__native_prefetch){.view = a.view,
                                                          .session = 3,
                                                          .to_block = BLOCKS,
                                                          .flags = TIERCE_PREFETCH_PIN,
                                                          .chain = native_chain(1, chain, BLOCKS)};
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PREFETCH_BEGIN, &ask, &say, NULL), 0);
    uint64_t number = say.view.number;
    do {
        ask.prefetch_poll = (struct tierce__native_poll){.prefetch = number, .wait_ms = 1000};
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PREFETCH_POLL, &ask, &say, NULL), 0);
    } while ((say.prefetch_poll.flags & TIERCE__NATIVE_FINAL) == 0);
    ck_assert_uint_eq(say.prefetch_poll.memory_blocks, BLOCKS);
    ck_assert_uint_eq(say.prefetch_poll.tiers.count, 2);
    ck_assert_int_eq(tierce__native_get_tier(&tier, &say.prefetch_poll.tiers, 1), 0);
    ck_assert_str_eq(tier.name, "disk");
    ck_assert_uint_eq(tier.loaded, BLOCKS);
    ask.prefetch_end.number = number;
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PREFETCH_END, &ask, NULL, NULL), 0);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PREFETCH_END, &ask, NULL, NULL),
                     TIERCE__NATIVE_UNKNOWN);
    ck_assert_int_gt(fx_stats(&fx).pinned_bytes_now, 0);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* ---- faulty clients ------------------------------------------------------------------------ */

START_TEST(verdicts_are_looked_at)
{
    union tierce__native_answer say;
    struct tierce__native_lent lent;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    static const uint32_t wrong[] = {TIERCE__NATIVE_BAD_CELLS, TIERCE__NATIVE_WRONG_HEADER,
                                     TIERCE__NATIVE_UNUSED};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
        ck_assert_int_eq(native_load_end(&a, say.load_begin.load, CHUNKS, wrong[i], 0), 0);
        ck_assert_uint_eq(native_found(&a, chain, 1, 0, 0), BLOCKS); /* it is as good as ever */
    }
    /* More blocks than there were, too few chunks: the load is over all the same. */
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    ck_assert_int_eq(native_load_end(&a, say.load_begin.load, CHUNKS, 0, 5), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    ck_assert_int_eq(native_load_end(&a, say.load_begin.load, CHUNKS - 1, 0, 1), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(stats().loads, 0);
    /* A cell that is bad indeed takes its chunk out. */
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    ck_assert_int_eq(tierce__native_get_lent(&lent, &say.load_begin.chunks, 1), 0);
    a.pool[lent.offset + lent.bytes - 4096 - 1] ^= 1;
    struct tierce__geometry geometry;
    a.pool[lent.offset + native_header_bytes(lent.block_count, &geometry)] ^= 1;
    uint64_t load = say.load_begin.load;
    ck_assert_int_eq(native_load_end(&a, load, CHUNKS, TIERCE__NATIVE_BAD_CELLS, 0), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL),
                      FX_CHUNK_BLOCKS);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* A header whose length was overwritten is not sealed. */
START_TEST(a_header_that_was_overwritten)
{
    union tierce__native_answer say;
    struct tierce__native_reserved rooms[CHUNKS];
    uint64_t blocks;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_int_eq(native_store_begin(&a, &say, chain, 1, 0), 0);
    uint64_t store = say.store_begin.store;
    ck_assert_uint_eq(native_rooms(rooms, CHUNKS, &say), CHUNKS);
    memset(a.pool + rooms[2].offset, 0xff, 64);
    ck_assert_int_eq(native_store_end(&a, store, true, &blocks), 0);
    ck_assert_uint_eq(blocks, 0);
    ck_assert_uint_eq(check_found(chain), 0);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* The number of the answer; the status is that of the node's call. */
static int32_t hand_over(struct tierce__native_hand hand, uint64_t *number)
{
    union tierce__native_answer say;
    hand.view = a.view;
    hand.host = hand.host != NULL ? hand.host : "";
    hand.token = hand.why = "";
    const union tierce__native_request ask = {.hand_over = hand};
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_HAND_OVER, &ask, &say, NULL), 0);
    *number = say.hand_over.number;
    return (int32_t)say.hand_over.status;
}

/* To a port at which nothing listens. */
static int32_t push_nowhere(uint64_t *number)
{
    return hand_over(
        (struct tierce__native_hand){
            .kind = TIERCE__NATIVE_HAND_PUSH, .port = 1, .timeout_ms = 1000, .host = "127.0.0.1"},
        number);
}

/* Their lengths are not those of chunks any more: a push leaves them out. */
START_TEST(headers_that_are_overwritten_before_a_push)
{
    union tierce__native_answer say;
    struct tierce__native_lent lent;
    uint64_t push, held;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 9), BLOCKS);
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 9, 0), 0);
    const uint64_t load = say.load_begin.load;
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(tierce__native_get_lent(&lent, &say.load_begin.chunks, i), 0);
        memset(a.pool + lent.offset, i == 0 ? 0 : 0xff, 64);
    }
    ck_assert_int_eq(push_nowhere(&push), 0);
    ck_assert_int_eq(hand_over((struct tierce__native_hand){.kind = TIERCE__NATIVE_HAND_PUSH_HELD,
                                                            .number = push,
                                                            .to_block = BLOCKS,
                                                            .chain = native_chain(9, chain, 0)},
                               &held),
                     0);
    ck_assert_uint_eq(held, CHUNKS - 2);
    ck_assert_int_eq(native_load_end(&a, load, CHUNKS, TIERCE__NATIVE_GOOD, 2), 0);
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

/* A push that was closed has its thread until its call ends: to a server that never answers. */
START_TEST(pushes_that_are_closed_are_bounded)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);
    uint64_t push, unused;
    unsigned count = 0;
    int32_t status;
    start(0, NULL);
    native_open(&a, path);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, bytes), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    ck_assert_int_eq(listen(fd, 1024), 0);
    const struct tierce__native_hand begin = {.kind = TIERCE__NATIVE_HAND_PUSH,
                                              .port = ntohs(at.sin_port),
                                              .timeout_ms = 60000,
                                              .host = "127.0.0.1"};
    while ((status = hand_over(begin, &push)) == 0 && count++ < 5000)
        ck_assert_int_eq(
            hand_over((struct tierce__native_hand){.kind = TIERCE__NATIVE_HAND_PUSH_CLOSE,
                                                   .number = push},
                      &unused),
            0);
    ck_assert_int_eq(status, TIERCE_E_LIMIT);
    /* More where a thread was so late that it ended at once. */
    ck_assert_uint_ge(count, TIERCE__NATIVE_PUSHES_MAX);
    close(fd); /* which resets the connections */
    WAIT_FOR(hand_over(begin, &push) == 0);
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

static bool is_closed(int fd, const void *bytes, size_t count)
{
    char c;
    (void)send(fd, bytes, count, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    return recv(fd, &c, 1, 0) <= 0;
}

START_TEST(bytes_that_are_no_frame)
{
    static const uint8_t large[] = {1, 0, 0, 4, 2, 0, 0, 0};
    static const uint8_t no_op[] = {0, 0, 0, 0, 99, 0, 0, 0};
    static const uint8_t early[] = {0, 0, 0, 0, 2, 0, 0, 0}; /* a PING before HELLO */
    static const uint8_t half[] = {9, 0, 0, 0, 2};
    static const uint8_t longer[] = {1, 0, 0, 0, 2, 0, 0, 0, 7};
    static const struct {
        const uint8_t *bytes;
        size_t count;
    } frames[] = {{large, 8}, {no_op, 8}, {early, 8}, {half, 5}, {longer, 9}};
    start(0, NULL);
    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        int fd = native_connect(path);
        ck_assert(is_closed(fd, frames[i].bytes, frames[i].count));
        close(fd);
        native_open(&a, path);
        ck_assert(is_closed(a.fd, frames[i].bytes, i == 2 ? 3 : frames[i].count));
        native_close(&a, true);
    }
    wait_for_clients(0);
    ck_assert_uint_ge(node.node->counters[TIERCE__NODE_protocol_errors], 8);
    end();
}
END_TEST

/* Real requests with changed bytes: whatever the node answers, it continues to serve. */
START_TEST(mutated_questions)
{
    start(0, NULL);
    struct test_random random = test_random_start("native");
    unsigned rounds = TEST_ROUNDS(1500u) * test_scale();
    bool is_open = false;
    for (unsigned i = 0; i < rounds; i++) {
        if (!is_open)
            native_open(&a, path);
        is_open = true;
        union tierce__native_request ask = {0};
        enum tierce__native_op op =
            (enum tierce__native_op)(2 + test_random_below(&random, TIERCE__NATIVE_OPS - 2));
        struct tierce__native_chain of = native_chain(1, chain, test_random_below(&random, BLOCKS));
        if (op == TIERCE__NATIVE_LOOKUP || op == TIERCE__NATIVE_DURABLE)
            ask.lookup = (struct tierce__native_lookup){
                .view = a.view, .to_block = BLOCKS, .tag = "x", .chain = of};
        else if (op == TIERCE__NATIVE_LOAD_BEGIN)
            ask.load_begin =
                (struct tierce__native_load){.view = a.view, .to_block = BLOCKS, .chain = of};
        else if (op == TIERCE__NATIVE_STORE_BEGIN)
            ask.store_begin = (struct tierce__native_store){
                .view = a.view, .to_block = BLOCKS, .tag = "", .chain = of};
        else if (op == TIERCE__NATIVE_PREFETCH_BEGIN)
            ask.prefetch_begin =
                (struct tierce__native_prefetch){.view = a.view, .to_block = BLOCKS, .chain = of};
        else if (op == TIERCE__NATIVE_GROUP_STORE_BEGIN)
            ask.group_store_begin = (struct tierce__native_group_store){
                .store = {.view = a.view, .to_block = BLOCKS, .tag = "", .chain = of},
                .from_block = test_random_below(&random, BLOCKS + 2)};
        else if (op != TIERCE__NATIVE_VIEW && op != TIERCE__NATIVE_GROUP_VIEW)
            ask.load_wait.load = 1 + test_random_below(&random, 8);
        if (op == TIERCE__NATIVE_FLUSH)
            ask.flush.timeout_ms = 1;
        ck_assert_int_eq(tierce__native_pack_request(&a.frame, op, &ask), 0);
        uint32_t changes = test_random_below(&random, 4);
        for (uint32_t c = 0; c < changes; c++) {
            size_t at = 4 + test_random_below(&random, (uint32_t)a.frame.used - 4);
            /* A flush or a wait that is asked for is done, however long: not here. */
            if (op != TIERCE__NATIVE_FLUSH && op != TIERCE__NATIVE_PREFETCH_POLL)
                a.frame.bytes[at] = (uint8_t)test_random_u64(&random);
        }
        uint8_t head[TIERCE__NATIVE_HEAD];
        uint32_t bytes, status;
        int none;
        uint32_t sent = tierce__load_le32(a.frame.bytes + 4);
        (void)send(a.fd, a.frame.bytes, a.frame.used, MSG_NOSIGNAL);
        if (!tierce__native_is_answered((enum tierce__native_op)sent)) {
            ck_assert_int_eq(tierce__native_pack_request(&a.frame, TIERCE__NATIVE_PING, &ask), 0);
            (void)send(a.fd, a.frame.bytes, a.frame.used, MSG_NOSIGNAL);
        }
        if (native_receive(a.fd, head, sizeof(head), &none)) {
            ck_assert_int_eq(tierce__native_head(&bytes, &status, head), 0);
            ck_assert(native_receive(a.fd, a.body, bytes, &none));
        } else {
            native_close(&a, true);
            is_open = false;
        }
    }
    if (is_open)
        native_close(&a, true);
    wait_for_clients(0);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* ---- death ----------------------------------------------------------------------------------- */

/* In a process of its own, until it is killed: stores and loads, some of which stay half done. */
static struct tierce_chain *sequences[8];
static uint64_t *stored; /* shared by all: sequences that were stored, or were there already */

static void be_client(uint64_t seed)
{
    struct test_random random = {seed};
    union tierce__native_answer say;
    struct tierce__native_reserved rooms[CHUNKS];
    if (native_hello(&a, path, NULL) != 0 || native_view(&a, 0, FX_LAYERS, 0, 1) != 0)
        _exit(1);
    for (uint64_t number = 1;; number++) {
        struct tierce_chain *own = sequences[test_random_below(&random, 8)];
        int rc = native_store_begin(&a, &say, own, number, 0);
        uint64_t store = rc == 0 ? say.store_begin.store : 0;
        bool is_stored = rc == 0 && store == 0;
        if (store != 0) {
            uint32_t count = native_rooms(rooms, CHUNKS, &say);
            for (uint32_t i = 0; i < count; i++)
                native_fill(&a, &rooms[i], own, 0, 1 + test_random_below(&random, FX_LAYERS));
            if (test_random_below(&random, 2) == 0) {
                for (uint32_t i = 0; i < count; i++)
                    native_fill(&a, &rooms[i], own, 0, FX_LAYERS);
                is_stored = native_store_end(&a, store, true, NULL) == 0;
            }
        }
        if (is_stored)
            __atomic_fetch_add(stored, 1, __ATOMIC_RELAXED);
        (void)native_load_begin(&a, &say, own, number, 0);
        if (test_random_below(&random, 2) == 0)
            (void)native_load_end(&a, say.load_begin.load, 0, 0, 0);
    }
}

START_TEST(clients_that_are_killed)
{
    start(0, NULL);
    struct test_random random = test_random_start("killed");
    uint64_t whole = 0;
    for (uint32_t seq = 0; seq < 8; seq++)
        sequences[seq] = fx_chain(&fx, seq, BLOCKS, 4);
    stored = mmap(NULL, sizeof(*stored), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(stored, MAP_FAILED);
    native_is_mortal = true;
    for (unsigned i = 0; i < TEST_ROUNDS(200u) * test_scale(); i++) {
        uint64_t seed = test_random_u64(&random), before = *stored;
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_client(seed);
        /* Every fifth, the only client of the node then, is killed behind a whole store, however
         * slow the machine is. */
        if (i % 5 == 0)
            WAIT_FOR(__atomic_load_n(stored, __ATOMIC_RELAXED) != before);
        nanosleep(&(struct timespec){.tv_nsec = test_random_below(&random, 15000000)}, NULL);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        if (i % 5 != 4) /* the last one too, of as few rounds as the thread sanitizer has */
            continue;
        wait_for_clients(0);
        for (uint32_t seq = 0; seq < 8; seq++)
            whole += check_found(sequences[seq]);
        check_free();
    }
    ck_assert_uint_gt(whole, 0);
    wait_for_clients(0);
    check_free();
    for (uint32_t seq = 0; seq < 8; seq++)
        tierce_chain_destroy(sequences[seq]);
    munmap(stored, sizeof(*stored));
    end();
}
END_TEST

START_TEST(a_node_that_starts_anew)
{
    union tierce__native_answer say;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    union tierce__native_request ask = {.flush = {.timeout_ms = 60000}};
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_FLUSH, &ask, NULL, NULL), 0);
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    stop(); /* with a load under way, for which it waits a little */
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PING, NULL, NULL, NULL), NATIVE_GONE);
    ck_assert_int_lt(native_connect(path), 0);
    start(0, NULL);
    ck_assert_int_eq(native_hello(&b, path, &a), TIERCE_E_CLOSED);
    native_close(&b, false);
    native_open(&b, path);
    ck_assert_uint_ne(a.boot, b.boot);
    ck_assert_uint_eq(native_found(&b, chain, 1, 0, 0), BLOCKS);
    native_close(&a, true);
    native_close(&b, true);
    wait_for_clients(0);
    end();
}
END_TEST

START_TEST(a_folder_that_others_can_change)
{
    char listen[128], why[TIERCE_CONFIG_ERROR_BYTES];
    char *argv[] = {listen, (char *)"--listen.resp=false", (char *)"--listen.lm=false",
                    (char *)"--listen.http_port=0", (char *)"--control.socket="};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    struct tierce__node_config config;
    struct tierce__node *other;
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(listen, sizeof(listen), "--listen.native=%s/node.sock", folder);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    ck_assert_int_eq(tierce__node_config_load(&config, 5, argv, no_environment, &error), 0);
    ck_assert_int_eq(tierce__node_start(&other, &config, why), -EACCES);
    ck_assert_ptr_nonnull(strstr(why, "other users can change"));
    tierce__node_config_clear(&config);
    ck_assert_int_eq(chmod(folder, 0700), 0);
    start(0, NULL);
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    end();
}
END_TEST

START_TEST(a_group_names_each_of_its_layers)
{
    static const uint32_t layers[FX_LAYERS] = {0, 1, 2, 3};
    union tierce__native_answer say;
    union tierce__native_request ask = {
        .group_view = {.view = native_view_question(0, FX_LAYERS, 0, 1).view,
                       .group = TIERCE_GROUP_FULL}};
    start(0, NULL);
    native_open(&a, path);
    for (uint32_t count = 0; count <= FX_LAYERS; count++) {
        ask.group_view.layers = (struct tierce__native_rows){(const uint8_t *)layers, count};
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_GROUP_VIEW, &ask, &say, NULL),
                         count == FX_LAYERS ? 0 : TIERCE_E_ARGUMENT);
    }
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

CHECK_MAIN("node_native", .seconds = 120,
           .tests = {what_one_stores_another_loads, what_lies_on_disk_comes,
                     connections_of_a_client_share_what_it_has, versions_of_the_protocol,
                     chains_are_sent_once, parts_of_two_clients_are_one_chunk,
                     pins_end_with_their_client, prefetches, verdicts_are_looked_at,
                     a_header_that_was_overwritten, headers_that_are_overwritten_before_a_push,
                     pushes_that_are_closed_are_bounded, bytes_that_are_no_frame, mutated_questions,
                     clients_that_are_killed, a_node_that_starts_anew,
                     a_folder_that_others_can_change, a_group_names_each_of_its_layers})
