/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manager's calls: paths, ports, enums, and of each request and reply an example with every
 * field, as protobuf bytes and as proto3 JSON, both ways (manager.txt).
 */
#include "frozen.h"

#include "base/alloc.h"
#include "proto/kvcm/proto.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/rpcs.h"

#include <inttypes.h>

#define FILE_NAME "manager.txt"

static const char *const ports[] = {"META", "ADMIN", "DEBUG"};

/* "meta.StartWriteCache" */
static void name_of(char name[128], const struct tierce__rpc *rpc)
{
    const char *package = strstr(rpc->service, "proto.") + strlen("proto.");
    snprintf(name, 128, "%.*s.%s", (int)strcspn(package, "."), package, rpc->method);
}

static const struct tierce__rpc *find_rpc(const char *wanted)
{
    char name[128];
    for (size_t i = 0; i < TIERCE__RPC_COUNT; i++) {
        name_of(name, &tierce__rpcs[i]);
        if (strcmp(name, wanted) == 0)
            return &tierce__rpcs[i];
    }
    return NULL;
}

/* ---- examples -------------------------------------------------------------------------------- */

struct example {
    FILE *out;
    int next;         /* each value is another one */
    unsigned variant; /* which member of each oneof */
    unsigned members; /* of the largest oneof */
};

static void put_message(struct example *example, const ProtobufCMessageDescriptor *message);

static void put_value(struct example *example, const ProtobufCFieldDescriptor *field)
{
    int n = ++example->next;
    const ProtobufCEnumDescriptor *values = field->descriptor;
    switch ((int)field->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        put_message(example, field->descriptor);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        fprintf(example->out, "\"%s\"", values->values[(unsigned)n % values->n_values].name);
        break;
    case PROTOBUF_C_TYPE_STRING:
        fprintf(example->out, "\"text-%d\"", n);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        fprintf(example->out, "true");
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        fprintf(example->out, "%d.5", n);
        break;
    case PROTOBUF_C_TYPE_INT32:
        fprintf(example->out, "%d", n % 2 == 0 ? n : -n);
        break;
    case PROTOBUF_C_TYPE_INT64:
        fprintf(example->out, "\"%" PRId64 "\"", INT64_C(10000000000) + n);
        break;
    default:
        ck_abort_msg("%s has a type that is not served", field->name);
    }
}

/* Whether the field is the chosen one of its oneof. */
static bool is_chosen(struct example *example, const ProtobufCMessageDescriptor *message,
                      const ProtobufCFieldDescriptor *field)
{
    unsigned members = 0, index = 0;
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0)
        return true;
    for (unsigned i = 0; i < message->n_fields; i++) {
        if (message->fields[i].quantifier_offset != field->quantifier_offset)
            continue;
        if (&message->fields[i] == field)
            index = members;
        members++;
    }
    if (members > example->members)
        example->members = members;
    return example->variant % members == index;
}

static void put_message(struct example *example, const ProtobufCMessageDescriptor *message)
{
    const char *between = "";
    fputc('{', example->out);
    for (unsigned i = 0; i < message->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->fields[i];
        if (!is_chosen(example, message, field))
            continue;
        bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
        fprintf(example->out, "%s\"%s\":%s", between, field->name, repeated ? "[" : "");
        put_value(example, field);
        if (repeated) {
            fputc(',', example->out);
            put_value(example, field);
            fputc(']', example->out);
        }
        between = ",";
    }
    fputc('}', example->out);
}

/* ---- a call ---------------------------------------------------------------------------------- */

static ProtobufCMessage *parse(const ProtobufCMessageDescriptor *descriptor, const char *text)
{
    char why[TIERCE__PROTO_WHY_BYTES] = "";
    ProtobufCMessage *message = NULL;
    int rc = tierce__proto_json_parse(&message, descriptor, text, strlen(text), why);
    ck_assert_msg(rc == 0 && why[0] == '\0', "%s: %s", text, why);
    return message;
}

static void print_as(const ProtobufCMessage *message, const char *name)
{
    char *text = NULL;
    size_t bytes;
    ck_assert_int_eq(tierce__proto_json_print(&text, &bytes, message), 0);
    frozen_check(FILE_NAME, name, text);
    tierce__free(text);
}

static void pack_as(const ProtobufCMessage *message, const char *name)
{
    void *wire = NULL;
    size_t bytes;
    ck_assert_int_eq(tierce__proto_pack(&wire, &bytes, message), 0);
    frozen_check_bytes(FILE_NAME, name, wire, bytes);
    tierce__free(wire);
}

/* JSON to bytes, and bytes to JSON. */
static void check_example(const ProtobufCMessageDescriptor *descriptor, const char *name,
                          const char *json)
{
    char json_name[256], wire_name[256], why[TIERCE__PROTO_WHY_BYTES] = "";
    snprintf(json_name, sizeof(json_name), "%s.json", name);
    snprintf(wire_name, sizeof(wire_name), "%s.wire", name);
    ProtobufCMessage *message = parse(descriptor, json);
    print_as(message, json_name);
    pack_as(message, wire_name);
    tierce__proto_free(message);
    if (frozen_writes())
        return;
    char *hex = frozen_find(FILE_NAME, wire_name);
    size_t count;
    uint8_t *wire = frozen_bytes(hex, &count);
    message = NULL;
    ck_assert_int_eq(tierce__proto_unpack(&message, descriptor, wire, count, why), 0);
    ck_assert_uint_eq(message->n_unknown_fields, 0);
    print_as(message, json_name);
    pack_as(message, wire_name);
    tierce__proto_free(message);
    free(wire);
    free(hex);
}

/* One example for each member of a oneof. Returns how many there are. */
static unsigned check_message(const ProtobufCMessageDescriptor *descriptor, const char *call,
                              const char *what)
{
    struct example example = {.members = 1};
    char name[128], json_name[160], *json;
    for (unsigned i = 0;; i++) {
        size_t bytes;
        snprintf(name, sizeof(name), "%s.%s-%u", call, what, i);
        snprintf(json_name, sizeof(json_name), "%s.json", name);
        if (frozen_writes()) {
            if (i == example.members)
                return i;
            example.variant = i;
            example.next = 0;
            example.out = open_memstream(&json, &bytes);
            put_message(&example, descriptor);
            ck_assert_int_eq(fclose(example.out), 0);
        } else {
            json = frozen_find(FILE_NAME, json_name);
            if (json == NULL)
                return i;
        }
        check_example(descriptor, name, json);
        free(json);
    }
}

static void check_rpc(const struct tierce__rpc *rpc)
{
    char name[128], key[256], value[512];
    name_of(name, rpc);
    snprintf(key, sizeof(key), "%s.path", name);
    snprintf(value, sizeof(value), "%s %s %s %s", rpc->grpc_path, rpc->http_path, ports[rpc->port],
             rpc->is_leader_only ? "LEADER" : "ANY");
    frozen_check(FILE_NAME, key, value);
    ck_assert_uint_gt(check_message(rpc->request, name, "request"), 0);
    ck_assert_uint_gt(check_message(rpc->reply, name, "reply"), 0);
}

START_TEST(calls)
{
    struct frozen_file frozen;
    const char *name, *value;
    size_t found = 0;
    if (frozen_writes()) {
        for (size_t i = 0; i < TIERCE__RPC_COUNT; i++)
            check_rpc(&tierce__rpcs[i]);
        return;
    }
    ck_assert(frozen_try_open(&frozen, FILE_NAME));
    while (frozen_next(&frozen, &name, &value)) {
        const char *end = strstr(name, ".path");
        if (end == NULL)
            continue;
        char *call = strndup(name, (size_t)(end - name));
        const struct tierce__rpc *rpc = find_rpc(call);
        ck_assert_msg(rpc != NULL, "%s is gone", call);
        check_rpc(rpc);
        free(call);
        found++;
    }
    frozen_close(&frozen);
    ck_assert_uint_ge(found, 40);
}
END_TEST

/* ---- the version before ---------------------------------------------------------------------- */

#define OLDER_NAME "manager_older.txt"

static const ProtobufCMessageDescriptor *find_message(const char *name)
{
    char call[128];
    const char *what = strrchr(name, '.');
    while (what > name && what[-1] != '.')
        what--;
    ck_assert(what > name);
    snprintf(call, sizeof(call), "%.*s", (int)(what - 1 - name), name);
    const struct tierce__rpc *rpc = find_rpc(call);
    ck_assert_msg(rpc != NULL, "%s is gone", call);
    return strncmp(what, "request", 7) == 0 ? rpc->request : rpc->reply;
}

/* Bytes of a message of the version before are known to this one in full, and this one writes the
 * same bytes where it adds nothing: so each may be the client of the other. */
START_TEST(messages_of_the_version_before)
{
    struct frozen_file frozen;
    const char *name, *value;
    size_t found = 0;
    if (frozen_writes())
        return;
    ck_assert(frozen_try_open(&frozen, OLDER_NAME));
    while (frozen_next(&frozen, &name, &value)) {
        char why[TIERCE__PROTO_WHY_BYTES] = "";
        ProtobufCMessage *message = NULL;
        const ProtobufCMessageDescriptor *descriptor = find_message(name);
        size_t count, bytes;
        void *packed;
        uint8_t *wire = frozen_bytes(value, &count);
        ck_assert_int_eq(tierce__proto_unpack(&message, descriptor, wire, count, why), 0);
        ck_assert_msg(message->n_unknown_fields == 0, "%s has unknown fields", name);
        ck_assert_int_eq(tierce__proto_pack(&packed, &bytes, message), 0);
        ck_assert_msg(bytes == count && memcmp(packed, wire, count) == 0, "%s is written otherwise",
                      name);
        tierce__free(packed);
        tierce__proto_free(message);
        free(wire);
        found++;
    }
    frozen_close(&frozen);
    ck_assert_uint_ge(found, 20);
}
END_TEST

/* ---- enums ----------------------------------------------------------------------------------- */

/* Finds an enum below a message by its name. */
static const ProtobufCEnumDescriptor *find_enum(const ProtobufCMessageDescriptor *message,
                                                const char *wanted)
{
    const ProtobufCEnumDescriptor *found = NULL;
    for (unsigned i = 0; found == NULL && i < message->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->fields[i];
        const ProtobufCEnumDescriptor *one = field->descriptor;
        if (field->type == PROTOBUF_C_TYPE_ENUM && strcmp(one->name, wanted) == 0)
            found = one;
        else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            found = find_enum(field->descriptor, wanted);
    }
    return found;
}

static void write_enums(const ProtobufCMessageDescriptor *message)
{
    for (unsigned i = 0; i < message->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->fields[i];
        const ProtobufCEnumDescriptor *values = field->descriptor;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            write_enums(field->descriptor);
        if (field->type != PROTOBUF_C_TYPE_ENUM)
            continue;
        for (unsigned v = 0; v < values->n_values; v++) {
            char name[256], number[16];
            snprintf(name, sizeof(name), "enum/%s/%s", values->name, values->values[v].name);
            snprintf(number, sizeof(number), "%d", values->values[v].value);
            frozen_write(FILE_NAME, name, number);
        }
    }
}

static void check_enum(char *name, const char *number)
{
    char *type = name + strlen("enum/"), *value = strchr(type, '/');
    const ProtobufCEnumDescriptor *values = NULL;
    *value++ = '\0';
    for (size_t i = 0; values == NULL && i < TIERCE__RPC_COUNT; i++) {
        values = find_enum(tierce__rpcs[i].request, type);
        if (values == NULL)
            values = find_enum(tierce__rpcs[i].reply, type);
    }
    ck_assert_msg(values != NULL, "%s is gone", type);
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value_by_name(values, value);
    ck_assert_msg(found != NULL, "%s of %s is gone", value, type);
    ck_assert_int_eq(found->value, strtol(number, NULL, 10));
}

START_TEST(enums)
{
    struct frozen_file frozen;
    const char *name, *value;
    size_t found = 0;
    if (frozen_writes()) {
        for (size_t i = 0; i < TIERCE__RPC_COUNT; i++) {
            write_enums(tierce__rpcs[i].request);
            write_enums(tierce__rpcs[i].reply);
        }
        return;
    }
    ck_assert(frozen_try_open(&frozen, FILE_NAME));
    while (frozen_next(&frozen, &name, &value)) {
        if (strncmp(name, "enum/", 5) != 0)
            continue;
        char *copy = strdup(name);
        check_enum(copy, value);
        free(copy);
        found++;
    }
    frozen_close(&frozen);
    ck_assert_uint_ge(found, 40);
}
END_TEST

CHECK_MAIN("frozen_manager", .tests = {calls, enums, messages_of_the_version_before})
