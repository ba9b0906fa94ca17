/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/coded/coded_connector_private.h"

static uint64_t spread_of(const struct tierce_plugin_name *name)
{
    return XXH3_64bits(name->text, name->bytes);
}

static struct tierce__coded_object *object_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__coded_object, node);
}

static void free_object(struct tierce__coded_object *object)
{
    TIERCE_DASSERT(object->users == 0 && object->buf == NULL);
    tierce__list_remove(&object->node);
    tierce__coded_parsed_fini(&object->parsed);
    tierce__free(object->layers);
    tierce__free(object);
}

static struct tierce__coded_object *find(struct tierce__coded_connector *c,
                                         const struct tierce_plugin_name *name)
{
    uint64_t spread = spread_of(name);
    TIERCE__LIST_FOR_EACH (it, &c->objects) {
        struct tierce__coded_object *object = object_of(it);
        if (object->spread == spread && object->name_bytes == name->bytes &&
            memcmp(object->name, name->text, name->bytes) == 0)
            return object;
    }
    return NULL;
}

/* Takes an object off the list. It lives until its last get has left. */
void tierce__coded_object_hide(struct tierce__coded_connector *c,
                               struct tierce__coded_object *object)
{
    tierce__lock_assert_held(&c->lock);
    if (tierce__list_empty(&object->node))
        return;
    tierce__list_remove(&object->node);
    if (object->users > 0)
        return;
    c->object_count--;
    free_object(object);
}

void tierce__coded_object_forget(struct tierce__coded_connector *c,
                                 const struct tierce_plugin_name *name)
{
    tierce__lock_assert_held(&c->lock);
    struct tierce__coded_object *object = find(c, name);
    if (object != NULL)
        tierce__coded_object_hide(c, object);
}

struct tierce__coded_object *tierce__coded_object_take(struct tierce__coded_connector *c,
                                                       const struct tierce_plugin_name *name)
{
    tierce__lock_assert_held(&c->lock);
    struct tierce__coded_object *object = find(c, name);
    if (object != NULL && object->ready &&
        tierce__now_ns() - object->known_ns > TIERCE__CODED_KNOWN_MS * TIERCE__MS_NS) {
        tierce__coded_object_hide(c, object);
        object = NULL;
    }
    if (object == NULL) {
        object = tierce__calloc(1, sizeof(*object) + name->bytes);
        if (object == NULL)
            return NULL;
        tierce__list_init(&object->node);
        object->spread = spread_of(name);
        object->name_bytes = name->bytes;
        memcpy(object->name, name->text, name->bytes);
        c->object_count++;
    } else {
        tierce__list_remove(&object->node);
    }
    TIERCE_DASSERT(object->users > 0 || c->object_count > 0);
    c->object_count -= object->users == 0;
    object->users++;
    tierce__list_push_back(&c->objects, &object->node);
    return object;
}

struct tierce__coded_object *tierce__coded_object_make(void)
{
    struct tierce__coded_object *object = tierce__calloc(1, sizeof(*object));
    if (object == NULL)
        return NULL;
    tierce__list_init(&object->node);
    object->users = 1;
    return object;
}

void tierce__coded_object_leave(struct tierce__coded_connector *c,
                                struct tierce__coded_object *object)
{
    tierce__lock_assert_held(&c->lock);
    TIERCE_ASSERT(object->users > 0);
    if (--object->users > 0)
        return;
    if (!object->ready || tierce__list_empty(&object->node)) {
        free_object(object);
        return;
    }
    c->object_count++;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->objects) {
        if (c->object_count <= TIERCE__CODED_OBJECTS_MAX)
            break;
        if (object_of(it)->users == 0)
            tierce__coded_object_hide(c, object_of(it));
    }
}

void tierce__coded_objects_free(struct tierce__coded_connector *c)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->objects)
        free_object(object_of(it));
}
