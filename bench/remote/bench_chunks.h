/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_CHUNKS_H
#define TIERCE_CLI_BENCH_CHUNKS_H

#include "bench/bench.h"
#include "core/chunk/pool.h"
#include "core/key/key_text.h"
#include "store/remote/connector.h"

/*
 * The chunks of one prompt, and requests to connectors for all of them at once. Thread: the main
 * one.
 */

#define TIERCE__BENCH_CHUNKS 128u

struct tierce__bench_chunks {
    const struct tierce__bench *bench;
    uint64_t bytes; /* of each chunk */
    struct tierce__pool *pool;
    struct tierce__buf *bufs[TIERCE__BENCH_CHUNKS];
    char texts[TIERCE__BENCH_CHUNKS][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[TIERCE__BENCH_CHUNKS];
    struct tierce__key keys[TIERCE__BENCH_CHUNKS]; /* each is the parent of the next */
};

/* Buffers of `bytes` bytes. The names are texts of keys of the namespace with this digest, whose
 * hashes begin with `first`, `first` + 1, ... Close it in any case. Errors: -ENOMEM, -errno. */
TIERCE_MUSTUSE int tierce__bench_chunks_open(struct tierce__bench_chunks *c,
                                             const struct tierce__bench *bench, uint64_t bytes,
                                             const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                             uint64_t first);
void tierce__bench_chunks_close(struct tierce__bench_chunks *c);

/* Fills all buffers with the same bytes, those of tierce__bench_fill's stream 1. */
void tierce__bench_chunks_fill(struct tierce__bench_chunks *c);

/* Puts the first chunk. Returns whether the store has it now; prints nothing. */
bool tierce__bench_chunks_is_served(struct tierce__bench_chunks *c,
                                    struct tierce__connector *connector);

/* Each returns the nanoseconds until all requests were answered, or tierce__bench_fail's error
 * after it has printed why one failed. */

/* All must be found. */
int64_t tierce__bench_chunks_lookup(struct tierce__bench_chunks *c,
                                    struct tierce__connector *connector);
int64_t tierce__bench_chunks_put(struct tierce__bench_chunks *c,
                                 struct tierce__connector *connector);
/* In pieces of up to `piece` bytes, which must divide the chunk's; 0: whole. */
int64_t tierce__bench_chunks_get(struct tierce__bench_chunks *c,
                                 struct tierce__connector *connector, uint64_t piece);

/* Overwrites all buffers, gets the chunks, and compares them. Returns 0 or a reported error. */
TIERCE_MUSTUSE int tierce__bench_chunks_check(struct tierce__bench_chunks *c,
                                              struct tierce__connector *connector, uint64_t piece);

#endif
