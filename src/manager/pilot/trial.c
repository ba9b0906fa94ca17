/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/trial.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/mix.h"
#include "manager/pilot/ghost_curve.h"
#include "manager/pilot/ghost_ring.h"
#include "manager/reclaim/victims.h"
#include "optimizer/replay/ranked.h"

#include <errno.h>
#include <math.h>

enum { KEY_PARTS = 16, TIME_PARTS = 8, PARTS = KEY_PARTS + TIME_PARTS };
#define TWO_TO_64 18446744073709551616.0

/* A request with the keys of the common sample. */
struct trial_request {
    int64_t time_us;
    double weight; /* tokens for which a key stands */
    uint32_t first, count;
    uint8_t kind;
};

struct trial_key {
    uint64_t id;
    uint32_t member;
};

struct trying {
    const struct tierce__trial_opts *opts;
    double unit;      /* the largest of the log: the sample that all requests have in common */
    double key_bytes; /* the smallest of a key */
    size_t request_room, key_room;
    struct trial_request *requests;
    size_t request_count;
    uint32_t *keys; /* numbers */
    uint32_t key_count;
    struct trial_key *names; /* of the numbers */
    uint32_t name_count;
    struct tierce__numbers numbers;
    bool *hit;
    size_t counted_from; /* a request; request_count: not known yet */
    double sums[TIERCE__TRIAL_SETTINGS_MAX][PARTS];
};

/* ---- the log, numbered ----------------------------------------------------------------------- */

static void measure_log(struct trying *t)
{
    struct tierce__ghost_entry entry;
    t->key_bytes = INFINITY;
    for (size_t at = 0; tierce__ghost_log_next(t->opts->log, &at, &entry);) {
        t->request_room++;
        t->key_room += entry.count;
        t->unit = fmax(t->unit, entry.unit_bytes);
        t->key_bytes = fmin(t->key_bytes, entry.key_bytes);
    }
}

static uint32_t number_of(struct trying *t, uint32_t member, uint64_t id)
{
    uint32_t hash = (uint32_t)(tierce__spread(id + member * TIERCE__MIX_SECOND) >> 32);
    TIERCE__NUMBERS_FOR_EACH (it, &t->numbers, hash) {
        if (t->names[it.number].id == id && t->names[it.number].member == member)
            return it.number;
    }
    uint32_t number = t->name_count++;
    t->names[number] = (struct trial_key){id, member};
    tierce__numbers_put(&t->numbers, hash, number);
    return number;
}

/* Adds the keys of a request that are in the common sample. */
static void add_request(struct trying *t, const struct tierce__ghost_entry *entry)
{
    double bound = entry->key_bytes / t->unit * TWO_TO_64;
    struct trial_request request = {.time_us = entry->time_us,
                                    .weight = entry->tokens * t->unit / entry->key_bytes,
                                    .first = t->key_count,
                                    .kind = entry->kind};
    for (uint32_t i = 0; i < entry->count; i++) {
        uint64_t id = entry->keys[i] & ~(uint64_t)(TIERCE__GHOST_CLASSES - 1);
        if ((double)id <= bound)
            t->keys[t->key_count++] = number_of(t, entry->member, id);
    }
    request.count = t->key_count - request.first;
    if (request.count > 0)
        t->requests[t->request_count++] = request;
}

static int number_log(struct trying *t)
{
    struct tierce__ghost_entry entry;
    measure_log(t);
    t->requests = tierce__calloc(t->request_room + 1, sizeof(*t->requests));
    t->keys = tierce__calloc(t->key_room + 1, sizeof(*t->keys));
    t->names = tierce__calloc(t->key_room + 1, sizeof(*t->names));
    t->hit = tierce__calloc(t->key_room + 1, sizeof(*t->hit));
    if (t->requests == NULL || t->keys == NULL || t->names == NULL || t->hit == NULL ||
        tierce__numbers_reserve(&t->numbers, t->key_room + 1) < 0)
        return -ENOMEM;
    for (size_t at = 0; tierce__ghost_log_next(t->opts->log, &at, &entry);)
        add_request(t, &entry);
    TIERCE_ASSERT(t->key_count <= t->key_room && t->name_count <= t->key_count);
    return 0;
}

static void close_trying(struct trying *t)
{
    tierce__numbers_fini(&t->numbers);
    tierce__free(t->requests);
    tierce__free(t->keys);
    tierce__free(t->names);
    tierce__free(t->hit);
}

/* ---- one setting ----------------------------------------------------------------------------- */

/* The clock may have gone back between two requests. */
static int64_t last_time(const struct trying *t)
{
    int64_t last_us = 0;
    for (size_t i = 0; i < t->request_count; i++)
        last_us = t->requests[i].time_us > last_us ? t->requests[i].time_us : last_us;
    return last_us;
}

static void count_hits(struct trying *t, size_t setting, size_t at)
{
    const struct trial_request *request = &t->requests[at];
    size_t part = (at - t->counted_from) * TIME_PARTS / (t->request_count - t->counted_from);
    TIERCE_DASSERT(part < TIME_PARTS);
    for (uint32_t i = 0; i < request->count; i++) {
        if (!t->hit[i])
            continue;
        uint64_t id = t->names[t->keys[request->first + i]].id / TIERCE__GHOST_CLASSES;
        t->sums[setting][id % KEY_PARTS] += request->weight;
        t->sums[setting][KEY_PARTS + part] += request->weight;
    }
}

/* Whether the hits of this lookup count. The first setting decides it for all. */
static bool counts(struct trying *t, size_t at, const struct tierce__ranked *cache)
{
    bool is_due = t->opts->from_us > 0
                      ? t->requests[at].time_us >= t->opts->from_us
                      : tierce__ranked_has_lost(cache) || at >= t->request_count / 2;
    if (t->counted_from == t->request_count && is_due)
        t->counted_from = at;
    return at >= t->counted_from;
}

static void replay_request(struct trying *t, size_t setting, size_t at, uint64_t now_us,
                           struct tierce__ranked *cache)
{
    const struct trial_request *request = &t->requests[at];
    const uint32_t *keys = t->keys + request->first;
    switch ((enum tierce__ghost_kind)request->kind) {
    case TIERCE__GHOST_READ_LEADING:
    case TIERCE__GHOST_READ_ANY: {
        bool is_counted = counts(t, at, cache);
        (void)tierce__ranked_read(cache, keys, request->count,
                                  request->kind == TIERCE__GHOST_READ_LEADING, now_us, t->hit);
        if (is_counted)
            count_hits(t, setting, at);
        break;
    }
    case TIERCE__GHOST_USE: /* the locator notes such uses for times to live alone */
        if (t->opts->settings[setting].ttl_us > 0)
            tierce__ranked_use(cache, keys, request->count, now_us);
        break;
    case TIERCE__GHOST_WRITE:
        tierce__ranked_write(cache, keys, request->count, now_us);
        break;
    }
}

static int try_setting(struct trying *t, size_t setting, uint32_t capacity)
{
    const struct tierce__trial_setting *s = &t->opts->settings[setting];
    struct tierce__ranked *cache;
    int64_t now_us = 0;
    /* Up to there the choice of reclaim is exact. */
    bool is_exact = t->opts->bytes <= t->key_bytes * TIERCE__RECLAIM_SAMPLE_KEYS;
    int rc = tierce__ranked_create(
        &cache, &(struct tierce__ranked_opts){.size = sizeof(struct tierce__ranked_opts),
                                              .policy = s->policy,
                                              .half_life_us = TIERCE__RECLAIM_HALF_LIFE_US,
                                              .ttl_us = s->ttl_us > 0 ? (uint64_t)s->ttl_us : 0,
                                              .end_us = (uint64_t)last_time(t),
                                              .capacity = capacity,
                                              .drawn = is_exact ? 0 : TIERCE__RECLAIM_SLICE,
                                              .keys = t->name_count});
    for (size_t i = 0; rc == 0 && i < t->request_count; i++) {
        now_us = t->requests[i].time_us > now_us ? t->requests[i].time_us : now_us;
        replay_request(t, setting, i, (uint64_t)now_us, cache);
    }
    if (rc == 0)
        tierce__ranked_destroy(cache);
    return rc;
}

/* ---- results --------------------------------------------------------------------------------- */

/* The standard error of a sum of parts. */
static double error_of(const double *more, size_t count)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < count; i++)
        mean += more[i] / (double)count;
    for (size_t i = 0; i < count; i++)
        squares += (more[i] - mean) * (more[i] - mean);
    return sqrt(squares * (double)count / (double)(count - 1));
}

static void sum_up(const struct trying *t, struct tierce__trial *out)
{
    for (size_t i = t->counted_from; i < t->request_count; i++) {
        const struct trial_request *request = &t->requests[i];
        if (request->kind > TIERCE__GHOST_READ_ANY)
            continue;
        out->asked += request->weight * request->count;
        out->sampled += request->count;
    }
    if (out->sampled > 0)
        out->seconds = (double)(t->requests[t->request_count - 1].time_us -
                                t->requests[t->counted_from].time_us) /
                       1e6;
    out->seconds = fmax(out->seconds, 0);
    for (size_t s = 0; s < t->opts->count; s++) {
        double more[PARTS], tokens = 0;
        for (size_t i = 0; i < PARTS; i++)
            more[i] = t->sums[s][i] - t->sums[0][i];
        for (size_t i = 0; i < KEY_PARTS; i++) {
            tokens += t->sums[s][i];
            out->hits[s].more += more[i];
        }
        out->hits[s].tokens = tokens;
        out->hits[s].error =
            fmax(error_of(more, KEY_PARTS), error_of(more + KEY_PARTS, TIME_PARTS));
    }
}

int tierce__trial_run(struct tierce__trial *out, const struct tierce__trial_opts *opts)
{
    struct tierce__trial made = {0};
    struct trying *t = tierce__calloc(1, sizeof(*t));
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    TIERCE_ASSERT(opts->count > 0 && opts->count <= TIERCE__TRIAL_SETTINGS_MAX);
    if (t == NULL)
        return -ENOMEM;
    t->opts = opts;
    int rc = number_log(t);
    t->counted_from = t->request_count;
    double capacity = t->unit > 0 ? opts->bytes / t->unit : 0;
    made.capacity = capacity < UINT32_MAX ? (uint32_t)capacity : UINT32_MAX;
    for (size_t s = 0; rc == 0 && s < opts->count && made.capacity > 0; s++)
        rc = try_setting(t, s, made.capacity);
    if (rc == 0)
        sum_up(t, &made);
    close_trying(t);
    tierce__free(t);
    if (rc == 0)
        *out = made;
    return rc;
}
