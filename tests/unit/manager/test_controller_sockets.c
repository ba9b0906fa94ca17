/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/threads/threads.h"
#include "check_main.h"
#include "manager/lmcache/controller_commands.h"
#include "manager/lmcache/controller_sockets.h"
#include "manager/manager_private.h"
#include "running_manager.h"
#include "server_process.h"
#include "silent_log.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <zmq.h>

/* The sockets of LMCache's controller, and orders to workers, over loopback. */

static struct tierce__holdings *holdings;
static struct tierce__controller *controller;
static struct tierce__controller_sockets *sockets;
static void *context;
static uint16_t pull_port, reply_port;
static atomic_bool is_leading;

static bool leads(void *arg)
{
    (void)arg;
    return atomic_load(&is_leading);
}

static void setup(void)
{
    char why[256] = "";
    atomic_store(&is_leading, true);
    context = zmq_ctx_new();
    pull_port = server_free_port();
    reply_port = server_free_port();
    ck_assert_int_eq(tierce__holdings_create(&holdings,
                                             &(struct tierce__holdings_opts){
                                                 .size = sizeof(struct tierce__holdings_opts)}),
                     0);
    ck_assert_int_eq(tierce__controller_create(&controller,
                                               &(struct tierce__controller_opts){
                                                   .size = sizeof(struct tierce__controller_opts),
                                                   .holdings = holdings,
                                                   .group = "g",
                                                   .heartbeat_url = ""}),
                     0);
    int rc =
        tierce__controller_sockets_start(&sockets,
                                         &(struct tierce__controller_sockets_opts){
                                             .size = sizeof(struct tierce__controller_sockets_opts),
                                             .controller = controller,
                                             .host = "127.0.0.1",
                                             .pull_port = pull_port,
                                             .reply_port = reply_port,
                                             .silence_ms = 40,
                                             .leads = leads},
                                         why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void teardown(void)
{
    tierce__controller_sockets_stop(sockets);
    tierce__controller_destroy(controller);
    tierce__holdings_destroy(holdings);
    zmq_ctx_term(context);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void *open_socket(int type, uint16_t port)
{
    char endpoint[64];
    int zero = 0, time_ms = 30000;
    void *socket = zmq_socket(context, type);
    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", port);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &time_ms, sizeof(time_ms));
    ck_assert_int_eq(zmq_connect(socket, endpoint), 0);
    return socket;
}

/* Asks, and checks that the answer holds a text. */
static void ask(void *dealer, const char *json, const char *expected)
{
    char answer[1024];
    ck_assert_int_eq(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(dealer, json, strlen(json), 0), 0);
    ck_assert_int_eq(zmq_recv(dealer, answer, sizeof(answer), 0), 0);
    int bytes = zmq_recv(dealer, answer, sizeof(answer), 0);
    ck_assert_int_gt(bytes, 0);
    ck_assert_msg(memmem(answer, (size_t)bytes, expected, strlen(expected)) != NULL, "%.*s", bytes,
                  answer);
}

#define REGISTER                                                                                   \
    "{\"type\":\"RegisterMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"ip\":"                      \
    "\"h\",\"port\":1,"                                                                            \
    "\"peer_init_url\":\"p:1\"}"
#define FIND                                                                                       \
    "{\"type\":\"BatchedP2PLookupMsg\",\"hashes\":[1],\"instance_id\":\"b\","                      \
    "\"worker_id\":0}"
#define CHANGE                                                                                     \
    "{\"type\":\"BatchedKVOperationMsg\",\"instance_id\":\"a\",\"worker_id\":0,"                   \
    "\"location\":\"l\","                                                                          \
    "\"operations\":[{\"op_type\":\"admit\",\"key\":1,\"seq_num\":0}]}"

START_TEST(reports_and_requests)
{
    struct tierce__controller_stats stats;
    uint64_t until_ns = tierce__deadline_in_ms(30000);
    void *dealer = open_socket(ZMQ_DEALER, reply_port), *push = open_socket(ZMQ_PUSH, pull_port);
    ask(dealer, REGISTER, "RegisterRetMsg");
    ck_assert_int_ge(zmq_send(push, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(push, "junk", 4, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(push, CHANGE, strlen(CHANGE), 0), 0);
    do
        tierce__controller_stats(controller, &stats);
    while (stats.operations == 0 && tierce__now_ns() < until_ns);
    ck_assert_uint_eq(stats.operations, 1);
    ck_assert_uint_eq(stats.invalid, 2);
    ck_assert_uint_eq(stats.messages, 4);
    ask(dealer, FIND, "p:1");
    atomic_store(&is_leading, false);
    ask(dealer, FIND, "does not lead");
    zmq_close(push);
    zmq_close(dealer);
}
END_TEST

/* When the worker was last kept in the directory; 0: it is not there. */
static uint64_t kept_at(void)
{
    struct tierce__directory_about about;
    uint32_t from = 0;
    return tierce__directory_next(tierce__holdings_directory(holdings), &from, &about)
               ? about.seen_ns
               : 0;
}

/* A directory that removes workers after less than a second: ticks come in time for it. */
START_TEST(ticks_follow_the_silence_of_the_directory)
{
    uint64_t until_ns = tierce__deadline_in_ms(15000), last_ns = 0;
    unsigned times = 0;
    void *dealer = open_socket(ZMQ_DEALER, reply_port), *push = open_socket(ZMQ_PUSH, pull_port);
    ask(dealer, REGISTER, "RegisterRetMsg");
    ck_assert_int_ge(zmq_send(push, CHANGE, strlen(CHANGE), 0), 0);
    while (times < 20 && tierce__now_ns() < until_ns) {
        uint64_t at_ns = kept_at();
        times += at_ns != last_ns;
        last_ns = at_ns;
        sched_yield();
    }
    ck_assert_uint_eq(times, 20);
    zmq_close(push);
    zmq_close(dealer);
}
END_TEST

START_TEST(a_port_in_use)
{
    char why[256];
    struct tierce__controller_sockets *second;
    int rc =
        tierce__controller_sockets_start(&second,
                                         &(struct tierce__controller_sockets_opts){
                                             .size = sizeof(struct tierce__controller_sockets_opts),
                                             .controller = controller,
                                             .host = "127.0.0.1",
                                             .reply_port = reply_port,
                                             .leads = leads},
                                         why);
    ck_assert_int_eq(rc, -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(why, "lmcache.reply_port"));
}
END_TEST

START_TEST(a_start_without_memory)
{
    char why[256];
    struct tierce__controller_sockets *none;
    const struct tierce__controller_sockets_opts opts = {
        .size = sizeof(opts), .controller = controller, .host = "127.0.0.1", .leads = leads};
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__controller_sockets_start(&none, &opts, why), -ENOMEM);
    ck_assert_uint_gt(tierce__alloc_fail_nth(0), 0);
    ck_assert_str_eq(why, "no memory");
}
END_TEST

/* ---- orders
 * ----------------------------------------------------------------------------------
 */

static atomic_int done_count;

static void note_done(struct tierce__controller_command *command)
{
    (void)command;
    atomic_fetch_add(&done_count, 1);
}

static void aim(struct tierce__controller_target *target, const char *host, uint16_t port)
{
    *target = (struct tierce__controller_target){.port = port};
    snprintf(target->host, sizeof(target->host), "%s", host);
    tierce__line_put(&target->frame, "order");
}

static void wait_done(int count)
{
    uint64_t until_ns = tierce__deadline_in_ms(30000);
    while (atomic_load(&done_count) < count && tierce__now_ns() < until_ns)
        sched_yield();
    ck_assert_int_eq(atomic_load(&done_count), count);
}

/* One worker answers, one with junk, one with nothing, and one has no address. */
START_TEST(orders)
{
    static const char *const answers[] = {"{\"type\":\"ClearWorkerRetMsg\",\"num_tokens\":7}",
                                          "junk", ""};
    enum { ANSWERS = 3, ALL };
    struct tierce__controller_commands *commands;
    struct tierce__controller_target targets[ALL];
    struct tierce__controller_command command = {
        .targets = targets, .count = ALL, .done = note_done};
    void *workers[ANSWERS];
    atomic_store(&done_count, 0);
    for (unsigned i = 0; i < ANSWERS; i++) {
        char endpoint[64];
        uint16_t port = server_free_port();
        workers[i] = zmq_socket(context, ZMQ_REP);
        snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", port);
        ck_assert_int_eq(zmq_bind(workers[i], endpoint), 0);
        aim(&targets[i], "127.0.0.1", port);
    }
    aim(&targets[ANSWERS], "no host", 1);
    ck_assert_int_eq(tierce__controller_commands_start(&commands, 60000, 4096), 0);
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &command), 0);
    for (unsigned i = 0; i < ANSWERS; i++) {
        char order[16];
        ck_assert_int_eq(zmq_recv(workers[i], order, sizeof(order), 0), 5);
        ck_assert_int_ge(zmq_send(workers[i], answers[i], strlen(answers[i]), 0), 0);
    }
    wait_done(1);
    ck_assert_int_eq(targets[0].state, TIERCE__CONTROLLER_ANSWERED);
    ck_assert_int_eq(targets[0].result, 7);
    ck_assert_int_eq(targets[1].state, TIERCE__CONTROLLER_STRANGE);
    ck_assert_int_eq(targets[2].state, TIERCE__CONTROLLER_STRANGE);
    ck_assert_int_eq(targets[ANSWERS].state, TIERCE__CONTROLLER_AWAY);
    ck_assert(!command.is_cut);
    tierce__controller_commands_stop(commands);
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &command), TIERCE_E_CLOSED);
    tierce__controller_commands_destroy(commands);
    for (unsigned i = 0; i < ANSWERS; i++)
        zmq_close(workers[i]);
    for (unsigned i = 0; i < ALL; i++)
        tierce__line_clear(&targets[i].frame);
}
END_TEST

START_TEST(a_silent_worker)
{
    struct tierce__controller_commands *commands;
    struct tierce__controller_target target;
    struct tierce__controller_command command = {.targets = &target, .count = 1, .done = note_done};
    atomic_store(&done_count, 0);
    aim(&target, "127.0.0.1", server_free_port()); /* nobody listens */
    ck_assert_int_eq(tierce__controller_commands_start(&commands, 50, 4096), 0);
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &command), 0);
    wait_done(1);
    ck_assert_int_eq(target.state, TIERCE__CONTROLLER_WAITS);
    ck_assert_str_eq(target.error, "it does not answer");
    tierce__controller_commands_stop(commands);
    tierce__controller_commands_destroy(commands);
    tierce__line_clear(&target.frame);
}
END_TEST

START_TEST(orders_have_a_bound_and_end_with_the_manager)
{
    enum { MANY = 64 };
    static struct tierce__controller_target targets[MANY + 1];
    static struct tierce__controller_command list[MANY + 1];
    struct tierce__controller_commands *commands;
    uint16_t port = server_free_port(); /* nobody listens */
    atomic_store(&done_count, 0);
    ck_assert_int_eq(tierce__controller_commands_start(&commands, 600000, 4096), 0);
    for (unsigned i = 0; i <= MANY; i++) {
        aim(&targets[i], "127.0.0.1", port);
        list[i] = (struct tierce__controller_command){
            .targets = &targets[i], .count = 1, .done = note_done};
        ck_assert_int_eq(tierce__controller_commands_submit(commands, &list[i]),
                         i < MANY ? 0 : TIERCE_E_LIMIT);
    }
    tierce__controller_commands_stop(commands);
    ck_assert_int_eq(atomic_load(&done_count), MANY);
    for (unsigned i = 0; i <= MANY; i++) {
        ck_assert(i == MANY || list[i].is_cut);
        tierce__line_clear(&targets[i].frame);
    }
    tierce__controller_commands_destroy(commands);
}
END_TEST

/* The messages of orders in progress have a bound together. */
START_TEST(messages_of_orders_have_a_bound)
{
    struct tierce__controller_commands *commands;
    static struct tierce__controller_target targets[3];
    static struct tierce__controller_command list[3];
    uint16_t port = server_free_port(); /* nobody listens */
    atomic_store(&done_count, 0);
    ck_assert_int_eq(tierce__controller_commands_start(&commands, 600000, 4096), 0);
    for (unsigned i = 0; i < 3; i++) {
        aim(&targets[i], "127.0.0.1", port);
        list[i] = (struct tierce__controller_command){
            .targets = &targets[i], .count = 1, .done = note_done};
    }
    while (targets[0].frame.bytes < 4096 - 5) /* the third order has 5 */
        tierce__line_put(&targets[0].frame, "x");
    tierce__line_put(&targets[1].frame, "x");
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &list[0]), 0);
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &list[1]), TIERCE_E_LIMIT);
    ck_assert_str_eq(list[1].limit, "commands with 256 MiB of messages");
    /* Messages that are not written yet count by their bound, until it is given back. */
    struct tierce__controller_command planned = {.count = 1, .frame_bytes = 6};
    ck_assert_int_eq(tierce__controller_commands_reserve(commands, &planned), TIERCE_E_LIMIT);
    planned.frame_bytes = 5;
    ck_assert_int_eq(tierce__controller_commands_reserve(commands, &planned), 0);
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &list[2]), TIERCE_E_LIMIT);
    tierce__controller_commands_cancel(commands, &planned);
    tierce__controller_commands_cancel(commands, &planned); /* once */
    list[2].frame_bytes = 5;
    ck_assert_int_eq(tierce__controller_commands_reserve(commands, &list[2]), 0);
    ck_assert_int_eq(tierce__controller_commands_submit(commands, &list[2]), 0);
    tierce__controller_commands_stop(commands);
    ck_assert_int_eq(atomic_load(&done_count), 2);
    for (unsigned i = 0; i < 3; i++)
        tierce__line_clear(&targets[i].frame);
    tierce__controller_commands_destroy(commands);
}
END_TEST

/* ---- over HTTP ------------------------------------------------------------------------------- */

/* Sends a request, and reads its answer: JSON without another }, or nothing. */
static void talk(int fd, const char *path, const char *json, char *answer, size_t size)
{
    char text[1024];
    size_t used = 0;
    int length = snprintf(text, sizeof(text),
                          "POST %s HTTP/1.1\r\nHost: localhost\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                          path, strlen(json), json);
    ssize_t got = send(fd, text, (size_t)length, MSG_NOSIGNAL);
    memset(answer, 0, size);
    while (got > 0 && used < size - 1 && strchr(answer, '}') == NULL) {
        got = recv(fd, answer + used, size - 1 - used, 0);
        used += got > 0 ? (size_t)got : 0;
    }
}

/* The status of the answer, while the nth allocation of the request fails; 0: there is none. */
static unsigned post(uint16_t port, const char *path, const char *json, uint64_t nth,
                     uint64_t *made)
{
    char answer[2048], why[256] = "";
    const struct timeval limit = {.tv_usec = 500000};
    unsigned status = 0;
    int fd = -1;
    ck_assert_msg(tierce__stream_connect(&fd, "127.0.0.1", port, TIERCE__DEADLINE_NEVER, why,
                                         sizeof(why)) == 0,
                  "%s", why);
    ck_assert_int_eq(fcntl(fd, F_SETFL, 0), 0); /* blocks */
    talk(fd, "/health", "{}", answer, sizeof(answer));
    if (nth > 0) /* the server may lose the request, and it is not waited for */
        ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    tierce__alloc_fail_nth(nth);
    talk(fd, path, json, answer, sizeof(answer));
    *made = tierce__alloc_fail_nth(0);
    close(fd);
    (void)sscanf(answer, "HTTP/1.1 %u", &status);
    return status;
}

/* Two workers, at addresses that cannot be used: orders to them end at once. */
static void add_workers(struct running_manager *m, const char *instance)
{
    char frame[200];
    for (unsigned worker = 0; worker < 2; worker++) {
        struct tierce__line answer = {0};
        snprintf(frame, sizeof(frame),
                 "{\"type\":\"RegisterMsg\",\"instance_id\":\"%s\",\"worker_id\":%u,"
                 "\"ip\":\"-\",\"port\":1,\"peer_init_url\":null}",
                 instance, worker);
        (void)tierce__controller_take(m->manager->lmcache.controller, frame, strlen(frame), true,
                                      tierce__now_ns(), &answer);
        tierce__line_clear(&answer);
    }
}

/* The order fails, and the next one is carried out. */
START_TEST(each_allocation_of_an_order_fails_once)
{
    static const char health[] = "{\"instance_id\":\"a\"}";
    static const char move[] = "{\"old_position\":[\"a\",\"LocalCPUBackend\"],"
                               "\"new_position\":[\"b\",\"LocalCPUBackend\"],\"tokens\":[1,2]}";
    struct running_manager m;
    char argument[64];
    uint64_t made;
    uint16_t port = server_free_port();
    silence_log();
    snprintf(argument, sizeof(argument), "--lmcache.http_port=%u", port);
    running_manager_start(&m, (const char *[]){argument, NULL});
    add_workers(&m, "a");
    add_workers(&m, "b");
    WAIT_FOR(post(port, "/health", health, 0, &made) == 200);
    bool is_whole = false; /* none of its allocations failed */
    for (uint64_t nth = 1; !is_whole && nth < 64; nth++) {
        unsigned status = post(port, "/health", health, nth, &made);
        is_whole = status == 200 && made < nth;
        ck_assert_msg(status == 0 || status == 200 || status == 500 || status == 503, "%u", status);
    }
    WAIT_FOR(post(port, "/health", health, 0, &made) == 200);
    WAIT_FOR(post(port, "/move", move, 0, &made) == 409); /* no worker of b has a peer */
    running_manager_stop(&m);
}
END_TEST

CHECK_MAIN("controller sockets", .seconds = 120, .setup = setup, .teardown = teardown,
           .tests = {reports_and_requests, ticks_follow_the_silence_of_the_directory, a_port_in_use,
                     a_start_without_memory, messages_of_orders_have_a_bound, orders,
                     a_silent_worker, orders_have_a_bound_and_end_with_the_manager,
                     each_allocation_of_an_order_fails_once})
