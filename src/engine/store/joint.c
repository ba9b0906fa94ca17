/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/joint.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/view.h"

#define LAYERS_MAX 4096u
#define WORDS      (LAYERS_MAX / 64u)

struct tierce__joint {
    struct tierce__list node;
    struct tierce_engine *engine;
    struct tierce__key place; /* namespace and shard; the hash of the last block */
    uint64_t write, to_block;
    bool tail;
    uint32_t part_count, layer_count;
    uint64_t deadline_ns;

    /* Under JOINT. */
    struct tierce__reservation *reservation; /* NULL: nothing to store, or ended */
    uint64_t parts[WORDS], layers[WORDS];    /* a bit for each that has joined */
    uint32_t joined, ended, layers_joined;
    uint32_t busy; /* threads that do something with the reservation outside the lock */
    bool making;   /* the first has not reserved yet */
    bool given_up, expired;
};

void tierce__joints_init(struct tierce__joints *joints)
{
    tierce__lock_init(&joints->lock, TIERCE__LOCK_JOINT);
    tierce__cond_init(&joints->changed);
    tierce__list_init(&joints->list);
}

void tierce__joints_fini(struct tierce__joints *joints)
{
    while (!tierce__list_empty(&joints->list)) {
        struct tierce__joint *joint =
            TIERCE__CONTAINER_OF(joints->list.next, struct tierce__joint, node);
        TIERCE_ASSERT(joint->ended == joint->joined && joint->busy == 0);
        tierce__list_remove(&joint->node);
        if (joint->reservation != NULL)
            (void)tierce__reserve_end(joint->reservation, false);
        tierce__free(joint);
    }
    tierce__cond_fini(&joints->changed);
    tierce__lock_fini(&joints->lock);
}

/* ---- effects of a change of state ---- */

/* Drops the lock. The last user also ends the reservation and frees the joint. Returns the number
 * of published blocks. */
static int64_t drop_lock(struct tierce__joints *joints, struct tierce__joint *joint)
{
    bool idle = joint->ended == joint->joined && joint->busy == 0;
    bool all = joint->joined == joint->part_count;
    bool complete = all && !joint->given_up && joint->layers_joined == joint->layer_count;
    bool dead = idle && (all || joint->expired);
    struct tierce__reservation *over = idle && (all || joint->given_up) ? joint->reservation : NULL;
    if (over != NULL)
        joint->reservation = NULL;
    if (dead)
        tierce__list_remove(&joint->node);
    tierce__lock_drop(&joints->lock);
    int64_t blocks = over != NULL ? tierce__reserve_end(over, complete) : 0;
    if (dead)
        tierce__free(joint);
    return blocks;
}

/* Under the lock, which is dropped for a while: the joint is busy meanwhile. */
static void give_up(struct tierce__joints *joints, struct tierce__joint *joint)
{
    if (joint->given_up)
        return;
    joint->given_up = true;
    if (joint->reservation == NULL)
        return;
    joint->busy++;
    tierce__lock_drop(&joints->lock);
    tierce__reserve_give_up(joint->reservation);
    tierce__lock_take(&joints->lock);
    joint->busy--;
}

void tierce__joints_expire(struct tierce_engine *engine)
{
    struct tierce__joints *joints = &engine->joints;
    uint64_t now_ns = tierce__now_ns();
    for (;;) {
        tierce__lock_take(&joints->lock);
        struct tierce__joint *late = NULL;
        TIERCE__LIST_FOR_EACH (it, &joints->list) {
            struct tierce__joint *joint = TIERCE__CONTAINER_OF(it, struct tierce__joint, node);
            if (!joint->expired && joint->deadline_ns <= now_ns)
                late = joint;
        }
        if (late == NULL) {
            tierce__lock_drop(&joints->lock);
            return;
        }
        late->expired = true;
        give_up(joints, late);
        (void)drop_lock(joints, late);
    }
}

/* ---- joining ---- */

static struct tierce__key place_of(const struct tierce_view *view,
                                   const struct tierce__reserve_what *what)
{
    struct tierce__key place = view->key;
    memcpy(place.hash, tierce_chain_hash(what->chain, (size_t)what->to_block - 1),
           TIERCE_HASH_BYTES);
    return place;
}

static bool is_same_space(const struct tierce__key *a, const struct tierce__key *b)
{
    return a->ns == b->ns && memcmp(&a->shard, &b->shard, sizeof(a->shard)) == 0;
}

/* Under the lock. */
static struct tierce__joint *find(struct tierce__joints *joints, const struct tierce__key *place,
                                  uint64_t write)
{
    TIERCE__LIST_FOR_EACH (it, &joints->list) {
        struct tierce__joint *joint = TIERCE__CONTAINER_OF(it, struct tierce__joint, node);
        if (joint->write == write && is_same_space(&joint->place, place))
            return joint;
    }
    return NULL;
}

static bool has_bit(const uint64_t *words, uint32_t i)
{
    return (words[i / 64] & UINT64_C(1) << (i % 64)) != 0;
}

static bool take_bits(uint64_t *words, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        if (has_bit(words, i))
            return false;
    }
    for (uint32_t i = first; i < first + count; i++)
        words[i / 64] |= UINT64_C(1) << (i % 64);
    return true;
}

/* Under the lock. */
static int join(struct tierce__joint *joint, const struct tierce_part *part)
{
    if (!take_bits(joint->parts, part->index, 1))
        return TIERCE_E_ARGUMENT;
    if (!take_bits(joint->layers, part->first_layer, part->layer_count)) {
        joint->parts[part->index / 64] &= ~(UINT64_C(1) << (part->index % 64));
        return TIERCE_E_ARGUMENT;
    }
    joint->joined++;
    joint->layers_joined += part->layer_count;
    return 0;
}

/* Under the lock, which is dropped while memory is reserved. */
static int make(struct tierce__joints *joints, struct tierce__joint *joint,
                struct tierce_view *view, const struct tierce__reserve_what *what)
{
    struct tierce__reservation *reservation;
    joint->making = true;
    joint->busy++;
    tierce__lock_drop(&joints->lock);
    int rc = tierce__reserve_begin(&reservation, view, what);
    tierce__lock_take(&joints->lock);
    joint->busy--;
    joint->making = false;
    joint->reservation = reservation;
    tierce__cond_broadcast(&joints->changed);
    return rc;
}

/* A writer's stores are numbered in the order in which its parts begin them, and the numbers wrap.
 */
static bool is_earlier(uint64_t write, uint64_t than)
{
    return write >> 32 == than >> 32 && (int32_t)((uint32_t)than - (uint32_t)write) > 0;
}

/* A part that begins a store will not begin the writer's earlier ones any more: it had no
 * connection or no memory when they came. They would hold their chunks until timeout.pin. */
static void give_up_missed(struct tierce__joints *joints, const struct tierce__key *place,
                           uint32_t part, uint64_t write)
{
    for (;;) {
        tierce__lock_take(&joints->lock);
        struct tierce__joint *missed = NULL;
        TIERCE__LIST_FOR_EACH (it, &joints->list) {
            struct tierce__joint *joint = TIERCE__CONTAINER_OF(it, struct tierce__joint, node);
            if (!joint->given_up && is_earlier(joint->write, write) &&
                is_same_space(&joint->place, place) && !has_bit(joint->parts, part))
                missed = joint;
        }
        if (missed == NULL) {
            tierce__lock_drop(&joints->lock);
            return;
        }
        give_up(joints, missed);
        (void)drop_lock(joints, missed);
    }
}

static struct tierce__joint *create(struct tierce_view *view, const struct tierce_part *part,
                                    uint64_t write, const struct tierce__reserve_what *what)
{
    struct tierce__joint *joint = tierce__calloc(1, sizeof(*joint));
    if (joint == NULL)
        return NULL;
    joint->engine = view->engine;
    joint->place = place_of(view, what);
    joint->write = write;
    joint->to_block = what->to_block;
    joint->tail = what->tail;
    joint->part_count = part->count;
    joint->layer_count = view->full.geometry.layer_count;
    joint->deadline_ns = tierce__deadline_in_ms(view->engine->settings.pin_ms);
    return joint;
}

static int begin_joint(struct tierce__share *share, struct tierce_view *view,
                       const struct tierce_part *part, uint64_t write,
                       const struct tierce__reserve_what *what)
{
    struct tierce__joints *joints = &view->engine->joints;
    struct tierce__key place = place_of(view, what);
    give_up_missed(joints, &place, part->index, write);
    tierce__lock_take(&joints->lock);
    struct tierce__joint *joint = find(joints, &place, write);
    bool first = joint == NULL;
    if (first)
        joint = create(view, part, write, what);
    if (joint == NULL) {
        tierce__lock_drop(&joints->lock);
        return -ENOMEM;
    }
    bool same = tierce__key_equal(&joint->place, &place) && joint->to_block == what->to_block &&
                joint->tail == what->tail && joint->part_count == part->count;
    int rc = same ? join(joint, part) : TIERCE_E_ARGUMENT;
    if (rc < 0) {
        tierce__lock_drop(&joints->lock);
        return rc;
    }
    if (first) {
        tierce__list_push_back(&joints->list, &joint->node);
        rc = make(joints, joint, view, what);
    }
    while (joint->making)
        tierce__cond_wait(&joints->changed, &joints->lock, TIERCE__DEADLINE_NEVER);
    if (!joint->given_up && joint->reservation != NULL) {
        *share = (struct tierce__share){joint, joint->reservation};
        tierce__lock_drop(&joints->lock);
        return rc;
    }
    joint->ended++;
    (void)drop_lock(joints, joint);
    return rc;
}

int tierce__share_begin(struct tierce__share *share, struct tierce_view *view,
                        const struct tierce_part *part, uint64_t write,
                        const struct tierce__reserve_what *what)
{
    *share = (struct tierce__share){0};
    if (part->count == 1)
        return tierce__reserve_begin(&share->reservation, view, what);
    if (write == 0)
        return TIERCE_E_ARGUMENT;
    if (what->to_block == 0)
        return 0;
    return begin_joint(share, view, part, write, what);
}

void tierce__share_give_up(const struct tierce__share *share)
{
    struct tierce__joint *joint = share->joint;
    if (joint == NULL) {
        tierce__reserve_give_up(share->reservation);
        return;
    }
    struct tierce__joints *joints = &joint->engine->joints;
    tierce__lock_take(&joints->lock);
    give_up(joints, joint);
    (void)drop_lock(joints, joint);
}

int64_t tierce__share_end(struct tierce__share *share, bool complete)
{
    struct tierce__joint *joint = share->joint;
    struct tierce__reservation *reservation = share->reservation;
    *share = (struct tierce__share){0};
    if (joint == NULL)
        return tierce__reserve_end(reservation, complete);
    struct tierce__joints *joints = &joint->engine->joints;
    tierce__lock_take(&joints->lock);
    if (!complete)
        give_up(joints, joint);
    joint->ended++;
    return drop_lock(joints, joint);
}
