/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a policy: requests for 64-bit keys, through a map from keys to slots, into a cache
 * that is full. A hit touches; a miss announces, evicts one entry and stores another. Keys are
 * drawn by a Zipf-like law (each octave of ranks as often as any other) from 16 times as many keys
 * as the cache holds, so that a fifth to a quarter of the requests miss. Requests are known some
 * way ahead, like those of a trace or of a prompt's chunks, so that prefetching works.
 *
 * The limit of a case is the target rate; that of hazard is a third of LRU's rate in the same run.
 * The peer is the map alone, looking up the same keys.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/mix.h"
#include "core/policy/policy.h"

#define ENTRIES_MAX     (1u << 20)
#define ENTRY_BYTES     256u /* of memory for a case, roughly and generously */
#define KEYS_PER_ENTRY  16u
#define ROUND_REQUESTS  (1u << 18)
#define ROUNDS_AT_FIRST 8u  /* until the cache is as it will be */
#define BATCH           32u /* requests whose memory is fetched together */
#define ERASURES        16u /* evicted keys whose cells are not erased yet, at most */
#define GOAL_FAST       20  /* million operations a second */
#define GOAL_OTHERS     10
#define GOAL_HAZARD     3 /* lru, the first policy, is at most this many times as fast */

/* Linear probing; a quarter of the cells is in use. */
struct map_cell {
    uint64_t key;
    uint64_t slot; /* + 1; 0: empty */
};

struct map {
    struct map_cell *cells; /* [mask + 1] */
    uint64_t mask;
    uint64_t bytes;
};

/* A key that was evicted. Its cell is anywhere, and is fetched before it is erased; until then it
 * names a slot that has another key. */
struct erasure {
    uint64_t key;
    uint32_t slot;
};

struct bench_policy_replay {
    const struct tierce__bench *bench;
    struct tierce__policy *policy;
    struct map map;
    uint64_t *requests; /* [ROUND_REQUESTS + BATCH] drawn before a round */
    uint64_t *key_of;   /* [entries] */
    uint32_t entries;
    uint64_t round; /* rounds that were drawn */
    uint64_t now;
    uint64_t hits;   /* of the last round */
    double lru_rate; /* million operations a second */
    struct erasure erasures[ERASURES];
    uint32_t erasures_begun, erasures_fetched, erasures_ended; /* running numbers */
};

/* ---- the map --------------------------------------------------------------------------------- */

static uint64_t home_of(const struct map *map, uint64_t key)
{
    return (tierce__spread(key) >> 32) & map->mask;
}

/* The cell of a key, or the empty one where it would be. */
static struct map_cell *find_cell(const struct map *map, uint64_t key)
{
    uint64_t at = home_of(map, key);
    while (map->cells[at].slot != 0 && map->cells[at].key != key)
        at = (at + 1) & map->mask;
    return &map->cells[at];
}

static void erase_cell(const struct map *map, struct map_cell *cell)
{
    uint64_t hole = (uint64_t)(cell - map->cells);
    for (uint64_t at = (hole + 1) & map->mask; map->cells[at].slot != 0;
         at = (at + 1) & map->mask) {
        uint64_t home = home_of(map, map->cells[at].key);
        if (((at - home) & map->mask) >= ((at - hole) & map->mask)) {
            map->cells[hole] = map->cells[at];
            hole = at;
        }
    }
    map->cells[hole].slot = 0;
}

/* ---- the replay ------------------------------------------------------------------------------ */

static void draw_requests(struct bench_policy_replay *r)
{
    uint32_t octaves = 0;
    while ((r->entries * (uint64_t)KEYS_PER_ENTRY) >> octaves > 1)
        octaves++;
    for (uint32_t i = 0; i < ROUND_REQUESTS; i++) {
        uint64_t random = tierce__bench_random(r->round, i);
        uint64_t octave = (random >> 32) * octaves >> 32;
        uint64_t rank = (1ULL << octave) + (random & ((1ULL << octave) - 1));
        r->requests[i] = tierce__bench_random(0, rank);
    }
    r->round++;
}

static void end_erasure(struct bench_policy_replay *r)
{
    const struct erasure *e = &r->erasures[r->erasures_ended++ % ERASURES];
    struct map_cell *cell = find_cell(&r->map, e->key);
    /* Unless the key has come back. */
    if (cell->slot == e->slot + 1 && r->key_of[e->slot] != e->key)
        erase_cell(&r->map, cell);
}

/* Half of the ring waits to be fetched, half of it to arrive. */
static void go_on_erasing(struct bench_policy_replay *r)
{
    if (r->erasures_begun - r->erasures_fetched > ERASURES / 2) {
        const struct erasure *e = &r->erasures[r->erasures_fetched++ % ERASURES];
        __builtin_prefetch(&r->map.cells[home_of(&r->map, e->key)], 1);
    }
    if (r->erasures_begun - r->erasures_ended == ERASURES)
        end_erasure(r);
}

static void evict_for(struct bench_policy_replay *r, const struct tierce__policy_entry *entry,
                      uint32_t *slot)
{
    const struct tierce__policy_ops *ops = r->policy->ops;
    tierce__policy_expect(r->policy, entry);
    bool found = ops->victim(r->policy, r->now, slot);
    TIERCE_ASSERT(found);
    ops->remove(r->policy, *slot, true);
    r->erasures[r->erasures_begun++ % ERASURES] =
        (struct erasure){.key = r->key_of[*slot], .slot = *slot};
}

/* Where a key is, or where it was until a moment ago, or NO_SLOT. */
static uint32_t find_slot(const struct bench_policy_replay *r, uint64_t key)
{
    const struct map_cell *cell = find_cell(&r->map, key);
    return cell->slot != 0 ? (uint32_t)cell->slot - 1 : TIERCE__NO_SLOT;
}

static bool has_key(const struct bench_policy_replay *r, uint32_t slot, uint64_t key)
{
    return slot != TIERCE__NO_SLOT && r->key_of[slot] == key;
}

static void store_key(struct bench_policy_replay *r, uint64_t key)
{
    uint32_t slot;
    struct tierce__policy_entry entry = {
        .key = key, .bytes = 1, .now = r->now, .parent = TIERCE__NO_SLOT};
    evict_for(r, &entry, &slot);
    r->policy->ops->insert(r->policy, slot, &entry);
    r->key_of[slot] = key;
    *find_cell(&r->map, key) = (struct map_cell){.key = key, .slot = slot + 1};
    go_on_erasing(r);
}

/* `slot` is what find_slot said when the batch began. */
static void request_key(struct bench_policy_replay *r, uint64_t key, uint32_t slot)
{
    r->now++;
    if (!has_key(r, slot, key))
        slot = find_slot(r, key);
    if (has_key(r, slot, key)) {
        r->hits++;
        r->policy->ops->touch(r->policy, slot, r->now);
    } else {
        store_key(r, key);
    }
}

static void fetch_cells(const struct bench_policy_replay *r, const uint64_t *keys)
{
    for (uint32_t i = 0; i < BATCH; i++)
        __builtin_prefetch(&r->map.cells[home_of(&r->map, keys[i])], 1);
}

static void find_slots(const struct bench_policy_replay *r, const uint64_t *keys, uint32_t *slots)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        slots[i] = find_slot(r, keys[i]);
        if (slots[i] != TIERCE__NO_SLOT)
            __builtin_prefetch(&r->key_of[slots[i]]);
        tierce__policy_prefetch(r->policy, keys[i], slots[i], false);
    }
    for (uint32_t i = 0; i < BATCH; i++)
        tierce__policy_prefetch(r->policy, keys[i], slots[i], true);
}

static int64_t run_policy(void *arg)
{
    struct bench_policy_replay *r = arg;
    uint32_t slots[BATCH];
    draw_requests(r);
    r->hits = 0;
    uint64_t start = tierce__now_ns();
    fetch_cells(r, r->requests);
    for (uint32_t at = 0; at < ROUND_REQUESTS; at += BATCH) {
        const uint64_t *keys = r->requests + at;
        find_slots(r, keys, slots);
        fetch_cells(r, keys + BATCH);
        for (uint32_t i = 0; i < BATCH; i++)
            request_key(r, keys[i], slots[i]);
    }
    return (int64_t)(tierce__now_ns() - start);
}

static int64_t run_map(void *arg)
{
    struct bench_policy_replay *r = arg;
    uint64_t found = 0;
    draw_requests(r);
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 0; i < ROUND_REQUESTS; i++) {
        __builtin_prefetch(&r->map.cells[home_of(&r->map, r->requests[i + BATCH])]);
        found += find_cell(&r->map, r->requests[i])->slot != 0;
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return found > 0 ? ns : tierce__bench_fail(r->bench, "the map lost its keys");
}

/* ---- cases ----------------------------------------------------------------------------------- */

static double goal_of(const struct bench_policy_replay *r, const char *policy)
{
    if (strcmp(policy, "hazard") == 0)
        return r->lru_rate / GOAL_HAZARD;
    static const char *const fast[] = {"lru", "fifo", "sieve"};
    for (size_t i = 0; i < sizeof(fast) / sizeof(fast[0]); i++) {
        if (strcmp(policy, fast[i]) == 0)
            return GOAL_FAST;
    }
    return GOAL_OTHERS;
}

static int fill(struct bench_policy_replay *r)
{
    memset(r->map.cells, 0, r->map.bytes);
    r->erasures_begun = r->erasures_fetched = r->erasures_ended = 0;
    for (uint32_t slot = 0; slot < r->entries; slot++) {
        struct tierce__policy_entry entry = {
            .key = tierce__bench_random(0, slot), .bytes = 1, .parent = TIERCE__NO_SLOT};
        r->policy->ops->insert(r->policy, slot, &entry);
        r->key_of[slot] = entry.key;
        *find_cell(&r->map, entry.key) = (struct map_cell){.key = entry.key, .slot = slot + 1};
    }
    uint64_t hits = 0;
    for (uint32_t i = 0; i < ROUNDS_AT_FIRST; i++) {
        int64_t ns = run_policy(r);
        if (ns < 0)
            return (int)ns;
        hits += r->hits;
    }
    if (hits == 0 || hits == (uint64_t)ROUND_REQUESTS * ROUNDS_AT_FIRST)
        return tierce__bench_fail(r->bench, "all requests had the same result");
    return 0;
}

static int measure(struct bench_policy_replay *r)
{
    const char *policy = r->policy->ops->name;
    struct tierce__bench_side sides[] = {{.run = run_policy, .arg = r}, {.run = run_map, .arg = r}};
    int rc = tierce__bench_alternate(sides, 2, r->bench->seconds);
    if (rc < 0)
        return rc;
    double rate = ROUND_REQUESTS / sides[0].median_ns * 1e3;
    if (strcmp(policy, "lru") == 0)
        r->lru_rate = rate;
    char name[64];
    snprintf(name, sizeof(name), "%s; %u entries; %u %% hits", policy, r->entries,
             (unsigned)(r->hits * 100 / ROUND_REQUESTS));
    tierce__bench_emit(r->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "Mops/s",
                                     .value = rate,
                                     .limit = goal_of(r, policy),
                                     .goal = 1,
                                     .peer = "the map alone",
                                     .peer_value = ROUND_REQUESTS / sides[1].median_ns * 1e3});
    return 0;
}

static int run_case(struct bench_policy_replay *r, const struct tierce__policy_ops *ops)
{
    struct tierce__policy_opts opts = {
        .size = sizeof(opts), .slot_count = r->entries, .capacity = r->entries, .seed = 1};
    int rc = ops->create(&r->policy, &opts);
    if (rc < 0)
        return rc;
    r->round = 1;
    rc = fill(r);
    if (rc == 0)
        rc = measure(r);
    ops->destroy(r->policy);
    return rc;
}

int tierce__bench_policy(const struct tierce__bench *bench)
{
    struct bench_policy_replay r = {.bench = bench, .entries = ENTRIES_MAX};
    while ((uint64_t)r.entries * ENTRY_BYTES > bench->memory_bytes)
        r.entries /= 2;
    r.map.mask = 4 * (uint64_t)r.entries - 1;
    r.map.bytes = (r.map.mask + 1) * sizeof(struct map_cell);
    r.map.cells = (void *)tierce__bench_map(r.map.bytes);
    r.requests = tierce__calloc(ROUND_REQUESTS + BATCH, sizeof(*r.requests));
    r.key_of = (uint64_t *)(void *)tierce__bench_map(r.entries * sizeof(*r.key_of));
    int rc = r.map.cells == NULL || r.requests == NULL || r.key_of == NULL ? -ENOMEM : 0;
    for (size_t i = 0; rc == 0 && tierce__policy_at(i) != NULL; i++)
        rc = run_case(&r, tierce__policy_at(i));
    tierce__bench_unmap((uint8_t *)r.key_of, r.entries * sizeof(*r.key_of));
    tierce__free(r.requests);
    tierce__bench_unmap((uint8_t *)r.map.cells, r.map.bytes);
    return rc;
}
