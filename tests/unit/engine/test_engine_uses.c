/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "optimizer/replay/replay.h"
#include "core/policy/flat.h"
#include "engine/peer/peer_keeper.h"
#include "prop/optimizer/random_recording.h"
#include "store/coded/coded_private.h"
#include "store/disk/disk_private.h"
#include "store/memory/memory_private.h"

/*
 * The policies of a running engine see the same events as in a simulation: a request is one use of
 * a chunk, however many loads and stores it needs. Random requests go through both, and after each
 * of them both hold the same.
 */

enum { TREE = 300, REQUESTS = TEST_ROUNDS(400), DISK_REQUESTS = 200 + TEST_ROUNDS(200) };

static struct fixture fx;
static struct test_random rnd;

/* ---- chains of a tree: a node is a chunk ----------------------------------------------------- */

struct prompt {
    struct tierce_chain *chain;
    uint32_t count; /* chunks */
    struct tierce__keys keys;
};

static void make_prompt(struct prompt *p, const uint64_t *ids, uint32_t count)
{
    p->count = count;
    ck_assert_int_eq(tierce_view_chain(&p->chain, fx.view, NULL), 0);
    for (uint32_t i = 0; i < count * FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS; i++) {
        int32_t token = (int32_t)(ids[i / (FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS)] * 16 + i % 16);
        ck_assert_int_ge(tierce_chain_append(p->chain, &token, 1, NULL), 0);
    }
    uint64_t blocks = (uint64_t)count * FX_CHUNK_BLOCKS;
    ck_assert_int_eq(tierce__keys_init(&p->keys, fx.inner, p->chain, blocks, blocks, false), 0);
}

static void end_prompt(struct prompt *p)
{
    tierce__keys_fini(&p->keys);
    tierce_chain_destroy(p->chain);
}

static uint32_t chunks_found(const struct prompt *p, unsigned flags, uint64_t session)
{
    uint64_t blocks = (uint64_t)p->count * FX_CHUNK_BLOCKS;
    return (uint32_t)fx_found(&fx, p->chain, blocks, flags, session, NULL) / FX_CHUNK_BLOCKS;
}

static void load_chunks(const struct prompt *p, uint32_t count, uint64_t session)
{
    uint64_t blocks = (uint64_t)count * FX_CHUNK_BLOCKS;
    struct tierce_transfer_opts what = fx_what(&fx, p->chain, 0, blocks, fx_ids);
    what.session = session;
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), (int64_t)blocks);
}

static void store_chunks(const struct prompt *p, uint32_t count, uint64_t session)
{
    struct tierce_transfer_opts what =
        fx_what(&fx, p->chain, 0, (uint64_t)count * FX_CHUNK_BLOCKS, fx_ids);
    what.session = session;
    ck_assert_int_ge(tierce_store(fx.view, &what), 0);
}

static void ignore(struct tierce__store_req *req)
{
    (void)req;
}

static bool level_has(size_t level, const struct tierce__key *key)
{
    struct tierce__tier *tier = fx.engine->levels[level].tier;
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .done = ignore,
                                    .keys = key,
                                    .key_count = 1};
    tier->ops->submit(tier, &req);
    return req.status == 0 && req.found == 1;
}

/* ---- one request is one use ------------------------------------------------------------------ */

static void evict_one(void)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    ck_assert_uint_gt(memory->ops->evict(memory, 1), 0);
}

START_TEST(a_request_in_many_steps_is_one_use)
{
    static const char *const sets[] = {"memory.policy", "lfu", NULL};
    struct prompt often, twice;
    fx_open(&fx, false, sets);
    make_prompt(&often, (uint64_t[]){1, 2, 3, 4}, 4);
    make_prompt(&twice, (uint64_t[]){5}, 1);
    store_chunks(&twice, 1, 1);
    store_chunks(&often, 1, 2);
    /* A prefill in parts, interleaved with another request for the same prefix. */
    for (uint32_t i = 1; i <= 4; i++) {
        store_chunks(&often, i, 3);
        store_chunks(&often, i, 2);
        load_chunks(&often, i, 3);
    }
    store_chunks(&twice, 1, 4);
    store_chunks(&twice, 1, 5);
    /* Chunk 0 was used by 2 and 3, those behind it by 3 and 2, the other prompt by 1, 4 and 5. */
    for (uint32_t left = 4; left > 0; left--) {
        ck_assert(level_has(0, &twice.keys.keys[0]));
        evict_one();
    }
    for (uint32_t i = 0; i < 4; i++)
        ck_assert(!level_has(0, &often.keys.keys[i]));
    ck_assert(level_has(0, &twice.keys.keys[0]));
    end_prompt(&often);
    end_prompt(&twice);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(requests_without_a_name_count_each)
{
    static const char *const sets[] = {"memory.policy", "lfu", NULL};
    struct prompt named, unnamed;
    fx_open(&fx, false, sets);
    make_prompt(&named, (uint64_t[]){1}, 1);
    make_prompt(&unnamed, (uint64_t[]){2}, 1);
    store_chunks(&unnamed, 1, 0);
    store_chunks(&named, 1, 1);
    load_chunks(&unnamed, 1, 0);
    load_chunks(&named, 1, 1);
    store_chunks(&named, 1, 1);
    evict_one();
    ck_assert(level_has(0, &unnamed.keys.keys[0]));
    ck_assert(!level_has(0, &named.keys.keys[0]));
    end_prompt(&named);
    end_prompt(&unnamed);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(more_requests_than_are_remembered_do_no_harm)
{
    struct prompt p;
    uint8_t hint;
    fx_open(&fx, false, NULL);
    make_prompt(&p, (uint64_t[]){1, 2}, 2);
    for (uint64_t session = 1; session < 3 * TIERCE__USE_SETS * TIERCE__USE_WAYS; session++) {
        ck_assert_uint_eq(tierce__session_use(fx.view, session, &p.keys, 1, &hint), 0);
        ck_assert_uint_eq(tierce__session_use(fx.view, session, &p.keys, 2, &hint), 1);
        ck_assert_uint_eq(tierce__session_use(fx.view, session, &p.keys, 1, &hint), 2);
    }
    end_prompt(&p);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* ---- the memory tier beside a replay --------------------------------------------------------- */

struct simulated {
    bool held[TREE];
    struct tierce__key keys[TREE]; /* by number, of those that came up */
    uint32_t known;
};

static void note_stored(void *arg, uint32_t block)
{
    ((struct simulated *)arg)->held[block] = true;
}

static void note_left(void *arg, uint32_t block)
{
    ((struct simulated *)arg)->held[block] = false;
}

static void note_lookup(void *arg, const struct tierce__recorded *request, const bool *there)
{
    (void)arg;
    (void)request;
    (void)there;
}

/* After every EACH-th request: a chunk that only one side holds is still held after some more. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { EACH = 8 };
#else
enum { EACH = 1 };
#endif

static void compare(const struct simulated *sim, size_t level, const char *policy, uint32_t request)
{
    if (request % EACH != 0)
        return;
    for (uint32_t i = 0; i < sim->known; i++)
        ck_assert_msg(level_has(level, &sim->keys[i]) == sim->held[i],
                      "%s: after request %u chunk %u is %sheld by the simulator only", policy,
                      request, i, sim->held[i] ? "" : "not ");
}

/* Whether chunks are held behind a hole. */
static bool any_behind(const struct prompt *p, uint32_t found)
{
    bool any = false;
    for (uint32_t i = found; i < p->count; i++)
        any = any || level_has(0, &p->keys.keys[i]);
    return any;
}

/*
 * Lookup, load and store as an inference engine calls them; now and then in parts, or again. A
 * request that fills a hole is one call: a load, or the first part of a store, knows nothing of
 * what is held behind the hole, so that this is used after it, if it has not been evicted for it.
 */
static uint32_t run_request(const struct prompt *p, uint64_t session)
{
    bool pins = test_random_below(&rnd, 2) > 0;
    uint32_t found = chunks_found(p, pins ? TIERCE_LOOKUP_PIN : 0, session);
    bool in_parts = !any_behind(p, found);
    for (uint32_t n = test_random_below(&rnd, 3); n > 0 && found > 0 && in_parts; n--)
        load_chunks(p, found, session);
    if (found < p->count && in_parts)
        store_chunks(p, found + 1 + test_random_below(&rnd, p->count - found), session);
    store_chunks(p, p->count, session);
    tierce_unpin(fx.view, session);
    return found;
}

static struct tierce__recording *record_requests(uint64_t (*ids)[RECORDING_DEPTH],
                                                 uint64_t object_bytes)
{
    struct tierce__recording *recording;
    uint64_t bytes[RECORDING_DEPTH];
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < RECORDING_DEPTH; i++)
        bytes[i] = object_bytes;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct tierce__trace_request request = {
            .time_us = i, .kind = TIERCE__TRACE_TURN, .blocks = ids[i], .bytes = bytes};
        do
            request.count = random_chain(&rnd, TREE, ids[i]);
        while (request.count == 0);
        request.read_count = request.count;
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    return recording;
}

static void play(const struct tierce__policy_ops *policy, const struct tierce__recording *recording,
                 uint64_t (*ids)[RECORDING_DEPTH])
{
    struct simulated sim = {0};
    struct tierce__replay_watch watch = {note_lookup, note_stored, note_left, &sim};
    struct tierce__match match = {.kind = TIERCE__MATCH_PREFIX};
    struct tierce__replay_opts opts = {.size = sizeof(opts),
                                       .policy = policy,
                                       .capacity = fx.engine->settings.memory_bytes,
                                       .in_bytes = true,
                                       .whole = true,
                                       .distinct = tierce__recording_totals(recording).distinct,
                                       .matches = &match,
                                       .match_count = 1,
                                       .watch = &watch};
    struct tierce__replay *replay;
    uint32_t i = 0;
    ck_assert_int_eq(tierce__replay_create(&replay, &opts), 0);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r), i++) {
        const uint32_t *numbers = tierce__recorded_blocks(r);
        struct prompt p;
        make_prompt(&p, ids[i], r->count);
        for (uint32_t k = 0; k < r->count; k++) {
            sim.keys[numbers[k]] = p.keys.keys[k];
            sim.known = numbers[k] >= sim.known ? numbers[k] + 1 : sim.known;
        }
        uint64_t hits = tierce__replay_result(replay)->hits[0];
        ck_assert_int_eq(tierce__replay_request(replay, r), 0);
        hits = tierce__replay_result(replay)->hits[0] - hits;
        ck_assert_msg(run_request(&p, i + 1) == hits, "%s: request %u", policy->name, i);
        compare(&sim, 0, policy->name, i);
        end_prompt(&p);
    }
    ck_assert_uint_gt(tierce__replay_result(replay)->evicted, REQUESTS / 4);
    tierce__replay_destroy(replay);
}

/* The choices of a sample depend on the number of slots or on the keys, which differ; hazard is
 * compared by its hits. */
static bool is_incomparable(const struct tierce__policy_ops *policy)
{
    return strcmp(policy->name, "sampled_lru") == 0 || policy->request != NULL;
}

/* A client of a node reports its uses in the same way to every policy: there a run of `make test`
 * has every third one, beginning with a random one, and a long run has all. */
static bool is_left_out(size_t policy)
{
#ifdef TIERCE_TEST_NODE
    static uint32_t first = UINT32_MAX;
    if (first == UINT32_MAX)
        first = test_random_below(&rnd, 3);
    return test_scale() == 1 && policy % 3 != first;
#else
    (void)policy;
    return false;
#endif
}

START_TEST(memory_holds_what_the_simulator_holds)
{
    static uint64_t ids[REQUESTS][RECORDING_DEPTH];
    rnd = test_random_start("memory_holds_what_the_simulator_holds");
    const struct tierce__policy_ops *policy;
    for (size_t n = 0; (policy = tierce__policy_at(n)) != NULL; n++) {
        const char *const sets[] = {"memory.policy", policy->name, "memory.size", "1MiB", NULL};
        if (is_incomparable(policy) || is_left_out(n))
            continue;
        fx_open(&fx, false, sets);
        uint64_t bytes = tierce__round_up(fx.view->full.extent.object_bytes, 4096);
        struct tierce__recording *recording = record_requests(ids, bytes);
        play(policy, recording, ids);
        tierce__recording_destroy(recording);
        fx_close(&fx);
    }
    fx_remove(&fx);
}
END_TEST

/* ---- hazard: requests, and chunks that are not worth their room ------------------------------ */

enum { SCAN = 8, ROUNDS = 2000, ROUNDS_LEARNING = 1000 };

/* A few prompts in turn, and between them long prompts that never return. */
static uint32_t next_prompt(uint32_t round, uint64_t *ids)
{
    bool scans = round % 2 == 1;
    for (uint32_t i = 0; i < SCAN; i++)
        ids[i] = scans ? 1000 + (uint64_t)round * SCAN + i : round / 2 % 7 * 2 + i;
    return scans ? SCAN : 2;
}

/* Memory has room for one of the prompts that never return and for 2 of the 7 that do, or for 6 of
 * these. The policy learns not to store the former: at least half of the prompts that return hit.
 * If it is not asked, 14 % do. */
START_TEST(memory_refuses_chunks_that_are_not_worth_their_room)
{
    static const char *const sets[] = {"memory.policy", "hazard", "memory.size", "1MiB",
                                       "memory.chunks", "12",     NULL};
    uint32_t hits = 0;
    uint64_t ids[SCAN];
    fx_open(&fx, false, sets);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct prompt p;
        uint32_t count = next_prompt(round, ids);
        make_prompt(&p, ids, count);
        uint32_t found = chunks_found(&p, 0, round + 1);
        if (found > 0)
            load_chunks(&p, found, round + 1);
        store_chunks(&p, count, round + 1);
        end_prompt(&p);
        hits += round >= ROUNDS_LEARNING ? found : 0;
    }
    ck_assert_uint_ge(hits, (ROUNDS - ROUNDS_LEARNING) / 2);
    ck_assert_int_ge(fx_stats(&fx).stores_skipped, SCAN * (ROUNDS - ROUNDS_LEARNING) / 4);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static struct tierce__policy_hints hints_at(size_t level)
{
    struct tierce__tier_stats stats;
    struct tierce__tier *tier = fx.engine->levels[level].tier;
    tier->ops->stats(tier, &stats);
    ck_assert(stats.has_hints);
    return stats.hints;
}

/* The hint of a session goes with its loads and stores to the policies of memory and disk. */
START_TEST(hints_of_sessions_reach_the_policies)
{
    static const char *const sets[] = {"memory.policy", "hazard", "disk.policy", "hazard", NULL};
    struct prompt p;
    fx_open(&fx, true, sets);
    ck_assert_int_eq(tierce_session_hint(fx.view, 0, TIERCE_HINT_OPEN), TIERCE_E_ARGUMENT);
    make_prompt(&p, (uint64_t[]){1, 2, 3}, 3);
    ck_assert_int_eq(tierce_session_hint(fx.view, 1, TIERCE_HINT_OPEN), 0);
    ck_assert_int_eq(tierce_session_hint(fx.view, 2, TIERCE_HINT_CLOSED), 0);
    store_chunks(&p, 3, 1);
    ck_assert_uint_eq(hints_at(0).used[TIERCE__HINT_OPEN], 3);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(hints_at(1).used[TIERCE__HINT_OPEN], 3);
    load_chunks(&p, 2, 2);
    ck_assert_uint_eq(hints_at(0).used[TIERCE__HINT_CLOSED], 2);
    ck_assert_uint_eq(hints_at(0).returned[TIERCE__HINT_OPEN], 2);
    ck_assert_uint_eq(hints_at(1).used[TIERCE__HINT_CLOSED], 2);
    ck_assert_uint_eq(hints_at(1).returned[TIERCE__HINT_OPEN], 2);
    load_chunks(&p, 1, 3);
    ck_assert_uint_eq(hints_at(0).returned[TIERCE__HINT_CLOSED], 1);
    ck_assert_uint_eq(hints_at(0).used[TIERCE__HINT_CLOSED], 2);
    end_prompt(&p);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

#ifdef TIERCE_TEST_NODE

enum { TURNS = 600, AFTER = 8 };

/* One request of a session, which may give a hint. Returns its chunks that were found. */
static uint8_t ask(uint64_t id, uint64_t session, enum tierce_hint hint)
{
    struct prompt p;
    make_prompt(&p, (uint64_t[]){2 * id, 2 * id + 1}, 2);
    ck_assert_int_eq(tierce_session_hint(fx.view, session, hint), 0);
    uint32_t found = chunks_found(&p, 0, session);
    if (found > 0)
        load_chunks(&p, found, session);
    store_chunks(&p, 2, session);
    end_prompt(&p);
    return (uint8_t)found;
}

/* Conversations of which each second one returns, after AFTER others. found[i]: of its return. */
static void converse(uint8_t found[TURNS], bool gives_hints)
{
    for (uint64_t i = 0; i < TURNS; i++) {
        enum tierce_hint hint = i % 2 == 0 ? TIERCE_HINT_OPEN : TIERCE_HINT_CLOSED;
        found[i] = ask(i, 2 * i + 1, gives_hints ? hint : TIERCE_HINT_NONE);
        ck_assert_uint_eq(found[i], 0);
        if (i >= AFTER && i % 2 == 0)
            found[i - AFTER] =
                ask(i - AFTER, 2 * i + 2, gives_hints ? TIERCE_HINT_CLOSED : TIERCE_HINT_NONE);
    }
}

static void converse_embedded(uint8_t found[TURNS], const char *const *sets, bool gives_hints)
{
    struct tierce_engine *engine = fx.engine;
    struct tierce_view *view = fx.view, *inner = fx.inner;
    struct tierce_config *config = fx_config("", sets);
    struct tierce_namespace ns = fx_namespace();
    fx.engine = fx_engine(config);
    tierce_config_destroy(config);
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    fx.inner = fx.view;
    converse(found, gives_hints);
    tierce_view_close(fx.view);
    tierce_engine_close(fx.engine);
    fx.engine = engine;
    fx.view = view;
    fx.inner = inner;
}

/* Memory holds six of the conversations. */
START_TEST(a_node_decides_by_hints_as_an_engine_does)
{
    static const char *const sets[] = {"memory.policy", "hazard", "memory.size", "1MiB",
                                       "memory.chunks", "12",     NULL};
    static uint8_t here[TURNS], there[TURNS], without[TURNS];
    uint32_t hits = 0, hits_without = 0;
    fx_open(&fx, false, sets);
    converse(there, true);
    converse_embedded(here, sets, true);
    converse_embedded(without, sets, false);
    ck_assert_mem_eq(there, here, sizeof(here));
    for (uint32_t i = 0; i < TURNS; i++) {
        hits += there[i];
        hits_without += without[i];
    }
    ck_assert_msg(2 * hits > 3 * hits_without, "%u hits, %u without hints", hits, hits_without);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

#define OF_A_NODE a_node_decides_by_hints_as_an_engine_does
#define EMBEDDED  NULL
#else

static bool admit_none(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    (void)policy, (void)entry;
    return false;
}

/* A session computed chunks that the disk has, for memory. Memory does not store them, but its
 * next chunks are stored: their prefix is on disk. */
START_TEST(a_refused_chunk_on_disk_ends_no_store)
{
    static const char *const sets[] = {"memory.policy", "hazard", "memory.chunks", "4", NULL};
    struct prompt p, other;
    fx_open(&fx, true, sets);
    struct tierce__memory *memory = (void *)fx.engine->levels[0].tier;
    struct tierce__policy_ops refuses = *memory->policy->ops;
    refuses.admits = admit_none;
    make_prompt(&p, (uint64_t[]){1, 2, 3, 4, 5, 6}, 6);
    make_prompt(&other, (uint64_t[]){11, 12, 13, 14}, 4);
    store_chunks(&p, 4, 1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    store_chunks(&other, 4, 2);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert(level_has(1, &p.keys.keys[3]) && !level_has(0, &p.keys.keys[0]));
    memory->policy->ops = &refuses;
    tierce__session_leave(fx.view, 3, 0);
    store_chunks(&p, 6, 3);
    ck_assert(!level_has(0, &p.keys.keys[0]));
    ck_assert_uint_eq(chunks_found(&p, 0, 4), 6);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 0);
    end_prompt(&p);
    end_prompt(&other);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Other engines read chunks of prompts that never return here. */
START_TEST(memory_that_others_read_refuses_nothing)
{
    static const char *const sets[] = {"memory.policy", "hazard", "memory.chunks", "4", NULL};
    struct prompt p, other;
    struct tierce__peer_keeper *keeper;
    fx_open(&fx, false, sets);
    struct tierce__memory *memory = (void *)fx.engine->levels[0].tier;
    struct tierce__policy_ops refuses = *memory->policy->ops;
    refuses.admits = admit_none;
    memory->policy->ops = &refuses;
    make_prompt(&p, (uint64_t[]){1, 2, 3, 4}, 4);
    make_prompt(&other, (uint64_t[]){11, 12}, 2);
    store_chunks(&p, 4, 1);
    store_chunks(&other, 2, 2);
    ck_assert_uint_eq(chunks_found(&other, 0, 3), 0);
    struct tierce__peer_keeper_opts bounds = tierce__peer_keeper_bounds(fx.engine);
    ck_assert_int_eq(tierce__peer_keeper_create(&keeper, fx.engine, &bounds), 0);
    store_chunks(&other, 2, 4);
    ck_assert_uint_eq(chunks_found(&other, 0, 5), 2);
    tierce__peer_keeper_destroy(keeper);
    store_chunks(&p, 4, 6);
    ck_assert_uint_eq(chunks_found(&p, 0, 7), 2);
    end_prompt(&p);
    end_prompt(&other);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

#define OF_A_NODE NULL
#define EMBEDDED  a_refused_chunk_on_disk_ends_no_store, memory_that_others_read_refuses_nothing
#endif

/* ---- the disk tier beside the simulator's cache ---------------------------------------------- */

struct disk_sim {
    struct tierce__flat flat;
    struct tierce__policy_ops silent; /* as in the policy, which was told of the next insert */
    uint64_t bytes;                   /* of a chunk */
    struct simulated all;
};

static void touch_back(struct disk_sim *sim, const uint64_t *ids, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        uint32_t slot = sim->flat.slot_of[ids[i]];
        if (slot != TIERCE__NO_SLOT)
            sim->silent.touch(sim->flat.policy, slot, sim->flat.now);
    }
}

/* As the tier puts it: room first, and nothing whose prefix had to leave for it. */
static void put_one(struct disk_sim *sim, const uint64_t *ids, uint32_t at)
{
    struct tierce__flat *flat = &sim->flat;
    struct tierce__policy_entry entry = {
        .key = ids[at], .bytes = sim->bytes, .now = flat->now, .parent = TIERCE__NO_SLOT};
    tierce__policy_expect(flat->policy, &entry);
    ck_assert(tierce__flat_make_room(flat, &sim->silent, sim->bytes));
    uint32_t parent = at > 0 ? flat->slot_of[ids[at - 1]] : TIERCE__NO_SLOT;
    if (at == 0 || parent != TIERCE__NO_SLOT)
        ck_assert(tierce__flat_store(flat, &sim->silent, (uint32_t)ids[at], sim->bytes, parent));
}

/* All hits are loaded, and one more chunk is stored: so at each insert all other chunks are durable
 * and evictable. */
static void disk_request(struct disk_sim *sim, uint32_t number, const char *policy)
{
    uint64_t ids[RECORDING_DEPTH];
    uint32_t count = 0, found = 0;
    while (count == 0)
        count = random_chain(&rnd, TREE, ids);
    while (found < count && sim->flat.slot_of[ids[found]] != TIERCE__NO_SLOT)
        found++;
    struct prompt p;
    make_prompt(&p, ids, count);
    for (uint32_t i = 0; i < count; i++)
        sim->all.keys[ids[i]] = p.keys.keys[i];
    ck_assert_msg(chunks_found(&p, 0, 0) == found, "%s: request %u", policy, number);
    uint32_t end = found < count ? found + 1 : found;
    if (found > 0)
        load_chunks(&p, found, number);
    store_chunks(&p, end, number);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    (void)memory->ops->evict(memory, UINT64_MAX);

    sim->flat.now++;
    touch_back(sim, ids, found);
    if (end > found)
        put_one(sim, ids, found);
    if (!sim->silent.counts_uses)
        touch_back(sim, ids, end);
    for (uint32_t i = 0; i < TREE; i++)
        sim->all.held[i] = sim->flat.slot_of[i] != TIERCE__NO_SLOT;
    compare(&sim->all, 1, policy, number);
    end_prompt(&p);
}

START_TEST(disk_holds_what_the_simulator_holds)
{
    rnd = test_random_start("disk_holds_what_the_simulator_holds");
    const struct tierce__policy_ops *policy;
    for (size_t n = 0; (policy = tierce__policy_at(n)) != NULL; n++) {
        const char *const sets[] = {"disk.policy", policy->name, "disk.size", "2MiB", NULL};
        if (is_incomparable(policy) || is_left_out(n))
            continue;
        fx.folder[0] = '\0';
        fx_open(&fx, true, sets);
        const struct tierce__coded_tier *coded =
            TIERCE__CONTAINER_OF(fx.engine->levels[1].coded, struct tierce__coded_tier, base);
        const struct tierce__disk *disk = (const struct tierce__disk *)(const void *)coded->inner;
        static struct disk_sim sim;
        sim = (struct disk_sim){.silent = *policy, .all.known = TREE};
        sim.silent.expect = NULL;
        sim.bytes = fx.view->full.extent.object_bytes;
        ck_assert_int_eq(
            tierce__flat_init(&sim.flat, &(struct tierce__flat_opts){.policy = policy,
                                                                     .key_count = TREE,
                                                                     .capacity = disk->data_cap,
                                                                     .in_bytes = true}),
            0);
        for (uint32_t i = 0; i < DISK_REQUESTS; i++)
            disk_request(&sim, i + 1, policy->name);
        ck_assert_uint_gt(sim.flat.evicted, DISK_REQUESTS / 16);
        tierce__flat_fini(&sim.flat);
        fx_close(&fx);
        fx_remove(&fx);
        memset(fx.layers, 0, sizeof(fx.layers));
    }
}
END_TEST

/* ---- a prefix on disk is newer than its suffix ----------------------------------------------- */

START_TEST(on_disk_a_prefix_outlives_its_suffix)
{
    static const char *const sets[] = {"disk.policy", "lru", "disk.size", "2MiB", NULL};
    struct prompt first, next;
    uint64_t ids[RECORDING_DEPTH];
    fx_open(&fx, true, sets);
    make_prompt(&first, (uint64_t[]){1, 2, 3, 4, 5, 6, 7, 8}, 8);
    store_chunks(&first, 8, 1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    for (uint64_t i = 0; level_has(1, &first.keys.keys[7]); i++) {
        ids[0] = 1000 + i;
        ck_assert_uint_lt(i, 1000);
        make_prompt(&next, ids, 1);
        store_chunks(&next, 1, 2 + i);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        end_prompt(&next);
    }
    for (uint32_t i = 0; i < 7; i++)
        ck_assert(level_has(1, &first.keys.keys[i]));
    end_prompt(&first);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("engine_uses", .seconds = 240,
           .tests = {a_request_in_many_steps_is_one_use, requests_without_a_name_count_each,
                     more_requests_than_are_remembered_do_no_harm,
                     memory_holds_what_the_simulator_holds,
                     memory_refuses_chunks_that_are_not_worth_their_room,
                     hints_of_sessions_reach_the_policies, OF_A_NODE, EMBEDDED,
                     disk_holds_what_the_simulator_holds, on_disk_a_prefix_outlives_its_suffix})
