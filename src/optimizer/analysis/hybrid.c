/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/hybrid.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "core/key/group.h"
#include "optimizer/replay/sweep.h"
#include "optimizer/trace/intern.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
/* The groups of a prompt are stored one after the other: younger blocks keep their value. */
#define AGE_US      (60 * 1000000LL)
#define EVICT_PARTS 100u

enum hybrid_value { VALUE_NONE, VALUE_INSIDE, VALUE_FULL };

/* An instance. */
struct hybrid_member {
    bool is_known;
    uint32_t family;
    struct tierce__layer_group group;
    char *layers;
    uint64_t last_stored; /* a time of `clock`; 0: never */
};

struct hybrid_family {
    char *group, *name;
    uint32_t tree; /* the member with full attention; NONE */
    struct tierce__stops stops;
};

/* A pair of instance and key; its index is its number in `intern`. */
struct hybrid_block {
    uint64_t id, bytes, used;
    int64_t stored_us;
    uint64_t loss; /* tokens computed again without it, times its reads */
    uint32_t member;
    uint32_t parent;   /* of full attention; NONE at the beginning of a prompt */
    uint32_t depth;    /* of full attention: blocks up to its end */
    uint32_t children; /* of full attention, held */
    uint32_t uses;
    uint8_t value;
    bool is_held;
};

struct hybrid_victim {
    uint64_t loss, used;
    uint32_t block;
    uint8_t value;
};

struct tierce__hybrid {
    struct tierce__hybrid_opts opts;
    struct tierce__hybrid_result result;
    struct tierce__intern *intern;
    struct hybrid_member *members; /* [member_count] by instance */
    uint32_t member_count;
    struct hybrid_family *families;
    uint32_t family_count, family_room;
    struct hybrid_block *blocks; /* [block_count] */
    uint32_t block_count, block_room;
    struct hybrid_victim *victims; /* [victim_room] */
    uint32_t victim_room;
    uint64_t clock;
    int64_t now_us;
};

/* ---- members --------------------------------------------------------------------------------- */

static int find_family(struct tierce__hybrid *h, const struct tierce__trace_layers *layers,
                       uint32_t *out)
{
    for (uint32_t i = 0; i < h->family_count; i++) {
        if (strcmp(h->families[i].group, layers->group) == 0 &&
            strcmp(h->families[i].name, layers->family) == 0) {
            *out = i;
            return 0;
        }
    }
    if (TIERCE__GROW(h->families, h->family_room, h->family_count + 1, 4) < 0)
        return -ENOMEM;
    struct hybrid_family family = {.group = tierce__strdup(layers->group),
                                   .name = tierce__strdup(layers->family),
                                   .tree = NONE};
    if (family.group == NULL || family.name == NULL) {
        tierce__free(family.group);
        tierce__free(family.name);
        return -ENOMEM;
    }
    *out = h->family_count;
    h->families[h->family_count++] = family;
    return 0;
}

static bool read_group(struct tierce__layer_group *out, const struct tierce__trace_layers *layers)
{
    *out = (struct tierce__layer_group){.kind = TIERCE_GROUP_STATE,
                                        .window = layers->window_tokens,
                                        .block_tokens = layers->block_tokens,
                                        .chunk_blocks = 1};
    if (strcmp(layers->kind, "linear") != 0 && !tierce__group_parse(&out->kind, layers->kind))
        return false;
    bool has_window = out->kind == TIERCE_GROUP_WINDOW || out->kind == TIERCE_GROUP_CHUNKED;
    return out->block_tokens > 0 && (!has_window || out->window > 0);
}

static int grow_members(struct tierce__hybrid *h, uint32_t count)
{
    struct hybrid_member *members = tierce__realloc(h->members, count * sizeof(*members));
    if (members == NULL)
        return -ENOMEM;
    memset(members + h->member_count, 0, (count - h->member_count) * sizeof(*members));
    h->members = members;
    h->member_count = count;
    return 0;
}

/* *out = the member of an instance, or NULL if it is left out. */
static int find_member(struct tierce__hybrid *h, uint32_t instance,
                       const struct tierce__trace_layers *layers, struct hybrid_member **out)
{
    struct tierce__layer_group group;
    int rc = 0;
    *out = NULL;
    if (layers == NULL || layers->family[0] == '\0' || !read_group(&group, layers))
        return 0;
    if (instance >= h->member_count)
        rc = grow_members(h, instance + 1);
    if (rc < 0)
        return rc;
    struct hybrid_member *member = &h->members[instance];
    *out = member;
    if (member->is_known)
        return 0;
    member->group = group;
    rc = find_family(h, layers, &member->family);
    if (rc < 0)
        return rc;
    member->layers = tierce__strdup(layers->layers);
    if (member->layers == NULL)
        return -ENOMEM;
    member->is_known = true;
    struct hybrid_family *family = &h->families[member->family];
    if (family->tree == NONE && !tierce__group_is_sparse(group.kind))
        family->tree = instance;
    return 0;
}

/* Instances of the same layers: engines have changed their options. */
static bool is_replaced(const struct tierce__hybrid *h, const struct hybrid_member *member)
{
    for (uint32_t i = 0; i < h->member_count; i++) {
        const struct hybrid_member *other = &h->members[i];
        if (other != member && other->is_known && other->family == member->family &&
            member->layers[0] != '\0' && other->group.kind == member->group.kind &&
            strcmp(other->layers, member->layers) == 0 && other->last_stored > member->last_stored)
            return true;
    }
    return false;
}

/* Whether a point needs blocks of this member of a family, besides those of the tree. */
static bool is_required(const struct tierce__hybrid *h, uint32_t index, uint32_t family)
{
    const struct hybrid_member *member = &h->members[index];
    uint32_t tree = h->families[family].tree;
    if (!member->is_known || member->family != family || index == tree)
        return false;
    return (member->group.kind == TIERCE_GROUP_STATE ||
            member->group.block_tokens == h->members[tree].group.block_tokens) &&
           !is_replaced(h, member);
}

static bool is_chain(const struct hybrid_member *member)
{
    return !tierce__group_is_sparse(member->group.kind);
}

/* ---- points ---------------------------------------------------------------------------------- */

static uint32_t find_held(const struct tierce__hybrid *h, uint32_t member, uint64_t id)
{
    uint32_t number = tierce__intern_find(h->intern, member, id);
    return number != TIERCE__INTERN_NONE && h->blocks[number].is_held ? number : NONE;
}

/* The number of blocks of a member that the point after `depth` blocks of the tree needs. */
static uint32_t count_needed(const struct hybrid_member *member, uint32_t depth)
{
    if (member->group.kind == TIERCE_GROUP_STATE) /* of a whole block, of whatever length */
        return depth > 0;
    return tierce__group_is_sparse(member->group.kind)
               ? depth - (uint32_t)tierce__group_needs(&member->group, depth)
               : depth > 0; /* its own chain ends there */
}

typedef void hybrid_visit_fn(struct tierce__hybrid *h, struct hybrid_block *block, uint32_t point);

/* Calls `visit` for the blocks of a member that a point needs. False: one is missing; nothing else
 * is certain then. */
static bool visit_needed(struct tierce__hybrid *h, uint32_t member, uint32_t point,
                         hybrid_visit_fn *visit)
{
    uint32_t at = point, needed = count_needed(&h->members[member], h->blocks[point].depth);
    for (uint32_t i = 0; i < needed; i++, at = h->blocks[at].parent) {
        TIERCE_ASSERT(at != NONE);
        uint32_t found = find_held(h, member, h->blocks[at].id);
        if (found == NONE)
            return false;
        if (visit != NULL)
            visit(h, &h->blocks[found], point);
    }
    return true;
}

/* Whether a request can continue after this block of a tree. */
static bool is_point(struct tierce__hybrid *h, uint32_t point)
{
    uint32_t family = h->members[h->blocks[point].member].family;
    TIERCE_DASSERT(h->blocks[point].depth > 0);
    for (uint32_t i = 0; i < h->member_count; i++) {
        if (is_required(h, i, family) && !visit_needed(h, i, point, NULL))
            return false;
    }
    return true;
}

static void visit_pairs(struct tierce__hybrid *h, uint32_t point, hybrid_visit_fn *visit)
{
    uint32_t family = h->members[h->blocks[point].member].family;
    for (uint32_t i = 0; i < h->member_count; i++) {
        if (is_required(h, i, family))
            (void)visit_needed(h, i, point, visit);
    }
}

/* ---- eviction -------------------------------------------------------------------------------- */

static bool is_tree(const struct tierce__hybrid *h, const struct hybrid_block *block)
{
    return h->families[h->members[block->member].family].tree == block->member;
}

static void drop(struct tierce__hybrid *h, struct hybrid_block *block)
{
    TIERCE_ASSERT(block->is_held && h->result.used_bytes >= block->bytes);
    block->is_held = false;
    h->result.used_bytes -= block->bytes;
    h->result.evicted++;
    if (is_chain(&h->members[block->member]) && block->parent != NONE &&
        h->blocks[block->parent].children > 0)
        h->blocks[block->parent].children--;
}

static void raise_value(struct tierce__hybrid *h, struct hybrid_block *block, uint32_t point)
{
    const struct hybrid_block *at = &h->blocks[point];
    bool is_spare =
        at->children == 1 &&
        tierce__stops_spare(h->families[h->members[at->member].family].stops, block->uses > 0);
    enum hybrid_value value = is_spare ? VALUE_INSIDE : VALUE_FULL;
    block->value = block->value > value ? block->value : (uint8_t)value;
}

/* Blocks up to the state before this one. */
static uint32_t count_span(const struct tierce__hybrid *h, const struct hybrid_block *state,
                           uint32_t point)
{
    uint32_t span = 1;
    for (uint32_t at = h->blocks[point].parent; at != NONE; at = h->blocks[at].parent, span++) {
        if (find_held(h, state->member, h->blocks[at].id) != NONE)
            break;
    }
    return span;
}

static void value_state(struct tierce__hybrid *h, struct hybrid_block *block, uint32_t point)
{
    const struct hybrid_member *member = &h->members[block->member];
    raise_value(h, block, point);
    if (member->group.kind == TIERCE_GROUP_STATE && block->value == VALUE_INSIDE)
        block->loss = (uint64_t)count_span(h, block, point) * block->uses;
}

static void judge(struct tierce__hybrid *h)
{
    for (uint32_t i = 0; i < h->block_count; i++) {
        struct hybrid_block *block = &h->blocks[i];
        bool is_young = h->now_us - block->stored_us < AGE_US;
        block->loss = 0;
        block->value = !h->opts.is_paired || is_young || is_tree(h, block) ||
                               is_chain(&h->members[block->member])
                           ? VALUE_FULL
                           : VALUE_NONE;
    }
    for (uint32_t i = 0; i < h->block_count && h->opts.is_paired; i++) {
        struct hybrid_block *block = &h->blocks[i];
        if (!block->is_held || !is_tree(h, block))
            continue;
        if (is_point(h, i))
            visit_pairs(h, i, value_state);
        else if (block->children == 0 && h->now_us - block->stored_us >= AGE_US)
            block->value = VALUE_NONE;
    }
}

static int compare_victims(const void *a, const void *b)
{
    const struct hybrid_victim *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    if (x->loss != y->loss)
        return x->loss < y->loss ? -1 : 1;
    return x->used < y->used ? -1 : x->used > y->used;
}

/* Drops the end of a chain, and the blocks before it that are no points, with their pairs. */
static void drop_chain(struct tierce__hybrid *h, uint32_t at)
{
    do {
        struct hybrid_block *block = &h->blocks[at];
        uint32_t family = h->members[block->member].family;
        TIERCE_ASSERT(block->children == 0);
        drop(h, block);
        for (uint32_t i = 0; h->opts.is_paired && i < h->member_count; i++) {
            uint32_t pair = is_required(h, i, family) ? find_held(h, i, block->id) : NONE;
            if (pair != NONE)
                drop(h, &h->blocks[pair]);
        }
        at = block->parent;
    } while (h->opts.is_paired && at != NONE && h->blocks[at].is_held &&
             h->blocks[at].children == 0 && h->now_us - h->blocks[at].stored_us >= AGE_US &&
             !is_point(h, at));
}

static void evict_block(struct tierce__hybrid *h, uint32_t at)
{
    struct hybrid_block *block = &h->blocks[at];
    if (!block->is_held || (is_tree(h, block) && block->children > 0))
        return;
    if (is_tree(h, block)) {
        drop_chain(h, at);
        return;
    }
    drop(h, block);
    uint32_t family = h->members[block->member].family, tree = h->families[family].tree;
    at = h->opts.is_paired && tree != NONE ? find_held(h, tree, block->id) : NONE;
    if (at != NONE && h->blocks[at].children == 0 && is_required(h, block->member, family))
        drop_chain(h, at); /* its last block is no point any more */
}

/* Makes room for another hundredth. */
static int evict(struct tierce__hybrid *h)
{
    uint64_t aim = h->opts.capacity - h->opts.capacity / EVICT_PARTS, before;
    if (h->opts.capacity == TIERCE__CAPACITY_UNLIMITED || h->result.used_bytes <= h->opts.capacity)
        return 0;
    if (TIERCE__GROW(h->victims, h->victim_room, h->block_count, 1024) < 0)
        return -ENOMEM;
    do {
        uint32_t count = 0;
        before = h->result.used_bytes;
        judge(h);
        for (uint32_t i = 0; i < h->block_count; i++) {
            const struct hybrid_block *block = &h->blocks[i];
            if (block->is_held)
                h->victims[count++] =
                    (struct hybrid_victim){block->loss, block->used, i, block->value};
        }
        qsort(h->victims, count, sizeof(*h->victims), compare_victims);
        for (uint32_t i = 0; i < count && h->result.used_bytes > aim; i++)
            evict_block(h, h->victims[i].block);
    } while (h->result.used_bytes > aim && h->result.used_bytes < before);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static int number_block(struct tierce__hybrid *h, uint32_t member, uint64_t id, uint32_t *out)
{
    int rc = tierce__intern_one(h->intern, member, id, out);
    if (rc == 0)
        rc = TIERCE__GROW(h->blocks, h->block_room, *out + 1, 1024);
    if (rc == 0 && *out == h->block_count)
        h->blocks[h->block_count++] =
            (struct hybrid_block){.id = id, .member = member, .parent = NONE};
    TIERCE_ASSERT(rc < 0 || *out < h->block_count);
    return rc;
}

/* The instance that stored last replaces those of the same layers. All of them link their blocks,
 * so each can be the tree again. */
static void choose_tree(struct tierce__hybrid *h, uint32_t instance)
{
    const struct hybrid_member *member = &h->members[instance];
    struct hybrid_family *family = &h->families[member->family];
    TIERCE_DASSERT(family->tree != NONE && is_chain(member));
    const struct hybrid_member *tree = &h->members[family->tree];
    if (member->layers[0] != '\0' && member->group.kind == tree->group.kind &&
        strcmp(member->layers, tree->layers) == 0)
        family->tree = instance;
}

/* Links a block of full attention to the block before it. */
static void link_block(struct tierce__hybrid *h, uint32_t number, uint32_t before)
{
    struct hybrid_block *block = &h->blocks[number];
    if (block->depth == 0) {
        block->depth = before != NONE ? h->blocks[before].depth + 1 : 1;
        block->parent = before;
    }
    if (!block->is_held && block->parent != NONE)
        h->blocks[block->parent].children++;
}

static int store(struct tierce__hybrid *h, const struct tierce__trace_request *request)
{
    uint32_t count = request->count - request->unstored, before = NONE, number;
    struct hybrid_member *member = &h->members[request->instance];
    bool links = is_chain(member);
    int rc = 0;
    if (links && count > 0)
        choose_tree(h, request->instance);
    for (uint32_t i = 0; i < count; i++, before = number) {
        rc = number_block(h, request->instance, request->blocks[i], &number);
        if (rc < 0)
            return rc;
        if (links)
            link_block(h, number, before);
        struct hybrid_block *block = &h->blocks[number];
        if (block->is_held)
            continue;
        block->is_held = true;
        block->bytes = request->bytes != NULL ? request->bytes[i] : h->opts.block_bytes;
        block->stored_us = request->time_us;
        block->uses = 0;
        h->result.used_bytes += block->bytes;
        h->result.stored++;
        member->last_stored = ++h->clock;
    }
    /* The beginning of a prompt is newer than its end. */
    for (uint32_t i = count; i-- > 0;)
        h->blocks[tierce__intern_find(h->intern, request->instance, request->blocks[i])].used =
            ++h->clock;
    return evict(h);
}

static void use_block(struct tierce__hybrid *h, struct hybrid_block *block, uint32_t point)
{
    TIERCE_DASSERT(h->blocks[point].is_held);
    (void)point;
    block->used = ++h->clock;
    block->uses++;
}

/* A lookup found `found` of `asked` blocks of a tree, the last of them `last`. */
static void count_stop(struct tierce__hybrid *h, uint32_t last, uint32_t found, uint32_t asked)
{
    struct tierce__stops *stops = &h->families[h->members[h->blocks[last].member].family].stops;
    TIERCE_DASSERT(found <= asked);
    if (!tierce__stops_count(found, asked))
        return;
    stops->all++;
    stops->inside += h->blocks[last].children == 1;
    if (stops->all >= TIERCE__STOPS_MOST) {
        stops->all /= 2;
        stops->inside /= 2;
    }
}

static void look_up(struct tierce__hybrid *h, const struct tierce__trace_request *request)
{
    uint64_t tokens = h->members[request->instance].group.block_tokens;
    uint32_t hit = 0, held = 0, point = NONE, last = NONE, i = 0;
    for (; i < request->read_count; i++) {
        if (request->internal != NULL && request->internal[i] != 0 && held == i)
            held++;
        uint32_t at = find_held(h, request->instance, request->blocks[i]);
        if (at == NONE && held <= i)
            break;
        if (at == NONE)
            continue;
        last = at;
        if (!is_point(h, at))
            continue;
        hit = i + 1;
        point = at;
    }
    if (last != NONE)
        count_stop(h, last, i, request->read_count);
    h->result.lookups++;
    h->result.tokens += (request->read_count - held) * tokens;
    if (hit <= held)
        return;
    h->result.hit_tokens += (hit - held) * tokens;
    visit_pairs(h, point, use_block);
    for (uint32_t at = point; at != NONE; at = h->blocks[at].parent)
        h->blocks[at].used = ++h->clock;
}

int tierce__hybrid_add(struct tierce__hybrid *hybrid, const struct tierce__trace_request *request,
                       const struct tierce__trace_layers *layers)
{
    struct hybrid_member *member;
    int rc = find_member(hybrid, request->instance, layers, &member);
    if (rc < 0 || member == NULL || request->kind == TIERCE__TRACE_DROP)
        return rc;
    TIERCE_ASSERT(request->unstored <= request->count && request->read_count <= request->count);
    hybrid->now_us = request->time_us;
    if (request->kind != TIERCE__TRACE_WRITE && request->read_count > 0 &&
        hybrid->families[member->family].tree == request->instance)
        look_up(hybrid, request);
    return request->kind != TIERCE__TRACE_READ ? store(hybrid, request) : 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

int tierce__hybrid_create(struct tierce__hybrid **out, const struct tierce__hybrid_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    if (opts->capacity == 0 || opts->block_bytes == 0)
        return TIERCE_E_ARGUMENT;
    struct tierce__hybrid *hybrid = tierce__calloc(1, sizeof(*hybrid));
    int rc = hybrid != NULL ? tierce__intern_create(&hybrid->intern) : -ENOMEM;
    if (rc < 0) {
        tierce__free(hybrid);
        return rc;
    }
    hybrid->opts = *opts;
    *out = hybrid;
    return 0;
}

struct tierce__hybrid_result tierce__hybrid_result(const struct tierce__hybrid *hybrid)
{
    TIERCE_ASSERT(hybrid->result.hit_tokens <= hybrid->result.tokens);
    return hybrid->result;
}

void tierce__hybrid_destroy(struct tierce__hybrid *hybrid)
{
    if (hybrid == NULL)
        return;
    for (uint32_t i = 0; i < hybrid->member_count; i++)
        tierce__free(hybrid->members[i].layers);
    for (uint32_t i = 0; i < hybrid->family_count; i++) {
        tierce__free(hybrid->families[i].group);
        tierce__free(hybrid->families[i].name);
    }
    tierce__free(hybrid->members);
    tierce__free(hybrid->families);
    tierce__free(hybrid->blocks);
    tierce__free(hybrid->victims);
    tierce__intern_destroy(hybrid->intern);
    tierce__free(hybrid);
}
