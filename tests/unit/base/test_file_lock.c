/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/file_lock.h"
#include "check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[80];

static void set_up(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/lock", folder);
}

static void tear_down(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static int open_file(void)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    return fd;
}

START_TEST(one_holder_of_each_kind)
{
    static const enum tierce__file_lock_kind kinds[] = {TIERCE__FILE_LOCK_FLOCK,
                                                        TIERCE__FILE_LOCK_RECORD};
    int holders[2], other = open_file();
    for (int i = 0; i < 2; i++) {
        holders[i] = open_file();
        ck_assert_int_eq(tierce__file_lock_fd(holders[i], kinds[i], 0), 0);
        uint64_t start_ns = tierce__now_ns();
        ck_assert_int_eq(tierce__file_lock_fd(other, kinds[i], 0), TIERCE_E_LOCKED);
        ck_assert_int_eq(tierce__file_lock_fd(other, kinds[i], 30), TIERCE_E_LOCKED);
        ck_assert_uint_ge(tierce__now_ns() - start_ns, 30 * TIERCE__MS_NS);
    }
    for (int i = 0; i < 2; i++) {
        close(holders[i]);
        ck_assert_int_eq(tierce__file_lock_fd(other, kinds[i], 0), 0);
        ck_assert_int_eq(tierce__file_lock_fd(other, kinds[i], 0), 0); /* it holds it already */
    }
    close(other);
}
END_TEST

static void *close_later(void *arg)
{
    usleep(50000);
    close(*(int *)arg);
    return NULL;
}

START_TEST(a_lock_is_waited_for)
{
    struct stat st;
    pthread_t thread;
    int first = tierce__file_lock(path, 0);
    ck_assert_int_ge(first, 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(tierce__file_lock(path, 0), TIERCE_E_LOCKED);
    ck_assert_int_eq(pthread_create(&thread, NULL, close_later, &first), 0);
    int second = tierce__file_lock(path, 60000);
    ck_assert_int_ge(second, 0);
    pthread_join(thread, NULL);
    close(second);
}
END_TEST

START_TEST(what_cannot_be_locked)
{
    char link_path[96], missing[96];
    snprintf(link_path, sizeof(link_path), "%s/link", folder);
    snprintf(missing, sizeof(missing), "%s/missing/lock", folder);
    close(open_file());
    ck_assert_int_eq(symlink(path, link_path), 0);
    ck_assert_int_eq(tierce__file_lock(link_path, 0), -ELOOP);
    ck_assert_int_eq(tierce__file_lock(missing, 0), -ENOENT);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(tierce__file_lock_fd(fd, TIERCE__FILE_LOCK_RECORD, 1000), -EBADF);
    close(fd);
    unlink(link_path);
}
END_TEST

CHECK_MAIN("file_lock", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {one_holder_of_each_kind, a_lock_is_waited_for, what_cannot_be_locked})
