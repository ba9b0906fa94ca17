/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which named values there are: keys from the tiers' own indexes, names from the objects.
 *
 * A walk has a pass for the small values of memory, one for each tier, and two more. Values move
 * between the tiers during the walk, and each should be reported once:
 *
 *     small values  those in memory before the walk began (tierce__small_coming, buf->since)
 *     memory        the same for larger values
 *     slower tiers  all other values
 *     memory again  values that came to memory since, unless their slower tier still holds them
 *     small values  the same for small values
 *       again
 *
 * So a value that is not replaced is reported at least once, and twice only if it was evicted from
 * memory between the first passes and the slower tier's. A value that is replaced may be reported
 * twice. It may be missed in two cases: it is evicted to a slower tier behind the walk's position
 * there, or it is replaced more than once and becomes large between the last two passes. The
 * cursor carries the pass, the number of the walk and the place in the tier's index or among the
 * small values; it stays below 2^53, because some clients keep it as a double.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "engine/objects/objects_private.h"
#include "engine/own_tiers.h"

#define PAGE_PLACES 128u   /* of a tier's index at a time */
#define PLACES_MAX  16384u /* for one call */
#define STEP_COST   16u    /* of a look at small values that finds none, in places */

/* Keys of a space among some places of a tier. */
struct objects_page {
    uint32_t ns;
    size_t count;
    struct tierce__key keys[PAGE_PLACES];
};

static void note_key(void *arg, const struct tierce__tier_event *event)
{
    struct objects_page *page = arg;
    TIERCE_ASSERT(page->count < PAGE_PLACES);
    TIERCE_DASSERT(event->admitted);
    if (event->key->ns == page->ns)
        page->keys[page->count++] = *event->key;
}

/* False: the tier has no more. */
static bool next_page(struct tierce__objects *space, struct objects_page *page, size_t level,
                      uint32_t *place)
{
    TIERCE_DASSERT(level < space->engine->level_count);
    struct tierce__tier *tier = space->engine->levels[level].tier;
    page->ns = space->space.key.ns;
    page->count = 0;
    return tier->ops->scan(tier, place, PAGE_PLACES, note_key, page);
}

/* Keys of a page that no faster level holds and that are not small values in memory. */
static uint64_t count_new(struct tierce_engine *engine, const struct objects_page *page,
                          size_t level)
{
    TIERCE_DASSERT(page->count <= PAGE_PLACES && level < engine->level_count);
    struct tierce__unasked unasked;
    uint64_t count = 0;
    for (size_t i = 0; i < page->count; i++)
        count += !tierce__smalls_has(engine->smalls, &page->keys[i], NULL) &&
                 (level == 0 || tierce__storage_search(engine, (1u << level) - 1, &page->keys[i], 1,
                                                       NULL, &unasked) == 0);
    return count;
}

uint64_t tierce__objects_count(struct tierce__objects *space)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    struct objects_page page;
    if (tierce__engine_inherited(engine))
        return 0;
    uint64_t count = tierce__smalls_count(engine->smalls, &space->space.key);
    for (size_t level = 0; level < engine->level_count; level++) {
        uint32_t place = 0;
        bool more = true;
        while (more) {
            more = next_page(space, &page, level, &place);
            count += count_new(engine, &page, level);
        }
    }
    return count;
}

/* ---- a walk ---------------------------------------------------------------------------------- */

enum { PLACE_BITS = 29, WALK_BITS = 20, PASS_BITS = 4 };
#define PLACE_MASK  ((1ULL << PLACE_BITS) - 1)
#define WALK_MASK   ((1ULL << WALK_BITS) - 1)
#define PASS_SMALLS 0u
#define PASS_MEMORY 1u /* and the slower levels, each at its own number + 1 */

_Static_assert((1ULL << PLACE_BITS) * PAGE_PLACES >= 1ULL << 32,
               "every slot of a tier fits the cursor");
_Static_assert(PLACE_BITS >= TIERCE__SMALLS_CURSOR_BITS,
               "every page of small values fits the cursor");
_Static_assert(TIERCE__TIERS_MAX + 3 <= 1u << PASS_BITS, "every pass number fits the cursor");
_Static_assert(PLACE_BITS + WALK_BITS + PASS_BITS <= 53, "a double holds a cursor");

struct objects_walk {
    struct tierce__objects *space;
    size_t level_count;
    size_t pass;     /* PASS_SMALLS; each level; memory again; small values again */
    uint64_t number; /* values in memory before the walk have a smaller number */
    uint64_t place;  /* in the tier's index, or the cursor of small values */
    uint64_t deadline_ns;
    uint64_t told;
    uint32_t looked; /* places of tiers, and small values, in this call */
    tierce__objects_each_fn *each;
    void *arg;
};

static bool has_ended(const struct objects_walk *walk)
{
    return walk->pass >= walk->level_count + 3;
}

static bool is_of_smalls(const struct objects_walk *walk)
{
    return walk->pass == PASS_SMALLS || walk->pass == walk->level_count + 2;
}

/* The state of a pass over a tier. */
static size_t level_of(const struct objects_walk *walk)
{
    TIERCE_DASSERT(!is_of_smalls(walk) && !has_ended(walk));
    return walk->pass <= walk->level_count ? walk->pass - PASS_MEMORY : 0;
}

static void read_cursor(struct objects_walk *walk, uint64_t cursor)
{
    _Atomic uint64_t *walks = &walk->space->engine->object_walks;
    if (cursor == 0) {
        walk->number = atomic_fetch_add(walks, 1) + 2;
        return;
    }
    uint64_t last = atomic_load(walks) + 1;
    walk->number = last - ((last - (cursor >> PLACE_BITS)) & WALK_MASK);
    walk->pass = (size_t)(cursor >> (PLACE_BITS + WALK_BITS));
    walk->place = cursor & PLACE_MASK;
    if (!is_of_smalls(walk))
        walk->place *= PAGE_PLACES;
}

static uint64_t write_cursor(const struct objects_walk *walk)
{
    uint64_t place = is_of_smalls(walk) ? walk->place : walk->place / PAGE_PLACES;
    TIERCE_DASSERT(place <= PLACE_MASK && walk->pass < 1u << PASS_BITS);
    return (uint64_t)walk->pass << (PLACE_BITS + WALK_BITS) |
           (walk->number & WALK_MASK) << PLACE_BITS | place;
}

/* ---- which pass reports it ------------------------------------------------------------------- */

/* The state of a key in memory. */
struct objects_held {
    bool is_there;
    bool is_before;   /* it was there before the walk began */
    bool is_becoming; /* becoming visible; certainly not for another pass */
    bool is_promoted; /* from a slower tier */
};

static struct objects_held held_small(const struct objects_walk *walk,
                                      struct tierce__small_coming coming)
{
    uint32_t age = ((uint32_t)walk->number - coming.since) & TIERCE__SMALL_SINCE_MASK;
    return (struct objects_held){.is_there = true,
                                 .is_before = age > 0 && age <= TIERCE__SMALL_SINCE_MASK / 2,
                                 .is_promoted = coming.is_promoted};
}

/* buf: the buffer in the memory tier, or NULL. */
static struct objects_held held_under(const struct objects_walk *walk,
                                      const struct tierce__key *key, struct tierce__buf *buf)
{
    TIERCE_DASSERT(key->ns == walk->space->space.key.ns);
    struct tierce__small_coming coming;
    if (buf != NULL) {
        uint64_t since = atomic_load(&buf->since);
        return (struct objects_held){.is_there = true,
                                     .is_before = since < walk->number,
                                     .is_becoming = since == 0,
                                     .is_promoted = buf->source != 0};
    }
    if (tierce__smalls_has(walk->space->engine->smalls, key, &coming))
        return held_small(walk, coming);
    return (struct objects_held){0};
}

/* Remote tiers have no pass. */
static bool slower_pass_told(const struct objects_walk *walk, const struct tierce__key *key)
{
    struct tierce_engine *engine = walk->space->engine;
    struct tierce__unasked unasked;
    uint32_t levels = tierce__levels_local(engine) & ~1u;
    return levels != 0 && tierce__storage_search(engine, levels, key, 1, NULL, &unasked) == 1;
}

/* Whether this pass reports the value. */
static bool is_turn(const struct objects_walk *walk, const struct tierce__key *key,
                    struct objects_held held)
{
    TIERCE_DASSERT(!has_ended(walk));
    if (walk->pass <= PASS_MEMORY)
        return held.is_before;
    if (held.is_before && !held.is_becoming)
        return false;
    return walk->pass <= walk->level_count ||
           (held.is_there && (!held.is_promoted || !slower_pass_told(walk, key)));
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Reports one value. Returns 0, also if the value is gone or another pass reports it; or the error
 * of reading it. */
static int tell(struct objects_walk *walk, const struct tierce__key *key)
{
    TIERCE_DASSERT(!is_of_smalls(walk));
    struct tierce__objects *space = walk->space;
    struct tierce__object_form form;
    struct tierce__buf *buf = tierce__objects_accept(
        space, &form, tierce__storage_lease(space->engine, key), key, NULL, 0);
    int rc = 0;
    if (!is_turn(walk, key, held_under(walk, key, buf))) {
        tierce__buf_release(buf);
        return 0;
    }
    if (buf == NULL && level_of(walk) > 0)
        rc = tierce__objects_peek(space, &form, &buf, level_of(walk), key, walk->deadline_ns);
    if (rc < 0)
        return rc == TIERCE_E_MISS ? 0 : rc;
    if (buf == NULL)
        return 0;
    walk->each(walk->arg, &form.what);
    walk->told++;
    tierce__buf_release(buf);
    return 0;
}

/* Reports values of a tier from the walk's place on and advances it; *more: the tier has more. */
static int tell_page(struct objects_walk *walk, bool *more)
{
    TIERCE_DASSERT(!is_of_smalls(walk) && !has_ended(walk));
    struct objects_page page;
    uint32_t place = (uint32_t)walk->place;
    walk->looked += PAGE_PLACES;
    *more = next_page(walk->space, &page, level_of(walk), &place);
    for (size_t i = 0; i < page.count; i++) {
        int rc = tell(walk, &page.keys[i]);
        if (rc < 0)
            return rc;
    }
    walk->place = place;
    return 0;
}

static void tell_small(void *arg, const struct tierce__object_what *what,
                       struct tierce__small_coming coming)
{
    struct objects_walk *walk = arg;
    TIERCE_DASSERT(is_of_smalls(walk));
    walk->looked++;
    struct tierce__key key = tierce__object_key(&walk->space->space, what->name, what->name_bytes);
    if (!is_turn(walk, &key, held_small(walk, coming)))
        return;
    /* A scan of small values verifies no checksums: there is no value under a damaged name. */
    if (!tierce__smalls_has(walk->space->engine->smalls, &key, NULL))
        return;
    walk->each(walk->arg, what);
    walk->told++;
}

static bool tell_smalls(struct objects_walk *walk)
{
    TIERCE_DASSERT(is_of_smalls(walk));
    walk->looked += STEP_COST;
    return tierce__smalls_scan(walk->space->engine->smalls, &walk->place, &walk->space->space.key,
                               tell_small, walk);
}

int tierce__objects_scan(struct tierce__objects *space, uint64_t *cursor, uint32_t count,
                         tierce__objects_each_fn *each, void *arg)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    struct objects_walk walk = {.space = space,
                                .level_count = engine->level_count,
                                .deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms),
                                .each = each,
                                .arg = arg};
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    read_cursor(&walk, *cursor);
    while (!has_ended(&walk) && walk.told < count && walk.looked < PLACES_MAX) {
        bool more = false, is_first = walk.looked == 0;
        int rc = 0;
        if (is_of_smalls(&walk))
            more = tell_smalls(&walk);
        else
            rc = tell_page(&walk, &more);
        if (rc < 0) /* the next call begins where this page does, if there was any before it */
            return is_first ? rc : 0;
        if (!more) {
            walk.pass++;
            walk.place = 0;
        }
        *cursor = has_ended(&walk) ? 0 : write_cursor(&walk);
    }
    if (has_ended(&walk))
        *cursor = 0;
    return 0;
}
