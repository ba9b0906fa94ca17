/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs in shared objects: the rules of a right one, the example or that of the variable
 * TIERCE_PLUGIN, and those that are wrong. */
#include "check_main.h"
#include "core/codec/codec_plugin.h"
#include "plugin_file.h"
#include "test_random.h"

#include <stdlib.h>
#include <string.h>

static char why[TIERCE__URL_WHY_BYTES];
static const struct tierce__codec *codec;

static int open_file(const char *path, const char *params)
{
    char url[256];
    struct plugin_file file;
    plugin_file_make(&file, path);
    snprintf(url, sizeof(url), "plugin://%s%s", file.path, params);
    int rc = tierce__codec_open(&codec, url, why);
    plugin_file_remove(&file);
    return rc;
}

static void open_right(void)
{
    char url[512];
    const char *given = getenv("TIERCE_PLUGIN");
    snprintf(url, sizeof(url), "plugin://%s", given != NULL ? given : "");
    int rc =
        given != NULL ? tierce__codec_open(&codec, url, why) : open_file(TIERCE_PLUGIN_CODEC, "");
    ck_assert_msg(rc == 0, "%s", why);
}

static void expect_refused(int rc, const char *words)
{
    ck_assert_int_eq(rc, TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, words) != NULL, "\"%s\" is not in \"%s\"", words, why);
}

static const struct {
    const char *path, *params, *words;
} wrong[] = {
    {TIERCE_WRONG_CODECS "/libwrong_codec_1.so", "", "exports no function tierce_plugin_codec"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_2.so", "", "tierce_plugin_codec() returns NULL"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_3.so", "",
     "was built for version 2 of plugin_codec.h; this is version 1"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_4.so", "", "are required"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_5.so", "", "has no function decode"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_6.so", "", "its name is not 1 to 31 lower-case"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_7.so", "", "lossless, is that of a codec of Tierce"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_8.so", "", "encode does not make a run of 64 KiB short"},
    {TIERCE_WRONG_CODECS "/libwrong_codec_9.so", "", "decode does not restore a run of 64 KiB"},
    {TIERCE_PLUGIN_CODEC, "?level=3", "a codec has no parameters"},
};

START_TEST(wrong_plugins_are_refused)
{
    expect_refused(open_file(wrong[_i].path, wrong[_i].params), wrong[_i].words);
}
END_TEST

START_TEST(settings_name_codecs)
{
    ck_assert_int_eq(tierce__codec_open(&codec, "none", why), 0);
    ck_assert_ptr_null(codec);
    ck_assert_int_eq(tierce__codec_open(&codec, "lossless", why), 0);
    ck_assert_ptr_eq(codec, tierce__codec_find("lossless"));
    expect_refused(tierce__codec_open(&codec, "zip", why), "there is no codec \"zip\"");
    expect_refused(tierce__codec_open(&codec, "plugin://lib.so", why), "absolute path");
}
END_TEST

/* The same name from two files would be two codecs with one number. */
START_TEST(a_name_is_loaded_once)
{
    open_right();
    const struct tierce__codec *first = codec;
    ck_assert(tierce__codec_is_plugin(first));
    ck_assert_ptr_eq(tierce__codec_numbered(first->number), first);
    ck_assert_ptr_null(tierce__codec_numbered(first->number ^ 1));
    expect_refused(open_file(TIERCE_PLUGIN_CODEC, ""), "of this name is loaded from another file");
}
END_TEST

/* Each type, and lengths that are no multiple of a value. */
START_TEST(every_bit_comes_back)
{
    enum { RUN_MAX = 100000 };
    struct test_random random = test_random_start("codec plug-in");
    open_right();
    for (unsigned i = 0; i < 200; i++) {
        uint64_t bytes = 1 + test_random_below(&random, RUN_MAX);
        struct tierce__codec_shape shape = {
            .element = (enum tierce__element)(1 + i % (TIERCE__ELEMENTS - 1)), .part_bytes = 512};
        /* Buffers of exactly their size, so that the address sanitizer sees an access beyond. */
        uint8_t *run = malloc(bytes), *back = malloc(bytes);
        uint8_t *coded = malloc(tierce__codec_bound(bytes));
        for (uint64_t at = 0; at < bytes; at++) /* few exponents, or noise */
            run[at] = (uint8_t)(at % 2 == 1 && i % 4 != 0 ? test_random_below(&random, 4)
                                                          : test_random_below(&random, 256));
        int64_t length = codec->encode(coded, tierce__codec_bound(bytes), run, bytes, &shape);
        ck_assert(length == TIERCE_E_FULL || (length > 0 && (uint64_t)length < bytes));
        if (length > 0) {
            uint8_t *exact = malloc((size_t)length);
            memcpy(exact, coded, (size_t)length);
            ck_assert_int_eq(codec->decode(back, bytes, exact, (uint64_t)length), 0);
            ck_assert_int_eq(memcmp(run, back, bytes), 0);
            for (unsigned n = 0; n < 20; n++) { /* any result but an access beyond the buffers */
                exact[test_random_below(&random, (uint32_t)length)] ^= 1u << (n % 8);
                (void)codec->decode(back, bytes, exact, (uint64_t)length);
                (void)codec->decode(back, bytes, exact,
                                    test_random_below(&random, (uint32_t)length + 1));
            }
            free(exact);
        }
        free(run);
        free(back);
        free(coded);
    }
    ck_assert_int_eq(codec->encode(NULL, 0, NULL, 1, &(struct tierce__codec_shape){0}),
                     TIERCE_E_ARGUMENT);
}
END_TEST

CHECK_MAIN("codec plug-in",
           .tests = {settings_name_codecs, a_name_is_loaded_once, every_bit_comes_back},
           .loops = {{wrong_plugins_are_refused, 0, sizeof(wrong) / sizeof(*wrong)}})
