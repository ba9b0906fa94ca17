/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_CHAIN_HASH_H
#define TIERCE_KEY_CHAIN_HASH_H

#include <tierce/key.h>

/*
 * The functions that turn token blocks into block hashes. The chain object (chain.c) handles roots,
 * waiting tokens and folding. Formats: docs/inside/format/key.md.
 *
 * Nothing here allocates, fails or blocks. Thread: any, with a scratch buffer of its own.
 */

/* Consecutive whole blocks. All of it is borrowed for the call. */
struct tierce__block_run {
    const int32_t *tokens; /* block_count * block_tokens of them */
    uint32_t block_tokens;
    size_t block_count;
    const uint8_t *parent; /* 32 bytes, the parent of the first block */
    const uint8_t *extra;  /* of the first block; then block_count is 1 */
    size_t extra_bytes;    /* 0 if the run has none */
    uint8_t *scratch;      /* tierce__chain_scratch_bytes of them */
    uint8_t *hashes;       /* [out] 32 bytes a block */
};

/* The bytes of scratch that a run of such blocks requires. */
size_t tierce__chain_scratch_bytes(uint32_t block_tokens);

/* One function for each algorithm; each is a `tierce__chain_run_fn`. */
typedef void tierce__chain_run_fn(const struct tierce__block_run *run);
void tierce__chain_run_sha256(const struct tierce__block_run *run);
void tierce__chain_run_xxh3(const struct tierce__block_run *run);
void tierce__chain_run_vllm(const struct tierce__block_run *run);

/* vLLM's parent of block 0: SHA-256 of its fixed seed text as a CBOR item. */
void tierce__chain_vllm_none_hash(uint8_t hash[TIERCE_HASH_BYTES]);

#endif
