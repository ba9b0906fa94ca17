/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of the ghost curves' thread in the processor time of a manager, which is a process of
 * its own that serves calls over gRPC on loopback: gets of 128 keys, and as many new keys for each
 * eighth of them. The thread's time is that of the manager's metrics.
 */
#include "bench/manager/bench_manager.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "bench/fleet/bench_manager_process.h"
#include "bench/manager/bench_manager_rpc.h"
#include "net/http_client.h"

#define BLOCKS_DEFAULT 524288u
#define METRIC         "\ntierce_ghost_cpu_seconds_total "

struct share_bench {
    const struct tierce__bench *bench;
    struct tierce__bench own; /* with a folder of its own */
    char folder[4096];
    struct tierce__bench_manager_process manager;
    struct tierce__bench_rpc r;
    struct tierce__curl *http;
    clockid_t clock; /* of the manager */
};

/* Seconds of a processor. */
struct used {
    double process, ghost;
};

static int look(struct share_bench *b, struct used *out)
{
    enum { METRICS_BYTES_MAX = 4 << 20 };
    char url[64], why[256] = "no such metric";
    struct tierce__curl_answer answer;
    struct timespec used = {0};
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/metrics", (unsigned)b->manager.admin_port);
    int rc = tierce__curl_call(
        &answer, b->http,
        &(struct tierce__curl_request){.url = url, .bytes_max = METRICS_BYTES_MAX}, why);
    clock_gettime(b->clock, &used);
    const char *at = rc == 0 && answer.body != NULL ? strstr(answer.body, METRIC) : NULL;
    out->process = (double)used.tv_sec + (double)used.tv_nsec / 1e9;
    out->ghost = at != NULL ? strtod(at + sizeof(METRIC) - 1, NULL) : 0;
    if (rc == 0)
        tierce__curl_answer_clear(&answer);
    return at != NULL ? 0 : tierce__bench_fail(b->bench, "%s: %s", url, why);
}

static int serve_for(struct share_bench *b, uint64_t ns, double *calls)
{
    const uint64_t calls_of_round = 2 * RPC_SESSIONS + RPC_CHAINS;
    int64_t rc = 0;
    uint64_t start = tierce__now_ns(), end = start + ns, rounds = 0;
    do {
        rc = tierce__bench_rpc_writes(&b->r);
        if (rc >= 0)
            rc = tierce__bench_rpc_chains(&b->r);
        rounds++;
    } while (rc >= 0 && tierce__now_ns() < end);
    *calls = (double)(rounds * calls_of_round) * 1e9 / (double)(tierce__now_ns() - start);
    return rc < 0 ? (int)rc : 0;
}

static int measure(struct share_bench *b)
{
    struct used before = {0}, after = {0};
    double calls = 0;
    uint64_t blocks = b->bench->blocks > 0 ? b->bench->blocks : BLOCKS_DEFAULT;
    int64_t filled = 0;
    while (filled >= 0 && (uint64_t)b->r.next_key < blocks)
        filled = tierce__bench_rpc_writes(&b->r);
    int rc = filled < 0 ? (int)filled : serve_for(b, tierce__bench_warm_ns(b->bench), &calls);
    if (rc == 0)
        rc = look(b, &before);
    if (rc == 0)
        rc = serve_for(b, (uint64_t)(b->bench->seconds * 1e9), &calls);
    if (rc == 0)
        rc = look(b, &after);
    if (rc < 0)
        return rc;
    double share = (after.ghost - before.ghost) / (after.process - before.process);
    tierce__bench_emit(
        b->bench, &(struct tierce__bench_row){
                      .case_name = "share of the ghost's thread in a manager that serves by gRPC",
                      .unit = "%",
                      .sense = TIERCE__BENCH_LESS_IS_BETTER,
                      .value = share > 0 ? 100 * share : 0.001,
                      .limit = 1,
                      .goal = 1,
                      .peer = "calls/s",
                      .peer_value = calls});
    return 0;
}

static int open_all(struct share_bench *b)
{
    char spec[4300];
    char *whole = realpath(b->bench->dir, NULL);
    if (whole == NULL)
        return -errno;
    int bytes = snprintf(b->folder, sizeof(b->folder), "%s/share", whole);
    free(whole);
    if (bytes < 0 || (size_t)bytes >= sizeof(b->folder))
        return -ENAMETOOLONG;
    if (mkdir(b->folder, 0700) != 0)
        return -errno;
    b->own.dir = b->folder;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/nfs/\", \"key_count_per_file\": 8}",
             b->folder);
    int rc = tierce__bench_manager_process_start(&b->manager, &b->own, "file", spec, NULL);
    if (rc == 0 && clock_getcpuclockid(b->manager.pid, &b->clock) != 0)
        rc = tierce__bench_fail(b->bench, "the manager's processor time is not known");
    if (rc == 0)
        rc = tierce__curl_create(&b->http, &(struct tierce__curl_opts){.timeout_ms = 10000});
    return rc == 0 ? tierce__bench_rpc_connect(&b->r, b->manager.port) : rc;
}

int tierce__bench_manager_share(const struct tierce__bench *bench)
{
    struct share_bench *b = tierce__calloc(1, sizeof(*b));
    if (b == NULL)
        return -ENOMEM;
    b->bench = b->r.bench = bench;
    b->own = *bench;
    int rc = open_all(b);
    if (rc == 0)
        rc = measure(b);
    tierce__bench_rpc_stop(&b->r);
    tierce__curl_destroy(b->http);
    tierce__bench_manager_process_stop(&b->manager);
    if (b->folder[0] != '\0')
        tierce__bench_remove(b->folder);
    tierce__free(b);
    return rc;
}
