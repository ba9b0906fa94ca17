/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the model's fields: they have every member and every field of the messages, and
 * each value makes the whole way from a message to the model, to JSON and back.
 */
#include "base/alloc.h"
#include "base/arena.h"
#include "check_main.h"
#include "manager/registry/model.h"
#include "proto/kvcm/admin_service.pb-c.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"

#include <string.h>

#define SPEC "storage_spec."

static char why[256];

static const struct tierce__fields *const tables[] = {
    &tierce__storage_fields, &tierce__group_fields, &tierce__instance_fields,
    &tierce__account_fields};
enum { TABLES = sizeof(tables) / sizeof(tables[0]) };

/* The types whose fields a message has under the same names. */
static const struct {
    enum tierce__storage_type type;
    const ProtobufCMessageDescriptor *message;
} specs[] = {
    {TIERCE__STORAGE_3FS, &admin__three_fsstorage_spec__descriptor},
    {TIERCE__STORAGE_MOONCAKE, &admin__mooncake_storage_spec__descriptor},
    {TIERCE__STORAGE_TAIRMEMPOOL, &admin__tair_mem_pool_storage_spec__descriptor},
    {TIERCE__STORAGE_NFS, &admin__nfs_storage_spec__descriptor},
    {TIERCE__STORAGE_VCNS_3FS, &admin__vcns_three_fsstorage_spec__descriptor},
};
enum { SPECS = sizeof(specs) / sizeof(specs[0]) };

static bool is_in_messages(const struct tierce__model_field *field)
{
    return field->message == NULL || field->message[0] != '\0';
}

/* ---- members --------------------------------------------------------------------------------- */

static void cover(uint8_t *alignments, size_t size, size_t at, size_t bytes)
{
    ck_assert_uint_le(at + bytes, size);
    for (size_t i = at; i < at + bytes; i++) {
        ck_assert_msg(alignments[i] == 0, "two rows at %zu", i);
        alignments[i] = (uint8_t)bytes;
    }
}

/* Bytes without a row must be padding, which ends where the next member may begin, and no sooner.
 */
static void check_members(const struct tierce__fields *fields)
{
    uint8_t alignments[512] = {0};
    ck_assert_uint_lt(fields->size, sizeof(alignments));
    alignments[fields->size] = sizeof(void *);
    if (fields == &tierce__storage_fields) /* set for a driver, and no configuration */
        cover(alignments, fields->size, offsetof(struct tierce__storage, mooncake_python),
              sizeof(char *));
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        cover(alignments, fields->size, field->offset, field->bytes);
        if (tierce__field_is_list(field))
            cover(alignments, fields->size, field->count_offset, sizeof(size_t));
        if (field->kind == TIERCE__FIELD_LIST)
            check_members(field->items);
    }
    for (size_t at = 0; at < fields->size; at++) {
        size_t end = at;
        while (alignments[end] == 0)
            end++;
        ck_assert_msg(end == at || (at % alignments[end] != 0 && end % alignments[end] == 0 &&
                                    end - at < alignments[end]),
                      "%s: no row has the member at %zu", fields->noun, at);
        at = end;
    }
}

START_TEST(test_every_member_has_a_row)
{
    for (size_t t = 0; t < TABLES; t++)
        check_members(tables[t]);
}
END_TEST

/* ---- fields of messages ---------------------------------------------------------------------- */

/* Whether objects of a type have a row for a field. */
static bool has_row(const struct tierce__fields *fields, uint32_t types, const char *path)
{
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        const char *of = field->message != NULL ? field->message : field->path;
        if (strcmp(of, path) == 0 && tierce__field_is_of(field, types))
            return true;
    }
    return false;
}

static void check_message(const struct tierce__fields *fields, uint32_t types, const char *prefix,
                          const ProtobufCMessageDescriptor *type)
{
    static const char *const not_of_the_model[] = {
        "status",        "warning", "reason",      "threefs", "mooncake",
        "tair_mem_pool", "nfs",     "vcnsthreefs", "local",   "tierce",
        "redis",         "s3",      "scrub",       "drain",   "drain_reason"};
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        char path[256], below[256];
        bool is_known = false;
        for (size_t n = 0; n < sizeof(not_of_the_model) / sizeof(not_of_the_model[0]); n++)
            is_known = is_known || strcmp(field->name, not_of_the_model[n]) == 0;
        snprintf(path, sizeof(path), "%s%s", prefix, field->name);
        snprintf(below, sizeof(below), "%.200s.", path);
        if (is_known)
            continue;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && field->label != PROTOBUF_C_LABEL_REPEATED)
            check_message(fields, types, below, field->descriptor);
        else
            ck_assert_msg(has_row(fields, types, path), "%s: no row has %s", fields->noun, path);
    }
}

START_TEST(test_every_field_of_a_message_has_a_row)
{
    check_message(&tierce__storage_fields, UINT32_MAX, "", &admin__storage_config__descriptor);
    check_message(&tierce__group_fields, UINT32_MAX, "", &admin__instance_group__descriptor);
    check_message(&tierce__instance_fields, UINT32_MAX, "", &admin__instance_info__descriptor);
    check_message(&tierce__instance_fields, UINT32_MAX, "", &meta__instance_info__descriptor);
    check_message(&tierce__account_fields, UINT32_MAX, "", &admin__account__descriptor);
    for (size_t i = 0; i < SPECS; i++)
        check_message(&tierce__storage_fields, tierce__storage_type_bit(specs[i].type), SPEC,
                      specs[i].message);
}
END_TEST

START_TEST(test_fields_that_messages_lack)
{
    static const char *const lacking[TABLES][16] = {
        {"type", "is_available", "storage_spec.uri", "storage_spec.pool", "storage_spec.node",
         "storage_spec.medium", "storage_spec.incarnation", "storage_spec.host_id", "is_marked",
         "contents", "draining", "scrub", "number"},
        {"cache_config.meta_indexer_config.persist_metadata_interval_time_ms", "autopilot_steps",
         "number"},
        {"is_kv", "user_data", "generation", "number"},
        {"password_hash"}};
    for (size_t t = 0; t < TABLES; t++) {
        size_t found = 0;
        for (size_t i = 0; i < tables[t]->count; i++)
            if (!is_in_messages(&tables[t]->rows[i]))
                ck_assert_str_eq(tables[t]->rows[i].path, lacking[t][found++]);
        ck_assert_ptr_null(lacking[t][found]);
    }
}
END_TEST

/* ---- the way of a value ---------------------------------------------------------------------- */

/* A value within the limits that is not the default. */
static int64_t unusual(const struct tierce__model_field *field, size_t i)
{
    int64_t value = (int64_t)i + 2;
    if (field->kind == TIERCE__FIELD_TYPE)
        return TIERCE__STORAGE_NFS;
    if (field->kind == TIERCE__FIELD_BOOL)
        return field->initial == 0;
    if (field->high > 0 && value > field->high)
        value = field->high;
    return value != field->initial ? value : value + 1;
}

/* Sets every member that has the type, or those that messages lack, to a value of its own. */
static void fill(void *object, const struct tierce__fields *fields, bool only_lacking,
                 struct tierce__arena *arena)
{
    uint32_t types = tierce__model_types(object, fields);
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        char text[40];
        double number = (double)i + 0.1;
        snprintf(text, sizeof(text), "%s %zu", "text \"\\\xc3\xa9", i);
        if (!tierce__field_is_of(field, types) || (only_lacking && is_in_messages(field)) ||
            (fields->is_of_a_type && i == 0))
            continue;
        if (tierce__field_is_list(field)) {
            *(void **)tierce__field_at(object, field) =
                tierce__arena_calloc(arena, 2, field->items->size);
            *tierce__field_count(object, field) = 2;
            for (size_t n = 0; n < 2; n++)
                fill(tierce__field_item(object, field, n), field->items, false, arena);
        } else if (field->kind == TIERCE__FIELD_TEXT) {
            *tierce__field_text(object, field) = tierce__arena_copy(arena, text, strlen(text));
        } else if (field->kind == TIERCE__FIELD_DOUBLE) {
            memcpy(tierce__field_at(object, field), &number, sizeof(number));
        } else {
            tierce__field_set_integer(object, field, unusual(field, i));
        }
    }
}

/* The message of an object after a way over the wire. */
static ProtobufCMessage *send_message(const ProtobufCMessageDescriptor *type, const char *prefix,
                                      const struct tierce__fields *fields, const void *object)
{
    ProtobufCMessage *message = tierce__proto_create(type), *received = NULL;
    char text[TIERCE__PROTO_WHY_BYTES];
    void *wire;
    size_t bytes;
    ck_assert_int_eq(tierce__model_to_message(message, message, fields, prefix, object), 0);
    ck_assert_int_eq(tierce__proto_pack(&wire, &bytes, message), 0);
    ck_assert_int_eq(tierce__proto_unpack(&received, type, wire, bytes, text), 0);
    tierce__free(wire);
    tierce__proto_free(message);
    return received;
}

static void expect_same(const void *a, const void *b, const struct tierce__fields *fields)
{
    const struct tierce__model_field *field = tierce__model_difference(a, b, fields, 0);
    ck_assert_msg(field == NULL, "%s.%s is lost", fields->noun, field != NULL ? field->path : "");
}

/* From a message to the model, to JSON, back, and to a message; `spec`: below the field of a
 * storage's type, or NULL. */
static void check_way(const struct tierce__fields *fields, const ProtobufCMessageDescriptor *type,
                      const ProtobufCMessageDescriptor *spec,
                      enum tierce__storage_type storage_type)
{
    union tierce__entry sent, received, read, again;
    struct tierce__arena arena = {0};
    ProtobufCMessage *messages[4] = {NULL};
    char *json = NULL;
    tierce__model_start(&sent, fields);
    if (fields->is_of_a_type)
        sent.storage.type = storage_type;
    received = again = sent;
    fill(&sent, fields, false, &arena);
    messages[0] = send_message(type, "", fields, &sent);
    ck_assert_int_eq(tierce__model_from_message(&received, fields, "", messages[0], &arena), 0);
    if (spec != NULL) {
        messages[1] = send_message(spec, SPEC, fields, &sent);
        ck_assert_int_eq(tierce__model_from_message(&received, fields, SPEC, messages[1], &arena),
                         0);
    }
    fill(&received, fields, true, &arena);
    expect_same(&sent, &received, fields);
    ck_assert_int_eq(tierce__model_to_json(&json, &received, fields, TIERCE__JSON_STORED), 0);
    ck_assert_msg(tierce__model_from_json(&read, fields, json, strlen(json), why) == 0, "%s", why);
    expect_same(&sent, &read, fields);
    messages[2] = send_message(type, "", fields, &read);
    ck_assert_int_eq(tierce__model_from_message(&again, fields, "", messages[2], &arena), 0);
    if (spec != NULL) {
        messages[3] = send_message(spec, SPEC, fields, &read);
        ck_assert_int_eq(tierce__model_from_message(&again, fields, SPEC, messages[3], &arena), 0);
    }
    fill(&again, fields, true, &arena);
    expect_same(&sent, &again, fields);
    for (size_t i = 0; i < 4; i++)
        tierce__proto_free(messages[i]);
    tierce__free(json);
    tierce__model_clear(&read, fields);
    tierce__arena_clear(&arena);
}

START_TEST(test_every_value_makes_the_whole_way)
{
    for (size_t i = 0; i < SPECS; i++)
        check_way(&tierce__storage_fields, &admin__storage_config__descriptor, specs[i].message,
                  specs[i].type);
    check_way(&tierce__group_fields, &admin__instance_group__descriptor, NULL, 0);
    check_way(&tierce__instance_fields, &meta__instance_info__descriptor, NULL, 0);
    check_way(&tierce__instance_fields, &admin__instance_info__descriptor, NULL, 0);
    check_way(&tierce__account_fields, &admin__account__descriptor, NULL, 0);
}
END_TEST

/* A storage of our own types has one text. */
START_TEST(test_uri_of_a_storage)
{
    static const enum tierce__storage_type types[] = {TIERCE__STORAGE_NODE, TIERCE__STORAGE_REDIS,
                                                      TIERCE__STORAGE_S3};
    for (size_t i = 0; i < 3; i++)
        check_way(&tierce__storage_fields, &admin__storage_config__descriptor, NULL, types[i]);
}
END_TEST

/* ---- limits, defaults and copies ------------------------------------------------------------- */

/* Each integer with limits is accepted at both of them and rejected beyond, with its name. */
START_TEST(test_limits)
{
    for (size_t t = 0; t < TABLES; t++) {
        union tierce__entry entry;
        tierce__model_start(&entry, tables[t]);
        for (size_t i = 0; i < tables[t]->count; i++) {
            const struct tierce__model_field *field = &tables[t]->rows[i];
            if (field->low == field->high || tierce__field_is_list(field) ||
                (field->flags & TIERCE__FIELD_IS_STORED) != 0)
                continue;
            int64_t before = tierce__field_integer(&entry, field);
            if (tables[t]->is_of_a_type)
                entry.storage.type = strstr(field->path, "timeout") != NULL
                                         ? TIERCE__STORAGE_TAIRMEMPOOL
                                         : TIERCE__STORAGE_VCNS_3FS;
            tierce__field_set_integer(&entry, field, field->low);
            ck_assert_int_eq(tierce__model_check(&entry, tables[t], why), 0);
            tierce__field_set_integer(&entry, field, field->high);
            ck_assert_int_eq(tierce__model_check(&entry, tables[t], why), 0);
            /* A short unsigned member has no value below 0. */
            bool is_short = field->kind == TIERCE__FIELD_UINT && field->bytes < sizeof(int64_t);
            tierce__field_set_integer(&entry, field, is_short ? field->high + 1 : field->low - 1);
            ck_assert_int_eq(tierce__model_check(&entry, tables[t], why), TIERCE_E_ARGUMENT);
            const char *key = field->label != NULL ? field->label : field->path + field->head;
            ck_assert_msg(strncmp(why, key, strlen(key)) == 0 && strstr(why, "accepted are"), "%s",
                          why);
            tierce__field_set_integer(&entry, field, before);
        }
    }
}
END_TEST

START_TEST(test_texts_that_cannot_be_read_back)
{
    struct tierce__group group;
    tierce__model_start(&group, &tierce__group_fields);
    ck_assert_int_eq(tierce__model_check(&group, &tierce__group_fields, why), 0);
    group.user_data = (char *)"\xff";
    ck_assert_int_eq(tierce__model_check(&group, &tierce__group_fields, why), TIERCE_E_ARGUMENT);
    group.user_data = (char *)"";
    group.search_cache_high_pri_ratio = __builtin_nan("");
    ck_assert_int_eq(tierce__model_check(&group, &tierce__group_fields, why), TIERCE_E_ARGUMENT);
    struct tierce__spec_info part = {.name = (char *)"\xff"};
    struct tierce__instance instance;
    tierce__model_start(&instance, &tierce__instance_fields);
    instance.specs = &part;
    instance.spec_count = 1;
    ck_assert_int_eq(tierce__model_check(&instance, &tierce__instance_fields, why),
                     TIERCE_E_ARGUMENT);
}
END_TEST

/* Clients may send any number; checks name it as it was sent. */
START_TEST(test_a_negative_type)
{
    Admin__QuotaConfig quota = ADMIN__QUOTA_CONFIG__INIT;
    struct tierce__arena arena = {0};
    const struct tierce__fields *quotas = NULL;
    struct tierce__type_quota read;
    for (size_t i = 0; i < tierce__group_fields.count; i++)
        if (strcmp(tierce__group_fields.rows[i].path, "quota.quota_config") == 0)
            quotas = tierce__group_fields.rows[i].items;
    quota.storage_type = (Admin__StorageType)-1;
    tierce__model_start(&read, quotas);
    ck_assert_int_eq(tierce__model_from_message(&read, quotas, "", &quota.base, &arena), 0);
    ck_assert_int_eq((int)read.type, -1);
    ck_assert_int_eq(tierce__field_integer(&read, &quotas->rows[0]), -1);
    tierce__arena_clear(&arena);
}
END_TEST

/* Lists that could not be read back are rejected too. */
START_TEST(test_lists_that_are_too_long)
{
    enum { MOST = 65535 };
    struct tierce__group group;
    struct tierce__arena arena = {0};
    char **names = tierce__arena_calloc(&arena, MOST + 1, sizeof(*names)), *json = NULL;
    for (size_t i = 0; i <= MOST; i++)
        names[i] = (char *)"a";
    tierce__model_start(&group, &tierce__group_fields);
    group.name = (char *)"g";
    group.storage_candidates = names;
    group.storage_candidate_count = MOST;
    ck_assert_int_eq(tierce__model_check(&group, &tierce__group_fields, why), 0);
    group.storage_candidate_count++;
    ck_assert_int_eq(tierce__model_check(&group, &tierce__group_fields, why), TIERCE_E_ARGUMENT);
    ck_assert_str_eq(why, "storage_candidates of instance group g has 65536 entries; accepted are "
                          "up to 65535");
    ck_assert_int_eq(
        tierce__model_to_json(&json, &group, &tierce__group_fields, TIERCE__JSON_STORED), 0);
    ck_assert_int_eq(
        tierce__model_from_json(&group, &tierce__group_fields, json, strlen(json), why),
        TIERCE_E_FORMAT);
    ck_assert_str_eq(why, "storage_candidates has more than 65535 entries");
    tierce__free(json);
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(test_copies)
{
    for (size_t t = 0; t < TABLES; t++) {
        union tierce__entry entry, copy;
        struct tierce__arena arena = {0};
        uint64_t live = tierce__alloc_live();
        tierce__model_start(&entry, tables[t]);
        if (tables[t]->is_of_a_type)
            entry.storage.type = TIERCE__STORAGE_VCNS_3FS;
        fill(&entry, tables[t], false, &arena);
        uint64_t filled = tierce__alloc_live();
        ck_assert_int_eq(tierce__model_copy(&copy, &entry, tables[t]), 0);
        expect_same(&entry, &copy, tables[t]);
        for (size_t i = 0; i < tables[t]->count; i++)
            if (tables[t]->rows[i].kind == TIERCE__FIELD_TEXT)
                ck_assert_ptr_ne(*tierce__field_text(&entry, &tables[t]->rows[i]),
                                 *tierce__field_text(&copy, &tables[t]->rows[i]));
        tierce__model_clear(&copy, tables[t]);
        ck_assert_uint_eq(tierce__alloc_live(), filled);
        tierce__arena_clear(&arena);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
}
END_TEST

/* Each field that requests must set is named if it is missing. */
START_TEST(test_fields_that_requests_lack)
{
    static const struct {
        const struct tierce__fields *fields;
        const ProtobufCMessageDescriptor *type;
        const char *missing[10];
    } cases[] = {
        {&tierce__storage_fields, &admin__storage_config__descriptor, {"global_unique_name"}},
        {&tierce__group_fields,
         &admin__instance_group__descriptor,
         {"name", "global_quota_group_name",
          "cache_config: {reclaim_strategy: {storage_unique_name}}",
          "cache_config: {data_storage_strategy}",
          "cache_config: {meta_indexer_config: {meta_storage_backend_config: {storage_type}}}",
          "cache_config: {meta_indexer_config: {meta_cache_policy_config: {type}}}",
          "storage_candidates"}},
        {&tierce__instance_fields,
         &meta__register_instance_request__descriptor,
         {"instance_id", "location_spec_infos", "model_deployment: {model_name}",
          "model_deployment: {dtype}"}},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const struct tierce__fields *fields = cases[c].fields;
        size_t found = 0;
        for (size_t i = 0; i < fields->count; i++) {
            union tierce__entry entry;
            struct tierce__arena arena = {0};
            const struct tierce__model_field *field = &fields->rows[i];
            char missing[256] = "";
            if ((field->flags & TIERCE__FIELD_IS_NEEDED) == 0)
                continue;
            tierce__model_start(&entry, fields);
            fill(&entry, fields, false, &arena);
            if (tierce__field_is_list(field))
                *tierce__field_count(&entry, field) = 0;
            else if (field->kind == TIERCE__FIELD_TEXT)
                *tierce__field_text(&entry, field) = (char *)"";
            else
                tierce__field_set_integer(&entry, field, 0);
            ProtobufCMessage *message = send_message(cases[c].type, "", fields, &entry);
            ck_assert(tierce__model_lacks(message, fields, missing));
            ck_assert_str_eq(missing, cases[c].missing[found++]);
            tierce__proto_free(message);
            tierce__arena_clear(&arena);
        }
        ck_assert_ptr_null(cases[c].missing[found]);
    }
    char missing[256];
    Admin__InstanceGroup group = ADMIN__INSTANCE_GROUP__INIT;
    group.name = group.global_quota_group_name = (char *)"x";
    ck_assert(tierce__model_lacks(&group.base, &tierce__group_fields, missing));
    ck_assert_str_eq(missing, "cache_config");
}
END_TEST

CHECK_MAIN("model_fields",
           .tests = {test_every_member_has_a_row, test_every_field_of_a_message_has_a_row,
                     test_fields_that_messages_lack, test_every_value_makes_the_whole_way,
                     test_uri_of_a_storage, test_limits, test_texts_that_cannot_be_read_back,
                     test_a_negative_type, test_lists_that_are_too_long, test_copies,
                     test_fields_that_requests_lack})
