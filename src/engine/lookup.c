/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/engine_private.h"
#include "engine/operate.h"
#include "engine/why.h"

static int64_t beyond(uint64_t end, uint64_t from)
{
    return end > from ? (int64_t)(end - from) : 0;
}

/* Leases the leading chunks that memory holds, as far as the bound on pins allows, and gives the
 * leases to the session. *pinned = how many. */
static int pin_prefix(struct tierce_view *view, const struct tierce_lookup_opts *opts,
                      const struct tierce__key *keys, size_t count, size_t *pinned)
{
    uint64_t session = opts->session;
    *pinned = 0;
    if (count == 0) {
        tierce_unpin(view, session);
        return 0;
    }
    struct tierce__buf **bufs = tierce__calloc(count, sizeof(struct tierce__buf *));
    if (bufs == NULL)
        return -ENOMEM;
    uint64_t room = tierce__session_room(view, session);
    size_t n = 0;
    for (; n < count; n++) {
        struct tierce__buf *buf = tierce__storage_lease(view->engine, &keys[n]);
        if (buf == NULL)
            break; /* evicted since it was found */
        if (buf->bytes > room) {
            tierce__buf_release(buf);
            tierce__count(view->engine, TIERCE__STAT_pins_refused, (int64_t)(count - n));
            break;
        }
        room -= buf->bytes;
        bufs[n] = buf;
    }
    int rc = 0;
    size_t held = n;
    if (n > 0)
        rc = tierce__session_hold(view, session, keys, bufs, &held, opts->pin_ms);
    else
        tierce_unpin(view, session);
    tierce__free(bufs);
    if (rc == 0) {
        tierce__count(view->engine, TIERCE__STAT_pins_refused, (int64_t)(n - held));
        *pinned = held;
    }
    return rc;
}

/* Blocks that the inference engine holds itself are neither asked for nor hits. */
static void count_lookup(struct tierce_engine *engine, uint64_t from_block, uint64_t to_block,
                         const struct tierce_found *found)
{
    tierce__count(engine, TIERCE__STAT_lookups, 1);
    tierce__count(engine, TIERCE__STAT_lookup_blocks, beyond(to_block, from_block));
    tierce__count(engine, TIERCE__STAT_lookup_hit_blocks, beyond(found->blocks, from_block));
    tierce__count(engine, TIERCE__STAT_lookup_memory_blocks,
                  beyond(found->memory_blocks, from_block));
}

static void end_line(struct tierce_engine *engine, struct tierce__access_line *line,
                     const struct tierce_found *found)
{
    uint64_t beyond_memory = found->blocks - found->memory_blocks;
    struct tierce__access_tier tiers[] = {
        {.name = engine->rungs[0].tier->ops->name, .blocks = found->memory_blocks},
        {.name = engine->rung_count > 1 ? engine->rungs[1].tier->ops->name : "",
         .blocks = beyond_memory}};
    tierce__access_end(engine->access_log, line, tiers, engine->rung_count > 1 ? 2 : 1);
}

/* How many keys behind the first `from` the tiers hold that are worth loading: *more. Counts why it
 * is not all. */
static int find_more(struct tierce_view *view, const struct tierce__keys *keys, uint32_t rungs,
                     size_t from, size_t *more)
{
    struct tierce_engine *engine = view->engine;
    struct tierce__unasked unasked;
    size_t count = keys->count - from;
    uint8_t small[256], *places = count > sizeof(small) ? tierce__alloc(count) : small;
    if (places == NULL)
        return -ENOMEM;
    size_t there = tierce__storage_search(engine, rungs, keys->keys + from, count, places, &unasked);
    *more = tierce__cost_limit(view, places, there);
    if (*more < there) {
        tierce__count(engine, TIERCE__STAT_misses_not_worth_loading, 1);
        tierce__count(engine, TIERCE__STAT_blocks_not_worth,
                      (int64_t)((there - *more) * view->chunk_blocks));
    } else if (there < count) {
        tierce__why_count(engine, keys, from + there, &unasked);
    }
    if (places != small)
        tierce__free(places);
    return 0;
}

int tierce_lookup(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                  const struct tierce_lookup_opts *opts, struct tierce_found *out)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    *out = (struct tierce_found){0};
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    if (opts->size != sizeof(*opts) || opts->pin_ms > TIERCE_PIN_MS_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__keys keys;
    int rc = tierce__keys_init(&keys, view, chain, to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;

    struct tierce_engine *engine = view->engine;
    struct tierce__access_line line;
    tierce__view_access(view, &line, "lookup", chain, to_block, opts->from_block);
    tierce__access_tag(&line, opts->tag);
    uint32_t rungs = tierce__rungs_of(engine, opts->tiers);
    bool memory_only =
        (opts->flags & TIERCE_LOOKUP_MEMORY_ONLY) != 0 || (opts->tiers != 0 && rungs == 1);
    size_t first = (size_t)opts->from_block / view->chunk_blocks;
    if (first > keys.count)
        first = keys.count;
    const struct tierce__key *wanted = keys.keys + first;
    bool bypassed = tierce__engine_mode(engine) == TIERCE_MODE_BYPASS;
    size_t in_memory = 0;
    if (!bypassed && (rungs & 1u) != 0)
        in_memory = tierce__storage_find(engine, wanted, keys.count - first, 1, NULL);
    if ((opts->flags & TIERCE_LOOKUP_PIN) != 0)
        rc = pin_prefix(view, opts, wanted, in_memory, &in_memory);
    in_memory += first;
    size_t found = in_memory;
    if (rc == 0 && !memory_only && found < keys.count) {
        size_t more = 0;
        if (bypassed)
            tierce__count(engine, TIERCE__STAT_misses_bypassed, 1);
        else
            rc = find_more(view, &keys, rungs, found, &more);
        found += more;
    }
    if (rc == 0) {
        out->blocks = tierce__keys_blocks(&keys, view, found, to_block);
        out->memory_blocks = tierce__keys_blocks(&keys, view, in_memory, to_block);
        count_lookup(engine, opts->from_block, to_block, out);
        end_line(engine, &line, out);
    }
    tierce__access_drop(&line);
    tierce__keys_fini(&keys);
    return rc;
}

int tierce_durable(struct tierce_view *view, const struct tierce_chain *chain, uint64_t to_block,
                   uint64_t *blocks)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    *blocks = 0;
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    struct tierce__keys keys;
    int rc = tierce__keys_init(&keys, view, chain, to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;
    *blocks = tierce__keys_blocks(
        &keys, view, tierce__storage_find_durable(view->engine, keys.keys, keys.count), to_block);
    tierce__keys_fini(&keys);
    return 0;
}
