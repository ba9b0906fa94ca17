/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "engine/node_client/client.h"
#include "engine/view.h"

/* The tokens of chains, for the KV events of the node, which knows hashes only. */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are sent as they are kept");

void tierce__client_tell_tokens(const struct tierce_view *view, struct tierce__node_session *peer,
                                uint64_t number, const struct tierce_chain *chain,
                                uint64_t to_block, uint64_t deadline_ns)
{
    if (to_block > tierce_chain_blocks(chain) || tierce__view_is_sparse(view) ||
        !tierce__node_session_announces(peer, TIERCE__NATIVE_ASKS_TOKENS) ||
        !tierce__chain_fits(chain, view->algo, view->full.geometry.block_tokens))
        return;
    const int32_t *kept = tierce__chain_tokens(chain);
    struct tierce__chain_told *told = tierce__chain_told(chain);
    uint64_t had = atomic_load(&told->tokens_blocks),
             peer_number = tierce__node_session_number(peer);
    if (atomic_load(&told->tokens_peer) != peer_number)
        had = 0;
    if (kept == NULL || to_block <= had)
        return;
    uint64_t first = had - had % view->chunk_blocks; /* a chunk that was shorter has grown */
    uint32_t block_tokens = view->full.geometry.block_tokens;
    TIERCE_DASSERT(first <= to_block);
    union tierce__native_request question = {
        .note_tokens = {.view = number,
                        .from_block = first,
                        .tokens = {(const uint8_t *)(kept + first * block_tokens),
                                   (uint32_t)((to_block - first) * block_tokens)}}};
    struct tierce__asking asking;
    int rc = tierce__client_ask_chain(&asking, peer, TIERCE__NATIVE_NOTE_TOKENS, &question,
                                      &question.note_tokens.chain, chain, deadline_ns);
    if (rc != 0)
        return;
    tierce__node_session_done(&asking);
    atomic_store(&told->tokens_blocks, to_block);
    atomic_store(&told->tokens_peer, peer_number);
}
