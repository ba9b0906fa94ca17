/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector of Redis on bad days: a real server that is full, not ready, rejects and goes away,
 * and between it and us something that cuts, stops, or answers in its place.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "connector_harness.h"
#include "redis_server.h"

#include <poll.h>
#include <pthread.h>

static struct redis_server server;
static struct tierce__pool *pool;
static struct tierce__connector *connector;

static void open_url(const char *url)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void open_port(uint16_t port, const char *user, const char *more)
{
    char url[256];
    snprintf(url, sizeof(url), "redis://%s127.0.0.1:%u%s", user, (unsigned)port, more);
    open_url(url);
}

static void start(const char *const *more)
{
    ck_assert_msg(redis_is_there(), "redis-server is not installed (tools/setup)");
    ck_assert(redis_start(&server, more));
    pool = connector_pool();
}

static void close_connector(void)
{
    struct tierce__pool_stats stats;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
}

static void end(void)
{
    close_connector();
    tierce__pool_destroy(pool);
    redis_stop(&server);
}

/* Runs redis-cli, which must succeed. */
static void cli(const char *command)
{
    char line[512];
    snprintf(line, sizeof(line), "redis-cli -p %u %s >/dev/null", (unsigned)server.port, command);
    ck_assert_int_eq(system(line), 0);
}

static void expect_why(const char *part)
{
    const char *why = connector_why(connector);
    ck_assert_msg(strstr(why, part) != NULL, "\"%s\" is not in: %s", part, why);
    ck_assert_ptr_null(strstr(why, "hidden"));
}

/* ---- server messages ------------------------------------------------------------------------- */

START_TEST(a_full_server)
{
    char name[16];
    uint32_t i = 0;
    int rc;
    start((const char *const[]){"--maxmemory", "24mb", "--maxmemory-policy", "noeviction", NULL});
    open_port(server.port, "", "");
    do {
        snprintf(name, sizeof(name), "%u", i++);
        rc = connector_put(connector, pool, name, i, 3 << 20);
    } while (rc == 0 && i < 10);
    ck_assert_int_eq(rc, TIERCE_E_FULL);
    expect_why("OOM");
    expect_why("redis://127.0.0.1:");
    ck_assert_int_eq(connector_exists(connector, name), 0);
    ck_assert_int_eq(connector_get(connector, pool, "0", 1, 0, 3 << 20), 0);
    ck_assert_int_eq(connector_delete(connector, "0"), 0);
    ck_assert_int_eq(connector_delete(connector, "1"), 0);
    do /* the memory is freed behind our back */
        rc = connector_put(connector, pool, name, i, 3 << 20);
    while (rc == TIERCE_E_FULL);
    ck_assert_int_eq(rc, 0);
    end();
}
END_TEST

START_TEST(a_password)
{
    start((const char *const[]){"--requirepass", "right", NULL});
    open_port(server.port, "", "");
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_REFUSED);
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 10), TIERCE_E_REFUSED);
    expect_why("NOAUTH");
    close_connector();
    open_port(server.port, ":hidden@", "");
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_REFUSED);
    expect_why("WRONGPASS");
    close_connector();
    open_port(server.port, ":right@", "");
    ck_assert_int_eq(connector_ping(connector), 0);
    end();
}
END_TEST

static void write_credentials(const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/credentials", server.dir);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    fclose(file);
}

static int open_with(const char *user, const char *file, char text[TIERCE__CONNECTOR_WHY_BYTES])
{
    char uri[256];
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = pool};
    snprintf(uri, sizeof(uri), "redis://%s127.0.0.1:%u?credentials_file=%s/%s", user,
             (unsigned)server.port, server.dir, file);
    return tierce__connector_open(&connector, uri, &opts, text);
}

/* The user and the password are in a file, whose content nobody sees. */
START_TEST(a_file_of_credentials)
{
    static const char *const good[] = {
        "password=ri=ght #x\n", "# of the fleet\n\n  \nuser=default\r\npassword=ri=ght #x\r\n",
        "password=ri=ght #x"};
    static const char *const bad[] = {"",
                                      "user=default\n",
                                      "hidden\n",
                                      "password=\n",
                                      "password=hidden\npassword=hidden\n",
                                      "password=hidden\nother=hidden\n",
                                      "password = hidden\n",
                                      "password=hidden\nhidden\n"};
    char text[TIERCE__CONNECTOR_WHY_BYTES];
    start((const char *const[]){"--requirepass", "ri=ght #x", NULL});
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        write_credentials(good[i]);
        ck_assert_int_eq(open_with("", "credentials", text), 0);
        ck_assert_int_eq(connector_ping(connector), 0);
        close_connector();
    }
    ck_assert_int_eq(open_with("u:p@", "credentials", text), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(text, "credentials_file"));
    ck_assert_int_eq(open_with("", "none", text), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(text, "/none: No such file"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        write_credentials(bad[i]);
        ck_assert_int_eq(open_with("", "credentials", text), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(text, "password=") != NULL, "%s", text);
        ck_assert_ptr_null(strstr(text, "hidden"));
    }
    write_credentials("user=other\npassword=hidden\n");
    ck_assert_int_eq(open_with("", "credentials", text), 0);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_REFUSED);
    expect_why("WRONGPASS");
    ck_assert_ptr_null(strstr(connector_why(connector), "hidden"));
    end();
}
END_TEST

START_TEST(a_user_who_may_only_read)
{
    start((const char *const[]){"--user", "reader", "on", ">hidden", "~*", "-@all", "+getrange",
                                "+exists", "+ping", NULL});
    open_port(server.port, "reader:hidden@", "");
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(connector_exists(connector, "a"), 0);
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 10), TIERCE_E_MISS);
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 1 << 20), TIERCE_E_REFUSED);
    expect_why("NOPERM");
    ck_assert_int_eq(connector_delete(connector, "a"), TIERCE_E_REFUSED);
    end();
}
END_TEST

START_TEST(a_replica_takes_no_stores)
{
    start((const char *const[]){"--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "no",
                                NULL});
    open_port(server.port, "", "?connections=2");
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 1000), TIERCE_E_DOWN);
    expect_why("MASTERDOWN");
    cli("config set replica-serve-stale-data yes");
    int rc;
    do /* another connection is not made at once */
        rc = connector_get(connector, pool, "a", 1, 0, 1000);
    while (rc == TIERCE_E_DOWN);
    ck_assert_int_eq(rc, TIERCE_E_MISS);
    uint64_t connects = connector_stats(connector).connects;
    do
        ck_assert_int_eq(connector_put(connector, pool, "a", 1, 1000), TIERCE_E_DOWN);
    while (strstr(connector_why(connector), "MASTERDOWN") != NULL);
    expect_why("READONLY");
    cli("replicaof no one");
    do /* every connection that has met it is left */
        rc = connector_put(connector, pool, "a", 1, 1000);
    while (rc == TIERCE_E_DOWN);
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_gt(connector_stats(connector).connects, connects);
    end();
}
END_TEST

START_TEST(objects_of_others)
{
    start(NULL);
    open_port(server.port, "", "?prefix=p:");
    cli("rpush p:list x");
    cli("set p:empty ''");
    cli("set p:short x");
    cli("set other x");
    ck_assert_int_eq(connector_get(connector, pool, "list", 1, 0, 10), TIERCE_E_FORMAT);
    expect_why("WRONGTYPE");
    ck_assert_int_eq(connector_get(connector, pool, "empty", 1, 0, 10), TIERCE_E_MISS);
    ck_assert_int_eq(connector_get(connector, pool, "short", 1, 0, 10), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_exists(connector, "other"), 0);
    ck_assert_int_eq(connector_put(connector, pool, "list", 1, 10), 0);
    ck_assert_int_eq(connector_get(connector, pool, "list", 1, 0, 10), 0);
    end();
}
END_TEST

START_TEST(what_is_stored_is_a_string_with_a_ttl)
{
    char line[256];
    start(NULL);
    open_port(server.port, "", "/5?prefix=p:&ttl=100s");
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 1000), 0);
    snprintf(line, sizeof(line),
             "test $(redis-cli -p %u -n 5 strlen p:a) = 1000 && t=$(redis-cli -p %u -n 5 pttl p:a)"
             " && test $t -gt 50000 && test $t -le 100000",
             (unsigned)server.port, (unsigned)server.port);
    ck_assert_int_eq(system(line), 0);
    close_connector();
    open_port(server.port, "", "/5?prefix=p:");
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 1000), 0);
    snprintf(line, sizeof(line), "test $(redis-cli -p %u -n 5 pttl p:a) = -1",
             (unsigned)server.port);
    ck_assert_int_eq(system(line), 0);
    end();
}
END_TEST

/* Each allocation fails once: the request gets the error, and service continues. */
START_TEST(each_allocation_fails_once)
{
    char url[64], why[TIERCE__CONNECTOR_WHY_BYTES];
    int worst = -ENOMEM;
    start(NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u?connections=2", (unsigned)server.port);
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; worst != 0; nth++) {
        tierce__alloc_fail_nth(nth);
        worst =
            tierce__connector_open(&connector, url,
                                   &(struct tierce__connector_opts){
                                       .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                   why);
        if (worst == 0) {
            const int results[] = {connector_put(connector, pool, "a", 1, 50000),
                                   connector_put(connector, pool, "a", 1, 50000),
                                   connector_get(connector, pool, "a", 1, 0, 50000),
                                   connector_exists(connector, "a") == 1 ? 0 : -ENOMEM};
            close_connector();
            for (size_t i = 0; i < 4; i++) {
                /* DOWN: it does not connect again at once. */
                ck_assert_msg(results[i] == 0 || results[i] == -ENOMEM ||
                                  results[i] == TIERCE_E_DOWN,
                              "%d", results[i]);
                worst = results[i] != 0 ? results[i] : worst;
            }
        }
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__pool_destroy(pool);
    redis_stop(&server);
}
END_TEST

/* ---- a server that comes and goes ------------------------------------------------------------ */

START_TEST(a_server_comes_and_goes)
{
    pool = connector_pool();
    uint16_t port = server_free_port();
    open_port(port, "", "?connections=3&timeout_ms=500"); /* opening does not connect */
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert_uint_eq(connector_stats(connector).connections, 0);
    expect_why("cannot connect");
    for (int round = 0; round < 3; round++) {
        ck_assert(redis_start(&server, NULL));
        struct redis_server there = server;
        redis_kill(&server);
        server = there;
        server.port = port;
        ck_assert(redis_run(&server, false, NULL));
        int rc;
        do { /* no more often than every 100 ms does it try */
            rc = connector_put(connector, pool, "a", 1, 100000);
        } while (rc == TIERCE_E_DOWN);
        ck_assert_int_eq(rc, 0);
        do
            rc = connector_get(connector, pool, "a", 1, 0, 100000);
        while (rc == TIERCE_E_DOWN);
        ck_assert_int_eq(rc, 0);
        redis_stop(&server);
        ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 100000), TIERCE_E_DOWN);
    }
    ck_assert_uint_ge(connector_stats(connector).connects, 3);
    close_connector();
    tierce__pool_destroy(pool);
}
END_TEST

/* Until the connector tries to connect again, it repeats the error of the last attempt, and says
 * so. */
START_TEST(a_failed_attempt_is_repeated)
{
    struct connector_call call;
    pool = connector_pool();
    open_port(server_free_port(), "", "?connections=2");
    unsigned pings = 0;
    do { /* several on a slow machine */
        connector_call_init(&call, TIERCE__STORE_PING, NULL, 0);
        ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DOWN);
        ck_assert(pings++ > 0 || !call.req.repeats);
    } while (!call.req.repeats);
    close_connector();
    tierce__pool_destroy(pool);
}
END_TEST

/* A server that has stopped: every request is answered by its deadline. */
START_TEST(a_server_that_says_nothing)
{
    struct connector_call calls[20];
    start(NULL);
    open_port(server.port, "", "?connections=4&timeout_ms=300");
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 100000), 0);
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    struct tierce__buf *buf = connector_object(pool, 1, 100000);
    for (size_t i = 0; i < 20; i++) {
        connector_call_init(&calls[i], (enum tierce__store_op)(i % 4), "a", 0);
        calls[i].req.deadline_ns = tierce__deadline_in_ms(100);
        calls[i].req.buf = buf;
        calls[i].req.length = 100000;
        connector->ops->submit(connector, &calls[i].req);
    }
    for (size_t i = 0; i < 20; i++) {
        int rc = connector_call_wait(&calls[i]);
        ck_assert(rc == TIERCE_E_DEADLINE || rc == TIERCE_E_DOWN);
    }
    ck_assert_int_eq(kill(server.pid, SIGCONT), 0);
    int rc; /* of another name: commands sent before may still take effect */
    do
        rc = connector_put(connector, pool, "b", 2, 100000);
    while (rc == TIERCE_E_DOWN);
    ck_assert_int_eq(rc, 0);
    do
        rc = connector_get(connector, pool, "b", 2, 0, 100000);
    while (rc == TIERCE_E_DOWN);
    ck_assert_int_eq(rc, 0);
    tierce__buf_release(buf);
    end();
}
END_TEST

/* ---- something in between -------------------------------------------------------------------- */

enum trouble { CUT_UP, CUT_DOWN, STOP_DOWN };

/* Passes bytes between one client at a time and the server, or answers by a script. */
static struct proxy {
    int listener;
    uint16_t port;
    pthread_t thread;
    _Atomic bool ends;
    enum trouble trouble;
    _Atomic int64_t left; /* bytes that still pass in the troubled direction; < 0: all */
    const char *reply;    /* instead of a server: answers this to what comes after the PING */
    size_t reply_bytes;
    const char *greeting; /* the answer to the PING, and what comes with it; NULL: a PONG */
} proxy;

static bool pass_bytes(int from, int to, bool troubled)
{
    char bytes[16384];
    ssize_t n = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0)
        return false;
    int64_t left = atomic_load(&proxy.left);
    ssize_t passes = troubled && left >= 0 && left < n ? (ssize_t)left : n;
    for (ssize_t at = 0; at < passes;) {
        ssize_t sent = send(to, bytes + at, (size_t)(passes - at), MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
    }
    if (troubled && left >= 0)
        atomic_store(&proxy.left, left - passes);
    return passes == n || proxy.trouble == STOP_DOWN;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static void serve_connection(int client)
{
    int up = connect_to(server.port);
    bool alive = up >= 0;
    while (alive && !atomic_load(&proxy.ends)) {
        struct pollfd fds[2] = {{.fd = client, .events = POLLIN}, {.fd = up, .events = POLLIN}};
        if (poll(fds, 2, 10) <= 0)
            continue;
        if (fds[0].revents != 0)
            alive = pass_bytes(client, up, proxy.trouble == CUT_UP);
        if (alive && fds[1].revents != 0)
            alive = pass_bytes(up, client, proxy.trouble != CUT_UP);
    }
    close(up);
}

/* Every command is answered: the first one rightly, each other one by the script. */
static void play_server(int client)
{
    char bytes[65536];
    bool greeted = false;
    while (!atomic_load(&proxy.ends)) {
        struct pollfd fds = {.fd = client, .events = POLLIN};
        if (poll(&fds, 1, 10) <= 0)
            continue;
        if (recv(client, bytes, sizeof(bytes), 0) <= 0)
            return;
        const char *greeting = proxy.greeting != NULL ? proxy.greeting : "+PONG\r\n";
        const char *reply = greeted ? proxy.reply : greeting;
        size_t reply_bytes = greeted ? proxy.reply_bytes : strlen(greeting);
        if (send(client, reply, reply_bytes, MSG_NOSIGNAL) != (ssize_t)reply_bytes)
            return;
        greeted = true;
    }
}

static void *run_proxy(void *arg)
{
    (void)arg;
    while (!atomic_load(&proxy.ends)) {
        struct pollfd fds = {.fd = proxy.listener, .events = POLLIN};
        if (poll(&fds, 1, 10) <= 0)
            continue;
        int client = accept4(proxy.listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        if (proxy.reply != NULL)
            play_server(client);
        else
            serve_connection(client);
        close(client);
    }
    return NULL;
}

static void start_proxy(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    proxy.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(proxy.listener, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(proxy.listener, 100), 0);
    ck_assert_int_eq(getsockname(proxy.listener, (struct sockaddr *)&address, &length), 0);
    proxy.port = ntohs(address.sin_port);
    atomic_store(&proxy.left, -1);
    ck_assert_int_eq(pthread_create(&proxy.thread, NULL, run_proxy, NULL), 0);
}

static void stop_proxy(void)
{
    atomic_store(&proxy.ends, true);
    pthread_join(proxy.thread, NULL);
    close(proxy.listener);
}

#define BYTES 100000u

/* One operation of each kind. */
static int operate(enum tierce__store_op op, uint32_t version)
{
    switch (op) {
    case TIERCE__STORE_GET:
        return connector_get(connector, pool, "name", version, 0, BYTES);
    case TIERCE__STORE_PUT:
        return connector_put(connector, pool, "name", version, BYTES);
    case TIERCE__STORE_DELETE:
        return connector_delete(connector, "none");
    case TIERCE__STORE_LOOKUP:
        return connector_exists(connector, "name") == 1 ? 0 : TIERCE_E_DOWN;
    case TIERCE__STORE_HIDE:
    case TIERCE__STORE_SHOW:
    case TIERCE__STORE_FLUSH:
    case TIERCE__STORE_CLEAR:
    case TIERCE__STORE_SIBLINGS:
    case TIERCE__STORE_LIST:
    case TIERCE__STORE_PING:
    default:
        return connector_ping(connector);
    }
}

/* The connection is cut after various numbers of bytes, in either direction: the operation fails,
 * the object is the old one or the new one, and service continues afterwards. */
START_TEST(cut_in_the_middle)
{
    static const int64_t places[] = {0, 1, 3, 7, 8, 20, 40, 60, 5000, BYTES - 1, BYTES, BYTES + 10};
    enum tierce__store_op op = (enum tierce__store_op)(_i / 2);
    proxy.trouble = _i % 2 == 0 ? CUT_UP : CUT_DOWN;
    start(NULL);
    start_proxy();
    open_port(proxy.port, "", "?connections=2&timeout_ms=2000");
    uint32_t version = 1;
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        int rc;
        atomic_store(&proxy.left, -1);
        do
            rc = connector_put(connector, pool, "name", version, BYTES);
        while (rc == TIERCE_E_DOWN); /* it connects again, but not at once */
        ck_assert_int_eq(rc, 0);
        close_connector(); /* one client at a time: a connection for the next operation */
        open_port(proxy.port, "", "?connections=2&timeout_ms=2000");
        atomic_store(&proxy.left, places[i]);
        rc = operate(op, op == TIERCE__STORE_PUT ? version + 1 : version);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN, "operation %d: %d", op, rc);
        ck_assert(rc == 0 || atomic_load(&proxy.left) == 0);
        close_connector();
        open_port(server.port, "", "?connections=2");
        struct connector_call call;
        connector_call_init(&call, TIERCE__STORE_GET, "name", 0);
        ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, BYTES), 0);
        call.req.length = BYTES;
        ck_assert_int_eq(connector_call_run(connector, &call), 0);
        bool old = connector_is_object(call.req.buf->data, version, 0, BYTES);
        bool new = connector_is_object(call.req.buf->data, version + 1, 0, BYTES);
        ck_assert(old || (new &&op == TIERCE__STORE_PUT));
        tierce__buf_release(call.req.buf);
        close_connector();
        open_port(proxy.port, "", "?connections=2&timeout_ms=2000");
        version += 2;
    }
    close_connector();
    stop_proxy();
    tierce__pool_destroy(pool);
    redis_stop(&server);
}
END_TEST

/* Half of an answer, and no more, while the connection stays. */
START_TEST(half_open)
{
    start(NULL);
    start_proxy();
    proxy.trouble = STOP_DOWN;
    open_port(proxy.port, "", "?connections=2&timeout_ms=1000");
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, BYTES), 0);
    close_connector();
    open_port(proxy.port, "", "?connections=2&timeout_ms=1000");
    atomic_store(&proxy.left, 5000);
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, "name", 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, BYTES), 0);
    call.req.length = BYTES;
    call.req.deadline_ns = tierce__deadline_in_ms(200);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    while (atomic_load(&call.req.buf->refs) > 1)
        sched_yield();
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 0);
    tierce__buf_release(call.req.buf);
    close_connector();
    stop_proxy();
    tierce__pool_destroy(pool);
    redis_stop(&server);
}
END_TEST

/* What a server must not answer, and what becomes of a GET of five bytes, a PUT, an EXISTS, a
 * DELETE and a LIST then. */
static const struct {
    const char *reply;
    int get, put, exists, remove, list;
} answers[] = {
#define F TIERCE_E_FORMAT
#define D TIERCE_E_DOWN
    {"$4\r\nabcd\r\n", F, F, F, F, F},
    {"$6\r\nabcdef\r\n", F, F, F, F, F},
    {"$0\r\n\r\n", TIERCE_E_MISS, F, F, F, F},
    {"$-1\r\n", F, F, F, F, F},
    {"+OK\r\n", F, 0, F, F, F},
    {":1\r\n", F, F, 1, 0, F},
    {":2\r\n", F, F, F, 0, F},
    {":-1\r\n", F, F, F, 0, F},
    {"*0\r\n", F, F, F, F, F},
    {"*2\r\n$1\r\n0\r\n*0\r\n", F, F, F, F, 0},
    {"*2\r\n$1\r\nx\r\n*0\r\n", F, F, F, F, F},
    {"*2\r\n*0\r\n$1\r\n0\r\n", F, F, F, F, F},
    {"*2\r\n$1\r\n0\r\n*3\r\n:1\r\n$-1\r\n$0\r\n\r\n", F, F, F, F, 0},
    {"garbage\r\n", F, F, F, F, F},
    {"$5\r\nabcdefg", F, F, F, F, F},
    {"$999999999999\r\n", F, F, F, F, F},
    {"-ERR unknown command\r\n", F, F, F, F, F},
    {"-OOM no room\r\n", TIERCE_E_FULL, TIERCE_E_FULL, TIERCE_E_FULL, TIERCE_E_FULL, TIERCE_E_FULL},
    {"-LOADING\r\n", D, D, D, D, D},
    {"-CLUSTERDOWN x\r\n", D, D, D, D, D},
    {"-MISCONF x\r\n", D, D, D, D, D},
#undef F
#undef D
};

static void no_name(void *arg, const struct tierce_plugin_name *name)
{
    (void)arg;
    (void)name;
    ck_abort_msg("a name");
}

START_TEST(wrong_answers)
{
    struct connector_call call;
    pool = connector_pool();
    proxy.reply = answers[_i].reply;
    proxy.reply_bytes = strlen(proxy.reply);
    start_proxy();
    for (int op = 0; op < 5; op++) {
        static const enum tierce__store_op ops[] = {TIERCE__STORE_GET, TIERCE__STORE_PUT,
                                                    TIERCE__STORE_LOOKUP, TIERCE__STORE_DELETE,
                                                    TIERCE__STORE_LIST};
        const int wanted[] = {answers[_i].get, answers[_i].put, answers[_i].exists,
                              answers[_i].remove, answers[_i].list};
        open_port(proxy.port, "", "?connections=2&timeout_ms=500");
        connector_call_init(&call, ops[op], ops[op] == TIERCE__STORE_LIST ? NULL : "n", 0);
        call.req.buf = connector_object(pool, 1, 5);
        call.req.length = 5;
        call.req.each = no_name;
        int rc = connector_call_run(connector, &call);
        if (ops[op] == TIERCE__STORE_LOOKUP && rc == 0)
            rc = (int)call.req.found;
        ck_assert_msg(rc == wanted[op], "%s: operation %d: %d", proxy.reply, op, rc);
        tierce__buf_release(call.req.buf);
        close_connector();
    }
    stop_proxy();
    tierce__pool_destroy(pool);
}
END_TEST

/* A server knows our password and may repeat it: no message of ours shows it. */
START_TEST(a_server_that_repeats_the_password)
{
    static const char *const replies[] = {"-ERR hidden\r\n", "-OOM xhiddenx\r\n",
                                          "-READONLY hidden\r\n", "-hidden\r\n",
                                          "-ERR \x1b[2J \"\r\n"};
    pool = connector_pool();
    proxy.reply = replies[_i];
    proxy.reply_bytes = strlen(proxy.reply);
    proxy.greeting = "+OK\r\n+PONG\r\n";
    start_proxy();
    open_port(proxy.port, ":hidden@", "?connections=2&timeout_ms=500");
    for (int i = 0; i < 2; i++) {
        int rc = connector_put(connector, pool, "n", 1, 5);
        ck_assert_int_ne(rc, 0);
        expect_why("redis://127.0.0.1:");
        ck_assert_ptr_null(strchr(connector_why(connector), '\x1b'));
        poll(NULL, 0, 150);
    }
    close_connector();
    stop_proxy();
    tierce__pool_destroy(pool);
}
END_TEST

/* Nor where it is the name of another server, which a sentinel tells or a cluster. */
static const struct {
    const char *scheme, *user, *more, *greeting, *reply;
    bool is_ours;
} tellers[] = {
    {"redis+sentinel", ":hidden@", "/m?timeout_ms=500", "+PONG\r\n",
     "*2\r\n$6\r\nhidden\r\n$1\r\n1\r\n", true},
    {"redis+sentinel", "", "/m?timeout_ms=500&sentinel_password=hidden", "+OK\r\n+PONG\r\n",
     "*2\r\n$6\r\nhidden\r\n$1\r\n1\r\n", true},
    {"redis+cluster", ":hidden@", "?timeout_ms=500", "+OK\r\n+PONG\r\n",
     "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$6\r\nhidden\r\n:1\r\n", true},
    {"redis+sentinel", ":other@", "/m?timeout_ms=500", "+PONG\r\n",
     "*2\r\n$6\r\nhidden\r\n$1\r\n1\r\n", false},
};

START_TEST(a_server_named_as_the_password)
{
    char url[128];
    pool = connector_pool();
    proxy.reply = tellers[_i].reply;
    proxy.reply_bytes = strlen(proxy.reply);
    proxy.greeting = tellers[_i].greeting;
    start_proxy();
    snprintf(url, sizeof(url), "%s://%s127.0.0.1:%u%s", tellers[_i].scheme, tellers[_i].user,
             (unsigned)proxy.port, tellers[_i].more);
    open_url(url);
    ck_assert_int_ne(connector_exists(connector, "n"), 0);
    if (tellers[_i].is_ours)
        expect_why("the server's message is omitted because it repeats the password");
    else
        ck_assert_ptr_nonnull(strstr(connector_why(connector), "hidden"));
    close_connector();
    stop_proxy();
    tierce__pool_destroy(pool);
}
END_TEST

/* A string, and items without end, that Redis may send, but no answer to what was asked. */
START_TEST(answers_that_are_too_large)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_PUT, TIERCE__STORE_LOOKUP,
                                                TIERCE__STORE_DELETE, TIERCE__STORE_LIST};
    struct connector_call call;
    char *items = malloc(1000000 * 4 + 20);
    size_t bytes = (size_t)snprintf(items, 20, "*1000001\r\n");
    for (int i = 0; i < 1000000; i++, bytes += 4)
        memcpy(items + bytes, ":1\r\n", 4);
    pool = connector_pool();
    proxy.reply = _i == 0 ? "$400000000\r\n" : items;
    proxy.reply_bytes = _i == 0 ? strlen(proxy.reply) : bytes;
    start_proxy();
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        open_port(proxy.port, "", "?connections=2&timeout_ms=500");
        connector_call_init(&call, ops[i], ops[i] == TIERCE__STORE_LIST ? NULL : "n", 0);
        call.req.buf = connector_object(pool, 1, 5);
        call.req.length = 5;
        call.req.each = no_name;
        int rc = connector_call_run(connector, &call);
        ck_assert_msg(rc == TIERCE_E_FORMAT, "operation %d: %d", (int)ops[i], rc);
        tierce__buf_release(call.req.buf);
        close_connector();
    }
    stop_proxy();
    tierce__pool_destroy(pool);
    free(items);
}
END_TEST

CHECK_MAIN("redis", .seconds = 120,
           .tests = {a_full_server, a_password, a_file_of_credentials, a_user_who_may_only_read,
                     a_replica_takes_no_stores, objects_of_others,
                     what_is_stored_is_a_string_with_a_ttl, each_allocation_fails_once,
                     a_server_comes_and_goes, a_failed_attempt_is_repeated,
                     a_server_that_says_nothing, half_open},
           .loops = {{cut_in_the_middle, 0, 10},
                     {wrong_answers, 0, sizeof(answers) / sizeof(*answers)},
                     {a_server_that_repeats_the_password, 0, 5},
                     {a_server_named_as_the_password, 0, 4},
                     {answers_that_are_too_large, 0, 2}})
