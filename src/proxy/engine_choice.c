/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/engine_choice.h"

#include <string.h>

_Static_assert(TIERCE__ENGINES_MAX <= 64, "an engine is a bit of `tried`");

bool tierce__choice_read(struct tierce__choice *out, const struct tierce__engines *engines,
                         struct tierce__text answer)
{
    struct tierce__text instances = tierce__json_get(answer, "instances");
    *out = (struct tierce__choice){0};
    if (tierce__json_value_kind(instances) != '{')
        return false;
    for (uint32_t i = 0; i < engines->count; i++) {
        const char *id = engines->items[i].id;
        struct tierce__text instance =
            tierce__json_find(instances, (struct tierce__text){id, strlen(id)});
        int64_t tokens = tierce__json_get_int(instance, "longest_matched", 0);
        if (tokens > 0)
            out->tokens[i] = tokens < INT32_MAX ? (uint32_t)tokens : INT32_MAX;
    }
    out->is_known = true;
    return true;
}

static bool may_be_chosen(const struct tierce__engine *engine, uint64_t tried)
{
    return (tried >> engine->index & 1) == 0 &&
           !atomic_load_explicit(&engine->is_down, memory_order_relaxed);
}

struct rank {
    int64_t score; /* tokens, less those that the load costs */
    uint32_t load;
    uint64_t used;
};

static struct rank rank_of(const struct tierce__engine *engine, const struct tierce__choice *choice,
                           uint32_t load_tokens)
{
    struct rank rank = {.load = atomic_load_explicit(&engine->in_flight, memory_order_relaxed),
                        .used = atomic_load_explicit(&engine->used, memory_order_relaxed)};
    if (choice != NULL && choice->is_known)
        rank.score = (int64_t)choice->tokens[engine->index] - (int64_t)rank.load * load_tokens;
    return rank;
}

static bool is_better(const struct rank *a, const struct rank *b)
{
    if (a->score != b->score)
        return a->score > b->score;
    return a->load != b->load ? a->load < b->load : a->used < b->used;
}

struct tierce__engine *tierce__choose(struct tierce__engines *engines,
                                      const struct tierce__choice *choice, uint32_t load_tokens,
                                      uint64_t tried)
{
    struct tierce__engine *best = NULL;
    struct rank best_rank = {0};
    for (uint32_t i = 0; i < engines->count; i++) {
        struct tierce__engine *engine = &engines->items[i];
        if (!may_be_chosen(engine, tried))
            continue;
        struct rank rank = rank_of(engine, choice, load_tokens);
        if (best == NULL || is_better(&rank, &best_rank)) {
            best = engine;
            best_rank = rank;
        }
    }
    return best;
}
