/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_HEADER_H
#define TIERCE_CHUNK_HEADER_H

#include <stdbool.h>

#include "core/key/key.h"

/*
 * The self-describing header of a chunk: identity, geometry and one sum per cell.
 *
 * A chunk is one contiguous object: the header, padded to a multiple of 4096 bytes, then the
 * payload, layer-major: layer -> token block -> opaque bytes (a "cell"), then zero padding to a
 * multiple of 4096. The object is in a pool buffer and is written to every tier unchanged. The
 * format, byte by byte: docs/inside/format/chunk.md.
 *
 * Thread: any; nothing here blocks or allocates.
 */

#define TIERCE__CHUNK_ALIGN 4096u
/* The format versions: 1 for a chunk of all layers, 2 for a chunk of a group of layers, 3 for
 * either if its layers are coded (coded.h), 4 if they are encrypted. */
#define TIERCE__CHUNK_VERSION        1u
#define TIERCE__CHUNK_VERSION_GROUP  2u
#define TIERCE__CHUNK_VERSION_CODED  3u
#define TIERCE__CHUNK_VERSION_SEALED 4u
#define TIERCE__CHUNK_FIXED          256u /* bytes before the tables */
#define TIERCE__CHUNK_BYTES_MAX      (1ULL << 34)

/* The geometry of the chunks of a view: equal for all but partial tails. */
struct tierce__geometry {
    uint32_t layer_count;
    const uint32_t *cell_bytes; /* [layer_count], [borrow as long as the geometry] */
    uint32_t block_tokens;
    uint32_t block_count; /* of this chunk; the namespace's chunk_blocks if it is full */
};

/* Byte offsets inside an object, computed from a geometry. */
struct tierce__extent {
    uint64_t header_bytes;  /* multiple of 4096; the payload starts here */
    uint64_t payload_bytes; /* sum of all cells */
    uint64_t object_bytes;  /* header + payload + padding, multiple of 4096 */
};

/* Errors: TIERCE_E_LIMIT if a field is out of bounds or the object would pass CHUNK_BYTES_MAX. */
TIERCE_MUSTUSE int tierce__chunk_extent(struct tierce__extent *out,
                                        const struct tierce__geometry *geometry);

/* Whether a chunk of this geometry, with 1 to block_count blocks, is `object_bytes` long. */
bool tierce__chunk_has_length(const struct tierce__geometry *full, uint64_t object_bytes);

/* Offset in the object of layer `layer`'s first cell; layer == layer_count gives the end. */
uint64_t tierce__chunk_layer_offset(const struct tierce__geometry *geometry, uint32_t layer);

#define TIERCE__SHARD_BYTES 8u

/* A shard as stored in headers and journals: four numbers of two bytes, little-endian. */
void tierce__shard_store(uint8_t at[TIERCE__SHARD_BYTES], const struct tierce_shard *shard);
struct tierce_shard tierce__shard_load(const uint8_t at[TIERCE__SHARD_BYTES]);

/* All fields of a header except the tables. */
struct tierce__chunk_info {
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    uint8_t hash[TIERCE_HASH_BYTES];
    uint8_t parent[TIERCE_HASH_BYTES]; /* hash of the chunk before, or the chain's root hash */
    struct tierce_shard shard;
    enum tierce_chain_algo algo;
    enum tierce_group group; /* and window: as in the namespace */
    uint32_t window;
    uint64_t token_start;
    bool is_sealed;     /* of a coded object: its layers are encrypted, and it may have no codec */
    uint64_t created_s; /* wall clock */
    struct tierce__geometry geometry; /* after parsing, cell_bytes is NULL: use the accessor */
    struct tierce__extent extent;
};

/*
 * Writes everything but the sums to the header region of `object`: tables of cell sizes and of
 * block hashes (`block_hashes`, block_count * 32 bytes), zeroes for the sums and the padding of
 * both regions. The sums are put in place by tierce__chunk_sums and the writer of the cells; the
 * object becomes valid with tierce__chunk_seal. `object` has extent.object_bytes bytes.
 */
void tierce__chunk_begin(uint8_t *object, const struct tierce__chunk_info *info,
                         const uint8_t *block_hashes);

/* The same without the padding, for an object that never leaves memory. */
void tierce__chunk_begin_unpadded(uint8_t *object, const struct tierce__chunk_info *info,
                                  const uint8_t *block_hashes);

/* The table of sums of layer `layer` inside an object: block_count entries, native order is
 * little-endian order (big-endian machines are rejected at build time). */
uint64_t *tierce__chunk_sums(uint8_t *object, const struct tierce__geometry *geometry,
                             uint32_t layer);

/* Computes the header's own sum; from here on the header must not change. header_bytes: from its
 * extent; the value in the header itself is not trusted. */
void tierce__chunk_seal(uint8_t *object, uint64_t header_bytes);

/* Whether the first 8 bytes are those of a chunk of any version. */
bool tierce__chunk_has_magic(const uint8_t *object);
/* Whether the first TIERCE__CHUNK_FIXED bytes, which need not be verified, are those of an object
 * whose layers are encrypted. */
bool tierce__chunk_is_sealed(const uint8_t *object);
/* Returns how many of the 8 magic bytes match. */
unsigned tierce__chunk_magic_bytes(const uint8_t *object);

/*
 * Parses the first `available` bytes of an object from anywhere: hostile bytes are safe. Checks
 * magic, version, every length against every other, and the header's sum.
 * Errors, *out untouched: TIERCE_E_FORMAT, TIERCE_E_VERSION, TIERCE_E_CHECKSUM, TIERCE_E_LIMIT
 * (`available` ends before the header does).
 */
TIERCE_MUSTUSE int tierce__chunk_parse(struct tierce__chunk_info *out, const uint8_t *object,
                                       uint64_t available);

/* The same for the header of a coded object; *codec is the number in it, and 0 only if the layers
 * are encrypted. A header of another version is TIERCE_E_VERSION. */
TIERCE_MUSTUSE int tierce__chunk_parse_coded(struct tierce__chunk_info *out, uint32_t *codec,
                                             const uint8_t *object, uint64_t available);

/* Turns a sealed or parsed header into that of a coded object, of an encrypted one if
 * info->is_sealed, or back with codec 0, and seals it. Nothing else changes. */
void tierce__chunk_set_codec(uint8_t *object, const struct tierce__chunk_info *info,
                             uint32_t codec);

/* The sum in a header that was parsed or sealed. */
uint64_t tierce__chunk_header_sum(const uint8_t *object);

/* Whether the padding of a parsed header is zero, which its sum does not show: for readers that use
 * all bytes of a header. */
bool tierce__chunk_is_padded(const uint8_t *object, const struct tierce__chunk_info *info);

/* The full length of a header, from its first TIERCE__CHUNK_FIXED bytes. Call it after parse was
 * given only these bytes and returned TIERCE_E_LIMIT. */
uint64_t tierce__chunk_header_bytes(const uint8_t *object);

/* Whether two headers are of the same chunk with the same sums, and differ at most in the time of
 * creation. `geometry` is that of a parsed or sealed header; both buffers have the length of such a
 * header. */
bool tierce__chunk_same(const uint8_t *a, const uint8_t *b,
                        const struct tierce__geometry *geometry);

/* Bytes of one cell of a layer, as stated in a parsed header. */
uint32_t tierce__chunk_cell_bytes(const uint8_t *object, uint32_t layer);

/* The block hashes (block_count * 32 bytes) of a header that was parsed. */
const uint8_t *tierce__chunk_block_hashes(const uint8_t *object, uint32_t layer_count);

/*
 * Whether a parsed header is that of the wanted chunk: namespace digest, hash, shard,
 * algorithm, group, token start, geometry (cell sizes included) and block hashes, each in full.
 * `want->geometry.cell_bytes` must be set. Returns 0 or TIERCE_E_IDENTITY.
 */
TIERCE_MUSTUSE int tierce__chunk_match(const uint8_t *object, const struct tierce__chunk_info *got,
                                       const struct tierce__chunk_info *want,
                                       const uint8_t *want_block_hashes);

/*
 * The same, but compares only the first `blocks` blocks of the chunk. `blocks` is at most the
 * chunk's number of blocks. The last block must have the chunk's hash, want->hash; the blocks
 * between are not compared. Returns 0 or TIERCE_E_IDENTITY.
 */
TIERCE_MUSTUSE int tierce__chunk_match_first(const uint8_t *object,
                                             const struct tierce__chunk_info *got,
                                             const struct tierce__chunk_info *want,
                                             const uint8_t *want_block_hashes, uint32_t blocks);

/* The number of leading blocks of a parsed header that have these hashes; at most `count`. */
uint32_t tierce__chunk_common(const uint8_t *object, const struct tierce__chunk_info *got,
                              const uint8_t *block_hashes, uint32_t count);

/* Computes the sum of every cell of an object whose header tierce__chunk_begin has written. Reads
 * the whole payload. */
void tierce__chunk_sum_cells(uint8_t *object, const struct tierce__geometry *geometry);

/*
 * Verifies every cell of an object that was parsed. Returns the number of cells whose sum
 * differs (0: all good). Reads the whole payload.
 */
uint64_t tierce__chunk_verify_cells(const uint8_t *object, const struct tierce__chunk_info *info);

#endif
