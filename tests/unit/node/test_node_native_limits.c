/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines and limits of what a node's clients have by its native protocol. */
#include "log_record.h"
#include "native_clients.h"
#include "native_fixture.h"
#include "node/native/native_private.h"
#include "silent_log.h"
#include "temp_folder.h"
#include "wait_for.h"

#include "engine/handover/handover_push.h"
#include "engine/observe/kv_tokens.h"
#include "engine/store/store_watch.h"

#include <poll.h>

START_TEST(what_is_late_is_given_up)
{
    union tierce__native_answer say;
    start(2, (char *const[]){(char *)"--timeout.load=1s", (char *)"--timeout.pin=1s"});
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    uint64_t load = say.load_begin.load;
    ck_assert_uint_eq(say.load_begin.left_ms, 2000);
    ck_assert_int_eq(native_store_begin(&a, &say, other, 2, 0), 0);
    uint64_t store = say.store_begin.store;
    uint64_t held = stats().held_bytes;
    for (int i = 0; i < 3000 && stats().loads > 0; i++)
        pause_ms(10);
    ck_assert_int_eq(native_load_end(&a, load, 0, 0, 0), TIERCE__NATIVE_UNKNOWN);
    /* The room stays with who may still write to it, and others may store the chunk. */
    int64_t stored = 0;
    for (int i = 0; i < 3000 && stored == 0; i++, pause_ms(10))
        stored = fx_store(&fx, other, BLOCKS, fx_ids, true);
    ck_assert_int_eq(stored, BLOCKS);
    ck_assert_uint_gt(stats().held_bytes, 0);
    ck_assert_uint_lt(stats().held_bytes, held);
    ck_assert_uint_eq(stats().stores, 1);
    ck_assert_int_eq(native_store_end(&a, store, true, NULL), TIERCE__NATIVE_UNKNOWN);
    ck_assert_uint_eq(stats().held_bytes, 0);
    ck_assert_uint_eq(check_found(other), BLOCKS);
    tierce_chain_destroy(other);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* A store that has ended waits for its prefix, which another client stores. It ends with that one.
 */
START_TEST(who_waits_for_what_is_late_goes_on)
{
    union tierce__native_answer say;
    start(1, (char *const[]){(char *)"--timeout.pin=1s"});
    struct tierce_chain *prefix = fx_chain(&fx, 1, BLOCKS / CHUNKS + 1, 0);
    native_open(&a, path);
    native_open(&b, path);
    ck_assert_int_eq(native_store_begin(&a, &say, prefix, 1, 0), 0);
    uint64_t late = say.store_begin.store;
    ck_assert_int_eq(native_store_begin(&b, &say, chain, 2, 0), 0);
    ck_assert_int_eq(native_store_end(&b, say.store_begin.store, true, NULL), 0);
    ck_assert_uint_eq(check_found(chain), 0);
    int64_t stored = 0; /* as soon as nobody stores these chunks any more */
    for (int i = 0; i < 3000 && stored == 0; i++, pause_ms(10))
        stored = fx_store(&fx, chain, BLOCKS, fx_ids, true);
    ck_assert_int_eq(stored, BLOCKS);
    ck_assert_int_eq(native_store_end(&a, late, true, NULL), TIERCE__NATIVE_UNKNOWN);
    tierce_chain_destroy(prefix);
    native_close(&a, true);
    native_close(&b, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

static void wait_for_connections(uint64_t connections)
{
    WAIT_FOR(stats().connections == connections);
}

static uint32_t pushes(void)
{
    struct tierce__native_client *client = native_first_client(node.node);
    tierce__lock_take(&client->lock);
    uint32_t count = client->counts[TIERCE__NATIVE_PUSHES];
    tierce__lock_drop(&client->lock);
    return count;
}

/* A client that closes a connection before it has read the answer to a begin does not know the new
 * operation: the node ends that operation, and keeps the client's others. */
START_TEST(what_nobody_hears_of_is_ended)
{
    enum { WAYS = 3, OPS = 5 };
    union tierce__native_request asks[OPS];
    static const enum tierce__native_op ops[] = {
        TIERCE__NATIVE_LOAD_BEGIN, TIERCE__NATIVE_STORE_BEGIN, TIERCE__NATIVE_PREFETCH_BEGIN,
        TIERCE__NATIVE_VIEW, TIERCE__NATIVE_HAND_OVER};
    union tierce__native_answer say;
    start(0, NULL);
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    native_open(&a, path);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    asks[0].load_begin = (struct tierce__native_load){
        .view = a.view, .to_block = BLOCKS, .chain = native_chain(1, chain, 0)};
    asks[1].store_begin = (struct tierce__native_store){
        .view = a.view, .to_block = BLOCKS, .tail = 1, .chain = native_chain(2, other, 0)};
    asks[2].prefetch_begin = (struct tierce__native_prefetch){
        .view = a.view, .to_block = BLOCKS, .chain = native_chain(1, chain, 0)};
    asks[3] = native_view_question(0, FX_LAYERS, 0, 1);
    asks[4].hand_over = (struct tierce__native_hand){.kind = TIERCE__NATIVE_HAND_PUSH,
                                                     .port = 1,
                                                     .timeout_ms = 1000,
                                                     .view = a.view,
                                                     .host = "127.0.0.1",
                                                     .token = "",
                                                     .why = ""};
    ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
    uint64_t load = say.load_begin.load, held = stats().held_bytes;
    for (size_t i = 0; i < WAYS * OPS; i++) {
        enum { UNREAD, HALF_READ, NOT_SENT } way = i / OPS;
        uint8_t head[TIERCE__NATIVE_HEAD];
        ck_assert_int_eq(native_hello(&b, path, &a), 0);
        ck_assert_int_eq(tierce__native_pack_request(&b.frame, ops[i % OPS], &asks[i % OPS]), 0);
        if (way == NOT_SENT)
            ck_assert_int_eq(shutdown(b.fd, SHUT_RD), 0);
        ck_assert_int_eq(send(b.fd, b.frame.bytes, b.frame.used, MSG_NOSIGNAL),
                         (ssize_t)b.frame.used);
        struct pollfd fds = {.fd = b.fd, .events = POLLIN};
        if (way != NOT_SENT)
            ck_assert_int_eq(poll(&fds, 1, 60000), 1);
        if (way == HALF_READ)
            ck_assert_int_eq(recv(b.fd, head, sizeof(head), 0), (ssize_t)sizeof(head));
        if (way != NOT_SENT)
            native_close(&b, false);
        wait_for_connections(1);
        if (way == NOT_SENT)
            native_close(&b, false);
        ck_assert_uint_eq(stats().held_bytes, held);
        ck_assert_uint_eq(stats().loads, 1);
        ck_assert_uint_eq(stats().stores, 0);
        ck_assert_uint_eq(stats().prefetches, 0);
        ck_assert_uint_eq(stats().views, 1);
        ck_assert_uint_eq(pushes(), 0);
    }
    /* An operation whose answer was read belongs to its reader only. */
    ck_assert_int_eq(native_hello(&b, path, &a), 0);
    ck_assert_int_eq(native_store_begin(&b, &say, other, 2, 0), 0);
    native_close(&b, false);
    wait_for_connections(1);
    ck_assert_uint_eq(stats().stores, 1);
    ck_assert_int_eq(native_store_end(&a, say.store_begin.store, false, NULL), 0);
    ck_assert_int_eq(native_load_end(&a, load, 0, 0, 0), 0);
    tierce_chain_destroy(other);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* Pushes of other clients, which begin or end. */
static void count_others(struct tierce__native *native, uint32_t begin, uint32_t end)
{
    tierce__lock_take(&native->lock);
    native->push_count += begin - end;
    tierce__lock_drop(&native->lock);
}

/* Begins pushes to a decoder that does not answer, until the node rejects one. */
static uint32_t begin_pushes(struct native_client *client, uint16_t port)
{
    union tierce__native_answer say;
    const union tierce__native_request ask = {.hand_over = {.kind = TIERCE__NATIVE_HAND_PUSH,
                                                            .port = port,
                                                            .timeout_ms = 30000,
                                                            .view = client->view,
                                                            .host = "127.0.0.1",
                                                            .token = "",
                                                            .why = ""}};
    for (uint32_t count = 0;; count++) {
        ck_assert_int_eq(native_ask(client, TIERCE__NATIVE_HAND_OVER, &ask, &say, NULL), 0);
        int status = (int)(int32_t)say.hand_over.status;
        ck_assert(status == 0 || status == TIERCE_E_LIMIT);
        if (status != 0)
            return count;
    }
}

int __real_tierce__push_begin(struct tierce__push **out, struct tierce_view *view,
                              const struct tierce__push_to *to);
int __wrap_tierce__push_begin(struct tierce__push **out, struct tierce_view *view,
                              const struct tierce__push_to *to);

/* A push that waits for a decoder outlasts the limit of the test, on a slow machine too. */
int __wrap_tierce__push_begin(struct tierce__push **out, struct tierce_view *view,
                              const struct tierce__push_to *to)
{
    struct tierce__push_to patient = *to;
    patient.timeout_ms = 3600000;
    return __real_tierce__push_begin(out, view, &patient);
}

/* A client that takes what it can leaves room for others, and the end of the node waits for no
 * decoder. */
START_TEST(pushes_of_a_client_leave_room)
{
    enum { FREE = 20 };
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(silent, (const struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(silent, FREE), 0);
    ck_assert_int_eq(getsockname(silent, (struct sockaddr *)&address, &bytes), 0);
    start(0, NULL);
    native_open(&a, path);
    native_open(&b, path);
    struct tierce__native *native = node.node->native;
    record_log(TIERCE_LOG_WARN);
    count_others(native, TIERCE__NATIVE_ALL_PUSHES_MAX - FREE, 0);
    ck_assert_uint_eq(begin_pushes(&a, ntohs(address.sin_port)), FREE / 2);
    ck_assert_uint_eq(begin_pushes(&b, ntohs(address.sin_port)), FREE / 4);
    ck_assert_uint_eq(recorded_with("native_push_refused", " pushes=10 pushes_of_all=502 "), 1);
    ck_assert_uint_eq(atomic_load(&node.node->counters[TIERCE__NODE_native_refused]), 2);
    silence_log();
    count_others(native, 0, TIERCE__NATIVE_ALL_PUSHES_MAX - FREE);
    native_close(&a, true);
    native_close(&b, true);
    wait_for_clients(0);
    end();
    close(silent);
}
END_TEST

/* Of a push to a place where nobody serves. */
static union tierce__native_request push_to(const struct native_client *client, uint32_t port)
{
    return (union tierce__native_request){.hand_over = {.kind = TIERCE__NATIVE_HAND_PUSH,
                                                        .port = port,
                                                        .timeout_ms = 1000,
                                                        .view = client->view,
                                                        .host = "127.0.0.1",
                                                        .token = "",
                                                        .why = ""}};
}

START_TEST(a_push_without_a_place_is_rejected)
{
    static const uint32_t ports[] = {0, UINT16_MAX + 1, UINT32_MAX};
    union tierce__native_answer say;
    start(0, NULL);
    native_open(&a, path);
    for (size_t i = 0; i < 3; i++) {
        const union tierce__native_request ask = push_to(&a, ports[i]);
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_HAND_OVER, &ask, &say, NULL), 0);
        ck_assert_int_eq((int32_t)say.hand_over.status, TIERCE_E_ARGUMENT);
        ck_assert_str_eq(say.hand_over.why,
                         "the node rejects the push: its host, port or ticket is invalid");
    }
    ck_assert_uint_eq(pushes(), 0);
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

/* Sees what a client tells of its store. */
static struct {
    struct tierce__store_watch base;
    _Atomic uint32_t calls, from, to;
    atomic_bool has_ended;
} told;

static void see_filled(struct tierce__store_watch *base, uint32_t from, uint32_t to)
{
    (void)base;
    told.calls++;
    told.from = from;
    told.to = to;
}

static void see_ended(struct tierce__store_watch *base, bool complete)
{
    (void)base;
    ck_assert(!complete);
    told.has_ended = true;
}

/* Returns when the node has read it: it answers the next request only. */
static void tell_layers(struct native_client *client, uint64_t store, uint32_t layers)
{
    const union tierce__native_request ask = {.store_layers = {.store = store, .layers = layers}};
    const union tierce__native_request ping = {0};
    ck_assert_int_eq(native_ask(client, TIERCE__NATIVE_STORE_LAYERS, &ask, NULL, NULL), 0);
    ck_assert_int_eq(native_ask(client, TIERCE__NATIVE_PING, &ping, NULL, NULL), 0);
}

static const struct tierce__native_held_store *first_store(void)
{
    struct tierce__native_client *client = native_first_client(node.node);
    struct tierce__list *store = client->lists[TIERCE__NATIVE_STORES].next;
    struct tierce__native_open *open =
        TIERCE__CONTAINER_OF(store, struct tierce__native_open, node);
    return TIERCE__CONTAINER_OF(open, struct tierce__native_held_store, open);
}

START_TEST(layers_are_told_within_the_part_of_a_store)
{
    union tierce__native_answer say;
    struct tierce__watched what;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_ne(a.tiers & TIERCE__NATIVE_TAKES_LAYERS, 0);
    ck_assert_int_eq(native_view(&a, 1, FX_LAYERS - 1, 1, 2), 0);
    ck_assert_int_eq(native_store_begin(&a, &say, chain, 1, 7), 0);
    uint64_t store = say.store_begin.store;
    tell_layers(&a, store, 1); /* nobody watches it yet */
    struct tierce__reservation *reservation = first_store()->share.reservation;
    told.base = (struct tierce__store_watch){see_filled, see_ended};
    ck_assert_int_eq(tierce__reserve_watch(reservation, fx.view, &told.base, &what), 0);
    ck_assert_uint_eq(told.calls, 0);
    tierce__reserve_tell_watch(reservation);
    ck_assert(told.calls == 1 && told.from == 1 && told.to == 2);
    tell_layers(&a, store, 0);
    tell_layers(&a, store + 1, 1);
    tell_layers(&a, UINT64_MAX, 1);
    native_open(&b, path);
    tell_layers(&b, store, 1); /* it is not that client's */
    ck_assert_uint_eq(told.calls, 1);
    tell_layers(&a, store, 2);
    ck_assert(told.calls == 2 && told.from == 1 && told.to == 3);
    tell_layers(&a, store, UINT32_MAX);
    ck_assert(told.calls == 3 && told.from == 1 && told.to == FX_LAYERS);
    ck_assert_int_eq(native_store_end(&a, store, false, NULL), 0);
    ck_assert(told.has_ended);
    tell_layers(&a, store, 3);
    ck_assert_uint_eq(told.calls, 3);
    native_close(&b, true);
    /* A client that dies between two layers. */
    told.has_ended = false;
    ck_assert_int_eq(native_store_begin(&a, &say, chain, 1, 8), 0);
    ck_assert_int_eq(
        tierce__reserve_watch(first_store()->share.reservation, fx.view, &told.base, &what), 0);
    tell_layers(&a, say.store_begin.store, 1);
    ck_assert_uint_eq(told.calls, 4);
    native_close(&a, true);
    wait_for_clients(0);
    ck_assert(told.has_ended);
    check_free();
    end();
}
END_TEST

/* A push of which its client has not spoken for ten minutes is ended. */
START_TEST(a_forgotten_push_is_ended)
{
    const uint64_t ten_minutes_ns = 600000 * TIERCE__MS_NS;
    union tierce__native_answer say;
    start(0, NULL);
    native_open(&a, path);
    struct tierce__native_client *client = native_first_client(node.node);
    const union tierce__native_request ask = push_to(&a, 1);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_HAND_OVER, &ask, &say, NULL), 0);
    ck_assert_int_eq((int32_t)say.hand_over.status, 0);
    const union tierce__native_request poll = {.push_poll = {say.hand_over.number}};
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PUSH_POLL, &poll, &say, NULL), 0);
    tierce__native_expire_pushes(client, begun_ns + ten_minutes_ns - 1);
    ck_assert_uint_eq(pushes(), 1); /* since the poll */
    tierce__native_expire_pushes(client, tierce__now_ns() + ten_minutes_ns);
    ck_assert_uint_eq(pushes(), 0);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PUSH_POLL, &poll, &say, NULL),
                     TIERCE__NATIVE_UNKNOWN);
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

START_TEST(a_client_has_limits)
{
    union tierce__native_answer say;
    start(3, (char *const[]){(char *)"--limit.native_open=3", (char *)"--limit.native_memory=0.03%",
                             (char *)"--limit.native_connections=2"});
    native_open(&a, path);
    ck_assert_int_eq(native_view(&a, 0, FX_LAYERS, 0, 1), 0);
    ck_assert_int_eq(native_view(&a, 0, FX_LAYERS, 0, 1), 0);
    ck_assert_int_eq(native_view(&a, 0, FX_LAYERS, 0, 1), TIERCE_E_LIMIT);
    /* 64 MiB * 0.03 % are no four chunks. */
    ck_assert_int_eq(native_store_begin(&a, &say, chain, 1, 0), TIERCE_E_FULL);
    ck_assert_uint_eq(stats().held_bytes, 0);
    struct tierce_chain *small = fx_chain(&fx, 3, 4, 0);
    ck_assert_uint_eq(native_store(&a, small, 2), 4);
    ck_assert_int_eq(native_load_begin(&a, &say, small, 2, 0), 0);
    ck_assert_int_eq(native_load_end(&a, say.load_begin.load, 1, TIERCE__NATIVE_GOOD, 4), 0);
    ck_assert_int_eq(native_hello(&b, path, &a), 0);
    struct native_client *c = calloc(1, sizeof(*c));
    ck_assert_int_eq(native_hello(c, path, &a), NATIVE_GONE);
    native_close(c, false);
    free(c);
    tierce_chain_destroy(small);
    native_close(&b, false);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* Only sessions with pins count: else requests of which nothing is there would leave no room to
 * those of which something is. */
START_TEST(a_session_that_pins_nothing_takes_no_place)
{
    start(1, (char *const[]){(char *)"--limit.native_open=2"});
    native_open(&a, path);
    for (uint64_t session = 1; session < 6; session++)
        ck_assert_uint_eq(native_found(&a, chain, 1, TIERCE_LOOKUP_PIN, session), 0);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    union tierce__native_request ask = {.lookup = {.view = a.view,
                                                   .to_block = BLOCKS,
                                                   .flags = TIERCE_LOOKUP_PIN,
                                                   .chain = native_chain(1, chain, 0)}};
    for (ask.lookup.session = 6; ask.lookup.session < 8; ask.lookup.session++)
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL), 0);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL), TIERCE_E_LIMIT);
    /* A lookup that pins nothing ends the pins that the session had. */
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    ck_assert_uint_eq(native_found(&a, other, 2, TIERCE_LOOKUP_PIN, 7), 0);
    ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_LOOKUP, &ask, NULL, NULL), 0);
    tierce_chain_destroy(other);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

START_TEST(chains_that_loads_hold_have_a_limit)
{
    enum { MAX = 64 << 10, HASHES = MAX / TIERCE__NATIVE_HASH - 100 };
    static uint8_t hashes[HASHES * TIERCE__NATIVE_HASH];
    union tierce__native_answer say;
    uint64_t loads[8], held = 0;
    int32_t status = 0;
    start(1, (char *const[]){(char *)"--limit.native_chains=64KiB"});
    native_open(&a, path);
    for (uint64_t i = 0; i < 8 && status == 0; i++) {
        union tierce__native_request ask = {
            .load_begin = {.view = a.view,
                           .chain = {.number = 100 + i, .hashes = {hashes, HASHES}}}};
        hashes[0] = (uint8_t)i;
        status = native_ask(&a, TIERCE__NATIVE_LOAD_BEGIN, &ask, &say, NULL);
        if (status == 0)
            loads[held++] = say.load_begin.load;
        ck_assert_uint_le(stats().chain_bytes, 2 * MAX);
    }
    ck_assert_int_eq(status, TIERCE_E_LIMIT);
    ck_assert_uint_eq(held, 2);
    for (uint64_t i = 0; i < held; i++)
        ck_assert_int_eq(native_load_end(&a, loads[i], 0, 0, 0), 0);
    ck_assert_uint_eq(native_store(&a, chain, 9), BLOCKS);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

START_TEST(who_says_nothing_is_not_waited_for)
{
    uint8_t byte;
    start(2,
          (char *const[]){(char *)"--timeout.request=2s", (char *)"--limit.native_connections=2"});
    int silent[2] = {native_connect(path), native_connect(path)};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_ge(silent[i], 0);
        ck_assert_int_eq(recv(silent[i], &byte, 1, 0), 0);
        close(silent[i]);
    }
    for (int i = 0; i < 3000 && stats().connections > 0; i++)
        pause_ms(10);
    native_open(&a, path);
    for (int i = 0; i < 3; i++)
        pause_ms(900); /* who has said it may be silent */
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* ---- reads that do not come ---- */

enum { DISK = 1, HELD_MAX = 64 };

static const struct tierce__tier_ops *real;
static struct tierce__tier_ops holding;
static struct tierce__store_req *held[HELD_MAX];
static _Atomic size_t held_count;
static _Atomic bool holds;

static void hold_reads(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op == TIERCE__STORE_GET && atomic_load(&holds)) {
        size_t at = atomic_fetch_add(&held_count, 1);
        ck_assert_uint_lt(at, HELD_MAX);
        held[at] = req;
    } else {
        real->submit(tier, req);
    }
}

static void begin_holding(void)
{
    struct tierce__tier *tier = fx.engine->levels[DISK].tier;
    atomic_store(&held_count, 0);
    atomic_store(&holds, true);
    real = tier->ops;
    holding = *real;
    holding.submit = hold_reads;
    tier->ops = &holding;
}

/* No thread asks for more meanwhile. */
static void end_holding(void)
{
    size_t count = atomic_load(&held_count);
    ck_assert_uint_gt(count, 0);
    atomic_store(&holds, false);
    for (size_t i = 0; i < count; i++)
        real->submit(fx.engine->levels[DISK].tier, held[i]);
}

static void tell(struct native_client *c, enum tierce__native_op op,
                 const union tierce__native_request *ask)
{
    uint64_t before = atomic_load(&node.node->counters[TIERCE__NODE_native_questions]);
    ck_assert_int_eq(tierce__native_pack_request(&c->frame, op, ask), 0);
    ck_assert_int_eq(send(c->fd, c->frame.bytes, c->frame.used, MSG_NOSIGNAL),
                     (ssize_t)c->frame.used);
    while (atomic_load(&node.node->counters[TIERCE__NODE_native_questions]) == before)
        pause_ms(1);
    pause_ms(20); /* for the question to get to where it waits; it may be on its way still */
}

/* Who gave up waiting for an answer ends what he asked about on another connection. The node may
 * still be at the first question: it ends it afterwards. */
START_TEST(an_end_reaches_what_is_being_asked_about)
{
    union tierce__native_answer say;
    uint8_t head[TIERCE__NATIVE_HEAD];
    bool loads = _i == 0;
    start(0, NULL);
    native_open(&a, path);
    ck_assert_int_eq(native_hello(&b, path, &a), 0);
    ck_assert_uint_eq(native_store(&a, chain, 1), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_gt(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    begin_holding();
    union tierce__native_request wait, over;
    if (loads) {
        ck_assert_int_eq(native_load_begin(&a, &say, chain, 1, 0), 0);
        wait.load_wait = (struct tierce__native_wait){.load = say.load_begin.load};
        over.load_end = (struct tierce__native_load_end){.load = say.load_begin.load};
    } else {
        union tierce__native_request ask = {.prefetch_begin = {.view = a.view,
                                                               .to_block = BLOCKS,
                                                               .chain = native_chain(1, chain, 0)}};
        ck_assert_int_eq(native_ask(&a, TIERCE__NATIVE_PREFETCH_BEGIN, &ask, &say, NULL), 0);
        wait.prefetch_poll =
            (struct tierce__native_poll){.prefetch = say.view.number, .wait_ms = 1000};
        over.prefetch_end.number = say.view.number;
    }
    tell(&b, loads ? TIERCE__NATIVE_LOAD_WAIT : TIERCE__NATIVE_PREFETCH_POLL, &wait);
    enum tierce__native_op end_op = loads ? TIERCE__NATIVE_LOAD_END : TIERCE__NATIVE_PREFETCH_END;
    ck_assert_int_eq(native_ask(&a, end_op, &over, NULL, NULL), 0);
    ck_assert_int_eq(native_ask(&a, end_op, &over, NULL, NULL), TIERCE__NATIVE_UNKNOWN);
    end_holding();
    int none = -1;
    ck_assert(native_receive(b.fd, head, sizeof(head), &none)); /* the answer, whatever it is */
    for (int i = 0; i < 3000 && stats().loads + stats().prefetches + stats().held_bytes > 0; i++)
        pause_ms(10);
    ck_assert_uint_eq(stats().loads, 0);
    ck_assert_uint_eq(stats().prefetches, 0);
    ck_assert_uint_eq(stats().held_bytes, 0);
    native_close(&b, false);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

static int32_t note_tokens(uint64_t view, uint64_t from_block, const int32_t *tokens,
                           uint32_t count)
{
    union tierce__native_answer say;
    union tierce__native_request ask = {
        .note_tokens = {.view = view,
                        .from_block = from_block,
                        .chain = native_chain(9, chain, 0),
                        .tokens = {(const uint8_t *)tokens, count}}};
    return native_ask(&a, TIERCE__NATIVE_NOTE_TOKENS, &ask, &say, NULL);
}

static int32_t give_hint(uint64_t view, uint64_t session, uint32_t hint, uint32_t returns_ms)
{
    const union tierce__native_request ask = {
        .session_hint = {.view = view, .session = session, .hint = hint, .returns_ms = returns_ms}};
    return native_ask(&a, TIERCE__NATIVE_SESSION_HINT, &ask, NULL, NULL);
}

/* The client's view, which the node's engine opened last. */
static void check_hint(uint64_t session, enum tierce_hint hint, uint32_t returns_ms)
{
    uint8_t hint_now;
    uint32_t returns_now_ms;
    struct tierce_view *view =
        TIERCE__CONTAINER_OF(fx.engine->views.prev, struct tierce_view, node);
    tierce__session_hint(view, session, &hint_now, &returns_now_ms);
    ck_assert_uint_eq(hint_now, hint);
    ck_assert_uint_eq(returns_now_ms, returns_ms);
}

START_TEST(hints_are_checked)
{
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_ne(a.tiers & TIERCE__NATIVE_TAKES_HINTS, 0);
    ck_assert_int_eq(give_hint(a.view, 1, TIERCE_HINT_LATER, 61000), 0);
    check_hint(1, TIERCE_HINT_LATER, 61000);
    ck_assert_int_eq(give_hint(a.view, 1, TIERCE_HINT_TTL, 0), 0);
    check_hint(1, TIERCE_HINT_TTL, 0);
    ck_assert_int_eq(give_hint(a.view, 1, TIERCE_HINT_NONE, 0), 0);
    ck_assert_int_eq(give_hint(a.view, 0, TIERCE_HINT_TTL, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(give_hint(a.view, 1, TIERCE_HINT_TTL, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(give_hint(a.view, 1, TIERCE_HINT_TTL + 1, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(give_hint(a.view, 1, UINT32_MAX, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(give_hint(a.view + 1, 1, TIERCE_HINT_TTL, 0), TIERCE__NATIVE_UNKNOWN);
    native_close(&a, true);
    wait_for_clients(0);
    check_free();
    end();
}
END_TEST

/* The node asks for tokens if it publishes KV events, and believes none that are not the chain's.
 */
START_TEST(tokens_are_checked)
{
    enum { TOKENS = BLOCKS * FX_BLOCK_TOKENS, CHUNK_TOKENS = FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS };
    char endpoint[128];
    int32_t tokens[TOKENS];
    uint32_t found[CHUNK_TOKENS];
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(endpoint, sizeof(endpoint), "--kv_events.endpoint=ipc://%s/kv", folder);
    start(1, (char *const[]){endpoint});
    struct tierce__kv_tokens *noted = node.node->engine->kv_tokens;
    memcpy(tokens, tierce__chain_tokens(chain), sizeof(tokens));
    native_open(&a, path);
    ck_assert_uint_ne(a.tiers & TIERCE__NATIVE_ASKS_TOKENS, 0);
    tokens[TOKENS - 1] ^= 1;
    ck_assert_int_eq(note_tokens(a.view, 0, tokens, TOKENS), TIERCE_E_ARGUMENT);
    tokens[TOKENS - 1] ^= 1;
    ck_assert_int_eq(note_tokens(a.view, 0, tokens, TOKENS - 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(note_tokens(a.view, 1, tokens + FX_BLOCK_TOKENS, FX_BLOCK_TOKENS),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(note_tokens(a.view, FX_CHUNK_BLOCKS, tokens, TOKENS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(note_tokens(a.view, UINT64_MAX - FX_CHUNK_BLOCKS + 1, tokens, TOKENS),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(note_tokens(a.view + 1, 0, tokens, TOKENS), TIERCE__NATIVE_UNKNOWN);
    const uint8_t *hash = tierce_chain_hash(chain, FX_CHUNK_BLOCKS - 1);
    ck_assert(!tierce__kv_tokens_get(noted, hash, found, CHUNK_TOKENS));
    ck_assert_int_eq(note_tokens(a.view, 0, tokens, 0), 0);
    ck_assert_int_eq(note_tokens(a.view, 0, tokens, TOKENS), 0);
    ck_assert(tierce__kv_tokens_get(noted, hash, found, CHUNK_TOKENS));
    ck_assert_mem_eq(found, tokens, sizeof(found));
    ck_assert(tierce__kv_tokens_get(noted, tierce_chain_hash(chain, BLOCKS - 1), found,
                                    BLOCKS % FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS));
    native_close(&a, true);
    wait_for_clients(0);
    end();
    start(0, NULL);
    native_open(&a, path);
    ck_assert_uint_eq(a.tiers & TIERCE__NATIVE_ASKS_TOKENS, 0);
    ck_assert_int_eq(note_tokens(a.view, 0, tokens, TOKENS), 0); /* and keeps none */
    ck_assert_ptr_null(node.node->engine->kv_tokens);
    native_close(&a, true);
    wait_for_clients(0);
    end();
}
END_TEST

CHECK_MAIN("node_native_limits", .seconds = 120, .at_once = true,
           .tests = {what_is_late_is_given_up, who_waits_for_what_is_late_goes_on,
                     tokens_are_checked, hints_are_checked, what_nobody_hears_of_is_ended,
                     pushes_of_a_client_leave_room, a_push_without_a_place_is_rejected,
                     layers_are_told_within_the_part_of_a_store, a_forgotten_push_is_ended,
                     a_client_has_limits, a_session_that_pins_nothing_takes_no_place,
                     chains_that_loads_hold_have_a_limit, who_says_nothing_is_not_waited_for},
           .loops = {{an_end_reaches_what_is_being_asked_about, 0, 2}})
