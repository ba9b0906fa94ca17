/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "directory/directory_private.h"

/* The members of a directory: groups, names of workers, free slots. */

/* ---- groups ---------------------------------------------------------------------------------- */

static uint32_t group_hash(const struct tierce__directory *directory, const char *name,
                           bool is_owner)
{
    uint64_t seed = directory->seed + is_owner;
    return (uint32_t)(tierce__mix(tierce__hash_text(seed, name)) >> 32);
}

/* The place of a group, or of an owner, in `groups`, or TIERCE__NUMBER_NONE. */
static uint32_t find_entry(const struct tierce__directory *directory, const char *name,
                           bool is_owner)
{
    tierce__lock_assert_held(&directory->lock);
    uint32_t hash = group_hash(directory, name, is_owner);
    TIERCE__NUMBERS_FOR_EACH (it, &directory->group_table, hash) {
        const struct tierce__directory_group *group = &directory->groups[it.number];
        if (group->is_owner == is_owner && strcmp(group->name, name) == 0)
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

static uint32_t find_group(const struct tierce__directory *directory, const char *name)
{
    return find_entry(directory, name, false);
}

uint64_t tierce__directory_group(struct tierce__directory *directory, const char *name)
{
    tierce__lock_take(&directory->lock);
    uint32_t at = find_group(directory, name);
    bool has_workers = at != TIERCE__NUMBER_NONE && directory->groups[at].workers > 0;
    uint64_t id = has_workers ? directory->groups[at].id : 0;
    tierce__lock_drop(&directory->lock);
    return id;
}

/* Frees the place of a group of which nothing is left. */
static void end_group(struct tierce__directory *directory, uint32_t at)
{
    struct tierce__directory_group *group = &directory->groups[at];
    TIERCE_DASSERT(group->workers == 0);
    if (group->id != 0)
        tierce__numbers_erase(&directory->group_table,
                              group_hash(directory, group->name, group->is_owner), at);
    *group = (struct tierce__directory_group){.free_link = directory->free_group};
    directory->free_group = at + 1;
}

static bool is_left(const struct tierce__directory *directory, uint32_t at)
{
    return directory->groups[at].workers == 0 &&
           atomic_load_explicit(&directory->group_words[at], memory_order_acquire) == 0;
}

/* The group or owner of this name, perhaps a new one without workers. Below zero: an error. */
static int64_t have_group(struct tierce__directory *directory, const char *name, bool is_owner)
{
    uint32_t known = find_entry(directory, name, is_owner),
             most = directory->opts.group_workers_max;
    if (known != TIERCE__NUMBER_NONE)
        return most > 0 && directory->groups[known].workers >= most ? TIERCE_E_FULL
                                                                    : (int64_t)known;
    bool is_new = directory->free_group == 0;
    uint32_t at = is_new ? directory->group_count : directory->free_group - 1;
    /* Each is of a worker, or has a slot that is not clean. */
    if (at == TIERCE__DIRECTORY_GROUPS(directory->opts.workers_max))
        return TIERCE_E_LIMIT;
    int rc = TIERCE__GROW(directory->groups, directory->group_room, at + 1u, 4);
    if (rc == 0)
        rc = tierce__numbers_reserve(&directory->group_table,
                                     (size_t)directory->group_table.count + 1);
    if (rc < 0)
        return rc;
    if (is_new)
        directory->group_count++;
    else
        directory->free_group = directory->groups[at].free_link;
    directory->groups[at] =
        (struct tierce__directory_group){.id = ++directory->last_group, .is_owner = is_owner};
    memcpy(directory->groups[at].name, name, strlen(name) + 1);
    tierce__numbers_put(&directory->group_table, group_hash(directory, name, is_owner), at);
    return at;
}

/* ---- names ----------------------------------------------------------------------------------- */

static uint32_t name_hash(const struct tierce__directory *directory, uint32_t group,
                          const char *name)
{
    uint64_t seed = directory->seed ^ tierce__mix(group + 1ULL);
    return (uint32_t)(tierce__mix(tierce__hash_text(seed, name)) >> 32);
}

struct tierce__directory_slot *tierce__directory_find_name(struct tierce__directory *directory,
                                                           const char *group, const char *name)
{
    uint32_t at = find_group(directory, group);
    if (at == TIERCE__NUMBER_NONE)
        return NULL;
    TIERCE__NUMBERS_FOR_EACH (it, &directory->names, name_hash(directory, at, name)) {
        struct tierce__directory_slot *slot = &directory->slots[it.number];
        if (slot->group_at == at && strcmp(slot->name, name) == 0)
            return slot;
    }
    return NULL;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* The list that a free slot belongs to: that of its group while the table has something of it. */
static void list_slot(struct tierce__directory *directory, uint32_t at)
{
    struct tierce__directory_slot *slot = &directory->slots[at];
    bool is_clean = atomic_load_explicit(&slot->words, memory_order_acquire) == 0;
    uint32_t *first =
        is_clean ? &directory->free_slot : &directory->groups[slot->group_at].free_slots;
    slot->free_link = *first;
    *first = at + 1;
}

/* Takes the first slot of a list that has an epoch left. */
static struct tierce__directory_slot *unlist_slot(struct tierce__directory *directory,
                                                  uint32_t *first)
{
    for (uint32_t *link = first; *link != 0; link = &directory->slots[*link - 1].free_link) {
        struct tierce__directory_slot *slot = &directory->slots[*link - 1];
        if (slot->epochs_used >= TIERCE__DIRECTORY_EPOCHS_MAX)
            continue;
        *link = slot->free_link;
        slot->free_link = 0;
        return slot;
    }
    return NULL;
}

/* One of the group's own comes first, so that a worker that joins again and again needs no other.
 */
static struct tierce__directory_slot *find_free(struct tierce__directory *directory, uint32_t group)
{
    struct tierce__directory_slot *slot =
        unlist_slot(directory, &directory->groups[group].free_slots);
    if (slot == NULL)
        slot = unlist_slot(directory, &directory->free_slot);
    if (slot == NULL && directory->slots_used < directory->opts.workers_max)
        slot = &directory->slots[directory->slots_used++];
    return slot;
}

/* Frees the place of a group or owner that has nothing. */
static void settle_group(struct tierce__directory *directory, int64_t at)
{
    if (at >= 0 && at != TIERCE__NUMBER_NONE && is_left(directory, (uint32_t)at))
        end_group(directory, (uint32_t)at);
}

/* A slot of the group for a worker of this owner, or NULL. A slot that is not clean counts for the
 * owner that it had. */
static struct tierce__directory_slot *find_slot(struct tierce__directory *directory, uint32_t group,
                                                uint32_t owner)
{
    struct tierce__directory_slot *slot = find_free(directory, group);
    if (slot == NULL || slot->owner_at == owner ||
        atomic_load_explicit(&slot->words, memory_order_acquire) == 0)
        return slot;
    struct tierce__directory_slot *other = unlist_slot(directory, &directory->free_slot);
    if (other == NULL && directory->slots_used < directory->opts.workers_max)
        other = &directory->slots[directory->slots_used++];
    list_slot(directory, (uint32_t)(slot - directory->slots));
    return other;
}

/* Both, or none. *owner: TIERCE__NUMBER_NONE without one. */
static int have_groups(struct tierce__directory *directory,
                       const struct tierce__directory_worker *worker, int64_t *group,
                       int64_t *owner)
{
    char name[TIERCE__DIRECTORY_NAME_BYTES];
    (void)snprintf(name, sizeof(name), "%s", worker->owner != NULL ? worker->owner : "");
    *owner = TIERCE__NUMBER_NONE;
    *group = have_group(directory, worker->group, false);
    if (*group >= 0 && name[0] != '\0')
        *owner = have_group(directory, name, true);
    if (*group >= 0 && *owner >= 0)
        return 0;
    settle_group(directory, *group);
    return (int)(*group < 0 ? *group : *owner);
}

int tierce__directory_take_slot(struct tierce__directory *directory,
                                const struct tierce__directory_worker *worker,
                                struct tierce__directory_slot **out)
{
    int64_t group = TIERCE__NUMBER_NONE, owner = TIERCE__NUMBER_NONE;
    tierce__lock_assert_held(&directory->lock);
    int rc = tierce__numbers_reserve(&directory->names, (size_t)directory->worker_count + 1);
    if (rc == 0)
        rc = have_groups(directory, worker, &group, &owner);
    if (rc < 0)
        return rc;
    struct tierce__directory_slot *slot =
        directory->worker_count < directory->opts.workers_max
            ? find_slot(directory, (uint32_t)group, (uint32_t)owner)
            : NULL;
    if (slot == NULL) {
        settle_group(directory, group);
        settle_group(directory, owner);
        return TIERCE_E_LIMIT;
    }
    directory->groups[group].workers++;
    if (owner != TIERCE__NUMBER_NONE)
        directory->groups[owner].workers++;
    slot->is_joined = true;
    /* While the slot has words, they are equal, and the cleaner reads them without this lock. */
    if (slot->group_at != (uint32_t)group)
        slot->group_at = (uint32_t)group;
    if (slot->owner_at != (uint32_t)owner)
        slot->owner_at = (uint32_t)owner;
    memcpy(slot->name, worker->name, strlen(worker->name) + 1);
    tierce__numbers_put(&directory->names, name_hash(directory, slot->group_at, slot->name),
                        (uint32_t)(slot - directory->slots));
    *out = slot;
    return 0;
}

void tierce__directory_give_slot(struct tierce__directory *directory,
                                 struct tierce__directory_slot *slot)
{
    tierce__lock_assert_held(&directory->lock);
    uint32_t at = (uint32_t)(slot - directory->slots), group = slot->group_at;
    TIERCE_DASSERT(slot->is_joined && directory->groups[group].workers > 0);
    tierce__numbers_erase(&directory->names, name_hash(directory, group, slot->name), at);
    slot->is_joined = false;
    directory->groups[group].workers--;
    if (slot->owner_at != TIERCE__NUMBER_NONE)
        directory->groups[slot->owner_at].workers--;
    list_slot(directory, at);
    settle_group(directory, group);
    settle_group(directory, slot->owner_at);
}

void tierce__directory_list_free(struct tierce__directory *directory)
{
    tierce__lock_assert_held(&directory->lock);
    directory->free_slot = directory->free_group = 0;
    for (uint32_t i = 0; i < directory->group_count; i++)
        directory->groups[i].free_slots = 0;
    for (uint32_t i = directory->slots_used; i-- > 0;) { /* the first ones are used first */
        if (!directory->slots[i].is_joined)
            list_slot(directory, i);
    }
    for (uint32_t i = directory->group_count; i-- > 0;) {
        if (is_left(directory, i))
            end_group(directory, i);
    }
}

void tierce__directory_members_fini(struct tierce__directory *directory)
{
    tierce__numbers_fini(&directory->group_table);
    tierce__numbers_fini(&directory->names);
    tierce__free(directory->groups);
}
