/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_KV_TOKENS_H
#define TIERCE_ENGINE_KV_TOKENS_H

#include "engine/view.h"

/*
 * The tokens of chunks, for KV events: a store has hashes only. They are noted when a request
 * stores or loads chunks, and kept until they need more memory than a bound; the tokens that were
 * noted least recently are forgotten first. Events and snapshots that read them change no order. A
 * chunk that needs more than the bound is not noted.
 *
 * Only tokens that determine their chunk's hash alone are noted: none of a chain with a root or
 * extras, or of hashes that an inference engine computed; and none of groups of layers that do not
 * attend to the whole prompt, whose chunks do not stand for a prefix.
 *
 * Thread: any; one lock of class KV_TOKENS inside.
 */

struct tierce__kv_tokens;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__kv_tokens_create(struct tierce__kv_tokens **out, uint64_t bytes_max);
/* NULL is accepted here and below: nothing is noted. */
void tierce__kv_tokens_destroy(struct tierce__kv_tokens *tokens);

/* Notes the chunks of chain[0, to_block), if the chain has kept its tokens; the last one, if it is
 * shorter, only with `tail`. [in] chain: of the view. Without memory, chunks are left out. */
void tierce__kv_tokens_note(struct tierce__kv_tokens *tokens, const struct tierce_view *view,
                            const struct tierce_chain *chain, uint64_t to_block, bool tail);

/*
 * Notes chunks of a chain without tokens. `claimed` has the tokens of `blocks` blocks from
 * `from_block` on, where a chunk begins, and is checked. A shorter last chunk is noted too. Errors:
 * TIERCE_E_ARGUMENT (the tokens do not have the chain's hashes), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__kv_tokens_claim(struct tierce__kv_tokens *tokens,
                                           const struct tierce_view *view,
                                           const struct tierce_chain *chain, uint64_t from_block,
                                           uint64_t blocks, const int32_t *claimed);

/* Copies the `count` tokens of the chunk with this hash. Returns false if they are unknown. */
bool tierce__kv_tokens_get(struct tierce__kv_tokens *tokens, const uint8_t hash[TIERCE_HASH_BYTES],
                           uint32_t *out, uint32_t count);

#endif
