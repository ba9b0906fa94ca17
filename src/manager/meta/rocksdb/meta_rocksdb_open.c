/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The databases of the process. RocksDB would open any database, so a folder is accepted only if it
 * is empty or has our mark, which names the version of keys and values. The lock file shows whether
 * another process has the database open.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "base/log/log.h"
#include "manager/meta/rocksdb/meta_rocksdb_private.h"

#define MARK                 "tierce-meta"
#define MARK_NEW             "tierce-meta.new"
#define MEMTABLE_BLOOM_SHARE 0.02
static const char mark_text[] = "tierce meta 1\n";

static pthread_once_t databases_once = PTHREAD_ONCE_INIT;
static struct tierce__lock databases_lock;
static struct tierce__rocks *databases;

static void init_lock(void)
{
    tierce__lock_init(&databases_lock, TIERCE__LOCK_META_DATABASES);
}

/* ---- whose it is ---------------------------------------------------------------------------- */

/* TIERCE_E_LOCKED if another process has the database open. */
static int check_lock(const char *path, char why[256])
{
    char *name = tierce__join_path(path, "LOCK");
    if (name == NULL)
        return -ENOMEM;
    int fd = open(name, O_RDWR | O_CLOEXEC);
    tierce__free(name);
    if (fd < 0)
        return 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int rc = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? TIERCE_E_LOCKED : 0;
    if (rc < 0)
        snprintf(why, 256, "process %ld has %.180s open; end it, or set another path",
                 (long)lock.l_pid, path);
    (void)close(fd);
    return rc;
}

/* Checks that the folder has no entries other than lost+found and an unfinished mark. */
static int check_empty(int folder, const char *path, char why[256])
{
    static const char *const passed[] = {".", "..", "lost+found", MARK_NEW};
    DIR *dir = fdopendir(dup(folder));
    if (dir == NULL)
        return -errno;
    bool is_empty = true;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t i = 0;
        while (i < sizeof(passed) / sizeof(passed[0]) && strcmp(entry->d_name, passed[i]) != 0)
            i++;
        is_empty = is_empty && i < sizeof(passed) / sizeof(passed[0]);
    }
    (void)closedir(dir);
    if (is_empty)
        return 0;
    snprintf(why, 256, "%.180s holds files that do not belong to the manager", path);
    return TIERCE_E_FORMAT;
}

/* A damaged file may contain any bytes. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++) {
        if (*text < ' ' || *text > '~')
            *text = '?';
    }
}

static int check_mark(int mark, const char *path, char why[256])
{
    char text[64];
    ssize_t bytes = read(mark, text, sizeof(text) - 1);
    if (bytes < 0)
        return -errno;
    text[bytes] = '\0';
    if (strcmp(text, mark_text) == 0)
        return 0;
    text[strcspn(text, "\n")] = '\0';
    make_printable(text);
    snprintf(why, 256, "%.100s was written by another version: \"%.60s\"", path, text);
    return TIERCE_E_VERSION;
}

static bool ends_in(const char *name, const char *suffix)
{
    size_t bytes = strlen(name), end = strlen(suffix);
    return bytes > end && strcmp(name + bytes - end, suffix) == 0;
}

/* The library takes a folder without CURRENT for a new one, and deletes the records in it. A first
 * opening that was killed leaves neither tables nor logs. */
static int check_current(int folder, const char *path, char why[256])
{
    if (faccessat(folder, "CURRENT", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    int rc = errno == ENOENT ? 0 : -errno;
    DIR *dir = rc == 0 ? fdopendir(dup(folder)) : NULL;
    if (rc == 0 && dir == NULL)
        rc = -errno;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (!ends_in(entry->d_name, ".sst") && !ends_in(entry->d_name, ".log"))
            continue;
        snprintf(why, 256,
                 "%.90s has records (%.40s), but no file CURRENT; restore CURRENT, or move the "
                 "folder away to begin with an empty index",
                 path, entry->d_name);
        rc = TIERCE_E_FORMAT;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return rc;
}

/* The mark is durable before the database is created, so that none of our databases lacks it. */
static int write_mark(int folder)
{
    int fd = openat(folder, MARK_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = tierce__write_whole(fd, mark_text, strlen(mark_text));
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    (void)close(fd);
    if (rc == 0 && (renameat(folder, MARK_NEW, folder, MARK) != 0 || fsync(folder) != 0))
        rc = -errno;
    return rc;
}

/* Creates the folder if only its last component is missing. Checks that it is ours, or empty, and
 * then writes the mark. */
static int check_folder(const char *path, char why[256])
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        int rc = -errno;
        snprintf(why, 256, "cannot create %.150s: %s", path, tierce_strerror(rc));
        return rc;
    }
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -errno;
    int mark = openat(folder, MARK, O_RDONLY | O_CLOEXEC), rc;
    if (mark >= 0) {
        rc = check_mark(mark, path, why);
        (void)close(mark);
        if (rc == 0)
            rc = check_current(folder, path, why);
    } else if (errno == ENOENT) {
        rc = check_empty(folder, path, why);
        if (rc == 0)
            rc = write_mark(folder);
    } else {
        rc = -errno;
    }
    (void)close(folder);
    if (rc < 0 && why[0] == '\0')
        snprintf(why, 256, "cannot use %.150s: %s", path, tierce_strerror(rc));
    return rc;
}

/*
 * The library's own log aborts the process when its file has no room (writable_file_writer.h of
 * RocksDB 7.8 asserts that nobody writes to a file again that failed once; its log does). A level
 * above all lines keeps the file empty, so that no write of it can fail. Errors are still returned
 * by the calls.
 */
enum { NO_LINES = 6 };

/* That level has no name, so the library stops writing its OPTIONS file halfway. The file is not
 * used. */
static void remove_options(const char *path)
{
    static const char prefix[] = "OPTIONS-", suffix[] = ".dbtmp";
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && ends_in(entry->d_name, suffix))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* ---- opening -------------------------------------------------------------------------------- */

enum { BACKGROUND_JOBS = 2 };

static void *wait_for_end(void *arg)
{
    pthread_rwlock_t *end = arg;
    pthread_rwlock_rdlock(end);
    pthread_rwlock_unlock(end);
    return NULL;
}

/* Whether the process may have as many more threads as opening begins: background jobs of both
 * priorities, a timer, and those that open tables. */
static int check_threads(void)
{
    enum { TABLE_OPENERS = 16, TIMERS = 1, ALL = 2 * BACKGROUND_JOBS + TIMERS + TABLE_OPENERS };
    pthread_t threads[ALL];
    size_t count = 0;
    int rc = 0;
    pthread_rwlock_t end;
    pthread_rwlock_init(&end, NULL);
    pthread_rwlock_wrlock(&end);
    while (rc == 0 && count < ALL) {
        rc = -pthread_create(&threads[count], NULL, wait_for_end, &end);
        count += rc == 0;
    }
    pthread_rwlock_unlock(&end);
    while (count > 0)
        (void)pthread_join(threads[--count], NULL);
    pthread_rwlock_destroy(&end);
    return rc;
}

/* The library throws an exception where it gets no thread or no memory, which ends the process: no
 * caller in C can catch it. So the limits of the process are tried before. */
static int check_limits(const struct tierce__rocks_opts *opts, char why[256])
{
    enum { OTHER_MIB = 256 }; /* two tables in memory of 64 MiB, their filters, logs to replay */
    size_t bytes = (size_t)(opts->cache_mib + OTHER_MIB) << 20;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int rc = memory != MAP_FAILED ? 0 : -ENOMEM;
    /* Beside the memory, because stacks of threads need room, too. */
    int threads = rc == 0 ? check_threads() : 0;
    if (memory != MAP_FAILED)
        (void)munmap(memory, bytes);
    if (rc < 0)
        snprintf(why, 256,
                 "the index in RocksDB requires %zu MiB of address space: raise the limit of the "
                 "process (ulimit -v, LimitAS=), or lower cache_mib of its URI (%llu)",
                 bytes >> 20, (unsigned long long)opts->cache_mib);
    else if (threads < 0)
        snprintf(
            why, 256,
            "the index in RocksDB cannot start its threads: %s; raise the limit of the process "
            "(ulimit -u and -v, LimitNPROC=, TasksMax=)",
            tierce_strerror(threads));
    return rc < 0 ? rc : threads;
}

static void make_options(struct tierce__rocks *rocks, const struct tierce__rocks_opts *opts)
{
    enum { BLOOM_BITS = 10, LOG_FILES = 2 };
    rocks->cache = rocksdb_cache_create_lru((size_t)opts->cache_mib << 20);
    rocks->table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(rocks->table, rocks->cache);
    /* The table options own the filter. */
    rocksdb_block_based_options_set_filter_policy(
        rocks->table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
    rocksdb_block_based_options_set_data_block_index_type(
        rocks->table, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
    rocks->options = rocksdb_options_create();
    /* Writes mostly look up keys that do not exist. */
    rocksdb_options_set_memtable_prefix_bloom_size_ratio(rocks->options, MEMTABLE_BLOOM_SHARE);
    rocksdb_options_set_memtable_whole_key_filtering(rocks->options, 1);
    rocksdb_options_set_block_based_table_factory(rocks->options, rocks->table);
    rocksdb_options_set_create_if_missing(rocks->options, 1);
    rocksdb_options_set_uint64add_merge_operator(rocks->options);
    /* Records are compact already, and reads do not wait for a decoder. */
    rocksdb_options_set_compression(rocks->options, rocksdb_no_compression);
    rocksdb_options_set_max_background_jobs(rocks->options, BACKGROUND_JOBS);
    rocksdb_options_set_keep_log_file_num(rocks->options, LOG_FILES);
    rocksdb_options_set_info_log_level(rocks->options, NO_LINES);
    rocksdb_options_set_wal_recovery_mode(rocks->options, rocksdb_point_in_time_recovery);
    /* Overlaps one write's log with another write's insertion into the table in memory. */
    rocksdb_options_set_enable_pipelined_write(rocks->options, 1);
    rocks->reads = rocksdb_readoptions_create();
    rocks->writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(rocks->writes, opts->sync == 1);
    rocks->touch_writes = rocksdb_writeoptions_create();
}

/* Leaves no log to replay at the next opening. */
static void flush(struct tierce__rocks *rocks)
{
    char *error = NULL;
    rocksdb_flushoptions_t *opts = rocksdb_flushoptions_create();
    rocksdb_flush(rocks->db, opts, &error);
    rocksdb_flushoptions_destroy(opts);
    rocksdb_free(error);
}

static void close_database(struct tierce__rocks *rocks)
{
    TIERCE_DASSERT(rocks->memory == NULL || rocks->lock_fd < 0);
    if (rocks->family != NULL)
        rocksdb_column_family_handle_destroy(rocks->family);
    if (rocks->db != NULL)
        rocksdb_close(rocks->db);
    rocks->family = NULL;
    rocks->db = NULL;
    if (rocks->lock_fd >= 0)
        (void)close(rocks->lock_fd);
    rocks->lock_fd = -1;
    if (rocks->memory != NULL)
        rocksdb_env_destroy(rocks->memory);
    rocks->memory = NULL;
}

static void destroy(struct tierce__rocks *rocks)
{
    tierce__lock_assert_held(&databases_lock);
    TIERCE_ASSERT(rocks->users <= 1);
    tierce__touches_stop(rocks->touches);
    if (rocks->db != NULL && atomic_load_explicit(&rocks->write_error, memory_order_relaxed) == 0)
        flush(rocks);
    close_database(rocks);
    if (rocks->options != NULL) {
        rocksdb_options_destroy(rocks->options);
        rocksdb_block_based_options_destroy(rocks->table);
        rocksdb_cache_destroy(rocks->cache);
        rocksdb_readoptions_destroy(rocks->reads);
        rocksdb_writeoptions_destroy(rocks->writes);
        rocksdb_writeoptions_destroy(rocks->touch_writes);
    }
    for (unsigned i = 0; i < TIERCE__ROCKS_STRIPES; i++)
        tierce__lock_fini(&rocks->stripes[i]);
    pthread_rwlock_destroy(&rocks->opened);
    tierce__free(rocks->path);
    tierce__free(rocks);
}

/* Reports why the library did not open the database; frees `error`. */
static int say_why_not(const struct tierce__rocks *rocks, char *error, char why[256])
{
    bool is_locked = strstr(error, "lock") != NULL;
    make_printable(error);
    snprintf(why, 256, "cannot open the database in %.100s: %.120s", rocks->path, error);
    int rc = tierce__rocks_code(error);
    /* The text contains the path, which may contain the word. */
    return is_locked && rc != -ENOSPC ? TIERCE_E_LOCKED : rc;
}

/* Returns the library's error, or NULL. Batched reads need the handle of the column family, which
 * only opening returns. */
static char *try_open(struct tierce__rocks *rocks, const rocksdb_options_t *options)
{
    const char *name = "default";
    char *error = NULL;
    rocks->db = rocksdb_open_column_families(options, rocks->path, 1, &name, &options,
                                             &rocks->family, &error);
    return error;
}

static int open_with(struct tierce__rocks *rocks, const rocksdb_options_t *options, char why[256])
{
    char *error = try_open(rocks, options);
    return error != NULL ? say_why_not(rocks, error, why) : 0;
}

/* ---- damaged logs --------------------------------------------------------------------------- */

/*
 * At opening, the library applies its logs up to the first damaged write, drops the writes behind
 * it without an error, and deletes the logs. So a database is first opened in the mode that rejects
 * every flaw. If a log has one, the logs are read again, without changes to the folder. This shows
 * whether a crash cut off the last write, whose caller got no answer, or whether writes are lost.
 */
struct loss {
    char *error;   /* the library's, of a damaged log; or NULL */
    uint64_t last; /* number of the last readable change, even behind the damage; 0: unknown */
};

/* Sets `last` to the number of the last change that this mode reads. Returns the library's error,
 * or NULL. */
static char *read_logs(const struct tierce__rocks *rocks, int mode, uint64_t *last)
{
    char *error = NULL;
    rocksdb_options_t *options = rocksdb_options_create_copy(rocks->options);
    rocksdb_options_set_wal_recovery_mode(options, mode);
    rocksdb_t *db = rocksdb_open_for_read_only(options, rocks->path, 0, &error);
    if (db != NULL) {
        *last = rocksdb_get_latest_sequence_number(db);
        rocksdb_close(db);
    }
    rocksdb_options_destroy(options);
    return error;
}

static struct loss find_loss(const struct tierce__rocks *rocks)
{
    struct loss loss = {0};
    loss.error = read_logs(rocks, rocksdb_tolerate_corrupted_tail_records_recovery, &loss.last);
    if (loss.error != NULL)
        rocksdb_free(read_logs(rocks, rocksdb_skip_any_corrupted_records_recovery, &loss.last));
    return loss;
}

/* A log whose end was cut off is damage too if a later log has writes. */
static void tell_loss(const struct tierce__rocks *rocks, const struct loss *loss)
{
    uint64_t kept = rocksdb_get_latest_sequence_number(rocks->db);
    uint64_t lost = loss->last > kept ? loss->last - kept : 0;
    if (loss->error == NULL && lost == 0)
        return;
    if (loss->error != NULL)
        make_printable(loss->error);
    tierce__log(
        TIERCE_LOG_ERROR, "meta_records_lost",
        "path=\"%s\" reason=\"%s\" lost=\"the last changes before the manager ended, at "
        "least %" PRIu64 "\" consequence=\"the index is used without them: blocks that they "
        "added are not found, and blocks that they removed may be found again\" hint=\"look "
        "for device errors in the kernel's log\"",
        rocks->path,
        loss->error != NULL ? loss->error : "the end of a log before the last is missing",
        lost > 0 ? lost : 1);
}

static int open_and_recover(struct tierce__rocks *rocks, char why[256])
{
    rocksdb_options_t *options = rocksdb_options_create_copy(rocks->options);
    rocksdb_options_set_wal_recovery_mode(options, rocksdb_absolute_consistency_recovery);
    char *error = try_open(rocks, options);
    rocksdb_options_destroy(options);
    if (error == NULL)
        return 0;
    if (strncmp(error, "Corruption", strlen("Corruption")) != 0)
        return say_why_not(rocks, error, why);
    rocksdb_free(error);
    struct loss loss = find_loss(rocks);
    int rc = open_with(rocks, rocks->options, why);
    if (rc == 0)
        tell_loss(rocks, &loss);
    rocksdb_free(loss.error);
    return rc;
}

static int open_to_write(struct tierce__rocks *rocks, char why[256])
{
    TIERCE_DASSERT(rocks->lock_fd < 0);
    int rc = check_folder(rocks->path, why);
    if (rc == 0)
        rc = open_and_recover(rocks, why);
    if (rc == 0)
        remove_options(rocks->path);
    return rc;
}

/* Opens an empty database in memory instead of a new one on disk. */
static int open_in_memory(struct tierce__rocks *rocks, char why[256])
{
    TIERCE_DASSERT(rocks->lock_fd < 0);
    rocks->memory = rocksdb_create_mem_env();
    rocksdb_options_t *options = rocksdb_options_create_copy(rocks->options);
    rocksdb_options_set_env(options, rocks->memory);
    int rc = open_with(rocks, options, why);
    rocksdb_options_destroy(options);
    if (rc < 0)
        close_database(rocks);
    return rc;
}

/* Takes the lock that the library takes only when it opens for writing. */
static int hold_lock(struct tierce__rocks *rocks, char why[256])
{
    TIERCE_ASSERT(rocks->lock_fd < 0);
    char *name = tierce__join_path(rocks->path, "LOCK");
    if (name == NULL)
        return -ENOMEM;
    rocks->lock_fd = open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    int rc = rocks->lock_fd >= 0 ? 0 : -errno;
    tierce__free(name);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (rc == 0 && fcntl(rocks->lock_fd, F_SETLK, &lock) != 0)
        rc = errno == EAGAIN || errno == EACCES ? TIERCE_E_LOCKED : -errno;
    if (rc < 0)
        snprintf(why, 256, "cannot lock %.180s: %s", rocks->path, tierce_strerror(rc));
    return rc;
}

/* Opens for reading and writes nothing: records that are only in logs are read into memory. */
static int open_to_read(struct tierce__rocks *rocks, char why[256])
{
    const char *name = "default";
    const rocksdb_options_t *options = rocks->options;
    char *error = NULL;
    int rc = hold_lock(rocks, why);
    if (rc == 0)
        rocks->db = rocksdb_open_for_read_only_column_families(
            rocks->options, rocks->path, 1, &name, &options, &rocks->family, 0, &error);
    if (error != NULL)
        rc = say_why_not(rocks, error, why);
    if (rc < 0)
        close_database(rocks);
    return rc;
}

/* Returns whether a database exists, by the file that the library creates last. */
static bool is_there(const struct tierce__rocks *rocks)
{
    char *name = tierce__join_path(rocks->path, "CURRENT");
    bool is_there = name != NULL && access(name, F_OK) == 0;
    tierce__free(name);
    return is_there;
}

/* Opens for writing. If the file system is full, opens for reading and returns -ENOSPC, with
 * rocks->db set on success. */
static int open_as_may_be(struct tierce__rocks *rocks, char why[256])
{
    char inner[256] = "";
    int rc = open_to_write(rocks, why);
    if (rc != -ENOSPC)
        return rc;
    int failed = is_there(rocks) ? open_to_read(rocks, inner) : open_in_memory(rocks, inner);
    if (failed < 0)
        tierce__log(TIERCE_LOG_ERROR, "meta_rocksdb_failed", "doing=\"open to read\" err=\"%s\"",
                    inner);
    return rc;
}

/* The space that opening needs: its logs as tables, and some small files. */
static bool has_room(const char *path)
{
    enum { SMALL_FILES = 8 << 20 };
    struct statvfs st;
    uint64_t needed = SMALL_FILES;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct stat file;
        if (ends_in(entry->d_name, ".log") &&
            fstatat(dirfd(dir), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0)
            needed += 2 * (uint64_t)file.st_size;
    }
    if (dir != NULL)
        (void)closedir(dir);
    /* A missing folder is created. */
    return statvfs(path, &st) != 0 || (uint64_t)st.f_bavail * st.f_frsize >= needed;
}

int tierce__rocks_reopen(struct tierce__rocks *rocks)
{
    TIERCE_ASSERT(atomic_load_explicit(&rocks->is_recovering, memory_order_relaxed));
    enum { TRIES = 100 };
    char why[256] = "";
    if (!has_room(rocks->path))
        return -ENOSPC;
    int busy = EBUSY;
    /* Does not block: the holder of the lock may write and call this function. */
    for (int i = 0; i < TRIES && busy != 0; i++) {
        busy = pthread_rwlock_trywrlock(&rocks->opened);
        if (busy != 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (busy != 0)
        return -EBUSY;
    TIERCE_ASSERT(busy == 0);
    close_database(rocks);
    int rc = open_as_may_be(rocks, why);
    pthread_rwlock_unlock(&rocks->opened);
    if (rc < 0)
        tierce__log(TIERCE_LOG_ERROR, "meta_rocksdb_failed", "doing=reopen err=\"%s\"", why);
    return rc;
}

static int open_rocks(struct tierce__rocks **out, char *path, const struct tierce__rocks_opts *opts,
                      char why[256])
{
    tierce__lock_assert_held(&databases_lock);
    struct tierce__rocks *rocks = tierce__calloc(1, sizeof(*rocks));
    if (rocks == NULL) {
        tierce__free(path);
        return -ENOMEM;
    }
    pthread_rwlock_init(&rocks->opened, NULL);
    rocks->users = 1;
    rocks->lock_fd = -1;
    rocks->path = path;
    for (unsigned i = 0; i < TIERCE__ROCKS_STRIPES; i++)
        tierce__lock_init(&rocks->stripes[i], TIERCE__LOCK_META_STRIPE);
    why[0] = '\0';
    int rc = check_limits(opts, why);
    if (rc == 0)
        make_options(rocks, opts);
    if (rc == 0)
        rc = check_lock(path, why);
    if (rc == 0)
        rc = open_as_may_be(rocks, why);
    if (rc == -ENOSPC && rocks->db != NULL) {
        tierce__rocks_note_failure(rocks, rc);
        rc = 0;
    }
    if (rc == 0)
        rc = tierce__touches_start(&rocks->touches, (uint32_t)opts->touch_ms,
                                   tierce__rocks_flush_touches, rocks);
    if (rc < 0)
        destroy(rocks);
    else
        *out = rocks;
    return rc;
}

/* Splits a path into its parent folder, with links resolved, and its last name. */
static int canonical_of_missing(char **out, const char *path)
{
    char *copy = tierce__strdup(path);
    if (copy == NULL)
        return -ENOMEM;
    for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash != NULL ? slash + 1 : copy;
    const char *above = slash == NULL ? "." : slash == copy ? "/" : copy;
    if (slash != NULL && slash != copy)
        *slash = '\0';
    char *real = realpath(above, NULL);
    int rc = real != NULL ? 0 : -errno;
    if (rc == 0) {
        *out = tierce__join_path(real, name);
        rc = *out != NULL ? 0 : -ENOMEM;
    }
    free(real);
    tierce__free(copy);
    return rc;
}

/* The path with links resolved, heap; its last folder need not exist. */
static int canonical(char **out, const char *path, char why[256])
{
    char *real = realpath(path, NULL);
    int rc = real != NULL ? 0 : -errno;
    if (rc == -ENOENT) {
        rc = canonical_of_missing(out, path);
    } else if (rc == 0) {
        *out = tierce__strdup(real);
        rc = *out != NULL ? 0 : -ENOMEM;
    }
    if (rc < 0)
        snprintf(why, 256, "cannot find %.150s: %s", path, tierce_strerror(rc));
    free(real);
    return rc;
}

int tierce__rocks_open(struct tierce__rocks **out, const char *path,
                       const struct tierce__rocks_opts *opts, char why[256])
{
    char *real = NULL;
    int rc = canonical(&real, path, why);
    if (rc < 0)
        return rc;
    (void)pthread_once(&databases_once, init_lock);
    tierce__lock_take(&databases_lock);
    struct tierce__rocks *rocks = databases;
    while (rocks != NULL && strcmp(rocks->path, real) != 0)
        rocks = rocks->next;
    if (rocks != NULL) {
        TIERCE_ASSERT(rocks->users > 0);
        rocks->users++;
        tierce__free(real);
    } else {
        rc = open_rocks(&rocks, real, opts, why);
        if (rc == 0) {
            rocks->next = databases;
            databases = rocks;
        }
    }
    tierce__lock_drop(&databases_lock);
    if (rc == 0)
        *out = rocks;
    return rc;
}

/* Closed under the lock, so that the next opener finds it free. */
void tierce__rocks_close(struct tierce__rocks *rocks)
{
    tierce__lock_take(&databases_lock);
    TIERCE_ASSERT(rocks->users > 0);
    if (--rocks->users == 0) {
        struct tierce__rocks **at = &databases;
        while (*at != rocks)
            at = &(*at)->next;
        TIERCE_DASSERT((*at)->users == 0);
        *at = rocks->next;
        destroy(rocks);
    }
    tierce__lock_drop(&databases_lock);
}
