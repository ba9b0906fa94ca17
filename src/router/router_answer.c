/* SPDX-License-Identifier: Apache-2.0 */
#include "router/router_answer.h"

#include "base/assert.h"
#include "proto/msgpack/msgpack_write.h"

static void open_map(struct tierce__router_answer *answer)
{
    TIERCE_ASSERT(answer->depth < TIERCE__ROUTER_ANSWER_DEPTH);
    answer->maps[answer->depth++] =
        (struct tierce__router_answer_map){.place = tierce__msgpack_begin_map(&answer->line)};
}

/* The name of a value in the innermost map of MessagePack. */
static void put_name(struct tierce__router_answer *answer, const char *name)
{
    TIERCE_ASSERT(answer->depth > 0);
    answer->maps[answer->depth - 1].count++;
    tierce__msgpack_put_text(&answer->line, name);
}

void tierce__router_answer_begin(struct tierce__router_answer *out, bool is_msgpack)
{
    *out = (struct tierce__router_answer){.is_msgpack = is_msgpack};
    out->json.line = &out->line;
    if (is_msgpack)
        open_map(out);
    else
        tierce__json_write_open(&out->json, NULL, '{');
}

void tierce__router_answer_open(struct tierce__router_answer *answer, const char *name)
{
    if (!answer->is_msgpack) {
        tierce__json_write_open(&answer->json, name, '{');
        return;
    }
    put_name(answer, name);
    open_map(answer);
}

void tierce__router_answer_close(struct tierce__router_answer *answer)
{
    if (!answer->is_msgpack) {
        tierce__json_write_close(&answer->json, '}');
        return;
    }
    TIERCE_ASSERT(answer->depth > 0);
    const struct tierce__router_answer_map *map = &answer->maps[--answer->depth];
    tierce__msgpack_end_map(&answer->line, map->place, map->count);
}

void tierce__router_answer_count(struct tierce__router_answer *answer, const char *name,
                                 uint64_t value)
{
    if (!answer->is_msgpack) {
        tierce__json_write_count(&answer->json, name, value);
        return;
    }
    put_name(answer, name);
    tierce__msgpack_put_uint(&answer->line, value);
}

void tierce__router_answer_bool(struct tierce__router_answer *answer, const char *name, bool value)
{
    if (!answer->is_msgpack) {
        tierce__json_write_bool(&answer->json, name, value);
        return;
    }
    put_name(answer, name);
    tierce__msgpack_put_bool(&answer->line, value);
}

void tierce__router_answer_text(struct tierce__router_answer *answer, const char *name,
                                const char *text)
{
    if (!answer->is_msgpack) {
        tierce__json_write_text(&answer->json, name, text);
        return;
    }
    put_name(answer, name);
    tierce__msgpack_put_text(&answer->line, text);
}

struct tierce__line *tierce__router_answer_end(struct tierce__router_answer *answer)
{
    tierce__router_answer_close(answer);
    return &answer->line;
}
