/* SPDX-License-Identifier: Apache-2.0 */
#include "map_keeper.h"
#include "base/assert.h"
#include "test_random.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 100 };

struct map_object {
    struct map_object *next;
    char name[TIERCE_PLUGIN_NAME_MAX];
    size_t name_bytes;
    uint64_t count;
    unsigned refs; /* of leases, and of the map */
    uint8_t data[];
};

struct map_keeper {
    struct tierce__keeper base;
    char space[64];
    uint64_t bytes_max;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, is_ending, holds;
    struct map_object *objects;
    struct tierce__list finds, drops, rooms; /* that are held */
    uint64_t bytes;                          /* of objects and rooms */
    size_t lent, found;
    int fail_status;
    unsigned fail_times;
    struct test_random random;
};

static struct map_keeper *keeper_of(struct tierce__keeper *base)
{
    return (struct map_keeper *)base;
}

static bool is_space(const struct map_keeper *keeper, const struct tierce_plugin_name *space)
{
    return space->bytes == strlen(keeper->space) &&
           memcmp(space->text, keeper->space, space->bytes) == 0;
}

/* Under the mutex. */
static struct map_object **find_object(struct map_keeper *keeper,
                                       const struct tierce_plugin_name *name)
{
    struct map_object **at = &keeper->objects;
    while (*at != NULL &&
           ((*at)->name_bytes != name->bytes || memcmp((*at)->name, name->text, name->bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void let_go(struct map_keeper *keeper, struct map_object *object)
{
    TIERCE_ASSERT(object->refs > 0);
    if (--object->refs > 0)
        return;
    keeper->bytes -= object->count;
    free(object);
}

static void drop_at(struct map_keeper *keeper, struct map_object **at)
{
    struct map_object *object = *at;
    *at = object->next;
    let_go(keeper, object);
}

/* The status of a call that fails because a test wants it, or 0. */
static int next_failure(struct map_keeper *keeper)
{
    if (keeper->fail_times == 0)
        return 0;
    keeper->fail_times--;
    return keeper->fail_status;
}

/* ---- finding --------------------------------------------------------------------------------- */

static void answer_find(struct map_keeper *keeper, struct tierce__keeper_call *find)
{
    pthread_mutex_lock(&keeper->mutex);
    struct map_object *object = *find_object(keeper, &find->name);
    keeper->found++;
    find->status = next_failure(keeper);
    if (find->status == 0 && !is_space(keeper, &find->space))
        find->status = TIERCE_E_ARGUMENT;
    if (find->status == 0 && object == NULL)
        find->status = TIERCE_E_MISS;
    if (find->status == 0) {
        object->refs++;
        keeper->lent++;
        find->lease = (struct tierce__keeper_lease){
            .data = object->data, .bytes = object->count, .owner = object};
    }
    pthread_mutex_unlock(&keeper->mutex);
    find->done(find);
}

/* Whether it is answered later. */
static bool is_held(struct map_keeper *keeper, struct tierce__list *list, struct tierce__list *node)
{
    pthread_mutex_lock(&keeper->mutex);
    bool held = keeper->holds || keeper->has_thread;
    if (held)
        tierce__list_push_back(list, node);
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    return held;
}

static void keeper_find(struct tierce__keeper *base, struct tierce__keeper_call *find)
{
    struct map_keeper *keeper = keeper_of(base);
    if (!is_held(keeper, &keeper->finds, &find->node))
        answer_find(keeper, find);
}

static void answer_drop(struct map_keeper *keeper, struct tierce__keeper_call *call)
{
    pthread_mutex_lock(&keeper->mutex);
    struct map_object **at = find_object(keeper, &call->name);
    call->status = is_space(keeper, &call->space) ? next_failure(keeper) : TIERCE_E_ARGUMENT;
    if (call->status == 0 && *at != NULL)
        drop_at(keeper, at);
    pthread_mutex_unlock(&keeper->mutex);
    call->done(call);
}

static void keeper_drop(struct tierce__keeper *base, struct tierce__keeper_call *call)
{
    struct map_keeper *keeper = keeper_of(base);
    if (!is_held(keeper, &keeper->drops, &call->node))
        answer_drop(keeper, call);
}

static void keeper_release(struct tierce__keeper *base, struct tierce__keeper_lease *lease)
{
    struct map_keeper *keeper = keeper_of(base);
    pthread_mutex_lock(&keeper->mutex);
    TIERCE_ASSERT(keeper->lent > 0);
    keeper->lent--;
    let_go(keeper, lease->owner);
    pthread_mutex_unlock(&keeper->mutex);
}

static int keeper_measure(struct tierce__keeper *base, const struct tierce_plugin_name *space,
                          const struct tierce_plugin_name *name, uint64_t *bytes)
{
    struct map_keeper *keeper = keeper_of(base);
    pthread_mutex_lock(&keeper->mutex);
    const struct map_object *object = *find_object(keeper, name);
    int rc = !is_space(keeper, space) ? TIERCE_E_ARGUMENT : object == NULL ? TIERCE_E_MISS : 0;
    if (rc == 0)
        *bytes = object->count;
    pthread_mutex_unlock(&keeper->mutex);
    return rc;
}

static bool keeper_has(struct tierce__keeper *base, const struct tierce_plugin_name *space)
{
    return is_space(keeper_of(base), space);
}

/* ---- keeping --------------------------------------------------------------------------------- */

static int keeper_make(struct tierce__keeper *base, struct tierce__keeper_room *room,
                       const struct tierce_plugin_name *space,
                       const struct tierce_plugin_name *name, uint64_t bytes)
{
    struct map_keeper *keeper = keeper_of(base);
    struct map_object *object = NULL;
    pthread_mutex_lock(&keeper->mutex);
    int rc = next_failure(keeper);
    if (rc == 0 && !is_space(keeper, space))
        rc = TIERCE_E_ARGUMENT;
    if (rc == 0 && bytes > keeper->bytes_max)
        rc = TIERCE_E_LIMIT;
    if (rc == 0 && bytes > keeper->bytes_max - keeper->bytes)
        rc = TIERCE_E_FULL;
    if (rc == 0) {
        object = malloc(sizeof(*object) + bytes);
        TIERCE_ASSERT(object != NULL);
        *object = (struct map_object){.name_bytes = name->bytes, .count = bytes, .refs = 1};
        memcpy(object->name, name->text, name->bytes);
        keeper->bytes += bytes;
        keeper->lent++;
        room->data = object->data;
        room->bytes = bytes;
        room->owner = object;
    }
    pthread_mutex_unlock(&keeper->mutex);
    return rc;
}

static void answer_keep(struct map_keeper *keeper, struct tierce__keeper_room *room)
{
    struct map_object *object = room->owner;
    pthread_mutex_lock(&keeper->mutex);
    struct map_object **at =
        find_object(keeper, &(struct tierce_plugin_name){object->name, object->name_bytes});
    room->status = next_failure(keeper);
    keeper->lent--;
    if (room->status == 0) {
        if (*at != NULL)
            drop_at(keeper, at);
        object->next = keeper->objects;
        keeper->objects = object;
    } else {
        let_go(keeper, object);
    }
    pthread_mutex_unlock(&keeper->mutex);
    room->done(room);
}

static void keeper_keep(struct tierce__keeper *base, struct tierce__keeper_room *room)
{
    struct map_keeper *keeper = keeper_of(base);
    if (!is_held(keeper, &keeper->rooms, &room->node))
        answer_keep(keeper, room);
}

static void keeper_abandon(struct tierce__keeper *base, struct tierce__keeper_room *room)
{
    struct map_keeper *keeper = keeper_of(base);
    pthread_mutex_lock(&keeper->mutex);
    keeper->lent--;
    let_go(keeper, room->owner);
    pthread_mutex_unlock(&keeper->mutex);
}

/* ---- listing --------------------------------------------------------------------------------- */

/* The cursor is the address of the last name told: new objects come in front. A page that begins at
 * an object that is gone begins anew. */
static int keeper_list(struct tierce__keeper *base, const struct tierce_plugin_name *space,
                       const struct tierce_plugin_name *prefix, uint64_t *cursor,
                       tierce_plugin_each_fn *each, void *arg)
{
    struct map_keeper *keeper = keeper_of(base);
    static _Thread_local char names[PAGE][TIERCE_PLUGIN_NAME_MAX];
    size_t lengths[PAGE], count = 0;
    pthread_mutex_lock(&keeper->mutex);
    int rc = is_space(keeper, space) ? 0 : TIERCE_E_ARGUMENT;
    struct map_object *at = keeper->objects;
    while (*cursor != 0 && at != NULL && (uint64_t)(uintptr_t)at != *cursor)
        at = at->next;
    at = *cursor != 0 && at == NULL ? keeper->objects : at;
    for (*cursor = 0; rc == 0 && at != NULL && *cursor == 0; at = at->next) {
        if (at->name_bytes < prefix->bytes || memcmp(at->name, prefix->text, prefix->bytes) != 0)
            continue;
        if (count == PAGE) {
            *cursor = (uint64_t)(uintptr_t)at;
        } else {
            lengths[count] = at->name_bytes;
            memcpy(names[count++], at->name, at->name_bytes);
        }
    }
    pthread_mutex_unlock(&keeper->mutex);
    for (size_t i = 0; i < count; i++)
        each(arg, &(struct tierce_plugin_name){names[i], lengths[i]});
    return rc;
}

/* ---- of tests -------------------------------------------------------------------------------- */

static const struct tierce__keeper_ops ops = {.has = keeper_has,
                                              .find = keeper_find,
                                              .release = keeper_release,
                                              .measure = keeper_measure,
                                              .make = keeper_make,
                                              .keep = keeper_keep,
                                              .abandon = keeper_abandon,
                                              .drop = keeper_drop,
                                              .list = keeper_list};

struct map_keeper *map_keeper_create(const char *space, uint64_t bytes_max)
{
    struct map_keeper *keeper = calloc(1, sizeof(*keeper));
    TIERCE_ASSERT(keeper != NULL);
    keeper->base.ops = &ops;
    keeper->bytes_max = bytes_max;
    snprintf(keeper->space, sizeof(keeper->space), "%s", space);
    pthread_mutex_init(&keeper->mutex, NULL);
    pthread_cond_init(&keeper->changed, NULL);
    tierce__list_init(&keeper->finds);
    tierce__list_init(&keeper->drops);
    tierce__list_init(&keeper->rooms);
    keeper->random = (struct test_random){42};
    return keeper;
}

struct tierce__keeper *map_keeper_base(struct map_keeper *keeper)
{
    return &keeper->base;
}

/* Any of the first three. Under the mutex. NULL: there is none. */
static struct tierce__list *take_held(struct map_keeper *keeper, struct tierce__list *list,
                                      bool in_order)
{
    struct tierce__list *node = list->next;
    if (tierce__list_empty(list))
        return NULL;
    for (uint32_t n = in_order ? 0 : test_random_below(&keeper->random, 3); n > 0; n--)
        node = node->next != list ? node->next : node;
    tierce__list_remove(node);
    return node;
}

/* Answers one find, one drop and one keep of those that are held. False: there are none. */
static bool answer_some(struct map_keeper *keeper, bool in_order)
{
    pthread_mutex_lock(&keeper->mutex);
    struct tierce__list *find = take_held(keeper, &keeper->finds, in_order);
    struct tierce__list *drop = take_held(keeper, &keeper->drops, in_order);
    struct tierce__list *room = take_held(keeper, &keeper->rooms, in_order);
    pthread_mutex_unlock(&keeper->mutex);
    if (room != NULL)
        answer_keep(keeper, TIERCE__CONTAINER_OF(room, struct tierce__keeper_room, node));
    if (drop != NULL)
        answer_drop(keeper, TIERCE__CONTAINER_OF(drop, struct tierce__keeper_call, node));
    if (find != NULL)
        answer_find(keeper, TIERCE__CONTAINER_OF(find, struct tierce__keeper_call, node));
    return find != NULL || drop != NULL || room != NULL;
}

/* Under the mutex. */
static bool has_held(struct map_keeper *keeper)
{
    return !tierce__list_empty(&keeper->finds) || !tierce__list_empty(&keeper->drops) ||
           !tierce__list_empty(&keeper->rooms);
}

static void *run_late(void *arg)
{
    struct map_keeper *keeper = arg;
    bool is_ending = false;
    while (!is_ending) {
        pthread_mutex_lock(&keeper->mutex);
        while (!keeper->is_ending && !has_held(keeper))
            pthread_cond_wait(&keeper->changed, &keeper->mutex);
        is_ending = keeper->is_ending;
        pthread_mutex_unlock(&keeper->mutex);
        while (answer_some(keeper, false))
            ;
    }
    return NULL;
}

void map_keeper_set_late(struct map_keeper *keeper)
{
    keeper->has_thread = true;
    TIERCE_ASSERT(pthread_create(&keeper->thread, NULL, run_late, keeper) == 0);
}

void map_keeper_hold(struct map_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    keeper->holds = true;
    pthread_mutex_unlock(&keeper->mutex);
}

void map_keeper_let_go(struct map_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    keeper->holds = false;
    pthread_mutex_unlock(&keeper->mutex);
    while (answer_some(keeper, true))
        ;
}

size_t map_keeper_held(struct map_keeper *keeper)
{
    size_t count = 0;
    pthread_mutex_lock(&keeper->mutex);
    TIERCE__LIST_FOR_EACH (it, &keeper->finds)
        count++;
    TIERCE__LIST_FOR_EACH (it, &keeper->drops)
        count++;
    TIERCE__LIST_FOR_EACH (it, &keeper->rooms)
        count++;
    pthread_mutex_unlock(&keeper->mutex);
    return count;
}

void map_keeper_fail(struct map_keeper *keeper, int status, unsigned times)
{
    pthread_mutex_lock(&keeper->mutex);
    keeper->fail_status = status;
    keeper->fail_times = times;
    pthread_mutex_unlock(&keeper->mutex);
}

size_t map_keeper_finds(struct map_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    size_t found = keeper->found;
    pthread_mutex_unlock(&keeper->mutex);
    return found;
}

size_t map_keeper_objects(struct map_keeper *keeper)
{
    size_t count = 0;
    pthread_mutex_lock(&keeper->mutex);
    for (const struct map_object *at = keeper->objects; at != NULL; at = at->next)
        count++;
    pthread_mutex_unlock(&keeper->mutex);
    return count;
}

size_t map_keeper_lent(struct map_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    size_t lent = keeper->lent;
    pthread_mutex_unlock(&keeper->mutex);
    return lent;
}

void map_keeper_clear(struct map_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    while (keeper->objects != NULL)
        drop_at(keeper, &keeper->objects);
    pthread_mutex_unlock(&keeper->mutex);
}

void map_keeper_destroy(struct map_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    keeper->is_ending = true;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    if (keeper->has_thread)
        pthread_join(keeper->thread, NULL);
    TIERCE_ASSERT(map_keeper_held(keeper) == 0);
    TIERCE_ASSERT(keeper->lent == 0);
    map_keeper_clear(keeper);
    TIERCE_ASSERT(keeper->bytes == 0);
    free(keeper);
}
