/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/line_log.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct subscriber {
    struct tierce__list node;
    tierce__line_log_fn each;
    void *arg;
};

struct tierce__line_log {
    struct tierce__line_log_opts opts;
    char *path;
    struct tierce__lock lock; /* LINE_LOG: guards the fields below */
    struct tierce__cond wake;
    char *queue;
    size_t queued, queue_room;
    uint64_t lines, dropped;
    bool is_ending, ends_subscribers;
    struct tierce__list coming; /* subscribers that the thread has not added yet */
    _Atomic uint32_t readers;   /* a file, and subscribers */
    /* Used by the thread only. */
    pthread_t thread;
    int fd;
    uint64_t file_bytes;
    struct tierce__list subscribers;
};

/* ---- the file -------------------------------------------------------------------------------- */

static int open_file(struct tierce__line_log *log)
{
    struct stat info;
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log->fd < 0)
        return -errno;
    log->file_bytes = fstat(log->fd, &info) == 0 ? (uint64_t)info.st_size : 0;
    return 0;
}

/* x.log.3 becomes x.log.4, ... x.log becomes x.log.1; the oldest is overwritten. */
static void turn_over(struct tierce__line_log *log)
{
    char from[4096], to[4096];
    close(log->fd);
    log->fd = -1;
    for (uint32_t i = log->opts.files; i > 0; i--) {
        if (i > 1)
            snprintf(from, sizeof(from), "%s.%" PRIu32, log->path, i - 1);
        else
            snprintf(from, sizeof(from), "%s", log->path);
        snprintf(to, sizeof(to), "%s.%" PRIu32, log->path, i);
        (void)rename(from, to);
    }
    int rc = open_file(log);
    if (rc < 0)
        tierce__log(TIERCE_LOG_ERROR, "manager.log_lost", "path=%s error=%s", log->path,
                    tierce_error_name(rc));
}

/* If the disk is full, the lines are lost; nothing else fails. */
static void write_file(struct tierce__line_log *log, const char *text, size_t bytes)
{
    if (log->fd < 0)
        return;
    while (bytes > 0) {
        ssize_t written = write(log->fd, text, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return;
        text += written;
        bytes -= (size_t)written;
        log->file_bytes += (uint64_t)written;
    }
    if (log->file_bytes >= log->opts.file_bytes_max)
        turn_over(log);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void tell_subscribers(struct tierce__line_log *log, const char *lines, size_t bytes)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &log->subscribers) {
        struct subscriber *subscriber = TIERCE__CONTAINER_OF(it, struct subscriber, node);
        if (subscriber->each(subscriber->arg, lines, bytes))
            continue;
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
        (void)subscriber->each(subscriber->arg, NULL, 0); /* the log has ended */
        tierce__free(subscriber);
        atomic_fetch_sub_explicit(&log->readers, 1, memory_order_relaxed);
    }
}

/* Subscribers are called periodically with no bytes, to detect those that are gone. */
static void *run(void *arg)
{
    enum { ASK_MS = 1000 };
    struct tierce__line_log *log = arg;
    char *batch = NULL;
    size_t room = 0;
    static const char nothing[1];
    tierce__lock_take(&log->lock);
    while (!log->is_ending || log->queued > 0) {
        if (log->queued == 0)
            (void)tierce__cond_wait(&log->wake, &log->lock, tierce__deadline_in_ms(ASK_MS));
        char *full = log->queue;
        size_t bytes = log->queued, full_room = log->queue_room;
        log->queue = batch;
        log->queue_room = room;
        log->queued = 0;
        bool ends = log->ends_subscribers;
        take_subscribers(log);
        tierce__lock_drop(&log->lock);
        if (bytes > 0)
            write_file(log, full, bytes);
        tell_subscribers(log, bytes > 0 ? full : nothing, bytes);
        if (ends)
            end_subscribers(log);
        batch = full;
        room = full_room;
        tierce__lock_take(&log->lock);
    }
    tierce__lock_drop(&log->lock);
    tierce__free(batch);
    return NULL;
}

int tierce__line_log_open(struct tierce__line_log **out, const struct tierce__line_log_opts *opts,
                          char why[256])
{
    enum { FILE_MIB = 256, QUEUE_MIB = 8, FILES = 4 };
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__line_log *log = tierce__calloc(1, sizeof(*log));
    if (log == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    log->opts = *opts;
    log->opts.file_bytes_max =
        opts->file_bytes_max > 0 ? opts->file_bytes_max : (uint64_t)FILE_MIB << 20;
    log->opts.queue_bytes_max =
        opts->queue_bytes_max > 0 ? opts->queue_bytes_max : (uint64_t)QUEUE_MIB << 20;
    log->opts.files = opts->files > 0 ? opts->files : FILES;
    log->fd = -1;
    tierce__lock_init(&log->lock, TIERCE__LOCK_LINE_LOG);
    tierce__cond_init(&log->wake);
    tierce__list_init(&log->coming);
    tierce__list_init(&log->subscribers);
    int rc = 0;
    if (opts->path != NULL) {
        atomic_store(&log->readers, 1);
        log->path = tierce__strdup(opts->path);
        rc = log->path != NULL ? open_file(log) : -ENOMEM;
    }
    if (rc == 0)
        rc = -pthread_create(&log->thread, NULL, run, log);
    if (rc == 0) {
        *out = log;
        return 0;
    }
    snprintf(why, 256, "%.160s cannot be written: %s", opts->path != NULL ? opts->path : "a log",
             tierce_strerror(rc));
    if (log->fd >= 0)
        close(log->fd);
    tierce__cond_fini(&log->wake);
    tierce__lock_fini(&log->lock);
    tierce__free(log->path);
    tierce__free(log);
    return rc;
}

void tierce__line_log_close(struct tierce__line_log *log)
{
    if (log == NULL)
        return;
    tierce__lock_take(&log->lock);
    log->is_ending = true;
    tierce__cond_signal(&log->wake);
    tierce__lock_drop(&log->lock);
    pthread_join(log->thread, NULL);
    take_subscribers(log);
    end_subscribers(log);
    if (log->fd >= 0)
        close(log->fd);
    tierce__cond_fini(&log->wake);
    tierce__lock_fini(&log->lock);
    tierce__free(log->queue);
    tierce__free(log->path);
    tierce__free(log);
}

/* ---- adding ---------------------------------------------------------------------------------- */

bool tierce__line_log_is_read(const struct tierce__line_log *log)
{
    return log != NULL && atomic_load_explicit(&log->readers, memory_order_relaxed) > 0;
}

static bool make_room(struct tierce__line_log *log, size_t bytes)
{
    if (bytes > log->opts.queue_bytes_max || log->queued > log->opts.queue_bytes_max - bytes)
        return false;
    if (log->queue_room - log->queued >= bytes)
        return true;
    size_t room = (log->queued + bytes) * 2;
    char *grown = tierce__realloc(log->queue, room);
    if (grown == NULL)
        return false;
    log->queue = grown;
    log->queue_room = room;
    return true;
}

bool tierce__line_log_add(struct tierce__line_log *log, const char *text, size_t bytes)
{
    if (!tierce__line_log_is_read(log))
        return false;
    tierce__lock_take(&log->lock);
    bool fits = make_room(log, bytes);
    if (fits) {
        memcpy(log->queue + log->queued, text, bytes);
        log->queued += bytes;
        log->lines++;
        tierce__cond_signal(&log->wake);
    } else {
        log->dropped++;
    }
    tierce__lock_drop(&log->lock);
    return fits;
}

int tierce__line_log_subscribe(struct tierce__line_log *log, tierce__line_log_fn each, void *arg)
{
    struct subscriber *subscriber = tierce__alloc(sizeof(*subscriber));
    if (subscriber == NULL)
        return -ENOMEM;
    *subscriber = (struct subscriber){.each = each, .arg = arg};
    tierce__lock_take(&log->lock);
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
    tierce__lock_take(&log->lock);
    *lines = log->lines;
    *dropped = log->dropped;
    tierce__lock_drop(&log->lock);
}

void tierce__line_end(struct tierce__line *line, struct tierce__line_log *log)
{
    tierce__line_put_bytes(line, "\n", 1);
    if (!line->failed)
        (void)tierce__line_log_add(log, line->text, line->bytes);
    tierce__line_clear(line);
}
