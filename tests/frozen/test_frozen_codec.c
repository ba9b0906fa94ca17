/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "core/codec/codec.h"
#include "core/paged/paged.h"
#include "kv_values.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/*
 * Coded bytes of this and of earlier versions: each line of codec.txt has an element, the length of
 * a run, of its parts, the sum of its coded bytes, and for short runs these bytes. A line of a
 * lossy codec begins with its name, and the sum of the decoded bytes follows that of the coded
 * ones. TIERCE_TEST_FROZEN_WRITE=1 writes codec.txt.new.
 */

enum { RUN_MAX = 200000, SHOWN_MAX = 2000, LINE_MAX_BYTES = 4 * SHOWN_MAX };

struct frozen_run {
    enum tierce__element element;
    size_t bytes, part;
    const char *codec;
    const char *order; /* NULL, or that of cells of two parts */
};

static const struct frozen_run runs[] = {
    {TIERCE__ELEMENT_BF16, 1024, 0, "lossless", NULL},
    {TIERCE__ELEMENT_FP16, 2002, 0, "lossless", NULL},
    {TIERCE__ELEMENT_E4M3, 2000, 0, "lossless", NULL},
    {TIERCE__ELEMENT_E5M2, 2001, 256, "lossless", NULL},
    {TIERCE__ELEMENT_RAW, 100, 0, "lossless", NULL},
    {TIERCE__ELEMENT_BF16, 333, 0, "lossless", NULL},
    {TIERCE__ELEMENT_BF16, RUN_MAX, 0, "lossless", NULL},
    {TIERCE__ELEMENT_BF16, 196608, 6144, "lossless", NULL},
    {TIERCE__ELEMENT_FP16, 196608, 49152, "lossless", NULL},
    {TIERCE__ELEMENT_E4M3, 131072, 8192, "lossless", NULL},
    {TIERCE__ELEMENT_E5M2, 199999, 0, "lossless", NULL},
    {TIERCE__ELEMENT_BF16, 700, 0, "int8", NULL},
    {TIERCE__ELEMENT_FP16, RUN_MAX, 0, "int8", NULL},
    {TIERCE__ELEMENT_FP16, 700, 0, "int4", NULL},
    {TIERCE__ELEMENT_BF16, RUN_MAX, 0, "int4", NULL},
    {TIERCE__ELEMENT_BF16, 700, 0, "fp8", NULL},
    {TIERCE__ELEMENT_FP16, RUN_MAX, 0, "fp8", NULL},
    {TIERCE__ELEMENT_BF16, 4096, 1024, "cachegen", NULL},
    {TIERCE__ELEMENT_FP16, 4096, 0, "cachegen", NULL},
    {TIERCE__ELEMENT_BF16, 196608, 6144, "cachegen", NULL},
    {TIERCE__ELEMENT_BF16, 4096, 1024, "cachegen", "thkc16"},
    {TIERCE__ELEMENT_FP16, 196608, 12288, "cachegen", "hk.c64t.tc64"},
};
#define RUNS (sizeof(runs) / sizeof(runs[0]))

static uint8_t run[RUN_MAX], back[RUN_MAX], coded[RUN_MAX + 1024];
static const struct tierce__codec *codec;

static size_t encode(unsigned i)
{
    const struct frozen_run *r = &runs[i];
    enum tierce__element kind =
        r->element == TIERCE__ELEMENT_RAW ? TIERCE__ELEMENT_E5M2 : r->element;
    size_t part = r->part > 0 ? r->part : r->bytes;
    /* a lossy codec decodes small bf16 to zeroes */
    unsigned top = !codec->is_exact && kind == TIERCE__ELEMENT_BF16 ? 126 : 14;
    for (size_t at = 0; at < r->bytes; at += part)
        kv_fill(run + at, part < r->bytes - at ? part : r->bytes - at, kind, i + at,
                top - (at / part % 2 == 0 ? 0 : 3), 150);
    struct tierce__codec_shape shape = {.element = r->element,
                                        .part_bytes = r->part,
                                        .row_bytes = r->bytes > 4096 ? 384 : 64,
                                        .layer = 5,
                                        .layers = 30};
    struct tierce__cell_order order;
    if (r->order != NULL) {
        ck_assert(tierce__cell_order_read(&order, r->order, strlen(r->order)));
        shape.order = &order;
        shape.cell_bytes = 2 * r->part;
        shape.cell_tokens = r->bytes > 4096 ? 32 : 16;
    }
    int64_t length = codec->encode(coded, sizeof(coded), run, r->bytes, &shape);
    ck_assert_int_gt(length, 0);
    return (size_t)length;
}

static void format_line(char line[LINE_MAX_BYTES], unsigned i, size_t length)
{
    int at =
        snprintf(line, LINE_MAX_BYTES, "%s%s%s %zu %zu %016llx", codec->is_exact ? "" : codec->name,
                 codec->is_exact ? "" : " ", tierce__element_name(runs[i].element), runs[i].bytes,
                 runs[i].part, (unsigned long long)tierce__sum(coded, length));
    if (!codec->is_exact)
        at += snprintf(line + at, LINE_MAX_BYTES - (size_t)at, " %016llx",
                       (unsigned long long)tierce__sum(back, runs[i].bytes));
    if (length <= SHOWN_MAX) {
        line[at++] = ' ';
        for (size_t k = 0; k < length; k++)
            at += snprintf(line + at, LINE_MAX_BYTES - (size_t)at, "%02x", coded[k]);
    }
    line[at] = '\0';
}

/* Every kernel decodes to equal bytes, to those of the run if the codec is exact. */
static void decode_by_all(unsigned i, size_t length)
{
    static uint8_t first[RUN_MAX];
    ck_assert_int_eq(codec->decode(first, runs[i].bytes, coded, length), 0);
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        ck_assert_int_eq(codec->decode(back, runs[i].bytes, coded, length), 0);
        ck_assert_mem_eq(back, codec->is_exact ? run : first, runs[i].bytes);
    }
    ck_assert(tierce__kernel_force(&tierce__codec_kernels, UINT_MAX));
}

START_TEST(test_coded_bytes)
{
    bool is_writing = getenv("TIERCE_TEST_FROZEN_WRITE") != NULL;
    FILE *file = fopen(is_writing ? TIERCE_FROZEN "/codec.txt.new" : TIERCE_FROZEN "/codec.txt",
                       is_writing ? "w" : "r");
    ck_assert_msg(file != NULL, "codec.txt of tests/frozen cannot be opened");
    static char line[LINE_MAX_BYTES], frozen[LINE_MAX_BYTES];
    for (unsigned i = 0; i < RUNS; i++) {
        codec = tierce__codec_find(runs[i].codec);
        size_t length = encode(i);
        decode_by_all(i, length);
        format_line(line, i, length);
        if (is_writing) {
            fprintf(file, "%s\n", line);
            continue;
        }
        ck_assert_msg(fgets(frozen, sizeof(frozen), file) != NULL, "codec.txt has %u lines", i);
        frozen[strcspn(frozen, "\n")] = '\0';
        ck_assert_str_eq(line, frozen);
    }
    ck_assert(is_writing || fgets(frozen, sizeof(frozen), file) == NULL);
    fclose(file);
}
END_TEST

static Suite *frozen_codec_suite(void)
{
    Suite *suite = suite_create("frozen codec");
    TCase *tcase = tcase_create("codec");
    tcase_add_test(tcase, test_coded_bytes);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(frozen_codec_suite());
}
