/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/coded/coded_parts.h"

/* ---- heads ----------------------------------------------------------------------------------- */

/* How many bytes of an object its head has. 0: its header cannot be parsed. */
static uint64_t needed_bytes(const uint8_t *object, uint64_t available)
{
    struct tierce__chunk_info chunk;
    uint32_t codec;
    uint64_t header = tierce__chunk_header_bytes(object);
    if (header > available)
        return header;
    return tierce__chunk_parse_coded(&chunk, &codec, object, available) == 0
               ? tierce__coded_head_bytes(&chunk)
               : 0;
}

/* The head is parsed twice: to learn its length, and the copy, because another process may write to
 * `object` meanwhile. */
int tierce__coded_parsed_fill(struct tierce__coded_parsed *out,
                              struct tierce__coded_elements *elements, const uint8_t *object,
                              uint64_t available, uint64_t *bytes)
{
    struct tierce__coded_info info, copied;
    int rc = tierce__coded_parse(&info, object, available);
    if (rc == TIERCE_E_LIMIT && available >= TIERCE__CHUNK_FIXED) {
        *bytes = needed_bytes(object, available);
        if (*bytes <= available)
            return TIERCE_E_FORMAT;
    }
    if (rc < 0)
        return rc;
    uint64_t header_bytes = info.chunk.extent.header_bytes;
    uint8_t *copy = tierce__alloc_aligned(64, info.head_bytes + header_bytes);
    if (copy == NULL)
        return TIERCE_E_FULL;
    memcpy(copy, object, info.head_bytes);
    rc = tierce__coded_parse(&copied, copy, info.head_bytes);
    if (rc < 0 || copied.head_bytes != info.head_bytes ||
        copied.chunk.extent.header_bytes != header_bytes) {
        tierce__free(copy);
        return TIERCE_E_FORMAT;
    }
    if (!tierce__coded_may_be(elements, &copied)) {
        tierce__free(copy);
        return TIERCE_E_VERSION;
    }
    tierce__free(out->bytes); /* of an object that another's header claimed to be */
    out->bytes = copy;
    out->raw_header = copy + info.head_bytes;
    tierce__coded_restore_header(out->raw_header, &copied, copy);
    out->info = copied;
    return 0;
}

void tierce__coded_parsed_fini(struct tierce__coded_parsed *parsed)
{
    tierce__free(parsed->bytes);
    *parsed = (struct tierce__coded_parsed){0};
}

/* ---- ranges ---------------------------------------------------------------------------------- */

void tierce__coded_range_plan(struct tierce__coded_range *out,
                              const struct tierce__coded_parsed *parsed, uint64_t offset,
                              uint64_t length)
{
    const struct tierce__coded_info *info = &parsed->info;
    uint32_t layers = info->chunk.geometry.layer_count;
    uint64_t at = info->chunk.extent.header_bytes, end = offset + length;
    *out = (struct tierce__coded_range){.first = layers, .last = layers};
    for (uint32_t i = 0; i < layers && at < end; i++) {
        at += tierce__coded_raw_bytes(info, parsed->bytes, i);
        if (at <= offset)
            continue;
        if (out->first == layers)
            out->first = i;
        out->last = i + 1;
    }
    if (out->first == layers)
        return;
    struct tierce__coded_layer first = tierce__coded_layer(info, parsed->bytes, out->first);
    struct tierce__coded_layer last = tierce__coded_layer(info, parsed->bytes, out->last - 1);
    out->from = first.offset / TIERCE__CHUNK_ALIGN * TIERCE__CHUNK_ALIGN;
    out->to = tierce__round_up(last.offset + last.bytes, TIERCE__CHUNK_ALIGN);
    TIERCE_ASSERT(out->from < out->to && out->to <= info->object_bytes);
}

/* The part of raw bytes [at, at + length) that lies in the range, copied; NULL: zeroes. */
static void copy_part(const struct tierce__store_req *req, uint64_t at, uint64_t length,
                      const uint8_t *bytes)
{
    uint64_t from = at > req->offset ? at : req->offset;
    uint64_t end = at + length, range_end = req->offset + req->length;
    end = end < range_end ? end : range_end;
    if (from >= end)
        return;
    if (bytes != NULL)
        memcpy(req->buf->data + from, bytes + (from - at), end - from);
    else
        memset(req->buf->data + from, 0, end - from);
}

/* A layer, and where it begins in the raw object. */
struct place {
    uint32_t index;
    uint64_t at;
};

/* `coded`: the bytes of the layer. */
static int decode_layer(const struct tierce__coded_info *info, const uint8_t *head,
                        const struct tierce__store_req *req, struct place place,
                        const uint8_t *coded, uint64_t *decrypt_ns)
{
    uint64_t at = place.at, length = tierce__coded_raw_bytes(info, head, place.index);
    if (at >= req->offset && at + length <= req->offset + req->length)
        return tierce__coded_decode_to(req->buf->data + at, info, head, place.index, coded,
                                       decrypt_ns);
    uint8_t *whole = tierce__alloc_aligned(64, tierce__round_up(length, 64));
    if (whole == NULL)
        return TIERCE_E_FULL;
    int rc = tierce__coded_decode_to(whole, info, head, place.index, coded, decrypt_ns);
    if (rc == 0)
        copy_part(req, at, length, whole);
    tierce__free(whole);
    return rc;
}

/* `info` is that of the head, opened if the layers are encrypted. */
static int decode_layers(const struct tierce__coded_range *range,
                         const struct tierce__coded_info *info, const uint8_t *head,
                         const struct tierce__store_req *req, const uint8_t *coded,
                         struct tierce__coded_work *work)
{
    uint64_t at = info->chunk.extent.header_bytes;
    for (uint32_t i = 0; i < range->last; i++) {
        uint64_t length = tierce__coded_raw_bytes(info, head, i);
        if (i >= range->first) {
            struct tierce__coded_layer layer = tierce__coded_layer(info, head, i);
            TIERCE_DASSERT(layer.offset >= range->from);
            int rc = decode_layer(info, head, req, (struct place){i, at},
                                  coded + (layer.offset - range->from), &work->decrypt_ns);
            if (rc < 0)
                return rc;
            if (info->codec != NULL) { /* only decrypted: no speed of decoding */
                work->raw_bytes += length;
                work->coded_bytes += layer.bytes;
            }
        }
        at += length;
    }
    return 0;
}

int tierce__coded_range_decode(const struct tierce__coded_range *range,
                               const struct tierce__coded_parsed *parsed,
                               const struct tierce__store_req *req, const uint8_t *coded,
                               struct tierce__coded_work *work)
{
    struct tierce__coded_info info = parsed->info; /* to be opened: others read that of the head */
    const struct tierce__extent *extent = &info.chunk.extent;
    uint64_t end = extent->header_bytes + extent->payload_bytes;
    uint64_t begun = tierce__now_ns();
    work->raw_bytes = work->coded_bytes = 0;
    work->is_lossy = info.codec != NULL && !info.codec->is_exact;
    work->is_locked = false;
    int rc = range->first < range->last
                 ? tierce__coded_keys_unlock(work->keys, work->tier, &info, parsed->bytes)
                 : 0;
    work->decrypt_ns = tierce__now_ns() - begun;
    work->is_locked = rc == TIERCE_E_VERSION;
    if (rc < 0)
        return work->is_locked ? TIERCE_E_FULL : rc;
    copy_part(req, 0, extent->header_bytes, parsed->raw_header);
    copy_part(req, end, extent->object_bytes - end, NULL);
    rc = decode_layers(range, &info, parsed->bytes, req, coded, work);
    tierce__seal_wipe(&info.seal, sizeof(info.seal));
    work->is_locked = rc == TIERCE_E_VERSION;
    if (work->is_locked)
        tierce__coded_keys_log_wrong(work->tier, info.key_number);
    return rc;
}
