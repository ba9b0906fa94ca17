/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "manager/meta/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Hostile bytes; a readable record is written as the same bytes, with memory in proportion. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__arena arena = {0};
    struct tierce__record record;
    if (tierce__record_read(&record, &arena, data, size) == 0) {
        uint8_t *again = malloc(size);
        if (again == NULL || tierce__record_size(&record) != size)
            abort();
        tierce__record_write(&record, again);
        if (memcmp(again, data, size) != 0)
            abort();
        (void)tierce__record_bytes(&record);
        free(again);
    }
    if (arena.taken > 65536 + 64 * size)
        abort();
    tierce__arena_clear(&arena);
    return 0;
}
