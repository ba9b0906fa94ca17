/* SPDX-License-Identifier: Apache-2.0 */
/* A scrub beside live writes, of the contents of blocks, and when calls and allocations fail. */
#include "base/alloc.h"
#include "chunk_object.h"
#include "scrub_case.h"
#include "test_random.h"

/* ---- live writes ----------------------------------------------------------------------------- */

enum { LIVE_KEYS = 200, ROUNDS = 40, STEPS = 8, STEP_KEYS = 8 };

/* Every block that is served has its bytes. */
static void check_served(int64_t key)
{
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_PREFIX, &key, 1, 0);
    for (size_t s = 0; s < (got.count > 0 ? got.found[0].spec_count : 0); s++) {
        struct part part = part_of(got.found[0].specs[s].uri);
        struct stat st;
        ck_assert_msg(stat(part.path, &st) == 0, "key %lld: %s", (long long)key, part.path);
        ck_assert_int_ge(st.st_size, part.at + (off_t)part.bytes);
    }
}

static void step(struct test_random *random)
{
    int64_t some[STEP_KEYS];
    struct tierce__mask none = {0};
    for (size_t i = 0; i < STEP_KEYS; i++)
        some[i] = (int64_t)test_random_below(random, LIVE_KEYS);
    if (test_random_below(random, 3) == 0) {
        ck_assert_int_eq(tierce__locator_remove(h.locator, "i", some, STEP_KEYS, &none, h.why), 0);
    } else {
        struct tierce__started started = harness_start(&h, some, STEP_KEYS);
        write_all(&started);
        harness_finish(&h, &started);
        age_all(&started); /* a day passes, so the files may be orphans */
    }
    tierce__deleter_step(h.locator->deleter, 10);
    for (size_t i = 0; i < STEP_KEYS; i++)
        check_served(some[i]);
    tierce__arena_reset(&h.arena);
}

START_TEST(live_writes_lose_nothing)
{
    struct test_random random = test_random_start("scrub");
    struct tierce__scrub_request request = {.storage = "s", .repairs = true, .rate = 10000000};
    unsigned done = 0, rounds = TEST_ROUNDS(ROUNDS) * test_scale();
    for (unsigned i = 0; i < rounds; i++) {
        struct tierce__scrub_state state;
        ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
        for (int n = 0; n < STEPS; n++)
            step(&random);
        tierce__scrub_wait(scrub);
        ck_assert(tierce__scrub_state(scrub, "s", &state));
        done += state.phase == TIERCE__SCRUB_DONE;
        if (i < ROUNDS)
            h.now_us += HOUR_US / 5; /* freed slots are used again */
    }
    ck_assert_uint_gt(done, 0);
    for (int64_t key = 0; key < LIVE_KEYS; key++)
        check_served(key);
    ck_assert_uint_eq(run_done(true).counts.orphans, 0);
}
END_TEST

/* ---- contents -------------------------------------------------------------------------------- */

enum { CELL_BYTES = 64, ENGINE_KEYS = 7 };

static void add_engine(uint64_t block_bytes)
{
    static const unsigned char digest[TIERCE_HASH_BYTES] = {1};
    char extra[TIERCE__ENGINE_EXTRA_BYTES], id[] = "e", group[] = "g", spec[] = "tp0", none[] = "",
                                            model[] = "m", dtype[] = "bf16";
    char *only[] = {spec};
    tierce__engine_extra(extra, digest, digest);
    struct tierce__spec_info specs[] = {{spec, (int64_t)block_bytes}};
    struct tierce__spec_group groups[] = {{spec, only, 1}};
    struct tierce__instance instance = {.id = id,
                                        .group_name = group,
                                        .quota_group_name = none,
                                        .block_size = 64,
                                        .specs = specs,
                                        .spec_count = 1,
                                        .spec_groups = groups,
                                        .spec_group_count = 1,
                                        .user_data = none,
                                        .model = {.model_name = model,
                                                  .dtype = dtype,
                                                  .lora_name = none,
                                                  .extra = extra,
                                                  .user_data = none}};
    int rc = tierce__registry_add_instance(h.registry, &instance, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    ck_assert_int_eq(tierce__locator_add_instance(h.locator, "e", h.why), 0);
}

/* Block i is whole, but four: a byte differs, it is another block's, it is no chunk, it has a
 * version of tomorrow. */
static void write_chunk(const char *uri, int64_t key, size_t i)
{
    uint64_t bytes = chunk_object_bytes(CELL_BYTES);
    struct part part = part_of(uri);
    uint8_t *object = calloc(1, bytes);
    ck_assert_uint_eq(part.bytes, bytes);
    if (i != 3)
        chunk_object_fill(object, i == 2 ? key + 1 : key, 0, CELL_BYTES, (uint8_t)i);
    object[bytes / 2] ^= i == 1;
    object[8] = i == 4 ? 99 : object[8];
    make_folders(part.path);
    int fd = open(part.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, object, bytes, part.at), (ssize_t)bytes);
    close(fd);
    free(object);
}

START_TEST(blocks_of_engines_are_verified)
{
    int64_t blocks[ENGINE_KEYS];
    struct tierce__started started = {0};
    struct tierce__mask all = {.offset = ENGINE_KEYS};
    uint64_t bytes = chunk_object_bytes(CELL_BYTES);
    struct tierce__scrub_request request = {
        .storage = "s", .rate = 1000000, .verify_share = 1, .byte_rate = bytes};
    struct tierce__scrub_state state;
    add_engine(bytes);
    store_old(); /* of a client that is no engine */
    for (int i = 0; i < ENGINE_KEYS; i++)
        blocks[i] = 5000 + i * 10;
    const struct tierce__write_request write = {
        .instance_id = "e", .keys = blocks, .count = ENGINE_KEYS, .timeout_s = 30};
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &write, &h.arena, &started, h.why), 0);
    for (size_t i = 0; i < ENGINE_KEYS; i++)
        write_chunk(started.locations[i].specs[0].uri, blocks[i], i);
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "e", started.session, &all, h.why), 0);
    h.now_us += HOUR_US;
    ck_assert_uint_eq(run_done(true).counts.verified, 0); /* unless it is asked for */
    open_scrub(true);
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_DONE);
    ck_assert_uint_eq(state.counts.verified, ENGINE_KEYS);
    ck_assert_uint_eq(state.counts.verified_bytes, ENGINE_KEYS * bytes);
    ck_assert_uint_eq(state.counts.damaged, 3);
    ck_assert_uint_eq(state.counts.unprovable, 1);
    ck_assert_uint_eq(state.counts.dropped_locations, 0);
    ck_assert_uint_ge(rate_ns, (ENGINE_KEYS - 1) * UINT64_C(1000000000));
    open_scrub(false);
    request.byte_rate = 0;
    request.repairs = true;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_uint_eq(state.counts.dropped_locations, 3);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_uint_eq(state.counts.verified, ENGINE_KEYS - 3);
    ck_assert_uint_eq(state.counts.damaged, 0);
}
END_TEST

static int read_never(struct tierce__storage_driver *driver, const char *path, uint64_t offset,
                      void *out, size_t bytes)
{
    (void)driver;
    (void)path;
    (void)offset;
    (void)out;
    (void)bytes;
    ck_abort_msg("a block above the limit is read");
    return -EIO;
}

START_TEST(a_block_above_the_limit_is_not_read)
{
    const int64_t key = 5000;
    struct tierce__scrub_request request = {.storage = "s", .rate = 1000000, .verify_share = 1};
    struct tierce__started started = {0};
    struct tierce__mask all = {.offset = 1};
    struct tierce__scrub_state state;
    add_engine(TIERCE__STORAGE_READ_MAX + 1);
    const struct tierce__write_request write = {
        .instance_id = "e", .keys = &key, .count = 1, .timeout_s = 30};
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &write, &h.arena, &started, h.why), 0);
    ck_assert_uint_eq(started.count, 1);
    struct part part = part_of(started.locations[0].specs[0].uri);
    part.bytes = 1;
    write_at(&part, 'x');
    ck_assert_int_eq(truncate(part.path, TIERCE__STORAGE_READ_MAX + 1), 0);
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "e", started.session, &all, h.why), 0);
    h.now_us += HOUR_US;
    ops.read = read_never;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_msg(state.phase == TIERCE__SCRUB_DONE, "%s", state.why);
    ck_assert_uint_eq(state.counts.verified, 0);
    ck_assert_uint_eq(state.counts.unprovable, 1);
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

static _Atomic unsigned calls, fails; /* the call that fails; 0: none */

static bool is_failing(void)
{
    return ++calls == fails;
}

static int fail_measure(struct tierce__storage_driver *driver, const char *path, uint64_t *bytes)
{
    return is_failing() ? -EIO : tierce__storage_file.measure(driver, path, bytes);
}

static int fail_again(struct tierce__storage_driver *driver, const char *id, const char *path,
                      uint64_t *bytes)
{
    return is_failing() ? -EIO : tierce__storage_file.measure_marked(driver, id, path, bytes);
}

static int fail_list(struct tierce__storage_driver *driver, bool is_first,
                     struct tierce__storage_page *page, char why[128])
{
    return is_failing() ? -EIO : tierce__storage_file.list(driver, is_first, page, why);
}

static int fail_delete(struct tierce__storage_driver *driver, const char *id, const char *path,
                       int64_t changed_us)
{
    return is_failing() ? -EIO : tierce__storage_file.remove_listed(driver, id, path, changed_us);
}

/* Two blocks without a file, and a file without a block; its path. */
static const char *break_something(void)
{
    struct tierce__started started = harness_start(&h, keys + 4, 2);
    ck_assert_uint_eq(started.count, 2);
    write_all(&started);
    age_all(&started);
    harness_finish(&h, &started);
    h.now_us += HOUR_US;
    ck_assert_int_eq(unlink(part_of(started.locations[1].specs[0].uri).path), 0);
    tierce__arena_reset(&h.arena);
    return make_file("i/a/00000000000000f1", true);
}

/* Whatever has failed, the blocks that are whole stay; and the next scrub repairs the rest. */
static void check_repaired(const char *orphan)
{
    /* An allocation that failed on the prober's thread makes the storage unwell until its next
     * turn.
     */
    WAIT_FOR(harness_prefix(&h, keys, 4) == 4);
    (void)run_done(true);
    ck_assert_uint_eq(harness_prefix(&h, keys + 4, 2), 0); /* the lost file had both */
    ck_assert_uint_eq(harness_prefix(&h, keys, 4), 4);
    ck_assert(!exists(orphan));
    tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    tierce__arena_reset(&h.arena);
}

/* Four blocks that stay. */
static void store_four(void)
{
    struct tierce__started started = harness_start(&h, keys, 4);
    write_all(&started);
    age_all(&started);
    harness_finish(&h, &started);
    tierce__arena_reset(&h.arena);
}

START_TEST(each_call_fails_once)
{
    store_four();
    ops.measure = fail_measure;
    ops.measure_marked = fail_again;
    ops.list = fail_list;
    ops.remove_listed = fail_delete;
    for (unsigned n = 1;; n++) {
        const char *orphan = break_something();
        calls = 0;
        fails = n;
        struct tierce__scrub_state state = run(true);
        bool was_reached = calls >= n;
        fails = 0;
        ck_assert(!was_reached || state.phase == TIERCE__SCRUB_INCOMPLETE ||
                  state.phase == TIERCE__SCRUB_FAILED);
        ck_assert(!was_reached || state.why[0] != '\0');
        check_repaired(orphan);
        if (!was_reached)
            break;
        ck_assert_uint_lt(n, 1000);
    }
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    store_four();
    for (uint64_t n = 1;; n++) {
        struct tierce__scrub_request request = {.storage = "s", .repairs = true, .rate = 1000000};
        const char *orphan = break_something();
        tierce__alloc_fail_nth(n);
        int rc = tierce__scrub_start(scrub, &request, h.why);
        tierce__scrub_wait(scrub);
        bool was_reached = tierce__alloc_fail_nth(0) >= n;
        ck_assert(rc == 0 || was_reached);
        check_repaired(orphan);
        if (!was_reached)
            break;
    }
}
END_TEST

CHECK_MAIN("scrub blocks", .seconds = 240, .setup = open_all, .teardown = close_all,
           .tests = {live_writes_lose_nothing, blocks_of_engines_are_verified,
                     a_block_above_the_limit_is_not_read, each_call_fails_once,
                     each_allocation_fails_once})
