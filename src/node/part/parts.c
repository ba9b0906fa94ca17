/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a node as a keeper: which part a space is, and whether it can be used. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/threads/threads.h"
#include "node/part/part_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define SHORT_MS 5000u /* after a write that found no buffer */

struct tierce__parts {
    struct tierce__keeper keeper;
    struct tierce__part *parts[TIERCE__PARTS_MAX];
    size_t count;
    struct tierce__lock lock; /* PARTS: below, and a part's incarnation and reason */
    struct tierce__cond told;
    void (*watch)(void *arg); /* NULL: none */
    void *watch_arg;
    uint32_t telling; /* calls of it in progress */
};

static struct tierce__parts *parts_of(struct tierce__keeper *keeper)
{
    return TIERCE__CONTAINER_OF(keeper, struct tierce__parts, keeper);
}

/* ---- rooms and calls ------------------------------------------------------------------------- */

void tierce__part_end_call(struct tierce__keeper_call *call, int status)
{
    TIERCE_ASSERT(status <= 0);
    call->status = status;
    call->done(call);
}

void tierce__part_end_room(struct tierce__keeper_room *room, int status)
{
    TIERCE_ASSERT(status <= 0);
    room->status = status;
    room->done(room);
}

int tierce__part_make_room(struct tierce__part *part, struct tierce__part_room *own,
                           struct tierce__keeper_room *room, const struct tierce_plugin_name *name,
                           uint64_t bytes)
{
    *own = (struct tierce__part_room){.part = part};
    int rc = tierce__part_index_reserve(&part->index, &own->object, name, bytes);
    if (rc != 0)
        return rc;
    rc = tierce__pool_alloc(part->pool, &own->buf, bytes);
    if (rc != 0) {
        /* The space is not full: a buffer is missing. */
        atomic_store_explicit(&part->short_ns, tierce__now_ns(), memory_order_relaxed);
        bool is_busy = rc == TIERCE_E_FULL && part->ops->freed != NULL;
        tierce__part_index_cancel(&part->index, own->object);
        return is_busy ? TIERCE_E_LIMIT : rc;
    }
    room->data = own->buf->data;
    room->bytes = bytes;
    room->owner = own;
    return 0;
}

/* ---- the keeper ------------------------------------------------------------------------------ */

/* 0, or why no object of the space can be reached. */
static int find_part(struct tierce__parts *parts, struct tierce__part **out,
                     const struct tierce_plugin_name *space)
{
    for (size_t i = 0; i < parts->count; i++) {
        struct tierce__part *part = parts->parts[i];
        if (strlen(part->space) != space->bytes ||
            memcmp(part->space, space->text, space->bytes) != 0)
            continue;
        *out = part;
        return atomic_load_explicit(&part->status, memory_order_acquire) == 0 ? 0 : TIERCE_E_DOWN;
    }
    return TIERCE_E_ARGUMENT;
}

static bool parts_has(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    struct tierce__part *part = NULL;
    return find_part(parts_of(keeper), &part, space) != TIERCE_E_ARGUMENT;
}

static void parts_find(struct tierce__keeper *keeper, struct tierce__keeper_call *call)
{
    struct tierce__part *part = NULL;
    int rc = find_part(parts_of(keeper), &part, &call->space);
    if (rc == 0)
        part->ops->find(part, call);
    else
        tierce__part_end_call(call, rc);
}

static void parts_release(struct tierce__keeper *keeper, struct tierce__keeper_lease *lease)
{
    struct tierce__parts *parts = parts_of(keeper);
    struct tierce__buf *buf = lease->owner;
    TIERCE_ASSERT(buf != NULL);
    const struct tierce__pool *pool = buf->pool;
    tierce__buf_release(buf);
    *lease = (struct tierce__keeper_lease){0};
    for (size_t i = 0; i < parts->count; i++) {
        struct tierce__part *part = parts->parts[i];
        if (part->pool == pool && part->ops->freed != NULL)
            part->ops->freed(part);
    }
}

static int parts_measure(struct tierce__keeper *keeper, const struct tierce_plugin_name *space,
                         const struct tierce_plugin_name *name, uint64_t *bytes)
{
    struct tierce__part *part = NULL;
    int rc = find_part(parts_of(keeper), &part, space);
    if (rc != 0)
        return rc;
    return tierce__part_index_find(&part->index, name, bytes, NULL) ? 0 : TIERCE_E_MISS;
}

static int parts_make(struct tierce__keeper *keeper, struct tierce__keeper_room *room,
                      const struct tierce_plugin_name *space, const struct tierce_plugin_name *name,
                      uint64_t bytes)
{
    struct tierce__part *part = NULL;
    int rc = find_part(parts_of(keeper), &part, space);
    if (rc != 0)
        return rc;
    if (bytes == 0 || name->bytes == 0 || name->bytes > TIERCE_PLUGIN_NAME_MAX)
        return TIERCE_E_ARGUMENT;
    return part->ops->make(part, room, name, bytes);
}

static void parts_keep(struct tierce__keeper *keeper, struct tierce__keeper_room *room)
{
    struct tierce__part_room *own = room->owner;
    (void)keeper;
    own->part->ops->keep(own->part, room);
}

static void parts_abandon(struct tierce__keeper *keeper, struct tierce__keeper_room *room)
{
    struct tierce__part_room *own = room->owner;
    (void)keeper;
    own->part->ops->abandon(own->part, room);
}

static void parts_drop(struct tierce__keeper *keeper, struct tierce__keeper_call *call)
{
    struct tierce__part *part = NULL;
    int rc = find_part(parts_of(keeper), &part, &call->space);
    if (rc == 0)
        part->ops->drop(part, call);
    else
        tierce__part_end_call(call, rc);
}

static int parts_list(struct tierce__keeper *keeper, const struct tierce_plugin_name *space,
                      const struct tierce_plugin_name *prefix, uint64_t *cursor,
                      tierce_plugin_each_fn *each, void *arg)
{
    struct tierce__part *part = NULL;
    int rc = find_part(parts_of(keeper), &part, space);
    return rc == 0 ? tierce__part_index_list(&part->index, prefix, cursor, each, arg) : rc;
}

static bool parts_is_short(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    struct tierce__part *part = NULL;
    if (find_part(parts_of(keeper), &part, space) == TIERCE_E_ARGUMENT)
        return false;
    uint64_t short_ns = atomic_load_explicit(&part->short_ns, memory_order_relaxed);
    return (short_ns > 0 && tierce__now_ns() - short_ns < SHORT_MS * TIERCE__MS_NS) ||
           (part->ops->has_waiting != NULL && part->ops->has_waiting(part));
}

static void parts_end(struct tierce__keeper *keeper, uint64_t deadline_ns)
{
    tierce__parts_end(parts_of(keeper), deadline_ns);
}

static const struct tierce__keeper_ops keeper_ops = {
    .has = parts_has,
    .find = parts_find,
    .release = parts_release,
    .measure = parts_measure,
    .make = parts_make,
    .keep = parts_keep,
    .abandon = parts_abandon,
    .drop = parts_drop,
    .list = parts_list,
    .is_short = parts_is_short,
    .end = parts_end,
};

struct tierce__keeper *tierce__parts_keeper(struct tierce__parts *parts)
{
    return &parts->keeper;
}

/* ---- state ----------------------------------------------------------------------------------- */

size_t tierce__parts_count(const struct tierce__parts *parts)
{
    return parts->count;
}

void tierce__parts_state(struct tierce__parts *parts, size_t index, struct tierce__part_state *out)
{
    TIERCE_ASSERT(index < parts->count);
    struct tierce__part *part = parts->parts[index];
    int status = atomic_load_explicit(&part->status, memory_order_acquire);
    *out = (struct tierce__part_state){.space = part->space, .is_ready = status == 0};
    tierce__lock_take(&parts->lock);
    memcpy(out->incarnation, part->incarnation, sizeof(out->incarnation));
    memcpy(out->why, part->why, sizeof(out->why));
    tierce__lock_drop(&parts->lock);
    tierce__part_index_count(&part->index, &out->capacity_bytes, &out->used_bytes, &out->objects);
}

int tierce__part_new_incarnation(uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES])
{
    ssize_t got = getrandom(incarnation, TIERCE__PART_INCARNATION_BYTES, 0);
    return got == (ssize_t)TIERCE__PART_INCARNATION_BYTES ? 0 : -EIO;
}

/* Returns whether the status is another one than before. */
static bool set_status(struct tierce__part *part, int status, const char *why)
{
    struct tierce__parts *parts = part->parts;
    tierce__lock_take(&parts->lock);
    bool is_news = why[0] != '\0' && part->why[0] == '\0';
    bool is_other = atomic_load_explicit(&part->status, memory_order_relaxed) != status;
    snprintf(part->why, sizeof(part->why), "%s", why);
    atomic_store_explicit(&part->status, status, memory_order_release);
    tierce__lock_drop(&parts->lock);
    if (is_news)
        tierce__log(TIERCE_LOG_ERROR, "part_unreadable", "space=%s err=\"%s\"", part->space, why);
    return is_other;
}

void tierce__part_report(struct tierce__part *part, int status, const char *why)
{
    struct tierce__parts *parts = part->parts;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (!set_status(part, status, why))
        return;
    tierce__lock_take(&parts->lock);
    void (*watch)(void *) = parts->watch;
    void *arg = parts->watch_arg;
    parts->telling += watch != NULL;
    tierce__lock_drop(&parts->lock);
    if (watch == NULL)
        return;
    watch(arg);
    tierce__lock_take(&parts->lock);
    parts->telling--;
    tierce__cond_broadcast(&parts->told);
    tierce__lock_drop(&parts->lock);
}

void tierce__parts_watch(struct tierce__parts *parts, void (*watch)(void *arg), void *arg)
{
    tierce__lock_take(&parts->lock);
    parts->watch = watch;
    parts->watch_arg = arg;
    while (parts->telling > 0)
        (void)tierce__cond_wait(&parts->told, &parts->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&parts->lock);
}

/* ---- forgetting ------------------------------------------------------------------------------ */

static void *run_forget(void *arg)
{
    struct tierce__part *part = arg;
    struct tierce__parts *parts = part->parts;
    uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES];
    uint64_t capacity_bytes, used_bytes, before, begun_ns = tierce__now_ns();
    tierce__part_index_count(&part->index, &capacity_bytes, &used_bytes, &before);
    int rc = part->ops->forget(part, incarnation);
    if (rc == 0) {
        tierce__lock_take(&parts->lock);
        memcpy(part->incarnation, incarnation, sizeof(incarnation));
        tierce__lock_drop(&parts->lock);
    }
    if (rc == 0)
        tierce__log(TIERCE_LOG_WARN, "node_part_forgotten", "space=%s objects=%llu ms=%llu",
                    part->space, (unsigned long long)before,
                    (unsigned long long)((tierce__now_ns() - begun_ns) / TIERCE__MS_NS));
    else if (rc != TIERCE_E_CLOSED)
        tierce__log_repeated(TIERCE_LOG_ERROR, "node_part_not_forgotten",
                             "space=%s err=\"%s\" consequence=\"it is tried again\"", part->space,
                             tierce_strerror(rc));
    /* A part that could not be emptied is not news: told at once, the manager would ask for the
     * same at once, as fast as it can be reached. */
    if (rc == 0)
        tierce__part_report(part, 0, "");
    else
        (void)set_status(part, rc == TIERCE_E_CLOSED ? rc : 0, "");
    return NULL;
}

static void join_forgetter(struct tierce__part *part)
{
    if (part->has_forgetter)
        (void)pthread_join(part->forgetter, NULL);
    part->has_forgetter = false;
}

int tierce__parts_forget(struct tierce__parts *parts, size_t index)
{
    TIERCE_ASSERT(index < parts->count);
    struct tierce__part *part = parts->parts[index];
    int ready = 0;
    if (!atomic_compare_exchange_strong_explicit(&part->status, &ready, -EINPROGRESS,
                                                 memory_order_acq_rel, memory_order_acquire))
        return TIERCE_E_DOWN;
    join_forgetter(part); /* an earlier one, which has reported its end */
    int rc = tierce__thread_start(&part->forgetter, run_forget, part);
    part->has_forgetter = rc == 0;
    if (rc != 0)
        atomic_store_explicit(&part->status, 0, memory_order_release);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

int tierce__parts_open(struct tierce__parts **out, const struct tierce__parts_opts *opts,
                       char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__parts *parts = tierce__calloc(1, sizeof(*parts));
    int rc = parts != NULL ? 0 : -ENOMEM;
    why[0] = '\0';
    if (rc == 0) {
        parts->keeper.ops = &keeper_ops;
        tierce__lock_init(&parts->lock, TIERCE__LOCK_PARTS);
        tierce__cond_init(&parts->told);
    }
    if (rc == 0 && opts->memory_bytes > 0)
        rc = tierce__part_memory_open(&parts->parts[0], parts, opts->memory_bytes);
    if (rc == 0 && opts->memory_bytes > 0)
        parts->count++;
    if (rc == 0 && opts->disk_path[0] != '\0') {
        rc = tierce__part_disk_open(&parts->parts[parts->count], parts, opts, why);
        parts->count += rc == 0;
    }
    if (rc == 0) {
        *out = parts;
        return 0;
    }
    if (why[0] == '\0')
        snprintf(why, 256, "the node's part of the pool: %s", tierce_strerror(rc));
    tierce__parts_close(parts, 0);
    return rc;
}

void tierce__parts_end(struct tierce__parts *parts, uint64_t deadline_ns)
{
    for (size_t i = 0; i < parts->count; i++)
        atomic_store_explicit(&parts->parts[i]->is_closing, true, memory_order_relaxed);
    for (size_t i = 0; i < parts->count; i++) {
        struct tierce__part *part = parts->parts[i];
        if (part->ops->end != NULL)
            part->ops->end(part, deadline_ns);
        join_forgetter(part);
        atomic_store_explicit(&part->status, TIERCE_E_CLOSED, memory_order_release);
    }
}

void tierce__parts_close(struct tierce__parts *parts, uint64_t deadline_ns)
{
    if (parts == NULL)
        return;
    tierce__parts_end(parts, deadline_ns);
    for (size_t i = 0; i < parts->count; i++)
        parts->parts[i]->ops->close(parts->parts[i]);
    tierce__cond_fini(&parts->told);
    tierce__lock_fini(&parts->lock);
    tierce__free(parts);
}
