/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OWN_TIERS_H
#define TIERCE_ENGINE_OWN_TIERS_H

#include "core/codec/codec.h"
#include "engine/engine_config.h"
#include "engine/lender.h"
#include "engine/waterfall.h"
#include "store/tier.h"

/* The next slower tier; while the engine is opened. [transfer] tier, on success of open. */
void tierce__engine_add_level(struct tierce_engine *engine, struct tierce__tier *tier,
                              enum tierce_origin origin, const char *policy, uint64_t window_bytes);

/* The codec that DISK_CODEC or REMOTE_CODEC names; NULL: none. After the plug-ins were loaded,
 * which is done before any tier is opened. */
const struct tierce__codec *tierce__engine_codec(const struct tierce_config *config,
                                                 enum tierce__engine_param param);

/* For tiers and connectors that encode and decode: a buffer in the engine's memory, and how many
 * bytes of it each may take in each direction. */
struct tierce__buf *tierce__engine_alloc_coded(void *engine, uint64_t bytes);
uint64_t tierce__engine_coded_staging(const struct tierce_engine *engine);

/* A bit for each level that a mask of 1u << enum tierce_origin names; all for 0. */
uint32_t tierce__levels_of(const struct tierce_engine *engine, uint32_t tiers);

/* The number of a level in messages of the directory, and the level of such a number: its place in
 * the waterfall, but the disk is 1 if there is one, and coded memory before it is 2. */
size_t tierce__level_number(const struct tierce_engine *engine, size_t level);

/* The bit of coded memory; 0 without it. */
uint32_t tierce__levels_coded_memory(const struct tierce_engine *engine);

/* Whether changes of a level are published (KV events, directory). Those of coded memory are not if
 * there is a disk: it holds the same chunks, and readers know only one kind of slower tier. */
bool tierce__level_is_told(const struct tierce__level *level);

/* A bit for each level that answers a lookup without a network. */
uint32_t tierce__levels_local(const struct tierce_engine *engine);

/* Functions of the table tierce__own_tiers (lender.h), each in the file that is named here. */

/* storage.c */
int tierce__own_flush(struct tierce_engine *engine, uint32_t timeout_ms);
/* sessions.c */
void tierce__own_view_close(struct tierce_view *view);
int tierce__own_hint(struct tierce_view *view, uint64_t session, enum tierce_hint hint,
                     uint32_t returns_ms);
/* lookup.c */
int tierce__own_lookup(struct tierce_view *view, const struct tierce_chain *chain,
                       uint64_t to_block, const struct tierce_lookup_opts *opts,
                       struct tierce_found *out);
int tierce__own_durable(struct tierce_view *view, const struct tierce_chain *chain,
                        uint64_t to_block, uint64_t *blocks);
/* prefetch/prefetch_handle.c */
int tierce__own_prefetch_begin(struct tierce_prefetch *prefetch, const struct tierce_chain *chain);
bool tierce__own_prefetch_wait(struct tierce_prefetch *prefetch, uint32_t timeout_ms);
void tierce__own_prefetch_end(struct tierce_prefetch *prefetch);

#endif
