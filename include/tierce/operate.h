/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPERATE_H
#define TIERCE_OPERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * Control of a running engine by an operator or a controller: modes, clearing tiers, and moving
 * chunks between tiers. `tierce ctl` does the same from another process, over the control socket.
 *
 *     rc = tierce_engine_set_mode(engine, TIERCE_MODE_FREEZE);
 *     ... measure hits while the contents stay the same ...
 *     rc = tierce_engine_set_mode(engine, TIERCE_MODE_NORMAL);
 *     int64_t chunks = tierce_engine_clear(engine, 1u << TIERCE_ORIGIN_DISK, NULL);
 *
 * Caveats: equal configurations share one engine, and so its mode and contents. A mode applies to
 * operations that begin after the change; a load or store in progress ends as it began.
 *
 * Threads: any. Fork: as of engines, see engine.h.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Values are stable. */
enum tierce_mode {
    TIERCE_MODE_NORMAL = 0,
    /* Lookups and loads serve stored chunks; nothing is stored or promoted, and a prefetch searches
     * memory only. A load from a slower tier still needs memory while it lasts, and evicts chunks
     * to get it. */
    TIERCE_MODE_FREEZE = 1,
    /* Nothing is found and nothing is stored. A load gets only chunks that its session had already
     * pinned, because a lookup promised them. */
    TIERCE_MODE_BYPASS = 2,
};

/* "normal", "freeze", "bypass"; NULL for other values. */
TIERCE_API const char *tierce_mode_name(enum tierce_mode mode);

/* An engine opens in the mode engine.mode. Errors: TIERCE_E_ARGUMENT, TIERCE_E_CLOSED (in a child).
 * Does not block. */
TIERCE_API TIERCE_MUSTUSE int tierce_engine_set_mode(struct tierce_engine *engine,
                                                     enum tierce_mode mode);

/* Sets the role of the process, which `tierce top` and /status show; "engine" by default. `role`: 1
 * to 31 letters, digits, spaces, - and _. Errors: TIERCE_E_ARGUMENT, TIERCE_E_CLOSED (in a child).
 * Does not block. */
TIERCE_API TIERCE_MUSTUSE int tierce_engine_set_role(struct tierce_engine *engine,
                                                     const char *role);

/* Does not block. */
TIERCE_API enum tierce_mode tierce_engine_mode(const struct tierce_engine *engine);

/*
 * Removes chunks from tiers: stored chunks and those that are queued to be written. `tiers` is a
 * mask of 1u << enum tierce_origin; 0 means all except remote stores, which other engines share.
 * With a view, only chunks of the view's namespace are removed, in all shards. Stores and reads in
 * progress no longer publish anything, in any tier or namespace. Operations that begin during the
 * call may or may not be affected. Leased and pinned memory becomes free when its holders release
 * it.
 *
 * On disk, this process no longer finds removed chunks. Other processes no longer find them after
 * the next flush has returned.
 *
 * Returns the number of chunks removed from all tiers together, or an error: TIERCE_E_ARGUMENT (a
 * bit without a tier; a view of another engine), TIERCE_E_CLOSED, TIERCE_E_DEADLINE, or an error of
 * one tier; the other tiers are cleared even then. Blocks while ending stores publish and while it
 * walks indexes, never on a device: for at most timeout.load before the first tier, and again for
 * compressed memory, the disk and each remote store, because tiers are cleared one after the other.
 */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_engine_clear(struct tierce_engine *engine, uint32_t tiers,
                                                      const struct tierce_view *view);

struct tierce_copy_opts {
    size_t size; /* sizeof(struct tierce_copy_opts) */
    enum tierce_origin from, to;
    bool move;           /* remove from `from` the chunks that `to` then holds */
    uint32_t timeout_ms; /* 0: timeout.load */
};

/*
 * Copies the chunks of chain[0, to_block) from the tier `from` to the tier `to`: whole chunks, and
 * the tail as in tierce_lookup. Stops at the first chunk that neither tier holds or that cannot be
 * read. One of the two tiers must be memory. Bytes are copied unchanged; no tier compresses. Chunks
 * on disk are durable after a flush. Chunks that disk.admit rejects are not copied. If a moved
 * chunk is leased or pinned in memory, its holders keep it.
 *
 * Returns the leading blocks that `to` holds in the end, which may be fewer than requested (0 in
 * modes other than NORMAL), or an error: TIERCE_E_ARGUMENT (no such tiers; chain and to_block as in
 * tierce_lookup), TIERCE_E_CLOSED, -ENOMEM. Blocks until the deadline at most.
 */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_copy(struct tierce_view *view,
                                              const struct tierce_chain *chain, uint64_t to_block,
                                              const struct tierce_copy_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
