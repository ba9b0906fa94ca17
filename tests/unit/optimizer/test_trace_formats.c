/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "trace_dump.h"

/* Each format's reading of small traces, detected and by name. */

#define check_trace(input, name, wanted)                                                           \
    do {                                                                                           \
        ck_assert_str_eq(trace_dump(input, NULL)->text, wanted);                                   \
        ck_assert_str_eq(trace_dump(input, NULL)->report.format, name);                            \
        ck_assert_str_eq(trace_dump(input, name)->text, wanted);                                   \
    } while (0)

/* Bad lines among one good one, named by their format. */
#define check_bad(line, format, wanted) ck_assert_str_eq(trace_dump(line, format)->text, wanted)

START_TEST(mooncake)
{
    check_trace("{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, "
                "\"hash_ids\": [0, 1, 2]}\n"
                "{\"hash_ids\":[9223372036854775808,18446744073709551615,-1],\"timestamp\":27482,"
                "\"more\":{\"a\":[1,\"]\"]}}\r\n"
                "\n"
                "{\"timestamp\": 27482.5, \"hash_ids\": [ ] , \"output_length\": null}\n",
                "mooncake",
                "turn 0 tokens=6758+500 [0 1 2]\n"
                "turn 27482000 [9223372036854775808 18446744073709551615 18446744073709551615]\n"
                "turn 27482500 []\n");
    check_trace("\xef\xbb\xbf{\"timestamp\": 1, \"\\u0068ash_ids\": [7], \"session_id\": 4}",
                "mooncake", "turn 1000 session=5 [7]\n");
}
END_TEST

START_TEST(mooncake_bad_lines)
{
    const char *good = "{\"timestamp\": 5, \"hash_ids\": [1]}\n";
    static const struct {
        const char *line, *reason;
    } bad[] = {
        {"{\"timestamp\": 5, \"hash_ids\": [1]", "the line ends too early"},
        {"{\"timestamp\": 5, \"hash_ids\": [1}", "a comma is missing"},
        {"{\"timestamp\": 5, \"hash_ids\": [1,]}", "\"hash_ids\": is not a number"},
        {"{\"timestamp\": 5, \"hash_ids\": [1, 2.0]}", "\"hash_ids\": is not an integer"},
        {"{\"timestamp\": 5, \"hash_ids\": [01]}", "\"hash_ids\": a number begins with 0"},
        {"{\"timestamp\": 5, \"hash_ids\": [1, 01]}", "\"hash_ids\": a number begins with 0"},
        {"{\"timestamp\": 5, \"hash_ids\": [18446744073709551616]}", "does not fit 64 bits"},
        {"{\"timestamp\": 5, \"hash_ids\": [1, 18446744073709551616]}", "does not fit 64 bits"},
        {"{\"timestamp\": 5, \"hash_ids\": [-9223372036854775809]}", "does not fit 64 bits"},
        {"{\"timestamp\": 5, \"hash_ids\": [1e3]}", "\"hash_ids\": is not an integer"},
        {"{\"timestamp\": 5, \"hash_ids\": \"1\"}", "\"hash_ids\": is not an array"},
        {"{\"timestamp\": 5}", "\"hash_ids\" is missing"},
        {"{\"timestamp\": null, \"hash_ids\": [1]}", "\"timestamp\" is missing"},
        {"{\"timestamp\": NaN, \"hash_ids\": [1]}", "\"timestamp\": is not a number"},
        {"{\"timestamp\": -1, \"hash_ids\": [1]}", "\"timestamp\": is negative"},
        {"{\"timestamp\": 1e300, \"hash_ids\": [1]}", "\"timestamp\": is too large a number"},
        {"{\"timestamp\": 5, \"timestamp\": 5, \"hash_ids\": [1]}", "\"timestamp\": occurs twice"},
        {"{\"timestamp\": 5, \"hash_ids\": [1]} 7", "there is text after the end"},
        {"{\"timestamp\": 5, \"hash_ids\": [1], \"x\": tru}", "is not true or false"},
        {"{\"timestamp\": 5, \"hash_ids\": [1], \"x\": \"\\q\"}", "an invalid escape"},
        {"[1]", "is not an object"},
        {"7", "is not an object"},
        {"{", "is not a string"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "%s%s\n%s", good, bad[i].line, good);
        const struct trace_dump *dump = trace_dump(text, "mooncake");
        ck_assert_int_eq(dump->rc, 0);
        ck_assert_uint_eq(dump->report.requests, 2);
        ck_assert_uint_eq(dump->report.bad_lines, 1);
        ck_assert_uint_eq(dump->report.faults[0].line, 2);
        ck_assert_msg(strstr(dump->report.faults[0].reason, bad[i].reason) != NULL, "%s: %s",
                      bad[i].line, dump->report.faults[0].reason);
    }
}
END_TEST

START_TEST(a_line_may_hold_anything)
{
    char text[400];
    struct tierce__trace_opts opts = {.size = sizeof(opts), .format = "mooncake"};
    /* A NUL, and deep nesting. */
    size_t n = (size_t)snprintf(text, sizeof(text), "{\"timestamp\":1,\"hash_ids\":[1]}\n");
    memcpy(text + n, "{\"timestamp\":1,\"ha\0h_ids\":[1]}\n", 31);
    n += 31;
    memset(text + n, '[', 200);
    n += 200;
    const struct trace_dump *dump = trace_dump_with(text, n, &opts);
    ck_assert_str_eq(dump->text, "turn 1000 [1]\n"
                                 "bad 2: a string holds a control character (column 19)\n"
                                 "bad 3: is not an object (column 1)\n");
    ck_assert(dump->report.cut);
    memcpy(text, "{\"x\":", 5);
    memset(text + 5, '[', 300);
    text[305] = '\n';
    memcpy(text + 306, "{\"timestamp\":1,\"hash_ids\":[1]}\n", 31);
    dump = trace_dump_with(text, 337, &opts);
    ck_assert_str_eq(dump->text, "turn 1000 [1]\nbad 1: is nested more than 64 deep (column 70)\n");
}
END_TEST

START_TEST(qwen)
{
    /* The same content behind another prefix is another block; behind the same one the same. */
    check_trace(
        "{\"chat_id\": 159, \"parent_chat_id\": -1, \"timestamp\": 61.114, \"input_length\": "
        "521, \"output_length\": 132, \"type\": \"text\", \"turn\": 1, "
        "\"hash_ids\": [1089, 1090, 1091]}\n"
        "{\"chat_id\": 160, \"parent_chat_id\": 159, \"timestamp\": 61.2, \"hash_ids\": "
        "[1089, 1090, 1092]}\n"
        "{\"chat_id\": 161, \"parent_chat_id\": 160, \"timestamp\": 61.3, \"hash_ids\": "
        "[1090, 1091]}\n"
        "{\"chat_id\": 7, \"parent_chat_id\": 6, \"timestamp\": 61.3000004, \"hash_ids\": "
        "[1089, 1090, 1091]}\n",
        "qwen",
        "turn 61114000 session=160 tokens=521+132 [0 1 2]\n"
        "turn 61200000 session=160 [0 1 3]\n"
        "turn 61300000 session=160 [4 5]\n"
        "turn 61300000 session=7 [0 1 2]\n");
    check_bad(
        "{\"chat_id\":1,\"timestamp\":1,\"hash_ids\":[1]}\n"
        "{\"timestamp\":1,\"hash_ids\":[1]}\n",
        "qwen",
        "turn 1000000 session=2 [0]\n"
        "bad 2: has neither \"chat_id\" nor \"parent_chat_id\": is it of the format mooncake?\n");
}
END_TEST

#define LOOKUP(time, query, keys, mask)                                                            \
    "{\"id\":\"x\",\"source\":\"a\",\"component\":\"cache_manager\",\"type\":"                     \
    "\"GetCacheLocation\","                                                                        \
    "\"trigger_time_us\":" time ",\"query_type\":\"" query "\",\"keys\":[" keys                    \
    "],\"tokens\":[],\"block_mask\":" mask ",\"sw_size\":-1,\"location_spec_names\":[]}\n"
#define START(time, session, keys)                                                                 \
    "{\"source\":\"a\",\"type\":\"StartWriteCache\",\"trigger_time_us\":" time                     \
    ",\"write_session_id\":\"" session "\",\"keys\":[" keys "],\"tokens\":[]}\n"
#define FINISH(time, session)                                                                      \
    "{\"source\":\"a\",\"type\":\"FinishWriteCache\",\"trigger_time_us\":" time                    \
    ",\"write_session_id\":\"" session "\",\"success_block\":12}\n"

START_TEST(kvcm_log)
{
    check_trace(LOOKUP("1000", "prefix_match", "-5,6,7", "2") START("2000", "s1", "6,7,8")
                    START("3000", "s2", "9") LOOKUP("4000", "prefix_match", "6,7", "[false,true]")
                        FINISH("5000", "s1") FINISH("5000", "never")
                            LOOKUP("6000", "batch_get", "1", "0")
                                LOOKUP("7000", "prefix_match", "4,5,6", "-1")
                                    LOOKUP("200000", "prefix_match", "", "0"),
                "kvcm-log",
                "read 1000 instance=a [18446744073709551611* 6* 7]\n"
                "read 4000 instance=a [6 7*]\n"
                "write 5000 instance=a [6 7 8]\n"
                "read 6000 instance=a any [1]\n"
                "read 7000 instance=a [4* 5* 6*]\n"
                "write 103000 instance=a [9]\n" /* without an end: 100 ms */
                "read 200000 instance=a []\n");
    const struct trace_dump *dump = trace_dump(
        START("1", "s", "1") "{\"type\":\"CacheReclaimSubmit\",\"trigger_time_us\":2}\n" START(
            "3", "s", "2") FINISH("4", "s") FINISH("5", "s"),
        NULL);
    /* The same session again: the first write stays without an end. */
    ck_assert_str_eq(dump->text, "write 4 instance=a [2]\nwrite 100001 instance=a [1]\n");
    ck_assert_uint_eq(dump->report.skipped_lines, 1);
    ck_assert_uint_eq(dump->report.joined_lines, 1);
    ck_assert_uint_eq(dump->report.notices, 1);
    ck_assert_uint_eq(dump->report.lines, 5);
}
END_TEST

/* As `tierce manager` writes them: a mask of what was there, and what a block is. */
#define MASKED(time, session, keys, mask, more)                                                    \
    "{\"source\":\"a\",\"type\":\"StartWriteCache\",\"trigger_time_us\":" time                     \
    ",\"write_session_id\":\"" session "\",\"keys\":[" keys                                        \
    "],\"tokens\":[],\"block_mask\":" mask more "}\n"
#define ENDED(time, session, success)                                                              \
    "{\"source\":\"a\",\"type\":\"FinishWriteCache\",\"trigger_time_us\":" time                    \
    ",\"write_session_id\":\"" session "\",\"success_block\":" success "}\n"

START_TEST(kvcm_log_of_writes_that_fail)
{
    static const struct {
        const char *mask, *success, *wanted;
    } cases[] = {
        {"0", "4", "write 20 instance=a [1 2 3 4]\n"},
        {"0", "0", "write 20 instance=a unstored=4 [1 2 3 4]\n"},
        {"0", "3", "write 20 instance=a unstored=1 [1 2 3 4]\n"},
        {"0", "[true,false,true,true]", "write 20 instance=a unstored=3 [1 2 3 4]\n"},
        {"2", "2", "write 20 instance=a [1 2 3 4]\n"},
        {"2", "1", "write 20 instance=a unstored=1 [1 2 3 4]\n"},
        {"2", "0", "write 20 instance=a unstored=2 [1 2 3 4]\n"},
        {"4", "0", "write 20 instance=a [1 2 3 4]\n"},
        /* The session has to write 2 and 4. */
        {"[true,false,true,false]", "[true,false]", "write 20 instance=a unstored=1 [1 2 3 4]\n"},
        {"[true,false,true,false]", "[false,true]", "write 20 instance=a unstored=3 [1 2 3 4]\n"},
        {"[true,false,true,false]", "2", "write 20 instance=a [1 2 3 4]\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), MASKED("10", "s", "1,2,3,4", "%s", "") ENDED("20", "s", "%s"),
                 cases[i].mask, cases[i].success);
        const struct trace_dump *dump = trace_dump(text, NULL);
        ck_assert_str_eq(dump->text, cases[i].wanted);
        ck_assert_uint_eq(dump->report.joined_lines, 1);
    }
    /* A write without an end has written nothing; existing blocks stay. */
    ck_assert_str_eq(trace_dump(MASKED("10", "s", "1,2,3", "1", ""), NULL)->text,
                     "write 100010 instance=a unstored=2 [1* 2 3]\n");
}
END_TEST

START_TEST(kvcm_log_of_a_manager)
{
    const struct trace_dump *dump = trace_dump(
        "{\"source\":\"a\",\"type\":\"GetCacheLocation\",\"trigger_time_us\":1,\"query_type\":"
        "\"reverse_roll_sw_match\",\"keys\":[1,2],\"tokens\":[],\"block_mask\":0,\"sw_size\":2,"
        "\"block_size\":16}\n"
        "{\"source\":\"a\",\"type\":\"GetCacheLocation\",\"trigger_time_us\":2,\"query_type\":"
        "\"prefix_match\",\"keys\":[1],\"tokens\":[7,7,7,7,7],\"block_mask\":0,\"sw_size\":-1,"
        "\"block_size\":4}\n"
        "{\"source\":\"a\",\"type\":\"GetCacheLocation\",\"trigger_time_us\":2,\"query_type\":"
        "\"prefix_match\",\"keys\":[],\"tokens\":[7,7,7],\"block_mask\":0,\"block_size\":4}"
        "\n" MASKED("3", "s", "1,2", "0", ",\"block_size\":16,\"block_bytes\":1024") ENDED(
            "4", "s",
            "2") "{\"source\":\"a\",\"component\":\"cache_reclaimer\",\"type\":"
                 "\"CacheReclaimSubmit\","
                 "\"trigger_time_us\":5,\"block_keys\":[1,2],\"location_ids\":[\"x\",\"y\"],"
                 "\"delay_us\":100000}\n"
                 "{\"source\":\"n\",\"component\":\"leader_elector\",\"type\":\"LeaderDemoted\","
                 "\"trigger_time_us\":6}\n",
        NULL);
    ck_assert_str_eq(dump->text, "read 1 instance=a window=2 tokens=32+0 [1 2]\n"
                                 "read 2 instance=a tokens=5+0 [1]\n"
                                 "read 2 instance=a tokens=3+0 []\n"
                                 "write 4 instance=a [1:1024 2:1024]\n"
                                 "drop 5 instance=a [1 2]\n");
    ck_assert_uint_eq(dump->report.lines, 7);
    ck_assert_uint_eq(dump->report.requests, 5);
    ck_assert_uint_eq(dump->report.joined_lines, 1);
    ck_assert_uint_eq(dump->report.notices, 1);
    ck_assert_uint_eq(dump->report.skipped_lines, 0);
    ck_assert_uint_eq(dump->report.block_bytes, 1024);
    dump = trace_dump(MASKED("1", "s", "1,2", "0", ",\"block_bytes\":[5,6]") ENDED("2", "s", "2"),
                      NULL);
    ck_assert_str_eq(dump->text, "write 2 instance=a [1:5 2:6]\n");
    ck_assert_uint_eq(dump->report.block_bytes, 0);
    check_bad(MASKED("1", "s", "1,2,3", "0",
                     ",\"block_bytes\":[5,6]") MASKED("1", "s", "1", "0", ",\"block_bytes\":[-1]")
                  LOOKUP("1", "nonsense", "1", "0") LOOKUP("1", "reverse_roll_sw_match", "1", "0")
                      LOOKUP("1", "prefix_match", "1", "0"),
              "kvcm-log",
              "read 1 instance=a [1]\n"
              "bad 1: \"block_bytes\" is neither one size nor one for each key\n"
              "bad 2: \"block_bytes\": is not a size (column 139)\n"
              "bad 3: \"query_type\" is not prefix_match, batch_get or reverse_roll_sw_match\n"
              "bad 4: \"sw_size\" is not a window: accepted are 1 to 2^32 - 1\n");
}
END_TEST

#define LAYERS(kind)                                                                               \
    ",\"block_size\":4,\"block_bytes\":8,\"attention_kind\":\"" kind "\",\"window_tokens\":9,"     \
    "\"every_tokens\":0,\"attention_family\":\"f\",\"attention_layers\":\"0-3\","                  \
    "\"instance_group\":\"g\""

/* A block of a window can be used without the blocks before it. */
START_TEST(kvcm_log_of_layers)
{
    static const char text[] =
        MASKED("1", "s", "1,2,3", "1", LAYERS("window")) ENDED("2", "s", "[false,true]")
            MASKED("3", "t", "1,2", "0", LAYERS("full")) ENDED("4", "t", "[false,true]");
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    char why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace_opts opts = {.size = sizeof(opts)};
    int rc = tierce__trace_open_memory(&trace, text, strlen(text), &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_int_eq(tierce__trace_next(trace, &request), 1);
    ck_assert_uint_eq(request.count, 2); /* 1 was there, 2 failed */
    ck_assert_uint_eq(request.blocks[1], 3);
    ck_assert_uint_eq(request.bytes[1], 8);
    const struct tierce__trace_layers *layers = tierce__trace_layers(trace, request.instance);
    ck_assert_ptr_nonnull(layers); /* of the last line, which has been read */
    ck_assert_str_eq(layers->family, "f");
    ck_assert_str_eq(layers->layers, "0-3");
    ck_assert_str_eq(layers->group, "g");
    ck_assert_uint_eq(layers->block_tokens, 4);
    ck_assert_uint_eq(layers->window_tokens, 9);
    tierce__trace_close(trace);
    ck_assert_str_eq(trace_dump(text, NULL)->text, "write 2 instance=a [1:8 3:8]\n"
                                                   "write 4 instance=a unstored=2 [1:8 2:8]\n");
    check_bad(MASKED("1", "s", "1", "0", ",\"attention_kind\":\"full\",\"every_tokens\":4294967296")
                  LOOKUP("1", "prefix_match", "1", "0"),
              "kvcm-log",
              "read 1 instance=a [1]\n"
              "bad 1: \"block_size\", \"window_tokens\" or \"every_tokens\" is too large a "
              "number\n");
}
END_TEST

/* Entries do not follow each other: one that failed does not hide the next. */
START_TEST(kvcm_log_of_entries)
{
#define SIZED(time, success, sizes)                                                                \
    "{\"source\":\"a\",\"type\":\"FinishWriteCache\",\"trigger_time_us\":" time                    \
    ",\"write_session_id\":\"s\",\"success_block\":" success ",\"block_bytes\":" sizes "}\n"
    static const struct {
        const char *mask, *success, *sizes, *wanted;
    } cases[] = {
        {"0", "[true,true,true]", "[7,8,9]", "write 20 instance=a [1:7 2:8 3:9]\n"},
        {"0", "[false,true,true]", "[0,8,9]", "write 20 instance=a [2:8 3:9]\n"},
        {"0", "[false,false,false]", "[0,0,0]", "write 20 instance=a []\n"},
        {"[false,true,false]", "[true,true]", "[7,9]", "write 20 instance=a [1:7 3:9]\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 MASKED("10", "s", "1,2,3", "%s", ",\"block_size\":0") SIZED("20", "%s", "%s"),
                 cases[i].mask, cases[i].success, cases[i].sizes);
        const struct trace_dump *dump = trace_dump(text, NULL);
        ck_assert_str_eq(dump->text, cases[i].wanted);
        ck_assert_uint_eq(dump->report.joined_lines, 1);
    }
    check_bad(MASKED("10", "s", "1,2,3", "0", "") SIZED("20", "[true,true,true]", "[7,8]"),
              "kvcm-log",
              "write 100010 instance=a unstored=3 [1 2 3]\n"
              "bad 2: \"block_bytes\" has no size for each key\n");
    const struct trace_dump *dump = trace_dump(
        "{\"source\":\"a\",\"type\":\"RemoveCache\",\"trigger_time_us\":1,\"keys\":[1,2]}\n"
        "{\"source\":\"a\",\"type\":\"TrimCache\",\"trigger_time_us\":2,\"strategy\":\"x\"}\n",
        "kvcm-log");
    ck_assert_str_eq(dump->text, "drop 1 instance=a [1 2]\n");
    ck_assert_uint_eq(dump->report.notices, 1);
    ck_assert_uint_eq(dump->report.skipped_lines, 0);
}
END_TEST

START_TEST(kvcm_log_tokens_are_no_keys)
{
    check_bad("{\"type\":\"StartWriteCache\",\"trigger_time_us\":1,\"write_session_id\":\"s\","
              "\"keys\":[],\"tokens\":[1,2]}\n" FINISH("1", "s")
                  LOOKUP("1", "prefix_match", "1", "0"),
              "kvcm-log",
              "read 1 instance=a [1]\n"
              "bad 1: has tokens and no keys, and the length of a block is not given\n");
}
END_TEST

START_TEST(kvcm_schema)
{
    check_trace(
        "{\"instance_id\":\"i\",\"trace_id\":\"t\",\"timestamp_us\":10,\"tokens\":[],\"keys\":[1,2]"
        ","
        "\"query_type\":\"prefix_match\",\"block_mask\":[true],\"sw_size\":0,"
        "\"location_spec_names\":[],\"input_len\":40,\"output_len\":9,\"total_keys\":[1,2,3]}\n"
        "{\"instance_id\":\"j\",\"timestamp_us\":11,\"keys\":[1],\"query_type\":\"batch_get\","
        "\"block_mask\":0}\n"
        "{\"instance_id\":\"i\",\"timestamp_us\":12,\"keys\":[1,2],\"query_type\":"
        "\"reverse_roll_sw_match\",\"block_mask\":0,\"sw_size\":2}\n"
        "{\"instance_id\":\"i\",\"timestamp_us\":13,\"keys\":[4]}\n",
        "kvcm-schema",
        "turn 10 instance=i tokens=40+9 [1* 2 | 3]\n"
        "read 11 instance=j any [1]\n"
        "read 12 instance=i window=2 [1 2]\n"
        "write 13 instance=i [4]\n");
    check_bad("{\"instance_id\":\"i\",\"timestamp_us\":1,\"keys\":[1,2],\"input_len\":1,"
              "\"output_len\":1,\"total_keys\":[2,1]}\n"
              "{\"instance_id\":\"i\",\"timestamp_us\":1,\"keys\":[1],\"query_type\":"
              "\"reverse_roll_sw_match\",\"block_mask\":0,\"sw_size\":0}\n"
              "{\"instance_id\":\"i\",\"timestamp_us\":1,\"keys\":[1]}\n",
              "kvcm-schema",
              "write 1 instance=i [1]\n"
              "bad 1: \"total_keys\" does not begin with \"keys\"\n"
              "bad 2: \"sw_size\" is not a window: accepted are 1 to 2^32 - 1\n");
}
END_TEST

START_TEST(access_log)
{
    check_trace(
        "{\"tierce_access\":1,\"time_us\":1763975741548745,\"op\":\"lookup\",\"namespace\":"
        "\"00ff\",\"session\":3,\"block_tokens\":16,\"held\":1,\"blocks\":"
        "\"00000000000000ffffffffffffffFFFF\",\"tiers\":{\"memory\":1}}\n"
        "{\"tierce_access\":1,\"time_us\":1763975741548746,\"op\":\"store\",\"blocks\":\"\"}"
        "\n",
        "access",
        "read 1763975741548745 instance=00ff session=3 tokens=32+0 "
        "[255* 18446744073709551615]\n"
        "write 1763975741548746 []\n");
    check_bad(
        "{\"tierce_access\":2,\"time_us\":1,\"op\":\"store\",\"blocks\":\"\"}\n"
        "{\"tierce_access\":1,\"time_us\":1,\"op\":\"list\",\"blocks\":\"\"}\n"
        "{\"tierce_access\":1,\"time_us\":1,\"op\":\"store\",\"blocks\":\"12\"}\n"
        "{\"tierce_access\":1,\"time_us\":1,\"op\":\"store\",\"blocks\":\"000000000000000g\"}\n"
        "{\"tierce_access\":1,\"time_us\":1,\"op\":\"store\",\"held\":1,\"blocks\":\"\"}\n"
        "{\"tierce_access\":1,\"time_us\":1,\"op\":\"store\",\"blocks\":\"\"}\n",
        "access",
        "write 1 []\n"
        "bad 1: is of version 2, which this build does not read\n"
        "bad 2: \"op\" is neither lookup nor store\n"
        "bad 3: \"blocks\": is not 16 hex digits for each block (column 58)\n"
        "bad 4: \"blocks\": holds a character that is not a hex digit (column 72)\n"
        "bad 5: \"held\" is more than there are blocks\n");
}
END_TEST

#define ACCESS(time, op, more, blocks)                                                             \
    "{\"tierce_access\":1,\"time_us\":" #time ",\"op\":\"" op "\"," more "\"blocks\":\"" blocks    \
    "\"}\n"
#define ID(n)   "000000000000000" #n
#define ASKS(n) "\"request\":" #n ","

START_TEST(an_access_logs_request_is_one_turn)
{
    /* A prefill that is stored in parts, and another request in between. */
    check_trace(ACCESS(1, "lookup", ASKS(7) "\"held\":1,", ID(1) ID(2))
                    ACCESS(2, "lookup", ASKS(8), ID(1) ID(2) ID(3))
                        ACCESS(3, "store", ASKS(7), ID(1)) ACCESS(4, "store", ASKS(8), ID(1) ID(2))
                            ACCESS(5, "store", ASKS(7), ID(1) ID(2) ID(4)),
                "access", "turn 1 [1* 2 | 4]\nturn 2 unstored=1 [1 2 3]\n");
    /* Shorter stores again; stores without a lookup; a lookup alone. */
    check_trace(ACCESS(1, "lookup", ASKS(7), ID(1)) ACCESS(2, "store", ASKS(7), ID(1) ID(2))
                    ACCESS(3, "store", ASKS(7), ID(1)) ACCESS(4, "store", ASKS(9), ID(5))
                        ACCESS(5, "store", ASKS(9), ID(5) ID(6))
                            ACCESS(6, "lookup", ASKS(10), ID(5)),
                "access", "turn 1 [1 | 2]\nwrite 4 [5 6]\nread 6 [5]\n");
    /* Nothing is joined that has no number, another chain, or another namespace; a second lookup
     * begins anew. */
    check_trace(ACCESS(1, "lookup", "", ID(1)) ACCESS(2, "store", "", ID(1))
                    ACCESS(3, "lookup", ASKS(1), ID(1)) ACCESS(4, "store", ASKS(1), ID(2))
                        ACCESS(5, "lookup", ASKS(2), ID(1)) ACCESS(6, "lookup", ASKS(2), ID(1))
                            ACCESS(7, "store", ASKS(2), ID(1)),
                "access",
                "read 1 [1]\nwrite 2 [1]\nread 3 [1]\nwrite 4 [2]\nread 5 [1]\nturn 6 [1]\n");
    check_trace(ACCESS(1, "lookup", ASKS(1) "\"namespace\":\"a\",", ID(1))
                    ACCESS(2, "store", ASKS(1) "\"namespace\":\"b\",", ID(1)),
                "access", "read 1 instance=a [1]\nwrite 2 instance=b [1]\n");
}
END_TEST

START_TEST(csv)
{
    check_trace("0,5,10\n0.5,-1,0\n", "csv",
                "turn 0 any [5:10]\nturn 500000 any [18446744073709551615:0]\n");
    check_trace("key, time_ms ,note\nabc,1,x\n7,2,\n", "csv",
                "turn 1000 any [8696274497037089104]\nturn 2000 any [7]\n");
    check_trace("key,time\r\nabc,1\r\n", "csv", "turn 1000000 any [8696274497037089104]\n");
    /* A number as it would be printed is itself; anything else has a hash. */
    check_trace("time,key\n1,\"a\"\"b,c\"\n2,\"7\"\n3,07\n", "csv",
                "turn 1000000 any [13839268328496515626]\nturn 2000000 any [7]\n"
                "turn 3000000 any [4484850317460735341]\n");
    check_bad(
        "1,a\nx,b\n2,\"c\n3\n4,,1\n-5,d\nnan,e\n6,f,-1\n99999999999999,g\n7,h\n", "csv",
        "turn 1000000 any [16629034431890738719]\n"
        "turn 7000000 any [8090085636497697382]\n"
        "bad 2: column 1 is not a time: accepted are non-negative numbers that are not too large\n"
        "bad 3: has more than 16 columns, or a quote that does not end\n"
        "bad 4: has 1 columns; a time and a key are required\n"
        "bad 5: the key is empty or holds a NUL\n"
        "bad 6: column 1 is not a time: accepted are non-negative numbers that are not too large\n"
        "bad 7: column 1 is not a time: accepted are non-negative numbers that are not too large\n"
        "bad 8: column 3 is not a size: accepted are integers from 0 to 2^64 - 1\n"
        "bad 9: column 1 is not a time: accepted are non-negative numbers that are not too "
        "large\n");
}
END_TEST

/* Two batches as vLLM's own encoder writes them: two blocks and one behind them; then a copy to
 * the CPU, a removal and a clearing. */
static const char vllm_events[] =
    "93cb40250000000000009289a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c4"
    "200101010101010101010101010101010101010101010101010000000000000001c420020202020202020202"
    "0202020202020202020202020202020000000000000002b1706172656e745f626c6f636b5f68617368c0a974"
    "6f6b656e5f696473dc001001010101010101010101010101010101aa626c6f636b5f73697a6510a76c6f7261"
    "5f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa73657373696f6e5f6964a16189a4747970"
    "65ab426c6f636b53746f726564ac626c6f636b5f68617368657391c420030303030303030303030303030303"
    "0303030303030303030000000000000003b1706172656e745f626c6f636b5f68617368c42002020202020202"
    "02020202020202020202020202020202020000000000000002a9746f6b656e5f696473dc0010010101010101"
    "01010101010101010101aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da3475055a96c"
    "6f72615f6e616d65c0a967726f75705f696478000093cb40260000000000009388a474797065ab426c6f636b"
    "53746f726564ac626c6f636b5f68617368657391c42001010101010101010101010101010101010101010101"
    "01010000000000000001b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00100101"
    "0101010101010101010101010101aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da343"
    "5055a96c6f72615f6e616d65c083a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865"
    "7391c4200303030303030303030303030303030303030303030303030000000000000003a66d656469756da3"
    "47505581a474797065b0416c6c426c6f636b73436c656172656401";

/* Reads hex digits as bytes; spaces are skipped. */
static const struct trace_dump *dump_hex(const char *hex, const char *name)
{
    static unsigned char bytes[4096];
    char digits[3] = "";
    size_t count = 0;
    for (; *hex != '\0'; hex++) {
        if (*hex == ' ')
            continue;
        digits[count % 2] = *hex;
        if (count++ % 2 == 1)
            bytes[count / 2 - 1] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return trace_dump_with(
        bytes, count / 2,
        &(struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts), .format = name});
}

#define STORED "ab 426c6f636b53746f726564"
#define TIME   "cb 3ff0000000000000" /* 1.0 */

START_TEST(events_of_vllm)
{
    const char *wanted =
        "turn 10500000 instance=dp0 session=16629034431890738719 tokens=32+0 [1 2]\n"
        "turn 10500000 instance=dp0 tokens=48+0 [1* 2* 3]\n"
        "drop 11000000 instance=dp1 [3]\n"
        "drop 11000000 instance=dp1 []\n";
    ck_assert_str_eq(dump_hex(vllm_events, NULL)->text, wanted);
    ck_assert_str_eq(dump_hex(vllm_events, "events")->text, wanted);
}
END_TEST

START_TEST(events_as_arrays)
{
    /* [1.0, [["BlockStored", [1, 2], null, [], 16, null], ["BlockStored", [3], 2, [], 16, null],
     * ["BlockRemoved", [1]], ["Unknown", 1], ["AllBlocksCleared"]]] */
    ck_assert_str_eq(dump_hex("92" TIME "95 96" STORED "92 01 02 c0 90 10 c0 96" STORED
                              "91 03 02 90 10 c0"
                              "92 ac 426c6f636b52656d6f766564 91 01 92 a7 556e6b6e6f776e 01"
                              "91 b0 416c6c426c6f636b73436c6561726564",
                              NULL)
                         ->text,
                     "turn 1000000 tokens=32+0 [1 2]\n"
                     "turn 1000000 tokens=48+0 [1* 2* 3]\n"
                     "drop 1000000 [1]\n"
                     "drop 1000000 []\n");
    /* Another group, another medium: nothing. A parent that nobody has seen: a gap. */
    ck_assert_str_eq(dump_hex("92" TIME "93 9a" STORED "91 05 c0 90 10 c0 a3 475055 c0 c0 01"
                              "97" STORED "91 05 c0 90 10 c0 a3 435055 97" STORED
                              "91 08 07 90 10 c0 c0",
                              NULL)
                         ->text,
                     "turn 1000000 tokens=32+0 [7* 8]\n");
    /* A chain that bites its tail ends somewhere: 1 behind 2, 2 behind 1. */
    ck_assert_str_eq(dump_hex("92" TIME "93 96" STORED "91 01 02 90 00 c0 96" STORED
                              "91 02 01 90 00 c0 96" STORED "91 02 02 90 00 c0",
                              NULL)
                         ->text,
                     "turn 1000000 [2* 1]\nturn 1000000 [2* 1* 2]\nturn 1000000 [2* 2]\n");
}
END_TEST

START_TEST(events_in_frames)
{
    /* [topic, sequence, batch] as bytes, and a batch as bytes alone. */
    ck_assert_str_eq(dump_hex("93 c400 c408 0000000000000001 c41b 92" TIME "91 93" STORED "91 04 c0"
                              "c41b 92" TIME "91 93" STORED "91 05 c0",
                              NULL)
                         ->text,
                     "turn 1000000 [4]\nturn 1000000 [5]\n");
}
END_TEST

START_TEST(events_that_are_damaged)
{
    static const struct {
        const char *hex, *wanted;
    } bad[] = {
        {"01", "bad 2: is not a batch [time, events, rank]\n"},
        {"91 01", "bad 2: is not a batch [time, events, rank]\n"},
        {"c1", "bad 2: is damaged, and the rest is not read\n"},
        {"92", "bad 2: the trace ends in it\n"},
        {"dd ffffffff", "bad 2: the trace ends in it\n"},
        {"92 c0 90", "bad 2: the time of a batch is missing or invalid\n"},
        {"92 cb 7ff8000000000000 90", "bad 2: the time of a batch is missing or invalid\n"},
        {"92" TIME "c0", "bad 2: the list of events is missing or invalid\n"},
        {"93" TIME "90 a0", "bad 2: the rank of a batch is missing or invalid\n"},
        {"92" TIME "91 c0", "bad 2: an event is missing or invalid\n"},
        {"92" TIME "91 80", "bad 2: the type of an event is missing or invalid\n"},
        {"92" TIME "91 91" STORED, "bad 2: \"block_hashes\" is missing or invalid\n"},
        {"92" TIME "91 93" STORED "91 c0 c0",
         "bad 2: a hash of \"block_hashes\" is missing or invalid\n"},
        {"92" TIME "91 93" STORED "91 01 90",
         "bad 2: \"parent_block_hash\" is missing or invalid\n"},
        {"c402 92 01", "bad 2: is not a batch [time, events, rank]\n"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char hex[256], wanted[256];
        snprintf(hex, sizeof(hex), "92" TIME "91 93" STORED "91 04 c0 %s", bad[i].hex);
        snprintf(wanted, sizeof(wanted), "turn 1000000 [4]\n%s", bad[i].wanted);
        ck_assert_str_eq(dump_hex(hex, NULL)->text, wanted);
    }
}
END_TEST

START_TEST(formats_are_told)
{
    ck_assert_str_eq(trace_dump("", NULL)->text, "open: is empty\n");
    ck_assert_str_eq(trace_dump("\n \r\n", NULL)->text, "open: is empty\n");
    const char *unknown =
        "open: has an unknown format, judging by its first lines; if it is a trace, pass its "
        "--format: access, kvcm-log, kvcm-schema, qwen, mooncake, events, csv\n";
    ck_assert_str_eq(trace_dump("hello\n", NULL)->text, unknown);
    ck_assert_str_eq(trace_dump("{\"a\": 1}\n", NULL)->text, unknown);
    ck_assert_str_eq(
        trace_dump("x", "mooncak")->text,
        "open: there is no trace format \"mooncak\"; the formats are access, kvcm-log, "
        "kvcm-schema, qwen, mooncake, events, csv\n");
    ck_assert_int_eq(trace_dump("x", "mooncak")->rc, TIERCE_E_ARGUMENT);
    /* A damaged first line is ignored. */
    ck_assert_str_eq(trace_dump("{\"timest\n{\"timestamp\":1,\"hash_ids\":[1]}\n", NULL)->text,
                     "turn 1000 [1]\nbad 1: a string is not terminated (column 3)\n");
    /* The wrong one by name. */
    const struct trace_dump *dump = trace_dump("1,a\n2,b\n", "mooncake");
    ck_assert_int_eq(dump->rc, TIERCE_E_FORMAT);
    ck_assert_str_eq(dump->text, "bad 1: is not an object (column 1)\n"
                                 "bad 2: is not an object (column 1)\n"
                                 "error: holds no request that can be read; as mooncake, line 1: "
                                 "is not an object (column 1)\n");
    dump = trace_dump("\n\n", "mooncake");
    ck_assert_int_eq(dump->rc, TIERCE_E_FORMAT);
    ck_assert_str_eq(dump->text, "error: holds no request (0 lines as mooncake)\n");
}
END_TEST

CHECK_MAIN("trace_formats",
           .tests = {mooncake, mooncake_bad_lines, a_line_may_hold_anything, qwen, kvcm_log,
                     kvcm_log_tokens_are_no_keys, kvcm_log_of_writes_that_fail, kvcm_log_of_entries,
                     kvcm_log_of_a_manager, kvcm_log_of_layers, kvcm_schema, access_log,
                     an_access_logs_request_is_one_turn, csv, events_of_vllm, events_as_arrays,
                     events_in_frames, events_that_are_damaged, formats_are_told})
