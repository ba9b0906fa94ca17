/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/sweep.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "optimizer/replay/belady.h"
#include "optimizer/replay/curve.h"
#include "optimizer/replay/replay.h"
#include "optimizer/replay/ttl_curve.h"
#include "optimizer/replay/jobs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define REQUESTS_TOLD 1024u /* of a replay between two counts of its progress */

/* ---- valid combinations ---------------------------------------------------------------------- */

static const struct tierce__cache others[] = {
    {.kind = TIERCE__CACHE_BELADY, .name = "belady"},
    {.kind = TIERCE__CACHE_ORACLE, .name = "hazard-oracle"},
    {.kind = TIERCE__CACHE_INFINITE, .name = "infinite"},
    {.kind = TIERCE__CACHE_KVCM, .kvcm = TIERCE__KVCM_LRU, .name = "kvcm-lru"},
    {.kind = TIERCE__CACHE_KVCM, .kvcm = TIERCE__KVCM_RANDOM_LRU, .name = "kvcm-random-lru"},
    {.kind = TIERCE__CACHE_KVCM,
     .kvcm = TIERCE__KVCM_LEAF_AWARE_LRU,
     .name = "kvcm-leaf-aware-lru"},
};

bool tierce__cache_foresees(const struct tierce__cache *cache)
{
    return cache->kind == TIERCE__CACHE_BELADY || cache->kind == TIERCE__CACHE_ORACLE;
}

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
        if (out->kind == TIERCE__CACHE_ORACLE)
            out->policy = tierce__policy_find("hazard");
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

int tierce__cache_load(struct tierce__cache *out, const char *url,
                       char why[TIERCE__POLICY_WHY_BYTES])
{
    const struct tierce__policy_ops *policy;
    int rc = tierce__policy_open(&policy, url, why);
    if (rc < 0)
        return rc;
    *out = (struct tierce__cache){.policy = policy};
    snprintf(out->name, sizeof(out->name), "%s", policy->name);
    return 0;
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

bool tierce__cache_expires(const struct tierce__cache *cache)
{
    return cache->kind == TIERCE__CACHE_POLICY && cache->policy->expired != NULL;
}

bool tierce__cache_has_order(const struct tierce__cache *cache)
{
    return cache->kind == TIERCE__CACHE_POLICY && !cache->policy->by_parent;
}

int tierce__sim_replay(struct tierce__replay **out, const struct tierce__sim_point *point,
                       const struct tierce__replay_opts *opts)
{
    const struct tierce__cache *cache = point->cache;
    struct tierce__replay_opts full = *opts;
    bool foresees = cache->kind == TIERCE__CACHE_ORACLE && opts->next_uses != NULL;
    if (cache->kind != TIERCE__CACHE_POLICY && cache->kind != TIERCE__CACHE_INFINITE && !foresees)
        return TIERCE_E_ARGUMENT;
    full.ttl_us = tierce__cache_expires(cache) ? point->ttl_us : 0;
    full.capacity = cache->policy == NULL ? TIERCE__CAPACITY_UNLIMITED : point->capacity;
    full.policy =
        full.capacity == TIERCE__CAPACITY_UNLIMITED && full.ttl_us == 0 ? NULL : cache->policy;
    full.in_bytes = point->in_bytes;
    full.whole = !tierce__cache_has_order(cache);
    full.order = point->order;
    full.seed = point->seed;
    return tierce__replay_create(out, &full);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

enum job_kind {
    JOB_REPLAY,
    JOB_CURVE,     /* all capacities at once */
    JOB_TTL_CURVE, /* all times to live at once */
    JOB_BELADY,
    JOB_KVCM,
};

/* One scan of the recording, which fills the rows of all its matches: of a curve, at all its
 * capacities or times to live. */
struct sweep_job {
    enum job_kind kind;
    const struct tierce__cache *cache;
    enum tierce__touch_order order;
    uint64_t capacity, ttl_us;
    size_t capacity_index;
    struct tierce__sweep_row *rows; /* [points][matches] */
    size_t match_count;
    size_t point_count;                 /* 1 unless it is a curve */
    struct tierce__sweep_curve *curves; /* [matches], of a curve that is kept; NULL */
};

struct sweep_work {
    const struct tierce__recording *recording;
    struct tierce__recording_totals totals;
    const struct tierce__sweep_opts *opts;
    const struct tierce__future *future; /* if Belady is asked for */
    struct tierce__sweep *sweep;
    bool is_watched; /* a watch needs every lookup */
    struct sweep_job *jobs;
    size_t job_count, jobs_max, rows_max;
};

static size_t list_matches(const struct sweep_job *job, struct tierce__match *out)
{
    TIERCE_ASSERT(job->match_count > 0 && job->match_count <= TIERCE__REPLAY_MATCHES_MAX);
    for (size_t m = 0; m < job->match_count; m++)
        out[m] = job->rows[m].match;
    return job->match_count;
}

/* KVCM counts hits in all blocks that a turn stores, which may be more than it looks up. */
static bool may_have_hits(const struct tierce__cache *cache, uint64_t hits, uint64_t blocks)
{
    return cache->kind == TIERCE__CACHE_KVCM || hits <= blocks;
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* Adds the hits of one lookup to one row. */
static void tell(const struct sweep_work *work, struct tierce__sweep_row *row,
                 const struct tierce__recorded *request, uint32_t hits)
{
    const struct tierce__sweep_opts *o = work->opts;
    TIERCE_DASSERT(row >= work->sweep->rows && row < work->sweep->rows + work->sweep->row_count);
    TIERCE_DASSERT(may_have_hits(row->cache, hits, request->read_count));
    if (row->has_tokens)
        tierce__recorded_saves(request, hits, o->block_tokens, &row->hit_tokens, &row->hit_squares);
    for (size_t i = 0; i < o->watch_count; i++)
        o->watches[i].lookup(o->watches[i].arg, (size_t)(row - work->sweep->rows), request, hits);
}

/* The same for the rows of a replay, from the growth of its hit counts. */
struct sweep_seen {
    uint64_t hits[TIERCE__REPLAY_MATCHES_MAX];
};

static void tell_growth(const struct sweep_work *work, const struct sweep_job *job,
                        struct sweep_seen *seen, const struct tierce__recorded *request,
                        const uint64_t *hits)
{
    for (size_t m = 0; work->is_watched && m < job->match_count; m++) {
        TIERCE_DASSERT(hits[m] >= seen->hits[m]);
        if (request->read_count > 0 && job->rows[m].match.kind != TIERCE__MATCH_STREAM)
            tell(work, &job->rows[m], request, (uint32_t)(hits[m] - seen->hits[m]));
        seen->hits[m] = hits[m];
    }
}

/* ---- running a job --------------------------------------------------------------------------- */

/* Counts a request, and returns whether to continue. */
static bool has_done(struct tierce__jobs *workers, uint64_t *done)
{
    return ++*done % REQUESTS_TOLD != 0 || tierce__jobs_tell(workers, REQUESTS_TOLD);
}

/* A curve while it is scanned. */
struct sweep_scan {
    const struct sweep_work *work;
    const struct sweep_job *job;
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
    const struct sweep_scan *scan = arg;
    const struct sweep_job *job = scan->job;
    TIERCE_DASSERT(match < job->match_count);
    for (size_t i = 0; count > 0 && i < job->point_count; i++) {
        struct tierce__sweep_row *row = &job->rows[i * job->match_count + match];
        tell(scan->work, row, scan->request,
             hits_of_costs(&row->match, costs, count, row->capacity));
    }
}

static int keep_curves(const struct sweep_job *job, const struct tierce__curve *curve,
                       bool has_tokens)
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

static int run_curve(const struct sweep_work *work, const struct sweep_job *job,
                     struct tierce__jobs *workers)
{
    struct tierce__match matches[TIERCE__CURVE_MATCHES_MAX] = {0};
    struct tierce__curve *curve = NULL;
    uint64_t done = 0;
    struct sweep_scan scan = {.work = work, .job = job};
    bool has_tokens = work->opts->block_tokens > 0 && job->curves != NULL;
    int rc = tierce__curve_create(&curve, job->order, matches, list_matches(job, matches));
    if (rc == 0 && has_tokens)
        rc = tierce__curve_sum_tokens(curve, work->opts->block_tokens);
    if (rc == 0 && work->is_watched)
        tierce__curve_watch(curve, tell_costs, &scan);
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL && has_done(workers, &done);
         r = tierce__recording_next(work->recording, r)) {
        scan.request = r;
        rc = tierce__curve_request_tokens(curve, tierce__recorded_blocks(r), r->count,
                                          r->read_count, r->input_tokens);
    }
    for (size_t i = 0; rc == 0 && i < job->point_count * job->match_count; i++)
        job->rows[i].hits = tierce__curve_hits(curve, i % job->match_count, job->rows[i].capacity);
    if (rc == 0 && job->curves != NULL)
        rc = keep_curves(job, curve, has_tokens);
    tierce__curve_destroy(curve);
    return rc;
}

static int run_ttl_curve(const struct sweep_work *work, const struct sweep_job *job)
{
    struct tierce__match matches[TIERCE__CURVE_MATCHES_MAX];
    size_t points = job->point_count;
    uint64_t *ttls = tierce__calloc(points, sizeof(*ttls));
    uint64_t *hits = tierce__calloc(points * job->match_count, sizeof(*hits));
    int rc = ttls == NULL || hits == NULL ? -ENOMEM : 0;
    for (size_t i = 0; rc == 0 && i < points; i++)
        ttls[i] = job->rows[i * job->match_count].ttl_us;
    if (rc == 0)
        rc = tierce__ttl_curve(work->recording, job->order, matches, list_matches(job, matches),
                               ttls, points, hits);
    for (size_t i = 0; rc == 0 && i < points * job->match_count; i++)
        job->rows[i].hits = hits[i % job->match_count * points + i / job->match_count];
    tierce__free(ttls);
    tierce__free(hits);
    return rc;
}

static void tell_belady(void *arg, const struct tierce__recorded *request, const uint32_t *hits)
{
    const struct sweep_scan *scan = arg;
    for (size_t m = 0; request->read_count > 0 && m < scan->job->match_count; m++)
        tell(scan->work, &scan->job->rows[m], request, hits[m]);
}

static int run_belady(const struct sweep_work *work, const struct sweep_job *job)
{
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    struct tierce__belady_count counts[TIERCE__BELADY_MATCHES_MAX];
    struct sweep_scan scan = {.work = work, .job = job};
    size_t count = list_matches(job, matches);
    int rc = tierce__belady_watch(work->future, job->capacity, matches, count, counts,
                                  work->is_watched ? tell_belady : NULL, &scan);
    for (size_t m = 0; rc == 0 && m < job->match_count; m++) {
        job->rows[m].hits = counts[m].hits;
        job->rows[m].internal_hits = counts[m].internal_hits;
    }
    return rc;
}

static void fill_rows(const struct sweep_job *job, const struct tierce__replay_result *result)
{
    for (size_t m = 0; m < job->match_count; m++) {
        struct tierce__sweep_row *row = &job->rows[m];
        TIERCE_DASSERT(may_have_hits(job->cache, result->hits[m], result->blocks));
        TIERCE_DASSERT(result->internal_hits[m] <= result->hits[m]);
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

static int run_replay(const struct sweep_work *work, const struct sweep_job *job,
                      struct tierce__jobs *workers)
{
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    struct tierce__sim_point point = {
        .cache = job->cache,
        .order = job->order,
        .capacity = job->capacity,
        .in_bytes = work->opts->in_bytes,
        .ttl_us = job->ttl_us,
        .seed = work->opts->seed,
    };
    struct tierce__replay *replay = NULL;
    struct sweep_seen seen = {0};
    uint64_t done = 0;
    int rc = tierce__sim_replay(&replay, &point,
                                &(struct tierce__replay_opts){
                                    .size = sizeof(struct tierce__replay_opts),
                                    .samples = work->opts->samples,
                                    .distinct = work->totals.distinct,
                                    .matches = matches,
                                    .match_count = list_matches(job, matches),
                                    .next_uses = job->cache->kind == TIERCE__CACHE_ORACLE
                                                     ? tierce__future_next(work->future)
                                                     : NULL,
                                });
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL && has_done(workers, &done);
         r = tierce__recording_next(work->recording, r)) {
        rc = tierce__replay_request(replay, r);
        tell_growth(work, job, &seen, r, tierce__replay_result(replay)->hits);
    }
    if (rc == 0)
        fill_rows(job, tierce__replay_result(replay));
    tierce__replay_destroy(replay);
    return rc;
}

static int run_kvcm(const struct sweep_work *work, const struct sweep_job *job,
                    struct tierce__jobs *workers)
{
    struct tierce__match matches[TIERCE__REPLAY_MATCHES_MAX];
    struct tierce__kvcm_layout layout = {0};
    struct tierce__kvcm_read read;
    struct tierce__kvcm *kvcm = NULL;
    struct sweep_seen seen = {0};
    uint64_t done = 0;
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
         rc == 0 && r != NULL && has_done(workers, &done);
         r = tierce__recording_next(work->recording, r)) {
        rc = tierce__kvcm_request(kvcm, r, &read);
        tell_growth(work, job, &seen, r, tierce__kvcm_result(kvcm)->hits);
    }
    if (rc == 0)
        fill_rows(job, tierce__kvcm_result(kvcm));
    tierce__kvcm_destroy(kvcm);
    tierce__kvcm_layout_clear(&layout);
    return rc;
}

static int run_job(void *arg, size_t index, struct tierce__jobs *workers)
{
    const struct sweep_work *work = arg;
    TIERCE_DASSERT(index < work->job_count);
    const struct sweep_job *job = &work->jobs[index];
    switch (job->kind) {
    case JOB_CURVE:
        return run_curve(work, job, workers);
    case JOB_TTL_CURVE:
        return run_ttl_curve(work, job);
    case JOB_BELADY:
        return run_belady(work, job);
    case JOB_KVCM:
        return run_kvcm(work, job, workers);
    case JOB_REPLAY:
        break;
    }
    return run_replay(work, job, workers);
}

/* ---- which jobs ------------------------------------------------------------------------------ */

/* Curves do not separate hits on internal blocks, and use one last use per block. */
static bool has_curves(const struct sweep_work *work)
{
    return !work->totals.has_reads && work->totals.internal_blocks == 0;
}

static enum job_kind kind_of(const struct sweep_work *work, const struct sweep_job *job)
{
    switch (job->cache->kind) {
    case TIERCE__CACHE_BELADY:
        return JOB_BELADY;
    case TIERCE__CACHE_KVCM:
        return JOB_KVCM;
    case TIERCE__CACHE_ORACLE:
        return JOB_REPLAY;
    case TIERCE__CACHE_POLICY:
        if (!has_curves(work))
            return JOB_REPLAY;
        if (strcmp(job->cache->policy->name, "lru") == 0 && !work->opts->in_bytes)
            return JOB_CURVE;
        /* Not without a time to live: that would be the infinite cache. */
        if (strcmp(job->cache->policy->name, "ttl") == 0 && job->ttl_us > 0 &&
            job->capacity == TIERCE__CAPACITY_UNLIMITED && !work->is_watched)
            return JOB_TTL_CURVE;
        return JOB_REPLAY;
    case TIERCE__CACHE_INFINITE:
        break;
    }
    return JOB_REPLAY;
}

static bool has_match(const struct tierce__cache *cache, const struct tierce__match *match)
{
    return match->kind != TIERCE__MATCH_STREAM || tierce__cache_has_order(cache);
}

/* Appends the rows of one cache, order, capacity and time to live. */
static size_t add_rows(const struct sweep_work *work, struct tierce__sweep *out,
                       const struct sweep_job *job)
{
    size_t added = 0;
    for (size_t m = 0; m < work->opts->match_count; m++) {
        const struct tierce__match *match = &work->opts->matches[m];
        if (!has_match(job->cache, match))
            continue;
        TIERCE_ASSERT(out->row_count < work->rows_max);
        out->rows[out->row_count++] = (struct tierce__sweep_row){
            .cache = job->cache,
            .has_order = tierce__cache_has_order(job->cache),
            .order = job->order,
            .match = *match,
            .capacity = job->capacity,
            .capacity_index = job->capacity_index,
            .ttl_us = job->ttl_us,
            .requests = work->totals.requests,
            .blocks = work->totals.read_blocks,
            .internal_blocks = work->totals.internal_blocks,
            .has_tokens = work->opts->block_tokens > 0 && tierce__match_is_leading(match),
        };
        added++;
    }
    return added;
}

/* Allocates the curves of a job, if they are kept. */
static void add_curves(struct sweep_work *work, struct tierce__sweep *out, struct sweep_job *job)
{
    if (!work->opts->keeps_curves)
        return;
    job->curves = out->curves + out->curve_count;
    for (size_t m = 0; m < job->match_count; m++)
        out->curves[out->curve_count++] = (struct tierce__sweep_curve){
            .cache = job->cache, .order = job->order, .match = job->rows[m].match};
}

/* Adds a point to the previous job if it is on the same curve; else adds a new job. */
static void add_job(struct sweep_work *work, struct tierce__sweep *out, struct sweep_job job)
{
    struct sweep_job *before = work->job_count > 0 ? &work->jobs[work->job_count - 1] : NULL;
    job.kind = kind_of(work, &job);
    job.rows = out->rows + out->row_count;
    job.point_count = 1;
    job.match_count = add_rows(work, out, &job);
    if (job.match_count == 0)
        return;
    bool goes_on = before != NULL && before->kind == job.kind && before->cache == job.cache &&
                   before->order == job.order;
    if (goes_on && (job.kind == JOB_CURVE || job.kind == JOB_TTL_CURVE)) {
        TIERCE_ASSERT(before->match_count == job.match_count);
        TIERCE_ASSERT(before->rows + before->point_count * before->match_count == job.rows);
        before->point_count++;
        return;
    }
    if (job.kind == JOB_CURVE)
        add_curves(work, out, &job);
    TIERCE_ASSERT(work->job_count < work->jobs_max);
    work->jobs[work->job_count++] = job;
}

static void add_jobs(struct sweep_work *work, struct tierce__sweep *out,
                     const struct tierce__cache *cache, enum tierce__touch_order order)
{
    static const uint64_t unlimited = TIERCE__CAPACITY_UNLIMITED, never = 0;
    const struct tierce__sweep_opts *o = work->opts;
    bool infinite = cache->kind == TIERCE__CACHE_INFINITE;
    bool expires = tierce__cache_expires(cache) && o->ttl_count > 0;
    const uint64_t *capacities = infinite ? &unlimited : o->capacities;
    const uint64_t *ttls = expires ? o->ttls : &never;
    for (size_t c = 0; c < (infinite ? 1 : o->capacity_count); c++) {
        if (tierce__cache_foresees(cache) && capacities[c] == unlimited)
            continue; /* that is the infinite one */
        for (size_t t = 0; t < (expires ? o->ttl_count : 1); t++)
            add_job(work, out,
                    (struct sweep_job){.cache = cache,
                                       .order = order,
                                       .capacity = capacities[c],
                                       .capacity_index = c,
                                       .ttl_us = ttls[t]});
    }
}

static int plan(struct sweep_work *work, struct tierce__sweep *out)
{
    const struct tierce__sweep_opts *o = work->opts;
    size_t ttls = o->ttl_count > 0 ? o->ttl_count : 1;
    /* The infinite cache has a row even without capacities. */
    size_t capacities = o->capacity_count > 0 ? o->capacity_count : 1;
    work->jobs_max = o->cache_count * o->order_count * capacities * ttls;
    work->rows_max = work->jobs_max * o->match_count;
    work->jobs = tierce__calloc(work->jobs_max + 1, sizeof(*work->jobs));
    out->rows = tierce__calloc(work->rows_max + 1, sizeof(*out->rows));
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

static int run_all(struct sweep_work *work)
{
    return tierce__jobs_run(&(struct tierce__jobs_opts){
        .job_count = work->job_count,
        .run = run_job,
        .arg = work,
        .threads = work->opts->threads,
        .total = work->totals.requests * work->job_count,
        .progress = work->opts->progress,
        .progress_arg = work->opts->progress_arg,
    });
}

int tierce__sweep_run(struct tierce__sweep *out, const struct tierce__recording *recording,
                      const struct tierce__sweep_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    bool belady = wants(opts, TIERCE__CACHE_BELADY);
    bool foresees = belady || wants(opts, TIERCE__CACHE_ORACLE);
    bool in_blocks = belady || wants(opts, TIERCE__CACHE_KVCM);
    if (opts->match_count > TIERCE__REPLAY_MATCHES_MAX || (in_blocks && opts->in_bytes))
        return TIERCE_E_ARGUMENT;
    struct tierce__future *future = NULL;
    struct tierce__sweep sweep = {.in_bytes = opts->in_bytes, .block_tokens = opts->block_tokens};
    struct sweep_work work = {.recording = recording,
                              .totals = tierce__recording_totals(recording),
                              .opts = opts,
                              .sweep = &sweep,
                              .is_watched = opts->block_tokens > 0 || opts->watch_count > 0};
    int rc = foresees ? tierce__future_create(&future, recording, opts->folder) : 0;
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

void tierce__sweep_name(char out[TIERCE__SWEEP_NAME_BYTES], const struct tierce__sweep_row *row)
{
    char ttl[32] = "";
    if (row->ttl_us > 0)
        tierce__format_duration(ttl, sizeof(ttl), row->ttl_us / 1000);
    snprintf(out, TIERCE__SWEEP_NAME_BYTES, "%s%s%s", row->cache->name, ttl[0] != '\0' ? ":" : "",
             ttl);
}

bool tierce__sweep_same_line(const struct tierce__sweep_row *a, const struct tierce__sweep_row *b)
{
    return a->cache == b->cache && a->order == b->order && a->ttl_us == b->ttl_us &&
           a->match.kind == b->match.kind && a->match.window == b->match.window;
}

void tierce__sweep_clear(struct tierce__sweep *sweep)
{
    for (size_t i = 0; i < sweep->curve_count; i++)
        tierce__free(sweep->curves[i].points);
    tierce__free(sweep->curves);
    tierce__free(sweep->rows);
    *sweep = (struct tierce__sweep){0};
}

static uint64_t store_hits(const struct tierce__sweep_row *row)
{
    TIERCE_DASSERT(row->internal_hits <= row->hits);
    return row->hits - row->internal_hits;
}

double tierce__sweep_rate(const struct tierce__sweep_row *row)
{
    TIERCE_DASSERT(row->internal_blocks <= row->blocks);
    uint64_t blocks = row->blocks - row->internal_blocks;
    TIERCE_DASSERT(may_have_hits(row->cache, store_hits(row), blocks));
    return blocks > 0 ? (double)store_hits(row) / (double)blocks : 0;
}

const struct tierce__sweep_row *tierce__sweep_best(const struct tierce__sweep *sweep,
                                                   const struct tierce__match *match,
                                                   uint64_t budget)
{
    const struct tierce__sweep_row *best = NULL;
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        if (tierce__cache_foresees(row->cache) || row->cache->kind == TIERCE__CACHE_INFINITE ||
            row->match.kind != match->kind || row->match.window != match->window ||
            row->capacity > budget)
            continue;
        if (best == NULL || store_hits(row) > store_hits(best) ||
            (store_hits(row) == store_hits(best) && row->capacity < best->capacity))
            best = row;
    }
    return best;
}
