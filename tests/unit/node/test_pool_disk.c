/* SPDX-License-Identifier: Apache-2.0 */
/* A part on disk, over a store that is slow or fails: buffers that are used up, reading the folder,
 * forgetting, and the end. */
#include "base/clock.h"
#include "node/part/part.h"
#include "raw_transfer.h"
#include "silent_log.h"
#include "store_connector.h"

#include <stdatomic.h>

enum { MIB = 1 << 20, HALF = 512 << 10, LONG_MS = 60000, SOME = 6 };

static struct tierce__parts *parts;
static struct store_connector *store;
static char folder[] = "/tmp/tierce-test-XXXXXX", disk[64];

static struct tierce_plugin_name text_of(const char *text)
{
    return (struct tierce_plugin_name){.text = text, .bytes = strlen(text)};
}

static struct tierce__keeper *keeper(void)
{
    return tierce__parts_keeper(parts);
}

/* ---- finds and rooms that do not wait -------------------------------------------------------- */

struct finding {
    struct tierce__keeper_call call;
    _Atomic bool is_done;
};

static void on_found(struct tierce__keeper_call *call)
{
    atomic_store(&((struct finding *)call->arg)->is_done, true);
}

static void begin_find(struct finding *finding, const char *name, uint32_t wait_ms)
{
    *finding = (struct finding){.call = {.space = text_of("disk"),
                                         .name = text_of(name),
                                         .deadline_ns = tierce__deadline_in_ms(wait_ms),
                                         .done = on_found,
                                         .arg = finding}};
    tierce__list_init(&finding->call.node);
    keeper()->ops->find(keeper(), &finding->call);
}

static int end_find(struct finding *finding)
{
    WAIT_FOR(atomic_load(&finding->is_done));
    return finding->call.status;
}

static void release(struct finding *finding)
{
    keeper()->ops->release(keeper(), &finding->call.lease);
}

static void on_kept(struct tierce__keeper_room *room)
{
    atomic_store((_Atomic bool *)room->arg, true);
}

static int make(const char *space, const char *name, uint64_t bytes,
                struct tierce__keeper_room *room)
{
    struct tierce_plugin_name space_name = text_of(space), object_name = text_of(name);
    *room = (struct tierce__keeper_room){.done = on_kept};
    return keeper()->ops->make(keeper(), room, &space_name, &object_name, bytes);
}

static int keep(struct tierce__keeper_room *room)
{
    _Atomic bool is_done = false;
    memset(room->data, 'x', room->bytes);
    room->arg = &is_done;
    keeper()->ops->keep(keeper(), room);
    WAIT_FOR(atomic_load(&is_done));
    return room->status;
}

static void put(const char *space, const char *name, uint64_t bytes)
{
    struct tierce__keeper_room room;
    ck_assert_int_eq(make(space, name, bytes, &room), 0);
    ck_assert_int_eq(keep(&room), 0);
}

/* ---- the part -------------------------------------------------------------------------------- */

static struct tierce__part_state state_of(const char *space)
{
    struct tierce__part_state state;
    tierce__parts_state(parts, strcmp(space, "disk") == 0 ? 1 : 0, &state);
    ck_assert_str_eq(state.space, space);
    return state;
}

static bool is_ready(void)
{
    return state_of("disk").is_ready;
}

static uint64_t buffer_bytes = MIB;

static void open_parts(uint32_t waiting_max)
{
    char why[256];
    const struct tierce__parts_opts opts = {.size = sizeof(opts),
                                            .memory_bytes = MIB,
                                            .disk_path = disk,
                                            .disk_bytes = 64 * MIB,
                                            .buffer_bytes = buffer_bytes,
                                            .waiting_max = waiting_max,
                                            .store = store_connector_base(store)};
    ck_assert_msg(tierce__parts_open(&parts, &opts, why) == 0, "%s", why);
}

static void open_ready(uint32_t waiting_max)
{
    open_parts(waiting_max);
    WAIT_FOR(is_ready());
}

static void on_put(struct tierce__store_req *req)
{
    ck_assert_int_eq(req->status, 0);
}

/* An object of an earlier process. */
static void put_before(const char *text)
{
    uint8_t bytes[100] = {0};
    struct tierce__buf buf = {.data = bytes};
    struct tierce_plugin_name name = text_of(text);
    struct tierce__connector *base = store_connector_base(store);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .names = &name,
                                    .name_count = 1,
                                    .buf = &buf,
                                    .length = sizeof(bytes),
                                    .done = on_put};
    base->ops->submit(base, &req);
}

static void put_some_before(void)
{
    char name[8];
    for (int i = 0; i < SOME; i++) {
        snprintf(name, sizeof(name), "a%d", i);
        put_before(name);
    }
}

static void close_parts(void)
{
    tierce__parts_close(parts, tierce__deadline_in_ms(LONG_MS));
    parts = NULL;
}

static void set_up(void)
{
    silence_log();
    temp_folder_make(folder);
    snprintf(disk, sizeof(disk), "%s/part", folder);
    store = store_connector_create(true);
}

static void tear_down(void)
{
    tierce__parts_close(parts, 0);
    parts = NULL;
    temp_folder_remove(folder);
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
}

/* ---- buffers that are used up ---------------------------------------------------------------- */

/* Finds wait for a buffer in their order, also one that would fit before a larger one. */
START_TEST(test_finds_wait_for_a_buffer)
{
    struct finding first, second, large, small;
    open_ready(0);
    put("disk", "a", HALF);
    put("disk", "b", HALF);
    put("disk", "large", MIB);
    put("disk", "small", 4096);
    begin_find(&first, "a", LONG_MS);
    begin_find(&second, "b", LONG_MS);
    ck_assert_int_eq(end_find(&first), 0);
    ck_assert_int_eq(end_find(&second), 0);
    begin_find(&large, "large", LONG_MS);
    begin_find(&small, "small", LONG_MS);
    release(&first);
    ck_assert(!atomic_load(&large.is_done) && !atomic_load(&small.is_done));
    release(&second);
    ck_assert_int_eq(end_find(&large), 0);
    ck_assert(!atomic_load(&small.is_done));
    ck_assert_uint_eq(large.call.lease.bytes, MIB);
    release(&large);
    ck_assert_int_eq(end_find(&small), 0);
    release(&small);
    close_parts();
}
END_TEST

/* An object that is there is never a miss: a find that gets no buffer in time is told so, before
 * its client has given up; and so is one too many. */
START_TEST(test_a_find_without_a_buffer_is_busy)
{
    struct finding holding, waiting[2], more;
    open_ready(2);
    put("disk", "a", MIB);
    begin_find(&holding, "a", LONG_MS);
    ck_assert_int_eq(end_find(&holding), 0);
    begin_find(&waiting[0], "a", 100);
    begin_find(&waiting[1], "a", LONG_MS);
    begin_find(&more, "a", LONG_MS);
    ck_assert(atomic_load(&more.is_done));
    ck_assert_int_eq(more.call.status, TIERCE_E_LIMIT);
    ck_assert_int_eq(end_find(&waiting[0]), TIERCE_E_LIMIT);
    ck_assert(!atomic_load(&waiting[1].is_done));
    begin_find(&more, "a", LONG_MS); /* there is room in the queue again */
    release(&holding);
    ck_assert_int_eq(end_find(&waiting[1]), 0);
    release(&waiting[1]);
    ck_assert_int_eq(end_find(&more), 0);
    release(&more);
    close_parts();
}
END_TEST

/* A miss needs no buffer: it does not wait among those that do, and is never "busy". */
START_TEST(test_a_miss_is_answered_at_once)
{
    struct finding holding, waiting, missing;
    open_ready(1);
    put("disk", "a", MIB);
    begin_find(&holding, "a", LONG_MS);
    ck_assert_int_eq(end_find(&holding), 0);
    begin_find(&waiting, "a", LONG_MS);
    begin_find(&missing, "none", LONG_MS); /* the queue is full */
    ck_assert(atomic_load(&missing.is_done));
    ck_assert_int_eq(missing.call.status, TIERCE_E_MISS);
    ck_assert(!atomic_load(&waiting.is_done));
    release(&holding);
    ck_assert_int_eq(end_find(&waiting), 0);
    release(&waiting);
    close_parts();
}
END_TEST

/* Writes that find no buffer are busy; the part is not full. While finds wait, writes leave them
 * half of the buffers. */
START_TEST(test_writes_do_not_starve_finds)
{
    struct tierce__keeper_room room, other;
    struct finding holding, second, waiting;
    open_ready(0);
    put("disk", "a", HALF);
    put("disk", "large", MIB);
    uint64_t used = state_of("disk").used_bytes;
    begin_find(&holding, "a", LONG_MS);
    ck_assert_int_eq(end_find(&holding), 0);
    ck_assert_int_eq(make("disk", "b", HALF, &room), 0);
    ck_assert_int_eq(make("disk", "c", 4096, &other), TIERCE_E_LIMIT);
    ck_assert_uint_eq(state_of("disk").used_bytes, used + HALF);
    begin_find(&second, "a", LONG_MS);
    keeper()->ops->abandon(keeper(), &room);
    ck_assert_int_eq(end_find(&second), 0);
    /* The large object needs all, so writes get nothing of what becomes free. */
    begin_find(&waiting, "large", LONG_MS);
    release(&holding);
    ck_assert_int_eq(make("disk", "c", 4096, &other), TIERCE_E_LIMIT);
    release(&second);
    ck_assert_int_eq(end_find(&waiting), 0);
    release(&waiting);
    put("disk", "c", HALF);
    ck_assert_int_eq(make("disk", "huge", 2 * MIB, &other), TIERCE_E_LIMIT);
    close_parts();
}
END_TEST

/* ---- reading the folder ---------------------------------------------------------------------- */

static const enum tierce__store_op readings[] = {TIERCE__STORE_LIST, TIERCE__STORE_LOOKUP};

START_TEST(test_a_failure_while_the_folder_is_read)
{
    struct finding finding;
    put_some_before();
    store_connector_fail(store, readings[_i], -EIO, 3, false);
    open_ready(0);
    ck_assert_uint_eq(state_of("disk").objects, SOME);
    ck_assert_str_eq(state_of("disk").why, "");
    begin_find(&finding, "a0", LONG_MS);
    ck_assert_int_eq(end_find(&finding), 0);
    release(&finding);
    close_parts();
}
END_TEST

/* A store that is away is awaited, and the state says why. */
START_TEST(test_a_store_that_is_away_for_a_while)
{
    put_before("a");
    store_connector_fail(store, TIERCE__STORE_LOOKUP, TIERCE_E_DOWN, UINT32_MAX, false);
    store_connector_fail(store, TIERCE__STORE_PING, TIERCE_E_DOWN, UINT32_MAX, false);
    open_parts(0);
    WAIT_FOR(store_connector_count(store, TIERCE__STORE_PING) > 0);
    ck_assert(!is_ready());
    ck_assert_ptr_nonnull(strstr(state_of("disk").why, "its folder cannot be read: "));
    store_connector_fail(store, TIERCE__STORE_PING, 0, 0, false);
    store_connector_fail(store, TIERCE__STORE_LOOKUP, 0, 0, false);
    WAIT_FOR(is_ready());
    ck_assert_uint_eq(state_of("disk").objects, 1);
    close_parts();
}
END_TEST

static _Atomic int unreadable_lines, not_forgotten_lines;

static void count_lines(void *arg, enum tierce_log_level level, const char *event,
                        const char *fields)
{
    (void)arg, (void)level, (void)fields;
    unreadable_lines += strcmp(event, "part_object_unreadable") == 0;
    not_forgotten_lines += strcmp(event, "node_part_not_forgotten") == 0;
}

static void count(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

/* Objects that cannot be looked at do not keep the others away. Neither the log nor the watcher,
 * which registers the node, hears of each of them. */
START_TEST(test_objects_that_cannot_be_looked_at)
{
    enum { BROKEN = 40, LINES_MAX = 8 };
    struct finding finding;
    char name[16];
    _Atomic int told = 0;
    for (int i = 0; i < BROKEN; i++) {
        snprintf(name, sizeof(name), "broken%d", i);
        put_before(name);
    }
    store_connector_fail(store, TIERCE__STORE_LOOKUP, -EIO, UINT32_MAX, false);
    tierce_set_log_fn(count_lines, NULL, TIERCE_LOG_ERROR);
    open_parts(0);
    tierce__parts_watch(parts, count, &told);
    WAIT_FOR(is_ready());
    WAIT_FOR(atomic_load(&told) > 0);
    tierce__parts_watch(parts, NULL, NULL);
    ck_assert_int_eq(told, 1);
    ck_assert_int_ge(unreadable_lines, 1);
    ck_assert_int_le(unreadable_lines, LINES_MAX);
    ck_assert_uint_eq(state_of("disk").objects, 0);
    store_connector_fail(store, TIERCE__STORE_LOOKUP, 0, 0, false);
    begin_find(&finding, "broken0", LONG_MS);
    ck_assert_int_eq(end_find(&finding), TIERCE_E_MISS);
    put("disk", "healthy", 100);
    close_parts();
}
END_TEST

/* ---- forgetting ------------------------------------------------------------------------------ */

/* The caller does not wait for the disk, and other parts serve meanwhile. */
START_TEST(test_forgetting_is_done_beside)
{
    _Atomic int told = 0;
    struct finding finding;
    put_some_before();
    open_ready(0);
    struct tierce__part_state before = state_of("disk");
    tierce__parts_watch(parts, count, &told);
    store_connector_hold(store, TIERCE__STORE_DELETE);
    ck_assert_int_eq(tierce__parts_forget(parts, 1), 0);
    ck_assert_int_eq(tierce__parts_forget(parts, 1), TIERCE_E_DOWN);
    ck_assert(!is_ready());
    ck_assert(state_of("memory").is_ready);
    put("memory", "a", 100);
    begin_find(&finding, "a0", LONG_MS);
    ck_assert_int_eq(end_find(&finding), TIERCE_E_DOWN);
    ck_assert_mem_eq(before.incarnation, state_of("disk").incarnation, 16);
    WAIT_FOR(store_connector_held(store) == SOME); /* several at a time */
    ck_assert_int_eq(atomic_load(&told), 0);
    store_connector_let_go(store);
    WAIT_FOR(is_ready());
    ck_assert_mem_ne(before.incarnation, state_of("disk").incarnation, 16);
    ck_assert_uint_eq(state_of("disk").objects, 0);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    WAIT_FOR(atomic_load(&told) == 1);
    tierce__parts_watch(parts, NULL, NULL);
    close_parts();
}
END_TEST

/* A failing disk: what is left stays visible, counted, and deletable. The watcher is not told,
 * because the manager would ask for the same again at once. */
START_TEST(test_forgetting_that_fails)
{
    enum { TRIES = 5 };
    _Atomic int told = 0;
    put_some_before();
    open_ready(0);
    tierce_set_log_fn(count_lines, NULL, TIERCE_LOG_ERROR);
    tierce__parts_watch(parts, count, &told);
    struct tierce__part_state before = state_of("disk");
    for (int i = 0; i < TRIES; i++) {
        store_connector_fail(store, TIERCE__STORE_DELETE, -EIO, 1, false);
        ck_assert_int_eq(tierce__parts_forget(parts, 1), 0);
        WAIT_FOR(is_ready());
    }
    tierce__parts_watch(parts, NULL, NULL);
    ck_assert_int_eq(told, 0);
    ck_assert_int_eq(not_forgotten_lines, 1);
    ck_assert_mem_eq(before.incarnation, state_of("disk").incarnation, 16);
    ck_assert_uint_eq(state_of("disk").objects, store_connector_objects(store));
    ck_assert_int_eq(tierce__parts_forget(parts, 1), 0);
    WAIT_FOR(is_ready());
    ck_assert_mem_ne(before.incarnation, state_of("disk").incarnation, 16);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    close_parts();
}
END_TEST

static const char *const spaces[] = {"memory", "disk"};

/* An object that arrives while the part forgets: it is neither lost from the index with its file
 * left, nor kept in a part whose objects nobody knows. */
START_TEST(test_an_object_that_arrives_while_the_part_forgets)
{
    const char *space = spaces[_i];
    struct tierce__keeper_room room;
    open_ready(0);
    put(space, "before", 100);
    ck_assert_int_eq(make(space, "arriving", 100, &room), 0);
    ck_assert_int_eq(tierce__parts_forget(parts, (size_t)_i), 0);
    WAIT_FOR(state_of(space).is_ready);
    ck_assert_int_eq(keep(&room), TIERCE_E_DOWN);
    ck_assert_uint_eq(state_of(space).objects, 0);
    ck_assert_uint_eq(state_of(space).used_bytes, 0);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    put(space, "arriving", 100);
    ck_assert_uint_eq(state_of(space).objects, 1);
    close_parts();
}
END_TEST

/* ---- the end --------------------------------------------------------------------------------- */

enum { AT_ONCE_MS = 10000 }; /* a third of the disk's own time */

/* The disk does not answer: whoever reads or forgets does not hold up the end. */
START_TEST(test_an_end_while_the_disk_hangs)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LIST, TIERCE__STORE_LOOKUP,
                                                TIERCE__STORE_DELETE};
    put_some_before();
    if (ops[_i] == TIERCE__STORE_DELETE) {
        open_ready(0);
        store_connector_hold(store, ops[_i]);
        ck_assert_int_eq(tierce__parts_forget(parts, 1), 0);
    } else {
        store_connector_hold(store, ops[_i]);
        open_parts(0);
    }
    WAIT_FOR(store_connector_held(store) > 0);
    uint64_t late_ns = tierce__deadline_in_ms(AT_ONCE_MS);
    close_parts();
    ck_assert_uint_lt(tierce__now_ns(), late_ns);
}
END_TEST

/* The same for a client's reads, of which one waits for a buffer. */
START_TEST(test_a_server_that_ends_while_the_disk_hangs)
{
    uint8_t hello[64];
    struct raw_world world = {.opts = {.size = sizeof(world.opts), .host = "127.0.0.1"}};
    char why[256];
    open_ready(0);
    put("disk", "a", MIB);
    world.opts.keeper = keeper();
    ck_assert_msg(tierce__transfer_server_start(&world.server, &world.opts, why) == 0, "%s", why);
    int fd = raw_connect(&world);
    raw_send(fd, hello, raw_hello(hello, "disk", ""));
    ck_assert_int_eq(raw_welcome(fd).status, 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    raw_ask_read(fd, "a", 0, MIB);
    raw_ask_read(fd, "a", 0, MIB);
    WAIT_FOR(store_connector_held(store) == 1);
    uint64_t late_ns = tierce__deadline_in_ms(AT_ONCE_MS);
    tierce__transfer_server_stop(world.server, tierce__deadline_in_ms(50));
    close_parts();
    ck_assert_uint_lt(tierce__now_ns(), late_ns);
    close(fd);
}
END_TEST

/* A client that does not read its reply holds the buffers that another one waits for: it is
 * disconnected, long before its own time is over, and the other one is served. */
START_TEST(test_a_slow_reader_makes_way)
{
    enum { LARGE = 24 * MIB };
    uint8_t hello[64];
    struct raw_world world = {.opts = {.size = sizeof(world.opts),
                                       .host = "127.0.0.1",
                                       .request_ms = LONG_MS,
                                       .stall_ms = 100}};
    char why[256];
    struct finding finding;
    buffer_bytes = LARGE;
    open_ready(0);
    put("disk", "large", LARGE);
    world.opts.keeper = keeper();
    ck_assert_msg(tierce__transfer_server_start(&world.server, &world.opts, why) == 0, "%s", why);
    int fd = raw_connect(&world);
    raw_send(fd, hello, raw_hello(hello, "disk", ""));
    ck_assert_int_eq(raw_welcome(fd).status, 0);
    raw_ask_read(fd, "large", 0, LARGE);
    WAIT_FOR(raw_stats(&world).reads == 1);
    ck_assert_uint_eq(raw_stats(&world).connections, 1); /* nobody waits */
    begin_find(&finding, "large", LONG_MS);
    ck_assert_int_eq(end_find(&finding), 0);
    release(&finding);
    WAIT_FOR(raw_stats(&world).connections == 0);
    close(fd);
    tierce__transfer_server_stop(world.server, 0);
    close_parts();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool disk");
    TCase *tcase = tcase_create("disk");
    tcase_set_timeout(tcase, 240);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, test_finds_wait_for_a_buffer);
    tcase_add_test(tcase, test_a_find_without_a_buffer_is_busy);
    tcase_add_test(tcase, test_a_miss_is_answered_at_once);
    tcase_add_test(tcase, test_writes_do_not_starve_finds);
    tcase_add_loop_test(tcase, test_a_failure_while_the_folder_is_read, 0, 2);
    tcase_add_test(tcase, test_a_store_that_is_away_for_a_while);
    tcase_add_test(tcase, test_objects_that_cannot_be_looked_at);
    tcase_add_test(tcase, test_forgetting_is_done_beside);
    tcase_add_test(tcase, test_forgetting_that_fails);
    tcase_add_loop_test(tcase, test_an_object_that_arrives_while_the_part_forgets, 0, 2);
    tcase_add_loop_test(tcase, test_an_end_while_the_disk_hangs, 0, 3);
    tcase_add_test(tcase, test_a_server_that_ends_while_the_disk_hangs);
    tcase_add_test(tcase, test_a_slow_reader_makes_way);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
