/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_CACHEGEN_H
#define TIERCE_CLI_BENCH_CACHEGEN_H

#include <stdint.h>

#include "bench/bench.h"
#include "core/codec/element.h"

/*
 * LMCache's CacheGen in a process of its own, on the same values: its encode_function and
 * decode_function_gpu with do_dequantize, which run on CPUs too. It codes each layer and channel
 * separately, so that whole runs may be passed in any groups that have a layer of each
 * quantization.
 *
 * Threads: one at a time. A process that dies ends its calls with -EPIPE or -EPROTO.
 */

struct tierce__bench_cachegen;

/* Runs of a file of KV: each is a layer of some cells; keys and values alternate after `part_rows`
 * rows of `row_elements`. */
struct tierce__bench_cachegen_runs {
    const uint8_t *values; /* [borrow for the open] */
    uint64_t count;        /* at least 1 */
    uint64_t run_bytes;
    enum tierce__element element; /* of two bytes */
    uint32_t part_rows, row_elements;
    uint32_t layers; /* run i belongs to layer i * layers / count */
};

/* Starts `python` and passes the values. Errors, *out untouched: -ENOTSUP after it has printed that
 * the package is missing; other negative errno. */
TIERCE_MUSTUSE int tierce__bench_cachegen_open(struct tierce__bench_cachegen **out,
                                               const struct tierce__bench *bench,
                                               const struct tierce__bench_cachegen_runs *runs);

/* "LMCache VERSION" */
const char *tierce__bench_cachegen_name(const struct tierce__bench_cachegen *peer);

/* Encodes, or decodes, a part of the runs, of sample_bytes. Returns nanoseconds of the processor,
 * of all threads of that process, or a negative error. Encode before decode. */
int64_t tierce__bench_cachegen_encode(struct tierce__bench_cachegen *peer);
int64_t tierce__bench_cachegen_decode(struct tierce__bench_cachegen *peer);
uint64_t tierce__bench_cachegen_sample_bytes(const struct tierce__bench_cachegen *peer);

/* Encodes and decodes all runs; *coded_bytes is the length of what LMCache stores. Then read_run
 * reads the restored runs, the first one first, each to run_bytes. */
TIERCE_MUSTUSE int tierce__bench_cachegen_restore(struct tierce__bench_cachegen *peer,
                                                  uint64_t *coded_bytes);
TIERCE_MUSTUSE int tierce__bench_cachegen_read_run(struct tierce__bench_cachegen *peer,
                                                   uint8_t *run);

/* Ends the process. NULL is accepted. */
void tierce__bench_cachegen_close(struct tierce__bench_cachegen *peer);

#endif
