/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_CODED_H
#define TIERCE_CHUNK_CODED_H

#include "core/chunk/header.h"
#include "core/chunk/seal.h"
#include "core/codec/codec_plugin.h"

/*
 * A coded object: a chunk whose layers are coded, each on its own, so that one can be decoded when
 * it has arrived. It begins with the chunk's header, marked as coded; a table of the layers
 * follows, and then the layers. The format, byte by byte: docs/inside/format/coded.md.
 *
 * A reader verifies the sum of a coded layer before it decodes, and the cells after it as always.
 * With a lossy codec the sums of the cells are those of the decoded cells: the header differs from
 * that of the chunk that was encoded in nothing else.
 *
 * The layers may be encrypted (seal.h), after their codec or without one. The sums are those of the
 * encrypted bytes, so that damage is found without a key.
 *
 * Thread: any; nothing here blocks, and nothing allocates but the functions that encode, derive
 * keys and decrypt.
 */

struct tierce__coded_info {
    struct tierce__chunk_info
        chunk; /* of the chunk that is coded; extent: that of the raw object */
    const struct tierce__codec *codec; /* NULL: none; the layers are only encrypted */
    enum tierce__element element;
    uint64_t head_bytes;   /* header and table: a multiple of 4096; the layers follow */
    uint64_t object_bytes; /* of the coded object, a multiple of 4096 */
    uint32_t key_number;   /* of the key that decrypts the layers; 0: they are not encrypted */
    bool is_open;          /* tierce__coded_open has derived `seal`; wipe it after use */
    struct tierce__seal seal;
};

/* How to encode a chunk. */
struct tierce__coded_form {
    const struct tierce__codec *codec; /* NULL, only with a key: the layers are not coded */
    enum tierce__element element;
    const struct tierce__seal_key *key; /* NULL: the layers are not encrypted */
    /* From the namespace; only codecs with needs_order read it. */
    const struct tierce__codec_choice *choice;
    const uint8_t *salt; /* TIERCE__SEAL_SALT_BYTES, for tests; NULL: random */
};

/* One coded layer: its place in the object, and the XXH3-64 of its bytes. */
struct tierce__coded_layer {
    uint64_t offset, bytes, sum;
};

/* An object that is encrypted without a codec is at most so much longer than its raw object. Each
 * of 4,096 layers adds a row of the table, a tag and a gap, of 95 bytes together. */
#define TIERCE__CODED_GROWTH_MAX (512u << 10)

/* The bytes that encode needs. `info` is that of a parsed header. */
uint64_t tierce__coded_room(const uint8_t *object, const struct tierce__chunk_info *info);

/*
 * Encodes the sealed raw object. `dst` has room for tierce__coded_room bytes and is aligned to 8.
 * Returns the length of the coded object, or 0 if it would not be shorter than the raw one: keep
 * that instead. The hint of the codec is half of a cell: keys and values. A lossy codec also
 * returns 0 if a cell of the raw object does not have its sum: the damage would get a right one.
 *
 * Another process may write to `object` meanwhile: then the cells fail their sums when they are
 * read, but dst is never overrun, nor is `object` read beyond its end. Errors: -ENOMEM;
 * TIERCE_E_LIMIT: too little room; TIERCE_E_FORMAT: the header is not the one that was parsed;
 * TIERCE_E_ARGUMENT: the codec cannot encode such cells.
 */
int64_t tierce__coded_encode(uint8_t *dst, uint64_t room, const uint8_t *object,
                             const struct tierce__chunk_info *info,
                             const struct tierce__codec *codec, enum tierce__element element);

/* The same in another form. With a key the result is never 0: if the codec does not make the object
 * shorter, it has no codec. Further errors: -EIO: that of tierce__seal_salt. */
int64_t tierce__coded_encode_as(uint8_t *dst, uint64_t room, const uint8_t *object,
                                const struct tierce__chunk_info *info,
                                const struct tierce__coded_form *form);

/*
 * Parses the first `available` bytes of an object from anywhere: hostile bytes are safe.
 * Errors, *out untouched: TIERCE_E_FORMAT, TIERCE_E_CHECKSUM (of header or table), TIERCE_E_VERSION
 * (not coded, or a codec that this build does not have), TIERCE_E_LIMIT (`available` ends before
 * the layers begin). A lossy codec is accepted: the caller rejects it unless the chunk's namespace
 * has chosen it (tierce__codec_of_quantization).
 */
TIERCE_MUSTUSE int tierce__coded_parse(struct tierce__coded_info *out, const uint8_t *object,
                                       uint64_t available);

/* The name of the plug-in's codec that an object was encoded with, which need not be loaded, and
 * key_number as above. False, `name` undefined: the object is invalid, or names none. */
bool tierce__coded_plugin_name(char name[TIERCE__CODEC_NAME_BYTES], uint32_t *key_number,
                               const uint8_t *object, uint64_t available);

/*
 * The functions below trust `object`: its first head_bytes are those that were parsed, and have not
 * changed since. A head in memory that others can change must be copied before it is parsed. The
 * layers need no such care, because each is verified when it is decoded.
 */

/* Derives the key of an encrypted object. `key` is the one of info->key_number. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__coded_open(struct tierce__coded_info *info, const uint8_t *object,
                                      const struct tierce__seal_key *key);

/* head_bytes of an object whose header was parsed: how much parse needs. */
uint64_t tierce__coded_head_bytes(const struct tierce__chunk_info *info);

/* The layer of an object that was parsed; `object` holds head_bytes at least. */
struct tierce__coded_layer tierce__coded_layer(const struct tierce__coded_info *info,
                                               const uint8_t *object, uint32_t layer);

/* Writes the header of the raw object to `raw`, which is aligned to 8: bit by bit as it was sealed,
 * but with the sums of the decoded cells if the codec is lossy. */
void tierce__coded_restore_header(uint8_t *raw, const struct tierce__coded_info *info,
                                  const uint8_t *object);

/* Bytes of a layer of the raw object. The first begins after the header, each other where the one
 * before it ends. */
uint64_t tierce__coded_raw_bytes(const struct tierce__coded_info *info, const uint8_t *object,
                                 uint32_t layer);

/* Whether the bytes of a coded layer are right: for a caller that has them decoded elsewhere, and
 * before it does so. Errors: TIERCE_E_CHECKSUM. */
TIERCE_MUSTUSE int tierce__coded_verify(const struct tierce__coded_layer *layer,
                                        const uint8_t *coded);

/*
 * Decodes the bytes of one coded layer to dst, which has room for the raw layer. The gaps between
 * the layers are not read. Errors: TIERCE_E_CHECKSUM: the coded bytes are damaged, and dst is
 * unchanged; TIERCE_E_FORMAT: their checksum is right, but they are invalid; of an encrypted layer,
 * TIERCE_E_VERSION: it was not opened, or its key is another one, and TIERCE_E_FULL: no memory.
 * *decrypt_ns grows by the time that decryption took.
 */
TIERCE_MUSTUSE int tierce__coded_decode_to(uint8_t *dst, const struct tierce__coded_info *info,
                                           const uint8_t *object, uint32_t index,
                                           const uint8_t *coded, uint64_t *decrypt_ns);

/* The same, to the layer's place in the raw object, whose header is restored. */
TIERCE_MUSTUSE int tierce__coded_decode_layer(uint8_t *raw, const struct tierce__coded_info *info,
                                              const struct tierce__coded_layer *layer,
                                              uint32_t index, const uint8_t *coded);

/* Decodes a whole object to raw[0 .. info->chunk.extent.object_bytes). Errors: as above. */
TIERCE_MUSTUSE int tierce__coded_decode(uint8_t *raw, const struct tierce__coded_info *info,
                                        const uint8_t *object);

#endif
