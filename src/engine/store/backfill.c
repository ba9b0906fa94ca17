/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/backfill.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/observe/operate.h"
#include "engine/store/chunk_copy.h"

#define RATE_DEFAULT (64ULL << 20)
#define SCAN_PLACES  64u
#define FAILURES_MAX 5u /* in a row, after which the backfill fails */

static struct tierce__backfill *backfill_of(struct tierce_engine *engine)
{
    return &engine->backfill;
}

/* ---- one chunk ------------------------------------------------------------------------------- */

struct backfill_run {
    struct tierce_engine *engine;
    size_t disk;       /* level */
    uint32_t remotes;  /* a bit for each level */
    uint32_t failures; /* in a row */
    uint64_t failed;   /* chunks lost to failures of the disk or a store */
    uint64_t era;      /* in which the chunk at hand was read (operate.h) */
    uint64_t read_bytes;
    size_t count;
    struct tierce__storage_chunk chunks[SCAN_PLACES];
    struct tierce__key keys[SCAN_PLACES]; /* of the chunks */
    struct {
        size_t held;  /* chunks before this one are in the store, or were looked at */
        size_t batch; /* keys of the next query */
    } stores[TIERCE__TIERS_MAX];
};

static void add(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* Whether a store holds chunk `index`. A query answers for all chunks up to the first that the
 * store lacks, so its batch doubles while the store holds all of it. Returns a negative status if
 * the store could not be queried. */
static int store_holds(struct backfill_run *run, size_t level, size_t index)
{
    struct tierce__unasked unasked;
    size_t left = run->count - index;
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX && index < run->count);
    if (index < run->stores[level].held)
        return 1;
    size_t batch = run->stores[level].batch;
    batch = batch == 0 ? 1 : batch < left ? batch : left;
    size_t found =
        tierce__storage_search(run->engine, 1u << level, &run->keys[index], batch, NULL, &unasked);
    TIERCE_DASSERT(found <= batch && batch <= left);
    if (found == 0 && unasked.status < 0)
        return unasked.status;
    run->stores[level].held = index + found;
    TIERCE_DASSERT(run->stores[level].held <= run->count);
    run->stores[level].batch = found == batch ? 2 * batch : 1;
    return found > 0;
}

/* Finds the remote stores that lack a chunk. Returns false if a store could not be queried. */
static bool find_lacking(struct backfill_run *run, size_t index, uint32_t *lacking)
{
    TIERCE_DASSERT(index < run->count);
    *lacking = 0;
    for (size_t level = 0; level < run->engine->level_count; level++) {
        if ((run->remotes >> level & 1) == 0)
            continue;
        int holds = store_holds(run, level, index);
        if (holds < 0)
            return false;
        if (holds == 0)
            *lacking |= 1u << level;
        else
            add(&backfill_of(run->engine)->there, 1);
    }
    TIERCE_DASSERT((*lacking & ~run->remotes) == 0);
    return true;
}

/* The buffer's reference is the caller's; NULL with *status. */
static struct tierce__buf *read_chunk(struct backfill_run *run,
                                      const struct tierce__storage_chunk *chunk, int *status)
{
    struct tierce__buf *buf = tierce__chunk_read(run->engine, run->disk, chunk, NULL, status);
    run->read_bytes += buf != NULL ? chunk->object_bytes : 0;
    return buf;
}

/* Returns false if a store failed. */
static bool put(struct backfill_run *run, const struct tierce__storage_chunk *chunk,
                struct tierce__buf *buf, uint32_t lacking)
{
    struct tierce__backfill *b = backfill_of(run->engine);
    bool good = true;
    TIERCE_DASSERT((lacking & ~run->remotes) == 0);
    for (size_t level = 0; level < run->engine->level_count; level++) {
        if ((lacking >> level & 1) == 0)
            continue;
        int rc = tierce__storage_put(run->engine, level, run->era, chunk, buf);
        if (rc == 0) {
            add(&b->sent, 1);
            add(&b->sent_bytes, chunk->object_bytes);
        } else if (tierce__health_is_fault(rc)) {
            good = false;
        } else if (rc != TIERCE_E_CANCELLED) { /* a clear has removed it: nothing to send */
            add(&b->refused, 1);
        }
    }
    return good;
}

static void send(struct backfill_run *run, size_t index)
{
    const struct tierce__storage_chunk *chunk = &run->chunks[index];
    uint32_t lacking;
    int status = 0;
    TIERCE_DASSERT(index < run->count);
    bool good = find_lacking(run, index, &lacking);
    run->era = tierce__era_of_read(run->engine);
    if (good && lacking != 0) {
        struct tierce__buf *buf = read_chunk(run, chunk, &status);
        if (buf != NULL)
            good = put(run, chunk, buf, lacking);
        else if (status != TIERCE_E_MISS) /* MISS: evicted since it was listed, nothing to send */
            add(&backfill_of(run->engine)->unreadable, 1);
        tierce__buf_release(buf);
        good = good && !tierce__health_is_fault(status);
    }
    run->failures = good ? 0 : run->failures + 1;
    run->failed += !good;
    add(&backfill_of(run->engine)->seen, 1);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void take(void *arg, const struct tierce__tier_event *event)
{
    struct backfill_run *run = arg;
    TIERCE_ASSERT(run->count < SCAN_PLACES);
    run->keys[run->count] = *event->key;
    tierce__chunk_record(&run->chunks[run->count++], event);
}

/* Blocks until the bytes read are within the rate. Returns false, with *reason, if the backfill
 * must end. */
static bool go_on(const struct backfill_run *run, const char **reason)
{
    struct tierce_engine *engine = run->engine;
    struct tierce__backfill *b = backfill_of(engine);
    TIERCE_DASSERT(b->bytes_per_s > 0);
    double s = (double)run->read_bytes / (double)b->bytes_per_s;
    tierce__lock_take(&engine->lock);
    uint64_t until_ns = b->began_ns + (uint64_t)(s * 1e9);
    while (!b->stops && tierce__now_ns() < until_ns)
        tierce__cond_wait(&engine->changed, &engine->lock, until_ns);
    bool stops = b->stops;
    tierce__lock_drop(&engine->lock);
    *reason = stops                                               ? "on request"
              : tierce__engine_mode(engine) != TIERCE_MODE_NORMAL ? "the mode is not normal"
              : run->failures >= FAILURES_MAX ? "the disk or a remote store failed repeatedly"
                                              : "";
    return (*reason)[0] == '\0';
}

static const char *run_all(struct backfill_run *run)
{
    TIERCE_DASSERT(run->engine->levels[run->disk].origin == TIERCE_ORIGIN_DISK);
    struct tierce__tier *disk = run->engine->levels[run->disk].tier;
    const char *reason = "";
    uint32_t cursor = 0;
    bool more = true;
    while (more) {
        run->count = 0;
        for (size_t level = 0; level < TIERCE__TIERS_MAX; level++)
            run->stores[level].held = 0;
        more = disk->ops->scan(disk, &cursor, SCAN_PLACES, take, run);
        TIERCE_DASSERT(run->count <= SCAN_PLACES);
        for (size_t i = 0; i < run->count; i++) {
            if (!go_on(run, &reason))
                return reason;
            send(run, i);
        }
    }
    return reason;
}

static void *run_backfill(void *arg)
{
    struct backfill_run *run = arg;
    struct tierce_engine *engine = run->engine;
    struct tierce__backfill *b = backfill_of(engine);
    const char *reason = run_all(run);
    struct tierce__backfill_report report;
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(b->is_running);
    b->is_running = false;
    b->has_failed = run->failed > 0 && !b->stops;
    b->reason = b->has_failed && reason[0] == '\0'
                    ? "some chunks were not sent: start the backfill again"
                    : reason;
    b->ended_ns = tierce__now_ns();
    tierce__lock_drop(&engine->lock);
    tierce__backfill_report(engine, &report);
    tierce__log(TIERCE_LOG_WARN, "backfill_ended",
                "state=%s sent=%llu there=%llu refused=%llu unreadable=%llu reason=\"%s\"",
                report.state, (unsigned long long)report.sent, (unsigned long long)report.there,
                (unsigned long long)report.refused, (unsigned long long)report.unreadable,
                report.reason);
    tierce__free(run);
    return NULL;
}

/* ---- control --------------------------------------------------------------------------------- */

/* Registers a new backfill. Returns false if one is running. */
static bool take_place(struct tierce_engine *engine, uint64_t bytes_per_s, bool *had_thread,
                       pthread_t *old)
{
    struct tierce__backfill *b = backfill_of(engine);
    tierce__lock_take(&engine->lock);
    bool free_place = !b->is_running && !b->stops_for_good;
    if (free_place) {
        TIERCE_DASSERT(b->ended_ns >= b->began_ns);
        *had_thread = b->has_thread;
        *old = b->thread;
        *b = (struct tierce__backfill){.is_running = true,
                                       .reason = "",
                                       .bytes_per_s = bytes_per_s > 0 ? bytes_per_s : RATE_DEFAULT,
                                       .began_ns = tierce__now_ns()};
    }
    tierce__lock_drop(&engine->lock);
    return free_place;
}

static int launch(struct tierce_engine *engine, struct backfill_run *run)
{
    TIERCE_DASSERT(run->disk > 0 && run->remotes != 0);
    struct tierce__backfill *b = backfill_of(engine);
    struct tierce__tier_stats stats;
    struct tierce__tier *disk = engine->levels[run->disk].tier;
    disk->ops->stats(disk, &stats);
    pthread_t thread;
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(b->is_running && !b->has_thread);
    b->chunks = stats.chunks;
    int rc = -pthread_create(&thread, NULL, run_backfill, run);
    if (rc == 0)
        b->thread = thread;
    b->has_thread = rc == 0;
    b->is_running = rc == 0;
    if (rc != 0)
        b->began_ns = 0; /* "never", and not "done" */
    tierce__lock_drop(&engine->lock);
    return rc;
}

int tierce__backfill_start(struct tierce_engine *engine, uint64_t bytes_per_s)
{
    bool had_thread = false;
    pthread_t old;
    struct backfill_run *run = tierce__calloc(1, sizeof(*run));
    if (run == NULL)
        return -ENOMEM;
    run->engine = engine;
    for (size_t level = 1; level < engine->level_count; level++) {
        if (engine->levels[level].origin == TIERCE_ORIGIN_DISK)
            run->disk = level;
        else if (engine->levels[level].health.shared)
            run->remotes |= 1u << level;
    }
    TIERCE_DASSERT((run->remotes & 1u) == 0 && (run->remotes & 1u << run->disk) == 0);
    int rc = run->disk == 0 || run->remotes == 0 ? TIERCE_E_UNSUPPORTED : 0;
    if (rc == 0 && tierce__engine_mode(engine) != TIERCE_MODE_NORMAL)
        rc = TIERCE_E_REFUSED;
    if (rc == 0 && !take_place(engine, bytes_per_s, &had_thread, &old))
        rc = -EBUSY;
    if (had_thread)
        pthread_join(old, NULL); /* it has ended */
    if (rc == 0)
        rc = launch(engine, run);
    if (rc < 0)
        tierce__free(run);
    return rc;
}

void tierce__backfill_stop(struct tierce_engine *engine)
{
    tierce__lock_take(&engine->lock);
    backfill_of(engine)->stops = true;
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
}

void tierce__backfill_fini(struct tierce_engine *engine)
{
    struct tierce__backfill *b = backfill_of(engine);
    tierce__lock_take(&engine->lock);
    b->stops = b->stops_for_good = true;
    bool has_thread = b->has_thread;
    b->has_thread = false;
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
    if (has_thread)
        pthread_join(b->thread, NULL);
}

void tierce__backfill_report(struct tierce_engine *engine, struct tierce__backfill_report *out)
{
    struct tierce__backfill *b = backfill_of(engine);
    tierce__lock_take(&engine->lock);
    uint64_t end_ns = b->is_running ? tierce__now_ns() : b->ended_ns;
    *out = (struct tierce__backfill_report){
        .state = b->began_ns == 0     ? "never"
                 : b->is_running      ? "running"
                 : b->has_failed      ? "failed"
                 : *b->reason != '\0' ? "stopped"
                                      : "done",
        .reason = b->reason != NULL ? b->reason : "",
        .chunks = b->chunks,
        .seen = atomic_load_explicit(&b->seen, memory_order_relaxed),
        .sent = atomic_load_explicit(&b->sent, memory_order_relaxed),
        .sent_bytes = atomic_load_explicit(&b->sent_bytes, memory_order_relaxed),
        .there = atomic_load_explicit(&b->there, memory_order_relaxed),
        .refused = atomic_load_explicit(&b->refused, memory_order_relaxed),
        .unreadable = atomic_load_explicit(&b->unreadable, memory_order_relaxed),
        .ms = b->began_ns > 0 && end_ns > b->began_ns ? (end_ns - b->began_ns) / TIERCE__MS_NS : 0};
    tierce__lock_drop(&engine->lock);
}
