/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "proto/resp/resp_request.h"

#include <string.h>

/*
 * Requests of RESP, whole, in pieces of the size in the first byte, and with large arguments
 * written to the caller's memory: the same requests, or the same error.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LARGE_BYTES_MAX 4096u

static const struct tierce__resp_request_limits limits = {
    .args_max = 64, .bytes_max = 2048, .large_bytes = 64, .large_bytes_max = LARGE_BYTES_MAX};

struct run {
    struct tierce__resp_request_parser *parser;
    char large[LARGE_BYTES_MAX];
    uint64_t sum;
    bool is_direct;
};

static void add(struct run *run, const char *bytes, size_t count)
{
    run->sum = run->sum * 1000003 + count;
    for (size_t i = 0; i < count; i++)
        run->sum = run->sum * 131 + (uint8_t)bytes[i];
}

static void take(struct run *run, int rc, const struct tierce__resp_request *request)
{
    for (size_t i = 0; i < request->count; i++) {
        const struct tierce__resp_arg *arg = &request->args[i];
        TIERCE_ASSERT(arg->text == NULL || arg->text[arg->bytes] == '\0');
        add(run, arg->text != NULL ? arg->text : run->large, arg->bytes);
    }
    if (rc != TIERCE__RESP_REQUEST_LARGE)
        return;
    TIERCE_ASSERT(request->large_bytes <= LARGE_BYTES_MAX && request->large == request->count);
    tierce__resp_request_into(run->parser, run->large);
}

static int feed(struct run *run, const char *text, size_t bytes, size_t step)
{
    size_t at = 0;
    while (at < bytes) {
        struct tierce__resp_request request;
        size_t count = bytes - at < step ? bytes - at : step, room, used;
        void *into = run->is_direct ? tierce__resp_request_room(run->parser, &room) : NULL;
        if (into != NULL) {
            used = count < room ? count : room;
            TIERCE_ASSERT((char *)into + room <= run->large + LARGE_BYTES_MAX);
            memcpy(into, text + at, used);
            tierce__resp_request_filled(run->parser, used);
            at += used;
            continue;
        }
        int rc = tierce__resp_request_feed(run->parser, text + at, count, &used, &request);
        TIERCE_ASSERT(used <= count);
        at += used;
        if (rc < 0)
            return rc;
        if (rc != TIERCE__RESP_REQUEST_MORE)
            take(run, rc, &request);
    }
    return 0;
}

static int run_once(uint64_t *sum, const char *text, size_t bytes, size_t step, bool is_direct)
{
    static struct run run;
    memset(&run, 0, sizeof(run));
    run.is_direct = is_direct;
    run.parser = tierce__resp_request_create(&limits);
    TIERCE_ASSERT(run.parser != NULL);
    int rc = feed(&run, text, bytes, step);
    tierce__resp_request_destroy(run.parser);
    *sum = run.sum;
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t live = tierce__alloc_live(), whole, pieces;
    if (size < 1)
        return 0;
    const char *text = (const char *)data + 1;
    int whole_rc = run_once(&whole, text, size - 1, size, false);
    int pieces_rc = run_once(&pieces, text, size - 1, data[0] % 32 + 1u, data[0] >= 128);
    TIERCE_ASSERT(whole_rc == pieces_rc && whole == pieces);
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
