/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/object_names.h"

#include "base/alloc.h"
#include "base/assert.h"

void tierce__object_names_init(struct tierce__object_names *names)
{
    tierce__lock_init(&names->lock, TIERCE__LOCK_OBJECTS);
    for (size_t i = 0; i < TIERCE__OBJECT_NAME_BINS; i++)
        tierce__list_init(&names->bins[i]);
}

void tierce__object_names_fini(struct tierce__object_names *names)
{
    for (size_t i = 0; i < TIERCE__OBJECT_NAME_BINS; i++)
        TIERCE_ASSERT(tierce__list_empty(&names->bins[i]));
    tierce__lock_fini(&names->lock);
}

/* One more reference on a name that is there, or NULL. Under the lock. */
static struct tierce__object_name *find_name(struct tierce__list *bin,
                                             const struct tierce__key *key)
{
    TIERCE__LIST_FOR_EACH (it, bin) {
        struct tierce__object_name *name =
            TIERCE__CONTAINER_OF(it, struct tierce__object_name, node);
        if (tierce__key_equal(&name->key, key)) {
            name->refs++;
            return name;
        }
    }
    return NULL;
}

struct tierce__object_name *tierce__object_name_take(struct tierce__object_names *names,
                                                     const struct tierce__key *key)
{
    struct tierce__list *bin = &names->bins[tierce__key_spread(key) % TIERCE__OBJECT_NAME_BINS];
    tierce__lock_take(&names->lock);
    struct tierce__object_name *name = find_name(bin, key);
    tierce__lock_drop(&names->lock);
    if (name != NULL)
        return name;
    struct tierce__object_name *fresh = tierce__calloc(1, sizeof(*fresh));
    if (fresh == NULL)
        return NULL;
    fresh->names = names;
    fresh->key = *key;
    fresh->refs = 1;
    tierce__cond_init(&fresh->changed);
    tierce__lock_take(&names->lock);
    name = find_name(bin, key);
    if (name == NULL) {
        tierce__list_push_back(bin, &fresh->node);
        name = fresh;
    }
    tierce__lock_drop(&names->lock);
    if (name != fresh) {
        tierce__cond_fini(&fresh->changed);
        tierce__free(fresh);
    }
    return name;
}

void tierce__object_name_drop(struct tierce__object_name *name)
{
    if (name == NULL)
        return;
    struct tierce__lock *lock = &name->names->lock;
    tierce__lock_take(lock);
    bool last = --name->refs == 0;
    if (last)
        tierce__list_remove(&name->node);
    tierce__lock_drop(lock);
    if (!last)
        return;
    TIERCE_ASSERT(!name->held && name->reading == NULL);
    tierce__cond_fini(&name->changed);
    tierce__free(name);
}

bool tierce__object_name_hold(struct tierce__object_name *name, uint64_t deadline_ns)
{
    bool in_time = true;
    tierce__lock_take(&name->names->lock);
    while (name->held && in_time)
        in_time = tierce__cond_wait(&name->changed, &name->names->lock, deadline_ns);
    bool mine = !name->held;
    if (mine)
        name->held = true;
    tierce__lock_drop(&name->names->lock);
    return mine;
}

bool tierce__object_name_try(struct tierce__object_name *name, uint64_t changes)
{
    tierce__lock_take(&name->names->lock);
    bool mine = !name->held && name->changes == changes;
    if (mine)
        name->held = true;
    tierce__lock_drop(&name->names->lock);
    return mine;
}

void tierce__object_name_let_go(struct tierce__object_name *name)
{
    tierce__lock_take(&name->names->lock);
    TIERCE_ASSERT(name->held);
    name->held = false;
    tierce__cond_broadcast(&name->changed);
    tierce__lock_drop(&name->names->lock);
}

uint64_t tierce__object_name_changes(struct tierce__object_name *name)
{
    tierce__lock_take(&name->names->lock);
    uint64_t changes = name->changes;
    tierce__lock_drop(&name->names->lock);
    return changes;
}

void tierce__object_name_change(struct tierce__object_name *name)
{
    tierce__lock_take(&name->names->lock);
    TIERCE_ASSERT(name->held);
    name->changes++;
    name->reading = NULL;
    tierce__lock_drop(&name->names->lock);
}

void tierce__object_names_change(struct tierce__object_names *names, const struct tierce__key *of)
{
    tierce__lock_take(&names->lock);
    for (size_t i = 0; i < TIERCE__OBJECT_NAME_BINS; i++) {
        TIERCE__LIST_FOR_EACH (it, &names->bins[i]) {
            struct tierce__object_name *name =
                TIERCE__CONTAINER_OF(it, struct tierce__object_name, node);
            if (of != NULL && name->key.ns != of->ns)
                continue;
            name->changes++;
            name->reading = NULL;
        }
    }
    tierce__lock_drop(&names->lock);
}
