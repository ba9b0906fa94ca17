/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BENCH_GHOST_LOAD_H
#define TIERCE_BENCH_GHOST_LOAD_H

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#include <stdint.h>
#include <string.h>

/* Workloads of chains of keys: conversations that are made up, for benchmarks and tests, which end
 * if there is no memory. */

struct ghost_load {
    uint64_t *keys;
    size_t *ends; /* [count] of each request's keys */
    size_t count, key_count, key_room, end_room;
};

static inline void ghost_load_add(struct ghost_load *load, const uint64_t *keys, size_t count)
{
    if (load->key_count + count > load->key_room) {
        load->key_room = 2 * (load->key_count + count);
        load->keys = tierce__realloc(load->keys, load->key_room * sizeof(*load->keys));
    }
    if (load->count == load->end_room) {
        load->end_room = 2 * load->end_room + 64;
        load->ends = tierce__realloc(load->ends, load->end_room * sizeof(*load->ends));
    }
    TIERCE_ASSERT(load->keys != NULL && load->ends != NULL);
    memcpy(load->keys + load->key_count, keys, count * sizeof(*keys));
    load->key_count += count;
    load->ends[load->count++] = load->key_count;
}

static inline const uint64_t *ghost_load_at(const struct ghost_load *load, size_t i, size_t *count)
{
    size_t first = i == 0 ? 0 : load->ends[i - 1];
    *count = load->ends[i] - first;
    return load->keys + first;
}

static inline void ghost_load_free(struct ghost_load *load)
{
    tierce__free(load->keys);
    tierce__free(load->ends);
    *load = (struct ghost_load){0};
}

static inline uint64_t ghost_key(uint64_t seed, uint64_t chain, uint64_t at)
{
    return tierce__mix(tierce__mix(seed + chain * TIERCE__MIX_GOLDEN) + at + 1);
}

struct ghost_load_opts {
    uint64_t seed;
    size_t requests;
    unsigned sessions; /* that talk at the same time */
    unsigned prompts;  /* system prompts, of which some are much more frequent */
    unsigned turns;    /* of a session, on average */
};

enum { GHOST_LOAD_CHAIN_MAX = 256 };

/* Sessions begin with a system prompt of 2 to 17 blocks, and each turn adds 1 to 8. A request names
 * the whole chain. Which session speaks next is random, the recent ones more often. */
static inline void ghost_load_make(struct ghost_load *load, const struct ghost_load_opts *o)
{
    struct {
        uint64_t id, prompt;
        unsigned length;
    } *sessions = tierce__calloc(o->sessions, sizeof(*sessions));
    uint64_t random = o->seed, id = 0, keys[GHOST_LOAD_CHAIN_MAX];
    TIERCE_ASSERT(sessions != NULL);
    for (size_t r = 0; r < o->requests; r++) {
        uint64_t a = tierce__random_next(&random), b = tierce__random_next(&random);
        unsigned at = (unsigned)((a >> 40) % o->sessions * ((b >> 40) % o->sessions) / o->sessions);
        unsigned base = 2 + (unsigned)(tierce__mix(sessions[at].prompt) % 16);
        if (sessions[at].id == 0 || a % o->turns == 0 ||
            sessions[at].length + 8 > GHOST_LOAD_CHAIN_MAX) {
            sessions[at].id = ++id;
            sessions[at].prompt = (b % 1024) * (b % 1024) * o->prompts >> 20;
            base = 2 + (unsigned)(tierce__mix(sessions[at].prompt) % 16);
            sessions[at].length = base;
        }
        sessions[at].length += 1 + (unsigned)(b >> 10) % 8;
        for (unsigned i = 0; i < sessions[at].length; i++)
            keys[i] = i < base ? ghost_key(o->seed, 1000000000 + sessions[at].prompt, i)
                               : ghost_key(o->seed, sessions[at].id, i);
        ghost_load_add(load, keys, sessions[at].length);
    }
    tierce__free(sessions);
}

#endif
