/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects from and to S3 through the connector, eight in flight; against the same bytes by plain
 * libcurl, eight in flight, without signatures, parts, deadlines and checks of answers, from and
 * into the same memory. Both sides use the same server in this process, which answers from memory:
 * the benchmark compares clients, not stores.
 */
#include <curl/curl.h>
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "core/chunk/pool.h"
#include "bench/bench.h"
#include "bench/remote/bench_s3_server.h"
#include "store/remote/connector.h"

#define OBJECT_BYTES    (16ull << 20)
#define IN_FLIGHT       8u
#define OBJECTS         32u          /* of a round */
#define BUFFER_BYTES    (256L << 10) /* as the connector's */
#define REQUEST_MS      60000u
#define SHARE_OF_MEMORY 16u

struct s3_case {
    const struct tierce__bench *bench;
    uint64_t bytes; /* of an object */
    uint8_t *object;
    struct tierce__bench_s3 *server;
    uint16_t port;
    struct tierce__pool *pool;
    struct tierce__buf *bufs[IN_FLIGHT];
    bool is_put;

    struct tierce__connector *connector;
    struct tierce__store_req reqs[IN_FLIGHT];
    struct tierce_plugin_name name;
    _Atomic int left, under_way; /* to begin; not over */
    _Atomic int status;
    sem_t over;

    CURLM *multi;
    struct plain {
        CURL *easy;
        uint8_t *memory;
        uint64_t bytes, done;
    } plain[IN_FLIGHT];
};

/* ---- ours ------------------------------------------------------------------------------------ */

static void begin(struct s3_case *c, struct tierce__store_req *req);

static void done(struct tierce__store_req *req)
{
    struct s3_case *c = req->arg;
    if (req->status != 0)
        atomic_store(&c->status, req->status);
    if (req->status == 0 && atomic_fetch_sub(&c->left, 1) > 0)
        begin(c, req);
    else if (atomic_fetch_sub(&c->under_way, 1) == 1)
        sem_post(&c->over);
}

static void begin(struct s3_case *c, struct tierce__store_req *req)
{
    size_t i = (size_t)(req - c->reqs);
    *req = (struct tierce__store_req){.op = c->is_put ? TIERCE__STORE_PUT : TIERCE__STORE_GET,
                                      .urgency = c->is_put ? TIERCE__CONNECTOR_STORE
                                                           : TIERCE__CONNECTOR_FETCH,
                                      .deadline_ns = tierce__deadline_in_ms(REQUEST_MS),
                                      .done = done,
                                      .arg = c,
                                      .names = &c->name,
                                      .name_count = 1,
                                      .buf = c->bufs[i],
                                      .length = c->bytes};
    c->connector->ops->submit(c->connector, req);
}

static int64_t run_ours(void *arg)
{
    struct s3_case *c = arg;
    uint64_t start = tierce__now_ns();
    atomic_store(&c->left, OBJECTS - IN_FLIGHT);
    atomic_store(&c->under_way, IN_FLIGHT);
    for (size_t i = 0; i < IN_FLIGHT; i++)
        begin(c, &c->reqs[i]);
    while (sem_wait(&c->over) != 0)
        ;
    int status = atomic_load(&c->status);
    return status != 0 ? status : (int64_t)(tierce__now_ns() - start);
}

/* ---- plain libcurl --------------------------------------------------------------------------- */

static size_t take(char *data, size_t one, size_t bytes, void *arg)
{
    struct plain *plain = arg;
    (void)one;
    if (bytes > plain->bytes - plain->done)
        return CURL_WRITEFUNC_ERROR;
    memcpy(plain->memory + plain->done, data, bytes);
    plain->done += bytes;
    return bytes;
}

static size_t give(char *data, size_t one, size_t room, void *arg)
{
    struct plain *plain = arg;
    uint64_t left = plain->bytes - plain->done;
    size_t bytes = left < room ? (size_t)left : room;
    (void)one;
    memcpy(data, plain->memory + plain->done, bytes);
    plain->done += bytes;
    return bytes;
}

static size_t drop(char *data, size_t one, size_t bytes, void *arg)
{
    (void)data;
    (void)one;
    (void)arg;
    return bytes;
}

static void begin_plain(struct s3_case *c, struct plain *plain)
{
    CURL *easy = plain->easy;
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/bucket/object", (unsigned)c->port);
    plain->done = 0;
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, plain);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, c->is_put ? drop : take);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, plain);
    if (c->is_put) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)plain->bytes);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, give);
        curl_easy_setopt(easy, CURLOPT_READDATA, plain);
        curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
        curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 0L);
    }
    curl_multi_add_handle(c->multi, easy);
}

/* Handles finished transfers and begins their successors. Returns the number without a
 * successor. */
static int end_plain(struct s3_case *c, uint32_t *left)
{
    int over = 0, more;
    for (CURLMsg *message; (message = curl_multi_info_read(c->multi, &more)) != NULL;) {
        struct plain *plain = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&plain);
        curl_multi_remove_handle(c->multi, plain->easy);
        if (code != CURLE_OK || plain->done != plain->bytes)
            return -EIO;
        if (*left > 0) {
            (*left)--;
            begin_plain(c, plain);
        } else {
            over++;
        }
    }
    return over;
}

static int64_t run_plain(void *arg)
{
    struct s3_case *c = arg;
    uint64_t start = tierce__now_ns();
    uint32_t left = OBJECTS - IN_FLIGHT;
    for (size_t i = 0; i < IN_FLIGHT; i++)
        begin_plain(c, &c->plain[i]);
    for (int under_way = IN_FLIGHT, running; under_way > 0;) {
        curl_multi_perform(c->multi, &running);
        int over = end_plain(c, &left);
        if (over < 0)
            return over;
        under_way -= over;
        if (running > 0 && over == 0)
            curl_multi_poll(c->multi, NULL, 0, 1000, NULL);
    }
    return (int64_t)(tierce__now_ns() - start);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int measure(struct s3_case *c, bool is_put)
{
    struct tierce__bench_side sides[] = {{.run = run_ours, .arg = c}, {.run = run_plain, .arg = c}};
    char name[64];
    c->is_put = is_put;
    int rc = tierce__bench_alternate(sides, 2, c->bench->seconds);
    if (rc < 0)
        return tierce__bench_fail(c->bench, "a transfer: %s", tierce_strerror(rc));
    double bytes = (double)(OBJECTS * c->bytes);
    snprintf(name, sizeof(name), "%s objects of %u MiB; 8 in flight", is_put ? "put" : "get",
             (unsigned)(c->bytes >> 20));
    tierce__bench_emit(c->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = bytes / sides[0].median_ns,
                                                             .limit = bytes / sides[1].median_ns,
                                                             .goal = 0.9});
    return 0;
}

/* Both sides bring every byte. */
static int check(struct s3_case *c)
{
    tierce__bench_run_fn *const runs[] = {run_ours, run_plain};
    c->is_put = false;
    for (size_t r = 0; r < 2; r++) {
        for (size_t i = 0; i < IN_FLIGHT; i++)
            memset(c->bufs[i]->data, 0x5a, c->bytes);
        int64_t rc = runs[r](c);
        if (rc < 0)
            return tierce__bench_fail(c->bench, "a transfer: %s", tierce_strerror((int)rc));
        for (size_t i = 0; i < IN_FLIGHT; i++) {
            if (!tierce__bench_filled(c->bufs[i]->data, c->bytes, 1))
                return tierce__bench_fail(c->bench, "the received bytes differ from the server's");
        }
    }
    return 0;
}

static int open_ours(struct s3_case *c)
{
    char url[128];
    int rc = tierce__pool_create(
        &c->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = IN_FLIGHT * c->bytes + (1u << 20)});
    for (size_t i = 0; i < IN_FLIGHT && rc == 0; i++)
        rc = tierce__pool_alloc(c->pool, &c->bufs[i], c->bytes);
    if (rc != 0)
        return rc;
    snprintf(url, sizeof(url), "s3://key:secret@bucket?endpoint=http://127.0.0.1:%u",
             (unsigned)c->port);
    return tierce__bench_connector(c->bench, &c->connector, url, c->pool, NULL);
}

static int open_plain(struct s3_case *c)
{
    c->multi = curl_multi_init();
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        c->plain[i] =
            (struct plain){.easy = curl_easy_init(), .memory = c->bufs[i]->data, .bytes = c->bytes};
        if (c->plain[i].easy == NULL || c->multi == NULL)
            return -ENOMEM;
    }
    return 0;
}

static void close_case(struct s3_case *c)
{
    if (c->connector != NULL)
        (void)c->connector->ops->close(c->connector, TIERCE__DEADLINE_NEVER);
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        if (c->plain[i].easy != NULL && c->multi != NULL)
            curl_multi_remove_handle(c->multi, c->plain[i].easy);
        curl_easy_cleanup(c->plain[i].easy);
        tierce__buf_release(c->bufs[i]);
    }
    if (c->multi != NULL)
        curl_multi_cleanup(c->multi);
    if (c->pool != NULL)
        tierce__pool_destroy(c->pool);
    tierce__bench_s3_stop(c->server);
    if (c->object != NULL)
        tierce__bench_unmap(c->object, c->bytes);
    sem_destroy(&c->over);
}

int tierce__bench_s3(const struct tierce__bench *bench)
{
    uint64_t share = bench->memory_bytes / SHARE_OF_MEMORY & ~((1ull << 20) - 1);
    struct s3_case c = {.bench = bench,
                        .bytes = share < OBJECT_BYTES ? share : OBJECT_BYTES,
                        .name = {.text = "object", .bytes = 6}};
    if (sem_init(&c.over, 0, 0) != 0)
        return tierce__bench_fail(bench, "no semaphore");
    c.object = tierce__bench_map(c.bytes);
    int rc = c.object != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        tierce__bench_fill(c.object, c.bytes, 1);
        rc = tierce__bench_s3_start(&c.server, c.object, c.bytes, &c.port);
    }
    if (rc == 0)
        rc = open_ours(&c);
    if (rc == 0)
        rc = open_plain(&c);
    if (rc != 0 && rc != -ECANCELED) /* whose error has been reported */
        rc = tierce__bench_fail(bench, "cannot begin: %s", tierce_strerror(rc));
    if (rc == 0)
        rc = check(&c);
    if (rc == 0)
        rc = measure(&c, false);
    if (rc == 0)
        rc = measure(&c, true);
    close_case(&c);
    return rc;
}
