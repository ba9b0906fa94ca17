/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "core/paged/paged.h"
#include "store/coded/coded_parts.h"

/* A range of a coded object from anywhere: what is planned lies inside the object; it is rejected,
 * or decoded to the bytes that the whole object has there, and no byte beside it is written. The
 * first eight bytes of the input choose the offset and the length of the range. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANGE_BYTES = 8, UNTOUCHED = 0x5a };

static uint8_t *filled(uint64_t bytes)
{
    uint8_t *out = aligned_alloc(64, tierce__round_up(bytes + 1, 64));
    TIERCE_ASSERT(out != NULL);
    memset(out, UNTOUCHED, bytes);
    return out;
}

/* Makes the sums fit, so that the checks behind them are reached. */
static void mend_sums(uint8_t *object, size_t size)
{
    struct tierce__chunk_info chunk;
    struct tierce__coded_info info;
    uint32_t codec, header_bytes = tierce__load_le32(object + 12);
    if (header_bytes < TIERCE__CHUNK_ALIGN || header_bytes % TIERCE__CHUNK_ALIGN != 0 ||
        header_bytes > size)
        return;
    tierce__chunk_seal(object, header_bytes);
    if (tierce__chunk_parse_coded(&chunk, &codec, object, size) < 0 ||
        tierce__coded_head_bytes(&chunk) > size)
        return;
    uint8_t *table = object + chunk.extent.header_bytes;
    uint64_t table_bytes = tierce__coded_head_bytes(&chunk) - chunk.extent.header_bytes;
    tierce__store_le64(table + 24, tierce__chunk_header_sum(object));
    tierce__store_le64(table + 8, tierce__sum(table + 16, table_bytes - 16));
    if (tierce__coded_parse(&info, object, size) < 0)
        return;
    for (uint32_t i = 0; i < chunk.geometry.layer_count; i++) {
        struct tierce__coded_layer layer = tierce__coded_layer(&info, object, i);
        if (layer.offset + layer.bytes <= size)
            tierce__store_le64(table + 64 + (size_t)i * 16 + 8,
                               tierce__sum(object + layer.offset, layer.bytes));
    }
    tierce__store_le64(table + 8, tierce__sum(table + 16, table_bytes - 16));
}

static void compare(const struct tierce__store_req *req, const struct tierce__coded_parsed *parsed,
                    const uint8_t *object)
{
    uint64_t bytes = parsed->info.chunk.extent.object_bytes, end = req->offset + req->length;
    uint8_t *whole = filled(bytes);
    if (tierce__coded_decode(whole, &parsed->info, object) == 0)
        TIERCE_ASSERT(memcmp(req->buf->data + req->offset, whole + req->offset, req->length) == 0);
    for (uint64_t i = 0; i < bytes; i++)
        TIERCE_ASSERT((i >= req->offset && i < end) || req->buf->data[i] == UNTOUCHED);
    free(whole);
}

static void try_range(const struct tierce__coded_parsed *parsed, const uint8_t *object, size_t size,
                      const uint8_t *choice)
{
    struct tierce__coded_range range;
    struct tierce__coded_work work = {.tier = "fuzz"};
    uint64_t bytes = parsed->info.chunk.extent.object_bytes;
    struct tierce__buf buf = {.bytes = bytes};
    struct tierce__store_req req = {.buf = &buf, .offset = tierce__load_le32(choice) % bytes};
    req.length = 1 + tierce__load_le32(choice + 4) % (bytes - req.offset);
    tierce__coded_range_plan(&range, parsed, req.offset, req.length);
    TIERCE_ASSERT(range.from <= range.to && range.to <= parsed->info.object_bytes);
    if (parsed->info.object_bytes > size || bytes > 16 * size || parsed->info.key_number > 0)
        return;
    uint64_t coded_bytes = range.to - range.from;
    uint8_t *coded = malloc(coded_bytes + 1); /* of its size, so that a read beyond it is seen */
    TIERCE_ASSERT(coded != NULL);
    memcpy(coded, object + range.from, coded_bytes);
    buf.data = filled(bytes);
    int rc = tierce__coded_range_decode(&range, parsed, &req, coded, &work);
    TIERCE_ASSERT(rc == 0 || rc == TIERCE_E_FORMAT || rc == TIERCE_E_CHECKSUM);
    if (rc == 0)
        compare(&req, parsed, object);
    free(buf.data);
    free(coded);
}

static void try_object(struct tierce__coded_elements *elements, const uint8_t *object, size_t size,
                       const uint8_t *choice)
{
    struct tierce__coded_parsed parsed = {0};
    uint64_t wanted = 0;
    int rc = tierce__coded_parsed_fill(&parsed, elements, object, size, &wanted);
    TIERCE_ASSERT(rc != TIERCE_E_LIMIT || wanted > size);
    if (rc == 0)
        try_range(&parsed, object, size, choice);
    tierce__coded_parsed_fini(&parsed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__namespaces *namespaces;
    struct tierce__coded_elements elements;
    if (size < RANGE_BYTES + TIERCE__CHUNK_FIXED)
        return 0;
    size_t bytes = size - RANGE_BYTES;
    uint8_t *object = filled(bytes);
    memcpy(object, data + RANGE_BYTES, bytes);
    TIERCE_ASSERT(tierce__namespaces_create(&namespaces) == 0);
    TIERCE_ASSERT(tierce__coded_elements_init(&elements, namespaces) == 0);
    try_object(&elements, object, bytes, data);
    mend_sums(object, bytes);
    try_object(&elements, object, bytes, data);
    tierce__coded_elements_fini(&elements);
    tierce__namespaces_destroy(namespaces);
    free(object);
    return 0;
}
