/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/config/config.h"
#include "base/config/config_parse.h"
#include "base/config/config_yaml.h"
#include "base/text/nearest.h"
#include "check_main.h"
#include "log_record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum row { SIZE, POLICY, SHARE, PATH, DIRECT, INTERVAL, HASH, DEPTH, TOP, LATER };

static const struct tierce__param table[] = {
    {"memory.size", TIERCE__PARAM_SIZE, "1GiB", 1048576, 17592186044416.0, NULL, "Cap."},
    {"memory.policy", TIERCE__PARAM_TEXT, "lru", 0, 0, NULL, "Which leaves first."},
    {"memory.pins", TIERCE__PARAM_SHARE, "50%", 0, 1, NULL, "A | in the text."},
    {"disk.path", TIERCE__PARAM_TEXT, "", 0, 0, NULL, "Folder."},
    {"disk.direct", TIERCE__PARAM_BOOL, "true", 0, 0, NULL, "O_DIRECT."},
    {"disk.flush_interval", TIERCE__PARAM_DURATION, "1s", 10, 3600000, NULL, "Flush."},
    {"chunk.hash", TIERCE__PARAM_CHOICE, "auto", 0, 0, "auto|sha256|xxh3-128", "Hash."},
    {"disk.depth", TIERCE__PARAM_COUNT, "16", 1, 1024, NULL, "Depth."},
    {"top", TIERCE__PARAM_COUNT, "0", 0, 0, NULL, "No section, no bounds."},
    {"memory.later", TIERCE__PARAM_SIZE, "0", 0, 4096, NULL, "Appended to an old section."},
};
#define ROWS (sizeof(table) / sizeof(*table))

static struct tierce__config *config;
static struct tierce__config_error error;
static char path[] = "/tmp/tierce_config_XXXXXX";

static void set_up(void)
{
    ck_assert_int_eq(tierce__config_create(&config, table, ROWS, "TIERCE"), 0);
    memcpy(path, "/tmp/tierce_config_XXXXXX", sizeof(path));
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    memset(&error, 0, sizeof(error));
}

static void tear_down(void)
{
    tierce__config_destroy(config);
    unlink(path);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int load_bytes(const void *bytes, size_t len)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, len, file), len);
    fclose(file);
    return tierce__config_load_file(config, path, &error);
}

static int load(const char *yaml)
{
    return load_bytes(yaml, strlen(yaml));
}

#define ASSERT_SAYS(needle)                                                                        \
    ck_assert_msg(strstr(error.text, needle) != NULL, "\"%s\" does not say \"%s\"", error.text,    \
                  needle)

START_TEST(sizes_are_read_strictly)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"4096B", 4096},
        {"512MiB", 512ull << 20},
        {"2 GiB", 2ull << 30},
        {" 2GiB ", 2ull << 30},
        {"1.5GiB", 3ull << 29},
        {"0.25KiB", 256},
        {"1.1B", 1},
        {"1GB", 1000000000},
        {"1.000000001GB", 1000000001},
        {"1kb", 1000},
        {"3TiB", 3ull << 40},
        {"2PiB", 2ull << 50},
        {"0.999999999PiB", 1125899905716724}, /* floor(2^50 * 0.999999999) */
        {"18446744073709551615", UINT64_MAX},
        {"16383.999999999PiB", 18446744073708425716ull}, /* floor, just below 2^64 */
    };
    static const char *const bad[] = {
        "",
        " ",
        "-1",
        "+1",
        "1e3",
        "0x10",
        "1.",
        ".5",
        "1.2.3",
        "1 2",
        "1GiB x",
        "GiB",
        "1G",
        "1k",
        "1Gi",
        "1GiBB",
        "16384PiB",
        "18446744073709551616",
        "99999999999999999999999",
        "1.0000000001GB",
        "1\t",
        "1\nGiB",
        "NaN",
        "inf",
        "1,5GiB",
        "18446744073709551615B1",
        "١",
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        uint64_t value = 7;
        ck_assert_msg(tierce__parse_size(&value, good[i].text), "\"%s\" refused", good[i].text);
        ck_assert_msg(value == good[i].bytes, "\"%s\" gave %llu", good[i].text,
                      (unsigned long long)value);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        uint64_t value = 7;
        ck_assert_msg(!tierce__parse_size(&value, bad[i]), "\"%s\" taken", bad[i]);
        ck_assert_uint_eq(value, 7);
    }
}
END_TEST

START_TEST(durations_counts_shares_and_bools_are_read_strictly)
{
    uint64_t n = 0;
    bool b;
    ck_assert(tierce__parse_duration(&n, "250") && n == 250);
    ck_assert(tierce__parse_duration(&n, "250ms") && n == 250);
    ck_assert(tierce__parse_duration(&n, "1.5s") && n == 1500);
    ck_assert(tierce__parse_duration(&n, "2 min") && n == 120000);
    ck_assert(tierce__parse_duration(&n, "1h") && n == 3600000);
    ck_assert(!tierce__parse_duration(&n, "1.5ms"));
    ck_assert(!tierce__parse_duration(&n, "0.0001s"));
    ck_assert(!tierce__parse_duration(&n, "5m"));
    ck_assert(!tierce__parse_duration(&n, "5us"));
    ck_assert(!tierce__parse_duration(&n, "5124095576030432h"));
    ck_assert(tierce__parse_count(&n, "007") && n == 7);
    ck_assert(!tierce__parse_count(&n, "1.0"));
    ck_assert(!tierce__parse_count(&n, "1k"));
    ck_assert(tierce__parse_share(&n, "50%") && n == TIERCE__SHARE_ONE / 2);
    ck_assert(tierce__parse_share(&n, "0.5") && n == TIERCE__SHARE_ONE / 2);
    ck_assert(tierce__parse_share(&n, "0.000000001") && n == 1);
    ck_assert(!tierce__parse_share(&n, "0.00000001%")); /* finer than a billionth */
    ck_assert(!tierce__parse_share(&n, "%"));
    ck_assert(tierce__parse_bool(&b, "On") && b);
    ck_assert(tierce__parse_bool(&b, "no") && !b);
    ck_assert(!tierce__parse_bool(&b, "2"));
    ck_assert(!tierce__parse_bool(&b, ""));
}
END_TEST

/* Each parser reads back the formatter's output; the seed of the numbers is printed. */
START_TEST(formats_round_trip)
{
    uint64_t seed = (uint64_t)time(NULL), x = seed | 1;
    printf("formats_round_trip seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 20000; i++) {
        char text[32];
        uint64_t back = 0;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t value = (x >> (x % 64)) << (i % 3 == 0 ? x % 40 : 0);
        tierce__format_size(text, sizeof(text), value);
        ck_assert(tierce__parse_size(&back, text) && back == value);
        tierce__format_duration(text, sizeof(text), value);
        ck_assert(tierce__parse_duration(&back, text) && back == value);
        value %= 2 * TIERCE__SHARE_ONE;
        tierce__format_share(text, sizeof(text), value);
        ck_assert(tierce__parse_share(&back, text) && back == value);
    }
}
END_TEST

START_TEST(defaults_and_set)
{
    ck_assert_uint_eq(tierce__config_number(config, SIZE), 1ull << 30);
    ck_assert(tierce__config_share(config, SHARE) == 0.5);
    ck_assert(tierce__config_bool(config, DIRECT));
    ck_assert_str_eq(tierce__config_text(config, HASH), "auto");
    ck_assert_str_eq(tierce__config_canonical(config, INTERVAL), "1s");
    ck_assert_str_eq(tierce__config_source(config, SIZE), "default");

    ck_assert_int_eq(tierce__config_set(config, "memory.size", "1.5 GiB", "--memory.size", &error),
                     0);
    ck_assert_uint_eq(tierce__config_number(config, SIZE), 3ull << 29);
    ck_assert_str_eq(tierce__config_canonical(config, SIZE), "1536MiB");
    ck_assert_str_eq(tierce__config_source(config, SIZE), "--memory.size");
    ck_assert_int_eq(tierce__config_set(config, "memory.pins", "12.5%", "flag", &error), 0);
    ck_assert_str_eq(tierce__config_canonical(config, SHARE), "0.125");
    ck_assert_uint_eq(tierce__config_find(config, "disk.depth"), DEPTH);
    ck_assert_uint_eq(tierce__config_find(config, "disk.dept"), TIERCE__CONFIG_NONE);
}
END_TEST

/* A rejected value leaves the old one with its origin, and the message states the accepted
 * values. */
START_TEST(refused_values_change_nothing)
{
    static const struct {
        const char *name, *value, *says;
    } bad[] = {
        {"memory.size", "12Q", "512MiB"},
        {"memory.size", "1MB", "accepted are values from 1MiB to 16TiB"},
        {"memory.size", "17TiB", "accepted are values from 1MiB to 16TiB"},
        {"memory.pins", "101%", "accepted are values from 0 to 1; 15% is 0.15"},
        {"memory.pins", "15", "memory.pins cannot be 15; accepted are values from 0 to 1; 15% is"},
        {"memory.pins", "-0.1", "0.5 or 50%"},
        {"disk.direct", "maybe", "true or false"},
        {"disk.flush_interval", "9ms", "accepted are values from 10ms to 1h"},
        {"disk.depth", "0", "accepted are values from 1 to 1024"},
        {"chunk.hash", "sha", "auto|sha256|xxh3-128"},
        {"chunk.hash", "", "auto|sha256|xxh3-128"},
        {"chunk.hash", "sha256|xxh3-128", "auto|sha256|xxh3-128"},
        {"disk.path", "a\nb", "a?b"},
        {"disk.path", "\xff", "UTF-8"},
        {"disk.path", "redis://u:sesame\xff@h", "cannot be \"redis://h\""},
        {"memory.sise", "1GiB", "nearest name is \"memory.size\""},
        {"disk.dierct", "1", "nearest name is \"disk.direct\""},
        {"", "1", "nearest name is"},
        {"memory", "1GiB",
         "test: \"memory\" is a section; a parameter of it is named with a dot, such as \"memory."},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        int rc = tierce__config_set(config, bad[i].name, bad[i].value, "test", &error);
        ck_assert_int_eq(rc, TIERCE_E_CONFIG);
        ASSERT_SAYS(bad[i].says);
        ASSERT_SAYS("test: ");
    }
    char longer[6000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ck_assert_int_eq(tierce__config_set(config, "disk.path", longer, "test", &error),
                     TIERCE_E_CONFIG);
    ck_assert_int_eq(tierce__config_set(config, longer, longer, longer, &error), TIERCE_E_CONFIG);
    for (size_t row = 0; row < ROWS; row++)
        ck_assert_str_eq(tierce__config_source(config, row), "default");
}
END_TEST

START_TEST(a_file_sets_nested_and_dotted_names)
{
    ck_assert_int_eq(load("# a comment\n"
                          "memory:\n"
                          "  size: 8 GiB   # why not\n"
                          "  pins: '25%'\n"
                          "disk.path: \"/kv/ä b#c\"\n"
                          "disk: {depth: 4, direct: off}\n"
                          "top: 12\n"),
                     0);
    ck_assert_uint_eq(tierce__config_number(config, SIZE), 8ull << 30);
    ck_assert(tierce__config_share(config, SHARE) == 0.25);
    ck_assert_str_eq(tierce__config_text(config, PATH), "/kv/ä b#c");
    ck_assert_uint_eq(tierce__config_number(config, DEPTH), 4);
    ck_assert(!tierce__config_bool(config, DIRECT));
    ck_assert_uint_eq(tierce__config_number(config, TOP), 12);
    char want[64];
    snprintf(want, sizeof(want), "file %s:3", path);
    ck_assert_str_eq(tierce__config_source(config, SIZE), want);
    ck_assert_int_eq(load(""), 0);
    ck_assert_int_eq(load("# nothing\n"), 0);
    ck_assert_int_eq(load("disk: {}\n"), 0);
    ck_assert_int_eq(load("disk.path: \"\"\n"), 0);
    ck_assert_str_eq(tierce__config_text(config, PATH), "");
}
END_TEST

START_TEST(hostile_files_are_refused_with_the_place)
{
    static const struct {
        const char *yaml, *says;
    } bad[] = {
        {"memory:\n  sise: 1GiB\n", ":2: there is no parameter \"memory.sise\""},
        {"memory:\n  size: 1GiB\n  sise: 1\n", ":3: "},
        {"memori:\n  size: 1GiB\n", "\"memori.size\"; the nearest name is \"memory.size\""},
        {"memori: 1\n", "\"memori\"; the nearest"},
        {"memory: 1GiB\n", ":1: \"memory\" is a section"},
        {"memory: [size]\n", "is a section"},
        {"memory:\n  size: {a: 1}\n", "has a mapping for a value"},
        {"memory:\n  size: [1]\n", "has a list for a value"},
        {"memory:\n  size:\n", "has nothing for a value"},
        {"memory:\n  size: 1Q\n", ":2: memory.size cannot be \"1Q\""},
        {"memory.size: 1GiB\nmemory: {size: 2GiB}\n", ":2: memory.size is set twice"},
        {"memory: {size: 1GiB}\nmemory: {pins: 1}\n",
         ":2: \"memory\" is set twice, first in line 1"},
        {"memory.size: 1GiB\nmemory.size: 2GiB\n", ":2: memory.size is set twice"},
        {"top: &x 1\ndisk.depth: *x\n", "an alias (aliases are not supported)"},
        {"memory: &m {size: 1GiB}\n<<: *m\n", "there is no parameter"},
        {"memory: *nowhere\n", "is a section"},
        {"? [a, b]\n: 1\n", "not the plain name"},
        {"? {a: b}\n: 1\n", "not the plain name"},
        {"*x : 1\n", ""},
        {"- memory.size\n", "must be a mapping"},
        {"just text\n", "must be a mapping"},
        {"memory:\n  size: [1\n", "is not valid YAML"},
        {"\tmemory: 1\n", ":1:1: is not valid YAML"},
        {"top: 1\n---\ntop: 2\n", "more than one YAML document"},
        {"top: 1\n...\nx: [\n", ""},
        {"disk.path: \"a\\0b\"\n", "holds a NUL"},
        {"disk.path: \"a\\nb\"\n", "without control characters"},
        {"disk.path: |\n  a\n  b\n", "without control characters"},
        {"\"memory\\0x\": 1\n", "not the plain name"},
        {"top: \x01\n", ":1: a control character"},
        {"top: 1\n\n# \xff\n", ":3: a control character or bytes that are not UTF-8"},
        {"%YAML 9.9\n---\ntop: 1\n", ":1: a YAML directive"},
        {"top: !!binary 1\n  - x\n", ""},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        error.text[0] = '\0';
        ck_assert_msg(load(bad[i].yaml) == TIERCE_E_CONFIG, "taken: %s", bad[i].yaml);
        ASSERT_SAYS(path);
        ASSERT_SAYS(bad[i].says);
    }
    ck_assert_int_eq(load_bytes("top: 1\0\n", 8), TIERCE_E_CONFIG);
    ASSERT_SAYS(":1: a NUL byte");
}
END_TEST

START_TEST(big_and_deep_files_are_refused_quickly)
{
    size_t size = 1 << 20;
    char *big = malloc(size);
    ck_assert_ptr_nonnull(big);
    static const char fills[] = "[{- a\n#&*|>\"'!%:";
    for (const char *fill = fills; *fill != '\0'; fill++) {
        memset(big, *fill, size);
        clock_t start = clock();
        load_bytes(big, TIERCE__YAML_BYTES_MAX);
        ck_assert_msg((double)(clock() - start) / CLOCKS_PER_SEC < 10, "'%c' takes long", *fill);
        ck_assert_int_eq(load_bytes(big, size), TIERCE_E_CONFIG);
        ASSERT_SAYS("is larger than 256 KiB");
    }
    /* Many keys, and an alias bomb that would be 9^20 values if it were resolved. */
    size_t n = 0;
    for (int i = 0; n < TIERCE__YAML_BYTES_MAX - 64; i++)
        n += (size_t)sprintf(big + n, "k%d: 1\n", i);
    clock_t start = clock();
    ck_assert_int_eq(load_bytes(big, n), TIERCE_E_CONFIG);
    ck_assert((double)(clock() - start) / CLOCKS_PER_SEC < 10);
    n = (size_t)sprintf(big, "a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (int i = 1; i < 20; i++)
        n += (size_t)sprintf(big + n, "%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", 'a' + i,
                             'a' + i, 'a' + i - 1, 'a' + i - 1, 'a' + i - 1, 'a' + i - 1,
                             'a' + i - 1, 'a' + i - 1, 'a' + i - 1, 'a' + i - 1, 'a' + i - 1);
    ck_assert_int_eq(load_bytes(big, n), TIERCE_E_CONFIG);
    free(big);
}
END_TEST

START_TEST(files_that_are_none_are_refused)
{
    ck_assert_int_eq(tierce__config_load_file(config, "/nowhere/x.yaml", &error), -ENOENT);
    ASSERT_SAYS("/nowhere/x.yaml: cannot be read: No such file");
    ck_assert_int_eq(tierce__config_load_file(config, "/tmp", &error), -EISDIR);
    ASSERT_SAYS("/tmp: is not a file");
    char fifo[sizeof(path) + 8];
    snprintf(fifo, sizeof(fifo), "%s.fifo", path);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(tierce__config_load_file(config, fifo, &error), -EINVAL);
    unlink(fifo);
    ck_assert_int_eq(tierce__config_load_file(config, "/dev/zero", &error), -EINVAL);
}
END_TEST

START_TEST(the_environment_overrides)
{
    char *const env[] = {"HOME=/root",   "TIERCE_DISK_FLUSH_INTERVAL=2s", "TIERCEX=1", "TIERCE=1",
                         "TIERCE_TOP=3", "TIERCE_TEST_DATA=/x",           "NOEQUALS",  NULL};
    const char *const ignore[] = {"TIERCE_OTHER", "TIERCE_TEST_*", NULL};
    ck_assert_int_eq(tierce__config_load_env(config, env, ignore, &error), 0);
    ck_assert_uint_eq(tierce__config_number(config, INTERVAL), 2000);
    ck_assert_str_eq(tierce__config_source(config, INTERVAL),
                     "environment TIERCE_DISK_FLUSH_INTERVAL");
    ck_assert_int_eq(tierce__config_load_env(config, env, NULL, &error), TIERCE_E_CONFIG);
    ASSERT_SAYS("TIERCE_TEST_DATA");
    char *const wrong[] = {"TIERCE_MEMORY_SISE=1GiB", NULL};
    ck_assert_int_eq(tierce__config_load_env(config, wrong, NULL, &error), TIERCE_E_CONFIG);
    ASSERT_SAYS("TIERCE_MEMORY_SISE names no parameter; the nearest name is TIERCE_MEMORY_SIZE");
    char *const value[] = {"TIERCE_DISK_DEPTH=many", NULL};
    ck_assert_int_eq(tierce__config_load_env(config, value, NULL, &error), TIERCE_E_CONFIG);
    ASSERT_SAYS("environment TIERCE_DISK_DEPTH: disk.depth cannot be \"many\"");
}
END_TEST

static char *printed(void)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    tierce__config_print(config, out);
    fclose(out);
    return text;
}

/* Loads what was printed into a fresh configuration and compares every value. */
static void assert_print_round_trips(void)
{
    char *text = printed();
    struct tierce__config *first = config;
    ck_assert_int_eq(tierce__config_create(&config, table, ROWS, "TIERCE"), 0);
    int rc = load(text);
    ck_assert_msg(rc == 0, "%s\n%s", error.text, text);
    for (size_t row = 0; row < ROWS; row++)
        ck_assert_str_eq(tierce__config_canonical(config, row),
                         tierce__config_canonical(first, row));
    tierce__config_destroy(config);
    config = first;
    free(text);
}

START_TEST(what_is_printed_is_read_back)
{
    static const char *const texts[] = {
        "",     "~",   "null",        "a: b",   "#x",     " a ",    "\"q\"",      "it's",     "\\",
        "a\\n", "ä€😀", "[x",          "{",      "- a",    "&a",     "*a",         "!t",       "%d",
        "@x",   "`x`", "true",        "1e3",    "...",    "---",    "a #b",       "?",        "|",
        ">",    "a:",  "/kv/x-1_y.z", "\ufeff", "\uffff", "\ue000", "\U0010ffff", "a\u00a0b",
    };
    assert_print_round_trips();
    ck_assert_int_eq(tierce__config_set(config, "memory.size", "123456789", "x\ny: 1", &error), 0);
    ck_assert_int_eq(tierce__config_set(config, "memory.pins", "33.3333333%", "x", &error), 0);
    ck_assert_int_eq(tierce__config_set(config, "disk.flush_interval", "1001", "x", &error), 0);
    ck_assert_int_eq(tierce__config_set(config, "disk.direct", "off", "x", &error), 0);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        ck_assert_int_eq(tierce__config_set(config, "disk.path", texts[i], "x", &error), 0);
        assert_print_round_trips();
    }
    char *text = printed();
    ck_assert_ptr_nonnull(strstr(text, "  later: 0"));
    ck_assert_ptr_eq(strstr(strstr(text, "memory:") + 1, "memory:"), NULL);
    free(text);
}
END_TEST

START_TEST(nothing_secret_of_a_url_is_printed)
{
    static const char urls[] = "redis://u:hidden@h/0?sentinel_password=hidden  tierce://hidden@h";
    ck_assert_int_eq(tierce__config_set(config, "disk.path", urls, "x", &error), 0);
    char *text = printed();
    ck_assert_ptr_null(strstr(text, "hidden"));
    ck_assert_ptr_nonnull(strstr(text, "\"redis://h/0?sentinel_password=***  tierce://h\""));
    free(text);
}
END_TEST

START_TEST(markdown_lists_every_row)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    tierce__config_print_markdown(table, ROWS, out);
    fclose(out);
    ck_assert_ptr_nonnull(
        strstr(text, "| `memory.size` | size | `1GiB` | 1MiB .. 16TiB | Cap. |\n"));
    ck_assert_ptr_nonnull(strstr(text, "| `memory.pins` | share | `50%` | 0 .. 1 | A \\| in"));
    ck_assert_ptr_nonnull(strstr(text, "| `auto`, `sha256`, `xxh3-128` |"));
    for (size_t row = 0; row < ROWS; row++)
        ck_assert_ptr_nonnull(strstr(text, table[row].name));
    free(text);
}
END_TEST

START_TEST(distances)
{
    ck_assert_uint_eq(tierce__edit_distance("", ""), 0);
    ck_assert_uint_eq(tierce__edit_distance("abc", ""), 3);
    ck_assert_uint_eq(tierce__edit_distance("", "abc"), 3);
    ck_assert_uint_eq(tierce__edit_distance("size", "SISE"), 1);
    ck_assert_uint_eq(tierce__edit_distance("dierct", "direct"), 1);
    ck_assert_uint_eq(tierce__edit_distance("kitten", "sitting"), 3);
    char longer[1000];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ck_assert_uint_eq(tierce__edit_distance(longer, "aa"), 62);
}
END_TEST

START_TEST(messages_are_cut_at_whole_characters)
{
    char out[8];
    tierce__text_for_message(out, sizeof(out), "abcdefg");
    ck_assert_str_eq(out, "abcdefg");
    tierce__text_for_message(out, sizeof(out), "abcdefgh");
    ck_assert_str_eq(out, "abcd...");
    tierce__text_for_message(out, sizeof(out), "abcääää");
    ck_assert_str_eq(out, "abc...");
    tierce__text_for_message(out, sizeof(out), "\x1b\xff\n");
    ck_assert_str_eq(out, "???");
    ck_assert(!tierce__text_is_clean("\xc0\x80", 2));     /* overlong NUL */
    ck_assert(!tierce__text_is_clean("\xed\xa0\x80", 3)); /* a surrogate */
    ck_assert(!tierce__text_is_clean("\xf4\x90\x80\x80", 4));
    ck_assert(!tierce__text_is_clean("\xe2\x82", 2));
    ck_assert(!tierce__text_is_clean("\xe2\x80\xa8", 3)); /* a line end to some */
    ck_assert(!tierce__text_is_clean("\xc2\x85", 2));
    ck_assert(tierce__text_is_clean("€", 3));
}
END_TEST

START_TEST(a_file_with_passwords_that_others_may_read_is_told)
{
    static const struct {
        const char *text;
        mode_t mode;
        bool told;
    } cases[] = {
        {"disk: {path: 'redis://me:hunter2@host:6379'}\n", 0600, false},
        {"disk: {path: 'redis://me:hunter2@host:6379'}\n", 0640, true},
        {"disk: {path: 'redis://me:hunter2@host:6379'}\n", 0604, true},
        {"disk: {path: 'redis://host:6379?db=1'}\n", 0644, false},
        {"disk: {path: /var/lib/store}\n", 0644, false},
    };
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(chmod(path, cases[_i].mode), 0);
    ck_assert_int_eq(load_bytes(cases[_i].text, strlen(cases[_i].text)), 0);
    ck_assert_uint_eq(recorded_with("config_file_readable", path), cases[_i].told);
    ck_assert_ptr_null(strstr(recorded_text(), "hunter2"));
}
END_TEST

/* Every allocation fails once: the call reports it, nothing leaks, the values stay whole. */
START_TEST(every_allocation_may_fail)
{
    for (uint64_t nth = 1;; nth++) {
        struct tierce__config *made = NULL;
        tierce__alloc_fail_nth(nth);
        int rc = tierce__config_create(&made, table, ROWS, "TIERCE");
        if (rc == 0)
            rc = tierce__config_set(made, "memory.size", "2GiB", "x", &error);
        if (rc == 0)
            rc = load("disk: {depth: 4, path: /x}\n") == 0
                     ? tierce__config_load_file(made, path, &error)
                     : -ENOMEM;
        uint64_t used = tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        tierce__config_destroy(made);
        if (rc == 0 && used < nth)
            break;
    }
}
END_TEST

CHECK_MAIN("config", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {sizes_are_read_strictly, durations_counts_shares_and_bools_are_read_strictly,
                     formats_round_trip, defaults_and_set, refused_values_change_nothing,
                     a_file_sets_nested_and_dotted_names, hostile_files_are_refused_with_the_place,
                     big_and_deep_files_are_refused_quickly, files_that_are_none_are_refused,
                     the_environment_overrides, what_is_printed_is_read_back,
                     nothing_secret_of_a_url_is_printed, markdown_lists_every_row, distances,
                     messages_are_cut_at_whole_characters, every_allocation_may_fail},
           .loops = {{a_file_with_passwords_that_others_may_read_is_told, 0, 5}})
