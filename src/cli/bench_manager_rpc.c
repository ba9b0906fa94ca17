/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole calls of the manager over gRPC on loopback: a manager in this process, without logs, and
 * clients beside it. The limit of a call for one key is the same server with a route that answers
 * nothing; that of writes on RocksDB is the bare library, a batch of as many records as a session
 * has keys.
 */
#include <errno.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench_manager.h"
#include "manager/config.h"
#include "manager/manager.h"
#include "serve/grpc_client.h"
#include "wire/proto.h"
#include "wire/proto/meta_service.pb-c.h"
#include "wire/rpcs.h"

enum {
    CONNECTIONS = 4,
    FLIGHT = 128, /* calls at a time on all of them */
    CALLS = 8192, /* of one round */
    GET_KEYS = 1024,
    GETS = 16, /* calls of a client in one round of several */
    CLIENTS = 2,
    WRITE_KEYS = 128,
    SESSIONS = 32, /* of one round */
    WRITERS = 4,   /* sessions at a time */
    TIMEOUT_MS = 30000,
    RECORD_BYTES = 64, /* about what a record of one location takes */
};

#define INSTANCE "bench"
#define ECHO     "/bench.Echo/Echo"

struct body {
    void *bytes;
    size_t count;
};

struct rpc_bench {
    const struct tierce__bench *bench;
    const char *kind;  /* of the index */
    char folder[4096]; /* for all files, absolute */
    char startup[4128], index_folder[4128], bare_folder[4128];
    struct tierce__manager_config config;
    struct tierce__manager *manager;
    struct tierce__server *echo;
    struct tierce__grpc_client *many, *to_echo, *clients[CLIENTS];
    struct body get_one, get_all;
    int64_t next_key;
    size_t started, ended, calls; /* of the round that runs */
    int rc;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *writes;
    rocksdb_t *bare;
};

static int write_body(struct body *out, const ProtobufCMessage *message)
{
    return tierce__proto_pack(&out->bytes, &out->count, message);
}

static void free_body(struct body *body)
{
    tierce__free(body->bytes);
    *body = (struct body){0};
}

/* ---- a manager ------------------------------------------------------------------------------ */

static int write_startup(struct rpc_bench *r)
{
    FILE *file = fopen(r->startup, "we");
    if (file == NULL)
        return -errno;
    fprintf(file,
            "{\"storage_config\": {\"type\": \"file\", \"is_available\": true,"
            " \"global_unique_name\": \"nfs_01\", \"storage_spec\": {\"root_path\": \"%s/nfs/\","
            " \"key_count_per_file\": 8}},"
            " \"instance_group\": {\"name\": \"default\", \"storage_candidates\": [\"nfs_01\"],"
            " \"global_quota_group_name\": \"q\", \"max_instance_count\": 10,"
            " \"quota\": {\"capacity\": 1000000000000000000, \"quota_config\":"
            " [{\"storage_type\": \"file\", \"capacity\": 1000000000000000000}]},"
            " \"cache_config\": {\"reclaim_strategy\": {\"storage_unique_name\": \"nfs_01\","
            " \"reclaim_policy\": 1, \"trigger_strategy\": {\"used_size\": 0,"
            " \"used_percentage\": 0.8}, \"delay_before_delete_ms\": 100},"
            " \"cache_prefer_strategy\": 2, \"meta_indexer_config\": {"
            " \"max_key_count\": 100000000, \"mutex_shard_num\": 256, \"batch_key_size\": 16,"
            " \"meta_storage_backend_config\": {\"storage_type\": \"%s\", \"storage_uri\": \"%s\"},"
            " \"meta_cache_policy_config\": {\"type\": \"LRU\", \"capacity\": 100}}},"
            " \"user_data\": \"\", \"version\": 1}}",
            r->folder, r->kind, strcmp(r->kind, "local") == 0 ? "" : r->index_folder);
    return fclose(file) == 0 ? 0 : -errno;
}

/* Calls once and reads the answer. */
static int call(struct rpc_bench *r, enum tierce__rpc_id id, const struct body *body,
                ProtobufCMessage **out)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    struct tierce__grpc_answer answer;
    struct tierce__grpc_request request = {.path = tierce__rpcs[id].grpc_path,
                                           .body = body->bytes,
                                           .bytes = body->count,
                                           .timeout_ms = TIMEOUT_MS};
    int rc = tierce__grpc_client_unary(r->many, &request, &answer);
    if (rc < 0)
        return rc;
    rc = answer.status != TIERCE__GRPC_OK
             ? tierce__bench_fail(r->bench, "%s: %s", tierce__rpcs[id].method, answer.message)
             : tierce__proto_unpack(out, tierce__rpcs[id].reply, answer.body, answer.bytes, why);
    tierce__grpc_answer_fini(&answer);
    return rc;
}

/* Until the manager leads: it listens before. */
static int register_instance(struct rpc_bench *r)
{
    enum { TRIES = 500, PAUSE_NS = 20000000 };
    char model_name[] = "m", dtype[] = "bf16", spec_name[] = "tp0", id[] = INSTANCE;
    char group[] = "default";
    Meta__ModelDeployment model = META__MODEL_DEPLOYMENT__INIT;
    model.model_name = model_name;
    model.dtype = dtype;
    Meta__LocationSpecInfo spec = META__LOCATION_SPEC_INFO__INIT;
    Meta__LocationSpecInfo *specs[] = {&spec};
    spec.name = spec_name;
    spec.size = 4 << 20;
    Meta__RegisterInstanceRequest request = META__REGISTER_INSTANCE_REQUEST__INIT;
    request.instance_group = group;
    request.instance_id = id;
    request.block_size = 16;
    request.model_deployment = &model;
    request.location_spec_infos = specs;
    request.n_location_spec_infos = 1;
    struct body body = {0};
    int rc = write_body(&body, &request.base);
    int code = META__ERROR_CODE__SERVICE_NOT_READY;
    char why[256] = "";
    for (int i = 0; rc == 0 && i < TRIES && code != META__ERROR_CODE__OK; i++) {
        ProtobufCMessage *reply = NULL;
        rc = call(r, TIERCE__RPC_meta_register_instance, &body, &reply);
        if (rc == 0 && reply != NULL) {
            Meta__Status *status = ((Meta__RegisterInstanceResponse *)reply)->header->status;
            code = (int)status->code;
            snprintf(why, sizeof(why), "%s", status->message);
        }
        tierce__proto_free(reply);
        if (rc == 0 && code != META__ERROR_CODE__OK)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    free_body(&body);
    if (rc == 0 && code != META__ERROR_CODE__OK)
        return tierce__bench_fail(r->bench, "no instance could be registered: %s", why);
    return rc;
}

static int open_client(struct rpc_bench *r, struct tierce__grpc_client **out, uint16_t port,
                       uint32_t connections)
{
    char why[256] = "";
    struct tierce__grpc_client_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .port = port, .connections = connections};
    int rc = tierce__grpc_client_open(out, &opts, why);
    return rc < 0 ? tierce__bench_fail(r->bench, "%s", why) : 0;
}

static int start_manager(struct rpc_bench *r, const char *kind)
{
    char startup[4160], why[256] = "", *warnings = NULL, *env[] = {NULL};
    char flags[][32] = {
        "--listen.grpc_port=0", "--listen.http_port=0",      "--listen.admin_http_port=0",
        "--log.folder=",        "--metrics.log=false",       "--log.level=error",
        "--serve.drain=0s",     "--listen.admin_grpc_port=0"};
    enum { FLAGS = sizeof(flags) / sizeof(flags[0]) };
    char *argv[FLAGS + 1];
    struct tierce__config_error error = {0};
    struct tierce__manager_ports ports;
    r->kind = kind;
    int rc = write_startup(r);
    if (rc < 0)
        return rc;
    snprintf(startup, sizeof(startup), "--startup.file=%s", r->startup);
    argv[0] = startup;
    for (int i = 0; i < FLAGS; i++)
        argv[i + 1] = flags[i];
    rc = tierce__manager_config_load(&r->config, FLAGS + 1, argv, env, &warnings, &error);
    tierce__free(warnings);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s", error.text);
    rc = tierce__manager_start(&r->manager, &r->config, why);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s", why);
    tierce__manager_ports(r->manager, &ports);
    rc = open_client(r, &r->many, ports.meta_grpc, CONNECTIONS);
    for (int i = 0; rc == 0 && i < CLIENTS; i++)
        rc = open_client(r, &r->clients[i], ports.meta_grpc, 1);
    return rc < 0 ? rc : register_instance(r);
}

static void stop_manager(struct rpc_bench *r)
{
    tierce__grpc_client_close(r->many);
    r->many = NULL;
    for (int i = 0; i < CLIENTS; i++) {
        tierce__grpc_client_close(r->clients[i]);
        r->clients[i] = NULL;
    }
    if (r->manager != NULL)
        tierce__manager_stop(r->manager);
    r->manager = NULL;
    tierce__manager_config_clear(&r->config);
    r->config = (struct tierce__manager_config){0};
}

static void serve_nothing(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply(call, &(struct tierce__reply){.status = TIERCE__GRPC_OK});
}

static int start_echo(struct rpc_bench *r)
{
    static const struct tierce__route route = {.path = ECHO, .serve = serve_nothing};
    struct tierce__listener listener = {
        .protocol = TIERCE__SERVE_GRPC, .host = "127.0.0.1", .routes = &route, .route_count = 1};
    struct tierce__server_opts opts = {
        .size = sizeof(opts), .listeners = &listener, .listener_count = 1};
    char why[256] = "";
    int rc = tierce__server_start(&r->echo, &opts, why);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s", why);
    return open_client(r, &r->to_echo, tierce__server_port(r->echo, 0), CONNECTIONS);
}

/* ---- writes --------------------------------------------------------------------------------- */

/* A session on its way: started, then finished. */
struct writer {
    struct rpc_bench *r;
    struct body body;
    bool is_finish;
};

static int write_start(struct rpc_bench *r, struct body *out)
{
    int64_t keys[WRITE_KEYS];
    char id[] = INSTANCE;
    Meta__StartWriteCacheRequest request = META__START_WRITE_CACHE_REQUEST__INIT;
    for (int i = 0; i < WRITE_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(21, (uint64_t)r->next_key++);
    request.instance_id = id;
    request.block_keys = keys;
    request.n_block_keys = WRITE_KEYS;
    request.write_timeout_seconds = 60;
    return write_body(out, &request.base);
}

static int write_finish(struct body *out, char *session)
{
    char id[] = INSTANCE;
    Meta__BlockMask mask = META__BLOCK_MASK__INIT;
    Meta__FinishWriteCacheRequest request = META__FINISH_WRITE_CACHE_REQUEST__INIT;
    mask.info_case = META__BLOCK_MASK__INFO_OFFSET;
    mask.offset = WRITE_KEYS;
    request.instance_id = id;
    request.write_session_id = session;
    request.success_blocks = &mask;
    return write_body(out, &request.base);
}

static void write_done(void *arg, struct tierce__grpc_answer *answer);

static void write_next(struct writer *w)
{
    struct rpc_bench *r = w->r;
    enum tierce__rpc_id id =
        w->is_finish ? TIERCE__RPC_meta_finish_write_cache : TIERCE__RPC_meta_start_write_cache;
    if (r->rc == 0)
        r->rc = tierce__grpc_client_start(
            r->many,
            &(struct tierce__grpc_request){.path = tierce__rpcs[id].grpc_path,
                                           .body = w->body.bytes,
                                           .bytes = w->body.count,
                                           .timeout_ms = TIMEOUT_MS},
            write_done, w);
}

static void write_again(struct writer *w)
{
    struct rpc_bench *r = w->r;
    if (r->started == SESSIONS || r->rc < 0)
        return;
    r->started++;
    w->is_finish = false;
    r->rc = write_start(r, &w->body);
    write_next(w);
}

static void write_done(void *arg, struct tierce__grpc_answer *answer)
{
    struct writer *w = (struct writer *)arg;
    struct rpc_bench *r = w->r;
    enum tierce__rpc_id id =
        w->is_finish ? TIERCE__RPC_meta_finish_write_cache : TIERCE__RPC_meta_start_write_cache;
    char why[TIERCE__PROTO_WHY_BYTES];
    ProtobufCMessage *reply = NULL;
    free_body(&w->body);
    if (answer->status != TIERCE__GRPC_OK)
        r->rc = tierce__bench_fail(r->bench, "a write: %s", answer->message);
    if (r->rc == 0)
        r->rc =
            tierce__proto_unpack(&reply, tierce__rpcs[id].reply, answer->body, answer->bytes, why);
    if (r->rc < 0 || reply == NULL)
        return;
    if (w->is_finish) {
        if (((Meta__CommonResponse *)reply)->header->status->code != META__ERROR_CODE__OK)
            r->rc = tierce__bench_fail(r->bench, "a session was not finished");
        r->ended++;
        write_again(w);
    } else {
        Meta__StartWriteCacheResponse *started = (Meta__StartWriteCacheResponse *)reply;
        if (started->n_locations != WRITE_KEYS)
            r->rc = tierce__bench_fail(r->bench, "a session has %zu keys", started->n_locations);
        else
            r->rc = write_finish(&w->body, started->write_session_id);
        w->is_finish = true;
        write_next(w);
    }
    tierce__proto_free(reply);
}

static int64_t run_writes(void *arg)
{
    struct rpc_bench *r = (struct rpc_bench *)arg;
    struct writer writers[WRITERS] = {0};
    r->started = r->ended = 0;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < WRITERS; i++) {
        writers[i].r = r;
        write_again(&writers[i]);
    }
    while (tierce__grpc_client_poll(r->many, TIMEOUT_MS) > 0)
        continue;
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    for (int i = 0; i < WRITERS; i++)
        free_body(&writers[i].body);
    return r->rc < 0 ? r->rc : ns;
}

static int64_t run_bare_writes(void *arg)
{
    enum { KEY_BYTES = 13 };
    struct rpc_bench *r = (struct rpc_bench *)arg;
    char key[KEY_BYTES] = {0}, value[RECORD_BYTES] = {0}, *error = NULL;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < SESSIONS && error == NULL; i++) {
        rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
        for (int k = 0; k < WRITE_KEYS; k++) {
            uint64_t id = tierce__bench_random(22, (uint64_t)r->next_key++);
            memcpy(key + KEY_BYTES - sizeof(id), &id, sizeof(id));
            memcpy(value, &id, sizeof(id));
            rocksdb_writebatch_put(batch, key, KEY_BYTES, value, RECORD_BYTES);
        }
        rocksdb_write(r->bare, r->writes, batch, &error);
        rocksdb_writebatch_destroy(batch);
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (error == NULL)
        return ns;
    int rc = tierce__bench_fail(r->bench, "the bare database: %s", error);
    rocksdb_free(error);
    return rc;
}

/* ---- gets ----------------------------------------------------------------------------------- */

static int write_get(struct body *out, int64_t *keys, size_t count)
{
    char id[] = INSTANCE;
    Meta__GetCacheLocationRequest request = META__GET_CACHE_LOCATION_REQUEST__INIT;
    request.instance_id = id;
    request.query_type = META__QUERY_TYPE__QT_PREFIX_MATCH;
    request.block_keys = keys;
    request.n_block_keys = count;
    return write_body(out, &request.base);
}

/* Asks once for the blocks that the first writes have stored, and checks that all are there. */
static int prepare_gets(struct rpc_bench *r)
{
    int64_t keys[GET_KEYS];
    for (int i = 0; i < GET_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(21, (uint64_t)i);
    int rc = write_get(&r->get_one, keys, 1);
    if (rc == 0)
        rc = write_get(&r->get_all, keys, GET_KEYS);
    ProtobufCMessage *reply = NULL;
    if (rc == 0)
        rc = call(r, TIERCE__RPC_meta_get_cache_location, &r->get_all, &reply);
    if (rc == 0 && ((Meta__GetCacheLocationResponse *)reply)->n_locations != GET_KEYS)
        rc = tierce__bench_fail(r->bench, "the manager lost a block");
    tierce__proto_free(reply);
    return rc;
}

struct flight {
    struct rpc_bench *r;
    struct tierce__grpc_client *client;
    struct tierce__grpc_request request;
};

static void flight_done(void *arg, struct tierce__grpc_answer *answer)
{
    struct flight *f = (struct flight *)arg;
    struct rpc_bench *r = f->r;
    if (answer != NULL && answer->status != TIERCE__GRPC_OK)
        r->rc = tierce__bench_fail(r->bench, "%s: %s", f->request.path, answer->message);
    if (r->rc == 0 && r->started < CALLS) {
        r->started++;
        r->rc = tierce__grpc_client_start(f->client, &f->request, flight_done, f);
    }
}

static int64_t fly(struct flight *f)
{
    f->r->started = 0;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < FLIGHT; i++)
        flight_done(f, NULL);
    while (tierce__grpc_client_poll(f->client, TIMEOUT_MS) > 0)
        continue;
    return f->r->rc < 0 ? f->r->rc : (int64_t)(tierce__now_ns() - start);
}

static struct tierce__grpc_request get_request(const struct body *body)
{
    return (struct tierce__grpc_request){
        .path = tierce__rpcs[TIERCE__RPC_meta_get_cache_location].grpc_path,
        .body = body->bytes,
        .bytes = body->count};
}

static int64_t run_small(void *arg)
{
    struct rpc_bench *r = (struct rpc_bench *)arg;
    return fly(&(struct flight){r, r->many, get_request(&r->get_one)});
}

static int64_t run_echo(void *arg)
{
    struct rpc_bench *r = (struct rpc_bench *)arg;
    return fly(&(struct flight){r, r->to_echo, {.path = ECHO}});
}

static int64_t get_all(struct rpc_bench *r, struct tierce__grpc_client *client)
{
    struct tierce__grpc_request request = get_request(&r->get_all);
    struct tierce__grpc_answer answer;
    uint64_t start = tierce__now_ns();
    int rc = tierce__grpc_client_unary(client, &request, &answer);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc < 0)
        return rc;
    bool good = answer.status == TIERCE__GRPC_OK && answer.bytes > GET_KEYS;
    tierce__grpc_answer_fini(&answer);
    return good ? ns : -EIO;
}

static int64_t run_prefix(void *arg)
{
    struct rpc_bench *r = (struct rpc_bench *)arg;
    return get_all(r, r->clients[0]);
}

struct prefix_thread {
    struct rpc_bench *r;
    struct tierce__grpc_client *client;
    pthread_t thread;
    int64_t rc;
};

static void *prefix_thread(void *arg)
{
    struct prefix_thread *t = (struct prefix_thread *)arg;
    for (int i = 0; i < GETS && t->rc >= 0; i++)
        t->rc = get_all(t->r, t->client);
    return NULL;
}

static int64_t run_prefixes(void *arg)
{
    struct rpc_bench *r = (struct rpc_bench *)arg;
    struct prefix_thread threads[CLIENTS] = {0};
    int64_t rc = 0;
    int count = 0;
    uint64_t start = tierce__now_ns();
    for (; rc == 0 && count < CLIENTS; count++) {
        threads[count] = (struct prefix_thread){.r = r, .client = r->clients[count]};
        rc = -pthread_create(&threads[count].thread, NULL, prefix_thread, &threads[count]);
        if (rc < 0)
            break;
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i].thread, NULL);
        rc = threads[i].rc < 0 ? threads[i].rc : rc;
    }
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* A row of rates: `amount` things a round; scale 1e6: thousands a second, 1e3: millions. */
static struct tierce__bench_row rates(const struct tierce__bench_side *side,
                                      const struct tierce__bench_side *limit, double amount,
                                      double scale)
{
    struct tierce__bench_row row = {.value = amount / side->median_ns * scale,
                                    .value_min = amount / side->max_ns * scale,
                                    .value_max = amount / side->min_ns * scale};
    if (limit != NULL) {
        row.limit = amount / limit->median_ns * scale;
        row.limit_min = amount / limit->max_ns * scale;
        row.limit_max = amount / limit->min_ns * scale;
    }
    return row;
}

static int get_cases(struct rpc_bench *r)
{
    struct tierce__bench_side small[] = {{.run = run_small, .arg = r}, {.run = run_echo, .arg = r}};
    struct tierce__bench_side one = {.run = run_prefix, .arg = r},
                              two = {.run = run_prefixes, .arg = r};
    int rc = tierce__bench_alternate(small, 2, r->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(&one, 1, r->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(&two, 1, r->bench->seconds);
    if (rc < 0)
        return rc;
    struct tierce__bench_row row = rates(&small[0], &small[1], CALLS, 1e6);
    row.case_name = "rpc get 1 key; 4 x 32 calls; beside an empty call";
    row.unit = "kcalls/s";
    row.goal = 0.5;
    tierce__bench_emit(r->bench, &row);
    row = (struct tierce__bench_row){.case_name = "rpc get prefix of 1024 keys",
                                     .unit = "ms",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = one.median_ns / 1e6,
                                     .value_min = one.min_ns / 1e6,
                                     .value_max = one.max_ns / 1e6,
                                     .limit = 1,
                                     .goal = 1};
    tierce__bench_emit(r->bench, &row);
    row = rates(&two, NULL, CLIENTS * GETS * GET_KEYS, 1e3);
    row.case_name = "rpc get prefix of 1024 keys; 2 clients";
    row.unit = "Mkeys/s";
    row.limit = 2;
    row.goal = 1;
    tierce__bench_emit(r->bench, &row);
    return 0;
}

static int write_case(struct rpc_bench *r, bool is_memory)
{
    struct tierce__bench_side sides[] = {{.run = run_writes, .arg = r},
                                         {.run = run_bare_writes, .arg = r}};
    int rc = tierce__bench_alternate(sides, is_memory ? 1 : 2, r->bench->seconds);
    if (rc < 0)
        return rc;
    struct tierce__bench_row row =
        rates(&sides[0], is_memory ? NULL : &sides[1], SESSIONS * WRITE_KEYS, 1e6);
    row.case_name = is_memory ? "rpc write 128 keys; memory" : "rpc write 128 keys; rocksdb";
    row.unit = "kkeys/s";
    row.limit = is_memory ? 300 : row.limit;
    row.goal = is_memory ? 1 : 0.5;
    tierce__bench_emit(r->bench, &row);
    return 0;
}

static int open_bare(struct rpc_bench *r)
{
    char *error = NULL;
    r->options = rocksdb_options_create();
    r->writes = rocksdb_writeoptions_create();
    rocksdb_options_set_create_if_missing(r->options, 1);
    rocksdb_options_set_compression(r->options, rocksdb_no_compression);
    r->bare = rocksdb_open(r->options, r->bare_folder, &error);
    if (error == NULL)
        return 0;
    int rc = tierce__bench_fail(r->bench, "the bare database: %s", error);
    rocksdb_free(error);
    return rc;
}

static void close_all(struct rpc_bench *r)
{
    stop_manager(r);
    tierce__grpc_client_close(r->to_echo);
    if (r->echo != NULL)
        tierce__server_stop(r->echo, 0);
    if (r->bare != NULL)
        rocksdb_close(r->bare);
    if (r->options != NULL) {
        rocksdb_options_destroy(r->options);
        rocksdb_writeoptions_destroy(r->writes);
    }
    free_body(&r->get_one);
    free_body(&r->get_all);
    tierce__bench_remove(r->folder);
}

static int run_cases(struct rpc_bench *r)
{
    int rc = start_manager(r, "local");
    if (rc == 0)
        rc = start_echo(r);
    if (rc == 0)
        rc = write_case(r, true);
    if (rc == 0)
        rc = prepare_gets(r);
    if (rc == 0)
        rc = get_cases(r);
    stop_manager(r);
    if (rc == 0)
        rc = open_bare(r);
    if (rc == 0)
        rc = start_manager(r, "rocksdb");
    return rc == 0 ? write_case(r, false) : rc;
}

static int make_folder(struct rpc_bench *r)
{
    char *whole = realpath(r->bench->dir, NULL);
    if (whole == NULL)
        return -errno;
    int bytes = snprintf(r->folder, sizeof(r->folder), "%s/rpc", whole);
    free(whole);
    if (bytes < 0 || (size_t)bytes >= sizeof(r->folder))
        return -ENAMETOOLONG;
    snprintf(r->startup, sizeof(r->startup), "%s/startup.json", r->folder);
    snprintf(r->index_folder, sizeof(r->index_folder), "%s/index", r->folder);
    snprintf(r->bare_folder, sizeof(r->bare_folder), "%s/bare", r->folder);
    return mkdir(r->folder, 0700) == 0 ? 0 : -errno;
}

int tierce__bench_manager_rpc(const struct tierce__bench *bench)
{
    struct rpc_bench *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->bench = bench;
    int rc = make_folder(r);
    if (rc == 0)
        rc = run_cases(r);
    close_all(r);
    tierce__free(r);
    return rc;
}
