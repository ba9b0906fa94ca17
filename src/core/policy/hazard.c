/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/hazard_cells.h"
#include "core/policy/policy_private.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/*
 * Evicts the leaf that is least worth keeping (hazard_index.h), as learned from the reuse of
 * entries of the same class and age. docs/inside/design/020-hazard.md explains the choices.
 *
 * Time is counted in uses. A tick is 1/TICKS of a capacity of uses, a span is SPAN ticks. Leaves
 * with the same class and tick are in one list, and lists of one age and class form a cell. An
 * entry stays in its list while it ages: the boundaries of the cells move over the lists, one step
 * per tick. After NEAR_SPANS spans the lists of a span become one; after FAR spans they join the
 * last list of their class.
 *
 * Entries younger than NEAR_SPANS are all counted. Older ones are counted if their key belongs to
 * the sample, one key in SAMPLE, and count SAMPLE times: ghosts of the sample stay SAMPLE times as
 * long as other ghosts, so reuse is still seen after 16 capacities with room for 4 of ghosts.
 *
 * Per use: O(1), plus a few steps for each tick. A victim is found in O(1): the first occupied cell
 * in the order of worths is a bit of a bitmap of CELLS bits, its oldest list a bit of another.
 */

#define HAZARD_MAGIC 0x48415a44u

#define HALF_LIFE_UNITS 8u     /* capacities after which a count weighs half, but at least */
#define HALF_LIFE_USES  64000u /* this many uses */
#define RISK_ERROR      1e-3   /* generously, of rounding */

static struct hazard *hazard_of(struct tierce__policy *policy)
{
    struct hazard *h = (struct hazard *)(void *)policy;
    TIERCE_CHECK_MAGIC(h, HAZARD_MAGIC);
    return h;
}

/* ---- time passes ----------------------------------------------------------------------------- */

/* The lists of class `c` in `row` have reached bucket `b`. */
static void cross(struct hazard *h, uint32_t row, uint32_t c, uint32_t b)
{
    if (h->lists[row * CLASSES + c] == TIERCE__NO_SLOT)
        return;
    drop_list(h, c * BUCKETS + b - 1);
    add_list(h, c * BUCKETS + b);
}

static void cross_near(struct hazard *h, uint32_t b)
{
    uint32_t row = (h->tick - starts[b]) % NEAR;
    for (uint64_t left = h->near_classes[row]; left != 0; left &= left - 1) {
        uint32_t c = (uint32_t)__builtin_ctzll(left);
        h->index.risks[c][b] += h->near_counts[row][c];
        cross(h, row, c, b);
    }
}

/* Before the span begins: the lists of the oldest near span become far lists, and make its rows
 * free. */
static void leave_near(struct hazard *h, uint32_t span)
{
    uint32_t far_row = NEAR + (span - NEAR_SPANS) % FAR, near_row = span % NEAR_SPANS * SPAN;
    for (uint32_t row = near_row; row < near_row + SPAN; row++) {
        uint32_t age = NEAR - (row - near_row); /* when the span begins */
        for (uint64_t left = h->near_classes[row]; left != 0; left &= left - 1) {
            uint32_t c = (uint32_t)__builtin_ctzll(left), list = row * CLASSES + c;
            if (h->lists[list] != TIERCE__NO_SLOT)
                append_list(h, list, far_row * CLASSES + c, c * BUCKETS + h->near_buckets[age - 1],
                            c * BUCKETS + NEAR_BUCKETS);
        }
        h->near_classes[row] = 0;
        memset(h->near_counts[row], 0, sizeof(h->near_counts[row]));
    }
}

/* Before the span begins: the same for the oldest far span. */
static void leave_far(struct hazard *h, uint32_t span)
{
    uint32_t row = span % FAR;
    for (uint64_t left = h->index.learned; left != 0; left &= left - 1) {
        uint32_t c = (uint32_t)__builtin_ctzll(left);
        uint32_t list = (NEAR + row) * CLASSES + c, last = c * BUCKETS + BUCKETS - 1;
        if (h->lists[list] != TIERCE__NO_SLOT)
            append_list(h, list, OLDEST + c, last, last);
    }
    memset(h->far_counts[row], 0, sizeof(h->far_counts[row]));
}

static void cross_far(struct hazard *h, uint32_t span, uint32_t b)
{
    uint32_t row = (span - starts[b]) % FAR;
    for (uint64_t left = h->index.learned; left != 0; left &= left - 1) {
        uint32_t c = (uint32_t)__builtin_ctzll(left);
        h->index.risks[c][b] += (double)SAMPLE * h->far_counts[row][c];
        if (b > NEAR_BUCKETS)
            cross(h, NEAR + row, c, b);
    }
}

static uint32_t entries_of(const struct hazard *h)
{
    return h->count > UNIT_MIN ? h->count : UNIT_MIN;
}

static void next_tick(struct hazard *h)
{
    uint32_t tick = h->tick + 1;
    if (tick % SPAN == 0) {
        leave_near(h, span_of(tick));
        leave_far(h, span_of(tick));
    }
    h->tick = tick;
    for (uint32_t b = 1; b < NEAR_BUCKETS; b++)
        cross_near(h, b);
    for (uint32_t b = NEAR_BUCKETS; tick % SPAN == 0 && b < BUCKETS; b++)
        cross_far(h, span_of(tick), b);
}

static void fade(struct hazard *h)
{
    double half_life = (double)(h->unit * HALF_LIFE_UNITS);
    half_life = half_life > HALF_LIFE_USES ? half_life : HALF_LIFE_USES;
    tierce__hazard_index_fade(&h->index, exp2(-(double)h->unfaded / half_life));
    h->unfaded = 0;
}

/* After the order of the cells has changed. */
static void note_ranks(struct hazard *h)
{
    memset(h->occupied, 0, sizeof(h->occupied));
    for (uint32_t rank = 0; rank < h->index.order_count; rank++) {
        if (h->cells[h->index.order[rank]] > 0)
            h->occupied[rank / 64] |= 1ULL << (rank % 64);
    }
}

/* Before the first use of a class. */
static void learn(struct hazard *h, uint32_t klass)
{
    if (tierce__hazard_index_has(&h->index, klass))
        return;
    tierce__hazard_index_learn(&h->index, klass);
    note_ranks(h);
}

static void refresh(struct hazard *h)
{
    tierce__hazard_index_refresh(&h->index);
    note_ranks(h);
}

/* Counts fade before the ticks: count_hit takes back risks that these ticks add. */
static void pass_time(struct hazard *h, uint64_t uses)
{
    h->phase += uses * TICKS;
    h->unfaded += uses;
    bool due = h->unfaded >= USES_PER_REFRESH && h->unfaded >= h->unit * TICKS_PER_REFRESH / TICKS;
    if (due)
        fade(h);
    while (h->phase >= h->unit) {
        h->phase -= h->unit;
        next_tick(h);
        if (h->adapts)
            h->unit = entries_of(h);
    }
    if (due)
        refresh(h);
}

/* ---- uses ------------------------------------------------------------------------------------ */

/* Takes a past out of the counts. */
static void forget(struct hazard *h, const struct hazard_past *past, bool sampled)
{
    uint32_t *near = &h->near_counts[past->tick % NEAR][past->klass];
    uint32_t *far = &h->far_counts[span_of(past->tick) % FAR][past->klass];
    if (is_near(h, past->tick) && *near > 0)
        --*near;
    if (sampled && span_age(h, past->tick) < FAR && *far > 0)
        --*far;
}

/* Adds `weight` to the risks of the buckets after `from` up to `to`. */
static void add_risks(struct hazard *h, uint32_t klass, bool sampled, uint32_t from, uint32_t to,
                      double weight)
{
    for (uint32_t b = from + 1; b <= to; b++) {
        if (b < NEAR_BUCKETS)
            h->index.risks[klass][b] += weight;
        else if (sampled)
            h->index.risks[klass][b] += weight * SAMPLE;
        TIERCE_DASSERT(h->index.risks[klass][b] >= -RISK_ERROR);
    }
}

/* The hint of a class, or NONE. */
static uint32_t hint_of(uint32_t klass)
{
    uint32_t part = klass % TIERCE__HAZARD_PARTS;
    return part < TIERCE__HAZARD_OUTPUTS ? TIERCE__HINT_NONE : part - TIERCE__HAZARD_OUTPUTS + 1;
}

/* Counts that an entry or ghost with this past is used again. Its age at the use ends where the
 * request began, so it did not reach the buckets that it has entered since then. */
static void count_hit(struct hazard *h, const struct hazard_past *past, bool sampled)
{
    uint32_t spans = spans_between(past->tick, h->use_tick);
    uint32_t bucket = bucket_at(h, h->use_tick, past->tick);
    if (spans < FAR)
        add_risks(h, past->klass, sampled, bucket, bucket_of(h, past->tick), -1);
    if (spans < NEAR_SPANS)
        h->index.hits[past->klass][bucket] += 1;
    else if (sampled && spans < FAR)
        h->index.hits[past->klass][bucket] += SAMPLE;
    forget(h, past, sampled);
    h->hints.returned[hint_of(past->klass)]++;
}

static struct hazard_use use_of(const struct tierce__policy_origin *origin)
{
    uint64_t tokens = origin->output_tokens;
    uint32_t part = tokens > 128 ? 2 : tokens == 0 || tokens > 16 ? 1 : 0;
    if (origin->hint != TIERCE__HINT_NONE)
        part = TIERCE__HAZARD_OUTPUTS - 1u + origin->hint;
    TIERCE_DASSERT(part < TIERCE__HAZARD_PARTS);
    return (struct hazard_use){.part = part, .ends = origin->ends, .is_new = origin->is_new};
}

/* A use of a key: of the present request, or else with this origin. */
static struct hazard_use next_use(const struct hazard *h, uint64_t key,
                                  const struct tierce__policy_origin *origin)
{
    struct hazard_use use = h->left > 0 ? h->use : use_of(origin);
    if (h->left > 0 && key != h->last_key)
        use.ends = false;
    return use;
}

/* The past after a use now. `before`: NULL for an unknown key. */
static struct hazard_past past_now(const struct hazard *h, const struct hazard_past *before,
                                   struct hazard_use use)
{
    static const uint8_t steps[FREQUENCY_MAX + 1] = {0, 0, 1, 1, 2};
    uint32_t place = 0, frequency = 0;
    if (before != NULL) {
        bool is_late = spans_between(before->tick, h->use_tick) > 2 * TICKS / SPAN;
        frequency = before->frequency < FREQUENCY_MAX ? before->frequency + 1u : FREQUENCY_MAX;
        place = 2u + 2u * steps[frequency] + is_late;
    }
    if (use.ends)
        place = 1;
    return (struct hazard_past){.tick = h->use_tick,
                                .klass = (uint8_t)(place * TIERCE__HAZARD_PARTS + use.part),
                                .frequency = (uint8_t)frequency};
}

/* Counts a use with this past. Time has passed since the request began, so its entries have some
 * age already. */
static void count_use(struct hazard *h, const struct hazard_past *past, bool sampled)
{
    uint32_t row = past->tick % NEAR;
    if (is_near(h, past->tick)) {
        h->near_counts[row][past->klass]++;
        h->near_classes[row] |= UINT64_C(1) << past->klass;
    }
    if (sampled && span_age(h, past->tick) < FAR)
        h->far_counts[span_of(past->tick) % FAR][past->klass]++;
    h->index.risks[past->klass][0] += 1;
    h->hints.used[hint_of(past->klass)]++;
    add_risks(h, past->klass, sampled, 0, bucket_of(h, past->tick), 1);
}

static void end_request(struct hazard *h)
{
    h->left = 0;
    h->use_tick = h->tick;
}

static void end_use(struct hazard *h)
{
    if (h->left > 1) {
        h->left--;
        return;
    }
    if (h->left == 0)
        pass_time(h, 1);
    end_request(h);
}

/* The ghosts in a ring, of a cache with this many entries. */
static uint32_t ghosts_of(uint32_t entries)
{
    uint64_t ghosts = (uint64_t)entries * GHOSTS_PER_ENTRY / TIERCE__HAZARD_RINGS;
    return ghosts < GHOSTS_MAX ? (uint32_t)ghosts : GHOSTS_MAX;
}

/* Slots may be many times the entries: then ghosts are limited by the entries, so that their ticks
 * do not wrap around. */
static void push_ghost(struct hazard *h, uint64_t key, uint32_t hash,
                       const struct hazard_past *past)
{
    uint32_t entries = h->adapts ? entries_of(h) : h->slot_count;
    uint32_t data = GHOST_IS | (uint32_t)past->frequency << GHOST_FREQUENCY |
                    (uint32_t)past->klass << GHOST_CLASS | past->tick << GHOST_TICK;
    tierce__hazard_ghosts_push(&h->ghosts, hash % SAMPLE == 0, key, hash, data, ghosts_of(entries));
}

static struct hazard_past ghost_past(const struct hazard *h, uint32_t data)
{
    uint32_t age = (h->tick - (data >> GHOST_TICK)) % GHOST_TICKS;
    return (struct hazard_past){.tick = h->tick - age,
                                .klass = (uint8_t)(data >> GHOST_CLASS & (CLASSES - 1)),
                                .frequency = (uint8_t)(data >> GHOST_FREQUENCY & 7)};
}

/* ---- operations ------------------------------------------------------------------------------ */

static void hazard_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct hazard *h = hazard_of(policy);
    h->magic = 0;
    tierce__hazard_ghosts_fini(&h->ghosts);
    tierce__free(h->entries);
    tierce__free(h->nodes);
    tierce__free(h);
}

static void init_index(struct hazard *h)
{
    uint32_t ticks[BUCKETS];
    for (uint32_t b = 0; b < BUCKETS; b++)
        ticks[b] = starts[b] * (b < NEAR_BUCKETS ? 1 : SPAN);
    fill_buckets(h);
    tierce__hazard_index_init(&h->index, ticks);
}

static int hazard_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    if (!tierce__policy_opts_good(opts))
        return TIERCE_E_ARGUMENT;
    struct hazard *h = tierce__calloc(1, sizeof(*h));
    if (h == NULL)
        return -ENOMEM;
    bool adapts = opts->capacity > opts->slot_count;
    uint64_t unit = adapts ? 0 : opts->capacity > 0 ? opts->capacity : opts->slot_count;
    h->base.ops = &tierce__policy_hazard_ops;
    h->magic = HAZARD_MAGIC;
    h->slot_count = opts->slot_count;
    h->adapts = adapts;
    h->unit = unit > UNIT_MIN ? unit : UNIT_MIN;
    h->tick = h->use_tick = NEAR + FAR * SPAN;
    memset(h->lists, 0xff, sizeof(h->lists));
    init_index(h);
    h->nodes = tierce__calloc(opts->slot_count, sizeof(*h->nodes));
    h->entries = tierce__calloc(opts->slot_count, sizeof(*h->entries));
    if (h->nodes == NULL || h->entries == NULL ||
        tierce__hazard_ghosts_init(&h->ghosts, ghosts_of(opts->slot_count)) < 0) {
        hazard_destroy(&h->base);
        return -ENOMEM;
    }
    tierce__advise_huge(h->nodes, opts->slot_count * sizeof(*h->nodes));
    tierce__advise_huge(h->entries, opts->slot_count * sizeof(*h->entries));
    *out = &h->base;
    return 0;
}

static void hazard_request(struct tierce__policy *policy,
                           const struct tierce__policy_request *request)
{
    struct hazard *h = hazard_of(policy);
    end_request(h);
    pass_time(h, request->count);
    h->left = request->count;
    h->last_key = request->last_key;
    h->use = use_of(&request->origin);
}

/* Counts a use of a key that has no slot, and returns its past. */
static struct hazard_past use_key(struct hazard *h, const struct tierce__policy_entry *entry,
                                  uint32_t hash)
{
    bool sampled = hash % SAMPLE == 0;
    uint32_t ghost = tierce__hazard_ghosts_take(&h->ghosts, entry->key, hash);
    struct hazard_use use = next_use(h, entry->key, &entry->origin);
    struct hazard_past before = ghost_past(h, ghost);
    if (ghost != 0)
        count_hit(h, &before, sampled);
    struct hazard_past past = past_now(h, ghost != 0 ? &before : NULL, use);
    learn(h, past.klass);
    count_use(h, &past, sampled);
    return past;
}

static void join_parent(struct hazard *h, uint32_t slot, uint32_t parent)
{
    struct hazard_entry *e = &h->entries[slot];
    e->parent = TIERCE__NO_SLOT;
    if (parent >= h->slot_count || (h->nodes[parent].past.flags & IS_IN) == 0)
        return;
    e->parent = parent;
    e->parent_life = h->entries[parent].life;
    if (h->entries[parent].children++ == 0)
        update_listed(h, parent, false);
}

static void hazard_insert(struct tierce__policy *policy, uint32_t slot,
                          const struct tierce__policy_entry *entry)
{
    struct hazard *h = hazard_of(policy);
    TIERCE_ASSERT(slot < h->slot_count && h->nodes[slot].past.flags == 0);
    struct hazard_node *node = &h->nodes[slot];
    uint32_t hash = tierce__hazard_hash(entry->key);
    join_parent(h, slot, entry->parent); /* before `slot` is in: a stale parent may be the same */
    TIERCE_DASSERT(h->entries[slot].children == 0);
    h->entries[slot].key = entry->key;
    node->past = use_key(h, entry, hash);
    node->past.flags = (uint8_t)(IS_IN | (hash % SAMPLE == 0 ? IS_SAMPLED : 0));
    h->count++;
    link_slot(h, slot, false);
    end_use(h);
}

static void hazard_skip(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    struct hazard *h = hazard_of(policy);
    uint32_t hash = tierce__hazard_hash(entry->key);
    struct hazard_past past = use_key(h, entry, hash);
    push_ghost(h, entry->key, hash, &past);
    end_use(h);
}

static void hazard_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct hazard *h = hazard_of(policy);
    (void)now;
    TIERCE_ASSERT(slot < h->slot_count && (h->nodes[slot].past.flags & IS_IN) != 0);
    struct hazard_node *node = &h->nodes[slot];
    bool sampled = (node->past.flags & IS_SAMPLED) != 0,
         listed = (node->past.flags & IS_LISTED) != 0;
    const struct tierce__policy_origin unknown = {0};
    uint64_t key = h->left > 0 ? h->entries[slot].key : 0;
    struct hazard_use use = next_use(h, key, &unknown);
    struct hazard_past past = past_now(h, use.is_new ? NULL : &node->past, use);
    learn(h, past.klass);
    bool moves = listed && (past.tick != node->past.tick || past.klass != node->past.klass);
    if (use.is_new)
        forget(h, &node->past, sampled);
    else
        count_hit(h, &node->past, sampled);
    if (moves)
        unlink_slot(h, slot);
    past.flags = node->past.flags;
    node->past = past;
    if (moves)
        link_slot(h, slot, false);
    count_use(h, &past, sampled);
    end_use(h);
}

static void hazard_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct hazard *h = hazard_of(policy);
    TIERCE_ASSERT(slot < h->slot_count && (h->nodes[slot].past.flags & IS_IN) != 0);
    struct hazard_node *node = &h->nodes[slot];
    node->past.flags =
        (uint8_t)(evictable ? node->past.flags & ~IS_PINNED : node->past.flags | IS_PINNED);
    update_listed(h, slot, true);
}

static void hazard_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct hazard *h = hazard_of(policy);
    TIERCE_ASSERT(slot < h->slot_count && (h->nodes[slot].past.flags & IS_IN) != 0);
    struct hazard_node *node = &h->nodes[slot];
    struct hazard_entry *e = &h->entries[slot];
    bool sampled = (node->past.flags & IS_SAMPLED) != 0;
    unlist(h, slot);
    if (evicted)
        push_ghost(h, e->key, tierce__hazard_hash(e->key), &node->past);
    else
        forget(h, &node->past, sampled);
    node->past.flags = 0;
    e->children = 0;
    e->life++;
    h->count--;
    uint32_t parent = e->parent;
    if (parent == TIERCE__NO_SLOT || h->entries[parent].life != e->parent_life)
        return;
    TIERCE_DASSERT(h->entries[parent].children > 0);
    if (--h->entries[parent].children == 0)
        update_listed(h, parent, true);
}

/* The place in a ring of 64 * words bits of the first bit at or after `from`; there is one. */
static uint32_t find_bit(const uint64_t *bits, uint32_t words, uint32_t from)
{
    uint32_t at = from % (64 * words);
    for (uint32_t i = 0; i <= words; i++) {
        uint64_t word = bits[at / 64] >> (at % 64);
        if (word != 0)
            return at + (uint32_t)__builtin_ctzll(word);
        at = (at / 64 + 1) % words * 64;
    }
    TIERCE_ASSERT(false);
    return 0;
}

/* The oldest list of a cell that has one. */
static uint32_t oldest_list(const struct hazard *h, uint32_t c, uint32_t b)
{
    const uint64_t *bits = h->list_bits[c];
    if (b < NEAR_BUCKETS) {
        uint32_t first = (span_of(h->tick) - (NEAR_SPANS - 1)) * SPAN;
        if (b + 1 < NEAR_BUCKETS)
            first = h->tick - (starts[b + 1] - 1);
        return find_bit(bits, NEAR / 64, first) * CLASSES + c;
    }
    if (b + 1 == BUCKETS && h->lists[OLDEST + c] != TIERCE__NO_SLOT)
        return OLDEST + c;
    uint32_t end = b + 1 < BUCKETS ? starts[b + 1] : FAR;
    return (NEAR + find_bit(bits + NEAR / 64, FAR / 64, span_of(h->tick) - (end - 1))) * CLASSES +
           c;
}

/* The occupied cell with the least worth; false if there is none. */
static bool find_cell(const struct hazard *h, uint32_t *cell)
{
    for (uint32_t i = 0; i < CELL_WORDS; i++) {
        if (h->occupied[i] != 0) {
            *cell = h->index.order[64 * i + (uint32_t)__builtin_ctzll(h->occupied[i])];
            return true;
        }
    }
    return false;
}

static bool hazard_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct hazard *h = hazard_of(policy);
    uint32_t cell;
    (void)now;
    if (!find_cell(h, &cell))
        return false;
    uint32_t list = oldest_list(h, cell / BUCKETS, cell % BUCKETS);
    TIERCE_DASSERT(h->lists[list] != TIERCE__NO_SLOT);
    *slot = h->lists[list];
    uint32_t next = h->nodes[*slot].link.newer; /* the next victim, probably */
    __builtin_prefetch(&h->nodes[h->nodes[next].link.newer], 1);
    __builtin_prefetch(&h->entries[next], 1);
    return true;
}

static bool hazard_inner(struct tierce__policy *policy, uint32_t *slot)
{
    const struct hazard *h = hazard_of(policy);
    return tierce__ring_newest(links_of(h), h->lists[INNER], slot);
}

static bool hazard_admits(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    struct hazard *h = hazard_of(policy);
    uint32_t cell, hash = tierce__hazard_hash(entry->key);
    if (!find_cell(h, &cell))
        return true;
    uint32_t ghost = tierce__hazard_ghosts_find(&h->ghosts, entry->key, hash);
    struct hazard_past before = ghost_past(h, ghost);
    struct hazard_use use = next_use(h, entry->key, &entry->origin);
    struct hazard_past past = past_now(h, ghost != 0 ? &before : NULL, use);
    use.ends = true;
    struct hazard_past last = past_now(h, NULL, use);
    uint32_t bucket = bucket_of(h, past.tick);
    double worth = h->index.worths[past.klass * BUCKETS + bucket];
    double last_worth = h->index.worths[last.klass * BUCKETS + bucket];
    return (last_worth > worth ? last_worth : worth) >= h->index.worths[cell];
}

static void hazard_hints(const struct tierce__policy *policy, struct tierce__policy_hints *out)
{
    const struct hazard *h = (const struct hazard *)(const void *)policy;
    TIERCE_CHECK_MAGIC(h, HAZARD_MAGIC);
    *out = h->hints;
    out->used[TIERCE__HINT_NONE] = out->returned[TIERCE__HINT_NONE] = 0;
}

static void hazard_prefetch(const struct tierce__policy *policy, uint64_t key, uint32_t slot,
                            bool near)
{
    const struct hazard *h = (const struct hazard *)(const void *)policy;
    if (slot == TIERCE__NO_SLOT) {
        tierce__hazard_ghosts_prefetch(&h->ghosts, tierce__hazard_hash(key), near);
    } else if (!near) {
        __builtin_prefetch(&h->nodes[slot], 1);
    } else if ((h->nodes[slot].past.flags & IS_LISTED) != 0) {
        __builtin_prefetch(&h->nodes[h->nodes[slot].link.newer], 1);
        __builtin_prefetch(&h->nodes[h->nodes[slot].link.older], 1);
    }
}

const struct tierce__policy_ops tierce__policy_hazard_ops = {
    .name = "hazard",
    .summary = "least expected hits per time in the cache, learned; a suffix before its prefix",
    .by_parent = true,
    .counts_uses = true,
    .create = hazard_create,
    .destroy = hazard_destroy,
    .request = hazard_request,
    .admits = hazard_admits,
    .skip = hazard_skip,
    .insert = hazard_insert,
    .touch = hazard_touch,
    .set_evictable = hazard_set_evictable,
    .remove = hazard_remove,
    .victim = hazard_victim,
    .inner = hazard_inner,
    .hints = hazard_hints,
    .prefetch = hazard_prefetch,
};
