/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_ECONOMY_H
#define TIERCE_OPTIMIZER_ECONOMY_H

#include "optimizer/profiles.h"
#include "optimizer/sweep.h"

/*
 * From hits to tokens, to FLOPs, to seconds, to GPUs, to money: one function a step.
 *
 *     rc = tierce__sweep_run(&sweep, recording, &(struct tierce__sweep_opts){
 *              ..., .block_tokens = 512, .keeps_curves = true});
 *     rc = tierce__economy_run(&economy, &sweep, recording, &setup);
 *     economy.rows[i]          // of sweep.rows[i]
 *     tierce__economy_clear(&economy);
 *
 * What it does not know: queues, batches, decoding, and loads that hinder each other. A GPU-second
 * that is saved counts as one that need not be bought, a tier as one that is bought as large as the
 * cache and no larger. Dollars are those of the profiles, most of them placeholders.
 *
 * Words: p is the number of tokens of a request that hit, n all its input tokens, P, L, h, d_qk,
 * d_v and bytes those of the model.
 *
 * Threads: any.
 */

#define TIERCE__HOURS_PER_YEAR 8766.0

struct tierce__setup {
    struct tierce__model model;
    struct tierce__gpu gpu;
    struct tierce__storage storage; /* where the cache lies */
    uint32_t block_tokens;          /* of a whole block of the trace; >= 1 */
    uint64_t block_bytes;           /* 0: block_tokens * bytes of the model */
};

/* ---- the steps ------------------------------------------------------------------------------- */

/* FLOPs that prefixes of together `tokens` tokens, the sum of whose squares is `squares`, cost to
 * compute: 2 P * tokens + L h (d_qk + d_v) * squares. For one prefix: (p, p * p). */
double tierce__prefill_flops(const struct tierce__model *model, double tokens, double squares);

/* FLOP/s of one GPU on this model: mfu * the peak of its kind of numbers; fp8 where the weights
 * are of one byte and the GPU has it, else bf16. */
double tierce__gpu_speed(const struct tierce__model *model, const struct tierce__gpu *gpu);

/* GPU-seconds of them: FLOPs / tierce__gpu_speed. Of one GPU, or of several together. */
double tierce__gpu_seconds(const struct tierce__setup *setup, double flops);

/* Bytes of a block in the cache. */
double tierce__block_bytes(const struct tierce__setup *setup);

/* Seconds until p tokens are loaded: latency + p * bytes / bandwidth; 0 for none. */
double tierce__load_seconds(const struct tierce__setup *setup, double tokens);

/* Seconds to compute the tokens behind a prefix of p: those of FLOPs(n) - FLOPs(p) on gpu.count
 * GPUs, but no less than one reading of the weights, P * weight_bytes / (bandwidth * count). */
double tierce__compute_seconds(const struct tierce__setup *setup, double n, double p);

/*
 * Seconds until the first token of a request alone on its GPUs: of n tokens, `held` are in the GPU
 * already and the others of p are loaded, layer by layer beside the computing:
 * max(load, compute) + min(load, compute) / L. At least one token is computed. Without queueing.
 */
double tierce__ttft_seconds(const struct tierce__setup *setup, double n, double p, double held);

/* Dollars' worth of GPU time that FLOPs take. */
double tierce__gpu_cost(const struct tierce__setup *setup, double flops);

/* Dollars an hour for `bytes` of the tier: bytes / 10^9 * price / lifetime in hours, which is the
 * smaller of its years and, at `written` bytes an hour, of writes * bytes / written. */
double tierce__storage_cost(const struct tierce__storage *storage, double bytes, double written);

/* Bytes/s from which on a load is faster than computing: bytes * tokens / GPU-seconds of the same
 * tokens. Of one GPU; what is shared by several must be as many times as fast. 0 for no tokens. */
double tierce__break_even_bandwidth(const struct tierce__setup *setup, double tokens,
                                    double squares);

/* Seconds that a token may lie unused in the tier until keeping it costs as much as computing it
 * again: dollars to compute it / dollars a second for its bytes, wear apart. Infinite where the
 * tier costs nothing. */
double tierce__break_even_residency(const struct tierce__setup *setup, double tokens,
                                    double squares);

/* ---- all of them over a sweep ---------------------------------------------------------------- */

struct tierce__economy_row {
    bool is_valued;     /* else the rest is 0: hits that are no prefix, a capacity without limit, or
                           blocks in bytes */
    double hit_tokens;  /* over the trace, as all sums here */
    double saved_flops; /* tierce__prefill_flops of them */
    double saved_share; /* of the FLOPs of all input tokens */
    double saved_seconds;  /* of GPUs */
    double gpus_saved;     /* saved_seconds / seconds of the trace */
    double saved_per_hour; /* gpus_saved * price */
    double bytes;          /* capacity * bytes of a block */
    double written;        /* bytes an hour, at most: blocks that did not hit */
    double cost_per_hour;  /* tierce__storage_cost */
    double net_per_hour;   /* saved - cost */
    double next_gib;       /* dollars saved for each dollar spent by the next GiB (or block, if that
                              is larger): from the curve where there is one, else up to the next
                              capacity of the line; NAN at the last of these */
    double hull_next;      /* the same along the convex hull: falls from row to row, and sees over
                              a plateau; behind its end 0, or NAN without a curve */
    double break_even_bandwidth; /* of what hit; 0 for nothing */
    double break_even_residency;
};

/* Where a line (a cache, an order and a match) stops paying: its largest net, looked for at every
 * capacity where there is a curve, else at those of the rows. */
struct tierce__economy_line {
    size_t first_row; /* that shows which line */
    bool is_valued;
    bool is_exact;     /* from a curve */
    bool is_last;      /* of all that was looked at it is the largest capacity: more may pay, or
                          there is nothing more to keep */
    uint64_t capacity; /* blocks; 0: none pays */
    double bytes, saved_per_hour, cost_per_hour, net_per_hour;
    uint64_t hull_capacity; /* up to where the hull of what is saved rises faster than what bytes
                               cost by their years: the same, where wear costs nothing */
};

struct tierce__economy {
    struct tierce__setup setup;
    double span_hours;                /* of the trace */
    double prompts;                   /* lookups */
    double prompt_tokens;             /* n of all */
    double prefill_flops;             /* of them, without any cache beyond what the engine held */
    double prefill_gpus;              /* that this takes */
    struct tierce__economy_row *rows; /* [row_count] of the sweep */
    size_t row_count;
    struct tierce__economy_line *lines; /* in the order of their first rows */
    size_t line_count;
};

/*
 * The sweep was run with setup->block_tokens, over that recording. [borrow] all for the call.
 * Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (the trace takes no time, so that nothing is
 * known by the hour; or block_tokens are 0).
 */
TIERCE_MUSTUSE int tierce__economy_run(struct tierce__economy *out,
                                       const struct tierce__sweep *sweep,
                                       const struct tierce__recording *recording,
                                       const struct tierce__setup *setup);

/* Accepts a zeroed one. */
void tierce__economy_clear(struct tierce__economy *economy);

#endif
