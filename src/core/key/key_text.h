/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_KEY_TEXT_H
#define TIERCE_KEY_KEY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/key.h>

/*
 * Keys as text. The parser takes arbitrary bytes with a length, and accepts exactly the output of
 * the formatter: parsing and formatting again yields the same text. Nothing here allocates or
 * blocks. Thread: any.
 *
 * A text is a name and never a path. Format: docs/inside/format/key.md.
 */

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

#endif
