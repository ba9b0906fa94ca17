/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run.h"
#include "base/assert.h"

/* The number of earlier states that are queried ahead in remote stores, before the next required
 * state. */
#define AHEAD 16u

struct run_asking {
    struct tierce_engine *engine;
    struct tierce__run_search *search;
    uint32_t
        remotes;  /* the levels of the search that are remote stores, in a state group; else 0 */
    size_t ahead; /* chunks from here on have been queried */
};

static uint32_t remotes_of(const struct tierce_view *view, uint32_t levels)
{
    uint32_t remotes = 0;
    for (size_t level = 0; level < view->engine->level_count; level++)
        remotes |= view->engine->levels[level].health.shared ? 1u << level : 0;
    return view->group == TIERCE_GROUP_STATE ? levels & remotes : 0;
}

/* Sends the queries for the states before a missing one, without waiting: the answers are
 * remembered until the search reaches these states. */
static void ask_ahead(struct run_asking *asking, const struct tierce__run *run)
{
    const struct tierce__run_search *search = asking->search;
    size_t last = run->from > AHEAD ? run->from - AHEAD : 0;
    if (asking->remotes == 0 || search->deadline_ns == 0 || run->blocks == search->to_block)
        return;
    asking->ahead = asking->ahead < run->from ? asking->ahead : run->from;
    while (asking->ahead > last) {
        struct tierce__search one = {.levels = asking->remotes};
        asking->ahead--;
        (void)tierce__storage_search_until(asking->engine, &one, search->keys->keys + asking->ahead,
                                           1);
    }
}

static size_t search_run(void *arg, const struct tierce__run *run)
{
    struct run_asking *asking = arg;
    struct tierce__run_search *search = asking->search;
    struct tierce__search one = {.levels = search->levels, .deadline_ns = search->deadline_ns};
    TIERCE_DASSERT(run->from + run->count <= search->keys->count);
    ask_ahead(asking, run);
    size_t found = tierce__storage_search_until(asking->engine, &one,
                                                search->keys->keys + run->from, run->count);
    if (found < run->count && run->blocks == search->to_block) {
        search->missing = run->from + found;
        search->unasked = one.unasked;
    }
    search->pending |= found < run->count && one.unasked.pending;
    return found;
}

struct tierce__run tierce__run_search(struct tierce_view *view, struct tierce__run_search *search)
{
    struct tierce__layer_group group = tierce__view_group(view);
    struct run_asking asking = {view->engine, search, remotes_of(view, search->levels),
                                search->keys->count};
    search->missing = search->keys->count;
    search->pending = false;
    return tierce__run_find(&group, search->from_block, search->to_block, search_run, &asking);
}
