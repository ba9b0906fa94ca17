/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/remote_private.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"

/*
 * Recent answers of the store about keys: a table of sets of TIERCE__REMOTE_WAYS answers; a new
 * answer replaces the oldest of its set. An answer is filed under 64 bits of the key. If two keys
 * share these bits, a chunk may wrongly be believed to be stored; the read then misses.
 *
 * An answer to a query that began before a newer answer was filed is not filed: a write or deletion
 * of this process in between is newer.
 */

#define THERE_MS  10000u /* a chunk that has gone since costs a read that misses */
#define ABSENT_MS 1000u  /* a chunk that has come since is computed again */

static struct tierce__remote_known *set_of(struct tierce__remote *remote, uint64_t spread)
{
    TIERCE_DASSERT((spread & 1) != 0);
    return &remote->known[(spread >> 1) % TIERCE__REMOTE_SETS * TIERCE__REMOTE_WAYS];
}

/* 0 means no answer: the lowest bit is always set. */
static uint64_t spread_of(const struct tierce__key *key)
{
    return tierce__key_spread(key) | 1;
}

enum tierce__remote_belief tierce__remote_recall(struct tierce__remote *remote,
                                                 const struct tierce__key *key, bool however_old)
{
    uint64_t spread = spread_of(key), now_ns = tierce__now_ns();
    const struct tierce__remote_known *set = set_of(remote, spread);
    tierce__lock_assert_held(&remote->lock);
    for (size_t i = 0; i < TIERCE__REMOTE_WAYS; i++) {
        uint64_t age_ns = now_ns - set[i].at_ns;
        TIERCE_DASSERT(set[i].at_ns <= now_ns);
        if (set[i].spread != spread)
            continue;
        if (set[i].is_there && (however_old || age_ns < THERE_MS * TIERCE__MS_NS))
            return TIERCE__REMOTE_THERE;
        if (!set[i].is_there && age_ns < ABSENT_MS * TIERCE__MS_NS)
            return TIERCE__REMOTE_ABSENT;
    }
    return TIERCE__REMOTE_UNKNOWN;
}

void tierce__remote_learn(struct tierce__remote *remote, const struct tierce__key *key,
                          bool is_there, uint64_t asked_ns)
{
    TIERCE_DASSERT(asked_ns == TIERCE__REMOTE_NOW || asked_ns <= tierce__now_ns());
    uint64_t spread = spread_of(key);
    struct tierce__remote_known *set = set_of(remote, spread), *place = set;
    tierce__lock_assert_held(&remote->lock);
    for (size_t i = 0; i < TIERCE__REMOTE_WAYS; i++) {
        if (set[i].spread == spread) {
            place = &set[i];
            break;
        }
        if (set[i].at_ns < place->at_ns)
            place = &set[i];
    }
    TIERCE_DASSERT(place >= set && place < set + TIERCE__REMOTE_WAYS);
    bool is_outdated = place->spread == spread && place->at_ns > asked_ns;
    if (!is_outdated && asked_ns >= remote->forgotten_ns)
        *place = (struct tierce__remote_known){
            .spread = spread, .at_ns = tierce__now_ns(), .is_there = is_there};
}

void tierce__remote_unlearn(struct tierce__remote *remote, const struct tierce__key *key)
{
    uint64_t spread = spread_of(key);
    struct tierce__remote_known *set = set_of(remote, spread);
    tierce__lock_assert_held(&remote->lock);
    for (size_t i = 0; i < TIERCE__REMOTE_WAYS; i++) {
        if (set[i].spread == spread)
            set[i] = (struct tierce__remote_known){0};
    }
}

void tierce__remote_forget(struct tierce__remote *remote)
{
    tierce__lock_assert_held(&remote->lock);
    memset(remote->known, 0, sizeof(remote->known));
    remote->forgotten_ns = tierce__now_ns();
}
