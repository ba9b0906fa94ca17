/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/assert.h"
#include "core/key/fingerprint.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The longest entry has five 20-digit numbers, two digests and their names. */
#define ENTRY_BYTES_MAX 512
#define NAME_BYTES_MAX  96

int tierce__fingerprint_cache_open(const char *dir)
{
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct stat st;
    int rc = fstat(fd, &st) < 0 ? -errno : 0;
    if (rc == 0 && (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0))
        rc = -EPERM;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

static void entry_name(char name[NAME_BYTES_MAX], const struct stat *file)
{
    snprintf(name, NAME_BYTES_MAX, "%" PRIx64 "-%" PRIx64 ".fingerprint", (uint64_t)file->st_dev,
             (uint64_t)file->st_ino);
}

static int64_t time_ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/*
 * The whole text of an entry: the file's identity, the digest, and a sum over both. An entry on
 * disk counts only if it is this text to the byte, which leaves nothing to parse but the digest.
 */
static size_t entry_text(char text[ENTRY_BYTES_MAX], const struct stat *file,
                         const uint8_t digest[TIERCE_HASH_BYTES])
{
    char hex[2 * TIERCE_HASH_BYTES + 1];
    uint8_t sum[TIERCE_HASH_BYTES];
    tierce__hex_encode(hex, digest, TIERCE_HASH_BYTES);
    int body = snprintf(text, ENTRY_BYTES_MAX,
                        "tierce-fingerprint=1\nsha256=%s\ndevice=%" PRIu64 "\ninode=%" PRIu64
                        "\nsize=%" PRIu64 "\nmtime_ns=%" PRId64 "\nctime_ns=%" PRId64 "\n",
                        hex, (uint64_t)file->st_dev, (uint64_t)file->st_ino,
                        (uint64_t)file->st_size, time_ns(file->st_mtim), time_ns(file->st_ctim));
    TIERCE_DASSERT(body > 0 &&
                   body < ENTRY_BYTES_MAX - (int)(2 * TIERCE_HASH_BYTES + sizeof("sum=\n")));
    tierce__sha256(sum, text, (size_t)body);
    tierce__hex_encode(hex, sum, TIERCE_HASH_BYTES);
    int tail = snprintf(text + body, ENTRY_BYTES_MAX - (size_t)body, "sum=%s\n", hex);
    return (size_t)body + (size_t)tail;
}

/* Reads an entry of our own making; 0 if there is none. A pipe must not stop us, a link must not
 * lead elsewhere. */
static size_t read_entry(int dir_fd, const char *name, char text[ENTRY_BYTES_MAX])
{
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 0;
    struct stat st;
    ssize_t n = 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        (st.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        n = read(fd, text, ENTRY_BYTES_MAX);
    close(fd);
    return n > 0 ? (size_t)n : 0;
}

bool tierce__fingerprint_cache_get(int dir_fd, const struct stat *file,
                                   uint8_t digest[TIERCE_HASH_BYTES])
{
    static const char head[] = "tierce-fingerprint=1\nsha256=";
    char name[NAME_BYTES_MAX], found[ENTRY_BYTES_MAX], expected[ENTRY_BYTES_MAX];
    uint8_t claimed[TIERCE_HASH_BYTES];
    entry_name(name, file);
    size_t size = read_entry(dir_fd, name, found);
    if (size < sizeof(head) - 1 + 2 * TIERCE_HASH_BYTES ||
        !tierce__hex_decode(claimed, TIERCE_HASH_BYTES, found + sizeof(head) - 1))
        return false;
    if (entry_text(expected, file, claimed) != size || memcmp(found, expected, size) != 0)
        return false;
    memcpy(digest, claimed, sizeof(claimed));
    return true;
}

static bool write_whole(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, text, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        size -= (size_t)n;
    }
    return true;
}

void tierce__fingerprint_cache_put(int dir_fd, const struct stat *file,
                                   const uint8_t digest[TIERCE_HASH_BYTES])
{
    static _Atomic uint64_t next; /* relaxed: only makes temporary names differ */
    char name[NAME_BYTES_MAX], temporary[NAME_BYTES_MAX], text[ENTRY_BYTES_MAX];
    entry_name(name, file);
    size_t size = entry_text(text, file, digest);
    snprintf(temporary, sizeof(temporary), "%" PRIx64 "-%ld-%" PRIu64 ".tmp",
             (uint64_t)file->st_ino, (long)getpid(),
             atomic_fetch_add_explicit(&next, 1, memory_order_relaxed));
    unlinkat(dir_fd, temporary, 0); /* of a process that had our number and died */
    int fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    bool ok = write_whole(fd, text, size) && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    if (ok && renameat(dir_fd, temporary, dir_fd, name) == 0)
        fsync(dir_fd);
    else
        unlinkat(dir_fd, temporary, 0);
}

/* ---- locks ----------------------------------------------------------------------------------- */

int tierce__fingerprint_cache_open_locks(int dir_fd)
{
    return openat(dir_fd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static int set_lock(int locks_fd, const struct stat *file, short type)
{
    TIERCE_DASSERT(locks_fd >= 0);
    struct flock range = {.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)((uint64_t)file->st_ino & (INT64_MAX >> 1)),
                          .l_len = 1};
    return fcntl(locks_fd, F_OFD_SETLK, &range);
}

bool tierce__fingerprint_cache_lock(int locks_fd, const struct stat *file)
{
    return set_lock(locks_fd, file, F_WRLCK) == 0 || (errno != EAGAIN && errno != EACCES);
}

void tierce__fingerprint_cache_unlock(int locks_fd, const struct stat *file)
{
    (void)set_lock(locks_fd, file, F_UNLCK);
}
