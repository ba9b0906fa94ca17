/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/admin_http.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json_write.h"
#include "manager/api/api_private.h"
#include "manager/api/event_stream.h"
#include "manager/observe/audit.h"
#include "manager/observe/curves.h"
#include "manager/observe/manager_metrics.h"
#include "manager/observe/page.h"
#include "manager/observe/pilot_page.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- permissions ----------------------------------------------------------------------------- */

static void reject(struct tierce__call *call, enum tierce__auth_result result, const char *why)
{
    char text[300];
    if (result == TIERCE__AUTH_DENIED) {
        snprintf(text, sizeof(text), "%s\n", why);
        tierce__call_reply_text(call, 403, text);
        return;
    }
    TIERCE_ASSERT(result == TIERCE__AUTH_UNKNOWN);
    snprintf(text, sizeof(text), "%s\n", tierce__auth_why_unknown(call));
    tierce__call_reply_unknown(call, "Basic realm=\"tierce\", Bearer", text);
}

/* Every route begins here. */
static void serve_allowed(void *arg, struct tierce__call *call)
{
    const struct tierce__http_target *target = arg;
    struct tierce__manager *manager = target->manager;
    struct tierce__caller caller;
    char why[256];
    bool was_aside = tierce__call_info(call)->was_aside;
    enum tierce__auth_result result =
        tierce__auth_check(manager->auth, call, target->need, was_aside, &caller, why);
    TIERCE_ASSERT(result != TIERCE__AUTH_WAITS || !was_aside);
    bool is_admitted = result == TIERCE__AUTH_OK &&
                       tierce__meter_admit(caller.meter, false, tierce__now_ns(), why);
    if (result != TIERCE__AUTH_WAITS && !is_admitted)
        tierce__audit_rejected(manager, call, target->need->name, caller.name, result, why);
    if (is_admitted)
        target->serve(manager, call, &caller);
    else if (result == TIERCE__AUTH_OK)
        tierce__api_reply_limited(call, why);
    else if (result == TIERCE__AUTH_WAITS)
        tierce__call_defer_aside(call);
    else
        reject(call, result, why);
    tierce__caller_clear(&caller);
}

/* ---- alive and ready ------------------------------------------------------------------------- */

static void serve_livez(struct tierce__manager *manager, struct tierce__call *call,
                        const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    tierce__call_reply_text(call, 200, "ok\n");
}

static void say_who_leads(struct tierce__manager *manager, struct tierce__call *call)
{
    char trouble[256], text[320];
    tierce__manager_trouble(manager, trouble);
    snprintf(text, sizeof(text), "%s%s\n",
             trouble[0] != '\0' ? "it cannot lead: " : "another manager leads", trouble);
    tierce__call_reply_text(call, 503, text);
}

/* The manager is ready even if an index rejects writes: it answers lookups, and clients whose
 * writes are rejected continue without them. */
static void say_ready(struct tierce__manager *manager, struct tierce__call *call)
{
    char text[320] = "ok\n";
    size_t count;
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        struct tierce__usage usage;
        tierce__locator_group_usage(manager->locator, groups[i].name, &usage);
        if (usage.write_error != 0) {
            /* With accounts, the names of groups are not for everybody. */
            bool names = !tierce__auth_is_on(manager->auth);
            snprintf(text, sizeof(text), "ok\nwrites are rejected: the index of %s%.64s: %s\n",
                     names ? "group " : "a group", names ? groups[i].name : "",
                     tierce_strerror(usage.write_error));
            break;
        }
    }
    tierce__registry_release(manager->registry, catalog);
    tierce__call_reply_text(call, 200, text);
}

static void serve_readyz(struct tierce__manager *manager, struct tierce__call *call,
                         const struct tierce__caller *caller)
{
    (void)caller;
    int state = atomic_load_explicit(&manager->state, memory_order_acquire);
    TIERCE_DASSERT(state >= TIERCE__MANAGER_STARTS && state <= TIERCE__MANAGER_LEADS);
    if (tierce__manager_leads(manager))
        say_ready(manager, call);
    else if (state == TIERCE__MANAGER_STARTS || state == TIERCE__MANAGER_LOADS)
        tierce__call_reply_text(call, 503, "the index is being loaded\n");
    else
        say_who_leads(manager, call);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void serve_metrics(struct tierce__manager *manager, struct tierce__call *call,
                          const struct tierce__caller *caller)
{
    size_t bytes = 0;
    char *text = tierce__metrics_text(manager, caller->grant, &bytes);
    tierce__call_reply_heap(call, "text/plain; version=0.0.4", text, bytes);
}

/* ---- routes ---------------------------------------------------------------------------------- */

static void put_ref(struct tierce__json_write *json, const char *name, const char *message)
{
    char ref[256];
    snprintf(ref, sizeof(ref), "#/components/schemas/%s", message);
    tierce__json_write_open(json, name, '{');
    tierce__json_write_text(json, "$ref", ref);
    tierce__json_write_close(json, '}');
}

static void put_content(struct tierce__json_write *json, const char *message)
{
    tierce__json_write_open(json, "content", '{');
    tierce__json_write_open(json, "application/json", '{');
    put_ref(json, "schema", message);
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

static void put_path(struct tierce__json_write *json, const struct tierce__rpc *rpc)
{
    tierce__json_write_open(json, rpc->http_path, '{');
    tierce__json_write_open(json, "post", '{');
    tierce__json_write_text(json, "operationId", rpc->http_path + strlen("/api/"));
    tierce__json_write_open(json, "requestBody", '{');
    tierce__json_write_bool(json, "required", true);
    put_content(json, rpc->request->name);
    tierce__json_write_close(json, '}');
    tierce__json_write_open(json, "responses", '{');
    tierce__json_write_open(json, "200", '{');
    tierce__json_write_text(json, "description", "header.status holds the result");
    put_content(json, rpc->reply->name);
    tierce__json_write_close(json, '}');
    tierce__json_write_open(json, "400", '{');
    tierce__json_write_text(json, "description", "the body is not JSON");
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

static void put_enum(struct tierce__json_write *json, const ProtobufCEnumDescriptor *values)
{
    tierce__json_write_open(json, "enum", '[');
    for (unsigned i = 0; i < values->n_values; i++)
        tierce__json_write_text(json, NULL, values->values[i].name);
    tierce__json_write_close(json, ']');
}

static void put_type(struct tierce__json_write *json, const char *name,
                     const ProtobufCFieldDescriptor *field)
{
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        put_ref(json, name, ((const ProtobufCMessageDescriptor *)field->descriptor)->name);
        return;
    }
    TIERCE_DASSERT(field->type != PROTOBUF_C_TYPE_UINT64 && field->type != PROTOBUF_C_TYPE_BYTES);
    bool is_int32 = field->type == PROTOBUF_C_TYPE_INT32;
    tierce__json_write_open(json, name, '{');
    tierce__json_write_text(json, "type",
                            is_int32                                ? "integer"
                            : field->type == PROTOBUF_C_TYPE_BOOL   ? "boolean"
                            : field->type == PROTOBUF_C_TYPE_DOUBLE ? "number"
                                                                    : "string");
    if (is_int32 || field->type == PROTOBUF_C_TYPE_INT64)
        tierce__json_write_text(json, "format", is_int32 ? "int32" : "int64");
    if (field->type == PROTOBUF_C_TYPE_ENUM)
        put_enum(json, field->descriptor);
    tierce__json_write_close(json, '}');
}

/* Writes the schemas of a message and of its fields' messages, each once. */
struct schemas {
    struct tierce__json_write *json;
    const ProtobufCMessageDescriptor *seen[128];
    size_t count;
};

static void put_schema(struct schemas *s, const ProtobufCMessageDescriptor *message)
{
    TIERCE_ASSERT(s->count <= sizeof(s->seen) / sizeof(s->seen[0]));
    for (size_t i = 0; i < s->count; i++) {
        if (s->seen[i] == message)
            return;
    }
    TIERCE_DASSERT(s->count < sizeof(s->seen) / sizeof(s->seen[0]));
    if (s->count == sizeof(s->seen) / sizeof(s->seen[0]))
        return;
    s->seen[s->count++] = message;
    tierce__json_write_open(s->json, message->name, '{');
    tierce__json_write_text(s->json, "type", "object");
    tierce__json_write_open(s->json, "properties", '{');
    for (unsigned f = 0; f < message->n_fields; f++) {
        const ProtobufCFieldDescriptor *field = &message->fields[f];
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            put_type(s->json, field->name, field);
            continue;
        }
        tierce__json_write_open(s->json, field->name, '{');
        tierce__json_write_text(s->json, "type", "array");
        put_type(s->json, "items", field);
        tierce__json_write_close(s->json, '}');
    }
    tierce__json_write_close(s->json, '}');
    tierce__json_write_close(s->json, '}');
    for (unsigned f = 0; f < message->n_fields; f++) {
        if (message->fields[f].type == PROTOBUF_C_TYPE_MESSAGE)
            put_schema(s, message->fields[f].descriptor);
    }
}

static void serve_openapi(struct tierce__call *call, enum tierce__rpc_port port)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    struct schemas schemas = {.json = &json};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "openapi", "3.0.3");
    tierce__json_write_open(&json, "info", '{');
    tierce__json_write_text(&json, "title", "tierce manager");
    tierce__json_write_text(&json, "version", "1");
    tierce__json_write_close(&json, '}');
    tierce__json_write_open(&json, "paths", '{');
    for (int i = 0; i < TIERCE__RPC_COUNT; i++) {
        if (tierce__rpcs[i].port == port)
            put_path(&json, &tierce__rpcs[i]);
    }
    tierce__json_write_close(&json, '}');
    tierce__json_write_open(&json, "components", '{');
    tierce__json_write_open(&json, "schemas", '{');
    for (int i = 0; i < TIERCE__RPC_COUNT; i++) {
        if (tierce__rpcs[i].port != port)
            continue;
        put_schema(&schemas, tierce__rpcs[i].request);
        put_schema(&schemas, tierce__rpcs[i].reply);
    }
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
    TIERCE_DASSERT(line.failed || json.depth == 0);
    if (line.failed)
        tierce__line_clear(&line);
    tierce__call_reply_heap(call, NULL, line.text, line.bytes);
}

static void serve_meta_openapi(struct tierce__manager *manager, struct tierce__call *call,
                               const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    serve_openapi(call, TIERCE__RPC_PORT_META);
}

static void serve_admin_openapi(struct tierce__manager *manager, struct tierce__call *call,
                                const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    serve_openapi(call, TIERCE__RPC_PORT_ADMIN);
}

static void serve_debug_openapi(struct tierce__manager *manager, struct tierce__call *call,
                                const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    serve_openapi(call, TIERCE__RPC_PORT_DEBUG);
}

void tierce__http_route_make(struct tierce__manager *manager, struct tierce__http_target *target,
                             const struct tierce__http_route *route, struct tierce__route *out)
{
    *target = (struct tierce__http_target){
        .manager = manager, .need = tierce__need_of_route(route->path), .serve = route->serve};
    TIERCE_ASSERT(target->need != NULL); /* a path without a row in needs.def is a mistake */
    *out = (struct tierce__route){
        .path = route->path, .method = route->method, .serve = serve_allowed, .arg = target};
}

static size_t add_route(struct tierce__manager *manager, enum tierce__rpc_port port,
                        const struct tierce__http_route *route, struct tierce__route *out,
                        size_t count)
{
    TIERCE_ASSERT(count < TIERCE__ADMIN_HTTP_ROUTES_MAX);
    tierce__http_route_make(manager, &manager->http_targets[port][count], route, &out[count]);
    return count + 1;
}

size_t tierce__admin_http_routes(struct tierce__manager *manager, enum tierce__rpc_port port,
                                 struct tierce__route *out)
{
    static void (*const openapi[TIERCE__RPC_PORTS])(struct tierce__manager *, struct tierce__call *,
                                                    const struct tierce__caller *) = {
        [TIERCE__RPC_PORT_META] = serve_meta_openapi,
        [TIERCE__RPC_PORT_ADMIN] = serve_admin_openapi,
        [TIERCE__RPC_PORT_DEBUG] = serve_debug_openapi,
    };
    TIERCE_ASSERT(port < TIERCE__RPC_PORTS);
    const struct tierce__http_route all[] = {{"/livez", "GET", serve_livez},
                                             {"/readyz", "GET", serve_readyz},
                                             {"/openapi.json", "GET", openapi[port]}};
    static const struct tierce__http_route admin[] = {
        {"/metrics", "GET", serve_metrics},
        {"/events", "GET", tierce__event_stream_serve},
        {"/api/curves", "GET", tierce__curves_serve},
        {"/api/pilot", "GET", tierce__pilot_page_serve}};
    size_t count = 0, page_count;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        count = add_route(manager, port, &all[i], out, count);
    if (port != TIERCE__RPC_PORT_ADMIN)
        return count;
    for (size_t i = 0; i < sizeof(admin) / sizeof(admin[0]); i++)
        count = add_route(manager, port, &admin[i], out, count);
    const struct tierce__http_route *page = tierce__page_routes(&page_count);
    for (size_t i = 0; i < page_count; i++)
        count = add_route(manager, port, &page[i], out, count);
    return count;
}

void tierce__admin_http_stop(struct tierce__manager *manager)
{
    tierce__line_log_end_subscribers(manager->events);
}
