/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files below a root folder: NFS, and 3FS through its mount. Below the root no link is followed, so
 * no path can leave it (base/vfs/beneath.h).
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/vfs/beneath.h"
#include "manager/storage/storage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { PROBE_BYTES = 4096, WALK_DEPTH = 3 };

/* A listing: the open folders on the way from the root to the current one, and their names without
 * the root. */
struct walk {
    DIR *folders[WALK_DEPTH];
    char *names[WALK_DEPTH];
    size_t depth;
};

struct file_driver {
    struct tierce__storage_driver base;
    char *root; /* absolute, ends with '/' */
    struct walk walk;
};

static struct file_driver *driver_of(struct tierce__storage_driver *driver)
{
    TIERCE_DASSERT(driver->ops == &tierce__storage_file);
    return (struct file_driver *)driver;
}

static int file_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char why[128])
{
    struct file_driver *driver = tierce__calloc(1, sizeof(*driver));
    why[0] = '\0';
    if (driver == NULL)
        return -ENOMEM;
    driver->base.ops = &tierce__storage_file;
    driver->root = tierce__storage_root(storage);
    if (driver->root == NULL) {
        tierce__free(driver);
        return -ENOMEM;
    }
    *out = &driver->base;
    return 0;
}

static void leave_folder(struct walk *walk)
{
    TIERCE_ASSERT(walk->depth > 0 && walk->depth <= WALK_DEPTH);
    walk->depth--;
    closedir(walk->folders[walk->depth]);
    tierce__free(walk->names[walk->depth]);
}

static void file_close(struct tierce__storage_driver *driver)
{
    TIERCE_DASSERT(driver->ops == &tierce__storage_file);
    while (driver_of(driver)->walk.depth > 0)
        leave_folder(&driver_of(driver)->walk);
    tierce__free(driver_of(driver)->root);
    tierce__free(driver);
}

/* Reopens the root for each call, because a mount may have changed. The path of the root comes
 * from the operator and may contain links. */
static int open_root(const struct file_driver *driver)
{
    int fd = open(driver->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

/* ---- probe ----------------------------------------------------------------------------------- */

static int say(char why[128], const char *what, int rc)
{
    TIERCE_DASSERT(rc < 0);
    snprintf(why, 128, "%s: %s", what, tierce_strerror(rc));
    return rc;
}

static int exchange(int fd, char why[128])
{
    uint8_t written[PROBE_BYTES], read_back[PROBE_BYTES];
    if (getrandom(written, sizeof(written), 0) != (ssize_t)sizeof(written))
        return say(why, "randomness", -EIO);
    ssize_t n = pwrite(fd, written, sizeof(written), 0);
    if (n != (ssize_t)sizeof(written))
        return say(why, "write", n < 0 ? -errno : -ENOSPC);
    if (fsync(fd) != 0)
        return say(why, "sync", -errno);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    n = pread(fd, read_back, sizeof(read_back), 0);
    if (n != (ssize_t)sizeof(read_back))
        return say(why, "read", n < 0 ? -errno : -EIO);
    if (memcmp(written, read_back, sizeof(written)) != 0)
        return say(why, "read", TIERCE_E_CHECKSUM);
    return 0;
}

/* Creates the root if only its last component is missing. More is not created, because that would
 * hide a missing mount. */
static int make_root(const struct file_driver *driver)
{
    return mkdir(driver->root, 0700) == 0 || errno == EEXIST ? 0 : -errno;
}

static int file_probe(struct tierce__storage_driver *base, char why[128])
{
    const struct file_driver *driver = driver_of(base);
    uint8_t random[8];
    char name[40] = ".tierce-probe-";
    int root = open_root(driver);
    int made = root == -ENOENT ? make_root(driver) : 0;
    if (made < 0 && made != -ENOENT)
        return say(why, "create the root", made);
    if (root == -ENOENT && made == 0)
        root = open_root(driver);
    if (root == -ENOENT) {
        snprintf(why, 128,
                 "open the root: No such file or directory; create its parent folder, or mount it");
        return root;
    }
    if (root < 0)
        return say(why, "open the root", root);
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        close(root);
        return say(why, "randomness", -EIO);
    }
    tierce__hex_encode(name + strlen(name), random, sizeof(random));
    int fd = openat(root, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int rc = fd >= 0 ? 0 : say(why, "create", -errno);
    /* Before the rest, because a manager that is killed must not leave the file. */
    if (fd >= 0 && unlinkat(root, name, 0) != 0)
        rc = say(why, "delete", -errno);
    if (rc == 0)
        rc = exchange(fd, why);
    if (fd >= 0)
        close(fd);
    close(root);
    return rc;
}

/* ---- the mark -------------------------------------------------------------------------------- */

static int read_mark_at(int root, char id[TIERCE__STORAGE_ID_HEX + 1], char why[128])
{
    char text[TIERCE__STORAGE_MARK_BYTES + 1];
    struct stat st;
    int fd = openat(root, TIERCE__STORAGE_MARK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ENOENT : say(why, "read the mark", -errno);
    ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? pread(fd, text, sizeof(text), 0) : 0;
    int rc = n < 0 ? say(why, "read the mark", -errno) : 0;
    close(fd);
    if (rc != 0)
        return rc;
    return tierce__storage_mark_read(id, text, (size_t)n) ? 0 : TIERCE_E_FORMAT;
}

static int file_read_mark(struct tierce__storage_driver *base, char id[TIERCE__STORAGE_ID_HEX + 1],
                          char why[128])
{
    int root = open_root(driver_of(base));
    if (root < 0)
        return root == -ENOENT ? root : say(why, "open the root", root);
    int rc = read_mark_at(root, id, why);
    close(root);
    return rc;
}

/* Writes a new file and syncs it. */
static int write_beside(int root, const char *name, const char *text)
{
    int fd = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    ssize_t n = pwrite(fd, text, TIERCE__STORAGE_MARK_BYTES, 0);
    int rc = n == TIERCE__STORAGE_MARK_BYTES ? 0 : n < 0 ? -errno : -ENOSPC;
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    close(fd);
    return rc;
}

static int file_write_mark(struct tierce__storage_driver *base, const char *id, char why[128])
{
    char text[TIERCE__STORAGE_MARK_BYTES + 1], name[40] = ".tierce-mark-";
    uint8_t random[8];
    int root = open_root(driver_of(base));
    if (root < 0)
        return say(why, "open the root", root);
    int rc = getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random) ? 0 : -EIO;
    tierce__hex_encode(name + strlen(name), random, sizeof(random));
    tierce__storage_mark_write(text, id);
    if (rc == 0)
        rc = write_beside(root, name, text);
    if (rc == 0 && renameat(root, name, root, TIERCE__STORAGE_MARK) != 0)
        rc = -errno;
    if (rc == 0 && fsync(root) != 0)
        rc = -errno;
    if (rc != 0)
        (void)unlinkat(root, name, 0);
    close(root);
    return rc == 0 ? 0 : say(why, "write the mark", rc);
}

/* ---- remove, measure ------------------------------------------------------------------------- */

/* A function that is called with an open folder and the name of a file in it. */
typedef int (*visit_fn)(void *arg, int folder, const char *name);

static int remove_at(void *arg, int folder, const char *name)
{
    TIERCE_DASSERT(folder >= 0 && strchr(name, '/') == NULL);
    struct stat st;
    (void)arg;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return TIERCE_E_ARGUMENT;
    return unlinkat(folder, name, 0) == 0 ? 0 : -errno;
}

static int measure_at(void *arg, int folder, const char *name)
{
    TIERCE_DASSERT(folder >= 0 && strchr(name, '/') == NULL);
    struct stat st;
    uint64_t *bytes = arg;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return TIERCE_E_ARGUMENT;
    *bytes = (uint64_t)st.st_size;
    return 0;
}

/* Visits the file that `path` names below an open folder. -ENOENT: the file does not exist. */
static int visit_below(int root, const char *path, visit_fn visit, void *arg)
{
    struct tierce__beneath at;
    int rc = tierce__beneath_open(&at, root, path);
    TIERCE_DASSERT(rc != -EINVAL); /* it is a name */
    if (rc != 0)
        return rc == -ELOOP || rc == -ENOTDIR ? TIERCE_E_ARGUMENT : rc;
    rc = visit(arg, at.folder, at.name);
    tierce__beneath_close(&at);
    return rc;
}

/* Removes the folders of a path that are empty. An error is expected: the folder is not empty, or
 * was removed by another process. */
static void tidy(int root, const char *path)
{
    struct tierce__beneath at;
    char *folder = tierce__strdup(path), *end;
    while (folder != NULL && (end = strrchr(folder, '/')) != NULL) {
        TIERCE_DASSERT(end > folder);
        *end = '\0';
        if (tierce__beneath_open(&at, root, folder) != 0)
            continue;
        (void)unlinkat(at.folder, at.name, AT_REMOVEDIR);
        tierce__beneath_close(&at);
    }
    tierce__free(folder);
}

/* -ENOENT and another id are TIERCE_E_DOWN: this is not the root that the index describes. */
static int check_mark_at(int root, const char *wanted)
{
    char id[TIERCE__STORAGE_ID_HEX + 1], why[128];
    int rc = read_mark_at(root, id, why);
    if (rc == -ENOENT || rc == TIERCE_E_FORMAT || (rc == 0 && strcmp(id, wanted) != 0))
        return TIERCE_E_DOWN;
    return rc;
}

/* With `id`, only in a root that has this mark. An open root stays the same one, whatever is
 * mounted over it. */
static int visit_path(struct tierce__storage_driver *base, const char *id, const char *path,
                      visit_fn visit, void *arg)
{
    const struct file_driver *driver = driver_of(base);
    path = tierce__storage_at_name(path, driver->root);
    if (path == NULL)
        return TIERCE_E_ARGUMENT;
    int root = open_root(driver);
    if (root < 0)
        return root == -ENOENT ? TIERCE_E_DOWN : root; /* a missing root is not a missing file */
    int rc = id != NULL ? check_mark_at(root, id) : 0;
    if (rc == 0)
        rc = visit_below(root, path, visit, arg);
    if ((rc == 0 || rc == -ENOENT) && visit == remove_at)
        tidy(root, path);
    close(root);
    return rc;
}

static int file_remove(struct tierce__storage_driver *base, const char *path)
{
    int rc = visit_path(base, NULL, path, remove_at, NULL);
    return rc == -ENOENT ? 0 : rc;
}

static int file_measure(struct tierce__storage_driver *base, const char *path, uint64_t *bytes)
{
    return visit_path(base, NULL, path, measure_at, bytes);
}

struct file_read {
    uint64_t offset;
    void *out;
    size_t bytes;
};

static int read_at(void *arg, int folder, const char *name)
{
    const struct file_read *read = arg;
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP ? TIERCE_E_ARGUMENT : -errno;
    int rc = fstat(fd, &st) != 0 ? -errno : S_ISREG(st.st_mode) ? 0 : TIERCE_E_ARGUMENT;
    ssize_t n = rc == 0 ? pread(fd, read->out, read->bytes, (off_t)read->offset) : 0;
    if (rc == 0)
        rc = n < 0 ? -errno : n == (ssize_t)read->bytes ? 0 : TIERCE_E_FORMAT;
    close(fd);
    return rc;
}

static int file_read(struct tierce__storage_driver *base, const char *path, uint64_t offset,
                     void *out, size_t bytes)
{
    struct file_read read = {.offset = offset, .out = out, .bytes = bytes};
    TIERCE_ASSERT(offset <= INT64_MAX - bytes);
    return visit_path(base, NULL, path, read_at, &read);
}

static int file_measure_marked(struct tierce__storage_driver *base, const char *id,
                               const char *path, uint64_t *bytes)
{
    return visit_path(base, id, path, measure_at, bytes);
}

/* ---- list ------------------------------------------------------------------------------------ */

static int64_t changed_us(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000 + st->st_mtim.tv_nsec / 1000;
}

/* Takes the folder `fd` [transfer]. */
static int enter_folder(struct walk *walk, int fd, const char *name)
{
    TIERCE_ASSERT(walk->depth < WALK_DEPTH);
    char *copy = tierce__strdup(name);
    DIR *folder = copy != NULL ? fdopendir(fd) : NULL;
    int rc = copy == NULL ? -ENOMEM : folder == NULL ? -errno : 0;
    if (rc < 0) {
        close(fd);
        tierce__free(copy);
        return rc;
    }
    walk->folders[walk->depth] = folder;
    walk->names[walk->depth] = copy;
    walk->depth++;
    return 0;
}

/* A folder or file that cannot be read is counted, and the first one is named. */
static void note_unread(const struct walk *walk, const char *name, int error,
                        struct tierce__storage_page *page)
{
    const char *first = walk->depth > 1 ? walk->names[1] : "";
    const char *second = walk->depth > 2 ? walk->names[2] : "";
    TIERCE_DASSERT(error > 0);
    if (page->unread++ == 0)
        snprintf(page->unread_why, sizeof(page->unread_why), "%.30s%s%.20s%s%.30s: %.40s", first,
                 *first != '\0' ? "/" : "", second, *second != '\0' ? "/" : "", name,
                 tierce_strerror(-error));
}

static int list_folder(struct walk *walk, int parent, const char *name,
                       struct tierce__storage_page *page)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        return enter_folder(walk, fd, name);
    page->others += errno == ENOTDIR || errno == ELOOP;
    if (errno != ENOTDIR && errno != ELOOP && errno != ENOENT)
        note_unread(walk, name, errno, page);
    return 0;
}

static int list_file(const struct walk *walk, int parent, const char *name,
                     struct tierce__storage_page *page)
{
    enum { SLASHES = 2 };
    struct stat st;
    char whole[3 * (NAME_MAX + 1)];
    TIERCE_ASSERT(walk->depth == WALK_DEPTH);
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT)
            note_unread(walk, name, errno, page);
        return 0;
    }
    page->others += !S_ISREG(st.st_mode);
    if (!S_ISREG(st.st_mode))
        return 0;
    int bytes = snprintf(whole, sizeof(whole), "%s/%s/%s", walk->names[1], walk->names[2], name);
    TIERCE_ASSERT(bytes > SLASHES && (size_t)bytes < sizeof(whole)); /* three names */
    return tierce__storage_page_add(page, whole, (uint64_t)st.st_size, changed_us(&st));
}

/* Whether the manager itself makes such files in the root. */
static bool is_own(const char *name)
{
    return strcmp(name, TIERCE__STORAGE_MARK) == 0 || strncmp(name, ".tierce-", 8) == 0;
}

/* The next entry of the current folder. */
static int walk_on(struct walk *walk, struct tierce__storage_page *page)
{
    DIR *folder = walk->folders[walk->depth - 1];
    errno = 0;
    const struct dirent *entry = readdir(folder);
    if (entry == NULL) {
        int error = errno;
        bool is_root = walk->depth == 1;
        if (error != 0 && !is_root)
            note_unread(walk, "", error, page);
        leave_folder(walk);
        return is_root ? -error : 0;
    }
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (walk->depth == 1 && is_own(name)))
        return 0;
    return walk->depth < WALK_DEPTH ? list_folder(walk, dirfd(folder), name, page)
                                    : list_file(walk, dirfd(folder), name, page);
}

static void file_end_list(struct tierce__storage_driver *base)
{
    struct walk *walk = &driver_of(base)->walk;
    while (walk->depth > 0)
        leave_folder(walk);
}

/* A page ends early on a file server whose answers take long. */
static int file_list(struct tierce__storage_driver *base, bool is_first,
                     struct tierce__storage_page *page, char why[128])
{
    enum { ENTRIES_MAX = 2 * TIERCE__STORAGE_BATCH_MAX, PAGE_MS = 250 };
    struct file_driver *driver = driver_of(base);
    struct walk *walk = &driver->walk;
    uint64_t until_ns = tierce__deadline_in_ms(PAGE_MS);
    int rc = 0;
    TIERCE_ASSERT(page->count == 0);
    if (is_first) {
        file_end_list(base);
        int root = open_root(driver);
        rc = root < 0 ? root : enter_folder(walk, root, "");
    } else if (walk->depth == 0) {
        return -ESTALE;
    }
    for (size_t i = 0; rc == 0 && i < ENTRIES_MAX && walk->depth > 0 &&
                       page->count < TIERCE__STORAGE_BATCH_MAX && tierce__now_ns() < until_ns;
         i++)
        rc = walk_on(walk, page);
    if (rc != 0) {
        file_end_list(base);
        (void)say(why, "list the root", rc);
    }
    page->is_end = walk->depth == 0;
    return rc;
}

static int remove_listed_at(void *arg, int folder, const char *name)
{
    TIERCE_DASSERT(folder >= 0 && strchr(name, '/') == NULL);
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return TIERCE_E_ARGUMENT;
    if (changed_us(&st) != *(int64_t *)arg)
        return -EAGAIN;
    return unlinkat(folder, name, 0) == 0 ? 0 : -errno;
}

/* Its folders stay, because the listing may be in them. */
static int file_remove_listed(struct tierce__storage_driver *base, const char *id, const char *path,
                              int64_t listed_us)
{
    int rc = visit_path(base, id, path, remove_listed_at, &listed_us);
    return rc == -ENOENT ? 0 : rc;
}

static double file_used_share(struct tierce__storage_driver *base)
{
    struct statvfs st;
    if (statvfs(driver_of(base)->root, &st) != 0 || st.f_blocks == 0)
        return -1;
    double used = (double)(st.f_blocks - st.f_bfree), free = (double)st.f_bavail;
    return used + free > 0 ? used / (used + free) : -1;
}

const struct tierce__storage_ops tierce__storage_file = {
    .name = "file",
    .open = file_open,
    .close = file_close,
    .probe = file_probe,
    .read_mark = file_read_mark,
    .write_mark = file_write_mark,
    .remove = file_remove,
    .measure = file_measure,
    .read_max = TIERCE__STORAGE_PIECE,
    .read = file_read,
    .measure_marked = file_measure_marked,
    .list = file_list,
    .end_list = file_end_list,
    .remove_listed = file_remove_listed,
    .used_share = file_used_share,
};
