/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_LIBCACHESIM_H
#define TIERCE_CLI_BENCH_LIBCACHESIM_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * libCacheSim in a process of its own, through its Python package `libcachesim`. A Python program
 * serves requests; a replay is one call into libCacheSim's C code, which reads a mapped binary
 * trace.
 *
 *     rc = tierce__libcachesim_open(&peer, python, "trace.oracleGeneral", why);
 *     rc = tierce__libcachesim_run(peer, &ns, &hits, "LRU", capacity, hash_power);
 *     tierce__libcachesim_close(peer);
 *
 * Threads: one at a time. A process that dies ends its calls with -EPIPE or -EPROTO.
 */

struct tierce__libcachesim;

#define TIERCE__LIBCACHESIM_WHY_BYTES 256u

/* Starts `python`, which reads `trace`: 24 bytes a request in libCacheSim's format oracleGeneral.
 * Errors, *out untouched and `why` a sentence: negative errno, -ENOTSUP: the package is missing. */
TIERCE_MUSTUSE int tierce__libcachesim_open(struct tierce__libcachesim **out, const char *python,
                                            const char *trace,
                                            char why[TIERCE__LIBCACHESIM_WHY_BYTES]);

/* One cache over the whole trace: nanoseconds from making the cache to its result, and hits.
 * `cache` is a class of the package; its table has 1 << hash_power cells. */
TIERCE_MUSTUSE int tierce__libcachesim_run(struct tierce__libcachesim *peer, uint64_t *ns,
                                           uint64_t *hits, const char *cache, uint64_t capacity,
                                           unsigned hash_power);

/* Ends the process. NULL is accepted. */
void tierce__libcachesim_close(struct tierce__libcachesim *peer);

#endif
