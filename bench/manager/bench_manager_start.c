/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/manager/bench_manager_rpc.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench/manager/bench_startup.h"
#include "proto/kvcm/meta_service.pb-c.h"

/* ---- a manager ------------------------------------------------------------------------------ */

static int write_startup(struct tierce__bench_rpc *r)
{
    char spec[4160];
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/nfs/\", \"key_count_per_file\": 8}",
             r->folder);
    return tierce__bench_startup_write(
        r->startup, &(struct tierce__bench_startup){
                        .type = "file",
                        .spec = spec,
                        .index_kind = r->kind,
                        .shards = 256,
                        .index_uri = strcmp(r->kind, "local") == 0 ? "" : r->index_folder});
}

int tierce__bench_rpc_call(struct tierce__bench_rpc *r, enum tierce__rpc_id id,
                           const struct tierce__bench_body *body, ProtobufCMessage **out)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    struct tierce__grpc_answer answer;
    struct tierce__grpc_request request = {.path = tierce__rpcs[id].grpc_path,
                                           .body = body->bytes,
                                           .bytes = body->count,
                                           .timeout_ms = RPC_TIMEOUT_MS};
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
static int register_instance(struct tierce__bench_rpc *r)
{
    enum { TRIES = 500, PAUSE_NS = 20000000 };
    char model_name[] = "m", dtype[] = "bf16", spec_name[] = "tp0", id[] = RPC_INSTANCE;
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
    struct tierce__bench_body body = {0};
    int rc = tierce__bench_body_write(&body, &request.base);
    int code = META__ERROR_CODE__SERVICE_NOT_READY;
    char why[256] = "";
    for (int i = 0; rc == 0 && i < TRIES && code != META__ERROR_CODE__OK; i++) {
        ProtobufCMessage *reply = NULL;
        rc = tierce__bench_rpc_call(r, TIERCE__RPC_meta_register_instance, &body, &reply);
        if (rc == 0) {
            Meta__Status *status = ((Meta__RegisterInstanceResponse *)reply)->header->status;
            code = (int)status->code;
            snprintf(why, sizeof(why), "%s", status->message);
        }
        tierce__proto_free(reply);
        if (rc == 0 && code != META__ERROR_CODE__OK)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    tierce__bench_body_free(&body);
    if (rc == 0 && code != META__ERROR_CODE__OK)
        return tierce__bench_fail(r->bench, "no instance could be registered: %s", why);
    return rc;
}

static int open_client(struct tierce__bench_rpc *r, struct tierce__grpc_client **out, uint16_t port,
                       uint32_t connections)
{
    char why[256] = "";
    struct tierce__grpc_client_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .port = port, .connections = connections};
    int rc = tierce__grpc_client_open(out, &opts, why);
    return rc < 0 ? tierce__bench_fail(r->bench, "%s", why) : 0;
}

int tierce__bench_rpc_connect(struct tierce__bench_rpc *r, uint16_t port)
{
    int rc = open_client(r, &r->many, port, RPC_CONNECTIONS);
    for (int i = 0; rc == 0 && i < RPC_CLIENTS; i++)
        rc = open_client(r, &r->clients[i], port, 1);
    return rc < 0 ? rc : register_instance(r);
}

int tierce__bench_rpc_start(struct tierce__bench_rpc *r, const char *kind)
{
    char startup[4160], logs[4160], why[256] = "", *warnings = NULL, *env[] = {NULL};
    char flags[][32] = {"--listen.grpc_port=0",       "--listen.http_port=0",
                        "--listen.admin_http_port=0", "--metrics.log=false",
                        "--log.level=error",          "--serve.drain=0s",
                        "--listen.admin_grpc_port=0"};
    enum { FLAGS = sizeof(flags) / sizeof(flags[0]) };
    char *argv[FLAGS + 2];
    struct tierce__config_error error = {0};
    struct tierce__manager_ports ports;
    r->kind = kind;
    int rc = write_startup(r);
    if (rc < 0)
        return rc;
    snprintf(startup, sizeof(startup), "--startup.file=%s", r->startup);
    snprintf(logs, sizeof(logs), "--log.folder=%s", r->logs_accesses ? r->folder : "");
    argv[0] = startup;
    argv[1] = logs;
    for (int i = 0; i < FLAGS; i++)
        argv[i + 2] = flags[i];
    rc = tierce__manager_config_load(&r->config, FLAGS + 2, argv, env, &warnings, &error);
    tierce__free(warnings);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s", error.text);
    rc = tierce__manager_start(&r->manager, &r->config, why);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s", why);
    tierce__manager_ports(r->manager, &ports);
    return tierce__bench_rpc_connect(r, ports.meta_grpc);
}

void tierce__bench_rpc_stop(struct tierce__bench_rpc *r)
{
    tierce__grpc_client_close(r->many);
    r->many = NULL;
    for (int i = 0; i < RPC_CLIENTS; i++) {
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

int tierce__bench_rpc_start_echo(struct tierce__bench_rpc *r)
{
    static const struct tierce__route route = {.path = RPC_ECHO, .serve = serve_nothing};
    struct tierce__listener listener = {
        .protocol = TIERCE__SERVE_GRPC, .host = "127.0.0.1", .routes = &route, .route_count = 1};
    struct tierce__server_opts opts = {
        .size = sizeof(opts), .listeners = &listener, .listener_count = 1};
    char why[256] = "";
    int rc = tierce__server_start(&r->echo, &opts, why);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s", why);
    return open_client(r, &r->to_echo, tierce__server_port(r->echo, 0), RPC_CONNECTIONS);
}
