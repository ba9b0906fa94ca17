/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaim/demote.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/mix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    PASSES_MAX = 64, /* samples per need; the next round continues */
    /* A sample of long chains has few ends. Keys are drawn until there are so many ends, at most so
     * often: the oldest of eight ends is not old. */
    LEAVES_WANTED = 64,
    DRAWS_MAX = 8,
    /* Partial samples without a leaf before other blocks are evicted. */
    LEAFLESS_MAX = 8,
    /* Steps up a chain per pass; each may be a round trip to a store that blocks. */
    LEVELS_MAX = 64,
    LEVELS_OF_MEMORY_MAX = 1024,
};
#define NONE TIERCE__NUMBER_NONE

/* ---- the instances --------------------------------------------------------------------------- */

/* If memory runs out, the instance is skipped in this round. */
static void add_member(void *arg, struct tierce__live *live)
{
    struct tierce__taking *t = arg;
    const struct tierce__need *need = t->opts->need;
    struct tierce__meta_index_stats stats;
    const struct tierce__group *group =
        tierce__catalog_group(t->opts->catalog, live->instance.group_name);
    if (group == NULL || (need->instance != 0 && need->instance != live->instance.number) ||
        (need->group != NULL && strcmp(group->name, need->group) != 0) ||
        (need->shared != NULL && strcmp(group->global_quota_group_name, need->shared) != 0))
        return;
    if (need->demotes != NULL && !tierce__demote_takes(live, t->opts->catalog, group, need))
        return;
    tierce__meta_index_stats(live->index, &stats);
    if (stats.keys == 0)
        return;
    if (TIERCE__GROW(t->members, t->member_room, t->member_count + 1, 16) < 0)
        return;
    TIERCE_ASSERT(t->member_count < t->member_room);
    tierce__live_hold(live);
    t->members[t->member_count++] = (struct tierce__member){
        live, group, stats.keys, TIERCE__NUMBER_NONE, tierce__live_trusts_closed(live)};
    t->keys += stats.keys;
}

const struct tierce__policy_ops *tierce__victims_policy(int32_t reclaim_policy)
{
    switch (reclaim_policy) {
    case TIERCE__RECLAIM_LFU:
        return tierce__policy_find("lfu");
    case TIERCE__RECLAIM_TTL:
        return tierce__policy_find("ttl");
    case TIERCE__RECLAIM_LEAF_LRU:
        return tierce__policy_find("leaf_lru");
    default:
        return tierce__policy_find("lru");
    }
}

static const struct tierce__policy_ops *policy_of(const struct tierce__taking *t,
                                                  const struct tierce__member *member)
{
    /* Ranks of different policies are not comparable, so several groups together are ranked by last
     * use. */
    int32_t policy = member->group->reclaim_policy;
    bool compares = t->opts->need->group != NULL || policy == TIERCE__RECLAIM_LEAF_LRU;
    return tierce__victims_policy(compares && t->opts->need->demotes == NULL ? policy
                                                                             : TIERCE__RECLAIM_LRU);
}

/* ---- the sample ------------------------------------------------------------------------------ */

bool tierce__need_concerns(const struct tierce__need *need, uint8_t type, uint16_t storage)
{
    uint8_t quota_type = (uint8_t)tierce__storage_type_quota((enum tierce__storage_type)type);
    return (need->storage == 0 || storage == need->storage) &&
           (!need->of_slot || tierce__meta_type_slot(quota_type) == need->slot);
}

static uint32_t hash_of(uint32_t member, int64_t key)
{
    return (uint32_t)tierce__mix((uint64_t)key + tierce__spread(member));
}

uint32_t tierce__victims_find(const struct tierce__taking *t, uint32_t member, int64_t key)
{
    TIERCE_DASSERT(member < t->member_count);
    TIERCE__NUMBERS_FOR_EACH (it, &t->table, hash_of(member, key)) {
        TIERCE_DASSERT(it.number < t->count);
        const struct tierce__candidate *c = &t->candidates[it.number];
        if (c->key == key && c->member == member)
            return it.number;
    }
    return NONE;
}

static bool is_over(const struct tierce__member *member, const struct tierce__record *record,
                    int64_t now_us)
{
    int64_t ttl_us = tierce__hint_ttl_s(record->hint) * 1000000;
    TIERCE_DASSERT(ttl_us >= 0);
    return (tierce__hint_kind(record->hint) == TIERCE__HINT_CLOSED && member->trusts_closed) ||
           (ttl_us > 0 && now_us - record->used_us >= ttl_us);
}

void tierce__victims_add(struct tierce__taking *t, uint32_t member, int64_t key,
                         const struct tierce__record *record)
{
    TIERCE_ASSERT(member < t->member_count && t->count <= t->room);
    const struct tierce__policy_ops *policy = policy_of(t, &t->members[member]);
    bool is_sparse = t->members[member].live->needs.is_sparse;
    const struct tierce__need *need = t->opts->need;
    size_t wanted = 0;
    if (t->count == t->room || tierce__victims_find(t, member, key) != NONE ||
        (need->demotes != NULL &&
         tierce__demote_skips(t->members[member].live, key, record, t->now_us)))
        return;
    struct tierce__candidate *c = &t->candidates[t->count];
    *c = (struct tierce__candidate){
        .record = record,
        .key = key,
        .member = member,
        .value = TIERCE__VALUE_FULL,
        .parent = NONE,
        .is_over = is_over(&t->members[member], record, t->now_us),
        .followers = is_sparse || need->demotes != NULL ? 0 : record->children,
        .is_leaf_only = !is_sparse && strcmp(policy->name, "leaf_lru") == 0};
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        if (!tierce__need_concerns(need, location->type, location->storage))
            continue;
        wanted++;
        c->bytes += tierce__location_bytes(location);
    }
    TIERCE_ASSERT(wanted <= record->location_count);
    c->is_whole = wanted == record->location_count;
    /* Blocks that follow it are checked in choose, for every policy. */
    struct tierce__policy_history history = {.stored = tierce__due(record->stored_us),
                                             .used = tierce__due(record->used_us),
                                             .uses = record->uses};
    bool goes = wanted > 0 || record->location_count == 0;
    if (goes &&
        policy->rank(&c->rank, &history, tierce__due(t->now_us), TIERCE__RECLAIM_HALF_LIFE_US))
        tierce__numbers_put(&t->table, hash_of(member, key), (uint32_t)t->count++);
}

/* Returns whether no block that follows it would remain. */
static bool may_leave(const struct tierce__candidate *c)
{
    return c->followers == 0 || !c->is_whole;
}

/* Samples keys of a member; all keys if they fit. `leaves`: of these, only ends of chains. */
static int draw_from(struct tierce__taking *t, uint32_t member, size_t wanted, bool leaves)
{
    TIERCE_ASSERT(member < t->member_count && wanted > 0);
    struct tierce__member *m = &t->members[member];
    struct tierce__meta_space *space = tierce__meta_index_space(m->live->index);
    int64_t *keys = tierce__arena_alloc(&t->arena, wanted * sizeof(*keys));
    bool *found = tierce__arena_calloc(&t->arena, wanted, sizeof(*found));
    struct tierce__record *records = tierce__arena_calloc(&t->arena, wanted, sizeof(*records));
    size_t drawn = 0;
    if (keys == NULL || found == NULL || records == NULL)
        return -ENOMEM;
    int rc = space->ops->sample(space, t->opts->random, wanted, keys, &drawn);
    if (rc == 0 && drawn > 0)
        rc = space->ops->get(space, keys, drawn, &t->arena, records, found);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(drawn <= wanted);
    t->stats->sampled_keys += drawn;
    TIERCE_DASSERT(t->count <= t->room);
    for (size_t i = 0; i < drawn; i++) {
        if (found[i] && (!leaves || records[i].children == 0 || m->live->needs.is_sparse))
            tierce__victims_add(t, member, keys[i], &records[i]);
    }
    return 0;
}

/* Makes a table for four times as many keys as are sampled, because further draws add ends, and
 * climb adds the blocks before them; and for the pairs of all. */
static int make_table(struct tierce__taking *t)
{
    TIERCE_DASSERT(t->count == 0 && t->room >= t->member_count);
    t->room *= t->is_exact ? 1 : 4 * (1 + (size_t)t->families.most);
    t->candidates = tierce__arena_alloc(&t->arena, t->room * sizeof(*t->candidates));
    tierce__numbers_clear(&t->table);
    return t->candidates != NULL ? tierce__numbers_reserve(&t->table, t->room) : -ENOMEM;
}

static size_t count_leaves(const struct tierce__taking *t)
{
    size_t leaves = 0;
    for (size_t i = 0; i < t->count; i++)
        leaves += may_leave(&t->candidates[i]);
    return leaves;
}

static size_t share_of(const struct tierce__taking *t, const struct tierce__member *member)
{
    return (size_t)((t->is_exact ? member->keys : member->keys * t->opts->sample_keys / t->keys) +
                    1);
}

static int draw_once(struct tierce__taking *t, bool leaves)
{
    int rc = 0;
    for (size_t m = 0; m < t->member_count && rc == 0; m++) {
        rc = draw_from(t, (uint32_t)m, share_of(t, &t->members[m]), leaves);
        if (rc < 0)
            tierce__log(TIERCE_LOG_WARN, "manager.sample_failed", "instance=%s error=%s",
                        t->members[m].live->instance.id, tierce_error_name(rc));
        rc = rc == -ENOMEM ? rc : 0; /* an instance that cannot be read is skipped */
    }
    return rc;
}

static int draw(struct tierce__taking *t)
{
    TIERCE_DASSERT(t->member_count > 0);
    TIERCE_ASSERT(t->keys > 0);
    t->is_exact = t->keys <= t->opts->sample_keys;
    t->count = 0;
    t->room = 0;
    for (size_t m = 0; m < t->member_count; m++)
        t->room += share_of(t, &t->members[m]);
    int rc = make_table(t);
    if (rc == 0)
        rc = draw_once(t, false);
    for (int i = 1; rc == 0 && !t->is_exact && i < DRAWS_MAX && count_leaves(t) < LEAVES_WANTED;
         i++)
        rc = draw_once(t, true);
    return rc;
}

/* ---- chains ---------------------------------------------------------------------------------- */

/* From a candidate towards the beginning of its chain, as far as the blocks are candidates already
 * and have one child: the last one, whose parent is to be read. NULL: there is none. */
static const struct tierce__candidate *climb_known(const struct tierce__taking *t,
                                                   const struct tierce__candidate *c)
{
    for (size_t i = 0; i < t->count && c->is_whole && c->record->has_parent; i++) {
        uint32_t parent = tierce__victims_find(t, c->member, c->record->parent);
        if (parent == NONE)
            return c;
        c = &t->candidates[parent];
        if (c->record->children != 1)
            return NULL;
    }
    return NULL; /* or a circle of blocks */
}

/* Reads the parents of a member's candidates from `from` to `end` that no other block follows: they
 * can be evicted together. */
static int climb_member(struct tierce__taking *t, uint32_t member, size_t from, size_t end,
                        bool leaves)
{
    TIERCE_ASSERT(member < t->member_count && from < end && end <= t->count);
    struct tierce__member *m = &t->members[member];
    struct tierce__meta_space *space = tierce__meta_index_space(m->live->index);
    int64_t *keys = tierce__arena_alloc(&t->arena, (end - from) * sizeof(*keys));
    bool *found = tierce__arena_calloc(&t->arena, end - from, sizeof(*found));
    struct tierce__record *records = tierce__arena_calloc(&t->arena, end - from, sizeof(*records));
    size_t count = 0;
    if (keys == NULL || found == NULL || records == NULL)
        return -ENOMEM;
    for (size_t i = from; i < end && !m->live->needs.is_sparse; i++) {
        const struct tierce__candidate *c = &t->candidates[i];
        bool climbs = c->member == member && (!leaves || c->climbs);
        const struct tierce__candidate *last = climbs ? climb_known(t, c) : NULL;
        if (last != NULL)
            keys[count++] = last->record->parent;
    }
    TIERCE_ASSERT(count <= end - from);
    int rc = count > 0 ? space->ops->get(space, keys, count, &t->arena, records, found) : 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (found[i] && records[i].children == 1)
            tierce__victims_add(t, member, keys[i], &records[i]);
    }
    t->stats->sampled_keys += count;
    return rc;
}

static bool is_before(const struct tierce__candidate *x, const struct tierce__candidate *y);

static int compare_candidates(const void *x, const void *y)
{
    const struct tierce__candidate *a = *(struct tierce__candidate *const *)x;
    const struct tierce__candidate *b = *(struct tierce__candidate *const *)y;
    return is_before(a, b) ? -1 : is_before(b, a);
}

/* The leaves that choose will evict at most, and those without a value. */
static int mark_climbing(struct tierce__taking *t)
{
    struct tierce__candidate **leaves =
        tierce__arena_alloc(&t->arena, (t->count + 1) * sizeof(*leaves));
    size_t count = 0;
    if (leaves == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < t->count; i++) {
        struct tierce__candidate *c = &t->candidates[i];
        c->climbs = c->followers == 0 && c->value == TIERCE__VALUE_NONE;
        if (may_leave(c) && c->value != TIERCE__VALUE_NONE)
            leaves[count++] = c;
    }
    qsort(leaves, count, sizeof(*leaves), compare_candidates);
    for (size_t i = 0; i < (count + TIERCE__RECLAIM_SLICE - 1) / TIERCE__RECLAIM_SLICE; i++)
        leaves[i]->climbs = leaves[i]->followers == 0;
    return 0;
}

static int levels_of(const struct tierce__taking *t)
{
    for (size_t m = 0; m < t->member_count; m++) {
        if (t->members[m].live->blocks)
            return LEVELS_MAX;
    }
    return LEVELS_OF_MEMORY_MAX;
}

/* Climbs from each leaf that may be evicted towards the beginning of its chain, level by level: the
 * blocks above it are as old. */
static int climb(struct tierce__taking *t)
{
    TIERCE_DASSERT(!t->is_exact);
    int rc = mark_climbing(t);
    bool leaves = true;
    int levels = levels_of(t);
    size_t from = 0, end = t->count;
    for (int level = 0; level < levels && from < end && rc == 0; level++, leaves = false) {
        for (size_t m = 0; m < t->member_count && rc == 0; m++)
            rc = climb_member(t, (uint32_t)m, from, end, leaves);
        from = end;
        end = t->count;
    }
    return rc == -ENOMEM ? rc : 0; /* blocks that cannot be read stay */
}

static void link_candidates(struct tierce__taking *t)
{
    for (size_t i = 0; i < t->count; i++) {
        struct tierce__candidate *c = &t->candidates[i];
        if (c->record->has_parent && !t->members[c->member].live->needs.is_sparse)
            c->parent = tierce__victims_find(t, c->member, c->record->parent);
        TIERCE_DASSERT(c->parent == NONE || c->parent < t->count);
    }
}

/* Compares by value, hint, loss and rank, then by key, so that equal samples have the same order.
 */
static bool is_before(const struct tierce__candidate *x, const struct tierce__candidate *y)
{
    if (x->value != y->value)
        return x->value < y->value;
    if (x->is_over != y->is_over)
        return x->is_over;
    if (x->loss != y->loss)
        return x->loss < y->loss;
    if (tierce__policy_rank_before(&x->rank, &y->rank))
        return true;
    return !tierce__policy_rank_before(&y->rank, &x->rank) && x->key < y->key;
}

static void set_place(struct tierce__victims_heap *heap, size_t at, struct tierce__candidate *c)
{
    heap->items[at] = c;
    c->at = (uint32_t)at + 1;
}

/* Moves a candidate up from a place that is free. */
static void rise(struct tierce__victims_heap *heap, size_t at, struct tierce__candidate *c)
{
    TIERCE_DASSERT(at < heap->count);
    for (; at > 0 && is_before(c, heap->items[(at - 1) / 2]); at = (at - 1) / 2)
        set_place(heap, at, heap->items[(at - 1) / 2]);
    set_place(heap, at, c);
}

static void push(struct tierce__victims_heap *heap, struct tierce__candidate *c)
{
    TIERCE_ASSERT(c->at == 0 && !c->is_chosen);
    heap->count++;
    rise(heap, heap->count - 1, c);
}

static struct tierce__candidate *pop(struct tierce__victims_heap *heap)
{
    TIERCE_ASSERT(heap->count > 0);
    struct tierce__candidate *top = heap->items[0], *last = heap->items[--heap->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && is_before(heap->items[child + 1], heap->items[child]))
            child++;
        if (!is_before(heap->items[child], last))
            break;
        set_place(heap, at, heap->items[child]);
    }
    set_place(heap, at, last);
    top->at = 0;
    TIERCE_DASSERT(heap->count == 0 || !is_before(heap->items[0], top));
    return top;
}

void tierce__victims_lower(struct tierce__victims_heap *heap, struct tierce__candidate *c,
                           enum tierce__value value)
{
    TIERCE_DASSERT(c->at <= heap->count);
    if (value >= c->value)
        return;
    c->value = value;
    c->loss = 0;
    if (c->at > 0)
        rise(heap, c->at - 1, c);
}

/* ---- leaving --------------------------------------------------------------------------------- */

struct leaving {
    struct tierce__taking *taking;
    const struct tierce__candidate *of; /* of the record for which is_unused was called last */
    struct tierce__candidate *const *chosen;
    const struct tierce__removed *removed;
    struct tierce__reclaimed *gone;
    size_t gone_count, gone_max;
    int64_t *idle_us; /* for each evicted block: the time since its last use */
    size_t idle_count;
    uint64_t used_again;
};

/* Whether a location leaves, by the record as it is now. */
static bool is_leaving(void *arg, const struct tierce__record *record,
                       const struct tierce__location *location)
{
    const struct leaving *l = arg;
    const struct tierce__need *need = l->taking->opts->need;
    return tierce__need_concerns(need, location->type, location->storage) &&
           (need->demotes == NULL || tierce__demote_drops(l->taking, l->of, record, location));
}

static bool has_leaving(struct leaving *l, const struct tierce__record *record)
{
    bool has = record->location_count == 0;
    for (size_t at = 0; at < record->location_count && !has; at++)
        has = is_leaving(l, record, &record->locations[at]);
    return has;
}

/* Called under the key's lock. A block that was used since it was sampled stays, and so do its
 * predecessors. */
static bool is_unused(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct leaving *l = arg;
    TIERCE_ASSERT(l->gone_count <= l->gone_max);
    const struct tierce__candidate *c = l->chosen[l->removed->offset + i];
    TIERCE_DASSERT(c->key == key);
    const struct tierce__record *drawn = c->record;
    bool unused = !c->is_held && record->used_us <= drawn->used_us && record->uses <= drawn->uses &&
                  record->children <= drawn->children;
    l->of = c;
    l->used_again += !unused;
    if (unused && !has_leaving(l, record)) {
        /* The copies that made these ones superfluous have left, or the block was moved. */
        if (l->taking->opts->need->demotes == NULL && c->parent != NONE)
            l->taking->candidates[c->parent].is_held = true;
        return false;
    }
    if (unused) {
        int64_t last_us = record->used_us > record->stored_us ? record->used_us : record->stored_us;
        TIERCE_DASSERT(l->taking->count > 0);
        l->idle_us[l->idle_count++] = l->taking->now_us - last_us;
        if (c->is_whole && l->taking->opts->need->demotes == NULL)
            tierce__live_note_gone(l->taking->members[c->member].live, key, record->hint);
    } else if (c->parent != NONE) {
        l->taking->candidates[c->parent].is_held = true;
    }
    for (size_t at = 0; unused && at < record->location_count; at++) {
        if (l->gone_count == l->gone_max)
            break; /* it got another location since it was sampled */
        if (!is_leaving(l, record, &record->locations[at]))
            continue;
        struct tierce__reclaimed *gone = &l->gone[l->gone_count++];
        gone->key = key;
        memcpy(gone->location_id, record->locations[at].id, sizeof(gone->location_id));
    }
    return unused;
}

static void submit(struct tierce__taking *t, const struct tierce__member *member,
                   struct tierce__candidate *const *chosen, size_t count)
{
    struct tierce__removed removed = {0};
    struct leaving leaving = {.taking = t, .chosen = chosen, .removed = &removed};
    int32_t delay_ms = member->group->delay_before_delete_ms;
    int64_t delay_us = (int64_t)(delay_ms > 0 ? delay_ms : 0) * 1000;
    int64_t *keys = tierce__arena_alloc(&t->arena, (count + 1) * sizeof(*keys));
    for (size_t i = 0; i < count && keys != NULL; i++) {
        TIERCE_DASSERT(&t->members[chosen[i]->member] == member);
        keys[i] = chosen[i]->key;
        leaving.gone_max += chosen[i]->record->location_count;
    }
    leaving.gone = tierce__arena_alloc(&t->arena, (leaving.gone_max + 1) * sizeof(*leaving.gone));
    leaving.idle_us = tierce__arena_alloc(&t->arena, (count + 1) * sizeof(*leaving.idle_us));
    if (keys == NULL || leaving.gone == NULL || leaving.idle_us == NULL || count == 0)
        return;
    struct tierce__removal how = {.due_us = t->now_us + delay_us,
                                  .wanted = is_unused,
                                  .wanted_location = is_leaving,
                                  .wanted_arg = &leaving};
    int rc = tierce__live_remove(member->live, keys, count, &how, &removed);
    TIERCE_ASSERT(leaving.gone_count <= leaving.gone_max && leaving.idle_count <= count);
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "manager.reclaim_failed", "instance=%s error=%s",
                    member->live->instance.id, tierce_error_name(rc));
    TIERCE_DASSERT(removed.keys <= count);
    t->stats->blocks += removed.keys;
    t->stats->locations += removed.locations;
    t->stats->bytes += removed.bytes;
    t->stats->used_again += leaving.used_again;
    t->bytes_left -= removed.bytes < t->bytes_left ? removed.bytes : t->bytes_left;
    t->keys_left -= removed.keys < t->keys_left ? removed.keys : t->keys_left;
    /* After an error the blocks of the last step stay. */
    tierce__live_count_reclaimed(member->live, leaving.idle_us,
                                 removed.keys < leaving.idle_count ? (size_t)removed.keys
                                                                   : leaving.idle_count);
    size_t told = removed.locations < leaving.gone_count ? removed.locations : leaving.gone_count;
    if (told > 0 && t->opts->submitted != NULL)
        t->opts->submitted(t->opts->arg, member->live->instance.id, leaving.gone, told, delay_us);
}

static bool is_younger(const struct tierce__candidate *x, const struct tierce__candidate *y)
{
    return tierce__policy_rank_before(&y->rank, &x->rank);
}

/* Puts a candidate into the heap that may leave now. */
static void offer(struct tierce__victims_heap *heap, struct tierce__candidate *c)
{
    /* The end of a chain at which other groups cannot be restored serves no lookup. */
    if (c->is_broken && c->followers == 0)
        c->value = TIERCE__VALUE_NONE;
    push(heap, c);
}

/* A victim was chosen: its parent may become a leaf. */
static void free_parent(const struct tierce__taking *t, struct tierce__victims_heap *heap,
                        const struct tierce__candidate *c)
{
    struct tierce__candidate *parent =
        c->parent != NONE && c->is_whole ? &t->candidates[c->parent] : NULL;
    if (parent == NULL || parent->followers == 0)
        return;
    TIERCE_DASSERT(parent->member == c->member && parent->key == c->record->parent);
    if (--parent->followers == 0 && parent->is_whole)
        offer(heap, parent);
}

/*
 * Selects the victims in order: the lowest among the leaves; the parent of a victim may become a
 * leaf. `breaks_chains`: the lowest, even if blocks follow them; the sweep of orphans.h removes
 * those. A partial sample gives a tenth of its leaves, with the blocks before them that are as old
 * as the next leaf; and those that have no value, or have none without that tenth. `room` is for
 * the heap.
 */
static size_t choose(struct tierce__taking *t, struct tierce__candidate **out,
                     struct tierce__candidate **room, bool breaks_chains)
{
    struct tierce__victims_heap heap = {.items = room};
    const struct tierce__candidate *only = NULL; /* of a single leaf */
    size_t n = 0, could = 0, counted = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->count; i++) {
        struct tierce__candidate *c = &t->candidates[i];
        c->is_counted = may_leave(c) || (breaks_chains && !c->is_leaf_only);
        could += c->is_counted;
        if (c->is_counted)
            offer(&heap, c);
        c->is_counted = c->is_counted && c->value != TIERCE__VALUE_NONE;
    }
    size_t most =
        t->is_exact ? t->count : (could + TIERCE__RECLAIM_SLICE - 1) / TIERCE__RECLAIM_SLICE;
    TIERCE_ASSERT(heap.count <= t->count);
    if (!t->is_exact && could == 1 && heap.count == 1)
        only = heap.items[0];
    while (heap.count > 0 && (bytes < t->bytes_left || n < t->keys_left)) {
        struct tierce__candidate *c = pop(&heap);
        if (c->value != TIERCE__VALUE_NONE &&
            ((c->is_counted && counted >= most) || (only != NULL && is_younger(c, only))))
            break;
        counted += c->is_counted;
        c->is_chosen = true;
        out[n++] = c;
        bytes += c->bytes;
        tierce__families_lose(t, &heap, c);
        if (!breaks_chains)
            free_parent(t, &heap, c);
    }
    TIERCE_ASSERT(n <= t->count);
    return n;
}

static bool any_may_leave(const struct tierce__taking *t)
{
    for (size_t i = 0; i < t->count; i++) {
        if (may_leave(&t->candidates[i]))
            return true;
    }
    return false;
}

/* Processes one sample; returns the number of blocks that were evicted or are to be moved. */
static uint64_t pass(struct tierce__taking *t)
{
    TIERCE_ASSERT(t->keys > 0 && t->member_count > 0);
    uint64_t before = t->stats->blocks + t->stats->demoted;
    tierce__arena_reset(&t->arena);
    if (draw(t) < 0)
        return 0;
    bool is_leafless = !any_may_leave(t);
    t->leafless = is_leafless ? t->leafless + 1 : 0;
    if (tierce__families_judge(t, 0) < 0)
        return 0;
    size_t judged = t->count; /* with the pairs that were added */
    if ((!t->is_exact && !is_leafless && climb(t) < 0) || tierce__families_judge(t, judged) < 0)
        return 0;
    link_candidates(t);
    struct tierce__candidate **chosen =
        tierce__arena_alloc(&t->arena, (t->count + 1) * sizeof(*chosen));
    struct tierce__candidate **of_member =
        tierce__arena_alloc(&t->arena, (t->count + 1) * sizeof(*of_member));
    if (chosen == NULL || of_member == NULL)
        return 0; /* of_member is the heap's room first */
    size_t count =
        choose(t, chosen, of_member, t->is_exact ? is_leafless : t->leafless > LEAFLESS_MAX);
    for (size_t m = 0; m < t->member_count; m++) {
        TIERCE_DASSERT(count <= t->count);
        size_t n = 0;
        for (size_t i = 0; i < count; i++) {
            if (chosen[i]->member == m)
                of_member[n++] = chosen[i];
        }
        if (n > 0 && t->opts->need->demotes != NULL)
            n = tierce__demote(t, &t->members[m], of_member, n);
        if (n > 0)
            submit(t, &t->members[m], of_member, n);
    }
    return t->stats->blocks + t->stats->demoted - before;
}

void tierce__victims_take(const struct tierce__victims_opts *opts,
                          struct tierce__victims_stats *stats)
{
    TIERCE_DASSERT(opts->need->bytes > 0 || opts->need->keys > 0);
    struct tierce__taking t = {.opts = opts,
                               .stats = stats,
                               .bytes_left = opts->need->bytes,
                               .keys_left = opts->need->keys,
                               .now_us = tierce__locator_now_us(opts->locator)};
    tierce__locator_each(opts->locator, add_member, &t);
    tierce__families_find(&t);
    for (int i = 0; i < PASSES_MAX && t.keys > 0 && (t.bytes_left > 0 || t.keys_left > 0); i++) {
        if (pass(&t) == 0 && (t.leafless == 0 || t.leafless > LEAFLESS_MAX))
            break;
        if (t.is_exact)
            break; /* the other blocks were used again or must stay */
    }
    TIERCE_DASSERT(t.bytes_left <= opts->need->bytes && t.keys_left <= opts->need->keys);
    tierce__arena_clear(&t.arena);
    tierce__numbers_fini(&t.table);
    for (size_t m = 0; m < t.member_count; m++)
        tierce__live_release(t.members[m].live);
    tierce__families_fini(&t.families);
    tierce__free(t.members);
}
