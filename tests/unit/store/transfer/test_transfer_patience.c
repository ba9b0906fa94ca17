/* SPDX-License-Identifier: Apache-2.0 */
/* Slow and dead clients of transfer://, the limit of connections, and the end of the server. */
#include "net/server/addresses.h"
#include "raw_transfer.h"

#include <pthread.h>
#include <tierce/log.h>

#define MIB (1u << 20)

static struct raw_world world;

static void teardown(void)
{
    raw_stop(&world);
    world = (struct raw_world){0};
}

/* ---- patience -------------------------------------------------------------------------------- */

static void setup_short(void)
{
    world.opts.request_ms = 1000;
    raw_start(&world, 16 * MIB);
}

START_TEST(a_client_that_does_not_greet)
{
    uint8_t hello[64];
    raw_ends(raw_connect(&world));
    int fd = raw_connect(&world);
    raw_send(fd, hello, raw_hello(hello, "memory", "") - 1);
    raw_ends(fd);
}
END_TEST

START_TEST(a_request_that_does_not_arrive)
{
    uint8_t frame[RAW_HEAD + TIERCE__TRANSFER_NAME_MAX];
    struct tierce__transfer_request request = {
        .op = TIERCE__TRANSFER_OP_WRITE, .length = MIB, .total = MIB};
    size_t bytes = raw_request(frame, request, "a");
    const size_t cuts[] = {1, RAW_HEAD, bytes};
    int fds[3];
    for (size_t i = 0; i < 3; i++) {
        fds[i] = raw_open(&world, "");
        raw_send(fds[i], frame, cuts[i]);
    }
    for (size_t i = 0; i < 3; i++)
        raw_ends(fds[i]);
    WAIT_FOR(raw_stats(&world).connections == 0);
    ck_assert_uint_eq(map_keeper_lent(world.keeper), 0);
}
END_TEST

/* Some bytes now and then are not enough. */
START_TEST(a_client_that_dribbles)
{
    int fd = raw_open(&world, "");
    uint64_t until_ns = tierce__deadline_in_ms(60000);
    raw_ask_write(fd, "a", 4 * MIB);
    while (raw_try_send(fd, "x", 1) == 0) {
        ck_assert_msg(tierce__now_ns() < until_ns, "the server is patient for ever");
        usleep(5000);
    }
    close(fd);
    WAIT_FOR(raw_stats(&world).connections == 0);
    ck_assert_uint_eq(map_keeper_lent(world.keeper), 0);
    ck_assert_uint_eq(map_keeper_objects(world.keeper), 0);
}
END_TEST

/* The lease of an object that nobody takes is given back. */
START_TEST(a_client_that_does_not_read)
{
    int writer = raw_open(&world, ""), reader = raw_open(&world, "");
    raw_write(writer, "a", 1, 12 * MIB, 0);
    close(writer);
    raw_ask_read(reader, "a", 0, 12 * MIB);
    WAIT_FOR(raw_stats(&world).reads == 1);
    WAIT_FOR(raw_stats(&world).connections == 0);
    ck_assert_uint_eq(map_keeper_lent(world.keeper), 0);
    close(reader);
}
END_TEST

/* A client does not pay for a slow keeper. */
START_TEST(a_slow_keeper)
{
    int fd = raw_open(&world, "");
    raw_write(fd, "a", 1, 10, 0);
    map_keeper_hold(world.keeper);
    raw_ask_read(fd, "a", 0, 10);
    WAIT_FOR(map_keeper_held(world.keeper) == 1);
    raw_ends(raw_connect(&world)); /* a time in which a client loses patience */
    map_keeper_let_go(world.keeper);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_READ, 1).status, 0);
    raw_is(fd, 1, 10);
    close(fd);
}
END_TEST

static void setup_idle(void)
{
    world.opts.idle_ms = 1000;
    raw_start(&world, MIB);
}

START_TEST(an_idle_client)
{
    int fd = raw_open(&world, "");
    raw_ends(fd);
    WAIT_FOR(raw_stats(&world).connections == 0);
}
END_TEST

/* ---- limits and the end ---------------------------------------------------------------------- */

static void setup_few(void)
{
    world.opts.connections_max = 2;
    raw_start(&world, 32 * MIB);
}

static void setup_one_loop(void)
{
    world.opts.loops = 1;
    setup_few();
}

START_TEST(connections_beyond_the_limit)
{
    int one = raw_open(&world, ""), two = raw_open(&world, "");
    raw_ends(raw_connect(&world));
    ck_assert_uint_eq(raw_stats(&world).refused, 1);
    close(one);
    WAIT_FOR(raw_stats(&world).connections == 1);
    int three = raw_open(&world, "");
    close(two);
    close(three);
}
END_TEST

/* Connections that never greet do not keep others out, however many they are: a new one takes the
 * place of the oldest. One that has greeted keeps its own. */
START_TEST(connections_that_do_not_greet)
{
    enum { SILENT = 20 };
    int silent[SILENT], first = raw_open(&world, "");
    for (size_t i = 0; i < SILENT; i++) {
        silent[i] = raw_connect(&world);
        raw_send(silent[i], "T", i % 2);
    }
    WAIT_FOR(raw_stats(&world).accepted == 1 + SILENT);
    for (size_t i = 0; i + 1 < SILENT; i++)
        raw_ends(silent[i]);
    int second = raw_open(&world, "");
    raw_ends(silent[SILENT - 1]);
    raw_write(first, "a", 1, 100, 0);
    raw_ask_read(second, "a", 0, 100);
    ck_assert_int_eq(raw_reply(second, TIERCE__TRANSFER_OP_READ, 0).status, 0);
    raw_is(second, 1, 100);
    ck_assert_uint_eq(raw_stats(&world).refused, 0);
    raw_ends(raw_connect(&world)); /* both places belong to clients that have greeted */
    ck_assert_uint_eq(raw_stats(&world).refused, 1);
    close(first);
    close(second);
}
END_TEST

static char logged[256];
static atomic_bool is_logged; /* `logged` is complete */

static void keep_refusal(void *arg, enum tierce_log_level level, const char *event,
                         const char *fields)
{
    (void)arg, (void)level;
    if (strcmp(event, "transfer_connection_refused") != 0)
        return;
    snprintf(logged, sizeof(logged), "%s", fields);
    atomic_store(&is_logged, true);
}

static void setup_addresses(void)
{
    ck_assert_int_eq(tierce__addresses_create(&world.opts.addresses, 2), 0);
    raw_start(&world, MIB);
}

static void teardown_addresses(void)
{
    struct tierce__addresses *addresses = world.opts.addresses;
    teardown();
    tierce__addresses_destroy(addresses);
}

START_TEST(connections_of_one_address)
{
    int one = raw_open(&world, ""), two = raw_open(&world, "");
    tierce_set_log_fn(keep_refusal, NULL, TIERCE_LOG_WARN);
    raw_ends(raw_connect(&world));
    ck_assert_uint_eq(raw_stats(&world).refused, 1);
    WAIT_FOR(atomic_load(&is_logged));
    ck_assert_ptr_nonnull(strstr(logged, "why=\"too many connections of its address\""));
    ck_assert_ptr_null(strstr(logged, "connections_max"));
    close(one);
    WAIT_FOR(raw_stats(&world).connections == 1);
    one = raw_open(&world, "");
    close(one);
    close(two);
}
END_TEST

/* The client is gone while the keeper works: its answer finds nobody, and is given back. */
START_TEST(clients_that_leave_while_the_keeper_works)
{
    int fd = raw_open(&world, ""), other = raw_open(&world, "");
    raw_write(fd, "a", 1, 10, 0);
    map_keeper_hold(world.keeper);
    raw_ask_read(fd, "a", 0, 10);
    raw_ask(fd, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP}, "none");
    raw_ask_write(fd, "b", 10);
    raw_send(fd, "0123456789", 10);
    WAIT_FOR(map_keeper_held(world.keeper) == 3);
    close(fd);
    raw_ask(other, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_LIST}, "");
    raw_reply(other, TIERCE__TRANSFER_OP_LIST, 0);
    raw_is(other, 1, 1);
    close(other);
    map_keeper_let_go(world.keeper);
    WAIT_FOR(raw_stats(&world).connections == 0);
    ck_assert_uint_eq(map_keeper_lent(world.keeper), 0);
    ck_assert_uint_eq(map_keeper_objects(world.keeper), 2); /* it was there when the client left */
}
END_TEST

/* Its slot, and the number of its request, are those of the later connection, too: an answer that
 * comes late goes back to the keeper, and the later client gets what it has asked for. */
START_TEST(a_late_answer_does_not_reach_a_later_connection)
{
    int writer = raw_open(&world, "");
    raw_write(writer, "a", 1, 10, 0);
    raw_write(writer, "b", 2, 10, 1);
    close(writer);
    int first = raw_open(&world, "");
    map_keeper_hold(world.keeper);
    raw_ask_read(first, "a", 0, 10);
    WAIT_FOR(map_keeper_held(world.keeper) == 1);
    close(first);
    int second = raw_open(&world, "");
    raw_ask_read(second, "b", 0, 10);
    WAIT_FOR(map_keeper_held(world.keeper) == 2);
    map_keeper_let_go(world.keeper);
    ck_assert_int_eq(raw_reply(second, TIERCE__TRANSFER_OP_READ, 0).status, 0);
    raw_is(second, 2, 10);
    WAIT_FOR(raw_stats(&world).connections == 1 && map_keeper_lent(world.keeper) == 0);
    close(second);
}
END_TEST

/* A server that begins anew at the same port knows nothing of the reads before: the bytes of a read
 * come whole from the server that leased them, or the connection ends. */
START_TEST(a_read_does_not_outlive_its_server)
{
    enum { BYTES = 12 * MIB };
    uint8_t hello[64];
    int reader = raw_open(&world, "");
    raw_write(reader, "a", 1, BYTES, 0);
    raw_ask_read(reader, "a", 0, BYTES);
    WAIT_FOR(map_keeper_lent(world.keeper) == 1);
    uint16_t port = tierce__transfer_server_port(world.server);
    raw_stop(&world); /* it asserts that all leases came back */
    world.opts.port = port;
    raw_start(&world, 16 * MIB);
    world.opts.port = 0;
    uint8_t *memory = malloc(RAW_HEAD + BYTES);
    ck_assert_int_eq(raw_try_receive(reader, memory, RAW_HEAD + BYTES), -ECONNRESET);
    free(memory);
    close(reader);
    int again = raw_connect(&world);
    raw_send(again, hello, raw_hello(hello, "memory", ""));
    (void)raw_welcome(again);
    raw_write(again, "a", 2, BYTES, 0);
    raw_ask_read(again, "a", 0, BYTES);
    ck_assert_int_eq(raw_reply(again, TIERCE__TRANSFER_OP_READ, 1).status, 0);
    raw_is(again, 2, BYTES);
    WAIT_FOR(map_keeper_lent(world.keeper) == 0);
    close(again);
}
END_TEST

struct ending {
    uint64_t deadline_ns;
    atomic_bool has_ended;
    pthread_t thread;
};

static void *end_server(void *arg)
{
    struct ending *ending = arg;
    tierce__transfer_server_stop(world.server, ending->deadline_ns);
    atomic_store(&ending->has_ended, true);
    return NULL;
}

static void begin_end(struct ending *ending, uint64_t deadline_ns)
{
    *ending = (struct ending){.deadline_ns = deadline_ns};
    ck_assert_int_eq(pthread_create(&ending->thread, NULL, end_server, ending), 0);
}

static void end_end(struct ending *ending)
{
    pthread_join(ending->thread, NULL);
    map_keeper_destroy(world.keeper);
    world = (struct raw_world){0};
}

/* Until the deadline, what has begun is finished; nothing new begins. */
START_TEST(an_end_with_time)
{
    struct ending ending;
    int fd = raw_open(&world, ""), idle = raw_open(&world, "");
    raw_write(fd, "a", 3, 12 * MIB, 0);
    raw_ask_read(fd, "a", 0, 12 * MIB);
    raw_ask_write(fd, "b", MIB);
    WAIT_FOR(map_keeper_lent(world.keeper) == 2);
    begin_end(&ending, tierce__deadline_in_ms(100000));
    raw_ends(idle);
    ck_assert(!atomic_load(&ending.has_ended));
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_READ, 1).status, 0);
    raw_is(fd, 3, 12 * MIB);
    uint8_t *bytes = calloc(1, MIB);
    raw_send(fd, bytes, MIB);
    free(bytes);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_WRITE, 2).status, 0);
    raw_ends(fd);
    end_end(&ending);
}
END_TEST

/* At once: transfers end in the middle, but the keeper's answers are awaited. */
START_TEST(an_end_at_once)
{
    struct ending ending;
    int reader = raw_open(&world, ""), writer = raw_open(&world, "");
    raw_write(reader, "a", 3, 12 * MIB, 0);
    raw_ask_read(reader, "a", 0, 12 * MIB);
    raw_ask_write(writer, "b", MIB);
    WAIT_FOR(map_keeper_lent(world.keeper) == 2);
    map_keeper_hold(world.keeper);
    raw_ask_read(reader, "a", 0, 1);
    WAIT_FOR(map_keeper_held(world.keeper) == 1);
    begin_end(&ending, 0);
    raw_ends(writer);
    ck_assert(!atomic_load(&ending.has_ended));
    map_keeper_let_go(world.keeper);
    end_end(&ending);
    close(reader);
}
END_TEST

static TCase *make_case(const char *name, SFun begin, SFun end)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, begin, end);
    tcase_set_timeout(tcase, 240);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("transfer patience");
    TCase *slow = make_case("slow", setup_short, teardown),
          *idle = make_case("idle", setup_idle, teardown),
          *limit = make_case("limit", setup_few, teardown),
          *few = make_case("few", setup_one_loop, teardown),
          *address = make_case("address", setup_addresses, teardown_addresses),
          *end = make_case("end", setup_few, NULL);
    tcase_add_test(slow, a_client_that_does_not_greet);
    tcase_add_test(slow, a_request_that_does_not_arrive);
    tcase_add_test(slow, a_client_that_dribbles);
    tcase_add_test(slow, a_client_that_does_not_read);
    tcase_add_test(slow, a_slow_keeper);
    tcase_add_test(idle, an_idle_client);
    tcase_add_test(limit, connections_beyond_the_limit);
    tcase_add_test(few, connections_that_do_not_greet);
    tcase_add_test(address, connections_of_one_address);
    tcase_add_test(limit, clients_that_leave_while_the_keeper_works);
    tcase_add_test(limit, a_late_answer_does_not_reach_a_later_connection);
    tcase_add_test(limit, a_read_does_not_outlive_its_server);
    tcase_add_test(end, an_end_with_time);
    tcase_add_test(end, an_end_at_once);
    suite_add_tcase(suite, slow);
    suite_add_tcase(suite, idle);
    suite_add_tcase(suite, limit);
    suite_add_tcase(suite, few);
    suite_add_tcase(suite, address);
    suite_add_tcase(suite, end);
    return check_main(suite);
}
