/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/sweep.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/belady.h"
#include "optimizer/curve.h"
#include "optimizer/replay.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX   64u
#define PROGRESS_MS   20u
#define REQUESTS_TOLD 1024u /* of a replay between two counts of its progress */

/* ---- what can be simulated ------------------------------------------------------------------- */

static const struct tierce__cache others[] = {
    {.kind = TIERCE__CACHE_BELADY, .name = "belady"},
    {.kind = TIERCE__CACHE_INFINITE, .name = "infinite"},
    {.kind = TIERCE__CACHE_KVCM, .kvcm = TIERCE__KVCM_LRU, .name = "kvcm-lru"},
    {.kind = TIERCE__CACHE_KVCM, .kvcm = TIERCE__KVCM_RANDOM_LRU, .name = "kvcm-random-lru"},
    {.kind = TIERCE__CACHE_KVCM,
     .kvcm = TIERCE__KVCM_LEAF_AWARE_LRU,
     .name = "kvcm-leaf-aware-lru"},
};

bool tierce__cache_at(struct tierce__cache *out, size_t index)
{
    const struct tierce__policy_ops *policy;
    size_t policies = 0;
    while ((policy = tierce__policy_at(policies)) != NULL && policies < index)
        policies++;
    if (policy == NULL) {
        if (index - policies >= sizeof(others) / sizeof(others[0]))
            return false;
        *out = others[index - policies];
        return true;
    }
    *out = (struct tierce__cache){.policy = policy};
    snprintf(out->name, sizeof(out->name), "%s", policy->name);
    for (char *p = out->name; *p != '\0'; p++)
        *p = *p == '_' ? '-' : *p;
    return true;
}

static bool is_same_name(const char *name, const char *given)
{
    while (*name != '\0' && (*name == *given || (*name == '-' && *given == '_'))) {
        name++;
        given++;
    }
    return *name == *given;
}

int tierce__cache_find(struct tierce__cache *out, const char *name)
{
    struct tierce__cache cache;
    for (size_t i = 0; tierce__cache_at(&cache, i); i++) {
        if (is_same_name(cache.name, name)) {
            *out = cache;
            return 0;
        }
    }
    return TIERCE_E_ARGUMENT;
}

bool tierce__cache_has_order(const struct tierce__cache *cache)
{
    return cache->kind == TIERCE__CACHE_POLICY && !cache->policy->by_parent;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* One scan of the recording; fills the rows of all its matches, and of all its capacities if it
 * is a curve. */
struct job {
    const struct tierce__cache *cache;
    enum tierce__touch_order order;
    bool is_curve;
    uint64_t capacity;
    struct tierce__sweep_row *rows; /* [capacities][matches] */
    size_t match_count;
    size_t capacity_count;              /* 1 unless it is a curve */
    struct tierce__sweep_curve *curves; /* [matches], of a curve that is kept; NULL */
};

struct work {
    const struct tierce__recording *recording;
    struct tierce__recording_totals totals;
    const struct tierce__sweep_opts *opts;
    const struct tierce__future *future; /* if Belady is asked for */
    struct tierce__sweep *sweep;
    bool is_watched; /* every lookup is to be looked at */
    struct job *jobs;
    size_t job_count;
    atomic_size_t next_job;
    atomic_uint_least64_t requests_done;
    atomic_int error; /* the first one */
    atomic_uint running;
};

static void fail(struct work *work, int rc)
{
    int none = 0;
    atomic_compare_exchange_strong(&work->error, &none, rc);
}

static bool has_failed(struct work *work)
{
    return atomic_load_explicit(&work->error, memory_order_relaxed) != 0;
}

static size_t list_matches(const struct job *job, struct tierce__match *out)
{
    for (size_t m = 0; m < job->match_count; m++)
        out[m] = job->rows[m].match;
    return job->match_count;
}

/* ---- lookups --------------------------------------------------------------------------------- */

static void sum_tokens(struct tierce__sweep_row *row, const struct tierce__recorded *request,
                       uint32_t hits, uint32_t block_tokens)
{
    uint32_t held = tierce__recorded_held(request);
    double all = (double)tierce__recorded_tokens(request, hits, block_tokens);
    double had = (double)tierce__recorded_tokens(request, held < hits ? held : hits, block_tokens);
    row->hit_tokens += all - had;
    row->hit_squares += all * all - had * had;
}

/* What one lookup hit, in one row. */
static void tell(const struct work *work, struct tierce__sweep_row *row,
                 const struct tierce__recorded *request, uint32_t hits)
{
    const struct tierce__sweep_opts *o = work->opts;
    if (row->has_tokens)
        sum_tokens(row, request, hits, o->block_tokens);
    for (size_t i = 0; i < o->watch_count; i++)
        o->watches[i].lookup(o->watches[i].arg, (size_t)(row - work->sweep->rows), request, hits);
}

/* The same in the rows of a replay, whose counts of hits have grown by it. */
struct seen {
    uint64_t hits[TIERCE__REPLAY_MATCHES_MAX];
};

static void tell_growth(const struct work *work, const struct job *job, struct seen *seen,
                        const struct tierce__recorded *request, const uint64_t *hits)
{
    for (size_t m = 0; work->is_watched && m < job->match_count; m++) {
        if (request->read_count > 0 && job->rows[m].match.kind != TIERCE__MATCH_STREAM)
            tell(work, &job->rows[m], request, (uint32_t)(hits[m] - seen->hits[m]));
        seen->hits[m] = hits[m];
    }
}

/* ---- running a job --------------------------------------------------------------------------- */

/* A curve while it is scanned. */
struct scan {
    const struct work *work;
    const struct job *job;
    const struct tierce__recorded *request;
};

static uint32_t hits_of_costs(const struct tierce__match *match, const uint32_t *costs,
                              uint32_t count, uint64_t capacity)
{
    uint32_t hits = 0, end = count;
    if (match->kind == TIERCE__MATCH_ANY) {
        for (uint32_t i = 0; i < count; i++)
            hits += costs[i] != UINT32_MAX && costs[i] <= capacity;
        return hits;
    }
    while (hits < end) { /* they do not decrease */
        uint32_t middle = hits + (end - hits) / 2;
        if (costs[middle] != UINT32_MAX && costs[middle] <= capacity)
            hits = middle + 1;
        else
            end = middle;
    }
    return hits;
}

static void tell_costs(void *arg, size_t match, const uint32_t *costs, uint32_t count)
{
    const struct scan *scan = arg;
    const struct job *job = scan->job;
    for (size_t i = 0; count > 0 && i < job->capacity_count; i++) {
        struct tierce__sweep_row *row = &job->rows[i * job->match_count + match];
        tell(scan->work, row, scan->request,
             hits_of_costs(&row->match, costs, count, row->capacity));
    }
}

static int keep_curves(const struct job *job, const struct tierce__curve *curve, bool has_tokens)
{
    for (size_t m = 0; m < job->match_count; m++) {
        struct tierce__sweep_point sum = {0};
        uint32_t length;
        const uint64_t *hits = tierce__curve_histogram(curve, m, &length);
        const struct tierce__curve_sum *sums = has_tokens ? tierce__curve_sums(curve, m) : NULL;
        struct tierce__sweep_point *points = tierce__calloc(length, sizeof(*points));
        if (points == NULL)
            return -ENOMEM;
        for (uint32_t i = 0; i < length; i++) {
            sum.hits += hits[i];
            sum.tokens += has_tokens ? sums[i].tokens : 0;
            sum.squares += has_tokens ? sums[i].squares : 0;
            points[i] = sum;
        }
        job->curves[m].points = points;
        job->curves[m].length = length;
    }
    return 0;
}

static int run_curve(struct work *work, const struct job *job)
{
    struct tierce__match matches[TIERCE__CURVE_MATCHES_MAX];
    struct tierce__curve *curve = NULL;
    uint64_t told = 0;
    struct scan scan = {.work = work, .job = job};
    bool has_tokens = work->opts->block_tokens > 0 && job->curves != NULL;
    int rc = tierce__curve_create(&curve, job->order, matches, list_matches(job, matches));
    if (rc == 0 && has_tokens)
        rc = tierce__curve_sum_tokens(curve, work->opts->block_tokens);
    if (rc == 0 && work->is_watched)
        tierce__curve_watch(curve, tell_costs, &scan);
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL && !has_failed(work);
         r = tierce__recording_next(work->recording, r)) {
        scan.request = r;
        rc = tierce__curve_request_tokens(curve, tierce__recorded_blocks(r), r->count,
                                          r->read_count, r->input_tokens);
        if (++told % REQUESTS_TOLD == 0)
            atomic_fetch_add_explicit(&work->requests_done, REQUESTS_TOLD, memory_order_relaxed);
    }
    for (size_t i = 0; rc == 0 && i < job->capacity_count * job->match_count; i++)
        job->rows[i].hits = tierce__curve_hits(curve, i % job->match_count, job->rows[i].capacity);
    if (rc == 0 && job->curves != NULL)
        rc = keep_curves(job, curve, has_tokens);
    tierce__curve_destroy(curve);
    return rc;
}

static void tell_belady(void *arg, const struct tierce__recorded *request, const uint32_t *hits)
{
    const struct scan *scan = arg;
    for (size_t m = 0; request->read_count > 0 && m < scan->job->match_count; m++)
        tell(scan->work, &scan->job->rows[m], request, hits[m]);
}

static int run_belady(struct work *work, const struct job *job)
{
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    uint64_t hits[TIERCE__REPLAY_MATCHES_MAX];
    struct scan scan = {.work = work, .job = job};
    size_t count = list_matches(job, matches);
    int rc = tierce__belady_watch(work->future, job->capacity, matches, count, hits,
                                  work->is_watched ? tell_belady : NULL, &scan);
    for (size_t m = 0; rc == 0 && m < job->match_count; m++)
        job->rows[m].hits = hits[m];
    return rc;
}

static void fill_rows(const struct job *job, const struct tierce__replay_result *result)
{
    for (size_t m = 0; m < job->match_count; m++) {
        struct tierce__sweep_row *row = &job->rows[m];
        row->requests = result->requests;
        row->blocks = result->blocks;
        row->internal_blocks = result->internal_blocks;
        row->hits = result->hits[m];
        row->internal_hits = result->internal_hits[m];
        row->is_replayed = true;
        row->evicted = result->evicted;
        row->refused = result->refused;
        row->expired = result->expired;
        row->has_hand = result->has_hand;
        row->wraps = result->wraps;
    }
}

static int run_replay(struct work *work, const struct job *job)
{
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    const struct tierce__policy_ops *policy =
        job->capacity == TIERCE__CAPACITY_UNLIMITED && work->opts->ttl_us == 0 ? NULL
                                                                               : job->cache->policy;
    struct tierce__replay *replay = NULL;
    struct seen seen = {0};
    uint64_t told = 0;
    int rc = tierce__replay_create(&replay, &(struct tierce__replay_opts){
                                                .size = sizeof(struct tierce__replay_opts),
                                                .policy = policy,
                                                .capacity = job->capacity,
                                                .in_bytes = work->opts->in_bytes,
                                                .whole = !tierce__cache_has_order(job->cache),
                                                .order = job->order,
                                                .seed = work->opts->seed,
                                                .ttl_us = work->opts->ttl_us,
                                                .samples = work->opts->samples,
                                                .distinct = work->totals.distinct,
                                                .matches = matches,
                                                .match_count = list_matches(job, matches),
                                            });
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL && !has_failed(work);
         r = tierce__recording_next(work->recording, r)) {
        rc = tierce__replay_request(replay, r);
        tell_growth(work, job, &seen, r, tierce__replay_result(replay)->hits);
        if (++told % REQUESTS_TOLD == 0)
            atomic_fetch_add_explicit(&work->requests_done, REQUESTS_TOLD, memory_order_relaxed);
    }
    if (rc == 0)
        fill_rows(job, tierce__replay_result(replay));
    tierce__replay_destroy(replay);
    return rc;
}

static int run_kvcm(struct work *work, const struct job *job)
{
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    struct tierce__kvcm_layout layout = {0};
    struct tierce__kvcm_read read;
    struct tierce__kvcm *kvcm = NULL;
    struct seen seen = {0};
    uint64_t told = 0;
    int rc = tierce__kvcm_layout_single(&layout, work->totals.instances, job->cache->kvcm,
                                        job->capacity, &work->opts->kvcm);
    if (rc == 0)
        rc = tierce__kvcm_create(&kvcm, &(struct tierce__kvcm_opts){
                                            .size = sizeof(struct tierce__kvcm_opts),
                                            .layout = &layout,
                                            .distinct = work->totals.distinct,
                                            .matches = matches,
                                            .match_count = list_matches(job, matches),
                                        });
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL && !has_failed(work);
         r = tierce__recording_next(work->recording, r)) {
        rc = tierce__kvcm_request(kvcm, r, &read);
        tell_growth(work, job, &seen, r, tierce__kvcm_result(kvcm)->hits);
        if (++told % REQUESTS_TOLD == 0)
            atomic_fetch_add_explicit(&work->requests_done, REQUESTS_TOLD, memory_order_relaxed);
    }
    if (rc == 0)
        fill_rows(job, tierce__kvcm_result(kvcm));
    tierce__kvcm_destroy(kvcm);
    tierce__kvcm_layout_clear(&layout);
    return rc;
}

static void *run_jobs(void *arg)
{
    struct work *work = arg;
    size_t i;
    while (!has_failed(work) && (i = atomic_fetch_add(&work->next_job, 1)) < work->job_count) {
        const struct job *job = &work->jobs[i];
        int rc = job->is_curve                              ? run_curve(work, job)
                 : job->cache->kind == TIERCE__CACHE_BELADY ? run_belady(work, job)
                 : job->cache->kind == TIERCE__CACHE_KVCM   ? run_kvcm(work, job)
                                                            : run_replay(work, job);
        if (rc < 0)
            fail(work, rc);
    }
    atomic_fetch_sub(&work->running, 1);
    return NULL;
}

/* ---- which jobs ------------------------------------------------------------------------------ */

/* Whether LRU has one order of last use at every capacity. */
static bool has_curve(const struct work *work, const struct tierce__cache *cache)
{
    return cache->kind == TIERCE__CACHE_POLICY && strcmp(cache->policy->name, "lru") == 0 &&
           !work->totals.has_reads && !work->opts->in_bytes && work->totals.internal_blocks == 0;
}

static bool has_match(const struct tierce__cache *cache, const struct tierce__match *match)
{
    return match->kind != TIERCE__MATCH_STREAM || tierce__cache_has_order(cache);
}

/* Appends the rows of one cache, order and capacity. */
static size_t add_rows(struct work *work, struct tierce__sweep *out, const struct job *job,
                       uint64_t capacity)
{
    size_t added = 0;
    for (size_t m = 0; m < work->opts->match_count; m++) {
        const struct tierce__match *match = &work->opts->matches[m];
        if (!has_match(job->cache, match))
            continue;
        out->rows[out->row_count++] = (struct tierce__sweep_row){
            .cache = job->cache,
            .has_order = tierce__cache_has_order(job->cache),
            .order = job->order,
            .match = *match,
            .capacity = capacity,
            .requests = work->totals.requests,
            .blocks = work->totals.read_blocks,
            .internal_blocks = work->totals.internal_blocks,
            .has_tokens = work->opts->block_tokens > 0 && tierce__match_is_leading(match),
        };
        added++;
    }
    return added;
}

/* Places for the curves of a job, if they are kept. */
static void add_curves(struct work *work, struct tierce__sweep *out, struct job *job)
{
    if (!work->opts->keeps_curves)
        return;
    job->curves = out->curves + out->curve_count;
    for (size_t m = 0; m < job->match_count; m++)
        out->curves[out->curve_count++] = (struct tierce__sweep_curve){
            .cache = job->cache, .order = job->order, .match = job->rows[m].match};
}

static void add_jobs(struct work *work, struct tierce__sweep *out,
                     const struct tierce__cache *cache, enum tierce__touch_order order)
{
    static const uint64_t unlimited = TIERCE__CAPACITY_UNLIMITED;
    struct job job = {.cache = cache, .order = order, .is_curve = has_curve(work, cache)};
    bool infinite = cache->kind == TIERCE__CACHE_INFINITE;
    const uint64_t *capacities = infinite ? &unlimited : work->opts->capacities;
    size_t count = infinite ? 1 : work->opts->capacity_count;
    for (size_t c = 0; c < count; c++) {
        uint64_t capacity = capacities[c];
        if (cache->kind == TIERCE__CACHE_BELADY && capacity == unlimited)
            continue; /* that is the infinite one */
        if (!job.is_curve || job.capacity_count == 0)
            job.rows = out->rows + out->row_count;
        job.capacity = capacity;
        job.match_count = add_rows(work, out, &job, capacity);
        job.capacity_count = job.is_curve ? job.capacity_count + 1 : 1;
        if (!job.is_curve && job.match_count > 0)
            work->jobs[work->job_count++] = job;
    }
    if (job.is_curve && job.capacity_count > 0 && job.match_count > 0) {
        add_curves(work, out, &job);
        work->jobs[work->job_count++] = job;
    }
}

static int plan(struct work *work, struct tierce__sweep *out)
{
    const struct tierce__sweep_opts *o = work->opts;
    size_t jobs_max = o->cache_count * o->order_count * o->capacity_count;
    work->jobs = tierce__calloc(jobs_max + 1, sizeof(*work->jobs));
    out->rows = tierce__calloc(jobs_max * o->match_count + 1, sizeof(*out->rows));
    if (o->keeps_curves)
        out->curves = tierce__calloc(o->cache_count * o->order_count * o->match_count + 1,
                                     sizeof(*out->curves));
    if (work->jobs == NULL || out->rows == NULL || (o->keeps_curves && out->curves == NULL))
        return -ENOMEM;
    for (size_t p = 0; p < o->cache_count; p++) {
        size_t orders = tierce__cache_has_order(&o->caches[p]) ? o->order_count : 1;
        for (size_t i = 0; i < orders; i++)
            add_jobs(work, out, &o->caches[p], o->orders[i]);
    }
    return 0;
}

static bool wants(const struct tierce__sweep_opts *opts, enum tierce__cache_kind kind)
{
    for (size_t p = 0; p < opts->cache_count; p++) {
        if (opts->caches[p].kind == kind)
            return true;
    }
    return false;
}

/* ---- running --------------------------------------------------------------------------------- */

static void tell_progress(struct work *work)
{
    uint64_t total = work->totals.requests * work->job_count;
    while (atomic_load(&work->running) > 0) {
        if (work->opts->progress != NULL)
            work->opts->progress(work->opts->progress_arg, atomic_load(&work->requests_done),
                                 total);
        nanosleep(&(struct timespec){.tv_nsec = PROGRESS_MS * 1000000L}, NULL);
    }
    if (work->opts->progress != NULL)
        work->opts->progress(work->opts->progress_arg, total, total);
}

static int run_all(struct work *work)
{
    pthread_t threads[THREADS_MAX];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = work->opts->threads > 0 ? work->opts->threads
                    : processors > 0        ? (size_t)processors
                                            : 1;
    size_t started = 0;
    wanted = wanted < THREADS_MAX ? wanted : THREADS_MAX;
    wanted = wanted < work->job_count ? wanted : work->job_count;
    atomic_store(&work->running, (unsigned)wanted);
    for (; started < wanted; started++) {
        int rc = pthread_create(&threads[started], NULL, run_jobs, work);
        if (rc != 0) {
            atomic_fetch_sub(&work->running, (unsigned)(wanted - started));
            fail(work, -rc);
            break;
        }
    }
    tell_progress(work);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return atomic_load(&work->error);
}

int tierce__sweep_run(struct tierce__sweep *out, const struct tierce__recording *recording,
                      const struct tierce__sweep_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    bool belady = wants(opts, TIERCE__CACHE_BELADY);
    bool in_blocks = belady || wants(opts, TIERCE__CACHE_KVCM);
    if (opts->match_count > TIERCE__REPLAY_MATCHES_MAX || (in_blocks && opts->in_bytes))
        return TIERCE_E_ARGUMENT;
    struct tierce__future *future = NULL;
    struct tierce__sweep sweep = {.in_bytes = opts->in_bytes, .block_tokens = opts->block_tokens};
    struct work work = {.recording = recording,
                        .totals = tierce__recording_totals(recording),
                        .opts = opts,
                        .sweep = &sweep,
                        .is_watched = opts->block_tokens > 0 || opts->watch_count > 0};
    int rc = belady ? tierce__future_create(&future, recording, opts->folder) : 0;
    work.future = future;
    if (rc == 0)
        rc = plan(&work, &sweep);
    for (size_t i = 0; rc == 0 && i < opts->watch_count; i++)
        rc = opts->watches[i].begin(opts->watches[i].arg, &sweep);
    if (rc == 0)
        rc = run_all(&work);
    tierce__future_destroy(future);
    tierce__free(work.jobs);
    if (rc == 0)
        *out = sweep;
    else
        tierce__sweep_clear(&sweep);
    return rc;
}

bool tierce__sweep_same_line(const struct tierce__sweep_row *a, const struct tierce__sweep_row *b)
{
    return a->cache == b->cache && a->order == b->order && a->match.kind == b->match.kind &&
           a->match.window == b->match.window;
}

void tierce__sweep_clear(struct tierce__sweep *sweep)
{
    for (size_t i = 0; i < sweep->curve_count; i++)
        tierce__free(sweep->curves[i].points);
    tierce__free(sweep->curves);
    tierce__free(sweep->rows);
    *sweep = (struct tierce__sweep){0};
}
