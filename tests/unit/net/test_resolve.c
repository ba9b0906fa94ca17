/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "net/grpc/grpc_client.h"
#include "net/resolve.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>

/* Names that are resolved beside the asking thread. The name server is this program's. */

enum { CALL_MS = 100, LONG_MS = 60000 };

static sem_t may_answer; /* the lookup of a name that ends in ".hangs" */
static atomic_int lookups;

typedef int (*getaddrinfo_fn)(const char *, const char *, const struct addrinfo *,
                              struct addrinfo **);

/* Replaces the C library's in this program. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    getaddrinfo_fn real = (getaddrinfo_fn)dlsym(RTLD_NEXT, "getaddrinfo");
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return real(node, service, hints, out);
    atomic_fetch_add(&lookups, 1);
    if (strstr(node, ".hangs") != NULL) {
        while (sem_wait(&may_answer) != 0) {
        }
    }
    if (strstr(node, "unknown") != NULL)
        return EAI_NONAME;
    return real("127.0.0.1", service, hints, out);
}

static void setup(void)
{
    ck_assert_int_eq(sem_init(&may_answer, 0, 0), 0);
}

/* The threads may need a moment. */
static void teardown(void)
{
    WAIT_FOR(tierce__alloc_live() == 0);
}

static int finish(struct tierce__resolve *resolve, const struct addrinfo **list, char why[128])
{
    int rc;
    while ((rc = tierce__resolve_poll(resolve, list, why, 128)) == -EINPROGRESS) {
        struct pollfd fds = {.fd = tierce__resolve_fd(resolve), .events = POLLIN};
        ck_assert_int_eq(poll(&fds, 1, LONG_MS), 1);
    }
    return rc;
}

static struct tierce__resolve *begin(const char *host)
{
    struct tierce__resolve *resolve = NULL;
    ck_assert_int_eq(tierce__resolve_begin(&resolve, host, 4711), 0);
    return resolve;
}

START_TEST(test_addresses)
{
    static const char *const hosts[] = {"127.0.0.1", "::1", "a.name", "a.name.hangs"};
    for (int i = 0; i < 4; i++) {
        const struct addrinfo *list = NULL;
        char why[128], text[64];
        struct tierce__resolve *resolve = begin(hosts[i]);
        int rc = tierce__resolve_poll(resolve, &list, why, sizeof(why));
        ck_assert(i >= 2 || rc == 0);
        ck_assert(i != 3 || rc == -EINPROGRESS);
        if (i == 3)
            ck_assert_int_eq(sem_post(&may_answer), 0);
        ck_assert_int_eq(finish(resolve, &list, why), 0);
        ck_assert_int_eq(getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof(text), NULL, 0,
                                     NI_NUMERICHOST),
                         0);
        ck_assert_str_eq(text, i == 1 ? "::1" : "127.0.0.1");
        tierce__resolve_end(resolve);
    }
    ck_assert_int_eq(atomic_load(&lookups), 2);
}
END_TEST

START_TEST(test_a_name_that_is_unknown)
{
    char why[128], long_name[400];
    const struct addrinfo *list;
    struct tierce__resolve *resolve = begin("unknown.name");
    ck_assert_int_eq(finish(resolve, &list, why), -EHOSTUNREACH);
    ck_assert_ptr_nonnull(strstr(why, "unknown.name: "));
    tierce__resolve_end(resolve);
    memset(long_name, 'a', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = '\0';
    resolve = begin(long_name);
    ck_assert_int_eq(finish(resolve, &list, why), -EHOSTUNREACH);
    tierce__resolve_end(resolve);
    ck_assert_int_eq(atomic_load(&lookups), 1);
}
END_TEST

/* Lookups that hang are given up; their threads free them later. There are not too many. */
START_TEST(test_lookups_that_hang)
{
    struct tierce__resolve *resolves[TIERCE__RESOLVE_THREADS];
    char why[128];
    const struct addrinfo *list;
    for (unsigned i = 0; i < TIERCE__RESOLVE_THREADS; i++)
        resolves[i] = begin("a.name.hangs");
    struct tierce__resolve *last = begin("one.more");
    ck_assert_int_eq(finish(last, &list, why), -EHOSTUNREACH);
    ck_assert_ptr_nonnull(strstr(why, "one.more: "));
    tierce__resolve_end(last);
    for (unsigned i = 0; i < TIERCE__RESOLVE_THREADS; i++)
        tierce__resolve_end(resolves[i]);
    ck_assert_uint_gt(tierce__alloc_live(), 0);
    WAIT_FOR(atomic_load(&lookups) == TIERCE__RESOLVE_THREADS);
    for (unsigned i = 0; i < TIERCE__RESOLVE_THREADS; i++)
        ck_assert_int_eq(sem_post(&may_answer), 0);
    teardown();
    last = begin("one.more");
    ck_assert_int_eq(finish(last, &list, why), 0);
    tierce__resolve_end(last);
}
END_TEST

/* Calls of a client whose name server hangs end by their deadlines, and a client closes at once. */
START_TEST(test_a_client_of_a_name)
{
    char why[256];
    struct tierce__grpc_client *client;
    struct tierce__grpc_answer answer;
    struct tierce__grpc_client_opts opts = {.size = sizeof(opts),
                                            .host = "a.name.hangs",
                                            .port = 1,
                                            .connect_timeout_ms = 2000,
                                            .lazy = true};
    struct tierce__grpc_request request = {.path = "/s/m", .timeout_ms = CALL_MS};
    ck_assert_int_eq(tierce__grpc_client_open(&client, &opts, why), 0);
    ck_assert_int_eq(tierce__grpc_client_unary(client, &request, &answer), 0);
    ck_assert_uint_eq(answer.status, TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert(answer.unsent);
    request.timeout_ms = LONG_MS; /* connect_timeout_ms ends it */
    ck_assert_int_eq(tierce__grpc_client_unary(client, &request, &answer), 0);
    ck_assert_uint_eq(answer.status, TIERCE__GRPC_UNAVAILABLE);
    ck_assert_str_eq(answer.message, "a.name.hangs:1: its name was not resolved in time");
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(sem_post(&may_answer), 0);
    ck_assert_int_eq(tierce__grpc_client_unary(client, &request, &answer), 0);
    ck_assert_uint_eq(answer.status, TIERCE__GRPC_UNAVAILABLE);
    ck_assert_str_eq(answer.message, "a.name.hangs:1: Connection refused");
    tierce__grpc_client_close(client);
}
END_TEST

CHECK_MAIN("resolve", .seconds = 120, .setup = setup, .teardown = teardown,
           .tests = {test_addresses, test_a_name_that_is_unknown, test_lookups_that_hang,
                     test_a_client_of_a_name})
