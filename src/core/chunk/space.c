/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/space.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/mix.h"

#include <errno.h>
#include <stdbool.h>

/*
 * Each free extent is a node of two treaps over one array: by address, for its neighbours, and by
 * (length, address), for best fit. A treap needs no rotation cases: split and merge are all, and
 * its depth stays near 2 log2(n) because priorities are drawn, from a fixed seed so that equal
 * histories give equal offsets. Nodes are reserved when an object is taken (there can be at most
 * one extent more than live objects), so that a release never allocates.
 */

#define SPACE_MAGIC 0x53504331u
#define PAGE        4096u
#define NIL         0u /* node 0 is never used */

enum tree { BY_ADDRESS, BY_LENGTH, TREE_COUNT };

struct extent {
    uint64_t start;
    uint64_t bytes;
    uint32_t child[TREE_COUNT][2]; /* [0] before, [1] after; child[0][0] chains unused nodes */
    uint32_t priority;
    uint32_t unused;
};

struct tierce__space {
    uint32_t magic;
    uint32_t root[TREE_COUNT];
    uint32_t node_count; /* nodes allocated, node 0 included */
    uint32_t node_fresh; /* nodes from here on were never used */
    uint32_t node_free;  /* chain of used and freed nodes */
    struct extent *nodes;
    uint64_t bytes;
    uint64_t used;
    uint64_t asked;
    uint64_t live; /* objects */
    uint64_t random;
};

/* ---- nodes ----------------------------------------------------------------------------------- */

static int reserve_nodes(struct tierce__space *space, uint64_t count)
{
    TIERCE_DASSERT(space->node_count == 0 || space->node_fresh <= space->node_count);
    if (count <= space->node_count)
        return 0;
    if (count > UINT32_MAX / 2)
        return -ENOMEM;
    uint64_t grown = (uint64_t)space->node_count + space->node_count / 2;
    uint64_t want = count > grown ? count : grown;
    struct extent *nodes = tierce__realloc(space->nodes, (size_t)want * sizeof(*nodes));
    if (nodes == NULL)
        return -ENOMEM;
    space->nodes = nodes;
    space->node_count = (uint32_t)want;
    TIERCE_DASSERT(space->node_count >= count);
    return 0;
}

/* Node 0, one more extent than live objects, and one that exists while two extents are merged. */
static int reserve_for(struct tierce__space *space, uint64_t live)
{
    TIERCE_DASSERT(live <= UINT32_MAX);
    return reserve_nodes(space, live + 3);
}

static uint32_t next_priority(struct tierce__space *space)
{
    return (uint32_t)(tierce__random_next(&space->random) >> 32);
}

static uint32_t new_node(struct tierce__space *space, uint64_t start, uint64_t bytes)
{
    TIERCE_DASSERT(bytes > 0 && start + bytes <= space->bytes);
    uint32_t node = space->node_free;
    if (node != NIL) {
        TIERCE_DASSERT(node < space->node_fresh);
        space->node_free = space->nodes[node].child[0][0];
    } else {
        TIERCE_ASSERT(space->node_fresh < space->node_count);
        node = space->node_fresh++;
    }
    space->nodes[node] =
        (struct extent){.start = start, .bytes = bytes, .priority = next_priority(space)};
    return node;
}

static void free_node(struct tierce__space *space, uint32_t node)
{
    TIERCE_DASSERT(node != NIL && node < space->node_fresh);
    TIERCE_DASSERT(space->root[BY_ADDRESS] != node && space->root[BY_LENGTH] != node);
    space->nodes[node].child[0][0] = space->node_free;
    space->node_free = node;
}

/* ---- treaps ---------------------------------------------------------------------------------- */

/* Whether the extent of `node` comes before (start, bytes) in the order of the tree. */
static bool comes_before(const struct extent *node, enum tree tree, uint64_t start, uint64_t bytes)
{
    if (tree == BY_LENGTH && node->bytes != bytes)
        return node->bytes < bytes;
    return node->start < start;
}

/* Splits `root` into the extents before (start, bytes) and the rest. */
static void split_tree(struct tierce__space *space, enum tree tree, uint32_t root, uint64_t start,
                       uint64_t bytes, uint32_t *before, uint32_t *rest)
{
    while (root != NIL) {
        struct extent *node = &space->nodes[root];
        TIERCE_DASSERT(root < space->node_fresh);
        if (comes_before(node, tree, start, bytes)) {
            *before = root;
            before = &node->child[tree][1];
            root = node->child[tree][1];
        } else {
            *rest = root;
            rest = &node->child[tree][0];
            root = node->child[tree][0];
        }
    }
    *before = NIL;
    *rest = NIL;
}

/* Joins two trees; all nodes of `a` are before all nodes of `b`. *link = the result. */
static void merge_trees(struct tierce__space *space, enum tree tree, uint32_t a, uint32_t b,
                        uint32_t *link)
{
    TIERCE_DASSERT(
        a == NIL || b == NIL ||
        comes_before(&space->nodes[a], tree, space->nodes[b].start, space->nodes[b].bytes));
    while (a != NIL && b != NIL) {
        if (space->nodes[a].priority >= space->nodes[b].priority) {
            *link = a;
            link = &space->nodes[a].child[tree][1];
            a = *link;
        } else {
            *link = b;
            link = &space->nodes[b].child[tree][0];
            b = *link;
        }
    }
    *link = a != NIL ? a : b;
}

static void tree_insert(struct tierce__space *space, enum tree tree, uint32_t node)
{
    TIERCE_DASSERT(node != NIL && node < space->node_fresh);
    struct extent *extent = &space->nodes[node];
    uint32_t *link = &space->root[tree];
    while (*link != NIL && space->nodes[*link].priority >= extent->priority) {
        bool before = comes_before(&space->nodes[*link], tree, extent->start, extent->bytes);
        link = &space->nodes[*link].child[tree][before];
    }
    uint32_t root = *link;
    *link = node;
    split_tree(space, tree, root, extent->start, extent->bytes, &extent->child[tree][0],
               &extent->child[tree][1]);
}

static void tree_remove(struct tierce__space *space, enum tree tree, uint32_t node)
{
    TIERCE_DASSERT(node != NIL && node < space->node_fresh);
    const struct extent *extent = &space->nodes[node];
    uint32_t *link = &space->root[tree];
    while (*link != node) {
        TIERCE_ASSERT(*link != NIL);
        bool before = comes_before(&space->nodes[*link], tree, extent->start, extent->bytes);
        link = &space->nodes[*link].child[tree][before];
    }
    merge_trees(space, tree, extent->child[tree][0], extent->child[tree][1], link);
}

/* The first extent that does not come before (start, bytes), or NIL. */
static uint32_t tree_first_from(const struct tierce__space *space, enum tree tree, uint64_t start,
                                uint64_t bytes)
{
    uint32_t found = NIL;
    for (uint32_t node = space->root[tree]; node != NIL;) {
        bool before = comes_before(&space->nodes[node], tree, start, bytes);
        if (!before)
            found = node;
        node = space->nodes[node].child[tree][before];
    }
    return found;
}

/* The extent with the highest address that starts at or before `offset`, or NIL. */
static uint32_t extent_at_or_before(const struct tierce__space *space, uint64_t offset)
{
    TIERCE_DASSERT(offset <= space->bytes);
    uint32_t found = NIL;
    for (uint32_t node = space->root[BY_ADDRESS]; node != NIL;) {
        bool here = space->nodes[node].start <= offset;
        if (here)
            found = node;
        node = space->nodes[node].child[BY_ADDRESS][here];
    }
    return found;
}

static uint32_t tree_last(const struct tierce__space *space, enum tree tree)
{
    uint32_t node = space->root[tree];
    TIERCE_DASSERT(node < space->node_fresh);
    while (node != NIL && space->nodes[node].child[tree][1] != NIL)
        node = space->nodes[node].child[tree][1];
    return node;
}

static void add_extent(struct tierce__space *space, uint64_t start, uint64_t bytes)
{
    TIERCE_DASSERT(bytes > 0 && start % PAGE == 0 && start <= space->bytes - bytes);
    /* No free extent begins inside it or directly after it. */
    TIERCE_DASSERT(extent_at_or_before(space, start) == extent_at_or_before(space, start + bytes));
    uint32_t node = new_node(space, start, bytes);
    tree_insert(space, BY_ADDRESS, node);
    tree_insert(space, BY_LENGTH, node);
}

/* An extent that changes within the gap between its neighbours keeps its position in the order by
 * address. */
static void change_extent(struct tierce__space *space, uint32_t node, uint64_t start,
                          uint64_t bytes)
{
    TIERCE_DASSERT(node != NIL && bytes > 0 && start <= space->bytes - bytes);
    tree_remove(space, BY_LENGTH, node);
    space->nodes[node].start = start;
    space->nodes[node].bytes = bytes;
    tree_insert(space, BY_LENGTH, node);
    TIERCE_DASSERT(extent_at_or_before(space, start + bytes) == node);
}

static void drop_extent(struct tierce__space *space, uint32_t node)
{
    TIERCE_DASSERT(node != NIL);
    tree_remove(space, BY_ADDRESS, node);
    tree_remove(space, BY_LENGTH, node);
    free_node(space, node);
}

/* ---- the interface --------------------------------------------------------------------------- */

int tierce__space_create(struct tierce__space **out, uint64_t bytes)
{
    bytes &= ~(uint64_t)(PAGE - 1);
    if (bytes == 0)
        return TIERCE_E_ARGUMENT;
    struct tierce__space *space = tierce__calloc(1, sizeof(*space));
    if (space == NULL)
        return -ENOMEM;
    *space = (struct tierce__space){.magic = SPACE_MAGIC, .node_fresh = 1, .bytes = bytes};
    int rc = reserve_for(space, 13);
    if (rc < 0) {
        tierce__space_destroy(space);
        return rc;
    }
    add_extent(space, 0, bytes);
    *out = space;
    return 0;
}

void tierce__space_destroy(struct tierce__space *space)
{
    if (space == NULL)
        return;
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    TIERCE_DASSERT((space->live == 0) == (space->used == 0));
    space->magic = 0;
    tierce__free(space->nodes);
    tierce__free(space);
}

int tierce__space_reserve(struct tierce__space *space, uint32_t objects)
{
    TIERCE_DASSERT(space->live <= UINT32_MAX);
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    return reserve_for(space, objects);
}

/* Takes [start, start + rounded) out of the free extent `node`, which holds it. */
static void carve(struct tierce__space *space, uint32_t node, uint64_t start, uint64_t rounded)
{
    struct extent free = space->nodes[node];
    TIERCE_DASSERT(start % PAGE == 0 && rounded % PAGE == 0 && rounded > 0);
    uint64_t before = start - free.start;
    TIERCE_ASSERT(start >= free.start && before + rounded <= free.bytes);
    uint64_t after = free.bytes - before - rounded;
    if (before > 0)
        change_extent(space, node, free.start, before);
    else if (after > 0)
        change_extent(space, node, start + rounded, after);
    else
        drop_extent(space, node);
    if (before > 0 && after > 0)
        add_extent(space, start + rounded, after);
}

static void count_taken(struct tierce__space *space, uint64_t bytes, uint64_t rounded)
{
    TIERCE_DASSERT(bytes <= rounded && rounded - bytes < PAGE);
    space->live++;
    space->asked += bytes;
    space->used += rounded;
    TIERCE_ASSERT(space->used <= space->bytes);
    TIERCE_DASSERT(space->asked <= space->used);
}

int tierce__space_take(struct tierce__space *space, uint64_t *offset, uint64_t bytes)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    TIERCE_ASSERT(bytes > 0);
    if (bytes > space->bytes)
        return TIERCE_E_LIMIT;
    uint64_t rounded = tierce__round_up(bytes, PAGE);
    uint32_t node = tree_first_from(space, BY_LENGTH, 0, rounded);
    if (node == NIL)
        return TIERCE_E_FULL;
    int rc = reserve_for(space, space->live + 1);
    if (rc < 0)
        return rc;
    *offset = space->nodes[node].start;
    carve(space, node, *offset, rounded);
    count_taken(space, bytes, rounded);
    TIERCE_DASSERT(*offset % PAGE == 0 && *offset + rounded <= space->bytes);
    return 0;
}

void tierce__space_give(struct tierce__space *space, uint64_t offset, uint64_t bytes)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    TIERCE_ASSERT(bytes > 0 && bytes <= space->bytes && offset % PAGE == 0);
    uint64_t rounded = tierce__round_up(bytes, PAGE);
    TIERCE_ASSERT(offset <= space->bytes - rounded);
    TIERCE_ASSERT(space->live > 0 && space->used >= rounded && space->asked >= bytes);
    uint32_t before = extent_at_or_before(space, offset);
    uint32_t after = tree_first_from(space, BY_ADDRESS, offset, 0);
    const struct extent *b = &space->nodes[before], *a = &space->nodes[after];
    TIERCE_ASSERT(before == NIL || b->start + b->bytes <= offset);
    TIERCE_ASSERT(after == NIL || offset + rounded <= a->start);

    bool join_before = before != NIL && b->start + b->bytes == offset;
    bool join_after = after != NIL && offset + rounded == a->start;
    uint64_t tail = join_after ? a->bytes : 0;
    if (join_before) {
        uint64_t start = b->start, joined = b->bytes + rounded + tail;
        if (join_after)
            drop_extent(space, after);
        change_extent(space, before, start, joined);
    } else if (join_after) {
        change_extent(space, after, offset, rounded + tail);
    } else {
        add_extent(space, offset, rounded);
    }
    space->live--;
    space->asked -= bytes;
    space->used -= rounded;
    TIERCE_DASSERT(space->asked <= space->used);
    TIERCE_DASSERT((space->live == 0) == (space->used == 0));
}

int tierce__space_claim(struct tierce__space *space, uint64_t offset, uint64_t bytes)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    if (bytes == 0 || bytes > space->bytes || offset % PAGE != 0)
        return TIERCE_E_FORMAT;
    uint64_t rounded = tierce__round_up(bytes, PAGE);
    if (offset > space->bytes - rounded)
        return TIERCE_E_FORMAT;
    uint32_t node = extent_at_or_before(space, offset);
    if (node == NIL)
        return TIERCE_E_FORMAT;
    uint64_t end = space->nodes[node].start + space->nodes[node].bytes;
    if (offset + rounded > end)
        return TIERCE_E_FORMAT;
    int rc = reserve_for(space, space->live + 1);
    if (rc < 0)
        return rc;
    carve(space, node, offset, rounded);
    count_taken(space, bytes, rounded);
    return 0;
}

uint64_t tierce__space_used(const struct tierce__space *space)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    TIERCE_DASSERT(space->used <= space->bytes);
    return space->used;
}

uint64_t tierce__space_asked(const struct tierce__space *space)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    TIERCE_DASSERT(space->asked <= space->used);
    return space->asked;
}

uint64_t tierce__space_high(const struct tierce__space *space)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    uint32_t last = tree_last(space, BY_ADDRESS);
    const struct extent *extent = &space->nodes[last];
    bool reaches_end = last != NIL && extent->start + extent->bytes == space->bytes;
    TIERCE_DASSERT(!reaches_end || extent->start >= space->used);
    return reaches_end ? extent->start : space->bytes;
}

uint64_t tierce__space_longest(const struct tierce__space *space)
{
    TIERCE_CHECK_MAGIC(space, SPACE_MAGIC);
    uint32_t last = tree_last(space, BY_LENGTH);
    TIERCE_DASSERT(last == NIL || space->nodes[last].bytes <= space->bytes - space->used);
    return last != NIL ? space->nodes[last].bytes : 0;
}
