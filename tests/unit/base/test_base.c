/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/log/log_repeat.h"
#include "check_main.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tierce/status.h>
#include <unistd.h>

START_TEST(every_own_error_has_text_and_name)
{
#define TIERCE_ERROR(name, value, text)                                                            \
    ck_assert_str_eq(tierce_strerror(value), text);                                                \
    ck_assert_str_eq(tierce_error_name(value), "TIERCE_E_" #name);                                 \
    ck_assert_int_le(value, -5001);
#include <tierce/errors.def>
#undef TIERCE_ERROR
    ck_assert_str_eq(tierce_error_name(-ENOSPC), "ENOSPC");
    ck_assert_str_eq(tierce_strerror(-ENOSPC), "No space left on device");
    ck_assert_str_eq(tierce_strerror(-123456), "unknown status");
    ck_assert_str_eq(tierce_error_name(0), "OK");
}
END_TEST

START_TEST(hex_round_trip_and_refusal)
{
    uint8_t bytes[4] = {0x00, 0xff, 0x1a, 0xb2}, back[4];
    char text[9];
    tierce__hex_encode(text, bytes, 4);
    ck_assert_str_eq(text, "00ff1ab2");
    ck_assert(tierce__hex_decode(back, 4, "00FF1aB2"));
    ck_assert_mem_eq(back, bytes, 4);
    ck_assert(!tierce__hex_decode(back, 4, "00ff1ab"));
    ck_assert(!tierce__hex_decode(back, 4, "00ff1ag2"));
}
END_TEST

START_TEST(little_endian_loads_and_stores)
{
    uint8_t b[8];
    tierce__store_le64(b, 0x0102030405060708ULL);
    ck_assert_uint_eq(b[0], 8);
    ck_assert_uint_eq(tierce__load_le64(b), 0x0102030405060708ULL);
    ck_assert_uint_eq(tierce__load_le32(b), 0x05060708U);
    ck_assert_uint_eq(tierce__load_le16(b), 0x0708U);
    uint64_t out;
    ck_assert(!tierce__mul_ok(&out, UINT64_MAX, 2));
    ck_assert(!tierce__add_ok(&out, UINT64_MAX, 1));
}
END_TEST

START_TEST(the_nth_allocation_fails_once)
{
    uint64_t before = tierce__alloc_live();
    tierce__alloc_fail_nth(2);
    void *a = tierce__alloc(10), *b = tierce__calloc(2, 10), *c = tierce__strdup("x");
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_null(b);
    ck_assert_ptr_nonnull(c);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 3);
    tierce__free(a);
    tierce__free(b);
    tierce__free(c);
    ck_assert_uint_eq(tierce__alloc_live(), before);
    ck_assert_ptr_null(tierce__calloc(SIZE_MAX, 16));
}
END_TEST

START_TEST(arrays_grow_by_doubling)
{
    uint32_t *items = NULL;
    uint16_t room = 0;
    ck_assert_int_eq(TIERCE__GROW(items, room, 0, 6), 0);
    ck_assert_ptr_null(items);
    for (uint32_t i = 0; i < 100; i++) {
        ck_assert_int_eq(TIERCE__GROW(items, room, i + 1u, 6), 0);
        items[i] = i;
    }
    ck_assert_uint_eq(room, 192);
    for (uint32_t i = 0; i < 100; i++)
        ck_assert_uint_eq(items[i], i);
    ck_assert_int_eq(TIERCE__GROW(items, room, 500u, 6), 0);
    ck_assert_uint_eq(room, 768);
    /* The last doubling goes to the largest number of the room's type. */
    ck_assert_int_eq(TIERCE__GROW(items, room, UINT16_MAX, 6), 0);
    ck_assert_uint_eq(room, UINT16_MAX);
    ck_assert_int_eq(TIERCE__GROW(items, room, UINT16_MAX + 1u, 6), -ENOMEM);
    ck_assert_uint_eq(room, UINT16_MAX);
    tierce__free(items);
}
END_TEST

START_TEST(an_array_that_cannot_grow_stays)
{
    uint64_t *items = NULL;
    size_t room = 0;
    ck_assert_int_eq(TIERCE__GROW(items, room, 3u, 2), 0);
    uint64_t *before = items;
    ck_assert_uint_eq(room, 4);
    ck_assert_int_eq(TIERCE__GROW(items, room, SIZE_MAX, 2), -ENOMEM); /* its bytes overflow */
    ck_assert_int_eq(TIERCE__GROW(items, room, SIZE_MAX / 8 + 1, 2), -ENOMEM);
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(TIERCE__GROW(items, room, 4u, 2), 0); /* there is room */
    ck_assert_int_eq(TIERCE__GROW(items, room, 5u, 2), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_ptr_eq(items, before);
    ck_assert_uint_eq(room, 4);
    tierce__free(items);
}
END_TEST

START_TEST(list_keeps_order)
{
    struct tierce__list head, n[3];
    tierce__list_init(&head);
    for (int i = 0; i < 3; i++)
        tierce__list_push_back(&head, &n[i]);
    tierce__list_remove(&n[1]);
    tierce__list_remove(&n[1]);
    ck_assert_ptr_eq(head.next, &n[0]);
    ck_assert_ptr_eq(head.prev, &n[2]);
    int seen = 0;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &head) {
        tierce__list_remove(it);
        seen++;
    }
    ck_assert_int_eq(seen, 2);
    ck_assert(tierce__list_empty(&head));
}
END_TEST

START_TEST(a_wait_ends_at_its_deadline)
{
    struct tierce__lock lock;
    struct tierce__cond cond;
    tierce__lock_init(&lock, TIERCE__LOCK_POOL);
    tierce__cond_init(&cond);
    tierce__lock_take(&lock);
    uint64_t start = tierce__now_ns();
    while (tierce__cond_wait(&cond, &lock, start + 20 * TIERCE__MS_NS))
        ;
    ck_assert_uint_ge(tierce__now_ns() - start, 20 * TIERCE__MS_NS);
    tierce__lock_drop(&lock);
    tierce__cond_fini(&cond);
    tierce__lock_fini(&lock);
}
END_TEST

#ifdef TIERCE_CHECKED
START_TEST(taking_locks_in_the_wrong_order_panics)
{
    struct tierce__lock inner, outer;
    tierce__lock_init(&inner, TIERCE__LOCK_POOL);
    tierce__lock_init(&outer, TIERCE__LOCK_ENGINE);
    tierce__lock_take(&inner);
    tierce__lock_take(&outer);
}
END_TEST
#endif

START_TEST(locks_of_one_class_are_taken_together)
{
    struct tierce__lock locks[3], after;
    tierce__lock_init(&after, TIERCE__LOCK_NAMESPACES);
    for (int i = 0; i < 3; i++)
        tierce__lock_init(&locks[i], TIERCE__LOCK_POOL);
    struct tierce__lock *all[] = {&locks[0], &locks[1], &locks[2]};
    tierce__lock_take_all(all, 0);
    tierce__lock_drop_all(all, 0);
    for (int round = 0; round < 2; round++) {
        tierce__lock_take_all(all, 3);
        for (int i = 0; i < 3; i++)
            tierce__lock_assert_held(&locks[i]);
        tierce__lock_take(&after);
        tierce__lock_drop(&after);
        tierce__lock_drop_all(all, 3);
    }
    for (int i = 0; i < 3; i++)
        tierce__lock_fini(&locks[i]);
    tierce__lock_fini(&after);
}
END_TEST

START_TEST(a_lock_that_is_held_is_not_taken_by_a_try)
{
    struct tierce__lock lock;
    tierce__lock_init(&lock, TIERCE__LOCK_POOL);
    ck_assert(tierce__lock_try(&lock));
    tierce__lock_assert_held(&lock);
    ck_assert(!tierce__lock_try(&lock));
    tierce__lock_assert_held(&lock);
    tierce__lock_drop(&lock);
    ck_assert(tierce__lock_try(&lock));
    tierce__lock_drop(&lock);
    tierce__lock_fini(&lock);
}
END_TEST

START_TEST(taking_locks_together_in_the_wrong_order_panics)
{
    struct tierce__lock locks[2];
    for (int i = 0; i < 2; i++)
        tierce__lock_init(&locks[i], TIERCE__LOCK_POOL);
    tierce__lock_take_all((struct tierce__lock *[]){&locks[1], &locks[0]}, 2);
}
END_TEST

static int events, last_level;
static char last_detail[2048];

static void count_event(void *arg, enum tierce_log_level level, const char *event,
                        const char *detail)
{
    (void)arg;
    (void)event;
    events++;
    last_level = (int)level;
    snprintf(last_detail, sizeof(last_detail), "%s", detail);
}

START_TEST(the_same_message_passes_once_a_minute)
{
    struct tierce__log_repeat table[TIERCE__LOG_REPEAT_SLOTS] = {0};
    const uint64_t minute = TIERCE__LOG_REPEAT_PERIOD_NS;
    uint32_t held = 7;
    ck_assert(tierce__log_repeat_pass(table, &held, 1, 5));
    ck_assert_uint_eq(held, 0);
    for (int i = 0; i < 3; i++)
        ck_assert(!tierce__log_repeat_pass(table, &held, 1, 5 + minute - 1));
    ck_assert(tierce__log_repeat_pass(table, &held, 2, 6)); /* another one */
    ck_assert(tierce__log_repeat_pass(table, &held, 1, 5 + minute));
    ck_assert_uint_eq(held, 3);
    ck_assert(tierce__log_repeat_pass(table, &held, 1, 5 + 2 * minute));
    ck_assert_uint_eq(held, 0);
    /* Many others make it forget what passed longest ago, and that alone. */
    for (uint64_t hash = 100; hash < 100 + TIERCE__LOG_REPEAT_SLOTS - 1; hash++)
        ck_assert(tierce__log_repeat_pass(table, &held, hash, 6 + 2 * minute));
    ck_assert(!tierce__log_repeat_pass(table, &held, 1, 7 + 2 * minute));
    ck_assert(tierce__log_repeat_pass(table, &held, 2, 7 + 2 * minute));

    events = 0;
    tierce_set_log_fn(count_event, NULL, TIERCE_LOG_INFO);
    for (int i = 0; i < 10; i++) {
        tierce__log_repeated(TIERCE_LOG_WARN, "failing", "path=%s", "/a");
        tierce__log_repeated(TIERCE_LOG_WARN, "failing", "path=%s", "/b");
        tierce__log_repeated(TIERCE_LOG_WARN, "ailing", "path=%s", "/a");
    }
    ck_assert_int_eq(events, 3);
    ck_assert_str_eq(last_detail, "path=/a");
    /* Details that another program chooses. */
    events = 0;
    for (int i = 0; i < 1000; i++)
        tierce__log_repeated(TIERCE_LOG_WARN, "chosen", "name=%d", i);
    ck_assert_int_eq(events, TIERCE__LOG_EVENT_LINES);
    tierce__log_repeated(TIERCE_LOG_WARN, "other", "name=%d", 1);
    ck_assert_int_eq(events, TIERCE__LOG_EVENT_LINES + 1);
    struct tierce__log_event kinds[TIERCE__LOG_EVENT_SLOTS] = {0};
    for (uint32_t i = 0; i < TIERCE__LOG_EVENT_LINES; i++)
        ck_assert(tierce__log_event_pass(kinds, &held, 1, 5));
    for (int i = 0; i < 3; i++)
        ck_assert(!tierce__log_event_pass(kinds, &held, 1, 4 + minute));
    ck_assert(tierce__log_event_pass(kinds, &held, 2, 6));
    ck_assert(tierce__log_event_pass(kinds, &held, 1, 5 + minute));
    ck_assert_uint_eq(held, 3);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

/* A message that its event leaves out is not one that was logged: the next one is, and the number
 * of all that are missing is right. */
START_TEST(a_message_that_is_left_out_returns)
{
    enum { EVENT = 1, OWN = 7, OTHERS = 100 };
    static struct tierce__log_recent recent;
    const uint64_t minute = TIERCE__LOG_REPEAT_PERIOD_NS;
    struct tierce__log_missing missing = {7, 7};
    ck_assert(tierce__log_recent_pass(&recent, &missing, EVENT, OWN, 5));
    ck_assert(missing.held == 0 && missing.left_out == 0);
    for (int i = 0; i < 2; i++)
        ck_assert(!tierce__log_recent_pass(&recent, &missing, EVENT, OWN, 6)); /* held back */
    /* Others fill the event's next minute, so that it is left out; and again later. */
    for (uint64_t i = 0; i < TIERCE__LOG_EVENT_LINES; i++)
        ck_assert(tierce__log_recent_pass(&recent, &missing, EVENT, OTHERS + i, 5 + minute));
    ck_assert(!tierce__log_recent_pass(&recent, &missing, EVENT, OWN, 6 + minute));
    ck_assert(!tierce__log_recent_pass(&recent, &missing, EVENT, OWN, 5 + minute + minute / 2));
    ck_assert(tierce__log_recent_pass(&recent, &missing, EVENT, OWN, 5 + 2 * minute));
    ck_assert_uint_eq(missing.held, 0);
    ck_assert_uint_eq(missing.left_out, 4);
}
END_TEST

int __real_fsync(int fd);
int __wrap_fsync(int fd);
static int synced_files, synced_folders;
static bool folders_fail;

int __wrap_fsync(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    synced_files += S_ISREG(st.st_mode);
    synced_folders += S_ISDIR(st.st_mode);
    if (folders_fail && S_ISDIR(st.st_mode)) {
        errno = EIO;
        return -1;
    }
    return __real_fsync(fd);
}

/* Its content, and then its name. */
START_TEST(a_new_file_is_durable)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", *text;
    struct tierce__new_file file;
    size_t bytes;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char *path = tierce__join_path(folder, "new");
    for (int i = 1; i <= 2; i++) {
        ck_assert_int_eq(tierce__new_file_open(&file, path), 0);
        ck_assert_int_gt(fprintf(file.file, "%d", i), 0);
        ck_assert_int_eq(synced_folders, i - 1);
        ck_assert_int_eq(tierce__new_file_close(&file, true), 0);
        ck_assert_int_eq(synced_files, i);
        ck_assert_int_eq(synced_folders, i);
    }
    ck_assert_int_eq(tierce__read_file(&text, &bytes, path, 16), 0);
    ck_assert_str_eq(text, "2");
    tierce__free(text);
    /* One that is given up is removed, and nothing is renamed. */
    ck_assert_int_eq(tierce__new_file_open(&file, path), 0);
    ck_assert_int_eq(tierce__new_file_close(&file, false), 0);
    ck_assert_int_eq(synced_folders, 2);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    tierce__free(path);
}
END_TEST

/* A file that must not replace another has its name when it is whole, and not before. */
START_TEST(a_first_file_replaces_none)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", *text;
    struct tierce__new_file file, other;
    struct stat info;
    size_t bytes;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char *path = tierce__join_path(folder, "new");
    ck_assert_int_eq(tierce__new_file_open_first(&file, path), 0);
    ck_assert_int_eq(tierce__new_file_open_first(&other, path), 0);
    ck_assert(fputs("1", file.file) >= 0 && fputs("2", other.file) >= 0);
    ck_assert_int_ne(stat(path, &info), 0);
    ck_assert_int_eq(tierce__new_file_close(&file, true), 0);
    ck_assert_int_eq(synced_files, 1);
    ck_assert_int_eq(synced_folders, 1);
    ck_assert_int_eq(tierce__new_file_close(&other, true), -EEXIST);
    ck_assert_int_eq(tierce__new_file_open_first(&file, path), -EEXIST);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0600);
    ck_assert_uint_eq(info.st_nlink, 1);
    ck_assert_int_eq(tierce__read_file(&text, &bytes, path, 16), 0);
    ck_assert_str_eq(text, "1");
    tierce__free(text);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing is left beside it */
    tierce__free(path);
}
END_TEST

/* Its maker reports a failure, so it must be able to try again. */
START_TEST(a_first_file_whose_name_is_not_durable)
{
    char folder[] = "/tmp/tierce-test-XXXXXX";
    struct tierce__new_file file;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    char *path = tierce__join_path(folder, "new");
    folders_fail = true;
    ck_assert_int_eq(tierce__new_file_open_first(&file, path), 0);
    ck_assert_int_eq(tierce__new_file_close(&file, true), -EIO);
    folders_fail = false;
    ck_assert_int_eq(tierce__new_file_open_first(&file, path), 0);
    ck_assert_int_eq(tierce__new_file_close(&file, true), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    tierce__free(path);
}
END_TEST

START_TEST(log_filters_formats_and_limits)
{
    tierce_set_log_fn(count_event, NULL, TIERCE_LOG_INFO);
    tierce__log(TIERCE_LOG_DEBUG, "quiet", "x=%d", 1);
    ck_assert_int_eq(events, 0);
    tierce__log(TIERCE_LOG_ERROR, "loud", "x=%d", 7);
    ck_assert_int_eq(events, 1);
    ck_assert_int_eq(last_level, TIERCE_LOG_ERROR);
    ck_assert_str_eq(last_detail, "x=7");
    for (int i = 0; i < 1000; i++)
        tierce__log(TIERCE_LOG_WARN, "storm", "i=%d", i);
    ck_assert_int_lt(events, 100);
}
END_TEST

/* log.level is for stderr; a receiver has its own level. */
START_TEST(the_lowest_level_is_set)
{
    char text[512] = "";
    int ends[2], saved = dup(STDERR_FILENO);
    ck_assert(saved >= 0 && pipe(ends) == 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__log(TIERCE_LOG_INFO, "low", "x=%d", 1);
    tierce__log_lowest(TIERCE_LOG_INFO);
    tierce__log(TIERCE_LOG_INFO, "low", "x=%d", 2);
    tierce__log_lowest(TIERCE_LOG_ERROR);
    tierce__log(TIERCE_LOG_WARN, "low", "x=%d", 3);
    ck_assert_int_eq(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    ck_assert_int_gt(read(ends[0], text, sizeof(text) - 1), 0);
    ck_assert_ptr_nonnull(strstr(text, "level=info event=low x=2\n"));
    ck_assert(strstr(text, "x=1") == NULL && strstr(text, "x=3") == NULL);
    events = 0;
    tierce_set_log_fn(count_event, NULL, TIERCE_LOG_INFO);
    tierce__log_lowest(TIERCE_LOG_ERROR);
    tierce__log(TIERCE_LOG_INFO, "low", "x=%d", 4);
    ck_assert_int_eq(events, 1);
}
END_TEST

/* Each line on stderr begins with the time in UTC, to the millisecond. */
START_TEST(lines_begin_with_the_time)
{
    char before[TIERCE__LOG_STAMP_BYTES], after[TIERCE__LOG_STAMP_BYTES], text[512] = "";
    int ends[2], saved = dup(STDERR_FILENO);
    ck_assert(saved >= 0 && pipe(ends) == 0);
    ck_assert_int_eq(setenv("TZ", "Asia/Kolkata", 1), 0);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__log_stamp(before);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    tierce__log(TIERCE_LOG_WARN, "loud", "x=%d", 7);
    tierce__log_to_stderr("tierce node", "ends");
    ck_assert_int_eq(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    tierce__log_stamp(after);
    ck_assert_int_gt(read(ends[0], text, sizeof(text) - 1), 0);
    static const char *const wanted[] = {" tierce level=warn event=loud x=7", " tierce node: ends"};
    char *line = text;
    size_t stamp = strlen(before);
    for (size_t i = 0; i < 2; i++) {
        char *end = strchr(line, '\n');
        ck_assert_msg(end != NULL && (size_t)(end - line) > stamp, "%s", text);
        *end = '\0';
        ck_assert_int_ge(strncmp(line, before, stamp), 0);
        ck_assert_int_le(strncmp(line, after, stamp), 0);
        ck_assert_msg(line[10] == 'T' && line[19] == '.' && line[23] == 'Z', "%s", line);
        ck_assert_str_eq(line + stamp, wanted[i]);
        line = end + 1;
    }
    ck_assert_str_eq(line, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *t = tcase_create("base");
    tcase_add_test(t, every_own_error_has_text_and_name);
    tcase_add_test(t, hex_round_trip_and_refusal);
    tcase_add_test(t, little_endian_loads_and_stores);
    tcase_add_test(t, the_nth_allocation_fails_once);
    tcase_add_test(t, arrays_grow_by_doubling);
    tcase_add_test(t, an_array_that_cannot_grow_stays);
    tcase_add_test(t, list_keeps_order);
    tcase_add_test(t, a_wait_ends_at_its_deadline);
#ifdef TIERCE_CHECKED
    tcase_add_test_raise_signal(t, taking_locks_in_the_wrong_order_panics, SIGABRT);
#endif
    tcase_add_test(t, locks_of_one_class_are_taken_together);
    tcase_add_test(t, a_lock_that_is_held_is_not_taken_by_a_try);
    tcase_add_test_raise_signal(t, taking_locks_together_in_the_wrong_order_panics, SIGABRT);
    tcase_add_test(t, the_same_message_passes_once_a_minute);
    tcase_add_test(t, a_message_that_is_left_out_returns);
    tcase_add_test(t, a_new_file_is_durable);
    tcase_add_test(t, a_first_file_replaces_none);
    tcase_add_test(t, a_first_file_whose_name_is_not_durable);
    tcase_add_test(t, log_filters_formats_and_limits);
    tcase_add_test(t, the_lowest_level_is_set);
    tcase_add_test(t, lines_begin_with_the_time);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
