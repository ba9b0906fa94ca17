/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_BLOCK_KEYS_H
#define TIERCE_MANAGER_BLOCK_KEYS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Computes block keys from tokens, exactly as Tair KVCache Manager's clients and servers do: a
 * rolling 64-bit hash over all tokens; the key of a block is its value at the block's end. Tokens
 * after the last whole block are ignored.
 *
 * The hash is not collision resistant: two chains may share a key. A client that needs stronger
 * keys sends its own.
 *
 * Thread: any.
 */

/* Writes count / block_size keys, and returns how many. block_size >= 1. */
size_t tierce__block_keys(int64_t *keys, const int64_t *tokens, size_t count, size_t block_size);

/* The key of a text, for instances whose keys are strings. */
int64_t tierce__text_key(const char *text, size_t bytes);

#endif
