/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_FINGERPRINT_MODEL_H
#define TIERCE_KEY_FINGERPRINT_MODEL_H

#include "core/key/fingerprint.h"

#include <stddef.h>

/* Between the two halves of a fingerprint: fingerprint.c lists the files of a model and sums their
 * digests, fingerprint_read.c reads the files. */

struct tierce__weights_file {
    char *name;
    bool is_weights; /* else the configuration */
    bool known;      /* the digest is in place */
    struct stat st;  /* of the link's target, when it was listed */
    uint8_t digest[TIERCE_HASH_BYTES];
};

struct tierce__weights {
    const struct tierce_fingerprint_opts *opts;
    int dir_fd;
    int cache_fd; /* -1: none */
    uint64_t settle_ns;
    struct tierce__weights_file *files;
    size_t file_count;
    size_t file_room;
};

/*
 * Finds or computes the digest of every file: from the cache, or by reading, on up to 8 threads.
 * Processes with the same cache read each file once: a process that finds a file being read by
 * another takes the next one first, and then waits, for at most the time that a slow disk would
 * take. Errors: as of tierce_weights_fingerprint.
 */
TIERCE_MUSTUSE int tierce__weights_read(struct tierce__weights *model);

#endif
