/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/blend/blend_kernels.h"
#include "core/blend/select.h"
#include "core/device/device.h"
#include "gpu.h"
#include "key_shapes.h"

#include "base/alloc.h"
#include "base/clock.h"

/* Distances of keys that are computed on a GPU, or on the driver of tests/support/cuda: the numbers
 * are those of the host's portable kernel, and the stream of the caller orders the computation. */

enum { ROOM = 5 << 20, TO = 4 << 20, TO_BYTES = ROOM - TO, TOKENS_MAX = TO_BYTES / 4 };

static const struct tierce__device_ops *ops;
static struct tierce__device *device;
static uintptr_t memory;
static uint8_t *keys; /* on the host, the same bytes */
static float *expected, *now;

static void start(const char *name)
{
    struct test_random random = test_random_start(name);
    unsigned portable = 0;
    while (strcmp(tierce__kernel_name(&tierce__blend_kernels, portable), "portable") != 0)
        portable++;
    ck_assert(tierce__kernel_force(&tierce__blend_kernels, portable));
    keys = malloc(ROOM);
    expected = malloc(TO_BYTES);
    now = malloc(TO_BYTES);
    ck_assert(keys != NULL && expected != NULL && now != NULL);
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
    free(expected);
    free(now);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Keys at these offsets of the memory; their distances come `to` numbers after TO. */
static struct tierce__device_distances keys_at(const struct shape *s, size_t a, size_t b, size_t to)
{
    return (struct tierce__device_distances){
        .dtype = s->dtype,
        .a = {(uint8_t *)memory + a, s->token_bytes, s->head_bytes},
        .b = {(uint8_t *)memory + b, s->token_bytes, s->head_bytes},
        .to = (float *)(memory + TO) + to,
        .tokens = s->tokens,
        .heads = s->heads,
        .row_elements = s->rope.layout.row_elements,
        .stream = gpu.stream};
}

/* The host computes the same from the same bytes. */
static void expect(const struct tierce__device_distances *what)
{
    struct tierce__key_rows a = what->a, b = what->b;
    a.at = keys + ((uintptr_t)a.at - memory);
    b.at = keys + ((uintptr_t)b.at - memory);
    tierce__key_distances(expected, what->dtype, &a, &b, what->tokens, what->heads,
                          what->row_elements);
}

static bool is_same(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

/* Computes them, and compares all numbers that were there or written. */
static void check(const struct tierce__device_distances *what)
{
    enum { MORE = 8 };
    size_t first = (size_t)(what->to - (float *)(memory + TO));
    ck_assert_uint_le(first + what->tokens + MORE, TOKENS_MAX);
    memset(now, SHAPE_GUARD, (first + what->tokens + MORE) * sizeof(float));
    float guard = now[0];
    gpu_write(memory + TO, now, (first + what->tokens + MORE) * sizeof(float));
    ck_assert_int_eq(ops->distances(device, what), 0);
    expect(what);
    gpu_read(now, memory + TO, (first + what->tokens + MORE) * sizeof(float));
    for (size_t i = 0; i < first + what->tokens + MORE; i++) {
        bool is_token = i >= first && i < first + what->tokens;
        float right = is_token ? expected[i - first] : guard;
        ck_assert_msg(is_same(now[i], right), "number %zu is %a, not %a", i, (double)now[i],
                      (double)right);
    }
}

START_TEST(the_numbers_are_those_of_the_host)
{
    struct test_random random = test_random_start("the_numbers_are_those_of_the_host");
    start("distances");
    for (unsigned round = 0; round < TEST_ROUNDS(400) * test_scale(); round++) {
        struct shape s = random_shape(&random), t = s;
        size_t a = test_random_below(&random, 9);
        size_t b = a + s.bytes + test_random_below(&random, 9);
        fill_rows(keys + a, &s, &random, round % 3);
        t.head_bytes += test_random_below(&random, 3); /* rows of another layout */
        t.token_bytes = t.heads * t.head_bytes + test_random_below(&random, 5);
        t.bytes = t.tokens * t.token_bytes;
        fill_rows(keys + b, &t, &random, test_random_below(&random, 3));
        gpu_write(memory, keys, b + t.bytes);
        struct tierce__device_distances what = keys_at(&s, a, b, test_random_below(&random, 4));
        what.b.token_bytes = t.token_bytes;
        what.b.head_bytes = t.head_bytes;
        check(&what);
    }
    stop();
}
END_TEST

/* Rows of bfloat16, one behind the other: as many in each of two halves. */
static struct shape some_shape(size_t tokens, uint32_t heads, uint32_t elements)
{
    size_t row = 2 * (size_t)elements, bytes = tokens * heads * row;
    ck_assert_uint_le(2 * bytes, TO);
    for (size_t i = 0; i < 2 * bytes; i++)
        keys[i] = (uint8_t)(i % 2 == 0 ? i * 2654435761u >> 20 : 0x3f);
    return (struct shape){.rope = {.layout = {.row_elements = elements}},
                          .dtype = TIERCE__BLEND_BF16,
                          .tokens = tokens,
                          .heads = heads,
                          .token_bytes = heads * row,
                          .head_bytes = row,
                          .bytes = bytes};
}

static void check_shape(size_t tokens, uint32_t heads, uint32_t elements)
{
    struct shape s = some_shape(tokens, heads, elements);
    struct tierce__device_distances what = keys_at(&s, 0, s.bytes, 0);
    gpu_write(memory, keys, 2 * s.bytes);
    check(&what);
}

/* More tokens than a launch takes, and a number that is no multiple of those of a thread block. */
START_TEST(many_tokens_are_several_launches)
{
    start("many_tokens");
    check_shape(2 * 65536 + 3, 1, 5);
    stop();
}
END_TEST

START_TEST(the_greatest_rows)
{
    start("greatest_rows");
    check_shape(1, 1, TIERCE__DEVICE_ELEMENTS_MAX);
    check_shape(2, TIERCE__DEVICE_HEADS_MAX, 3);
    stop();
}
END_TEST

/* The same row for all tokens, and keys that are compared with themselves. */
START_TEST(rows_may_overlap)
{
    start("overlap");
    struct shape s = some_shape(40, 2, 24);
    struct tierce__device_distances what = keys_at(&s, 0, s.bytes, 0);
    gpu_write(memory, keys, 2 * s.bytes);
    what.b.token_bytes = 0;
    check(&what);
    ck_assert(now[0] > 0);
    what.b = what.a;
    check(&what);
    for (size_t i = 0; i < 40; i++)
        ck_assert(now[i] == 0);
    stop();
}
END_TEST

/* The computation follows the caller's earlier work and precedes its later work; the call waits for
 * neither. */
START_TEST(the_stream_orders_it)
{
    start("order");
    struct shape s = some_shape(100, 2, 64);
    struct tierce__device_distances what = keys_at(&s, 0, s.bytes, 0);
    gpu_write(memory, keys, 2 * s.bytes);
    check(&what); /* the first one may block */
    memset(expected, 0, 400);
    gpu_write(memory, expected, 400); /* other keys */
    gpu_sync();
    gpu_hold();
    gpu_write(memory, keys, 2 * s.bytes);
    ck_assert_int_eq(ops->distances(device, &what), 0);
    ck_assert_int_eq(ops->idle(device), -EAGAIN);
    const uint8_t *read = gpu_read_later(memory + TO, 400);
    gpu_release();
    gpu_sync();
    expect(&what);
    ck_assert_mem_eq(read, expected, 400);
    stop();
}
END_TEST

START_TEST(a_captured_stream_is_rejected)
{
    start("capture");
    struct shape s = some_shape(100, 2, 64);
    struct tierce__device_distances what = keys_at(&s, 0, s.bytes, 0);
    gpu_write(memory, keys, 2 * s.bytes);
    gpu_sync();
    gpu_begin_capture(gpu.stream);
    ck_assert_int_eq(ops->distances(device, &what), TIERCE_E_UNSUPPORTED);
    gpu_end_capture(gpu.stream);
    check(&what);
    stop();
}
END_TEST

static void check_rejected(const struct tierce__device_ops *of, struct tierce__device *on,
                           const struct tierce__device_distances *what)
{
    struct tierce__device_distances bad = *what;
    bad.dtype = TIERCE__BLEND_DTYPES;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad = *what;
    bad.heads = 0;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad.heads = TIERCE__DEVICE_HEADS_MAX + 1;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad = *what;
    bad.row_elements = 0;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad.row_elements = TIERCE__DEVICE_ELEMENTS_MAX + 1;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad = *what;
    bad.to = (float *)((uintptr_t)bad.to + 2);
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad.to = NULL;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad = *what;
    bad.a.at = NULL;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad = *what;
    bad.b.at = NULL;
    ck_assert_int_eq(of->distances(on, &bad), TIERCE_E_ARGUMENT);
    bad.tokens = 0;
    ck_assert_int_eq(of->distances(on, &bad), 0);
}

START_TEST(invalid_arguments_are_rejected)
{
    start("invalid");
    struct shape s = some_shape(4, 2, 64);
    struct tierce__device_distances what = keys_at(&s, 0, s.bytes, 0);
    check_rejected(ops, device, &what);
    stop();
}
END_TEST

START_TEST(memory_of_the_host)
{
    const struct tierce__device_ops *host = tierce__device_find("host");
    struct tierce__device *on;
    start("host");
    struct shape s = some_shape(100, 2, 64);
    struct tierce__device_distances what = keys_at(&s, 0, s.bytes, 0);
    expect(&what);
    what.a.at = keys;
    what.b.at = keys + s.bytes;
    what.to = now;
    ck_assert_int_eq(host->open(&on, keys), 0);
    ck_assert_int_eq(host->distances(on, &what), 0);
    ck_assert_mem_eq(now, expected, 400);
    ck_assert(now[0] > 0);
    check_rejected(host, on, &what);
    ck_assert(host->close(on, 0));
    stop();
}
END_TEST

GPU_MAIN("device_distances", .seconds = 120,
         .tests = {the_numbers_are_those_of_the_host, many_tokens_are_several_launches,
                   the_greatest_rows, rows_may_overlap, the_stream_orders_it,
                   a_captured_stream_is_rejected, invalid_arguments_are_rejected,
                   memory_of_the_host})
