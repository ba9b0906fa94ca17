/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/text/url.h"
#include "check_main.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct tierce__url url;
static char why[TIERCE__URL_WHY_BYTES];

static void parse(const char *text)
{
    int rc = tierce__url_parse(&url, text, why);
    ck_assert_msg(rc == 0, "%s: %s", text, why);
}

START_TEST(all_pieces)
{
    parse("mooncake+x://us%65r:p%40ss%3a@h.one:1,[fe80::1%25eth]:2,h-3/a%20b/c?x=1%262&long=");
    ck_assert_str_eq(url.scheme, "mooncake+x");
    ck_assert_str_eq(url.user, "user");
    ck_assert_str_eq(url.password, "p@ss:");
    ck_assert_uint_eq(url.host_count, 3);
    ck_assert_str_eq(url.hosts[0].name, "h.one");
    ck_assert_uint_eq(url.hosts[0].port, 1);
    ck_assert_str_eq(url.hosts[1].name, "fe80::1%25eth");
    ck_assert_uint_eq(url.hosts[1].port, 2);
    ck_assert_str_eq(url.hosts[2].name, "h-3");
    ck_assert_uint_eq(url.hosts[2].port, 0);
    ck_assert_str_eq(url.path, "/a b/c");
    ck_assert_uint_eq(url.param_count, 2);
    ck_assert_str_eq(tierce__url_param(&url, "x"), "1&2");
    ck_assert_str_eq(tierce__url_param(&url, "long"), "");
    ck_assert_ptr_null(tierce__url_param(&url, "y"));
    tierce__url_clear(&url);
    tierce__url_clear(&url);
}
END_TEST

START_TEST(few_pieces)
{
    parse("file:///a");
    ck_assert_uint_eq(url.host_count, 0);
    ck_assert_ptr_null(url.user);
    ck_assert_str_eq(url.path, "/a");
    tierce__url_clear(&url);
    parse("redis://");
    ck_assert_uint_eq(url.host_count, 0);
    ck_assert_str_eq(url.path, "");
    tierce__url_clear(&url);
    parse("redis+unix://u:p@/s?db=1");
    ck_assert_str_eq(url.user, "u");
    ck_assert_uint_eq(url.host_count, 0);
    ck_assert_str_eq(url.path, "/s");
    tierce__url_clear(&url);
    parse("redis://only@:7?a=b&");
    ck_assert_str_eq(url.user, "only");
    ck_assert_ptr_null(url.password);
    ck_assert_str_eq(url.hosts[0].name, "");
    ck_assert_uint_eq(url.hosts[0].port, 7);
    tierce__url_clear(&url);
    parse("redis://a@b@host"); /* the last '@' ends the user */
    ck_assert_str_eq(url.user, "a@b");
    tierce__url_clear(&url);
}
END_TEST

static const char *const refused[] = {
    "",
    "redis",
    "redis:/x",
    "://x",
    "Redis://x",
    "re dis://x",
    "redis://h:0",
    "redis://h:65536",
    "redis://h:x",
    "redis://h:",
    "redis://[::1",
    "redis://[::1]x",
    "redis://a,,b",
    "redis://a b",
    "redis://%2fx",
    "redis://a%b",
    "redis://a\nb",
    "redis://h/%zz",
    "redis://h/%4",
    "redis://h/%00",
    "redis://h/%0a",
    "redis://%0a:b@h",
    "redis://h?x",
    "redis://h?=1",
    "redis://h?a=%",
    "redis://h?a=b@c",
    "redis://h/a\tb",
    "redis://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
};

START_TEST(wrong_ones_are_refused)
{
    struct tierce__url untouched = {.scheme = "x"};
    why[0] = '\0';
    ck_assert_int_eq(tierce__url_parse(&untouched, refused[_i], why), TIERCE_E_CONFIG);
    ck_assert_str_eq(untouched.scheme, "x");
    ck_assert_int_eq(strncmp(why, "URL: ", 5), 0);
}
END_TEST

START_TEST(limits)
{
    char text[TIERCE__URL_BYTES_MAX + 2], *at;
    memset(text, 'a', sizeof(text));
    memcpy(text, "file:///", 8);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(tierce__url_parse(&url, text, why), TIERCE_E_CONFIG);
    text[sizeof(text) - 2] = '\0';
    parse(text);
    tierce__url_clear(&url);
    at = text + sprintf(text, "file:///a?");
    for (int i = 0; i < 32; i++)
        at += sprintf(at, "n%d=1&", i);
    parse(text);
    tierce__url_clear(&url);
    strcpy(at, "z=1");
    ck_assert_int_eq(tierce__url_parse(&url, text, why), TIERCE_E_CONFIG);
}
END_TEST

START_TEST(parameters_are_checked)
{
    static const char *const known[] = {"ttl", "connections", "prefix", NULL};
    parse("redis://h?conections=3");
    ck_assert_int_eq(tierce__url_check_params(&url, known, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, "URL: unknown parameter \"conections\" (\"connections\"?); there are "
                          "ttl, connections, prefix");
    tierce__url_clear(&url);
    parse("redis://h?ttl=3&ttl=3");
    ck_assert_int_eq(tierce__url_check_params(&url, known, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "\"ttl\" is given twice"));
    tierce__url_clear(&url);
    parse("redis://h?ttl=3&prefix=%3F");
    ck_assert_int_eq(tierce__url_check_params(&url, known, why), 0);
    tierce__url_clear(&url);
}
END_TEST

START_TEST(numbers)
{
    const struct tierce__url_number count = {"n", TIERCE__URL_COUNT, 2, 150};
    const struct tierce__url_number size = {"s", TIERCE__URL_SIZE, 1 << 20, 1 << 30};
    const struct tierce__url_number time = {"t", TIERCE__URL_MILLISECONDS, 100, 3600000};
    const struct tierce__url_number none = {"none", TIERCE__URL_COUNT, 1, 2};
    uint64_t value = 7;
    parse("x://h?n=150&s=2MiB&t=2s");
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &none, why), 0);
    ck_assert_uint_eq(value, 7);
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &count, why), 0);
    ck_assert_uint_eq(value, 150);
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &size, why), 0);
    ck_assert_uint_eq(value, 2 << 20);
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &time, why), 0);
    ck_assert_uint_eq(value, 2000);
    tierce__url_clear(&url);
    parse("x://h?n=1&s=2&t=2h");
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &count, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, "URL: parameter n is \"1\"; accepted are 2 to 150");
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &size, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, "URL: parameter s is \"2\"; accepted are 1MiB to 1GiB");
    ck_assert_int_eq(tierce__url_param_number(&url, &value, &time, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, "URL: parameter t is \"2h\"; accepted are 100ms to 1h");
    ck_assert_uint_eq(value, 2000);
    tierce__url_clear(&url);
}
END_TEST

START_TEST(flags)
{
    bool value = true;
    parse("x://h?a=off&b=yes&c=perhaps");
    ck_assert_int_eq(tierce__url_param_flag(&url, &value, "none", why), 0);
    ck_assert(value);
    ck_assert_int_eq(tierce__url_param_flag(&url, &value, "a", why), 0);
    ck_assert(!value);
    ck_assert_int_eq(tierce__url_param_flag(&url, &value, "b", why), 0);
    ck_assert(value);
    ck_assert_int_eq(tierce__url_param_flag(&url, &value, "c", why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, "URL: parameter c is \"perhaps\"; accepted are true and false");
    ck_assert(value);
    tierce__url_clear(&url);
}
END_TEST

static const char *const shown[][2] = {
    {"redis://h:1/0?ttl=1h", "redis://h:1/0?ttl=1h"},
    {"redis://user:hidden@h:1/0", "redis://h:1/0"},
    {"redis://hidden@h", "redis://h"},
    {"redis://a:hid@den@h", "redis://h"},
    {"redis://a:hid/den@h/0", "redis://h/0"}, /* not percent-encoded: rejected, not shown */
    {"redis://a:hid?den@h/0", "redis://h/0"},
    {"redis://h?password=hidden&b=1", "redis://h?password=***&b=1"},
    {"s3://b?b=1&Secret_Access_Key=hidden", "s3://b?b=1&Secret_Access_Key=***"},
    {"s3://b?session_token=hidden&c", "s3://b?session_token=***&c"},
    {"s3://b?p%61ssword=hidden", "s3://b?p%61ssword=***"},
    {"file:///a@b/c", "file:///a@b/c"},
    {"a:hidden@b", "b"},
    {"redis://h\n\x80", "redis://h??"},
    {"tierce://hidden@h:7/?tls=true", "tierce://h:7/?tls=true"},
    {"", ""},
};

START_TEST(no_credentials_are_shown)
{
    char text[256];
    memset(text, 'x', sizeof(text));
    tierce__url_show(text, sizeof(text), shown[_i][0]);
    ck_assert_str_eq(text, shown[_i][1]);
    memset(text, 'x', sizeof(text));
    tierce__url_show(text, 9, shown[_i][0]); /* cut */
    ck_assert_uint_le(strlen(text), 8);
    ck_assert_int_eq(strncmp(text, shown[_i][1], strlen(text)), 0);
    tierce__url_show(text, 1, shown[_i][0]);
    ck_assert_str_eq(text, "");
}
END_TEST

/* Also where what is shown is longer than what was hidden. */
START_TEST(all_urls_of_a_text_are_shown)
{
    static const char *const texts[][2] = {
        {"", ""},
        {"a@b  /ä\x01c", "a@b  /ä\x01c"},
        {"file:///ä", "file:///ä"},
        {" redis://u:hidden@h\tfile:///a@b  tierce://hidden@h ",
         " redis://h\tfile:///a@b  tierce://h "},
        {"x://?key=&key=&token=", "x://?key=***&key=***&token=***"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        char *text = tierce__url_show_all(texts[i][0]);
        ck_assert_str_eq(text, texts[i][1]);
        tierce__free(text);
    }
}
END_TEST

START_TEST(a_store_has_a_name)
{
    char text[256];
    tierce__url_store_name(text, sizeof(text), "redis://u:hidden@h:1/0?ttl=1h");
    ck_assert_str_eq(text, "redis://h:1/0");
}
END_TEST

CHECK_MAIN("url",
           .tests = {all_pieces, few_pieces, limits, parameters_are_checked, numbers, flags,
                     all_urls_of_a_text_are_shown, a_store_has_a_name},
           .loops = {{wrong_ones_are_refused, 0, sizeof(refused) / sizeof(*refused)},
                     {no_credentials_are_shown, 0, sizeof(shown) / sizeof(*shown)}})
