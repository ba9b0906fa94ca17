/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run.h"
#include "base/assert.h"

struct run_asking {
    struct tierce_engine *engine;
    struct tierce__run_search *search;
};

static size_t search_run(void *arg, const struct tierce__run *run)
{
    struct run_asking *asking = arg;
    struct tierce__run_search *search = asking->search;
    struct tierce__search one = {.levels = search->levels, .deadline_ns = search->deadline_ns};
    TIERCE_DASSERT(run->from + run->count <= search->keys->count);
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
    struct run_asking asking = {view->engine, search};
    search->missing = search->keys->count;
    search->pending = false;
    return tierce__run_find(&group, search->from_block, search->to_block, search_run, &asking);
}
