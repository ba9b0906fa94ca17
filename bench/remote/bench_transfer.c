/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects to a node's part in memory and back by the connector of transfer://, over TCP on
 * loopback, against a bare loop: as many connections, with a thread at each end, which sends the
 * same bytes behind a head of 32 bytes from memory and receives them into memory. Both have all
 * reads of a round in flight. Server and client are in this process, whose processor time is
 * therefore that of both ends.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/bench.h"
#include "bench/remote/bench_calls.h"
#include "core/chunk/pool.h"
#include "node/part/part.h"
#include "store/remote/connector.h"

enum { OBJECTS = 8, SLOTS = 4 * OBJECTS, LINKS = 2, PIPELINE = 8, HEAD = 32, CALL_MS = 60000 };

#define BYTES_MAX (2u << 20)

struct transfer_bench;

/* A connection of the bare loop. Its server's thread runs until the client's end is closed. */
struct bare_link {
    struct transfer_bench *b;
    unsigned number;
    int client, server;
    pthread_t thread, mover;
    bool has_thread;
    int rc;
};

struct transfer_bench {
    const struct tierce__bench *bench;
    uint64_t object_bytes;
    bool is_put;
    struct tierce__parts *parts;
    struct tierce__transfer_server *server;
    struct tierce__pool *pool;
    struct tierce__buf *bufs[OBJECTS];
    struct tierce__connector *connector;
    uint8_t *served;                    /* the bare server's memory */
    unsigned slots[OBJECTS], next_slot; /* where each object is in it; one link writes */
    struct bare_link links[LINKS];
};

/* ---- the connector --------------------------------------------------------------------------- */

static int64_t move_ours(void *arg)
{
    struct transfer_bench *b = arg;
    struct tierce__store_req reqs[OBJECTS];
    struct tierce_plugin_name names[OBJECTS];
    char texts[OBJECTS][16];
    for (size_t i = 0; i < OBJECTS; i++) {
        int bytes = snprintf(texts[i], sizeof(texts[i]), "i/s/%zu", i);
        names[i] = (struct tierce_plugin_name){texts[i], (size_t)bytes};
        reqs[i] = (struct tierce__store_req){
            .op = b->is_put ? TIERCE__STORE_PUT : TIERCE__STORE_GET,
            .urgency = b->is_put ? TIERCE__CONNECTOR_STORE : TIERCE__CONNECTOR_FETCH,
            .names = &names[i],
            .name_count = 1,
            .buf = b->bufs[i],
            .length = b->object_bytes};
    }
    return tierce__bench_calls_run(b->bench, b->connector, reqs, OBJECTS);
}

static int open_ours(struct transfer_bench *b)
{
    char why[256], url[64];
    int rc =
        tierce__parts_open(&b->parts,
                           &(struct tierce__parts_opts){.size = sizeof(struct tierce__parts_opts),
                                                        .memory_bytes = (uint64_t)SLOTS * BYTES_MAX,
                                                        .disk_path = ""},
                           why);
    if (rc == 0)
        rc = tierce__transfer_server_start(&b->server,
                                           &(struct tierce__transfer_server_opts){
                                               .size = sizeof(struct tierce__transfer_server_opts),
                                               .host = "127.0.0.1",
                                               .keeper = tierce__parts_keeper(b->parts)},
                                           why);
    if (rc != 0)
        return tierce__bench_fail(b->bench, "%s", why);
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/memory?connections=%d",
             (unsigned)tierce__transfer_server_port(b->server), LINKS);
    return tierce__bench_connector(b->bench, &b->connector, url, b->pool, NULL);
}

/* ---- the bare loop --------------------------------------------------------------------------- */

static int receive_all(int fd, void *bytes, size_t count)
{
    ssize_t n = recv(fd, bytes, count, MSG_WAITALL);
    return n == (ssize_t)count ? 0 : n < 0 ? -errno : -ECONNRESET;
}

static int send_all(int fd, const void *head, const void *bytes, size_t count)
{
    struct iovec pieces[2] = {{(void *)(uintptr_t)head, HEAD}, {(void *)(uintptr_t)bytes, count}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count > 0 ? 2 : 1};
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    return n == (ssize_t)(HEAD + count) ? 0 : n < 0 ? -errno : -ECONNRESET;
}

static uint8_t *slot_of(struct transfer_bench *b, unsigned number)
{
    return b->served + b->slots[number] * b->object_bytes;
}

/* A head: 'P' and an object follows, or 'G'; and the object's number. A write goes to other memory
 * than the object that it replaces, as in a keeper. */
static void *serve(void *arg)
{
    struct bare_link *link = arg;
    struct transfer_bench *b = link->b;
    uint8_t head[HEAD];
    int rc = 0;
    while (rc == 0 && receive_all(link->server, head, HEAD) == 0) {
        unsigned number = head[1];
        if (head[0] == 'P') {
            b->slots[number] = b->next_slot++ % SLOTS;
            rc = receive_all(link->server, slot_of(b, number), b->object_bytes);
        }
        if (rc == 0)
            rc = send_all(link->server, head, slot_of(b, number),
                          head[0] == 'P' ? 0 : b->object_bytes);
    }
    return NULL;
}

static int ask(struct transfer_bench *b, struct bare_link *link, unsigned object)
{
    uint8_t head[HEAD] = {b->is_put ? 'P' : 'G', (uint8_t)object};
    return send_all(link->client, head, b->bufs[object]->data, b->is_put ? b->object_bytes : 0);
}

/* One write after the other, as each is a reply of its own; reads are asked for together. */
static void *move_link(void *arg)
{
    struct bare_link *link = arg;
    struct transfer_bench *b = link->b;
    unsigned links = b->is_put ? 1 : LINKS, asked = link->number, read = asked;
    uint8_t head[HEAD];
    link->rc = 0;
    while (link->rc == 0 && read < OBJECTS) {
        unsigned ahead = b->is_put ? 1 : PIPELINE;
        for (; link->rc == 0 && asked < OBJECTS && asked < read + ahead * links; asked += links)
            link->rc = ask(b, link, asked);
        for (; link->rc == 0 && read < asked; read += links) {
            link->rc = receive_all(link->client, head, HEAD);
            if (link->rc == 0 && !b->is_put)
                link->rc = receive_all(link->client, b->bufs[read]->data, b->object_bytes);
        }
    }
    return NULL;
}

static int64_t move_bare(void *arg)
{
    struct transfer_bench *b = arg;
    unsigned links = b->is_put ? 1 : LINKS; /* one link of a connector never takes stores */
    uint64_t start_ns = tierce__now_ns();
    int rc = 0;
    for (unsigned i = 1; i < links; i++) {
        if (pthread_create(&b->links[i].mover, NULL, move_link, &b->links[i]) != 0)
            return tierce__bench_fail(b->bench, "no thread");
    }
    move_link(&b->links[0]);
    rc = b->links[0].rc;
    for (unsigned i = 1; i < links; i++) {
        pthread_join(b->links[i].mover, NULL);
        rc = rc == 0 ? b->links[i].rc : rc;
    }
    if (rc != 0)
        return tierce__bench_fail(b->bench, "the bare loop: %s", tierce_strerror(rc));
    return (int64_t)(tierce__now_ns() - start_ns);
}

static int open_link(struct bare_link *link, int listener)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof(address);
    int on = 1;
    link->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link->client < 0 || getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        connect(link->client, (struct sockaddr *)&address, bytes) != 0)
        return -errno;
    link->server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (link->server < 0)
        return -errno;
    setsockopt(link->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(link->server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    link->has_thread = pthread_create(&link->thread, NULL, serve, link) == 0;
    return link->has_thread ? 0 : -EAGAIN;
}

static int open_bare(struct transfer_bench *b)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;
    b->served = tierce__bench_map((uint64_t)SLOTS * BYTES_MAX);
    if (listener < 0 || b->served == NULL ||
        bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, LINKS) != 0)
        rc = -ENOMEM;
    for (unsigned i = 0; i < LINKS && rc == 0; i++) {
        b->links[i].b = b;
        b->links[i].number = i;
        rc = open_link(&b->links[i], listener);
    }
    if (listener >= 0)
        close(listener);
    return rc == 0 ? 0 : tierce__bench_fail(b->bench, "the bare loop cannot connect");
}

static void close_bare(struct transfer_bench *b)
{
    for (unsigned i = 0; i < LINKS; i++) {
        struct bare_link *link = &b->links[i];
        if (link->client >= 0)
            close(link->client);
        if (link->has_thread)
            pthread_join(link->thread, NULL);
        if (link->server >= 0)
            close(link->server);
    }
    if (b->served != NULL)
        tierce__bench_unmap(b->served, (uint64_t)SLOTS * BYTES_MAX);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Reads the objects that were written. */
static int check(struct transfer_bench *b, tierce__bench_run_fn *move)
{
    int64_t ns = 0;
    for (unsigned i = 0; i < OBJECTS; i++)
        tierce__bench_fill(b->bufs[i]->data, b->object_bytes, b->object_bytes + i);
    b->is_put = true;
    ns = move(b);
    for (unsigned i = 0; i < OBJECTS; i++)
        memset(b->bufs[i]->data, 0x5a, b->object_bytes);
    b->is_put = false;
    ns = ns < 0 ? ns : move(b);
    for (unsigned i = 0; i < OBJECTS && ns >= 0; i++) {
        if (!tierce__bench_filled(b->bufs[i]->data, b->object_bytes, b->object_bytes + i))
            return tierce__bench_fail(b->bench, "the bytes read differ from those written");
    }
    return ns < 0 ? (int)ns : 0;
}

/* One way of moving the objects. */
struct transfer_side {
    struct transfer_bench *b;
    tierce__bench_run_fn *move;
    uint64_t cpu_ns, rounds;
};

static uint64_t cpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Short rounds would measure the clock. */
static int64_t run_side(void *arg)
{
    struct transfer_side *side = arg;
    uint64_t start_ns = cpu_now_ns();
    int64_t ns = 0, sum_ns = 0;
    for (uint64_t i = 0; i < BYTES_MAX / side->b->object_bytes && ns >= 0; i++) {
        ns = side->move(side->b);
        sum_ns += ns;
    }
    side->cpu_ns += cpu_now_ns() - start_ns;
    side->rounds++;
    return ns < 0 ? ns : sum_ns;
}

static double cpu_s_per_gb(const struct transfer_side *side)
{
    return (double)side->cpu_ns / (double)side->rounds / (double)(OBJECTS * BYTES_MAX);
}

static void emit_cpu(const struct transfer_side sides[2], const char *what, unsigned kib)
{
    char name[64];
    snprintf(name, sizeof(name), "%s %u KiB; processor", what, kib);
    tierce__bench_emit(sides[0].b->bench, &(struct tierce__bench_row){
                                              .case_name = name,
                                              .unit = "CPU s/GB",
                                              .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                              .value = cpu_s_per_gb(&sides[0]),
                                              .limit = cpu_s_per_gb(&sides[1]),
                                              .goal = kib >= BYTES_MAX >> 10 ? 0.95 : 0.6,
                                          });
}

static int measure(struct transfer_bench *b, bool is_put)
{
    struct transfer_side moves[] = {{.b = b, .move = move_ours}, {.b = b, .move = move_bare}};
    struct tierce__bench_side sides[] = {{.run = run_side, .arg = &moves[0]},
                                         {.run = run_side, .arg = &moves[1]}};
    double bytes = (double)OBJECTS * BYTES_MAX;
    char name[64];
    unsigned kib = (unsigned)(b->object_bytes >> 10);
    b->is_put = is_put;
    int rc = tierce__bench_alternate(sides, 2, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s %u KiB", is_put ? "PUT" : "GET", kib);
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "GB/s",
                                     .value = bytes / sides[0].median_ns,
                                     .limit = bytes / sides[1].median_ns,
                                     .goal = b->object_bytes >= BYTES_MAX ? 0.95 : 0.6,
                                     .value_min = bytes / sides[0].max_ns,
                                     .value_max = bytes / sides[0].min_ns,
                                     .limit_min = bytes / sides[1].max_ns,
                                     .limit_max = bytes / sides[1].min_ns,
                                 });
    emit_cpu(moves, is_put ? "PUT" : "GET", kib);
    return 0;
}

static int measure_size(struct transfer_bench *b, uint64_t bytes)
{
    b->object_bytes = bytes;
    int rc = check(b, move_ours);
    if (rc == 0)
        rc = check(b, move_bare);
    if (rc == 0)
        rc = measure(b, false);
    return rc == 0 ? measure(b, true) : rc;
}

int tierce__bench_transfer(const struct tierce__bench *bench)
{
    static const uint64_t sizes[] = {BYTES_MAX, 64u << 10};
    struct transfer_bench b = {.bench = bench};
    for (unsigned i = 0; i < LINKS; i++)
        b.links[i].client = b.links[i].server = -1;
    int rc = tierce__pool_create(
        &b.pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                             .cap_bytes = 2ull * OBJECTS * BYTES_MAX});
    for (unsigned i = 0; i < OBJECTS && rc == 0; i++)
        rc = tierce__pool_alloc(b.pool, &b.bufs[i], BYTES_MAX);
    if (rc == 0)
        rc = open_ours(&b);
    if (rc == 0)
        rc = open_bare(&b);
    for (size_t i = 0; rc == 0 && i < sizeof(sizes) / sizeof(*sizes); i++)
        rc = measure_size(&b, sizes[i]);
    close_bare(&b);
    if (b.connector != NULL)
        (void)b.connector->ops->close(b.connector, tierce__deadline_in_ms(CALL_MS));
    tierce__transfer_server_stop(b.server, tierce__deadline_in_ms(CALL_MS));
    tierce__parts_close(b.parts, tierce__deadline_in_ms(CALL_MS));
    for (unsigned i = 0; i < OBJECTS; i++)
        tierce__buf_release(b.bufs[i]);
    tierce__pool_destroy(b.pool);
    return rc;
}
