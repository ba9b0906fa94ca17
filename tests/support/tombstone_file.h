/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_TOMBSTONE_FILE_H
#define TIERCE_TESTS_TOMBSTONE_FILE_H

#include "base/bytes.h"
#include "check_main.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Writes a file of tombstones as docs/inside/format/tombstones.md describes it, many times faster
 * than with a sync for each. The first four bytes of a hash are the record's index. */
static inline void write_tombstones(const char *path, uint32_t count, uint64_t store,
                                    const uint8_t digest[32])
{
    enum { PAGE_BYTES = 4096, RECORDS = 42 };
    uint8_t page[PAGE_BYTES];
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (uint32_t done = 0, number = 0; done < count; number++) {
        uint32_t records = count - done < RECORDS ? count - done : RECORDS;
        memset(page, 0, sizeof(page));
        memcpy(page, "TRCETOMB", 8);
        tierce__store_le32(page + 16, 1);
        tierce__store_le32(page + 20, records);
        tierce__store_le64(page + 24, number);
        tierce__store_le64(page + 32, number);
        for (uint32_t i = 0; i < records; i++, done++) {
            uint8_t *record = page + 64 + (size_t)i * 96;
            tierce__store_le32(record, 1);
            tierce__store_le64(record + 8, store);
            tierce__store_le16(record + 18, 1);
            tierce__store_le16(record + 22, 1);
            memcpy(record + 32, digest, 32);
            tierce__store_le32(record + 64, done);
        }
        tierce__store_le64(page + 8, XXH3_64bits(page + 16, sizeof(page) - 16));
        ck_assert_uint_eq(fwrite(page, sizeof(page), 1, file), 1);
    }
    ck_assert_int_eq(fclose(file), 0);
}

#endif
