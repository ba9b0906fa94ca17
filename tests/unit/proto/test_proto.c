/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/rpcs.h"

#include "proto/kvcm/admin_service.pb-c.h"
#include "proto/kvcm/meta_service.pb-c.h"

#include <errno.h>
#include <string.h>

/* tests/python/test_proto_json.py compares all messages with Google's code. */

static char why[TIERCE__PROTO_WHY_BYTES];

static ProtobufCMessage *parse(const ProtobufCMessageDescriptor *descriptor, const char *text)
{
    ProtobufCMessage *message = NULL;
    int rc = tierce__proto_json_parse(&message, descriptor, text, strlen(text), why);
    ck_assert_msg(rc == 0, "%s", why);
    return message;
}

static void assert_prints(const ProtobufCMessage *message, const char *want)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(tierce__proto_json_print(&text, &bytes, message), 0);
    ck_assert_str_eq(text, want);
    ck_assert_uint_eq(bytes, strlen(want));
    tierce__free(text);
}

/* The field types that the codec has are all that the messages have. */
static void check_types(const ProtobufCMessageDescriptor *descriptor)
{
    ck_assert_uint_le(descriptor->n_fields, 64);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        switch ((int)field->type) {
        case PROTOBUF_C_TYPE_MESSAGE:
            check_types(field->descriptor);
            break;
        case PROTOBUF_C_TYPE_INT32:
        case PROTOBUF_C_TYPE_INT64:
        case PROTOBUF_C_TYPE_DOUBLE:
        case PROTOBUF_C_TYPE_BOOL:
        case PROTOBUF_C_TYPE_ENUM:
        case PROTOBUF_C_TYPE_STRING:
            break;
        default:
            ck_abort_msg("%s.%s", descriptor->name, field->name);
        }
    }
}

START_TEST(test_types)
{
    for (size_t i = 0; i < TIERCE__RPC_COUNT; i++) {
        check_types(tierce__rpcs[i].request);
        check_types(tierce__rpcs[i].reply);
    }
}
END_TEST

START_TEST(test_reply_with_its_own_memory)
{
    Meta__StartWriteCacheResponse *reply =
        (void *)tierce__proto_create(&meta__start_write_cache_response__descriptor);
    ck_assert_ptr_nonnull(reply);
    assert_prints(&reply->base, "{\"write_session_id\":\"\",\"locations\":[]}");

    reply->block_mask = tierce__proto_alloc(&reply->base, sizeof(*reply->block_mask));
    meta__block_mask__init(reply->block_mask);
    reply->block_mask->info_case = META__BLOCK_MASK__INFO_OFFSET;
    reply->locations = tierce__proto_alloc(&reply->base, 1000 * sizeof(*reply->locations));
    for (size_t i = 0; i < 1000; i++) {
        reply->locations[i] = tierce__proto_alloc(&reply->base, sizeof(*reply->locations[i]));
        ck_assert_ptr_nonnull(reply->locations[i]);
        meta__cache_location__init(reply->locations[i]);
    }
    reply->locations[0]->type = META__STORAGE_TYPE__ST_REDIS;
    reply->n_locations = 1;
    /* An offset of 0 is printed where it was set: connectors look at it. */
    assert_prints(
        &reply->base,
        "{\"write_session_id\":\"\",\"block_mask\":{\"offset\":0},\"locations\":[{\"type\":"
        "\"ST_REDIS\",\"spec_size\":0,\"location_specs\":[]}]}");

    void *wire = NULL;
    size_t bytes = 0;
    ProtobufCMessage *again = NULL;
    reply->n_locations = 1000;
    ck_assert_int_eq(tierce__proto_pack(&wire, &bytes, &reply->base), 0);
    ck_assert_int_eq(tierce__proto_unpack(&again, reply->base.descriptor, wire, bytes, why), 0);
    ck_assert_uint_eq(((Meta__StartWriteCacheResponse *)again)->n_locations, 1000);
    tierce__proto_free(again);
    tierce__free(wire);
    tierce__proto_free(&reply->base);
}
END_TEST

/* An empty message has no bytes, and no text. */
START_TEST(test_empty)
{
    ProtobufCMessage *message = NULL;
    ck_assert_int_eq(
        tierce__proto_unpack(&message, &meta__trim_cache_request__descriptor, NULL, 0, why), 0);
    ck_assert_str_eq(((Meta__TrimCacheRequest *)message)->trace_id, "");
    tierce__proto_free(message);
    ck_assert_int_eq(
        tierce__proto_json_parse(&message, &meta__trim_cache_request__descriptor, NULL, 0, why),
        TIERCE_E_FORMAT);
    tierce__proto_free(NULL);
}
END_TEST

START_TEST(test_reasons)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"{\"block_keys\":[1,x]}", "block_keys: is not a number (byte 18)"},
        {"{\"blockKeys\":[\"1\",\"x\"]}", "block_keys: is not a number (byte 22)"},
        {"{\"trace_id\":\"a\xff\"}", "RemoveCacheRequest: is not UTF-8 (byte 1)"},
        {"{\"trace_id\":\"\",\"traceId\":\"\"}", "trace_id: is given twice (byte 26)"},
        {"[]", "RemoveCacheRequest: is not an object (byte 1)"},
        {"", "RemoveCacheRequest: is not an object (byte 1)"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ProtobufCMessage *message = NULL;
        ck_assert_int_eq(tierce__proto_json_parse(&message, &meta__remove_cache_request__descriptor,
                                                  cases[i].text, strlen(cases[i].text), why),
                         TIERCE_E_FORMAT);
        ck_assert_str_eq(why, cases[i].why);
        ck_assert_ptr_null(message);
    }
}
END_TEST

START_TEST(test_a_text_has_a_largest_size)
{
    Admin__InstanceGroup group = ADMIN__INSTANCE_GROUP__INIT;
    char *whole = NULL, *text = NULL;
    size_t bytes = 0, again = 0;
    ck_assert_int_eq(tierce__proto_json_print(&whole, &bytes, &group.base), 0);
    ck_assert_int_eq(tierce__proto_json_print_max(&text, &again, bytes - 1, &group.base),
                     TIERCE_E_LIMIT);
    ck_assert_ptr_null(text);
    ck_assert_int_eq(tierce__proto_json_print_max(&text, &again, bytes, &group.base), 0);
    ck_assert_str_eq(text, whole);
    ck_assert_uint_eq(again, bytes);
    tierce__free(whole);
    tierce__free(text);
}
END_TEST

/* Invalid text that a handler copied from foreign bytes is not sent. */
START_TEST(test_no_utf8_leaves)
{
    char bad[] = "a\xc3", *text = NULL, *one[] = {bad};
    Admin__InstanceGroup group = ADMIN__INSTANCE_GROUP__INIT;
    Admin__GetInstanceGroupResponse reply = ADMIN__GET_INSTANCE_GROUP_RESPONSE__INIT;
    void *wire = NULL;
    size_t bytes = 0;
    reply.instance_group = &group;
    group.storage_candidates = one;
    group.n_storage_candidates = 1;
    ck_assert_int_eq(tierce__proto_json_print(&text, &bytes, &reply.base), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__proto_pack(&wire, &bytes, &reply.base), TIERCE_E_FORMAT);
    bad[1] = '\0';
    ck_assert_int_eq(tierce__proto_pack(&wire, &bytes, &reply.base), 0);
    tierce__free(wire);
}
END_TEST

/* It is not accepted either; nor is a text with a NUL. */
START_TEST(test_no_utf8_comes)
{
    static const struct {
        const char *wire;
        size_t bytes;
        int rc;
    } cases[] = {
        {"\x0a\x02ok", 4, 0},
        {"\x0a\x02\xc3(", 4, TIERCE_E_FORMAT},
        {"\x0a\x03\xed\xa0\x80", 5, TIERCE_E_FORMAT},
        {"\x0a\x03"
         "a\0b",
         5, TIERCE_E_FORMAT},
        {"\x0a\x03ok", 4, TIERCE_E_FORMAT},                                    /* ends too early */
        {"\x0b", 1, TIERCE_E_FORMAT},                                          /* a group */
        {"\x02\x00", 2, TIERCE_E_FORMAT},                                      /* field 0 */
        {"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, TIERCE_E_FORMAT}, /* no end */
        {"\xfa\x7f\x02\xff\xff", 5, 0}, /* a field that is not known may be anything */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ProtobufCMessage *message = NULL;
        why[0] = '\0';
        ck_assert_int_eq(tierce__proto_unpack(&message, &meta__trim_cache_request__descriptor,
                                              cases[i].wire, cases[i].bytes, why),
                         cases[i].rc);
        ck_assert_int_eq(why[0] == '\0', cases[i].rc == 0);
        tierce__proto_free(message);
    }
}
END_TEST

/* Each allocation fails once; nothing is lost and nothing given out. */
START_TEST(test_no_memory)
{
    static const char text[] =
        "{\"instance_group\":{\"name\":\"\\u00e4\",\"storageCandidates\":[\"a\",\"b\"],\"quota\":"
        "{\"quota_config\":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}}}";
    const ProtobufCMessageDescriptor *descriptor =
        &admin__create_instance_group_request__descriptor;
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1, failed = 1; failed > 0; nth++) {
        ProtobufCMessage *message = NULL, *again = NULL;
        char *printed = NULL;
        void *wire = NULL;
        size_t bytes = 0;
        tierce__alloc_fail_nth(nth);
        int rc = tierce__proto_json_parse(&message, descriptor, text, sizeof(text) - 1, why);
        if (rc == 0)
            rc = tierce__proto_json_print(&printed, &bytes, message);
        if (rc == 0)
            rc = tierce__proto_pack(&wire, &bytes, message);
        if (rc == 0)
            rc = tierce__proto_unpack(&again, descriptor, wire, bytes, why);
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert_int_eq(rc, failed ? -ENOMEM : 0);
        tierce__proto_free(message);
        tierce__proto_free(again);
        tierce__free(printed);
        tierce__free(wire);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
}
END_TEST

START_TEST(test_camel)
{
    ProtobufCMessage *message = parse(
        &meta__start_write_cache_request__descriptor,
        "{\"instanceId\":\"i\",\"writeTimeoutSeconds\":\"7\",\"block_Keys\":[1],\"blockkeys\":"
        "[1],\"tokenIds\":[1]}");
    Meta__StartWriteCacheRequest *request = (Meta__StartWriteCacheRequest *)message;
    ck_assert_str_eq(request->instance_id, "i");
    ck_assert_int_eq(request->write_timeout_seconds, 7);
    ck_assert_uint_eq(request->n_block_keys, 0);
    ck_assert_uint_eq(request->n_token_ids, 1);
    tierce__proto_free(message);
}
END_TEST

CHECK_MAIN("proto", .tests = {test_types, test_reply_with_its_own_memory, test_empty, test_reasons,
                              test_a_text_has_a_largest_size, test_no_utf8_leaves,
                              test_no_utf8_comes, test_no_memory, test_camel})
