/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/attention.h"

#include "base/assert.h"
#include "core/key/group.h"

#include <errno.h>
#include <string.h>

static enum tierce_group kind_of(const char *name)
{
    enum tierce_group kind = TIERCE_GROUP_ALL;
    if (strcmp(name, "linear") == 0) /* the word of KVCM's users */
        return TIERCE_GROUP_STATE;
    return tierce__group_parse(&kind, name) ? kind : TIERCE_GROUP_ALL;
}

struct tierce__needs tierce__attention_needs(const struct tierce__instance *instance)
{
    struct tierce__needs needs = {.kind = kind_of(instance->attention.kind)};
    uint32_t block = instance->block_size > 0 ? (uint32_t)instance->block_size : 1;
    uint32_t window =
        instance->attention.window_tokens > 0 ? (uint32_t)instance->attention.window_tokens : 1;
    needs.is_sparse = tierce__group_is_sparse(needs.kind);
    if (!needs.is_sparse)
        return needs;
    needs.run = 1;
    if (needs.kind == TIERCE_GROUP_WINDOW) /* the next token is in the window, too */
        needs.run = (window - 1 + block - 1) / block;
    else if (needs.kind == TIERCE_GROUP_CHUNKED)
        needs.run = window / block;
    needs.run = needs.run > 0 ? needs.run : 1;
    TIERCE_DASSERT(needs.run == 1 || window > block);
    return needs;
}

static char *copy(struct tierce__arena *arena, const char *text)
{
    return tierce__arena_copy(arena, text, strlen(text));
}

int tierce__attention_note(const struct tierce__layers_note **out,
                           const struct tierce__instance *instance, struct tierce__arena *arena)
{
    const struct tierce__attention *in = &instance->attention;
    if (in->kind == NULL || in->kind[0] == '\0') {
        *out = NULL;
        return 0;
    }
    struct tierce__layers_note *note = tierce__arena_alloc(arena, sizeof(*note));
    if (note == NULL)
        return -ENOMEM;
    note->group = copy(arena, instance->group_name);
    note->attention = (struct tierce__attention){
        .kind = copy(arena, in->kind),
        .window_tokens = in->window_tokens,
        .every_tokens = in->every_tokens,
        .family = copy(arena, in->family),
        .layers = copy(arena, in->layers),
    };
    if (note->group == NULL || note->attention.kind == NULL || note->attention.family == NULL ||
        note->attention.layers == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(note->attention.window_tokens >= 0 && note->attention.every_tokens >= 0);
    *out = note;
    return 0;
}
