/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blending: keys rotated to another position, and distances between computed and reused keys, with
 * the kernel of this machine, beside memcpy (the limit) and the portable kernel. The keys are those
 * of a layer of 1,024 tokens with 8 heads of 128 elements, for example Llama 3's.
 */
#include "bench/bench.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/blend/blend_kernels.h"
#include "core/blend/select.h"

#define TOKENS        1024u
#define HEADS         8u
#define HEAD_ELEMENTS 128u
#define THETA         "{\"rope_theta\": 500000.0}"
#define DISTANCE_GOAL 0.3 /* of memcpy */

struct bench_blend {
    enum tierce__blend_dtype dtype;
    struct tierce__rotation rotation;
    uint64_t bytes;
    uint8_t *keys, *other;
    float distances[TOKENS];
};

static const struct {
    const char *name;
    enum tierce__blend_dtype dtype;
    enum tierce__rope_style style;
    double goal; /* of memcpy */
} cases[] = {
    {"bf16 neox", TIERCE__BLEND_BF16, TIERCE__ROPE_NEOX, 0.15},
    {"bf16 gptj", TIERCE__BLEND_BF16, TIERCE__ROPE_GPTJ, 0.15},
    {"fp16 neox", TIERCE__BLEND_FP16, TIERCE__ROPE_NEOX, 0.05},
    {"fp32 neox", TIERCE__BLEND_FP32, TIERCE__ROPE_NEOX, 0.3},
};

/* Time of the processor: all sides are computation on one thread. */
static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct tierce__key_rows rows_of(const struct bench_blend *b, uint8_t *at)
{
    size_t head = HEAD_ELEMENTS * (size_t)tierce__blend_dtype_bytes(b->dtype);
    return (struct tierce__key_rows){at, HEADS * head, head};
}

static int64_t rotate(void *arg)
{
    struct bench_blend *b = arg;
    struct tierce__key_rows src = rows_of(b, b->keys), dst = rows_of(b, b->other);
    uint64_t start = processor_ns();
    tierce__rotate(&b->rotation, b->dtype, &dst, &src, TOKENS, HEADS);
    return (int64_t)(processor_ns() - start);
}

static int64_t compare(void *arg)
{
    struct bench_blend *b = arg;
    struct tierce__key_rows x = rows_of(b, b->keys), y = rows_of(b, b->other);
    uint64_t start = processor_ns();
    tierce__key_distances(b->distances, b->dtype, &x, &y, TOKENS, HEADS, HEAD_ELEMENTS);
    return (int64_t)(processor_ns() - start);
}

static int64_t copy(void *arg)
{
    struct bench_blend *b = arg;
    uint64_t start = processor_ns();
    memcpy(b->other, b->keys, b->bytes);
    return (int64_t)(processor_ns() - start);
}

static unsigned portable_kernel(void)
{
    unsigned last = 0;
    while (tierce__kernel_name(&tierce__blend_kernels, last + 1) != NULL)
        last++;
    return last;
}

/* With the portable kernel; the other sides use the best one. */
static int64_t with_portable(void *arg, tierce__bench_run_fn *run)
{
    tierce__kernel_force(&tierce__blend_kernels, portable_kernel());
    int64_t ns = run(arg);
    tierce__kernel_force(&tierce__blend_kernels, UINT_MAX);
    return ns;
}

static int64_t rotate_portable(void *arg)
{
    return with_portable(arg, rotate);
}

static int64_t compare_portable(void *arg)
{
    return with_portable(arg, compare);
}

static int measure(const struct tierce__bench *bench, struct bench_blend *b, const char *what,
                   const char *name, tierce__bench_run_fn *const runs[2], double goal)
{
    struct tierce__bench_side sides[] = {
        {.run = runs[0], .arg = b}, {.run = copy, .arg = b}, {.run = runs[1], .arg = b}};
    int rc = tierce__bench_alternate(sides, 3, bench->seconds);
    if (rc < 0)
        return rc;
    double bytes = (double)b->bytes;
    char text[96];
    snprintf(text, sizeof(text), "%s %s; beside the portable kernel", what, name);
    tierce__bench_emit(bench, &(struct tierce__bench_row){.case_name = text,
                                                          .unit = "GB/s",
                                                          .value = bytes / sides[0].median_ns,
                                                          .limit = bytes / sides[1].median_ns,
                                                          .goal = goal,
                                                          .peer = "portable",
                                                          .peer_value = bytes / sides[2].median_ns,
                                                          .value_min = bytes / sides[0].max_ns,
                                                          .value_max = bytes / sides[0].min_ns,
                                                          .limit_min = bytes / sides[1].max_ns,
                                                          .limit_max = bytes / sides[1].min_ns});
    return 0;
}

/* Numbers near 1, as keys are: infinities and subnormal numbers would take another time. */
static void make_up(struct bench_blend *b)
{
    unsigned bytes = tierce__blend_dtype_bytes(b->dtype);
    for (uint64_t i = 0; i < b->bytes / bytes; i++) {
        uint64_t random = tierce__bench_random(5, i);
        uint32_t bits = b->dtype == TIERCE__BLEND_BF16   ? (random & 0x80ff) | 0x3f00
                        : b->dtype == TIERCE__BLEND_FP16 ? (random & 0x87ff) | 0x3800
                                                         : (random & 0x80ffffff) | 0x3f000000;
        memcpy(b->keys + i * bytes, &bits, bytes);
    }
}

static int run_case(const struct tierce__bench *bench, struct bench_blend *b, unsigned i)
{
    tierce__bench_run_fn *const rotations[] = {rotate, rotate_portable};
    tierce__bench_run_fn *const comparisons[] = {compare, compare_portable};
    struct tierce__rope_layout layout = {
        .style = cases[i].style, .row_elements = HEAD_ELEMENTS, .width = HEAD_ELEMENTS};
    struct tierce__rope rope;
    char why[TIERCE__ROPE_WHY_BYTES];
    int rc = tierce__rope_init(&rope, why, THETA, strlen(THETA), &layout);
    if (rc < 0)
        return tierce__bench_fail(bench, "RoPE: %s", why);
    tierce__rotation_init(&b->rotation, &rope, 4096);
    rc = measure(bench, b, "rotate", cases[i].name, rotations, cases[i].goal);
    if (rc == 0 && i == 0)
        rc = measure(bench, b, "distances of", "bf16", comparisons, DISTANCE_GOAL);
    return rc;
}

int tierce__bench_blend(const struct tierce__bench *bench)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench_blend b = {.dtype = cases[i].dtype};
        b.bytes = TOKENS * HEADS * HEAD_ELEMENTS * (uint64_t)tierce__blend_dtype_bytes(b.dtype);
        b.keys = tierce__bench_map(b.bytes);
        b.other = tierce__bench_map(b.bytes);
        rc = b.keys != NULL && b.other != NULL ? 0 : -ENOMEM;
        if (rc == 0) {
            make_up(&b);
            rc = run_case(bench, &b, i);
        }
        tierce__bench_unmap(b.keys, b.bytes);
        tierce__bench_unmap(b.other, b.bytes);
    }
    return rc;
}
