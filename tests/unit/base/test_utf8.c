/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/utf8.h"

#include "check_main.h"

#include <stdlib.h>
#include <string.h>

START_TEST(plain_text_is_judged_by_code_point)
{
    static const char *const good[] = {"",
                                       " ~",
                                       "\xc2\xa0",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        ck_assert(tierce__text_is_plain(good[i], strlen(good[i])));
    ck_assert(!tierce__text_is_plain("\xf0\x90\x80\x80", 3));
    ck_assert(!tierce__text_is_plain("\xe0\xa0\x80", 2));
    ck_assert(!tierce__text_is_plain("a\0b", 3));
    ck_assert(!tierce__text_is_plain("\xf0\x8f\xbf\xbf", 4));
    ck_assert(!tierce__text_is_plain("\xed\xbf\xbf", 3));
    ck_assert(!tierce__text_is_plain("a\x1f", 2));
    ck_assert(!tierce__text_is_plain("\x7f", 1));
    ck_assert(!tierce__text_is_plain("\xc2\x80", 2));
    ck_assert(!tierce__text_is_plain("\xc2\x9f", 2));
    ck_assert(tierce__text_is_plain("\xe2\x80\xa8\xe2\x80\xa9", 6)); /* line ends for others */
}
END_TEST

/* Also texts that end within a sequence: the address sanitizer sees a read beyond the NUL. */
START_TEST(letters_are_decoded_up_to_the_nul)
{
    static const struct {
        const char *text;
        uint32_t letter;
        size_t length;
    } rows[] = {{"", 0, 1},
                {"~", '~', 1},
                {"\xc2\x80", 0x80, 2},
                {"\xe2\x82\xac", 0x20ac, 3},
                {"\xf4\x8f\xbf\xbf", 0x10ffff, 4},
                {"\xef\xbf\xbd", 0xfffd, 3},
                {"\x80", 0xfffd, 1},
                {"\xc1\xbf", 0xfffd, 1},
                {"\xc3", 0xfffd, 1},
                {"\xe2\x82", 0xfffd, 1},
                {"\xf0\x90\x80", 0xfffd, 1},
                {"\xed\xa0\x80", 0xfffd, 1},
                {"\xf4\x90\x80\x80", 0xfffd, 1},
                {"\xf8\x88\x80\x80", 0xfffd, 1}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char *text = strdup(rows[i].text);
        uint32_t letter;
        ck_assert_uint_eq(tierce__utf8_letter(&letter, (unsigned char *)text), rows[i].length);
        ck_assert_uint_eq(letter, rows[i].letter);
        free(text);
    }
}
END_TEST

/* One sequence at a time. */
static bool is_utf8_slowly(const char *text, size_t bytes)
{
    size_t i = 0, n = 1;
    for (; i < bytes && n > 0; i += n)
        n = tierce__utf8_length((const uint8_t *)text + i, bytes - i);
    return n > 0;
}

/* The check reads words: sequences lie at each place in letters of each number. */
START_TEST(whole_texts_are_judged_as_their_sequences)
{
    static const char *const sequences[] = {"",     "\xc3\xa4", "\xe2\x82\xac", "\xf4\x8f\xbf\xbf",
                                            "\x80", "\xc3",     "\xe2\x82",     "\xf0\x90\x80",
                                            "\xff"};
    unsigned good = 0;
    for (size_t s = 0; s < sizeof(sequences) / sizeof(*sequences); s++) {
        size_t length = strlen(sequences[s]);
        for (size_t bytes = length; bytes < 28; bytes++) {
            for (size_t at = 0; at + length <= bytes; at++) {
                char *text = malloc(bytes + 1); /* without a NUL */
                char *end = text + 1 + bytes;
                memset(text, 'a', bytes + 1);
                memcpy(end - bytes + at, sequences[s], length);
                bool wanted = is_utf8_slowly(end - bytes, bytes);
                ck_assert_int_eq(tierce__is_utf8(end - bytes, bytes), wanted);
                ck_assert_int_eq(wanted, s < 4);
                good += wanted;
                free(text);
            }
        }
    }
    ck_assert_uint_gt(good, 1000);
}
END_TEST

START_TEST(text_that_was_cut_is_mended)
{
    static const char *const rows[][2] = {{"", ""},
                                          {"a\xc3\xa9", "a\xc3\xa9"},
                                          {"a\xc3", "a?"},
                                          {"a\xe2\x82 has", "a?? has"},
                                          {"\xff\xe2\x82\xac", "?\xe2\x82\xac"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char *text = strdup(rows[i][0]);
        tierce__utf8_mend(text);
        ck_assert_str_eq(text, rows[i][1]);
        free(text);
    }
}
END_TEST

CHECK_MAIN("utf8",
           .tests = {plain_text_is_judged_by_code_point, letters_are_decoded_up_to_the_nul,
                     text_that_was_cut_is_mended, whole_texts_are_judged_as_their_sequences})
