/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a prefetch: its handle, its references, its deadline, and the thread that continues
 * it.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/observe/kv_tokens.h"
#include "engine/prefetch/prefetch_private.h"
#include "engine/own_tiers.h"

void tierce__prefetch_free(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(tierce__list_empty(&p->node));
    TIERCE_DASSERT(!p->going_on);
    tierce__session_free(p->pinned);
    tierce__free(p->chunks);
    tierce__free(p->hashes);
    tierce__shape_fini(&p->tail_shape);
    tierce__keys_fini(&p->keys);
    tierce__cond_fini(&p->changed);
    p->magic = 0;
    tierce__free(p);
}

void tierce__prefetch_go_on(struct tierce_prefetch *p, bool last_use)
{
    struct tierce__lock *lock = tierce__prefetch_lock(p);
    tierce__lock_take(lock);
    TIERCE_DASSERT(p->refs > 0);
    p->event = true;
    bool mine = !p->going_on && !p->result.final;
    p->going_on |= mine;
    while (mine && p->event && !p->result.final) {
        p->event = false;
        tierce__lock_drop(lock);
        tierce__prefetch_advance(p);
        tierce__lock_take(lock);
    }
    if (mine) {
        TIERCE_DASSERT(p->going_on);
        p->going_on = false;
        tierce__cond_broadcast(&p->changed);
    }
    bool last = last_use && --p->refs == 0;
    tierce__lock_drop(lock);
    if (last)
        tierce__prefetch_free(p);
}

/* Ends it if its deadline has passed. */
static void expire(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    bool due = !p->result.final && tierce__now_ns() >= p->deadline_ns;
    p->late |= due;
    TIERCE_DASSERT(p->refs > 0);
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (due)
        tierce__prefetch_go_on(p, false);
}

/* ---- the prefetches of an engine ---- */

void tierce__prefetches_init(struct tierce__prefetches *prefetches, uint64_t bytes_max)
{
    tierce__lock_init(&prefetches->lock, TIERCE__LOCK_PREFETCH);
    tierce__list_init(&prefetches->list);
    tierce__semaphore_init(&prefetches->memory, bytes_max);
}

void tierce__prefetches_fini(struct tierce__prefetches *prefetches)
{
    TIERCE_ASSERT(tierce__list_empty(&prefetches->list));
    tierce__semaphore_fini(&prefetches->memory);
    tierce__lock_fini(&prefetches->lock);
}

static struct tierce_prefetch *prefetch_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce_prefetch, node);
}

/* One whose deadline has passed, marked and with a reference, or NULL. */
static struct tierce_prefetch *take_due(struct tierce__prefetches *prefetches, uint64_t now)
{
    struct tierce_prefetch *due = NULL;
    tierce__lock_take(&prefetches->lock);
    TIERCE__LIST_FOR_EACH (it, &prefetches->list) {
        struct tierce_prefetch *p = prefetch_of(it);
        TIERCE_DASSERT(prefetches == &p->engine->prefetches);
        if (p->result.final || p->late || now < p->deadline_ns)
            continue;
        TIERCE_DASSERT(p->refs > 0);
        p->late = true;
        p->refs++;
        due = p;
        break;
    }
    tierce__lock_drop(&prefetches->lock);
    return due;
}

void tierce__prefetches_expire(struct tierce_engine *engine)
{
    uint64_t now = tierce__now_ns();
    struct tierce_prefetch *due;
    while ((due = take_due(&engine->prefetches, now)) != NULL)
        tierce__prefetch_go_on(due, true);
}

void tierce__prefetches_drop(struct tierce_view *view)
{
    struct tierce__prefetches *prefetches = &view->engine->prefetches;
    struct tierce_prefetch *found;
    do {
        found = NULL;
        tierce__lock_take(&prefetches->lock);
        TIERCE__LIST_FOR_EACH (it, &prefetches->list) {
            if (prefetch_of(it)->view == view)
                found = prefetch_of(it);
        }
        tierce__lock_drop(&prefetches->lock);
        tierce_prefetch_end(found);
    } while (found != NULL);
}

/* ---- begin, poll, wait, end ---- */

static int check_opts(const struct tierce_view *view, const struct tierce_prefetch_opts *opts)
{
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    bool pin = (opts->flags & TIERCE_PREFETCH_PIN) != 0;
    bool is_known = (opts->flags & ~(TIERCE_PREFETCH_PIN | TIERCE_PREFETCH_VERIFY)) == 0;
    if (opts->size != sizeof(*opts) || !is_known || (pin && opts->session == 0))
        return TIERCE_E_ARGUMENT;
    return 0;
}

/* Copies the needed part of the caller's chain. */
static int copy_sequence(struct tierce_prefetch *p, const struct tierce_chain *chain,
                         uint64_t to_block)
{
    int rc =
        tierce__keys_init(&p->keys, p->view, chain, to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;
    if (p->keys.tail_blocks > 0) {
        p->tail_shape = tierce__shape_of(p->view, p->keys.tail_blocks);
        rc = tierce__shape_cut(&p->tail_shape);
    }
    if (rc < 0)
        return rc;
    p->hashes = tierce__alloc(p->keys.block_count * TIERCE_HASH_BYTES);
    p->chunks = tierce__calloc(p->keys.count, sizeof(*p->chunks));
    if (p->hashes == NULL || p->chunks == NULL)
        return -ENOMEM;
    if (p->keys.block_count > 0)
        memcpy(p->hashes, tierce_chain_hash(chain, 0), p->keys.block_count * TIERCE_HASH_BYTES);
    memcpy(p->root, tierce_chain_root_hash(chain), TIERCE_HASH_BYTES);
    for (size_t i = 0; i < p->keys.count; i++)
        p->chunks[i].prefetch = p;
    return 0;
}

void tierce__prefetch_enter(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(tierce__list_empty(&p->node));
    TIERCE_DASSERT(p->refs > 0);
    tierce__count(p->engine, TIERCE__STAT_prefetches, 1);
    tierce__lock_take(tierce__prefetch_lock(p));
    tierce__list_push_back(&p->engine->prefetches.list, &p->node);
    tierce__lock_drop(tierce__prefetch_lock(p));
}

int tierce__own_prefetch_begin(struct tierce_prefetch *p, const struct tierce_chain *chain)
{
    struct tierce_engine *engine = p->engine;
    int rc = copy_sequence(p, chain, p->to_block);
    if (rc < 0)
        return rc;
    tierce__kv_tokens_note(engine->kv_tokens, p->view, chain, p->to_block, false);
    bool pin = (p->opts.flags & TIERCE_PREFETCH_PIN) != 0;
    p->budget = engine->prefetches.memory.capacity;
    if (pin) {
        p->budget = tierce__session_room(p->view, p->opts.session);
        p->pinned = tierce__session_take(p->view, p->opts.session);
    }
    size_t first = (size_t)(p->opts.from_block / p->view->chunk_blocks);
    first = first < p->keys.count ? first : p->keys.count;
    p->found = p->claimed = p->gathered = p->round_start = first;
    p->plan_end = p->keys.count;
    TIERCE_DASSERT(p->found <= p->plan_end);
    p->result.size = sizeof(p->result);
    p->result.blocks = p->result.memory_blocks = tierce__prefetch_blocks(p, first);
    p->result.tier_count = engine->level_count;
    TIERCE_DASSERT(p->result.tier_count <= TIERCE_PREFETCH_TIERS_MAX);
    for (size_t i = 0; i < engine->level_count; i++)
        p->result.tiers[i].name = engine->levels[i].tier->ops->name;
    tierce__prefetch_enter(p);
    tierce__prefetch_go_on(p, false);
    return 0;
}

int tierce_prefetch_begin(struct tierce_prefetch **out, struct tierce_view *view,
                          const struct tierce_chain *chain, uint64_t to_block,
                          const struct tierce_prefetch_opts *opts)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    int rc = check_opts(view, opts);
    if (rc < 0)
        return rc;
    struct tierce_prefetch *p = tierce__calloc(1, sizeof(*p));
    if (p == NULL)
        return -ENOMEM;
    p->magic = TIERCE__PREFETCH_MAGIC;
    p->engine = view->engine;
    p->view = view;
    p->opts = *opts;
    p->mode = tierce__engine_mode(view->engine);
    p->to_block = to_block;
    p->deadline_ns = tierce__deadline_in_ms(
        opts->timeout_ms > 0 ? opts->timeout_ms : view->engine->settings.prefetch_ms);
    p->refs = 1;
    tierce__cond_init(&p->changed);
    tierce__list_init(&p->node);
    rc = view->engine->lender->prefetch_begin(p, chain);
    if (rc < 0) {
        tierce__prefetch_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

bool tierce_prefetch_poll(struct tierce_prefetch *p, struct tierce_prefetch_result *result)
{
    TIERCE_CHECK_MAGIC(p, TIERCE__PREFETCH_MAGIC);
    TIERCE_ASSERT(result->size == sizeof(*result));
    if (tierce__engine_inherited(p->engine)) {
        *result = (struct tierce_prefetch_result){.size = sizeof(*result), .final = true};
        return true;
    }
    (void)p->engine->lender->prefetch_wait(p, 0);
    tierce__lock_take(tierce__prefetch_lock(p));
    *result = p->result;
    TIERCE_DASSERT(result->memory_blocks <= result->blocks);
    tierce__lock_drop(tierce__prefetch_lock(p));
    return result->final;
}

int tierce_prefetch_wait(struct tierce_prefetch *p, uint32_t timeout_ms)
{
    TIERCE_CHECK_MAGIC(p, TIERCE__PREFETCH_MAGIC);
    if (tierce__engine_inherited(p->engine))
        return TIERCE_E_CLOSED;
    return p->engine->lender->prefetch_wait(p, timeout_ms) ? 0 : TIERCE_E_DEADLINE;
}

bool tierce__own_prefetch_wait(struct tierce_prefetch *p, uint32_t timeout_ms)
{
    uint64_t until_ns = tierce__deadline_in_ms(timeout_ms);
    uint64_t wake_ns = until_ns < p->deadline_ns ? until_ns : p->deadline_ns;
    tierce__lock_take(tierce__prefetch_lock(p));
    while (!p->result.final && tierce__cond_wait(&p->changed, tierce__prefetch_lock(p), wake_ns))
        ;
    tierce__lock_drop(tierce__prefetch_lock(p));
    expire(p);
    tierce__lock_take(tierce__prefetch_lock(p));
    bool in_time = true;
    while (!p->result.final && in_time)
        in_time = tierce__cond_wait(&p->changed, tierce__prefetch_lock(p), until_ns);
    bool final = p->result.final;
    tierce__lock_drop(tierce__prefetch_lock(p));
    return final;
}

void tierce_prefetch_end(struct tierce_prefetch *p)
{
    if (p == NULL)
        return;
    TIERCE_CHECK_MAGIC(p, TIERCE__PREFETCH_MAGIC);
    if (tierce__engine_inherited(p->engine))
        return;
    p->engine->lender->prefetch_end(p);
}

void tierce__own_prefetch_end(struct tierce_prefetch *p)
{
    struct tierce__lock *lock = tierce__prefetch_lock(p);
    tierce__lock_take(lock);
    p->cancelled = true;
    tierce__lock_drop(lock);
    tierce__prefetch_go_on(p, false);
    tierce__lock_take(lock);
    while (p->going_on)
        tierce__cond_wait(&p->changed, lock, TIERCE__DEADLINE_NEVER);
    TIERCE_ASSERT(p->result.final);
    TIERCE_DASSERT(p->refs > 0);
    TIERCE_DASSERT(!tierce__list_empty(&p->node));
    tierce__list_remove(&p->node);
    bool last = --p->refs == 0;
    tierce__lock_drop(lock);
    if (last)
        tierce__prefetch_free(p);
}
