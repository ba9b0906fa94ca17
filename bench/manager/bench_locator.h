/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_LOCATOR_H
#define TIERCE_CLI_BENCH_LOCATOR_H

#include "bench/bench.h"
#include "manager/locate/locator.h"
#include "manager/registry/registry.h"
#include "manager/storage/storages.h"

/*
 * A locator without a manager around it: one instance in one group, by default with an index in
 * memory, whose blocks lie in slots of files in a folder. Chains have fixed keys. Thread: one at a
 * time, but any may call get.
 */

enum {
    TIERCE__BENCH_CHAIN_KEYS = 128,
    TIERCE__BENCH_BLOCK_BYTES = 4 << 20,
    TIERCE__BENCH_FILE_BLOCKS = 8, /* slots of a file, as KVCM has */
};

#define TIERCE__BENCH_INSTANCE "bench"

struct tierce__bench_locator {
    struct tierce__registry *registry;
    struct tierce__storages *storages;
    struct tierce__locator *locator;
    struct tierce__arena arena; /* of fill */
    char why[TIERCE__WHY_BYTES];
};

struct tierce__bench_locator_opts {
    const char *folder;
    const char *type, *spec; /* of the storage (bench_startup.h); NULL: files in the folder */
    const char *index_kind, *index_uri; /* NULL: in memory */
    unsigned file_blocks;               /* slots of a file */
    struct tierce__ghosts *ghost;       /* or NULL */
    uint32_t delete_threads;            /* 0: nothing is deleted */
};

/* Zeroed before. After an error `why` may be set; close is called. */
TIERCE_MUSTUSE int tierce__bench_locator_open(struct tierce__bench_locator *out,
                                              const struct tierce__bench_locator_opts *opts);
/* Destroys `ghost`, too. */
void tierce__bench_locator_close(struct tierce__bench_locator *b, struct tierce__ghosts *ghost);

/* Called with the locations of a chain while it is being written; or NULL. */
typedef int (*tierce__bench_write_fn)(void *arg, const struct tierce__found *locations,
                                      size_t count);
/* Stores the chains from `first` on. */
TIERCE_MUSTUSE int tierce__bench_locator_fill(struct tierce__bench_locator *b, uint64_t first,
                                              uint64_t chains, tierce__bench_write_fn write,
                                              void *arg);

/* Looks a chain up, which must be there in full. Returns the nanoseconds. */
TIERCE_MUSTUSE int64_t tierce__bench_locator_get(struct tierce__bench_locator *b, uint64_t chain,
                                                 struct tierce__arena *arena);

#endif
