/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_REFLECTION_PRIVATE_H
#define TIERCE_NET_REFLECTION_PRIVATE_H

#include <stdbool.h>

#include "net/server/grpc/protobuf.h"

#define TIERCE__FILE_DEPENDENCY 3u /* FileDescriptorProto.dependency */

enum tierce__symbol_kind {
    TIERCE__SYMBOL_MESSAGE,
    TIERCE__SYMBOL_ENUM,
    TIERCE__SYMBOL_SERVICE,
    TIERCE__SYMBOL_METHOD,
};

struct tierce__symbol {
    char *name; /* with its package */
    enum tierce__symbol_kind kind;
    size_t file;
};

struct tierce__reflection {
    struct tierce__protobuf *files; /* each a FileDescriptorProto */
    size_t file_count;
    struct tierce__symbol *symbols;
    size_t symbol_count, symbol_capacity;
};

bool tierce__reflection_find_file(const struct tierce__reflection *reflection, size_t *out,
                                  const void *name, size_t bytes);
const struct tierce__symbol *
tierce__reflection_find_symbol(const struct tierce__reflection *reflection, const void *name,
                               size_t bytes);

#endif
