/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A registry in one file (docs/inside/format/registry.md): a head of one line with a sum, and JSON.
 * It is replaced whole: written beside, synced, renamed, the folder synced.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/vfs/vfs.h"
#include "base/file_lock.h"
#include "manager/registry/registry_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_BYTES_MAX (256u << 20)
#define HEAD_BYTES_MAX 128u
#define LOCK_WAIT_MS   2000u

struct local {
    struct tierce__registry_store base;
    struct tierce__vfs *vfs;
    bool owns_vfs;
    char *path, *temporary, *lock_path, *folder;
    int held; /* the lock, if the manager leads without a lease; else -1 */
};

static struct local *local_of(struct tierce__registry_store *store)
{
    TIERCE_DASSERT(store->ops == &tierce__registry_local);
    return (struct local *)store;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void local_close(struct tierce__registry_store *store)
{
    struct local *local = local_of(store);
    if (local->held >= 0)
        close(local->held);
    if (local->owns_vfs && local->vfs != NULL)
        local->vfs->ops->destroy(local->vfs);
    tierce__free(local->path);
    tierce__free(local->temporary);
    tierce__free(local->lock_path);
    tierce__free(local->folder);
    tierce__free(local);
}

static char *with_ending(const char *path, const char *ending)
{
    size_t size = strlen(path) + strlen(ending) + 1;
    char *text = tierce__alloc(size);
    if (text != NULL)
        snprintf(text, size, "%s%s", path, ending);
    return text;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = tierce__strdup(slash == NULL ? "." : slash == path ? "/" : path);
    if (folder != NULL && slash != NULL && slash != path)
        folder[slash - path] = '\0';
    return folder;
}

static int local_open(struct tierce__registry_store **out, const char *uri, struct tierce__vfs *vfs,
                      char why[256])
{
    const char *rest = uri + strlen("local://");
    size_t n = strlen(rest);
    if (n == 0 || rest[n - 1] == '/') {
        snprintf(why, 256, "local:// requires the path of a file");
        return TIERCE_E_CONFIG;
    }
    struct local *local = tierce__calloc(1, sizeof(*local));
    if (local == NULL)
        return -ENOMEM;
    local->base.ops = &tierce__registry_local;
    local->held = -1;
    local->vfs = vfs;
    local->path = tierce__strdup(rest);
    local->temporary = with_ending(rest, ".new");
    local->lock_path = with_ending(rest, ".lock");
    local->folder = folder_of(rest);
    int rc = local->path != NULL && local->temporary != NULL && local->lock_path != NULL &&
                     local->folder != NULL
                 ? 0
                 : -ENOMEM;
    if (rc == 0 && vfs == NULL && access(local->folder, W_OK | X_OK) != 0) {
        rc = -errno;
        snprintf(why, 256, "registry.uri: the folder %.150s: %.60s", local->folder,
                 tierce_strerror(rc));
    }
    if (rc == 0 && vfs == NULL) {
        rc = tierce__vfs_threads_create(&local->vfs, 1);
        local->owns_vfs = rc == 0;
    }
    if (rc == 0) {
        *out = &local->base;
    } else {
        local->vfs = local->owns_vfs ? local->vfs : NULL;
        local_close(&local->base);
    }
    return rc;
}

/* ---- one writer at a time -------------------------------------------------------------------- */

/* A descriptor that holds the lock until it is closed; or an error. */
static int wait_for_lock(const struct local *local, char why[256])
{
    int fd = tierce__file_lock(local->lock_path, LOCK_WAIT_MS);
    if (fd == TIERCE_E_LOCKED)
        snprintf(why, 256,
                 "%.120s: another manager holds it; managers that share a registry require "
                 "elector.uri",
                 local->lock_path);
    else if (fd < 0)
        snprintf(why, 256, "%.200s: %s", local->lock_path, tierce_strerror(fd));
    return fd;
}

/* The same. A manager that leads without a lease holds the lock until it closes, because only one
 * such manager may exist. */
static int take_lock(struct local *local, uint64_t fence, char why[256])
{
    int fd = local->held >= 0 ? local->held : wait_for_lock(local, why);
    local->held = fence == 0 && fd >= 0 ? fd : -1;
    TIERCE_ASSERT(local->held < 0 || local->held == fd);
    TIERCE_ASSERT(local->held < 0 || fence == 0);
    return fd;
}

static void drop_lock(const struct local *local, int fd)
{
    TIERCE_ASSERT(fd >= 0);
    if (fd != local->held)
        close(fd);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct local_content {
    char *text; /* heap; NULL: there is no file */
    size_t bytes;
    uint64_t fence;
    const char *body;
    size_t body_bytes;
    unsigned format;
};

static int read_all(const struct local *local, struct local_content *out)
{
    TIERCE_DASSERT(out->text == NULL && out->bytes == 0);
    const struct tierce__vfs_ops *ops = local->vfs->ops;
    struct tierce__vfs_file *file;
    char *text = NULL, byte;
    int rc = ops->open(local->vfs, &file, local->path, TIERCE__VFS_READONLY);
    /* A dangling link (an unmounted file system) is an error, not an empty registry. */
    if (rc == -ENOENT && readlink(local->path, &byte, 1) < 0)
        return 0;
    if (rc != 0)
        return rc;
    int64_t length = ops->length(local->vfs, file);
    rc = length < 0 ? (int)length : length > FILE_BYTES_MAX ? -EFBIG : 0;
    if (rc == 0) {
        text = tierce__alloc((size_t)length + 1);
        rc = text != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0 && length > 0)
        rc = ops->read(local->vfs, file, text, (size_t)length, 0);
    ops->close(local->vfs, file);
    if (rc != 0) {
        tierce__free(text);
        return rc;
    }
    text[length] = '\0';
    *out = (struct local_content){.text = text, .bytes = (size_t)length};
    return 0;
}

static uint64_t sum_of(const char *body, size_t bytes, uint64_t fence)
{
    return XXH3_64bits_withSeed(body, bytes, fence);
}

/* Splits a file into its parts and checks its sum. */
static int check_content(struct local_content *content, char why[256])
{
    unsigned format = 0;
    uint64_t fence = 0, body_bytes = 0, sum = 0;
    int at = 0;
    if (sscanf(content->text, "tierce-registry %u ", &format) != 1) {
        snprintf(why, 256, "not a registry of Tierce");
        return TIERCE_E_FORMAT;
    }
    if (format < TIERCE__REGISTRY_FORMAT || format > TIERCE__REGISTRY_FORMAT_MAX) {
        snprintf(why, 256,
                 "a registry of format %u; this build reads %d to %d: use the version of Tierce "
                 "that wrote it, or a newer one",
                 format, TIERCE__REGISTRY_FORMAT, TIERCE__REGISTRY_FORMAT_MAX);
        return TIERCE_E_VERSION;
    }
    if (sscanf(content->text, "tierce-registry %*u %" SCNu64 " %" SCNu64 " %" SCNx64 "%n", &fence,
               &body_bytes, &sum, &at) != 3 ||
        content->text[at] != '\n' || body_bytes != content->bytes - (size_t)at - 1) {
        snprintf(why, 256, "damaged: its header does not match its length");
        return TIERCE_E_FORMAT;
    }
    TIERCE_DASSERT(body_bytes < content->bytes);
    content->format = format;
    content->fence = fence;
    content->body = content->text + at + 1;
    content->body_bytes = (size_t)body_bytes;
    if (sum_of(content->body, content->body_bytes, fence) != sum) {
        snprintf(why, 256, "damaged: its checksum does not match");
        return TIERCE_E_CHECKSUM;
    }
    return 0;
}

/* Reads and checks the file. The caller frees content->text. */
static int read_content(const struct local *local, struct local_content *out, char why[256])
{
    struct local_content content = {0};
    char inner[256] = "";
    int rc = read_all(local, &content);
    if (rc == 0 && content.text != NULL)
        rc = check_content(&content, inner);
    if (rc == 0) {
        *out = content;
        return 0;
    }
    tierce__free(content.text);
    snprintf(why, 256, "%.150s: %.100s", local->path, *inner != '\0' ? inner : tierce_strerror(rc));
    return rc == TIERCE_E_CHECKSUM ? TIERCE_E_FORMAT : rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Of a content, `text` and `bytes` are not used. */
static int write_beside(const struct local *local, const struct local_content *content)
{
    const struct tierce__vfs_ops *ops = local->vfs->ops;
    struct tierce__vfs_file *file;
    char head[HEAD_BYTES_MAX];
    const char *body = content->body;
    size_t bytes = content->body_bytes;
    int n = snprintf(head, sizeof(head), "tierce-registry %u %" PRIu64 " %zu %016" PRIx64 "\n",
                     content->format, content->fence, bytes, sum_of(body, bytes, content->fence));
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(head));
    int rc =
        ops->open(local->vfs, &file, local->temporary, TIERCE__VFS_CREATE | TIERCE__VFS_TRUNCATE);
    if (rc != 0)
        return rc;
    rc = ops->write(local->vfs, file, head, (size_t)n, 0);
    if (rc == 0 && bytes > 0)
        rc = ops->write(local->vfs, file, body, bytes, (uint64_t)n);
    if (rc == 0)
        rc = ops->sync(local->vfs, file);
    ops->close(local->vfs, file);
    if (rc != 0)
        (void)!ops->unlink(local->vfs, local->temporary);
    return rc;
}

/* *is_replaced: the file has the new content, perhaps not durably. */
static int replace(const struct local *local, const struct local_content *content,
                   bool *is_replaced)
{
    const struct tierce__vfs_ops *ops = local->vfs->ops;
    *is_replaced = false;
    int rc = write_beside(local, content);
    if (rc != 0)
        return rc;
    rc = ops->rename(local->vfs, local->temporary, local->path);
    if (rc != 0) {
        (void)!ops->unlink(local->vfs, local->temporary);
        return rc;
    }
    *is_replaced = true;
    return ops->sync_folder(local->vfs, local->folder);
}

/* Writes a content; restores `old` if the new one could not be made durable. */
static int write_content(const struct local *local, const struct local_content *content,
                         const struct local_content *old, char why[256])
{
    TIERCE_ASSERT(content->fence >= old->fence);
    TIERCE_ASSERT(content->format >= TIERCE__REGISTRY_FORMAT);
    bool is_replaced;
    int rc = replace(local, content, &is_replaced);
    if (rc == 0)
        return 0;
    snprintf(why, 256, "%.200s: %s", local->path, tierce_strerror(rc));
    if (is_replaced && old->text != NULL)
        (void)!replace(local, old, &is_replaced);
    else if (is_replaced)
        (void)!local->vfs->ops->unlink(local->vfs, local->path);
    return rc;
}

static int check_fence(const struct local *local, const struct local_content *content,
                       uint64_t fence, char why[256])
{
    TIERCE_DASSERT(content->text != NULL || content->fence == 0);
    if (fence == 0 || content->text == NULL || content->fence <= fence)
        return 0;
    snprintf(why, 256,
             "%.150s: another manager has led since (token %" PRIu64 ", ours %" PRIu64 ")",
             local->path, content->fence, fence);
    return TIERCE_E_REFUSED;
}

/* ---- the seam -------------------------------------------------------------------------------- */

static int local_load(struct tierce__registry_store *store, uint64_t fence,
                      struct tierce__catalog *out, char why[256])
{
    TIERCE_ASSERT(out->lists[TIERCE__KIND_STORAGE].count == 0 &&
                  out->lists[TIERCE__KIND_INSTANCE].count == 0);
    struct local *local = local_of(store);
    struct local_content content = {0};
    char inner[256] = "";
    int fd = take_lock(local, fence, why);
    if (fd < 0)
        return fd;
    int rc = read_content(local, &content, why);
    if (rc == 0)
        rc = check_fence(local, &content, fence, why);
    if (rc == 0 && content.text != NULL) {
        rc = tierce__catalog_read_all(out, content.body, content.body_bytes, inner);
        if (rc != 0)
            snprintf(why, 256, "%.100s: %.150s", local->path, inner);
    }
    if (rc == 0 && content.text != NULL && content.fence < fence) {
        struct local_content fenced = content;
        fenced.fence = fence;
        rc = write_content(local, &fenced, &content, why);
    }
    tierce__free(content.text);
    drop_lock(local, fd);
    return rc;
}

static int local_save(struct tierce__registry_store *store, uint64_t fence,
                      const struct tierce__catalog *before, const struct tierce__catalog *after,
                      char why[256])
{
    struct local *local = local_of(store);
    struct local_content old = {0};
    char *body = NULL;
    TIERCE_DASSERT(before != after);
    (void)before; /* the file is written whole */
    int fd = take_lock(local, fence, why);
    if (fd < 0)
        return fd;
    int rc = read_content(local, &old, why);
    if (rc == 0)
        rc = check_fence(local, &old, fence, why);
    TIERCE_ASSERT(rc != 0 || fence == 0 || fence >= old.fence);
    if (rc == 0)
        rc = tierce__catalog_print_all(&body, after);
    struct local_content content = {.body = body,
                                    .body_bytes = body != NULL ? strlen(body) : 0,
                                    .fence = fence > old.fence ? fence : old.fence,
                                    .format = tierce__catalog_format(after)};
    if (rc == 0)
        rc = write_content(local, &content, &old, why);
    tierce__free(body);
    tierce__free(old.text);
    drop_lock(local, fd);
    return rc;
}

const struct tierce__registry_store_ops tierce__registry_local = {
    .name = "local",
    .open = local_open,
    .close = local_close,
    .load = local_load,
    .save = local_save,
};
