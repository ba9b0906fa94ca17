/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "core/chunk/coded.h"
#include "core/paged/paged.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The same as a coded object, whose table gets a sum that fits; what parses must lie inside its own
 * lengths, and is decoded, with some key if it is encrypted, or rejected. */
static void try_coded(uint8_t *object, size_t size)
{
    struct tierce__coded_info info;
    struct tierce__chunk_info chunk;
    uint32_t codec;
    if (tierce__chunk_parse_coded(&chunk, &codec, object, size) < 0 ||
        tierce__coded_head_bytes(&chunk) > size)
        return;
    uint8_t *table = object + chunk.extent.header_bytes;
    uint64_t bytes = tierce__coded_head_bytes(&chunk) - chunk.extent.header_bytes;
    tierce__store_le64(table + 24, tierce__chunk_header_sum(object));
    tierce__store_le64(table + 8, tierce__sum(table + 16, bytes - 16));
    if (tierce__coded_parse(&info, object, size) < 0 || info.object_bytes > size ||
        info.chunk.extent.object_bytes > 16 * size)
        return;
    uint8_t *raw = malloc(info.chunk.extent.object_bytes);
    if (raw != NULL) {
        const struct tierce__seal_key key = {.number = info.key_number, .bytes = {1}};
        int rc = info.key_number > 0 ? tierce__coded_open(&info, object, &key) : 0;
        if (rc == 0)
            rc = tierce__coded_decode(raw, &info, object);
        TIERCE_ASSERT(rc == 0 || rc == TIERCE_E_FORMAT || rc == TIERCE_E_CHECKSUM ||
                      (rc == TIERCE_E_VERSION && info.key_number > 0));
    }
    free(raw);
}

/* Parses hostile bytes, once as they are and once with a sum that fits, so that the checks behind
 * the sum are reached; what parses must lie inside its own lengths. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__chunk_info info;
    if (tierce__chunk_parse(&info, data, size) == 0 && info.extent.object_bytes <= size)
        (void)tierce__chunk_verify_cells(data, &info);
    if (size < 4096)
        return 0;
    uint8_t *copy = malloc(size);
    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    uint32_t header_bytes;
    memcpy(&header_bytes, copy + 12, sizeof(header_bytes));
    if (header_bytes >= 4096 && header_bytes % 4096 == 0 && header_bytes <= size) {
        tierce__chunk_seal(copy, header_bytes);
        if (tierce__chunk_parse(&info, copy, size) == 0 && info.extent.object_bytes <= size)
            (void)tierce__chunk_verify_cells(copy, &info);
        try_coded(copy, size);
    }
    free(copy);
    return 0;
}
