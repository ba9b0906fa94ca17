/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log/log.h"
#include "core/chunk/header.h"
#include "store/disk/disk_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <xxhash.h>

/*
 * Decides whether a file in the store folder belongs to the store. A name alone proves nothing: the
 * configured folder may hold foreign files of the same names. Only a file whose content proves that
 * a store wrote it is ever written to, replaced or removed. A power cut leaves parts of our files
 * as zeroes, in units of the device's sectors; a file of zeroes only counts as ours too.
 */

#define PAGE         TIERCE__JOURNAL_PAGE
#define HEADS_MAX    64u /* chunks whose bytes are looked at before a data file counts as foreign */
#define SECTOR       512u /* the unit that a device writes atomically */
#define MAGIC_WHOLE  8u
#define MAGIC_NEARLY 6u
#define LOOK_PAGES   256u /* read at a time */

/* ---- kinds ----------------------------------------------------------------------------------- */

int tierce__disk_check_kinds(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd < 0);
    static const struct {
        const char *name;
        mode_t kind;
    } files[] = {{TIERCE__DISK_LOCK, S_IFREG},        {TIERCE__DISK_JOURNAL, S_IFREG},
                 {TIERCE__DISK_JOURNAL_NEW, S_IFREG}, {TIERCE__JOURNAL_MARK_NAME, S_IFREG},
                 {TIERCE__DISK_DATA, S_IFREG},        {TIERCE__DISK_NS, S_IFDIR}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct stat st;
        d->opening = files[i].name;
        if (fstatat(d->vfs->folder, files[i].name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno != ENOENT)
                return -errno;
            continue;
        }
        mode_t kind = st.st_mode & S_IFMT;
        if (kind != files[i].kind)
            return kind == S_IFLNK            ? -ELOOP
                   : files[i].kind == S_IFDIR ? -ENOTDIR
                   : kind == S_IFDIR          ? -EISDIR
                                              : -EINVAL;
    }
    return 0;
}

/* ---- contents -------------------------------------------------------------------------------- */

static bool is_zero(const uint8_t *at, size_t bytes)
{
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

/* Whether each page of a file begins as a journal's does, or with the zeroes of a torn write. */
static bool are_journal_pages(const uint8_t *pages, size_t bytes)
{
    TIERCE_DASSERT(bytes > 0 && bytes <= (size_t)LOOK_PAGES * PAGE);
    for (size_t i = 0; i < bytes; i += PAGE) {
        size_t left = bytes - i < SECTOR ? bytes - i : SECTOR;
        bool magic = left >= 8 && tierce__journal_has_magic(pages + i);
        if (!magic && !is_zero(pages + i, left))
            return false;
    }
    return true;
}

int tierce__disk_check_journal(struct tierce__disk *d, struct tierce__vfs_file *file,
                               uint64_t length)
{
    size_t room = (size_t)LOOK_PAGES * PAGE;
    uint8_t *pages = tierce__alloc_aligned(PAGE, room);
    int rc = pages != NULL ? 0 : -ENOMEM;
    for (uint64_t at = 0; at < length && rc == 0; at += room) {
        size_t bytes = length - at < room ? (size_t)(length - at) : room;
        rc = d->vfs->ops->read(d->vfs, file, pages, bytes, at);
        if (rc == 0 && !are_journal_pages(pages, bytes))
            rc = TIERCE_E_FORMAT;
    }
    tierce__free(pages);
    return rc;
}

/* Checks the journal of an unfinished compaction. */
static int check_leftover(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd >= 0);
    TIERCE_DASSERT(!d->has_leftover);
    struct tierce__vfs_file *file = NULL;
    d->opening = TIERCE__DISK_JOURNAL_NEW;
    int rc = d->vfs->ops->open(d->vfs, &file, TIERCE__DISK_JOURNAL_NEW, TIERCE__VFS_READONLY);
    if (rc == -ENOENT)
        return 0;
    int64_t length = rc == 0 ? d->vfs->ops->length(d->vfs, file) : rc;
    if (length < 0)
        rc = (int)length;
    uint64_t capacity = 0;
    if (rc == 0)
        rc = tierce__journal_probe(d->vfs, file, (uint64_t)length, d->chunk_count_max, &capacity);
    if (rc == 0)
        rc = tierce__disk_check_journal(d, file, (uint64_t)length);
    if (file != NULL)
        d->vfs->ops->close(d->vfs, file);
    d->has_leftover = rc == 0;
    return rc;
}

/* The bytes of a mark. A damaged one counts as lost, and the next sync of the journal replaces it:
 * it only shows a loss of journal pages. */
static int judge_mark(const struct tierce__disk *d, const uint8_t *at)
{
    if (tierce__journal_mark_is_valid(at) || is_zero(at, TIERCE__JOURNAL_MARK_BYTES))
        return 0;
    if (!tierce__journal_mark_has_magic(at))
        return TIERCE_E_FORMAT;
    tierce__log(TIERCE_LOG_WARN, "disk_mark_damaged",
                "path=%s/" TIERCE__JOURNAL_MARK_NAME
                " effect=\"a loss of pages at the end of the journal is not noticed this time\" "
                "hint=\"nothing needs to be done if the journal is intact; a faulty disk is the "
                "usual cause\"",
                d->folder);
    return 0;
}

static int check_mark(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd >= 0);
    struct tierce__vfs_file *file = NULL;
    uint8_t at[TIERCE__JOURNAL_MARK_BYTES];
    d->opening = TIERCE__JOURNAL_MARK_NAME;
    int rc = d->vfs->ops->open(d->vfs, &file, TIERCE__JOURNAL_MARK_NAME, TIERCE__VFS_READONLY);
    if (rc == -ENOENT)
        return 0;
    int64_t length = rc == 0 ? d->vfs->ops->length(d->vfs, file) : rc;
    if (length < 0)
        rc = (int)length;
    if (rc == 0 && length != 0 && length != sizeof(at))
        rc = TIERCE_E_FORMAT;
    if (rc == 0 && length != 0)
        rc = d->vfs->ops->read(d->vfs, file, at, sizeof(at), 0);
    if (rc == 0 && length != 0)
        rc = judge_mark(d, at);
    if (file != NULL)
        d->vfs->ops->close(d->vfs, file);
    return rc;
}

int tierce__disk_check_contents(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd >= 0);
    struct stat st;
    d->opening = TIERCE__DISK_LOCK;
    if (fstat(d->lock_fd, &st) != 0)
        return -errno;
    int rc = st.st_size == 0 ? 0 : TIERCE_E_FORMAT;
    if (rc == 0)
        rc = check_leftover(d);
    if (rc == 0)
        rc = check_mark(d);
    return rc;
}

/* Whether the first bytes of a chunk are those that the journal says; *seen: how many were read. */
static bool has_a_right_head(struct tierce__disk *d, uint64_t length, uint8_t *page, uint32_t *seen)
{
    TIERCE_DASSERT(length > 0);
    *seen = 0;
    for (uint32_t slot = 0; slot < d->table.slot_count && *seen < HEADS_MAX; slot++) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slot];
        if (!tierce__index_has(d->table.index, slot) || c->offset + PAGE > length)
            continue;
        (*seen)++;
        TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE && c->offset % PAGE == 0);
        if (d->vfs->ops->read(d->vfs, d->data, page, PAGE, c->offset) == 0 &&
            XXH3_64bits(page, PAGE) == c->head_sum)
            return true;
    }
    TIERCE_DASSERT(*seen <= HEADS_MAX);
    return false;
}

/* Decides by the first page, if no chunk matches the journal. The lowest range of a data file
 * begins at 0, and each chunk with its magic, which a damage may have hit as well. */
static bool begins_as_ours(const uint8_t *page, bool has_journal, bool has_chunks)
{
    unsigned right = tierce__chunk_magic_bytes(page);
    if (right >= (has_chunks ? MAGIC_NEARLY : MAGIC_WHOLE))
        return true;
    /* Nothing was written yet, or the first write of all was torn. */
    return has_journal && !has_chunks && is_zero(page, SECTOR);
}

/* By a file of its own: d->data may be readable in whole sectors only. */
static int read_start(struct tierce__disk *d, uint8_t *page, size_t bytes)
{
    TIERCE_DASSERT(bytes > 0 && bytes <= PAGE);
    struct tierce__vfs_file *file;
    int rc = d->vfs->ops->open(d->vfs, &file, TIERCE__DISK_DATA, TIERCE__VFS_READONLY);
    if (rc < 0)
        return rc;
    rc = d->vfs->ops->read(d->vfs, file, page, bytes, 0);
    d->vfs->ops->close(d->vfs, file);
    return rc;
}

int tierce__disk_check_data(struct tierce__disk *d, uint64_t length, bool has_journal)
{
    if (length == 0)
        return 0;
    uint8_t *page = tierce__alloc_aligned(PAGE, PAGE);
    if (page == NULL)
        return -ENOMEM;
    int rc = 0;
    uint32_t seen;
    if (!has_a_right_head(d, length, page, &seen)) {
        size_t bytes = length < PAGE ? (size_t)length : PAGE;
        memset(page, 0, PAGE);
        rc = read_start(d, page, bytes);
        if (rc == 0 && !begins_as_ours(page, has_journal, seen > 0))
            rc = TIERCE_E_FORMAT;
    }
    tierce__free(page);
    return rc;
}
