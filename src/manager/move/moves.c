/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/move/moves.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mix.h"
#include "base/threads/lock.h"
#include "manager/api/meter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { QUEUED_MAX = 16384, RESTING_MAX = 16384 };
enum { WHY_BYTES = 256 };
#define FAILED_US       60000000
#define UNVERIFIABLE_US 3600000000

/* Blocks that wait, the oldest first. */
struct lane {
    struct tierce__list node; /* of `lanes`; the next one to be taken from is the first */
    struct tierce__map_node by_key;
    struct tierce__list blocks;
    size_t count;
    uint64_t bytes;
    int64_t rests_until_us;
    char why[WHY_BYTES];
    struct tierce__move_lane lane;
    char instance_id[]; /* of `lane` */
};

/* A block that waits in a lane, or one whose move has failed: it rests then, and has no lane. */
struct entry {
    struct tierce__list node; /* of the lane, or of `resting` */
    struct tierce__map_node by_block;
    struct lane *lane;
    uint32_t instance;
    /* Of a resting one: */
    int64_t until_us;
    uint16_t from;
    enum tierce__move_result result;
    struct tierce__move_block block;
};

/* Bytes between two storages. */
struct pair {
    struct tierce__map_node by_pair;
    struct tierce__meter *meter;
};

struct tierce__moves {
    struct tierce__moves_opts opts;
    struct tierce__lock lock; /* MOVES: the members below */
    struct tierce__list lanes;
    struct tierce__map by_key; /* the same */
    struct tierce__map by_block;
    struct tierce__list resting; /* the oldest first */
    struct tierce__map pairs;    /* none is removed before the end */
    struct tierce__moves_stats stats;
    int64_t asked_us; /* when a mover asked last; without one, when a block was queued first; 0:
                         neither */
};

const char *tierce__move_reason_name(enum tierce__move_reason reason)
{
    static const char *const names[TIERCE__MOVE_REASONS] = {
        [TIERCE__MOVE_DRAIN] = "drain",
        [TIERCE__MOVE_COLD] = "cold",
        [TIERCE__MOVE_HOT] = "hot",
        [TIERCE__MOVE_REPLICA] = "replica",
    };
    TIERCE_ASSERT((size_t)reason < TIERCE__MOVE_REASONS);
    return names[reason];
}

const char *tierce__move_result_name(enum tierce__move_result result)
{
    static const char *const names[TIERCE__MOVE_RESULTS] = {
        [TIERCE__MOVED] = "moved",
        [TIERCE__MOVE_SOURCE_MISSING] = "source_missing",
        [TIERCE__MOVE_SOURCE_DAMAGED] = "source_damaged",
        [TIERCE__MOVE_SOURCE_UNREACHABLE] = "source_unreachable",
        [TIERCE__MOVE_TARGET_FAILED] = "target_failed",
        [TIERCE__MOVE_UNVERIFIABLE] = "unverifiable",
        [TIERCE__MOVE_UNDONE] = "undone",
        [TIERCE__MOVE_OVERTAKEN] = "overtaken",
        [TIERCE__MOVE_EXPIRED] = "expired",
    };
    TIERCE_ASSERT((size_t)result < TIERCE__MOVE_RESULTS);
    return names[result];
}

/* ---- creation -------------------------------------------------------------------------------- */

int tierce__moves_create(struct tierce__moves **out, const struct tierce__moves_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__moves *moves = tierce__calloc(1, sizeof(*moves));
    if (moves == NULL)
        return -ENOMEM;
    moves->opts = *opts;
    if (moves->opts.queued_max == 0)
        moves->opts.queued_max = QUEUED_MAX;
    tierce__lock_init(&moves->lock, TIERCE__LOCK_MOVES);
    tierce__list_init(&moves->lanes);
    tierce__list_init(&moves->resting);
    *out = moves;
    return 0;
}

static void destroy_lane(struct tierce__moves *moves, struct lane *lane)
{
    TIERCE_ASSERT(lane->count == 0 && tierce__list_empty(&lane->blocks));
    tierce__map_remove(&moves->by_key, &lane->by_key);
    tierce__list_remove(&lane->node);
    tierce__free(lane);
}

static void drop_entry(struct tierce__moves *moves, struct entry *entry)
{
    struct lane *lane = entry->lane;
    if (lane != NULL) {
        TIERCE_DASSERT(lane->count > 0);
        lane->count--;
        lane->bytes -= entry->block.bytes;
        moves->stats.queued[lane->lane.reason]--;
        moves->stats.queued_bytes[lane->lane.reason] -= entry->block.bytes;
    } else {
        moves->stats.resting--;
    }
    tierce__list_remove(&entry->node);
    tierce__map_remove(&moves->by_block, &entry->by_block);
    tierce__free(entry);
}

static void drop_all(struct tierce__moves *moves, struct tierce__list *entries)
{
    while (!tierce__list_empty(entries))
        drop_entry(moves, TIERCE__CONTAINER_OF(entries->next, struct entry, node));
}

void tierce__moves_clear(struct tierce__moves *moves)
{
    tierce__lock_take(&moves->lock);
    while (!tierce__list_empty(&moves->lanes)) {
        struct lane *lane = TIERCE__CONTAINER_OF(moves->lanes.next, struct lane, node);
        drop_all(moves, &lane->blocks);
        destroy_lane(moves, lane);
    }
    drop_all(moves, &moves->resting);
    TIERCE_ASSERT(moves->by_block.count == 0 && moves->by_key.count == 0);
    moves->asked_us = 0;
    tierce__lock_drop(&moves->lock);
}

void tierce__moves_destroy(struct tierce__moves *moves)
{
    if (moves == NULL)
        return;
    tierce__moves_clear(moves);
    TIERCE__MAP_FOR_EACH (node, &moves->pairs) {
        struct pair *pair = TIERCE__CONTAINER_OF(node, struct pair, by_pair);
        tierce__meter_drop(pair->meter);
        tierce__free(pair);
    }
    tierce__map_fini(&moves->pairs);
    tierce__map_fini(&moves->by_key);
    tierce__map_fini(&moves->by_block);
    tierce__lock_fini(&moves->lock);
    tierce__free(moves);
}

/* ---- finding --------------------------------------------------------------------------------- */

static uint64_t lane_hash(const struct tierce__move_lane *lane)
{
    return tierce__mix((uint64_t)lane->instance << 32 | (uint64_t)lane->from << 16 |
                       (uint64_t)lane->is_copy << 8 | (uint64_t)lane->to << 4 | lane->reason);
}

static bool is_same_lane(const struct tierce__move_lane *a, const struct tierce__move_lane *b)
{
    return a->instance == b->instance && a->from == b->from && a->is_copy == b->is_copy &&
           a->to == b->to && a->reason == b->reason;
}

static uint64_t block_hash(uint32_t instance, const struct tierce__move_block *block)
{
    uint64_t id;
    memcpy(&id, block->location_id, sizeof(id));
    return tierce__mix(tierce__mix((uint64_t)block->key ^ tierce__spread(instance)) ^ id);
}

static struct entry *find_entry(const struct tierce__moves *moves, uint32_t instance,
                                const struct tierce__move_block *block)
{
    tierce__lock_assert_held(&moves->lock);
    struct tierce__map_node *node = tierce__map_find(&moves->by_block, block_hash(instance, block));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct entry *entry = TIERCE__CONTAINER_OF(node, struct entry, by_block);
        if (entry->instance == instance && entry->block.key == block->key &&
            memcmp(entry->block.location_id, block->location_id, sizeof(block->location_id)) == 0)
            return entry;
    }
    return NULL;
}

/* Finds or makes a lane; NULL: no memory. */
static struct lane *use_lane(struct tierce__moves *moves, const struct tierce__move_lane *wanted)
{
    tierce__lock_assert_held(&moves->lock);
    struct tierce__map_node *node = tierce__map_find(&moves->by_key, lane_hash(wanted));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct lane *lane = TIERCE__CONTAINER_OF(node, struct lane, by_key);
        if (is_same_lane(&lane->lane, wanted))
            return lane;
    }
    size_t bytes = strlen(wanted->instance_id) + 1;
    struct lane *lane = tierce__calloc(1, sizeof(*lane) + bytes);
    if (lane == NULL)
        return NULL;
    memcpy(lane->instance_id, wanted->instance_id, bytes);
    lane->lane = *wanted;
    lane->lane.instance_id = lane->instance_id;
    tierce__list_init(&lane->blocks);
    tierce__list_push_back(&moves->lanes, &lane->node);
    tierce__map_put(&moves->by_key, &lane->by_key, lane_hash(wanted));
    return lane;
}

/* ---- requests ----------------------------------------------------------------------------------
 */

static void enter(struct tierce__moves *moves, struct lane *lane, struct entry *entry, bool first)
{
    entry->lane = lane;
    if (first)
        tierce__list_push_front(&lane->blocks, &entry->node);
    else
        tierce__list_push_back(&lane->blocks, &entry->node);
    tierce__map_put(&moves->by_block, &entry->by_block, block_hash(entry->instance, &entry->block));
    lane->count++;
    lane->bytes += entry->block.bytes;
    moves->stats.queued[lane->lane.reason]++;
    moves->stats.queued_bytes[lane->lane.reason] += entry->block.bytes;
}

static struct entry *make_entry(const struct tierce__move_lane *lane,
                                const struct tierce__move_block *block)
{
    struct entry *entry = tierce__calloc(1, sizeof(*entry));
    if (entry == NULL)
        return NULL;
    tierce__list_init(&entry->node);
    entry->instance = lane->instance;
    entry->block = *block;
    return entry;
}

/* Returns 1 if the block was queued, 0 if it is known already; -ENOMEM. */
static int want_one(struct tierce__moves *moves, const struct tierce__move_lane *wanted,
                    const struct tierce__move_block *block, int64_t now_us)
{
    struct entry *known = find_entry(moves, wanted->instance, block);
    if (known != NULL && (known->lane != NULL || known->until_us > now_us))
        return 0;
    if (known != NULL)
        drop_entry(moves, known);
    struct entry *entry = make_entry(wanted, block);
    struct lane *lane = entry != NULL ? use_lane(moves, wanted) : NULL;
    if (lane == NULL) {
        tierce__free(entry);
        return -ENOMEM;
    }
    enter(moves, lane, entry, false);
    return 1;
}

size_t tierce__moves_want(struct tierce__moves *moves, const struct tierce__move_lane *lane,
                          const struct tierce__move_block *blocks, size_t count, int64_t now_us)
{
    size_t queued = 0;
    int rc = 0;
    TIERCE_ASSERT((size_t)lane->reason < TIERCE__MOVE_REASONS);
    TIERCE_ASSERT((size_t)lane->to < TIERCE__MOVE_TOS && lane->from > 0);
    tierce__lock_take(&moves->lock);
    for (size_t i = 0; i < count; i++) {
        bool has_room = moves->stats.queued[lane->reason] < moves->opts.queued_max;
        rc = has_room ? want_one(moves, lane, &blocks[i], now_us) : -ENOMEM;
        if (rc < 0) {
            moves->stats.refused[lane->reason] += count - i;
            break;
        }
        queued += (size_t)rc;
    }
    if (queued > 0 && moves->asked_us == 0)
        moves->asked_us = now_us;
    tierce__lock_drop(&moves->lock);
    TIERCE_DASSERT(queued <= count);
    return queued;
}

size_t tierce__moves_room(struct tierce__moves *moves, enum tierce__move_reason reason)
{
    TIERCE_ASSERT((size_t)reason < TIERCE__MOVE_REASONS);
    tierce__lock_take(&moves->lock);
    uint64_t queued = moves->stats.queued[reason], most = moves->opts.queued_max;
    tierce__lock_drop(&moves->lock);
    return queued < most ? (size_t)(most - queued) : 0;
}

uint64_t tierce__moves_waiting(struct tierce__moves *moves, enum tierce__move_reason reason,
                               bool (*suits)(void *arg, const struct tierce__move_lane *lane),
                               void *arg)
{
    uint64_t bytes = 0;
    tierce__lock_take(&moves->lock);
    TIERCE__LIST_FOR_EACH (it, &moves->lanes) {
        const struct lane *lane = TIERCE__CONTAINER_OF(it, struct lane, node);
        if (lane->lane.reason == reason && suits(arg, &lane->lane))
            bytes += lane->bytes;
    }
    tierce__lock_drop(&moves->lock);
    return bytes;
}

bool tierce__moves_knows(struct tierce__moves *moves, uint32_t instance,
                         const struct tierce__move_block *block, int64_t now_us)
{
    tierce__lock_take(&moves->lock);
    const struct entry *entry = find_entry(moves, instance, block);
    bool is_known = entry != NULL && (entry->lane != NULL || entry->until_us > now_us);
    tierce__lock_drop(&moves->lock);
    return is_known;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static struct lane *next_lane(const struct tierce__moves *moves,
                              const struct tierce__moves_pop *pop)
{
    TIERCE__LIST_FOR_EACH (it, &moves->lanes) {
        struct lane *lane = TIERCE__CONTAINER_OF(it, struct lane, node);
        TIERCE_DASSERT(lane->count > 0);
        if (lane->rests_until_us <= pop->now_us &&
            (pop->suits == NULL || pop->suits(pop->arg, lane->lane.from)))
            return lane;
    }
    return NULL;
}

int tierce__moves_take(struct tierce__moves *moves, const struct tierce__moves_pop *pop,
                       struct tierce__arena *arena, struct tierce__moves_popped *out)
{
    int rc = 0;
    TIERCE_DASSERT(pop->blocks_max > 0);
    tierce__lock_take(&moves->lock);
    struct lane *lane = next_lane(moves, pop);
    if (lane == NULL)
        goto out;
    size_t most = lane->count < pop->blocks_max ? lane->count : pop->blocks_max;
    struct tierce__moves_popped popped = {.lane = lane->lane};
    popped.blocks = tierce__arena_alloc(arena, most * sizeof(*popped.blocks));
    popped.lane.instance_id =
        tierce__arena_copy(arena, lane->instance_id, strlen(lane->instance_id));
    if (popped.blocks == NULL || popped.lane.instance_id == NULL) {
        rc = -ENOMEM;
        goto out;
    }
    for (uint64_t bytes = 0; popped.count < most; popped.count++) {
        struct entry *entry = TIERCE__CONTAINER_OF(lane->blocks.next, struct entry, node);
        bytes += entry->block.bytes;
        if (popped.count > 0 && pop->bytes_max > 0 && bytes > pop->bytes_max)
            break;
        popped.blocks[popped.count] = entry->block;
        drop_entry(moves, entry);
    }
    tierce__list_remove(&lane->node);
    if (lane->count > 0)
        tierce__list_push_back(&moves->lanes, &lane->node);
    else
        destroy_lane(moves, lane);
    *out = popped;
    rc = 1;
out:
    tierce__lock_drop(&moves->lock);
    return rc;
}

void tierce__moves_asked(struct tierce__moves *moves, int64_t now_us)
{
    tierce__lock_take(&moves->lock);
    moves->asked_us = now_us;
    tierce__lock_drop(&moves->lock);
}

void tierce__moves_put_back(struct tierce__moves *moves, const struct tierce__moves_popped *popped,
                            int64_t until_us, const char *why)
{
    tierce__lock_take(&moves->lock);
    struct lane *lane = popped->count > 0 ? use_lane(moves, &popped->lane) : NULL;
    for (size_t i = popped->count; i-- > 0;) {
        struct entry *entry =
            lane != NULL && find_entry(moves, popped->lane.instance, &popped->blocks[i]) == NULL
                ? make_entry(&popped->lane, &popped->blocks[i])
                : NULL;
        if (entry != NULL)
            enter(moves, lane, entry, true);
    }
    if (lane != NULL && lane->count == 0)
        destroy_lane(moves, lane);
    else if (lane != NULL) {
        lane->rests_until_us = until_us;
        snprintf(lane->why, sizeof(lane->why), "%s", why);
    }
    tierce__lock_drop(&moves->lock);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static uint64_t clock_ns(int64_t now_us)
{
    return now_us > 0 ? (uint64_t)now_us * 1000 : 0;
}

/* The meter of a pair; NULL: there is no limit, or no memory for it. It stays until the end. */
static struct tierce__meter *meter_of(struct tierce__moves *moves, uint16_t from, uint16_t to,
                                      int64_t now_us)
{
    uint64_t hash = tierce__mix((uint64_t)from << 16 | to); /* it determines the pair */
    struct tierce__meter *meter = NULL;
    struct pair *pair = NULL;
    const struct tierce__limits limits = {.of = {[TIERCE__USE_BYTES] = moves->opts.rate}};
    if (moves->opts.rate == 0)
        return NULL;
    tierce__lock_take(&moves->lock);
    struct tierce__map_node *node = tierce__map_find(&moves->pairs, hash);
    if (node != NULL)
        meter = TIERCE__CONTAINER_OF(node, struct pair, by_pair)->meter;
    else
        pair = tierce__calloc(1, sizeof(*pair));
    if (pair != NULL && tierce__meter_create(&meter, "moves", &limits, clock_ns(now_us)) < 0) {
        tierce__free(pair);
        pair = NULL;
    }
    if (pair != NULL) {
        pair->meter = meter;
        tierce__map_put(&moves->pairs, &pair->by_pair, hash);
    }
    tierce__lock_drop(&moves->lock);
    return meter;
}

bool tierce__moves_may_flow(struct tierce__moves *moves, uint16_t from, uint16_t to, int64_t now_us)
{
    char why[256];
    return tierce__meter_admit(meter_of(moves, from, to, now_us), true, clock_ns(now_us), why);
}

void tierce__moves_charge(struct tierce__moves *moves, uint16_t from, uint16_t to, uint64_t bytes,
                          int64_t now_us)
{
    tierce__meter_charge(meter_of(moves, from, to, now_us), 1, bytes, clock_ns(now_us));
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Keeps a block whose move failed out of the queue for a while. The oldest one that rests is
 * forgotten if there are too many. Without memory it may come back at once. */
static void rest(struct tierce__moves *moves, const struct tierce__move_lane *lane,
                 const struct tierce__move_block *block, enum tierce__move_result result,
                 int64_t now_us)
{
    struct entry *known = find_entry(moves, lane->instance, block);
    struct lane *was_in = known != NULL ? known->lane : NULL;
    if (known != NULL)
        drop_entry(moves, known);
    if (was_in != NULL && was_in->count == 0)
        destroy_lane(moves, was_in);
    if (moves->stats.resting >= RESTING_MAX)
        drop_entry(moves, TIERCE__CONTAINER_OF(moves->resting.next, struct entry, node));
    struct entry *entry = make_entry(lane, block);
    if (entry == NULL)
        return;
    entry->until_us = now_us + (result == TIERCE__MOVE_UNVERIFIABLE ? UNVERIFIABLE_US : FAILED_US);
    entry->from = lane->from;
    entry->result = result;
    tierce__list_push_back(&moves->resting, &entry->node);
    tierce__map_put(&moves->by_block, &entry->by_block, block_hash(lane->instance, block));
    moves->stats.resting++;
}

void tierce__moves_ended(struct tierce__moves *moves, const struct tierce__move_lane *lane,
                         const struct tierce__move_block *block, enum tierce__move_result result,
                         int64_t now_us)
{
    TIERCE_ASSERT((size_t)result < TIERCE__MOVE_RESULTS);
    TIERCE_ASSERT((size_t)lane->reason < TIERCE__MOVE_REASONS);
    bool fails = result == TIERCE__MOVE_SOURCE_UNREACHABLE ||
                 result == TIERCE__MOVE_TARGET_FAILED || result == TIERCE__MOVE_UNVERIFIABLE;
    tierce__lock_take(&moves->lock);
    moves->stats.ended[result]++;
    if (result == TIERCE__MOVED) {
        moves->stats.moved[lane->reason]++;
        moves->stats.moved_bytes[lane->reason] += block->bytes;
    }
    if (fails)
        rest(moves, lane, block, result, now_us);
    tierce__lock_drop(&moves->lock);
}

/* ---- numbers --------------------------------------------------------------------------------- */

void tierce__moves_stats(struct tierce__moves *moves, struct tierce__moves_stats *out)
{
    tierce__lock_take(&moves->lock);
    *out = moves->stats;
    tierce__lock_drop(&moves->lock);
}

/* Blocks of a storage whose last move failed. */
static void say_resting(const struct tierce__moves *moves, uint16_t from, int64_t now_us,
                        char why[256])
{
    const struct entry *last = NULL;
    unsigned long long count = 0;
    TIERCE__LIST_FOR_EACH (it, &moves->resting) {
        const struct entry *entry = TIERCE__CONTAINER_OF(it, struct entry, node);
        if (entry->from != from || entry->until_us <= now_us)
            continue;
        count++;
        last = entry;
    }
    if (last != NULL)
        snprintf(
            why, 256,
            "%llu blocks could not be moved, the last one with result %s; they are tried again "
            "in %lld s at most",
            count, tierce__move_result_name(last->result),
            (long long)((last->until_us - now_us) / 1000000 + 1));
}

uint64_t tierce__moves_of(struct tierce__moves *moves, uint16_t from, int64_t now_us, char why[256])
{
    uint64_t count = 0;
    why[0] = '\0';
    tierce__lock_take(&moves->lock);
    TIERCE__LIST_FOR_EACH (it, &moves->lanes) {
        const struct lane *lane = TIERCE__CONTAINER_OF(it, struct lane, node);
        if (lane->lane.from != from)
            continue;
        count += lane->count;
        if (why[0] == '\0' && lane->rests_until_us > now_us)
            snprintf(why, 256, "%s", lane->why);
    }
    int64_t alone_s = (now_us - moves->asked_us) / 1000000;
    if (count > 0 && alone_s >= TIERCE__MOVE_LEASE_S)
        snprintf(why, 256,
                 "no mover has asked for %lld s: start tierce node "
                 "--mover.manager=fleet://HOST:PORT, with the gRPC port of a manager",
                 (long long)alone_s);
    else if (why[0] == '\0')
        say_resting(moves, from, now_us, why);
    tierce__lock_drop(&moves->lock);
    return count;
}
