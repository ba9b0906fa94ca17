/* SPDX-License-Identifier: Apache-2.0 */
/* A scrub drops the locations that a storage does not have, deletes orphans, and nothing else. */
#include "base/alloc.h"
#include "chunk_object.h"
#include "scrub_case.h"
#include "test_random.h"

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(blocks_that_are_there_stay)
{
    store_old();
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.checked, KEYS * PARTS);
    ck_assert_uint_eq(state.counts.missing + state.counts.too_short, 0);
    ck_assert_uint_eq(state.counts.listed, KEYS * PARTS / 2);
    ck_assert_uint_eq(state.counts.orphans + state.counts.young + state.counts.others, 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
}
END_TEST

START_TEST(records_without_files_lose_the_location)
{
    struct tierce__started started = store_old();
    struct part missing = part_of(started.locations[0].specs[0].uri); /* and of keys[1] */
    struct part last = part_of(started.locations[5].specs[1].uri);
    ck_assert_int_eq(unlink(missing.path), 0);
    ck_assert_int_eq(truncate(last.path, last.at + (off_t)last.bytes - 1), 0);
    struct tierce__scrub_state state = run_done(false);
    ck_assert_uint_eq(state.counts.missing, 2);
    ck_assert_uint_eq(state.counts.too_short, 1);
    ck_assert_uint_eq(state.counts.dropped_locations, 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    state = run_done(true);
    ck_assert_uint_eq(state.counts.dropped_locations, 3);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    ck_assert_uint_eq(harness_prefix(&h, keys + 2, 3), 3);
    ck_assert_uint_eq(harness_prefix(&h, keys + 5, 1), 0);
    state = run_done(true);
    ck_assert_uint_eq(state.counts.missing + state.counts.too_short, 0);
}
END_TEST

/* Another host may see a new file later. */
START_TEST(new_records_are_not_checked)
{
    harness_store(&h, keys, KEYS); /* no files */
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.fresh, KEYS * PARTS);
    ck_assert_uint_eq(state.counts.checked, 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
}
END_TEST

START_TEST(orphans_are_deleted)
{
    char orphan[400], gone[400], young[400], foreign[400], deep[400];
    store_old();
    snprintf(orphan, sizeof(orphan), "%s", make_file("i/a/00000000000000f1", true));
    snprintf(gone, sizeof(gone), "%s", make_file("other/a/00000000000000f1", true));
    snprintf(young, sizeof(young), "%s", make_file("i/a/00000000000000f2", false));
    snprintf(foreign, sizeof(foreign), "%s", make_file("i/a/notes.txt", true));
    snprintf(deep, sizeof(deep), "%s", make_file("i/a/b/00000000000000f1", true));
    struct tierce__scrub_state state = run_done(false);
    ck_assert_uint_eq(state.counts.orphans, 2);
    ck_assert_uint_eq(state.counts.orphan_bytes, 200);
    ck_assert_uint_eq(state.counts.deleted_orphans, 0);
    ck_assert(exists(orphan) && exists(gone));
    state = run_done(true);
    ck_assert_uint_eq(state.counts.deleted_orphans, 2);
    ck_assert_uint_eq(state.counts.deleted_bytes, 200);
    ck_assert_uint_eq(state.counts.young, 1);
    ck_assert_uint_eq(state.counts.others, 2);
    ck_assert(!exists(orphan) && !exists(gone));
    ck_assert(exists(young) && exists(foreign) && exists(deep));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(run_done(true).counts.missing, 0);
}
END_TEST

/* A session writes to a file that was made long ago, and a deletion waits for its readers. */
START_TEST(files_in_use_are_no_orphans)
{
    struct tierce__started started = harness_start(&h, keys, KEYS);
    write_all(&started);
    age_all(&started);
    ck_assert_uint_eq(run_done(true).counts.orphans, 0);
    harness_finish(&h, &started);
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", keys, KEYS, &none, h.why), 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    ck_assert_uint_eq(run_done(true).counts.orphans, 0);
    ck_assert(exists(part_of(started.locations[0].specs[0].uri).path));
}
END_TEST

START_TEST(a_listed_file_that_changed_stays)
{
    const char *path = make_file("i/a/00000000000000f1", true);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, "s");
    int64_t other_us = 1;
    int status = 0;
    ck_assert_int_eq(
        tierce__storages_delete_listed(h.storages, storage, &path, &other_us, 1, &status), 0);
    ck_assert_int_eq(status, -EAGAIN);
    ck_assert(exists(path));
    tierce__registry_release(h.registry, catalog);
}
END_TEST

/* ---- storages that are not there ------------------------------------------------------------- */

static void unmount(void)
{
    ck_assert_int_eq(rename(h.folder, aside), 0);
    ck_assert_int_eq(mkdir(h.folder, 0700), 0);
}

START_TEST(a_storage_without_its_mark_is_not_scrubbed)
{
    struct tierce__scrub_request request = {.storage = "s", .repairs = true};
    store_old();
    unmount();
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), TIERCE_E_DOWN);
    ck_assert_msg(strstr(h.why, "mark") != NULL, "%s", h.why);
    request.storage = "none";
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), -ENOENT);
}
END_TEST

static int unmount_and_measure(struct tierce__storage_driver *driver, const char *path,
                               uint64_t *bytes)
{
    if (access(aside, F_OK) != 0)
        unmount();
    return tierce__storage_file.measure(driver, path, bytes);
}

START_TEST(a_storage_that_is_unmounted_meanwhile_loses_nothing)
{
    store_old();
    ops.measure = unmount_and_measure;
    struct tierce__scrub_state state = run(true);
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_FAILED);
    ck_assert_msg(strstr(state.why, "mark") != NULL, "%s", state.why);
    ck_assert_uint_eq(state.counts.missing, KEYS * PARTS);
    ck_assert_uint_eq(state.counts.dropped_locations, 0);
    ck_assert_int_eq(rmdir(h.folder), 0);
    ck_assert_int_eq(rename(aside, h.folder), 0);
    WAIT_FOR(harness_prefix(&h, keys, KEYS) == KEYS);
}
END_TEST

static int measure_away(struct tierce__storage_driver *driver, const char *path, uint64_t *bytes)
{
    unmount();
    int rc = tierce__storage_file.measure(driver, path, bytes);
    ck_assert_int_eq(rmdir(h.folder), 0);
    ck_assert_int_eq(rename(aside, h.folder), 0);
    return rc;
}

/* The mark is right before and after: only a look at both together shows the truth. */
START_TEST(a_storage_that_is_away_for_a_moment_loses_nothing)
{
    store_old();
    tierce__storages_close(h.storages); /* its probes would see the empty folder */
    struct tierce__storages_opts storages = {.size = sizeof(storages),
                                             .registry = h.registry,
                                             .probe_timeout_ms = 60000,
                                             .find_ops = find_ops};
    ck_assert_int_eq(tierce__storages_open(&h.storages, &storages), 0);
    open_scrub(false);
    ops.measure = measure_away;
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.missing, KEYS * PARTS);
    ck_assert_uint_eq(state.counts.dropped_locations, 0);
}
END_TEST

START_TEST(files_that_are_too_long_are_counted)
{
    struct tierce__started started = store_old();
    struct part part = part_of(started.locations[5].specs[1].uri);
    ck_assert_int_eq(truncate(part.path, 2 * PART_B_BYTES + 1), 0); /* two slots */
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.too_long, 2);
    ck_assert_uint_eq(state.counts.dropped_locations, 0); /* its readers know their slots */
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
}
END_TEST

/* Another user: root may read all. The process is the test's own. */
static void lose_rights(const char *path)
{
    char part[400];
    if (geteuid() != 0) {
        ck_assert_int_eq(chmod(path, 0), 0);
        return;
    }
    static const char *const readable[] = {"", "/i", "/i/a", "/i/b"};
    ck_assert_int_eq(chmod(folder, 0755), 0);
    for (size_t i = 0; i < sizeof(readable) / sizeof(*readable); i++) {
        snprintf(part, sizeof(part), "%s%s", h.folder, readable[i]);
        ck_assert_int_eq(chmod(part, 0755), 0);
    }
    ck_assert_int_eq(seteuid(65534), 0);
}

START_TEST(a_folder_that_cannot_be_read)
{
    char closed[400];
    store_old();
    make_file("i/a/00000000000000f1", true);
    make_file("i/closed/00000000000000f2", true);
    snprintf(closed, sizeof(closed), "%s/i/closed", h.folder);
    lose_rights(closed);
    struct tierce__scrub_state state = run(false);
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_INCOMPLETE);
    ck_assert_uint_eq(state.counts.unread, 1);
    ck_assert_uint_eq(state.counts.orphans, 1);
    ck_assert_uint_eq(state.counts.checked, KEYS * PARTS);
    ck_assert_msg(strstr(state.why, "i/closed: ") != NULL, "%s", state.why);
    if (geteuid() != 0 && seteuid(0) != 0)
        ck_assert_int_eq(chmod(closed, 0700), 0);
}
END_TEST

static size_t open_files(void)
{
    size_t count = 0;
    DIR *files = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(files);
    while (readdir(files) != NULL)
        count++;
    closedir(files);
    return count;
}

static int list_and_stop(struct tierce__storage_driver *driver, bool is_first,
                         struct tierce__storage_page *page, char why[128])
{
    int rc = tierce__storage_file.list(driver, is_first, page, why);
    ck_assert(!page->is_end);
    tierce__scrub_leave(scrub);
    return rc;
}

START_TEST(a_listing_that_is_stopped_closes_its_folders)
{
    char name[64];
    store_old();
    for (unsigned i = 0; i < 3 * TIERCE__STORAGE_BATCH_MAX; i++) {
        snprintf(name, sizeof(name), "i/a/%016x", 0x1000000 + i);
        make_file(name, true);
    }
    size_t before = open_files();
    ops.list = list_and_stop;
    open_scrub(true);
    struct tierce__scrub_state state = run(true);
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_STOPPED);
    /* It has lasted less than a second of its clock, so no other leader knows of it. */
    ck_assert_msg(strstr(state.why, "start the scrub again") != NULL, "%s", state.why);
    WAIT_FOR(open_files() <= before); /* a probe may have one open */
    ops.list = tierce__storage_file.list;
    ck_assert_uint_eq(run_done(true).counts.deleted_orphans, 3 * TIERCE__STORAGE_BATCH_MAX);
}
END_TEST

static _Atomic uint64_t looked_at; /* objects */

static int measure_counted(struct tierce__storage_driver *driver, const char *path, uint64_t *bytes)
{
    looked_at++;
    /* A batch may begin when the time of the files before it has passed. */
    ck_assert_uint_le(looked_at, rate_ns / 10000000 + TIERCE__STORAGE_BATCH_MAX);
    return tierce__storage_file.measure(driver, path, bytes);
}

START_TEST(the_rate_is_a_bound)
{
    enum { MANY = 200 };
    int64_t many[MANY];
    struct tierce__scrub_request request = {.storage = "s", .rate = 100};
    struct tierce__scrub_state state;
    open_scrub(true);
    for (int i = 0; i < MANY; i++)
        many[i] = 1000 + i;
    struct tierce__started started = harness_start(&h, many, MANY);
    write_all(&started);
    harness_finish(&h, &started);
    h.now_us += HOUR_US;
    ops.measure = measure_counted;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_DONE);
    ck_assert_uint_eq(looked_at, MANY * PARTS);
    ck_assert_uint_ge(rate_ns, (MANY * PARTS - TIERCE__STORAGE_BATCH_MAX) * UINT64_C(10000000));
}
END_TEST

enum { STALL_S = 1000, EMPTY_PAGES = 10 };
static uint64_t stalled_ns,
    stalled_at; /* when the storage answers again, and the files until then */

static int measure_and_stall(struct tierce__storage_driver *driver, const char *path,
                             uint64_t *bytes)
{
    if (looked_at++ == TIERCE__STORAGE_BATCH_MAX) {
        rate_ns += STALL_S * UINT64_C(1000000000);
        stalled_ns = rate_ns;
        stalled_at = looked_at;
    }
    /* The rest of this batch, and one more. */
    if (stalled_ns > 0)
        ck_assert_uint_le(looked_at - stalled_at,
                          (rate_ns - stalled_ns) / 10000000 + 2 * TIERCE__STORAGE_BATCH_MAX);
    return tierce__storage_file.measure(driver, path, bytes);
}

/* A slow storage is not asked faster later to make up for it. */
START_TEST(an_idle_time_is_not_made_up_for)
{
    enum { MANY = 200 };
    int64_t many[MANY];
    struct tierce__scrub_request request = {.storage = "s", .rate = 100};
    open_scrub(true);
    for (int i = 0; i < MANY; i++)
        many[i] = 1000 + i;
    struct tierce__started started = harness_start(&h, many, MANY);
    write_all(&started);
    harness_finish(&h, &started);
    h.now_us += HOUR_US;
    ops.measure = measure_and_stall;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert_uint_eq(looked_at, MANY * PARTS);
    ck_assert_uint_gt(stalled_ns, 0);
}
END_TEST

static unsigned empty_pages;

static int list_nothing(struct tierce__storage_driver *driver, bool is_first,
                        struct tierce__storage_page *page, char why[128])
{
    (void)driver;
    (void)is_first;
    (void)why;
    page->is_end = ++empty_pages == EMPTY_PAGES;
    return 0;
}

START_TEST(empty_pages_have_a_rate_too)
{
    struct tierce__scrub_request request = {.storage = "s", .rate = 64};
    open_scrub(true);
    ops.list = list_nothing;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert_uint_eq(empty_pages, EMPTY_PAGES);
    ck_assert_uint_ge(rate_ns, (EMPTY_PAGES - 1) * UINT64_C(1000000000));
}
END_TEST

/* ---- things that go -------------------------------------------------------------------------- */

static int list_with_unknown(struct tierce__storage_driver *driver, bool is_first,
                             struct tierce__storage_page *page, char why[128])
{
    int rc = tierce__storage_file.list(driver, is_first, page, why);
    for (size_t i = 1; i < page->count; i += 2)
        page->objects[i].bytes = TIERCE__STORAGE_UNKNOWN_BYTES;
    return rc;
}

START_TEST(a_listing_may_know_some_lengths_only)
{
    char name[64];
    for (unsigned i = 1; i <= 5; i++) {
        snprintf(name, sizeof(name), "i/a/%016x", i);
        make_file(name, true);
    }
    ops.list = list_with_unknown;
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.orphans, 5);
    ck_assert_uint_eq(state.counts.orphan_bytes, 500);
    ck_assert_uint_eq(state.counts.deleted_bytes, 500);
}
END_TEST

static unsigned removed;

/* The next one of the instances "j0" .. "j3", each time that the second direction waits. */
static void remove_one(void)
{
    struct tierce__scrub_state state;
    char id[8], why[TIERCE__WHY_BYTES];
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    if (state.phase != TIERCE__SCRUB_OBJECTS || removed == 4)
        return;
    snprintf(id, sizeof(id), "j%u", removed++);
    ck_assert_int_eq(tierce__locator_remove_instance(h.locator, id, why), 0);
    ck_assert_int_eq(tierce__registry_remove_instance(h.registry, id, why), 0);
}

START_TEST(an_instance_is_removed_meanwhile)
{
    struct tierce__scrub_request request = {.storage = "s", .repairs = true, .rate = 10};
    struct tierce__scrub_state state;
    char id[8], orphan[400];
    store_old();
    snprintf(orphan, sizeof(orphan), "%s", make_file("j2/a/00000000000000f1", true));
    for (unsigned i = 0; i < 4; i++) {
        snprintf(id, sizeof(id), "j%u", i);
        harness_add_instance(&h, id);
    }
    open_scrub(true);
    while_it_waits = remove_one;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_msg(state.phase == TIERCE__SCRUB_DONE, "%s", state.why);
    ck_assert_uint_eq(removed, 4);
    ck_assert_uint_eq(state.counts.deleted_orphans, 1);
    ck_assert(!exists(orphan));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
}
END_TEST

/* The last scrub of a storage is forgotten with it, and is not that of another one of its name. */
START_TEST(a_removed_storage_has_no_last_scrub)
{
    char name[] = "t", root[200], why[256];
    struct tierce__scrub_request request = {.storage = name, .rate = 1000000};
    struct tierce__scrub_state state;
    snprintf(root, sizeof(root), "%s/t/", folder);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    const struct tierce__storage storage = {.name = name,
                                            .type = TIERCE__STORAGE_NFS,
                                            .is_enabled = true,
                                            .root_path = root,
                                            .key_count_per_file = 1};
    for (int i = 0; i < 2; i++) {
        int rc = tierce__registry_add_storage(h.registry, &storage, why);
        ck_assert_msg(rc == 0, "%s", why);
        ck_assert(!tierce__scrub_state(scrub, name, &state));
        WAIT_FOR(tierce__scrub_start(scrub, &request, h.why) == 0);
        tierce__scrub_wait(scrub);
        ck_assert(tierce__scrub_state(scrub, name, &state));
        ck_assert_int_eq(tierce__registry_remove_storage(h.registry, name, why), 0);
        if (i == 0)
            ck_assert(!tierce__scrub_state(scrub, name, &state));
    }
    (void)run_done(false);
    ck_assert(!tierce__scrub_state(scrub, name, &state));
    ck_assert(tierce__scrub_state(scrub, "s", &state));
}
END_TEST

START_TEST(a_slow_scrub_is_stopped)
{
    struct tierce__scrub_request request = {.storage = "s", .rate = 1};
    struct tierce__scrub_state state;
    store_old();
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), -EBUSY);
    stop_scrub("another");
    ck_assert(tierce__scrub_state(scrub, "s", &state) && state.ended_us == 0);
    stop_scrub("s");
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_STOPPED);
    ck_assert_str_eq(state.why, "");
    ck_assert(!tierce__scrub_state(scrub, "another", &state));
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_leave(scrub);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_msg(strstr(state.why, "this manager leads no more") != NULL, "%s", state.why);
}
END_TEST

/* ---- many objects ---------------------------------------------------------------------------- */

enum { MANY_KEYS = 300, MANY_ORPHANS = 40 };

/* Blocks in files of their own, and orphans. */
static void store_many(void)
{
    int64_t many[MANY_KEYS];
    char name[64];
    for (int i = 0; i < MANY_KEYS; i++)
        many[i] = 1000 + i;
    struct tierce__started started = harness_start(&h, many, MANY_KEYS);
    write_all(&started);
    age_all(&started);
    harness_finish(&h, &started);
    h.now_us += HOUR_US;
    for (unsigned i = 1; i <= MANY_ORPHANS; i++) {
        snprintf(name, sizeof(name), "i/a/%016x", i);
        make_file(name, true);
    }
}

/* The number of readings of all records does not grow with the objects, but with the orphans. */
START_TEST(records_are_read_once_for_many_objects)
{
    enum { PAGES = 2 }; /* of the records, in one reading of the first direction; 1 in others */
    struct tierce__scrub_request request = {.storage = "s", .repairs = true, .rate = 64};
    struct tierce__scrub_state state;
    store_many();
    objects_max = MANY_ORPHANS / 2;
    open_scrub(true);
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_msg(state.phase == TIERCE__SCRUB_DONE, "%s", state.why);
    ck_assert_uint_eq(state.counts.checked, MANY_KEYS * PARTS);
    ck_assert_uint_eq(state.counts.listed, MANY_KEYS * PARTS / 2 + MANY_ORPHANS);
    ck_assert_uint_eq(state.counts.deleted_orphans, MANY_ORPHANS);
    int64_t one = 1000;
    ck_assert_uint_eq(harness_prefix(&h, &one, 1), 1);
    ck_assert_uint_eq(run_done(true).counts.missing, 0);
    /* Files that were measured, pages of the listing, orphans; one reading for the filter, and one
     * for each set of orphans and the last one. Without the filter, 17 sets would be read. */
    uint64_t files = MANY_KEYS * PARTS + MANY_KEYS * PARTS / 2 + 2 * MANY_ORPHANS;
    uint64_t pages = PAGES + 8 + 1 + 3 + 1;
    ck_assert_uint_le(rate_ns, (files / 64 + pages) * UINT64_C(1000000000));
}
END_TEST

/* An orphan that the filter has by chance stays, and another scrub deletes it; no block leaves. */
START_TEST(a_small_filter_needs_several_scrubs)
{
    struct tierce__scrub_request request = {.storage = "s", .repairs = true, .rate = 10000000};
    struct tierce__scrub_state state;
    uint64_t deleted = 0;
    unsigned runs = 0;
    store_many();
    objects_max = 20;
    filter_bytes_max = 64; /* for 300 names and more */
    open_scrub(false);
    for (; deleted < MANY_ORPHANS && runs < 100; runs++) {
        ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
        tierce__scrub_wait(scrub);
        ck_assert(tierce__scrub_state(scrub, "s", &state));
        ck_assert_int_eq(state.phase, TIERCE__SCRUB_DONE);
        ck_assert_uint_eq(state.counts.missing, 0);
        deleted += state.counts.deleted_orphans;
    }
    ck_assert_uint_eq(deleted, MANY_ORPHANS);
    ck_assert_uint_gt(runs, 1);
    objects_max = 0;
    open_scrub(false);
    ck_assert_uint_eq(run_done(true).counts.orphans, 0);
}
END_TEST

CHECK_MAIN("scrub", .seconds = 240, .setup = open_all, .teardown = close_all,
           .tests = {blocks_that_are_there_stay,
                     records_without_files_lose_the_location,
                     new_records_are_not_checked,
                     orphans_are_deleted,
                     files_in_use_are_no_orphans,
                     a_listed_file_that_changed_stays,
                     a_storage_without_its_mark_is_not_scrubbed,
                     a_storage_that_is_unmounted_meanwhile_loses_nothing,
                     a_storage_that_is_away_for_a_moment_loses_nothing,
                     files_that_are_too_long_are_counted,
                     a_folder_that_cannot_be_read,
                     a_listing_that_is_stopped_closes_its_folders,
                     the_rate_is_a_bound,
                     an_idle_time_is_not_made_up_for,
                     empty_pages_have_a_rate_too,
                     a_listing_may_know_some_lengths_only,
                     an_instance_is_removed_meanwhile,
                     a_removed_storage_has_no_last_scrub,
                     a_slow_scrub_is_stopped,
                     records_are_read_once_for_many_objects,
                     a_small_filter_needs_several_scrubs})
