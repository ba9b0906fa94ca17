/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "store/remote/file/file_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MARK_FORMAT "tierce file store 1\nfanout %u\n"
#define MARK_BYTES  256u

/* A name for a temporary in the folder. */
static void make_tmp_path(struct tierce__file_store *store, char *path, const char *folder)
{
    uint8_t bytes[sizeof(store->tmp_seed) + 8];
    char hex[2 * sizeof(bytes) + 1];
    TIERCE_DASSERT(strlen(folder) <
                   TIERCE__FILE_PATH_BYTES - sizeof(TIERCE__FILE_TMP) - sizeof(hex));
    memcpy(bytes, store->tmp_seed, sizeof(store->tmp_seed));
    tierce__store_le64(bytes + sizeof(store->tmp_seed),
                       atomic_fetch_add_explicit(&store->tmp_count, 1, memory_order_relaxed));
    tierce__hex_encode(hex, bytes, sizeof(bytes));
    TIERCE_ASSERT(strlen(hex) == TIERCE__FILE_TMP_DIGITS);
    snprintf(path, TIERCE__FILE_PATH_BYTES, "%.*s/%s%s",
             (int)(TIERCE__FILE_PATH_BYTES - sizeof(TIERCE__FILE_TMP) - sizeof(hex)), folder,
             TIERCE__FILE_TMP, hex);
}

/* A whole file that is on the device. */
static int write_file(struct tierce__vfs *vfs, const char *path, const void *data, size_t bytes)
{
    struct tierce__vfs_file *file = NULL;
    int rc = vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE | TIERCE__VFS_TRUNCATE);
    if (rc != 0)
        return rc;
    rc = vfs->ops->write(vfs, file, data, bytes, 0);
    if (rc == 0)
        rc = vfs->ops->sync(vfs, file);
    vfs->ops->close(vfs, file);
    return rc;
}

int tierce__file_publish(struct tierce__file_store *store, const char *path, const void *data,
                         size_t bytes, uint64_t deadline_ns)
{
    TIERCE_DASSERT(path[0] == '/' && bytes > 0);
    char tmp[TIERCE__FILE_PATH_BYTES], folder[TIERCE__FILE_PATH_BYTES];
    struct tierce__vfs *vfs = store->vfs;
    tierce__file_folder_of(folder, path);
    make_tmp_path(store, tmp, folder);
    int rc = write_file(vfs, tmp, data, bytes);
    if (rc == 0 && tierce__now_ns() >= deadline_ns)
        rc = TIERCE_E_DEADLINE;
    if (rc == 0)
        rc = vfs->ops->rename(vfs, tmp, path);
    if (rc != 0) {
        int gone = rc != -ENOENT ? vfs->ops->unlink(vfs, tmp) : 0;
        (void)gone; /* else a sweep takes it */
        return rc;
    }
    return vfs->ops->sync_folder(vfs, folder);
}

/* ---- the mark -------------------------------------------------------------------------------- */

int tierce__file_read_own(const struct tierce__file_store *store, char **out, const char *name,
                          size_t bytes_max)
{
    TIERCE_DASSERT(name[0] == '~' && strlen(name) < TIERCE__FILE_ROOT_BYTES);
    char path[TIERCE__FILE_PATH_BYTES];
    size_t bytes = 0;
    snprintf(path, sizeof(path), "%s/%s", store->root, name);
    int rc = tierce__file_look(store->root, path);
    if (rc == 0)
        rc = tierce__read_file(out, &bytes, path, bytes_max);
    return rc == TIERCE_E_UNSUPPORTED || rc == -EFBIG ? TIERCE_E_FORMAT : rc;
}

int tierce__file_read_mark(const struct tierce__file_store *store, uint32_t *levels)
{
    char wanted[MARK_BYTES], *text = NULL;
    int rc = tierce__file_read_own(store, &text, TIERCE__FILE_STORE, MARK_BYTES);
    if (rc != 0)
        return rc;
    rc = TIERCE_E_FORMAT;
    for (unsigned i = 1; i <= TIERCE__FILE_LEVELS_MAX; i++) {
        snprintf(wanted, sizeof(wanted), MARK_FORMAT, i);
        if (strcmp(text, wanted) == 0) {
            *levels = i;
            rc = 0;
        }
    }
    tierce__free(text);
    return rc;
}

/* Gives the temporary its name, unless another host was quicker. */
static int place_mark(struct tierce__file_store *store, const char *tmp, const char *path)
{
    if (link(tmp, path) == 0 || errno == EEXIST)
        return store->vfs->ops->unlink(store->vfs, tmp);
    /* A file system without links: the last one wins, which matters only if they differ. */
    return store->vfs->ops->rename(store->vfs, tmp, path);
}

static int make_mark(struct tierce__file_store *store)
{
    TIERCE_DASSERT(store->levels > 0 && store->levels <= TIERCE__FILE_LEVELS_MAX);
    char path[TIERCE__FILE_PATH_BYTES], tmp[TIERCE__FILE_PATH_BYTES], text[MARK_BYTES];
    struct tierce__vfs *vfs = store->vfs;
    int rc = vfs->ops->make_folder(vfs, store->root);
    if (rc != 0)
        return rc;
    snprintf(path, sizeof(path), "%s/%s", store->root, TIERCE__FILE_STORE);
    snprintf(text, sizeof(text), MARK_FORMAT, (unsigned)store->levels);
    make_tmp_path(store, tmp, store->root);
    rc = write_file(vfs, tmp, text, strlen(text));
    if (rc == 0)
        rc = place_mark(store, tmp, path);
    if (rc != 0) {
        int gone = vfs->ops->unlink(vfs, tmp);
        (void)gone;
        return rc;
    }
    return vfs->ops->sync_folder(vfs, store->root);
}

int tierce__file_open_store(struct tierce__file_store *store, uint32_t *levels)
{
    int rc = tierce__file_read_mark(store, levels);
    if (rc == -ENOENT && !atomic_load_explicit(&store->was_open, memory_order_relaxed)) {
        rc = make_mark(store);
        if (rc == 0)
            rc = tierce__file_read_mark(store, levels);
    }
    if (rc == 0)
        atomic_store_explicit(&store->was_open, true, memory_order_relaxed);
    return rc;
}
