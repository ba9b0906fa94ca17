/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIVE_H
#define TIERCE_OPTIMIZER_LIVE_H

#include "optimizer/trace/recording.h"
#include "optimizer/replay/sweep.h"

/*
 * Live simulation: a window over the last requests of one or several sources, which is replayed on
 * demand.
 *
 *     rc = tierce__live_window_create(&window, &(struct tierce__live_window_opts){...});
 *     rc = tierce__live_window_add(window, source, &request, now_ns);   // for each
 *     rc = tierce__live_window_take(window, &picture, now_ns);          // at any time
 *     rc = tierce__live_sweep(&result, &picture, &sweep_opts, 0);       // needs no window
 *
 * Memory. The window has at most `blocks_max` blocks; the oldest requests are dropped. A picture is
 * a recording of the window in a temporary file, with its numbering in memory.
 *
 * Ageing. With `fade_us` a lookup has the weight 2^(-age / fade_us), and requests older than ten
 * times fade_us are dropped. Without it all requests have equal weight until the first one is
 * dropped; from then on fade_us is an eighth of the window's duration, so that the caches, which
 * start empty, are warm where weights are high. Age is measured by the source's own times, and by
 * the clock while the source is silent.
 *
 * A request that only looks up is treated as a turn, because the missing blocks will be computed
 * and stored, although the trace does not show it yet. For the same reason a write stores all its
 * blocks. Removals, block sizes and blocks held by the engine are ignored. Each instance of each
 * source has its own blocks.
 *
 * Threads: a window belongs to one thread at a time; a picture and its sweeps need no window.
 */

struct tierce__live_window;

struct tierce__live_window_opts {
    size_t size;
    uint64_t blocks_max; /* 0: 2^20 */
    uint64_t fade_us;    /* 0: as above */
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__live_window_create(struct tierce__live_window **out,
                                              const struct tierce__live_window_opts *opts);

/* NULL is accepted. */
void tierce__live_window_destroy(struct tierce__live_window *window);

/* Adds a request of a source (any number) that arrived at `now_ns` (clock.h). Errors, after which
 * the window can only be destroyed: -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__live_window_add(struct tierce__live_window *window, uint32_t source,
                                           const struct tierce__trace_request *request,
                                           uint64_t now_ns);

/* The number of requests so far. */
uint64_t tierce__live_window_seen(const struct tierce__live_window *window);

/* A snapshot of the window. */
struct tierce__live_picture {
    struct tierce__recording *recording;
    /* Requests, blocks and times since the start; distinct blocks of the window; has_reads: some
     * request only looked up. */
    struct tierce__recording_totals totals;
    uint64_t left;    /* requests that were dropped from the window */
    uint64_t fade_us; /* 0: equal weights */
    int64_t *now_us;  /* [totals.instances] by the clock of the instance's source */
};

/* Errors, *out untouched: -ENOMEM, negative errno (the temporary file). */
TIERCE_MUSTUSE int tierce__live_window_take(const struct tierce__live_window *window,
                                            struct tierce__live_picture *out, uint64_t now_ns);
void tierce__live_picture_clear(struct tierce__live_picture *picture);

struct tierce__live_result {
    struct tierce__sweep sweep; /* blocks and hits are weighted by age */
    /* If policies other than LRU were replayed over a part of the window (scale.h): the part's
     * share of the distinct blocks, and the difference between LRU over the part and over the
     * window. 1 and 0 if all was replayed. */
    double share, error_mean, error_max;
};

/*
 * `opts` as of tierce__sweep_run, without watches. LRU is replayed over the whole window; other
 * policies over a part of it, with about `sample_blocks` blocks (0: 2^17), if it has more. Errors,
 * *out untouched: those of tierce__sweep_run and tierce__scale_draw.
 */
TIERCE_MUSTUSE int tierce__live_sweep(struct tierce__live_result *out,
                                      const struct tierce__live_picture *picture,
                                      const struct tierce__sweep_opts *opts,
                                      uint64_t sample_blocks);
void tierce__live_result_clear(struct tierce__live_result *result);

#endif
