/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_META_RECORDS_H
#define TIERCE_TESTS_META_RECORDS_H

#include "check_main.h"
#include "manager/meta/meta_store.h"

#include <stdio.h>
#include <string.h>

/* Records that tests make from a key and a version, and know again. */

struct test_record {
    struct tierce__spec_place places[3];
    struct tierce__location locations[2];
    char uri[64];
    struct tierce__record record;
};

/* Two locations in every third record, one of them by a text; a parent in all but every fourth, a
 * hint in every eighth. */
static inline const struct tierce__record *test_record(struct test_record *out, int64_t key,
                                                       uint32_t version)
{
    uint64_t n = (uint64_t)key * 31 + version;
    memset(out, 0, sizeof(*out));
    out->places[0] = (struct tierce__spec_place){
        .spec = 0, .file = n % 1000000007 + 1, .slot = version, .bytes = 4096 + n % 1000};
    out->places[1] = (struct tierce__spec_place){
        .spec = 1, .file = (1ULL << 40) + version, .slot = 7, .bytes = 100};
    snprintf(out->uri, sizeof(out->uri), "hf3fs://other/f%u \"\\\xc3\xa4?size=%u", version,
             version % 100);
    out->places[2] =
        (struct tierce__spec_place){.spec = 0, .bytes = version % 100, .uri = out->uri};
    if (n % 6 == 0) /* of one place of three */
        memset(out->places[1].sum, (int)(n % 255) + 1, sizeof(out->places[1].sum));
    out->locations[0] = (struct tierce__location){
        .id = "abcd0000", .storage = 1, .type = 4, .place_count = 2, .places = out->places};
    out->locations[1] = (struct tierce__location){
        .id = "zz99zz99", .storage = 2, .type = 1, .place_count = 1, .places = out->places + 2};
    out->locations[0].id[7] = (char)('a' + version % 26);
    out->record = (struct tierce__record){.used_us = 1700000000000000 + version,
                                          .stored_us = 1600000000000000 + (int64_t)(n % 1000),
                                          .uses = version,
                                          .children = version % 5,
                                          .has_parent = n % 4 != 0,
                                          .parent = n % 4 != 0 ? (int64_t)((uint64_t)key - 1) : 0,
                                          .location_count = n % 3 == 0 ? 2 : 1,
                                          .locations = out->locations};
    if (n % 5 == 0)
        out->record.expires_us = 1800000000000000 + version;
    if (n % 8 == 0)
        out->record.hint =
            tierce__hint_make((enum tierce__policy_hint)(1 + version % 5), 1 + version);
    if (n % 7 == 0) {
        out->record.key_text = "a key\0of text";
        out->record.key_text_bytes = 13;
    }
    return &out->record;
}

static inline bool test_records_equal(const struct tierce__record *a,
                                      const struct tierce__record *b)
{
    size_t bytes = tierce__record_size(a);
    if (bytes != tierce__record_size(b))
        return false;
    char *x = malloc(bytes), *y = malloc(bytes);
    tierce__record_write(a, x);
    tierce__record_write(b, y);
    bool equal = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return equal;
}

static inline void test_record_check(const struct tierce__record *record, int64_t key,
                                     uint32_t version)
{
    struct test_record wanted;
    ck_assert_msg(test_records_equal(record, test_record(&wanted, key, version)),
                  "the record of %lld is not that of version %u", (long long)key, version);
}

#endif
