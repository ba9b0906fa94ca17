/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays beside libCacheSim, the fastest simulator of caches there is to buy for nothing: the same
 * requests in the same order, a core each, the hits compared.
 *
 * The trace, which each row names, is played twenty times, each time with other ids, which are 64
 * bits that look random. One that is made up is smaller than those that are recorded, and better
 * for libCacheSim, whose table then nearly fits the processor's caches: compare rows of one trace.
 * A request is a use of a block. The rate of ours counts everything from the ids in memory to the
 * result: blocks are numbered, recorded in a file, and replayed; its peer is the replay of what is
 * recorded already, as each further cache of a run costs it. libCacheSim reads the same uses from a
 * mapped file in its binary format, in C, and makes its result in C; its table has the size with
 * which it is fastest. Both begin with making the cache.
 *
 * The curve is LRU at every capacity; its limit is the rate of two replays of libCacheSim's LRU.
 */
#include "bench/bench.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench_libcachesim.h"
#include "cli/cli.h"
#include "optimizer/replay/curve.h"
#include "optimizer/replay/replay.h"
#include "optimizer/trace/trace.h"

#define REPEATS_MAX    20u
#define REPEAT_BYTES   (256ULL << 20) /* of what a benchmark may use, generously */
#define MADE_UP_BLOCKS 100000u
#define CAPACITY_SHARE 10u /* one in ten of the different blocks */
#define POWERS_TRIED   4u
#define GOAL           4
#define BYTES_GOAL     64

enum { PREFIX, STREAM, MATCHES };

static const struct tierce__match matches[MATCHES] = {
    [PREFIX] = {.kind = TIERCE__MATCH_PREFIX}, [STREAM] = {.kind = TIERCE__MATCH_STREAM}};

struct requests {
    uint64_t *ids;    /* [count], request after request */
    uint32_t *counts; /* [requests] blocks of each */
    uint64_t count, requests;
    uint64_t room, request_room;
};

struct replay_case {
    const struct tierce__bench *bench;
    struct requests trace;
    char trace_name[TIERCE__CLI_TRACE_NAME_BYTES];
    struct tierce__recording *recording; /* of the trace */
    struct tierce__libcachesim *peer;    /* or NULL */
    uint64_t capacity;
    /* of the case that runs */
    const struct tierce__policy_ops *policy; /* NULL: the curve */
    const char *peer_cache;
    unsigned hash_power;
    uint64_t hits[MATCHES]; /* of the curve: by MATCH_PREFIX */
    uint64_t peer_hits;     /* by MATCH_STREAM */
    uint64_t lru_hits;      /* of LRU by MATCH_PREFIX, which its curve must have too */
    uint64_t bytes;         /* resident: numbering and one cache */
};

/* ---- the trace ------------------------------------------------------------------------------- */

static int grow_requests(struct requests *r, uint32_t blocks)
{
    int rc = TIERCE__GROW(r->ids, r->room, r->count + blocks, 1024);
    return rc < 0 ? rc : TIERCE__GROW(r->counts, r->request_room, r->requests + 1, 1024);
}

static int add_request(struct requests *r, const uint64_t *ids, uint32_t count)
{
    int rc = grow_requests(r, count);
    if (rc < 0)
        return rc;
    if (ids != NULL && count > 0)
        memcpy(r->ids + r->count, ids, count * sizeof(*ids));
    r->counts[r->requests++] = count;
    r->count += count;
    return 0;
}

static int read_file(const struct tierce__bench *bench, struct requests *out, const char *path)
{
    char why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    int rc = tierce__trace_open(
        &trace, path, &(struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts)}, why);
    if (rc < 0)
        return tierce__bench_fail(bench, "%.300s: %s", path, why);
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        rc = add_request(out, request.blocks, request.count);
        if (rc < 0)
            break;
    }
    if (rc < 0)
        rc = tierce__bench_fail(bench, "%.300s: %s", path, tierce__trace_error(trace));
    tierce__trace_close(trace);
    return rc == 0 && out->count == 0 ? tierce__bench_fail(bench, "%.300s: no block", path) : rc;
}

/* Half of the requests continue an earlier one. */
static int make_up(struct requests *out)
{
    uint64_t next = 1;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && out->count < MADE_UP_BLOCKS; i++) {
        uint64_t ids[48], old = tierce__bench_random(1, i);
        uint32_t count = 0, shared = old % 2 == 0 ? (uint32_t)(old / 2 % 24) : 0;
        uint32_t fresh = 1 + (uint32_t)(tierce__bench_random(2, i) % 24);
        uint64_t first = tierce__bench_random(3, i) % next;
        for (uint32_t k = 0; k < shared + fresh; k++)
            ids[count++] = k < shared && first + k < next ? first + k : next++;
        rc = add_request(out, ids, count);
    }
    return rc;
}

/* The trace again and again, each time with other ids. */
static int repeat(struct requests *r, uint32_t repeats)
{
    uint64_t blocks = r->count, requests = r->requests;
    for (uint32_t n = 1; n < repeats; n++) {
        for (uint64_t i = 0; i < requests; i++) {
            int rc = add_request(r, NULL, r->counts[i]);
            if (rc < 0)
                return rc;
        }
    }
    for (uint64_t i = r->count; i-- > 0;)
        r->ids[i] = tierce__bench_random(1 + i / blocks, r->ids[i % blocks]);
    return 0;
}

static int make_trace(struct replay_case *c)
{
    char path[4096];
    const char *data = getenv("TIERCE_TEST_DATA"), *file = c->bench->trace;
    struct stat st;
    snprintf(path, sizeof(path), "%s/traces/mooncake_conversation.jsonl", data != NULL ? data : "");
    if (file == NULL && data != NULL && stat(path, &st) == 0)
        file = path;
    if (file != NULL)
        tierce__cli_trace_name(c->trace_name, file);
    else
        snprintf(c->trace_name, sizeof(c->trace_name), "a made-up trace");
    int rc = file != NULL ? read_file(c->bench, &c->trace, file) : make_up(&c->trace);
    uint64_t repeats = c->bench->memory_bytes / REPEAT_BYTES;
    repeats = repeats > REPEATS_MAX ? REPEATS_MAX : repeats > 0 ? repeats : 1;
    return rc == 0 ? repeat(&c->trace, (uint32_t)repeats) : rc;
}

/* ---- ours ------------------------------------------------------------------------------------ */

static int record(struct tierce__recording **out, const struct requests *trace, const char *folder)
{
    struct tierce__recording *recording;
    uint64_t at = 0;
    int rc = tierce__recording_create(&recording, folder);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; rc == 0 && i < trace->requests; at += trace->counts[i++]) {
        rc = tierce__recording_add(recording,
                                   &(struct tierce__trace_request){.time_us = (int64_t)i,
                                                                   .kind = TIERCE__TRACE_TURN,
                                                                   .count = trace->counts[i],
                                                                   .read_count = trace->counts[i],
                                                                   .blocks = trace->ids + at});
        if (rc == 0)
            rc = tierce__recording_expect(recording, i + 1, trace->requests);
    }
    return tierce__recording_end(recording, rc, out);
}

/* Memory of this process that is not a file's, in bytes; 0 if it cannot be known. */
static uint64_t resident_bytes(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL && sscanf(line, "RssAnon: %llu kB", &kib) != 1)
        continue;
    fclose(file);
    return kib * 1024;
}

static int replay_policy(struct replay_case *c, const struct tierce__recording *recording,
                         uint64_t *resident)
{
    struct tierce__replay *replay;
    int rc =
        tierce__replay_create(&replay, &(struct tierce__replay_opts){
                                           .size = sizeof(struct tierce__replay_opts),
                                           .policy = c->policy,
                                           .capacity = c->capacity,
                                           .order = TIERCE__TOUCH_REV,
                                           .distinct = tierce__recording_totals(recording).distinct,
                                           .matches = matches,
                                           .match_count = MATCHES,
                                       });
    if (rc < 0)
        return rc;
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r))
        rc = tierce__replay_request(replay, r);
    memcpy(c->hits, tierce__replay_result(replay)->hits, sizeof(c->hits));
    if (resident != NULL)
        *resident = resident_bytes();
    tierce__replay_destroy(replay);
    return rc;
}

static int draw_curve(struct replay_case *c, const struct tierce__recording *recording,
                      uint64_t *resident)
{
    struct tierce__curve *curve;
    int rc = tierce__curve_create(&curve, TIERCE__TOUCH_REV, &matches[PREFIX], 1);
    if (rc < 0)
        return rc;
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r))
        rc = tierce__curve_request(curve, tierce__recorded_blocks(r), r->count, r->read_count);
    c->hits[PREFIX] = tierce__curve_hits(curve, 0, c->capacity);
    if (resident != NULL)
        *resident = resident_bytes();
    tierce__curve_destroy(curve);
    return rc;
}

static int replay(struct replay_case *c, const struct tierce__recording *recording,
                  uint64_t *resident)
{
    return c->policy != NULL ? replay_policy(c, recording, resident)
                             : draw_curve(c, recording, resident);
}

static int64_t run_from_ids(void *arg)
{
    struct replay_case *c = arg;
    struct tierce__recording *recording;
    uint64_t start = tierce__now_ns();
    int rc = record(&recording, &c->trace, c->bench->dir);
    if (rc < 0)
        return rc;
    rc = replay(c, recording, NULL);
    tierce__recording_destroy(recording);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

static int64_t run_recorded(void *arg)
{
    struct replay_case *c = arg;
    uint64_t start = tierce__now_ns();
    int rc = replay(c, c->recording, NULL);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

/* The memory of a numbering and one cache. */
static int measure_bytes(struct replay_case *c)
{
    struct tierce__recording *recording;
    (void)malloc_trim(0); /* or memory that was given back is used again, and does not count */
    uint64_t before = resident_bytes(), after = 0;
    int rc = record(&recording, &c->trace, c->bench->dir);
    if (rc < 0)
        return rc;
    rc = replay(c, recording, &after);
    tierce__recording_destroy(recording);
    c->bytes = after > before ? after - before : 0;
    return rc;
}

/* ---- libCacheSim's --------------------------------------------------------------------------- */

/* oracleGeneral: time, id, size, when it comes next. */
struct oracle_request {
    uint32_t time;
    uint32_t id[2];
    uint32_t size;
    uint32_t next[2];
};

/* The uses in the order of ours: each request from its last block to its first. */
static int write_oracle(const struct requests *trace, const char *path)
{
    FILE *file = fopen(path, "we");
    uint64_t at = 0;
    if (file == NULL)
        return -errno;
    for (uint64_t i = 0; i < trace->requests; at += trace->counts[i++]) {
        for (uint32_t k = trace->counts[i]; k-- > 0;) {
            struct oracle_request out = {.time = (uint32_t)i, .size = 1};
            memcpy(out.id, &trace->ids[at + k], sizeof(out.id));
            memset(out.next, 0xff, sizeof(out.next));
            fwrite(&out, sizeof(out), 1, file);
        }
    }
    bool good = ferror(file) == 0;
    return fclose(file) == 0 && good ? 0 : -EIO;
}

static void open_peer(struct replay_case *c, const char *path)
{
    char why[TIERCE__LIBCACHESIM_WHY_BYTES];
    const char *python = c->bench->python != NULL ? c->bench->python : "python3";
    int rc = write_oracle(&c->trace, path);
    if (rc < 0)
        snprintf(why, sizeof(why), "%.200s: %s", path, tierce_strerror(rc));
    else
        rc = tierce__libcachesim_open(&c->peer, python, path, why);
    if (rc < 0)
        fprintf(stderr, "tierce bench: %s: without libCacheSim: %s\n", c->bench->name, why);
}

static int64_t run_peer(void *arg)
{
    struct replay_case *c = arg;
    uint64_t ns;
    int rc = tierce__libcachesim_run(c->peer, &ns, &c->peer_hits, c->peer_cache, c->capacity,
                                     c->hash_power);
    return rc < 0 ? rc : (int64_t)ns;
}

/* The table's size with which it is fastest. */
static int choose_power(struct replay_case *c)
{
    unsigned least = 1, best = 0;
    int64_t best_ns = INT64_MAX;
    while (1ULL << least < c->capacity)
        least++;
    for (c->hash_power = least; c->hash_power < least + POWERS_TRIED; c->hash_power++) {
        int64_t ns = run_peer(c);
        if (ns < 0)
            return (int)ns;
        best = ns < best_ns ? c->hash_power : best;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    c->hash_power = best;
    return 0;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int measure(struct replay_case *c, const char *name)
{
    struct tierce__bench_side sides[] = {{.run = run_from_ids, .arg = c},
                                         {.run = run_recorded, .arg = c},
                                         {.run = run_peer, .arg = c}};
    int rc = c->peer != NULL ? choose_power(c) : 0;
    if (rc == 0)
        rc = tierce__bench_alternate(sides, c->peer != NULL ? 3 : 2, c->bench->seconds);
    if (rc < 0)
        return rc;
    if (c->peer != NULL && c->policy != NULL && c->hits[STREAM] != c->peer_hits)
        return tierce__bench_fail(c->bench, "%s: %llu hits, libCacheSim %llu", name,
                                  (unsigned long long)c->hits[STREAM],
                                  (unsigned long long)c->peer_hits);
    if (c->policy != NULL && strcmp(c->policy->name, "lru") == 0)
        c->lru_hits = c->hits[PREFIX];
    if (c->policy == NULL && c->hits[PREFIX] != c->lru_hits)
        return tierce__bench_fail(c->bench, "the curve differs from LRU's");
    double blocks = (double)c->trace.count * 1e3;
    struct tierce__bench_row row = {.case_name = name,
                                    .unit = "Mblocks/s",
                                    .value = blocks / sides[0].median_ns,
                                    .value_min = blocks / sides[0].max_ns,
                                    .value_max = blocks / sides[0].min_ns,
                                    .goal = c->policy != NULL ? GOAL : 1,
                                    .peer = "recorded already",
                                    .peer_value = blocks / sides[1].median_ns};
    if (c->peer != NULL) {
        double replays = c->policy != NULL ? 1 : 2;
        row.limit = blocks / sides[2].median_ns / replays;
        row.limit_min = blocks / sides[2].max_ns / replays;
        row.limit_max = blocks / sides[2].min_ns / replays;
    }
    tierce__bench_emit(c->bench, &row);
    return 0;
}

static int run_case(struct replay_case *c, const char *policy, const char *shown, const char *peer)
{
    char name[64 + TIERCE__CLI_TRACE_NAME_BYTES];
    uint32_t distinct = tierce__recording_totals(c->recording).distinct;
    c->policy = policy != NULL ? tierce__policy_find(policy) : NULL;
    c->peer_cache = peer;
    snprintf(name, sizeof(name), "%s; %llu of %u blocks; %s", shown,
             (unsigned long long)c->capacity, distinct, c->trace_name);
    int rc = measure(c, name);
    if (rc == 0)
        rc = measure_bytes(c);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "memory; %s; %s", shown, c->trace_name);
    tierce__bench_emit(c->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "B/block",
                                                             .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                             .value = (double)c->bytes / distinct,
                                                             .limit = BYTES_GOAL,
                                                             .goal = 1});
    return 0;
}

static int run_cases(struct replay_case *c)
{
    static const struct {
        const char *policy, *shown, *peer;
    } cases[] = {
        {"lru", "lru", "LRU"}, {"sieve", "sieve", "Sieve"}, {"s3fifo_lcs", "s3fifo", "S3FIFO"},
        {"arc", "arc", "ARC"}, {"lfu", "lfu", "LFU"},       {NULL, "lru curve", "LRU"},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(cases) / sizeof(cases[0]); i++)
        rc = run_case(c, cases[i].policy, cases[i].shown, cases[i].peer);
    return rc;
}

int tierce__bench_replay(const struct tierce__bench *bench)
{
    char path[4096];
    struct replay_case c = {.bench = bench};
    snprintf(path, sizeof(path), "%s/trace.oracleGeneral", bench->dir);
    int rc = make_trace(&c);
    if (rc == 0)
        rc = record(&c.recording, &c.trace, bench->dir);
    if (rc == 0) {
        c.capacity = tierce__recording_totals(c.recording).distinct / CAPACITY_SHARE;
        c.capacity = c.capacity > 0 ? c.capacity : 1;
        open_peer(&c, path);
        rc = run_cases(&c);
    }
    tierce__libcachesim_close(c.peer);
    (void)remove(path);
    tierce__recording_destroy(c.recording);
    tierce__free(c.trace.ids);
    tierce__free(c.trace.counts);
    return rc;
}
