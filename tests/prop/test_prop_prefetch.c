/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"
#include "tier_fault.h"

#include <errno.h>

/*
 * Random prefetches of prompts that share prefixes, while tiers fail, are late or hang, chunks
 * leave memory, loads read the same chunks, and some are ended or forgotten. The model knows how
 * many leading chunks of each prompt the disk has; what a prefetch reports must be at most that,
 * and all of it where nothing was in the way. The chunks that it held are really in memory. In the
 * end memory is as it was.
 */

enum {
    PROMPTS = 6,
    LIVE = 4,
    STEPS = 150,
    BLOCKS_MAX = 60,
    TIMEOUT_MS = 60,
    TIMEOUT_MAX_MS = 5000
};

static struct fixture fx;
static struct tierce__tier *disk, *memory;
static struct test_random random_;

struct prompt {
    struct tierce_chain *chain;
    size_t blocks;
};

static struct prompt prompts[PROMPTS];

/* A prefetch under way. */
struct run {
    struct tierce_prefetch *prefetch; /* NULL: the place is free */
    struct prompt *prompt;
    uint64_t session, from_block, to_block;
    bool pin, disturbed; /* something may have kept chunks away */
    unsigned told;
};

static struct run runs[LIVE];
static bool disturbed; /* a fault is set now */

static uint32_t below(uint32_t bound)
{
    return test_random_below(&random_, bound);
}

static void open_all(void)
{
    static const char *const sets[] = {"breaker.errors",
                                       "1000000",
                                       "breaker.window",
                                       "0",
                                       "timeout.lookup",
                                       "20ms",
                                       "timeout.load", /* less than await_quiet has */
                                       "10s",
                                       "prefetch.memory",
                                       "3%",
                                       "prefetch.disk_window",
                                       "40KiB",
                                       NULL};
    silence_log();
    fx_open(&fx, true, sets);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        struct prompt *p = &prompts[i];
        p->blocks = FX_CHUNK_BLOCKS * (1 + below(BLOCKS_MAX / FX_CHUNK_BLOCKS));
        p->chain = fx_chain(&fx, 1 + 1000 * i, p->blocks, below(2) == 0 ? p->blocks / 2 : 0);
        int32_t ids[BLOCKS_MAX];
        for (int32_t b = 0; b < BLOCKS_MAX; b++)
            ids[b] = b;
        ck_assert_int_ge(fx_store(&fx, p->chain, p->blocks, ids, true), 0);
    }
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    memory = fx.engine->levels[0].tier;
    disk = fx_wrap(&fx, 1);
}

static void note_done(void *arg, const struct tierce_prefetch_result *result)
{
    struct run *run = arg;
    ck_assert(result->final);
    run->told++;
}

static void begin(struct run *run)
{
    struct prompt *prompt = &prompts[below(PROMPTS)];
    uint64_t session = run->session;
    *run = (struct run){.prompt = prompt,
                        .session = session,
                        .from_block = below((uint32_t)prompt->blocks),
                        .to_block = 1 + below((uint32_t)prompt->blocks),
                        .pin = below(3) > 0,
                        .disturbed = disturbed};
    bool short_of_time = below(3) == 0;
    uint32_t timeout_ms = short_of_time ? 1 + below(TIMEOUT_MS) : TIMEOUT_MAX_MS;
    run->disturbed |= short_of_time;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .flags = run->pin ? TIERCE_PREFETCH_PIN : 0,
                                        .session = session,
                                        .from_block = run->from_block,
                                        .timeout_ms = timeout_ms,
                                        .on_done = note_done,
                                        .arg = run};
    ck_assert_int_eq(
        tierce_prefetch_begin(&run->prefetch, fx.view, prompt->chain, run->to_block, &opts), 0);
}

/* Bounds of a report at any time. */
static void check_bounds(const struct run *run, const struct tierce_prefetch_result *result)
{
    ck_assert_uint_le(result->memory_blocks, result->blocks);
    ck_assert_uint_le(result->blocks, run->to_block);
    uint64_t first = run->from_block / FX_CHUNK_BLOCKS * FX_CHUNK_BLOCKS;
    first = first < run->to_block ? first : run->to_block;
    ck_assert_uint_ge(result->memory_blocks, first);
    uint64_t promised = 0, loaded = 0, from = run->from_block;
    for (size_t i = 0; i < result->tier_count; i++) {
        ck_assert_uint_le(result->tiers[i].loaded, result->tiers[i].promised);
        promised += result->tiers[i].promised;
        loaded += result->tiers[i].loaded;
    }
    ck_assert_uint_eq(promised, result->blocks > from ? result->blocks - from : 0);
    ck_assert_uint_eq(loaded, result->memory_blocks > from ? result->memory_blocks - from : 0);
}

/* Chunks held for a session are in memory, with the right bytes. */
static void check_held(const struct run *run, uint64_t blocks)
{
    int32_t ids[BLOCKS_MAX];
    uint8_t origins[BLOCKS_MAX];
    for (int32_t b = 0; b < BLOCKS_MAX; b++)
        ids[b] = 100 + b;
    if (blocks <= run->from_block)
        return;
    struct tierce_transfer_opts what =
        fx_what(&fx, run->prompt->chain, run->from_block, blocks, ids);
    what.session = run->session;
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), (int64_t)(blocks - run->from_block));
    for (uint64_t b = run->from_block; b < blocks; b++) {
        ck_assert_uint_eq(origins[b - run->from_block], TIERCE_ORIGIN_MEMORY);
        ck_assert(fx_right(&fx, run->prompt->chain, b, ids[b]));
    }
}

static void end(struct run *run)
{
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    if (below(4) > 0) {
        int rc = tierce_prefetch_wait(run->prefetch, TIMEOUT_MAX_MS + 5000);
        ck_assert_int_eq(rc, 0); /* each ends at its deadline, hanging tiers or not */
    }
    bool final = tierce_prefetch_poll(run->prefetch, &result);
    check_bounds(run, &result);
    if (final && run->pin)
        check_held(run, result.memory_blocks);
    /* A request for nothing, with its end before its beginning, reports the same hits. */
    if (run->from_block < run->to_block && final && !run->disturbed && !result.late &&
        !result.short_of_memory)
        ck_assert_uint_eq(result.memory_blocks, run->to_block);
    tierce_prefetch_end(run->prefetch);
    ck_assert_uint_eq(run->told, 1);
    tierce_unpin(fx.view, run->session);
    run->prefetch = NULL;
}

static void disturb(void)
{
    static const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_NONE, TIERCE__FAULT_ERROR,
                                                    TIERCE__FAULT_DELAY, TIERCE__FAULT_HANG};
    struct tierce__fault_rule rule = {
        .kind = kinds[below(4)], .status = -EIO, .delay_ms = below(10), .skip = below(8)};
    enum tierce__store_op op = below(3) == 0 ? TIERCE__STORE_LOOKUP : TIERCE__STORE_GET;
    tierce__fault_set(disk, TIERCE__STORE_LOOKUP, NULL);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    tierce__fault_set(disk, op, &rule);
    disturbed = rule.kind == TIERCE__FAULT_ERROR || rule.kind == TIERCE__FAULT_HANG ||
                op == TIERCE__STORE_LOOKUP;
    for (size_t i = 0; i < LIVE; i++)
        runs[i].disturbed |= disturbed;
}

static void load_beside(void)
{
    const struct prompt *p = &prompts[below(PROMPTS)];
    int32_t ids[BLOCKS_MAX];
    uint8_t origins[BLOCKS_MAX];
    for (int32_t b = 0; b < BLOCKS_MAX; b++)
        ids[b] = 300 + b;
    struct tierce_transfer_opts what = fx_what(&fx, p->chain, 0, p->blocks, ids);
    what.timeout_ms = 1 + below(TIMEOUT_MS);
    ck_assert_int_ge(tierce_load(fx.view, &what, origins), 0);
    for (size_t b = 0; b < p->blocks; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, p->chain, b, ids[b]));
}

static void step(void)
{
    struct run *run = &runs[below(LIVE)];
    switch (below(6)) {
    case 0:
        disturb();
        break;
    case 1: /* an eviction while one gathers is a gap */
        memory->ops->evict(memory, 1 + below(1 << 20));
        for (size_t i = 0; i < LIVE; i++)
            runs[i].disturbed = true;
        break;
    case 2:
        load_beside();
        break;
    default:
        if (run->prefetch != NULL)
            end(run);
        else
            begin(run);
    }
}

static void await_quiet(void)
{
    uint64_t give_up = tierce__deadline_in_ms(20000);
    struct tierce_engine_stats s;
    do {
        memory->ops->evict(memory, UINT64_MAX);
        usleep(1000);
        s = fx_stats(&fx);
    } while ((s.memory_bytes_now > 0 || s.prefetch_bytes_now > 0) && tierce__now_ns() < give_up);
    ck_assert_int_eq(s.memory_bytes_now, 0);
    ck_assert_int_eq(s.prefetch_bytes_now, 0);
    ck_assert_int_eq(s.pinned_bytes_now, 0);
    ck_assert_int_eq(s.sessions_now, 0);
}

START_TEST(prefetches_report_what_is_there_and_give_all_back)
{
    random_ = test_random_start("prefetch");
    open_all();
    for (size_t i = 0; i < LIVE; i++)
        runs[i].session = 1 + i;
    for (unsigned i = 0; i < STEPS * test_scale(); i++)
        step();
    for (size_t i = 0; i < LIVE; i++) {
        if (runs[i].prefetch != NULL)
            end(&runs[i]);
        tierce_unpin(fx.view, runs[i].session);
    }
    await_quiet();
    for (size_t i = 0; i < PROMPTS; i++)
        tierce_chain_destroy(prompts[i].chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("prop_prefetch", .seconds = 100 * (int)test_scale(),
           .tests = {prefetches_report_what_is_there_and_give_all_back})
