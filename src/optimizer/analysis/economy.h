/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_ECONOMY_H
#define TIERCE_OPTIMIZER_ECONOMY_H

#include "optimizer/analysis/profiles.h"
#include "optimizer/replay/sweep.h"

/*
 * From hits to tokens, to FLOPs, to seconds, to GPUs, to money: one function a step.
 *
 *     rc = tierce__sweep_run(&sweep, recording, &(struct tierce__sweep_opts){
 *              ..., .block_tokens = 512, .keeps_curves = true});
 *     rc = tierce__economy_run(&economy, &sweep, recording, &setup);
 *     economy.rows[i]          // of sweep.rows[i]
 *     tierce__economy_clear(&economy);
 *
 * Not modelled: queues, batches, decoding, and loads that interfere with each other. A saved
 * GPU-second counts as one that need not be bought; a tier is assumed to be bought exactly as large
 * as the cache. Prices come from the profiles; most of them are placeholders.
 *
 * Symbols: p is the number of hit tokens of a request, n all its input tokens; P, L, h, d_qk, d_v
 * and bytes are those of the model.
 *
 * Threads: any.
 */

#define TIERCE__HOURS_PER_YEAR 8766.0

struct tierce__setup {
    struct tierce__model_profile model;
    struct tierce__gpu gpu;
    struct tierce__storage_profile storage; /* the tier of the cache */
    uint32_t block_tokens;                  /* of a full block of the trace; >= 1 */
    uint64_t block_bytes;                   /* 0: block_tokens * bytes of the model */
};

/* ---- the steps ------------------------------------------------------------------------------- */

/* FLOPs to compute prefixes with `tokens` tokens in total and `squares` as the sum of the squares
 * of their lengths: 2 P * tokens + L h (d_qk + d_v) * squares. For one prefix: (p, p * p). */
double tierce__prefill_flops(const struct tierce__model_profile *model, double tokens,
                             double squares);

/* FLOP/s of one GPU on this model: mfu * its peak, in fp8 if the weights have one byte and the GPU
 * supports it, else in bf16. */
double tierce__gpu_speed(const struct tierce__model_profile *model, const struct tierce__gpu *gpu);

/* GPU-seconds for FLOPs: FLOPs / tierce__gpu_speed; summed over all GPUs. */
double tierce__gpu_seconds(const struct tierce__setup *setup, double flops);

/* Bytes of a block in the cache. */
double tierce__block_bytes(const struct tierce__setup *setup);

/* Seconds until p tokens are loaded: latency + p * bytes / bandwidth; 0 for none. */
double tierce__load_seconds(const struct tierce__setup *setup, double tokens);

/* Seconds to compute the tokens after a prefix of p: FLOPs(n) - FLOPs(p) on gpu.count GPUs, but at
 * least the time to read the weights once, P * weight_bytes / (bandwidth * count). */
double tierce__compute_seconds(const struct tierce__setup *setup, double n, double p);

/*
 * Seconds until the first token of a request that is alone on its GPUs. Of its n tokens, `held` are
 * in GPU memory already and the rest of p is loaded layer by layer while computing: max(load,
 * compute) + min(load, compute) / L. At least one token is computed. Queueing is not included.
 */
double tierce__ttft_seconds(const struct tierce__setup *setup, double n, double p, double held);

/* The price of the GPU time for FLOPs, in dollars. */
double tierce__gpu_cost(const struct tierce__setup *setup, double flops);

/* Dollars per hour for `bytes` of the tier: bytes / 10^9 * price / lifetime in hours. The lifetime
 * is the smaller of the tier's years and, at `written` bytes per hour, writes * bytes / written. */
double tierce__storage_cost(const struct tierce__storage_profile *storage, double bytes,
                            double written);

/* The bandwidth in bytes/s above which loading is faster than computing: bytes * tokens /
 * GPU-seconds of the same tokens. Per GPU; a tier that n GPUs share must be n times as fast. 0 for
 * no tokens. */
double tierce__break_even_bandwidth(const struct tierce__setup *setup, double tokens,
                                    double squares);

/* The time in seconds after which keeping an unused token costs as much as computing it again:
 * dollars to compute it / dollars per second for its bytes, without wear. Infinite if the tier
 * costs nothing. */
double tierce__break_even_residency(const struct tierce__setup *setup, double tokens,
                                    double squares);

/* ---- all of them over a sweep ---------------------------------------------------------------- */

struct tierce__economy_row {
    bool is_valued; /* if false, the other fields are 0: no prefix hits, an unlimited capacity, or a
                       capacity in bytes */
    double hit_tokens;     /* over the trace, as all sums here */
    double saved_flops;    /* tierce__prefill_flops of the hit tokens */
    double saved_share;    /* of the FLOPs of all input tokens */
    double saved_seconds;  /* of GPUs */
    double gpus_saved;     /* saved_seconds / seconds of the trace */
    double saved_per_hour; /* gpus_saved * price */
    double bytes;          /* capacity * bytes of a block */
    double written;        /* bytes per hour, upper bound: blocks that missed */
    double cost_per_hour;  /* tierce__storage_cost */
    double net_per_hour;   /* saved - cost */
    double next_gib;       /* dollars saved per dollar spent on the next GiB (or block, if that is
                              larger): from the curve if there is one, else up to the next capacity of the
                              line; NAN for the last capacity */
    double hull_next; /* the same along the concave hull, so it falls from row to row even across a
                         plateau; 0 after the hull's end, NAN without a curve */
    double break_even_bandwidth; /* of the hits; 0 without hits */
    double break_even_residency;
};

/* The capacity at which a line (a cache, an order and a match) stops paying: its largest net value,
 * at any capacity if there is a curve, else at those of the rows. */
struct tierce__economy_line {
    size_t first_row; /* a row that identifies the line */
    bool is_valued;
    bool is_exact; /* from a curve */
    bool is_last; /* it is the largest capacity examined: a larger one may pay, or there are no more
                     blocks */
    uint64_t capacity; /* blocks; 0: no capacity pays */
    double bytes, saved_per_hour, cost_per_hour, net_per_hour;
    uint64_t hull_capacity; /* the capacity at which savings along the hull stop growing faster than
                               the cost of the bytes (lifetime by years); equal to `capacity` if
                               wear costs nothing */
};

struct tierce__economy {
    struct tierce__setup setup;
    double span_hours;    /* of the trace */
    double prompts;       /* lookups */
    double prompt_tokens; /* n of all */
    double prefill_flops; /* of these requests, without any cache except the engine's own */
    double prefill_gpus;  /* that this takes */
    struct tierce__economy_row *rows; /* [row_count] of the sweep */
    size_t row_count;
    struct tierce__economy_line *lines; /* in the order of their first rows */
    size_t line_count;
};

/*
 * Evaluates a sweep that was run with setup->block_tokens over that recording. [borrow] all for the
 * call. Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (all requests have the same time, so
 * there are no hourly rates; or block_tokens is 0).
 */
TIERCE_MUSTUSE int tierce__economy_run(struct tierce__economy *out,
                                       const struct tierce__sweep *sweep,
                                       const struct tierce__recording *recording,
                                       const struct tierce__setup *setup);

/* Accepts a zeroed one. */
void tierce__economy_clear(struct tierce__economy *economy);

#endif
