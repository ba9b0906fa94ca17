/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_LMCACHE_H
#define TIERCE_KEY_LMCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The chunk hashes of LMCache 0.5.6, with which a manager finds the chunks of LMCache's workers by
 * tokens (manager/lmcache).
 *
 * A hash is a number that Python holds as an int: signed 64 bits from the builtin hash, unsigned
 * 64 bits from a folded digest. Chunk i is named by H(prefix, tokens of the chunk, ()) where the
 * prefix is the hash of chunk i - 1, or NONE_HASH for the first.
 *
 * These numbers are not collision resistant and hold no namespace. LMCache 0.3.9 hashes None
 * instead of (), whose builtin hash is an address in the interpreter: it is not supported.
 *
 * No function here allocates, fails for lack of resources, or blocks. Thread: any.
 */

/* A Python int between -2^63 and 2^64 - 1. Zero is never negative. */
struct tierce__lmcache_int {
    uint64_t magnitude;
    bool negative;
};

enum tierce__lmcache_algo {
    TIERCE__LMCACHE_BUILTIN,     /* CPython's hash() of the tuple, 64-bit builds since 3.8 */
    TIERCE__LMCACHE_SHA256_CBOR, /* SHA-256 of canonical CBOR; the first 8 bytes, big-endian */
};

struct tierce__lmcache_opts {
    enum tierce__lmcache_algo algo;
    uint32_t chunk_tokens;                /* >= 1; LMCache's default is 256 */
    bool unfull_tail;                     /* a shorter last chunk is hashed too */
    struct tierce__lmcache_int none_hash; /* 0 where vLLM is absent; else see the function below */
};

/* How many chunks `count` tokens make. */
size_t tierce__lmcache_chunk_count(const struct tierce__lmcache_opts *opts, size_t count);

/*
 * Writes the hash of every chunk to `hashes`, which has room for tierce__lmcache_chunk_count.
 * A token's value is its 32-bit pattern as an unsigned number.
 */
void tierce__lmcache_hash_chunks(struct tierce__lmcache_int *hashes,
                                 const struct tierce__lmcache_opts *opts, const int32_t *tokens,
                                 size_t count);

/* NONE_HASH of the sha256_cbor algorithm with a current vLLM without PYTHONHASHSEED. */
struct tierce__lmcache_int tierce__lmcache_vllm_none_hash(void);

/* NONE_HASH as a text: "vllm" for the above, or up to 16 hex digits as LMCache prints them, with a
 * minus before negative numbers. False: it is neither. */
bool tierce__lmcache_parse_none_hash(struct tierce__lmcache_int *out, const char *text);

/* hash() of an int, and of a tuple whose items have the given hashes, as CPython computes them. */
int64_t tierce__python_hash_int(struct tierce__lmcache_int value);
int64_t tierce__python_hash_tuple(const int64_t *item_hashes, size_t count);

#endif
