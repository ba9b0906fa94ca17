/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "core/key/fingerprint_model.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES           (1u << 20)
#define READERS_MAX          8u
#define PROGRESS_INTERVAL_NS (100 * TIERCE__MS_NS)
#define RETRY_NS             (10 * TIERCE__MS_NS) /* of a lock that another process holds */

/* Another process may be stopped in the middle of a file. */
#define PATIENCE_NS(bytes) (1000 * TIERCE__MS_NS + 20 * (bytes)) /* 50 MB/s */

/* The files that have no digest yet. The lock guards all that changes. */
struct reading {
    struct tierce__weights *model;
    int locks_fd; /* of the cache, see tierce__fingerprint_cache_lock; -1: none */
    pthread_t caller;
    struct tierce__lock lock;
    struct tierce__cond changed;
    size_t *queue;       /* [queued] file numbers, in the order in which they are taken */
    size_t next, queued; /* [next, queued): not taken. Those put back are behind first_round */
    size_t first_round;
    uint32_t readers; /* that run */
    int rc;           /* the first error: the others stop */
    uint64_t done_bytes, total_bytes;
    uint64_t reported_ns, reported_bytes; /* only the caller's thread reports */
};

/* ---- progress -------------------------------------------------------------------------------- */

static void report(struct reading *reading)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    const struct tierce_fingerprint_opts *opts = reading->model->opts;
    if (opts == NULL || opts->progress == NULL || !pthread_equal(pthread_self(), reading->caller))
        return;
    tierce__lock_take(&reading->lock);
    uint64_t done = reading->done_bytes;
    tierce__lock_drop(&reading->lock);
    uint64_t now = tierce__now_ns();
    if (done == reading->reported_bytes ||
        (done < reading->total_bytes && now - reading->reported_ns < PROGRESS_INTERVAL_NS))
        return;
    reading->reported_ns = now;
    reading->reported_bytes = done;
    opts->progress(opts->progress_arg, done, reading->total_bytes);
}

static void add_done(struct reading *reading, uint64_t bytes)
{
    tierce__lock_take(&reading->lock);
    reading->done_bytes += bytes;
    TIERCE_DASSERT(reading->done_bytes <= reading->total_bytes);
    tierce__lock_drop(&reading->lock);
    report(reading);
}

static int error_of(struct reading *reading)
{
    tierce__lock_take(&reading->lock);
    int rc = reading->rc;
    tierce__lock_drop(&reading->lock);
    return rc;
}

/* ---- one file -------------------------------------------------------------------------------- */

static bool same_state(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Feeds exactly `size` bytes of `fd`; -EBUSY if it has more or fewer. */
static int hash_content(struct reading *reading, int fd, uint8_t *buffer, uint64_t size,
                        uint8_t digest[TIERCE_HASH_BYTES])
{
    struct tierce__sha256 sha;
    tierce__sha256_init(&sha);
    uint64_t left = size;
    for (;;) {
        ssize_t n = read(fd, buffer, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if ((uint64_t)n > left || (n == 0 && left > 0))
            return -EBUSY;
        if (n == 0)
            break;
        tierce__sha256_update(&sha, buffer, (size_t)n);
        left -= (uint64_t)n;
        add_done(reading, (uint64_t)n);
        int rc = error_of(reading);
        if (rc < 0)
            return rc;
    }
    TIERCE_DASSERT(left == 0);
    tierce__sha256_final(&sha, digest);
    return 0;
}

/* Whether a change after `read_at` must show in the times of the file. */
static bool is_settled(const struct tierce__weights *model, const struct stat *st,
                       struct timespec read_at)
{
    int64_t changed_s = st->st_ctim.tv_sec, read_s = read_at.tv_sec;
    if (changed_s > read_s)
        return false;
    if (read_s - changed_s > 3600)
        return true;
    int64_t age_ns = (read_s - changed_s) * 1000000000 + (read_at.tv_nsec - st->st_ctim.tv_nsec);
    return age_ns >= 0 && (uint64_t)age_ns >= model->settle_ns;
}

/* Reads one file that the cache does not know, and remembers its digest. A file that changes
 * while it is read has no fingerprint: -EBUSY. */
static int read_file(struct reading *reading, struct tierce__weights_file *file, uint8_t *buffer)
{
    TIERCE_DASSERT(!file->known);
    const struct tierce__weights *model = reading->model;
    int fd = openat(model->dir_fd, file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    struct stat st;
    struct timespec read_at;
    clock_gettime(CLOCK_REALTIME, &read_at);
    int rc = fstat(fd, &st) < 0 ? -errno : 0;
    if (rc == 0 && !same_state(&st, &file->st))
        rc = -EBUSY;
    if (rc == 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        rc = hash_content(reading, fd, buffer, (uint64_t)st.st_size, file->digest);
    }
    if (rc == 0 && fstat(fd, &st) < 0)
        rc = -errno;
    if (rc == 0 && !same_state(&st, &file->st))
        rc = -EBUSY;
    close(fd);
    if (rc == 0 && model->cache_fd >= 0 && is_settled(model, &st, read_at))
        tierce__fingerprint_cache_put(model->cache_fd, &st, file->digest);
    return rc;
}

/* ---- files that another process reads -------------------------------------------------------- */

/* Puts a file behind those that nobody has tried. */
static void put_back(struct reading *reading, size_t index)
{
    tierce__lock_take(&reading->lock);
    TIERCE_DASSERT(reading->queued < 2 * reading->first_round);
    reading->queue[reading->queued++] = index;
    tierce__lock_drop(&reading->lock);
}

/* Waits for another process's lock of a file, until an error of another reader or the end of its
 * patience. Returns whether it has the lock. */
static bool wait_for_lock(struct reading *reading, const struct stat *st)
{
    uint64_t deadline = tierce__now_ns() + PATIENCE_NS((uint64_t)st->st_size);
    bool locked = false;
    while (!(locked = tierce__fingerprint_cache_lock(reading->locks_fd, st)) &&
           tierce__now_ns() < deadline && error_of(reading) == 0) {
        tierce__lock_take(&reading->lock);
        (void)tierce__cond_wait(&reading->changed, &reading->lock, tierce__now_ns() + RETRY_NS);
        tierce__lock_drop(&reading->lock);
        report(reading);
    }
    return locked;
}

/* Another process may have read it since the list was made. */
static bool is_known_now(struct reading *reading, struct tierce__weights_file *file)
{
    TIERCE_DASSERT(!file->known);
    int cache_fd = reading->model->cache_fd;
    if (cache_fd < 0 || !tierce__fingerprint_cache_get(cache_fd, &file->st, file->digest))
        return false;
    add_done(reading, (uint64_t)file->st.st_size);
    return true;
}

/* ---- readers --------------------------------------------------------------------------------- */

/* Whether a file is left, and whether it was tried before. */
static bool take_next(struct reading *reading, size_t *index, bool *again)
{
    tierce__lock_take(&reading->lock);
    TIERCE_DASSERT(reading->next <= reading->queued && reading->queued <= 2 * reading->first_round);
    bool left = reading->rc == 0 && reading->next < reading->queued;
    if (left) {
        *again = reading->next >= reading->first_round;
        *index = reading->queue[reading->next++];
    }
    tierce__lock_drop(&reading->lock);
    return left;
}

static int read_one(struct reading *reading, size_t index, bool again, uint8_t *buffer)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__weights_file *file = &reading->model->files[index];
    bool has_lock =
        reading->locks_fd >= 0 && tierce__fingerprint_cache_lock(reading->locks_fd, &file->st);
    if (!has_lock && reading->locks_fd >= 0) {
        if (!again) {
            put_back(reading, index);
            return 0;
        }
        has_lock = wait_for_lock(reading, &file->st);
    }
    int rc = error_of(reading);
    if (rc == 0 && !is_known_now(reading, file))
        rc = read_file(reading, file, buffer);
    file->known = rc == 0;
    if (has_lock)
        tierce__fingerprint_cache_unlock(reading->locks_fd, &file->st);
    return rc;
}

static void end_reader(struct reading *reading, int rc)
{
    tierce__lock_take(&reading->lock);
    reading->rc = reading->rc == 0 ? rc : reading->rc;
    TIERCE_DASSERT(reading->readers > 0);
    reading->readers--;
    tierce__cond_broadcast(&reading->changed);
    tierce__lock_drop(&reading->lock);
}

static void *run_reader(void *arg)
{
    struct reading *reading = arg;
    uint8_t *buffer = tierce__alloc(READ_BYTES);
    size_t index;
    bool again;
    int rc = buffer != NULL ? 0 : -ENOMEM;
    while (rc == 0 && take_next(reading, &index, &again))
        rc = read_one(reading, index, again, buffer);
    tierce__free(buffer);
    end_reader(reading, rc);
    return NULL;
}

/* The caller's thread has no file left, and reports while others read. */
static void wait_for_readers(struct reading *reading)
{
    bool running = true;
    while (running) {
        tierce__lock_take(&reading->lock);
        if (reading->readers > 0)
            (void)tierce__cond_wait(&reading->changed, &reading->lock,
                                    tierce__now_ns() + PROGRESS_INTERVAL_NS);
        running = reading->readers > 0;
        tierce__lock_drop(&reading->lock);
        report(reading);
    }
}

static int run_readers(struct reading *reading)
{
    struct tierce__threads threads = {0};
    uint32_t count = tierce__processors();
    count = count < READERS_MAX ? count : READERS_MAX;
    count = count < reading->queued ? count : (uint32_t)reading->queued;
    TIERCE_DASSERT(count > 0);
    reading->readers = count;
    int rc = tierce__threads_start(&threads, count - 1, run_reader, reading);
    tierce__lock_take(&reading->lock);
    reading->rc = reading->rc == 0 ? rc : reading->rc;
    reading->readers -= count - 1 - threads.count;
    tierce__lock_drop(&reading->lock);
    (void)run_reader(reading);
    wait_for_readers(reading);
    tierce__threads_join(&threads);
    if (reading->rc == 0) {
        TIERCE_ASSERT(reading->next == reading->queued);
        TIERCE_ASSERT(reading->done_bytes == reading->total_bytes);
    }
    return reading->rc;
}

/* ---- all files ------------------------------------------------------------------------------- */

static void queue_unknown(struct reading *reading)
{
    struct tierce__weights *model = reading->model;
    for (size_t i = 0; i < model->file_count; i++) {
        struct tierce__weights_file *file = &model->files[i];
        file->known = model->cache_fd >= 0 &&
                      tierce__fingerprint_cache_get(model->cache_fd, &file->st, file->digest);
        if (file->known)
            continue;
        reading->total_bytes += (uint64_t)file->st.st_size;
        reading->queue[reading->queued++] = i;
    }
    reading->first_round = reading->queued;
}

int tierce__weights_read(struct tierce__weights *model)
{
    struct reading reading = {.model = model, .locks_fd = -1, .caller = pthread_self()};
    int rc = 0;
    TIERCE_DASSERT(model->file_count > 0);
    reading.queue = tierce__calloc(2 * model->file_count, sizeof(*reading.queue));
    if (reading.queue == NULL)
        return -ENOMEM;
    tierce__lock_init(&reading.lock, TIERCE__LOCK_FINGERPRINT);
    tierce__cond_init(&reading.changed);
    queue_unknown(&reading);
    if (reading.queued > 0) {
        if (model->cache_fd >= 0)
            reading.locks_fd = tierce__fingerprint_cache_open_locks(model->cache_fd);
        rc = run_readers(&reading);
        if (reading.locks_fd >= 0)
            close(reading.locks_fd);
    }
    tierce__cond_fini(&reading.changed);
    tierce__lock_fini(&reading.lock);
    tierce__free(reading.queue);
    return rc;
}
