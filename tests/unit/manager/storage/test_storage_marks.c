/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of storages: a folder that is not the one in which the blocks were stored is noticed. */
#include "base/alloc.h"
#include "check_main.h"
#include "manager_harness.h"
#include "manager/registry/catalog.h"
#include "manager/storage/storage_worker.h"
#include "wait_for.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/tierce-test-marks-XXXXXX";
static struct harness h;
static char aside[128], uri[128];
static const int64_t keys[] = {11, 22, 33};
enum { KEYS = 3 };

static void open_registry(struct tierce__registry **registry, const char *where)
{
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = where};
    ck_assert_int_eq(tierce__registry_open(registry, &opts, h.why), 0);
    ck_assert_msg(tierce__registry_load(*registry, 1, h.why) == 0, "%s", h.why);
}

static struct tierce__storages *probe(struct tierce__registry *registry)
{
    struct tierce__storages *storages = NULL;
    struct tierce__storages_opts opts = {.size = sizeof(opts),
                                         .registry = registry,
                                         .probe_interval_ms = 20,
                                         .probe_timeout_ms = 60000};
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    return storages;
}

static void start(const char *where)
{
    open_registry(&h.registry, where);
    harness_startup(&h, &(struct harness_opts){.keys_per_file = 2});
    h.storages = probe(h.registry);
    harness_open_locator(&h, &(struct harness_opts){0});
}

static void stop(void)
{
    tierce__arena_clear(&h.arena);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
}

static void set_up(void)
{
    temp_folder_make(folder);
    h = (struct harness){.now_us = 1000000000000};
    snprintf(h.folder, sizeof(h.folder), "%s/root", folder);
    snprintf(aside, sizeof(aside), "%s/aside", folder);
    snprintf(uri, sizeof(uri), "local://%s/registry", folder);
    ck_assert_int_eq(mkdir(h.folder, 0700), 0);
}

static void tear_down(void)
{
    temp_folder_remove(folder);
}

static struct tierce__storage_state state(struct tierce__storages *storages)
{
    struct tierce__storage_state out;
    tierce__storages_state(storages, "s", &out);
    return out;
}

/* The storage as the registry has it now. */
static struct tierce__storage *storage(void)
{
    static struct tierce__storage copy;
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    tierce__storage_clear(&copy);
    ck_assert_int_eq(tierce__storage_copy(&copy, tierce__catalog_storage(catalog, "s")), 0);
    tierce__registry_release(h.registry, catalog);
    return &copy;
}

static bool is_marked(void)
{
    return storage()->is_marked;
}

static void read_mark(char *id)
{
    char path[160], text[128] = "";
    snprintf(path, sizeof(path), "%s/" TIERCE__STORAGE_MARK, h.folder);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(text, 1, sizeof(text), file);
    fclose(file);
    ck_assert(tierce__storage_mark_read(id, text, bytes));
}

static void write_mark(const char *text)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/" TIERCE__STORAGE_MARK, h.folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void store(void)
{
    struct tierce__started started = harness_start(&h, keys, KEYS);
    harness_write_files(started.locations, started.count);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
}

static void unmount(void)
{
    ck_assert_int_eq(rename(h.folder, aside), 0);
    ck_assert_int_eq(mkdir(h.folder, 0700), 0);
}

static void mount(void)
{
    ck_assert_int_eq(rmdir(h.folder), 0); /* nothing was written to it */
    ck_assert_int_eq(rename(aside, h.folder), 0);
}

/* Reports the first block's part as missing. */
static uint64_t report(const char *at, enum tierce__report_reason reason)
{
    uint64_t dropped = 99;
    struct tierce__location_report one = {
        .key = keys[0], .spec_name = "a", .uri = at, .reason = reason};
    ck_assert_int_eq(tierce__locator_report(h.locator, "i", &one, 1, &dropped, h.why), 0);
    return dropped;
}

START_TEST(a_storage_gets_its_mark_once)
{
    char id[TIERCE__STORAGE_ID_HEX + 1], again[TIERCE__STORAGE_ID_HEX + 1];
    start(uri);
    WAIT_FOR(is_marked());
    read_mark(id);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    ck_assert_str_eq(tierce__catalog_id(catalog), id);
    tierce__registry_release(h.registry, catalog);
    stop();
    start(uri); /* as the next leader */
    WAIT_FOR(state(h.storages).is_probed);
    ck_assert(state(h.storages).is_well);
    ck_assert(is_marked());
    read_mark(again);
    ck_assert_str_eq(id, again);
    stop();
}
END_TEST

/* An empty mount point is not used, and its blocks are there again when it is mounted. */
START_TEST(an_empty_mount_point)
{
    char at[512], path[512];
    const char *paths[] = {path};
    int status = 0;
    start(uri);
    harness_add_instance(&h, "i");
    WAIT_FOR(is_marked());
    store();
    snprintf(at, sizeof(at), "%s",
             harness_get(&h, TIERCE__QUERY_PREFIX, keys, 1, 0).found[0].specs[0].uri);
    unmount();
    WAIT_FOR(!state(h.storages).is_well);
    ck_assert_msg(strstr(state(h.storages).why, TIERCE__STORAGE_MARK " is missing") != NULL, "%s",
                  state(h.storages).why);
    ck_assert(tierce__storages_has_wrong_mark(h.storages, storage()));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    ck_assert_uint_eq(report(at, TIERCE__REPORT_MISSING), 0);
    ck_assert_uint_eq(report(at, TIERCE__REPORT_DAMAGED), 0);
    snprintf(path, sizeof(path), "%s/x", h.folder);
    ck_assert_int_eq(tierce__storages_delete(h.storages, storage(), paths, 1, &status), 0);
    ck_assert_int_eq(status, TIERCE_E_DOWN);
    mount();
    WAIT_FOR(state(h.storages).is_well);
    ck_assert(!tierce__storages_has_wrong_mark(h.storages, storage()));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(report(at, TIERCE__REPORT_MISSING), 1);
    stop();
}
END_TEST

/* A leader that has just begun does not know yet that the folder is an empty mount point, where no
 * file is left to delete. */
START_TEST(nothing_is_deleted_before_the_mark_was_seen)
{
    char path[512];
    const char *paths[] = {path};
    int status = 0;
    struct tierce__storages_opts opts = {
        .size = sizeof(opts), .registry = NULL, .probe_timeout_ms = 60000}; /* no probes */
    start(uri);
    harness_add_instance(&h, "i");
    WAIT_FOR(is_marked());
    snprintf(path, sizeof(path), "%s/i/a/0000000000010000", h.folder);
    unmount();
    opts.registry = h.registry;
    struct tierce__storages *next = NULL;
    ck_assert_int_eq(tierce__storages_open(&next, &opts), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(tierce__storages_delete(next, storage(), paths, 1, &status), 0);
        ck_assert_int_eq(status, TIERCE_E_DOWN);
    }
    mount();
    ck_assert_int_eq(tierce__storages_delete(next, storage(), paths, 1, &status), 0);
    ck_assert_int_eq(status, 0);
    tierce__storages_close(next);
    stop();
}
END_TEST

START_TEST(a_writer_takes_back)
{
    char at[512];
    start(uri);
    harness_add_instance(&h, "i");
    WAIT_FOR(is_marked());
    store();
    snprintf(at, sizeof(at), "%s",
             harness_get(&h, TIERCE__QUERY_PREFIX, keys, 1, 0).found[0].specs[0].uri);
    unmount();
    WAIT_FOR(tierce__storages_has_wrong_mark(h.storages, storage()));
    ck_assert_uint_eq(report(at, TIERCE__REPORT_RETRACTED), 1);
    mount();
    stop();
}
END_TEST

static void adopt(bool keeps)
{
    char why[128] = "";
    ck_assert_msg(tierce__storages_adopt_begin(h.storages, storage(), why) == 0, "%s", why);
    ck_assert_int_eq(tierce__storages_adopt_begin(h.storages, storage(), why), -EBUSY);
    if (!keeps)
        ck_assert_int_eq(tierce__registry_empty_storage(h.registry, "s", h.why), 0);
    ck_assert_msg(tierce__storages_adopt_end(h.storages, storage(), true, why) == 0, "%s", why);
    ck_assert_int_eq(tierce__storages_adopt_begin(h.storages, storage(), why), -EEXIST);
}

/* As the reclaimer's rounds do. */
static void forget_all(void)
{
    bool goes_on = true;
    while (goes_on) {
        const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
        (void)tierce__locator_scan(h.locator, TIERCE__SCAN_FORGETS, catalog, &goes_on);
        tierce__registry_release(h.registry, catalog);
    }
    ck_assert_int_eq(storage()->contents, TIERCE__CONTENTS_KEPT);
}

static bool has_deleted_all(void)
{
    struct tierce__usage usage = harness_usage(&h);
    tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    return usage.keys == 0 && usage.serving_bytes == 0 && usage.deleting_bytes == 0;
}

START_TEST(an_emptied_storage_is_adopted)
{
    start(uri);
    harness_add_instance(&h, "i");
    WAIT_FOR(is_marked());
    store();
    unmount();
    WAIT_FOR(tierce__storages_has_wrong_mark(h.storages, storage()));
    adopt(false);
    WAIT_FOR(!tierce__storages_has_wrong_mark(h.storages, storage()));
    ck_assert(!state(h.storages).is_well);
    ck_assert(!tierce__storages_is_available(h.storages, storage()));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    forget_all();
    WAIT_FOR(state(h.storages).is_well);
    ck_assert(tierce__storages_is_available(h.storages, storage()));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    WAIT_FOR(has_deleted_all());
    store();
    stop();
}
END_TEST

/* Two registries with one folder: the second one notices, and the first one when it was taken. */
START_TEST(two_registries)
{
    struct tierce__registry *other = NULL;
    char first[128], id[TIERCE__STORAGE_ID_HEX + 1], text[TIERCE__STORAGE_MARK_BYTES + 1];
    start(uri);
    WAIT_FOR(is_marked());
    read_mark(id);
    snprintf(first, sizeof(first), "local://%s/other", folder);
    open_registry(&other, first);
    struct tierce__registry *own = h.registry;
    h.registry = other;
    harness_startup(&h, &(struct harness_opts){0});
    h.registry = own;
    struct tierce__storages *theirs = probe(other);
    WAIT_FOR(!state(theirs).is_well);
    ck_assert_ptr_nonnull(strstr(state(theirs).why, id));
    ck_assert(state(h.storages).is_well);
    tierce__storages_close(theirs);
    tierce__registry_close(other);
    /* An operator gave the folder to another registry. */
    tierce__storage_mark_write(text, "00112233445566778899aabbccddeeff");
    write_mark(text); /* a probe may find it half written */
    WAIT_FOR(!state(h.storages).is_well &&
             strstr(state(h.storages).why, "00112233445566778899aabbccddeeff") != NULL);
    stop();
}
END_TEST

/* The registry was lost and made anew: its storage has the old mark. */
/* A manager with a backup of another one may begin to delete before the first probe. */
START_TEST(nothing_is_deleted_before_the_mark_is_read)
{
    static const char object[] = "file-of-another";
    const char *path = object;
    char at[192];
    start(uri);
    WAIT_FOR(is_marked());
    stop();
    write_mark("tierce-pool 1 0123456789abcdef0123456789abcdef\n");
    snprintf(at, sizeof(at), "%s/%s", h.folder, object);
    FILE *file = fopen(at, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    open_registry(&h.registry, uri);
    for (unsigned i = 0; i < 5; i++) {
        int status = 0;
        h.storages = probe(h.registry);
        ck_assert_int_eq(tierce__storages_delete(h.storages, storage(), &path, 1, &status), 0);
        ck_assert_int_eq(status, TIERCE_E_DOWN);
        tierce__storages_close(h.storages);
        ck_assert_int_eq(access(at, F_OK), 0);
    }
    tierce__registry_close(h.registry);
}
END_TEST

START_TEST(blocks_are_kept)
{
    start(uri);
    harness_add_instance(&h, "i");
    WAIT_FOR(is_marked());
    store();
    write_mark("tierce-pool 1 no\n");
    WAIT_FOR(tierce__storages_has_wrong_mark(h.storages, storage()));
    ck_assert_ptr_nonnull(strstr(state(h.storages).why, "is not a mark"));
    adopt(true);
    WAIT_FOR(state(h.storages).is_well);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    stop();
}
END_TEST

/* A registry that is lost with its process would find its own storage marked by another. */
START_TEST(a_registry_in_memory_marks_nothing)
{
    char path[160], why[128];
    struct stat st;
    start("");
    WAIT_FOR(state(h.storages).is_probed);
    ck_assert(state(h.storages).is_well);
    ck_assert(!is_marked());
    snprintf(path, sizeof(path), "%s/" TIERCE__STORAGE_MARK, h.folder);
    ck_assert_int_ne(stat(path, &st), 0);
    ck_assert_int_eq(tierce__storages_adopt_begin(h.storages, storage(), why),
                     TIERCE_E_UNSUPPORTED);
    stop();
}
END_TEST

/* Numbers of storages and their marks belong to one registry. */
START_TEST(a_snapshot_brings_no_mark)
{
    struct tierce__registry *other = NULL;
    char *text = NULL, where[128];
    start(uri);
    WAIT_FOR(is_marked());
    ck_assert_int_eq(tierce__registry_snapshot(h.registry, &text), 0);
    ck_assert_ptr_nonnull(strstr(text, "\"is_marked\":true"));
    snprintf(where, sizeof(where), "local://%s/other", folder);
    open_registry(&other, where);
    ck_assert_msg(tierce__registry_restore(other, text, h.why) == 0, "%s", h.why);
    const struct tierce__catalog *catalog = tierce__registry_acquire(other);
    ck_assert(!tierce__catalog_storage(catalog, "s")->is_marked);
    ck_assert_str_eq(tierce__catalog_id(catalog), "");
    tierce__registry_release(other, catalog);
    ck_assert_int_eq(tierce__registry_restore(h.registry, text, h.why), 0);
    ck_assert(is_marked());
    tierce__free(text);
    tierce__registry_close(other);
    stop();
}
END_TEST

START_TEST(marks_are_parsed_strictly)
{
    static const char *const bad[] = {"",
                                      "tierce-pool 1 00112233445566778899aabbccddeef\n",
                                      "tierce-pool 2 00112233445566778899aabbccddeeff\n",
                                      "tierce-pool 1 00112233445566778899AABBCCDDEEFF\n",
                                      "tierce-pool 1 00112233445566778899aabbccddeeff ",
                                      "tierce-pool 1 00112233445566778899aabbccddeeff\n\n"};
    char text[TIERCE__STORAGE_MARK_BYTES + 1], id[TIERCE__STORAGE_ID_HEX + 1];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert(!tierce__storage_mark_read(id, bad[i], strlen(bad[i])));
    tierce__storage_mark_write(text, "00112233445566778899aabbccddeeff");
    ck_assert(tierce__storage_mark_read(id, text, strlen(text)));
    ck_assert_str_eq(id, "00112233445566778899aabbccddeeff");
    text[3] = '\0';
    ck_assert(!tierce__storage_mark_read(id, text, TIERCE__STORAGE_MARK_BYTES));
}
END_TEST

/* A link could lead anywhere, and its target says nothing about this folder. */
START_TEST(a_mark_that_is_a_link)
{
    struct tierce__storage_driver *driver = NULL;
    char path[160], id[TIERCE__STORAGE_ID_HEX + 1], why[128] = "";
    struct tierce__storage files = {.number = 1,
                                    .name = "s",
                                    .type = TIERCE__STORAGE_NFS,
                                    .is_enabled = true,
                                    .root_path = h.folder};
    ck_assert_int_eq(tierce__storage_file.open(&driver, &files, why), 0);
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), -ENOENT);
    ck_assert_int_eq(driver->ops->write_mark(driver, "00112233445566778899aabbccddeeff", why), 0);
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), 0);
    ck_assert_str_eq(id, "00112233445566778899aabbccddeeff");
    snprintf(path, sizeof(path), "%s/" TIERCE__STORAGE_MARK, h.folder);
    ck_assert_int_eq(rename(path, aside), 0);
    ck_assert_int_eq(symlink(aside, path), 0);
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), -ELOOP);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), TIERCE_E_FORMAT);
    ck_assert_int_lt(driver->ops->write_mark(driver, "00112233445566778899aabbccddeeff", why), 0);
    ck_assert_ptr_nonnull(strstr(why, "write the mark"));
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(rmdir(h.folder), 0); /* no temporary file stays */
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), -ENOENT);
    driver->ops->close(driver);
}
END_TEST

/* ---- a storage that may hold blocks of a lost registry --------------------------------------- */

static atomic_uint opened;
static atomic_bool is_held;

static int open_counted(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                        char why[128])
{
    int rc = tierce__storage_file.open(out, storage, why);
    atomic_fetch_add(&opened, 1);
    return rc;
}

static int read_no_mark(struct tierce__storage_driver *driver, char id[TIERCE__STORAGE_ID_HEX + 1],
                        char why[128])
{
    (void)driver, (void)id, (void)why;
    WAIT_FOR(!atomic_load(&is_held));
    return -ENOENT;
}

static int has_some_blocks(struct tierce__storage_driver *driver, bool *has)
{
    (void)driver;
    *has = true;
    return 0;
}

static const struct tierce__storage_ops *find_unclaimed(enum tierce__storage_type type)
{
    static struct tierce__storage_ops ops;
    if (ops.name == NULL) {
        ops = tierce__storage_file;
        ops.open = open_counted;
        ops.read_mark = read_no_mark;
        ops.has_blocks = has_some_blocks;
    }
    return type == TIERCE__STORAGE_NFS ? &ops : NULL;
}

/* A storage whose configuration has changed is not used before its first probe, as a new one. */
START_TEST(a_changed_storage_is_not_used_before_it_was_probed)
{
    open_registry(&h.registry, uri);
    harness_startup(&h, &(struct harness_opts){.keys_per_file = 2});
    struct tierce__storages_opts opts = {.size = sizeof(opts),
                                         .registry = h.registry,
                                         .probe_interval_ms = 20,
                                         .probe_timeout_ms = 60000,
                                         .find_ops = find_unclaimed};
    (void)find_unclaimed(TIERCE__STORAGE_NFS);
    ck_assert_int_eq(tierce__storages_open(&h.storages, &opts), 0);
    WAIT_FOR(state(h.storages).is_probed);
    ck_assert(!tierce__storages_is_available(h.storages, storage()));
    atomic_store(&is_held, true);
    struct tierce__storage changed = *storage();
    unsigned before = atomic_load(&opened);
    changed.key_count_per_file = 4;
    ck_assert_msg(tierce__registry_update_storage(h.registry, &changed, h.why) == 0, "%s", h.why);
    WAIT_FOR(atomic_load(&opened) > before);
    ck_assert(!tierce__storages_is_available(h.storages, storage()));
    atomic_store(&is_held, false);
    WAIT_FOR(state(h.storages).is_probed);
    ck_assert(!tierce__storages_is_available(h.storages, storage()));
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
}
END_TEST

CHECK_MAIN("storage marks", .seconds = 240, .at_once = true, .setup = set_up, .teardown = tear_down,
           .tests = {a_changed_storage_is_not_used_before_it_was_probed,
                     a_storage_gets_its_mark_once, an_empty_mount_point,
                     nothing_is_deleted_before_the_mark_was_seen, a_writer_takes_back,
                     an_emptied_storage_is_adopted, two_registries, blocks_are_kept,
                     nothing_is_deleted_before_the_mark_is_read, a_registry_in_memory_marks_nothing,
                     a_snapshot_brings_no_mark, marks_are_parsed_strictly, a_mark_that_is_a_link})
