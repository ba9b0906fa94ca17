/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_NAMESPACES_H
#define TIERCE_KEY_NAMESPACES_H

#include <tierce/key.h>

/*
 * The namespaces known to an engine, interned: a small number inside the process for a digest of
 * 32 bytes. Entries are never removed while the table lives, so ids and pointers stay valid.
 * Thread: any; one lock of class NAMESPACES inside.
 */

struct tierce__namespaces;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__namespaces_create(struct tierce__namespaces **out);

/* NULL is accepted. */
void tierce__namespaces_destroy(struct tierce__namespaces *table);

/*
 * The id of a digest, made if it is new. `text` may be NULL (not known yet); a later call with
 * the text fills it in. Returns the id (>= 0), -ENOMEM, TIERCE_E_LIMIT beyond 65536 namespaces, or
 * TIERCE_E_IDENTITY if `text` does not digest to `digest`.
 */
TIERCE_MUSTUSE int64_t tierce__namespaces_intern(struct tierce__namespaces *table,
                                                 const uint8_t digest[TIERCE_HASH_BYTES],
                                                 const char *text);

/* The id of a digest (>= 0), or TIERCE_E_MISS: for digests from outside, which must not fill the
 * table. */
int64_t tierce__namespaces_find(struct tierce__namespaces *table,
                                const uint8_t digest[TIERCE_HASH_BYTES]);

/* Number of ids; they run from 0. */
uint32_t tierce__namespaces_count(struct tierce__namespaces *table);

/* Digest (32 bytes) and text (or NULL) of an id that exists; [borrow until the table ends]. */
const uint8_t *tierce__namespaces_digest(struct tierce__namespaces *table, uint32_t id);
const char *tierce__namespaces_text(struct tierce__namespaces *table, uint32_t id);

#endif
