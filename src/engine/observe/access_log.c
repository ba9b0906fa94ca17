/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tierce/log.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/lock.h"
#include "base/log.h"

#include <tierce/engine.h>
#include <tierce/key.h>

#define LOG_MAGIC  0x41434c31u
#define BUFFER_MAX ((size_t)4 << 20) /* each of two */
#define ID_DIGITS  16u
#define HEAD_BYTES 256u /* of a line before its blocks, and more */
#define TAIL_BYTES 512u /* behind them */
#define WRITE_MS   200u /* how long a line waits at most */
#define TIERS_MAX  8u

struct tierce__access_log {
    uint32_t magic;
    char *path, *old_path;
    uint64_t file_bytes_max;
    size_t buffer_bytes;
    pthread_t writer;

    /* The writer's alone. */
    int fd;
    uint64_t file_bytes;
    char *writing; /* [buffer_bytes] */
    bool failing;  /* told already */

    struct tierce__lock lock; /* ACCESS_LOG: everything below */
    struct tierce__cond changed;
    char *filling; /* [buffer_bytes] */
    size_t filled;
    uint64_t filled_lines;
    uint64_t lines, dropped;
    bool closing;
};

/* ---- the file -------------------------------------------------------------------------------- */

/* Makes a file that is open fit to be appended to; *bytes = its size. */
static int check_file(int fd, uint64_t *bytes)
{
    struct stat st;
    char last = '\n';
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -EINVAL;
    /* A file that was there may have been made with other rights. */
    if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0 && fchmod(fd, S_IRUSR | S_IWUSR) != 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return -EBUSY;
    /* It also must not end in the middle of a line, as after a killed process. */
    if (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1)
        return -EIO;
    if (last != '\n' && write(fd, "\n", 1) != 1)
        return -errno;
    *bytes = (uint64_t)st.st_size + (last != '\n');
    return 0;
}

static int open_file(struct tierce__access_log *log)
{
    int fd = open(log->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                  S_IRUSR | S_IWUSR);
    if (fd < 0)
        return -errno;
    int rc = check_file(fd, &log->file_bytes);
    if (rc < 0)
        close(fd);
    else
        log->fd = fd;
    return rc;
}

static int rotate(struct tierce__access_log *log)
{
    if (rename(log->path, log->old_path) != 0)
        return -errno;
    close(log->fd);
    log->fd = -1;
    return open_file(log);
}

/* Writes all of it, or truncates the part that was written. */
static int write_whole(struct tierce__access_log *log, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t n = write(log->fd, log->writing + done, length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int rc = n < 0 ? -errno : -EIO;
            if (done > 0 && ftruncate(log->fd, (off_t)log->file_bytes) != 0)
                return rc;
            return rc;
        }
        done += (size_t)n;
    }
    log->file_bytes += length;
    return 0;
}

static int write_lines(struct tierce__access_log *log, size_t length)
{
    int rc = log->fd < 0 ? open_file(log) : 0;
    if (rc == 0 && log->file_bytes > 0 && log->file_bytes + length > log->file_bytes_max)
        rc = rotate(log);
    return rc == 0 ? write_whole(log, length) : rc;
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* Writes the filled buffer, without holding the lock meanwhile. */
static void write_filled(struct tierce__access_log *log)
{
    char *writing = log->filling;
    size_t length = log->filled;
    uint64_t lines = log->filled_lines;
    log->filling = log->writing;
    log->writing = writing;
    log->filled = 0;
    log->filled_lines = 0;
    tierce__lock_drop(&log->lock);
    int rc = write_lines(log, length);
    if (rc < 0 && !log->failing)
        tierce__log(TIERCE_LOG_WARN, "access_log_not_written",
                    "path=\"%s\" reason=\"%s\" consequence=\"lines are dropped and counted\"",
                    log->path, tierce_strerror(rc));
    log->failing = rc < 0;
    tierce__lock_take(&log->lock);
    if (rc < 0)
        log->dropped += lines;
}

static void *run_writer(void *arg)
{
    struct tierce__access_log *log = arg;
    tierce__lock_take(&log->lock);
    while (!log->closing || log->filled > 0) {
        if (!log->closing && log->filled < log->buffer_bytes / 2)
            tierce__cond_wait(&log->changed, &log->lock, tierce__deadline_in_ms(WRITE_MS));
        if (log->filled > 0)
            write_filled(log);
    }
    tierce__lock_drop(&log->lock);
    return NULL;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void put_id(char out[ID_DIGITS], const uint8_t *hash)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < ID_DIGITS / 2; i++) {
        out[2 * i] = digits[hash[i] >> 4];
        out[2 * i + 1] = digits[hash[i] & 15];
    }
}

/* A writer for members of the line, which was begun. */
static struct tierce__json_write go_on(struct tierce__access_line *line)
{
    return (struct tierce__json_write){.line = &line->text, .depth = 1, .comma = true};
}

static void count_dropped(struct tierce__access_log *log)
{
    tierce__lock_take(&log->lock);
    log->lines++;
    log->dropped++;
    tierce__lock_drop(&log->lock);
}

void tierce__access_begin(struct tierce__access_log *log, struct tierce__access_line *line,
                          const char *op, const struct tierce__access_what *what)
{
    *line = (struct tierce__access_line){0};
    if (log == NULL)
        return;
    size_t ids_bytes = (size_t)what->count * ID_DIGITS;
    size_t room = HEAD_BYTES + ids_bytes + TAIL_BYTES;
    if (room > log->buffer_bytes || (line->text.text = tierce__alloc(room)) == NULL) {
        count_dropped(log);
        return;
    }
    line->text.room = line->text.bytes_max = room;
    char id[ID_DIGITS + 1] = "";
    struct tierce__json_write json = {.line = &line->text};
    put_id(id, what->ns_digest);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_count(&json, "tierce_access", 1);
    tierce__json_write_count(&json, "time_us", tierce__wall_us());
    tierce__json_write_text(&json, "op", op);
    tierce__json_write_text(&json, "namespace", id);
    tierce__json_write_count(&json, "block_tokens", what->block_tokens);
    if (what->request != 0)
        tierce__json_write_count(&json, "request", what->request);
    if (what->held > 0)
        tierce__json_write_count(&json, "held",
                                 what->held < what->count ? what->held : what->count);
    tierce__json_write_name(&json, "blocks");
    tierce__line_put(&line->text, "\"");
    TIERCE_ASSERT(ids_bytes < line->text.room - line->text.bytes);
    for (uint64_t i = 0; i < what->count; i++)
        put_id(line->text.text + line->text.bytes + i * ID_DIGITS,
               what->hashes + i * TIERCE_HASH_BYTES);
    line->text.bytes += ids_bytes;
    tierce__line_put(&line->text, "\"");
}

void tierce__access_tag(struct tierce__access_line *line, const char *tag)
{
    char plain[TIERCE_TAG_BYTES_MAX + 1];
    size_t n = 0;
    if (line->text.text == NULL || tag == NULL)
        return;
    for (; n < TIERCE_TAG_BYTES_MAX && tag[n] != '\0'; n++) {
        bool bad = tag[n] < ' ' || tag[n] > '~' || tag[n] == '"' || tag[n] == '\\';
        plain[n] = bad ? '_' : tag[n];
    }
    plain[n] = '\0';
    struct tierce__json_write json = go_on(line);
    tierce__json_write_text(&json, "tag", plain);
}

void tierce__access_end(struct tierce__access_log *log, struct tierce__access_line *line,
                        const struct tierce__access_tier *tiers, size_t tier_count)
{
    struct tierce__json_write json = go_on(line);
    if (line->text.text == NULL)
        return;
    TIERCE_ASSERT(tier_count <= TIERS_MAX);
    tierce__json_write_open(&json, "tiers", '{');
    for (size_t i = 0; i < tier_count; i++)
        tierce__json_write_count(&json, tiers[i].name, tiers[i].blocks);
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
    tierce__line_put(&line->text, "\n");
    TIERCE_ASSERT(!line->text.failed);
    tierce__lock_take(&log->lock);
    log->lines++;
    if (line->text.bytes <= log->buffer_bytes - log->filled) {
        memcpy(log->filling + log->filled, line->text.text, line->text.bytes);
        log->filled += line->text.bytes;
        log->filled_lines++;
    } else {
        log->dropped++;
    }
    if (log->filled >= log->buffer_bytes / 2)
        tierce__cond_signal(&log->changed);
    tierce__lock_drop(&log->lock);
    tierce__access_drop(line);
}

void tierce__access_drop(struct tierce__access_line *line)
{
    tierce__line_clear(&line->text);
}

void tierce__access_counts(struct tierce__access_log *log, uint64_t *lines, uint64_t *dropped)
{
    *lines = *dropped = 0;
    if (log == NULL)
        return;
    TIERCE_CHECK_MAGIC(log, LOG_MAGIC);
    tierce__lock_take(&log->lock);
    *lines = log->lines;
    *dropped = log->dropped;
    tierce__lock_drop(&log->lock);
}

/* ---- open, close ----------------------------------------------------------------------------- */

static void free_log(struct tierce__access_log *log)
{
    if (log->fd >= 0)
        close(log->fd);
    tierce__cond_fini(&log->changed);
    tierce__lock_fini(&log->lock);
    tierce__free(log->filling);
    tierce__free(log->writing);
    tierce__free(log->path);
    tierce__free(log->old_path);
    log->magic = 0;
    tierce__free(log);
}

int tierce__access_open(struct tierce__access_log **out, const char *path, uint64_t bytes_max)
{
    char old_path[PATH_MAX];
    if (snprintf(old_path, sizeof(old_path), "%s.1", path) >= (int)sizeof(old_path))
        return -ENAMETOOLONG;
    struct tierce__access_log *log = tierce__calloc(1, sizeof(*log));
    if (log == NULL)
        return -ENOMEM;
    log->magic = LOG_MAGIC;
    log->fd = -1;
    log->file_bytes_max = bytes_max / 2;
    log->buffer_bytes = bytes_max / 2 < BUFFER_MAX ? (size_t)bytes_max / 2 : BUFFER_MAX;
    tierce__lock_init(&log->lock, TIERCE__LOCK_ACCESS_LOG);
    tierce__cond_init(&log->changed);
    log->path = tierce__strdup(path);
    log->old_path = tierce__strdup(old_path);
    log->filling = tierce__alloc(log->buffer_bytes);
    log->writing = tierce__alloc(log->buffer_bytes);
    int rc =
        log->path == NULL || log->old_path == NULL || log->filling == NULL || log->writing == NULL
            ? -ENOMEM
            : open_file(log);
    if (rc == 0)
        rc = -pthread_create(&log->writer, NULL, run_writer, log);
    if (rc < 0) {
        free_log(log);
        return rc;
    }
    *out = log;
    return 0;
}

void tierce__access_close(struct tierce__access_log *log)
{
    if (log == NULL)
        return;
    TIERCE_CHECK_MAGIC(log, LOG_MAGIC);
    tierce__lock_take(&log->lock);
    log->closing = true;
    tierce__cond_broadcast(&log->changed);
    tierce__lock_drop(&log->lock);
    pthread_join(log->writer, NULL);
    free_log(log);
}
