/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_H
#define TIERCE_OPTIMIZER_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <tierce/status.h>

/*
 * Traces: a reader for the requests of a recorded workload, in several formats.
 *
 *     struct tierce__trace *trace;
 *     rc = tierce__trace_open(&trace, "conversation.jsonl.zst", &(struct tierce__trace_opts){
 *              .size = sizeof(struct tierce__trace_opts)}, why);
 *     while ((rc = tierce__trace_next(trace, &request)) > 0)
 *         replay(&request);
 *     if (rc < 0) explain(tierce__trace_report(trace));
 *
 * Reads as a stream, from a file or standard input, plain, gzip or zstd. Requests come in time
 * order, equal times in file order. The bytes of a trace are untrusted: an error in a line makes it
 * a bad line with a reason, nothing more.
 *
 * Threads: a trace belongs to one thread at a time.
 */

enum tierce__trace_kind {
    TIERCE__TRACE_TURN,  /* looked up, then stored */
    TIERCE__TRACE_READ,  /* looked up only */
    TIERCE__TRACE_WRITE, /* stored only */
    TIERCE__TRACE_DROP,  /* the named blocks, or all blocks of the instance if none is named, were
                            removed from the recorded cache; nothing is looked up or stored (KV
                            events only) */
};

/* The match of the recorded system; a replay may use another. */
enum tierce__trace_query {
    TIERCE__QUERY_PREFIX,
    TIERCE__QUERY_ANY,    /* each block separately */
    TIERCE__QUERY_WINDOW, /* the last `window` blocks of a prefix are enough */
};

struct tierce__trace_request {
    int64_t time_us;   /* relative to the trace's own zero */
    uint64_t line;     /* where it was read, from 1 */
    uint64_t session;  /* requests of one conversation; 0: the trace does not say */
    uint32_t instance; /* index into the trace's names of instances */
    enum tierce__trace_kind kind;
    enum tierce__trace_query query;
    uint32_t window;     /* QUERY_WINDOW: blocks, >= 1 */
    uint32_t count;      /* blocks; 0: an empty request, which is counted */
    uint32_t read_count; /* <= count: the leading blocks that are looked up */
    uint32_t unstored;   /* for a turn or a write: the number of last blocks that are not stored */
    const uint64_t *blocks;  /* [count] prefix ids; any may be NULL where count is 0 */
    const uint8_t *internal; /* NULL, or [count]: 1 if the engine held the block; for a write, if
                                the store had it already */
    const uint64_t *bytes;   /* NULL: all of one size; or [count] */
    uint64_t input_tokens, output_tokens; /* 0: unknown */
    uint8_t hint;                         /* enum tierce__policy_hint; others: none */
};

/* A bad line. */
struct tierce__trace_fault {
    uint64_t line;
    char reason[120];
};

#define TIERCE__TRACE_FAULTS_SHOWN 10u

/* Statistics of reading so far. */
struct tierce__trace_report {
    const char *format;     /* the name of the format that is read */
    uint64_t lines;         /* non-empty lines; records of a binary format */
    uint64_t requests;      /* given out or waiting in the window */
    uint64_t skipped_lines; /* well-formed but not understood, or about a request that was returned
                               already */
    uint64_t joined_lines;  /* lines that add to the request of an earlier line */
    uint64_t notices;       /* lines that are known to have nothing to replay */
    uint64_t bad_lines;
    uint64_t block_bytes; /* of each block, if the format gives it and all are equal; else 0 */
    uint64_t reordered;   /* requests that follow one with a later time */
    bool cut;             /* the last line lacks a line end and is bad */
    uint32_t fault_count; /* of `faults` that are filled */
    struct tierce__trace_fault faults[TIERCE__TRACE_FAULTS_SHOWN]; /* the first ones */
};

struct tierce__trace_opts {
    size_t size;          /* sizeof(struct tierce__trace_opts) */
    const char *format;   /* a name of trace_formats.def; NULL: detected from the first lines */
    double bad_share_max; /* reading fails if bad lines exceed this share of the lines and ten; 0:
                             one in a hundred; 1: never */
    uint32_t window_requests; /* size of the sorting window; 0: 65,536; 1: no sorting */
    size_t line_bytes_max;    /* a longer line is a bad one; 0: 64 MiB */
    bool as_they_come; /* requests are returned at once, with the latest time so far if theirs is
                          earlier; the window is 1 */
};

/* A source of bytes other than a file. */
struct tierce__trace_source {
    /* Reads at least one byte and at most `size`; returns 0 at the end, or a negative errno and
     * `why` a sentence. May block. */
    ssize_t (*read)(void *arg, void *out, size_t size, char why[]);
    void *arg;
};

struct tierce__trace;

/* Which layers of a model the blocks of an instance hold. */
struct tierce__trace_layers {
    const char *kind;   /* "all", "full", "window", "chunked", "linear" */
    const char *group;  /* of the instance */
    const char *family; /* equal for the groups of layers of one model in a group; "": it has no
                           others */
    const char *layers; /* instances of a family with equal layers replace each other */
    uint32_t block_tokens, window_tokens, every_tokens;
};

#define TIERCE__TRACE_WHY_BYTES 512u

/*
 * Opens a trace; "-" is standard input. [borrow] path and options for the call. Errors, *out
 * untouched and `why` a sentence: negative errno (the file), TIERCE_E_ARGUMENT (no such format, or
 * an option out of its range; the sentence lists the formats), TIERCE_E_FORMAT (it is empty, the
 * format is unknown, or the compressed stream is damaged), -ENOMEM. Blocks on the file.
 */
TIERCE_MUSTUSE int tierce__trace_open(struct tierce__trace **out, const char *path,
                                      const struct tierce__trace_opts *opts,
                                      char why[TIERCE__TRACE_WHY_BYTES]);

/* The same for a trace in memory, [borrow]ed until close. */
TIERCE_MUSTUSE int tierce__trace_open_memory(struct tierce__trace **out, const void *data,
                                             size_t size, const struct tierce__trace_opts *opts,
                                             char why[TIERCE__TRACE_WHY_BYTES]);

/* The same for a source, [borrow]ed until close. Blocks until the first line. */
TIERCE_MUSTUSE int tierce__trace_open_source(struct tierce__trace **out,
                                             const struct tierce__trace_source *source,
                                             const struct tierce__trace_opts *opts,
                                             char why[TIERCE__TRACE_WHY_BYTES]);

/*
 * The next request: 1 and *request, whose pointers [borrow] until the next call; 0 at the end; or
 * negative: errno of the file, TIERCE_E_FORMAT (too many bad lines, no request at all, or a damaged
 * compressed stream), -ENOMEM. After 0 or an error further calls return the same.
 */
TIERCE_MUSTUSE int tierce__trace_next(struct tierce__trace *trace,
                                      struct tierce__trace_request *request);

/* [borrow until close]; updated while reading. */
const struct tierce__trace_report *tierce__trace_report(const struct tierce__trace *trace);

/* After an error of next: the reason, as a sentence. [borrow until close] */
const char *tierce__trace_error(const struct tierce__trace *trace);

/* Names of instances seen so far; a format without them has one, "". NULL past the end. [borrow
 * until the next call of next] */
const char *tierce__trace_instance(const struct tierce__trace *trace, uint32_t index);

/* The layers of an instance by its last request so far, or NULL if the trace does not name them.
 * [borrow until the next call of next] */
const struct tierce__trace_layers *tierce__trace_layers(const struct tierce__trace *trace,
                                                        uint32_t index);

/* Bytes of the file read so far, and its length, 0 if unknown; for progress. */
uint64_t tierce__trace_position(const struct tierce__trace *trace, uint64_t *length);

/* NULL is accepted. */
void tierce__trace_close(struct tierce__trace *trace);

/* The formats of this build in the order of trace_formats.def: name and one line of help. NULL
 * past the end. */
const char *tierce__trace_format_name(size_t index);
const char *tierce__trace_format_summary(size_t index);

#endif
