/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/trace/trace_input.h"
#include "test_random.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

enum { LIMIT = 1 << 20 };

static struct tierce__input *open_bytes(const void *data, size_t size)
{
    struct tierce__input *input;
    char why[TIERCE__INPUT_WHY_BYTES];
    ck_assert_int_eq(tierce__input_open_memory(&input, data, size, LIMIT, why), 0);
    return input;
}

static size_t gzip(void *out, size_t size, const void *text, size_t length)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = text;
    z.avail_in = length;
    z.next_out = out;
    z.avail_out = size;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t used = size - z.avail_out;
    deflateEnd(&z);
    return used;
}

START_TEST(lines)
{
    static const char text[] = "a\n\nbc\r\n\rd\n\r\nlast";
    static const char *const wanted[] = {"a", "", "bc", "\rd", "", "last"};
    struct tierce__input *input = open_bytes(text, sizeof(text) - 1);
    struct tierce__trace_line line;
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_int_eq(tierce__input_line(input, &line), 1);
        ck_assert_uint_eq(line.number, i + 1);
        ck_assert_uint_eq(line.length, strlen(wanted[i]));
        ck_assert_mem_eq(line.at, wanted[i], line.length);
        ck_assert_int_eq(line.cut, i == 5);
        ck_assert(i < 5 || line.at[line.length] == '\n');
    }
    ck_assert_int_eq(tierce__input_line(input, &line), 0);
    ck_assert_int_eq(tierce__input_line(input, &line), 0);
    tierce__input_close(input);
    input = open_bytes("", 0);
    ck_assert_int_eq(tierce__input_line(input, &line), 0);
    tierce__input_close(input);
}
END_TEST

START_TEST(a_line_that_is_too_long_is_passed_over)
{
    for (size_t extra = 0; extra < 2; extra++) {
        static char text[3 * LIMIT];
        memset(text, 'x', sizeof(text));
        text[LIMIT + extra] = '\n';
        text[LIMIT + extra + 1] = 'y';
        text[LIMIT + extra + 2] = '\n';
        struct tierce__input *input = open_bytes(text, sizeof(text));
        struct tierce__trace_line line;
        ck_assert_int_eq(tierce__input_line(input, &line), 1);
        ck_assert_int_eq(line.too_long, extra > 0);
        ck_assert(extra > 0 || line.length == LIMIT);
        ck_assert_int_eq(tierce__input_line(input, &line), 1);
        ck_assert(!line.too_long && line.length == 1 && line.at[0] == 'y');
        ck_assert_int_eq(tierce__input_line(input, &line), 1);
        ck_assert(line.too_long && line.number == 3);
        ck_assert_int_eq(tierce__input_line(input, &line), 0);
        tierce__input_close(input);
    }
}
END_TEST

/* Numbered lines of many lengths, which cross every border of the buffers. */
static size_t make_text(char *text, size_t size, struct test_random *random)
{
    size_t used = 0;
    for (unsigned i = 0; used + 5000 < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%u:", i);
        size_t n = test_random_below(random, i % 50 == 0 ? 4000 : 60);
        for (size_t k = 0; k < n; k++)
            text[used++] = (char)('a' + test_random_below(random, 26));
        text[used++] = '\n';
    }
    return used;
}

static void check_lines(const void *data, size_t size, const char *text, size_t length)
{
    struct tierce__input *input = open_bytes(data, size);
    struct tierce__trace_line line;
    const char *at = text;
    while (tierce__input_line(input, &line) == 1) {
        ck_assert_uint_le(line.length + 1, (size_t)(text + length - at));
        ck_assert_mem_eq(line.at, at, line.length);
        at += line.length + 1;
        ck_assert(at[-1] == '\n');
    }
    ck_assert_str_eq(tierce__input_error(input), "");
    ck_assert_ptr_eq(at, text + length);
    uint64_t whole;
    ck_assert_uint_eq(tierce__input_position(input, &whole), size);
    ck_assert_uint_eq(whole, size);
    tierce__input_close(input);
}

START_TEST(compressed_or_not_it_is_the_same)
{
    struct test_random random = test_random_start("input");
    static char text[2 << 20], packed[4 << 20];
    size_t length = make_text(text, sizeof(text), &random), half = length / 3;
    check_lines(text, length, text, length);
    /* One stream, and two one after the other. */
    size_t n = gzip(packed, sizeof(packed), text, length);
    check_lines(packed, n, text, length);
    n = gzip(packed, sizeof(packed), text, half);
    n += gzip(packed + n, sizeof(packed) - n, text + half, length - half);
    check_lines(packed, n, text, length);
    memset(packed + n, 0, 1000);
    check_lines(packed, n + 1000, text, length);
    n = ZSTD_compress(packed, sizeof(packed), text, length, 3);
    check_lines(packed, n, text, length);
    n = ZSTD_compress(packed, sizeof(packed), text, half, 3);
    n += ZSTD_compress(packed + n, sizeof(packed) - n, text + half, length - half, 1);
    check_lines(packed, n, text, length);
}
END_TEST

/* Reads to the end or an error. */
static int read_all(const void *data, size_t size)
{
    struct tierce__input *input;
    struct tierce__trace_line line;
    char why[TIERCE__INPUT_WHY_BYTES];
    int rc = tierce__input_open_memory(&input, data, size, LIMIT, why);
    if (rc < 0)
        return rc;
    while ((rc = tierce__input_line(input, &line)) > 0)
        continue;
    ck_assert_int_eq(rc < 0, tierce__input_error(input)[0] != '\0');
    ck_assert_int_eq(tierce__input_line(input, &line), rc);
    tierce__input_close(input);
    return rc;
}

START_TEST(a_damaged_stream_is_an_error)
{
    char text[5000], packed[10000];
    struct test_random random = test_random_start("damage");
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)test_random_u64(&random);
    for (unsigned codec = 0; codec < 2; codec++) {
        size_t n = codec == 0 ? gzip(packed, sizeof(packed), text, sizeof(text))
                              : ZSTD_compress(packed, sizeof(packed), text, sizeof(text), 3);
        ck_assert_int_eq(read_all(packed, n), 0);
        for (size_t cut = 5; cut < n; cut += cut < 40 ? 1 : 97)
            ck_assert_int_eq(read_all(packed, cut), TIERCE_E_FORMAT);
        /* A gzip stream ends with a sum. */
        packed[codec == 0 ? n - 6 : 4] ^= 0x41;
        ck_assert_int_eq(read_all(packed, n), TIERCE_E_FORMAT);
        packed[codec == 0 ? n - 6 : 4] ^= 0x41;
        memcpy(packed + n, "garbage", 7);
        ck_assert_int_eq(read_all(packed, n + 7), TIERCE_E_FORMAT);
    }
}
END_TEST

START_TEST(pipes_may_give_bytes_one_by_one)
{
    char packed[1000], why[TIERCE__INPUT_WHY_BYTES];
    size_t n = gzip(packed, sizeof(packed), "one\ntwo\n", 8);
    int ends[2], saved = dup(STDIN_FILENO);
    struct tierce__input *input;
    struct tierce__trace_line line;
    ck_assert_int_eq(pipe(ends), 0);
    if (fork() == 0) {
        for (size_t i = 0; i < n; i++)
            if (write(ends[1], packed + i, 1) != 1)
                _exit(1);
        _exit(0);
    }
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    ck_assert_int_eq(tierce__input_open(&input, "-", LIMIT, why), 0);
    ck_assert_int_eq(tierce__input_line(input, &line), 1);
    ck_assert_mem_eq(line.at, "one", 3);
    ck_assert_int_eq(tierce__input_line(input, &line), 1);
    ck_assert_mem_eq(line.at, "two", 3);
    ck_assert_int_eq(tierce__input_line(input, &line), 0);
    tierce__input_close(input);
    dup2(saved, STDIN_FILENO);
}
END_TEST

START_TEST(records_are_peeked_and_taken)
{
    static char text[600000];
    const char *at;
    size_t length;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 7 % 251);
    struct tierce__input *input = open_bytes(text, sizeof(text));
    for (size_t done = 0; done < sizeof(text);) {
        size_t wanted = done % 3 == 0 ? 100001 : 7;
        if (wanted > sizeof(text) - done)
            wanted = sizeof(text) - done;
        ck_assert_int_eq(tierce__input_peek(input, &at, &length, wanted), 0);
        ck_assert_uint_ge(length, wanted);
        ck_assert_mem_eq(at, text + done, wanted);
        tierce__input_take(input, wanted);
        done += wanted;
    }
    ck_assert_int_eq(tierce__input_peek(input, &at, &length, 1), 0);
    ck_assert_uint_eq(length, 0);
    ck_assert_int_eq(tierce__input_peek(input, &at, &length, LIMIT + 1), TIERCE_E_LIMIT);
    tierce__input_close(input);
}
END_TEST

START_TEST(files_that_cannot_be_read)
{
    struct tierce__input *input;
    char why[TIERCE__INPUT_WHY_BYTES];
    ck_assert_int_eq(tierce__input_open(&input, "/nowhere", LIMIT, why), -ENOENT);
    ck_assert_str_eq(why, "cannot be opened: No such file or directory");
    ck_assert_int_eq(tierce__input_open(&input, "/tmp", LIMIT, why), -EISDIR);
    ck_assert_str_eq(why, "is a folder; name the file");
}
END_TEST

CHECK_MAIN("trace_input", .seconds = 50,
           .tests = {lines, a_line_that_is_too_long_is_passed_over,
                     compressed_or_not_it_is_the_same, a_damaged_stream_is_an_error,
                     pipes_may_give_bytes_one_by_one, records_are_peeked_and_taken,
                     files_that_cannot_be_read})
