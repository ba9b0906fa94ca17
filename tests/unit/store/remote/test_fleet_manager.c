/* SPDX-License-Identifier: Apache-2.0 */
#include "running_manager.h"
#include "script_server.h"

#include "silent_log.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_private.h"

#include <openssl/evp.h>
#include <sys/stat.h>

enum { LOOKUP_MS = 100, LONG_MS = 60000 };

struct asked {
    struct tierce__fleet_call call;
    Meta__GetInstanceInfoRequest request;
    unsigned done;
};

static void answered(struct tierce__fleet_call *call)
{
    struct asked *asked = call->arg;
    asked->done++;
    if (call->reply != NULL)
        tierce__proto_free(call->reply);
}

static void ask(struct tierce__fleet_manager *m, struct asked *asked, uint32_t timeout_ms)
{
    *asked = (struct asked){.request = META__GET_INSTANCE_INFO_REQUEST__INIT};
    asked->request.instance_id = (char *)(uintptr_t) "no such instance";
    asked->call =
        (struct tierce__fleet_call){.method = "GetInstanceInfo",
                                    .request = &asked->request.base,
                                    .answers = &meta__get_instance_info_response__descriptor,
                                    .deadline_ns = tierce__deadline_in_ms(timeout_ms),
                                    .repeats = true,
                                    .done = answered,
                                    .arg = asked};
    tierce__fleet_manager_start(m, &asked->call);
    ck_assert_uint_eq(asked->done, 0); /* never by start */
}

static int wait_for(struct tierce__fleet_manager *m, struct asked *asked)
{
    uint64_t until_ns = tierce__deadline_in_ms(2 * LONG_MS);
    while (asked->done == 0) {
        ck_assert(tierce__now_ns() < until_ns);
        tierce__fleet_manager_poll(m, until_ns);
    }
    ck_assert_uint_eq(asked->done, 1);
    return asked->call.status;
}

static int ask_once(struct tierce__fleet_manager *m, struct asked *asked, uint32_t timeout_ms)
{
    ask(m, asked, timeout_ms);
    return wait_for(m, asked);
}

static struct tierce__fleet_manager *open_manager(const char *url)
{
    struct tierce__url parsed = {0};
    struct tierce__fleet_manager *m = NULL;
    char why[TIERCE__FLEET_WHY_BYTES];
    ck_assert_int_eq(tierce__url_parse(&parsed, url, why), 0);
    int rc = tierce__fleet_manager_open(
        &m,
        &(struct tierce__fleet_manager_opts){.size = sizeof(struct tierce__fleet_manager_opts),
                                             .url = &parsed},
        why);
    ck_assert_msg(rc == 0, "%s", why);
    tierce__url_clear(&parsed);
    return m;
}

static struct tierce__fleet_manager *open_ports(uint16_t first, uint16_t second)
{
    char url[128];
    if (second == 0)
        snprintf(url, sizeof(url), "fleet://127.0.0.1:%u/default", first);
    else
        snprintf(url, sizeof(url), "fleet://127.0.0.1:%u,127.0.0.1:%u/default", first, second);
    return open_manager(url);
}

/* A port that nobody listens on: bound, so that nobody else takes it. */
static uint16_t dead_port(int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(*fd, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(getsockname(*fd, (struct sockaddr *)&address, &bytes), 0);
    return ntohs(address.sin_port);
}

static struct running_manager world;

static void start_world(void)
{
    silence_log();
    running_manager_start(&world, NULL);
    struct tierce__fleet_manager *m = open_ports(world.ports.meta_grpc, 0);
    struct asked asked; /* it leads as soon as this is answered */
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS);
    tierce__fleet_manager_close(m);
}

static void stop_world(void)
{
    running_manager_stop(&world);
}

START_TEST(test_answers)
{
    struct tierce__fleet_manager *m = open_ports(world.ports.meta_grpc, 0);
    static struct asked asked[100];
    for (size_t i = 0; i < 100; i++)
        ask(m, &asked[i], LONG_MS);
    for (size_t i = 0; i < 100; i++) {
        ck_assert_int_eq(wait_for(m, &asked[i]), TIERCE_E_MISS);
        ck_assert_ptr_nonnull(strstr(asked[i].call.why, "no such instance"));
        ck_assert_ptr_nonnull(strstr(asked[i].call.why, "127.0.0.1:"));
    }
    struct tierce__tier_stats stats = {0};
    tierce__fleet_manager_stats(m, &stats);
    ck_assert_uint_eq(stats.connections, 1); /* they share it */
    tierce__fleet_manager_close(m);
}
END_TEST

START_TEST(test_a_call_that_the_manager_lacks)
{
    struct tierce__fleet_manager *m = open_ports(world.ports.meta_grpc, 0);
    struct asked asked;
    ask(m, &asked, LONG_MS);
    (void)wait_for(m, &asked);
    asked.done = 0;
    asked.call.method = "NoSuchCall";
    tierce__fleet_manager_start(m, &asked.call);
    ck_assert_int_eq(wait_for(m, &asked), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(asked.call.why, "NoSuchCall"));
    tierce__fleet_manager_close(m);
}
END_TEST

START_TEST(test_nobody_listens)
{
    int fd;
    uint16_t port = dead_port(&fd);
    struct tierce__fleet_manager *m = open_ports(port, 0);
    struct asked asked;
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_DOWN);
    ck_assert_uint_lt(tierce__now_ns() - begun_ns,
                      LONG_MS / 2 * TIERCE__MS_NS); /* at once, not at its deadline */
    ck_assert_msg(strstr(asked.call.why, "start the manager") != NULL, "%s", asked.call.why);
    tierce__fleet_manager_close(m);
    m = open_ports(port, world.ports.meta_grpc);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS);
    ck_assert_uint_eq(asked.call.tried, 1);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS);
    ck_assert_uint_eq(asked.call.tried, 0); /* it keeps the address that answered */
    tierce__fleet_manager_close(m);
    close(fd);
}
END_TEST

START_TEST(test_one_accepts_and_never_answers)
{
    struct script_server silent;
    script_server_start(&silent, (struct script_reply[]){{.bytes = NULL}}, 1);
    struct tierce__fleet_manager *m = open_ports(silent.port, world.ports.meta_grpc);
    struct asked asked;
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(ask_once(m, &asked, LOOKUP_MS), TIERCE_E_DEADLINE);
    uint64_t took_ms = (tierce__now_ns() - begun_ns) / TIERCE__MS_NS;
    ck_assert_uint_ge(took_ms, LOOKUP_MS - 5);
    ck_assert_uint_lt(took_ms, 20 * LOOKUP_MS);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS); /* the other one */
    ck_assert_uint_eq(asked.call.tried, 0);
    tierce__fleet_manager_close(m);
    script_server_stop(&silent);
}
END_TEST

/* A call that is on its way to another address when its connection turns out to be reset ends by
 * its deadline there. */
START_TEST(test_a_reset_one_and_one_that_hangs)
{
    struct script_server silent;
    script_server_start(&silent, (struct script_reply[]){{.bytes = NULL}}, 1);
    int listener;
    uint16_t port = dead_port(&listener);
    ck_assert_int_eq(listen(listener, 10), 0);
    struct tierce__fleet_manager *m = open_ports(silent.port, port);
    struct asked asked;
    for (int i = 0; i < 3; i++) /* the first, the second, the first: the second is next */
        ck_assert_int_eq(ask_once(m, &asked, LOOKUP_MS), TIERCE_E_DEADLINE);
    int fd = accept(listener, NULL, NULL);
    struct linger at_once = {.l_onoff = 1};
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    close(fd); /* resets */
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(ask_once(m, &asked, LOOKUP_MS), TIERCE_E_DEADLINE);
    ck_assert_uint_lt(tierce__now_ns() - begun_ns, LONG_MS / 2 * TIERCE__MS_NS);
    tierce__fleet_manager_close(m);
    close(listener);
    script_server_stop(&silent);
}
END_TEST

START_TEST(test_a_server_of_something_else)
{
    static const char http[] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    struct script_server other;
    script_server_start(
        &other, (struct script_reply[]){{.bytes = http, .count = sizeof(http) - 1, .closes = true}},
        1);
    struct tierce__fleet_manager *m = open_ports(other.port, 0);
    struct asked asked;
    int status = ask_once(m, &asked, LONG_MS);
    ck_assert_msg(status == TIERCE_E_DOWN || status == -EPROTO, "%d: %s", status, asked.call.why);
    ck_assert_msg(strstr(asked.call.why, "gRPC port") != NULL, "%s", asked.call.why);
    tierce__fleet_manager_close(m);
    script_server_stop(&other);
}
END_TEST

START_TEST(test_tls_to_a_manager_without_it)
{
    char url[128];
    struct asked asked;
    snprintf(url, sizeof(url), "fleet+tls://127.0.0.1:%u/default", world.ports.meta_grpc);
    struct tierce__fleet_manager *m = open_manager(url);
    ck_assert_int_lt(ask_once(m, &asked, LONG_MS), 0);
    ck_assert_msg(strstr(asked.call.why, "scheme without +tls if") != NULL, "%s", asked.call.why);
    tierce__fleet_manager_close(m);
}
END_TEST

START_TEST(test_wake)
{
    struct tierce__fleet_manager *m = open_ports(world.ports.meta_grpc, 0);
    uint64_t begun_ns = tierce__now_ns();
    tierce__fleet_manager_wake(m); /* before the poll: it ends that one */
    tierce__fleet_manager_poll(m, tierce__deadline_in_ms(LONG_MS));
    ck_assert_uint_lt(tierce__now_ns() - begun_ns, LONG_MS / 2 * TIERCE__MS_NS);
    tierce__fleet_manager_close(m);
}
END_TEST

/* Calls in progress are dropped without their `done`. */
START_TEST(test_close_with_calls)
{
    struct script_server silent;
    script_server_start(&silent, (struct script_reply[]){{.bytes = NULL}}, 1);
    struct tierce__fleet_manager *m = open_ports(silent.port, 0);
    static struct asked asked[10];
    uint64_t live = tierce__alloc_live();
    (void)live;
    for (size_t i = 0; i < 10; i++)
        ask(m, &asked[i], LONG_MS);
    tierce__fleet_manager_poll(m, tierce__deadline_in_ms(10));
    tierce__fleet_manager_close(m);
    for (size_t i = 0; i < 10; i++)
        ck_assert_uint_eq(asked[i].done, 0);
    script_server_stop(&silent);
}
END_TEST

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

static void write_tokens(const char *path, const char *token)
{
    uint8_t digest[32];
    char line[128] = "user engine ";
    size_t used = strlen(line);
    ck_assert_int_eq(EVP_Digest(token, strlen(token), digest, NULL, EVP_sha256(), NULL), 1);
    for (size_t i = 0; i < sizeof(digest); i++)
        used += (size_t)snprintf(line + used, sizeof(line) - used, "%02x", digest[i]);
    strcat(line, "\n");
    write_file(path, line);
}

START_TEST(test_tokens)
{
    char folder[] = "/tmp/tierce_fleetXXXXXX", tokens[64], token[64], argument[128], url[256],
         why[256];
    struct running_manager strict;
    temp_folder_make(folder);
    snprintf(tokens, sizeof(tokens), "%s/tokens", folder);
    snprintf(token, sizeof(token), "%s/token", folder);
    snprintf(argument, sizeof(argument), "--auth.token_file=%s", tokens);
    write_tokens(tokens, "right");
    running_manager_start(&strict, (const char *const[]){"--auth.required=true",
                                                         "--listen.insecure=true", argument, NULL});

    struct asked asked;
    struct tierce__fleet_manager *m = open_ports(strict.ports.meta_grpc, 0);
    WAIT_FOR(ask_once(m, &asked, LONG_MS) == TIERCE_E_REFUSED);
    ck_assert_msg(strstr(asked.call.why, "authentication required") != NULL, "%s", asked.call.why);
    tierce__fleet_manager_close(m);

    write_file(token, "wrong\n");
    snprintf(url, sizeof(url), "fleet://127.0.0.1:%u/default?token_file=%s", strict.ports.meta_grpc,
             token);
    m = open_manager(url);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_REFUSED);
    ck_assert_ptr_null(strstr(asked.call.why, "wrong"));
    ck_assert_msg(strstr(asked.call.why, "unknown token") != NULL, "%s", asked.call.why);
    write_file(token, "right\n"); /* it is read again without a restart */
    WAIT_FOR(ask_once(m, &asked, LONG_MS) == TIERCE_E_MISS);
    tierce__fleet_manager_close(m);

    ck_assert_int_eq(chmod(token, 0644), 0);
    struct tierce__url parsed = {0};
    ck_assert_int_eq(tierce__url_parse(&parsed, url, why), 0);
    int rc = tierce__fleet_manager_open(
        &m,
        &(struct tierce__fleet_manager_opts){.size = sizeof(struct tierce__fleet_manager_opts),
                                             .url = &parsed},
        why);
    ck_assert_int_eq(rc, TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "chmod 600"));
    tierce__url_clear(&parsed);
    running_manager_stop(&strict);
    temp_folder_remove(folder);
}
END_TEST

/* Two managers with one lease: a follower names the leader or not, and takes over when that ends.
 */
START_TEST(test_another_one_leads)
{
    char folder[] = "/tmp/tierce_leaseXXXXXX", elector[128];
    struct running_manager managers[2];
    struct asked asked;
    temp_folder_make(folder);
    snprintf(elector, sizeof(elector), "--elector.uri=file://%s", folder);
    const char *const more[] = {elector, "--elector.lease=500ms", "--elector.interval=10ms", NULL};
    running_manager_start(&managers[0], more);
    struct tierce__fleet_manager *m = open_ports(managers[0].ports.meta_grpc, 0);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS);
    tierce__fleet_manager_close(m);
    running_manager_start(&managers[1], more);
    m = open_ports(managers[1].ports.meta_grpc, managers[0].ports.meta_grpc);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS);
    ck_assert_uint_ge(asked.call.tried, 1); /* the first one follows */
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS);
    ck_assert_uint_eq(asked.call.tried, 0);
    running_manager_stop(&managers[0]);
    ck_assert_int_eq(ask_once(m, &asked, LONG_MS), TIERCE_E_MISS); /* waits for the election */
    tierce__fleet_manager_close(m);
    running_manager_stop(&managers[1]);
    temp_folder_remove(folder);
}
END_TEST

START_TEST(test_every_allocation_fails)
{
    struct asked asked;
    for (uint64_t nth = 1, made = nth; nth <= made; nth++) {
        struct tierce__url parsed = {0};
        struct tierce__fleet_manager *m = NULL;
        char url[64], why[TIERCE__FLEET_WHY_BYTES];
        snprintf(url, sizeof(url), "fleet://127.0.0.1:%u/default", world.ports.meta_grpc);
        ck_assert_int_eq(tierce__url_parse(&parsed, url, why), 0);
        (void)tierce__alloc_fail_nth(nth);
        int rc = tierce__fleet_manager_open(
            &m,
            &(struct tierce__fleet_manager_opts){.size = sizeof(struct tierce__fleet_manager_opts),
                                                 .url = &parsed},
            why);
        if (rc == 0)
            rc = ask_once(m, &asked, LONG_MS);
        made = tierce__alloc_fail_nth(0);
        ck_assert_msg(rc == -ENOMEM || rc == TIERCE_E_MISS || rc == -EPROTO, "allocation %lu: %d",
                      nth, rc);
        tierce__fleet_manager_close(m);
        tierce__url_clear(&parsed);
    }
}
END_TEST

CHECK_MAIN("fleet manager", .seconds = 120, .setup = start_world, .teardown = stop_world,
           .tests = {test_answers, test_a_call_that_the_manager_lacks, test_nobody_listens,
                     test_one_accepts_and_never_answers, test_a_reset_one_and_one_that_hangs,
                     test_a_server_of_something_else, test_tls_to_a_manager_without_it, test_wake,
                     test_close_with_calls, test_tokens, test_another_one_leads,
                     test_every_allocation_fails})
