/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/kvcm/kvcm.h"
#include "test_random.h"

#include <stdio.h>
#include <string.h>

/*
 * KVCM's caches against models that scan everything each time: lists as arrays, a tree whose nodes
 * list their blocks, and no incremental counts.
 */

enum {
    BLOCKS = 40,
    LENGTH_MAX = 8,
    REQUESTS = 300,
    INSTANCES = 2,
    NODES_MAX = 2048,
    RUN_MAX = 64,
    HELD_MAX = 512,
};

static const struct tierce__match matches[] = {{TIERCE__MATCH_PREFIX, 0}, {TIERCE__MATCH_ANY, 0}};

struct model_block {
    uint32_t key;
    int64_t time;
    bool cached, listed;
};

struct model_node {
    struct model_block run[RUN_MAX];
    uint32_t length;
    int parent; /* -1: a root; -2: not in use */
};

struct place {
    int node;
    uint32_t at;
};

struct model {
    enum tierce__kvcm_kind kind;
    enum tierce__kvcm_mode mode;
    uint32_t batch, quota;
    struct model_node nodes[NODES_MAX];
    bool evicted_of[NODES_MAX];
    struct place list[INSTANCES][HELD_MAX]; /* from the oldest; leaf_aware_lru: those listed */
    uint32_t listed[INSTANCES];
    uint64_t hits, any;
};

static struct model_block *at(struct model *m, struct place p)
{
    return &m->nodes[p.node].run[p.at];
}

static bool has_cached(const struct model_node *node)
{
    for (uint32_t i = 0; i < node->length; i++) {
        if (node->run[i].cached)
            return true;
    }
    return false;
}

static bool is_leaf(const struct model *m, int node)
{
    for (int i = 0; i < NODES_MAX; i++) {
        if (m->nodes[i].parent == node)
            return false;
    }
    return true;
}

static bool is_data_leaf(const struct model *m, int node)
{
    for (int i = 0; i < NODES_MAX; i++) {
        if (m->nodes[i].parent == node && has_cached(&m->nodes[i]))
            return false;
    }
    return true;
}

static int new_node(struct model *m, int parent)
{
    int i = INSTANCES;
    while (m->nodes[i].parent != -2)
        ck_assert_int_lt(++i, NODES_MAX);
    m->nodes[i].parent = parent;
    m->nodes[i].length = 0;
    return i;
}

static void list_insert(struct model *m, int instance, uint32_t index, struct place p)
{
    ck_assert_uint_lt(m->listed[instance], HELD_MAX);
    memmove(&m->list[instance][index + 1], &m->list[instance][index],
            (m->listed[instance] - index) * sizeof(p));
    m->list[instance][index] = p;
    m->listed[instance]++;
    at(m, p)->listed = true;
}

static void list_remove(struct model *m, int instance, struct place p)
{
    uint32_t i = 0;
    while (m->list[instance][i].node != p.node || m->list[instance][i].at != p.at)
        ck_assert_uint_lt(++i, m->listed[instance]);
    m->listed[instance]--;
    memmove(&m->list[instance][i], &m->list[instance][i + 1],
            (m->listed[instance] - i) * sizeof(p));
    at(m, p)->listed = false;
}

static uint32_t used(const struct model *m, int instance)
{
    uint32_t n = 0;
    for (int i = INSTANCES; i < NODES_MAX; i++) {
        int root = m->nodes[i].parent == -2 ? -2 : i;
        while (root >= INSTANCES)
            root = m->nodes[root].parent;
        for (uint32_t b = 0; root == instance && b < m->nodes[i].length; b++)
            n += m->nodes[i].run[b].cached;
    }
    return n;
}

static void model_store(struct model *m, int instance, struct place p, int64_t time)
{
    at(m, p)->time = time;
    at(m, p)->cached = true;
    if (m->kind == TIERCE__KVCM_LRU || is_leaf(m, p.node))
        list_insert(m, instance, m->listed[instance], p);
}

static void come_back(struct model *m, int instance, int node)
{
    struct place *list = m->list[instance];
    for (uint32_t b = 0; b < m->nodes[node].length; b++) {
        struct place p = {node, b};
        int64_t time = at(m, p)->time;
        uint32_t n = m->listed[instance], i;
        if (!at(m, p)->cached || at(m, p)->listed)
            continue;
        int64_t newest = n > 0 ? at(m, list[n - 1])->time : 0;
        int64_t oldest = n > 0 ? at(m, list[0])->time : 0;
        if (n == 0 || time >= newest || (time > oldest && newest - time < time - oldest)) {
            for (i = n; i > 0 && time < at(m, list[i - 1])->time;)
                i--;
        } else {
            for (i = 0; i < n && at(m, list[i])->time < time;)
                i++;
        }
        list_insert(m, instance, i, p);
    }
}

static uint32_t model_evict(struct model *m, int instance, uint32_t count)
{
    uint32_t evicted = 0;
    while (evicted < count && m->listed[instance] > 0) {
        struct place p = m->list[instance][0];
        list_remove(m, instance, p);
        if (m->kind == TIERCE__KVCM_LEAF_AWARE_LRU && !is_data_leaf(m, p.node))
            continue;
        at(m, p)->cached = false;
        m->evicted_of[p.node] = true;
        evicted++;
        int parent = m->nodes[p.node].parent;
        if (m->kind == TIERCE__KVCM_LEAF_AWARE_LRU && is_data_leaf(m, parent))
            come_back(m, instance, parent);
    }
    return evicted;
}

static void model_trim(struct model *m, int instance)
{
    uint32_t held = used(m, 0) + used(m, 1), done = 0;
    uint32_t excess = held > m->quota ? held - m->quota : 0;
    while (done < excess) {
        uint32_t count = m->batch, n = 0;
        if (m->mode == TIERCE__KVCM_INSTANCE_PRECISE && excess - done < count)
            count = excess - done;
        for (int i = 0; i < INSTANCES; i++) {
            if (m->mode == TIERCE__KVCM_GROUP_ROUGH || i == instance)
                n += model_evict(m, i, count);
        }
        if (n == 0)
            break;
        done += n;
    }
    for (bool again = true; again;) {
        again = false;
        for (int i = INSTANCES; i < NODES_MAX; i++) {
            if (m->nodes[i].parent == -2 || !m->evicted_of[i] || has_cached(&m->nodes[i]) ||
                !is_leaf(m, i))
                continue;
            m->nodes[i].parent = -2;
            again = true;
        }
    }
    memset(m->evicted_of, 0, sizeof(m->evicted_of));
}

static void append(struct model *m, int instance, int node, const uint32_t *keys, uint32_t count,
                   int64_t time)
{
    for (uint32_t i = 0; i < count; i++) {
        struct place p = {node, m->nodes[node].length++};
        ck_assert_uint_lt(p.at, RUN_MAX);
        *at(m, p) = (struct model_block){.key = keys[i]};
        model_store(m, instance, p, time);
    }
}

/* The upper part becomes a new node; lists follow the blocks. */
static int model_split(struct model *m, int instance, int node, uint32_t length)
{
    int upper = new_node(m, m->nodes[node].parent);
    struct model_node *above = &m->nodes[upper], *below = &m->nodes[node];
    memcpy(above->run, below->run, length * sizeof(above->run[0]));
    above->length = length;
    below->length -= length;
    memmove(below->run, below->run + length, below->length * sizeof(below->run[0]));
    below->parent = upper;
    for (uint32_t i = 0; i < m->listed[instance]; i++) {
        struct place *p = &m->list[instance][i];
        if (p->node == node && p->at < length)
            p->node = upper;
        else if (p->node == node)
            p->at -= length;
    }
    return upper;
}

static void use(struct model *m, int instance, struct place p, int64_t time)
{
    at(m, p)->time = time;
    if (!at(m, p)->listed)
        return;
    list_remove(m, instance, p);
    list_insert(m, instance, m->listed[instance], p);
}

static void model_request(struct model *m, const struct tierce__recorded *request)
{
    const uint32_t *keys = tierce__recorded_blocks(request);
    uint32_t i = 0, count = request->count;
    int node = (int)request->instance, instance = node;
    bool leads = request->kind != TIERCE__TRACE_WRITE, stores = request->kind != TIERCE__TRACE_READ;
    while (i < count) {
        int child = INSTANCES;
        while (child < NODES_MAX &&
               (m->nodes[child].parent != node || m->nodes[child].run[0].key != keys[i]))
            child++;
        if (child == NODES_MAX)
            break;
        struct place p = {child, 0};
        for (; p.at < m->nodes[child].length && i < count && at(m, p)->key == keys[i];
             p.at++, i++) {
            m->any += request->kind != TIERCE__TRACE_WRITE && at(m, p)->cached;
            leads = leads && at(m, p)->cached;
            m->hits += leads;
            if (leads)
                use(m, instance, p, request->time_us);
            else if (stores && !at(m, p)->cached)
                model_store(m, instance, p, request->time_us);
        }
        node = child;
        if (p.at < m->nodes[child].length) {
            if (i < count && stores)
                node = model_split(m, instance, child, p.at);
            break;
        }
    }
    if (!stores)
        return;
    if (i < count && (node < INSTANCES || !is_leaf(m, node)))
        node = new_node(m, node);
    append(m, instance, node, keys + i, count - i, request->time_us);
    model_trim(m, instance);
}

/* ---- random traces --------------------------------------------------------------------------- */

/* Parents are fixed, so that ids are prefix ids: the children of b are 2b + 2 and 2b + 3. */
static struct tierce__recording *record(struct test_random *random, bool prefix_ids)
{
    struct tierce__recording *recording;
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t path[LENGTH_MAX + 1], ids[LENGTH_MAX + 1];
        uint32_t count = 0;
        for (uint64_t b = test_random_below(random, BLOCKS); count < LENGTH_MAX; b = (b - 2) / 2) {
            path[count++] = prefix_ids ? b : test_random_below(random, 4);
            if (b < 2)
                break;
        }
        for (uint32_t k = 0; k < count; k++)
            ids[k] = path[count - 1 - k];
        count = test_random_below(random, 20) > 0 ? count : 0;
        struct tierce__trace_request request = {.time_us = i / 2,
                                                .instance = test_random_below(random, INSTANCES),
                                                .kind = test_random_below(random, 3),
                                                .count = count,
                                                .read_count = count,
                                                .blocks = ids};
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    return recording;
}

static struct tierce__replay_result replay(const struct tierce__recording *recording,
                                           enum tierce__kvcm_kind kind, uint64_t capacity,
                                           const struct tierce__kvcm_tuning *tuning,
                                           struct model *model)
{
    struct tierce__kvcm_layout layout;
    struct tierce__kvcm *kvcm;
    struct tierce__kvcm_read read;
    ck_assert_int_eq(tierce__kvcm_layout_single(&layout, INSTANCES, kind, capacity, tuning), 0);
    ck_assert_int_eq(
        tierce__kvcm_create(&kvcm,
                            &(struct tierce__kvcm_opts){
                                .size = sizeof(struct tierce__kvcm_opts),
                                .layout = &layout,
                                .distinct = tierce__recording_totals(recording).distinct,
                                .matches = matches,
                                .match_count = 2,
                            }),
        0);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        ck_assert_int_eq(tierce__kvcm_request(kvcm, r, &read), 0);
        if (model == NULL)
            continue;
        model_request(model, r);
        ck_assert_uint_eq(tierce__kvcm_result(kvcm)->hits[0], model->hits);
        ck_assert_uint_eq(tierce__kvcm_result(kvcm)->hits[1], model->any);
        for (int i = 0; i < INSTANCES; i++)
            ck_assert_uint_eq(tierce__kvcm_held(kvcm, (uint32_t)i), used(model, i));
    }
    struct tierce__replay_result result = *tierce__kvcm_result(kvcm);
    tierce__kvcm_destroy(kvcm);
    tierce__kvcm_layout_clear(&layout);
    return result;
}

START_TEST(they_do_what_the_models_do)
{
    struct test_random random = test_random_start("test_prop_kvcm");
    static struct model model;
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        struct tierce__recording *recording = record(&random, round % 4 != 0);
        struct tierce__kvcm_tuning tuning = {.mode = 1 + test_random_below(&random, 3),
                                             .batch = 1 + test_random_below(&random, 5)};
        model =
            (struct model){.kind = round % 2 == 0 ? TIERCE__KVCM_LEAF_AWARE_LRU : TIERCE__KVCM_LRU,
                           .mode = tuning.mode,
                           .batch = tuning.batch,
                           .quota = test_random_below(&random, BLOCKS)};
        for (int i = 0; i < NODES_MAX; i++)
            model.nodes[i].parent = i < INSTANCES ? -1 : -2;
        struct tierce__replay_result result =
            replay(recording, model.kind, model.quota, &tuning, &model);
        ck_assert_uint_eq(result.used, used(&model, 0) + used(&model, 1));
        ck_assert_uint_eq(result.stored - result.evicted, result.used);
        tierce__recording_destroy(recording);
    }
}
END_TEST

START_TEST(with_room_for_all_they_are_the_infinite_cache)
{
    struct test_random random = test_random_start("test_prop_kvcm");
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        struct tierce__recording *recording = record(&random, true);
        struct tierce__recording_totals totals = tierce__recording_totals(recording);
        struct tierce__replay *infinite;
        ck_assert_int_eq(tierce__replay_create(&infinite,
                                               &(struct tierce__replay_opts){
                                                   .size = sizeof(struct tierce__replay_opts),
                                                   .capacity = UINT64_MAX,
                                                   .distinct = totals.distinct,
                                                   .matches = matches,
                                                   .match_count = 2,
                                               }),
                         0);
        for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
             r = tierce__recording_next(recording, r))
            ck_assert_int_eq(tierce__replay_request(infinite, r), 0);
        const struct tierce__replay_result *expected = tierce__replay_result(infinite);
        for (int kind = 0; kind < 3; kind++) {
            for (int mode = 1; mode <= 3; mode++) {
                struct tierce__kvcm_tuning tuning = {.mode = mode, .batch = 3};
                struct tierce__replay_result got =
                    replay(recording, kind, totals.distinct, &tuning, NULL);
                ck_assert_uint_eq(got.requests, expected->requests);
                ck_assert_uint_eq(got.blocks, expected->blocks);
                ck_assert_uint_eq(got.hits[0], expected->hits[0]);
                ck_assert_uint_eq(got.hits[1], expected->hits[1]);
                ck_assert_uint_eq(got.evicted, 0);
            }
        }
        tierce__replay_destroy(infinite);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* Rough modes overshoot, but what is in never stays above the quota. */
START_TEST(random_lru_keeps_the_quota)
{
    struct test_random random = test_random_start("test_prop_kvcm");
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        struct tierce__recording *recording = record(&random, round % 2 == 0);
        uint64_t capacity = LENGTH_MAX + test_random_below(&random, BLOCKS);
        struct tierce__kvcm_tuning tuning = {.mode = TIERCE__KVCM_GROUP_ROUGH,
                                             .batch = 1 + test_random_below(&random, 5),
                                             .sample_rate = 0.25};
        struct tierce__replay_result got =
            replay(recording, TIERCE__KVCM_RANDOM_LRU, capacity, &tuning, NULL);
        ck_assert_uint_le(got.used, capacity);
        ck_assert_uint_le(got.used_max, capacity + LENGTH_MAX);
        ck_assert_uint_eq(got.stored - got.evicted, got.used);
        tierce__recording_destroy(recording);
    }
}
END_TEST

CHECK_MAIN("prop_kvcm", .seconds = 60,
           .tests = {they_do_what_the_models_do, with_room_for_all_they_are_the_infinite_cache,
                     random_lru_keeps_the_quota})
