/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/alloc.h"
#include "check_main.h"
#include "core/key/chunk_number.h"
#include "manager/holdings/holdings.h"

/* Commands to workers: how they reach their worker, how they end, and their bounds. */

#define MS     1000000ULL
#define SECOND (1000 * MS)

static struct tierce__directory *directory;
static struct tierce__worker_commands *commands;
static uint64_t now_ns;

static void open_with(uint32_t commands_max, uint32_t group_max)
{
    now_ns = SECOND;
    ck_assert_int_eq(tierce__directory_create(
                         &directory,
                         &(struct tierce__directory_opts){
                             .size = sizeof(struct tierce__directory_opts), .workers_max = 30}),
                     0);
    ck_assert_int_eq(
        tierce__worker_commands_create(&commands,
                                       &(struct tierce__worker_commands_opts){
                                           .size = sizeof(struct tierce__worker_commands_opts),
                                           .directory = directory,
                                           .commands_max = commands_max,
                                           .group_max = group_max,
                                           .worker_max = 3}),
        0);
}

static void close_all(void)
{
    tierce__worker_commands_destroy(commands);
    tierce__directory_destroy(directory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__directory_id join(const char *group, const char *name)
{
    struct tierce__directory_id id;
    ck_assert_int_eq(
        tierce__directory_join(directory,
                               &(struct tierce__directory_worker){
                                   .group = group, .name = name, .address = "", .host = ""},
                               now_ns, &id),
        0);
    return id;
}

static int try(struct tierce__directory_id worker, uint64_t *number)
{
    const struct tierce__directory_key keys[] = {{1, 2}, {3, 4}};
    const struct tierce__worker_order order = {
        .action = TIERCE__WORKER_PIN, .keys = keys, .count = 2, .pin_ms = 7, .timeout_ms = 1000};
    return tierce__worker_commands_give(commands, worker, &order, now_ns, number);
}

static uint64_t give(struct tierce__directory_id worker)
{
    uint64_t number = 0;
    ck_assert_int_eq(try(worker, &number), 0);
    ck_assert_uint_ne(number, 0);
    return number;
}

/* How many commands a report of the worker is answered with; the first has this number. */
static size_t hear(struct tierce__directory_id worker, uint64_t after, uint64_t first)
{
    struct tierce__worker_command *list[2];
    size_t count = tierce__worker_commands_next(commands, worker, after, now_ns, list, 2);
    for (size_t i = 0; i < count; i++) {
        ck_assert(i == 0 ? list[i]->number == first : list[i]->number > list[i - 1]->number);
        ck_assert_int_eq(list[i]->order.action, TIERCE__WORKER_PIN);
        ck_assert_uint_eq(list[i]->order.count, 2);
        ck_assert_uint_eq(list[i]->order.keys[1].low, 4);
        ck_assert_uint_eq(list[i]->order.pin_ms, 7);
        tierce__worker_command_release(list[i]);
    }
    return count;
}

static struct tierce__worker_report get(uint64_t number)
{
    struct tierce__worker_report report;
    ck_assert(tierce__worker_commands_get(commands, number, "g", now_ns, &report));
    return report;
}

static void end(struct tierce__directory_id worker, uint64_t number, bool is_done)
{
    const struct tierce__worker_result result = {
        .is_done = is_done, .chunks = 1, .left_out = 1, .message = "no\033room"};
    tierce__worker_commands_end(commands, worker, number, &result, now_ns);
}

START_TEST(a_command_and_its_result)
{
    open_with(0, 0);
    struct tierce__directory_id a = join("g", "a"), b = join("g", "b"), gone = {99, 1};
    struct tierce__worker_report report;
    ck_assert_uint_eq(hear(a, 0, 0), 0);
    uint64_t number = give(a);
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_WAITING);
    ck_assert_uint_eq(hear(b, 0, 0), 0);
    /* It is said again until the worker has taken it: an answer may be lost. */
    for (unsigned i = 0; i < 2; i++)
        ck_assert_uint_eq(hear(a, 0, number), 1);
    ck_assert_uint_eq(hear(a, number, 0), 0);
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_SENT);
    end(b, number, true); /* another worker's */
    end(gone, number, true);
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_SENT);
    end(a, number, true);
    end(a, number, false); /* repeated */
    report = get(number);
    ck_assert_int_eq(report.state, TIERCE__COMMAND_DONE);
    ck_assert_int_eq(report.action, TIERCE__WORKER_PIN);
    ck_assert_uint_eq(report.chunks, 1);
    ck_assert_uint_eq(report.left_out, 1);
    ck_assert_str_eq(report.worker, "a");
    ck_assert_str_eq(report.message, "no?room");
    ck_assert_uint_eq(hear(a, 0, 0), 0);
    /* Of any group, of this one, of another. */
    ck_assert(tierce__worker_commands_get(commands, number, NULL, now_ns, &report));
    ck_assert(!tierce__worker_commands_get(commands, number, "h", now_ns, &report));
    ck_assert(!tierce__worker_commands_get(commands, number + 1, NULL, now_ns, &report));
    ck_assert(!tierce__worker_commands_get(commands, 0, NULL, now_ns, &report));
    /* Several, in their order, a few for each report. */
    uint64_t first = give(a);
    for (unsigned i = 0; i < 2; i++)
        (void)give(a);
    ck_assert_uint_eq(hear(a, 0, first), 2);
    ck_assert_uint_eq(hear(a, first + 1, first + 2), 1);
    ck_assert_int_eq(try(gone, &number), TIERCE_E_MISS);
    close_all();
}
END_TEST

START_TEST(a_worker_that_does_not_answer)
{
    open_with(0, 0);
    struct tierce__directory_id a = join("g", "a"), b = join("g", "b"), c = join("g", "c");
    uint64_t late = give(a), unheard = give(b), left = give(c), again = give(c);
    ck_assert_uint_eq(hear(a, 0, late), 1);
    now_ns += 999 * MS;
    ck_assert_int_eq(get(late).state, TIERCE__COMMAND_SENT);
    now_ns += MS;
    tierce__worker_commands_tick(commands, now_ns);
    ck_assert_int_eq(get(late).state, TIERCE__COMMAND_FAILED);
    ck_assert_ptr_nonnull(strstr(get(late).message, "worker a sent no result within 1000 ms"));
    ck_assert_ptr_nonnull(strstr(get(late).message, "may still"));
    ck_assert_ptr_nonnull(strstr(get(unheard).message, "worker b sent no result"));
    ck_assert_ptr_nonnull(strstr(get(unheard).message, "no report since"));
    end(a, late, true); /* too late */
    ck_assert_int_eq(get(late).state, TIERCE__COMMAND_FAILED);
    ck_assert_uint_eq(hear(a, 0, 0), 0);
    now_ns = SECOND;
    left = give(c);
    (void)tierce__directory_leave(directory, c);
    ck_assert_int_eq(get(left).state, TIERCE__COMMAND_FAILED);
    ck_assert_ptr_nonnull(strstr(get(left).message, "worker c has left the directory"));
    c = join("g", "c");
    ck_assert_ptr_nonnull(strstr(get(left).message, "worker c has joined again"));
    again = give(c);
    ck_assert_uint_eq(hear(c, 0, again), 1);
    c = join("g", "c");
    ck_assert_uint_eq(hear(c, 0, 0), 0); /* what it was told before is not for it */
    ck_assert_ptr_nonnull(strstr(get(again).message, "worker c has joined again"));
    /* Another leader. */
    again = give(c);
    tierce__worker_commands_clear(commands);
    struct tierce__worker_report report;
    ck_assert(!tierce__worker_commands_get(commands, again, NULL, now_ns, &report));
    ck_assert_uint_eq(hear(c, 0, 0), 0);
    uint64_t other = give(c);
    ck_assert(other > again + 1000 || other < again);
    close_all();
}
END_TEST

START_TEST(bounds)
{
    open_with(8, 5);
    struct tierce__directory_id g[2] = {join("g", "a"), join("g", "b")};
    struct tierce__directory_id h[2] = {join("h", "a"), join("h", "b")};
    struct tierce__worker_report report;
    uint64_t number, of_g[5], of_h;
    for (unsigned i = 0; i < 3; i++)
        of_g[i] = give(g[0]);
    ck_assert_int_eq(try(g[0], &number), TIERCE_E_LIMIT);
    of_g[3] = give(g[1]);
    of_g[4] = give(g[1]);
    ck_assert_int_eq(try(g[1], &number), TIERCE_E_FULL); /* of its group */
    of_h = give(h[0]);
    end(h[0], of_h, true);
    /* One that has ended gives way, of the group itself: others keep theirs. */
    end(g[0], of_g[1], true);
    (void)give(g[1]);
    ck_assert(!tierce__worker_commands_get(commands, of_g[1], NULL, now_ns, &report));
    ck_assert(tierce__worker_commands_get(commands, of_h, "h", now_ns, &report));
    ck_assert_int_eq(try(g[1], &number), TIERCE_E_LIMIT);
    /* All together: the oldest that has ended gives way. */
    end(g[0], of_g[0], true);
    for (unsigned i = 0; i < 2; i++)
        (void)give(h[1]);
    (void)give(h[0]);
    ck_assert(!tierce__worker_commands_get(commands, of_g[0], NULL, now_ns, &report));
    (void)give(h[0]);
    ck_assert(!tierce__worker_commands_get(commands, of_h, NULL, now_ns, &report));
    ck_assert_int_eq(try(h[1], &number), TIERCE_E_FULL);
    close_all();
}
END_TEST

/* ---- moves to another worker ----------------------------------------------------------------- */

enum { CHUNKS = 4 };

/* Chunk i, as its holder names it, and as the directory numbers it. */
static struct tierce__worker_named named(uint32_t i)
{
    struct tierce__worker_named out = {.index = i, .bytes = 4096 * (i + 1), .has_parent = i > 0};
    uint8_t digest[TIERCE_HASH_BYTES] = {9}, hash[TIERCE_HASH_BYTES] = {(uint8_t)i};
    struct tierce_shard shard = {.tp_size = 1, .pp_size = 1};
    ck_assert_int_gt(tierce__key_text_format(out.name, digest, &shard, hash), 0);
    return out;
}

static struct tierce__directory_key number_of(uint32_t i)
{
    uint8_t digest[TIERCE_HASH_BYTES] = {9}, hash[TIERCE_HASH_BYTES] = {(uint8_t)i};
    struct tierce_shard shard = {.tp_size = 1, .pp_size = 1};
    struct tierce__chunk_number n = tierce__chunk_number(digest, &shard, hash);
    return (struct tierce__directory_key){n.high, n.low};
}

static int try_move(struct tierce__directory_id from, struct tierce__directory_id to, bool keeps,
                    uint64_t *number)
{
    struct tierce__directory_key keys[CHUNKS];
    for (uint32_t i = 0; i < CHUNKS; i++)
        keys[i] = number_of(i);
    const struct tierce__worker_order order = {.action = TIERCE__WORKER_MOVE,
                                               .keys = keys,
                                               .count = CHUNKS,
                                               .timeout_ms = 1000,
                                               .keeps = keeps,
                                               .target = to};
    return tierce__worker_commands_give(commands, from, &order, now_ns, number);
}

static uint64_t move(struct tierce__directory_id from, struct tierce__directory_id to, bool keeps)
{
    uint64_t number = 0;
    ck_assert_int_eq(try_move(from, to, keeps, &number), 0);
    return number;
}

/* The only step that the worker has to do, which the caller releases. */
static struct tierce__worker_command *step_of(struct tierce__directory_id worker,
                                              enum tierce__worker_action action)
{
    struct tierce__worker_command *list[2];
    ck_assert_uint_eq(tierce__worker_commands_next(commands, worker, 0, now_ns, list, 2), 1);
    ck_assert_int_eq(list[0]->order.action, action);
    return list[0];
}

static uint64_t number_of_step(struct tierce__directory_id worker,
                               enum tierce__worker_action action)
{
    struct tierce__worker_command *step = step_of(worker, action);
    uint64_t number = step->number;
    tierce__worker_command_release(step);
    return number;
}

/* The source names its chunks but one, and some that are not its. */
static void end_name(struct tierce__directory_id worker)
{
    struct tierce__worker_named list[] = {named(0), named(3), named(1), named(2), named(3)};
    list[1].index = 1; /* another chunk's name */
    list[3].bytes = 0;
    struct tierce__worker_result result = {
        .is_done = true, .message = "1 left", .named = list, .named_count = 5};
    tierce__worker_commands_end(commands, worker, number_of_step(worker, TIERCE__WORKER_NAME),
                                &result, now_ns);
}

static void end_fetch(struct tierce__directory_id worker, const int32_t *landed, size_t count)
{
    struct tierce__worker_result result = {.is_done = count > 0,
                                           .message = count < 3 ? "no room" : "",
                                           .landed = landed,
                                           .landed_count = count};
    struct tierce__worker_command *step = step_of(worker, TIERCE__WORKER_FETCH);
    ck_assert_uint_eq(step->order.named_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        struct tierce__worker_named want = named(i < 2 ? i : 3);
        ck_assert_str_eq(step->order.named[i].name, want.name);
        ck_assert_uint_eq(step->order.named[i].bytes, want.bytes);
        ck_assert(step->order.named[i].has_parent == want.has_parent);
    }
    tierce__worker_commands_end(commands, worker, step->number, &result, now_ns);
    tierce__worker_command_release(step);
}

static void end_drop(struct tierce__directory_id worker, bool is_done)
{
    struct tierce__worker_result result = {
        .is_done = is_done, .chunks = 2, .message = is_done ? "" : "the mode is freeze"};
    struct tierce__worker_command *step = step_of(worker, TIERCE__WORKER_DROP);
    struct tierce__directory_key want[] = {number_of(0), number_of(3)};
    ck_assert_uint_eq(step->order.count, 2);
    ck_assert_mem_eq(step->order.keys, want, sizeof(want));
    ck_assert_uint_eq(step->order.named_count, 0);
    tierce__worker_commands_end(commands, worker, step->number, &result, now_ns);
    tierce__worker_command_release(step);
}

static void assert_report(uint64_t number, enum tierce__worker_command_state state, uint64_t chunks,
                          const char *message)
{
    struct tierce__worker_report report = get(number);
    ck_assert_msg(report.state == state && report.chunks == chunks &&
                      strcmp(report.message, message) == 0,
                  "%d, %u: %s", (int)report.state, (unsigned)report.chunks, report.message);
    ck_assert_uint_eq(report.left_out, CHUNKS - chunks);
    ck_assert_int_eq(report.action, TIERCE__WORKER_MOVE);
    ck_assert_str_eq(report.worker, "a");
}

#define NAMED  "worker a: 1 left; worker a: it sent names that are not those of the chunks"
#define LANDED NAMED "; worker b: no room"

START_TEST(a_move_to_another_worker)
{
    static const int32_t landed[] = {-1, 0, 2, 3, 3, 99}, all[] = {0, 1, 3};
    open_with(0, 0);
    struct tierce__directory_id a = join("g", "a"), b = join("g", "b"), gone = {99, 1};
    uint64_t number = move(a, b, false);
    struct tierce__worker_report report;
    ck_assert_uint_eq(tierce__worker_commands_next(commands, b, 0, now_ns, NULL, 0), 0);
    end_name(a);
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_SENT);
    uint64_t step = number_of_step(b, TIERCE__WORKER_FETCH);
    ck_assert_uint_gt(step, number);
    ck_assert(!tierce__worker_commands_get(commands, step, "g", now_ns, &report));
    end(a, step, true); /* not its step */
    end_fetch(b, landed, 2);
    /* 0 landed; 2 was not named */
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_SENT);
    struct tierce__worker_command *drop = step_of(a, TIERCE__WORKER_DROP);
    ck_assert_uint_eq(drop->order.count, 1);
    const struct tierce__worker_result dropped = {.is_done = true, .chunks = 1, .message = ""};
    tierce__worker_commands_end(commands, a, drop->number, &dropped, now_ns);
    tierce__worker_command_release(drop);
    assert_report(number, TIERCE__COMMAND_DONE, 1, LANDED);
    /* A copy, and one of which nothing lands: nothing is dropped. */
    number = move(a, b, true);
    end_name(a);
    end_fetch(b, all, 3);
    assert_report(number, TIERCE__COMMAND_DONE, 3, NAMED);
    number = move(a, b, false);
    end_name(a);
    end_fetch(b, NULL, 0);
    assert_report(number, TIERCE__COMMAND_FAILED, 0, LANDED);
    ck_assert_uint_eq(hear(a, 0, 0) + hear(b, 0, 0), 0);
    /* The source does not drop them. */
    number = move(a, b, false);
    end_name(a);
    end_fetch(b, landed, 6);
    end_drop(a, false);
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_FAILED);
    ck_assert_ptr_nonnull(strstr(get(number).message, "worker a: the mode is freeze; 2 chunks "
                                                      "were copied to worker b; worker a may "
                                                      "still hold them"));
    ck_assert_int_eq(try_move(a, gone, false, &number), -ESRCH);
    ck_assert_int_eq(try_move(gone, b, false, &number), TIERCE_E_MISS);
    close_all();
}
END_TEST

/* A worker leaves, or is late, at each step. */
START_TEST(a_move_that_ends_half_way)
{
    static const int32_t landed[] = {0, 3};
    open_with(0, 0);
    struct tierce__directory_id a = join("g", "a"), b = join("g", "b");
    uint64_t number = move(a, b, false);
    end_name(a);
    now_ns += SECOND;
    ck_assert_int_eq(get(number).state, TIERCE__COMMAND_FAILED);
    ck_assert_str_eq(get(number).message,
                     "worker b sent no result within 1000 ms: it has sent no report since the "
                     "command was given; no chunk was removed from worker a");
    number = move(a, b, false);
    end_name(a);
    (void)tierce__directory_leave(directory, b);
    ck_assert_str_eq(get(number).message,
                     "worker b has left the directory, or was silent for too long, before it sent "
                     "a result; no chunk was removed from worker a");
    b = join("g", "b");
    number = move(a, b, false);
    end_name(a);
    end_fetch(b, landed, 2);
    (void)number_of_step(a, TIERCE__WORKER_DROP);
    now_ns += SECOND;
    ck_assert_str_eq(get(number).message,
                     "worker a sent no result within 1000 ms: the worker received the command "
                     "and may still execute it; 2 chunks were copied to worker b; worker a may "
                     "still hold them");
    ck_assert_uint_eq(get(number).chunks, 2);
    number = move(a, b, false);
    end_name(a);
    end_fetch(b, landed, 2);
    (void)tierce__directory_leave(directory, a);
    ck_assert_ptr_nonnull(strstr(get(number).message, "worker a has left the directory"));
    ck_assert_ptr_nonnull(strstr(get(number).message, "2 chunks were copied to worker b"));
    /* No memory for the next step. */
    a = join("g", "a");
    number = move(a, b, false);
    uint64_t step = number_of_step(a, TIERCE__WORKER_NAME);
    struct tierce__worker_named list[] = {named(0)};
    struct tierce__worker_result result = {
        .is_done = true, .message = "", .named = list, .named_count = 1};
    tierce__alloc_fail_nth(1);
    tierce__worker_commands_end(commands, a, step, &result, now_ns);
    (void)tierce__alloc_fail_nth(0);
    assert_report(number, TIERCE__COMMAND_FAILED, 0,
                  "the manager is out of memory; no chunk was removed from worker a");
    close_all();
}
END_TEST

START_TEST(bound_of_moves)
{
    struct tierce__directory_id workers[22];
    static const char *const groups[] = {"a", "b", "c", "d", "e"}; /* each has 12 to 15 moves */
    char name[8];
    uint64_t number;
    open_with(0, 0);
    for (unsigned i = 0; i < 22; i++) {
        snprintf(name, sizeof(name), "w%u", i);
        workers[i] = join(groups[i % 5], name);
    }
    unsigned moves = 0;
    for (unsigned i = 0; i < 66; i++)
        moves += try_move(workers[i % 22], workers[(i + 1) % 22], true, &number) == 0;
    ck_assert_uint_eq(moves, TIERCE__WORKER_MOVES_OPEN); /* of 3 for each worker */
    ck_assert_int_eq(try_move(workers[21], workers[0], true, &number), -EAGAIN);
    (void)give(workers[21]); /* other commands are given */
    now_ns += SECOND;
    tierce__worker_commands_tick(commands, now_ns);
    ck_assert_int_eq(try_move(workers[21], workers[1], true, &number), 0);
    close_all();
}
END_TEST

/* A group with all the moves that it may have leaves others theirs. */
START_TEST(bound_of_a_groups_moves)
{
    struct tierce__directory_id g[6], h[2] = {{0}};
    char name[8];
    uint64_t number;
    open_with(0, 0);
    h[0] = join("h", "a");
    h[1] = join("h", "b");
    for (unsigned i = 0; i < 6; i++) {
        snprintf(name, sizeof(name), "w%u", i);
        g[i] = join("g", name);
    }
    unsigned moves = 0;
    for (unsigned i = 0; i < 18; i++)
        moves += try_move(g[i % 6], g[(i + 1) % 6], true, &number) == 0;
    ck_assert_uint_eq(moves, TIERCE__WORKER_GROUP_MOVES_OPEN); /* of 3 for each worker */
    ck_assert_int_eq(try_move(g[5], g[0], true, &number), -EBUSY);
    (void)give(g[5]); /* other commands are given */
    (void)move(h[0], h[1], true);
    now_ns += SECOND;
    tierce__worker_commands_tick(commands, now_ns);
    (void)move(g[5], g[0], true);
    close_all();
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    open_with(0, 0);
    tierce__worker_commands_destroy(commands);
    for (uint64_t nth = 1;; nth++) {
        struct tierce__worker_commands_opts opts = {.size = sizeof(opts), .directory = directory};
        tierce__alloc_fail_nth(nth);
        int rc = tierce__worker_commands_create(&commands, &opts);
        (void)tierce__alloc_fail_nth(0);
        if (rc == 0)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
    }
    struct tierce__directory_id a = join("g", "a");
    uint64_t number;
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(try(a, &number), -ENOMEM);
    (void)tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(hear(a, 0, 0), 0);
    close_all();
}
END_TEST

CHECK_MAIN("worker commands",
           .tests = {a_command_and_its_result, a_worker_that_does_not_answer, bounds,
                     a_move_to_another_worker, a_move_that_ends_half_way, bound_of_moves,
                     bound_of_a_groups_moves, each_allocation_fails_once})
