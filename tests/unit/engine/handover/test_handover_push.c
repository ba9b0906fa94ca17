/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that one engine writes into another one's memory while it computes them: a failure leaves
 * the rest to be read or computed. */
#include "engine/observe/operate.h"
#include "push_fixture.h"
#include "store/remote/transfer/transfer_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the network ----------------------------------------------------------------------------- */

void __real_tierce__stream_watch(int fd, uint32_t silence_ms);
void __wrap_tierce__stream_watch(int fd, uint32_t silence_ms);
static _Atomic unsigned watched; /* connections that end when the network lets nothing pass */

void __wrap_tierce__stream_watch(int fd, uint32_t silence_ms)
{
    atomic_fetch_add(&watched, silence_ms == TIERCE__TRANSFER_LINK_SILENCE_MS);
    __real_tierce__stream_watch(fd, silence_ms);
}

/* So a decoder whose network fails does not hold the prefiller's chunks for `timeout_ms`, and a
 * request does not wait so long for a prefiller that is cut off. */
START_TEST(the_connections_of_a_hand_over_are_watched)
{
    atomic_store(&watched, 0);
    struct tierce__push *push = push_begin(LONG_MS);
    store_watched(push, BLOCKS, true);
    push_end(push);
    ck_assert_int_eq(pushed.status, 0);
    ck_assert_uint_eq(atomic_load(&watched), 1);
    offer();
    pull(); /* it ends the offer */
    ck_assert_uint_eq(atomic_load(&watched), 2);
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

#define RANGES_AFTER(layers) ((layers)*CHUNKS)

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

/* A decoder that was stopped: the system makes its connections, and nobody answers. With `is_full`
 * it does not even make them. */
static int listen_silently(bool is_full, struct tierce__push_to *to)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(fd, is_full ? 0 : 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *to = (struct tierce__push_to){.host = "127.0.0.1",
                                   .port = ntohs(address.sin_port),
                                   .ticket = ticket,
                                   .timeout_ms = 30000};
    return fd;
}

static bool has_connection(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 1;
}

START_TEST(a_push_that_is_given_up_waits_for_nobody)
{
    enum { ANSWER, CONNECTION, WAYS };
    for (int way = 0; way < WAYS; way++) {
        for (int is_freed = 0; is_freed < 2; is_freed++) {
            struct tierce__push *push;
            struct tierce__push_to to;
            int filler = -1, fd = listen_silently(way == CONNECTION, &to);
            if (way == CONNECTION) {
                filler = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                const struct sockaddr_in address = {.sin_family = AF_INET,
                                                    .sin_port = htons(to.port),
                                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
                ck_assert_int_eq(
                    connect(filler, (const struct sockaddr *)&address, sizeof(address)), 0);
            }
            uint64_t begin_ns = tierce__now_ns();
            ck_assert_int_eq(tierce__push_begin(&push, prefiller.view, &to), 0);
            WAIT_FOR(has_connection(fd));
            tierce__push_give_up(push, 50);
            if (!is_freed)
                WAIT_FOR(tierce__push_is_over(push, NULL));
            tierce__push_destroy(push);
            ck_assert_uint_lt(tierce__now_ns() - begin_ns, 15000 * TIERCE__MS_NS);
            close(filler);
            close(fd);
        }
    }
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
    ck_assert_int_ne(
        tierce__inbox_await(inbox(), ticket, LONG_MS, LONG_MS, tierce__deadline_in_ms(LONG_MS)),
        TIERCE_E_DEADLINE);
    ck_assert_uint_eq(load(), 0);
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
               the_connections_of_a_hand_over_are_watched, chunks_are_complete_one_after_the_other,
               each_layer_travels_before_the_next_one, a_prompt_in_steps_and_chunks_that_exist,
               a_store_that_is_given_up_is_never_visible, a_full_decoder_is_asked_again,
               chunks_without_room_are_left_out_and_read,
               FX_EMBEDDED(a_decoder_that_is_gone_ends_the_push),
               FX_EMBEDDED(a_push_that_is_over_keeps_nothing),
               FX_EMBEDDED(a_push_that_is_given_up_waits_for_nobody),
               a_prefiller_that_is_gone_leaves_nothing,
               FX_EMBEDDED(memory_that_fails_leaves_the_rest_right)})
