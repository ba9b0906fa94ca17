/* SPDX-License-Identifier: Apache-2.0 */
#include "node/part/part_waits.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define ANSWER_NS (10 * TIERCE__MS_NS) /* for the answer's way to the client */

struct tierce__part_waits {
    struct tierce__part_waits_opts opts;
    pthread_t thread;
    /* Changed under the lock. Sequentially consistent with the pool of the buffers: add() counts a
     * call before the thread tries to allocate; tell() reads the count after the release. */
    _Atomic uint32_t count;
    struct tierce__lock lock; /* PART_WAITS: below */
    struct tierce__cond changed;
    struct tierce__list calls;     /* the oldest first; without the one that is being begun */
    struct tierce__deadlines dues; /* of the same calls */
    bool has_news;                 /* a buffer may be free */
    bool is_ending, has_ended;
};

static struct tierce__keeper_call *call_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__keeper_call, node);
}

static uint64_t due_ns(const struct tierce__keeper_call *call)
{
    return call->deadline_ns > ANSWER_NS ? call->deadline_ns - ANSWER_NS : 0;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void answer_all(struct tierce__list *calls, int status)
{
    while (!tierce__list_empty(calls)) {
        struct tierce__keeper_call *call = call_of(calls->next);
        tierce__list_remove(&call->node);
        call->status = status;
        call->done(call);
    }
}

/* The call is with the caller from now on. */
static void take_out(struct tierce__part_waits *waits, struct tierce__keeper_call *call)
{
    tierce__lock_assert_held(&waits->lock);
    tierce__list_remove(&call->node);
    tierce__deadline_unset(&waits->dues, &call->due);
}

/* Moves the calls that are due, or all. Returns when the next one is. */
static uint64_t take_due(struct tierce__part_waits *waits, struct tierce__list *out, bool all)
{
    uint64_t now_ns = tierce__now_ns();
    struct tierce__deadline *first;
    tierce__lock_assert_held(&waits->lock);
    while ((first = tierce__deadlines_first(&waits->dues)) != NULL &&
           (all || first->at <= now_ns)) {
        struct tierce__keeper_call *call =
            TIERCE__CONTAINER_OF(first, struct tierce__keeper_call, due);
        take_out(waits, call);
        tierce__list_push_back(out, &call->node);
        atomic_fetch_sub_explicit(&waits->count, 1, memory_order_seq_cst);
    }
    return tierce__deadlines_next(&waits->dues);
}

/* Tries to begin the first call. The lock is dropped meanwhile. A call that still finds no buffer
 * is the first again; if memory for that runs out, it moves to `out`. */
static void begin_first(struct tierce__part_waits *waits, struct tierce__list *out)
{
    struct tierce__keeper_call *call = call_of(waits->calls.next);
    tierce__lock_assert_held(&waits->lock);
    waits->has_news = false;
    take_out(waits, call);
    tierce__lock_drop(&waits->lock);
    bool has_begun = waits->opts.begin(waits->opts.arg, call);
    tierce__lock_take(&waits->lock);
    if (!has_begun && tierce__deadline_set(&waits->dues, &call->due, due_ns(call)) == 0) {
        tierce__list_push_front(&waits->calls, &call->node);
        return;
    }
    atomic_fetch_sub_explicit(&waits->count, 1, memory_order_seq_cst);
    waits->has_news = true; /* there may be a buffer for the next one too */
    if (!has_begun)
        tierce__list_push_back(out, &call->node);
}

static void *run(void *arg)
{
    struct tierce__part_waits *waits = arg;
    bool is_ending = false;
    while (!is_ending) {
        struct tierce__list due;
        tierce__list_init(&due);
        tierce__lock_take(&waits->lock);
        is_ending = waits->is_ending;
        uint64_t next_ns = take_due(waits, &due, is_ending);
        if (!is_ending && tierce__list_empty(&due)) {
            if (waits->has_news && !tierce__list_empty(&waits->calls))
                begin_first(waits, &due);
            else
                (void)tierce__cond_wait(&waits->changed, &waits->lock, next_ns);
        }
        tierce__lock_drop(&waits->lock);
        answer_all(&due, is_ending ? TIERCE_E_CLOSED : TIERCE_E_LIMIT);
    }
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

int tierce__part_waits_add(struct tierce__part_waits *waits, struct tierce__keeper_call *call)
{
    tierce__lock_take(&waits->lock);
    bool is_full =
        atomic_load_explicit(&waits->count, memory_order_seq_cst) >= waits->opts.calls_max;
    int rc = waits->is_ending ? TIERCE_E_CLOSED : is_full ? TIERCE_E_LIMIT : 0;
    if (rc == 0)
        rc = tierce__deadline_set(&waits->dues, &call->due, due_ns(call));
    if (rc == 0) {
        tierce__list_push_back(&waits->calls, &call->node);
        atomic_fetch_add_explicit(&waits->count, 1, memory_order_seq_cst);
        waits->has_news = true;
        tierce__cond_signal(&waits->changed);
    }
    tierce__lock_drop(&waits->lock);
    return rc;
}

bool tierce__part_waits_any(const struct tierce__part_waits *waits)
{
    return atomic_load_explicit(&waits->count, memory_order_seq_cst) > 0;
}

void tierce__part_waits_tell(struct tierce__part_waits *waits)
{
    atomic_thread_fence(memory_order_seq_cst); /* the release is before the load; see `count` */
    if (!tierce__part_waits_any(waits))
        return;
    tierce__lock_take(&waits->lock);
    waits->has_news = true;
    tierce__cond_signal(&waits->changed);
    tierce__lock_drop(&waits->lock);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

int tierce__part_waits_create(struct tierce__part_waits **out,
                              const struct tierce__part_waits_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->calls_max > 0);
    struct tierce__part_waits *waits = tierce__calloc(1, sizeof(*waits));
    if (waits == NULL)
        return -ENOMEM;
    waits->opts = *opts;
    tierce__lock_init(&waits->lock, TIERCE__LOCK_PART_WAITS);
    tierce__cond_init(&waits->changed);
    tierce__list_init(&waits->calls);
    int rc = tierce__thread_start(&waits->thread, run, waits);
    waits->has_ended = rc != 0;
    if (rc == 0)
        *out = waits;
    else
        tierce__part_waits_destroy(waits);
    return rc;
}

void tierce__part_waits_end(struct tierce__part_waits *waits)
{
    if (waits == NULL || waits->has_ended)
        return;
    tierce__lock_take(&waits->lock);
    waits->is_ending = true;
    tierce__cond_signal(&waits->changed);
    tierce__lock_drop(&waits->lock);
    (void)pthread_join(waits->thread, NULL);
    waits->has_ended = true;
}

void tierce__part_waits_destroy(struct tierce__part_waits *waits)
{
    if (waits == NULL)
        return;
    TIERCE_ASSERT(waits->has_ended && tierce__list_empty(&waits->calls));
    tierce__deadlines_fini(&waits->dues);
    tierce__cond_fini(&waits->changed);
    tierce__lock_fini(&waits->lock);
    tierce__free(waits);
}
