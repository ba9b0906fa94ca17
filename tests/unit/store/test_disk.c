/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "disk_harness.h"
#include "log_record.h"

#define MIB (1ULL << 20)

static struct store s;

static void setup(void)
{
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 32 * MIB), 0);
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void open_with(struct tierce__disk_opts opts)
{
    ck_assert_int_eq(store_open(&s, &opts), 0);
}

START_TEST(put_get_flush_reopen)
{
    struct tierce__disk_opts opts = store_opts(&s, 64 * MIB);
    opts.buffered = _i == 1;
    open_with(opts);
    for (uint64_t n = 0; n < 50; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    for (uint64_t n = 0; n < 50; n++)
        ck_assert_int_eq(store_get(&s, n, 0, 0), 0);
    ck_assert_int_eq(store_get(&s, 3, 8192, 4096), 0);
    ck_assert_int_eq(store_get(&s, 77, 0, 0), TIERCE_E_MISS);
    ck_assert_int_eq(store_put(&s, 7), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    struct tierce__tier_stats before = store_stats(&s);
    ck_assert_uint_eq(before.chunks, 50);
    ck_assert_uint_eq(before.durable_chunks, 50);
    ck_assert_uint_eq(before.put_chunks, 50);
    ck_assert_uint_eq(before.get_chunks, 51);
    uint64_t data = store_data_bytes(&s);
    store_close(&s);
    open_with(opts);
    struct tierce__tier_stats after = store_stats(&s);
    ck_assert_uint_eq(after.chunks, 50);
    ck_assert_uint_eq(after.durable_chunks, 50);
    ck_assert_uint_eq(store_data_bytes(&s), data);
    ck_assert_uint_ge(after.written_bytes_today, before.written_bytes_today);
    for (uint64_t n = 0; n < 50; n++)
        ck_assert_int_eq(store_get(&s, n, 0, 0), 0);
}
END_TEST

static void check_mode(const char *name, unsigned mode)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", s.folder, name);
    ck_assert_msg(stat(path, &st) == 0, "%s", name);
    ck_assert_msg((st.st_mode & 07777) == mode, "%s has mode %o", name, st.st_mode & 07777);
}

START_TEST(nobody_else_may_look_into_a_store)
{
    strcat(s.folder, "/made"); /* mkdtemp creates its folder with mode 0700 */
    mode_t before = umask(0);
    open_with(store_opts(&s, 64 * MIB));
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    umask(before);
    check_mode("", 0700);
    check_mode("ns", 0700);
    static const char *const files[] = {"lock", "data", "journal", "journal.synced"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        check_mode(files[i], 0600);
    uint8_t digest[TIERCE_HASH_BYTES];
    char name[80] = "ns/";
    tierce_namespace_digest(digest, "name=test\n");
    tierce__hex_encode(name + 3, digest, sizeof(digest));
    check_mode(name, 0600);
    *strrchr(s.folder, '/') = '\0';
}
END_TEST

START_TEST(a_lookup_counts_the_leading_keys)
{
    open_with(store_opts(&s, 64 * MIB));
    struct tierce__key keys[100];
    for (uint64_t n = 0; n < 100; n++) {
        keys[n] = store_key(&s, n);
        if (n != 80)
            ck_assert_int_eq(store_put(&s, n), 0);
    }
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP, .keys = keys, .key_count = 100};
    ck_assert_int_eq(store_run(&s, &req), 0);
    ck_assert_uint_eq(req.found, 80);
    ck_assert_int_eq(store_delete(&s, 10), 0);
    ck_assert_int_eq(store_delete(&s, 10), TIERCE_E_MISS);
    ck_assert_int_eq(store_run(&s, &req), 0);
    ck_assert_uint_eq(req.found, 10);
    ck_assert(!store_has(&s, 10));
    ck_assert_int_eq(store_put(&s, 10), 0);
    ck_assert_int_eq(store_get(&s, 10, 0, 0), 0);
}
END_TEST

START_TEST(eviction_keeps_the_cap_and_the_order)
{
    struct tierce__disk_opts opts = store_opts(&s, 4 * MIB);
    open_with(opts);
    for (uint64_t n = 0; n < 400; n++) {
        ck_assert_int_eq(store_put(&s, n), 0);
        struct tierce__key first = store_key(&s, 0);
        s.tier->ops->touch(s.tier, &(struct tierce__tier_uses){.keys = &first, .count = 1});
        struct tierce__tier_stats stats = store_stats(&s);
        ck_assert_uint_le(stats.used_bytes, stats.cap_bytes);
        ck_assert_uint_le(store_file_bytes(&s, "data"), 4 * MIB);
    }
    ck_assert_int_eq(store_get(&s, 0, 0, 0), 0);
    ck_assert_int_eq(store_get(&s, 399, 0, 0), 0);
    ck_assert(!store_has(&s, 1));
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert_uint_gt(stats.evicted_chunks, 300);
    ck_assert_uint_gt(stats.chunks, 40);
    ck_assert_uint_eq(stats.dropped_puts, 0);
    ck_assert_int_eq(store_flush(&s), 0);
    uint64_t chunks = store_stats(&s).chunks, data = store_data_bytes(&s);
    store_close(&s);
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, chunks);
    ck_assert_uint_eq(store_data_bytes(&s), data);
    uint64_t found = 0;
    for (uint64_t n = 0; n < 400; n++) {
        int rc = store_get(&s, n, 0, 0);
        ck_assert(rc == 0 || rc == TIERCE_E_MISS);
        found += rc == 0;
    }
    ck_assert_uint_eq(found, chunks);
}
END_TEST

/* A store that evicts in batches begins before it is full: no put waits for the commit. */
START_TEST(a_large_store_evicts_ahead)
{
    uint64_t bytes = 0, first = 0;
    s.chunk_bytes = 4 * MIB;
    open_with(store_opts(&s, 1300 * MIB));
    for (uint64_t n = 0; n < 340; n++) {
        ck_assert_int_eq(store_put(&s, n), 0);
        bytes += store_bytes(&s, n);
        if (first == 0 && store_stats(&s).evicted_chunks > 0)
            first = bytes;
        struct tierce__tier_stats stats = store_stats(&s);
        ck_assert_uint_le(stats.used_bytes, stats.cap_bytes);
    }
    ck_assert_uint_gt(first, 1024 * MIB);
    ck_assert_uint_le(first + 4 * MIB, store_file_bytes(&s, "data")); /* one more would have fit */
    ck_assert_int_eq(store_get(&s, 339, 0, 0), 0);
}
END_TEST

/* The space is released even without a flush and without other writes. */
START_TEST(a_deletion_alone_is_committed)
{
    struct tierce__disk_opts opts = store_opts(&s, 16 * MIB);
    opts.flush_interval_ms = 10;
    open_with(opts);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    uint64_t full = store_stats(&s).used_bytes;
    ck_assert_int_eq(store_delete(&s, 1), 0);
    while (store_stats(&s).used_bytes >= full) /* until the test's limit */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}
END_TEST

/* The loop index is the policy. */
START_TEST(every_policy_evicts)
{
    struct tierce__disk_opts opts = store_opts(&s, 4 * MIB);
    opts.policy = tierce__policy_at((size_t)_i);
    open_with(opts);
    for (uint64_t n = 0; n < 200; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    struct tierce__tier_stats before = store_stats(&s);
    ck_assert_uint_gt(before.evicted_chunks, 100);
    ck_assert_uint_le(before.used_bytes, 4 * MIB);
    store_close(&s);
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, before.chunks);
    for (uint64_t n = 200; n < 300; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_uint_le(store_stats(&s).used_bytes, 4 * MIB);
}
END_TEST

START_TEST(what_has_expired_is_a_miss)
{
    struct tierce__disk_opts opts = store_opts(&s, 16 * MIB);
    opts.policy = tierce__policy_find("ttl");
    opts.ttl_ms = 20;
    open_with(opts);
    for (uint64_t n = 0; n < 10; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    while (store_has(&s, 9)) /* a lookup does not count as a use that renews */
        continue;
    for (uint64_t n = 0; n < 10; n++)
        ck_assert_int_eq(store_get(&s, n, 0, 0), TIERCE_E_MISS);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(store_stats(&s).chunks, 0);
    store_close(&s);
    opts.ttl_ms = 0;
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert(store_has(&s, 1));
}
END_TEST

START_TEST(a_smaller_cap_evicts_and_truncates)
{
    open_with(store_opts(&s, 16 * MIB));
    for (uint64_t n = 0; n < 200; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    store_close(&s);
    open_with(store_opts(&s, 4 * MIB));
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert_uint_le(stats.used_bytes, 4 * MIB);
    ck_assert_uint_le(store_file_bytes(&s, "data") + store_file_bytes(&s, "journal"), 4 * MIB);
    ck_assert_uint_gt(stats.chunks, 20);
    uint64_t found = 0;
    for (uint64_t n = 0; n < 200; n++)
        found += store_get(&s, n, 0, 0) == 0;
    ck_assert_uint_eq(found, stats.chunks);
    store_close(&s);
    open_with(store_opts(&s, 32 * MIB)); /* and a larger one keeps all */
    ck_assert_uint_eq(store_stats(&s).chunks, stats.chunks);
}
END_TEST

START_TEST(fewer_slots_evict_the_oldest)
{
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    open_with(opts);
    for (uint64_t n = 0; n < 200; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    store_close(&s);
    opts.chunk_count_max = 50;
    for (int i = 0; i < 2; i++) {
        open_with(opts);
        ck_assert_uint_eq(store_stats(&s).chunks, 50);
        for (uint64_t n = 0; n < 200; n++)
            ck_assert_int_eq(store_get(&s, n, 0, 0), n < 150 ? TIERCE_E_MISS : 0);
        store_close(&s);
    }
    record_log(TIERCE_LOG_WARN);
    opts.slots = (struct tierce__slots_opts){"disk", "disk.chunks", opts.cap_bytes};
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).slots, 50);
    ck_assert_uint_eq(store_stats(&s).used_slots, 50);
    ck_assert_int_eq(store_put(&s, 500), 0); /* full of slots, not of bytes */
    ck_assert_uint_eq(store_stats(&s).out_of_slots, 1);
    ck_assert_int_eq(store_put(&s, 501), 0);
    ck_assert_uint_eq(store_stats(&s).out_of_slots, 2);
    ck_assert_uint_eq(recorded_with("tier_out_of_slots", "tier=disk setting=disk.chunks slots=50"),
                      1);
    ck_assert_uint_eq(store_stats(&s).chunks, 50);
    ck_assert(!store_has(&s, 150));
}
END_TEST

/* Chunks in the new slots of a store that has grown are found by the next process, and are the last
 * to leave when it shrinks again. */
START_TEST(more_slots_are_kept)
{
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    opts.chunk_count_max = 50;
    open_with(opts);
    ck_assert_int_eq(store_put(&s, 0), 0);
    store_close(&s);
    opts.chunk_count_max = 200;
    for (int i = 0; i < 2; i++) {
        open_with(opts);
        for (uint64_t n = 1; i == 0 && n < 150; n++)
            ck_assert_int_eq(store_put(&s, n), 0);
        ck_assert_int_eq(store_flush(&s), 0);
        ck_assert_uint_eq(store_stats(&s).chunks, 150);
        for (uint64_t n = 0; n < 150; n++)
            ck_assert_int_eq(store_get(&s, n, 0, 0), 0);
        store_close(&s);
    }
    opts.chunk_count_max = 50;
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, 50);
    for (uint64_t n = 0; n < 150; n++)
        ck_assert_int_eq(store_get(&s, n, 0, 0), n < 100 ? TIERCE_E_MISS : 0);
}
END_TEST

/* Space that waits for its record is not a slot. */
START_TEST(full_of_slots_with_space_in_limbo)
{
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    opts.chunk_count_max = 16;
    opts.flush_interval_ms = 60000;
    open_with(opts);
    for (uint64_t n = 0; n < 16; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    s.chunk_bytes = HARNESS_PAGE;
    for (uint64_t n = 16; n < 40; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_uint_ge(store_stats(&s).chunks, 15); /* one of two pages evicts two of one */
    ck_assert_uint_le(store_stats(&s).chunks, 16);
}
END_TEST

START_TEST(a_folder_is_held_by_one_store)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    open_with(opts);
    struct tierce__tier *other = NULL;
    char why[TIERCE__DISK_WHY_BYTES];
    opts.lock_wait_ms = 50;
    opts.why = why;
    uint64_t start = tierce__now_ns();
    ck_assert_int_eq(tierce__disk_open(&other, &opts), TIERCE_E_LOCKED);
    ck_assert_uint_ge(tierce__now_ns() - start, 50 * TIERCE__MS_NS);
    ck_assert_msg(strstr(why, "node.start: shared)") != NULL, "%s", why); /* not cut off */
    opts.why = NULL;
    ck_assert_ptr_null(other);
    store_close(&s);
    open_with(opts);
}
END_TEST

START_TEST(only_what_is_asked_for_twice)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.admit_second = true;
    open_with(opts);
    ck_assert_int_eq(store_put(&s, 1), TIERCE_E_REFUSED);
    ck_assert(!store_has(&s, 1));
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert(store_has(&s, 1));
    ck_assert_int_eq(store_put(&s, 2), TIERCE_E_REFUSED);
}
END_TEST

static void in_folder(char path[256], const char *name)
{
    snprintf(path, 256, "%s/%s", s.folder, name);
}

/* A store that cannot be opened names what was wrong. */
START_TEST(what_is_refused_is_named)
{
    static const char *const names[] = {"lock", "journal", "journal.new", "data", "ns"};
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    char why[TIERCE__DISK_WHY_BYTES];
    opts.why = why;
    record_log(TIERCE_LOG_WARN);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[256], text[300];
        bool wants_folder = strcmp(names[i], "ns") == 0;
        in_folder(path, names[i]);
        ck_assert_int_eq(wants_folder ? mknod(path, S_IFREG | 0600, 0) : mkdir(path, 0700), 0);
        forget_recorded();
        ck_assert_int_lt(store_open(&s, &opts), 0);
        snprintf(text, sizeof(text), "disk_open_failed path=\"%s\"", path);
        ck_assert_msg(strstr(recorded_text(), text) != NULL, "%s: %s", names[i], recorded_text());
        ck_assert_ptr_nonnull(strstr(recorded_text(), "hint=\"it is not of the expected kind"));
        snprintf(text, sizeof(text), "%s: ", names[i]);
        ck_assert_msg(strncmp(why, text, strlen(text)) == 0, "%s", why);
        ck_assert_ptr_nonnull(strstr(why, "; it is not of the expected kind"));
        store_remove(&s);
        ck_assert_int_eq(mkdir(s.folder, 0700), 0);
    }
    opts.path = "/nonexistent/folder";
    forget_recorded();
    ck_assert_int_eq(store_open(&s, &opts), -ENOENT);
    ck_assert_ptr_nonnull(strstr(recorded_text(), "path=\"/nonexistent/folder\""));
    ck_assert_str_eq(why, "No such file or directory; the parent folder must exist: create it");
}
END_TEST

START_TEST(a_folder_that_others_may_write_is_told)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    record_log(TIERCE_LOG_WARN);
    open_with(opts);
    store_close(&s);
    ck_assert_ptr_null(strstr(recorded_text(), "store_folder_writable"));
    ck_assert_int_eq(chmod(s.folder, 0770), 0);
    open_with(opts);
    ck_assert_ptr_nonnull(strstr(recorded_text(), "store_folder_writable"));
}
END_TEST

START_TEST(more_than_the_file_system_has_is_told)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    record_log(TIERCE_LOG_WARN);
    open_with(opts);
    store_close(&s);
    ck_assert_ptr_null(strstr(recorded_text(), "store_folder_too_small"));
    opts.cap_bytes = UINT64_C(1) << 50;
    opts.chunk_count_max = 1024; /* or its tables would want memory to match */
    open_with(opts);
    ck_assert_ptr_nonnull(strstr(recorded_text(), "store_folder_too_small"));
    ck_assert_int_eq(store_put(&s, 1), 0); /* told, and not rejected */
}
END_TEST

START_TEST(arguments_are_checked)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.cap_bytes = 1000;
    ck_assert_int_eq(store_open(&s, &opts), TIERCE_E_ARGUMENT);
    opts = store_opts(&s, 8 * MIB);
    opts.io_bytes = 1000;
    ck_assert_int_eq(store_open(&s, &opts), TIERCE_E_ARGUMENT);
    opts = store_opts(&s, 8 * MIB);
    opts.path = "/nonexistent/folder/of/nobody";
    ck_assert_int_eq(store_open(&s, &opts), -ENOENT);
    open_with(store_opts(&s, 8 * MIB));
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 100), TIERCE_E_ARGUMENT);
    s.chunk_bytes += 4096 * 4; /* a buffer and a range longer than what is stored */
    ck_assert_int_eq(store_get(&s, 1, 0, 0), TIERCE_E_MISS);
    s.chunk_bytes -= 4096 * 4;
    s.chunk_bytes = 12 * MIB;
    ck_assert_int_eq(store_put(&s, 2), TIERCE_E_FULL);
}
END_TEST

static bool count_entry(void *arg, const struct tierce__disk_entry *entry)
{
    uint64_t *count = arg;
    uint64_t n;
    memcpy(&n, entry->key.hash + 16, 8);
    ck_assert_uint_eq(entry->token_start, n * 256);
    ck_assert_uint_eq(entry->block_count, 8);
    ck_assert_uint_eq(entry->first_block[5], n);
    ck_assert_uint_gt(entry->stored_s, 1000000);
    struct tierce__key parent = store_key(&s, n - 1);
    if (n > 0)
        ck_assert_mem_eq(entry->parent.hash, parent.hash, 32);
    (*count)++;
    return *count < 15;
}

START_TEST(a_scan_sees_what_is_durable)
{
    open_with(store_opts(&s, 8 * MIB));
    for (uint64_t n = 0; n < 20; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_delete(&s, 4), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    uint64_t count = 0;
    struct tierce__namespaces *names;
    ck_assert_int_eq(tierce__namespaces_create(&names), 0);
    ck_assert_int_eq(tierce__disk_scan(s.folder, names, count_entry, &count), 0);
    ck_assert_uint_eq(count, 15);
    ck_assert_uint_eq(tierce__namespaces_count(names), 1);
    ck_assert_str_eq(tierce__namespaces_text(names, 0), "name=test\n");
    ck_assert_int_eq(tierce__disk_scan("/nonexistent", names, count_entry, &count), -ENOENT);
    tierce__namespaces_destroy(names);
    char *path = tierce__disk_data_path(s.folder);
    ck_assert_int_eq(access(path, R_OK), 0);
    tierce__free(path);
}
END_TEST

/* Many requests at once, more than the depth, from the pool's whole room. */
#define MANY 120

START_TEST(many_requests_at_once)
{
    struct tierce__disk_opts opts = store_opts(&s, 64 * MIB);
    opts.io_bytes = 16384;
    opts.io_depth = 4;
    open_with(opts);
    static struct tierce__store_req reqs[MANY];
    static struct tierce__key keys[MANY];
    struct tierce__buf *bufs[MANY];
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    for (int pass = 0; pass < 2; pass++) {
        w.dones = 0;
        for (uint64_t n = 0; n < MANY; n++) {
            uint64_t which = n / 2; /* each key twice */
            uint64_t bytes = store_bytes(&s, which);
            keys[n] = store_key(&s, which);
            ck_assert_int_eq(tierce__pool_alloc(s.pool, &bufs[n], bytes), 0);
            if (pass == 0)
                store_fill(bufs[n]->data, which, bytes);
            reqs[n] =
                (struct tierce__store_req){.op = pass == 0 ? TIERCE__STORE_PUT : TIERCE__STORE_GET,
                                           .deadline_ns = TIERCE__DEADLINE_NEVER,
                                           .done = store_done,
                                           .arg = &w,
                                           .keys = &keys[n],
                                           .key_count = 1,
                                           .buf = bufs[n],
                                           .length = pass == 0 ? 0 : bytes,
                                           .object_bytes = bytes};
            s.tier->ops->submit(s.tier, &reqs[n]);
        }
        pthread_mutex_lock(&w.mutex);
        while (w.dones < MANY)
            pthread_cond_wait(&w.cond, &w.mutex);
        pthread_mutex_unlock(&w.mutex);
        for (uint64_t n = 0; n < MANY; n++) {
            ck_assert_int_eq(reqs[n].status, 0);
            if (pass == 1)
                ck_assert(store_is_right(bufs[n]->data, n / 2, 0, store_bytes(&s, n / 2)));
            tierce__buf_release(bufs[n]);
        }
    }
    ck_assert_uint_eq(store_stats(&s).chunks, MANY / 2);
}
END_TEST

START_TEST(the_journal_is_compacted_and_bounded)
{
    struct tierce__disk_opts opts = store_opts(&s, 4 * MIB);
    open_with(opts);
    uint64_t longest = 0;
    for (uint64_t n = 0; n < 1500; n++) {
        ck_assert_int_eq(store_put(&s, n), 0);
        if (n % 3 == 0)
            ck_assert_int_eq(store_flush(&s), 0);
        uint64_t bytes = store_file_bytes(&s, "journal");
        longest = bytes > longest ? bytes : longest;
        struct tierce__tier_stats stats = store_stats(&s);
        ck_assert_uint_le(stats.used_bytes, stats.cap_bytes);
    }
    ck_assert_uint_lt(longest, MIB / 2);
    store_close(&s);
    open_with(opts);
    ck_assert_int_eq(store_get(&s, 1499, 0, 0), 0);
}
END_TEST

/* Most commits write over zeroes, and what is written ahead is accounted for. */
START_TEST(the_journal_grows_in_steps)
{
    unsigned grown = 0;
    open_with(store_opts(&s, 32 * MIB));
    uint64_t length = store_file_bytes(&s, "journal");
    for (uint64_t n = 0; n < 48; n++) {
        uint64_t data = store_data_bytes(&s);
        ck_assert_int_eq(store_put(&s, n), 0);
        ck_assert_int_eq(store_flush(&s), 0);
        uint64_t text = n == 0 ? HARNESS_PAGE : 0;
        ck_assert_uint_eq(store_data_bytes(&s), data + store_bytes(&s, n) + text);
        grown += store_file_bytes(&s, "journal") != length;
        length = store_file_bytes(&s, "journal");
    }
    ck_assert_uint_le(grown, 4);
}
END_TEST

/* Every record names its namespace anew, which is the most that a journal may need. */
START_TEST(the_bound_of_the_journal_holds_for_many_namespaces)
{
    uint32_t ids[100];
    for (uint32_t i = 0; i < 100; i++) {
        uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)i, 1};
        int64_t id = tierce__namespaces_intern(s.namespaces, digest, NULL);
        ck_assert_int_ge(id, 0);
        ids[i] = (uint32_t)id;
    }
    s.chunk_bytes = HARNESS_PAGE;
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.chunk_count_max = 400;
    open_with(opts);
    uint64_t pages = 400 / 19 + 3, longest = 0;
    for (uint64_t n = 0; n < 2000; n++) {
        s.ns = ids[n % 100];
        ck_assert_int_eq(store_put(&s, n), 0);
        if (n % 50 == 0)
            ck_assert_int_eq(store_flush(&s), 0);
        uint64_t bytes = store_file_bytes(&s, "journal");
        longest = bytes > longest ? bytes : longest;
    }
    ck_assert_uint_gt(longest, 400 * 208);
    ck_assert_uint_le(longest, (2 * pages + 400 / 36 + 4) * HARNESS_PAGE);
    uint64_t chunks = store_stats(&s).chunks;
    ck_assert_uint_eq(chunks, 400);
    store_close(&s);
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, chunks);
}
END_TEST

/* More than the space in limbo can hold at once: a flush says so only when all are recorded. */
START_TEST(a_clear_of_many_is_durable_after_a_flush)
{
    enum { CLEARED = 4500 };
    struct tierce__disk_opts opts = store_opts(&s, 96 * MIB);
    opts.chunk_count_max = 2 * CLEARED;
    s.chunk_bytes = 4096;
    open_with(opts);
    for (uint64_t n = 0; n < CLEARED; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    uint64_t used = store_stats(&s).used_bytes;
    ck_assert_int_eq(store_clear(&s), 0);
    for (uint64_t n = 0; n < CLEARED; n += 100)
        ck_assert(!store_has(&s, n));
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_lt(store_stats(&s).used_bytes, used - CLEARED * 4096);
    char copy[512];
    snprintf(copy, sizeof(copy), "cp %s/journal %s.copy", s.folder, s.folder);
    ck_assert_int_eq(system(copy), 0);
    store_close(&s);
    snprintf(copy, sizeof(copy), "mv %s.copy %s/journal", s.folder, s.folder);
    ck_assert_int_eq(system(copy), 0);
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, 0);
    ck_assert_uint_gt(store_stats(&s).cap_bytes, 0);
}
END_TEST

/* The same without a flush: closing records them all. */
START_TEST(a_clear_of_many_survives_closing)
{
    enum { CLEARED = 4500 };
    struct tierce__disk_opts opts = store_opts(&s, 96 * MIB);
    opts.chunk_count_max = 2 * CLEARED;
    s.chunk_bytes = 4096;
    open_with(opts);
    for (uint64_t n = 0; n < CLEARED; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_clear(&s), 0);
    store_close(&s);
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, 0);
}
END_TEST

/* Chunks whose numbers differ by 256 begin with one block. */
static size_t siblings_of(uint64_t n, struct tierce__sibling siblings[TIERCE__SIBLINGS_MAX])
{
    struct tierce__key first = store_key(&s, 0);
    memset(first.hash, (int)n, sizeof(first.hash));
    struct tierce__store_req req = {
        .op = TIERCE__STORE_SIBLINGS, .keys = &first, .key_count = 1, .siblings = siblings};
    ck_assert_int_eq(store_run(&s, &req), 0);
    return req.found;
}

START_TEST(siblings_are_known_when_it_is_opened_again)
{
    struct tierce__sibling got[TIERCE__SIBLINGS_MAX];
    struct tierce__disk_opts opts = store_opts(&s, 64 * MIB);
    open_with(opts);
    const uint64_t family[] = {3, 3 + 256, 3 + 512, 3 + 768};
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(store_put(&s, family[i]), 0);
        ck_assert_int_eq(store_put(&s, 10 + i), 0);
    }
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_delete(&s, family[1]), 0);
    for (int round = 0; round < 2; round++) {
        ck_assert_uint_eq(siblings_of(3, got), 3);
        struct tierce__key last = store_key(&s, family[3]), before = store_key(&s, family[2]);
        ck_assert_mem_eq(&got[0].key, &last, sizeof(last));
        ck_assert_mem_eq(&got[1].key, &before, sizeof(before));
        ck_assert_uint_eq(got[0].object_bytes, store_bytes(&s, family[3]));
        ck_assert_uint_eq(siblings_of(4, got), 0);
        store_close(&s);
        open_with(opts);
    }
    /* A store with fewer slots than before: evicted chunks are not listed. */
    store_close(&s);
    opts.chunk_count_max = 2;
    open_with(opts);
    ck_assert_uint_eq(store_stats(&s).chunks, 2);
    size_t kept = 0; /* the order within a second is that of the tokens */
    for (size_t i = 0; i < 4; i++)
        kept += store_has(&s, family[i]);
    ck_assert_uint_le(kept, 2);
    ck_assert_uint_eq(siblings_of(3, got), kept);
}
END_TEST

int main(void)
{
    int policies = 0;
    while (tierce__policy_at((size_t)policies) != NULL)
        policies++;
    return CHECK_RUN("disk", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
                     .tests = {nobody_else_may_look_into_a_store,
                               a_lookup_counts_the_leading_keys,
                               eviction_keeps_the_cap_and_the_order,
                               a_large_store_evicts_ahead,
                               a_deletion_alone_is_committed,
                               siblings_are_known_when_it_is_opened_again,
                               what_has_expired_is_a_miss,
                               a_smaller_cap_evicts_and_truncates,
                               fewer_slots_evict_the_oldest,
                               more_slots_are_kept,
                               full_of_slots_with_space_in_limbo,
                               a_folder_is_held_by_one_store,
                               only_what_is_asked_for_twice,
                               what_is_refused_is_named,
                               a_folder_that_others_may_write_is_told,
                               more_than_the_file_system_has_is_told,
                               arguments_are_checked,
                               a_scan_sees_what_is_durable,
                               many_requests_at_once,
                               the_journal_is_compacted_and_bounded,
                               the_journal_grows_in_steps,
                               the_bound_of_the_journal_holds_for_many_namespaces,
                               a_clear_of_many_is_durable_after_a_flush,
                               a_clear_of_many_survives_closing},
                     .loops = {{put_get_flush_reopen, 0, 2}, {every_policy_evicts, 0, policies}});
}
