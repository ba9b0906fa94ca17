/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that report to a manager, which is a process of its own. One client sends the reports of
 * all, one after the other, as fast as they are answered; all parts are at the address of one real
 * node, which the manager probes. The manager's processor time for each report, times the reports
 * that so many nodes send (each a quarter of the lease), is its share of one processor. The time
 * that the manager needs without reports, for probes, is not counted.
 */
#include "bench/fleet/bench_nodes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "bench/fleet/bench_manager_process.h"
#include "bench/fleet/bench_node.h"
#include "net/grpc/grpc_client.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_manager.h"

enum { CALL_MS = 20000, PAUSE_NS = 5000000, NODES_FEW = 100, NODES_MANY = 1000 };

#define REPORT_S        1.25 /* a quarter of the lease */
#define SHARE_GOAL      5    /* percent */
#define FIRST_S_MAX     3.0  /* until parts that are new have been probed */
#define IDLE_S_MAX      4.0 /* less than a lease: the parts of silent nodes are probed more often */
#define MEMORY_FOR_MANY (256ull << 20)

struct nodes_bench {
    const struct tierce__bench *bench;
    struct tierce__bench_node node;
    struct tierce__bench_manager_process manager;
    struct tierce__fleet_manager *client;
    clockid_t clock; /* of the manager */
};

static void on_done(struct tierce__fleet_call *call)
{
    *(bool *)call->arg = true;
}

/* 0, or why the manager did not take the report. */
static int report(struct nodes_bench *b, unsigned number, char why[256])
{
    char name[16], address[32];
    char incarnation[] = "0123456789abcdef0123456789abcdef";
    Meta__NodePart part, *parts[] = {&part};
    Meta__RegisterNodeRequest request;
    bool is_done = false;
    meta__node_part__init(&part);
    meta__register_node_request__init(&request);
    snprintf(name, sizeof(name), "n%u", number);
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)b->node.port);
    part.medium = META__NODE_MEDIUM__NM_MEMORY;
    part.incarnation = incarnation;
    part.capacity_bytes = 1 << 30;
    request.node = name;
    request.pool = (char *)(uintptr_t)TIERCE__BENCH_POOL;
    request.address = address;
    request.load_bytes_per_s = number * 1000;
    request.parts = parts;
    request.n_parts = 1;
    struct tierce__fleet_call call = {.method = "RegisterNode",
                                      .request = &request.base,
                                      .answers = &meta__register_node_response__descriptor,
                                      .deadline_ns = tierce__deadline_in_ms(CALL_MS),
                                      .done = on_done,
                                      .arg = &is_done};
    tierce__fleet_manager_start(b->client, &call);
    while (!is_done)
        tierce__fleet_manager_poll(b->client, call.deadline_ns);
    const Meta__RegisterNodeResponse *reply = (const Meta__RegisterNodeResponse *)call.reply;
    bool serves = call.status == 0 && reply->n_parts == 1 &&
                  reply->parts[0]->state == META__NODE_PART_STATE__NPS_SERVES;
    if (!serves)
        snprintf(why, 256, "%s", call.status == 0 ? "a part does not serve" : call.why);
    tierce__proto_free(call.reply);
    return serves ? 0 : TIERCE_E_REFUSED;
}

static int report_all(struct nodes_bench *b, unsigned count)
{
    char why[256] = "";
    for (unsigned i = 0; i < count; i++) {
        if (report(b, i, why) != 0)
            return tierce__bench_fail(b->bench, "a report of a node: %s", why);
    }
    return 0;
}

/* The manager listens before it leads. */
static int await_leader(struct nodes_bench *b)
{
    char why[256] = "";
    uint64_t end_ns = tierce__deadline_in_ms(CALL_MS);
    while (report(b, 0, why) != 0) {
        if (tierce__now_ns() > end_ns)
            return tierce__bench_fail(b->bench, "a report of a node: %s", why);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return 0;
}

static uint64_t used_ns(const struct nodes_bench *b)
{
    struct timespec used = {0};
    clock_gettime(b->clock, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static double at_most(const struct nodes_bench *b, double seconds_max)
{
    return b->bench->seconds < seconds_max ? b->bench->seconds : seconds_max;
}

/* The manager's share of a processor while nobody reports. */
static double idle_share(const struct nodes_bench *b)
{
    uint64_t used = used_ns(b), start_ns = tierce__now_ns();
    double seconds = at_most(b, IDLE_S_MAX);
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
    return (double)(used_ns(b) - used) / (double)(tierce__now_ns() - start_ns);
}

/* For some seconds. */
static int report_again_and_again(struct nodes_bench *b, unsigned count, double seconds,
                                  uint64_t *rounds)
{
    uint64_t start_ns = tierce__now_ns();
    int rc;
    *rounds = 0;
    do {
        rc = report_all(b, count);
        ++*rounds;
    } while (rc == 0 && (double)(tierce__now_ns() - start_ns) < seconds * 1e9);
    return rc;
}

static int measure(struct nodes_bench *b, unsigned count)
{
    char name[64];
    uint64_t rounds = 0;
    /* At first the registry is written, once for each node, and each part is probed. */
    int rc = report_again_and_again(b, count, at_most(b, FIRST_S_MAX), &rounds);
    if (rc < 0)
        return rc;
    double idle = idle_share(b);
    uint64_t used = used_ns(b), start_ns = tierce__now_ns();
    rc = report_again_and_again(b, count, b->bench->seconds, &rounds);
    if (rc < 0)
        return rc;
    double all_ns = (double)(used_ns(b) - used);
    double ns = all_ns - idle * (double)(tierce__now_ns() - start_ns);
    double share = ns / (double)(rounds * count) * count / REPORT_S / 1e9;
    snprintf(name, sizeof(name), "reports of %u nodes: the manager's share of a processor", count);
    tierce__bench_emit(b->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "%",
                                                   .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                   .value = share > 0 ? share * 100 : 0.001,
                                                   .limit = SHARE_GOAL,
                                                   .goal = 1,
                                                   .peer = "without reports",
                                                   .peer_value = idle * 100 + 0.001});
    return 0;
}

static int open_client(struct nodes_bench *b)
{
    char text[96], why[256];
    struct tierce__url url = {0};
    snprintf(text, sizeof(text), "fleet://127.0.0.1:%u/" TIERCE__BENCH_POOL,
             (unsigned)b->manager.port);
    int rc = tierce__url_parse(&url, text, why);
    const struct tierce__fleet_manager_opts opts = {.size = sizeof(opts), .url = &url};
    if (rc == 0)
        rc = tierce__fleet_manager_open(&b->client, &opts, why);
    tierce__url_clear(&url);
    if (rc != 0)
        return tierce__bench_fail(b->bench, "%s", why);
    if (clock_getcpuclockid(b->manager.pid, &b->clock) != 0)
        return tierce__bench_fail(b->bench, "the manager's processor time is not known");
    return 0;
}

int tierce__bench_nodes(const struct tierce__bench *bench)
{
    static const unsigned counts[] = {NODES_FEW, NODES_MANY};
    char spec[4300];
    struct nodes_bench b = {.bench = bench};
    char *whole = realpath(bench->dir, NULL);
    if (whole == NULL)
        return -errno;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/\"}", whole);
    free(whole);
    int rc = tierce__bench_node_start(&b.node, bench, 1 << 20);
    if (rc == 0)
        rc = tierce__bench_manager_process_start(&b.manager, bench, "file", spec,
                                                 TIERCE__BENCH_POOL);
    if (rc == 0)
        rc = open_client(&b);
    if (rc == 0)
        rc = await_leader(&b);
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts) && rc == 0; i++) {
        if (counts[i] == NODES_FEW || bench->memory_bytes >= MEMORY_FOR_MANY)
            rc = measure(&b, counts[i]);
    }
    tierce__fleet_manager_close(b.client);
    tierce__bench_manager_process_stop(&b.manager);
    tierce__bench_node_stop(&b.node);
    return rc;
}
