/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaim/orphans.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    AT_ONCE = 1024, /* keys of a scan, and blocks that are removed together */
    SCANS_AT_ONCE = 8,
    AGAIN_US =
        1000000, /* delay after an error of the store, and while a hole's key is being written */
    PAUSE_SHARE = 10, /* pause between two sweeps, as a multiple of the last sweep's duration */
};

void tierce__orphan_sweep_clear(struct tierce__orphan_sweep *sweep)
{
    tierce__free(sweep->links);
    tierce__free(sweep->holes);
    tierce__free(sweep->victims);
    *sweep = (struct tierce__orphan_sweep){.not_before_us = sweep->not_before_us};
}

/* ---- holes that are open --------------------------------------------------------------------- */

/* Selects the holes that are open: keys that are indexed again are closed, keys that a session is
 * writing are deferred. The open ones are moved to the front. */
static int find_open(struct tierce__live *live, int64_t *keys, size_t *count,
                     struct tierce__arena *arena)
{
    TIERCE_DASSERT(*count > 0);
    struct tierce__record *records = tierce__arena_calloc(arena, *count, sizeof(*records));
    bool *found = tierce__arena_calloc(arena, *count, sizeof(*found));
    size_t open = 0;
    if (records == NULL || found == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(live->sweep.state == TIERCE__ORPHANS_IDLE ||
                   live->sweep.state == TIERCE__ORPHANS_FIND);
    int rc = tierce__meta_index_get(live->index, keys, *count, arena, records, found);
    for (size_t i = 0; rc == 0 && i < *count; i++) {
        if (found[i])
            tierce__holes_close(&live->holes, keys[i]);
    }
    if (rc < 0)
        return rc;
    tierce__lock_take(&live->lock);
    for (size_t i = 0; i < *count; i++) {
        if (!found[i] && tierce__live_claim(live, keys[i]) == NULL)
            keys[open++] = keys[i];
    }
    tierce__lock_drop(&live->lock);
    TIERCE_ASSERT(open <= *count);
    *count = open;
    return 0;
}

/* Returns whether there are holes to sweep. */
static int list_open(struct tierce__live *live, struct tierce__arena *arena, int64_t **keys,
                     size_t *count)
{
    int rc = tierce__holes_list(&live->holes, arena, keys, count);
    return rc < 0 || *count == 0 ? rc : find_open(live, *keys, count, arena);
}

/* ---- scanning -------------------------------------------------------------------------------- */

static int add_link(struct tierce__orphan_sweep *sweep, int64_t key, int64_t parent)
{
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_SCAN);
    if (TIERCE__GROW(sweep->links, sweep->link_room, sweep->link_count + 1, AT_ONCE) < 0)
        return -ENOMEM;
    TIERCE_ASSERT(sweep->link_count < sweep->link_room);
    sweep->links[sweep->link_count++] = (struct tierce__orphan_link){key, parent};
    return 0;
}

static int scan_page(struct tierce__live *live, struct tierce__arena *arena)
{
    struct tierce__orphan_sweep *sweep = &live->sweep;
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_SCAN);
    int64_t keys[AT_ONCE];
    bool found[AT_ONCE];
    size_t count = 0;
    uint64_t cursor = sweep->cursor;
    tierce__arena_reset(arena);
    struct tierce__record *records = tierce__arena_calloc(arena, AT_ONCE, sizeof(*records));
    if (records == NULL)
        return -ENOMEM;
    int rc = live->space->ops->scan(live->space, &cursor, AT_ONCE, keys, &count);
    TIERCE_ASSERT(count <= AT_ONCE);
    if (rc == 0 && count > 0)
        rc = live->space->ops->get(live->space, keys, count, arena, records, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (found[i] && records[i].has_parent)
            rc = add_link(sweep, keys[i], records[i].parent);
    }
    if (rc < 0)
        return rc;
    sweep->cursor = cursor;
    if (cursor == 0)
        sweep->state = TIERCE__ORPHANS_FIND;
    return 0;
}

/* ---- successors ------------------------------------------------------------------------------ */

static int by_parent(const void *a, const void *b)
{
    const struct tierce__orphan_link *x = a, *y = b;
    if (x->parent != y->parent)
        return x->parent < y->parent ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* The index of the first sorted link with that parent, or its insertion point. */
static size_t first_link(const struct tierce__orphan_sweep *sweep, int64_t parent)
{
    size_t low = 0, high = sweep->link_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sweep->links[middle].parent < parent)
            low = middle + 1;
        else
            high = middle;
    }
    TIERCE_DASSERT(low <= sweep->link_count);
    TIERCE_DASSERT(low == sweep->link_count || sweep->links[low].parent >= parent);
    return low;
}

/* Adds the keys that follow `parent`. Each link is used once, so that cycles end. */
static void take_children(struct tierce__orphan_sweep *sweep, int64_t parent, bool *is_taken)
{
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_FIND);
    for (size_t i = first_link(sweep, parent);
         i < sweep->link_count && sweep->links[i].parent == parent && !is_taken[i]; i++) {
        is_taken[i] = true;
        TIERCE_ASSERT(sweep->victim_count < sweep->link_count);
        TIERCE_DASSERT(sweep->links[i].parent == parent);
        sweep->victims[sweep->victim_count++] = sweep->links[i].key;
    }
}

/* Lists all blocks behind open holes, in order of the distance. */
static int find_victims(struct tierce__live *live, struct tierce__arena *arena)
{
    struct tierce__orphan_sweep *sweep = &live->sweep;
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_FIND);
    int64_t *holes;
    size_t count;
    tierce__arena_reset(arena);
    int rc = list_open(live, arena, &holes, &count);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(sweep->holes == NULL && sweep->victim_count == 0);
    sweep->holes = tierce__calloc(count + 1, sizeof(*sweep->holes));
    sweep->victims = tierce__calloc(sweep->link_count + 1, sizeof(*sweep->victims));
    bool *is_taken = tierce__calloc(sweep->link_count + 1, sizeof(*is_taken));
    if (sweep->holes != NULL && sweep->victims != NULL && is_taken != NULL) {
        memcpy(sweep->holes, holes, count * sizeof(*holes));
        sweep->hole_count = count;
        if (sweep->link_count > 0)
            qsort(sweep->links, sweep->link_count, sizeof(*sweep->links), by_parent);
        for (size_t i = 0; i < count; i++)
            take_children(sweep, holes[i], is_taken);
        for (size_t i = 0; i < sweep->victim_count; i++)
            take_children(sweep, sweep->victims[i], is_taken);
        sweep->state = TIERCE__ORPHANS_REMOVE;
    }
    rc = sweep->state == TIERCE__ORPHANS_REMOVE ? 0 : -ENOMEM;
    tierce__free(is_taken);
    tierce__free(sweep->links);
    sweep->links = NULL;
    sweep->link_count = sweep->link_room = 0;
    return rc;
}

/* ---- removing -------------------------------------------------------------------------------- */

struct orphan_removal {
    const struct tierce__orphan_sweep *sweep;
    struct tierce__reclaimed *gone;
    size_t gone_count, gone_max;
};

/* Called under the key's lock. Blocks that were stored since the sweep began stay. */
static bool is_orphan(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct orphan_removal *r = arg;
    TIERCE_ASSERT(r->gone_count <= r->gone_max);
    TIERCE_ASSERT(r->sweep->state == TIERCE__ORPHANS_REMOVE);
    (void)i;
    bool goes = record->has_parent && record->stored_us <= r->sweep->began_us;
    for (size_t l = 0; goes && l < record->location_count && r->gone_count < r->gone_max; l++) {
        struct tierce__reclaimed *gone = &r->gone[r->gone_count++];
        gone->key = key;
        memcpy(gone->location_id, record->locations[l].id, sizeof(gone->location_id));
    }
    return goes;
}

/* Removes the farthest blocks first, so that no new holes arise. */
static int remove_some(struct tierce__live *live, const struct tierce__orphan_sweeping *how,
                       struct tierce__removed *swept, struct tierce__arena *arena)
{
    enum { LOCATIONS_MAX = 4 }; /* locations per block, on average, that are reported */
    struct tierce__orphan_sweep *sweep = &live->sweep;
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_REMOVE && sweep->victim_count > 0);
    size_t count = sweep->victim_count < AT_ONCE ? sweep->victim_count : AT_ONCE;
    struct orphan_removal removing = {.sweep = sweep, .gone_max = count * LOCATIONS_MAX};
    struct tierce__removed removed = {0};
    struct tierce__removal removal = {.due_us =
                                          tierce__locator_now_us(live->locator) + how->delay_us,
                                      .wanted = is_orphan,
                                      .wanted_arg = &removing};
    int64_t keys[AT_ONCE];
    tierce__arena_reset(arena);
    removing.gone = tierce__arena_alloc(arena, (removing.gone_max + 1) * sizeof(*removing.gone));
    if (removing.gone == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        keys[i] = sweep->victims[sweep->victim_count - 1 - i];
    int rc = tierce__live_remove(live, keys, count, &removal, &removed);
    TIERCE_DASSERT(removed.keys <= count);
    swept->keys += removed.keys;
    swept->locations += removed.locations;
    swept->bytes += removed.bytes;
    size_t told = removed.locations < removing.gone_count ? removed.locations : removing.gone_count;
    if (told > 0 && how->submitted != NULL)
        how->submitted(how->arg, live->instance.id, removing.gone, told, how->delay_us);
    if (rc < 0)
        return rc;
    sweep->victim_count -= count;
    return 0;
}

static int end_sweep(struct tierce__live *live, int64_t now_us)
{
    struct tierce__orphan_sweep *sweep = &live->sweep;
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_REMOVE && sweep->victim_count == 0);
    for (size_t i = 0; i < sweep->hole_count; i++)
        tierce__holes_close(&live->holes, sweep->holes[i]);
    int64_t pause_us = (now_us - sweep->began_us) * PAUSE_SHARE;
    tierce__orphan_sweep_clear(sweep);
    sweep->not_before_us = now_us + (pause_us > 0 ? pause_us : 0);
    return tierce__live_drop_hole_notes(live);
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* A sweep begins only if a hole is open: most are closed by the call that made them. */
static int begin_sweep(struct tierce__live *live, struct tierce__arena *arena, int64_t now_us)
{
    struct tierce__orphan_sweep *sweep = &live->sweep;
    TIERCE_ASSERT(sweep->state == TIERCE__ORPHANS_IDLE);
    TIERCE_ASSERT(sweep->link_count == 0 && sweep->victim_count == 0 && sweep->hole_count == 0);
    int64_t *holes;
    size_t count;
    int rc = list_open(live, arena, &holes, &count);
    if (rc == 0 && count == 0) {
        sweep->not_before_us = now_us + AGAIN_US; /* until the writers have finished */
        return tierce__live_drop_hole_notes(live);
    }
    if (rc == 0) {
        TIERCE_DASSERT(count > 0);
        sweep->state = TIERCE__ORPHANS_SCAN;
        sweep->cursor = 0;
        sweep->began_us = now_us;
    }
    return rc;
}

static int sweep_some(struct tierce__live *live, const struct tierce__orphan_sweeping *how,
                      struct tierce__removed *swept, struct tierce__arena *arena, int64_t now_us)
{
    TIERCE_DASSERT(how->delay_us >= 0);
    struct tierce__orphan_sweep *sweep = &live->sweep;
    int rc = 0;
    for (int i = 0; rc == 0 && sweep->state == TIERCE__ORPHANS_SCAN && i < SCANS_AT_ONCE; i++)
        rc = scan_page(live, arena);
    if (rc == 0 && sweep->state == TIERCE__ORPHANS_FIND)
        rc = find_victims(live, arena);
    if (rc == 0 && sweep->state == TIERCE__ORPHANS_REMOVE && sweep->victim_count > 0)
        rc = remove_some(live, how, swept, arena);
    if (rc == 0 && sweep->state == TIERCE__ORPHANS_REMOVE && sweep->victim_count == 0)
        rc = end_sweep(live, now_us);
    return rc;
}

void tierce__live_sweep_orphans(struct tierce__live *live,
                                const struct tierce__orphan_sweeping *how,
                                struct tierce__removed *swept, int64_t *next_us)
{
    struct tierce__orphan_sweep *sweep = &live->sweep;
    struct tierce__arena arena = {0};
    int64_t now_us = tierce__locator_now_us(live->locator);
    int rc = 0;
    bool is_going = sweep->state != TIERCE__ORPHANS_IDLE;
    if (!is_going && !tierce__holes_any(&live->holes))
        return;
    if (!is_going && sweep->not_before_us <= now_us)
        rc = begin_sweep(live, &arena, now_us);
    if (rc == 0)
        rc = sweep_some(live, how, swept, &arena, now_us);
    if (rc < 0) {
        tierce__log(TIERCE_LOG_WARN, "manager.sweep_failed", "instance=%s error=%s",
                    live->instance.id, tierce_error_name(rc));
        tierce__orphan_sweep_clear(sweep);
        sweep->not_before_us = now_us + AGAIN_US;
    }
    tierce__arena_clear(&arena);
    is_going = sweep->state != TIERCE__ORPHANS_IDLE;
    TIERCE_ASSERT(rc == 0 || !is_going);
    int64_t due_us = is_going ? now_us : sweep->not_before_us;
    if ((is_going || tierce__holes_any(&live->holes)) && due_us < *next_us)
        *next_us = due_us;
}
