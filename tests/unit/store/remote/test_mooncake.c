/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector of Mooncake on bad days: a bridge that does not start, dies, hangs and answers
 * nonsense (a script in its place), and a real one whose master, memory or parent goes away.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "connector_harness.h"
#include "mooncake_server.h"

#include <pthread.h>

static struct mooncake_server server;
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static char fake[80]; /* the script, in a folder of its own */

static int try_url(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void open_url(const char *url)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    int rc = try_url(url, why);
    ck_assert_msg(rc == 0, "%s", why);
}

static size_t count_bridges(pid_t *pid)
{
    return mooncake_children("seats=", pid);
}

static void close_connector(void)
{
    pid_t pid;
    struct tierce__pool_stats stats;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    ck_assert_uint_eq(count_bridges(&pid), 0);
    tierce__pool_destroy(pool);
}

/* Until the connector does it: a bridge that ended soon is not started again at once. */
static void await_ping(void)
{
    while (connector_ping(connector) != 0)
        server_pause_ms(10);
}

/* ---- a script in its place ------------------------------------------------------------------- */

/* Says hello and answers each request with what is right for an empty object store that takes
 * everything, but for what `device` tells it to do. */
static const char script[] =
    "#!/usr/bin/env python3\n"
    "import mmap, os, signal, socket, struct, sys, threading, time\n"
    "options = dict(a.split('=', 1) for a in sys.argv[1:] if '=' in a)\n"
    "mode = options['device']\n"
    "control = socket.socket(fileno=3)\n"
    "def hello(status, text, magic=b'tierce-1', size=None):\n"
    "    size = len(text) if size is None else size\n"
    "    control.sendall(struct.pack('<8sII', magic, status, size) + text)\n"
    "def hang():\n"
    "    while True: time.sleep(1000)\n"
    "seats = int(options['seats'])\n"
    "for fd in range(5 + seats, 1024):\n"
    "    try: os.fstat(fd)\n"
    "    except OSError: continue\n"
    "    hello(1, b'a descriptor too many'); hang()\n"
    "if signal.pthread_sigmask(signal.SIG_BLOCK, []) or signal.getsignal(signal.SIGUSR1):\n"
    "    hello(1, b'signals'); hang()\n"
    "if mode == 'dies-first': sys.exit(3)\n"
    "if mode == 'mute': hang()\n"
    "if mode == 'no-hello': hello(0, b'', b'HTTP/1.1'); hang()\n"
    "if mode == 'long-hello': hello(1, b'', size=1 << 30); hang()\n"
    "if mode == 'half-hello': hello(1, b'x', size=10); sys.exit(0)\n"
    "if mode == 'sorry': hello(1, b'no master there'); hang()\n"
    "pool = mmap.mmap(4, 0)\n"
    "def serve(seat):\n"
    "    calls = 0\n"
    "    while True:\n"
    "        head = seat.recv(40, socket.MSG_WAITALL)\n"
    "        if len(head) < 40: return\n"
    "        magic, op, count, text, place, offset, length = struct.unpack('<IIIIQQQ', head)\n"
    "        seat.recv(2 * count + text, socket.MSG_WAITALL)\n"
    "        result, zero = {1: 0, 2: length, 3: 0, 4: 0}[op], 0\n"
    "        if op == 2: pool[place:place + length] = b'g' * length\n"
    "        if op == 2 and mode == 'dies': os._exit(0)\n"
    "        if op == 2 and mode == 'hangs':\n"
    "            while True: pool[place:place + length] = b'h' * length; time.sleep(.001)\n"
    "        if op == 2 and mode == 'stops': os.kill(0, signal.SIGSTOP); hang()\n"
    "        if op == 2 and mode == 'half':\n"
    "            seat.sendall(struct.pack('<II', magic, 0)); os._exit(0)\n"
    "        if op == 2 and mode == 'magic': magic += 1\n"
    "        if op == 2 and mode == 'zero': zero = 1 << 20\n"
    "        if op == 2 and mode == 'more': result = length + 1\n"
    "        if op == 2 and mode == 'nothing': result = 0\n"
    "        if op == 2 and mode == 'less': result = length - 1\n"
    "        if op == 1 and mode == 'exists': result = count + 1\n"
    "        if op == 3 and mode == 'put': result = 5\n"
    "        if op == 4 and mode == 'delete': result = 1\n"
    "        if op == 2 and mode.startswith('-'): result = int(mode)\n"
    "        seat.sendall(struct.pack('<IIq', magic, zero, result))\n"
    "        if op == 2 and mode == 'chatters': control.sendall(b'and another thing')\n"
    "hello(0, b'')\n"
    "for i in range(seats):\n"
    "    threading.Thread(target=serve, args=(socket.socket(fileno=5 + i),), daemon=True).start()\n"
    "control.recv(1)\n"
    "os._exit(0)\n";

static void open_fake(const char *mode, const char *more)
{
    char url[512];
    snprintf(fake, sizeof(fake), "/tmp/tierce-bridge-XXXXXX");
    temp_folder_make(fake);
    snprintf(fake + strlen(fake), sizeof(fake) - strlen(fake), "/python");
    FILE *file = fopen(fake, "w");
    ck_assert(file != NULL && fputs(script, file) >= 0);
    fclose(file);
    ck_assert_int_eq(chmod(fake, 0700), 0);
    snprintf(url, sizeof(url), "mooncake://nowhere?python=%s&device=%s%s", fake, mode, more);
    pool = connector_pool();
    open_url(url);
}

static void end_fake(void)
{
    close_connector();
    unlink(fake);
    *strrchr(fake, '/') = '\0';
    ck_assert_int_eq(rmdir(fake), 0);
}

/* A GET whose bytes are not looked at. */
static int get(const char *name, uint64_t bytes)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, name, 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, bytes), 0);
    call.req.length = bytes;
    int rc = connector_call_run(connector, &call);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    return rc;
}

static void expect_why(const char *part)
{
    ck_assert_msg(strstr(connector_why(connector), part) != NULL, "%s", connector_why(connector));
}

/* What is open here, blocked and caught here is not so there. */
START_TEST(a_bridge_starts_clean)
{
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    signal(SIGUSR2, SIG_IGN);
    int extra = fcntl(open("/dev/null", O_RDONLY), F_DUPFD, 300);
    ck_assert_int_ge(extra, 300);
    open_fake("well", "&connections=20");
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(get("x", 100000), 0);
    ck_assert_str_eq(connector_why(connector), "");
    end_fake();
}
END_TEST

START_TEST(a_bridge_that_does_not_start)
{
    static const struct {
        const char *mode, *why;
        int status;
    } cases[] = {
        {"dies-first", "ended before it was ready", TIERCE_E_DOWN},
        {"no-hello", "is not a bridge", TIERCE_E_FORMAT},
        {"long-hello", "is not a bridge", TIERCE_E_FORMAT},
        {"half-hello", "is not a bridge", TIERCE_E_FORMAT},
        {"sorry", "no master there", TIERCE_E_DOWN},
    };
    pid_t pid;
    open_fake(cases[_i].mode, "");
    ck_assert_int_eq(connector_ping(connector), cases[_i].status);
    expect_why(cases[_i].why);
    ck_assert_uint_eq(count_bridges(&pid), 0);
    int rc = connector_ping(connector);
    ck_assert(rc == TIERCE_E_DOWN || rc == cases[_i].status);
    ck_assert_uint_eq(connector_stats(connector).connections, 0);
    end_fake();
}
END_TEST

START_TEST(there_is_no_such_python)
{
    pool = connector_pool();
    open_url("mooncake://127.0.0.1:1?python=/nowhere/python");
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    expect_why("/nowhere/python cannot be started: No such file");
    close_connector();
}
END_TEST

/* The real script in an interpreter that has no Mooncake, or with a master that is not there. */
START_TEST(it_says_why_it_does_not_start)
{
    char log[] = "/tmp/tierce-bridge-log-XXXXXX", url[200];
    struct stat st;
    close(mkstemp(log));
    unlink(log);
    snprintf(url, sizeof(url), "mooncake://127.0.0.1:1?timeout=1s&log=%s", log);
    pool = connector_pool();
    open_url(url);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    expect_why("the bridge: ");
    close_connector();
    ck_assert_int_eq(stat(log, &st), 0);
    ck_assert_int_gt(st.st_size, 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    unlink(log);
}
END_TEST

/* It is ended for it, and what comes next is for another one. */
START_TEST(a_bridge_that_answers_nonsense)
{
    static const char *const modes[] = {"magic", "zero",   "more",   "nothing", "half",
                                        "dies",  "exists", "delete", "put"};
    const char *mode = modes[_i];
    pid_t first = 0, second = 0;
    open_fake(mode, "");
    if (_i != 6)
        ck_assert_int_eq(connector_ping(connector), 0);
    (void)count_bridges(&first);
    int rc = _i < 6    ? get("x", 50000)
             : _i == 6 ? connector_exists(connector, "x")
             : _i == 7 ? connector_delete(connector, "x")
                       : connector_put(connector, pool, "x", 1, 100);
    ck_assert_int_eq(rc, _i == 4 || _i == 5 ? TIERCE_E_DOWN : TIERCE_E_FORMAT);
    expect_why(_i == 4 || _i == 5 ? "ended during a request" : "an invalid answer");
    ck_assert_uint_eq(count_bridges(&second), 0);
    if (_i == 6)
        while (get("x", 10) != 0)
            server_pause_ms(10);
    else
        await_ping();
    ck_assert_uint_eq(count_bridges(&second), 1);
    ck_assert_int_ne(first, second);
    ck_assert_uint_ge(connector_stats(connector).connects, 1);
    end_fake();
}
END_TEST

/* A process that sends unsolicited answers gets no more requests, and callers need not know that it
 * was ended. */
START_TEST(a_bridge_that_chatters)
{
    open_fake("chatters", "");
    for (int i = 0; i < 3; i++) {
        int rc = get("x", 1000);
        ck_assert(rc == 0 || rc == TIERCE_E_DOWN);
        server_pause_ms(20);
    }
    end_fake();
}
END_TEST

/* Errors of Mooncake, and who must not go on after them. */
START_TEST(errors_of_mooncake)
{
    static const struct {
        const char *mode, *more;
        int status;
        bool ends;
    } cases[] = {
        {"-704", "", TIERCE_E_MISS, false},
        {"-703", "", TIERCE_E_MISS, false},
        {"-707", "", TIERCE_E_MISS, false},
        {"-600", "", TIERCE_E_FORMAT, false},
        {"-200", "", TIERCE_E_FULL, false},
        {"-900", "", TIERCE_E_DOWN, false},
        {"-1", "", TIERCE_E_DOWN, false},
        {"-800", "", TIERCE_E_DOWN, false},
        {"less", "", TIERCE_E_FORMAT, false},
        {"-800", "&protocol=rdma", TIERCE_E_DOWN, true},
        {"-899", "&protocol=rdma", TIERCE_E_DOWN, true},
    };
    pid_t pid;
    open_fake(cases[_i].mode, cases[_i].more);
    ck_assert_int_eq(get("x", 1000), cases[_i].status);
    ck_assert_uint_eq(count_bridges(&pid), cases[_i].ends ? 0 : 1);
    end_fake();
}
END_TEST

static void begin_get(struct connector_call *call, uint32_t deadline_ms)
{
    connector_call_init(call, TIERCE__STORE_GET, "x", 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call->req.buf, 100000), 0);
    call->req.length = 100000;
    call->req.deadline_ns = tierce__deadline_in_ms(deadline_ms);
    connector->ops->submit(connector, &call->req);
}

/* It may write into the buffer until it is dead: so long the buffer is kept. */
START_TEST(a_bridge_that_hangs)
{
    struct connector_call call;
    pid_t pid;
    open_fake(_i == 0 ? "hangs" : "stops", "&timeout=1s");
    ck_assert_int_eq(connector_ping(connector), 0);
    begin_get(&call, 100);
    ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_DEADLINE);
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 1);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 2);
    while (atomic_load(&call.req.buf->refs) > 1)
        server_pause_ms(10);
    ck_assert_uint_eq(count_bridges(&pid), 0);
    memset(call.req.buf->data, 'm', 100000);
    tierce__buf_release(call.req.buf);
    while (connector_stats(connector).calls_hanging > 0)
        server_pause_ms(1);
    await_ping();
    end_fake();
}
END_TEST

static void *write_forever(void *arg)
{
    struct connector_call *call = arg;
    ck_assert_int_eq(connector_call_wait(call), TIERCE_E_CANCELLED);
    return NULL;
}

/* Neither a bridge that hangs in a call nor one that never says hello holds up a close. */
START_TEST(close_ends_what_hangs)
{
    struct connector_call call;
    pthread_t waiter;
    open_fake(_i == 0 ? "hangs" : _i == 1 ? "stops" : "mute", "");
    if (_i < 2)
        ck_assert_int_eq(connector_ping(connector), 0);
    begin_get(&call, 30000);
    ck_assert_int_eq(pthread_create(&waiter, NULL, write_forever, &call), 0);
    server_pause_ms(50);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(20)));
    pthread_join(waiter, NULL);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    open_url("mooncake://nowhere?python=/nowhere");
    end_fake();
}
END_TEST

START_TEST(a_bridge_that_was_killed_costs_no_request)
{
    pid_t pid = 0, next = 0;
    siginfo_t dead;
    open_fake("well", "");
    await_ping();
    server_pause_ms(150); /* else its successor would wait for a moment */
    ck_assert_uint_eq(count_bridges(&pid), 1);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &dead, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(get("x", 1000), 0);
    ck_assert_uint_eq(count_bridges(&next), 1);
    end_fake();
}
END_TEST

START_TEST(urls_that_are_refused)
{
    static const struct {
        const char *url, *why;
    } cases[] = {
        {"mooncake://", "one master"},
        {"mooncake://a,b", "one master"},
        {"mooncake:///x", "one master"},
        {"mooncake://u:p@a", "no user"},
        {"mooncake://a/b", "no path"},
        {"mooncake://a?ttl=1h", "ttl"},
        {"mooncake://a?connections=1", "connections"},
        {"mooncake://a?replicas=0", "replicas"},
        {"mooncake://a?timeout=10ms", "timeout"},
        {"mooncake://a?log=here", "log"},
    };
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    pool = connector_pool();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ck_assert_int_eq(try_url(cases[i].url, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, cases[i].why) != NULL, "%s: %s", cases[i].url, why);
    }
    tierce__pool_destroy(pool);
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = 1 << 20};
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
    ck_assert_int_eq(try_url("mooncake://a", why), TIERCE_E_UNSUPPORTED);
    tierce__pool_destroy(pool);
    ck_assert(tierce__connector_needs_shared_pool("mooncake://a"));
    ck_assert(tierce__connector_needs_shared_pool("python:///a.py:B"));
    ck_assert(!tierce__connector_needs_shared_pool("redis://a"));
    static const char *const shared[] = {"fleet://a/g?mooncake_python=p",
                                         "fleet+tls://a/g?token_file=t&mooncake_python=p"};
    static const char *const own[] = {"fleet://a/g", "fleet://a/mooncake_python=p",
                                      "fleet://a/g redis://h?mooncake_python=p",
                                      "redis://h?mooncake_python=p"};
    for (size_t i = 0; i < 2; i++)
        ck_assert(tierce__connector_needs_shared_pool(shared[i]));
    for (size_t i = 0; i < 4; i++)
        ck_assert(!tierce__connector_needs_shared_pool(own[i]));
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    uint64_t made = 1;
    pool = connector_pool();
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= made; nth++) {
        tierce__alloc_fail_nth(nth);
        int rc = try_url("mooncake://a?log=/tmp/x&python=/nowhere", why);
        if (rc == 0) {
            rc = connector_ping(connector);
            ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
        }
        uint64_t count = tierce__alloc_fail_nth(0);
        ck_assert(rc == -ENOMEM || rc == TIERCE_E_DOWN);
        made = count >= nth ? nth + 1 : nth;
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_gt(made, 8);
    tierce__pool_destroy(pool);
}
END_TEST

/* ---- the real one ---------------------------------------------------------------------------- */

static void start_real(const char *more)
{
    char url[512];
    ck_assert(mooncake_start(&server));
    snprintf(url, sizeof(url), "mooncake://127.0.0.1:%u?python=%s%s", (unsigned)server.port,
             mooncake_python(), more);
    pool = connector_pool();
    open_url(url);
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 500000), 0);
}

static void end_real(void)
{
    close_connector();
    mooncake_stop(&server);
}

/* All kinds of requests at once: each waits for Mooncake's own timeout. */
static void expect_all_down(void)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_GET,
                                                TIERCE__STORE_PUT, TIERCE__STORE_DELETE};
    struct connector_call calls[4];
    for (size_t i = 0; i < 4; i++) {
        connector_call_init(&calls[i], ops[i], ops[i] == TIERCE__STORE_PUT ? "b" : "a", 0);
        calls[i].req.buf = connector_object(pool, 1, 500000);
        calls[i].req.length = 500000;
        connector->ops->submit(connector, &calls[i].req);
    }
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(connector_call_wait(&calls[i]), TIERCE_E_DOWN);
        ck_assert_uint_eq(atomic_load(&calls[i].req.buf->refs), 1);
        tierce__buf_release(calls[i].req.buf);
    }
}

START_TEST(the_master_goes_and_comes_back)
{
    start_real("&timeout=3s");
    server_kill(&server.master);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    expect_why("Mooncake's error -9");
    expect_all_down();
    ck_assert(mooncake_run_master(&server));
    /* The master has lost all objects; the memory registers again automatically. */
    while (connector_put(connector, pool, "a", 2, 500000) != 0)
        server_pause_ms(50);
    ck_assert_int_eq(connector_get(connector, pool, "a", 2, 0, 500000), 0);
    end_real();
}
END_TEST

/* Whoever has the object does not answer: Mooncake's own timeout ends the call. */
START_TEST(the_memory_hangs_and_goes_on)
{
    struct connector_call call;
    start_real("&timeout=3s");
    ck_assert_int_eq(connector_put(connector, pool, "large", 3, 16 << 20), 0);
    kill(server.owner, SIGSTOP);
    ck_assert_int_eq(waitpid(server.owner, NULL, WUNTRACED), server.owner); /* all its threads */
    connector_call_init(&call, TIERCE__STORE_GET, "large", 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, 16 << 20), 0);
    call.req.length = 16 << 20;
    call.req.deadline_ns = tierce__deadline_in_ms(100);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    ck_assert_int_eq(connector_ping(connector), 0); /* the master does answer */
    while (atomic_load(&call.req.buf->refs) > 1)
        server_pause_ms(10);
    memset(call.req.buf->data, 'm', 16 << 20);
    kill(server.owner, SIGCONT);
    ck_assert_int_eq(connector_get(connector, pool, "large", 3, 0, 16 << 20), 0);
    ck_assert_int_eq(call.req.buf->data[0], 'm');
    ck_assert_int_eq(memcmp(call.req.buf->data, call.req.buf->data + 1, (16 << 20) - 1), 0);
    tierce__buf_release(call.req.buf);
    end_real();
}
END_TEST

static _Atomic bool working;

static void *work(void *arg)
{
    uint32_t number = (uint32_t)(uintptr_t)arg;
    char name[24];
    for (uint32_t i = 0; atomic_load(&working); i++) {
        snprintf(name, sizeof(name), "%u-%u", number, i % 8);
        int rc = connector_put(connector, pool, name, i % 8, 300000 + i % 8);
        ck_assert(rc == 0 || rc == TIERCE_E_DOWN);
        rc = connector_get(connector, pool, name, i % 8, 0, 300000 + i % 8);
        ck_assert(rc == 0 || rc == TIERCE_E_DOWN || rc == TIERCE_E_MISS);
        if (rc == TIERCE_E_DOWN)
            server_pause_ms(5);
    }
    return NULL;
}

/* Every read is right, and all requests are answered, however often the process is killed. */
START_TEST(the_bridge_is_killed_in_the_middle)
{
    pthread_t workers[4];
    start_real("");
    atomic_store(&working, true);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&workers[i], NULL, work, (void *)i), 0);
    for (int i = 0; i < 5; i++) {
        pid_t pid;
        server_pause_ms(30);
        while (count_bridges(&pid) == 0)
            server_pause_ms(5);
        kill(pid, SIGKILL);
    }
    server_pause_ms(50);
    atomic_store(&working, false);
    for (size_t i = 0; i < 4; i++)
        pthread_join(workers[i], NULL);
    await_ping();
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 500000), 0);
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 0);
    end_real();
}
END_TEST

/* A child of this process is the parent of a bridge, and of a child that has its sockets too. */
START_TEST(the_bridge_ends_with_its_parent)
{
    int told[2];
    pid_t bridge = 0;
    ck_assert(mooncake_start(&server));
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ck_assert_int_eq(pipe2(told, O_CLOEXEC), 0);
    pid_t parent = fork();
    if (parent == 0) {
        char url[300];
        snprintf(url, sizeof(url), "mooncake://127.0.0.1:%u?python=%s", (unsigned)server.port,
                 mooncake_python());
        pool = connector_pool();
        open_url(url);
        ck_assert_int_eq(connector_ping(connector), 0);
        ck_assert_uint_eq(count_bridges(&bridge), 1);
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, 0);
            server_pause_ms(20000);
            _exit(0);
        }
        ck_assert_int_eq(write(told[1], &bridge, sizeof(bridge)), sizeof(bridge));
        server_pause_ms(60000);
        _exit(1);
    }
    ck_assert_int_eq(read(told[0], &bridge, sizeof(bridge)), sizeof(bridge));
    kill(parent, SIGKILL);
    ck_assert_int_eq(waitpid(parent, NULL, 0), parent);
    ck_assert_int_eq(waitpid(bridge, NULL, 0), bridge); /* and not by us */
    mooncake_stop(&server);
}
END_TEST

static bool has_mooncake;

int main(void)
{
    has_mooncake = mooncake_is_there();
    return CHECK_RUN("mooncake", .seconds = 60, .at_once = true,
                     .tests = {has_mooncake ? the_master_goes_and_comes_back : NULL,
                               has_mooncake ? the_memory_hangs_and_goes_on : NULL,
                               has_mooncake ? the_bridge_is_killed_in_the_middle : NULL,
                               has_mooncake ? the_bridge_ends_with_its_parent : NULL,
                               a_bridge_starts_clean, there_is_no_such_python,
                               it_says_why_it_does_not_start, a_bridge_that_chatters,
                               a_bridge_that_was_killed_costs_no_request, urls_that_are_refused,
                               each_allocation_fails_once},
                     .loops = {{a_bridge_that_hangs, 0, 2},
                               {a_bridge_that_does_not_start, 0, 5},
                               {a_bridge_that_answers_nonsense, 0, 9},
                               {errors_of_mooncake, 0, 11},
                               {close_ends_what_hangs, 0, 3}});
}
