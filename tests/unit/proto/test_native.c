/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include "base/bytes.h"
#include "proto/native/native.h"

#include <tierce/key.h>

#include <stdlib.h>
#include <string.h>

static const uint8_t hashes[2][TIERCE_HASH_BYTES] = {{1, 2, 3}, {4, 5, 6}};

static struct tierce__native_chain a_chain(void)
{
    return (struct tierce__native_chain){
        .number = 7, .first = 3, .parent = {9, 9}, .hashes = {.bytes = hashes[0], .count = 2}};
}

static const uint8_t *body_of(const struct tierce__native_frame *frame, uint32_t *bytes,
                              uint32_t *word)
{
    ck_assert_int_eq(tierce__native_head(bytes, word, frame->bytes), 0);
    ck_assert_uint_eq(*bytes + TIERCE__NATIVE_HEAD, frame->used);
    return frame->bytes + TIERCE__NATIVE_HEAD;
}

START_TEST(test_a_request_comes_as_it_went)
{
    struct tierce__native_frame frame = {0};
    union tierce__native_request in = {.lookup = {.view = 1,
                                                  .session = 1ULL << 40,
                                                  .from_block = 2,
                                                  .to_block = 5,
                                                  .flags = 1,
                                                  .tiers = 6,
                                                  .pin_ms = 10,
                                                  .tag = "who",
                                                  .chain = a_chain()}};
    union tierce__native_request out;
    uint32_t bytes, op;
    ck_assert_int_eq(tierce__native_pack_request(&frame, TIERCE__NATIVE_LOOKUP, &in), 0);
    const uint8_t *body = body_of(&frame, &bytes, &op);
    ck_assert_uint_eq(op, TIERCE__NATIVE_LOOKUP);
    ck_assert_int_eq(tierce__native_unpack_request(&out, op, body, bytes), 0);
    ck_assert_uint_eq(out.lookup.session, 1ULL << 40);
    ck_assert_str_eq(out.lookup.tag, "who");
    ck_assert_uint_eq(out.lookup.chain.first, 3);
    ck_assert_uint_eq(out.lookup.chain.parent[1], 9);
    ck_assert_uint_eq(out.lookup.chain.hashes.count, 2);
    ck_assert_mem_eq(out.lookup.chain.hashes.bytes, hashes, sizeof(hashes));
    tierce__native_frame_fini(&frame);
}
END_TEST

/* The numbers of docs/inside/format/native.md. */
START_TEST(test_bytes_are_those_of_the_format)
{
    struct tierce__native_frame frame = {0};
    static const uint8_t ping[] = {0, 0, 0, 0, 2, 0, 0, 0};
    static const uint8_t end[] = {12, 0, 0, 0, 13, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};
    static const uint8_t unknown[] = {0, 0, 0, 0, 2, 0, 0, 0};
    ck_assert_int_eq(tierce__native_pack_request(&frame, TIERCE__NATIVE_PING, NULL), 0);
    ck_assert_uint_eq(frame.used, sizeof(ping));
    ck_assert_mem_eq(frame.bytes, ping, sizeof(ping));
    union tierce__native_request in = {.store_end = {.store = 5, .complete = 1}};
    ck_assert_int_eq(tierce__native_pack_request(&frame, TIERCE__NATIVE_STORE_END, &in), 0);
    ck_assert_uint_eq(frame.used, sizeof(end));
    ck_assert_mem_eq(frame.bytes, end, sizeof(end));
    ck_assert_int_eq(
        tierce__native_pack_answer(&frame, TIERCE__NATIVE_STORE_END, TIERCE__NATIVE_UNKNOWN, NULL),
        0);
    ck_assert_uint_eq(frame.used, sizeof(unknown));
    ck_assert_mem_eq(frame.bytes, unknown, sizeof(unknown));
    tierce__native_frame_fini(&frame);
}
END_TEST

START_TEST(test_rows_come_as_they_went)
{
    uint8_t packed[2 * TIERCE__NATIVE_LENT_BYTES];
    struct tierce__native_lent in = {.offset = 4096,
                                     .bytes = 8192,
                                     .index = 3,
                                     .block_count = 16,
                                     .from = 2,
                                     .to = 16,
                                     .kind = TIERCE__NATIVE_SIBLING,
                                     .state = TIERCE__NATIVE_COMING,
                                     .origin = 2,
                                     .hash = {8}};
    struct tierce__native_lent out;
    struct tierce__native_rows rows = {.bytes = packed, .count = 2};
    tierce__native_put_lent(packed, &in);
    tierce__native_put_lent(packed + TIERCE__NATIVE_LENT_BYTES, &in);
    ck_assert_int_eq(tierce__native_get_lent(&out, &rows, 1), 0);
    ck_assert_uint_eq(out.offset, in.offset);
    ck_assert_uint_eq(out.to, in.to);
    ck_assert_uint_eq(out.kind, in.kind);
    ck_assert_uint_eq(out.hash[0], 8);
    packed[TIERCE__NATIVE_LENT_BYTES + 28] = 17; /* to: behind the last block */
    ck_assert_int_eq(tierce__native_get_lent(&out, &rows, 1), TIERCE_E_FORMAT);
    packed[33] = TIERCE__NATIVE_WAITS + 1; /* a state that is none */
    ck_assert_int_eq(tierce__native_get_lent(&out, &rows, 0), TIERCE_E_FORMAT);
}
END_TEST

/* Every shorter and every longer body is rejected, of every op; a count beyond the body as well. */
START_TEST(test_lengths_are_checked)
{
    struct tierce__native_frame frame = {0};
    union tierce__native_request in = {0}, out;
    for (uint32_t op = TIERCE__NATIVE_HELLO; op < TIERCE__NATIVE_OPS; op++) {
        uint32_t bytes, word;
        ck_assert_int_eq(tierce__native_pack_request(&frame, (enum tierce__native_op)op, &in), 0);
        const uint8_t *body = body_of(&frame, &bytes, &word);
        uint8_t *copy = malloc((size_t)bytes + 1);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, body, bytes);
        copy[bytes] = 0;
        ck_assert_int_eq(tierce__native_unpack_request(&out, op, copy, bytes), 0);
        ck_assert_int_eq(tierce__native_unpack_request(&out, op, copy, (size_t)bytes + 1),
                         TIERCE_E_FORMAT);
        free(copy);
        for (size_t n = 0; n < bytes; n++) {
            copy = malloc(n + 1); /* an access behind it is seen by the sanitizer */
            ck_assert_ptr_nonnull(copy);
            memcpy(copy, body, n);
            ck_assert_int_eq(tierce__native_unpack_request(&out, op, copy, n), TIERCE_E_FORMAT);
            free(copy);
        }
    }
    uint8_t many[12] = {0};
    tierce__store_le32(many + 8, UINT32_MAX);
    ck_assert_int_eq(
        tierce__native_unpack_request(&out, TIERCE__NATIVE_LOAD_END, many, sizeof(many)),
        TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__native_unpack_request(&out, TIERCE__NATIVE_OPS, many, 0),
                     TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__native_unpack_request(&out, 0, many, 0), TIERCE_E_FORMAT);
    tierce__native_frame_fini(&frame);
}
END_TEST

START_TEST(test_a_body_has_a_bound)
{
    struct tierce__native_frame frame = {0};
    union tierce__native_request in = {
        .load_end = {.verdicts = {.bytes = hashes[0], .count = UINT32_MAX}}};
    uint8_t head[TIERCE__NATIVE_HEAD] = {1, 0, 0, 4};
    uint32_t bytes, word;
    ck_assert_int_eq(tierce__native_pack_request(&frame, TIERCE__NATIVE_LOAD_END, &in),
                     TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__native_head(&bytes, &word, head), TIERCE_E_LIMIT);
    tierce__native_frame_fini(&frame);
}
END_TEST

CHECK_MAIN("native", .tests = {test_a_request_comes_as_it_went, test_bytes_are_those_of_the_format,
                               test_rows_come_as_they_went, test_lengths_are_checked,
                               test_a_body_has_a_bound})
