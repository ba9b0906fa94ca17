/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/kvcm/kvcm.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

#define BATCH_DEFAULT 100u

struct tierce__kvcm {
    const struct tierce__kvcm_layout *layout;
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    size_t match_count;
    struct tierce__kvcm_tree tree;
    struct tierce__kvcm_policy *policies; /* [instances] */
    uint64_t *used;                       /* [groups] blocks */
    uint32_t *path;                       /* [room] of one request */
    bool *there;                          /* [room] */
    uint32_t room;
    struct tierce__replay_result result;
};

/* ---- layouts --------------------------------------------------------------------------------- */

int tierce__kvcm_layout_create(struct tierce__kvcm_layout *out, uint32_t instance_count,
                               uint32_t group_count)
{
    struct tierce__kvcm_layout layout = {.instance_count = instance_count,
                                         .group_count = group_count};
    layout.instances = tierce__calloc(instance_count, sizeof(*layout.instances));
    layout.members = tierce__calloc(instance_count, sizeof(*layout.members));
    layout.groups = tierce__calloc(group_count, sizeof(*layout.groups));
    if (layout.instances == NULL || layout.members == NULL || layout.groups == NULL) {
        tierce__kvcm_layout_clear(&layout);
        return -ENOMEM;
    }
    *out = layout;
    return 0;
}

static bool is_good_tuning(const struct tierce__kvcm_tuning *tuning)
{
    return tuning->mode <= TIERCE__KVCM_INSTANCE_PRECISE && tuning->batch <= INT32_MAX &&
           tuning->used_share >= 0 && tuning->used_share <= 1 && tuning->sample_rate >= 0;
}

int tierce__kvcm_layout_single(struct tierce__kvcm_layout *out, uint32_t instance_count,
                               enum tierce__kvcm_kind kind, uint64_t capacity,
                               const struct tierce__kvcm_tuning *tuning)
{
    struct tierce__kvcm_layout layout;
    if (!is_good_tuning(tuning))
        return TIERCE_E_ARGUMENT;
    int rc = tierce__kvcm_layout_create(&layout, instance_count, 1);
    if (rc < 0)
        return rc;
    layout.mode = tuning->mode != 0 ? tuning->mode : TIERCE__KVCM_INSTANCE_PRECISE;
    layout.batch = tuning->batch != 0 ? tuning->batch : BATCH_DEFAULT;
    layout.groups[0] = (struct tierce__kvcm_group){
        .quota = tierce__kvcm_quota(capacity, tuning->used_share != 0 ? tuning->used_share : 1),
        .member_count = instance_count};
    for (uint32_t i = 0; i < instance_count; i++) {
        layout.instances[i] =
            (struct tierce__kvcm_instance){.kind = kind, .sample_rate = tuning->sample_rate};
        layout.members[i] = i;
    }
    *out = layout;
    return 0;
}

void tierce__kvcm_layout_clear(struct tierce__kvcm_layout *layout)
{
    tierce__free(layout->instances);
    tierce__free(layout->members);
    tierce__free(layout->groups);
    *layout = (struct tierce__kvcm_layout){0};
}

uint64_t tierce__kvcm_quota(uint64_t capacity, double used_share)
{
    double quota = (double)capacity * used_share;
    return capacity == UINT64_MAX || quota >= (double)UINT64_MAX ? UINT64_MAX : (uint64_t)quota;
}

/* ---- evicting -------------------------------------------------------------------------------- */

/* Up to `count` blocks of an instance. Returns how many, or an error. */
static int64_t evict_from(struct tierce__kvcm *k, uint32_t instance, uint64_t count)
{
    uint32_t batch = k->layout->batch;
    int64_t evicted =
        tierce__kvcm_policy_evict(&k->policies[instance], count < batch ? (uint32_t)count : batch);
    if (evicted > 0) {
        TIERCE_ASSERT(k->used[k->layout->instances[instance].group] >= (uint64_t)evicted);
        TIERCE_ASSERT(k->result.used >= (uint64_t)evicted);
        k->used[k->layout->instances[instance].group] -= (uint64_t)evicted;
        k->result.used -= (uint64_t)evicted;
        k->result.evicted += (uint64_t)evicted;
    }
    return evicted;
}

static int64_t evict_round(struct tierce__kvcm *k, const struct tierce__kvcm_group *group)
{
    int64_t evicted = 0;
    for (uint32_t i = 0; i < group->member_count; i++) {
        int64_t n = evict_from(k, k->layout->members[group->first_member + i], UINT64_MAX);
        if (n < 0)
            return n;
        evicted += n;
    }
    return evicted;
}

/* After a write to the instance. */
static int trim(struct tierce__kvcm *k, uint32_t instance)
{
    uint32_t at = k->layout->instances[instance].group;
    const struct tierce__kvcm_group *group = &k->layout->groups[at];
    TIERCE_ASSERT(at < k->layout->group_count);
    bool precise = k->layout->mode == TIERCE__KVCM_INSTANCE_PRECISE;
    while (k->used[at] > group->quota) {
        uint64_t excess = k->used[at] - group->quota;
        int64_t evicted = k->layout->mode == TIERCE__KVCM_GROUP_ROUGH
                              ? evict_round(k, group)
                              : evict_from(k, instance, precise ? excess : UINT64_MAX);
        if (evicted < 0)
            return (int)evicted;
        if (evicted == 0)
            break;
    }
    tierce__kvcm_tree_clean(&k->tree);
    return 0;
}

/* ---- a request ------------------------------------------------------------------------------- */

static int reserve(struct tierce__kvcm *k, uint32_t count)
{
    uint32_t path_room = k->room; /* of both arrays, once both have grown */
    int rc = TIERCE__GROW(k->path, path_room, count, 1024);
    return rc < 0 ? rc : TIERCE__GROW(k->there, k->room, count, 1024);
}

static uint32_t count_set(const uint8_t *flags, uint32_t count)
{
    uint32_t set = 0;
    for (uint32_t i = 0; flags != NULL && i < count; i++)
        set += flags[i] != 0;
    return set;
}

/* Matches other than KVCM's own, over the looked-up blocks. */
static uint32_t count_match(const struct tierce__kvcm *k, const struct tierce__match *match,
                            const struct tierce__recorded *request, const uint8_t *internal,
                            uint32_t *internal_hits)
{
    uint32_t hits = tierce__match_count(match, k->there, request->read_count);
    *internal_hits = tierce__match_internal(match, k->there, internal, request->read_count, hits);
    return hits;
}

/* The lookup of a request with `found` blocks in the tree: counts and touches. */
static void look_up(struct tierce__kvcm *k, const struct tierce__recorded *request, uint32_t found,
                    struct tierce__kvcm_read *read)
{
    struct tierce__kvcm_policy *policy = &k->policies[request->instance];
    bool is_turn = request->kind == TIERCE__TRACE_TURN;
    const uint8_t *internal = tierce__recorded_internal(request);
    uint32_t hits = 0, end = is_turn ? request->count : request->read_count;
    TIERCE_DASSERT(found <= request->count && request->count <= k->room);
    for (uint32_t i = 0; i < request->count; i++)
        k->there[i] = i < found && tierce__kvcm_is_cached(&k->tree, k->path[i]);
    while (hits < end && k->there[hits])
        tierce__kvcm_policy_touch(policy, k->path[hits++], request->time_us);
    read->is_read = true;
    read->internal_blocks = count_set(internal, request->read_count);
    read->external_blocks = request->read_count - read->internal_blocks;
    read->internal_hits = count_set(internal, hits);
    TIERCE_DASSERT(read->internal_hits <= hits);
    read->external_hits = hits - read->internal_hits;
    k->result.blocks += request->read_count;
    k->result.internal_blocks += read->internal_blocks;
    for (size_t m = 0; m < k->match_count; m++) {
        uint32_t internal_hits = read->internal_hits, all = hits;
        if (k->matches[m].kind != TIERCE__MATCH_PREFIX)
            all = count_match(k, &k->matches[m], request, internal, &internal_hits);
        k->result.hits[m] += all;
        k->result.internal_hits[m] += internal_hits;
    }
}

static int store(struct tierce__kvcm *k, const struct tierce__recorded *request, uint32_t found)
{
    struct tierce__kvcm_policy *policy = &k->policies[request->instance];
    /* KVCM ignores which blocks of a write failed. */
    uint32_t count = request->kind == TIERCE__TRACE_WRITE ? request->count : request->stored;
    uint64_t stored = 0;
    int rc = 0;
    found = found < count ? found : count;
    TIERCE_ASSERT(count <= request->count);
    /* Holes first: whether their node is a leaf is decided before the chain grows. */
    for (uint32_t i = 0; rc == 0 && i < found; i++) {
        if (tierce__kvcm_is_cached(&k->tree, k->path[i]))
            continue;
        rc = tierce__kvcm_policy_store(policy, k->path[i], request->time_us);
        stored++;
    }
    if (rc == 0)
        rc = tierce__kvcm_tree_extend(&k->tree, request->instance, tierce__recorded_blocks(request),
                                      count, found, k->path);
    for (uint32_t i = found; rc == 0 && i < count; i++, stored++)
        rc = tierce__kvcm_policy_store(policy, k->path[i], request->time_us);
    k->used[k->layout->instances[request->instance].group] += stored;
    k->result.stored += stored;
    k->result.used += stored;
    k->result.used_max = k->result.used > k->result.used_max ? k->result.used : k->result.used_max;
    return rc;
}

int tierce__kvcm_request(struct tierce__kvcm *kvcm, const struct tierce__recorded *request,
                         struct tierce__kvcm_read *read)
{
    TIERCE_ASSERT(request->instance < kvcm->layout->instance_count);
    *read = (struct tierce__kvcm_read){0};
    if (request->kind != TIERCE__TRACE_WRITE && request->query != TIERCE__QUERY_PREFIX)
        return 0;
    int rc = reserve(kvcm, request->count);
    if (rc < 0)
        return rc;
    uint32_t found =
        tierce__kvcm_tree_walk(&kvcm->tree, request->instance, tierce__recorded_blocks(request),
                               request->count, kvcm->path);
    kvcm->result.requests++;
    if (request->kind != TIERCE__TRACE_WRITE)
        look_up(kvcm, request, found, read);
    if (request->kind == TIERCE__TRACE_READ)
        return 0;
    rc = store(kvcm, request, found);
    return rc == 0 ? trim(kvcm, request->instance) : rc;
}

/* ---- create, destroy, read ------------------------------------------------------------------- */

int tierce__kvcm_create(struct tierce__kvcm **out, const struct tierce__kvcm_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    const struct tierce__kvcm_layout *layout = opts->layout;
    if (opts->match_count == 0 || opts->match_count > TIERCE__REPLAY_MATCHES_MAX)
        return TIERCE_E_ARGUMENT;
    for (size_t m = 0; m < opts->match_count; m++) {
        if (opts->matches[m].kind == TIERCE__MATCH_STREAM)
            return TIERCE_E_ARGUMENT;
    }
    struct tierce__kvcm *k = tierce__calloc(1, sizeof(*k));
    if (k == NULL)
        return -ENOMEM;
    k->layout = layout;
    k->match_count = opts->match_count;
    memcpy(k->matches, opts->matches, opts->match_count * sizeof(k->matches[0]));
    k->policies = tierce__calloc(layout->instance_count, sizeof(*k->policies));
    k->used = tierce__calloc(layout->group_count, sizeof(*k->used));
    int rc = k->policies == NULL || k->used == NULL
                 ? -ENOMEM
                 : tierce__kvcm_tree_init(&k->tree, layout->instance_count, opts->distinct);
    if (rc < 0) {
        tierce__kvcm_destroy(k);
        return rc;
    }
    for (uint32_t i = 0; i < layout->instance_count; i++)
        tierce__kvcm_policy_init(&k->policies[i], layout->instances[i].kind, &k->tree, i,
                                 layout->batch, layout->instances[i].sample_rate);
    *out = k;
    return 0;
}

void tierce__kvcm_destroy(struct tierce__kvcm *kvcm)
{
    if (kvcm == NULL)
        return;
    for (uint32_t i = 0; kvcm->policies != NULL && i < kvcm->layout->instance_count; i++)
        tierce__kvcm_policy_fini(&kvcm->policies[i]);
    tierce__kvcm_tree_fini(&kvcm->tree);
    tierce__free(kvcm->policies);
    tierce__free(kvcm->used);
    tierce__free(kvcm->path);
    tierce__free(kvcm->there);
    tierce__free(kvcm);
}

const struct tierce__replay_result *tierce__kvcm_result(const struct tierce__kvcm *kvcm)
{
    return &kvcm->result;
}

uint32_t tierce__kvcm_held(const struct tierce__kvcm *kvcm, uint32_t instance)
{
    TIERCE_ASSERT(instance < kvcm->layout->instance_count);
    return kvcm->policies[instance].held_count;
}
