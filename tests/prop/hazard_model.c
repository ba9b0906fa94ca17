/* SPDX-License-Identifier: Apache-2.0 */
#include "hazard_model.h"

#include "core/policy/hazard_ghosts.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS TIERCE__HAZARD_BUCKETS
#define CLASSES TIERCE__HAZARD_CLASSES

/* In ticks, 128 of which are a capacity. From NEAR on, ages are counted in spans of 32 ticks. */
static const uint32_t starts[BUCKETS] = {
    0,       3,       4,       5,       7,        10,       14,       20,       29,
    41,      58,      82,      116,     164,      8 * 32,   11 * 32,  16 * 32,  23 * 32,
    32 * 32, 45 * 32, 64 * 32, 91 * 32, 128 * 32, 181 * 32, 256 * 32, 362 * 32, 480 * 32};

enum { NEAR_BUCKETS = 14, END_SPANS = 512, FIRST_TICK = 256 + 512 * 32 };

/* ---- ages ------------------------------------------------------------------------------------ */

static uint32_t spans_between(uint32_t from, uint32_t to)
{
    return to / 32 - from / 32;
}

static uint32_t bucket_at(uint32_t tick, uint32_t at)
{
    uint32_t spans = spans_between(tick, at), b = 0;
    uint32_t age = spans < 8 ? at - tick : spans * 32;
    while (b + 1 < BUCKETS && age >= starts[b + 1])
        b++;
    return b;
}

static uint32_t level_at(uint32_t tick, uint32_t at)
{
    uint32_t spans = spans_between(tick, at);
    return spans < 8 ? 0 : spans < END_SPANS ? 1 : 2;
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void next_tick(struct hazard_model *h)
{
    uint32_t tick = ++h->tick;
    ck_assert_uint_lt(tick, HAZARD_TICKS_MAX);
    for (uint32_t c = 0; c < CLASSES; c++) {
        for (uint32_t b = 1; b < NEAR_BUCKETS; b++)
            h->index.risks[c][b] += h->tick_counts[tick - starts[b]][c];
        for (uint32_t b = NEAR_BUCKETS; tick % 32 == 0 && b < BUCKETS; b++)
            h->index.risks[c][b] += 8.0 * h->span_counts[(tick - starts[b]) / 32][c];
    }
}

static uint32_t entries_of(const struct hazard_model *h)
{
    return h->count > 16 ? h->count : 16;
}

static void pass_time(struct hazard_model *h, uint64_t uses)
{
    h->phase += uses * 128;
    h->unfaded += uses;
    bool due = h->unfaded >= 512 && h->unfaded >= h->unit * 2 / 128;
    if (due) {
        double half_life = 8.0 * (double)h->unit;
        half_life = half_life > 64000 ? half_life : 64000;
        tierce__hazard_index_fade(&h->index, exp2(-(double)h->unfaded / half_life));
        h->unfaded = 0;
    }
    while (h->phase >= h->unit) {
        h->phase -= h->unit;
        next_tick(h);
        if (h->adapts)
            h->unit = entries_of(h);
    }
    if (due)
        tierce__hazard_index_refresh(&h->index);
}

static void add_risks(struct hazard_model *h, const struct hazard_record *r, uint32_t from,
                      double weight)
{
    for (uint32_t b = from + 1; b <= bucket_at(r->tick, h->tick); b++) {
        if (b < NEAR_BUCKETS || r->sampled)
            h->index.risks[r->klass][b] += b < NEAR_BUCKETS ? weight : 8 * weight;
        ck_assert(h->index.risks[r->klass][b] >= -1e-6);
    }
}

/* Keys that became too old are no longer counted. */
static void count_record(struct hazard_model *h, const struct hazard_record *r, bool used)
{
    uint32_t level = level_at(r->tick, h->tick), step = used ? 1 : UINT32_MAX;
    if (level == 0)
        h->tick_counts[r->tick][r->klass] += step;
    if (level < 2 && r->sampled)
        h->span_counts[r->tick / 32][r->klass] += step;
}

static struct hazard_record record_now(const struct hazard_model *h,
                                       const struct hazard_record *before, uint64_t key,
                                       struct tierce__policy_origin of)
{
    struct hazard_record r = {.tick = h->use_tick, .sampled = tierce__hazard_hash(key) % 8 == 0};
    uint64_t tokens = of.output_tokens;
    uint32_t place = 0;
    if (before != NULL) {
        r.frequency = before->frequency < 4 ? before->frequency + 1 : 4;
        place = r.frequency == 1 ? 2 : r.frequency <= 3 ? 4 : 6;
        place += spans_between(before->tick, h->use_tick) > 8;
    }
    if (of.ends)
        place = 1;
    if (of.hint != 0) {
        r.klass = place * 8 + 2 + of.hint;
        return r;
    }
    r.klass = place * 8 + (tokens == 0 || (tokens > 16 && tokens <= 128) ? 1
                           : tokens > 128                                ? 2
                                                                         : 0);
    return r;
}

/* Counts a use, after a use `before` or NULL. */
static struct hazard_record use(struct hazard_model *h, const struct hazard_record *before,
                                uint64_t key, struct tierce__policy_origin of)
{
    struct hazard_record r = record_now(h, before, key, of);
    if (!tierce__hazard_index_has(&h->index, r.klass))
        tierce__hazard_index_learn(&h->index, r.klass);
    if (before != NULL && before->klass % 8 > 2)
        h->hints.returned[before->klass % 8 - 2]++;
    if (r.klass % 8 > 2)
        h->hints.used[r.klass % 8 - 2]++;
    if (before != NULL && level_at(before->tick, h->use_tick) < 2) {
        uint32_t b = bucket_at(before->tick, h->use_tick);
        add_risks(h, before, b, -1);
        if (level_at(before->tick, h->use_tick) == 0)
            h->index.hits[before->klass][b] += 1;
        else if (before->sampled)
            h->index.hits[before->klass][b] += 8;
    }
    if (before != NULL)
        count_record(h, before, false);
    h->index.risks[r.klass][0] += 1;
    add_risks(h, &r, 0, 1);
    count_record(h, &r, true);
    return r;
}

static void end_request(struct hazard_model *h)
{
    h->left = 0;
    h->use_tick = h->tick;
}

static void end_use(struct hazard_model *h)
{
    if (h->left > 1) {
        h->left--;
        return;
    }
    if (h->left == 0)
        pass_time(h, 1);
    end_request(h);
}

/* ---- ghosts ---------------------------------------------------------------------------------- */

static bool find_ghost(const struct hazard_model *h, uint64_t key, uint32_t *list, uint32_t *at)
{
    *list = tierce__hazard_hash(key) % 8 == 0;
    for (*at = 0; *at < h->ghost_count[*list]; ++*at) {
        if (h->ghosts[*list][*at].key == key)
            return true;
    }
    return false;
}

static void cut_ghost(struct hazard_model *h, uint32_t list, uint32_t at)
{
    struct hazard_ghost_model *ghosts = h->ghosts[list];
    h->ghost_count[list]--;
    memmove(ghosts + at, ghosts + at + 1, (h->ghost_count[list] - at) * sizeof(*ghosts));
}

static void push_ghost(struct hazard_model *h, uint64_t key, const struct hazard_record *past)
{
    uint32_t list = past->sampled;
    uint64_t number = h->ghost_number[list]++, entries = h->slots;
    if (h->adapts && entries_of(h) < entries)
        entries = entries_of(h);
    while (h->ghost_count[list] >= 2 * entries ||
           (h->ghost_count[list] > 0 && number - h->ghosts[list][0].number >= 3 * entries))
        cut_ghost(h, list, 0);
    h->ghosts[list][h->ghost_count[list]++] =
        (struct hazard_ghost_model){.key = key, .number = number, .past = *past};
}

static struct tierce__policy_origin origin_of(const struct hazard_model *h, uint64_t key,
                                              struct tierce__policy_origin of)
{
    if (h->left == 0)
        return of;
    of = h->origin;
    of.ends = of.ends && key == h->last_key;
    return of;
}

static struct hazard_record use_key(struct hazard_model *h,
                                    const struct tierce__policy_entry *entry)
{
    uint32_t list, at;
    struct tierce__policy_origin of = origin_of(h, entry->key, entry->origin);
    if (!find_ghost(h, entry->key, &list, &at))
        return use(h, NULL, entry->key, of);
    struct hazard_record before = h->ghosts[list][at].past;
    cut_ghost(h, list, at);
    return use(h, &before, entry->key, of);
}

/* ---- operations ------------------------------------------------------------------------------ */

void hazard_model_init(struct hazard_model *h, uint32_t slots, uint64_t capacity)
{
    uint64_t unit = capacity > slots ? 0 : capacity > 0 ? capacity : slots;
    *h = (struct hazard_model){.slots = slots,
                               .unit = unit > 16 ? unit : 16,
                               .adapts = capacity > slots,
                               .tick = FIRST_TICK,
                               .use_tick = FIRST_TICK};
    h->tick_counts = calloc(HAZARD_TICKS_MAX, sizeof(*h->tick_counts));
    h->span_counts = calloc(HAZARD_TICKS_MAX / 32, sizeof(*h->span_counts));
    ck_assert(h->tick_counts != NULL && h->span_counts != NULL);
    tierce__hazard_index_init(&h->index, starts);
}

void hazard_model_fini(struct hazard_model *h)
{
    free(h->tick_counts);
    free(h->span_counts);
}

void hazard_model_request(struct hazard_model *h, const struct tierce__policy_request *request)
{
    end_request(h);
    pass_time(h, request->count);
    h->left = request->count;
    h->last_key = request->last_key;
    h->origin = request->origin;
}

static double worth_of(const struct hazard_model *h, uint32_t klass, uint32_t tick)
{
    return h->index.worths[klass * BUCKETS + bucket_at(tick, h->tick)];
}

bool hazard_model_admits(const struct hazard_model *h, const struct tierce__policy_entry *entry,
                         uint32_t victim)
{
    uint32_t list, at;
    if (victim == TIERCE__NO_SLOT)
        return true;
    bool known = find_ghost(h, entry->key, &list, &at);
    struct tierce__policy_origin of = origin_of(h, entry->key, entry->origin);
    struct hazard_record r =
        record_now(h, known ? &h->ghosts[list][at].past : NULL, entry->key, of);
    of.ends = true;
    struct hazard_record last = record_now(h, NULL, entry->key, of);
    const struct hazard_record *other = &h->entries[victim].past;
    double least = worth_of(h, other->klass, other->tick);
    return worth_of(h, r.klass, r.tick) >= least || worth_of(h, last.klass, r.tick) >= least;
}

void hazard_model_skip(struct hazard_model *h, const struct tierce__policy_entry *entry)
{
    struct hazard_record past = use_key(h, entry);
    push_ghost(h, entry->key, &past);
    end_use(h);
}

void hazard_model_list(struct hazard_model *h, uint32_t slot, bool listed, bool older)
{
    struct hazard_entry *e = &h->entries[slot];
    if (e->listed == listed)
        return;
    e->listed = listed;
    e->link_level = level_at(e->past.tick, h->tick);
    h->clock++;
    e->position = older ? -h->clock : h->clock;
}

void hazard_model_insert(struct hazard_model *h, uint32_t slot,
                         const struct tierce__policy_entry *entry)
{
    h->entries[slot] = (struct hazard_entry){.key = entry->key, .past = use_key(h, entry)};
    h->count++;
    hazard_model_list(h, slot, true, false);
    end_use(h);
}

void hazard_model_touch(struct hazard_model *h, uint32_t slot)
{
    struct hazard_entry *e = &h->entries[slot];
    struct tierce__policy_origin of = origin_of(h, e->key, (struct tierce__policy_origin){0});
    if (of.is_new)
        count_record(h, &e->past, false);
    struct hazard_record past = use(h, of.is_new ? NULL : &e->past, e->key, of);
    bool moves = e->listed && (past.tick != e->past.tick || past.klass != e->past.klass);
    if (moves)
        hazard_model_list(h, slot, false, false);
    e->past = past;
    if (moves)
        hazard_model_list(h, slot, true, false);
    end_use(h);
}

void hazard_model_remove(struct hazard_model *h, uint32_t slot, bool evicted)
{
    struct hazard_entry *e = &h->entries[slot];
    if (evicted)
        push_ghost(h, e->key, &e->past);
    else
        count_record(h, &e->past, false);
    *e = (struct hazard_entry){0};
    h->count--;
}

/* Whether a is before b in the list in which both are now. */
static bool is_before(const struct hazard_entry *a, const struct hazard_entry *b)
{
    if (a->link_level == 2 || b->link_level == 2)
        return a->link_level == b->link_level ? a->position < b->position : a->link_level == 2;
    if (a->past.tick / 32 != b->past.tick / 32)
        return a->past.tick < b->past.tick;
    if (a->link_level != b->link_level) /* at the begin or the end of the list of its span */
        return a->link_level == 1 ? a->position < 0 : b->position > 0;
    if (a->link_level == 0 && a->past.tick != b->past.tick)
        return a->past.tick < b->past.tick;
    return a->position < b->position;
}

uint32_t hazard_model_victim(const struct hazard_model *h)
{
    uint32_t best = TIERCE__NO_SLOT, best_rank = 0;
    for (uint32_t i = 0; i < h->slots; i++) {
        const struct hazard_entry *e = &h->entries[i];
        if (!e->listed)
            continue;
        uint32_t bucket = bucket_at(e->past.tick, h->tick);
        uint32_t rank = h->index.ranks[e->past.klass * BUCKETS + bucket];
        if (best == TIERCE__NO_SLOT || rank < best_rank ||
            (rank == best_rank && is_before(e, &h->entries[best]))) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}
