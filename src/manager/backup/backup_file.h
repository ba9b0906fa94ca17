/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_BACKUP_FILE_H
#define TIERCE_MANAGER_BACKUP_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/file.h"
#include "manager/meta/record.h"

/*
 * The file of a backup (docs/inside/format/backup.md): a head, frames, and a last frame that ends
 * it. The writer knows nothing of the frames' content; the reader verifies all of it.
 *
 *     rc = tierce__backup_create(&writer, path, made_us, why);
 *     rc = tierce__backup_add(&writer, TIERCE__BACKUP_CATALOG, text, bytes);
 *     rc = tierce__backup_add(&writer, TIERCE__BACKUP_RECORDS, page, bytes);
 *     rc = tierce__backup_close(&writer, true, why);
 *
 *     rc = tierce__backup_open(&backup, path, why);  // reads and verifies the whole file
 *     part = tierce__backup_part(backup, instance->number);
 *     while ((rc = tierce__backup_next(backup, part, &at, &arena, &page, why)) > 0)
 *         ...
 *
 * Threads: one at a time.
 */

enum { TIERCE__BACKUP_VERSION = 1 };
#define TIERCE__BACKUP_FRAME_MAX (64u * 1024 * 1024) /* bytes of a frame's content */

enum tierce__backup_kind {
    TIERCE__BACKUP_CATALOG = 1, /* the registry as JSON; the first frame */
    TIERCE__BACKUP_RECORDS = 2, /* records of one instance */
    TIERCE__BACKUP_END = 3,     /* counts; the last frame */
};

/* ---- writing --------------------------------------------------------------------------------- */

struct tierce__backup_writer {
    struct tierce__new_file file;
    char *path;
    uint64_t seed; /* of the sums */
    uint64_t frames, records;
};

/* Only the owner may read the file (0600). Until the close an older file of that name stays.
 * Errors, `why` in words: negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__backup_create(struct tierce__backup_writer *out, const char *path,
                                         int64_t made_us, char why[256]);
/* Errors: TIERCE_E_LIMIT (above TIERCE__BACKUP_FRAME_MAX), TIERCE_E_FORMAT (not a frame's
 * content), negative errno. */
TIERCE_MUSTUSE int tierce__backup_add(struct tierce__backup_writer *writer, uint32_t kind,
                                      const void *content, size_t bytes);
/* Ends the file. Unless `is_good`, it is removed. A file that is good is durable, under its name.
 * Accepts a zeroed writer. Errors: negative errno; no file is left. */
TIERCE_MUSTUSE int tierce__backup_close(struct tierce__backup_writer *writer, bool is_good,
                                        char why[256]);

/* ---- the content of a frame of records --------------------------------------------------------
 */

/* Appends a record; NULL in `at`: counts bytes only. */
size_t tierce__backup_put_record(unsigned char *at, int64_t key,
                                 const struct tierce__record *record);
enum { TIERCE__BACKUP_PAGE_HEAD = 8 };
/* Writes the first TIERCE__BACKUP_PAGE_HEAD bytes. */
void tierce__backup_put_page(unsigned char *at, uint32_t instance, uint32_t count);

struct tierce__backup_page {
    uint32_t instance;
    size_t count;
    int64_t *keys;
    struct tierce__record *records;
};

/* ---- reading --------------------------------------------------------------------------------- */

struct tierce__backup;

/* The records of an instance. */
struct tierce__backup_part {
    uint32_t instance;
    uint64_t offset; /* of its first frame in the file */
    uint64_t frames, records;
    uint64_t first; /* the index of its first frame */
};

/* Reads and verifies the whole file. Errors, `why` names the fault and its place: TIERCE_E_FORMAT
 * (another program's file, damaged, cut short), TIERCE_E_VERSION (written by a newer Tierce),
 * negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__backup_open(struct tierce__backup **out, const char *path,
                                       char why[256]);
void tierce__backup_free(struct tierce__backup *backup);

/* The registry as JSON (model_json.c), NUL-terminated. [borrow until free] */
const char *tierce__backup_catalog(const struct tierce__backup *backup);
int64_t tierce__backup_made_us(const struct tierce__backup *backup);
/* Random; 16 bytes. */
const unsigned char *tierce__backup_id(const struct tierce__backup *backup);

/* NULL: the backup has no records of the instance. */
const struct tierce__backup_part *tierce__backup_part(const struct tierce__backup *backup,
                                                      uint32_t instance);

/* A place in a part; zeroed: its beginning. */
struct tierce__backup_at {
    uint64_t frame, offset;
};
/* Reads the next page of a part into the arena. Returns 1, or 0 at the end. Errors: as open: the
 * file may have changed since. */
TIERCE_MUSTUSE int tierce__backup_next(struct tierce__backup *backup,
                                       const struct tierce__backup_part *part,
                                       struct tierce__backup_at *at, struct tierce__arena *arena,
                                       struct tierce__backup_page *out, char why[256]);

#endif
