/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/engine_cache.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/trace/filter.h"
#include "optimizer/replay/replay.h"
#include "optimizer/replay/sweep.h"

#include <errno.h>

/* How many leading blocks of each request its engine held. */
struct marking {
    const struct tierce__recording *recording;
    uint32_t *held; /* [requests] */
    uint64_t at;
};

static void count_held(void *arg, const struct tierce__recorded *request, const bool *there)
{
    struct marking *marking = arg;
    uint32_t held = 0;
    while (held < request->read_count && there[held])
        held++;
    TIERCE_DASSERT(marking->at < tierce__recording_totals(marking->recording).requests);
    marking->held[marking->at] = held;
}

static void pass_over(void *arg, uint32_t block)
{
    (void)arg, (void)block;
}

static int replay_instance(struct marking *marking, uint32_t instance, uint64_t capacity,
                           bool in_bytes)
{
    const struct tierce__match prefix = {.kind = TIERCE__MATCH_PREFIX};
    const struct tierce__replay_watch watch = {
        .looked_up = count_held, .stored = pass_over, .left = pass_over, .arg = marking};
    struct tierce__cache lru;
    struct tierce__replay *replay = NULL;
    int rc = tierce__cache_find(&lru, "lru");
    if (rc == 0)
        rc = tierce__replay_create(
            &replay, &(struct tierce__replay_opts){
                         .size = sizeof(struct tierce__replay_opts),
                         .policy = lru.policy,
                         .capacity = capacity,
                         .in_bytes = in_bytes,
                         .order = TIERCE__TOUCH_REV,
                         .distinct = tierce__recording_totals(marking->recording).distinct,
                         .matches = &prefix,
                         .match_count = 1,
                         .watch = &watch,
                     });
    marking->at = 0;
    for (const struct tierce__recorded *r = tierce__recording_first(marking->recording);
         rc == 0 && r != NULL; r = tierce__recording_next(marking->recording, r), marking->at++) {
        if (r->instance == instance)
            rc = tierce__replay_request(replay, r);
    }
    TIERCE_ASSERT(rc != 0 || marking->at == tierce__recording_totals(marking->recording).requests);
    tierce__replay_destroy(replay);
    return rc;
}

int tierce__engine_cache_mark(struct tierce__recording **out,
                              const struct tierce__recording *recording, uint64_t capacity,
                              bool in_bytes)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct marking marking = {.recording = recording};
    marking.held = tierce__calloc(totals.requests + 1, sizeof(*marking.held));
    int rc = marking.held == NULL ? -ENOMEM : 0;
    for (uint32_t i = 0; rc == 0 && i < totals.instances; i++)
        rc = replay_instance(&marking, i, capacity, in_bytes);
    if (rc == 0)
        rc = tierce__recording_mark(out, recording, marking.held, NULL);
    tierce__free(marking.held);
    return rc;
}
