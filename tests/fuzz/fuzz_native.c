/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "proto/native/native.h"

#include <string.h>

/* Frames of the native protocol, both directions: unpacked fields lie within the body, and packing
 * them yields the body again. The first byte is the op. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const struct tierce__native_frame *frame, const uint8_t *body, size_t bytes)
{
    TIERCE_ASSERT(frame->used == bytes + TIERCE__NATIVE_HEAD);
    TIERCE_ASSERT(bytes == 0 || memcmp(frame->bytes + TIERCE__NATIVE_HEAD, body, bytes) == 0);
}

static void check_rows(const union tierce__native_answer *answer, uint32_t op)
{
    struct tierce__native_lent lent;
    struct tierce__native_reserved reserved;
    struct tierce__native_come_tier tier;
    uint8_t row[TIERCE__NATIVE_LENT_BYTES];
    const struct tierce__native_rows *rows = &answer->load_begin.chunks;
    for (uint32_t i = 0; op == TIERCE__NATIVE_LOAD_BEGIN && i < rows->count; i++) {
        if (tierce__native_get_lent(&lent, rows, i) < 0)
            continue;
        TIERCE_ASSERT(lent.from <= lent.to && lent.to <= lent.block_count);
        tierce__native_put_lent(row, &lent);
        TIERCE_ASSERT(memcmp(row, rows->bytes + i * sizeof(row), 35) == 0);
    }
    rows = &answer->store_begin.chunks;
    for (uint32_t i = 0; op == TIERCE__NATIVE_STORE_BEGIN && i < rows->count; i++) {
        if (tierce__native_get_reserved(&reserved, rows, i) == 0)
            TIERCE_ASSERT(reserved.block_count > 0);
    }
    rows = &answer->prefetch_poll.tiers;
    for (uint32_t i = 0; op == TIERCE__NATIVE_PREFETCH_POLL && i < rows->count; i++) {
        if (tierce__native_get_tier(&tier, rows, i) == 0)
            TIERCE_ASSERT(strlen(tier.name) < sizeof(tier.name));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    union tierce__native_request request;
    union tierce__native_answer answer;
    struct tierce__native_frame frame = {0};
    if (size == 0)
        return 0;
    uint32_t op = data[0];
    const uint8_t *body = data + 1;
    size_t bytes = size - 1;
    if (tierce__native_unpack_request(&request, op, body, bytes) == 0) {
        TIERCE_ASSERT(tierce__native_pack_request(&frame, (enum tierce__native_op)op, &request) ==
                      0);
        check_same(&frame, body, bytes);
    }
    if (tierce__native_unpack_answer(&answer, op, body, bytes) == 0) {
        check_rows(&answer, op);
        TIERCE_ASSERT(tierce__native_pack_answer(&frame, (enum tierce__native_op)op, 0, &answer) ==
                      0);
        check_same(&frame, body, bytes);
    }
    tierce__native_frame_fini(&frame);
    return 0;
}
