/* SPDX-License-Identifier: Apache-2.0 */
/* The native protocol: known messages are packed into the bytes of native.txt, and these are
 * unpacked into the same messages. */
#include "frozen.h"

#include "proto/native/native.h"

#include <tierce/key.h>
#include <tierce/status.h>
#include <tierce/why.h>

#define FILE_NAME "native.txt"

static const uint8_t hashes[2][TIERCE__NATIVE_HASH] = {{0xa1, 0xa2}, {0xb1, 0xb2}};
static const uint8_t cells[8] = {0, 16, 0, 0, 0, 32, 0, 0};
static const uint8_t states[3] = {TIERCE__NATIVE_HERE, TIERCE__NATIVE_COMING,
                                  TIERCE__NATIVE_FAILED};
static uint8_t results[TIERCE__NATIVE_RESULT_BYTES], lent[2 * TIERCE__NATIVE_LENT_BYTES],
    reserved[TIERCE__NATIVE_RESERVED_BYTES], tiers[TIERCE__NATIVE_TIER_BYTES];

#define CHAIN                                                                                      \
    {                                                                                              \
        .number = 0x0102030405060708, .first = 9, .parent = {0xc1, 0xc2}, .hashes = {              \
            .bytes = hashes[0],                                                                    \
            .count = 2                                                                             \
        }                                                                                          \
    }

static const struct {
    enum tierce__native_op op;
    const char *name;
    union tierce__native_request request;
    union tierce__native_answer answer;
} messages[] = {
    {TIERCE__NATIVE_HELLO,
     "HELLO",
     {.hello = {TIERCE__NATIVE_MAGIC, TIERCE__NATIVE_VERSION_OLD, {1, 2, 3}, 4711}},
     {.hello = {{4, 5, 6}, 7, 1 << 20, 6, 100, 200, 300, 400, 500}}},
    {TIERCE__NATIVE_PING, "PING", {.hello = {0}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_VIEW,
     "VIEW",
     {.view = {.weights = "w",
               .model = "m",
               .kv_dtype = "bf16",
               .quantization = "q",
               .layout = "l",
               .cell_bytes = {cells, 2},
               .block_tokens = 16,
               .chunk_blocks = 4,
               .algo = 1,
               .tp_rank = 2,
               .tp_size = 3,
               .pp_rank = 4,
               .pp_size = 5,
               .first_layer = 6,
               .layer_count = 7,
               .part_index = 8,
               .part_count = 9,
               .engine = "e"}},
     {.view = {11}}},
    {TIERCE__NATIVE_VIEW_CLOSE, "VIEW_CLOSE", {.view_close = {12}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_COMPUTED, "COMPUTED", {.computed = {13, 14, 15}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_LOOKUP,
     "LOOKUP",
     {.lookup = {16, 17, 18, 19, 20, 21, 22, 23, "tag", CHAIN}},
     {.lookup = {24, 25, 1}}},
    {TIERCE__NATIVE_DURABLE,
     "DURABLE",
     {.lookup = {26, 27, 28, 29, 30, 31, 32, 33, "", CHAIN}},
     {.lookup = {34, 0, 0}}},
    {TIERCE__NATIVE_UNPIN, "UNPIN", {.unpin = {35, 36}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_LOAD_BEGIN,
     "LOAD_BEGIN",
     {.load_begin = {37, 38, 39, 40, 41, 42, 43, CHAIN}},
     {.load_begin = {44, 45, {lent, 2}}}},
    {TIERCE__NATIVE_LOAD_WAIT,
     "LOAD_WAIT",
     {.load_wait = {46, 47}},
     {.load_wait = {48, {states, 3}}}},
    {TIERCE__NATIVE_LOAD_END, "LOAD_END", {.load_end = {49, {results, 1}}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_STORE_BEGIN,
     "STORE_BEGIN",
     {.store_begin = {50, 51, 52, 53, 1, 54, "tag", CHAIN}},
     {.store_begin = {55, 56, {reserved, 1}}}},
    {TIERCE__NATIVE_STORE_END, "STORE_END", {.store_end = {57, 1}}, {.store_end = {58}}},
    {TIERCE__NATIVE_PREFETCH_BEGIN,
     "PREFETCH_BEGIN",
     {.prefetch_begin = {59, 60, 61, 62, 63, 64, 65, CHAIN}},
     {.view = {66}}},
    {TIERCE__NATIVE_PREFETCH_POLL,
     "PREFETCH_POLL",
     {.prefetch_poll = {67, 68}},
     {.prefetch_poll = {69, 70, TIERCE__NATIVE_FINAL | TIERCE__NATIVE_LATE, {tiers, 1}}}},
    {TIERCE__NATIVE_PREFETCH_END, "PREFETCH_END", {.prefetch_end = {71}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_FLUSH, "FLUSH", {.flush = {72}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_CLEAR, "CLEAR", {.clear = {73, 74}}, {.store_end = {75}}},
    {TIERCE__NATIVE_LOAD_NEXT,
     "LOAD_NEXT",
     {.load_next = {76, 77, TIERCE__NATIVE_BAD_CELLS}},
     {.load_next = {78, TIERCE__NATIVE_HERE, 2}}},
    {TIERCE__NATIVE_GROUP_VIEW,
     "GROUP_VIEW",
     {.group_view = {{.weights = "w",
                      .model = "m",
                      .kv_dtype = "bf16",
                      .quantization = "q",
                      .layout = "l",
                      .cell_bytes = {cells, 2},
                      .block_tokens = 102,
                      .chunk_blocks = 103,
                      .algo = 1,
                      .tp_rank = 104,
                      .tp_size = 105,
                      .pp_rank = 106,
                      .pp_size = 107,
                      .first_layer = 108,
                      .layer_count = 109,
                      .part_index = 110,
                      .part_count = 111,
                      .engine = "e"},
                     TIERCE_GROUP_WINDOW,
                     112,
                     {cells, 2}}},
     {.view = {113}}},
    {TIERCE__NATIVE_GROUP_STORE_BEGIN,
     "GROUP_STORE_BEGIN",
     {.group_store_begin = {{114, 115, 116, 117, 1, 118, "tag", CHAIN}, 119}},
     {.store_begin = {120, 121, {reserved, 1}}}},
    {TIERCE__NATIVE_NOTE_REQUEST,
     "NOTE_REQUEST",
     {.note_request = {122, 123, 124, 125, 126, 127, 128, 129, TIERCE_REQUEST_LIMIT_ROOM,
                       "cmpl-1"}},
     {.hello = {{0}}}},
    {TIERCE__NATIVE_HAND_OVER,
     "HAND_OVER",
     {.hand_over = {TIERCE__NATIVE_HAND_READ, 130, 1, 131, 132, 133, 134, 135, 136, 137, 138,
                    "10.0.0.5", "token", "why", CHAIN}},
     {.hand_over = {139, 140, (uint32_t)-5001, 1, "because"}}},
    {TIERCE__NATIVE_HAND_OVER,
     "HAND_OVER.READ_OTHER",
     {.hand_over = {TIERCE__NATIVE_HAND_READ_OTHER, 143, 0, 144, 145, 146, 147, 148, 149, 150, 0,
                    "10.0.0.5", "token", "heads=8 pieces=1 from=2x24 to=1x24", CHAIN}},
     {.hand_over = {151, 152, 0, 0, ""}}},
    {TIERCE__NATIVE_HAND_OVER,
     "HAND_OVER.ACCEPT",
     {.hand_over = {TIERCE__NATIVE_HAND_ACCEPT, 0, 0, 153, 154, 0, 0, 0, 0, 155, 156,
                    "10.0.0.5 10.0.0.6", "", "", CHAIN}},
     {.hand_over = {0, 0, 0, 0, ""}}},
    {TIERCE__NATIVE_HAND_OVER,
     "HAND_OVER.PUSH_STORE",
     {.hand_over = {TIERCE__NATIVE_HAND_PUSH_STORE, 0, 0, 0, 157, 158, 159, 0, 0, 160, 0, "", "",
                    "", CHAIN}},
     {.hand_over = {0, 0, 0, 0, ""}}},
    {TIERCE__NATIVE_PUSH_POLL,
     "PUSH_POLL",
     {.push_poll = {161}},
     {.push_poll = {162, 163, 164, 165, 166, 1, (uint32_t)-5001, "because"}}},
    {TIERCE__NATIVE_NOTE_TOKENS,
     "NOTE_TOKENS",
     {.note_tokens = {141, 142, CHAIN, {cells, 2}}},
     {.hello = {{0}}}},
    {TIERCE__NATIVE_STORE_LAYERS, "STORE_LAYERS", {.store_layers = {167, 168}}, {.hello = {{0}}}},
    {TIERCE__NATIVE_SESSION_HINT,
     "SESSION_HINT",
     {.session_hint = {169, 170, TIERCE_HINT_LATER, 171}},
     {.hello = {{0}}}},
};

#define COUNT (sizeof(messages) / sizeof(messages[0]))

static void fill_rows(void)
{
    tierce__native_put_result(results, &(struct tierce__native_result){TIERCE__NATIVE_UNUSED, 80});
    tierce__native_put_lent(
        lent, &(struct tierce__native_lent){
                  81, 82, 83, 90, 84, 85, TIERCE__NATIVE_TAIL, TIERCE__NATIVE_COMING, 2, {0xd1}});
    tierce__native_put_lent(
        lent + TIERCE__NATIVE_LENT_BYTES,
        &(struct tierce__native_lent){
            0, 91, 92, 95, 93, 94, TIERCE__NATIVE_SIBLING, TIERCE__NATIVE_WAITS, 3, {0xd2}});
    tierce__native_put_reserved(reserved, &(struct tierce__native_reserved){96, 97, 98, 99});
    tierce__native_put_tier(tiers, &(struct tierce__native_come_tier){"disk", 100, 101});
}

/* The frozen body of a message, and its length; on the heap with the head before it. */
static uint8_t *frozen_body(const char *name, uint32_t *bytes, uint32_t *word)
{
    char *hex = frozen_find(FILE_NAME, name);
    size_t count;
    ck_assert_msg(hex != NULL, FILE_NAME " has no %s", name);
    uint8_t *frame = frozen_bytes(hex, &count);
    ck_assert_uint_ge(count, TIERCE__NATIVE_HEAD);
    ck_assert_int_eq(tierce__native_head(bytes, word, frame), 0);
    ck_assert_uint_eq(*bytes + TIERCE__NATIVE_HEAD, count);
    free(hex);
    return frame;
}

START_TEST(requests)
{
    struct tierce__native_frame frame = {0};
    union tierce__native_request request;
    char name[64];
    uint32_t bytes, word;
    snprintf(name, sizeof(name), "request.%s", messages[_i].name);
    ck_assert_int_eq(tierce__native_pack_request(&frame, messages[_i].op, &messages[_i].request),
                     0);
    frozen_check_bytes(FILE_NAME, name, frame.bytes, frame.used);
    if (!frozen_writes()) {
        uint8_t *frozen = frozen_body(name, &bytes, &word);
        ck_assert_uint_eq(word, messages[_i].op);
        ck_assert_int_eq(
            tierce__native_unpack_request(&request, word, frozen + TIERCE__NATIVE_HEAD, bytes), 0);
        ck_assert_int_eq(tierce__native_pack_request(&frame, messages[_i].op, &request), 0);
        ck_assert_uint_eq(frame.used, bytes + TIERCE__NATIVE_HEAD);
        ck_assert_mem_eq(frame.bytes, frozen, frame.used);
        free(frozen);
    }
    tierce__native_frame_fini(&frame);
}
END_TEST

START_TEST(answers)
{
    struct tierce__native_frame frame = {0};
    union tierce__native_answer answer;
    char name[64];
    uint32_t bytes, word;
    snprintf(name, sizeof(name), "answer.%s", messages[_i].name);
    ck_assert_int_eq(tierce__native_pack_answer(&frame, messages[_i].op, 0, &messages[_i].answer),
                     0);
    frozen_check_bytes(FILE_NAME, name, frame.bytes, frame.used);
    if (!frozen_writes()) {
        uint8_t *frozen = frozen_body(name, &bytes, &word);
        ck_assert_uint_eq(word, 0);
        ck_assert_int_eq(tierce__native_unpack_answer(&answer, messages[_i].op,
                                                      frozen + TIERCE__NATIVE_HEAD, bytes),
                         0);
        ck_assert_int_eq(tierce__native_pack_answer(&frame, messages[_i].op, 0, &answer), 0);
        ck_assert_uint_eq(frame.used, bytes + TIERCE__NATIVE_HEAD);
        ck_assert_mem_eq(frame.bytes, frozen, frame.used);
        free(frozen);
    }
    tierce__native_frame_fini(&frame);
}
END_TEST

START_TEST(rows)
{
    struct tierce__native_lent one;
    struct tierce__native_reserved room;
    struct tierce__native_result result;
    struct tierce__native_come_tier tier;
    ck_assert_int_eq(tierce__native_get_lent(&one, &(struct tierce__native_rows){lent, 2}, 0), 0);
    ck_assert_uint_eq(one.offset, 81);
    ck_assert_uint_eq(one.bytes, 82);
    ck_assert_uint_eq(one.index, 83);
    ck_assert_uint_eq(one.from, 84);
    ck_assert_uint_eq(one.to, 85);
    ck_assert_uint_eq(one.block_count, 90);
    ck_assert_uint_eq(one.kind, TIERCE__NATIVE_TAIL);
    ck_assert_uint_eq(one.state, TIERCE__NATIVE_COMING);
    ck_assert_uint_eq(one.origin, 2);
    ck_assert_uint_eq(one.hash[0], 0xd1);
    ck_assert_int_eq(
        tierce__native_get_reserved(&room, &(struct tierce__native_rows){reserved, 1}, 0), 0);
    ck_assert_uint_eq(room.offset, 96);
    ck_assert_uint_eq(room.bytes, 97);
    ck_assert_uint_eq(room.index, 98);
    ck_assert_uint_eq(room.block_count, 99);
    ck_assert_int_eq(
        tierce__native_get_result(&result, &(struct tierce__native_rows){results, 1}, 0), 0);
    ck_assert_uint_eq(result.verdict, TIERCE__NATIVE_UNUSED);
    ck_assert_uint_eq(result.blocks, 80);
    ck_assert_int_eq(tierce__native_get_tier(&tier, &(struct tierce__native_rows){tiers, 1}, 0), 0);
    ck_assert_str_eq(tier.name, "disk");
    ck_assert_uint_eq(tier.promised, 100);
    ck_assert_uint_eq(tier.loaded, 101);
}
END_TEST

/* Statuses of answers, which have no message. */
START_TEST(statuses)
{
    struct tierce__native_frame frame = {0};
    ck_assert_int_eq(tierce__native_pack_answer(&frame, TIERCE__NATIVE_LOOKUP,
                                                TIERCE__NATIVE_UNKNOWN_CHAIN, NULL),
                     0);
    frozen_check_bytes(FILE_NAME, "status.UNKNOWN_CHAIN", frame.bytes, frame.used);
    ck_assert_int_eq(
        tierce__native_pack_answer(&frame, TIERCE__NATIVE_LOOKUP, TIERCE__NATIVE_UNKNOWN, NULL), 0);
    frozen_check_bytes(FILE_NAME, "status.UNKNOWN", frame.bytes, frame.used);
    ck_assert_int_eq(
        tierce__native_pack_answer(&frame, TIERCE__NATIVE_LOOKUP, TIERCE_E_LIMIT, NULL), 0);
    frozen_check_bytes(FILE_NAME, "status.E_LIMIT", frame.bytes, frame.used);
    tierce__native_frame_fini(&frame);
}
END_TEST

/* A message that is frozen but no longer among those above. */
START_TEST(none_is_left_out)
{
    struct frozen_file frozen;
    const char *name, *value;
    size_t found = 0;
    if (frozen_writes())
        return;
    ck_assert(frozen_try_open(&frozen, FILE_NAME));
    while (frozen_next(&frozen, &name, &value))
        found++;
    frozen_close(&frozen);
    ck_assert_uint_eq(found, 2 * COUNT + 3);
    ck_assert_uint_eq(COUNT, TIERCE__NATIVE_OPS + 2); /* four of HAND_OVER, none of 0 */
}
END_TEST

int main(void)
{
    fill_rows();
    return CHECK_RUN("frozen_native", .tests = {rows, statuses, none_is_left_out},
                     .loops = {{requests, 0, (int)COUNT}, {answers, 0, (int)COUNT}});
}
