/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CODED_STORE_H
#define TIERCE_TESTS_CODED_STORE_H

#include "core/chunk/coded.h"
#include "core/paged/paged.h"
#include "disk_harness.h"
#include "kv_values.h"
#include "store/coded/coded_parts.h"
#include "test_random.h"

/*
 * A disk tier behind the tier that encodes, with real chunks: sealed, of a namespace whose elements
 * are bf16. A chunk's bytes follow from its number and its kind. Cells are no multiple of a page,
 * so that ranges of pages cut layers.
 */

enum { CODED_LAYERS = 3, CODED_BLOCKS = 4 };

enum coded_kind {
    CODED_VALUES, /* as KV: becomes shorter */
    CODED_NOISE,  /* random bytes: stays raw */
    CODED_ZEROES,
    CODED_KINDS
};

static const uint32_t coded_cells[CODED_LAYERS] = {6144, 2048, 6656};

static inline struct tierce_namespace coded_fields(const char *dtype, const char *quantization)
{
    return (struct tierce_namespace){.size = sizeof(struct tierce_namespace),
                                     .weights = "00112233",
                                     .model = "{}",
                                     .kv_dtype = dtype,
                                     .quantization = quantization,
                                     .layout = "test/1",
                                     .layer_count = CODED_LAYERS,
                                     .cell_bytes = coded_cells,
                                     .block_tokens = 16,
                                     .chunk_blocks = CODED_BLOCKS,
                                     .algo = TIERCE_CHAIN_SHA256};
}

/* `s`: store_parts was called. Names the namespace. */
static inline void coded_name(struct store *s, const struct tierce_namespace *ns)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    char *text;
    ck_assert_int_eq(tierce_namespace_text(&text, ns), 0);
    tierce_namespace_digest(digest, text);
    int64_t id = tierce__namespaces_intern(s->namespaces, digest, text);
    ck_assert_int_ge(id, 0);
    s->ns = (uint32_t)id;
    tierce_free(text);
}

/* The same, with a lossy codec if `quantization` names one (tierce__codec_of_quantization). */
static inline void coded_namespace_of(struct store *s, const char *dtype, const char *quantization)
{
    const struct tierce_namespace ns = coded_fields(dtype, quantization);
    coded_name(s, &ns);
}

/* The same, of exact KV. */
static inline void coded_namespace(struct store *s, const char *dtype)
{
    coded_namespace_of(s, dtype, "");
}

static inline struct tierce__chunk_info coded_info(const struct store *s, uint64_t n)
{
    struct tierce__chunk_info info = {.shard = {0, 1, 0, 1},
                                      .algo = TIERCE_CHAIN_SHA256,
                                      .token_start = n * 64,
                                      .created_s = 1795900000,
                                      .geometry = {.layer_count = CODED_LAYERS,
                                                   .cell_bytes = coded_cells,
                                                   .block_tokens = 16,
                                                   .block_count = CODED_BLOCKS}};
    struct tierce__key key = store_key(s, n);
    memcpy(info.ns_digest, tierce__namespaces_digest(s->namespaces, s->ns), TIERCE_HASH_BYTES);
    memcpy(info.hash, key.hash, TIERCE_HASH_BYTES);
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    return info;
}

static inline uint64_t coded_bytes(const struct store *s)
{
    return coded_info(s, 0).extent.object_bytes;
}

/* Writes the raw object of a chunk. */
static inline void coded_make(const struct store *s, uint8_t *raw, uint64_t n, enum coded_kind kind)
{
    struct tierce__chunk_info info = coded_info(s, n);
    uint8_t hashes[CODED_BLOCKS * TIERCE_HASH_BYTES], *cells = raw + info.extent.header_bytes;
    memset(hashes, (int)n, sizeof(hashes));
    memcpy(hashes + (CODED_BLOCKS - 1) * TIERCE_HASH_BYTES, info.hash, TIERCE_HASH_BYTES);
    tierce__chunk_begin(raw, &info, hashes);
    uint64_t seed = n * CODED_KINDS + kind + 1;
    memset(cells, 0, info.extent.payload_bytes);
    if (kind == CODED_VALUES)
        kv_fill(cells, info.extent.payload_bytes, TIERCE__ELEMENT_BF16, seed, 124, 128);
    for (uint64_t i = 0; kind == CODED_NOISE && i < info.extent.payload_bytes; i++)
        cells[i] = (uint8_t)tierce__random_next(&seed);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
}

static inline const struct tierce__codec *coded_lossy(const struct store *s,
                                                      struct tierce__codec_choice *choice)
{
    struct tierce__coded_elements elements;
    if (tierce__coded_elements_init(&elements, s->namespaces) < 0)
        return NULL; /* in a test of exact KV, whose allocations fail */
    const struct tierce__codec *codec = tierce__coded_kind_of(&elements, s->ns).lossy;
    if (codec != NULL && codec->needs_order)
        ck_assert(tierce__coded_choice_of(choice, &elements, s->ns));
    tierce__coded_elements_fini(&elements);
    return codec;
}

/* The raw object that is read: as it was put, or as the lossy codec of its namespace restores it.
 */
static inline void coded_want(const struct store *s, uint8_t *want, uint64_t n,
                              enum coded_kind kind)
{
    struct tierce__codec_choice choice;
    const struct tierce__codec *codec = coded_lossy(s, &choice);
    struct tierce__chunk_info info;
    struct tierce__coded_info got;
    coded_make(s, want, n, kind);
    if (codec == NULL)
        return;
    ck_assert_int_eq(tierce__chunk_parse(&info, want, coded_bytes(s)), 0);
    uint64_t room = tierce__coded_room(want, &info);
    uint8_t *object = aligned_alloc(64, room);
    ck_assert_ptr_nonnull(object);
    const struct tierce__coded_form form = {
        .codec = codec, .element = TIERCE__ELEMENT_BF16, .choice = &choice};
    int64_t length = tierce__coded_encode_as(object, room, want, &info, &form);
    ck_assert_int_ge(length, 0);
    if (length > 0) {
        ck_assert_int_eq(tierce__coded_parse(&got, object, (uint64_t)length), 0);
        ck_assert_int_eq(tierce__coded_decode(want, &got, object), 0);
    }
    free(object);
}

static inline struct tierce__buf *coded_alloc(void *arg, uint64_t bytes)
{
    struct tierce__buf *buf;
    return tierce__pool_alloc(arg, &buf, bytes) == 0 ? buf : NULL;
}

/* Puts the tier that encodes around s->tier. `with`: what differs from the defaults. */
static inline void coded_wrap(struct store *s, const struct tierce__coded_opts *with)
{
    struct tierce__coded_opts opts = *with;
    opts.size = sizeof(opts);
    opts.tier = s->tier;
    opts.namespaces = s->namespaces;
    opts.alloc = opts.alloc != NULL ? opts.alloc : coded_alloc;
    opts.alloc_arg = opts.alloc_arg != NULL ? opts.alloc_arg : s->pool;
    ck_assert_int_eq(tierce__coded_tier_open(&s->tier, &opts), 0);
}

static inline void coded_open(struct store *s, uint64_t cap, const struct tierce__coded_opts *with)
{
    struct tierce__disk_opts opts = store_opts(s, cap);
    ck_assert_int_eq(store_open(s, &opts), 0);
    coded_wrap(s, with);
}

static inline int coded_put(struct store *s, uint64_t n, enum coded_kind kind)
{
    struct tierce__key key = store_key(s, n);
    struct tierce__buf *buf;
    uint8_t first[TIERCE_HASH_BYTES];
    uint64_t bytes = coded_bytes(s);
    ck_assert_int_eq(tierce__pool_alloc(s->pool, &buf, bytes), 0);
    coded_make(s, buf->data, n, kind);
    memset(first, (int)n, sizeof(first));
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .first_block = first,
                                    .object_bytes = bytes,
                                    .token_start = n * 64,
                                    .block_count = CODED_BLOCKS};
    int rc = store_run(s, &req);
    tierce__buf_release(buf);
    return rc;
}

/* Reads a range; 0 only if its bytes are right, and none beside it has changed. */
static inline int coded_get(struct store *s, uint64_t n, enum coded_kind kind, uint64_t from,
                            uint64_t length)
{
    struct tierce__key key = store_key(s, n);
    struct tierce__buf *buf;
    uint64_t bytes = coded_bytes(s);
    uint8_t *want = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(want);
    ck_assert_int_eq(tierce__pool_alloc(s->pool, &buf, bytes), 0);
    memset(buf->data, 0xee, bytes);
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .offset = from,
                                    .length = length};
    int rc = store_run(s, &req);
    if (rc == 0) {
        coded_want(s, want, n, kind);
        struct tierce__chunk_info info = coded_info(s, n);
        uint64_t header = length == bytes ? info.extent.header_bytes : from;
        /* No sum covers the zeroes at the end of a header. */
        ck_assert(header == from || tierce__chunk_same(buf->data, want, &info.geometry));
        ck_assert_mem_eq(buf->data + header, want + header, from + length - header);
        for (uint64_t i = 0; i < bytes; i++)
            ck_assert((i >= from && i < from + length) || buf->data[i] == 0xee);
    }
    tierce__buf_release(buf);
    free(want);
    return rc;
}

static inline int coded_get_all(struct store *s, uint64_t n, enum coded_kind kind)
{
    return coded_get(s, n, kind, 0, coded_bytes(s));
}

static inline struct tierce__coded_stats coded_stats(struct store *s)
{
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(s->tier, &stats);
    return stats;
}

#endif
