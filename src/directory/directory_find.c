/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/directory_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#define LOAD_FULL 1000u /* thousandths of the reads that a worker admits */

/* A worker that holds the first key of a run, and those after it up to here. */
struct candidate {
    struct tierce__directory_id worker;
    uint32_t view; /* of its slot, when it was added */
    uint32_t keys; /* of the run */
    uint32_t load;
    uint32_t in_tier[TIERCE__DIRECTORY_TIERS_MAX]; /* of tiers that lack a later key of the run */
    uint8_t in_all;                                /* the other tiers, as bits */
    uint8_t slowest;
    uint8_t distance;
    bool is_full;       /* it admits no more reads from its slower tiers */
    bool is_incomplete; /* more of it may exist */
};

/* A lookup. Its memory is that of the holders of one key. */
struct search {
    struct tierce__directory *directory;
    const struct tierce__directory_key *keys;
    size_t count;
    uint64_t group, host;
    uint32_t zone[TIERCE__ZONE_PARTS_MAX];
    uint32_t zone_parts;
    struct tierce__directory_id exclude;
    uint32_t *holders, *before; /* of one key; of the last key that was looked at one by one */
    uint32_t holder_room, before_room, before_count;
    struct candidate *candidates;
    uint32_t candidate_count, candidate_room;
    struct tierce__numbers table; /* candidates, by slot */
};

static uint32_t slot_hash(uint32_t slot)
{
    return (uint32_t)(tierce__spread(slot) >> 32);
}

/* Most keys have their holders in the order of the key before: `expected` is the place after that
 * of the last one. */
static struct candidate *find_candidate(struct search *s, uint32_t slot, uint32_t expected)
{
    if (s->candidate_count == 0)
        return NULL;
    if (expected < s->candidate_count && s->candidates[expected].worker.slot == slot)
        return &s->candidates[expected];
    TIERCE__NUMBERS_FOR_EACH (it, &s->table, slot_hash(slot)) {
        if (s->candidates[it.number].worker.slot == slot)
            return &s->candidates[it.number];
    }
    return NULL;
}

/* Copies the holders of a key. Returns how many there are, or -ENOMEM. */
static int64_t copy_holders(struct search *s, const struct tierce__directory_key *key)
{
    for (uint32_t count = 1;;) {
        int rc = TIERCE__GROW(s->holders, s->holder_room, count, 16);
        if (rc < 0)
            return rc;
        count = tierce__directory_copy(s->directory, key, s->holders, s->holder_room);
        if (count <= s->holder_room)
            return count;
    }
}

/* As in directory.h. */
static uint8_t distance_of(const struct search *s, struct tierce__directory_slot *slot)
{
    uint32_t shared = 0;
    if (s->host != 0 && atomic_load(&slot->host) == s->host)
        return 0;
    while (shared < s->zone_parts && atomic_load(&slot->zone[shared]) == s->zone[shared])
        shared++;
    return (uint8_t)(1 + s->zone_parts - shared);
}

/* Adds a holder of the run's first key, if the asker may see it. */
static void add_candidate(struct search *s, uint32_t holder)
{
    uint32_t number = holder >> 16;
    struct tierce__directory_slot *slot = &s->directory->slots[number];
    uint32_t view = atomic_load(&slot->view);
    struct tierce__directory_id id = {atomic_load(&slot->session), number};
    struct candidate c = {
        .worker = id, .view = view, .load = atomic_load(&slot->load), .in_all = UINT8_MAX};
    c.is_full = c.load >= LOAD_FULL;
    c.distance = distance_of(s, slot);
    c.is_incomplete = !atomic_load(&slot->is_whole);
    bool is_visible = atomic_load(&slot->group) == s->group && id.session != 0 &&
                      (id.session != s->exclude.session || number != s->exclude.slot);
    /* The slot may have changed hands meanwhile: then its session has. */
    if (!is_visible || atomic_load(&slot->session) != id.session ||
        atomic_load(&slot->view) != view || !tierce__directory_view_has(view, holder))
        return;
    TIERCE_DASSERT(s->candidate_count < s->candidate_room);
    tierce__numbers_put(&s->table, slot_hash(number), s->candidate_count);
    s->candidates[s->candidate_count++] = c;
}

/* The candidates of a run are among `count` holders of its first key, which were copied. */
static int add_candidates(struct search *s, uint32_t count)
{
    tierce__numbers_clear(&s->table);
    s->candidate_count = 0;
    int rc = TIERCE__GROW(s->candidates, s->candidate_room, count, 16);
    if (rc == 0)
        rc = tierce__numbers_reserve(&s->table, count);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        add_candidate(s, s->holders[i]);
    return rc;
}

/* The candidate holds key `at` of its run. */
static void extend(struct candidate *c, uint32_t at, uint32_t tiers)
{
    TIERCE_DASSERT(tiers != 0 && c->keys == at);
    c->keys = at + 1;
    uint8_t fastest = (uint8_t)__builtin_ctz(tiers);
    if (fastest > c->slowest)
        c->slowest = fastest;
    for (uint32_t ended = c->in_all & ~tiers; ended != 0; ended &= ended - 1)
        c->in_tier[__builtin_ctz(ended)] = at;
    c->in_all &= (uint8_t)tiers;
}

/* Those that hold the key before the last `repeats` keys hold these, too, in the same tiers. */
static void extend_all(struct search *s, uint32_t at, uint32_t repeats)
{
    for (uint32_t i = 0; repeats > 0 && i < s->candidate_count; i++) {
        if (s->candidates[i].keys == at - repeats)
            s->candidates[i].keys = at;
    }
}

/* Whether the holders that were copied are those of the key before: most keys of a prompt have the
 * same. */
static bool is_as_before(const struct search *s, uint32_t count)
{
    return count == s->before_count &&
           memcmp(s->holders, s->before, count * sizeof(*s->holders)) == 0;
}

static void keep_as_before(struct search *s, uint32_t count)
{
    uint32_t *holders = s->before, room = s->before_room;
    s->before = s->holders;
    s->before_room = s->holder_room;
    s->before_count = count;
    s->holders = holders;
    s->holder_room = room;
}

/* Extends the candidates that hold key `at`. Returns whether there are any. */
static bool extend_each(struct search *s, uint32_t at, uint32_t count)
{
    bool is_held = false;
    for (uint32_t j = 0, expected = 0; j < count; j++) {
        struct candidate *c = find_candidate(s, s->holders[j] >> 16, expected);
        expected = c != NULL ? (uint32_t)(c - s->candidates) + 1 : expected;
        if (c == NULL || c->keys != at || !tierce__directory_view_has(c->view, s->holders[j]))
            continue;
        extend(c, at, s->holders[j] & 0xff);
        is_held = true;
    }
    return is_held;
}

/* Finds the candidates of a run from key `first` on. */
static int scan(struct search *s, size_t first)
{
    bool is_held = true;
    uint32_t repeats = 0, at = 0;
    for (; first + at < s->count && is_held; at++) {
        int64_t count = copy_holders(s, &s->keys[first + at]);
        if (count < 0)
            return (int)count;
        if (at > 0 && is_as_before(s, (uint32_t)count)) {
            repeats++;
            continue;
        }
        int rc = at == 0 ? add_candidates(s, (uint32_t)count) : 0;
        if (rc < 0)
            return rc;
        extend_all(s, at, repeats);
        repeats = 0;
        is_held = extend_each(s, at, (uint32_t)count);
        keep_as_before(s, (uint32_t)count);
    }
    extend_all(s, at, repeats);
    return 0;
}

/* Whether a run is better read from `a`: the order of directory.h. */
static bool is_better(const struct candidate *a, const struct candidate *b)
{
    bool a_is_full = a->is_full && a->slowest > 0, b_is_full = b->is_full && b->slowest > 0;
    if (a->keys != b->keys)
        return a->keys > b->keys;
    if (a_is_full != b_is_full)
        return b_is_full;
    if (a->slowest != b->slowest)
        return a->slowest < b->slowest;
    if (a->distance != b->distance)
        return a->distance < b->distance;
    return a->load < b->load;
}

/* The best `room` candidates of the run that begins with key `first`, the best first. Equal ones
 * take turns from key to key. Returns how many there are. */
static uint32_t choose(const struct search *s, const struct candidate **best, uint32_t room,
                       size_t first)
{
    uint32_t count = 0, candidates = s->candidate_count;
    uint32_t begin = candidates > 0 ? (uint32_t)(tierce__mix(s->keys[first].low) % candidates) : 0;
    for (uint32_t i = 0; i < candidates; i++) {
        const struct candidate *c = &s->candidates[(begin + i) % candidates];
        if (c->keys == 0 || (count == room && !is_better(c, best[count - 1])))
            continue;
        uint32_t at = count < room ? count++ : count - 1;
        for (; at > 0 && is_better(c, best[at - 1]); at--)
            best[at] = best[at - 1];
        best[at] = c;
    }
    return count;
}

static struct tierce__directory_prefix prefix_of(const struct candidate *c)
{
    struct tierce__directory_prefix prefix = {.worker = c->worker,
                                              .keys = c->keys,
                                              .load = c->load,
                                              .distance = c->distance,
                                              .is_incomplete = c->is_incomplete};
    for (uint32_t tier = 0; tier < TIERCE__DIRECTORY_TIERS_MAX; tier++)
        prefix.in_tier[tier] = (c->in_all & 1u << tier) != 0 ? c->keys : c->in_tier[tier];
    return prefix;
}

static int search(struct search *s, struct tierce__directory_found *found)
{
    for (size_t first = 0; first < s->count && found->run_count < TIERCE__DIRECTORY_RUNS_MAX;) {
        int rc = scan(s, first);
        if (rc < 0)
            return rc;
        const struct candidate *best[TIERCE__DIRECTORY_PREFIXES_MAX];
        uint32_t count = choose(s, best, first == 0 ? TIERCE__DIRECTORY_PREFIXES_MAX : 1, first);
        if (count == 0)
            return 0;
        for (; first == 0 && found->prefix_count < count; found->prefix_count++)
            found->prefixes[found->prefix_count] = prefix_of(best[found->prefix_count]);
        found->runs[found->run_count++] =
            (struct tierce__directory_run){.worker = best[0]->worker,
                                           .first = (uint32_t)first,
                                           .keys = best[0]->keys,
                                           .load = best[0]->load,
                                           .slowest = best[0]->slowest,
                                           .distance = best[0]->distance};
        first += best[0]->keys;
    }
    return 0;
}

int tierce__directory_find(struct tierce__directory *directory,
                           const struct tierce__directory_key *keys, size_t count,
                           const struct tierce__directory_asker *asker,
                           struct tierce__directory_found *found)
{
    found->prefix_count = found->run_count = 0;
    struct search s = {.directory = directory,
                       .keys = keys,
                       .count = count,
                       .group = tierce__directory_group(directory, asker->group),
                       .host = tierce__directory_host(directory, asker->host),
                       .exclude = asker->exclude};
    int parts = tierce__zone_parse(s.zone, asker->zone != NULL ? asker->zone : "", directory->seed);
    if (parts < 0)
        return parts;
    s.zone_parts = (uint32_t)parts;
    if (s.group == 0 || count == 0)
        return 0;
    int rc = search(&s, found);
    if (rc < 0)
        found->prefix_count = found->run_count = 0;
    tierce__free(s.candidates);
    tierce__free(s.holders);
    tierce__free(s.before);
    tierce__numbers_fini(&s.table);
    return rc;
}
