/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "manager/api/api_private.h"
#include "manager/observe/audit.h"
#include "proto/kvcm/proto_json.h"

#include <stdio.h>
#include <string.h>

/* Serves a call: access check, choice of the thread, parsing, reply, timing. */

static int read_request(ProtobufCMessage **out, enum tierce__rpc_id id,
                        const struct tierce__call_info *info, char why[TIERCE__PROTO_WHY_BYTES])
{
    TIERCE_ASSERT(id < TIERCE__RPC_COUNT);
    const ProtobufCMessageDescriptor *type = tierce__rpcs[id].request;
    return info->protocol == TIERCE__SERVE_GRPC
               ? tierce__proto_unpack(out, type, info->body, info->body_bytes, why)
               : tierce__proto_json_parse(out, type, info->body, info->body_bytes, why);
}

void tierce__api_reply_limited(struct tierce__call *call, const char *why)
{
    char text[300];
    snprintf(text, sizeof(text), "%s\n", why);
    tierce__call_reply(call, &(struct tierce__reply){.status = 429,
                                                     .type = "text/plain; charset=utf-8",
                                                     .header_name = "Retry-After",
                                                     .header_value = "1",
                                                     .body = text,
                                                     .bytes = strlen(text)});
}

static void release_body(void *body)
{
    tierce__free(body);
}

static void reply_failed(struct tierce__call *call, const char *why, bool is_request)
{
    bool grpc = tierce__call_info(call)->protocol == TIERCE__SERVE_GRPC;
    uint32_t grpc_status = is_request ? TIERCE__GRPC_INVALID_ARGUMENT : TIERCE__GRPC_INTERNAL;
    uint32_t http_status = is_request ? 400 : 500;
    tierce__call_reply(call, &(struct tierce__reply){
                                 .status = grpc ? grpc_status : http_status,
                                 .message = why,
                                 .body = grpc ? NULL : "{}",
                                 .bytes = grpc ? 0 : 2,
                             });
}

void tierce__api_reply(struct tierce__call *call, const ProtobufCMessage *message)
{
    bool grpc = tierce__call_info(call)->protocol == TIERCE__SERVE_GRPC;
    void *body = NULL;
    char *text = NULL;
    size_t bytes = 0;
    int rc = grpc ? tierce__proto_pack(&body, &bytes, message)
                  : tierce__proto_json_print(&text, &bytes, message);
    if (rc < 0) {
        reply_failed(call, "the reply cannot be written", false);
        return;
    }
    tierce__call_reply(call, &(struct tierce__reply){
                                 .status = grpc ? TIERCE__GRPC_OK : 200,
                                 .body = grpc ? body : text,
                                 .bytes = bytes,
                                 .release = release_body,
                             });
}

enum rejection { UNKNOWN, DENIED, LIMITED };

static void reply_rejected(struct tierce__call *call, enum rejection rejection, const char *why)
{
    static const uint32_t statuses[][2] = {
        [UNKNOWN] = {401, TIERCE__GRPC_UNAUTHENTICATED},
        [DENIED] = {403, TIERCE__GRPC_PERMISSION_DENIED},
        [LIMITED] = {429, TIERCE__GRPC_RESOURCE_EXHAUSTED},
    };
    bool grpc = tierce__call_info(call)->protocol == TIERCE__SERVE_GRPC;
    if (!grpc && rejection == LIMITED) {
        tierce__api_reply_limited(call, why);
        return;
    }
    bool has_header = !grpc && rejection == UNKNOWN;
    tierce__call_reply(call, &(struct tierce__reply){
                                 .status = statuses[rejection][grpc],
                                 .message = why,
                                 .header_name = has_header ? "WWW-Authenticate" : NULL,
                                 .header_value = "Basic realm=\"tierce\", Bearer",
                                 .body = grpc ? NULL : "{}",
                                 .bytes = grpc ? 0 : 2,
                             });
}

/* Whether the limits of keys and bytes hold for a call: those that look up, begin to write or
 * remove. The end of a write is never refused for what its begin has used. */
static bool has_keys(enum tierce__rpc_id id)
{
    const ProtobufCMessageDescriptor *type = tierce__rpcs[id].request;
    return protobuf_c_message_descriptor_get_field_by_name(type, "block_keys") != NULL ||
           protobuf_c_message_descriptor_get_field_by_name(type, "keys") != NULL ||
           protobuf_c_message_descriptor_get_field_by_name(type, "reports") != NULL;
}

/* Rejects an unauthorized caller, and one above its limits, before the body is read. */
static bool is_allowed(const struct tierce__api_target *target, struct tierce__call *call,
                       struct tierce__caller *caller)
{
    char why[256];
    bool was_aside = tierce__call_info(call)->was_aside;
    enum tierce__auth_result result = tierce__auth_check(
        target->manager->auth, call, tierce__need_of_call(target->id), was_aside, caller, why);
    if (result == TIERCE__AUTH_OK &&
        tierce__meter_admit(caller->meter, has_keys(target->id), tierce__now_ns(), why))
        return true;
    TIERCE_ASSERT(result != TIERCE__AUTH_WAITS || !was_aside);
    tierce__caller_clear(caller);
    if (result == TIERCE__AUTH_WAITS) {
        tierce__call_defer_aside(call);
        return false;
    }
    tierce__audit_rejected(target->manager, call, tierce__rpcs[target->id].method, caller->name,
                           result, why);
    if (result == TIERCE__AUTH_UNKNOWN)
        reply_rejected(call, UNKNOWN, tierce__auth_why_unknown(call));
    else
        reply_rejected(call, result == TIERCE__AUTH_OK ? LIMITED : DENIED, why);
    return false;
}

static void count_call(struct tierce__api_call *api, uint64_t took_ns)
{
    TIERCE_ASSERT(api->id < TIERCE__RPC_COUNT);
    struct tierce__rpc_stats *stats = &api->manager->rpcs[api->id];
    atomic_fetch_add_explicit(&stats->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&stats->errors, api->code != META__ERROR_CODE__OK,
                              memory_order_relaxed);
    tierce__latency_add(&stats->latency, took_ns);
    atomic_store_explicit(&stats->last_us, took_ns / 1000, memory_order_relaxed);
    atomic_store_explicit(&stats->last_code, (uint32_t)api->code, memory_order_relaxed);
}

/* One line, if the call administers, removes or was refused. */
static void audit_call(const struct tierce__api_call *api, const struct tierce__call *call)
{
    const struct tierce__need *need = tierce__need_of_call(api->id);
    if (!api->is_outside && !tierce__audit_wants(need))
        return;
    enum tierce__audit_outcome outcome = api->is_outside                     ? TIERCE__AUDIT_SCOPE
                                         : api->code == META__ERROR_CODE__OK ? TIERCE__AUDIT_DONE
                                                                             : TIERCE__AUDIT_FAILED;
    tierce__audit_write(api->manager->audit, tierce__manager_now_us(api->manager),
                        &(struct tierce__audit_line){.what = tierce__rpcs[api->id].method,
                                                     .who = api->caller->name,
                                                     .call = call,
                                                     .request = api->request,
                                                     .outcome = outcome,
                                                     .code = api->code,
                                                     .why = "",
                                                     .is_trim = tierce__audit_is_trim(need)});
}

/* Runs the call and replies, at once or as an injected fault says. */
static void answer(struct tierce__api_call *api, struct tierce__call *call)
{
    TIERCE_ASSERT(api->request->descriptor == tierce__rpcs[api->id].request);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__manager *manager = api->manager;
    const char *trace_id =
        tierce__api_text_field(api->request, tierce__api_fields(api->id)->trace_id);
    struct tierce__fault fault =
        tierce__faults_meet(manager->faults, tierce__rpcs[api->id].method, trace_id);
    tierce__api_run(api, &fault);
    tierce__meter_charge(api->caller->meter, api->keys, api->bytes, tierce__now_ns());
    uint64_t took_ns = tierce__now_ns() - api->began_ns;
    count_call(api, took_ns);
    tierce__access_log_write(manager->access_log, api, call, took_ns / 1000);
    audit_call(api, call);
    if (fault.kind == TIERCE__FAULT_DELAY || fault.kind == TIERCE__FAULT_DROP)
        tierce__later_reply(manager->later, call, api->reply,
                            fault.kind == TIERCE__FAULT_DELAY ? fault.delay_ms : -1);
    else
        tierce__api_reply(call, api->reply);
}

/* A worker parses and answers larger requests, so that the loop can serve its other connections. */
#define LOOP_BYTES_MAX ((size_t)256 << 10)

/* The state of a call. A deferred call keeps it, so that its body is parsed only once. */
struct begun {
    uint64_t began_ns;
    struct tierce__caller caller;
    ProtobufCMessage *request;         /* NULL: not read yet */
    char why[TIERCE__PROTO_WHY_BYTES]; /* a text about an unknown name in it; or "" */
};

static void release_begun(void *state)
{
    struct begun *begun = state;
    tierce__proto_free(begun->request);
    tierce__caller_clear(&begun->caller);
    tierce__free(begun);
}

/* [transfer] begun */
static void defer(struct tierce__call *call, struct begun *begun)
{
    TIERCE_ASSERT(!tierce__call_info(call)->is_deferred);
    struct begun *kept = tierce__alloc(sizeof(*kept));
    if (kept == NULL) {
        tierce__proto_free(begun->request);
        tierce__caller_clear(&begun->caller);
        reply_failed(call, "no memory", false);
        return;
    }
    *kept = *begun;
    tierce__call_defer_with(call, kept, sizeof(*kept) + tierce__proto_bytes(kept->request),
                            release_begun);
}

/* Restores the state of a deferred call, or authenticates a new one. False: the call was replied to
 * or deferred. */
static bool begin(const struct tierce__api_target *target, struct tierce__call *call,
                  struct begun *out)
{
    struct begun *kept = tierce__call_take_state(call);
    if (kept == NULL) {
        *out = (struct begun){.began_ns = tierce__now_ns()};
        return is_allowed(target, call, &out->caller);
    }
    TIERCE_ASSERT(tierce__call_info(call)->is_deferred);
    *out = *kept;
    tierce__free(kept);
    return true;
}

/* Reads the request and answers, unless it defers the call. [transfer] begun */
static void serve_begun(const struct tierce__api_target *target, struct tierce__call *call,
                        struct begun *begun)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    TIERCE_ASSERT(begun->request == NULL || info->is_deferred);
    bool is_large = info->body_bytes > LOOP_BYTES_MAX;
    int rc = 0;
    if (begun->request == NULL && (info->is_deferred || !is_large))
        rc = read_request(&begun->request, target->id, info, begun->why);
    struct tierce__api_call api = {.manager = target->manager,
                                   .id = target->id,
                                   .caller = &begun->caller,
                                   .began_ns = begun->began_ns,
                                   .peer = info->peer,
                                   .request = begun->request};
    if (rc == 0 && !info->is_deferred && (is_large || tierce__api_may_wait(&api))) {
        defer(call, begun);
        return;
    }
    /* KVCM's own client of the debug service sends such names; they are ignored. */
    if (begun->why[0] != '\0' && tierce__rpcs[api.id].port != TIERCE__RPC_PORT_DEBUG)
        api.unknown = begun->why;
    api.reply = rc == 0 ? tierce__proto_create(tierce__rpcs[api.id].reply) : NULL;
    if (rc < 0)
        reply_failed(call, begun->why, true);
    else if (api.reply == NULL)
        reply_failed(call, "no memory", false);
    else
        answer(&api, call);
    tierce__api_clear(&api);
    tierce__caller_clear(&begun->caller);
}

static void serve(void *arg, struct tierce__call *call)
{
    struct begun begun;
    if (begin(arg, call, &begun))
        serve_begun(arg, call, &begun);
}

/* ---- routes ---------------------------------------------------------------------------------- */

size_t tierce__api_routes(struct tierce__manager *manager, enum tierce__serve_protocol protocol,
                          unsigned ports, struct tierce__route *out)
{
    TIERCE_ASSERT(ports != 0);
    size_t count = 0;
    for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
        const struct tierce__rpc *rpc = &tierce__rpcs[id];
        if ((ports & (1u << rpc->port)) == 0 || tierce__api_row((enum tierce__rpc_id)id) == NULL)
            continue;
        bool grpc = protocol == TIERCE__SERVE_GRPC;
        manager->targets[id] = (struct tierce__api_target){manager, (enum tierce__rpc_id)id};
        out[count++] = (struct tierce__route){.path = grpc ? rpc->grpc_path : rpc->http_path,
                                              .method = grpc ? NULL : "POST",
                                              .serve = serve,
                                              .arg = &manager->targets[id]};
    }
    return count;
}
