/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/audit.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "base/log/line_log.h"
#include "base/threads/lock.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct tierce__audit {
    struct tierce__line_log *log;
    struct tierce__lock lock; /* AUDIT: guards the fields below */
    int64_t second;           /* in which `counts` were logged */
    uint64_t counts[2];       /* of refused calls, and of those that removed blocks */
    uint64_t left_out;
};

int tierce__audit_open(struct tierce__audit **out, const char *path, char why[256])
{
    struct tierce__audit *audit = tierce__calloc(1, sizeof(*audit));
    if (audit == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    int rc = tierce__line_log_open(
        &audit->log,
        &(struct tierce__line_log_opts){.size = sizeof(struct tierce__line_log_opts),
                                        .path = path,
                                        .failure = "manager.audit_lost"},
        why);
    if (rc < 0) {
        tierce__free(audit);
        return rc;
    }
    tierce__lock_init(&audit->lock, TIERCE__LOCK_AUDIT);
    *out = audit;
    return 0;
}

void tierce__audit_close(struct tierce__audit *audit)
{
    if (audit == NULL)
        return;
    tierce__line_log_close(audit->log);
    tierce__lock_fini(&audit->lock);
    tierce__free(audit);
}

void tierce__audit_rejected(struct tierce__manager *manager, const struct tierce__call *call,
                            const char *what, const char *who, enum tierce__auth_result result,
                            const char *why)
{
    TIERCE_ASSERT(result != TIERCE__AUTH_WAITS);
    enum tierce__audit_outcome outcome = result == TIERCE__AUTH_UNKNOWN  ? TIERCE__AUDIT_UNKNOWN
                                         : result == TIERCE__AUTH_DENIED ? TIERCE__AUDIT_DENIED
                                                                         : TIERCE__AUDIT_LIMITED;
    tierce__audit_write(
        manager->audit, tierce__manager_now_us(manager),
        &(struct tierce__audit_line){
            .what = what, .who = who, .call = call, .outcome = outcome, .why = why});
}

bool tierce__audit_wants(const struct tierce__need *need)
{
    return (need->right & (TIERCE__RIGHT_ADMIN | TIERCE__RIGHT_TRIM)) != 0;
}

bool tierce__audit_is_trim(const struct tierce__need *need)
{
    return (need->right & TIERCE__RIGHT_TRIM) != 0 && (need->right & TIERCE__RIGHT_ADMIN) == 0;
}

/* ---- the target ------------------------------------------------------------------------------ */

/* The fields that name something. No other field of a request is logged: it may be a secret. */
static const struct {
    const char *field, *inner; /* inner: the name in a message; NULL: the field is a text */
} names[] = {
    {"instance_id", NULL},
    {"instance_group", NULL},
    {"instance_group_name", NULL},
    {"name", NULL},
    {"storage_unique_name", NULL},
    {"user_name", NULL},
    {"worker", NULL},
    {"api_name", NULL},
    {"log_level", NULL},
    {"storage", "global_unique_name"},
    {"instance_group", "name"},
};

static const ProtobufCFieldDescriptor *find(const ProtobufCMessage *message, const char *name,
                                            ProtobufCType type)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    bool is_it = field != NULL && field->type == type && field->label != PROTOBUF_C_LABEL_REPEATED;
    return is_it ? field : NULL;
}

/* A text of a message; "": there is none. */
static const char *text_of(const ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field = find(message, name, PROTOBUF_C_TYPE_STRING);
    const char *text =
        field != NULL ? *(char *const *)tierce__proto_member(message, field->offset) : NULL;
    return text != NULL ? text : "";
}

static const char *inner_text(const ProtobufCMessage *message, const char *name, const char *inner)
{
    const ProtobufCFieldDescriptor *field = find(message, name, PROTOBUF_C_TYPE_MESSAGE);
    const ProtobufCMessage *part =
        field != NULL ? *(ProtobufCMessage *const *)tierce__proto_member(message, field->offset)
                      : NULL;
    return part != NULL ? text_of(part, inner) : "";
}

/* The name of the action that a call has among its fields, as DrainStorage; NULL: it has none. */
static const char *action_of(const ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *field = find(message, "action", PROTOBUF_C_TYPE_ENUM);
    if (field == NULL)
        return NULL;
    const int *number = tierce__proto_member(message, field->offset);
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(field->descriptor, *number);
    return value != NULL ? value->name : NULL;
}

/* Names have at most 512 bytes; a longer text is none. */
static void put_target(struct tierce__json_write *json, const ProtobufCMessage *request)
{
    enum { NAME_BYTES_MAX = 512 };
    tierce__json_write_open(json, "on", '{');
    for (size_t i = 0; request != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = names[i].inner == NULL
                               ? text_of(request, names[i].field)
                               : inner_text(request, names[i].field, names[i].inner);
        if (text[0] != '\0' && strlen(text) <= NAME_BYTES_MAX)
            tierce__json_write_text(json, names[i].field, text);
    }
    const char *action = request != NULL ? action_of(request) : NULL;
    if (action != NULL)
        tierce__json_write_text(json, "action", action);
    tierce__json_write_close(json, '}');
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Whether a line is written; *left_out: how many were not before it. */
static bool admit(struct tierce__audit *audit, const struct tierce__audit_line *line,
                  int64_t second, uint64_t *left_out)
{
    bool is_refused = line->outcome >= TIERCE__AUDIT_UNKNOWN;
    bool is_bounded = is_refused || line->is_trim;
    uint64_t *count = &audit->counts[is_refused ? 0 : 1];
    uint64_t max = is_refused ? TIERCE__AUDIT_REFUSED_MAX : TIERCE__AUDIT_TRIMS_MAX;
    tierce__lock_take(&audit->lock);
    if (audit->second != second) {
        audit->second = second;
        memset(audit->counts, 0, sizeof(audit->counts));
    }
    bool writes = !is_bounded || *count < max;
    *count += is_bounded;
    audit->left_out += !writes;
    *left_out = writes ? audit->left_out : 0;
    if (writes)
        audit->left_out = 0;
    tierce__lock_drop(&audit->lock);
    return writes;
}

static void put_code(struct tierce__json_write *json, int code)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&meta__error_code__descriptor, code);
    if (value != NULL)
        tierce__json_write_text(json, "code", value->name);
    else
        tierce__json_write_signed(json, "code", code);
}

void tierce__audit_write(struct tierce__audit *audit, int64_t now_us,
                         const struct tierce__audit_line *line)
{
    static const char *const outcomes[] = {
        [TIERCE__AUDIT_DONE] = "done",       [TIERCE__AUDIT_FAILED] = "failed",
        [TIERCE__AUDIT_UNKNOWN] = "unknown", [TIERCE__AUDIT_DENIED] = "denied",
        [TIERCE__AUDIT_SCOPE] = "scope",     [TIERCE__AUDIT_LIMITED] = "limited"};
    struct tierce__line text = {0};
    uint64_t left_out;
    TIERCE_ASSERT((size_t)line->outcome < sizeof(outcomes) / sizeof(outcomes[0]));
    if (audit == NULL || !admit(audit, line, now_us / 1000000, &left_out))
        return;
    const struct tierce__call_info *info =
        line->call != NULL ? tierce__call_info(line->call) : NULL;
    struct tierce__json_write json = {.line = &text};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_signed(&json, "time_us", now_us);
    tierce__json_write_text(&json, "who", line->who);
    tierce__json_write_text(&json, "what", line->what);
    put_target(&json, line->request);
    if (info != NULL) {
        tierce__json_write_text(&json, "from", info->peer);
        tierce__json_write_text(&json, "over",
                                info->protocol == TIERCE__SERVE_GRPC ? "grpc" : "http");
    }
    tierce__json_write_text(&json, "outcome", outcomes[line->outcome]);
    if (line->code != 0)
        put_code(&json, line->code);
    if (line->why[0] != '\0')
        tierce__json_write_text(&json, "why", line->why);
    if (left_out > 0)
        tierce__json_write_count(&json, "left_out", left_out);
    tierce__json_write_close(&json, '}');
    TIERCE_DASSERT(text.failed || json.depth == 0);
    tierce__line_end(&text, audit->log);
}
