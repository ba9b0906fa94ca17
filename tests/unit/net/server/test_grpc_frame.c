/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include "base/alloc.h"
#include "net/server/call_private.h"
#include "net/server/grpc/grpc_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct tierce__held held = {.max = 1 << 20};

static void teardown(void)
{
    ck_assert_uint_eq(held.bytes, 0);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Three messages, one of them empty, in pieces of every size. */
START_TEST(test_pieces_of_every_size)
{
    static const uint8_t stream[] = {0, 0, 0, 0, 3, 'a', 'b', 'c', 0,   0,   0,
                                     0, 0, 1, 0, 0, 0,   4,   'd', 'e', 'f', 'g'};
    static const char *const wanted[] = {"abc", "", "defg"};
    for (size_t piece = 1; piece <= sizeof(stream); piece++) {
        struct tierce__grpc_reader reader;
        tierce__grpc_reader_init(&reader, &held, 4);
        size_t found = 0;
        for (size_t at = 0; at < sizeof(stream); at += piece) {
            const uint8_t *data = stream + at;
            size_t count = sizeof(stream) - at < piece ? sizeof(stream) - at : piece;
            struct tierce__grpc_message message;
            int rc;
            while ((rc = tierce__grpc_reader_feed(&reader, &message, &data, &count)) == 1) {
                ck_assert_uint_eq(message.bytes, strlen(wanted[found]));
                if (message.bytes > 0)
                    ck_assert(memcmp(message.body, wanted[found], message.bytes) == 0);
                ck_assert(message.is_compressed == (found == 2));
                tierce__grpc_message_fini(&message);
                found++;
            }
            ck_assert_int_eq(rc, 0);
            ck_assert_uint_eq(count, 0);
        }
        ck_assert_uint_eq(found, 3);
        ck_assert(!tierce__grpc_reader_is_inside(&reader));
        tierce__grpc_reader_fini(&reader);
    }
}
END_TEST

static int feed(const void *bytes, size_t count, size_t bytes_max)
{
    struct tierce__grpc_reader reader;
    struct tierce__grpc_message message = {0};
    const uint8_t *data = bytes;
    tierce__grpc_reader_init(&reader, &held, bytes_max);
    int rc = tierce__grpc_reader_feed(&reader, &message, &data, &count);
    if (rc == 1)
        tierce__grpc_message_fini(&message);
    tierce__grpc_reader_fini(&reader);
    return rc;
}

START_TEST(test_bad_prefixes)
{
    ck_assert_int_eq(feed("\2\0\0\0\0", 5, 10), TIERCE_E_FORMAT);
    ck_assert_int_eq(feed("\377\0\0\0\0", 5, 10), TIERCE_E_FORMAT);
    ck_assert_int_eq(feed("\0\0\0\0\13", 5, 10), TIERCE_E_LIMIT);
    ck_assert_int_eq(feed("\0\377\377\377\377", 5, 10), TIERCE_E_LIMIT);
    ck_assert_int_eq(feed("\0\0\0\0\12", 5, 10), 0);
    ck_assert_int_eq(feed("\2\0\0\0", 4, 10), 0);
}
END_TEST

/* A length that is only promised costs nothing; bytes that came are held, up to the limit. */
START_TEST(test_memory_follows_what_came)
{
    struct tierce__grpc_reader reader;
    struct tierce__grpc_message message;
    static uint8_t bytes[3 << 20];
    const uint8_t *data = bytes;
    size_t count = 5;
    tierce__grpc_prefix_write(bytes, 2 << 20);
    tierce__grpc_reader_init(&reader, &held, 4 << 20);
    ck_assert_int_eq(tierce__grpc_reader_feed(&reader, &message, &data, &count), 0);
    ck_assert_uint_eq(held.bytes, 0);
    count = 100;
    ck_assert_int_eq(tierce__grpc_reader_feed(&reader, &message, &data, &count), 0);
    ck_assert_uint_le(held.bytes, 4096);
    count = 2 << 20;
    ck_assert_int_eq(tierce__grpc_reader_feed(&reader, &message, &data, &count), -ENOMEM);
    ck_assert_uint_le(held.bytes, 4096);
    tierce__grpc_reader_fini(&reader);
}
END_TEST

START_TEST(test_no_memory)
{
    struct tierce__grpc_reader reader;
    struct tierce__grpc_message message;
    const uint8_t *data = (const uint8_t *)"\0\0\0\0\3abc";
    size_t count = 8;
    tierce__grpc_reader_init(&reader, &held, 10);
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__grpc_reader_feed(&reader, &message, &data, &count), -ENOMEM);
    tierce__alloc_fail_nth(0);
    tierce__grpc_reader_fini(&reader);
}
END_TEST

/* ---- compressed ------------------------------------------------------------------------------ */

static struct tierce__grpc_message pack(const void *bytes, size_t count, int window)
{
    z_stream stream = {0};
    ck_assert_int_eq(deflateInit2(&stream, 6, Z_DEFLATED, window, 8, 0), Z_OK);
    size_t capacity = deflateBound(&stream, count) + 64;
    struct tierce__grpc_message message = {.body = tierce__alloc(capacity), .capacity = capacity};
    stream.next_in = (Bytef *)(uintptr_t)bytes;
    stream.avail_in = (uInt)count;
    stream.next_out = message.body;
    stream.avail_out = (uInt)capacity;
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    message.bytes = stream.total_out;
    deflateEnd(&stream);
    return message;
}

START_TEST(test_inflate_up_to_the_limit)
{
    static uint8_t plain[100000];
    static const size_t sizes[] = {0, 1, 16383, 16384, 16385, 65536, 99999};
    for (size_t i = 0; i < sizeof(plain); i++)
        plain[i] = (uint8_t)(i * i >> 3);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (int window = 15; window <= 31; window += 16) {
            struct tierce__grpc_message message = pack(plain, sizes[i], window);
            if (sizes[i] > 0)
                ck_assert_int_eq(tierce__grpc_message_inflate(&message, sizes[i] - 1),
                                 TIERCE_E_LIMIT);
            ck_assert_int_eq(tierce__grpc_message_inflate(&message, sizes[i]), 0);
            ck_assert_uint_eq(message.bytes, sizes[i]);
            if (sizes[i] > 0)
                ck_assert(memcmp(message.body, plain, sizes[i]) == 0);
            ck_assert(!message.is_compressed);
            tierce__grpc_message_fini(&message);
        }
    }
}
END_TEST

START_TEST(test_inflate_of_broken_bytes)
{
    static const uint8_t plain[5000] = {1, 2, 3};
    struct tierce__grpc_message whole = pack(plain, sizeof(plain), 31);
    for (size_t n = 0; n < whole.bytes; n++) {
        struct tierce__grpc_message cut = {.body = whole.body, .bytes = n};
        ck_assert_int_eq(tierce__grpc_message_inflate(&cut, sizeof(plain)), TIERCE_E_FORMAT);
    }
    whole.body[whole.bytes++] = 0;
    ck_assert_int_eq(tierce__grpc_message_inflate(&whole, sizeof(plain)), TIERCE_E_FORMAT);
    whole.bytes--;
    whole.body[whole.bytes - 1] ^= 1; /* its length */
    ck_assert_int_eq(tierce__grpc_message_inflate(&whole, sizeof(plain)), TIERCE_E_FORMAT);
    tierce__grpc_message_fini(&whole);
}
END_TEST

CHECK_MAIN("grpc_frame", .teardown = teardown,
           .tests = {test_pieces_of_every_size, test_bad_prefixes, test_memory_follows_what_came,
                     test_no_memory, test_inflate_up_to_the_limit, test_inflate_of_broken_bytes})
