/* SPDX-License-Identifier: Apache-2.0 */
/* Backups: the file, its pages, and what a restore takes over. */
#include "check_main.h"
#include "manager_harness.h"

#include "base/alloc.h"
#include "base/file.h"
#include "manager/backup/backup_page.h"
#include "manager/backup/restore.h"

#include <errno.h>
#include <fcntl.h>

enum { CHAIN = 600 };

static int64_t chain[CHAIN];
static const char engine_extra[] =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff:"
    "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

/* What `tierce manager backup` does; returns the number of pages. */
static int back_up(struct harness *h, const char *path)
{
    struct tierce__backup_page_opts opts = {
        .registry = h->registry, .locator = h->locator, .fence = 7, .started_us = 9};
    struct tierce__backup_writer writer = {0};
    struct tierce__backup_made page;
    struct tierce__arena arena = {0};
    char cursor[TIERCE__BACKUP_CURSOR_BYTES] = "";
    int pages = 0;
    ck_assert_msg(tierce__backup_create(&writer, path, 1234567, h->why) == 0, "%s", h->why);
    do {
        int rc = tierce__backup_page_make(&page, &opts, cursor, &arena, h->why);
        ck_assert_msg(rc == 0, "%s", h->why);
        if (page.bytes > 0)
            ck_assert_int_eq(tierce__backup_add(&writer, page.kind, page.content, page.bytes), 0);
        snprintf(cursor, sizeof(cursor), "%s", page.cursor);
        tierce__arena_clear(&arena);
        pages++;
    } while (cursor[0] != '\0');
    ck_assert_msg(tierce__backup_close(&writer, true, h->why) == 0, "%s", h->why);
    return pages;
}

static void path_of(const struct harness *h, char path[128], const char *name)
{
    snprintf(path, 128, "%s/%s", h->folder, name);
}

/* Another manager with an empty registry, in the folder of `from`. */
static void open_empty(struct harness *h, const struct harness *from)
{
    *h = (struct harness){.now_us = from->now_us + 60000000};
    snprintf(h->folder, sizeof(h->folder), "%s", from->folder);
    ck_assert_int_eq(
        tierce__registry_open(&h->registry,
                              &(struct tierce__registry_opts){
                                  .size = sizeof(struct tierce__registry_opts), .uri = ""},
                              h->why),
        0);
    ck_assert_int_eq(tierce__registry_load(h->registry, 2, h->why), 0);
    ck_assert_int_eq(tierce__storages_open(&h->storages,
                                           &(struct tierce__storages_opts){
                                               .size = sizeof(struct tierce__storages_opts),
                                               .registry = h->registry}),
                     0);
    ck_assert_int_eq(
        tierce__locator_open(
            &h->locator, &(struct tierce__locator_opts){.size = sizeof(struct tierce__locator_opts),
                                                        .registry = h->registry,
                                                        .storages = h->storages,
                                                        .now_us = harness_now,
                                                        .clock_arg = h,
                                                        .seed = 2}),
        0);
}

/* The same; it restores and recovers. */
static int restore_into(struct harness *h, const struct harness *from, const char *path,
                        bool keep_slots, struct tierce__restored *out)
{
    struct tierce__restore *restore;
    open_empty(h, from);
    int rc = tierce__restore_open(
        &restore,
        &(struct tierce__restore_opts){
            .size = sizeof(struct tierce__restore_opts), .path = path, .keep_slots = keep_slots},
        h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    rc = tierce__restore_begin(restore, h->registry, h->locator, h->why);
    if (rc == 0)
        rc = tierce__restore_recover(restore, h->locator, 2, h->why);
    tierce__restore_counts(restore, out);
    tierce__restore_close(restore);
    return rc;
}

static void close_restored(struct harness *h)
{
    tierce__arena_clear(&h->arena);
    tierce__locator_close(h->locator);
    tierce__storages_close(h->storages);
    tierce__registry_close(h->registry);
}

static void fill_chain(void)
{
    for (size_t i = 0; i < CHAIN; i++)
        chain[i] = (int64_t)(i * 7919 + 1);
}

static struct tierce__record record_of(struct harness *h, int64_t key)
{
    struct tierce__record record = {0};
    struct tierce__live *live;
    bool found = false;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    ck_assert_int_eq(live->space->ops->get(live->space, &key, 1, &h->arena, &record, &found), 0);
    tierce__live_release(live);
    ck_assert(found);
    return record;
}

static void check_same_answers(struct harness *a, struct harness *b)
{
    struct tierce__got before = harness_get(a, TIERCE__QUERY_PREFIX, chain, CHAIN, 0);
    struct tierce__got after = harness_get(b, TIERCE__QUERY_PREFIX, chain, CHAIN, 0);
    ck_assert_uint_eq(before.count, CHAIN);
    ck_assert_uint_eq(after.count, CHAIN);
    for (size_t i = 0; i < CHAIN; i++) {
        ck_assert_uint_eq(after.found[i].spec_count, before.found[i].spec_count);
        for (size_t s = 0; s < after.found[i].spec_count; s++)
            ck_assert_str_eq(after.found[i].specs[s].uri, before.found[i].specs[s].uri);
    }
}

START_TEST(a_restored_index_answers_as_before)
{
    struct harness h, other;
    struct tierce__restored restored;
    char path[128];
    fill_chain();
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    harness_store(&h, chain, CHAIN);
    ck_assert_int_ge(back_up(&h, path), 2);
    ck_assert_msg(restore_into(&other, &h, path, false, &restored) == 0, "%s", other.why);
    ck_assert_uint_eq(restored.blocks, CHAIN);
    ck_assert_uint_eq(restored.instances, 1);
    ck_assert_uint_eq(restored.blocks_left + restored.slots_left + restored.others_left, 0);
    ck_assert_int_eq(restored.made_us, 1234567);
    check_same_answers(&h, &other);
    struct tierce__usage before = harness_usage(&h), after = harness_usage(&other);
    ck_assert_uint_eq(after.serving_bytes, before.serving_bytes);
    ck_assert_uint_eq(after.keys, before.keys);
    for (size_t i = 0; i < CHAIN; i += 99) {
        struct tierce__record a = record_of(&h, chain[i]), b = record_of(&other, chain[i]);
        ck_assert_uint_eq(a.children, b.children);
        ck_assert_int_eq(a.stored_us, b.stored_us);
        ck_assert_int_eq(a.parent, b.parent);
    }
    close_restored(&other);
    harness_close(&h);
}
END_TEST

/* Files that the first manager named after the backup keep their numbers to themselves. */
START_TEST(new_files_have_numbers_that_were_not_used)
{
    struct harness h, other;
    struct tierce__restored restored;
    char path[128];
    fill_chain();
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    harness_store(&h, chain, 10);
    back_up(&h, path);
    harness_store(&h, chain, 20);
    ck_assert_int_eq(restore_into(&other, &h, path, false, &restored), 0);
    ck_assert_uint_eq(harness_prefix(&other, chain, 20), 10);
    uint64_t old = record_of(&h, chain[19]).locations[0].places[0].file;
    harness_store(&other, chain, 20);
    uint64_t new = record_of(&other, chain[19]).locations[0].places[0].file;
    ck_assert_uint_gt(tierce__place_counter(new), tierce__place_counter(old) + (1u << 31));
    close_restored(&other);
    harness_close(&h);
}
END_TEST

START_TEST(a_parent_that_left_makes_a_hole)
{
    struct harness h, other;
    struct tierce__restored restored;
    struct tierce__live *live;
    char path[128];
    fill_chain();
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    harness_store(&h, chain, 5);
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", &chain[2], 1, &none, h.why), 0);
    back_up(&h, path);
    ck_assert_int_eq(restore_into(&other, &h, path, false, &restored), 0);
    ck_assert_uint_eq(restored.blocks, 4);
    ck_assert_uint_eq(record_of(&other, chain[0]).children, 1);
    ck_assert_uint_eq(record_of(&other, chain[1]).children, 0);
    ck_assert_int_eq(tierce__live_acquire(&live, other.locator, "i", other.why), 0);
    ck_assert(tierce__holes_any(&live->holes));
    tierce__live_release(live);
    close_restored(&other);
    harness_close(&h);
}
END_TEST

/* ---- files of several slots -------------------------------------------------------------------
 */

START_TEST(shared_files_need_clients_that_verify)
{
    struct harness h, other;
    struct tierce__restored restored;
    struct tierce__places_stats stats;
    struct tierce__live *live;
    char path[128];
    fill_chain();
    harness_open(&h, &(struct harness_opts){.keys_per_file = 8});
    path_of(&h, path, "backup");
    harness_store(&h, chain, 10); /* of each spec: one full file, and one with two blocks */
    back_up(&h, path);
    ck_assert_int_eq(restore_into(&other, &h, path, false, &restored), 0);
    ck_assert_uint_eq(restored.blocks, 0);
    ck_assert_uint_eq(restored.blocks_left, 10);
    ck_assert_uint_eq(restored.slots_left, 10);
    ck_assert_uint_eq(harness_prefix(&other, chain, 10), 0);
    ck_assert_uint_eq(harness_usage(&other).serving_bytes, 0);
    close_restored(&other);
    ck_assert_int_eq(restore_into(&other, &h, path, true, &restored), 0);
    ck_assert_uint_eq(restored.blocks, 10);
    ck_assert_uint_eq(harness_prefix(&other, chain, 10), 10);
    harness_store(&other, chain, 12); /* reads the notes; free slots are not reused so soon */
    ck_assert_int_eq(tierce__live_acquire(&live, other.locator, "i", other.why), 0);
    tierce__places_stats(live->places, &stats);
    tierce__live_release(live);
    ck_assert_uint_eq(stats.damaged, 0);
    ck_assert_uint_eq(stats.free_slots, 2 * 6 + 2 * 6);
    close_restored(&other);
    harness_close(&h);
}
END_TEST

/* ---- refusals ---------------------------------------------------------------------------------
 */

static int try_open(const char *path, char why[256])
{
    struct tierce__backup *backup = NULL;
    int rc = tierce__backup_open(&backup, path, why);
    tierce__backup_free(backup);
    return rc;
}

static void write_file(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

START_TEST(each_flip_and_each_cut_is_named)
{
    struct harness h;
    char path[128], bad[128], why[256], *bytes;
    size_t count;
    fill_chain();
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    path_of(&h, bad, "bad");
    harness_store(&h, chain, 3);
    back_up(&h, path);
    ck_assert_int_eq(tierce__read_file(&bytes, &count, path, 1 << 20), 0);
    ck_assert_int_eq(try_open(path, why), 0);
    write_file(bad, bytes, count);
    int fd = open(bad, O_WRONLY);
    for (size_t at = 0; at < count; at++) {
        char flipped = (char)(bytes[at] ^ 1 << at % 8);
        ck_assert_int_eq(pwrite(fd, &flipped, 1, (off_t)at), 1);
        int rc = try_open(bad, why);
        ck_assert_msg(rc == TIERCE_E_FORMAT && strstr(why, bad) != NULL, "byte %zu: %s", at, why);
        ck_assert_int_eq(pwrite(fd, bytes + at, 1, (off_t)at), 1);
    }
    ck_assert_int_eq(try_open(bad, why), 0);
    for (size_t at = count; at-- > 0;) {
        ck_assert_int_eq(ftruncate(fd, (off_t)at), 0);
        int rc = try_open(bad, why);
        ck_assert_msg(rc == TIERCE_E_FORMAT && strstr(why, bad) != NULL, "cut at %zu: %s", at, why);
    }
    close(fd);
    write_file(bad, bytes, count + 1); /* the NUL */
    ck_assert_int_eq(try_open(bad, why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "bytes follow"));
    ck_assert_int_eq(try_open("/nonexistent/backup", why), -ENOENT);
    tierce__free(bytes);
    harness_close(&h);
}
END_TEST

/* Writes a backup of two frames, of which the second is given. */
static void write_odd(struct harness *h, const char *path, const void *page, size_t bytes)
{
    static const char registry[] = "{}";
    struct tierce__backup_writer writer = {0};
    ck_assert_int_eq(tierce__backup_create(&writer, path, 1, h->why), 0);
    ck_assert_int_eq(tierce__backup_add(&writer, TIERCE__BACKUP_CATALOG, registry, 2), 0);
    ck_assert_int_eq(tierce__backup_add(&writer, TIERCE__BACKUP_RECORDS, page, bytes), 0);
    ck_assert_int_eq(tierce__backup_close(&writer, true, h->why), 0);
}

START_TEST(pages_that_lie)
{
    struct harness h;
    char path[128], why[256];
    unsigned char page[4096];
    struct tierce__record record = {0};
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    tierce__backup_put_page(page, 1, 2);
    size_t one = TIERCE__BACKUP_PAGE_HEAD;
    one += tierce__backup_put_record(page + one, 5, &record);
    size_t two = one + tierce__backup_put_record(page + one, 5, &record);
    write_odd(&h, path, page, two);
    ck_assert_int_eq(try_open(path, why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "key 5 is out of order"));
    write_odd(&h, path, page, one); /* the second record is missing */
    ck_assert_int_eq(try_open(path, why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "cut short"));
    tierce__backup_put_page(page, 1, 1);
    write_odd(&h, path, page, two);
    ck_assert_int_eq(try_open(path, why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "bytes follow the last record"));
    page[TIERCE__BACKUP_PAGE_HEAD + 12] = 99; /* the record's version */
    write_odd(&h, path, page, one);
    ck_assert_int_eq(try_open(path, why), TIERCE_E_VERSION);
    ck_assert_ptr_nonnull(strstr(why, "newer version"));
    tierce__backup_put_page(page, 1, UINT32_MAX);
    write_odd(&h, path, page, one);
    ck_assert_int_eq(try_open(path, why), TIERCE_E_FORMAT);
    harness_close(&h);
}
END_TEST

START_TEST(only_an_empty_registry_is_restored)
{
    struct harness h;
    struct tierce__restore *restore;
    char path[128];
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    back_up(&h, path);
    struct tierce__restore_opts opts = {
        .size = sizeof(struct tierce__restore_opts), .path = path, .is_lasting = true};
    ck_assert_int_eq(tierce__restore_open(&restore, &opts, h.why), 0);
    ck_assert_int_eq(tierce__restore_begin(restore, h.registry, h.locator, h.why), -EEXIST);
    ck_assert_str_eq(h.why, "the registry is not empty: it has storage s");
    tierce__restore_close(restore);
    opts.is_lasting = false;
    ck_assert_int_eq(tierce__restore_open(&restore, &opts, h.why), 0);
    ck_assert_int_eq(tierce__restore_begin(restore, h.registry, h.locator, h.why), 0);
    tierce__restore_close(restore); /* skipped: nothing was begun */
    harness_close(&h);
}
END_TEST

/* The process would end after the restore, and the index with it. */
START_TEST(an_index_in_memory_is_not_restored_by_a_process_that_ends)
{
    struct harness h, other;
    struct tierce__restore *restore;
    char path[512];
    fill_chain();
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    harness_store(&h, chain, 5);
    back_up(&h, path);
    open_empty(&other, &h);
    struct tierce__restore_opts opts = {
        .size = sizeof(struct tierce__restore_opts), .path = path, .is_lasting = true};
    ck_assert_int_eq(tierce__restore_open(&restore, &opts, h.why), 0);
    ck_assert_int_eq(tierce__restore_begin(restore, other.registry, other.locator, h.why), 0);
    ck_assert_int_eq(tierce__restore_recover(restore, other.locator, 2, h.why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(h.why, "instance group g is in memory and would be lost: give "
                                "--restore.file to the manager") != NULL,
                  "%s", h.why);
    tierce__restore_abandon(restore);
    tierce__restore_close(restore);
    close_restored(&other);
    harness_close(&h);
}
END_TEST

/* Something fails between begin and recover, and the manager tries to lead again. */
START_TEST(a_restore_that_was_begun_begins_again)
{
    struct harness h, other;
    struct tierce__restore *restore;
    struct tierce__restored restored;
    char path[128];
    fill_chain();
    harness_open(&h, &(struct harness_opts){0});
    path_of(&h, path, "backup");
    harness_store(&h, chain, 5);
    back_up(&h, path);
    open_empty(&other, &h);
    struct tierce__restore_opts opts = {.size = sizeof(struct tierce__restore_opts), .path = path};
    ck_assert_int_eq(tierce__restore_open(&restore, &opts, h.why), 0);
    tierce__restore_abandon(restore);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(tierce__restore_begin(restore, other.registry, other.locator, h.why), 0);
        if (i < 2) {
            tierce__restore_abandon(restore);
            tierce__registry_drop(other.registry);
            ck_assert_int_eq(tierce__registry_load(other.registry, 3 + i, h.why), 0);
        }
    }
    ck_assert_int_eq(tierce__restore_recover(restore, other.locator, 4, h.why), 0);
    tierce__restore_counts(restore, &restored);
    ck_assert_uint_eq(restored.blocks, 5);
    ck_assert_uint_eq(harness_prefix(&other, chain, 5), 5);
    tierce__restore_close(restore);
    close_restored(&other);
    harness_close(&h);
}
END_TEST

START_TEST(a_cursor_belongs_to_its_leader)
{
    struct harness h;
    struct tierce__backup_made page;
    struct tierce__arena arena = {0};
    char cursor[TIERCE__BACKUP_CURSOR_BYTES];
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__backup_page_opts opts = {
        .registry = h.registry, .locator = h.locator, .fence = 7, .started_us = 9};
    ck_assert_int_eq(tierce__backup_page_make(&page, &opts, "", &arena, h.why), 0);
    ck_assert_uint_eq(page.kind, TIERCE__BACKUP_CATALOG);
    snprintf(cursor, sizeof(cursor), "%s", page.cursor);
    opts.fence = 8;
    ck_assert_int_eq(tierce__backup_page_make(&page, &opts, cursor, &arena, h.why), -ESTALE);
    ck_assert_ptr_nonnull(strstr(h.why, "the leader has changed"));
    ck_assert_int_eq(tierce__backup_page_make(&page, &opts, "1-2-x", &arena, h.why),
                     TIERCE_E_ARGUMENT);
    tierce__arena_clear(&arena);
    harness_close(&h);
}
END_TEST

/* ---- an interrupted restore --------------------------------------------------------------------
 */

static int open_rocksdb(struct tierce__meta_store **store, struct tierce__meta_space **space,
                        const char *folder)
{
    char why[256];
    ck_assert_msg(tierce__meta_rocksdb.open(store, folder, why) == 0, "%s", why);
    return tierce__meta_rocksdb.space_open(space, *store, 1, "i");
}

/* An index that an interrupted restore of the same backup has begun is filled again; one with other
 * blocks, or of another backup, is rejected. */
/* The records of many keys with many places each are more than a frame has room for. */
START_TEST(pages_have_a_size)
{
    enum { PLACES = 8000, KEYS = 64, PAGE_MAX = 4 << 20 };
    struct harness h;
    struct tierce__live *live;
    static struct tierce__spec_place places[PLACES];
    harness_open(&h, &(struct harness_opts){0});
    for (size_t i = 0; i < PLACES; i++)
        places[i] = (struct tierce__spec_place){
            .spec = (uint16_t)i, .file = (i + 1) << 40, .bytes = 1 << 20};
    const struct tierce__location location = {
        .id = "abcdefgh", .storage = 1, .places = places, .place_count = PLACES};
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    for (int64_t key = 1; key <= KEYS; key++) {
        struct tierce__meta_put put = {.key = key,
                                       .record = {.locations = &location, .location_count = 1}};
        struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
        ck_assert_int_eq(live->space->ops->write(live->space, &batch), 0);
    }
    tierce__live_release(live);
    struct tierce__backup_page_opts opts = {
        .registry = h.registry, .locator = h.locator, .fence = 7, .started_us = 9};
    struct tierce__backup_made page;
    struct tierce__arena arena = {0};
    char cursor[TIERCE__BACKUP_CURSOR_BYTES] = "";
    uint64_t records = 0, bytes = 0;
    do {
        ck_assert_int_eq(tierce__backup_page_make(&page, &opts, cursor, &arena, h.why), 0);
        ck_assert_uint_le(page.bytes, PAGE_MAX);
        records += page.records;
        bytes += page.bytes;
        snprintf(cursor, sizeof(cursor), "%s", page.cursor);
        tierce__arena_clear(&arena);
    } while (cursor[0] != '\0');
    ck_assert_uint_eq(records, KEYS);
    ck_assert_uint_gt(bytes, PAGE_MAX); /* one page could not have them */
    harness_close(&h);
}
END_TEST

START_TEST(an_index_that_is_not_empty)
{
    struct harness h, other;
    struct tierce__restored restored;
    struct tierce__meta_store *store;
    struct tierce__meta_space *space;
    char path[128], folder[] = "/tmp/tierce_indexXXXXXX", index[64];
    fill_chain();
    temp_folder_make(folder);
    snprintf(index, sizeof(index), "%s/first", folder);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    path_of(&h, path, "backup");
    harness_store(&h, chain, CHAIN);
    back_up(&h, path);
    /* The first manager's index is in use, and then it is in the way. */
    close_restored(&h);
    ck_assert_int_lt(restore_into(&other, &h, path, false, &restored), 0);
    ck_assert_msg(strstr(other.why, "is not empty: it holds 600 blocks") != NULL, "%s", other.why);
    close_restored(&other);
    /* As if a restore had stopped: some records, wrong counters, and the mark. */
    struct tierce__backup *backup;
    ck_assert_int_eq(tierce__backup_open(&backup, path, h.why), 0);
    ck_assert_int_eq(open_rocksdb(&store, &space, index), 0);
    struct tierce__meta_note mark = {
        .kind = TIERCE__NOTE_RESTORE, .number = 1, .value = tierce__backup_id(backup), .bytes = 16};
    ck_assert_int_eq(
        space->ops->write(
            space, &(struct tierce__meta_batch){.notes = &mark, .note_count = 1, .added = {-77}}),
        0);
    space->ops->space_close(space);
    store->ops->close(store);
    tierce__backup_free(backup);
    ck_assert_msg(restore_into(&other, &h, path, false, &restored) == 0, "%s", other.why);
    ck_assert_uint_eq(harness_prefix(&other, chain, CHAIN), CHAIN);
    ck_assert_uint_eq(harness_usage(&other).keys, CHAIN);
    ck_assert_uint_eq(record_of(&other, chain[0]).children, 1);
    close_restored(&other);
    temp_folder_remove(folder);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_msg(restore_into(&other, &h, path, false, &restored) == 0, "%s", other.why);
    ck_assert_uint_eq(harness_prefix(&other, chain, CHAIN), CHAIN);
    close_restored(&other);
    temp_folder_remove(folder);
    temp_folder_remove(h.folder);
}
END_TEST

START_TEST(engines_verify)
{
    char extra[TIERCE__ENGINE_EXTRA_BYTES];
    unsigned char family[32] = {1}, space[32] = {2};
    tierce__engine_extra(extra, family, space);
    ck_assert(tierce__engine_extra_is(extra));
    ck_assert(tierce__engine_extra_is(engine_extra));
    ck_assert(!tierce__engine_extra_is(""));
    extra[64] = '.';
    ck_assert(!tierce__engine_extra_is(extra));
    extra[64] = ':';
    extra[3] = 'g';
    ck_assert(!tierce__engine_extra_is(extra));
}
END_TEST

CHECK_MAIN("backup", .seconds = 60,
           .tests = {a_restored_index_answers_as_before, new_files_have_numbers_that_were_not_used,
                     a_parent_that_left_makes_a_hole, shared_files_need_clients_that_verify,
                     each_flip_and_each_cut_is_named, pages_that_lie,
                     only_an_empty_registry_is_restored,
                     an_index_in_memory_is_not_restored_by_a_process_that_ends,
                     a_restore_that_was_begun_begins_again, a_cursor_belongs_to_its_leader,
                     an_index_that_is_not_empty, engines_verify, pages_have_a_size})
