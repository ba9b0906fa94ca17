/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/grpc/reflection/reflection.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "net/server/grpc/grpc_private.h"
#include "net/server/grpc/reflection/reflection_private.h"

#include <errno.h>
#include <string.h>

/* The fields of ServerReflectionRequest and ServerReflectionResponse, equal in both versions. */
enum {
    BY_FILENAME = 3,
    CONTAINING_SYMBOL = 4,
    CONTAINING_EXTENSION = 5,
    EXTENSION_NUMBERS = 6,
    LIST_SERVICES = 7,
};
enum {
    ORIGINAL_REQUEST = 2,
    FILE_DESCRIPTORS = 4,
    EXTENSION_NUMBERS_RESPONSE = 5,
    SERVICES = 6,
    ERROR = 7,
};

/* ---- writing --------------------------------------------------------------------------------- */

struct reflection_writer {
    uint8_t *data;
    size_t bytes, capacity;
    bool failed;
};

static void put(struct reflection_writer *out, const void *bytes, size_t count)
{
    if (out->failed || count == 0)
        return;
    out->failed = TIERCE__GROW(out->data, out->capacity, out->bytes + count, 256) < 0;
    if (out->failed)
        return;
    TIERCE_ASSERT(count <= out->capacity - out->bytes);
    memcpy(out->data + out->bytes, bytes, count);
    out->bytes += count;
}

static void put_varint(struct reflection_writer *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (uint8_t)(value | 0x80);
    bytes[n++] = (uint8_t)value;
    TIERCE_ASSERT(n <= sizeof(bytes));
    put(out, bytes, n);
}

static void put_bytes(struct reflection_writer *out, uint32_t field, const void *bytes,
                      size_t count)
{
    put_varint(out, field << 3 | 2);
    put_varint(out, count);
    put(out, bytes, count);
}

static void put_message(struct reflection_writer *out, uint32_t field,
                        struct reflection_writer *message)
{
    put_bytes(out, field, message->data, message->bytes);
    out->failed |= message->failed;
    tierce__free(message->data);
}

/* ---- the answers ----------------------------------------------------------------------------- */

static void put_error(struct reflection_writer *out, uint32_t code, const char *text)
{
    struct reflection_writer error = {0};
    put_varint(&error, 1 << 3);
    put_varint(&error, code);
    put_bytes(&error, 2, text, strlen(text));
    put_message(out, ERROR, &error);
}

static void put_services(struct reflection_writer *out, const struct tierce__reflection *reflection)
{
    struct reflection_writer list = {0};
    for (size_t i = 0; i < reflection->symbol_count; i++) {
        const struct tierce__symbol *symbol = &reflection->symbols[i];
        if (symbol->kind != TIERCE__SYMBOL_SERVICE)
            continue;
        struct reflection_writer service = {0};
        put_bytes(&service, 1, symbol->name, strlen(symbol->name));
        put_message(&list, 1, &service);
    }
    put_message(out, SERVICES, &list);
}

/* Adds the file and all its dependencies, each once. */
static void put_file(struct reflection_writer *list, const struct tierce__reflection *reflection,
                     size_t file, bool *done)
{
    TIERCE_ASSERT(file < reflection->file_count);
    if (done[file])
        return;
    done[file] = true;
    put_bytes(list, 1, reflection->files[file].data, reflection->files[file].bytes);
    struct tierce__protobuf in = reflection->files[file];
    struct tierce__protobuf_field field;
    while (tierce__protobuf_next(&in, &field) > 0) {
        size_t other;
        if (field.number == TIERCE__FILE_DEPENDENCY &&
            tierce__reflection_find_file(reflection, &other, field.data, field.bytes))
            put_file(list, reflection, other, done);
    }
}

static void put_files(struct reflection_writer *out, const struct tierce__reflection *reflection,
                      size_t file)
{
    struct reflection_writer list = {0};
    bool *done = tierce__calloc(reflection->file_count, sizeof(bool));
    if (done != NULL)
        put_file(&list, reflection, file, done);
    else
        list.failed = true;
    put_message(out, FILE_DESCRIPTORS, &list);
    tierce__free(done);
}

static void put_answer(struct reflection_writer *out, const struct tierce__reflection *reflection,
                       const struct tierce__protobuf_field *asked)
{
    const struct tierce__symbol *symbol;
    size_t file;
    switch (asked->number) {
    case LIST_SERVICES:
        put_services(out, reflection);
        return;
    case BY_FILENAME:
        if (tierce__reflection_find_file(reflection, &file, asked->data, asked->bytes))
            put_files(out, reflection, file);
        else
            put_error(out, TIERCE__GRPC_NOT_FOUND, "no such file");
        return;
    case CONTAINING_SYMBOL:
        symbol = tierce__reflection_find_symbol(reflection, asked->data, asked->bytes);
        if (symbol != NULL)
            put_files(out, reflection, symbol->file);
        else
            put_error(out, TIERCE__GRPC_NOT_FOUND, "no such symbol");
        return;
    case EXTENSION_NUMBERS:
        symbol = tierce__reflection_find_symbol(reflection, asked->data, asked->bytes);
        if (symbol != NULL && symbol->kind == TIERCE__SYMBOL_MESSAGE) {
            struct reflection_writer numbers = {0};
            put_bytes(&numbers, 1, symbol->name, strlen(symbol->name));
            put_message(out, EXTENSION_NUMBERS_RESPONSE, &numbers);
            return;
        }
        put_error(out, TIERCE__GRPC_NOT_FOUND, "no such message");
        return;
    case CONTAINING_EXTENSION:
        put_error(out, TIERCE__GRPC_NOT_FOUND, "there are no extensions");
        return;
    default:
        put_error(out, TIERCE__GRPC_INVALID_ARGUMENT, "the request is empty");
    }
}

static int answer(const struct tierce__shared *shared, const struct tierce__grpc_message *message,
                  uint8_t **out, size_t *bytes, size_t *capacity)
{
    struct tierce__protobuf in = {message->body, message->bytes};
    struct tierce__protobuf_field field, asked = {0};
    int rc;
    while ((rc = tierce__protobuf_next(&in, &field)) > 0)
        if (field.number >= BY_FILENAME && field.number <= LIST_SERVICES)
            asked = field;
    if (rc < 0)
        return rc;
    struct reflection_writer response = {0}, all = {*out, *bytes, *capacity, false};
    uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES];
    put_bytes(&response, ORIGINAL_REQUEST, message->body, message->bytes);
    put_answer(&response, shared->reflection, &asked);
    tierce__grpc_prefix_write(prefix, response.bytes);
    put(&all, prefix, sizeof(prefix));
    put(&all, response.data, response.bytes);
    tierce__free(response.data);
    *out = all.data;
    *capacity = all.capacity;
    if (response.failed || all.failed)
        return -ENOMEM;
    *bytes = all.bytes;
    return 0;
}

const struct tierce__grpc_talk tierce__reflection_talks[TIERCE__REFLECTION_TALKS] = {
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", answer},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", answer},
};
