/* SPDX-License-Identifier: Apache-2.0 */
/* Why a lookup found no more: each reason, reported and counted. */
#include "base/clock.h"
#include "check_main.h"
#include "engine/why/departures.h"
#include "engine_fixture.h"
#include "test_random.h"
#include "tier_fault.h"
#include "plugin_file.h"

#include <tierce/why.h>

static struct fixture fx;

static struct tierce_miss why(const struct tierce_chain *chain, uint64_t blocks)
{
    struct tierce_miss miss = {.size = sizeof(miss)};
    ck_assert_int_eq(tierce_why(fx.view, chain, 0, blocks, &miss), 0);
    return miss;
}

static int64_t count_of(enum tierce_miss_reason reason)
{
    struct tierce_engine_stats s = fx_stats(&fx);
    int64_t counts[] = {
        0,
#define TIERCE_MISS(id, name, words) s.misses_##name,
#include <tierce/misses.def>
#undef TIERCE_MISS
    };
    int64_t sum = 0;
    for (size_t i = 1; i < TIERCE_MISS_COUNT; i++)
        sum += counts[i];
    return reason == TIERCE_MISS_NONE ? sum : counts[reason];
}

/* The reason of the first missing chunk, at `block`: reported by tierce_why, and counted only by a
 * lookup. */
static struct tierce_miss check(const struct tierce_chain *chain, uint64_t blocks,
                                enum tierce_miss_reason reason, uint64_t block)
{
    int64_t before = count_of(reason), all = count_of(TIERCE_MISS_NONE);
    struct tierce_miss miss = why(chain, blocks);
    ck_assert_msg(miss.reason == reason, "%s, not %s", tierce_miss_name(miss.reason),
                  tierce_miss_name(reason));
    ck_assert_uint_eq(miss.block, block);
    ck_assert_int_eq(count_of(TIERCE_MISS_NONE), all);
    uint64_t found = fx_found(&fx, chain, blocks, 0, 0, NULL);
    if (reason != TIERCE_MISS_NONE) {
        ck_assert_uint_eq(found, block);
        ck_assert_mem_eq(miss.hash, tierce_chain_hash(chain, block + FX_CHUNK_BLOCKS - 1),
                         TIERCE_HASH_BYTES);
        ck_assert_int_eq(count_of(reason), before + 1);
    }
    ck_assert_int_eq(count_of(TIERCE_MISS_NONE), all + (reason != TIERCE_MISS_NONE));
    return miss;
}

static void end(struct tierce_chain *chain)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}

/* The fault wrapper around a level. */
START_TEST(what_was_never_stored)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 20, 0);
    struct tierce_miss miss = check(chain, 20, TIERCE_MISS_NEVER_STORED, 0);
    ck_assert_ptr_null(miss.tier);
    ck_assert_ptr_null(miss.twin);
    ck_assert_int_eq(fx_store(&fx, chain, 12, fx_ids, false), 12);
    check(chain, 20, TIERCE_MISS_NEVER_STORED, 12);
    ck_assert_int_eq(fx_store(&fx, chain, 20, fx_ids, false), 20 - 12);
    check(chain, 20, TIERCE_MISS_NONE, 0);
    /* A lookup that searches only memory cannot report the content of other tiers. */
    struct tierce_chain *other = fx_chain(&fx, 2, 8, 0);
    int64_t all = count_of(TIERCE_MISS_NONE);
    ck_assert_uint_eq(fx_found(&fx, other, 8, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL), 0);
    ck_assert_int_eq(count_of(TIERCE_MISS_NONE), all);
    miss = (struct tierce_miss){.size = 1};
    ck_assert_int_eq(tierce_why(fx.view, other, 0, 8, &miss), TIERCE_E_ARGUMENT);
    miss.size = sizeof(miss);
    ck_assert_int_eq(tierce_why(fx.view, other, 0, 9, &miss), TIERCE_E_ARGUMENT);
    /* Blocks that the inference engine holds itself are not requested. */
    ck_assert_int_eq(tierce_why(fx.view, other, 8, 8, &miss), 0);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_NONE);
    ck_assert_int_eq(tierce_why(fx.view, other, 4, 8, &miss), 0);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_NEVER_STORED);
    ck_assert_uint_eq(miss.block, 4);
    tierce_chain_destroy(other);
    end(chain);
}
END_TEST

/* Tails are stored only on request. */
START_TEST(a_tail_that_was_never_stored_is_not_missing)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 10, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 10, fx_ids, false), 8);
    check(chain, 10, TIERCE_MISS_NONE, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 10, fx_ids, true), 2);
    check(chain, 10, TIERCE_MISS_NONE, 0);
    ck_assert_uint_gt(fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, 1), 0);
    struct tierce_miss miss = why(chain, 10);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_EVICTED);
    ck_assert_uint_eq(miss.block, 8);
    end(chain);
}
END_TEST

START_TEST(what_was_evicted)
{
    char url[128];
    struct plugin_file file;
    plugin_file_make(&file, TIERCE_PLUGIN_POLICY);
    snprintf(url, sizeof(url), "plugin://%s?uses=2", file.path);
    static const char *const names[] = {"lru", "fifo", "fifo_reinsertion"};
    const char *sets[] = {"memory.policy", _i == 2 ? url : names[_i], NULL};
    fx_open(&fx, false, sets);
    plugin_file_remove(&file);
    struct tierce_chain *chain = fx_chain(&fx, 1, 20, 0);
    uint64_t start_s = tierce__wall_s();
    ck_assert_int_eq(fx_store(&fx, chain, 20, fx_ids, false), 20);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    struct tierce_miss miss = check(chain, 20, TIERCE_MISS_EVICTED, 0);
    ck_assert_str_eq(miss.tier, "memory");
    ck_assert_str_eq(miss.policy, names[_i]);
    ck_assert_uint_ge(miss.when_s, start_s);
    ck_assert_uint_le(miss.when_s, tierce__wall_s());
    /* The chunk is stored again, and the recorded reason is dropped. */
    ck_assert_int_eq(fx_store(&fx, chain, 20, fx_ids, false), 20);
    check(chain, 20, TIERCE_MISS_NONE, 0);
    end(chain);
}
END_TEST

START_TEST(the_last_tier_that_let_it_go_counts)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    check(chain, 8, TIERCE_MISS_NONE, 0);
    tierce__storage_quarantine(fx.engine, 1, &(struct tierce__key){0}, TIERCE_E_CHECKSUM);
    check(chain, 8, TIERCE_MISS_NONE, 0);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.view, chain, 8, 8, false), 0);
    static const struct {
        int status;
        enum tierce_miss_reason reason;
    } rows[] = {{TIERCE_E_CHECKSUM, TIERCE_MISS_CHECKSUM},
                {TIERCE_E_IDENTITY, TIERCE_MISS_IDENTITY},
                {TIERCE_E_FORMAT, TIERCE_MISS_IDENTITY},
                {TIERCE_E_VERSION, TIERCE_MISS_VERSION}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tierce__storage_quarantine(fx.engine, 1, &keys.keys[1], rows[i].status);
        struct tierce_miss miss = check(chain, 8, rows[i].reason, 4);
        ck_assert_str_eq(miss.tier, "disk");
        ck_assert_ptr_null(miss.policy);
        ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 4);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        memory->ops->evict(memory, UINT64_MAX);
    }
    tierce__keys_fini(&keys);
    end(chain);
}
END_TEST

static void note_done(struct tierce__store_req *req)
{
    (void)req;
}

START_TEST(what_was_cleared)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    struct tierce__store_req req = {.op = TIERCE__STORE_CLEAR, .done = note_done};
    memory->ops->submit(memory, &req);
    ck_assert_uint_eq(req.found, 2);
    check(chain, 8, TIERCE_MISS_CLEARED, 0);
    end(chain);
}
END_TEST

START_TEST(what_has_expired)
{
    const char *sets[] = {"memory.policy", "ttl", "memory.ttl", "1ms", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    uint64_t until = tierce__deadline_in_ms(2);
    while (tierce__now_ns() < until)
        ;
    struct tierce_miss miss = check(chain, 8, TIERCE_MISS_EXPIRED, 0);
    ck_assert_str_eq(miss.policy, "ttl");
    end(chain);
}
END_TEST

START_TEST(what_could_not_be_written)
{
    const char *sets[] = {"memory.size", "1MiB", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 512, 0);
    static int32_t ids[FX_BLOCKS];
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = i;
    int64_t stored = fx_store(&fx, chain, 512, ids, false);
    ck_assert_int_gt(stored, 0);
    ck_assert_int_lt(stored, 512);
    struct tierce_miss miss = check(chain, 512, TIERCE_MISS_NOT_WRITTEN, (uint64_t)stored);
    ck_assert_str_eq(miss.tier, "memory");
    ck_assert_int_eq(miss.status, TIERCE_E_FULL);
    end(chain);
}
END_TEST

/* The disk rejected the chunk, and then memory evicts it: the reason is the rejection. */
START_TEST(what_the_disk_did_not_take)
{
    const char *sets[] = {"disk.admit", "second", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    struct tierce_miss miss = check(chain, 8, TIERCE_MISS_NOT_WRITTEN, 0);
    ck_assert_str_eq(miss.tier, "disk");
    ck_assert_int_eq(miss.status, TIERCE_E_REFUSED);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    memory->ops->evict(memory, UINT64_MAX);
    check(chain, 8, TIERCE_MISS_NONE, 0);
    end(chain);
}
END_TEST

struct diffs {
    unsigned count;
    char field[32], a[32], b[32];
};

static void take_diff(void *arg, const char *field, const char *a, const char *b)
{
    struct diffs *d = arg;
    d->count++;
    snprintf(d->field, sizeof(d->field), "%s", field);
    snprintf(d->a, sizeof(d->a), "%s", a);
    snprintf(d->b, sizeof(d->b), "%s", b);
}

START_TEST(what_lies_under_another_namespace)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    if (_i == 1) { /* known from the folder alone */
        fx_close(&fx);
        fx_open(&fx, true, NULL);
    }
    struct tierce_namespace ns = fx_namespace();
    ns.kv_dtype = "fp8_e4m3";
    struct tierce_view *view = fx.view;
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    struct tierce_miss miss = check(chain, 8, TIERCE_MISS_NAMESPACE, 0);
    ck_assert_str_eq(miss.twin, tierce_view_namespace(view));
    ck_assert_mem_eq(miss.twin_digest, view->ns_digest, TIERCE_HASH_BYTES);
    struct diffs d = {0};
    ck_assert_int_eq(
        tierce_namespace_diff(tierce_view_namespace(fx.view), miss.twin, take_diff, &d), 1);
    ck_assert_str_eq(d.field, "kv_dtype");
    ck_assert_str_eq(d.a, "fp8_e4m3");
    ck_assert_str_eq(d.b, "float32");
    /* Another shard of it is not a twin. */
    tierce_view_close(fx.view);
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){1, 2, 0, 1}),
                     0);
    check(chain, 8, TIERCE_MISS_NEVER_STORED, 0);
    tierce_view_close(view);
    end(chain);
}
END_TEST

static const uint32_t full_layers[FX_LAYERS] = {0, 1, 2, 3};
static const uint32_t window_layers[FX_LAYERS] = {4, 5, 6, 7};

static struct tierce_view *open_group(enum tierce_group group, uint32_t window,
                                      const uint32_t *layers)
{
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *view;
    ns.group = group;
    ns.window = window;
    ns.layers = layers;
    ck_assert_int_eq(tierce_view_open(&view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    return view;
}

/* A window of 17 tokens requires the last 4 blocks of 4 tokens, which are one chunk here. The other
 * group of the model has chunks with the same hashes; they must not be reported as the reason. */
START_TEST(what_a_group_needs_and_lacks)
{
    fx_open(&fx, true, NULL);
    struct tierce_view *whole = fx.view;
    struct tierce_view *full = open_group(TIERCE_GROUP_FULL, 0, full_layers);
    struct tierce_view *window = open_group(TIERCE_GROUP_WINDOW, 17, window_layers);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    fx.view = full;
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    fx.view = window;
    struct tierce_miss miss = why(chain, 16);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_NEVER_STORED);
    ck_assert_uint_eq(miss.block, 12);
    ck_assert_mem_eq(miss.hash, tierce_chain_hash(chain, 15), TIERCE_HASH_BYTES);

    struct tierce_transfer_opts what = fx_what(&fx, chain, 12, 16, fx_ids);
    fx_fill(&fx, chain, 12, 16, fx_ids);
    ck_assert_int_ge(tierce_store(window, &what), 0);
    ck_assert_int_eq(why(chain, 16).reason, TIERCE_MISS_NONE);
    ck_assert_uint_eq(why(chain, 12).block, 8);

    fx.view = whole;
    tierce_view_close(full);
    tierce_view_close(window);
    end(chain);
}
END_TEST

START_TEST(what_may_be_in_a_tier_that_does_not_answer)
{
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "1h", "timeout.lookup",
                          "20ms",           NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier *memory = fx.engine->levels[0].tier, *disk = fx_wrap(&fx, 1);
    memory->ops->evict(memory, UINT64_MAX);
    tierce__fault_set(disk, TIERCE__STORE_LOOKUP,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_HANG, .times = 1});
    struct tierce_miss miss = why(chain, 8);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_DEADLINE);
    ck_assert_int_eq(miss.status, TIERCE_E_DEADLINE);
    /* This failure opened the breaker. */
    miss = check(chain, 8, TIERCE_MISS_TIER_DOWN, 0);
    ck_assert_int_eq(miss.status, TIERCE_E_DOWN);
    ck_assert_ptr_nonnull(miss.tier);
    /* If the last removal was from this tier, the chunk is not there. */
    struct tierce_chain *other = fx_chain(&fx, 2, 8, 0);
    check(other, 8, TIERCE_MISS_TIER_DOWN, 0);
    struct tierce__store_req req = {.op = TIERCE__STORE_CLEAR, .done = note_done};
    disk->ops->submit(disk, &req);
    check(chain, 8, TIERCE_MISS_CLEARED, 0);
    check(other, 8, TIERCE_MISS_TIER_DOWN, 0);
    tierce_chain_destroy(other);
    end(chain);
}
END_TEST

START_TEST(what_is_computed_sooner)
{
    const char *sets[] = {"cost.read", "1KB", "cost.prefill", "1000000", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 12, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    check(chain, 12, TIERCE_MISS_NEVER_STORED, 8);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    check(chain, 12, TIERCE_MISS_NOT_WORTH_LOADING, 0);
    end(chain);
}
END_TEST

START_TEST(nothing_is_remembered_if_nothing_shall_be)
{
    const char *sets[] = {"misses.remembered", "0", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    check(chain, 8, TIERCE_MISS_NEVER_STORED, 0);
    end(chain);
}
END_TEST

/* ---- the table ---- */

enum { SLOTS = 4096, KEYS = 6000, STEPS = 200000 };

/* A table with room for a whole set has the last reason of each; a smaller table drops the oldest,
 * and never reports a reason that was not noted. */
START_TEST(the_table_remembers_the_last)
{
    struct tierce__departures *table;
    struct test_random random = test_random_start("departures");
    static struct tierce__departure model[KEYS];
    static uint64_t spreads[KEYS];
    memset(model, 0, sizeof(model));
    for (unsigned i = 0; i < KEYS; i++)
        spreads[i] = test_random_u64(&random);
    ck_assert_int_eq(tierce__departures_create(&table, _i == 0 ? 16 * SLOTS : SLOTS), 0);
    unsigned known = 0, forgotten = 0;
    for (unsigned i = 0; i < STEPS; i++) {
        unsigned k = test_random_below(&random, KEYS);
        struct tierce__departure d = {.when_s = i,
                                      .status = -7,
                                      .level = (uint8_t)test_random_below(&random, 3),
                                      .reason = (uint8_t)(1 + test_random_below(&random, 12))};
        unsigned dice = test_random_below(&random, 10);
        bool refused_below = model[k].reason == TIERCE_MISS_NOT_WRITTEN &&
                             d.level < model[k].level &&
                             (d.reason == TIERCE_MISS_EVICTED || d.reason == TIERCE_MISS_EXPIRED);
        if (dice < 4) {
            struct tierce__departure kept;
            if (refused_below && !tierce__departures_find(table, spreads[k], &kept))
                continue; /* the table has dropped an entry that the model still has */
            tierce__departures_note(table, spreads[k], &d);
            if (!refused_below)
                model[k] = d;
        } else if (dice < 5) {
            tierce__departures_forget(table, spreads[k]);
            model[k] = (struct tierce__departure){0};
        } else if (tierce__departures_find(table, spreads[k], &d)) {
            ck_assert_mem_eq(&d, &model[k], sizeof(d));
            known++;
        } else {
            forgotten += model[k].reason != 0;
        }
    }
    ck_assert_uint_gt(known, STEPS / 10);
    ck_assert(_i == 0 ? forgotten < known / 100 : forgotten > 0);
    tierce__departures_destroy(table);
    tierce__departures_destroy(NULL);
}
END_TEST

CHECK_MAIN("why", .seconds = 60,
           .tests = {what_was_never_stored, a_tail_that_was_never_stored_is_not_missing,
                     the_last_tier_that_let_it_go_counts, what_was_cleared, what_has_expired,
                     what_could_not_be_written, what_the_disk_did_not_take,
                     what_a_group_needs_and_lacks, what_may_be_in_a_tier_that_does_not_answer,
                     what_is_computed_sooner, nothing_is_remembered_if_nothing_shall_be},
           .loops = {{what_was_evicted, 0, 3},
                     {what_lies_under_another_namespace, 0, 2},
                     {the_table_remembers_the_last, 0, 2}})
