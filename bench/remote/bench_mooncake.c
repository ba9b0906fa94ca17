/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects to a Mooncake Store of the benchmark's own, over TCP on loopback, and back: the connector
 * against Mooncake's own client in Python, which moves them from and to registered memory. Both
 * have one object under way, or four: four requests here, calls with four objects there. The memory
 * that they go to is a third process'. Beside them, in the same rounds, a node that is a process of
 * its own, by the connector of tierce://, with as many connections.
 */
#include <errno.h>
#include <limits.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "core/chunk/pool.h"
#include "bench/bench.h"
#include "bench/remote/bench_peer.h"
#include "store/remote/connector.h"

#define ROUND_BYTES (64ull << 20)
#define CALL_MS     30000u
#define DEPTH_MAX   4u
#define BYTE        'm' /* of all objects */

/* The client, and what starts the master and the memory. Its `count` names are PREFIX-0 and on. */
static const char script[] =
    "import ctypes, mmap, os, re, signal, socket, subprocess, sys, time\n"
    "os.environ['GLOG_minloglevel'] = '3'\n"
    "out = os.fdopen(os.dup(1), 'w', buffering=1)\n"
    "os.dup2(2, 1)\n"
    "try:\n"
    "    import mooncake\n"
    "    from mooncake.store import MooncakeDistributedStore\n"
    "    from importlib.metadata import packages_distributions, version\n"
    "except ImportError as error:\n"
    "    print('missing', error, file=out)\n"
    "    sys.exit()\n"
    "def end_with_parent():\n"
    "    ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "def run(*argv):\n"
    "    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,\n"
    "                            stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)\n"
    "def free_port():\n"
    "    with socket.socket() as s:\n"
    "        s.bind(('127.0.0.1', 0))\n"
    "        return str(s.getsockname()[1])\n"
    "def start_node():\n"
    "    node = subprocess.Popen([sys.argv[1], 'node', '--listen.resp_port=0', "
    "'--listen.lm=false',\n"
    "                             '--listen.http_port=0', '--control.socket=',\n"
    "                             '--memory.size=1GiB'], stdin=subprocess.DEVNULL,\n"
    "                            stderr=subprocess.PIPE, preexec_fn=end_with_parent)\n"
    "    told = re.search(rb'RESP (\\d+)', node.stderr.readline())\n"
    "    return node, told.group(1).decode()\n"
    "def connect(segment, address):\n"
    "    store = MooncakeDistributedStore()\n"
    "    assert store.setup('127.0.0.1', 'P2PHANDSHAKE', segment, 16 << 20, 'tcp', '', address) == "
    "0\n"
    "    return store\n"
    "if len(sys.argv) > 2:\n"
    "    store = connect(1 << 30, sys.argv[2])\n"
    "    print('ready', file=out)\n"
    "    time.sleep(1 << 30)\n"
    "folder, port = os.path.dirname(mooncake.__file__), free_port()\n"
    "master = run(os.path.join(folder, 'mooncake_master'), '-rpc_port', port,\n"
    "             '-metrics_port', free_port())\n"
    "for i in range(1000):\n"
    "    try:\n"
    "        socket.create_connection(('127.0.0.1', int(port))).close()\n"
    "        break\n"
    "    except OSError:\n"
    "        time.sleep(0.01)\n"
    "owner = run(sys.executable, '-c', sys.orig_argv[2], 'memory', '127.0.0.1:' + port)\n"
    "assert owner.stdout.readline() == b'ready\\n'\n"
    "store = connect(0, '127.0.0.1:' + port)\n"
    "memory = mmap.mmap(-1, 64 << 20)\n"
    "memory[:] = b'm' * len(memory)\n"
    "base = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
    "assert store.register_buffer(base, len(memory)) == 0\n"
    "node, node_port = start_node()\n"
    "print('ready', version(packages_distributions()['mooncake'][0]), port, node_port, file=out)\n"
    "for line in sys.stdin:\n"
    "    op, size, count, depth, prefix = line.split()\n"
    "    size, count, depth, good = int(size), int(count), int(depth), True\n"
    "    names = [prefix + '-' + str(i) for i in range(count)]\n"
    "    places, sizes = [base + size * i for i in range(depth)], [size] * depth\n"
    "    start = time.perf_counter_ns()\n"
    "    for at in range(0, count, depth):\n"
    "        if op == 'put':\n"
    "            done = store.batch_put_from(names[at:at + depth], places, sizes)\n"
    "            good &= done == [0] * depth\n"
    "        elif op == 'get':\n"
    "            good &= store.batch_get_into(names[at:at + depth], places, sizes) == sizes\n"
    "    ns = time.perf_counter_ns() - start\n"
    "    if op == 'delete':\n"
    "        good = store.batch_remove(names, True) == [0] * len(names)\n"
    "    good &= memory[0:depth * size] == b'm' * (depth * size)\n"
    "    print(ns if good else -1, file=out)\n";

struct mooncake_bench {
    const struct tierce__bench *bench;
    const char *python;
    struct tierce__bench_peer peer;
    char version[32];
    unsigned port, node_port;
    uint64_t object_bytes;
    unsigned depth; /* objects under way at once */
    struct tierce__pool *pool;
    struct tierce__buf *bufs[DEPTH_MAX];
    struct tierce__connector *connector, *node;
};

/* ---- one side and the other ------------------------------------------------------------------ */

struct bench_mooncake_slot {
    struct tierce__store_req req;
    struct tierce_plugin_name name;
    char text[24];
    sem_t done;
};

static void tell_done(struct tierce__store_req *req)
{
    sem_post(req->arg);
}

static void submit(const struct mooncake_bench *b, struct tierce__connector *connector,
                   struct bench_mooncake_slot *slot, enum tierce__store_op op,
                   struct tierce__buf *buf)
{
    slot->name = (struct tierce_plugin_name){.text = slot->text, .bytes = strlen(slot->text)};
    slot->req = (struct tierce__store_req){
        .op = op,
        .urgency = op == TIERCE__STORE_GET ? TIERCE__CONNECTOR_FETCH : TIERCE__CONNECTOR_STORE,
        .deadline_ns = tierce__deadline_in_ms(CALL_MS),
        .done = tell_done,
        .arg = &slot->done,
        .names = &slot->name,
        .name_count = op != TIERCE__STORE_PING,
        .buf = buf,
        .length = b->object_bytes};
    sem_init(&slot->done, 0, 0);
    connector->ops->submit(connector, &slot->req);
}

static int await(struct bench_mooncake_slot *slot)
{
    while (sem_wait(&slot->done) != 0)
        ;
    sem_destroy(&slot->done);
    return slot->req.status;
}

static int64_t run_connector(struct mooncake_bench *b, struct tierce__connector *connector,
                             enum tierce__store_op op, const char *prefix)
{
    struct bench_mooncake_slot slots[DEPTH_MAX];
    unsigned count = (unsigned)(ROUND_BYTES / b->object_bytes);
    uint64_t start_ns = tierce__now_ns();
    int rc = 0;
    for (unsigned i = 0; i < count + b->depth; i++) {
        struct bench_mooncake_slot *slot = &slots[i % b->depth];
        int status = i >= b->depth ? await(slot) : 0;
        rc = rc == 0 ? status : rc;
        if (i >= count)
            continue;
        snprintf(slot->text, sizeof(slot->text), "%s-%u", prefix, i);
        submit(b, connector, slot, op, op == TIERCE__STORE_DELETE ? NULL : b->bufs[i % b->depth]);
    }
    if (rc < 0)
        return tierce__bench_fail(b->bench, "an object: %s", tierce_strerror(rc));
    return (int64_t)(tierce__now_ns() - start_ns);
}

static int64_t run_ours(struct mooncake_bench *b, enum tierce__store_op op, const char *prefix)
{
    return run_connector(b, b->connector, op, prefix);
}

static int64_t run_node(struct mooncake_bench *b, enum tierce__store_op op, const char *prefix)
{
    return run_connector(b, b->node, op, prefix);
}

static int64_t run_theirs(struct mooncake_bench *b, enum tierce__store_op op, const char *prefix)
{
    const char *word = op == TIERCE__STORE_PUT ? "put" : op == TIERCE__STORE_GET ? "get" : "delete";
    char line[64];
    long long ns = -1;
    fprintf(b->peer.ask, "%s %llu %llu %u %s\n", word, (unsigned long long)b->object_bytes,
            (unsigned long long)(ROUND_BYTES / b->object_bytes), b->depth, prefix);
    if (fflush(b->peer.ask) != 0 || fgets(line, sizeof(line), b->peer.answer) == NULL ||
        sscanf(line, "%lld", &ns) != 1 || ns < 0)
        return tierce__bench_fail(b->bench, "Mooncake's client fails");
    return ns;
}

/* ---- cases ----------------------------------------------------------------------------------- */

typedef int64_t run_fn(struct mooncake_bench *b, enum tierce__store_op op, const char *prefix);

struct side {
    struct mooncake_bench *b;
    run_fn *run, *run_delete; /* where it was put */
    bool is_put;
};

/* Objects are immutable, so they are deleted before the next round. */
static int64_t run_side(void *arg)
{
    const struct side *side = arg;
    if (!side->is_put)
        return side->run(side->b, TIERCE__STORE_GET, "kept");
    int64_t ns = side->run(side->b, TIERCE__STORE_PUT, "new");
    int64_t rc = ns < 0 ? ns : side->run_delete(side->b, TIERCE__STORE_DELETE, "new");
    return rc < 0 ? rc : ns;
}

static int measure(struct mooncake_bench *b, bool is_put)
{
    struct side ours = {b, run_ours, run_theirs, is_put},
                theirs = {b, run_theirs, run_theirs, is_put},
                node = {b, run_node, run_node, is_put};
    struct tierce__bench_side sides[] = {{.run = run_side, .arg = &ours},
                                         {.run = run_side, .arg = &theirs},
                                         {.run = run_side, .arg = &node}};
    char name[40];
    int rc = tierce__bench_alternate(sides, 3, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s %u MiB%s", is_put ? "put" : "get",
             (unsigned)(b->object_bytes >> 20), b->depth > 1 ? "; four at once" : "");
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "GB/s",
                                     .value = (double)ROUND_BYTES / sides[0].median_ns,
                                     .limit = (double)ROUND_BYTES / sides[1].median_ns,
                                     .goal = 0.9,
                                     .peer = "a node",
                                     .peer_value = (double)ROUND_BYTES / sides[2].median_ns,
                                     .value_min = (double)ROUND_BYTES / sides[0].max_ns,
                                     .value_max = (double)ROUND_BYTES / sides[0].min_ns,
                                     .limit_min = (double)ROUND_BYTES / sides[1].max_ns,
                                     .limit_max = (double)ROUND_BYTES / sides[1].min_ns});
    return 0;
}

static bool is_right(const struct mooncake_bench *b, const struct tierce__buf *buf)
{
    return buf->data[0] == BYTE && memcmp(buf->data, buf->data + 1, b->object_bytes - 1) == 0;
}

static void fill(const struct mooncake_bench *b, int byte)
{
    for (unsigned i = 0; i < b->depth; i++)
        memset(b->bufs[i]->data, byte, b->object_bytes);
}

/* Checks that reads return the written bytes. */
static int check_read(struct mooncake_bench *b, run_fn *run)
{
    fill(b, 0);
    int64_t rc = run(b, TIERCE__STORE_GET, "kept");
    for (unsigned i = 0; rc >= 0 && i < b->depth; i++) {
        if (!is_right(b, b->bufs[i]))
            rc = tierce__bench_fail(b->bench, "the bytes read differ from those written");
    }
    return rc < 0 ? (int)rc : 0;
}

/* Checks that each side reads the other's objects; the node reads its own. */
static int check(struct mooncake_bench *b)
{
    fill(b, BYTE);
    int64_t rc = run_ours(b, TIERCE__STORE_PUT, "kept");
    if (rc >= 0)
        rc = run_node(b, TIERCE__STORE_PUT, "kept");
    if (rc >= 0)
        rc = run_theirs(b, TIERCE__STORE_GET, "kept");
    if (rc >= 0)
        rc = run_theirs(b, TIERCE__STORE_DELETE, "kept");
    if (rc >= 0)
        rc = run_theirs(b, TIERCE__STORE_PUT, "kept");
    if (rc >= 0)
        rc = check_read(b, run_ours);
    if (rc >= 0)
        rc = check_read(b, run_node);
    return rc < 0 ? (int)rc : 0;
}

static int measure_size(struct mooncake_bench *b, uint64_t bytes, unsigned depth)
{
    int rc = 0;
    b->object_bytes = bytes;
    b->depth = depth;
    for (unsigned i = 0; rc == 0 && i < depth; i++)
        rc = tierce__pool_alloc(b->pool, &b->bufs[i], bytes);
    if (rc == 0)
        rc = check(b);
    if (rc == 0)
        rc = measure(b, true);
    if (rc == 0)
        rc = measure(b, false);
    if (rc == 0 && (run_theirs(b, TIERCE__STORE_DELETE, "kept") < 0 ||
                    run_node(b, TIERCE__STORE_DELETE, "kept") < 0))
        rc = -ECANCELED;
    for (unsigned i = 0; i < depth; i++) {
        tierce__buf_release(b->bufs[i]);
        b->bufs[i] = NULL;
    }
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* -ENOTSUP: there is no Mooncake. */
static int start_peer(struct mooncake_bench *b)
{
    char line[256] = "", executable[PATH_MAX] = "";
    if (readlink("/proc/self/exe", executable, sizeof(executable) - 1) < 0)
        return -errno;
    int rc = tierce__bench_peer_start(&b->peer, b->python, script, executable);
    if (rc < 0 || fgets(line, sizeof(line), b->peer.answer) == NULL ||
        sscanf(line, "ready %31s %u %u", b->version, &b->port, &b->node_port) != 3) {
        fprintf(stderr,
                "tierce bench: %s: left out, %s has no package of Mooncake that runs; "
                "--python names another\n%s",
                b->bench->name, b->python, line);
        return -ENOTSUP;
    }
    return 0;
}

static int open_connector(struct mooncake_bench *b, struct tierce__connector **out, const char *url)
{
    int rc = tierce__bench_connector(b->bench, out, url, b->pool, NULL);
    if (rc < 0)
        return rc;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    struct bench_mooncake_slot slot = {.text = ""};
    submit(b, *out, &slot, TIERCE__STORE_PING, NULL);
    if (await(&slot) == 0)
        return 0;
    (*out)->ops->why(*out, why);
    return tierce__bench_fail(b->bench, "%s", why);
}

static int open_connectors(struct mooncake_bench *b)
{
    char url[512];
    int rc = tierce__pool_create(
        &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = 64u << 20,
                                              .shared = true});
    if (rc < 0)
        return rc;
    snprintf(url, sizeof(url), "mooncake://127.0.0.1:%u?connections=5&python=%s", b->port,
             b->python);
    rc = open_connector(b, &b->connector, url);
    snprintf(url, sizeof(url), "tierce://127.0.0.1:%u?connections=5", b->node_port);
    return rc == 0 ? open_connector(b, &b->node, url) : rc;
}

static void close_connector(struct tierce__connector *connector)
{
    if (connector != NULL)
        (void)connector->ops->close(connector, tierce__deadline_in_ms(CALL_MS));
}

int tierce__bench_mooncake(const struct tierce__bench *bench)
{
    static const uint64_t sizes[] = {1u << 20, 4u << 20, 16u << 20};
    struct mooncake_bench b = {.bench = bench,
                               .python = bench->python != NULL ? bench->python : "python3"};
    int rc = start_peer(&b);
    bool is_there = rc == 0;
    if (is_there)
        rc = open_connectors(&b);
    for (size_t i = 0; rc == 0 && i < sizeof(sizes) / sizeof(*sizes); i++)
        rc = measure_size(&b, sizes[i], 1);
    for (size_t i = 0; rc == 0 && i < sizeof(sizes) / sizeof(*sizes); i++)
        rc = measure_size(&b, sizes[i], DEPTH_MAX);
    close_connector(b.connector);
    close_connector(b.node);
    tierce__pool_destroy(b.pool);
    tierce__bench_peer_end(&b.peer);
    return is_there ? rc : 0;
}
