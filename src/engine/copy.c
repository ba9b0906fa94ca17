/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and moves of a prompt between memory and a slower tier, for a controller. Down: leases
 * chunks in memory and puts a few of them at a time; it repeats those that found the tier's queue
 * full. Up: a prefetch. Once the other tier has the chunks, a move removes them from the source,
 * the last one first, so that there is never a suffix without its prefix.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/observe/operate.h"
#include "engine/view.h"
#include "store/await.h"

#include <tierce/prefetch.h>

#define AT_ONCE 8u /* chunks that are being written */

struct copy {
    struct tierce_engine *engine;
    struct tierce_view *view;
    const struct tierce_chain *chain;
    const struct tierce_copy_opts *opts;
    uint64_t to_block;
    size_t from, to; /* levels */
    uint64_t deadline_ns;
    uint64_t era; /* operate.h */
    struct tierce__keys keys;
    struct tierce__shape tail_shape;
};

static size_t search(const struct copy *copy, uint32_t levels, const struct tierce__key *keys,
                     size_t count)
{
    struct tierce__unasked unasked;
    return tierce__storage_search(copy->engine, levels, keys, count, NULL, &unasked);
}

/* ---- down ---- */

/* Several PUTs, waited for together. */
struct copy_batch {
    struct copy *copy;
    struct tierce__await await;
    struct tierce__store_req reqs[AT_ONCE];
    struct tierce__storage_chunk records[AT_ONCE];
};

static void put_done(struct tierce__store_req *req)
{
    struct copy_batch *batch = req->arg;
    TIERCE_DASSERT(req->op == TIERCE__STORE_PUT);
    TIERCE_DASSERT(batch->copy->to > 0);
    tierce__storage_note(batch->copy->engine, batch->copy->to, req);
    (void)tierce__await_answer(&batch->await);
}

static void put(struct copy_batch *batch, size_t i, size_t index)
{
    struct copy *copy = batch->copy;
    struct tierce__store_req *req = &batch->reqs[i];
    const struct tierce__shape *shape =
        index < copy->keys.full_count ? &copy->view->full : &copy->tail_shape;
    TIERCE_DASSERT(i < AT_ONCE && index < copy->keys.count);
    TIERCE_DASSERT(copy->to > 0 && req->deadline_ns == 0);
    tierce__view_describe(&batch->records[i], copy->view, &copy->keys, shape, index,
                          tierce_chain_hash(copy->chain, 0));
    tierce__storage_fill_put(req, &batch->records[i], req->buf);
    req->needs_parent = true;
    req->deadline_ns = copy->deadline_ns;
    req->done = put_done;
    req->arg = batch;
    tierce__await_expect(&batch->await);
    if (tierce__storage_submit(copy->engine, copy->to, req))
        return;
    req->status = TIERCE_E_DOWN;
    (void)tierce__await_answer(&batch->await);
}

/* Writes chunks [first, end). Returns how many of them, from the first on, the tier has then;
 * *full: the next one found no room in its queue. */
static size_t write_some(struct copy *copy, size_t first, size_t end, bool *full)
{
    struct copy_batch batch = {.copy = copy};
    size_t count = end - first, good = 0;
    TIERCE_DASSERT(first < end && count <= AT_ONCE);
    tierce__await_begin(&batch.await);
    for (size_t i = 0; i < count; i++)
        batch.reqs[i].buf = tierce__storage_lease(copy->engine, &copy->keys.keys[first + i]);
    if (tierce__era_enter(copy->engine, copy->era)) {
        for (size_t i = 0; i < count; i++) {
            if (batch.reqs[i].buf != NULL)
                put(&batch, i, first + i);
        }
        tierce__era_leave(copy->engine, copy->era);
    }
    (void)tierce__await_end(&batch.await, TIERCE__DEADLINE_NEVER); /* the tier has a deadline */
    for (size_t i = 0; i < count; i++)
        tierce__buf_release(batch.reqs[i].buf);
    good = search(copy, 1u << copy->to, copy->keys.keys + first, count);
    TIERCE_DASSERT(good <= count);
    *full = good < count && batch.reqs[good].status == TIERCE_E_FULL;
    return good;
}

static size_t copy_down(struct copy *copy)
{
    TIERCE_DASSERT(copy->from == 0 && copy->to > 0);
    size_t there =
        search(copy, 1u << copy->from | 1u << copy->to, copy->keys.keys, copy->keys.count);
    size_t at = 0;
    while (at < there) {
        bool full;
        size_t end = there - at < AT_ONCE ? there : at + AT_ONCE;
        size_t good = write_some(copy, at, end, &full);
        TIERCE_DASSERT(good <= end - at);
        at += good;
        if (at < end && !(full && good > 0))
            break;
    }
    return at;
}

/* ---- up ---- */

static int64_t copy_up(struct copy *copy)
{
    TIERCE_DASSERT(copy->to == 0 && copy->from > 0);
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .tiers = 1u << copy->opts->from | 1u << copy->opts->to,
                                        .timeout_ms = copy->opts->timeout_ms};
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    int rc = tierce_prefetch_begin(&prefetch, copy->view, copy->chain, copy->to_block, &opts);
    if (rc < 0)
        return rc;
    uint64_t now = tierce__now_ns();
    uint64_t left_ns = copy->deadline_ns > now ? copy->deadline_ns - now : 0;
    rc = tierce_prefetch_wait(prefetch, (uint32_t)(left_ns / TIERCE__MS_NS));
    (void)rc; /* the progress so far counts */
    (void)tierce_prefetch_poll(prefetch, &result);
    tierce_prefetch_end(prefetch);
    size_t chunks = 0;
    while (chunks < copy->keys.count && tierce__keys_blocks(&copy->keys, copy->view, chunks + 1,
                                                            copy->to_block) <= result.memory_blocks)
        chunks++;
    return (int64_t)chunks;
}

/* ---- both ---- */

/* Removes from the source the chunks that the other tier has. Chunks in memory are leased
 * meanwhile, so that they are not evicted. Returns the leading chunks that the target holds in the
 * end. */
static size_t remove_source(struct copy *copy, size_t count)
{
    TIERCE_DASSERT(count <= copy->keys.count);
    TIERCE_DASSERT(copy->from != copy->to);
    struct tierce__buf **leases = tierce__calloc(count + 1, sizeof(*leases));
    if (leases == NULL)
        return count; /* copied */
    size_t held = 0;
    if (copy->to == 0) {
        while (held < count) {
            leases[held] = tierce__storage_lease(copy->engine, &copy->keys.keys[held]);
            if (leases[held] == NULL)
                break;
            held++;
        }
    } else {
        held = search(copy, 1u << copy->to, copy->keys.keys, count);
    }
    TIERCE_DASSERT(held <= count);
    for (size_t i = held; i-- > 0;)
        tierce__storage_delete(copy->engine, copy->from, &copy->keys.keys[i]);
    for (size_t i = 0; i < held; i++)
        tierce__buf_release(leases[i]);
    tierce__free(leases);
    return held;
}

static int find_level(const struct tierce_engine *engine, enum tierce_origin origin, size_t *level)
{
    for (size_t i = 0; i < engine->level_count; i++) {
        if (engine->levels[i].origin == origin) {
            *level = i;
            return 0;
        }
    }
    return TIERCE_E_ARGUMENT;
}

static int init_copy(struct copy *copy)
{
    const struct tierce_copy_opts *opts = copy->opts;
    if (opts->size != sizeof(*opts) || opts->from == opts->to ||
        find_level(copy->engine, opts->from, &copy->from) < 0 ||
        find_level(copy->engine, opts->to, &copy->to) < 0 || (copy->from > 0 && copy->to > 0))
        return TIERCE_E_ARGUMENT;
    copy->deadline_ns = tierce__deadline_in_ms(
        opts->timeout_ms > 0 ? opts->timeout_ms : copy->engine->settings.load_ms);
    copy->era = tierce__era_of_read(copy->engine);
    int rc = tierce__keys_init(&copy->keys, copy->view, copy->chain, copy->to_block,
                               tierce_chain_blocks(copy->chain), true);
    if (rc == 0 && copy->keys.tail_blocks > 0)
        copy->tail_shape = tierce__shape_of(copy->view, copy->keys.tail_blocks);
    TIERCE_DASSERT(rc < 0 || (copy->from == 0) != (copy->to == 0));
    return rc;
}

int64_t tierce_copy(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                    const struct tierce_copy_opts *opts)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    if (view->engine->level_count == 0)
        return TIERCE_E_UNSUPPORTED;
    struct copy copy = {
        .engine = view->engine, .view = view, .chain = chain, .opts = opts, .to_block = to_block};
    int64_t rc = init_copy(&copy);
    if (rc == 0 && tierce__engine_mode(view->engine) == TIERCE_MODE_NORMAL) {
        rc = copy.to == 0 ? copy_up(&copy) : (int64_t)copy_down(&copy);
        if (rc > 0 && opts->move)
            rc = (int64_t)remove_source(&copy, (size_t)rc);
        if (rc > 0)
            rc = (int64_t)tierce__keys_blocks(&copy.keys, view, (size_t)rc, to_block);
    }
    tierce__keys_fini(&copy.keys);
    return rc;
}
