/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_RECORDING_H
#define TIERCE_TESTS_RECORDING_H

#include "check_main.h"
#include "optimizer/trace/recording.h"

#include <string.h>

/* A request whose blocks are the letters of a text. */
struct test_request {
    double time_s;
    const char *chain;
    uint64_t input_tokens;
    uint64_t session;
    const char *internal; /* NULL, or '1' for each block that the engine held */
    enum tierce__trace_kind kind;
};

static inline struct tierce__recording *test_record(const struct test_request *requests,
                                                    size_t count)
{
    struct tierce__recording *recording;
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        const struct test_request *r = &requests[i];
        uint64_t ids[64];
        uint8_t internal[64];
        uint32_t length = (uint32_t)strlen(r->chain);
        for (uint32_t b = 0; b < length; b++) {
            ids[b] = (uint64_t)r->chain[b];
            internal[b] = r->internal != NULL && r->internal[b] == '1';
        }
        ck_assert_int_eq(
            tierce__recording_add(recording,
                                  &(struct tierce__trace_request){
                                      .time_us = (int64_t)(r->time_s * 1e6),
                                      .session = r->session,
                                      .kind = r->kind,
                                      .count = length,
                                      .read_count = r->kind == TIERCE__TRACE_WRITE ? 0 : length,
                                      .blocks = ids,
                                      .internal = r->internal != NULL ? internal : NULL,
                                      .input_tokens = r->input_tokens,
                                  }),
            0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    return recording;
}

#endif
