/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/history.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <string.h>

struct history_slot {
    struct tierce__history_sample sample; /* sequence 0: empty */
    struct tierce__history_group *groups; /* heap: the groups that the sample points to */
};

struct tierce__history {
    struct tierce__lock lock; /* HISTORY: guards the fields below */
    uint64_t last;            /* sequence of the newest sample; it lies at last % samples_max */
    size_t samples_max, groups_max;
    struct history_slot slots[];
};

int tierce__history_create(struct tierce__history **out, size_t samples_max, size_t groups_max)
{
    TIERCE_ASSERT(samples_max > 0);
    struct tierce__history *history =
        tierce__calloc(1, sizeof(*history) + samples_max * sizeof(history->slots[0]));
    if (history == NULL)
        return -ENOMEM;
    tierce__lock_init(&history->lock, TIERCE__LOCK_HISTORY);
    history->samples_max = samples_max;
    history->groups_max = groups_max;
    *out = history;
    return 0;
}

void tierce__history_destroy(struct tierce__history *history)
{
    if (history == NULL)
        return;
    for (size_t i = 0; i < history->samples_max; i++)
        tierce__free(history->slots[i].groups);
    tierce__lock_fini(&history->lock);
    tierce__free(history);
}

int tierce__history_add(struct tierce__history *history,
                        const struct tierce__history_sample *sample)
{
    size_t count =
        sample->group_count < history->groups_max ? sample->group_count : history->groups_max;
    struct tierce__history_group *groups = NULL;
    if (count > 0) {
        groups = tierce__alloc(count * sizeof(*groups));
        if (groups == NULL)
            return -ENOMEM;
        memcpy(groups, sample->groups, count * sizeof(*groups));
    }
    tierce__lock_take(&history->lock);
    uint64_t sequence = ++history->last;
    struct history_slot *slot = &history->slots[sequence % history->samples_max];
    struct tierce__history_group *old = slot->groups;
    TIERCE_ASSERT(slot->sample.sequence < sequence);
    slot->groups = groups;
    slot->sample = *sample;
    slot->sample.sequence = sequence;
    slot->sample.groups = groups;
    slot->sample.group_count = count;
    tierce__lock_drop(&history->lock);
    tierce__free(old);
    return 0;
}

uint64_t tierce__history_each(struct tierce__history *history, uint64_t after,
                              void (*each)(void *arg, const struct tierce__history_sample *sample),
                              void *arg)
{
    tierce__lock_take(&history->lock);
    uint64_t last = history->last;
    uint64_t oldest = last > history->samples_max ? last - history->samples_max + 1 : 1;
    for (uint64_t n = after >= oldest ? after + 1 : oldest; after < last && n <= last; n++) {
        const struct tierce__history_sample *sample =
            &history->slots[n % history->samples_max].sample;
        TIERCE_ASSERT(sample->sequence == n);
        each(arg, sample);
    }
    TIERCE_ASSERT(last == 0 || history->slots[last % history->samples_max].sample.sequence == last);
    tierce__lock_drop(&history->lock);
    return last;
}
