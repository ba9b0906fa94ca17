/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_H
#define TIERCE_CLI_BENCH_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

#include "base/mix.h"

/*
 * `tierce bench`: how fast Tierce runs on this machine, compared with the machine's limits. Every
 * case is measured in turn with its limit, on the same bytes, in the same run: other load and
 * drifting clocks hit both alike, so the ratio can be trusted where the figures cannot.
 *
 * A benchmark is one function in a file of its own and one row in benches.def. It prepares its
 * data, hands its sides to tierce__bench_alternate, and emits a row per case. It checks once that
 * the work it measures is done, outside the time that counts.
 *
 * Missing a goal is not a failure. Thread: the main one.
 */

/* The resources of a run. */
struct tierce__bench {
    double seconds;        /* for each case, preparations aside */
    uint64_t memory_bytes; /* at most, roughly */
    uint64_t blocks;    /* of the manager's index; 0: as many as memory allows, 1,000,000 at most */
    const char *dir;    /* an empty folder for files */
    const char *name;   /* of the benchmark that runs */
    const char *trace;  /* file for benchmarks that replay one, or NULL */
    const char *kv;     /* file of tools/kv_samples.py for the benchmark of codecs, or NULL */
    const char *python; /* a Python with the packages of peers, or NULL for the default */
    bool csv;
};

enum tierce__bench_sense {
    TIERCE__BENCH_MORE_IS_BETTER = 0,
    TIERCE__BENCH_LESS_IS_BETTER,
};

/* One case. Numbers that do not apply are 0, texts NULL. No text holds a comma. */
struct tierce__bench_row {
    const char *case_name;
    const char *unit;
    enum tierce__bench_sense sense;
    double value;
    double limit;
    double goal; /* the required ratio; a larger ratio is better */
    const char *peer;
    double peer_value;
    double value_min, value_max; /* over the rounds */
    double limit_min, limit_max;
};

/* Prints a row of the running benchmark. */
void tierce__bench_emit(const struct tierce__bench *bench, const struct tierce__bench_row *row);

/* Prints why the running benchmark cannot go on, by printf rules. Returns -ECANCELED. */
int tierce__bench_fail(const struct tierce__bench *bench, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct tierce__connector;
struct tierce__namespaces;
struct tierce__pool;

/* Opens the connector of a URL, with buffers of the pool [borrow] and, for fleet://, the namespaces
 * of the names [borrow], otherwise NULL. Returns 0, or tierce__bench_fail's error after it has
 * printed why. */
int tierce__bench_connector(const struct tierce__bench *bench, struct tierce__connector **out,
                            const char *url, struct tierce__pool *pool,
                            struct tierce__namespaces *namespaces);

/* ---- measuring ------------------------------------------------------------------------------ */

/* Does the work once. Returns the nanoseconds of the part that counts, or a negative error. */
typedef int64_t tierce__bench_run_fn(void *arg);

#define TIERCE__BENCH_SIDES_MAX 4

struct tierce__bench_side {
    tierce__bench_run_fn *run;
    void *arg;
    double median_ns, min_ns, max_ns; /* [out] */
};

/*
 * Runs the sides in turn, A B A B, until `seconds` have passed and each has run often enough, after
 * one round that does not count. Errors: -ENOMEM, or the error of a side.
 */
TIERCE_MUSTUSE int tierce__bench_alternate(struct tierce__bench_side *sides, size_t count,
                                           double seconds);

/* Allocates memory, on huge pages if available, and touches all of it. NULL if there is none. */
uint8_t *tierce__bench_map(uint64_t bytes);
void tierce__bench_unmap(uint8_t *memory, uint64_t bytes);

/* The `index`-th number of a stream that looks random and depends on nothing else. */
static inline uint64_t tierce__bench_random(uint64_t stream, uint64_t index)
{
    return tierce__mix(stream * TIERCE__MIX_SECOND + tierce__spread(index));
}

/* Fills memory with numbers of a stream. `bytes` is a multiple of 8. */
void tierce__bench_fill(void *memory, uint64_t bytes, uint64_t stream);

/* Whether the memory still holds these numbers. */
bool tierce__bench_filled(const void *memory, uint64_t bytes, uint64_t stream);

/* ---- the folder of the files ---------------------------------------------------------------- */

/* Removes a folder and its contents, as far as possible. */
void tierce__bench_remove(const char *path);

/* Until end, a signal that ends the process first removes the folder and its contents. */
struct tierce__bench_guard {
    const char *folder;
    sigset_t signals, before;
    pthread_t thread;
};

/* Makes the folder of the template ("...XXXXXX", changed; [borrow until end]). Call it before
 * another thread starts. Errors: negative errno. */
TIERCE_MUSTUSE int tierce__bench_guard_begin(struct tierce__bench_guard *guard, char *folder);

/* The folder stays. */
void tierce__bench_guard_end(struct tierce__bench_guard *guard);

/* ---- an engine for a benchmark -------------------------------------------------------------- */

struct tierce__bench_param {
    const char *name;
    const char *value;
};

/* Opens an engine with defaults and these parameters. Errors: tierce_engine_open's, reported. */
TIERCE_MUSTUSE int tierce__bench_engine(struct tierce_engine **out,
                                        const struct tierce__bench *bench,
                                        const struct tierce__bench_param *params, size_t count);

/* ---- plain copies, the limit of stores and loads -------------------------------------------- */

/* Copies n bytes; dst and src are multiples of 64, as is n. */
typedef void tierce__plain_copy_fn(void *dst, const void *src, size_t n);

void tierce__plain_memcpy(void *dst, const void *src, size_t n);

/* The widest copy of this machine that bypasses the caches; NULL if it has none. A row of copies
 * ends with tierce__plain_fence. */
tierce__plain_copy_fn *tierce__plain_stream(void);
void tierce__plain_fence(void);

/* A part of the benchmark `optimize`: compares replays with libCacheSim's. */
int tierce__bench_replay(const struct tierce__bench *bench);

/* ---- the benchmarks ------------------------------------------------------------------------- */

#define TIERCE_BENCH(suffix, name, summary)                                                        \
    int tierce__bench_##suffix(const struct tierce__bench *bench);
#include "bench/benches.def"
#undef TIERCE_BENCH

#endif
