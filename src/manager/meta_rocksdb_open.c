/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The databases of the process. RocksDB would open any database: a folder is taken only if it has
 * our mark, which names the version of the keys and values, or if it is empty. A database that
 * another process holds is told by its lock.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "manager/meta_rocksdb_private.h"

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
        snprintf(why, 256, "process %ld has %.180s open", (long)lock.l_pid, path);
    (void)close(fd);
    return rc;
}

/* Nothing but what a file system puts there itself, and a note that was not finished. */
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
    snprintf(why, 256, "%.180s holds files of somebody else", path);
    return TIERCE_E_FORMAT;
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
    snprintf(why, 256, "%.100s was written by another version: \"%.60s\"", path, text);
    return TIERCE_E_VERSION;
}

/* Durable before there is a database, so that none of ours is ever without. */
static int write_mark(int folder)
{
    int fd = openat(folder, MARK_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    size_t bytes = strlen(mark_text);
    int rc = write(fd, mark_text, bytes) == (ssize_t)bytes && fsync(fd) == 0 ? 0 : -EIO;
    (void)close(fd);
    if (rc == 0 && (renameat(folder, MARK_NEW, folder, MARK) != 0 || fsync(folder) != 0))
        rc = -errno;
    return rc;
}

/* Whether the folder may be opened: ours, or empty and then marked. */
static int check_folder(const char *path, char why[256])
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -errno;
    int mark = openat(folder, MARK, O_RDONLY | O_CLOEXEC), rc;
    if (mark >= 0) {
        rc = check_mark(mark, path, why);
        (void)close(mark);
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

/* ---- opening -------------------------------------------------------------------------------- */

static void make_options(struct tierce__rocks *rocks, const struct tierce__rocks_opts *opts)
{
    enum { BLOOM_BITS = 10, BACKGROUND_JOBS = 2, LOG_FILES = 2, WARN_LEVEL = 2 };
    rocks->cache = rocksdb_cache_create_lru((size_t)opts->cache_mib << 20);
    rocks->table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(rocks->table, rocks->cache);
    /* The table options own the filter. */
    rocksdb_block_based_options_set_filter_policy(
        rocks->table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
    rocksdb_block_based_options_set_data_block_index_type(
        rocks->table, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
    rocks->options = rocksdb_options_create();
    /* Keys that are not there are the usual case of a write. */
    rocksdb_options_set_memtable_prefix_bloom_size_ratio(rocks->options, MEMTABLE_BLOOM_SHARE);
    rocksdb_options_set_memtable_whole_key_filtering(rocks->options, 1);
    rocksdb_options_set_block_based_table_factory(rocks->options, rocks->table);
    rocksdb_options_set_create_if_missing(rocks->options, 1);
    rocksdb_options_set_uint64add_merge_operator(rocks->options);
    /* Records are compact already, and reads do not wait for a decoder. */
    rocksdb_options_set_compression(rocks->options, rocksdb_no_compression);
    rocksdb_options_set_max_background_jobs(rocks->options, BACKGROUND_JOBS);
    rocksdb_options_set_keep_log_file_num(rocks->options, LOG_FILES);
    rocksdb_options_set_info_log_level(rocks->options, WARN_LEVEL);
    /* The log of one write goes on while another's records go into the table in memory. */
    rocksdb_options_set_enable_pipelined_write(rocks->options, 1);
    rocks->reads = rocksdb_readoptions_create();
    rocks->writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(rocks->writes, opts->sync);
    rocks->touch_writes = rocksdb_writeoptions_create();
}

/* So that the next opening has no log to play back. */
static void flush(struct tierce__rocks *rocks)
{
    char *error = NULL;
    rocksdb_flushoptions_t *opts = rocksdb_flushoptions_create();
    rocksdb_flush(rocks->db, opts, &error);
    rocksdb_flushoptions_destroy(opts);
    rocksdb_free(error);
}

static void destroy(struct tierce__rocks *rocks)
{
    tierce__touches_stop(rocks->touches);
    if (rocks->family != NULL)
        rocksdb_column_family_handle_destroy(rocks->family);
    if (rocks->db != NULL) {
        flush(rocks);
        rocksdb_close(rocks->db);
    }
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
    tierce__free(rocks->path);
    tierce__free(rocks);
}

/* The handle of the only column family, which batched reads want, comes from opening alone. */
static int open_database(struct tierce__rocks *rocks, char why[256])
{
    const char *name = "default";
    const rocksdb_options_t *options = rocks->options;
    char *error = NULL;
    rocks->db = rocksdb_open_column_families(rocks->options, rocks->path, 1, &name, &options,
                                             &rocks->family, &error);
    if (error != NULL) {
        bool is_locked = strstr(error, "lock") != NULL;
        snprintf(why, 256, "cannot open the database in %.100s: %.120s", rocks->path, error);
        int rc = tierce__rocks_code(error);
        return is_locked ? TIERCE_E_LOCKED : rc;
    }
    return 0;
}

static int open_rocks(struct tierce__rocks **out, char *path, const struct tierce__rocks_opts *opts,
                      char why[256])
{
    struct tierce__rocks *rocks = tierce__calloc(1, sizeof(*rocks));
    if (rocks == NULL) {
        tierce__free(path);
        return -ENOMEM;
    }
    rocks->users = 1;
    rocks->path = path;
    for (unsigned i = 0; i < TIERCE__ROCKS_STRIPES; i++)
        tierce__lock_init(&rocks->stripes[i], TIERCE__LOCK_META_STRIPE);
    make_options(rocks, opts);
    why[0] = '\0';
    int rc = check_lock(path, why);
    if (rc == 0)
        rc = check_folder(path, why);
    if (rc == 0)
        rc = open_database(rocks, why);
    if (rc == 0)
        rc = tierce__touches_start(&rocks->touches, opts->touch_ms, tierce__rocks_flush_touches,
                                   rocks);
    if (rc < 0)
        destroy(rocks);
    else
        *out = rocks;
    return rc;
}

/* The path without links, heap; makes its last folder. NULL: *rc says why. */
static char *canonical(const char *path, int *rc, char why[256])
{
    *rc = -ENOMEM;
    char *real = NULL, *copy = NULL;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        *rc = -errno;
        snprintf(why, 256, "cannot make %.150s: %s", path, strerror(errno));
    } else if ((real = realpath(path, NULL)) == NULL) {
        *rc = -errno;
        snprintf(why, 256, "cannot find %.150s: %s", path, strerror(errno));
    } else {
        copy = tierce__strdup(real);
    }
    free(real);
    return copy;
}

int tierce__rocks_open(struct tierce__rocks **out, const char *path,
                       const struct tierce__rocks_opts *opts, char why[256])
{
    int rc;
    char *real = canonical(path, &rc, why);
    if (real == NULL)
        return rc;
    rc = 0;
    (void)pthread_once(&databases_once, init_lock);
    tierce__lock_take(&databases_lock);
    struct tierce__rocks *rocks = databases;
    while (rocks != NULL && strcmp(rocks->path, real) != 0)
        rocks = rocks->next;
    if (rocks != NULL) {
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

/* Closed under the lock, so that who opens the path next finds it free. */
void tierce__rocks_close(struct tierce__rocks *rocks)
{
    tierce__lock_take(&databases_lock);
    if (--rocks->users == 0) {
        struct tierce__rocks **at = &databases;
        while (*at != rocks)
            at = &(*at)->next;
        *at = rocks->next;
        destroy(rocks);
    }
    tierce__lock_drop(&databases_lock);
}
