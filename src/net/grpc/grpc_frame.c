/* SPDX-License-Identifier: Apache-2.0 */
#include "net/grpc/grpc_frame.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

#define FIRST_BYTES 4096u

void tierce__grpc_message_fini(struct tierce__grpc_message *message)
{
    TIERCE_ASSERT(message->bytes <= message->capacity);
    if (message->held != NULL)
        tierce__held_give_back(message->held, message->capacity);
    tierce__free(message->body);
    *message = (struct tierce__grpc_message){0};
}

void tierce__grpc_reader_init(struct tierce__grpc_reader *reader, struct tierce__held *held,
                              size_t bytes_max)
{
    *reader = (struct tierce__grpc_reader){.held = held, .bytes_max = bytes_max};
}

void tierce__grpc_reader_fini(struct tierce__grpc_reader *reader)
{
    TIERCE_ASSERT(reader->bytes <= reader->capacity);
    if (reader->held != NULL)
        tierce__held_give_back(reader->held, reader->capacity);
    tierce__free(reader->body);
    reader->body = NULL;
    reader->capacity = reader->bytes = 0;
    reader->prefix_bytes = 0;
}

static size_t announced(const struct tierce__grpc_reader *reader)
{
    TIERCE_ASSERT(reader->prefix_bytes == TIERCE__GRPC_PREFIX_BYTES);
    const uint8_t *p = reader->prefix;
    return (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
}

/* Makes room for `wanted` bytes: doubles the memory, but not beyond the announced length. */
static int reserve(struct tierce__grpc_reader *reader, size_t wanted)
{
    TIERCE_ASSERT(wanted <= announced(reader));
    if (wanted <= reader->capacity)
        return 0;
    size_t capacity = 2 * reader->capacity;
    if (capacity < wanted)
        capacity = wanted;
    if (capacity < FIRST_BYTES)
        capacity = FIRST_BYTES;
    if (capacity > announced(reader))
        capacity = announced(reader);
    size_t more = capacity - reader->capacity;
    if (reader->held != NULL && !tierce__held_take(reader->held, more))
        return -ENOMEM;
    uint8_t *body = tierce__realloc(reader->body, capacity);
    if (body == NULL) {
        if (reader->held != NULL)
            tierce__held_give_back(reader->held, more);
        return -ENOMEM;
    }
    reader->body = body;
    reader->capacity = capacity;
    TIERCE_ASSERT(wanted <= reader->capacity);
    return 0;
}

static void hand_over(struct tierce__grpc_reader *reader, struct tierce__grpc_message *out)
{
    TIERCE_ASSERT(reader->bytes <= reader->capacity);
    *out = (struct tierce__grpc_message){.held = reader->held,
                                         .body = reader->body,
                                         .bytes = reader->bytes,
                                         .capacity = reader->capacity,
                                         .is_compressed = reader->prefix[0] == 1};
    reader->body = NULL;
    reader->bytes = reader->capacity = 0;
    reader->prefix_bytes = 0;
}

int tierce__grpc_reader_feed(struct tierce__grpc_reader *reader, struct tierce__grpc_message *out,
                             const uint8_t **data, size_t *count)
{
    while (reader->prefix_bytes < TIERCE__GRPC_PREFIX_BYTES) {
        if (*count == 0)
            return 0;
        reader->prefix[reader->prefix_bytes++] = **data;
        (*data)++;
        (*count)--;
    }
    if (reader->prefix[0] > 1)
        return TIERCE_E_FORMAT;
    size_t length = announced(reader);
    if (length > reader->bytes_max)
        return TIERCE_E_LIMIT;
    TIERCE_ASSERT(reader->bytes <= length);
    size_t n = length - reader->bytes;
    if (n > *count)
        n = *count;
    if (n > 0) {
        int rc = reserve(reader, reader->bytes + n);
        if (rc != 0)
            return rc;
        TIERCE_ASSERT(n <= reader->capacity - reader->bytes);
        memcpy(reader->body + reader->bytes, *data, n);
        reader->bytes += n;
        *data += n;
        *count -= n;
    }
    if (reader->bytes < length)
        return 0;
    TIERCE_ASSERT(reader->bytes == length);
    hand_over(reader, out);
    return 1;
}

bool tierce__grpc_reader_is_inside(const struct tierce__grpc_reader *reader)
{
    return reader->prefix_bytes > 0;
}

void tierce__grpc_prefix_write(uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES], size_t bytes)
{
    TIERCE_ASSERT(bytes <= UINT32_MAX);
    prefix[0] = 0;
    prefix[1] = (uint8_t)(bytes >> 24);
    prefix[2] = (uint8_t)(bytes >> 16);
    prefix[3] = (uint8_t)(bytes >> 8);
    prefix[4] = (uint8_t)bytes;
}
