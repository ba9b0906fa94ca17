/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_INSPECT_H
#define TIERCE_CLI_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/options.h"
#include "core/codec/codec_plugin.h"
#include "core/key/namespaces.h"
#include "store/disk/disk.h"
#include "store/disk/disk_journal.h"

/*
 * The totals of a store folder for `tierce inspect`, for each namespace and shard. There is no list
 * of chunks, so that memory does not grow with their number beyond the needs of the scan.
 */

struct tierce__inspect_sums {
    uint64_t chunks;
    uint64_t bytes;
    uint64_t coded_chunks; /* of these chunks; bytes of them, and of the raw ones */
    uint64_t coded_bytes, coded_raw_bytes;
    uint64_t oldest_s; /* wall clock; only with chunks > 0 */
    uint64_t newest_s;
};

struct tierce__inspect_shard {
    struct tierce_shard shard;
    struct tierce__inspect_sums sums;
};

struct tierce__inspect_namespace {
    struct tierce__inspect_sums sums;
    size_t shard_count;
    struct tierce__inspect_shard *shards; /* [shard_count] in the order they were met */
    uint64_t coded_offset; /* in the data file, of the last coded chunk that was met, */
    uint64_t coded_bytes;  /* and its length; 0: there is none */
    const char *codec;     /* in its header; NULL: not readable, or unknown to this build */
    char
        plugin[TIERCE__CODEC_NAME_BYTES]; /* the storage of `codec` if it is a plug-in's; else "" */
    uint32_t key_number;                  /* in its table; 0: its layers are not encrypted */
};

struct tierce__inspect {
    const char *path; /* [borrow] */
    struct tierce__namespaces *namespaces;
    struct tierce__inspect_sums sums;
    size_t count;
    struct tierce__inspect_namespace *items; /* [count] by id */
    uint64_t data_bytes;                     /* length of the data file, 0 if there is none */
    struct tierce__journal_reader journal;   /* the state of its pages */
    uint64_t journal_lost;                   /* synced pages that are missing at its end */
    uint64_t now_s;
};

/* Errors: those of tierce__disk_scan, -ENOMEM; TIERCE_E_FORMAT if the file is not a journal. The
 * caller clears *out, also after a failure. */
TIERCE_MUSTUSE int tierce__inspect_scan(struct tierce__inspect *out, const char *path);
void tierce__inspect_clear(struct tierce__inspect *inspect);

/* Pages and records of the journal that are lost. Pages at its end that were never synced are no
 * damage: a killed or a running process leaves the journal so. */
uint64_t tierce__inspect_journal_damage(const struct tierce__inspect *inspect);

/* The outcome of reading every chunk. */
struct tierce__verify {
    uint64_t chunks; /* read */
    uint64_t bytes;
    uint64_t bad;
    uint64_t vanished; /* evicted by another process while they were read */
    uint64_t locked;   /* encrypted with a key that was not given; the sums of the encrypted bytes
                          and the header are right */
};

struct tierce__coded_keys;

/*
 * Reads and checks every chunk, printing each that is damaged to `report`: its key as text, a tab,
 * and the fault. It reads bytes_per_s at most, 0 for as fast as it can. Memory: one buffer as large
 * as the largest chunk. `keys` decrypt chunks; NULL: none. Errors: those of the scan, negative
 * errno of the data file, -ENOMEM. Blocks for as long as the disk, or the limit, needs.
 */
TIERCE_MUSTUSE int tierce__inspect_verify(struct tierce__verify *out,
                                          const struct tierce__inspect *inspect,
                                          uint64_t bytes_per_s, struct tierce__coded_keys *keys,
                                          FILE *report);

/* Reports why a folder could not be scanned, and the remedy. Returns TIERCE__CLI_FAILED. */
int tierce__inspect_explain(const char *command, const char *folder, int rc);

/* Print the results; `verify` may be NULL. */
void tierce__inspect_print(const struct tierce__inspect *inspect,
                           const struct tierce__verify *verify, FILE *out);
void tierce__inspect_print_json(const struct tierce__inspect *inspect,
                                const struct tierce__verify *verify, FILE *out);

/* Reads the arguments of a command that accepts one folder and options (cli/options.h). Returns an
 * exit status. */
TIERCE_MUSTUSE int tierce__inspect_options(const char **folder, const char *command,
                                           const struct tierce__option *options, void *out,
                                           int argc, char **argv);

#endif
