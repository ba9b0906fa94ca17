/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_SHA256_H
#define TIERCE_KEY_SHA256_H

#include <stddef.h>
#include <stdint.h>

/*
 * SHA-256 of short messages without the set-up cost of a crypto library, which is longer than
 * the hashing itself for the 100 to 200 bytes of a token block.
 *
 * Nothing here allocates, fails or blocks. Thread: any, one object by one thread at a time.
 */

#define TIERCE__SHA256_BYTES 32
#define TIERCE__SHA256_BLOCK 64

/* One way to compute the compression function. */
struct tierce__sha256_impl {
    const char *name;
    /* Feeds `count` 64-byte blocks at `data` into `state`. */
    void (*compress)(uint32_t state[8], const uint8_t *data, size_t count);
    /* Feeds one block each into two states that do not depend on each other. */
    void (*compress_two)(uint32_t state_a[8], const uint8_t *data_a, uint32_t state_b[8],
                         const uint8_t *data_b);
};

/* The fastest implementation that this processor supports. Never NULL. */
const struct tierce__sha256_impl *tierce__sha256_impl(void);

/* The `index`-th implementation that this processor supports, the fastest first; NULL beyond the
 * last. */
const struct tierce__sha256_impl *tierce__sha256_impl_at(size_t index);

/* Makes `impl` the answer of tierce__sha256_impl; NULL goes back to the fastest. For tests. */
void tierce__sha256_impl_set(const struct tierce__sha256_impl *impl);

extern const uint32_t tierce__sha256_start[8];

struct tierce__sha256 {
    const struct tierce__sha256_impl *impl;
    uint32_t state[8];
    uint64_t fed_bytes;
    uint8_t waiting[TIERCE__SHA256_BLOCK]; /* fed_bytes % 64 of them are waiting */
};

void tierce__sha256_init(struct tierce__sha256 *sha);
void tierce__sha256_update(struct tierce__sha256 *sha, const void *data, size_t size);

/* Writes the digest; `sha` must be initialised again before its next use. */
void tierce__sha256_final(struct tierce__sha256 *sha, uint8_t digest[TIERCE__SHA256_BYTES]);

/* The digest of one message. */
void tierce__sha256(uint8_t digest[TIERCE__SHA256_BYTES], const void *data, size_t size);

/* Writes a state as the 32 bytes of a digest. */
void tierce__sha256_put_state(uint8_t digest[TIERCE__SHA256_BYTES], const uint32_t state[8]);

/*
 * Writes the end mark, zeros and the bit length of a message of `total` bytes after the `used`
 * bytes of its last part in `tail`. `used` is at most 119. Returns how many 64-byte blocks of
 * `tail` are to be compressed: 1 or 2.
 */
size_t tierce__sha256_pad(uint8_t tail[2 * TIERCE__SHA256_BLOCK], size_t used, uint64_t total);

#endif
