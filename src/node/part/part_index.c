/* SPDX-License-Identifier: Apache-2.0 */
#include "node/part/part_index.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#define NO_SLOT     UINT32_MAX
#define SLOTS_FIRST 256u
#define PAGE_SLOTS  256u
#define SPACE_UNIT  4096u /* of buffers and of files */

int tierce__part_index_init(struct tierce__part_index *index, uint64_t capacity_bytes)
{
    *index = (struct tierce__part_index){.capacity_bytes = capacity_bytes, .first_free = NO_SLOT};
    if (getrandom(&index->seed, sizeof(index->seed), 0) != (ssize_t)sizeof(index->seed))
        return -EIO;
    tierce__lock_init(&index->lock, TIERCE__LOCK_PART);
    return 0;
}

void tierce__part_index_set_capacity(struct tierce__part_index *index, uint64_t capacity_bytes)
{
    tierce__lock_take(&index->lock);
    index->capacity_bytes = capacity_bytes;
    tierce__lock_drop(&index->lock);
}

static void destroy(struct tierce__part_object *object)
{
    if (object == NULL)
        return;
    tierce__buf_release(object->buf);
    tierce__free(object);
}

static struct tierce__part_object *object_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__part_object, node);
}

void tierce__part_index_fini(struct tierce__part_index *index)
{
    TIERCE__MAP_FOR_EACH (node, &index->objects)
        destroy(object_of(node));
    tierce__map_fini(&index->objects);
    tierce__free(index->slots);
    tierce__lock_fini(&index->lock);
}

uint64_t tierce__part_space(uint64_t bytes)
{
    TIERCE_ASSERT(bytes <= UINT64_MAX - SPACE_UNIT);
    return (bytes + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
}

/* ---- slots (the lock is held) ---------------------------------------------------------------- */

static int grow(struct tierce__part_index *index)
{
    uint32_t room = index->slot_room == 0 ? SLOTS_FIRST : index->slot_room * 2;
    if (room <= index->slot_room)
        return TIERCE_E_LIMIT;
    struct tierce__part_slot *slots = tierce__realloc(index->slots, room * sizeof(*slots));
    if (slots == NULL)
        return -ENOMEM;
    index->slots = slots;
    index->slot_room = room;
    return 0;
}

static int take_slot(struct tierce__part_index *index, uint32_t *slot)
{
    if (index->first_free != NO_SLOT) {
        *slot = index->first_free;
        index->first_free = index->slots[*slot].next_free;
        return 0;
    }
    if (index->slot_count == index->slot_room) {
        int rc = grow(index);
        if (rc != 0)
            return rc;
    }
    TIERCE_ASSERT(index->slot_count < index->slot_room);
    *slot = index->slot_count++;
    index->slots[*slot].object = NULL;
    return 0;
}

static void free_slot(struct tierce__part_index *index, uint32_t slot)
{
    TIERCE_ASSERT(slot < index->slot_count);
    index->slots[slot] = (struct tierce__part_slot){.next_free = index->first_free};
    index->first_free = slot;
}

/* ---- names (the lock is held) ---------------------------------------------------------------- */

static uint64_t hash_of(const struct tierce__part_index *index, const char *name, size_t bytes)
{
    return XXH3_64bits_withSeed(name, bytes, index->seed);
}

static struct tierce__part_object *search(const struct tierce__part_index *index,
                                          const struct tierce_plugin_name *name)
{
    struct tierce__map_node *node =
        tierce__map_find(&index->objects, hash_of(index, name->text, name->bytes));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct tierce__part_object *object = object_of(node);
        if (object->name_bytes == name->bytes && memcmp(object->name, name->text, name->bytes) == 0)
            return object;
    }
    return NULL;
}

/* Takes an object out; it is no longer counted. */
static void take_out(struct tierce__part_index *index, struct tierce__part_object *object)
{
    uint64_t space = tierce__part_space(object->bytes);
    TIERCE_ASSERT(index->used_bytes >= space);
    tierce__map_remove(&index->objects, &object->node);
    free_slot(index, object->slot);
    index->used_bytes -= space;
}

/* ---- objects that arrive --------------------------------------------------------------------- */

static int count_in(struct tierce__part_index *index, struct tierce__part_object *object)
{
    uint64_t space = tierce__part_space(object->bytes);
    tierce__lock_take(&index->lock);
    bool has_room = index->used_bytes <= index->capacity_bytes &&
                    space <= index->capacity_bytes - index->used_bytes;
    int rc = has_room ? 0 : space > index->capacity_bytes ? TIERCE_E_LIMIT : TIERCE_E_FULL;
    if (rc == 0)
        rc = take_slot(index, &object->slot);
    if (rc == 0)
        index->used_bytes += space;
    object->era = index->era;
    tierce__lock_drop(&index->lock);
    return rc;
}

int tierce__part_index_reserve(struct tierce__part_index *index, struct tierce__part_object **out,
                               const struct tierce_plugin_name *name, uint64_t bytes)
{
    TIERCE_ASSERT(bytes > 0 && name->bytes > 0 && name->bytes <= TIERCE_PLUGIN_NAME_MAX);
    struct tierce__part_object *object = tierce__alloc(sizeof(*object) + name->bytes);
    if (object == NULL)
        return -ENOMEM;
    *object = (struct tierce__part_object){.bytes = bytes, .name_bytes = (uint16_t)name->bytes};
    memcpy(object->name, name->text, name->bytes);
    int rc = count_in(index, object);
    if (rc == 0)
        *out = object;
    else
        tierce__free(object);
    return rc;
}

void tierce__part_index_cancel(struct tierce__part_index *index, struct tierce__part_object *object)
{
    tierce__lock_take(&index->lock);
    TIERCE_ASSERT(index->slots[object->slot].object == NULL);
    free_slot(index, object->slot);
    index->used_bytes -= tierce__part_space(object->bytes);
    tierce__lock_drop(&index->lock);
    destroy(object);
}

bool tierce__part_index_publish(struct tierce__part_index *index,
                                struct tierce__part_object *object)
{
    const struct tierce_plugin_name name = {.text = object->name, .bytes = object->name_bytes};
    struct tierce__part_object *old = NULL;
    tierce__lock_take(&index->lock);
    TIERCE_ASSERT(index->slots[object->slot].object == NULL);
    bool is_valid = object->era == index->era;
    if (is_valid && (old = search(index, &name)) != NULL)
        take_out(index, old);
    if (is_valid) {
        index->slots[object->slot].object = object;
        tierce__map_put(&index->objects, &object->node, hash_of(index, name.text, name.bytes));
    }
    tierce__lock_drop(&index->lock);
    destroy(old);
    return is_valid;
}

void tierce__part_index_expire(struct tierce__part_index *index)
{
    tierce__lock_take(&index->lock);
    index->era++;
    tierce__lock_drop(&index->lock);
}

/* ---- objects that are there ------------------------------------------------------------------ */

bool tierce__part_index_find(struct tierce__part_index *index,
                             const struct tierce_plugin_name *name, uint64_t *bytes,
                             struct tierce__buf **buf)
{
    tierce__lock_take(&index->lock);
    struct tierce__part_object *object = search(index, name);
    if (object != NULL) {
        *bytes = object->bytes;
        if (buf != NULL && object->buf != NULL) {
            tierce__buf_acquire(object->buf);
            *buf = object->buf;
        }
    }
    tierce__lock_drop(&index->lock);
    return object != NULL;
}

void tierce__part_index_remove(struct tierce__part_index *index,
                               const struct tierce_plugin_name *name)
{
    tierce__lock_take(&index->lock);
    struct tierce__part_object *object = search(index, name);
    if (object != NULL)
        take_out(index, object);
    tierce__lock_drop(&index->lock);
    destroy(object);
}

/* A slot is the same object's as long as it is visible, so one walk over the slots meets all. */
bool tierce__part_index_clear(struct tierce__part_index *index, const _Atomic bool *stops)
{
    for (uint32_t slot = 0; !atomic_load_explicit(stops, memory_order_relaxed); slot++) {
        struct tierce__part_object *object = NULL;
        tierce__lock_take(&index->lock);
        bool is_end = slot >= index->slot_count;
        if (!is_end && (object = index->slots[slot].object) != NULL)
            take_out(index, object);
        tierce__lock_drop(&index->lock);
        if (is_end)
            return true;
        destroy(object);
    }
    return false;
}

void tierce__part_index_count(struct tierce__part_index *index, uint64_t *capacity_bytes,
                              uint64_t *used_bytes, uint64_t *objects)
{
    tierce__lock_take(&index->lock);
    *capacity_bytes = index->capacity_bytes;
    *used_bytes = index->used_bytes;
    *objects = index->objects.count;
    tierce__lock_drop(&index->lock);
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct page {
    struct tierce_plugin_name names[PAGE_SLOTS];
    size_t count, text_bytes;
    char text[PAGE_SLOTS * TIERCE_PLUGIN_NAME_MAX];
};

static bool begins_with(const struct tierce__part_object *object,
                        const struct tierce_plugin_name *prefix)
{
    return object->name_bytes >= prefix->bytes &&
           (prefix->bytes == 0 || memcmp(object->name, prefix->text, prefix->bytes) == 0);
}

static void put_name(struct page *page, const struct tierce__part_object *object)
{
    char *text = page->text + page->text_bytes;
    TIERCE_ASSERT(page->count < PAGE_SLOTS);
    memcpy(text, object->name, object->name_bytes);
    page->names[page->count++] =
        (struct tierce_plugin_name){.text = text, .bytes = object->name_bytes};
    page->text_bytes += object->name_bytes;
}

/* The names of some slots from *cursor on, which is moved. The lock is held. */
static void fill_page(struct page *page, struct tierce__part_index *index,
                      const struct tierce_plugin_name *prefix, uint64_t *cursor)
{
    uint64_t slot = *cursor, end = slot + PAGE_SLOTS;
    for (; slot < end && slot < index->slot_count; slot++) {
        const struct tierce__part_object *object = index->slots[slot].object;
        if (object != NULL && begins_with(object, prefix))
            put_name(page, object);
    }
    *cursor = slot < index->slot_count ? slot : 0;
}

int tierce__part_index_list(struct tierce__part_index *index,
                            const struct tierce_plugin_name *prefix, uint64_t *cursor,
                            tierce_plugin_each_fn *each, void *arg)
{
    struct page *page = tierce__alloc(sizeof(*page));
    if (page == NULL)
        return -ENOMEM;
    page->count = page->text_bytes = 0;
    tierce__lock_take(&index->lock);
    fill_page(page, index, prefix, cursor);
    tierce__lock_drop(&index->lock);
    for (size_t i = 0; i < page->count; i++)
        each(arg, &page->names[i]);
    tierce__free(page);
    return 0;
}
