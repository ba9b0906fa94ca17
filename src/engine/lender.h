/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_LENDER_H
#define TIERCE_ENGINE_LENDER_H

#include <tierce/engine.h>
#include <tierce/prefetch.h>
#include <tierce/why.h>

#include "engine/device/pinnings.h"
#include "engine/load/load_lease.h"
#include "engine/store/shared_write.h"

/* Space for the chunks of a store. */
struct tierce__lender_space {
    const struct tierce__room
        *rooms; /* [count] borrowed until end; NULL: nothing is to be stored */
    size_t count;
    struct tierce__pinnings *memory;     /* the mapping that the rooms are of; borrowed until end */
    struct tierce__room_wait *room_wait; /* [in] of begin, or NULL; a node ignores it */
    union {
        struct tierce__share share; /* of own tiers */
        struct tierce__client_store *remote;
    };
};

/*
 * The lender of an engine: it answers the engine's calls and lends chunks and space for chunks. An
 * engine has one of the two below from its opening to its end, and calls it without knowing which:
 *
 *     own_tiers.h     tiers and a pool of this process
 *     node_client/    a node of this host, whose pool is mapped (node.socket)
 *
 * Each function of the table implements the public call of its name, which has checked the handle,
 * the process and the sizes of structs before; its promises are those of the public call. Calls
 * about tiers that a node does not support (why, copy, events) are not in the table.
 */
struct tierce__lender {
    /* Opens the lender of an engine that has no more than its settings and namespaces; *why is
     * written on failure. Close must follow, even after a failure. */
    int (*open)(struct tierce_engine *engine, const struct tierce_config *config,
                char why[TIERCE_CONFIG_ERROR_BYTES]);
    /* Called when the engine is open: serves the control socket from now on. */
    void (*serve)(struct tierce_engine *engine, const struct tierce_config *config);
    /* By engine->close_deadline_ns. False: threads of a tier are still running, so they and the
     * memory that they may access are leaked. */
    bool (*close)(struct tierce_engine *engine);

    /* Adds the counters that the engine does not keep itself. */
    void (*stats)(struct tierce_engine *engine, struct tierce_engine_stats *out);
    int (*flush)(struct tierce_engine *engine, uint32_t timeout_ms);
    int64_t (*clear)(struct tierce_engine *engine, uint32_t tiers, const struct tierce_view *view);

    /* tierce_view_prepare for memory of a device. */
    int (*prepare)(struct tierce_view *view, const struct tierce_paged *paged);

    /* The view has its shape, but no part yet. view_close follows, even if view_open fails or is
     * not called. */
    int (*view_open)(struct tierce_view *view, const struct tierce_namespace *ns);
    void (*view_close)(struct tierce_view *view);
    void (*computed)(struct tierce_view *view, uint64_t tokens, uint64_t ns);
    void (*unpin)(struct tierce_view *view, uint64_t session);
    /* returns_ms 0: not known */
    int (*hint)(struct tierce_view *view, uint64_t session, enum tierce_hint hint,
                uint32_t returns_ms);
    void (*note_request)(struct tierce_engine *engine, const struct tierce_request *request);

    /* [in] *out, *blocks: zero. */
    int (*lookup)(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                  const struct tierce_lookup_opts *opts, struct tierce_found *out);
    int (*durable)(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                   uint64_t *blocks);
    /* [in] *space: zero, except for room_wait; *out: untouched on failure. Begin checks only the
     * chain of opts. */
    int (*store_begin)(struct tierce__lender_space *space, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts);
    int64_t (*store_end)(struct tierce__lender_space *space, bool complete);
    /* The space will not be published, but stays until store_end: a device may write to it. From
     * now on other requests may store its chunks; through a node, from store_end on, or from the
     * node's deadline of the store. */
    void (*store_give_up)(struct tierce__lender_space *space);
    int (*load_begin)(struct tierce__load_lease **out, struct tierce_view *view,
                      const struct tierce_transfer_opts *opts);

    /* Of a handle that has its view, options and deadline. After a failed begin, the caller frees
     * the handle; else end does. */
    int (*prefetch_begin)(struct tierce_prefetch *prefetch, const struct tierce_chain *chain);
    /* Returns whether the result is final. */
    bool (*prefetch_wait)(struct tierce_prefetch *prefetch, uint32_t timeout_ms);
    void (*prefetch_end)(struct tierce_prefetch *prefetch);
};

extern const struct tierce__lender tierce__own_tiers;
extern const struct tierce__lender tierce__node_client;

#endif
