/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RECORD_H
#define TIERCE_MANAGER_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "manager/meta/hint.h"

#include <tierce/status.h>

/*
 * The index entry of a block, and its compact form (docs/inside/format/record.md): the serving
 * locations, the time of the last use, the number of uses, and the block that it follows.
 */

#define TIERCE__LOCATION_ID_BYTES 8u
#define TIERCE__PLACE_SUM_BYTES   16u

/* The place of one spec of a location: a slot of a file that the manager named, or a URI text from
 * another source. */
struct tierce__spec_place {
    uint16_t spec; /* index into the instance's specs */
    uint64_t file; /* places.h; 0: `uri` */
    uint32_t slot; /* of the file: its offset is slot * size */
    uint64_t bytes;
    const char
        *uri; /* if file is 0: the whole URI, NUL-terminated, or NULL (the same as ""); else NULL */
    /* The checksum of the bytes, from their writer; only clients compute and check it. All 0: none.
     * A place with a URI has it in the URI. */
    uint8_t sum[TIERCE__PLACE_SUM_BYTES];
};

static inline bool tierce__place_has_sum(const struct tierce__spec_place *place)
{
    static const uint8_t none[TIERCE__PLACE_SUM_BYTES];
    return memcmp(place->sum, none, sizeof(none)) != 0;
}

struct tierce__location {
    char id[TIERCE__LOCATION_ID_BYTES]; /* of [a-z0-9], not NUL-terminated; records with other
                                           characters are invalid */
    uint16_t storage;                   /* its number; 0: unknown, only the texts name it */
    uint8_t type;                       /* enum tierce__storage_type */
    uint16_t place_count;
    const struct tierce__spec_place *places;
};

struct tierce__record {
    int64_t used_us;    /* wall clock of the last use */
    int64_t stored_us;  /* wall clock when it was stored */
    int64_t expires_us; /* its own expiry time; 0: none */
    uint32_t uses;
    uint16_t hint;     /* that came with the last use (hint.h); 0: none. Lost if used_us is negative
                          or has more than 52 bits */
    uint32_t children; /* blocks in the index that follow this one; meta_index.h counts them */
    bool has_parent;
    int64_t parent;
    bool has_child; /* only in indexes that keep it (meta_index.h) */
    int64_t child;  /* the block that was stored behind this one last. It may have been removed */
    uint64_t generation; /* of its instance when it was stored; a record of another one is stale */
    const char
        *key_text; /* for instances with string keys: the whole key, NUL-terminated; else NULL */
    size_t key_text_bytes;
    uint16_t location_count;
    const struct tierce__location *locations;
};

/* Bytes of the compact form. */
size_t tierce__record_size(const struct tierce__record *record);

/* Writes exactly tierce__record_size bytes. */
void tierce__record_write(const struct tierce__record *record, void *out);

/*
 * Reads the compact form from untrusted bytes; arrays and texts live in `arena`. Writing a record
 * that was read yields the same bytes. Errors, *out untouched: TIERCE_E_FORMAT, TIERCE_E_VERSION,
 * -ENOMEM.
 */
struct tierce__arena;
TIERCE_MUSTUSE int tierce__record_read(struct tierce__record *out, struct tierce__arena *arena,
                                       const void *bytes, size_t count);

/* Uses of a block, or with `uses` 0 a hint alone, whose used_us is ignored. */
struct tierce__record_use {
    int64_t used_us; /* the latest */
    uint32_t uses;
    uint16_t hint; /* of the latest */
};

/* Records uses in the compact form in place: raises used_us, adds to the count, and replaces the
 * hint unless the record has a later use. Invalid records are not changed. */
void tierce__record_touch(void *bytes, size_t count, const struct tierce__record_use *use);

/* The bytes of all places of a record, and of one location. Sums may wrap: the maker of a record
 * keeps them below 2^63. */
uint64_t tierce__record_bytes(const struct tierce__record *record);
uint64_t tierce__location_bytes(const struct tierce__location *location);

#endif
