/* SPDX-License-Identifier: Apache-2.0 */
/* The processes for which a node runs: their locks, and the file. */
#include "check_main.h"
#include "node/node_users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static char folder[64], path[96], why[256];

static void make_file(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/users", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void remove_folder(void)
{
    temp_folder_remove(folder);
}

static int user(void)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_SH | LOCK_NB), 0);
    return fd;
}

START_TEST(a_node_without_users_runs_for_ever)
{
    struct tierce__node_users users = TIERCE__NODE_USERS_NONE;
    ck_assert(!tierce__node_users_have_gone(&users));
    tierce__node_users_close(&users);
}
END_TEST

START_TEST(the_last_of_several_users)
{
    struct tierce__node_users users;
    int one = user(), two = user();
    ck_assert_int_eq(tierce__node_users_open(&users, path, why), 0);
    ck_assert(!tierce__node_users_have_gone(&users));
    close(one);
    ck_assert(!tierce__node_users_have_gone(&users));
    close(two);
    ck_assert(tierce__node_users_have_gone(&users));
    /* The next user waits until the node has closed everything, and then finds no file. */
    int late = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(flock(late, LOCK_SH | LOCK_NB), -1);
    ck_assert(tierce__node_users_have_gone(&users));
    tierce__node_users_close(&users);
    ck_assert_int_eq(flock(late, LOCK_SH | LOCK_NB), 0);
    ck_assert_int_eq(access(path, F_OK), -1);
    close(late);
}
END_TEST

START_TEST(a_node_that_ends_before_its_users_leaves_the_file)
{
    struct tierce__node_users users;
    int one = user();
    ck_assert_int_eq(tierce__node_users_open(&users, path, why), 0);
    ck_assert(!tierce__node_users_have_gone(&users));
    tierce__node_users_close(&users);
    ck_assert_int_eq(access(path, F_OK), 0);
    close(one);
}
END_TEST

START_TEST(another_file_of_this_name_stays)
{
    struct tierce__node_users users;
    ck_assert_int_eq(tierce__node_users_open(&users, path, why), 0);
    ck_assert(tierce__node_users_have_gone(&users));
    ck_assert_int_eq(unlink(path), 0);
    close(open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
    tierce__node_users_close(&users);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(a_file_that_is_missing_or_a_link)
{
    struct tierce__node_users users;
    char link[128];
    ck_assert_int_eq(tierce__node_users_open(&users, "/nowhere/users", why), -ENOENT);
    ck_assert_str_eq(why, "--users: /nowhere/users: No such file or directory");
    snprintf(link, sizeof(link), "%s/link", folder);
    ck_assert_int_eq(symlink(path, link), 0);
    ck_assert_int_eq(tierce__node_users_open(&users, link, why), -ELOOP);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_users");
    TCase *t = tcase_create("users");
    tcase_add_checked_fixture(t, make_file, remove_folder);
    tcase_add_test(t, a_node_without_users_runs_for_ever);
    tcase_add_test(t, the_last_of_several_users);
    tcase_add_test(t, a_node_that_ends_before_its_users_leaves_the_file);
    tcase_add_test(t, another_file_of_this_name_stays);
    tcase_add_test(t, a_file_that_is_missing_or_a_link);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
