/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeping: deletes abandoned temporary files and, with a cap, the least recently used objects. It
 * takes two walks over the folder and no memory per file: the first adds up bytes by age, the
 * second deletes files above the computed age. Ages use the clock of the file server, taken from a
 * file that was just written.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log.h"
#include "base/log/log_repeat.h"
#include "store/remote/file/file_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS         32u           /* of ages, for each power of two of milliseconds */
#define AGES          (60u * STEPS) /* the first 64 ms are exact */
#define CLAIM_FORMAT  "bytes %" PRIu64 " seed %s count %" PRIu64 "\n"
#define CLAIM_BYTES   256u
#define GAP_MS        1000u /* between two sweeps of one process */
#define CLOSE_WAIT_MS 1000u

struct file_sweep {
    struct tierce__file_store *store;
    uint32_t levels;
    uint64_t now_ms; /* by the clock of the files */
    uint64_t bytes;  /* of objects */
    uint64_t by_age[AGES];
    uint32_t old; /* objects older than this are deleted, and objects of exactly this age while
                     `rest` lasts */
    uint64_t rest;
};

/* ---- ages ------------------------------------------------------------------------------------ */

static uint64_t ms_of(const struct timespec *time)
{
    return time->tv_sec < 0 ? 0 : (uint64_t)time->tv_sec * 1000 + (uint64_t)time->tv_nsec / 1000000;
}

/* Which of the ages: within a 32nd of it. */
static uint32_t age_index(uint64_t age_ms)
{
    if (age_ms < 2 * STEPS)
        return (uint32_t)age_ms;
    uint32_t power = 63u - (uint32_t)__builtin_clzll(age_ms);
    uint64_t step = (age_ms >> (power - 5)) & (STEPS - 1);
    return (power - 4) * STEPS + (uint32_t)step;
}

static uint64_t last_use_ms(const struct stat *st)
{
    uint64_t written = ms_of(&st->st_mtim), used = ms_of(&st->st_atim);
    return used > written ? used : written;
}

static uint64_t bytes_of(const struct stat *st)
{
    return tierce__round_up((uint64_t)st->st_size, TIERCE__FILE_BLOCK_BYTES);
}

static uint64_t age_ms(const struct file_sweep *sweep, uint64_t time_ms)
{
    return sweep->now_ms > time_ms ? sweep->now_ms - time_ms : 0;
}

/* ---- the two walks --------------------------------------------------------------------------- */

static const char *base_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

static bool is_ending(const struct file_sweep *sweep)
{
    return atomic_load_explicit(&sweep->store->ending, memory_order_relaxed);
}

static int remove_file(const struct file_sweep *sweep, const char *path)
{
    int rc = sweep->store->vfs->ops->unlink(sweep->store->vfs, path);
    return rc == -ENOENT ? 0 : rc; /* another host was quicker */
}

/* 1: *st is of a file; 0: there is none any more; or why the sweep ends. */
static int look_at(const struct file_sweep *sweep, const char *path, struct stat *st)
{
    if (is_ending(sweep))
        return TIERCE_E_CLOSED;
    if (lstat(path, st) != 0)
        return errno == ENOENT ? 0 : -errno;
    return S_ISREG(st->st_mode) ? 1 : 0;
}

static int count_file(void *arg, const char *path, const char *relative)
{
    struct file_sweep *sweep = arg;
    struct stat st;
    bool is_temporary = tierce__file_is_temporary(base_of(path));
    if (!is_temporary && !tierce__file_is_object(relative, sweep->levels))
        return 0;
    int there = look_at(sweep, path, &st);
    if (there <= 0)
        return there;
    if (is_temporary) {
        if (age_ms(sweep, ms_of(&st.st_mtim)) >= sweep->store->tmp_ms)
            return remove_file(sweep, path);
        sweep->bytes += bytes_of(&st); /* it takes room as objects do */
        return 0;
    }
    uint32_t age = age_index(age_ms(sweep, last_use_ms(&st)));
    TIERCE_DASSERT(age < AGES);
    sweep->bytes += bytes_of(&st);
    sweep->by_age[age] += bytes_of(&st);
    TIERCE_DASSERT(sweep->bytes >= sweep->by_age[age]);
    return 0;
}

static int evict_file(void *arg, const char *path, const char *relative)
{
    struct file_sweep *sweep = arg;
    struct stat st;
    if (!tierce__file_is_object(relative, sweep->levels))
        return 0;
    int there = look_at(sweep, path, &st);
    if (there <= 0)
        return there;
    uint32_t age = age_index(age_ms(sweep, last_use_ms(&st)));
    TIERCE_DASSERT(age < AGES);
    if (age < sweep->old || (age == sweep->old && sweep->rest == 0))
        return 0;
    int rc = remove_file(sweep, path);
    if (rc == 0) {
        uint64_t bytes = bytes_of(&st);
        sweep->bytes -= bytes < sweep->bytes ? bytes : sweep->bytes;
        if (age == sweep->old)
            sweep->rest -= bytes < sweep->rest ? bytes : sweep->rest;
    }
    return rc;
}

/* How old is old enough to free `bytes`. */
static void choose_age(struct file_sweep *sweep, uint64_t bytes)
{
    TIERCE_DASSERT(bytes <= sweep->bytes);
    uint32_t age = AGES - 1;
    while (age > 0 && sweep->by_age[age] < bytes)
        bytes -= sweep->by_age[age--];
    TIERCE_DASSERT(age < AGES);
    sweep->old = age;
    sweep->rest = bytes;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* Says that we sweep, or have swept; *now_ms (or NULL) is the time of that. */
static int write_claim(struct tierce__file_store *store, uint64_t bytes, uint64_t *now_ms)
{
    char path[TIERCE__FILE_PATH_BYTES], text[CLAIM_BYTES], seed[2 * sizeof(store->tmp_seed) + 1];
    struct stat st;
    tierce__hex_encode(seed, store->tmp_seed, sizeof(store->tmp_seed));
    snprintf(path, sizeof(path), "%s/%s", store->root, TIERCE__FILE_CLAIM);
    int length = snprintf(text, sizeof(text), CLAIM_FORMAT, bytes, seed,
                          atomic_load_explicit(&store->tmp_count, memory_order_relaxed));
    TIERCE_DASSERT(length > 0 && (size_t)length < sizeof(text));
    int rc = tierce__file_publish(store, path, text, (size_t)length, TIERCE__DEADLINE_NEVER);
    if (rc != 0 || now_ms == NULL)
        return rc;
    if (stat(path, &st) != 0)
        return -errno;
    *now_ms = ms_of(&st.st_mtim);
    return 0;
}

static bool is_claim(const char *text)
{
    uint64_t bytes, count;
    int end = 0;
    return sscanf(text, "bytes %" SCNu64 " seed %*s count %" SCNu64 "%n", &bytes, &count, &end) ==
               2 &&
           strcmp(text + end, "\n") == 0;
}

/* The claim as it is; "" for none. A file of others that has its name stays, and nothing is swept:
 * TIERCE_E_FORMAT. */
static int read_claim(const struct tierce__file_store *store, char text[CLAIM_BYTES])
{
    char *read = NULL;
    text[0] = '\0';
    int rc = tierce__file_read_own(store, &read, TIERCE__FILE_CLAIM, CLAIM_BYTES - 1);
    if (rc == 0 && !is_claim(read))
        rc = TIERCE_E_FORMAT;
    if (rc == 0)
        snprintf(text, CLAIM_BYTES, "%s", read);
    tierce__free(read);
    if (rc == TIERCE_E_FORMAT)
        tierce__log_repeated(TIERCE_LOG_WARN, "file_not_ours",
                             "path=\"%s/" TIERCE__FILE_CLAIM
                             "\" hint=\"move this file away: it is not a sweep's claim, and "
                             "nothing is evicted while it exists\"",
                             store->root);
    return rc == -ENOENT ? 0 : rc;
}

/* Takes over the count of another process's sweep. */
static void take_claim(struct tierce__file_store *store, const char *text)
{
    uint64_t bytes = 0;
    if (sscanf(text, "bytes %" SCNu64, &bytes) != 1)
        return;
    atomic_store_explicit(&store->swept_bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&store->written_bytes, 0, memory_order_relaxed);
}

/* ---- a sweep --------------------------------------------------------------------------------- */

static int walk_and_evict(struct file_sweep *sweep)
{
    struct tierce__file_store *store = sweep->store;
    uint64_t keep = store->cap_bytes - store->cap_bytes / 10;
    int rc = tierce__file_walk(store->root, sweep->levels, count_file, sweep);
    TIERCE_DASSERT(keep <= store->cap_bytes);
    if (rc != 0 || store->cap_bytes == 0 || sweep->bytes <= keep)
        return rc;
    choose_age(sweep, sweep->bytes - keep);
    return tierce__file_walk(store->root, sweep->levels, evict_file, sweep);
}

static int sweep_store(struct tierce__file_store *store, uint32_t levels)
{
    TIERCE_DASSERT(levels > 0 && levels <= TIERCE__FILE_LEVELS_MAX);
    struct file_sweep *sweep = tierce__calloc(1, sizeof(*sweep));
    if (sweep == NULL)
        return -ENOMEM;
    sweep->store = store;
    sweep->levels = levels;
    int64_t before = atomic_load_explicit(&store->written_bytes, memory_order_relaxed);
    uint64_t known = atomic_load_explicit(&store->swept_bytes, memory_order_relaxed);
    int rc = write_claim(store, known, &sweep->now_ms);
    if (rc == 0)
        rc = walk_and_evict(sweep);
    if (rc == 0) {
        atomic_store_explicit(&store->swept_bytes, sweep->bytes, memory_order_relaxed);
        /* Bytes written during the walk stay counted: the walk may have missed them. */
        atomic_fetch_sub_explicit(&store->written_bytes, before, memory_order_relaxed);
        rc = write_claim(store, sweep->bytes, NULL);
    }
    tierce__free(sweep);
    return rc;
}

/* ---- the sweeper's thread -------------------------------------------------------------------- */

/* Whether no other process has claimed since the claim in `seen`, which it updates. */
static bool is_free(struct tierce__file_store *store, char seen[CLAIM_BYTES],
                    const char claim[CLAIM_BYTES])
{
    if (strcmp(claim, seen) == 0)
        return true;
    take_claim(store, claim);
    memcpy(seen, claim, CLAIM_BYTES);
    return false;
}

/* One turn: sweeps if it is ours to do, or if it must be. */
static void take_turn(struct tierce__file_store *store, char seen[CLAIM_BYTES], bool must)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    char claim[CLAIM_BYTES];
    uint32_t levels;
    if (tierce__file_read_mark(store, &levels) != 0 || read_claim(store, claim) != 0)
        return; /* no object was ever kept, the mount is not there, or the folder is another's */
    if (!is_free(store, seen, claim) && !must)
        return;
    int rc = sweep_store(store, levels);
    if (rc != 0 && rc != TIERCE_E_CLOSED)
        tierce__log(TIERCE_LOG_WARN, "file_sweep_failed", "root=\"%s\" err=\"%s\"", store->root,
                    tierce_strerror(rc));
    if (read_claim(store, seen) != 0)
        seen[0] = '\0';
}

/* Waits until the interval is over, or for a kick. Under the lock. Returns whether it was a
 * kick. */
static bool wait_turn(struct tierce__file_store *store, uint64_t turn_ns, uint64_t gap_ns)
{
    tierce__lock_assert_held(&store->lock);
    bool in_time = true;
    while (!store->ending && !store->kicked && in_time)
        in_time = tierce__cond_wait(&store->wake, &store->lock, turn_ns);
    bool kicked = store->kicked;
    for (in_time = true; !store->ending && kicked && in_time;)
        in_time = tierce__cond_wait(&store->wake, &store->lock, gap_ns);
    store->kicked = false;
    return kicked;
}

static void *sweep_at_times(void *arg)
{
    struct tierce__file_store *store = arg;
    char seen[CLAIM_BYTES] = "";
    /* Hosts that began together do not stay together. */
    uint64_t interval_ns =
        (store->sweep_ms + store->tmp_seed[0] * store->sweep_ms / 1024) * TIERCE__MS_NS;
    uint64_t gap_ns = 0;
    take_turn(store, seen, false);
    tierce__lock_take(&store->lock);
    while (!store->ending) {
        bool kicked = wait_turn(store, tierce__now_ns() + interval_ns, gap_ns);
        if (store->ending)
            break;
        tierce__lock_drop(&store->lock);
        take_turn(store, seen, kicked);
        gap_ns = tierce__now_ns() + GAP_MS * TIERCE__MS_NS;
        tierce__lock_take(&store->lock);
    }
    TIERCE_DASSERT(store->is_sweeping);
    store->is_sweeping = false;
    tierce__cond_signal(&store->ended);
    tierce__lock_drop(&store->lock);
    tierce__file_store_release(store);
    return NULL;
}

int tierce__file_sweeper_start(struct tierce__file_store *store)
{
    TIERCE_DASSERT(!store->has_sweeper && store->holders == 1);
    store->holders++;
    store->is_sweeping = true;
    int rc = pthread_create(&store->sweeper, NULL, sweep_at_times, store);
    if (rc != 0) {
        store->holders--;
        store->is_sweeping = false;
    }
    store->has_sweeper = rc == 0;
    return -rc;
}

void tierce__file_sweeper_kick(struct tierce__file_store *store)
{
    tierce__lock_take(&store->lock);
    TIERCE_DASSERT(store->holders > 0);
    store->kicked = true;
    tierce__cond_signal(&store->wake);
    tierce__lock_drop(&store->lock);
}

void tierce__file_sweeper_stop(struct tierce__file_store *store)
{
    uint64_t deadline_ns = tierce__now_ns() + CLOSE_WAIT_MS * TIERCE__MS_NS;
    bool in_time = true;
    if (!store->has_sweeper)
        return;
    tierce__lock_take(&store->lock);
    TIERCE_DASSERT(store->holders > 0);
    TIERCE_DASSERT(!store->ending);
    store->ending = true;
    tierce__cond_signal(&store->wake);
    while (store->is_sweeping && in_time)
        in_time = tierce__cond_wait(&store->ended, &store->lock, deadline_ns);
    bool ended = !store->is_sweeping;
    tierce__lock_drop(&store->lock);
    if (ended)
        pthread_join(store->sweeper, NULL);
    else
        pthread_detach(store->sweeper);
}

void tierce__file_store_release(struct tierce__file_store *store)
{
    tierce__lock_take(&store->lock);
    TIERCE_DASSERT(store->holders > 0);
    bool is_last = --store->holders == 0;
    tierce__lock_drop(&store->lock);
    if (!is_last)
        return;
    TIERCE_DASSERT(!store->is_sweeping);
    TIERCE_DASSERT(atomic_load_explicit(&store->writing_bytes, memory_order_relaxed) == 0);
    store->vfs->ops->destroy(store->vfs);
    tierce__cond_fini(&store->wake);
    tierce__cond_fini(&store->ended);
    tierce__lock_fini(&store->lock);
    tierce__free(store->root);
    tierce__free(store);
}
