/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/chunk/header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    }
    free(copy);
    return 0;
}
