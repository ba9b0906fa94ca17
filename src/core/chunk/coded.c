/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/coded.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "core/codec/codec_plugin.h"
#include "core/paged/paged.h"

/* The table, which begins where the header ends. docs/inside/format/coded.md */
enum {
    AT_TABLE_MAGIC = 0,
    AT_TABLE_SUM = 8,
    AT_OBJECT_BYTES = 16,
    AT_HEADER_SUM = 24, /* of the header before it, so that a table of another object is noticed */
    AT_ELEMENT = 32,
    AT_CIPHER = 36, /* these three are zero unless the layers are encrypted */
    AT_KEY_NUMBER = 40,
    AT_SALT = 44,
    AT_LAYERS = 64,
    LAYER_BYTES = 16,
};

static const uint8_t MAGIC[8] = {'T', 'I', 'E', 'R', 'C', 'E', 'C', 'T'};

#define LAYER_ALIGN 64u
#define AES_256_GCM 1u

_Static_assert(TIERCE__CODEC_LAYERS_MAX == TIERCE_LAYERS_MAX, "the name of a codec has the layers");

static uint64_t table_bytes(uint32_t layers)
{
    return tierce__round_up(AT_LAYERS + (uint64_t)LAYER_BYTES * layers, TIERCE__CHUNK_ALIGN);
}

static uint64_t table_sum(const uint8_t *table, uint32_t layers)
{
    return tierce__sum(table + AT_OBJECT_BYTES, table_bytes(layers) - AT_OBJECT_BYTES);
}

/* Where the table has the name of a plug-in's codec: at its end. A few numbers of layers leave no
 * room for it. */
static uint64_t name_at(uint32_t layers)
{
    return table_bytes(layers) - TIERCE__CODEC_NAME_BYTES;
}

static bool has_name(uint32_t layers)
{
    return AT_LAYERS + (uint64_t)LAYER_BYTES * layers <= name_at(layers);
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
    uint64_t room = tierce__coded_head_bytes(info), left = info->extent.payload_bytes;
    for (uint32_t i = 0; i < info->geometry.layer_count; i++) {
        uint64_t bytes = raw_bytes(object, info, i);
        bytes = bytes < left ? bytes : left; /* another process may write to the object */
        left -= bytes;
        room += tierce__round_up(tierce__codec_bound(bytes) + TIERCE__SEAL_TAG_BYTES, LAYER_ALIGN);
    }
    return tierce__round_up(room, TIERCE__CHUNK_ALIGN);
}

static int derive(struct tierce__seal *out, const struct tierce__seal_key *key,
                  const uint8_t *object, uint64_t header_bytes)
{
    return tierce__seal_derive(out, key, object, header_bytes, object + header_bytes + AT_ELEMENT,
                               AT_LAYERS - AT_ELEMENT);
}

/* An object that is being encoded. Another process may write to `object`, the raw one, at any time,
 * so all lengths come from `header`, which is a copy. */
struct encoding {
    uint8_t *dst;
    uint64_t room;
    uint8_t *header;
    const uint8_t *object;
    const struct tierce__chunk_info *info;
    const struct tierce__coded_form *form;
};

/* Copies the header, and checks that it is still the one that was parsed. */
static int take_header(struct encoding *e)
{
    const struct tierce__chunk_info *info = e->info;
    struct tierce__chunk_info copied;
    uint64_t bytes = info->extent.header_bytes;
    uint8_t *header = tierce__alloc_aligned(8, bytes);
    if (header == NULL)
        return -ENOMEM;
    memcpy(header, e->object, bytes);
    if (tierce__chunk_parse(&copied, header, bytes) < 0 ||
        copied.geometry.layer_count != info->geometry.layer_count ||
        copied.geometry.block_count != info->geometry.block_count ||
        copied.extent.payload_bytes != info->extent.payload_bytes) {
        tierce__free(header);
        return TIERCE_E_FORMAT;
    }
    e->header = header;
    return 0;
}

static bool is_lossy(const struct tierce__codec *codec)
{
    return codec != NULL && !codec->is_exact;
}

static uint8_t *row_of(const struct encoding *e, uint32_t layer)
{
    return e->dst + e->info->extent.header_bytes + AT_LAYERS + (size_t)LAYER_BYTES * layer;
}

/* Where the layer after one that ends at `end` begins, or where the object ends. */
static uint64_t next_place(const struct encoding *e, uint32_t layer, uint64_t end)
{
    bool is_last = layer + 1 == e->info->geometry.layer_count;
    return tierce__round_up(end, is_last ? TIERCE__CHUNK_ALIGN : LAYER_ALIGN);
}

static uint64_t tag_bytes(const struct encoding *e)
{
    return e->form->key != NULL ? TIERCE__SEAL_TAG_BYTES : 0;
}

/* Completes the header, and the table as far as it is known before the layers are encrypted. */
static int begin(const struct encoding *e, struct tierce__seal *seal)
{
    const struct tierce__coded_form *form = e->form;
    struct tierce__chunk_info own = *e->info;
    uint8_t *table = e->dst + own.extent.header_bytes;
    own.is_sealed = form->key != NULL;
    tierce__chunk_set_codec(e->dst, &own, form->codec != NULL ? form->codec->number : 0);
    memcpy(table, MAGIC, sizeof(MAGIC));
    tierce__store_le64(table + AT_HEADER_SUM, tierce__chunk_header_sum(e->dst));
    tierce__store_le32(table + AT_ELEMENT, (uint32_t)form->element);
    if (form->key == NULL)
        return 0;
    tierce__store_le32(table + AT_CIPHER, AES_256_GCM);
    tierce__store_le32(table + AT_KEY_NUMBER, form->key->number);
    if (form->salt != NULL)
        memcpy(table + AT_SALT, form->salt, TIERCE__SEAL_SALT_BYTES);
    int rc = form->salt == NULL ? tierce__seal_salt(table + AT_SALT) : 0;
    return rc < 0 ? rc : derive(seal, form->key, e->dst, own.extent.header_bytes);
}

/* Encodes a layer of these raw bytes to the place `at`. Returns its length. */
static int64_t encode_layer(const struct encoding *e, uint32_t layer, uint64_t at,
                            const uint8_t *raw)
{
    uint64_t bytes = raw_bytes(e->header, e->info, layer);
    const struct tierce__codec *codec = e->form->codec;
    uint32_t cell_bytes = tierce__chunk_cell_bytes(e->header, layer);
    struct tierce__codec_shape shape = {.element = e->form->element, .part_bytes = cell_bytes / 2};
    if (codec != NULL && codec->needs_order) {
        const struct tierce__codec_choice *choice = e->form->choice;
        if (choice == NULL)
            return TIERCE_E_ARGUMENT;
        shape.order = &choice->order;
        shape.cell_bytes = cell_bytes;
        shape.cell_tokens = e->info->geometry.block_tokens;
        shape.layer = layer % choice->layers;
        shape.layers = choice->layers;
    }
    if (codec != NULL)
        return codec->encode(e->dst + at, e->room - at, raw, bytes, &shape);
    if (bytes > e->room - at)
        return TIERCE_E_LIMIT;
    memcpy(e->dst + at, raw, bytes);
    return (int64_t)bytes;
}

/* ---- lossy codecs ---------------------------------------------------------------------------- */

/* Whether the cells of a layer have the sums of the raw header. */
static bool cells_are_right(const struct encoding *e, uint32_t layer, const uint8_t *cells)
{
    const uint64_t *sums = tierce__chunk_sums(e->header, &e->info->geometry, layer);
    uint32_t bytes = tierce__chunk_cell_bytes(e->header, layer);
    for (uint32_t i = 0; i < e->info->geometry.block_count; i++) {
        if (sums[i] != tierce__sum(cells + (uint64_t)i * bytes, bytes))
            return false;
    }
    return true;
}

static void sum_cells(const struct encoding *e, uint32_t layer, const uint8_t *cells)
{
    uint64_t *sums = tierce__chunk_sums(e->dst, &e->info->geometry, layer);
    uint32_t bytes = tierce__chunk_cell_bytes(e->header, layer);
    for (uint32_t i = 0; i < e->info->geometry.block_count; i++)
        sums[i] = tierce__sum(cells + (uint64_t)i * bytes, bytes);
}

/* Encodes the layers to their places, and puts the sums of the decoded cells in the header. Cells
 * that were damaged in memory must not get new sums, so each layer is copied to `cells` and
 * verified before. Returns 0 if the object would not become shorter, or is damaged. */
static int64_t encode_with_loss(const struct encoding *e, uint8_t *cells)
{
    uint64_t at = tierce__coded_head_bytes(e->info), from = e->info->extent.header_bytes;
    for (uint32_t i = 0; i < e->info->geometry.layer_count; i++) {
        uint64_t bytes = raw_bytes(e->header, e->info, i);
        memcpy(cells, e->object + from, bytes);
        if (!cells_are_right(e, i, cells))
            return 0;
        int64_t length = encode_layer(e, i, at, cells);
        int rc = length > 0 ? e->form->codec->decode(cells, bytes, e->dst + at, (uint64_t)length)
                            : (int)length;
        if (rc < 0)
            return rc;
        sum_cells(e, i, cells);
        tierce__store_le64(row_of(e, i), (uint64_t)length);
        at = next_place(e, i, at + (uint64_t)length + tag_bytes(e));
        if (at >= e->info->extent.object_bytes)
            return 0;
        from += bytes;
    }
    return (int64_t)at;
}

static int64_t encode_lossy(const struct encoding *e)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < e->info->geometry.layer_count; i++) {
        uint64_t bytes = raw_bytes(e->header, e->info, i);
        most = bytes > most ? bytes : most;
    }
    uint8_t *cells = tierce__alloc_aligned(64, tierce__round_up(most, 64));
    if (cells == NULL)
        return -ENOMEM;
    int64_t end = encode_with_loss(e, cells);
    tierce__free(cells);
    return end;
}

/* ---- all codecs ------------------------------------------------------------------------------ */

/* Encodes, encrypts and sums the layers. Those of a lossy codec are encoded already. Returns the
 * end of the object, or 0 if the codec makes it no shorter. */
static int64_t encode_layers(const struct encoding *e, const struct tierce__seal *seal)
{
    uint64_t at = tierce__coded_head_bytes(e->info), from = e->info->extent.header_bytes;
    for (uint32_t i = 0; i < e->info->geometry.layer_count; i++) {
        uint8_t *row = row_of(e, i), *layer = e->dst + at;
        int64_t length = is_lossy(e->form->codec) ? (int64_t)tierce__load_le64(row)
                                                  : encode_layer(e, i, at, e->object + from);
        int rc = length > 0 && e->form->key != NULL
                     ? tierce__seal_layer(layer, seal, i, layer, (uint64_t)length)
                     : 0;
        if (length == TIERCE_E_FULL && tierce__codec_is_plugin(e->form->codec))
            return 0;
        if (length < 0 || rc < 0)
            return length < 0 ? length : rc;
        uint64_t bytes = (uint64_t)length + tag_bytes(e), end = at + bytes;
        tierce__store_le64(row, bytes);
        tierce__store_le64(row + 8, tierce__sum(layer, bytes));
        at = next_place(e, i, end);
        if (e->form->codec != NULL && at >= e->info->extent.object_bytes)
            return 0;
        memset(e->dst + end, 0, at - end);
        from += raw_bytes(e->header, e->info, i);
    }
    return (int64_t)at;
}

static int64_t encode_once(const struct encoding *e)
{
    struct tierce__seal seal;
    uint32_t layers = e->info->geometry.layer_count;
    uint8_t *table = e->dst + e->info->extent.header_bytes;
    memcpy(e->dst, e->header, e->info->extent.header_bytes);
    memset(table, 0, table_bytes(layers));
    if (tierce__codec_is_plugin(e->form->codec)) {
        if (!has_name(layers))
            return 0;
        memcpy(table + name_at(layers), e->form->codec->name, strlen(e->form->codec->name));
    }
    int64_t end = is_lossy(e->form->codec) ? encode_lossy(e) : 1;
    if (end <= 0)
        return end;
    int rc = begin(e, &seal);
    end = rc < 0 ? rc : encode_layers(e, &seal);
    tierce__seal_wipe(&seal, sizeof(seal));
    if (end <= 0)
        return end;
    tierce__store_le64(table + AT_OBJECT_BYTES, (uint64_t)end);
    tierce__store_le64(table + AT_TABLE_SUM, table_sum(table, layers));
    return end;
}

int64_t tierce__coded_encode_as(uint8_t *dst, uint64_t room, const uint8_t *object,
                                const struct tierce__chunk_info *info,
                                const struct tierce__coded_form *form)
{
    struct encoding e = {.dst = dst, .room = room, .object = object, .info = info, .form = form};
    struct tierce__coded_form without = *form;
    TIERCE_ASSERT(form->codec != NULL || form->key != NULL);
    int rc = take_header(&e);
    if (rc < 0)
        return rc;
    int64_t end = TIERCE_E_LIMIT;
    if (room >= tierce__coded_room(e.header, info))
        end = encode_once(&e);
    without.codec = NULL;
    without.element = TIERCE__ELEMENT_RAW;
    e.form = &without;
    if (end == 0 && form->key != NULL)
        end = encode_once(&e);
    tierce__free(e.header);
    return end;
}

int64_t tierce__coded_encode(uint8_t *dst, uint64_t room, const uint8_t *object,
                             const struct tierce__chunk_info *info,
                             const struct tierce__codec *codec, enum tierce__element element)
{
    return tierce__coded_encode_as(
        dst, room, object, info, &(struct tierce__coded_form){.codec = codec, .element = element});
}

static uint64_t length_at(const uint8_t *table, uint32_t layer)
{
    return tierce__load_le64(table + AT_LAYERS + (size_t)LAYER_BYTES * layer);
}

/* Whether a layer of so many raw bytes can have this length. */
static bool is_length(const struct tierce__coded_info *info, uint64_t length, uint64_t raw)
{
    uint64_t tag = info->key_number > 0 ? TIERCE__SEAL_TAG_BYTES : 0;
    return info->codec == NULL ? length == raw + tag
                               : length > tag && length - tag <= tierce__codec_bound(raw);
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
        if (!is_length(info, length, raw_bytes(object, chunk, i)))
            return UINT64_MAX;
        at = tierce__round_up(at, LAYER_ALIGN) + length;
    }
    return tierce__round_up(at, TIERCE__CHUNK_ALIGN);
}

/* Reads which cipher and key the table names. Returns TIERCE_E_VERSION for a cipher of a later
 * version. */
static int parse_cipher(struct tierce__coded_info *info, const uint8_t *table)
{
    uint32_t cipher = tierce__load_le32(table + AT_CIPHER);
    info->key_number = tierce__load_le32(table + AT_KEY_NUMBER);
    if (info->chunk.is_sealed)
        return cipher != AES_256_GCM  ? TIERCE_E_VERSION
               : info->key_number > 0 ? 0
                                      : TIERCE_E_FORMAT;
    unsigned set = 0;
    for (size_t i = AT_CIPHER; i < AT_LAYERS; i++)
        set |= table[i];
    return set == 0 ? 0 : TIERCE_E_FORMAT;
}

/* The codec of a number in a header; 0: none, which only encrypted objects have. Two names may have
 * one number, so the name of a plug-in's codec counts too. */
static int parse_codec(struct tierce__coded_info *info, uint32_t number, const uint8_t *table)
{
    uint32_t layers = info->chunk.geometry.layer_count;
    info->codec = number > 0 ? tierce__codec_numbered(number) : NULL;
    TIERCE_DASSERT(number > 0 || info->chunk.is_sealed);
    if ((number & TIERCE__CODEC_PLUGIN) != 0 && has_name(layers)) {
        const uint8_t *name = table + name_at(layers);
        bool is_loaded = info->codec != NULL && strncmp((const char *)name, info->codec->name,
                                                        TIERCE__CODEC_NAME_BYTES) == 0;
        if (!is_loaded)
            tierce__codec_plugin_missing(number, name);
        return is_loaded ? 0 : TIERCE_E_VERSION;
    }
    return number > 0 && info->codec == NULL ? TIERCE_E_VERSION : 0;
}

/* Parses the header and verifies the table; sets chunk and head_bytes, and the number of the codec.
 */
static int parse_header(struct tierce__coded_info *info, uint32_t *number, const uint8_t *object,
                        uint64_t available)
{
    int rc = tierce__chunk_parse_coded(&info->chunk, number, object, available);
    if (rc < 0)
        return rc;
    const uint8_t *table = object + info->chunk.extent.header_bytes;
    info->head_bytes = tierce__coded_head_bytes(&info->chunk);
    if (available < info->head_bytes)
        return TIERCE_E_LIMIT;
    if (memcmp(table, MAGIC, sizeof(MAGIC)) != 0)
        return TIERCE_E_FORMAT;
    uint64_t sum = table_sum(table, info->chunk.geometry.layer_count);
    return tierce__load_le64(table + AT_TABLE_SUM) == sum ? 0 : TIERCE_E_CHECKSUM;
}

bool tierce__coded_plugin_name(char name[TIERCE__CODEC_NAME_BYTES], uint32_t *key_number,
                               const uint8_t *object, uint64_t available)
{
    struct tierce__coded_info info = {0};
    uint32_t number = 0;
    if (parse_header(&info, &number, object, available) < 0)
        return false;
    uint32_t layers = info.chunk.geometry.layer_count;
    if ((number & TIERCE__CODEC_PLUGIN) == 0 || !has_name(layers))
        return false;
    const uint8_t *table = object + info.chunk.extent.header_bytes;
    tierce__codec_plugin_show(name, table + name_at(layers));
    bool is_named = name[0] != '\0' && parse_cipher(&info, table) == 0;
    if (is_named)
        *key_number = info.key_number;
    return is_named;
}

int tierce__coded_parse(struct tierce__coded_info *out, const uint8_t *object, uint64_t available)
{
    struct tierce__coded_info info = {0};
    uint32_t number = 0;
    int rc = parse_header(&info, &number, object, available);
    if (rc < 0)
        return rc;
    const uint8_t *table = object + info.chunk.extent.header_bytes;
    rc = parse_codec(&info, number, table);
    if (rc == 0)
        rc = parse_cipher(&info, table);
    /* The key of an encrypted object is derived from all bytes of its header: damage in the padding
     * would be taken for another key. */
    if (rc == 0 && info.key_number > 0 && !tierce__chunk_is_padded(object, &info.chunk))
        rc = TIERCE_E_CHECKSUM;
    if (rc < 0)
        return rc;
    uint32_t element = tierce__load_le32(table + AT_ELEMENT);
    info.element = (enum tierce__element)element;
    info.object_bytes = tierce__load_le64(table + AT_OBJECT_BYTES);
    if (element >= TIERCE__ELEMENTS ||
        tierce__load_le64(table + AT_HEADER_SUM) != tierce__chunk_header_sum(object) ||
        info.object_bytes != end_of_layers(&info, object) ||
        (info.codec != NULL && info.object_bytes >= info.chunk.extent.object_bytes))
        return TIERCE_E_FORMAT;
    *out = info;
    return 0;
}

int tierce__coded_open(struct tierce__coded_info *info, const uint8_t *object,
                       const struct tierce__seal_key *key)
{
    TIERCE_ASSERT(info->key_number > 0 && key->number == info->key_number);
    int rc = derive(&info->seal, key, object, info->chunk.extent.header_bytes);
    info->is_open = rc == 0;
    return rc;
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
    struct tierce__chunk_info chunk = info->chunk;
    chunk.is_sealed = false;
    memcpy(raw, object, chunk.extent.header_bytes);
    tierce__chunk_set_codec(raw, &chunk, 0);
}

uint64_t tierce__coded_raw_bytes(const struct tierce__coded_info *info, const uint8_t *object,
                                 uint32_t layer)
{
    TIERCE_ASSERT(layer < info->chunk.geometry.layer_count);
    return raw_bytes(object, &info->chunk, layer);
}

/* A coded layer, and the raw bytes that it has. */
struct piece {
    struct tierce__coded_layer layer;
    uint32_t index;
    uint64_t bytes;
    uint64_t decrypt_ns; /* [out] */
};

/* `coded` stays encrypted, because others may read it too. */
static int decrypt(uint8_t *dst, struct piece *piece, const struct tierce__coded_info *info,
                   const uint8_t *coded)
{
    if (!info->is_open)
        return TIERCE_E_VERSION;
    uint64_t length = piece->layer.bytes - TIERCE__SEAL_TAG_BYTES, begun = tierce__now_ns();
    uint8_t *plain = dst;
    if (info->codec != NULL)
        plain = tierce__alloc_aligned(64, tierce__round_up(length, 64));
    int rc = plain != NULL
                 ? tierce__seal_open(plain, &info->seal, piece->index, coded, piece->layer.bytes)
                 : TIERCE_E_FULL;
    piece->decrypt_ns = tierce__now_ns() - begun;
    if (info->codec == NULL)
        return rc == -ENOMEM ? TIERCE_E_FULL : rc;
    if (rc == 0)
        rc = info->codec->decode(dst, piece->bytes, plain, length);
    tierce__free(plain);
    return rc == -ENOMEM ? TIERCE_E_FULL : rc;
}

int tierce__coded_verify(const struct tierce__coded_layer *layer, const uint8_t *coded)
{
    return tierce__sum(coded, layer->bytes) == layer->sum ? 0 : TIERCE_E_CHECKSUM;
}

static int decode(uint8_t *dst, struct piece *piece, const struct tierce__coded_info *info,
                  const uint8_t *coded)
{
    int rc = tierce__coded_verify(&piece->layer, coded);
    if (rc < 0)
        return rc;
    return info->key_number > 0 ? decrypt(dst, piece, info, coded)
                                : info->codec->decode(dst, piece->bytes, coded, piece->layer.bytes);
}

int tierce__coded_decode_to(uint8_t *dst, const struct tierce__coded_info *info,
                            const uint8_t *object, uint32_t index, const uint8_t *coded,
                            uint64_t *decrypt_ns)
{
    struct piece piece = {.layer = tierce__coded_layer(info, object, index),
                          .index = index,
                          .bytes = raw_bytes(object, &info->chunk, index)};
    int rc = decode(dst, &piece, info, coded);
    *decrypt_ns += piece.decrypt_ns;
    return rc;
}

int tierce__coded_decode_layer(uint8_t *raw, const struct tierce__coded_info *info,
                               const struct tierce__coded_layer *layer, uint32_t index,
                               const uint8_t *coded)
{
    struct piece piece = {
        .layer = *layer, .index = index, .bytes = raw_bytes(raw, &info->chunk, index)};
    uint64_t at = info->chunk.extent.header_bytes;
    for (uint32_t i = 0; i < index; i++)
        at += raw_bytes(raw, &info->chunk, i);
    return decode(raw + at, &piece, info, coded);
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
