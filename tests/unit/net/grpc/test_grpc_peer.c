/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "server_process.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/grpc/grpc_client.h"
#include "net/server/serve.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

/* The client against a server in a process of its own, which is stopped and killed, and which takes
 * no part in failing allocations. */

enum { CALL_MS = 100, LONG_MS = 60000, CALLS = 100 };

static pid_t server;
static uint16_t port;
static char folder[] = "test_grpc_peer.XXXXXX";
static struct tierce__grpc_client *client;

/* ---- the server ------------------------------------------------------------------------------ */

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    tierce__call_reply(call,
                       &(struct tierce__reply){.body = info->body, .bytes = info->body_bytes});
}

static void show_token(void *arg, struct tierce__call *call)
{
    (void)arg;
    const char *text = tierce__call_header(call, "authorization");
    struct tierce__reply reply = {.status = TIERCE__GRPC_UNAUTHENTICATED, .message = "no token"};
    if (text != NULL)
        reply = (struct tierce__reply){.body = text, .bytes = strlen(text)};
    tierce__call_reply(call, &reply);
}

/* Until nobody waits any more. */
static void wait_on_worker(void *arg, struct tierce__call *call)
{
    if (!tierce__call_info(call)->is_deferred) {
        tierce__call_defer(call);
        return;
    }
    while (!tierce__call_is_over(call))
        usleep(1000);
    echo(arg, call);
}

static _Noreturn void be_server(int out, const struct tierce__tls *tls)
{
    static const struct tierce__route routes[] = {{"/s/echo", NULL, echo, NULL},
                                                  {"/s/token", NULL, show_token, NULL},
                                                  {"/s/wait", NULL, wait_on_worker, NULL}};
    char why[256];
    struct tierce__server *started;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rc = tierce__server_start(
        &started,
        &(struct tierce__server_opts){
            .size = sizeof(struct tierce__server_opts),
            .listeners = &(struct tierce__listener){.host = "127.0.0.1",
                                                    .tls = *tls,
                                                    .routes = routes,
                                                    .route_count = CHECK_COUNT(routes)},
            .listener_count = 1,
            .loops = 1},
        why);
    port = rc == 0 ? tierce__server_port(started, 0) : 0;
    if (write(out, &port, sizeof(port)) != (ssize_t)sizeof(port))
        _exit(1);
    for (;;)
        pause();
}

static void start_server(const struct tierce__tls *tls)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    server = fork();
    if (server == 0)
        be_server(ends[1], tls);
    ck_assert_int_gt(server, 0);
    ck_assert_int_eq(read(ends[0], &port, sizeof(port)), sizeof(port));
    ck_assert_uint_ne(port, 0);
    close(ends[0]);
    close(ends[1]);
}

static void start_plain_server(void)
{
    start_server(&(struct tierce__tls){0});
}

static void end_server(void)
{
    if (server > 0) {
        kill(server, SIGKILL);
        ck_assert_int_eq(waitpid(server, NULL, 0), server);
    }
    server = 0;
}

/* Returns when all its threads have stopped. */
static void stop_server(void)
{
    int status;
    ck_assert_int_eq(kill(server, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(server, &status, WUNTRACED), server);
    ck_assert(WIFSTOPPED(status));
}

static void teardown(void)
{
    tierce__grpc_client_close(client);
    end_server();
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int open_client(struct tierce__grpc_client_opts opts)
{
    char why[256];
    opts.size = sizeof(opts);
    opts.host = opts.tls ? "localhost" : "127.0.0.1";
    opts.port = port;
    opts.lazy = true;
    int rc = tierce__grpc_client_open(&client, &opts, why);
    ck_assert_msg(rc == 0 || rc == -ENOMEM, "%d: %s", rc, why);
    return rc;
}

static uint32_t ask(const char *path, const char *token, uint32_t timeout_ms,
                    struct tierce__grpc_answer *answer)
{
    struct tierce__grpc_request request = {.path = path,
                                           .body = "hello",
                                           .bytes = 5,
                                           .timeout_ms = timeout_ms,
                                           .header_name = token != NULL ? "authorization" : NULL,
                                           .header_value = token};
    ck_assert_int_eq(tierce__grpc_client_unary(client, &request, answer), 0);
    return answer->status;
}

static uint32_t status_of(const char *path, uint32_t timeout_ms)
{
    struct tierce__grpc_answer answer;
    uint32_t status = ask(path, NULL, timeout_ms, &answer);
    tierce__grpc_answer_fini(&answer);
    return status;
}

/* ---- a server that is stopped, and one that is killed ------------------------------------------
 */

START_TEST(test_a_stopped_server)
{
    ck_assert_int_eq(open_client((struct tierce__grpc_client_opts){0}), 0);
    ck_assert_uint_eq(status_of("/s/echo", LONG_MS), TIERCE__GRPC_OK);
    stop_server();
    uint64_t begun_ns = tierce__now_ns();
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(status_of("/s/echo", CALL_MS), TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert_uint_lt(tierce__now_ns() - begun_ns, LONG_MS / 2 * TIERCE__MS_NS);
    ck_assert_int_eq(kill(server, SIGCONT), 0);
    ck_assert_uint_eq(status_of("/s/echo", LONG_MS), TIERCE__GRPC_OK);
}
END_TEST

struct tally {
    unsigned done, lost;
    char message[256];
};

static void count_lost(void *arg, struct tierce__grpc_answer *answer)
{
    struct tally *tally = arg;
    tally->done++;
    tally->lost += answer->status == TIERCE__GRPC_UNAVAILABLE && !answer->unsent;
    memcpy(tally->message, answer->message, sizeof(tally->message));
}

START_TEST(test_killed_among_100_calls)
{
    struct tally tally = {0};
    struct tierce__grpc_answer answer;
    struct tierce__grpc_request request = {
        .path = "/s/wait", .body = "abc", .bytes = 3, .timeout_ms = LONG_MS};
    ck_assert_int_eq(open_client((struct tierce__grpc_client_opts){0}), 0);
    for (int i = 0; i < CALLS; i++)
        ck_assert_int_eq(tierce__grpc_client_start(client, &request, count_lost, &tally), 0);
    ck_assert_uint_eq(status_of("/s/echo", LONG_MS), TIERCE__GRPC_OK); /* they are sent */
    ck_assert_uint_eq(tally.done, 0);
    end_server();
    while (tierce__grpc_client_poll(client, LONG_MS) > 0) {
    }
    ck_assert_uint_eq(tally.done, CALLS);
    ck_assert_uint_eq(tally.lost, CALLS);
    ck_assert_ptr_nonnull(strstr(tally.message, "127.0.0.1:"));
    ck_assert_uint_eq(ask("/s/echo", NULL, LONG_MS, &answer), TIERCE__GRPC_UNAVAILABLE);
    ck_assert(answer.unsent);
    ck_assert_ptr_nonnull(strstr(answer.message, "Connection refused"));
}
END_TEST

/* ---- headers --------------------------------------------------------------------------------- */

START_TEST(test_a_token_for_each_call)
{
    static const char *const tokens[] = {"Bearer first", "Bearer second"};
    struct tierce__grpc_answer answer;
    ck_assert_int_eq(open_client((struct tierce__grpc_client_opts){0}), 0);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(ask("/s/token", tokens[i], LONG_MS, &answer), TIERCE__GRPC_OK);
        ck_assert_uint_eq(answer.bytes, strlen(tokens[i]));
        ck_assert_mem_eq(answer.body, tokens[i], answer.bytes);
        tierce__grpc_answer_fini(&answer);
        ck_assert_uint_eq(ask("/s/token", NULL, LONG_MS, &answer), TIERCE__GRPC_UNAUTHENTICATED);
        ck_assert_str_eq(answer.message, "no token");
    }
}
END_TEST

/* ---- TLS ------------------------------------------------------------------------------------- */

#define KEY "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "

static char ca_file[64], other_file[64];

static void start_tls_server(void)
{
    char command[1024], certificate[64], key[64];
    temp_folder_make(folder);
    snprintf(
        command, sizeof(command),
        "cd %s && exec >/dev/null 2>&1 && " KEY
        "-x509 -keyout other.key -out other.pem -days 2 -subj /CN=other && " KEY
        "-x509 -keyout ca.key -out ca.pem -days 2 -subj /CN=ca && " KEY
        "-keyout server.key -out server.csr -subj /CN=localhost && "
        "echo subjectAltName=DNS:localhost >ext && openssl x509 -req -in server.csr -CA ca.pem "
        "-CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.pem",
        folder);
    ck_assert_int_eq(system(command), 0);
    snprintf(ca_file, sizeof(ca_file), "%s/ca.pem", folder);
    snprintf(other_file, sizeof(other_file), "%s/other.pem", folder);
    snprintf(certificate, sizeof(certificate), "%s/server.pem", folder);
    snprintf(key, sizeof(key), "%s/server.key", folder);
    start_server(&(struct tierce__tls){.certificate = certificate, .key = key});
}

static void teardown_tls(void)
{
    teardown();
    temp_folder_remove(folder);
}

START_TEST(test_tls)
{
    struct tierce__grpc_answer answer;
    ck_assert_int_eq(
        open_client((struct tierce__grpc_client_opts){.tls = true, .ca_file = ca_file}), 0);
    ck_assert_uint_eq(ask("/s/token", "Bearer secret", LONG_MS, &answer), TIERCE__GRPC_OK);
    ck_assert_mem_eq(answer.body, "Bearer secret", 13);
    tierce__grpc_answer_fini(&answer);
    stop_server();
    ck_assert_uint_eq(status_of("/s/echo", CALL_MS), TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert_int_eq(kill(server, SIGCONT), 0);
    ck_assert_uint_eq(status_of("/s/echo", LONG_MS), TIERCE__GRPC_OK);
}
END_TEST

/* The reason says what is wrong with a certificate. */
START_TEST(test_certificates)
{
    static const struct {
        const char *ca, *name, *reason;
    } cases[] = {{other_file, NULL, "certificate"}, {ca_file, "another.name", "hostname mismatch"}};
    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        struct tierce__grpc_answer answer;
        ck_assert_int_eq(open_client((struct tierce__grpc_client_opts){
                             .tls = true, .ca_file = cases[i].ca, .server_name = cases[i].name}),
                         0);
        ck_assert_uint_eq(ask("/s/echo", NULL, LONG_MS, &answer), TIERCE__GRPC_UNAVAILABLE);
        ck_assert(answer.unsent);
        ck_assert_msg(strstr(answer.message, cases[i].reason) != NULL, "%s", answer.message);
        ck_assert_msg(strstr(answer.message, "localhost:") != NULL, "%s", answer.message);
        tierce__grpc_client_close(client);
        client = NULL;
    }
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static void count_ok(void *arg, struct tierce__grpc_answer *answer)
{
    struct tally *tally = arg;
    tally->done++;
    tally->lost += answer->status != TIERCE__GRPC_OK;
}

/* Returns how many allocations a client with five calls at once takes. */
static uint64_t live_with(uint64_t failing, const struct tierce__grpc_client_opts *opts)
{
    struct tally tally = {0};
    struct tierce__grpc_request request = {
        .path = "/s/echo", .body = "hello", .bytes = 5, .timeout_ms = LONG_MS};
    unsigned started = 0;
    (void)tierce__alloc_fail_nth(failing);
    if (open_client(*opts) == 0) {
        for (int i = 0; i < 5; i++) {
            int rc = tierce__grpc_client_start(client, &request, count_ok, &tally);
            ck_assert(rc == 0 || rc == -ENOMEM);
            started += rc == 0;
        }
        while (tierce__grpc_client_poll(client, LONG_MS) > 0) {
        }
    }
    uint64_t made = tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(tally.done, started);
    ck_assert(failing > 0 || (started == 5 && tally.lost == 0));
    tierce__grpc_client_close(client);
    client = NULL;
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    return made;
}

static void fail_each(const struct tierce__grpc_client_opts *opts)
{
    uint64_t count = live_with(0, opts);
    ck_assert_uint_gt(count, 10);
    for (uint64_t nth = 1; nth <= count; nth++)
        live_with(nth, opts);
}

START_TEST(test_every_allocation)
{
    fail_each(&(struct tierce__grpc_client_opts){.connections = 2});
}
END_TEST

START_TEST(test_every_allocation_with_tls)
{
    fail_each(&(struct tierce__grpc_client_opts){.tls = true, .ca_file = ca_file});
}
END_TEST

/* ---- one thread drives it, others wake it ------------------------------------------------------
 */

enum { POSTERS = 4, POSTS = 250 };

static struct {
    pthread_mutex_t mutex;
    unsigned posted; /* calls to start */
    unsigned ok;     /* written by the driver alone */
    int wake;
} desk = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *post(void *arg)
{
    const uint64_t one = 1;
    for (int i = 0; i < POSTS; i++) {
        pthread_mutex_lock(&desk.mutex);
        desk.posted++;
        pthread_mutex_unlock(&desk.mutex);
        ck_assert_int_eq(write(desk.wake, &one, sizeof(one)), sizeof(one));
    }
    return arg;
}

static void take_ok(void *arg, struct tierce__grpc_answer *answer)
{
    (void)arg;
    desk.ok += answer->status == TIERCE__GRPC_OK;
}

static void start_posted(void)
{
    uint64_t woken;
    (void)!read(desk.wake, &woken, sizeof(woken));
    pthread_mutex_lock(&desk.mutex);
    unsigned count = desk.posted;
    desk.posted = 0;
    pthread_mutex_unlock(&desk.mutex);
    struct tierce__grpc_request request = {
        .path = "/s/echo", .body = "hello", .bytes = 5, .timeout_ms = LONG_MS};
    for (; count > 0; count--)
        ck_assert_int_eq(tierce__grpc_client_start(client, &request, take_ok, NULL), 0);
}

static void *drive(void *arg)
{
    struct pollfd fds[5];
    while (desk.ok < POSTERS * POSTS) {
        uint64_t until_ns = TIERCE__DEADLINE_NEVER;
        fds[0] = (struct pollfd){.fd = desk.wake, .events = POLLIN};
        size_t count = tierce__grpc_client_wants(client, &fds[1], 4, &until_ns);
        if (poll(fds, 1 + count, until_ns == 0 ? 0 : -1) < 0)
            continue;
        if (fds[0].revents != 0)
            start_posted();
        tierce__grpc_client_serve(client, &fds[1], count);
    }
    return arg;
}

START_TEST(test_wake)
{
    pthread_t driver, posters[POSTERS];
    desk.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ck_assert_int_eq(open_client((struct tierce__grpc_client_opts){0}), 0);
    ck_assert_int_eq(pthread_create(&driver, NULL, drive, NULL), 0);
    for (int i = 0; i < POSTERS; i++)
        ck_assert_int_eq(pthread_create(&posters[i], NULL, post, NULL), 0);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(posters[i], NULL);
    pthread_join(driver, NULL);
    close(desk.wake);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("grpc_peer");
    TCase *plain = tcase_create("plain"), *tls = tcase_create("tls");
    tcase_set_timeout(plain, 120);
    tcase_add_checked_fixture(plain, start_plain_server, teardown);
    tcase_add_test(plain, test_a_stopped_server);
    tcase_add_test(plain, test_killed_among_100_calls);
    tcase_add_test(plain, test_a_token_for_each_call);
    tcase_add_test(plain, test_every_allocation);
    tcase_add_test(plain, test_wake);
    suite_add_tcase(suite, plain);
    tcase_set_timeout(tls, 120);
    tcase_add_checked_fixture(tls, start_tls_server, teardown_tls);
    tcase_add_test(tls, test_tls);
    tcase_add_test(tls, test_certificates);
    tcase_add_test(tls, test_every_allocation_with_tls);
    suite_add_tcase(suite, tls);
    return check_main(suite);
}
