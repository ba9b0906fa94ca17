/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hybrid models: prompts go through a manager, whose event log is replayed. The live hits and those
 * of the replay are equal. Then the same log is replayed with too little room.
 */
#include "check_main.h"
#include "base/log/line_log.h"
#include "hybrid_replay.h"
#include "manager/event_log.h"
#include "manager_hybrid.h"
#include "test_random.h"

enum {
    TOKENS = 4,
    LENGTH = 8,
    PROMPTS = 300,
    TREES = 12,
    RUN = 3, /* blocks of the window */
    EVERY = 2,
    FULL_BYTES = 100,
    WINDOW_BYTES = 40,
    STATE_BYTES = 160
};

static const struct hybrid_group full_group = {"full", "full", "f",        TOKENS,
                                               0,      0,      FULL_BYTES, "0-3"};
static const struct hybrid_group window_group = {"window", "window", "f",          TOKENS,
                                                 10,       0,        WINDOW_BYTES, "4-7"};
static const struct hybrid_group state_group = {"state", "linear",      "f",         TOKENS,
                                                0,       EVERY *TOKENS, STATE_BYTES, "8-9"};

static struct harness h;
static struct tierce__line_log *events;
static char log_path[128];

static size_t get(const char *id, int query, const int64_t *keys, size_t count)
{
    struct tierce__get_request request = {
        .instance_id = id, .query = query, .keys = keys, .count = count};
    struct tierce__got got;
    int rc = tierce__locator_get(h.locator, &request, &h.arena, &got, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    tierce__events_get(events, h.now_us, &request, NULL, 0, &got);
    return got.hits;
}

/* Writes the last of `count` keys, as the connector does: behind the key before it. */
static void put(const char *id, const int64_t *keys, size_t count)
{
    const int64_t *from = keys + (count > 1 ? count - 2 : 0);
    struct tierce__write_request request = {
        .instance_id = id, .keys = from, .count = count > 1 ? 2 : 1, .timeout_s = 30};
    struct tierce__started started;
    uint8_t written[2] = {false, false};
    int rc = tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    tierce__events_start(events, h.now_us, &request, NULL, 0, &started);
    if (started.count == 0)
        return;
    written[started.count - 1] = !tierce__mask_has(&started.mask, request.count - 1);
    struct tierce__mask mask = {.is_values = true, .values = written, .count = started.count};
    rc = tierce__locator_finish_write(h.locator, id, started.session, &mask, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    tierce__events_finish(events, h.now_us, id, started.session, &mask);
}

/* The blocks after which an engine continues: it has full attention of `full` blocks. */
static size_t find_resume(const int64_t *keys, size_t full)
{
    for (size_t at = full; at > 0; at--) {
        size_t run = at < RUN ? at : RUN;
        if (get("state", TIERCE__QUERY_BATCH, keys + at - 1, 1) == 1 &&
            get("window", TIERCE__QUERY_BATCH, keys + at - run, run) == run)
            return at;
    }
    return 0;
}

/* Prompts of a few trees, which differ from some block on. The groups store what they lack: windows
 * the last blocks of a prompt, and states some. */
static size_t serve(struct test_random *random)
{
    int64_t keys[LENGTH];
    size_t count = 2 + test_random_below(random, LENGTH - 1);
    int64_t tree = (int64_t)test_random_below(random, TREES) * 1000;
    size_t fork = 1 + test_random_below(random, LENGTH);
    int64_t branch = (int64_t)(test_random_below(random, 3) * 100 + fork * 10);
    for (size_t i = 0; i < count; i++)
        keys[i] = 1000 + tree + (i >= fork ? branch : 0) + (int64_t)i;
    h.now_us += 20 * 1000000LL;
    size_t hit = find_resume(keys, get("full", TIERCE__QUERY_PREFIX, keys, count));
    for (size_t i = 1; i <= count; i++)
        put("full", keys, i);
    for (size_t i = count > RUN ? count - RUN + 1 : 1; i <= count; i++)
        put("window", keys, i);
    for (size_t i = 1; i <= count; i++) {
        if (i % EVERY == 0 && test_random_below(random, 4) > 0)
            put("state", keys, i);
    }
    tierce__arena_clear(&h.arena);
    return hit;
}

START_TEST(live_hits_are_replayed)
{
    struct test_random random = test_random_start("hybrid_replay");
    uint64_t hits = 0;
    open_all(&h, &(struct harness_opts){0});
    hybrid_add(&h, &full_group);
    hybrid_add(&h, &window_group);
    hybrid_add(&h, &state_group);
    snprintf(log_path, sizeof(log_path), "%s/events.log", h.folder);
    struct tierce__line_log_opts opts = {
        .size = sizeof(opts), .path = log_path, .failure = "test.failed"};
    int rc = tierce__line_log_open(&events, &opts, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    for (int i = 0; i < PROMPTS; i++)
        hits += serve(&random);
    tierce__line_log_close(events);
    struct hybrid_replayed all = hybrid_replay(log_path, 0, true);
    ck_assert_uint_eq(all.lookups, PROMPTS);
    ck_assert_uint_eq(all.hit_tokens, hits * TOKENS);
    ck_assert_uint_gt(hits, PROMPTS);
    struct tierce__usage usage = harness_usage(&h);
    ck_assert_uint_eq(all.used_bytes, usage.serving_bytes);
    ck_assert_uint_eq(all.evicted, 0);
    for (uint64_t part = 8; part > 1; part /= 2) {
        struct hybrid_replayed paired = hybrid_replay(log_path, all.used_bytes / part, true);
        struct hybrid_replayed alone = hybrid_replay(log_path, all.used_bytes / part, false);
        ck_assert_uint_le(paired.used_bytes, all.used_bytes / part);
        ck_assert_uint_le(alone.used_bytes, all.used_bytes / part);
        ck_assert_uint_gt(alone.evicted, 0);
    }
    close_all(&h);
}
END_TEST

CHECK_MAIN("hybrid_replay", .tests = {live_hits_are_replayed})
