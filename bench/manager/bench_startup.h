/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_STARTUP_H
#define TIERCE_CLI_BENCH_STARTUP_H

#include <stdio.h>

/* The storage and the instance group with which a benchmark's manager starts, as JSON of
 * startup.file. The group has room for everything. */

#define TIERCE__BENCH_GROUP "default"

struct tierce__bench_startup {
    const char *type;                   /* of the storage: "file", "redis", "s3" */
    const char *spec;                   /* its storage_spec: a JSON object */
    const char *index_kind, *index_uri; /* "local" and "", "rocksdb" and a folder, ... */
    unsigned shards;                    /* of the index */
    const char *pool;                   /* the group's candidate in place of the storage; or NULL */
};

/* Returns 0, or -EIO: `out` has failed. */
int tierce__bench_startup_print(FILE *out, const struct tierce__bench_startup *startup);

/* Writes it to a new file. Errors: negative errno. */
int tierce__bench_startup_write(const char *path, const struct tierce__bench_startup *startup);

#endif
