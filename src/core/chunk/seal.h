/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_SEAL_H
#define TIERCE_CHUNK_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * AES-256-GCM for the layers of coded objects (coded.h), by OpenSSL.
 *
 * Each object has a key of its own, derived from the operator's key, a random salt and the object's
 * header. It encrypts each layer once, with the number of the layer as nonce. So a nonce repeats
 * for a key only if salt and header are equal. The format, byte by byte:
 * docs/inside/format/coded.md.
 *
 * Thread: any; nothing here blocks.
 */

#define TIERCE__SEAL_KEY_BYTES    32u
#define TIERCE__SEAL_SALT_BYTES   20u
#define TIERCE__SEAL_TAG_BYTES    16u /* that a layer grows by */
#define TIERCE__SEAL_DIGEST_BYTES 32u

/* An operator's key. Wipe copies with tierce__seal_wipe. */
struct tierce__seal_key {
    uint32_t number; /* above 0 */
    uint8_t bytes[TIERCE__SEAL_KEY_BYTES];
};

/* The key of one object, and the digest of its header that each layer is bound to. */
struct tierce__seal {
    uint8_t key[TIERCE__SEAL_KEY_BYTES];
    uint8_t digest[TIERCE__SEAL_DIGEST_BYTES];
};

/* Errors: -EIO: the operating system has no random bytes. */
TIERCE_MUSTUSE int tierce__seal_salt(uint8_t salt[TIERCE__SEAL_SALT_BYTES]);

/* `header`: the bytes of the object's header; `fields`: those of its table that are to be bound,
 * the salt among them. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__seal_derive(struct tierce__seal *out, const struct tierce__seal_key *key,
                                       const uint8_t *header, size_t header_bytes,
                                       const uint8_t *fields, size_t field_bytes);

/* Encrypts a layer to dst[0 .. bytes + TIERCE__SEAL_TAG_BYTES). src may be dst. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__seal_layer(uint8_t *dst, const struct tierce__seal *seal, uint32_t layer,
                                      const uint8_t *src, uint64_t bytes);

/* Decrypts a layer of `sealed` bytes, TIERCE__SEAL_TAG_BYTES at least. Errors, the contents of dst
 * are then undefined: TIERCE_E_VERSION: the key is another one, or the bytes or the header are not
 * those that were encrypted; -ENOMEM. */
TIERCE_MUSTUSE int tierce__seal_open(uint8_t *dst, const struct tierce__seal *seal, uint32_t layer,
                                     const uint8_t *src, uint64_t sealed);

void tierce__seal_wipe(void *secret, size_t bytes);

#endif
