/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/blend/blend_kernels.h"
#include "core/device/device.h"
#include "gpu.h"
#include "key_shapes.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <limits.h>

/* Keys that are rotated on a GPU, or on the driver of tests/support/cuda: the bytes are those of
 * the host's portable kernel, and the stream of the caller orders the rotation. */

enum { ROOM = 17 << 20 };

static const struct tierce__device_ops *ops;
static struct tierce__device *device;
static uintptr_t memory;
static uint8_t *keys, *now; /* on the host, ROOM bytes each */

static void start(const char *name)
{
    struct test_random random = test_random_start(name);
    unsigned portable = 0;
    while (strcmp(tierce__kernel_name(&tierce__blend_kernels, portable), "portable") != 0)
        portable++;
    ck_assert(tierce__kernel_force(&tierce__blend_kernels, portable));
    keys = malloc(ROOM);
    now = malloc(ROOM);
    ck_assert(keys != NULL && now != NULL);
    gpu_start(test_random_u64(&random), 0);
    memory = gpu_alloc(ROOM);
    ops = tierce__device_find("cuda");
    ck_assert_int_eq(ops->open(&device, (void *)memory), 0);
}

static void stop(void)
{
    gpu_sync();
    ck_assert(ops->close(device, tierce__deadline_in_ms(120000)));
    gpu_check_left(1);
    gpu_free(memory);
    gpu_stop();
    free(keys);
    free(now);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* The keys of a shape, `from` bytes after the beginning of the memory. */
static struct tierce__device_keys keys_of(const struct shape *s,
                                          const struct tierce__rotation *rotation, size_t from)
{
    return (struct tierce__device_keys){
        .rotation = rotation,
        .dtype = s->dtype,
        .rows = {(uint8_t *)memory + from, s->token_bytes, s->head_bytes},
        .tokens = s->tokens,
        .heads = s->heads,
        .stream = gpu.stream};
}

/* The bytes `from` on become what the host makes of them. */
static void rotate_on_host(const struct tierce__device_keys *what, size_t from)
{
    struct tierce__key_rows rows = what->rows;
    rows.at = keys + from;
    tierce__rotate(what->rotation, what->dtype, &rows, &rows, what->tokens, what->heads);
}

static void check_same(size_t bytes)
{
    gpu_read(now, memory, bytes);
    for (size_t i = 0; memcmp(now, keys, bytes) != 0 && i < bytes; i++)
        ck_assert_msg(now[i] == keys[i], "byte %zu is %u, not %u", i, now[i], keys[i]);
}

START_TEST(the_bytes_are_those_of_the_host)
{
    struct test_random random = test_random_start("the_bytes_are_those_of_the_host");
    start("rotate");
    for (unsigned round = 0; round < TEST_ROUNDS(400) * test_scale(); round++) {
        struct shape s = random_shape(&random);
        struct tierce__rotation rotation;
        size_t from = test_random_below(&random, 9), bytes = from + s.bytes + 64;
        int64_t delta = (int64_t)(test_random_u64(&random) >> (33 + round % 30));
        tierce__rotation_init(&rotation, &s.rope, round % 2 == 0 ? delta : -delta);
        memset(keys, SHAPE_GUARD, bytes);
        fill_rows(keys + from, &s, &random, round % 3);
        gpu_write(memory, keys, bytes);
        struct tierce__device_keys what = keys_of(&s, &rotation, from);
        ck_assert_int_eq(ops->rotate(device, &what), 0);
        rotate_on_host(&what, from);
        check_same(bytes);
    }
    stop();
}
END_TEST

/* Every number of 16 bits, in both halves of a pair. */
START_TEST(every_number)
{
    enum { NUMBERS = 65536 };
    start("every_number");
    for (int dtype = TIERCE__BLEND_BF16; dtype <= TIERCE__BLEND_FP16; dtype++) {
        struct shape s = {.rope = {.layout = {TIERCE__ROPE_GPTJ, 2, 0, 2}, .pairs = 1},
                          .dtype = (enum tierce__blend_dtype)dtype,
                          .tokens = NUMBERS,
                          .heads = 1,
                          .token_bytes = 4,
                          .head_bytes = 4};
        struct tierce__rotation rotation;
        s.rope.frequencies[0] = 0.7;
        tierce__rotation_init(&rotation, &s.rope, 1);
        for (unsigned i = 0; i < NUMBERS; i++) {
            uint16_t pair[2] = {(uint16_t)i, (uint16_t)(i * 40503u)};
            memcpy(keys + 4 * (size_t)i, pair, sizeof(pair));
        }
        gpu_write(memory, keys, 4 * NUMBERS);
        struct tierce__device_keys what = keys_of(&s, &rotation, 0);
        ck_assert_int_eq(ops->rotate(device, &what), 0);
        rotate_on_host(&what, 0);
        check_same(4 * NUMBERS);
    }
    stop();
}
END_TEST

/* Rotates rows of as many pairs as there can be, one behind the other. */
static void rotate_many(uint32_t heads, size_t tokens)
{
    enum { PAIRS = TIERCE__ROPE_PAIRS_MAX };
    size_t bytes = tokens * heads * PAIRS * 2 * 2;
    struct shape s = {
        .rope = {.layout = {TIERCE__ROPE_NEOX, 2 * PAIRS, 0, 2 * PAIRS}, .pairs = PAIRS},
        .dtype = TIERCE__BLEND_BF16,
        .tokens = tokens,
        .heads = heads,
        .token_bytes = (size_t)heads * PAIRS * 4,
        .head_bytes = PAIRS * 4};
    struct tierce__rotation rotation;
    ck_assert_uint_le(bytes, ROOM);
    for (unsigned i = 0; i < PAIRS; i++)
        s.rope.frequencies[i] = 1.0 / (i + 1);
    tierce__rotation_init(&rotation, &s.rope, 1000);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t pair = 0x3f803f80u + (uint32_t)(i * 2654435761u) % 0x7fu;
        memcpy(keys + i, &pair, sizeof(pair));
    }
    gpu_write(memory, keys, bytes);
    struct tierce__device_keys what = keys_of(&s, &rotation, 0);
    ck_assert_int_eq(ops->rotate(device, &what), 0);
    rotate_on_host(&what, 0);
    check_same(bytes);
}

/* More pairs than a launch takes: the last token is in a second launch. */
START_TEST(many_keys_are_several_launches)
{
    start("many_keys");
    rotate_many(8, 2049);
    stop();
}
END_TEST

/* A token is never more than a launch takes. */
START_TEST(a_token_has_as_many_heads_as_are_allowed)
{
    start("many_heads");
    rotate_many(TIERCE__DEVICE_HEADS_MAX, 1);
    stop();
}
END_TEST

/* Some keys of bfloat16, of which the host has the same bytes. */
static struct tierce__rotation some_rotation;

static struct tierce__device_keys some_keys(void)
{
    struct shape s = {.rope = {.layout = {TIERCE__ROPE_NEOX, 64, 0, 64}, .pairs = 32},
                      .dtype = TIERCE__BLEND_BF16,
                      .tokens = 100,
                      .heads = 2,
                      .token_bytes = 256,
                      .head_bytes = 128};
    for (unsigned i = 0; i < 32; i++)
        s.rope.frequencies[i] = 1.0 / (i + 1);
    tierce__rotation_init(&some_rotation, &s.rope, 12);
    for (size_t i = 0; i < 25600; i++)
        keys[i] = (uint8_t)(i % 2 == 0 ? i * 7 : 0x3f);
    return keys_of(&s, &some_rotation, 0);
}

/* The rotation follows the caller's earlier work and precedes its later work; the call waits for
 * neither. */
START_TEST(the_stream_orders_a_rotation)
{
    start("order");
    struct tierce__device_keys what = some_keys();
    gpu_write(memory, keys, 25600);
    ck_assert_int_eq(ops->rotate(device, &what), 0); /* the first one may block */
    gpu_sync();
    gpu_hold();
    gpu_write(memory, keys, 25600);
    ck_assert_int_eq(ops->rotate(device, &what), 0);
    ck_assert_int_eq(ops->idle(device), -EAGAIN);
    const uint8_t *read = gpu_read_later(memory, 25600);
    gpu_release();
    gpu_sync();
    rotate_on_host(&what, 0);
    ck_assert_mem_eq(read, keys, 25600);
    stop();
}
END_TEST

START_TEST(a_captured_stream_is_rejected)
{
    start("capture");
    struct tierce__device_keys what = some_keys();
    gpu_write(memory, keys, 25600);
    gpu_sync();
    gpu_begin_capture(gpu.stream);
    ck_assert_int_eq(ops->rotate(device, &what), TIERCE_E_UNSUPPORTED);
    gpu_end_capture(gpu.stream);
    check_same(25600);
    ck_assert_int_eq(ops->rotate(device, &what), 0);
    rotate_on_host(&what, 0);
    check_same(25600);
    stop();
}
END_TEST

static void check_rejected(const struct tierce__device_ops *of, struct tierce__device *on)
{
    struct tierce__rotation wrong = some_rotation;
    struct tierce__device_keys what = some_keys(), bad = what;
    bad.dtype = TIERCE__BLEND_DTYPES;
    ck_assert_int_eq(of->rotate(on, &bad), TIERCE_E_ARGUMENT);
    bad = what;
    bad.heads = 0;
    ck_assert_int_eq(of->rotate(on, &bad), TIERCE_E_ARGUMENT);
    bad.heads = TIERCE__DEVICE_HEADS_MAX + 1;
    ck_assert_int_eq(of->rotate(on, &bad), TIERCE_E_ARGUMENT);
    bad = what;
    bad.rows.at = NULL;
    ck_assert_int_eq(of->rotate(on, &bad), TIERCE_E_ARGUMENT);
    bad.tokens = 0;
    ck_assert_int_eq(of->rotate(on, &bad), 0);
    bad = what;
    bad.rotation = &wrong;
    wrong.pairs = 0;
    ck_assert_int_eq(of->rotate(on, &bad), TIERCE_E_ARGUMENT);
    wrong.pairs = TIERCE__ROPE_PAIRS_MAX + 1;
    ck_assert_int_eq(of->rotate(on, &bad), TIERCE_E_ARGUMENT);
}

START_TEST(invalid_keys_are_rejected)
{
    start("invalid");
    check_rejected(ops, device);
    stop();
}
END_TEST

START_TEST(memory_of_the_host)
{
    const struct tierce__device_ops *host = tierce__device_find("host");
    struct tierce__device *on;
    start("host");
    struct tierce__device_keys what = some_keys();
    what.rows.at = now;
    memcpy(now, keys, 25600);
    ck_assert_int_eq(host->open(&on, now), 0);
    ck_assert_int_eq(host->rotate(on, &what), 0);
    rotate_on_host(&what, 0);
    ck_assert_mem_eq(now, keys, 25600);
    check_rejected(host, on);
    ck_assert(host->close(on, 0));
    stop();
}
END_TEST

GPU_MAIN("device_rotate", .seconds = 120,
         .tests = {the_bytes_are_those_of_the_host, every_number, many_keys_are_several_launches,
                   a_token_has_as_many_heads_as_are_allowed, the_stream_orders_a_rotation,
                   a_captured_stream_is_rejected, invalid_keys_are_rejected, memory_of_the_host})
