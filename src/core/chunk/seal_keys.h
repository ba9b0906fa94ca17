/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_SEAL_KEYS_H
#define TIERCE_CHUNK_SEAL_KEYS_H

#include <stdbool.h>

#include "core/chunk/seal.h"
#include "core/key/key.h"

/*
 * An operator's keys for encrypted objects, parsed from a text:
 *
 *     # comment
 *     1 64-HEX-DIGITS
 *     2 64-HEX-DIGITS NAMESPACE
 *
 * The first word is the number of the key, which no other line has. The greatest number encrypts
 * new chunks; every key decrypts. A key with the beginning of a namespace's digest (8 hex digits at
 * least) is only for chunks of this namespace, which then use no other key for encryption.
 *
 * The keys are in memory that is left out of core dumps, and are wiped when the set is destroyed.
 *
 * Thread: any; a set never changes.
 */

#define TIERCE__SEAL_KEYS_MAX       1024u
#define TIERCE__SEAL_KEYS_WHY_BYTES 160u

struct tierce__seal_keys;

/*
 * `text` [length] is changed. `why` names the line and the fault, and no word of the line. Errors,
 * *out untouched: TIERCE_E_CONFIG, -ENOMEM. The caller wipes `text`.
 */
TIERCE_MUSTUSE int tierce__seal_keys_parse(struct tierce__seal_keys **out, char *text,
                                           size_t length, char why[TIERCE__SEAL_KEYS_WHY_BYTES]);
/* Whether two sets have the same keys in the same order. */
bool tierce__seal_keys_equal(const struct tierce__seal_keys *a, const struct tierce__seal_keys *b);
/* NULL is accepted. */
void tierce__seal_keys_destroy(struct tierce__seal_keys *keys);

/* The key for new chunks of a namespace; NULL: there is none. [borrow until destroy] */
const struct tierce__seal_key *tierce__seal_keys_newest(const struct tierce__seal_keys *keys,
                                                        const uint8_t ns_digest[TIERCE_HASH_BYTES]);
/* The key of a number for chunks of a namespace; NULL: there is none. [borrow until destroy] */
const struct tierce__seal_key *
tierce__seal_keys_numbered(const struct tierce__seal_keys *keys, uint32_t number,
                           const uint8_t ns_digest[TIERCE_HASH_BYTES]);

#endif
