/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/ghost_curve.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/mix.h"
#include "optimizer/replay/curve.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_LEAST 1024.0 /* the lower end of the first bucket but one */
#define TWO_TO_64   18446744073709551616.0

enum {
    CURVE_MAGIC = 0x67686f43,
    EPOCHS = 8,
    IDLE_EPOCHS = 64,
    PIECE_SHARE = 8, /* a request is added in pieces of at most this part of the room */
    SMALL_SHARE = 8, /* a sample below this part of the room is small */
};

struct curve_block {
    uint64_t id;   /* of the key: without its class */
    uint64_t used; /* larger than that of all blocks used before it */
    uint32_t member;
    uint32_t epoch; /* of its last use */
};

struct curve_member {
    double key_bytes; /* 0: not in use */
    double tokens;
};

/* Lookups of a class, in tokens. */
struct curve_class {
    double asked;                       /* of all keys */
    double sampled;                     /* for which the keys of the sample stand */
    double hits[TIERCE__GHOST_BUCKETS]; /* of `sampled`, by the capacity that they need */
};

struct curve_epoch {
    double found; /* tokens, of all keys */
    double bytes; /* of the sampled keys, each once for each lookup */
    uint64_t sampled_keys;
    struct curve_class classes[TIERCE__GHOST_CLASSES];
};

struct tierce__ghost_curve {
    uint32_t magic;
    struct tierce__ghost_curve_opts opts;
    double unit;
    double reach; /* 0: none */
    struct curve_member *members;
    uint32_t member_count, member_room;
    struct curve_block *blocks; /* by their numbers in `lru` */
    uint32_t block_count, block_room;
    struct tierce__numbers numbers;
    struct tierce__curve *lru; /* NULL: not made yet */
    uint64_t uses;
    uint32_t *list;   /* [list_room] numbers of a request */
    uint8_t *classes; /* [class_room] of the blocks that are looked up */
    size_t list_room, class_room;
    /* The lookup that is being counted. */
    const struct curve_member *reader;
    bool reads_chain;

    int64_t epoch_began_us; /* INT64_MIN: no epoch has begun */
    uint32_t epoch;         /* counts on; epochs[epoch % (EPOCHS + 1)] is the current one */
    uint32_t epochs_done;   /* at most EPOCHS */
    uint32_t warm_epoch;    /* the sample is complete from this one on */
    struct curve_epoch epochs[EPOCHS + 1];
};

/* ---- buckets --------------------------------------------------------------------------------- */

/* Bucket 0 ends at BYTES_LEAST * (1 + 1 / STEPS). */
static uint32_t bucket_of(double bytes)
{
    int exponent;
    double fraction = frexp(bytes / BYTES_LEAST, &exponent); /* [0.5, 1) * 2^exponent */
    int octave = exponent - 1;
    if (octave < 0)
        return 0;
    uint32_t step = (uint32_t)((fraction - 0.5) * 2 * TIERCE__GHOST_STEPS);
    uint64_t bucket = (uint64_t)octave * TIERCE__GHOST_STEPS + step;
    return bucket < TIERCE__GHOST_BUCKETS ? (uint32_t)bucket : TIERCE__GHOST_BUCKETS - 1;
}

double tierce__ghost_bucket_bytes(uint32_t bucket)
{
    TIERCE_DASSERT(bucket <= TIERCE__GHOST_BUCKETS);
    double step = 1 + (double)(bucket % TIERCE__GHOST_STEPS) / TIERCE__GHOST_STEPS;
    return bucket == 0 ? 0 : ldexp(BYTES_LEAST * step, (int)(bucket / TIERCE__GHOST_STEPS));
}

/* The bucket of a hit that needs this capacity: a cache as large as the lower end of a bucket has
 * the hits that need exactly as much, so they are counted in the bucket below. */
static uint32_t bucket_of_need(double bytes)
{
    uint32_t bucket = bucket_of(bytes);
    return bucket > 0 && bytes <= tierce__ghost_bucket_bytes(bucket) ? bucket - 1 : bucket;
}

static const struct curve_epoch *epoch_before(const struct tierce__ghost_curve *c, uint32_t epochs)
{
    TIERCE_DASSERT(epochs <= EPOCHS);
    return &c->epochs[(c->epoch - epochs) % (EPOCHS + 1)];
}

static struct curve_epoch *epoch_now(struct tierce__ghost_curve *c)
{
    return &c->epochs[c->epoch % (EPOCHS + 1)];
}

/* ---- the sample ------------------------------------------------------------------------------ */

static double share_of(const struct tierce__ghost_curve *c, const struct curve_member *member)
{
    TIERCE_DASSERT(member->key_bytes > 0 && member->key_bytes <= c->unit);
    return member->key_bytes / c->unit;
}

uint64_t tierce__ghost_curve_bound(const struct tierce__ghost_curve *curve, uint32_t member)
{
    TIERCE_ASSERT(member < curve->member_count);
    double bound = share_of(curve, &curve->members[member]) * TWO_TO_64;
    return bound >= TWO_TO_64 ? UINT64_MAX : (uint64_t)bound;
}

double tierce__ghost_curve_unit(const struct tierce__ghost_curve *curve)
{
    return curve->unit;
}

double tierce__ghost_curve_key_bytes(const struct tierce__ghost_curve *curve, uint32_t member)
{
    TIERCE_ASSERT(member < curve->member_count);
    return curve->members[member].key_bytes;
}

static uint64_t id_of(uint64_t key)
{
    return key & ~(uint64_t)(TIERCE__GHOST_CLASSES - 1);
}

static uint32_t class_of(uint64_t key)
{
    return (uint32_t)(key & (TIERCE__GHOST_CLASSES - 1));
}

static uint32_t hash_of(uint32_t member, uint64_t id)
{
    return (uint32_t)(tierce__spread(id + member * TIERCE__MIX_SECOND) >> 32);
}

static uint32_t find(const struct tierce__ghost_curve *c, uint32_t member, uint64_t id)
{
    TIERCE__NUMBERS_FOR_EACH (it, &c->numbers, hash_of(member, id)) {
        const struct curve_block *block = &c->blocks[it.number];
        if (block->id == id && block->member == member)
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

/* Forgets all blocks; counts of hits stay. */
static void forget(struct tierce__ghost_curve *c)
{
    c->warm_epoch = c->epoch + EPOCHS;
    tierce__curve_destroy(c->lru);
    c->lru = NULL;
    c->block_count = 0;
    tierce__numbers_clear(&c->numbers);
}

/* The newest first. */
static int compare_use(const void *a, const void *b)
{
    const struct curve_block *left = a, *right = b;
    return left->used > right->used ? -1 : left->used < right->used;
}

static bool stays(const struct tierce__ghost_curve *c, const struct curve_block *block)
{
    return c->members[block->member].key_bytes > 0 && c->epoch - block->epoch <= IDLE_EPOCHS &&
           block->id <= tierce__ghost_curve_bound(c, block->member);
}

/* How many of the blocks, which are sorted, stay. */
static uint32_t count_staying(const struct tierce__ghost_curve *c)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->block_count; i++) {
        if (c->reach > 0 && count * c->unit >= c->reach)
            break;
        count += stays(c, &c->blocks[i]);
    }
    return count;
}

static void count_costs(void *arg, size_t match, const uint32_t *costs, uint32_t count);

static int open_lru(struct tierce__ghost_curve *c)
{
    static const struct tierce__match any = {.kind = TIERCE__MATCH_ANY};
    TIERCE_DASSERT(c->lru == NULL);
    int rc = tierce__curve_create(&c->lru, TIERCE__TOUCH_REV, &any, 1);
    if (rc == 0)
        tierce__curve_watch(c->lru, count_costs, c);
    return rc;
}

/* Adds the blocks [0, block_count), the newest first, to a new curve, in their order of use. */
static int fill_lru(struct tierce__ghost_curve *c)
{
    enum { TOGETHER = 256 };
    uint32_t numbers[TOGETHER];
    int rc = open_lru(c);
    for (uint32_t end = c->block_count; rc == 0 && end > 0;) {
        uint32_t count = end < TOGETHER ? end : TOGETHER;
        for (uint32_t i = 0; i < count; i++)
            numbers[i] = end - count + i;
        rc = tierce__curve_request(c->lru, numbers, count, 0);
        end -= count;
    }
    return rc;
}

/* Drops the blocks that do not stay and renumbers the others. */
static int compact(struct tierce__ghost_curve *c, uint32_t staying)
{
    uint32_t kept = 0;
    tierce__numbers_clear(&c->numbers);
    for (uint32_t i = 0; i < c->block_count && kept < staying; i++) {
        if (!stays(c, &c->blocks[i]))
            continue;
        c->blocks[kept] = c->blocks[i];
        tierce__numbers_put(&c->numbers, hash_of(c->blocks[kept].member, c->blocks[kept].id), kept);
        kept++;
    }
    TIERCE_ASSERT(kept == staying);
    c->block_count = kept;
    tierce__curve_destroy(c->lru);
    c->lru = NULL;
    int rc = fill_lru(c);
    if (rc < 0)
        forget(c);
    return rc;
}

/* Drops blocks until at most `most` are left: those that are too old or out of reach; then the unit
 * is doubled. */
static int shrink(struct tierce__ghost_curve *c, uint32_t most)
{
    if (c->block_count == 0)
        return 0;
    qsort(c->blocks, c->block_count, sizeof(c->blocks[0]), compare_use);
    uint32_t staying = count_staying(c);
    while (staying > most) {
        c->unit *= 2;
        staying = count_staying(c);
    }
    return compact(c, staying);
}

/* Makes room for `count` more blocks. */
static int make_room(struct tierce__ghost_curve *c, size_t count)
{
    uint32_t most = c->opts.blocks_max;
    TIERCE_DASSERT(count <= most / PIECE_SHARE);
    int rc = 0;
    if (c->block_count + count > most)
        rc = shrink(c, most - most / 4);
    if (rc == 0)
        rc = TIERCE__GROW(c->blocks, c->block_room, c->block_count + count, 256);
    if (rc == 0)
        rc = tierce__numbers_reserve(&c->numbers, c->block_count + count);
    if (rc == 0 && c->lru == NULL)
        rc = open_lru(c);
    TIERCE_DASSERT(rc < 0 || c->block_count + count <= most);
    return rc;
}

/* ---- members --------------------------------------------------------------------------------- */

/* Drops the blocks that are not in the sample any more. */
static void drop_others(struct tierce__ghost_curve *c)
{
    if (shrink(c, c->opts.blocks_max) < 0)
        forget(c);
}

/* No member's share of the sample may exceed 1. */
static void widen(struct tierce__ghost_curve *c, double key_bytes)
{
    if (key_bytes > c->unit)
        c->unit = key_bytes;
    drop_others(c);
}

int tierce__ghost_curve_add(struct tierce__ghost_curve *curve, double key_bytes, double tokens,
                            uint32_t *member)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(key_bytes > 0 && tokens > 0);
    uint32_t at = 0;
    while (at < curve->member_count && curve->members[at].key_bytes > 0)
        at++;
    if (at == curve->member_count) {
        if (TIERCE__GROW(curve->members, curve->member_room, (size_t)at + 1, 1) < 0)
            return -ENOMEM;
        curve->member_count++;
    }
    curve->members[at] = (struct curve_member){.key_bytes = key_bytes, .tokens = tokens};
    widen(curve, key_bytes);
    *member = at;
    return 0;
}

void tierce__ghost_curve_remove(struct tierce__ghost_curve *curve, uint32_t member)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(member < curve->member_count && curve->members[member].key_bytes > 0);
    curve->members[member].key_bytes = 0;
    drop_others(curve);
}

void tierce__ghost_curve_resize(struct tierce__ghost_curve *curve, uint32_t member,
                                double key_bytes)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(member < curve->member_count && key_bytes > 0);
    double had = curve->members[member].key_bytes;
    if (fabs(key_bytes - had) < had / 8)
        return;
    curve->members[member].key_bytes = key_bytes;
    widen(curve, key_bytes);
}

void tierce__ghost_curve_set_reach(struct tierce__ghost_curve *curve, double bytes)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(bytes >= 0);
    curve->reach = bytes;
}

void tierce__ghost_curve_coarsen(struct tierce__ghost_curve *curve)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    curve->unit *= 2;
    drop_others(curve);
}

/* ---- requests -------------------------------------------------------------------------------- */

/*
 * The capacity at which the block at this position hits. The blocks before it in the sample stand
 * for a unit each; the block itself lies, on average, in the middle of a unit. Exact if all keys
 * are sampled.
 */
static double bytes_at(const struct tierce__ghost_curve *c, uint32_t position)
{
    TIERCE_DASSERT(position > 0);
    double own = c->reader->key_bytes;
    return (double)(position - 1) * c->unit + (own + c->unit) / 2;
}

static void count_costs(void *arg, size_t match, const uint32_t *costs, uint32_t count)
{
    struct tierce__ghost_curve *c = arg;
    (void)match;
    if (count == 0)
        return;
    TIERCE_DASSERT(c->reader != NULL);
    struct curve_epoch *epoch = epoch_now(c);
    double tokens = c->reader->tokens / share_of(c, c->reader);
    uint32_t largest = 0;
    TIERCE_DASSERT(count <= c->class_room);
    for (uint32_t i = 0; i < count; i++) {
        largest = costs[i] > largest ? costs[i] : largest;
        uint32_t bucket = bucket_of_need(bytes_at(c, c->reads_chain ? largest : costs[i]));
        epoch->classes[c->classes[i]].hits[bucket] += tokens;
    }
}

/* The blocks become the most recently used ones, the first of them the latest. */
static void mark_used(struct tierce__ghost_curve *c, const uint32_t *list, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        c->blocks[list[i]].used = ++c->uses;
        c->blocks[list[i]].epoch = c->epoch;
    }
}

static int request(struct tierce__ghost_curve *c, size_t count, size_t reads)
{
    TIERCE_DASSERT(reads <= count && count <= c->list_room);
    if (count == 0)
        return 0;
    int rc = tierce__curve_request(c->lru, c->list, (uint32_t)count, (uint32_t)reads);
    if (rc < 0)
        forget(c);
    else
        mark_used(c, c->list, count);
    return rc;
}

/* Lists the known keys of a lookup; the first *reads of them hit at some capacity. */
static size_t list_reads(struct tierce__ghost_curve *c, uint32_t member, const uint64_t *keys,
                         size_t count, size_t *reads)
{
    const struct curve_member *reader = &c->members[member];
    struct curve_epoch *epoch = epoch_now(c);
    uint64_t bound = tierce__ghost_curve_bound(c, member), sampled = 0;
    double tokens = reader->tokens / share_of(c, reader);
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t class_ = class_of(keys[i]);
        if (id_of(keys[i]) > bound)
            continue;
        uint32_t number = find(c, member, id_of(keys[i]));
        epoch->classes[class_].sampled += tokens;
        sampled++;
        if (number == TIERCE__NUMBER_NONE)
            continue;
        if (!c->reads_chain || *reads == sampled - 1)
            c->classes[(*reads)++] = (uint8_t)class_;
        c->list[known++] = number;
    }
    epoch->sampled_keys += sampled;
    epoch->bytes += (double)sampled * reader->key_bytes;
    return known;
}

int tierce__ghost_curve_read(struct tierce__ghost_curve *curve, uint32_t member,
                             const uint64_t *keys, size_t count, bool is_chain)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(member < curve->member_count);
    size_t reads = 0;
    if (TIERCE__GROW(curve->list, curve->list_room, count, 64) < 0 ||
        TIERCE__GROW(curve->classes, curve->class_room, count, 64) < 0)
        return -ENOMEM;
    curve->reader = &curve->members[member];
    curve->reads_chain = is_chain;
    size_t known = list_reads(curve, member, keys, count, &reads);
    return request(curve, known, reads);
}

/* Adds a block that is not in the sample. There must be room. */
static uint32_t add_block(struct tierce__ghost_curve *c, uint32_t member, uint64_t id)
{
    TIERCE_DASSERT(c->block_count < c->block_room);
    uint32_t number = c->block_count++;
    c->blocks[number] = (struct curve_block){.id = id, .member = member};
    tierce__numbers_put(&c->numbers, hash_of(member, id), number);
    return number;
}

static int use_piece(struct tierce__ghost_curve *c, uint32_t member, const uint64_t *keys,
                     size_t count, bool is_write)
{
    int rc = make_room(c, count);
    if (rc < 0)
        return rc;
    uint64_t bound = tierce__ghost_curve_bound(c, member); /* make_room may have lowered it */
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t id = id_of(keys[i]);
        uint32_t number = id <= bound ? find(c, member, id) : TIERCE__NUMBER_NONE;
        if (number == TIERCE__NUMBER_NONE && is_write && id <= bound)
            number = add_block(c, member, id);
        if (number != TIERCE__NUMBER_NONE)
            c->list[known++] = number;
    }
    return request(c, known, 0);
}

int tierce__ghost_curve_use(struct tierce__ghost_curve *curve, uint32_t member,
                            const uint64_t *keys, size_t count, bool is_write)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(member < curve->member_count);
    size_t piece = curve->opts.blocks_max / PIECE_SHARE;
    int rc = TIERCE__GROW(curve->list, curve->list_room, piece, 64);
    /* The last piece first, so that the beginning of the chain is used last. */
    for (size_t end = count; rc == 0 && end > 0;) {
        size_t first = end > piece ? end - piece : 0;
        rc = use_piece(curve, member, keys + first, end - first, is_write);
        end = first;
    }
    if (rc < 0)
        forget(curve);
    return rc;
}

void tierce__ghost_curve_count(struct tierce__ghost_curve *curve, uint32_t member,
                               const uint64_t asked[TIERCE__GHOST_CLASSES], uint64_t found)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    TIERCE_ASSERT(member < curve->member_count);
    struct curve_epoch *epoch = epoch_now(curve);
    double tokens = curve->members[member].tokens;
    for (size_t i = 0; i < TIERCE__GHOST_CLASSES; i++)
        epoch->classes[i].asked += (double)asked[i] * tokens;
    epoch->found += (double)found * tokens;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void begin_epoch(struct tierce__ghost_curve *c)
{
    c->epoch++;
    if (c->epochs_done < EPOCHS)
        c->epochs_done++;
    *epoch_now(c) = (struct curve_epoch){0};
}

static double smallest_unit(const struct tierce__ghost_curve *c)
{
    double unit = 0;
    for (uint32_t i = 0; i < c->member_count; i++)
        unit = c->members[i].key_bytes > unit ? c->members[i].key_bytes : unit;
    return unit;
}

static bool is_warm(const struct tierce__ghost_curve *c)
{
    return (int32_t)(c->epoch - c->warm_epoch) >= 0;
}

static void refine(struct tierce__ghost_curve *c)
{
    double unit = smallest_unit(c);
    if (c->block_count >= c->opts.blocks_max / SMALL_SHARE || c->unit <= unit || !is_warm(c))
        return;
    c->unit = c->unit / 2 > unit ? c->unit / 2 : unit;
    c->warm_epoch = c->epoch + EPOCHS;
}

void tierce__ghost_curve_advance(struct tierce__ghost_curve *curve, int64_t now_us, bool may_refine)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    int64_t epoch_us = curve->opts.epoch_us;
    if (curve->epoch_began_us == INT64_MIN)
        curve->epoch_began_us = now_us;
    int64_t over = now_us > curve->epoch_began_us ? (now_us - curve->epoch_began_us) / epoch_us : 0;
    for (int64_t i = 0; i < over && i <= IDLE_EPOCHS; i++)
        begin_epoch(curve);
    curve->epoch_began_us += over * epoch_us;
    if (over > 0 && may_refine)
        refine(curve);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Adds the hits of a class to the capacities that they need, and its lookups, over the last
 * `epochs` epochs and the current one. */
static void add_class(const struct tierce__ghost_curve *c, uint32_t class_, uint32_t epochs,
                      struct tierce__ghost_shape *out)
{
    double asked = 0, sampled = 0;
    for (uint32_t e = 0; e <= epochs; e++) {
        const struct curve_class *of = &epoch_before(c, e)->classes[class_];
        asked += of->asked;
        sampled += of->sampled;
    }
    out->asked += asked;
    if (!(sampled > 0)) {
        out->hits[1] += asked;
        return;
    }
    for (uint32_t e = 0; e <= epochs; e++) {
        const struct curve_class *of = &epoch_before(c, e)->classes[class_];
        for (uint32_t i = 0; i < TIERCE__GHOST_BUCKETS; i++)
            out->hits[i + 1] += of->hits[i] * asked / sampled;
    }
}

void tierce__ghost_curve_recent(const struct tierce__ghost_curve *curve, int64_t now_us,
                                uint32_t epochs, struct tierce__ghost_shape *out)
{
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    double bytes = 0;
    epochs = epochs < curve->epochs_done ? epochs : curve->epochs_done;
    *out = (struct tierce__ghost_shape){.unit_bytes = curve->unit,
                                        .reach_bytes = curve->reach,
                                        .blocks = curve->block_count,
                                        .is_warm = is_warm(curve)};
    for (uint32_t e = 0; e <= epochs; e++) {
        out->found += epoch_before(curve, e)->found;
        out->sampled += epoch_before(curve, e)->sampled_keys;
        bytes += epoch_before(curve, e)->bytes;
    }
    for (uint32_t class_ = 0; class_ < TIERCE__GHOST_CLASSES; class_++)
        add_class(curve, class_, epochs, out);
    for (uint32_t i = 1; i <= TIERCE__GHOST_BUCKETS; i++)
        out->hits[i] += out->hits[i - 1];
    if (curve->epoch_began_us != INT64_MIN)
        out->seconds =
            (double)(now_us - curve->epoch_began_us + (int64_t)epochs * curve->opts.epoch_us) / 1e6;
    out->key_bytes = out->sampled > 0 ? bytes / (double)out->sampled : smallest_unit(curve);
}

void tierce__ghost_curve_shape(const struct tierce__ghost_curve *curve, int64_t now_us,
                               struct tierce__ghost_shape *out)
{
    tierce__ghost_curve_recent(curve, now_us, EPOCHS, out);
}

double tierce__ghost_error(const struct tierce__ghost_shape *shape)
{
    static const struct {
        uint32_t blocks;
        double error;
    } bounds[] = {{8192, 0.012}, {4096, 0.02}, {2048, 0.03}};
    enum { BOUNDS = sizeof(bounds) / sizeof(bounds[0]) };
    if (shape->unit_bytes <= shape->key_bytes) /* all keys are in the sample */
        return 0.002;
    for (size_t i = 0; i < BOUNDS; i++) {
        /* A sample is between three quarters of its room and all of it. */
        if (shape->blocks >= bounds[i].blocks / 4 * 3)
            return bounds[i].error;
    }
    return bounds[BOUNDS - 1].error * sqrt(bounds[BOUNDS - 1].blocks / (shape->blocks + 1.0));
}

double tierce__ghost_hits(const struct tierce__ghost_shape *shape, double bytes)
{
    uint32_t bucket = bucket_of(bytes);
    double low = tierce__ghost_bucket_bytes(bucket), high = tierce__ghost_bucket_bytes(bucket + 1);
    double part = bytes >= high ? 1 : (bytes - low) / (high - low);
    TIERCE_DASSERT(bytes >= 0 && part >= 0 && part <= 1);
    return shape->hits[bucket] + part * (shape->hits[bucket + 1] - shape->hits[bucket]);
}

double tierce__ghost_rate(const struct tierce__ghost_shape *shape, double bytes)
{
    return shape->asked > 0 ? tierce__ghost_hits(shape, bytes) / shape->asked : 0;
}

/* ---- create, destroy ------------------------------------------------------------------------- */

int tierce__ghost_curve_create(struct tierce__ghost_curve **out,
                               const struct tierce__ghost_curve_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->blocks_max >= 64 && opts->epoch_us > 0);
    struct tierce__ghost_curve *curve = tierce__calloc(1, sizeof(*curve));
    if (curve == NULL)
        return -ENOMEM;
    curve->magic = CURVE_MAGIC;
    curve->opts = *opts;
    curve->epoch_began_us = INT64_MIN;
    curve->warm_epoch = EPOCHS;
    *out = curve;
    return 0;
}

void tierce__ghost_curve_destroy(struct tierce__ghost_curve *curve)
{
    if (curve == NULL)
        return;
    TIERCE_CHECK_MAGIC(curve, CURVE_MAGIC);
    forget(curve);
    tierce__numbers_fini(&curve->numbers);
    tierce__free(curve->members);
    tierce__free(curve->blocks);
    tierce__free(curve->list);
    tierce__free(curve->classes);
    curve->magic = 0;
    tierce__free(curve);
}

/*
 * For each block: 24 bytes here; 16 to 22 of `numbers` (at most three quarters full); in the LRU
 * curve, at most 16 (two powers of two) for slot and histogram entry, and a line and the two arrays
 * of a request.
 */
size_t tierce__ghost_curve_bytes_max(uint32_t blocks_max)
{
    enum { BY_BLOCK = 96, FIXED = 64 << 10 };
    return sizeof(struct tierce__ghost_curve) + (size_t)blocks_max * BY_BLOCK + FIXED;
}
