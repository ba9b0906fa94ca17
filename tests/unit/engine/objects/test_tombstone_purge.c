/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a remote store that is back is rid of the values that have a tombstone. */
#include "base/clock.h"
#include "check_main.h"
#include "engine/objects/objects_private.h"
#include "engine/objects/tombstones.h"
#include "engine_fixture.h"
#include "tombstone_file.h"
#include "wait_for.h"

#include <stdio.h>

/* 64 in each of the keeper's periods of 100 ms would take 30 s. */
enum { COUNT = 19200, PERIODS_MS = 30000 };

static struct fixture fx;
static struct tierce__objects *space;
static char remote[64], url[96];

static void open_engine(void)
{
    fx_open(&fx, true, (const char *const[]){"remote.urls", url, NULL});
    ck_assert_uint_eq(fx.engine->level_count, 3);
}

START_TEST(test_the_keeper_goes_on_while_there_are_some)
{
    static const uint8_t digest[TIERCE_HASH_BYTES] = {1};
    char path[96];
    strcpy(remote, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(remote);
    snprintf(url, sizeof(url), "file://%s/store", remote);
    open_engine();
    uint64_t store = fx.engine->levels[2].store;
    fx_close(&fx);
    snprintf(path, sizeof(path), "%s/tombstones", fx.folder);
    write_tombstones(path, COUNT, store, digest);
    open_engine();
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    ck_assert_uint_gt(tierce__tombstones_count(fx.engine->tombstones), 0);
    WAIT_FOR(tierce__tombstones_count(fx.engine->tombstones) == 0);
    uint64_t ms = (tierce__now_ns() - begun_ns) / TIERCE__MS_NS;
    printf("%u tombstones in %llu ms\n", COUNT, (unsigned long long)ms);
    ck_assert_uint_lt(ms, PERIODS_MS * 2 / 3);
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(remote);
}
END_TEST

CHECK_MAIN("deleting what has a tombstone", .seconds = 120,
           .tests = {test_the_keeper_goes_on_while_there_are_some})
