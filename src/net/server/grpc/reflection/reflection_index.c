/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "net/server/grpc/reflection/reflection.h"
#include "net/server/grpc/reflection/reflection_private.h"

#include <errno.h>
#include <string.h>

/* Field numbers of descriptor.proto. */
enum { SET_FILE = 1 };
enum { NAME = 1 }; /* of all */
enum { FILE_PACKAGE = 2, FILE_MESSAGE = 4, FILE_ENUM = 5, FILE_SERVICE = 6 };
enum { MESSAGE_NESTED = 3, MESSAGE_ENUM = 4 };
enum { SERVICE_METHOD = 2 };

/* A message within a message within ...: protoc takes 32. */
#define DEPTH_MAX 64

static struct tierce__protobuf_field find(struct tierce__protobuf in, uint32_t number)
{
    struct tierce__protobuf_field field;
    while (tierce__protobuf_next(&in, &field) > 0)
        if (field.number == number)
            return field;
    return (struct tierce__protobuf_field){.data = (const uint8_t *)""};
}

/* scope + '.' + name, on the heap. */
static char *full_name(const char *scope, const struct tierce__protobuf_field *name)
{
    size_t n = strlen(scope);
    char *text = tierce__alloc(n + name->bytes + 2);
    if (text == NULL)
        return NULL;
    memcpy(text, scope, n);
    if (n > 0)
        text[n++] = '.';
    if (name->bytes > 0)
        memcpy(text + n, name->data, name->bytes);
    text[n + name->bytes] = '\0';
    return text;
}

static struct tierce__symbol *add(struct tierce__reflection *reflection, const char *scope,
                                  struct tierce__protobuf in, enum tierce__symbol_kind kind,
                                  size_t file)
{
    TIERCE_ASSERT(file < reflection->file_count);
    if (TIERCE__GROW(reflection->symbols, reflection->symbol_capacity, reflection->symbol_count + 1,
                     64) < 0)
        return NULL;
    TIERCE_ASSERT(reflection->symbol_count < reflection->symbol_capacity);
    struct tierce__protobuf_field name = find(in, NAME);
    struct tierce__symbol *symbol = &reflection->symbols[reflection->symbol_count];
    *symbol = (struct tierce__symbol){full_name(scope, &name), kind, file};
    if (symbol->name == NULL)
        return NULL;
    reflection->symbol_count++;
    return symbol;
}

/* A symbol and those inside of it. */
static int add_all(struct tierce__reflection *reflection, const char *scope,
                   struct tierce__protobuf in, enum tierce__symbol_kind kind, size_t file,
                   unsigned depth)
{
    const struct tierce__symbol *symbol = add(reflection, scope, in, kind, file);
    if (symbol == NULL || depth > DEPTH_MAX)
        return symbol == NULL ? -ENOMEM : TIERCE_E_FORMAT;
    const char *name = symbol->name; /* keeps its address when the table grows */
    struct tierce__protobuf_field field;
    int rc = 0;
    while (rc == 0 && in.bytes > 0) {
        rc = tierce__protobuf_next(&in, &field);
        if (rc < 0)
            break;
        struct tierce__protobuf inner = {field.data, field.bytes};
        rc = 0;
        if (kind == TIERCE__SYMBOL_SERVICE && field.number == SERVICE_METHOD)
            rc = add_all(reflection, name, inner, TIERCE__SYMBOL_METHOD, file, depth + 1);
        else if (kind == TIERCE__SYMBOL_MESSAGE && field.number == MESSAGE_NESTED)
            rc = add_all(reflection, name, inner, TIERCE__SYMBOL_MESSAGE, file, depth + 1);
        else if (kind == TIERCE__SYMBOL_MESSAGE && field.number == MESSAGE_ENUM)
            rc = add_all(reflection, name, inner, TIERCE__SYMBOL_ENUM, file, depth + 1);
    }
    return rc;
}

static int add_file(struct tierce__reflection *reflection, struct tierce__protobuf in, size_t file)
{
    struct tierce__protobuf_field package = find(in, FILE_PACKAGE), field;
    char *scope = full_name("", &package);
    int rc = scope != NULL ? 0 : -ENOMEM;
    while (rc == 0 && in.bytes > 0) {
        rc = tierce__protobuf_next(&in, &field);
        if (rc < 0)
            break;
        struct tierce__protobuf inner = {field.data, field.bytes};
        rc = 0;
        if (field.number == FILE_MESSAGE)
            rc = add_all(reflection, scope, inner, TIERCE__SYMBOL_MESSAGE, file, 0);
        else if (field.number == FILE_ENUM)
            rc = add_all(reflection, scope, inner, TIERCE__SYMBOL_ENUM, file, 0);
        else if (field.number == FILE_SERVICE)
            rc = add_all(reflection, scope, inner, TIERCE__SYMBOL_SERVICE, file, 0);
    }
    tierce__free(scope);
    return rc;
}

int tierce__reflection_create(struct tierce__reflection **out, const void *descriptors,
                              size_t bytes)
{
    struct tierce__protobuf in = {descriptors, bytes};
    struct tierce__protobuf_field field;
    struct tierce__reflection *reflection = tierce__calloc(1, sizeof(*reflection));
    int rc = -ENOMEM;
    if (reflection == NULL)
        goto out;
    size_t count = 0;
    while ((rc = tierce__protobuf_next(&in, &field)) > 0)
        count += field.number == SET_FILE;
    if (rc < 0)
        goto out;
    rc = -ENOMEM;
    reflection->files = tierce__calloc(count, sizeof(*reflection->files));
    if (reflection->files == NULL)
        goto out;
    in = (struct tierce__protobuf){descriptors, bytes};
    rc = 0;
    while (rc == 0 && tierce__protobuf_next(&in, &field) > 0) {
        if (field.number != SET_FILE)
            continue;
        TIERCE_ASSERT(reflection->file_count < count);
        struct tierce__protobuf file = {field.data, field.bytes};
        reflection->files[reflection->file_count++] = file;
        rc = add_file(reflection, file, reflection->file_count - 1);
    }
    TIERCE_ASSERT(rc != 0 || reflection->file_count == count);
out:
    if (rc == 0)
        *out = reflection;
    else
        tierce__reflection_destroy(reflection);
    return rc;
}

void tierce__reflection_destroy(struct tierce__reflection *reflection)
{
    if (reflection == NULL)
        return;
    for (size_t i = 0; i < reflection->symbol_count; i++)
        tierce__free(reflection->symbols[i].name);
    tierce__free(reflection->symbols);
    tierce__free(reflection->files);
    tierce__free(reflection);
}

bool tierce__reflection_find_file(const struct tierce__reflection *reflection, size_t *out,
                                  const void *name, size_t bytes)
{
    for (size_t i = 0; i < reflection->file_count; i++) {
        struct tierce__protobuf_field field = find(reflection->files[i], NAME);
        if (field.bytes == bytes && (bytes == 0 || memcmp(field.data, name, bytes) == 0)) {
            *out = i;
            return true;
        }
    }
    return false;
}

const struct tierce__symbol *
tierce__reflection_find_symbol(const struct tierce__reflection *reflection, const void *name,
                               size_t bytes)
{
    for (size_t i = 0; i < reflection->symbol_count; i++) {
        const struct tierce__symbol *symbol = &reflection->symbols[i];
        if (strlen(symbol->name) == bytes && memcmp(symbol->name, name, bytes) == 0)
            return symbol;
    }
    return NULL;
}
