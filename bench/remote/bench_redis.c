/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects to a redis-server of the benchmark's own, over TCP on loopback, and back: the connector
 * of Redis against hiredis, the C client of the Redis project, both with one object at a time, on
 * the same server. With hiredis a value is copied into its buffer on the way out, and on the way
 * back from its reply into the caller's memory, where the connector's is from the start.
 *
 * CPU is what this process spends, kernel included, and what the server spends is not.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#ifdef TIERCE_HAVE_HIREDIS
#include <hiredis.h>
#endif

#include "base/clock.h"
#include "core/chunk/pool.h"
#include "bench/bench.h"
#include "bench/remote/bench_redis_server.h"
#include "bench/remote/bench_calls.h"
#include "store/remote/connector.h"

enum { OBJECTS = 4, CALL_MS = 30000 };

#define ROUND_BYTES (64ULL << 20)

struct redis_bench {
    const struct tierce__bench *bench;
    struct tierce__bench_redis_server server;
    uint64_t object_bytes;
    struct tierce__pool *pool;
    struct tierce__buf *buf;
    struct tierce__connector *connector;
#ifdef TIERCE_HAVE_HIREDIS
    redisContext *context;
#endif
};

/* One way of moving a round of objects. */
struct redis_side {
    struct redis_bench *b;
    int (*move)(struct redis_bench *b, bool is_put, const char *name);
    bool is_put;
    uint64_t cpu_ns, rounds;
};

/* ---- the connector --------------------------------------------------------------------------- */

static int call(struct redis_bench *b, struct tierce__store_req *req)
{
    int64_t ns = tierce__bench_calls_try(b->connector, req, 1);
    return ns < 0 ? (int)ns : 0;
}

static int move_ours(struct redis_bench *b, bool is_put, const char *name)
{
    const struct tierce_plugin_name names = {.text = name, .bytes = strlen(name)};
    struct tierce__store_req req = {.op = is_put ? TIERCE__STORE_PUT : TIERCE__STORE_GET,
                                    .urgency =
                                        is_put ? TIERCE__CONNECTOR_STORE : TIERCE__CONNECTOR_FETCH,
                                    .names = &names,
                                    .name_count = 1,
                                    .buf = b->buf,
                                    .length = b->object_bytes};
    return call(b, &req);
}

static int open_connector(struct redis_bench *b)
{
    char url[64];
    int rc = tierce__pool_create(
        &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = 64u << 20});
    if (rc < 0)
        return rc;
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u?connections=2", (unsigned)b->server.port);
    return tierce__bench_connector(b->bench, &b->connector, url, b->pool, NULL);
}

/* ---- hiredis --------------------------------------------------------------------------------- */

#ifdef TIERCE_HAVE_HIREDIS

static int move_hiredis(struct redis_bench *b, bool is_put, const char *name)
{
    const char *object = (const char *)b->buf->data;
    size_t bytes[] = {3, strlen(name), b->object_bytes};
    redisReply *reply = redisCommandArgv(
        b->context, is_put ? 3 : 2, (const char *[]){is_put ? "SET" : "GET", name, object}, bytes);
    int rc = -EPROTO;
    if (reply != NULL && is_put && reply->type == REDIS_REPLY_STATUS)
        rc = 0;
    if (reply != NULL && !is_put && reply->type == REDIS_REPLY_STRING &&
        reply->len == b->object_bytes) {
        memcpy(b->buf->data, reply->str, b->object_bytes);
        rc = 0;
    }
    freeReplyObject(reply);
    return rc;
}

static int open_hiredis(struct redis_bench *b)
{
    b->context = redisConnect("127.0.0.1", b->server.port);
    return b->context != NULL && b->context->err == 0
               ? 0
               : tierce__bench_fail(b->bench, "hiredis cannot connect");
}

static void close_hiredis(struct redis_bench *b)
{
    redisFree(b->context);
}

#else

static int move_hiredis(struct redis_bench *b, bool is_put, const char *name)
{
    (void)b;
    (void)is_put;
    (void)name;
    return TIERCE_E_UNSUPPORTED;
}

static int open_hiredis(struct redis_bench *b)
{
    fprintf(stderr, "tierce bench: %s: built without hiredis: no limits\n", b->bench->name);
    return 0;
}

static void close_hiredis(struct redis_bench *b)
{
    (void)b;
}

#endif

/* ---- cases ----------------------------------------------------------------------------------- */

static uint64_t cpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int64_t run_side(void *arg)
{
    struct redis_side *side = arg;
    uint64_t start_ns = tierce__now_ns(), cpu_ns = cpu_now_ns();
    for (uint64_t i = 0; i < ROUND_BYTES / side->b->object_bytes; i++) {
        char name[16];
        snprintf(name, sizeof(name), "o%u", (unsigned)(i % OBJECTS));
        int rc = side->move(side->b, side->is_put, name);
        if (rc < 0)
            return tierce__bench_fail(side->b->bench, "%s: %s", name, tierce_strerror(rc));
    }
    side->cpu_ns += cpu_now_ns() - cpu_ns;
    side->rounds++;
    return (int64_t)(tierce__now_ns() - start_ns);
}

/* Checks that each side reads the other's values. */
static int check_side(struct redis_bench *b, int (*move)(struct redis_bench *, bool, const char *),
                      uint64_t stream)
{
    tierce__bench_fill(b->buf->data, b->object_bytes, stream);
    int rc = move(b, true, "o0");
    memset(b->buf->data, 0x5a, (size_t)b->object_bytes);
    if (rc == 0)
        rc = move_ours(b, false, "o0");
    if (rc < 0)
        return tierce__bench_fail(b->bench, "an object: %s", tierce_strerror(rc));
    if (!tierce__bench_filled(b->buf->data, b->object_bytes, stream))
        return tierce__bench_fail(b->bench, "the bytes read differ from those written");
    return 0;
}

static double cpu_s_per_gb(const struct redis_side *side)
{
    return side->rounds > 0 ? (double)side->cpu_ns / (double)side->rounds / (double)ROUND_BYTES : 0;
}

static int measure(struct redis_bench *b, bool is_put, bool has_peer)
{
    struct redis_side ours = {.b = b, .move = move_ours, .is_put = is_put};
    struct redis_side theirs = {.b = b, .move = move_hiredis, .is_put = is_put};
    struct tierce__bench_side sides[] = {{.run = run_side, .arg = &ours},
                                         {.run = run_side, .arg = &theirs}};
    char name[64];
    unsigned mib = (unsigned)(b->object_bytes >> 20);
    int rc = tierce__bench_alternate(sides, has_peer ? 2 : 1, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s %u MiB", is_put ? "SET" : "GET", mib);
    tierce__bench_emit(b->bench,
                       &(struct tierce__bench_row){
                           .case_name = name,
                           .unit = "GB/s",
                           .value = (double)ROUND_BYTES / sides[0].median_ns,
                           .limit = has_peer ? (double)ROUND_BYTES / sides[1].median_ns : 0,
                           .goal = is_put ? 1.5 : 0,
                       });
    snprintf(name, sizeof(name), "%s %u MiB; processor", is_put ? "SET" : "GET", mib);
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "CPU s/GB",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = cpu_s_per_gb(&ours),
                                     .limit = cpu_s_per_gb(&theirs),
                                     .goal = 1 / 0.6,
                                 });
    return 0;
}

static int measure_size(struct redis_bench *b, uint64_t bytes, bool has_peer)
{
    b->object_bytes = bytes;
    int rc = tierce__pool_alloc(b->pool, &b->buf, bytes);
    if (rc < 0)
        return rc;
    rc = check_side(b, move_ours, bytes);
    if (rc == 0 && has_peer)
        rc = check_side(b, move_hiredis, bytes + 1);
    for (unsigned i = 1; rc == 0 && i < OBJECTS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "o%u", i);
        rc = move_ours(b, true, name);
    }
    if (rc == 0)
        rc = measure(b, true, has_peer);
    if (rc == 0)
        rc = measure(b, false, has_peer);
    tierce__buf_release(b->buf);
    return rc;
}

int tierce__bench_redis(const struct tierce__bench *bench)
{
    static const uint64_t sizes[] = {1u << 20, 4u << 20, 16u << 20};
    struct redis_bench b = {.bench = bench};
#ifdef TIERCE_HAVE_HIREDIS
    bool has_peer = true;
#else
    bool has_peer = false;
#endif
    int rc = tierce__bench_redis_start(&b.server, bench);
    if (rc == 0)
        rc = open_connector(&b);
    if (rc == 0)
        rc = open_hiredis(&b);
    for (size_t i = 0; rc == 0 && i < sizeof(sizes) / sizeof(*sizes); i++)
        rc = measure_size(&b, sizes[i], has_peer);
    close_hiredis(&b);
    if (b.connector != NULL)
        (void)b.connector->ops->close(b.connector, tierce__deadline_in_ms(CALL_MS));
    tierce__pool_destroy(b.pool);
    tierce__bench_redis_stop(&b.server);
    return rc;
}
