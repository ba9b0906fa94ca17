/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of which workers hold which chunks: admissions, in batches as workers report them,
 * lookups of 128 keys, and memory. The limits are the goals of
 * docs/inside/design/014-between-engines.md; the peer is a bare table of numbers over an array of
 * keys, which knows no holders, tiers or locks.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/map.h"
#include "directory/directory.h"

#define KEYS_MAX      10000000u
#define BYTES_A_KEY   160u /* of memory, for all sides of a case */
#define BATCH         1000u
#define WORKERS       200u
#define CHAIN         128u
#define ADMISSIONS    1000000.0 /* each second */
#define LOOKUP_US     200
#define BYTES_GOAL    40
#define CHAINS_OF_ALL 64u          /* prompts that every worker holds, */
#define COMMON        (1ULL << 40) /* from this one on */

struct bench_directory {
    const struct tierce__bench *bench;
    struct tierce__directory *directory;
    struct tierce__directory_id workers[WORKERS];
    uint64_t next[WORKERS];
    struct tierce__directory_change batch[BATCH];
    uint64_t keys, drawn;
    bool of_all;

    struct tierce__numbers table;
    struct tierce__directory_key *bare; /* [keys] */
    uint32_t bare_count;
};

/* Chunk `at` of prompt `chain`. */
static struct tierce__directory_key key_of(uint64_t chain, uint64_t at)
{
    uint64_t n = chain * CHAIN + at;
    return (struct tierce__directory_key){tierce__bench_random(1, n), tierce__bench_random(2, n)};
}

static int join(struct bench_directory *d)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%u", i);
        int rc =
            tierce__directory_join(d->directory,
                                   &(struct tierce__directory_worker){
                                       .group = "bench", .name = name, .address = "", .host = ""},
                                   0, &d->workers[i]);
        if (rc < 0)
            return rc;
        (void)tierce__directory_sync_begin(d->directory, d->workers[i], 0);
        (void)tierce__directory_sync_end(d->directory, d->workers[i], 0, 0);
        d->next[i] = 1;
    }
    return 0;
}

static int report(struct bench_directory *d, uint32_t worker, size_t count)
{
    enum tierce__directory_answer answer = tierce__directory_report(
        d->directory, d->workers[worker], d->next[worker], d->batch, count, 0);
    d->next[worker] += count;
    return answer == TIERCE__DIRECTORY_DONE
               ? 0
               : tierce__bench_fail(d->bench, "a report was answered %d", (int)answer);
}

/* Prompts that every worker holds, beside what each holds alone. */
static int fill_common(struct bench_directory *d)
{
    int rc = 0;
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        for (uint32_t chain = 0; rc == 0 && chain < CHAINS_OF_ALL; chain++) {
            for (uint32_t at = 0; at < CHAIN; at++)
                d->batch[at] = (struct tierce__directory_change){.key = key_of(COMMON + chain, at),
                                                                 .admitted = true};
            rc = report(d, worker, CHAIN);
        }
    }
    return rc;
}

/* ---- admissions ------------------------------------------------------------------------------ */

/* One batch of keys that nobody holds. */
static int64_t admit(void *arg)
{
    struct bench_directory *d = arg;
    uint64_t first = d->keys;
    for (uint32_t i = 0; i < BATCH; i++)
        d->batch[i] = (struct tierce__directory_change){
            .key = key_of((first + i) / CHAIN, (first + i) % CHAIN), .admitted = true};
    uint64_t start = tierce__now_ns();
    int rc = report(d, (uint32_t)(first / BATCH % WORKERS), BATCH);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    d->keys += BATCH;
    return rc < 0 ? rc : ns;
}

static int64_t admit_bare(void *arg)
{
    struct bench_directory *d = arg;
    for (uint32_t i = 0; i < BATCH; i++)
        d->batch[i].key = key_of((d->bare_count + i) / CHAIN, (d->bare_count + i) % CHAIN);
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t hash = (uint32_t)(d->batch[i].key.high >> 32);
        TIERCE__NUMBERS_FOR_EACH (it, &d->table, hash) {
            if (d->bare[it.number].low == d->batch[i].key.low)
                return tierce__bench_fail(d->bench, "a key is there already");
        }
        if (tierce__numbers_reserve(&d->table, (size_t)d->table.count + 1) < 0)
            return -ENOMEM;
        d->bare[d->bare_count] = d->batch[i].key;
        tierce__numbers_put(&d->table, hash, d->bare_count++);
    }
    return (int64_t)(tierce__now_ns() - start);
}

/* Fills both sides in turn; the figures are of the whole way up. */
static int run_admissions(struct bench_directory *d, uint64_t keys)
{
    double ns = 0, bare_ns = 0;
    while (d->keys < keys) {
        int64_t a = admit(d), b = a < 0 ? 0 : admit_bare(d);
        if (a < 0 || b < 0)
            return a < 0 ? (int)a : (int)b;
        ns += (double)a;
        bare_ns += (double)b;
    }
    char name[64];
    snprintf(name, sizeof(name), "admissions; %u workers; %.1f M keys", WORKERS,
             (double)keys / 1e6);
    tierce__bench_emit(d->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "keys/s",
                                                   .value = (double)keys * 1e9 / ns,
                                                   .limit = ADMISSIONS,
                                                   .goal = 1,
                                                   .peer = "a bare table",
                                                   .peer_value = (double)keys * 1e9 / bare_ns});
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void emit_memory(struct bench_directory *d, const char *name)
{
    struct tierce__directory_stats stats;
    tierce__directory_stats(d->directory, &stats);
    tierce__bench_emit(
        d->bench, &(struct tierce__bench_row){.case_name = name,
                                              .unit = "bytes",
                                              .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                              .value = (double)stats.bytes / (double)stats.holders,
                                              .limit = BYTES_GOAL,
                                              .goal = 1});
}

/* ---- lookups --------------------------------------------------------------------------------- */

static int64_t look_up(void *arg)
{
    struct bench_directory *d = arg;
    struct tierce__directory_key keys[CHAIN];
    struct tierce__directory_found found;
    uint64_t chain = d->of_all ? COMMON + tierce__bench_random(3, d->drawn) % CHAINS_OF_ALL
                               : tierce__bench_random(3, d->drawn) % (d->keys / CHAIN);
    d->drawn++;
    for (uint32_t i = 0; i < CHAIN; i++)
        keys[i] = key_of(chain, i);
    struct tierce__directory_asker asker = {.group = "bench", .host = ""};
    uint64_t start = tierce__now_ns();
    int rc = tierce__directory_find(d->directory, keys, CHAIN, &asker, &found);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    uint32_t covered = 0;
    for (uint32_t i = 0; rc == 0 && i < found.run_count; i++)
        covered += found.runs[i].keys;
    if (rc == 0 && covered != CHAIN)
        rc = tierce__bench_fail(d->bench, "a lookup found %u of %u keys", covered, CHAIN);
    return rc < 0 ? rc : ns;
}

static int64_t look_up_bare(void *arg)
{
    struct bench_directory *d = arg;
    struct tierce__directory_key keys[CHAIN];
    uint64_t chain = tierce__bench_random(4, d->drawn++) % (d->bare_count / CHAIN);
    uint32_t found = 0;
    for (uint32_t i = 0; i < CHAIN; i++)
        keys[i] = key_of(chain, i);
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 0; i < CHAIN; i++) {
        TIERCE__NUMBERS_FOR_EACH (it, &d->table, (uint32_t)(keys[i].high >> 32))
            found += d->bare[it.number].low == keys[i].low;
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return found == CHAIN ? ns : tierce__bench_fail(d->bench, "the bare table lost a key");
}

static int run_lookups(struct bench_directory *d, bool of_all, const char *name)
{
    d->of_all = of_all;
    struct tierce__bench_side sides[] = {{.run = look_up, .arg = d},
                                         {.run = look_up_bare, .arg = d}};
    int rc = tierce__bench_alternate(sides, 2, d->bench->seconds);
    if (rc < 0)
        return rc;
    tierce__bench_emit(d->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "us",
                                                   .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                   .value = sides[0].median_ns / 1e3,
                                                   .limit = LOOKUP_US,
                                                   .goal = 1,
                                                   .peer = "a bare table",
                                                   .peer_value = sides[1].median_ns / 1e3});
    return 0;
}

static int run(struct bench_directory *d)
{
    uint64_t keys = d->bench->memory_bytes / BYTES_A_KEY / BATCH * BATCH;
    keys = keys < KEYS_MAX ? keys : KEYS_MAX;
    if (keys < CHAIN * CHAINS_OF_ALL)
        return tierce__bench_fail(d->bench, "--memory is too small");
    d->bare = tierce__calloc(keys, sizeof(*d->bare));
    int rc = d->bare != NULL ? join(d) : -ENOMEM;
    if (rc == 0)
        rc = run_admissions(d, keys);
    if (rc == 0)
        emit_memory(d, "memory of a key and its only worker");
    if (rc == 0)
        rc = run_lookups(d, false, "128 keys that one worker holds");
    if (rc == 0)
        rc = fill_common(d);
    if (rc == 0)
        rc = run_lookups(d, true, "128 keys that 200 workers hold");
    return rc;
}

int tierce__bench_directory(const struct tierce__bench *bench)
{
    struct bench_directory *d = tierce__calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->bench = bench;
    int rc = tierce__directory_create(
        &d->directory,
        &(struct tierce__directory_opts){.size = sizeof(struct tierce__directory_opts)});
    if (rc == 0)
        rc = run(d);
    tierce__directory_destroy(d->directory);
    tierce__numbers_fini(&d->table);
    tierce__free(d->bare);
    tierce__free(d);
    return rc;
}
