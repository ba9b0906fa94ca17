/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "net/server/grpc/grpc_private.h"

#include <errno.h>
#include <zlib.h>

/* The decompressed message, which grows on demand. */
struct output {
    struct tierce__held *held;
    uint8_t *body;
    size_t bytes, capacity;
};

static void output_fini(struct output *out)
{
    if (out->held != NULL)
        tierce__held_give_back(out->held, out->capacity);
    tierce__free(out->body);
}

static int output_grow(struct output *out, size_t bytes_max)
{
    size_t capacity = out->capacity > 0 ? 2 * out->capacity : 16384;
    if (capacity > bytes_max)
        capacity = bytes_max;
    if (capacity <= out->capacity)
        return TIERCE_E_LIMIT;
    size_t more = capacity - out->capacity;
    if (out->held != NULL && !tierce__held_take(out->held, more))
        return -ENOMEM;
    uint8_t *body = tierce__realloc(out->body, capacity);
    if (body == NULL) {
        if (out->held != NULL)
            tierce__held_give_back(out->held, more);
        return -ENOMEM;
    }
    out->body = body;
    out->capacity = capacity;
    TIERCE_ASSERT(out->bytes < out->capacity && out->capacity <= bytes_max);
    return 0;
}

/* Whether the stream has ended with nothing behind it; asked with the output full at its limit,
 * where only the end may follow. */
static int inflate_all(z_stream *stream, struct output *out, size_t bytes_max)
{
    for (;;) {
        uint8_t beyond = 0;
        int grown = out->bytes == out->capacity ? output_grow(out, bytes_max) : 0;
        if (grown == -ENOMEM)
            return grown;
        bool full = grown != 0;
        stream->next_out = full ? &beyond : out->body + out->bytes;
        stream->avail_out = full ? 1 : (uInt)(out->capacity - out->bytes);
        uInt before = stream->avail_out;
        int rc = inflate(stream, Z_NO_FLUSH);
        size_t made = before - stream->avail_out;
        if (full && made > 0)
            return TIERCE_E_LIMIT;
        out->bytes += made;
        TIERCE_ASSERT(out->bytes <= out->capacity);
        if (rc == Z_STREAM_END)
            return stream->avail_in == 0 ? 0 : TIERCE_E_FORMAT;
        if (rc == Z_MEM_ERROR)
            return -ENOMEM;
        /* Room was given, so that no progress means that the input has ended early. */
        if (rc != Z_OK)
            return TIERCE_E_FORMAT;
    }
}

int tierce__grpc_message_inflate(struct tierce__grpc_message *message, size_t bytes_max)
{
    z_stream stream = {.next_in = message->body, .avail_in = (uInt)message->bytes};
    if (inflateInit2(&stream, 15 + 32) != Z_OK) /* either header */
        return -ENOMEM;
    struct output out = {.held = message->held};
    int rc = inflate_all(&stream, &out, bytes_max);
    inflateEnd(&stream);
    if (rc != 0) {
        output_fini(&out);
        return rc;
    }
    TIERCE_ASSERT(out.bytes <= bytes_max);
    tierce__grpc_message_fini(message);
    *message = (struct tierce__grpc_message){
        .held = out.held, .body = out.body, .bytes = out.bytes, .capacity = out.capacity};
    return 0;
}
