/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CHUNK_COPY_H
#define TIERCE_ENGINE_CHUNK_COPY_H

#include "core/chunk/header.h"
#include "engine/engine.h"

/*
 * Whole chunks that a tier holds, without a view of their namespace: for copies to another tier
 * (backfill.h, operate/chunk_orders.h). Thread: any.
 */

/* The record of a chunk that a scan of a tier has shown. */
void tierce__chunk_record(struct tierce__storage_chunk *out,
                          const struct tierce__tier_event *event);

/* Whether a chunk of the key's namespace can have this length. False also if the text of the
 * namespace is not known. */
bool tierce__chunk_fits(const struct tierce_engine *engine, const struct tierce__key *key,
                        uint64_t object_bytes);

/* Reads a chunk of a slower tier into a buffer that is in no tier, and verifies key and cells. A
 * wrong chunk is quarantined. The length in a record of a shared tier is a claim of others: if the
 * chunk has another length, the status is TIERCE_E_ARGUMENT, and nothing is quarantined. Returns
 * the buffer [transfer], or NULL with *status: TIERCE_E_MISS, -ENOMEM, those of the tier. *info:
 * the header that was verified; another process may write to the buffer afterwards; NULL is
 * accepted. Blocks, timeout.load at most. */
struct tierce__buf *tierce__chunk_read(struct tierce_engine *engine, size_t level,
                                       const struct tierce__storage_chunk *chunk,
                                       struct tierce__chunk_info *info, int *status);

#endif
