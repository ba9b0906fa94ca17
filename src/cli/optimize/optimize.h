/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIMIZE_H
#define TIERCE_CLI_OPTIMIZE_H

#include "base/file.h"
#include "optimizer/report/report.h"
#include "cli/optimize/kvcm/kvcm_config.h"
#include "cli/optimize/optimize_money.h"
#include "cli/optimize/optimize_sim.h"

#include <stdio.h>

/*
 * The arguments of `tierce optimize`, and its output.
 *
 *     optimize_args.c     the command line
 *     optimize_kvcm.c     KVCM's configuration and its files
 *     optimize_print.c    the table and the CSV
 *     optimize_curve.c    the table drawn with characters
 *     optimize_money.h    what hits are worth, and how far to trust them
 *     optimize_sim.h      tiers, groups, the life of blocks
 *     optimize_report.c   the page and the plots
 *     optimize_live.c     following a source
 *     cmd_optimize.c      reading the trace, running the sweep
 */

enum {
    TIERCE__OPTIMIZE_LIST_MAX = 64, /* of one option */
    TIERCE__OPTIMIZE_POINTS = 16,   /* capacities, by default */
    TIERCE__OPTIMIZE_SOURCES_MAX = 64,
};

struct tierce__optimize {
    const char *path;
    const char *live[TIERCE__OPTIMIZE_SOURCES_MAX]; /* the followed sources; path is not set then */
    size_t live_count;
    uint32_t every_ms;  /* between two lines or pages; 0: the default */
    uint64_t fade_ms;   /* age at which a lookup counts half; 0: none */
    const char *format; /* format of the trace; NULL: detected */
    const char *csv;    /* NULL, a file, or "-" */
    const char *html;   /* NULL, a file, or "-"; so are the next two */
    const char *svg, *png;
    const char *kvcm_csv;         /* NULL, or a folder */
    const char *kvcm_config_path; /* NULL, or the source of `kvcm_config`, which then defines the
                                     simulation */
    struct tierce__kvcm_config kvcm_config;
    struct tierce__cache caches[TIERCE__OPTIMIZE_LIST_MAX];
    size_t cache_count;
    enum tierce__touch_order orders[2];
    size_t order_count;
    struct tierce__match matches[TIERCE__OPTIMIZE_LIST_MAX];
    size_t match_count;
    bool usual_caches; /* not given by the user */
    struct tierce__optimize_size
        capacity_sizes[TIERCE__OPTIMIZE_LIST_MAX];  /* as they were written */
    uint64_t capacities[TIERCE__OPTIMIZE_LIST_MAX]; /* once the trace is read: blocks, or bytes */
    size_t capacity_count;                          /* 0: chosen from the trace */
    bool has_capacities;                            /* they were named */
    bool in_bytes;                                  /* by the sizes that the trace gives */
    uint64_t block_bytes;                           /* 0: not known */
    struct tierce__optimize_money money;
    struct tierce__optimize_sim sim;
    uint64_t seed;
    uint64_t ttls[TIERCE__OPTIMIZE_LIST_MAX]; /* microseconds */
    size_t ttl_count;
    struct tierce__kvcm_tuning kvcm;
    double bad_share_max;
    uint32_t threads;
};

/* The result of reading the trace. */
struct tierce__optimize_trace {
    struct tierce__recording *recording;
    char **instances; /* names by index */
    uint32_t instance_count;
    uint64_t bad_lines;
    uint64_t block_bytes; /* size of each block, if the trace states it and all are equal; else 0 */
    const char *format;   /* name of the trace's */
};

/* Fills the request, with defaults for missing options. Returns an exit status; if it is not
 * TIERCE__CLI_OK, the reason was printed. The caller must clear the config in every case. */
int tierce__optimize_read_args(struct tierce__optimize *out, int argc, char **argv);

/* Appends sizes with equal factors between them, from about the size of one request to `most`,
 * which holds all blocks. */
void tierce__optimize_choose_capacities(struct tierce__optimize *request, double most);

/* The options of a sweep by the request. [borrow] its arrays. */
struct tierce__sweep_opts tierce__optimize_sweep_opts(const struct tierce__optimize *request);

/* One line a row under tierce__optimize_csv_header and the columns of the findings, or NULL;
 * `trace` is the first column. */
extern const char tierce__optimize_csv_header[];
void tierce__optimize_print_csv(FILE *file, const char *trace, const struct tierce__sweep *sweep,
                                const struct tierce__optimize_findings *findings);

/* The replay that the config asks for: KVCM's files, and a table or CSV. Returns an exit status. */
int tierce__optimize_run_config(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace, const char *name);

/* KVCM's files for the one cache and capacity that the request names. Returns an exit status. */
int tierce__optimize_write_kvcm(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace);

/* Writes the page and the plots that the request names, for a sweep and its findings; `name` is the
 * trace's. Returns an exit status. */
int tierce__optimize_write_report(const struct tierce__optimize *request,
                                  const struct tierce__optimize_trace *trace, const char *name,
                                  const struct tierce__sweep *sweep,
                                  const struct tierce__optimize_findings *findings);

/* Opens the output of --csv and similar options (base/file.h), or standard output ("-"); close ends
 * it. Both return an exit status, and have printed what went wrong. */
int tierce__optimize_open(struct tierce__new_file *out, const char *path);
int tierce__optimize_close(struct tierce__new_file *file, const char *path);

/* How many files are standard output. If one is, nothing else is printed there. */
int tierce__optimize_piped(const struct tierce__optimize *request);

/* A text as a cell of a CSV, without control characters, in quotes if necessary. */
void tierce__optimize_print_text(FILE *file, const char *text);

/* "rev", "fwd", or "-" of a cache that has none. */
const char *tierce__optimize_order(const struct tierce__sweep_row *row);

/* A capacity in the form in which it can be read again: a number without its unit. */
void tierce__optimize_print_capacity(FILE *file, uint64_t capacity);

/* Reports that the replay `what` failed, with the reason, and with the needs of a temporary file if
 * that is the reason. Returns TIERCE__CLI_FAILED. */
int tierce__optimize_fail_replay(const char *what, int rc);

/* The width in columns, from COLUMNS or the terminal; 0: unknown. */
int tierce__optimize_width(FILE *file);

/* Hit rates by cache and capacity, one table for each match, split into parts if it is too wide. */
void tierce__optimize_print_table(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__recording_totals *totals,
                                  const struct tierce__sweep *sweep);

/* "lru", with the order and the match where there are several. */
#define TIERCE__OPTIMIZE_LABEL_BYTES 96u
void tierce__optimize_label(char out[TIERCE__OPTIMIZE_LABEL_BYTES],
                            const struct tierce__sweep *sweep, const struct tierce__sweep_row *row);

/* Hit rates against capacity, one drawing for each match; none if there is only one capacity. The
 * width is that of COLUMNS or of the terminal. Colours are used on a terminal unless NO_COLOR is
 * set, and box-drawing characters if the locale is UTF-8. */
void tierce__optimize_print_curve(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__sweep *sweep);

#endif
