/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/storage_at.h"
#include "manager/api/grant.h"
#include "manager/api/api_model.h"

#include "base/assert.h"
#include "base/text/line.h"
#include "base/text/url.h"
#include "manager/storage/unmanaged.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool tierce__api_read(struct tierce__api_call *api, const char *noun,
                      const ProtobufCMessage *message, const struct tierce__fields *fields,
                      void *out)
{
    char missing[256] = "", whole[320];
    if (message == NULL || tierce__model_lacks(message, fields, missing)) {
        snprintf(whole, sizeof(whole), missing[0] != '\0' ? "%s: {%s}" : "%s", noun, missing);
        tierce__api_invalid(api, noun != NULL ? whole : missing);
        return false;
    }
    tierce__model_start(out, fields);
    int rc = tierce__model_from_message(out, fields, "", message, &api->arena);
    if (rc != 0)
        tierce__api_fail(api, rc, "read the request");
    return rc == 0;
}

ProtobufCMessage *tierce__api_show(struct tierce__api_call *api,
                                   const ProtobufCMessageDescriptor *type,
                                   const struct tierce__fields *fields, const void *object)
{
    ProtobufCMessage *out = tierce__proto_add(api->reply, type);
    bool is_done =
        out != NULL && tierce__model_to_message(out, api->reply, fields, "", object) == 0;
    return is_done ? out : NULL;
}

ProtobufCMessage *tierce__api_show_instance(struct tierce__api_call *api, const char *id,
                                            const ProtobufCMessageDescriptor *type, char **group)
{
    const struct tierce__instance *instance =
        tierce__catalog_instance(tierce__api_catalog(api), id);
    if (instance == NULL) {
        tierce__api_say(api, META__ERROR_CODE__INSTANCE_NOT_EXIST, "there is no instance %.100s",
                        id);
        return NULL;
    }
    ProtobufCMessage *shown = tierce__api_show(api, type, &tierce__instance_fields, instance);
    *group = instance->group_name;
    tierce__api_end(api, shown != NULL ? 0 : -ENOMEM, "get instance info", "");
    return shown;
}

/* ---- URIs of our own types ------------------------------------------------------------------- */

/*
 * These storages are stored as one URI: tierce://POOL?nodes=.., redis://..,
 * s3://BUCKET/PREFIX?endpoint=..; parameter values are percent-encoded if necessary.
 */
struct uri_form {
    const char *scheme;  /* "": the first field has it */
    const char *head[2]; /* fields before the parameters, joined by '/' */
    struct {
        const char *name, *field; /* a text, a bool (1), or a list of texts (joined by commas) */
    } parameters[4];
};

static const struct uri_form node_form = {"tierce://", {"pool"}, {{"nodes", "nodes"}}};
static const struct uri_form redis_form = {"",
                                           {"uri"},
                                           {{"key_prefix", "key_prefix"},
                                            {"credentials_file", "credentials_file"},
                                            {"cluster", "is_cluster"}}};
static const struct uri_form s3_form = {"s3://",
                                        {"bucket", "prefix"},
                                        {{"endpoint", "endpoint"},
                                         {"region", "region"},
                                         {"credentials_file", "credentials_file"},
                                         {"path_style", "is_path_style"}}};
enum { PARAMETERS_MAX = sizeof(node_form.parameters) / sizeof(node_form.parameters[0]) };

/* A storage type and its message in StorageConfig. */
struct spec {
    enum tierce__storage_type type;
    Admin__StorageConfig__StorageSpecCase number; /* of the field */
    const struct uri_form *form;                  /* NULL: tierce__storage_fields has its fields */
};

static const struct spec specs[] = {
    {TIERCE__STORAGE_3FS, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_THREEFS, NULL},
    {TIERCE__STORAGE_MOONCAKE, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_MOONCAKE, NULL},
    {TIERCE__STORAGE_TAIRMEMPOOL, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_TAIR_MEM_POOL, NULL},
    {TIERCE__STORAGE_NFS, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_NFS, NULL},
    {TIERCE__STORAGE_VCNS_3FS, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_VCNSTHREEFS, NULL},
    {TIERCE__STORAGE_NODE, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_TIERCE, &node_form},
    {TIERCE__STORAGE_REDIS, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_REDIS, &redis_form},
    {TIERCE__STORAGE_S3, ADMIN__STORAGE_CONFIG__STORAGE_SPEC_S3, &s3_form},
};
enum { SPECS = sizeof(specs) / sizeof(specs[0]) };

static const ProtobufCFieldDescriptor *field_of(const ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    TIERCE_ASSERT(field != NULL);
    return field;
}

/* Encodes the bytes that end a value. */
static void put_encoded(struct tierce__line *line, const char *value)
{
    char piece[4];
    for (; *value != '\0'; value++) {
        bool plain = strchr("%&=?#", *value) == NULL && (unsigned char)*value > ' ';
        snprintf(piece, sizeof(piece), plain ? "%c" : "%%%02X", (unsigned char)*value);
        tierce__line_put(line, piece);
    }
}

/* The value of a parameter is appended with its name; nothing if it is empty. */
static void put_parameter(struct tierce__line *line, const char *name, const ProtobufCMessage *spec,
                          const ProtobufCFieldDescriptor *field)
{
    bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
    bool is_bool = field->type == PROTOBUF_C_TYPE_BOOL;
    TIERCE_ASSERT(is_list || is_bool || field->type == PROTOBUF_C_TYPE_STRING);
    const void *at = tierce__proto_member(spec, field->offset);
    size_t count =
        is_list ? *(const size_t *)tierce__proto_member(spec, field->quantifier_offset) : 1;
    char *flag = tierce__api_text(is_bool && *(const protobuf_c_boolean *)at ? "1" : "");
    char *const *texts = is_list ? *(char *const *const *)at : is_bool ? &flag : at;
    if (count == 0 || (count == 1 && texts[0][0] == '\0'))
        return;
    bool is_first = line->text == NULL || memchr(line->text, '?', line->bytes) == NULL;
    tierce__line_put(line, is_first ? "?" : "&");
    tierce__line_put(line, name);
    tierce__line_put(line, "=");
    for (size_t i = 0; i < count; i++) {
        tierce__line_put(line, i > 0 ? "," : "");
        put_encoded(line, texts[i]);
    }
}

/* NULL: no memory. */
static char *spec_uri(struct tierce__api_call *api, const ProtobufCMessage *spec,
                      const struct uri_form *form)
{
    struct tierce__line line = {0};
    tierce__line_put(&line, form->scheme);
    for (size_t i = 0; i < 2 && form->head[i] != NULL; i++) {
        tierce__line_put(&line, i > 0 ? "/" : "");
        tierce__line_put(
            &line, *(char **)tierce__proto_member(spec, field_of(spec, form->head[i])->offset));
    }
    for (size_t i = 0; i < PARAMETERS_MAX && form->parameters[i].name != NULL; i++)
        put_parameter(&line, form->parameters[i].name, spec,
                      field_of(spec, form->parameters[i].field));
    char *uri = line.failed ? NULL : tierce__arena_copy(&api->arena, line.text, line.bytes);
    tierce__line_clear(&line);
    return uri;
}

/* The decoded value of a parameter; "" if it is missing. NULL: no memory. */
static char *parameter(struct tierce__api_call *api, const char *uri, const char *name)
{
    const char *at = strchr(uri, '?');
    size_t length = strlen(name);
    while (at != NULL && !(strncmp(at + 1, name, length) == 0 && at[1 + length] == '='))
        at = strchr(at + 1, '&');
    at = at != NULL ? at + length + 2 : "";
    char *out = tierce__api_copy(api, at, strcspn(at, "&"));
    return out == NULL || tierce__url_decode(out, true)
               ? out
               : tierce__api_copy(api, at, strcspn(at, "&"));
}

/* Divides a text at its commas; takes it over. */
static bool show_list(struct tierce__api_call *api, char *text, ProtobufCMessage *spec,
                      const ProtobufCFieldDescriptor *field)
{
    TIERCE_ASSERT(field->label == PROTOBUF_C_LABEL_REPEATED);
    char **list = tierce__api_alloc(api, strlen(text) + 1, sizeof(*list));
    size_t count = 0;
    if (list == NULL)
        return false;
    for (char *next = text[0] != '\0' ? text : NULL; next != NULL;) {
        list[count++] = next;
        next = strchr(next, ',');
        if (next != NULL)
            *next++ = '\0';
    }
    *(char ***)tierce__proto_member(spec, field->offset) = list;
    *(size_t *)tierce__proto_member(spec, field->quantifier_offset) = count;
    return true;
}

static bool show_parameter(struct tierce__api_call *api, const char *uri, const char *name,
                           ProtobufCMessage *spec, const ProtobufCFieldDescriptor *field)
{
    char *value = parameter(api, uri, name);
    if (value == NULL)
        return false;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return show_list(api, value, spec, field);
    if (field->type == PROTOBUF_C_TYPE_BOOL)
        *(protobuf_c_boolean *)tierce__proto_member(spec, field->offset) = value[0] == '1';
    else
        *(char **)tierce__proto_member(spec, field->offset) = value;
    return true;
}

static bool show_uri(struct tierce__api_call *api, const char *uri, ProtobufCMessage *spec,
                     const struct uri_form *form)
{
    const char *at = uri;
    if (strncmp(uri, form->scheme, strlen(form->scheme)) == 0)
        at += strlen(form->scheme);
    for (size_t i = 0; i < 2 && form->head[i] != NULL; i++) {
        bool is_last = i == 1 || form->head[i + 1] == NULL;
        size_t bytes = strcspn(at, is_last ? "?" : "/?");
        char *text = tierce__api_copy(api, at, bytes);
        if (text == NULL)
            return false;
        TIERCE_ASSERT(field_of(spec, form->head[i])->type == PROTOBUF_C_TYPE_STRING);
        *(char **)tierce__proto_member(spec, field_of(spec, form->head[i])->offset) = text;
        at += bytes + (!is_last && at[bytes] == '/');
    }
    for (size_t i = 0; i < PARAMETERS_MAX && form->parameters[i].name != NULL; i++)
        if (!show_parameter(api, uri, form->parameters[i].name, spec,
                            field_of(spec, form->parameters[i].field)))
            return false;
    return true;
}

/* ---- storages -------------------------------------------------------------------------------- */

#define SPEC_PREFIX "storage_spec."

bool tierce__api_read_storage(struct tierce__api_call *api, const Admin__StorageConfig *message,
                              struct tierce__storage *out)
{
    if (!tierce__api_read(api, "storage", (const ProtobufCMessage *)message,
                          &tierce__storage_fields, out))
        return false;
    if (message->storage_spec_case == ADMIN__STORAGE_CONFIG__STORAGE_SPEC_LOCAL) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                        "storage: {local} of storage %.60s is not supported, because it names no "
                        "place that engines could share; use nfs with a folder",
                        message->global_unique_name);
        return false;
    }
    size_t i = 0;
    while (i < SPECS && specs[i].number != message->storage_spec_case)
        i++;
    if (i == SPECS) {
        tierce__api_invalid(api, "storage: {storage_spec}");
        return false;
    }
    /* The members of the oneof share their place. */
    const ProtobufCMessage *spec = (const ProtobufCMessage *)message->threefs;
    int rc = 0;
    out->type = specs[i].type;
    if (specs[i].form == NULL)
        rc = tierce__model_from_message(out, &tierce__storage_fields, SPEC_PREFIX, spec,
                                        &api->arena);
    else if ((out->uri = spec_uri(api, spec, specs[i].form)) == NULL)
        rc = -ENOMEM;
    if (rc != 0)
        tierce__api_fail(api, rc, "read storage");
    return rc == 0;
}

static bool show_spec(struct tierce__api_call *api, const struct tierce__storage *storage,
                      Admin__StorageConfig *out)
{
    size_t i = 0;
    while (i < SPECS && specs[i].type != storage->type)
        i++;
    if (i == SPECS)
        return true;
    const ProtobufCMessageDescriptor *type =
        protobuf_c_message_descriptor_get_field(out->base.descriptor, specs[i].number)->descriptor;
    ProtobufCMessage *spec = tierce__proto_add(api->reply, type);
    if (spec == NULL)
        return false;
    out->storage_spec_case = specs[i].number;
    out->threefs = (Admin__ThreeFSStorageSpec *)spec;
    if (storage->type == TIERCE__STORAGE_NODE && storage->pool[0] != '\0')
        return tierce__api_show_node(api, storage, out->tierce);
    if (specs[i].form != NULL)
        return show_uri(api, storage->uri, spec, specs[i].form);
    return tierce__model_to_message(spec, api->reply, &tierce__storage_fields, SPEC_PREFIX,
                                    storage) == 0;
}

/* The storage as the caller may see it: an account of some groups sees no passwords in URIs. NULL:
 * no memory. */
static const struct tierce__storage *shown_to(struct tierce__api_call *api,
                                              const struct tierce__storage *storage,
                                              struct tierce__storage *shown)
{
    if (tierce__grant_has_all(api->caller->grant))
        return storage;
    *shown = *storage;
    shown->uri = tierce__arena_copy(&api->arena, storage->uri, strlen(storage->uri));
    if (shown->uri == NULL)
        return NULL;
    tierce__storage_at_hide(shown->uri);
    return shown;
}

/* The last scrub. NULL: not for this caller, or no memory, and then *fails. */
static Admin__StorageScrub *show_scrub(struct tierce__api_call *api, const char *storage,
                                       bool *fails)
{
    struct tierce__scrub_state state = {0};
    if (!tierce__grant_has_all(api->caller->grant)) /* it counts the objects of all groups */
        return NULL;
    bool has_run = tierce__scrub_state(api->manager->scrub, storage, &state);
    Admin__StorageScrub *out = tierce__arena_alloc(&api->arena, sizeof(*out));
    char *reason = tierce__api_copy(api, state.why, strlen(state.why));
    *fails = out == NULL || reason == NULL;
    if (*fails)
        return NULL;
    admin__storage_scrub__init(out);
    out->state = tierce__api_text(has_run ? tierce__scrub_phase_name(state.phase) : "none");
    out->reason = reason;
    out->repairs = state.repairs;
    out->began_us = state.began_us;
    out->ended_us = state.ended_us;
    out->checked_files = (int64_t)state.counts.checked;
    out->missing_files = (int64_t)state.counts.missing;
    out->dropped_locations = (int64_t)state.counts.dropped_locations;
    out->listed_objects = (int64_t)state.counts.listed;
    out->orphans = (int64_t)state.counts.orphans;
    out->deleted_orphans = (int64_t)state.counts.deleted_orphans;
    return out;
}

Admin__StorageConfig *tierce__api_show_storage(struct tierce__api_call *api,
                                               const struct tierce__storage *whole)
{
    struct tierce__storage copy;
    const struct tierce__storage *storage = shown_to(api, whole, &copy);
    if (storage == NULL)
        return NULL;
    Admin__StorageConfig *out = (Admin__StorageConfig *)tierce__api_show(
        api, &admin__storage_config__descriptor, &tierce__storage_fields, storage);
    struct tierce__storage_state state;
    char warning[TIERCE__WARNING_BYTES];
    bool fails = false;
    if (out == NULL || !show_spec(api, storage, out))
        return NULL;
    tierce__storages_state(api->manager->storages, storage->name, &state);
    tierce__storage_warning(warning, api->manager->storages, storage);
    TIERCE_DASSERT(strcmp(out->global_unique_name, storage->name) == 0);
    out->status = tierce__api_text(tierce__storage_status(&state));
    struct tierce__drain_state drain = {.name = ""};
    if (storage->draining != TIERCE__DRAINING_NOT)
        tierce__locator_drain_state(api->manager->locator, storage, &drain);
    out->drain = tierce__api_text(drain.name);
    out->drain_reason = tierce__api_copy(api, drain.why, strlen(drain.why));
    out->warning = tierce__api_copy(api, warning, strlen(warning));
    out->reason = tierce__api_copy(api, state.why, state.is_well ? 0 : strlen(state.why));
    out->scrub = show_scrub(api, storage->name, &fails);
    return out->warning != NULL && out->reason != NULL && out->drain_reason != NULL && !fails
               ? out
               : NULL;
}

/* ---- groups ---------------------------------------------------------------------------------- */

Admin__InstanceGroup *tierce__api_show_group(struct tierce__api_call *api,
                                             const struct tierce__group *group)
{
    Admin__InstanceGroup *out = (Admin__InstanceGroup *)tierce__api_show(
        api, &admin__instance_group__descriptor, &tierce__group_fields, group);
    char warning[TIERCE__WARNING_BYTES];
    if (out == NULL)
        return NULL;
    tierce__group_warning(warning, api->manager->storages, tierce__api_catalog(api), group);
    out->warning = tierce__api_copy(api, warning, strlen(warning));
    return out->warning != NULL ? out : NULL;
}
