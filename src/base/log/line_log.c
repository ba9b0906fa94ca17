/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/line_log.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct subscriber {
    struct tierce__list node;
    tierce__line_log_fn each;
    void *arg;
};

/* Whole lines, in memory of opts.queue_bytes_max. */
struct line_log_batch {
    char *text;
    size_t bytes;
    uint64_t lines;
};

struct tierce__line_log {
    struct tierce__line_log_opts opts;
    char *path;
    size_t wake_bytes;        /* as many queued bytes wake the thread */
    struct tierce__lock lock; /* LINE_LOG: guards the fields below */
    struct tierce__cond wake;
    struct line_log_batch queue;
    uint64_t lines, dropped;
    bool is_ending, ends_subscribers;
    struct tierce__list coming; /* subscribers that the thread has not added yet */
    _Atomic uint32_t readers;   /* a file, and subscribers */
    /* Used by the thread only. */
    pthread_t thread;
    struct line_log_batch batch; /* what it writes */
    int fd;
    uint64_t file_bytes;
    bool is_failing; /* and has logged it */
    struct tierce__list subscribers;
};

/* ---- the file -------------------------------------------------------------------------------- */

/* Makes sure that an open file is of this log alone; *bytes: its size. */
static int own_file(int fd, uint64_t *bytes)
{
    struct stat st;
    char last = '\n';
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -EINVAL;
    if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0 && fchmod(fd, S_IRUSR | S_IWUSR) != 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return -EBUSY;
    if (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1)
        return -EIO;
    if (last != '\n' && write(fd, "\n", 1) != 1)
        return -errno;
    *bytes = (uint64_t)st.st_size + (last != '\n');
    return 0;
}

static int open_file(struct tierce__line_log *log)
{
    struct stat st;
    int flags = log->opts.is_alone ? O_RDWR | O_NOFOLLOW | O_NONBLOCK : O_WRONLY;
    TIERCE_DASSERT(log->fd < 0);
    int fd = open(log->path, flags | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return -errno;
    int rc = log->opts.is_alone ? own_file(fd, &log->file_bytes) : 0;
    if (!log->opts.is_alone)
        log->file_bytes = fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    if (rc == 0)
        log->fd = fd;
    else
        close(fd);
    return rc;
}

/* x.log.3 becomes x.log.4, ... x.log becomes x.log.1. */
static int rotate(struct tierce__line_log *log)
{
    char from[PATH_MAX], to[PATH_MAX];
    TIERCE_DASSERT(log->opts.files > 0);
    for (uint32_t i = log->opts.files; i > 1; i--) {
        snprintf(from, sizeof(from), "%s.%" PRIu32, log->path, i - 1);
        snprintf(to, sizeof(to), "%s.%" PRIu32, log->path, i);
        (void)rename(from, to); /* there may be fewer */
    }
    snprintf(to, sizeof(to), "%s.1", log->path);
    if (rename(log->path, to) != 0 && errno != ENOENT) /* moved by somebody: a new file */
        return -errno;
    close(log->fd);
    log->fd = -1;
    return open_file(log);
}

/* Writes all of the batch, or truncates the part that was written, unless another process may write
 * to the file too. */
static int write_whole(struct tierce__line_log *log)
{
    const struct line_log_batch *batch = &log->batch;
    TIERCE_DASSERT(log->fd >= 0);
    for (size_t done = 0; done < batch->bytes;) {
        ssize_t n = write(log->fd, batch->text + done, batch->bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int rc = n < 0 ? -errno : -EIO;
            bool cuts = done > 0 && log->opts.is_alone;
            return cuts && ftruncate(log->fd, (off_t)log->file_bytes) != 0 ? -errno : rc;
        }
        done += (size_t)n;
    }
    log->file_bytes += batch->bytes;
    return 0;
}

static int write_batch(struct tierce__line_log *log)
{
    if (log->path == NULL || log->batch.bytes == 0)
        return 0;
    TIERCE_DASSERT(log->batch.text[log->batch.bytes - 1] == '\n');
    int rc = log->fd < 0 ? open_file(log) : 0;
    if (rc == 0 && log->file_bytes > 0 &&
        log->file_bytes + log->batch.bytes > log->opts.file_bytes_max)
        rc = rotate(log);
    if (rc == 0)
        rc = write_whole(log);
    if (rc < 0 && !log->is_failing)
        tierce__log(TIERCE_LOG_WARN, log->opts.failure,
                    "path=\"%s\" reason=\"%s\" consequence=\"lines are dropped and counted\"",
                    log->path, tierce_strerror(rc));
    log->is_failing = rc < 0;
    return rc;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void tell_subscribers(struct tierce__line_log *log, const char *lines, size_t bytes)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &log->subscribers) {
        struct subscriber *subscriber = TIERCE__CONTAINER_OF(it, struct subscriber, node);
        if (subscriber->each(subscriber->arg, lines, bytes))
            continue;
        TIERCE_DASSERT(atomic_load_explicit(&log->readers, memory_order_relaxed) > 0);
        tierce__list_remove(&subscriber->node);
        tierce__free(subscriber);
        atomic_fetch_sub_explicit(&log->readers, 1, memory_order_relaxed);
    }
}

static void take_subscribers(struct tierce__line_log *log)
{
    while (!tierce__list_empty(&log->coming)) {
        struct tierce__list *node = log->coming.next;
        tierce__list_remove(node);
        tierce__list_push_back(&log->subscribers, node);
    }
}

static void end_subscribers(struct tierce__line_log *log)
{
    while (!tierce__list_empty(&log->subscribers)) {
        struct subscriber *subscriber =
            TIERCE__CONTAINER_OF(log->subscribers.next, struct subscriber, node);
        tierce__list_remove(&subscriber->node);
        TIERCE_DASSERT(atomic_load_explicit(&log->readers, memory_order_relaxed) > 0);
        (void)subscriber->each(subscriber->arg, NULL, 0); /* the log has ended */
        tierce__free(subscriber);
        atomic_fetch_sub_explicit(&log->readers, 1, memory_order_relaxed);
    }
}

/* Writes what was queued and passes it to subscribers, which are called periodically with no bytes,
 * to detect those that are gone. The lock is held, but not meanwhile. */
static void hand_on(struct tierce__line_log *log)
{
    tierce__lock_assert_held(&log->lock);
    struct line_log_batch full = log->queue;
    TIERCE_DASSERT(full.bytes <= log->opts.queue_bytes_max);
    log->queue = (struct line_log_batch){.text = log->batch.text};
    log->batch = full;
    bool ends = log->ends_subscribers;
    take_subscribers(log);
    tierce__lock_drop(&log->lock);
    int rc = write_batch(log);
    tell_subscribers(log, full.text, full.bytes);
    if (ends)
        end_subscribers(log);
    tierce__lock_take(&log->lock);
    if (rc < 0)
        log->dropped += full.lines;
}

static void *run(void *arg)
{
    enum { ASK_MS = 1000 };
    struct tierce__line_log *log = arg;
    uint32_t wait_ms = log->opts.wait_ms > 0 ? log->opts.wait_ms : ASK_MS;
    tierce__lock_take(&log->lock);
    while (!log->is_ending || log->queue.bytes > 0) {
        if (!log->is_ending && log->queue.bytes < log->wake_bytes)
            (void)tierce__cond_wait(&log->wake, &log->lock, tierce__deadline_in_ms(wait_ms));
        hand_on(log);
    }
    tierce__lock_drop(&log->lock);
    return NULL;
}

/* ---- open, close ----------------------------------------------------------------------------- */

static void free_log(struct tierce__line_log *log)
{
    if (log->fd >= 0)
        close(log->fd);
    tierce__cond_fini(&log->wake);
    tierce__lock_fini(&log->lock);
    tierce__free(log->queue.text);
    tierce__free(log->batch.text);
    tierce__free(log->path);
    tierce__free(log);
}

static int open_parts(struct tierce__line_log *log, const char *path)
{
    TIERCE_DASSERT(log->fd < 0);
    enum { SUFFIX_BYTES = 12 };
    log->queue.text = tierce__alloc(log->opts.queue_bytes_max);
    log->batch.text = tierce__alloc(log->opts.queue_bytes_max);
    if (log->queue.text == NULL || log->batch.text == NULL)
        return -ENOMEM;
    if (path == NULL)
        return 0;
    if (strlen(path) + SUFFIX_BYTES > PATH_MAX)
        return -ENAMETOOLONG;
    atomic_store_explicit(&log->readers, 1, memory_order_relaxed);
    log->path = tierce__strdup(path);
    return log->path != NULL ? open_file(log) : -ENOMEM;
}

int tierce__line_log_open(struct tierce__line_log **out, const struct tierce__line_log_opts *opts,
                          char why[256])
{
    enum { FILE_MIB = 256, QUEUE_MIB = 8, FILES = 4 };
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    TIERCE_DASSERT(opts->path == NULL || opts->failure != NULL);
    struct tierce__line_log *log = tierce__calloc(1, sizeof(*log));
    if (log == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    log->opts = *opts;
    if (opts->file_bytes_max == 0)
        log->opts.file_bytes_max = (uint64_t)FILE_MIB << 20;
    if (opts->queue_bytes_max == 0)
        log->opts.queue_bytes_max = (uint64_t)QUEUE_MIB << 20;
    if (opts->files == 0)
        log->opts.files = FILES;
    log->wake_bytes = opts->wait_ms > 0 ? log->opts.queue_bytes_max / 2 : 1;
    log->fd = -1;
    tierce__lock_init(&log->lock, TIERCE__LOCK_LINE_LOG);
    tierce__cond_init(&log->wake);
    tierce__list_init(&log->coming);
    tierce__list_init(&log->subscribers);
    int rc = open_parts(log, opts->path);
    if (rc == 0)
        rc = -pthread_create(&log->thread, NULL, run, log);
    if (rc == 0) {
        *out = log;
        return 0;
    }
    snprintf(why, 256, "%.160s cannot be written: %s", opts->path != NULL ? opts->path : "a log",
             tierce_strerror(rc));
    free_log(log);
    return rc;
}

void tierce__line_log_close(struct tierce__line_log *log)
{
    if (log == NULL)
        return;
    tierce__lock_take(&log->lock);
    TIERCE_ASSERT(!log->is_ending);
    log->is_ending = true;
    tierce__cond_signal(&log->wake);
    tierce__lock_drop(&log->lock);
    pthread_join(log->thread, NULL);
    take_subscribers(log);
    end_subscribers(log);
    free_log(log);
}

/* ---- adding ---------------------------------------------------------------------------------- */

bool tierce__line_log_is_read(const struct tierce__line_log *log)
{
    return log != NULL && atomic_load_explicit(&log->readers, memory_order_relaxed) > 0;
}

/* Queues a line, or drops it if it does not fit or there is none. */
static bool add(struct tierce__line_log *log, const char *text, size_t bytes)
{
    struct line_log_batch *queue = &log->queue;
    tierce__lock_take(&log->lock);
    TIERCE_DASSERT(queue->bytes <= log->opts.queue_bytes_max);
    bool fits = text != NULL && bytes <= log->opts.queue_bytes_max - queue->bytes;
    if (fits) {
        memcpy(queue->text + queue->bytes, text, bytes);
        queue->bytes += bytes;
        queue->lines++;
    }
    log->lines++;
    log->dropped += !fits;
    if (queue->bytes >= log->wake_bytes)
        tierce__cond_signal(&log->wake);
    tierce__lock_drop(&log->lock);
    return fits;
}

bool tierce__line_log_add(struct tierce__line_log *log, const char *text, size_t bytes)
{
    TIERCE_DASSERT(bytes > 0);
    TIERCE_DASSERT(text[bytes - 1] == '\n');
    return tierce__line_log_is_read(log) && add(log, text, bytes);
}

void tierce__line_end(struct tierce__line *line, struct tierce__line_log *log)
{
    tierce__line_put_bytes(line, "\n", 1);
    if (tierce__line_log_is_read(log))
        (void)add(log, line->failed ? NULL : line->text, line->bytes);
    tierce__line_clear(line);
}

int tierce__line_log_subscribe(struct tierce__line_log *log, tierce__line_log_fn each, void *arg)
{
    struct subscriber *subscriber = tierce__alloc(sizeof(*subscriber));
    if (subscriber == NULL)
        return -ENOMEM;
    *subscriber = (struct subscriber){.each = each, .arg = arg};
    tierce__lock_take(&log->lock);
    TIERCE_DASSERT(!log->is_ending);
    tierce__list_push_back(&log->coming, &subscriber->node);
    atomic_fetch_add_explicit(&log->readers, 1, memory_order_relaxed);
    tierce__lock_drop(&log->lock);
    return 0;
}

void tierce__line_log_end_subscribers(struct tierce__line_log *log)
{
    if (log == NULL)
        return;
    tierce__lock_take(&log->lock);
    log->ends_subscribers = true;
    tierce__cond_signal(&log->wake);
    tierce__lock_drop(&log->lock);
}

void tierce__line_log_counts(struct tierce__line_log *log, uint64_t *lines, uint64_t *dropped)
{
    *lines = *dropped = 0;
    if (log == NULL)
        return;
    tierce__lock_take(&log->lock);
    TIERCE_DASSERT(log->dropped <= log->lines);
    *lines = log->lines;
    *dropped = log->dropped;
    tierce__lock_drop(&log->lock);
}
