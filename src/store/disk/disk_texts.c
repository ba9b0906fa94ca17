/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log_repeat.h"
#include "store/disk/disk_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The texts of namespaces, in ns/: written once, for people. A file there is ours if its name is a
 * digest and its content has that digest; a temporary, if it begins as texts do, or is a part of
 * the text that it is for. All else is left as it is.
 */

#define PAGE          TIERCE__JOURNAL_PAGE
#define TEXT_RETRY_MS 60000u
#define TMP           ".tmp"

enum { DIGEST_CHARS = 2 * TIERCE_HASH_BYTES, NAME_ROOM = 3 + DIGEST_CHARS + sizeof(TMP) };

/* ---- publishing ------------------------------------------------------------------------------ */

/* The bytes of a file in ns/ with a NUL behind them, heap. Errors: -ENOENT, negative errno,
 * TIERCE_E_FORMAT for one that is longer than any text. */
static int read_text(struct tierce__disk *d, const char *name, char **out, size_t *length)
{
    struct tierce__vfs_file *file = NULL;
    char *text = NULL;
    int rc = d->vfs->ops->open(d->vfs, &file, name, TIERCE__VFS_READONLY);
    if (rc < 0)
        return rc;
    int64_t bytes = d->vfs->ops->length(d->vfs, file);
    rc = bytes < 0 ? (int)bytes : bytes > TIERCE__DISK_TEXT_MAX ? TIERCE_E_FORMAT : 0;
    if (rc == 0) {
        text = tierce__calloc((size_t)bytes + 1, 1);
        rc = text != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0 && bytes > 0)
        rc = d->vfs->ops->read(d->vfs, file, text, (size_t)bytes, 0);
    d->vfs->ops->close(d->vfs, file);
    if (rc < 0) {
        tierce__free(text);
        return rc;
    }
    *out = text;
    *length = (size_t)bytes;
    return 0;
}

/* Whether a temporary holds a part of `text`, and zeroes for the rest, as a power cut leaves it. */
static bool is_part(const char *found, size_t length, const char *text)
{
    TIERCE_DASSERT(strlen(text) <= TIERCE__DISK_TEXT_MAX);
    size_t most = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (found[i] != '\0' && (i >= most || found[i] != text[i]))
            return false;
    return true;
}

/* Removes an existing file with the name of a temporary, if it is ours. */
static int remove_own_tmp(struct tierce__disk *d, const char *tmp, const char *text)
{
    TIERCE_DASSERT(strcmp(tmp + strlen(tmp) - strlen(TMP), TMP) == 0);
    char *found = NULL;
    size_t length = 0;
    int rc = read_text(d, tmp, &found, &length);
    if (rc == 0)
        rc = is_part(found, length, text) ? d->vfs->ops->unlink(d->vfs, tmp) : -EEXIST;
    tierce__free(found);
    return rc == -ENOENT ? 0 : rc;
}

/* The name of a text is in use: by the text itself, if an earlier try could not sync the folder, or
 * by somebody else's file: -EEXIST. */
static int sync_text(struct tierce__disk *d, const char *name, const struct stat *st,
                     const char *text)
{
    char *found = NULL;
    size_t length = 0;
    int rc = S_ISREG(st->st_mode) ? read_text(d, name, &found, &length) : -EEXIST;
    if (rc == 0 && (length != strlen(text) || memcmp(found, text, length) != 0))
        rc = -EEXIST;
    tierce__free(found);
    return rc == 0                 ? d->vfs->ops->sync_folder(d->vfs, TIERCE__DISK_NS)
           : rc == TIERCE_E_FORMAT ? -EEXIST
                                   : rc;
}

static int write_text(struct tierce__disk *d, const char *name, const char *tmp, const char *text)
{
    TIERCE_DASSERT(strlen(tmp) == strlen(name) + strlen(TMP) && !tierce__lock_holds_any());
    struct tierce__vfs_file *file = NULL;
    struct stat st;
    if (fstatat(d->vfs->folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return sync_text(d, name, &st, text);
    int rc = remove_own_tmp(d, tmp, text);
    if (rc == 0)
        rc = d->vfs->ops->open(d->vfs, &file, tmp, TIERCE__VFS_CREATE | TIERCE__VFS_EXCLUSIVE);
    if (rc < 0)
        return rc;
    rc = d->vfs->ops->write(d->vfs, file, text, strlen(text), 0);
    if (rc == 0)
        rc = d->vfs->ops->sync(d->vfs, file);
    d->vfs->ops->close(d->vfs, file);
    if (rc == 0)
        rc = d->vfs->ops->rename(d->vfs, tmp, name);
    if (rc == 0)
        rc = d->vfs->ops->sync_folder(d->vfs, TIERCE__DISK_NS);
    int ignored = rc < 0 ? d->vfs->ops->unlink(d->vfs, tmp) : 0;
    (void)ignored; /* it is removed by the next try, or at the next open */
    return rc;
}

void tierce__disk_publish_text(struct tierce__disk *d, uint32_t id)
{
    TIERCE_DASSERT(id < TIERCE__DISK_NS_MAX);
    TIERCE_DASSERT(d->ns_numbers[id] != 0 && d->ns_count > 0);
    const char *text = tierce__namespaces_text(d->namespaces, id);
    if (text == NULL || d->ns_texts[id] != 0 || tierce__now_ns() < d->text_retry_at)
        return;
    uint64_t bytes = tierce__round_up(strlen(text), PAGE);
    char digest[DIGEST_CHARS + 1], name[NAME_ROOM], tmp[NAME_ROOM];
    tierce__hex_encode(digest, tierce__namespaces_digest(d->namespaces, id), TIERCE_HASH_BYTES);
    snprintf(name, sizeof(name), TIERCE__DISK_NS "/%s", digest);
    snprintf(tmp, sizeof(tmp), TIERCE__DISK_NS "/%s" TMP, digest);
    int rc = TIERCE_E_LIMIT;
    if (d->text_bytes + bytes <= d->text_bytes_max)
        rc = write_text(d, name, tmp, text);
    if (rc == 0) {
        tierce__lock_take(&d->lock);
        TIERCE_DASSERT(d->text_bytes + bytes <= d->text_bytes_max);
        d->text_bytes += bytes;
        tierce__disk_count_written(d, bytes);
        tierce__lock_drop(&d->lock);
        d->ns_texts[id] = 1;
    } else {
        d->text_retry_at = tierce__deadline_in_ms(TEXT_RETRY_MS);
        tierce__log_repeated(TIERCE_LOG_WARN, "disk_text_failed", "namespace=%s err=%s", digest,
                             tierce_error_name(rc));
    }
}

/* ---- reading back ---------------------------------------------------------------------------- */

/* Marks the namespaces that the journal names, in ns_texts. */
static void mark_named(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->ns_count == 0);
    for (uint32_t i = 0; i < TIERCE__DISK_NS_MAX; i++)
        if (d->table.ns_of[i] != 0)
            d->ns_texts[d->table.ns_of[i] - 1] = 1;
}

/* The id of a namespace, or -1 if the process does not know it. */
static int64_t id_of_digest(struct tierce__disk *d, const uint8_t digest[TIERCE_HASH_BYTES])
{
    uint32_t count = tierce__namespaces_count(d->namespaces);
    TIERCE_DASSERT(count <= TIERCE__DISK_NS_MAX);
    for (uint32_t id = 0; id < count; id++)
        if (memcmp(tierce__namespaces_digest(d->namespaces, id), digest, TIERCE_HASH_BYTES) == 0)
            return id;
    return -1;
}

/* The kind of a file in ns/. */
enum stray { STRAY_FOREIGN, STRAY_TEXT, STRAY_TMP };

static enum stray kind_of(const char *name, const char *text, size_t length,
                          uint8_t digest[TIERCE_HASH_BYTES])
{
    TIERCE_DASSERT(length <= TIERCE__DISK_TEXT_MAX);
    static const char first[] = "tierce-namespace=";
    char hex[DIGEST_CHARS + 1];
    bool is_tmp =
        strlen(name) == DIGEST_CHARS + sizeof(TMP) - 1 && strcmp(name + DIGEST_CHARS, TMP) == 0;
    if (!is_tmp && strlen(name) != DIGEST_CHARS)
        return STRAY_FOREIGN;
    snprintf(hex, sizeof(hex), "%.*s", DIGEST_CHARS, name);
    if (!tierce__hex_decode(digest, TIERCE_HASH_BYTES, hex))
        return STRAY_FOREIGN;
    if (!is_tmp) {
        uint8_t own[TIERCE_HASH_BYTES];
        tierce_namespace_digest(own, text);
        bool is_text = strlen(text) == length && memcmp(own, digest, sizeof(own)) == 0;
        return is_text ? STRAY_TEXT : STRAY_FOREIGN;
    }
    size_t most = length < sizeof(first) - 1 ? length : sizeof(first) - 1;
    return length == 0 || memcmp(text, first, most) == 0 ? STRAY_TMP : STRAY_FOREIGN;
}

/* Classifies one file of ns/: keeps the text of a namespace in the journal, removes unneeded texts
 * of the store, and leaves foreign files. */
static int sort_text(struct tierce__disk *d, const char *path, uint8_t *used)
{
    TIERCE_DASSERT(path[sizeof(TIERCE__DISK_NS) - 1] == '/');
    uint8_t digest[TIERCE_HASH_BYTES];
    struct stat st;
    char *text = NULL;
    size_t length = 0;
    enum stray kind = STRAY_FOREIGN;
    const char *name = path + sizeof(TIERCE__DISK_NS);
    int rc = fstatat(d->vfs->folder, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)
                 ? read_text(d, path, &text, &length)
                 : -EINVAL;
    if (rc == 0)
        kind = kind_of(name, text, length, digest);
    int64_t id = kind == STRAY_TEXT ? id_of_digest(d, digest) : -1;
    TIERCE_DASSERT(id < (int64_t)TIERCE__DISK_NS_MAX);
    bool keep = id >= 0 && d->ns_texts[id] != 0;
    if (keep) {
        int64_t known = tierce__namespaces_intern(d->namespaces, digest, text);
        TIERCE_DASSERT(known < 0 || known == id);
        rc = known < 0 ? (int)known : 0;
        used[id] = known >= 0;
        d->text_bytes += tierce__round_up(length, PAGE);
    } else if (kind == STRAY_FOREIGN || d->vfs->ops->unlink(d->vfs, path) < 0) {
        tierce__log(
            TIERCE_LOG_WARN, "disk_stray_skipped",
            "path=\"%s/%s\" hint=\"it does not belong to Tierce; move it out of the store\"",
            d->folder, path);
    }
    tierce__free(text);
    return rc == -ENOMEM ? rc : 0;
}

static DIR *open_texts(const struct tierce__disk *d)
{
    int fd =
        openat(d->vfs->folder, TIERCE__DISK_NS, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL && fd >= 0)
        close(fd);
    return dir;
}

int tierce__disk_sort_texts(struct tierce__disk *d)
{
    d->opening = TIERCE__DISK_NS;
    mark_named(d);
    uint8_t *used = tierce__calloc(TIERCE__DISK_NS_MAX, 1);
    DIR *dir = used != NULL ? open_texts(d) : NULL;
    int rc = dir != NULL ? 0 : used == NULL ? -ENOMEM : -errno;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *path = tierce__join_path(TIERCE__DISK_NS, entry->d_name);
        rc = path != NULL ? sort_text(d, path, used) : -ENOMEM;
        tierce__free(path);
    }
    if (dir != NULL)
        closedir(dir);
    if (rc == 0)
        memcpy(d->ns_texts, used, TIERCE__DISK_NS_MAX);
    tierce__free(used);
    return rc;
}
