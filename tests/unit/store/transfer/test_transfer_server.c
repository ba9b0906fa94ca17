/* SPDX-License-Identifier: Apache-2.0 */
/* The server of transfer:// by the bytes of its clients: rights, ranges, orders, full and failing
 * keepers. test_transfer_patience.c has the slow and dead ones. */
#include "raw_transfer.h"

#define MIB (1u << 20)

static struct raw_world world;
static uint8_t hello[64];

static void setup(void)
{
    raw_start(&world, 16 * MIB);
}

static void teardown(void)
{
    raw_stop(&world);
    world = (struct raw_world){0};
}

/* ---- the greeting ---------------------------------------------------------------------------- */

START_TEST(a_greeting_in_single_bytes)
{
    int fd = raw_connect(&world);
    size_t bytes = raw_hello(hello, "memory", "");
    for (size_t i = 0; i < bytes; i++)
        raw_send(fd, hello + i, 1);
    struct tierce__transfer_welcome welcome = raw_welcome(fd);
    ck_assert_int_eq(welcome.status, 0);
    ck_assert_uint_eq(welcome.rights, TIERCE__TRANSFER_READ | TIERCE__TRANSFER_WRITE);
    ck_assert_uint_eq(welcome.pipeline, TIERCE__TRANSFER_PIPELINE);
    ck_assert_mem_eq(welcome.incarnation, world.opts.incarnation, 16);
    close(fd);
}
END_TEST

START_TEST(another_version_is_told_ours)
{
    int fd = raw_connect(&world);
    raw_hello(hello, "memory", "");
    hello[4] = TIERCE__TRANSFER_VERSION + 1;
    raw_send(fd, hello, TIERCE__TRANSFER_HELLO_BYTES);
    struct tierce__transfer_welcome welcome = raw_welcome(fd);
    ck_assert_int_eq(welcome.status, TIERCE_E_VERSION);
    ck_assert_uint_eq(welcome.version, TIERCE__TRANSFER_VERSION);
    raw_ends(fd);
    ck_assert_uint_eq(raw_stats(&world).refused, 1);
}
END_TEST

START_TEST(an_unknown_space_is_rejected)
{
    int fd = raw_connect(&world);
    raw_send(fd, hello, raw_hello(hello, "disk", ""));
    ck_assert_int_eq(raw_welcome(fd).status, TIERCE_E_ARGUMENT);
    raw_ends(fd);
}
END_TEST

START_TEST(a_greeting_of_something_else_ends)
{
    static const char http[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    int fd = raw_connect(&world);
    raw_send(fd, http, sizeof(http) - 1);
    raw_ends(fd);
    ck_assert_uint_eq(raw_stats(&world).errors, 1);
}
END_TEST

static _Atomic bool reader_is_gone;

static uint32_t rights_of(void *arg, const char *token, size_t bytes)
{
    ck_assert_ptr_eq(arg, &world);
    ck_assert_uint_eq(strlen(token), bytes);
    return strcmp(token, "reader") == 0   ? reader_is_gone ? 0 : TIERCE__TRANSFER_READ
           : strcmp(token, "writer") == 0 ? TIERCE__TRANSFER_WRITE
                                          : 0;
}

START_TEST(rights_of_tokens)
{
    int fd = raw_connect(&world);
    raw_send(fd, hello, raw_hello(hello, "memory", "guess"));
    ck_assert_int_eq(raw_welcome(fd).status, TIERCE_E_REFUSED);
    raw_ends(fd);

    int writer = raw_open(&world, "writer"), reader = raw_open(&world, "reader");
    raw_write(writer, "a", 1, 100, 0);
    raw_ask_read(writer, "a", 0, 100);
    ck_assert_int_eq(raw_reply(writer, TIERCE__TRANSFER_OP_READ, 1).status, TIERCE_E_REFUSED);
    raw_ask(
        writer, /* and its names are skipped */
        (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_ASK, .offset = 1, .length = 3},
        "");
    raw_send(writer, "\1\0a", 3);
    ck_assert_int_eq(raw_reply(writer, TIERCE__TRANSFER_OP_ASK, 2).status, TIERCE_E_REFUSED);
    raw_ask_read(writer, "a", 0, 100);
    ck_assert_int_eq(raw_reply(writer, TIERCE__TRANSFER_OP_READ, 3).status, TIERCE_E_REFUSED);
    raw_ask_write(reader, "a", 100); /* and its bytes are skipped */
    raw_send(reader, (uint8_t[100]){0}, 100);
    ck_assert_int_eq(raw_reply(reader, TIERCE__TRANSFER_OP_WRITE, 0).status, TIERCE_E_REFUSED);
    raw_ask(reader, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP}, "a");
    ck_assert_int_eq(raw_reply(reader, TIERCE__TRANSFER_OP_DROP, 1).status, TIERCE_E_REFUSED);
    raw_ask_read(reader, "a", 0, 100);
    ck_assert_int_eq(raw_reply(reader, TIERCE__TRANSFER_OP_READ, 2).status, 0);
    raw_is(reader, 1, 100);
    close(writer);
    close(reader);
}
END_TEST

/* A connection does not keep the rights of a token that is no longer valid. */
START_TEST(a_token_that_is_removed)
{
    int writer = raw_open(&world, "writer"), reader = raw_open(&world, "reader"), status = 0;
    raw_write(writer, "a", 1, 100, 0);
    atomic_store(&reader_is_gone, true);
    for (uint16_t sequence = 0; status == 0; sequence++) {
        raw_ask_read(reader, "a", 0, 100);
        status = raw_reply(reader, TIERCE__TRANSFER_OP_READ, sequence).status;
        if (status == 0)
            raw_is(reader, 1, 100);
    }
    ck_assert_int_eq(status, TIERCE_E_REFUSED);
    close(writer);
    close(reader);
}
END_TEST

/* ---- requests -------------------------------------------------------------------------------- */

START_TEST(ranges_of_an_object)
{
    static const struct {
        uint64_t offset, length, total;
        int status;
    } ranges[] = {
        {0, 1000, 0, 0},
        {999, 1, 1000, 0},
        {0, 1, 0, 0},
        {0, 1001, 0, TIERCE_E_FORMAT},
        {1000, 1, 0, TIERCE_E_FORMAT},
        {1001, 1, 0, TIERCE_E_FORMAT},
        {UINT64_MAX - 2, 2, 0, TIERCE_E_FORMAT},
        {1, UINT64_MAX - 1, 0, TIERCE_E_FORMAT},
        {0, 1000, 1001, TIERCE_E_FORMAT},
    };
    int fd = raw_open(&world, "");
    uint16_t sequence = 0;
    raw_write(fd, "a", 5, 1000, sequence++);
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        raw_ask(fd,
                (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_READ,
                                                  .offset = ranges[i].offset,
                                                  .length = ranges[i].length,
                                                  .total = ranges[i].total},
                "a");
        struct tierce__transfer_reply reply = raw_reply(fd, TIERCE__TRANSFER_OP_READ, sequence++);
        ck_assert_int_eq(reply.status, ranges[i].status);
        ck_assert_uint_eq(reply.total, 1000);
        if (reply.status == 0)
            raw_is(fd, 5, (size_t)ranges[i].length);
    }
    close(fd);
}
END_TEST

/* A request that no object can satisfy, or that is too long, breaks the protocol. */
START_TEST(wrong_requests)
{
    static const struct tierce__transfer_request requests[] = {
        {.op = TIERCE__TRANSFER_OP_READ, .offset = UINT64_MAX, .length = 2},
        {.op = TIERCE__TRANSFER_OP_READ, .length = 1000, .total = 999},
        {.op = TIERCE__TRANSFER_OP_WRITE, .length = 10},
        {.op = TIERCE__TRANSFER_OP_WRITE, .offset = UINT64_MAX, .length = 10, .total = 9},
        {.op = TIERCE__TRANSFER_OP_DROP, .length = 1},
        {.op = TIERCE__TRANSFER_OP_LIST, .length = 1},
        {.op = TIERCE__TRANSFER_OP_ASK, .offset = 1, .length = 3}, /* with a name */
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        int fd = raw_open(&world, "");
        raw_ask(fd, requests[i], "a");
        raw_ends(fd);
        ck_assert_uint_eq(raw_stats(&world).errors, i + 1);
    }
}
END_TEST

/* Heads that break the protocol: the connection ends after the replies that are due. */
START_TEST(wrong_heads)
{
    static const struct {
        size_t at;
        uint8_t value;
    } wrongs[] = {{0, 0}, {0, 6}, {0, 255}, {1, 1}, {2, 0}, {3, 3}};
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        uint8_t frame[RAW_HEAD + TIERCE__TRANSFER_NAME_MAX];
        int fd = raw_open(&world, "");
        raw_ask_read(fd, "none", 0, 10);
        size_t bytes = raw_request(
            frame, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_READ, .length = 1},
            "n");
        frame[wrongs[i].at] = wrongs[i].value;
        raw_send(fd, frame, bytes);
        ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_READ, 0).status, TIERCE_E_MISS);
        raw_ends(fd);
        ck_assert_uint_eq(raw_stats(&world).errors, i + 1);
    }
}
END_TEST

START_TEST(a_list_of_names_that_is_none)
{
    static const struct {
        uint64_t count;
        uint8_t bytes[8];
        size_t length;
    } lists[] = {
        {1, {3, 0, 'a', 'b'}, 4},       /* too short */
        {2, {1, 0, 'a'}, 3},            /* one is missing */
        {1, {1, 0, 'a', 1, 0, 'b'}, 6}, /* one too many */
        {1, {1, 0, 0}, 3},              /* a NUL */
        {1, {0, 0}, 2},
    };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        int fd = raw_open(&world, "");
        raw_ask(fd,
                (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_ASK,
                                                  .offset = lists[i].count,
                                                  .length = lists[i].length},
                "");
        raw_send(fd, lists[i].bytes, lists[i].length);
        raw_ends(fd);
    }
    ck_assert_uint_eq(raw_stats(&world).errors, sizeof(lists) / sizeof(lists[0]));
}
END_TEST

START_TEST(replies_have_the_order_of_the_requests)
{
    enum { COUNT = 20 };
    char name[8];
    int fd = raw_open(&world, "");
    for (uint16_t i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "%u", i);
        raw_write(fd, name, (uint8_t)i, 10u + i, i);
    }
    map_keeper_set_late(world.keeper); /* answers in any order */
    for (uint16_t i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "%u", i);
        raw_ask_read(fd, name, 0, 10u + i);
    }
    for (uint16_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_READ, (uint16_t)(COUNT + i)).status, 0);
        raw_is(fd, (uint8_t)i, 10u + i);
    }
    close(fd);
}
END_TEST

/* A client does not make the server work on more than a pipeline of requests. */
START_TEST(no_more_requests_than_the_pipeline)
{
    uint16_t count = 3 * TIERCE__TRANSFER_PIPELINE;
    int fd = raw_open(&world, ""), other = raw_open(&world, "");
    map_keeper_hold(world.keeper);
    for (uint16_t i = 0; i < count; i++)
        raw_ask_read(fd, "none", 0, 1);
    WAIT_FOR(map_keeper_held(world.keeper) == TIERCE__TRANSFER_PIPELINE);
    /* Lists are answered at once: the loop is not blocked. One that arrives later is read later. */
    raw_ask(other, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_LIST}, "");
    ck_assert_int_eq(raw_reply(other, TIERCE__TRANSFER_OP_LIST, 0).status, 0);
    ck_assert_uint_eq(map_keeper_held(world.keeper), TIERCE__TRANSFER_PIPELINE);
    map_keeper_let_go(world.keeper);
    for (uint16_t i = 0; i < count; i++)
        ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_READ, i).status, TIERCE_E_MISS);
    close(fd);
    close(other);
}
END_TEST

/* ---- objects --------------------------------------------------------------------------------- */

START_TEST(a_full_keeper)
{
    int fd = raw_open(&world, "");
    uint8_t *bytes = calloc(1, 16 * MIB + 1);
    raw_write(fd, "large", 1, 10 * MIB, 0);
    raw_ask_write(fd, "second", 10 * MIB);
    raw_send(fd, bytes, 10 * MIB);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_WRITE, 1).status, TIERCE_E_FULL);
    raw_ask_write(fd, "larger than all", 16 * MIB + 1);
    raw_send(fd, bytes, 16 * MIB + 1);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_WRITE, 2).status, TIERCE_E_LIMIT);
    raw_write(fd, "small", 2, MIB, 3); /* the connection is in step */
    ck_assert_uint_eq(raw_stats(&world).full, 1);
    ck_assert_uint_eq(map_keeper_objects(world.keeper), 2);
    free(bytes);
    close(fd);
}
END_TEST

/* Failures of the keeper at making room, keeping, finding and dropping reach the client as they
 * are. */
START_TEST(a_failing_keeper)
{
    int fd = raw_open(&world, "");
    map_keeper_fail(world.keeper, -ENOMEM, 1);
    raw_ask_write(fd, "a", 100);
    raw_send(fd, (uint8_t[100]){0}, 100);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_WRITE, 0).status, -ENOMEM);
    raw_ask_write(fd, "a", 100);
    WAIT_FOR(map_keeper_lent(world.keeper) == 1); /* it has room */
    map_keeper_fail(world.keeper, -EIO, 1);
    raw_send(fd, (uint8_t[100]){0}, 100);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_WRITE, 1).status, -EIO);
    ck_assert_uint_eq(map_keeper_objects(world.keeper), 0);
    map_keeper_fail(world.keeper, TIERCE_E_LIMIT, 2);
    raw_ask_read(fd, "a", 0, 1);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_READ, 2).status, TIERCE_E_LIMIT);
    raw_ask(fd, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP}, "a");
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_DROP, 3).status, TIERCE_E_LIMIT);
    raw_write(fd, "a", 1, 100, 4);
    close(fd);
}
END_TEST

/* Cut at every byte, nothing is left: neither an object nor room. */
START_TEST(a_partial_write_leaves_nothing)
{
    uint8_t frame[RAW_HEAD + TIERCE__TRANSFER_NAME_MAX + 50] = {0};
    size_t bytes = raw_request(frame,
                               (struct tierce__transfer_request){
                                   .op = TIERCE__TRANSFER_OP_WRITE, .length = 50, .total = 50},
                               "name");
    for (size_t cut = 0; cut < bytes + 50; cut++) {
        int fd = raw_open(&world, "");
        raw_send(fd, frame, cut);
        close(fd);
    }
    WAIT_FOR(raw_stats(&world).connections == 0);
    ck_assert_uint_eq(map_keeper_objects(world.keeper), 0);
    ck_assert_uint_eq(map_keeper_lent(world.keeper), 0);
    ck_assert_uint_eq(raw_stats(&world).writes, 0);
}
END_TEST

/* A client reads the object that it was promised, whatever becomes of the name. */
START_TEST(an_object_that_is_replaced_while_it_is_sent)
{
    int reader = raw_open(&world, ""), writer = raw_open(&world, "");
    raw_write(writer, "a", 1, 7 * MIB, 0);
    raw_ask_read(reader, "a", 0, 7 * MIB);
    ck_assert_int_eq(raw_reply(reader, TIERCE__TRANSFER_OP_READ, 0).status, 0);
    raw_write(writer, "a", 2, 7 * MIB, 1);
    raw_ask(writer, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP}, "a");
    ck_assert_int_eq(raw_reply(writer, TIERCE__TRANSFER_OP_DROP, 2).status, 0);
    ck_assert_uint_eq(map_keeper_objects(world.keeper), 0);
    raw_is(reader, 1, 7 * MIB);
    close(reader);
    close(writer);
}
END_TEST

START_TEST(the_figures)
{
    int fd = raw_open(&world, "");
    raw_write(fd, "a", 1, 1000, 0);
    raw_ask_read(fd, "a", 100, 200);
    raw_ask_read(fd, "b", 0, 1);
    raw_reply(fd, TIERCE__TRANSFER_OP_READ, 1);
    raw_is(fd, 1, 200);
    raw_reply(fd, TIERCE__TRANSFER_OP_READ, 2);
    raw_ask(fd, (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP}, "a");
    raw_reply(fd, TIERCE__TRANSFER_OP_DROP, 3);
    struct tierce__transfer_stats stats = raw_stats(&world);
    ck_assert_uint_eq(stats.connections, 1);
    ck_assert_uint_eq(stats.accepted, 1);
    ck_assert_uint_eq(stats.reads, 1);
    ck_assert_uint_eq(stats.read_bytes, 200);
    ck_assert_uint_eq(stats.misses, 1);
    ck_assert_uint_eq(stats.writes, 1);
    ck_assert_uint_eq(stats.written_bytes, 1000);
    ck_assert_uint_eq(stats.drops, 1);
    ck_assert_uint_eq(stats.errors, 0);
    close(fd);
}
END_TEST

static void setup_rights(void)
{
    world.opts.rights = rights_of;
    world.opts.rights_arg = &world;
    setup();
}

int main(void)
{
    Suite *suite = suite_create("transfer server");
    TCase *tcase = tcase_create("clients"), *rights = tcase_create("rights");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_checked_fixture(rights, setup_rights, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_greeting_in_single_bytes);
    tcase_add_test(tcase, another_version_is_told_ours);
    tcase_add_test(tcase, an_unknown_space_is_rejected);
    tcase_add_test(tcase, a_greeting_of_something_else_ends);
    tcase_add_test(tcase, ranges_of_an_object);
    tcase_add_test(tcase, wrong_requests);
    tcase_add_test(tcase, wrong_heads);
    tcase_add_test(tcase, a_list_of_names_that_is_none);
    tcase_add_test(tcase, replies_have_the_order_of_the_requests);
    tcase_add_test(tcase, no_more_requests_than_the_pipeline);
    tcase_add_test(tcase, a_full_keeper);
    tcase_add_test(tcase, a_failing_keeper);
    tcase_add_test(tcase, a_partial_write_leaves_nothing);
    tcase_add_test(tcase, an_object_that_is_replaced_while_it_is_sent);
    tcase_add_test(tcase, the_figures);
    tcase_add_test(rights, rights_of_tokens);
    tcase_add_test(rights, a_token_that_is_removed);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, rights);
    return check_main(suite);
}
