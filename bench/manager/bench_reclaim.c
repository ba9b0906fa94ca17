/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fifth of the blocks is reclaimed, with real files of slots in the folder of the benchmark: the
 * time until the last one is deleted, and lookups of other blocks meanwhile. It is reclaimed in
 * steps, with lookups alone between them, because the speed of a shared machine drifts by more than
 * the goal within seconds. The goal is that of a manager with 10,000,000 blocks; --blocks says how
 * many there are. Other indexes and storages follow, with fewer blocks and without a goal. Objects
 * of Redis and S3 were never written: their deletions are real requests.
 */
#include "bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/manager/bench_locator.h"
#include "bench/manager/bench_startup.h"
#include "bench/remote/bench_redis_server.h"
#include "bench/remote/bench_s3_server.h"
#include "manager/reclaim/reclaimer.h"

enum {
    BLOCKS_DEFAULT = 100000,
    CHAINS_MIN = 16,
    HOT_SHARE = 16,     /* one chain in so many is read, and was stored last */
    DELETE_THREADS = 8, /* the default of delete.threads */
    STEPS = 10,
    RECLAIM_PERMILLE = 200, /* of the blocks, in all steps */
    STEP_MS_MAX = 60000,
    BLOCKS_OF_MS_MIN = 5,  /* and so much longer for many blocks beside other programs */
    FILES_MAX = 200000,    /* with more blocks they are larger: making them would take the time */
    SAMPLES_MAX = 1 << 20, /* of lookups */
};

/* A case. */
struct reclaim_case {
    const char *index, *storage; /* their names in rows */
    const char *index_kind;      /* NULL: in memory; else below index_uri */
    const char *type;            /* NULL: files */
    uint64_t blocks_max;         /* 0: no limit */
    int steps;
    bool uses_redis, uses_s3;
};

static const struct reclaim_case cases[] = {
    {"memory", "files", NULL, NULL, 0, STEPS, false, false},
    {"RocksDB", "files", "rocksdb", NULL, 100000, 1, false, false},
    {"Redis", "files", "redis", NULL, 50000, 1, true, false},
    {"memory", "Redis", NULL, "redis", 100000, 1, true, false},
    {"memory", "S3", NULL, "s3", 100000, 1, false, true},
};

struct reclaim_bench {
    const struct tierce__bench *bench;
    const struct reclaim_case *what;
    struct tierce__bench_redis_server redis;
    struct tierce__bench_s3 *s3;
    char spec[4300], index_uri[4200];
    struct tierce__bench_locator base;
    struct tierce__reclaimer *reclaimer;
    struct tierce__arena arena; /* of lookups */
    char last[4096];            /* the file that was made last */
    uint64_t chains, draws;
    unsigned file_blocks;
    struct samples {
        int64_t *ns;
        size_t count;
    } alone, meanwhile;    /* lookups */
    uint64_t ns, index_ns; /* of all steps: until the blocks were deleted, had left the index */
};

/* ---- blocks --------------------------------------------------------------------------------- */

static int make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        int rc = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : -errno;
        *at = '/';
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The files as a client makes them, but with holes in place of bytes. */
static int write_files(void *arg, const struct tierce__found *locations, size_t count)
{
    struct reclaim_bench *r = (struct reclaim_bench *)arg;
    for (size_t i = 0; i < count; i++) {
        char path[sizeof(r->last)];
        const char *from = strchr(strstr(locations[i].specs[0].uri, "://") + 3, '/');
        snprintf(path, sizeof(path), "%.*s", (int)strcspn(from, "?"), from);
        if (strcmp(path, r->last) == 0)
            continue;
        if (r->last[0] == '\0' && make_folders(path) < 0)
            return -errno;
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return -errno;
        int rc = ftruncate(fd, (off_t)r->file_blocks * TIERCE__BENCH_BLOCK_BYTES) == 0 ? 0 : -errno;
        close(fd);
        if (rc < 0)
            return rc;
        memcpy(r->last, path, sizeof(path));
    }
    return 0;
}

static double bytes_of(const struct reclaim_bench *r)
{
    return (double)(r->chains * TIERCE__BENCH_CHAIN_KEYS * TIERCE__BENCH_BLOCK_BYTES);
}

/* The bytes that may stay after so many steps. */
static double most_after(const struct reclaim_bench *r, int steps)
{
    return bytes_of(r) * (1 - (double)steps / r->what->steps * RECLAIM_PERMILLE / 1000);
}

/* From now on the group is above its watermark by a step. */
static int limit_group(struct reclaim_bench *r, int steps)
{
    const double watermark = 0.8;
    const struct tierce__catalog *catalog = tierce__registry_acquire(r->base.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, TIERCE__BENCH_GROUP);
    group.capacity_bytes = (int64_t)(most_after(r, steps) / watermark);
    group.delay_before_delete_ms = 0; /* it would be a part of each step */
    group.version++;
    int rc =
        tierce__registry_update_group(r->base.registry, &group, group.version - 1, r->base.why);
    tierce__registry_release(r->base.registry, catalog);
    return rc;
}

/* ---- lookups -------------------------------------------------------------------------------- */

static int look_up(struct reclaim_bench *r, struct samples *samples)
{
    uint64_t hot = r->chains / HOT_SHARE;
    uint64_t chain = r->chains - 1 - tierce__bench_random(33, r->draws++) % hot;
    int64_t ns = tierce__bench_locator_get(&r->base, chain, &r->arena);
    if (ns >= 0 && samples->count < SAMPLES_MAX)
        samples->ns[samples->count++] = ns;
    return ns < 0 ? (int)ns : 0;
}

static int compare(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* In us. */
static double median_of(struct samples *samples)
{
    if (samples->count == 0)
        return 0;
    qsort(samples->ns, samples->count, sizeof(*samples->ns), compare);
    return (double)samples->ns[samples->count / 2] / 1e3;
}

/* ---- the measurement ------------------------------------------------------------------------ */

/* Looks blocks up until those of the step are deleted. */
static int reclaim(struct reclaim_bench *r, int step)
{
    enum { LOOKUPS = 64 }; /* between two looks at the group */
    double most = most_after(r, step);
    struct tierce__usage usage;
    uint64_t start = tierce__now_ns(), index_ns = 0;
    uint64_t blocks = r->chains * TIERCE__BENCH_CHAIN_KEYS;
    uint64_t ms_max = STEP_MS_MAX + blocks * RECLAIM_PERMILLE / 1000 / STEPS / BLOCKS_OF_MS_MIN;
    uint64_t end = tierce__deadline_in_ms((uint32_t)ms_max);
    tierce__reclaimer_resume(r->reclaimer);
    do {
        for (int i = 0; i < LOOKUPS; i++) {
            int rc = look_up(r, &r->meanwhile);
            if (rc < 0)
                return rc;
        }
        tierce__locator_group_usage(r->base.locator, TIERCE__BENCH_GROUP, &usage);
        if (index_ns == 0 && (double)usage.serving_bytes <= most)
            index_ns = tierce__now_ns() - start;
        if (tierce__now_ns() > end)
            return tierce__bench_fail(r->bench, "a step was not reclaimed in %llu s",
                                      (unsigned long long)(ms_max / 1000));
    } while ((double)usage.serving_bytes > most || usage.deleting_bytes > 0);
    r->ns += tierce__now_ns() - start;
    r->index_ns += index_ns;
    tierce__reclaimer_pause(r->reclaimer);
    return 0;
}

static int measure_step(struct reclaim_bench *r, int step)
{
    uint64_t end = tierce__now_ns() + (uint64_t)(r->bench->seconds * 1e9 / r->what->steps);
    int rc = 0;
    while (rc == 0 && (r->alone.count == 0 || tierce__now_ns() < end))
        rc = look_up(r, &r->alone);
    if (rc == 0)
        rc = limit_group(r, step);
    return rc == 0 ? reclaim(r, step) : rc;
}

static void emit(struct reclaim_bench *r)
{
    char name[128];
    struct tierce__reclaimer_stats stats;
    tierce__reclaimer_stats(r->reclaimer, &stats);
    double blocks = (double)stats.submitted_blocks, goal = r->what == cases ? 1 : 0;
    snprintf(name, sizeof(name), "%s index of %llu blocks; %s", r->what->index,
             (unsigned long long)(r->chains * TIERCE__BENCH_CHAIN_KEYS), r->what->storage);
    struct tierce__bench_row row = {.case_name = name,
                                    .unit = "kblocks/s",
                                    .value = blocks * 1e6 / (double)r->ns,
                                    .limit = 100,
                                    .goal = goal,
                                    .peer = "until they have left the index",
                                    .peer_value = blocks * 1e6 / (double)r->index_ns};
    tierce__bench_emit(r->bench, &row);
    snprintf(name, sizeof(name), "%s index; %s; get 128 keys during reclaim; beside none",
             r->what->index, r->what->storage);
    row = (struct tierce__bench_row){.case_name = name,
                                     .unit = "us",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = median_of(&r->meanwhile),
                                     .limit = median_of(&r->alone),
                                     .goal = goal / 1.1};
    tierce__bench_emit(r->bench, &row);
}

static int measure(struct reclaim_bench *r)
{
    int rc = tierce__reclaimer_start(
        &r->reclaimer,
        &(struct tierce__reclaimer_opts){.size = sizeof(struct tierce__reclaimer_opts),
                                         .locator = r->base.locator,
                                         .registry = r->base.registry,
                                         .seed = 1,
                                         .has_thread = true});
    for (int step = 1; rc == 0 && step <= r->what->steps; step++)
        rc = measure_step(r, step);
    if (rc == 0)
        emit(r);
    return rc;
}

/* ---- a case ---------------------------------------------------------------------------------- */

static int start_s3(struct reclaim_bench *r, const char *folder)
{
    static const uint8_t object[1];
    char path[4160];
    uint16_t port = 0;
    snprintf(path, sizeof(path), "%s/credentials", folder);
    int rc = tierce__bench_s3_credentials(path);
    if (rc == 0)
        rc = tierce__bench_s3_start(&r->s3, object, sizeof(object), &port);
    snprintf(r->spec, sizeof(r->spec),
             "{\"uri\": \"s3://bucket/pool?endpoint=http://127.0.0.1:%u&credentials_file=%s\"}",
             (unsigned)port, path);
    return rc;
}

static int start_servers(struct reclaim_bench *r, const char *folder)
{
    int rc = r->what->uses_redis ? tierce__bench_redis_start(&r->redis, r->bench) : 0;
    if (rc == 0 && r->what->uses_s3)
        rc = start_s3(r, folder);
    if (r->what->uses_redis)
        snprintf(r->spec, sizeof(r->spec), "{\"uri\": \"redis://127.0.0.1:%u?key_prefix=pool:\"}",
                 (unsigned)r->redis.port);
    if (r->what->index_kind != NULL && r->what->uses_redis)
        snprintf(r->index_uri, sizeof(r->index_uri), "redis://127.0.0.1:%u",
                 (unsigned)r->redis.port);
    else if (r->what->index_kind != NULL)
        snprintf(r->index_uri, sizeof(r->index_uri), "%s/index", folder);
    return rc;
}

static int run(struct reclaim_bench *r, const char *folder)
{
    uint64_t blocks = r->bench->blocks > 0 ? r->bench->blocks : BLOCKS_DEFAULT;
    if (r->what != cases)
        blocks /= 4;
    if (r->what->blocks_max > 0 && blocks > r->what->blocks_max)
        blocks = r->what->blocks_max;
    r->chains = blocks / TIERCE__BENCH_CHAIN_KEYS;
    r->chains = r->chains < CHAINS_MIN ? CHAINS_MIN : r->chains;
    r->file_blocks = TIERCE__BENCH_FILE_BLOCKS;
    while (blocks / r->file_blocks > FILES_MAX)
        r->file_blocks *= 2;
    r->alone.ns = tierce__calloc(SAMPLES_MAX, sizeof(*r->alone.ns));
    r->meanwhile.ns = tierce__calloc(SAMPLES_MAX, sizeof(*r->meanwhile.ns));
    if (r->alone.ns == NULL || r->meanwhile.ns == NULL)
        return -ENOMEM;
    int rc = start_servers(r, folder);
    struct tierce__bench_locator_opts opts = {.folder = folder,
                                              .type = r->what->type,
                                              .spec = r->what->type != NULL ? r->spec : NULL,
                                              .index_kind = r->what->index_kind,
                                              .index_uri = r->index_uri,
                                              .file_blocks = r->file_blocks,
                                              .delete_threads = DELETE_THREADS};
    if (rc == 0)
        rc = tierce__bench_locator_open(&r->base, &opts);
    if (rc == 0)
        rc = tierce__bench_locator_fill(&r->base, 0, r->chains,
                                        r->what->type == NULL ? write_files : NULL, r);
    return rc == 0 ? measure(r) : rc;
}

static int run_case(const struct tierce__bench *bench, const struct reclaim_case *what,
                    const char *folder)
{
    struct reclaim_bench *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->bench = bench;
    r->what = what;
    int rc = mkdir(folder, 0700) == 0 ? run(r, folder) : -errno;
    if (rc < 0 && r->base.why[0] != '\0')
        rc = tierce__bench_fail(bench, "%s", r->base.why);
    tierce__reclaimer_stop(r->reclaimer);
    tierce__bench_locator_close(&r->base, NULL);
    tierce__bench_redis_stop(&r->redis);
    tierce__bench_s3_stop(r->s3);
    tierce__bench_remove(folder);
    tierce__arena_clear(&r->arena);
    tierce__free(r->alone.ns);
    tierce__free(r->meanwhile.ns);
    tierce__free(r);
    return rc;
}

int tierce__bench_reclaim(const struct tierce__bench *bench)
{
    char *whole = realpath(bench->dir, NULL), folder[4096] = "";
    int rc = whole == NULL ? -ENOMEM : 0;
    if (rc == 0 && (size_t)snprintf(folder, sizeof(folder), "%s/reclaim", whole) >= sizeof(folder))
        rc = -ENAMETOOLONG;
    free(whole);
    for (size_t i = 0; rc == 0 && i < sizeof(cases) / sizeof(*cases); i++)
        rc = run_case(bench, &cases[i], folder);
    return rc;
}
