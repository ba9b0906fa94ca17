/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "manager/api/api_private.h"

#include <errno.h>

/*
 * Replies that faults delay: "answered correctly, but later", and "never", which lasts as long as
 * the caller waits. There are few of them, so a list is enough.
 */

struct later_call {
    struct tierce__list node;
    struct tierce__call *call;
    ProtobufCMessage *message; /* a copy; NULL: never */
    uint64_t due_ns;
};

struct tierce__later {
    struct tierce__lock lock; /* LATER */
    struct tierce__cond wake;
    struct tierce__list waiting;
    bool is_ending;
    pthread_t thread;
};

static void answer(struct later_call *waiting)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (waiting->message != NULL)
        tierce__api_reply(waiting->call, waiting->message);
    else
        tierce__call_reply(
            waiting->call,
            &(struct tierce__reply){
                .status = tierce__call_info(waiting->call)->protocol == TIERCE__SERVE_GRPC
                              ? TIERCE__GRPC_UNAVAILABLE
                              : 503,
                .message = "dropped by fault injection",
            });
    tierce__proto_free(waiting->message);
    tierce__free(waiting);
}

/* LATER held. Returns a reply that is due, or whose caller is gone. */
static struct later_call *take_due(struct tierce__later *later)
{
    tierce__lock_assert_held(&later->lock);
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH (it, &later->waiting) {
        struct later_call *waiting = TIERCE__CONTAINER_OF(it, struct later_call, node);
        if (later->is_ending || waiting->due_ns <= now_ns || tierce__call_is_over(waiting->call)) {
            TIERCE_DASSERT(!tierce__list_empty(&waiting->node));
            tierce__list_remove(&waiting->node);
            return waiting;
        }
    }
    return NULL;
}

static void *run(void *arg)
{
    enum { LOOK_MS = 10 };
    struct tierce__later *later = arg;
    tierce__lock_take(&later->lock);
    while (!later->is_ending || !tierce__list_empty(&later->waiting)) {
        struct later_call *waiting = take_due(later);
        if (waiting != NULL) {
            tierce__lock_drop(&later->lock);
            answer(waiting);
            tierce__lock_take(&later->lock);
            continue;
        }
        uint64_t deadline = tierce__list_empty(&later->waiting) ? TIERCE__DEADLINE_NEVER
                                                                : tierce__deadline_in_ms(LOOK_MS);
        (void)tierce__cond_wait(&later->wake, &later->lock, deadline);
    }
    TIERCE_ASSERT(later->is_ending && tierce__list_empty(&later->waiting));
    tierce__lock_drop(&later->lock);
    return NULL;
}

int tierce__later_create(struct tierce__later **out)
{
    struct tierce__later *later = tierce__calloc(1, sizeof(*later));
    if (later == NULL)
        return -ENOMEM;
    tierce__lock_init(&later->lock, TIERCE__LOCK_LATER);
    tierce__cond_init(&later->wake);
    tierce__list_init(&later->waiting);
    int rc = -pthread_create(&later->thread, NULL, run, later);
    if (rc < 0) {
        tierce__cond_fini(&later->wake);
        tierce__lock_fini(&later->lock);
        tierce__free(later);
        return rc;
    }
    *out = later;
    return 0;
}

void tierce__later_stop(struct tierce__later *later)
{
    if (later == NULL)
        return;
    tierce__lock_take(&later->lock);
    TIERCE_ASSERT(!later->is_ending);
    later->is_ending = true;
    tierce__cond_signal(&later->wake);
    tierce__lock_drop(&later->lock);
    pthread_join(later->thread, NULL);
}

void tierce__later_destroy(struct tierce__later *later)
{
    if (later == NULL)
        return;
    TIERCE_ASSERT(later->is_ending);
    TIERCE_ASSERT(tierce__list_empty(&later->waiting));
    tierce__cond_fini(&later->wake);
    tierce__lock_fini(&later->lock);
    tierce__free(later);
}

/* The reply borrows from the call's memory, so it is copied. */
static ProtobufCMessage *copy_of(const ProtobufCMessage *message)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    ProtobufCMessage *copy = NULL;
    void *wire;
    size_t bytes;
    if (tierce__proto_pack(&wire, &bytes, message) < 0)
        return NULL;
    int rc = tierce__proto_unpack(&copy, message->descriptor, wire, bytes, why);
    tierce__free(wire);
    return rc == 0 ? copy : NULL;
}

void tierce__later_reply(struct tierce__later *later, struct tierce__call *call,
                         const ProtobufCMessage *message, int32_t delay_ms)
{
    enum { NEVER_MS = 3600 * 1000 };
    struct later_call *waiting = tierce__alloc(sizeof(*waiting));
    if (waiting == NULL) {
        tierce__api_reply(call, message);
        return;
    }
    *waiting = (struct later_call){
        .call = call,
        .message = delay_ms >= 0 ? copy_of(message) : NULL,
        .due_ns = tierce__deadline_in_ms(delay_ms >= 0 ? (uint32_t)delay_ms : NEVER_MS),
    };
    tierce__lock_take(&later->lock);
    bool is_ending = later->is_ending;
    if (!is_ending) {
        tierce__list_push_back(&later->waiting, &waiting->node);
        tierce__cond_signal(&later->wake);
    }
    tierce__lock_drop(&later->lock);
    if (is_ending)
        answer(waiting);
}
