/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects by s3+nixl://, eight in flight, against the same objects by s3://, from and into the same
 * memory. The server is in this process and answers from memory. `tierce bench s3` compares s3://
 * with plain libcurl.
 */
#include "bench/remote/bench_nixl_objects.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "bench/remote/bench_calls.h"
#include "bench/remote/bench_s3_server.h"
#include "core/chunk/pool.h"

#define OBJECT_BYTES    (16ull << 20)
#define IN_FLIGHT       8u
#define ROUNDS          2u
#define SHARE_OF_MEMORY 16u

struct objects_bench {
    const struct tierce__bench *bench;
    uint64_t bytes; /* of an object */
    uint8_t *object;
    struct tierce__bench_s3 *server;
    struct tierce__pool *pool;
    struct tierce__buf *bufs[IN_FLIGHT];
    struct tierce__connector *nixl, *s3;
};

struct objects_side {
    struct objects_bench *b;
    struct tierce__connector *connector;
    bool is_put;
};

static int64_t run_side(void *arg)
{
    static const struct tierce_plugin_name name = {.text = "object", .bytes = 6};
    const struct objects_side *side = arg;
    struct tierce__store_req reqs[IN_FLIGHT];
    int64_t sum_ns = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < IN_FLIGHT; i++)
            reqs[i] = (struct tierce__store_req){
                .op = side->is_put ? TIERCE__STORE_PUT : TIERCE__STORE_GET,
                .urgency = side->is_put ? TIERCE__CONNECTOR_STORE : TIERCE__CONNECTOR_FETCH,
                .names = &name,
                .name_count = 1,
                .buf = side->b->bufs[i],
                .length = side->b->bytes};
        int64_t ns = tierce__bench_calls_run(side->b->bench, side->connector, reqs, IN_FLIGHT);
        if (ns < 0)
            return ns;
        sum_ns += ns;
    }
    return sum_ns;
}

/* Every byte arrives through NIXL. */
static int check(struct objects_bench *b)
{
    struct objects_side side = {b, b->nixl, false};
    for (size_t i = 0; i < IN_FLIGHT; i++)
        memset(b->bufs[i]->data, 0x5a, (size_t)b->bytes);
    int64_t ns = run_side(&side);
    for (size_t i = 0; i < IN_FLIGHT && ns >= 0; i++) {
        if (!tierce__bench_filled(b->bufs[i]->data, (size_t)b->bytes, 1))
            return tierce__bench_fail(b->bench, "the received bytes differ from the server's");
    }
    return ns < 0 ? (int)ns : 0;
}

static int measure(struct objects_bench *b, bool is_put)
{
    struct objects_side nixl = {b, b->nixl, is_put}, s3 = {b, b->s3, is_put};
    struct tierce__bench_side sides[] = {{.run = run_side, .arg = &nixl},
                                         {.run = run_side, .arg = &s3}};
    double bytes = (double)(ROUNDS * IN_FLIGHT * b->bytes);
    char name[64];
    int rc = tierce__bench_alternate(sides, 2, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s objects of %u MiB; 8 in flight", is_put ? "put" : "get",
             (unsigned)(b->bytes >> 20));
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = bytes / sides[0].median_ns,
                                                             .limit = bytes / sides[1].median_ns,
                                                             .goal = 0.5});
    return 0;
}

static int open_sides(struct objects_bench *b, const char *library)
{
    char url[4600];
    uint16_t port;
    b->object = tierce__bench_map((size_t)b->bytes);
    if (b->object == NULL)
        return -ENOMEM;
    tierce__bench_fill(b->object, (size_t)b->bytes, 1);
    int rc = tierce__bench_s3_start(&b->server, b->object, (size_t)b->bytes, &port);
    if (rc == 0)
        rc = tierce__pool_create(
            &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                  .cap_bytes = IN_FLIGHT * b->bytes + (1u << 20)});
    for (size_t i = 0; i < IN_FLIGHT && rc == 0; i++)
        rc = tierce__pool_alloc(b->pool, &b->bufs[i], b->bytes);
    if (rc != 0)
        return rc;
    snprintf(url, sizeof(url), "s3://key:secret@bucket?endpoint=http://127.0.0.1:%u",
             (unsigned)port);
    rc = tierce__bench_connector(b->bench, &b->s3, url, b->pool, NULL);
    if (rc != 0)
        return rc;
    snprintf(url, sizeof(url),
             "s3+nixl://key:secret@bucket?endpoint=http://127.0.0.1:%u&library=%s", (unsigned)port,
             library);
    return tierce__bench_connector(b->bench, &b->nixl, url, b->pool, NULL);
}

static void close_sides(struct objects_bench *b)
{
    struct tierce__connector *const connectors[] = {b->nixl, b->s3};
    for (size_t i = 0; i < sizeof(connectors) / sizeof(*connectors); i++) {
        if (connectors[i] != NULL)
            (void)connectors[i]->ops->close(connectors[i], TIERCE__DEADLINE_NEVER);
    }
    for (size_t i = 0; i < IN_FLIGHT; i++)
        tierce__buf_release(b->bufs[i]);
    if (b->pool != NULL)
        tierce__pool_destroy(b->pool);
    tierce__bench_s3_stop(b->server);
    if (b->object != NULL)
        tierce__bench_unmap(b->object, (size_t)b->bytes);
}

int tierce__bench_nixl_objects(const struct tierce__bench *bench, const char *library)
{
    uint64_t share = bench->memory_bytes / SHARE_OF_MEMORY & ~((1ull << 20) - 1);
    struct objects_bench b = {.bench = bench, .bytes = share < OBJECT_BYTES ? share : OBJECT_BYTES};
    int rc = open_sides(&b, library);
    if (rc != 0 && rc != -ECANCELED) /* whose error has been reported */
        rc = tierce__bench_fail(bench, "cannot begin: %s", tierce_strerror(rc));
    if (rc == 0)
        rc = check(&b);
    if (rc == 0)
        rc = measure(&b, false);
    if (rc == 0)
        rc = measure(&b, true);
    close_sides(&b);
    return rc;
}
