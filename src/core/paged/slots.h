/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PAGED_SLOTS_H
#define TIERCE_PAGED_SLOTS_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Slot mappings: an engine states for each token where its KV is, as slot = block * block_tokens +
 * offset. Tierce moves whole blocks, so a mapping is usable only if the tokens of a block lie in
 * order from its first slot on.
 *
 * Thread: any. Neither blocks nor allocates.
 */

/*
 * Turns the slots of `n_tokens` tokens into block ids, one for each whole block, and proves that
 * each of these blocks is mapped from its start, in order and inside block_count. The tokens
 * behind the last whole block are not read. ids [out] has room for n_tokens / block_tokens.
 *
 * Returns the number of ids, or TIERCE_E_ARGUMENT with `ids` untouched: a slot that is negative,
 * out of range, not at the start of a block, or not the next one after its predecessor;
 * block_tokens 0; more blocks than an int can count.
 */
TIERCE_MUSTUSE int tierce__slots_to_blocks(int32_t *ids, const int64_t *slots, size_t n_tokens,
                                           uint32_t block_tokens, uint32_t block_count);

/*
 * The reverse: writes the n_blocks * block_tokens slots of whole blocks.
 *
 * Returns 0, or TIERCE_E_ARGUMENT with `slots` untouched: an id that is negative or not below
 * block_count, block_tokens 0, more slots than memory can hold.
 */
TIERCE_MUSTUSE int tierce__blocks_to_slots(int64_t *slots, const int32_t *ids, size_t n_blocks,
                                           uint32_t block_tokens, uint32_t block_count);

#endif
