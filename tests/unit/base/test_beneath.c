/* SPDX-License-Identifier: Apache-2.0 */
/* Paths below a folder, with openat2 and without it. */
#include "base/vfs/beneath.h"
#include "check_main.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char folder[64];
static int root;

typedef int open_fn(struct tierce__beneath *out, int root, const char *path);
static open_fn *const opens[] = {tierce__beneath_open, tierce__beneath_walk};

static const char *at(const char *name)
{
    static char path[4][160];
    static unsigned next;
    snprintf(path[next % 4], sizeof(path[0]), "%s/%s", folder, name);
    return path[next++ % 4];
}

static void make_file(const char *name)
{
    int fd = open(at(name), O_CREAT | O_WRONLY | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void start(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-beneath-XXXXXX");
    temp_folder_make(folder);
    ck_assert_int_eq(mkdir(at("outside"), 0700), 0);
    ck_assert_int_eq(mkdir(at("root"), 0700), 0);
    ck_assert_int_eq(mkdir(at("root/a"), 0700), 0);
    ck_assert_int_eq(mkdir(at("root/a/b"), 0700), 0);
    make_file("outside/file");
    make_file("root/file");
    make_file("root/a/b/file");
    ck_assert_int_eq(symlink("../outside", at("root/out")), 0);
    ck_assert_int_eq(symlink("a", at("root/in")), 0);
    ck_assert_int_eq(symlink("../../outside", at("root/a/out")), 0);
    ck_assert_int_eq(symlink("/", at("root/a/slash")), 0);
    root = open(at("root"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(root, 0);
}

static void end(void)
{
    close(root);
    temp_folder_remove(folder);
}

static int open_and_close(open_fn *open_it, const char *path)
{
    struct tierce__beneath place = {.folder = -7};
    int rc = open_it(&place, root, path);
    ck_assert(rc == 0 || place.folder == -7);
    if (rc == 0)
        tierce__beneath_close(&place);
    return rc;
}

START_TEST(paths_lead_to_their_files)
{
    static const char *const paths[] = {"file", "a/b/file"};
    start();
    for (size_t i = 0; i < 2; i++) {
        struct tierce__beneath place;
        struct stat st, expected;
        char path[32];
        snprintf(path, sizeof(path), "root/%s", paths[i]);
        ck_assert_int_eq(stat(at(path), &expected), 0);
        ck_assert_int_eq(opens[_i](&place, root, paths[i]), 0);
        ck_assert_str_eq(place.name, "file");
        ck_assert_int_eq(fstatat(place.folder, place.name, &st, AT_SYMLINK_NOFOLLOW), 0);
        ck_assert_uint_eq(st.st_ino, expected.st_ino);
        tierce__beneath_close(&place);
    }
    ck_assert_int_eq(open_and_close(opens[_i], "."), 0);
    ck_assert_int_ge(fcntl(root, F_GETFD), 0); /* the root stays open */
    end();
}
END_TEST

START_TEST(no_path_leaves_the_root)
{
    static const char *const invalid[] = {"",
                                          "/",
                                          "/etc/passwd",
                                          "..",
                                          "../outside",
                                          "a/..",
                                          "a/../file",
                                          "a//b",
                                          "a/",
                                          "./a",
                                          "a/./b",
                                          "a/b/../../../outside/file",
                                          "../root/file"};
    static const char *const links[] = {"out/file",    "in/b",   "a/out/file",
                                        "a/slash/etc", "file/x", "in/../out/file"};
    start();
    for (size_t i = 0; i < sizeof(invalid) / sizeof(*invalid); i++) {
        ck_assert_msg(!tierce__beneath_is_path(invalid[i]), "%s", invalid[i]);
        ck_assert_msg(open_and_close(opens[_i], invalid[i]) == -EINVAL, "%s", invalid[i]);
    }
    for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++) {
        int rc = open_and_close(opens[_i], links[i]);
        ck_assert_msg(rc == -ELOOP || rc == -ENOTDIR || rc == -EINVAL, "%s: %d", links[i], rc);
    }
    ck_assert_int_eq(open_and_close(opens[_i], "none/file"), -ENOENT);
    end();
}
END_TEST

START_TEST(names_have_any_length)
{
    char path[PATH_MAX + 16];
    start();
    memset(path, 'n', sizeof(path));
    memcpy(path + NAME_MAX + 1, "/f", 3);
    ck_assert_int_eq(open_and_close(opens[_i], path), -ENAMETOOLONG);
    memset(path, 'n', sizeof(path));
    memcpy(path + sizeof(path) - 3, "/f", 3);
    ck_assert_int_eq(open_and_close(opens[_i], path), -ENAMETOOLONG);
    end();
}
END_TEST

/* "..." and "..a" are names like others. */
START_TEST(dots_in_names)
{
    static const char *const good[] = {"...", "..a", ".a", "a..", "a/...", ".a/..b"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        ck_assert_msg(tierce__beneath_is_path(good[i]), "%s", good[i]);
}
END_TEST

CHECK_MAIN("beneath", .seconds = 30, .tests = {dots_in_names},
           .loops = {{paths_lead_to_their_files, 0, 2},
                     {no_path_leaves_the_root, 0, 2},
                     {names_have_any_length, 0, 2}})
