/* SPDX-License-Identifier: Apache-2.0 */
/* A store on a real file system that is smaller than disk.size, or that others fill up. */
#include "check_main.h"
#include "disk_harness.h"
#include "log_record.h"
#include "small_disk.h"

#define MIB (1ULL << 20)

static struct store s;
static struct tierce__vfs *vfs; /* make_faulty's; the store's when it is open */

static void setup(void)
{
    s = (struct store){.chunk_bytes = 64 * 1024, .timeout_ms = 20000};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 32 * MIB), 0);
    record_log(TIERCE_LOG_WARN);
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    umount2(s.folder, MNT_DETACH);
    rmdir(s.folder);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* disk.size is 4 GiB, so that a store with room evicts 64 MiB at once, on 24 MiB: in a folder
 * below, beside which others write. */
static void mount_here(char folder[160])
{
    small_disk_mount(s.folder, 24 * MIB);
    snprintf(folder, 160, "%.100s/store", s.folder);
}

/* From now on all calls of a kind fail. */
static void fail_all(enum tierce__fault_kind kind, int error)
{
    tierce__vfs_fault_add(
        vfs,
        &(struct tierce__vfs_fault_rule){
            .kind = kind, .action = TIERCE__FAULT_FAIL, .nth = 1, .forever = true, .error = error});
}

static void make_faulty(void)
{
    struct tierce__vfs *inner;
    ck_assert_int_eq(tierce__vfs_create(&inner, 16), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, false), 0);
}

static int open_with(char *folder, struct tierce__vfs *files, unsigned flush_ms)
{
    struct tierce__disk_opts opts = store_opts(&s, 4096 * MIB);
    opts.path = folder;
    opts.flush_interval_ms = flush_ms;
    opts.vfs = files;
    return store_open(&s, &opts);
}

static int open_at(char *folder)
{
    return open_with(folder, NULL, 20);
}

/* Puts chunks with occasional flushes; returns how many were stored. */
static unsigned put_many(uint64_t from, uint64_t to)
{
    unsigned stored = 0;
    for (uint64_t n = from; n < to; n++) {
        stored += store_put(&s, n) == 0;
        if (n % 16 == 15)
            (void)!store_flush(&s);
    }
    return stored;
}

/* Chunks that are read back, each with its own bytes. */
static unsigned count_right(uint64_t from, uint64_t to)
{
    unsigned right = 0;
    for (uint64_t n = from; n < to; n++) {
        int rc = store_get(&s, n, 0, 0);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_MISS, "chunk %d: %d", (int)n, rc);
        right += rc == 0;
    }
    return right;
}

static void flush_now(void)
{
    ck_assert_int_eq(store_flush(&s), 0);
}

/* The store stays within the free space, for any length of time and across reopening. */
START_TEST(a_store_larger_than_its_file_system_goes_on_writing)
{
    char folder[160];
    mount_here(folder);
    for (uint64_t life = 0; life < 3; life++) {
        ck_assert_int_eq(open_at(folder), 0);
        uint64_t first = life * 2000;
        ck_assert_uint_eq(put_many(first, first + 2000), 2000); /* 5 times the capacity */
        flush_now();
        struct tierce__tier_stats stats = store_stats(&s);
        ck_assert(stats.full && !stats.rejects);
        ck_assert_uint_ge(stats.used_bytes, 16 * MIB);
        ck_assert_uint_le(stats.used_bytes, 24 * MIB);
        ck_assert_uint_eq(stats.errors, 0);
        ck_assert_uint_eq(count_right(first, first + 2000), stats.chunks);
        ck_assert_int_eq(store_get(&s, first + 1999, 0, 0), 0);
        store_close(&s);
        ck_assert_uint_eq(recorded("disk_full"), life + 1); /* once each */
        ck_assert_msg(recorded("disk_journal_failed") == 0, "life %d: %s", (int)life,
                      recorded_text());
    }
    ck_assert_ptr_nonnull(strstr(recorded_text(), "hint=\"the file system is full"));
    ck_assert_uint_eq(recorded("disk_chunks_dropped"), 0);
}
END_TEST

/* When there is room again it grows, and says so. */
START_TEST(a_full_store_grows_again)
{
    char folder[160];
    mount_here(folder);
    small_disk_fill(s.folder, 8 * MIB);
    ck_assert_int_eq(open_at(folder), 0);
    ck_assert_uint_eq(put_many(0, 300), 300);
    flush_now();
    ck_assert(store_stats(&s).full);
    uint64_t before = store_stats(&s).used_bytes;
    ck_assert_uint_le(before, 8 * MIB);
    small_disk_free(s.folder);
    uint64_t n = 1000, deadline = tierce__deadline_in_ms(15000);
    while (store_stats(&s).used_bytes < 2 * before && tierce__now_ns() < deadline)
        ck_assert_int_eq(store_put(&s, n++), 0);
    ck_assert_uint_ge(store_stats(&s).used_bytes, 2 * before);
    ck_assert_uint_eq(recorded("disk_room_again"), 1);
    ck_assert_uint_ge(recorded("disk_full"), 1);
    ck_assert_uint_le(recorded("disk_full"), 2);
}
END_TEST

/* Other files take all free space, including the journal's: the store releases a part of its data,
 * and continues with the rest. */
START_TEST(others_fill_the_file_system)
{
    char folder[160];
    mount_here(folder);
    ck_assert_int_eq(open_at(folder), 0);
    ck_assert_uint_eq(put_many(0, 200), 200);
    flush_now();
    small_disk_fill(s.folder, 0);
    (void)put_many(200, 4000); /* the journal is replaced many times */
    ck_assert_uint_ge(put_many(4000, 4500), 490);
    flush_now();
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert(stats.full && !stats.rejects);
    ck_assert_uint_eq(count_right(0, 4500), stats.chunks);
    ck_assert_uint_ge(stats.chunks, 100);
    store_close(&s);
    ck_assert_int_eq(open_at(folder), 0);
    ck_assert_uint_eq(count_right(0, 4500), stats.chunks);
}
END_TEST

/* As before, while the chunks at the end of the data file wait for the journal: they are dropped,
 * which the flush says, and the store continues with the rest. */
START_TEST(chunks_that_wait_for_the_journal_do_not_hold_the_end)
{
    char folder[160];
    mount_here(folder);
    make_faulty();
    fail_all(TIERCE__FAULT_ALLOCATE, -EOPNOTSUPP); /* the file ends with its last chunk */
    ck_assert_int_eq(open_with(folder, vfs, 60000), 0);
    for (uint64_t n = 0; n < 100; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    small_disk_fill(s.folder, 0);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_WRITE,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = 1,
                                                                .error = -ENOSPC});
    ck_assert_int_eq(store_flush(&s), -ENOSPC); /* a new journal takes the place of chunks */
    flush_now();
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert(stats.full && !stats.rejects);
    ck_assert_uint_ge(stats.chunks, 90);
    ck_assert_uint_lt(stats.chunks, 100);
    ck_assert_uint_eq(count_right(0, 100), stats.chunks);
    ck_assert_uint_eq(put_many(100, 200), 100);
    flush_now();
    stats = store_stats(&s);
    store_close(&s);
    ck_assert_int_eq(open_at(folder), 0);
    ck_assert_uint_eq(count_right(0, 200), stats.chunks);
}
END_TEST

/* Where nothing can be reserved, a full disk shows at the writes. */
START_TEST(a_file_system_that_cannot_reserve)
{
    char folder[160];
    mount_here(folder);
    make_faulty();
    fail_all(TIERCE__FAULT_ALLOCATE, -EOPNOTSUPP);
    ck_assert_int_eq(open_with(folder, vfs, 20), 0);
    (void)put_many(0, 1000);
    ck_assert_uint_eq(put_many(1000, 1500), 500);
    flush_now();
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert(stats.full && !stats.rejects);
    ck_assert_uint_eq(count_right(0, 1500), stats.chunks);
    ck_assert_uint_eq(recorded("disk_full"), 1);
}
END_TEST

/* Somebody cuts the data file inside a page. A full disk must lead to evictions even so. */
START_TEST(a_data_file_that_ends_inside_a_page)
{
    char folder[160], data[180];
    struct stat st;
    mount_here(folder);
    small_disk_fill(s.folder, 8 * MIB);
    ck_assert_int_eq(open_at(folder), 0);
    ck_assert_uint_eq(put_many(0, 300), 300);
    flush_now();
    store_close(&s);
    snprintf(data, sizeof(data), "%s/data", folder);
    ck_assert_int_eq(stat(data, &st), 0);
    ck_assert_int_eq(truncate(data, st.st_size - 1000), 0);
    ck_assert_int_eq(open_at(folder), 0);
    ck_assert_uint_eq(put_many(300, 600), 300);
    flush_now();
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert(stats.full && !stats.rejects);
    ck_assert_uint_eq(stats.errors, 0);
    ck_assert_uint_eq(count_right(0, 600), stats.chunks);
}
END_TEST

/* With no room at all nothing is stored, and nothing else happens. */
START_TEST(a_file_system_without_any_room)
{
    char folder[160];
    mount_here(folder);
    ck_assert_int_eq(open_at(folder), 0);
    small_disk_fill(s.folder, 0);
    ck_assert_uint_eq(put_many(0, 50), 0);
    ck_assert_int_eq(store_put(&s, 50), -ENOSPC);
    ck_assert(store_stats(&s).full);
    ck_assert_uint_eq(count_right(0, 50), 0);
    small_disk_free(s.folder);
    uint64_t deadline = tierce__deadline_in_ms(15000);
    while (store_put(&s, 1) != 0 && tierce__now_ns() < deadline)
        usleep(10000);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    ck_assert(!store_stats(&s).full);
}
END_TEST

int main(void)
{
    bool mounts = small_disk_permitted();
    if (!mounts)
        return small_disk_status(EXIT_SUCCESS, mounts);
    return CHECK_RUN(
        "disk_full", .seconds = 120, .setup = setup, .teardown = teardown,
        .tests = {a_store_larger_than_its_file_system_goes_on_writing, a_full_store_grows_again,
                  others_fill_the_file_system, chunks_that_wait_for_the_journal_do_not_hold_the_end,
                  a_file_system_that_cannot_reserve, a_data_file_that_ends_inside_a_page,
                  a_file_system_without_any_room});
}
