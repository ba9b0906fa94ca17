/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/backup_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "manager/meta/meta_store.h"
#include "manager/registry/catalog.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct tierce__backup {
    FILE *file;
    char *path;
    uint64_t seed, frames, records;
    int64_t made_us;
    unsigned char id[ID_BYTES];
    char *catalog;
    struct tierce__backup_part *parts; /* by ascending number of the instance */
    size_t part_count, part_room;
};

struct frame {
    uint32_t kind;
    size_t bytes;
    char *content; /* heap, NUL-terminated */
};

__attribute__((format(printf, 4, 5))) static int
fault(const struct tierce__backup *backup, char why[256], int rc, const char *format, ...)
{
    char text[160];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    snprintf(why, 256, "the backup %.80s: %s", backup->path, text);
    return rc;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static int read_bytes(const struct tierce__backup *backup, uint64_t offset, void *out, size_t count,
                      char why[256])
{
    errno = 0;
    if (fread(out, 1, count, backup->file) == count)
        return 0;
    if (ferror(backup->file) != 0)
        return fault(backup, why, errno != 0 ? -errno : -EIO, "byte %llu cannot be read: %s",
                     (unsigned long long)offset, tierce_strerror(errno != 0 ? -errno : -EIO));
    return fault(backup, why, TIERCE_E_FORMAT, "it is cut short after byte %llu",
                 (unsigned long long)offset);
}

/* Reads the frame at the file's position, which is `offset`. The content is on the heap. */
static int read_frame(const struct tierce__backup *backup, uint64_t index, uint64_t offset,
                      struct frame *out, char why[256])
{
    unsigned char head[FRAME_HEAD_BYTES], sum[FRAME_SUM_BYTES];
    int rc = read_bytes(backup, offset, head, sizeof(head), why);
    if (rc < 0)
        return rc;
    uint32_t bytes = tierce__load_le32(head + 4);
    if (bytes > TIERCE__BACKUP_FRAME_MAX)
        return fault(backup, why, TIERCE_E_FORMAT,
                     "frame %llu at byte %llu is damaged: its length is %u",
                     (unsigned long long)index, (unsigned long long)offset, bytes);
    char *content = tierce__alloc((size_t)bytes + 1);
    if (content == NULL)
        return fault(backup, why, -ENOMEM, "no memory");
    content[bytes] = '\0';
    rc = read_bytes(backup, offset, content, bytes, why);
    if (rc == 0)
        rc = read_bytes(backup, offset, sum, sizeof(sum), why);
    if (rc == 0 &&
        tierce__load_le64(sum) != tierce__backup_sum(backup->seed, index, head, content, bytes))
        rc = fault(backup, why, TIERCE_E_FORMAT,
                   "frame %llu at byte %llu is damaged: its checksum does not match",
                   (unsigned long long)index, (unsigned long long)offset);
    if (rc < 0) {
        tierce__free(content);
        return rc;
    }
    *out = (struct frame){tierce__load_le32(head), bytes, content};
    return 0;
}

/* Reads a page of records. */
static int read_page(const struct tierce__backup *backup, const struct frame *frame,
                     struct tierce__arena *arena, struct tierce__backup_page *out, char why[256])
{
    const unsigned char *at = (const unsigned char *)frame->content, *end = at + frame->bytes;
    if (frame->kind != TIERCE__BACKUP_RECORDS || frame->bytes < TIERCE__BACKUP_PAGE_HEAD)
        return fault(backup, why, TIERCE_E_FORMAT, "a frame of kind %u has %zu bytes", frame->kind,
                     frame->bytes);
    struct tierce__backup_page page = {.instance = tierce__load_le32(at),
                                       .count = tierce__load_le32(at + 4)};
    at += TIERCE__BACKUP_PAGE_HEAD;
    if (page.count == 0 || page.count > (size_t)(end - at) / ENTRY_HEAD_BYTES)
        return fault(backup, why, TIERCE_E_FORMAT, "a page of instance %u claims %zu records",
                     page.instance, page.count);
    page.keys = tierce__arena_calloc(arena, page.count, sizeof(*page.keys));
    page.records = tierce__arena_calloc(arena, page.count, sizeof(*page.records));
    if (page.keys == NULL || page.records == NULL)
        return fault(backup, why, -ENOMEM, "no memory");
    for (size_t i = 0; i < page.count; i++) {
        size_t left = (size_t)(end - at);
        size_t bytes = left >= ENTRY_HEAD_BYTES ? tierce__load_le32(at + 8) : 0;
        if (left < ENTRY_HEAD_BYTES || bytes > left - ENTRY_HEAD_BYTES)
            return fault(backup, why, TIERCE_E_FORMAT, "a record of instance %u is cut short",
                         page.instance);
        page.keys[i] = (int64_t)tierce__load_le64(at);
        int rc = tierce__record_read(&page.records[i], arena, at + ENTRY_HEAD_BYTES, bytes);
        if (rc < 0)
            return fault(backup, why, rc,
                         rc == TIERCE_E_VERSION
                             ? "the record of key %lld is of a newer version than this Tierce reads"
                             : "the record of key %lld is invalid",
                         (long long)page.keys[i]);
        if (i > 0 && tierce__meta_mix(page.keys[i - 1]) >= tierce__meta_mix(page.keys[i]))
            return fault(backup, why, TIERCE_E_FORMAT, "key %lld is out of order",
                         (long long)page.keys[i]);
        at += ENTRY_HEAD_BYTES + bytes;
    }
    if (at != end)
        return fault(backup, why, TIERCE_E_FORMAT, "%zu bytes follow the last record of a page",
                     (size_t)(end - at));
    *out = page;
    return 0;
}

/* ---- verifying the whole file -----------------------------------------------------------------
 */

static int read_head(struct tierce__backup *backup, char why[256])
{
    unsigned char head[HEAD_BYTES];
    size_t got = fread(head, 1, sizeof(head), backup->file);
    if (got < sizeof(head) && ferror(backup->file) != 0)
        return fault(backup, why, errno != 0 ? -errno : -EIO, "it cannot be read");
    if (got < HEAD_VERSION ||
        memcmp(head, TIERCE__BACKUP_MAGIC, sizeof(TIERCE__BACKUP_MAGIC) - 1) != 0)
        return fault(backup, why, TIERCE_E_FORMAT, "it is not a backup of `tierce manager backup`");
    if (got < sizeof(head))
        return fault(backup, why, TIERCE_E_FORMAT, "it is cut short after byte %zu", got);
    if (tierce__load_le64(head + HEAD_SUM) != XXH3_64bits(head, HEAD_SUM))
        return fault(backup, why, TIERCE_E_FORMAT, "its head is damaged");
    uint32_t version = tierce__load_le32(head + HEAD_VERSION);
    if (version != TIERCE__BACKUP_VERSION || tierce__load_le32(head + HEAD_FLAGS) != 0)
        return fault(backup, why, TIERCE_E_VERSION,
                     "it has version %u, and this Tierce reads version %d: restore it with the "
                     "Tierce that wrote it, or a newer one",
                     version, TIERCE__BACKUP_VERSION);
    backup->seed = tierce__load_le64(head + HEAD_SUM);
    backup->made_us = (int64_t)tierce__load_le64(head + HEAD_MADE);
    memcpy(backup->id, head + HEAD_ID, sizeof(backup->id));
    return 0;
}

/* Takes the first frame. */
static int take_catalog(struct tierce__backup *backup, struct frame *frame, char why[256])
{
    struct tierce__catalog *catalog = NULL;
    char inner[256] = "";
    if (frame->kind != TIERCE__BACKUP_CATALOG)
        return fault(backup, why, TIERCE_E_FORMAT, "it does not begin with the registry");
    int rc = tierce__catalog_create(&catalog);
    if (rc == 0)
        rc = tierce__catalog_read_all(catalog, frame->content, frame->bytes, inner);
    tierce__catalog_put(catalog);
    if (rc < 0)
        return fault(backup, why, rc, "its registry: %.120s",
                     inner[0] != '\0' ? inner : tierce_strerror(rc));
    backup->catalog = frame->content;
    frame->content = NULL;
    return 0;
}

/* Lists a page in its part. `*last` is the mixed key before it. */
static int take_page(struct tierce__backup *backup, const struct frame *frame, uint64_t offset,
                     uint64_t *last, char why[256])
{
    struct tierce__arena arena = {0};
    struct tierce__backup_page page;
    struct tierce__backup_part *part =
        backup->part_count > 0 ? &backup->parts[backup->part_count - 1] : NULL;
    int rc = read_page(backup, frame, &arena, &page, why);
    bool is_next = rc == 0 && part != NULL && part->instance == page.instance;
    if (rc == 0 && (is_next ? tierce__meta_mix(page.keys[0]) <= *last
                            : page.instance <= (part != NULL ? part->instance : 0)))
        rc = fault(backup, why, TIERCE_E_FORMAT, "a page of instance %u is out of order",
                   page.instance);
    if (rc == 0 && !is_next &&
        (rc = TIERCE__GROW(backup->parts, backup->part_room, backup->part_count + 1, 16)) == 0) {
        part = &backup->parts[backup->part_count++];
        *part = (struct tierce__backup_part){
            .instance = page.instance, .offset = offset, .first = backup->frames};
    }
    if (rc == 0) {
        *last = tierce__meta_mix(page.keys[page.count - 1]);
        part->frames++;
        part->records += page.count;
        backup->records += page.count;
    }
    tierce__arena_clear(&arena);
    return rc;
}

static int take_end(const struct tierce__backup *backup, const struct frame *frame, char why[256])
{
    if (frame->bytes != END_BYTES || tierce__load_le64(frame->content) != backup->frames ||
        tierce__load_le64(frame->content + 8) != backup->records)
        return fault(backup, why, TIERCE_E_FORMAT, "its last frame counts other frames or records");
    if (fgetc(backup->file) != EOF)
        return fault(backup, why, TIERCE_E_FORMAT, "bytes follow its last frame");
    return 0;
}

/* 1: this was the last frame. */
static int take_frame(struct tierce__backup *backup, uint64_t *offset, uint64_t *last,
                      char why[256])
{
    struct frame frame;
    int rc = read_frame(backup, backup->frames, *offset, &frame, why);
    if (rc < 0)
        return rc;
    if (backup->frames == 0)
        rc = take_catalog(backup, &frame, why);
    else if (frame.kind == TIERCE__BACKUP_END)
        rc = take_end(backup, &frame, why) == 0 ? 1 : TIERCE_E_FORMAT;
    else
        rc = take_page(backup, &frame, *offset, last, why);
    tierce__free(frame.content);
    *offset += FRAME_HEAD_BYTES + frame.bytes + FRAME_SUM_BYTES;
    backup->frames += rc == 0;
    return rc;
}

int tierce__backup_open(struct tierce__backup **out, const char *path, char why[256])
{
    uint64_t offset = HEAD_BYTES, last = 0;
    struct tierce__backup *backup = tierce__calloc(1, sizeof(*backup));
    int rc = backup != NULL ? 0 : -ENOMEM;
    if (rc == 0 && (backup->path = tierce__strdup(path)) == NULL)
        rc = -ENOMEM;
    if (rc < 0) {
        snprintf(why, 256, "no memory");
        tierce__free(backup);
        return rc;
    }
    backup->file = fopen(path, "re");
    if (backup->file == NULL) {
        int error = -errno;
        rc = fault(backup, why, error, "it cannot be opened: %s", tierce_strerror(error));
    }
    if (rc == 0)
        rc = read_head(backup, why);
    while (rc == 0)
        rc = take_frame(backup, &offset, &last, why);
    if (rc < 0) {
        tierce__backup_free(backup);
        return rc;
    }
    *out = backup;
    return 0;
}

void tierce__backup_free(struct tierce__backup *backup)
{
    if (backup == NULL)
        return;
    if (backup->file != NULL)
        fclose(backup->file);
    tierce__free(backup->catalog);
    tierce__free(backup->parts);
    tierce__free(backup->path);
    tierce__free(backup);
}

/* ---- what it holds --------------------------------------------------------------------------- */

const char *tierce__backup_catalog(const struct tierce__backup *backup)
{
    TIERCE_ASSERT(backup->catalog != NULL);
    return backup->catalog;
}

int64_t tierce__backup_made_us(const struct tierce__backup *backup)
{
    return backup->made_us;
}

const unsigned char *tierce__backup_id(const struct tierce__backup *backup)
{
    return backup->id;
}

const struct tierce__backup_part *tierce__backup_part(const struct tierce__backup *backup,
                                                      uint32_t instance)
{
    for (size_t i = 0; i < backup->part_count; i++) {
        if (backup->parts[i].instance == instance)
            return &backup->parts[i];
    }
    return NULL;
}

int tierce__backup_next(struct tierce__backup *backup, const struct tierce__backup_part *part,
                        struct tierce__backup_at *at, struct tierce__arena *arena,
                        struct tierce__backup_page *out, char why[256])
{
    struct frame frame;
    TIERCE_ASSERT(at->frame <= part->frames);
    if (at->frame == part->frames)
        return 0;
    if (at->frame == 0)
        at->offset = part->offset;
    if (fseeko(backup->file, (off_t)at->offset, SEEK_SET) != 0)
        return fault(backup, why, -errno, "byte %llu cannot be reached",
                     (unsigned long long)at->offset);
    int rc = read_frame(backup, part->first + at->frame, at->offset, &frame, why);
    if (rc < 0)
        return rc;
    rc = read_page(backup, &frame, arena, out, why);
    if (rc == 0 && out->instance != part->instance)
        rc = fault(backup, why, TIERCE_E_FORMAT, "it has changed since it was verified");
    tierce__free(frame.content);
    at->offset += FRAME_HEAD_BYTES + frame.bytes + FRAME_SUM_BYTES;
    at->frame++;
    return rc == 0 ? 1 : rc;
}
