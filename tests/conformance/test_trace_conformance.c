/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "test_random.h"
#include "trace_dump.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

/* The contract of every format, over a small trace of each. */

static const char events[] = "\x92\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x92"
                             "\x96\xab"
                             "BlockStored\x92\x01\x02\xc0\x90\x10\xc0"
                             "\x96\xab"
                             "BlockStored\x91\x03\x02\x90\x10\xc0"
                             "\x92\xcb\x40\x00\x00\x00\x00\x00\x00\x00\x91"
                             "\x92\xac"
                             "BlockRemoved\x91\x03"
                             "\x93\xcb\x40\x08\x00\x00\x00\x00\x00\x00\x91"
                             "\x82\xa4type\xab"
                             "BlockStored\xac"
                             "block_hashes\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x05";

static const struct sample {
    const char *format;
    const char *text;
    size_t length;
    uint64_t requests, lines;
    const char *bad; /* a record that is bad */
    size_t bad_length;
} samples[] = {
#define TEXT(literal) (literal), sizeof(literal) - 1
    {"access",
     TEXT("{\"tierce_access\":1,\"time_us\":5,\"op\":\"lookup\",\"namespace\":\"a\",\"session\":3,"
          "\"block_tokens\":16,\"held\":1,\"blocks\":\"000000000000000100000000000000ff\","
          "\"tiers\":{\"memory\":1}}\n"
          "{\"tierce_access\":1,\"time_us\":6,\"op\":\"store\",\"namespace\":\"b\",\"blocks\":"
          "\"0000000000000001\"}\n"),
     2, 2, TEXT("{\"tierce_access\":1}\n")},
    {"kvcm-log",
     TEXT("{\"type\":\"GetCacheLocation\",\"source\":\"a\",\"trigger_time_us\":7,\"query_type\":"
          "\"prefix_match\",\"keys\":[1,-2,3],\"block_mask\":[true,false],\"tokens\":[]}\n"
          "{\"type\":\"StartWriteCache\",\"source\":\"a\",\"trigger_time_us\":8,"
          "\"write_session_id\":\"xyz\",\"keys\":[1,2]}\n"
          "{\"type\":\"FinishWriteCache\",\"trigger_time_us\":9,\"write_session_id\":\"xyz\"}\n"),
     2, 3, TEXT("{\"type\":\"GetCacheLocation\"}\n")},
    {"kvcm-schema",
     TEXT("{\"instance_id\":\"i\",\"timestamp_us\":10,\"keys\":[1,2],\"query_type\":\"batch_get\","
          "\"block_mask\":[true],\"sw_size\":0,\"input_len\":1,\"output_len\":1,"
          "\"total_keys\":[1,2,3]}\n"
          "{\"instance_id\":\"i\",\"timestamp_us\":13,\"keys\":[4]}\n"),
     2, 2, TEXT("{\"instance_id\":\"i\"}\n")},
    {"qwen",
     TEXT("{\"chat_id\":1,\"parent_chat_id\":-1,\"timestamp\":1.5,\"hash_ids\":[7,8]}\n"
          "{\"chat_id\":2,\"parent_chat_id\":1,\"timestamp\":2.5,\"hash_ids\":[7,9]}\n"),
     2, 2, TEXT("{\"chat_id\":1}\n")},
    {"mooncake",
     TEXT(
         "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 5, \"hash_ids\": [0, 1, 12]}\n"
         "{\"timestamp\": 1, \"hash_ids\": [123456789012345678, 1], \"session_id\": \"s\"}\n"),
     2, 2, TEXT("{\"timestamp\": 0}\n")},
    {"events", events, sizeof(events) - 1, 4, 3, TEXT("\x90")},
    {"csv", TEXT("0.5,a,1\n0.5,\"b,\"\"\",2\n1,3,4\n"), 3, 3, TEXT("x\n")},
};

enum { SAMPLES = sizeof(samples) / sizeof(samples[0]) };

static struct tierce__trace_opts options(const char *format)
{
    return (struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts), .format = format};
}

/* In memory of exactly its size, so that a read beyond it is seen. */
static const struct trace_dump *dump_exact(const void *data, size_t size, const char *format)
{
    struct tierce__trace_opts opts = options(format);
    void *exact = malloc(size > 0 ? size : 1);
    memcpy(exact, data, size);
    const struct trace_dump *dump = trace_dump_with(exact, size, &opts);
    free(exact);
    return dump;
}

START_TEST(every_format_has_a_sample)
{
    size_t i = 0;
    for (; tierce__trace_format_name(i) != NULL; i++) {
        ck_assert_uint_lt(i, SAMPLES);
        ck_assert_str_eq(tierce__trace_format_name(i), samples[i].format);
        ck_assert_uint_gt(strlen(tierce__trace_format_summary(i)), 5);
    }
    ck_assert_uint_eq(i, SAMPLES);
    ck_assert_ptr_null(tierce__trace_format_summary(i));
}
END_TEST

START_TEST(it_is_told_and_read)
{
    const struct sample *s = &samples[_i];
    const struct trace_dump *dump = dump_exact(s->text, s->length, NULL);
    ck_assert_str_eq(dump->report.format, s->format);
    ck_assert_int_eq(dump->rc, 0);
    ck_assert_uint_eq(dump->report.requests, s->requests);
    ck_assert_uint_eq(dump->report.lines, s->lines);
    ck_assert_uint_eq(dump->report.bad_lines, 0);
    ck_assert(!dump->report.cut);
}
END_TEST

START_TEST(it_is_the_same_compressed)
{
    const struct sample *s = &samples[_i];
    char packed[4096], plain[sizeof(((struct trace_dump *)0)->text)];
    strcpy(plain, dump_exact(s->text, s->length, NULL)->text);
    size_t n = ZSTD_compress(packed, sizeof(packed), s->text, s->length, 3);
    ck_assert_str_eq(dump_exact(packed, n, NULL)->text, plain);
    char path[] = "/tmp/trace-conformance-XXXXXX";
    int fd = mkstemp(path);
    gzFile file = gzdopen(fd, "wb");
    ck_assert_int_eq(gzwrite(file, s->text, (unsigned)s->length), s->length);
    ck_assert_int_eq(gzclose(file), Z_OK);
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    char why[TIERCE__TRACE_WHY_BYTES];
    uint64_t requests = 0, length;
    ck_assert_int_eq(tierce__trace_open(&trace, path, NULL, why), 0);
    unlink(path);
    while (tierce__trace_next(trace, &request) > 0)
        requests++;
    ck_assert_uint_eq(requests, s->requests);
    uint64_t position = tierce__trace_position(trace, &length);
    ck_assert_uint_eq(position, length);
    tierce__trace_close(trace);
}
END_TEST

/* Whatever is missing at the end: what is whole is read, and at most one record is bad. */
START_TEST(it_may_be_cut_anywhere)
{
    const struct sample *s = &samples[_i];
    for (size_t length = 0; length < s->length; length++) {
        const struct trace_dump *dump = dump_exact(s->text, length, s->format);
        if (dump->report.requests == 0) {
            ck_assert_int_eq(dump->rc, TIERCE_E_FORMAT);
        } else {
            ck_assert_int_eq(dump->rc, 0);
        }
        ck_assert_uint_le(dump->report.bad_lines, 1);
        ck_assert_int_eq(dump->report.cut, dump->report.bad_lines > 0);
        ck_assert_uint_le(dump->report.requests, s->requests);
        (void)dump_exact(s->text, length, NULL);
        for (size_t other = 0; other < SAMPLES; other++)
            (void)dump_exact(s->text, length, samples[other].format);
    }
}
END_TEST

/* `copies` whole traces one after the other, a bad record behind each of the first `bad`. */
static size_t repeat(char *out, const struct sample *s, unsigned copies, unsigned bad)
{
    size_t used = 0;
    for (unsigned i = 0; i < copies; i++) {
        memcpy(out + used, s->text, s->length);
        used += s->length;
        if (i < bad) {
            memcpy(out + used, s->bad, s->bad_length);
            used += s->bad_length;
        }
    }
    return used;
}

START_TEST(bad_lines_are_counted)
{
    static char text[1 << 20];
    const struct sample *s = &samples[_i];
    struct tierce__trace_opts opts = options(s->format);
    size_t length = repeat(text, s, 3, 2);
    const struct trace_dump *dump = trace_dump_with(text, length, &opts);
    ck_assert_int_eq(dump->rc, 0);
    ck_assert_uint_eq(dump->report.bad_lines, 2);
    ck_assert_uint_eq(dump->report.fault_count, 2);
    ck_assert_uint_eq(dump->report.faults[0].line, s->lines + 1);
    ck_assert_uint_gt(strlen(dump->report.faults[0].reason), 5);
    ck_assert_uint_eq(dump->report.requests, 3 * s->requests);
    /* Eleven are too many at one in a hundred; not when all may be bad. */
    length = repeat(text, s, 11, 11);
    dump = trace_dump_with(text, length, &opts);
    ck_assert_int_eq(dump->rc, TIERCE_E_FORMAT);
    ck_assert_uint_eq(dump->report.bad_lines, 11);
    ck_assert_uint_eq(dump->report.fault_count, TIERCE__TRACE_FAULTS_SHOWN);
    ck_assert(strstr(dump->text, "error: 11 of the first ") != NULL);
    opts.bad_share_max = 1;
    dump = trace_dump_with(text, length, &opts);
    ck_assert_int_eq(dump->rc, 0);
    ck_assert_uint_eq(dump->report.requests, 11 * s->requests);
    opts.bad_share_max = 0.5;
    ck_assert_int_eq(trace_dump_with(text, length, &opts)->rc, 0);
}
END_TEST

START_TEST(lines_have_a_limit)
{
    const struct sample *s = &samples[_i];
    struct tierce__trace_opts opts = options(s->format);
    opts.line_bytes_max = 4;
    const struct trace_dump *dump = trace_dump_with(s->text, s->length, &opts);
    ck_assert_int_eq(dump->rc, TIERCE_E_FORMAT);
    ck_assert_uint_eq(dump->report.requests, 0);
    ck_assert_uint_ge(dump->report.bad_lines, 1);
    ck_assert(strstr(dump->text, "exceeds the maximum length of a ") != NULL);
}
END_TEST

START_TEST(random_bytes_do_no_harm)
{
    const struct sample *s = &samples[_i];
    struct test_random random = test_random_start(s->format);
    char text[2048];
    ck_assert_uint_lt(s->length, sizeof(text));
    for (unsigned i = 0; i < 1000 * test_scale(); i++) {
        memcpy(text, s->text, s->length);
        for (uint32_t n = 1 + test_random_below(&random, 4); n > 0; n--)
            text[test_random_below(&random, s->length)] = (char)test_random_u64(&random);
        const struct trace_dump *dump = dump_exact(text, s->length, s->format);
        ck_assert(dump->rc == 0 || dump->rc == TIERCE_E_FORMAT);
    }
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    const struct sample *s = &samples[_i];
    uint64_t live = tierce__alloc_live();
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(dump_exact(s->text, s->length, NULL)->rc, 0);
    uint64_t count = tierce__alloc_fail_nth(0);
    ck_assert_uint_gt(count, 5);
    for (uint64_t n = 1; n <= count; n++) {
        tierce__alloc_fail_nth(n);
        ck_assert_int_eq(dump_exact(s->text, s->length, NULL)->rc, -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
}
END_TEST

/* ---- real traces ---------------------------------------------------------------------------- */

static void check_file(const char *name, const char *format, uint64_t requests, uint64_t reads,
                       uint64_t blocks)
{
    char path[4096], why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    uint64_t read_requests = 0, read_blocks = 0;
    int64_t last = INT64_MIN;
    int rc;
    snprintf(path, sizeof(path), "%s/traces/%s", getenv("TIERCE_TEST_DATA"), name);
    rc = tierce__trace_open(&trace, path, NULL, why);
    ck_assert_msg(rc == 0, "%s %s", path, why);
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        ck_assert_int_ge(request.time_us, last);
        last = request.time_us;
        read_requests += request.kind != TIERCE__TRACE_WRITE;
        read_blocks += request.read_count;
    }
    ck_assert_int_eq(rc, 0);
    const struct tierce__trace_report *report = tierce__trace_report(trace);
    ck_assert_str_eq(report->format, format);
    ck_assert_uint_eq(report->bad_lines, 0);
    ck_assert_uint_eq(report->requests, requests);
    ck_assert_uint_eq(read_requests, reads);
    ck_assert_uint_eq(read_blocks, blocks);
    tierce__trace_close(trace);
}

START_TEST(real_traces)
{
    if (getenv("TIERCE_TEST_DATA") == NULL)
        return;
    check_file("mooncake_conversation.jsonl", "mooncake", 12031, 12031, 288500);
    check_file("mooncake_synthetic.jsonl", "mooncake", 3993, 3993, 121877);
    check_file("shifting_small.jsonl", "mooncake", 601, 601, 5163);
    check_file("kvcm_event_publisher.log", "kvcm-log", 204, 102, 4246);
}
END_TEST

CHECK_MAIN("trace_conformance", .seconds = 50, .tests = {every_format_has_a_sample, real_traces},
           .loops = {{it_is_told_and_read, 0, SAMPLES},
                     {it_is_the_same_compressed, 0, SAMPLES},
                     {it_may_be_cut_anywhere, 0, SAMPLES},
                     {bad_lines_are_counted, 0, SAMPLES},
                     {lines_have_a_limit, 0, SAMPLES},
                     {random_bytes_do_no_harm, 0, SAMPLES},
                     {every_allocation_may_fail, 0, SAMPLES}})
