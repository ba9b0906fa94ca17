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

static int64_t score_of(const struct tierce__engine *engine, const struct tierce__choice *choice,
                        uint32_t load_tokens)
{
    int64_t load = atomic_load_explicit(&engine->in_flight, memory_order_relaxed);
    if (choice == NULL || !choice->is_known)
        return -load;
    return (int64_t)choice->tokens[engine->index] - load * load_tokens;
}

struct tierce__engine *tierce__choose(struct tierce__engines *engines,
                                      const struct tierce__choice *choice, uint32_t load_tokens,
                                      uint64_t tried)
{
    struct tierce__engine *best = NULL;
    int64_t best_score = 0;
    uint64_t best_used = 0;
    for (uint32_t i = 0; i < engines->count; i++) {
        struct tierce__engine *engine = &engines->items[i];
        if (!may_be_chosen(engine, tried))
            continue;
        int64_t score = score_of(engine, choice, load_tokens);
        uint64_t used = atomic_load_explicit(&engine->used, memory_order_relaxed);
        if (best != NULL && (score < best_score || (score == best_score && used >= best_used)))
            continue;
        best = engine;
        best_score = score;
        best_used = used;
    }
    return best;
}
