/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_RANDOM_RECORDING_H
#define TIERCE_TESTS_RANDOM_RECORDING_H

#include "check_main.h"
#include "optimizer/trace/recording.h"
#include "test_random.h"

/* Random recordings of chains of a tree, for properties of what replays them. */

enum { RECORDING_DEPTH = 12 };

struct recording_shape {
    uint32_t requests;
    uint32_t blocks;    /* of the tree, for each instance */
    uint32_t instances; /* 0: one */
    uint32_t gap_us;    /* between two requests, at most; may be 0 */
    bool reads_and_writes;
    bool internal;
    bool bytes;
    bool sessions;
    bool repeats;          /* some requests list a block twice or more */
    uint32_t block_tokens; /* not 0: half of the requests state their tokens */
    bool cuts;             /* of some requests, not all blocks are stored */
};

/* A block's parent is fixed, so that ids are prefix ids: the children of b are 2b + 2, 2b + 3. */
static inline uint32_t random_chain(struct test_random *random, uint32_t blocks, uint64_t *ids)
{
    uint64_t path[RECORDING_DEPTH];
    uint32_t count = 0;
    for (uint64_t b = test_random_below(random, blocks);; b = (b - 2) / 2) {
        path[count++] = b;
        if (b < 2)
            break;
        ck_assert_uint_lt(count, RECORDING_DEPTH);
    }
    for (uint32_t i = 0; i < count; i++)
        ids[i] = path[count - 1 - i];
    return test_random_below(random, 8) > 0 ? count : test_random_below(random, count + 1);
}

/* Lists some blocks again behind where they stand; returns the new count. Of those that are
 * mentioned first it is a chain still, perhaps a shorter one. */
static inline uint32_t repeat_some(struct test_random *random, uint32_t count, uint64_t *ids)
{
    uint32_t repeats = test_random_below(random, 3);
    for (uint32_t i = 0; i < repeats && count > 0; i++) {
        uint32_t at = 1 + test_random_below(random, count);
        uint64_t again = ids[test_random_below(random, at)];
        count += count < RECORDING_DEPTH;
        if (at == count)
            continue;
        for (uint32_t k = count - 1; k > at; k--)
            ids[k] = ids[k - 1];
        ids[at] = again;
    }
    return count;
}

static inline struct tierce__recording *random_recording(struct test_random *random,
                                                         const struct recording_shape *shape)
{
    struct tierce__recording *recording;
    int64_t now_us = test_random_below(random, 1000);
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < shape->requests; i++) {
        uint64_t ids[RECORDING_DEPTH], bytes[RECORDING_DEPTH];
        uint8_t internal[RECORDING_DEPTH];
        now_us += test_random_below(random, shape->gap_us + 1);
        struct tierce__trace_request request = {
            .time_us = now_us, .kind = TIERCE__TRACE_TURN, .blocks = ids};
        request.count = random_chain(random, shape->blocks, ids);
        if (shape->repeats)
            request.count = repeat_some(random, request.count, ids);
        request.read_count = request.count;
        request.output_tokens = 7 * (uint64_t)request.count;
        if (shape->reads_and_writes) {
            request.kind = (enum tierce__trace_kind)test_random_below(random, 3);
            request.read_count = test_random_below(random, request.count + 1);
        }
        if (shape->block_tokens > 0 && request.read_count > 0 && test_random_below(random, 2) == 0)
            request.input_tokens = (request.read_count - 1) * shape->block_tokens + 1 +
                                   test_random_below(random, shape->block_tokens);
        if (shape->cuts && request.kind != TIERCE__TRACE_READ && test_random_below(random, 4) == 0)
            request.unstored = test_random_below(random, request.count + 1);
        uint32_t held = test_random_below(random, request.count + 1);
        for (uint32_t k = 0; k < request.count; k++) {
            internal[k] = k < held;
            bytes[k] = 1 + (ids[k] * 7) % 5;
        }
        request.internal = shape->internal ? internal : NULL;
        request.bytes = shape->bytes ? bytes : NULL;
        request.instance = shape->instances > 0 ? test_random_below(random, shape->instances) : 0;
        request.session = shape->sessions ? 1 + test_random_below(random, 40) : 0;
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    return recording;
}

#endif
