/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_KEY_TEXT_H
#define TIERCE_KEY_KEY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/key/lmcache.h"
#include <tierce/key.h>

/*
 * Keys as text: ours, and those of LMCache 0.5.6. Every parser takes arbitrary bytes with a length,
 * and accepts exactly the output of its formatter: parsing and formatting again yields the same
 * text. Nothing here allocates or blocks. Thread: any.
 *
 * A text is a name and never a path: an LMCache key holds the model's name unchanged, slashes and
 * dots included. Formats: docs/inside/format/key.md.
 */

/* ---- ours ----------------------------------------------------------------------------------- */

/* Room for the longest text and its NUL. */
#define TIERCE__KEY_TEXT_BYTES 164

/*
 * Writes the text of one shard of one chunk and a NUL. Returns its length, or TIERCE_E_ARGUMENT
 * if a rank of the shard is not below its size.
 */
TIERCE_MUSTUSE int tierce__key_text_format(char text[TIERCE__KEY_TEXT_BYTES],
                                           const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                           const struct tierce_shard *shard,
                                           const uint8_t hash[TIERCE_HASH_BYTES]);

/* Reads such a text. Errors: TIERCE_E_FORMAT, all outputs untouched. */
TIERCE_MUSTUSE int tierce__key_text_parse(uint8_t ns_digest[TIERCE_HASH_BYTES],
                                          struct tierce_shard *shard,
                                          uint8_t hash[TIERCE_HASH_BYTES], const char *text,
                                          size_t size);

/* The same for a text whose namespace and shard are perhaps those of `like`, such a text that was
 * read before; so only the hash is read. Errors: TIERCE_E_FORMAT, *hash untouched: its namespace or
 * shard is another one, or it is no such text. */
TIERCE_MUSTUSE int tierce__key_text_parse_like(uint8_t hash[TIERCE_HASH_BYTES], const char *like,
                                               size_t like_size, const char *text, size_t size);

/* ---- LMCache -------------------------------------------------------------------------------- */

/* A longer key is rejected in either direction. */
#define TIERCE__LMCACHE_KEY_MAX 4096

/* A chunk hash as it is written: up to 64 hex digits, optionally after a sign. A number has no
 * leading zeros, a digest has two digits a byte. */
struct tierce__lmcache_hash {
    uint8_t value[TIERCE_HASH_BYTES]; /* big-endian, right-aligned */
    uint8_t digits;                   /* 1 .. 64 */
    bool negative;                    /* then it fits 64 bits and is not zero */
};

/* CacheEngineKey, or LayerCacheEngineKey if `layer` is not negative. */
struct tierce__lmcache_key {
    const char *model; /* 1 or more bytes of plain UTF-8 without '@' */
    size_t model_bytes;
    uint32_t world_size; /* <= INT32_MAX, as all numbers here */
    uint32_t worker_id;
    struct tierce__lmcache_hash hash;
    const char
        *dtype;    /* one of LMCache's names, such as "bfloat16"; constant storage after parsing */
    int32_t layer; /* -1: a key of all layers */
    const char *tags; /* "name%value@name%value", or NULL where tags_bytes is 0 */
    size_t tags_bytes;
};

struct tierce__lmcache_hash tierce__lmcache_hash_of_int(struct tierce__lmcache_int value);

/*
 * Writes the text of a key and a NUL into `text`, which has room for `room` bytes. Returns its
 * length; TIERCE_E_ARGUMENT if a field breaks its bounds, TIERCE_E_LIMIT if it does not fit.
 */
TIERCE_MUSTUSE int tierce__lmcache_key_format(char *text, size_t room,
                                              const struct tierce__lmcache_key *key);

/*
 * Reads a key; *key borrows model and tags from `text`. A sixth part that is all digits is a
 * layer, as LMCache has it. Errors: TIERCE_E_FORMAT, *key untouched.
 */
TIERCE_MUSTUSE int tierce__lmcache_key_parse(struct tierce__lmcache_key *key, const char *text,
                                             size_t size);

#endif
