/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/group.h"
#include "base/assert.h"

#include <string.h>

const char *tierce_group_name(enum tierce_group group)
{
    static const char *const names[] = {
        [TIERCE_GROUP_ALL] = "all",       [TIERCE_GROUP_FULL] = "full",
        [TIERCE_GROUP_WINDOW] = "window", [TIERCE_GROUP_CHUNKED] = "chunked",
        [TIERCE_GROUP_STATE] = "state",
    };
    size_t count = sizeof(names) / sizeof(names[0]);
    return (unsigned)group < count ? names[group] : NULL;
}

bool tierce__group_parse(enum tierce_group *out, const char *name)
{
    for (int kind = TIERCE_GROUP_ALL; kind <= TIERCE_GROUP_STATE; kind++) {
        if (strcmp(name, tierce_group_name((enum tierce_group)kind)) == 0) {
            *out = (enum tierce_group)kind;
            return true;
        }
    }
    return false;
}

uint64_t tierce__group_needs(const struct tierce__layer_group *group, uint64_t blocks)
{
    uint64_t end = blocks * group->block_tokens, first = 0;
    TIERCE_DASSERT(group->block_tokens > 0);
    switch (group->kind) {
    case TIERCE_GROUP_ALL:
    case TIERCE_GROUP_FULL:
        break;
    case TIERCE_GROUP_WINDOW: /* the next token attends to itself, too */
        first = end + 1 > group->window ? end + 1 - group->window : 0;
        break;
    case TIERCE_GROUP_CHUNKED:
        first = end / group->window * group->window;
        break;
    case TIERCE_GROUP_STATE:
        first = end > 0 ? end - group->block_tokens : 0;
        break;
    }
    TIERCE_DASSERT(first <= end);
    return first / group->block_tokens;
}

static struct tierce__run run_of(const struct tierce__layer_group *group, uint64_t blocks)
{
    uint64_t step = group->chunk_blocks, need = tierce__group_needs(group, blocks);
    struct tierce__run run = {.blocks = blocks, .need = need, .from = (size_t)(need / step)};
    if (need < blocks)
        run.count = (size_t)((blocks + step - 1) / step) - run.from;
    return run;
}

/* Every run that ends inside or after a missing chunk contains this chunk. So the next run to try
 * ends where the missing chunk begins, or at the first needed block, where a run may be empty. */
struct tierce__run tierce__run_find(const struct tierce__layer_group *group, uint64_t from_block,
                                    uint64_t to_block, tierce__run_held_fn *held, void *arg)
{
    struct tierce__run run = run_of(group, to_block);
    TIERCE_DASSERT(group->chunk_blocks > 0);
    while (run.blocks > from_block) {
        size_t found = held(arg, &run);
        TIERCE_DASSERT(found <= run.count);
        if (found == run.count)
            break;
        uint64_t before = (uint64_t)(run.from + found) * group->chunk_blocks;
        before = before > run.need ? before : run.need;
        TIERCE_DASSERT(before < run.blocks);
        run = run_of(group, before);
    }
    return run;
}
