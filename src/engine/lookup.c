/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/view.h"
#include "engine/run.h"
#include "engine/own_tiers.h"
#include "engine/observe/operate.h"
#include "engine/load/sibling.h"
#include "engine/why/requests.h"
#include "engine/why/why.h"

#include <string.h>

static int64_t beyond(uint64_t end, uint64_t from)
{
    return end > from ? (int64_t)(end - from) : 0;
}

/* Blocks that the inference engine holds itself are neither requested nor counted as hits. */
static void count_lookup(const struct tierce_view *view, uint64_t from_block, uint64_t to_block,
                         const struct tierce_found *found)
{
    TIERCE_DASSERT(found->memory_blocks <= found->blocks);
    TIERCE_DASSERT(found->blocks <= to_block);
    struct tierce_engine *engine = view->engine;
    int64_t tokens = view->full.geometry.block_tokens;
    tierce__count(engine, TIERCE__STAT_lookups, 1);
    tierce__count(engine, TIERCE__STAT_lookup_tokens, tokens * beyond(to_block, from_block));
    tierce__count(engine, TIERCE__STAT_lookup_hit_tokens,
                  tokens * beyond(found->blocks, from_block));
    tierce__count(engine, TIERCE__STAT_lookup_blocks, beyond(to_block, from_block));
    tierce__count(engine, TIERCE__STAT_lookup_hit_blocks, beyond(found->blocks, from_block));
    tierce__count(engine, TIERCE__STAT_lookup_memory_blocks,
                  beyond(found->memory_blocks, from_block));
}

static void end_line(struct tierce_engine *engine, struct tierce__line *line,
                     const struct tierce_found *found)
{
    TIERCE_DASSERT(found->memory_blocks <= found->blocks);
    uint64_t beyond_memory = found->blocks - found->memory_blocks;
    struct tierce__access_tier tiers[] = {
        {.name = engine->levels[0].tier->ops->name, .blocks = found->memory_blocks},
        {.name = engine->level_count > 1 ? engine->levels[1].tier->ops->name : "",
         .blocks = beyond_memory}};
    tierce__access_end(engine->access_log, line, tiers, engine->level_count > 1 ? 2 : 1);
}

/* A lookup in progress: the leading chunks that were found, and why the other chunks were not. */
struct lookup {
    struct tierce_view *view;
    const struct tierce_chain *chain;
    const struct tierce_lookup_opts *opts;
    uint64_t to_block;
    uint32_t levels; /* a bit for each that is searched */
    uint64_t deadline_ns;
    struct tierce__keys keys;
    size_t in_memory;
    size_t found;
    bool refused;   /* memory holds more, but the limit of pins is reached */
    bool not_worth; /* more chunks exist, but computing them is faster */
    struct tierce__unasked unasked;
    struct tierce_miss miss; /* of the first missing chunk */
    bool is_tail;            /* it is the partial chunk */
};

static bool only_memory(const struct lookup *l)
{
    return (l->opts->flags & TIERCE_LOOKUP_MEMORY_ONLY) != 0 ||
           (l->opts->tiers != 0 && l->levels == 1);
}

/* Leases the leading chunks that memory holds, as far as the bound on pins allows, and gives the
 * leases to the session. */
static int pin_prefix(struct lookup *l, const struct tierce__key *keys, size_t count)
{
    TIERCE_DASSERT(l->in_memory == 0 && !l->refused);
    struct tierce_view *view = l->view;
    uint64_t id = l->opts->session;
    if (count > 0) {
        struct tierce__session *session = tierce__session_alloc(view, id, count);
        if (session == NULL)
            return -ENOMEM;
        size_t found =
            tierce__storage_lease_prefix(view->engine, keys, count, session->bufs,
                                         tierce__session_room(view, id), &session->count);
        TIERCE_DASSERT(session->count <= found && found <= count);
        if (session->count > 0)
            l->in_memory = tierce__session_hold(session, keys, l->opts->pin_ms);
        else
            tierce__session_free(session);
        TIERCE_DASSERT(l->in_memory <= found);
        l->refused = found > l->in_memory;
        tierce__count(view->engine, TIERCE__STAT_pins_refused, (int64_t)(found - l->in_memory));
    }
    if (l->in_memory == 0)
        tierce_unpin(view, id);
    return 0;
}

/* Chunks [from, to), after the found chunks, exist, but computing them is faster. */
static void leave(const struct lookup *l, const uint8_t *places, size_t from, size_t to)
{
    struct tierce_engine *engine = l->view->engine;
    TIERCE_DASSERT(from <= to && l->found + to <= l->keys.count);
    TIERCE_DASSERT(from < to);
    tierce__why_count(engine, TIERCE_MISS_NOT_WORTH_LOADING);
    tierce__count(engine, TIERCE__STAT_blocks_not_worth,
                  (int64_t)((to - from) * l->view->chunk_blocks));
    tierce__session_leave(l->view, l->opts->session, l->found + from);
    while (from < to && places[from] == 0)
        from++;
    size_t end = from;
    while (end < to && places[end] == places[from] && l->found + end < l->keys.full_count)
        end++;
    if (end > from)
        tierce__cost_measure(l->view, places[from], &l->keys.keys[l->found + from], end - from);
}

/* How long the first answer of a remote store may be waited for. */
static uint64_t first_wait_ns(const struct lookup *l)
{
    const struct tierce_view *view = l->view;
    uint64_t from = (uint64_t)l->in_memory * view->chunk_blocks;
    uint64_t tokens = (uint64_t)beyond(l->to_block, from) * view->full.geometry.block_tokens;
    return tierce__cost_wait_ns(l->view, tokens);
}

/* Finds the chunks that the tiers hold after the chunks in memory, and that are worth loading. */
static int find_more(struct lookup *l)
{
    struct tierce_engine *engine = l->view->engine;
    tierce__why_prefetch(engine, &l->keys.keys[l->found]);
    if (l->levels == 1 && !l->refused)
        return 0; /* memory has been searched */
    size_t count = l->keys.count - l->found;
    TIERCE_DASSERT(l->found < l->keys.count);
    uint8_t small[256], *places = count > sizeof(small) ? tierce__alloc(count) : small;
    if (places == NULL)
        return -ENOMEM;
    bool waits = (l->opts->flags & TIERCE_LOOKUP_NO_WAIT) == 0;
    uint64_t wait_ns = first_wait_ns(l);
    struct tierce__search search = {
        .levels = l->levels,
        .deadline_ns = waits ? l->deadline_ns : 0,
        .part_ns = count > TIERCE__ASKS_ONE_TRIP && wait_ns < UINT64_MAX ? wait_ns : 0,
        .places = places};
    size_t there = tierce__storage_search_until(engine, &search, l->keys.keys + l->found, count);
    TIERCE_DASSERT(there <= count);
    l->unasked = search.unasked;
    size_t worth = tierce__cost_limit(l->view, places, there);
    TIERCE_DASSERT(worth <= there);
    l->not_worth = worth < there;
    if (l->not_worth)
        leave(l, places, worth, there);
    l->found += worth;
    if (places != small)
        tierce__free(places);
    return 0;
}

/* Whether a sibling's blocks may be promised like blocks in memory. The reference on its buffer
 * is moved to the session, or released. */
static bool keep_sibling(const struct lookup *l, struct tierce__sibling_hit *hit)
{
    bool in_memory = hit->buf != NULL;
    TIERCE_DASSERT(!in_memory || hit->level == 0);
    TIERCE_DASSERT(hit->blocks > 0);
    if ((l->opts->flags & TIERCE_LOOKUP_PIN) == 0) {
        tierce__buf_release(hit->buf);
    } else if (in_memory && !tierce__session_add(l->view, l->opts->session, &hit->key, hit->buf,
                                                 l->opts->pin_ms)) {
        tierce__count(l->view->engine, TIERCE__STAT_pins_refused, 1);
        in_memory = false;
    }
    return in_memory && l->found == l->in_memory;
}

/* Adds to the answer the blocks of the first missing chunk that another chunk has. */
static void add_sibling(const struct lookup *l, struct tierce_found *out)
{
    TIERCE_DASSERT(l->found < l->keys.count);
    struct tierce__sibling_hit hit;
    struct tierce__sibling_want want;
    tierce__sibling_aim(&want, l->view, l->chain, l->found, l->opts->from_block, l->to_block);
    want.levels = l->levels;
    want.deadline_ns = l->deadline_ns;
    tierce__sibling_find(l->view, &hit, &want);
    if (!tierce__sibling_pays(l->view, &hit, &want))
        return;
    bool in_memory = keep_sibling(l, &hit);
    TIERCE_DASSERT(hit.blocks > want.from);
    if (!in_memory && only_memory(l))
        return;
    out->blocks = (uint64_t)l->found * l->view->chunk_blocks + hit.blocks;
    TIERCE_DASSERT(out->memory_blocks <= out->blocks && out->blocks <= l->to_block);
    if (in_memory)
        out->memory_blocks = out->blocks;
    tierce__count(l->view->engine, TIERCE__STAT_lookup_sibling_blocks,
                  (int64_t)(hit.blocks - want.from));
}

/* Records why chunk `index` is not used, for a reason that does not depend on its past. */
static void note_unused(struct lookup *l, size_t index, enum tierce_miss_reason reason)
{
    TIERCE_DASSERT(index < l->keys.count);
    l->miss.reason = reason;
    l->miss.block = (uint64_t)index * l->view->chunk_blocks;
    memcpy(l->miss.hash, l->keys.keys[index].hash, TIERCE_HASH_BYTES);
}

/* In bypass: finds only blocks that the engine holds itself, and pins nothing. */
static int find_nothing(struct lookup *l, size_t first, struct tierce_found *out)
{
    TIERCE_DASSERT(first <= l->keys.count);
    if ((l->opts->flags & TIERCE_LOOKUP_PIN) != 0)
        tierce_unpin(l->view, l->opts->session);
    if (first < l->keys.count) {
        tierce__why_count(l->view->engine, TIERCE_MISS_BYPASSED);
        note_unused(l, first, TIERCE_MISS_BYPASSED);
    }
    out->blocks = tierce__keys_blocks(&l->keys, l->view, first, l->to_block);
    out->memory_blocks = out->blocks;
    return 0;
}

/* The missing blocks of chunk `index` begin with `block`. */
static void note_place(struct lookup *l, size_t index, uint64_t block)
{
    TIERCE_DASSERT(l->miss.reason != TIERCE_MISS_NONE && index < l->keys.count);
    l->miss.block = block;
    l->is_tail = index >= l->keys.full_count;
}

/* ---- groups whose chunks are used without those before them ---- */

/* Whether memory holds the whole run; with PIN, it is pinned then, as far as the bound allows. */
static int hold_run(struct lookup *l, size_t from, size_t count, bool *in_memory)
{
    const struct tierce__key *keys = l->keys.keys + from;
    size_t asked = (l->levels & 1u) != 0 ? count : 0;
    int rc = 0;
    if ((l->opts->flags & TIERCE_LOOKUP_PIN) != 0)
        rc = pin_prefix(l, keys, asked);
    else
        l->in_memory = tierce__storage_find(l->view->engine, keys, asked, 1, NULL);
    *in_memory = l->in_memory == count;
    return rc;
}

/* The longest run that is held; counts the reason why the longest requested run is not. */
static struct tierce__run find_run(struct lookup *l, struct tierce_found *out)
{
    struct tierce__run_search search = {
        .keys = &l->keys,
        .from_block = l->opts->from_block,
        .to_block = l->to_block,
        .levels = l->levels,
        .deadline_ns = (l->opts->flags & TIERCE_LOOKUP_NO_WAIT) != 0 ? 0 : l->deadline_ns};
    struct tierce__run run = tierce__run_search(l->view, &search);
    bool again = search.unasked.pending && (l->opts->flags & TIERCE_LOOKUP_AGAIN) != 0;
    if (search.missing < l->keys.count && !again) {
        tierce__why_missing(l->view->engine, &l->keys, search.missing, &search.unasked, &l->miss);
        note_place(l, search.missing, (uint64_t)search.missing * l->view->chunk_blocks);
    }
    out->pending = search.pending;
    return run;
}

static int find_sparse(struct lookup *l, struct tierce_found *out)
{
    struct tierce_view *view = l->view;
    uint64_t held = l->opts->from_block < l->to_block ? l->opts->from_block : l->to_block;
    struct tierce__run run = {0};
    bool in_memory = true;
    int rc = 0;
    if (tierce__engine_mode(view->engine) != TIERCE_MODE_BYPASS)
        run = find_run(l, out);
    else if (held < l->to_block && l->keys.count > 0)
        note_unused(l, l->keys.count - 1, TIERCE_MISS_BYPASSED);
    if (run.blocks > held && run.count > 0)
        rc = hold_run(l, run.from, run.count, &in_memory);
    else if ((l->opts->flags & TIERCE_LOOKUP_PIN) != 0)
        tierce_unpin(view, l->opts->session);
    /* A caller that loads only from memory is promised only pinned chunks. */
    bool is_found = run.blocks > held && (in_memory || !only_memory(l));
    out->blocks = is_found ? run.blocks : held;
    out->memory_blocks = in_memory ? out->blocks : held;
    TIERCE_DASSERT(out->memory_blocks <= out->blocks && out->blocks <= l->to_block);
    if (only_memory(l) && run.blocks < l->to_block)
        tierce__session_leave(view, l->opts->session, 0);
    return rc;
}

/* ---- all groups ---- */

/* Whether the caller will repeat the lookup, so that this answer is not counted. */
static bool comes_again(const struct tierce_lookup_opts *opts, const struct tierce_found *found)
{
    return found->pending && (opts->flags & TIERCE_LOOKUP_AGAIN) != 0;
}

/* Whether the first answer takes longer than a prompt that no store holds may wait, or is expected
 * to. The answers for many chunks come in part when that time is over. */
static bool is_too_late(const struct lookup *l)
{
    uint64_t wait_ns = first_wait_ns(l), now_ns = tierce__now_ns();
    if (!l->unasked.pending || l->found > l->in_memory || wait_ns == UINT64_MAX)
        return false;
    bool is_many = l->keys.count - l->found > TIERCE__ASKS_ONE_TRIP;
    if (is_many)
        wait_ns += TIERCE__ASKS_GRACE_NS;
    if (l->unasked.answer_ns > wait_ns)
        return true;
    if (!is_many && l->unasked.answer_ns > 0) /* a little late is better than given up */
        wait_ns *= 2;
    TIERCE_DASSERT(l->unasked.since_ns > 0 && l->unasked.since_ns <= now_ns);
    return now_ns - l->unasked.since_ns >= wait_ns;
}

static int find_all(struct lookup *l, struct tierce_found *out)
{
    struct tierce_engine *engine = l->view->engine;
    size_t first = (size_t)l->opts->from_block / l->view->chunk_blocks;
    if (first > l->keys.count)
        first = l->keys.count;
    const struct tierce__key *wanted = l->keys.keys + first;
    int rc = 0;
    if (tierce__engine_mode(engine) == TIERCE_MODE_BYPASS)
        return find_nothing(l, first, out);
    size_t asked = (l->levels & 1u) != 0 ? l->keys.count - first : 0;
    if ((l->opts->flags & TIERCE_LOOKUP_PIN) != 0)
        rc = pin_prefix(l, wanted, asked);
    else
        l->in_memory = tierce__storage_find(engine, wanted, asked, 1, NULL);
    l->in_memory += first;
    l->found = l->in_memory;
    TIERCE_DASSERT(l->in_memory <= l->keys.count);
    if (rc == 0 && !only_memory(l) && l->found < l->keys.count)
        rc = find_more(l);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(l->in_memory <= l->found && l->found <= l->keys.count);
    if (only_memory(l) && l->in_memory < l->keys.count)
        tierce__session_leave(l->view, l->opts->session, l->in_memory);
    out->blocks = tierce__keys_blocks(&l->keys, l->view, l->found, l->to_block);
    out->memory_blocks = tierce__keys_blocks(&l->keys, l->view, l->in_memory, l->to_block);
    TIERCE_DASSERT(out->memory_blocks <= out->blocks);
    if (l->not_worth)
        note_unused(l, l->found, TIERCE_MISS_NOT_WORTH_LOADING);
    if (l->found == l->keys.count || l->not_worth)
        return 0;
    out->pending = l->unasked.pending && !is_too_late(l);
    if (comes_again(l->opts, out))
        return 0;
    add_sibling(l, out);
    if (out->blocks == l->to_block)
        return 0;
    if (!only_memory(l))
        tierce__why_missing(engine, &l->keys, l->found, &l->unasked, &l->miss);
    else if (l->opts->session != 0)
        tierce__why_not_in_memory(engine, &l->keys, l->found, &l->miss);
    if (l->miss.reason != TIERCE_MISS_NONE)
        note_place(l, l->found, out->blocks);
    return 0;
}

int tierce_lookup(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                  const struct tierce_lookup_opts *opts, struct tierce_found *out)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    *out = (struct tierce_found){0};
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    bool pin = (opts->flags & TIERCE_LOOKUP_PIN) != 0;
    if (opts->size != sizeof(*opts) || opts->pin_ms > TIERCE_PIN_MS_MAX ||
        (pin && opts->session == 0))
        return TIERCE_E_ARGUMENT;
    struct tierce_found found = {0};
    int rc = view->engine->lender->lookup(view, chain, to_block, opts, &found);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(found.memory_blocks <= found.blocks && found.blocks <= to_block);
    *out = found;
    /* A request with several groups is counted once. */
    if (!comes_again(opts, out) && !tierce__view_is_sparse(view))
        count_lookup(view, opts->from_block, to_block, out);
    return 0;
}

/* Records the end of the lookup for `tierce why --request`. */
static void note_request(const struct lookup *l)
{
    struct tierce__request_lookup ended = {.session = l->opts->session,
                                           .ns = l->view->key.ns,
                                           .block_tokens = l->view->full.geometry.block_tokens,
                                           .chunk_blocks = l->view->chunk_blocks,
                                           .to_block = l->to_block,
                                           .only_memory = only_memory(l),
                                           .is_tail = l->is_tail,
                                           .miss = l->miss};
    tierce__requests_looked(l->view->engine->requests, &ended);
}

int tierce__own_lookup(struct tierce_view *view, const struct tierce_chain *chain,
                       uint64_t to_block, const struct tierce_lookup_opts *opts,
                       struct tierce_found *out)
{
    struct tierce_engine *engine = view->engine;
    bool memory_only = (opts->flags & TIERCE_LOOKUP_MEMORY_ONLY) != 0;
    struct lookup l = {.view = view,
                       .chain = chain,
                       .opts = opts,
                       .to_block = to_block,
                       .deadline_ns = tierce__deadline_in_ms(tierce__lookup_wait_ms(view, opts)),
                       .levels = memory_only ? 1u : tierce__levels_of(engine, opts->tiers)};
    int rc = tierce__keys_init(&l.keys, view, chain, to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;
    tierce__ahead_look(view, chain, &l.keys, opts->session);
    struct tierce__line line;
    tierce__view_access(view, &line, "lookup", chain,
                        (struct tierce__access_what){
                            .count = to_block, .request = opts->session, .held = opts->from_block});
    tierce__access_tag(&line, opts->tag);
    rc = tierce__view_is_sparse(view) ? find_sparse(&l, out) : find_all(&l, out);
    TIERCE_DASSERT(rc < 0 || (out->memory_blocks <= out->blocks && out->blocks <= to_block));
    if (rc == 0 && !comes_again(opts, out)) {
        end_line(engine, &line, out);
        note_request(&l);
    }
    tierce__line_clear(&line);
    tierce__keys_fini(&l.keys);
    return rc;
}

int tierce_durable(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                   uint64_t *blocks)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    *blocks = 0;
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    return view->engine->lender->durable(view, chain, to_block, blocks);
}

int tierce__own_durable(struct tierce_view *view, const struct tierce_chain *chain,
                        uint64_t to_block, uint64_t *blocks)
{
    TIERCE_DASSERT(*blocks == 0);
    if (tierce__view_is_sparse(view))
        return 0;
    struct tierce__keys keys;
    int rc = tierce__keys_init(&keys, view, chain, to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;
    *blocks = tierce__keys_blocks(
        &keys, view, tierce__storage_find_durable(view->engine, keys.keys, keys.count), to_block);
    TIERCE_DASSERT(*blocks <= to_block);
    tierce__keys_fini(&keys);
    return 0;
}
