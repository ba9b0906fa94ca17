/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_BLOCK_KEYS_H
#define TIERCE_MANAGER_BLOCK_KEYS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Keys of blocks from tokens, as Tair KVCache Manager's clients and servers make them: one 64-bit
 * hash carried on from token to token, and its value after each whole block. Tokens behind the last
 * whole block count for nothing.
 *
 * The hash is no proof of identity: two chains may have one key. Who needs that sends keys of its
 * own.
 *
 * Thread: any.
 */

/* Writes count / block_size keys, and returns how many. block_size >= 1. */
size_t tierce__block_keys(int64_t *keys, const int64_t *tokens, size_t count, size_t block_size);

/* The key of a text, for instances whose keys are strings. */
int64_t tierce__text_key(const char *text, size_t bytes);

#endif
