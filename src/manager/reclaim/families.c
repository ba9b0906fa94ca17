/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families: the instances that hold the groups of layers of one model. Their keys are equal for
 * equal tokens, so the pair of a block is a read by key in another instance; nothing is kept in
 * memory for it. docs/inside/design/008-reclaim.md has the rules.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/key/group.h"
#include "manager/reclaim/victims_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE TIERCE__NUMBER_NONE
/* The groups of a prompt are stored one after the other. */
#define AGE_US (60 * 1000000LL)

enum {
    WALK_MAX = 64,  /* blocks of a window that are read */
    SPANS_MAX = 16, /* blocks up to which the state before a state is searched */
};

/* ---- the families of the members ------------------------------------------------------------- */

static const struct tierce__instance *instance_of(const struct tierce__kin *kin)
{
    return &kin->live->instance;
}

static int compare_families(const struct tierce__instance *a, const struct tierce__instance *b)
{
    int order = strcmp(a->group_name, b->group_name);
    return order != 0 ? order : strcmp(a->attention.family, b->attention.family);
}

static int compare_kin(const void *a, const void *b)
{
    const struct tierce__instance *x = instance_of(a), *y = instance_of(b);
    int order = compare_families(x, y);
    return order != 0 ? order : (x->number > y->number) - (x->number < y->number);
}

/* If memory runs out, the instance has no family in this round. */
static void add_kin(void *arg, struct tierce__live *live)
{
    struct tierce__families *f = arg;
    if (live->instance.attention.family[0] == '\0' || live->instance.is_kv ||
        TIERCE__GROW(f->kin, f->kin_room, f->kin_count + 1, 16) < 0)
        return;
    TIERCE_ASSERT(f->kin_count < f->kin_room);
    tierce__live_hold(live);
    f->kin[f->kin_count++] = (struct tierce__kin){live, NONE, true};
}

static bool has_keys(const struct tierce__kin *kin)
{
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(kin->live->index, &stats);
    return stats.keys > 0;
}

static bool is_generation(const struct tierce__attention *a, const struct tierce__attention *b)
{
    return a->layers[0] != '\0' && strcmp(a->layers, b->layers) == 0 &&
           strcmp(a->kind, b->kind) == 0;
}

/* Instances of the same layers: engines have changed their options. The empty one is not used any
 * more; if both have blocks, it is unknown which one a hit needs. */
static void drop_generations(struct tierce__families *f, const struct tierce__family *family)
{
    struct tierce__kin *kin = &f->kin[family->first];
    for (size_t i = 0; i < family->count; i++) {
        for (size_t j = 0; j < family->count; j++) {
            if (i != j && has_keys(&kin[j]) &&
                is_generation(&instance_of(&kin[i])->attention, &instance_of(&kin[j])->attention))
                kin[i].is_required = false;
        }
    }
}

static bool is_tree(const struct tierce__kin *kin)
{
    return kin->is_required && !kin->live->needs.is_sparse;
}

/* A family of one instance, or without full attention, has no pairs. */
static int add_family(struct tierce__families *f, size_t first, size_t count)
{
    struct tierce__family family = {.first = first, .count = count, .tree = first};
    drop_generations(f, &family);
    while (family.tree < first + count && !is_tree(&f->kin[family.tree]))
        family.tree++;
    if (count < 2 || family.tree == first + count)
        return 0;
    family.stops = tierce__live_stops(f->kin[family.tree].live);
    if (TIERCE__GROW(f->list, f->room, f->count + 1, 4) < 0)
        return -ENOMEM;
    TIERCE_ASSERT(f->count < f->room);
    f->list[f->count++] = family;
    return 0;
}

/* Names the family of each member, and counts them: only members become candidates. */
static void link_members(struct tierce__taking *t, uint32_t number)
{
    const struct tierce__family *family = &t->families.list[number];
    uint32_t linked = 0;
    for (size_t i = family->first; i < family->first + family->count; i++) {
        struct tierce__kin *kin = &t->families.kin[i];
        for (size_t m = 0; m < t->member_count; m++) {
            if (t->members[m].live != kin->live)
                continue;
            kin->member = (uint32_t)m;
            t->members[m].family = number;
            linked++;
        }
    }
    t->families.most = linked > t->families.most ? linked : t->families.most;
}

void tierce__families_find(struct tierce__taking *t)
{
    struct tierce__families *f = &t->families;
    int rc = 0;
    TIERCE_ASSERT(f->kin_count == 0 && f->count == 0);
    tierce__locator_each(t->opts->locator, add_kin, f);
    if (f->kin_count > 1)
        qsort(f->kin, f->kin_count, sizeof(*f->kin), compare_kin);
    for (size_t first = 0, end; first < f->kin_count && rc == 0; first = end) {
        for (end = first + 1;
             end < f->kin_count &&
             compare_families(instance_of(&f->kin[first]), instance_of(&f->kin[end])) == 0;)
            end++;
        rc = add_family(f, first, end - first);
    }
    for (uint32_t i = 0; i < f->count; i++)
        link_members(t, i);
}

void tierce__families_fini(struct tierce__families *families)
{
    for (size_t i = 0; i < families->kin_count; i++)
        tierce__live_release(families->kin[i].live);
    tierce__free(families->kin);
    tierce__free(families->list);
    *families = (struct tierce__families){0};
}

/* ---- what can be restored -------------------------------------------------------------------- */

/* Records of some keys in one instance. */
struct found_blocks {
    struct tierce__record *records;
    bool *found;
};

/* The candidates of a family that are judged, in arrays of the arena. */
struct judging {
    struct tierce__taking *t;
    const struct tierce__family *family;
    size_t count;
    uint32_t *of; /* their indexes */
    int64_t *keys;
    struct found_blocks tree;
    bool *broken; /* a group cannot be restored at the end of this block */
};

/* Blocks of a run: with the start of the prompt, any run is complete. */
#define ALL_BEFORE UINT32_MAX

static int read_blocks(struct tierce__taking *t, const struct tierce__kin *kin, const int64_t *keys,
                       size_t count, struct found_blocks *out)
{
    struct tierce__meta_space *space = tierce__meta_index_space(kin->live->index);
    out->records = tierce__arena_calloc(&t->arena, count + 1, sizeof(*out->records));
    out->found = tierce__arena_calloc(&t->arena, count + 1, sizeof(*out->found));
    if (out->records == NULL || out->found == NULL)
        return -ENOMEM;
    return count > 0 ? space->ops->get(space, keys, count, &t->arena, out->records, out->found) : 0;
}

/* Reads the block before each of the `count` blocks, as long as there is one. `at[i]` is the index
 * of block i in judging. */
static int step_back(struct judging *j, const struct tierce__kin *kin, struct found_blocks *blocks,
                     size_t *at, size_t *count)
{
    int64_t *parents = tierce__arena_alloc(&j->t->arena, (*count + 1) * sizeof(*parents));
    size_t n = 0;
    if (parents == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < *count; i++) {
        if (!blocks->found[i] || !blocks->records[i].has_parent)
            continue;
        at[n] = at[i];
        parents[n++] = blocks->records[i].parent;
    }
    TIERCE_DASSERT(n <= *count);
    *count = n;
    return read_blocks(j->t, kin, parents, n, blocks);
}

/* Counts the blocks without a gap before each block, as far as a window reaches; ALL_BEFORE if the
 * prompt begins there. */
static int count_before(struct judging *j, const struct tierce__kin *kin,
                        struct found_blocks blocks, uint32_t *before)
{
    uint32_t run = kin->live->needs.run < WALK_MAX ? kin->live->needs.run : WALK_MAX;
    size_t *at = tierce__arena_alloc(&j->t->arena, (j->count + 1) * sizeof(*at));
    size_t count = j->count;
    int rc = 0;
    if (at == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        at[i] = i;
        before[i] = blocks.found[i] && !blocks.records[i].has_parent ? ALL_BEFORE : 0;
    }
    for (uint32_t step = 1; step < run && count > 0 && rc == 0; step++) {
        rc = step_back(j, kin, &blocks, at, &count);
        for (size_t i = 0; rc == 0 && i < count; i++) {
            if (blocks.found[i])
                before[at[i]] = blocks.records[i].has_parent ? step : ALL_BEFORE;
        }
    }
    return rc;
}

/* A window is restored by its last blocks together. */
static int check_run(struct judging *j, const struct tierce__kin *kin, struct found_blocks blocks)
{
    uint32_t run = kin->live->needs.run < WALK_MAX ? kin->live->needs.run : WALK_MAX;
    uint32_t *before = tierce__arena_calloc(&j->t->arena, j->count + 1, sizeof(*before));
    int rc = before != NULL ? count_before(j, kin, blocks, before) : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < j->count; i++)
        j->broken[i] |= before[i] < run - 1;
    return rc;
}

/* Reads the blocks with these keys in an instance of the family. They become candidates too: a pair
 * is evicted together. */
static int read_pairs(struct judging *j, const struct tierce__kin *kin)
{
    struct found_blocks blocks;
    int rc = read_blocks(j->t, kin, j->keys, j->count, &blocks);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < j->count; i++) {
        if (blocks.found[i] && kin->member != NONE)
            tierce__victims_add(j->t, kin->member, j->keys[i], &blocks.records[i]);
        /* At the end of a chunk of attention nothing of it is needed, and it is unknown where the
         * chunks end. */
        if (kin->is_required && kin->live->needs.kind != TIERCE_GROUP_CHUNKED)
            j->broken[i] |= !blocks.found[i];
    }
    if (kin == &j->t->families.kin[j->family->tree])
        j->tree = blocks;
    return kin->is_required && kin->live->needs.kind == TIERCE_GROUP_WINDOW
               ? check_run(j, kin, blocks)
               : 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const struct tierce__kin *tree_of(const struct judging *j)
{
    return &j->t->families.kin[j->family->tree];
}

static struct tierce__candidate *candidate_of(const struct judging *j, size_t i)
{
    return &j->t->candidates[j->of[i]];
}

/* The blocks of one instance among those that are judged: *count of them, by index, that `wants`
 * selects. */
static size_t *select_blocks(const struct judging *j, const struct tierce__kin *kin,
                             bool (*wants)(const struct judging *j, size_t i), size_t *count)
{
    size_t *at = tierce__arena_alloc(&j->t->arena, (j->count + 1) * sizeof(*at));
    *count = 0;
    for (size_t i = 0; at != NULL && i < j->count; i++) {
        if (candidate_of(j, i)->member == kin->member && wants(j, i))
            at[(*count)++] = i;
    }
    return at;
}

static bool is_old(const struct judging *j, size_t i)
{
    return j->t->now_us - candidate_of(j, i)->record->stored_us >= AGE_US;
}

/* Whether block i, of a window or a state, is worth less than others at this block of the tree,
 * because no prompt has ended or differed there, and few do so elsewhere inside a chain. */
static bool is_spare(const struct judging *j, size_t i, const struct tierce__record *at)
{
    return at->children == 1 &&
           tierce__stops_spare(j->family->stops, candidate_of(j, i)->record->uses > 0);
}

static bool is_inside(const struct judging *j, size_t i)
{
    return is_old(j, i) && !j->broken[i] && is_spare(j, i, &j->tree.records[i]);
}

/* The tokens that a prompt would compute again without a state: up to the state before it. Sets the
 * loss of the states that lie inside. */
static int measure_spans(struct judging *j, const struct tierce__kin *states)
{
    const struct tierce__kin *tree = tree_of(j);
    uint64_t block = (uint64_t)instance_of(tree)->block_size;
    size_t count;
    size_t *at = select_blocks(j, states, is_inside, &count);
    struct found_blocks blocks = {0}, before;
    int64_t *keys = tierce__arena_alloc(&j->t->arena, (j->count + 1) * sizeof(*keys));
    if (at == NULL || keys == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        keys[i] = j->keys[at[i]];
    int rc = read_blocks(j->t, tree, keys, count, &blocks);
    for (int step = 0; step < SPANS_MAX && count > 0 && rc == 0; step++) {
        size_t n = 0;
        for (size_t i = 0; i < count; i++) {
            candidate_of(j, at[i])->loss += block * candidate_of(j, at[i])->record->uses;
            if (blocks.found[i] && blocks.records[i].has_parent)
                keys[n++] = blocks.records[i].parent;
        }
        rc = step_back(j, tree, &blocks, at, &count);
        TIERCE_ASSERT(rc < 0 || n == count);
        if (rc == 0)
            rc = read_blocks(j->t, states, keys, count, &before);
        for (size_t i = 0; rc == 0 && i < count; i++)
            blocks.found[i] = blocks.found[i] && !before.found[i]; /* it ends at that state */
        for (size_t i = n = 0; rc == 0 && i < count; i++) {
            if (!blocks.found[i])
                continue;
            at[n] = at[i];
            blocks.found[n] = true;
            blocks.records[n++] = blocks.records[i];
        }
        count = n;
    }
    return rc;
}

static int judge_states(struct judging *j, const struct tierce__kin *kin)
{
    for (size_t i = 0; i < j->count; i++) {
        struct tierce__candidate *c = candidate_of(j, i);
        if (c->member == kin->member && is_old(j, i))
            c->value = j->broken[i]                          ? TIERCE__VALUE_NONE
                       : is_spare(j, i, &j->tree.records[i]) ? TIERCE__VALUE_INSIDE
                                                             : TIERCE__VALUE_FULL;
    }
    return measure_spans(j, kin);
}

/* Blocks of a window on the way along the blocks that follow them. */
struct window_walk {
    struct judging *j;
    const struct tierce__kin *kin;
    size_t *at, count;
    int64_t *keys;             /* the blocks that were reached */
    struct found_blocks block; /* in the window */
    struct found_blocks tree;
    bool *usable; /* the other groups can be restored at the end of the block that was reached */
    uint32_t *before; /* [of judging] blocks of the window before the first one */
};

/* Reads the blocks that were reached. Windows of other groups are not read: pairs of equal windows
 * are evicted together. */
static int reach(struct window_walk *w, bool is_first)
{
    struct tierce__taking *t = w->j->t;
    const struct tierce__kin *kin = &t->families.kin[w->j->family->first];
    struct found_blocks other;
    int rc = read_blocks(t, w->kin, w->keys, w->count, &w->block);
    if (rc == 0)
        rc = read_blocks(t, tree_of(w->j), w->keys, w->count, &w->tree);
    for (size_t i = 0; i < w->count && rc == 0; i++)
        w->usable[i] = !is_first || !w->j->broken[w->at[i]];
    for (size_t k = 0; k < w->j->family->count && rc == 0 && !is_first; k++) {
        if (!kin[k].is_required || kin[k].live->needs.kind == TIERCE_GROUP_WINDOW ||
            kin[k].live->needs.kind == TIERCE_GROUP_CHUNKED)
            continue;
        rc = read_blocks(t, &kin[k], w->keys, w->count, &other);
        for (size_t i = 0; rc == 0 && i < w->count; i++)
            w->usable[i] = w->usable[i] && other.found[i];
    }
    return rc;
}

/* Sets the value of a window's block for the block that was reached `step` blocks behind it.
 * Returns whether the walk goes on. */
static bool judge_reached(const struct window_walk *w, size_t i, uint32_t step)
{
    struct tierce__candidate *c = candidate_of(w->j, w->at[i]);
    const struct tierce__record *block = &w->block.records[i];
    uint32_t run = w->kin->live->needs.run, before = w->before[w->at[i]];
    if (!w->block.found[i]) { /* the record named a block that is not there any more */
        c->value = step > 0 ? TIERCE__VALUE_FULL : c->value;
        return false;
    }
    if (w->usable[i] && w->tree.found[i] && (before == ALL_BEFORE || before + step >= run - 1))
        c->value = !is_spare(w->j, w->at[i], &w->tree.records[i]) ? TIERCE__VALUE_FULL
                   : c->value == TIERCE__VALUE_NONE               ? TIERCE__VALUE_INSIDE
                                                                  : c->value;
    /* Only the last of several blocks that follow is named, and none after that one was removed: it
     * is unknown where these chains end. */
    if (step + 1 < run && block->children > (uint32_t)block->has_child)
        c->value = TIERCE__VALUE_FULL;
    return c->value != TIERCE__VALUE_FULL && step + 1 < run && block->has_child;
}

/* A window's block is of use if a prompt ends at it, or so few blocks later that the window still
 * holds it. */
static int walk_windows(struct window_walk *w, uint32_t run)
{
    int rc = 0;
    for (uint32_t step = 0; step < run && w->count > 0 && rc == 0; step++) {
        size_t n = 0;
        rc = reach(w, step == 0);
        for (size_t i = 0; rc == 0 && i < w->count; i++) {
            if (!judge_reached(w, i, step))
                continue;
            w->at[n] = w->at[i];
            w->keys[n++] = w->block.records[i].child;
        }
        w->count = n;
    }
    return rc;
}

static int judge_windows(struct judging *j, const struct tierce__kin *kin)
{
    uint32_t run = kin->live->needs.run;
    struct window_walk w = {.j = j, .kin = kin};
    struct found_blocks blocks;
    w.at = select_blocks(j, kin, is_old, &w.count);
    w.keys = tierce__arena_alloc(&j->t->arena, (j->count + 1) * sizeof(*w.keys));
    w.usable = tierce__arena_alloc(&j->t->arena, (j->count + 1) * sizeof(*w.usable));
    w.before = tierce__arena_calloc(&j->t->arena, j->count + 1, sizeof(*w.before));
    if (w.at == NULL || w.keys == NULL || w.usable == NULL || w.before == NULL)
        return -ENOMEM;
    int rc = read_blocks(j->t, kin, j->keys, j->count, &blocks);
    if (rc == 0)
        rc = count_before(j, kin, blocks, w.before);
    for (size_t i = 0; i < w.count && rc == 0; i++) {
        w.keys[i] = j->keys[w.at[i]];
        /* The rest of a very long window is not read. */
        candidate_of(j, w.at[i])->value = run > WALK_MAX ? TIERCE__VALUE_FULL : TIERCE__VALUE_NONE;
    }
    if (rc == 0 && run <= WALK_MAX)
        rc = walk_windows(&w, run);
    for (size_t i = 0; i < j->count && rc < 0; i++) { /* nothing is known: none is worthless */
        if (candidate_of(j, i)->member == kin->member)
            candidate_of(j, i)->value = TIERCE__VALUE_FULL;
    }
    return rc;
}

/* A block in the middle of a chain has value for the blocks behind it. At the end of its chain,
 * `is_broken` decides (tierce__victims, offer). */
static void judge_full(struct judging *j, const struct tierce__kin *kin)
{
    for (size_t i = 0; i < j->count; i++) {
        struct tierce__candidate *c = candidate_of(j, i);
        if (c->member == kin->member)
            c->is_broken = j->broken[i] && is_old(j, i);
    }
}

static int judge_kin(struct judging *j, const struct tierce__kin *kin)
{
    if (kin->member == NONE || !kin->is_required)
        return 0;
    switch (kin->live->needs.kind) {
    case TIERCE_GROUP_STATE:
        return judge_states(j, kin);
    case TIERCE_GROUP_WINDOW:
    case TIERCE_GROUP_CHUNKED:
        return judge_windows(j, kin);
    case TIERCE_GROUP_ALL:
    case TIERCE_GROUP_FULL:
        judge_full(j, kin);
        break;
    }
    return 0;
}

/* ---- judging --------------------------------------------------------------------------------- */

static int collect(struct judging *j, uint32_t number, size_t from, size_t end)
{
    struct tierce__taking *t = j->t;
    j->of = tierce__arena_alloc(&t->arena, (end - from + 1) * sizeof(*j->of));
    j->keys = tierce__arena_alloc(&t->arena, (end - from + 1) * sizeof(*j->keys));
    j->broken = tierce__arena_calloc(&t->arena, end - from + 1, sizeof(*j->broken));
    if (j->of == NULL || j->keys == NULL || j->broken == NULL)
        return -ENOMEM;
    for (size_t i = from; i < end; i++) {
        if (t->members[t->candidates[i].member].family != number)
            continue;
        j->of[j->count] = (uint32_t)i;
        j->keys[j->count++] = t->candidates[i].key;
    }
    return 0;
}

static int judge_family(struct tierce__taking *t, uint32_t number, size_t from, size_t end)
{
    struct judging j = {.t = t, .family = &t->families.list[number]};
    const struct tierce__kin *kin = &t->families.kin[j.family->first];
    int rc = collect(&j, number, from, end);
    TIERCE_ASSERT(end <= t->count);
    if (rc < 0 || j.count == 0)
        return rc;
    for (size_t i = 0; i < j.family->count && rc == 0; i++)
        rc = read_pairs(&j, &kin[i]);
    for (size_t i = 0; i < j.family->count && rc == 0; i++)
        rc = judge_kin(&j, &kin[i]);
    return rc == -ENOMEM ? rc : 0;
}

int tierce__families_judge(struct tierce__taking *t, size_t from)
{
    int rc = 0;
    TIERCE_ASSERT(from <= t->count);
    /* The pairs of pairs are the blocks themselves, so the second round adds none. */
    for (size_t end = t->count; from < end && rc == 0; from = end, end = t->count) {
        for (uint32_t i = 0; i < t->families.count && rc == 0; i++)
            rc = judge_family(t, i, from, end);
    }
    return rc;
}

/* ---- pairs that part ------------------------------------------------------------------------- */

/* The number of blocks, from a block on, at whose ends it is needed. */
static uint32_t reach_of(const struct tierce__needs *needs)
{
    return needs->is_sparse ? needs->run : UINT32_MAX;
}

static bool is_required_member(const struct tierce__family *family, const struct tierce__kin *kin,
                               uint32_t member)
{
    for (size_t i = 0; i < family->count; i++) {
        if (kin[i].member == member)
            return kin[i].is_required;
    }
    return false;
}

void tierce__families_lose(struct tierce__taking *t, struct tierce__victims_heap *heap,
                           const struct tierce__candidate *chosen)
{
    uint32_t number = t->members[chosen->member].family;
    if (number == NONE || !chosen->is_whole)
        return;
    const struct tierce__family *family = &t->families.list[number];
    const struct tierce__kin *kin = &t->families.kin[family->first];
    uint32_t reach = reach_of(&t->members[chosen->member].live->needs);
    if (!is_required_member(family, kin, chosen->member))
        return; /* of a generation that no point needs */
    for (size_t i = 0; i < family->count; i++) {
        uint32_t at = kin[i].member != NONE && kin[i].member != chosen->member
                          ? tierce__victims_find(t, kin[i].member, chosen->key)
                          : NONE;
        if (at == NONE || t->candidates[at].is_chosen || !kin[i].is_required)
            continue;
        struct tierce__candidate *pair = &t->candidates[at];
        const struct tierce__needs *needs = &kin[i].live->needs;
        pair->is_broken = pair->is_broken || !needs->is_sparse;
        /* Every point that needs the pair needs the chosen block too. */
        if (needs->is_sparse ? reach_of(needs) <= reach : pair->followers == 0)
            tierce__victims_lower(heap, pair, TIERCE__VALUE_NONE);
    }
}
