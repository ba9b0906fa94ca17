/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/objects/object_names.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"

#define SPARES_MAX 64u

void tierce__object_names_init(struct tierce__object_names *names)
{
    tierce__lock_init(&names->lock, TIERCE__LOCK_OBJECTS);
    for (size_t i = 0; i < TIERCE__OBJECT_NAME_BINS; i++)
        tierce__list_init(&names->bins[i]);
    tierce__list_init(&names->spares);
    names->spare_count = 0;
}

static void free_name(struct tierce__object_name *name)
{
    TIERCE_DASSERT(name->refs == 0 && !name->held);
    tierce__cond_fini(&name->changed);
    tierce__free(name);
}

void tierce__object_names_fini(struct tierce__object_names *names)
{
    for (size_t i = 0; i < TIERCE__OBJECT_NAME_BINS; i++)
        TIERCE_ASSERT(tierce__list_empty(&names->bins[i]));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &names->spares) {
        tierce__list_remove(it);
        free_name(TIERCE__CONTAINER_OF(it, struct tierce__object_name, node));
    }
    tierce__lock_fini(&names->lock);
}

/* ---- references: under the lock -------------------------------------------------------------- */

static struct tierce__object_name *find_name(struct tierce__list *bin,
                                             const struct tierce__key *key)
{
    TIERCE__LIST_FOR_EACH (it, bin) {
        struct tierce__object_name *name =
            TIERCE__CONTAINER_OF(it, struct tierce__object_name, node);
        if (tierce__key_equal(&name->key, key))
            return name;
    }
    return NULL;
}

static void add_spare(struct tierce__object_names *names, struct tierce__object_name *name)
{
    tierce__lock_assert_held(&names->lock);
    TIERCE_DASSERT(name->refs == 0 && name->names == names);
    tierce__list_push_front(&names->spares, &name->node);
    names->spare_count++;
}

/* Drops the lock for a moment if there is none. */
static bool provide_spare(struct tierce__object_names *names)
{
    tierce__lock_assert_held(&names->lock);
    if (names->spare_count > 0)
        return true;
    tierce__lock_drop(&names->lock);
    struct tierce__object_name *name = tierce__calloc(1, sizeof(*name));
    if (name != NULL) {
        name->names = names;
        tierce__cond_init(&name->changed);
    }
    tierce__lock_take(&names->lock);
    if (name != NULL)
        add_spare(names, name);
    return name != NULL;
}

static struct tierce__object_name *make_name(struct tierce__object_names *names,
                                             struct tierce__list *bin,
                                             const struct tierce__key *key)
{
    tierce__lock_assert_held(&names->lock);
    TIERCE_DASSERT(names->spare_count > 0);
    struct tierce__object_name *name =
        TIERCE__CONTAINER_OF(names->spares.next, struct tierce__object_name, node);
    tierce__list_remove(&name->node);
    names->spare_count--;
    name->key = *key;
    name->refs = 0;
    name->changes = 0;
    tierce__list_push_back(bin, &name->node);
    TIERCE_DASSERT(!name->held && name->reading == NULL);
    return name;
}

/* NULL: no memory. */
static struct tierce__object_name *acquire(struct tierce__object_names *names,
                                           const struct tierce__key *key)
{
    tierce__lock_assert_held(&names->lock);
    struct tierce__list *bin = &names->bins[tierce__key_spread(key) % TIERCE__OBJECT_NAME_BINS];
    struct tierce__object_name *name = find_name(bin, key);
    while (name == NULL && provide_spare(names)) {
        name = find_name(bin, key); /* it may have come while the lock was dropped */
        if (name == NULL && names->spare_count > 0)
            name = make_name(names, bin, key);
    }
    if (name != NULL)
        name->refs++;
    return name;
}

/* Returns the name if it is to be freed, when the lock is gone. */
static struct tierce__object_name *release(struct tierce__object_name *name)
{
    struct tierce__object_names *names = name->names;
    tierce__lock_assert_held(&names->lock);
    TIERCE_DASSERT(name->refs > 0);
    if (--name->refs > 0)
        return NULL;
    TIERCE_ASSERT(!name->held && name->reading == NULL);
    tierce__list_remove(&name->node);
    if (names->spare_count >= SPARES_MAX)
        return name;
    add_spare(names, name);
    return NULL;
}

/* ---- interface ------------------------------------------------------------------------------- */

struct tierce__object_name *tierce__object_name_take(struct tierce__object_names *names,
                                                     const struct tierce__key *key)
{
    tierce__lock_take(&names->lock);
    struct tierce__object_name *name = acquire(names, key);
    tierce__lock_drop(&names->lock);
    return name;
}

void tierce__object_name_drop(struct tierce__object_name *name)
{
    if (name == NULL)
        return;
    struct tierce__lock *lock = &name->names->lock;
    tierce__lock_take(lock);
    name = release(name);
    tierce__lock_drop(lock);
    if (name != NULL)
        free_name(name);
}

static void change(struct tierce__object_name *name)
{
    tierce__lock_assert_held(&name->names->lock);
    TIERCE_DASSERT(name->refs > 0);
    name->changes++;
    name->reading = NULL;
}

int tierce__object_name_begin(struct tierce__object_name **out, struct tierce__object_names *names,
                              const struct tierce__key *key, uint64_t deadline_ns)
{
    struct tierce__object_name *gone = NULL;
    bool in_time = true;
    tierce__lock_take(&names->lock);
    struct tierce__object_name *name = acquire(names, key);
    while (name != NULL && name->held && in_time)
        in_time = tierce__cond_wait(&name->changed, &names->lock, deadline_ns);
    int rc = name == NULL ? -ENOMEM : name->held ? TIERCE_E_DEADLINE : 0;
    if (rc == 0) {
        name->held = true;
        change(name);
    } else if (name != NULL) {
        gone = release(name);
    }
    tierce__lock_drop(&names->lock);
    if (gone != NULL)
        free_name(gone);
    if (rc == 0)
        *out = name;
    return rc;
}

void tierce__object_name_end(struct tierce__object_name *name)
{
    struct tierce__lock *lock = &name->names->lock;
    tierce__lock_take(lock);
    TIERCE_ASSERT(name->held);
    TIERCE_DASSERT(name->refs > 0);
    change(name);
    name->held = false;
    tierce__cond_broadcast(&name->changed);
    name = release(name);
    tierce__lock_drop(lock);
    if (name != NULL)
        free_name(name);
}

bool tierce__object_name_try(struct tierce__object_name *name, uint64_t changes)
{
    tierce__lock_take(&name->names->lock);
    TIERCE_DASSERT(name->refs > 0);
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
    TIERCE_DASSERT(name->refs > 0);
    name->held = false;
    tierce__cond_broadcast(&name->changed);
    tierce__lock_drop(&name->names->lock);
}

uint64_t tierce__object_name_changes(struct tierce__object_name *name)
{
    tierce__lock_take(&name->names->lock);
    TIERCE_DASSERT(name->refs > 0);
    uint64_t changes = name->changes;
    tierce__lock_drop(&name->names->lock);
    return changes;
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
            change(name);
        }
    }
    tierce__lock_drop(&names->lock);
}
