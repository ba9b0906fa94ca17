/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECT_FORM_H
#define TIERCE_ENGINE_OBJECT_FORM_H

#include <string.h>

#include "base/assert.h"
#include "core/chunk/header.h"
#include "engine/objects/objects.h"

/*
 * A named value as a chunk object, byte by byte: docs/inside/format/object.md. One block; layer 0
 * is a small cell with the name and the attributes of the value; the other layers are its pieces.
 *
 * Thread: any; nothing here blocks or allocates.
 */

/* A space: the common fields of the headers of its values. */
struct tierce__object_space {
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    struct tierce__key key; /* template: namespace and shard */
};

/* The beginning of the canonical text of every space, and of no namespace of KV. */
#define TIERCE__OBJECT_SPACE_TEXT "tierce-namespace=1\nobjects="

static inline bool tierce__object_is_space(const char *ns_text)
{
    return strncmp(ns_text, TIERCE__OBJECT_SPACE_TEXT, sizeof(TIERCE__OBJECT_SPACE_TEXT) - 1) == 0;
}

/* How many bytes at the beginning of an object hold its header and its first cell, unless the
 * header says that it is longer. An object has at least this length. */
#define TIERCE__OBJECT_HEAD_BYTES (2 * TIERCE__CHUNK_ALIGN)
/* And no header is longer than this with the first cell. */
#define TIERCE__OBJECT_HEAD_MAX (16 * TIERCE__CHUNK_ALIGN)

/* The key of a name. */
struct tierce__key tierce__object_key(const struct tierce__object_space *space, const void *name,
                                      size_t name_bytes);

static inline uint32_t tierce__object_pieces(uint64_t value_bytes)
{
    TIERCE_DASSERT(value_bytes <= TIERCE__OBJECT_VALUE_MAX);
    return (uint32_t)((value_bytes + TIERCE__OBJECT_PIECE - 1) / TIERCE__OBJECT_PIECE);
}

/* Errors: TIERCE_E_LIMIT (a length is out of bounds). */
TIERCE_MUSTUSE int tierce__object_extent(struct tierce__extent *out,
                                         const struct tierce__object_what *what);

/* The contents of an object's header. */
struct tierce__object_form {
    struct tierce__object_what what; /* name and note lie in the object */
    uint64_t value_at;               /* offset of the value */
    struct tierce__extent extent;
};

/* Writes the header and the first cell, with its sum. The caller adds the value, the sums of its
 * pieces, and the seal. [in] form: what, extent. [out] form: as parsed. pads: zeroes the padding
 * too, because the object may leave memory and must not leak older bytes. */
void tierce__object_begin(uint8_t *object, struct tierce__object_form *form,
                          const struct tierce__object_space *space, const struct tierce__key *key,
                          bool pads);

/* Sets another expiry of a value, in an object that was begun and is not sealed; `value`: the
 * position of its value. */
void tierce__object_set_expiry(uint8_t *object, const struct tierce__object_what *what,
                               uint8_t *value, uint64_t expires_ms);

/*
 * Reads the first `available` bytes of an object, which may be hostile: header and first cell are
 * verified, every length is checked, and the identity is compared in full, with the name if `name`
 * is not NULL (name_bytes). Errors: TIERCE_E_FORMAT, _VERSION, _CHECKSUM, _IDENTITY; TIERCE_E_LIMIT
 * and *need: this many bytes must be available, TIERCE__OBJECT_HEAD_MAX at most.
 */
TIERCE_MUSTUSE int tierce__object_parse(struct tierce__object_form *out, uint64_t *need,
                                        const uint8_t *object, uint64_t available,
                                        const struct tierce__object_space *space,
                                        const struct tierce__key *key, const void *name,
                                        size_t name_bytes);

/* Bytes of piece `index` of a value. */
static inline uint64_t tierce__object_piece_bytes(uint64_t value_bytes, uint32_t index)
{
    TIERCE_DASSERT(index < tierce__object_pieces(value_bytes));
    uint64_t left = value_bytes - (uint64_t)index * TIERCE__OBJECT_PIECE;
    return left < TIERCE__OBJECT_PIECE ? left : TIERCE__OBJECT_PIECE;
}

/* The sums of an object's cells: of the first one, and of each piece. */
uint64_t *tierce__object_sums(uint8_t *object, uint64_t value_bytes);

/* Whether a value has expired. */
bool tierce__object_expired(const struct tierce__object_what *what);

#endif
