/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_ENGINES_H
#define TIERCE_CLI_BENCH_ENGINES_H

#include "bench/bench.h"
#include "bench/remote/bench_peer.h"

/* Transfer engines of others to compare with: a Python process reads objects out of the memory of a
 * second one, over TCP on loopback. LMCache's peers use the same two engines. Thread: the main one.
 */

enum tierce__bench_engine_kind {
    TIERCE__BENCH_ENGINE_MOONCAKE, /* mooncake.engine */
    TIERCE__BENCH_ENGINE_NIXL,     /* nixl_cu12, with UCX over TCP */
    TIERCE__BENCH_ENGINES,
};

struct tierce__bench_engine {
    const struct tierce__bench *bench; /* [borrow] */
    struct tierce__bench_peer peer;
    const char *name; /* for people */
};

/* `count` objects of `bytes` each. The processes have compared the bytes once. Returns 0; -ENOTSUP,
 * with a line on standard error, if the Python has no such engine that runs; or another error. The
 * caller must call tierce__bench_engine_end also after an error. */
TIERCE_MUSTUSE int tierce__bench_engine_start(struct tierce__bench_engine *engine,
                                              const struct tierce__bench *bench,
                                              enum tierce__bench_engine_kind kind, size_t count,
                                              uint64_t bytes);
void tierce__bench_engine_end(struct tierce__bench_engine *engine);

/* As tierce__bench_run_fn: reads all objects once. */
int64_t tierce__bench_engine_read(void *engine);

#endif
