/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/objects/object_form.h"

#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "core/key/sha256.h"
#include "core/paged/paged.h"

/* Offsets in the first cell; docs/inside/format/object.md is the specification. */
enum {
    AT_FORM = 0,
    AT_NAME_BYTES = 4,
    AT_NOTE_BYTES = 8,
    AT_ZERO = 12,
    AT_VALUE_BYTES = 16,
    AT_EXPIRES = 24,
    AT_NAME = 32,
};

#define FORM       1u
#define CELL_ALIGN 64u /* so that the value begins at a line of the processor's cache */
#define LAYERS_MAX (1 + (uint32_t)(TIERCE__OBJECT_VALUE_MAX / TIERCE__OBJECT_PIECE))
#define FIRST_MAX  (AT_NAME + TIERCE__OBJECT_NAME_MAX + TIERCE__OBJECT_NOTE_MAX + CELL_ALIGN)

static uint32_t first_bytes(size_t name_bytes, size_t note_bytes)
{
    TIERCE_DASSERT(name_bytes <= TIERCE__OBJECT_NAME_MAX && note_bytes <= TIERCE__OBJECT_NOTE_MAX);
    return (uint32_t)tierce__round_up(AT_NAME + name_bytes + note_bytes, CELL_ALIGN);
}

static bool lengths_ok(const struct tierce__object_what *what)
{
    return what->name_bytes >= 1 && what->name_bytes <= TIERCE__OBJECT_NAME_MAX &&
           what->note_bytes <= TIERCE__OBJECT_NOTE_MAX &&
           what->value_bytes <= TIERCE__OBJECT_VALUE_MAX;
}

/* The geometry of an object; `cells` has room for LAYERS_MAX. */
static struct tierce__geometry shape(uint32_t *cells, const struct tierce__object_what *what)
{
    TIERCE_DASSERT(lengths_ok(what));
    uint32_t pieces = tierce__object_pieces(what->value_bytes);
    TIERCE_DASSERT(1 + pieces <= LAYERS_MAX);
    cells[0] = first_bytes(what->name_bytes, what->note_bytes);
    for (uint32_t i = 0; i < pieces; i++)
        cells[1 + i] = (uint32_t)tierce__object_piece_bytes(what->value_bytes, i);
    return (struct tierce__geometry){
        .layer_count = 1 + pieces, .cell_bytes = cells, .block_tokens = 1, .block_count = 1};
}

/* All of a header but its sums and its time. */
static struct tierce__chunk_info describe(const struct tierce__object_space *space,
                                          const struct tierce__key *key,
                                          const struct tierce__geometry *geometry)
{
    struct tierce__chunk_info info = {
        .shard = key->shard, .algo = TIERCE_CHAIN_SHA256, .geometry = *geometry};
    memcpy(info.ns_digest, space->ns_digest, sizeof(info.ns_digest));
    memcpy(info.hash, key->hash, sizeof(info.hash));
    return info;
}

struct tierce__key tierce__object_key(const struct tierce__object_space *space, const void *name,
                                      size_t name_bytes)
{
    static const char domain[] = "tierce object name"; /* with its zero at the end */
    struct tierce__key key = space->key;
    uint8_t message[sizeof(domain) + TIERCE__OBJECT_NAME_MAX];
    TIERCE_ASSERT(name_bytes <= TIERCE__OBJECT_NAME_MAX);
    memcpy(message, domain, sizeof(domain));
    memcpy(message + sizeof(domain), name, name_bytes);
    tierce__sha256(key.hash, message, sizeof(domain) + name_bytes);
    return key;
}

int tierce__object_extent(struct tierce__extent *out, const struct tierce__object_what *what)
{
    uint32_t cells[LAYERS_MAX];
    if (!lengths_ok(what))
        return TIERCE_E_LIMIT;
    struct tierce__geometry geometry = shape(cells, what);
    return tierce__chunk_extent(out, &geometry);
}

uint64_t *tierce__object_sums(uint8_t *object, uint64_t value_bytes)
{
    TIERCE_DASSERT(value_bytes <= TIERCE__OBJECT_VALUE_MAX);
    struct tierce__geometry geometry = {
        .layer_count = 1 + tierce__object_pieces(value_bytes), .block_tokens = 1, .block_count = 1};
    return tierce__chunk_sums(object, &geometry, 0); /* of one block, they follow each other */
}

void tierce__object_begin(uint8_t *object, struct tierce__object_form *form,
                          const struct tierce__object_space *space, const struct tierce__key *key,
                          bool pads)
{
    uint32_t cells[LAYERS_MAX];
    struct tierce__object_what *what = &form->what;
    struct tierce__geometry geometry = shape(cells, what);
    struct tierce__chunk_info info = describe(space, key, &geometry);
    TIERCE_DASSERT(form->extent.header_bytes + cells[0] <= form->extent.object_bytes);
    info.extent = form->extent;
    info.created_s = tierce__wall_s();
    if (pads)
        tierce__chunk_begin(object, &info, key->hash);
    else
        tierce__chunk_begin_unpadded(object, &info, key->hash);
    uint8_t *cell = object + info.extent.header_bytes;
    memset(cell, 0, cells[0]);
    tierce__store_le32(cell + AT_FORM, FORM);
    tierce__store_le32(cell + AT_NAME_BYTES, (uint32_t)what->name_bytes);
    tierce__store_le32(cell + AT_NOTE_BYTES, (uint32_t)what->note_bytes);
    tierce__store_le64(cell + AT_VALUE_BYTES, what->value_bytes);
    tierce__store_le64(cell + AT_EXPIRES, what->expires_ms);
    what->name = memcpy(cell + AT_NAME, what->name, what->name_bytes);
    uint8_t *note = cell + AT_NAME + what->name_bytes;
    if (what->note_bytes > 0)
        memcpy(note, what->note, what->note_bytes);
    what->note = note;
    form->value_at = info.extent.header_bytes + cells[0];
    TIERCE_DASSERT(form->value_at + what->value_bytes <= form->extent.object_bytes);
    tierce__object_sums(object, what->value_bytes)[0] = tierce__sum(cell, cells[0]);
}

void tierce__object_set_expiry(uint8_t *object, const struct tierce__object_what *what,
                               uint8_t *value, uint64_t expires_ms)
{
    uint32_t bytes = first_bytes(what->name_bytes, what->note_bytes);
    TIERCE_DASSERT((size_t)(value - object) >= TIERCE__CHUNK_ALIGN + bytes);
    uint8_t *cell = value - bytes;
    tierce__store_le64(cell + AT_EXPIRES, expires_ms);
    tierce__object_sums(object, what->value_bytes)[0] = tierce__sum(cell, bytes);
}

/* ---- reading ---- */

/* The first cell of `bytes` bytes, whose sum is right. */
static int parse_first(struct tierce__object_what *out, const uint8_t *cell, uint32_t bytes)
{
    struct tierce__object_what what = {.name = cell + AT_NAME,
                                       .name_bytes = tierce__load_le32(cell + AT_NAME_BYTES),
                                       .note_bytes = tierce__load_le32(cell + AT_NOTE_BYTES),
                                       .value_bytes = tierce__load_le64(cell + AT_VALUE_BYTES),
                                       .expires_ms = tierce__load_le64(cell + AT_EXPIRES)};
    if (tierce__load_le32(cell + AT_FORM) != FORM)
        return TIERCE_E_VERSION;
    if (!lengths_ok(&what) || first_bytes(what.name_bytes, what.note_bytes) != bytes ||
        tierce__load_le32(cell + AT_ZERO) != 0)
        return TIERCE_E_FORMAT;
    what.note = cell + AT_NAME + what.name_bytes;
    *out = what;
    return 0;
}

int tierce__object_parse(struct tierce__object_form *out, uint64_t *need, const uint8_t *object,
                         uint64_t available, const struct tierce__object_space *space,
                         const struct tierce__key *key, const void *name, size_t name_bytes)
{
    struct tierce__chunk_info got;
    int rc = tierce__chunk_parse(&got, object, available);
    *need = TIERCE__OBJECT_HEAD_BYTES;
    if (rc == TIERCE_E_LIMIT && available >= TIERCE__CHUNK_FIXED)
        *need = tierce__chunk_header_bytes(object) + TIERCE__CHUNK_ALIGN;
    if (*need > TIERCE__OBJECT_HEAD_MAX)
        return TIERCE_E_IDENTITY;
    if (rc < 0)
        return rc;
    if (got.geometry.block_count != 1 || got.geometry.layer_count > LAYERS_MAX)
        return TIERCE_E_IDENTITY;
    uint32_t first = tierce__chunk_cell_bytes(object, 0);
    if (first > FIRST_MAX || first % CELL_ALIGN != 0)
        return TIERCE_E_IDENTITY;
    *need = got.extent.header_bytes + TIERCE__CHUNK_ALIGN;
    if (available < got.extent.header_bytes + first)
        return TIERCE_E_LIMIT;
    const uint8_t *cell = object + got.extent.header_bytes;
    uint64_t sum = tierce__load_le64((const uint8_t *)tierce__object_sums(
        (uint8_t *)(uintptr_t)object,
        (uint64_t)(got.geometry.layer_count - 1) * TIERCE__OBJECT_PIECE));
    if (tierce__sum(cell, first) != sum)
        return TIERCE_E_CHECKSUM;
    struct tierce__object_form form = {.value_at = got.extent.header_bytes + first,
                                       .extent = got.extent};
    rc = parse_first(&form.what, cell, first);
    if (rc < 0)
        return rc;
    uint32_t cells[LAYERS_MAX];
    struct tierce__geometry geometry = shape(cells, &form.what);
    struct tierce__chunk_info want = describe(space, key, &geometry);
    rc = tierce__chunk_extent(&want.extent, &geometry);
    if (rc == 0) /* another process may have written to the header since it was parsed */
        rc = memcmp(&want.extent, &got.extent, sizeof(got.extent)) == 0 ? 0 : TIERCE_E_IDENTITY;
    if (rc == 0)
        rc = tierce__chunk_match(object, &got, &want, key->hash);
    if (rc == 0 && name != NULL &&
        (form.what.name_bytes != name_bytes || memcmp(form.what.name, name, name_bytes) != 0))
        rc = TIERCE_E_IDENTITY;
    if (rc == 0)
        *out = form;
    return rc;
}

bool tierce__object_expired(const struct tierce__object_what *what)
{
    return what->expires_ms != 0 && what->expires_ms <= tierce__wall_us() / 1000;
}
