/* SPDX-License-Identifier: Apache-2.0 */
/* The directory's calls through the manager: what `tierce bench directory` times without messages,
 * sockets and the service. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "bench/manager/bench_manager_rpc.h"
#include "proto/kvcm/meta_service.pb-c.h"

enum {
    WORKERS = 4,    /* each sends one report at a time */
    CHANGES = 1000, /* of a report */
    REPORTS = 64,   /* of one round */
    CHAIN = 128,    /* keys of a lookup */
    FINDS = 64,     /* of one round */
    TRIES = 500,
    PAUSE_NS = 20000000,
};

static char group[] = "default";

struct worker {
    struct directory_calls *calls;
    uint32_t number;
    int64_t session;
    int32_t slot;
    int64_t next; /* change */
    struct tierce__bench_body body;
};

struct directory_calls {
    struct tierce__bench_rpc *r;
    struct worker workers[WORKERS];
    struct tierce__bench_body find;
    int64_t keys[2 * CHANGES];
    int32_t tiers[CHANGES];
    size_t started;
};

/* The key of a worker's change. */
static void key_of(int64_t key[2], uint32_t worker, int64_t change)
{
    uint64_t n = ((uint64_t)worker << 40) + (uint64_t)change;
    key[0] = (int64_t)tierce__bench_random(31, n);
    key[1] = (int64_t)tierce__bench_random(32, n);
}

/* Calls until the answer is not "later". Returns the reply's answer, or an error. */
static int report_once(struct worker *w, const Meta__ReportChunksRequest *request)
{
    int answer = META__REPORT_ANSWER__RA_LATER;
    for (int i = 0; i < TRIES && answer == META__REPORT_ANSWER__RA_LATER; i++) {
        struct tierce__bench_body body = {0};
        ProtobufCMessage *reply = NULL;
        if (i > 0)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        int rc = tierce__bench_body_write(&body, &request->base);
        if (rc == 0)
            rc = tierce__bench_rpc_call(w->calls->r, TIERCE__RPC_meta_report_chunks, &body, &reply);
        tierce__bench_body_free(&body);
        if (rc < 0)
            return rc;
        answer = (int)((Meta__ReportChunksResponse *)reply)->answer;
        tierce__proto_free(reply);
    }
    return answer;
}

static Meta__ReportChunksRequest report_of(const struct worker *w, Meta__ReportKind kind)
{
    Meta__ReportChunksRequest request = META__REPORT_CHUNKS_REQUEST__INIT;
    request.instance_group = group;
    request.session = w->session;
    request.slot = w->slot;
    request.kind = kind;
    request.sending = kind == META__REPORT_KIND__RK_CHANGES ? 0 : 1;
    request.first = kind == META__REPORT_KIND__RK_CHANGES ? w->next : 0;
    return request;
}

/* Joins, with empty contents. */
static int join(struct worker *w)
{
    char name[16];
    struct tierce__bench_body body = {0};
    ProtobufCMessage *reply = NULL;
    struct tierce__bench_rpc *r = w->calls->r;
    Meta__JoinDirectoryRequest request = META__JOIN_DIRECTORY_REQUEST__INIT;
    snprintf(name, sizeof(name), "bench-%u", w->number);
    request.instance_group = group;
    request.worker = name;
    int rc = tierce__bench_body_write(&body, &request.base);
    if (rc == 0)
        rc = tierce__bench_rpc_call(r, TIERCE__RPC_meta_join_directory, &body, &reply);
    tierce__bench_body_free(&body);
    if (rc < 0)
        return rc;
    const Meta__JoinDirectoryResponse *joined = (Meta__JoinDirectoryResponse *)reply;
    w->session = joined->session;
    w->slot = joined->slot;
    w->next = 1;
    bool has_joined =
        joined->header->status->code == META__ERROR_CODE__OK && joined->changes_max >= CHANGES;
    tierce__proto_free(reply);
    static const Meta__ReportKind kinds[] = {META__REPORT_KIND__RK_BEGIN,
                                             META__REPORT_KIND__RK_END};
    for (size_t i = 0; has_joined && rc >= 0 && i < 2; i++) {
        const Meta__ReportChunksRequest contents = report_of(w, kinds[i]);
        rc = report_once(w, &contents);
        has_joined = rc == META__REPORT_ANSWER__RA_DONE;
    }
    return rc < 0       ? rc
           : has_joined ? 0
                        : tierce__bench_fail(r->bench, "a worker could not join the directory");
}

/* ---- reports --------------------------------------------------------------------------------- */

static void report_next(struct worker *w);

static void report_done(void *arg, struct tierce__grpc_answer *answer)
{
    struct worker *w = arg;
    struct tierce__bench_rpc *r = w->calls->r;
    char why[TIERCE__PROTO_WHY_BYTES];
    ProtobufCMessage *reply = NULL;
    tierce__bench_body_free(&w->body);
    if (answer->status != TIERCE__GRPC_OK)
        r->rc = tierce__bench_fail(r->bench, "a report: %s", answer->message);
    if (r->rc == 0)
        r->rc = tierce__proto_unpack(&reply, tierce__rpcs[TIERCE__RPC_meta_report_chunks].reply,
                                     answer->body, answer->bytes, why);
    if (r->rc < 0 || reply == NULL)
        return;
    if (((Meta__ReportChunksResponse *)reply)->answer != META__REPORT_ANSWER__RA_DONE)
        r->rc = tierce__bench_fail(r->bench, "a report was not accepted");
    tierce__proto_free(reply);
    report_next(w);
}

/* The next changes of a worker: admissions of new keys. */
static void report_next(struct worker *w)
{
    struct directory_calls *d = w->calls;
    struct tierce__bench_rpc *r = d->r;
    if (d->started == REPORTS || r->rc < 0)
        return;
    d->started++;
    Meta__ReportChunksRequest request = report_of(w, META__REPORT_KIND__RK_CHANGES);
    for (int64_t i = 0; i < CHANGES; i++)
        key_of(&d->keys[2 * i], w->number, w->next + i);
    request.n_keys = 2 * CHANGES;
    request.keys = d->keys;
    request.n_tiers = CHANGES;
    request.tiers = d->tiers;
    w->next += CHANGES;
    r->rc = tierce__bench_body_write(&w->body, &request.base);
    if (r->rc == 0)
        r->rc = tierce__grpc_client_start(
            r->many,
            &(struct tierce__grpc_request){
                .path = tierce__rpcs[TIERCE__RPC_meta_report_chunks].grpc_path,
                .body = w->body.bytes,
                .bytes = w->body.count,
                .timeout_ms = RPC_TIMEOUT_MS},
            report_done, w);
}

static int64_t report_all(void *arg)
{
    struct directory_calls *d = arg;
    struct tierce__bench_rpc *r = d->r;
    d->started = 0;
    uint64_t start_ns = tierce__now_ns();
    for (size_t i = 0; i < WORKERS; i++)
        report_next(&d->workers[i]);
    while (tierce__grpc_client_poll(r->many, RPC_TIMEOUT_MS) > 0)
        continue;
    int64_t ns = (int64_t)(tierce__now_ns() - start_ns);
    for (size_t i = 0; i < WORKERS; i++)
        tierce__bench_body_free(&d->workers[i].body);
    return r->rc < 0 ? r->rc : ns;
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* One lookup of the first keys of the first worker. */
static int64_t find_once(struct directory_calls *d)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    struct tierce__grpc_answer answer;
    ProtobufCMessage *reply = NULL;
    struct tierce__grpc_request request = {.path =
                                               tierce__rpcs[TIERCE__RPC_meta_find_chunks].grpc_path,
                                           .body = d->find.bytes,
                                           .bytes = d->find.count,
                                           .timeout_ms = RPC_TIMEOUT_MS};
    uint64_t start_ns = tierce__now_ns();
    int rc = tierce__grpc_client_unary(d->r->clients[0], &request, &answer);
    int64_t ns = (int64_t)(tierce__now_ns() - start_ns);
    if (rc < 0)
        return tierce__bench_fail(d->r->bench, "%s: %s", request.path, tierce_strerror(rc));
    if (answer.status != TIERCE__GRPC_OK)
        rc = tierce__bench_fail(d->r->bench, "%s: %s", request.path, answer.message);
    if (rc == 0)
        rc = tierce__proto_unpack(&reply, tierce__rpcs[TIERCE__RPC_meta_find_chunks].reply,
                                  answer.body, answer.bytes, why);
    const Meta__FindChunksResponse *found = (Meta__FindChunksResponse *)reply;
    if (rc == 0 && (found->n_prefixes != 1 || found->prefixes[0]->keys != CHAIN))
        rc = tierce__bench_fail(d->r->bench, "a lookup did not find its %d keys", CHAIN);
    tierce__proto_free(reply);
    tierce__grpc_answer_fini(&answer);
    return rc < 0 ? rc : ns;
}

/* A sign of life first: a worker that is silent is removed. */
static int64_t find_some(void *arg)
{
    struct directory_calls *d = arg;
    const Meta__ReportChunksRequest alive =
        report_of(&d->workers[0], META__REPORT_KIND__RK_CHANGES);
    int64_t sum_ns = report_once(&d->workers[0], &alive);
    if (sum_ns >= 0)
        sum_ns = sum_ns == META__REPORT_ANSWER__RA_DONE
                     ? 0
                     : tierce__bench_fail(d->r->bench, "the directory lost a worker");
    for (int i = 0; i < FINDS && sum_ns >= 0; i++) {
        int64_t ns = find_once(d);
        sum_ns = ns < 0 ? ns : sum_ns + ns;
    }
    return sum_ns;
}

static int write_find(struct directory_calls *d)
{
    int64_t keys[2 * CHAIN];
    Meta__FindChunksRequest request = META__FIND_CHUNKS_REQUEST__INIT;
    for (int64_t i = 0; i < CHAIN; i++)
        key_of(&keys[2 * i], d->workers[0].number, 1 + i);
    request.instance_group = group;
    request.n_keys = 2 * CHAIN;
    request.keys = keys;
    return tierce__bench_body_write(&d->find, &request.base);
}

/* ---- the rows -------------------------------------------------------------------------------- */

static void emit(const struct tierce__bench *bench, const struct tierce__bench_side *reports,
                 const struct tierce__bench_side *finds)
{
    double changes = (double)REPORTS * CHANGES * 1e6;
    struct tierce__bench_row row = {.case_name = "rpc ReportChunks of 1000 admissions; 4 workers",
                                    .unit = "kkeys/s",
                                    .value = changes / reports->median_ns,
                                    .value_min = changes / reports->max_ns,
                                    .value_max = changes / reports->min_ns,
                                    .limit = 1000,
                                    .goal = 1};
    tierce__bench_emit(bench, &row);
    row = (struct tierce__bench_row){.case_name = "rpc FindChunks of 128 keys",
                                     .unit = "us",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = finds->median_ns / FINDS / 1e3,
                                     .value_min = finds->min_ns / FINDS / 1e3,
                                     .value_max = finds->max_ns / FINDS / 1e3,
                                     .limit = 200,
                                     .goal = 1};
    tierce__bench_emit(bench, &row);
}

static int run(struct directory_calls *d)
{
    struct tierce__bench_side reports = {.run = report_all, .arg = d},
                              finds = {.run = find_some, .arg = d};
    int rc = 0;
    for (uint32_t i = 0; i < WORKERS && rc == 0; i++) {
        d->workers[i] = (struct worker){.calls = d, .number = i};
        rc = join(&d->workers[i]);
    }
    if (rc == 0)
        rc = write_find(d);
    if (rc == 0)
        rc = tierce__bench_alternate(&reports, 1, d->r->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(&finds, 1, d->r->bench->seconds);
    if (rc == 0)
        emit(d->r->bench, &reports, &finds);
    return rc;
}

int tierce__bench_rpc_directory(struct tierce__bench_rpc *r)
{
    struct directory_calls *d = tierce__calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->r = r;
    int rc = run(d);
    tierce__bench_body_free(&d->find);
    tierce__free(d);
    return rc;
}
