/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/replay.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/flat.h"

#include <errno.h>
#include <string.h>

struct tierce__replay {
    struct tierce__replay_opts opts;
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    struct tierce__flat flat;
    struct tierce__flat_watch flat_watch;
    bool *there; /* [there_room] of one request */
    uint32_t there_room;
    bool looks_up;    /* some match needs the cached blocks before the uses */
    bool counts_uses; /* MATCH_STREAM is asked for */
    uint64_t capacity_max;
    uint64_t seen; /* blocks of the recording before this request: its place in next_uses */
    struct tierce__replay_result result;
};

/* ---- a request ------------------------------------------------------------------------------- */

static void count_hits(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint8_t *internal = tierce__recorded_internal(request);
    for (size_t m = 0; m < r->opts.match_count; m++) {
        const struct tierce__match *match = &r->matches[m];
        if (match->kind == TIERCE__MATCH_STREAM)
            continue;
        uint32_t hits = tierce__match_count(match, r->there, request->read_count);
        r->result.hits[m] += hits;
        r->result.internal_hits[m] +=
            tierce__match_internal(match, r->there, internal, request->read_count, hits);
        TIERCE_DASSERT(r->result.hits[m] <= r->result.blocks);
        TIERCE_DASSERT(r->result.internal_hits[m] <= r->result.internal_blocks);
    }
}

static int make_there(struct tierce__replay *r, uint32_t count)
{
    return TIERCE__GROW(r->there, r->there_room, count, 1024);
}

static void look_up(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request), *slot_of = r->flat.slot_of;
    const uint8_t *internal = tierce__recorded_internal(request);
    TIERCE_DASSERT(request->count <= r->there_room);
    r->result.requests++;
    r->result.blocks += request->read_count;
    for (uint32_t i = 0; internal != NULL && i < request->read_count; i++)
        r->result.internal_blocks += internal[i] != 0;
    if (!r->looks_up)
        return;
    for (uint32_t i = 0; i < request->count; i++)
        r->there[i] = slot_of[blocks[i]] != TIERCE__NO_SLOT;
    count_hits(r, request);
    if (r->opts.watch != NULL)
        r->opts.watch->looked_up(r->opts.watch->arg, request, r->there);
}

static void count_uses(struct tierce__replay *r, const uint8_t *internal, uint32_t read_count,
                       uint32_t hits)
{
    uint32_t internal_hits = 0;
    for (uint32_t i = 0; internal != NULL && i < read_count; i++)
        internal_hits += r->there[i] && internal[i] != 0;
    TIERCE_DASSERT(internal_hits <= hits);
    for (size_t m = 0; m < r->opts.match_count; m++) {
        if (r->matches[m].kind == TIERCE__MATCH_STREAM) {
            r->result.hits[m] += hits;
            r->result.internal_hits[m] += internal_hits;
            TIERCE_DASSERT(r->result.hits[m] <= r->result.blocks);
        }
    }
}

/* Uses the blocks from `from` on up to `to`, and returns the hits of those that are looked up. */
static uint32_t use_part(struct tierce__replay *r, const struct tierce__recorded *request,
                         uint32_t from, uint32_t to, bool stores)
{
    TIERCE_DASSERT(from <= to);
    TIERCE_DASSERT(to <= request->count);
    const uint8_t *internal = r->counts_uses ? tierce__recorded_internal(request) : NULL;
    const uint64_t *bytes = r->opts.in_bytes ? tierce__recorded_bytes(request) : NULL;
    if (from == to)
        return 0;
    return tierce__flat_run(
        &r->flat, &(struct tierce__flat_uses){
                      .keys = tierce__recorded_blocks(request) + from,
                      .bytes = bytes != NULL ? bytes + from : NULL,
                      .there = internal != NULL ? r->there + from : NULL,
                      .count = to - from,
                      .counted = request->read_count > from ? request->read_count - from : 0,
                      .backwards = r->opts.order == TIERCE__TOUCH_REV,
                      .stores = stores,
                      .ticks = r->opts.ttl_us == 0,
                  });
}

static void use_each(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint8_t *internal = r->counts_uses ? tierce__recorded_internal(request) : NULL;
    uint32_t hits = 0, stored = request->stored, count = request->count;
    if (r->opts.order == TIERCE__TOUCH_REV)
        hits = use_part(r, request, stored, count, false) + use_part(r, request, 0, stored, true);
    else
        hits = use_part(r, request, 0, stored, true) + use_part(r, request, stored, count, false);
    if (r->counts_uses)
        count_uses(r, internal, request->read_count, hits);
}

/* `count` uses come at one time. */
static void begin_uses(struct tierce__replay *r, const struct tierce__recorded *request,
                       uint32_t count)
{
    if (r->flat.policy == NULL || request->count == 0)
        return;
    r->flat.origin = (struct tierce__policy_origin){
        .output_tokens = request->output_tokens, .ends = true, .hint = request->hint};
    r->flat.last = tierce__recorded_blocks(request)[request->count - 1];
    if (count > 0)
        tierce__policy_begin(r->flat.policy,
                             &(struct tierce__policy_request){.count = count,
                                                              .last_key = r->flat.last,
                                                              .origin = r->flat.origin});
}

/* With knowledge of the future, a use has the hint of its block and not of its request, so that it
 * is a request of its own. */
static void foresee_use(struct tierce__replay *r, uint32_t at, bool touches)
{
    if (r->opts.next_uses == NULL)
        return;
    bool returns = r->opts.next_uses[r->seen + at] != UINT32_MAX;
    r->flat.origin.hint = returns ? TIERCE__HINT_OPEN : TIERCE__HINT_CLOSED;
    if (touches)
        tierce__policy_begin(r->flat.policy,
                             &(struct tierce__policy_request){
                                 .count = 1, .last_key = r->flat.last, .origin = r->flat.origin});
}

static void hold(struct tierce__replay *r, const struct tierce__recorded *request, bool held)
{
    const uint32_t *blocks = tierce__recorded_blocks(request), *slot_of = r->flat.slot_of;
    struct tierce__policy *policy = r->flat.policy;
    for (uint32_t i = 0; policy != NULL && i < request->count; i++) {
        if (slot_of[blocks[i]] != TIERCE__NO_SLOT)
            policy->ops->set_evictable(policy, slot_of[blocks[i]], !held);
    }
}

/* The stored blocks from `from` on, which follow one that did not fit. */
static void skip_rest(struct tierce__replay *r, const struct tierce__recorded *request,
                      uint32_t from)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    for (uint32_t i = from; i < request->stored; i++) {
        foresee_use(r, i, false);
        if (r->flat.slot_of[blocks[i]] == TIERCE__NO_SLOT)
            tierce__flat_skip(&r->flat, blocks[i]);
    }
}

/* The cached blocks are used at one time, and each stored one alone, as in a tier. */
static uint32_t count_there(const struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    uint32_t count = 0;
    for (uint32_t i = 0; i < request->count; i++)
        count += r->flat.slot_of[blocks[i]] != TIERCE__NO_SLOT;
    return count;
}

static void use_whole(struct tierce__replay *r, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request), *slot_of = r->flat.slot_of;
    const uint64_t *bytes = r->opts.in_bytes ? tierce__recorded_bytes(request) : NULL;
    struct tierce__policy *policy = r->flat.policy;
    const struct tierce__policy_ops *ops = policy != NULL ? policy->ops : NULL;
    uint32_t parent = TIERCE__NO_SLOT;
    r->flat.now += r->opts.ttl_us == 0;
    begin_uses(r, request, r->opts.next_uses == NULL ? count_there(r, request) : 0);
    for (uint32_t i = request->count; policy != NULL && i-- > 0;) {
        if (slot_of[blocks[i]] == TIERCE__NO_SLOT)
            continue;
        foresee_use(r, i, true);
        ops->touch(policy, slot_of[blocks[i]], r->flat.now);
    }
    hold(r, request, true);
    for (uint32_t i = 0; i < request->stored; i++) {
        bool there = slot_of[blocks[i]] != TIERCE__NO_SLOT;
        foresee_use(r, i, false);
        if (!there &&
            !tierce__flat_store(&r->flat, ops, blocks[i], bytes != NULL ? bytes[i] : 1, parent)) {
            skip_rest(r, request, i + 1);
            break;
        }
        parent = slot_of[blocks[i]];
        if (!there && policy != NULL)
            ops->set_evictable(policy, parent, false);
    }
    /* Restores the order after all blocks are stored; policies that count uses do not count
     * this. */
    for (uint32_t i = request->count; policy != NULL && !ops->counts_uses && i-- > 0;) {
        if (slot_of[blocks[i]] != TIERCE__NO_SLOT)
            ops->touch(policy, slot_of[blocks[i]], r->flat.now);
    }
    hold(r, request, false);
}

static void fill_result(struct tierce__replay *r)
{
    r->result.stored = r->flat.stored;
    r->result.refused = r->flat.refused;
    r->result.evicted = r->flat.evicted;
    r->result.expired = r->flat.expired;
    r->result.used = r->flat.used;
    r->result.used_max = r->flat.used_max;
    TIERCE_ASSERT(r->result.used <= r->result.used_max);
    TIERCE_DASSERT(r->opts.policy == NULL || r->result.used <= r->opts.capacity);
    if (r->result.has_hand)
        r->result.wraps = r->flat.policy->ops->wraps(r->flat.policy);
}

int tierce__replay_request(struct tierce__replay *replay, const struct tierce__recorded *request)
{
    TIERCE_DASSERT(request->read_count <= request->count && request->stored <= request->count);
    int rc = make_there(replay, request->count);
    if (rc < 0)
        return rc;
    if (replay->opts.ttl_us > 0) {
        replay->flat.now = request->time_us > 0 ? (uint64_t)request->time_us : 0;
        tierce__flat_expire(&replay->flat);
    }
    look_up(replay, request);
    if (replay->opts.whole) {
        use_whole(replay, request);
    } else {
        begin_uses(replay, request, request->count);
        use_each(replay, request);
    }
    replay->seen += request->count;
    fill_result(replay);
    return 0;
}

void tierce__replay_resize(struct tierce__replay *replay, uint64_t capacity)
{
    TIERCE_ASSERT(capacity > 0 && replay->flat.policy != NULL);
    TIERCE_ASSERT(capacity <= replay->capacity_max);
    replay->opts.capacity = capacity;
    replay->flat.capacity = capacity;
    (void)tierce__flat_make_room(&replay->flat, replay->flat.policy->ops, 0);
    fill_result(replay);
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

int tierce__replay_create(struct tierce__replay **out, const struct tierce__replay_opts *opts)
{
    if (!are_good(opts))
        return TIERCE_E_ARGUMENT;
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__replay *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->opts = *opts;
    r->capacity_max = opts->capacity;
    memcpy(r->matches, opts->matches, opts->match_count * sizeof(opts->matches[0]));
    r->opts.matches = r->matches;
    r->looks_up = opts->watch != NULL;
    for (size_t m = 0; m < opts->match_count; m++) {
        bool at_use = r->matches[m].kind == TIERCE__MATCH_STREAM;
        r->counts_uses = r->counts_uses || at_use;
        r->looks_up = r->looks_up || !at_use;
    }
    int rc = tierce__flat_init(&r->flat, &(struct tierce__flat_opts){
                                             .policy = opts->policy,
                                             .key_count = opts->distinct > 0 ? opts->distinct : 1,
                                             .capacity = opts->capacity,
                                             .in_bytes = opts->in_bytes,
                                             .seed = opts->seed,
                                             .ttl = opts->ttl_us,
                                             .samples = opts->samples,
                                         });
    if (rc < 0) {
        tierce__replay_destroy(r);
        return rc;
    }
    if (opts->watch != NULL) {
        r->flat_watch = (struct tierce__flat_watch){
            .stored = opts->watch->stored, .left = opts->watch->left, .arg = opts->watch->arg};
        r->flat.watch = &r->flat_watch;
    }
    r->result.has_hand = r->flat.policy != NULL && r->flat.policy->ops->wraps != NULL;
    *out = r;
    return 0;
}

void tierce__replay_destroy(struct tierce__replay *replay)
{
    if (replay == NULL)
        return;
    tierce__flat_fini(&replay->flat);
    tierce__free(replay->there);
    tierce__free(replay);
}

const struct tierce__replay_result *tierce__replay_result(const struct tierce__replay *replay)
{
    return &replay->result;
}
