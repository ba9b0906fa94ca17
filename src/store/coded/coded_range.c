/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/coded/coded_parts.h"

/* The codec that devices decode (device.h). */
#define DEVICE_CODEC "lossless"
/* Runs that a device is given at a time. */
enum { RUNS_MAX = 16 };

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

/* The buffer of a GET, in which a range of the raw object is put together. */
struct target {
    const struct tierce__store_req *req;
    struct tierce__coded_work *work;
    size_t count;
    struct tierce__device_run runs[RUNS_MAX]; /* [count] that the device was not given yet */
};

/* Whether the host decodes the runs. Errors: TIERCE_E_FORMAT, TIERCE_E_FULL. */
static int decode_again(const struct target *target)
{
    const struct tierce__codec *codec = tierce__codec_find(DEVICE_CODEC);
    int rc = 0;
    for (size_t i = 0; i < target->count && rc == 0; i++) {
        const struct tierce__device_run *run = &target->runs[i];
        if (run->is_plain)
            continue;
        uint8_t *raw = tierce__alloc_aligned(64, tierce__round_up(run->bytes, 64));
        rc = raw != NULL ? codec->decode(raw, run->bytes, run->from, run->coded) : TIERCE_E_FULL;
        tierce__free(raw);
    }
    return rc;
}

/* A device that rejects what was verified may be wrong itself: the bytes are reported as damaged
 * only if the host rejects them too. If not, it decodes them in another GET. */
static int flush_runs(struct target *target)
{
    const struct tierce__coded_device *device = target->work->device;
    if (target->count == 0)
        return 0;
    int rc =
        device->ops->decode(device->device, target->runs, target->count, target->req->deadline_ns);
    int again = rc == TIERCE_E_FORMAT ? decode_again(target) : 0;
    target->count = 0;
    if (again < 0)
        return again;
    if (rc == 0 || rc == TIERCE_E_DEADLINE)
        return rc;
    target->work->device_error = rc;
    return TIERCE_E_UNSUPPORTED;
}

static int add_run(struct target *target, const struct tierce__device_run *run)
{
    int rc = target->count == RUNS_MAX ? flush_runs(target) : 0;
    if (rc == 0)
        target->runs[target->count++] = *run;
    return rc;
}

/* The part of raw bytes [at, at + length) that lies in the range; NULL: zeroes. On a device the
 * bytes are in place, and no more used, after flush_runs. */
static int put_part(struct target *target, uint64_t at, uint64_t length, const uint8_t *bytes)
{
    static const uint8_t zeroes[TIERCE__CHUNK_ALIGN];
    const struct tierce__store_req *req = target->req;
    uint64_t from = at > req->offset ? at : req->offset;
    uint64_t end = at + length, range_end = req->offset + req->length;
    end = end < range_end ? end : range_end;
    if (from >= end)
        return 0;
    const uint8_t *part = bytes != NULL ? bytes + (from - at) : zeroes;
    TIERCE_ASSERT(bytes != NULL || end - from <= sizeof(zeroes));
    if (target->work->device != NULL)
        return add_run(target, &(struct tierce__device_run){.to = req->buf->data + from,
                                                            .bytes = end - from,
                                                            .from = part,
                                                            .coded = end - from,
                                                            .is_plain = true});
    memcpy(req->buf->data + from, part, end - from);
    return 0;
}

/* A layer, and where it begins in the raw object. */
struct place {
    uint32_t index;
    uint64_t at;
};

/* A layer that lies in the range as a whole. */
static int decode_whole(struct target *target, const struct tierce__coded_info *info,
                        const uint8_t *head, struct place place, const uint8_t *coded)
{
    uint8_t *to = target->req->buf->data + place.at;
    if (target->work->device == NULL)
        return tierce__coded_decode_to(to, info, head, place.index, coded,
                                       &target->work->decrypt_ns);
    struct tierce__coded_layer layer = tierce__coded_layer(info, head, place.index);
    int rc = tierce__coded_verify(&layer, coded);
    if (rc < 0)
        return rc;
    uint64_t bytes = tierce__coded_raw_bytes(info, head, place.index);
    target->work->device_raw_bytes += bytes;
    return add_run(target, &(struct tierce__device_run){
                               .to = to, .bytes = bytes, .from = coded, .coded = layer.bytes});
}

/* `coded`: the bytes of the layer. One that lies in the range in part is decoded by the host. */
static int decode_layer(struct target *target, const struct tierce__coded_info *info,
                        const uint8_t *head, struct place place, const uint8_t *coded)
{
    const struct tierce__store_req *req = target->req;
    uint64_t at = place.at, length = tierce__coded_raw_bytes(info, head, place.index);
    if (at >= req->offset && at + length <= req->offset + req->length)
        return decode_whole(target, info, head, place, coded);
    uint8_t *whole = tierce__alloc_aligned(64, tierce__round_up(length, 64));
    if (whole == NULL)
        return TIERCE_E_FULL;
    int rc =
        tierce__coded_decode_to(whole, info, head, place.index, coded, &target->work->decrypt_ns);
    if (rc == 0)
        rc = put_part(target, at, length, whole);
    if (rc == 0)
        rc = flush_runs(target);
    tierce__free(whole);
    return rc;
}

/* `info` is that of the head, opened if the layers are encrypted. */
static int decode_layers(struct target *target, const struct tierce__coded_range *range,
                         const struct tierce__coded_info *info, const uint8_t *head,
                         const uint8_t *coded)
{
    struct tierce__coded_work *work = target->work;
    uint64_t at = info->chunk.extent.header_bytes;
    for (uint32_t i = 0; i < range->last; i++) {
        uint64_t length = tierce__coded_raw_bytes(info, head, i);
        if (i >= range->first) {
            struct tierce__coded_layer layer = tierce__coded_layer(info, head, i);
            TIERCE_DASSERT(layer.offset >= range->from);
            int rc = decode_layer(target, info, head, (struct place){i, at},
                                  coded + (layer.offset - range->from));
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

/* Header, layers and the zeroes at the end, as far as they lie in the range. */
static int decode_range(struct target *target, const struct tierce__coded_range *range,
                        const struct tierce__coded_info *info,
                        const struct tierce__coded_parsed *parsed, const uint8_t *coded)
{
    const struct tierce__extent *extent = &info->chunk.extent;
    uint64_t end = extent->header_bytes + extent->payload_bytes;
    int rc = put_part(target, 0, extent->header_bytes, parsed->raw_header);
    if (rc == 0)
        rc = put_part(target, end, extent->object_bytes - end, NULL);
    if (rc == 0)
        rc = decode_layers(target, range, info, parsed->bytes, coded);
    return rc == 0 ? flush_runs(target) : rc;
}

bool tierce__coded_may_be_on_device(const struct tierce__coded_info *info)
{
    return info->codec != NULL && info->codec == tierce__codec_find(DEVICE_CODEC) &&
           info->key_number == 0;
}

int tierce__coded_range_decode(const struct tierce__coded_range *range,
                               const struct tierce__coded_parsed *parsed,
                               const struct tierce__store_req *req, const uint8_t *coded,
                               struct tierce__coded_work *work)
{
    struct tierce__coded_info info = parsed->info; /* to be opened: others read that of the head */
    struct target target = {.req = req, .work = work};
    uint64_t begun = tierce__now_ns();
    work->raw_bytes = work->coded_bytes = work->device_raw_bytes = 0;
    work->device_error = 0;
    work->is_lossy = info.codec != NULL && !info.codec->is_exact;
    work->is_locked = work->is_wrong_key = false;
    TIERCE_ASSERT(work->device == NULL || tierce__coded_may_be_on_device(&info));
    int rc = range->first < range->last
                 ? tierce__coded_keys_unlock(work->keys, work->tier, &info, parsed->bytes)
                 : 0;
    work->decrypt_ns = tierce__now_ns() - begun;
    work->is_locked = rc == TIERCE_E_NO_KEY;
    if (rc < 0)
        return rc;
    rc = decode_range(&target, range, &info, parsed, coded);
    tierce__seal_wipe(&info.seal, sizeof(info.seal));
    if (rc != TIERCE_E_VERSION)
        return rc;
    work->is_locked = work->is_wrong_key = true;
    tierce__coded_keys_log_wrong(work->keys, work->tier, &info);
    return TIERCE_E_NO_KEY;
}
