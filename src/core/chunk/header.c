/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/header.h"

#include <stddef.h>
#include <string.h>

#include <xxhash.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "core/paged/paged.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the table of sums is used in place, which requires a little-endian machine"
#endif

/* Offsets of the fixed part; docs/inside/format/chunk.md is the specification. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_HEADER_BYTES = 12,
    AT_PAYLOAD_BYTES = 16,
    AT_HEADER_SUM = 24,
    AT_NS_DIGEST = 32,
    AT_HASH = 64,
    AT_PARENT = 96,
    AT_SHARD = 128,
    AT_TOKEN_START = 136,
    AT_CREATED = 144,
    AT_LAYER_COUNT = 152,
    AT_BLOCK_COUNT = 156,
    AT_BLOCK_TOKENS = 160,
    AT_ALGO = 164,
    AT_CODEC = 168,
    AT_FLAGS = 172,
    AT_GROUP = 176,
    AT_WINDOW = 180,
    AT_RESERVED = 184,
};

static const uint8_t MAGIC[8] = {'T', 'I', 'E', 'R', 'C', 'E', 'C', 'K'};

#define BLOCKS_MAX       65536u
#define BLOCK_TOKENS_MAX 65536u
#define CELL_BYTES_MAX   (1u << 30)
#define HEADER_BYTES_MAX (64u << 20)

static uint64_t hashes_offset(uint32_t layer_count)
{
    return tierce__round_up(TIERCE__CHUNK_FIXED + 4ULL * layer_count, 8);
}

static uint64_t sums_offset(uint32_t layer_count, uint32_t block_count)
{
    return hashes_offset(layer_count) + (uint64_t)TIERCE_HASH_BYTES * block_count;
}

static bool counts_in_bounds(uint32_t layers, uint32_t blocks, uint32_t block_tokens)
{
    return layers >= 1 && layers <= TIERCE_LAYERS_MAX && blocks >= 1 && blocks <= BLOCKS_MAX &&
           block_tokens >= 1 && block_tokens <= BLOCK_TOKENS_MAX;
}

/* Where the padding begins. */
static uint64_t tables_end(uint32_t layers, uint32_t blocks)
{
    return sums_offset(layers, blocks) + 8ULL * layers * blocks;
}

/* Header size of counts in bounds; cannot overflow. */
static uint64_t header_size(uint32_t layers, uint32_t blocks)
{
    TIERCE_DASSERT(layers >= 1 && layers <= TIERCE_LAYERS_MAX && blocks >= 1 &&
                   blocks <= BLOCKS_MAX);
    return tierce__round_up(tables_end(layers, blocks), TIERCE__CHUNK_ALIGN);
}

int tierce__chunk_extent(struct tierce__extent *out, const struct tierce__geometry *geometry)
{
    if (!counts_in_bounds(geometry->layer_count, geometry->block_count, geometry->block_tokens))
        return TIERCE_E_LIMIT;
    uint64_t cells = 0;
    for (uint32_t i = 0; i < geometry->layer_count; i++) {
        if (geometry->cell_bytes[i] == 0 || geometry->cell_bytes[i] > CELL_BYTES_MAX)
            return TIERCE_E_LIMIT;
        cells += geometry->cell_bytes[i];
    }
    uint64_t header = header_size(geometry->layer_count, geometry->block_count);
    uint64_t payload = cells * geometry->block_count; /* < 2^42 * 2^16: fits */
    uint64_t object = header + tierce__round_up(payload, TIERCE__CHUNK_ALIGN);
    TIERCE_DASSERT(header % TIERCE__CHUNK_ALIGN == 0 && object >= header + payload);
    if (header > HEADER_BYTES_MAX || object > TIERCE__CHUNK_BYTES_MAX)
        return TIERCE_E_LIMIT;
    *out = (struct tierce__extent){header, payload, object};
    return 0;
}

bool tierce__chunk_has_length(const struct tierce__geometry *full, uint64_t object_bytes)
{
    uint32_t from = 1, to = full->block_count; /* a longer chunk has more blocks */
    while (from <= to) {
        struct tierce__geometry part = *full;
        struct tierce__extent extent;
        part.block_count = from + (to - from) / 2;
        if (tierce__chunk_extent(&extent, &part) < 0 || extent.object_bytes > object_bytes)
            to = part.block_count - 1;
        else if (extent.object_bytes < object_bytes)
            from = part.block_count + 1;
        else
            return true;
    }
    return false;
}

uint64_t tierce__chunk_layer_offset(const struct tierce__geometry *geometry, uint32_t layer)
{
    TIERCE_ASSERT(layer <= geometry->layer_count);
    uint64_t cells = 0;
    for (uint32_t i = 0; i < layer; i++)
        cells += geometry->cell_bytes[i];
    return header_size(geometry->layer_count, geometry->block_count) +
           cells * geometry->block_count;
}

void tierce__shard_store(uint8_t at[TIERCE__SHARD_BYTES], const struct tierce_shard *shard)
{
    tierce__store_le16(at, shard->tp_rank);
    tierce__store_le16(at + 2, shard->tp_size);
    tierce__store_le16(at + 4, shard->pp_rank);
    tierce__store_le16(at + 6, shard->pp_size);
}

struct tierce_shard tierce__shard_load(const uint8_t at[TIERCE__SHARD_BYTES])
{
    return (struct tierce_shard){.tp_rank = tierce__load_le16(at),
                                 .tp_size = tierce__load_le16(at + 2),
                                 .pp_rank = tierce__load_le16(at + 4),
                                 .pp_size = tierce__load_le16(at + 6)};
}

/* The end of the part that is read for the header's sum. */
static uint64_t summed_bytes(uint32_t layers, uint32_t blocks)
{
    return tierce__round_up(tables_end(layers, blocks), TIERCE__SUM_STRIPE);
}

static uint32_t version_of(enum tierce_group group)
{
    return group == TIERCE_GROUP_ALL ? TIERCE__CHUNK_VERSION : TIERCE__CHUNK_VERSION_GROUP;
}

static bool is_coded_version(uint32_t version)
{
    return version == TIERCE__CHUNK_VERSION_CODED || version == TIERCE__CHUNK_VERSION_SEALED;
}

/* Whether group, window and the version of the header are consistent. */
static bool group_in_bounds(uint32_t version, uint32_t group, uint32_t window)
{
    bool has_window = group == TIERCE_GROUP_WINDOW || group == TIERCE_GROUP_CHUNKED;
    return group <= TIERCE_GROUP_STATE &&
           (version_of((enum tierce_group)group) == version || is_coded_version(version)) &&
           has_window == (window > 0);
}

void tierce__chunk_begin_unpadded(uint8_t *object, const struct tierce__chunk_info *info,
                                  const uint8_t *block_hashes)
{
    const struct tierce__geometry *g = &info->geometry;
    TIERCE_DASSERT(counts_in_bounds(g->layer_count, g->block_count, g->block_tokens));
    TIERCE_ASSERT(info->extent.header_bytes == header_size(g->layer_count, g->block_count));
    TIERCE_DASSERT(tierce__chunk_layer_offset(g, g->layer_count) ==
                   info->extent.header_bytes + info->extent.payload_bytes);
    TIERCE_DASSERT((uintptr_t)object % _Alignof(uint64_t) == 0); /* the sums are used in place */
    TIERCE_DASSERT(group_in_bounds(version_of(info->group), (uint32_t)info->group, info->window));

    memset(object, 0, summed_bytes(g->layer_count, g->block_count));
    memcpy(object + AT_MAGIC, MAGIC, sizeof(MAGIC));
    tierce__store_le32(object + AT_VERSION, version_of(info->group));
    tierce__store_le32(object + AT_HEADER_BYTES, (uint32_t)info->extent.header_bytes);
    tierce__store_le64(object + AT_PAYLOAD_BYTES, info->extent.payload_bytes);
    memcpy(object + AT_NS_DIGEST, info->ns_digest, TIERCE_HASH_BYTES);
    memcpy(object + AT_HASH, info->hash, TIERCE_HASH_BYTES);
    memcpy(object + AT_PARENT, info->parent, TIERCE_HASH_BYTES);
    tierce__shard_store(object + AT_SHARD, &info->shard);
    tierce__store_le64(object + AT_TOKEN_START, info->token_start);
    tierce__store_le64(object + AT_CREATED, info->created_s);
    tierce__store_le32(object + AT_LAYER_COUNT, g->layer_count);
    tierce__store_le32(object + AT_BLOCK_COUNT, g->block_count);
    tierce__store_le32(object + AT_BLOCK_TOKENS, g->block_tokens);
    tierce__store_le32(object + AT_ALGO, (uint32_t)info->algo);
    tierce__store_le32(object + AT_GROUP, (uint32_t)info->group);
    tierce__store_le32(object + AT_WINDOW, info->window);
    for (uint32_t i = 0; i < g->layer_count; i++)
        tierce__store_le32(object + TIERCE__CHUNK_FIXED + 4 * (size_t)i, g->cell_bytes[i]);
    memcpy(object + hashes_offset(g->layer_count), block_hashes,
           (size_t)TIERCE_HASH_BYTES * g->block_count);
}

/* The padding is also written to disk, and must not contain old memory. */
void tierce__chunk_begin(uint8_t *object, const struct tierce__chunk_info *info,
                         const uint8_t *block_hashes)
{
    const struct tierce__geometry *g = &info->geometry;
    uint64_t tables = summed_bytes(g->layer_count, g->block_count);
    uint64_t end = info->extent.header_bytes + info->extent.payload_bytes;
    TIERCE_ASSERT(tables <= info->extent.header_bytes && end <= info->extent.object_bytes);
    TIERCE_DASSERT(info->extent.object_bytes - end < TIERCE__CHUNK_ALIGN);
    tierce__chunk_begin_unpadded(object, info, block_hashes);
    memset(object + tables, 0, info->extent.header_bytes - tables);
    memset(object + end, 0, info->extent.object_bytes - end);
}

uint64_t *tierce__chunk_sums(uint8_t *object, const struct tierce__geometry *geometry,
                             uint32_t layer)
{
    TIERCE_ASSERT(layer < geometry->layer_count);
    TIERCE_DASSERT(geometry->layer_count <= TIERCE_LAYERS_MAX &&
                   geometry->block_count <= BLOCKS_MAX);
    uint64_t at = sums_offset(geometry->layer_count, geometry->block_count) +
                  8ULL * layer * geometry->block_count;
    TIERCE_DASSERT((uintptr_t)(object + at) % _Alignof(uint64_t) == 0);
    return (uint64_t *)(void *)(object + at);
}

/*
 * The header's sum covers all of it with the field of the sum itself as zero, and the stripes after
 * the tables as zero. These stripes are not read, and they are most of the header of a small
 * object. 1.1x on small commands of a node, whose headers lie far apart (2026-11).
 */
static uint64_t header_sum(const uint8_t *object, uint64_t header_bytes)
{
    uint8_t first[TIERCE__SUM_STRIPE];
    uint64_t used = summed_bytes(tierce__load_le32(object + AT_LAYER_COUNT),
                                 tierce__load_le32(object + AT_BLOCK_COUNT));
    /* Another process may have changed the counts in the meantime, so they are not trusted. */
    used = used < sizeof(first) ? sizeof(first) : used < header_bytes ? used : header_bytes;
    TIERCE_ASSERT(header_bytes >= TIERCE__CHUNK_ALIGN && header_bytes % TIERCE__CHUNK_ALIGN == 0);
    memcpy(first, object, sizeof(first));
    tierce__store_le64(first + AT_HEADER_SUM, 0);
    return tierce__sum_padded(first, object, used, header_bytes);
}

void tierce__chunk_seal(uint8_t *object, uint64_t header_bytes)
{
    tierce__store_le64(object + AT_HEADER_SUM, header_sum(object, header_bytes));
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

uint32_t tierce__chunk_cell_bytes(const uint8_t *object, uint32_t layer)
{
    TIERCE_DASSERT(layer < TIERCE_LAYERS_MAX);
    return tierce__load_le32(object + TIERCE__CHUNK_FIXED + 4 * (size_t)layer);
}

/* The cell table of a header with valid counts; *payload = the sum of its lengths. */
static bool cells_in_bounds(const uint8_t *object, uint32_t layers, uint32_t blocks,
                            uint64_t *payload)
{
    TIERCE_DASSERT(layers >= 1 && layers <= TIERCE_LAYERS_MAX && blocks >= 1);
    uint64_t cells = 0;
    for (uint32_t i = 0; i < layers; i++) {
        uint32_t bytes = tierce__chunk_cell_bytes(object, i);
        if (bytes == 0 || bytes > CELL_BYTES_MAX)
            return false;
        cells += bytes;
    }
    *payload = cells * blocks;
    return true;
}

bool tierce__chunk_has_magic(const uint8_t *object)
{
    return memcmp(object + AT_MAGIC, MAGIC, sizeof(MAGIC)) == 0;
}

bool tierce__chunk_is_sealed(const uint8_t *object)
{
    return tierce__chunk_has_magic(object) &&
           tierce__load_le32(object + AT_VERSION) == TIERCE__CHUNK_VERSION_SEALED;
}

unsigned tierce__chunk_magic_bytes(const uint8_t *object)
{
    unsigned right = 0;
    for (size_t i = 0; i < sizeof(MAGIC); i++)
        right += object[AT_MAGIC + i] == MAGIC[i];
    return right;
}

/* Checks magic, version and the length of the header, before the rest is read. Each number is read
 * once, because another process may write to the object meanwhile. */
static int check_frame(struct tierce__chunk_info *out, const uint8_t *object, uint64_t available,
                       bool is_coded)
{
    if (available < TIERCE__CHUNK_FIXED)
        return TIERCE_E_LIMIT;
    if (!tierce__chunk_has_magic(object))
        return TIERCE_E_FORMAT;
    uint32_t version = tierce__load_le32(object + AT_VERSION);
    if (is_coded ? !is_coded_version(version)
                 : version != TIERCE__CHUNK_VERSION && version != TIERCE__CHUNK_VERSION_GROUP)
        return TIERCE_E_VERSION;
    uint32_t layers = tierce__load_le32(object + AT_LAYER_COUNT);
    uint32_t blocks = tierce__load_le32(object + AT_BLOCK_COUNT);
    uint32_t block_tokens = tierce__load_le32(object + AT_BLOCK_TOKENS);
    if (!counts_in_bounds(layers, blocks, block_tokens))
        return TIERCE_E_FORMAT;
    uint64_t header_bytes = header_size(layers, blocks);
    if (tierce__load_le32(object + AT_HEADER_BYTES) != header_bytes ||
        header_bytes > HEADER_BYTES_MAX)
        return TIERCE_E_FORMAT;
    *out = (struct tierce__chunk_info){
        .geometry = {.layer_count = layers, .block_count = blocks, .block_tokens = block_tokens},
        .extent = {.header_bytes = header_bytes},
        .is_sealed = version == TIERCE__CHUNK_VERSION_SEALED};
    return available < header_bytes ? TIERCE_E_LIMIT : 0;
}

static int parse(struct tierce__chunk_info *out, const uint8_t *object, uint64_t available,
                 bool is_coded)
{
    struct tierce__chunk_info info;
    int rc = check_frame(&info, object, available, is_coded);
    if (rc < 0)
        return rc;
    uint64_t header_bytes = info.extent.header_bytes;
    TIERCE_DASSERT(header_bytes <= available && header_bytes <= HEADER_BYTES_MAX);
    if (tierce__load_le64(object + AT_HEADER_SUM) != header_sum(object, header_bytes))
        return TIERCE_E_CHECKSUM;

    uint64_t payload;
    if (!cells_in_bounds(object, info.geometry.layer_count, info.geometry.block_count, &payload) ||
        payload != tierce__load_le64(object + AT_PAYLOAD_BYTES))
        return TIERCE_E_FORMAT;
    info.shard = tierce__shard_load(object + AT_SHARD);
    info.algo = (enum tierce_chain_algo)tierce__load_le32(object + AT_ALGO);
    info.token_start = tierce__load_le64(object + AT_TOKEN_START);
    info.created_s = tierce__load_le64(object + AT_CREATED);
    info.group = (enum tierce_group)tierce__load_le32(object + AT_GROUP);
    info.window = tierce__load_le32(object + AT_WINDOW);
    info.extent.payload_bytes = payload;
    info.extent.object_bytes = header_bytes + tierce__round_up(payload, TIERCE__CHUNK_ALIGN);
    /* A codec, a flag or a reserved byte that is set was written by a later version. */
    if (info.extent.object_bytes > TIERCE__CHUNK_BYTES_MAX ||
        (tierce__load_le32(object + AT_CODEC) != 0 ? !is_coded : is_coded && !info.is_sealed) ||
        tierce__load_le32(object + AT_FLAGS) != 0 ||
        !all_zero(object + AT_RESERVED, TIERCE__CHUNK_FIXED - AT_RESERVED) ||
        !group_in_bounds(tierce__load_le32(object + AT_VERSION), (uint32_t)info.group, info.window))
        return TIERCE_E_FORMAT;
    memcpy(info.ns_digest, object + AT_NS_DIGEST, TIERCE_HASH_BYTES);
    memcpy(info.hash, object + AT_HASH, TIERCE_HASH_BYTES);
    memcpy(info.parent, object + AT_PARENT, TIERCE_HASH_BYTES);
    *out = info;
    return 0;
}

int tierce__chunk_parse(struct tierce__chunk_info *out, const uint8_t *object, uint64_t available)
{
    return parse(out, object, available, false);
}

int tierce__chunk_parse_coded(struct tierce__chunk_info *out, uint32_t *codec,
                              const uint8_t *object, uint64_t available)
{
    int rc = parse(out, object, available, true);
    if (rc == 0)
        *codec = tierce__load_le32(object + AT_CODEC);
    return rc;
}

void tierce__chunk_set_codec(uint8_t *object, const struct tierce__chunk_info *info, uint32_t codec)
{
    tierce__store_le32(object + AT_VERSION, info->is_sealed ? TIERCE__CHUNK_VERSION_SEALED
                                            : codec > 0     ? TIERCE__CHUNK_VERSION_CODED
                                                            : version_of(info->group));
    tierce__store_le32(object + AT_CODEC, codec);
    tierce__chunk_seal(object, info->extent.header_bytes);
}

bool tierce__chunk_is_padded(const uint8_t *object, const struct tierce__chunk_info *info)
{
    uint64_t at = summed_bytes(info->geometry.layer_count, info->geometry.block_count);
    unsigned set = 0;
    for (; at < info->extent.header_bytes; at++)
        set |= object[at];
    return set == 0;
}

uint64_t tierce__chunk_header_sum(const uint8_t *object)
{
    return tierce__load_le64(object + AT_HEADER_SUM);
}

uint64_t tierce__chunk_header_bytes(const uint8_t *object)
{
    return tierce__load_le32(object + AT_HEADER_BYTES);
}

bool tierce__chunk_same(const uint8_t *a, const uint8_t *b, const struct tierce__geometry *geometry)
{
    TIERCE_DASSERT(
        counts_in_bounds(geometry->layer_count, geometry->block_count, geometry->block_tokens));
    uint64_t tables = tables_end(geometry->layer_count, geometry->block_count);
    return memcmp(a, b, AT_HEADER_SUM) == 0 &&
           memcmp(a + AT_NS_DIGEST, b + AT_NS_DIGEST, AT_CREATED - AT_NS_DIGEST) == 0 &&
           memcmp(a + AT_LAYER_COUNT, b + AT_LAYER_COUNT, tables - AT_LAYER_COUNT) == 0;
}

const uint8_t *tierce__chunk_block_hashes(const uint8_t *object, uint32_t layer_count)
{
    TIERCE_DASSERT(layer_count >= 1 && layer_count <= TIERCE_LAYERS_MAX);
    return object + hashes_offset(layer_count);
}

static bool same_cells(const uint8_t *object, const struct tierce__geometry *want)
{
    for (uint32_t i = 0; i < want->layer_count; i++) {
        if (tierce__chunk_cell_bytes(object, i) != want->cell_bytes[i])
            return false;
    }
    return true;
}

/* A chunk is named by its last block. */
static bool ends_with_its_hash(const uint8_t *object, const struct tierce__chunk_info *info)
{
    TIERCE_DASSERT(info->geometry.block_count >= 1);
    const uint8_t *hashes = tierce__chunk_block_hashes(object, info->geometry.layer_count);
    size_t last = info->geometry.block_count - 1;
    return memcmp(hashes + last * TIERCE_HASH_BYTES, info->hash, TIERCE_HASH_BYTES) == 0;
}

/* The identity except the blocks. */
static bool is_place_of(const uint8_t *object, const struct tierce__chunk_info *got,
                        const struct tierce__chunk_info *want)
{
    const struct tierce__geometry *g = &got->geometry, *w = &want->geometry;
    return memcmp(got->ns_digest, want->ns_digest, TIERCE_HASH_BYTES) == 0 &&
           memcmp(got->hash, want->hash, TIERCE_HASH_BYTES) == 0 &&
           memcmp(got->parent, want->parent, TIERCE_HASH_BYTES) == 0 &&
           memcmp(&got->shard, &want->shard, sizeof(got->shard)) == 0 && got->algo == want->algo &&
           got->group == want->group && got->window == want->window &&
           got->token_start == want->token_start && g->layer_count == w->layer_count &&
           g->block_count == w->block_count && g->block_tokens == w->block_tokens &&
           same_cells(object, w);
}

int tierce__chunk_match(const uint8_t *object, const struct tierce__chunk_info *got,
                        const struct tierce__chunk_info *want, const uint8_t *want_block_hashes)
{
    uint32_t blocks = want->geometry.block_count;
    TIERCE_DASSERT(blocks >= 1);
    bool same = is_place_of(object, got, want) &&
                tierce__chunk_common(object, got, want_block_hashes, blocks) == blocks;
    return same ? 0 : TIERCE_E_IDENTITY;
}

uint32_t tierce__chunk_common(const uint8_t *object, const struct tierce__chunk_info *got,
                              const uint8_t *block_hashes, uint32_t count)
{
    TIERCE_DASSERT(count <= BLOCKS_MAX);
    TIERCE_DASSERT(got->geometry.block_count <= BLOCKS_MAX);
    const uint8_t *have = tierce__chunk_block_hashes(object, got->geometry.layer_count);
    uint32_t same = 0;
    while (same < count && same < got->geometry.block_count &&
           memcmp(have + (size_t)same * TIERCE_HASH_BYTES,
                  block_hashes + (size_t)same * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES) == 0)
        same++;
    TIERCE_DASSERT(same <= count);
    return same;
}

int tierce__chunk_match_first(const uint8_t *object, const struct tierce__chunk_info *got,
                              const struct tierce__chunk_info *want,
                              const uint8_t *want_block_hashes, uint32_t blocks)
{
    bool same = is_place_of(object, got, want) && ends_with_its_hash(object, got) &&
                tierce__chunk_common(object, got, want_block_hashes, blocks) == blocks;
    return same ? 0 : TIERCE_E_IDENTITY;
}

uint64_t tierce__chunk_verify_cells(const uint8_t *object, const struct tierce__chunk_info *info)
{
    uint32_t layers = info->geometry.layer_count, blocks = info->geometry.block_count;
    TIERCE_DASSERT(counts_in_bounds(layers, blocks, info->geometry.block_tokens));
    TIERCE_DASSERT(info->extent.header_bytes == header_size(layers, blocks));
    const uint8_t *sum = object + sums_offset(layers, blocks);
    const uint8_t *cell = object + info->extent.header_bytes;
    uint64_t left = info->extent.payload_bytes, bad = 0;
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t bytes = tierce__chunk_cell_bytes(object, layer);
        if ((uint64_t)bytes * blocks > left) /* it differed when the header was parsed */
            return bad + (uint64_t)(layers - layer) * blocks;
        left -= (uint64_t)bytes * blocks;
        for (uint32_t block = 0; block < blocks; block++, cell += bytes, sum += 8)
            bad += XXH3_64bits(cell, bytes) != tierce__load_le64(sum);
    }
    return bad;
}

void tierce__chunk_sum_cells(uint8_t *object, const struct tierce__geometry *geometry)
{
    TIERCE_DASSERT(
        counts_in_bounds(geometry->layer_count, geometry->block_count, geometry->block_tokens));
    const uint8_t *cell = object + tierce__chunk_layer_offset(geometry, 0);
    for (uint32_t layer = 0; layer < geometry->layer_count; layer++) {
        uint64_t *sums = tierce__chunk_sums(object, geometry, layer);
        uint32_t bytes = geometry->cell_bytes[layer];
        for (uint32_t block = 0; block < geometry->block_count; block++, cell += bytes)
            sums[block] = XXH3_64bits(cell, bytes);
    }
}
