/* SPDX-License-Identifier: Apache-2.0 */
/* The messages are recorded instead of printed. */
#include "check_main.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/options.h"

static char message[512];

int tierce__cli_usage(const char *command, const char *format, ...)
{
    va_list ap;
    int at = snprintf(message, sizeof(message), "%s: ", command);
    va_start(ap, format);
    vsnprintf(message + at, sizeof(message) - (size_t)at, format, ap);
    va_end(ap);
    return TIERCE__CLI_USAGE;
}

enum mode { MODE_FAST = 1, MODE_SLOW, MODE_NONE };

struct values {
    bool flag;
    const char *text, *colour;
    enum mode mode;
    uint64_t count, size, wait_ms;
    uint32_t small;
    double share, number;
    char list[64];
};

static const char *colour_at(size_t index)
{
    static const char *const colours[] = {"red", "green", NULL};
    return colours[index];
}

static int add_part(void *field, const char *option, const char *text)
{
    char *list = field;
    if (strcmp(text, "bad") == 0)
        return tierce__cli_usage("test", "%s is bad", option);
    snprintf(list + strlen(list), 64 - strlen(list), "[%s]", text);
    return TIERCE__CLI_OK;
}

static const char *const modes[] = {"fast", "slow", "none", NULL};

#define FIELD(member) TIERCE__OPTION_FIELD(struct values, member)
static const struct tierce__option options[] = {
    {"--flag", TIERCE__OPTION_FLAG, FIELD(flag)},
    {"--text", TIERCE__OPTION_TEXT, FIELD(text)},
    {"--colour", TIERCE__OPTION_TEXT, FIELD(colour), .names = colour_at},
    {"--mode", TIERCE__OPTION_CHOICE, FIELD(mode), .min = MODE_FAST, .choices = modes},
    {"--count", TIERCE__OPTION_COUNT, FIELD(count)},
    {"-n", TIERCE__OPTION_COUNT, FIELD(small), .min = 2, .max = 9},
    {"--size", TIERCE__OPTION_SIZE, FIELD(size), .min = 1, .wants = "a size like 1MiB"},
    {"--wait", TIERCE__OPTION_DURATION, FIELD(wait_ms), .max = 60000, .wants = "a time like 5s"},
    {"--share", TIERCE__OPTION_SHARE, FIELD(share)},
    {"--number", TIERCE__OPTION_NUMBER, FIELD(number), .min = DBL_MIN, .max = 10,
     .wants = "a number up to 10"},
    {"--list", TIERCE__OPTION_LIST, FIELD(list), .read = add_part},
    {"--once", TIERCE__OPTION_CALL, FIELD(list), .read = add_part},
    {"--verb", TIERCE__OPTION_FLAG, FIELD(flag), .verbs = 2},
    {NULL, .may_shorten = true},
};
#undef FIELD

enum { WORDS_MAX = 32 };

static const struct tierce__option full_options[] = {
    {"--text", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct values, text)},
    {NULL},
};

static struct values values;
static char *left[WORDS_MAX];
static int left_count;

/* Reads a line of words between spaces, as the verb 1. */
static int read_line(const char *line)
{
    static char text[1024];
    char *rest = NULL;
    snprintf(text, sizeof(text), "%s", line);
    memset(&values, 0, sizeof(values));
    message[0] = '\0';
    left_count = 0;
    left[left_count++] = "verb";
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        ck_assert_int_lt(left_count, WORDS_MAX - 1);
        left[left_count++] = word;
    }
    left[left_count] = NULL;
    return tierce__options_read("test", options, &values, 1, &left_count, left);
}

static void refused(const char *line, const char *why)
{
    ck_assert_int_eq(read_line(line), TIERCE__CLI_USAGE);
    ck_assert_str_eq(message, why);
}

START_TEST(test_every_kind)
{
    ck_assert_int_eq(
        read_line("--flag --text=a=b --colour green --mode slow --count 0 -n 9 "
                  "--size 2KiB --wait 5s --share 25% --number 0.5 --list a,,b --once c,d"),
        TIERCE__CLI_OK);
    ck_assert(values.flag);
    ck_assert_str_eq(values.text, "a=b");
    ck_assert_str_eq(values.colour, "green");
    ck_assert_int_eq(values.mode, MODE_SLOW);
    ck_assert_uint_eq(values.count, 0);
    ck_assert_uint_eq(values.small, 9);
    ck_assert_uint_eq(values.size, 2048);
    ck_assert_uint_eq(values.wait_ms, 5000);
    ck_assert_double_eq(values.share, 0.25);
    ck_assert_double_eq(values.number, 0.5);
    ck_assert_str_eq(values.list, "[a][][b][c,d]");
    ck_assert_int_eq(left_count, 1);
    ck_assert_int_eq(read_line("--count 18446744073709551615 -n5 --text= --text last --mode fast"),
                     TIERCE__CLI_OK);
    ck_assert_uint_eq(values.count, UINT64_MAX);
    ck_assert_uint_eq(values.small, 5);
    ck_assert_str_eq(values.text, "last");
    ck_assert_int_eq(values.mode, MODE_FAST);
}
END_TEST

START_TEST(test_words)
{
    ck_assert_int_eq(read_line("a --flag - -5 --text -x b -- --flag -- -n"), TIERCE__CLI_OK);
    const char *const words[] = {"verb", "a", "-", "-5", "b", "--flag", "--", "-n"};
    ck_assert_int_eq(left_count, 8);
    for (int i = 0; i < left_count; i++)
        ck_assert_str_eq(left[i], words[i]);
    ck_assert_ptr_null(left[left_count]);
    ck_assert_str_eq(values.text, "-x");
}
END_TEST

START_TEST(test_short_names)
{
    ck_assert_int_eq(read_line("--te a --fl"), TIERCE__CLI_OK);
    ck_assert_str_eq(values.text, "a");
    ck_assert(values.flag);
    refused("--co red", "test: there is no option \"--co\"; the nearest is \"--mode\"");
    left[1] = "--tex";
    left[2] = "a";
    left[3] = NULL;
    left_count = 3;
    ck_assert_int_eq(tierce__options_read("test", full_options, &values, 0, &left_count, left),
                     TIERCE__CLI_USAGE);
    ck_assert_str_eq(message, "test: there is no option \"--tex\"; the nearest is \"--text\"");
    refused("--=a", "test: there is no option \"--=a\"; the nearest is \"-n\"");
}
END_TEST

START_TEST(test_wrong_names)
{
    refused("--txet=a", "test: there is no option \"--txet=a\"; the nearest is \"--text\"");
    refused("--flag=1", "test: --flag takes no value: \"--flag=1\"");
    refused("--flag=", "test: --flag takes no value: \"--flag=\"");
    refused("--fl=yes", "test: --flag takes no value: \"--fl=yes\"");
    refused("-x", "test: there is no option \"-x\"; the nearest is \"-n\"");
    refused("--text", "test: --text requires a value");
    refused("-n", "test: -n requires a value");
    refused("--verb", "test: verb does not accept --verb");
}
END_TEST

START_TEST(test_wrong_values)
{
    refused("--colour blue", "test: --colour accepts red, green; not \"blue\"");
    refused("--mode fas", "test: --mode accepts fast, slow or none; not \"fas\"");
    refused("--count -1", "test: --count requires a number: \"-1\"");
    refused("--count 18446744073709551616",
            "test: --count requires a number: \"18446744073709551616\"");
    refused("-n 1", "test: -n accepts 2 to 9: \"1\"");
    refused("-n10", "test: -n accepts 2 to 9: \"10\"");
    refused("--size 0", "test: --size requires a size like 1MiB: \"0\"");
    refused("--wait 2min", "test: --wait requires a time like 5s: \"2min\"");
    refused("--share 0", "test: --share requires a share above 0, up to 1: \"0\"");
    refused("--share 101%", "test: --share requires a share above 0, up to 1: \"101%\"");
    refused("--number 0", "test: --number requires a number up to 10: \"0\"");
    refused("--number nan", "test: --number requires a number up to 10: \"nan\"");
    refused("--number 1x", "test: --number requires a number up to 10: \"1x\"");
    refused("--list a,bad,c", "test: --list is bad");
    ck_assert_str_eq(values.list, "[a]");
    char line[600] = "--list ";
    while (strlen(line) < strlen("--list ") + 512)
        strcat(line, "1234567890123456");
    refused(line,
            "test: \"123456789012345612345678901234561234567890123456123456789012...\" is too "
            "long for an element of a list");
}
END_TEST

CHECK_MAIN("options", .tests = {test_every_kind, test_words, test_short_names, test_wrong_names,
                                test_wrong_values})
