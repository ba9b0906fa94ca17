/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/text/utf8.h"
#include "base/text/line.h"
#include "manager/api/api_private.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All files have these codes. */
#define OK                 META__ERROR_CODE__OK
#define INTERNAL_ERROR     META__ERROR_CODE__INTERNAL_ERROR
#define INVALID_ARGUMENT   META__ERROR_CODE__INVALID_ARGUMENT
#define INSTANCE_NOT_EXIST META__ERROR_CODE__INSTANCE_NOT_EXIST
#define SERVER_NOT_LEADER  META__ERROR_CODE__SERVER_NOT_LEADER

/* ---- the status of a reply ------------------------------------------------------------------- */

static struct tierce__api_fields all_fields[TIERCE__RPC_COUNT];
static pthread_once_t fields_once = PTHREAD_ONCE_INIT;

static const ProtobufCFieldDescriptor *find(const ProtobufCMessageDescriptor *type,
                                            const char *name, ProtobufCType field_type)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(type, name);
    TIERCE_ASSERT(field == NULL || field->type == field_type);
    return field;
}

static void find_fields(void)
{
    for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
        const struct tierce__rpc *rpc = &tierce__rpcs[id];
        struct tierce__api_fields *f = &all_fields[id];
        f->trace_id = find(rpc->request, "trace_id", PROTOBUF_C_TYPE_STRING);
        f->instance_id = find(rpc->request, "instance_id", PROTOBUF_C_TYPE_STRING);
        f->header = find(rpc->reply, "header", PROTOBUF_C_TYPE_MESSAGE);
        TIERCE_ASSERT(f->header != NULL);
        f->request_id = find(f->header->descriptor, "request_id", PROTOBUF_C_TYPE_STRING);
        f->status = find(f->header->descriptor, "status", PROTOBUF_C_TYPE_MESSAGE);
        f->tracer_result = find(f->header->descriptor, "tracer_result", PROTOBUF_C_TYPE_STRING);
        f->generation = find(f->header->descriptor, "generation", PROTOBUF_C_TYPE_INT64);
        f->registry = find(f->header->descriptor, "registry", PROTOBUF_C_TYPE_INT64);
        TIERCE_ASSERT((f->generation == NULL) == (f->registry == NULL));
        TIERCE_ASSERT(f->request_id != NULL && f->status != NULL);
        f->code = find(f->status->descriptor, "code", PROTOBUF_C_TYPE_ENUM);
        f->message = find(f->status->descriptor, "message", PROTOBUF_C_TYPE_STRING);
        TIERCE_ASSERT(f->code != NULL && f->message != NULL);
    }
}

const struct tierce__api_fields *tierce__api_fields(enum tierce__rpc_id id)
{
    TIERCE_ASSERT(id < TIERCE__RPC_COUNT);
    pthread_once(&fields_once, find_fields);
    return &all_fields[id];
}

/* Returns a sub-message of the reply, created if it is missing; its type comes from the field. */
static ProtobufCMessage *sub_message(ProtobufCMessage *root, ProtobufCMessage *parent,
                                     const ProtobufCFieldDescriptor *field)
{
    TIERCE_DASSERT(field->type == PROTOBUF_C_TYPE_MESSAGE);
    ProtobufCMessage **place = tierce__proto_member(parent, field->offset);
    if (*place == NULL)
        *place = tierce__proto_add(root, field->descriptor);
    TIERCE_DASSERT(*place == NULL || (*place)->descriptor == field->descriptor);
    return *place;
}

/* The reply's header, and the status in it. NULL: no memory, and packing the reply fails. */
static ProtobufCMessage *header_of(struct tierce__api_call *api)
{
    return sub_message(api->reply, api->reply, tierce__api_fields(api->id)->header);
}

static ProtobufCMessage *status_of(struct tierce__api_call *api)
{
    ProtobufCMessage *header = header_of(api);
    return header != NULL ? sub_message(api->reply, header, tierce__api_fields(api->id)->status)
                          : NULL;
}

const char *tierce__api_text_field(const ProtobufCMessage *message,
                                   const ProtobufCFieldDescriptor *field)
{
    if (message == NULL || field == NULL)
        return "";
    TIERCE_DASSERT(field->type == PROTOBUF_C_TYPE_STRING);
    return tierce__api_string(*(char **)tierce__proto_member(message, field->offset));
}

void tierce__api_say(struct tierce__api_call *api, int code, const char *format, ...)
{
    enum { TEXT_BYTES = 640 };
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    ProtobufCMessage *status = status_of(api);
    char *text = tierce__proto_alloc(api->reply, TEXT_BYTES);
    api->code = code;
    if (status == NULL || text == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, TEXT_BYTES, format, arguments);
    va_end(arguments);
    tierce__utf8_mend(text); /* a name may have been cut, and clients take no message with it */
    *(int32_t *)tierce__proto_member(status, fields->code->offset) = code;
    *(char **)tierce__proto_member(status, fields->message->offset) = text;
}

/* header.request_id = trace_id, '_', microseconds since 1970. */
static void set_request_id(struct tierce__api_call *api)
{
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    ProtobufCMessage *header = header_of(api);
    const char *trace_id = tierce__api_text_field(api->request, fields->trace_id);
    size_t bytes = strlen(trace_id) + 24;
    char *text = tierce__proto_alloc(api->reply, bytes);
    if (header == NULL || text == NULL)
        return;
    snprintf(text, bytes, "%s_%lld", trace_id, (long long)tierce__manager_now_us(api->manager));
    *(char **)tierce__proto_member(header, fields->request_id->offset) = text;
}

/* Returns whether the client requests timings, by the suffix of its trace_id. */
static bool wants_spans(const struct tierce__api_call *api, const char *trace_id)
{
    static const char end[] = "__kvcm_need_span_tracer";
    size_t length = strlen(trace_id), wanted = sizeof(end) - 1;
    return tierce__api_fields(api->id)->tracer_result != NULL && length >= wanted &&
           strcmp(trace_id + length - wanted, end) == 0;
}

/* header.tracer_result. */
static void set_spans(struct tierce__api_call *api, struct tierce__spans *spans,
                      const char *trace_id)
{
    TIERCE_ASSERT(tierce__api_fields(api->id)->tracer_result != NULL);
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    ProtobufCMessage *header = header_of(api);
    struct tierce__line line = {0};
    tierce__spans_end(spans, trace_id, &line);
    char *text = line.failed ? NULL : tierce__proto_alloc(api->reply, line.bytes + 1);
    if (header != NULL && text != NULL) {
        memcpy(text, line.text, line.bytes);
        text[line.bytes] = '\0';
        *(char **)tierce__proto_member(header, fields->tracer_result->offset) = text;
    }
    tierce__line_clear(&line);
}

static void escape(char *out, size_t size, const char *text)
{
    size_t n = 0;
    for (; *text != '\0' && n + 3 < size; text++) {
        if (*text == '"' || *text == '\\')
            out[n++] = '\\';
        out[n++] = *text;
    }
    TIERCE_ASSERT(n < size);
    out[n] = '\0';
}

static void say_not_leader(struct tierce__api_call *api)
{
    struct tierce__elector_state state;
    char trouble[256];
    int own = atomic_load_explicit(&api->manager->state, memory_order_acquire);
    if (own == TIERCE__MANAGER_STARTS || own == TIERCE__MANAGER_LOADS) {
        tierce__api_say(api, META__ERROR_CODE__SERVICE_NOT_READY,
                        "Server is not ready: the index is being loaded");
        return;
    }
    TIERCE_DASSERT(own == TIERCE__MANAGER_FOLLOWS || own == TIERCE__MANAGER_LEADS);
    tierce__elector_state(api->manager->elector, &state);
    bool is_kv =
        strcmp(api->reply->descriptor->package_name, "kv_cache_manager.proto.kv_meta") == 0;
    int code =
        is_kv ? META__ERROR_CODE__SERVICE_NOT_READY : SERVER_NOT_LEADER; /* kv_meta has no 9 */
    tierce__manager_trouble(api->manager, trouble);
    if (trouble[0] != '\0')
        tierce__api_say(api, code, "Server is not leader; it cannot lead: %s", trouble);
    else
        tierce__api_say(api, code, "Server is not leader%s%s",
                        state.leader[0] != '\0' ? "; the leader is " : "", state.leader);
}

void tierce__api_fail(struct tierce__api_call *api, int rc, const char *doing)
{
    TIERCE_ASSERT(rc < 0);
    char why[TIERCE__WHY_BYTES * 2];
    const char *text = api->why[0] != '\0' ? api->why : tierce_strerror(rc);
    if (rc == -ENOENT)
        tierce__api_say(api, INSTANCE_NOT_EXIST, "get %s metrics collector failed: %s",
                        tierce__rpcs[api->id].method, text);
    else if (rc == TIERCE_E_ARGUMENT)
        tierce__api_say(api, INVALID_ARGUMENT, "%s", text);
    else if (rc == -ESTALE && tierce__rpcs[api->id].port == TIERCE__RPC_PORT_META)
        tierce__api_say(api, META__ERROR_CODE__NAMESPACE_INVALIDATED, "%s", text);
    else if (rc == TIERCE_E_CLOSED || rc == TIERCE_E_REFUSED)
        say_not_leader(api);
    else {
        escape(why, sizeof(why), text);
        tierce__api_say(api, INTERNAL_ERROR, "Failed to %s: {\"error_msg\":[\"%s\"]}", doing, why);
    }
}

void tierce__api_end(struct tierce__api_call *api, int rc, const char *doing, const char *done)
{
    if (rc < 0)
        tierce__api_fail(api, rc, doing);
    else
        tierce__api_say(api, OK, "%s", done);
}

void tierce__api_invalid(struct tierce__api_call *api, const char *field)
{
    tierce__api_say(api, INVALID_ARGUMENT, "missing or invalid fields: {%s: {%s}}",
                    tierce__rpcs[api->id].method, field);
}

const struct tierce__catalog *tierce__api_catalog(struct tierce__api_call *api)
{
    if (api->catalog == NULL)
        api->catalog = tierce__registry_acquire(api->manager->registry);
    return api->catalog;
}

void tierce__api_clear(struct tierce__api_call *api)
{
    if (api->catalog != NULL)
        tierce__registry_release(api->manager->registry, api->catalog);
    tierce__proto_free(api->reply);
    tierce__proto_free(api->request);
    tierce__arena_clear(&api->arena);
}

void *tierce__api_alloc(struct tierce__api_call *api, size_t count, size_t bytes)
{
    size_t all;
    return __builtin_mul_overflow(count, bytes, &all) ? NULL : tierce__proto_alloc(api->reply, all);
}

char *tierce__api_copy(struct tierce__api_call *api, const char *text, size_t bytes)
{
    char *copy = tierce__api_alloc(api, bytes + 1, 1);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

/* ---- parts of messages ----------------------------------------------------------------------- */

int tierce__api_read_mask(struct tierce__api_call *api, const Meta__BlockMask *message,
                          struct tierce__mask *out)
{
    *out = (struct tierce__mask){0};
    if (message == NULL)
        return 0;
    if (message->info_case == META__BLOCK_MASK__INFO_OFFSET) {
        out->offset = message->offset;
    } else if (message->info_case == META__BLOCK_MASK__INFO_BOOL_MASKS) {
        const Meta__BoolMasksType *masks = message->bool_masks;
        uint8_t *values = tierce__arena_alloc(&api->arena, masks->n_values + 1);
        if (values == NULL)
            return -ENOMEM;
        for (size_t i = 0; i < masks->n_values; i++)
            values[i] = masks->values[i] != 0;
        *out = (struct tierce__mask){.is_values = true, .values = values, .count = masks->n_values};
    }
    return 0;
}

uint64_t tierce__api_uri_bytes(const char *uri)
{
    const char *at = strrchr(uri, '?');
    while (at != NULL && strncmp(at + 1, "size=", 5) != 0)
        at = strchr(at + 1, '&');
    return at != NULL ? strtoull(at + 6, NULL, 10) : 0;
}

Meta__CacheLocation **tierce__api_show_locations(struct tierce__api_call *api,
                                                 const struct tierce__found *found, size_t count)
{
    size_t specs_all = 0;
    for (size_t i = 0; i < count; i++)
        specs_all += found[i].spec_count;
    Meta__CacheLocation **list = tierce__api_alloc(api, count + 1, sizeof(*list));
    Meta__CacheLocation *locations = tierce__api_alloc(api, count + 1, sizeof(*locations));
    Meta__LocationSpec **spec_list = tierce__api_alloc(api, specs_all + 1, sizeof(*spec_list));
    Meta__LocationSpec *specs = tierce__api_alloc(api, specs_all + 1, sizeof(*specs));
    if (list == NULL || locations == NULL || spec_list == NULL || specs == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        meta__cache_location__init(&locations[i]);
        locations[i].type = (Meta__StorageType)found[i].type;
        locations[i].spec_size = (int32_t)found[i].spec_count_all;
        locations[i].n_location_specs = found[i].spec_count;
        locations[i].location_specs = spec_list;
        list[i] = &locations[i];
        TIERCE_DASSERT(found[i].spec_count <= found[i].spec_count_all);
        for (size_t s = 0; s < found[i].spec_count; s++, specs++) {
            meta__location_spec__init(specs);
            specs->name = tierce__api_text(found[i].specs[s].name);
            specs->uri = tierce__api_text(found[i].specs[s].uri);
            api->bytes += tierce__api_uri_bytes(specs->uri);
            *spec_list++ = specs;
        }
    }
    return list;
}

/* ---- admin as meta --------------------------------------------------------------------------- */

void tierce__api_as_admin(struct tierce__api_call *api)
{
    /* KVCM's admin service has no other codes. */
    TIERCE_DASSERT(tierce__rpcs[api->id].port != TIERCE__RPC_PORT_META);
    bool has = api->code == OK || api->code == INVALID_ARGUMENT || api->code == SERVER_NOT_LEADER ||
               api->code == META__ERROR_CODE__SERVICE_NOT_READY;
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    ProtobufCMessage *status = status_of(api);
    api->code = has ? api->code : INTERNAL_ERROR;
    if (status != NULL)
        *(int32_t *)tierce__proto_member(status, fields->code->offset) = api->code;
}

/* Whether a function that was compiled for one message may be given the other. Headers differ: they
 * are accessed through tierce__api_fields. No message contains itself. */
static bool has_layout(const ProtobufCMessageDescriptor *a, const ProtobufCMessageDescriptor *b)
{
    bool is_same = a->sizeof_message == b->sizeof_message && a->n_fields == b->n_fields;
    for (unsigned i = 0; is_same && i < a->n_fields; i++) {
        const ProtobufCFieldDescriptor *of_a = &a->fields[i], *of_b = &b->fields[i];
        is_same = of_a->id == of_b->id && of_a->type == of_b->type && of_a->label == of_b->label &&
                  of_a->offset == of_b->offset &&
                  (of_a->type != PROTOBUF_C_TYPE_MESSAGE || strcmp(of_a->name, "header") == 0 ||
                   has_layout(of_a->descriptor, of_b->descriptor));
    }
    return is_same;
}

int tierce__api_run_as_meta(struct tierce__api_call *api, enum tierce__rpc_id meta)
{
    TIERCE_ASSERT(meta < TIERCE__RPC_COUNT);
    TIERCE_ASSERT(tierce__rpcs[meta].port == TIERCE__RPC_PORT_META);
    TIERCE_ASSERT(has_layout(api->request->descriptor, tierce__rpcs[meta].request));
    TIERCE_ASSERT(has_layout(api->reply->descriptor, tierce__rpcs[meta].reply));
    tierce__api_meta_rows[meta].run(api);
    int code = api->code;
    tierce__api_as_admin(api);
    return code;
}

/* ---- a call ---------------------------------------------------------------------------------- */

const struct tierce__api_row *tierce__api_row(enum tierce__rpc_id id)
{
    TIERCE_ASSERT(id < TIERCE__RPC_COUNT);
    static const struct tierce__api_row *const tables[] = {
        tierce__api_meta_rows,   tierce__api_admin_rows,     tierce__api_cluster_rows,
        tierce__api_kv_rows,     tierce__api_debug_rows,     tierce__api_node_rows,
        tierce__api_backup_rows, tierce__api_storage_rows,   tierce__api_namespace_rows,
        tierce__api_move_rows,   tierce__api_directory_rows, tierce__api_command_rows};
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (tables[i][id].run != NULL)
            return &tables[i][id];
    }
    return NULL;
}

bool tierce__api_may_wait(const struct tierce__api_call *api)
{
    const struct tierce__api_row *row = tierce__api_row(api->id);
    if (row->waits == TIERCE__API_WAITS_IF_LONG)
        return tierce__api_find_is_long(api);
    if (row->waits != TIERCE__API_WAITS_AS_INSTANCE)
        return row->waits == TIERCE__API_WAITS;
    return tierce__locator_blocks(
        api->manager->locator,
        tierce__api_text_field(api->request, tierce__api_fields(api->id)->instance_id));
}

/* The text that the request must set and has not. NULL: none. */
static const char *missing_text(const struct tierce__api_call *api,
                                const struct tierce__api_row *row)
{
    for (size_t i = 0; i < sizeof(row->needs) / sizeof(row->needs[0]); i++) {
        const ProtobufCFieldDescriptor *field =
            row->needs[i] != NULL
                ? find(api->request->descriptor, row->needs[i], PROTOBUF_C_TYPE_STRING)
                : NULL;
        TIERCE_DASSERT((field == NULL) == (row->needs[i] == NULL));
        if (field != NULL && tierce__api_text_field(api->request, field)[0] == '\0')
            return row->needs[i];
    }
    return NULL;
}

static bool is_in_scope(const struct tierce__api_call *api)
{
    if (tierce__grant_has_all(api->caller->grant))
        return true;
    const struct tierce__catalog *catalog = tierce__registry_acquire(api->manager->registry);
    bool is = tierce__api_is_in_scope(api, catalog);
    tierce__registry_release(api->manager->registry, catalog);
    return is;
}

/* The generation of the request's instance; 0: unknown. */
static uint64_t find_generation(const struct tierce__api_call *api)
{
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    if (fields->generation == NULL || fields->instance_id == NULL)
        return 0;
    return tierce__locator_generation(api->manager->locator,
                                      tierce__api_text_field(api->request, fields->instance_id));
}

/* The answer has the generation before the call: the blocks that it names are not older. The first
 * registration of an instance has the one behind it. */
static void run_row(struct tierce__api_call *api, const struct tierce__api_row *row)
{
    uint64_t generation = find_generation(api);
    row->run(api);
    if (generation == 0)
        generation = find_generation(api);
    ProtobufCMessage *header = generation > 0 ? header_of(api) : NULL;
    TIERCE_DASSERT(generation <= INT64_MAX);
    if (header == NULL)
        return;
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    *(int64_t *)tierce__proto_member(header, fields->generation->offset) = (int64_t)generation;
    *(int64_t *)tierce__proto_member(header, fields->registry->offset) =
        (int64_t)tierce__registry_number(api->manager->registry);
}

/* The scope is checked before anything else that depends on the request's instance: an instance
 * that is missing and one outside the scope have the same answer. */
static void run(struct tierce__api_call *api, const struct tierce__fault *fault)
{
    TIERCE_ASSERT(api->id < TIERCE__RPC_COUNT);
    const struct tierce__rpc *rpc = &tierce__rpcs[api->id];
    int state = atomic_load_explicit(&api->manager->state, memory_order_acquire);
    const struct tierce__api_row *row = tierce__api_row(api->id);
    const char *missing;
    bool is_served = state != TIERCE__MANAGER_STARTS &&
                     (!rpc->is_leader_only || tierce__manager_leads(api->manager));
    if (is_served && !is_in_scope(api))
        tierce__api_refuse(api);
    else if (fault->kind == TIERCE__FAULT_INTERNAL_ERROR)
        tierce__api_say(api, INTERNAL_ERROR, "%s fail due to fault injection", rpc->method);
    else if (fault->kind == TIERCE__FAULT_ERROR_CODE)
        tierce__api_say(api, fault->code, "%s fail due to fault injection", rpc->method);
    else if (!is_served)
        say_not_leader(api);
    else if (api->unknown != NULL)
        tierce__api_invalid(api, api->unknown);
    else if ((missing = missing_text(api, row)) != NULL)
        tierce__api_invalid(api, missing);
    else
        run_row(api, row);
    set_request_id(api);
}

void tierce__api_run(struct tierce__api_call *api, const struct tierce__fault *fault)
{
    TIERCE_ASSERT(api->request->descriptor == tierce__rpcs[api->id].request &&
                  api->reply->descriptor == tierce__rpcs[api->id].reply);
    const char *trace_id =
        tierce__api_text_field(api->request, tierce__api_fields(api->id)->trace_id);
    struct tierce__spans spans;
    bool is_traced = wants_spans(api, trace_id);
    if (is_traced)
        tierce__spans_begin(&spans, api->began_ns);
    int span = tierce__span_open("api:run");
    run(api, fault);
    tierce__span_close(span);
    if (is_traced)
        set_spans(api, &spans, trace_id);
}
