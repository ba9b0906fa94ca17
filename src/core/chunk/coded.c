/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/coded.h"

#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "core/paged/paged.h"

/* The table, which begins where the header ends. docs/inside/format/coded.md */
enum {
    AT_TABLE_MAGIC = 0,
    AT_TABLE_SUM = 8,
    AT_OBJECT_BYTES = 16,
    AT_HEADER_SUM = 24, /* of the header before it, so that a table of another object is noticed */
    AT_ELEMENT = 32,
    AT_RESERVED = 36,
    AT_LAYERS = 64,
    LAYER_BYTES = 16,
};

static const uint8_t MAGIC[8] = {'T', 'I', 'E', 'R', 'C', 'E', 'C', 'T'};

#define LAYER_ALIGN 64u

static uint64_t table_bytes(uint32_t layers)
{
    return tierce__round_up(AT_LAYERS + (uint64_t)LAYER_BYTES * layers, TIERCE__CHUNK_ALIGN);
}

static uint64_t table_sum(const uint8_t *table, uint32_t layers)
{
    return tierce__sum(table + AT_OBJECT_BYTES, table_bytes(layers) - AT_OBJECT_BYTES);
}

uint64_t tierce__coded_head_bytes(const struct tierce__chunk_info *info)
{
    return info->extent.header_bytes + table_bytes(info->geometry.layer_count);
}

/* Bytes of a raw layer: all its cells. */
static uint64_t raw_bytes(const uint8_t *object, const struct tierce__chunk_info *info,
                          uint32_t layer)
{
    return (uint64_t)tierce__chunk_cell_bytes(object, layer) * info->geometry.block_count;
}

uint64_t tierce__coded_room(const uint8_t *object, const struct tierce__chunk_info *info)
{
    uint64_t room = tierce__coded_head_bytes(info);
    for (uint32_t i = 0; i < info->geometry.layer_count; i++)
        room += tierce__round_up(tierce__codec_bound(raw_bytes(object, info, i)), LAYER_ALIGN);
    return tierce__round_up(room, TIERCE__CHUNK_ALIGN);
}

int64_t tierce__coded_encode(uint8_t *dst, uint64_t room, const uint8_t *object,
                             const struct tierce__chunk_info *info,
                             const struct tierce__codec *codec, enum tierce__element element)
{
    uint32_t layers = info->geometry.layer_count;
    uint8_t *table = dst + info->extent.header_bytes;
    uint64_t at = tierce__coded_head_bytes(info), from = info->extent.header_bytes;
    if (room < tierce__coded_room(object, info))
        return TIERCE_E_LIMIT;
    memset(table, 0, table_bytes(layers));
    for (uint32_t i = 0; i < layers; i++) {
        uint64_t bytes = raw_bytes(object, info, i);
        struct tierce__codec_shape shape = {.element = element,
                                            .part_bytes = tierce__chunk_cell_bytes(object, i) / 2};
        int64_t length = codec->encode(dst + at, room - at, object + from, bytes, &shape);
        if (length < 0)
            return length;
        uint8_t *row = table + AT_LAYERS + (size_t)LAYER_BYTES * i;
        tierce__store_le64(row, (uint64_t)length);
        tierce__store_le64(row + 8, tierce__sum(dst + at, (uint64_t)length));
        uint64_t end = at + (uint64_t)length;
        at = tierce__round_up(end, i + 1 < layers ? LAYER_ALIGN : TIERCE__CHUNK_ALIGN);
        if (at >= info->extent.object_bytes)
            return 0;
        memset(dst + end, 0, at - end);
        from += bytes;
    }
    memcpy(dst, object, info->extent.header_bytes);
    tierce__chunk_set_codec(dst, info, codec->number);
    memcpy(table, MAGIC, sizeof(MAGIC));
    tierce__store_le64(table + AT_OBJECT_BYTES, at);
    tierce__store_le64(table + AT_HEADER_SUM, tierce__chunk_header_sum(dst));
    tierce__store_le32(table + AT_ELEMENT, (uint32_t)element);
    tierce__store_le64(table + AT_TABLE_SUM, table_sum(table, layers));
    return (int64_t)at;
}

static uint64_t length_at(const uint8_t *table, uint32_t layer)
{
    return tierce__load_le64(table + AT_LAYERS + (size_t)LAYER_BYTES * layer);
}

/* Where the object ends by the lengths of its layers; UINT64_MAX, which no object has: one is
 * longer than a coded layer can be. */
static uint64_t end_of_layers(const struct tierce__coded_info *info, const uint8_t *object)
{
    const struct tierce__chunk_info *chunk = &info->chunk;
    const uint8_t *table = object + chunk->extent.header_bytes;
    uint64_t at = info->head_bytes;
    for (uint32_t i = 0; i < chunk->geometry.layer_count; i++) {
        uint64_t length = length_at(table, i);
        if (length == 0 || length > tierce__codec_bound(raw_bytes(object, chunk, i)))
            return UINT64_MAX;
        at = tierce__round_up(at, LAYER_ALIGN) + length;
    }
    return tierce__round_up(at, TIERCE__CHUNK_ALIGN);
}

int tierce__coded_parse(struct tierce__coded_info *out, const uint8_t *object, uint64_t available)
{
    struct tierce__coded_info info;
    uint32_t number = 0;
    int rc = tierce__chunk_parse_coded(&info.chunk, &number, object, available);
    if (rc < 0)
        return rc;
    uint32_t layers = info.chunk.geometry.layer_count;
    const uint8_t *table = object + info.chunk.extent.header_bytes;
    info.head_bytes = tierce__coded_head_bytes(&info.chunk);
    if (available < info.head_bytes)
        return TIERCE_E_LIMIT;
    if (memcmp(table, MAGIC, sizeof(MAGIC)) != 0)
        return TIERCE_E_FORMAT;
    if (tierce__load_le64(table + AT_TABLE_SUM) != table_sum(table, layers))
        return TIERCE_E_CHECKSUM;
    info.codec = tierce__codec_numbered(number);
    if (info.codec == NULL || !info.codec->is_exact)
        return TIERCE_E_VERSION;
    uint32_t element = tierce__load_le32(table + AT_ELEMENT);
    info.element = (enum tierce__element)element;
    info.object_bytes = tierce__load_le64(table + AT_OBJECT_BYTES);
    for (size_t i = AT_RESERVED; i < AT_LAYERS; i++)
        rc |= table[i];
    if (rc != 0 || element >= TIERCE__ELEMENTS ||
        tierce__load_le64(table + AT_HEADER_SUM) != tierce__chunk_header_sum(object) ||
        info.object_bytes != end_of_layers(&info, object) ||
        info.object_bytes >= info.chunk.extent.object_bytes)
        return TIERCE_E_FORMAT;
    *out = info;
    return 0;
}

struct tierce__coded_layer tierce__coded_layer(const struct tierce__coded_info *info,
                                               const uint8_t *object, uint32_t layer)
{
    TIERCE_ASSERT(layer < info->chunk.geometry.layer_count);
    const uint8_t *table = object + info->chunk.extent.header_bytes;
    uint64_t at = info->head_bytes;
    for (uint32_t i = 0; i < layer; i++)
        at = tierce__round_up(at + length_at(table, i), LAYER_ALIGN);
    return (struct tierce__coded_layer){
        .offset = at,
        .bytes = length_at(table, layer),
        .sum = tierce__load_le64(table + AT_LAYERS + (size_t)LAYER_BYTES * layer + 8),
    };
}

void tierce__coded_restore_header(uint8_t *raw, const struct tierce__coded_info *info,
                                  const uint8_t *object)
{
    memcpy(raw, object, info->chunk.extent.header_bytes);
    tierce__chunk_set_codec(raw, &info->chunk, 0);
}

uint64_t tierce__coded_raw_bytes(const struct tierce__coded_info *info, const uint8_t *object,
                                 uint32_t layer)
{
    TIERCE_ASSERT(layer < info->chunk.geometry.layer_count);
    return raw_bytes(object, &info->chunk, layer);
}

static int decode(uint8_t *dst, const struct tierce__coded_info *info,
                  const struct tierce__coded_layer *layer, uint64_t bytes, const uint8_t *coded)
{
    if (tierce__sum(coded, layer->bytes) != layer->sum)
        return TIERCE_E_CHECKSUM;
    return info->codec->decode(dst, bytes, coded, layer->bytes);
}

int tierce__coded_decode_to(uint8_t *dst, const struct tierce__coded_info *info,
                            const uint8_t *object, uint32_t index, const uint8_t *coded)
{
    struct tierce__coded_layer layer = tierce__coded_layer(info, object, index);
    return decode(dst, info, &layer, raw_bytes(object, &info->chunk, index), coded);
}

int tierce__coded_decode_layer(uint8_t *raw, const struct tierce__coded_info *info,
                               const struct tierce__coded_layer *layer, uint32_t index,
                               const uint8_t *coded)
{
    uint64_t at = info->chunk.extent.header_bytes;
    for (uint32_t i = 0; i < index; i++)
        at += raw_bytes(raw, &info->chunk, i);
    return decode(raw + at, info, layer, raw_bytes(raw, &info->chunk, index), coded);
}

int tierce__coded_decode(uint8_t *raw, const struct tierce__coded_info *info, const uint8_t *object)
{
    const struct tierce__extent *extent = &info->chunk.extent;
    uint64_t end = extent->header_bytes + extent->payload_bytes;
    tierce__coded_restore_header(raw, info, object);
    memset(raw + end, 0, extent->object_bytes - end);
    for (uint32_t i = 0; i < info->chunk.geometry.layer_count; i++) {
        struct tierce__coded_layer layer = tierce__coded_layer(info, object, i);
        int rc = tierce__coded_decode_layer(raw, info, &layer, i, object + layer.offset);
        if (rc < 0)
            return rc;
    }
    return 0;
}
