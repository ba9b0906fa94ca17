/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_RECORDING_H
#define TIERCE_OPTIMIZER_RECORDING_H

#include "optimizer/trace/intern.h"
#include "optimizer/trace/trace.h"

/*
 * A trace with densely numbered blocks in an unnamed temporary file. It is read once and replayed
 * any number of times, by several threads at once; memory is bounded by the number of distinct
 * blocks.
 *
 *     rc = tierce__recording_create(&recording, NULL);
 *     while (tierce__trace_next(trace, &request) > 0)
 *         rc = tierce__recording_add(recording, &request);
 *     rc = tierce__recording_seal(recording);
 *     for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
 *          r = tierce__recording_next(recording, r))
 *         replay(r, tierce__recorded_blocks(r));
 *
 * Costs 4 bytes per block and 56 per request; 1 byte more per block if the trace marks blocks that
 * the engine held, 8 if blocks differ in size.
 *
 * Threads: one at a time until it is sealed; then any.
 */

struct tierce__recording;

/* A request in the file; its arrays follow it. */
struct tierce__recorded {
    int64_t time_us;
    uint64_t session;
    uint64_t input_tokens;
    uint32_t instance;
    uint32_t count;      /* blocks */
    uint32_t read_count; /* that are looked up; 0 for a write */
    uint32_t window;
    uint8_t kind;  /* enum tierce__trace_kind */
    uint8_t query; /* enum tierce__trace_query */
    uint8_t has_internal;
    uint8_t has_bytes : 1;
    uint8_t hint : 7; /* enum tierce__policy_hint */
    uint32_t before;  /* length of the previous request in units of eight bytes; 0: there is none */
    uint32_t stored;  /* leading blocks that are stored if the cache lacks them; 0 for a read */
    uint32_t output_tokens; /* 0: unknown; larger numbers are recorded as UINT32_MAX */
};

struct tierce__recording_totals {
    uint64_t requests;
    uint64_t blocks;          /* of all requests, repetitions included */
    uint64_t read_blocks;     /* of those, looked up */
    uint64_t internal_blocks; /* of those, held by the engine itself */
    uint32_t distinct;
    uint32_t instances; /* one more than the largest index */
    uint32_t longest;   /* blocks of the longest request */
    int64_t first_us, last_us;
    bool has_bytes; /* some request gives sizes */
    bool has_reads; /* some request looks up blocks without storing them */
    bool has_sessions;
};

/*
 * In `folder`, or in TMPDIR or /tmp if it is NULL. Errors, *out untouched: -ENOMEM; negative errno
 * (the folder).
 */
TIERCE_MUSTUSE int tierce__recording_create(struct tierce__recording **out, const char *folder);

/* NULL is accepted. */
void tierce__recording_destroy(struct tierce__recording *recording);

/* Appends a request; TRACE_DROP is not recorded. [borrow] request for the call. Errors, of this or
 * an earlier request, after which the recording can only be destroyed: -ENOMEM, TIERCE_E_LIMIT
 * (over 2^32 - 2 distinct blocks), negative errno (the file). */
TIERCE_MUSTUSE int tierce__recording_add(struct tierce__recording *recording,
                                         const struct tierce__trace_request *request);

/* A hint about the progress, `done` of `total` in any unit, so that the numbering can reserve room.
 * Affects only speed. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__recording_expect(struct tierce__recording *recording, uint64_t done,
                                            uint64_t total);

/* Ends the adding. Errors: as of add. */
TIERCE_MUSTUSE int tierce__recording_seal(struct tierce__recording *recording);

/* Ends a recording to which requests were added with the result `rc`: seals it and sets *out, or
 * destroys it. [transfer] the recording; NULL is accepted with an error. Errors, *out untouched:
 * `rc`, as of add. */
TIERCE_MUSTUSE int tierce__recording_end(struct tierce__recording *recording, int rc,
                                         struct tierce__recording **out);

/* Sealed: the requests in order; NULL past the end. [borrow until destroy] */
const struct tierce__recorded *tierce__recording_first(const struct tierce__recording *recording);
const struct tierce__recorded *tierce__recording_next(const struct tierce__recording *recording,
                                                      const struct tierce__recorded *request);

/* Backwards: the last one, and the one before. */
const struct tierce__recorded *tierce__recording_last(const struct tierce__recording *recording);

static inline const struct tierce__recorded *
tierce__recorded_before(const struct tierce__recorded *request)
{
    const uint64_t *at = (const uint64_t *)(const void *)request;
    return request->before == 0
               ? NULL
               : (const struct tierce__recorded *)(const void *)(at - request->before);
}

static inline const uint32_t *tierce__recorded_blocks(const struct tierce__recorded *request)
{
    return (const uint32_t *)(const void *)(request + 1);
}

/* [count] 8 bytes each, or NULL where all blocks have one size. */
static inline const uint64_t *tierce__recorded_bytes(const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    return request->has_bytes
               ? (const uint64_t *)(const void *)(blocks + (request->count + 1) / 2 * 2)
               : NULL;
}

/* [count] 1 where the engine held the block itself, or NULL for nowhere. */
const uint8_t *tierce__recorded_internal(const struct tierce__recorded *request);

/* Leading blocks that the engine held itself. */
uint32_t tierce__recorded_held(const struct tierce__recorded *request);

/* Input tokens: from the trace, or else the looked-up blocks, all full. */
static inline uint64_t tierce__recorded_input(const struct tierce__recorded *request,
                                              uint32_t block_tokens)
{
    return request->input_tokens != 0 ? request->input_tokens
                                      : (uint64_t)request->read_count * block_tokens;
}

/* Tokens of the first `blocks` blocks: the last block of a request may be a part of one. */
static inline uint64_t tierce__recorded_tokens(const struct tierce__recorded *request,
                                               uint32_t blocks, uint32_t block_tokens)
{
    uint64_t tokens = (uint64_t)blocks * block_tokens;
    uint64_t input = tierce__recorded_input(request, block_tokens);
    return tokens < input ? tokens : input;
}

/* Adds the savings of a lookup whose first `hits` blocks hit. With p hit tokens, of which the
 * engine held i, *tokens grows by p - i, and *squares by p * p - i * i. */
static inline void tierce__recorded_saves(const struct tierce__recorded *request, uint32_t hits,
                                          uint32_t block_tokens, double *tokens, double *squares)
{
    uint32_t held = tierce__recorded_held(request);
    double all = (double)tierce__recorded_tokens(request, hits, block_tokens);
    double had = (double)tierce__recorded_tokens(request, held < hits ? held : hits, block_tokens);
    *tokens += all - had;
    *squares += all * all - had * had;
}

struct tierce__recording_totals tierce__recording_totals(const struct tierce__recording *recording);

/* Caches in bytes are no larger, so that a few of their sums fit 64 bits. */
#define TIERCE__CAPACITY_BYTES_MAX (1ULL << 62)

/* The total bytes of all different blocks, each with its last stated size; at most
 * CAPACITY_BYTES_MAX. -ENOMEM, *out untouched. */
TIERCE_MUSTUSE int tierce__recording_bytes(const struct tierce__recording *recording,
                                           uint64_t *out);

#endif
