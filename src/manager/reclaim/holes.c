/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"
#include "manager/locate/notes.h"
#include "manager/reclaim/orphans.h"

#include <errno.h>
#include <string.h>

enum { ROOM_FIRST = 64 };

void tierce__holes_init(struct tierce__holes *holes)
{
    tierce__lock_init(&holes->lock, TIERCE__LOCK_HOLES);
}

static struct tierce__hole *hole_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__hole, node);
}

void tierce__holes_fini(struct tierce__holes *holes)
{
    TIERCE__MAP_FOR_EACH (node, &holes->map)
        tierce__free(hole_of(node));
    tierce__map_fini(&holes->map);
    tierce__free(holes->notes);
    tierce__lock_fini(&holes->lock);
}

/* ---- the map. HOLES held --------------------------------------------------------------------- */

/* NULL: the key is no hole. */
static struct tierce__hole *find(const struct tierce__holes *holes, int64_t key)
{
    tierce__lock_assert_held(&holes->lock);
    /* The hash determines the key. */
    struct tierce__map_node *node = tierce__map_find(&holes->map, tierce__meta_mix(key));
    TIERCE_DASSERT(node == NULL || hole_of(node)->key == key);
    return node != NULL ? hole_of(node) : NULL;
}

static int put(struct tierce__holes *holes, int64_t key, uint32_t children, uint64_t note)
{
    tierce__lock_assert_held(&holes->lock);
    struct tierce__hole *hole = find(holes, key);
    TIERCE_ASSERT(children != 0);
    if (hole == NULL) {
        hole = tierce__alloc(sizeof(*hole));
        if (hole == NULL)
            return -ENOMEM;
        tierce__map_put(&holes->map, &hole->node, tierce__meta_mix(key));
    }
    hole->key = key;
    hole->children = children;
    hole->note = note;
    TIERCE_DASSERT(find(holes, key) == hole);
    return 0;
}

static void take_out(struct tierce__holes *holes, struct tierce__hole *hole)
{
    tierce__lock_assert_held(&holes->lock);
    if (hole == NULL)
        return;
    TIERCE_ASSERT(holes->map.count > 0);
    TIERCE_DASSERT(find(holes, hole->key) == hole);
    tierce__map_remove(&holes->map, &hole->node);
    tierce__free(hole);
}

void tierce__holes_close(struct tierce__holes *holes, int64_t key)
{
    tierce__lock_take(&holes->lock);
    take_out(holes, find(holes, key));
    tierce__lock_drop(&holes->lock);
}

static void lose_child(struct tierce__holes *holes, int64_t parent)
{
    tierce__lock_assert_held(&holes->lock);
    struct tierce__hole *hole = find(holes, parent);
    if (hole == NULL || hole->children == TIERCE__CHILDREN_UNKNOWN)
        return;
    TIERCE_ASSERT(hole->children > 0);
    if (--hole->children == 0)
        take_out(holes, hole);
}

static int add_note(struct tierce__holes *holes, uint64_t number)
{
    tierce__lock_assert_held(&holes->lock);
    if (TIERCE__GROW(holes->notes, holes->note_room, holes->note_count + 1, ROOM_FIRST) < 0)
        return -ENOMEM;
    TIERCE_ASSERT(holes->note_count < holes->note_room);
    holes->notes[holes->note_count++] = number;
    return 0;
}

/* ---- a step of a removal --------------------------------------------------------------------- */

bool tierce__gone_settle(struct tierce__gone *gone, size_t count)
{
    bool is_hole = false;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count && gone[i].children > 0; j++)
            gone[i].children -= gone[j].has_parent && gone[j].parent == gone[i].key;
        is_hole |= gone[i].children > 0;
    }
    return is_hole;
}

int tierce__gone_write(const struct tierce__gone *gone, size_t count, uint64_t number,
                       struct tierce__arena *arena, struct tierce__meta_note *out)
{
    struct tierce__note_writer w = {.arena = arena};
    uint32_t holes = 0;
    for (size_t i = 0; i < count; i++)
        holes += gone[i].children > 0;
    TIERCE_ASSERT(holes > 0 && holes <= count);
    *out = (struct tierce__meta_note){.kind = TIERCE__NOTE_HOLES, .number = number};
    tierce__note_put8(&w, TIERCE__NOTE_VERSION);
    tierce__note_put32(&w, holes);
    for (size_t i = 0; i < count; i++) {
        if (gone[i].children > 0)
            tierce__note_put64(&w, (uint64_t)gone[i].key);
    }
    return tierce__note_finish(&w, &out->value, &out->bytes);
}

static void log_forgotten(int rc)
{
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "manager.hole_forgotten",
                    "error=%s: the next leader finds the blocks after it", tierce_error_name(rc));
}

void tierce__holes_take(struct tierce__holes *holes, const struct tierce__gone *gone, size_t count,
                        uint64_t note)
{
    int rc = 0;
    bool is_noted = false;
    tierce__lock_take(&holes->lock);
    for (size_t i = 0; i < count; i++) {
        if (gone[i].has_parent)
            lose_child(holes, gone[i].parent);
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        uint32_t children = gone[i].children;
        uint64_t of_note = note;
        struct tierce__hole *old = find(holes, gone[i].key);
        if (note == 0 && old != NULL) { /* an existing hole gets more children */
            of_note = old->note;
            children = old->children < TIERCE__CHILDREN_UNKNOWN - children
                           ? old->children + children
                           : TIERCE__CHILDREN_UNKNOWN;
        }
        if (children == 0) {
            take_out(holes, old); /* the key was stored again meanwhile */
            continue;
        }
        TIERCE_DASSERT(note == 0 || old == NULL || old->note != note);
        if (note != 0 && !is_noted)
            rc = add_note(holes, note);
        is_noted = true;
        if (rc == 0)
            rc = put(holes, gone[i].key, children, of_note);
    }
    tierce__lock_drop(&holes->lock);
    log_forgotten(rc);
}

/* Holes keep the children that the step may have removed: a sweep closes them in any case. */
void tierce__holes_doubt(struct tierce__holes *holes, const struct tierce__gone *gone, size_t count,
                         uint64_t note)
{
    int rc = 0;
    bool is_noted = false;
    TIERCE_DASSERT(note != 0);
    tierce__lock_take(&holes->lock);
    for (size_t i = 0; i < count && rc == 0; i++) {
        if (gone[i].children == 0)
            continue;
        if (!is_noted)
            rc = add_note(holes, note);
        is_noted = true;
        if (rc == 0)
            rc = put(holes, gone[i].key, TIERCE__CHILDREN_UNKNOWN, note);
    }
    tierce__lock_drop(&holes->lock);
    log_forgotten(rc);
}

uint32_t tierce__holes_children(struct tierce__holes *holes, int64_t key)
{
    tierce__lock_take(&holes->lock);
    const struct tierce__hole *hole = find(holes, key);
    uint32_t children = hole != NULL ? hole->children : 0;
    tierce__lock_drop(&holes->lock);
    return children != TIERCE__CHILDREN_UNKNOWN ? children : 0;
}

/* ---- notes ----------------------------------------------------------------------------------- */

static int take_up(void *arg, const struct tierce__meta_note *note)
{
    TIERCE_DASSERT(note->kind == TIERCE__NOTE_HOLES);
    struct tierce__holes *holes = arg;
    struct tierce__note_reader r = {.at = note->value, .left = note->bytes};
    tierce__note_get_version(&r);
    uint32_t count = tierce__note_get32(&r);
    int rc = 0;
    if (r.error == 0 && r.left != (size_t)count * sizeof(int64_t))
        tierce__note_refuse(&r, TIERCE_E_FORMAT);
    tierce__lock_take(&holes->lock);
    for (uint32_t i = 0; i < count && r.error == 0 && rc == 0; i++) {
        int64_t key = (int64_t)tierce__note_get64(&r);
        rc = put(holes, key, TIERCE__CHILDREN_UNKNOWN, note->number);
    }
    if (rc == 0 && r.error == 0)
        rc = add_note(holes, note->number);
    tierce__lock_drop(&holes->lock);
    if (r.error < 0)
        tierce__log(TIERCE_LOG_ERROR, "manager.note_unreadable", "kind=%d error=%s", note->kind,
                    tierce_error_name(r.error));
    return rc;
}

int tierce__live_find_holes(struct tierce__live *live)
{
    TIERCE_ASSERT(live->holes.map.count == 0 && live->holes.note_count == 0);
    return live->space->ops->notes(live->space, TIERCE__NOTE_HOLES, take_up, &live->holes);
}

static bool is_needed(const struct tierce__holes *holes, uint64_t note)
{
    tierce__lock_assert_held(&holes->lock);
    TIERCE__MAP_FOR_EACH (node, &holes->map) {
        if (hole_of(node)->note == note)
            return true;
    }
    return false;
}

int tierce__live_drop_hole_notes(struct tierce__live *live)
{
    enum { AT_ONCE = 256 };
    struct tierce__holes *holes = &live->holes;
    struct tierce__meta_note notes[AT_ONCE];
    int rc = 0;
    size_t count;
    do {
        size_t kept = 0;
        count = 0;
        tierce__lock_take(&holes->lock);
        for (size_t i = 0; i < holes->note_count; i++) {
            uint64_t number = holes->notes[i];
            if (count == AT_ONCE || is_needed(holes, number))
                holes->notes[kept++] = number;
            else
                notes[count++] =
                    (struct tierce__meta_note){.kind = TIERCE__NOTE_HOLES, .number = number};
        }
        TIERCE_ASSERT(kept + count == holes->note_count);
        TIERCE_DASSERT(count <= AT_ONCE);
        holes->note_count = kept;
        tierce__lock_drop(&holes->lock);
        if (count > 0)
            rc = tierce__meta_index_write_notes(live->index, notes, count);
    } while (rc == 0 && count == AT_ONCE);
    /* Notes that could not be dropped are dropped by a later call. */
    tierce__lock_take(&holes->lock);
    for (size_t i = 0; rc < 0 && i < count; i++) {
        if (add_note(holes, notes[i].number) < 0)
            break;
    }
    tierce__lock_drop(&holes->lock);
    return rc;
}

bool tierce__holes_any(struct tierce__holes *holes)
{
    tierce__lock_take(&holes->lock);
    bool any = holes->map.count > 0 || holes->note_count > 0;
    tierce__lock_drop(&holes->lock);
    return any;
}

int tierce__holes_list(struct tierce__holes *holes, struct tierce__arena *arena, int64_t **out,
                       size_t *count)
{
    *count = 0;
    tierce__lock_take(&holes->lock);
    *out = tierce__arena_alloc(arena, (holes->map.count + 1) * sizeof(**out));
    int rc = *out != NULL ? 0 : -ENOMEM;
    TIERCE__MAP_FOR_EACH (node, &holes->map) {
        if (rc == 0)
            (*out)[(*count)++] = hole_of(node)->key;
    }
    TIERCE_ASSERT(rc < 0 || *count == holes->map.count);
    tierce__lock_drop(&holes->lock);
    return rc;
}
