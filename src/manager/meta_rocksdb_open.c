/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The databases of the process. A folder is opened only if it holds a database of ours or nothing:
 * RocksDB would take any. A database that another process holds is told by its lock before
 * anything in it is read.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "manager/meta_rocksdb_private.h"

const char tierce__rocks_version_key[] = {0, 0, 0, 0, TIERCE__ROCKS_VERSION};
const char tierce__rocks_version[] = "tierce meta 1";
static const char version_start[] = "tierce meta ";

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

/* What a database that was never finished may have left. */
static bool is_remnant(const char *name)
{
    static const char *const patterns[] = {".",     "..",       "lost+found", "LOG*",
                                           "LOCK",  "IDENTITY", "MANIFEST-*", "OPTIONS-*",
                                           "*.log", "*.dbtmp"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

/* 1: there is a database; 0: there is nothing. */
static int look_into(const char *path, char why[256])
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        int rc = -errno;
        snprintf(why, 256, "cannot read %.150s: %s", path, strerror(-rc));
        return rc;
    }
    bool has_database = false, has_others = false;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        has_database = has_database || strcmp(entry->d_name, "CURRENT") == 0;
        has_others = has_others || !is_remnant(entry->d_name);
    }
    (void)closedir(dir);
    if (has_database || !has_others)
        return has_database;
    snprintf(why, 256, "%.150s holds files and no database", path);
    return TIERCE_E_FORMAT;
}

/* Reads the version note of a database, or sees that it is empty. */
static int check_version(rocksdb_t *db, const rocksdb_readoptions_t *reads, const char *path,
                         char why[256])
{
    char *error = NULL;
    size_t bytes = 0;
    char *version = rocksdb_get(db, reads, tierce__rocks_version_key,
                                sizeof(tierce__rocks_version_key), &bytes, &error);
    if (error != NULL) {
        snprintf(why, 256, "cannot read the database in %.100s: %.120s", path, error);
        return tierce__rocks_code(error);
    }
    size_t start = strlen(version_start);
    int rc = TIERCE_E_FORMAT;
    if (version == NULL) {
        rocksdb_iterator_t *iterator = rocksdb_create_iterator(db, reads);
        rocksdb_iter_seek_to_first(iterator);
        rc = rocksdb_iter_valid(iterator) ? TIERCE_E_FORMAT : 0;
        rocksdb_iter_destroy(iterator);
    } else if (bytes == strlen(tierce__rocks_version) &&
               memcmp(version, tierce__rocks_version, bytes) == 0) {
        rc = 0;
    } else if (bytes > start && memcmp(version, version_start, start) == 0) {
        rc = TIERCE_E_VERSION;
    }
    if (rc == TIERCE_E_VERSION)
        snprintf(why, 256, "%.150s was written by another version: \"%.*s\"", path,
                 (int)(bytes < 60 ? bytes : 60), version);
    else if (rc < 0)
        snprintf(why, 256, "%.150s is a RocksDB database of somebody else", path);
    rocksdb_free(version);
    return rc;
}

int tierce__rocks_check(const char *path, const rocksdb_options_t *options, char why[256])
{
    int rc = check_lock(path, why);
    if (rc == 0)
        rc = look_into(path, why);
    if (rc <= 0)
        return rc;
    /* Read only, so that somebody else's stays as it is. */
    char *error = NULL;
    rocksdb_t *db = rocksdb_open_for_read_only(options, path, 0, &error);
    if (error != NULL) {
        bool is_io = strncmp(error, "IO error", strlen("IO error")) == 0;
        snprintf(why, 256, "cannot read the database in %.100s: %.120s", path, error);
        rc = tierce__rocks_code(error);
        return is_io ? rc : TIERCE_E_FORMAT;
    }
    rocksdb_readoptions_t *reads = rocksdb_readoptions_create();
    rc = check_version(db, reads, path, why);
    rocksdb_readoptions_destroy(reads);
    rocksdb_close(db);
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
    rocksdb_options_set_block_based_table_factory(rocks->options, rocks->table);
    rocksdb_options_set_create_if_missing(rocks->options, 1);
    rocksdb_options_set_uint64add_merge_operator(rocks->options);
    /* Records are compact already, and reads do not wait for a decoder. */
    rocksdb_options_set_compression(rocks->options, rocksdb_no_compression);
    rocksdb_options_set_max_background_jobs(rocks->options, BACKGROUND_JOBS);
    rocksdb_options_set_keep_log_file_num(rocks->options, LOG_FILES);
    rocksdb_options_set_info_log_level(rocks->options, WARN_LEVEL);
    rocks->reads = rocksdb_readoptions_create();
    rocks->writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(rocks->writes, opts->sync);
    rocks->touch_writes = rocksdb_writeoptions_create();
}

static void destroy(struct tierce__rocks *rocks)
{
    tierce__touches_stop(rocks->touches);
    if (rocks->family != NULL)
        rocksdb_column_family_handle_destroy(rocks->family);
    if (rocks->db != NULL)
        rocksdb_close(rocks->db);
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
    rocksdb_writeoptions_t *synced = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(synced, 1);
    rocksdb_put(rocks->db, synced, tierce__rocks_version_key, sizeof(tierce__rocks_version_key),
                tierce__rocks_version, strlen(tierce__rocks_version), &error);
    rocksdb_writeoptions_destroy(synced);
    if (error != NULL)
        snprintf(why, 256, "cannot write to %.100s: %.120s", rocks->path, error);
    return tierce__rocks_code(error);
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
    int rc = tierce__rocks_check(path, rocks->options, why);
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

/* The path without links, heap; makes its last folder. */
static int canonical(char **out, const char *path, char why[256])
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        int rc = -errno;
        snprintf(why, 256, "cannot make %.150s: %s", path, strerror(-rc));
        return rc;
    }
    char *real = realpath(path, NULL);
    if (real == NULL) {
        int rc = -errno;
        snprintf(why, 256, "cannot find %.150s: %s", path, strerror(-rc));
        return rc;
    }
    *out = tierce__strdup(real);
    free(real);
    return *out == NULL ? -ENOMEM : 0;
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
