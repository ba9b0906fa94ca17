/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SMALLS_H
#define TIERCE_ENGINE_SMALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/objects/objects.h"
#include "core/key/key.h"
#include "store/tier.h"

/*
 * Named values that are too small for a pool buffer of their own: many values share a page, which
 * is one buffer of the pool and one entry of the memory tier. The design and its reasons:
 * docs/inside/design/007-small-values.md.
 *
 *     rc = tierce__smalls_put(smalls, &key, &what, value);      // replaces an existing value
 *     rc = tierce__smalls_get(smalls, &copy, &key, 0);          // a copy, which the caller frees
 *     ... copy->what, copy->value ...
 *     tierce__free(copy);
 *
 * Promises: a value is found whole or not at all. Each value has a checksum over its name, note,
 * expiry and bytes; every copy that is returned has been verified, and its name compared in full.
 * No returned pointer leads into a page, so a page can be evicted at any time.
 *
 * Thread: any. Each partition has a lock of class SMALLS, under which no other module is called.
 * The memory tier calls page_left under its own lock; so no thread calls the memory tier while it
 * holds a lock of class SMALLS. No call blocks.
 */

struct tierce__smalls;

#define TIERCE__SMALL_VALUE_MAX (64u << 10)
/* The namespace of a page's key; no real namespace has this number. */
#define TIERCE__SMALLS_NS UINT32_MAX

/* [borrow until destroy] memory, pool, walks (the number of walks over names that have begun).
 * Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__smalls_create(struct tierce__smalls **out, struct tierce__tier *memory,
                                         struct tierce__pool *pool, const _Atomic uint64_t *walks);
/* Call after the memory tier is closed. NULL is accepted. */
void tierce__smalls_destroy(struct tierce__smalls *smalls);

/* Whether a value of these lengths is small: 64 KiB at most, less in pools below 16 MiB. */
bool tierce__smalls_takes(const struct tierce__smalls *smalls,
                          const struct tierce__object_what *what);

/* The time and the source of a value that is moved to memory. A walk over names in all tiers
 * (objects_scan.c) selects by it the pass that reports the value. */
#define TIERCE__SMALL_SINCE_MASK ((1u << 31) - 1)
struct tierce__small_coming {
    uint32_t since : 31;      /* walks begun before the value became visible, + 1, modulo 2^31 */
    uint32_t is_promoted : 1; /* from a slower tier */
};

/* Stores a value under the key and replaces an older one atomically. May evict. Errors:
 * TIERCE_E_FULL (no memory and nothing to evict), -ENOMEM; an older value then stays. */
TIERCE_MUSTUSE int tierce__smalls_put(struct tierce__smalls *smalls, const struct tierce__key *key,
                                      const struct tierce__object_what *what, const void *value,
                                      bool is_promoted);

/* Makes room for a value, so that the next put of it fails only if all pages of its size are
 * evicted before. May evict. Errors: as put. */
TIERCE_MUSTUSE int tierce__smalls_make_room(struct tierce__smalls *smalls,
                                            const struct tierce__key *key,
                                            const struct tierce__object_what *what);

/* A copy of a value. */
struct tierce__small {
    struct tierce__object_what what; /* name and note follow the value */
    uint8_t *value;
};

/* Copies the value under the key if its name matches (name_bytes 0: any name). The copy is one
 * allocation, which begins with `before` bytes for the caller. Counts as a use for eviction.
 * Errors: TIERCE_E_MISS, -ENOMEM, TIERCE_E_CHECKSUM (the value was damaged and is removed). */
TIERCE_MUSTUSE int tierce__smalls_get(struct tierce__smalls *smalls, void **memory,
                                      struct tierce__small *out, size_t before,
                                      const struct tierce__key *key, const void *name,
                                      size_t name_bytes);

/* Whether there is a value under the key, with any name. Does not count as a use. [out] coming: or
 * NULL. */
bool tierce__smalls_has(struct tierce__smalls *smalls, const struct tierce__key *key,
                        struct tierce__small_coming *coming);

/* Whether the value under the key equals these bytes, note and expiry. Counts as a use if so. */
bool tierce__smalls_same(struct tierce__smalls *smalls, const struct tierce__key *key,
                         const struct tierce__object_what *what, const void *value);

/* Returns whether there was a value. */
bool tierce__smalls_remove(struct tierce__smalls *smalls, const struct tierce__key *key);

/* Removes the values of a namespace, or all (NULL). Returns their number. */
uint64_t tierce__smalls_clear(struct tierce__smalls *smalls, const struct tierce__key *of);

/* The number of values in the namespace of `of`. */
uint64_t tierce__smalls_count(struct tierce__smalls *smalls, const struct tierce__key *of);

/* Reports the values of a namespace in one part of a page (at most 128 values) and advances
 * *cursor, which stays below 2^TIERCE__SMALLS_CURSOR_BITS. Returns false at the end. A value that
 * exists during the whole scan and is not replaced is reported once; a value that cannot be copied
 * is omitted. Names are not verified: one may be damaged. `each` is called without a lock. */
#define TIERCE__SMALLS_CURSOR_BITS 29
typedef void tierce__smalls_each_fn(void *arg, const struct tierce__object_what *what,
                                    struct tierce__small_coming coming);
bool tierce__smalls_scan(struct tierce__smalls *smalls, uint64_t *cursor,
                         const struct tierce__key *of, tierce__smalls_each_fn *each, void *arg);

/* Whether a key names a page. The memory tier's watcher calls _page_left, under the tier's lock,
 * when the page is evicted. */
static inline bool tierce__smalls_is_page(const struct tierce__key *key)
{
    return key->ns == TIERCE__SMALLS_NS;
}
void tierce__smalls_page_left(struct tierce__smalls *smalls, const struct tierce__key *key);

struct tierce__smalls_stats {
    uint64_t values;
    uint64_t value_bytes; /* without names, notes and headers */
    uint64_t pages, page_bytes;
    uint64_t table_bytes;    /* of the index, on the heap */
    uint64_t evicted_values; /* so far, including those of evicted pages */
};
void tierce__smalls_stats(struct tierce__smalls *smalls, struct tierce__smalls_stats *out);

#endif
