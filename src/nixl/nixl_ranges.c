/* SPDX-License-Identifier: Apache-2.0 */
#include "nixl/nixl_ranges.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/list.h"
#include "base/map.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tierce/status.h>
#include <xxhash.h>

#define RUNS_MAX  (1u << 16)
#define RUNS_ROOM 4u

/* Ranges of `bytes` bytes, one behind another, from `from` to `to`. */
struct run {
    uint64_t from, to, bytes;
};

struct file {
    struct tierce__list node; /* the one used last at the end */
    struct tierce__map_node by_id;
    struct run *runs; /* in the order of the file; none overlap */
    size_t count, room;
    char id[TIERCE__NIXL_FILE_ID_BYTES];
};

struct tierce__nixl_ranges {
    struct tierce__lock lock;
    struct tierce__list files; /* and the following: under the lock */
    struct tierce__map by_id;
    size_t runs; /* of all files */
};

/* ---- files ----------------------------------------------------------------------------------- */

int tierce__nixl_file_id(char out[TIERCE__NIXL_FILE_ID_BYTES], const char *path, int fd)
{
    struct statx at;
    const unsigned mask = STATX_TYPE | STATX_INO | STATX_MTIME | STATX_BTIME;
    int rc = path != NULL ? statx(AT_FDCWD, path, 0, mask, &at)
                          : statx(fd, "", AT_EMPTY_PATH, mask, &at);
    if (rc != 0)
        return -errno;
    if (!S_ISREG(at.stx_mode))
        return TIERCE_E_UNSUPPORTED;
    if ((at.stx_mask & STATX_BTIME) == 0)
        at.stx_btime = (struct statx_timestamp){0};
    snprintf(out, TIERCE__NIXL_FILE_ID_BYTES, "%x:%x:%llx:%llx.%x:%llx.%x", at.stx_dev_major,
             at.stx_dev_minor, (unsigned long long)at.stx_ino,
             (unsigned long long)at.stx_btime.tv_sec, at.stx_btime.tv_nsec,
             (unsigned long long)at.stx_mtime.tv_sec, at.stx_mtime.tv_nsec);
    return 0;
}

static struct file *file_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct file, node);
}

static void forget(struct tierce__nixl_ranges *ranges, struct file *file)
{
    ranges->runs -= file->count;
    tierce__map_remove(&ranges->by_id, &file->by_id);
    tierce__list_remove(&file->node);
    tierce__free(file->runs);
    tierce__free(file);
}

static struct file *find_file(const struct tierce__nixl_ranges *ranges, const char *id,
                              uint64_t hash)
{
    struct tierce__map_node *it = tierce__map_find(&ranges->by_id, hash);
    while (it != NULL && strcmp(TIERCE__CONTAINER_OF(it, struct file, by_id)->id, id) != 0)
        it = tierce__map_find_next(it);
    return it != NULL ? TIERCE__CONTAINER_OF(it, struct file, by_id) : NULL;
}

/* The file, new or moved to the end. NULL: no memory. */
static struct file *use(struct tierce__nixl_ranges *ranges, const char *id)
{
    uint64_t hash = XXH3_64bits(id, strlen(id));
    struct file *file = find_file(ranges, id, hash);
    if (file != NULL) {
        tierce__list_remove(&file->node);
    } else {
        file = tierce__calloc(1, sizeof(*file));
        if (file == NULL)
            return NULL;
        snprintf(file->id, sizeof(file->id), "%s", id);
        tierce__map_put(&ranges->by_id, &file->by_id, hash);
    }
    tierce__list_push_back(&ranges->files, &file->node);
    return file;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The first run that ends behind `offset`. */
static size_t find(const struct file *file, uint64_t offset)
{
    size_t from = 0, to = file->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (file->runs[middle].to > offset)
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

/* Whether a range that overlaps run `at` is one of its ranges, or the beginning of one. A single
 * range may become longer. */
static bool is_one_of(struct file *file, size_t at, uint64_t offset, uint64_t bytes)
{
    struct run *run = &file->runs[at];
    if (offset < run->from || (offset - run->from) % run->bytes != 0)
        return false;
    if (bytes <= run->bytes)
        return true;
    bool is_free = at + 1 == file->count || file->runs[at + 1].from >= offset + bytes;
    if (run->to - run->from != run->bytes || !is_free)
        return false;
    run->to = offset + bytes;
    run->bytes = bytes;
    return true;
}

static void remove_run(struct tierce__nixl_ranges *ranges, struct file *file, size_t at)
{
    memmove(&file->runs[at], &file->runs[at + 1], (file->count - at - 1) * sizeof(*file->runs));
    file->count--;
    ranges->runs--;
}

/* Adds a range before run `at`, which it does not overlap: to a run beside it, or as a run. */
static int add(struct tierce__nixl_ranges *ranges, struct file *file, size_t at, uint64_t offset,
               uint64_t bytes)
{
    struct run *next = at < file->count ? &file->runs[at] : NULL;
    struct run *before = at > 0 ? &file->runs[at - 1] : NULL;
    bool joins_next = next != NULL && next->bytes == bytes && next->from == offset + bytes;
    bool joins_before = before != NULL && before->bytes == bytes && before->to == offset;
    if (joins_before) {
        before->to = joins_next ? next->to : offset + bytes;
        if (joins_next)
            remove_run(ranges, file, at);
        return 0;
    }
    if (joins_next) {
        next->from = offset;
        return 0;
    }
    if (TIERCE__GROW(file->runs, file->room, file->count + 1, RUNS_ROOM) < 0)
        return -ENOMEM;
    memmove(&file->runs[at + 1], &file->runs[at], (file->count - at) * sizeof(*file->runs));
    file->runs[at] = (struct run){.from = offset, .to = offset + bytes, .bytes = bytes};
    file->count++;
    ranges->runs++;
    return 0;
}

/* The file that is in use stays. */
static void forget_oldest(struct tierce__nixl_ranges *ranges, const struct file *used)
{
    while (ranges->runs > RUNS_MAX && file_of(ranges->files.next) != used)
        forget(ranges, file_of(ranges->files.next));
}

int tierce__nixl_ranges_note(struct tierce__nixl_ranges *ranges, const char *file, uint64_t offset,
                             uint64_t bytes)
{
    uint64_t end;
    TIERCE_DASSERT(bytes > 0);
    if (!tierce__add_ok(&end, offset, bytes))
        return TIERCE_E_UNSUPPORTED;
    tierce__lock_take(&ranges->lock);
    struct file *used = use(ranges, file);
    int rc = used != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        size_t at = find(used, offset);
        if (at == used->count || used->runs[at].from >= end)
            rc = add(ranges, used, at, offset, bytes);
        else if (!is_one_of(used, at, offset, bytes))
            rc = TIERCE_E_UNSUPPORTED;
        forget_oldest(ranges, used);
    }
    tierce__lock_drop(&ranges->lock);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct tierce__nixl_ranges *tierce__nixl_ranges_create(void)
{
    struct tierce__nixl_ranges *ranges = tierce__calloc(1, sizeof(*ranges));
    if (ranges == NULL)
        return NULL;
    tierce__lock_init(&ranges->lock, TIERCE__LOCK_CONNECTOR);
    tierce__list_init(&ranges->files);
    return ranges;
}

void tierce__nixl_ranges_destroy(struct tierce__nixl_ranges *ranges)
{
    if (ranges == NULL)
        return;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &ranges->files)
        forget(ranges, file_of(it));
    tierce__map_fini(&ranges->by_id);
    tierce__lock_fini(&ranges->lock);
    tierce__free(ranges);
}
