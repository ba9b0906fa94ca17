/* SPDX-License-Identifier: Apache-2.0 */
/* Deletions as batches and notes, and the keys of those that are not done. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "manager/locate/locator_private.h"
#include "manager/locate/notes.h"
#include "manager/storage/deleter_private.h"

#include <errno.h>
#include <string.h>

/* ---- batches --------------------------------------------------------------------------------- */

struct tierce__deletion *tierce__deletion_create(struct tierce__live *live, size_t room)
{
    struct tierce__arena arena = {0};
    struct tierce__deletion *deletion = tierce__arena_calloc(&arena, 1, sizeof(*deletion));
    struct tierce__deletion_item *items = tierce__arena_calloc(&arena, room, sizeof(*items));
    if (deletion == NULL || items == NULL) {
        tierce__arena_clear(&arena);
        return NULL;
    }
    tierce__list_init(&deletion->node);
    deletion->live = live;
    deletion->note = tierce__locator_random(live->locator);
    deletion->items = items;
    deletion->room = room;
    deletion->arena = arena;
    tierce__live_hold(live);
    return deletion;
}

void tierce__deletion_drop_split(struct tierce__deletion *deletion)
{
    for (size_t i = 0; i < deletion->split_count; i++)
        tierce__deletion_destroy(deletion->split[i]);
    deletion->split_count = 0;
}

void tierce__deletion_destroy(struct tierce__deletion *deletion)
{
    if (deletion == NULL)
        return;
    TIERCE_ASSERT(deletion->deadline.place == 0); /* it is in no queue */
    TIERCE_ASSERT(tierce__list_empty(&deletion->node));
    TIERCE_DASSERT(deletion->count <= deletion->room);
    tierce__deletion_drop_split(deletion);
    struct tierce__live *live = deletion->live;
    struct tierce__arena arena = deletion->arena; /* it lies in it */
    tierce__arena_clear(&arena);
    tierce__live_release(live);
}

/* A record may have several locations, so there may be more items than keys. */
static int make_room(struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(deletion->count <= deletion->room);
    if (deletion->count < deletion->room)
        return 0;
    size_t room = deletion->room * 2 + 1;
    struct tierce__deletion_item *items =
        tierce__arena_calloc(&deletion->arena, room, sizeof(*items));
    if (items == NULL)
        return -ENOMEM;
    if (deletion->count > 0)
        memcpy(items, deletion->items, deletion->count * sizeof(*items));
    deletion->items = items;
    deletion->room = room;
    return 0;
}

int tierce__deletion_add(struct tierce__deletion *deletion, int64_t key,
                         const struct tierce__location *location)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    int rc = make_room(deletion);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(deletion->count < deletion->room);
    struct tierce__deletion_item *item = &deletion->items[deletion->count];
    struct tierce__spec_place *places =
        tierce__arena_calloc(&deletion->arena, (size_t)location->place_count + 1, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < location->place_count; i++) {
        places[i] = location->places[i];
        if (places[i].uri == NULL)
            continue;
        places[i].uri = tierce__arena_copy(&deletion->arena, places[i].uri, strlen(places[i].uri));
        if (places[i].uri == NULL)
            return -ENOMEM;
    }
    *item = (struct tierce__deletion_item){.key = key, .location = *location};
    item->location.places = places;
    deletion->count++;
    return 0;
}

int tierce__deletion_write(struct tierce__deletion *deletion, struct tierce__meta_note *note)
{
    TIERCE_ASSERT(!deletion->is_doubtful && !deletion->is_end_doubtful);
    TIERCE_ASSERT(deletion->count <= UINT32_MAX);
    struct tierce__note_writer w = {.arena = &deletion->arena};
    *note = (struct tierce__meta_note){.kind = TIERCE__NOTE_DELETION, .number = deletion->note};
    tierce__note_put8(&w, TIERCE__NOTE_VERSION);
    tierce__note_put64(&w, (uint64_t)deletion->due_us);
    tierce__note_put64(&w, (uint64_t)deletion->reusable_us);
    tierce__note_put64(&w, (uint64_t)deletion->sweep_us);
    tierce__note_put8(&w, deletion->is_sweep);
    tierce__note_put32(&w, (uint32_t)deletion->count);
    for (size_t i = 0; i < deletion->count; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        tierce__note_put64(&w, (uint64_t)deletion->items[i].key);
        tierce__note_put_bytes(&w, location->id, sizeof(location->id));
        tierce__note_put16(&w, location->storage);
        tierce__note_put8(&w, location->type);
        tierce__note_put_places(&w, location->places, location->place_count);
    }
    return tierce__note_finish(&w, &note->value, &note->bytes);
}

static void read_item(struct tierce__note_reader *r, struct tierce__deletion_item *item)
{
    item->key = (int64_t)tierce__note_get64(r);
    tierce__note_get_bytes(r, item->location.id, sizeof(item->location.id));
    item->location.storage = tierce__note_get16(r);
    item->location.type = tierce__note_get8(r);
    item->location.places = tierce__note_get_places(r, &item->location.place_count);
}

int tierce__deletion_read(struct tierce__deletion **out, struct tierce__live *live,
                          const struct tierce__meta_note *note)
{
    enum { ITEM_BYTES_MIN = 8 + 8 + 2 + 1 + 2 };
    struct tierce__note_reader r = {.at = note->value, .left = note->bytes};
    tierce__note_get_version(&r);
    int64_t due_us = (int64_t)tierce__note_get64(&r);
    int64_t reusable_us = (int64_t)tierce__note_get64(&r);
    int64_t sweep_us = (int64_t)tierce__note_get64(&r);
    bool is_sweep = tierce__note_get_flag(&r);
    uint32_t count = tierce__note_get32(&r);
    if (r.error == 0 && count > r.left / ITEM_BYTES_MIN)
        return TIERCE_E_FORMAT;
    if (r.error < 0)
        return r.error;
    struct tierce__deletion *deletion = tierce__deletion_create(live, count);
    if (deletion == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(count <= deletion->room);
    deletion->note = note->number;
    deletion->due_us = due_us;
    deletion->reusable_us = reusable_us;
    deletion->sweep_us = sweep_us;
    deletion->is_sweep = is_sweep;
    r.arena = &deletion->arena;
    for (; deletion->count < count && r.error == 0; deletion->count++)
        read_item(&r, &deletion->items[deletion->count]);
    int rc = tierce__note_end(&r);
    if (rc < 0)
        tierce__deletion_destroy(deletion);
    else
        *out = deletion;
    return rc;
}

/* ---- the keys that are being deleted --------------------------------------------------------- */

struct deleting_key {
    struct tierce__map_node node;
    const struct tierce__deletion_item *item;
};

static uint64_t hash_of(int64_t key)
{
    return tierce__spread((uint64_t)key); /* the hash determines the key */
}

static struct deleting_key *key_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct deleting_key, node);
}

const struct tierce__location *tierce__deleting_find(const struct tierce__map *deleting,
                                                     int64_t key)
{
    struct tierce__map_node *node = tierce__map_find(deleting, hash_of(key));
    TIERCE_DASSERT(node == NULL || key_of(node)->item->key == key);
    return node != NULL ? &key_of(node)->item->location : NULL;
}

void tierce__deleting_note(struct tierce__map *deleting, struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(!deletion->is_sweep);
    tierce__lock_assert_held(&deletion->live->lock);
    for (size_t i = 0; i < deletion->count; i++) {
        struct deleting_key *entry = tierce__alloc(sizeof(*entry));
        if (entry == NULL)
            continue;
        entry->item = &deletion->items[i];
        tierce__map_put(deleting, &entry->node, hash_of(entry->item->key));
    }
}

void tierce__deleting_unnote(struct tierce__map *deleting, struct tierce__deletion *deletion)
{
    tierce__lock_assert_held(&deletion->live->lock);
    for (size_t i = 0; i < deletion->count; i++) {
        struct tierce__map_node *node = tierce__map_find(deleting, hash_of(deletion->items[i].key));
        while (node != NULL && key_of(node)->item != &deletion->items[i])
            node = tierce__map_find_next(node);
        if (node == NULL)
            continue;
        tierce__map_remove(deleting, node);
        tierce__free(key_of(node));
    }
}

void tierce__deleting_each(const struct tierce__map *deleting,
                           void (*each)(void *arg, const struct tierce__location *location),
                           void *arg)
{
    TIERCE__MAP_FOR_EACH (node, deleting)
        each(arg, &key_of(node)->item->location);
}

void tierce__deleting_clear(struct tierce__map *deleting)
{
    TIERCE__MAP_FOR_EACH (node, deleting)
        tierce__free(key_of(node));
    tierce__map_fini(deleting);
}
