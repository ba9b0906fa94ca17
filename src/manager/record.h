/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RECORD_H
#define TIERCE_MANAGER_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * What the index keeps of a block, and its compact form (docs/format/record.md): the locations
 * that serve, when it was last used and how often, and what it follows.
 */

#define TIERCE__LOCATION_ID_BYTES 8u

/* Where one spec of a location lies: a slot of a file that the manager named, or a text that came
 * from elsewhere. */
struct tierce__spec_place {
    uint16_t spec; /* index into the instance's specs */
    uint64_t file; /* places.h; 0: `uri` */
    uint32_t slot; /* of the file: its offset is slot * size */
    uint64_t bytes;
    const char *uri; /* with file 0: whole, NUL-terminated, or NULL (the same as ""); else NULL */
};

struct tierce__location {
    char id[TIERCE__LOCATION_ID_BYTES]; /* of [a-z0-9], not NUL-terminated; others cannot be read */
    uint16_t storage;                   /* its number; 0: of an unknown storage, by text only */
    uint8_t type;                       /* enum tierce__storage_type */
    uint16_t place_count;
    const struct tierce__spec_place *places;
};

struct tierce__record {
    int64_t used_us;   /* wall clock of the last use */
    int64_t stored_us; /* and of the storing */
    uint32_t uses;
    uint32_t children; /* blocks in the index that follow this one; meta_index.h counts them */
    bool has_parent;
    int64_t parent;
    const char *key_text; /* instances with string keys: the whole key, NUL behind it, else NULL */
    size_t key_text_bytes;
    uint16_t location_count;
    const struct tierce__location *locations;
};

/* Bytes of the compact form. */
size_t tierce__record_size(const struct tierce__record *record);

/* Writes exactly that many. */
void tierce__record_write(const struct tierce__record *record, void *out);

/*
 * Reads the compact form from bytes that may be anything; arrays and texts lie in `arena` [transfer
 * nothing: they live as long as it does]. What was read is written as the same bytes.
 * Errors, *out untouched: TIERCE_E_FORMAT, TIERCE_E_VERSION, -ENOMEM.
 */
struct tierce__arena;
TIERCE_MUSTUSE int tierce__record_read(struct tierce__record *out, struct tierce__arena *arena,
                                       const void *bytes, size_t count);

/* A use in the compact form where it lies: used_us rises to this one, the count grows. Bytes that
 * are no record are left alone. */
void tierce__record_touch(void *bytes, size_t count, int64_t used_us, uint32_t uses);

/* Sum of the bytes of all places of all locations, and of one. Sums wrap: who makes records keeps
 * them below 2^63. */
uint64_t tierce__record_bytes(const struct tierce__record *record);
uint64_t tierce__location_bytes(const struct tierce__location *location);

#endif
