/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OWN_TIERS_H
#define TIERCE_ENGINE_OWN_TIERS_H

#include "engine/lender.h"

/*
 * The functions of the table tierce__own_tiers (lender.h), each in the file that is named here.
 */

/* storage.c */
int tierce__own_flush(struct tierce_engine *engine, uint32_t timeout_ms);
/* observe/operate.c */
int64_t tierce__own_clear(struct tierce_engine *engine, uint32_t tiers,
                          const struct tierce_view *view);
/* sessions.c */
void tierce__own_view_close(struct tierce_view *view);
void tierce__own_unpin(struct tierce_view *view, uint64_t session);
/* health/cost.c */
void tierce__own_computed(struct tierce_view *view, uint64_t tokens, uint64_t ns);
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
