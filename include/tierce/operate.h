/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPERATE_H
#define TIERCE_OPERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * What an operator or a controller does to an engine that runs: modes, forgetting what is stored,
 * and moving it between tiers. `tierce ctl` does the same from outside, over the control socket.
 *
 *     rc = tierce_engine_set_mode(engine, TIERCE_MODE_FREEZE);
 *     ... measure hits that nothing changes ...
 *     rc = tierce_engine_set_mode(engine, TIERCE_MODE_NORMAL);
 *     int64_t chunks = tierce_engine_clear(engine, 1u << TIERCE_ORIGIN_DISK, NULL);
 *
 * Caveats: engines of equal configuration are one engine, and so are their modes and contents. A
 * mode is for what begins from then on: a load or store that is under way ends as it began.
 *
 * Threads: any. Fork: as of engines, see engine.h.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Values are stable. */
enum tierce_mode {
    TIERCE_MODE_NORMAL = 0,
    /* Lookups and loads answer from what is there; nothing is stored or promoted, and a prefetch
     * looks into memory only. What a load reads
     * from a slower tier still needs room in memory while the load lasts, and evicts for it. */
    TIERCE_MODE_FREEZE = 1,
    /* Nothing is found and nothing is stored. A load gets only what its session has pinned before,
     * because it was promised. */
    TIERCE_MODE_BYPASS = 2,
};

/* "normal", "freeze", "bypass"; NULL for other values. */
TIERCE_API const char *tierce_mode_name(enum tierce_mode mode);

/* An engine opens in the mode engine.mode. Errors: TIERCE_E_ARGUMENT, TIERCE_E_CLOSED (in a child).
 * Does not block. */
TIERCE_API TIERCE_MUSTUSE int tierce_engine_set_mode(struct tierce_engine *engine,
                                                     enum tierce_mode mode);

/* Does not block. */
TIERCE_API enum tierce_mode tierce_engine_mode(const struct tierce_engine *engine);

/*
 * Forgets what the tiers hold: chunks that lie there and those that wait to be written. `tiers` is
 * a mask of 1u << enum tierce_origin, 0 for all but remote stores, which others share. With a view,
 * only what is of the view's namespace, in whatever shard. Stores and reads that began before
 * publish nothing any more, in any tier or namespace; those that begin meanwhile may or may not be
 * forgotten. Memory that is leased or pinned is free when its holders let go.
 *
 * On disk, what is forgotten is not found again by this process, nor, once a flush has returned, by
 * another one.
 *
 * Returns the chunks that left, of all tiers together, or an error: TIERCE_E_ARGUMENT (a bit that
 * is no tier's; a view of another engine), TIERCE_E_CLOSED, TIERCE_E_DEADLINE (after timeout.load),
 * or a tier's own, of which the others were cleared all the same. Blocks while stores that are
 * ending publish, and while indexes are walked, never on a device.
 */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_engine_clear(struct tierce_engine *engine, uint32_t tiers,
                                                      const struct tierce_view *view);

struct tierce_copy_opts {
    size_t size; /* sizeof(struct tierce_copy_opts) */
    enum tierce_origin from, to;
    bool move;           /* take out of `from` what `to` has then */
    uint32_t timeout_ms; /* 0: timeout.load */
};

/*
 * Brings to the tier `to` what the tier `from` has of chain[0, to_block), up to the first chunk
 * that neither has, or that does not come: whole chunks, and the tail as in tierce_lookup. One of
 * the two tiers is memory. Bytes are copied as they are; no tier compresses. What is moved to disk
 * is durable after a flush, as all that is written there; what disk.admit refuses is not copied.
 * Chunks that are leased or pinned in memory stay with their holders when they are moved.
 *
 * Returns the leading blocks that `to` has in the end, which may be fewer than were asked for (0
 * in other modes than NORMAL), or an error: TIERCE_E_ARGUMENT (no such tiers; chain and to_block as
 * in tierce_lookup), TIERCE_E_CLOSED, -ENOMEM. Blocks up to the deadline.
 */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_copy(struct tierce_view *view,
                                              const struct tierce_chain *chain, uint64_t to_block,
                                              const struct tierce_copy_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
