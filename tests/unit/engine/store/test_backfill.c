/* SPDX-License-Identifier: Apache-2.0 */
/* A backfill sends a remote store the chunks that it lacks, and queries it in batches. */
#include "check_main.h"
#include "engine/store/backfill.h"
#include "engine_fixture.h"

#include <stdatomic.h>
#include <string.h>

enum { DISK = 1, REMOTE = 2, BLOCKS = 240, CHUNKS = BLOCKS / FX_CHUNK_BLOCKS };

static struct fixture fx;
static char remote[48];
static int32_t ids[BLOCKS];
static struct tierce__tier_ops counting;
static const struct tierce__tier_ops *real;
static atomic_uint lookups;

static void submit_and_count(struct tierce__tier *tier, struct tierce__store_req *req)
{
    bool queries = req->recall == TIERCE__RECALL_NOTHING || req->recall == TIERCE__RECALL_FIRST;
    atomic_fetch_add(&lookups, req->op == TIERCE__STORE_LOOKUP && queries);
    real->submit(tier, req);
}

static void open_engine(void)
{
    char url[80];
    snprintf(url, sizeof(url), "file://%s/store", remote);
    fx_open(&fx, true,
            (const char *const[]){"remote.urls", url, "memory.size", "64MiB", "remote.queue",
                                  "32MiB", NULL});
    ck_assert_uint_eq(fx.engine->level_count, 3);
    struct tierce__tier *tier = fx.engine->levels[REMOTE].tier;
    real = tier->ops;
    counting = *real;
    counting.submit = submit_and_count;
    tier->ops = &counting;
}

static void close_engine(void)
{
    fx.engine->levels[REMOTE].tier->ops = real;
    fx_close(&fx);
}

static unsigned objects(void)
{
    char command[160];
    unsigned count = 0;
    snprintf(command, sizeof(command), "find %s/store -type f -size +3k 2>/dev/null | wc -l",
             remote);
    FILE *out = popen(command, "r");
    ck_assert_int_eq(fscanf(out, "%u", &count), 1);
    pclose(out);
    return count;
}

static struct tierce__backfill_report backfill(void)
{
    struct tierce__backfill_report report;
    atomic_store(&lookups, 0);
    ck_assert_int_eq(tierce__backfill_start(fx.engine, 1ULL << 40), 0);
    do {
        usleep(1000);
        tierce__backfill_report(fx.engine, &report);
    } while (strcmp(report.state, "running") == 0);
    ck_assert_msg(strcmp(report.state, "done") == 0, "%s: %s", report.state, report.reason);
    return report;
}

static void start(void)
{
    strcpy(remote, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(remote);
    for (int32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    open_engine();
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    tierce_chain_destroy(chain);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(objects(), CHUNKS);
    close_engine(); /* and forget the answers of the store */
    open_engine();
}

static void end(void)
{
    close_engine();
    fx_remove(&fx);
    temp_folder_remove(remote);
}

START_TEST(a_store_that_has_all_is_queried_in_batches)
{
    start();
    struct tierce__backfill_report report = backfill();
    ck_assert_uint_eq(report.seen, CHUNKS);
    ck_assert_uint_eq(report.there, CHUNKS);
    ck_assert_uint_eq(report.sent, 0);
    unsigned count = atomic_load(&lookups);
    ck_assert_uint_le(count, CHUNKS / 4);
    end();
}
END_TEST

/* Every chunk, each third one, all but each third one. */
START_TEST(a_store_gets_exactly_what_it_lacks)
{
    static const char *const which[] = {"1", "NR % 3 == 0", "NR % 3 != 0"};
    char command[256];
    start();
    snprintf(command, sizeof(command),
             "find %s/store -type f -size +3k | sort | awk '%s' | xargs rm", remote, which[_i]);
    ck_assert_int_eq(system(command), 0);
    unsigned left = objects();
    ck_assert_uint_lt(left, CHUNKS);
    struct tierce__backfill_report report = backfill();
    ck_assert_uint_eq(report.seen, CHUNKS);
    ck_assert_uint_eq(report.there, left);
    ck_assert_uint_eq(report.sent, CHUNKS - left);
    ck_assert_uint_eq(objects(), CHUNKS);
    unsigned count = atomic_load(&lookups);
    ck_assert_uint_le(count, CHUNKS + CHUNKS / 4);
    end();
}
END_TEST

/* ---- a clear while it runs ---- */

enum { ALL = 1 << TIERCE_ORIGIN_MEMORY | 1 << TIERCE_ORIGIN_DISK | 1 << TIERCE_ORIGIN_REMOTE };

static struct tierce__tier_ops clearing;
static const struct tierce__tier_ops *disk_ops;
static tierce__store_done_fn *asked;
static atomic_bool is_read;
static bool has_cleared;

static void note_read(struct tierce__store_req *req)
{
    (void)req;
    atomic_store(&is_read, true);
}

/* Clears all tiers between the first reading and its answer. */
static void read_and_clear(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op != TIERCE__STORE_GET || has_cleared) {
        disk_ops->submit(tier, req);
        return;
    }
    has_cleared = true;
    asked = req->done;
    req->done = note_read;
    disk_ops->submit(tier, req);
    while (!atomic_load(&is_read))
        usleep(1000);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, ALL, NULL), 0);
    ck_assert_uint_eq(objects(), 0);
    req->done = asked;
    asked(req);
}

/* Runs a backfill when the store has been cleared and the disk has not. */
static void backfill_and_clear(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op == TIERCE__STORE_CLEAR) {
        ck_assert_uint_eq(objects(), 0);
        (void)backfill();
    }
    disk_ops->submit(tier, req);
}

static void start_with_empty_store(void (*submit)(struct tierce__tier *,
                                                  struct tierce__store_req *))
{
    char command[160];
    start();
    snprintf(command, sizeof(command), "find %s/store -type f -size +3k | xargs rm", remote);
    ck_assert_int_eq(system(command), 0);
    struct tierce__tier *disk = fx.engine->levels[DISK].tier;
    disk_ops = disk->ops;
    clearing = *disk_ops;
    clearing.submit = submit;
    disk->ops = &clearing;
}

START_TEST(nothing_is_sent_during_a_clear)
{
    start_with_empty_store(backfill_and_clear);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, ALL, NULL), CHUNKS);
    fx.engine->levels[DISK].tier->ops = disk_ops;
    ck_assert_uint_eq(objects(), 0);
    end();
}
END_TEST

/* The reading began before the clear: its chunk must not come to the store after it. */
START_TEST(nothing_returns_after_a_clear)
{
    start_with_empty_store(read_and_clear);
    struct tierce__backfill_report report = backfill();
    ck_assert(has_cleared);
    fx.engine->levels[DISK].tier->ops = disk_ops;
    ck_assert_uint_eq(report.sent, 0);
    ck_assert_uint_eq(report.refused, 0);
    ck_assert_uint_eq(objects(), 0);
    end();
}
END_TEST

CHECK_MAIN("backfill", .seconds = 60,
           .tests = {a_store_that_has_all_is_queried_in_batches, nothing_returns_after_a_clear,
                     nothing_is_sent_during_a_clear},
           .loops = {{a_store_gets_exactly_what_it_lacks, 0, 3}})
