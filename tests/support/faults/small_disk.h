/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SMALL_DISK_H
#define TIERCE_TESTS_SMALL_DISK_H

#include "check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * A real file system of a few MiB, in a mount namespace of the test's process alone: it ends with
 * the process. Needs root, or a kernel that lets users have namespaces.
 */

static inline bool small_disk_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return good;
}

static inline bool small_disk_namespace(void)
{
    char map[64];
    unsigned uid = (unsigned)geteuid(), gid = (unsigned)getegid();
    if (unshare(CLONE_NEWNS) == 0)
        return true;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    snprintf(map, sizeof(map), "0 %u 1", uid);
    if (!small_disk_write("/proc/self/uid_map", map))
        return false;
    snprintf(map, sizeof(map), "0 %u 1", gid);
    return small_disk_write("/proc/self/setgroups", "deny") &&
           small_disk_write("/proc/self/gid_map", map);
}

static inline bool small_disk_try(const char *folder, uint64_t bytes)
{
    char options[64];
    snprintf(options, sizeof(options), "size=%llu,mode=0700", (unsigned long long)bytes);
    return small_disk_namespace() && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", folder, "tmpfs", 0, options) == 0;
}

/* Mounts one over a folder. The process has one thread. */
static inline void small_disk_mount(const char *folder, uint64_t bytes)
{
    ck_assert_msg(small_disk_try(folder, bytes), "cannot mount: %s", strerror(errno));
}

/* For main: whether mounting is permitted here; if not, says that its tests are skipped. */
static inline bool small_disk_permitted(void)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(small_disk_try("/tmp", 1 << 20) ? 0 : errno);
    if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
        return true;
    fprintf(stderr, "SKIPPED: the tests of full disks cannot mount a file system here: %s\n",
            WIFEXITED(status) ? strerror(WEXITSTATUS(status)) : "killed");
    return false;
}

/* The exit status of a program that has left them out: ctest shows it as skipped, not as passed. */
static inline int small_disk_status(int status, bool permitted)
{
    enum { SKIPPED = 77 };
    return status == EXIT_SUCCESS && !permitted ? SKIPPED : status;
}

/* Fills the file system except `left` bytes, as foreign files do. */
static inline void small_disk_fill(const char *folder, uint64_t left)
{
    static const char block[4096];
    char path[256];
    snprintf(path, sizeof(path), "%s/filler", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    uint64_t bytes = 0;
    while (write(fd, block, sizeof(block)) == (ssize_t)sizeof(block))
        bytes += sizeof(block);
    ck_assert_int_eq(errno, ENOSPC);
    if (left > 0)
        ck_assert_int_eq(ftruncate(fd, lseek(fd, 0, SEEK_END) - (off_t)left), 0);
    close(fd);
}

static inline void small_disk_free(const char *folder)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/filler", folder);
    ck_assert_int_eq(unlink(path), 0);
}

#endif
