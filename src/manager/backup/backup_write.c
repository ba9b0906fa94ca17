/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/backup_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <xxhash.h>

uint64_t tierce__backup_sum(uint64_t seed, uint64_t frame, const void *head, const void *content,
                            size_t bytes)
{
    TIERCE_ASSERT(bytes <= TIERCE__BACKUP_FRAME_MAX);
    uint64_t of_head = XXH3_64bits_withSeed(head, FRAME_HEAD_BYTES, seed + frame);
    return XXH3_64bits_withSeed(content, bytes, of_head);
}

/* ---- the file -------------------------------------------------------------------------------- */

static int put(struct tierce__backup_writer *writer, const void *bytes, size_t count)
{
    TIERCE_ASSERT(writer->file.file != NULL);
    errno = 0;
    if (count == 0 || fwrite(bytes, 1, count, writer->file.file) == count)
        return 0;
    return errno != 0 ? -errno : -EIO;
}

static int put_head(struct tierce__backup_writer *writer, int64_t made_us)
{
    unsigned char head[HEAD_BYTES] = {0};
    memcpy(head, TIERCE__BACKUP_MAGIC, sizeof(TIERCE__BACKUP_MAGIC) - 1);
    tierce__store_le32(head + HEAD_VERSION, TIERCE__BACKUP_VERSION);
    tierce__store_le64(head + HEAD_MADE, (uint64_t)made_us);
    if (getrandom(head + HEAD_ID, ID_BYTES, 0) != ID_BYTES)
        return -EIO;
    uint64_t sum = XXH3_64bits(head, HEAD_SUM);
    tierce__store_le64(head + HEAD_SUM, sum);
    writer->seed = sum;
    return put(writer, head, sizeof(head));
}

int tierce__backup_create(struct tierce__backup_writer *out, const char *path, int64_t made_us,
                          char why[256])
{
    struct tierce__backup_writer writer = {.path = tierce__strdup(path)};
    int rc = writer.path != NULL ? tierce__new_file_open(&writer.file, path) : -ENOMEM;
    if (rc == 0 && fchmod(fileno(writer.file.file), 0600) != 0 && writer.file.beside != NULL)
        rc = -errno;
    if (rc == 0)
        rc = put_head(&writer, made_us);
    if (rc == 0) {
        *out = writer;
        return 0;
    }
    int closed = tierce__new_file_close(&writer.file, false);
    (void)closed; /* nothing of it is kept */
    tierce__free(writer.path);
    snprintf(why, 256, "the backup %.150s cannot be written: %s", path, tierce_strerror(rc));
    return rc;
}

int tierce__backup_add(struct tierce__backup_writer *writer, uint32_t kind, const void *content,
                       size_t bytes)
{
    unsigned char head[FRAME_HEAD_BYTES], sum[FRAME_SUM_BYTES];
    if (bytes > TIERCE__BACKUP_FRAME_MAX)
        return TIERCE_E_LIMIT;
    if (kind == TIERCE__BACKUP_RECORDS) {
        if (bytes < TIERCE__BACKUP_PAGE_HEAD)
            return TIERCE_E_FORMAT;
        writer->records += tierce__load_le32((const unsigned char *)content + 4);
    }
    tierce__store_le32(head, kind);
    tierce__store_le32(head + 4, (uint32_t)bytes);
    tierce__store_le64(sum, tierce__backup_sum(writer->seed, writer->frames, head, content, bytes));
    int rc = put(writer, head, sizeof(head));
    if (rc == 0)
        rc = put(writer, content, bytes);
    if (rc == 0)
        rc = put(writer, sum, sizeof(sum));
    writer->frames++;
    return rc;
}

int tierce__backup_close(struct tierce__backup_writer *writer, bool is_good, char why[256])
{
    unsigned char counts[END_BYTES];
    if (writer->file.file == NULL)
        return 0;
    tierce__store_le64(counts, writer->frames);
    tierce__store_le64(counts + 8, writer->records);
    int rc = is_good ? tierce__backup_add(writer, TIERCE__BACKUP_END, counts, sizeof(counts)) : 0;
    int closed = tierce__new_file_close(&writer->file, is_good && rc == 0);
    rc = rc == 0 ? closed : rc;
    if (rc < 0)
        snprintf(why, 256, "the backup %.150s cannot be written: %s", writer->path,
                 tierce_strerror(rc));
    tierce__free(writer->path);
    *writer = (struct tierce__backup_writer){0};
    return rc;
}

/* ---- pages of records ------------------------------------------------------------------------ */

size_t tierce__backup_put_record(unsigned char *at, int64_t key,
                                 const struct tierce__record *record)
{
    size_t bytes = tierce__record_size(record);
    TIERCE_ASSERT(bytes <= UINT32_MAX);
    if (at != NULL) {
        tierce__store_le64(at, (uint64_t)key);
        tierce__store_le32(at + 8, (uint32_t)bytes);
        tierce__record_write(record, at + ENTRY_HEAD_BYTES);
    }
    return ENTRY_HEAD_BYTES + bytes;
}

void tierce__backup_put_page(unsigned char *at, uint32_t instance, uint32_t count)
{
    TIERCE_ASSERT(instance > 0);
    tierce__store_le32(at, instance);
    tierce__store_le32(at + 4, count);
}
