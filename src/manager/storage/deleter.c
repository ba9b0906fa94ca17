/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/deleter_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/threads.h"
#include "manager/locate/locator_private.h"
#include "manager/storage/storage_table.h"

#include <errno.h>

struct tierce__deleter {
    struct tierce__locator *locator;
    struct tierce__lock lock; /* DELETER: guards the fields below */
    struct tierce__cond wake, idle;
    struct tierce__deadlines waiting;
    struct tierce__list all; /* batches that wait or are executed */
    uint64_t executing;
    struct tierce__storage_table left; /* of struct left_in */
    uint64_t uncounted, given_up;      /* batches without memory for their counts; locations of
                                          those that were left to the next leader */
    struct tierce__deleter_stats stats;
    bool is_ending;
    struct tierce__threads threads;
};

/* ---- counts by storage ----------------------------------------------------------------------- */

struct left_in {
    uint64_t locations;
    uint64_t last; /* no batch of the storage is tried later */
};

static struct left_in *left_of(struct tierce__deleter *deleter,
                               const struct tierce__deletion *deletion, size_t i)
{
    tierce__lock_assert_held(&deleter->lock);
    return tierce__storage_table_make(&deleter->left, deletion->items[i].location.storage);
}

static void count_batch(struct tierce__deleter *deleter, struct tierce__deletion *deletion)
{
    TIERCE_DASSERT(!deletion->is_counted);
    for (size_t i = 0; i < deletion->count; i++) {
        if (left_of(deleter, deletion, i) == NULL) {
            deleter->uncounted++;
            return;
        }
    }
    deletion->is_counted = true;
    for (size_t i = 0; i < deletion->count; i++)
        left_of(deleter, deletion, i)->locations++;
}

/* A batch that `is_given_up` is still to be done, by the next leader. */
static void uncount_batch(struct tierce__deleter *deleter, const struct tierce__deletion *deletion,
                          bool is_given_up)
{
    tierce__lock_assert_held(&deleter->lock);
    if (!deletion->is_counted) {
        TIERCE_ASSERT(deleter->uncounted > 0);
        deleter->uncounted--;
        deleter->given_up += is_given_up ? deletion->count : 0;
        return;
    }
    for (size_t i = 0; i < deletion->count && !is_given_up; i++) {
        struct left_in *left = left_of(deleter, deletion, i);
        TIERCE_ASSERT(left->locations > 0);
        left->locations--;
        left->last = left->locations > 0 ? left->last : 0;
    }
}

/* ---- the queue ------------------------------------------------------------------------------- */

static int64_t back_off_us(uint32_t tries)
{
    enum { FIRST_US = 1000000, DOUBLINGS_MAX = 6 };
    return (int64_t)FIRST_US << (tries < DOUBLINGS_MAX ? tries : DOUBLINGS_MAX);
}

static struct tierce__deletion *take_due(struct tierce__deleter *deleter)
{
    tierce__lock_assert_held(&deleter->lock);
    struct tierce__deadline *first = tierce__deadlines_first(&deleter->waiting);
    if (first == NULL || first->at > tierce__due(tierce__locator_now_us(deleter->locator)))
        return NULL;
    tierce__deadline_unset(&deleter->waiting, first);
    TIERCE_DASSERT(first->place == 0);
    deleter->executing++;
    return TIERCE__CONTAINER_OF(first, struct tierce__deletion, deadline);
}

/* DELETER held. If memory runs out, the batch is left to the next leader: its note is stored, and
 * its bytes and locations count until then. */
static bool wait_again(struct tierce__deleter *deleter, struct tierce__deletion *deletion,
                       int64_t due_us)
{
    tierce__lock_assert_held(&deleter->lock);
    TIERCE_ASSERT(deletion->deadline.place == 0);
    int rc = tierce__deadline_set(&deleter->waiting, &deletion->deadline, tierce__due(due_us));
    TIERCE_DASSERT((rc == 0) == (deletion->deadline.place != 0));
    if (rc < 0)
        tierce__log(TIERCE_LOG_ERROR, "manager.delete_put_off",
                    "instance=%s locations=%zu error=\"no memory for the queue\" "
                    "consequence=\"the next leader deletes them\"",
                    deletion->live->instance.id, deletion->count);
    for (size_t i = 0; i < deletion->count && rc == 0 && deletion->is_counted; i++) {
        struct left_in *left = left_of(deleter, deletion, i);
        left->last = deletion->deadline.at > left->last ? deletion->deadline.at : left->last;
    }
    return rc == 0;
}

/* A batch is done, or its note is left to the next leader. */
static void end_batch(struct tierce__deleter *deleter, struct tierce__deletion *deletion,
                      bool is_given_up)
{
    tierce__lock_take(&deleter->lock);
    tierce__list_remove(&deletion->node);
    uncount_batch(deleter, deletion, is_given_up);
    tierce__lock_drop(&deleter->lock);
    tierce__deletion_destroy(deletion);
}

static void forget_keys(struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    struct tierce__live *live = deletion->live;
    if (deletion->is_sweep)
        return;
    tierce__lock_take(&live->lock);
    tierce__deleting_unnote(&live->deleting, deletion);
    tierce__lock_drop(&live->lock);
}

/* DELETER held. Queues a batch that was tried again, or finishes it. Returns whether it was
 * queued. */
static bool decide(struct tierce__deleter *deleter, struct tierce__deletion *deletion, int rc)
{
    tierce__lock_assert_held(&deleter->lock);
    TIERCE_ASSERT(deleter->executing > 0);
    if (rc < 0) {
        deleter->stats.failed_tries++;
        int64_t due_us = tierce__locator_now_us(deleter->locator) + back_off_us(deletion->tries);
        deletion->tries++;
        return wait_again(deleter, deletion, due_us);
    }
    if (deletion->is_sweep)
        return false;
    deleter->stats.done_locations += deletion->count;
    if (deletion->sweep_us == 0)
        return false;
    TIERCE_ASSERT(!deletion->is_end_doubtful && deletion->sweep_us > 0);
    deletion->is_sweep = true;
    deletion->tries = 0;
    return wait_again(deleter, deletion, deletion->sweep_us);
}

/* The keys of a batch are also those of the batches that replace it, until it is destroyed. */
static void submit_split(struct tierce__deleter *deleter, struct tierce__deletion *deletion)
{
    for (size_t i = 0; i < deletion->split_count; i++)
        tierce__deleter_submit(deleter, deletion->split[i]);
    deletion->split_count = 0;
}

/* Processes a batch that is due and counted as executing. It counts until it is queued again or
 * destroyed. */
static bool work_at(struct tierce__deleter *deleter, struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    uint64_t orphans = 0;
    bool is_doubtful = deletion->is_doubtful, was_sweep = deletion->is_sweep;
    int rc = tierce__deletion_do(deletion, &orphans);
    bool never_was = is_doubtful && deletion->is_doubtful && rc == -ENOENT;
    bool is_split = deletion->is_split;
    if (is_split)
        submit_split(deleter, deletion);
    if (rc == 0 || never_was)
        forget_keys(deletion);
    else if (deletion->tries == 0)
        tierce__log(TIERCE_LOG_WARN, "manager.delete_failed",
                    "instance=%s locations=%zu error=%s; it will be retried",
                    deletion->live->instance.id, deletion->count, tierce_error_name(rc));
    tierce__lock_take(&deleter->lock);
    deleter->stats.orphaned_locations += orphans;
    deleter->stats.failed_tries += is_split;
    if (never_was || is_split || !decide(deleter, deletion, rc)) {
        tierce__lock_drop(&deleter->lock);
        if (rc < 0 && !never_was)
            forget_keys(deletion);
        bool is_done = never_was || is_split || (rc == 0 && (deletion->sweep_us == 0 || was_sweep));
        end_batch(deleter, deletion, !is_done);
        tierce__lock_take(&deleter->lock);
    }
    TIERCE_ASSERT(deleter->executing > 0);
    deleter->executing--;
    tierce__cond_broadcast(&deleter->idle);
    tierce__lock_drop(&deleter->lock);
    return rc == 0 && !is_split;
}

void tierce__deleter_submit(struct tierce__deleter *deleter, struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(!deletion->is_end_doubtful && deletion->tries == 0);
    TIERCE_ASSERT(deletion->deadline.place == 0 && deletion->count <= deletion->room);
    TIERCE_ASSERT(deletion->live->locator == deleter->locator);
    if (!deletion->is_sweep) {
        tierce__lock_take(&deletion->live->lock);
        tierce__deleting_note(&deletion->live->deleting, deletion);
        tierce__lock_drop(&deletion->live->lock);
    }
    tierce__lock_take(&deleter->lock);
    int64_t due_us = deletion->is_sweep ? deletion->sweep_us : deletion->due_us;
    tierce__list_push_back(&deleter->all, &deletion->node);
    count_batch(deleter, deletion);
    /* Room for all, so that a batch that was tried can be queued again. */
    size_t all = deleter->waiting.count + deleter->executing + 1;
    bool waits = tierce__deadlines_reserve(&deleter->waiting, all) == 0 &&
                 wait_again(deleter, deletion, due_us);
    tierce__cond_signal(&deleter->wake);
    tierce__lock_drop(&deleter->lock);
    if (!waits) {
        forget_keys(deletion);
        end_batch(deleter, deletion, true);
    }
}

size_t tierce__deleter_step(struct tierce__deleter *deleter, size_t batches_max)
{
    size_t done = 0;
    for (size_t i = 0; i < batches_max; i++) {
        tierce__lock_take(&deleter->lock);
        struct tierce__deletion *deletion = take_due(deleter);
        tierce__lock_drop(&deleter->lock);
        if (deletion == NULL)
            break;
        done += work_at(deleter, deletion);
    }
    return done;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* The maximum sleep, because the wall clock may be set. */
enum { LOOK_MS = 200 };

static void *run(void *arg)
{
    struct tierce__deleter *deleter = arg;
    tierce__lock_take(&deleter->lock);
    while (!deleter->is_ending) {
        struct tierce__deletion *deletion = take_due(deleter);
        if (deletion == NULL) {
            (void)tierce__cond_wait(&deleter->wake, &deleter->lock,
                                    tierce__deadline_in_ms(LOOK_MS));
            continue;
        }
        tierce__lock_drop(&deleter->lock);
        (void)work_at(deleter, deletion);
        tierce__lock_take(&deleter->lock);
    }
    tierce__lock_drop(&deleter->lock);
    return NULL;
}

static void end_threads(struct tierce__deleter *deleter)
{
    tierce__lock_take(&deleter->lock);
    TIERCE_ASSERT(!deleter->is_ending);
    deleter->is_ending = true;
    tierce__cond_broadcast(&deleter->wake);
    tierce__lock_drop(&deleter->lock);
    tierce__threads_join(&deleter->threads);
}

int tierce__deleter_create(struct tierce__deleter **out, struct tierce__locator *locator,
                           uint32_t threads)
{
    struct tierce__deleter *deleter = tierce__calloc(1, sizeof(*deleter));
    if (deleter == NULL)
        return -ENOMEM;
    deleter->locator = locator;
    deleter->left.item_bytes = sizeof(struct left_in);
    tierce__lock_init(&deleter->lock, TIERCE__LOCK_DELETER);
    tierce__cond_init(&deleter->wake);
    tierce__cond_init(&deleter->idle);
    tierce__list_init(&deleter->all);
    int rc = tierce__threads_start(&deleter->threads, threads, run, deleter);
    if (rc < 0)
        tierce__deleter_destroy(deleter);
    else
        *out = deleter;
    return rc;
}

void tierce__deleter_drop(struct tierce__deleter *deleter)
{
    struct tierce__deadline *first;
    tierce__lock_take(&deleter->lock);
    while ((first = tierce__deadlines_first(&deleter->waiting)) != NULL || deleter->executing > 0) {
        if (first == NULL) { /* a batch whose processing fails is queued again */
            (void)tierce__cond_wait(&deleter->idle, &deleter->lock, TIERCE__DEADLINE_NEVER);
            continue;
        }
        tierce__deadline_unset(&deleter->waiting, first);
        tierce__lock_drop(&deleter->lock);
        struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(first, struct tierce__deletion, deadline);
        forget_keys(deletion);
        end_batch(deleter, deletion, false);
        tierce__lock_take(&deleter->lock);
    }
    TIERCE_ASSERT(deleter->waiting.count == 0);
    tierce__storage_table_clear(&deleter->left); /* this process leads no more */
    deleter->given_up = 0;
    tierce__lock_drop(&deleter->lock);
}

static struct tierce__deletion *take_one_of(struct tierce__deleter *deleter,
                                            const struct tierce__live *live)
{
    struct tierce__deletion *found = NULL;
    tierce__lock_take(&deleter->lock);
    for (size_t i = 0; i < deleter->waiting.count && found == NULL; i++) {
        struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(deleter->waiting.items[i], struct tierce__deletion, deadline);
        found = deletion->live == live ? deletion : NULL;
    }
    if (found != NULL)
        tierce__deadline_unset(&deleter->waiting, &found->deadline);
    tierce__lock_drop(&deleter->lock);
    return found;
}

bool tierce__deleter_has_rest(struct tierce__deleter *deleter, const struct tierce__live *live,
                              uint32_t others)
{
    size_t queued = 0;
    tierce__lock_take(&deleter->lock);
    for (size_t i = 0; i < deleter->waiting.count; i++)
        queued += TIERCE__CONTAINER_OF(deleter->waiting.items[i], struct tierce__deletion, deadline)
                      ->live == live;
    /* Under the lock no queued batch releases its reference. */
    uint32_t users = atomic_load_explicit(&live->users, memory_order_acquire);
    TIERCE_ASSERT(users >= queued);
    tierce__lock_drop(&deleter->lock);
    return users - queued == others;
}

void tierce__deleter_hasten(struct tierce__deleter *deleter, const struct tierce__live *live)
{
    uint64_t now = tierce__due(tierce__locator_now_us(deleter->locator));
    tierce__lock_take(&deleter->lock);
    for (size_t i = 0; i < deleter->waiting.count; i++) {
        struct tierce__deadline *member = deleter->waiting.items[i];
        struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(member, struct tierce__deletion, deadline);
        /* A second deletion and a retry keep their due time. */
        if (deletion->live == live && !deletion->is_sweep && deletion->tries == 0 &&
            member->at > now && tierce__deadline_set(&deleter->waiting, member, now) < 0)
            break; /* cannot fail: it was in the heap before */
    }
    tierce__lock_drop(&deleter->lock);
}

void tierce__deleter_forget(struct tierce__deleter *deleter, const struct tierce__live *live)
{
    struct tierce__deletion *deletion;
    while ((deletion = take_one_of(deleter, live)) != NULL) {
        forget_keys(deletion);
        end_batch(deleter, deletion, false);
    }
}

void tierce__deleter_destroy(struct tierce__deleter *deleter)
{
    if (deleter == NULL)
        return;
    end_threads(deleter);
    tierce__deleter_drop(deleter);
    TIERCE_ASSERT(deleter->executing == 0 && deleter->waiting.count == 0);
    tierce__deadlines_fini(&deleter->waiting);
    tierce__cond_fini(&deleter->idle);
    tierce__cond_fini(&deleter->wake);
    tierce__lock_fini(&deleter->lock);
    tierce__free(deleter);
}

/* Those of batches that have no memory for their counts: a rare case, and all are visited. */
static uint64_t uncounted_in(const struct tierce__deleter *deleter, uint16_t storage)
{
    uint64_t locations = deleter->given_up; /* perhaps of this storage */
    tierce__lock_assert_held(&deleter->lock);
    if (deleter->uncounted == 0)
        return locations;
    TIERCE__LIST_FOR_EACH (it, &deleter->all) {
        const struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(it, struct tierce__deletion, node);
        for (size_t i = 0; i < deletion->count && !deletion->is_counted; i++)
            locations += deletion->items[i].location.storage == storage;
    }
    return locations;
}

void tierce__deleter_left_in(struct tierce__deleter *deleter, uint16_t storage,
                             struct tierce__deleter_left *out)
{
    uint64_t now = tierce__due(tierce__locator_now_us(deleter->locator));
    tierce__lock_take(&deleter->lock);
    const struct left_in *found = tierce__storage_table_find(&deleter->left, storage);
    const struct left_in left = found != NULL ? *found : (struct left_in){0};
    *out =
        (struct tierce__deleter_left){.locations = left.locations + uncounted_in(deleter, storage)};
    if (left.locations > 0 && left.last > now)
        out->due_in_us = (int64_t)(left.last - now);
    tierce__lock_drop(&deleter->lock);
}

void tierce__deleter_stats(struct tierce__deleter *deleter, struct tierce__deleter_stats *out)
{
    tierce__lock_take(&deleter->lock);
    TIERCE_DASSERT(deleter->waiting.count == 0 ||
                   tierce__deadlines_first(&deleter->waiting)->place == 1);
    *out = deleter->stats;
    out->waiting = deleter->waiting.count;
    out->executing = deleter->executing;
    tierce__lock_drop(&deleter->lock);
}
