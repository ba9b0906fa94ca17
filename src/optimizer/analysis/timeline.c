/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/timeline.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/replay/replay.h"
#include "optimizer/replay/jobs.h"

#include <errno.h>
#include <string.h>

struct timeline_work {
    const struct tierce__recording *recording;
    const struct tierce__timeline_opts *opts;
    struct tierce__recording_totals totals;
    struct tierce__timeline *out;
};

/* ---- one line -------------------------------------------------------------------------------- */

/* Writes the counts since `before` into slices up to `end`: the first slice gets all of them,
 * because the others have no requests; those repeat the use. */
static void fill_slices(struct tierce__timeline_slice *slices, uint32_t from, uint32_t end,
                        const struct tierce__replay_result *before,
                        const struct tierce__replay_result *now)
{
    TIERCE_ASSERT(from <= end);
    if (from == end)
        return;
    slices[from] = (struct tierce__timeline_slice){
        .requests = now->requests - before->requests,
        .blocks = now->blocks - before->blocks,
        .internal_blocks = now->internal_blocks - before->internal_blocks,
        .hits = now->hits[0] - before->hits[0],
        .internal_hits = now->internal_hits[0] - before->internal_hits[0],
        .stored = now->stored - before->stored,
        .evicted = now->evicted - before->evicted,
        .expired = now->expired - before->expired,
    };
    for (uint32_t i = from; i < end; i++)
        slices[i].used = now->used;
}

/* A cache of either kind. */
struct timeline_cache {
    struct tierce__replay *replay;
    struct tierce__kvcm_layout layout;
    struct tierce__kvcm *kvcm;
};

static int open_cache(struct timeline_cache *cache, const struct timeline_work *work,
                      const struct tierce__sim_point *point)
{
    const struct tierce__timeline_opts *o = work->opts;
    if (point->cache->kind != TIERCE__CACHE_KVCM)
        return tierce__sim_replay(&cache->replay, point,
                                  &(struct tierce__replay_opts){
                                      .size = sizeof(struct tierce__replay_opts),
                                      .distinct = work->totals.distinct,
                                      .matches = &o->match,
                                      .match_count = 1,
                                  });
    int rc = tierce__kvcm_layout_single(&cache->layout, work->totals.instances, point->cache->kvcm,
                                        point->capacity, &o->kvcm);
    return rc < 0 ? rc
                  : tierce__kvcm_create(&cache->kvcm, &(struct tierce__kvcm_opts){
                                                          .size = sizeof(struct tierce__kvcm_opts),
                                                          .layout = &cache->layout,
                                                          .distinct = work->totals.distinct,
                                                          .matches = &o->match,
                                                          .match_count = 1,
                                                      });
}

static void close_cache(struct timeline_cache *cache)
{
    tierce__replay_destroy(cache->replay);
    tierce__kvcm_destroy(cache->kvcm);
    tierce__kvcm_layout_clear(&cache->layout);
}

static int play(struct timeline_cache *cache, const struct tierce__recorded *request)
{
    struct tierce__kvcm_read read;
    return cache->kvcm != NULL ? tierce__kvcm_request(cache->kvcm, request, &read)
                               : tierce__replay_request(cache->replay, request);
}

static const struct tierce__replay_result *result_of(const struct timeline_cache *cache)
{
    return cache->kvcm != NULL ? tierce__kvcm_result(cache->kvcm)
                               : tierce__replay_result(cache->replay);
}

static int run_line(void *arg, size_t index, struct tierce__jobs *workers)
{
    struct timeline_work *work = arg;
    struct tierce__timeline *out = work->out;
    struct tierce__timeline_slice *slices = out->lines[index].slices;
    struct tierce__replay_result before = {0};
    struct timeline_cache cache = {0};
    uint32_t slice = 0;
    int rc = open_cache(&cache, work, &out->lines[index].point);
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL; r = tierce__recording_next(work->recording, r)) {
        TIERCE_DASSERT(r->time_us >= out->start_us);
        uint32_t at = (uint32_t)((uint64_t)(r->time_us - out->start_us) / out->slice_us);
        TIERCE_DASSERT(at < out->slice_count);
        TIERCE_DASSERT(at >= slice);
        if (at > slice) {
            if (!tierce__jobs_tell(workers, 0))
                break;
            fill_slices(slices, slice, at, &before, result_of(&cache));
            before = *result_of(&cache);
            slice = at;
        }
        rc = play(&cache, r);
    }
    if (rc == 0)
        fill_slices(slices, slice, out->slice_count, &before, result_of(&cache));
    close_cache(&cache);
    return rc;
}

/* ---- all lines ------------------------------------------------------------------------------- */

static int plan(struct timeline_work *work)
{
    const struct tierce__timeline_opts *o = work->opts;
    struct tierce__timeline *out = work->out;
    uint32_t most = o->slices_max > 0 ? o->slices_max : TIERCE__TIMELINE_SLICES;
    uint64_t span = (uint64_t)(work->totals.last_us - work->totals.first_us) + 1;
    TIERCE_ASSERT(work->totals.last_us >= work->totals.first_us);
    out->start_us = work->totals.first_us;
    out->slice_us = span / most + (span % most != 0);
    out->slice_count = (uint32_t)((span - 1) / out->slice_us + 1);
    out->lines = tierce__calloc(o->point_count + 1, sizeof(*out->lines));
    if (out->lines == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < o->point_count; i++) {
        struct tierce__timeline_line *line = &out->lines[out->line_count++];
        line->point = o->points[i];
        line->slices = tierce__calloc(out->slice_count, sizeof(*line->slices));
        if (line->slices == NULL)
            return -ENOMEM;
    }
    return 0;
}

int tierce__timeline_run(struct tierce__timeline *out, const struct tierce__recording *recording,
                         const struct tierce__timeline_opts *opts)
{
    struct tierce__timeline timeline = {0};
    struct timeline_work work = {.recording = recording,
                                 .opts = opts,
                                 .totals = tierce__recording_totals(recording),
                                 .out = &timeline};
    int rc = plan(&work);
    if (rc == 0)
        rc = tierce__jobs_run(&(struct tierce__jobs_opts){
            .job_count = timeline.line_count,
            .run = run_line,
            .arg = &work,
            .threads = opts->threads,
        });
    if (rc == 0)
        *out = timeline;
    else
        tierce__timeline_clear(&timeline);
    return rc;
}

void tierce__timeline_clear(struct tierce__timeline *timeline)
{
    for (size_t i = 0; i < timeline->line_count; i++)
        tierce__free(timeline->lines[i].slices);
    tierce__free(timeline->lines);
    *timeline = (struct tierce__timeline){0};
}
