/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

#define AHEAD 8u /* blocks whose slots are fetched before they are asked for */
#define NEAR  4u /* uses before which the policy is told the second time */

struct tierce__replay {
    struct tierce__replay_opts opts;
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    struct tierce__policy *policy; /* NULL: everything is kept */
    uint32_t *slot_of;             /* [distinct] of a block; NO_SLOT */
    uint32_t
        *block_in; /* [slots] of a slot that is taken; of one that is free, the next free one */
    uint64_t *bytes_in; /* [slots], only if capacity is in bytes */
    uint32_t slots;
    uint32_t fresh;     /* slots from here on were never taken */
    uint32_t free_slot; /* a list through block_in; NO_SLOT */
    bool *there;        /* [there_room] of one lookup */
    uint32_t there_room;
    uint64_t now; /* of the policy: uses, or microseconds if there is a time to live */
    struct tierce__replay_result result;
};

/* ---- what is in ------------------------------------------------------------------------------ */

static void let_go(struct tierce__replay *r, uint32_t slot)
{
    if (r->opts.watch != NULL)
        r->opts.watch->left(r->opts.watch->arg, r->block_in[slot]);
    r->policy->ops->remove(r->policy, slot, true);
    r->slot_of[r->block_in[slot]] = TIERCE__NO_SLOT;
    r->block_in[slot] = r->free_slot;
    r->free_slot = slot;
    r->result.used -= r->bytes_in != NULL ? r->bytes_in[slot] : 1;
}

static void let_expire(struct tierce__replay *r)
{
    uint32_t slot;
    while (r->policy != NULL && tierce__policy_expired(r->policy, r->now, &slot)) {
        let_go(r, slot);
        r->result.expired++;
    }
}

/* Evicts until `bytes` fit. False: nothing more can leave. */
static bool make_room(struct tierce__replay *r, uint64_t bytes)
{
    uint32_t slot;
    while (r->result.used + bytes > r->opts.capacity) {
        if (!r->policy->ops->victim(r->policy, r->now, &slot))
            return false;
        let_go(r, slot);
        r->result.evicted++;
    }
    return true;
}

static uint32_t take_slot(struct tierce__replay *r)
{
    uint32_t slot = r->free_slot;
    if (slot == TIERCE__NO_SLOT)
        return r->fresh++;
    r->free_slot = r->block_in[slot];
    return slot;
}

/* Stores a block that is not there. False: there is no room for it. */
static bool store(struct tierce__replay *r, uint32_t block, uint64_t bytes, uint32_t parent)
{
    struct tierce__policy_entry entry = {
        .key = block, .bytes = bytes, .now = r->now, .parent = parent};
    if (r->policy != NULL) {
        tierce__policy_expect(r->policy, &entry);
        if (bytes > r->opts.capacity || !make_room(r, bytes)) {
            r->result.refused++;
            return false;
        }
    }
    uint32_t slot = take_slot(r);
    TIERCE_ASSERT(slot < r->slots);
    r->slot_of[block] = slot;
    r->block_in[slot] = block;
    if (r->bytes_in != NULL)
        r->bytes_in[slot] = bytes;
    if (r->policy != NULL)
        r->policy->ops->insert(r->policy, slot, &entry);
    if (r->opts.watch != NULL)
        r->opts.watch->stored(r->opts.watch->arg, block);
    r->result.stored++;
    r->result.used += bytes;
    r->result.used_max = r->result.used > r->result.used_max ? r->result.used : r->result.used_max;
    return true;
}

static uint64_t size_of(const struct tierce__replay *r, const uint64_t *bytes, uint32_t i)
{
    return r->opts.in_bytes && bytes != NULL ? bytes[i] : 1;
}

/* ---- a request ------------------------------------------------------------------------------- */

static void count_hits(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint8_t *internal = tierce__recorded_internal(request);
    for (size_t m = 0; m < r->opts.match_count; m++) {
        const struct tierce__match *match = &r->matches[m];
        if (match->kind == TIERCE__MATCH_STREAM)
            continue;
        uint32_t hits = tierce__match_count(match, r->there, request->read_count);
        uint32_t end = match->kind == TIERCE__MATCH_ANY ? request->read_count : hits;
        r->result.hits[m] += hits;
        for (uint32_t i = 0; internal != NULL && i < end; i++)
            r->result.internal_hits[m] +=
                internal[i] != 0 && (match->kind != TIERCE__MATCH_ANY || r->there[i]);
    }
}

static int look_up(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    const uint8_t *internal = tierce__recorded_internal(request);
    if (request->count > r->there_room) {
        bool *there = tierce__realloc(r->there, request->count);
        if (there == NULL)
            return -ENOMEM;
        r->there = there;
        r->there_room = request->count;
    }
    for (uint32_t i = 0; i < request->count; i++) {
        if (i + AHEAD < request->count)
            __builtin_prefetch(r->slot_of + blocks[i + AHEAD]);
        r->there[i] = r->slot_of[blocks[i]] != TIERCE__NO_SLOT;
        if (r->policy != NULL)
            tierce__policy_prefetch(r->policy, blocks[i], r->slot_of[blocks[i]], false);
    }
    r->result.requests++;
    r->result.blocks += request->read_count;
    for (uint32_t i = 0; internal != NULL && i < request->read_count; i++)
        r->result.internal_blocks += internal[i] != 0;
    count_hits(r, request);
    if (r->opts.watch != NULL)
        r->opts.watch->looked_up(r->opts.watch->arg, request, r->there);
    return 0;
}

static void count_stream(struct tierce__replay *r, const struct tierce__recorded *request,
                         uint32_t at)
{
    const uint8_t *internal = tierce__recorded_internal(request);
    for (size_t m = 0; m < r->opts.match_count; m++) {
        if (r->matches[m].kind == TIERCE__MATCH_STREAM && at < request->read_count) {
            r->result.hits[m]++;
            r->result.internal_hits[m] += internal != NULL && internal[at] != 0;
        }
    }
}

/* Which block is used as the n-th. */
static uint32_t nth(const struct tierce__replay *r, const struct tierce__recorded *request,
                    uint32_t n)
{
    return r->opts.order == TIERCE__TOUCH_REV ? request->count - 1 - n : n;
}

static void use_each(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    const uint64_t *bytes = tierce__recorded_bytes(request);
    for (uint32_t n = 0; n < request->count; n++) {
        if (n + NEAR < request->count && r->policy != NULL) {
            uint32_t soon = blocks[nth(r, request, n + NEAR)];
            tierce__policy_prefetch(r->policy, soon, r->slot_of[soon], true);
        }
        uint32_t at = nth(r, request, n), slot = r->slot_of[blocks[at]];
        r->now += r->opts.ttl_us == 0;
        if (slot == TIERCE__NO_SLOT) {
            if (request->kind != TIERCE__TRACE_READ)
                store(r, blocks[at], size_of(r, bytes, at), TIERCE__NO_SLOT);
            continue;
        }
        if (r->policy != NULL)
            r->policy->ops->touch(r->policy, slot, r->now);
        count_stream(r, request, at);
    }
}

static void hold(struct tierce__replay *r, const struct tierce__recorded *request, uint32_t end,
                 bool held)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    for (uint32_t i = 0; r->policy != NULL && i < end; i++) {
        if (r->slot_of[blocks[i]] != TIERCE__NO_SLOT)
            r->policy->ops->set_evictable(r->policy, r->slot_of[blocks[i]], !held);
    }
}

static void use_whole(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    const uint64_t *bytes = tierce__recorded_bytes(request);
    uint32_t parent = TIERCE__NO_SLOT;
    r->now += r->opts.ttl_us == 0;
    for (uint32_t i = request->count; r->policy != NULL && i-- > 0;) {
        if (r->slot_of[blocks[i]] != TIERCE__NO_SLOT)
            r->policy->ops->touch(r->policy, r->slot_of[blocks[i]], r->now);
    }
    hold(r, request, request->count, true);
    for (uint32_t i = 0; i < request->count && request->kind != TIERCE__TRACE_READ; i++) {
        bool there = r->slot_of[blocks[i]] != TIERCE__NO_SLOT;
        if (!there && !store(r, blocks[i], size_of(r, bytes, i), parent))
            break;
        parent = r->slot_of[blocks[i]];
        if (!there && r->policy != NULL)
            r->policy->ops->set_evictable(r->policy, parent, false);
    }
    hold(r, request, request->count, false);
}

int tierce__replay_request(struct tierce__replay *replay, const struct tierce__recorded *request)
{
    if (replay->opts.ttl_us > 0) {
        replay->now = request->time_us > 0 ? (uint64_t)request->time_us : 0;
        let_expire(replay);
    }
    int rc = look_up(replay, request);
    if (rc < 0)
        return rc;
    if (replay->opts.whole)
        use_whole(replay, request);
    else
        use_each(replay, request);
    if (replay->result.has_hand)
        replay->result.wraps = replay->policy->ops->wraps(replay->policy);
    return 0;
}

/* ---- create, destroy, read ------------------------------------------------------------------- */

static bool are_good(const struct tierce__replay_opts *opts)
{
    if (opts->capacity == 0 || opts->match_count == 0 ||
        opts->match_count > TIERCE__REPLAY_MATCHES_MAX || opts->distinct > TIERCE__POLICY_SLOTS_MAX)
        return false;
    for (size_t m = 0; m < opts->match_count; m++) {
        if (opts->whole && opts->matches[m].kind == TIERCE__MATCH_STREAM)
            return false;
    }
    return true;
}

static int create_policy(struct tierce__replay *r)
{
    if (r->opts.policy == NULL)
        return 0;
    return r->opts.policy->create(&r->policy, &(struct tierce__policy_opts){
                                                  .size = sizeof(struct tierce__policy_opts),
                                                  .slot_count = r->slots,
                                                  .capacity = r->opts.capacity,
                                                  .seed = r->opts.seed,
                                                  .ttl = r->opts.ttl_us,
                                                  .samples = r->opts.samples,
                                              });
}

int tierce__replay_create(struct tierce__replay **out, const struct tierce__replay_opts *opts)
{
    if (!are_good(opts))
        return TIERCE_E_ARGUMENT;
    struct tierce__replay *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->opts = *opts;
    memcpy(r->matches, opts->matches, opts->match_count * sizeof(opts->matches[0]));
    r->opts.matches = r->matches;
    r->free_slot = TIERCE__NO_SLOT;
    r->slots = opts->distinct > 0 ? opts->distinct : 1;
    if (!opts->in_bytes && opts->policy != NULL && opts->capacity < r->slots)
        r->slots = (uint32_t)opts->capacity;
    r->slot_of = tierce__alloc(((size_t)opts->distinct + 1) * sizeof(*r->slot_of));
    r->block_in = tierce__alloc((size_t)r->slots * sizeof(*r->block_in));
    if (opts->in_bytes)
        r->bytes_in = tierce__alloc((size_t)r->slots * sizeof(*r->bytes_in));
    int rc = r->slot_of == NULL || r->block_in == NULL || (opts->in_bytes && r->bytes_in == NULL)
                 ? -ENOMEM
                 : create_policy(r);
    if (rc < 0) {
        tierce__replay_destroy(r);
        return rc;
    }
    memset(r->slot_of, 0xff, (size_t)opts->distinct * sizeof(*r->slot_of));
    r->result.has_hand = r->policy != NULL && r->policy->ops->wraps != NULL;
    *out = r;
    return 0;
}

void tierce__replay_destroy(struct tierce__replay *replay)
{
    if (replay == NULL)
        return;
    if (replay->policy != NULL)
        replay->policy->ops->destroy(replay->policy);
    tierce__free(replay->slot_of);
    tierce__free(replay->block_in);
    tierce__free(replay->bytes_in);
    tierce__free(replay->there);
    tierce__free(replay);
}

const struct tierce__replay_result *tierce__replay_result(const struct tierce__replay *replay)
{
    return &replay->result;
}
