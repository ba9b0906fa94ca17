/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/bytes.h"
#include "proto/lm/lm.h"

#include <string.h>

/* As LMCache's own code packs them. */
static const char put_head[] =
    "01000000001000000100000003000000000000000200000004000000100000001000"
    "0000";
static const char put_key[] = "org/m@2@1@abc123@bfloat16@user%u1";
static const char get_head[] =
    "02000000000000000100000002000000000000000000000000000000000000000000"
    "0000";
static const char get_key[] = "org/m@2@1@abc123@bfloat16@7@user%u1";
static const char reply_ok[] = "c80000000010000001000000030000000200000004000000100000001000000000"
                               "000000";
static const char reply_fail[] = "9001000000000000010000000200000000000000000000000000000000000000"
                                 "00000000";

static const struct tierce__lm_shape shape = {.format = 1, .dtype = 3, .dims = {2, 4, 16, 16}};

static void make_request(uint8_t bytes[TIERCE__LM_REQUEST_BYTES], const char *head, const char *key)
{
    ck_assert(tierce__hex_decode(bytes, 36, head));
    memset(bytes + 36, ' ', TIERCE__LM_KEY_BYTES);
    memcpy(bytes + 36, key, strlen(key));
}

START_TEST(test_requests_are_lmcaches)
{
    uint8_t wanted[TIERCE__LM_REQUEST_BYTES], bytes[TIERCE__LM_REQUEST_BYTES];
    struct tierce__lm_request request;
    make_request(wanted, put_head, put_key);
    ck_assert_int_eq(tierce__lm_request_decode(&request, wanted), 0);
    ck_assert_int_eq(request.command, TIERCE__LM_PUT);
    ck_assert_uint_eq(request.value_bytes, 4096);
    ck_assert_mem_eq(&request.shape, &shape, sizeof(shape));
    ck_assert_uint_eq(request.key_bytes, strlen(put_key));
    ck_assert_mem_eq(request.key, put_key, strlen(put_key));
    ck_assert_int_eq(tierce__lm_request_encode(bytes, &request), 0);
    ck_assert_mem_eq(bytes, wanted, sizeof(wanted));

    make_request(wanted, get_head, get_key);
    ck_assert_int_eq(tierce__lm_request_decode(&request, wanted), 0);
    ck_assert_int_eq(request.command, TIERCE__LM_GET);
    ck_assert_uint_eq(request.value_bytes, 0);
    ck_assert_int_eq(tierce__lm_request_encode(bytes, &request), 0);
    ck_assert_mem_eq(bytes, wanted, sizeof(wanted));
}
END_TEST

START_TEST(test_replies_are_lmcaches)
{
    uint8_t wanted[TIERCE__LM_REPLY_BYTES], bytes[TIERCE__LM_REPLY_BYTES];
    struct tierce__lm_reply reply = {
        .code = TIERCE__LM_SUCCESS, .value_bytes = 4096, .shape = shape};
    ck_assert(tierce__hex_decode(wanted, sizeof(wanted), reply_ok));
    ck_assert_int_eq(tierce__lm_reply_encode(bytes, &reply), 0);
    ck_assert_mem_eq(bytes, wanted, sizeof(wanted));
    memset(&reply, 0xff, sizeof(reply));
    ck_assert_int_eq(tierce__lm_reply_decode(&reply, bytes), 0);
    ck_assert_int_eq(reply.code, TIERCE__LM_SUCCESS);
    ck_assert_uint_eq(reply.value_bytes, 4096);
    ck_assert_mem_eq(&reply.shape, &shape, sizeof(shape));
    ck_assert_int_eq(reply.location, 0);

    reply = (struct tierce__lm_reply){.code = TIERCE__LM_FAIL, .shape = tierce__lm_no_shape};
    ck_assert(tierce__hex_decode(wanted, sizeof(wanted), reply_fail));
    ck_assert_int_eq(tierce__lm_reply_encode(bytes, &reply), 0);
    ck_assert_mem_eq(bytes, wanted, sizeof(wanted));
}
END_TEST

/* Each field that may be wrong, alone. */
START_TEST(test_what_is_wrong)
{
    uint8_t bytes[TIERCE__LM_REQUEST_BYTES];
    struct tierce__lm_request request = {.value_bytes = 77};
    static const struct {
        size_t at;
        int32_t value;
    } wrong[] = {{0, 0}, {0, 6}, {0, -1}, {0, INT32_MIN}, {4, -1}, {4, INT32_MIN}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        make_request(bytes, put_head, put_key);
        tierce__store_le32(bytes + wrong[i].at, (uint32_t)wrong[i].value);
        ck_assert_int_eq(tierce__lm_request_decode(&request, bytes), TIERCE_E_FORMAT);
    }
    make_request(bytes, put_head, "");
    ck_assert_int_eq(tierce__lm_request_decode(&request, bytes), TIERCE_E_FORMAT);
    ck_assert_uint_eq(request.value_bytes, 77);
    tierce__store_le32(bytes, TIERCE__LM_HEALTH); /* which is about no key */
    ck_assert_int_eq(tierce__lm_request_decode(&request, bytes), 0);

    struct tierce__lm_reply reply;
    ck_assert(tierce__hex_decode(bytes, TIERCE__LM_REPLY_BYTES, reply_ok));
    tierce__store_le32(bytes, 201);
    ck_assert_int_eq(tierce__lm_reply_decode(&reply, bytes), TIERCE_E_FORMAT);
    tierce__store_le32(bytes, 200);
    tierce__store_le32(bytes + 4, UINT32_MAX);
    ck_assert_int_eq(tierce__lm_reply_decode(&reply, bytes), TIERCE_E_FORMAT);
}
END_TEST

START_TEST(test_keys_that_do_not_fit)
{
    uint8_t bytes[TIERCE__LM_REQUEST_BYTES];
    char key[TIERCE__LM_KEY_BYTES + 1];
    memset(key, 'k', sizeof(key));
    struct tierce__lm_request request = {
        .command = TIERCE__LM_GET, .key = key, .key_bytes = sizeof(key)};
    ck_assert_int_eq(tierce__lm_request_encode(bytes, &request), TIERCE_E_LIMIT);
    request.key_bytes--;
    ck_assert_int_eq(tierce__lm_request_encode(bytes, &request), 0);
    ck_assert_int_eq(tierce__lm_request_decode(&request, bytes), 0);
    ck_assert_uint_eq(request.key_bytes, TIERCE__LM_KEY_BYTES);
    request = (struct tierce__lm_request){.command = TIERCE__LM_GET, .key = "k ", .key_bytes = 2};
    ck_assert_int_eq(tierce__lm_request_encode(bytes, &request), TIERCE_E_LIMIT);
    request = (struct tierce__lm_request){.command = TIERCE__LM_PUT,
                                          .key = "k",
                                          .key_bytes = 1,
                                          .value_bytes = (uint32_t)INT32_MAX + 1};
    ck_assert_int_eq(tierce__lm_request_encode(bytes, &request), TIERCE_E_LIMIT);
}
END_TEST

CHECK_MAIN("lm", .tests = {test_requests_are_lmcaches, test_replies_are_lmcaches,
                           test_what_is_wrong, test_keys_that_do_not_fit})
